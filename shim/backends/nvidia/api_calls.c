/* Calls of the CUDA API: managed memory, the profiler's switch, and launches that begin. */
#include <string.h>

#include "source.h"

void pasta_nv_on_attach(uint32_t id, const pasta_nv_attach *a) {
    if (id != PASTA_NV_ATTACH) return;
    pasta_nv_place at = pasta_nv_place_here(a->context);
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
    pasta_nv_place at = pasta_nv_place_here(call->context);
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

/* ---- calls that launch, and that make graphs: a function for each kind of PASTA_NV_LAUNCH_CALLS ---- */

static bool begins(const pasta_nv_api *call) { return call->site != PASTA_NV_API_EXIT; }

static bool ended(const pasta_nv_api *call) {
    if (begins(call)) return false;
    pasta_nv_probes_called();
    return true;
}

static void launch(const pasta_nv_api *call, uint64_t function, const pasta_nv_launch_config *config) {
    pasta_nv_calling what = {.function = function};
    memcpy(what.grid, config->grid, sizeof what.grid);
    memcpy(what.block, config->block, sizeof what.block);
    pasta_nv_probes_calling(call->context, &what);
}

static void kernel(const pasta_nv_api *call) {
    const pasta_nv_launch_kernel *l = call->arguments;
    if (!ended(call)) launch(call, l->function, &l->config);
}

static void kernel_ex(const pasta_nv_api *call) {
    const pasta_nv_launch_kernel_ex *l = call->arguments;
    if (!ended(call) && l->config) launch(call, l->function, l->config);
}

static void graph(const pasta_nv_api *call) {
    const pasta_nv_launch_graph *l = call->arguments;
    if (!ended(call)) pasta_nv_probes_calling(call->context, &(pasta_nv_calling){.graph = l->graph});
}

static void begin_capture(const pasta_nv_api *call) {
    if (begins(call) || *call->result != 0) pasta_nv_probes_capture(begins(call));
}

static void end_capture(const pasta_nv_api *call) {
    if (!begins(call)) pasta_nv_probes_capture(false);
}

static void instantiate(const pasta_nv_api *call) { pasta_nv_probes_graph(call->context, begins(call), true); }
static void change(const pasta_nv_api *call) { pasta_nv_probes_graph(call->context, begins(call), false); }

void pasta_nv_on_driver_call(uint32_t id, const pasta_nv_api *call) {
    switch (id) {
#define CALL(name, kind) case PASTA_NV_##name: kind(call); return;
        PASTA_NV_LAUNCH_CALLS(CALL)
#undef CALL
    default: break;
    }
    if (id == PASTA_NV_PROFILER_START || id == PASTA_NV_PROFILER_STOP) {
        /* the runtime's function may call this one: an unchanged state is not recorded again */
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

void pasta_nv_on_runtime_call(uint32_t id, const pasta_nv_api *call) {
    if (call->site == PASTA_NV_API_EXIT) return;
    if (id == PASTA_NV_RUNTIME_PROFILER_START || id == PASTA_NV_RUNTIME_PROFILER_STOP)
        pasta_profiling_set(id == PASTA_NV_RUNTIME_PROFILER_START, PASTA_ORIGIN_profiler);
}
