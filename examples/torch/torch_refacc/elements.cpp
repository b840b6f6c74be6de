// Operators element by element, and sums.
#include "operators.h"

#include <ATen/WrapDimUtilsMulti.h>

#include <ATen/ops/abs_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/div_ops.h>
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

// Launches the kernel; false if operands are not floats or the layout is not supported.
bool of_floats(at::TensorIteratorBase &iterator, Kernel kernel, Tensor &out, const Scalar &scalar = 0) {
    if (iterator.common_dtype() != at::kFloat || scalar.isComplex() || scalar.isBoolean() || !fits(iterator)) return false;
    for (int operand = 0; operand < iterator.ntensors(); operand++) {
        bool there = iterator.device(operand).type() == TYPE && iterator.tensor_base(operand).scalar_type() == at::kFloat;
        if (!there && !(operand && iterator.is_cpu_scalar(operand))) return false;
    }
    launch_elements(iterator, kernel, scalar_word(scalar.to<float>()));
    if (!out.defined()) out = iterator.output();
    return true;
}

template <Kernel kernel> bool unary(const Tensor &self, Tensor &out) {
    if (!is_float(self) || !is_float_or_made(out)) return false;
    auto iterator = TensorIterator::unary_op(out, self);
    return of_floats(iterator, kernel, out);
}

bool power(const Tensor &self, const Scalar &exponent, Tensor &out) {
    if (!is_float(self) || !is_float_or_made(out)) return false;
    auto iterator = TensorIterator::unary_op(out, self);
    return of_floats(iterator, Kernel::pow, out, exponent);
}

template <Kernel kernel> bool binary(const Tensor &a, const Tensor &b, Tensor &out) {
    if (!is_float_or_made(out)) return false;
    auto iterator = TensorIterator::binary_float_op(out, a, b);
    return of_floats(iterator, kernel, out);
}

template <Kernel kernel> bool binary_with(const Tensor &a, const Tensor &b, const Scalar &scalar, Tensor &out) {
    if (!is_float_or_made(out)) return false;
    auto iterator = TensorIterator::binary_float_op(out, a, b);
    return of_floats(iterator, kernel, out, scalar);
}

bool subtract(const Tensor &a, const Tensor &b, const Scalar &alpha, Tensor &out) {
    return !alpha.isBoolean() && binary_with<Kernel::add>(a, b, -alpha, out); // a bool has no negative
}

template <Kernel kernel>
bool ternary_with(const Tensor &a, const Tensor &b, const Tensor &c, const Scalar &scalar, Tensor &out) {
    if (!is_float_or_made(out)) return false;
    auto iterator = TensorIteratorConfig()
                        .promote_inputs_to_common_dtype(true)
                        .cast_common_dtype_to_outputs(true)
                        .enforce_safe_casting_to_output(true)
                        .allow_cpu_scalars(true)
                        .add_output(out)
                        .add_const_input(a)
                        .add_const_input(b)
                        .add_const_input(c)
                        .build();
    return of_floats(iterator, kernel, out, scalar);
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

// Computes sums or means; false if the CPU must.
bool sum_into(const Tensor &self, at::OptionalIntArrayRef dimensions, bool keep, Optional<at::ScalarType> type, bool mean,
              Tensor &out) {
    if (!is_float(self) || !is_float_or_made(out) || type.value_or(at::kFloat) != at::kFloat) return false;
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
    into(out, shape, self, [&](const Tensor &target) {
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

bool sum(const Tensor &self, at::OptionalIntArrayRef dimensions, bool keep, Optional<at::ScalarType> type, Tensor &out) {
    return sum_into(self, dimensions, keep, type, false, out);
}

bool mean(const Tensor &self, at::OptionalIntArrayRef dimensions, bool keep, Optional<at::ScalarType> type, Tensor &out) {
    return sum_into(self, dimensions, keep, type, true, out);
}

// ---- the mean squared error ----

bool mse_loss(const Tensor &self, const Tensor &target, int64_t reduction, Tensor &out) {
    if (!are_float(self, target) || !is_float_or_made(out)) return false;
    if (reduction == REDUCTION_NONE) return binary<Kernel::squared_difference>(self, target, out);
    Tensor squares;
    return binary<Kernel::squared_difference>(self, target, squares) &&
           sum_into(squares, std::nullopt, false, std::nullopt, reduction == REDUCTION_MEAN, out);
}

bool mse_loss_backward(const Tensor &gradient, const Tensor &self, const Tensor &target, int64_t reduction, Tensor &out) {
    float factor = reduction == REDUCTION_MEAN ? 2 / static_cast<float>(self.numel()) : 2;
    return ternary_with<Kernel::mse_backward>(gradient, self, target, factor, out);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define UNARY(name) put<unary<Kernel::name>, ops::name, ops::name##_, ops::name##_out>(m);
    UNARY(abs)
    UNARY(exp)
    UNARY(log)
    UNARY(neg)
    UNARY(reciprocal)
    UNARY(rsqrt)
    UNARY(sigmoid)
    UNARY(sqrt)
    UNARY(tanh)
#undef UNARY
    put<unary<Kernel::relu>, ops::relu, ops::relu_>(m);
    put<power, ops::pow_Tensor_Scalar, ops::pow__Scalar, ops::pow_Tensor_Scalar_out>(m);
    put<binary_with<Kernel::add>, ops::add_Tensor, ops::add__Tensor, ops::add_out>(m);
    put<subtract, ops::sub_Tensor, ops::sub__Tensor, ops::sub_out>(m);
    put<binary<Kernel::mul>, ops::mul_Tensor, ops::mul__Tensor, ops::mul_out>(m);
    put<binary<Kernel::div>, ops::div_Tensor, ops::div__Tensor, ops::div_out>(m);
    put<binary_with<Kernel::lerp>, ops::lerp_Scalar, ops::lerp__Scalar, ops::lerp_Scalar_out>(m);
    put<binary_with<Kernel::threshold_backward>, ops::threshold_backward, ops::threshold_backward_grad_input>(m);
    put<binary<Kernel::sigmoid_backward>, ops::sigmoid_backward, ops::sigmoid_backward_grad_input>(m);
    put<binary<Kernel::tanh_backward>, ops::tanh_backward, ops::tanh_backward_grad_input>(m);
    put<ternary_with<Kernel::addcmul>, ops::addcmul, ops::addcmul_, ops::addcmul_out>(m);
    put<ternary_with<Kernel::addcdiv>, ops::addcdiv, ops::addcdiv_, ops::addcdiv_out>(m);
    put<sum, ops::sum_dim_IntList, ops::sum_IntList_out>(m);
    put<mean, ops::mean_dim, ops::mean_out>(m);
    put<mse_loss, ops::mse_loss, ops::mse_loss_out>(m);
    put<mse_loss_backward, ops::mse_loss_backward, ops::mse_loss_backward_grad_input>(m);
}

} // namespace
} // namespace refacc
