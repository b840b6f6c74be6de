#define _GNU_SOURCE
#include "cpython.h"

#include <dlfcn.h>
#include <string.h>

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

/* ---- an audit hook before the interpreter starts ----
 *
 * CPython allocates an entry for it, and frees the entry at the end with the allocator of that time: with
 * the debug hooks of PYTHONMALLOC=debug and -X dev, which are installed in between, that would end the
 * program.  So the entry is memory of ours, which an allocator around the current one provides, and whose
 * release it ignores.  It is installed for these two calls only. */

enum { RAW_DOMAIN = 0, ENTRY_BYTES = 64 }; /* PYMEM_DOMAIN_RAW */

static struct {
    const pasta_cpython *python;
    pasta_audit_hook *hook;
    pasta_cpython_allocator former; /* of the program */
    _Alignas(16) char entry[ENTRY_BYTES];
} audited;

static void restore_allocator(void) { audited.python->set_allocator(RAW_DOMAIN, &audited.former); }

static void *entry_malloc(void *context, size_t bytes) {
    (void)context;
    return bytes <= ENTRY_BYTES ? audited.entry : audited.former.malloc(audited.former.context, bytes);
}

static void *former_malloc(void *context, size_t bytes) {
    (void)context;
    return audited.former.malloc(audited.former.context, bytes);
}

static void *former_calloc(void *context, size_t count, size_t bytes) {
    (void)context;
    return audited.former.calloc(audited.former.context, count, bytes);
}

static void *former_realloc(void *context, void *memory, size_t bytes) {
    (void)context;
    return audited.former.realloc(audited.former.context, memory, bytes);
}

static void free_entry(void *context, void *memory) {
    (void)context;
    if (memory == audited.entry) restore_allocator();
    else audited.former.free(audited.former.context, memory);
}

static void wrap_allocator(void *(*allocate)(void *, size_t)) {
    pasta_cpython_allocator wrapper = {NULL, allocate, former_calloc, former_realloc, free_entry};
    audited.python->get_allocator(RAW_DOMAIN, &audited.former);
    audited.python->set_allocator(RAW_DOMAIN, &wrapper);
}

static int on_audit(const char *event, void *arguments, void *data) {
    if (!strcmp(event, "cpython._PySys_ClearAuditHooks")) wrap_allocator(former_malloc); /* frees the entry next */
    return audited.hook(event, arguments, data);
}

bool pasta_cpython_audit(const pasta_cpython *python, pasta_audit_hook *hook) {
    if (audited.hook) return false;
    audited.python = python;
    audited.hook = hook;
    wrap_allocator(entry_malloc);
    bool added = !python->add_audit_hook(on_audit, NULL);
    restore_allocator();
    return added;
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
