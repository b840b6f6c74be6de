/* A client of CUPTI that enables what PASTA's source enables: for its cost, and to record what CUPTI delivers. */
#ifndef CUPTI_CLIENT_H
#define CUPTI_CLIENT_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../../shim/backends/nvidia/cupti_abi.h"

enum { BUFFER = 512 << 10 };

#define POINTER(name, symbol, arguments) __attribute__((unused)) static int32_t(*name) arguments;
PASTA_CUPTI_FUNCTIONS(POINTER)
#undef POINTER

static inline void failed(const char *what, int32_t result) {
    fprintf(stderr, "CUPTI client: %s: %d\n", what, result);
    exit(3);
}
#define CHECKED(function, ...)                           \
    do {                                                 \
        int32_t result = function(__VA_ARGS__);          \
        if (result) failed(#function, result);           \
    } while (0)

static inline void request_buffer(uint8_t **buffer, uint64_t *bytes, uint64_t *max_records) {
    void *memory = NULL;
    *bytes = posix_memalign(&memory, 8, BUFFER) == 0 ? BUFFER : 0;
    *buffer = memory;
    *max_records = 0;
}

/* `path`: of the library, NULL: the loader searches. */
static inline void load_cupti(const char *path) {
    void *library = dlopen(path ? path : "libcupti.so.13", RTLD_NOW);
    if (!library) failed(dlerror(), -1);
#define RESOLVE(name, symbol, arguments)      \
    *(void **)&name = dlsym(library, symbol); \
    if (!name) failed(symbol, -1);
    PASTA_CUPTI_FUNCTIONS(RESOLVE)
#undef RESOLVE
}

static inline void enable_all(pasta_cupti_callback *on_callback, pasta_cupti_complete *take_buffer, uint64_t (*now)(void)) {
    static const int32_t kinds[] = {PASTA_CUPTI_KERNEL, PASTA_CUPTI_COPY, PASTA_CUPTI_PEER_COPY, PASTA_CUPTI_SET,
                                    PASTA_CUPTI_DEVICE, PASTA_CUPTI_OVERHEAD};
    static const uint32_t resources[] = {PASTA_CUPTI_CONTEXT_CREATED, PASTA_CUPTI_CONTEXT_DESTROYING,
                                         PASTA_CUPTI_STREAM_CREATED, PASTA_CUPTI_STREAM_DESTROYING,
                                         PASTA_CUPTI_MODULE_LOADED, PASTA_CUPTI_MODULE_UNLOADING,
                                         PASTA_CUPTI_NODE_CREATED, PASTA_CUPTI_NODE_CLONED};
#define CALL(number, name) number,
    static const uint32_t calls[] = {PASTA_CUPTI_CALLS(CALL)};
#undef CALL
    void *subscriber;
    CHECKED(subscribe, &subscriber, on_callback, NULL);
    /* an older library does not know later calls */
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) enable_callback(1, subscriber, PASTA_CUPTI_DRIVER, calls[i]);
    for (size_t i = 0; i < sizeof resources / sizeof *resources; i++)
        CHECKED(enable_callback, 1, subscriber, PASTA_CUPTI_RESOURCE, resources[i]);
    CHECKED(register_timestamp, now);
    CHECKED(register_callbacks, request_buffer, take_buffer);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) CHECKED(enable, kinds[i]);
}

__attribute__((visibility("default"))) int InitializeInjection(void);

#endif
