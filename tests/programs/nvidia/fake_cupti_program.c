/* A program and a driver in one, whose calls fake_cupti.c reports: opens what CUDA_INJECTION64_PATH names, as cuInit
 * does, then makes the calls of the scripts named on its command line.  A path is a file of work (work.h); replay:FILE
 * plays a recording (cupti_stream.h).
 */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../../shim/backends/nvidia/cupti_abi.h"
#include "../work.h"
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include "../nvtx_fake.h"
#pragma GCC diagnostic pop

enum { CONTEXT = 0x0c5, PEER = 0x1c6, STREAM = 0x51, FUNCTION = 0xf028, NODES = 16, ON_DEVICE_TIME = 1000 };
static const char KERNEL[] = "_Z4fillIfEvPT_S0_i";

static bool (*deliver)(int32_t, uint32_t, const void *);
static bool (*record)(const void *);
static uint64_t (*now)(void);
static int32_t (*flush)(uint32_t);
static bool (*sample)(uint64_t, const void *, uint64_t, uint32_t, const char *, uint64_t, uint32_t, uint32_t, uint32_t);
static uint64_t (*count)(uint64_t, const uint32_t *, const uint32_t *);
static void (*driver_captures)(uint64_t);
static uint32_t correlations;

static void *required(void *found, const char *what) {
    if (!found) {
        fprintf(stderr, "fake program: %s: %s\n", what, dlerror());
        exit(90);
    }
    return found;
}

static void initialize(void) {
    const char *injection = getenv("CUDA_INJECTION64_PATH"), *driver = getenv("FAKE_DRIVER");
    if (driver) {
        void *library = required(dlopen(driver, RTLD_NOW), "fake driver");
        *(void **)&driver_captures = required(dlsym(library, "fake_driver_capture"), "fake_driver_capture");
    }
    if (injection) {
        void *library = required(dlopen(injection, RTLD_NOW), "injection");
        int (*entry)(void);
        *(void **)&entry = required(dlsym(library, "InitializeInjection"), "InitializeInjection");
        if (entry() != 1) exit(91);
        entry(); /* a second call must change nothing */
    }
    void *fake = required(dlopen(getenv("FAKE_CUPTI"), RTLD_NOW), "fake library");
    *(void **)&deliver = required(dlsym(fake, "fake_cupti_deliver"), "fake_cupti_deliver");
    *(void **)&record = required(dlsym(fake, "fake_cupti_record"), "fake_cupti_record");
    *(void **)&now = required(dlsym(fake, "fake_cupti_now"), "fake_cupti_now");
    *(void **)&sample = dlsym(fake, "fake_cupti_sample");
    *(void **)&count = dlsym(fake, "fake_cupti_count");
    *(void **)&flush = required(dlsym(fake, "cuptiActivityFlushAll"), "cuptiActivityFlushAll");
}

/* ---- calls ---- */

static uint32_t begin(uint32_t id, const void *arguments, const char *symbol) {
    uint32_t correlation = __atomic_add_fetch(&correlations, 1, __ATOMIC_RELAXED);
    uint64_t user = 0;
    pasta_cupti_call c = {{0, "call", arguments, NULL, symbol, CONTEXT}, CONTEXT & 0xff, &user, correlation};
    deliver(PASTA_CUPTI_DRIVER, id, &c);
    return correlation;
}

static void end(uint32_t id, const void *arguments, uint32_t correlation, int32_t result) {
    uint64_t user = 0;
    pasta_cupti_call c = {{PASTA_NV_API_EXIT, "call", arguments, &result, NULL, CONTEXT}, CONTEXT & 0xff, &user, correlation};
    deliver(PASTA_CUPTI_DRIVER, id, &c);
}

static uint32_t call(uint32_t id, const void *arguments) {
    uint32_t correlation = begin(id, arguments, NULL);
    end(id, arguments, correlation, 0);
    return correlation;
}
#define CALL(name, ...) call(PASTA_CUPTI_##name, (uint64_t[]){__VA_ARGS__, 0})

static void resource(uint32_t id, uint64_t stream, const void *more) {
    pasta_cupti_resource r = {CONTEXT, stream, more};
    deliver(PASTA_CUPTI_RESOURCE, id, &r);
}

/* ---- the device: a clock that only goes on when something runs ---- */

static uint32_t stream_id(uint64_t stream) { return (uint32_t)(stream & 0xffff) + 7; }

static uint64_t device_time(void) { /* after all that was submitted */
    static uint64_t last;
    uint64_t time = now() + 10;
    last = time > last ? time : last + 1;
    uint64_t begins = last;
    last += ON_DEVICE_TIME;
    return begins;
}

static pasta_cupti_kernel kernel(uint32_t correlation, uint64_t stream, const uint32_t *grid, const uint32_t *block,
                                 uint32_t shared) {
    uint64_t start = device_time();
    pasta_cupti_kernel k = {.kind = PASTA_CUPTI_KERNEL, .registers = 40, .start = start, .end = start + ON_DEVICE_TIME,
                            .context = CONTEXT & 0xff, .stream = stream_id(stream), .correlation = correlation,
                            .shared_dynamic = (int32_t)shared, .local = 16, .local_total_2 = 1 << 20,
                            .name = KERNEL, .channel = 5, .channel_type = 1, .shared_executed = 32768, .priority = -1};
    for (int axis = 0; axis < 3; axis++) k.grid[axis] = (int32_t)grid[axis], k.block[axis] = (int32_t)block[axis];
    return k;
}

static uint32_t launch(uint64_t function, const char *name, uint32_t blocks, uint64_t stream) {
    pasta_cupti_launch l = {function, {blocks, 2, 1}, {64, 1, 1}, 256, stream, NULL, NULL};
    uint32_t correlation = begin(PASTA_CUPTI_cuLaunchKernel, &l, name);
    end(PASTA_CUPTI_cuLaunchKernel, &l, correlation, 0);
    return correlation;
}

static void ran(uint32_t correlation, uint64_t stream, uint32_t blocks) {
    pasta_cupti_kernel k = kernel(correlation, stream, (uint32_t[]){blocks, 2, 1}, (uint32_t[]){64, 1, 1}, 256);
    record(&k);
}

static void copied(uint32_t correlation, uint8_t kind, uint64_t bytes, uint64_t stream, uint64_t node, bool async) {
    uint64_t start = device_time();
    pasta_cupti_copy c = {.kind = PASTA_CUPTI_COPY, .direction = kind, .flags = async, .bytes = bytes, .start = start,
                          .end = start + ON_DEVICE_TIME, .context = CONTEXT & 0xff, .stream = stream_id(stream),
                          .correlation = correlation, .node = node};
    record(&c);
}

static void was_set(uint32_t correlation, uint32_t value, uint64_t bytes, uint64_t stream, bool async) {
    uint64_t start = device_time();
    pasta_cupti_set s = {.kind = PASTA_CUPTI_SET, .value = value, .bytes = bytes, .start = start, .flags = async,
                         .end = start + ON_DEVICE_TIME, .context = CONTEXT & 0xff, .stream = stream_id(stream),
                         .correlation = correlation};
    record(&s);
}

/* ---- scripts ---- */

static pasta_cupti_module module = {3, 24, "\177ELF of a cubin\0\0\0\0\0\0\0"};

/* The file that FAKE_CUBIN names, or a few bytes. */
static void play_module(void) {
    const char *path = getenv("FAKE_CUBIN");
    FILE *file = path ? fopen(path, "rb") : NULL;
    static char bytes[1 << 18];
    if (file) {
        module.bytes = fread(bytes, 1, sizeof bytes, file);
        module.cubin = bytes;
        fclose(file);
    }
    CALL(cuModuleLoadData, 0, 0);
    resource(PASTA_CUPTI_MODULE_LOADED, 0, &module);
}

static void play_context(void) {
    resource(PASTA_CUPTI_CONTEXT_CREATED, 0, NULL);
    resource(PASTA_CUPTI_STREAM_CREATED, STREAM, NULL);
    play_module();
}

static void play_end(void) {
    pasta_cupti_module m = {3, 0, NULL};
    resource(PASTA_CUPTI_MODULE_UNLOADING, 0, &m);
    resource(PASTA_CUPTI_CONTEXT_DESTROYING, 0, NULL);
    resource(PASTA_CUPTI_STREAM_DESTROYING, STREAM, NULL); /* with its context */
}

static void play_launches(void) {
    ran(launch(FUNCTION, KERNEL, 8, STREAM), STREAM, 8);
    ran(launch(FUNCTION + 0x1000000, "_Z6kernelv", 3, STREAM), STREAM, 3); /* a CUkernel */
    ran(launch(FUNCTION + 1, NULL, 4, 1), 0, 4);                         /* its name is asked for; the legacy stream */
    pasta_cupti_attribute attributes[] = {{2, 0, {1}}, {PASTA_CUPTI_CLUSTER, 0, {2, 1, 1}}};
    pasta_cupti_config config = {{16, 1, 1}, {128, 1, 1}, 64, 0, attributes, 2};
    pasta_cupti_launch_ex ex = {&config, FUNCTION + 0x102, NULL, NULL};
    uint32_t correlation = begin(PASTA_CUPTI_cuLaunchKernelEx_ptsz, &ex, "_Z7clusterv");
    end(PASTA_CUPTI_cuLaunchKernelEx_ptsz, &ex, correlation, 0);
    pasta_cupti_kernel k = kernel(correlation, 2, config.grid, config.block, 64);
    k.cluster[0] = 2, k.cluster[1] = k.cluster[2] = 1, k.active_clusters = 66;
    k.queued = k.start - 2000, k.submitted = k.start - 1000;
    record(&k);
    pasta_cupti_launch refused = {FUNCTION, {1, 1, 1}, {2048, 1, 1}, 0, STREAM, NULL, NULL};
    correlation = begin(PASTA_CUPTI_cuLaunchKernel, &refused, KERNEL);
    end(PASTA_CUPTI_cuLaunchKernel, &refused, correlation, 1);
    k = kernel(launch(FUNCTION, KERNEL, 5, STREAM), STREAM, (uint32_t[]){5, 2, 1}, (uint32_t[]){64, 1, 1}, 256);
    k.start = k.end = 0; /* still runs at the end */
    record(&k);
}

/* Work that no callback announced: a call that PASTA does not know. */
static void play_unknown(void) {
    uint32_t correlation = call(837, (uint64_t[]){0x1000, 0x2000, 64, 0, STREAM}); /* cuMemcpyWithAttributesAsync */
    copied(correlation, PASTA_CUPTI_HTOD, 64, STREAM, 0, true);
    ran(++correlations, STREAM, 7);
    was_set(++correlations, 5, 100, 0x999, true); /* on a stream that PASTA does not know */
}

static void play_copies(void) {
    const uint64_t device = 0x10000, other = 0x20000, host = 0x7f0000, array = 0xa1;
    pasta_cupti_resource peer = {PEER, 0, NULL};
    deliver(PASTA_CUPTI_RESOURCE, PASTA_CUPTI_CONTEXT_CREATED, &peer);
    CALL(cuMemAlloc_v2, (uintptr_t) & (uint64_t){device}, 4096);
    CALL(cuMemHostAlloc, (uintptr_t) & (uint64_t){host}, 4096, 0);
    copied(CALL(cuMemcpyHtoD_v2, device, host, 16), PASTA_CUPTI_HTOD, 16, 0, 0, false);
    copied(CALL(cuMemcpyDtoHAsync_v2_ptsz, host, device, 32, 0), PASTA_CUPTI_DTOH, 32, 2, 0, true);
    copied(CALL(cuMemcpyDtoDAsync_v2, other, device, 48, STREAM), PASTA_CUPTI_DTOD, 48, STREAM, 0, true);
    copied(CALL(cuMemcpy, device + 64, host, 64), PASTA_CUPTI_HTOD, 64, 0, 0, false);      /* by address: to */
    copied(CALL(cuMemcpyAsync, 0x5000, device + 8, 80, STREAM), PASTA_CUPTI_DTOH, 80, STREAM, 0, true); /* pageable */
    pasta_cupti_peer_copy p = {.kind = PASTA_CUPTI_PEER_COPY, .direction = PASTA_CUPTI_PTOP, .bytes = 96, .start = device_time(),
                               .source_device = 0, .destination_device = 1, .context = CONTEXT & 0xff, .stream = 7};
    p.end = p.start + ON_DEVICE_TIME;
    p.correlation = CALL(cuMemcpyPeer, other, PEER, device, CONTEXT, 96);
    record(&p);
    copied(CALL(cuMemcpyHtoA_v2, array, 0, host, 112), PASTA_CUPTI_HTOA, 112, 0, 0, false);
    copied(CALL(cuMemcpyAtoH_v2, host, array, 0, 128), PASTA_CUPTI_ATOH, 128, 0, 0, false);
    copied(CALL(cuMemcpyAtoA_v2, array, 0, array + 1, 0, 144), PASTA_CUPTI_ATOA, 144, 0, 0, false);
    pasta_cupti_copy_2d rows = {.source_x = 8, .source_y = 2, .source_type = PASTA_CUPTI_HOST, .source_host = host,
                                .source_pitch = 100, .destination_type = PASTA_CUPTI_ON_DEVICE, .destination_device = device,
                                .destination_pitch = 200, .width = 20, .height = 8};
    copied(CALL(cuMemcpy2DAsync_v2, (uintptr_t)&rows, STREAM), PASTA_CUPTI_HTOD, 160, STREAM, 0, true);
    pasta_cupti_copy_3d box = {.source_z = 1, .source_type = PASTA_CUPTI_UNIFIED, .source_device = device, .source_pitch = 64,
                               .source_height = 4, .destination_type = PASTA_CUPTI_ARRAY, .destination_array = array,
                               .width = 11, .height = 4, .depth = 4};
    copied(CALL(cuMemcpy3D_v2, (uintptr_t)&box), PASTA_CUPTI_DTOA, 176, 0, 0, false);
    was_set(CALL(cuMemsetD8_v2, device, 7, 10), 7, 10, 0, false);
    was_set(CALL(cuMemsetD32Async, device, 0xabcdef01, 10, STREAM), 0xabcdef01, 40, STREAM, true);
    was_set(CALL(cuMemsetD2D16_v2, device, 128, 9, 10, 3), 9, 60, 0, false);
}

static void play_memory(void) {
    uint64_t out, pitch = 512;
    out = 0x100000; CALL(cuMemAlloc_v2, (uintptr_t)&out, 1000);
    out = 0x200000; CALL(cuMemAllocPitch_v2, (uintptr_t)&out, (uintptr_t)&pitch, 300, 10, 4);
    out = 0x300000; CALL(cuMemAllocManaged, (uintptr_t)&out, 65536, 1);
    out = 0x400000; CALL(cuMemAllocHost_v2, (uintptr_t)&out, 4096);
    CALL(cuMemHostRegister_v2, 0x500000, 8192, 0);
    out = 0x600000; CALL(cuMemAllocAsync, (uintptr_t)&out, 256, STREAM);
    out = 0x700000; CALL(cuMemAllocFromPoolAsync_ptsz, (uintptr_t)&out, 512, 0x9001, 0);
    out = 0x800000; CALL(cuMemAddressReserve, (uintptr_t)&out, 1 << 20, 0, 0, 0);
    CALL(cuMemMap, 0x800000, 4096, 0, 1, 0);
    CALL(cuMemMap, 0x801000, 4096, 0, 2, 0);
    out = 0xa1; CALL(cuArrayCreate_v2, (uintptr_t)&out, 0);
    out = 0x900000; CALL(cuIpcOpenMemHandle_v2, (uintptr_t)&out, 0);
    uint64_t description[] = {0, 16384};
    out = 0xa00000; CALL(cuExternalMemoryGetMappedBuffer, (uintptr_t)&out, 0xe, (uintptr_t)description);
    out = 0xb00000;
    uint64_t refused[] = {(uintptr_t)&out, 1};
    end(PASTA_CUPTI_cuMemAlloc_v2, refused, begin(PASTA_CUPTI_cuMemAlloc_v2, refused, NULL), 2);
    CALL(cuMemFree_v2, 0); /* nothing */
    CALL(cuMemFree_v2, 0x100000);
    CALL(cuMemFree_v2, 0x200000);
    CALL(cuMemFree_v2, 0x300000);
    CALL(cuMemFreeHost, 0x400000);
    CALL(cuMemHostUnregister, 0x500000);
    CALL(cuMemFreeAsync, 0x600000, STREAM);
    CALL(cuMemFreeAsync, 0x700000, STREAM);
    CALL(cuMemUnmap, 0x800000, 8192);
    CALL(cuMemAddressFree, 0x800000, 1 << 20);
    CALL(cuArrayDestroy, 0xa1);
    CALL(cuIpcCloseMemHandle, 0x900000);
    CALL(cuMemFree_v2, 0xa00000);
}

static void node_resource(uint32_t id, uint64_t node, uint64_t original) {
    pasta_cupti_graph g = {.graph = 0x6000, .node = node, .original_node = original};
    resource(id, 0, &g);
}

/* A captured graph: its nodes are handles 0x901 and on, their clones 0xc01 and on. */
static void play_graph(bool names_sources) {
    uint64_t graph;
    CALL(cuStreamBeginCapture_v2, STREAM, 0);
    if (driver_captures) driver_captures(STREAM);
    for (uint32_t i = 1; i <= 2; i++) {
        launch(FUNCTION, KERNEL, i, STREAM); /* captured: does not run */
        node_resource(PASTA_CUPTI_NODE_CREATED, 0x900 + i, 0);
    }
    CALL(cuMemcpyHtoDAsync_v2, 0x10000, 0x7f0000, 64, STREAM);
    node_resource(PASTA_CUPTI_NODE_CREATED, 0x903, 0);
    launch(FUNCTION, KERNEL, 77, STREAM + 1); /* of another stream: runs */
    if (driver_captures) driver_captures(0);
    CALL(cuStreamEndCapture, STREAM, (uintptr_t)&graph);
    for (uint32_t i = 1; i <= 3; i++) node_resource(PASTA_CUPTI_NODE_CLONED, 0xc00 + i, 0x900 + i);
    uint32_t runs[2];
    for (int run = 0; run < 2; run++) runs[run] = CALL(cuGraphLaunch, 0x99, STREAM);
    launch(FUNCTION, KERNEL, 78, STREAM);
    for (int run = 0; run < 2; run++) {
        for (uint32_t i = 1; i <= 2; i++) {
            pasta_cupti_kernel k = kernel(runs[run], STREAM, (uint32_t[]){i, 2, 1}, (uint32_t[]){64, 1, 1}, 256);
            k.node = 0xc00 + i;
            if (names_sources) k.node = 0xd00 + i, k.source_node = 0x900 + i;
            record(&k);
        }
        copied(runs[run], PASTA_CUPTI_HTOD, 64, STREAM, 0xc03, true);
    }
}

static void play_events(void) {
    CALL(cuEventCreate, (uintptr_t) & (uint64_t){0xe1}, 0);
    CALL(cuEventRecord, 0xe1, STREAM);
    CALL(cuStreamWaitEvent, 0, 0xe1, 0);
    uint32_t correlation = begin(PASTA_CUPTI_cuEventSynchronize, (uint64_t[]){0xe1}, NULL);
    usleep(2000);
    end(PASTA_CUPTI_cuEventSynchronize, (uint64_t[]){0xe1}, correlation, 0);
    CALL(cuStreamSynchronize_ptsz, 0);
    CALL(cuCtxSynchronize, 0);
    CALL(cuCtxSynchronize_v2, CONTEXT);
    CALL(cuEventDestroy_v2, 0xe1);
}

static void driver_call(uint32_t id, const void *arguments, int32_t result) {
    end(id, arguments, begin(id, arguments, NULL), result);
}

static void play_managed(void) {
    driver_call(PASTA_CUPTI_cuStreamAttachMemAsync, (uint64_t[]){STREAM, 0x7000, 0, 1}, 0);
    driver_call(PASTA_CUPTI_cuMemPrefetchAsync_v2, &(pasta_nv_prefetch_v2){0x7000, 4096, {1, 2}, 0, STREAM}, 0);
    driver_call(PASTA_CUPTI_cuMemAdvise, &(pasta_nv_advise){0x7000, 4096, 1, -1}, 0);
    for (uint32_t what = 1; what <= 8; what++) {
        pasta_cupti_uvm u = {.kind = PASTA_CUPTI_UVM, .what = what, .value = 4096 + what, .start = now(), .address = 0x7000,
                             .source = 0, .destination = 1, .flags = 1};
        u.end = what == PASTA_CUPTI_UVM_CPU_FAULTS ? 0 : u.start + 500;
        record(&u);
    }
    pasta_cupti_overhead o = {.kind = PASTA_CUPTI_OVERHEAD, .what = PASTA_CUPTI_OVERHEAD_FUNCTION,
                              .object_kind = PASTA_CUPTI_OF_THREAD, .thread = 77, .start = 1000, .end = 2000};
    record(&o);
}

/* The runtime's cudaProfilerStart and cudaProfilerStop call these. */
static void profiler(bool start) {
    driver_call(start ? PASTA_CUPTI_cuProfilerStart : PASTA_CUPTI_cuProfilerStop, (uint64_t[]){0}, 0);
}

/* Records come after profiling stopped: those of work that began before are results, the others nothing. */
static void play_profiler(void) {
    uint32_t before = launch(FUNCTION, KERNEL, 1, STREAM), graph = CALL(cuGraphLaunch, 0x99, STREAM);
    uint32_t copy = CALL(cuMemcpyHtoDAsync_v2, 0x10000, 0x7f0000, 64, STREAM);
    profiler(false);
    uint32_t during = launch(FUNCTION, KERNEL, 2, STREAM);
    ran(before, STREAM, 1);
    ran(graph, STREAM, 9);
    copied(copy, PASTA_CUPTI_HTOD, 64, STREAM, 0, true);
    ran(during, STREAM, 2);
    flush(0);
    profiler(true);
    ran(launch(FUNCTION, KERNEL, 3, STREAM), STREAM, 3);
}

/* The device's clock is off: a kernel begins before its launch. */
static void play_early(void) {
    pasta_cupti_kernel k = kernel(launch(FUNCTION, KERNEL, 1, STREAM), STREAM, (uint32_t[]){1, 2, 1}, (uint32_t[]){64, 1, 1}, 256);
    k.start -= 50000000, k.end -= 50000000;
    record(&k);
}

enum { THREADS = 8, LAUNCHES = 5000 };

static void *play_thread(void *number) {
    uint64_t mine = (uint64_t)(uintptr_t)number;
    for (uint32_t i = 0; i < LAUNCHES; i++) {
        uint32_t correlation = launch(0xf000 + (mine << 8) + i % 4, KERNEL, i + 1, mine);
        ran(correlation, mine, i + 1);
        if (i % 500 == 0) flush(0);
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
        ran(launch(FUNCTION, "_Z5childv", 1, STREAM), STREAM, 1); /* the parent's CUDA: ignored */
        exit(0);
    }
    waitpid(child, NULL, 0);
    ran(launch(FUNCTION, "_Z6parentv", 1, STREAM), STREAM, 1);
}

/* More calls than are remembered before the first record comes. */
static void play_flood(void) {
    enum { COUNT = (1 << 16) + 10 };
    uint32_t first = correlations + 1;
    for (uint32_t i = 0; i < COUNT; i++) launch(FUNCTION, KERNEL, 1, STREAM);
    for (uint32_t i = 0; i < COUNT; i++) ran(first + i, STREAM, 1);
}

static void play_cost(void) {
    enum { COUNT = 1000000 };
    struct timespec from, to;
    launch(FUNCTION, KERNEL, 1, STREAM);
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (uint32_t i = 0; i < COUNT; i++) launch(FUNCTION, KERNEL, i, STREAM);
    clock_gettime(CLOCK_MONOTONIC, &to);
    printf("%.1f ns per launch\n", ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec)) / COUNT);
}

static void play_kill(void) {
    ran(launch(FUNCTION, KERNEL, 1, STREAM), STREAM, 1);
    usleep(400000); /* a regular flush */
    kill(getpid(), SIGKILL);
}

/* ---- work of a file ---- */

static uint64_t work_next = 0x7f4d00000000, work_handle = 0x100, captured_stream, captured_graph;
static struct {
    char type;
    uint32_t grid[3], block[3], shared;
    uint8_t direction;
    uint64_t bytes, stream;
} captured[NODES];
static uint32_t captured_count;

static uint8_t work_direction(const work_step *s) {
    bool to = work_named[work_place(s->word[1])].kind != 'h', from = work_named[work_place(s->word[2])].kind != 'h';
    return from ? (to ? PASTA_CUPTI_DTOD : PASTA_CUPTI_DTOH) : PASTA_CUPTI_HTOD;
}

static void work_copy(const work_step *s) {
    uint64_t to = work_value(s, 1), from = work_value(s, 2), bytes = work_number(s, 3), stream = work_value(s, 4);
    uint8_t direction = work_direction(s);
    static const uint32_t ids[] = {[PASTA_CUPTI_HTOD] = PASTA_CUPTI_cuMemcpyHtoD_v2, [PASTA_CUPTI_DTOH] = PASTA_CUPTI_cuMemcpyDtoH_v2,
                                   [PASTA_CUPTI_DTOD] = PASTA_CUPTI_cuMemcpyDtoD_v2};
    uint32_t correlation = call(ids[direction] + (stream != 0), (uint64_t[]){to, from, bytes, stream});
    if (stream && stream == captured_stream) {
        node_resource(PASTA_CUPTI_NODE_CREATED, 0x901 + captured_count, 0);
        captured[captured_count].type = 'c', captured[captured_count].direction = direction;
        captured[captured_count++].bytes = bytes;
    } else {
        copied(correlation, direction, bytes, stream, 0, stream != 0);
    }
}

static void work_rows(const work_step *s) {
    uint64_t stream = work_value(s, 7);
    pasta_cupti_copy_2d rows = {.source_type = PASTA_CUPTI_UNIFIED, .source_device = work_value(s, 2),
                                .source_pitch = work_number(s, 4), .destination_type = PASTA_CUPTI_UNIFIED,
                                .destination_device = work_value(s, 1), .destination_pitch = work_number(s, 3),
                                .width = work_number(s, 5), .height = work_number(s, 6)};
    uint32_t id = stream ? PASTA_CUPTI_cuMemcpy2DAsync_v2 : PASTA_CUPTI_cuMemcpy2D_v2;
    copied(call(id, (uint64_t[]){(uintptr_t)&rows, stream}), work_direction(s), rows.width * rows.height, stream, 0, stream != 0);
}

static void work_set(const work_step *s) {
    uint64_t stream = work_value(s, 5), bytes = work_number(s, 3);
    uint32_t plain = bytes == 1 ? PASTA_CUPTI_cuMemsetD8_v2 : bytes == 2 ? PASTA_CUPTI_cuMemsetD16_v2 : PASTA_CUPTI_cuMemsetD32_v2;
    uint32_t async = bytes == 1 ? PASTA_CUPTI_cuMemsetD8Async : bytes == 2 ? PASTA_CUPTI_cuMemsetD16Async : PASTA_CUPTI_cuMemsetD32Async;
    uint32_t correlation = call(stream ? async : plain, (uint64_t[]){work_value(s, 1), work_number(s, 2), work_number(s, 4), stream});
    was_set(correlation, (uint32_t)work_number(s, 2), bytes * work_number(s, 4), stream, stream != 0);
}

static void work_area(const work_step *s) {
    uint64_t stream = work_value(s, 6);
    uint32_t id = stream ? PASTA_CUPTI_cuMemsetD2D8Async : PASTA_CUPTI_cuMemsetD2D8_v2;
    uint32_t correlation = call(id, (uint64_t[]){work_value(s, 1), work_number(s, 2), work_number(s, 3), work_number(s, 4),
                                                 work_number(s, 5), stream});
    was_set(correlation, (uint32_t)work_number(s, 3), work_number(s, 4) * work_number(s, 5), stream, stream != 0);
}

static void work_launch(const work_step *s) {
    pasta_cupti_launch l = {FUNCTION, {0}, {0}, (uint32_t)work_number(s, 7), work_value(s, 9), NULL, NULL};
    for (int axis = 0; axis < 3; axis++) {
        l.grid[axis] = (uint32_t)work_number(s, 1 + axis);
        l.block[axis] = (uint32_t)work_number(s, 4 + axis);
    }
    uint32_t correlation = begin(PASTA_CUPTI_cuLaunchKernel, &l, KERNEL);
    end(PASTA_CUPTI_cuLaunchKernel, &l, correlation, 0);
    if (l.stream && l.stream == captured_stream) {
        node_resource(PASTA_CUPTI_NODE_CREATED, 0x901 + captured_count, 0);
        captured[captured_count].type = 'k', captured[captured_count].shared = l.shared;
        memcpy(captured[captured_count].grid, l.grid, sizeof l.grid);
        memcpy(captured[captured_count++].block, l.block, sizeof l.block);
    } else {
        pasta_cupti_kernel k = kernel(correlation, l.stream, l.grid, l.block, l.shared);
        record(&k);
    }
}

static void work_run(const work_step *s) {
    uint64_t stream = work_value(s, 2);
    uint32_t correlation = CALL(cuGraphLaunch, work_value(s, 1), stream);
    for (uint32_t i = 0; i < captured_count; i++) {
        if (captured[i].type == 'c') {
            copied(correlation, captured[i].direction, captured[i].bytes, stream, 0xc01 + i, true);
            continue;
        }
        pasta_cupti_kernel k = kernel(correlation, stream, captured[i].grid, captured[i].block, captured[i].shared);
        k.node = 0xc01 + i;
        record(&k);
    }
}

static void work_alloc(const work_step *s) {
    int place = work_place(s->word[1]);
    uint64_t stream = work_value(s, 4), out = work_named[place].value = work_next += 0x100000;
    char kind = !strcmp(s->word[2], "pinned") ? 'h' : !strcmp(s->word[2], "pool") ? 'p' : s->word[2][0];
    uint32_t id = kind == 'h' ? PASTA_CUPTI_cuMemHostAlloc : kind == 'p' ? PASTA_CUPTI_cuMemAllocAsync
                  : kind == 'm' ? PASTA_CUPTI_cuMemAllocManaged : PASTA_CUPTI_cuMemAlloc_v2;
    work_named[place].kind = (uint64_t)kind;
    call(id, (uint64_t[]){(uintptr_t)&out, work_number(s, 3), kind == 'p' ? stream : 0, 0});
}

static void work_free(const work_step *s) {
    int place = work_place(s->word[1]);
    char kind = (char)work_named[place].kind;
    uint32_t id = kind == 'h' ? PASTA_CUPTI_cuMemFreeHost : kind == 'p' ? PASTA_CUPTI_cuMemFreeAsync : PASTA_CUPTI_cuMemFree_v2;
    call(id, (uint64_t[]){work_named[place].value, work_value(s, 2)});
}

static void work_captures(uint64_t stream) {
    captured_stream = stream;
    if (driver_captures) driver_captures(stream);
}

static void work_step_of_cuda(const work_step *s) {
    uint64_t first = work_value(s, 1), second = work_value(s, 2);
    if (WORK_IS("stream")) work_name(s->word[1], ++work_handle), resource(PASTA_CUPTI_STREAM_CREATED, work_handle, NULL);
    else if (WORK_IS("unstream")) resource(PASTA_CUPTI_STREAM_DESTROYING, first, NULL);
    else if (WORK_IS("alloc")) work_alloc(s);
    else if (WORK_IS("free")) work_free(s);
    else if (WORK_IS("copy")) work_copy(s);
    else if (WORK_IS("rows")) work_rows(s);
    else if (WORK_IS("set")) work_set(s);
    else if (WORK_IS("area")) work_area(s);
    else if (WORK_IS("launch")) work_launch(s);
    else if (WORK_IS("event")) work_name(s->word[1], ++work_handle), CALL(cuEventCreate, (uintptr_t)&work_handle, 0);
    else if (WORK_IS("record")) CALL(cuEventRecord, first, second);
    else if (WORK_IS("wait")) CALL(cuStreamWaitEvent, second, first, 0);
    else if (WORK_IS("await")) CALL(cuEventSynchronize, first);
    else if (WORK_IS("unevent")) CALL(cuEventDestroy_v2, first);
    else if (WORK_IS("drain") && s->count > 1) CALL(cuStreamSynchronize, first);
    else if (WORK_IS("drain") || WORK_IS("device")) CALL(cuCtxSynchronize, 0);
    else if (WORK_IS("push")) nvtxRangePushA(s->word[1]);
    else if (WORK_IS("pop")) nvtxRangePop();
    else if (WORK_IS("mark")) nvtxMarkA(s->word[1]);
    else if (WORK_IS("prefetch"))
        driver_call(PASTA_CUPTI_cuMemPrefetchAsync,
                    &(pasta_nv_prefetch){first, work_number(s, 2), (int32_t)work_number(s, 3), work_value(s, 4)}, 0);
    else if (WORK_IS("advise"))
        driver_call(PASTA_CUPTI_cuMemAdvise,
                    &(pasta_nv_advise){first, work_number(s, 2), (int32_t)work_number(s, 3), (int32_t)work_number(s, 4)}, 0);
    else if (WORK_IS("attach"))
        CALL(cuStreamAttachMemAsync, work_value(s, 3), first, work_number(s, 2), work_number(s, 4));
    else if (WORK_IS("capture")) CALL(cuStreamBeginCapture_v2, first, 0), work_captures(first), captured_count = 0;
    else if (WORK_IS("captured")) CALL(cuStreamEndCapture, second, (uintptr_t)&captured_graph), work_captures(0);
    else if (WORK_IS("instantiate")) {
        work_name(s->word[1], ++work_handle);
        for (uint32_t i = 0; i < captured_count; i++) node_resource(PASTA_CUPTI_NODE_CLONED, 0xc01 + i, 0x901 + i);
    } else if (WORK_IS("run")) work_run(s);
    else if (WORK_IS("off") || WORK_IS("on")) profiler(WORK_IS("on"));
    else exit(95);
}

static void play_work(const char *path) {
    resource(PASTA_CUPTI_CONTEXT_CREATED, 0, NULL);
    play_module();
    work_do(path, work_step_of_cuda);
}

/* One kernel and one copy, whose records come when their buffer is handed over. */
static void play_step(void) {
    ran(launch(FUNCTION, KERNEL, 1, STREAM), STREAM, 1);
    copied(CALL(cuMemcpyHtoDAsync_v2, 0x10000, 0x7f0000, 64, STREAM), PASTA_CUPTI_HTOD, 64, STREAM, 0, true);
    usleep(1000); /* has run */
}

/* Reasons by their place in fake_cupti_sampling.c. */
enum { SELECTED, LONG_NOT_ISSUED, LONG, WAITS, WAIT_NOT_ISSUED };

static void sampled(const char *name, uint32_t index, uint64_t offset, uint32_t reason, uint32_t samples, uint32_t correlation) {
    if (sample) sample(CONTEXT, module.cubin, module.bytes, index, name, offset, reason, samples, correlation);
}

/* Three instructions of a kernel, as many samples as blocks; two launches of it, and a function that is no kernel. */
static void play_samples(void) {
    const char *name = getenv("FAKE_KERNEL") ? getenv("FAKE_KERNEL") : KERNEL;
    for (uint32_t blocks = 1; blocks <= 2; blocks++) {
        uint32_t correlation = launch(FUNCTION, name, blocks, STREAM);
        sampled(name, 7, 0x40, SELECTED, 5 * blocks, correlation);
        sampled(name, 7, 0x90, LONG, 100 * blocks, correlation);
        sampled(name, 7, 0x90, LONG_NOT_ISSUED, 80 * blocks, correlation);
        sampled(name, 7, 0x90, WAITS, 10 * blocks, correlation);
        ran(correlation, STREAM, blocks);
    }
    sampled("_Z6calledv", 9, 0x10, WAIT_NOT_ISSUED, 3, 0);
}

static void play_stopped(void) {
    profiler(false);
    play_samples();
    profiler(true);
}

/* Launches outside and inside of windows. */
static void play_windows(void) {
    for (uint32_t i = 0; i < 8; i++) {
        const char *name = i % 4 == 3 ? "_Z5otherv" : KERNEL;
        uint32_t correlation = launch(FUNCTION + i % 4, name, i + 1, STREAM);
        sampled(name, 7, 0x40, LONG, i + 1, correlation);
        ran(correlation, STREAM, i + 1);
        flush(0); /* times come before samples */
    }
}

/* Kernels of a context, which run inside the call as often as passes need; a record for each time. */
static void counted_launch(uint64_t context, uint32_t id, const char *name, uint32_t blocks, int32_t result) {
    /* a number, and a map of bf16 (1024, 512) at 0x7f0000000000 with boxes of (8, 32) */
    uint64_t arguments[] = {blocks, 0x7f0000000000, 0x10000008510, 0, 0, 0x1ff000003ff, 0, 0x700000000000000, 0x1f};
    uint64_t bytes = sizeof arguments;
    void *extra[] = {(void *)PASTA_CUPTI_EXTRA_BUFFER, arguments, (void *)PASTA_CUPTI_EXTRA_BYTES, &bytes, NULL};
    pasta_cupti_launch l = {FUNCTION + (name != KERNEL) + 2 * (context != CONTEXT), {blocks, 1, 1}, {64, 1, 1}, 0, STREAM,
                            NULL, name != KERNEL ? extra : NULL};
    uint32_t correlation = __atomic_add_fetch(&correlations, 1, __ATOMIC_RELAXED);
    uint64_t user = 0, times = 0;
    pasta_cupti_call c = {{0, "call", &l, NULL, name, context}, (uint32_t)context & 0xff, &user, correlation};
    deliver(PASTA_CUPTI_DRIVER, id, &c);
    if (result == 0) times = count ? count(context, l.grid, l.block) : 1;
    c.api.site = PASTA_NV_API_EXIT, c.api.result = &result;
    deliver(PASTA_CUPTI_DRIVER, id, &c);
    for (; times; times--) {
        pasta_cupti_kernel k = kernel(correlation, l.stream, l.grid, l.block, 0);
        k.context = (uint32_t)context & 0xff;
        record(&k);
    }
}

/* Four of one kernel and one of another; a refused one; a graph; two contexts of the device. */
static void play_counters(void) {
    for (uint32_t i = 1; i <= 4; i++) counted_launch(CONTEXT, PASTA_CUPTI_cuLaunchKernel, KERNEL, i, 0);
    counted_launch(CONTEXT, PASTA_CUPTI_cuLaunchKernel, KERNEL, 9, 1);
    counted_launch(CONTEXT, PASTA_CUPTI_cuLaunchKernel_ptsz, "_Z5otherv", 5, 0);
    uint32_t correlation = begin(PASTA_CUPTI_cuGraphLaunch, (uint64_t[]){0x99, STREAM}, NULL);
    if (count) count(CONTEXT, (uint32_t[]){100, 1, 1}, (uint32_t[]){64, 1, 1});
    end(PASTA_CUPTI_cuGraphLaunch, (uint64_t[]){0x99, STREAM}, correlation, 0);
    counted_launch(CONTEXT, PASTA_CUPTI_cuLaunchKernel, KERNEL, 6, 0);
}

static void play_contexts(void) {
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t context = CONTEXT + 0x1001 * i;
        pasta_cupti_resource r = {context, 0, NULL};
        if (i) deliver(PASTA_CUPTI_RESOURCE, PASTA_CUPTI_CONTEXT_CREATED, &r);
        counted_launch(context, PASTA_CUPTI_cuLaunchKernel, KERNEL, 1 + i, 0);
    }
    counted_launch(CONTEXT, PASTA_CUPTI_cuLaunchKernel, KERNEL, 3, 0);
}

/* Kernels of other threads do not run beside one that is counted. */
static void *launch_counted(void *unused) {
    for (uint32_t i = 0; i < 50; i++) counted_launch(CONTEXT, PASTA_CUPTI_cuLaunchKernel, KERNEL, 1 + i % 2, 0);
    return unused;
}

static void play_counted_threads(void) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        if (pthread_create(&threads[i], NULL, launch_counted, NULL)) exit(94);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
}

static void play_counted_fork(void) {
    pid_t child = fork();
    if (child == 0) {
        counted_launch(CONTEXT, PASTA_CUPTI_cuLaunchKernel, KERNEL, 1, 0);
        _exit(0);
    }
    int status = 1;
    if (child < 0 || waitpid(child, &status, 0) != child || status) exit(94);
}

/* More instructions than a fetch takes. */
static void play_many_samples(void) {
    for (uint32_t i = 0; i < 10000; i++) sampled(KERNEL, 7, 16 * i, LONG, 1 + i % 3, 0);
}

/* The same functions at other addresses: what is sampled before the unload is of the module before. */
static void play_reload(void) {
    static const char other[24] = "\177ELF of another";
    resource(PASTA_CUPTI_MODULE_UNLOADING, 0, &module);
    module.cubin = other;
    resource(PASTA_CUPTI_MODULE_LOADED, 0, &module);
}

#include "cupti_replay.h"

/* What the program's own tool does: guest:WHAT.  It may come before cuInit. */
static void guest(const char *what) {
    static void (*does)(const char *);
    if (!does) {
        void *library = required(dlopen(getenv("FAKE_GUEST"), RTLD_NOW), "guest");
        *(void **)&does = required(dlsym(library, "guest_does"), "guest_does");
    }
    does(what);
}

int main(int count, char **scripts) {
    int first = 1;
    for (; first < count && !strncmp(scripts[first], "guest:", 6); first++) guest(scripts[first] + 6);
    initialize();
    for (int i = first; i < count; i++) {
        const char *script = scripts[i];
        if (!strncmp(script, "guest:", 6)) guest(script + 6);
        else if (!strncmp(script, "replay:", 7)) play_stream(script + 7);
        else if (!strcmp(script, "step")) play_step();
        else if (!strcmp(script, "context")) play_context();
        else if (!strcmp(script, "end")) play_end();
        else if (!strcmp(script, "launches")) play_launches();
        else if (!strcmp(script, "unknown")) play_unknown();
        else if (!strcmp(script, "copies")) play_copies();
        else if (!strcmp(script, "memory")) play_memory();
        else if (!strcmp(script, "graph")) play_graph(false);
        else if (!strcmp(script, "sources")) play_graph(true);
        else if (!strcmp(script, "events")) play_events();
        else if (!strcmp(script, "managed")) play_managed();
        else if (!strcmp(script, "profiler")) play_profiler();
        else if (!strcmp(script, "early")) play_early();
        else if (!strcmp(script, "threads")) play_threads();
        else if (!strcmp(script, "fork")) play_fork();
        else if (!strcmp(script, "flood")) play_flood();
        else if (!strcmp(script, "cost")) play_cost();
        else if (!strcmp(script, "kill")) play_kill();
        else if (!strcmp(script, "samples")) play_samples();
        else if (!strcmp(script, "stopped")) play_stopped();
        else if (!strcmp(script, "windows")) play_windows();
        else if (!strcmp(script, "manysamples")) play_many_samples();
        else if (!strcmp(script, "reload")) play_reload();
        else if (!strcmp(script, "counters")) play_counters();
        else if (!strcmp(script, "contexts")) play_contexts();
        else if (!strcmp(script, "stop")) profiler(false);
        else if (!strcmp(script, "start")) profiler(true);
        else if (!strcmp(script, "countedthreads")) play_counted_threads();
        else if (!strcmp(script, "countedfork")) play_counted_fork();
        else if (strchr(script, '/')) play_work(script);
        else return 93;
    }
    puts("done");
    return 7;
}
