/* What CUPTI itself costs: a client that enables the records and callbacks that PASTA's source enables, and throws
 * them away.
 *
 *     CUDA_INJECTION64_PATH=libcupti_client.so ./program
 *
 * CUPTI_CLIENT_LIB   the library; otherwise libcupti.so.13 is searched for
 * CUPTI_CLIENT_LOG   a file that gets the numbers of callbacks and records at exit
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>

#include "cupti_client.h"

enum { FLUSH_US = 500000 };

static unsigned long callbacks, records;

static void on_callback(void *user, int32_t domain, uint32_t id, const void *data) {
    (void)user, (void)domain, (void)id, (void)data;
    __atomic_fetch_add(&callbacks, 1, __ATOMIC_RELAXED);
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

int InitializeInjection(void) {
    static bool done;
    pthread_t thread;
    if (done) return 1;
    done = true;
    load_cupti(getenv("CUPTI_CLIENT_LIB"));
    enable_all(on_callback, take_buffer, now);
    if (pthread_create(&thread, NULL, flush_regularly, NULL) == 0) pthread_detach(thread);
    atexit(at_exit);
    return 1;
}
