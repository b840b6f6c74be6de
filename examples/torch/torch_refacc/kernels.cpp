// Kernels of the operators, warp by warp: see refacc_kernel.h.  Each memory instruction has its number,
// counted from 0 in its kernel.
#include "kernels.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

RA_DEFINE_ACCESS(ra_, global, RA_KIND_GLOBAL, u8, uint8_t)
RA_DEFINE_ACCESS(ra_, global, RA_KIND_GLOBAL, u16, uint16_t)

namespace refacc {
namespace {

template <typename T> using Lanes = T[RA_LANES];

int32_t low(const ra_warp *w, int word) { return ra_parameter_i32(w, word); }
int32_t high(const ra_warp *w, int word) { return static_cast<int32_t>(ra_parameter_u64(w, word) >> 32); }
float low_f32(const ra_warp *w, int word) { return ra_parameter_f32(w, word); }
float high_f32(const ra_warp *w, int word) {
    int32_t bits = high(w, word);
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
int64_t parameter_i64(const ra_warp *w, int word) { return static_cast<int64_t>(ra_parameter_u64(w, word)); }

#define REFACC_ACCESS(suffix, type)                                                                         \
    void load(ra_warp *w, uint32_t at, uint32_t mask, const Lanes<uint64_t> address, type *value) {         \
        ra_load_##suffix(w, at, mask, address, value);                                                      \
    }                                                                                                       \
    void store(ra_warp *w, uint32_t at, uint32_t mask, const Lanes<uint64_t> address, const type *value) {  \
        ra_store_##suffix(w, at, mask, address, value);                                                     \
    }
REFACC_ACCESS(u8, uint8_t)
REFACC_ACCESS(u16, uint16_t)
REFACC_ACCESS(u32, uint32_t)
REFACC_ACCESS(u64, uint64_t)
REFACC_ACCESS(f32, float)
REFACC_ACCESS(f32x4, ra_f32x4)

// Index of each lane's thread in a grid of one dimension, and the lanes that are below the limit.
uint32_t global_index(const ra_warp *w, int64_t limit, Lanes<int64_t> index) {
    ra_global_index(w, 0, index);
    return ra_mask_below(index, limit) & w->live;
}

// Addresses in an array of words of 4 bytes.
void addresses(uint64_t base, const Lanes<int64_t> index, Lanes<uint64_t> at) {
    ra_addresses(base, index, sizeof(float), at);
}

// Shuffles between lanes, which access no memory.
float sum_of(const Lanes<float> value) {
    Lanes<float> part;
    RA_EACH_LANE(lane) part[lane] = value[lane];
    for (int half = RA_LANES / 2; half; half /= 2)
        for (int lane = 0; lane < half; lane++) part[lane] += part[lane + half];
    return part[0];
}

float most_of(const Lanes<float> value) {
    float most = value[0];
    RA_EACH_LANE(lane) if (value[lane] > most || std::isnan(value[lane])) most = value[lane];
    return most;
}

// ---- layouts ----

// The coordinates of up to 32 elements; sizes are in two words.
struct Position {
    int64_t at[DIMENSIONS][RA_LANES];

    Position(const ra_warp *w, int sizes, const Lanes<int64_t> index) {
        const int64_t size[DIMENSIONS] = {low(w, sizes), high(w, sizes), low(w, sizes + 1), high(w, sizes + 1)};
        RA_EACH_LANE(lane) at[0][lane] = index[lane];
        for (int d = 0; d + 1 < DIMENSIONS; d++) RA_EACH_LANE(lane) {
            int64_t outer = size[d] ? at[d][lane] / size[d] : 0;
            at[d + 1][lane] = outer;
            at[d][lane] -= outer * size[d];
        }
    }

    void add(const ra_warp *w, int strides, Lanes<uint64_t> address) const {
        const int64_t stride[DIMENSIONS] = {low(w, strides), high(w, strides), low(w, strides + 1), high(w, strides + 1)};
        for (int d = 0; d < DIMENSIONS; d++)
            if (stride[d]) RA_EACH_LANE(lane) address[lane] += static_cast<uint64_t>(at[d][lane] * stride[d]);
    }
};

void operand_addresses(const ra_warp *w, int operand, const Position &position, Lanes<uint64_t> address) {
    int word = LAYOUT_OPERANDS + LAYOUT_OPERAND * operand;
    RA_EACH_LANE(lane) address[lane] = ra_parameter_u64(w, word);
    position.add(w, word + 1, address);
}

// ---- element by element ----


template <int inputs, float operation(float, float, float, float)> bool elementwise(ra_warp *w) {
    Lanes<int64_t> index;
    Lanes<uint64_t> at;
    Lanes<float> x[3] = {}, y;
    uint32_t mask = global_index(w, static_cast<uint32_t>(low(w, LAYOUT_COUNT)), index);
    if (!mask) return false;
    Position position(w, LAYOUT_SIZES, index);
    for (int i = 0; i < inputs; i++) {
        int word = LAYOUT_OPERANDS + LAYOUT_OPERAND * (i + 1);
        if (ra_parameter_u64(w, word)) {
            operand_addresses(w, i + 1, position, at);
            load(w, static_cast<uint32_t>(i), mask, at, x[i]);
        } else {
            RA_EACH_LANE(lane) x[i][lane] = low_f32(w, word + 1);
        }
    }
    float scalar = low_f32(w, LAYOUT_SCALARS);
    RA_EACH_LANE(lane) y[lane] = operation(x[0][lane], x[1][lane], x[2][lane], scalar);
    operand_addresses(w, 0, position, at);
    store(w, inputs, mask, at, y);
    return false;
}

#define OPERATION(name, inputs, expression)                                                      \
    float name##_of(float a, float b, float c, float s) {                                        \
        (void)a, (void)b, (void)c, (void)s;                                                      \
        return expression;                                                                       \
    }                                                                                            \
    bool name##_kernel(ra_warp *w) { return elementwise<inputs, name##_of>(w); }

OPERATION(relu, 1, a <= 0 ? 0 : a)
OPERATION(neg, 1, -a)
OPERATION(abs, 1, std::fabs(a))
OPERATION(exp, 1, std::exp(a))
OPERATION(log, 1, std::log(a))
OPERATION(sqrt, 1, std::sqrt(a))
OPERATION(rsqrt, 1, 1 / std::sqrt(a))
OPERATION(reciprocal, 1, 1 / a)
OPERATION(sigmoid, 1, 1 / (1 + std::exp(-a)))
OPERATION(tanh, 1, std::tanh(a))
OPERATION(pow, 1, s == 2 ? a * a : std::pow(a, s))
OPERATION(add, 2, a + s * b)
OPERATION(mul, 2, a * b)
OPERATION(div, 2, a / b)
OPERATION(threshold_backward, 2, b <= s ? 0 : a)
OPERATION(sigmoid_backward, 2, a * (1 - b) * b)
OPERATION(tanh_backward, 2, a * (1 - b * b))
OPERATION(squared_difference, 2, (a - b) * (a - b))
OPERATION(lerp, 2, std::fabs(s) < 0.5f ? a + s * (b - a) : b - (b - a) * (1 - s))
OPERATION(addcmul, 3, a + s * b * c)
OPERATION(addcdiv, 3, a + s * (b / c))
OPERATION(mse_backward, 3, s * (b - c) * a)

template <typename T> bool fill(ra_warp *w) {
    Lanes<int64_t> index;
    Lanes<uint64_t> at;
    Lanes<T> value;
    uint32_t mask = global_index(w, static_cast<uint32_t>(low(w, LAYOUT_COUNT)), index);
    if (!mask) return false;
    RA_EACH_LANE(lane) value[lane] = static_cast<T>(ra_parameter_u64(w, LAYOUT_SCALARS));
    operand_addresses(w, 0, Position(w, LAYOUT_SIZES, index), at);
    store(w, 0, mask, at, value);
    return false;
}

template <typename T> bool copy(ra_warp *w) {
    Lanes<int64_t> index;
    Lanes<uint64_t> at;
    Lanes<T> value = {};
    uint32_t mask = global_index(w, static_cast<uint32_t>(low(w, LAYOUT_COUNT)), index);
    if (!mask) return false;
    Position position(w, LAYOUT_SIZES, index);
    operand_addresses(w, 1, position, at);
    load(w, 0, mask, at, value);
    operand_addresses(w, 0, position, at);
    store(w, 1, mask, at, value);
    return false;
}

constexpr ra_kernel_function fill_1_kernel = fill<uint8_t>, fill_2_kernel = fill<uint16_t>,
                             fill_4_kernel = fill<uint32_t>, fill_8_kernel = fill<uint64_t>,
                             copy_1_kernel = copy<uint8_t>, copy_2_kernel = copy<uint16_t>,
                             copy_4_kernel = copy<uint32_t>, copy_8_kernel = copy<uint64_t>,
                             copy_16_kernel = copy<ra_f32x4>;

// ---- sums ----

// One block for each sum: a partial one per thread, shuffles in the warps, then one warp over the warps.
// Words: sums and elements of each; sizes and strides of the kept dimensions, and of those that are summed
// over; input, output; a factor.
bool reduce_sum_kernel(ra_warp *w) {
    enum { COUNTS, KEPT_SIZES, KEPT_STRIDES = 3, SIZES = 5, STRIDES = 7, INPUT = 9, OUTPUT, FACTOR };
    Lanes<uint64_t> at = {};
    Lanes<float> x = {}, sum = {};
    uint32_t warps = (w->block_size[0] + RA_LANES - 1) / RA_LANES;
    if (w->phase == 0) {
        Lanes<int64_t> output, index;
        RA_EACH_LANE(lane) output[lane] = w->block[0];
        Position kept(w, KEPT_SIZES, output);
        int64_t count = static_cast<uint32_t>(high(w, COUNTS));
        for (int64_t first = 0; first < count; first += w->block_size[0]) {
            RA_EACH_LANE(lane) {
                index[lane] = first + w->thread[0][lane];
                at[lane] = ra_parameter_u64(w, INPUT);
                x[lane] = 0;
            }
            kept.add(w, KEPT_STRIDES, at);
            Position(w, SIZES, index).add(w, STRIDES, at);
            load(w, 0, ra_mask_below(index, count), at, x);
            RA_EACH_LANE(lane) sum[lane] += x[lane];
        }
        sum[0] = sum_of(sum);
        at[0] = w->warp * sizeof(float);
        ra_shared_store_f32(w, 1, 1, at, sum);
        return ra_barrier(w, 2);
    }
    if (w->warp) return false;
    RA_EACH_LANE(lane) at[lane] = static_cast<uint64_t>(lane) * sizeof(float);
    ra_shared_load_f32(w, 3, static_cast<uint32_t>((UINT64_C(1) << warps) - 1), at, x);
    sum[0] = sum_of(x) * low_f32(w, FACTOR);
    at[0] = ra_parameter_u64(w, OUTPUT) + w->block[0] * sizeof(float);
    store(w, 4, 1, at, sum);
    return false;
}

// ---- matrix products ----

// A tile of a matrix into shared memory, zero outside the matrix.
void load_tile(ra_warp *w, uint32_t instruction, uint64_t matrix, int strides, int64_t row0, int64_t column0,
               int64_t rows, int64_t columns, uint64_t base) {
    Lanes<uint64_t> from, to;
    Lanes<float> value = {};
    int64_t row_stride = low(w, strides), column_stride = high(w, strides);
    uint32_t mask = 0;
    RA_EACH_LANE(lane) {
        int64_t row = row0 + w->thread[1][lane], column = column0 + w->thread[0][lane];
        mask |= static_cast<uint32_t>(row < rows && column < columns) << lane;
        from[lane] = matrix + static_cast<uint64_t>((row * row_stride + column * column_stride) * int64_t(sizeof(float)));
        to[lane] = base + (w->thread[1][lane] * TILE + w->thread[0][lane]) * sizeof(float);
    }
    load(w, instruction, mask, from, value);
    ra_shared_store_f32(w, instruction + 1, w->live, to, value);
}

// out = alpha * a * b + beta * c for a batch of matrices, one in each plane of the grid; blocks of
// TILE x TILE threads.  c may be none (0).  Strides count elements.
bool gemm_kernel(ra_warp *w) {
    enum { A, B, OUT, C, ROWS_COLUMNS, DEPTH, A_STRIDES, B_STRIDES, C_STRIDES, OUT_STRIDES, A_BATCH, B_BATCH, OUT_BATCH,
           C_BATCH, FACTORS };
    float *sum = static_cast<float *>(w->state);
    int64_t rows = low(w, ROWS_COLUMNS), columns = high(w, ROWS_COLUMNS), depth = low(w, DEPTH), batch = w->block[2];
    int64_t row0 = int64_t(w->block[1]) * TILE, column0 = int64_t(w->block[0]) * TILE;
    auto plane = [&](int matrix, int step) {
        return ra_parameter_u64(w, matrix) + static_cast<uint64_t>(batch * parameter_i64(w, step)) * sizeof(float);
    };
    int64_t tile = w->phase / 2, tiles = (depth + TILE - 1) / TILE;
    if (tile < tiles && w->phase % 2 == 0) {
        load_tile(w, 0, plane(A, A_BATCH), A_STRIDES, row0, tile * TILE, rows, depth, 0);
        load_tile(w, 2, plane(B, B_BATCH), B_STRIDES, tile * TILE, column0, depth, columns, TILE * TILE * sizeof(float));
        return ra_barrier(w, 4);
    }
    if (tile < tiles) {
        for (uint32_t i = 0; i < TILE; i++) {
            Lanes<uint64_t> at;
            Lanes<float> a = {}, b = {};
            RA_EACH_LANE(lane) at[lane] = (w->thread[1][lane] * TILE + i) * sizeof(float);
            ra_shared_load_f32(w, 5, w->live, at, a);
            RA_EACH_LANE(lane) at[lane] = (TILE * TILE + i * TILE + w->thread[0][lane]) * sizeof(float);
            ra_shared_load_f32(w, 6, w->live, at, b);
            RA_EACH_LANE(lane) sum[lane] += a[lane] * b[lane];
        }
        return ra_barrier(w, 7);
    }
    Lanes<uint64_t> at;
    Lanes<float> c = {}, result;
    uint32_t mask = 0;
    auto locate = [&](uint64_t base, int strides) {
        RA_EACH_LANE(lane) {
            int64_t row = row0 + w->thread[1][lane], column = column0 + w->thread[0][lane];
            mask |= static_cast<uint32_t>(row < rows && column < columns) << lane;
            at[lane] = base + static_cast<uint64_t>(row * low(w, strides) + column * high(w, strides)) * sizeof(float);
        }
    };
    locate(plane(OUT, OUT_BATCH), OUT_STRIDES);
    if (ra_parameter_u64(w, C)) {
        locate(plane(C, C_BATCH), C_STRIDES);
        load(w, 8, mask, at, c);
        locate(plane(OUT, OUT_BATCH), OUT_STRIDES);
    }
    float alpha = low_f32(w, FACTORS), beta = high_f32(w, FACTORS);
    RA_EACH_LANE(lane) result[lane] = alpha * sum[lane] + beta * c[lane];
    store(w, 9, mask, at, result);
    return false;
}

// ---- softmax: one warp for each row, whose elements are `inner` apart ----

struct Rows {
    int64_t row, columns, inner;
    bool exists;

    Rows(const ra_warp *w, int counts, int step) {
        row = int64_t(w->block[0]) * (w->block_size[0] / RA_LANES) + w->warp;
        columns = high(w, counts);
        inner = low(w, step);
        exists = row < low(w, counts);
    }

    // Addresses of 32 columns of the array, and the lanes that have one.
    uint32_t locate(uint64_t base, int64_t first, Lanes<uint64_t> at) const {
        uint32_t mask = 0;
        RA_EACH_LANE(lane) {
            int64_t column = first + lane;
            mask |= static_cast<uint32_t>(column < columns) << lane;
            at[lane] = base + static_cast<uint64_t>((row / inner * columns + column) * inner + row % inner) * sizeof(float);
        }
        return mask;
    }
};

template <bool logarithm> bool softmax_forward(ra_warp *w) {
    enum { INPUT, OUTPUT, COUNTS, INNER };
    Rows rows(w, COUNTS, INNER);
    if (!rows.exists) return false;
    Lanes<uint64_t> at;
    Lanes<float> x = {}, part;
    float most = 0, sum = 0;
    for (uint32_t pass = 0; pass < 3; pass++) {
        RA_EACH_LANE(lane) part[lane] = pass ? 0 : -std::numeric_limits<float>::infinity();
        for (int64_t first = 0; first < rows.columns; first += RA_LANES) {
            uint32_t mask = rows.locate(ra_parameter_u64(w, INPUT), first, at);
            load(w, pass, mask, at, x);
            RA_EACH_LANE(lane) {
                if (!RA_ACTIVE(mask, lane)) continue;
                if (pass == 0 && (x[lane] > part[lane] || std::isnan(x[lane]))) part[lane] = x[lane];
                if (pass == 1) part[lane] += std::exp(x[lane] - most);
                if (pass == 2) x[lane] = logarithm ? x[lane] - most - std::log(sum) : std::exp(x[lane] - most) / sum;
            }
            if (pass < 2) continue;
            mask = rows.locate(ra_parameter_u64(w, OUTPUT), first, at);
            store(w, 3, mask, at, x);
        }
        if (pass == 0) most = most_of(part);
        if (pass == 1) sum = sum_of(part);
    }
    return false;
}

template <bool logarithm> bool softmax_gradient(ra_warp *w) {
    enum { GRADIENT, OUTPUT, RESULT, COUNTS, INNER };
    Rows rows(w, COUNTS, INNER);
    if (!rows.exists) return false;
    Lanes<uint64_t> at;
    Lanes<float> gradient = {}, y = {}, part = {};
    float sum = 0;
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (int64_t first = 0; first < rows.columns; first += RA_LANES) {
            uint32_t mask = rows.locate(ra_parameter_u64(w, GRADIENT), first, at);
            load(w, 2 * pass, mask, at, gradient);
            rows.locate(ra_parameter_u64(w, OUTPUT), first, at);
            if (pass || !logarithm) load(w, 2 * pass + 1, mask, at, y);
            RA_EACH_LANE(lane) {
                if (!RA_ACTIVE(mask, lane)) continue;
                if (pass == 0) part[lane] += logarithm ? gradient[lane] : gradient[lane] * y[lane];
                else y[lane] = logarithm ? gradient[lane] - std::exp(y[lane]) * sum : y[lane] * (gradient[lane] - sum);
            }
            if (!pass) continue;
            rows.locate(ra_parameter_u64(w, RESULT), first, at);
            store(w, 4, mask, at, y);
        }
        if (!pass) sum = sum_of(part);
    }
    return false;
}

constexpr ra_kernel_function softmax_kernel = softmax_forward<false>, log_softmax_kernel = softmax_forward<true>,
                             softmax_backward_kernel = softmax_gradient<false>,
                             log_softmax_backward_kernel = softmax_gradient<true>;

// ---- negative log likelihood ----

// The classes and weights of 32 rows; false, with the launch at fault, where a class does not exist.
bool load_targets(ra_warp *w, const Lanes<int64_t> row, uint32_t mask, uint64_t targets, uint64_t weights,
                  int64_t classes, int64_t ignored, Lanes<int64_t> target, Lanes<float> weight) {
    Lanes<uint64_t> at, bits = {};
    ra_addresses(targets, row, sizeof(int64_t), at);
    load(w, 0, mask, at, bits);
    uint32_t wrong = 0;
    RA_EACH_LANE(lane) {
        target[lane] = static_cast<int64_t>(bits[lane]);
        bool counts = RA_ACTIVE(mask, lane) && target[lane] != ignored;
        weight[lane] = counts ? 1 : 0;
        wrong |= static_cast<uint32_t>(counts && (target[lane] < 0 || target[lane] >= classes)) << lane;
    }
    if (wrong) { // as an assertion in a kernel
        ra_warp_fault(w, wrong, at, 1);
        return false;
    }
    uint32_t counting = 0;
    RA_EACH_LANE(lane) counting |= static_cast<uint32_t>(weight[lane] != 0) << lane;
    addresses(weights, target, at);
    if (weights) load(w, 1, counting, at, weight);
    return true;
}

void load_scores(ra_warp *w, const Lanes<int64_t> row, uint32_t mask, const Lanes<int64_t> target,
                 const Lanes<float> weight, Lanes<float> loss) {
    Lanes<uint64_t> at;
    Lanes<int64_t> index;
    RA_EACH_LANE(lane) {
        index[lane] = row[lane] * high(w, 5) + target[lane];
        mask &= ~(static_cast<uint32_t>(weight[lane] == 0) << lane);
        loss[lane] = 0;
    }
    addresses(ra_parameter_u64(w, 0), index, at);
    load(w, 2, mask, at, loss);
    RA_EACH_LANE(lane) loss[lane] *= -weight[lane];
}

enum { NLL_INPUT, NLL_TARGET, NLL_WEIGHT, NLL_OUTPUT, NLL_TOTAL, NLL_COUNTS, NLL_REDUCTION, NLL_IGNORED };

bool nll_loss_kernel(ra_warp *w) {
    Lanes<int64_t> row, target;
    Lanes<uint64_t> at;
    Lanes<float> weight = {}, loss;
    uint32_t mask = global_index(w, low(w, NLL_COUNTS), row);
    if (!load_targets(w, row, mask, ra_parameter_u64(w, NLL_TARGET), ra_parameter_u64(w, NLL_WEIGHT),
                      high(w, NLL_COUNTS), parameter_i64(w, NLL_IGNORED), target, weight))
        return false;
    load_scores(w, row, mask, target, weight, loss);
    addresses(ra_parameter_u64(w, NLL_OUTPUT), row, at);
    store(w, 3, mask, at, loss);
    return false;
}

// One warp, so that the order of additions does not depend on anything.
bool nll_loss_reduce_kernel(ra_warp *w) {
    Lanes<int64_t> row, target;
    Lanes<uint64_t> at;
    Lanes<float> weight = {}, loss, losses = {}, weights = {};
    for (int64_t first = 0; first < low(w, NLL_COUNTS); first += RA_LANES) {
        RA_EACH_LANE(lane) row[lane] = first + lane;
        uint32_t mask = ra_mask_below(row, low(w, NLL_COUNTS));
        if (!load_targets(w, row, mask, ra_parameter_u64(w, NLL_TARGET), ra_parameter_u64(w, NLL_WEIGHT),
                          high(w, NLL_COUNTS), parameter_i64(w, NLL_IGNORED), target, weight))
            return false;
        load_scores(w, row, mask, target, weight, loss);
        RA_EACH_LANE(lane) {
            losses[lane] += loss[lane];
            weights[lane] += weight[lane];
        }
    }
    weights[0] = sum_of(weights);
    losses[0] = sum_of(losses) / (low(w, NLL_REDUCTION) == REDUCTION_MEAN ? weights[0] : 1);
    at[0] = ra_parameter_u64(w, NLL_OUTPUT);
    store(w, 3, 1, at, losses);
    at[0] = ra_parameter_u64(w, NLL_TOTAL);
    store(w, 4, 1, at, weights);
    return false;
}

// Writes to a result that was cleared before.
bool nll_loss_backward_kernel(ra_warp *w) {
    enum { GRADIENT, TARGET, WEIGHT, TOTAL, RESULT, COUNTS, REDUCTION, IGNORED };
    Lanes<int64_t> row, target;
    Lanes<uint64_t> at;
    Lanes<float> weight = {}, gradient = {}, total = {};
    uint32_t mask = global_index(w, low(w, COUNTS), row);
    if (!load_targets(w, row, mask, ra_parameter_u64(w, TARGET), ra_parameter_u64(w, WEIGHT), high(w, COUNTS),
                      parameter_i64(w, IGNORED), target, weight))
        return false;
    int reduction = low(w, REDUCTION);
    RA_EACH_LANE(lane) {
        at[lane] = ra_parameter_u64(w, GRADIENT) + static_cast<uint64_t>(reduction == REDUCTION_NONE ? row[lane] : 0) * sizeof(float);
        mask &= ~(static_cast<uint32_t>(weight[lane] == 0) << lane);
    }
    load(w, 2, mask, at, gradient);
    RA_EACH_LANE(lane) at[lane] = ra_parameter_u64(w, TOTAL);
    if (reduction == REDUCTION_MEAN) load(w, 3, mask, at, total);
    RA_EACH_LANE(lane) {
        gradient[lane] *= -weight[lane] / (reduction == REDUCTION_MEAN ? total[lane] : 1);
        row[lane] = row[lane] * high(w, COUNTS) + target[lane];
    }
    addresses(ra_parameter_u64(w, RESULT), row, at);
    store(w, 4, mask, at, gradient);
    return false;
}

// ---- convolutions: arrays in the order batch, channel, row, column ----

Convolution convolution_at(const ra_warp *w, int word) {
    Convolution c;
    std::memcpy(&c, w->parameters + word, sizeof c);
    return c;
}

// Removes the innermost index.
int64_t take(int64_t &index, int64_t size) {
    int64_t inner = index % size;
    index /= size;
    return inner;
}

// One thread for each output.
bool conv2d_kernel(ra_warp *w) {
    enum { INPUT, WEIGHT, BIAS, OUTPUT, SHAPE };
    const Convolution c = convolution_at(w, SHAPE);
    const int64_t channels = c.channels / c.groups, filters = c.filters / c.groups;
    Lanes<int64_t> i, x, y, filter, image, index;
    Lanes<uint64_t> at;
    Lanes<float> sum = {}, value = {}, weight = {};
    uint32_t mask = global_index(w, int64_t(c.batch) * c.filters * c.out_height * c.out_width, i);
    if (!mask) return false;
    RA_EACH_LANE(lane) {
        int64_t rest = i[lane];
        x[lane] = take(rest, c.out_width) * c.stride_x - c.padding_x;
        y[lane] = take(rest, c.out_height) * c.stride_y - c.padding_y;
        filter[lane] = take(rest, c.filters);
        image[lane] = rest;
    }
    addresses(ra_parameter_u64(w, BIAS), filter, at);
    if (ra_parameter_u64(w, BIAS)) load(w, 0, mask, at, sum);
    for (int64_t channel = 0; channel < channels; channel++)
        for (int64_t tap = 0; tap < int64_t(c.kernel_height) * c.kernel_width; tap++) {
            uint32_t inside = 0;
            RA_EACH_LANE(lane) {
                int64_t row = y[lane] + tap / c.kernel_width * c.dilation_y;
                int64_t column = x[lane] + tap % c.kernel_width * c.dilation_x;
                inside |= static_cast<uint32_t>(row >= 0 && row < c.height && column >= 0 && column < c.width) << lane;
                int64_t plane = image[lane] * c.channels + filter[lane] / filters * channels + channel;
                index[lane] = (plane * c.height + row) * c.width + column;
            }
            inside &= mask;
            addresses(ra_parameter_u64(w, INPUT), index, at);
            load(w, 1, inside, at, value);
            RA_EACH_LANE(lane) index[lane] = (filter[lane] * channels + channel) * c.kernel_height * c.kernel_width + tap;
            addresses(ra_parameter_u64(w, WEIGHT), index, at);
            load(w, 2, inside, at, weight);
            RA_EACH_LANE(lane) if (RA_ACTIVE(inside, lane)) sum[lane] += value[lane] * weight[lane];
        }
    addresses(ra_parameter_u64(w, OUTPUT), i, at);
    store(w, 3, mask, at, sum);
    return false;
}

// Gradient of the input: one thread for each of its elements.
bool conv2d_input_kernel(ra_warp *w) {
    enum { GRADIENT, WEIGHT, RESULT, SHAPE };
    const Convolution c = convolution_at(w, SHAPE);
    const int64_t channels = c.channels / c.groups, filters = c.filters / c.groups;
    Lanes<int64_t> i, x, y, channel, image, index;
    Lanes<uint64_t> at;
    Lanes<float> sum = {}, value = {}, weight = {};
    uint32_t mask = global_index(w, int64_t(c.batch) * c.channels * c.height * c.width, i);
    if (!mask) return false;
    RA_EACH_LANE(lane) {
        int64_t rest = i[lane];
        x[lane] = take(rest, c.width) + c.padding_x;
        y[lane] = take(rest, c.height) + c.padding_y;
        channel[lane] = take(rest, c.channels);
        image[lane] = rest;
    }
    for (int64_t number = 0; number < filters; number++)
        for (int64_t tap = 0; tap < int64_t(c.kernel_height) * c.kernel_width; tap++) {
            Lanes<int64_t> filter;
            uint32_t inside = 0;
            RA_EACH_LANE(lane) {
                int64_t row = y[lane] - tap / c.kernel_width * c.dilation_y;
                int64_t column = x[lane] - tap % c.kernel_width * c.dilation_x;
                bool meets = row >= 0 && column >= 0 && row % c.stride_y == 0 && column % c.stride_x == 0;
                row /= c.stride_y;
                column /= c.stride_x;
                inside |= static_cast<uint32_t>(meets && row < c.out_height && column < c.out_width) << lane;
                filter[lane] = channel[lane] / channels * filters + number;
                index[lane] = ((image[lane] * c.filters + filter[lane]) * c.out_height + row) * c.out_width + column;
            }
            inside &= mask;
            addresses(ra_parameter_u64(w, GRADIENT), index, at);
            load(w, 0, inside, at, value);
            RA_EACH_LANE(lane) index[lane] = (filter[lane] * channels + channel[lane] % channels) * c.kernel_height * c.kernel_width + tap;
            addresses(ra_parameter_u64(w, WEIGHT), index, at);
            load(w, 1, inside, at, weight);
            RA_EACH_LANE(lane) if (RA_ACTIVE(inside, lane)) sum[lane] += value[lane] * weight[lane];
        }
    addresses(ra_parameter_u64(w, RESULT), i, at);
    store(w, 2, mask, at, sum);
    return false;
}

// Gradient of the weight: one warp for each of its elements, its lanes side by side over the outputs.
bool conv2d_weight_kernel(ra_warp *w) {
    enum { GRADIENT, INPUT, RESULT, SHAPE };
    const Convolution c = convolution_at(w, SHAPE);
    const int64_t channels = c.channels / c.groups, filters = c.filters / c.groups;
    int64_t element = int64_t(w->block[0]) * (w->block_size[0] / RA_LANES) + w->warp, rest = element;
    const int64_t tap_x = take(rest, c.kernel_width), tap_y = take(rest, c.kernel_height);
    const int64_t channel = take(rest, channels), filter = rest;
    if (filter >= c.filters) return false;
    Lanes<int64_t> from, to;
    Lanes<uint64_t> at;
    Lanes<float> sum = {}, gradient = {}, value = {};
    const int64_t outputs = int64_t(c.batch) * c.out_height * c.out_width;
    for (int64_t first = 0; first < outputs; first += RA_LANES) {
        uint32_t inside = 0;
        RA_EACH_LANE(lane) {
            int64_t image = first + lane;
            bool exists = image < outputs;
            int64_t x = take(image, c.out_width), y = take(image, c.out_height);
            int64_t row = y * c.stride_y - c.padding_y + tap_y * c.dilation_y;
            int64_t column = x * c.stride_x - c.padding_x + tap_x * c.dilation_x;
            inside |= static_cast<uint32_t>(exists && row >= 0 && row < c.height && column >= 0 && column < c.width) << lane;
            from[lane] = ((image * c.filters + filter) * c.out_height + y) * c.out_width + x;
            to[lane] = ((image * c.channels + filter / filters * channels + channel) * c.height + row) * c.width + column;
        }
        addresses(ra_parameter_u64(w, GRADIENT), from, at);
        load(w, 0, inside, at, gradient);
        addresses(ra_parameter_u64(w, INPUT), to, at);
        load(w, 1, inside, at, value);
        RA_EACH_LANE(lane) if (RA_ACTIVE(inside, lane)) sum[lane] += gradient[lane] * value[lane];
    }
    sum[0] = sum_of(sum);
    at[0] = ra_parameter_u64(w, RESULT) + static_cast<uint64_t>(element) * sizeof(float);
    store(w, 2, 1, at, sum);
    return false;
}

} // namespace

const ra_kernel *kernels() {
    static const std::vector<ra_kernel> &table = *[] {
        auto *made = new std::vector<ra_kernel>;
        auto add = [&](const char *name, const char *types, ra_kernel_function run, uint32_t words, uint32_t state,
                       uint32_t shared) {
            auto *symbol = new std::string("_Z" + std::to_string(std::strlen(name)) + name + types);
            ra_kernel kernel = {};
            kernel.symbol = symbol->c_str();
            kernel.run = run;
            kernel.state = state;
            kernel.shared_static = shared;
            kernel.registers = 32;
            kernel.parameters = words;
            std::memset(kernel.parameter_bytes, sizeof(uint64_t), words);
            made->push_back(kernel);
        };
#define REFACC_ADD(name, types, words, state, shared) add(#name, types, name##_kernel, words, state, shared);
        REFACC_TORCH_KERNELS(REFACC_ADD)
#undef REFACC_ADD
        return made;
    }();
    return table.data();
}

} // namespace refacc
