/* The reference accelerator as an event source: its tools callbacks, one small function each.
 *
 * librefacc calls ra_tools_initialize of the library that REFACC_INJECTION_PATH names inside its
 * first initialisation, and again in the child of a fork that uses it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../core/core.h"
#include "../refacc/refacc.h"
#include "../refacc/refacc_tools.h"

#define SOURCE "refacc"

PASTA_EXPORT int ra_tools_initialize(const ra_tools_api *api);

static uint32_t recorded_generation;
/* Counts module unloads: function handles are given out again, so older cached names are void. */
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

static void on_context(ra_callback_id id, const ra_context_data *d) {
    bool created = id == RA_CALLBACK_CONTEXT_CREATED;
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

/* ---- accesses ---- */

/* clang-format off */
#define KINDS(X)                                                                                   \
    X(GLOBAL, global) X(SHARED, shared) X(LOCAL, local) X(REMOTE_SHARED, remote_shared)            \
    X(ASYNC_COPY, async_copy) X(BULK_LOAD, bulk_load) X(BULK_STORE, bulk_store)                    \
    X(BULK_REDUCTION, bulk_reduction) X(TENSOR_LOAD, tensor_load) X(TENSOR_STORE, tensor_store)    \
    X(MATRIX, matrix) X(BULK_SHARED, bulk_shared) X(ASYNC_STORE, async_store) X(BARRIER, barrier)  \
    X(BLOCK_ENTER, block_enter) X(BLOCK_EXIT, block_exit) X(CALL, call)
/* clang-format on */
#define KIND(theirs, ours) [RA_KIND_##theirs] = PASTA_ACCESS_##ours,
static const uint8_t kind_of[RA_KIND_COUNT] = {KINDS(KIND)};

_Static_assert((int)RA_ACCESS_READ == PASTA_ACCESS_READ && (int)RA_ACCESS_WRITE == PASTA_ACCESS_WRITE &&
                   (int)RA_ACCESS_ATOMIC == PASTA_ACCESS_ATOMIC &&
                   (int)RA_ACCESS_PREFETCH == PASTA_ACCESS_PREFETCH,
               "flags are copied as they are");

static uint32_t probed_kinds; /* bits 1 << RA_KIND_*; 0: accesses are not recorded */

static bool is_transfer(uint32_t kind) {
    switch (kind) {
    case RA_KIND_BULK_LOAD:
    case RA_KIND_BULK_STORE:
    case RA_KIND_BULK_REDUCTION:
    case RA_KIND_TENSOR_LOAD:
    case RA_KIND_TENSOR_STORE:
    case RA_KIND_BULK_SHARED: return true;
    default: return false;
    }
}

/* Whether the active lanes' addresses are base + lane * stride. */
static bool fits_stride(const ra_access *a, uint64_t *base, int64_t *stride) {
    uint32_t others = a->mask & (a->mask - 1), first = (uint32_t)__builtin_ctz(a->mask);
    *stride = 0;
    if (others) {
        uint32_t lanes = (uint32_t)__builtin_ctz(others) - first;
        *stride = (int64_t)(a->address[first + lanes] - a->address[first]);
        if (lanes > 1 && *stride % (int64_t)lanes) return false;
        if (lanes > 1) *stride /= (int64_t)lanes;
    }
    uint64_t expected = *base = a->address[first] - first * (uint64_t)*stride, wrong = 0;
    if (a->mask == UINT32_MAX) {
        for (int lane = 0; lane < 32; lane++, expected += (uint64_t)*stride) wrong |= a->address[lane] ^ expected;
    } else {
        for (; others; others &= others - 1) {
            uint32_t lane = (uint32_t)__builtin_ctz(others);
            wrong |= a->address[lane] ^ (*base + lane * (uint64_t)*stride);
        }
    }
    return !wrong;
}

/* The active lanes' distances from the first; false where one does not fit. */
static bool fits_deltas(const ra_access *a, int32_t *deltas) {
    uint64_t origin = a->address[__builtin_ctz(a->mask)];
    bool fits = true;
    for (uint32_t lanes = a->mask; lanes; lanes &= lanes - 1) {
        int64_t delta = (int64_t)(a->address[__builtin_ctz(lanes)] - origin);
        *deltas = (int32_t)delta;
        fits = fits && *deltas++ == delta;
    }
    return fits;
}

static void put_full(const ra_access *a, uint64_t *addresses) {
    for (uint32_t lanes = a->mask; lanes; lanes &= lanes - 1) *addresses++ = a->address[__builtin_ctz(lanes)];
}

/* On worker threads of refacc.  userdata: the launch's ordinal. */
static void on_access(void *userdata, const ra_access *a) {
    static _Thread_local pasta_trace_writer writer;
    int32_t deltas[32];
    uint64_t base = a->address[__builtin_ctz(a->mask)];
    int64_t stride = a->stride;
    uint8_t form = PASTA_FORM_STRIDE;
    int lanes = __builtin_popcount(a->mask);
    if (is_transfer(a->kind)) {
        form = PASTA_FORM_ROWS;
    } else if (!fits_stride(a, &base, &stride)) {
        form = fits_deltas(a, deltas) ? PASTA_FORM_DELTAS : PASTA_FORM_FULL;
        base = a->address[__builtin_ctz(a->mask)];
        stride = 0;
    }
    pasta_access *e = pasta_trace_begin(&writer, pasta_access_bytes(form, lanes));
    if (!e) return;
    *e = (pasta_access){.mask = a->mask,
                        .kind = kind_of[a->kind],
                        .flags = (uint8_t)a->flags,
                        .form = form,
                        .sm = (uint8_t)a->multiprocessor,
                        .bytes = a->bytes,
                        .rows = (uint16_t)a->rows,
                        .warp = (uint16_t)a->warp,
                        .stride = stride,
                        .address = base,
                        .pc = a->pc,
                        .launch = (uintptr_t)userdata,
                        .block = a->block_index};
    if (form == PASTA_FORM_DELTAS) {
        if (lanes % 2) deltas[lanes++] = 0; /* fills the record */
        memcpy(e + 1, deltas, (size_t)lanes * sizeof *deltas);
    }
    if (form == PASTA_FORM_FULL) put_full(a, (uint64_t *)(e + 1));
    pasta_trace_commit(&writer);
}

/* The key probe_kinds: numbers of PASTA_ACCESS_*, as bits of refacc's. */
static uint32_t configured_kinds(void) {
    const char *list = pasta_config("probe_kinds");
    uint32_t wanted = list ? 0 : UINT32_MAX, kinds = 0;
    for (char *end; list && *list; list = *end ? end + 1 : end) {
        unsigned long kind = strtoul(list, &end, 10);
        if (end == list) break;
        if (kind < PASTA_ACCESS_count) wanted |= 1u << kind;
    }
    for (int kind = 1; kind < RA_KIND_COUNT; kind++)
        if (wanted >> kind_of[kind] & 1) kinds |= 1u << kind;
    return kinds;
}

static uint32_t kinds_to_record(void) {
    const char *probes = pasta_config("probes");
    return probes && *probes && pasta_trace_open() ? configured_kinds() : 0;
}

static void hook(ra_launch_data *d) {
    d->hook = on_access;
    d->hook_userdata = (void *)(uintptr_t)d->user[0];
    d->hook_kinds = probed_kinds;
}

/* ---- launches ---- */

static uint32_t name_of(const ra_launch_data *d) {
    enum { WAYS = 64 };
    static _Thread_local struct {
        uint64_t function;
        uint32_t generation, unloads, name;
    } cache[WAYS];
    uint32_t generation = pasta_generation(), now = __atomic_load_n(&unloads, __ATOMIC_RELAXED);
    /* functions are 24 bytes apart: their number in the module, nearly */
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
        if (!pasta_profiling_is_on()) d->user[1] = 0; /* nor its completion, which may come after a start */
        return;
    }
    bool probed = selected && pasta_probe_takes(d->user[0], name);
    pasta_header_of(e)->flags = (uint8_t)(launch_flags(d) | (probed ? PASTA_FLAG_PROBED : 0));
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
    pasta_publish(e);
    if (probed) hook(d);
}

static void on_launch_end(const ra_launch_data *d) {
    pasta_launch_end *e =
        PASTA_BEGIN_AS(kernel_launch_end, launch_end, d->device, context_of(d->context), d->stream);
    if (!e) return;
    pasta_header_of(e)->flags = launch_flags(d);
    pasta_header_of(e)->correlation = d->user[1];
    e->ordinal = d->user[0];
    pasta_publish(e);
}

static void on_launch_complete(const ra_launch_data *d) {
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
    /* numbers of its begin: 0 where that came before we listened */
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

static void on_memcpy(ra_callback_id id, void *data) {
    (void)id;
    const ra_memcpy_data *d = data;
    pasta_memory_copy *e = PASTA_BEGIN(memory_copy, d->device, context_of(d->context), d->stream);
    if (!e) return;
    pasta_header_of(e)->flags = work_flags(d->asynchronous, d->node);
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

static void on_memset(ra_callback_id id, void *data) {
    (void)id;
    const ra_memset_data *d = data;
    pasta_memory_set *e = PASTA_BEGIN(memory_set, d->device, context_of(d->context), d->stream);
    if (!e) return;
    pasta_header_of(e)->flags = work_flags(d->asynchronous, d->node);
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

/* ---- synchronisation, events ---- */

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

static void on_uvm(ra_callback_id id, void *data) {
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

/* A later initialisation of one process goes on counting contexts; a fork's child starts anew. */
static void begin_process(void) {
    uint32_t generation = pasta_generation();
    memset(contexts, 0, sizeof contexts);
    if (generation != recorded_generation) context_count = 0;
    recorded_generation = generation;
    probed_kinds = kinds_to_record();
}

/* Always 0: a failure of ours is not the target's. */
int ra_tools_initialize(const ra_tools_api *api) {
    int saved = errno;
    if (pasta_listens_to("refacc")) {
        if (api->version != RA_TOOLS_VERSION || api->size < sizeof *api) {
            pasta_say("the reference accelerator is not recorded: its tools version is %u, this PASTA knows %d",
                      api->version, RA_TOOLS_VERSION);
        } else if (pasta_use(SOURCE, api->library_version)) {
            begin_process();
            subscribe(api);
        }
    }
    errno = saved;
    return 0;
}

void pasta_refacc_source_load(void) {
    static const char variable[] = "REFACC_INJECTION_PATH";
    const char *present = getenv(variable);
    Dl_info self;
    if (!pasta_listens_to("refacc")) return;
    if (!dladdr((void *)(uintptr_t)&ra_tools_initialize, &self) || !self.dli_fname) return;
    if (!present || !*present)
        setenv(variable, self.dli_fname, 1); /* read by the library's initialisation, later */
    else if (strcmp(present, self.dli_fname) != 0)
        pasta_log("%s: %s names %s: if that is another tool, nothing is recorded", SOURCE, variable, present);
}
