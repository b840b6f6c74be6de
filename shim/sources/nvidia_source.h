/* Between the files of the NVIDIA source only. */
#ifndef PASTA_NVIDIA_SOURCE_H
#define PASTA_NVIDIA_SOURCE_H

#include "../core/core.h"
#include "nvidia_abi.h"

/* ---- nvidia_sanitizer.c: the loaded library ---- */
#define PASTA_NV_POINTER(name, symbol, arguments) int32_t(*name) arguments;
typedef struct pasta_nv_library {
    PASTA_NV_FUNCTIONS(PASTA_NV_POINTER)
    PASTA_NV_PROBE_FUNCTIONS(PASTA_NV_POINTER) /* NULL in a run without probes */
    void *subscriber;
    bool layout_13_1; /* the structs named so are the ones in use */
} pasta_nv_library;
#undef PASTA_NV_POINTER
extern pasta_nv_library pasta_nv;
/* For the lists of functions: from `library`; the symbol of one that it lacks goes to `missing`. */
#define PASTA_NV_RESOLVE(name, symbol, arguments)      \
    *(void **)&pasta_nv.name = dlsym(library, symbol); \
    if (!pasta_nv.name) missing = symbol;

/* ---- nvidia_callbacks.c ---- */
void pasta_nv_on_callback(void *user, int32_t domain, uint32_t id, const void *data);
/* Callbacks are recorded from now on, in this process but not in its forks. */
void pasta_nv_record(bool on);
bool pasta_nv_delivered(void); /* true once any callback came */

/* ---- nvidia_tables.c: what callbacks look up.  Reading takes no lock. ---- */
enum { PASTA_NV_CONTEXTS = 256 }; /* at a time */

typedef struct pasta_nv_place {
    uint16_t context; /* number of the context; absent: all ones */
    int16_t device;
    uint16_t slot; /* below PASTA_NV_CONTEXTS; the context's own while it lives */
} pasta_nv_place;

/* Number and device of a context; a new one is announced with `device` (absent: -1). */
pasta_nv_place pasta_nv_place_of(uint64_t context, int16_t device);
/* Number of the device's context; absent where it has several: which of them owns an allocation
 * is not announced. */
uint16_t pasta_nv_only_context_of(int16_t device);
bool pasta_nv_several_devices(void); /* have contexts now */
void pasta_nv_context_destroyed(uint64_t context);
void pasta_nv_read_device_name(void);

typedef struct pasta_nv_function {
    uint32_t name;
    uint64_t entry_pc;
} pasta_nv_function;

pasta_nv_function pasta_nv_function_of(const pasta_nv_launch *launch);
void pasta_nv_module_unloaded(uint64_t module);

/* ---- nvidia_memory.c: live allocations ---- */
typedef struct pasta_nv_allocation {
    uint64_t address, bytes;
    uint32_t memory;
    int16_t device; /* that holds it */
    uint8_t flags;  /* of its records: PASTA_FLAG_INTERNAL or 0 */
    bool peer;      /* announced only by contexts of other devices so far */
    uint32_t number; /* of the object, from 1, never given twice; correlation id of its records */
} pasta_nv_allocation;

/* Both are told what a context announces, and return whether it is to be recorded. */
bool pasta_nv_allocated(pasta_nv_place at, pasta_nv_allocation *announced); /* fills in its number */
bool pasta_nv_freed(pasta_nv_place at, pasta_nv_allocation *announced); /* fills in what is known */
/* Records the end of what no other context sees. */
void pasta_nv_free_all_of(pasta_nv_place destroyed);
/* Device whose memory holds the address; absent for unknown, managed and host memory. */
int16_t pasta_nv_owner_of(uint64_t address);
/* Counts up with every allocation and free. */
uint64_t pasta_nv_objects_version(void);
/* A framework's allocator hands out part of an allocation. */
void pasta_nv_tensor(uint64_t address, uint64_t bytes);
typedef struct pasta_nv_piece {
    uint64_t number, address, bytes;
} pasta_nv_piece;
/* Pieces of allocations that came to be since the last call; the caller frees them. */
size_t pasta_nv_new_pieces(pasta_nv_piece **pieces);
/* Live allocations by address that a kernel can access, where tensors began or ended in pieces; the
 * caller frees them. False without memory. */
bool pasta_nv_objects(pasta_nv_allocation **objects, size_t *count, uint64_t *version);

/* ---- nvidia_probes.c: patches in the program's kernels.  All but `set_up` are called in callbacks
 * and do nothing in a run without probes. ---- */
/* Reads the plan that the launcher made. False, with a line said, if probes cannot work. */
bool pasta_nv_probes_set_up(const char *api);
bool pasta_nv_probes_own_thread(void); /* this thread works for the probes: its callbacks are not the program's */
void pasta_nv_probes_context(uint64_t context, pasta_nv_place at);
void pasta_nv_probes_context_ends(uint64_t context);
void pasta_nv_probes_module(uint64_t context, uint64_t module, bool loaded);
bool pasta_nv_probes_on(void);
/* Every launch, `probed` or not: it may be the first one behind the edge of a window. */
void pasta_nv_probes_launch(const pasta_nv_launch *launch, uint64_t ordinal, bool graph, bool probed);
void pasta_nv_probes_launched(uint64_t launch, bool graph); /* the call returned; for a graph: all of its nodes */
void pasta_nv_probes_stream_ends(uint64_t context, uint64_t stream); /* vendor's unique handle */
void pasta_nv_probes_synchronised(uint64_t context);
void pasta_nv_probes_copies(uint64_t context); /* a copy begins that the program waits for */
void pasta_nv_probes_finish(void); /* the process exits: waits, bounded, and collects what is left */

/* ---- nvidia_table.c: the table of live objects on a device ---- */

typedef struct pasta_nv_storage {
    uint8_t bin_shift;     /* log2 of the bytes of a bin wished for */
    uint8_t plane_shift;
    uint32_t bins, planes; /* room: bins, words of a plane; 0: not wanted */
} pasta_nv_storage;

/* Image of the table, its addresses counted from its own; NULL without memory. */
void *pasta_nv_table_image(const pasta_nv_allocation *objects, size_t count, size_t *bytes);
void pasta_nv_table_place(void *image, uint64_t address); /* where it will be on the device */
void pasta_nv_table_storage(pasta_nv_storage storage);

typedef struct pasta_nv_binned {
    uint32_t number, first, count, shift; /* object; its bins, in bins; log2 of their bytes */
} pasta_nv_binned;

uint64_t pasta_nv_table_bins_used(void);
uint64_t pasta_nv_table_bins_room(void);
typedef struct pasta_nv_left_over {
    uint32_t number, bins, bin_count, plane, plane_count; /* bins, and words of every plane */
} pasta_nv_left_over;

/* Whether more than half of the bins or planes is taken. */
bool pasta_nv_table_is_scarce(void);
/* What objects have that are not among these; the caller frees it. */
size_t pasta_nv_table_left_over(const pasta_nv_allocation *live, size_t count, pasta_nv_left_over **objects);
/* Nobody uses it any more, and it is cleared on every device. */
void pasta_nv_table_give_back(uint32_t number);
/* The object with bins that follows `object` (all zero: the first). False: none. */
bool pasta_nv_table_next_binned(pasta_nv_binned *object);

#endif
