/* Calls of the CUDA API: managed memory, the profiler's switch, and launches that begin. */
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

static void on_launching(const pasta_nv_api *call, uint64_t function, const uint32_t grid[3], const uint32_t block[3]) {
    pasta_nv_calling c = {.function = function};
    for (int axis = 0; axis < 3; axis++) {
        c.grid[axis] = grid[axis];
        c.block[axis] = block[axis];
    }
    pasta_nv_probes_calling(call->context, &c);
}

/* False: the call neither launches, nor makes or changes a graph. */
static bool on_launch_call(uint32_t id, const pasta_nv_api *call) {
    bool begins = call->site != PASTA_NV_API_EXIT;
    switch (id) {
    case PASTA_NV_LAUNCH_KERNEL:
    case PASTA_NV_LAUNCH_KERNEL_PTSZ:
    case PASTA_NV_LAUNCH_COOPERATIVE:
    case PASTA_NV_LAUNCH_COOPERATIVE_PTSZ: {
        const pasta_nv_launch_kernel *l = call->arguments;
        if (begins) on_launching(call, l->function, l->grid, l->block);
        break;
    }
    case PASTA_NV_LAUNCH_KERNEL_EX:
    case PASTA_NV_LAUNCH_KERNEL_EX_PTSZ: {
        const pasta_nv_launch_kernel_ex *l = call->arguments;
        if (begins && l->config) on_launching(call, l->function, l->config->grid, l->config->block);
        break;
    }
    case PASTA_NV_LAUNCH_GRAPH:
    case PASTA_NV_LAUNCH_GRAPH_PTSZ: {
        const pasta_nv_launch_graph *l = call->arguments;
        if (begins) pasta_nv_probes_calling(call->context, &(pasta_nv_calling){.graph = l->graph});
        break;
    }
    case PASTA_NV_BEGIN_CAPTURE:
    case PASTA_NV_BEGIN_CAPTURE_PTSZ:
    case PASTA_NV_BEGIN_CAPTURE_V2:
    case PASTA_NV_BEGIN_CAPTURE_V2_PTSZ:
    case PASTA_NV_BEGIN_CAPTURE_TO:
    case PASTA_NV_BEGIN_CAPTURE_TO_PTSZ:
        if (begins || *call->result != 0) pasta_nv_probes_capture(begins);
        return true;
    case PASTA_NV_END_CAPTURE:
    case PASTA_NV_END_CAPTURE_PTSZ:
        if (!begins) pasta_nv_probes_capture(false);
        return true;
    case PASTA_NV_GRAPH_INSTANTIATE:
    case PASTA_NV_GRAPH_INSTANTIATE_V2:
    case PASTA_NV_GRAPH_INSTANTIATE_WITH_FLAGS:
    case PASTA_NV_GRAPH_INSTANTIATE_WITH_PARAMS:
    case PASTA_NV_GRAPH_INSTANTIATE_WITH_PARAMS_PTSZ:
        pasta_nv_probes_graph(call->context, begins, true);
        return true;
    case PASTA_NV_GRAPH_UPDATE:
    case PASTA_NV_GRAPH_UPDATE_V2:
    case PASTA_NV_GRAPH_SET_KERNEL:
    case PASTA_NV_GRAPH_SET_KERNEL_V2:
    case PASTA_NV_GRAPH_SET_NODE:
        pasta_nv_probes_graph(call->context, begins, false);
        return true;
    default: return false;
    }
    if (!begins) pasta_nv_probes_called();
    return true;
}

void pasta_nv_on_driver_call(uint32_t id, const pasta_nv_api *call) {
    if (on_launch_call(id, call)) return;
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
