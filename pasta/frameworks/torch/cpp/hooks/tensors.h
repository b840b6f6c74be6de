// Tensors that operators take and give.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <charconv>

#include "thread.h"

namespace pasta {

// Odd factors of a hash of what a tensor is. Each value has its own, so that no product waits for another one.
struct Factors {
    static constexpr size_t COUNT = 32;
    uint64_t of[COUNT];
    constexpr Factors() : of() {
        uint64_t state = UINT64_C(0x9e3779b97f4a7c15);
        for (uint64_t &each : of) {
            state = (state ^ state >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
            each = state | 1;
        }
    }
};
inline constexpr Factors factors;

// Takes every second factor from `first` on.
inline uint64_t hash_of(c10::IntArrayRef values, size_t first) {
    uint64_t sum = values.size();
    for (size_t i = 0; i < values.size(); i++) {
        if (first + 2 * i >= Factors::COUNT) sum = mix(sum, i);
        sum += static_cast<uint64_t>(values[i]) * factors.of[(first + 2 * i) % Factors::COUNT];
    }
    return sum;
}

// String id of the numbers with commas between them.
inline uint32_t intern_numbers(Thread &thread, c10::IntArrayRef values) {
    uint64_t hash = mix(1, hash_of(values, 0));
    Caches::Shape &known = thread.caches.shapes[hash % Caches::SHAPES];
    if (known.hash == hash) return known.id;
    char text[512], *at = text, *end = text + sizeof text - 1;
    for (int64_t value : values) {
        if (at != text) *at++ = ',';
        auto [after, error] = std::to_chars(at, end, value);
        if (error != std::errc()) break;
        at = after;
    }
    known = {hash, library->intern(text, static_cast<size_t>(at - text))};
    return known.id;
}

inline uint32_t intern_type(Thread &thread, c10::ScalarType type) {
    size_t number = static_cast<size_t>(type);
    if (number >= std::size(thread.caches.types)) return intern(c10::toString(type));
    uint32_t &known = thread.caches.types[number];
    if (!known) known = intern(c10::toString(type));
    return known;
}

// The tensor if it is memory of its own; nullptr if it is fake, meta, sparse, nested, or answers in Python.
inline const c10::TensorImpl *dense(const at::Tensor &tensor) {
    const c10::TensorImpl *impl = tensor.unsafeGetTensorImpl();
    if (!tensor.defined() || impl->is_python_dispatch() || impl->has_symbolic_sizes_strides() || !impl->has_storage() ||
        impl->layout() != c10::kStrided || impl->device_type() == c10::DeviceType::Meta)
        return nullptr;
    return impl;
}

// Id of a tensor, which is recorded where it is not in the thread's cache; 0: it has none.
inline uint32_t tensor_id(Thread &thread, const at::Tensor &tensor) {
    const c10::TensorImpl *impl = dense(tensor);
    if (!impl) return 0;
    c10::StorageImpl *storage = impl->unsafe_storage().unsafeGetStorageImpl();
    uint64_t address = reinterpret_cast<uint64_t>(storage->_mutable_data_ptr_no_checks().get());
    if (!address) return 0;
    c10::IntArrayRef sizes = impl->sizes(), strides = impl->strides();
    c10::ScalarType type = c10::typeMetaToScalarType(impl->dtype());
    uint64_t hash = mix(1, hash_of(sizes, 0) + hash_of(strides, 1) + address * factors.of[28] +
                               static_cast<uint64_t>(impl->storage_offset()) * factors.of[29] +
                               static_cast<uint64_t>(type) * factors.of[30]);
    uint32_t place = static_cast<uint32_t>(hash % Caches::TENSORS);
    uint32_t id = thread.framework_thread * Caches::TENSORS + place + 1;
    uint64_t &known = thread.caches.tensors[place];
    if (known == hash) return id;
    int16_t device = impl->device_type() == c10::DeviceType::CPU ? PASTA_ABSENT_DEVICE : impl->device().index();
    auto *e = begin<pasta_tensor>(thread.id, PASTA_EVENT_tensor_create, device);
    if (!e) return 0;
    e->storage = address;
    e->bytes = storage->nbytes();
    e->offset = static_cast<uint64_t>(impl->storage_offset()) * impl->itemsize();
    e->tensor = id;
    e->role = 0;
    e->shape = intern_numbers(thread, sizes);
    e->strides = intern_numbers(thread, strides);
    e->dtype = intern_type(thread, type);
    e->name = 0;
    pasta_framework_publish(e);
    known = hash;
    return id;
}

// Collects ids of an operator's tensors: the first ones into an array of the caller, the others into records of their
// own.
class TensorIds {
  public:
    TensorIds(Thread &thread, uint16_t role, uint32_t *ids, uint16_t capacity)
        : thread_(thread), ids_(ids), capacity_(capacity), role_(role) {}
    ~TensorIds() { flush(); }

    uint16_t count() const { return count_; } // in the caller's array

    void add(const c10::IValue &value, int depth = 0) {
        if (value.isTensor()) {
            add(value.toTensor());
        } else if (value.isTensorList()) {
            for (const at::Tensor &each : value.toTensorList()) add(each);
        } else if (depth < MAX_DEPTH && value.isList()) {
            for (const c10::IValue &each : value.toListRef()) {
                if (!each.isTensor() && !each.isList()) break; // numbers
                add(each, depth + 1);
            }
        } else if (depth < MAX_DEPTH && value.isTuple()) {
            for (const c10::IValue &each : value.toTupleRef().elements()) add(each, depth + 1);
        }
    }

  private:
    static constexpr int MAX_DEPTH = 3; // of nested lists and tuples

    void add(const at::Tensor &tensor) {
        uint32_t id = tensor_id(thread_, tensor);
        if (!id) return;
        if (count_ < capacity_) {
            ids_[count_++] = id;
            return;
        }
        more_[more_count_++] = id;
        if (more_count_ == std::size(more_)) flush();
    }

    void flush() {
        if (!more_count_) return;
        if (auto *e = begin<pasta_operator_tensors>(thread_.id, PASTA_EVENT_operator_tensors)) {
            e->count = more_count_;
            e->role = role_;
            std::copy(more_, more_ + more_count_, e->tensor);
            pasta_framework_publish(e);
        }
        more_count_ = 0;
    }

    Thread &thread_;
    uint32_t *ids_, more_[4];
    uint16_t capacity_, count_ = 0, role_, more_count_ = 0;
};

} // namespace pasta
