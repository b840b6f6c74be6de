/* Records that CUPTI delivers in buffers, on a thread of its own: what ran, and when.
 *
 * CUPTI converts the device's times to the host's clock, which is CLOCK_REALTIME as cupti_guest.c sets it.  Work whose call is
 * not known is recorded here too, from its record: nodes of a graph, with the time and thread of the graph's launch,
 * and work of calls that have no callback.
 */
#define _GNU_SOURCE
#include <stdio.h>

#include "cupti_source.h"

static bool details;
static struct {
    uint64_t work, early; /* compared; longest time by which work started before it was submitted, ns */
    uint64_t dropped, unknown, replaced;
} seen; /* of CUPTI's thread, and the exiting one after a flush */

void pasta_cupti_with_details(bool wanted) { details = wanted; }

static void compare(uint64_t submitted, uint64_t start) {
    seen.work++;
    if (submitted && start < submitted && submitted - start > seen.early) seen.early = submitted - start;
}

/* A record of work whose call was recorded, or is reported late: `time` 0 is now. */
static void *begin(pasta_event_kind kind, uint8_t slots, const pasta_nv_work *w, uint32_t thread, uint64_t time) {
    void *e = pasta_begin_result(thread ? thread : pasta_thread(), kind, slots, w->at.device, w->at.context, w->stream);
    if (!e) return NULL;
    pasta_header *h = pasta_header_of(e);
    h->flags = w->flags;
    h->correlation = w->correlation;
    if (time) h->time = time;
    return e;
}
#define RESULT(name, w) ((pasta_##name *)begin(PASTA_EVENT_##name, PASTA_SLOTS(pasta_##name), w, 0, 0))
#define LATE(name, w) ((pasta_##name *)begin(PASTA_EVENT_##name, PASTA_SLOTS(pasta_##name), w, (w)->thread, (w)->time))

/* ---- kernels ---- */

static void publish_completion(const pasta_nv_work *w, uint64_t start, uint64_t end) {
    pasta_kernel_complete *e = RESULT(kernel_complete, w);
    if (!e) return;
    e->ordinal = w->ordinal;
    e->start = start;
    e->end = end;
    pasta_publish(e);
}

static void publish_details(const pasta_nv_work *w, const pasta_cupti_kernel *k) {
    pasta_kernel_details *e = RESULT(kernel_details, w);
    if (!e) return;
    e->ordinal = w->ordinal;
    if (k->queued) e->queued = pasta_cupti_time(k->queued);
    if (k->submitted) e->submitted = pasta_cupti_time(k->submitted);
    e->shared_executed = k->shared_executed;
    e->channel = k->channel;
    e->channel_type = k->channel_type;
    e->priority = pasta_cupti.version >= PASTA_CUPTI_13_1 ? k->priority : PASTA_PRIORITY_absent;
    e->local_total = k->local_total_2;
    e->max_clusters = k->cluster[0] ? k->active_clusters : PASTA_ABSENT_U32;
    e->launch_type = k->launch_type;
    pasta_publish(e);
}

/* Since 13.4 a record has the captured node's number itself. */
static uint64_t captured_node(uint64_t node, uint64_t source_node) {
    uint64_t handle = source_node ? pasta_cupti_node(source_node) : PASTA_ABSENT_U64;
    return handle == PASTA_ABSENT_U64 ? pasta_cupti_node(node) : handle;
}

/* Looks up the call of work, which may be unknown. False if the work is left out: the call was not recorded, or it was and its
 * entry has been replaced. A node of a graph has no record that this one would repeat. */
static bool find_call(uint32_t correlation, uint64_t node, bool *known, pasta_cupti_submitted *s) {
    *known = pasta_cupti_get(correlation, s);
    if (*known) return s->kind != PASTA_CUPTI_NOTHING;
    bool replaced = !node && pasta_cupti_replaced(correlation);
    seen.replaced += replaced;
    return !replaced;
}

/* Work that no call of its own announced: of the graph that `s` is, or of a call without a callback. */
static pasta_nv_work work_of(const pasta_cupti_submitted *s, uint32_t context, uint32_t stream, uint64_t node,
                             uint64_t source_node, uint64_t start) {
    uint64_t handle = pasta_cupti_stream(context, stream);
    pasta_nv_work w = {.at = pasta_cupti_place(context), .stream = handle, .node = PASTA_ABSENT_U64, .time = start,
                       .shared = PASTA_ABSENT_U32};
    if (s && s->kind == PASTA_CUPTI_A_GRAPH) {
        w = s->work;
        w.flags |= PASTA_FLAG_GRAPH;
        w.node = captured_node(node, source_node);
        if (handle != PASTA_NO_STREAM) w.stream = handle;
    } else {
        seen.unknown++;
    }
    w.correlation = pasta_next_correlation();
    return w;
}

static bool record_kernel(const pasta_cupti_kernel *k, pasta_nv_work *w) {
    pasta_nv_launch l = {.name = k->name};
    pasta_nv_function f = {pasta_intern_z(k->name), k->registers, (uint32_t)k->shared_static, k->local, PASTA_ABSENT_U64};
    for (int axis = 0; axis < 3; axis++) {
        l.grid[axis] = (uint32_t)k->grid[axis];
        l.block[axis] = (uint32_t)k->block[axis];
        l.cluster[axis] = k->cluster[axis];
    }
    w->shared = (uint32_t)k->shared_dynamic;
    w->ordinal = pasta_next_launch();
    return pasta_nv_record_launch(&l, &f, w, NULL) != 0;
}

static void on_kernel(const pasta_cupti_kernel *k) {
    pasta_cupti_submitted s;
    uint64_t start = pasta_cupti_time(k->start), end = pasta_cupti_time(k->end);
    bool known;
    if (!k->start || !k->end || !find_call(k->correlation, k->node, &known, &s)) return; /* without times: not run yet */
    pasta_nv_work w;
    if (known && s.kind == PASTA_CUPTI_A_LAUNCH) {
        w = s.work;
        if (pasta_cupti_counters_on()) /* it may run again, for further counters */
            pasta_cupti_put(k->correlation, &(pasta_cupti_submitted){PASTA_CUPTI_NOTHING, s.work});
        else if (!pasta_cupti_samples_by_launch()) pasta_cupti_forget(k->correlation); /* its samples arrive later */
    } else {
        uint64_t source = pasta_cupti.version >= PASTA_CUPTI_13_4 ? k->source_node : 0;
        w = work_of(known ? &s : NULL, k->context, k->stream, k->node, source, start);
        if (!record_kernel(k, &w)) return;
    }
    if (known) compare(s.work.time, start);
    publish_completion(&w, start, end);
    if (details) publish_details(&w, k);
}

void pasta_cupti_complete_counted(uint32_t correlation, const pasta_nv_work *w, uint64_t ns) {
    pasta_cupti_put(correlation, &(pasta_cupti_submitted){PASTA_CUPTI_NOTHING, *w});
    publish_completion(w, w->time, w->time + ns);
}

/* ---- copies and sets ---- */

static pasta_copy_direction direction_of(uint8_t kind) {
    switch (kind) {
    case PASTA_CUPTI_HTOD:
    case PASTA_CUPTI_HTOA: return PASTA_COPY_host_to_device;
    case PASTA_CUPTI_DTOH:
    case PASTA_CUPTI_ATOH: return PASTA_COPY_device_to_host;
    case PASTA_CUPTI_ATOA:
    case PASTA_CUPTI_ATOD:
    case PASTA_CUPTI_DTOA:
    case PASTA_CUPTI_DTOD: return PASTA_COPY_device_to_device;
    case PASTA_CUPTI_HTOH: return PASTA_COPY_host_to_host;
    case PASTA_CUPTI_PTOP: return PASTA_COPY_peer_to_peer;
    default: return PASTA_ABSENT_U32;
    }
}

typedef struct moved {
    uint64_t bytes, start, end, node;
    uint32_t context, stream, correlation;
    pasta_copy_direction direction; /* of a set absent */
    int16_t source, destination;    /* devices; the host: -1 */
    uint8_t flags;
    bool is_set;
    uint32_t value;
} moved;

static bool record_set(const moved *m, const pasta_nv_work *w) {
    pasta_memory_set *e = LATE(memory_set, w);
    if (!e) return false;
    e->bytes = m->bytes;
    e->value = m->value;
    e->graph_node = w->node;
    pasta_publish(e);
    return true;
}

static bool record_copy(const moved *m, const pasta_nv_work *w) {
    pasta_memory_copy *e = LATE(memory_copy, w);
    if (!e) return false;
    e->bytes = e->width = m->bytes;
    e->height = e->depth = 1;
    e->graph_node = w->node;
    e->direction = m->direction;
    e->source_device = m->source;
    e->destination_device = m->destination;
    pasta_publish(e);
    return true;
}

static void on_moved(const moved *m) {
    pasta_cupti_submitted s;
    bool known;
    if (!m->start || !m->end || !find_call(m->correlation, m->node, &known, &s)) return;
    pasta_nv_work w;
    if (known && s.kind == PASTA_CUPTI_A_COPY) { /* stays: a copy may arrive in parts */
        w = s.work;
    } else {
        w = work_of(known ? &s : NULL, m->context, m->stream, m->node, 0, m->start);
        w.flags |= m->flags & PASTA_CUPTI_ASYNC ? PASTA_FLAG_ASYNC : 0;
        if (!(m->is_set ? record_set(m, &w) : record_copy(m, &w))) return;
    }
    if (known) compare(s.work.time, m->start);
    pasta_copy_complete *e = RESULT(copy_complete, &w);
    if (!e) return;
    e->start = m->start;
    e->end = m->end;
    e->bytes = m->bytes;
    e->direction = m->direction;
    pasta_publish(e);
}

static void on_copy(const pasta_cupti_copy *c) {
    pasta_copy_direction direction = direction_of(c->direction);
    bool reads = direction == PASTA_COPY_device_to_host || direction == PASTA_COPY_device_to_device;
    bool writes = direction == PASTA_COPY_host_to_device || direction == PASTA_COPY_device_to_device;
    int16_t device = (int16_t)c->device;
    on_moved(&(moved){.bytes = c->bytes, .start = pasta_cupti_time(c->start),
                      .end = pasta_cupti_time(c->end), .node = c->node, .context = c->context,
                      .stream = c->stream, .correlation = c->correlation, .direction = direction,
                      .source = reads ? device : PASTA_NO_DEVICE, .destination = writes ? device : PASTA_NO_DEVICE,
                      .flags = c->flags});
}

static void on_peer_copy(const pasta_cupti_peer_copy *c) {
    on_moved(&(moved){.bytes = c->bytes, .start = pasta_cupti_time(c->start),
                      .end = pasta_cupti_time(c->end), .node = c->node, .context = c->context,
                      .stream = c->stream, .correlation = c->correlation, .direction = PASTA_COPY_peer_to_peer,
                      .source = (int16_t)c->source_device, .destination = (int16_t)c->destination_device,
                      .flags = c->flags});
}

static void on_set(const pasta_cupti_set *s) {
    on_moved(&(moved){.bytes = s->bytes, .start = pasta_cupti_time(s->start),
                      .end = pasta_cupti_time(s->end), .node = s->node, .context = s->context,
                      .stream = s->stream, .correlation = s->correlation, .direction = PASTA_ABSENT_U32,
                      .flags = (uint8_t)s->flags, .is_set = true, .value = s->value});
}

/* ---- devices, overheads, managed memory ---- */

static uint32_t uuid_text(const uint8_t *uuid, const char *prefix) {
    char text[64];
    int at = snprintf(text, sizeof text, "%s-", prefix);
    for (int i = 0; i < 16; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
    return pasta_intern_z(text);
}

static void on_device(const pasta_cupti_device *d) {
    char architecture[24];
    if (!d->visible) return;
    uint32_t name = pasta_intern_z(d->name);
    uint32_t uuid = d->mig ? uuid_text(d->mig_uuid, "MIG") : uuid_text(d->uuid, "GPU");
    snprintf(architecture, sizeof architecture, "sm_%u%u", d->major, d->minor);
    uint32_t sm = pasta_intern_z(architecture);
    pasta_device *e = PASTA_BEGIN(device, d->id, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!e) return;
    e->name = name;
    e->uuid = uuid;
    e->architecture = sm;
    e->multiprocessors = d->multiprocessors;
    e->warp = d->warp;
    e->threads = d->warps * d->warp;
    e->blocks = d->blocks;
    e->registers = d->registers;
    e->shared = d->shared;
    e->shared_per_block = d->shared_per_block;
    e->clock = d->clock;
    e->l2 = d->l2;
    e->memory = d->memory;
    e->bandwidth = d->bandwidth * 1000;
    pasta_publish(e);
}

static const char *overhead_name(uint32_t what) {
    switch (what) {
    case PASTA_CUPTI_OVERHEAD_COMPILER: return "driver compiler";
    case PASTA_CUPTI_OVERHEAD_FLUSH: return "CUPTI buffer flush";
    case PASTA_CUPTI_OVERHEAD_INSTRUMENTATION: return "CUPTI instrumentation";
    case PASTA_CUPTI_OVERHEAD_RESOURCE: return "CUPTI resources";
    case PASTA_CUPTI_OVERHEAD_MODULE: return "lazy module loading";
    case PASTA_CUPTI_OVERHEAD_FUNCTION: return "lazy function loading";
    case PASTA_CUPTI_OVERHEAD_COMMANDS_FULL: return "command buffer full";
    case PASTA_CUPTI_OVERHEAD_BUFFER_REQUEST: return "CUPTI buffer request";
    case PASTA_CUPTI_OVERHEAD_UVM: return "managed memory tracing";
    default: return "unknown";
    }
}

static void on_overhead(const pasta_cupti_overhead *o) {
    uint32_t name = pasta_intern_z(overhead_name(o->what));
    bool of_thread = o->object_kind == PASTA_CUPTI_OF_THREAD;
    pasta_overhead *e = pasta_begin_on(of_thread ? o->thread : pasta_thread(), PASTA_EVENT_overhead, PASTA_SLOTS(pasta_overhead),
                                       PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!e) return;
    e->start = pasta_cupti_time(o->start);
    e->end = pasta_cupti_time(o->end);
    e->name = name;
    pasta_publish(e);
}

static const struct {
    uint8_t kind, cause;
    bool from_device, to_device, is_fault;
} uvm_rows[] = {
    [PASTA_CUPTI_UVM_HTOD] = {PASTA_EVENT_uvm_migration, PASTA_UVM_migration, false, true, false},
    [PASTA_CUPTI_UVM_DTOH] = {PASTA_EVENT_uvm_migration, PASTA_UVM_migration, true, false, false},
    [PASTA_CUPTI_UVM_CPU_FAULTS] = {PASTA_EVENT_uvm_fault, PASTA_UVM_cpu_fault, false, false, true},
    [PASTA_CUPTI_UVM_GPU_FAULT] = {PASTA_EVENT_uvm_fault, PASTA_UVM_gpu_fault, true, false, true},
    [PASTA_CUPTI_UVM_THRASHING] = {PASTA_EVENT_uvm_thrashing, PASTA_UVM_thrashing, false, false, false},
    [PASTA_CUPTI_UVM_THROTTLING] = {PASTA_EVENT_uvm_thrashing, PASTA_UVM_throttling, false, false, false},
    [PASTA_CUPTI_UVM_REMOTE_MAP] = {PASTA_EVENT_uvm_thrashing, PASTA_UVM_remote_map, true, true, false},
    [PASTA_CUPTI_UVM_DTOD] = {PASTA_EVENT_uvm_migration, PASTA_UVM_migration, true, true, false},
};

static void on_uvm(const pasta_cupti_uvm *u) {
    enum { ROWS = sizeof uvm_rows / sizeof *uvm_rows };
    if (u->what >= ROWS || !uvm_rows[u->what].kind) return;
    int16_t from = uvm_rows[u->what].from_device ? (int16_t)u->source : PASTA_NO_DEVICE;
    int16_t to = uvm_rows[u->what].to_device ? (int16_t)u->destination : PASTA_NO_DEVICE;
    pasta_uvm_activity *e = pasta_begin(uvm_rows[u->what].kind, PASTA_SLOTS(pasta_uvm_activity),
                                        to == PASTA_NO_DEVICE ? from : to, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!e) return;
    e->address = u->address;
    /* a fault of the host's has the address of its instruction as `value` */
    if (!uvm_rows[u->what].is_fault) e->bytes = u->value;
    else e->count = uvm_rows[u->what].from_device ? (uint32_t)u->value : 1;
    e->start = pasta_cupti_time(u->start);
    if (u->end) e->end = pasta_cupti_time(u->end);
    e->cause = uvm_rows[u->what].cause;
    e->vendor_flags = u->flags;
    e->source = from;
    e->destination = to;
    pasta_publish(e);
}

/* ---- buffers ---- */

void pasta_cupti_read_buffer(uint64_t context, uint32_t stream, uint8_t *buffer, uint64_t valid) {
    uint64_t dropped = 0;
    void *record = NULL;
    while (valid && pasta_cupti.next_record(buffer, valid, &record) == 0 && record)
        switch (*(const uint32_t *)record) {
        case PASTA_CUPTI_KERNEL: on_kernel(record); break;
        case PASTA_CUPTI_COPY: on_copy(record); break;
        case PASTA_CUPTI_PEER_COPY: on_peer_copy(record); break;
        case PASTA_CUPTI_SET: on_set(record); break;
        case PASTA_CUPTI_DEVICE: on_device(record); break;
        case PASTA_CUPTI_OVERHEAD: on_overhead(record); break;
        case PASTA_CUPTI_UVM: on_uvm(record); break;
        default: break;
        }
    if (pasta_cupti.dropped(context, stream, &dropped) == 0) seen.dropped += dropped;
}

void pasta_cupti_finish_records(void) {
    if (seen.dropped)
        pasta_say("CUPTI lost %llu records: the device times of as many kernels and copies are missing",
                  (unsigned long long)seen.dropped);
    if (seen.replaced)
        pasta_say("%llu kernels and copies ended after too many later ones were submitted: their device times are missing",
                  (unsigned long long)seen.replaced);
    if (seen.unknown)
        pasta_log("%s: %llu kernels and copies were recorded from their records alone", PASTA_CUPTI_SOURCE,
                  (unsigned long long)seen.unknown);
    pasta_clock_error *e = PASTA_BEGIN(clock_error, PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!e) return;
    e->observed = seen.early;
    e->work = seen.work;
    pasta_publish(e);
}
