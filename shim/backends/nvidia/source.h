/* Between the files of the NVIDIA backend.  Lowest first: library, memory, object_table · handles · records · the
 * probes (probes.h) · resources, api_calls · callbacks · sanitizer, and CUPTI's (cupti_source.h) · injection · backend. */
#ifndef PASTA_NVIDIA_SOURCE_H
#define PASTA_NVIDIA_SOURCE_H

#include "../../core/internal.h"
#include "sanitizer_abi.h"

/* The driver loads the library that this variable names, inside cuInit. */
#define PASTA_NV_VARIABLE "CUDA_INJECTION64_PATH"
#define PASTA_NV_SOURCE "nvidia_sanitizer"

/* ---- library.c: the loaded Sanitizer library ---- */
#define PASTA_NV_POINTER(name, symbol, arguments) int32_t(*name) arguments;
typedef struct pasta_nv_library {
    PASTA_NV_FUNCTIONS(PASTA_NV_POINTER)
    PASTA_NV_PROBE_FUNCTIONS(PASTA_NV_POINTER) /* NULL in a run without probes */
    void *subscriber;
    bool layout_13_1; /* the structs named so are the ones in use */
} pasta_nv_library;
#undef PASTA_NV_POINTER
extern pasta_nv_library pasta_nv;
#define PASTA_NV_LIBRARY "libsanitizer-public.so"
#define PASTA_NV_INSTALL "pip install 'nvidia-cuda-sanitizer-api>=13'"
/* Loads the library; both report what is missing. */
bool pasta_nv_load(void);
bool pasta_nv_load_for_probes(void);

/* ---- callbacks.c ---- */
void pasta_nv_on_callback(void *user, int32_t domain, uint32_t id, const void *data);
/* Callbacks are recorded from now on, in this process but not in its forks. */
void pasta_nv_record(bool on);
bool pasta_nv_delivered(void); /* some callback was delivered */

/* ---- sanitizer.c ---- */
void pasta_nv_start_sanitizer(void); /* a failure is reported, and nothing is recorded */

/* ---- handles.c: lock-free look-ups for callbacks ---- */
enum { PASTA_NV_CONTEXTS = 256 }; /* at once */

typedef struct pasta_nv_place {
    uint16_t context; /* number of the context; absent: all ones */
    int16_t device;
    uint16_t slot; /* below PASTA_NV_CONTEXTS; the context's own while it lives */
} pasta_nv_place;

/* Number and device of a context; a new one is published with `device` (absent: -1). */
pasta_nv_place pasta_nv_place_of(uint64_t context, int16_t device);
/* The same of a context that may be gone: then both are absent. */
pasta_nv_place pasta_nv_known_place(uint64_t context);
/* Device of the context that this thread is creating; absent: -1. */
void pasta_nv_set_creating(int16_t device);
int16_t pasta_nv_creating(void);
/* Number and device of a context that a callback of this thread names. */
pasta_nv_place pasta_nv_place_here(uint64_t context);
/* Number of the device's context; absent where it has several: callbacks do not name an allocation's. */
uint16_t pasta_nv_only_context_of(int16_t device);
bool pasta_nv_several_devices(void); /* have contexts */
void pasta_nv_context_destroyed(uint64_t context);
void pasta_nv_read_device_name(void);

/* What is known of a function; absent: all ones. */
typedef struct pasta_nv_function {
    uint32_t name;
    uint16_t registers;
    uint32_t shared_static, local; /* bytes per block, per thread */
    uint64_t entry_pc;
} pasta_nv_function;
#define PASTA_NV_UNKNOWN {0, PASTA_ABSENT_U16, PASTA_ABSENT_U32, PASTA_ABSENT_U32, PASTA_ABSENT_U64}

typedef pasta_nv_function pasta_nv_look_up(const pasta_nv_launch *launch);
bool pasta_nv_known_function(uint64_t handle, pasta_nv_function *found);
/* Looked up once per function, not once per launch. */
pasta_nv_function pasta_nv_function_of(const pasta_nv_launch *launch, pasta_nv_look_up *look_up);
void pasta_nv_module_unloaded(uint64_t module);

/* ---- records.c: records of submitted work, of both sources.  They return the record's time, or 0 if not published. ---- */

typedef struct pasta_nv_work {
    pasta_nv_place at;
    uint64_t ordinal, correlation; /* of a launch; of any work, 0: absent */
    uint64_t stream, node;         /* node of a graph; absent: all ones */
    uint64_t time;                 /* of the call, if the record arrives later; 0: now */
    uint32_t thread;               /* 0: this one */
    uint32_t shared;               /* bytes of dynamic shared memory per block; absent: all ones */
    uint8_t flags;
} pasta_nv_work;

/* `flags` (or NULL) decides whether the launch is probed, and gives further flags; called with its record. */
uint64_t pasta_nv_record_launch(const pasta_nv_launch *launch, const pasta_nv_function *function,
                                const pasta_nv_work *work, pasta_flags (*flags)(const pasta_kernel_launch *launch));
void pasta_nv_record_return(const pasta_nv_work *work);
uint64_t pasta_nv_record_copy(const pasta_nv_memcpy *copy, const pasta_nv_work *work);
uint64_t pasta_nv_record_set(const pasta_nv_memset *set, const pasta_nv_work *work);
uint64_t pasta_nv_record_graph(bool begin, uint64_t graph, uint64_t launch_id, bool upload, const pasta_nv_work *work);
void pasta_nv_record_wait(uint64_t handle, uint32_t what, uint64_t context, uint64_t stream, uint64_t duration);
void pasta_nv_record_event(pasta_event_kind kind, uint64_t event, uint64_t context, uint64_t stream);
void pasta_nv_record_stream(bool created, pasta_nv_place at, uint64_t stream, uint64_t id);
/* Of a module; `image` may be NULL. */
void pasta_nv_record_module(bool loaded, pasta_nv_place at, uint64_t module, const void *image, uint64_t bytes);

/* ---- resources.c, api_calls.c: callbacks of these domains ---- */
void pasta_nv_on_resource(uint32_t id, const void *data);
void pasta_nv_on_external(uint32_t id, const pasta_nv_external *x);
void pasta_nv_on_alloc(const pasta_nv_memory *m, uint32_t memory, uint8_t flags);
/* A free carries no flags: memory is known from its allocation, else from the callback. */
void pasta_nv_on_free(const pasta_nv_memory *m, uint32_t memory, uint8_t flags);
void pasta_nv_on_range(bool reserved, const pasta_nv_range *range);
void pasta_nv_on_array(bool created, const pasta_nv_array *array);
void pasta_nv_on_attach(uint32_t id, const pasta_nv_attach *a);
void pasta_nv_on_driver_call(uint32_t id, const pasta_nv_api *call);
void pasta_nv_on_runtime_call(uint32_t id, const pasta_nv_api *call);

/* ---- memory.c: live allocations ---- */
typedef struct pasta_nv_allocation {
    uint64_t address, bytes;
    uint32_t memory;
    int16_t device; /* that holds it */
    uint8_t flags;  /* of its records: PASTA_FLAG_INTERNAL or 0 */
    bool peer;      /* so far reported only by contexts of other devices */
    uint32_t number; /* of the object, from 1, never reused; correlation id of its records */
} pasta_nv_allocation;

/* Called with each report of a context; true where it is to be recorded. */
bool pasta_nv_allocated(pasta_nv_place at, pasta_nv_allocation *announced); /* fills in its number */
bool pasta_nv_freed(pasta_nv_place at, pasta_nv_allocation *announced); /* fills in the known fields */
/* Records the end of allocations that no other context sees. */
void pasta_nv_free_all_of(pasta_nv_place destroyed);
/* Device whose memory holds the address; absent for unknown, managed and host memory. */
int16_t pasta_nv_owner_of(uint64_t address);
/* The live allocation that holds the address; the first one that begins in the range. */
bool pasta_nv_allocation_at(uint64_t address, pasta_nv_allocation *found);
bool pasta_nv_allocation_in(uint64_t address, uint64_t bytes, pasta_nv_allocation *found);
/* Counts up with every allocation and free. */
uint64_t pasta_nv_objects_version(void);
/* A framework's allocator handed out part of an allocation. */
void pasta_nv_tensor(uint64_t address, uint64_t bytes);
typedef struct pasta_nv_piece {
    uint64_t number, address, bytes, allocation; /* number of the allocation that it is a part of */
} pasta_nv_piece;
/* New pieces of allocations since the last call; the caller frees them. */
size_t pasta_nv_new_pieces(pasta_nv_piece **pieces);
/* Live allocations that a kernel can access, by address, in pieces where tensors began or ended; the
 * caller frees them.  False if out of memory. */
bool pasta_nv_objects(pasta_nv_allocation **objects, size_t *count, uint64_t *version);

/* ---- probes.c: called in callbacks, except `set_up`; no-ops in a run without probes ---- */
/* Reads the launcher's plan.  False, with a line for the user, if probes cannot work. */
bool pasta_nv_probes_set_up(const char *api);
bool pasta_nv_probes_own_thread(void); /* this is the thread that reads results: its callbacks are not the program's */
void pasta_nv_probes_context(uint64_t context, pasta_nv_place at);
void pasta_nv_probes_context_destroyed(uint64_t context);
void pasta_nv_probes_module(uint64_t context, uint64_t module, bool loaded);
bool pasta_nv_probes_on(void);
/* A call of the driver's that launches a function, or a graph: patches are put in and taken out here, since the driver
 * holds locks once it has begun. */
typedef struct pasta_nv_calling {
    uint64_t function, graph; /* handles; 0: none */
    uint32_t grid[3], block[3];
} pasta_nv_calling;
void pasta_nv_probes_calling(uint64_t context, const pasta_nv_calling *call);
void pasta_nv_probes_called(void);
/* No launch has been due for a while: calls that launch kernels, and their returns, have no callbacks (rest.c). */
extern uint32_t pasta_nv_resting;
static inline bool pasta_nv_rests(void) { return __atomic_load_n(&pasta_nv_resting, __ATOMIC_SEQ_CST); }
void pasta_nv_rest_empty(bool profiling); /* for benchmarks: if not, the subscription is as with nvidia.empty */
int32_t pasta_nv_hear_all_calls(void); /* enables callbacks of all calls that launch, or make graphs; a vendor's result */
void pasta_nv_probes_capture(bool begins); /* of work into a graph; or it ends */
/* A call that makes an executable graph, or (`made` false) changes one, begins or ends. */
void pasta_nv_probes_graph(uint64_t context, bool begins, bool made);
/* Whether a launch that is selected can be probed: its module has patches.  `launch` follows. */
bool pasta_nv_probes_ready(const pasta_nv_launch *launch);
/* Every launch, probed or not. `name`: of its kernel. */
void pasta_nv_probes_launch(const pasta_nv_launch *launch, uint32_t name, uint64_t ordinal, bool graph, bool selected,
                            pasta_probe_decision decision);
void pasta_nv_probes_launched(uint64_t launch, bool graph); /* launch return; for a graph: of all its nodes */
void pasta_nv_probes_stream_destroyed(uint64_t context, uint64_t stream); /* vendor's unique handle */
void pasta_nv_probes_synchronized(uint64_t context);
void pasta_nv_probes_copies(uint64_t context); /* a copy begins that the program waits for */
void pasta_nv_probes_finish(void); /* the process exits: waits, bounded, and collects the remaining results */

/* ---- object_table.c: the table of live objects on a device ---- */

typedef struct pasta_nv_storage {
    uint8_t bin_shift;     /* log2 of the wanted bytes of a bin */
    uint8_t plane_shift;
    uint32_t bins, planes; /* room: bins, words of a plane; 0: not wanted */
} pasta_nv_storage;

/* Image of the table, with addresses relative to its own; NULL if out of memory. */
void *pasta_nv_table_image(const pasta_nv_allocation *objects, size_t count, size_t *bytes);
void pasta_nv_table_place(void *image, uint64_t address); /* where it will be on the device */
void pasta_nv_table_storage(pasta_nv_storage storage);

typedef struct pasta_nv_binned {
    uint32_t number, first, count, shift; /* object; its bins, in bins; log2 of their bytes */
} pasta_nv_binned;

uint64_t pasta_nv_table_bins_used(void);
uint64_t pasta_nv_table_bins_room(void);
uint64_t pasta_nv_table_planes_used(void); /* words of a plane */
uint32_t pasta_nv_table_planes_room(void);
typedef struct pasta_nv_left_over {
    uint32_t number, bins, bin_count, plane, plane_count; /* bins, and words of every plane */
} pasta_nv_left_over;

/* Whether more than half of the bins or planes is taken. */
bool pasta_nv_table_is_scarce(void);
/* Storage of objects that are not among these; the caller frees the list. */
size_t pasta_nv_table_left_over(const pasta_nv_allocation *live, size_t count, pasta_nv_left_over **objects);
/* Its storage is unused, and cleared on every device. */
void pasta_nv_table_give_back(uint32_t number);
/* The object with bins that follows `object` (all zero: the first). False: none. */
bool pasta_nv_table_next_binned(pasta_nv_binned *object);

#endif
