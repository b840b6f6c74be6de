/* Records of what the program submits, the same for both sources. */
#include "source.h"

static uint32_t thread_of(const pasta_nv_work *w) { return w->thread ? w->thread : pasta_thread(); }

/* A record of the work's call, or of an earlier call that is reported late; kept if the call's record was. */
#define BEGIN_WORK(kind, payload, w) ((pasta_##payload *)begin_work(w, PASTA_EVENT_##kind, PASTA_SLOTS(pasta_##payload)))

static inline void *begin_work(const pasta_nv_work *w, pasta_event_kind kind, uint8_t slots) {
    return w->time ? pasta_begin_result(thread_of(w), kind, slots, w->at.device, w->at.context, w->stream)
                   : pasta_begin_on(thread_of(w), kind, slots, w->at.device, w->at.context, w->stream);
}

/* Gives the record's time. */
static uint64_t fill_header(void *e, const pasta_nv_work *w, uint8_t flags) {
    pasta_header *h = pasta_header_of(e);
    h->flags = (uint8_t)(w->flags | flags);
    h->correlation = w->correlation;
    if (w->time) h->time = w->time;
    return h->time;
}

uint64_t pasta_nv_record_launch(const pasta_nv_launch *l, const pasta_nv_function *f, const pasta_nv_work *w,
                                pasta_flags (*flags)(const pasta_kernel_launch *launch)) {
    pasta_kernel_launch *e = BEGIN_WORK(kernel_launch, kernel_launch, w);
    if (!e) return 0;
    uint64_t time = fill_header(e, w, 0);
    e->name = f->name;
    for (int axis = 0; axis < 3; axis++) {
        e->grid[axis] = l->grid[axis];
        e->block[axis] = l->block[axis];
        if (l->cluster[axis]) e->cluster[axis] = (uint16_t)l->cluster[axis];
    }
    e->registers = f->registers;
    e->shared_static = f->shared_static;
    e->shared_dynamic = w->shared;
    e->local = f->local;
    e->ordinal = w->ordinal;
    e->graph_node = w->node;
    e->entry_pc = f->entry_pc;
    e->function = l->function ? l->function : PASTA_ABSENT_U64;
    e->module = l->module ? l->module : PASTA_ABSENT_U64;
    if (flags) pasta_header_of(e)->flags |= flags(e);
    pasta_publish(e);
    return time;
}

void pasta_nv_record_return(const pasta_nv_work *w) {
    pasta_launch_end *e = BEGIN_WORK(kernel_launch_end, launch_end, w);
    if (!e) return;
    fill_header(e, w, 0);
    e->ordinal = w->ordinal;
    pasta_publish(e);
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

uint64_t pasta_nv_record_copy(const pasta_nv_memcpy *c, const pasta_nv_work *w) {
    pasta_nv_place from = pasta_nv_place_here(c->source_context), to = pasta_nv_place_here(c->destination_context);
    bool reads_device = c->direction == PASTA_NV_DEVICE_TO_HOST || c->direction == PASTA_NV_DEVICE_TO_DEVICE;
    bool writes_device = c->direction == PASTA_NV_HOST_TO_DEVICE || c->direction == PASTA_NV_DEVICE_TO_DEVICE;
    if (c->direction == PASTA_NV_DEVICE_TO_DEVICE && pasta_nv_several_devices()) {
        correct_device(&from, c->source);
        correct_device(&to, c->destination);
    }
    pasta_memory_copy *e = BEGIN_WORK(memory_copy, memory_copy, w);
    if (!e) return 0;
    uint64_t time = fill_header(e, w, c->async ? PASTA_FLAG_ASYNC : 0);
    e->source = c->source;
    e->destination = c->destination;
    e->bytes = c->bytes;
    e->width = c->width;
    e->height = c->height;
    e->depth = c->depth;
    e->source_pitch = c->source_pitch;
    e->destination_pitch = c->destination_pitch;
    e->graph_node = w->node;
    e->direction = direction_of(c, from, to);
    e->source_device = reads_device ? from.device : PASTA_NO_DEVICE;
    e->destination_device = writes_device ? to.device : PASTA_NO_DEVICE;
    if (c->destination_context && c->destination_stream != w->stream) e->destination_stream = c->destination_stream;
    pasta_publish(e);
    return time;
}

uint64_t pasta_nv_record_set(const pasta_nv_memset *s, const pasta_nv_work *w) {
    pasta_memory_set *e = BEGIN_WORK(memory_set, memory_set, w);
    if (!e) return 0;
    uint64_t time = fill_header(e, w, s->async ? PASTA_FLAG_ASYNC : 0);
    e->address = s->address;
    e->bytes = s->width * s->height * s->element; /* width counts elements: measured */
    e->width = s->width;
    e->height = s->height;
    e->pitch = s->pitch;
    e->element = s->element;
    e->value = s->value;
    e->graph_node = w->node;
    pasta_publish(e);
    return time;
}

/* ---- graphs, waits, events, streams, modules ---- */

uint64_t pasta_nv_record_graph(bool begin, uint64_t graph, uint64_t launch_id, bool upload, const pasta_nv_work *w) {
    pasta_graph_launch *e = begin ? BEGIN_WORK(graph_launch, graph_launch, w)
                                  : BEGIN_WORK(graph_launch_end, graph_launch, w);
    if (!e) return 0;
    uint64_t time = fill_header(e, w, 0);
    e->graph = graph;
    e->launch_id = launch_id;
    e->upload = upload;
    pasta_publish(e);
    return time;
}

void pasta_nv_record_wait(uint64_t handle, uint32_t what, uint64_t context, uint64_t stream, uint64_t duration) {
    pasta_nv_place at = pasta_nv_place_here(context);
    pasta_sync *e = PASTA_BEGIN(sync, at.device, at.context, stream);
    if (!e) return;
    e->handle = handle;
    e->what = what;
    e->duration = duration;
    pasta_publish(e);
}

void pasta_nv_record_event(pasta_event_kind kind, uint64_t event, uint64_t context, uint64_t stream) {
    pasta_nv_place at = pasta_nv_place_here(context);
    pasta_event *e = pasta_begin(kind, PASTA_SLOTS(pasta_event), at.device, at.context, stream);
    if (!e) return;
    e->handle = event;
    pasta_publish(e);
}

void pasta_nv_record_stream(bool created, pasta_nv_place at, uint64_t stream, uint64_t id) {
    pasta_stream *e = created ? PASTA_BEGIN_AS(stream_create, stream, at.device, at.context, stream)
                              : PASTA_BEGIN_AS(stream_destroy, stream, at.device, at.context, stream);
    if (!e) return;
    /* a stream without a handle is the driver's: it creates seven with each context */
    if (!stream) pasta_header_of(e)->flags = PASTA_FLAG_INTERNAL;
    e->handle = stream;
    e->id = id;
    e->priority = PASTA_PRIORITY_absent;
    pasta_publish(e);
}

void pasta_nv_record_module(bool loaded, pasta_nv_place at, uint64_t module, const void *image, uint64_t bytes) {
    /* hashed before the record is reserved: the consumer waits for reserved records */
    uint64_t hash = loaded && image ? pasta_hash(image, bytes) : PASTA_ABSENT_U64;
    if (loaded) pasta_keep_image(hash, image, bytes);
    pasta_module *e = loaded ? PASTA_BEGIN_AS(module_load, module, at.device, at.context, PASTA_NO_STREAM)
                             : PASTA_BEGIN_AS(module_unload, module, at.device, at.context, PASTA_NO_STREAM);
    if (!loaded) pasta_nv_module_unloaded(module);
    if (!e) return;
    e->handle = module;
    e->hash = hash;
    if (bytes) e->bytes = bytes;
    pasta_publish(e);
}
