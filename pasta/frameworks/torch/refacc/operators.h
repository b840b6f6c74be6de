// PyTorch's operators on the device: what their files share.
//
// Those of floats that are here launch kernels in the current stream; all others, other types, and
// layouts of more dimensions than kernels take, run on the CPU on copies.
#pragma once

#define AT_PER_OPERATOR_HEADERS // else all operators are parsed

#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "device.h"

namespace refacc {

using at::Scalar;
using at::Tensor;
using at::TensorIterator;
using at::TensorIteratorConfig;
using c10::IntArrayRef;

template <typename T> using Optional = std::optional<T>;

void on_cpu(const c10::OperatorHandle &op, torch::jit::Stack *stack);

// The operator on the CPU: ON_CPU(add_out)(arguments…).
#define ON_CPU(name) at::native::call_fallback_fn<&on_cpu, at::_ops::name>::call

inline bool fits(int64_t value) { return value >= INT32_MIN && value <= INT32_MAX; }
inline bool is_float(const Tensor &tensor) { return tensor.scalar_type() == at::kFloat && tensor.device().type() == TYPE; }
template <typename... T> bool are_float(const T &...tensors) { return (is_float(tensors) && ...); }
inline int index_of(const Tensor &tensor) { return device_of(tensor.device()); }

// Whether a kernel takes this layout: 32-bit counts and strides, few dimensions.
bool fits(const at::TensorIteratorBase &iterator);
void add_layout(Words &words, IntArrayRef values, int64_t otherwise);
// Launches an element-wise kernel over an iterator that fits; `scalars` is a word.
void launch_elements(const at::TensorIteratorBase &iterator, Kernel kernel, uint64_t scalars);

Tensor &clear(Tensor &self);

// Computes into an output that may be of any layout.
template <typename Act> void into(Tensor &out, IntArrayRef shape, Act act) {
    at::native::resize_output(out, shape);
    Tensor target = out.is_contiguous() ? out : at::empty(shape, out.options());
    if (target.numel()) act(target);
    if (!target.is_same(out)) out.copy_(target);
}

} // namespace refacc
