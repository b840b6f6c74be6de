/* Callbacks for contexts, streams, modules and memory. */
#include "source.h"

/* ---- contexts, streams, modules ---- */

static int16_t created_device(const void *data) {
    return (int16_t)(pasta_nv.layout_13_1 ? ((const pasta_nv_context_13_1 *)data)->device
                                          : ((const pasta_nv_context *)data)->device);
}

static void on_context_created(const pasta_nv_context *c) {
    pasta_nv_place at = pasta_nv_place_of(c->context, created_device(c));
    pasta_nv_set_creating(PASTA_NO_DEVICE);
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
    pasta_nv_place at = pasta_nv_place_here(s.context);
    if (!created) pasta_nv_probes_stream_destroyed(s.context, s.unique);
    pasta_nv_record_stream(created, at, s.stream, s.unique);
}

static void on_module(bool loaded, const pasta_nv_module *m) {
    pasta_nv_probes_module(m->context, m->module, loaded);
    pasta_nv_record_module(loaded, pasta_nv_place_here(m->context), m->module, m->cubin, m->bytes);
}

/* ---- memory ---- */

static uint32_t kind_by_flags(uint32_t flags) {
    if (flags & PASTA_NV_MEMORY_MODULE) return PASTA_MEMORY_module;
    return flags & PASTA_NV_MEMORY_MANAGED ? PASTA_MEMORY_managed : PASTA_MEMORY_device;
}

static uint8_t internal_flag(const pasta_nv_memory *m) {
    return m->flags & (PASTA_NV_MEMORY_RUNTIME | PASTA_NV_MEMORY_DYNAMIC) ? PASTA_FLAG_INTERNAL : 0;
}

/* The driver's own memory is reported by its context alone. */
static uint16_t context_of(const pasta_nv_allocation *a, pasta_nv_place at) {
    return a->flags & PASTA_FLAG_INTERNAL ? at.context : pasta_nv_only_context_of(a->device);
}

void pasta_nv_on_alloc(const pasta_nv_memory *m, uint32_t memory, uint8_t flags) {
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

void pasta_nv_on_free(const pasta_nv_memory *m, uint32_t memory, uint8_t flags) {
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

void pasta_nv_on_range(bool reserved, const pasta_nv_range *r) {
    pasta_memory *e =
        reserved ? PASTA_BEGIN_AS(memory_alloc, memory, pasta_nv_creating(), PASTA_NO_CONTEXT, PASTA_NO_STREAM)
                 : PASTA_BEGIN_AS(memory_free, memory, PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!e) return;
    if (pasta_nv_creating() != PASTA_NO_DEVICE) pasta_header_of(e)->flags = PASTA_FLAG_INTERNAL; /* the context's own */
    e->address = r->address;
    e->bytes = r->bytes;
    e->memory = PASTA_MEMORY_virtual;
    pasta_publish(e);
}

void pasta_nv_on_array(bool created, const pasta_nv_array *a) {
    pasta_nv_place at = pasta_nv_place_here(a->context);
    pasta_memory *e = created ? PASTA_BEGIN_AS(memory_alloc, memory, at.device, at.context, PASTA_NO_STREAM)
                              : PASTA_BEGIN_AS(memory_free, memory, at.device, at.context, PASTA_NO_STREAM);
    if (!e) return;
    e->address = a->array; /* there is no element size: bytes stay absent */
    e->memory = PASTA_MEMORY_array;
    pasta_publish(e);
}

void pasta_nv_on_external(uint32_t id, const pasta_nv_external *x) {
    /* a mapping is freed like device memory, before the import is destroyed */
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

void pasta_nv_on_resource(uint32_t id, const void *data) {
    const pasta_nv_memory *m = data;
    switch (id) {
    case PASTA_NV_CONTEXT_STARTING: pasta_nv_set_creating(created_device(data)); return;
    case PASTA_NV_CONTEXT_CREATED: on_context_created(data); return;
    case PASTA_NV_CONTEXT_DESTROYING:
        pasta_nv_probes_context_destroyed(((const pasta_nv_context *)data)->context);
        return;
    case PASTA_NV_CONTEXT_DESTROYED: /* its memory is reported after "destroying": measured */
        pasta_nv_context_destroyed(((const pasta_nv_context *)data)->context);
        return;
    case PASTA_NV_STREAM_CREATED:
    case PASTA_NV_STREAM_DESTROYING: on_stream(id == PASTA_NV_STREAM_CREATED, data); return;
    case PASTA_NV_MODULE_LOADED:
    case PASTA_NV_MODULE_UNLOADING: on_module(id == PASTA_NV_MODULE_LOADED, data); return;
    case PASTA_NV_DEVICE_ALLOC: pasta_nv_on_alloc(m, kind_by_flags(m->flags), 0); return;
    case PASTA_NV_DEVICE_FREE: pasta_nv_on_free(m, PASTA_ABSENT_U32, 0); return;
    case PASTA_NV_HOST_ALLOC: pasta_nv_on_alloc(m, PASTA_MEMORY_pinned, 0); return;
    case PASTA_NV_HOST_FREE: pasta_nv_on_free(m, PASTA_MEMORY_pinned, 0); return;
    case PASTA_NV_ASYNC_ALLOC: pasta_nv_on_alloc(m, PASTA_MEMORY_pool, PASTA_FLAG_ASYNC); return;
    case PASTA_NV_ASYNC_FREE:
        /* cudaFreeAsync accepts memory from cudaMalloc too: only a pool distinguishes them */
        pasta_nv_on_free(m, m->pool ? PASTA_MEMORY_pool : PASTA_ABSENT_U32, PASTA_FLAG_ASYNC);
        return;
    case PASTA_NV_POOL_IMPORT: pasta_nv_on_alloc(m, PASTA_MEMORY_external, 0); return;
    case PASTA_NV_ARRAY_CREATED:
    case PASTA_NV_ARRAY_DESTROYED: pasta_nv_on_array(id == PASTA_NV_ARRAY_CREATED, data); return;
    case PASTA_NV_VIRTUAL_RESERVE:
    case PASTA_NV_VIRTUAL_RELEASE: pasta_nv_on_range(id == PASTA_NV_VIRTUAL_RESERVE, data); return;
    default: return;
    }
}
