/* Annotations for programs profiled by PASTA: name phases of the program, and choose what is
 * profiled.  Header only, C99 and C++; nothing to link (glibc before 2.34: -ldl).  Without
 * pasta-preload every call is a no-op that costs a load and an indirect call.
 *
 *     pasta_range_push("forward");
 *     …
 *     pasta_range_pop();
 *
 * Names are UTF-8 and are copied.  All functions may be called from any thread.
 */
#ifndef PASTA_H
#define PASTA_H

#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

/* Finds an exported function of the preloaded library, once in each translation unit: `type` is
 * the function's pointer type, `absent` what stands in for it. */
#define PASTA_FIND_(type, symbol, absent)                                 \
    static type found;                                                    \
    type function = __atomic_load_n(&found, __ATOMIC_ACQUIRE);            \
    if (!function) {                                                      \
        void *address = dlsym((void *)0 /* RTLD_DEFAULT */, symbol);      \
        if (address)                                                      \
            memcpy(&function, &address, sizeof function);                 \
        else                                                              \
            function = absent;                                            \
        __atomic_store_n(&found, function, __ATOMIC_RELEASE);             \
    }

typedef void (*pasta_api_void_)(void);
typedef void (*pasta_api_text_)(const char *);
typedef uint64_t (*pasta_api_open_)(const char *);
typedef void (*pasta_api_close_)(uint64_t);

static inline void pasta_absent_void_(void) {}
static inline void pasta_absent_text_(const char *name) { (void)name; }
static inline uint64_t pasta_absent_open_(const char *name) {
    (void)name;
    return 0;
}
static inline void pasta_absent_close_(uint64_t id) { (void)id; }

/* Starts profiling, where it was stopped or the program was started with --profile-from-start off. */
static inline void pasta_start(void) {
    PASTA_FIND_(pasta_api_void_, "pasta_api_start", pasta_absent_void_)
    function();
}

/* Stops profiling; allocations, modules and ranges are still followed. */
static inline void pasta_stop(void) {
    PASTA_FIND_(pasta_api_void_, "pasta_api_stop", pasta_absent_void_)
    function();
}

/* Opens a range on this thread, nested in the open ones. */
static inline void pasta_range_push(const char *name) {
    PASTA_FIND_(pasta_api_text_, "pasta_api_range_push", pasta_absent_text_)
    function(name);
}

/* Closes the innermost range that this thread pushed. */
static inline void pasta_range_pop(void) {
    PASTA_FIND_(pasta_api_void_, "pasta_api_range_pop", pasta_absent_void_)
    function();
}

/* Opens a range of the whole process, which any thread may end; 0 without pasta-preload. */
static inline uint64_t pasta_range_start(const char *name) {
    PASTA_FIND_(pasta_api_open_, "pasta_api_range_start", pasta_absent_open_)
    return function(name);
}

/* Closes a range of the process by its id. */
static inline void pasta_range_end(uint64_t id) {
    PASTA_FIND_(pasta_api_close_, "pasta_api_range_end", pasta_absent_close_)
    function(id);
}

/* Marks an instant. */
static inline void pasta_mark(const char *name) {
    PASTA_FIND_(pasta_api_text_, "pasta_api_mark", pasta_absent_text_)
    function(name);
}

/* Ends a step of the program, say an iteration, and begins the next: probes may run in some only. */
static inline void pasta_step(void) {
    PASTA_FIND_(pasta_api_void_, "pasta_api_step", pasta_absent_void_)
    function();
}

#undef PASTA_FIND_

#endif
