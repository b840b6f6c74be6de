// The hooks in PyTorch: operators, tensors, modules and Python stacks, into the ring of libpasta.
//
// hooks.py builds this extension against the program's torch at first use. It is one translation unit, because torch's
// headers take most of the time to compile: the parts are headers, included here only.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "allocations.h"
#include "callback.h"

namespace pasta {
namespace {

bool use_library(unsigned long long address, const char *version) {
    return find_library(address) && library->use("torch", version);
}

// Applies both requests; True, or nullptr with a Python exception.
PyObject *apply_requests() {
    generation = present_generation();
    try {
        callback.apply_requests();
    } catch (const std::exception &error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
        return nullptr;
    }
    Py_RETURN_TRUE;
}

// start(version, operators, tensors, frames, module_call, namer): records what the launcher requested. False if this
// process is not profiled.
PyObject *py_start(PyObject *, PyObject *arguments) {
    const char *version;
    int operators, tensors, frames;
    PyObject *module_call, *namer;
    if (!PyArg_ParseTuple(arguments, "sppiOO", &version, &operators, &tensors, &frames, &module_call, &namer)) return nullptr;
    if (options.launch.operators) Py_RETURN_TRUE;
    if (!use_library(0, version)) Py_RETURN_FALSE;
    options.launch = Request::of(operators, tensors, frames, module_call, namer);
    return apply_requests();
}

// begin_block(library, version, operators, tensors, allocations, frames, devices, module_call, namer): records what a
// block requests, which has begun in the ring; `library` as in find_library. Returns a description of unrecorded data;
// None if this process is not profiled.
PyObject *py_begin_block(PyObject *, PyObject *arguments) {
    unsigned long long address;
    const char *version;
    int operators, tensors, allocations, frames, devices;
    PyObject *module_call, *namer;
    if (!PyArg_ParseTuple(arguments, "KspppipOO", &address, &version, &operators, &tensors, &allocations, &frames, &devices,
                          &module_call, &namer))
        return nullptr;
    if (!use_library(address, version)) Py_RETURN_NONE;
    options.epoch++; // the block's run has nothing that was recorded before
    sampler.forget();
    stacks.forget();
    modules.forget();
    options.block = Request::of(operators, tensors, frames, module_call, namer);
    PyObject *done = apply_requests();
    if (!done) return nullptr;
    Py_DECREF(done);
    return PyUnicode_FromString(allocations ? block_allocations.begin(!address, devices) : "");
}

// end_block(preloaded)
PyObject *py_end_block(PyObject *, PyObject *arguments) {
    int preloaded;
    if (!PyArg_ParseTuple(arguments, "p", &preloaded)) return nullptr;
    if (!library) Py_RETURN_NONE;
    block_allocations.end(preloaded);
    Py_CLEAR(options.block.module_call);
    PyObject *namer = options.block.namer;
    options.block = {};
    PyObject *done = apply_requests();
    Py_XDECREF(namer);
    return done;
}

// stop_sampler()
PyObject *py_stop_sampler(PyObject *, PyObject *) {
    Py_BEGIN_ALLOW_THREADS
    sampler.stop();
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

// name_module(module, path)
PyObject *py_name_module(PyObject *, PyObject *arguments) {
    PyObject *module;
    const char *name;
    if (!PyArg_ParseTuple(arguments, "Os", &module, &name)) return nullptr;
    if (owns_ring()) modules.add(module, intern(name));
    Py_RETURN_NONE;
}

// role(address, bytes, device, role, name): records what the storage at an address is for; PASTA_ROLE_*, name or None.
PyObject *py_role(PyObject *, PyObject *arguments) {
    unsigned long long address, bytes;
    unsigned int role;
    int device;
    const char *name;
    if (!PyArg_ParseTuple(arguments, "KKiIz", &address, &bytes, &device, &role, &name)) return nullptr;
    if (address && owns_ring())
        if (auto *e = begin<pasta_tensor>(system_thread_id(), PASTA_EVENT_tensor_create, static_cast<int16_t>(device))) {
            e->storage = address;
            e->bytes = bytes;
            e->role = role;
            e->shape = e->strides = e->dtype = 0;
            e->name = name ? intern(name) : 0;
            pasta_framework_publish(e);
        }
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"start", py_start, METH_VARARGS, nullptr},
    {"begin_block", py_begin_block, METH_VARARGS, nullptr},
    {"end_block", py_end_block, METH_VARARGS, nullptr},
    {"name_module", py_name_module, METH_VARARGS, nullptr},
    {"role", py_role, METH_VARARGS, nullptr},
    {"stop_sampler", py_stop_sampler, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_pasta_torch_hooks", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

} // namespace
} // namespace pasta

PASTA_EXPORT PyObject *PyInit__pasta_torch_hooks() { return PyModule_Create(&pasta::definition); }
