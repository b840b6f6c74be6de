/* Code objects, their kernels, and the dispatches of these.
 *
 * A kernel is interned when its code object is loaded, so a dispatch takes two look-ups: its kernel by the
 * SDK's id, which is never reused, and a free entry for its completion.  That comes on any thread, in any
 * order, or not at all.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "source.h"

/* ---- code objects ---- */

/* Value of "&key=" after the # of a URI; decimal, octal or hexadecimal. */
static uint64_t number_in(const char *uri, const char *key) {
    const char *at = strchr(uri, '#');
    size_t length = strlen(key);
    while (at && (strncmp(at + 1, key, length) != 0 || at[1 + length] != '=')) at = strchr(at + 1, '&');
    return at ? strtoull(at + 2 + length, NULL, 0) : 0;
}

static int digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* The path of a file:// URI, with %XX decoded; false for another URI. */
static bool path_in(const char *uri, char *path, size_t size) {
    static const char scheme[] = "file://";
    if (strncmp(uri, scheme, sizeof scheme - 1) != 0) return false;
    uri += sizeof scheme - 1;
    size_t length = 0;
    while (*uri && *uri != '#' && length < size - 1) {
        int high = *uri == '%' ? digit(uri[1]) : -1, low = high < 0 ? -1 : digit(uri[2]);
        path[length++] = low < 0 ? *uri : (char)(high << 4 | low);
        uri += low < 0 ? 1 : 3;
    }
    path[length] = '\0';
    return *uri == '#' || !*uri;
}

typedef struct image {
    const void *bytes;
    size_t length;
    void *mapped; /* to be unmapped; NULL: the program's memory */
    size_t mapped_length;
} image;

static image map_file(const char *uri) {
    image none = {0}, i = {0};
    char path[4096];
    struct stat file;
    if (!path_in(uri, path, sizeof path)) return none;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    uint64_t offset = number_in(uri, "offset"), bytes = number_in(uri, "size");
    if (fd < 0) return none;
    bool inside = fstat(fd, &file) == 0 && offset < (uint64_t)file.st_size;
    if (inside && (!bytes || bytes > (uint64_t)file.st_size - offset)) bytes = (uint64_t)file.st_size - offset;
    uint64_t before = offset % (uint64_t)sysconf(_SC_PAGESIZE);
    i.mapped_length = bytes + before;
    i.mapped = inside ? mmap(NULL, i.mapped_length, PROT_READ, MAP_PRIVATE, fd, (off_t)(offset - before)) : MAP_FAILED;
    close(fd);
    if (i.mapped == MAP_FAILED) return none;
    i.bytes = (const char *)i.mapped + before;
    i.length = bytes;
    return i;
}

static image image_of(const pasta_amd_code_object *c) {
    if (PASTA_AMD_HAS(c, memory_bytes) && c->stored == PASTA_AMD_STORED_MEMORY && c->memory_base)
        return (image){.bytes = (const void *)(uintptr_t)c->memory_base, .length = c->memory_bytes};
    return PASTA_AMD_HAS(c, uri) && c->uri ? map_file(c->uri) : (image){0};
}

static pasta_amd_map bases; /* addresses of code objects, by id */
static void on_unload(uint64_t code_object);

static void on_code_object(const pasta_amd_record *r, const pasta_amd_operation *operation) {
    (void)operation;
    const pasta_amd_code_object *c = r->payload;
    if (!PASTA_AMD_HAS(c, agent) || r->phase == PASTA_AMD_NONE) return;
    int saved = errno;
    bool loaded = r->phase == PASTA_AMD_ENTER;
    pasta_amd_place at = pasta_amd_place_of(c->agent);
    /* read before the record is reserved: the consumer waits for reserved records */
    image i = loaded ? image_of(c) : (image){0};
    uint64_t hash = i.bytes ? pasta_hash(i.bytes, i.length) : PASTA_ABSENT_U64;
    if (i.bytes) pasta_keep_image(hash, i.bytes, i.length);
    if (i.mapped) munmap(i.mapped, i.mapped_length);
    pasta_module *e = loaded ? PASTA_BEGIN_AS(module_load, module, at.device, at.context, PASTA_NO_STREAM)
                             : PASTA_BEGIN_AS(module_unload, module, at.device, at.context, PASTA_NO_STREAM);
    if (e) {
        e->handle = c->id;
        e->hash = hash;
        if (i.bytes) e->bytes = i.length;
        pasta_publish(e);
    }
    if (loaded && PASTA_AMD_HAS(c, load_base)) pasta_amd_put(&bases, c->id, c->load_base);
    if (!loaded) on_unload(c->id);
    errno = saved;
}

/* ---- kernels ---- */

typedef struct kernel {
    struct kernel *next, **link; /* of loaded ones, or of unused ones; the pointer to this */
    uint64_t id, code_object, entry;
    uint64_t offset; /* of its entry in the code object; absent: all ones */
    uint32_t name, group_bytes;
    uint16_t registers;
    bool copies; /* the runtime's own, for copies and sets */
} kernel;

static pasta_amd_map kernels; /* by id */
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
static kernel *loaded;
static kernel *unused; /* not freed: a look-up just before the unload may still read one */

static pasta_amd_odd unknown = {.what = "dispatches of kernels without a code object"};

/* `loading` is held in these. */
static void chain(kernel **list, kernel *k) {
    k->next = *list;
    k->link = list;
    if (k->next) k->next->link = &k->next;
    *list = k;
}

static void unchain(kernel *k) {
    *k->link = k->next;
    if (k->next) k->next->link = k->link;
}

static void load(const kernel *registered) {
    pthread_mutex_lock(&loading);
    kernel *k = unused;
    if (k) unchain(k);
    else k = malloc(sizeof *k);
    if (k) {
        *k = *registered;
        chain(&loaded, k);
        if (!pasta_amd_put(&kernels, k->id, (uintptr_t)k)) pasta_amd_count(&unknown, k->id);
    }
    pthread_mutex_unlock(&loading);
}

static void unload(uint64_t id) {
    uint64_t found;
    pthread_mutex_lock(&loading);
    if (pasta_amd_take(&kernels, id, &found)) {
        kernel *k = (kernel *)(uintptr_t)found;
        unchain(k);
        chain(&unused, k);
    }
    pthread_mutex_unlock(&loading);
}

/* The SDK reports the unload of an object before the unloads of its kernels. */
static void on_unload(uint64_t code_object) {
    uint64_t value;
    pasta_amd_take(&bases, code_object, &value);
    pthread_mutex_lock(&loading);
    for (kernel *k = loaded, *next; k; k = next) {
        next = k->next;
        if (k->code_object != code_object) continue;
        pasta_amd_take(&kernels, k->id, &value);
        unchain(k);
        chain(&unused, k);
    }
    pthread_mutex_unlock(&loading);
}

bool pasta_amd_kernel_at(uint64_t code_object, uint64_t offset, uint64_t *id, uint64_t *within) {
    bool found = false;
    pthread_mutex_lock(&loading);
    for (const kernel *k = loaded; k; k = k->next) {
        if (k->code_object != code_object || k->offset > offset) continue;
        if (found && offset - k->offset >= *within) continue; /* the last one that begins before it */
        *id = k->id;
        *within = offset - k->offset;
        found = true;
    }
    pthread_mutex_unlock(&loading);
    return found;
}

/* The name of the kernel's descriptor, without ".kd". */
static uint32_t name_of(const char *descriptor) {
    static const char suffix[] = ".kd";
    size_t length = descriptor ? strlen(descriptor) : 0, shorter = length - (sizeof suffix - 1);
    if (length >= sizeof suffix - 1 && !strcmp(descriptor + shorter, suffix)) length = shorter;
    return pasta_intern(descriptor, length);
}

static void on_kernel(const pasta_amd_record *r, const pasta_amd_operation *operation) {
    static const char copies[] = "__amd_rocclr_";
    (void)operation;
    const pasta_amd_kernel_symbol *s = r->payload;
    if (!PASTA_AMD_HAS(s, name)) return;
    if (r->phase == PASTA_AMD_EXIT) unload(s->kernel);
    if (r->phase != PASTA_AMD_ENTER) return;
    kernel k = {.id = s->kernel, .code_object = s->code_object, .name = name_of(s->name)};
    k.copies = s->name && !strncmp(s->name, copies, sizeof copies - 1);
    k.group_bytes = PASTA_AMD_HAS(s, group_bytes) ? s->group_bytes : PASTA_ABSENT_U32;
    /* vector registers of both files: they limit the number of waves, from MI200 on */
    k.registers = PASTA_AMD_HAS(s, accumulation_vgprs) ? (uint16_t)(s->vgprs + s->accumulation_vgprs)
                                                       : PASTA_ABSENT_U16;
    k.entry = PASTA_AMD_HAS(s, entry) && s->entry ? s->entry : PASTA_ABSENT_U64;
    uint64_t base;
    bool placed = k.entry != PASTA_ABSENT_U64 && pasta_amd_get(&bases, k.code_object, &base) && base <= k.entry;
    k.offset = placed ? k.entry - base : PASTA_ABSENT_U64;
    load(&k);
}

static const pasta_amd_operation code_objects[] = {
    {"CODE_OBJECT_LOAD", on_code_object},
    {"CODE_OBJECT_DEVICE_KERNEL_SYMBOL_REGISTER", on_kernel},
};
const pasta_amd_table pasta_amd_code_objects = PASTA_AMD_TABLE(code_objects);

/* ---- incomplete dispatches ----
 *
 * Ids count up, so a dispatch's entry is at its id modulo the size of a table.  Most use the first table,
 * which stays in the cache; the second has entries for as many as queues can hold.  A dispatch that never
 * completes is dropped when its entry is needed. */

enum { NEAR = 1 << 12, FAR = 1 << 16, MAX_PROBES = 4 };
#define TAKEN UINT64_MAX

typedef struct followed {
    uint64_t dispatch; /* + 1; 0: free */
    uint64_t ordinal, correlation, stream;
    pasta_amd_place at;
    uint8_t flags;
    bool hidden; /* nothing is recorded of it */
} followed;

static followed near[NEAR], far[FAR];
static pasta_amd_odd crowded = {.what = "dispatches dropped before they completed, as too many were open"};
static pasta_amd_odd unknown_dispatches = {.what = "completions of unknown dispatches"};
static pasta_amd_odd timeless = {.what = "completions without times"};

/* The k-th candidate entry: first those in the near table. */
static followed *place_for(uint64_t dispatch, uint32_t k) {
    return k < MAX_PROBES ? &near[(dispatch + k) % NEAR] : &far[(dispatch + k - MAX_PROBES) % FAR];
}

/* Takes a free entry, else the entry of the oldest dispatch.  NULL: another thread took it. */
static followed *take_place(uint64_t dispatch) {
    followed *to = NULL;
    uint64_t oldest = TAKEN;
    for (uint32_t k = 0; k < 2 * MAX_PROBES && oldest; k++) {
        followed *p = place_for(dispatch, k);
        uint64_t there = PASTA_LOAD(p->dispatch);
        if (there >= oldest) continue;
        oldest = there;
        to = p;
    }
    if (!to || !__atomic_compare_exchange_n(&to->dispatch, &oldest, TAKEN, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return NULL;
    if (oldest) pasta_amd_count(&crowded, oldest - 1);
    return to;
}

static void follow(uint64_t dispatch, const followed *f) {
    enum { TRIES = 4 };
    followed *to = NULL;
    for (int i = 0; i < TRIES && !to; i++) to = take_place(dispatch);
    if (!to) {
        pasta_amd_count(&crowded, dispatch);
        return;
    }
    to->ordinal = f->ordinal;
    to->correlation = f->correlation;
    to->stream = f->stream;
    to->at = f->at;
    to->flags = f->flags;
    to->hidden = f->hidden;
    PASTA_STORE(to->dispatch, dispatch + 1);
}

static followed *find(uint64_t dispatch) {
    for (uint32_t k = 0; k < 2 * MAX_PROBES; k++) {
        followed *p = place_for(dispatch, k);
        if (PASTA_LOAD(p->dispatch) == dispatch + 1) return p;
    }
    return NULL;
}

/* ---- ordinals by dispatch, for records after the completion ---- */

typedef struct numbered {
    uint64_t dispatch; /* + 1; 0: being written */
    uint64_t ordinal;
} numbered;
static numbered *numbers; /* NULL: not needed */

void pasta_amd_keep_ordinals(void) {
    if (!numbers) PASTA_STORE(numbers, calloc(FAR, sizeof *numbers));
}

static void number(uint64_t dispatch, uint64_t ordinal) {
    numbered *n = &numbers[dispatch % FAR];
    PASTA_STORE(n->dispatch, 0);
    PASTA_STORE(n->ordinal, ordinal);
    PASTA_STORE(n->dispatch, dispatch + 1);
}

bool pasta_amd_ordinal_of(uint64_t dispatch, uint64_t *ordinal) {
    if (!numbers || PASTA_LOAD(numbers[dispatch % FAR].dispatch) != dispatch + 1) return false;
    *ordinal = PASTA_LOAD(numbers[dispatch % FAR].ordinal);
    return PASTA_LOAD(numbers[dispatch % FAR].dispatch) == dispatch + 1;
}

/* ---- dispatches ---- */

/* Dispatches of this thread whose launch has not returned, in turn: a lost one costs nothing. */
enum { MAX_OPEN = 8 };
static _Thread_local struct {
    uint64_t dispatch[MAX_OPEN]; /* + 1 */
    followed launch[MAX_OPEN];
    uint32_t next;
} here;

#define INFO_HAS(d, field) (PASTA_AMD_HAS(d, info.field) && PASTA_AMD_HAS(&(d)->info, field))

static const kernel *kernel_of(const pasta_amd_dispatch *d) {
    uint64_t found;
    if (PASTA_LIKELY(pasta_amd_get(&kernels, d->info.kernel, &found)))
        return (const kernel *)(uintptr_t)found;
    pasta_amd_count(&unknown, d->info.kernel);
    return NULL;
}

static uint32_t blocks(uint32_t items, uint32_t group) {
    return group ? (uint32_t)(((uint64_t)items + group - 1) / group) : PASTA_ABSENT_U32;
}

static void describe(pasta_kernel_launch *e, const pasta_amd_dispatch *d, const kernel *k) {
    e->name = k ? k->name : pasta_intern_z("(unknown kernel)");
    e->function = d->info.kernel;
    for (int axis = 0; axis < 3 && INFO_HAS(d, grid); axis++) {
        e->grid[axis] = blocks(d->info.grid[axis], d->info.workgroup[axis]);
        e->block[axis] = d->info.workgroup[axis];
    }
    if (INFO_HAS(d, group_bytes)) e->local = d->info.private_bytes;
    if (!k) return;
    e->registers = k->registers;
    e->shared_static = k->group_bytes;
    if (INFO_HAS(d, group_bytes) && k->group_bytes <= d->info.group_bytes)
        e->shared_dynamic = d->info.group_bytes - k->group_bytes;
    e->entry_pc = k->entry;
    e->module = k->code_object;
}

static void submit(const pasta_amd_record *r, const pasta_amd_dispatch *d) {
    const kernel *k = kernel_of(d);
    pasta_amd_within within = pasta_amd_call_of(r);
    bool internal = k && k->copies;
    followed f = {.at = pasta_amd_place_of(d->info.agent), .stream = within.stream};
    if (PASTA_UNLIKELY(f.stream == PASTA_NO_STREAM)) f.stream = pasta_amd_stream_on(f.at.device);
    /* the call has its own record */
    f.hidden = internal && (within.category == PASTA_AMD_COPIES || within.category == PASTA_AMD_SETS);
    if (within.category == PASTA_AMD_GRAPH) f.flags |= PASTA_FLAG_GRAPH;
    if (internal) f.flags |= PASTA_FLAG_INTERNAL;
    pasta_kernel_launch *e = NULL;
    if (!f.hidden) {
        f.ordinal = pasta_next_launch();
        f.correlation = pasta_next_correlation();
        e = PASTA_BEGIN(kernel_launch, f.at.device, f.at.context, f.stream);
    }
    f.hidden = !e; /* likewise if its begin was not recorded */
    /* before it is published: its completion may arrive at once */
    follow(d->info.dispatch, &f);
    if (PASTA_UNLIKELY(numbers != NULL) && e) number(d->info.dispatch, f.ordinal);
    uint32_t turn = here.next++ % MAX_OPEN;
    here.dispatch[turn] = d->info.dispatch + 1;
    here.launch[turn] = f;
    if (!e) return;
    pasta_header_of(e)->flags = f.flags;
    pasta_header_of(e)->correlation = f.correlation;
    e->ordinal = f.ordinal;
    describe(e, d, k);
    pasta_publish(e);
}

static void submitted(const pasta_amd_dispatch *d) {
    for (uint32_t back = 1; back <= MAX_OPEN; back++) {
        uint32_t turn = (here.next - back) % MAX_OPEN;
        if (here.dispatch[turn] != d->info.dispatch + 1) continue;
        const followed *f = &here.launch[turn];
        here.dispatch[turn] = 0;
        if (f->hidden) return;
        pasta_launch_end *e =
            PASTA_BEGIN_AS(kernel_launch_end, launch_end, f->at.device, f->at.context, f->stream);
        if (!e) return;
        pasta_header_of(e)->flags = f->flags;
        pasta_header_of(e)->correlation = f->correlation;
        e->ordinal = f->ordinal;
        pasta_publish(e);
        return;
    }
}

static void on_enqueue(const pasta_amd_record *r, const pasta_amd_operation *operation) {
    (void)operation;
    const pasta_amd_dispatch *d = r->payload;
    if (!INFO_HAS(d, dispatch)) return;
    if (r->phase == PASTA_AMD_ENTER) submit(r, d);
    else submitted(d);
}

static void on_complete(const pasta_amd_record *r, const pasta_amd_operation *operation) {
    (void)operation;
    const pasta_amd_dispatch *d = r->payload;
    if (!INFO_HAS(d, dispatch)) return;
    followed *place = find(d->info.dispatch);
    if (PASTA_UNLIKELY(!place)) {
        pasta_amd_count(&unknown_dispatches, d->info.dispatch);
        return;
    }
    followed f = *place;
    uint64_t mine = d->info.dispatch + 1; /* reported twice at once: one of them takes it */
    if (!__atomic_compare_exchange_n(&place->dispatch, &mine, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return;
    if (f.hidden) return;
    if (PASTA_UNLIKELY(!d->start || !d->end)) {
        pasta_amd_count(&timeless, d->info.dispatch);
        return;
    }
    pasta_kernel_complete *e = PASTA_BEGIN(kernel_complete, f.at.device, f.at.context, f.stream);
    if (!e) return;
    pasta_header_of(e)->flags = f.flags;
    pasta_header_of(e)->correlation = f.correlation;
    e->ordinal = f.ordinal;
    e->start = pasta_amd_time(d->start);
    e->end = pasta_amd_time(d->end);
    pasta_publish(e);
}

static const pasta_amd_operation dispatches[] = {
    {"KERNEL_DISPATCH_ENQUEUE", on_enqueue},
    {"KERNEL_DISPATCH_COMPLETE", on_complete},
};
const pasta_amd_table pasta_amd_dispatches = PASTA_AMD_TABLE(dispatches);
