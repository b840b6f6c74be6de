// Walks over the Python frames of a thread.
#pragma once

#include "options.h"

namespace pasta {

// What a walk finds of a stack: innermost frame first, at most MAX_FRAMES.
struct Walk {
    uint64_t hash = 1; // of the frames that are recorded
    uint32_t count = 0;
    PyObject *innermost = nullptr, *outermost = nullptr; // modules that run; borrowed from the frames

    void add_module(PyObject *self) {
        if (!self) return;
        if (!innermost) innermost = self;
        outermost = self;
    }
};

// Walks from a frame on through Python's own interface, in any version; the caller holds the interpreter's lock.
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

inline const Frame *innermost_frame(PyThreadState *state) {
#if PY_VERSION_HEX < 0x030d0000
    return reinterpret_cast<const Frame *>(state->cframe->current_frame);
#else
    return reinterpret_cast<const Frame *>(state->current_frame);
#endif
}

// Skips frames that Python itself hides: this frame or the nearest outer one that runs code of the program.
inline const Frame *visible(const Frame *frame) {
    for (; frame; frame = frame->previous) {
        if (frame->owner == FRAME_OWNED_BY_CSTACK_ || !PyCode_Check(frame->executable)) continue;
        auto *code = reinterpret_cast<PyCodeObject *>(frame->executable);
        if (frame->owner == FRAME_OWNED_BY_GENERATOR_ ||
            frame->instruction >= code->co_code_adaptive + 2 * code->_co_firsttraceable)
            break;
    }
    return frame;
}

// The same walk over this thread's frames, without the lock.
inline Walk walk_frames(PyThreadState *state) {
    Walk walk;
    for (const Frame *frame = visible(innermost_frame(state)); frame && walk.count < MAX_FRAMES;
         frame = visible(frame->previous)) {
        if (walk.count++ < options.frames) walk.hash = mix(walk.hash, reinterpret_cast<uint64_t>(frame->instruction));
        if (frame->executable == options.module_call) walk.add_module(frame->variables[0]);
    }
    return walk;
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

#else
inline Walk walk_frames(PyThreadState *) { return {}; }
inline bool frame_layout_matches() { return false; }
inline bool first_argument_is_plain(PyObject *) { return false; }
#endif

} // namespace pasta
