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
constexpr size_t MAX_FACTORS = 14; // dimensions; the last factors are those of a tensor's other values

inline uint64_t hash_of(c10::IntArrayRef values) {
    uint64_t hash = mix(factors.of[0], values.size());
    for (int64_t value : values) hash = mix(hash, static_cast<uint64_t>(value));
    return hash;
}

inline uint64_t hash_of(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
    size_t count = sizes.size();
    if (__builtin_expect(count != strides.size() || count > MAX_FACTORS, 0)) return hash_of(sizes) + 3 * hash_of(strides);
    uint64_t sum = count;
    for (size_t i = 0; i < count; i++)
        sum += static_cast<uint64_t>(sizes[i]) * factors.of[2 * i] + static_cast<uint64_t>(strides[i]) * factors.of[2 * i + 1];
    return sum;
}

// String id of the numbers with commas between them.
inline uint32_t intern_numbers(Thread &thread, c10::IntArrayRef values) {
    uint64_t hash = hash_of(values);
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

// A tensor that is memory of its own, and a hash of its storage, shape and type.
struct Seen {
    const c10::TensorImpl *impl;
    c10::StorageImpl *storage;
    uint64_t address, hash;
};

// False if the tensor is fake, meta, sparse, nested, or answers in Python.
inline bool see(const at::Tensor &tensor, Seen &seen) {
    const c10::TensorImpl *impl = tensor.unsafeGetTensorImpl();
    if (!tensor.defined() || impl->is_python_dispatch() || impl->has_symbolic_sizes_strides() ||
        impl->layout() != c10::kStrided || impl->device_type() == c10::DeviceType::Meta)
        return false;
    c10::StorageImpl *storage = impl->unsafe_storage().unsafeGetStorageImpl();
    uint64_t address = storage ? reinterpret_cast<uint64_t>(storage->_mutable_data_ptr_no_checks().get()) : 0;
    if (!address) return false;
    uint64_t hash = mix(1, hash_of(impl->sizes(), impl->strides()) + address * factors.of[28] +
                               static_cast<uint64_t>(impl->storage_offset()) * factors.of[29] +
                               static_cast<uint64_t>(c10::typeMetaToScalarType(impl->dtype())) * factors.of[30] +
                               storage->nbytes() * factors.of[31]); // the allocator may reuse memory for another size
    seen = {impl, storage, address, hash};
    return true;
}

// Id of a tensor, which is recorded where it is not in the thread's cache; 0: it could not be.
inline uint32_t tensor_id(Thread &thread, const Seen &seen) {
    uint32_t set = static_cast<uint32_t>(seen.hash % Caches::TENSOR_SETS);
    uint32_t first = (thread.framework_thread * Caches::TENSOR_SETS + set) * Caches::WAYS + 1;
    uint64_t *known = thread.caches.tensors[set];
    uint32_t found = Caches::WAYS;
    for (uint32_t way = 0; way < Caches::WAYS; way++) found = known[way] == seen.hash ? way : found; // no branches
    if (found < Caches::WAYS) return first + found;
    const c10::TensorImpl *impl = seen.impl;
    int16_t device = impl->device_type() == c10::DeviceType::CPU ? PASTA_ABSENT_DEVICE : impl->device().index();
    auto *e = begin<pasta_tensor>(thread.id, PASTA_EVENT_tensor_create, device);
    if (!e) return 0;
    uint32_t way = thread.caches.replaced++ % Caches::WAYS;
    e->storage = seen.address;
    e->bytes = seen.storage->nbytes();
    e->offset = static_cast<uint64_t>(impl->storage_offset()) * impl->itemsize();
    e->tensor = first + way;
    e->role = 0;
    e->shape = intern_numbers(thread, impl->sizes());
    e->strides = intern_numbers(thread, impl->strides());
    e->dtype = intern_type(thread, c10::typeMetaToScalarType(impl->dtype()));
    e->name = 0;
    pasta_framework_publish(e);
    known[way] = seen.hash;
    return first + way;
}

// Tensors that an operator takes or gives: the first ones, whose ids are written later, when the lines of the cache have
// arrived from memory. Others are in records of their own.
template <uint16_t CAPACITY> class SeenTensors {
  public:
    SeenTensors(Thread &thread, uint16_t role) : thread_(thread), role_(role) {}

    template <typename Values> void add_all(const Values &values) {
        for (const c10::IValue &each : values) add(each, 0);
    }

    // Writes the ids to an array, whose other elements are absent; returns their number.
    uint16_t write(uint32_t (&ids)[CAPACITY]) {
        flush();
        std::memset(ids, 0xff, sizeof ids);
        uint16_t count = 0;
        for (uint16_t i = 0; i < count_; i++)
            if (uint32_t id = tensor_id(thread_, first_[i])) ids[count++] = id;
        return count;
    }

  private:
    static constexpr int MAX_DEPTH = 3; // of nested lists and tuples

    void add(const c10::IValue &value, int depth) {
        if (value.isTensor()) {
            add(value.toTensor());
        } else if (depth < MAX_DEPTH && value.isList()) {
            for (const c10::IValue &each : value.toListRef()) {
                if (!each.isTensor() && !each.isList()) break; // numbers
                add(each, depth + 1);
            }
        } else if (depth < MAX_DEPTH && value.isTuple()) {
            for (const c10::IValue &each : value.toTupleRef().elements()) add(each, depth + 1);
        }
    }

    void add(const at::Tensor &tensor) {
        if (count_ == CAPACITY) {
            add_more(tensor);
        } else if (see(tensor, first_[count_])) {
            __builtin_prefetch(thread_.caches.tensors[first_[count_].hash % Caches::TENSOR_SETS]);
            count_++;
        }
    }

    void add_more(const at::Tensor &tensor) {
        Seen seen;
        uint32_t id = see(tensor, seen) ? tensor_id(thread_, seen) : 0;
        if (!id) return;
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
    Seen first_[CAPACITY];
    uint32_t more_[4];
    uint16_t count_ = 0, role_, more_count_ = 0;
};

} // namespace pasta
