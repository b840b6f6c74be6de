/* What a tool sees of the reference accelerator.
 *
 * At the first initialisation refacc loads the library named by REFACC_INJECTION_PATH and calls
 * its ra_tools_initialize with this table, so a tool links nothing of refacc.  Callbacks come on
 * the calling thread, completions and access hooks on worker threads; several at once.  No
 * refacc function but those of the table may be called in one.
 */
#ifndef REFACC_TOOLS_H
#define REFACC_TOOLS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RA_TOOLS_VERSION 1

typedef enum ra_domain {
    RA_DOMAIN_RESOURCE = 0,
    RA_DOMAIN_LAUNCH = 1,
    RA_DOMAIN_MEMCPY = 2,
    RA_DOMAIN_MEMSET = 3,
    RA_DOMAIN_SYNCHRONIZE = 4,
    RA_DOMAIN_EVENT = 5,
    RA_DOMAIN_GRAPH = 6,
    RA_DOMAIN_UVM = 7,
    RA_DOMAIN_PROFILER = 8,
    RA_DOMAIN_COUNT = 9,
} ra_domain;

/* X(NAME, number, domain, struct of the data): every callback once. */
#define RA_CALLBACKS(X)                                                                            \
    X(CONTEXT_CREATED, 1, RESOURCE, ra_context_data)                                               \
    X(CONTEXT_DESTROYED, 2, RESOURCE, ra_context_data) /* its handle is still valid */             \
    X(STREAM_CREATED, 3, RESOURCE, ra_stream_data)                                                 \
    X(STREAM_DESTROYED, 4, RESOURCE, ra_stream_data)                                               \
    X(MODULE_LOADED, 5, RESOURCE, ra_module_data)                                                  \
    X(MODULE_UNLOADED, 6, RESOURCE, ra_module_data)                                                \
    X(MEMORY_ALLOCATED, 7, RESOURCE, ra_memory_data)                                               \
    X(MEMORY_FREED, 8, RESOURCE, ra_memory_data) /* the call; the address is not yet given out again */ \
    X(LAUNCH_BEGIN, 9, LAUNCH, ra_launch_data)   /* before it is queued; hook, its kinds, serial, user are writable */ \
    X(LAUNCH_END, 10, LAUNCH, ra_launch_data)    /* queued; it may be complete already */          \
    X(LAUNCH_COMPLETE, 11, LAUNCH, ra_launch_data)                                                 \
    X(MEMCPY, 12, MEMCPY, ra_memcpy_data)        /* before it is queued; user is writable */       \
    X(MEMSET, 13, MEMSET, ra_memset_data)                                                          \
    X(SYNCHRONIZED, 14, SYNCHRONIZE, ra_sync_data) /* after the wait */                            \
    X(EVENT_CREATED, 15, EVENT, ra_event_data)                                                     \
    X(EVENT_DESTROYED, 16, EVENT, ra_event_data)                                                   \
    X(EVENT_RECORDED, 17, EVENT, ra_event_data)                                                    \
    X(EVENT_WAITED, 18, EVENT, ra_event_data)                                                      \
    X(GRAPH_LAUNCH_BEGIN, 19, GRAPH, ra_graph_data)                                                \
    X(GRAPH_LAUNCH_END, 20, GRAPH, ra_graph_data)                                                  \
    X(GRAPH_NODE_LAUNCH, 21, GRAPH, ra_graph_data) /* the node's own LAUNCH, MEMCPY, MEMSET follow */ \
    X(UVM_ATTACH, 22, UVM, ra_uvm_data)                                                            \
    X(UVM_PREFETCH, 23, UVM, ra_uvm_data)                                                          \
    X(UVM_ADVISE, 24, UVM, ra_uvm_data)                                                            \
    X(PROFILER_START, 25, PROFILER, ra_profiler_data)                                              \
    X(PROFILER_STOP, 26, PROFILER, ra_profiler_data)                                               \
    X(MEMCPY_COMPLETE, 27, MEMCPY, ra_memcpy_data) /* it ran: not after an error of a kernel */    \
    X(MEMSET_COMPLETE, 28, MEMSET, ra_memset_data)                                                 \
    X(UVM_FAULT, 29, UVM, ra_uvm_activity_data)    /* a page fault on managed memory */            \
    X(UVM_MIGRATED, 30, UVM, ra_uvm_activity_data) /* pages moved or were duplicated */

#define RA_ENUMERATOR(name, number, domain, type) RA_CALLBACK_##name = number,
typedef enum ra_callback_id { RA_CALLBACKS(RA_ENUMERATOR) RA_CALLBACK_COUNT = 31 } ra_callback_id;
#undef RA_ENUMERATOR

typedef enum ra_space {
    RA_SPACE_GLOBAL = 1, /* addresses are global */
    RA_SPACE_SHARED = 2, /* addresses are offsets in the block's shared memory, or the cluster's */
    RA_SPACE_LOCAL = 3,  /* addresses are offsets in the lane's local memory */
    RA_SPACE_NONE = 4,   /* nothing is accessed */
} ra_space;

/* What an instruction does, X(NAME, number, space, text). */
/* clang-format off */
#define RA_KINDS(X)                                                                                      \
    X(GLOBAL,         1, GLOBAL, "load, store or atomic on global memory")                               \
    X(SHARED,         2, SHARED, "load, store or atomic on shared memory")                               \
    X(LOCAL,          3, LOCAL,  "load or store on local memory")                                        \
    X(REMOTE_SHARED,  4, SHARED, "load or store on the shared memory of a block of the cluster")         \
    X(ASYNC_COPY,     5, GLOBAL, "lanes copy from global to shared memory; addresses are the global ones") \
    X(BULK_LOAD,      6, GLOBAL, "one lane copies bytes from global to shared memory")                   \
    X(BULK_STORE,     7, GLOBAL, "one lane copies bytes from shared to global memory")                   \
    X(BULK_REDUCTION, 8, GLOBAL, "one lane adds shared to global memory")                                \
    X(TENSOR_LOAD,    9, GLOBAL, "one lane copies a box of a tensor to shared memory")                   \
    X(TENSOR_STORE,  10, GLOBAL, "one lane copies shared memory to a box of a tensor")                   \
    X(MATRIX,        11, SHARED, "8 x 8 matrices of 16 bits: each lane of the mask gives a row of 16 bytes") \
    X(BULK_SHARED,   12, SHARED, "one lane copies bytes to the shared memory of a block of the cluster") \
    X(ASYNC_STORE,   13, SHARED, "lanes store to the shared memory of a block of the cluster")           \
    X(BARRIER,       14, NONE,   "block barrier")                                                        \
    X(BLOCK_ENTER,   15, NONE,   "a warp begins; pc is the function's entry")                            \
    X(BLOCK_EXIT,    16, NONE,   "lanes of a warp end")                                                  \
    X(CALL,          17, NONE,   "call of a device function; the address is its target")
/* clang-format on */

#define RA_ENUMERATOR(name, number, space, text) RA_KIND_##name = number,
typedef enum ra_kind { RA_KINDS(RA_ENUMERATOR) RA_KIND_COUNT = 18 } ra_kind;
#undef RA_ENUMERATOR

enum {
    RA_ACCESS_READ = 1,
    RA_ACCESS_WRITE = 2,
    RA_ACCESS_ATOMIC = 4, /* with READ and WRITE */
    RA_ACCESS_PREFETCH = 8,
};

/* An address in the shared memory of a cluster: the block's rank in it, and the offset there. */
#define RA_CLUSTER_SHIFT 24

/* One memory instruction of one warp. */
typedef struct ra_access {
    uint32_t size;  /* of this struct; every data struct begins so and only grows at its end */
    uint16_t space; /* ra_space, of the kind */
    uint16_t flags; /* RA_ACCESS_* */
    uint32_t bytes; /* per lane; of a transfer per row */
    uint32_t mask;  /* active lanes; one for bulk and tensor transfers */
    uint64_t pc;    /* the function's entry pc + 16 * the instruction's number in it */
    uint64_t launch;
    uint32_t block[3];
    uint32_t warp;           /* in its block */
    uint32_t multiprocessor; /* a function of the block index, so equal in every run */
    int32_t device;
    uint64_t function;
    const void *value;    /* of a store, one of `bytes` per lane; with hook_values also what a load or atomic on
                           * global memory, or an asynchronous copy, finds; NULL for others */
    uint64_t address[32]; /* of inactive lanes: 0 */
    uint32_t kind;        /* ra_kind */
    uint32_t rows;        /* of a tensor transfer: rows inside the tensor, from the address; else 1 */
    int64_t stride;       /* bytes between them (between the first two, where a box has more dimensions) */
    uint64_t transfer;    /* bytes of all lanes or rows */
    uint64_t block_index; /* linear, in the grid */
    uint64_t time;        /* of the device clock, ns, in a launch with `serial`; else 0 */
} ra_access;

typedef void (*ra_access_hook)(void *userdata, const ra_access *access);

/* stream: 0 is the context's default stream. */
typedef struct ra_context_data {
    uint32_t size;
    int32_t device;
    uint64_t context;
    const char *device_name;
    uint64_t memory; /* bytes; of the device, as the limits that follow */
    uint32_t multiprocessors;
    uint32_t warp;       /* lanes */
    uint32_t max_shared; /* bytes per block */
} ra_context_data;

typedef struct ra_stream_data {
    uint32_t size;
    int32_t device;
    uint64_t context;
    uint64_t stream;
    int32_t priority;
} ra_stream_data;

typedef struct ra_module_data {
    uint32_t size;
    int32_t device;
    uint64_t context;
    uint64_t module;
    const void *image;
    uint64_t bytes;
} ra_module_data;

typedef struct ra_memory_data {
    uint32_t size;
    int32_t device;
    uint64_t context;
    uint64_t stream; /* for pool memory */
    uint64_t address;
    uint64_t bytes;
    uint32_t kind; /* ra_memory_kind of refacc.h */
    uint32_t asynchronous;
} ra_memory_data;

typedef struct ra_launch_data {
    uint32_t size;
    int32_t device;
    uint64_t context;
    uint64_t stream;
    uint64_t launch; /* number in this process, from 1 */
    uint64_t function;
    uint64_t module;
    const char *symbol;
    uint64_t entry_pc;
    uint32_t grid[3];
    uint32_t block[3];
    uint32_t shared_static;
    uint32_t shared_dynamic;
    uint32_t local;
    uint32_t registers;
    uint64_t graph; /* executable graph, 0: none */
    uint64_t node;  /* 0: not launched by a graph */
    uint64_t user[2]; /* kept from begin to end and complete */
    /* LAUNCH_BEGIN: what the set_access_hook in force gives; change it for this launch */
    ra_access_hook hook;
    void *hook_userdata;
    uint32_t serial; /* 1: execute this launch's blocks in order on one thread */
    /* LAUNCH_COMPLETE */
    int32_t error;
    uint64_t start; /* CLOCK_MONOTONIC, ns */
    uint64_t end;
    uint32_t hook_kinds; /* LAUNCH_BEGIN: bits 1 << ra_kind that the hook is called for; all at first */
    uint32_t cluster;    /* blocks along x that share their shared memory; 1: none */
    uint32_t hook_values; /* LAUNCH_BEGIN: 1: the hook gets the values that loads and atomics find, too */
} ra_launch_data;

typedef struct ra_memcpy_data {
    uint32_t size;
    int32_t device;
    uint64_t context;
    uint64_t stream;
    uint64_t source;
    uint64_t destination;
    uint64_t source_pitch;
    uint64_t destination_pitch;
    uint64_t width;  /* bytes */
    uint64_t height; /* rows */
    int32_t source_device; /* -1: host */
    int32_t destination_device;
    uint32_t asynchronous;
    uint32_t reserved;
    uint64_t node;
    uint64_t user; /* kept from MEMCPY to MEMCPY_COMPLETE */
    /* MEMCPY_COMPLETE */
    uint64_t start; /* CLOCK_MONOTONIC, ns */
    uint64_t end;
} ra_memcpy_data;

typedef struct ra_memset_data {
    uint32_t size;
    int32_t device;
    uint64_t context;
    uint64_t stream;
    uint64_t address;
    uint64_t pitch;
    uint64_t width; /* elements */
    uint64_t height;
    uint32_t element; /* bytes */
    uint32_t value;
    uint32_t asynchronous;
    uint32_t reserved;
    uint64_t node;
    uint64_t user; /* kept from MEMSET to MEMSET_COMPLETE */
    /* MEMSET_COMPLETE */
    uint64_t start; /* CLOCK_MONOTONIC, ns */
    uint64_t end;
} ra_memset_data;

typedef enum ra_sync_kind { RA_SYNC_STREAM = 1, RA_SYNC_CONTEXT = 2, RA_SYNC_DEVICE = 3, RA_SYNC_EVENT = 4 } ra_sync_kind;

typedef struct ra_sync_data {
    uint32_t size;
    int32_t device;
    uint64_t context;
    uint64_t handle; /* stream, context or event; 0 for a device or the default stream */
    uint32_t kind;   /* ra_sync_kind */
    int32_t error;   /* what the call returns */
    uint64_t start;  /* CLOCK_MONOTONIC, ns */
    uint64_t end;
} ra_sync_data;

typedef struct ra_event_data {
    uint32_t size;
    int32_t device;
    uint64_t context;
    uint64_t event;
    uint64_t stream; /* RECORDED, WAITED */
} ra_event_data;

typedef struct ra_graph_data {
    uint32_t size;
    int32_t device;
    uint64_t context;
    uint64_t stream;
    uint64_t graph;  /* executable graph */
    uint64_t launch; /* number of the graph launch in this process, from 1 */
    uint64_t node;   /* GRAPH_NODE_LAUNCH */
    uint64_t *user;  /* one word, kept from begin to end */
} ra_graph_data;

typedef struct ra_uvm_data {
    uint32_t size;
    int32_t device;
    uint64_t context;
    uint64_t stream; /* ATTACH, PREFETCH */
    uint64_t address;
    uint64_t bytes;
    uint32_t value;      /* the flags or the ra_advice */
    int32_t destination; /* PREFETCH, ADVISE: device or -1 for the host */
} ra_uvm_data;

typedef enum ra_fault_access { RA_FAULT_READ = 1, RA_FAULT_WRITE = 2 } ra_fault_access;
typedef enum ra_migration_reason {
    RA_MIGRATED_FAULT = 1,    /* a page fault, with its dense surroundings */
    RA_MIGRATED_PREFETCH = 2, /* ra_prefetch */
    RA_MIGRATED_EVICTION = 3, /* the device's memory was full */
} ra_migration_reason;

/* After it happened; times are those of the cost model. */
typedef struct ra_uvm_activity_data {
    uint32_t size;
    int32_t device; /* that works, or whose context the host's thread has */
    uint64_t context;
    uint64_t stream;
    uint64_t launch; /* that touched the pages; 0: none */
    uint64_t address;
    uint64_t bytes;
    int32_t source;      /* MIGRATED: device or -1 for the host; FAULT: the processor that faulted, twice */
    int32_t destination;
    uint32_t reason; /* ra_fault_access or ra_migration_reason */
    ra_callback_id id;
    uint64_t start; /* CLOCK_MONOTONIC, ns */
    uint64_t end;
} ra_uvm_activity_data;

typedef struct ra_profiler_data {
    uint32_t size;
    int32_t device;
} ra_profiler_data;

/* data: the struct that RA_CALLBACKS names; writable only where it says so. */
typedef void (*ra_tools_callback)(void *userdata, ra_domain domain, ra_callback_id id, void *data);
typedef struct ra_tools_subscriber *ra_tools_handle;

typedef struct ra_tools_api {
    uint32_t size;
    uint32_t version; /* RA_TOOLS_VERSION */
    const char *library_version;
    const char *(*error_string)(int error);
    /* There is one subscriber at a time; a second gets RA_BUSY. All domains start disabled. */
    int (*subscribe)(ra_tools_handle *handle, ra_tools_callback callback, void *userdata);
    /* Returns when no callback or hook of the subscriber runs on another thread. */
    int (*unsubscribe)(ra_tools_handle handle);
    int (*enable_domain)(ra_tools_handle handle, ra_domain domain, int on);
    /* For launches submitted from now on; NULL: none. */
    int (*set_access_hook)(ra_tools_handle handle, ra_access_hook hook, void *userdata);
} ra_tools_api;

/* The same functions for a program that links refacc. */
__attribute__((visibility("default"))) const ra_tools_api *ra_tools(void);

/* A tool exports this. A return value other than 0 means that it does not want to run. */
typedef int (*ra_tools_initialize_function)(const ra_tools_api *api);

#ifdef __cplusplus
}
#endif
#endif
