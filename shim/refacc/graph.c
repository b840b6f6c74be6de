/* Graphs: lists of operations to copy into a stream.
 *
 * A node can only depend on nodes that exist, so the order of creation respects every dependency
 * and is the order of execution. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "internal.h"

struct ra_node_s {
    struct ra_node_s *next;
    struct ra_op *op;
};

struct ra_graph_s {
    struct ra_object object;
    struct ra_node_s *first;
    struct ra_node_s **end;
};

struct ra_graph_exec_s {
    struct ra_object object;
    size_t count;
    struct exec_node {
        struct ra_op *op;
        uint64_t node; /* handle in the graph it came from */
    } *nodes;
};

const size_t ra_graph_bytes = sizeof(struct ra_graph_s);
const size_t ra_exec_bytes = sizeof(struct ra_graph_exec_s);
static _Atomic uint64_t launches;

static struct ra_op *op_copy(const struct ra_op *op) {
    struct ra_op *copy = malloc(op->bytes);
    return copy ? memcpy(copy, op, op->bytes) : NULL;
}

int ra_graph_make(struct ra_graph_s **made) {
    struct ra_graph_s *graph = ra_object_new(RA_TYPE_GRAPH);
    RA_REQUIRE(graph, RA_OUT_OF_MEMORY);
    graph->first = NULL;
    graph->end = &graph->first;
    ra_object_publish(graph);
    *made = graph;
    return RA_OK;
}

int ra_graph_append(struct ra_graph_s *graph, struct ra_op *op) {
    struct ra_node_s *node = malloc(sizeof *node);
    if (!node) {
        free(op);
        return RA_OUT_OF_MEMORY;
    }
    *node = (struct ra_node_s){NULL, op};
    *graph->end = node;
    graph->end = &node->next;
    return RA_OK;
}

void ra_graph_clear(void *handle) {
    struct ra_graph_s *graph = handle;
    for (struct ra_node_s *node = graph->first, *next; node; node = next) {
        next = node->next;
        free(node->op);
        free(node);
    }
    graph->first = NULL;
    graph->end = &graph->first;
}

void ra_graph_exec_clear(void *handle) {
    struct ra_graph_exec_s *exec = handle;
    for (size_t i = 0; i < exec->count; i++) free(exec->nodes[i].op);
    free(exec->nodes);
    exec->nodes = NULL;
    exec->count = 0;
}

void ra_graphs_forget(void) { atomic_store(&launches, 0); }

int ra_graph_create(ra_graph *graph) {
    RA_TRY(ra_init());
    RA_REQUIRE(graph, RA_INVALID_VALUE);
    return ra_graph_make(graph);
}

int ra_graph_destroy(ra_graph graph) {
    RA_TRY(ra_init());
    RA_REQUIRE(ra_object_is(graph, RA_TYPE_GRAPH), RA_INVALID_HANDLE);
    ra_graph_clear(graph);
    ra_object_delete(graph);
    return RA_OK;
}

static int check(const ra_node *node, ra_graph graph, const ra_node *dependencies, size_t count) {
    RA_TRY(ra_init());
    RA_REQUIRE(node && (dependencies || !count), RA_INVALID_VALUE);
    RA_REQUIRE(ra_object_is(graph, RA_TYPE_GRAPH), RA_INVALID_HANDLE);
    for (size_t i = 0; i < count; i++) {
        const struct ra_node_s *known = graph->first;
        while (known && known != dependencies[i]) known = known->next;
        RA_REQUIRE(known, RA_INVALID_HANDLE);
    }
    return RA_OK;
}

static int append(ra_node *node, ra_graph graph, struct ra_op *op) {
    struct ra_node_s **place = graph->end;
    RA_TRY(ra_graph_append(graph, op));
    *node = *place;
    return RA_OK;
}

int ra_graph_add_kernel(ra_node *node, ra_graph graph, const ra_node *dependencies, size_t count,
                        ra_function function, const uint32_t grid[3], const uint32_t block[3],
                        uint32_t shared_dynamic, void *const *parameters) {
    struct ra_op *op;
    RA_TRY(check(node, graph, dependencies, count));
    RA_TRY(ra_launch_make(&op, function, grid, block, shared_dynamic, parameters));
    return append(node, graph, op);
}

int ra_graph_add_memcpy(ra_node *node, ra_graph graph, const ra_node *dependencies, size_t count, void *destination,
                        uint64_t destination_pitch, const void *source, uint64_t source_pitch, uint64_t width,
                        uint64_t height) {
    struct ra_op *op;
    RA_TRY(check(node, graph, dependencies, count));
    RA_TRY(ra_copy_make(&op, destination, destination_pitch, source, source_pitch, width, height));
    return append(node, graph, op);
}

int ra_graph_add_memset(ra_node *node, ra_graph graph, const ra_node *dependencies, size_t count, void *address,
                        uint64_t pitch, uint32_t value, uint32_t element, uint64_t width, uint64_t height) {
    struct ra_op *op;
    RA_TRY(check(node, graph, dependencies, count));
    RA_TRY(ra_set_make(&op, address, pitch, value, element, width, height));
    return append(node, graph, op);
}

int ra_graph_instantiate(ra_graph_exec *handle, ra_graph graph) {
    RA_TRY(ra_init());
    RA_REQUIRE(handle, RA_INVALID_VALUE);
    RA_REQUIRE(ra_object_is(graph, RA_TYPE_GRAPH), RA_INVALID_HANDLE);
    size_t count = 0;
    for (const struct ra_node_s *node = graph->first; node; node = node->next) count++;
    struct ra_graph_exec_s *exec = ra_object_new(RA_TYPE_EXEC);
    RA_REQUIRE(exec, RA_OUT_OF_MEMORY);
    exec->count = 0;
    exec->nodes = calloc(count ? count : 1, sizeof *exec->nodes);
    bool complete = exec->nodes != NULL;
    for (const struct ra_node_s *node = graph->first; complete && node; node = node->next) {
        struct ra_op *op = op_copy(node->op);
        complete = op != NULL;
        if (op) exec->nodes[exec->count++] = (struct exec_node){op, (uintptr_t)node};
    }
    if (!complete) {
        ra_graph_exec_clear(exec);
        ra_object_delete(exec);
        return RA_OUT_OF_MEMORY;
    }
    ra_object_publish(exec);
    *handle = exec;
    return RA_OK;
}

int ra_graph_exec_destroy(ra_graph_exec exec) {
    RA_TRY(ra_init());
    RA_REQUIRE(ra_object_is(exec, RA_TYPE_EXEC), RA_INVALID_HANDLE);
    ra_graph_exec_clear(exec);
    ra_object_delete(exec);
    return RA_OK;
}

static void report(ra_graph_data data, ra_callback_id id) {
    if (ra_tools_want(RA_DOMAIN_GRAPH)) ra_tools_call(RA_DOMAIN_GRAPH, id, &data);
}

int ra_graph_launch(ra_graph_exec exec, ra_stream handle) {
    struct ra_stream_s *stream;
    RA_TRY(ra_stream_get(handle, &stream));
    RA_REQUIRE(ra_object_is(exec, RA_TYPE_EXEC), RA_INVALID_HANDLE);
    RA_REQUIRE(!stream->capture, RA_CAPTURE);
    RA_TRY(atomic_load(&stream->context->error));
    uint64_t user = 0;
    ra_graph_data data = {.size = sizeof data,
                          .device = stream->context->device,
                          .context = (uintptr_t)stream->context,
                          .stream = ra_stream_handle(stream),
                          .graph = (uintptr_t)exec,
                          .launch = 1 + atomic_fetch_add(&launches, 1),
                          .user = &user};
    report(data, RA_CALLBACK_GRAPH_LAUNCH_BEGIN);
    int error = RA_OK;
    for (size_t i = 0; i < exec->count && error == RA_OK; i++) {
        struct ra_op *op = op_copy(exec->nodes[i].op);
        if (!op) {
            error = RA_OUT_OF_MEMORY;
            break;
        }
        data.node = exec->nodes[i].node;
        report(data, RA_CALLBACK_GRAPH_NODE_LAUNCH);
        error = op->submit(op, stream, true, data.graph, data.node);
    }
    data.node = 0;
    report(data, RA_CALLBACK_GRAPH_LAUNCH_END);
    return error;
}
