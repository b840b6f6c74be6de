/* Rules of frames from .eh_frame, by libunwind.
 *
 * libunwind interprets the unwind tables, but never reads the stack: it makes one step in an address space of
 * ours, in which registers have made-up values and every word of the stack is its own address plus a constant.
 * What it finds for the caller's registers tells from where they come, and that rule holds for every later frame
 * at the address (unwind.c).  Tables are read within the segments of their object only.
 *
 * Declarations follow libunwind 1.1 to 1.8 (libunwind-common.h, libunwind-dynamic.h, libunwind-x86_64.h); what differs
 * among them is found by asking for the rule of a function of ours. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "unwind.h"

#ifdef __x86_64__

enum { BP = 6, SP = 7, IP = 16 };               /* libunwind's numbers of registers */
enum { NO_INFO = -10, BAD_REGISTER = -3, INVALID = -8 }; /* its errors */
enum { REMOTE_TABLE = 2 };                      /* its format of .eh_frame_hdr's table */
enum { CURSOR_WORDS = 127 + 129 };              /* more than it declares: a newer one may need more */

typedef struct space space;

typedef struct proc_info {
    uint64_t start, end, lsda, handler, gp, flags;
    int format, size;
    void *info;
    uint64_t spare[8];
} proc_info;

typedef struct table_info {
    void *next, *previous;
    uint64_t start, end, gp;
    int32_t format, pad;
    uint64_t load_offset[1]; /* where there is one: 1.6 to 1.8 */
    struct {
        uint64_t name, base, length, entries; /* length: words */
    } table;
} table_info;

typedef struct accessors {
    int (*find_proc_info)(space *, uint64_t, proc_info *, int, void *);
    void (*put_unwind_info)(space *, proc_info *, void *);
    int (*list)(space *, uint64_t *, void *);
    int (*memory)(space *, uint64_t, uint64_t *, int, void *);
    int (*reg)(space *, int, uint64_t *, int, void *);
    int (*fpreg)(space *, int, void *, int, void *);
    int (*resume)(space *, void *, void *);
    int (*name)(space *, uint64_t, char *, size_t, uint64_t *, void *);
    void *newer[5];
} accessors;

static struct {
    space *(*create)(accessors *, int);
    int (*init)(uint64_t *, space *, void *);
    int (*step)(uint64_t *);
    int (*get)(uint64_t *, int, uint64_t *);
    int (*cache)(space *, int);
    int (*search)(space *, uint64_t, table_info *, proc_info *, int, void *);
    space *space;
    bool has_load_offset;
} library;

/* Made-up registers: further apart than any offset. */
#define STACK UINT64_C(0x100000000000)
#define FRAME UINT64_C(0x200000000000)
#define OTHER UINT64_C(0x500000000000)
#define WORD UINT64_C(0x080000000000) /* the word at an address of the stack is the address plus this */
enum { RANGE = 1 << 24 };

typedef struct question {
    uint64_t address;
    const pasta_object *object;
    bool found; /* there is unwind information for the address */
} question;

static bool is_near(uint64_t address, uint64_t base) { return address - base + RANGE < 2 * (uint64_t)RANGE; }

/* An address of the stack, or one that a word of it holds: there CFA is, of a function that aligns its stack. */
static bool is_made_up(uint64_t address) {
    return is_near(address, STACK) || is_near(address, FRAME) || is_near(address, STACK + WORD) || is_near(address, FRAME + WORD);
}

/* Reads from an object that is loaded here, or from its file. */
static bool read_object(const pasta_object *o, uint64_t address, void *to, size_t bytes) {
    const ElfW(Phdr) *p = pasta_object_segment(o, address, bytes);
    if (!p) return false;
    if (o->in_file) return pread(o->file, to, bytes, (off_t)(p->p_offset + (address - o->bias - p->p_vaddr))) == (ssize_t)bytes;
    memcpy(to, (const void *)(uintptr_t)address, bytes);
    return true;
}

static int find_proc_info(space *as, uint64_t address, proc_info *info, int need, void *argument) {
    question *q = argument;
    const pasta_object *o = q->object;
    enum { HEADER = 12, PC_RELATIVE_4 = 0x1b, UNSIGNED_4 = 0x03, TABLE_RELATIVE_4 = 0x3b };
    uint8_t header[HEADER];
    uint32_t count;
    if (address < o->start || address >= o->end || !read_object(o, o->frame_header, header, sizeof header)) return NO_INFO;
    memcpy(&count, header + 8, sizeof count);
    if (header[0] != 1 || header[1] != PC_RELATIVE_4 || header[2] != UNSIGNED_4 || header[3] != TABLE_RELATIVE_4 || !count ||
        !pasta_object_segment(o, o->frame_header + HEADER, (uint64_t)count * 8))
        return NO_INFO;
    table_info table = {.start = o->start, .end = o->end, .format = REMOTE_TABLE,
                        .table = {.base = o->frame_header, .length = count, .entries = o->frame_header + HEADER}};
    if (!library.has_load_offset) memmove((char *)&table + offsetof(table_info, load_offset), &table.table, sizeof table.table);
    memset(info, 0, sizeof *info - sizeof info->spare);
    int error = library.search(as, address, &table, info, need, argument);
    q->found = q->found || error == 0;
    return error;
}

static void put_unwind_info(space *as, proc_info *info, void *argument) { (void)as, (void)info, (void)argument; }

static int no_list(space *as, uint64_t *list, void *argument) {
    (void)as, (void)list, (void)argument;
    return NO_INFO;
}

static int read_memory(space *as, uint64_t address, uint64_t *value, int write, void *argument) {
    const question *q = argument;
    (void)as;
    if (write) return INVALID;
    if (is_made_up(address)) *value = address + WORD;
    else if (!read_object(q->object, address, value, sizeof *value)) return INVALID;
    return 0;
}

static int read_register(space *as, int number, uint64_t *value, int write, void *argument) {
    const question *q = argument;
    (void)as;
    if (write || number < 0 || number > IP) return BAD_REGISTER;
    *value = number == IP ? q->address : number == SP ? STACK : number == BP ? FRAME : OTHER + ((uint64_t)number << 32);
    return 0;
}

static int no_fpreg(space *as, int number, void *value, int write, void *argument) {
    (void)as, (void)number, (void)value, (void)write, (void)argument;
    return BAD_REGISTER;
}

static int no_resume(space *as, void *cursor, void *argument) {
    (void)as, (void)cursor, (void)argument;
    return INVALID;
}

static int no_name(space *as, uint64_t address, char *name, size_t size, uint64_t *offset, void *argument) {
    (void)as, (void)address, (void)name, (void)size, (void)offset, (void)argument;
    return NO_INFO;
}

/* ---- rules ---- */

/* Offset of a made-up address from CFA; false where it does not fit a rule. */
static bool offset_from(uint64_t word, uint64_t cfa, int16_t *offset) {
    int64_t distance = (int64_t)(word - WORD - cfa);
    *offset = (int16_t)distance;
    return distance == *offset;
}

static bool base_of(uint64_t cfa, pasta_rule *rule) {
    static const struct {
        uint64_t base;
        pasta_rule_kind kind;
    } bases[] = {{STACK, PASTA_RULE_SP}, {FRAME, PASTA_RULE_FP}, {STACK + WORD, PASTA_RULE_SP_WORD}, {FRAME + WORD, PASTA_RULE_FP_WORD}};
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++) {
        if (!is_near(cfa, bases[i].base)) continue;
        rule->kind = (uint8_t)bases[i].kind;
        rule->cfa = (int32_t)(int64_t)(cfa - bases[i].base);
        return true;
    }
    return false;
}

static pasta_rule rule_of(uint64_t cfa, uint64_t ip, uint64_t fp) {
    pasta_rule rule = {.kind = PASTA_RULE_NONE}, none = rule;
    if (!base_of(cfa, &rule)) return none;
    if (rule.kind == PASTA_RULE_SP_WORD && is_near(ip, STACK + WORD) && is_near(fp, STACK + WORD)) {
        /* a signal's frame: every register of the interrupted code is in it */
        rule.kind = PASTA_RULE_SIGNAL;
        return offset_from(ip, STACK, &rule.ra) && offset_from(fp, STACK, &rule.fp) ? rule : none;
    }
    if (!offset_from(ip, cfa, &rule.ra)) return none;
    if (fp == FRAME) rule.saved = PASTA_SAVED_NOT;
    else if (offset_from(fp, cfa, &rule.fp)) rule.saved = PASTA_SAVED_CFA;
    else if (offset_from(fp, FRAME, &rule.fp)) rule.saved = PASTA_SAVED_FP;
    else return none;
    return rule;
}

pasta_cfi_answer pasta_cfi_rule(uint64_t address, const pasta_object *object, pasta_rule *rule) {
    uint64_t cursor[CURSOR_WORDS], cfa, ip, fp;
    question q = {.address = address, .object = object};
    *rule = (pasta_rule){.kind = PASTA_RULE_NONE};
    if (!library.space || !object->frame_header) return PASTA_CFI_NONE;
    int stepped = library.init(cursor, library.space, &q) ? -1 : library.step(cursor);
    if (q.found && stepped == 0) rule->kind = PASTA_RULE_OUTER;
    if (q.found && stepped > 0 && !library.get(cursor, SP, &cfa) && !library.get(cursor, IP, &ip) && !library.get(cursor, BP, &fp))
        *rule = rule_of(cfa, ip, fp);
    return q.found ? PASTA_CFI_FOUND : PASTA_CFI_NONE;
}

static bool knows_itself(void) {
    pasta_object self;
    pasta_rule rule;
    uint64_t here = (uint64_t)(uintptr_t)pasta_cfi_rule;
    return pasta_object_at(here, &self) && pasta_cfi_rule(here, &self, &rule) == PASTA_CFI_FOUND && rule.ra == -8;
}

bool pasta_cfi_load(void) {
    static accessors ours = {.find_proc_info = find_proc_info, .put_unwind_info = put_unwind_info, .list = no_list,
                             .memory = read_memory, .reg = read_register, .fpreg = no_fpreg, .resume = no_resume, .name = no_name};
    enum { NO_CACHE = 0 };
    if (library.space) return true;
    void *handle = dlopen("libunwind-x86_64.so.8", RTLD_NOW | RTLD_LOCAL);
    if (!handle) return false;
    *(void **)&library.create = dlsym(handle, "_Ux86_64_create_addr_space");
    *(void **)&library.init = dlsym(handle, "_Ux86_64_init_remote");
    *(void **)&library.step = dlsym(handle, "_Ux86_64_step");
    *(void **)&library.get = dlsym(handle, "_Ux86_64_get_reg");
    *(void **)&library.cache = dlsym(handle, "_Ux86_64_set_caching_policy");
    *(void **)&library.search = dlsym(handle, "_Ux86_64_dwarf_search_unwind_table");
    if (!library.create || !library.init || !library.step || !library.get || !library.cache || !library.search) return false;
    library.space = library.create(&ours, 0);
    if (!library.space) return false;
    library.cache(library.space, NO_CACHE);
    library.has_load_offset = true;
    if (knows_itself()) return true;
    library.has_load_offset = false;
    if (!knows_itself()) library.space = NULL; /* another interface: never used */
    return library.space != NULL;
}

#else /* frame pointers only: the ABI of aarch64 asks for them */

bool pasta_cfi_load(void) { return false; }

pasta_cfi_answer pasta_cfi_rule(uint64_t address, const pasta_object *object, pasta_rule *rule) {
    (void)address, (void)object, (void)rule;
    return PASTA_CFI_NONE;
}

#endif
