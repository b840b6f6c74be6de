// The kernels of the operators: declarations that host and kernels share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "refacc_kernel.h"

namespace refacc {

// A kernel's parameters are words of 8 bytes: an address, an integer, or a pair of 32-bit values.
// X(name, mangled parameter types of its symbol, words, bytes of state per warp, static shared bytes)
#define REFACC_TORCH_KERNELS(X)                                                   \
    X(relu, "PKfPf6Layout", 10, 0, 0)                                             \
    X(neg, "PKfPf6Layout", 10, 0, 0)                                              \
    X(abs, "PKfPf6Layout", 10, 0, 0)                                              \
    X(exp, "PKfPf6Layout", 10, 0, 0)                                              \
    X(log, "PKfPf6Layout", 10, 0, 0)                                              \
    X(sqrt, "PKfPf6Layout", 10, 0, 0)                                             \
    X(rsqrt, "PKfPf6Layout", 10, 0, 0)                                            \
    X(reciprocal, "PKfPf6Layout", 10, 0, 0)                                       \
    X(sigmoid, "PKfPf6Layout", 10, 0, 0)                                          \
    X(tanh, "PKfPf6Layout", 10, 0, 0)                                             \
    X(pow, "PKfPf6Layoutf", 10, 0, 0)                                             \
    X(add, "PKfS0_Pf6Layoutf", 13, 0, 0)                                          \
    X(mul, "PKfS0_Pf6Layout", 13, 0, 0)                                           \
    X(div, "PKfS0_Pf6Layout", 13, 0, 0)                                           \
    X(threshold_backward, "PKfS0_Pf6Layoutf", 13, 0, 0)                           \
    X(sigmoid_backward, "PKfS0_Pf6Layout", 13, 0, 0)                              \
    X(tanh_backward, "PKfS0_Pf6Layout", 13, 0, 0)                                 \
    X(squared_difference, "PKfS0_Pf6Layout", 13, 0, 0)                            \
    X(lerp, "PKfS0_Pf6Layoutf", 13, 0, 0)                                         \
    X(addcmul, "PKfS0_S0_Pf6Layoutf", 16, 0, 0)                                   \
    X(addcdiv, "PKfS0_S0_Pf6Layoutf", 16, 0, 0)                                   \
    X(mse_backward, "PKfS0_S0_Pf6Layoutf", 16, 0, 0)                              \
    X(fill_1, "Phh6Layout", 7, 0, 0)                                              \
    X(fill_2, "Ptt6Layout", 7, 0, 0)                                              \
    X(fill_4, "Pjj6Layout", 7, 0, 0)                                              \
    X(fill_8, "Pyy6Layout", 7, 0, 0)                                              \
    X(copy_1, "PKhPh6Layout", 10, 0, 0)                                           \
    X(copy_2, "PKtPt6Layout", 10, 0, 0)                                           \
    X(copy_4, "PKjPj6Layout", 10, 0, 0)                                           \
    X(copy_8, "PKyPy6Layout", 10, 0, 0)                                           \
    X(copy_16, "PK6float4PS_6Layout", 10, 0, 0)                                   \
    X(reduce_sum, "PKfPf6LayoutS2_f", 12, 0, RA_LANES * sizeof(float))            \
    X(gemm, "PKfS0_S0_Pf6Layoutff", 15, RA_LANES * sizeof(float), 2 * 16 * 16 * sizeof(float)) \
    X(softmax, "PKfPfiii", 4, 0, 0)                                               \
    X(log_softmax, "PKfPfiii", 4, 0, 0)                                           \
    X(softmax_backward, "PKfS0_Pfiii", 5, 0, 0)                                   \
    X(log_softmax_backward, "PKfS0_Pfiii", 5, 0, 0)                               \
    X(nll_loss, "PKfPKxS0_PfS3_iix", 8, 0, 0)                                     \
    X(nll_loss_reduce, "PKfPKxS0_PfS3_iiix", 8, 0, 0)                             \
    X(nll_loss_backward, "PKfPKxS0_S0_Pfiiix", 8, 0, 0)                           \
    X(conv2d, "PKfS0_S0_Pf11Convolution", 12, 0, 0)                               \
    X(conv2d_input, "PKfS0_Pf11Convolution", 11, 0, 0)                            \
    X(conv2d_weight, "PKfS0_Pf11Convolution", 11, 0, 0)

#define REFACC_ENUMERATOR(name, ...) name,
enum class Kernel { REFACC_TORCH_KERNELS(REFACC_ENUMERATOR) COUNT };
#undef REFACC_ENUMERATOR

// The table, in the order of the enumerators; symbols live as long as the process.
const ra_kernel *kernels();

constexpr int DIMENSIONS = 4; // of a layout, innermost first
constexpr uint32_t BLOCK = 256;
constexpr uint32_t WARPS = BLOCK / RA_LANES;
constexpr uint32_t TILE = 16; // of a matrix product: a block's side

// Words of an element-wise kernel: the count of elements; sizes, two to a word; a pair of scalars or
// the value to fill with; then for each operand, the output first, its address and its strides in bytes,
// two to a word.  An input at address 0 is a scalar, in the first word of strides.
enum { LAYOUT_COUNT = 0, LAYOUT_SIZES = 1, LAYOUT_SCALARS = 3, LAYOUT_OPERANDS = 4, LAYOUT_OPERAND = 3 };

// Reductions of losses, with the numbers of at::Reduction.
enum { REDUCTION_NONE = 0, REDUCTION_MEAN = 1, REDUCTION_SUM = 2 };

// Shape of a two-dimensional convolution; a kernel's word holds two fields.
struct Convolution {
    int32_t batch, channels, height, width, filters, out_height, out_width, kernel_height, kernel_width, groups,
        stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x;
};
static_assert(sizeof(Convolution) == 8 * sizeof(uint64_t), "eight words");

} // namespace refacc
