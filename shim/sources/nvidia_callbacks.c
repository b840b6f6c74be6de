/* One small function per callback of the Sanitizer API: it fills one record. */
#include "nvidia_source.h"

static bool recording, delivered;
static uint32_t recorded_generation;

void pasta_nv_record(bool on) {
    recorded_generation = pasta_generation();
    __atomic_store_n(&recording, on, __ATOMIC_RELEASE);
}

bool pasta_nv_delivered(void) { return __atomic_load_n(&delivered, __ATOMIC_RELAXED); }

/* A begin callback's numbers, for its end on the same thread.  Slots are reused in turn, so that a
 * launch that fails, and never ends, costs nothing. */
enum { OPEN = 4 };
typedef struct open_launch {
    uint64_t handle, ordinal, correlation;
} open_launch;

static _Thread_local struct {
    open_launch launches[OPEN];
    uint32_t next;
    int16_t creating; /* device of the context that this thread is creating, plus one */
    struct {
        uint64_t handle, context, stream, correlation;
        uint64_t launch_id;
        uint64_t copy_node; /* memcpy node that this thread is launching */
    } graph;
} here;

static int16_t creating_device(void) { return (int16_t)(here.creating - 1); }

static pasta_nv_place place_of(uint64_t context) { return pasta_nv_place_of(context, creating_device()); }

/* ---- contexts, streams, modules ---- */

static int16_t created_device(const void *data) {
    return (int16_t)(pasta_nv.layout_13_1 ? ((const pasta_nv_context_13_1 *)data)->device
                                          : ((const pasta_nv_context *)data)->device);
}

static void on_context_created(const pasta_nv_context *c) {
    pasta_nv_place at = pasta_nv_place_of(c->context, created_device(c));
    here.creating = 0;
    pasta_nv_probes_context(c->context, at);
}

static void on_stream(bool created, const void *data) {
    pasta_nv_stream_13_1 s;
    if (pasta_nv.layout_13_1) {
        s = *(const pasta_nv_stream_13_1 *)data;
    } else {
        const pasta_nv_stream *old = data;
        s = (pasta_nv_stream_13_1){old->context, 0, old->stream, old->unique};
    }
    pasta_nv_place at = place_of(s.context);
    if (!created) pasta_nv_probes_stream_ends(s.context, s.unique);
    pasta_stream *e = created ? PASTA_BEGIN_AS(stream_create, stream, at.device, at.context, s.stream)
                              : PASTA_BEGIN_AS(stream_destroy, stream, at.device, at.context, s.stream);
    if (!e) return;
    /* a stream without a handle is the driver's own: it makes seven with each context */
    if (!s.stream) pasta_header_of(e)->flags = PASTA_FLAG_INTERNAL;
    e->handle = s.stream;
    e->id = s.unique;
    e->priority = PASTA_ABSENT_PRIORITY;
    pasta_publish(e);
}

static void on_module(bool loaded, const pasta_nv_module *m) {
    pasta_nv_place at = place_of(m->context);
    /* hashed before the record is reserved: the consumer waits for reserved records */
    uint64_t hash = loaded && m->cubin ? pasta_hash(m->cubin, m->bytes) : PASTA_ABSENT_U64;
    if (loaded) pasta_keep_image(hash, m->cubin, m->bytes);
    pasta_nv_probes_module(m->context, m->module, loaded);
    pasta_module *e = loaded ? PASTA_BEGIN_AS(module_load, module, at.device, at.context, PASTA_NO_STREAM)
                             : PASTA_BEGIN_AS(module_unload, module, at.device, at.context, PASTA_NO_STREAM);
    if (!loaded) pasta_nv_module_unloaded(m->module);
    if (!e) return;
    e->handle = m->module;
    e->hash = hash;
    if (m->bytes) e->bytes = m->bytes;
    pasta_publish(e);
}

/* ---- memory ---- */

static uint32_t kind_by_flags(uint32_t flags) {
    if (flags & PASTA_NV_MEMORY_MODULE) return PASTA_MEMORY_module;
    return flags & PASTA_NV_MEMORY_MANAGED ? PASTA_MEMORY_managed : PASTA_MEMORY_device;
}

static uint8_t internal_flag(const pasta_nv_memory *m) {
    return m->flags & (PASTA_NV_MEMORY_RUNTIME | PASTA_NV_MEMORY_DYNAMIC) ? PASTA_FLAG_INTERNAL : 0;
}

/* The driver's own memory is announced by its context alone. */
static uint16_t context_of(const pasta_nv_allocation *a, pasta_nv_place at) {
    return a->flags & PASTA_FLAG_INTERNAL ? at.context : pasta_nv_only_context_of(a->device);
}

static void on_alloc(const pasta_nv_memory *m, uint32_t memory, uint8_t flags) {
    pasta_nv_place at = pasta_nv_place_of(m->context, (int16_t)m->device);
    bool peer = m->flags & PASTA_NV_MEMORY_PEER;
    pasta_nv_allocation a = {m->address, m->bytes, memory, (int16_t)(peer ? m->source_device : m->device),
                             internal_flag(m), peer, 0};
    if (!pasta_nv_allocated(at, &a)) return;
    pasta_memory *e = PASTA_BEGIN_AS(memory_alloc, memory, a.device, context_of(&a, at),
                                     memory == PASTA_MEMORY_pool ? m->stream : PASTA_NO_STREAM);
    if (!e) return;
    pasta_header_of(e)->flags = flags | a.flags;
    pasta_header_of(e)->correlation = a.number;
    e->address = m->address;
    e->bytes = m->bytes;
    e->memory = memory;
    e->vendor_flags = m->flags;
    pasta_publish(e);
}

/* A free carries no flags: what was freed is known from its allocation, else from the callback. */
static void on_free(const pasta_nv_memory *m, uint32_t memory, uint8_t flags) {
    pasta_nv_place at = pasta_nv_place_of(m->context, (int16_t)m->device);
    pasta_nv_allocation a = {m->address, m->bytes, memory, (int16_t)m->device, internal_flag(m), false, 0};
    if (!pasta_nv_freed(at, &a)) return;
    pasta_memory *e = PASTA_BEGIN_AS(memory_free, memory, a.device, context_of(&a, at),
                                     flags & PASTA_FLAG_ASYNC ? m->stream : PASTA_NO_STREAM);
    if (!e) return;
    pasta_header_of(e)->flags = flags | a.flags;
    pasta_header_of(e)->correlation = a.number;
    e->address = m->address;
    if (a.bytes) e->bytes = a.bytes;
    e->memory = a.memory;
    if (m->flags) e->vendor_flags = m->flags;
    pasta_publish(e);
}

static void on_range(bool reserved, const pasta_nv_range *r) {
    pasta_memory *e =
        reserved ? PASTA_BEGIN_AS(memory_alloc, memory, creating_device(), PASTA_NO_CONTEXT, PASTA_NO_STREAM)
                 : PASTA_BEGIN_AS(memory_free, memory, PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!e) return;
    if (here.creating) pasta_header_of(e)->flags = PASTA_FLAG_INTERNAL; /* the context's own */
    e->address = r->address;
    e->bytes = r->bytes;
    e->memory = PASTA_MEMORY_virtual;
    pasta_publish(e);
}

static void on_array(bool created, const pasta_nv_array *a) {
    pasta_nv_place at = place_of(a->context);
    pasta_memory *e = created ? PASTA_BEGIN_AS(memory_alloc, memory, at.device, at.context, PASTA_NO_STREAM)
                              : PASTA_BEGIN_AS(memory_free, memory, at.device, at.context, PASTA_NO_STREAM);
    if (!e) return;
    e->address = a->array; /* extents come without the size of an element: bytes stay absent */
    e->memory = PASTA_MEMORY_array;
    pasta_publish(e);
}

static void on_external(uint32_t id, const pasta_nv_external *x) {
    /* what is mapped is freed as device memory is, before the import is destroyed */
    if (id != PASTA_NV_EXTERNAL_MAPPED) return;
    pasta_nv_place at = pasta_nv_place_of(x->context, (int16_t)x->device);
    pasta_nv_allocation a = {x->address, x->bytes, PASTA_MEMORY_external, (int16_t)x->device, 0, false, 0};
    if (!pasta_nv_allocated(at, &a)) return;
    pasta_memory *e = PASTA_BEGIN_AS(memory_alloc, memory, x->device, at.context, PASTA_NO_STREAM);
    if (!e) return;
    pasta_header_of(e)->correlation = a.number;
    e->address = x->address;
    e->bytes = x->bytes;
    e->memory = PASTA_MEMORY_external;
    pasta_publish(e);
}

static void on_resource(uint32_t id, const void *data) {
    const pasta_nv_memory *m = data;
    switch (id) {
    case PASTA_NV_CONTEXT_STARTING: here.creating = (int16_t)(created_device(data) + 1); return;
    case PASTA_NV_CONTEXT_CREATED: on_context_created(data); return;
    case PASTA_NV_CONTEXT_DESTROYING:
        pasta_nv_probes_context_ends(((const pasta_nv_context *)data)->context);
        return;
    case PASTA_NV_CONTEXT_DESTROYED: /* what it held is announced after "destroying": measured */
        pasta_nv_context_destroyed(((const pasta_nv_context *)data)->context);
        return;
    case PASTA_NV_STREAM_CREATED:
    case PASTA_NV_STREAM_DESTROYING: on_stream(id == PASTA_NV_STREAM_CREATED, data); return;
    case PASTA_NV_MODULE_LOADED:
    case PASTA_NV_MODULE_UNLOADING: on_module(id == PASTA_NV_MODULE_LOADED, data); return;
    case PASTA_NV_DEVICE_ALLOC: on_alloc(m, kind_by_flags(m->flags), 0); return;
    case PASTA_NV_DEVICE_FREE: on_free(m, PASTA_ABSENT_U32, 0); return;
    case PASTA_NV_HOST_ALLOC: on_alloc(m, PASTA_MEMORY_pinned, 0); return;
    case PASTA_NV_HOST_FREE: on_free(m, PASTA_MEMORY_pinned, 0); return;
    case PASTA_NV_ASYNC_ALLOC: on_alloc(m, PASTA_MEMORY_pool, PASTA_FLAG_ASYNC); return;
    case PASTA_NV_ASYNC_FREE:
        /* cudaFreeAsync takes memory from cudaMalloc too: only a pool tells them apart */
        on_free(m, m->pool ? PASTA_MEMORY_pool : PASTA_ABSENT_U32, PASTA_FLAG_ASYNC);
        return;
    case PASTA_NV_POOL_IMPORT: on_alloc(m, PASTA_MEMORY_external, 0); return;
    case PASTA_NV_ARRAY_CREATED:
    case PASTA_NV_ARRAY_DESTROYED: on_array(id == PASTA_NV_ARRAY_CREATED, data); return;
    case PASTA_NV_VIRTUAL_RESERVE:
    case PASTA_NV_VIRTUAL_RELEASE: on_range(id == PASTA_NV_VIRTUAL_RESERVE, data); return;
    default: return;
    }
}

/* ---- launches ---- */

static void launch_begin(const pasta_nv_launch *l, uint64_t key, uint64_t stream, uint64_t node, uint8_t flags) {
    open_launch *open = &here.launches[here.next++ % OPEN];
    *open = (open_launch){key, pasta_next_launch(), pasta_next_correlation()};
    pasta_nv_place at = pasta_nv_place_of(l->context, (int16_t)l->device);
    pasta_nv_function f = pasta_nv_function_of(l); /* before the record is reserved: it may take long */
    bool selected = pasta_nv_probes_on() && pasta_probe_selects(f.name, l->name);
    pasta_kernel_launch *e = PASTA_BEGIN(kernel_launch, l->device, at.context, stream);
    if (!e) return;
    pasta_header *h = pasta_header_of(e);
    bool probed = selected && pasta_probe_takes(open->ordinal, f.name);
    h->flags = (uint8_t)(flags | (probed ? PASTA_FLAG_PROBED : 0));
    h->correlation = open->correlation;
    e->name = f.name;
    for (int axis = 0; axis < 3; axis++) {
        e->grid[axis] = l->grid[axis];
        e->block[axis] = l->block[axis];
        if (l->cluster[axis]) e->cluster[axis] = (uint16_t)l->cluster[axis];
    }
    e->ordinal = open->ordinal;
    e->graph_node = node;
    e->entry_pc = f.entry_pc;
    e->function = l->function;
    e->module = l->module;
    pasta_publish(e);
    if (pasta_nv_probes_on()) pasta_nv_probes_launch(l, open->ordinal, flags & PASTA_FLAG_GRAPH, probed);
}

static void launch_end(const pasta_nv_launch *l, uint64_t key, uint64_t stream, uint8_t flags) {
    open_launch *open = NULL;
    for (uint32_t back = 1; back <= OPEN && !open; back++) {
        open_launch *candidate = &here.launches[(here.next - back) % OPEN];
        if (candidate->correlation && candidate->handle == key) open = candidate;
    }
    if (!open) return; /* its begin came before we listened */
    pasta_nv_place at = pasta_nv_place_of(l->context, (int16_t)l->device);
    pasta_launch_end *e = PASTA_BEGIN_AS(kernel_launch_end, launch_end, l->device, at.context, stream);
    uint64_t ordinal = open->ordinal, correlation = open->correlation;
    *open = (open_launch){0};
    if (!e) return;
    pasta_header_of(e)->flags = flags;
    pasta_header_of(e)->correlation = correlation;
    e->ordinal = ordinal;
    pasta_publish(e);
}

static void on_launch(uint32_t id, const pasta_nv_launch *l) {
    if (id == PASTA_NV_LAUNCH_BEGIN) launch_begin(l, l->launch, l->stream, PASTA_ABSENT_U64, 0);
    if (id == PASTA_NV_LAUNCH_END) {
        pasta_nv_probes_launched(l->launch, false);
        launch_end(l, l->launch, l->stream, 0);
    }
}

/* ---- copies and sets ---- */

/* A copy by address between devices has the caller's context on both sides: measured. */
static void correct_device(pasta_nv_place *side, uint64_t address) {
    int16_t owner = pasta_nv_owner_of(address);
    if (owner != PASTA_NO_DEVICE) side->device = owner;
}

static uint32_t direction_of(const pasta_nv_memcpy *c, pasta_nv_place from, pasta_nv_place to) {
    if (c->direction < PASTA_COPY_host_to_host || c->direction > PASTA_COPY_device_to_device) return PASTA_ABSENT_U32;
    bool peers = c->direction == PASTA_NV_DEVICE_TO_DEVICE && from.device != PASTA_NO_DEVICE &&
                 to.device != PASTA_NO_DEVICE && from.device != to.device;
    return peers ? PASTA_COPY_peer_to_peer : (uint32_t)c->direction;
}

static void on_copy(const pasta_nv_memcpy *c, uint64_t node, uint8_t flags) {
    pasta_nv_place from = place_of(c->source_context), to = place_of(c->destination_context);
    bool reads_device = c->direction == PASTA_NV_DEVICE_TO_HOST || c->direction == PASTA_NV_DEVICE_TO_DEVICE;
    bool writes_device = c->direction == PASTA_NV_HOST_TO_DEVICE || c->direction == PASTA_NV_DEVICE_TO_DEVICE;
    if (c->direction == PASTA_NV_DEVICE_TO_DEVICE && pasta_nv_several_devices()) {
        correct_device(&from, c->source);
        correct_device(&to, c->destination);
    }
    uint64_t context = c->api_context, stream = c->api_stream;
    if (!context) { /* a node has none: the graph's; else the side that the device works for */
        bool by_destination = !c->source_context || c->direction == PASTA_NV_HOST_TO_DEVICE;
        context = by_destination ? c->destination_context : c->source_context;
        stream = by_destination ? c->destination_stream : c->source_stream;
        if (flags & PASTA_FLAG_GRAPH) stream = here.graph.stream;
    }
    pasta_nv_place at = place_of(context);
    pasta_memory_copy *e = PASTA_BEGIN(memory_copy, at.device, at.context, stream);
    if (!e) return;
    pasta_header_of(e)->flags = (uint8_t)(flags | (c->async ? PASTA_FLAG_ASYNC : 0));
    e->source = c->source;
    e->destination = c->destination;
    e->bytes = c->bytes;
    e->width = c->width;
    e->height = c->height;
    e->depth = c->depth;
    e->source_pitch = c->source_pitch;
    e->destination_pitch = c->destination_pitch;
    e->graph_node = node;
    e->direction = direction_of(c, from, to);
    e->source_device = reads_device ? from.device : PASTA_NO_DEVICE;
    e->destination_device = writes_device ? to.device : PASTA_NO_DEVICE;
    if (c->destination_context && c->destination_stream != stream) e->destination_stream = c->destination_stream;
    pasta_publish(e);
}

static void on_set(const pasta_nv_memset *s, uint64_t stream, uint64_t node, uint8_t flags) {
    pasta_nv_place at = place_of(s->context);
    pasta_memory_set *e = PASTA_BEGIN(memory_set, at.device, at.context, stream);
    if (!e) return;
    pasta_header_of(e)->flags = (uint8_t)(flags | (s->async ? PASTA_FLAG_ASYNC : 0));
    e->address = s->address;
    e->bytes = s->width * s->height * s->element; /* width counts elements: measured */
    e->width = s->width;
    e->height = s->height;
    e->pitch = s->pitch;
    e->element = s->element;
    e->value = s->value;
    e->graph_node = node;
    pasta_publish(e);
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
        return; /* its begin came before we listened */
    }
    pasta_nv_place at = place_of(g->context);
    pasta_graph_launch *e = begin ? PASTA_BEGIN(graph_launch, at.device, at.context, g->stream)
                                  : PASTA_BEGIN_AS(graph_launch_end, graph_launch, at.device, at.context, g->stream);
    uint64_t launch_id = here.graph.launch_id;
    if (!begin) here.graph.handle = 0;
    if (!e) return;
    pasta_header_of(e)->correlation = here.graph.correlation;
    e->graph = g->graph;
    e->launch_id = launch_id; /* only nodes carry it: known at the end */
    e->upload = g->upload != 0;
    pasta_publish(e);
}

static void on_node_freed(const pasta_nv_node *n) {
    pasta_nv_memory freed = {.address = n->freed, .context = here.graph.context, .stream = here.graph.stream};
    freed.device = place_of(freed.context).device;
    on_free(&freed, PASTA_MEMORY_pool, PASTA_FLAG_GRAPH | PASTA_FLAG_ASYNC);
}

/* The driver delivers a node's copy in the memcpy domain, between the node's begin and end, and
 * leaves the node's own description empty (13.5 on 580.159: measured).  Where it did not, what the
 * node says is recorded. */
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
        on_alloc(&n->alloc, PASTA_MEMORY_pool, PASTA_FLAG_GRAPH | PASTA_FLAG_ASYNC);
        return;
    case PASTA_NV_NODE_FREE: on_node_freed(n); return;
    default: return;
    }
}

static void on_graphs(uint32_t id, const void *data) {
    if (id == PASTA_NV_GRAPH_BEGIN || id == PASTA_NV_GRAPH_END) on_graph(id == PASTA_NV_GRAPH_BEGIN, data);
    if (id == PASTA_NV_NODE_BEGIN || id == PASTA_NV_NODE_END) on_node(id == PASTA_NV_NODE_BEGIN, data);
}

/* ---- synchronisation ---- */

static void waited(uint64_t handle, uint32_t what, uint64_t context, uint64_t stream) {
    pasta_nv_place at = place_of(context);
    pasta_sync *e = PASTA_BEGIN(sync, at.device, at.context, stream);
    if (!e) return;
    e->handle = handle;
    e->what = what;
    pasta_publish(e);
}

static void on_synchronize(uint32_t id, const pasta_nv_sync *s) {
    pasta_nv_probes_synchronised(s->context);
    if (id == PASTA_NV_STREAM_SYNCHRONIZED) waited(s->stream, PASTA_SYNC_stream, s->context, s->stream);
    if (id == PASTA_NV_CONTEXT_SYNCHRONIZED || id == PASTA_NV_GREEN_SYNCHRONIZED)
        waited(s->context, PASTA_SYNC_context, s->context, PASTA_NO_STREAM);
}

static void on_event(uint32_t id, const void *data) {
    const pasta_nv_event *v = data;
    uint64_t stream = PASTA_NO_STREAM;
    if (id == PASTA_NV_EVENT_RECORD || id == PASTA_NV_EVENT_STREAM_WAIT)
        stream = pasta_nv.layout_13_1 ? ((const pasta_nv_event_13_1 *)data)->stream : v->stream;
    pasta_nv_place at = place_of(v->context);
    pasta_event *e;
    switch (id) {
    case PASTA_NV_EVENT_CREATED:
        e = PASTA_BEGIN_AS(event_create, event, at.device, at.context, stream);
        break;
    case PASTA_NV_EVENT_DESTROYED:
        e = PASTA_BEGIN_AS(event_destroy, event, at.device, at.context, stream);
        break;
    case PASTA_NV_EVENT_RECORD:
    case PASTA_NV_CONTEXT_RECORD_EVENT:
    case PASTA_NV_GREEN_RECORD_EVENT:
        e = PASTA_BEGIN_AS(event_record, event, at.device, at.context, stream);
        break;
    case PASTA_NV_EVENT_STREAM_WAIT:
    case PASTA_NV_CONTEXT_WAIT_EVENT:
    case PASTA_NV_GREEN_WAIT_EVENT:
        e = PASTA_BEGIN_AS(event_wait, event, at.device, at.context, stream);
        break;
    case PASTA_NV_EVENT_SYNCHRONIZE:
    case PASTA_NV_CONTEXT_EVENT_SYNCHRONIZE:
        waited(v->event, PASTA_SYNC_event, v->context, PASTA_NO_STREAM);
        return;
    default: return;
    }
    if (!e) return;
    e->handle = v->event;
    pasta_publish(e);
}

/* ---- managed memory ---- */

static void on_attach(uint32_t id, const pasta_nv_attach *a) {
    if (id != PASTA_NV_ATTACH) return;
    pasta_nv_place at = place_of(a->context);
    pasta_uvm *e = PASTA_BEGIN_AS(uvm_attach, uvm, at.device, at.context, a->stream);
    if (!e) return;
    e->address = a->address;
    e->advice = (uint32_t)a->visibility;
    pasta_publish(e);
}

typedef struct managed_range {
    uint64_t address, bytes, stream;
    uint32_t advice;
    int32_t device;
} managed_range;

static void on_managed(bool prefetch, const pasta_nv_api *call, const managed_range *r) {
    pasta_nv_place at = place_of(call->context);
    pasta_uvm *e = prefetch ? PASTA_BEGIN_AS(uvm_prefetch, uvm, at.device, at.context, r->stream)
                            : PASTA_BEGIN_AS(uvm_advise, uvm, at.device, at.context, r->stream);
    if (!e) return;
    if (prefetch) pasta_header_of(e)->flags = PASTA_FLAG_ASYNC;
    e->address = r->address;
    e->bytes = r->bytes;
    e->advice = r->advice;
    e->destination = (int16_t)(r->device < 0 ? PASTA_NO_DEVICE : r->device);
    pasta_publish(e);
}

static int32_t located(pasta_nv_location l) { return l.type == PASTA_NV_LOCATION_DEVICE ? l.id : PASTA_NO_DEVICE; }

static void on_driver_call(uint32_t id, const pasta_nv_api *call) {
    if (id == PASTA_NV_PROFILER_START || id == PASTA_NV_PROFILER_STOP) {
        /* the runtime's function may call this one: the same state twice is recorded once */
        if (call->site != PASTA_NV_API_EXIT)
            pasta_profiling_set(id == PASTA_NV_PROFILER_START, PASTA_ORIGIN_profiler);
        return;
    }
    if (call->site != PASTA_NV_API_EXIT || *call->result != 0) return;
    switch (id) {
    case PASTA_NV_PREFETCH:
    case PASTA_NV_PREFETCH_PTSZ: {
        const pasta_nv_prefetch *p = call->arguments;
        on_managed(true, call, &(managed_range){p->address, p->bytes, p->stream, PASTA_ABSENT_U32, p->device});
        return;
    }
    case PASTA_NV_PREFETCH_V2:
    case PASTA_NV_PREFETCH_V2_PTSZ: {
        const pasta_nv_prefetch_v2 *p = call->arguments;
        on_managed(true, call,
                   &(managed_range){p->address, p->bytes, p->stream, PASTA_ABSENT_U32, located(p->location)});
        return;
    }
    case PASTA_NV_ADVISE: {
        const pasta_nv_advise *a = call->arguments;
        on_managed(false, call,
                   &(managed_range){a->address, a->bytes, PASTA_NO_STREAM, (uint32_t)a->advice, a->device});
        return;
    }
    case PASTA_NV_ADVISE_V2: {
        const pasta_nv_advise_v2 *a = call->arguments;
        on_managed(false, call,
                   &(managed_range){a->address, a->bytes, PASTA_NO_STREAM, (uint32_t)a->advice, located(a->location)});
        return;
    }
    default: return;
    }
}

static void on_runtime_call(uint32_t id, const pasta_nv_api *call) {
    if (call->site == PASTA_NV_API_EXIT) return;
    if (id == PASTA_NV_RUNTIME_PROFILER_START || id == PASTA_NV_RUNTIME_PROFILER_STOP)
        pasta_profiling_set(id == PASTA_NV_RUNTIME_PROFILER_START, PASTA_ORIGIN_profiler);
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
    case PASTA_NV_DRIVER: on_driver_call(id, data); return;
    case PASTA_NV_RUNTIME: on_runtime_call(id, data); return;
    case PASTA_NV_RESOURCE: on_resource(id, data); return;
    case PASTA_NV_SYNCHRONIZE: on_synchronize(id, data); return;
    case PASTA_NV_LAUNCH: on_launch(id, data); return;
    case PASTA_NV_MEMCPY: on_memcpy(id, data); return;
    case PASTA_NV_MEMSET: on_memset(id, data); return;
    case PASTA_NV_UVM: on_attach(id, data); return;
    case PASTA_NV_GRAPHS: on_graphs(id, data); return;
    case PASTA_NV_EVENTS: on_event(id, data); return;
    case PASTA_NV_EXTERNAL: on_external(id, data); return;
    default: return;
    }
}
