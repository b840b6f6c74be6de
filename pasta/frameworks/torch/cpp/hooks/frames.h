// Walks over the Python frames of a thread.
#pragma once

#include "options.h"

#if PY_VERSION_HEX < 0x030b0000
#include <frameobject.h>
#endif

namespace pasta {

// What a walk finds of a stack, innermost frame first.
struct Walk {
    uint64_t hash = 1; // of the frames that are recorded; of all, hidden ones too, by walk_frames
    uint32_t count = 0;
    PyObject *innermost = nullptr, *outermost = nullptr; // modules that run; borrowed from the frames

    void add_module(PyObject *self) {
        if (!self) return;
        if (!innermost) innermost = self;
        outermost = self;
    }
};

// Walks from a frame on, MAX_FRAMES at most, through Python's own interface, in any version; the caller holds the interpreter's lock.
// Calls `visit(frame, code, depth)` for each frame that is recorded.
template <typename Visit> Walk walk_objects(PyFrameObject *frame, Visit visit) {
    Walk walk;
    Py_XINCREF(frame);
    while (frame && walk.count < MAX_FRAMES) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        uint32_t depth = walk.count++;
        if (depth < options.frames) {
#if PY_VERSION_HEX >= 0x030b0000
            int instruction = PyFrame_GetLasti(frame);
#else
            int instruction = frame->f_lasti;
#endif
            walk.hash = mix(mix(walk.hash, reinterpret_cast<uint64_t>(code)), static_cast<uint64_t>(instruction));
            visit(frame, code, depth);
        }
        if (reinterpret_cast<PyObject *>(code) == options.module_call) {
#if PY_VERSION_HEX >= 0x030c0000
            PyObject *self = PyFrame_GetVarString(frame, "self");
            if (!self) PyErr_Clear();
            walk.add_module(self);
            Py_XDECREF(self); // the frame holds a reference
#elif PY_VERSION_HEX < 0x030b0000 // 3.11 has no function for it
            walk.add_module(frame->f_localsplus[0]);
#endif
        }
        Py_DECREF(code);
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    return walk;
}

inline Walk walk_objects(PyFrameObject *frame) {
    return walk_objects(frame, [](PyFrameObject *, PyCodeObject *, uint32_t) {});
}

#if PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030e0000 && !defined(Py_GIL_DISABLED)

// The interpreter's frame, as laid out in CPython 3.11 to 3.13 (Include/internal/pycore_frame.h), which no longer
// change. A thread can follow its own frames by it without the lock and without frame objects.
struct Frame {
#if PY_VERSION_HEX < 0x030c0000
    void *function, *globals, *builtins, *locals;
    PyObject *executable;
    void *object;
    Frame *previous;
    const char *instruction;
    int top;
    bool is_entry;
#else
    PyObject *executable;
    Frame *previous;
    void *function, *globals, *builtins, *locals, *object;
    const char *instruction;
    int top;
    uint16_t return_offset;
#endif
    char owner;
    PyObject *variables[1];
};
enum FrameOwner { FRAME_OWNED_BY_GENERATOR_ = 1, FRAME_OWNED_BY_CSTACK_ = 3 };

inline const Frame *innermost_frame(const PyThreadState *state) {
#if PY_VERSION_HEX < 0x030d0000
    return reinterpret_cast<const Frame *>(state->cframe->current_frame);
#else
    return reinterpret_cast<const Frame *>(state->current_frame);
#endif
}

inline const Frame *previous(const Frame *frame) { return frame->previous; }
inline PyObject *code_of(const Frame *frame) { return frame->executable; }
inline PyObject *first_variable(const Frame *frame) { return frame->variables[0]; }
inline bool calls_from_c(const Frame *frame) { return frame->owner == FRAME_OWNED_BY_CSTACK_; }
inline uint64_t hash_with(uint64_t hash, const Frame *frame) {
    return hash * HASH_FACTOR + reinterpret_cast<uint64_t>(frame->instruction);
}

// Skips frames that Python itself hides: this frame or the nearest outer one that runs code of the program.
inline const Frame *visible(const Frame *frame) {
    for (; frame; frame = frame->previous) {
        if (calls_from_c(frame) || !PyCode_Check(frame->executable)) continue;
        auto *code = reinterpret_cast<PyCodeObject *>(frame->executable);
        if (frame->owner == FRAME_OWNED_BY_GENERATOR_ ||
            frame->instruction >= code->co_code_adaptive + 2 * code->_co_firsttraceable)
            break;
    }
    return frame;
}

// Checks the assumed frame layout against Python's own walk; the caller holds the lock.
inline bool frame_layout_matches() {
    const Frame *frame = visible(innermost_frame(PyThreadState_Get()));
    PyFrameObject *object = PyEval_GetFrame();
    bool same = true;
    Py_XINCREF(object);
    while (object && same) {
        PyCodeObject *code = PyFrame_GetCode(object);
        same = frame && frame->executable == reinterpret_cast<PyObject *>(code) &&
               PyFrame_GetLasti(object) == static_cast<int>(frame->instruction - code->co_code_adaptive);
        Py_DECREF(code);
        PyFrameObject *back = PyFrame_GetBack(object);
        Py_DECREF(object);
        object = back;
        if (same) frame = visible(frame->previous);
    }
    Py_XDECREF(object);
    return same && !frame;
}

// Whether variables[0] of a function's frame is its first argument itself, not a cell. `code` may be None.
inline bool first_argument_is_plain(PyObject *code) {
    return !code || !PyCode_Check(code) || reinterpret_cast<PyCodeObject *>(code)->co_ncellvars == 0;
}

#elif PY_VERSION_HEX < 0x030b0000

using Frame = PyFrameObject;
inline const Frame *innermost_frame(const PyThreadState *state) { return state->frame; }
inline const Frame *previous(const Frame *frame) { return frame->f_back; }
inline PyObject *code_of(const Frame *frame) { return reinterpret_cast<PyObject *>(frame->f_code); }
inline PyObject *first_variable(const Frame *frame) { return frame->f_localsplus[0]; }
inline bool calls_from_c(const Frame *) { return false; }
inline uint64_t hash_with(uint64_t hash, const Frame *frame) {
    return (hash * HASH_FACTOR + reinterpret_cast<uint64_t>(frame->f_code)) * HASH_FACTOR + static_cast<uint64_t>(frame->f_lasti);
}
inline bool frame_layout_matches() { return true; }
inline bool first_argument_is_plain(PyObject *code) {
    return !code || !PyCode_Check(code) || !PyTuple_GET_SIZE(reinterpret_cast<PyCodeObject *>(code)->co_cellvars);
}

#else
struct Frame;
inline const Frame *innermost_frame(const PyThreadState *) { return nullptr; }
inline const Frame *previous(const Frame *) { return nullptr; }
inline PyObject *code_of(const Frame *) { return nullptr; }
inline PyObject *first_variable(const Frame *) { return nullptr; }
inline bool calls_from_c(const Frame *) { return false; }
inline uint64_t hash_with(uint64_t hash, const Frame *) { return hash; }
inline bool frame_layout_matches() { return false; }
inline bool first_argument_is_plain(PyObject *) { return false; }
#endif

// Walks over the frames of this thread without the lock, and calls `visit(code)` for each. Its hash tells apart all that
// walk_objects does, and frames that Python hides: nothing is read of a frame's code, so that a frame costs little more
// than the load of the next one's address.
template <typename Visit> Walk walk_frames(const PyThreadState *state, Visit visit) {
    constexpr uint32_t MOST = 2 * MAX_FRAMES; // where every other one is hidden, MAX_FRAMES remain
    Walk walk;
    for (const Frame *frame = innermost_frame(state); frame && walk.count < MOST; frame = previous(frame)) {
        if (calls_from_c(frame)) continue;
        walk.count++;
        walk.hash = hash_with(walk.hash, frame);
        visit(code_of(frame));
        if (code_of(frame) == options.module_call) walk.add_module(first_variable(frame));
    }
    walk.hash = mix(1, walk.hash);
    return walk;
}

inline Walk walk_frames(const PyThreadState *state) {
    return walk_frames(state, [](PyObject *) {});
}

} // namespace pasta
