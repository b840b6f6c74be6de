/* rocprofiler-sdk as an event source: how it is found, subscribed and released.
 *
 * The SDK loads this library because ROCP_TOOL_LIBRARIES names it, and calls rocprofiler_configure
 * when the first ROCm runtime of the process starts.  There may be several copies of the SDK in a
 * process (PyTorch's wheels have their own): functions are looked up in the one that calls.
 *
 * Callbacks come on the program's threads and on the SDK's: they write to the ring, and nothing else.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "source.h"

PASTA_EXPORT pasta_amd_tool *rocprofiler_configure(uint32_t version, const char *text, uint32_t priority,
                                                   void *client);

/* ---- the library that called ---- */

#define NAME(name, symbol, arguments) const char *name;
#define SYMBOL(name, symbol, arguments) symbol,
static const struct {
    PASTA_AMD_FUNCTIONS(NAME)
} symbols = {PASTA_AMD_FUNCTIONS(SYMBOL)};
#undef NAME
#undef SYMBOL

/* Checks every call of the SDK: a failure ends the source, never the target. */
static bool succeeded(int32_t status, const char *call) {
    if (status == 0) return true;
    pasta_say("ROCm is not recorded: %s failed with %d (%s); see `pasta doctor`", call, status,
              pasta_amd_status(status));
    return false;
}
#define SUCCEEDED(function, ...) succeeded(pasta_amd.function(__VA_ARGS__), symbols.function)

static const char *library_of(const void *address) {
    Dl_info info;
    return dladdr(address, &info) && info.dli_fname ? info.dli_fname : "";
}

static bool open_library(const void *caller) {
    const char *path = library_of(caller);
    pasta_amd.handle = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    /* the program itself has the SDK in it */
    if (!pasta_amd.handle) pasta_amd.handle = dlopen(NULL, RTLD_LAZY);
    const char *missing = NULL;
#define RESOLVE(name, symbol, arguments) PASTA_AMD_RESOLVE(pasta_amd, name, symbol)
    PASTA_AMD_FUNCTIONS(RESOLVE)
    if (missing) pasta_say("ROCm is not recorded: %s has no %s; see `pasta doctor`", path, missing);
    return !missing;
}

/* ---- times ---- */

/* The narrowest of several brackets: a preempted one is wide. */
static bool read_clock(void) {
    enum { TRIES = 16 };
    uint64_t narrowest = UINT64_MAX;
    for (int i = 0; i < TRIES; i++) {
        uint64_t sdk, before = pasta_now();
        if (!SUCCEEDED(get_timestamp, &sdk)) return false;
        uint64_t width = pasta_now() - before;
        if (width >= narrowest) continue;
        narrowest = width;
        pasta_amd_set_clock((int64_t)(sdk - (before + width / 2)));
    }
    return true;
}

/* ---- callbacks ---- */

enum { OPERATIONS = 1024 };
typedef enum use { DEVICE, ANNOTATION, NOTHING } use; /* runtimes seen in callbacks */

typedef struct kind {
    const char *name;
    const pasta_amd_table *table;
    use use;
    bool whole; /* all of its operations are subscribed */
    int32_t number; /* 0: this SDK has no operation of that name */
    const pasta_amd_operation *by_number[OPERATIONS];
} kind;

static bool in_use; /* the ring is open */
static char version_text[32];

static __attribute__((noinline)) bool begin_use(use use) {
    if (use == NOTHING) return true;
    if (use == ANNOTATION) return pasta_open(); /* no run, unless a device is used too */
    bool used = pasta_use(PASTA_AMD_SOURCE, version_text);
    if (used) __atomic_store_n(&in_use, true, __ATOMIC_RELEASE);
    else pasta_amd_set_recording(false);
    return used;
}

static inline void deliver(const kind *k, uint32_t operation, const pasta_amd_record *record) {
    if (!pasta_amd_records() || operation >= OPERATIONS) return;
    const pasta_amd_operation *wanted = k->by_number[operation];
    if (!wanted || !record->payload) return;
    if (PASTA_UNLIKELY(!__atomic_load_n(&in_use, __ATOMIC_ACQUIRE)) && !begin_use(k->use)) return;
    wanted->handle(record, wanted);
}

static void on_record_0_5(pasta_amd_record_0_5 r, void *user, void *k) {
    deliver(k, r.operation, &(pasta_amd_record){r.correlation, 0, r.phase, r.payload, user});
}

static void on_record_1(pasta_amd_record_1 r, void *user, void *k) {
    deliver(k, r.operation, &(pasta_amd_record){r.correlation, r.ancestor, r.phase, r.payload, user});
}

static void on_runtime(const pasta_amd_record *r, const pasta_amd_operation *operation) {
    const pasta_amd_runtime *runtime = r->payload;
    uint64_t version = PASTA_AMD_HAS(runtime, version) ? runtime->version : 0;
    pasta_log(PASTA_AMD_SOURCE ": %s %" PRIu64 ".%" PRIu64 ".%" PRIu64 " began", strrchr(operation->name, '_') + 1,
              version / 10000, version / 100 % 100, version % 100);
}

static const pasta_amd_operation runtimes[] = {
    {"RUNTIME_INITIALIZATION_HSA", on_runtime},
    {"RUNTIME_INITIALIZATION_HIP", on_runtime},
    {"RUNTIME_INITIALIZATION_MARKER", on_runtime},
    {"RUNTIME_INITIALIZATION_RCCL", on_runtime},
};
static const pasta_amd_table runtime_table = PASTA_AMD_TABLE(runtimes);

static kind kinds[] = {
    {.name = "KERNEL_DISPATCH", .table = &pasta_amd_dispatches},
    {.name = "CODE_OBJECT", .table = &pasta_amd_code_objects},
    {.name = "HIP_RUNTIME_API", .table = &pasta_amd_hip_calls},
    {.name = "MEMORY_COPY", .table = &pasta_amd_copies},
    /* SDK 1.0.0 takes a list of these operations for numbers of HSA functions, and delivers none of them */
    {.name = "MEMORY_ALLOCATION", .table = &pasta_amd_allocations, .whole = true},
    {.name = "SCRATCH_MEMORY", .table = &pasta_amd_scratches, .whole = true},
    {.name = "MARKER_CORE_API", .table = &pasta_amd_markers, .use = ANNOTATION},
    {.name = "MARKER_CONTROL_API", .table = &pasta_amd_controls, .use = ANNOTATION},
    {.name = "RUNTIME_INITIALIZATION", .table = &runtime_table, .use = NOTHING},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* ---- subscription ---- */

static int on_kind(uint32_t number, void *user) {
    const char *name = NULL;
    (void)user;
    if (pasta_amd.kind_name(number, &name, NULL) != 0 || !name) return 0;
    for (size_t i = 0; i < KINDS; i++)
        if (!strcmp(kinds[i].name, name)) kinds[i].number = (int32_t)number;
    return 0;
}

static bool matches(const char *pattern, const char *name) {
    size_t length = strlen(pattern);
    return pattern[length - 1] == '*' ? !strncmp(pattern, name, length - 1) : !strcmp(pattern, name);
}

/* The last row that matches: rows with patterns precede rows with names. */
static const pasta_amd_operation *row_for(const pasta_amd_table *table, const char *name) {
    const pasta_amd_operation *found = NULL;
    for (size_t i = 0; i < table->count; i++) {
        const pasta_amd_operation *row = (const void *)((const char *)table->rows + i * table->stride);
        if (matches(row->name, name)) found = row;
    }
    return found;
}

static int on_operation(uint32_t number, uint32_t operation, void *user) {
    kind *k = user;
    const char *name = NULL;
    if (pasta_amd.operation_name(number, operation, &name, NULL) != 0 || !name) return 0;
    const pasta_amd_operation *row = row_for(k->table, name);
    if (!row || !row->handle) return 0;
    if (operation >= OPERATIONS) {
        pasta_log(PASTA_AMD_SOURCE ": operation %u (%s) of %s has too high a number", operation, name, k->name);
        return 0;
    }
    k->by_number[operation] = row;
    return 0;
}

/* Only operations that are read: others cost the program nothing. */
static bool subscribe(uint64_t context, kind *k) {
    int32_t operations[OPERATIONS];
    size_t count = 0;
    if (!SUCCEEDED(each_operation, (uint32_t)k->number, on_operation, k)) return false;
    for (int32_t i = 0; i < OPERATIONS; i++)
        if (k->by_number[i]) operations[count++] = i;
    if (!count) {
        pasta_log(PASTA_AMD_SOURCE ": no operation of %s is known", k->name);
        return true;
    }
    void (*callback)(void) = pasta_amd_new_layout() ? (void (*)(void))on_record_1 : (void (*)(void))on_record_0_5;
    if (k->whole) count = 0;
    return SUCCEEDED(configure_callbacks, context, (uint32_t)k->number, count ? operations : NULL, count, callback, k);
}

static bool set_up(void) {
    uint64_t context = 0; /* the SDK insists on zero */
    if (!SUCCEEDED(create_context, &context) || !read_clock()) return false;
    if (!succeeded(pasta_amd_read_agents(), symbols.query_agents)) return false;
    if (!SUCCEEDED(each_kind, on_kind, NULL)) return false;
    for (size_t i = 0; i < KINDS; i++) {
        if (!kinds[i].number) pasta_log(PASTA_AMD_SOURCE ": this SDK has no %s", kinds[i].name);
        else if (!subscribe(context, &kinds[i])) return false;
    }
    int valid = 0;
    if (!SUCCEEDED(context_is_valid, context, &valid)) return false;
    if (!valid) {
        pasta_say("ROCm is not recorded: the SDK reports an invalid context; see `pasta doctor`");
        return false;
    }
    if (!SUCCEEDED(start_context, context)) return false;
    pasta_amd_count_launches();
    pasta_amd_sample_pcs();
    return true;
}

static int initialize(void (*finalize)(void), void *user) {
    (void)finalize, (void)user;
    int saved = errno;
    pasta_amd_set_recording(true); /* callbacks may arrive before the start returns */
    bool done = set_up();
    pasta_amd_set_recording(done);
    errno = saved;
    return done ? 0 : -1;
}

static void finalize(void *user) {
    (void)user;
    int saved = errno;
    if (pasta_amd_records()) {
        pasta_amd_samples_finish();
        pasta_amd_log_counts();
        pasta_amd_set_recording(false);
    }
    errno = saved;
}

static pasta_amd_tool *configure(uint32_t version, const char *text, void *client, const void *caller) {
    static pasta_amd_tool tool = {sizeof tool, initialize, finalize, NULL};
    static bool configured;
    if (!pasta_listens_to("amd")) return NULL;
    if (__atomic_exchange_n(&configured, true, __ATOMIC_ACQ_REL)) {
        pasta_log(PASTA_AMD_SOURCE ": configured again, by %s: what it sees is not recorded", library_of(caller));
        return NULL;
    }
    uint32_t major = version / 10000, minor = version / 100 % 100;
    snprintf(version_text, sizeof version_text, "%u.%u.%u", major, minor, version % 100);
    if (major != 1 && !(major == 0 && (minor == 5 || minor == 6))) {
        pasta_say("ROCm is not recorded: PASTA supports rocprofiler-sdk 0.5 (ROCm 6.3), 0.6 (ROCm 6.4) and 1.x (ROCm 7), "
                  "this is %s; use a newer PASTA or another ROCm", version_text);
        return NULL;
    }
    pasta_amd.version = version;
    if (!open_library(caller)) return NULL;
    pasta_log(PASTA_AMD_SOURCE ": rocprofiler-sdk %s (%s), %s", version_text, text ? text : "", library_of(caller));
    if (pasta_amd_new_layout()) ((pasta_amd_client_1 *)client)->name = "pasta";
    else ((pasta_amd_client_0_5 *)client)->name = "pasta";
    return &tool;
}

/* Called by the SDK.  NULL: no tool; the target continues. */
pasta_amd_tool *rocprofiler_configure(uint32_t version, const char *text, uint32_t priority, void *client) {
    (void)priority; /* there may be other tools */
    int saved = errno;
    pasta_amd_tool *tool = configure(version, text, client, __builtin_return_address(0));
    errno = saved;
    return tool;
}
