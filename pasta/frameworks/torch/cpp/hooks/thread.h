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
    static constexpr uint32_t TENSOR_SETS = 1 << 11, WAYS = 4, NAMES = 1 << 9, SHAPES = 1 << 9;
    struct Name {
        uint32_t id;
        char text[60]; // with its NUL
    };
    struct Shape {
        uint64_t hash;
        uint32_t id;
    };

    alignas(64) uint64_t tensors[TENSOR_SETS][WAYS]; // hashes; the place gives the id
    uint32_t replaced;                               // tensors that were added
    alignas(64) Name names[NAMES]; // by the text's address, at which another text may be now
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

// Where a text may be known.
inline Caches::Name &place_of_name(Thread &thread, const char *text) {
    uint64_t at = reinterpret_cast<uint64_t>(text);
    return thread.caches.names[(at >> 4 ^ at >> 13) % Caches::NAMES];
}

inline uint32_t intern_name(Caches::Name &known, const char *text) {
    if (known.id && !std::strcmp(known.text, text)) return known.id;
    size_t length = std::strlen(text);
    uint32_t id = library->intern(text, length);
    if (length < sizeof known.text) {
        known.id = id;
        std::memcpy(known.text, text, length + 1);
    }
    return id;
}

} // namespace pasta
