// PyTorch's operators on the device.  Those of floats that are here launch kernels in the current stream;
// all others, other types, and layouts of more dimensions than kernels take, run on the CPU on copies.
#include "device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/TensorIterator.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/abs_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/addmv_ops.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/lerp_ops.h>
#include <ATen/ops/log_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mse_loss_backward_ops.h>
#include <ATen/ops/mse_loss_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/nll_loss_backward_ops.h>
#include <ATen/ops/nll_loss_forward_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/reciprocal_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/sigmoid_backward_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/tanh_backward_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/threshold_backward_ops.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>

namespace refacc {
namespace {

using at::Scalar;
using at::Tensor;
using at::TensorIterator;
using at::TensorIteratorConfig;
using c10::IntArrayRef;

template <typename T> using Optional = std::optional<T>;

void on_cpu(const c10::OperatorHandle &op, torch::jit::Stack *stack) { at::native::cpu_fallback(op, stack); }

// The operator on the CPU: ON_CPU(add_out)(arguments…).
#define ON_CPU(name) at::native::call_fallback_fn<&on_cpu, at::_ops::name>::call

bool fits(int64_t value) { return value >= INT32_MIN && value <= INT32_MAX; }
bool is_float(const Tensor &tensor) { return tensor.scalar_type() == at::kFloat && tensor.device().type() == TYPE; }
template <typename... T> bool are_float(const T &...tensors) { return (is_float(tensors) && ...); }
int index_of(const Tensor &tensor) { return device_of(tensor.device()); }

// ---- memory ----

c10::DispatchKeySet keys() { return c10::DispatchKeySet(c10::DispatchKey::PrivateUse1); }

Tensor empty(IntArrayRef size, Optional<at::ScalarType> type, Optional<at::Layout> layout, Optional<at::Device> device,
             Optional<bool> pinned, Optional<at::MemoryFormat> format) {
    TORCH_CHECK(!pinned.value_or(false), "only tensors of the CPU can be pinned");
    TORCH_CHECK(layout.value_or(at::kStrided) == at::kStrided, "refacc has strided tensors only");
    c10::OptionalDeviceGuard guard(device);
    return at::detail::empty_generic(size, device_allocator(), keys(), c10::dtype_or_default(type), format);
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, Optional<at::ScalarType> type, Optional<at::Layout> layout,
                     Optional<at::Device> device, Optional<bool> pinned) {
    TORCH_CHECK(!pinned.value_or(false), "only tensors of the CPU can be pinned");
    TORCH_CHECK(layout.value_or(at::kStrided) == at::kStrided, "refacc has strided tensors only");
    c10::OptionalDeviceGuard guard(device);
    return at::detail::empty_strided_generic(size, stride, device_allocator(), keys(), c10::dtype_or_default(type));
}

void grow_storage(const Tensor &tensor) {
    size_t needed = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size(),
                                                     static_cast<size_t>(tensor.storage_offset()));
    if (!tensor.numel() || tensor.storage().nbytes() >= needed) return;
    c10::OptionalDeviceGuard guard(tensor.device());
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(tensor.storage(), needed);
}

const Tensor &resize_(const Tensor &self, IntArrayRef size, Optional<at::MemoryFormat> format) {
    auto *impl = self.unsafeGetTensorImpl();
    if (self.sizes() != size) impl->set_sizes_contiguous(size);
    if (format) impl->empty_tensor_restride(*format);
    grow_storage(self);
    return self;
}

Tensor &set_storage(Tensor &self, c10::Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
    auto *impl = self.unsafeGetTensorImpl();
    impl->set_storage_keep_dtype(std::move(source));
    if (stride.empty() && !size.empty()) {
        impl->set_storage_offset(offset);
        impl->set_sizes_contiguous(size);
    } else {
        impl->set_sizes_and_strides(size, stride, offset);
    }
    grow_storage(self);
    return self;
}

Tensor &set_none(Tensor &self) {
    c10::OptionalDeviceGuard guard(self.device());
    auto storage = c10::Storage(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), 0, device_allocator()->allocate(0), device_allocator(), true));
    return set_storage(self, std::move(storage), 0, {0}, {});
}

void record_stream_of(Tensor &self, c10::Stream stream) { record_stream(self.storage().data_ptr(), stream); }

// ---- element by element ----

// Whether a kernel takes this layout: 32-bit counts and strides, few dimensions.
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

// Launches an element-wise kernel over an iterator that fits; `scalars` is a word.
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

// ---- fills and copies: of any type, by the size of its elements ----

template <typename T> uint64_t bits_of(const Scalar &value) {
    T typed = value.to<T>();
    uint64_t bits = 0;
    std::memcpy(&bits, &typed, std::min(sizeof typed, sizeof bits));
    return bits;
}

Kernel by_size(Kernel first, int64_t bytes) { // the kernels for 1, 2, 4, 8 and 16 bytes follow one another
    return static_cast<Kernel>(static_cast<int>(first) + __builtin_ctzll(static_cast<uint64_t>(bytes)));
}

// One or several launches: a tensor of too many dimensions is taken apart.
template <typename Act> void in_parts(Tensor to, Tensor from, Act act) {
    if (!to.numel()) return;
    auto iterator = TensorIteratorConfig()
                        .check_all_same_dtype(true)
                        .resize_outputs(false)
                        .set_check_mem_overlap(false)
                        .add_output(to)
                        .add_const_input(from)
                        .build();
    if (fits(iterator)) {
        act(iterator);
        return;
    }
    auto largest = std::max_element(to.sizes().begin(), to.sizes().end()) - to.sizes().begin();
    int64_t dimension = to.numel() > INT32_MAX || to.dim() <= DIMENSIONS ? largest : 0;
    for (int64_t i = 0; i < to.size(dimension); i++)
        in_parts(to.select(dimension, i), from.select(dimension, i), act);
}

Tensor &fill_with(Tensor &self, const Scalar &value) {
    if (!self.numel()) return self;
    uint64_t bits = 0;
    switch (self.element_size() <= 8 ? self.scalar_type() : at::ScalarType::Undefined) {
#define CASE(type, name) \
    case at::ScalarType::name: bits = bits_of<type>(value); break;
        AT_FORALL_SCALAR_TYPES_WITH_COMPLEX(CASE)
#undef CASE
    default: // rare types, and complex numbers of 16 bytes
        self.copy_(at::empty(self.sizes(), self.options().device(at::kCPU)).fill_(value));
        return self;
    }
    in_parts(self, self, [&](const at::TensorIteratorBase &iterator) {
        Words words;
        words.pair(iterator.numel());
        add_layout(words, iterator.shape(), 1);
        words.word(bits).address(iterator.data_ptr(0));
        add_layout(words, iterator.strides(0), 0);
        launch(index_of(self), by_size(Kernel::fill_1, self.element_size()), {blocks(iterator.numel(), BLOCK)}, {BLOCK}, words);
    });
    return self;
}

Tensor &fill_with_tensor(Tensor &self, const Tensor &value) {
    TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ", value.dim(), " dimensions.");
    return fill_with(self, value.item());
}

Tensor &clear(Tensor &self) {
    if (!self.is_non_overlapping_and_dense()) return fill_with(self, 0);
    if (!self.numel()) return self;
    ra_stream stream = handle(current_stream(index_of(self)));
    RA(ra_memset_async, self.data_ptr(), 0u, 1u, self.nbytes(), stream);
    return self;
}

void copy_bytes(int device, void *to, const void *from, size_t bytes, bool wait) {
    if (!bytes) return;
    ra_stream stream = handle(current_stream(device));
    if (wait && !stream) {
        RA(ra_memcpy, to, from, bytes);
        return;
    }
    RA(ra_memcpy_async, to, from, bytes, stream);
    if (wait) RA(ra_stream_synchronize, stream);
}

bool same_dense_layout(const Tensor &a, const Tensor &b) {
    return a.strides() == b.strides() && a.is_non_overlapping_and_dense() && b.is_non_overlapping_and_dense();
}

Tensor to_host(const Tensor &self) {
    Tensor dense = self.is_non_overlapping_and_dense() ? self : self.contiguous();
    Tensor host = at::empty_strided(dense.sizes(), dense.strides(), dense.options().device(at::kCPU));
    copy_bytes(index_of(self), host.data_ptr(), dense.data_ptr(), dense.nbytes(), true);
    return host;
}

void from_host(const Tensor &host, const Tensor &self, bool non_blocking) {
    if (same_dense_layout(host, self)) {
        // what is not pinned may be gone when the stream gets there
        bool wait = !non_blocking || !is_pinned(host.data_ptr());
        copy_bytes(index_of(self), self.data_ptr(), host.data_ptr(), self.nbytes(), wait);
        return;
    }
    Tensor staged = at::empty(self.sizes(), self.options());
    from_host(host.contiguous(), staged, false);
    self.copy_(staged);
}

// Both on devices, of one type and shape.
void copy_on_device(const Tensor &from, const Tensor &to) {
    if (same_dense_layout(from, to)) {
        copy_bytes(index_of(to), to.data_ptr(), from.data_ptr(), to.nbytes(), false);
        return;
    }
    in_parts(to, from, [&](const at::TensorIteratorBase &iterator) {
        launch_elements(iterator, by_size(Kernel::copy_1, to.element_size()), 0);
    });
}

// Between tensors without a bit that says that they are conjugate or negative, of one shape.
void copy_plain(const Tensor &from, const Tensor &to, bool non_blocking) {
    bool from_device = from.device().type() == TYPE, to_device = to.device().type() == TYPE;
    if (from_device && !to_device) {
        bool direct = from.scalar_type() == to.scalar_type() && same_dense_layout(from, to);
        bool wait = !non_blocking || !is_pinned(to.data_ptr());
        if (direct)
            copy_bytes(index_of(from), to.data_ptr(), from.data_ptr(), to.nbytes(), wait);
        else
            to.copy_(to_host(from));
    } else if (!from_device) {
        from_host(from.scalar_type() == to.scalar_type() ? from : from.to(to.scalar_type()), to, non_blocking);
    } else if (from.scalar_type() != to.scalar_type()) {
        from_host(to_host(from).to(to.scalar_type()), to, false);
    } else if (from.device() == to.device()) {
        copy_on_device(from, to);
    } else { // between devices: one after the other
        Tensor dense = from.contiguous();
        synchronize(current_stream(index_of(from)));
        if (to.is_contiguous()) {
            copy_bytes(index_of(to), to.data_ptr(), dense.data_ptr(), to.nbytes(), true);
        } else {
            Tensor staged = at::empty(to.sizes(), to.options());
            copy_bytes(index_of(to), staged.data_ptr(), dense.data_ptr(), to.nbytes(), true);
            copy_on_device(staged, to);
        }
    }
}

// The same memory, as the values that are in it.
Tensor plain(const Tensor &tensor) {
    Tensor found = tensor.is_conj() ? tensor.conj() : tensor;
    return found.is_neg() ? found._neg_view() : found;
}

Tensor &copy(Tensor &self, const Tensor &source, bool non_blocking) {
    if (source.is_same(self) || !self.numel()) return self;
    Tensor from = plain(source);
    copy_plain(from.sizes() == self.sizes() ? from : from.expand(self.sizes()), plain(self), non_blocking);
    if (self.is_conj() != source.is_conj()) self.conj_physical_();
    if (self.is_neg() != source.is_neg()) self.neg_();
    return self;
}

Tensor copy_from(const Tensor &from, const Tensor &to, bool non_blocking) {
    Tensor self = to;
    return copy(self, from, non_blocking);
}

Tensor copy_from_and_resize(const Tensor &from, const Tensor &to) {
    if (to.sizes() != from.sizes()) to.resize_(from.sizes());
    return copy_from(from, to, false);
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

// Sums times a factor, or by their count; false where the CPU has to.
bool sum_into(const Tensor &self, at::OptionalIntArrayRef dimensions, bool keep, Optional<at::ScalarType> type, bool mean,
              float factor, const Tensor &out) {
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
    at::native::resize_output(out, shape);
    if (!out.numel()) return true;
    Tensor target = out.is_contiguous() ? out : at::empty(out.sizes(), out.options());
    int64_t count = over.count();
    Words words;
    words.pair(target.numel(), count);
    kept.put(words);
    over.put(words);
    words.address(self.data_ptr()).address(target.data_ptr()).floats(mean ? 1 / static_cast<float>(count) : factor);
    auto threads = std::min<uint32_t>(BLOCK, RA_LANES * std::max<uint32_t>(1, blocks(count, RA_LANES)));
    launch(index_of(self), Kernel::reduce_sum, {static_cast<uint32_t>(target.numel())}, {threads}, words);
    if (!target.is_same(out)) out.copy_(target);
    return true;
}

Tensor &sum_out(const Tensor &self, at::OptionalIntArrayRef dimensions, bool keep, Optional<at::ScalarType> type, Tensor &out) {
    bool done = sum_into(self, dimensions, keep, type, false, 1, out);
    return done ? out : ON_CPU(sum_IntList_out)(self, dimensions, keep, type, out);
}

Tensor &mean_out(const Tensor &self, at::OptionalIntArrayRef dimensions, bool keep, Optional<at::ScalarType> type, Tensor &out) {
    bool done = sum_into(self, dimensions, keep, type, true, 1, out);
    return done ? out : ON_CPU(mean_out)(self, dimensions, keep, type, out);
}

// ---- matrix products ----

// out = alpha * a * b + beta * c, of matrices or batches of them; false where the CPU has to.
bool multiply(const Tensor &a, const Tensor &b, const Tensor *c, const Scalar &alpha, const Scalar &beta, Tensor &out) {
    if (!are_float(a, b, out) || (c && !is_float(*c)) || alpha.isComplex() || beta.isComplex()) return false;
    const bool batched = a.dim() == 3;
    const int64_t rows = a.size(-2), depth = a.size(-1), columns = b.size(-1), batch = batched ? a.size(0) : 1;
    std::vector<int64_t> shape = {rows, columns};
    if (batched) shape.insert(shape.begin(), batch);
    const bool add = c && beta.to<float>() != 0;
    Tensor addend = add ? c->expand(shape) : Tensor();
    at::native::resize_output(out, shape);
    auto fits_kernel = [](const Tensor &t) {
        bool small = true;
        for (int64_t d = -2; d < 0; d++) small = small && fits(t.size(d)) && fits(t.stride(d) * std::max<int64_t>(1, t.size(d)));
        return small;
    };
    constexpr int64_t MOST = UINT16_MAX; // blocks along y and z
    if (!fits_kernel(a) || !fits_kernel(b) || !fits_kernel(out) || (add && !fits_kernel(addend)) ||
        blocks(rows, TILE) > MOST || batch > MOST)
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

Tensor &mm_out(const Tensor &a, const Tensor &b, Tensor &out) {
    return multiply(a, b, nullptr, 1, 0, out) ? out : ON_CPU(mm_out)(a, b, out);
}

Tensor &bmm_out(const Tensor &a, const Tensor &b, Tensor &out) {
    return multiply(a, b, nullptr, 1, 0, out) ? out : ON_CPU(bmm_out)(a, b, out);
}

Tensor &addmm_out(const Tensor &c, const Tensor &a, const Tensor &b, const Scalar &beta, const Scalar &alpha, Tensor &out) {
    return multiply(a, b, &c, alpha, beta, out) ? out : ON_CPU(addmm_out)(c, a, b, beta, alpha, out);
}

Tensor &baddbmm_out(const Tensor &c, const Tensor &a, const Tensor &b, const Scalar &beta, const Scalar &alpha, Tensor &out) {
    return multiply(a, b, &c, alpha, beta, out) ? out : ON_CPU(baddbmm_out)(c, a, b, beta, alpha, out);
}

Tensor &addmv_out(const Tensor &c, const Tensor &a, const Tensor &b, const Scalar &beta, const Scalar &alpha, Tensor &out) {
    at::native::resize_output(out, {a.size(0)});
    Tensor column = out.unsqueeze(1), addend = c.dim() ? c.unsqueeze(1) : c;
    bool done = multiply(a, b.unsqueeze(1), &addend, alpha, beta, column);
    return done ? out : ON_CPU(addmv_out)(c, a, b, beta, alpha, out);
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

// Computes into an output that may be of any layout.
template <typename Act> void into(Tensor &out, IntArrayRef shape, Act act) {
    at::native::resize_output(out, shape);
    Tensor target = out.is_contiguous() ? out : at::empty(shape, out.options());
    if (target.numel()) act(target);
    if (!target.is_same(out)) out.copy_(target);
}

bool softmax_into(const Tensor &self, int64_t dimension, bool half, Kernel kernel, Tensor &out) {
    if (!are_float(self, out) || half) return false;
    RowCounts counts(self, dimension);
    if (!counts.fits_kernel()) return false;
    Tensor input = self.contiguous();
    into(out, self.sizes(), [&](const Tensor &target) {
        Words words;
        words.address(input.data_ptr()).address(target.data_ptr()).pair(counts.rows, counts.columns).pair(counts.inner);
        launch(index_of(self), kernel, {blocks(counts.rows, WARPS)}, {BLOCK}, words);
    });
    return true;
}

Tensor &softmax_out(const Tensor &self, int64_t dimension, bool half, Tensor &out) {
    bool done = softmax_into(self, dimension, half, Kernel::softmax, out);
    return done ? out : ON_CPU(_softmax_out)(self, dimension, half, out);
}

Tensor &log_softmax_out(const Tensor &self, int64_t dimension, bool half, Tensor &out) {
    bool done = softmax_into(self, dimension, half, Kernel::log_softmax, out);
    return done ? out : ON_CPU(_log_softmax_out)(self, dimension, half, out);
}

bool softmax_backward_into(const Tensor &gradient, const Tensor &output, int64_t dimension, at::ScalarType type, Kernel kernel,
                           Tensor &out) {
    if (!are_float(gradient, output, out) || type != at::kFloat) return false;
    RowCounts counts(output, dimension);
    if (!counts.fits_kernel()) return false;
    Tensor dense = gradient.contiguous(), result = output.contiguous();
    into(out, output.sizes(), [&](const Tensor &target) {
        Words words;
        words.address(dense.data_ptr()).address(result.data_ptr()).address(target.data_ptr());
        words.pair(counts.rows, counts.columns).pair(counts.inner);
        launch(index_of(out), kernel, {blocks(counts.rows, WARPS)}, {BLOCK}, words);
    });
    return true;
}

Tensor &softmax_backward_out(const Tensor &gradient, const Tensor &output, int64_t dimension, at::ScalarType type, Tensor &out) {
    bool done = softmax_backward_into(gradient, output, dimension, type, Kernel::softmax_backward, out);
    return done ? out : ON_CPU(_softmax_backward_data_out)(gradient, output, dimension, type, out);
}

Tensor &log_softmax_backward_out(const Tensor &gradient, const Tensor &output, int64_t dimension, at::ScalarType type,
                                 Tensor &out) {
    bool done = softmax_backward_into(gradient, output, dimension, type, Kernel::log_softmax_backward, out);
    return done ? out : ON_CPU(_log_softmax_backward_data_out)(gradient, output, dimension, type, out);
}

// ---- losses ----

bool fits_nll(const Tensor &self, const Tensor &target, const Optional<Tensor> &weight) {
    return is_float(self) && self.dim() <= 2 && self.dim() > 0 && target.scalar_type() == at::kLong && fits(self.numel()) &&
           target.device().type() == TYPE && (!weight || !weight->defined() || is_float(*weight));
}

Tensor weights_of(const Optional<Tensor> &weight) { return weight && weight->defined() ? weight->contiguous() : Tensor(); }

std::tuple<Tensor &, Tensor &> nll_loss_forward_out(const Tensor &self, const Tensor &target, const Optional<Tensor> &weight,
                                                    int64_t reduction, int64_t ignored, Tensor &out, Tensor &total) {
    if (!fits_nll(self, target, weight) || !are_float(out, total))
        return ON_CPU(nll_loss_forward_output)(self, target, weight, reduction, ignored, out, total);
    Tensor input = self.contiguous(), targets = target.contiguous(), weights = weights_of(weight);
    const int64_t classes = self.size(-1), rows = self.dim() == 1 ? 1 : self.size(0);
    const bool each = reduction == NLL_NONE && self.dim() == 2;
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
        into(out, {rows}, run);
        clear(total);
    } else {
        into(out, {}, run);
    }
    return {out, total};
}

Tensor &nll_loss_backward_out(const Tensor &gradient, const Tensor &self, const Tensor &target, const Optional<Tensor> &weight,
                              int64_t reduction, int64_t ignored, const Tensor &total, Tensor &out) {
    if (!fits_nll(self, target, weight) || !are_float(gradient, total, out))
        return ON_CPU(nll_loss_backward_grad_input)(gradient, self, target, weight, reduction, ignored, total, out);
    Tensor dense = gradient.contiguous(), targets = target.contiguous(), weights = weights_of(weight);
    into(out, self.sizes(), [&](Tensor to) {
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

Tensor &mse_loss_out(const Tensor &self, const Tensor &target, int64_t reduction, Tensor &out) {
    if (!are_float(self, target, out)) return ON_CPU(mse_loss_out)(self, target, reduction, out);
    Tensor squares = reduction == NLL_NONE ? out : Tensor();
    auto iterator = TensorIterator::binary_op(squares, self, target);
    bool done = of_floats(iterator, Kernel::squared_difference);
    if (done && reduction != NLL_NONE)
        done = sum_into(iterator.output(), std::nullopt, false, std::nullopt, reduction == NLL_MEAN, 1, out);
    return done ? out : ON_CPU(mse_loss_out)(self, target, reduction, out);
}

Tensor &mse_loss_backward_out(const Tensor &gradient, const Tensor &self, const Tensor &target, int64_t reduction, Tensor &out) {
    float factor = reduction == NLL_MEAN ? 2 / static_cast<float>(self.numel()) : 2;
    auto iterator = ternary(out, gradient, self, target);
    bool done = of_floats(iterator, Kernel::mse_backward, factor);
    return done ? out : ON_CPU(mse_loss_backward_grad_input)(gradient, self, target, reduction, out);
}

Tensor mse_loss_backward(const Tensor &gradient, const Tensor &self, const Tensor &target, int64_t reduction) {
    Tensor out = at::empty_like(self, at::MemoryFormat::Contiguous);
    return mse_loss_backward_out(gradient, self, target, reduction, out);
}

// ---- convolutions ----

// A transposed convolution is the gradient of one with input and output exchanged: `input` and `output`
// are those of that one.
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

// ---- registration ----

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    m.impl("empty.memory_format", empty);
    m.impl("empty_strided", empty_strided);
    m.impl("resize_", resize_);
    m.impl("set_.source_Storage_storage_offset", set_storage);
    m.impl("set_.source_Storage", [](Tensor &self, c10::Storage source) -> Tensor & { return at::native::set_(self, source); });
    m.impl("set_.source_Tensor", at::native::set_tensor_);
    m.impl("set_", set_none);
    m.impl("as_strided", at::native::as_strided_tensorimpl);
    m.impl("view", at::native::view);
    m.impl("view_as_real", at::native::view_as_real);
    m.impl("view_as_complex", at::native::view_as_complex);
    m.impl("_reshape_alias", at::native::_reshape_alias);
    m.impl("unfold", at::native::unfold);
    m.impl("record_stream", record_stream_of);
    // torch has a kernel for all devices, which takes those of the CPU only
    m.impl("conj_physical_", torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
    m.impl("copy_", copy);
    m.impl("_copy_from", copy_from);
    m.impl("_copy_from_and_resize", copy_from_and_resize);
    m.impl("fill_.Scalar", fill_with);
    m.impl("fill_.Tensor", fill_with_tensor);
    m.impl("zero_", clear);
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
    m.impl("mm.out", mm_out);
    m.impl("bmm.out", bmm_out);
    m.impl("addmm.out", addmm_out);
    m.impl("addmv.out", addmv_out);
    m.impl("baddbmm.out", baddbmm_out);
    m.impl("_softmax.out", softmax_out);
    m.impl("_log_softmax.out", log_softmax_out);
    m.impl("_softmax_backward_data.out", softmax_backward_out);
    m.impl("_log_softmax_backward_data.out", log_softmax_backward_out);
    m.impl("nll_loss_forward.output", nll_loss_forward_out);
    m.impl("nll_loss_backward.grad_input", nll_loss_backward_out);
    m.impl("mse_loss.out", mse_loss_out);
    m.impl("mse_loss_backward", mse_loss_backward);
    m.impl("mse_loss_backward.grad_input", mse_loss_backward_out);
    m.impl("convolution_overrideable", convolution);
    m.impl("convolution_backward_overrideable", convolution_backward);
}

} // namespace
} // namespace refacc
