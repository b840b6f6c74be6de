/* Ring and events (schema 1): the only declaration of either.
 *
 * Read by the C compiler, by cffi (preprocessed with -DPASTA_CFFI) and by the generator of docs/events.md.
 * Little-endian, 64-bit.  A field that a source cannot give holds a sentinel: all ones, or PASTA_..._absent where
 * its type declares that.
 */
#ifndef PASTA_ABI_H
#define PASTA_ABI_H

#ifndef PASTA_CFFI
#include <stdint.h>
#endif

#define PASTA_SCHEMA 1
#define PASTA_SLOT 64

#ifndef PASTA_CFFI
#define PASTA_ABSENT_U16 UINT16_MAX
#define PASTA_ABSENT_U32 UINT32_MAX
#define PASTA_ABSENT_U64 UINT64_MAX
#define PASTA_ABSENT_DEVICE ((int16_t)-1)
#endif

/* An integer type of fixed width with named values.  cffi drops names of integer types but keeps those of enums:
 * there it is an enum, by which pasta/abi.py finds strings, names of numbers and sentinels. */
#ifdef PASTA_CFFI
#define PASTA_INTEGER(name, type, ...) typedef enum { __VA_ARGS__ } name;
#else
#define PASTA_INTEGER(name, type, ...) \
    enum { __VA_ARGS__ };              \
    typedef type name;
#endif

/* Id of an interned string. */
PASTA_INTEGER(pasta_string_id, uint32_t, PASTA_STRING_absent = 0)
/* Id of an interned stack, of Python or of the host. */
PASTA_INTEGER(pasta_stack_id, uint32_t, PASTA_STACK_absent = 0)
/* Number shared by the records of one operation. */
PASTA_INTEGER(pasta_correlation, uint64_t, PASTA_CORRELATION_absent = 0)
/* Priority of a stream; the lower, the more urgent.  -1 is a valid priority. */
PASTA_INTEGER(pasta_priority, int32_t, PASTA_PRIORITY_absent = -2147483647 - 1)

/* Every event kind: X(number, name, payload, handler, category, keep, retain, own, label, text).
 * Rows are in the order in which the handlers of a batch are called.
 * number   1 to 63, never reused
 * name     enumerator PASTA_EVENT_<name>, Parquet table, NumPy type
 * payload  struct pasta_<payload> that follows the header
 * handler  Tool method that receives the kind; none: on_batch only
 * category PASTA_CATEGORY_<category>
 * keep     1: published while profiling is stopped too, because later events refer to it
 * retain   1: its recorded parts are never dropped for newer ones, because later events refer to it
 * own      1: PASTA itself records it, whatever the source: no capability of one
 * label    plural noun, for "not given by SOURCE: ..."
 * text     when it is published */
/* clang-format off */
#define PASTA_EVENTS(X) \
    X( 1, process_start,     process,           none,              other,         1, 1, 1, "process starts", "the process first used an accelerator or a framework") \
    X( 2, process_end,       process_end,       none,              other,         1, 1, 1, "process ends", "exit handlers began; later ones may still do work") \
    X(33, profiling_start,   profiling,         none,              other,         1, 1, 1, "profiling starts", "profiling was started") \
    X(34, profiling_stop,    profiling,         none,              other,         1, 1, 1, "profiling stops", "profiling was stopped") \
    X(43, dropped,           dropped,           none,              other,         1, 0, 1, "dropped events", "events were dropped because the ring was at its cap") \
    X(53, device,            device,            on_devices,        other,         1, 1, 0, "properties of devices", "a device was first used: its properties") \
    X( 3, context_create,    context,           on_contexts,       other,         1, 1, 0, "contexts", "a device context was created") \
    X( 4, context_destroy,   context,           on_contexts,       other,         1, 1, 0, "context destroys", "a device context was destroyed") \
    X( 5, stream_create,     stream,            on_streams,        other,         1, 1, 0, "streams", "a stream was created") \
    X( 6, stream_destroy,    stream,            on_streams,        other,         1, 1, 0, "stream destroys", "a stream was destroyed") \
    X( 7, module_load,       module,            on_modules,        other,         1, 1, 0, "modules", "a module with device code was loaded") \
    X( 8, module_unload,     module,            on_modules,        other,         1, 1, 0, "module unloads", "a module was unloaded") \
    X(14, memory_alloc,      memory,            on_memory,         other,         1, 1, 0, "allocations", "memory was allocated, reserved or mapped") \
    X(15, memory_free,       memory,            on_memory,         other,         1, 1, 0, "frees", "memory was freed, released or unmapped") \
    X(37, tensor_alloc,      tensor_memory,     on_tensors,        other,         1, 0, 0, "framework allocations", "a framework allocator handed out memory; with --sample, perhaps only if it is still in use when a launch is probed") \
    X(38, tensor_free,       tensor_memory,     on_tensors,        other,         1, 0, 0, "framework frees", "a framework allocator took memory back") \
    X(39, tensor_create,     tensor,            on_tensors,        other,         1, 0, 0, "tensors", "a tensor id was bound to a shape and a storage") \
    X(46, allocator_state,   allocator_state,   on_tensors,        other,         1, 0, 0, "framework allocator states", "totals of a framework's caching allocator, before a tensor_alloc or tensor_free from which they do not follow") \
    X(28, range_push,        range,             on_ranges,         other,         1, 0, 1, "nested ranges", "a nested range was opened on this thread") \
    X(29, range_pop,         range,             on_ranges,         other,         1, 0, 1, "nested range ends", "the innermost range of this thread and domain was closed") \
    X(30, range_start,       range,             on_ranges,         other,         1, 0, 1, "process-wide ranges", "a process-wide range was opened") \
    X(31, range_end,         range,             on_ranges,         other,         1, 0, 1, "process-wide range ends", "a process-wide range was closed") \
    X(32, mark,              range,             on_ranges,         activity,      0, 0, 1, "marks", "an instant was marked") \
    X(35, operator_begin,    operator_begin,    on_operators,      other,         1, 0, 0, "operators", "a framework operator began") \
    X(45, operator_tensors,  operator_tensors,  on_operators,      other,         0, 0, 0, "further operator tensors", "tensors of an operator beyond those in its begin and end") \
    X(36, operator_end,      operator_end,      on_operators,      other,         1, 0, 0, "operator ends", "a framework operator ended") \
    X(40, python_frame,      python_frame,      on_frames,         other,         1, 1, 0, "Python stacks", "one frame of an interned Python stack") \
    X(58, host_frame,        host_frame,        on_host_frames,    other,         1, 1, 1, "frames of the host", "one native frame of an interned call stack") \
    X(59, host_stack,        host_stack,        on_host_stacks,    other,         0, 0, 1, "call stacks of the host", "the call stack of the thread that submitted work or allocated memory, right behind the work's record") \
    X(63, host_sample,       host_sample,       on_host_samples,   other,         0, 0, 1, "samples of the host", "a thread had used processor time for an interval: its call stack") \
    X( 9, kernel_launch,     kernel_launch,     on_launches,       launch,        0, 0, 0, "kernel launches", "a kernel launch was submitted") \
    X(10, kernel_launch_end, launch_end,        on_launch_ends,    launch_return, 0, 0, 0, "launch returns", "the launch call returned; the kernel may still run; with --sample, only for tools that read it") \
    X(60, communicator,      communicator,      on_collectives,    other,         1, 1, 1, "communicators", "a communication library created a communicator") \
    X(61, collective,        collective,        on_collectives,    activity,      0, 0, 1, "collectives", "a call of a communication library returned: a collective, a send or receive, or the end of a group of them") \
    X(11, kernel_complete,   kernel_complete,   on_completions,    launch_result, 0, 0, 0, "device times of kernels", "a kernel ran, with its device times") \
    X(54, kernel_details,    kernel_details,    on_kernel_details, launch_result, 0, 0, 0, "details of kernels", "how a kernel was queued and configured; on request") \
    X(41, pc_sample,         pc_sample,         on_samples,        launch_result, 0, 0, 0, "program counter samples", "stall samples of one program counter") \
    X(49, counter,           counter,           on_counters,       launch_result, 0, 0, 0, "hardware counters", "a hardware counter of one launch, or one instance of it") \
    X(64, tensor_map,        tensor_map,        on_tensor_maps,    launch_result, 0, 0, 0, "tensor maps", "a tensor map among the arguments of a launch, whose instructions are counted") \
    X(62, instruction_count, instruction_count, on_instruction_counts, launch_result, 0, 0, 0, "executed instructions", "how often a launch executed the instruction at one program counter") \
    X(12, graph_launch,      graph_launch,      on_graph_launches, activity,      0, 0, 0, "graph launches", "a graph launch was submitted") \
    X(13, graph_launch_end,  graph_launch,      on_graph_launches, activity,      0, 0, 0, "graph launch returns", "the graph launch call returned") \
    X(47, graph_node,        graph_node,        on_graphs,         other,         1, 1, 0, "graph nodes", "a stream capture added a graph node; the record names the thread's open operator") \
    X(48, graph_instantiate, graph_instantiate, on_graphs,         other,         1, 1, 0, "graph instantiations", "an executable graph was made from a captured graph") \
    X(16, memory_copy,       memory_copy,       on_copies,         activity,      0, 0, 0, "copies", "a copy was submitted") \
    X(17, memory_set,        memory_set,        on_sets,           activity,      0, 0, 0, "memory sets", "a memory set was submitted") \
    X(51, copy_complete,     copy_complete,     on_copy_completions, copy_result, 0, 0, 0, "device times of copies", "a copy or set ran, with its device times") \
    X(18, uvm_attach,        uvm,               on_uvm,            activity,      0, 1, 0, "managed memory attachments", "managed memory was attached to a stream") \
    X(19, uvm_prefetch,      uvm,               on_uvm,            activity,      0, 0, 0, "managed memory prefetches", "managed memory was prefetched") \
    X(20, uvm_advise,        uvm,               on_uvm,            activity,      0, 0, 0, "managed memory advice", "advice was given for managed memory") \
    X(21, uvm_fault,         uvm_activity,      on_uvm_activity,   activity,      0, 0, 0, "managed memory page faults", "page faults on managed memory") \
    X(22, uvm_migration,     uvm_activity,      on_uvm_activity,   activity,      0, 0, 0, "managed memory migrations", "managed memory migrated") \
    X(52, uvm_thrashing,     uvm_activity,      on_uvm_activity,   activity,      0, 0, 0, "thrashing of managed memory", "pages of managed memory thrashed, or the driver throttled accesses or mapped pages remotely") \
    X(23, sync,              sync,              on_syncs,          activity,      0, 0, 0, "synchronizations", "the host waited for a stream, context, device or event") \
    X(24, event_create,      event,             on_events,         other,         1, 0, 0, "events", "an accelerator event was created") \
    X(25, event_destroy,     event,             on_events,         other,         1, 0, 0, "event destroys", "an accelerator event was destroyed") \
    X(26, event_record,      event,             on_events,         activity,      0, 0, 0, "event records", "an accelerator event was recorded in a stream") \
    X(27, event_wait,        event,             on_events,         activity,      0, 0, 0, "event waits", "a stream was made to wait for an accelerator event") \
    X(55, overhead,          overhead,          on_overheads,      activity,      0, 0, 0, "overheads of the profiler", "the vendor's profiling library delayed the program") \
    X(56, clock_error,       clock_error,       none,              other,         1, 0, 0, "errors of device times", "the error of device times on the host's clock, so far") \
    X(57, device_sample,     device_sample,     on_device_samples, other,         1, 0, 1, "samples of devices", "power, clocks, temperature and memory of a device were read") \
    X(50, python_sample,     python_sample,     none,              other,         0, 0, 0, "Python stack samples", "the Python stack of a thread that ran no operator for milliseconds") \
    X(42, probe_data,        probe_data,        none,              other,         1, 0, 1, "probe buffers", "a buffer of a probe map is ready") \
    X(44, pad,               pad,               none,              ring,          1, 0, 1, "padding", "unused slots at the end of a segment; never recorded")
/* clang-format on */

#define PASTA_ENUMERATOR(number, name, ...) PASTA_EVENT_##name = number,
typedef enum pasta_event_kind { PASTA_EVENTS(PASTA_ENUMERATOR) } pasta_event_kind;
#undef PASTA_ENUMERATOR
#define PASTA_ONE(...) +1
enum { PASTA_EVENT_count = 0 PASTA_EVENTS(PASTA_ONE) };
#undef PASTA_ONE

/* What a filter of launches and ranges does with records of a kind. */
PASTA_INTEGER(pasta_category, uint32_t,
    PASTA_CATEGORY_other = 0,         /* kept */
    PASTA_CATEGORY_activity = 1,      /* dropped outside the selected ranges */
    PASTA_CATEGORY_launch = 2,        /* a launch: selected by name, range and number */
    PASTA_CATEGORY_launch_return = 3, /* kept with the launch of its ordinal */
    PASTA_CATEGORY_launch_result = 4, /* same; handlers get `context.launches` */
    PASTA_CATEGORY_ring = 5,          /* used by the ring itself, never decoded */
    PASTA_CATEGORY_copy_result = 6,   /* kept with the copy or set of its correlation */
)

/* Bits of pasta_header.flags. */
PASTA_INTEGER(pasta_flags, uint8_t,
    PASTA_FLAG_GRAPH = 1,    /* a node of a graph launch */
    PASTA_FLAG_ASYNC = 2,    /* the call did not wait for its effect */
    PASTA_FLAG_INTERNAL = 4, /* issued by the vendor's runtime for itself, not by the program */
    PASTA_FLAG_PROBED = 8,   /* a launch instrumented with probes */
    PASTA_FLAG_PAUSED = 16,  /* a launch while operators were not followed, or briefly: it does not tell how often they launch */
)

PASTA_INTEGER(pasta_memory_kind, uint32_t,
    PASTA_MEMORY_device = 1,
    PASTA_MEMORY_managed = 2,
    PASTA_MEMORY_pinned = 3,   /* page-locked host memory */
    PASTA_MEMORY_pool = 4,     /* stream-ordered: from a memory pool */
    PASTA_MEMORY_virtual = 5,  /* a reserved address range, mapped or not */
    PASTA_MEMORY_array = 6,    /* an opaque array; address is its handle */
    PASTA_MEMORY_external = 7, /* imported from another API or process */
    PASTA_MEMORY_module = 8,   /* a module's global variables */
    PASTA_MEMORY_host = 9,     /* pageable host memory (frameworks only) */
    PASTA_MEMORY_scratch = 10, /* a queue's per-thread memory of kernels; address is the queue's id */
)

PASTA_INTEGER(pasta_copy_direction, uint32_t,
    PASTA_COPY_host_to_host = 1,
    PASTA_COPY_host_to_device = 2,
    PASTA_COPY_device_to_host = 3,
    PASTA_COPY_device_to_device = 4,
    PASTA_COPY_peer_to_peer = 5,
)

PASTA_INTEGER(pasta_sync_target, uint32_t,
    PASTA_SYNC_stream = 1,
    PASTA_SYNC_context = 2,
    PASTA_SYNC_device = 3,
    PASTA_SYNC_event = 4,
)

PASTA_INTEGER(pasta_collective_operation, uint32_t,
    PASTA_COLLECTIVE_group = 1, /* end of a group: the launches of all calls in it */
    PASTA_COLLECTIVE_all_reduce = 2,
    PASTA_COLLECTIVE_reduce = 3,
    PASTA_COLLECTIVE_broadcast = 4,
    PASTA_COLLECTIVE_all_gather = 5,
    PASTA_COLLECTIVE_reduce_scatter = 6,
    PASTA_COLLECTIVE_all_to_all = 7,
    PASTA_COLLECTIVE_gather = 8,
    PASTA_COLLECTIVE_scatter = 9,
    PASTA_COLLECTIVE_send = 10,
    PASTA_COLLECTIVE_recv = 11,
)

PASTA_INTEGER(pasta_uvm_cause, uint32_t,
    PASTA_UVM_cpu_fault = 1,
    PASTA_UVM_gpu_fault = 2,
    PASTA_UVM_migration = 3,
    PASTA_UVM_thrashing = 4,
    PASTA_UVM_throttling = 5, /* the driver delayed accesses to a page that thrashed */
    PASTA_UVM_remote_map = 6, /* the driver mapped a page that thrashed instead of moving it */
)

/* pasta_uvm_activity.vendor_flags of a migration. */
PASTA_INTEGER(pasta_uvm_reason, uint32_t,
    PASTA_REASON_user = 1,      /* the program's prefetch */
    PASTA_REASON_coherence = 2, /* a fault */
    PASTA_REASON_prefetch = 3,  /* the driver's own prefetch, around a fault */
    PASTA_REASON_eviction = 4,
    PASTA_REASON_counters = 5,  /* of accesses to remote memory */
)

/* Bits of pasta_device_sample.throttle: why clocks are below their maximum. */
PASTA_INTEGER(pasta_throttle, uint32_t,
    PASTA_THROTTLE_POWER = 1,    /* the power limit */
    PASTA_THROTTLE_THERMAL = 2,  /* the temperature limit */
    PASTA_THROTTLE_HARDWARE = 4, /* hardware slowdown: power brake, or an emergency */
    PASTA_THROTTLE_SETTING = 8,  /* clocks set by a user */
    PASTA_THROTTLE_IDLE = 16,    /* no work */
    PASTA_THROTTLE_OTHER = 32,
)

PASTA_INTEGER(pasta_origin, uint32_t,
    PASTA_ORIGIN_api = 1,      /* pasta.start(), pasta.range() or pasta.h */
    PASTA_ORIGIN_profiler = 2, /* cudaProfilerStart, hipProfilerStart */
    PASTA_ORIGIN_nvtx = 3,
    PASTA_ORIGIN_roctx = 4,
    PASTA_ORIGIN_framework = 5, /* record_function and equivalents */
    PASTA_ORIGIN_limit = 6,     /* run.duration elapsed */
    PASTA_ORIGIN_window = 7,    /* run.window opened or closed */
)

PASTA_INTEGER(pasta_role, uint32_t,
    PASTA_ROLE_input = 1, /* of an operator */
    PASTA_ROLE_output = 2,
    PASTA_ROLE_parameter = 3, /* of a module; updated by an optimizer */
    PASTA_ROLE_gradient = 4,
    PASTA_ROLE_optimizer_state = 5,
    PASTA_ROLE_buffer = 6, /* of a module; not updated by an optimizer */
)

/* First 40 bytes of every record. */
typedef struct pasta_header {
    uint32_t commit;      /* low bits of the segment's number + 1 once published; written last */
    uint16_t kind;        /* pasta_event_kind */
    uint8_t slots;        /* length of the record in slots of 64 bytes */
    pasta_flags flags;    /* bits: PASTA_FLAG_* */
    uint64_t time;        /* CLOCK_MONOTONIC, ns */
    uint32_t thread;      /* thread id of the operating system */
    int16_t device;       /* ordinal in this process; absent: -1 */
    uint16_t context;     /* ordinal in this process; absent: all ones */
    uint64_t stream;      /* vendor's handle; 0 is the default stream; absent: all ones */
    pasta_correlation correlation; /* absent: 0 */
} pasta_header;

typedef struct pasta_process {
    uint32_t pid;
    uint32_t parent;
    pasta_string_id executable;  /* path of the program */
    pasta_string_id command;     /* arguments, separated by U+001F */
    pasta_string_id source;      /* source that registered first, e.g. "nvidia_sanitizer" */
    pasta_string_id version;     /* version of the vendor's library */
    pasta_string_id environment; /* variables requested by the launcher, NAME=value, separated by U+001F */
    uint32_t unused;
    uint64_t unused2[7];
} pasta_process;

typedef struct pasta_process_end {
    uint64_t last_launch; /* launches submitted by this process */
    uint64_t unused[2];
} pasta_process_end;

typedef struct pasta_context {
    uint64_t handle;
    pasta_string_id name; /* device name */
    uint32_t unused;
    uint64_t unused2;
} pasta_context;

typedef struct pasta_device {
    pasta_string_id name;
    pasta_string_id uuid;         /* as the vendor's tools print it */
    pasta_string_id architecture; /* "sm_90", "gfx942" */
    uint32_t multiprocessors;
    uint32_t warp;                /* threads per warp */
    uint32_t threads;             /* resident ones, maximum per multiprocessor */
    uint32_t blocks;              /* resident ones, maximum per multiprocessor */
    uint32_t registers;           /* per multiprocessor */
    uint32_t shared;              /* bytes per multiprocessor */
    uint32_t shared_per_block;    /* bytes, maximum without opting in to more */
    uint32_t clock;               /* maximum of multiprocessors, kHz */
    uint32_t l2;                  /* bytes of the last cache before memory */
    uint64_t memory;              /* bytes */
    uint64_t bandwidth;           /* peak of the memory, bytes per second */
    uint64_t unused[3];
} pasta_device;

typedef struct pasta_stream {
    uint64_t handle;
    uint64_t id;             /* the vendor's unique id where it has one; absent: all ones */
    pasta_priority priority; /* lower is more urgent; absent: PASTA_PRIORITY_absent */
    uint32_t unused;
} pasta_stream;

typedef struct pasta_module {
    uint64_t handle;
    uint64_t hash;  /* of the contents (64-bit FNV-1a over 8-byte words); absent: all ones */
    uint64_t bytes; /* size of the image; absent: all ones */
} pasta_module;

/* A launch by a graph may be recorded when it has run: then its header has the time and the thread of its
 * graph_launch. */
typedef struct pasta_kernel_launch {
    pasta_string_id name;    /* mangled */
    uint32_t grid[3];        /* blocks */
    uint32_t block[3];       /* threads */
    uint16_t cluster[3];     /* blocks per cluster; absent: all ones */
    uint16_t registers;      /* per thread; absent: all ones */
    uint32_t shared_static;  /* bytes per block; absent: all ones */
    uint32_t shared_dynamic; /* bytes per block; absent: all ones */
    uint32_t local;          /* bytes per thread; absent: all ones */
    uint64_t ordinal;        /* launch number in this process, from 0 */
    uint64_t graph_node;     /* node handle when launched by a graph; absent: all ones */
    uint64_t entry_pc;       /* address of the first instruction; absent: all ones */
    uint64_t function;       /* vendor's function handle */
    uint64_t module;         /* vendor's module handle; absent: all ones */
} pasta_kernel_launch;

typedef struct pasta_launch_end {
    uint64_t ordinal; /* of the launch */
    uint64_t unused[2];
} pasta_launch_end;

typedef struct pasta_kernel_complete {
    uint64_t ordinal; /* of the launch */
    uint64_t start;   /* ns, same clock as header.time */
    uint64_t end;     /* ns */
} pasta_kernel_complete;

/* Times are on the clock of header.time. */
typedef struct pasta_kernel_details {
    uint64_t ordinal;         /* of the launch */
    uint64_t queued;          /* ns: the command was put into the command buffer; absent: all ones */
    uint64_t submitted;       /* ns: the buffer was submitted to the device; absent: all ones */
    uint32_t shared_executed; /* bytes per block that the driver set; absent: all ones */
    uint32_t channel;         /* hardware channel; absent: all ones */
    uint32_t channel_type;    /* the vendor's number; absent: all ones */
    pasta_priority priority;  /* of the stream; absent: PASTA_PRIORITY_absent */
    uint64_t local_total;     /* bytes of local memory reserved; absent: all ones */
    uint32_t max_clusters;    /* of its size that can be active at once; absent: all ones */
    uint32_t launch_type;     /* the vendor's number; absent: all ones */
    uint64_t unused[4];
} pasta_kernel_details;

typedef struct pasta_graph_launch {
    uint64_t graph; /* executable graph handle */
    uint64_t launch_id;
    uint32_t upload; /* 1: an upload, not a launch */
    uint32_t unused;
} pasta_graph_launch;

/* Nodes in creation order.  Launches of an executable graph carry node handles only while the captured graph
 * exists; otherwise the k-th launch of a kernel belongs to its k-th node.  Without a graph: in those that the same
 * outermost operator launches, this kernel is the operator's, or in turn that of all operators that name it. */
typedef struct pasta_graph_node {
    uint64_t node;        /* handle, as in graph_node of launches, copies and sets; absent: all ones */
    uint64_t graph;       /* handle of the captured graph; absent: all ones */
    pasta_string_id name; /* of the kernel, as in kernel_launch; absent: not a kernel, or unknown */
    uint32_t unused;
} pasta_graph_node;

typedef struct pasta_graph_instantiate {
    uint64_t graph;      /* the handles of a graph and its nodes may be reused */
    uint64_t executable; /* handle, as in graph_launch */
    uint64_t unused;
} pasta_graph_instantiate;

typedef struct pasta_memory {
    uint64_t address;
    uint64_t bytes;           /* absent in a free of unknown size: all ones */
    pasta_memory_kind memory; /* PASTA_MEMORY_* */
    uint32_t vendor_flags;    /* the vendor's values; absent: all ones */
} pasta_memory;

typedef struct pasta_memory_copy {
    uint64_t source;
    uint64_t destination;
    uint64_t bytes;                 /* payload: width * height * depth */
    uint64_t width;                 /* bytes per row */
    uint64_t height;                /* rows */
    uint64_t depth;                 /* planes */
    uint64_t source_pitch;          /* bytes */
    uint64_t destination_pitch;     /* bytes */
    uint64_t graph_node;            /* absent: all ones */
    pasta_copy_direction direction; /* PASTA_COPY_*; absent: all ones */
    int16_t source_device;          /* -1: host or absent */
    int16_t destination_device;     /* -1: host or absent */
    uint64_t destination_stream;    /* if not header.stream; absent: all ones */
} pasta_memory_copy;

typedef struct pasta_memory_set {
    uint64_t address;
    uint64_t bytes;  /* width * height * element */
    uint64_t width;  /* elements per row */
    uint64_t height; /* rows */
    uint64_t pitch;  /* bytes */
    uint32_t element; /* bytes */
    uint32_t value;
    uint64_t graph_node; /* absent: all ones */
    uint64_t unused[4];
} pasta_memory_set;

typedef struct pasta_communicator {
    uint64_t communicator; /* number in this process, from 1 */
    uint64_t id;           /* equal in all its ranks, and in no other communicator; absent: all ones */
    uint64_t parent;       /* number of the communicator that it was split from; absent: all ones */
    uint64_t handle;
    uint32_t rank;           /* in the communicator; absent: all ones */
    uint32_t size;           /* ranks; absent: all ones */
    pasta_string_id library; /* name and version */
    uint32_t unused;
    uint64_t unused2[5];
} pasta_communicator;

/* header.time is the return of the call.  Calls in a group launch when it ends: their launches are in its record. */
typedef struct pasta_collective {
    uint64_t communicator; /* number; absent: all ones */
    uint64_t count;        /* elements, as the call counts them; of a group: calls */
    uint64_t order;        /* number of the collective in its communicator, the same in all ranks; of a send or recv
                              among those to or from the peer; absent: all ones */
    uint64_t group;        /* number of the group in this process; absent: all ones */
    uint64_t begin;        /* ns: the call began */
    uint64_t launch;       /* ordinal of the first launch by this thread in the call; absent: all ones */
    uint32_t launches;     /* by this thread in the call */
    pasta_collective_operation operation; /* PASTA_COLLECTIVE_* */
    uint32_t element;      /* bytes; absent: all ones */
    pasta_string_id type;  /* of the elements */
    uint32_t peer;         /* root, or other end of a send or recv; absent: all ones */
    uint32_t result;       /* the library's status; 0: success */
    uint64_t unused[2];
} pasta_collective;

/* header.correlation is that of the memory_copy or memory_set.  A copy that the vendor executes in parts has one
 * record per part: their bytes add up to those of the copy. */
typedef struct pasta_copy_complete {
    uint64_t start;                 /* ns, same clock as header.time */
    uint64_t end;                   /* ns */
    uint64_t bytes;                 /* of this part; absent: all ones */
    pasta_copy_direction direction; /* PASTA_COPY_*; of a set absent: all ones */
    uint32_t unused;
    uint64_t unused2[7];
} pasta_copy_complete;

typedef struct pasta_uvm {
    uint64_t address;
    uint64_t bytes;      /* absent: all ones */
    uint32_t advice;     /* the vendor's visibility or advice number; absent: all ones */
    int16_t source;      /* device; -1: host or absent */
    int16_t destination; /* device; -1: host or absent */
} pasta_uvm;

/* Times are on the clock of header.time. */
typedef struct pasta_uvm_activity {
    uint64_t address;
    uint64_t bytes;        /* absent: all ones */
    uint64_t start;        /* ns */
    uint64_t end;          /* ns; absent: all ones */
    pasta_uvm_cause cause; /* PASTA_UVM_* */
    uint32_t count;        /* faults in this record; absent: all ones */
    uint32_t vendor_flags; /* access (1 read, 2 write, 3 atomic), or PASTA_REASON_* of a migration; absent: all ones */
    int16_t source;        /* device; -1: host or absent */
    int16_t destination;   /* device; -1: host or absent */
    uint64_t unused[5];
} pasta_uvm_activity;

typedef struct pasta_overhead {
    uint64_t start;       /* ns, same clock as header.time */
    uint64_t end;         /* ns */
    pasta_string_id name; /* of the vendor's kind of overhead */
    uint32_t unused;
} pasta_overhead;

/* Device times are converted to CLOCK_MONOTONIC by a method with an error of its own; events show a lower bound of
 * the whole: no kernel starts before its launch. */
typedef struct pasta_clock_error {
    uint64_t error;    /* of the conversion, ns; absent: all ones */
    uint64_t observed; /* longest time by which work started before it was submitted, ns */
    uint64_t work;     /* kernels and copies compared */
} pasta_clock_error;

/* Read by the launcher, which appends it to the ring of each process that sees the device.  header.device is absent
 * where it is not known which of the process's devices it is; header.thread is 0. */
typedef struct pasta_device_sample {
    pasta_string_id uuid;     /* of the device */
    uint32_t power;           /* mW; absent: all ones */
    uint32_t clock;           /* of multiprocessors, MHz; absent: all ones */
    uint32_t memory_clock;    /* MHz; absent: all ones */
    uint32_t max_clock;       /* of multiprocessors, MHz; absent: all ones */
    uint32_t throttle;        /* bits: PASTA_THROTTLE_*; absent: all ones */
    uint16_t temperature;     /* degrees Celsius; absent: all ones */
    uint16_t utilization;     /* percent of time with a kernel, as the driver reports it; absent: all ones */
    uint16_t memory_activity; /* percent of time with memory traffic; absent: all ones */
    uint16_t others;          /* other processes that use the device; absent: all ones */
    uint64_t memory_used;     /* bytes, by all processes; absent: all ones */
    uint64_t memory_others;   /* bytes, by processes outside of this run; absent: all ones */
    uint64_t memory_total;    /* bytes; absent: all ones */
    uint32_t power_limit;     /* mW; absent: all ones */
    uint32_t link_bandwidth;  /* of all links to other devices, or where it has none to the host, in one direction: 10^6 bytes/s; absent: all ones */
    uint64_t unused[3];
} pasta_device_sample;

/* header.time is the end of the wait. */
typedef struct pasta_sync {
    uint64_t handle;        /* stream, context or event waited for; absent: all ones */
    pasta_sync_target what; /* PASTA_SYNC_* */
    uint32_t unused;
    uint64_t duration; /* of the wait, ns; absent: all ones */
} pasta_sync;

typedef struct pasta_event {
    uint64_t handle;
    uint64_t unused[2];
} pasta_event;

typedef struct pasta_range {
    uint64_t id;            /* pairs range_start and range_end; absent: all ones */
    pasta_string_id name;   /* absent in a pop or end */
    pasta_string_id domain; /* absent: the default domain */
    uint32_t color;         /* ARGB; absent: all ones */
    pasta_origin origin;    /* PASTA_ORIGIN_* */
} pasta_range;

typedef struct pasta_profiling {
    pasta_origin origin; /* PASTA_ORIGIN_* */
    uint32_t unused;
    uint64_t unused2[2];
} pasta_profiling;

/* Operators of a thread nest.  Tensors are ids of tensor_create; those beyond the capacity of begin and end are
 * in operator_tensors: inputs before the begin, outputs before the end. */
typedef struct pasta_operator_begin {
    pasta_string_id name;
    pasta_stack_id stack;            /* id of an interned Python stack; 0: the enclosing operator's */
    pasta_string_id module;    /* path and class of the innermost module */
    uint32_t sequence;         /* low bits of the sequence number shared with its gradient; absent: all ones */
    uint16_t forward_thread;   /* framework's number of the forward operator's thread; absent: all ones */
    uint16_t framework_thread; /* framework's number of this thread */
    uint16_t depth;            /* open operators of the thread; 1 is outermost */
    uint8_t scope;             /* the framework's scope number */
    uint8_t inputs;            /* used entries of `tensor` */
    uint32_t tensor[16];
} pasta_operator_begin;

typedef struct pasta_operator_end {
    uint16_t depth;   /* of the begin */
    uint16_t outputs; /* used entries of `tensor` */
    uint32_t tensor[4];
    uint32_t unused;
} pasta_operator_end;

typedef struct pasta_operator_tensors {
    pasta_role role; /* PASTA_ROLE_input or _output */
    uint16_t count;  /* used entries of `tensor` */
    uint16_t unused;
    uint32_t tensor[4];
} pasta_operator_tensors;

typedef struct pasta_tensor_memory {
    uint64_t address;
    uint64_t bytes;           /* absent in a free of unknown size: all ones */
    pasta_stack_id stack;           /* id of an interned Python stack; 0 absent */
    pasta_memory_kind memory; /* PASTA_MEMORY_* */
} pasta_tensor_memory;

typedef struct pasta_allocator_state {
    uint64_t allocated; /* bytes in use, after the tensor_alloc or tensor_free that follows */
    uint64_t reserved;  /* bytes reserved from the device */
    uint64_t unused;
} pasta_allocator_state;

/* Binds an id to a tensor.  A tensor may have several ids, one per thread; an id may be bound again later. */
typedef struct pasta_tensor {
    uint64_t storage;        /* address of the storage's first byte */
    uint64_t bytes;          /* of the storage */
    uint64_t offset;         /* of the tensor in the storage, bytes */
    uint32_t tensor;         /* id, from 1; absent where only `role` is known: all ones */
    pasta_role role;         /* PASTA_ROLE_* of the storage in the framework's objects; 0 absent */
    pasta_string_id shape;   /* comma-separated */
    pasta_string_id strides; /* comma-separated, elements */
    pasta_string_id dtype;
    pasta_string_id name;    /* name in the program, for example of a parameter */
    uint64_t unused[5];
} pasta_tensor;

typedef struct pasta_python_frame {
    pasta_stack_id stack; /* id of the stack */
    uint32_t depth; /* 0 is the innermost */
    pasta_string_id file;
    pasta_string_id function;
    uint32_t line;
    uint32_t first_line; /* of the function */
} pasta_python_frame;

/* Frames of a stack that run Python are python_frame records. */
typedef struct pasta_host_frame {
    pasta_stack_id stack;
    uint32_t depth;        /* 0 is the innermost */
    pasta_string_id image; /* path of the program or library; absent: code of none, such as generated code */
    pasta_string_id build; /* its build id, hexadecimal */
    uint64_t address;      /* inside the call, in the image's file; without an image in memory */
} pasta_host_frame;

typedef struct pasta_host_stack {
    pasta_stack_id stack;
    uint16_t work;      /* pasta_event_kind of the work */
    uint16_t truncated; /* 1: outer frames are missing */
    uint64_t key;       /* ordinal of the launch, or address of the allocation; absent: all ones */
    uint64_t work_time; /* of the work's record */
} pasta_host_stack;

/* Published by the launcher: times of different threads are not in order. */
typedef struct pasta_host_sample {
    pasta_stack_id stack;
    uint32_t period;    /* ns of processor time per sample */
    uint32_t lost;      /* samples of the program that were lost before it */
    uint16_t in_kernel; /* 1: the thread was in a system call or a page fault */
    uint16_t truncated; /* 1: outer frames are missing */
    uint64_t unused;
} pasta_host_sample;

typedef struct pasta_python_sample {
    pasta_stack_id stack; /* id of the stack of the thread that ran the last operator */
    uint32_t unused[5];
} pasta_python_sample;

/* Samples of warps at one instruction that waited for one reason.  Samples without a place, because they were lost
 * or are not of the program's kernels, have no `pc`: `reason` says why, and `samples` may be 0 where the number is
 * not known. */
typedef struct pasta_pc_sample {
    uint64_t pc;            /* byte offset in the function; in the module if `function` and `name` are absent; absent:
                               all ones */
    uint64_t function;      /* vendor's function handle; absent: all ones */
    pasta_string_id name;   /* of the function, mangled; absent where `ordinal` or `function` has it */
    pasta_string_id reason; /* for which the warp waited, as the source names it; absent: unknown */
    uint32_t samples;
    uint32_t not_issued;    /* of `samples`: no warp issued an instruction in that cycle; absent: all ones */
    uint64_t ordinal;       /* of the launch; absent: all ones */
    uint64_t module;        /* vendor's module handle; absent: all ones */
    uint64_t module_hash;   /* of the module's contents, as in module_load; absent: all ones */
    uint32_t symbol;        /* index of the function in the module's symbol table; absent: all ones */
    uint32_t unused;
    uint64_t unused2[3];
} pasta_pc_sample;

typedef struct pasta_counter {
    uint64_t ordinal; /* of the launch */
    double value;
    pasta_string_id name;     /* the vendor's name */
    pasta_string_id instance; /* position in the device, dimension=position, …; absent: a single instance */
} pasta_counter;

typedef struct pasta_instruction_count {
    uint64_t ordinal;     /* of the launch */
    uint64_t pc;          /* byte offset in the function */
    uint64_t warps;       /* executions by warps */
    uint64_t threads;     /* executions by threads whose predicate was true */
    pasta_string_id name; /* of the function, mangled; absent: the launch's kernel */
    uint32_t symbol;      /* index of the function in the module's symbol table; absent: all ones */
    uint64_t unused[6];
} pasta_instruction_count;

typedef struct pasta_tensor_map {
    uint64_t ordinal; /* of the launch */
    uint64_t address; /* of the tensor */
    uint64_t bytes;   /* from there to the tensor's last element */
    uint32_t offset;  /* of the map among the kernel's parameters, in bytes */
    uint32_t box;     /* bytes that one load or store accesses, if all of its box is inside the tensor */
    uint64_t unused[7];
} pasta_tensor_map;

typedef struct pasta_probe_data {
    uint64_t offset; /* of the buffer in the probe area */
    uint64_t bytes;
    uint32_t map;
    uint32_t unused;
} pasta_probe_data;

typedef struct pasta_dropped {
    uint64_t count; /* events dropped just before this record */
    uint64_t unused[2];
} pasta_dropped;

typedef struct pasta_pad {
    uint64_t unused[3];
} pasta_pad;

/* ---- The ring: one shared-memory file per process ------------------------------------------
 *
 *   page 0          pasta_ring: identity, positions, drop counters, state
 *   strings_offset  hash table (uint64_t[PASTA_STRING_SLOTS]), then the arena of interned strings
 *   data_offset     physical segments of segment_bytes each, allocated on demand
 *
 * A slot's position is a 64-bit number that never wraps; its logical segment is L = position / segment_slots.
 * segment_map[L % PASTA_MAX_SEGMENTS] holds (L + 1) << 16 | (physical segment + 1) once a producer has
 * installed memory for L.  A record is published when its header.commit equals (uint32_t)(L + 1).
 */
enum {
    PASTA_MAX_SEGMENTS = 4096,
    PASTA_STRING_SLOTS = 65536,
    PASTA_KINDS = 128,
    PASTA_SOURCES = 16,
};

enum {
    PASTA_STATE_open = 1,     /* the process runs and publishes */
    PASTA_STATE_exiting = 2,  /* its exit handlers run; events may follow */
};

/* Limit on the ring's growth other than ring.max. */
enum {
    PASTA_LIMIT_none = 0,    /* none */
    PASTA_LIMIT_memory = 1,  /* the file system or the system was out of memory */
    PASTA_LIMIT_sandbox = 2, /* a system call filter of the process forbids allocation */
};

enum {
    PASTA_CONSUMER_none = 0,      /* no consumer yet; the process has not used an accelerator */
    PASTA_CONSUMER_embedded = 1,  /* a thread of this process */
    PASTA_CONSUMER_collector = 2, /* a collector process, requested or running */
};

typedef struct pasta_ring {
    uint64_t magic;          /* "PASTARN3" */
    uint32_t schema;         /* PASTA_SCHEMA */
    uint32_t pid;
    uint32_t sequence;       /* number of earlier rings of this pid (exec) */
    uint32_t parent;
    uint64_t start_time;     /* CLOCK_MONOTONIC, ns */
    uint64_t start_realtime; /* CLOCK_REALTIME at start_time, ns */
    uint64_t file_bytes;
    uint64_t strings_offset;
    uint64_t arena_offset;
    uint64_t arena_bytes;    /* cap */
    uint32_t segment_bytes;
    uint32_t segment_slots;
    uint32_t max_segments;   /* cap: ring.max / segment_bytes */
    pasta_string_id reason;  /* reason for requesting a collector */
    uint64_t registration;   /* index in the session's table of processes */
    uint8_t line0[96];
    /* written by producers; the first line has what every record needs */
    uint64_t tail;           /* next position to reserve */
    uint64_t pending_drops;
    uint64_t data_offset;    /* of the segments; constant */
    uint64_t launches;
    uint64_t arena_used;
    uint32_t segments;       /* physical segments taken, freed ones included */
    uint32_t backed;         /* physical segments with memory: access cannot raise SIGBUS */
    uint32_t state;          /* PASTA_STATE_* */
    uint32_t used;           /* 1: an accelerator or framework was used; the run gets a directory */
    uint32_t consumer;       /* PASTA_CONSUMER_* */
    uint32_t limited;        /* PASTA_LIMIT_* */
    uint64_t arena_committed;
    uint8_t line1[64];
    /* written by the consumer */
    uint64_t released;       /* first position not yet released */
    uint64_t processed;      /* first position not yet delivered to the tools */
    uint64_t free_head;      /* tagged stack of free physical segments: tag << 32 | (segment + 1) */
    uint64_t heartbeat;      /* CLOCK_MONOTONIC of the consumer's last poll, ns */
    uint32_t finish;         /* 1: the consumer is to drain and exit */
    uint32_t finished;       /* 1: the consumer drained and saved its state */
    uint32_t critical;       /* 1: the embedded consumer imports or compiles; exit must not interrupt it */
    uint32_t ends;           /* 1: the end of a block is about to be published to its reader */
    uint64_t reader;         /* block number << 48 | 1 + first position its reader needs; 0: none */
    uint32_t ended;          /* how the process ended (pasta/runtime/session.py); 0: unknown */
    int32_t ended_status;    /* exit status or signal; -1: unknown */
    uint8_t line2[64];
    uint64_t dropped[PASTA_KINDS];          /* per kind */
    uint64_t segment_map[PASTA_MAX_SEGMENTS];
    uint32_t free_next[PASTA_MAX_SEGMENTS]; /* links of the free stack */
    /* written by producers */
    pasta_string_id sources[PASTA_SOURCES]; /* in use, in the order of their first use; absent: 0 */
    pasta_string_id environment; /* as in process_start, when the newest of them was first used */
} pasta_ring;

#ifndef PASTA_CFFI
#ifdef __cplusplus
#define _Static_assert static_assert
#endif
#define PASTA_MAGIC UINT64_C(0x334e524154534150) /* "PASTARN3" */
#define PASTA_ASSERT_PAYLOAD(number, name, payload, ...)                               \
    _Static_assert((sizeof(pasta_header) + sizeof(pasta_##payload)) % PASTA_SLOT == 0, \
                   "record of " #name " must fill whole slots");
PASTA_EVENTS(PASTA_ASSERT_PAYLOAD)
#undef PASTA_ASSERT_PAYLOAD
/* Each event number is used once: others do not compile. */
#define PASTA_CASE(number, ...) case number:
static inline int pasta_is_kind(int number) {
    switch (number) { PASTA_EVENTS(PASTA_CASE) return 1; }
    return 0;
}
#undef PASTA_CASE
#define PASTA_ASSERT_NUMBER(number, ...) \
    _Static_assert((number) > 0 && (number) < (int)PASTA_KINDS, "kinds fit the counters of the ring");
PASTA_EVENTS(PASTA_ASSERT_NUMBER)
#undef PASTA_ASSERT_NUMBER
_Static_assert(sizeof(pasta_header) == 40, "header");
#endif

#endif
