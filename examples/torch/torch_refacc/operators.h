// PyTorch's operators on the device: declarations that their files share.
//
// The operators registered here launch kernels for floats in the current stream. All others, other types, and
// layouts of more dimensions than the kernels support, run on the CPU on copies.
#pragma once

#define AT_PER_OPERATOR_HEADERS // otherwise the headers of all operators are parsed

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

namespace ops = at::_ops;

template <typename T> using Optional = std::optional<T>;

void on_cpu(const c10::OperatorHandle &op, torch::jit::Stack *stack);

// The operator on the CPU.
template <typename Op> using OnCpu = at::native::call_fallback_fn<&on_cpu, Op>;

// The variants of an operator, by the type of its schema, all made of a function `attempt` that takes the
// arguments and a result. It launches kernels and creates the result if it is undefined; if the CPU must
// compute the operator, it returns false and has no effect.
template <auto attempt, typename Op, typename Schema = typename Op::schema> struct Variant;

template <auto attempt, typename Op, typename... A> struct Variant<attempt, Op, Tensor(A...)> {
    static Tensor call(A... arguments) {
        Tensor out;
        return attempt(arguments..., out) ? out : OnCpu<Op>::call(arguments...);
    }
};

template <auto attempt, typename Op, typename First, typename... A> struct Variant<attempt, Op, Tensor &(First, A...)> {
    static Tensor &call(First first, A... others) {
        if constexpr (std::is_same_v<First, Tensor &>) // in place
            return attempt(first, others..., first) ? first : OnCpu<Op>::call(first, others...);
        else // into the last argument
            return attempt(first, others...) ? std::get<sizeof...(A) - 1>(std::tie(others...)) : OnCpu<Op>::call(first, others...);
    }
};

// Registers each variant: otherwise PyTorch makes one out of another, and a profile shows both.
template <auto attempt, typename... Op> void put(torch::Library &m) {
    auto name = [](std::string operation, const char *overload) { return *overload ? operation + "." + overload : operation; };
    (m.impl(name(Op::name, Op::overload_name).c_str(), &Variant<attempt, Op>::call), ...);
}

inline bool fits(int64_t value) { return value >= INT32_MIN && value <= INT32_MAX; }
inline bool is_float(const Tensor &tensor) { return tensor.scalar_type() == at::kFloat && tensor.device().type() == TYPE; }
template <typename... T> bool are_float(const T &...tensors) { return (is_float(tensors) && ...); }
inline bool is_float_or_made(const Tensor &out) { return !out.defined() || is_float(out); }
inline int index_of(const Tensor &tensor) { return device_of(tensor.device()); }

// Whether the kernels support this layout: 32-bit counts and strides, at most DIMENSIONS dimensions.
bool fits(const at::TensorIteratorBase &iterator);
void add_layout(Words &words, IntArrayRef values, int64_t otherwise);
// Launches an element-wise kernel over an iterator that fits; `scalars` is a word.
void launch_elements(const at::TensorIteratorBase &iterator, Kernel kernel, uint64_t scalars);

Tensor &clear(Tensor &self);

// Computes into a result of any layout, which is created like `other` if it is undefined.
template <typename Act> void into(Tensor &out, IntArrayRef shape, const Tensor &other, Act act) {
    if (out.defined())
        at::native::resize_output(out, shape);
    else
        out = at::empty(shape, other.options());
    Tensor target = out.is_contiguous() ? out : at::empty(shape, out.options());
    if (target.numel()) act(target);
    if (!target.is_same(out)) out.copy_(target);
}

} // namespace refacc
