/* Python frames of this thread, without the interpreter's lock.
 *
 * The frames of a thread, and the code objects, names and line tables that they refer to, stay as they are while it is
 * in a call from them: nothing of them is changed or referenced here. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "python_objects.h"
#include "unwind.h"

static struct {
    const pasta_python_layout *layout;
    const void *code_type;
    uint64_t eval_start, eval_end;
    void *(*thread)(void);
    int (*initialized)(void), (*finalizing)(void);
    bool looked;
} python;

#define FIELD PASTA_PYTHON_FIELD

/* Called once: a Python that is loaded later is not found. */
static __attribute__((noinline)) bool find_python(void) {
    const char *(*version)(void) = NULL;
    void *eval = dlsym(RTLD_DEFAULT, "_PyEval_EvalFrameDefault");
    Dl_info info;
    const ElfW(Sym) *symbol = NULL;
    *(void **)&version = dlsym(RTLD_DEFAULT, "Py_GetVersion");
    *(void **)&python.thread = dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState");
    *(void **)&python.initialized = dlsym(RTLD_DEFAULT, "Py_IsInitialized");
    *(void **)&python.finalizing = dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
    if (!python.finalizing) *(void **)&python.finalizing = dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");
    python.code_type = dlsym(RTLD_DEFAULT, "PyCode_Type");
    if (!eval || !version || !python.thread || !python.initialized || !python.finalizing || !python.code_type) return false;
    const char *text = version();
    unsigned long minor = strncmp(text, "3.", 2) ? 0 : strtoul(text + 2, NULL, 10);
    const pasta_python_layout *layout = strstr(text, "free-threading") ? NULL : pasta_python_layout_of(minor);
    if (!layout || !dladdr1(eval, &info, (void **)&symbol, RTLD_DL_SYMENT) || !symbol) return false;
    python.eval_start = (uint64_t)(uintptr_t)eval;
    python.eval_end = python.eval_start + symbol->st_size;
    __atomic_store_n(&python.layout, layout, __ATOMIC_RELEASE);
    return true;
}

bool pasta_python_is_eval(uint64_t address) { return address - python.eval_start < python.eval_end - python.eval_start; }

/* Skips frames that Python itself hides; stops at the one that ends the interpreter's call. */
static bool is_shown(const pasta_python_layout *l, const void *frame) {
    const void *code = FIELD(void *, frame, l->code);
    char owner = FIELD(char, frame, l->owner);
    if (owner == PASTA_PYTHON_OWNED_BY_C || !code || FIELD(void *, code, PASTA_PYTHON_TYPE) != python.code_type) return false;
    const char *first = (const char *)code + l->instructions + 2 * (int64_t)FIELD(int, code, l->first_traceable);
    return owner == PASTA_PYTHON_OWNED_BY_GENERATOR || FIELD(char *, frame, l->instruction) >= first;
}

pasta_python_walk pasta_python_begin(void) {
    pasta_python_walk walk = {.frame = NULL};
    const pasta_python_layout *l = __atomic_load_n(&python.layout, __ATOMIC_ACQUIRE);
    if (!l || !python.initialized() || python.finalizing()) return walk;
    const void *thread = python.thread();
    if (!thread) return walk;
    walk.frame = FIELD(void *, thread, l->thread_frame);
    if (walk.frame && l->chain_frame >= 0) walk.frame = FIELD(void *, walk.frame, l->chain_frame);
    return walk;
}

size_t pasta_python_take(pasta_python_walk *walk, pasta_frame *frames, size_t capacity) {
    const pasta_python_layout *l = python.layout;
    size_t count = 0;
    while (walk->frame && count < capacity) {
        const void *frame = walk->frame;
        bool last = l->is_entry >= 0 ? FIELD(bool, frame, l->is_entry) : FIELD(char, frame, l->owner) == PASTA_PYTHON_OWNED_BY_C;
        if (is_shown(l, frame))
            frames[count++] = (pasta_frame){.address = (uint64_t)FIELD(uintptr_t, frame, l->instruction), .code = FIELD(void *, frame, l->code)};
        walk->frame = FIELD(void *, frame, l->previous);
        if (last) break;
    }
    return count;
}

/* ---- kinds of frames ---- */

static uint32_t intern_text(const void *object) {
    char utf8[4096];
    pasta_python_text t = pasta_python_text_of(python.layout, object);
    if (t.ascii) return pasta_intern((const char *)t.data, t.length);
    return pasta_intern(utf8, pasta_python_utf8(&t, utf8, sizeof utf8));
}

static uint64_t text_hash(const void *object) {
    pasta_python_text t = pasta_python_text_of(python.layout, object);
    return t.hash != -1 ? (uint64_t)t.hash : pasta_hash(t.data, t.length * t.kind);
}

static int64_t instruction_of(const pasta_frame *f) {
    return (int64_t)(f->address - (uint64_t)(uintptr_t)f->code - python.layout->instructions) / 2;
}

uint64_t pasta_python_hash(const pasta_frame *f) {
    uint64_t hash = pasta_mix(text_hash(FIELD(void *, f->code, PASTA_PYTHON_CODE_FILE)), text_hash(FIELD(void *, f->code, PASTA_PYTHON_CODE_NAME)));
    return pasta_mix(hash, (uint64_t)FIELD(uint32_t, f->code, python.layout->first_line) << 32 ^ (uint64_t)instruction_of(f));
}

static uint32_t line_of(const void *code, int64_t instruction) {
    const void *table = FIELD(void *, code, PASTA_PYTHON_CODE_LINES);
    return pasta_python_line_of((const uint8_t *)table + PASTA_PYTHON_BYTES_DATA, FIELD(int64_t, table, PASTA_PYTHON_SIZE),
                                FIELD(int, code, python.layout->first_line), instruction);
}

pasta_python_line pasta_python_describe(const pasta_frame *f) {
    return (pasta_python_line){.file = intern_text(FIELD(void *, f->code, PASTA_PYTHON_CODE_FILE)), .function = intern_text(FIELD(void *, f->code, PASTA_PYTHON_CODE_NAME)),
                               .line = line_of(f->code, instruction_of(f)), .first_line = FIELD(uint32_t, f->code, python.layout->first_line)};
}

void pasta_python_find(void) {
    if (!__atomic_exchange_n(&python.looked, true, __ATOMIC_RELAXED) && !find_python())
        __atomic_store_n(&python.layout, NULL, __ATOMIC_RELEASE);
}
