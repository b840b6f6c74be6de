/* Between the files of libpasta_amd.so.  Lowest first: state, map · agents · calls · memory, dispatch,
 * engine_copies · hip_memory, hip_copies, ranges, counters, samples · hip · rocprofiler. */
#ifndef PASTA_AMD_SOURCE_H
#define PASTA_AMD_SOURCE_H

#include "../../include/pasta_source.h"
#include "rocprofiler_abi.h"

#define PASTA_AMD_SOURCE "amd_rocprofiler"
#define PASTA_LOAD(place) __atomic_load_n(&(place), __ATOMIC_ACQUIRE)
#define PASTA_STORE(place, value) __atomic_store_n(&(place), value, __ATOMIC_RELEASE)

/* ---- state.c: the SDK's functions, and what is recorded ---- */

#define PASTA_AMD_POINTER(name, symbol, arguments) int32_t(*name) arguments;
typedef struct pasta_amd_library {
    PASTA_AMD_FUNCTIONS(PASTA_AMD_POINTER)
    void *handle;     /* of the SDK that called rocprofiler_configure: there may be several in the process */
    uint32_t version; /* 10000 * major + 100 * minor + patch */
} pasta_amd_library;
#undef PASTA_AMD_POINTER
extern pasta_amd_library pasta_amd;

void *pasta_amd_resolve(const char *symbol); /* in that library, or NULL */
/* For lists of functions: looks each up for its pointer in `to`; `missing` gets the symbol of a missing one. */
#define PASTA_AMD_RESOLVE(to, name, symbol)           \
    *(void **)&(to).name = pasta_amd_resolve(symbol); \
    if (!(to).name) missing = symbol;
const char *pasta_amd_status(int32_t status);
bool pasta_amd_new_layout(void); /* records and clients of 1.x; else of 0.5 */
enum { PASTA_AMD_0_6 = 600, PASTA_AMD_1_0 = 10000 }; /* as pasta_amd.version */
/* Callbacks are recorded from now on, in this process but not in its forks. */
void pasta_amd_set_recording(bool on);
bool pasta_amd_records(void);
uint64_t pasta_amd_time(uint64_t device); /* a time of the SDK on CLOCK_MONOTONIC, ns */
void pasta_amd_set_clock(int64_t ahead); /* of the SDK's clock relative to CLOCK_MONOTONIC, ns */

/* A callback's record, whichever version. */
typedef struct pasta_amd_record {
    uint64_t correlation, ancestor;
    uint32_t phase;
    const void *payload;
    uint64_t *user; /* kept by the SDK from ENTER to EXIT, also where that comes on another thread */
} pasta_amd_record;

/* A subscribed operation.  Rows of tables may begin with it. */
typedef struct pasta_amd_operation {
    const char *name; /* a trailing * matches all that begin so, and that no later row names */
    void (*handle)(const pasta_amd_record *record, const struct pasta_amd_operation *operation);
} pasta_amd_operation;

typedef struct pasta_amd_table {
    const void *rows;
    size_t count, stride;
} pasta_amd_table;
#define PASTA_AMD_TABLE(rows) {rows, sizeof(rows) / sizeof *(rows), sizeof *(rows)}

/* A rare condition: its first case is logged, all are counted, and the counts are logged at the end. */
typedef struct pasta_amd_odd {
    const char *what;
    uint64_t count;
    struct pasta_amd_odd *next; /* that occurred */
} pasta_amd_odd;
void pasta_amd_count(pasta_amd_odd *odd, uint64_t id);
void pasta_amd_log_counts(void);

/* ---- map.c: a map of integers.  Readers take no lock, unless a writer is active for long. ---- */

typedef struct pasta_amd_map pasta_amd_map;
struct pasta_amd_cells;
struct pasta_amd_map {
    struct pasta_amd_cells *cells;
    uint32_t version; /* odd: being changed */
    uint32_t locked;
    size_t count;
};
bool pasta_amd_get(pasta_amd_map *map, uint64_t key, uint64_t *value);
bool pasta_amd_put(pasta_amd_map *map, uint64_t key, uint64_t value); /* false if out of memory */
bool pasta_amd_take(pasta_amd_map *map, uint64_t key, uint64_t *value); /* and removes it */
void pasta_amd_drop(pasta_amd_map *map, uint64_t value); /* all keys with this value */

/* ---- agents.c ---- */

enum { PASTA_AMD_DEVICES = 128 }; /* maximum */

typedef struct pasta_amd_place {
    int16_t device;   /* ordinal among the GPUs that the program sees; absent: -1 */
    uint16_t context; /* its number; absent: all ones */
} pasta_amd_place;

int32_t pasta_amd_read_agents(void); /* the SDK's status */
/* Both publish the device's context at its first use. */
pasta_amd_place pasta_amd_place_of(uint64_t agent);
pasta_amd_place pasta_amd_place_on(int16_t device);
/* Id and name of a GPU by its ordinal; false where there are no more. */
bool pasta_amd_gpu(int16_t device, uint64_t *agent, const char **name);

/* ---- dispatch.c: code objects, kernels and their dispatches ---- */

extern const pasta_amd_table pasta_amd_dispatches, pasta_amd_code_objects;
/* Keeps the ordinals of the last 65536 dispatches, for counters and samples, which come later. */
void pasta_amd_keep_ordinals(void);
bool pasta_amd_ordinal_of(uint64_t dispatch, uint64_t *ordinal);
/* The kernel at this offset of a code object, and the offset in it. */
bool pasta_amd_kernel_at(uint64_t code_object, uint64_t offset, uint64_t *kernel, uint64_t *within);

/* ---- memory.c: live memory ---- */

typedef struct pasta_amd_live {
    uint64_t address, bytes;
    uint32_t memory; /* PASTA_MEMORY_* */
    uint32_t element; /* of an array: bytes; else 0 */
    int16_t device;
    uint8_t flags; /* of both of its records */
} pasta_amd_live;

extern const pasta_amd_table pasta_amd_allocations, pasta_amd_scratches;
void pasta_amd_allocated(const pasta_amd_live *memory, uint64_t stream, uint8_t flags, uint32_t vendor_flags);
/* Records the end of the memory at the address; false: unknown. */
bool pasta_amd_freed(uint64_t address, uint64_t stream, uint8_t flags, pasta_amd_live *was);
void pasta_amd_freed_within(uint64_t address, uint64_t bytes); /* all memory that begins there */
void pasta_amd_freed_on(int16_t device);
/* The memory that contains the address; an array only at its own. */
bool pasta_amd_find(uint64_t address, pasta_amd_live *found);
bool pasta_amd_is_host(const pasta_amd_live *memory);

/* ---- calls.c: open calls of the HIP runtime ---- */

typedef enum pasta_amd_category {
    PASTA_AMD_OTHER,
    PASTA_AMD_LAUNCHES,
    PASTA_AMD_COPIES,
    PASTA_AMD_SETS,
    PASTA_AMD_ALLOCATES, /* or frees */
    PASTA_AMD_GRAPH,
} pasta_amd_category;

/* The HIP call that a record belongs to: the open one of this thread, else by its correlation id. */
typedef struct pasta_amd_within {
    bool known; /* there is one */
    pasta_amd_category category;
    uint64_t stream; /* absent: all ones */
    uint64_t record; /* correlation id of the record of a copy or set; 0: it was not recorded */
    uint8_t flags;   /* likewise */
    bool is_open;    /* on this thread */
} pasta_amd_within;
pasta_amd_within pasta_amd_call_of(const pasta_amd_record *record);
/* Of the open call of this thread: the device of its work, and a further part of it, for the one before. */
pasta_amd_place pasta_amd_call_place(void);
uint64_t pasta_amd_call_takes_part(uint64_t ticket);
/* Of a call of this thread that launches on several devices: the stream on one of them; absent: all ones. */
uint64_t pasta_amd_stream_on(int16_t device);
/* The device that the open call allocates on, for calls without that argument. */
void pasta_amd_call_allocates_on(pasta_amd_place at);

/* ---- engine_copies.c: copies of engines ---- */

extern const pasta_amd_table pasta_amd_copies;
/* The copy or set whose last part this is (0: it has none) ended, and its record is published, or is not. */
void pasta_amd_parts_recorded(uint64_t last, bool recorded);

/* ---- hip.c: calls of the HIP runtime ---- */

extern const pasta_amd_table pasta_amd_hip_calls;

/* ---- ranges.c ---- */

extern const pasta_amd_table pasta_amd_markers, pasta_amd_controls;

/* ---- counters.c, samples.c: where configured, in contexts of their own.  Failures are reported in a line,
 * and everything else continues. ---- */

void pasta_amd_count_launches(void);
void pasta_amd_sample_pcs(void);
void pasta_amd_samples_finish(void);

#endif
