/* How a kernel of the reference accelerator is written.
 *
 * A kernel is a C function called for one warp of 32 lanes at a time.  Values of lanes are arrays
 * of 32; control flow is by masks.  All memory of the program is accessed through the functions
 * below: each call site is one instruction of the kernel, numbered by the constant `at`, and each
 * execution passes the access hook where one is set.
 *
 * A barrier is a return: `return ra_barrier(w, at);` ends the warp's phase, and once all live
 * warps of the block did so, the kernel is called again with w->phase one higher.  What a warp
 * keeps from phase to phase lives in w->state (kernel.state bytes, zero at first).  `return false`
 * ends the warp, ra_exit some of its lanes.  The blocks of a cluster run in step: a barrier of one
 * is a barrier of all.
 */
#ifndef REFACC_KERNEL_H
#define REFACC_KERNEL_H

#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "refacc.h"
#include "refacc_tools.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RA_LANES 32
#define RA_MAX_PARAMETERS 16
#define RA_MAX_CLUSTER 8
#define RA_INSTRUCTION_BYTES 16
#define RA_REGION_BYTES (UINT64_C(1) << 36)

typedef struct ra_warp {
    uint32_t live;  /* lanes that exist, have not ended and not faulted */
    uint32_t phase; /* barriers passed */
    uint32_t warp;  /* in its block */
    uint32_t block[3];
    const uint32_t *grid_size;
    const uint32_t *block_size;
    const uint32_t *thread[3]; /* per dimension: index of each lane's thread in the block */
    const uint64_t *parameters;
    void *state;
    unsigned char *shared;
    unsigned char *local;
    uint32_t shared_bytes;
    uint32_t local_bytes;
    uint64_t window; /* where the accelerator's memory begins, … */
    uint64_t window_bytes;
    uint64_t region_bytes; /* … and what is used at the start of each RA_REGION_BYTES of it */
    ra_access_hook hook; /* NULL: not hooked */
    void *hook_userdata;
    const ra_launch_data *launch;
    int *fault; /* of the launch */
    uint64_t block_index;    /* linear, in the grid */
    uint32_t hook_kinds;     /* bits 1 << ra_kind */
    uint32_t cluster_rank;   /* of the block in its cluster */
    uint32_t cluster_blocks; /* blocks of the cluster */
    unsigned char *cluster;  /* shared memory of the cluster's first block */
    size_t cluster_step;     /* bytes between the shared memories of consecutive blocks */
    uint64_t *clock;         /* of the block's multiprocessor, ns; NULL: none */
    uint64_t *touched;       /* bits of pages of managed memory: those read, then those written; NULL: there is none */
    uint64_t managed_words;  /* of 64 bits, of each */
} ra_warp;

typedef bool (*ra_kernel_function)(ra_warp *w);

typedef struct ra_kernel {
    const char *symbol; /* mangled, as a compiler would write it */
    ra_kernel_function run;
    uint32_t state;         /* bytes per warp, a multiple of 8 */
    uint32_t shared_static; /* bytes per block */
    uint32_t local;         /* bytes per thread */
    uint32_t registers;     /* as a compiler would report them */
    uint32_t parameters;
    uint8_t parameter_bytes[RA_MAX_PARAMETERS]; /* 1 to 8 each */
    uint32_t cluster; /* blocks along x in a cluster, up to RA_MAX_CLUSTER; 0 or 1: no cluster */
} ra_kernel;

/* Makes kernels known to later ra_module_load calls. They must stay valid; names must be new. */
RA_API int ra_kernel_register(const ra_kernel *kernels, size_t count);

/* For the functions below only. */
RA_API void ra_warp_report(const ra_warp *w, uint32_t at, ra_kind kind, uint32_t flags, uint32_t bytes,
                           uint32_t mask, const uint64_t *address, const void *value);
RA_API void ra_warp_fault(ra_warp *w, uint32_t mask, const uint64_t *address, uint32_t bytes);
/* Notes the pages of managed memory that an access touches; w->touched is set. */
RA_API void ra_warp_touch(const ra_warp *w, uint32_t mask, const uint64_t address[RA_LANES], uint32_t bytes,
                          uint32_t flags);

#define RA_EACH_LANE(lane) for (int lane = 0; lane < RA_LANES; lane++)
#define RA_ACTIVE(mask, lane) ((mask) >> (lane) & 1u)

static inline uint64_t ra_parameter_u64(const ra_warp *w, int number) { return w->parameters[number]; }
static inline int32_t ra_parameter_i32(const ra_warp *w, int number) {
    int32_t value;
    memcpy(&value, &w->parameters[number], sizeof value);
    return value;
}
static inline float ra_parameter_f32(const ra_warp *w, int number) {
    float value;
    memcpy(&value, &w->parameters[number], sizeof value);
    return value;
}

/* Index of each lane's thread in the grid along a dimension. */
static inline void ra_global_index(const ra_warp *w, int dimension, int64_t index[RA_LANES]) {
    int64_t first = (int64_t)w->block[dimension] * w->block_size[dimension];
    RA_EACH_LANE(lane) index[lane] = first + w->thread[dimension][lane];
}

static inline uint32_t ra_mask_below(const int64_t index[RA_LANES], int64_t limit) {
    uint32_t mask = 0;
    RA_EACH_LANE(lane) mask |= (uint32_t)(index[lane] < limit) << lane;
    return mask;
}

static inline void ra_addresses(uint64_t base, const int64_t index[RA_LANES], uint32_t bytes,
                                uint64_t address[RA_LANES]) {
    RA_EACH_LANE(lane) address[lane] = base + (uint64_t)index[lane] * bytes;
}

/* Whether all lanes of mask may access `bytes` bytes: a power of two. */
static inline bool ra_global_valid(const ra_warp *w, uint32_t mask, const uint64_t address[RA_LANES],
                                   uint32_t bytes) {
    uint64_t last = w->region_bytes - bytes;
    uint32_t bad = 0;
    RA_EACH_LANE(lane) {
        uint64_t offset = address[lane] - w->window;
        bad |= (uint32_t)((offset >= w->window_bytes) | ((offset & (RA_REGION_BYTES - 1)) > last) |
                          ((address[lane] & (bytes - 1)) != 0))
               << lane;
    }
    return !(bad & mask);
}

static inline bool ra_window_valid(uint32_t window, uint32_t mask, const uint64_t address[RA_LANES], uint32_t bytes) {
    uint32_t bad = 0;
    RA_EACH_LANE(lane) bad |= (uint32_t)((address[lane] + bytes > window) | ((address[lane] & (bytes - 1)) != 0))
                              << lane;
    return !(bad & mask);
}

/* The lanes that continue with the access: none after a fault.  kind: GLOBAL, SHARED or LOCAL. */
static inline uint32_t ra_access_begin(ra_warp *w, uint32_t at, ra_kind kind, uint32_t flags, uint32_t bytes,
                                       uint32_t mask, const uint64_t address[RA_LANES], const void *value) {
    mask &= w->live;
    if (!mask) return 0;
    if (__builtin_expect(w->hook != NULL, 0)) ra_warp_report(w, at, kind, flags, bytes, mask, address, value);
    bool valid = kind == RA_KIND_GLOBAL   ? ra_global_valid(w, mask, address, bytes)
                 : kind == RA_KIND_SHARED ? ra_window_valid(w->shared_bytes, mask, address, bytes)
                                          : ra_window_valid(w->local_bytes, mask, address, bytes);
    if (__builtin_expect(!valid, 0)) {
        ra_warp_fault(w, mask, address, bytes);
        return 0;
    }
    if (kind == RA_KIND_GLOBAL && __builtin_expect(w->touched != NULL, 0))
        ra_warp_touch(w, mask, address, bytes, flags);
    return mask;
}

#define RA_PLACE_global(w, a, lane) ((void *)(uintptr_t)(a))
#define RA_PLACE_shared(w, a, lane) ((void *)((w)->shared + (a)))
#define RA_PLACE_local(w, a, lane) ((void *)((w)->local + (size_t)(lane) * (w)->local_bytes + (a)))

/* ra_load_f32, ra_shared_store_u32, …: lanes outside mask, or faulted, keep their value. */
#define RA_DEFINE_ACCESS(prefix, place, kind, suffix, type)                                                       \
    static inline void prefix##load_##suffix(ra_warp *w, uint32_t at, uint32_t mask,                              \
                                             const uint64_t address[RA_LANES], type value[RA_LANES]) {            \
        mask = ra_access_begin(w, at, kind, RA_ACCESS_READ, sizeof(type), mask, address, NULL);                   \
        if (mask == UINT32_MAX) {                                                                                 \
            RA_EACH_LANE(lane) value[lane] = *(const type *)RA_PLACE_##place(w, address[lane], lane);             \
        } else {                                                                                                  \
            RA_EACH_LANE(lane) if (RA_ACTIVE(mask, lane)) value[lane] =                                           \
                *(const type *)RA_PLACE_##place(w, address[lane], lane);                                          \
        }                                                                                                         \
    }                                                                                                             \
    static inline void prefix##store_##suffix(ra_warp *w, uint32_t at, uint32_t mask,                             \
                                              const uint64_t address[RA_LANES], const type value[RA_LANES]) {     \
        mask = ra_access_begin(w, at, kind, RA_ACCESS_WRITE, sizeof(type), mask, address, value);                 \
        if (mask == UINT32_MAX) {                                                                                 \
            RA_EACH_LANE(lane) *(type *)RA_PLACE_##place(w, address[lane], lane) = value[lane];                   \
        } else {                                                                                                  \
            RA_EACH_LANE(lane) if (RA_ACTIVE(mask, lane)) *(type *)RA_PLACE_##place(w, address[lane], lane) =     \
                value[lane];                                                                                      \
        }                                                                                                         \
    }

typedef struct ra_f32x4 {
    alignas(16) float x[4];
} ra_f32x4;

#define RA_DEFINE_TYPE(suffix, type)                                  \
    RA_DEFINE_ACCESS(ra_, global, RA_KIND_GLOBAL, suffix, type)       \
    RA_DEFINE_ACCESS(ra_shared_, shared, RA_KIND_SHARED, suffix, type) \
    RA_DEFINE_ACCESS(ra_local_, local, RA_KIND_LOCAL, suffix, type)

RA_DEFINE_TYPE(f32, float)
RA_DEFINE_TYPE(i32, int32_t)
RA_DEFINE_TYPE(u32, uint32_t)
RA_DEFINE_TYPE(f64, double)
RA_DEFINE_TYPE(u64, uint64_t)
RA_DEFINE_TYPE(f32x4, ra_f32x4)

/* Adds each lane's value, lane 0 first within the warp; integers only, so that the order of the
 * blocks cannot change a result. */
#define RA_DEFINE_ATOMIC(suffix, type)                                                                            \
    static inline void ra_atomic_add_##suffix(ra_warp *w, uint32_t at, uint32_t mask,                             \
                                              const uint64_t address[RA_LANES], const type value[RA_LANES]) {     \
        mask = ra_access_begin(w, at, RA_KIND_GLOBAL, RA_ACCESS_READ | RA_ACCESS_WRITE | RA_ACCESS_ATOMIC,       \
                               sizeof(type), mask, address, NULL);                                                \
        RA_EACH_LANE(lane) if (RA_ACTIVE(mask, lane))                                                             \
            __atomic_fetch_add((type *)(uintptr_t)address[lane], value[lane], __ATOMIC_RELAXED);                  \
    }                                                                                                             \
    static inline void ra_shared_atomic_add_##suffix(ra_warp *w, uint32_t at, uint32_t mask,                      \
                                                     const uint64_t address[RA_LANES],                            \
                                                     const type value[RA_LANES]) {                                \
        mask = ra_access_begin(w, at, RA_KIND_SHARED, RA_ACCESS_READ | RA_ACCESS_WRITE | RA_ACCESS_ATOMIC,       \
                               sizeof(type), mask, address, NULL);                                                \
        RA_EACH_LANE(lane) if (RA_ACTIVE(mask, lane)) *(type *)(void *)(w->shared + address[lane]) += value[lane]; \
    }

RA_DEFINE_ATOMIC(u32, uint32_t)
RA_DEFINE_ATOMIC(u64, uint64_t)

/* See the head of this file: to be returned. */
static inline bool ra_barrier(ra_warp *w, uint32_t at) {
    if (__builtin_expect(w->hook != NULL, 0) && w->live)
        ra_warp_report(w, at, RA_KIND_BARRIER, 0, 0, w->live, NULL, NULL);
    return true;
}

/* ---- other instructions (transfer.c).  What is asynchronous on hardware is complete at once. ---- */

/* The lanes end; the kernel continues with the others. */
RA_API void ra_exit(ra_warp *w, uint32_t at, uint32_t mask);
/* To be written before the call: a device function of the kernel, whose instructions are numbered
 * from `target` on. */
RA_API void ra_call(ra_warp *w, uint32_t at, uint32_t mask, uint32_t target);
/* Accesses nothing, so that no address is wrong. */
RA_API void ra_prefetch_global(ra_warp *w, uint32_t at, uint32_t mask, const uint64_t address[RA_LANES],
                               uint32_t bytes);

/* bytes: 4, 8 or 16 per lane. */
RA_API void ra_async_copy(ra_warp *w, uint32_t at, uint32_t mask, const uint64_t to_shared[RA_LANES],
                          const uint64_t from[RA_LANES], uint32_t bytes);

/* The lowest lane of the mask transfers: addresses and bytes are multiples of 16. */
RA_API void ra_bulk_load(ra_warp *w, uint32_t at, uint32_t mask, uint64_t to_shared, uint64_t from, uint32_t bytes);
RA_API void ra_bulk_store(ra_warp *w, uint32_t at, uint32_t mask, uint64_t to, uint64_t from_shared, uint32_t bytes);
/* Adds unsigned words, atomically each. */
RA_API void ra_bulk_add_u32(ra_warp *w, uint32_t at, uint32_t mask, uint64_t to, uint64_t from_shared,
                            uint32_t bytes);
/* From the block's shared memory to an ra_cluster_address, which is the one reported. */
RA_API void ra_bulk_shared(ra_warp *w, uint32_t at, uint32_t mask, uint64_t to_cluster, uint64_t from_shared,
                           uint32_t bytes);
/* The box that begins at `coordinate` (elements, innermost first), packed in shared memory.  What
 * is outside the tensor is not accessed: a load gives zeros there.  tensor: address of an ra_tensor
 * in the accelerator's memory; reading that is no access. */
RA_API void ra_tensor_load(ra_warp *w, uint32_t at, uint32_t mask, uint64_t to_shared, uint64_t tensor,
                           const int32_t coordinate[]);
RA_API void ra_tensor_store(ra_warp *w, uint32_t at, uint32_t mask, uint64_t tensor, const int32_t coordinate[],
                            uint64_t from_shared);

/* `matrices` (1, 2 or 4) matrices of 8 rows of 16 bytes, row r of matrix m at the address that lane
 * 8 m + r gives; lane l has the 4 bytes at 4 (l mod 4) of row l / 4 of each: value[m][l]. */
RA_API void ra_matrix_load(ra_warp *w, uint32_t at, uint32_t matrices, const uint64_t address[RA_LANES],
                           uint32_t value[][RA_LANES]);
RA_API void ra_matrix_store(ra_warp *w, uint32_t at, uint32_t matrices, const uint64_t address[RA_LANES],
                            const uint32_t value[][RA_LANES]);

static inline uint64_t ra_cluster_address(uint32_t rank, uint64_t offset) {
    return (uint64_t)rank << RA_CLUSTER_SHIFT | offset;
}
RA_API void ra_remote_load_u32(ra_warp *w, uint32_t at, uint32_t mask, const uint64_t address[RA_LANES],
                               uint32_t value[RA_LANES]);
RA_API void ra_remote_store_u32(ra_warp *w, uint32_t at, uint32_t mask, const uint64_t address[RA_LANES],
                                const uint32_t value[RA_LANES]);
RA_API void ra_async_store_u32(ra_warp *w, uint32_t at, uint32_t mask, const uint64_t address[RA_LANES],
                               const uint32_t value[RA_LANES]);

#ifdef __cplusplus
}
#endif
#endif
