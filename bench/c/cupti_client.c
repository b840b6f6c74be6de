/* What CUPTI itself costs: a client that enables the records and callbacks that PASTA's source enables, and throws
 * them away.
 *
 *     CUDA_INJECTION64_PATH=libcupti_client.so ./program
 *
 * CUPTI_CLIENT_LIB   the library; otherwise libcupti.so.13 is searched for
 * CUPTI_CLIENT_LOG   a file that gets the numbers of callbacks and records at exit
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "../../shim/backends/nvidia/cupti_abi.h"

enum { BUFFER = 512 << 10, FLUSH_US = 500000 };

#define POINTER(name, symbol, arguments) static int32_t(*name) arguments;
PASTA_CUPTI_FUNCTIONS(POINTER)
#undef POINTER

static unsigned long callbacks, records;

static void on_callback(void *user, int32_t domain, uint32_t id, const void *data) {
    (void)user, (void)domain, (void)id, (void)data;
    __atomic_fetch_add(&callbacks, 1, __ATOMIC_RELAXED);
}

static void request_buffer(uint8_t **buffer, uint64_t *bytes, uint64_t *max_records) {
    void *memory = NULL;
    *bytes = posix_memalign(&memory, 8, BUFFER) == 0 ? BUFFER : 0;
    *buffer = memory;
    *max_records = 0;
}

static void take_buffer(uint64_t context, uint32_t stream, uint8_t *buffer, uint64_t bytes, uint64_t valid) {
    (void)context, (void)stream, (void)bytes;
    void *record = NULL;
    while (valid && next_record(buffer, valid, &record) == 0) __atomic_fetch_add(&records, 1, __ATOMIC_RELAXED);
    free(buffer);
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void *flush_regularly(void *unused) {
    for (;;) {
        usleep(FLUSH_US);
        flush_all(0);
    }
    return unused;
}

static void at_exit(void) {
    const char *log = getenv("CUPTI_CLIENT_LOG");
    flush_all(PASTA_CUPTI_FLUSH_FORCED);
    FILE *file = log ? fopen(log, "w") : NULL;
    if (!file) return;
    fprintf(file, "callbacks %lu, records %lu\n", callbacks, records);
    fclose(file);
}

static void failed(const char *what, int32_t result) {
    fprintf(stderr, "cupti_client: %s: %d\n", what, result);
    exit(3);
}
#define CHECKED(function, ...)                           \
    do {                                                 \
        int32_t result = function(__VA_ARGS__);          \
        if (result) failed(#function, result);           \
    } while (0)

__attribute__((visibility("default"))) int InitializeInjection(void);

int InitializeInjection(void) {
    static const int32_t kinds[] = {PASTA_CUPTI_KERNEL, PASTA_CUPTI_COPY, PASTA_CUPTI_PEER_COPY, PASTA_CUPTI_SET,
                                    PASTA_CUPTI_DEVICE, PASTA_CUPTI_OVERHEAD};
    static const uint32_t resources[] = {PASTA_CUPTI_CONTEXT_CREATED, PASTA_CUPTI_CONTEXT_DESTROYING,
                                         PASTA_CUPTI_STREAM_CREATED, PASTA_CUPTI_STREAM_DESTROYING,
                                         PASTA_CUPTI_MODULE_LOADED, PASTA_CUPTI_MODULE_UNLOADING,
                                         PASTA_CUPTI_NODE_CREATED, PASTA_CUPTI_NODE_CLONED};
#define CALL(number, name) number,
    static const uint32_t calls[] = {PASTA_CUPTI_CALLS(CALL)};
    static bool done;
    const char *named = getenv("CUPTI_CLIENT_LIB");
    void *subscriber, *library = dlopen(named ? named : "libcupti.so.13", RTLD_NOW);
    pthread_t thread;
    if (done) return 1;
    done = true;
    if (!library) {
        fprintf(stderr, "cupti_client: %s\n", dlerror());
        exit(3);
    }
#define RESOLVE(name, symbol, arguments)          \
    *(void **)&name = dlsym(library, symbol);     \
    if (!name) failed(symbol, -1);
    PASTA_CUPTI_FUNCTIONS(RESOLVE)
    CHECKED(subscribe, &subscriber, on_callback, NULL);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) enable_callback(1, subscriber, PASTA_CUPTI_DRIVER, calls[i]);
    for (size_t i = 0; i < sizeof resources / sizeof *resources; i++)
        CHECKED(enable_callback, 1, subscriber, PASTA_CUPTI_RESOURCE, resources[i]);
    CHECKED(register_timestamp, now);
    CHECKED(register_callbacks, request_buffer, take_buffer);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) CHECKED(enable, kinds[i]);
    if (pthread_create(&thread, NULL, flush_regularly, NULL) == 0) pthread_detach(thread);
    atexit(at_exit);
    return 1;
}
