/* For fake_cuda_program.c: work that is described in a file (tests/support/amd_work.py), reported
 * through the Sanitizer API. */
#include "../work.h"
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include "../nvtx_fake.h"
#pragma GCC diagnostic pop

enum { WORK_NODES = 16 };

static uint64_t work_next = 0x7f4d00000000, work_handle = 0x100, captured_stream, captured_graph;
static pasta_nv_node captured[WORK_NODES];
static uint32_t captured_count, work_launches;

static void work_stream(uint32_t id, uint64_t handle) {
    pasta_nv_stream_13_1 green = {CONTEXT, 0xdead, handle, handle};
    pasta_nv_stream plain = {CONTEXT, handle, handle};
    deliver(PASTA_NV_RESOURCE, id, layout_13_1() ? (void *)&green : (void *)&plain);
}

static void work_event(uint32_t id, uint64_t handle, uint64_t stream) {
    pasta_nv_event_13_1 green = {handle, CONTEXT, 0xdead, stream};
    pasta_nv_event plain = {handle, CONTEXT, stream};
    deliver(PASTA_NV_EVENTS, id, layout_13_1() ? (void *)&green : (void *)&plain);
}

static void work_memory(bool allocated, int place, uint64_t stream) {
    uint64_t kind = work_named[place].kind;
    bool managed = kind == 'm', pinned = kind == 'h', pool = kind == 'p';
    uint32_t id = pool ? PASTA_NV_ASYNC_ALLOC : pinned ? PASTA_NV_HOST_ALLOC : PASTA_NV_DEVICE_ALLOC;
    if (!allocated) id = pool ? PASTA_NV_ASYNC_FREE : pinned ? PASTA_NV_HOST_FREE : PASTA_NV_DEVICE_FREE;
    pasta_nv_memory m = {.address = work_named[place].value, .bytes = work_named[place].more, .context = CONTEXT,
                         .device = 0, .flags = allocated && managed ? PASTA_NV_MEMORY_MANAGED : 0, .stream = stream};
    deliver(PASTA_NV_RESOURCE, id, &m);
}

/* 2: into the device, 3: out of it, 4: within. */
static int32_t work_direction(const work_step *s) {
    bool to = work_named[work_place(s->word[1])].kind != 'h', from = work_named[work_place(s->word[2])].kind != 'h';
    return from ? (to ? PASTA_NV_DEVICE_TO_DEVICE : PASTA_NV_DEVICE_TO_HOST) : PASTA_NV_HOST_TO_DEVICE;
}

static void work_node(pasta_nv_node n) {
    n.graph = captured_graph;
    n.node = 0x900 + captured_count;
    captured[captured_count++] = n;
}

static void work_copy(const work_step *s) {
    bool rows = WORK_IS("rows");
    uint64_t bytes = work_number(s, 3);
    uint64_t stream = work_value(s, rows ? 7 : 4);
    pasta_nv_memcpy c = copy_of(work_value(s, 2), work_value(s, 1), rows ? work_number(s, 5) : bytes,
                                rows ? work_number(s, 6) : 1);
    if (rows) c.destination_pitch = work_number(s, 3), c.source_pitch = work_number(s, 4);
    c.direction = work_direction(s);
    c.async = stream != 0;
    c.source_stream = c.destination_stream = c.api_stream = stream;
    if (stream && stream == captured_stream) work_node((pasta_nv_node){.type = PASTA_NV_NODE_MEMCPY, .copy = c});
    else deliver(PASTA_NV_MEMCPY, PASTA_NV_MEMCPY_STARTING, &c);
}

static void work_set(const work_step *s) {
    bool area = WORK_IS("area");
    uint64_t stream = work_value(s, area ? 6 : 5);
    pasta_nv_memset m = {CONTEXT, stream, 0, work_value(s, 1), work_number(s, 4),
                         area ? work_number(s, 5) : 1, area ? work_number(s, 2) : 0,
                         area ? 1 : (uint32_t)work_number(s, 3), (uint32_t)work_number(s, area ? 3 : 2), stream != 0};
    deliver(PASTA_NV_MEMSET, PASTA_NV_MEMSET_STARTING, &m);
}

static void work_launch(const work_step *s) {
    uint64_t stream = work_value(s, 9);
    pasta_nv_launch l = launch_of(++work_launches, "_Z4fillIfEvPT_S0_i", 1);
    for (int axis = 0; axis < 3; axis++) {
        l.grid[axis] = (uint32_t)work_number(s, 1 + axis);
        l.block[axis] = (uint32_t)work_number(s, 4 + axis);
        l.cluster[axis] = 0;
    }
    l.device = 0;
    l.stream = l.api_stream = stream;
    if (stream && stream == captured_stream) {
        work_node((pasta_nv_node){.type = PASTA_NV_NODE_KERNEL, .kernel = l});
        return;
    }
    deliver(PASTA_NV_LAUNCH, PASTA_NV_LAUNCH_BEGIN, &l);
    deliver(PASTA_NV_LAUNCH, PASTA_NV_LAUNCH_END, &l);
}

static void work_run(const work_step *s) {
    static uint32_t runs;
    pasta_nv_graph g = {CONTEXT, work_value(s, 2), 0, work_value(s, 1), 0};
    runs++;
    deliver(PASTA_NV_GRAPHS, PASTA_NV_GRAPH_BEGIN, &g);
    for (uint32_t i = 0; i < captured_count; i++) {
        captured[i].launch_id = runs;
        captured[i].graph = g.graph;
        node(PASTA_NV_NODE_BEGIN, &captured[i]);
        node(PASTA_NV_NODE_END, &captured[i]);
    }
    deliver(PASTA_NV_GRAPHS, PASTA_NV_GRAPH_END, &g);
}

static void work_alloc(const work_step *s) {
    int place = work_place(s->word[1]);
    work_named[place].value = work_next += 0x100000;
    work_named[place].more = work_number(s, 3);
    work_named[place].kind = !strcmp(s->word[2], "pinned") ? 'h' : (uint64_t)s->word[2][0];
    if (!strcmp(s->word[2], "pool")) work_named[place].kind = 'p';
    work_memory(true, place, work_value(s, 4));
}

static void work_step_of_cuda(const work_step *s) {
    uint64_t first = work_value(s, 1), second = work_value(s, 2);
    if (WORK_IS("stream")) work_name(s->word[1], ++work_handle), work_stream(PASTA_NV_STREAM_CREATED, work_handle);
    else if (WORK_IS("unstream")) work_stream(PASTA_NV_STREAM_DESTROYING, first);
    else if (WORK_IS("alloc")) work_alloc(s);
    else if (WORK_IS("free")) work_memory(false, work_place(s->word[1]), second);
    else if (WORK_IS("copy") || WORK_IS("rows")) work_copy(s);
    else if (WORK_IS("set") || WORK_IS("area")) work_set(s);
    else if (WORK_IS("launch")) work_launch(s);
    else if (WORK_IS("event")) work_name(s->word[1], ++work_handle), work_event(PASTA_NV_EVENT_CREATED, work_handle, 0);
    else if (WORK_IS("record")) work_event(PASTA_NV_EVENT_RECORD, first, second);
    else if (WORK_IS("wait")) work_event(PASTA_NV_EVENT_STREAM_WAIT, first, second);
    else if (WORK_IS("await")) work_event(PASTA_NV_EVENT_SYNCHRONIZE, first, 0);
    else if (WORK_IS("unevent")) work_event(PASTA_NV_EVENT_DESTROYED, first, 0);
    else if (WORK_IS("drain") && s->count > 1)
        deliver(PASTA_NV_SYNCHRONIZE, PASTA_NV_STREAM_SYNCHRONIZED, &(pasta_nv_sync){CONTEXT, first});
    else if (WORK_IS("drain") || WORK_IS("device"))
        deliver(PASTA_NV_SYNCHRONIZE, PASTA_NV_CONTEXT_SYNCHRONIZED, &(pasta_nv_sync){CONTEXT, 0});
    else if (WORK_IS("push")) nvtxRangePushA(s->word[1]);
    else if (WORK_IS("pop")) nvtxRangePop();
    else if (WORK_IS("mark")) nvtxMarkA(s->word[1]);
    else if (WORK_IS("prefetch"))
        driver_call(PASTA_NV_PREFETCH,
                    &(pasta_nv_prefetch){first, work_number(s, 2), (int32_t)work_number(s, 3), work_value(s, 4)}, 0);
    else if (WORK_IS("advise"))
        driver_call(PASTA_NV_ADVISE, &(pasta_nv_advise){first, work_number(s, 2), (int32_t)work_number(s, 3),
                                                        (int32_t)work_number(s, 4)}, 0);
    else if (WORK_IS("attach"))
        deliver(PASTA_NV_UVM, PASTA_NV_ATTACH,
                &(pasta_nv_attach){CONTEXT, (int32_t)work_number(s, 4), work_value(s, 3), 0, first});
    else if (WORK_IS("capture")) captured_stream = first, captured_count = 0;
    else if (WORK_IS("captured")) captured_stream = 0;
    else if (WORK_IS("instantiate")) work_name(s->word[1], ++work_handle);
    else if (WORK_IS("run")) work_run(s);
    else if (WORK_IS("off") || WORK_IS("on")) runtime_profiler(WORK_IS("on"));
    else exit(95);
}

static void play_work(const char *path) {
    context(PASTA_NV_CONTEXT_STARTING, 0, 0);
    context(PASTA_NV_CONTEXT_CREATED, CONTEXT, 0);
    module(PASTA_NV_MODULE_LOADED, MODULE);
    work_do(path, work_step_of_cuda);
}
