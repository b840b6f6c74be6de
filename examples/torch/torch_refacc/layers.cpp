// Operators of layers: matrix products, softmax, losses, convolutions.
#include "operators.h"

#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>

#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/addmv_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/nll_loss_backward_ops.h>
#include <ATen/ops/nll_loss_forward_ops.h>

namespace refacc {
namespace {

// ---- matrix products ----

// out = alpha * a * b + beta * c, of matrices or batches of them; false if the CPU must compute it, or
// report shapes that do not match.
bool multiply(int64_t dimensions, const Tensor &a, const Tensor &b, const Tensor *c, const Scalar &alpha, const Scalar &beta,
              Tensor &out) {
    if (!are_float(a, b) || !is_float_or_made(out) || (c && !is_float(*c)) || alpha.isComplex() || beta.isComplex())
        return false;
    const bool batched = dimensions == 3;
    if (a.dim() != dimensions || b.dim() != dimensions || a.size(-1) != b.size(-2) || (batched && a.size(0) != b.size(0)))
        return false;
    const int64_t rows = a.size(-2), depth = a.size(-1), columns = b.size(-1), batch = batched ? a.size(0) : 1;
    std::vector<int64_t> shape = {rows, columns};
    if (batched) shape.insert(shape.begin(), batch);
    if (c && (!at::is_expandable_to(c->sizes(), shape) || (c->is_same(out) && c->sizes() != IntArrayRef(shape)))) return false;
    const bool add = c && beta.to<float>() != 0;
    Tensor addend = add ? c->expand(shape) : Tensor();
    if (out.defined())
        at::native::resize_output(out, shape);
    else
        out = at::empty(shape, a.options());
    auto fits_kernel = [](const Tensor &t) {
        bool small = true;
        for (int64_t d = -2; d < 0; d++) small = small && fits(t.size(d)) && fits(t.stride(d) * std::max<int64_t>(1, t.size(d)));
        return small;
    };
    constexpr int64_t MAX_BLOCKS = UINT16_MAX; // along y and z
    if (!fits_kernel(a) || !fits_kernel(b) || !fits_kernel(out) || (add && !fits_kernel(addend)) ||
        blocks(rows, TILE) > MAX_BLOCKS || batch > MAX_BLOCKS)
        return false;
    if (!out.numel()) return true;
    auto step = [&](const Tensor &t) { return static_cast<uint64_t>(batched ? t.stride(0) : 0); };
    Words words;
    words.address(a.data_ptr()).address(b.data_ptr()).address(out.data_ptr()).address(add ? addend.data_ptr() : nullptr);
    words.pair(rows, columns).pair(depth).pair(a.stride(-2), a.stride(-1)).pair(b.stride(-2), b.stride(-1));
    words.pair(add ? addend.stride(-2) : 0, add ? addend.stride(-1) : 0).pair(out.stride(-2), out.stride(-1));
    words.word(step(a)).word(step(b)).word(step(out)).word(add ? step(addend) : 0);
    words.floats(alpha.to<float>(), add ? beta.to<float>() : 0);
    launch(index_of(out), Kernel::gemm, {blocks(columns, TILE), blocks(rows, TILE), static_cast<uint32_t>(batch)}, {TILE, TILE},
           words);
    return true;
}

template <int64_t dimensions> bool product(const Tensor &a, const Tensor &b, Tensor &out) {
    return multiply(dimensions, a, b, nullptr, 1, 0, out);
}

template <int64_t dimensions>
bool add_product(const Tensor &c, const Tensor &a, const Tensor &b, const Scalar &beta, const Scalar &alpha, Tensor &out) {
    return multiply(dimensions, a, b, &c, alpha, beta, out);
}

bool add_vector_product(const Tensor &c, const Tensor &a, const Tensor &b, const Scalar &beta, const Scalar &alpha, Tensor &out) {
    if (!is_float_or_made(out) || a.dim() != 2 || b.dim() != 1 || c.dim() > 1) return false;
    if (c.is_same(out) && c.size(0) != a.size(0)) return false;
    Tensor result = out.defined() ? out : at::empty({a.size(0)}, a.options());
    at::native::resize_output(result, {a.size(0)});
    Tensor column = result.unsqueeze(1), addend = c.dim() ? c.unsqueeze(1) : c;
    if (!multiply(2, a, b.unsqueeze(1), &addend, alpha, beta, column)) return false;
    out = result;
    return true;
}

// ---- softmax ----

struct RowCounts {
    int64_t columns = 1, inner = 1, rows = 0;

    RowCounts(const Tensor &tensor, int64_t dimension) {
        if (tensor.dim()) {
            dimension = at::maybe_wrap_dim(dimension, tensor.dim());
            columns = tensor.size(dimension);
            for (int64_t d = dimension + 1; d < tensor.dim(); d++) inner *= tensor.size(d);
        }
        rows = columns ? tensor.numel() / columns : 0;
    }
    bool fits_kernel() const { return fits(rows) && fits(columns) && fits(inner); }
};

template <Kernel kernel> bool softmax(const Tensor &self, int64_t dimension, bool half, Tensor &out) {
    if (!is_float(self) || !is_float_or_made(out) || half) return false;
    RowCounts counts(self, dimension);
    if (!counts.fits_kernel()) return false;
    Tensor input = self.contiguous();
    into(out, self.sizes(), self, [&](const Tensor &target) {
        Words words;
        words.address(input.data_ptr()).address(target.data_ptr()).pair(counts.rows, counts.columns).pair(counts.inner);
        launch(index_of(self), kernel, {blocks(counts.rows, WARPS)}, {BLOCK}, words);
    });
    return true;
}

template <Kernel kernel>
bool softmax_backward(const Tensor &gradient, const Tensor &output, int64_t dimension, at::ScalarType type, Tensor &out) {
    if (!are_float(gradient, output) || !is_float_or_made(out) || type != at::kFloat) return false;
    if (gradient.sizes() != output.sizes()) return false;
    RowCounts counts(output, dimension);
    if (!counts.fits_kernel()) return false;
    Tensor dense = gradient.contiguous(), result = output.contiguous();
    into(out, output.sizes(), output, [&](const Tensor &target) {
        Words words;
        words.address(dense.data_ptr()).address(result.data_ptr()).address(target.data_ptr());
        words.pair(counts.rows, counts.columns).pair(counts.inner);
        launch(index_of(out), kernel, {blocks(counts.rows, WARPS)}, {BLOCK}, words);
    });
    return true;
}

// ---- losses ----

// Whether the kernels support it; false if shapes do not match, which the CPU reports.
bool fits_nll(const Tensor &self, const Tensor &target, const Optional<Tensor> &weight) {
    const bool one = self.dim() == 1;
    if (!is_float(self) || (!one && self.dim() != 2) || !fits(self.numel())) return false;
    if (target.scalar_type() != at::kLong || target.device().type() != TYPE) return false;
    if (one ? target.numel() != 1 || target.dim() > 1 : target.dim() != 1 || target.size(0) != self.size(0)) return false;
    return !weight || !weight->defined() || (is_float(*weight) && weight->dim() == 1 && weight->numel() == self.size(-1));
}

Tensor weights_of(const Optional<Tensor> &weight) { return weight && weight->defined() ? weight->contiguous() : Tensor(); }

std::tuple<Tensor &, Tensor &> nll_loss_forward_out(const Tensor &self, const Tensor &target, const Optional<Tensor> &weight,
                                                    int64_t reduction, int64_t ignored, Tensor &out, Tensor &total) {
    if (!fits_nll(self, target, weight) || !are_float(out, total))
        return OnCpu<ops::nll_loss_forward_output>::call(self, target, weight, reduction, ignored, out, total);
    Tensor input = self.contiguous(), targets = target.contiguous(), weights = weights_of(weight);
    const int64_t classes = self.size(-1), rows = self.dim() == 1 ? 1 : self.size(0);
    const bool each = reduction == REDUCTION_NONE && self.dim() == 2;
    at::native::resize_output(total, {});
    if (each && !rows) at::native::resize_output(out, {0});
    auto run = [&](const Tensor &to) {
        Words words;
        words.address(input.data_ptr()).address(targets.data_ptr()).address(weights.defined() ? weights.data_ptr() : nullptr);
        words.address(to.data_ptr()).address(total.data_ptr()).pair(rows, classes).pair(reduction);
        words.word(static_cast<uint64_t>(ignored));
        if (each)
            launch(index_of(self), Kernel::nll_loss, {blocks(rows, BLOCK)}, {BLOCK}, words);
        else
            launch(index_of(self), Kernel::nll_loss_reduce, {1}, {RA_LANES}, words);
    };
    if (each) {
        into(out, {rows}, self, run);
        clear(total);
    } else {
        into(out, {}, self, run);
    }
    return {out, total};
}

Tensor &nll_loss_backward_out(const Tensor &gradient, const Tensor &self, const Tensor &target, const Optional<Tensor> &weight,
                              int64_t reduction, int64_t ignored, const Tensor &total, Tensor &out) {
    const bool each = reduction == REDUCTION_NONE && self.dim() == 2;
    if (!fits_nll(self, target, weight) || !are_float(gradient, total, out) || total.numel() != 1 ||
        gradient.numel() != (each ? self.size(0) : 1) || (each && gradient.dim() != 1))
        return OnCpu<ops::nll_loss_backward_grad_input>::call(gradient, self, target, weight, reduction, ignored, total, out);
    Tensor dense = gradient.contiguous(), targets = target.contiguous(), weights = weights_of(weight);
    into(out, self.sizes(), self, [&](Tensor to) {
        const int64_t classes = self.size(-1), rows = self.dim() == 1 ? 1 : self.size(0);
        clear(to);
        Words words;
        words.address(dense.data_ptr()).address(targets.data_ptr()).address(weights.defined() ? weights.data_ptr() : nullptr);
        words.address(total.data_ptr()).address(to.data_ptr()).pair(rows, classes).pair(reduction);
        words.word(static_cast<uint64_t>(ignored));
        launch(index_of(self), Kernel::nll_loss_backward, {blocks(rows, BLOCK)}, {BLOCK}, words);
    });
    return out;
}

std::tuple<Tensor, Tensor> nll_loss_forward(const Tensor &self, const Tensor &target, const Optional<Tensor> &weight,
                                            int64_t reduction, int64_t ignored) {
    Tensor out = at::empty({0}, self.options()), total = at::empty({0}, self.options());
    nll_loss_forward_out(self, target, weight, reduction, ignored, out, total);
    return {out, total};
}

Tensor nll_loss_backward(const Tensor &gradient, const Tensor &self, const Tensor &target, const Optional<Tensor> &weight,
                         int64_t reduction, int64_t ignored, const Tensor &total) {
    Tensor out = at::empty({0}, self.options());
    return nll_loss_backward_out(gradient, self, target, weight, reduction, ignored, total, out);
}

// ---- convolutions ----

// A transposed convolution is the gradient of a convolution with input and output exchanged: `input` and
// `output` are those of that convolution.
bool fits_convolution(const Tensor &input, const Tensor &weight, IntArrayRef input_size, IntArrayRef output_size) {
    return are_float(input, weight) && input.dim() == 4 && weight.dim() == 4 && fits(c10::multiply_integers(input_size)) &&
           fits(c10::multiply_integers(output_size)) && fits(weight.numel());
}

Convolution shape_of(IntArrayRef input, IntArrayRef weight, IntArrayRef output, IntArrayRef stride, IntArrayRef padding,
                     IntArrayRef dilation, int64_t groups) {
    auto n = [](int64_t value) { return static_cast<int32_t>(value); };
    return {n(input[0]),   n(input[1]),  n(input[2]),   n(input[3]),   n(output[1]),  n(output[2]),   n(output[3]),   n(weight[2]),
            n(weight[3]),  n(groups),    n(stride[0]),  n(stride[1]),  n(padding[0]), n(padding[1]),  n(dilation[0]), n(dilation[1])};
}

void add_shape(Words &words, const Convolution &shape) {
    uint64_t parts[sizeof shape / sizeof(uint64_t)];
    std::memcpy(parts, &shape, sizeof shape);
    for (uint64_t part : parts) words.word(part);
}

void convolve(const Tensor &input, const Tensor &weight, const Tensor &bias, const Convolution &shape, const Tensor &out) {
    if (!out.numel()) return;
    Words words;
    words.address(input.data_ptr()).address(weight.data_ptr()).address(bias.defined() ? bias.data_ptr() : nullptr);
    words.address(out.data_ptr());
    add_shape(words, shape);
    launch(index_of(out), Kernel::conv2d, {blocks(out.numel(), BLOCK)}, {BLOCK}, words);
}

void convolve_input(const Tensor &gradient, const Tensor &weight, const Convolution &shape, const Tensor &out) {
    if (!out.numel()) return;
    Words words;
    words.address(gradient.data_ptr()).address(weight.data_ptr()).address(out.data_ptr());
    add_shape(words, shape);
    launch(index_of(out), Kernel::conv2d_input, {blocks(out.numel(), BLOCK)}, {BLOCK}, words);
}

void convolve_weight(const Tensor &gradient, const Tensor &input, const Convolution &shape, const Tensor &out) {
    if (!out.numel()) return;
    Words words;
    words.address(gradient.data_ptr()).address(input.data_ptr()).address(out.data_ptr());
    add_shape(words, shape);
    launch(index_of(out), Kernel::conv2d_weight, {blocks(out.numel(), WARPS)}, {BLOCK}, words);
}

std::vector<int64_t> output_size(const Tensor &input, const Tensor &weight, IntArrayRef stride, IntArrayRef padding,
                                 IntArrayRef dilation, bool transposed, IntArrayRef more, int64_t groups) {
    std::vector<int64_t> size = {input.size(0), transposed ? weight.size(1) * groups : weight.size(0)};
    for (size_t d = 0; d < stride.size(); d++) {
        auto dimension = static_cast<int64_t>(d) + 2;
        int64_t extent = dilation[d] * (weight.size(dimension) - 1), in = input.size(dimension);
        size.push_back(transposed ? (in - 1) * stride[d] - 2 * padding[d] + extent + more[d] + 1
                                  : (in + 2 * padding[d] - extent - 1) / stride[d] + 1);
    }
    return size;
}

Tensor convolution(const Tensor &input, const Tensor &weight, const Optional<Tensor> &bias, IntArrayRef stride,
                   IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef more, int64_t groups) {
    const bool biased = bias && bias->defined();
    std::vector<int64_t> size = output_size(input, weight, stride, padding, dilation, transposed, more, groups);
    if (!fits_convolution(input, weight, input.sizes(), size) || (biased && !is_float(*bias))) {
        Optional<Tensor> host = biased ? Optional<Tensor>(bias->cpu()) : std::nullopt;
        return at::convolution(input.cpu(), weight.cpu(), host, stride, padding, dilation, transposed, more, groups)
            .to(input.device());
    }
    Tensor x = input.contiguous(), w = weight.contiguous(), b = biased ? bias->contiguous() : Tensor();
    Tensor out = at::empty(size, input.options());
    if (transposed) {
        convolve_input(x, w, shape_of(size, w.sizes(), x.sizes(), stride, padding, dilation, groups), out);
        if (biased) out.add_(b.view({1, -1, 1, 1}));
    } else {
        convolve(x, w, b, shape_of(x.sizes(), w.sizes(), size, stride, padding, dilation, groups), out);
    }
    return out;
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor &gradient, const Tensor &input, const Tensor &weight,
                                                        IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                                                        bool transposed, IntArrayRef more, int64_t groups,
                                                        std::array<bool, 3> wanted) {
    if (!is_float(gradient) || !fits_convolution(input, weight, input.sizes(), gradient.sizes())) {
        auto [a, b, c] = at::convolution_backward(gradient.cpu(), input.cpu(), weight.cpu(),
                                                  IntArrayRef({weight.size(transposed ? 1 : 0) * (transposed ? groups : 1)}),
                                                  stride, padding, dilation, transposed, more, groups, wanted);
        auto back = [&](const Tensor &t) { return t.defined() ? t.to(input.device()) : t; };
        return {back(a), back(b), back(c)};
    }
    Tensor g = gradient.contiguous(), x = input.contiguous(), w = weight.contiguous(), to_input, to_weight, to_bias;
    const Tensor &plain_input = transposed ? g : x, &plain_output = transposed ? x : g;
    Convolution shape = shape_of(plain_input.sizes(), w.sizes(), plain_output.sizes(), stride, padding, dilation, groups);
    if (wanted[0]) {
        to_input = at::empty(x.sizes(), x.options());
        if (transposed)
            convolve(g, w, {}, shape, to_input);
        else
            convolve_input(g, w, shape, to_input);
    }
    if (wanted[1]) {
        to_weight = at::empty(w.sizes(), w.options());
        convolve_weight(plain_output, plain_input, shape, to_weight);
    }
    if (wanted[2]) to_bias = g.sum(IntArrayRef({0, 2, 3}));
    return {to_input, to_weight, to_bias};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    put<product<2>, ops::mm, ops::mm_out>(m);
    put<product<3>, ops::bmm, ops::bmm_out>(m);
    put<add_product<2>, ops::addmm, ops::addmm_, ops::addmm_out>(m);
    put<add_product<3>, ops::baddbmm, ops::baddbmm_, ops::baddbmm_out>(m);
    put<add_vector_product, ops::addmv, ops::addmv_, ops::addmv_out>(m);
    put<softmax<Kernel::softmax>, ops::_softmax, ops::_softmax_out>(m);
    put<softmax<Kernel::log_softmax>, ops::_log_softmax, ops::_log_softmax_out>(m);
    put<softmax_backward<Kernel::softmax_backward>, ops::_softmax_backward_data, ops::_softmax_backward_data_out>(m);
    put<softmax_backward<Kernel::log_softmax_backward>, ops::_log_softmax_backward_data, ops::_log_softmax_backward_data_out>(m);
    m.impl("nll_loss_forward", nll_loss_forward);
    m.impl("nll_loss_forward.output", nll_loss_forward_out);
    m.impl("nll_loss_backward", nll_loss_backward);
    m.impl("nll_loss_backward.grad_input", nll_loss_backward_out);
    m.impl("convolution_overrideable", convolution);
    m.impl("convolution_backward_overrideable", convolution_backward);
}

} // namespace
} // namespace refacc
