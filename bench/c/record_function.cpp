// A callback of PyTorch's RecordFunction that records nothing: what PyTorch itself takes to call one.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <ATen/record_function.h>

namespace {

at::CallbackHandle handle;
bool is_added;
long operators;

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction &) {
    operators++;
    return nullptr;
}
void on_end(const at::RecordFunction &, at::ObserverContext *) {}

// use(on, tensors): adds the callback, with the operators' inputs and outputs, or removes it. Returns the operators seen
// since the last call.
PyObject *py_use(PyObject *, PyObject *arguments) {
    int on, tensors;
    if (!PyArg_ParseTuple(arguments, "pp", &on, &tensors)) return nullptr;
    if (is_added) at::removeCallback(handle);
    is_added = on;
    using at::RecordScope;
    if (on)
        handle = at::addGlobalCallback(at::RecordFunctionCallback(on_begin, on_end)
                                           .needsInputs(tensors)
                                           .needsOutputs(tensors)
                                           .scopes({RecordScope::FUNCTION, RecordScope::BACKWARD_FUNCTION}));
    long seen = operators;
    operators = 0;
    return PyLong_FromLong(seen);
}

PyMethodDef methods[] = {{"use", py_use, METH_VARARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_pasta_torch_record_function", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

} // namespace

extern "C" __attribute__((visibility("default"))) PyObject *PyInit__pasta_torch_record_function() {
    return PyModule_Create(&definition);
}
