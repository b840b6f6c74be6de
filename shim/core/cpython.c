#define _GNU_SOURCE
#include "cpython.h"

#include <dlfcn.h>

#define FIND(member, symbol, result, parameters) \
    if (!(*(void **)&python->member = dlsym(RTLD_DEFAULT, symbol))) return false;

bool pasta_cpython_find(pasta_cpython *python) {
    PASTA_CPYTHON(FIND)
    return true;
}

bool pasta_cpython_find_audit(pasta_cpython *python) {
    PASTA_CPYTHON_AUDIT(FIND)
    return true;
}

static bool set_text(const pasta_cpython *python, void *globals, const pasta_cpython_variable *variable) {
    void *text = python->text(variable->value ? variable->value : "");
    bool set = text && !python->dict_set(globals, variable->name, text);
    if (text) python->decref(text);
    return set;
}

bool pasta_cpython_run(const pasta_cpython *python, const char *statements, const pasta_cpython_variable *variables,
                       size_t count, long *answer) {
    enum { FILE_INPUT = 257 }; /* Py_file_input */
    void *globals = python->dict_new();
    bool good = globals && !python->dict_set(globals, "__builtins__", python->builtins());
    for (size_t i = 0; good && i < count; i++) good = set_text(python, globals, &variables[i]);
    void *result = good ? python->run(statements, FILE_INPUT, globals, globals) : NULL;
    void *value = result && answer ? python->dict_get(globals, "answer") : NULL;
    if (value) *answer = python->as_long(value);
    if (result) python->decref(result);
    python->clear();
    if (globals) python->decref(globals);
    return result != NULL;
}
