/* Arguments of HIP calls as rocprofiler-sdk passes them: a struct in the order of the function's
 * declaration, up to the last one that is read.  Handles and addresses are integers. */
#ifndef PASTA_AMD_HIP_CALLS_H
#define PASTA_AMD_HIP_CALLS_H

#include <stddef.h>
#include <stdint.h>

enum {
    HIP_LEGACY_STREAM = 1, /* handles of the default streams */
    HIP_STREAM_PER_THREAD = 2,
    HIP_HOST_TO_HOST = 0, /* kinds of copies */
    HIP_HOST_TO_DEVICE = 1,
    HIP_DEVICE_TO_HOST = 2,
    HIP_DEVICE_TO_DEVICE = 3,
    HIP_DEFAULT = 4, /* by address */
    HIP_DEVICE_TO_DEVICE_NO_CU = 1024,
    HIP_MEMORY_HOST = 1, /* types of memory */
    HIP_MEMORY_ARRAY = 10,
    HIP_LOCATION_DEVICE = 1,
};

typedef struct { uint64_t destination, source, bytes; int32_t kind; uint64_t stream; } hip_copy;
typedef struct { uint64_t destination, source, bytes, stream; } hip_copy_sided;
typedef struct {
    uint64_t destination, destination_pitch, source, source_pitch, width, height;
    int32_t kind;
    uint64_t stream;
} hip_copy_2d;
typedef struct {
    uint64_t first, second, bytes, offset;
    int32_t kind;
    uint64_t stream;
} hip_copy_symbol; /* destination, source */
typedef struct {
    uint64_t destination, pitch, source, x, y, width, height;
    int32_t kind;
    uint64_t stream;
} hip_from_array_2d;
typedef struct {
    uint64_t destination, x, y, source, pitch, width, height;
    int32_t kind;
    uint64_t stream;
} hip_to_array_2d;
typedef struct { uint64_t destination, source, x, y, bytes; int32_t kind; } hip_from_array;
typedef struct { uint64_t destination, x, y, source, bytes; int32_t kind; } hip_to_array;
typedef struct {
    uint64_t destination, x, y, source, source_x, source_y, width, height;
    int32_t kind;
} hip_array_to_array_2d;
typedef struct { uint64_t destination, source, offset, bytes, stream; } hip_from_array_1d;
typedef struct { uint64_t destination, offset, source, bytes, stream; } hip_to_array_1d;
typedef struct { uint64_t destination, offset, source, source_offset, bytes; } hip_array_to_array_1d;
typedef struct {
    uint64_t destination;
    int32_t device;
    uint64_t source;
    int32_t source_device;
    uint64_t bytes, stream;
} hip_copy_peer;
typedef struct { const void *described; uint64_t stream; } hip_copy_described;

typedef struct { uint64_t address; uint32_t value; uint64_t count, stream; } hip_set;
typedef struct { uint64_t address, pitch; uint32_t value; uint64_t width, height, stream; } hip_set_2d;
typedef struct { uint64_t address, pitch, x, y; uint32_t value; uint64_t width, height, depth, stream; } hip_set_3d;

typedef struct { uint64_t *address; uint64_t bytes; uint32_t flags; } hip_alloc;
typedef struct { uint64_t *address; uint64_t bytes, stream; } hip_alloc_async;
typedef struct { uint64_t *address; uint64_t bytes, pool, stream; } hip_alloc_from_pool;
typedef struct { uint64_t *address, *pitch; uint64_t width, height; } hip_alloc_pitch;
typedef struct { uint64_t *pitched; uint64_t width, height, depth; } hip_alloc_3d; /* address, pitch, … */
typedef struct { uint64_t *array; const int32_t *channels; uint64_t width, height; uint32_t flags; } hip_array;
typedef struct {
    uint64_t *array;
    const int32_t *channels;
    uint64_t width, height, depth;
    uint32_t flags;
} hip_array_3d;
typedef struct { uint64_t *array; const void *described; } hip_array_described;
typedef struct { uint64_t *address; uint64_t bytes, alignment, fixed, flags; } hip_reserve;
typedef struct { uint64_t address, bytes; uint32_t flags; } hip_host_register;
typedef struct { uint64_t address, bytes; } hip_span;
typedef struct {
    uint64_t *address;
    uint64_t memory;
    const uint64_t *described;
} hip_mapped_buffer; /* offset, size */
typedef struct { uint64_t address, stream; } hip_free;

typedef struct { uint64_t stream; } hip_on_stream;
typedef struct { uint64_t *stream; uint32_t flags; int32_t priority; } hip_stream_create;
typedef struct { uint64_t *event; } hip_event_create;
typedef struct { uint64_t event, stream; } hip_event;
typedef struct { uint64_t stream, event; } hip_wait;
typedef struct { int32_t device; } hip_device;

typedef struct { uint64_t function; uint32_t grid[3], block[3]; uint64_t arguments, shared, stream; } hip_launch;
typedef struct {
    uint64_t function;
    uint32_t grid[3], block[3];
    uint64_t arguments;
    uint32_t shared;
    uint64_t stream;
} hip_launch_cooperative;
typedef struct { uint64_t function; uint32_t grid[3], block[3], shared; uint64_t stream; } hip_launch_module;
typedef struct { uint64_t function; uint32_t grid[3], block[3]; uint64_t shared, stream; } hip_launch_extended;

typedef struct { uint32_t grid[3], block[3]; uint64_t shared, stream; } hip_configure;
typedef struct { uint64_t function; uint32_t grid[3], block[3]; uint64_t arguments, shared, stream; } hip_device_launch;
typedef struct { const hip_device_launch *launches; int32_t count; uint32_t flags; } hip_launch_on_devices;

typedef struct { uint64_t executable, stream; } hip_graph;
typedef struct { uint64_t *executable; uint64_t graph; } hip_instantiate;

typedef struct { uint64_t address, bytes; int32_t device; uint64_t stream; } hip_prefetch;
typedef struct { uint64_t address, bytes; int32_t where, device; uint32_t flags; uint64_t stream; } hip_prefetch_v2;
typedef struct { uint64_t address, bytes; int32_t advice, device; } hip_advise;
typedef struct { uint64_t address, bytes; int32_t advice, where, device; } hip_advise_v2;
typedef struct { uint64_t stream, address, bytes; uint32_t flags; } hip_attach;

/* ---- structs that arguments point to ---- */

/* hipLaunchConfig_t and HIP_LAUNCH_CONFIG: `shared` is 64 bits wide in the one, 32 in the other. */
typedef struct { uint32_t grid[3], block[3]; uint64_t shared, stream; } hip_launch_description;
typedef struct { uint64_t array, x, y, z, address, pitch, width, height; } hip_side;
typedef struct { hip_side source, destination; uint64_t width, height, depth; int32_t kind; } hip_parameters_3d;
typedef struct { uint64_t x, y; int32_t type; uint64_t host, device, array, pitch; } hip_driver_side;
typedef struct { hip_driver_side source, destination; uint64_t width, height; } hip_parameters_2d;
typedef struct {
    uint64_t x, y, z, level;
    int32_t type;
    uint64_t host, device, array, pitch, height;
} hip_driver_side_3d;
typedef struct { hip_driver_side_3d source, destination; uint64_t width, height, depth; } hip_parameters_driver;
typedef struct { uint64_t width, height; int32_t format, channels; } hip_array_description;
typedef struct { uint64_t width, height, depth; int32_t format, channels; uint32_t flags; } hip_array_description_3d;

#define HIP_AT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field)
HIP_AT(hip_copy, stream, 32);
HIP_AT(hip_copy_2d, stream, 56);
HIP_AT(hip_from_array_2d, stream, 64);
HIP_AT(hip_copy_peer, stream, 40);
HIP_AT(hip_set_3d, stream, 64);
HIP_AT(hip_array_to_array_2d, kind, 64);
HIP_AT(hip_launch, stream, 48);
HIP_AT(hip_launch_cooperative, stream, 48);
HIP_AT(hip_launch_module, stream, 40);
HIP_AT(hip_launch_extended, stream, 40);
HIP_AT(hip_configure, stream, 32);
HIP_AT(hip_launch_description, stream, 32);
HIP_AT(hip_device_launch, stream, 48);
HIP_AT(hip_launch_on_devices, count, 8);
HIP_AT(hip_prefetch_v2, stream, 32);
HIP_AT(hip_parameters_3d, width, 128);
HIP_AT(hip_parameters_3d, kind, 152);
HIP_AT(hip_parameters_2d, width, 112);
HIP_AT(hip_parameters_driver, width, 160);
_Static_assert(sizeof(hip_device_launch) == 56, "hipLaunchParams");
#undef HIP_AT

#endif
