/* The constructor of libpasta.so: the only file that names backends, frameworks, communication and the consumer. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/internal.h"

extern const pasta_component pasta_nvidia_backend, pasta_refacc_backend, pasta_amd_backend, pasta_annotations,
    pasta_communication, pasta_frameworks, pasta_torch_framework, pasta_jax_framework;
extern const pasta_consumer pasta_python_consumer;

/* In the order in which programs that the target starts get their variables; pasta_frameworks before each
 * framework. */
static const pasta_component *const components[] = {
    &pasta_nvidia_backend, &pasta_refacc_backend,  &pasta_annotations,   &pasta_amd_backend,
    &pasta_communication,  &pasta_frameworks,      &pasta_torch_framework, &pasta_jax_framework,
};

/* ---- backends in libraries of their own: the key `libraries`, absolute paths separated by colons ---- */

static void load_library(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void (*load)(void) = NULL;
    if (library) *(void **)&load = dlsym(library, "pasta_backend_load");
    if (load) load();
    else pasta_say("the library of a backend cannot be loaded: %s", dlerror());
}

/* Has the symbols of this library found, also where the target opened it with RTLD_LOCAL. */
static void export_symbols(void) {
    Dl_info self;
    if (dladdr((void *)components, &self) && self.dli_fname) dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_GLOBAL);
}

static void load_libraries(const char *paths) {
    if (!paths || !*paths) return;
    char *copy = strdup(paths), *rest = NULL;
    export_symbols();
    for (char *path = copy ? strtok_r(copy, ":", &rest) : NULL; path; path = strtok_r(NULL, ":", &rest)) load_library(path);
    free(copy);
}

__attribute__((constructor)) static void load(void) {
    int saved = errno;
    pasta_environment_load();
    pasta_exec_load();
    pasta_life_load(&pasta_python_consumer);
    bool late = pasta_is_late();
    for (size_t i = 0; pasta_wanted() && i < sizeof components / sizeof *components; i++)
        if (!late || components[i]->late) components[i]->load();
    if (pasta_wanted() && !late) load_libraries(pasta_config("libraries"));
    errno = saved;
}
