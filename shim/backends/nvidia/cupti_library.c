/* The CUPTI library and the driver's functions. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#include "cupti_source.h"

pasta_cupti_library pasta_cupti;
pasta_cupti_driver pasta_cuda;
static void *cupti_library;

static void find_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!library) return;
    *(void **)&pasta_cuda.function_attribute = dlsym(library, "cuFuncGetAttribute");
    *(void **)&pasta_cuda.function_name = dlsym(library, "cuFuncGetName");
    *(void **)&pasta_cuda.kernel_function = dlsym(library, "cuKernelGetFunction");
    *(void **)&pasta_cuda.parameter = dlsym(library, "cuFuncGetParamInfo");
    *(void **)&pasta_cuda.is_capturing = dlsym(library, "cuStreamIsCapturing");
    *(void **)&pasta_cuda.range = dlsym(library, "cuMemGetAddressRange_v2");
    *(void **)&pasta_cuda.synchronize = dlsym(library, "cuCtxSynchronize");
    dlclose(library);
}

/* Two copies of CUPTI do not work in one process, and a framework may have brought one. */
static void *loaded(const char **path) {
    static const char *const names[] = {"libcupti.so.13", "libcupti.so.12"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_NOLOAD);
        *path = names[i];
        if (library) return library;
    }
    return NULL;
}

bool pasta_cupti_load(char *why, size_t size) {
    const char *path, *configured = pasta_config("cupti_lib"), *missing = NULL;
    void *library = loaded(&path);
    if (!library) {
        path = configured && *configured ? configured : "libcupti.so.13";
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    if (!library) {
        snprintf(why, size, "%s; " PASTA_CUPTI_INSTALL, dlerror());
        return false;
    }
#define RESOLVE(name, symbol, arguments)                  \
    *(void **)&pasta_cupti.name = dlsym(library, symbol); \
    if (!pasta_cupti.name) missing = symbol;
    PASTA_CUPTI_FUNCTIONS(RESOLVE)
#undef RESOLVE
    if (missing) {
        snprintf(why, size, "%s has no %s; " PASTA_CUPTI_INSTALL, path, missing);
        return false;
    }
    int32_t result = pasta_cupti.get_version(&pasta_cupti.version);
    if (result != 0) { /* some versions do not report it without a compatible driver */
        snprintf(why, size, "%s does not work here: %d (%s); see `pasta doctor`", path, result, pasta_cupti_error(result));
        return false;
    }
    if (pasta_cupti.version < PASTA_CUPTI_12_6) {
        snprintf(why, size, "%s is older than 12.6; " PASTA_CUPTI_INSTALL, path);
        return false;
    }
    find_driver();
    cupti_library = library;
    return true;
}

void *pasta_cupti_function(const char *symbol) { return cupti_library ? dlsym(cupti_library, symbol) : NULL; }

const char *pasta_cupti_version(void) {
    static char text[16];
    static const char *const old[] = {"12.6", "12.7", "12.8", "12.8", "12.9"};
    uint32_t version = pasta_cupti.version, first = PASTA_CUPTI_12_6;
    if (version < first + sizeof old / sizeof *old) return old[version - first];
    snprintf(text, sizeof text, "%u.%u", version / 10000 % 1000, version / 100 % 100);
    return text;
}

const char *pasta_cupti_error(int32_t result) {
    const char *text = NULL;
    return pasta_cupti.result_string(result, &text) == 0 && text ? text : "unknown error";
}

static const char *hardware_remedy(int32_t result) {
    switch (result) {
    case PASTA_CUPTI_NO_PRIVILEGES:
        return "the driver restricts profiling to administrators (ERR_NVGPUCTRPERM): load the driver's module with "
               "NVreg_RestrictProfilingToAdminUsers=0, or run as root; in a container with CAP_SYS_ADMIN";
    case PASTA_CUPTI_MIG_DEVICE: return "a MIG device does not allow it: use a whole GPU";
    case PASTA_CUPTI_VIRTUAL_DEVICE:
    case PASTA_CUPTI_HYPERVISOR: return "a virtual GPU allows it only if its host enables profiling";
    case PASTA_CUPTI_CONFIDENTIAL: return "confidential computing does not allow it";
    case PASTA_CUPTI_WSL_DEVICE: return "WSL does not allow it";
    case PASTA_CUPTI_OTHER_SUBSCRIBER:
    case PASTA_CUPTI_HARDWARE_BUSY: return "another profiler (nsys, ncu, DCGM) uses the hardware: run without it";
    case PASTA_CUPTI_NOT_INITIALIZED:
    case PASTA_CUPTI_NOT_COMPATIBLE: return "the driver is not compatible with this library: install a newer driver, or an older nvidia-cuda-cupti";
    case PASTA_CUPTI_NOT_SUPPORTED: return "this device or driver does not support it: compute capability 7.0 or newer is required, and no MIG instance";
    default: return "see `pasta doctor`";
    }
}

bool pasta_cupti_failed(int32_t result, const char *call, const char *what, bool *said) {
    if (result == 0) return false;
    const char *error = pasta_cupti_error(result);
    if (*said) pasta_log("%s: %s failed with %d (%s)", PASTA_CUPTI_SOURCE, call, result, error);
    else pasta_say("%s: %s failed with %d (%s); %s", what, call, result, error, hardware_remedy(result));
    return *said = true;
}
