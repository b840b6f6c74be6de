/* Callbacks of driver calls: each fills one record, as the Sanitizer's callbacks do.
 *
 * Calls of the CUDA runtime appear as the driver calls that it makes.  Captured work is not work yet.
 */
#include <string.h>

#include "cupti_source.h"

typedef struct row row;
typedef void handler(const pasta_cupti_call *call, const row *row, const uint64_t *arguments);
struct row {
    handler *handle;
    uint8_t what;    /* a PASTA_COPY_*, PASTA_MEMORY_*, size or HAS_EXTRA, as the handler takes it */
    bool async;
    bool per_thread; /* stream 0 is the default stream of the thread */
};

enum { HAS_EXTRA = 1 }; /* `what` of a launch; cooperative ones have no such argument */

/* Of the call that this thread is in. */
static _Thread_local struct {
    uint32_t correlation;
    uint64_t began;
    pasta_nv_work work;
} here;

static bool entering(const pasta_cupti_call *c) { return c->api.site != PASTA_NV_API_EXIT; }
static bool succeeded(const pasta_cupti_call *c) { return !entering(c) && *c->api.result == 0; }

enum { PER_THREAD_STREAM = 2, LEGACY_STREAM = 1 };
static uint64_t stream_of(const row *r, uint64_t handle) {
    if (handle == LEGACY_STREAM) return 0;
    return !handle && r->per_thread ? PER_THREAD_STREAM : handle;
}

/* ---- captures ---- */

static uint32_t captures;

static void on_capture(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    (void)a;
    if (entering(c)) return;
    if (r->what && *c->api.result == 0) __atomic_fetch_add(&captures, 1, __ATOMIC_RELAXED);
    if (r->what || !__atomic_load_n(&captures, __ATOMIC_RELAXED)) return;
    __atomic_fetch_sub(&captures, 1, __ATOMIC_RELAXED);
}

static bool is_captured(uint64_t stream) {
    int32_t status = 0;
    if (PASTA_LIKELY(!__atomic_load_n(&captures, __ATOMIC_RELAXED)) || !pasta_cuda.is_capturing) return false;
    return pasta_cuda.is_capturing(stream, &status) == 0 && status != 0;
}

/* ---- submitted work ---- */

static pasta_nv_work work_of(const pasta_cupti_call *c, uint64_t stream) {
    return (pasta_nv_work){.at = pasta_nv_place_here(c->api.context), .correlation = pasta_next_correlation(),
                           .stream = stream, .node = PASTA_ABSENT_U64, .thread = pasta_thread(),
                           .shared = PASTA_ABSENT_U32};
}

/* `time`: of the record; 0: it was not published, and no results will be. */
static void submitted(const pasta_cupti_call *c, pasta_cupti_kind kind, const pasta_nv_work *w, uint64_t time) {
    pasta_cupti_submitted s = {time ? kind : PASTA_CUPTI_NOTHING, *w};
    s.work.time = time;
    pasta_cupti_put(c->correlation, &s);
}

/* ---- launches ---- */

enum { SHARED_SIZE = 1, LOCAL_SIZE = 3, REGISTERS = 4 }; /* attributes of functions */

static uint32_t attribute(int32_t attribute, uint64_t function) {
    int32_t value;
    uint64_t of_kernel;
    if (!pasta_cuda.function_attribute) return PASTA_ABSENT_U32;
    if (pasta_cuda.function_attribute(&value, attribute, function) == 0) return (uint32_t)value;
    if (!pasta_cuda.kernel_function || pasta_cuda.kernel_function(&of_kernel, function) != 0) return PASTA_ABSENT_U32;
    return pasta_cuda.function_attribute(&value, attribute, of_kernel) == 0 ? (uint32_t)value : PASTA_ABSENT_U32;
}

static pasta_nv_function look_up(const pasta_nv_launch *launch) {
    pasta_nv_function f = PASTA_NV_UNKNOWN;
    const char *name = launch->name;
    if (!name && pasta_cuda.function_name && pasta_cuda.function_name(&name, launch->function) != 0) name = NULL;
    f.name = pasta_intern_z(name);
    uint32_t registers = attribute(REGISTERS, launch->function);
    f.registers = registers < PASTA_ABSENT_U16 ? (uint16_t)registers : PASTA_ABSENT_U16;
    f.shared_static = attribute(SHARED_SIZE, launch->function);
    f.local = attribute(LOCAL_SIZE, launch->function);
    return f;
}

typedef pasta_flags decision(const pasta_kernel_launch *launch);

static void launch(const pasta_cupti_call *c, const pasta_nv_launch *l, uint64_t stream, uint32_t shared,
                   const pasta_cupti_arguments *arguments) {
    if (is_captured(stream)) return;
    pasta_nv_function f = pasta_nv_function_of(l, look_up); /* slow, so before the record is reserved */
    pasta_nv_work w = work_of(c, stream);
    w.ordinal = pasta_next_launch();
    w.shared = shared;
    bool by_launch = pasta_cupti_samples_by_launch(), counts = pasta_cupti_counters_on();
    bool selected = (by_launch || counts) && pasta_probe_selects(f.name, l->name);
    /* waiting invalidates captures */
    if (pasta_cupti_counters_wait() && __atomic_load_n(&captures, __ATOMIC_RELAXED)) selected = false;
    decision *decide = counts ? pasta_cupti_counters_decide : pasta_cupti_samples_decide; /* never both */
    uint64_t time = pasta_nv_record_launch(l, &f, &w, selected ? decide : NULL);
    submitted(c, PASTA_CUPTI_A_LAUNCH, &w, time);
    if (by_launch) pasta_cupti_samples_launching(c->api.context);
    if (counts) pasta_cupti_counters_launching(c->api.context, arguments);
    if (!time) return;
    here.correlation = c->correlation;
    here.work = w;
    here.work.time = time;
}

static void launched(const pasta_cupti_call *c) {
    uint64_t ns = pasta_cupti_counters_launched(succeeded(c));
    if (here.correlation != c->correlation) return; /* captured, not recorded, or begun before the subscription */
    here.correlation = 0;
    if (succeeded(c)) pasta_nv_record_return(&here.work);
    else pasta_cupti_forget(c->correlation);
    if (ns) pasta_cupti_complete_counted(c->correlation, &here.work, ns);
}

static void on_launch(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    const pasta_cupti_launch *p = (const void *)a;
    if (!entering(c)) {
        launched(c);
        return;
    }
    pasta_cupti_prepare(c->correlation);
    pasta_nv_launch l = {.context = c->api.context, .function = p->function, .name = c->api.symbol};
    memcpy(l.grid, p->grid, sizeof l.grid);
    memcpy(l.block, p->block, sizeof l.block);
    pasta_cupti_arguments arguments = {p->function, p->parameters, r->what == HAS_EXTRA ? p->extra : NULL};
    launch(c, &l, stream_of(r, p->stream), p->shared, &arguments);
}

static void on_launch_ex(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    const pasta_cupti_launch_ex *p = (const void *)a;
    if (!entering(c)) {
        launched(c);
        return;
    }
    pasta_cupti_prepare(c->correlation);
    const pasta_cupti_config *config = p->config;
    if (!config) return;
    pasta_nv_launch l = {.context = c->api.context, .function = p->function, .name = c->api.symbol};
    memcpy(l.grid, config->grid, sizeof l.grid);
    memcpy(l.block, config->block, sizeof l.block);
    for (uint32_t i = 0; config->attributes && i < config->count; i++)
        if (config->attributes[i].id == PASTA_CUPTI_CLUSTER) memcpy(l.cluster, config->attributes[i].value, sizeof l.cluster);
    pasta_cupti_arguments arguments = {p->function, p->parameters, p->extra};
    launch(c, &l, stream_of(r, config->stream), config->shared, &arguments);
}

static void on_graph(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    uint64_t stream = stream_of(r, a[1]);
    if (entering(c)) {
        if (is_captured(stream)) return;
        if (pasta_cupti_samples_by_launch()) pasta_cupti_samples_launching(c->api.context); /* not of its nodes */
        pasta_cupti_counters_launching(c->api.context, NULL);
        pasta_nv_work w = work_of(c, stream);
        uint64_t time = pasta_nv_record_graph(true, a[0], PASTA_ABSENT_U64, false, &w);
        submitted(c, PASTA_CUPTI_A_GRAPH, &w, time);
        if (!time) return;
        here.correlation = c->correlation;
        here.work = w;
        return;
    }
    pasta_cupti_counters_launched(succeeded(c));
    if (here.correlation == c->correlation) {
        here.correlation = 0;
        if (*c->api.result != 0) pasta_cupti_forget(c->correlation);
        pasta_nv_record_graph(false, a[0], PASTA_ABSENT_U64, false, &here.work);
    }
}

/* ---- copies ---- */

typedef struct side {
    uint64_t address;
    bool is_host, by_address; /* by_address: determined by the address */
} side;

static bool on_host(side s) {
    pasta_nv_allocation a;
    if (!s.by_address) return s.is_host;
    return !pasta_nv_allocation_at(s.address, &a) || a.memory == PASTA_MEMORY_pinned;
}

static void copy(const pasta_cupti_call *c, const row *r, pasta_nv_memcpy m, side to, side from, uint64_t handle) {
    uint64_t stream = stream_of(r, handle);
    if (is_captured(stream)) return;
    bool to_host = on_host(to), from_host = on_host(from);
    m.source = from.address;
    m.destination = to.address;
    m.async = r->async;
    m.direction = to_host ? (from_host ? PASTA_COPY_host_to_host : PASTA_NV_DEVICE_TO_HOST)
                          : (from_host ? PASTA_NV_HOST_TO_DEVICE : PASTA_NV_DEVICE_TO_DEVICE);
    if (!m.source_context) m.source_context = c->api.context;
    if (!m.destination_context) m.destination_context = c->api.context;
    m.destination_stream = stream;
    pasta_nv_work w = work_of(c, stream);
    if (r->async) w.flags = PASTA_FLAG_ASYNC;
    submitted(c, PASTA_CUPTI_A_COPY, &w, pasta_nv_record_copy(&m, &w));
}

static pasta_nv_memcpy flat(uint64_t bytes) {
    return (pasta_nv_memcpy){.bytes = bytes, .width = bytes, .height = 1, .depth = 1, .source_pitch = bytes,
                             .destination_pitch = bytes};
}

/* destination, source, bytes [, stream] */
static void on_copy(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    bool either = !r->what, to_host = r->what == PASTA_COPY_device_to_host, from_host = r->what == PASTA_COPY_host_to_device;
    if (!entering(c)) return;
    copy(c, r, flat(a[2]), (side){a[0], to_host, either}, (side){a[1], from_host, either}, r->async ? a[3] : 0);
}

/* destination, its context, source, its context, bytes [, stream] */
static void on_peer_copy(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    pasta_nv_memcpy m = flat(a[4]);
    if (!entering(c)) return;
    m.destination_context = a[1];
    m.source_context = a[3];
    copy(c, r, m, (side){a[0], false, false}, (side){a[2], false, false}, r->async ? a[5] : 0);
}

/* array, offset, source, bytes [, stream]; `what`: where the source is */
static void on_copy_to_array(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    if (!entering(c)) return;
    copy(c, r, flat(a[3]), (side){a[0], false, false}, (side){a[2], r->what == PASTA_COPY_host_to_device, false},
         r->async ? a[4] : 0);
}

/* destination, array, offset, bytes [, stream] */
static void on_copy_from_array(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    if (!entering(c)) return;
    copy(c, r, flat(a[3]), (side){a[0], r->what == PASTA_COPY_device_to_host, false}, (side){a[1], false, false},
         r->async ? a[4] : 0);
}

/* array, offset, array, offset, bytes */
static void on_copy_of_array(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    if (entering(c)) copy(c, r, flat(a[4]), (side){a[0], false, false}, (side){a[2], false, false}, 0);
}

static side side_of(uint32_t type, uint64_t host, uint64_t device, uint64_t array, uint64_t offset) {
    switch (type) {
    case PASTA_CUPTI_HOST: return (side){host + offset, true, false};
    case PASTA_CUPTI_ARRAY: return (side){array, false, false};
    case PASTA_CUPTI_UNIFIED: return (side){device + offset, false, true};
    default: return (side){device + offset, false, false};
    }
}

/* description [, stream] */
static void on_copy_2d(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    const pasta_cupti_copy_2d *p = (const void *)(uintptr_t)a[0];
    if (!entering(c) || !p) return;
    pasta_nv_memcpy m = {.bytes = p->width * p->height, .width = p->width, .height = p->height, .depth = 1,
                         .source_pitch = p->source_pitch, .destination_pitch = p->destination_pitch};
    side from = side_of(p->source_type, p->source_host, p->source_device, p->source_array,
                        p->source_y * p->source_pitch + p->source_x);
    side to = side_of(p->destination_type, p->destination_host, p->destination_device, p->destination_array,
                      p->destination_y * p->destination_pitch + p->destination_x);
    copy(c, r, m, to, from, r->async ? a[1] : 0);
}

/* The same; `what`: between peers, whose contexts it names. */
static void on_copy_3d(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    const pasta_cupti_copy_3d *p = (const void *)(uintptr_t)a[0];
    if (!entering(c) || !p) return;
    pasta_nv_memcpy m = {.bytes = p->width * p->height * p->depth, .width = p->width, .height = p->height,
                         .depth = p->depth, .source_pitch = p->source_pitch, .destination_pitch = p->destination_pitch};
    if (r->what) m.source_context = p->source_reserved, m.destination_context = p->destination_reserved;
    side from = side_of(p->source_type, p->source_host, p->source_device, p->source_array,
                        (p->source_z * p->source_height + p->source_y) * p->source_pitch + p->source_x);
    side to = side_of(p->destination_type, p->destination_host, p->destination_device, p->destination_array,
                      (p->destination_z * p->destination_height + p->destination_y) * p->destination_pitch +
                          p->destination_x);
    copy(c, r, m, to, from, r->async ? a[1] : 0);
}

/* ---- sets; `what`: bytes of an element ---- */

static uint32_t element_of(const uint64_t *argument, uint8_t bytes) {
    uint32_t value = 0;
    memcpy(&value, argument, bytes);
    return value;
}

static void set(const pasta_cupti_call *c, const row *r, pasta_nv_memset m, uint64_t handle) {
    uint64_t stream = stream_of(r, handle);
    if (!entering(c) || is_captured(stream)) return;
    m.context = c->api.context;
    m.element = r->what;
    m.async = r->async;
    pasta_nv_work w = work_of(c, stream);
    if (r->async) w.flags = PASTA_FLAG_ASYNC;
    submitted(c, PASTA_CUPTI_A_COPY, &w, pasta_nv_record_set(&m, &w));
}

/* address, value, elements [, stream] */
static void on_set(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    set(c, r, (pasta_nv_memset){.address = a[0], .value = element_of(&a[1], r->what), .width = a[2], .height = 1},
        r->async ? a[3] : 0);
}

/* address, pitch, value, elements, rows [, stream] */
static void on_set_2d(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    set(c, r, (pasta_nv_memset){.address = a[0], .pitch = a[1], .value = element_of(&a[2], r->what), .width = a[3],
                                .height = a[4]},
        r->async ? a[5] : 0);
}

/* ---- memory; `what`: its kind.  Recorded when it can be used: allocations at the return, frees at the call. ---- */

static uint64_t result_of(uint64_t pointer) { return pointer ? *(const uint64_t *)(uintptr_t)pointer : 0; }

static pasta_nv_memory memory_of(const pasta_cupti_call *c, uint64_t address, uint64_t bytes, uint64_t stream) {
    return (pasta_nv_memory){.address = address, .bytes = bytes, .context = c->api.context,
                             .device = pasta_nv_place_here(c->api.context).device, .stream = stream};
}

static void allocated(const pasta_cupti_call *c, const row *r, uint64_t address, uint64_t bytes, uint64_t stream) {
    if (!succeeded(c) || !address) return;
    pasta_nv_memory m = memory_of(c, address, bytes, stream);
    pasta_nv_on_alloc(&m, r->what, r->async ? PASTA_FLAG_ASYNC : 0);
}

/* &address, bytes */
static void on_alloc(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    if (succeeded(c)) allocated(c, r, result_of(a[0]), a[1], PASTA_NO_STREAM);
}

/* &address, &pitch, width, rows */
static void on_alloc_pitch(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    if (succeeded(c)) allocated(c, r, result_of(a[0]), result_of(a[1]) * a[3], PASTA_NO_STREAM);
}

/* &address, bytes, stream */
static void on_alloc_async(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    if (succeeded(c) && !is_captured(stream_of(r, a[2]))) allocated(c, r, result_of(a[0]), a[1], stream_of(r, a[2]));
}

/* &address, bytes, pool, stream */
static void on_alloc_from_pool(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    if (succeeded(c) && !is_captured(stream_of(r, a[3]))) allocated(c, r, result_of(a[0]), a[1], stream_of(r, a[3]));
}

/* address, bytes */
static void on_register(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    allocated(c, r, a[0], a[1], PASTA_NO_STREAM);
}

/* &address */
static void on_open(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    uint64_t base, bytes = 0;
    if (!succeeded(c)) return;
    if (!pasta_cuda.range || pasta_cuda.range(&base, &bytes, result_of(a[0])) != 0) bytes = 0;
    allocated(c, r, result_of(a[0]), bytes, PASTA_NO_STREAM);
}

/* address */
static void on_free(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    if (!entering(c) || !a[0]) return;
    pasta_nv_memory m = memory_of(c, a[0], 0, PASTA_NO_STREAM);
    pasta_nv_on_free(&m, r->what ? r->what : PASTA_ABSENT_U32, 0);
}

/* address, stream */
static void on_free_async(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    uint64_t stream = stream_of(r, a[1]);
    if (!entering(c) || is_captured(stream)) return;
    pasta_nv_memory m = memory_of(c, a[0], 0, stream);
    pasta_nv_on_free(&m, PASTA_ABSENT_U32, PASTA_FLAG_ASYNC);
}

/* &address, bytes; address, bytes */
static void on_reserve(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    if (r->what && succeeded(c)) pasta_nv_on_range(true, &(pasta_nv_range){result_of(a[0]), a[1]});
    if (!r->what && entering(c)) pasta_nv_on_range(false, &(pasta_nv_range){a[0], a[1]});
}

/* address, bytes: of any number of mappings */
static void on_unmap(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    pasta_nv_allocation found;
    (void)r;
    while (entering(c) && pasta_nv_allocation_in(a[0], a[1], &found)) {
        pasta_nv_memory m = memory_of(c, found.address, found.bytes, PASTA_NO_STREAM);
        pasta_nv_on_free(&m, found.memory, 0);
    }
}

/* &array; array */
static void on_array(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    if (r->what && succeeded(c)) pasta_nv_on_array(true, &(pasta_nv_array){c->api.context, result_of(a[0])});
    if (!r->what && entering(c)) pasta_nv_on_array(false, &(pasta_nv_array){c->api.context, a[0]});
}

/* &address, import, description */
static void on_import(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    const uint64_t *description = (const void *)(uintptr_t)a[2]; /* offset, bytes */
    (void)r;
    if (!succeeded(c) || !description) return;
    pasta_nv_on_external(PASTA_NV_EXTERNAL_MAPPED,
                         &(pasta_nv_external){c->api.context, pasta_nv_place_here(c->api.context).device, a[1],
                                              result_of(a[0]), description[1]});
}

/* ---- waits and events ---- */

/* `what`: a PASTA_SYNC_* */
static void on_wait(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    if (entering(c)) {
        here.began = pasta_now();
        return;
    }
    uint64_t context = c->api.context, stream = PASTA_NO_STREAM, handle = context;
    if (r->what == PASTA_SYNC_stream) handle = stream = stream_of(r, a[0]);
    if (r->what == PASTA_SYNC_event) handle = a[0];
    if (r->what == PASTA_SYNC_context && r->async) handle = context = a[0]; /* the one that it names */
    uint64_t duration = here.began ? pasta_now() - here.began : PASTA_ABSENT_U64;
    here.began = 0;
    pasta_nv_record_wait(handle, r->what, context, stream, duration);
}

static void on_event_create(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    (void)r;
    if (succeeded(c)) pasta_nv_record_event(PASTA_EVENT_event_create, result_of(a[0]), c->api.context, PASTA_NO_STREAM);
}

static void on_event_destroy(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    (void)r;
    if (entering(c)) pasta_nv_record_event(PASTA_EVENT_event_destroy, a[0], c->api.context, PASTA_NO_STREAM);
}

/* event, stream */
static void on_event_record(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    uint64_t stream = stream_of(r, a[1]);
    if (entering(c) && !is_captured(stream)) pasta_nv_record_event(PASTA_EVENT_event_record, a[0], c->api.context, stream);
}

/* stream, event */
static void on_event_wait(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    uint64_t stream = stream_of(r, a[0]);
    if (entering(c) && !is_captured(stream)) pasta_nv_record_event(PASTA_EVENT_event_wait, a[1], c->api.context, stream);
}

/* ---- managed memory, and the profiler's switch ---- */

/* stream, address, bytes, flags */
static void on_attach(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    if (!entering(c)) return;
    pasta_nv_place at = pasta_nv_place_here(c->api.context);
    pasta_uvm *e = PASTA_BEGIN_AS(uvm_attach, uvm, at.device, at.context, stream_of(r, a[0]));
    if (!e) return;
    e->address = a[1];
    if (a[2]) e->bytes = a[2];
    e->advice = element_of(&a[3], sizeof e->advice);
    pasta_publish(e);
}

/* ---- modules ---- */

static void on_module_call(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    (void)r, (void)a;
    pasta_cupti_samples_module_call(entering(c));
}

/* ---- dispatch ---- */

#define CALL(name, ...) [PASTA_CUPTI_cu##name] = {__VA_ARGS__}
/* With its variant for the default stream of a thread. */
#define BOTH(name, suffix, handler, what, async) \
    CALL(name, handler, what, async, false), CALL(name##suffix, handler, what, async, true)

static void on_other(const pasta_cupti_call *c, const row *r, const uint64_t *a) {
    (void)c, (void)r, (void)a;
}

static const row rows[PASTA_CUPTI_MAX_CALL] = {
    BOTH(LaunchKernel, _ptsz, on_launch, HAS_EXTRA, true),
    BOTH(LaunchCooperativeKernel, _ptsz, on_launch, 0, true),
    BOTH(LaunchKernelEx, _ptsz, on_launch_ex, 0, true),
    BOTH(GraphLaunch, _ptsz, on_graph, 0, true),
    BOTH(StreamBeginCapture, _ptsz, on_capture, true, false),
    BOTH(StreamBeginCapture_v2, _ptsz, on_capture, true, false),
    BOTH(StreamBeginCaptureToGraph, _ptsz, on_capture, true, false),
    BOTH(StreamEndCapture, _ptsz, on_capture, false, false),
    BOTH(MemcpyHtoD_v2, _ptds, on_copy, PASTA_COPY_host_to_device, false),
    BOTH(MemcpyHtoDAsync_v2, _ptsz, on_copy, PASTA_COPY_host_to_device, true),
    BOTH(MemcpyDtoH_v2, _ptds, on_copy, PASTA_COPY_device_to_host, false),
    BOTH(MemcpyDtoHAsync_v2, _ptsz, on_copy, PASTA_COPY_device_to_host, true),
    BOTH(MemcpyDtoD_v2, _ptds, on_copy, PASTA_COPY_device_to_device, false),
    BOTH(MemcpyDtoDAsync_v2, _ptsz, on_copy, PASTA_COPY_device_to_device, true),
    BOTH(Memcpy, _ptds, on_copy, 0, false),
    BOTH(MemcpyAsync, _ptsz, on_copy, 0, true),
    BOTH(MemcpyPeer, _ptds, on_peer_copy, 0, false),
    BOTH(MemcpyPeerAsync, _ptsz, on_peer_copy, 0, true),
    BOTH(MemcpyDtoA_v2, _ptds, on_copy_to_array, PASTA_COPY_device_to_device, false),
    BOTH(MemcpyHtoA_v2, _ptds, on_copy_to_array, PASTA_COPY_host_to_device, false),
    BOTH(MemcpyHtoAAsync_v2, _ptsz, on_copy_to_array, PASTA_COPY_host_to_device, true),
    BOTH(MemcpyAtoD_v2, _ptds, on_copy_from_array, PASTA_COPY_device_to_device, false),
    BOTH(MemcpyAtoH_v2, _ptds, on_copy_from_array, PASTA_COPY_device_to_host, false),
    BOTH(MemcpyAtoHAsync_v2, _ptsz, on_copy_from_array, PASTA_COPY_device_to_host, true),
    BOTH(MemcpyAtoA_v2, _ptds, on_copy_of_array, 0, false),
    BOTH(Memcpy2D_v2, _ptds, on_copy_2d, 0, false),
    BOTH(Memcpy2DUnaligned_v2, _ptds, on_copy_2d, 0, false),
    BOTH(Memcpy2DAsync_v2, _ptsz, on_copy_2d, 0, true),
    BOTH(Memcpy3D_v2, _ptds, on_copy_3d, false, false),
    BOTH(Memcpy3DAsync_v2, _ptsz, on_copy_3d, false, true),
    BOTH(Memcpy3DPeer, _ptds, on_copy_3d, true, false),
    BOTH(Memcpy3DPeerAsync, _ptsz, on_copy_3d, true, true),
    BOTH(MemsetD8_v2, _ptds, on_set, 1, false),
    BOTH(MemsetD16_v2, _ptds, on_set, 2, false),
    BOTH(MemsetD32_v2, _ptds, on_set, 4, false),
    BOTH(MemsetD2D8_v2, _ptds, on_set_2d, 1, false),
    BOTH(MemsetD2D16_v2, _ptds, on_set_2d, 2, false),
    BOTH(MemsetD2D32_v2, _ptds, on_set_2d, 4, false),
    BOTH(MemsetD8Async, _ptsz, on_set, 1, true),
    BOTH(MemsetD16Async, _ptsz, on_set, 2, true),
    BOTH(MemsetD32Async, _ptsz, on_set, 4, true),
    BOTH(MemsetD2D8Async, _ptsz, on_set_2d, 1, true),
    BOTH(MemsetD2D16Async, _ptsz, on_set_2d, 2, true),
    BOTH(MemsetD2D32Async, _ptsz, on_set_2d, 4, true),
    CALL(MemAlloc_v2, on_alloc, PASTA_MEMORY_device, false, false),
    CALL(MemAllocPitch_v2, on_alloc_pitch, PASTA_MEMORY_device, false, false),
    CALL(MemAllocManaged, on_alloc, PASTA_MEMORY_managed, false, false),
    CALL(MemAllocHost_v2, on_alloc, PASTA_MEMORY_pinned, false, false),
    CALL(MemHostAlloc, on_alloc, PASTA_MEMORY_pinned, false, false),
    CALL(MemHostRegister, on_register, PASTA_MEMORY_pinned, false, false),
    CALL(MemHostRegister_v2, on_register, PASTA_MEMORY_pinned, false, false),
    CALL(MemMap, on_register, PASTA_MEMORY_device, false, false),
    CALL(MemUnmap, on_unmap, 0, false, false),
    BOTH(MemAllocAsync, _ptsz, on_alloc_async, PASTA_MEMORY_pool, true),
    BOTH(MemAllocFromPoolAsync, _ptsz, on_alloc_from_pool, PASTA_MEMORY_pool, true),
    CALL(MemFree_v2, on_free, 0, false, false),
    CALL(MemFreeHost, on_free, PASTA_MEMORY_pinned, false, false),
    CALL(MemHostUnregister, on_free, PASTA_MEMORY_pinned, false, false),
    BOTH(MemFreeAsync, _ptsz, on_free_async, 0, true),
    CALL(MemAddressReserve, on_reserve, true, false, false),
    CALL(MemAddressFree, on_reserve, false, false, false),
    CALL(ArrayCreate_v2, on_array, true, false, false),
    CALL(Array3DCreate_v2, on_array, true, false, false),
    CALL(ArrayDestroy, on_array, false, false, false),
    CALL(IpcOpenMemHandle, on_open, PASTA_MEMORY_external, false, false),
    CALL(IpcOpenMemHandle_v2, on_open, PASTA_MEMORY_external, false, false),
    CALL(IpcCloseMemHandle, on_free, PASTA_MEMORY_external, false, false),
    CALL(ExternalMemoryGetMappedBuffer, on_import, 0, false, false),
    CALL(CtxSynchronize, on_wait, PASTA_SYNC_context, false, false),
    CALL(CtxSynchronize_v2, on_wait, PASTA_SYNC_context, true, false),
    BOTH(StreamSynchronize, _ptsz, on_wait, PASTA_SYNC_stream, false),
    CALL(EventSynchronize, on_wait, PASTA_SYNC_event, false, false),
    CALL(EventCreate, on_event_create, 0, false, false),
    CALL(EventDestroy, on_event_destroy, 0, false, false),
    CALL(EventDestroy_v2, on_event_destroy, 0, false, false),
    BOTH(EventRecord, _ptsz, on_event_record, 0, true),
    BOTH(EventRecordWithFlags, _ptsz, on_event_record, 0, true),
    BOTH(StreamWaitEvent, _ptsz, on_event_wait, 0, true),
    BOTH(StreamAttachMemAsync, _ptsz, on_attach, 0, true),
    CALL(ModuleLoad, on_module_call, 0, false, false),
    CALL(ModuleLoadData, on_module_call, 0, false, false),
    CALL(ModuleLoadDataEx, on_module_call, 0, false, false),
    CALL(ModuleLoadFatBinary, on_module_call, 0, false, false),
    CALL(ModuleUnload, on_module_call, 0, false, false),
    CALL(LibraryLoadData, on_module_call, 0, false, false),
    CALL(LibraryLoadFromFile, on_module_call, 0, false, false),
    CALL(LibraryUnload, on_module_call, 0, false, false),
    CALL(LibraryGetModule, on_module_call, 0, false, false),
    CALL(ModuleGetFunction, on_module_call, 0, false, false), /* these load lazily */
    CALL(LibraryGetKernel, on_module_call, 0, false, false),
    CALL(KernelGetFunction, on_module_call, 0, false, false),
    CALL(FuncLoad, on_module_call, 0, false, false),
    CALL(MemAdvise, on_other, 0, false, false),
    CALL(MemAdvise_v2, on_other, 0, false, false),
    BOTH(MemPrefetchAsync, _ptsz, on_other, 0, true),
    BOTH(MemPrefetchAsync_v2, _ptsz, on_other, 0, true),
    CALL(ProfilerStart, on_other, 0, false, false),
    CALL(ProfilerStop, on_other, 0, false, false),
};

bool pasta_cupti_wants_call(uint32_t id) { return id < PASTA_CUPTI_MAX_CALL && rows[id].handle; }

void pasta_cupti_on_call(uint32_t id, const pasta_cupti_call *c) {
    if (pasta_cupti_instructions_waits()) return;
    if (!pasta_cupti_wants_call(id)) return;
    const row *r = &rows[id];
    if (r->handle == on_other) pasta_nv_on_driver_call(id, &c->api); /* as the Sanitizer reports it */
    else r->handle(c, r, c->api.arguments);
}
