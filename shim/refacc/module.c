/* Modules: images linked to the kernels that the process knows. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "internal.h"

#define HEADER "refacc-module 1\n"
#define MODULE_CODE UINT64_C(0x1000000) /* bytes of code addresses per module */
#define FUNCTION_CODE UINT64_C(0x1000)
#define MAX_FUNCTIONS (MODULE_CODE / FUNCTION_CODE - 1)

pthread_mutex_t ra_kernels_lock = PTHREAD_MUTEX_INITIALIZER;
static const ra_kernel **registered; /* ra_kernels_lock */
static size_t registered_count;
static _Atomic uint64_t modules_loaded; /* determines code addresses, equal in every run */

static const ra_kernel *among(const ra_kernel *kernels, size_t count, const char *symbol, size_t length) {
    for (size_t i = 0; i < count; i++)
        if (strlen(kernels[i].symbol) == length && !memcmp(kernels[i].symbol, symbol, length)) return &kernels[i];
    return NULL;
}

static const ra_kernel *kernel_named(const char *symbol, size_t length) { /* ra_kernels_lock held */
    const ra_kernel *found = among(ra_builtin_kernels, ra_builtin_count, symbol, length);
    if (!found) found = among(ra_golden_kernels, ra_golden_count, symbol, length);
    for (size_t i = 0; i < registered_count && !found; i++) found = among(registered[i], 1, symbol, length);
    return found;
}

static bool kernel_sound(const ra_kernel *kernel) {
    if (!kernel->symbol || !*kernel->symbol || strchr(kernel->symbol, '\n') || !kernel->run) return false;
    if (kernel->parameters > RA_MAX_PARAMETERS || kernel->shared_static > RA_MAX_SHARED || kernel->state % 8)
        return false;
    if (kernel->cluster > RA_MAX_CLUSTER) return false;
    for (uint32_t i = 0; i < kernel->parameters; i++)
        if (kernel->parameter_bytes[i] < 1 || kernel->parameter_bytes[i] > 8) return false;
    return true;
}

int ra_kernel_register(const ra_kernel *kernels, size_t count) {
    RA_REQUIRE(kernels && count, RA_INVALID_VALUE);
    pthread_mutex_lock(&ra_kernels_lock);
    int error = RA_OK;
    for (size_t i = 0; i < count && error == RA_OK; i++)
        if (!kernel_sound(&kernels[i]) || kernel_named(kernels[i].symbol, strlen(kernels[i].symbol)))
            error = RA_INVALID_VALUE;
    if (error == RA_OK) {
        const ra_kernel **grown = realloc(registered, (registered_count + count) * sizeof *grown);
        if (grown) {
            registered = grown;
            for (size_t i = 0; i < count; i++) registered[registered_count++] = &kernels[i];
        } else {
            error = RA_OUT_OF_MEMORY;
        }
    }
    pthread_mutex_unlock(&ra_kernels_lock);
    return error;
}

/* Links the image's lines into module->functions. */
static int link_image(struct ra_module_s *module) {
    const char *text = (const char *)module->image, *end = text + module->image_bytes;
    size_t header = sizeof HEADER - 1;
    RA_REQUIRE(module->image_bytes > header && !memcmp(text, HEADER, header) && end[-1] == '\n', RA_INVALID_IMAGE);
    size_t lines = 0;
    for (const char *c = text + header; c < end; c++) lines += *c == '\n';
    RA_REQUIRE(lines <= MAX_FUNCTIONS, RA_INVALID_IMAGE);
    module->functions = calloc(lines, sizeof *module->functions);
    RA_REQUIRE(module->functions, RA_OUT_OF_MEMORY);
    uint64_t code = (1 + atomic_fetch_add(&modules_loaded, 1)) * MODULE_CODE;
    for (const char *line = text + header; line < end;) {
        const char *line_end = memchr(line, '\n', (size_t)(end - line));
        const ra_kernel *kernel = kernel_named(line, (size_t)(line_end - line));
        RA_REQUIRE(kernel, RA_NOT_FOUND);
        struct ra_function_s *function = &module->functions[module->count++];
        *function = (struct ra_function_s){kernel, module, code + module->count * FUNCTION_CODE};
        line = line_end + 1;
    }
    return RA_OK;
}

void ra_module_clear(struct ra_module_s *module) {
    free(module->image);
    free(module->functions);
    module->image = NULL;
    module->functions = NULL;
    module->count = 0;
}

static void tell_module(const struct ra_module_s *module, ra_callback_id id) {
    if (!ra_tools_want(RA_DOMAIN_RESOURCE)) return;
    ra_module_data data = {sizeof data, module->context->device, (uintptr_t)module->context, (uintptr_t)module,
                           module->image, module->image_bytes};
    ra_tools_call(RA_DOMAIN_RESOURCE, id, &data);
}

int ra_module_load(ra_module *handle, const void *image, size_t bytes) {
    RA_REQUIRE(handle && image, RA_INVALID_VALUE);
    struct ra_context_s *context;
    RA_TRY(ra_current(&context));
    RA_REQUIRE(bytes, RA_INVALID_IMAGE);
    struct ra_module_s *module = ra_object_new(RA_TYPE_MODULE);
    RA_REQUIRE(module, RA_OUT_OF_MEMORY);
    int error = RA_OUT_OF_MEMORY;
    if ((module->image = malloc(bytes))) {
        memcpy(module->image, image, bytes);
        module->image_bytes = bytes;
        pthread_mutex_lock(&ra_kernels_lock);
        error = link_image(module);
        pthread_mutex_unlock(&ra_kernels_lock);
    }
    if (error != RA_OK) {
        ra_module_clear(module);
        ra_object_delete(module);
        return error;
    }
    module->context = context;
    pthread_mutex_lock(&ra_lock);
    module->next = context->modules;
    context->modules = module;
    pthread_mutex_unlock(&ra_lock);
    ra_object_publish(module);
    tell_module(module, RA_CALLBACK_MODULE_LOADED);
    *handle = module;
    return RA_OK;
}

static size_t names_bytes(const ra_kernel *kernels, size_t count) {
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) bytes += strlen(kernels[i].symbol) + 1;
    return bytes;
}

static char *put_names(char *end, const ra_kernel *kernels, size_t count) {
    for (size_t i = 0; i < count; i++) {
        end = mempcpy(end, kernels[i].symbol, strlen(kernels[i].symbol));
        *end++ = '\n';
    }
    return end;
}

int ra_module_load_builtin(ra_module *module) {
    size_t bytes = sizeof HEADER - 1 + names_bytes(ra_builtin_kernels, ra_builtin_count) +
                   names_bytes(ra_golden_kernels, ra_golden_count);
    char *image = malloc(bytes);
    RA_REQUIRE(image, RA_OUT_OF_MEMORY);
    char *end = put_names(mempcpy(image, HEADER, sizeof HEADER - 1), ra_builtin_kernels, ra_builtin_count);
    put_names(end, ra_golden_kernels, ra_golden_count);
    int error = ra_module_load(module, image, bytes);
    free(image);
    return error;
}

int ra_module_unload(ra_module module) {
    RA_TRY(ra_init());
    RA_REQUIRE(ra_object_is(module, RA_TYPE_MODULE), RA_INVALID_HANDLE);
    int error = ra_context_drain(module->context);
    tell_module(module, RA_CALLBACK_MODULE_UNLOADED);
    atomic_store(&module->object.alive, 0);
    pthread_mutex_lock(&ra_lock);
    struct ra_module_s **link = &module->context->modules;
    while (*link != module) link = &(*link)->next;
    *link = module->next;
    pthread_mutex_unlock(&ra_lock);
    ra_module_clear(module);
    ra_object_delete(module);
    return error;
}

void ra_modules_release(struct ra_context_s *context) {
    for (struct ra_module_s *module = context->modules, *next; module; module = next) {
        next = module->next;
        ra_module_clear(module);
        ra_object_delete(module);
    }
    context->modules = NULL;
}

void ra_modules_forget(void) { atomic_store(&modules_loaded, 0); }

int ra_module_function(ra_function *function, ra_module module, const char *symbol) {
    RA_TRY(ra_init());
    RA_REQUIRE(function && symbol, RA_INVALID_VALUE);
    RA_REQUIRE(ra_object_is(module, RA_TYPE_MODULE), RA_INVALID_HANDLE);
    for (size_t i = 0; i < module->count; i++) {
        if (strcmp(module->functions[i].kernel->symbol, symbol)) continue;
        *function = &module->functions[i];
        return RA_OK;
    }
    return RA_NOT_FOUND;
}

bool ra_function_is(ra_function function) { return function && ra_object_is(function->module, RA_TYPE_MODULE); }

int ra_function_query(ra_function_properties *properties, ra_function function) {
    RA_TRY(ra_init());
    RA_REQUIRE(properties, RA_INVALID_VALUE);
    RA_REQUIRE(ra_function_is(function), RA_INVALID_HANDLE);
    const ra_kernel *k = function->kernel;
    *properties = (ra_function_properties){function->entry_pc, k->registers, k->shared_static, k->local, k->parameters};
    return RA_OK;
}
