/* Replaces librocprofiler-sdk.so: a library with the functions that a tool calls, which finds
 * rocprofiler_configure in the same way, and delivers the events of a stream with the sizes of
 * the emulated version.  hip_app.c reads the streams.
 *
 * REPLAY_VERSION=0.5.0|0.6.0|1.0.0|…  the emulated version; 0.6 has the records of 0.5 and most payloads of 1.0
 * REPLAY_SEED=N                       a different numbering of kinds and operations
 * REPLAY_FAIL=NAME=STATUS[@N]         rocprofiler_NAME returns STATUS, from its N-th call on
 * REPLAY_LATE=1                       delivers after finalisation too
 * REPLAY_ERRNO=1                      aborts the program if a tool changes errno
 * REPLAY_DRY=1                        skips only the calls of the tool, to measure the replayer's own overhead
 *
 * A payload ends at the end of mapped memory: reads beyond its size fault.  Its pointers are
 * invalid, or reused, after the callback has returned.
 *
 * Two faults of SDK 1.0.0 are imitated: a list of operations of MEMORY_ALLOCATION or SCRATCH_MEMORY
 * delivers none of them, and with HIP_STREAM subscribed an unknown stream aborts the program.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "replay.h"
#include "replay_abi.h"
#include "replay_operations.h"

#define EXPORT __attribute__((visibility("default")))

enum {
    SUCCESS = 0, ERROR = 1, NO_CONTEXT = 2, NO_KIND = 4, NO_OPERATION = 5, NOT_ZERO = 13,
    CONFIGURED_ALREADY = 15, LOCKED = 16, INCOMPATIBLE = 18, INVALID = 19,
}; /* rocprofiler_status_t, fwd.h of 1.0.0 */

enum { MAX_OPERATIONS = 512, MAX_CONTEXTS = 8, MAX_CLIENTS = 8, MAX_AGENTS = 16, PAGE = 4096, FIXUPS = 4 };

static void fails(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void fails(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fputs("replay: ", stderr);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    exit(95);
}

static int planned(const char *function) {
    const char *plan = getenv("REPLAY_FAIL"), *equals = plan ? strchr(plan, '=') : NULL;
    if (!equals || strlen(function) != (size_t)(equals - plan) || strncmp(plan, function, strlen(function))) return 0;
    const char *from = strchr(equals, '@');
    static int calls; /* of that function */
    if (from && __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) < atoi(from + 1)) return 0;
    return atoi(equals + 1);
}
#define PLANNED(function)                                  \
    do {                                                   \
        int planned_status = planned(function);            \
        if (planned_status) return planned_status;         \
    } while (0)

static uint32_t version(void) {
    static uint32_t known;
    unsigned major = 1, minor = 0, patch = 0;
    const char *text = getenv("REPLAY_VERSION");
    if (known) return known;
    if (text && sscanf(text, "%u.%u.%u", &major, &minor, &patch) != 3) fails("REPLAY_VERSION=%s", text);
    return known = 10000 * major + 100 * minor + patch;
}
static bool is_0_5(void) { return version() < 600; }
static bool is_0_6(void) { return version() >= 600 && version() < 10000; }
static bool has_old_records(void) { return version() < 10000; }

/* Allocates `bytes` that end at an inaccessible page. */
static void *at_the_end(size_t bytes) {
    char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || mprotect(pages + PAGE, PAGE, PROT_NONE) || bytes > PAGE) fails("no memory");
    return pages + PAGE - bytes;
}

#include "replay_tables.h"

/* ---- clients and contexts ---- */

typedef union {
    record_0_5 old;
    record_1_0 new;
} any_record;
typedef void callback_0_5(record_0_5 record, uint64_t *user, void *argument);
typedef void callback_1_0(record_1_0 record, uint64_t *user, void *argument);
typedef tool_result *configure_function(uint32_t version, const char *text, uint32_t priority, void *client);

static struct {
    configure_function *configure;
    void *id; /* client_0_5 or client_1_0 */
    tool_result result;
    bool given;
} clients[MAX_CLIENTS];
static uint32_t client_count, configuring = MAX_CLIENTS;
static int initialized, finalized; /* -1: in progress */

static struct {
    uint32_t client;
    bool started;
    struct {
        void *callback, *argument;
        bool wanted[MAX_OPERATIONS];
    } services[KINDS];
} contexts[MAX_CONTEXTS];
static uint32_t context_count;
enum { CONTEXT = 0x5000 }; /* handles start here */

static bool is_context(uint64_t handle) { return handle - CONTEXT < context_count; }

EXPORT int rocprofiler_create_context(uint64_t *handle) {
    PLANNED("create_context");
    if (configuring == MAX_CLIENTS) return LOCKED;
    if (*handle) return NOT_ZERO;
    if (context_count == MAX_CONTEXTS) return ERROR;
    contexts[context_count].client = configuring;
    *handle = CONTEXT + context_count++;
    return SUCCESS;
}

EXPORT int rocprofiler_start_context(uint64_t handle) {
    PLANNED("start_context");
    if (!is_context(handle)) return NO_CONTEXT;
    contexts[handle - CONTEXT].started = true;
    return SUCCESS;
}

EXPORT int rocprofiler_stop_context(uint64_t handle) {
    PLANNED("stop_context");
    if (!is_context(handle)) return NO_CONTEXT;
    contexts[handle - CONTEXT].started = false;
    return SUCCESS;
}

EXPORT int rocprofiler_context_is_valid(uint64_t handle, int *valid) {
    PLANNED("context_is_valid");
    *valid = is_context(handle);
    return SUCCESS;
}

EXPORT int rocprofiler_context_is_active(uint64_t handle, int *active) {
    PLANNED("context_is_active");
    if (!is_context(handle)) return NO_CONTEXT;
    *active = contexts[handle - CONTEXT].started;
    return SUCCESS;
}

EXPORT int rocprofiler_configure_callback_tracing_service(uint64_t handle, int number, const int32_t *operations,
                                                          size_t count, void *callback, void *argument) {
    PLANNED("configure_callback_tracing_service");
    int which = kind_of_number(number);
    if (configuring == MAX_CLIENTS) return LOCKED;
    if (!is_context(handle)) return NO_CONTEXT;
    if (which < 0) return NO_KIND;
    if (contexts[handle - CONTEXT].services[which].callback) return CONFIGURED_ALREADY;
    if (!callback) return INVALID;
    bool *wanted = contexts[handle - CONTEXT].services[which].wanted;
    for (size_t i = 0; i < count; i++) {
        if (operations[i] < 0 || operations[i] >= last_operation[which]) return NO_OPERATION;
        wanted[operations[i]] = kinds[which].what != ALLOCATION && kinds[which].what != SCRATCH;
    }
    if (!operations || !count) memset(wanted, true, MAX_OPERATIONS);
    contexts[handle - CONTEXT].services[which].argument = argument;
    contexts[handle - CONTEXT].services[which].callback = callback;
    return SUCCESS;
}

EXPORT void replay_subscriptions(void) {
    for (uint32_t i = 0; i < client_count; i++) {
        const char *name =
            has_old_records() ? ((client_0_5 *)clients[i].id)->name : ((client_1_0 *)clients[i].id)->name;
        printf("client %s\n", name ? name : "(unnamed)");
    }
    for (uint32_t c = 0; c < context_count; c++)
        for (int which = 0; which < KINDS; which++) {
            if (!contexts[c].services[which].callback) continue;
            printf("subscribed %s:", kinds[which].name);
            for (int number = 0; number < last_operation[which]; number++)
                if (contexts[c].services[which].wanted[number]) printf(" %s", operation_names[which][number]);
            puts("");
        }
}

/* ---- agents, kinds and operations ---- */

EXPORT int rocprofiler_iterate_callback_tracing_kinds(int (*take)(int, void *), void *user) {
    PLANNED("iterate_callback_tracing_kinds");
    for (int number = 1; number < last_kind; number++)
        if (take(number, user)) break;
    return SUCCESS;
}

EXPORT int rocprofiler_iterate_callback_tracing_kind_operations(int kind_number, int (*take)(int, uint32_t, void *),
                                                                void *user) {
    PLANNED("iterate_callback_tracing_kind_operations");
    int which = kind_of_number(kind_number);
    if (which < 0) return NO_KIND;
    for (int number = 0; number < last_operation[which]; number++)
        if (take(kind_number, (uint32_t)number, user)) break;
    return SUCCESS;
}

static int give(const char *found, const char **name, uint64_t *length) {
    if (name) *name = found;
    if (length) *length = strlen(found);
    return SUCCESS;
}

EXPORT int rocprofiler_query_callback_tracing_kind_name(int number, const char **name, uint64_t *length) {
    PLANNED("query_callback_tracing_kind_name");
    int which = kind_of_number(number);
    return which < 0 ? NO_KIND : give(kinds[which].name, name, length);
}

EXPORT int rocprofiler_query_callback_tracing_kind_operation_name(int kind_number, uint32_t number, const char **name,
                                                                  uint64_t *length) {
    PLANNED("query_callback_tracing_kind_operation_name");
    int which = kind_of_number(kind_number);
    if (which < 0) return NO_KIND;
    if (number >= (uint32_t)last_operation[which]) return NO_OPERATION;
    return give(operation_names[which][number], name, length);
}

static const void *agents[MAX_AGENTS];
static size_t agent_count;

EXPORT int rocprofiler_query_available_agents(int layout, int (*take)(int, const void **, size_t, void *), size_t bytes,
                                              void *user) {
    PLANNED("query_available_agents");
    if (layout != 1) return INVALID;
    if (bytes > agent_bytes()) return INCOMPATIBLE;
    return take(layout, agents, agent_count, user);
}

/* Not the program's clock: a tool has to determine the offset. */
static const uint64_t clock_offset = 25200000000000;

EXPORT uint64_t replay_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec + clock_offset;
}

EXPORT int rocprofiler_get_timestamp(uint64_t *time) {
    PLANNED("get_timestamp");
    *time = replay_clock();
    return SUCCESS;
}

EXPORT int rocprofiler_get_version(uint32_t *major, uint32_t *minor, uint32_t *patch) {
    PLANNED("get_version");
    if (major) *major = version() / 10000;
    if (minor) *minor = version() / 100 % 100;
    if (patch) *patch = version() % 100;
    return SUCCESS;
}

EXPORT const char *rocprofiler_get_status_name(int status) {
    return status == LOCKED ? "ROCPROFILER_STATUS_ERROR_CONFIGURATION_LOCKED" : "ROCPROFILER_STATUS_ERROR";
}

EXPORT const char *rocprofiler_get_status_string(int status) {
    return status == LOCKED ? "Function call is not valid outside of configuration" : "Generalized error";
}

EXPORT int rocprofiler_is_initialized(int *status) {
    *status = initialized;
    return SUCCESS;
}

EXPORT int rocprofiler_is_finalized(int *status) {
    *status = finalized;
    return SUCCESS;
}

/* ---- configuring ---- */

static void add_client(void *function) {
    for (uint32_t i = 0; i < client_count; i++)
        if (function == (void *)(uintptr_t)clients[i].configure) return;
    if (!function || client_count == MAX_CLIENTS) return;
    *(void **)&clients[client_count].configure = function;
    if (has_old_records()) {
        client_0_5 *id = clients[client_count].id = at_the_end(sizeof *id);
        *id = (client_0_5){NULL, 1000 + client_count};
    } else {
        client_1_0 *id = clients[client_count].id = at_the_end(sizeof *id);
        *id = (client_1_0){sizeof *id, NULL, 1000 + client_count};
    }
    client_count++;
}

/* The entry after the last colon of a list is not loaded, as in the library. */
static void find_clients(void) {
    const char *list = getenv("ROCP_TOOL_LIBRARIES");
    char *names = strdup(list ? list : ""), *rest = names;
    bool several = strchr(names, ':') != NULL;
    while (rest && *rest) {
        char *name = strsep(&rest, ":");
        if (!*name || (several && !rest)) continue;
        void *library = dlopen(name, RTLD_LOCAL | RTLD_LAZY);
        if (!library) {
            fprintf(stderr, "error dlopening '%s': %s\n", name, dlerror());
            abort(); /* as the library does */
        }
        add_client(dlsym(library, "rocprofiler_configure"));
    }
    free(names);
    add_client(dlsym(RTLD_DEFAULT, "rocprofiler_configure"));
}

static void finalize_client(uint32_t i) {
    for (uint32_t c = 0; c < context_count; c++)
        if (contexts[c].client == i) contexts[c].started = false;
    void (*finish)(void *) = clients[i].result.finalize;
    clients[i].result.finalize = NULL;
    if (finish) finish(clients[i].result.user);
}

EXPORT void replay_finalize(void) {
    if (initialized < 1 || finalized) return;
    finalized = -1;
    for (uint32_t i = 0; i < client_count; i++) finalize_client(i);
    finalized = 1;
}

/* Of each client, identified by its id; unused, because all are finalised together. */
static void finalize_all(void) { replay_finalize(); }

static void configure(uint32_t i, uint32_t priority) {
    char text[32];
    snprintf(text, sizeof text, "%u.%u.%u", version() / 10000, version() / 100 % 100, version() % 100);
    tool_result *result = clients[i].configure(version(), text, priority, clients[i].id);
    clients[i].given = result != NULL;
    const client_1_0 *id = clients[i].id;
    if (!has_old_records() && (id->size != sizeof *id || (id->name && !*id->name))) fails("a client wrote its id's size");
    if (result) clients[i].result = *result;
}

static void initialize(uint32_t i) {
    if (!clients[i].given || !clients[i].result.initialize) return;
    configuring = i;
    int status = clients[i].result.initialize(finalize_all, clients[i].result.user);
    configuring = MAX_CLIENTS;
    clients[i].result.initialize = NULL;
    for (uint32_t c = 0; status && c < context_count; c++)
        if (contexts[c].client == i) contexts[c].started = false;
}

static void set_up(void) {
    initialized = -1;
    find_clients();
    for (uint32_t i = 0; i < client_count; i++) configure(i, i);
    for (uint32_t i = 0; i < client_count; i++) initialize(i);
    initialized = 1;
    atexit(replay_finalize);
}

/* Called by rocprofiler-register for each runtime. */
EXPORT int rocprofiler_set_api_table(const char *name, uint64_t runtime_version, uint64_t instance, void **tables,
                                     uint64_t count) {
    (void)name, (void)runtime_version, (void)instance, (void)tables, (void)count;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    PLANNED("set_api_table");
    pthread_once(&once, set_up);
    return SUCCESS;
}

EXPORT void replay_configure(void) {
    for (uint32_t i = 0; i < client_count; i++) {
        configure(i, i + client_count);
        printf("configured again: %s\n", clients[i].given ? "taken" : "refused");
        initialize(i);
    }
}

#include "replay_words.h"

/* ---- user data of tools, kept from ENTER to EXIT, and from dispatch to completion ---- */

typedef struct {
    uint64_t key, values[MAX_CONTEXTS];
} kept_user;

static pthread_mutex_t users = PTHREAD_MUTEX_INITIALIZER;
static kept_user *kept;
static size_t kept_places, kept_count; /* a power of two */

static size_t place_of(uint64_t key) {
    size_t i = (size_t)(key * 0x9e3779b97f4a7c15u >> 20) & (kept_places - 1);
    while (kept[i].key && kept[i].key != key) i = (i + 1) & (kept_places - 1);
    return i;
}

static void keep(uint64_t key, const uint64_t *values) {
    uint64_t any = 0;
    for (int c = 0; c < MAX_CONTEXTS; c++) any |= values[c];
    if (!any) return; /* no subscriber */
    pthread_mutex_lock(&users);
    if (2 * (kept_count + 1) > kept_places) {
        kept_user *old = kept;
        size_t places = kept_places;
        kept_places = places ? 2 * places : 1024;
        kept = calloc(kept_places, sizeof *kept);
        for (size_t i = 0; i < places; i++)
            if (old[i].key) kept[place_of(old[i].key)] = old[i];
        free(old);
    }
    size_t i = place_of(key);
    if (!kept[i].key) __atomic_add_fetch(&kept_count, 1, __ATOMIC_RELAXED);
    kept[i].key = key;
    memcpy(kept[i].values, values, sizeof kept[i].values);
    pthread_mutex_unlock(&users);
}

static void take(uint64_t key, uint64_t *values, bool remove) {
    if (!__atomic_load_n(&kept_count, __ATOMIC_RELAXED)) return;
    pthread_mutex_lock(&users);
    size_t i = kept_places ? place_of(key) : 0;
    if (kept_places && kept[i].key) {
        memcpy(values, kept[i].values, sizeof kept[i].values);
        for (size_t j = (i + 1) & (kept_places - 1); remove && kept[j].key; j = (j + 1) & (kept_places - 1)) {
            size_t home = (size_t)(kept[j].key * 0x9e3779b97f4a7c15u >> 20) & (kept_places - 1);
            if (((j - home) & (kept_places - 1)) < ((j - i) & (kept_places - 1))) continue;
            kept[i] = kept[j];
            i = j;
        }
        if (remove) kept[i].key = 0, __atomic_sub_fetch(&kept_count, 1, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&users);
}

/* ---- names, valid as long as their code object ---- */

typedef struct owned {
    struct owned *next;
    uint64_t object;
    char *text;
} owned;
static owned *names;
static pthread_mutex_t naming = PTHREAD_MUTEX_INITIALIZER;

static char *own(uint64_t object, const char *text) {
    owned *o = malloc(sizeof *o);
    char *copy = strdup(text);
    pthread_mutex_lock(&naming);
    *o = (owned){names, object, copy};
    names = o;
    pthread_mutex_unlock(&naming);
    return copy;
}

static void disown(uint64_t object) {
    pthread_mutex_lock(&naming);
    for (owned **at = &names, *o; (o = *at);) {
        if (o->object != object) {
            at = &o->next;
            continue;
        }
        *at = o->next;
        memset(o->text, '!', strlen(o->text)); /* detects a tool that kept the pointer */
        free(o->text);
        free(o);
    }
    pthread_mutex_unlock(&naming);
}

/* ---- delivery ---- */

enum { DEPTH = 16, TEXT = 512 };

static _Thread_local struct {
    char *end; /* of the last mapped page */
    int depth; /* of open API calls */
    uint64_t users[DEPTH][MAX_CONTEXTS], outs[DEPTH][FIXUPS];
    union {
        pitched_pointer pitched;
        box box;
        plane plane;
        plate plate;
        cube cube;
        format format;
        launch_description described;
        device_launch devices[2];
    } structs[DEPTH];
    char text[TEXT];
} mine;

static void make_struct(const fixup *x, int level, bool done) {
    const uint64_t *v = x->values;
    memset(&mine.structs[level], 0, sizeof mine.structs[level]);
    switch (x->type) {
    case TYPE_outpitched:
        mine.structs[level].pitched = (pitched_pointer){v[0], v[1], v[2], v[3]};
        if (!done) memset(&mine.structs[level].pitched, 0xba, sizeof(pitched_pointer));
        return;
    case TYPE_box:
        mine.structs[level].box = (box){.source = {v[0], v[1], v[4], v[5]}, .destination = {v[2], v[3], v[4], v[5]},
                                        .size = {v[4], v[5], v[6]}, .kind = (int32_t)v[7]};
        return;
    case TYPE_plane:
        mine.structs[level].plane = (plane){.source_type = (int32_t)v[0], .source_pitch = v[2],
                                            .destination_type = (int32_t)v[3], .destination_pitch = v[5],
                                            .width = v[6], .height = v[7]};
        *(v[0] == 1 ? &mine.structs[level].plane.source_host : &mine.structs[level].plane.source_device) = v[1];
        *(v[3] == 1 ? &mine.structs[level].plane.destination_host
                    : &mine.structs[level].plane.destination_device) = v[4];
        return;
    case TYPE_plate: mine.structs[level].plate = (plate){v[0], v[1], 0x20, 1}; return;
    case TYPE_cube: mine.structs[level].cube = (cube){v[0], v[1], v[2], 0x20, 1, 0}; return;
    case TYPE_described: mine.structs[level].described.stream = v[0]; return;
    case TYPE_devices:
        for (int i = 0; i < 2; i++) mine.structs[level].devices[i].stream = v[i];
        return;
    case TYPE_format:
        for (int i = 0; i < 4; i++) mine.structs[level].format.bits[i] = (int32_t)v[i];
        mine.structs[level].format.kind = (int32_t)v[4];
        return;
    default: fails("no struct");
    }
}

static void *pointer_of(const replay_event *e, const fixup *x, int level, int index) {
    bool done = e->phase == PHASE_EXIT;
    if (x->null) return NULL;
    if (x->type == TYPE_out) {
        mine.outs[level][index] = done ? x->values[0] : 0xbad0bad0bad0bad0;
        return &mine.outs[level][index];
    }
    if (x->type != TYPE_text) {
        make_struct(x, level, done);
        return &mine.structs[level];
    }
    if (kinds[e->which].what == OBJECT) return own(e->object, x->text);
    snprintf(mine.text, TEXT, "%s", x->text);
    return mine.text;
}

static void *payload_of(const replay_event *e, const replay_round *round, int level) {
    if (!mine.end) mine.end = (char *)at_the_end(0);
    char *payload = mine.end - (e->bytes < 8 ? 8 : (e->bytes + 7) / 8 * 8); /* its size is always there */
    uint64_t changed[24];
    const uint64_t *from = e->payload;
    if (round->add || e->timed_now || e->fixup_count) {
        memcpy(changed, e->payload, sizeof changed);
        if (kinds[e->which].what == DISPATCH) ((dispatch_data *)changed)->info.dispatch += round->add;
        if (e->timed_now) changed[2] = replay_clock(), changed[1] = changed[2] - 1000;
        for (uint32_t i = 0; i < e->fixup_count; i++) {
            void *pointer = pointer_of(e, &e->fixups[i], level, (int)i);
            memcpy((char *)changed + e->fixups[i].offset, &pointer, sizeof pointer);
        }
        from = changed;
    }
    return memcpy(payload, from, e->bytes < 8 ? 8 : e->bytes);
}

static bool late, dry, keeps_errno;
__attribute__((constructor)) static void read_environment(void) {
    const char *kept_errno = getenv("REPLAY_ERRNO");
    late = getenv("REPLAY_LATE") != NULL;
    dry = getenv("REPLAY_DRY") != NULL;
    keeps_errno = kept_errno && *kept_errno;
}

/* A program may read errno after a call that a tool observed. */
enum { UNCHANGED = 4711 };
static void check_errno(const char *what) {
    if (keeps_errno && errno != UNCHANGED) fails("%s: the tool set errno to %d", what, errno);
}

static void call(uint32_t c, const replay_event *e, const replay_round *round, void *payload, uint64_t *user) {
    if (dry) return;
    int number = kind_numbers[e->which], operation = operation_numbers[e->which][e->operation];
    void *callback = contexts[c].services[e->which].callback, *argument = contexts[c].services[e->which].argument;
    uint64_t internal = e->internal ? e->internal + round->add : 0;
    uint64_t ancestor = e->ancestor ? e->ancestor + round->add : 0;
    errno = UNCHANGED;
    if (has_old_records()) {
        callback_0_5 *function;
        *(void **)&function = callback;
        function((record_0_5){CONTEXT + c, round->thread, internal, e->external, number, operation, e->phase, payload},
                 user, argument);
    } else {
        callback_1_0 *function;
        *(void **)&function = callback;
        function((record_1_0){CONTEXT + c, round->thread, internal, e->external, ancestor, number, operation, e->phase,
                              payload},
                 user, argument);
    }
    check_errno(kinds[e->which].name);
}

/* As in SDK 1.0.0, if any operation of the kind is subscribed. */
static void look_up_stream(const replay_event *e) {
    bool subscribed = false;
    for (uint32_t c = 0; c < context_count; c++) subscribed |= contexts[c].services[e->which].callback != NULL;
    if (!subscribed || ((const stream_data *)e->payload)->value - 1 > 1) return; /* legacy, per thread */
    fputs("terminate called after throwing an instance of 'std::out_of_range'\n", stderr);
    abort();
}

static bool wanted_by(uint32_t c, const replay_event *e) {
    return (contexts[c].started || late) && contexts[c].services[e->which].callback &&
           contexts[c].services[e->which].wanted[operation_numbers[e->which][e->operation]];
}

/* The key under which a tool's data of an operation that ends elsewhere is kept; 0: it ends on the thread. */
static uint64_t key_of(const replay_event *e, const replay_round *round) {
    const dispatch_data *d = (const dispatch_data *)e->payload;
    if (kinds[e->which].what == DISPATCH) return 2 * (d->info.dispatch + round->add) + 1;
    if (kinds[e->which].what == COPY) /* a call may have several, to different addresses */
        return 2 * (e->internal + round->add + 1 + (((const copy_data *)e->payload)->destination << 20));
    return 0;
}

#include "replay_counters.h"

static bool deliver(const replay_event *e, const replay_round *round) {
    bool wanted = false;
    if (kinds[e->which].what == STREAM) look_up_stream(e);
    for (uint32_t c = 0; c < context_count; c++) wanted |= wanted_by(c, e);
    if (!wanted) return false;
    uint64_t key = key_of(e, round), here[MAX_CONTEXTS] = {0}, *values = here;
    bool completes = kinds[e->which].what == DISPATCH ? e->phase == PHASE_NONE : e->phase == PHASE_EXIT;
    int level = 0;
    if (key) {
        if (e->phase != PHASE_ENTER) take(key, here, completes);
    } else if (e->phase != PHASE_NONE && kinds[e->which].what != OBJECT) {
        if (e->phase == PHASE_EXIT && mine.depth) mine.depth--;
        level = mine.depth < DEPTH ? mine.depth : DEPTH - 1;
        values = mine.users[level];
        if (e->phase == PHASE_ENTER) {
            memset(values, 0, sizeof mine.users[level]);
            mine.depth++;
        }
    } else {
        level = mine.depth < DEPTH ? mine.depth : DEPTH - 1; /* above what is open */
    }
    void *payload = payload_of(e, round, level);
    for (uint32_t c = 0; c < context_count; c++)
        if (wanted_by(c, e)) call(c, e, round, payload, &values[c]);
    if (key && e->phase == PHASE_ENTER) keep(key, here);
    if (kinds[e->which].what == OBJECT && e->operation == 1 && e->phase == PHASE_EXIT) disown(e->object);
    memset(payload, 0x5a, e->bytes);
    memset(mine.text, '?', TEXT - 1);
    return true;
}

/* Counters of a dispatch are requested at its submission, and delivered before or after its completion. */
EXPORT bool replay_deliver(const replay_event *e, const replay_round *round) {
    if (!kind_numbers[e->which]) return false; /* a kind that this version does not have */
    bool dispatch = kinds[e->which].what == DISPATCH, completed = dispatch && e->phase == PHASE_NONE;
    bool early = completed && ((const dispatch_data *)e->payload)->info.dispatch % 2;
    if (early) give_counters(e, round);
    bool wanted = deliver(e, round);
    if (dispatch && e->phase == PHASE_ENTER) ask_counters(e, round);
    if (completed && !early) give_counters(e, round);
    return wanted;
}
