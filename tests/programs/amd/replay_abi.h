/* Records of rocprofiler-sdk, declared independently for the tests from tables of sizes and
 * offsets measured in the libraries 0.5.0 (ROCm 6.3) and 1.0.0 (ROCm 7.0).  This file shares no
 * declaration with the source: both must agree with the tables, and tests play these records to
 * the source.
 *
 * A payload of 1.0 has the fields of 0.5, followed by new ones: one struct with two sizes.
 */
#ifndef REPLAY_ABI_H
#define REPLAY_ABI_H

#include <stddef.h>
#include <stdint.h>

enum { PHASE_NONE, PHASE_ENTER, PHASE_EXIT };

typedef struct {
    uint64_t context, thread, internal, external;
    int32_t kind, operation, phase;
    void *payload;
} record_0_5;

typedef struct {
    uint64_t context, thread, internal, external, ancestor;
    int32_t kind, operation, phase;
    void *payload;
} record_1_0;

typedef struct {
    const char *name;
    uint32_t handle;
} client_0_5;

typedef struct {
    uint64_t size;
    const char *name;
    uint32_t handle;
} client_1_0;

typedef struct {
    uint64_t size;
    int (*initialize)(void (*finalize)(void), void *user);
    void (*finalize)(void *user);
    void *user;
} tool_result;

typedef struct {
    uint32_t x, y, z;
} dim3;

typedef struct {
    uint64_t size, agent, queue, kernel, dispatch;
    uint32_t scratch, lds;
    dim3 workgroup, grid;
    uint8_t reserved[56];
} dispatch_info;

typedef struct {
    uint64_t size, start, end;
    dispatch_info info;
} dispatch_data;

typedef struct {
    uint64_t size, start, end, destination_agent, source_agent, bytes;
    uint64_t destination, source; /* since 1.0 */
} copy_data;

typedef struct {
    uint64_t size, start, end, agent, address, bytes;
} allocation_data; /* since 1.0 */

typedef struct {
    uint64_t size, object, agent, hsa_agent;
    const char *uri;
    uint64_t base, bytes;
    int64_t delta;
    uint32_t storage; /* 1: file, 2: memory */
    union {
        int32_t file;
        struct {
            uint64_t memory, memory_bytes;
        };
    };
} object_data;

typedef struct {
    uint64_t size, kernel, object;
    const char *name;
    uint64_t kernel_object;
    uint32_t arguments, alignment, lds, scratch, sgpr, vgpr, accum_vgpr;
    int64_t entry; /* since 1.0, as is what follows */
    uint64_t address;
} symbol_data;

typedef struct {
    uint64_t size, function, kernel, object, host, modules;
    const char *name;
    uint32_t threads;
    dim3 ids[4];
    uint64_t workgroup;
} host_symbol_data;

typedef struct {
    uint64_t size, agent, queue;
    uint32_t flags, event;
    uint64_t dispatch, bytes, slots;
} scratch_data;

typedef struct {
    uint64_t size, id, value;
} stream_data; /* since 1.0 */

typedef struct {
    uint64_t size, version, instance;
} runtime_data; /* since 1.0 */

enum { HIP_ARGUMENTS = 88, HIP_RESULT = 24, MARKER_ARGUMENTS = 16 };

typedef struct {
    uint64_t size;
    uint8_t arguments[HIP_ARGUMENTS], result[HIP_RESULT];
} hip_data;

typedef struct {
    uint64_t size;
    uint8_t arguments[MARKER_ARGUMENTS];
    int64_t result;
} marker_data;

typedef struct {
    uint64_t size, id;
    uint32_t type; /* 1: CPU, 2: GPU */
    uint32_t counts[11];
    uint32_t wave_front_size;
    uint32_t numbers[8];
    uint32_t gfx_target;
    uint16_t vendor, device;
    uint32_t more[17];
    uint64_t local_memory, hive, gpu;
    dim3 workgroup_limit, grid_limit;
    const void *banks, *caches, *links;
    const char *name, *vendor_name, *product_name, *model_name;
    uint32_t node;
    int32_t logical_node, logical_of_type;
    uint32_t visible; /* since 1.0, as is what follows: bit 0 HSA, 1 HIP, … */
    uint8_t uuid[16];
} agent_data;

/* ---- counters and PC samples: as the headers of 1.0.0 have them ---- */

typedef struct {
    uint64_t size, internal, external, start, end;
    dispatch_info info;
} counting_data;

typedef struct {
    uint64_t instance;
    double value;
    uint64_t dispatch, user, agent;
} counter_value;

typedef struct {
    uint64_t id;
    const char *name, *description, *block, *expression;
    uint8_t flags;
} counter_info;

typedef struct {
    const char *name;
    size_t positions;
    uint64_t id;
} counter_dimension;

typedef struct {
    uint64_t size;
    uint32_t method, unit; /* 1: stochastic, 2: host trap; 1: instructions, 2: cycles, 3: time */
    size_t least, most;
    uint64_t flags; /* 1: powers of two only */
} sampling_offer;

typedef struct {
    uint32_t category, kind;
    void *payload;
} buffered_record;

typedef struct {
    uint64_t size, place, object, offset, lanes, time, dispatch, internal, external;
    dim3 workgroup;
    uint32_t wave;
} trap_sample;

typedef struct {
    uint64_t size;
    uint8_t flags, wave, issued;
    uint64_t place, object, offset, lanes;
    dim3 workgroup;
    uint32_t waves;
    uint64_t time, dispatch, internal, external;
    uint32_t snapshot, outstanding;
} stochastic_sample;

/* ---- the tables ---- */
#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)
#define AT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field)
SIZE(record_0_5, 56);
AT(record_0_5, thread, 8); AT(record_0_5, internal, 16); AT(record_0_5, kind, 32);
AT(record_0_5, operation, 36); AT(record_0_5, phase, 40); AT(record_0_5, payload, 48);
SIZE(record_1_0, 64);
AT(record_1_0, thread, 8); AT(record_1_0, internal, 16); AT(record_1_0, ancestor, 32); AT(record_1_0, kind, 40);
AT(record_1_0, operation, 44); AT(record_1_0, phase, 48); AT(record_1_0, payload, 56);
SIZE(client_0_5, 16);
SIZE(client_1_0, 24);
SIZE(tool_result, 32);
SIZE(dispatch_info, 128);
AT(dispatch_info, agent, 8); AT(dispatch_info, queue, 16); AT(dispatch_info, kernel, 24);
AT(dispatch_info, dispatch, 32); AT(dispatch_info, scratch, 40); AT(dispatch_info, lds, 44);
AT(dispatch_info, workgroup, 48); AT(dispatch_info, grid, 60);
SIZE(dispatch_data, 152);
AT(dispatch_data, start, 8); AT(dispatch_data, end, 16); AT(dispatch_data, info, 24);
SIZE(copy_data, 64);
AT(copy_data, destination, 48);
SIZE(allocation_data, 48);
SIZE(object_data, 88);
SIZE(symbol_data, 88);
AT(symbol_data, entry, 72);
SIZE(scratch_data, 56);
SIZE(stream_data, 24);
SIZE(runtime_data, 24);
SIZE(hip_data, 120);
AT(hip_data, result, 96);
SIZE(marker_data, 32);
SIZE(agent_data, 312);
AT(agent_data, name, 248); AT(agent_data, node, 280); AT(agent_data, visible, 292);
SIZE(buffered_record, 16);
AT(counting_data, info, 40); /* from here on: the headers */
SIZE(counter_value, 40);
SIZE(counter_info, 48);
SIZE(counter_dimension, 24);
SIZE(sampling_offer, 40);
SIZE(trap_sample, 88);
SIZE(stochastic_sample, 104);
AT(stochastic_sample, place, 16);
AT(stochastic_sample, snapshot, 96);
enum { COPY_0_5 = 48, SYMBOL_0_5 = 72, AGENT_0_5 = 296, AGENT_0_6 = 304 };
_Static_assert(COPY_0_5 == offsetof(copy_data, destination), "0.5 has no addresses");
_Static_assert(SYMBOL_0_5 == offsetof(symbol_data, entry), "0.5 has no entry");
#undef SIZE
#undef AT

#endif
