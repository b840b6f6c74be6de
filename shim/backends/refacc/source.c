/* The reference accelerator as an event source: its tools callbacks, one small function each.
 *
 * librefacc calls ra_tools_initialize of the library that REFACC_INJECTION_PATH names inside its
 * first initialization, and again in the child of a fork that uses it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "source.h"

PASTA_EXPORT int ra_tools_initialize(const ra_tools_api *api);

static uint32_t recorded_generation;
/* Counts module unloads: function handles are reused, which voids cached names. */
static uint32_t unloads;

/* ---- contexts: handle to number, in order of creation ---- */

enum { MAX_CONTEXTS = 4096 };
static uint64_t contexts[MAX_CONTEXTS]; /* 0: destroyed */
static uint32_t context_count;

static uint16_t context_created(uint64_t handle) {
    uint32_t number = __atomic_fetch_add(&context_count, 1, __ATOMIC_RELAXED);
    if (number >= MAX_CONTEXTS) return PASTA_NO_CONTEXT;
    __atomic_store_n(&contexts[number], handle, __ATOMIC_RELEASE);
    return (uint16_t)number;
}

static uint16_t context_of(uint64_t handle) {
    uint32_t count = __atomic_load_n(&context_count, __ATOMIC_RELAXED);
    for (uint32_t i = count < MAX_CONTEXTS ? count : MAX_CONTEXTS; i-- > 0;)
        if (__atomic_load_n(&contexts[i], __ATOMIC_ACQUIRE) == handle) return (uint16_t)i;
    return PASTA_NO_CONTEXT;
}

/* ---- devices: each once in a process ---- */

static uint64_t devices; /* bits: published */

/* It has no limits of what is resident on a multiprocessor, no clock and no caches: those fields stay absent. */
static void on_device(const ra_context_data *d) {
    if (d->device < 0 || d->device >= 64 || d->size < sizeof *d) return;
    uint64_t bit = UINT64_C(1) << d->device;
    if (__atomic_fetch_or(&devices, bit, __ATOMIC_RELAXED) & bit) return;
    uint32_t name = pasta_intern_z(d->device_name);
    pasta_device *e = PASTA_BEGIN(device, d->device, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!e) return;
    e->name = name;
    e->uuid = e->architecture = PASTA_STRING_absent;
    e->multiprocessors = d->multiprocessors;
    e->warp = d->warp;
    e->shared_per_block = d->max_shared;
    e->memory = d->memory;
    pasta_publish(e);
}

static void on_context(ra_callback_id id, const ra_context_data *d) {
    bool created = id == RA_CALLBACK_CONTEXT_CREATED;
    if (created) on_device(d);
    uint16_t number = created ? context_created(d->context) : context_of(d->context);
    uint32_t name = pasta_intern_z(d->device_name);
    pasta_context *e = created ? PASTA_BEGIN_AS(context_create, context, d->device, number, PASTA_NO_STREAM)
                               : PASTA_BEGIN_AS(context_destroy, context, d->device, number, PASTA_NO_STREAM);
    if (!created && number != PASTA_NO_CONTEXT) __atomic_store_n(&contexts[number], 0, __ATOMIC_RELEASE);
    if (!e) return;
    e->handle = d->context;
    e->name = name;
    pasta_publish(e);
}

/* ---- streams, modules, memory ---- */

static void on_stream(ra_callback_id id, const ra_stream_data *d) {
    uint16_t context = context_of(d->context);
    pasta_stream *e = id == RA_CALLBACK_STREAM_CREATED
                          ? PASTA_BEGIN_AS(stream_create, stream, d->device, context, d->stream)
                          : PASTA_BEGIN_AS(stream_destroy, stream, d->device, context, d->stream);
    if (!e) return;
    e->handle = d->stream;
    e->priority = d->priority;
    pasta_publish(e);
}

static void on_module(ra_callback_id id, const ra_module_data *d) {
    uint16_t context = context_of(d->context);
    bool loaded = id == RA_CALLBACK_MODULE_LOADED;
    if (!loaded) __atomic_fetch_add(&unloads, 1, __ATOMIC_RELAXED);
    /* hashed before the record is reserved: the consumer waits for reserved records */
    uint64_t hash = loaded ? pasta_hash(d->image, d->bytes) : PASTA_ABSENT_U64;
    if (loaded) pasta_keep_image(hash, d->image, d->bytes);
    pasta_module *e = loaded ? PASTA_BEGIN_AS(module_load, module, d->device, context, PASTA_NO_STREAM)
                             : PASTA_BEGIN_AS(module_unload, module, d->device, context, PASTA_NO_STREAM);
    if (!e) return;
    e->handle = d->module;
    e->hash = hash;
    e->bytes = d->bytes;
    pasta_publish(e);
}

static uint32_t memory_kind(uint32_t kind) {
    switch (kind) {
    case RA_MEMORY_DEVICE: return PASTA_MEMORY_device;
    case RA_MEMORY_MANAGED: return PASTA_MEMORY_managed;
    case RA_MEMORY_PINNED: return PASTA_MEMORY_pinned;
    case RA_MEMORY_POOL: return PASTA_MEMORY_pool;
    default: return PASTA_ABSENT_U32;
    }
}

static void on_memory(ra_callback_id id, const ra_memory_data *d) {
    uint16_t context = context_of(d->context);
    uint64_t stream = d->asynchronous ? d->stream : PASTA_NO_STREAM;
    pasta_memory *e = id == RA_CALLBACK_MEMORY_ALLOCATED
                          ? PASTA_BEGIN_AS(memory_alloc, memory, d->device, context, stream)
                          : PASTA_BEGIN_AS(memory_free, memory, d->device, context, stream);
    if (!e) return;
    if (d->asynchronous) pasta_header_of(e)->flags = PASTA_FLAG_ASYNC;
    e->address = d->address;
    e->bytes = d->bytes;
    e->memory = memory_kind(d->kind);
    pasta_publish(e);
}

static void on_resource(ra_callback_id id, void *data) {
    switch (id) {
    case RA_CALLBACK_CONTEXT_CREATED:
    case RA_CALLBACK_CONTEXT_DESTROYED: on_context(id, data); return;
    case RA_CALLBACK_STREAM_CREATED:
    case RA_CALLBACK_STREAM_DESTROYED: on_stream(id, data); return;
    case RA_CALLBACK_MODULE_LOADED:
    case RA_CALLBACK_MODULE_UNLOADED: on_module(id, data); return;
    case RA_CALLBACK_MEMORY_ALLOCATED:
    case RA_CALLBACK_MEMORY_FREED: on_memory(id, data); return;
    default: return;
    }
}

/* Work whose record was not published: without a correlation, its completion is not either.  While profiling is
 * stopped only: a completion may come after a start. */
static void unrecorded(uint64_t *correlation) {
    if (!pasta_profiling_is_on()) *correlation = 0;
}

/* ---- launches ---- */

static uint32_t probed_kinds; /* bits 1 << RA_KIND_*; 0: accesses are not recorded */
static bool probes_need_order; /* of the accesses of different warps */
static bool probes_need_values;

static void sample_access(void *userdata, const ra_access *a) { pasta_refacc_sample_access((uintptr_t)userdata, a); }

static void record_and_sample(void *userdata, const ra_access *a) {
    sample_access(userdata, a);
    if (probed_kinds >> a->kind & 1) pasta_refacc_on_access(userdata, a);
}

static void hook(ra_launch_data *d, bool probed, bool sampled) {
    d->hook = !sampled ? pasta_refacc_on_access : probed ? record_and_sample : sample_access;
    d->hook_userdata = (void *)(uintptr_t)d->user[0];
    if (!sampled) d->hook_kinds = probed_kinds;
    if (!probed) return;
    if (probes_need_order) d->serial = 1;
    if (probes_need_values && d->size >= offsetof(ra_launch_data, hook_values) + sizeof d->hook_values) d->hook_values = 1;
}

static uint32_t name_of(const ra_launch_data *d) {
    enum { WAYS = 64 };
    static _Thread_local struct {
        uint64_t function;
        uint32_t generation, unloads, name;
    } cache[WAYS];
    uint32_t generation = pasta_generation(), now = __atomic_load_n(&unloads, __ATOMIC_RELAXED);
    /* functions are 24 bytes apart: nearly their number in the module */
    uint32_t way = (uint32_t)(d->function / 24 % WAYS);
    if (cache[way].function != d->function || cache[way].generation != generation || cache[way].unloads != now) {
        cache[way].name = pasta_intern_z(d->symbol);
        cache[way].function = d->function;
        cache[way].generation = generation;
        cache[way].unloads = now;
    }
    return cache[way].name;
}

static uint8_t launch_flags(const ra_launch_data *d) { return d->node ? PASTA_FLAG_GRAPH : 0; }

static void on_launch_begin(ra_launch_data *d) {
    d->user[0] = pasta_next_launch();
    d->user[1] = pasta_next_correlation();
    uint32_t name = name_of(d);
    bool selected = probed_kinds && pasta_probe_selects(name, d->symbol);
    pasta_kernel_launch *e = PASTA_BEGIN(kernel_launch, d->device, context_of(d->context), d->stream);
    if (!e) {
        unrecorded(&d->user[1]);
        return;
    }
    pasta_header_of(e)->flags = launch_flags(d);
    pasta_header_of(e)->correlation = d->user[1];
    e->name = name;
    memcpy(e->grid, d->grid, sizeof e->grid);
    memcpy(e->block, d->block, sizeof e->block);
    e->registers = (uint16_t)d->registers;
    e->shared_static = d->shared_static;
    e->shared_dynamic = d->shared_dynamic;
    e->local = d->local;
    e->ordinal = d->user[0];
    if (d->node) e->graph_node = d->node;
    if (d->cluster > 1) {
        e->cluster[0] = (uint16_t)d->cluster;
        e->cluster[1] = e->cluster[2] = 1;
    }
    e->entry_pc = d->entry_pc;
    e->function = d->function;
    e->module = d->module;
    pasta_probe_decision decision = {.probed = false};
    if (selected) decision = pasta_probe_takes(e);
    pasta_header_of(e)->flags |= pasta_probe_flags(decision);
    pasta_publish(e);
    bool sampled = pasta_refacc_sample(d->user[0]);
    if (decision.probed || sampled) hook(d, decision.probed, sampled);
    if (decision.probed) pasta_refacc_count(d->user[0], decision.shape);
}

static void on_launch_end(const ra_launch_data *d) {
    if (!pasta_probe_records_returns()) return;
    pasta_launch_end *e =
        PASTA_BEGIN_AS(kernel_launch_end, launch_end, d->device, context_of(d->context), d->stream);
    if (!e) return;
    pasta_header_of(e)->flags = launch_flags(d);
    pasta_header_of(e)->correlation = d->user[1];
    e->ordinal = d->user[0];
    pasta_publish(e);
}

static void on_launch_complete(const ra_launch_data *d) {
    pasta_refacc_counted(d->user[0]);
    pasta_refacc_sampled(d, context_of(d->context));
    pasta_kernel_complete *e = PASTA_BEGIN(kernel_complete, d->device, context_of(d->context), d->stream);
    if (!e) return;
    pasta_header_of(e)->flags = launch_flags(d);
    pasta_header_of(e)->correlation = d->user[1];
    e->ordinal = d->user[0];
    e->start = d->start;
    e->end = d->end;
    pasta_publish(e);
}

static void on_launch(ra_callback_id id, void *data) {
    if (id == RA_CALLBACK_LAUNCH_BEGIN) on_launch_begin(data);
    /* set at its begin; 0 where that came before the subscription */
    if (!((const ra_launch_data *)data)->user[1]) return;
    if (id == RA_CALLBACK_LAUNCH_END) on_launch_end(data);
    if (id == RA_CALLBACK_LAUNCH_COMPLETE) on_launch_complete(data);
}

static void on_graph(ra_callback_id id, void *data) {
    const ra_graph_data *d = data;
    if (id == RA_CALLBACK_GRAPH_NODE_LAUNCH) return; /* its launch, copy or set says all */
    bool begin = id == RA_CALLBACK_GRAPH_LAUNCH_BEGIN;
    uint16_t context = context_of(d->context);
    if (begin) *d->user = pasta_next_correlation();
    if (!*d->user) return;
    pasta_graph_launch *e = begin ? PASTA_BEGIN(graph_launch, d->device, context, d->stream)
                                  : PASTA_BEGIN_AS(graph_launch_end, graph_launch, d->device, context, d->stream);
    if (!e) return;
    pasta_header_of(e)->correlation = *d->user;
    e->graph = d->graph;
    e->launch_id = d->launch;
    e->upload = 0;
    pasta_publish(e);
}

/* ---- copies and sets ---- */

static uint8_t work_flags(uint32_t asynchronous, uint64_t node) {
    return (uint8_t)((asynchronous ? PASTA_FLAG_ASYNC : 0) | (node ? PASTA_FLAG_GRAPH : 0));
}

static uint32_t direction_of(int32_t source, int32_t destination) {
    if (source == RA_HOST) return destination == RA_HOST ? PASTA_COPY_host_to_host : PASTA_COPY_host_to_device;
    if (destination == RA_HOST) return PASTA_COPY_device_to_host;
    return source == destination ? PASTA_COPY_device_to_device : PASTA_COPY_peer_to_peer;
}

static void on_memcpy_begin(ra_memcpy_data *d) {
    d->user = pasta_next_correlation();
    pasta_memory_copy *e = PASTA_BEGIN(memory_copy, d->device, context_of(d->context), d->stream);
    if (!e) {
        unrecorded(&d->user);
        return;
    }
    pasta_header_of(e)->flags = work_flags(d->asynchronous, d->node);
    pasta_header_of(e)->correlation = d->user;
    e->source = d->source;
    e->destination = d->destination;
    e->bytes = d->width * d->height;
    e->width = d->width;
    e->height = d->height;
    e->depth = 1;
    e->source_pitch = d->source_pitch;
    e->destination_pitch = d->destination_pitch;
    if (d->node) e->graph_node = d->node;
    e->direction = direction_of(d->source_device, d->destination_device);
    e->source_device = (int16_t)d->source_device;
    e->destination_device = (int16_t)d->destination_device;
    pasta_publish(e);
}

static void on_memcpy_complete(const ra_memcpy_data *d) {
    pasta_copy_complete *e = PASTA_BEGIN(copy_complete, d->device, context_of(d->context), d->stream);
    if (!e) return;
    pasta_header_of(e)->flags = work_flags(d->asynchronous, d->node);
    pasta_header_of(e)->correlation = d->user;
    e->start = d->start;
    e->end = d->end;
    e->bytes = d->width * d->height;
    e->direction = direction_of(d->source_device, d->destination_device);
    pasta_publish(e);
}

static void on_memcpy(ra_callback_id id, void *data) {
    const ra_memcpy_data *d = data;
    if (id == RA_CALLBACK_MEMCPY) on_memcpy_begin(data);
    if (id == RA_CALLBACK_MEMCPY_COMPLETE && d->user) on_memcpy_complete(d);
}

static void on_memset_begin(ra_memset_data *d) {
    d->user = pasta_next_correlation();
    pasta_memory_set *e = PASTA_BEGIN(memory_set, d->device, context_of(d->context), d->stream);
    if (!e) {
        unrecorded(&d->user);
        return;
    }
    pasta_header_of(e)->flags = work_flags(d->asynchronous, d->node);
    pasta_header_of(e)->correlation = d->user;
    e->address = d->address;
    e->bytes = d->width * d->height * d->element;
    e->width = d->width;
    e->height = d->height;
    e->pitch = d->pitch;
    e->element = d->element;
    e->value = d->value;
    if (d->node) e->graph_node = d->node;
    pasta_publish(e);
}

static void on_memset_complete(const ra_memset_data *d) {
    pasta_copy_complete *e = PASTA_BEGIN(copy_complete, d->device, context_of(d->context), d->stream);
    if (!e) return;
    pasta_header_of(e)->flags = work_flags(d->asynchronous, d->node);
    pasta_header_of(e)->correlation = d->user;
    e->start = d->start;
    e->end = d->end;
    e->bytes = d->width * d->height * d->element;
    pasta_publish(e);
}

static void on_memset(ra_callback_id id, void *data) {
    const ra_memset_data *d = data;
    if (id == RA_CALLBACK_MEMSET) on_memset_begin(data);
    if (id == RA_CALLBACK_MEMSET_COMPLETE && d->user) on_memset_complete(d);
}

/* ---- synchronization, events ---- */

static uint32_t sync_kind(uint32_t kind) {
    switch (kind) {
    case RA_SYNC_STREAM: return PASTA_SYNC_stream;
    case RA_SYNC_CONTEXT: return PASTA_SYNC_context;
    case RA_SYNC_DEVICE: return PASTA_SYNC_device;
    case RA_SYNC_EVENT: return PASTA_SYNC_event;
    default: return PASTA_ABSENT_U32;
    }
}

static void on_synchronize(ra_callback_id id, void *data) {
    (void)id;
    const ra_sync_data *d = data;
    uint64_t stream = d->kind == RA_SYNC_STREAM ? d->handle : PASTA_NO_STREAM;
    pasta_probe_waited();
    pasta_sync *e = PASTA_BEGIN(sync, d->device, context_of(d->context), stream);
    if (!e) return;
    if (d->kind != RA_SYNC_DEVICE) e->handle = d->handle;
    e->what = sync_kind(d->kind);
    e->duration = d->end - d->start;
    pasta_publish(e);
}

static void on_event(ra_callback_id id, void *data) {
    const ra_event_data *d = data;
    uint16_t context = context_of(d->context);
    pasta_event *e;
    switch (id) {
    case RA_CALLBACK_EVENT_CREATED:
        e = PASTA_BEGIN_AS(event_create, event, d->device, context, PASTA_NO_STREAM);
        break;
    case RA_CALLBACK_EVENT_DESTROYED:
        e = PASTA_BEGIN_AS(event_destroy, event, d->device, context, PASTA_NO_STREAM);
        break;
    case RA_CALLBACK_EVENT_RECORDED:
        e = PASTA_BEGIN_AS(event_record, event, d->device, context, d->stream);
        break;
    case RA_CALLBACK_EVENT_WAITED:
        e = PASTA_BEGIN_AS(event_wait, event, d->device, context, d->stream);
        break;
    default: return;
    }
    if (!e) return;
    e->handle = d->event;
    pasta_publish(e);
}

/* ---- managed memory, profiler ---- */

/* Numbers of pasta_uvm_reason, by ra_migration_reason. */
static const uint32_t reasons[] = {
    [RA_MIGRATED_FAULT] = PASTA_REASON_coherence,
    [RA_MIGRATED_PREFETCH] = PASTA_REASON_user,
    [RA_MIGRATED_EVICTION] = PASTA_REASON_eviction,
};

static void on_uvm_activity(const ra_uvm_activity_data *d) {
    bool fault = d->id == RA_CALLBACK_UVM_FAULT;
    uint16_t context = context_of(d->context);
    pasta_uvm_activity *e = fault ? PASTA_BEGIN_AS(uvm_fault, uvm_activity, d->device, context, d->stream)
                                  : PASTA_BEGIN_AS(uvm_migration, uvm_activity, d->device, context, d->stream);
    if (!e) return;
    e->address = d->address;
    e->bytes = d->bytes;
    e->start = d->start;
    e->end = d->end;
    e->cause = !fault ? PASTA_UVM_migration : d->source == RA_HOST ? PASTA_UVM_cpu_fault : PASTA_UVM_gpu_fault;
    if (fault) e->count = 1;
    e->vendor_flags = fault ? d->reason : d->reason < sizeof reasons / sizeof *reasons ? reasons[d->reason] : PASTA_ABSENT_U32;
    e->source = (int16_t)d->source;
    e->destination = (int16_t)(fault ? PASTA_NO_DEVICE : d->destination);
    pasta_publish(e);
}

static void on_uvm(ra_callback_id id, void *data) {
    if (id == RA_CALLBACK_UVM_FAULT || id == RA_CALLBACK_UVM_MIGRATED) {
        on_uvm_activity(data);
        return;
    }
    const ra_uvm_data *d = data;
    uint16_t context = context_of(d->context);
    pasta_uvm *e;
    switch (id) {
    case RA_CALLBACK_UVM_ATTACH: e = PASTA_BEGIN_AS(uvm_attach, uvm, d->device, context, d->stream); break;
    case RA_CALLBACK_UVM_PREFETCH: e = PASTA_BEGIN_AS(uvm_prefetch, uvm, d->device, context, d->stream); break;
    case RA_CALLBACK_UVM_ADVISE: e = PASTA_BEGIN_AS(uvm_advise, uvm, d->device, context, PASTA_NO_STREAM); break;
    default: return;
    }
    if (!e) return;
    e->address = d->address;
    e->bytes = d->bytes;
    if (id == RA_CALLBACK_UVM_PREFETCH) pasta_header_of(e)->flags = PASTA_FLAG_ASYNC;
    if (id != RA_CALLBACK_UVM_PREFETCH) e->advice = d->value;
    if (id != RA_CALLBACK_UVM_ATTACH) e->destination = (int16_t)d->destination;
    pasta_publish(e);
}

static void on_profiler(ra_callback_id id, void *data) {
    (void)data;
    pasta_profiling_set(id == RA_CALLBACK_PROFILER_START, PASTA_ORIGIN_profiler);
}

/* ---- dispatch ---- */

static void (*const handlers[RA_DOMAIN_COUNT])(ra_callback_id id, void *data) = {
    [RA_DOMAIN_RESOURCE] = on_resource, [RA_DOMAIN_LAUNCH] = on_launch,
    [RA_DOMAIN_MEMCPY] = on_memcpy,     [RA_DOMAIN_MEMSET] = on_memset,
    [RA_DOMAIN_SYNCHRONIZE] = on_synchronize, [RA_DOMAIN_EVENT] = on_event,
    [RA_DOMAIN_GRAPH] = on_graph,       [RA_DOMAIN_UVM] = on_uvm,
    [RA_DOMAIN_PROFILER] = on_profiler,
};

static void on_callback(void *userdata, ra_domain domain, ra_callback_id id, void *data) {
    (void)userdata;
    if (pasta_generation() == recorded_generation) handlers[domain](id, data);
}

static void failed(const ra_tools_api *api, const char *call, int error) {
    pasta_say("the reference accelerator is not recorded: %s failed with %d (%s)", call, error, api->error_string(error));
}

static void subscribe(const ra_tools_api *api) {
    ra_tools_handle handle;
    int error = api->subscribe(&handle, on_callback, NULL);
    if (error != RA_OK) {
        failed(api, "subscribe", error);
        return;
    }
    for (int domain = 0; domain < RA_DOMAIN_COUNT; domain++) {
        error = api->enable_domain(handle, (ra_domain)domain, 1);
        if (error == RA_OK) continue;
        failed(api, "enable_domain", error);
        api->unsubscribe(handle);
        return;
    }
}

/* A later initialization of a process continues its numbers of contexts; a fork's child begins at 0. */
static void begin_process(void) {
    uint32_t generation = pasta_generation();
    memset(contexts, 0, sizeof contexts);
    if (generation != recorded_generation) devices = context_count = 0;
    recorded_generation = generation;
    probed_kinds = pasta_refacc_kinds();
    probes_need_order = pasta_config_u64("probe_ordered", 0) != 0;
    probes_need_values = pasta_config_u64("probe_values", 0) != 0;
    pasta_refacc_values = probes_need_values;
    pasta_refacc_samples();
}

/* Always 0: a failure here is not the target's. */
int ra_tools_initialize(const ra_tools_api *api) {
    int saved = errno;
    if (pasta_listens_to("refacc")) {
        if (api->version != RA_TOOLS_VERSION || api->size < sizeof *api) {
            pasta_say("the reference accelerator is not recorded: its tools interface is version %u, this PASTA supports %d",
                      api->version, RA_TOOLS_VERSION);
        } else if (pasta_use(PASTA_REFACC_SOURCE, api->library_version)) {
            begin_process();
            subscribe(api);
        }
    }
    errno = saved;
    return 0;
}
