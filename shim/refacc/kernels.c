/* The built-in kernels.  Each memory instruction has its number, counted from 0 in its kernel. */
#define _GNU_SOURCE
#include <math.h>

#include "internal.h"

typedef int64_t lanes_i64[RA_LANES];
typedef uint64_t lanes_u64[RA_LANES];
typedef float lanes_f32[RA_LANES];

/* ---- element by element ---- */

/* void vadd(const float *a, const float *b, float *c, int n) */
static bool vadd(ra_warp *w) {
    lanes_i64 i;
    lanes_u64 at;
    lanes_f32 a = {0}, b = {0};
    ra_global_index(w, 0, i);
    uint32_t mask = ra_mask_below(i, ra_parameter_i32(w, 3));
    ra_addresses(ra_parameter_u64(w, 0), i, sizeof(float), at);
    ra_load_f32(w, 0, mask, at, a);
    ra_addresses(ra_parameter_u64(w, 1), i, sizeof(float), at);
    ra_load_f32(w, 1, mask, at, b);
    RA_EACH_LANE(lane) a[lane] += b[lane];
    ra_addresses(ra_parameter_u64(w, 2), i, sizeof(float), at);
    ra_store_f32(w, 2, mask, at, a);
    return false;
}

/* template<class T> void fill(T *x, T value, int n), T = float */
static bool fill(ra_warp *w) {
    lanes_i64 i;
    lanes_u64 at;
    lanes_f32 value;
    ra_global_index(w, 0, i);
    RA_EACH_LANE(lane) value[lane] = ra_parameter_f32(w, 1);
    ra_addresses(ra_parameter_u64(w, 0), i, sizeof(float), at);
    ra_store_f32(w, 0, ra_mask_below(i, ra_parameter_i32(w, 2)), at, value);
    return false;
}

/* void scale(float *x, float factor, float offset, int n): x = factor * x + offset */
static bool scale(ra_warp *w) {
    lanes_i64 i;
    lanes_u64 at;
    lanes_f32 x = {0};
    float factor = ra_parameter_f32(w, 1), offset = ra_parameter_f32(w, 2);
    ra_global_index(w, 0, i);
    uint32_t mask = ra_mask_below(i, ra_parameter_i32(w, 3));
    ra_addresses(ra_parameter_u64(w, 0), i, sizeof(float), at);
    ra_load_f32(w, 0, mask, at, x);
    RA_EACH_LANE(lane) x[lane] = factor * x[lane] + offset;
    ra_store_f32(w, 1, mask, at, x);
    return false;
}

/* void gather(const float *source, const int *index, float *target, int n) */
static bool gather(ra_warp *w) {
    lanes_i64 i;
    lanes_u64 at;
    lanes_f32 x = {0};
    int32_t index[RA_LANES] = {0};
    ra_global_index(w, 0, i);
    uint32_t mask = ra_mask_below(i, ra_parameter_i32(w, 3));
    ra_addresses(ra_parameter_u64(w, 1), i, sizeof(int32_t), at);
    ra_load_i32(w, 0, mask, at, index);
    RA_EACH_LANE(lane) at[lane] = ra_parameter_u64(w, 0) + (uint64_t)index[lane] * sizeof(float);
    ra_load_f32(w, 1, mask, at, x);
    ra_addresses(ra_parameter_u64(w, 2), i, sizeof(float), at);
    ra_store_f32(w, 2, mask, at, x);
    return false;
}

/* ---- shared memory ---- */

#define TILE 16

/* One tile of a matrix into shared memory at `base`, zero outside the matrix; block TILE x TILE. */
static void load_tile(ra_warp *w, uint32_t at, uint64_t matrix, int64_t row0, int64_t column0, int64_t rows,
                      int64_t columns, uint64_t base) {
    lanes_u64 from, to;
    lanes_f32 value = {0};
    uint32_t mask = 0;
    RA_EACH_LANE(lane) {
        int64_t row = row0 + w->thread[1][lane], column = column0 + w->thread[0][lane];
        mask |= (uint32_t)(row < rows && column < columns) << lane;
        from[lane] = matrix + (uint64_t)(row * columns + column) * sizeof(float);
        to[lane] = base + (w->thread[1][lane] * TILE + w->thread[0][lane]) * sizeof(float);
    }
    ra_load_f32(w, at, mask, from, value);
    ra_shared_store_f32(w, at + 1, w->live, to, value);
}

/* template<int T> void gemm_tiled(const float *a, const float *b, float *c, int m, int n, int k), T = 16
 * c[m][n] = a[m][k] * b[k][n]; two phases per tile of k, then the store. */
static bool gemm_tiled(ra_warp *w) {
    float *sum = w->state;
    int32_t m = ra_parameter_i32(w, 3), n = ra_parameter_i32(w, 4), k = ra_parameter_i32(w, 5);
    int64_t row0 = (int64_t)w->block[1] * TILE, column0 = (int64_t)w->block[0] * TILE;
    uint32_t tile = w->phase / 2, tiles = ((uint32_t)k + TILE - 1) / TILE;
    if (tile < tiles && w->phase % 2 == 0) {
        load_tile(w, 0, ra_parameter_u64(w, 0), row0, (int64_t)tile * TILE, m, k, 0);
        load_tile(w, 2, ra_parameter_u64(w, 1), (int64_t)tile * TILE, column0, k, n, TILE * TILE * sizeof(float));
        return ra_barrier(w, 4);
    }
    if (tile < tiles) {
        for (uint32_t i = 0; i < TILE; i++) {
            lanes_u64 at;
            lanes_f32 a = {0}, b = {0};
            RA_EACH_LANE(lane) at[lane] = (w->thread[1][lane] * TILE + i) * sizeof(float);
            ra_shared_load_f32(w, 5, w->live, at, a);
            RA_EACH_LANE(lane) at[lane] = (TILE * TILE + i * TILE + w->thread[0][lane]) * sizeof(float);
            ra_shared_load_f32(w, 6, w->live, at, b);
            RA_EACH_LANE(lane) sum[lane] += a[lane] * b[lane];
        }
        return ra_barrier(w, 7);
    }
    lanes_u64 at;
    uint32_t mask = 0;
    RA_EACH_LANE(lane) {
        int64_t row = row0 + w->thread[1][lane], column = column0 + w->thread[0][lane];
        mask |= (uint32_t)(row < m && column < n) << lane;
        at[lane] = ra_parameter_u64(w, 2) + (uint64_t)(row * n + column) * sizeof(float);
    }
    ra_store_f32(w, 8, mask, at, sum);
    return false;
}

/* void transpose_naive(const float *in, float *out, int rows, int columns) */
static bool transpose_naive(ra_warp *w) {
    lanes_i64 column, row;
    lanes_u64 from, to;
    lanes_f32 x = {0};
    int32_t rows = ra_parameter_i32(w, 2), columns = ra_parameter_i32(w, 3);
    ra_global_index(w, 0, column);
    ra_global_index(w, 1, row);
    uint32_t mask = ra_mask_below(column, columns) & ra_mask_below(row, rows);
    RA_EACH_LANE(lane) {
        from[lane] = ra_parameter_u64(w, 0) + (uint64_t)(row[lane] * columns + column[lane]) * sizeof(float);
        to[lane] = ra_parameter_u64(w, 1) + (uint64_t)(column[lane] * rows + row[lane]) * sizeof(float);
    }
    ra_load_f32(w, 0, mask, from, x);
    ra_store_f32(w, 1, mask, to, x);
    return false;
}

/* void transpose_tiled(const float *in, float *out, int rows, int columns): block 32 x any divisor of
 * 32; the tile's rows are padded by one word, so that its columns lie in different banks. */
static bool transpose_tiled(ra_warp *w) {
    enum { SIDE = 32, PITCH = 33 };
    int32_t rows = ra_parameter_i32(w, 2), columns = ra_parameter_i32(w, 3);
    int64_t row0 = (int64_t)w->block[1] * SIDE, column0 = (int64_t)w->block[0] * SIDE;
    bool loading = w->phase == 0;
    for (uint32_t step = 0; step < SIDE; step += w->block_size[1]) {
        lanes_u64 global, tile;
        lanes_f32 x = {0};
        uint32_t mask = 0;
        RA_EACH_LANE(lane) {
            int64_t i = w->thread[1][lane] + step, j = w->thread[0][lane];
            int64_t row = (loading ? row0 : column0) + i, column = (loading ? column0 : row0) + j;
            int64_t height = loading ? rows : columns, width = loading ? columns : rows;
            mask |= (uint32_t)(row < height && column < width) << lane;
            global[lane] = ra_parameter_u64(w, loading ? 0 : 1) + (uint64_t)(row * width + column) * sizeof(float);
            tile[lane] = (uint64_t)(loading ? i * PITCH + j : j * PITCH + i) * sizeof(float);
        }
        if (loading) {
            ra_load_f32(w, 0, mask, global, x);
            ra_shared_store_f32(w, 1, mask, tile, x);
        } else {
            ra_shared_load_f32(w, 3, mask, tile, x);
            ra_store_f32(w, 4, mask, global, x);
        }
    }
    return loading ? ra_barrier(w, 2) : false;
}

/* void reduce_sum(const unsigned *x, unsigned long long *sum, unsigned n): a tree in shared memory,
 * then one atomic per block; the block's size a power of two, 8 bytes of dynamic shared memory per
 * thread. */
static bool reduce_sum(ra_warp *w) {
    lanes_i64 i;
    lanes_u64 at, a = {0}, b = {0};
    const uint32_t *thread = w->thread[0];
    if (w->phase == 0) {
        uint32_t x[RA_LANES] = {0};
        ra_global_index(w, 0, i);
        ra_addresses(ra_parameter_u64(w, 0), i, sizeof(uint32_t), at);
        ra_load_u32(w, 0, ra_mask_below(i, (uint32_t)ra_parameter_i32(w, 2)), at, x);
        RA_EACH_LANE(lane) {
            a[lane] = x[lane];
            at[lane] = thread[lane] * sizeof(uint64_t);
        }
        ra_shared_store_u64(w, 1, w->live, at, a);
        return ra_barrier(w, 2);
    }
    uint32_t half = w->block_size[0] >> w->phase;
    uint32_t mask = 0;
    RA_EACH_LANE(lane) {
        mask |= (uint32_t)(thread[lane] < (half ? half : 1)) << lane;
        at[lane] = thread[lane] * sizeof(uint64_t);
    }
    ra_shared_load_u64(w, 3, mask, at, a);
    if (!half) {
        RA_EACH_LANE(lane) at[lane] = ra_parameter_u64(w, 1);
        ra_atomic_add_u64(w, 7, mask, at, a);
        return false;
    }
    lanes_u64 other;
    RA_EACH_LANE(lane) other[lane] = at[lane] + half * sizeof(uint64_t);
    ra_shared_load_u64(w, 4, mask, other, b);
    RA_EACH_LANE(lane) a[lane] += b[lane];
    ra_shared_store_u64(w, 5, mask, at, a);
    return ra_barrier(w, 6);
}

/* ---- stencils ---- */

/* void stencil1d(const float *in, float *out, int n): mean of three, ends copied */
static bool stencil1d(ra_warp *w) {
    lanes_i64 i, near;
    lanes_u64 at;
    lanes_f32 x = {0}, left = {0}, right = {0};
    int32_t n = ra_parameter_i32(w, 2);
    uint32_t inner = 0;
    ra_global_index(w, 0, i);
    uint32_t mask = ra_mask_below(i, n);
    RA_EACH_LANE(lane) inner |= (uint32_t)(i[lane] > 0 && i[lane] < n - 1) << lane;
    ra_addresses(ra_parameter_u64(w, 0), i, sizeof(float), at);
    ra_load_f32(w, 0, mask, at, x);
    RA_EACH_LANE(lane) near[lane] = i[lane] - 1;
    ra_addresses(ra_parameter_u64(w, 0), near, sizeof(float), at);
    ra_load_f32(w, 1, inner, at, left);
    RA_EACH_LANE(lane) near[lane] = i[lane] + 1;
    ra_addresses(ra_parameter_u64(w, 0), near, sizeof(float), at);
    ra_load_f32(w, 2, inner, at, right);
    RA_EACH_LANE(lane) if (RA_ACTIVE(inner, lane)) x[lane] = (left[lane] + x[lane] + right[lane]) / 3.0f;
    ra_addresses(ra_parameter_u64(w, 1), i, sizeof(float), at);
    ra_store_f32(w, 3, mask, at, x);
    return false;
}

/* Loads in[row + dy][column + dx]. */
static void load_near(ra_warp *w, uint32_t at, uint32_t mask, const lanes_i64 row, const lanes_i64 column,
                      int32_t columns, int dy, int dx, lanes_f32 x) {
    lanes_u64 address;
    RA_EACH_LANE(lane) address[lane] = ra_parameter_u64(w, 0) +
                                       (uint64_t)((row[lane] + dy) * columns + column[lane] + dx) * sizeof(float);
    ra_load_f32(w, at, mask, address, x);
}

static uint32_t inner_mask(const lanes_i64 row, const lanes_i64 column, int32_t rows, int32_t columns) {
    uint32_t mask = 0;
    RA_EACH_LANE(lane) mask |= (uint32_t)(row[lane] > 0 && row[lane] < rows - 1 && column[lane] > 0 &&
                                          column[lane] < columns - 1)
                               << lane;
    return mask;
}

/* void stencil2d(const float *in, float *out, int rows, int columns): centre / 2 + neighbours / 8 inside,
 * the border copied */
static bool stencil2d(ra_warp *w) {
    static const int near[4][2] = {{-1, 0}, {1, 0}, {0, -1}, {0, 1}};
    lanes_i64 row, column;
    lanes_u64 at;
    lanes_f32 centre = {0}, x = {0}, sum = {0};
    int32_t rows = ra_parameter_i32(w, 2), columns = ra_parameter_i32(w, 3);
    ra_global_index(w, 0, column);
    ra_global_index(w, 1, row);
    uint32_t mask = ra_mask_below(column, columns) & ra_mask_below(row, rows);
    uint32_t inner = inner_mask(row, column, rows, columns);
    load_near(w, 0, mask, row, column, columns, 0, 0, centre);
    for (uint32_t i = 0; i < 4; i++) {
        load_near(w, 1 + i, inner, row, column, columns, near[i][0], near[i][1], x);
        RA_EACH_LANE(lane) sum[lane] += x[lane];
    }
    RA_EACH_LANE(lane) if (RA_ACTIVE(inner, lane)) centre[lane] = 0.5f * centre[lane] + 0.125f * sum[lane];
    RA_EACH_LANE(lane) at[lane] = ra_parameter_u64(w, 1) +
                                  (uint64_t)(row[lane] * columns + column[lane]) * sizeof(float);
    ra_store_f32(w, 5, mask, at, centre);
    return false;
}

/* void median3x3(const float *in, float *out, int rows, int columns): the window sorted in local memory,
 * the border copied */
static bool median3x3(ra_warp *w) {
    lanes_i64 row, column;
    lanes_u64 at;
    lanes_f32 x = {0}, y = {0}, low, high;
    int32_t rows = ra_parameter_i32(w, 2), columns = ra_parameter_i32(w, 3);
    ra_global_index(w, 0, column);
    ra_global_index(w, 1, row);
    uint32_t mask = ra_mask_below(column, columns) & ra_mask_below(row, rows);
    uint32_t inner = inner_mask(row, column, rows, columns);
    for (int i = 0; i < 9; i++) {
        load_near(w, 0, inner, row, column, columns, i / 3 - 1, i % 3 - 1, x);
        RA_EACH_LANE(lane) at[lane] = (uint64_t)i * sizeof(float);
        ra_local_store_f32(w, 1, inner, at, x);
    }
    for (int done = 0; done < 5; done++) { /* of selection sort: the fifth smallest is the median */
        for (int i = done + 1; i < 9; i++) {
            lanes_u64 other;
            RA_EACH_LANE(lane) {
                at[lane] = (uint64_t)done * sizeof(float);
                other[lane] = (uint64_t)i * sizeof(float);
            }
            ra_local_load_f32(w, 2, inner, at, x);
            ra_local_load_f32(w, 3, inner, other, y);
            RA_EACH_LANE(lane) {
                low[lane] = x[lane] < y[lane] ? x[lane] : y[lane];
                high[lane] = x[lane] < y[lane] ? y[lane] : x[lane];
            }
            ra_local_store_f32(w, 4, inner, at, low);
            ra_local_store_f32(w, 5, inner, other, high);
        }
    }
    load_near(w, 6, mask & ~inner, row, column, columns, 0, 0, x);
    RA_EACH_LANE(lane) at[lane] = 4 * sizeof(float);
    ra_local_load_f32(w, 7, inner, at, x);
    RA_EACH_LANE(lane) at[lane] = ra_parameter_u64(w, 1) +
                                  (uint64_t)(row[lane] * columns + column[lane]) * sizeof(float);
    ra_store_f32(w, 8, mask, at, x);
    return false;
}

/* ---- neural network ---- */

/* void softmax_rows(const float *in, float *out, int rows, int columns): one warp per row */
static bool softmax_rows(ra_warp *w) {
    lanes_u64 at;
    lanes_f32 x = {0}, part;
    int32_t rows = ra_parameter_i32(w, 2), columns = ra_parameter_i32(w, 3);
    uint32_t warps = w->block_size[0] / RA_LANES;
    int64_t row = (int64_t)w->block[0] * warps + w->warp;
    if (row >= rows || !warps) return false;
    float max = -INFINITY, sum = 0;
    for (uint32_t pass = 0; pass < 3; pass++) {
        RA_EACH_LANE(lane) part[lane] = 0;
        for (int64_t first = 0; first < columns; first += RA_LANES) {
            lanes_i64 column;
            RA_EACH_LANE(lane) column[lane] = first + lane;
            uint32_t mask = ra_mask_below(column, columns) & w->live;
            ra_addresses(ra_parameter_u64(w, 0) + (uint64_t)(row * columns) * sizeof(float), column, sizeof(float), at);
            ra_load_f32(w, pass, mask, at, x);
            RA_EACH_LANE(lane) {
                if (!RA_ACTIVE(mask, lane)) continue;
                if (pass == 0) max = x[lane] > max ? x[lane] : max;
                if (pass > 0) x[lane] = expf(x[lane] - max);
                if (pass == 1) part[lane] += x[lane];
                if (pass == 2) x[lane] /= sum;
            }
            if (pass < 2) continue;
            ra_addresses(ra_parameter_u64(w, 1) + (uint64_t)(row * columns) * sizeof(float), column, sizeof(float), at);
            ra_store_f32(w, 3, mask, at, x);
        }
        if (pass == 1) RA_EACH_LANE(lane) sum += part[lane];
    }
    return false;
}

/* void conv2d(const float *in, const float *weight, const float *bias, float *out, int batch, int channels,
 * int height, int width, int filters, int side): direct, NCHW, stride 1, zero padding side / 2 */
static bool conv2d(ra_warp *w) {
    enum { IN, WEIGHT, BIAS, OUT, BATCH, CHANNELS, HEIGHT, WIDTH, FILTERS, SIDE };
    int64_t channels = ra_parameter_i32(w, CHANNELS), height = ra_parameter_i32(w, HEIGHT),
            width = ra_parameter_i32(w, WIDTH), filters = ra_parameter_i32(w, FILTERS), side = ra_parameter_i32(w, SIDE);
    lanes_i64 i, y, x, filter, image;
    lanes_u64 at;
    lanes_f32 sum = {0}, value = {0}, weight = {0};
    ra_global_index(w, 0, i);
    uint32_t mask = ra_mask_below(i, ra_parameter_i32(w, BATCH) * filters * height * width);
    if (!(mask & w->live)) return false;
    RA_EACH_LANE(lane) {
        x[lane] = i[lane] % width;
        y[lane] = i[lane] / width % height;
        filter[lane] = i[lane] / width / height % filters;
        image[lane] = i[lane] / width / height / filters;
    }
    ra_addresses(ra_parameter_u64(w, BIAS), filter, sizeof(float), at);
    ra_load_f32(w, 0, mask, at, sum);
    for (int64_t tap = 0; tap < channels * side * side; tap++) {
        int64_t channel = tap / side / side, dy = tap / side % side - side / 2, dx = tap % side - side / 2;
        uint32_t inside = 0;
        RA_EACH_LANE(lane) {
            int64_t row = y[lane] + dy, column = x[lane] + dx;
            inside |= (uint32_t)(row >= 0 && row < height && column >= 0 && column < width) << lane;
            at[lane] = ra_parameter_u64(w, IN) +
                       (uint64_t)(((image[lane] * channels + channel) * height + row) * width + column) * sizeof(float);
        }
        inside &= mask;
        ra_load_f32(w, 1, inside, at, value);
        RA_EACH_LANE(lane) at[lane] = ra_parameter_u64(w, WEIGHT) +
                                      (uint64_t)(filter[lane] * channels * side * side + tap) * sizeof(float);
        ra_load_f32(w, 2, inside, at, weight);
        RA_EACH_LANE(lane) if (RA_ACTIVE(inside, lane)) sum[lane] += value[lane] * weight[lane];
    }
    ra_addresses(ra_parameter_u64(w, OUT), i, sizeof(float), at);
    ra_store_f32(w, 3, mask, at, sum);
    return false;
}

#define KERNEL(name, function, ...) {.symbol = name, .run = function, __VA_ARGS__}

const ra_kernel ra_builtin_kernels[] = {
    KERNEL("_Z4vaddPKfS0_Pfi", vadd, .registers = 12, .parameters = 4, .parameter_bytes = {8, 8, 8, 4}),
    KERNEL("_Z4fillIfEvPT_S0_i", fill, .registers = 8, .parameters = 3, .parameter_bytes = {8, 4, 4}),
    KERNEL("_Z5scalePfffi", scale, .registers = 10, .parameters = 4, .parameter_bytes = {8, 4, 4, 4}),
    KERNEL("_Z6gatherPKfPKiPfi", gather, .registers = 12, .parameters = 4, .parameter_bytes = {8, 8, 8, 4}),
    KERNEL("_Z10gemm_tiledILi16EEvPKfS1_Pfiii", gemm_tiled, .state = RA_LANES * sizeof(float),
           .shared_static = 2 * TILE * TILE * sizeof(float), .registers = 32, .parameters = 6,
           .parameter_bytes = {8, 8, 8, 4, 4, 4}),
    KERNEL("_Z15transpose_naivePKfPfii", transpose_naive, .registers = 12, .parameters = 4,
           .parameter_bytes = {8, 8, 4, 4}),
    KERNEL("_Z15transpose_tiledPKfPfii", transpose_tiled, .shared_static = 32 * 33 * sizeof(float), .registers = 18,
           .parameters = 4, .parameter_bytes = {8, 8, 4, 4}),
    KERNEL("_Z10reduce_sumPKjPyj", reduce_sum, .registers = 14, .parameters = 3, .parameter_bytes = {8, 8, 4}),
    KERNEL("_Z9stencil1dPKfPfi", stencil1d, .registers = 14, .parameters = 3, .parameter_bytes = {8, 8, 4}),
    KERNEL("_Z9stencil2dPKfPfii", stencil2d, .registers = 18, .parameters = 4, .parameter_bytes = {8, 8, 4, 4}),
    KERNEL("_Z9median3x3PKfPfii", median3x3, .local = 9 * sizeof(float), .registers = 20, .parameters = 4,
           .parameter_bytes = {8, 8, 4, 4}),
    KERNEL("_Z12softmax_rowsPKfPfii", softmax_rows, .registers = 22, .parameters = 4, .parameter_bytes = {8, 8, 4, 4}),
    KERNEL("_Z6conv2dPKfS0_S0_Pfiiiiii", conv2d, .registers = 40, .parameters = 10,
           .parameter_bytes = {8, 8, 8, 8, 4, 4, 4, 4, 4, 4}),
};
const size_t ra_builtin_count = sizeof ra_builtin_kernels / sizeof *ra_builtin_kernels;
