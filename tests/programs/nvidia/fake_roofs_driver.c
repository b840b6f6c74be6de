/* Replaces libcuda.so.1 for the process that measures roofs.  A launch takes 1 µs for each of its iterations, so that
 * a rate is the work of an iteration divided by 1 µs; nothing runs.
 *
 *     FAKE_ROOFS_CAPABILITY=90        of the device, which has 4 multiprocessors and 8 MiB of L2
 *     FAKE_ROOFS_FREE=N               bytes of free memory, instead of 64 GiB
 *     FAKE_ROOFS_FAIL=NAME            the function fails with 2
 *     FAKE_ROOFS_REFUSE=TEXT          modules with this text cannot be compiled
 *     FAKE_ROOFS_HANG=1               cuInit does not return
 *     FAKE_ROOFS_LOG=FILE             a line for each process
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define CALL(name, ...)                       \
    EXPORT int name(__VA_ARGS__) {            \
        if (fails(#name)) return 2;
#define END  \
    return 0; \
    }

static uint32_t iterations, last, mask;

static const char *setting(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value ? value : otherwise;
}

static int fails(const char *name) { return !strcmp(setting("FAKE_ROOFS_FAIL", ""), name); }

CALL(cuInit, unsigned flags)
    FILE *log = fopen(setting("FAKE_ROOFS_LOG", "/dev/null"), "a");
    (void)flags;
    if (log) {
        fprintf(log, "%s\n", setting("CUDA_VISIBLE_DEVICES", "-"));
        fclose(log);
    }
    while (*setting("FAKE_ROOFS_HANG", "")) sleep(1);
END

CALL(cuDeviceGet, int *device, int ordinal)
    *device = ordinal;
END

CALL(cuDeviceGetAttribute, int *value, int attribute, int device)
    int capability = atoi(setting("FAKE_ROOFS_CAPABILITY", "90"));
    *value = device         ? -1
             : attribute == 16 ? 4
             : attribute == 38 ? 8 << 20
             : attribute == 75 ? capability / 10
             : attribute == 76 ? capability % 10
                               : -1;
END

CALL(cuDevicePrimaryCtxRetain, void **context, int device)
    (void)device;
    *context = &iterations;
END

CALL(cuCtxSetCurrent, void *context)
    if (context != &iterations) return 201;
END

CALL(cuMemGetInfo_v2, size_t *free_bytes, size_t *total)
    *free_bytes = (size_t)atoll(setting("FAKE_ROOFS_FREE", "68719476736"));
    *total = (size_t)80 << 30;
END

CALL(cuMemAlloc_v2, uint64_t *address, size_t bytes)
    if (bytes > (size_t)1 << 30) return 2;
    *address = 0x700000000000;
END

CALL(cuMemsetD8_v2, uint64_t address, unsigned char value, size_t bytes)
    if (address != 0x700000000000 || value || bytes != (size_t)1 << 30) return 1;
END

CALL(cuModuleLoadData, void **module, const char *image)
    const char *refused = setting("FAKE_ROOFS_REFUSE", "");
    if (*refused && strstr(image, refused)) return 218;
    *module = (void *)image;
END

CALL(cuModuleGetFunction, void **function, void *module, const char *name)
    if (!module || strcmp(name, "kernel")) return 500;
    *function = module;
END

CALL(cuEventCreate, void **event, unsigned flags)
    (void)flags;
    *event = malloc(sizeof(uint32_t));
END

CALL(cuEventRecord, void *event, void *stream)
    if (stream) return 1;
    *(uint32_t *)event = iterations;
END

CALL(cuEventSynchronize, void *event)
    if (!event) return 1;
END

CALL(cuEventElapsedTime, float *milliseconds, void *begin, void *end)
    *milliseconds = (float)(*(uint32_t *)end - *(uint32_t *)begin) / 1000;
END

EXPORT int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **arguments, void **extra) {
    if (fails("cuLaunchKernel") || !function || stream || extra || shared) return 1;
    if (grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1 || grid_x % 4 || block_x % 32) return 1;
    uint64_t memory = *(uint64_t *)arguments[0], distance = *(uint64_t *)arguments[5];
    last = *(uint32_t *)arguments[1];
    mask = *(uint32_t *)arguments[2];
    if (memory != 0x700000000000 || !last || (mask & (mask + 1)) || distance != (uint64_t)1 << 29) return 700;
    iterations += last;
    return 0;
}

EXPORT int cuGetErrorName(int error, const char **name) {
    *name = error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : NULL;
    return error == 2 ? 0 : 1;
}
