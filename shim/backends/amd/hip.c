/* Calls of the HIP runtime: each is a row of a table that describes its arguments. */
#include "hip.h"

/* ---- launches, streams ---- */

static void on_launch_on_devices(pasta_hip_frame *f, const void *arguments) {
    const hip_launch_on_devices *l = arguments;
    f->launches = l->launches;
    f->launch_count = l->launches && l->count > 0 ? (uint32_t)l->count : 0;
}

static void on_configure(pasta_hip_frame *f, const void *arguments) {
    (void)arguments;
    pasta_hip_configure(f->stream);
}

static void record_stream(pasta_event_kind kind, pasta_amd_place at, uint64_t handle, uint64_t id, int32_t priority) {
    pasta_stream *e = pasta_begin(kind, PASTA_SLOTS(pasta_stream), at.device, at.context, handle);
    if (!e) return;
    e->handle = handle;
    e->id = id;
    e->priority = priority;
    pasta_publish(e);
}

static void on_stream_create(pasta_hip_frame *f, const void *arguments) {
    static uint64_t ids;
    const hip_stream_create *c = arguments;
    if (!c->stream || !*c->stream) return;
    uint64_t id = __atomic_add_fetch(&ids, 1, __ATOMIC_RELAXED);
    pasta_hip_add_stream(*c->stream, id);
    record_stream(PASTA_EVENT_stream_create, pasta_amd_place_on(pasta_hip_device()), *c->stream, id,
                  f->call->options ? c->priority : PASTA_PRIORITY_absent);
}

static void on_stream_destroy(pasta_hip_frame *f, const void *arguments) {
    const hip_on_stream *c = arguments;
    pasta_amd_place at = pasta_hip_place_of(c->stream);
    (void)f;
    record_stream(PASTA_EVENT_stream_destroy, at, c->stream, pasta_hip_remove_stream(c->stream), PASTA_PRIORITY_absent);
}

/* ---- capture: captured work does not run until its graph is launched ---- */

static uint32_t captures; /* open ones */
static pasta_amd_map capturing;       /* number of the capture, by stream */
static pasta_amd_map captured_events; /* likewise, by event recorded in a capture */

static bool captures_are_open(void) { return PASTA_UNLIKELY(__atomic_load_n(&captures, __ATOMIC_RELAXED) != 0); }

static bool is_captured(uint64_t stream) {
    uint64_t capture;
    return captures_are_open() && pasta_amd_get(&capturing, stream, &capture);
}

static void on_capture_begin(pasta_hip_frame *f, const void *arguments) {
    static uint64_t numbers;
    (void)arguments;
    __atomic_fetch_add(&captures, 1, __ATOMIC_RELAXED);
    pasta_amd_put(&capturing, f->stream, __atomic_add_fetch(&numbers, 1, __ATOMIC_RELAXED));
}

static void on_capture_end(pasta_hip_frame *f, const void *arguments) {
    uint64_t capture;
    (void)arguments;
    if (!pasta_amd_take(&capturing, f->stream, &capture)) return;
    pasta_amd_drop(&capturing, capture);
    pasta_amd_drop(&captured_events, capture);
    __atomic_fetch_sub(&captures, 1, __ATOMIC_RELAXED);
}

/* ---- synchronization, events ---- */

static void waited(pasta_hip_frame *f, uint64_t handle, uint32_t what, uint64_t stream) {
    pasta_amd_place at = pasta_hip_place_of(stream);
    uint64_t duration = pasta_now() - f->began;
    pasta_sync *e = PASTA_BEGIN(sync, at.device, at.context, stream);
    if (!e) return;
    e->handle = handle;
    e->what = what;
    e->duration = duration;
    pasta_publish(e);
}

static void on_begin_wait(pasta_hip_frame *f, const void *arguments) {
    (void)arguments;
    f->began = pasta_now();
}

static void on_stream_wait(pasta_hip_frame *f, const void *arguments) {
    (void)arguments;
    waited(f, f->stream, PASTA_SYNC_stream, f->stream);
}

static void on_device_wait(pasta_hip_frame *f, const void *arguments) {
    (void)arguments;
    waited(f, PASTA_ABSENT_U64, PASTA_SYNC_device, PASTA_NO_STREAM);
}

static void on_context_wait(pasta_hip_frame *f, const void *arguments) {
    uint64_t context = PASTA_ABSENT_U64; /* a device's: its agent */
    const char *name;
    (void)arguments;
    pasta_amd_gpu(pasta_hip_device(), &context, &name);
    waited(f, context, PASTA_SYNC_context, PASTA_NO_STREAM);
}

static void on_event_wait(pasta_hip_frame *f, const void *arguments) {
    const hip_event *e = arguments;
    waited(f, e->event, PASTA_SYNC_event, PASTA_NO_STREAM);
}

static void event(pasta_event_kind kind, uint64_t handle, uint64_t stream) {
    pasta_amd_place at = pasta_hip_place_of(stream);
    pasta_event *e = pasta_begin(kind, PASTA_SLOTS(pasta_event), at.device, at.context, stream);
    if (!e) return;
    e->handle = handle;
    pasta_publish(e);
}

static void on_event_create(pasta_hip_frame *f, const void *arguments) {
    const hip_event_create *e = arguments;
    (void)f;
    if (e->event) event(PASTA_EVENT_event_create, *e->event, PASTA_NO_STREAM);
}

static void on_event_destroy(pasta_hip_frame *f, const void *arguments) {
    const hip_event *e = arguments;
    uint64_t capture;
    (void)f;
    if (captures_are_open()) pasta_amd_take(&captured_events, e->event, &capture);
    event(PASTA_EVENT_event_destroy, e->event, PASTA_NO_STREAM);
}

static void on_event_record(pasta_hip_frame *f, const void *arguments) {
    const hip_event *e = arguments;
    uint64_t capture;
    if (captures_are_open()) {
        if (pasta_amd_get(&capturing, f->stream, &capture)) {
            pasta_amd_put(&captured_events, e->event, capture);
            return;
        }
        pasta_amd_take(&captured_events, e->event, &capture);
    }
    event(PASTA_EVENT_event_record, e->event, f->stream);
}

static void on_stream_waits(pasta_hip_frame *f, const void *arguments) {
    const hip_wait *w = arguments;
    uint64_t capture;
    if (captures_are_open() && pasta_amd_get(&captured_events, w->event, &capture)) {
        pasta_amd_put(&capturing, f->stream, capture); /* it joins the capture */
        return;
    }
    if (!f->captured) event(PASTA_EVENT_event_wait, w->event, f->stream);
}

/* ---- graphs ---- */

static void graph(pasta_hip_frame *f, const hip_graph *g, bool begins) {
    pasta_amd_place at = pasta_hip_place_of(f->stream);
    if (begins) f->record = pasta_next_correlation();
    pasta_graph_launch *e = begins ? PASTA_BEGIN(graph_launch, at.device, at.context, f->stream)
                                   : PASTA_BEGIN_AS(graph_launch_end, graph_launch, at.device, at.context, f->stream);
    if (!e) return;
    pasta_header_of(e)->correlation = f->record;
    e->graph = g->executable;
    e->upload = f->call->category != PASTA_AMD_GRAPH;
    pasta_publish(e);
}

static void on_graph_begin(pasta_hip_frame *f, const void *arguments) { graph(f, arguments, true); }
static void on_graph_end(pasta_hip_frame *f, const void *arguments) { graph(f, arguments, false); }

static void on_instantiate(pasta_hip_frame *f, const void *arguments) {
    const hip_instantiate *i = arguments;
    pasta_amd_place at = pasta_amd_place_on(pasta_hip_device());
    (void)f;
    if (!i->executable) return;
    pasta_graph_instantiate *e = PASTA_BEGIN(graph_instantiate, at.device, at.context, PASTA_NO_STREAM);
    if (!e) return;
    e->graph = i->graph;
    e->executable = *i->executable;
    pasta_publish(e);
}

/* ---- managed memory ---- */

static void managed(pasta_event_kind kind, pasta_hip_frame *f, uint64_t address, uint64_t bytes, uint32_t advice,
                    int32_t device) {
    pasta_amd_place at = pasta_hip_place_of(f->stream);
    if (f->captured) return;
    pasta_uvm *e = pasta_begin(kind, PASTA_SLOTS(pasta_uvm), at.device, at.context, f->stream);
    if (!e) return;
    if (kind == PASTA_EVENT_uvm_prefetch) pasta_header_of(e)->flags = PASTA_FLAG_ASYNC;
    e->address = address;
    e->bytes = bytes;
    e->advice = advice;
    e->destination = (int16_t)(device < 0 ? PASTA_NO_DEVICE : device);
    pasta_publish(e);
}

static int32_t located(int32_t where, int32_t device) {
    return where == HIP_LOCATION_DEVICE ? device : PASTA_NO_DEVICE;
}

static void on_prefetch(pasta_hip_frame *f, const void *arguments) {
    const hip_prefetch *p = arguments;
    managed(PASTA_EVENT_uvm_prefetch, f, p->address, p->bytes, PASTA_ABSENT_U32, p->device);
}

static void on_prefetch_v2(pasta_hip_frame *f, const void *arguments) {
    const hip_prefetch_v2 *p = arguments;
    managed(PASTA_EVENT_uvm_prefetch, f, p->address, p->bytes, PASTA_ABSENT_U32, located(p->where, p->device));
}

static void on_advise(pasta_hip_frame *f, const void *arguments) {
    const hip_advise *a = arguments;
    managed(PASTA_EVENT_uvm_advise, f, a->address, a->bytes, (uint32_t)a->advice, a->device);
}

static void on_advise_v2(pasta_hip_frame *f, const void *arguments) {
    const hip_advise_v2 *a = arguments;
    managed(PASTA_EVENT_uvm_advise, f, a->address, a->bytes, (uint32_t)a->advice, located(a->where, a->device));
}

static void on_attach(pasta_hip_frame *f, const void *arguments) {
    const hip_attach *a = arguments;
    managed(PASTA_EVENT_uvm_attach, f, a->address, a->bytes, a->flags, PASTA_NO_DEVICE);
}

/* ---- the program's device, profiling ---- */

static void on_set_device(pasta_hip_frame *f, const void *arguments) {
    (void)f;
    pasta_hip_set_device((int16_t)((const hip_device *)arguments)->device);
}

static void on_profiler_start(pasta_hip_frame *f, const void *arguments) {
    (void)f, (void)arguments;
    pasta_profiling_set(true, PASTA_ORIGIN_profiler);
}

static void on_profiler_stop(pasta_hip_frame *f, const void *arguments) {
    (void)f, (void)arguments;
    pasta_profiling_set(false, PASTA_ORIGIN_profiler);
}

/* ---- dispatch ---- */

static void enter(const pasta_hip_call *c, const pasta_amd_record *r, const void *arguments) {
    pasta_hip_frame *f = pasta_hip_open(c, r->correlation, arguments);
    f->captured = is_captured(f->stream);
    if (c->enter && arguments) c->enter(f, arguments);
}

static void leave(const pasta_hip_call *c, const pasta_amd_record *r, const void *arguments, bool failed) {
    pasta_hip_frame *f = pasta_hip_find(c, r->correlation);
    if (!f) return; /* it began before the subscription */
    if (failed && f->has_freed) pasta_amd_allocated(&f->freed, PASTA_NO_STREAM, 0, PASTA_ABSENT_U32);
    if (c->exit && arguments && (!failed || c->flags & PASTA_HIP_ALWAYS)) c->exit(f, arguments);
    if (c->category == PASTA_AMD_COPIES || c->category == PASTA_AMD_SETS) {
        if (!f->recorded) pasta_hip_unrecorded(f);
        pasta_amd_parts_recorded(f->parts, f->recorded);
    }
    pasta_hip_close(f);
}

static void on_hip(const pasta_amd_record *r, const pasta_amd_operation *operation) {
    const pasta_hip_call *c = (const pasta_hip_call *)operation;
    const pasta_amd_hip_call *h = r->payload;
    const void *arguments = PASTA_AMD_HAS(h, arguments) ? h->arguments : NULL;
    if (r->phase == PASTA_AMD_ENTER) enter(c, r, arguments);
    if (r->phase == PASTA_AMD_EXIT) leave(c, r, arguments, !PASTA_AMD_HAS(h, status) || h->status != 0);
}

/* ---- the table ---- */

enum { /* shorter, for the rows */
    ASYNC = PASTA_HIP_ASYNC,
    PER_THREAD = PASTA_HIP_PER_THREAD,
    DEFAULT_STREAM = PASTA_HIP_DEFAULT_STREAM,
    ALWAYS = PASTA_HIP_ALWAYS,
    DESCRIBED = PASTA_HIP_DESCRIBED,
    CONFIGURED = PASTA_HIP_CONFIGURED,
};

/* Where an argument is, plus one. */
#define AT(type, field) ((uint8_t)(offsetof(type, field) + 1))

#define CALL(name, ...) \
    { .operation = {name, on_hip}, __VA_ARGS__ }
#define SKIP(name) \
    { .operation = {name, NULL} }
#define BOTH(name, more, ...) \
    CALL(name, .flags = more, __VA_ARGS__), CALL(name "_spt", .flags = (more) | PER_THREAD, __VA_ARGS__)

#define LAUNCH(type) .category = PASTA_AMD_LAUNCHES, .stream = AT(type, stream)
#define COPY(handler) .category = PASTA_AMD_COPIES, .exit = pasta_hip_##handler
#define BY_KIND(type) .kind = AT(type, kind)
#define ON(type) .stream = AT(type, stream)
#define SET(handler, bytes) .category = PASTA_AMD_SETS, .exit = pasta_hip_##handler, .element = bytes
#define ALLOC(handler, of) .category = PASTA_AMD_ALLOCATES, .exit = pasta_hip_##handler, .memory = PASTA_MEMORY_##of
#define FREE(handler) .category = PASTA_AMD_ALLOCATES, .enter = pasta_hip_##handler
#define WAIT(handler) .enter = on_begin_wait, .exit = handler
#define FLAGS_AT(type) .options = AT(type, flags)

static const pasta_hip_call calls[] = {
    /* calls that may allocate for the runtime itself; the most frequent queries do not */
    CALL("hipInit"), CALL("hipDeviceGet*"), CALL("hipDeviceCan*"), CALL("hipDeviceEnable*"), CALL("hipDeviceSet*"),
    CALL("hipDevicePrimary*"), CALL("hipGetDeviceC*"), CALL("hipGetDeviceP*"), CALL("hipGetSymbol*"),
    CALL("hipModule*"), CALL("hipFunc*"), CALL("hipOccupancy*"), CALL("hipCtx*"), CALL("hipMemPool*"),
    CALL("hipMemGetInfo"), CALL("hipGraph*"), CALL("hipStream*"), CALL("hipExtStream*"), CALL("hipEvent*"),
    SKIP("hipCtxGet*"), SKIP("hipStreamGet*"), SKIP("hipStreamIs*"),
    SKIP("hipStreamQuery*"), SKIP("hipEventQuery*"),
    SKIP("hipEventElapsed*"),

    BOTH("hipLaunchKernel", 0, LAUNCH(hip_launch)),
    BOTH("hipLaunchCooperativeKernel", 0, LAUNCH(hip_launch_cooperative)),
    CALL("hipExtLaunchKernel", LAUNCH(hip_launch)),
    CALL("hipModuleLaunchKernel", LAUNCH(hip_launch_module)),
    CALL("hipModuleLaunchCooperativeKernel", LAUNCH(hip_launch_module)),
    CALL("hipExtModuleLaunchKernel", LAUNCH(hip_launch_extended)),
    CALL("hipHccModuleLaunchKernel", LAUNCH(hip_launch_extended)),
    CALL("hipLaunchKernelExC", .flags = DESCRIBED, .category = PASTA_AMD_LAUNCHES, .stream = 1),
    CALL("hipDrvLaunchKernelEx", .flags = DESCRIBED, .category = PASTA_AMD_LAUNCHES, .stream = 1),
    CALL("hipConfigureCall", .exit = on_configure, ON(hip_configure)),
    CALL("hipLaunchByPtr", .flags = CONFIGURED, .category = PASTA_AMD_LAUNCHES),
    CALL("hipLaunchCooperativeKernelMultiDevice", .category = PASTA_AMD_LAUNCHES, .enter = on_launch_on_devices),
    CALL("hipExtLaunchMultiKernelMultiDevice", .category = PASTA_AMD_LAUNCHES, .enter = on_launch_on_devices),

    BOTH("hipMemcpy", DEFAULT_STREAM, COPY(on_copy), BY_KIND(hip_copy)),
    BOTH("hipMemcpyAsync", ASYNC, COPY(on_copy), BY_KIND(hip_copy), ON(hip_copy)),
    CALL("hipMemcpyWithStream", COPY(on_copy), BY_KIND(hip_copy), ON(hip_copy)),
    CALL("hipMemcpyHtoD", .flags = DEFAULT_STREAM, COPY(on_copy_sided), .fixed = HIP_HOST_TO_DEVICE),
    CALL("hipMemcpyDtoH", .flags = DEFAULT_STREAM, COPY(on_copy_sided), .fixed = HIP_DEVICE_TO_HOST),
    CALL("hipMemcpyDtoD", .flags = DEFAULT_STREAM, COPY(on_copy_sided), .fixed = HIP_DEVICE_TO_DEVICE),
    CALL("hipMemcpyHtoDAsync", .flags = ASYNC, COPY(on_copy_sided), .fixed = HIP_HOST_TO_DEVICE, ON(hip_copy_sided)),
    CALL("hipMemcpyDtoHAsync", .flags = ASYNC, COPY(on_copy_sided), .fixed = HIP_DEVICE_TO_HOST, ON(hip_copy_sided)),
    CALL("hipMemcpyDtoDAsync", .flags = ASYNC, COPY(on_copy_sided), .fixed = HIP_DEVICE_TO_DEVICE, ON(hip_copy_sided)),
    BOTH("hipMemcpyToSymbol", DEFAULT_STREAM, COPY(on_copy_to_symbol), BY_KIND(hip_copy_symbol)),
    BOTH("hipMemcpyToSymbolAsync", ASYNC, COPY(on_copy_to_symbol), BY_KIND(hip_copy_symbol), ON(hip_copy_symbol)),
    BOTH("hipMemcpyFromSymbol", DEFAULT_STREAM, COPY(on_copy_from_symbol), BY_KIND(hip_copy_symbol)),
    BOTH("hipMemcpyFromSymbolAsync", ASYNC, COPY(on_copy_from_symbol), BY_KIND(hip_copy_symbol), ON(hip_copy_symbol)),
    CALL("hipMemcpyPeer", .flags = DEFAULT_STREAM, COPY(on_copy_peer), .fixed = HIP_DEVICE_TO_DEVICE),
    CALL("hipMemcpyPeerAsync", .flags = ASYNC, COPY(on_copy_peer), .fixed = HIP_DEVICE_TO_DEVICE, ON(hip_copy_peer)),
    BOTH("hipMemcpy2D", DEFAULT_STREAM, COPY(on_copy_2d), BY_KIND(hip_copy_2d)),
    BOTH("hipMemcpy2DAsync", ASYNC, COPY(on_copy_2d), BY_KIND(hip_copy_2d), ON(hip_copy_2d)),
    BOTH("hipMemcpy2DFromArray", DEFAULT_STREAM, COPY(on_from_array_2d), BY_KIND(hip_from_array_2d)),
    BOTH("hipMemcpy2DFromArrayAsync", ASYNC, COPY(on_from_array_2d), BY_KIND(hip_from_array_2d), ON(hip_from_array_2d)),
    BOTH("hipMemcpy2DToArray", DEFAULT_STREAM, COPY(on_to_array_2d), BY_KIND(hip_to_array_2d)),
    BOTH("hipMemcpy2DToArrayAsync", ASYNC, COPY(on_to_array_2d), BY_KIND(hip_to_array_2d), ON(hip_to_array_2d)),
    CALL("hipMemcpy2DArrayToArray", .flags = DEFAULT_STREAM, COPY(on_array_to_array_2d),
         BY_KIND(hip_array_to_array_2d)),
    BOTH("hipMemcpyFromArray", DEFAULT_STREAM, COPY(on_from_array), BY_KIND(hip_from_array)),
    CALL("hipMemcpyToArray", .flags = DEFAULT_STREAM, COPY(on_to_array), BY_KIND(hip_to_array)),
    CALL("hipMemcpyAtoH", .flags = DEFAULT_STREAM, COPY(on_from_array_1d), .fixed = HIP_DEVICE_TO_HOST),
    CALL("hipMemcpyAtoHAsync", .flags = ASYNC, COPY(on_from_array_1d), .fixed = HIP_DEVICE_TO_HOST,
         ON(hip_from_array_1d)),
    CALL("hipMemcpyAtoD", .flags = DEFAULT_STREAM, COPY(on_from_array_1d), .fixed = HIP_DEVICE_TO_DEVICE),
    CALL("hipMemcpyHtoA", .flags = DEFAULT_STREAM, COPY(on_to_array_1d), .fixed = HIP_HOST_TO_DEVICE),
    CALL("hipMemcpyHtoAAsync", .flags = ASYNC, COPY(on_to_array_1d), .fixed = HIP_HOST_TO_DEVICE, ON(hip_to_array_1d)),
    CALL("hipMemcpyDtoA", .flags = DEFAULT_STREAM, COPY(on_to_array_1d), .fixed = HIP_DEVICE_TO_DEVICE),
    CALL("hipMemcpyAtoA", .flags = DEFAULT_STREAM, COPY(on_array_to_array_1d), .fixed = HIP_DEVICE_TO_DEVICE),
    BOTH("hipMemcpy3D", DEFAULT_STREAM, COPY(on_copy_3d)),
    BOTH("hipMemcpy3DAsync", ASYNC, COPY(on_copy_3d), ON(hip_copy_described)),
    CALL("hipMemcpyParam2D", .flags = DEFAULT_STREAM, COPY(on_parameters_2d)),
    CALL("hipMemcpyParam2DAsync", .flags = ASYNC, COPY(on_parameters_2d), ON(hip_copy_described)),
    CALL("hipDrvMemcpy2DUnaligned", .flags = DEFAULT_STREAM, COPY(on_parameters_2d)),
    CALL("hipDrvMemcpy3D", .flags = DEFAULT_STREAM, COPY(on_parameters_3d)),
    CALL("hipDrvMemcpy3DAsync", .flags = ASYNC, COPY(on_parameters_3d), ON(hip_copy_described)),

    BOTH("hipMemset", DEFAULT_STREAM, SET(on_set, 1)),
    BOTH("hipMemsetAsync", ASYNC, SET(on_set, 1), ON(hip_set)),
    CALL("hipMemsetD8", .flags = DEFAULT_STREAM, SET(on_set, 1)),
    CALL("hipMemsetD8Async", .flags = ASYNC, SET(on_set, 1), ON(hip_set)),
    CALL("hipMemsetD16", .flags = DEFAULT_STREAM, SET(on_set, 2)),
    CALL("hipMemsetD16Async", .flags = ASYNC, SET(on_set, 2), ON(hip_set)),
    CALL("hipMemsetD32", .flags = DEFAULT_STREAM, SET(on_set, 4)),
    CALL("hipMemsetD32Async", .flags = ASYNC, SET(on_set, 4), ON(hip_set)),
    BOTH("hipMemset2D", DEFAULT_STREAM, SET(on_set_2d, 1)),
    BOTH("hipMemset2DAsync", ASYNC, SET(on_set_2d, 1), ON(hip_set_2d)),
    CALL("hipMemsetD2D8", .flags = DEFAULT_STREAM, SET(on_set_2d, 1)),
    CALL("hipMemsetD2D8Async", .flags = ASYNC, SET(on_set_2d, 1), ON(hip_set_2d)),
    CALL("hipMemsetD2D16", .flags = DEFAULT_STREAM, SET(on_set_2d, 2)),
    CALL("hipMemsetD2D16Async", .flags = ASYNC, SET(on_set_2d, 2), ON(hip_set_2d)),
    CALL("hipMemsetD2D32", .flags = DEFAULT_STREAM, SET(on_set_2d, 4)),
    CALL("hipMemsetD2D32Async", .flags = ASYNC, SET(on_set_2d, 4), ON(hip_set_2d)),
    BOTH("hipMemset3D", DEFAULT_STREAM, SET(on_set_3d, 1)),
    BOTH("hipMemset3DAsync", ASYNC, SET(on_set_3d, 1), ON(hip_set_3d)),

    CALL("hipMalloc", ALLOC(on_alloc, device)),
    CALL("hipExtMallocWithFlags", ALLOC(on_alloc, device), FLAGS_AT(hip_alloc)),
    CALL("hipMallocManaged", ALLOC(on_alloc, managed), FLAGS_AT(hip_alloc)),
    CALL("hipHostMalloc", ALLOC(on_alloc, pinned), FLAGS_AT(hip_alloc)),
    CALL("hipHostAlloc", ALLOC(on_alloc, pinned), FLAGS_AT(hip_alloc)),
    CALL("hipExtHostAlloc", ALLOC(on_alloc, pinned), FLAGS_AT(hip_alloc)),
    CALL("hipMallocHost", ALLOC(on_alloc, pinned)),
    CALL("hipMemAllocHost", ALLOC(on_alloc, pinned)),
    CALL("hipHostRegister", ALLOC(on_host_register, pinned)),
    CALL("hipMallocAsync", .flags = ASYNC, ALLOC(on_alloc, pool), ON(hip_alloc_async)),
    CALL("hipMallocFromPoolAsync", .flags = ASYNC, ALLOC(on_alloc, pool), ON(hip_alloc_from_pool)),
    CALL("hipMallocPitch", ALLOC(on_alloc_pitch, device)),
    CALL("hipMemAllocPitch", ALLOC(on_alloc_pitch, device)),
    CALL("hipMalloc3D", ALLOC(on_alloc_3d, device)),
    CALL("hipMallocArray", ALLOC(on_array, array)),
    CALL("hipMalloc3DArray", ALLOC(on_array_3d, array)),
    CALL("hipArrayCreate", ALLOC(on_array_described, array)),
    CALL("hipArray3DCreate", ALLOC(on_array_described_3d, array)),
    CALL("hipMemMap", ALLOC(on_map, device)),
    CALL("hipExternalMemoryGetMappedBuffer", ALLOC(on_mapped_buffer, external)),
    CALL("hipMemAddressReserve", ALLOC(on_reserve, virtual)),
    CALL("hipFree", FREE(on_free)),
    CALL("hipHostFree", FREE(on_free)),
    CALL("hipFreeHost", FREE(on_free)),
    CALL("hipHostUnregister", FREE(on_free)),
    CALL("hipFreeArray", FREE(on_free)),
    CALL("hipArrayDestroy", FREE(on_free)),
    CALL("hipFreeAsync", .flags = ASYNC, FREE(on_free), ON(hip_free)),
    CALL("hipMemUnmap", FREE(on_unmap)),
    CALL("hipMemAddressFree", .category = PASTA_AMD_ALLOCATES, .exit = pasta_hip_on_unreserve),
    CALL("hipMemCreate", .category = PASTA_AMD_ALLOCATES), /* it has no address until it is mapped */
    CALL("hipMemRelease", .category = PASTA_AMD_ALLOCATES),
    CALL("hipDeviceReset", .enter = pasta_hip_on_reset),

    CALL("hipStreamCreate", .exit = on_stream_create),
    CALL("hipStreamCreateWithFlags", .exit = on_stream_create),
    CALL("hipStreamCreateWithPriority", .exit = on_stream_create, .options = AT(hip_stream_create, priority)),
    CALL("hipExtStreamCreateWithCUMask", .exit = on_stream_create),
    CALL("hipStreamDestroy", .exit = on_stream_destroy),
    BOTH("hipStreamBeginCapture", 0, .exit = on_capture_begin, ON(hip_on_stream)),
    CALL("hipStreamBeginCaptureToGraph", .exit = on_capture_begin, ON(hip_on_stream)),
    BOTH("hipStreamEndCapture", ALWAYS, .exit = on_capture_end, ON(hip_on_stream)),
    BOTH("hipStreamSynchronize", 0, WAIT(on_stream_wait), ON(hip_on_stream)),
    CALL("hipDeviceSynchronize", WAIT(on_device_wait)),
    CALL("hipCtxSynchronize", WAIT(on_context_wait)),
    CALL("hipEventSynchronize", WAIT(on_event_wait)),
    BOTH("hipStreamWaitEvent", 0, .exit = on_stream_waits, ON(hip_wait)),
    CALL("hipEventCreate", .exit = on_event_create),
    CALL("hipEventCreateWithFlags", .exit = on_event_create),
    CALL("hipEventDestroy", .exit = on_event_destroy),
    BOTH("hipEventRecord", 0, .exit = on_event_record, ON(hip_event)),
    CALL("hipEventRecordWithFlags", .exit = on_event_record, ON(hip_event)),

    BOTH("hipGraphLaunch", ALWAYS, .category = PASTA_AMD_GRAPH, .enter = on_graph_begin, .exit = on_graph_end,
         ON(hip_graph)),
    CALL("hipGraphUpload", .flags = ALWAYS, .enter = on_graph_begin, .exit = on_graph_end, ON(hip_graph)),
    CALL("hipGraphInstantiate", .exit = on_instantiate),
    CALL("hipGraphInstantiateWithFlags", .exit = on_instantiate),
    CALL("hipGraphInstantiateWithParams", .exit = on_instantiate),

    CALL("hipMemPrefetchAsync", .exit = on_prefetch, ON(hip_prefetch)),
    CALL("hipMemPrefetchAsync_v2", .exit = on_prefetch_v2, ON(hip_prefetch_v2)),
    CALL("hipMemAdvise", .exit = on_advise),
    CALL("hipMemAdvise_v2", .exit = on_advise_v2),
    CALL("hipStreamAttachMemAsync", .exit = on_attach, ON(hip_attach)),

    CALL("hipSetDevice", .exit = on_set_device),
    CALL("hipProfilerStart", .exit = on_profiler_start),
    CALL("hipProfilerStop", .exit = on_profiler_stop),
};
const pasta_amd_table pasta_amd_hip_calls = PASTA_AMD_TABLE(calls);
