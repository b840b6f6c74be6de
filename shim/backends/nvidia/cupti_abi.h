/* The part of NVIDIA's CUPTI that the source uses, in declarations of our own, so that the shim builds with libc
 * headers alone.  Facts from cupti_activity.h, cupti_callbacks.h, cupti_driver_cbid.h and generated_cuda_meta.h of
 * the wheels nvidia-cuda-cupti(-cu12) 12.6 to 13.5; tests/unit/test_cupti_abi.py checks every one of them against
 * the vendor's headers.
 *
 * Handles are pointers there and uint64_t here.  Later versions only append to records: a field that not every
 * version has says since when.
 */
#ifndef PASTA_CUPTI_ABI_H
#define PASTA_CUPTI_ABI_H

#include <stdint.h>

#include "sanitizer_abi.h"

enum { /* API versions, as reported by the library */
    PASTA_CUPTI_12_6 = 24,
    PASTA_CUPTI_13_1 = 130100,
    PASTA_CUPTI_13_4 = 130400,
};

enum {
    PASTA_CUPTI_DRIVER = 1, /* domains */
    PASTA_CUPTI_RESOURCE = 3,

    PASTA_CUPTI_CONTEXT_CREATED = 1, /* resource domain */
    PASTA_CUPTI_CONTEXT_DESTROYING = 2,
    PASTA_CUPTI_STREAM_CREATED = 3,
    PASTA_CUPTI_STREAM_DESTROYING = 4,
    PASTA_CUPTI_MODULE_LOADED = 6,
    PASTA_CUPTI_MODULE_UNLOADING = 7,
    PASTA_CUPTI_NODE_CREATED = 13,
    PASTA_CUPTI_NODE_CLONED = 20,

    PASTA_CUPTI_COPY = 1, /* kinds of records */
    PASTA_CUPTI_SET = 2,
    PASTA_CUPTI_SERIAL_KERNEL = 3,
    PASTA_CUPTI_DRIVER_CALL = 4,
    PASTA_CUPTI_RUNTIME_CALL = 5,
    PASTA_CUPTI_DEVICE = 8,
    PASTA_CUPTI_KERNEL = 10,
    PASTA_CUPTI_MARKER = 12,
    PASTA_CUPTI_OVERHEAD = 17,
    PASTA_CUPTI_ENVIRONMENT = 20,
    PASTA_CUPTI_PEER_COPY = 22,
    PASTA_CUPTI_UVM = 25,
    PASTA_CUPTI_EVENT = 36,
    PASTA_CUPTI_SYNCHRONIZATION = 38,
    PASTA_CUPTI_INTERNAL_CALL = 48,
    PASTA_CUPTI_MEMORY = 49,
    PASTA_CUPTI_POOL = 50,
    PASTA_CUPTI_GRAPH_TRACE = 51,
    PASTA_CUPTI_JIT = 52,

    PASTA_CUPTI_FLUSH_FORCED = 1,

    PASTA_CUPTI_INVALID_PARAMETER = 1, /* results */
    PASTA_CUPTI_INVALID_OPERATION = 7,
    PASTA_CUPTI_OUT_OF_MEMORY = 8,
    PASTA_CUPTI_LAST_RECORD = 12,
    PASTA_CUPTI_NOT_COMPATIBLE = 14,
    PASTA_CUPTI_NOT_INITIALIZED = 15,
    PASTA_CUPTI_HARDWARE_BUSY = 26,
    PASTA_CUPTI_NOT_SUPPORTED = 27,
    PASTA_CUPTI_VIRTUAL_DEVICE = 33,
    PASTA_CUPTI_NO_PRIVILEGES = 35,
    PASTA_CUPTI_OTHER_SUBSCRIBER = 39,
    PASTA_CUPTI_HYPERVISOR = 40,
    PASTA_CUPTI_CONFIDENTIAL = 41,
    PASTA_CUPTI_MIG_DEVICE = 43, /* since 12.9 */
    PASTA_CUPTI_WSL_DEVICE = 45, /* since 12.9 */
};

/* Calls of the driver: X(id, name).  Ids are never reused; a library does not know later ones. */
#define PASTA_CUPTI_CALLS(X)                                                                     \
    X(18, cuModuleLoad)                                                                          \
    X(19, cuModuleLoadData)                                                                      \
    X(20, cuModuleLoadDataEx)                                                                    \
    X(21, cuModuleLoadFatBinary)                                                                 \
    X(22, cuModuleUnload)                                                                        \
    X(23, cuModuleGetFunction)                                                                   \
    X(678, cuLibraryLoadData)                                                                    \
    X(679, cuLibraryLoadFromFile)                                                                \
    X(680, cuLibraryUnload)                                                                      \
    X(681, cuLibraryGetKernel)                                                                   \
    X(682, cuLibraryGetModule)                                                                   \
    X(683, cuKernelGetFunction)                                                                  \
    X(742, cuFuncLoad)                                                                           \
    X(17, cuCtxSynchronize)                                                                      \
    X(800, cuCtxSynchronize_v2)                                                                  \
    X(126, cuStreamSynchronize)                                                                  \
    X(440, cuStreamSynchronize_ptsz)                                                             \
    X(121, cuEventSynchronize)                                                                   \
    X(118, cuEventCreate)                                                                        \
    X(122, cuEventDestroy)                                                                       \
    X(325, cuEventDestroy_v2)                                                                    \
    X(119, cuEventRecord)                                                                        \
    X(441, cuEventRecord_ptsz)                                                                   \
    X(587, cuEventRecordWithFlags)                                                               \
    X(588, cuEventRecordWithFlags_ptsz)                                                          \
    X(295, cuStreamWaitEvent)                                                                    \
    X(436, cuStreamWaitEvent_ptsz)                                                               \
    X(307, cuLaunchKernel)                                                                       \
    X(442, cuLaunchKernel_ptsz)                                                                  \
    X(477, cuLaunchCooperativeKernel)                                                            \
    X(478, cuLaunchCooperativeKernel_ptsz)                                                       \
    X(652, cuLaunchKernelEx)                                                                     \
    X(653, cuLaunchKernelEx_ptsz)                                                                \
    X(514, cuGraphLaunch)                                                                        \
    X(515, cuGraphLaunch_ptsz)                                                                   \
    X(495, cuStreamBeginCapture)                                                                 \
    X(496, cuStreamBeginCapture_ptsz)                                                            \
    X(539, cuStreamBeginCapture_v2)                                                              \
    X(540, cuStreamBeginCapture_v2_ptsz)                                                         \
    X(720, cuStreamBeginCaptureToGraph)                                                          \
    X(721, cuStreamBeginCaptureToGraph_ptsz)                                                     \
    X(497, cuStreamEndCapture)                                                                   \
    X(498, cuStreamEndCapture_ptsz)                                                              \
    X(276, cuMemcpyHtoD_v2)                                                                      \
    X(397, cuMemcpyHtoD_v2_ptds)                                                                 \
    X(277, cuMemcpyHtoDAsync_v2)                                                                 \
    X(421, cuMemcpyHtoDAsync_v2_ptsz)                                                            \
    X(278, cuMemcpyDtoH_v2)                                                                      \
    X(398, cuMemcpyDtoH_v2_ptds)                                                                 \
    X(279, cuMemcpyDtoHAsync_v2)                                                                 \
    X(422, cuMemcpyDtoHAsync_v2_ptsz)                                                            \
    X(280, cuMemcpyDtoD_v2)                                                                      \
    X(399, cuMemcpyDtoD_v2_ptds)                                                                 \
    X(281, cuMemcpyDtoDAsync_v2)                                                                 \
    X(423, cuMemcpyDtoDAsync_v2_ptsz)                                                            \
    X(305, cuMemcpy)                                                                             \
    X(408, cuMemcpy_ptds)                                                                        \
    X(306, cuMemcpyAsync)                                                                        \
    X(418, cuMemcpyAsync_ptsz)                                                                   \
    X(318, cuMemcpyPeer)                                                                         \
    X(409, cuMemcpyPeer_ptds)                                                                    \
    X(319, cuMemcpyPeerAsync)                                                                    \
    X(426, cuMemcpyPeerAsync_ptsz)                                                               \
    X(285, cuMemcpyDtoA_v2)                                                                      \
    X(400, cuMemcpyDtoA_v2_ptds)                                                                 \
    X(284, cuMemcpyAtoD_v2)                                                                      \
    X(401, cuMemcpyAtoD_v2_ptds)                                                                 \
    X(292, cuMemcpyHtoA_v2)                                                                      \
    X(402, cuMemcpyHtoA_v2_ptds)                                                                 \
    X(293, cuMemcpyHtoAAsync_v2)                                                                 \
    X(419, cuMemcpyHtoAAsync_v2_ptsz)                                                            \
    X(282, cuMemcpyAtoH_v2)                                                                      \
    X(403, cuMemcpyAtoH_v2_ptds)                                                                 \
    X(283, cuMemcpyAtoHAsync_v2)                                                                 \
    X(420, cuMemcpyAtoHAsync_v2_ptsz)                                                            \
    X(286, cuMemcpyAtoA_v2)                                                                      \
    X(404, cuMemcpyAtoA_v2_ptds)                                                                 \
    X(287, cuMemcpy2D_v2)                                                                        \
    X(405, cuMemcpy2D_v2_ptds)                                                                   \
    X(288, cuMemcpy2DUnaligned_v2)                                                               \
    X(406, cuMemcpy2DUnaligned_v2_ptds)                                                          \
    X(289, cuMemcpy2DAsync_v2)                                                                   \
    X(424, cuMemcpy2DAsync_v2_ptsz)                                                              \
    X(290, cuMemcpy3D_v2)                                                                        \
    X(407, cuMemcpy3D_v2_ptds)                                                                   \
    X(291, cuMemcpy3DAsync_v2)                                                                   \
    X(425, cuMemcpy3DAsync_v2_ptsz)                                                              \
    X(320, cuMemcpy3DPeer)                                                                       \
    X(410, cuMemcpy3DPeer_ptds)                                                                  \
    X(321, cuMemcpy3DPeerAsync)                                                                  \
    X(427, cuMemcpy3DPeerAsync_ptsz)                                                             \
    X(249, cuMemsetD8_v2)                                                                        \
    X(411, cuMemsetD8_v2_ptds)                                                                   \
    X(250, cuMemsetD16_v2)                                                                       \
    X(412, cuMemsetD16_v2_ptds)                                                                  \
    X(251, cuMemsetD32_v2)                                                                       \
    X(413, cuMemsetD32_v2_ptds)                                                                  \
    X(252, cuMemsetD2D8_v2)                                                                      \
    X(414, cuMemsetD2D8_v2_ptds)                                                                 \
    X(253, cuMemsetD2D16_v2)                                                                     \
    X(415, cuMemsetD2D16_v2_ptds)                                                                \
    X(254, cuMemsetD2D32_v2)                                                                     \
    X(416, cuMemsetD2D32_v2_ptds)                                                                \
    X(216, cuMemsetD8Async)                                                                      \
    X(428, cuMemsetD8Async_ptsz)                                                                 \
    X(218, cuMemsetD16Async)                                                                     \
    X(429, cuMemsetD16Async_ptsz)                                                                \
    X(220, cuMemsetD32Async)                                                                     \
    X(430, cuMemsetD32Async_ptsz)                                                                \
    X(222, cuMemsetD2D8Async)                                                                    \
    X(431, cuMemsetD2D8Async_ptsz)                                                               \
    X(224, cuMemsetD2D16Async)                                                                   \
    X(432, cuMemsetD2D16Async_ptsz)                                                              \
    X(226, cuMemsetD2D32Async)                                                                   \
    X(433, cuMemsetD2D32Async_ptsz)                                                              \
    X(243, cuMemAlloc_v2)                                                                        \
    X(244, cuMemAllocPitch_v2)                                                                   \
    X(245, cuMemFree_v2)                                                                         \
    X(294, cuMemAllocHost_v2)                                                                    \
    X(39, cuMemHostAlloc)                                                                        \
    X(38, cuMemFreeHost)                                                                         \
    X(301, cuMemHostRegister)                                                                    \
    X(379, cuMemHostRegister_v2)                                                                 \
    X(302, cuMemHostUnregister)                                                                  \
    X(371, cuMemAllocManaged)                                                                    \
    X(598, cuMemAllocAsync)                                                                      \
    X(599, cuMemAllocAsync_ptsz)                                                                 \
    X(611, cuMemAllocFromPoolAsync)                                                              \
    X(612, cuMemAllocFromPoolAsync_ptsz)                                                         \
    X(600, cuMemFreeAsync)                                                                       \
    X(601, cuMemFreeAsync_ptsz)                                                                  \
    X(547, cuMemAddressReserve)                                                                  \
    X(548, cuMemAddressFree)                                                                     \
    X(551, cuMemMap)                                                                             \
    X(552, cuMemUnmap)                                                                           \
    X(272, cuArrayCreate_v2)                                                                     \
    X(274, cuArray3DCreate_v2)                                                                   \
    X(89, cuArrayDestroy)                                                                        \
    X(329, cuIpcOpenMemHandle)                                                                   \
    X(567, cuIpcOpenMemHandle_v2)                                                                \
    X(330, cuIpcCloseMemHandle)                                                                  \
    X(486, cuExternalMemoryGetMappedBuffer)                                                      \
    X(377, cuStreamAttachMemAsync)                                                               \
    X(438, cuStreamAttachMemAsync_ptsz)                                                          \
    X(457, cuMemAdvise)                                                                          \
    X(715, cuMemAdvise_v2)                                                                       \
    X(467, cuMemPrefetchAsync)                                                                   \
    X(468, cuMemPrefetchAsync_ptsz)                                                              \
    X(716, cuMemPrefetchAsync_v2)                                                                \
    X(717, cuMemPrefetchAsync_v2_ptsz)                                                           \
    X(308, cuProfilerStart)                                                                      \
    X(309, cuProfilerStop)

#define PASTA_CUPTI_ID(id, name) PASTA_CUPTI_##name = id,
enum { PASTA_CUPTI_CALLS(PASTA_CUPTI_ID) PASTA_CUPTI_MAX_CALL = 1024 };
#undef PASTA_CUPTI_ID

/* Callback of an API call.  It begins as the Sanitizer's. */
typedef struct pasta_cupti_call {
    pasta_nv_api api;
    uint32_t context_id;
    uint64_t *user;
    uint32_t correlation; /* also of the records of its work */
} pasta_cupti_call;

typedef struct pasta_cupti_resource {
    uint64_t context, stream;
    const void *more;
} pasta_cupti_resource;

typedef struct pasta_cupti_module {
    uint32_t id;
    uint64_t bytes;
    const void *cubin;
} pasta_cupti_module;

typedef struct pasta_cupti_graph {
    uint64_t graph, original_graph, node, original_node;
    int32_t type;
    uint64_t dependency, executable;
} pasta_cupti_graph;

/* ---- arguments of calls ---- */

typedef struct pasta_cupti_launch {
    uint64_t function;
    uint32_t grid[3], block[3], shared;
    uint64_t stream;
    void *const *parameters, *const *extra; /* addresses of parameters; else keys and values, with all in one buffer */
} pasta_cupti_launch;

typedef struct pasta_cupti_attribute {
    int32_t id;
    int32_t unused;
    uint32_t value[16];
} pasta_cupti_attribute;

enum { PASTA_CUPTI_CLUSTER = 4 }; /* an attribute */

typedef struct pasta_cupti_config {
    uint32_t grid[3], block[3], shared;
    uint64_t stream;
    const pasta_cupti_attribute *attributes;
    uint32_t count;
} pasta_cupti_config;

typedef struct pasta_cupti_launch_ex {
    const pasta_cupti_config *config;
    uint64_t function;
    void *const *parameters, *const *extra;
} pasta_cupti_launch_ex;

enum { PASTA_CUPTI_EXTRA_BUFFER = 1, PASTA_CUPTI_EXTRA_BYTES = 2 }; /* keys of `extra` */

/* Memory of one side of a copy of rows. */
enum { PASTA_CUPTI_HOST = 1, PASTA_CUPTI_ON_DEVICE = 2, PASTA_CUPTI_ARRAY = 3, PASTA_CUPTI_UNIFIED = 4 };

typedef struct pasta_cupti_copy_2d {
    uint64_t source_x, source_y;
    uint32_t source_type;
    uint64_t source_host, source_device, source_array, source_pitch;
    uint64_t destination_x, destination_y;
    uint32_t destination_type;
    uint64_t destination_host, destination_device, destination_array, destination_pitch;
    uint64_t width, height;
} pasta_cupti_copy_2d;

/* With contexts in place of `reserved`, also that of peers. */
typedef struct pasta_cupti_copy_3d {
    uint64_t source_x, source_y, source_z, source_lod;
    uint32_t source_type;
    uint64_t source_host, source_device, source_array, source_reserved, source_pitch, source_height;
    uint64_t destination_x, destination_y, destination_z, destination_lod;
    uint32_t destination_type;
    uint64_t destination_host, destination_device, destination_array, destination_reserved, destination_pitch,
        destination_height;
    uint64_t width, height, depth;
} pasta_cupti_copy_3d;

/* ---- records ---- */

typedef struct pasta_cupti_kernel {
    uint32_t kind;
    uint8_t cache, shared_config;
    uint16_t registers;
    uint32_t partition_requested, partition_executed;
    uint64_t start, end, completed;
    uint32_t device, context, stream;
    int32_t grid[3], block[3];
    int32_t shared_static, shared_dynamic;
    uint32_t local, local_total, correlation;
    int64_t grid_id;
    const char *name;
    uint64_t unused;
    uint64_t queued, submitted; /* 0: not collected */
    uint8_t launch_type, carveout_requested, carveout, padding;
    uint32_t shared_executed;
    uint64_t node; /* 0: not of a graph */
    uint32_t shared_limit, graph;
    uint64_t policy;
    uint32_t channel, channel_type;
    uint32_t cluster[3], cluster_policy;
    uint64_t local_total_2;
    uint32_t max_cluster, active_clusters;
    uint8_t from_device, padding3[7];
    int32_t priority; /* since 13.1 */
    uint32_t padding4, execution_model, padding5;
    uint32_t source_graph, padding6; /* since 13.4 */
    uint64_t source_node;            /* since 13.4 */
} pasta_cupti_kernel;

typedef struct pasta_cupti_copy {
    uint32_t kind;
    uint8_t direction, source_kind, destination_kind, flags;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation, runtime_correlation, padding;
    uint64_t unused;
    uint64_t node;
    uint32_t graph, channel;
} pasta_cupti_copy;

typedef struct pasta_cupti_peer_copy {
    uint32_t kind;
    uint8_t direction, source_kind, destination_kind, flags;
    uint64_t bytes, start, end;
    uint32_t device, context, stream;
    uint32_t source_device, source_context, destination_device, destination_context, correlation;
    uint64_t unused;
    uint64_t node;
} pasta_cupti_peer_copy;

typedef struct pasta_cupti_set {
    uint32_t kind, value;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation;
    uint16_t flags, memory_kind;
    uint32_t padding;
    uint64_t unused;
    uint64_t node;
} pasta_cupti_set;

enum { PASTA_CUPTI_ASYNC = 1 }; /* flag of copies and sets */

enum { /* directions of copies; A: an array */
    PASTA_CUPTI_HTOD = 1,
    PASTA_CUPTI_DTOH = 2,
    PASTA_CUPTI_HTOA = 3,
    PASTA_CUPTI_ATOH = 4,
    PASTA_CUPTI_ATOA = 5,
    PASTA_CUPTI_ATOD = 6,
    PASTA_CUPTI_DTOA = 7,
    PASTA_CUPTI_DTOD = 8,
    PASTA_CUPTI_HTOH = 9,
    PASTA_CUPTI_PTOP = 10,
};

typedef struct pasta_cupti_overhead {
    uint32_t kind, what, object_kind;
    uint32_t process, thread, stream; /* of the object: process and thread, or device, context and stream */
    uint64_t start, end;
} pasta_cupti_overhead;

enum { PASTA_CUPTI_OF_THREAD = 2 }; /* object_kind */

enum {
    PASTA_CUPTI_OVERHEAD_COMPILER = 1,
    PASTA_CUPTI_OVERHEAD_FLUSH = 1 << 16,
    PASTA_CUPTI_OVERHEAD_INSTRUMENTATION = 2 << 16,
    PASTA_CUPTI_OVERHEAD_RESOURCE = 3 << 16,
    PASTA_CUPTI_OVERHEAD_MODULE = 4 << 16,
    PASTA_CUPTI_OVERHEAD_FUNCTION = 5 << 16,
    PASTA_CUPTI_OVERHEAD_COMMANDS_FULL = 6 << 16,
    PASTA_CUPTI_OVERHEAD_BUFFER_REQUEST = 7 << 16,
    PASTA_CUPTI_OVERHEAD_UVM = 8 << 16,
};

typedef struct pasta_cupti_uvm {
    uint32_t kind, what;
    uint64_t value, start, end, address;
    uint32_t source, destination, stream, process, flags;
} pasta_cupti_uvm;

enum { /* pasta_cupti_uvm.what */
    PASTA_CUPTI_UVM_HTOD = 1,
    PASTA_CUPTI_UVM_DTOH = 2,
    PASTA_CUPTI_UVM_CPU_FAULTS = 3,
    PASTA_CUPTI_UVM_GPU_FAULT = 4,
    PASTA_CUPTI_UVM_THRASHING = 5,
    PASTA_CUPTI_UVM_THROTTLING = 6,
    PASTA_CUPTI_UVM_REMOTE_MAP = 7,
    PASTA_CUPTI_UVM_DTOD = 8,
};

enum { PASTA_CUPTI_UVM_ALL_DEVICES = 2 }; /* pasta_cupti_uvm_config.scope: of the process */

typedef struct pasta_cupti_uvm_config {
    int32_t scope;
    int32_t what;
    uint32_t device, enable;
} pasta_cupti_uvm_config;

typedef struct pasta_cupti_device {
    uint32_t kind, flags;
    uint64_t bandwidth; /* kB/s */
    uint64_t memory;
    uint32_t constant, l2, warp, clock; /* clock: kHz */
    uint32_t copy_engines, multiprocessors, max_ipc, warps, blocks;
    uint32_t shared, registers, registers_per_block, shared_per_block, threads_per_block;
    uint32_t max_block[3], max_grid[3];
    uint32_t major, minor, id, ecc;
    uint8_t uuid[16];
    const char *name;
    uint8_t visible, mig, unused[6];
    uint32_t gpu_instance, compute_instance;
    uint8_t mig_uuid[16];
} pasta_cupti_device;

/* ---- PC sampling: `size` of a struct is its own, set by the caller ---- */

typedef struct pasta_cupti_stall {
    uint32_t reason, samples;
} pasta_cupti_stall;

typedef struct pasta_cupti_pc {
    uint64_t size;
    uint64_t crc;     /* of the module: result of the registered function */
    uint64_t offset;  /* in the function */
    uint32_t function, padding; /* its index in the module's symbols */
    const char *name; /* never freed */
    uint64_t stall_count; /* capacity of `stalls`; then the number written */
    pasta_cupti_stall *stalls;
    uint32_t correlation, padding2; /* of the launch; 0 in continuous mode */
} pasta_cupti_pc;

typedef struct pasta_cupti_samples {
    uint64_t size, room; /* of `pcs` */
    uint64_t total, dropped;
    uint64_t count, remaining; /* of `pcs`: written, left for the next call */
    uint64_t range;
    pasta_cupti_pc *pcs;
    uint64_t others; /* of kernels that are not the program's, which have no records */
    uint8_t buffer_full;
} pasta_cupti_samples;

enum { /* pasta_cupti_sampling_attribute.type */
    PASTA_CUPTI_SAMPLING_PERIOD = 1, /* log2 of cycles, 5 to 31 */
    PASTA_CUPTI_SAMPLING_SCRATCH = 3, /* bytes */
    PASTA_CUPTI_SAMPLING_HARDWARE = 4, /* bytes */
    PASTA_CUPTI_SAMPLING_MODE = 5,
    PASTA_CUPTI_SAMPLING_STARTED = 6, /* 1: samples only between start and stop */
    PASTA_CUPTI_SAMPLING_DATA = 8, /* the rest at the end is written to it */
    PASTA_CUPTI_SAMPLING_SLEEP = 9, /* of CUPTI's threads, ms */

    PASTA_CUPTI_SAMPLING_CONTINUOUS = 1, /* modes */
    PASTA_CUPTI_SAMPLING_SERIALIZED = 2,
};

typedef struct pasta_cupti_sampling_attribute {
    int32_t type, status;
    uint64_t value, unused[2]; /* a number, 32 or 64 bits, or a pointer */
} pasta_cupti_sampling_attribute;

typedef struct pasta_cupti_sampling_config {
    uint64_t size;
    void *unused;
    uint64_t context, count;
    pasta_cupti_sampling_attribute *attributes;
} pasta_cupti_sampling_config;

typedef struct pasta_cupti_sampling {
    uint64_t size;
    void *unused;
    uint64_t context;
} pasta_cupti_sampling;

typedef struct pasta_cupti_get_samples {
    uint64_t size;
    void *unused;
    uint64_t context;
    pasta_cupti_samples *samples;
} pasta_cupti_get_samples;

typedef struct pasta_cupti_reason_count {
    uint64_t size;
    void *unused;
    uint64_t context;
    uint64_t *count;
} pasta_cupti_reason_count;

enum { PASTA_CUPTI_REASON_NAME = 128 }; /* bytes of a name */

typedef struct pasta_cupti_reasons {
    uint64_t size;
    void *unused;
    uint64_t context, count;
    uint32_t *indices;
    char **names;
} pasta_cupti_reasons;

typedef void pasta_cupti_crc(const void *cubin, uint64_t bytes, uint64_t *crc);

/* ---- hardware counters: `size` of a struct is that of its fields up to the last one that 12.6 has.  Versions up to
 * 13.1 refuse more; 13.5 reads `later` fields whatever the size says, so they are there, as zeros: measured. ---- */

#define PASTA_CUPTI_SIZE(type, last) (offsetof(type, last) + sizeof(((type *)0)->last))

enum {
    PASTA_CUPTI_RANGE_PROFILER = 0, /* purpose of a host object */

    PASTA_CUPTI_AUTO_RANGE = 1, /* ranges: each kernel is one */
    PASTA_CUPTI_USER_RANGE = 2, /* between a push and a pop */

    PASTA_CUPTI_KERNEL_REPLAY = 2, /* of passes: by CUPTI */
    PASTA_CUPTI_USER_REPLAY = 3,   /* by its client; none for one pass */
};

typedef struct pasta_cupti_profiler_initialize {
    uint64_t size;
    void *unused;
} pasta_cupti_profiler_initialize;

typedef struct pasta_cupti_chip {
    uint64_t size;
    void *unused;
    uint64_t device;
    const char *name; /* written */
} pasta_cupti_chip;

/* ---- executed instructions ---- */

enum { PASTA_CUPTI_OF_DEVICE = 0 }; /* granularity of values */

typedef struct pasta_cupti_sass_properties {
    uint64_t size;
    void *unused;
    const char *chip, *name;
    uint64_t id;                /* written, as what follows */
    const char *its_name, *description;
} pasta_cupti_sass_properties;

typedef struct pasta_cupti_sass_metric {
    uint64_t id;
    uint8_t granularity;
} pasta_cupti_sass_metric;

typedef struct pasta_cupti_sass_config {
    uint64_t size;
    void *unused;
    uint64_t count;
    const pasta_cupti_sass_metric *metrics;
    uint32_t device;
} pasta_cupti_sass_config;

typedef struct pasta_cupti_sass_enable {
    uint64_t size;
    void *unused;
    uint64_t context;
    uint8_t lazily; /* each function when it is first launched */
} pasta_cupti_sass_enable;

typedef struct pasta_cupti_sass_disable {
    uint64_t size;
    void *unused;
    uint64_t context;
    uint64_t dropped; /* written */
} pasta_cupti_sass_disable;

typedef struct pasta_cupti_sass_count {
    uint64_t size;
    void *unused;
    uint64_t context;
    uint64_t records, instances; /* written */
} pasta_cupti_sass_count;

typedef struct pasta_cupti_sass_value {
    uint64_t id, value;
} pasta_cupti_sass_value;

typedef struct pasta_cupti_sass_data {
    uint64_t size;
    void *unused;
    uint32_t crc;      /* written, as what follows; not the CRC of the image that is loaded */
    uint32_t function; /* its symbol */
    const char *name;  /* mangled */
    uint32_t pc;       /* offset in the function */
    pasta_cupti_sass_value *values; /* memory of the client */
} pasta_cupti_sass_data;

typedef struct pasta_cupti_sass_flush {
    uint64_t size;
    void *unused;
    uint64_t context;
    uint64_t records, instances;
    pasta_cupti_sass_data *data;
} pasta_cupti_sass_flush;

typedef struct pasta_cupti_availability {
    uint64_t size;
    void *unused;
    uint64_t context, bytes; /* written if there is no image */
    uint8_t *image;
    uint64_t later;
} pasta_cupti_availability;

typedef struct pasta_cupti_host {
    uint64_t size;
    void *unused;
    int32_t type;
    const char *chip;
    const uint8_t *availability;
    void *object; /* written */
    uint64_t later;
} pasta_cupti_host;

typedef struct pasta_cupti_metrics {
    uint64_t size;
    void *unused, *object;
    const char *const *names;
    uint64_t count;
} pasta_cupti_metrics;

typedef struct pasta_cupti_image_size {
    uint64_t size;
    void *unused, *object;
    uint64_t bytes; /* written */
} pasta_cupti_image_size;

typedef struct pasta_cupti_image { /* a configuration to write, data to initialize */
    uint64_t size;
    void *unused, *object;
    uint64_t bytes;
    uint8_t *image;
} pasta_cupti_image;

typedef struct pasta_cupti_passes {
    uint64_t size;
    void *unused;
    uint64_t bytes;
    uint8_t *image;
    uint64_t passes; /* written */
} pasta_cupti_passes;

typedef struct pasta_cupti_values {
    uint64_t size;
    void *unused, *object;
    const uint8_t *image;
    uint64_t bytes, range;
    const char *const *names;
    uint64_t count;
    double *values; /* written */
} pasta_cupti_values;

typedef struct pasta_cupti_profiler { /* one of a host, or of a context */
    uint64_t size;
    void *unused, *object;
} pasta_cupti_profiler;

typedef struct pasta_cupti_enable_ranges {
    uint64_t size;
    void *unused;
    uint64_t context;
    void *object; /* written */
    uint64_t later;
} pasta_cupti_enable_ranges;

typedef struct pasta_cupti_data_size {
    uint64_t size;
    void *unused, *object;
    const char *const *names;
    uint64_t count, ranges;
    uint32_t nodes; /* of the tree of ranges */
    uint64_t bytes; /* written */
} pasta_cupti_data_size;

typedef struct pasta_cupti_range_config {
    uint64_t size;
    void *unused, *object;
    uint64_t config_bytes;
    const uint8_t *config;
    uint64_t data_bytes;
    uint8_t *data;
    int32_t range, replay;
    uint64_t max_ranges;
    uint16_t levels, first_level;
    uint64_t pass;
    uint16_t level;
} pasta_cupti_range_config;

typedef struct pasta_cupti_stop_ranges {
    uint64_t size;
    void *unused, *object;
    uint64_t pass, level;
    uint8_t complete; /* written: no pass is left */
} pasta_cupti_stop_ranges;

typedef struct pasta_cupti_push_range {
    uint64_t size;
    void *unused, *object;
    const char *name;
} pasta_cupti_push_range;

typedef struct pasta_cupti_decode {
    uint64_t size;
    void *unused, *object;
    uint64_t dropped; /* written */
} pasta_cupti_decode;

typedef struct pasta_cupti_range_count {
    uint64_t size;
    void *unused;
    const uint8_t *image;
    uint64_t bytes, ranges; /* ranges: written */
} pasta_cupti_range_count;

/* ---- functions: each returns 0 or an error number ---- */

typedef void pasta_cupti_callback(void *user, int32_t domain, uint32_t id, const void *data);
typedef void pasta_cupti_request(uint8_t **buffer, uint64_t *bytes, uint64_t *max_records);
typedef void pasta_cupti_complete(uint64_t context, uint32_t stream, uint8_t *buffer, uint64_t bytes, uint64_t valid);

#define PASTA_CUPTI_FUNCTIONS(X)                                                                          \
    X(get_version, "cuptiGetVersion", (uint32_t *version))                                                \
    X(result_string, "cuptiGetResultString", (int32_t result, const char **text))                         \
    X(subscribe, "cuptiSubscribe", (void **subscriber, pasta_cupti_callback *callback, void *user))       \
    X(unsubscribe, "cuptiUnsubscribe", (void *subscriber))                                                \
    X(enable_callback, "cuptiEnableCallback", (uint32_t on, void *subscriber, int32_t domain, uint32_t id)) \
    X(enable_domain, "cuptiEnableDomain", (uint32_t on, void *subscriber, int32_t domain))                \
    X(register_callbacks, "cuptiActivityRegisterCallbacks",                                               \
      (pasta_cupti_request *request, pasta_cupti_complete *complete))                                     \
    X(register_timestamp, "cuptiActivityRegisterTimestampCallback", (uint64_t (*now)(void)))              \
    X(enable, "cuptiActivityEnable", (int32_t kind))                                                      \
    X(disable, "cuptiActivityDisable", (int32_t kind))                                                    \
    X(enable_latency, "cuptiActivityEnableLatencyTimestamps", (uint8_t on))                               \
    X(configure_uvm, "cuptiActivityConfigureUnifiedMemoryCounter",                                        \
      (pasta_cupti_uvm_config *configs, uint32_t count))                                                  \
    X(flush_all, "cuptiActivityFlushAll", (uint32_t flags))                                               \
    X(next_record, "cuptiActivityGetNextRecord", (uint8_t *buffer, uint64_t valid, void **record))        \
    X(dropped, "cuptiActivityGetNumDroppedRecords", (uint64_t context, uint32_t stream, uint64_t *dropped)) \
    X(device_of, "cuptiGetDeviceId", (uint64_t context, uint32_t *device))                                \
    X(context_id, "cuptiGetContextId", (uint64_t context, uint32_t *id))                                  \
    X(stream_id, "cuptiGetStreamIdEx", (uint64_t context, uint64_t stream, uint8_t per_thread, uint32_t *id)) \
    X(node_id, "cuptiGetGraphNodeId", (uint64_t node, uint64_t *id))

#define PASTA_CUPTI_SAMPLING_FUNCTIONS(X)                                                        \
    X(enable, "cuptiPCSamplingEnable", (pasta_cupti_sampling *sampling))                         \
    X(disable, "cuptiPCSamplingDisable", (pasta_cupti_sampling *sampling))                       \
    X(start, "cuptiPCSamplingStart", (pasta_cupti_sampling *sampling))                           \
    X(stop, "cuptiPCSamplingStop", (pasta_cupti_sampling *sampling))                             \
    X(configure, "cuptiPCSamplingSetConfigurationAttribute", (pasta_cupti_sampling_config *config)) \
    X(get, "cuptiPCSamplingGetData", (pasta_cupti_get_samples *data))                            \
    X(reason_count, "cuptiPCSamplingGetNumStallReasons", (pasta_cupti_reason_count *count))      \
    X(reasons, "cuptiPCSamplingGetStallReasons", (pasta_cupti_reasons *reasons))                 \
    X(register_crc, "cuptiRegisterComputeCrcCallback", (pasta_cupti_crc *crc))

#define PASTA_CUPTI_COUNTER_FUNCTIONS(X)                                                               \
    X(initialize, "cuptiProfilerInitialize", (pasta_cupti_profiler_initialize * p))                    \
    X(chip, "cuptiDeviceGetChipName", (pasta_cupti_chip * p))                                          \
    X(availability, "cuptiProfilerGetCounterAvailability", (pasta_cupti_availability * p))             \
    X(host, "cuptiProfilerHostInitialize", (pasta_cupti_host * p))                                     \
    X(end_host, "cuptiProfilerHostDeinitialize", (pasta_cupti_profiler * p))                           \
    X(add_metrics, "cuptiProfilerHostConfigAddMetrics", (pasta_cupti_metrics * p))                     \
    X(config_size, "cuptiProfilerHostGetConfigImageSize", (pasta_cupti_image_size * p))                \
    X(config, "cuptiProfilerHostGetConfigImage", (pasta_cupti_image * p))                              \
    X(passes, "cuptiProfilerHostGetNumOfPasses", (pasta_cupti_passes * p))                             \
    X(values, "cuptiProfilerHostEvaluateToGpuValues", (pasta_cupti_values * p))                        \
    X(enable, "cuptiRangeProfilerEnable", (pasta_cupti_enable_ranges * p))                             \
    X(disable, "cuptiRangeProfilerDisable", (pasta_cupti_profiler * p))                                \
    X(data_size, "cuptiRangeProfilerGetCounterDataSize", (pasta_cupti_data_size * p))                  \
    X(initialize_data, "cuptiRangeProfilerCounterDataImageInitialize", (pasta_cupti_image * p))        \
    X(configure, "cuptiRangeProfilerSetConfig", (pasta_cupti_range_config * p))                        \
    X(start, "cuptiRangeProfilerStart", (pasta_cupti_profiler * p))                                    \
    X(stop, "cuptiRangeProfilerStop", (pasta_cupti_stop_ranges * p))                                   \
    X(push, "cuptiRangeProfilerPushRange", (pasta_cupti_push_range * p))                               \
    X(pop, "cuptiRangeProfilerPopRange", (pasta_cupti_profiler * p))                                   \
    X(decode, "cuptiRangeProfilerDecodeData", (pasta_cupti_decode * p))                                \
    X(count, "cuptiRangeProfilerGetCounterDataInfo", (pasta_cupti_range_count * p))

#define PASTA_CUPTI_INSTRUCTION_FUNCTIONS(X)                                                \
    X(initialize, "cuptiProfilerInitialize", (pasta_cupti_profiler_initialize * p))         \
    X(chip, "cuptiDeviceGetChipName", (pasta_cupti_chip * p))                               \
    X(properties, "cuptiSassMetricsGetProperties", (pasta_cupti_sass_properties * p))       \
    X(configure, "cuptiSassMetricsSetConfig", (pasta_cupti_sass_config * p))                \
    X(enable, "cuptiSassMetricsEnable", (pasta_cupti_sass_enable * p))                      \
    X(disable, "cuptiSassMetricsDisable", (pasta_cupti_sass_disable * p))                   \
    X(count, "cuptiSassMetricsGetDataProperties", (pasta_cupti_sass_count * p))             \
    X(flush, "cuptiSassMetricsFlushData", (pasta_cupti_sass_flush * p))

#endif
