/* CUDA graphs that frameworks capture.  A graph's nodes launch work when no operator is open; so each node is
 * recorded at its capture, inside the operator that is open then.
 *
 * The CUDA runtime's functions that begin and end a capture are interposed.  During a capture, the framework's
 * hooks call `record_all` at the begin and the end of each operator: nodes that the driver lists for the first
 * time were added in between, in any stream. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#include "../../core/internal.h"

enum { MAX_CAPTURES = 8 };

typedef void *handle;
typedef int begin_function(handle stream, int mode);
typedef int end_function(handle stream, handle *graph);
/* Its parameters differ by version: the longest list is passed on. */
typedef int instantiate_function(handle *executable, handle graph, handle, handle, size_t);

PASTA_EXPORT begin_function pasta_cuda_begin_capture __asm__("cudaStreamBeginCapture");
PASTA_EXPORT end_function pasta_cuda_end_capture __asm__("cudaStreamEndCapture");
PASTA_EXPORT instantiate_function pasta_cuda_instantiate __asm__("cudaGraphInstantiate");
PASTA_EXPORT instantiate_function pasta_cuda_instantiate_with_flags __asm__("cudaGraphInstantiateWithFlags");

typedef struct capture {
    handle stream, graph; /* no graph: free */
    uint64_t *nodes;      /* recorded ones, a hash table; 0: free */
    size_t count, size;   /* of `nodes`: used, allocated (a power of two) */
} capture;

static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;
static capture captures[MAX_CAPTURES];

static struct {
    int (*info)(handle stream, int *status, uint64_t *id, handle *graph, handle **dependencies, size_t *count);
    int (*nodes)(handle graph, handle *nodes, size_t *count);
    /* for names; absent in older drivers */
    int (*type)(handle node, int *type);
    int (*kernel)(handle node, void *parameters);
    int (*function_name)(const char **name, handle function);
    int (*kernel_name)(const char **name, handle kernel);
} driver;

static bool find_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!library) return false;
    *(void **)&driver.info = dlsym(library, "cuStreamGetCaptureInfo_v2");
    *(void **)&driver.nodes = dlsym(library, "cuGraphGetNodes");
    *(void **)&driver.type = dlsym(library, "cuGraphNodeGetType");
    *(void **)&driver.kernel = dlsym(library, "cuGraphKernelNodeGetParams_v2");
    *(void **)&driver.function_name = dlsym(library, "cuFuncGetName");
    *(void **)&driver.kernel_name = dlsym(library, "cuKernelGetName");
    dlclose(library);
    return driver.info && driver.nodes;
}

static bool add(capture *c, uint64_t node) {
    if (2 * c->count >= c->size) {
        size_t size = c->size ? 2 * c->size : 256;
        uint64_t *grown = calloc(size, sizeof *grown);
        if (!grown) return false;
        capture larger = {.nodes = grown, .size = size};
        for (size_t i = 0; i < c->size; i++)
            if (c->nodes[i]) add(&larger, c->nodes[i]);
        free(c->nodes);
        c->nodes = grown;
        c->size = size;
    }
    size_t at = (size_t)(node * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (c->size - 1);
    for (; c->nodes[at]; at = (at + 1) & (c->size - 1))
        if (c->nodes[at] == node) return false;
    c->nodes[at] = node;
    c->count++;
    return true;
}

static uint32_t name_of(handle node) {
    enum { KERNEL = 0 };
    struct {
        handle function;
        unsigned dimensions[6], shared;
        void **parameters, **extra;
        handle kernel, context;
        void *reserved[8]; /* for members that later versions add */
    } parameters = {0};
    int type = -1;
    const char *name = NULL;
    if (!driver.type || !driver.kernel || driver.type(node, &type) != 0 || type != KERNEL) return 0;
    if (driver.kernel(node, &parameters) != 0) return 0;
    bool named = parameters.function && driver.function_name && driver.function_name(&name, parameters.function) == 0;
    if (!named) named = parameters.kernel && driver.kernel_name && driver.kernel_name(&name, parameters.kernel) == 0;
    return named ? pasta_intern_z(name) : 0;
}

static void record_nodes(capture *c) {
    size_t count = 0;
    if (driver.nodes(c->graph, NULL, &count) != 0 || count <= c->count) return;
    handle *nodes = malloc(count * sizeof *nodes);
    if (nodes && driver.nodes(c->graph, nodes, &count) == 0)
        for (size_t i = 0; i < count; i++) {
            if (!add(c, (uint64_t)nodes[i])) continue;
            uint32_t name = name_of(nodes[i]);
            pasta_graph_node *e = PASTA_BEGIN(graph_node, PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
            if (!e) continue;
            e->node = (uint64_t)nodes[i];
            e->graph = (uint64_t)c->graph;
            e->name = name;
            pasta_publish(e);
        }
    free(nodes);
}

/* Where several threads capture at once, a node may be attributed to another thread's operator. */
static void record_all(void) {
    pthread_mutex_lock(&changing);
    for (int i = 0; i < MAX_CAPTURES; i++)
        if (captures[i].graph) record_nodes(&captures[i]);
    pthread_mutex_unlock(&changing);
}

static void begin(handle stream) {
    enum { ACTIVE = 1 };
    int status = 0;
    uint64_t id;
    handle graph = NULL, *dependencies;
    size_t count;
    pthread_mutex_lock(&changing);
    if ((driver.nodes || find_driver()) && driver.info(stream, &status, &id, &graph, &dependencies, &count) == 0 &&
        status == ACTIVE && graph)
        for (int i = 0; i < MAX_CAPTURES; i++) {
            if (captures[i].graph) continue;
            captures[i] = (capture){.stream = stream, .graph = graph};
            pasta_on_capture(record_all);
            pasta_capture_begins();
            __atomic_fetch_add(&pasta_capturing, 1, __ATOMIC_RELAXED);
            break;
        }
    pthread_mutex_unlock(&changing);
}

static void end(handle stream) {
    pthread_mutex_lock(&changing);
    for (int i = 0; i < MAX_CAPTURES; i++) {
        if (!captures[i].graph || captures[i].stream != stream) continue;
        record_nodes(&captures[i]);
        free(captures[i].nodes);
        captures[i] = (capture){0};
        __atomic_fetch_sub(&pasta_capturing, 1, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&changing);
}

static void instantiate(handle executable, handle graph) {
    pasta_graph_instantiate *e = PASTA_BEGIN(graph_instantiate, PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!e) return;
    e->graph = (uint64_t)graph;
    e->executable = (uint64_t)executable;
    pasta_publish(e);
}

/* ---- the runtime's functions ---- */

enum { NOT_SUPPORTED = 801 }; /* cudaErrorNotSupported */

int pasta_cuda_begin_capture(handle stream, int mode) {
    PASTA_NEXT(begin_function, "cudaStreamBeginCapture")
    int status = call ? call(stream, mode) : NOT_SUPPORTED;
    if (pasta_follow_captures && status == 0 && pasta_ring_mine()) begin(stream);
    return status;
}

int pasta_cuda_end_capture(handle stream, handle *graph) {
    PASTA_NEXT(end_function, "cudaStreamEndCapture")
    if (pasta_follow_captures && pasta_ring_mine()) end(stream);
    return call ? call(stream, graph) : NOT_SUPPORTED;
}

int pasta_cuda_instantiate(handle *executable, handle graph, handle third, handle fourth, size_t fifth) {
    PASTA_NEXT(instantiate_function, "cudaGraphInstantiate")
    int status = call ? call(executable, graph, third, fourth, fifth) : NOT_SUPPORTED;
    if (pasta_follow_captures && status == 0 && pasta_ring_mine()) instantiate(*executable, graph);
    return status;
}

int pasta_cuda_instantiate_with_flags(handle *executable, handle graph, handle third, handle fourth, size_t fifth) {
    PASTA_NEXT(instantiate_function, "cudaGraphInstantiateWithFlags")
    int status = call ? call(executable, graph, third, fourth, fifth) : NOT_SUPPORTED;
    if (pasta_follow_captures && status == 0 && pasta_ring_mine()) instantiate(*executable, graph);
    return status;
}
