/* Carries out a plan for managed memory on the reference accelerator, in programs that link to it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "../../include/pasta_source.h"
#include "../../managed/plan.h"
#include "../../refacc/refacc.h"

typedef int alloc_function(void **address, uint64_t bytes);
typedef int free_function(void *address);
typedef int symbol_function(ra_function *function, ra_module module, const char *symbol);
typedef int launch_function(ra_function function, const uint32_t grid[3], const uint32_t block[3], uint32_t shared,
                            ra_stream stream, void *const *parameters);
typedef int prefetch_function(const void *address, uint64_t bytes, int device, ra_stream stream);
typedef int advise_function(const void *address, uint64_t bytes, ra_advice advice, int device);
typedef int query_function(ra_pointer *pointer, const void *address);

PASTA_EXPORT alloc_function pasta_planned_alloc __asm__("ra_alloc_managed");
PASTA_EXPORT free_function pasta_planned_free __asm__("ra_free");
PASTA_EXPORT symbol_function pasta_planned_symbol __asm__("ra_module_function");
PASTA_EXPORT launch_function pasta_planned_launch __asm__("ra_launch");

/* The library's own functions: after this one in the order of search. */
static struct {
    alloc_function *alloc;
    free_function *free;
    symbol_function *symbol;
    launch_function *launch;
    prefetch_function *prefetch;
    advise_function *advise;
    query_function *query;
} library;

static const struct {
    const char *name;
    void *pointer; /* in `library` */
} functions_of_library[] = {
    {"ra_alloc_managed", &library.alloc}, {"ra_free", &library.free},     {"ra_module_function", &library.symbol},
    {"ra_launch", &library.launch},       {"ra_advise", &library.advise}, {"ra_pointer_query", &library.query},
    {"ra_prefetch", &library.prefetch},
};

/* False where the program opened the library in a way that we cannot follow.  Threads that come at once find the same:
 * without a lock, since the loader holds one. */
static bool is_found(void) {
    static bool found;
    if (__atomic_load_n(&found, __ATOMIC_ACQUIRE)) return true;
    bool all = true;
    for (size_t i = 0; i < sizeof functions_of_library / sizeof *functions_of_library; i++) {
        void *function = dlsym(RTLD_NEXT, functions_of_library[i].name);
        __atomic_store_n((void **)functions_of_library[i].pointer, function, __ATOMIC_RELAXED);
        all = all && function;
    }
    __atomic_store_n(&found, all, __ATOMIC_RELEASE);
    return all;
}

/* ---- names of functions ---- */

static struct {
    pthread_mutex_t mutex;
    struct {
        ra_function function;
        char *symbol; /* never freed: a launch may use it */
    } *known;
    size_t count;
} functions = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Another thread of the parent may have held it. */
static void forked(void) { pthread_mutex_init(&functions.mutex, NULL); }

__attribute__((constructor)) static void load(void) { pthread_atfork(NULL, NULL, forked); }

static void keep_symbol(ra_function function, const char *symbol) {
    pthread_mutex_lock(&functions.mutex);
    size_t i = 0;
    while (i < functions.count && functions.known[i].function != function) i++;
    if (i == functions.count) {
        void *grown = i & (i - 1) ? functions.known : realloc(functions.known, (i ? 2 * i : 1) * sizeof *functions.known);
        if (grown) {
            functions.known = grown;
            functions.known[functions.count++].function = function;
            functions.known[i].symbol = NULL;
        }
    }
    if (i < functions.count && (!functions.known[i].symbol || strcmp(functions.known[i].symbol, symbol)))
        functions.known[i].symbol = strdup(symbol);
    pthread_mutex_unlock(&functions.mutex);
}

static const char *symbol_of(ra_function function) {
    const char *symbol = NULL;
    pthread_mutex_lock(&functions.mutex);
    for (size_t i = 0; i < functions.count && !symbol; i++)
        if (functions.known[i].function == function) symbol = functions.known[i].symbol;
    pthread_mutex_unlock(&functions.mutex);
    return symbol;
}

/* ---- steps ---- */

static int carry_out_one(const pasta_plan_step *step, ra_stream stream) {
    const void *address = (const void *)(uintptr_t)step->address;
    ra_pointer pointer;
    int error = library.query(&pointer, address);
    if (error != RA_OK) return error;
    switch (step->action) {
    case PASTA_PLAN_PREFETCH: return library.prefetch(address, step->bytes, pointer.device, stream);
    case PASTA_PLAN_EVICT: return library.prefetch(address, step->bytes, RA_HOST, stream);
    case PASTA_PLAN_READ_MOSTLY: return library.advise(address, step->bytes, RA_ADVICE_READ_MOSTLY, pointer.device);
    case PASTA_PLAN_PREFERRED_HOST: return library.advise(address, step->bytes, RA_ADVICE_PREFERRED_LOCATION, RA_HOST);
    case PASTA_PLAN_ACCESSED_BY: return library.advise(address, step->bytes, RA_ADVICE_ACCESSED_BY, pointer.device);
    case PASTA_PLAN_PIN: return library.advise(address, step->bytes, RA_ADVICE_PREFERRED_LOCATION, pointer.device);
    default: return RA_INVALID_VALUE;
    }
}

static void carry_out(pasta_plan_steps steps, ra_stream stream) {
    for (pasta_plan_step step; pasta_plan_next(&steps, &step);) pasta_plan_done(&step, carry_out_one(&step, stream));
}

int pasta_planned_alloc(void **address, uint64_t bytes) {
    if (!is_found()) return RA_SYSTEM;
    int error = library.alloc(address, bytes);
    if (error == RA_OK && pasta_plan_is_on()) carry_out(pasta_plan_allocated((uintptr_t)*address, bytes), NULL);
    return error;
}

int pasta_planned_free(void *address) {
    if (!is_found()) return RA_SYSTEM;
    if (pasta_plan_is_on()) pasta_plan_freed((uintptr_t)address);
    return library.free(address);
}

int pasta_planned_symbol(ra_function *function, ra_module module, const char *symbol) {
    if (!is_found()) return RA_SYSTEM;
    int error = library.symbol(function, module, symbol);
    if (error == RA_OK && pasta_plan_is_on()) keep_symbol(*function, symbol);
    return error;
}

int pasta_planned_launch(ra_function function, const uint32_t grid[3], const uint32_t block[3], uint32_t shared,
                         ra_stream stream, void *const *parameters) {
    if (!is_found()) return RA_SYSTEM;
    const char *symbol = pasta_plan_is_on() && grid ? symbol_of(function) : NULL;
    if (!symbol) return library.launch(function, grid, block, shared, stream, parameters);
    pasta_plan_launch plan = pasta_plan_launched(symbol, grid);
    carry_out(plan.before, stream);
    int error = library.launch(function, grid, block, shared, stream, parameters);
    if (error == RA_OK) carry_out(plan.after, stream);
    return error;
}
