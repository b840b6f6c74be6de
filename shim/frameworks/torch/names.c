/* Operators of PyTorch by name, where hooks.cpp cannot be built.
 *
 * A RecordFunction callback without PyTorch's headers: its functions are found by their symbols, and one
 * object, whose layout is the same since PyTorch 1.8, is declared here.  Tensors, sequence numbers, modules
 * and Python lines are behind inline functions, and absent.  Nothing is recorded before a test: the caller
 * runs one operator, and its begin and end must have been seen. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#include "torch.h"

#ifdef __x86_64__ /* how a std::unique_ptr is returned */

enum { FUNCTION = 0, BACKWARD = 1, TORCHSCRIPT = 2, USER = 7 }; /* at::RecordScope */
enum { CALLBACKS = 4 };

typedef struct callback {
    void *(*start)(void *result, const void *function);
    void (*end)(const void *function, void *observer);
    double probability;
    uint8_t scopes[10], needs[3]; /* inputs, outputs, ids */
    uint8_t reserved[16];         /* for a later version */
} callback;

static struct {
    uint64_t (*add)(callback);
    void (*remove)(uint64_t);
    void (*disable)(uint64_t);
    void (*enable)(uint64_t);
    const char *(*name)(const void *function);
    uint64_t (*thread)(void);
} torch;

static uint64_t handles[CALLBACKS];
static bool recording; /* the test has passed */
static __thread uint32_t depth, generation, number; /* number: PyTorch's, of this thread */
static __thread uint32_t begun, ended;              /* of the test's operator */

static const char tested[] = "aten::empty";

static void *no_observer(void *result) {
    *(void **)result = NULL;
    return result;
}

static void *start(void *result, const void *function, uint8_t scope) {
    const char *name = torch.name(function);
    if (!recording) {
        begun += name && !strcmp(name, tested);
        return no_observer(result);
    }
    if (generation != pasta_generation() || !number) { /* open operators are the parent's */
        depth = 0;
        generation = pasta_generation();
        number = (uint32_t)torch.thread();
    }
    depth++;
    pasta_operator_begin begin = {.name = pasta_intern_z(name), .sequence = PASTA_ABSENT_U32,
                                  .forward_thread = PASTA_ABSENT_U16, .framework_thread = (uint16_t)number,
                                  .depth = (uint16_t)depth, .scope = scope};
    if (pasta_scope_follows_operators) pasta_scope_operator_begins(&begin);
    pasta_operator_begin *e = PASTA_BEGIN(operator_begin, PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (e) {
        *e = begin;
        pasta_publish(e);
    }
    return no_observer(result);
}

static void *start_function(void *result, const void *function) { return start(result, function, FUNCTION); }
static void *start_backward(void *result, const void *function) { return start(result, function, BACKWARD); }
static void *start_script(void *result, const void *function) { return start(result, function, TORCHSCRIPT); }

static void end(const void *function, void *observer) {
    (void)observer;
    if (!recording) {
        const char *name = torch.name(function);
        ended += name && !strcmp(name, tested);
        return;
    }
    if (!depth || generation != pasta_generation()) return;
    if (pasta_scope_follows_operators) pasta_scope_operator_ends();
    pasta_operator_end *e = PASTA_BEGIN(operator_end, PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (e) {
        *e = (pasta_operator_end){.depth = (uint16_t)depth};
        pasta_publish(e);
    }
    depth--;
}

static pasta_range torch_range(const char *name) {
    return (pasta_range){.id = PASTA_ABSENT_U64,
                         .name = pasta_intern_z(name),
                         .domain = pasta_intern_z("torch"),
                         .color = PASTA_ABSENT_U32,
                         .origin = PASTA_ORIGIN_framework};
}

static void *start_range(void *result, const void *function) {
    if (!recording) return no_observer(result);
    pasta_range range = torch_range(torch.name(function));
    pasta_probe_range_push(PASTA_RANGE_STACK(PASTA_ORIGIN_framework, 0), range.name);
    pasta_range *e = PASTA_BEGIN_AS(range_push, range, PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (e) {
        *e = range;
        pasta_publish(e);
    }
    return no_observer(result);
}

static void end_range(const void *function, void *observer) {
    (void)function, (void)observer;
    pasta_probe_range_pop(PASTA_RANGE_STACK(PASTA_ORIGIN_framework, 0));
    if (!recording) return;
    pasta_range *e = PASTA_BEGIN_AS(range_pop, range, PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (e) {
        *e = torch_range(NULL);
        pasta_publish(e);
    }
}

static void switch_to(bool on) {
    for (int i = 0; i < CALLBACKS; i++) (on ? torch.enable : torch.disable)(handles[i]);
}

static bool find_torch(void) {
    static const char *const names[] = {
        "_ZN2at17addGlobalCallbackENS_22RecordFunctionCallbackE", "_ZN2at14removeCallbackEm", "_ZN2at15disableCallbackEm",
        "_ZN2at16reenableCallbackEm", "_ZNK2at14RecordFunction4nameEv", "_ZN2at14RecordFunction15currentThreadIdEv",
    };
    void *library = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD), **slots = (void **)&torch;
    bool found = library != NULL;
    for (size_t i = 0; found && i < sizeof names / sizeof *names; i++) found = (slots[i] = dlsym(library, names[i])) != NULL;
    if (library) dlclose(library);
    return found;
}

PASTA_EXPORT int pasta_torch_names_begin(void) {
    static const struct {
        void *(*start)(void *, const void *);
        void (*end)(const void *, void *);
        int scope;
    } all[CALLBACKS] = {
        {start_function, end, FUNCTION}, {start_backward, end, BACKWARD}, {start_script, end, TORCHSCRIPT}, {start_range, end_range, USER}};
    if (!pasta_ring_mine() || !find_torch()) return 0;
    for (int i = 0; i < CALLBACKS; i++) {
        callback made = {.start = all[i].start, .end = all[i].end, .probability = 1};
        made.scopes[all[i].scope] = 1;
        handles[i] = torch.add(made);
    }
    return 1;
}

/* After the caller ran `tested` once: operators are recorded from now on, or none are. */
PASTA_EXPORT int pasta_torch_names_end(void) {
    bool good = begun == 1 && ended == 1;
    for (int i = 0; !good && i < CALLBACKS; i++) torch.remove(handles[i]);
    if (!good) return 0;
    recording = true;
    switch_to(pasta_profiling_is_on());
    pasta_on_profiling(switch_to);
    return 1;
}

#else

PASTA_EXPORT int pasta_torch_names_begin(void) { return 0; }
PASTA_EXPORT int pasta_torch_names_end(void) { return 0; }

#endif
