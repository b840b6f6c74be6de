/* The part of NVIDIA's Sanitizer API that the source uses, in declarations of our own, so that the
 * shim builds with libc headers alone.  Facts from sanitizer_callbacks.h and
 * sanitizer_driver_cbid.h of the wheels nvidia-cuda-sanitizer-api(-cu12) 12.6 to 13.5;
 * tests/unit/test_nvidia_abi.py checks every one of them against the vendor's headers.
 *
 * Handles are pointers there and uint64_t here.  Two layouts exist: since 13.1 three structs hold
 * a green context in their middle (_13_1 below); before that they are the plain ones.
 */
#ifndef PASTA_NVIDIA_ABI_H
#define PASTA_NVIDIA_ABI_H

#include <stdint.h>

enum {
    PASTA_NV_DRIVER = 1, /* domains */
    PASTA_NV_RUNTIME = 2,
    PASTA_NV_RESOURCE = 3,
    PASTA_NV_SYNCHRONIZE = 4,
    PASTA_NV_LAUNCH = 5,
    PASTA_NV_MEMCPY = 6,
    PASTA_NV_MEMSET = 7,
    PASTA_NV_UVM = 9,
    PASTA_NV_GRAPHS = 10,
    PASTA_NV_EVENTS = 11,
    PASTA_NV_EXTERNAL = 12,
    PASTA_NV_DOMAINS = 13,
};

enum {
    PASTA_NV_CONTEXT_STARTING = 2, /* resource domain */
    PASTA_NV_CONTEXT_CREATED = 3,
    PASTA_NV_CONTEXT_DESTROYING = 4,
    PASTA_NV_CONTEXT_DESTROYED = 5,
    PASTA_NV_STREAM_CREATED = 6,
    PASTA_NV_STREAM_DESTROYING = 7,
    PASTA_NV_MODULE_LOADED = 9,
    PASTA_NV_MODULE_UNLOADING = 10,
    PASTA_NV_DEVICE_ALLOC = 11,
    PASTA_NV_DEVICE_FREE = 12,
    PASTA_NV_HOST_ALLOC = 13,
    PASTA_NV_HOST_FREE = 14,
    PASTA_NV_ASYNC_ALLOC = 15,
    PASTA_NV_ASYNC_FREE = 16,
    PASTA_NV_ARRAY_CREATED = 22,
    PASTA_NV_ARRAY_DESTROYED = 23,
    PASTA_NV_VIRTUAL_RESERVE = 26,
    PASTA_NV_VIRTUAL_RELEASE = 27,
    PASTA_NV_POOL_IMPORT = 28,
    PASTA_NV_GREEN_CREATED = 29, /* these three since 13.1 */
    PASTA_NV_GREEN_DESTROYING = 30,

    PASTA_NV_STREAM_SYNCHRONIZED = 1, /* synchronize domain */
    PASTA_NV_CONTEXT_SYNCHRONIZED = 2,
    PASTA_NV_GREEN_SYNCHRONIZED = 3,

    PASTA_NV_LAUNCH_BEGIN = 1, /* launch domain */
    PASTA_NV_LAUNCH_SET_UP = 2, /* by the driver */
    PASTA_NV_LAUNCH_END = 3,

    PASTA_NV_MEMCPY_STARTING = 1,
    PASTA_NV_MEMCPY_BATCH_ITEM = 2, /* since 13.4 */
    PASTA_NV_MEMSET_STARTING = 1,
    PASTA_NV_ATTACH = 1, /* uvm domain */

    PASTA_NV_NODE_BEGIN = 4, /* graphs domain */
    PASTA_NV_NODE_END = 5,
    PASTA_NV_GRAPH_BEGIN = 6,
    PASTA_NV_GRAPH_END = 7,

    PASTA_NV_EVENT_CREATED = 1, /* events domain */
    PASTA_NV_EVENT_DESTROYED = 2,
    PASTA_NV_EVENT_RECORD = 3,
    PASTA_NV_EVENT_STREAM_WAIT = 4,
    PASTA_NV_EVENT_SYNCHRONIZE = 5,
    PASTA_NV_CONTEXT_RECORD_EVENT = 6, /* these five since 13.1 */
    PASTA_NV_GREEN_RECORD_EVENT = 7,
    PASTA_NV_CONTEXT_WAIT_EVENT = 8,
    PASTA_NV_GREEN_WAIT_EVENT = 9,
    PASTA_NV_CONTEXT_EVENT_SYNCHRONIZE = 10,

    PASTA_NV_EXTERNAL_MAPPED = 2,

    PASTA_NV_PROFILER_START = 308, /* driver domain */
    PASTA_NV_PROFILER_STOP = 309,
    PASTA_NV_ADVISE = 457,
    PASTA_NV_PREFETCH = 467,
    PASTA_NV_PREFETCH_PTSZ = 468,
    PASTA_NV_ADVISE_V2 = 715,
    PASTA_NV_PREFETCH_V2 = 716,
    PASTA_NV_PREFETCH_V2_PTSZ = 717,
    PASTA_NV_LAUNCH_KERNEL = 307,
    PASTA_NV_LAUNCH_KERNEL_PTSZ = 442,
    PASTA_NV_LAUNCH_COOPERATIVE = 477,
    PASTA_NV_LAUNCH_COOPERATIVE_PTSZ = 478,
    PASTA_NV_LAUNCH_GRAPH = 514,
    PASTA_NV_LAUNCH_GRAPH_PTSZ = 515,
    PASTA_NV_LAUNCH_KERNEL_EX = 652,
    PASTA_NV_LAUNCH_KERNEL_EX_PTSZ = 653,
    PASTA_NV_GRAPH_INSTANTIATE = 513,
    PASTA_NV_GRAPH_INSTANTIATE_V2 = 578,
    PASTA_NV_GRAPH_INSTANTIATE_WITH_FLAGS = 643,
    PASTA_NV_GRAPH_INSTANTIATE_WITH_PARAMS = 656,
    PASTA_NV_GRAPH_INSTANTIATE_WITH_PARAMS_PTSZ = 657,
    PASTA_NV_GRAPH_UPDATE = 561,
    PASTA_NV_GRAPH_UPDATE_V2 = 696,
    PASTA_NV_GRAPH_SET_KERNEL = 538,
    PASTA_NV_GRAPH_SET_KERNEL_V2 = 692,
    PASTA_NV_GRAPH_SET_NODE = 714,
    PASTA_NV_BEGIN_CAPTURE = 495,
    PASTA_NV_BEGIN_CAPTURE_PTSZ = 496,
    PASTA_NV_END_CAPTURE = 497,
    PASTA_NV_END_CAPTURE_PTSZ = 498,
    PASTA_NV_BEGIN_CAPTURE_V2 = 539,
    PASTA_NV_BEGIN_CAPTURE_V2_PTSZ = 540,
    PASTA_NV_BEGIN_CAPTURE_TO = 720,
    PASTA_NV_BEGIN_CAPTURE_TO_PTSZ = 721,

    PASTA_NV_RUNTIME_PROFILER_START = 171, /* runtime domain */
    PASTA_NV_RUNTIME_PROFILER_STOP = 172,
};

enum {
    PASTA_NV_API_EXIT = 1,

    PASTA_NV_MEMORY_MODULE = 0x1, /* flags of an allocation */
    PASTA_NV_MEMORY_MANAGED = 0x2,
    PASTA_NV_MEMORY_PEER = 0x10,
    PASTA_NV_MEMORY_RUNTIME = 0x40,
    PASTA_NV_MEMORY_DYNAMIC = 0x80, /* for launches from the device */

    PASTA_NV_NODE_KERNEL = 0, /* CUgraphNodeType */
    PASTA_NV_NODE_MEMCPY = 1,
    PASTA_NV_NODE_MEMSET = 2,
    PASTA_NV_NODE_ALLOC = 10,
    PASTA_NV_NODE_FREE = 11,

    PASTA_NV_LOCATION_DEVICE = 1, /* CUmemLocationType */

    PASTA_NV_HOST_TO_DEVICE = 2, /* direction of a copy; 0 is unknown, 1 to 4 as PASTA_COPY_* */
    PASTA_NV_DEVICE_TO_HOST = 3,
    PASTA_NV_DEVICE_TO_DEVICE = 4,
};

typedef struct pasta_nv_api {
    int32_t site;
    const char *function;
    const void *arguments;
    const int32_t *result;
    const char *symbol;
    uint64_t context;
} pasta_nv_api;

typedef struct pasta_nv_context {
    uint64_t context;
    int32_t device; /* of the two creation callbacks only */
} pasta_nv_context;

typedef struct pasta_nv_context_13_1 {
    uint64_t context, green;
    int32_t device;
} pasta_nv_context_13_1;

typedef struct pasta_nv_stream {
    uint64_t context, stream, unique;
} pasta_nv_stream;

typedef struct pasta_nv_stream_13_1 {
    uint64_t context, green, stream, unique;
} pasta_nv_stream_13_1;

typedef struct pasta_nv_module {
    uint64_t context, module, bytes;
    const void *cubin;
} pasta_nv_module;

typedef struct pasta_nv_memory {
    uint64_t address, bytes, context;
    int32_t device;
    uint64_t stream, unique_stream, pool;
    uint32_t flags, permissions;
    int32_t visibility, source_device;
} pasta_nv_memory;

typedef struct pasta_nv_range {
    uint64_t address, bytes;
} pasta_nv_range;

typedef struct pasta_nv_array {
    uint64_t context, array;
} pasta_nv_array;

typedef struct pasta_nv_sync {
    uint64_t context, stream;
} pasta_nv_sync;

typedef struct pasta_nv_launch {
    uint64_t context, stream, unique_stream, module, function;
    const char *name;
    uint32_t grid[3], block[3], cluster[3];
    uint64_t grid_id, launch;
    int32_t device;
    uint64_t api_context, api_stream, api_unique_stream; /* of graph nodes */
} pasta_nv_launch;

typedef struct pasta_nv_memcpy {
    uint64_t source_context, destination_context;
    uint64_t source_stream, source_unique_stream;
    uint64_t destination_stream, destination_unique_stream;
    uint64_t source, destination, bytes, width, height, depth, source_pitch, destination_pitch;
    uint32_t async;
    int32_t direction;
    uint64_t api_context, api_stream, api_unique_stream;
} pasta_nv_memcpy;

typedef struct pasta_nv_memset {
    uint64_t context, stream, unique_stream, address, width, height, pitch;
    uint32_t element, value, async;
} pasta_nv_memset;

typedef struct pasta_nv_attach {
    uint64_t context;
    int32_t visibility;
    uint64_t stream, unique_stream, address;
} pasta_nv_attach;

typedef struct pasta_nv_node {
    uint64_t graph;
    uint32_t launch_id;
    uint64_t node;
    int32_t type;
    union {
        pasta_nv_launch kernel;
        pasta_nv_memory alloc;
        uint64_t freed;
        pasta_nv_memcpy copy;
        pasta_nv_memset set;
        uint64_t room[18];
    };
    uint32_t upload;
} pasta_nv_node;

typedef struct pasta_nv_graph {
    uint64_t context, stream, unique_stream, graph;
    uint32_t upload;
} pasta_nv_graph;

typedef struct pasta_nv_event {
    uint64_t event, context, stream;
} pasta_nv_event;

typedef struct pasta_nv_event_13_1 {
    uint64_t event, context, green, stream;
} pasta_nv_event_13_1;

typedef struct pasta_nv_external {
    uint64_t context;
    int32_t device;
    uint64_t memory, address, bytes;
} pasta_nv_external;

/* Arguments of driver functions, as in API callbacks: in the order of the call. */
/* Calls of the driver that launch kernels, or make or change graphs: name, kind. */
#define PASTA_NV_LAUNCH_CALLS(X)                        \
    X(LAUNCH_KERNEL, kernel)                            \
    X(LAUNCH_KERNEL_PTSZ, kernel)                       \
    X(LAUNCH_COOPERATIVE, kernel)                       \
    X(LAUNCH_COOPERATIVE_PTSZ, kernel)                  \
    X(LAUNCH_KERNEL_EX, kernel_ex)                      \
    X(LAUNCH_KERNEL_EX_PTSZ, kernel_ex)                 \
    X(LAUNCH_GRAPH, graph)                              \
    X(LAUNCH_GRAPH_PTSZ, graph)                         \
    X(BEGIN_CAPTURE, begin_capture)                     \
    X(BEGIN_CAPTURE_PTSZ, begin_capture)                \
    X(BEGIN_CAPTURE_V2, begin_capture)                  \
    X(BEGIN_CAPTURE_V2_PTSZ, begin_capture)             \
    X(BEGIN_CAPTURE_TO, begin_capture)                  \
    X(BEGIN_CAPTURE_TO_PTSZ, begin_capture)             \
    X(END_CAPTURE, end_capture)                         \
    X(END_CAPTURE_PTSZ, end_capture)                    \
    X(GRAPH_INSTANTIATE, instantiate)                   \
    X(GRAPH_INSTANTIATE_V2, instantiate)                \
    X(GRAPH_INSTANTIATE_WITH_FLAGS, instantiate)        \
    X(GRAPH_INSTANTIATE_WITH_PARAMS, instantiate)       \
    X(GRAPH_INSTANTIATE_WITH_PARAMS_PTSZ, instantiate)  \
    X(GRAPH_UPDATE, change)                             \
    X(GRAPH_UPDATE_V2, change)                          \
    X(GRAPH_SET_KERNEL, change)                         \
    X(GRAPH_SET_KERNEL_V2, change)                      \
    X(GRAPH_SET_NODE, change)

/* The beginnings of their arguments. */
typedef struct pasta_nv_launch_config {
    uint32_t grid[3], block[3];
} pasta_nv_launch_config;

typedef struct pasta_nv_launch_kernel {
    uint64_t function;
    pasta_nv_launch_config config;
} pasta_nv_launch_kernel;

typedef struct pasta_nv_launch_kernel_ex {
    const pasta_nv_launch_config *config;
    uint64_t function;
} pasta_nv_launch_kernel_ex;

typedef struct pasta_nv_launch_graph {
    uint64_t graph;
} pasta_nv_launch_graph;

typedef struct pasta_nv_location {
    int32_t type, id;
} pasta_nv_location;

typedef struct pasta_nv_prefetch {
    uint64_t address, bytes;
    int32_t device;
    uint64_t stream;
} pasta_nv_prefetch;

typedef struct pasta_nv_prefetch_v2 {
    uint64_t address, bytes;
    pasta_nv_location location;
    uint32_t flags;
    uint64_t stream;
} pasta_nv_prefetch_v2;

typedef struct pasta_nv_advise {
    uint64_t address, bytes;
    int32_t advice, device;
} pasta_nv_advise;

typedef struct pasta_nv_advise_v2 {
    uint64_t address, bytes;
    int32_t advice;
    pasta_nv_location location;
} pasta_nv_advise_v2;

typedef void (*pasta_nv_callback)(void *user, int32_t domain, uint32_t id, const void *data);

/* The library's functions; each returns 0 or an error number. */
#define PASTA_NV_FUNCTIONS(X)                                                                        \
    X(subscribe, "sanitizerSubscribe", (void **subscriber, pasta_nv_callback callback, void *user))  \
    X(unsubscribe, "sanitizerUnsubscribe", (void *subscriber))                                       \
    X(enable_callback, "sanitizerEnableCallback",                                                    \
      (uint32_t enable, void *subscriber, int32_t domain, uint32_t id))                              \
    X(enable_domain, "sanitizerEnableDomain", (uint32_t enable, void *subscriber, int32_t domain))   \
    X(result_string, "sanitizerGetResultString", (int32_t result, const char **text))                \
    X(function_pc, "sanitizerGetFunctionPcAndSize",                                                  \
      (uint64_t module, const char *function, uint64_t *pc, uint64_t *bytes))

/* Those of probes, looked up when a run has some. */
#define PASTA_NV_PROBE_FUNCTIONS(X)                                                                  \
    X(add_patches, "sanitizerAddPatchesFromFile", (const char *path, uint64_t context))              \
    X(patch_instructions, "sanitizerPatchInstructions",                                              \
      (int32_t instruction, uint64_t module, const char *function))                                  \
    X(patch_module, "sanitizerPatchModule", (uint64_t module))                                       \
    X(unpatch_module, "sanitizerUnpatchModule", (uint64_t module))                                   \
    X(set_launch_data, "sanitizerSetLaunchCallbackData",                                             \
      (uint64_t launch, uint64_t function, uint64_t stream, uint64_t data))                          \
    X(alloc, "sanitizerAlloc", (uint64_t context, uint64_t *address, uint64_t bytes))                \
    X(alloc_host, "sanitizerAllocHost", (uint64_t context, void **address, uint64_t bytes))          \
    X(free, "sanitizerFree", (uint64_t context, uint64_t address))                                   \
    X(free_host, "sanitizerFreeHost", (uint64_t context, void *address))                             \
    X(copy_in, "sanitizerMemcpyHostToDeviceAsync",                                                   \
      (uint64_t to, const void *from, uint64_t bytes, uint64_t stream))                              \
    X(copy_out, "sanitizerMemcpyDeviceToHost", (void *to, uint64_t from, uint64_t bytes, uint64_t stream)) \
    X(set, "sanitizerMemset", (uint64_t address, int value, uint64_t bytes, uint64_t stream))        \
    X(stream_handle, "sanitizerGetStreamHandle", (uint64_t context, uint64_t stream, uint64_t *handle)) \
    X(stream_wait, "sanitizerStreamSynchronize", (uint64_t stream))

enum {
    PASTA_NV_NOT_COMPATIBLE = 12, /* results */
    PASTA_NV_MAX_LIMIT = 10,
    PASTA_NV_NOT_INITIALIZED = 13,
};

#endif
