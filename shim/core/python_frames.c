/* Python frames of this thread, without the interpreter's lock.
 *
 * The frames of a thread, and the code objects, names and line tables that they refer to, stay as they are while it is
 * in a call from them: nothing of them is changed or referenced here.  Their layouts are those of CPython 3.11 to 3.13,
 * which no longer change (pycore_frame.h, code.h, unicodeobject.h of these versions; tests/unit/test_c_call_paths.py
 * compares). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "unwind.h"

typedef struct layout {
    uint16_t thread_frame;  /* in the thread's state: its frame, or a structure that has it at `chain_frame` */
    int16_t chain_frame;    /* -1: the frame itself */
    uint16_t code, previous, instruction, owner;
    int16_t is_entry;       /* -1: a frame of owner OWNED_BY_C precedes the outermost one of a call */
    uint16_t first_line, instructions, first_traceable; /* in a code object */
    uint16_t ascii, compact; /* sizes of the two headers of texts */
} layout;

/* In all three versions. */
enum { OBJECT_TYPE = 8, CODE_FILE = 112, CODE_NAME = 120, CODE_LINES = 136, SIZE = 16, TEXT_HASH = 24, TEXT_STATE = 32, BYTES_DATA = 32 };
enum { OWNED_BY_C = 3, OWNED_BY_GENERATOR = 1 };

static const layout layouts[] = {
    [11] = {56, 8, 32, 48, 56, 69, 68, 72, 184, 168, 48, 72},
    [12] = {56, 0, 0, 8, 56, 70, -1, 68, 192, 176, 40, 56},
    [13] = {72, -1, 0, 8, 56, 70, -1, 68, 200, 184, 40, 56},
};

static struct {
    const layout *layout;
    const void *code_type;
    uint64_t eval_start, eval_end;
    void *(*thread)(void);
    int (*initialized)(void), (*finalizing)(void);
    bool looked;
} python;

#define FIELD(type, object, offset) (*(const type *)((const char *)(object) + (offset)))

/* Called once: a Python that is loaded later is not found. */
static __attribute__((noinline)) bool find_python(void) {
    const char *(*version)(void) = NULL;
    void *eval = dlsym(RTLD_DEFAULT, "_PyEval_EvalFrameDefault");
    Dl_info info;
    const ElfW(Sym) *symbol = NULL;
    *(void **)&version = dlsym(RTLD_DEFAULT, "Py_GetVersion");
    *(void **)&python.thread = dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState");
    *(void **)&python.initialized = dlsym(RTLD_DEFAULT, "Py_IsInitialized");
    *(void **)&python.finalizing = dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
    if (!python.finalizing) *(void **)&python.finalizing = dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");
    python.code_type = dlsym(RTLD_DEFAULT, "PyCode_Type");
    if (!eval || !version || !python.thread || !python.initialized || !python.finalizing || !python.code_type) return false;
    const char *text = version();
    unsigned long minor = strncmp(text, "3.", 2) ? 0 : strtoul(text + 2, NULL, 10);
    bool known = minor >= 11 && minor < sizeof layouts / sizeof *layouts && !strstr(text, "free-threading");
    if (!known || !dladdr1(eval, &info, (void **)&symbol, RTLD_DL_SYMENT) || !symbol) return false;
    python.eval_start = (uint64_t)(uintptr_t)eval;
    python.eval_end = python.eval_start + symbol->st_size;
    __atomic_store_n(&python.layout, &layouts[minor], __ATOMIC_RELEASE);
    return true;
}

bool pasta_python_is_eval(uint64_t address) { return address - python.eval_start < python.eval_end - python.eval_start; }

/* Skips frames that Python itself hides; stops at the one that ends the interpreter's call. */
static bool is_shown(const layout *l, const void *frame) {
    const void *code = FIELD(void *, frame, l->code);
    char owner = FIELD(char, frame, l->owner);
    if (owner == OWNED_BY_C || !code || FIELD(void *, code, OBJECT_TYPE) != python.code_type) return false;
    const char *first = (const char *)code + l->instructions + 2 * (int64_t)FIELD(int, code, l->first_traceable);
    return owner == OWNED_BY_GENERATOR || FIELD(char *, frame, l->instruction) >= first;
}

pasta_python_walk pasta_python_begin(void) {
    pasta_python_walk walk = {.frame = NULL};
    const layout *l = __atomic_load_n(&python.layout, __ATOMIC_ACQUIRE);
    if (!l || !python.initialized() || python.finalizing()) return walk;
    const void *thread = python.thread();
    if (!thread) return walk;
    walk.frame = FIELD(void *, thread, l->thread_frame);
    if (walk.frame && l->chain_frame >= 0) walk.frame = FIELD(void *, walk.frame, l->chain_frame);
    return walk;
}

size_t pasta_python_take(pasta_python_walk *walk, pasta_frame *frames, size_t capacity) {
    const layout *l = python.layout;
    size_t count = 0;
    while (walk->frame && count < capacity) {
        const void *frame = walk->frame;
        bool last = l->is_entry >= 0 ? FIELD(bool, frame, l->is_entry) : FIELD(char, frame, l->owner) == OWNED_BY_C;
        if (is_shown(l, frame))
            frames[count++] = (pasta_frame){.address = (uint64_t)FIELD(uintptr_t, frame, l->instruction), .code = FIELD(void *, frame, l->code)};
        walk->frame = FIELD(void *, frame, l->previous);
        if (last) break;
    }
    return count;
}

/* ---- what a frame is ---- */

typedef struct text {
    const uint8_t *data;
    size_t length;     /* characters */
    unsigned kind;     /* bytes of a character */
    bool ascii;
    int64_t hash;      /* Python's; -1: not computed */
} text;

static text text_of(const void *object) {
    enum { COMPACT = 1 << 5, ASCII = 1 << 6 };
    uint32_t state = FIELD(uint32_t, object, TEXT_STATE);
    text t = {.length = (size_t)FIELD(int64_t, object, SIZE), .kind = state >> 2 & 7, .ascii = state & ASCII, .hash = FIELD(int64_t, object, TEXT_HASH)};
    t.data = (const uint8_t *)object + (t.ascii ? python.layout->ascii : python.layout->compact);
    if (!(state & COMPACT)) t.length = 0; /* a text of the old interface: none of the compiler's */
    return t;
}

static uint32_t character(const text *t, size_t i) {
    uint16_t two;
    uint32_t four;
    if (t->kind == 1) return t->data[i];
    if (t->kind == 2) return memcpy(&two, t->data + 2 * i, sizeof two), two;
    return memcpy(&four, t->data + 4 * i, sizeof four), four;
}

static size_t put_utf8(char *to, uint32_t c) {
    if (c < 0x80) return to[0] = (char)c, 1;
    if (c < 0x800) return to[0] = (char)(0xc0 | c >> 6), to[1] = (char)(0x80 | (c & 63)), 2;
    if (c < 0x10000) return to[0] = (char)(0xe0 | c >> 12), to[1] = (char)(0x80 | (c >> 6 & 63)), to[2] = (char)(0x80 | (c & 63)), 3;
    to[0] = (char)(0xf0 | c >> 18);
    to[1] = (char)(0x80 | (c >> 12 & 63));
    to[2] = (char)(0x80 | (c >> 6 & 63));
    to[3] = (char)(0x80 | (c & 63));
    return 4;
}

static uint32_t intern_text(const void *object) {
    char utf8[4096];
    size_t used = 0;
    text t = text_of(object);
    if (t.ascii) return pasta_intern((const char *)t.data, t.length);
    for (size_t i = 0; i < t.length && used + 4 <= sizeof utf8; i++) used += put_utf8(utf8 + used, character(&t, i));
    return pasta_intern(utf8, used);
}

static uint64_t text_hash(const void *object) {
    text t = text_of(object);
    return t.hash != -1 ? (uint64_t)t.hash : pasta_hash(t.data, t.length * t.kind);
}

static int64_t instruction_of(const pasta_frame *f) {
    return (int64_t)(f->address - (uint64_t)(uintptr_t)f->code - python.layout->instructions) / 2;
}

uint64_t pasta_python_hash(const pasta_frame *f) {
    uint64_t hash = pasta_mix(text_hash(FIELD(void *, f->code, CODE_FILE)), text_hash(FIELD(void *, f->code, CODE_NAME)));
    return pasta_mix(hash, (uint64_t)FIELD(uint32_t, f->code, python.layout->first_line) << 32 ^ (uint64_t)instruction_of(f));
}

typedef struct reader {
    const uint8_t *at, *end;
} reader;

static uint32_t varint(reader *r) {
    uint32_t value = 0;
    for (unsigned shift = 0; r->at < r->end && shift < 32; shift += 6) {
        uint8_t byte = *r->at++;
        value |= (uint32_t)(byte & 63) << shift;
        if (!(byte & 64)) break;
    }
    return value;
}

/* Line of an instruction by the location table of 3.11 (Objects/locations.md). */
static uint32_t line_of(const void *code, int64_t instruction) {
    enum { FIRST_ONE_LINE = 10, NO_COLUMNS = 13, LONG = 14, NOWHERE = 15 };
    const void *table = FIELD(void *, code, CODE_LINES);
    reader r = {.at = (const uint8_t *)table + BYTES_DATA};
    r.end = r.at + FIELD(int64_t, table, SIZE);
    int64_t line = FIELD(int, code, python.layout->first_line), start = 0;
    while (r.at < r.end) {
        uint8_t head = *r.at++;
        unsigned form = head >> 3 & 15;
        if (form == NO_COLUMNS || form == LONG) {
            uint32_t delta = varint(&r);
            line += delta & 1 ? -(int64_t)(delta >> 1) : (int64_t)(delta >> 1);
        } else if (form >= FIRST_ONE_LINE && form < NO_COLUMNS) {
            line += form - FIRST_ONE_LINE;
        }
        start += (head & 7) + 1;
        if (instruction < start) return form == NOWHERE ? 0 : (uint32_t)line;
        while (r.at < r.end && !(*r.at & 128)) r.at++; /* columns */
    }
    return 0;
}

pasta_python_line pasta_python_describe(const pasta_frame *f) {
    return (pasta_python_line){.file = intern_text(FIELD(void *, f->code, CODE_FILE)), .function = intern_text(FIELD(void *, f->code, CODE_NAME)),
                               .line = line_of(f->code, instruction_of(f)), .first_line = FIELD(uint32_t, f->code, python.layout->first_line)};
}

void pasta_python_find(void) {
    if (!__atomic_exchange_n(&python.looked, true, __ATOMIC_RELAXED) && !find_python())
        __atomic_store_n(&python.layout, NULL, __ATOMIC_RELEASE);
}
