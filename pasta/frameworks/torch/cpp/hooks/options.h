// What the hooks record.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace pasta {

constexpr uint32_t MAX_FRAMES = 128;

// Requested by the launcher, or by a block of the program (pasta.profile).
struct Request {
    bool operators = false, tensors = false;
    uint32_t frames = 0;             // of each stack; 0: neither stacks nor modules
    PyObject *module_call = nullptr; // code of nn.Module.__call__; None: no modules
    PyObject *namer = nullptr;       // Python function that names modules and records their parameters

    // Takes references to the objects.
    static Request of(bool operators, bool tensors, int frames, PyObject *module_call, PyObject *namer) {
        Py_INCREF(module_call);
        Py_INCREF(namer);
        return {operators, tensors, std::min<uint32_t>(std::max(frames, 0), MAX_FRAMES), module_call, namer};
    }
};

// The requests in force, which may be both, and what follows from them.
struct alignas(64) Options { // what every operator reads is first
    std::atomic<uint32_t> epoch{}; // incremented when ids are reassigned and everything is recorded again
    uint32_t frames = 0;
    bool tensors = false;
    bool reads_frames = false; // without the interpreter's lock
    PyObject *module_call = nullptr, *namer = nullptr;
    Request launch, block;
};
inline Options options;

constexpr uint64_t HASH_FACTOR = UINT64_C(0x9e3779b97f4a7c15);

inline uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * HASH_FACTOR;
    return hash ^ hash >> 32;
}

} // namespace pasta
