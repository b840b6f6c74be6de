/* Between the files that record calls of HIP: a call's row, and a call that is open. */
#ifndef PASTA_AMD_HIP_H
#define PASTA_AMD_HIP_H

#include "hip_calls.h"
#include "source.h"

enum { /* flags of a row */
    PASTA_HIP_ASYNC = 1,
    PASTA_HIP_PER_THREAD = 2,     /* the default stream is the thread's */
    PASTA_HIP_DEFAULT_STREAM = 4, /* it works in that */
    PASTA_HIP_ALWAYS = 8,         /* `exit` whether it succeeded or not */
    PASTA_HIP_DESCRIBED = 16,     /* the stream is in a hip_launch_description that an argument points to */
    PASTA_HIP_CONFIGURED = 32,    /* the stream is from the thread's last hipConfigureCall */
};

typedef struct pasta_hip_frame pasta_hip_frame;

/* Arguments are given as their offsets plus one; 0: there is none. */
typedef struct pasta_hip_call {
    pasta_amd_operation operation;
    void (*enter)(pasta_hip_frame *f, const void *arguments);
    void (*exit)(pasta_hip_frame *f, const void *arguments); /* after success */
    uint8_t category; /* pasta_amd_category */
    uint8_t stream;  /* the argument */
    uint8_t flags;   /* PASTA_HIP_* */
    uint8_t memory;  /* PASTA_MEMORY_* of the allocation */
    uint8_t kind;    /* of a copy: the argument, or */
    int8_t fixed;    /* … its constant kind */
    uint8_t element; /* of a set: bytes */
    uint8_t options; /* the argument with flags for the record */
} pasta_hip_call;

struct pasta_hip_frame {
    const pasta_hip_call *call;
    uint64_t correlation, stream, began;
    uint64_t record;    /* correlation id of its records */
    uint64_t parts;     /* ticket of the last engine copy in it; 0: none */
    bool recorded;      /* a copy or set */
    pasta_amd_place on; /* where it allocates */
    bool captured;      /* nothing runs until a graph is launched */
    uint32_t launch_count; /* of a call that launches on several devices; else 0 */
    const hip_device_launch *launches;
    bool has_freed;     /* `freed` */
    pasta_amd_live freed;
};

/* ---- calls.c: open calls, streams ---- */

pasta_hip_frame *pasta_hip_open(const pasta_hip_call *call, uint64_t correlation, const void *arguments);
pasta_hip_frame *pasta_hip_find(const pasta_hip_call *call, uint64_t correlation); /* NULL: not open on this thread */
void pasta_hip_unrecorded(const pasta_hip_frame *f); /* a copy or set: its later parts have no record */
void pasta_hip_close(pasta_hip_frame *f); /* and the calls in it, whose ends were lost */
/* The device of work in a stream, or of a call without one. */
pasta_amd_place pasta_hip_place_of(uint64_t stream);
int16_t pasta_hip_device(void); /* the thread's current one */
void pasta_hip_set_device(int16_t device);
void pasta_hip_configure(uint64_t stream); /* hipConfigureCall */
void pasta_hip_add_stream(uint64_t stream, uint64_t id); /* on the thread's device */
uint64_t pasta_hip_remove_stream(uint64_t stream); /* its id; absent: all ones */

/* ---- hip_memory.c, hip_copies.c: handlers of a call's begin or its successful end ---- */

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
