/* Allocations and frees of HIP calls. */
#include <string.h>

#include "hip.h"

static void allocated(pasta_hip_frame *f, uint64_t address, uint64_t bytes, uint32_t element, uint32_t flags) {
    const pasta_hip_call *c = f->call;
    if (!address || f->captured) return;
    pasta_amd_live memory = {.address = address, .bytes = bytes, .memory = c->memory, .element = element,
                             .device = f->on.device};
    bool async = c->flags & PASTA_HIP_ASYNC;
    pasta_amd_allocated(&memory, async ? f->stream : PASTA_NO_STREAM, async ? PASTA_FLAG_ASYNC : 0, flags);
}

static uint32_t options_of(const pasta_hip_call *c, const void *arguments) {
    uint32_t flags = PASTA_ABSENT_U32;
    if (c->options) memcpy(&flags, (const char *)arguments + c->options - 1, sizeof flags);
    return flags;
}

void pasta_hip_on_alloc(pasta_hip_frame *f, const void *arguments) {
    const hip_alloc *a = arguments;
    if (a->address) allocated(f, *a->address, a->bytes, 0, options_of(f->call, arguments));
}

void pasta_hip_on_alloc_pitch(pasta_hip_frame *f, const void *arguments) {
    const hip_alloc_pitch *a = arguments;
    if (a->address && a->pitch) allocated(f, *a->address, *a->pitch * a->height, 0, PASTA_ABSENT_U32);
}

void pasta_hip_on_alloc_3d(pasta_hip_frame *f, const void *arguments) {
    const hip_alloc_3d *a = arguments;
    if (a->pitched) allocated(f, a->pitched[0], a->pitched[1] * a->height * a->depth, 0, PASTA_ABSENT_U32);
}

static uint64_t at_least_1(uint64_t extent) { return extent ? extent : 1; }

static void array_allocated(pasta_hip_frame *f, uint64_t handle, const uint64_t extent[3], uint32_t element,
                            uint32_t flags) {
    uint64_t elements = extent[0] * at_least_1(extent[1]) * at_least_1(extent[2]);
    allocated(f, handle, elements * element, element, flags);
}

static uint32_t channel_bytes(const int32_t *bits) { /* of x, y, z, w */
    return bits ? (uint32_t)(bits[0] + bits[1] + bits[2] + bits[3]) / 8 : 0;
}

static uint32_t format_bytes(int32_t format) {
    switch (format) {
    case 0x01: case 0x08: return 1;
    case 0x02: case 0x09: case 0x10: return 2;
    default: return 4;
    }
}

void pasta_hip_on_array(pasta_hip_frame *f, const void *arguments) {
    const hip_array *a = arguments;
    if (!a->array) return;
    array_allocated(f, *a->array, (uint64_t[]){a->width, a->height, 0}, channel_bytes(a->channels), a->flags);
}

void pasta_hip_on_array_3d(pasta_hip_frame *f, const void *arguments) {
    const hip_array_3d *a = arguments;
    if (!a->array) return;
    array_allocated(f, *a->array, (uint64_t[]){a->width, a->height, a->depth}, channel_bytes(a->channels), a->flags);
}

void pasta_hip_on_array_described(pasta_hip_frame *f, const void *arguments) {
    const hip_array_described *a = arguments;
    const hip_array_description *d = a->described;
    if (!a->array || !d) return;
    array_allocated(f, *a->array, (uint64_t[]){d->width, d->height, 0},
                    format_bytes(d->format) * (uint32_t)d->channels, PASTA_ABSENT_U32);
}

void pasta_hip_on_array_described_3d(pasta_hip_frame *f, const void *arguments) {
    const hip_array_described *a = arguments;
    const hip_array_description_3d *d = a->described;
    if (!a->array || !d) return;
    array_allocated(f, *a->array, (uint64_t[]){d->width, d->height, d->depth},
                    format_bytes(d->format) * (uint32_t)d->channels, d->flags);
}

void pasta_hip_on_host_register(pasta_hip_frame *f, const void *arguments) {
    const hip_host_register *a = arguments;
    allocated(f, a->address, a->bytes, 0, a->flags);
}

void pasta_hip_on_map(pasta_hip_frame *f, const void *arguments) {
    const hip_span *a = arguments;
    allocated(f, a->address, a->bytes, 0, PASTA_ABSENT_U32);
}

void pasta_hip_on_mapped_buffer(pasta_hip_frame *f, const void *arguments) {
    const hip_mapped_buffer *a = arguments;
    if (a->address && a->described) allocated(f, *a->address, a->described[1], 0, PASTA_ABSENT_U32);
}

/* Freed memory may be allocated again before the call returns: record it at the begin. */
void pasta_hip_on_free(pasta_hip_frame *f, const void *arguments) {
    const hip_free *a = arguments;
    bool async = f->call->flags & PASTA_HIP_ASYNC;
    if (!a->address || f->captured) return;
    uint64_t stream = async ? f->stream : PASTA_NO_STREAM;
    f->has_freed = pasta_amd_freed(a->address, stream, async ? PASTA_FLAG_ASYNC : 0, &f->freed);
}

void pasta_hip_on_unmap(pasta_hip_frame *f, const void *arguments) {
    const hip_span *a = arguments;
    (void)f;
    pasta_amd_freed_within(a->address, a->bytes);
}

void pasta_hip_on_reset(pasta_hip_frame *f, const void *arguments) {
    (void)f, (void)arguments;
    pasta_amd_freed_on(pasta_hip_device());
}

/* A reserved range has no memory and is not kept: its release reports its size. */
static void reserved(pasta_hip_frame *f, bool made, uint64_t address, uint64_t bytes) {
    pasta_amd_place at = f->on;
    pasta_memory *e = made ? PASTA_BEGIN_AS(memory_alloc, memory, at.device, at.context, PASTA_NO_STREAM)
                           : PASTA_BEGIN_AS(memory_free, memory, at.device, at.context, PASTA_NO_STREAM);
    if (!e) return;
    e->address = address;
    e->bytes = bytes;
    e->memory = PASTA_MEMORY_virtual;
    pasta_publish(e);
}

void pasta_hip_on_reserve(pasta_hip_frame *f, const void *arguments) {
    const hip_reserve *a = arguments;
    if (a->address && *a->address) reserved(f, true, *a->address, a->bytes);
}

void pasta_hip_on_unreserve(pasta_hip_frame *f, const void *arguments) {
    const hip_span *a = arguments;
    reserved(f, false, a->address, a->bytes);
}
