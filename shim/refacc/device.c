/* The library's life: initialization, fork, exit; objects, devices, contexts. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

enum { STATE_NONE, STATE_READY, STATE_ENDED };

struct ra_settings ra_settings;
pthread_mutex_t ra_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int state;
static _Atomic uint64_t generation; /* counts initializations undone: older current contexts are stale */
static _Thread_local bool initialising;
static _Thread_local bool on_worker;
static _Thread_local struct {
    struct ra_context_s *context;
    uint64_t generation;
} current;
static struct ra_context_s *contexts;
static struct ra_context_s *primaries[RA_MAX_DEVICES];
static pthread_mutex_t primary_lock = PTHREAD_MUTEX_INITIALIZER; /* one maker at a time; before ra_lock */

static struct {
    struct ra_object *all;
    struct ra_object *free;
} objects[RA_TYPES];

const char *ra_error_string(int error) {
    switch (error) {
#define RA_CASE(name, number, text) \
    case number: return text;
        RA_ERRORS(RA_CASE)
#undef RA_CASE
    }
    return "unknown error";
}

int ra_version(void) { return RA_VERSION; }

uint64_t ra_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- threads ---- */

struct thread_start {
    void *(*run)(void *);
    void *argument;
};

static void *thread_main(void *argument) {
    struct thread_start start = *(struct thread_start *)argument;
    free(argument);
    on_worker = true;
    return start.run(start.argument);
}

int ra_thread_start(pthread_t *thread, void *(*run)(void *), void *argument) {
    struct thread_start *start = malloc(sizeof *start);
    RA_REQUIRE(start, RA_OUT_OF_MEMORY);
    *start = (struct thread_start){run, argument};
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread, NULL, thread_main, start);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) free(start);
    return failed ? RA_SYSTEM : RA_OK;
}

/* ---- objects ---- */

static size_t object_bytes(enum ra_type type);

void *ra_object_new(enum ra_type type) {
    pthread_mutex_lock(&ra_lock);
    struct ra_object *object = objects[type].free;
    if (object) {
        objects[type].free = object->free;
    } else if ((object = calloc(1, object_bytes(type)))) {
        object->type = type;
        object->all = objects[type].all;
        objects[type].all = object;
    }
    pthread_mutex_unlock(&ra_lock);
    return object;
}

void ra_object_publish(void *handle) {
    struct ra_object *object = handle;
    atomic_store_explicit(&object->alive, RA_ALIVE + object->type, memory_order_release);
}

void ra_object_delete(void *handle) {
    struct ra_object *object = handle;
    atomic_store_explicit(&object->alive, 0, memory_order_relaxed);
    pthread_mutex_lock(&ra_lock);
    object->free = objects[object->type].free;
    objects[object->type].free = object;
    pthread_mutex_unlock(&ra_lock);
}

bool ra_object_is(const void *handle, enum ra_type type) {
    const struct ra_object *object = handle;
    return object && atomic_load_explicit(&object->alive, memory_order_acquire) == RA_ALIVE + type;
}

static void object_clear(struct ra_object *object) {
    void *handle = object;
    switch (object->type) {
    case RA_TYPE_STREAM: ra_stream_discard(handle); break;
    case RA_TYPE_EVENT: ra_events_clear(handle); break;
    case RA_TYPE_MODULE: ra_module_clear(handle); break;
    case RA_TYPE_GRAPH: ra_graph_clear(handle); break;
    case RA_TYPE_EXEC: ra_graph_exec_clear(handle); break;
    default: break;
    }
}

static void objects_free(void) {
    for (int type = 0; type < RA_TYPES; type++) {
        for (struct ra_object *object = objects[type].all, *next; object; object = next) {
            next = object->all;
            object_clear(object);
            free(object);
        }
        objects[type].all = objects[type].free = NULL;
    }
}

/* ---- life ---- */

static int setting(const char *name, uint64_t otherwise, uint64_t min, uint64_t max, uint64_t *value) {
    const char *text = getenv(name);
    *value = otherwise;
    if (!text || !*text) return RA_OK;
    char *end;
    errno = 0;
    *value = strtoull(text, &end, 10);
    if (errno || *end || *text == '-' || *value < min || *value > max) {
        if (getenv("REFACC_VERBOSE"))
            fprintf(stderr, "refacc: %s must be a number from %llu to %llu, not \"%s\"\n", name,
                    (unsigned long long)min, (unsigned long long)max, text);
        return RA_INVALID_VALUE;
    }
    return RA_OK;
}

static int settings_read(void) {
    uint64_t devices, threads, megabytes, managed;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    RA_TRY(setting("REFACC_DEVICES", 1, 1, RA_MAX_DEVICES, &devices));
    RA_TRY(setting("REFACC_THREADS", online > 0 ? (uint64_t)online : 1, 1, 1024, &threads));
    RA_TRY(setting("REFACC_MEMORY", 4096, 1, RA_REGION_BYTES >> 20, &megabytes));
    RA_TRY(setting("REFACC_MANAGED", megabytes < 2 ? 2 : megabytes, 2, RA_REGION_BYTES >> 20, &managed));
    ra_settings = (struct ra_settings){(int)devices, (uint32_t)threads, megabytes << 20, managed << 20};
    return RA_OK;
}

static void fork_prepare(void) {
    pthread_mutex_lock(&init_lock);
    pthread_mutex_lock(&primary_lock);
    pthread_mutex_lock(&ra_lock);
    pthread_mutex_lock(&ra_kernels_lock);
}

static void fork_parent(void) {
    pthread_mutex_unlock(&ra_kernels_lock);
    pthread_mutex_unlock(&ra_lock);
    pthread_mutex_unlock(&primary_lock);
    pthread_mutex_unlock(&init_lock);
}

/* The child starts as if never initialized: its workers are gone, and locks that they held may be
 * locked, so their state is abandoned. */
static void fork_child(void) {
    fork_parent();
    memset(objects, 0, sizeof objects);
    contexts = NULL;
    memset(primaries, 0, sizeof primaries);
    ra_memory_forget();
    ra_pool_forget();
    ra_events_forget();
    ra_modules_forget();
    ra_graphs_forget();
    ra_tools_forget();
    atomic_fetch_add(&generation, 1);
    if (atomic_load(&state) == STATE_READY) atomic_store(&state, STATE_NONE);
}

static void stop_workers(void) {
    pthread_mutex_lock(&ra_lock);
    struct ra_object *streams = objects[RA_TYPE_STREAM].all;
    pthread_mutex_unlock(&ra_lock);
    for (struct ra_object *o = streams; o; o = o->all) ra_stream_tell_stop((void *)o);
    for (struct ra_object *o = streams; o; o = o->all) ra_stream_join((void *)o);
    ra_pool_stop();
}

/* Frees nothing: other threads may still be inside a call. A kernel or hook that called exit()
 * cannot wait for its own thread. */
static void at_exit(void) {
    if (atomic_exchange(&state, STATE_ENDED) == STATE_READY && !on_worker) stop_workers();
}

int ra_shutdown(void) {
    RA_REQUIRE(!on_worker, RA_INVALID_VALUE);
    pthread_mutex_lock(&init_lock);
    int ready = STATE_READY;
    if (atomic_compare_exchange_strong(&state, &ready, STATE_NONE)) {
        stop_workers();
        ra_memory_unmap();
        objects_free();
        contexts = NULL;
        memset(primaries, 0, sizeof primaries);
        atomic_fetch_add(&generation, 1);
        ra_tools_forget();
    }
    pthread_mutex_unlock(&init_lock);
    return ready == STATE_ENDED ? RA_SHUT_DOWN : RA_OK;
}

static int initialise(void) {
    static bool registered; /* init_lock */
    RA_TRY(settings_read());
    RA_TRY(ra_memory_map());
    if (!registered) RA_REQUIRE(!pthread_atfork(fork_prepare, fork_parent, fork_child), RA_SYSTEM);
    initialising = true;
    ra_tools_inject();
    initialising = false;
    /* After the tool's exit handler is registered, so before it runs: it sees the last completions. */
    if (!registered) RA_REQUIRE(!atexit(at_exit), RA_SYSTEM);
    registered = true;
    return RA_OK;
}

int ra_init(void) {
    int now = atomic_load_explicit(&state, memory_order_acquire);
    if (__builtin_expect(now == STATE_READY, 1) || initialising) return RA_OK;
    RA_REQUIRE(now != STATE_ENDED, RA_SHUT_DOWN);
    pthread_mutex_lock(&init_lock);
    int error = RA_OK;
    if (atomic_load(&state) == STATE_NONE && (error = initialise()) == RA_OK) atomic_store(&state, STATE_READY);
    pthread_mutex_unlock(&init_lock);
    return error;
}

/* ---- devices ---- */

int ra_device_count(int *count) {
    RA_TRY(ra_init());
    RA_REQUIRE(count, RA_INVALID_VALUE);
    *count = ra_settings.devices;
    return RA_OK;
}

static const char device_name[] = "Reference Accelerator";

int ra_device_properties(int device, ra_properties *properties) {
    RA_TRY(ra_init());
    RA_REQUIRE(device >= 0 && device < ra_settings.devices, RA_INVALID_DEVICE);
    RA_REQUIRE(properties, RA_INVALID_VALUE);
    *properties = (ra_properties){.memory = ra_settings.memory,
                                  .multiprocessors = RA_MULTIPROCESSORS,
                                  .warp = RA_LANES,
                                  .max_threads = RA_MAX_THREADS,
                                  .max_shared = RA_MAX_SHARED};
    memcpy(properties->name, device_name, sizeof device_name);
    return RA_OK;
}

static int profiler(ra_callback_id id) {
    struct ra_context_s *context;
    RA_TRY(ra_current(&context));
    if (ra_tools_want(RA_DOMAIN_PROFILER)) {
        ra_profiler_data data = {sizeof data, context->device};
        ra_tools_call(RA_DOMAIN_PROFILER, id, &data);
    }
    return RA_OK;
}

int ra_profiler_start(void) { return profiler(RA_CALLBACK_PROFILER_START); }
int ra_profiler_stop(void) { return profiler(RA_CALLBACK_PROFILER_STOP); }

/* ---- contexts ---- */

static void tell_context(const struct ra_context_s *context, ra_callback_id id) {
    if (!ra_tools_want(RA_DOMAIN_RESOURCE)) return;
    ra_context_data data = {.size = sizeof data,
                            .device = context->device,
                            .context = (uintptr_t)context,
                            .device_name = device_name,
                            .memory = ra_settings.memory,
                            .multiprocessors = RA_MULTIPROCESSORS,
                            .warp = RA_LANES,
                            .max_shared = RA_MAX_SHARED};
    ra_tools_call(RA_DOMAIN_RESOURCE, id, &data);
}

static int context_make(int device, bool primary, struct ra_context_s **made) {
    struct ra_context_s *context = ra_object_new(RA_TYPE_CONTEXT);
    RA_REQUIRE(context, RA_OUT_OF_MEMORY);
    context->device = device;
    context->primary = primary;
    atomic_store(&context->error, RA_OK);
    context->default_stream = context->streams = NULL;
    context->modules = NULL;
    int error = ra_stream_make(context, 0, &context->default_stream);
    if (error != RA_OK) {
        ra_object_delete(context);
        return error;
    }
    *made = context;
    return RA_OK;
}

static void context_link(struct ra_context_s *context) { /* ra_lock held */
    context->next = contexts;
    contexts = context;
    ra_object_publish(context);
}

static int context_primary(int device, struct ra_context_s **context) {
    pthread_mutex_lock(&ra_lock);
    *context = primaries[device];
    pthread_mutex_unlock(&ra_lock);
    if (*context) return RA_OK;
    pthread_mutex_lock(&primary_lock);
    int error = RA_OK;
    bool made = false;
    if (!(*context = primaries[device]) && (error = context_make(device, true, context)) == RA_OK) {
        pthread_mutex_lock(&ra_lock);
        context_link(*context);
        primaries[device] = *context;
        pthread_mutex_unlock(&ra_lock);
        made = true;
    }
    pthread_mutex_unlock(&primary_lock);
    if (made) tell_context(*context, RA_CALLBACK_CONTEXT_CREATED);
    return error;
}

static void make_current(struct ra_context_s *context) {
    current.context = context;
    current.generation = atomic_load(&generation);
}

int ra_current(struct ra_context_s **context) {
    RA_TRY(ra_init());
    if (!current.context || current.generation != atomic_load_explicit(&generation, memory_order_relaxed)) {
        struct ra_context_s *primary;
        RA_TRY(context_primary(0, &primary));
        make_current(primary);
    }
    *context = current.context;
    RA_REQUIRE(ra_object_is(*context, RA_TYPE_CONTEXT), RA_INVALID_HANDLE);
    return RA_OK;
}

int ra_device_set(int device) {
    RA_TRY(ra_init());
    RA_REQUIRE(device >= 0 && device < ra_settings.devices, RA_INVALID_DEVICE);
    struct ra_context_s *context;
    RA_TRY(context_primary(device, &context));
    make_current(context);
    return RA_OK;
}

int ra_context_create(ra_context *handle, int device) {
    RA_TRY(ra_init());
    RA_REQUIRE(handle, RA_INVALID_VALUE);
    RA_REQUIRE(device >= 0 && device < ra_settings.devices, RA_INVALID_DEVICE);
    struct ra_context_s *context;
    RA_TRY(context_make(device, false, &context));
    pthread_mutex_lock(&ra_lock);
    context_link(context);
    pthread_mutex_unlock(&ra_lock);
    make_current(context);
    tell_context(context, RA_CALLBACK_CONTEXT_CREATED);
    *handle = context;
    return RA_OK;
}

int ra_context_destroy(ra_context context) {
    RA_TRY(ra_init());
    RA_REQUIRE(ra_object_is(context, RA_TYPE_CONTEXT), RA_INVALID_HANDLE);
    RA_REQUIRE(!context->primary, RA_INVALID_VALUE);
    RA_TRY(ra_context_drain(context));
    ra_memory_retire_context(context);
    tell_context(context, RA_CALLBACK_CONTEXT_DESTROYED);
    atomic_store(&context->object.alive, 0);
    for (struct ra_stream_s *s = context->streams; s; s = s->next) ra_stream_tell_stop(s);
    for (struct ra_stream_s *s = context->streams, *next; s; s = next) {
        next = s->next;
        ra_stream_join(s);
        ra_object_delete(s);
    }
    pthread_mutex_lock(&ra_lock);
    struct ra_context_s **link = &contexts;
    while (*link != context) link = &(*link)->next;
    *link = context->next;
    ra_memory_release_context(context);
    pthread_mutex_unlock(&ra_lock);
    ra_modules_release(context);
    ra_object_delete(context);
    if (current.context == context) current.context = NULL;
    return RA_OK;
}

int ra_context_set_current(ra_context context) {
    RA_TRY(ra_init());
    RA_REQUIRE(ra_object_is(context, RA_TYPE_CONTEXT), RA_INVALID_HANDLE);
    make_current(context);
    return RA_OK;
}

int ra_context_get_current(ra_context *context) {
    RA_REQUIRE(context, RA_INVALID_VALUE);
    return ra_current(context);
}

static int synchronized(struct ra_context_s *context, ra_sync_kind kind, uint64_t start, int error) {
    if (ra_tools_want(RA_DOMAIN_SYNCHRONIZE)) {
        ra_sync_data data = {sizeof data, context->device, (uintptr_t)context,
                             kind == RA_SYNC_CONTEXT ? (uintptr_t)context : 0,
                             kind, error, start, ra_now()};
        ra_tools_call(RA_DOMAIN_SYNCHRONIZE, RA_CALLBACK_SYNCHRONIZED, &data);
    }
    return error;
}

int ra_context_synchronize(void) {
    struct ra_context_s *context;
    RA_TRY(ra_current(&context));
    uint64_t start = ra_now();
    int error = ra_context_drain(context);
    return synchronized(context, RA_SYNC_CONTEXT, start, error == RA_OK ? atomic_load(&context->error) : error);
}

int ra_device_synchronize(void) {
    struct ra_context_s *mine;
    RA_TRY(ra_current(&mine));
    uint64_t start = ra_now();
    int error = RA_OK;
    /* A context's memory is never freed before shutdown, so following `next` is safe; one made or
     * destroyed meanwhile may be missed, or drained needlessly. */
    pthread_mutex_lock(&ra_lock);
    struct ra_context_s *context = contexts;
    pthread_mutex_unlock(&ra_lock);
    while (context && error == RA_OK) {
        if (context->device == mine->device && ra_object_is(context, RA_TYPE_CONTEXT)) error = ra_context_drain(context);
        pthread_mutex_lock(&ra_lock);
        context = context->next;
        pthread_mutex_unlock(&ra_lock);
    }
    return synchronized(mine, RA_SYNC_DEVICE, start, error == RA_OK ? atomic_load(&mine->error) : error);
}

static size_t object_bytes(enum ra_type type) {
    switch (type) {
    case RA_TYPE_CONTEXT: return sizeof(struct ra_context_s);
    case RA_TYPE_STREAM: return sizeof(struct ra_stream_s);
    case RA_TYPE_EVENT: return ra_event_bytes;
    case RA_TYPE_MODULE: return sizeof(struct ra_module_s);
    case RA_TYPE_GRAPH: return ra_graph_bytes;
    default: return ra_exec_bytes;
    }
}
