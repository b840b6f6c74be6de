/* CUDA graphs that PyTorch captures.  What a graph replays is launched by its nodes, and no operator is
 * open then; so the operator that is open when a node is captured is told with it.
 *
 * Of the CUDA runtime's functions that PyTorch links to, those that begin and end a capture come here
 * first.  While one is under way, hooks have the driver list the graph's nodes at the begin and the end
 * of each operator: what is new was made in between, in whatever stream. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#include "framework.h"

enum { CAPTURES = 8 };

typedef void *handle;
typedef int begin_function(handle stream, int mode);
typedef int end_function(handle stream, handle *graph);
/* Its arguments differ by version: as many as there may be are passed on. */
typedef int instantiate_function(handle *executable, handle graph, handle, handle, size_t);

PASTA_EXPORT begin_function pasta_cuda_begin_capture __asm__("cudaStreamBeginCapture");
PASTA_EXPORT end_function pasta_cuda_end_capture __asm__("cudaStreamEndCapture");
PASTA_EXPORT instantiate_function pasta_cuda_instantiate __asm__("cudaGraphInstantiate");
PASTA_EXPORT instantiate_function pasta_cuda_instantiate_with_flags __asm__("cudaGraphInstantiateWithFlags");

uint32_t pasta_torch_capturing;

typedef struct capture {
    handle stream, graph; /* no graph: free */
    uint64_t *nodes;      /* known ones, by hash; 0 is free */
    size_t count, room;   /* a power of two */
} capture;

static bool followed;
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;
static capture captures[CAPTURES];

static struct {
    int (*info)(handle stream, int *status, uint64_t *id, handle *graph, handle **dependencies, size_t *count);
    int (*nodes)(handle graph, handle *nodes, size_t *count);
    /* for names; newer drivers have them */
    int (*type)(handle node, int *type);
    int (*kernel)(handle node, void *parameters);
    int (*function_name)(const char **name, handle function);
    int (*kernel_name)(const char **name, handle kernel);
} driver;

void pasta_torch_graphs_load(void) { followed = true; }

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
    if (2 * c->count >= c->room) {
        size_t room = c->room ? 2 * c->room : 256;
        uint64_t *grown = calloc(room, sizeof *grown);
        if (!grown) return false;
        capture larger = {.nodes = grown, .room = room};
        for (size_t i = 0; i < c->room; i++)
            if (c->nodes[i]) add(&larger, c->nodes[i]);
        free(c->nodes);
        c->nodes = grown;
        c->room = room;
    }
    size_t at = (size_t)(node * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (c->room - 1);
    for (; c->nodes[at]; at = (at + 1) & (c->room - 1))
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
        void *room[8]; /* for what a later version adds */
    } is = {0};
    int type = -1;
    const char *name = NULL;
    if (!driver.type || !driver.kernel || driver.type(node, &type) != 0 || type != KERNEL) return 0;
    if (driver.kernel(node, &is) != 0) return 0;
    bool told = is.function && driver.function_name && driver.function_name(&name, is.function) == 0;
    if (!told) told = is.kernel && driver.kernel_name && driver.kernel_name(&name, is.kernel) == 0;
    return told ? pasta_intern_z(name) : 0;
}

static void look(capture *c) {
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

/* Where several threads capture at once, a node may be taken for one of another's operator. */
void pasta_torch_captured(void) {
    pthread_mutex_lock(&changing);
    for (int i = 0; i < CAPTURES; i++)
        if (captures[i].graph) look(&captures[i]);
    pthread_mutex_unlock(&changing);
}

static void begun(handle stream) {
    enum { ACTIVE = 1 };
    int status = 0;
    uint64_t id;
    handle graph = NULL, *dependencies;
    size_t count;
    pthread_mutex_lock(&changing);
    if ((driver.nodes || find_driver()) && driver.info(stream, &status, &id, &graph, &dependencies, &count) == 0 &&
        status == ACTIVE && graph)
        for (int i = 0; i < CAPTURES; i++) {
            if (captures[i].graph) continue;
            captures[i] = (capture){.stream = stream, .graph = graph};
            __atomic_fetch_add(&pasta_torch_capturing, 1, __ATOMIC_RELAXED);
            break;
        }
    pthread_mutex_unlock(&changing);
}

static void ends(handle stream) {
    pthread_mutex_lock(&changing);
    for (int i = 0; i < CAPTURES; i++) {
        if (!captures[i].graph || captures[i].stream != stream) continue;
        look(&captures[i]);
        free(captures[i].nodes);
        captures[i] = (capture){0};
        __atomic_fetch_sub(&pasta_torch_capturing, 1, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&changing);
}

static void instantiated(handle executable, handle graph) {
    pasta_graph_instantiate *e = PASTA_BEGIN(graph_instantiate, PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!e) return;
    e->graph = (uint64_t)graph;
    e->executable = (uint64_t)executable;
    pasta_publish(e);
}

/* ---- the runtime's functions.  A caller whose own library has none cannot have called us. ---- */

enum { NOT_SUPPORTED = 801 }; /* cudaErrorNotSupported */

int pasta_cuda_begin_capture(handle stream, int mode) {
    PASTA_THEIRS(begin_function, "cudaStreamBeginCapture")
    int status = call ? call(stream, mode) : NOT_SUPPORTED;
    if (followed && status == 0 && pasta_ring_mine()) begun(stream);
    return status;
}

int pasta_cuda_end_capture(handle stream, handle *graph) {
    PASTA_THEIRS(end_function, "cudaStreamEndCapture")
    if (followed && pasta_ring_mine()) ends(stream);
    return call ? call(stream, graph) : NOT_SUPPORTED;
}

int pasta_cuda_instantiate(handle *executable, handle graph, handle third, handle fourth, size_t fifth) {
    PASTA_THEIRS(instantiate_function, "cudaGraphInstantiate")
    int status = call ? call(executable, graph, third, fourth, fifth) : NOT_SUPPORTED;
    if (followed && status == 0 && pasta_ring_mine()) instantiated(*executable, graph);
    return status;
}

int pasta_cuda_instantiate_with_flags(handle *executable, handle graph, handle third, handle fourth, size_t fifth) {
    PASTA_THEIRS(instantiate_function, "cudaGraphInstantiateWithFlags")
    int status = call ? call(executable, graph, third, fourth, fifth) : NOT_SUPPORTED;
    if (followed && status == 0 && pasta_ring_mine()) instantiated(*executable, graph);
    return status;
}
