/* Part of the cffi embedding module (embed.py), where Python.h is included already.
 *
 * Starts an interpreter that is exactly the one PASTA is installed in, whatever PATH and
 * environment the target has: no signal handlers, no environment variables, no arguments. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static PyStatus append_paths(PyConfig *config, const char *paths)
{
    PyStatus status = PyStatus_Ok();
    char *copy = paths ? strdup(paths) : NULL, *rest = NULL;
    if (!copy) return status;
    config->module_search_paths_set = 1;
    for (char *path = strtok_r(copy, ":", &rest); path && !PyStatus_Exception(status); path = strtok_r(NULL, ":", &rest)) {
        wchar_t *wide = Py_DecodeLocale(path, NULL);
        if (!wide) continue;
        status = PyWideStringList_Append(&config->module_search_paths, wide);
        PyMem_RawFree(wide);
    }
    free(copy);
    return status;
}

/* Python 3.10's module `signal` takes SIGINT over when it is first imported, whatever the
 * configuration says: import it now, and give the program its Ctrl-C back. */
static void keep_interrupts(void)
{
    struct sigaction programs;
    if (sigaction(SIGINT, NULL, &programs)) return;
    PyObject *module = PyImport_ImportModule("signal");
    if (!module) PyErr_Clear();
    Py_XDECREF(module);
    sigaction(SIGINT, &programs, NULL);
}

static PyObject *ignore(PyObject *self, PyObject *arguments)
{
    (void)self, (void)arguments;
    Py_RETURN_NONE;
}

/* Modules set variables for themselves and for their children (NumPy: OPENBLAS_MAIN_FREE).  The C environment is the
 * program's, and its children's: theirs change os.environ only. */
static void keep_environment(void)
{
    static PyMethodDef ignoring = {"ignore", ignore, METH_VARARGS, NULL};
    static const char *const names[] = {"putenv", "unsetenv"};
    PyObject *os = PyImport_ImportModule("os"), *function = PyCFunction_New(&ignoring, NULL);
    for (size_t i = 0; os && function && i < sizeof names / sizeof *names; i++)
        if (PyObject_SetAttrString(os, names[i], function)) PyErr_Clear();
    if (!os || !function) PyErr_Clear();
    Py_XDECREF(os);
    Py_XDECREF(function);
}

__attribute__((visibility("default"))) int pasta_embed_initialize(const char *executable, const char *paths)
{
    if (Py_IsInitialized()) return 1;
    PyConfig config;
    PyConfig_InitIsolatedConfig(&config);
    config.install_signal_handlers = 0;
    config.parse_argv = 0;
    config.write_bytecode = 1;
    config.site_import = 1;
    PyStatus status = PyConfig_SetBytesString(&config, &config.program_name, executable);
    if (!PyStatus_Exception(status)) status = PyConfig_SetBytesString(&config, &config.executable, executable);
    if (!PyStatus_Exception(status)) status = append_paths(&config, paths);
    if (!PyStatus_Exception(status)) status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    if (PyStatus_Exception(status)) return 0;
    keep_interrupts();
    keep_environment();
    PyEval_SaveThread();
    return 1;
}

/* In a program's own interpreter, whose lock the caller holds.  Not through cffi, which before Python 3.12
 * would take a field of a type for its lock that the program's code may have changed by then. */
__attribute__((visibility("default"))) int pasta_embed_join(const char *ring_path)
{
    PyObject *module = PyImport_ImportModule("pasta.runtime.joined");
    PyObject *answer = module ? PyObject_CallMethod(module, "consume", "s", ring_path) : NULL;
    long consumed = answer ? PyLong_AsLong(answer) : 0;
    PyErr_Clear();
    Py_XDECREF(answer);
    Py_XDECREF(module);
    return consumed == 1;
}
