/* Arrays of JAX as tensors.
 *
 * XLA does not report which parts of its pool it hands out, but JAX lists its live arrays.  After each execution of a
 * module the hooks' function that does so is called, by the interpreter's main thread, as soon as it runs Python again:
 * XLA's thread may hold locks.  An array is recorded as what an operator returns that has the Python stack of its
 * creation; when Python frees it, a weak reference to it calls pasta_jax_array_freed. */
#include "arrays.h"

#include "../../core/cpython.h"
#include "../framework.h"

enum { FIRST_STACK = 1 << 30 };
/* Ids of arrays in order; ids of other frameworks are larger. */
enum { ARRAY = 1 };

static uint32_t last_stack = FIRST_STACK;
static pasta_cpython python;
static void *lister; /* a Python callable, or NULL */
static bool is_due;  /* it will be called */

uint32_t pasta_jax_new_stack(void) { return __atomic_add_fetch(&last_stack, 1, __ATOMIC_RELAXED); }

/* In the main thread, with the interpreter's lock.  An exception, as of a handler of a signal, is the program's. */
static int list(void *unused) {
    (void)unused;
    __atomic_store_n(&is_due, false, __ATOMIC_RELEASE);
    if (!lister) return 0;
    void *result = python.call(lister, NULL);
    if (result) python.decref(result);
    return result ? 0 : -1;
}

void pasta_jax_executed(void) {
    if (PASTA_LIKELY(!__atomic_load_n(&lister, __ATOMIC_ACQUIRE)) || !pasta_profiling_is_on()) return;
    if (__atomic_exchange_n(&is_due, true, __ATOMIC_ACQ_REL)) return;
    if (python.add_pending(list, NULL)) __atomic_store_n(&is_due, false, __ATOMIC_RELEASE);
}

/* ---- called by the hooks, with the interpreter's lock ---- */

/* Calls a function of Python, which must live until another one or NULL is given, after each execution; false where
 * this Python does not allow it. */
PASTA_EXPORT int pasta_jax_list_arrays(void *function) {
    if (function && (!pasta_cpython_find(&python) || !pasta_cpython_find_audit(&python))) return false;
    __atomic_store_n(&lister, function, __ATOMIC_RELEASE);
    return true;
}

PASTA_EXPORT uint32_t pasta_jax_stack(void) { return pasta_jax_new_stack(); }

PASTA_EXPORT void pasta_jax_frame(uint32_t stack, uint32_t depth, const char *file, const char *function, uint32_t line) {
    pasta_python_frame *e = PASTA_BEGIN(python_frame, PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!e) return;
    *e = (pasta_python_frame){.stack = stack, .depth = depth, .file = pasta_intern_z(file),
                              .function = pasta_intern_z(function), .line = line};
    pasta_publish(e);
}

static void publish_array(uint64_t address, uint64_t bytes, int16_t device, const char *shape, const char *dtype) {
    pasta_tensor *e = pasta_begin(PASTA_EVENT_tensor_create, PASTA_SLOTS(pasta_tensor), device, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!e) return;
    *e = (pasta_tensor){.storage = address, .bytes = bytes, .tensor = ARRAY, .role = PASTA_ROLE_buffer,
                        .shape = pasta_intern_z(shape), .dtype = pasta_intern_z(dtype)};
    pasta_publish(e);
}

static bool publish_memory(pasta_event_kind kind, uint64_t address, uint64_t bytes, int16_t device, uint32_t stack) {
    pasta_tensor_memory t = {.address = address, .bytes = bytes, .stack = stack, .memory = PASTA_MEMORY_device};
    return pasta_tensor_publish(kind, device, &t);
}

/* A live array that is new, by the address of its buffer; false where nothing is recorded at present. */
PASTA_EXPORT int pasta_jax_array(uint64_t address, uint64_t bytes, int device, uint32_t stack, const char *shape,
                                 const char *dtype) {
    pasta_operator_begin *begin = PASTA_BEGIN(operator_begin, PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!begin) return false;
    *begin = (pasta_operator_begin){.name = pasta_intern_z("jax.Array"), .stack = stack, .sequence = PASTA_ABSENT_U32,
                                    .forward_thread = PASTA_ABSENT_U16, .depth = 1};
    pasta_publish(begin);
    pasta_tensor_allocated(address, bytes);
    bool recorded = publish_memory(PASTA_EVENT_tensor_alloc, address, bytes, (int16_t)device, stack);
    publish_array(address, bytes, (int16_t)device, shape, dtype);
    pasta_operator_end *end = PASTA_BEGIN(operator_end, PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!end) return recorded;
    *end = (pasta_operator_end){.depth = 1, .outputs = 1, .tensor = {ARRAY}};
    pasta_publish(end);
    return recorded;
}

/* `array`: the weak reference, of which this is the callback. */
PASTA_EXPORT void pasta_jax_array_freed(uint64_t address, uint64_t bytes, int device, void *array) {
    (void)array;
    publish_memory(PASTA_EVENT_tensor_free, address, bytes, (int16_t)device, 0);
}
