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

#define LOAD(place) __atomic_load_n(&(place), __ATOMIC_RELAXED)
#define STORE(place, value) __atomic_store_n(&(place), value, __ATOMIC_RELAXED)

static bool followed PASTA_WARM;
static uint32_t follows PASTA_WARM; /* times that it began */

bool pasta_torch_memory_follow(bool follow) {
    __atomic_fetch_add(&follows, follow, __ATOMIC_RELAXED);
    return __atomic_exchange_n(&followed, follow, __ATOMIC_RELAXED);
}

static int16_t number_of(c10_device device) { return device.type == DEVICE_CPU ? PASTA_NO_DEVICE : device.index; }

static pasta_tensor_memory tensor_at(uint64_t address, uint64_t bytes, c10_device device) {
    return (pasta_tensor_memory){.address = address,
                                 .bytes = bytes,
                                 .stack = pasta_framework_stack(),
                                 .memory = device.type == DEVICE_CPU ? PASTA_MEMORY_host : PASTA_MEMORY_device};
}

static void publish_cpu(pasta_event_kind kind, const void *pointer, uint64_t bytes) {
    pasta_tensor_memory t = tensor_at((uint64_t)pointer, bytes, (c10_device){DEVICE_CPU, 0});
    (void)pasta_tensor_publish(kind, PASTA_NO_DEVICE, &t);
}

/* ---- totals of an allocator ----
 *
 * Usually they follow from those before and the bytes of the tensor (pasta/processors/allocator_states.py): a record of them
 * for each tensor would be the most frequent one of a training step. It is written where they do not follow, and at times, since
 * records may be lost. */
enum { DEVICES = 128, EVERY = 256 };

/* What readers know. An allocator reports with its lock held; if one does not, too many records are written. */
static struct {
    uint64_t allocated, reserved;
    uint64_t reader; /* who knows: the process; blocks, and times of following, until then */
    uint32_t left;   /* tensors until they are written again; 0: they are not known */
} told[DEVICES];

static bool publish_state(uint64_t allocated, uint64_t reserved, c10_device device) {
    pasta_allocator_state *e = PASTA_BEGIN(allocator_state, number_of(device), PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!e) return false;
    e->allocated = allocated;
    e->reserved = reserved;
    pasta_publish(e);
    return true;
}

static PASTA_APART void publish_tensor(const pasta_tensor_memory *t, int64_t bytes, uint64_t allocated, uint64_t reserved, c10_device device) {
    uint8_t d = (uint8_t)device.index % DEVICES;
    uint64_t reader = (uint64_t)pasta_generation() << 32 | (LOAD(pasta_blocks) + LOAD(follows));
    uint32_t left = LOAD(told[d].reader) == reader ? LOAD(told[d].left) : 0;
    bool follow = left && LOAD(told[d].reserved) == reserved && LOAD(told[d].allocated) + (uint64_t)bytes == allocated;
    bool known = follow || publish_state(allocated, reserved, device);
    known &= pasta_tensor_publish(bytes > 0 ? PASTA_EVENT_tensor_alloc : PASTA_EVENT_tensor_free, number_of(device), t);
    STORE(told[d].reader, reader);
    STORE(told[d].allocated, allocated);
    STORE(told[d].reserved, reserved);
    STORE(told[d].left, !known ? 0 : follow ? left - 1 : EVERY);
}

static void record(uint64_t address, int64_t bytes, uint64_t allocated, uint64_t reserved, c10_device device) {
    pasta_tensor_memory t = tensor_at(address, (uint64_t)(bytes > 0 ? bytes : -bytes), device);
    if (bytes > 0 ? pasta_tensor_put_off(number_of(device), &t) : pasta_tensor_forget(address)) return;
    if (bytes > 0) pasta_tensor_allocated(address, t.bytes);
    publish_tensor(&t, bytes, allocated, reserved, device);
}

PASTA_FLAT void pasta_torch_report(void *pointer, int64_t bytes, size_t allocated, size_t reserved, c10_device device) {
    if (followed && device.type != DEVICE_CPU && bytes && pasta_ring_mine())
        record((uint64_t)pointer, bytes, allocated, reserved, device);
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
    if (PASTA_LIKELY(pointer != NULL) && follows_cpu()) publish_cpu(PASTA_EVENT_tensor_alloc, pointer, bytes);
    return pointer;
}

void pasta_torch_free_cpu(void *pointer) {
    PASTA_NEXT(free_function, FREE)
    if (asked) publish_cpu_failure();
    /* first: another thread may get the memory at once */
    if (pointer && follows_cpu()) publish_cpu(PASTA_EVENT_tensor_free, pointer, PASTA_ABSENT_U64);
    if (call)
        call(pointer);
    else
        free(pointer);
}
