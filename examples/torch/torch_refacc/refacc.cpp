// The extension's functions for Python; __init__.py builds torch.refacc on them.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>

#include "device.h"

namespace {

// Runs `act`; an exception becomes a Python exception.
template <typename Act> PyObject *guarded(Act act) {
    try {
        return act();
    } catch (const c10::Error &error) {
        PyErr_SetString(PyExc_RuntimeError, error.what_without_backtrace());
    } catch (const std::exception &error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

// Runs `act` without the interpreter's lock, which callbacks on other threads may need meanwhile.
template <typename Act> PyObject *unlocked(Act act) {
    return guarded([&]() -> PyObject * {
        PyThreadState *state = PyEval_SaveThread();
        try {
            act();
        } catch (...) {
            PyEval_RestoreThread(state);
            throw;
        }
        PyEval_RestoreThread(state);
        Py_RETURN_NONE;
    });
}

int device_argument(PyObject *argument) { return static_cast<int>(PyLong_AsLong(argument)); }

PyObject *py_device_count(PyObject *, PyObject *) { return PyLong_FromLong(refacc::device_count()); }
PyObject *py_current_device(PyObject *, PyObject *) { return PyLong_FromLong(refacc::current_device()); }
PyObject *py_was_forked(PyObject *, PyObject *) { return PyBool_FromLong(refacc::was_forked()); }

PyObject *py_exchange_device(PyObject *, PyObject *argument) {
    int device = device_argument(argument);
    if (PyErr_Occurred()) return nullptr;
    return guarded([&] { return PyLong_FromLong(refacc::exchange_device(device)); });
}

PyObject *py_synchronize(PyObject *, PyObject *argument) {
    int device = device_argument(argument);
    if (PyErr_Occurred()) return nullptr;
    return unlocked([&] { refacc::synchronize(device); });
}

PyObject *py_current_stream(PyObject *, PyObject *argument) {
    int device = device_argument(argument);
    if (PyErr_Occurred()) return nullptr;
    return guarded([&] { return PyLong_FromLongLong(refacc::current_stream(device).id()); });
}

PyObject *py_set_stream(PyObject *, PyObject *arguments) {
    int device;
    long long id;
    if (!PyArg_ParseTuple(arguments, "iL", &device, &id)) return nullptr;
    return guarded([&] { return PyLong_FromLongLong(refacc::exchange_stream(refacc::stream_of(device, id)).id()); });
}

PyObject *py_empty_cache(PyObject *, PyObject *) { return unlocked(refacc::empty_cache); }

PyObject *py_usage(PyObject *, PyObject *argument) {
    int device = device_argument(argument);
    if (PyErr_Occurred()) return nullptr;
    return guarded([&] {
        refacc::Usage now = refacc::usage(device);
        return Py_BuildValue("{s:L,s:L,s:L,s:L,s:L,s:L,s:L,s:L}",
            "allocated_bytes", (long long)now.allocated, "reserved_bytes", (long long)now.reserved,
            "max_allocated_bytes", (long long)now.peak_allocated, "max_reserved_bytes", (long long)now.peak_reserved,
            "allocations", (long long)now.allocations, "segments", (long long)now.segments,
            "retries", (long long)now.retries, "out_of_memory", (long long)now.failures);
    });
}

PyObject *py_reset_peak(PyObject *, PyObject *argument) {
    int device = device_argument(argument);
    if (PyErr_Occurred()) return nullptr;
    return unlocked([&] { refacc::reset_peak(device); });
}

PyObject *py_properties(PyObject *, PyObject *argument) {
    int device = device_argument(argument);
    if (PyErr_Occurred()) return nullptr;
    return guarded([&] {
        ra_properties found;
        RA(ra_device_properties, device, &found);
        return Py_BuildValue("{s:s,s:K,s:I,s:I,s:I,s:I}", "name", found.name,
            "total_memory", (unsigned long long)found.memory, "multi_processor_count", found.multiprocessors,
            "warp_size", found.warp, "max_threads_per_block", found.max_threads,
            "shared_memory_per_block", found.max_shared);
    });
}

/* A thread of autograd that drops a graph while Python finalizes ends the process: it needs the interpreter. */
PyObject *py_stop_autograd(PyObject *, PyObject *) {
    return unlocked([] { torch::autograd::Engine::get_default_engine().stop(); });
}

PyMethodDef methods[] = {
    {"device_count", py_device_count, METH_NOARGS, nullptr},
    {"current_device", py_current_device, METH_NOARGS, nullptr},
    {"was_forked", py_was_forked, METH_NOARGS, nullptr},
    {"exchange_device", py_exchange_device, METH_O, nullptr},
    {"synchronize", py_synchronize, METH_O, nullptr},
    {"current_stream", py_current_stream, METH_O, nullptr},
    {"set_stream", py_set_stream, METH_VARARGS, nullptr},
    {"empty_cache", py_empty_cache, METH_NOARGS, nullptr},
    {"usage", py_usage, METH_O, nullptr},
    {"reset_peak", py_reset_peak, METH_O, nullptr},
    {"properties", py_properties, METH_O, nullptr},
    {"stop_autograd", py_stop_autograd, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_pasta_torch_refacc", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

} // namespace

PyMODINIT_FUNC PyInit__pasta_torch_refacc() { return PyModule_Create(&definition); }
