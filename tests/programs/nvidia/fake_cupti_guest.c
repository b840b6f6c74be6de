/* A CUPTI tool of a program, linked to the library as a framework's profiler is: it does one thing at a time, and
 * counts what it gets. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../../shim/backends/nvidia/cupti_abi.h"

int32_t cuptiSubscribe(void **subscriber, pasta_cupti_callback *callback, void *user);
int32_t cuptiUnsubscribe(void *subscriber);
int32_t cuptiEnableCallback(uint32_t on, void *subscriber, int32_t domain, uint32_t id);
int32_t cuptiEnableDomain(uint32_t on, void *subscriber, int32_t domain);
int32_t cuptiActivityRegisterCallbacks(pasta_cupti_request *request, pasta_cupti_complete *complete);
int32_t cuptiActivityRegisterTimestampCallback(uint64_t (*now)(void));
int32_t cuptiGetTimestamp(uint64_t *time);
int32_t cuptiActivityEnable(int32_t kind);
int32_t cuptiActivityDisable(int32_t kind);
int32_t cuptiActivityFlushAll(uint32_t flags);
int32_t cuptiActivityGetNextRecord(uint8_t *buffer, uint64_t valid, void **record);
int32_t cuptiFinalize(void);

static const uint64_t SECOND = UINT64_C(1000000000);
static void *subscriber;
static unsigned launches, contexts, kernels, copies, others, outside;
static int outstanding; /* buffers that CUPTI has */

/* CUPTI's own clock: by default CLOCK_REALTIME, except for what that was corrected by since CUPTI was set up. */
static uint64_t timestamps(void) {
    uint64_t time = 0;
    if (cuptiGetTimestamp(&time)) abort();
    return time;
}

static uint64_t realtime(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* As a framework that counts the processor's ticks: another rate, another zero. */
static uint64_t ticks(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (((uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec) * 3) + (UINT64_C(1) << 61);
}

static uint64_t (*clock_of_records)(void) = timestamps;
static uint64_t began;

static void on_callback(void *user, int32_t domain, uint32_t id, const void *data) {
    if (user != (void *)&launches || !data) abort();
    if (domain == PASTA_CUPTI_DRIVER && id == PASTA_CUPTI_cuLaunchKernel) launches++;
    else if (domain == PASTA_CUPTI_RESOURCE && id == PASTA_CUPTI_CONTEXT_CREATED) contexts++;
    else others++;
}

static void request(uint8_t **buffer, uint64_t *bytes, uint64_t *max_records) {
    *bytes = 4096;
    __atomic_fetch_add(&outstanding, 1, __ATOMIC_RELAXED);
    *buffer = aligned_alloc(8, *bytes);
    *max_records = 0;
}

static void complete(uint64_t context, uint32_t stream, uint8_t *buffer, uint64_t bytes, uint64_t valid) {
    (void)context, (void)stream;
    if (valid > bytes) abort();
    void *record = NULL;
    while (valid && cuptiActivityGetNextRecord(buffer, valid, &record) == 0) {
        const pasta_cupti_kernel *k = record;
        if (k->kind == PASTA_CUPTI_KERNEL) kernels++;
        else if (k->kind == PASTA_CUPTI_COPY) copies++;
        else others++;
        outside += k->start < began || k->start > clock_of_records();
        if (clock_of_records == timestamps) outside += k->start > realtime() + SECOND || k->start + SECOND < realtime();
    }
    free(buffer);
    __atomic_fetch_sub(&outstanding, 1, __ATOMIC_RELAXED);
}

static void tell(const char *what, int32_t result) {
    if (result) printf("guest %s: %d\n", what, result);
}

__attribute__((visibility("default"))) void guest_does(const char *what) {
    if (!strcmp(what, "subscribe")) {
        tell(what, cuptiSubscribe(&subscriber, on_callback, &launches));
        tell(what, cuptiEnableCallback(1, subscriber, PASTA_CUPTI_DRIVER, PASTA_CUPTI_cuLaunchKernel));
        tell(what, cuptiEnableCallback(1, subscriber, PASTA_CUPTI_RESOURCE, PASTA_CUPTI_CONTEXT_CREATED));
    } else if (!strcmp(what, "domain")) {
        tell(what, cuptiEnableDomain(1, subscriber, PASTA_CUPTI_RESOURCE));
    } else if (!strcmp(what, "undomain")) {
        tell(what, cuptiEnableDomain(0, subscriber, PASTA_CUPTI_RESOURCE));
    } else if (!strcmp(what, "unsubscribe")) {
        tell(what, cuptiUnsubscribe(subscriber));
    } else if (!strcmp(what, "clock")) {
        tell(what, cuptiActivityRegisterTimestampCallback(ticks));
        clock_of_records = ticks;
    } else if (!strcmp(what, "start")) {
        began = clock_of_records();
        tell(what, cuptiActivityRegisterCallbacks(request, complete));
        tell(what, cuptiActivityEnable(PASTA_CUPTI_KERNEL));
        tell(what, cuptiActivityEnable(PASTA_CUPTI_COPY));
    } else if (!strcmp(what, "stop")) { /* as PyTorch does: disables, then flushes if CUPTI has a buffer of it */
        tell(what, cuptiActivityDisable(PASTA_CUPTI_KERNEL));
        tell(what, cuptiActivityDisable(PASTA_CUPTI_COPY));
        if (__atomic_load_n(&outstanding, __ATOMIC_RELAXED)) tell(what, cuptiActivityFlushAll(0));
    } else if (!strcmp(what, "more")) {
        tell(what, cuptiActivityEnable(PASTA_CUPTI_SYNCHRONIZATION));
    } else if (!strcmp(what, "less")) {
        tell(what, cuptiActivityDisable(PASTA_CUPTI_SYNCHRONIZATION));
    } else if (!strcmp(what, "finalize")) {
        tell(what, cuptiFinalize());
    } else if (!strcmp(what, "report")) {
        printf("launches %u, contexts %u, kernels %u, copies %u, others %u, outside %u\n", launches, contexts, kernels, copies,
               others, outside);
    }
}
