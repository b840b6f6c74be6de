/* Probes: patches in the program's kernels, and what each launch finds its results in.
 *
 * Launches of a stream take slots of a batch, a piece of device memory that the stream itself
 * clears before its first slot is used.  When the batch is full, when some time has passed, or when
 * the program has waited, a marker goes into the stream: a byte in page-locked memory, set to the
 * number of slots whose launches are complete once the stream gets there.  A thread of ours
 * (nvidia_readback.c) sees it and copies the slots on a stream of its own.  So no launch waits, and
 * no stream is stopped.
 *
 * No vendor function is called with a lock of ours held: the vendor calls us with its own held.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvidia_probes.h"

enum {
    STREAM_WAYS = 64,
    MARKER_INTERVAL_NS = 50 * 1000 * 1000,
    LEAST_ROWS = 16,
    MOST_ROWS = 512, /* also: of the objects whose rows need no hash */
    LEAST_SPILL = 1024,
    SPILL_SHARE = 16, /* of the memory, at most this part for what the slots of a batch spill */
    TABLE_BYTES = offsetof(pasta_probe_launch, epoch), /* of a descriptor: what a new table changes */
};

pasta_nv_plan pasta_nv_the_plan;
#define plan pasta_nv_the_plan
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t patching = PTHREAD_MUTEX_INITIALIZER; /* the API wants patching serialised */
static pasta_nv_prober *probers; /* newest first; never freed: a few per process */

/* A launch between its begin and its end on this thread, or the nodes of a graph launch. */
static _Thread_local struct {
    pasta_nv_batch *batch;
    uint64_t launch;
    pasta_nv_prober *waited; /* whose work this thread waited for, which no callback tells it of */
    struct {
        pasta_nv_batch *batch;
        uint32_t begun;
    } *nodes;
    size_t node_count, node_room;
} here;

/* ---- the plan ---- */

static bool number_of(const char *text, uint64_t *number) {
    char *end;
    *number = strtoull(text, &end, 0);
    return end != text && !*end;
}

static bool plan_line(const char *key, char *value) {
    static const struct {
        const char *key;
        size_t offset;
    } numbers[] = {
        {"slot_words", offsetof(pasta_nv_plan, slot_words)},
        {"plain_words", offsetof(pasta_nv_plan, plain_words)},
        {"object_words", offsetof(pasta_nv_plan, object_words)},
        {"stripes", offsetof(pasta_nv_plan, stripes)},
        {"objects", offsetof(pasta_nv_plan, objects)},
        {"planes", offsetof(pasta_nv_plan, planes)},
        {"plane_shift", offsetof(pasta_nv_plan, plane_shift)},
        {"bin_words", offsetof(pasta_nv_plan, bin_words)},
        {"bin_shift", offsetof(pasta_nv_plan, bin_shift)},
        {"bin_stripes", offsetof(pasta_nv_plan, bin_stripes)},
        {"memory", offsetof(pasta_nv_plan, memory)},
        {"trace", offsetof(pasta_nv_plan, trace)},
    };
    char *second = strchr(value, ' ');
    if (!strcmp(key, "patch") || !strcmp(key, "cubin") || !strcmp(key, "hash")) {
        uint64_t first;
        if (!second) return false;
        *second++ = '\0';
        if (!number_of(value, &first)) return false;
        if (*key == 'p' && plan.patch_count < PASTA_NV_PATCHES)
            plan.patches[plan.patch_count++] = (pasta_nv_patch){(int32_t)first, second};
        else if (*key == 'c' && plan.cubin_count < PASTA_NV_CUBINS)
            plan.cubins[plan.cubin_count++] = second;
        else if (*key == 'h' && plan.hash_count < PASTA_PROBE_HASHES) {
            char *third = strchr(second, ' ');
            pasta_nv_hash *h = &plan.hashes[plan.hash_count++];
            h->rows = first;
            if (!third) return false;
            *third++ = '\0';
            return number_of(second, &h->words) && number_of(third, &h->stripes);
        } else
            return false;
        return true;
    }
    if (!strcmp(key, "kinds")) return true; /* for sources that need no patches */
    if (!strcmp(key, "api")) {
        plan.api = value;
        return true;
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(key, numbers[i].key))
            return number_of(value, (uint64_t *)(void *)((char *)&plan + numbers[i].offset));
    return false;
}

static bool read_plan(const char *path) {
    FILE *file = fopen(path, "re");
    if (!file) {
        pasta_say("probes do not run: %s cannot be read (%m)", path);
        return false;
    }
    char line[4096];
    bool good = true;
    while (good && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *space = strchr(line, ' ');
        if (!space) continue;
        *space = '\0';
        char *value = strdup(space + 1); /* kept: the plan points into it */
        good = value && plan_line(line, value);
        if (!good) pasta_say("probes do not run: %s: the line that begins with %s is not understood", path, line);
    }
    fclose(file);
    return good;
}

static bool load_functions(const char *path) {
    const char *missing = NULL;
    void *library = dlopen(path && *path ? path : "libsanitizer-public.so", RTLD_NOW | RTLD_NOLOAD);
    if (!library) return false;
    PASTA_NV_PROBE_FUNCTIONS(PASTA_NV_RESOLVE)
    if (missing) pasta_say("probes do not run: the Sanitizer library has no %s", missing);
    return !missing;
}

bool pasta_nv_probes_set_up(const char *api) {
    const char *path = pasta_config("probes");
    if (!path || !*path || !read_plan(path)) return false;
    if (!plan.patch_count) return false; /* nothing for this source */
    if (plan.object_words > PASTA_NV_MOST_WORDS) {
        pasta_say("probes do not run: %" PRIu64 " counters by object are too many: use fewer tools at once",
                  plan.object_words);
        return false;
    }
    if (plan.api && strcmp(plan.api, api) != 0) {
        pasta_say("probes do not run: they were compiled for version %s of the Sanitizer library, and %s is loaded",
                  plan.api, api);
        return false;
    }
    if (!load_functions(pasta_config("sanitizer_lib"))) return false;
    uint64_t share = plan.memory / 4;
    pasta_nv_table_storage((pasta_nv_storage){
        .bin_shift = (uint8_t)plan.bin_shift,
        .plane_shift = (uint8_t)plan.plane_shift,
        .bins = plan.bin_words ? (uint32_t)(share / (plan.bin_words * plan.bin_stripes * sizeof(uint64_t))) : 0,
        .planes = plan.planes ? (uint32_t)(2 * share / (plan.planes * sizeof(uint64_t))) : 0,
    });
    __atomic_store_n(&plan.on, true, __ATOMIC_RELEASE);
    return true;
}

bool pasta_nv_probes_on(void) { return PASTA_UNLIKELY(__atomic_load_n(&plan.on, __ATOMIC_ACQUIRE)); }

/* ---- errors: probes end for the context, nothing else does ---- */

bool pasta_nv_probed(pasta_nv_prober *p, int32_t result, const char *call) {
    if (result == 0) return true;
    const char *text = NULL;
    if (pasta_nv.result_string(result, &text) != 0 || !text) text = "unknown error";
    if (!__atomic_exchange_n(&p->broken, true, __ATOMIC_ACQ_REL))
        pasta_say("probes of context %u end here: %s failed with %d (%s); what was collected is kept", p->at.context,
                  call, result, text);
    return false;
}
#define PROBED(p, function, ...) pasta_nv_probed(p, pasta_nv.function(__VA_ARGS__), #function)

pasta_nv_prober *pasta_nv_probers(void) { return __atomic_load_n(&probers, __ATOMIC_ACQUIRE); }

static pasta_nv_prober *prober_of(uint64_t context) {
    for (pasta_nv_prober *p = pasta_nv_probers(); p; p = p->next)
        if (p->context == context && !__atomic_load_n(&p->ended, __ATOMIC_ACQUIRE)) return p;
    return NULL;
}

/* ---- device memory, bounded by the plan ---- */

static bool reserve(pasta_nv_prober *p, uint64_t bytes) {
    uint64_t now = __atomic_add_fetch(&p->memory, bytes, __ATOMIC_RELAXED);
    if (now <= plan.memory) return true;
    __atomic_sub_fetch(&p->memory, bytes, __ATOMIC_RELAXED);
    return false;
}

static uint64_t device_memory(pasta_nv_prober *p, uint64_t bytes) {
    uint64_t address = 0;
    if (!reserve(p, bytes)) return 0;
    if (pasta_nv.alloc(p->context, &address, bytes) == 0) return address;
    __atomic_sub_fetch(&p->memory, bytes, __ATOMIC_RELAXED);
    return 0; /* the device is full: the caller does with less */
}

/* ---- contexts ---- */

static bool add_patches(pasta_nv_prober *p) {
    int32_t result = -1;
    pthread_mutex_lock(&patching);
    for (uint32_t i = 0; i < plan.cubin_count && result != 0; i++) /* those of other devices do not load */
        result = pasta_nv.add_patches(plan.cubins[i], p->context);
    pthread_mutex_unlock(&patching);
    return pasta_nv_probed(p, result, "sanitizerAddPatchesFromFile");
}

static uint64_t cleared(pasta_nv_prober *p, uint64_t bytes) {
    uint64_t address = device_memory(p, bytes);
    if (address && !PROBED(p, set, address, 0, bytes, 0)) return 0;
    return address;
}

uint64_t pasta_nv_hash_bytes(const pasta_nv_hash *h) {
    return h->rows * sizeof(uint64_t) + h->stripes * (h->rows + 1) * h->words * sizeof(uint64_t);
}

void pasta_nv_probes_context(uint64_t context, pasta_nv_place at) {
    if (!pasta_nv_probes_on() || prober_of(context)) return;
    pasta_nv_prober *p = calloc(1, sizeof *p);
    if (!p) return;
    p->context = context;
    p->at = at;
    p->since = pasta_now();
    pthread_mutex_init(&p->reading, NULL);
    void *markers = NULL;
    if (!add_patches(p) || !PROBED(p, alloc_host, context, &markers, PASTA_NV_MARKERS)) p->broken = true;
    p->markers = markers;
    for (uint32_t i = 0; i < plan.hash_count && !p->broken; i++) {
        p->hashes[i] = cleared(p, pasta_nv_hash_bytes(&plan.hashes[i]));
        if (!p->hashes[i] && !p->broken)
            pasta_say("probes: no room on device %d for a map of %" PRIu64 " rows: raise probes.memory", at.device,
                      plan.hashes[i].rows);
    }
    if (plan.bin_words && !p->broken && !(p->bins = cleared(p, plan.memory / 4)) && !p->broken)
        pasta_say("probes: no room on device %d for the bins of objects: free some of its memory", at.device);
    for (uint32_t i = 0; i < plan.planes && !p->broken; i++) {
        p->planes[i] = cleared(p, plan.memory / 2 / plan.planes);
        if (!p->planes[i] && !p->broken)
            pasta_say("probes: no room on device %d for a bitmap of %" PRIu64 " MiB: lower probes.memory or free some",
                      at.device, plan.memory / 2 / plan.planes >> 20);
    }
    p->trace = pasta_nv_trace_open(p);
    pthread_mutex_lock(&lock);
    p->next = probers;
    __atomic_store_n(&probers, p, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    pasta_nv_readback_start();
}

/* ---- modules ---- */

/* With `patching` held. */
static void patch(pasta_nv_prober *p, uint64_t module) {
    for (uint32_t i = 0; i < plan.patch_count && !p->broken; i++)
        PROBED(p, patch_instructions, plan.patches[i].instruction, module, plan.patches[i].function);
    if (!p->broken) PROBED(p, patch_module, module);
}

static void unpatch(pasta_nv_prober *p, uint64_t module) {
    if (!p->broken) PROBED(p, unpatch_module, module);
}

static void remember_module(pasta_nv_prober *p, uint64_t module) {
    if (p->module_count == p->module_room) {
        uint32_t wanted = 2 * p->module_room + 64;
        void *grown = realloc(p->modules, wanted * sizeof *p->modules);
        if (!grown) return; /* it keeps its patches between windows */
        p->modules = grown;
        p->module_room = wanted;
    }
    p->modules[p->module_count].handle = module;
    p->modules[p->module_count++].patched = true;
}

static void forget_module(pasta_nv_prober *p, uint64_t module) {
    for (uint32_t i = 0; i < p->module_count; i++)
        if (p->modules[i].handle == module) p->modules[i--] = p->modules[--p->module_count];
}

void pasta_nv_probes_module(uint64_t context, uint64_t module, bool loaded) {
    if (!pasta_nv_probes_on()) return;
    pasta_nv_prober *p = prober_of(context);
    if (!p) return;
    pthread_mutex_lock(&patching);
    if (loaded) {
        /* also between windows: a module that never was patched runs three times slower than one
         * whose patches were taken out, which cannot be done before it is loaded (measured) */
        patch(p, module);
        remember_module(p, module);
        __atomic_store_n(&p->window_changes, PASTA_ABSENT_U32, __ATOMIC_RELEASE); /* looked at again */
    } else {
        forget_module(p, module);
    }
    pthread_mutex_unlock(&patching);
    if (!loaded) pasta_nv_readback_wake();
}

/* True once for each function of the program. */
static bool is_new(pasta_nv_prober *p, uint64_t function) {
    uint32_t at = (uint32_t)(function * UINT64_C(0x9e3779b97f4a7c15) >> 51) % PASTA_NV_SEEN;
    for (uint32_t probe = 0; probe < PASTA_NV_SEEN / 2; probe++, at = (at + 1) % PASTA_NV_SEEN) {
        uint64_t there = __atomic_load_n(&p->seen[at], __ATOMIC_RELAXED);
        if (there == function) return false;
        if (there == 0 && __atomic_compare_exchange_n(&p->seen[at], &there, function, false, __ATOMIC_RELAXED,
                                                      __ATOMIC_RELAXED))
            return true;
        if (there == function) return false;
    }
    return false; /* more functions than anybody has: they keep their patches between windows */
}

/* A function that is loaded later than its module has the module's patches, also where they were
 * taken out of all others (13.5 on 580.159: measured): they are taken out once more. */
static void loaded_later(pasta_nv_prober *p, const pasta_nv_launch *l) {
    if (!is_new(p, l->function)) return;
    pthread_mutex_lock(&patching);
    for (uint32_t i = 0; i < p->module_count; i++)
        if (p->modules[i].handle == l->module) p->modules[i].patched = true;
    __atomic_store_n(&p->window_changes, PASTA_ABSENT_U32, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&patching);
}

/* At the edge of a window: between windows the program runs the code that it brought. A launch of
 * another thread that is under way has been decided on: patches then stay until a later launch. */
static void follow_window(pasta_nv_prober *p, uint64_t ordinal) {
    bool open = pasta_probe_wanted(ordinal);
    uint32_t changes = pasta_probe_window_changes();
    if (__atomic_load_n(&p->window_changes, __ATOMIC_ACQUIRE) == changes) return;
    uint64_t begin = pasta_now();
    uint32_t switched = 0;
    pthread_mutex_lock(&patching);
    bool possible = open || __atomic_load_n(&p->under_way, __ATOMIC_ACQUIRE) == 0;
    for (uint32_t i = 0; possible && i < p->module_count && !p->broken; i++) {
        if (p->modules[i].patched == open) continue;
        (open ? patch : unpatch)(p, p->modules[i].handle);
        p->modules[i].patched = open;
        switched++;
    }
    if (possible) __atomic_store_n(&p->window_changes, changes, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&patching);
    if (switched)
        pasta_log("probes: %s %u modules of context %u in %" PRIu64 " us", open ? "patched" : "unpatched", switched,
                  p->at.context, (pasta_now() - begin) / 1000);
}

/* ---- the table of objects ---- */

static void copied_in(pasta_nv_version *v, uint64_t stream) {
    pthread_mutex_lock(&lock);
    if (v->stream_count < PASTA_NV_COPIED) v->streams[v->stream_count++] = stream;
    pthread_mutex_unlock(&lock);
}

static bool is_copied_in(const pasta_nv_version *v, uint64_t stream) {
    uint32_t count = __atomic_load_n(&v->stream_count, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < count; i++)
        if (v->streams[i] == stream) return true;
    return false;
}

void pasta_nv_version_release(pasta_nv_version *v) {
    if (v) v->users--;
}

/* Tables in the making: how many, and no older state than this is in them. */
static struct {
    uint32_t count;
    uint64_t since;
} making = {0, PASTA_ABSENT_U64};

static void begin_making(void) {
    pthread_mutex_lock(&lock);
    uint64_t now = pasta_nv_objects_version();
    if (!making.count++ || now < making.since) making.since = now;
    pthread_mutex_unlock(&lock);
}

static void end_making(void) {
    pthread_mutex_lock(&lock);
    if (!--making.count) making.since = PASTA_ABSENT_U64;
    pthread_mutex_unlock(&lock);
}

uint64_t pasta_nv_oldest_version(void) {
    pthread_mutex_lock(&lock);
    uint64_t oldest = making.since;
    for (const pasta_nv_prober *p = pasta_nv_probers(); p; p = p->next)
        for (const pasta_nv_version *v = p->ended ? NULL : p->versions; v; v = v->next)
            if (v->users && v->as_of < oldest) oldest = v->as_of;
    pthread_mutex_unlock(&lock);
    return oldest;
}

static pasta_nv_version *spare_version(pasta_nv_prober *p, size_t bytes) {
    pthread_mutex_lock(&lock);
    pasta_nv_version **link = &p->versions;
    while (*link && (!(*link)->retired || (*link)->users || (*link)->room < bytes)) link = &(*link)->next;
    pasta_nv_version *found = *link;
    if (found) *link = found->next;
    pthread_mutex_unlock(&lock);
    return found;
}

/* A patch looks for bins where the range of an object says that it has some. */
static void have_no_bins(void *image) {
    const pasta_object_table *table = image;
    pasta_object_range *ranges = (void *)((char *)image + table->ranges);
    for (uint32_t i = 0; i < table->count; i++) ranges[i].bins = PASTA_ABSENT_U32;
}

static pasta_nv_version *build_version(pasta_nv_prober *p) {
    pasta_nv_allocation *objects;
    size_t count, bytes;
    uint64_t as_of;
    if (!pasta_nv_objects(&objects, &count, &as_of)) return NULL;
    void *image = pasta_nv_table_image(objects, count, &bytes);
    free(objects);
    if (!image) return NULL;
    if (!p->bins) have_no_bins(image);
    pasta_nv_version *v = spare_version(p, bytes);
    if (!v && (v = calloc(1, sizeof *v))) {
        v->room = bytes + bytes / 2 + 4096;
        v->address = device_memory(p, v->room);
    }
    if (!v || !v->address) {
        free(v);
        free(image);
        return NULL;
    }
    pasta_nv_table_place(image, v->address);
    free(v->image);
    v->image = image;
    v->bytes = bytes;
    v->as_of = as_of;
    v->users = 1;
    v->stream_count = 0;
    v->retired = false;
    pthread_mutex_lock(&lock);
    if (p->version) p->version->retired = true;
    v->next = p->versions;
    p->versions = v;
    p->version = v;
    pthread_mutex_unlock(&lock);
    return v;
}

/* The current table, in use by one more launch; NULL: no room, and addresses are of no object. */
static pasta_nv_version *table_for(pasta_nv_prober *p) {
    pthread_mutex_lock(&lock);
    pasta_nv_version *v = p->version;
    if (v && v->as_of == pasta_nv_objects_version()) v->users++;
    else v = NULL;
    pthread_mutex_unlock(&lock);
    if (v) return v;
    begin_making();
    v = build_version(p);
    end_making();
    if (!v && !__atomic_exchange_n(&p->short_of_memory, true, __ATOMIC_RELAXED))
        pasta_say("probes: no room on device %d for the table of objects: raise probes.memory", p->at.device);
    return v;
}

/* On the device by the time the stream gets there. Other streams copy the same bytes to the same
 * place once more, in their own order. */
static bool bring(pasta_nv_prober *p, pasta_nv_version *v, uint64_t stream) {
    if (is_copied_in(v, stream)) return true;
    if (!PROBED(p, copy_in, v->address, v->image, v->bytes, stream)) return false;
    copied_in(v, stream);
    return true;
}

/* ---- batches ---- */

static uint32_t rows_wanted(const pasta_nv_version *v) {
    if (!plan.object_words) return 0;
    uint64_t live = v ? ((const pasta_object_table *)v->image)->count : 0;
    uint32_t rows = LEAST_ROWS;
    while (rows < live + live / 4 + 1 && rows < MOST_ROWS) rows *= 2;
    return rows;
}

/* Where there may be more objects than rows, room for each of them; less where the memory is short. */
static uint32_t spill_wanted(const pasta_nv_version *v) {
    if (!v || rows_wanted(v) < MOST_ROWS) return 0;
    uint64_t live = ((const pasta_object_table *)v->image)->count;
    uint64_t most = plan.memory / SPILL_SHARE / PASTA_NV_SLOTS / (plan.object_words * sizeof(uint64_t));
    uint64_t rows = LEAST_SPILL;
    while (rows < live + live / 4 + 1 && rows < most) rows *= 2;
    return (uint32_t)(rows < most ? rows : most);
}

uint64_t pasta_nv_spill_bytes(const pasta_nv_batch *b) { return b->spill_rows * plan.object_words * sizeof(uint64_t); }

uint64_t pasta_nv_spill_of(const pasta_nv_batch *b, uint32_t slot) {
    return b->slots + PASTA_NV_SLOTS * b->slot_bytes + slot * pasta_nv_spill_bytes(b);
}

static void lay_out(pasta_nv_batch *b) {
    uint64_t words = plan.slot_words + (b->rows ? (b->rows + 1) * plan.object_words : 0);
    b->keys_bytes = b->rows ? ((b->rows + 1) * sizeof(uint32_t) + 31) / 32 * 32 : 0;
    b->stripe_bytes = (uint32_t)((words * sizeof(uint64_t) + 31) / 32 * 32);
    b->plain_bytes = (plan.plain_words * sizeof(uint64_t) + 31) / 32 * 32;
    b->slot_bytes = b->keys_bytes + b->plain_bytes + (uint64_t)b->stripes * b->stripe_bytes;
    if (!b->slot_bytes) b->slot_bytes = 32;
}

static pasta_nv_batch *recycled(pasta_nv_prober *p, const pasta_nv_batch *like) {
    pthread_mutex_lock(&lock);
    pasta_nv_batch **link = &p->spare;
    while (*link && ((*link)->slot_bytes != like->slot_bytes || (*link)->rows != like->rows ||
                     (*link)->spill_rows != like->spill_rows))
        link = &(*link)->next;
    pasta_nv_batch *b = *link;
    if (b) *link = b->next;
    pthread_mutex_unlock(&lock);
    return b;
}

static volatile uint8_t *new_marker(pasta_nv_prober *p) {
    uint32_t number = __atomic_fetch_add(&p->markers_used, 1, __ATOMIC_RELAXED);
    return number < PASTA_NV_MARKERS / 8 && p->markers ? p->markers + 8 * number : NULL;
}

static pasta_nv_batch *batch_like(pasta_nv_prober *p, const pasta_nv_batch *like) {
    pasta_nv_batch *b = recycled(p, like);
    if (b) return b;
    b = calloc(1, sizeof *b);
    if (!b) return NULL;
    *b = *like;
    b->owner = p;
    uint64_t bytes = PASTA_NV_SLOTS * (sizeof(pasta_probe_launch) + b->slot_bytes + pasta_nv_spill_bytes(b));
    b->descriptors = device_memory(p, bytes);
    b->slots = b->descriptors + PASTA_NV_SLOTS * sizeof(pasta_probe_launch);
    b->marker = b->descriptors ? new_marker(p) : NULL; /* last: none is given twice */
    if (b->marker) return b;
    free(b);
    return NULL;
}

static pasta_nv_batch *make_batch(pasta_nv_prober *p, const pasta_nv_version *v) {
    pasta_nv_batch like = {.rows = rows_wanted(v), .spill_rows = spill_wanted(v), .stripes = (uint32_t)plan.stripes};
    lay_out(&like);
    /* the batches of launches in flight must fit, or launches would share slots */
    while (like.stripes > 8 && like.slot_bytes * PASTA_NV_SLOTS * 16 > plan.memory / 2) {
        like.stripes /= 2;
        lay_out(&like);
    }
    pasta_nv_batch *b = batch_like(p, &like);
    if (b || !like.spill_rows) return b;
    like.spill_rows = 0; /* rather all launches than all objects of some */
    return batch_like(p, &like);
}

_Static_assert(sizeof(pasta_probe_launch) % 16 == 0, "patches load 16 bytes of each of an array");

/* What a slot's descriptor says of the batch and of a table. */
static pasta_probe_launch describe(const pasta_nv_batch *b, uint32_t slot, const pasta_nv_version *v) {
    pasta_probe_launch l = {.base = PASTA_PROBE_NOWHERE, .stripe_bytes = b->stripe_bytes,
                            .stripe_mask = b->stripes - 1, .hash_mask = b->rows ? b->rows - 1 : 0};
    l.keys = b->slots + slot * b->slot_bytes;
    l.plain = l.keys + b->keys_bytes;
    l.slot = l.plain + b->plain_bytes;
    l.spill = pasta_nv_spill_of(b, slot) - plan.slot_words * sizeof(uint64_t);
    l.spill_rows = b->spill_rows;
    if (!v) return l;
    const pasta_object_table *table = v->image;
    l.table = v->address;
    l.ranges = table->ranges;
    if (table->count < b->rows || !b->rows) l.stripe_mask |= PASTA_PROBE_DIRECT;
    uint64_t base = table->clusters ? table->cluster[0].base >> PASTA_PROBE_BASE_SHIFT : UINT64_MAX;
    if (base < PASTA_PROBE_NOWHERE) {
        l.base = (uint32_t)base;
        l.shape = table->cluster[0].last_bucket << 8 | table->cluster[0].shift;
    }
    return l;
}

/* Clears the batch and describes its slots, in the order of the stream. */
static bool open_batch(pasta_nv_batch *b, uint64_t stream, const pasta_nv_version *v) {
    pasta_nv_prober *p = b->owner;
    pasta_probe_launch launches[PASTA_NV_SLOTS];
    b->first_epoch = __atomic_fetch_add(&p->epochs, PASTA_NV_SLOTS, __ATOMIC_RELAXED) + 1;
    uint64_t bin_stripe = pasta_nv_table_bins_room() * plan.bin_words * sizeof(uint64_t);
    for (uint32_t i = 0; i < PASTA_NV_SLOTS; i++) {
        launches[i] = describe(b, i, v);
        launches[i].bins = p->bins;
        launches[i].bin_stripe = bin_stripe;
        memcpy(launches[i].hash, p->hashes, sizeof launches[i].hash);
        memcpy(launches[i].planes, p->planes, sizeof launches[i].planes);
        launches[i].trace = p->trace;
        launches[i].epoch = b->first_epoch + i; /* differs between slots; need not be dense */
    }
    b->stream = stream;
    b->used = b->begun = b->ended = b->done = b->marked = 0;
    b->closed = b->last = false;
    b->table = v;
    b->as_of = v ? v->as_of : 0;
    b->last_marker = pasta_now();
    *b->marker = 0;
    return PROBED(p, set, b->slots, 0, PASTA_NV_SLOTS * (b->slot_bytes + pasta_nv_spill_bytes(b)), stream) &&
           PROBED(p, copy_in, b->descriptors, launches, sizeof launches, stream);
}

static uint32_t way_of(uint64_t stream) { return (uint32_t)(stream * UINT64_C(0x9e3779b97f4a7c15) >> 58) % STREAM_WAYS; }

/* A slot of the stream's open batch; -1: it has none. A batch with too few rows by now is left. */
static int take_slot(pasta_nv_prober *p, uint64_t stream, uint64_t ordinal, pasta_nv_version *v,
                     pasta_nv_batch **batch) {
    int slot = -1;
    uint32_t rows = rows_wanted(v), spill = spill_wanted(v);
    pthread_mutex_lock(&lock);
    for (pasta_nv_batch *b = p->current[way_of(stream)]; b && slot < 0; b = b->next_current)
        if (b->stream == stream && (b->rows < rows || (b->spill_rows && b->spill_rows < spill))) {
            b->closed = true;
        } else if (b->stream == stream && b->used < PASTA_NV_SLOTS && !b->closed) {
            slot = (int)b->used++;
            b->ordinals[slot] = ordinal;
            b->versions[slot] = v;
            b->begun++;
            *batch = b;
        }
    pthread_mutex_unlock(&lock);
    return slot;
}

static void install(pasta_nv_prober *p, pasta_nv_batch *b) {
    pthread_mutex_lock(&lock);
    pasta_nv_batch **link = &p->current[way_of(b->stream)];
    while (*link) { /* full and closed ones leave the chain here; the thread knows them by the list of all */
        if ((*link)->used == PASTA_NV_SLOTS || (*link)->closed) *link = (*link)->next_current;
        else link = &(*link)->next_current;
    }
    b->next_current = p->current[way_of(b->stream)];
    p->current[way_of(b->stream)] = b;
    b->next = p->batches;
    p->batches = b;
    pthread_mutex_unlock(&lock);
}

/* Takes a batch out of the lists once everything in it was read. */
void pasta_nv_batch_recycle(pasta_nv_batch *batch) {
    pasta_nv_prober *p = batch->owner;
    pthread_mutex_lock(&lock);
    pasta_nv_batch **link = &p->current[way_of(batch->stream)];
    while (*link && *link != batch) link = &(*link)->next_current;
    if (*link) *link = batch->next_current;
    link = &p->batches;
    while (*link && *link != batch) link = &(*link)->next;
    if (*link) *link = batch->next;
    batch->next = p->spare;
    p->spare = batch;
    pthread_mutex_unlock(&lock);
}

pthread_mutex_t *pasta_nv_probes_lock(void) { return &lock; }

/* Launches that have begun have ended, or never will. */
static bool steady(const pasta_nv_batch *b) { return b->begun == b->ended || b->last; }

/* Into the stream of the batch: how many of its slots are complete there.  One thread at a time,
 * as a marker must not follow a later one. */
static void mark(pasta_nv_batch *b) {
    for (;;) {
        pthread_mutex_lock(&lock);
        b->mark_again = b->marking;
        bool due = !b->marking && steady(b) && b->used > b->marked;
        uint32_t used = b->used;
        if (due) {
            b->marking = true;
            b->marked = used;
            b->last_marker = pasta_now();
        }
        pthread_mutex_unlock(&lock);
        if (!due) return;
        if (!b->owner->broken && PROBED(b->owner, set, (uint64_t)(uintptr_t)b->marker, (int)used, 1, b->stream))
            pasta_nv_readback_wake();
        pthread_mutex_lock(&lock);
        b->marking = false;
        bool again = b->mark_again;
        pthread_mutex_unlock(&lock);
        if (!again) return;
    }
}

/* ---- launches ---- */

/* A launch that this thread began and that has no end failed. */
static void forget_failed(void) {
    if (!here.batch) return;
    pthread_mutex_lock(&lock);
    here.batch->ended++;
    pthread_mutex_unlock(&lock);
    __atomic_sub_fetch(&here.batch->owner->under_way, 1, __ATOMIC_ACQ_REL);
    here.batch = NULL;
}

static bool remember(pasta_nv_batch *b, const pasta_nv_launch *l, bool graph) {
    __atomic_add_fetch(&b->owner->under_way, 1, __ATOMIC_ACQ_REL);
    if (!graph) {
        forget_failed();
        here.batch = b;
        here.launch = l->launch;
        return true;
    }
    if (here.node_count && here.nodes[here.node_count - 1].batch == b) {
        here.nodes[here.node_count - 1].begun++;
        return true;
    }
    if (here.node_count == here.node_room) {
        size_t wanted = 2 * here.node_room + 16;
        void *grown = realloc(here.nodes, wanted * sizeof *here.nodes);
        if (!grown) return false;
        here.nodes = grown;
        here.node_room = wanted;
    }
    here.nodes[here.node_count].batch = b;
    here.nodes[here.node_count++].begun = 1;
    return true;
}

static void missed(pasta_nv_prober *p) {
    uint64_t before = __atomic_fetch_add(&p->missed, 1, __ATOMIC_RELAXED);
    if (before == 0 && !p->broken)
        pasta_say("probes: launches of context %u are not probed: no room on device %d; raise probes.memory",
                  p->at.context, p->at.device);
}

void pasta_nv_probes_launch(const pasta_nv_launch *l, uint64_t ordinal, bool graph, bool probed) {
    pasta_nv_prober *p = prober_of(l->context);
    if (!p || p->broken) return;
    if (PASTA_UNLIKELY(here.waited == p)) {
        here.waited = NULL;
        pasta_nv_readback_at_once(p);
    }
    if (!pasta_probe_always()) {
        follow_window(p, ordinal);
        loaded_later(p, l);
    }
    if (!probed) return;
    pasta_nv_version *v = plan.objects ? table_for(p) : NULL;
    pasta_nv_batch *b;
    int slot = take_slot(p, l->unique_stream, ordinal, v, &b);
    if (slot < 0) {
        b = make_batch(p, v);
        if (b && open_batch(b, l->unique_stream, v)) {
            b->used = b->begun = 1;
            b->ordinals[0] = ordinal;
            b->versions[0] = v;
            install(p, b);
            slot = 0;
        }
    }
    if (slot < 0) {
        pthread_mutex_lock(&lock);
        pasta_nv_version_release(v);
        pthread_mutex_unlock(&lock);
        missed(p);
        return;
    }
    uint64_t descriptor = b->descriptors + (uint64_t)slot * sizeof(pasta_probe_launch);
    bool good = remember(b, l, graph) && (!v || bring(p, v, l->unique_stream));
    pasta_nv_trace_launch(p, b->first_epoch + (uint32_t)slot, ordinal);
    if (v != b->table || (v && v->as_of != b->as_of)) { /* not what the batch was opened with */
        pasta_probe_launch now = describe(b, (uint32_t)slot, v);
        good = good && PROBED(p, copy_in, descriptor, &now, TABLE_BYTES, l->unique_stream);
    }
    if (good) PROBED(p, set_launch_data, l->launch, l->function, l->unique_stream, descriptor);
}

static void ended(pasta_nv_batch *b, uint32_t launches) {
    __atomic_sub_fetch(&b->owner->under_way, launches, __ATOMIC_ACQ_REL);
    pthread_mutex_lock(&lock);
    b->ended += launches;
    bool due = b->used == PASTA_NV_SLOTS || pasta_now() - b->last_marker > MARKER_INTERVAL_NS;
    pthread_mutex_unlock(&lock);
    if (due) mark(b);
}

void pasta_nv_probes_launched(uint64_t launch, bool graph) {
    if (!pasta_nv_probes_on()) return;
    if (graph) {
        for (size_t i = 0; i < here.node_count; i++) ended(here.nodes[i].batch, here.nodes[i].begun);
        here.node_count = 0;
    } else if (here.batch && here.launch == launch) {
        pasta_nv_batch *b = here.batch;
        here.batch = NULL;
        ended(b, 1);
    }
}

/* ---- waits, ends ---- */

/* Marks every batch that holds complete but unmarked launches; those of a stream that ends, or of
 * all (PASTA_NO_STREAM), for the last time. */
static void mark_all(pasta_nv_prober *p, bool last, uint64_t stream) {
    enum { AT_ONCE = 64 };
    pasta_nv_batch *batches[AT_ONCE];
    uint32_t count;
    forget_failed();
    do {
        count = 0;
        pthread_mutex_lock(&lock);
        for (pasta_nv_batch *b = p->batches; b && count < AT_ONCE; b = b->next) {
            if (last && (stream == PASTA_NO_STREAM || b->stream == stream)) b->last = true;
            if (b->used > b->marked && !b->marking && steady(b)) batches[count++] = b;
        }
        pthread_mutex_unlock(&lock);
        for (uint32_t i = 0; i < count; i++) mark(batches[i]);
    } while (count == AT_ONCE);
}

/* Its handle may soon be another stream's. */
void pasta_nv_probes_stream_ends(uint64_t context, uint64_t stream) {
    if (!pasta_nv_probes_on()) return;
    pasta_nv_prober *p = prober_of(context);
    if (!p || p->broken) return;
    mark_all(p, true, stream);
    pthread_mutex_lock(&lock);
    pasta_nv_batch **link = &p->current[way_of(stream)];
    while (*link) {
        pasta_nv_batch *b = *link;
        if (b->stream == stream) {
            b->closed = true;
            *link = b->next_current;
        } else {
            link = &b->next_current;
        }
    }
    pthread_mutex_unlock(&lock);
}

void pasta_nv_probes_synchronised(uint64_t context) {
    if (!pasta_nv_probes_on()) return;
    pasta_nv_prober *p = prober_of(context);
    if (!p || p->broken) return;
    mark_all(p, false, PASTA_NO_STREAM);
    pasta_nv_readback_at_once(p);
}

/* A copy that the program waits for: it will have waited for the kernels before it, too. */
void pasta_nv_probes_copies(uint64_t context) {
    if (!pasta_nv_probes_on()) return;
    pasta_nv_prober *p = prober_of(context);
    if (!p || p->broken) return;
    mark_all(p, false, PASTA_NO_STREAM);
    here.waited = p;
}

void pasta_nv_probes_context_ends(uint64_t context) {
    if (!pasta_nv_probes_on()) return;
    pasta_nv_prober *p = prober_of(context);
    if (!p) return;
    if (!p->broken) mark_all(p, true, PASTA_NO_STREAM);
    pasta_nv_readback_context(p);
    __atomic_store_n(&p->ended, true, __ATOMIC_RELEASE);
}

void pasta_nv_probes_finish(void) {
    if (!pasta_nv_probes_on()) return;
    for (pasta_nv_prober *p = pasta_nv_probers(); p; p = p->next)
        if (!p->broken && !p->ended) mark_all(p, true, PASTA_NO_STREAM);
    pasta_nv_readback_finish();
    pasta_nv_trace_finish();
    __atomic_store_n(&plan.on, false, __ATOMIC_RELEASE);
}
