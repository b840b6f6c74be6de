// Where in the Python program a thread is.
#pragma once

#include "modules.h"
#include "stacks.h"

namespace pasta {

struct Location {
    uint32_t stack = 0, module = 0; // ids; 0: none
};

// Whether the interpreter is ending: a thread that takes its lock then is ended there.
inline bool is_finalizing() {
#if PY_VERSION_HEX >= 0x030d0000
    return !Py_IsInitialized() || Py_IsFinalizing();
#else
    return !Py_IsInitialized() || _Py_IsFinalizing();
#endif
}

// Location of this thread; empty if it runs no Python. Takes the interpreter's lock for what is new only, if frames
// can be read without it.
inline Location locate() {
    Location location;
    PyThreadState *thread = PyGILState_GetThisThreadState();
    if (!thread || is_finalizing()) return location;
    Walk walk;
    if (options.reads_frames) {
        walk = walk_frames(thread);
        if (!walk.count) return location;
        const Stack *known = stacks.find(walk.hash);
        bool has_module = modules.find(walk, &location.module);
        if (!known || known->hash.load(std::memory_order_relaxed)) {
            location.stack = known ? known->id.load(std::memory_order_relaxed) : 0;
            if (has_module) return location;
        }
    }
    PyGILState_STATE state = PyGILState_Ensure();
    if (!options.reads_frames) walk = walk_objects(PyEval_GetFrame());
    if (walk.count) {
        if (!modules.find(walk, &location.module)) location.module = modules.ask(walk);
        location.stack = options.reads_frames ? stacks.record(thread, walk.hash) : stacks.record(PyEval_GetFrame());
    }
    PyGILState_Release(state);
    return location;
}

} // namespace pasta
