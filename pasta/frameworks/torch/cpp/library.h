// The table of functions of libpasta, and records in its ring.
#pragma once

#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "pasta_framework.h"

// build.py hides all other symbols, Python 3.8's PyMODINIT_FUNC among them.
#define PASTA_EXPORT extern "C" __attribute__((visibility("default")))

namespace pasta {

inline const pasta_framework *library; // NULL until find_library succeeds
inline uint32_t generation;            // of the ring that the hooks write to

// Finds the table through its function at `address`; 0: libpasta was preloaded. False if there is none of this version.
inline bool find_library(unsigned long long address = 0) {
    void *symbol = address ? reinterpret_cast<void *>(address) : dlsym(RTLD_DEFAULT, PASTA_FRAMEWORK_SYMBOL);
    pasta_framework_function *find;
    *reinterpret_cast<void **>(&find) = symbol;
    library = find ? find(PASTA_FRAMEWORK_VERSION) : nullptr;
    return library;
}

inline uint32_t present_generation() { return __atomic_load_n(library->generation, __ATOMIC_RELAXED); }

// False in the child of a fork: it has another ring, if any, and other string ids.
inline bool owns_ring() { return present_generation() == generation; }

// Reserves a record of the thread, whose fields are unset; nullptr if it is dropped. pasta_framework_publish makes it
// visible.
template <typename Payload>
Payload *reserve(uint32_t thread, pasta_event_kind kind, int16_t device = PASTA_ABSENT_DEVICE) {
    constexpr size_t slots = (sizeof(pasta_header) + sizeof(Payload)) / PASTA_SLOT;
    return static_cast<Payload *>(library->reserve_on(thread, kind, slots, device));
}

// The same, with absent fields.
template <typename Payload>
Payload *begin(uint32_t thread, pasta_event_kind kind, int16_t device = PASTA_ABSENT_DEVICE) {
    auto *payload = reserve<Payload>(thread, kind, device);
    if (payload) std::memset(static_cast<void *>(payload), 0xff, sizeof *payload);
    return payload;
}

inline uint32_t intern(const char *text) { return library->intern(text, std::strlen(text)); }

inline uint32_t system_thread_id() { return static_cast<uint32_t>(syscall(SYS_gettid)); }

} // namespace pasta
