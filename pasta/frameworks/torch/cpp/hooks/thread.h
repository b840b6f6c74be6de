// What the hooks hold for each thread that runs operators.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/ScalarType.h>
#include <pthread.h>

#include "../library.h"
#include "../per_thread.h"
#include "options.h"

namespace pasta {

// Ids that the thread has recorded, by hash: a collision replaces the older one, which is recorded again.
struct Caches {
    static constexpr uint32_t TENSOR_SETS = 1 << 11, WAYS = 4, NAME_SETS = 1 << 10, NAME_WAYS = 2, SHAPES = 1 << 9;
    struct Name {
        uint64_t hash; // of the text
        uint32_t id;
    };
    struct Shape {
        uint64_t hash;
        uint32_t id;
    };

    alignas(64) uint64_t tensors[TENSOR_SETS][WAYS]; // hashes; the place gives the id
    uint32_t replaced;                               // tensors that were added
    alignas(64) Name names[NAME_SETS][NAME_WAYS]; // the newest first
    Shape shapes[SHAPES];
    uint32_t types[static_cast<size_t>(c10::ScalarType::NumOptions)];
};

struct Thread {
    uint32_t id = system_thread_id(), epoch = options.epoch;
    uint32_t framework_thread = static_cast<uint32_t>(at::RecordFunction::currentThreadId());
    uint32_t depth = 0;  // of open operators
    uint32_t module = 0; // of the outermost operator
    unsigned long python_thread = static_cast<unsigned long>(pthread_self());
    uint32_t *stack = library->stack(); // id of the outermost operator's; allocations read it there
    Caches caches = {};

    Thread() { *stack = 0; }

    static Thread *current() {
        Thread *known = PerThread<Thread>::get();
        return known && known->epoch == options.epoch ? known : nullptr;
    }

    // A new one where there is none, or none of this epoch: in another block or the child of a fork its ids are unknown.
    static Thread &ensure() {
        Thread *known = current();
        return known ? *known : PerThread<Thread>::renew();
    }
};

inline uint32_t thread_id() {
    const Thread *known = Thread::current();
    return known ? known->id : system_thread_id();
}

inline uint64_t hash_of(const char *text, size_t length) {
    uint64_t hash = length + 1, word = 0;
    if (length < sizeof word) {
        std::memcpy(&word, text, length);
        return mix(hash, word);
    }
    for (size_t at = 0; at + sizeof word < length; at += sizeof word) {
        std::memcpy(&word, text + at, sizeof word);
        hash = mix(hash, word);
    }
    std::memcpy(&word, text + length - sizeof word, sizeof word); // which may overlap the one before
    return mix(hash, word);
}

// By the text, not its address: those of gradients are temporary.
inline uint32_t intern_name(Thread &thread, const char *text) {
    size_t length = std::strlen(text);
    uint64_t hash = hash_of(text, length);
    Caches::Name *known = thread.caches.names[hash % Caches::NAME_SETS];
    for (uint32_t way = 0; way < Caches::NAME_WAYS; way++)
        if (known[way].hash == hash && known[way].id) return known[way].id;
    uint32_t id = library->intern(text, length);
    std::copy_backward(known, known + Caches::NAME_WAYS - 1, known + Caches::NAME_WAYS);
    known[0] = {hash, id};
    return id;
}

} // namespace pasta
