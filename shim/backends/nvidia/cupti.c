/* NVIDIA's CUPTI as an event source: subscription, flushes and release.
 *
 * Records arrive when a buffer is full, or at a flush: a thread flushes regularly, so that a view is current and a
 * program that is killed loses little.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cupti_source.h"

static bool recording, subscribed;
static uint32_t recorded_generation;

static const char *remedy_of(int32_t result) {
    switch (result) {
    case PASTA_CUPTI_OTHER_SUBSCRIBER: return "another CUPTI tool (nsys, ncu, a framework's profiler) came first: run without it";
    case PASTA_CUPTI_NOT_INITIALIZED:
    case PASTA_CUPTI_NOT_COMPATIBLE: return "the driver is not compatible with this library: install a newer driver, or an older nvidia-cuda-cupti";
    case PASTA_CUPTI_NO_PRIVILEGES: return "the driver restricts profiling to administrators: set NVreg_RestrictProfilingToAdminUsers=0";
    default: return "see `pasta doctor`";
    }
}

static bool failed(int32_t result, const char *call, char *why, size_t size) {
    if (result == 0) return false;
    snprintf(why, size, "%s failed with %d (%s); %s", call, result, pasta_cupti_error(result), remedy_of(result));
    return true;
}
#define FAILED(function, ...) failed(pasta_cupti.function(__VA_ARGS__), #function, why, size)

/* ---- callbacks ---- */

static bool is_recording(void) {
    return __atomic_load_n(&recording, __ATOMIC_ACQUIRE) && pasta_generation() == recorded_generation;
}

enum { UVM_UNWANTED, UVM_WANTED, UVM_NEXT_CALL };
static int uvm;

/* Inside cuInit, and in the callback of a new context, CUPTI accepted this without an error, and delivered no record. */
static void enable_uvm(void) {
    char why[256];
    size_t size = sizeof why;
    pasta_cupti_uvm_config configs[PASTA_CUPTI_UVM_DTOD];
    for (int32_t what = 1; what <= PASTA_CUPTI_UVM_DTOD; what++)
        configs[what - 1] = (pasta_cupti_uvm_config){PASTA_CUPTI_UVM_ALL_DEVICES, what, 0, 1};
    if (FAILED(configure_uvm, configs, PASTA_CUPTI_UVM_DTOD) || FAILED(enable, PASTA_CUPTI_UVM))
        pasta_say("faults and migrations of managed memory are not recorded: %s", why);
}

static bool uvm_goes(int from, int to) {
    return __atomic_compare_exchange_n(&uvm, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static void on_callback(void *user, int32_t domain, uint32_t id, const void *data) {
    (void)user;
    if (is_recording()) {
        if (domain == PASTA_CUPTI_RESOURCE && id == PASTA_CUPTI_CONTEXT_CREATED) uvm_goes(UVM_WANTED, UVM_NEXT_CALL);
        if (domain == PASTA_CUPTI_DRIVER && PASTA_UNLIKELY(__atomic_load_n(&uvm, __ATOMIC_RELAXED) == UVM_NEXT_CALL) &&
            uvm_goes(UVM_NEXT_CALL, UVM_UNWANTED))
            enable_uvm();
        if (domain == PASTA_CUPTI_DRIVER) pasta_cupti_on_call(id, data);
        if (domain == PASTA_CUPTI_RESOURCE) pasta_cupti_on_resource(id, data);
    }
    pasta_cupti_guest_on_callback(domain, id, data);
}

/* ---- buffers ---- */

enum { BUFFER = 512 << 10, BUFFERS = 256, ALIGNMENT = 8 };

static uint8_t *ours[BUFFERS]; /* that CUPTI has; others are the program's */

static bool change(uint8_t *from, uint8_t *to) {
    for (int i = 0; i < BUFFERS; i++) {
        uint8_t *expected = from;
        if (__atomic_compare_exchange_n(&ours[i], &expected, to, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return true;
    }
    return false;
}

/* Without a buffer CUPTI drops records, and counts them. */
static void request_buffer(uint8_t **buffer, uint64_t *bytes, uint64_t *max_records) {
    void *memory = NULL;
    if (pasta_cupti_guest_request(buffer, bytes, max_records)) return;
    if (posix_memalign(&memory, ALIGNMENT, BUFFER) != 0) memory = NULL;
    if (memory && !change(NULL, memory)) {
        free(memory);
        memory = NULL;
    }
    *buffer = memory;
    *bytes = memory ? BUFFER : 0;
    *max_records = 0;
}

static void take_buffer(uint64_t context, uint32_t stream, uint8_t *buffer, uint64_t bytes, uint64_t valid) {
    bool mine = buffer && change(buffer, NULL);
    if (buffer && is_recording()) pasta_cupti_read_buffer(context, stream, buffer, valid);
    if (!mine) {
        pasta_cupti_guest_complete(context, stream, buffer, bytes, valid);
        return;
    }
    pasta_cupti_guest_copy(context, stream, buffer, valid);
    free(buffer);
}

/* ---- subscription ---- */

static const uint32_t resources[] = {
    PASTA_CUPTI_CONTEXT_CREATED, PASTA_CUPTI_CONTEXT_DESTROYING, PASTA_CUPTI_STREAM_CREATED,
    PASTA_CUPTI_STREAM_DESTROYING, PASTA_CUPTI_MODULE_LOADED, PASTA_CUPTI_MODULE_UNLOADING,
    PASTA_CUPTI_NODE_CREATED, PASTA_CUPTI_NODE_CLONED,
};
static const int32_t kinds[] = {PASTA_CUPTI_KERNEL, PASTA_CUPTI_COPY, PASTA_CUPTI_PEER_COPY, PASTA_CUPTI_SET};
static const int32_t optional[] = {PASTA_CUPTI_DEVICE, PASTA_CUPTI_OVERHEAD};

/* While copies or kernels are recorded, CUPTI has no data of executed instructions. */
static size_t wanted_kinds(void) { return pasta_config_u64("nvidia.instructions", 0) ? 0 : sizeof kinds / sizeof *kinds; }

bool pasta_cupti_wants(int32_t domain, uint32_t id) {
    for (size_t i = 0; domain == PASTA_CUPTI_RESOURCE && i < sizeof resources / sizeof *resources; i++)
        if (resources[i] == id) return true;
    return domain == PASTA_CUPTI_DRIVER && pasta_cupti_wants_call(id);
}

bool pasta_cupti_wants_records(int32_t kind) {
    for (size_t i = 0; i < wanted_kinds(); i++)
        if (kinds[i] == kind) return true;
    for (size_t i = 0; i < sizeof optional / sizeof *optional; i++)
        if (optional[i] == kind) return true;
    return kind == PASTA_CUPTI_UVM && pasta_config_u64("nvidia.uvm", 0);
}

/* Nothing of the runtime's domain: one of its callbacks makes all of its calls slower (2 % of a training step of GPT-2
 * in PyTorch), and cudaProfilerStart calls cuProfilerStart. */
static bool enable_callbacks(char *why, size_t size) {
    void *subscriber = pasta_cupti.subscriber;
    for (size_t i = 0; i < sizeof resources / sizeof *resources; i++)
        if (FAILED(enable_callback, 1, subscriber, PASTA_CUPTI_RESOURCE, resources[i])) return false;
    for (uint32_t id = 1; id < PASTA_CUPTI_MAX_CALL; id++) {
        if (!pasta_cupti_wants_call(id)) continue;
        int32_t result = pasta_cupti.enable_callback(1, subscriber, PASTA_CUPTI_DRIVER, id);
        if (result == PASTA_CUPTI_INVALID_PARAMETER) continue; /* this version has no such call */
        if (failed(result, "enable_callback", why, size)) return false;
    }
    return true;
}

void pasta_cupti_enable_callbacks(void) {
    char why[256];
    if (!enable_callbacks(why, sizeof why)) pasta_log("%s: %s", PASTA_CUPTI_SOURCE, why);
}

static bool enable_records(char *why, size_t size) {
    pasta_cupti_set_clock();
    if (FAILED(register_timestamp, pasta_cupti_clock)) return false; /* before any kind is enabled */
    if (FAILED(register_callbacks, request_buffer, take_buffer)) return false;
    if (pasta_config_u64("nvidia.details", 0)) {
        if (FAILED(enable_latency, 1)) return false;
        pasta_cupti_with_details(true);
    }
    for (size_t i = 0; i < wanted_kinds(); i++)
        if (FAILED(enable, kinds[i])) return false;
    for (size_t i = 0; i < sizeof optional / sizeof *optional; i++)
        if (FAILED(enable, optional[i])) pasta_log("%s: %s", PASTA_CUPTI_SOURCE, why);
    return true;
}

static void disable_records(void) {
    for (size_t i = 0; i < wanted_kinds(); i++) pasta_cupti.disable(kinds[i]);
    for (size_t i = 0; i < sizeof optional / sizeof *optional; i++) pasta_cupti.disable(optional[i]);
    pasta_cupti.disable(PASTA_CUPTI_UVM);
}

/* ---- flushing ---- */

static pthread_mutex_t flushing = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t flush_now;
static bool ends;

enum { PAUSE_MS = 500 };

static void *flush_regularly(void *unused) {
    uint64_t wanted = pasta_config_u64("nvidia.flush_ms", PAUSE_MS), pause = wanted ? wanted : PAUSE_MS;
    (void)unused;
    pthread_setname_np(pthread_self(), "pasta-flush");
    pthread_mutex_lock(&flushing);
    while (!ends) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        uint64_t at = (uint64_t)until.tv_nsec + pause * 1000000;
        until = (struct timespec){until.tv_sec + (time_t)(at / 1000000000), (long)(at % 1000000000)};
        int woken = 0;
        while (!ends && woken != ETIMEDOUT) woken = pthread_cond_timedwait(&flush_now, &flushing, &until);
        if (!ends && wanted) pasta_cupti.flush_all(0);
        if (!ends) pasta_cupti_samples_fetch();
    }
    pthread_mutex_unlock(&flushing);
    return NULL;
}

static void start_flushing(void) {
    pthread_condattr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    if (!pasta_config_u64("nvidia.flush_ms", PAUSE_MS) && !pasta_cupti_samples_on()) return;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&flush_now, &attributes);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, flush_regularly, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) pthread_detach(thread);
    else pasta_log("%s: no thread that flushes: records come when buffers are full", PASTA_CUPTI_SOURCE);
}

/* Work that is still running has no end, and is left out. */
static void at_exit(void) {
    if (!is_recording()) return;
    pthread_mutex_lock(&flushing); /* waits for a flush that is under way */
    ends = true;
    pthread_cond_signal(&flush_now);
    pthread_mutex_unlock(&flushing);
    pasta_cupti.flush_all(PASTA_CUPTI_FLUSH_FORCED);
    pasta_cupti_samples_finish();
    pasta_cupti_counters_finish();
    pasta_cupti_finish_records();
    __atomic_store_n(&recording, false, __ATOMIC_RELEASE);
}

bool pasta_cupti_is_on(void) { return __atomic_load_n(&subscribed, __ATOMIC_ACQUIRE); }

bool pasta_cupti_start(char *why, size_t size) {
    if (!pasta_cupti_load(why, size)) return false;
    if (FAILED(subscribe, &pasta_cupti.subscriber, on_callback, NULL)) return false;
    if (enable_callbacks(why, size) && enable_records(why, size)) {
        if (pasta_use(PASTA_CUPTI_SOURCE, pasta_cupti_version())) {
            pasta_nv_read_device_name();
            uvm = pasta_config_u64("nvidia.uvm", 0) ? UVM_WANTED : UVM_UNWANTED;
            recorded_generation = pasta_generation();
            __atomic_store_n(&recording, true, __ATOMIC_RELEASE);
            __atomic_store_n(&subscribed, true, __ATOMIC_RELEASE);
            pasta_cupti_samples_start();
            pasta_cupti_counters_start();
            start_flushing();
            atexit(at_exit);
            return true;
        }
        *why = '\0'; /* nothing is to be recorded */
    }
    disable_records();
    pasta_cupti.unsubscribe(pasta_cupti.subscriber);
    return false;
}
