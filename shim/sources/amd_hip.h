/* Between the files that record calls of HIP: a call's row, and a call that is open. */
#ifndef PASTA_AMD_HIP_H
#define PASTA_AMD_HIP_H

#include "amd_hip_calls.h"
#include "amd_source.h"

enum { /* flags of a row */
    PASTA_HIP_ASYNC = 1,
    PASTA_HIP_PER_THREAD = 2,     /* the default stream is the thread's */
    PASTA_HIP_DEFAULT_STREAM = 4, /* it works in that */
    PASTA_HIP_ALWAYS = 8,         /* `exit` whether it succeeded or not */
    PASTA_HIP_DESCRIBED = 16,     /* the stream is in a hip_launch_description that an argument points to */
    PASTA_HIP_CONFIGURED = 32,    /* the stream is that of the thread's last hipConfigureCall */
};

typedef struct pasta_hip_frame pasta_hip_frame;

/* Where arguments are: offsets, plus one; 0: there is none. */
typedef struct pasta_hip_call {
    pasta_amd_operation is;
    void (*enter)(pasta_hip_frame *f, const void *arguments);
    void (*exit)(pasta_hip_frame *f, const void *arguments); /* after success */
    uint8_t what;    /* pasta_amd_what */
    uint8_t stream;  /* where the argument is */
    uint8_t flags;   /* PASTA_HIP_* */
    uint8_t memory;  /* PASTA_MEMORY_*, of what it allocates */
    uint8_t kind;    /* of a copy: where that argument is, or */
    int8_t fixed;    /* … what it always is */
    uint8_t element; /* of a set: bytes */
    uint8_t options; /* where flags are that the record has */
} pasta_hip_call;

struct pasta_hip_frame {
    const pasta_hip_call *is;
    uint64_t correlation, stream, began;
    uint64_t record;    /* correlation id of its records */
    pasta_amd_place on; /* where it allocates */
    bool captured;      /* nothing happens until a graph is launched */
    uint32_t launch_count; /* of a call that launches on several devices; else 0 */
    const hip_device_launch *launches;
    bool has_freed;     /* what follows */
    pasta_amd_live freed;
};

/* ---- amd_hip.c ---- */

/* The device that work in a stream, or a call without one, is of. */
pasta_amd_place pasta_hip_place_of(uint64_t stream);
int16_t pasta_hip_device(void); /* the thread's current one */

/* ---- amd_hip_memory.c, amd_hip_copies.c: what a call does, at its begin or its successful end ---- */

#define PASTA_HIP_HANDLERS(X)                                                                               \
    X(alloc) X(alloc_pitch) X(alloc_3d) X(array) X(array_3d) X(array_described) X(array_described_3d)       \
    X(host_register) X(map) X(mapped_buffer) X(free) X(unmap) X(reset) X(reserve) X(unreserve) X(copy_peer) \
    X(copy_3d) X(parameters_2d) X(parameters_3d) X(set) X(set_2d) X(set_3d) X(copy) X(copy_sided)           \
    X(copy_to_symbol) X(copy_from_symbol) X(from_array) X(to_array) X(from_array_1d) X(to_array_1d)         \
    X(array_to_array_1d) X(copy_2d) X(from_array_2d) X(to_array_2d) X(array_to_array_2d)
#define PASTA_HIP_HANDLER(name) void pasta_hip_on_##name(pasta_hip_frame *f, const void *arguments);
PASTA_HIP_HANDLERS(PASTA_HIP_HANDLER)
#undef PASTA_HIP_HANDLER

#endif
