// The nn.Module that runs: `self` of the innermost frame of nn.Module.__call__. Nothing is hooked, so that calls,
// tracebacks and torch.compile are as without the hooks. Python makes the paths, once for each module.
#pragma once

#include <time.h>

#include <atomic>

#include "../library.h"
#include "frames.h"

namespace pasta {

struct Module {
    std::atomic<PyObject *> object{}; // nullptr after its death
    std::atomic<uint32_t> name{};     // string id of the path
    std::atomic<uint64_t> checked{};  // when Python last looked at the parameters, for an outermost module: seconds
    std::atomic<bool> used{};         // now or earlier: lookups continue with the next entry
    PyObject *reference = nullptr;    // weak; with the interpreter's lock
};

// By address, looked up without the lock: a module that runs is alive.
class Modules {
  public:
    // Stores the string id of the path of what runs, 0 if no module does. False if Python must be asked: for a new
    // module, and once a second, because the parameters of the outermost one may have moved.
    bool find(const Walk &walk, uint32_t *name) {
        *name = 0;
        if (!walk.innermost) return true;
        const Module *module = find(walk.innermost), *root = find(walk.outermost);
        if (!module || !root || root->checked.load(std::memory_order_relaxed) != seconds()) return false;
        *name = module->name.load(std::memory_order_relaxed);
        return true;
    }

    // The same, after Python has named the modules and looked at parameters. With the interpreter's lock.
    uint32_t ask(const Walk &walk) {
        if (!walk.innermost) return 0;
        uint64_t now = seconds();
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        PyObject *done = PyObject_CallFunctionObjArgs(options.namer, walk.innermost, walk.outermost, nullptr);
        if (!done) {
            bool interrupted = PyErr_ExceptionMatches(PyExc_KeyboardInterrupt);
            PyErr_Clear();
            if (interrupted) PyErr_SetInterrupt(); // it was for the program
        }
        Py_XDECREF(done);
        PyErr_Restore(type, value, traceback);
        const Module *module = find(walk.innermost);
        if (Module *root = find(walk.outermost)) root->checked.store(now, std::memory_order_relaxed);
        return module ? module->name.load(std::memory_order_relaxed) : 0;
    }

    // Adds a module; without effect if it is known or the table is full. With the interpreter's lock.
    void add(PyObject *object, uint32_t name) {
        if (find(object)) return;
        uint64_t hash = mix(1, reinterpret_cast<uint64_t>(object));
        size_t probe = 0, place;
        do {
            if (probe == MAX_PROBES) return;
            place = (hash + probe++) % SIZE;
        } while (entries_[place].reference);
        PyObject *number = PyLong_FromSize_t(place);
        PyObject *on_death = number ? PyCFunction_New(&remove_method_, number) : nullptr;
        PyObject *reference = on_death ? PyWeakref_NewRef(object, on_death) : nullptr;
        Py_XDECREF(on_death);
        Py_XDECREF(number);
        if (!reference) {
            PyErr_Clear();
            return;
        }
        Module &entry = entries_[place];
        entry.reference = reference;
        entry.name.store(name, std::memory_order_relaxed);
        entry.checked.store(0, std::memory_order_relaxed);
        entry.used.store(true, std::memory_order_relaxed);
        entry.object.store(object, std::memory_order_release);
    }

    // Modules are named again from now on. With the interpreter's lock.
    void forget() {
        for (Module &each : entries_) {
            each.object.store(nullptr, std::memory_order_relaxed);
            Py_CLEAR(each.reference);
        }
    }

  private:
    static constexpr size_t SIZE = 1 << 14, MAX_PROBES = 64;

    static uint64_t seconds() {
        timespec now;
        clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
        return static_cast<uint64_t>(now.tv_sec) + 1;
    }

    Module *find(PyObject *object) {
        uint64_t hash = mix(1, reinterpret_cast<uint64_t>(object));
        for (size_t probe = 0; probe < MAX_PROBES; probe++) {
            Module &entry = entries_[(hash + probe) % SIZE];
            if (entry.object.load(std::memory_order_acquire) == object) return &entry;
            if (!entry.used.load(std::memory_order_relaxed)) break;
        }
        return nullptr;
    }

    // Called by the weak reference: another object may come to be at the address.
    static PyObject *remove(PyObject *place, PyObject *reference);

    static inline PyMethodDef remove_method_ = {"remove", remove, METH_O, nullptr};
    Module entries_[SIZE];
};
inline Modules modules;

inline PyObject *Modules::remove(PyObject *place, PyObject *reference) {
    Module &entry = modules.entries_[PyLong_AsSize_t(place)];
    if (entry.reference == reference) {
        entry.object.store(nullptr, std::memory_order_relaxed);
        Py_CLEAR(entry.reference);
    }
    Py_RETURN_NONE;
}

} // namespace pasta
