/* Applies a managed memory plan on CUDA.  Not run on a GPU so far: tests play a driver.
 *
 * Programs reach the driver in three ways: they link to it, they look its functions up with dlsym, or they ask
 * cuGetProcAddress, which they looked up (the CUDA runtime, which most programs have statically).  So the functions of
 * `interposed` are exported here, and dlsym and cuGetProcAddress give these where they would give the driver's.  The
 * driver's callbacks, in which no CUDA call is allowed, play no part. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#include "../../include/pasta_source.h"
#include "../../managed/plan.h"

typedef uint64_t device_pointer;
typedef void *handle;

/* CUlaunchConfig of cuda.h 12.0, as far as it is read. */
typedef struct launch_config {
    uint32_t grid[3], block[3], shared;
    handle stream;
} launch_config;
_Static_assert(offsetof(launch_config, stream) == 32, "layout of CUlaunchConfig");

enum { SUCCESS = 0, NOT_INITIALIZED = 3, NOT_FOUND = 500, CAPTURING = 900, CPU = -1, PER_THREAD_STREAM = 2 };
enum { READ_MOSTLY = 1, PREFERRED_LOCATION = 3, ACCESSED_BY = 5 };

typedef int alloc_function(device_pointer *address, size_t bytes, unsigned flags);
typedef int free_function(device_pointer address);
typedef int launch_function(handle function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                            unsigned block_y, unsigned block_z, unsigned shared, handle stream, void **parameters,
                            void **extra);
typedef int launch_ex_function(const launch_config *config, handle function, void **parameters, void **extra);
typedef int find_function(const char *symbol, void **function, int version, uint64_t flags);
typedef int find_v2_function(const char *symbol, void **function, int version, uint64_t flags, void *status);
typedef void *dlsym_function(void *library, const char *name);

PASTA_EXPORT alloc_function pasta_planned_cu_alloc __asm__("cuMemAllocManaged");
PASTA_EXPORT free_function pasta_planned_cu_free __asm__("cuMemFree_v2");
PASTA_EXPORT launch_function pasta_planned_cu_launch __asm__("cuLaunchKernel");
PASTA_EXPORT launch_function pasta_planned_cu_launch_ptsz __asm__("cuLaunchKernel_ptsz");
PASTA_EXPORT launch_ex_function pasta_planned_cu_launch_ex __asm__("cuLaunchKernelEx");
PASTA_EXPORT launch_ex_function pasta_planned_cu_launch_ex_ptsz __asm__("cuLaunchKernelEx_ptsz");
PASTA_EXPORT find_function pasta_planned_cu_find __asm__("cuGetProcAddress");
PASTA_EXPORT find_v2_function pasta_planned_cu_find_v2 __asm__("cuGetProcAddress_v2");

/* ---- the driver ---- */

dlsym_function *pasta_planned_next_dlsym __attribute__((visibility("hidden")));

static void find_dlsym(void) {
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
    for (size_t i = 0; i < sizeof versions / sizeof *versions && !pasta_planned_next_dlsym; i++)
        *(void **)&pasta_planned_next_dlsym = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
}

static struct {
    alloc_function *alloc;
    free_function *free;
    launch_function *launch, *launch_ptsz;
    launch_ex_function *launch_ex, *launch_ex_ptsz;
    find_function *find;
    find_v2_function *find_v2;
    int (*prefetch)(device_pointer address, size_t bytes, int device, handle stream);
    int (*prefetch_ptsz)(device_pointer address, size_t bytes, int device, handle stream);
    int (*advise)(device_pointer address, size_t bytes, int advice, int device);
    int (*device)(int *device);
    int (*capturing)(handle stream, int *status);
    int (*capturing_ptsz)(handle stream, int *status);
    int (*function_name)(const char **name, handle function);
    int (*kernel_name)(const char **name, handle kernel);
} driver;

static const struct {
    const char *name;
    void *pointer; /* in `driver` */
} functions[] = {
    {"cuMemAllocManaged", &driver.alloc},
    {"cuMemFree_v2", &driver.free},
    {"cuLaunchKernel", &driver.launch},
    {"cuLaunchKernel_ptsz", &driver.launch_ptsz},
    {"cuLaunchKernelEx", &driver.launch_ex},
    {"cuLaunchKernelEx_ptsz", &driver.launch_ex_ptsz},
    {"cuGetProcAddress", &driver.find},
    {"cuGetProcAddress_v2", &driver.find_v2},
    {"cuMemPrefetchAsync", &driver.prefetch},
    {"cuMemPrefetchAsync_ptsz", &driver.prefetch_ptsz},
    {"cuMemAdvise", &driver.advise},
    {"cuCtxGetDevice", &driver.device},
    {"cuStreamIsCapturing", &driver.capturing},
    {"cuStreamIsCapturing_ptsz", &driver.capturing_ptsz},
    {"cuFuncGetName", &driver.function_name},
    {"cuKernelGetName", &driver.kernel_name},
};

/* Threads that come at once find the same: without a lock, since the loader holds one. */
static bool find_driver(void) {
    if (!pasta_planned_next_dlsym) find_dlsym();
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    for (size_t i = 0; library && i < sizeof functions / sizeof *functions; i++)
        __atomic_store_n((void **)functions[i].pointer, pasta_planned_next_dlsym(library, functions[i].name), __ATOMIC_RELAXED);
    if (library && !driver.function_name)
        pasta_say("the managed memory plan is not applied: it requires a driver for CUDA 12.3 or newer");
    return library != NULL;
}

static bool is_found(void) {
    static bool found;
    if (!__atomic_load_n(&found, __ATOMIC_ACQUIRE)) __atomic_store_n(&found, find_driver(), __ATOMIC_RELEASE);
    return driver.prefetch && driver.advise && driver.device && driver.capturing && driver.function_name;
}

/* ---- looking functions up ---- */

static const struct {
    const char *name, *asked; /* in the library; to cuGetProcAddress */
    void *function;
    bool per_thread;
} interposed[] = {
    {"cuMemAllocManaged", "cuMemAllocManaged", (void *)pasta_planned_cu_alloc, false},
    {"cuMemFree_v2", "cuMemFree", (void *)pasta_planned_cu_free, false},
    {"cuLaunchKernel", "cuLaunchKernel", (void *)pasta_planned_cu_launch, false},
    {"cuLaunchKernel_ptsz", "cuLaunchKernel", (void *)pasta_planned_cu_launch_ptsz, true},
    {"cuLaunchKernelEx", "cuLaunchKernelEx", (void *)pasta_planned_cu_launch_ex, false},
    {"cuLaunchKernelEx_ptsz", "cuLaunchKernelEx", (void *)pasta_planned_cu_launch_ex_ptsz, true},
    {"cuGetProcAddress", "", (void *)pasta_planned_cu_find, false},
    {"cuGetProcAddress_v2", "cuGetProcAddress", (void *)pasta_planned_cu_find_v2, false},
};
enum { INTERPOSED = sizeof interposed / sizeof *interposed };

/* Replaces a function that the program found, if it is the driver's function of this name. */
static void replace(const char *symbol, uint64_t flags, void **function) {
    if (!is_found() || !symbol || !function || !*function) return;
    bool per_thread = flags & PER_THREAD_STREAM;
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < INTERPOSED; i++) {
            if (strcmp(interposed[i].asked, symbol) || (pass == 0 && interposed[i].per_thread != per_thread)) continue;
            for (size_t f = 0; f < sizeof functions / sizeof *functions; f++)
                if (!strcmp(functions[f].name, interposed[i].name) && *(void **)functions[f].pointer == *function) {
                    *function = interposed[i].function;
                    return;
                }
        }
}

/* Replacement that dlsym returns for the driver's function; NULL: none. */
void *pasta_planned_lookup(void *library, const char *name) __attribute__((visibility("hidden")));
void *pasta_planned_lookup(void *library, const char *name) {
    if (!pasta_planned_next_dlsym) find_dlsym();
    if (library == RTLD_NEXT || library == RTLD_DEFAULT || !name || name[0] != 'c' || name[1] != 'u' || !pasta_plan_is_on())
        return NULL;
    for (size_t i = 0; i < INTERPOSED; i++)
        if (!strcmp(interposed[i].name, name))
            return is_found() && pasta_planned_next_dlsym(library, name) ? interposed[i].function : NULL;
    return NULL;
}

/* dlsym goes on to the next one by a jump: that looks at its caller, for RTLD_NEXT. */
#if defined __x86_64__
__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, @function\n"
        "dlsym:\n"
        "    pushq %rdi\n"
        "    pushq %rsi\n"
        "    subq $8, %rsp\n"
        "    call pasta_planned_lookup\n"
        "    addq $8, %rsp\n"
        "    popq %rsi\n"
        "    popq %rdi\n"
        "    testq %rax, %rax\n"
        "    jnz 1f\n"
        "    jmpq *pasta_planned_next_dlsym(%rip)\n"
        "1:  ret\n"
        ".size dlsym, . - dlsym\n");
#elif defined __aarch64__
__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, %function\n"
        "dlsym:\n"
        "    stp x29, x30, [sp, #-32]!\n"
        "    stp x0, x1, [sp, #16]\n"
        "    bl pasta_planned_lookup\n"
        "    mov x16, x0\n"
        "    ldp x0, x1, [sp, #16]\n"
        "    ldp x29, x30, [sp], #32\n"
        "    cbz x16, 1f\n"
        "    mov x0, x16\n"
        "    ret\n"
        "1:  adrp x16, pasta_planned_next_dlsym\n"
        "    ldr x16, [x16, :lo12:pasta_planned_next_dlsym]\n"
        "    br x16\n"
        ".size dlsym, . - dlsym\n");
#else
#error "no dlsym for this processor"
#endif

int pasta_planned_cu_find(const char *symbol, void **function, int version, uint64_t flags) {
    is_found();
    if (!driver.find) return NOT_INITIALIZED;
    int error = driver.find(symbol, function, version, flags);
    if (error == SUCCESS && pasta_plan_is_on()) replace(symbol, flags, function);
    return error;
}

int pasta_planned_cu_find_v2(const char *symbol, void **function, int version, uint64_t flags, void *status) {
    is_found();
    if (!driver.find_v2) return NOT_INITIALIZED;
    int error = driver.find_v2(symbol, function, version, flags, status);
    if (error == SUCCESS && pasta_plan_is_on()) replace(symbol, flags, function);
    return error;
}

/* ---- steps ---- */

static int prefetch(const pasta_plan_step *step, int device, handle stream, bool per_thread) {
    /* in a stream that is captured, the call would end the capture */
    int capturing = 0;
    int error = (per_thread && driver.capturing_ptsz ? driver.capturing_ptsz : driver.capturing)(stream, &capturing);
    if (error != SUCCESS || capturing) return CAPTURING;
    return (per_thread && driver.prefetch_ptsz ? driver.prefetch_ptsz : driver.prefetch)(step->address, step->bytes, device,
                                                                                         stream);
}

static int carry_out_one(const pasta_plan_step *step, handle stream, bool per_thread) {
    int device;
    int error = driver.device(&device);
    if (error != SUCCESS) return error;
    switch (step->action) {
    case PASTA_PLAN_PREFETCH: return prefetch(step, device, stream, per_thread);
    case PASTA_PLAN_EVICT: return prefetch(step, CPU, stream, per_thread);
    case PASTA_PLAN_READ_MOSTLY: return driver.advise(step->address, step->bytes, READ_MOSTLY, device);
    case PASTA_PLAN_PREFERRED_HOST: return driver.advise(step->address, step->bytes, PREFERRED_LOCATION, CPU);
    case PASTA_PLAN_ACCESSED_BY: return driver.advise(step->address, step->bytes, ACCESSED_BY, device);
    case PASTA_PLAN_PIN: return driver.advise(step->address, step->bytes, PREFERRED_LOCATION, device);
    default: return NOT_FOUND;
    }
}

static void carry_out(pasta_plan_steps steps, handle stream, bool per_thread) {
    for (pasta_plan_step step; pasta_plan_next(&steps, &step);)
        pasta_plan_done(&step, carry_out_one(&step, stream, per_thread));
}

/* A launch also accepts the handle of a kernel. */
static bool name_of(handle function, const char **name) {
    if (driver.function_name(name, function) == SUCCESS && *name) return true;
    return driver.kernel_name && driver.kernel_name(name, function) == SUCCESS && *name;
}

/* Runs the steps before a launch; returns the steps after it. */
static pasta_plan_steps before_launch(handle function, const uint32_t grid[3], handle stream, bool per_thread) {
    const char *name = NULL;
    if (!pasta_plan_is_on() || !is_found() || !name_of(function, &name)) return (pasta_plan_steps){{{0, 0}, {0, 0}}};
    pasta_plan_launch plan = pasta_plan_launched(name, grid);
    carry_out(plan.before, stream, per_thread);
    return plan.after;
}

/* ---- the driver's functions ---- */

int pasta_planned_cu_alloc(device_pointer *address, size_t bytes, unsigned flags) {
    is_found();
    if (!driver.alloc) return NOT_INITIALIZED;
    int error = driver.alloc(address, bytes, flags);
    if (error == SUCCESS && pasta_plan_is_on() && is_found())
        carry_out(pasta_plan_allocated(*address, bytes), NULL, false);
    return error;
}

int pasta_planned_cu_free(device_pointer address) {
    is_found();
    if (!driver.free) return NOT_INITIALIZED;
    if (pasta_plan_is_on()) pasta_plan_freed(address);
    return driver.free(address);
}

static int launch(launch_function *call, bool per_thread, handle function, const uint32_t grid[3], const uint32_t block[3],
                  unsigned shared, handle stream, void **parameters, void **extra) {
    if (!call) return NOT_INITIALIZED;
    pasta_plan_steps after = before_launch(function, grid, stream, per_thread);
    int error = call(function, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared, stream, parameters, extra);
    if (error == SUCCESS) carry_out(after, stream, per_thread);
    return error;
}

static int launch_ex(launch_ex_function *call, bool per_thread, const launch_config *config, handle function,
                     void **parameters, void **extra) {
    if (!call) return NOT_INITIALIZED;
    if (!config) return call(config, function, parameters, extra);
    pasta_plan_steps after = before_launch(function, config->grid, config->stream, per_thread);
    int error = call(config, function, parameters, extra);
    if (error == SUCCESS) carry_out(after, config->stream, per_thread);
    return error;
}

int pasta_planned_cu_launch(handle function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                            unsigned block_y, unsigned block_z, unsigned shared, handle stream, void **parameters,
                            void **extra) {
    is_found();
    return launch(driver.launch, false, function, (uint32_t[]){grid_x, grid_y, grid_z},
                  (uint32_t[]){block_x, block_y, block_z}, shared, stream, parameters, extra);
}

int pasta_planned_cu_launch_ptsz(handle function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                 unsigned block_y, unsigned block_z, unsigned shared, handle stream, void **parameters,
                                 void **extra) {
    is_found();
    return launch(driver.launch_ptsz, true, function, (uint32_t[]){grid_x, grid_y, grid_z},
                  (uint32_t[]){block_x, block_y, block_z}, shared, stream, parameters, extra);
}

int pasta_planned_cu_launch_ex(const launch_config *config, handle function, void **parameters, void **extra) {
    is_found();
    return launch_ex(driver.launch_ex, false, config, function, parameters, extra);
}

int pasta_planned_cu_launch_ex_ptsz(const launch_config *config, handle function, void **parameters, void **extra) {
    is_found();
    return launch_ex(driver.launch_ex_ptsz, true, config, function, parameters, extra);
}
