/* The Sanitizer library and its functions. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "source.h"

pasta_nv_library pasta_nv;

/* Looks each function up in `library`; `missing` gets the symbol of a missing one. */
#define RESOLVE(name, symbol, arguments)               \
    *(void **)&pasta_nv.name = dlsym(library, symbol); \
    if (!pasta_nv.name) missing = symbol;

static const char *library_path(void) {
    const char *configured = pasta_config("sanitizer_lib");
    return configured && *configured ? configured : PASTA_NV_LIBRARY;
}

bool pasta_nv_load(void) {
    const char *path = library_path();
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        pasta_say("CUDA is not recorded: %s; " PASTA_NV_INSTALL, dlerror());
        return false;
    }
    const char *missing = NULL;
    PASTA_NV_FUNCTIONS(RESOLVE)
    if (missing) pasta_say("CUDA is not recorded: %s has no %s; " PASTA_NV_INSTALL, path, missing);
    return !missing;
}

bool pasta_nv_load_for_probes(void) {
    const char *missing = NULL;
    void *library = dlopen(library_path(), RTLD_NOW | RTLD_NOLOAD);
    if (!library) return false;
    PASTA_NV_PROBE_FUNCTIONS(RESOLVE)
    if (missing) pasta_say("probes do not run: the Sanitizer library has no %s", missing);
    return !missing;
}
