/* Kernels whose accesses follow from arithmetic: a reference for tests of profilers.
 *
 * W is the number of warps of the launch, B of blocks; "sectors" are the 32-byte sectors that the
 * lanes of one warp touch, "ways" the words of one shared memory bank that they touch at once.
 * demos/golden.h launches each and has its numbers. */
#define _GNU_SOURCE
#include "internal.h"

typedef int64_t lanes_i64[RA_LANES];
typedef uint64_t lanes_u64[RA_LANES];
typedef float lanes_f32[RA_LANES];
typedef uint32_t lanes_u32[RA_LANES];

static uint64_t at_parameter(const ra_warp *w, int number, int64_t index, uint32_t bytes) {
    return ra_parameter_u64(w, number) + (uint64_t)index * bytes;
}

/* ---- global memory ---- */

/* void strided(const float *in, float *out, int stride, int n): out[i] = in[stride * i].
 * Per full warp: a load of min(4 stride, 32) sectors, a store of 4. */
static bool strided(ra_warp *w) {
    lanes_i64 i;
    lanes_u64 from, to;
    lanes_f32 x = {0};
    ra_global_index(w, 0, i);
    uint32_t mask = ra_mask_below(i, ra_parameter_i32(w, 3));
    RA_EACH_LANE(lane) {
        from[lane] = at_parameter(w, 0, i[lane] * ra_parameter_i32(w, 2), sizeof(float));
        to[lane] = at_parameter(w, 1, i[lane], sizeof(float));
    }
    ra_load_f32(w, 0, mask, from, x);
    ra_store_f32(w, 1, mask, to, x);
    return false;
}

/* void divergent(const float *a, const float *b, float *out): lanes 0-15 load a[i], lanes 16-31 b[i];
 * lane l then adds a[i] to it l mod 4 times.
 * Per warp: loads of 16, 16, 24, 16, 8 lanes (2, 2, 4, 4, 4 sectors), a store of 32 (4 sectors). */
static bool divergent(ra_warp *w) {
    lanes_i64 i;
    lanes_u64 a, b, to;
    lanes_f32 x = {0}, y = {0};
    ra_global_index(w, 0, i);
    ra_addresses(ra_parameter_u64(w, 0), i, sizeof(float), a);
    ra_addresses(ra_parameter_u64(w, 1), i, sizeof(float), b);
    ra_addresses(ra_parameter_u64(w, 2), i, sizeof(float), to);
    ra_load_f32(w, 0, 0x0000ffff, a, x);
    ra_load_f32(w, 1, 0xffff0000, b, x);
    for (int trip = 0; trip < 3; trip++) {
        uint32_t mask = 0;
        RA_EACH_LANE(lane) mask |= (uint32_t)(lane % 4 > trip) << lane;
        ra_load_f32(w, 2, mask, a, y);
        RA_EACH_LANE(lane) if (RA_ACTIVE(mask, lane)) x[lane] += y[lane];
    }
    ra_store_f32(w, 3, w->live, to, x);
    return false;
}

/* void atomics(unsigned *x, int distinct): adds 1 to x[i], or to x[0].
 * Per warp: one atomic of 4 sectors, or of 1. */
static bool atomics(ra_warp *w) {
    lanes_i64 i;
    lanes_u64 at;
    lanes_u32 one;
    ra_global_index(w, 0, i);
    RA_EACH_LANE(lane) {
        one[lane] = 1;
        at[lane] = at_parameter(w, 0, ra_parameter_i32(w, 1) ? i[lane] : 0, sizeof(uint32_t));
    }
    ra_atomic_add_u32(w, 0, w->live, at, one);
    return false;
}

/* void prefetch(const float *in, float *out): prefetches in[i + 32] and copies in[i].
 * Per warp: a prefetch (counted as a load), a load, a store, of 4 sectors each. */
static bool prefetch(ra_warp *w) {
    lanes_i64 i;
    lanes_u64 from, to, ahead;
    lanes_f32 x = {0};
    ra_global_index(w, 0, i);
    ra_addresses(ra_parameter_u64(w, 0), i, sizeof(float), from);
    ra_addresses(ra_parameter_u64(w, 1), i, sizeof(float), to);
    RA_EACH_LANE(lane) ahead[lane] = from[lane] + RA_LANES * sizeof(float);
    ra_prefetch_global(w, 0, w->live, ahead, sizeof(float));
    ra_load_f32(w, 1, w->live, from, x);
    ra_store_f32(w, 2, w->live, to, x);
    return false;
}

/* void repeat(const float4 *in, float *out, int trips): adds in[i] to itself `trips` times.
 * Per warp: `trips` loads of 512 bytes (16 sectors), a store of 4 sectors. */
static bool repeat(ra_warp *w) {
    lanes_i64 i;
    lanes_u64 from, to;
    lanes_f32 sum = {0};
    ra_f32x4 x[RA_LANES];
    ra_global_index(w, 0, i);
    ra_addresses(ra_parameter_u64(w, 0), i, sizeof *x, from);
    ra_addresses(ra_parameter_u64(w, 1), i, sizeof(float), to);
    for (int32_t trip = 0; trip < ra_parameter_i32(w, 2); trip++) {
        ra_load_f32x4(w, 0, w->live, from, x);
        RA_EACH_LANE(lane) if (RA_ACTIVE(w->live, lane)) sum[lane] += x[lane].x[0];
    }
    ra_store_f32(w, 1, w->live, to, sum);
    return false;
}

/* ---- shared and local memory ---- */

/* void shared_words(float *out, int stride): lane l stores to and loads from word stride * l of
 * 32 * stride words of dynamic shared memory; blocks of one warp.
 * Per warp: 2 shared accesses of gcd(stride, 32) ways, a global store of 4 sectors. */
static bool shared_words(ra_warp *w) {
    lanes_i64 i;
    lanes_u64 at, to;
    lanes_f32 x;
    ra_global_index(w, 0, i);
    ra_addresses(ra_parameter_u64(w, 0), i, sizeof(float), to);
    RA_EACH_LANE(lane) {
        at[lane] = (uint64_t)lane * (uint32_t)ra_parameter_i32(w, 1) * sizeof(float);
        x[lane] = (float)i[lane];
    }
    ra_shared_store_f32(w, 0, w->live, at, x);
    ra_shared_load_f32(w, 1, w->live, at, x);
    ra_store_f32(w, 2, w->live, to, x);
    return false;
}

/* void shared_pairs(unsigned long long *out, int stride): the same with 8 bytes, stride in these.
 * Per warp: 2 shared accesses, each in 2 groups of 16 lanes of min(stride, 16) ways for a power of
 * two, a global store of 8 sectors. */
static bool shared_pairs(ra_warp *w) {
    lanes_i64 i;
    lanes_u64 at, to, x;
    ra_global_index(w, 0, i);
    ra_addresses(ra_parameter_u64(w, 0), i, sizeof(uint64_t), to);
    RA_EACH_LANE(lane) {
        at[lane] = (uint64_t)lane * (uint32_t)ra_parameter_i32(w, 1) * sizeof(uint64_t);
        x[lane] = (uint64_t)i[lane];
    }
    ra_shared_store_u64(w, 0, w->live, at, x);
    ra_shared_load_u64(w, 1, w->live, at, x);
    ra_store_u64(w, 2, w->live, to, x);
    return false;
}

/* void shared_quads(float4 *out, int stride): the same with 16 bytes.
 * Per warp: 2 shared accesses, each in 4 groups of 8 lanes of min(stride, 8) ways for a power of
 * two, a global store of 16 sectors. */
static bool shared_quads(ra_warp *w) {
    lanes_i64 i;
    lanes_u64 at, to;
    ra_f32x4 x[RA_LANES];
    ra_global_index(w, 0, i);
    ra_addresses(ra_parameter_u64(w, 0), i, sizeof *x, to);
    RA_EACH_LANE(lane) {
        at[lane] = (uint64_t)lane * (uint32_t)ra_parameter_i32(w, 1) * sizeof *x;
        for (int k = 0; k < 4; k++) x[lane].x[k] = (float)(4 * i[lane] + k);
    }
    ra_shared_store_f32x4(w, 0, w->live, at, x);
    ra_shared_load_f32x4(w, 1, w->live, at, x);
    ra_store_f32x4(w, 2, w->live, to, x);
    return false;
}

/* void local_spill(const float *in, float *out): four values wait in local memory.
 * Per warp: 4 local stores, 4 local loads; a global load and a store of 4 sectors. */
static bool local_spill(ra_warp *w) {
    lanes_i64 i;
    lanes_u64 from, to, at;
    lanes_f32 x = {0}, y = {0}, sum = {0};
    ra_global_index(w, 0, i);
    ra_addresses(ra_parameter_u64(w, 0), i, sizeof(float), from);
    ra_addresses(ra_parameter_u64(w, 1), i, sizeof(float), to);
    ra_load_f32(w, 0, w->live, from, x);
    for (int k = 0; k < 4; k++) {
        RA_EACH_LANE(lane) at[lane] = (uint64_t)k * sizeof(float);
        ra_local_store_f32(w, 1, w->live, at, x);
    }
    for (int k = 0; k < 4; k++) {
        RA_EACH_LANE(lane) at[lane] = (uint64_t)k * sizeof(float);
        ra_local_load_f32(w, 2, w->live, at, y);
        RA_EACH_LANE(lane) sum[lane] += y[lane];
    }
    ra_store_f32(w, 3, w->live, to, sum);
    return false;
}

/* ---- copies between global and shared memory ---- */

/* void async_copy(const float4 *in, float4 *out): through shared memory, 16 bytes per thread.
 * Per warp: an async copy of 16 sectors, a barrier, a shared load (4 groups of 1 way), a global
 * store of 16 sectors. */
static bool async_copy(ra_warp *w) {
    lanes_i64 i;
    lanes_u64 from, to, at;
    ra_f32x4 x[RA_LANES];
    ra_global_index(w, 0, i);
    ra_addresses(ra_parameter_u64(w, 0), i, sizeof *x, from);
    ra_addresses(ra_parameter_u64(w, 1), i, sizeof *x, to);
    RA_EACH_LANE(lane) at[lane] = w->thread[0][lane] * sizeof *x;
    if (w->phase == 0) {
        ra_async_copy(w, 0, w->live, at, from, sizeof *x);
        return ra_barrier(w, 1);
    }
    ra_shared_load_f32x4(w, 2, w->live, at, x);
    ra_store_f32x4(w, 3, w->live, to, x);
    return false;
}

/* void bulk_copy(const float *in, float *out): one thread moves a block's floats in and out, all add 1
 * to them between; 4 bytes of dynamic shared memory per thread.
 * Per block of T threads: a bulk load and a bulk store of 4 T bytes (T / 8 sectors); per warp: 2
 * barriers, a shared load and a store of 1 way. */
static bool bulk_copy(ra_warp *w) {
    lanes_u64 at;
    lanes_f32 x = {0};
    uint32_t bytes = w->block_size[0] * (uint32_t)sizeof(float);
    uint64_t offset = w->block_index * bytes;
    if (w->phase == 0) {
        if (w->warp == 0) ra_bulk_load(w, 0, w->live, 0, ra_parameter_u64(w, 0) + offset, bytes);
        return ra_barrier(w, 1);
    }
    if (w->phase == 1) {
        RA_EACH_LANE(lane) at[lane] = w->thread[0][lane] * sizeof(float);
        ra_shared_load_f32(w, 2, w->live, at, x);
        RA_EACH_LANE(lane) x[lane] += 1;
        ra_shared_store_f32(w, 3, w->live, at, x);
        return ra_barrier(w, 4);
    }
    if (w->warp == 0) ra_bulk_store(w, 5, w->live, ra_parameter_u64(w, 1) + offset, 0, bytes);
    return false;
}

/* void bulk_reduce(unsigned *sum): each block adds its threads' indices to sum[thread]; 4 bytes of
 * dynamic shared memory per thread.
 * Per block of T threads: a bulk reduction of 4 T bytes (T / 8 sectors); per warp: a shared store of
 * 1 way, a barrier. */
static bool bulk_reduce(ra_warp *w) {
    lanes_u64 at;
    if (w->phase == 0) {
        RA_EACH_LANE(lane) at[lane] = w->thread[0][lane] * sizeof(uint32_t);
        ra_shared_store_u32(w, 0, w->live, at, w->thread[0]);
        return ra_barrier(w, 1);
    }
    if (w->warp == 0)
        ra_bulk_add_u32(w, 2, w->live, ra_parameter_u64(w, 0), 0, w->block_size[0] * (uint32_t)sizeof(uint32_t));
    return false;
}

/* void tensor_copy(const ra_tensor *in, const ra_tensor *out, int x, int y, int width, int height): block
 * (i, j) copies the box of width * height elements at (x + width i, y + height j), for whose bytes it
 * has dynamic shared memory; blocks of one warp.
 * Per block: a tensor load and a store of what of its box is inside. */
static bool tensor_copy(ra_warp *w) {
    int32_t at[RA_TENSOR_RANK] = {ra_parameter_i32(w, 2) + (int32_t)w->block[0] * ra_parameter_i32(w, 4),
                                  ra_parameter_i32(w, 3) + (int32_t)w->block[1] * ra_parameter_i32(w, 5)};
    ra_tensor_load(w, 0, w->live, 0, ra_parameter_u64(w, 0), at);
    ra_tensor_store(w, 1, w->live, ra_parameter_u64(w, 1), at, 0);
    return false;
}

/* void matrix_copy(const unsigned *in, unsigned *out): 512 bytes per block go through shared memory as
 * four 8 x 8 matrices of 16 bits; blocks of one warp.
 * Per warp: 4 global loads, 4 stores (4 sectors each), 4 shared stores of 1 way, 4 shared loads of
 * 1 way, a matrix load and a matrix store of 32 rows (4 groups of 8 lanes, 1 way each). */
static bool matrix_copy(ra_warp *w) {
    lanes_i64 i;
    lanes_u64 global, shared, rows;
    uint32_t x[4][RA_LANES] = {{0}};
    uint64_t block = w->block_index * 512;
    RA_EACH_LANE(lane) i[lane] = lane;
    for (uint32_t k = 0; k < 4; k++) {
        ra_addresses(ra_parameter_u64(w, 0) + block + 128 * k, i, sizeof(uint32_t), global);
        ra_addresses(128 * k, i, sizeof(uint32_t), shared);
        ra_load_u32(w, 0, w->live, global, x[0]);
        ra_shared_store_u32(w, 1, w->live, shared, x[0]);
    }
    RA_EACH_LANE(lane) rows[lane] = 16 * (uint64_t)lane;
    ra_matrix_load(w, 2, 4, rows, x);
    RA_EACH_LANE(lane) rows[lane] += 512;
    ra_matrix_store(w, 3, 4, rows, (const uint32_t(*)[RA_LANES])x);
    for (uint32_t k = 0; k < 4; k++) {
        ra_addresses(ra_parameter_u64(w, 1) + block + 128 * k, i, sizeof(uint32_t), global);
        ra_addresses(512 + 128 * k, i, sizeof(uint32_t), shared);
        ra_shared_load_u32(w, 4, w->live, shared, x[0]);
        ra_store_u32(w, 5, w->live, global, x[0]);
    }
    return false;
}

/* ---- control ---- */

/* void early_exit(const float *in, float *out): odd warps end at once, lanes 16-31 of the others next.
 * 3 W / 2 block exits, of 32 lanes or of 16; W / 2 loads and stores of 16 lanes (2 sectors). */
static bool early_exit(ra_warp *w) {
    if (w->warp % 2) return false;
    lanes_i64 i;
    lanes_u64 from, to;
    lanes_f32 x = {0};
    ra_global_index(w, 0, i);
    ra_addresses(ra_parameter_u64(w, 0), i, sizeof(float), from);
    ra_addresses(ra_parameter_u64(w, 1), i, sizeof(float), to);
    ra_exit(w, 0, 0xffff0000);
    ra_load_f32(w, 1, UINT32_MAX, from, x);
    ra_store_f32(w, 2, UINT32_MAX, to, x);
    return false;
}

/* void barriers(int *out, int count): `count` barriers, then a store.
 * Per warp: `count` barriers, a store. */
static bool barriers(ra_warp *w) {
    if (w->phase < (uint32_t)ra_parameter_i32(w, 1)) return ra_barrier(w, 0);
    lanes_i64 i;
    lanes_u64 to;
    int32_t x[RA_LANES];
    ra_global_index(w, 0, i);
    ra_addresses(ra_parameter_u64(w, 0), i, sizeof(int32_t), to);
    RA_EACH_LANE(lane) x[lane] = (int32_t)w->phase;
    ra_store_i32(w, 1, w->live, to, x);
    return false;
}

enum { BUMP = 16 }; /* number of the first instruction */

/* The device function: *x += 1 */
static void bump(ra_warp *w, const lanes_u64 at) {
    lanes_u32 x = {0};
    ra_load_u32(w, BUMP, w->live, at, x);
    RA_EACH_LANE(lane) x[lane]++;
    ra_store_u32(w, BUMP + 1, w->live, at, x);
}

/* void calls(unsigned *x): calls a device function that adds 1 to x[i] twice.
 * Per warp: 2 calls, 2 loads, 2 stores (4 sectors each). */
static bool calls(ra_warp *w) {
    lanes_i64 i;
    lanes_u64 at;
    ra_global_index(w, 0, i);
    ra_addresses(ra_parameter_u64(w, 0), i, sizeof(uint32_t), at);
    for (uint32_t call = 0; call < 2; call++) {
        ra_call(w, call, w->live, BUMP);
        bump(w, at);
    }
    return false;
}

/* void cluster_exchange(unsigned *out): blocks of 64 threads in clusters of two.  A thread reads its
 * neighbour's index from the other block's shared memory and stores it, plus 1, back there
 * asynchronously; each block copies its 64 words to the other in bulk.
 * Per warp: a shared store and 2 loads of 1 way, a remote load, an async store, 2 barriers, a global
 * store of 4 sectors; per block: a bulk copy of 256 bytes. */
static bool cluster_exchange(ra_warp *w) {
    enum { WORDS = 64, BYTES = WORDS * 4, RETURNED = BYTES, COPIED = 2 * BYTES };
    lanes_i64 i;
    lanes_u64 own, other, to;
    lanes_u32 x = {0}, y = {0};
    uint32_t neighbour = w->cluster_rank ^ 1;
    ra_global_index(w, 0, i);
    RA_EACH_LANE(lane) own[lane] = w->thread[0][lane] * sizeof(uint32_t);
    if (w->phase == 0) {
        RA_EACH_LANE(lane) x[lane] = (uint32_t)i[lane];
        ra_shared_store_u32(w, 0, w->live, own, x);
        return ra_barrier(w, 1);
    }
    if (w->phase == 1) {
        RA_EACH_LANE(lane) other[lane] = ra_cluster_address(neighbour, own[lane]);
        ra_remote_load_u32(w, 2, w->live, other, x);
        RA_EACH_LANE(lane) {
            x[lane]++;
            other[lane] += RETURNED;
        }
        ra_async_store_u32(w, 3, w->live, other, x);
        if (w->warp == 0) ra_bulk_shared(w, 4, w->live, ra_cluster_address(neighbour, COPIED), 0, BYTES);
        return ra_barrier(w, 5);
    }
    RA_EACH_LANE(lane) own[lane] += RETURNED;
    ra_shared_load_u32(w, 6, w->live, own, x);
    RA_EACH_LANE(lane) own[lane] += COPIED - RETURNED;
    ra_shared_load_u32(w, 7, w->live, own, y);
    RA_EACH_LANE(lane) x[lane] += y[lane];
    ra_addresses(ra_parameter_u64(w, 0), i, sizeof(uint32_t), to);
    ra_store_u32(w, 8, w->live, to, x);
    return false;
}

#define KERNEL(name, function, ...) {.symbol = name, .run = function, .registers = 16, __VA_ARGS__}
#define PARAMETERS(count, ...) .parameters = count, .parameter_bytes = {__VA_ARGS__}

const ra_kernel ra_golden_kernels[] = {
    KERNEL("_Z7stridedPKfPfii", strided, PARAMETERS(4, 8, 8, 4, 4)),
    KERNEL("_Z9divergentPKfS0_Pf", divergent, PARAMETERS(3, 8, 8, 8)),
    KERNEL("_Z7atomicsPji", atomics, PARAMETERS(2, 8, 4)),
    KERNEL("_Z8prefetchPKfPf", prefetch, PARAMETERS(2, 8, 8)),
    KERNEL("_Z6repeatPK6float4Pfi", repeat, PARAMETERS(3, 8, 8, 4)),
    KERNEL("_Z12shared_wordsPfi", shared_words, PARAMETERS(2, 8, 4)),
    KERNEL("_Z12shared_pairsPyi", shared_pairs, PARAMETERS(2, 8, 4)),
    KERNEL("_Z12shared_quadsP6float4i", shared_quads, PARAMETERS(2, 8, 4)),
    KERNEL("_Z11local_spillPKfPf", local_spill, .local = 4 * sizeof(float), PARAMETERS(2, 8, 8)),
    KERNEL("_Z10async_copyPK6float4PS_", async_copy, PARAMETERS(2, 8, 8)),
    KERNEL("_Z9bulk_copyPKfPf", bulk_copy, PARAMETERS(2, 8, 8)),
    KERNEL("_Z11bulk_reducePj", bulk_reduce, PARAMETERS(1, 8)),
    KERNEL("_Z11tensor_copyPK9ra_tensorS1_iiii", tensor_copy, PARAMETERS(6, 8, 8, 4, 4, 4, 4)),
    KERNEL("_Z11matrix_copyPKjPj", matrix_copy, .shared_static = 1024, PARAMETERS(2, 8, 8)),
    KERNEL("_Z10early_exitPKfPf", early_exit, PARAMETERS(2, 8, 8)),
    KERNEL("_Z8barriersPii", barriers, PARAMETERS(2, 8, 4)),
    KERNEL("_Z5callsPj", calls, PARAMETERS(1, 8)),
    KERNEL("_Z16cluster_exchangePj", cluster_exchange, .shared_static = 768, .cluster = 2, PARAMETERS(1, 8)),
};
const size_t ra_golden_count = sizeof ra_golden_kernels / sizeof *ra_golden_kernels;
