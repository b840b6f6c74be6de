// Operators element by element, and sums.
#include "operators.h"

#include <ATen/WrapDimUtilsMulti.h>

#include <ATen/ops/abs_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/lerp_ops.h>
#include <ATen/ops/log_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/mse_loss_backward_ops.h>
#include <ATen/ops/mse_loss_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/reciprocal_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/sigmoid_backward_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/tanh_backward_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/threshold_backward_ops.h>

namespace refacc {

bool fits(const at::TensorIteratorBase &iterator) {
    if (iterator.ndim() > DIMENSIONS || !fits(iterator.numel())) return false;
    for (int operand = 0; operand < iterator.ntensors(); operand++)
        for (int64_t stride : iterator.strides(operand))
            if (!fits(stride)) return false;
    return true;
}

void add_layout(Words &words, IntArrayRef values, int64_t otherwise) {
    auto at = [&](size_t i) { return i < values.size() ? values[i] : otherwise; };
    words.pair(at(0), at(1)).pair(at(2), at(3));
}

void launch_elements(const at::TensorIteratorBase &iterator, Kernel kernel, uint64_t scalars) {
    if (!iterator.numel()) return;
    Words words;
    words.pair(iterator.numel());
    add_layout(words, iterator.shape(), 1);
    words.word(scalars);
    for (int operand = 0; operand < iterator.ntensors(); operand++) {
        if (operand && iterator.is_cpu_scalar(operand)) {
            // PyTorch computes with the value as the type of the result
            const at::OperandInfo &scalar = iterator.operand(operand);
            auto value = c10::fetch_and_cast<float>(scalar.tensor_base().scalar_type(), scalar.data);
            words.word(0).floats(value).word(0);
        } else {
            words.address(iterator.data_ptr(operand));
            add_layout(words, iterator.strides(operand), 0);
        }
    }
    launch(device_of(iterator.device(0)), kernel, {blocks(iterator.numel(), BLOCK)}, {BLOCK}, words);
}

namespace {

// ---- element by element ----

uint64_t scalar_word(float value) { return *Words().floats(value).data(); }

// False where the operands are not floats, or do not fit: then it is the CPU's.
bool of_floats(at::TensorIteratorBase &iterator, Kernel kernel, const Scalar &scalar = 0) {
    if (iterator.common_dtype() != at::kFloat || scalar.isComplex() || !fits(iterator)) return false;
    for (int operand = 0; operand < iterator.ntensors(); operand++) {
        bool device = iterator.device(operand).type() == TYPE && iterator.tensor_base(operand).scalar_type() == at::kFloat;
        if (!device && !(operand && iterator.is_cpu_scalar(operand))) return false;
    }
    launch_elements(iterator, kernel, scalar_word(scalar.to<float>()));
    return true;
}

#define UNARY(name, kernel)                                                             \
    Tensor &name(const Tensor &self, Tensor &out) {                                     \
        auto iterator = TensorIterator::unary_float_op(out, self);                      \
        if (!of_floats(iterator, Kernel::kernel)) ON_CPU(name)(self, out);              \
        return out;                                                                     \
    }
UNARY(exp_out, exp)
UNARY(log_out, log)
UNARY(sqrt_out, sqrt)
UNARY(rsqrt_out, rsqrt)
UNARY(reciprocal_out, reciprocal)
UNARY(sigmoid_out, sigmoid)
UNARY(tanh_out, tanh)
#undef UNARY

#define UNARY(name, kernel)                                                             \
    Tensor &name(const Tensor &self, Tensor &out) {                                     \
        if (!is_float(self) || !is_float(out)) return ON_CPU(name)(self, out);          \
        auto iterator = TensorIterator::unary_op(out, self);                            \
        if (!of_floats(iterator, Kernel::kernel)) ON_CPU(name)(self, out);              \
        return out;                                                                     \
    }
UNARY(neg_out, neg)
UNARY(abs_out, abs)
#undef UNARY

Tensor relu(const Tensor &self) {
    if (!is_float(self)) return ON_CPU(relu)(self);
    Tensor out = at::empty_like(self);
    auto iterator = TensorIterator::unary_op(out, self);
    return of_floats(iterator, Kernel::relu) ? out : ON_CPU(relu)(self);
}

Tensor &relu_(Tensor &self) {
    if (!is_float(self)) return ON_CPU(relu_)(self);
    auto iterator = TensorIterator::unary_op(self, self);
    return of_floats(iterator, Kernel::relu) ? self : ON_CPU(relu_)(self);
}

Tensor &pow_out(const Tensor &self, const Scalar &exponent, Tensor &out) {
    if (!is_float(self) || !is_float(out)) return ON_CPU(pow_Tensor_Scalar_out)(self, exponent, out);
    auto iterator = TensorIterator::unary_op(out, self);
    return of_floats(iterator, Kernel::pow, exponent) ? out : ON_CPU(pow_Tensor_Scalar_out)(self, exponent, out);
}

Tensor &add_out(const Tensor &self, const Tensor &other, const Scalar &alpha, Tensor &out) {
    auto iterator = TensorIterator::binary_op(out, self, other);
    return of_floats(iterator, Kernel::add, alpha) ? out : ON_CPU(add_out)(self, other, alpha, out);
}

Tensor &sub_out(const Tensor &self, const Tensor &other, const Scalar &alpha, Tensor &out) {
    auto iterator = TensorIterator::binary_op(out, self, other);
    bool done = !alpha.isBoolean() && of_floats(iterator, Kernel::add, -alpha);
    return done ? out : ON_CPU(sub_out)(self, other, alpha, out);
}

Tensor &mul_out(const Tensor &self, const Tensor &other, Tensor &out) {
    auto iterator = TensorIterator::binary_op(out, self, other);
    return of_floats(iterator, Kernel::mul) ? out : ON_CPU(mul_out)(self, other, out);
}

Tensor &div_out(const Tensor &self, const Tensor &other, Tensor &out) {
    auto iterator = TensorIterator::binary_float_op(out, self, other);
    return of_floats(iterator, Kernel::div) ? out : ON_CPU(div_out)(self, other, out);
}

Tensor &threshold_backward_out(const Tensor &gradient, const Tensor &self, const Scalar &threshold, Tensor &out) {
    auto iterator = TensorIterator::binary_op(out, gradient, self);
    bool done = of_floats(iterator, Kernel::threshold_backward, threshold);
    return done ? out : ON_CPU(threshold_backward_grad_input)(gradient, self, threshold, out);
}

Tensor &sigmoid_backward_out(const Tensor &gradient, const Tensor &output, Tensor &out) {
    auto iterator = TensorIterator::binary_op(out, gradient, output);
    bool done = of_floats(iterator, Kernel::sigmoid_backward);
    return done ? out : ON_CPU(sigmoid_backward_grad_input)(gradient, output, out);
}

Tensor &tanh_backward_out(const Tensor &gradient, const Tensor &output, Tensor &out) {
    auto iterator = TensorIterator::binary_op(out, gradient, output);
    bool done = of_floats(iterator, Kernel::tanh_backward);
    return done ? out : ON_CPU(tanh_backward_grad_input)(gradient, output, out);
}

Tensor &lerp_out(const Tensor &self, const Tensor &end, const Scalar &weight, Tensor &out) {
    auto iterator = TensorIterator::binary_op(out, self, end);
    return of_floats(iterator, Kernel::lerp, weight) ? out : ON_CPU(lerp_Scalar_out)(self, end, weight, out);
}

TensorIterator ternary(Tensor &out, const Tensor &a, const Tensor &b, const Tensor &c) {
    return TensorIteratorConfig()
        .promote_inputs_to_common_dtype(true)
        .cast_common_dtype_to_outputs(true)
        .enforce_safe_casting_to_output(true)
        .allow_cpu_scalars(true)
        .add_output(out)
        .add_const_input(a)
        .add_const_input(b)
        .add_const_input(c)
        .build();
}

Tensor &addcmul_out(const Tensor &self, const Tensor &a, const Tensor &b, const Scalar &value, Tensor &out) {
    auto iterator = ternary(out, self, a, b);
    return of_floats(iterator, Kernel::addcmul, value) ? out : ON_CPU(addcmul_out)(self, a, b, value, out);
}

Tensor &addcdiv_out(const Tensor &self, const Tensor &a, const Tensor &b, const Scalar &value, Tensor &out) {
    auto iterator = ternary(out, self, a, b);
    return of_floats(iterator, Kernel::addcdiv, value) ? out : ON_CPU(addcdiv_out)(self, a, b, value, out);
}

// ---- sums ----

struct Extent {
    std::vector<int64_t> sizes, strides; // innermost first

    void add(int64_t size, int64_t stride) {
        if (size == 1) return;
        if (!sizes.empty() && stride == sizes.back() * strides.back()) {
            sizes.back() *= size;
            return;
        }
        sizes.push_back(size);
        strides.push_back(stride);
    }
    int64_t count() const { return c10::multiply_integers(sizes); }
    bool fits_kernel() const {
        bool small = sizes.size() <= DIMENSIONS && fits(count());
        for (int64_t stride : strides) small = small && fits(stride);
        return small;
    }
    void put(Words &words) const {
        add_layout(words, sizes, 1);
        add_layout(words, strides, 0);
    }
};

// Sums or means; false where the CPU has to.
bool sum_into(const Tensor &self, at::OptionalIntArrayRef dimensions, bool keep, Optional<at::ScalarType> type, bool mean,
              Tensor &out) {
    if (!are_float(self, out) || type.value_or(at::kFloat) != at::kFloat) return false;
    auto reduced = at::dim_list_to_bitset(dimensions, self.dim());
    if (!dimensions || dimensions->empty()) reduced.set();
    Extent kept, over;
    std::vector<int64_t> shape;
    for (int64_t d = self.dim(); d-- > 0;)
        (reduced[static_cast<size_t>(d)] ? over : kept).add(self.size(d), self.stride(d) * self.element_size());
    for (int64_t d = 0; d < self.dim(); d++)
        if (!reduced[static_cast<size_t>(d)])
            shape.push_back(self.size(d));
        else if (keep)
            shape.push_back(1);
    if (!kept.fits_kernel() || !over.fits_kernel()) return false;
    into(out, shape, [&](const Tensor &target) {
        int64_t count = over.count();
        Words words;
        words.pair(target.numel(), count);
        kept.put(words);
        over.put(words);
        words.address(self.data_ptr()).address(target.data_ptr()).floats(mean ? 1 / static_cast<float>(count) : 1);
        auto threads = std::min<uint32_t>(BLOCK, RA_LANES * std::max<uint32_t>(1, blocks(count, RA_LANES)));
        launch(index_of(self), Kernel::reduce_sum, {static_cast<uint32_t>(target.numel())}, {threads}, words);
    });
    return true;
}

Tensor &sum_out(const Tensor &self, at::OptionalIntArrayRef dimensions, bool keep, Optional<at::ScalarType> type, Tensor &out) {
    bool done = sum_into(self, dimensions, keep, type, false, out);
    return done ? out : ON_CPU(sum_IntList_out)(self, dimensions, keep, type, out);
}

Tensor &mean_out(const Tensor &self, at::OptionalIntArrayRef dimensions, bool keep, Optional<at::ScalarType> type, Tensor &out) {
    bool done = sum_into(self, dimensions, keep, type, true, out);
    return done ? out : ON_CPU(mean_out)(self, dimensions, keep, type, out);
}

// ---- the mean squared error ----

Tensor &mse_loss_out(const Tensor &self, const Tensor &target, int64_t reduction, Tensor &out) {
    if (!are_float(self, target, out)) return ON_CPU(mse_loss_out)(self, target, reduction, out);
    Tensor squares = reduction == REDUCTION_NONE ? out : Tensor();
    auto iterator = TensorIterator::binary_op(squares, self, target);
    bool done = of_floats(iterator, Kernel::squared_difference);
    if (done && reduction != REDUCTION_NONE)
        done = sum_into(iterator.output(), std::nullopt, false, std::nullopt, reduction == REDUCTION_MEAN, out);
    return done ? out : ON_CPU(mse_loss_out)(self, target, reduction, out);
}

Tensor &mse_loss_backward_out(const Tensor &gradient, const Tensor &self, const Tensor &target, int64_t reduction, Tensor &out) {
    float factor = reduction == REDUCTION_MEAN ? 2 / static_cast<float>(self.numel()) : 2;
    auto iterator = ternary(out, gradient, self, target);
    bool done = of_floats(iterator, Kernel::mse_backward, factor);
    return done ? out : ON_CPU(mse_loss_backward_grad_input)(gradient, self, target, reduction, out);
}

Tensor mse_loss_backward(const Tensor &gradient, const Tensor &self, const Tensor &target, int64_t reduction) {
    Tensor out = at::empty_like(self, at::MemoryFormat::Contiguous);
    return mse_loss_backward_out(gradient, self, target, reduction, out);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    m.impl("exp.out", exp_out);
    m.impl("log.out", log_out);
    m.impl("sqrt.out", sqrt_out);
    m.impl("rsqrt.out", rsqrt_out);
    m.impl("reciprocal.out", reciprocal_out);
    m.impl("sigmoid.out", sigmoid_out);
    m.impl("tanh.out", tanh_out);
    m.impl("neg.out", neg_out);
    m.impl("abs.out", abs_out);
    m.impl("relu", relu);
    m.impl("relu_", relu_);
    m.impl("pow.Tensor_Scalar_out", pow_out);
    m.impl("add.out", add_out);
    m.impl("sub.out", sub_out);
    m.impl("mul.out", mul_out);
    m.impl("div.out", div_out);
    m.impl("threshold_backward.grad_input", threshold_backward_out);
    m.impl("sigmoid_backward.grad_input", sigmoid_backward_out);
    m.impl("tanh_backward.grad_input", tanh_backward_out);
    m.impl("lerp.Scalar_out", lerp_out);
    m.impl("addcmul.out", addcmul_out);
    m.impl("addcdiv.out", addcdiv_out);
    m.impl("sum.IntList_out", sum_out);
    m.impl("mean.out", mean_out);
    m.impl("mse_loss.out", mse_loss_out);
    m.impl("mse_loss_backward", mse_loss_backward);
    m.impl("mse_loss_backward.grad_input", mse_loss_backward_out);
}

} // namespace
} // namespace refacc
