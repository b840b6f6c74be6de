// Launches, kernels, copies, waits and ranges of PASTA in the program's own torch.profiler trace, through a child
// profiler of Kineto, which torch.profiler records by.
//
// hooks.py builds this extension against the program's torch when the program first prepares a profiler; one
// translation unit, as hooks.cpp. While a profiler is active, each record that is published is copied into memory that
// was reserved before; activities are made of the copies when it stops. Nothing here throws into Kineto.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "session.h"

namespace pasta {
namespace {

// start(): registers the profiler. False if libpasta has no table of this version.
PyObject *py_start(PyObject *, PyObject *) {
    if (library) Py_RETURN_TRUE;
    if (!find_library()) Py_RETURN_FALSE;
    generation = present_generation();
    try {
        libkineto::api().registerProfilerFactory([] { return std::make_unique<Profiler>(); });
    } catch (const std::exception &error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
        return nullptr;
    }
    Py_RETURN_TRUE;
}

PyMethodDef methods[] = {
    {"start", py_start, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_pasta_torch_kineto", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

} // namespace
} // namespace pasta

PASTA_EXPORT PyObject *PyInit__pasta_torch_kineto() { return PyModule_Create(&pasta::definition); }
