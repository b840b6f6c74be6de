/* Between the files of the AMD source only. */
#ifndef PASTA_AMD_SOURCE_H
#define PASTA_AMD_SOURCE_H

#include "../core/core.h"
#include "amd_abi.h"

#define PASTA_AMD_SOURCE "amd_rocprofiler"
#define PASTA_LOAD(place) __atomic_load_n(&(place), __ATOMIC_ACQUIRE)
#define PASTA_STORE(place, value) __atomic_store_n(&(place), value, __ATOMIC_RELEASE)

/* ---- amd_rocprofiler.c: the SDK, and what is subscribed ---- */

#define PASTA_AMD_POINTER(name, symbol, arguments) int32_t(*name) arguments;
typedef struct pasta_amd_library {
    PASTA_AMD_FUNCTIONS(PASTA_AMD_POINTER)
    void *handle;     /* of the library that configured us: there may be several in the process */
    uint32_t version; /* 10000 * major + 100 * minor + patch */
} pasta_amd_library;
#undef PASTA_AMD_POINTER
extern pasta_amd_library pasta_amd;

void *pasta_amd_resolve(const char *symbol); /* in that library, or NULL */
/* For lists of functions: into `to`, which has their pointers; the symbol of one that is not there goes to
 * `missing`. */
#define PASTA_AMD_RESOLVE(to, name, symbol)           \
    *(void **)&(to).name = pasta_amd_resolve(symbol); \
    if (!(to).name) missing = symbol;
const char *pasta_amd_status(int32_t status);
bool pasta_amd_new_layout(void); /* records and clients as in 1.x; else as in 0.5 */
enum { PASTA_AMD_0_6 = 600, PASTA_AMD_1_0 = 10000 }; /* as pasta_amd.version */
/* Callbacks are the program's, this process's, and not after finalisation; the first one opens the ring. */
bool pasta_amd_records(void);
uint64_t pasta_amd_time(uint64_t device); /* a time of the SDK on CLOCK_MONOTONIC, ns */

/* A callback's record, whichever version. */
typedef struct pasta_amd_record {
    uint64_t correlation, ancestor;
    uint32_t phase;
    const void *payload;
} pasta_amd_record;

/* An operation that is wanted. Tables of kinds may have rows that begin with it. */
typedef struct pasta_amd_operation {
    const char *name; /* with * at its end: all that begin so, and that no other row names */
    void (*handle)(const pasta_amd_record *record, const struct pasta_amd_operation *operation);
} pasta_amd_operation;

typedef struct pasta_amd_table {
    const void *rows;
    size_t count, stride;
} pasta_amd_table;
#define PASTA_AMD_TABLE(rows) {rows, sizeof(rows) / sizeof *(rows), sizeof *(rows)}

/* Something that happens now and then, not at every launch, and says much when it does: the first
 * is logged, all are counted, and the sum is logged at the end. */
typedef struct pasta_amd_odd {
    const char *what;
    uint64_t count;
    struct pasta_amd_odd *next; /* that happened */
} pasta_amd_odd;
void pasta_amd_count(pasta_amd_odd *odd, uint64_t id);

/* ---- amd_map.c: numbers by number. Readers take no lock, but while a writer is at it. ---- */

typedef struct pasta_amd_map pasta_amd_map;
struct pasta_amd_cells;
struct pasta_amd_map {
    struct pasta_amd_cells *cells;
    uint32_t version; /* odd: it is being changed */
    uint32_t locked;
    size_t count;
};
bool pasta_amd_get(pasta_amd_map *map, uint64_t key, uint64_t *value);
bool pasta_amd_put(pasta_amd_map *map, uint64_t key, uint64_t value); /* false without memory */
bool pasta_amd_take(pasta_amd_map *map, uint64_t key, uint64_t *value); /* and removes it */
void pasta_amd_drop(pasta_amd_map *map, uint64_t value); /* all that have this value */

/* ---- amd_agents.c ---- */

enum { PASTA_AMD_DEVICES = 128 }; /* that are told apart */

typedef struct pasta_amd_place {
    int16_t device;   /* ordinal among the GPUs that the program sees; absent: -1 */
    uint16_t context; /* its number; absent: all ones */
} pasta_amd_place;

int32_t pasta_amd_read_agents(void); /* the SDK's status */
/* Both announce the device's context at its first use. */
pasta_amd_place pasta_amd_place_of(uint64_t agent);
pasta_amd_place pasta_amd_place_on(int16_t device);
/* GPUs in order of their ordinals: id, or false where there are no more. */
bool pasta_amd_gpu(int16_t device, uint64_t *agent, const char **name);

/* ---- amd_dispatch.c: code objects, kernels and their dispatches ---- */

extern const pasta_amd_table pasta_amd_dispatches, pasta_amd_code_objects;
/* Has the ordinals of launches kept, of the last 65536 dispatches: what is counted and sampled comes late. */
void pasta_amd_keep_ordinals(void);
bool pasta_amd_ordinal_of(uint64_t dispatch, uint64_t *ordinal);
/* The kernel that has this offset of a code object, and the offset in it. */
bool pasta_amd_kernel_at(uint64_t code_object, uint64_t offset, uint64_t *kernel, uint64_t *within);

/* ---- amd_memory.c: live memory ---- */

typedef struct pasta_amd_live {
    uint64_t address, bytes;
    uint32_t memory; /* PASTA_MEMORY_* */
    uint32_t element; /* of an array: bytes; else 0 */
    int16_t device;
    uint8_t flags; /* of both of its records */
} pasta_amd_live;

extern const pasta_amd_table pasta_amd_allocations, pasta_amd_copies, pasta_amd_scratches;
void pasta_amd_allocated(const pasta_amd_live *memory, uint64_t stream, uint8_t flags, uint32_t vendor_flags);
/* Records the end of what begins at the address; false: nothing is known there. */
bool pasta_amd_freed(uint64_t address, uint64_t stream, uint8_t flags, pasta_amd_live *was);
void pasta_amd_freed_within(uint64_t address, uint64_t bytes); /* all that begin there */
void pasta_amd_freed_on(int16_t device);
/* What holds the address: exact for arrays. */
bool pasta_amd_find(uint64_t address, pasta_amd_live *found);
bool pasta_amd_is_host(const pasta_amd_live *memory);

/* ---- amd_hip.c: calls of the HIP runtime ---- */

extern const pasta_amd_table pasta_amd_hip_calls;

typedef enum pasta_amd_what {
    PASTA_AMD_OTHER,
    PASTA_AMD_LAUNCHES,
    PASTA_AMD_COPIES,
    PASTA_AMD_SETS,
    PASTA_AMD_ALLOCATES, /* or frees */
    PASTA_AMD_GRAPH,
} pasta_amd_what;

/* The HIP call that something happens in: on this thread, else by its correlation id. */
typedef struct pasta_amd_within {
    bool known; /* that it is in one */
    pasta_amd_what what;
    uint64_t stream; /* absent: all ones */
} pasta_amd_within;
pasta_amd_within pasta_amd_call_of(const pasta_amd_record *record);
/* Of a call of this thread that launches on several devices: the stream on one of them; absent: all ones. */
uint64_t pasta_amd_stream_on(int16_t device);
/* The device that the call allocates on, for calls that do not say; `agent` as the SDK tells. */
void pasta_amd_call_allocates_on(pasta_amd_place at);

/* ---- amd_ranges.c ---- */

extern const pasta_amd_table pasta_amd_markers, pasta_amd_controls;

/* ---- amd_counters.c, amd_samples.c: if they were asked for, in contexts of their own.  What fails is
 * said in a line, and all else goes on. ---- */

void pasta_amd_count_launches(void);
void pasta_amd_sample_pcs(void);
void pasta_amd_samples_finish(void);

#endif
