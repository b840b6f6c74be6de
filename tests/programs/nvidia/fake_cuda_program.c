/* A program and a driver in one: opens what CUDA_INJECTION64_PATH names, as cuInit does, then has
 * the stand-in library deliver the callbacks of the scripts named on its command line.
 * The memory, siblings and peers scripts follow streams recorded on one and two H200. A path is a file
 * of work (fake_cuda_work.h).
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../../shim/backends/nvidia/sanitizer_abi.h"

enum { CONTEXT = 0xc0, STREAM = 0x51, MODULE = 0x4000, FUNCTION = 0xf0, GRAPH = 0x99, DEVICE = 3 };
enum { SIBLING = CONTEXT + 1, PEER = CONTEXT + 2 }; /* on DEVICE and the next one */
enum { CONTEXT_DESTROYING = 4, PEER_FLAGS = 0x30 };

static bool (*deliver)(int32_t, uint32_t, const void *);
static bool (*layout_13_1)(void);
static unsigned (*pc_calls)(void);

static void *required(void *found, const char *what) {
    if (!found) {
        fprintf(stderr, "fake program: %s: %s\n", what, dlerror());
        exit(90);
    }
    return found;
}

static void initialize(void) {
    const char *injection = getenv("CUDA_INJECTION64_PATH");
    if (injection) {
        void *library = required(dlopen(injection, RTLD_NOW), "injection");
        int (*entry)(void);
        *(void **)&entry = required(dlsym(library, "InitializeInjection"), "InitializeInjection");
        if (entry() != 1) exit(91);
        entry(); /* a second call must change nothing */
    }
    void *fake = required(dlopen(getenv("FAKE_SANITIZER"), RTLD_NOW), "fake library");
    *(void **)&deliver = required(dlsym(fake, "fake_deliver"), "fake_deliver");
    *(void **)&layout_13_1 = required(dlsym(fake, "fake_layout_13_1"), "fake_layout_13_1");
    *(void **)&pc_calls = required(dlsym(fake, "fake_pc_calls"), "fake_pc_calls");
}

static void context(uint32_t id, uint64_t handle, int device) {
    pasta_nv_context_13_1 green = {handle, 0xdead, device};
    pasta_nv_context plain = {handle, device};
    deliver(PASTA_NV_RESOURCE, id, layout_13_1() ? (void *)&green : (void *)&plain);
}

static void stream(uint32_t id, uint64_t context) {
    pasta_nv_stream_13_1 green = {context, 0xdead, STREAM, 0x5151};
    pasta_nv_stream plain = {context, STREAM, 0x5151};
    deliver(PASTA_NV_RESOURCE, id, layout_13_1() ? (void *)&green : (void *)&plain);
}

static void module(uint32_t id, uint64_t handle) {
    static const char cubin[24] = "\177ELF of a cubin";
    pasta_nv_module m = {CONTEXT, handle, sizeof cubin, cubin};
    deliver(PASTA_NV_RESOURCE, id, &m);
}

static void range(uint32_t id, uint64_t address, uint64_t bytes) {
    pasta_nv_range r = {address, bytes};
    deliver(PASTA_NV_RESOURCE, id, &r);
}

static void memory(uint32_t id, uint64_t address, uint64_t bytes, uint32_t flags) {
    pasta_nv_memory m = {.address = address, .bytes = bytes, .context = CONTEXT, .device = DEVICE, .flags = flags};
    if (id == PASTA_NV_ASYNC_ALLOC || id == PASTA_NV_ASYNC_FREE) m.stream = STREAM, m.pool = 0x9001;
    deliver(PASTA_NV_RESOURCE, id, &m);
}

/* An announcement by one context of an allocation that it sees. */
static void view(uint32_t id, uint64_t context, uint64_t address, uint64_t bytes, uint32_t flags) {
    int device = context == PEER ? DEVICE + 1 : DEVICE, other = 2 * DEVICE + 1 - device;
    pasta_nv_memory m = {.address = address, .bytes = bytes, .context = context, .device = device, .flags = flags,
                         .source_device = flags & PASTA_NV_MEMORY_PEER ? other : device};
    deliver(PASTA_NV_RESOURCE, id, &m);
}

static void create(uint64_t handle, int device) {
    context(PASTA_NV_CONTEXT_STARTING, 0, device);
    context(PASTA_NV_CONTEXT_CREATED, handle, device);
}

static pasta_nv_memcpy copy_of(uint64_t source, uint64_t destination, uint64_t width, uint64_t height) {
    return (pasta_nv_memcpy){.source_context = CONTEXT, .destination_context = CONTEXT, .source_stream = STREAM,
                             .destination_stream = STREAM, .source = source, .destination = destination,
                             .bytes = width * height, .width = width, .height = height, .depth = 1,
                             .source_pitch = width, .destination_pitch = width, .async = 1,
                             .direction = PASTA_NV_DEVICE_TO_DEVICE, .api_context = CONTEXT, .api_stream = STREAM};
}

static void set(uint64_t width, uint64_t height, uint64_t pitch, uint32_t element, uint32_t value, bool async) {
    pasta_nv_memset m = {CONTEXT, STREAM, 0x5151, 0x7f4d4fe00000, width, height, pitch, element, value, async};
    deliver(PASTA_NV_MEMSET, PASTA_NV_MEMSET_STARTING, &m);
}

static void event(uint32_t id) {
    pasta_nv_event_13_1 green = {0xe1, CONTEXT, 0xdead, STREAM};
    pasta_nv_event plain = {0xe1, CONTEXT, STREAM};
    deliver(PASTA_NV_EVENTS, id, layout_13_1() ? (void *)&green : (void *)&plain);
}

static void play_context(void) {
    context(PASTA_NV_CONTEXT_STARTING, 0, DEVICE);
    range(PASTA_NV_VIRTUAL_RESERVE, 0x200000000, 4297064448);
    memory(PASTA_NV_DEVICE_ALLOC, 0x7f4d56c00000, 512, 0x40);
    context(PASTA_NV_CONTEXT_CREATED, CONTEXT, DEVICE);
    stream(PASTA_NV_STREAM_CREATED, CONTEXT);
    module(PASTA_NV_MODULE_LOADED, MODULE);
}

static void play_memory(void) {
    memory(PASTA_NV_DEVICE_ALLOC, 0x7f4d4fe00000, 1048576, 0);
    set(4097, 1, 0, 1, 7, false);
    set(4096, 1, 0, 1, 7, true);
    set(300, 100, 512, 1, 7, false);
    set(1000, 1, 0, 4, 5, false);
    set(1000, 1, 0, 2, 5, false);
    set(50, 10, 512, 4, 5, false);
    range(PASTA_NV_VIRTUAL_RESERVE, 0x7f4d34000000, 33554432);
    memory(PASTA_NV_DEVICE_ALLOC, 0x7f4d34000000, 4096, 6);
    memory(PASTA_NV_HOST_ALLOC, 0x7f4d54800000, 4096, 0xc);
    memory(PASTA_NV_ASYNC_ALLOC, 0x302000000, 4096, 0);
    memory(PASTA_NV_DEVICE_ALLOC, 0x7f0000000000, 64, 1);
    memory(PASTA_NV_POOL_IMPORT, 0x303000000, 8192, 0);
    pasta_nv_memcpy c = copy_of(0x7f4d54800000, 0x7f4d4fe00000, 4096, 1);
    c.direction = PASTA_NV_HOST_TO_DEVICE;
    deliver(PASTA_NV_MEMCPY, PASTA_NV_MEMCPY_STARTING, &c);
    c = copy_of(0x7f4d4ff00000, 0x7f4d54800000, 300, 10);
    c.source_pitch = 512, c.async = 0, c.direction = PASTA_NV_DEVICE_TO_HOST;
    deliver(PASTA_NV_MEMCPY, PASTA_NV_MEMCPY_STARTING, &c);
    c = copy_of(0x7f4d4fe00000, 0x302000000, 4096, 1);
    deliver(PASTA_NV_MEMCPY, PASTA_NV_MEMCPY_STARTING, &c);
    pasta_nv_array array = {CONTEXT, 0xa1};
    deliver(PASTA_NV_RESOURCE, PASTA_NV_ARRAY_CREATED, &array);
    deliver(PASTA_NV_RESOURCE, PASTA_NV_ARRAY_DESTROYED, &array);
    pasta_nv_external external = {CONTEXT, DEVICE, 0xee, 0x7f1200000000, 2048};
    deliver(PASTA_NV_EXTERNAL, PASTA_NV_EXTERNAL_MAPPED, &external);
    deliver(PASTA_NV_EXTERNAL, 3, &external);
    memory(PASTA_NV_ASYNC_FREE, 0x302000000, 4096, 0);
    memory(17, 0x302000000, 4096, 0);
    memory(PASTA_NV_DEVICE_FREE, 0x7f4d34000000, 4096, 0);
    memory(PASTA_NV_HOST_FREE, 0x7f4d54800000, 4096, 0);
    range(PASTA_NV_VIRTUAL_RELEASE, 0x7f4d34000000, 33554432);
}

static void play_peer(void) {
    context(PASTA_NV_CONTEXT_STARTING, 0, DEVICE + 1);
    context(PASTA_NV_CONTEXT_CREATED, CONTEXT + 1, DEVICE + 1);
    pasta_nv_memcpy c = copy_of(0x1000, 0x2000, 64, 1);
    c.destination_context = CONTEXT + 1, c.destination_stream = STREAM + 1;
    deliver(PASTA_NV_MEMCPY, PASTA_NV_MEMCPY_STARTING, &c);
    c.direction = 0, c.api_context = 0;
    deliver(PASTA_NV_MEMCPY, PASTA_NV_MEMCPY_STARTING, &c);
    context(CONTEXT_DESTROYING, CONTEXT + 1, 0);
    stream(PASTA_NV_STREAM_DESTROYING, CONTEXT + 1);
    context(PASTA_NV_CONTEXT_DESTROYED, CONTEXT + 1, 0);
    context(PASTA_NV_CONTEXT_CREATED, CONTEXT + 1, DEVICE + 2); /* the handle again, another context */
}

/* Two contexts of one device see each other's memory. */
static void play_siblings(void) {
    enum { ALLOC = PASTA_NV_DEVICE_ALLOC, FREE = PASTA_NV_DEVICE_FREE };
    view(ALLOC, CONTEXT, 0x1e800000, 4096, 0);
    create(SIBLING, DEVICE);
    view(ALLOC, SIBLING, 0x1f600100, 512, 0x40);
    view(ALLOC, SIBLING, 0x1e800000, 4096, 0); /* already live */
    stream(PASTA_NV_STREAM_CREATED, SIBLING);
    view(ALLOC, CONTEXT, 0xf4800000, 8192, 0); /* the second context's */
    view(ALLOC, SIBLING, 0xf4800000, 8192, 0);
    view(FREE, SIBLING, 0x1e800000, 4096, 0);
    view(FREE, CONTEXT, 0x1e800000, 4096, 0);
    context(CONTEXT_DESTROYING, CONTEXT, 0);
    view(FREE, CONTEXT, 0xf4800000, 8192, 0); /* only visible to it */
    stream(PASTA_NV_STREAM_DESTROYING, CONTEXT);
    view(FREE, CONTEXT, 0x7f4d56c00000, 512, 0);
    context(PASTA_NV_CONTEXT_DESTROYED, CONTEXT, 0);
    context(CONTEXT_DESTROYING, SIBLING, 0); /* its own memory is not reported */
    stream(PASTA_NV_STREAM_DESTROYING, SIBLING);
    view(FREE, SIBLING, 0x1f600100, 512, 0);
    context(PASTA_NV_CONTEXT_DESTROYED, SIBLING, 0);
    create(CONTEXT, DEVICE); /* handle and address again */
    view(ALLOC, CONTEXT, 0x1e800000, 12288, 0);
}

static void copy_by_address(uint64_t context, uint64_t source, uint64_t destination) {
    pasta_nv_memcpy c = copy_of(source, destination, 64, 1);
    c.source_context = c.destination_context = c.api_context = context;
    deliver(PASTA_NV_MEMCPY, PASTA_NV_MEMCPY_STARTING, &c);
}

static void play_peers(void) {
    enum { ALLOC = PASTA_NV_DEVICE_ALLOC, FREE = PASTA_NV_DEVICE_FREE };
    const uint64_t near = 0x33e00000, far = 0x52a10000, later = 0x53a10000, managed = 0x60000000;
    copy_by_address(CONTEXT, near, near + 64); /* one device: as reported by the driver */
    view(ALLOC, CONTEXT, near, 65536, 0);
    create(PEER, DEVICE + 1);
    view(ALLOC, PEER, far, 131072, 0);
    view(ALLOC, CONTEXT, far, 131072, PEER_FLAGS); /* access is enabled */
    copy_by_address(CONTEXT, near, far + 131008);
    view(ALLOC, PEER, near, 65536, PEER_FLAGS);
    copy_by_address(PEER, far, near);
    copy_by_address(CONTEXT, near, near + 4096);
    copy_by_address(CONTEXT, near, far + 131072); /* unowned */
    copy_by_address(CONTEXT, near, 0x1000);
    view(ALLOC, CONTEXT, managed, 4096, 2);
    copy_by_address(PEER, managed, far); /* may be anywhere */
    view(ALLOC, CONTEXT, later, 256, PEER_FLAGS); /* before its owner's callback */
    view(ALLOC, PEER, later, 256, 0);
    copy_by_address(PEER, near, later + 16);
    view(FREE, PEER, near, 65536, 0);
    copy_by_address(PEER, near, far);
    view(FREE, CONTEXT, near, 65536, 0);
    copy_by_address(PEER, near, far); /* freed: as reported by the driver */
    view(FREE, CONTEXT, managed, 4096, 0);
    context(CONTEXT_DESTROYING, CONTEXT, 0);
    view(FREE, CONTEXT, far, 131072, 0);
    context(PASTA_NV_CONTEXT_DESTROYED, CONTEXT, 0); /* "later" was not announced */
    context(CONTEXT_DESTROYING, PEER, 0);
    context(PASTA_NV_CONTEXT_DESTROYED, PEER, 0);
}

static void play_missed(void) {
    enum { ALLOC = PASTA_NV_DEVICE_ALLOC, FREE = PASTA_NV_DEVICE_FREE };
    create(SIBLING, DEVICE);
    view(ALLOC, CONTEXT, 0x10000, 16, 0);
    view(ALLOC, SIBLING, 0x10000, 16, 0);
    view(ALLOC, CONTEXT, 0x10000, 16, 0); /* again: a free was missed */
    view(ALLOC, SIBLING, 0x10000, 16, 0);
    view(ALLOC, SIBLING, 0x10000, 32, 0); /* of another size */
    view(FREE, CONTEXT, 0x10000, 32, 0);  /* by a context that did not announce it */
    view(FREE, CONTEXT, 0x20000, 64, 0);  /* from before we listened */
}

enum { CHURNERS = 8, CHURNS = 1000, CHURN_BYTES = 0x1000 };

static void *churn(void *number) {
    for (uint64_t i = 0; i < CHURNS; i++) {
        uint64_t address = 0x100000000 * (1 + (uint64_t)(uintptr_t)number) + i % 100 * CHURN_BYTES;
        view(PASTA_NV_DEVICE_ALLOC, CONTEXT, address, CHURN_BYTES, 0);
        view(PASTA_NV_DEVICE_ALLOC, PEER, address, CHURN_BYTES, PEER_FLAGS);
        copy_by_address(PEER, address, address + 64);
        if (i + 100 < CHURNS || i % 2) {
            view(PASTA_NV_DEVICE_FREE, PEER, address, CHURN_BYTES, 0);
            view(PASTA_NV_DEVICE_FREE, CONTEXT, address, CHURN_BYTES, 0);
        }
    }
    return NULL;
}

static void play_churn(void) {
    pthread_t threads[CHURNERS];
    create(PEER, DEVICE + 1);
    for (uintptr_t i = 0; i < CHURNERS; i++)
        if (pthread_create(&threads[i], NULL, churn, (void *)i)) exit(94);
    for (int i = 0; i < 20; i++) { /* contexts come and go */
        create(SIBLING, DEVICE);
        view(PASTA_NV_DEVICE_ALLOC, SIBLING, 0x10000, 16, 0);
        context(PASTA_NV_CONTEXT_DESTROYED, SIBLING, 0);
    }
    for (int i = 0; i < CHURNERS; i++) pthread_join(threads[i], NULL);
    context(PASTA_NV_CONTEXT_DESTROYED, PEER, 0);
    context(PASTA_NV_CONTEXT_DESTROYED, CONTEXT, 0);
}

static pasta_nv_launch launch_of(uint64_t handle, const char *name, uint32_t blocks) {
    return (pasta_nv_launch){.context = CONTEXT, .stream = STREAM, .module = MODULE, .function = FUNCTION,
                             .name = name, .grid = {blocks, 2, 1}, .block = {256, 1, 1}, .cluster = {2, 1, 1},
                             .grid_id = 7, .launch = handle, .device = DEVICE, .api_context = CONTEXT,
                             .api_stream = STREAM};
}

static void launch(uint64_t handle, const char *name, uint32_t blocks) {
    pasta_nv_launch l = launch_of(handle, name, blocks);
    deliver(PASTA_NV_LAUNCH, PASTA_NV_LAUNCH_BEGIN, &l);
    deliver(PASTA_NV_LAUNCH, 2, &l);
    memset(l.grid, 0xff, sizeof l.grid); /* valid in begin only */
    deliver(PASTA_NV_LAUNCH, PASTA_NV_LAUNCH_END, &l);
}

static void play_launches(void) {
    for (uint32_t i = 0; i < 10; i++) launch(0x1a0 + i, "_Z4vaddPf", i + 1);
    pasta_nv_launch lost = launch_of(0x1ff, "_Z4failPf", 1); /* a launch that never ends */
    lost.function = FUNCTION + 1;
    deliver(PASTA_NV_LAUNCH, PASTA_NV_LAUNCH_BEGIN, &lost);
    pasta_nv_launch plain = launch_of(0x200, "_Z4failPf", 1);
    plain.function = FUNCTION + 1;
    memset(plain.cluster, 0, sizeof plain.cluster);
    deliver(PASTA_NV_LAUNCH, PASTA_NV_LAUNCH_BEGIN, &plain);
    deliver(PASTA_NV_LAUNCH, PASTA_NV_LAUNCH_END, &plain);
    module(PASTA_NV_MODULE_UNLOADING, MODULE);
    module(PASTA_NV_MODULE_LOADED, MODULE); /* another kernel at the same address */
    launch(0x1a0, "_Z5otherPf", 1);
    printf("looked up %u functions\n", pc_calls());
}

static void node(uint32_t id, pasta_nv_node *n) { deliver(PASTA_NV_GRAPHS, id, n); }

static void play_graph(bool upload, uint32_t launch_id) {
    pasta_nv_graph g = {CONTEXT, STREAM, 0x5151, GRAPH, upload};
    pasta_nv_node n = {.graph = GRAPH, .launch_id = launch_id, .upload = upload};
    deliver(PASTA_NV_GRAPHS, PASTA_NV_GRAPH_BEGIN, &g);
    n.node = 0x91, n.type = PASTA_NV_NODE_KERNEL, n.kernel = launch_of(0, "_Z4nodePf", 5);
    n.kernel.stream = 0x777;
    node(PASTA_NV_NODE_BEGIN, &n);
    node(PASTA_NV_NODE_END, &n);
    n.node = 0x92, n.type = PASTA_NV_NODE_MEMCPY, n.copy = copy_of(0x10, 0x20, 32, 1);
    n.copy.api_context = n.copy.api_stream = 0;
    node(PASTA_NV_NODE_BEGIN, &n);
    node(PASTA_NV_NODE_END, &n);
    n.node = 0x93, n.type = PASTA_NV_NODE_MEMSET;
    n.set = (pasta_nv_memset){CONTEXT, STREAM, 0x5151, 0x40, 16, 1, 0, 4, 0, 1};
    node(PASTA_NV_NODE_BEGIN, &n);
    n.node = 0x94, n.type = PASTA_NV_NODE_ALLOC;
    n.alloc = (pasta_nv_memory){.address = 0x5000, .bytes = 256, .context = CONTEXT, .device = DEVICE, .stream = STREAM};
    node(PASTA_NV_NODE_BEGIN, &n);
    n.node = 0x95, n.type = PASTA_NV_NODE_FREE, n.freed = 0x5000;
    node(PASTA_NV_NODE_BEGIN, &n);
    n.node = 0x96, n.type = 3; /* a host function */
    node(PASTA_NV_NODE_BEGIN, &n);
    deliver(PASTA_NV_GRAPHS, PASTA_NV_GRAPH_END, &g);
}

static void play_events(void) {
    pasta_nv_sync s = {CONTEXT, STREAM};
    deliver(PASTA_NV_SYNCHRONIZE, PASTA_NV_STREAM_SYNCHRONIZED, &s);
    deliver(PASTA_NV_SYNCHRONIZE, PASTA_NV_CONTEXT_SYNCHRONIZED, &s);
    event(PASTA_NV_EVENT_CREATED);
    event(PASTA_NV_EVENT_RECORD);
    event(PASTA_NV_EVENT_STREAM_WAIT);
    event(PASTA_NV_EVENT_SYNCHRONIZE);
    event(PASTA_NV_EVENT_DESTROYED);
}

static void driver_call(uint32_t id, const void *arguments, int32_t result) {
    pasta_nv_api call = {0, "call", arguments, &result, NULL, CONTEXT};
    deliver(PASTA_NV_DRIVER, id, &call);
    call.site = PASTA_NV_API_EXIT;
    deliver(PASTA_NV_DRIVER, id, &call);
}

static void play_managed(void) {
    pasta_nv_attach attach = {CONTEXT, 3, STREAM, 0x5151, 0x7f4d34000000};
    deliver(PASTA_NV_UVM, PASTA_NV_ATTACH, &attach);
    driver_call(PASTA_NV_PREFETCH, &(pasta_nv_prefetch){0x7000, 4096, 1, STREAM}, 0);
    driver_call(PASTA_NV_PREFETCH_V2, &(pasta_nv_prefetch_v2){0x7000, 4096, {2, 0}, 0, STREAM}, 0);
    driver_call(PASTA_NV_PREFETCH_V2_PTSZ, &(pasta_nv_prefetch_v2){0x7000, 64, {1, 2}, 0, STREAM}, 0);
    driver_call(PASTA_NV_PREFETCH, &(pasta_nv_prefetch){0x7000, 4096, 1, STREAM}, 1); /* refused */
    driver_call(PASTA_NV_ADVISE, &(pasta_nv_advise){0x7000, 4096, 1, -1}, 0);
    driver_call(PASTA_NV_ADVISE_V2, &(pasta_nv_advise_v2){0x7000, 4096, 5, {1, 2}}, 0);
    driver_call(1, NULL, 0); /* cuInit: not asked for */
}

static void runtime_profiler(bool start) { /* the runtime's function calls the driver's */
    pasta_nv_api call = {0, "call", NULL, &(int32_t){0}, NULL, CONTEXT};
    uint32_t id = start ? PASTA_NV_RUNTIME_PROFILER_START : PASTA_NV_RUNTIME_PROFILER_STOP;
    deliver(PASTA_NV_RUNTIME, id, &call);
    driver_call(start ? PASTA_NV_PROFILER_START : PASTA_NV_PROFILER_STOP, NULL, 0);
    call.site = PASTA_NV_API_EXIT;
    deliver(PASTA_NV_RUNTIME, id, &call);
}

static void play_profiler(void) {
    runtime_profiler(false);
    launch(0x300, "_Z8profiledv", 1);
    memory(PASTA_NV_DEVICE_ALLOC, 0x8000, 16, 0); /* kept: allocations must be known after a start */
    runtime_profiler(true);
    launch(0x301, "_Z8profiledv", 2);
}

enum { THREADS = 8, LAUNCHES = 2000 };

static void *play_thread(void *number) {
    uint64_t mine = (uint64_t)(uintptr_t)number;
    char name[16];
    snprintf(name, sizeof name, "_Z1k%uv", (unsigned)mine % 4);
    for (uint64_t i = 0; i < LAUNCHES; i++) {
        pasta_nv_launch l = launch_of(mine << 32 | i, name, (uint32_t)i);
        l.context = 0x1000 + mine % 2; /* seen here first, by several threads at once */
        l.function = 0xf00 + mine % 4;
        l.module = MODULE + mine % 4;
        l.stream = mine;
        deliver(PASTA_NV_LAUNCH, PASTA_NV_LAUNCH_BEGIN, &l);
        deliver(PASTA_NV_LAUNCH, PASTA_NV_LAUNCH_END, &l);
        if (i % 500 == 0) module(PASTA_NV_MODULE_UNLOADING, MODULE + 9);
    }
    return NULL;
}

static void play_threads(void) {
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, play_thread, (void *)i)) exit(92);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

static void play_fork(void) {
    pid_t child = fork();
    if (child == 0) {
        launch(0x400, "_Z5childv", 1); /* the parent's CUDA: its callbacks are ignored */
        _exit(0);
    }
    waitpid(child, NULL, 0);
    launch(0x401, "_Z6parentv", 1);
}

static void play_cost(void) {
    enum { COUNT = 1000000 };
    struct timespec begin, end;
    launch(1, "_Z4costv", 1);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (uint32_t i = 0; i < COUNT; i++) launch(i, "_Z4costv", i);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double ns = (double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec);
    printf("%.1f ns per launch\n", ns / COUNT);
}

#include "fake_cuda_work.h"

int main(int count, char **scripts) {
    initialize();
    for (int i = 1; i < count; i++) {
        const char *script = scripts[i];
        if (!strcmp(script, "context")) play_context();
        else if (!strcmp(script, "memory")) play_memory();
        else if (!strcmp(script, "peer")) play_peer();
        else if (!strcmp(script, "siblings")) play_siblings();
        else if (!strcmp(script, "peers")) play_peers();
        else if (!strcmp(script, "missed")) play_missed();
        else if (!strcmp(script, "churn")) play_churn();
        else if (!strcmp(script, "launches")) play_launches();
        else if (!strcmp(script, "graph")) play_graph(true, 0), play_graph(false, 1), play_graph(false, 2);
        else if (!strcmp(script, "events")) play_events();
        else if (!strcmp(script, "managed")) play_managed();
        else if (!strcmp(script, "profiler")) play_profiler();
        else if (!strcmp(script, "threads")) play_threads();
        else if (!strcmp(script, "fork")) play_fork();
        else if (!strcmp(script, "cost")) play_cost();
        else if (strchr(script, '/')) play_work(script);
        else return 93;
    }
    puts("done");
    return 7;
}
