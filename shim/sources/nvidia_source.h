/* Between the files of the NVIDIA source only. */
#ifndef PASTA_NVIDIA_SOURCE_H
#define PASTA_NVIDIA_SOURCE_H

#include "../core/core.h"
#include "nvidia_abi.h"

/* ---- nvidia_sanitizer.c: the loaded library ---- */
#define PASTA_NV_POINTER(name, symbol, arguments) int32_t(*name) arguments;
typedef struct pasta_nv_library {
    PASTA_NV_FUNCTIONS(PASTA_NV_POINTER)
    void *subscriber;
    bool layout_13_1; /* the structs named so are the ones in use */
} pasta_nv_library;
#undef PASTA_NV_POINTER
extern pasta_nv_library pasta_nv;

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
} pasta_nv_allocation;

/* Both are told what a context announces, and return whether it is to be recorded. */
bool pasta_nv_allocated(pasta_nv_place at, const pasta_nv_allocation *announced);
bool pasta_nv_freed(pasta_nv_place at, pasta_nv_allocation *announced); /* fills in what is known */
/* Records the end of what no other context sees. */
void pasta_nv_free_all_of(pasta_nv_place destroyed);
/* Device whose memory holds the address; absent for unknown, managed and host memory. */
int16_t pasta_nv_owner_of(uint64_t address);

#endif
