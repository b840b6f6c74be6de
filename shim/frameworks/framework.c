/* Frameworks: the table that their hooks call, and the import of one into a Python program.
 *
 * The hooks are Python (pasta/frameworks/NAME/hooks.py), run in the program's own interpreter, whatever
 * its version and environment.  An audit hook starts them, which CPython calls with each module that is
 * about to be imported, on the importing thread: no module path, environment or file of the program
 * changes.  A program that imports no framework pays for a comparison at each audited event. */
#define _GNU_SOURCE
#include "framework.h"

#include <stdio.h>
#include <string.h>

#include "../core/cpython.h"
#include "../include/pasta_framework.h"

/* ---- the table ---- */

static __thread uint32_t thread_stack;

static uint32_t *stack_of_thread(void) { return &thread_stack; }
uint32_t pasta_framework_stack(void) { return thread_stack; }

enum { NO_DOMAIN = 0 };

static void range_begins(uint32_t name) {
    pasta_probe_range_push(PASTA_RANGE_STACK(PASTA_ORIGIN_framework, NO_DOMAIN), name);
}

static void range_ends(void) { pasta_probe_range_pop(PASTA_RANGE_STACK(PASTA_ORIGIN_framework, NO_DOMAIN)); }

static bool steps_are_ranges(void) { return pasta_select_asks(PASTA_SELECT_STEP); }

static pasta_framework api __attribute__((aligned(64))) = {
    .version = PASTA_FRAMEWORK_VERSION,
    .reserve_on = pasta_reserve_on,
    .intern = pasta_intern,
    .use = pasta_use,
    .is_on = pasta_profiling_is_on,
    .on_profiling = pasta_on_profiling,
    .generation = &pasta_generation_number,
    .stack = stack_of_thread,
    .range_begins = range_begins,
    .range_ends = range_ends,
    .steps_are_ranges = steps_are_ranges,
    .capturing = &pasta_capturing,
    .captured = pasta_captured,
    .tap = pasta_tap_set,
    .interned = pasta_interned,
    .say = pasta_say,
    .follows_operators = &pasta_scope_follows_operators,
    .operator_begins = pasta_scope_operator_begins,
    .operator_ends = pasta_scope_operator_ends,
    .on_pause = pasta_scope_on_pause,
};

void pasta_framework_provide(bool (*follow_allocators)(bool follow)) { api.follow_allocators = follow_allocators; }

PASTA_EXPORT const pasta_framework *pasta_framework_api(uint32_t version) {
    if (version != PASTA_FRAMEWORK_VERSION || !pasta_wanted()) return NULL;
    pasta_probe_configure(); /* operators are followed from the first one on */
    return &api;
}

/* For hooks that only need the allocators to be followed. */
PASTA_EXPORT int pasta_framework_use(const char *source, const char *version) { return pasta_use(source, version); }

/* How the framework's objects use a storage; `name` may be NULL. */
PASTA_EXPORT void pasta_framework_role(uint64_t address, uint64_t bytes, int device, uint32_t role, const char *name) {
    if (!pasta_ring_mine()) return;
    pasta_tensor *e = pasta_begin(PASTA_EVENT_tensor_create, PASTA_SLOTS(pasta_tensor), (int16_t)device, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!e) return;
    e->storage = address;
    e->bytes = bytes;
    e->role = role;
    e->shape = e->strides = e->dtype = 0;
    e->name = pasta_intern_z(name);
    pasta_publish(e);
}

/* ---- the import ----
 *
 * The key `frameworks` lists names, separated by commas; of each NAME
 *     framework.NAME.import    the module that starts the hooks
 *     framework.NAME.hooks     path of the hooks
 *     framework.NAME.settings  JSON that they read */

enum { MAX_FRAMEWORKS = 8, MAX_NAME = 64 };

static struct {
    char name[MAX_NAME];
    const char *import, *hooks, *settings;
    bool imported;
} watched[MAX_FRAMEWORKS];
static int watched_count;
static pasta_cpython python;

/* Runs the hooks' file, which does the rest once the module is imported.  It must not raise. */
static const char bootstrap[] =
    "try:\n"
    "    with open(path, 'rb') as file:\n"
    "        code = compile(file.read(), path, 'exec', dont_inherit=True)\n"
    "    exec(code, {'__name__': '_pasta_hooks', '__file__': path, 'settings': settings, '__builtins__': __builtins__})\n"
    "except Exception as error:\n"
    "    import os\n"
    "    os.write(2, f'pasta: {framework} is not followed: {error!r}\\n'.encode())\n";

static void run_hooks(int i) {
    const pasta_cpython_variable variables[] = {
        {"framework", watched[i].name}, {"path", watched[i].hooks}, {"settings", watched[i].settings}};
    void *type, *value, *traceback;
    python.fetch(&type, &value, &traceback);
    if (!pasta_cpython_run(&python, bootstrap, variables, sizeof variables / sizeof *variables, NULL))
        pasta_log("the hooks for %s could not be run", watched[i].name);
    python.restore(type, value, traceback);
}

/* With the interpreter's lock.  Never fails: the error would be the import's. */
static int on_audit(const char *event, void *arguments, void *data) {
    static int imported;
    (void)data;
    if (PASTA_LIKELY(strcmp(event, "import") != 0) || imported == watched_count) return 0;
    void *name = python.tuple_item(arguments, 0);
    const char *text = name ? python.utf8(name) : NULL;
    if (!text) python.clear();
    for (int i = 0; text && i < watched_count; i++) {
        if (watched[i].imported || strcmp(text, watched[i].import) != 0 || !pasta_same_process()) continue;
        watched[i].imported = true;
        imported++;
        run_hooks(i);
    }
    return 0;
}

/* Value of framework.NAME.KEY, or NULL. */
static const char *setting(const char *name, const char *key) {
    char text[MAX_NAME + 32];
    snprintf(text, sizeof text, "framework.%s.%s", name, key);
    return pasta_config(text);
}

static void read_watched(const char *list) {
    for (size_t length; list && *list && watched_count < MAX_FRAMEWORKS; list += length + (list[length] == ',')) {
        char *name = watched[watched_count].name;
        length = strcspn(list, ",");
        if (!length || length >= MAX_NAME) continue;
        memcpy(name, list, length);
        name[length] = '\0';
        watched[watched_count].import = setting(name, "import");
        watched[watched_count].hooks = setting(name, "hooks");
        watched[watched_count].settings = setting(name, "settings");
        if (watched[watched_count].import && watched[watched_count].hooks) watched_count++;
    }
}

bool pasta_framework_is_watched(const char *name) {
    int i = 0;
    while (i < watched_count && strcmp(watched[i].name, name) != 0) i++;
    return i < watched_count;
}

static void load(void) {
    const char *list = pasta_config("frameworks");
    if (!list || !*list || !pasta_cpython_find(&python) || !pasta_cpython_find_audit(&python)) return;
    read_watched(list);
    /* before the interpreter starts: then no Python code sees it */
    if (watched_count && !pasta_cpython_audit(&python, on_audit)) pasta_log("this Python does not accept audit hooks: frameworks are not followed");
}

const pasta_component pasta_frameworks = {.name = "frameworks", .load = load};
