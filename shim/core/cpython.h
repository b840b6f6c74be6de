/* CPython's C API as a program has it: found by name, since nothing here links to a Python. */
#ifndef PASTA_CPYTHON_H
#define PASTA_CPYTHON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int pasta_audit_hook(const char *event, void *arguments, void *data);

/* PyMemAllocatorEx */
typedef struct pasta_cpython_allocator {
    void *context;
    void *(*malloc)(void *context, size_t bytes);
    void *(*calloc)(void *context, size_t count, size_t bytes);
    void *(*realloc)(void *context, void *memory, size_t bytes);
    void (*free)(void *context, void *memory);
} pasta_cpython_allocator;

/* X(member, symbol, result, parameters); objects are void pointers. */
#define PASTA_CPYTHON(X)                                                                           \
    X(get_version, "Py_GetVersion", const char *, (void))                                          \
    X(is_initialized, "Py_IsInitialized", int, (void))                                             \
    X(ensure, "PyGILState_Ensure", int, (void))                                                    \
    X(release, "PyGILState_Release", void, (int))                                                  \
    X(check, "PyGILState_Check", int, (void))                                                      \
    X(dict_new, "PyDict_New", void *, (void))                                                      \
    X(dict_set, "PyDict_SetItemString", int, (void *, const char *, void *))                       \
    X(dict_get, "PyDict_GetItemString", void *, (void *, const char *))                            \
    X(builtins, "PyEval_GetBuiltins", void *, (void))                                              \
    X(text, "PyUnicode_DecodeFSDefault", void *, (const char *))                                   \
    X(run, "PyRun_String", void *, (const char *, int, void *, void *))                            \
    X(as_long, "PyLong_AsLong", long, (void *))                                                    \
    X(clear, "PyErr_Clear", void, (void))                                                          \
    X(decref, "Py_DecRef", void, (void *))                                                         \
    X(add_pending, "Py_AddPendingCall", int, (int (*)(void *), void *))                            \
    X(save_thread, "PyEval_SaveThread", void *, (void))                                            \
    X(restore_thread, "PyEval_RestoreThread", void, (void *))
/* For audit hooks: Python 3.8 and newer. */
#define PASTA_CPYTHON_AUDIT(X)                                                                     \
    X(add_audit_hook, "PySys_AddAuditHook", int, (pasta_audit_hook *, void *))                     \
    X(get_allocator, "PyMem_GetAllocator", void, (int, pasta_cpython_allocator *))                 \
    X(set_allocator, "PyMem_SetAllocator", void, (int, pasta_cpython_allocator *))                 \
    X(tuple_item, "PyTuple_GetItem", void *, (void *, intptr_t))                                   \
    X(call, "PyObject_CallObject", void *, (void *, void *))                                       \
    X(utf8, "PyUnicode_AsUTF8", const char *, (void *))                                            \
    X(fetch, "PyErr_Fetch", void, (void **, void **, void **))                                     \
    X(restore, "PyErr_Restore", void, (void *, void *, void *))

#define PASTA_CPYTHON_POINTER(member, symbol, result, parameters) result(*member) parameters;
typedef struct pasta_cpython {
    PASTA_CPYTHON(PASTA_CPYTHON_POINTER)
    PASTA_CPYTHON_AUDIT(PASTA_CPYTHON_POINTER)
} pasta_cpython;
#undef PASTA_CPYTHON_POINTER

/* Fills in the functions; false where the program has no Python that has them. */
bool pasta_cpython_find(pasta_cpython *python);
bool pasta_cpython_find_audit(pasta_cpython *python);

/* Adds an audit hook before the interpreter starts, once in a process; false where Python accepts none. */
bool pasta_cpython_audit(const pasta_cpython *python, pasta_audit_hook *hook);

typedef struct pasta_cpython_variable {
    const char *name, *value;
} pasta_cpython_variable;

/* Runs statements in a namespace of their own that has these variables.  The caller holds the
 * interpreter's lock; the current exception is lost.  False where they raise.
 * `answer`: name of the variable with the result, or NULL. */
bool pasta_cpython_run(const pasta_cpython *python, const char *statements, const pasta_cpython_variable *variables,
                       size_t count, long *answer);

#endif
