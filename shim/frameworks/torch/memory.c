/* Allocators of PyTorch.  Each reports to a function of libc10, for PyTorch's own profiler; the function
 * of the same name here is interposed, records, and calls the original.  CPU memory is recorded where it
 * is allocated: reports of it cost a lock and a table, and once they stop PyTorch warns about each block
 * whose allocation was not reported. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "torch.h"

enum { DEVICE_CPU = 0 };

typedef struct {
    int8_t type, index;
} c10_device; /* c10::Device, as it is passed in a register */

typedef void report_function(void *, int64_t, size_t, size_t, c10_device);
typedef void out_of_memory_function(int64_t, size_t, size_t, c10_device);
typedef void *alloc_function(size_t);
typedef void free_function(void *);

#define REPORT "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"
#define OUT_OF_MEMORY "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE"
#define ALLOC "_ZN3c109alloc_cpuEm"
#define FREE "_ZN3c108free_cpuEPv"

PASTA_EXPORT report_function pasta_torch_report __asm__(REPORT);
PASTA_EXPORT out_of_memory_function pasta_torch_out_of_memory __asm__(OUT_OF_MEMORY);
PASTA_EXPORT alloc_function pasta_torch_alloc_cpu __asm__(ALLOC);
PASTA_EXPORT free_function pasta_torch_free_cpu __asm__(FREE);

static bool followed;

bool pasta_torch_memory_follow(bool follow) { return __atomic_exchange_n(&followed, follow, __ATOMIC_RELAXED); }

static int16_t number_of(c10_device device) { return device.type == DEVICE_CPU ? PASTA_NO_DEVICE : device.index; }

static void publish(pasta_event_kind kind, uint64_t address, uint64_t bytes, c10_device device) {
    pasta_tensor_memory *e = pasta_begin(kind, PASTA_SLOTS(pasta_tensor_memory), number_of(device), PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!e) return;
    e->address = address;
    e->bytes = bytes;
    e->stack = pasta_framework_stack();
    e->memory = device.type == DEVICE_CPU ? PASTA_MEMORY_host : PASTA_MEMORY_device;
    pasta_publish(e);
}

static void publish_state(uint64_t allocated, uint64_t reserved, c10_device device) {
    pasta_allocator_state *e = PASTA_BEGIN(allocator_state, number_of(device), PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!e) return;
    e->allocated = allocated;
    e->reserved = reserved;
    pasta_publish(e);
}

void pasta_torch_report(void *pointer, int64_t bytes, size_t allocated, size_t reserved, c10_device device) {
    if (followed && device.type != DEVICE_CPU && bytes && pasta_ring_mine()) {
        pasta_event_kind kind = bytes > 0 ? PASTA_EVENT_tensor_alloc : PASTA_EVENT_tensor_free;
        if (bytes > 0) pasta_tensor_allocated((uint64_t)pointer, (uint64_t)bytes);
        publish_state(allocated, reserved, device);
        publish(kind, (uint64_t)pointer, (uint64_t)(bytes > 0 ? bytes : -bytes), device);
    }
    PASTA_NEXT(report_function, REPORT)
    if (call) call(pointer, bytes, allocated, reserved, device);
}

/* Bytes that this thread asks alloc_cpu for.  A failure is a C++ exception, which passes this function without
 * returning to it: then the number is still there when the thread next allocates, or frees while it unwinds. */
static __thread size_t asked;

static void publish_failure(int64_t bytes, c10_device device) {
    char text[64];
    int length = snprintf(text, sizeof text, "out of memory: %" PRId64 " bytes", bytes);
    pasta_range *e = PASTA_BEGIN_AS(mark, range, number_of(device), PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!e) return;
    e->name = pasta_intern(text, (size_t)length);
    e->domain = pasta_intern_z("torch");
    e->origin = PASTA_ORIGIN_framework;
    pasta_publish(e);
}

void pasta_torch_out_of_memory(int64_t bytes, size_t allocated, size_t reserved, c10_device device) {
    if (device.type == DEVICE_CPU) asked = 0; /* torch's profiler is active and reports memory */
    if (followed && pasta_ring_mine()) publish_failure(bytes, device);
    PASTA_NEXT(out_of_memory_function, OUT_OF_MEMORY)
    if (call) call(bytes, allocated, reserved, device);
}

static bool follows_cpu(void) { return followed && pasta_profiling_is_on() && pasta_ring_mine(); }

static void publish_cpu_failure(void) {
    size_t bytes = asked;
    asked = 0;
    if (follows_cpu() && bytes <= INT64_MAX) publish_failure((int64_t)bytes, (c10_device){DEVICE_CPU, 0});
}

void *pasta_torch_alloc_cpu(size_t bytes) {
    PASTA_NEXT(alloc_function, ALLOC)
    if (asked) publish_cpu_failure();
    asked = bytes;
    void *pointer = call ? call(bytes) : aligned_alloc(64, (bytes + 63) / 64 * 64);
    asked = 0;
    if (PASTA_LIKELY(pointer != NULL) && follows_cpu())
        publish(PASTA_EVENT_tensor_alloc, (uint64_t)pointer, bytes, (c10_device){0, 0});
    return pointer;
}

void pasta_torch_free_cpu(void *pointer) {
    PASTA_NEXT(free_function, FREE)
    if (asked) publish_cpu_failure();
    /* first: another thread may get the memory at once */
    if (pointer && follows_cpu())
        publish(PASTA_EVENT_tensor_free, (uint64_t)pointer, PASTA_ABSENT_U64, (c10_device){0, 0});
    if (call)
        call(pointer);
    else
        free(pointer);
}
