// The hooks' search for stacks and modules, without PyTorch: records go to a list of this module.
#include <deque>
#include <string>
#include <unordered_map>

#include "location.h"

using namespace pasta;

namespace {

struct Record {
    alignas(64) pasta_header header;
    pasta_python_frame frame;
};
std::deque<Record> records;
std::deque<std::string> texts;
std::unordered_map<std::string, uint32_t> ids;
uint32_t no_generation;

void *reserve_on(uint32_t, pasta_event_kind, uint8_t, int16_t) {
    records.emplace_back();
    return &records.back().frame;
}

uint32_t intern_text(const char *text, size_t length) {
    auto [place, is_new] = ids.try_emplace(std::string(text, length), texts.size() + 1);
    if (is_new) texts.push_back(place->first);
    return place->second;
}

const char *text_of(uint32_t id) { return id ? texts[id - 1].c_str() : ""; }

// start(frames, module_call, namer): True if frames are read without the interpreter's lock.
PyObject *py_start(PyObject *, PyObject *arguments) {
    static pasta_framework table;
    int frames;
    PyObject *module_call, *namer;
    if (!PyArg_ParseTuple(arguments, "iOO", &frames, &module_call, &namer)) return nullptr;
    table.reserve_on = reserve_on;
    table.generation = &no_generation;
    table.intern = intern_text;
    library = &table;
    stacks.forget();
    modules.forget();
    options.launch = Request::of(true, false, frames, module_call, namer);
    options.frames = options.launch.frames;
    options.module_call = module_call;
    options.namer = namer;
#ifndef WITH_THE_LOCK
    options.reads_frames = frame_layout_matches() && first_argument_is_plain(module_call);
#endif
    return PyBool_FromLong(options.reads_frames);
}

// locate(): id of the caller's stack, and path of its module.
PyObject *py_locate(PyObject *, PyObject *) {
    Location location = locate();
    return Py_BuildValue("Is", location.stack, text_of(location.module));
}

// frames(stack): what was recorded of it.
PyObject *py_frames(PyObject *, PyObject *stack) {
    unsigned long id = PyLong_AsUnsignedLong(stack);
    PyObject *found = PyList_New(0);
    for (const Record &each : records) {
        if (each.frame.stack != id) continue;
        PyObject *frame = Py_BuildValue("ssI", text_of(each.frame.file), text_of(each.frame.function), each.frame.line);
        PyList_Append(found, frame);
        Py_DECREF(frame);
    }
    return found;
}

PyObject *py_name(PyObject *, PyObject *arguments) {
    PyObject *module;
    const char *name;
    if (!PyArg_ParseTuple(arguments, "Os", &module, &name)) return nullptr;
    modules.add(module, intern(name));
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"start", py_start, METH_VARARGS, nullptr},   {"locate", py_locate, METH_NOARGS, nullptr},
    {"frames", py_frames, METH_O, nullptr},       {"name", py_name, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "location", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

} // namespace

PASTA_EXPORT PyObject *PyInit_location() { return PyModule_Create(&definition); }
