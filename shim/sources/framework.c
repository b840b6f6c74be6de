/* Frameworks: the table that their hooks call, and the import of one into a Python program.
 *
 * The hooks are Python (pasta/frameworks/NAME/hooks.py), run in the program's own interpreter, whatever
 * its version and environment.  They get in by an audit hook, which CPython calls with each module that
 * is about to be imported, on the importing thread: no module path, environment or file of the program
 * changes.  A program that imports no framework pays for a comparison at each audited event. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#include "../include/pasta_framework.h"
#include "framework.h"

/* ---- the table ---- */

static __thread uint32_t thread_stack;

static uint32_t *stack_of_thread(void) { return &thread_stack; }
uint32_t pasta_framework_stack(void) { return thread_stack; }

void *pasta_framework_theirs(const char *name, void *caller) {
    Dl_info info;
    void *library = dladdr(caller, &info) ? dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
    void *found = library ? dlsym(library, name) : NULL;
    if (library) dlclose(library);
    Dl_info ours, its;
    bool of_ours = found && dladdr(found, &its) && dladdr((void *)pasta_framework_theirs, &ours) && its.dli_fbase == ours.dli_fbase;
    return found && !of_ours ? found : dlsym(RTLD_NEXT, name); /* the caller is the program itself */
}
/* Read without an order: a tap that begins to be called has what it needs. */
static void tap(pasta_tap *tapped) { __atomic_store_n(&pasta_tapped, tapped, __ATOMIC_SEQ_CST); }

enum { NO_DOMAIN = 0 };

static void range_begins(uint32_t name) {
    pasta_probe_range_push(PASTA_RANGE_STACK(PASTA_ORIGIN_framework, NO_DOMAIN), name);
}

static void range_ends(void) { pasta_probe_range_pop(PASTA_RANGE_STACK(PASTA_ORIGIN_framework, NO_DOMAIN)); }

PASTA_EXPORT const pasta_framework *pasta_framework_api(uint32_t version) {
    static const pasta_framework api = {
        .version = PASTA_FRAMEWORK_VERSION,
        .begin_on = pasta_begin_on,
        .intern = pasta_intern,
        .use = pasta_use,
        .is_on = pasta_profiling_is_on,
        .on_profiling = pasta_on_profiling,
        .generation = pasta_generation,
        .stack = stack_of_thread,
        .range_begins = range_begins,
        .range_ends = range_ends,
        .capturing = &pasta_torch_capturing,
        .captured = pasta_torch_captured,
        .tap = tap,
        .interned = pasta_interned,
        .say = pasta_say,
        .follow_allocators = pasta_torch_memory_follow,
    };
    return version == PASTA_FRAMEWORK_VERSION && pasta_wanted() ? &api : NULL;
}

/* For hooks that need no more than that the allocators are followed. */
PASTA_EXPORT int pasta_framework_use(const char *source, const char *version) { return pasta_use(source, version); }

/* ---- the import ---- */

typedef int audit_hook(const char *event, void *arguments, void *data);

static struct {
    int (*add_audit_hook)(audit_hook *, void *);
    void *(*item)(void *, intptr_t);
    const char *(*utf8)(void *);
    void *(*dict_new)(void);
    int (*dict_set)(void *, const char *, void *);
    void *(*builtins)(void);
    void *(*text)(const char *);
    void *(*run)(const char *, int, void *, void *);
    void (*fetch)(void **, void **, void **);
    void (*restore)(void *, void *, void *);
    void (*clear)(void);
    void (*decref)(void *);
} python;

static bool find_python(void) {
    static const char *const names[] = {
        "PySys_AddAuditHook", "PyTuple_GetItem", "PyUnicode_AsUTF8", "PyDict_New", "PyDict_SetItemString", "PyEval_GetBuiltins",
        "PyUnicode_DecodeFSDefault", "PyRun_String", "PyErr_Fetch", "PyErr_Restore", "PyErr_Clear", "Py_DecRef",
    };
    void **slots = (void **)&python;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(slots[i] = dlsym(RTLD_DEFAULT, names[i]))) return false;
    return true;
}

/* Runs the hooks' file, which has the rest happen once the module has been imported.  It must not raise. */
static const char bootstrap[] =
    "try:\n"
    "    with open(path, 'rb') as file:\n"
    "        code = compile(file.read(), path, 'exec', dont_inherit=True)\n"
    "    exec(code, {'__name__': '_pasta_hooks', '__file__': path, 'settings': settings, '__builtins__': __builtins__})\n"
    "except Exception as error:\n"
    "    import os\n"
    "    os.write(2, f'pasta: torch is not followed: {error!r}\\n'.encode())\n";

static bool set_text(void *globals, const char *name, const char *value) {
    void *text = python.text(value ? value : "");
    bool set = text && !python.dict_set(globals, name, text);
    if (text) python.decref(text);
    return set;
}

static void run_hooks(void) {
    enum { FILE_INPUT = 257 };
    void *type, *value, *traceback;
    python.fetch(&type, &value, &traceback);
    void *globals = python.dict_new();
    if (globals && !python.dict_set(globals, "__builtins__", python.builtins()) &&
        set_text(globals, "path", pasta_config("torch_hooks")) &&
        set_text(globals, "settings", pasta_config("torch_settings"))) {
        void *result = python.run(bootstrap, FILE_INPUT, globals, globals);
        if (result)
            python.decref(result);
        else
            pasta_log("the hooks for torch could not be run");
    }
    if (globals) python.decref(globals);
    python.clear();
    python.restore(type, value, traceback);
}

/* With the interpreter lock.  Never fails: an error would be the import's. */
static int on_audit(const char *event, void *arguments, void *data) {
    static bool done;
    (void)data;
    if (PASTA_LIKELY(strcmp(event, "import") != 0) || done) return 0;
    void *name = python.item(arguments, 0);
    const char *text = name ? python.utf8(name) : NULL;
    if (!text) {
        python.clear();
        return 0;
    }
    if (strcmp(text, "torch") != 0 || !pasta_same_process()) return 0;
    done = true;
    run_hooks();
    return 0;
}

void pasta_framework_source_load(void) {
    const char *hooks = pasta_config("torch_hooks");
    if (!hooks || !*hooks || !find_python()) return;
    pasta_torch_memory_follow(true);
    pasta_torch_graphs_load();
    /* before the interpreter starts: then no Python code sees it */
    if (python.add_audit_hook(on_audit, NULL)) pasta_log("this Python takes no audit hook: torch is not followed");
}
