// Tensors on the device: creation, views, fills, copies; and the fallback to the CPU.
#include "operators.h"

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>

#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>

namespace refacc {

void on_cpu(const c10::OperatorHandle &op, torch::jit::Stack *stack) { at::native::cpu_fallback(op, stack); }

namespace {

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

// One or several launches: a tensor of too many dimensions is split.
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

} // namespace

Tensor &clear(Tensor &self) {
    if (!self.is_non_overlapping_and_dense()) return fill_with(self, 0);
    if (!self.numel()) return self;
    ra_stream stream = handle(current_stream(index_of(self)));
    RA(ra_memset_async, self.data_ptr(), 0u, 1u, self.nbytes(), stream);
    return self;
}

namespace {

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
        // unpinned memory may be freed before the stream copies it
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

// Between tensors of one shape, without conjugate or negative bits.
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

// The stored values: a view without conjugate or negative bits.
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

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); } // changes no types

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
    m.impl("copy_", copy);
    m.impl("_copy_from", copy_from);
    m.impl("_copy_from_and_resize", copy_from_and_resize);
    m.impl("fill_.Scalar", fill_with);
    m.impl("fill_.Tensor", fill_with_tensor);
    m.impl("zero_", clear);
    // torch has a kernel for all devices that accepts only CPU tensors
    m.impl("conj_physical_", torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

} // namespace
} // namespace refacc
