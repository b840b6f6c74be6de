/* Callbacks of the Sanitizer API: each fills one record.  Here are launches, copies, graphs and waits. */
#include "source.h"

static bool recording PASTA_HOT, delivered PASTA_HOT;
static uint32_t recorded_generation PASTA_HOT;

void pasta_nv_record(bool on) {
    recorded_generation = pasta_generation();
    __atomic_store_n(&recording, on, __ATOMIC_RELEASE);
}

bool pasta_nv_delivered(void) { return __atomic_load_n(&delivered, __ATOMIC_RELAXED); }

/* Numbers of a begin callback, for its end on the same thread.  Slots are reused in turn, so that a
 * launch that fails, and never ends, costs nothing. */
enum { MAX_OPEN = 4 };
typedef struct open_launch {
    uint64_t handle, ordinal, correlation;
} open_launch;

static _Thread_local struct {
    open_launch launches[MAX_OPEN];
    uint32_t next;
    bool ready; /* the launch whose record is being written can be probed */
    pasta_probe_decision decision;
    struct {
        uint64_t handle, context, stream, correlation;
        uint64_t launch_id;
        uint64_t copy_node; /* memcpy node that this thread is launching */
    } graph;
} here;

/* ---- launches ---- */

static pasta_nv_function look_up(const pasta_nv_launch *launch) {
    uint64_t bytes;
    pasta_nv_function f = PASTA_NV_UNKNOWN;
    f.name = pasta_intern_z(launch->name);
    /* after an error only the address is absent */
    if (launch->name && pasta_nv.function_pc(launch->module, launch->name, &f.entry_pc, &bytes) != 0)
        f.entry_pc = PASTA_ABSENT_U64;
    return f;
}

static pasta_flags flags_of(const pasta_kernel_launch *launch) {
    here.decision = pasta_probe_takes_if(launch, here.ready);
    return pasta_probe_flags(here.decision);
}

static inline pasta_nv_work work_of(const pasta_nv_launch *l, uint64_t stream, uint64_t node, uint8_t flags) {
    return (pasta_nv_work){.at = pasta_nv_place_of(l->context, (int16_t)l->device), .ordinal = pasta_next_launch(),
                           .correlation = pasta_next_correlation(), .stream = stream, .node = node,
                           .shared = PASTA_ABSENT_U32, .flags = flags};
}

/* False: it is the function's first one, so not at rest. */
PASTA_FLAT static bool launch_at_rest(const pasta_nv_launch *l) {
    pasta_nv_function f;
    if (PASTA_UNLIKELY(!pasta_nv_known_function(l->function, &f))) return false;
    bool selected = pasta_probe_selects(f.name, l->name);
    const pasta_nv_work w = work_of(l, l->stream, PASTA_ABSENT_U64, 0);
    /* two calls, since only a constant function becomes a part of this one */
    if (PASTA_LIKELY(selected)) pasta_nv_record_launch(l, &f, &w, pasta_probe_put_off);
    else pasta_nv_record_launch(l, &f, &w, NULL);
    return true;
}

static void launch_begin(const pasta_nv_launch *l, uint64_t key, uint64_t stream, uint64_t node, uint8_t flags) {
    pasta_nv_function f = pasta_nv_function_of(l, look_up); /* slow, so before the record is reserved */
    bool probes = pasta_nv_probes_on(), selected = probes && pasta_probe_selects(f.name, l->name);
    const pasta_nv_work w = work_of(l, stream, node, flags);
    here.launches[here.next++ % MAX_OPEN] = (open_launch){key, w.ordinal, w.correlation};
    here.ready = selected && pasta_nv_probes_ready(l);
    here.decision = (pasta_probe_decision){.shape = PASTA_ABSENT_U32};
    pasta_nv_record_launch(l, &f, &w, selected ? flags_of : NULL);
    if (probes) pasta_nv_probes_launch(l, f.name, w.ordinal, flags & PASTA_FLAG_GRAPH, selected, here.decision);
}

static void launch_end(const pasta_nv_launch *l, uint64_t key, uint64_t stream, uint8_t flags) {
    open_launch *open = NULL;
    if (pasta_nv_probes_on() && !pasta_probe_records_returns()) return;
    for (uint32_t back = 1; back <= MAX_OPEN && !open; back++) {
        open_launch *candidate = &here.launches[(here.next - back) % MAX_OPEN];
        if (candidate->correlation && candidate->handle == key) open = candidate;
    }
    if (!open) return; /* its begin came before the subscription */
    const pasta_nv_work w = {.at = pasta_nv_place_of(l->context, (int16_t)l->device), .ordinal = open->ordinal,
                             .correlation = open->correlation, .stream = stream, .flags = flags};
    *open = (open_launch){0};
    pasta_nv_record_return(&w);
}

static void on_launch(uint32_t id, const pasta_nv_launch *l) {
    if (id == PASTA_NV_LAUNCH_BEGIN && !(pasta_nv_rests() && launch_at_rest(l)))
        launch_begin(l, l->launch, l->stream, PASTA_ABSENT_U64, 0);
    if (id == PASTA_NV_LAUNCH_END) {
        pasta_nv_probes_launched(l->launch, false);
        launch_end(l, l->launch, l->stream, 0);
    }
}

/* ---- copies and sets ---- */

static void on_copy(const pasta_nv_memcpy *c, uint64_t node, uint8_t flags) {
    uint64_t context = c->api_context, stream = c->api_stream;
    if (!context) { /* a node has none: use the graph's; otherwise the one of the side on the device */
        bool by_destination = !c->source_context || c->direction == PASTA_NV_HOST_TO_DEVICE;
        context = by_destination ? c->destination_context : c->source_context;
        stream = by_destination ? c->destination_stream : c->source_stream;
        if (flags & PASTA_FLAG_GRAPH) stream = here.graph.stream;
    }
    const pasta_nv_work w = {.at = pasta_nv_place_here(context), .stream = stream, .node = node, .flags = flags};
    pasta_nv_record_copy(c, &w);
}

static void on_set(const pasta_nv_memset *s, uint64_t stream, uint64_t node, uint8_t flags) {
    const pasta_nv_work w = {.at = pasta_nv_place_here(s->context), .stream = stream, .node = node, .flags = flags};
    pasta_nv_record_set(s, &w);
}

/* ---- graphs ---- */

static void on_graph(bool begin, const pasta_nv_graph *g) {
    if (!begin) pasta_nv_probes_launched(0, true);
    if (begin) {
        here.graph.handle = g->graph;
        here.graph.context = g->context;
        here.graph.stream = g->stream;
        here.graph.correlation = pasta_next_correlation();
        here.graph.launch_id = PASTA_ABSENT_U64;
    } else if (here.graph.handle != g->graph) {
        return; /* its begin came before the subscription */
    }
    uint64_t launch_id = here.graph.launch_id; /* only nodes carry it: known at the end */
    if (!begin) here.graph.handle = 0;
    const pasta_nv_work w = {.at = pasta_nv_place_here(g->context), .correlation = here.graph.correlation,
                             .stream = g->stream};
    pasta_nv_record_graph(begin, g->graph, launch_id, g->upload != 0, &w);
}

static void on_node_freed(const pasta_nv_node *n) {
    pasta_nv_memory freed = {.address = n->freed, .context = here.graph.context, .stream = here.graph.stream};
    freed.device = pasta_nv_place_here(freed.context).device;
    pasta_nv_on_free(&freed, PASTA_MEMORY_pool, PASTA_FLAG_GRAPH | PASTA_FLAG_ASYNC);
}

/* The driver delivers a node's copy in the memcpy domain, between the node's begin and end, and leaves
 * the node's own description empty (13.5 on 580.159: measured).  A copy that was not delivered so is
 * recorded from the node. */
static void on_plain_copy(const pasta_nv_memcpy *c) {
    uint64_t node = here.graph.copy_node;
    here.graph.copy_node = 0;
    on_copy(c, node ? node : PASTA_ABSENT_U64, node ? PASTA_FLAG_GRAPH : 0);
}

static void on_copied_node(const pasta_nv_node *n) {
    here.graph.copy_node = 0;
    on_copy(&n->copy, n->node, PASTA_FLAG_GRAPH);
}

static void on_node(bool begin, const pasta_nv_node *n) {
    if (n->upload) return; /* nothing runs */
    here.graph.launch_id = n->launch_id;
    if (n->type == PASTA_NV_NODE_KERNEL && begin)
        launch_begin(&n->kernel, n->node, n->kernel.api_stream, n->node, PASTA_FLAG_GRAPH);
    else if (n->type == PASTA_NV_NODE_KERNEL)
        launch_end(&n->kernel, n->node, n->kernel.api_stream, PASTA_FLAG_GRAPH);
    else if (n->type == PASTA_NV_NODE_MEMCPY && !begin && here.graph.copy_node)
        on_copied_node(n);
    if (!begin) return;
    switch (n->type) {
    case PASTA_NV_NODE_MEMCPY: here.graph.copy_node = n->node; return;
    case PASTA_NV_NODE_MEMSET: on_set(&n->set, n->set.stream, n->node, PASTA_FLAG_GRAPH); return;
    case PASTA_NV_NODE_ALLOC:
        pasta_nv_on_alloc(&n->alloc, PASTA_MEMORY_pool, PASTA_FLAG_GRAPH | PASTA_FLAG_ASYNC);
        return;
    case PASTA_NV_NODE_FREE: on_node_freed(n); return;
    default: return;
    }
}

static void on_graphs(uint32_t id, const void *data) {
    if (id == PASTA_NV_GRAPH_BEGIN || id == PASTA_NV_GRAPH_END) on_graph(id == PASTA_NV_GRAPH_BEGIN, data);
    if (id == PASTA_NV_NODE_BEGIN || id == PASTA_NV_NODE_END) on_node(id == PASTA_NV_NODE_BEGIN, data);
}

/* ---- synchronization ---- */

static void waited(uint64_t handle, uint32_t what, uint64_t context, uint64_t stream) {
    pasta_probe_waited();
    pasta_nv_record_wait(handle, what, context, stream, PASTA_ABSENT_U64);
}

static void on_synchronize(uint32_t id, const pasta_nv_sync *s) {
    pasta_nv_probes_synchronized(s->context);
    if (id == PASTA_NV_STREAM_SYNCHRONIZED) waited(s->stream, PASTA_SYNC_stream, s->context, s->stream);
    if (id == PASTA_NV_CONTEXT_SYNCHRONIZED || id == PASTA_NV_GREEN_SYNCHRONIZED)
        waited(s->context, PASTA_SYNC_context, s->context, PASTA_NO_STREAM);
}

static void on_event(uint32_t id, const void *data) {
    const pasta_nv_event *v = data;
    uint64_t stream = PASTA_NO_STREAM;
    if (id == PASTA_NV_EVENT_RECORD || id == PASTA_NV_EVENT_STREAM_WAIT)
        stream = pasta_nv.layout_13_1 ? ((const pasta_nv_event_13_1 *)data)->stream : v->stream;
    switch (id) {
    case PASTA_NV_EVENT_CREATED: pasta_nv_record_event(PASTA_EVENT_event_create, v->event, v->context, stream); return;
    case PASTA_NV_EVENT_DESTROYED: pasta_nv_record_event(PASTA_EVENT_event_destroy, v->event, v->context, stream); return;
    case PASTA_NV_EVENT_RECORD:
    case PASTA_NV_CONTEXT_RECORD_EVENT:
    case PASTA_NV_GREEN_RECORD_EVENT:
        pasta_nv_record_event(PASTA_EVENT_event_record, v->event, v->context, stream);
        return;
    case PASTA_NV_EVENT_STREAM_WAIT:
    case PASTA_NV_CONTEXT_WAIT_EVENT:
    case PASTA_NV_GREEN_WAIT_EVENT: pasta_nv_record_event(PASTA_EVENT_event_wait, v->event, v->context, stream); return;
    case PASTA_NV_EVENT_SYNCHRONIZE:
    case PASTA_NV_CONTEXT_EVENT_SYNCHRONIZE: waited(v->event, PASTA_SYNC_event, v->context, PASTA_NO_STREAM); return;
    default: return;
    }
}

/* ---- dispatch ---- */

static void on_memcpy(uint32_t id, const pasta_nv_memcpy *c) {
    if (id == PASTA_NV_MEMCPY_STARTING && !c->async) pasta_nv_probes_copies(c->api_context);
    if (id == PASTA_NV_MEMCPY_STARTING || id == PASTA_NV_MEMCPY_BATCH_ITEM) on_plain_copy(c);
}

static void on_memset(uint32_t id, const pasta_nv_memset *s) {
    if (id == PASTA_NV_MEMSET_STARTING) on_set(s, s->stream, PASTA_ABSENT_U64, 0);
}

void pasta_nv_on_callback(void *user, int32_t domain, uint32_t id, const void *data) {
    (void)user;
    if (!__atomic_load_n(&recording, __ATOMIC_ACQUIRE) || pasta_generation() != recorded_generation) return;
    if (PASTA_UNLIKELY(pasta_nv_probes_own_thread())) return;
    if (PASTA_UNLIKELY(!pasta_nv_delivered())) __atomic_store_n(&delivered, true, __ATOMIC_RELAXED);
    switch (domain) {
    case PASTA_NV_DRIVER: pasta_nv_on_driver_call(id, data); return;
    case PASTA_NV_RUNTIME: pasta_nv_on_runtime_call(id, data); return;
    case PASTA_NV_RESOURCE: pasta_nv_on_resource(id, data); return;
    case PASTA_NV_SYNCHRONIZE: on_synchronize(id, data); return;
    case PASTA_NV_LAUNCH: on_launch(id, data); return;
    case PASTA_NV_MEMCPY: on_memcpy(id, data); return;
    case PASTA_NV_MEMSET: on_memset(id, data); return;
    case PASTA_NV_UVM: pasta_nv_on_attach(id, data); return;
    case PASTA_NV_GRAPHS: on_graphs(id, data); return;
    case PASTA_NV_EVENTS: on_event(id, data); return;
    case PASTA_NV_EXTERNAL: pasta_nv_on_external(id, data); return;
    default: return;
    }
}
