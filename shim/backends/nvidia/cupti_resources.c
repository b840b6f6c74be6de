/* Contexts, streams, modules and nodes of graphs: their callbacks, and the numbers that records have of them. */
#include <pthread.h>

#include "cupti_source.h"

#define LOAD(place) __atomic_load_n(&(place), __ATOMIC_ACQUIRE)
#define STORE(place, value) __atomic_store_n(&(place), value, __ATOMIC_RELEASE)

/* Numbers count up: a table by number holds the last ones. */
enum { CONTEXTS = 256, STREAMS = 4096, NODE_SETS = 1 << 15, NODES_IN_SET = 4 };

static struct {
    uint32_t number, known; /* of the context */
    uint16_t place_number, slot;
    int16_t device;
} contexts[CONTEXTS];

static struct {
    uint64_t key, handle; /* context << 32 | stream, plus one */
} streams[STREAMS];

static struct {
    struct {
        uint64_t number, handle;
    } nodes[NODES_IN_SET];
    uint32_t added;
} node_sets[NODE_SETS];

/* ---- contexts ---- */

static void add_context(uint64_t handle) {
    uint32_t device = UINT32_MAX, number = 0;
    bool placed = pasta_cupti.device_of(handle, &device) == 0;
    pasta_nv_place at = pasta_nv_place_of(handle, placed ? (int16_t)device : PASTA_NO_DEVICE);
    pasta_cupti_samples_context_created(handle, at);
    if (pasta_cupti.context_id(handle, &number) != 0) return;
    uint32_t slot = number % CONTEXTS;
    STORE(contexts[slot].known, 0);
    STORE(contexts[slot].number, number);
    STORE(contexts[slot].place_number, at.context);
    STORE(contexts[slot].slot, at.slot);
    STORE(contexts[slot].device, at.device);
    STORE(contexts[slot].known, 1);
}

pasta_nv_place pasta_cupti_place(uint32_t number) {
    uint32_t slot = number % CONTEXTS;
    if (!LOAD(contexts[slot].known) || LOAD(contexts[slot].number) != number)
        return (pasta_nv_place){PASTA_NO_CONTEXT, PASTA_NO_DEVICE, 0};
    return (pasta_nv_place){LOAD(contexts[slot].place_number), LOAD(contexts[slot].device), LOAD(contexts[slot].slot)};
}

/* CUPTI reports context destroy before stream destroy and module unload. */
static pasta_nv_place place_of(const pasta_cupti_resource *r, bool created) {
    return created ? pasta_nv_place_here(r->context) : pasta_nv_known_place(r->context);
}

/* ---- streams ---- */

static uint64_t stream_key(uint32_t context, uint32_t stream) { return ((uint64_t)context << 32 | stream) + 1; }

static void add_stream(uint32_t context, uint32_t stream, uint64_t handle) {
    uint32_t slot = stream % STREAMS;
    STORE(streams[slot].key, 0);
    STORE(streams[slot].handle, handle);
    STORE(streams[slot].key, stream_key(context, stream));
}

static void on_stream(bool created, const pasta_cupti_resource *r) {
    uint32_t number = 0, context = 0;
    bool known = pasta_cupti.stream_id(r->context, r->stream, 0, &number) == 0;
    if (created && known && pasta_cupti.context_id(r->context, &context) == 0) add_stream(context, number, r->stream);
    pasta_nv_record_stream(created, place_of(r, created), r->stream, known ? number : PASTA_ABSENT_U64);
}

uint64_t pasta_cupti_stream(uint32_t context, uint32_t stream) {
    uint32_t slot = stream % STREAMS;
    if (LOAD(streams[slot].key) != stream_key(context, stream)) return PASTA_NO_STREAM;
    return LOAD(streams[slot].handle);
}

/* ---- nodes of graphs: instantiation clones them, and only clones run ---- */

/* A number has the graph in its upper half, and counts that graph's nodes in its lower half. */
static uint32_t node_set(uint64_t number) {
    return ((uint32_t)number + (uint32_t)(number >> 32) * 0x9e3779b1u) % NODE_SETS;
}

static void add_node(uint64_t node, uint64_t handle) {
    uint64_t number = 0;
    if (pasta_cupti.node_id(node, &number) != 0 || !number) return;
    uint32_t set = node_set(number), way = 0;
    while (way < NODES_IN_SET && LOAD(node_sets[set].nodes[way].number) != number) way++;
    if (way == NODES_IN_SET) way = __atomic_fetch_add(&node_sets[set].added, 1, __ATOMIC_RELAXED) % NODES_IN_SET;
    STORE(node_sets[set].nodes[way].number, 0);
    STORE(node_sets[set].nodes[way].handle, handle);
    STORE(node_sets[set].nodes[way].number, number);
}

uint64_t pasta_cupti_node(uint64_t number) {
    uint32_t set = node_set(number);
    for (uint32_t way = 0; way < NODES_IN_SET; way++)
        if (LOAD(node_sets[set].nodes[way].number) == number) return LOAD(node_sets[set].nodes[way].handle);
    return PASTA_ABSENT_U64;
}

/* The node that was captured, also where graphs with clones are cloned again. */
static uint64_t captured(uint64_t node) {
    uint64_t number = 0;
    if (pasta_cupti.node_id(node, &number) != 0) return node;
    uint64_t handle = pasta_cupti_node(number);
    return handle == PASTA_ABSENT_U64 ? node : handle;
}

/* ---- dispatch ---- */

static void on_module(bool loaded, const pasta_cupti_resource *r) {
    const pasta_cupti_module *m = r->more;
    if (!m) return;
    if (!loaded) {
        pasta_cupti_samples_module_unloading();
        pasta_nv_module_unloaded(0); /* calls do not name the modules of functions */
    }
    pasta_nv_record_module(loaded, place_of(r, loaded), m->id, m->cubin, m->bytes);
}

void pasta_cupti_on_resource(uint32_t id, const pasta_cupti_resource *r) {
    const pasta_cupti_graph *g = r->more;
    switch (id) {
    case PASTA_CUPTI_CONTEXT_CREATED: add_context(r->context); return;
    case PASTA_CUPTI_CONTEXT_DESTROYING:
        pasta_cupti_samples_context_destroyed(r->context);
        pasta_cupti_counters_context_destroyed(r->context);
        pasta_nv_context_destroyed(r->context);
        pasta_nv_module_unloaded(0); /* perhaps its modules go without a callback */
        return;
    case PASTA_CUPTI_STREAM_CREATED:
    case PASTA_CUPTI_STREAM_DESTROYING: on_stream(id == PASTA_CUPTI_STREAM_CREATED, r); return;
    case PASTA_CUPTI_MODULE_LOADED:
    case PASTA_CUPTI_MODULE_UNLOADING: on_module(id == PASTA_CUPTI_MODULE_LOADED, r); return;
    case PASTA_CUPTI_NODE_CREATED: add_node(g->node, g->node); return;
    case PASTA_CUPTI_NODE_CLONED: add_node(g->node, captured(g->original_node)); return;
    default: return;
    }
}
