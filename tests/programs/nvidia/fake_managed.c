/* A driver and a program for plans on managed memory.
 *
 *   cc -shared -fPIC -DFAKE_DRIVER fake_managed.c -o libcuda.so.1     prints the calls that it gets
 *   cc fake_managed.c -o program -ldl                                 finds it as its argument says:
 *     dlsym     by dlsym;  address, thread: by cuGetProcAddress_v2, which dlsym finds, as the CUDA runtime does,
 *               with the legacy or the per-thread default stream;  capture: launches into a captured stream
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint32_t grid[3], block[3], shared;
    void *stream;
} config;

#ifdef FAKE_DRIVER

static int captured;

int cuMemAllocManaged(uint64_t *address, size_t bytes, unsigned flags) {
    static uint64_t next = 0x7000000;
    *address = next;
    next += bytes;
    return printf("alloc %zu %u\n", bytes, flags) < 0;
}
int cuMemFree_v2(uint64_t address) { return printf("free %#lx\n", (unsigned long)address) < 0; }
int cuMemPrefetchAsync(uint64_t address, size_t bytes, int device, void *stream) {
    return printf("prefetch %#lx %zu to %d in %p\n", (unsigned long)address, bytes, device, stream) < 0;
}
int cuMemPrefetchAsync_ptsz(uint64_t address, size_t bytes, int device, void *stream) {
    return printf("per thread ") < 0 || cuMemPrefetchAsync(address, bytes, device, stream);
}
int cuMemAdvise(uint64_t address, size_t bytes, int advice, int device) {
    return printf("advise %#lx %zu %d for %d\n", (unsigned long)address, bytes, advice, device) < 0;
}
int cuCtxSynchronize(void) { return printf("synchronize\n") < 0; }
int cuCtxGetDevice(int *device) { return *device = 2, 0; }
int cuStreamIsCapturing(void *stream, int *status) { return *status = captured && stream, 0; }
int cuStreamBeginCapture(void *stream) { return captured = stream != NULL, 0; }
int cuFuncGetName(const char **name, void *function) { return *name = function == (void *)1 ? "_Z1kv" : "other", 0; }
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
    (void)bx, (void)by, (void)bz, (void)shared, (void)parameters, (void)extra;
    return printf("launch %p %u %u %u in %p\n", function, x, y, z, stream) < 0;
}
int cuLaunchKernel_ptsz(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, void *stream, void **parameters, void **extra) {
    return printf("per thread ") < 0 || cuLaunchKernel(function, x, y, z, bx, by, bz, shared, stream, parameters, extra);
}
int cuLaunchKernelEx(const config *c, void *function, void **parameters, void **extra) {
    (void)parameters, (void)extra;
    return printf("launch ex %p %u %u %u in %p\n", function, c->grid[0], c->grid[1], c->grid[2], c->stream) < 0;
}
int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, void *status) {
    (void)version, (void)status;
    char name[64];
    snprintf(name, sizeof name, "%s%s", symbol, flags & 2 && !strcmp(symbol, "cuLaunchKernel") ? "_ptsz" : "");
    if (!strcmp(symbol, "cuMemFree")) strcat(name, "_v2");
    Dl_info self;
    dladdr((void *)cuGetProcAddress_v2, &self);
    *function = dlsym(dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD), name);
    return *function ? 0 : 500;
}

#else

typedef int find_v2(const char *, void **, int, uint64_t, void *);
static void *library;
static find_v2 *find;
static uint64_t flags;

static void *look_up(const char *name) {
    void *function = NULL;
    if (!find) {
        char exported[64];
        snprintf(exported, sizeof exported, "%s%s", name, strcmp(name, "cuMemFree") ? "" : "_v2");
        function = dlsym(library, exported);
    } else if (find(name, &function, 13000, flags, NULL)) {
        function = NULL;
    }
    if (!function) exit(3);
    return function;
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "dlsym";
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library || dlsym(library, "cuNoSuchFunction")) return 2;
    if (!strcmp(how, "address") || !strcmp(how, "thread")) *(void **)&find = dlsym(library, "cuGetProcAddress_v2");
    flags = !strcmp(how, "thread") ? 2 : 0;
    int (*alloc)(uint64_t *, size_t, unsigned), (*release)(uint64_t);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    int (*launch_ex)(const config *, void *, void **, void **);
    *(void **)&alloc = look_up("cuMemAllocManaged");
    *(void **)&release = look_up("cuMemFree");
    *(void **)&launch = look_up("cuLaunchKernel");
    *(void **)&launch_ex = look_up("cuLaunchKernelEx");
    uint64_t address;
    void *stream = (void *)0x51;
    if (!strcmp(how, "capture")) {
        int (*capture)(void *);
        *(void **)&capture = dlsym(library, "cuStreamBeginCapture");
        capture(stream);
    }
    alloc(&address, 4096, 1);
    launch((void *)1, 4, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
    launch((void *)2, 4, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
    config c = {{4, 1, 1}, {32, 1, 1}, 0, stream};
    launch_ex(&c, (void *)1, NULL, NULL);
    return release(address);
}

#endif
