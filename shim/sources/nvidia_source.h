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
typedef struct pasta_nv_place {
    uint16_t context; /* number of the context; absent: all ones */
    int16_t device;
} pasta_nv_place;

/* Number and device of a context; a new one is announced with `device` (absent: -1). */
pasta_nv_place pasta_nv_place_of(uint64_t context, int16_t device);
void pasta_nv_context_destroyed(uint64_t context);
void pasta_nv_read_device_name(void);

typedef struct pasta_nv_function {
    uint32_t name;
    uint64_t entry_pc;
} pasta_nv_function;

pasta_nv_function pasta_nv_function_of(const pasta_nv_launch *launch);
void pasta_nv_module_unloaded(uint64_t module);

#endif
