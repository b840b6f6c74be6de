/* The one description of PASTA's ring and events (schema 1).
 *
 * Read by the C compiler, by cffi (preprocessed with -DPASTA_CFFI) and by the generator of
 * docs/events.md.  Little-endian, 64-bit.  A field that a source cannot give is *absent*, never
 * zero: every absent value is all ones (PASTA_ABSENT_*), except ids, where 0 is absent as it is
 * never given out (strings, correlation).
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
#define PASTA_ABSENT_PRIORITY INT32_MIN
#endif

/* Every event kind once: X(number, name, payload, keep, text).
 * `name` gives the enumerator PASTA_EVENT_<name>, the Parquet table and the NumPy type;
 * `payload` is the struct pasta_<payload> that follows the header.
 * keep = 1: published while profiling is stopped too, because later events need it
 * (what is allocated, loaded and created must be known after a start). */
/* clang-format off */
#define PASTA_EVENTS(X)                                                                                         \
    X( 1, process_start,    process,        1, "the process began to use an accelerator, or a framework")      \
    X( 2, process_end,      process_end,    1, "exit handlers begin; later ones may still do work")                       \
    X( 3, context_create,   context,        1, "a device context was created")                                 \
    X( 4, context_destroy,  context,        1, "a device context was destroyed")                               \
    X( 5, stream_create,    stream,         1, "a stream was created")                                         \
    X( 6, stream_destroy,   stream,         1, "a stream was destroyed")                                       \
    X( 7, module_load,      module,         1, "a module with device code was loaded")                         \
    X( 8, module_unload,    module,         1, "a module was unloaded")                                        \
    X( 9, kernel_launch,    kernel_launch,  0, "a kernel launch was submitted")                                \
    X(10, kernel_launch_end,launch_end,     0, "the launch call returned (not: the kernel completed)")         \
    X(11, kernel_complete,  kernel_complete,0, "a kernel ran, with its device times")                          \
    X(12, graph_launch,     graph_launch,   0, "a graph launch was submitted")                                 \
    X(13, graph_launch_end, graph_launch,   0, "the graph launch call returned")                               \
    X(14, memory_alloc,     memory,         1, "memory was allocated, reserved or mapped")                     \
    X(15, memory_free,      memory,         1, "memory was freed, released or unmapped")                       \
    X(16, memory_copy,      memory_copy,    0, "a copy was submitted")                                         \
    X(17, memory_set,       memory_set,     0, "a memory set was submitted")                                   \
    X(18, uvm_attach,       uvm,            0, "managed memory was attached to a stream")                      \
    X(19, uvm_prefetch,     uvm,            0, "managed memory was prefetched")                                \
    X(20, uvm_advise,       uvm,            0, "advice was given for managed memory")                          \
    X(21, uvm_fault,        uvm,            0, "page faults on managed memory")                                \
    X(22, uvm_migration,    uvm,            0, "managed memory migrated")                                      \
    X(23, sync,             sync,           0, "the host waited for a stream, context, device or event")       \
    X(24, event_create,     event,          1, "an accelerator event was created")                             \
    X(25, event_destroy,    event,          1, "an accelerator event was destroyed")                           \
    X(26, event_record,     event,          0, "an accelerator event was recorded in a stream")                \
    X(27, event_wait,       event,          0, "a stream was made to wait for an accelerator event")           \
    X(28, range_push,       range,          1, "a nested range was opened on this thread")                     \
    X(29, range_pop,        range,          1, "the innermost range of this thread and domain was closed")     \
    X(30, range_start,      range,          1, "a process-wide range was opened")                              \
    X(31, range_end,        range,          1, "a process-wide range was closed")                              \
    X(32, mark,             range,          0, "an instant was marked")                                        \
    X(33, profiling_start,  profiling,      1, "profiling was started")                                        \
    X(34, profiling_stop,   profiling,      1, "profiling was stopped")                                        \
    X(35, operator_begin,   operator_begin, 1, "a framework operator began")                                   \
    X(36, operator_end,     operator_end,   1, "a framework operator ended")                                   \
    X(37, tensor_alloc,     tensor_memory,  1, "a framework allocator handed out memory")                      \
    X(38, tensor_free,      tensor_memory,  1, "a framework allocator took memory back")                       \
    X(39, tensor_create,    tensor,         1, "a tensor of this shape at this place was seen first")          \
    X(40, python_frame,     python_frame,   1, "one frame of an interned Python stack")                        \
    X(41, pc_sample,        pc_sample,      0, "stall samples of one program counter")                         \
    X(42, probe_data,       probe_data,     1, "a buffer of a probe map is ready")                             \
    X(43, dropped,          dropped,        1, "events were lost because the ring was at its cap")             \
    X(44, pad,              pad,            1, "unused slots at the end of a segment; never recorded")             \
    X(45, operator_tensors, operator_tensors, 0, "more tensors that an operator takes or gives")       \
    X(46, allocator_state,  allocator_state, 1, "what a framework's caching allocator holds, before tensor_alloc or _free") \
    X(47, graph_node,       graph_node,     1, "a node of a graph was captured, by the operator that is open on the thread") \
    X(48, graph_instantiate,graph_instantiate,1,"a graph that was captured became one that can be launched") \
    X(49, counter,          counter,        0, "a hardware counter of one launch, or one instance of it") \
    X(50, python_sample,    python_sample,  0, "the Python stack between two operators, where no operator ran for milliseconds")
/* clang-format on */

#define PASTA_ENUMERATOR(number, name, payload, keep, text) PASTA_EVENT_##name = number,
typedef enum pasta_event_kind { PASTA_EVENTS(PASTA_ENUMERATOR) PASTA_EVENT_count = 51 } pasta_event_kind;

/* pasta_header.flags */
enum {
    PASTA_FLAG_GRAPH = 1,    /* happened as a node of a graph launch */
    PASTA_FLAG_ASYNC = 2,    /* the call did not wait for its effect */
    PASTA_FLAG_INTERNAL = 4, /* made by the vendor's runtime for itself, not by the program */
    PASTA_FLAG_PROBED = 8,   /* a launch inside which probes run */
};

enum {
    PASTA_MEMORY_device = 1,
    PASTA_MEMORY_managed = 2,
    PASTA_MEMORY_pinned = 3,   /* page-locked host memory */
    PASTA_MEMORY_pool = 4,     /* stream-ordered: from a memory pool */
    PASTA_MEMORY_virtual = 5,  /* a reserved address range; nothing may be mapped there */
    PASTA_MEMORY_array = 6,    /* an opaque array; address is its handle */
    PASTA_MEMORY_external = 7, /* imported from another API or process */
    PASTA_MEMORY_module = 8,   /* a module's global variables */
    PASTA_MEMORY_host = 9,     /* pageable host memory (frameworks only) */
    PASTA_MEMORY_scratch = 10, /* of a queue, for what its kernels keep per thread; address is the queue's id */
};

enum {
    PASTA_COPY_host_to_host = 1,
    PASTA_COPY_host_to_device = 2,
    PASTA_COPY_device_to_host = 3,
    PASTA_COPY_device_to_device = 4,
    PASTA_COPY_peer_to_peer = 5,
};

enum {
    PASTA_SYNC_stream = 1,
    PASTA_SYNC_context = 2,
    PASTA_SYNC_device = 3,
    PASTA_SYNC_event = 4,
};

enum {
    PASTA_ORIGIN_api = 1,      /* pasta.start(), pasta.range() or pasta.h */
    PASTA_ORIGIN_profiler = 2, /* cudaProfilerStart, hipProfilerStart */
    PASTA_ORIGIN_nvtx = 3,
    PASTA_ORIGIN_roctx = 4,
    PASTA_ORIGIN_framework = 5, /* record_function and its like */
    PASTA_ORIGIN_limit = 6,     /* run.duration is over */
};

enum {
    PASTA_ROLE_input = 1, /* of an operator */
    PASTA_ROLE_output = 2,
    PASTA_ROLE_parameter = 3, /* an optimizer updates it, or a module holds it for that */
    PASTA_ROLE_gradient = 4,
    PASTA_ROLE_optimizer_state = 5,
    PASTA_ROLE_buffer = 6, /* a module holds it, no optimizer updates it */
};

/* First 40 bytes of every record. */
typedef struct pasta_header {
    uint32_t commit;      /* word of the segment once published; written last */
    uint16_t kind;        /* pasta_event_kind */
    uint8_t slots;        /* length of the record in slots of 64 bytes */
    uint8_t flags;        /* PASTA_FLAG_* */
    uint64_t time;        /* CLOCK_MONOTONIC, ns */
    uint32_t thread;      /* thread id of the operating system */
    int16_t device;       /* ordinal in this process; -1 absent */
    uint16_t context;     /* number of the context in this process, from 0; absent: all ones */
    uint64_t stream;      /* vendor's stream handle; 0 is the default stream; absent: all ones */
    uint64_t correlation; /* pairs records of one operation; 0 absent */
} pasta_header;

typedef struct pasta_process {
    uint32_t pid;
    uint32_t parent;
    uint32_t executable; /* string: path of the program */
    uint32_t command;    /* string: arguments, separated by U+001F */
    uint32_t source;     /* string: the source that saw its first use, e.g. "nvidia_sanitizer" */
    uint32_t version;    /* string: version of the vendor's library */
    uint32_t environment; /* string: the variables the launcher asked for, NAME=value, separated by U+001F */
    uint32_t unused;
    uint64_t unused2[7];
} pasta_process;

typedef struct pasta_process_end {
    uint64_t last_launch; /* launches submitted by this process */
    uint64_t unused[2];
} pasta_process_end;

typedef struct pasta_context {
    uint64_t handle;
    uint32_t name; /* string: device name */
    uint32_t unused;
    uint64_t unused2;
} pasta_context;

typedef struct pasta_stream {
    uint64_t handle;
    uint64_t id;       /* the vendor's unique id where it has one; absent: all ones */
    int32_t priority;  /* the lower, the more urgent; absent: PASTA_ABSENT_PRIORITY, as -1 is one */
    uint32_t unused;
} pasta_stream;

typedef struct pasta_module {
    uint64_t handle;
    uint64_t hash;  /* of the contents (64-bit FNV-1a over 8-byte words); absent: all ones */
    uint64_t bytes; /* size of the image; absent: all ones */
} pasta_module;

typedef struct pasta_kernel_launch {
    uint32_t name;           /* string: as the vendor gives it (mangled) */
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

typedef struct pasta_graph_launch {
    uint64_t graph; /* executable graph handle */
    uint64_t launch_id;
    uint32_t upload; /* 1: an upload, not a launch */
    uint32_t unused;
} pasta_graph_launch;

/* In the order in which they were made. What an executable graph launches has the handle of the node only
 * while the graph is there that it was made of: else the k-th launch of a kernel is that of its k-th node. */
typedef struct pasta_graph_node {
    uint64_t node;  /* handle, as in graph_node of what it launches */
    uint64_t graph; /* handle of the graph that is captured */
    uint32_t name;  /* string: of the kernel, as in kernel_launch; 0: it is no kernel, or not known */
    uint32_t unused;
} pasta_graph_node;

typedef struct pasta_graph_instantiate {
    uint64_t graph;      /* its handle and those of its nodes may be given again */
    uint64_t executable; /* handle, as in graph_launch */
    uint64_t unused;
} pasta_graph_instantiate;

typedef struct pasta_memory {
    uint64_t address;
    uint64_t bytes;       /* absent in a free whose size the source does not tell: all ones */
    uint32_t memory;      /* PASTA_MEMORY_* */
    uint32_t vendor_flags; /* as the vendor gives them; absent: all ones */
} pasta_memory;

typedef struct pasta_memory_copy {
    uint64_t source;
    uint64_t destination;
    uint64_t bytes;             /* payload: width * height * depth */
    uint64_t width;             /* bytes per row */
    uint64_t height;            /* rows */
    uint64_t depth;             /* planes */
    uint64_t source_pitch;      /* bytes */
    uint64_t destination_pitch; /* bytes */
    uint64_t graph_node;        /* absent: all ones */
    uint32_t direction;         /* PASTA_COPY_*; absent: all ones */
    int16_t source_device;      /* -1: host or absent */
    int16_t destination_device; /* -1: host or absent */
    uint64_t destination_stream; /* when it differs from header.stream; absent: all ones */
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

typedef struct pasta_uvm {
    uint64_t address;
    uint64_t bytes;      /* absent: all ones */
    uint32_t advice;     /* the vendor's visibility or advice number; absent: all ones */
    int16_t source;      /* device; -1: host or absent */
    int16_t destination; /* device; -1: host or absent */
} pasta_uvm;

/* header.time is the end of the wait. */
typedef struct pasta_sync {
    uint64_t handle; /* of what was waited for: stream, context or event; absent: all ones */
    uint32_t what;   /* PASTA_SYNC_* */
    uint32_t unused;
    uint64_t duration; /* ns the host waited; absent: all ones */
} pasta_sync;

typedef struct pasta_event {
    uint64_t handle;
    uint64_t unused[2];
} pasta_event;

typedef struct pasta_range {
    uint64_t id;     /* pairs range_start and range_end; absent: all ones */
    uint32_t name;   /* string; absent in a pop or end */
    uint32_t domain; /* string; absent: the default domain */
    uint32_t color;  /* ARGB; absent: all ones */
    uint32_t origin; /* PASTA_ORIGIN_* */
} pasta_range;

typedef struct pasta_profiling {
    uint32_t origin; /* PASTA_ORIGIN_* */
    uint32_t unused;
    uint64_t unused2[2];
} pasta_profiling;

/* An operator of a thread is open until its end; those of one thread nest. Tensors are ids of
 * tensor_create; those that find no place in begin and end are in operator_tensors: inputs before the
 * begin, outputs before the end. */
typedef struct pasta_operator_begin {
    uint32_t name;     /* string */
    uint32_t stack;    /* id of an interned Python stack; 0: as of the operator around it */
    uint32_t module;   /* string: path and class of the innermost module; 0 absent */
    uint32_t sequence; /* low bits of the number that links it and its gradient; absent: all ones */
    uint16_t forward_thread;   /* framework's number of the forward operator's thread; absent: all ones */
    uint16_t framework_thread; /* framework's number of this thread */
    uint16_t depth;    /* how many of the thread's operators are open now: 1 is outermost */
    uint8_t scope;     /* the framework's scope number */
    uint8_t inputs;    /* how many are in `tensor` */
    uint32_t tensor[16];
} pasta_operator_begin;

typedef struct pasta_operator_end {
    uint16_t depth;   /* of the begin */
    uint16_t outputs; /* how many are in `tensor` */
    uint32_t tensor[4];
    uint32_t unused;
} pasta_operator_end;

typedef struct pasta_operator_tensors {
    uint32_t role;  /* PASTA_ROLE_input or _output */
    uint16_t count; /* how many are in `tensor` */
    uint16_t unused;
    uint32_t tensor[4];
} pasta_operator_tensors;

typedef struct pasta_tensor_memory {
    uint64_t address;
    uint64_t bytes;     /* absent in a free whose size the source does not tell: all ones */
    uint32_t stack;     /* id of an interned Python stack; 0 absent */
    uint32_t memory;    /* PASTA_MEMORY_* */
} pasta_tensor_memory;

typedef struct pasta_allocator_state {
    uint64_t allocated; /* bytes handed out, with the tensor_alloc or _free that follows */
    uint64_t reserved;  /* bytes held from the device */
    uint64_t unused;
} pasta_allocator_state;

/* What an id stands for from now on: a tensor of this shape at this place.  One tensor may have several
 * ids, of several threads; an id may be given to another tensor later. */
typedef struct pasta_tensor {
    uint64_t storage; /* address of the storage's first byte */
    uint64_t bytes;   /* of the storage */
    uint64_t offset;  /* of the tensor in the storage, bytes */
    uint32_t tensor;  /* id, from 1; absent where `role` is all that is told */
    uint32_t role;    /* PASTA_ROLE_*, for which the framework's objects use the storage; 0 absent */
    uint32_t shape;   /* string: comma-separated */
    uint32_t strides; /* string: comma-separated, elements */
    uint32_t dtype;   /* string */
    uint32_t name;    /* string: how the program calls it, say a parameter's name; 0 absent */
    uint64_t unused[5];
} pasta_tensor;

typedef struct pasta_python_frame {
    uint32_t stack; /* id of the stack this frame belongs to */
    uint32_t depth; /* 0 is the innermost */
    uint32_t file;  /* string */
    uint32_t function; /* string */
    uint32_t line;
    uint32_t first_line; /* of the function */
} pasta_python_frame;

typedef struct pasta_python_sample {
    uint32_t stack; /* id of the stack, of the thread that ran the last operator */
    uint32_t unused[5];
} pasta_python_sample;

typedef struct pasta_pc_sample {
    uint64_t pc;       /* offset in the function, or in the module where that is absent; bytes */
    uint64_t function; /* vendor's function handle; absent: all ones */
    uint16_t reason;   /* the vendor's stall reason; absent: all ones */
    uint16_t unused0;
    uint32_t samples;
    uint32_t not_issued;
    uint32_t unused;
    uint64_t ordinal; /* of the launch; absent: all ones */
    uint64_t module;  /* vendor's module handle; absent: all ones */
    uint64_t unused2[5];
} pasta_pc_sample;

typedef struct pasta_counter {
    uint64_t ordinal; /* of the launch */
    double value;
    uint32_t name;     /* string: as the vendor calls it */
    uint32_t instance; /* string: its place in the device, as dimension=position, …; 0: there is one only */
} pasta_counter;

typedef struct pasta_probe_data {
    uint64_t offset; /* of the buffer in the probe area */
    uint64_t bytes;
    uint32_t map;
    uint32_t unused;
} pasta_probe_data;

typedef struct pasta_dropped {
    uint64_t count; /* events lost just before this record */
    uint64_t unused[2];
} pasta_dropped;

typedef struct pasta_pad {
    uint64_t unused[3];
} pasta_pad;

/* ---- The ring: one shared-memory file per process ------------------------------------------
 *
 *   page 0          pasta_ring: identity, positions, drop counters, state
 *   strings_offset  hash table (uint64_t[PASTA_STRING_SLOTS]), then the arena of interned strings
 *   data_offset     physical segments of segment_bytes each, allocated one by one
 *
 * Slots are numbered for ever by a 64-bit position; logical segment L = position / segment_slots.
 * segment_map[L % PASTA_MAX_SEGMENTS] holds (L + 1) << 16 | (physical segment + 1) once a producer
 * installed memory for L. A record is published when its header.commit equals (uint32_t)(L + 1).
 */
enum {
    PASTA_MAX_SEGMENTS = 4096,
    PASTA_STRING_SLOTS = 65536,
    PASTA_KINDS = 64,
};

enum {
    PASTA_STATE_open = 1,     /* the process lives and publishes */
    PASTA_STATE_exiting = 2,  /* its exit handlers run; late events may follow */
};

/* Why the ring grows no further, beside ring.max. */
enum {
    PASTA_LIMIT_none = 0,    /* nothing but ring.max */
    PASTA_LIMIT_memory = 1,  /* the file system, or the system, had no memory */
    PASTA_LIMIT_sandbox = 2, /* the process restricted itself, so that it may not ask for memory */
};

enum {
    PASTA_CONSUMER_none = 0,      /* nobody consumes yet; the process has not used an accelerator */
    PASTA_CONSUMER_embedded = 1,  /* a thread of this process */
    PASTA_CONSUMER_collector = 2, /* wanted, or running: a collector process */
};

typedef struct pasta_ring {
    uint64_t magic;          /* "PASTARN2" */
    uint32_t schema;         /* PASTA_SCHEMA */
    uint32_t pid;
    uint32_t sequence;       /* 0, 1, …: how many rings this pid had before (exec) */
    uint32_t parent;
    uint64_t start_time;     /* CLOCK_MONOTONIC, ns */
    uint64_t start_realtime; /* CLOCK_REALTIME at the same instant, ns */
    uint64_t file_bytes;
    uint64_t strings_offset;
    uint64_t arena_offset;
    uint64_t arena_bytes;    /* cap */
    uint64_t data_offset;
    uint32_t segment_bytes;
    uint32_t segment_slots;
    uint32_t max_segments;   /* cap: ring.max / segment_bytes */
    uint32_t reason;         /* string: why a collector is wanted; 0 absent */
    uint64_t registration;   /* index of this program's entry in the session's table of processes */
    uint8_t line0[64];
    /* written by producers */
    uint64_t tail;           /* next position to hand out */
    uint64_t arena_used;
    uint64_t arena_committed;
    uint32_t segments;       /* physical segments taken so far */
    uint32_t backed;         /* physical segments that have memory: touching them cannot raise SIGBUS */
    uint32_t state;          /* PASTA_STATE_* */
    uint32_t used;           /* 1 once an accelerator or framework was used: the run gets a directory */
    uint32_t consumer;       /* PASTA_CONSUMER_* */
    uint32_t limited;        /* PASTA_LIMIT_* */
    uint64_t launches;
    uint64_t pending_drops;
    uint8_t line1[64];
    /* written by the consumer */
    uint64_t released;       /* first position still held in the ring */
    uint64_t processed;      /* first position not yet given to the tools */
    uint64_t free_head;      /* tagged stack of free physical segments: tag << 32 | (segment + 1) */
    uint64_t heartbeat;      /* CLOCK_MONOTONIC of the consumer's last look, ns */
    uint32_t finish;         /* 1: asks the consumer to drain and end */
    uint32_t finished;       /* 1: the consumer drained and saved its state */
    uint32_t critical;       /* 1: the embedded consumer imports or compiles, which an exit must not cut short */
    uint32_t ends;           /* 1: the reader of a block is about to be told where that ends */
    uint64_t reader;         /* number of a block << 48 | 1 + first position that its reader needs; 0: none */
    uint32_t ended;          /* how the process ended, as its launcher saw it: pasta/runtime/session.py; 0: unknown */
    int32_t ended_status;    /* exit status or signal; -1: unknown */
    uint8_t line2[64];
    uint64_t dropped[PASTA_KINDS];          /* per kind */
    uint64_t segment_map[PASTA_MAX_SEGMENTS];
    uint32_t free_next[PASTA_MAX_SEGMENTS]; /* links of the free stack */
} pasta_ring;

#ifndef PASTA_CFFI
#ifdef __cplusplus
#define _Static_assert static_assert
#endif
#define PASTA_MAGIC UINT64_C(0x324e524154534150) /* "PASTARN2" */
#define PASTA_ASSERT_PAYLOAD(number, name, payload, keep, text)                             \
    _Static_assert((sizeof(pasta_header) + sizeof(pasta_##payload)) % PASTA_SLOT == 0,      \
                   "record of " #name " must fill whole slots");
PASTA_EVENTS(PASTA_ASSERT_PAYLOAD)
_Static_assert(sizeof(pasta_header) == 40, "header");
#undef PASTA_ASSERT_PAYLOAD
#endif
#undef PASTA_ENUMERATOR

#endif
