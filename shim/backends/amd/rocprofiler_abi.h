/* rocprofiler-sdk's ABI, declared in words of PASTA's own: 0.5 (ROCm 6.3), 0.6 (ROCm 6.4) and 1.x (ROCm 7).
 *
 * Sizes and offsets are those of the libraries 0.5.0 and 1.0.0 (asserted below).  0.6 has the records and
 * clients of 0.5, and payloads of sizes between the two.  A payload says in its first word how long it is: PASTA_AMD_HAS asks that of a field.  Kinds and operations have no numbers
 * here, as those change: they are found by name.
 */
#ifndef PASTA_AMD_ABI_H
#define PASTA_AMD_ABI_H

#include <stddef.h>
#include <stdint.h>

/* X(member, symbol, arguments after which int32_t status is returned) */
/* clang-format off */
#define PASTA_AMD_FUNCTIONS(X)                                                                                  \
    X(create_context, "rocprofiler_create_context", (uint64_t *context))                                        \
    X(start_context, "rocprofiler_start_context", (uint64_t context))                                           \
    X(context_is_valid, "rocprofiler_context_is_valid", (uint64_t context, int *valid))                         \
    X(get_timestamp, "rocprofiler_get_timestamp", (uint64_t *ns))                                               \
    X(query_agents, "rocprofiler_query_available_agents",                                                       \
      (uint32_t version, pasta_amd_on_agents *each, size_t agent_bytes, void *user))                            \
    X(each_kind, "rocprofiler_iterate_callback_tracing_kinds", (pasta_amd_on_kind *each, void *user))           \
    X(each_operation, "rocprofiler_iterate_callback_tracing_kind_operations",                                   \
      (uint32_t kind, pasta_amd_on_operation *each, void *user))                                                \
    X(kind_name, "rocprofiler_query_callback_tracing_kind_name",                                                \
      (uint32_t kind, const char **name, uint64_t *length))                                                     \
    X(operation_name, "rocprofiler_query_callback_tracing_kind_operation_name",                                 \
      (uint32_t kind, uint32_t operation, const char **name, uint64_t *length))                                 \
    X(configure_callbacks, "rocprofiler_configure_callback_tracing_service",                                    \
      (uint64_t context, uint32_t kind, const int32_t *operations, size_t count, void (*callback)(void), void *user))
/* clang-format on */

typedef int32_t pasta_amd_on_agents(uint32_t version, const void **agents, size_t count, void *user);
typedef int pasta_amd_on_kind(uint32_t kind, void *user);
typedef int pasta_amd_on_operation(uint32_t kind, uint32_t operation, void *user);

enum {
    PASTA_AMD_AGENT_VERSION = 1,
    PASTA_AMD_AGENT_GPU = 2,
    PASTA_AMD_NONE = 0, /* phases */
    PASTA_AMD_ENTER = 1,
    PASTA_AMD_EXIT = 2,
    PASTA_AMD_STORED_FILE = 1, /* origin of a code object */
    PASTA_AMD_STORED_MEMORY = 2,
    PASTA_AMD_SCRATCH_ALTERNATE = 2, /* flag of scratch memory: the queue's second area */
};

/* ---- registration ---- */

typedef struct pasta_amd_client_0_5 {
    const char *name; /* the tool's, which it sets */
    uint32_t handle;
} pasta_amd_client_0_5;

typedef struct pasta_amd_client_1 {
    size_t bytes;
    const char *name;
    uint32_t handle;
} pasta_amd_client_1;

typedef struct pasta_amd_tool {
    size_t bytes;
    int (*initialize)(void (*finalize)(void), void *user);
    void (*finalize)(void *user);
    void *user;
} pasta_amd_tool;

/* First bytes of an agent; the same in all versions. */
typedef struct pasta_amd_agent {
    uint64_t bytes, id;
    uint32_t type;
    uint32_t unused[57];
    const char *name, *vendor, *product, *model;
    uint32_t node;
    int32_t logical_node, logical_node_of_type;
    uint32_t visibility; /* 0.5: padding */
} pasta_amd_agent;

/* ---- arguments of callbacks, by value ---- */

typedef struct pasta_amd_record_0_5 {
    uint64_t context, thread, correlation, external;
    uint32_t kind, operation, phase;
    const void *payload;
} pasta_amd_record_0_5;

typedef struct pasta_amd_record_1 {
    uint64_t context, thread, correlation, external, ancestor;
    uint32_t kind, operation, phase;
    const void *payload;
} pasta_amd_record_1;

/* Whether a payload has the field, by its stated size. */
#define PASTA_AMD_HAS(payload, field) \
    ((payload)->bytes >= offsetof(__typeof__(*(payload)), field) + sizeof (payload)->field)

typedef struct pasta_amd_dispatch_info {
    uint64_t bytes, agent, queue, kernel, dispatch;
    uint32_t private_bytes; /* per work-item */
    uint32_t group_bytes;   /* per work-group, static and dynamic */
    uint32_t workgroup[3];
    uint32_t grid[3]; /* work-items */
    uint8_t unused[56];
} pasta_amd_dispatch_info;

typedef struct pasta_amd_dispatch {
    uint64_t bytes, start, end;
    pasta_amd_dispatch_info info;
} pasta_amd_dispatch;

typedef struct pasta_amd_code_object {
    uint64_t bytes, id, agent, hsa_agent;
    const char *uri;
    uint64_t load_base, load_bytes;
    int64_t load_delta;
    uint32_t stored;       /* PASTA_AMD_STORED_* */
    uint64_t memory_base;  /* stored in a file: low half is its descriptor */
    uint64_t memory_bytes;
} pasta_amd_code_object;

typedef struct pasta_amd_kernel_symbol {
    uint64_t bytes, kernel, code_object;
    const char *name;
    uint64_t object;
    uint32_t argument_bytes, argument_alignment, group_bytes, private_bytes;
    uint32_t sgprs, vgprs, accumulation_vgprs;
    int64_t entry_offset; /* from here on: since 0.6 */
    uint64_t entry;
} pasta_amd_kernel_symbol;

typedef struct pasta_amd_memory_copy {
    uint64_t bytes, start, end, destination_agent, source_agent, copied;
    uint64_t destination, source; /* 1.x */
} pasta_amd_memory_copy;

typedef struct pasta_amd_allocation {
    uint64_t bytes, start, end, agent, address, allocated;
} pasta_amd_allocation;

typedef struct pasta_amd_scratch {
    uint64_t bytes, agent, queue;
    uint32_t flags, event;
    uint64_t dispatch, allocated, slots; /* the last two: end of an allocation */
} pasta_amd_scratch;

typedef struct pasta_amd_runtime {
    uint64_t bytes, version, instance;
} pasta_amd_runtime;

typedef struct pasta_amd_hip_call {
    uint64_t bytes;
    uint8_t arguments[88]; /* see hip_calls.h */
    union {
        int32_t status;
        uint64_t words[3];
    };
} pasta_amd_hip_call;

typedef struct pasta_amd_marker_call {
    uint64_t bytes;
    union {
        const char *text;
        uint64_t id;
    };
    uint64_t second;
    union {
        int32_t level;
        uint64_t range;
    };
} pasta_amd_marker_call;

/* ---- counters and PC sampling: as the headers have them, never seen at work ---- */

/* clang-format off */
#define PASTA_AMD_COUNTING(X)                                                                                   \
    X(each_counter, "rocprofiler_iterate_agent_supported_counters",                                             \
      (uint64_t agent, pasta_amd_on_counters *each, void *user))                                                \
    X(counter_info, "rocprofiler_query_counter_info", (uint64_t counter, uint32_t version, void *info))         \
    X(counter_of, "rocprofiler_query_record_counter_id", (uint64_t instance, uint64_t *counter))                \
    X(each_dimension, "rocprofiler_iterate_counter_dimensions",                                                 \
      (uint64_t counter, pasta_amd_on_dimensions *each, void *user))                                            \
    X(position, "rocprofiler_query_record_dimension_position",                                                  \
      (uint64_t instance, uint64_t dimension, size_t *position))                                                \
    X(create_config, "rocprofiler_create_counter_config",                                                       \
      (uint64_t agent, const uint64_t *counters, size_t count, uint64_t *config))                               \
    X(count_dispatches, "rocprofiler_configure_callback_dispatch_counting_service",                             \
      (uint64_t context, pasta_amd_on_counting *dispatch, void *first, pasta_amd_on_counted *done, void *second))
#define PASTA_AMD_SAMPLING(X)                                                                                   \
    X(create_buffer, "rocprofiler_create_buffer",                                                               \
      (uint64_t context, size_t bytes, size_t watermark, int32_t policy, pasta_amd_on_buffer *full, void *user, \
       uint64_t *buffer))                                                                                       \
    X(flush_buffer, "rocprofiler_flush_buffer", (uint64_t buffer))                                              \
    X(each_sampling, "rocprofiler_query_pc_sampling_agent_configurations",                                      \
      (uint64_t agent, pasta_amd_on_samplings *each, void *user))                                               \
    X(sample, "rocprofiler_configure_pc_sampling_service",                                                      \
      (uint64_t context, uint64_t agent, uint32_t method, uint32_t unit, uint64_t interval, uint64_t buffer,    \
       int32_t flags))
/* clang-format on */
enum {
    PASTA_AMD_COUNTER_INFO_VERSION = 1,
    PASTA_AMD_LOSSLESS = 2, /* policy of a buffer: it waits when it is full */
    PASTA_AMD_PC_SAMPLES = 2, /* category of records */
    PASTA_AMD_HOST_TRAP = 2,  /* their kinds */
    PASTA_AMD_HOST_TRAP_0_6 = 1,
    PASTA_AMD_STOCHASTIC = 3,
    PASTA_AMD_UNIT_INSTRUCTIONS = 1,
    PASTA_AMD_UNIT_CYCLES = 2,
    PASTA_AMD_UNIT_TIME = 3, /* microseconds */
};

typedef struct pasta_amd_counting {
    uint64_t bytes, correlation, external, start, end;
    pasta_amd_dispatch_info info;
} pasta_amd_counting;

typedef struct pasta_amd_count_value {
    uint64_t instance; /* of a counter: it and its place */
    double value;
    uint64_t dispatch, user, agent;
} pasta_amd_count_value;

typedef struct pasta_amd_counter_info {
    uint64_t id;
    const char *name, *description, *block, *expression;
    uint8_t flags;
} pasta_amd_counter_info;

typedef struct pasta_amd_dimension {
    const char *name;
    size_t positions;
    uint64_t id;
} pasta_amd_dimension;

typedef int32_t pasta_amd_on_counters(uint64_t agent, uint64_t *counters, size_t count, void *user);
typedef int32_t pasta_amd_on_dimensions(uint64_t counter, const pasta_amd_dimension *dimensions, size_t count,
                                        void *user);
typedef void pasta_amd_on_counting(pasta_amd_counting dispatch, uint64_t *config, uint64_t *user, void *own);
typedef void pasta_amd_on_counted(pasta_amd_counting dispatch, pasta_amd_count_value *values, size_t count,
                                  uint64_t user, void *own);

typedef struct pasta_amd_sampling {
    uint64_t bytes;
    uint32_t method, unit;
    uint64_t least, most; /* intervals */
    uint64_t flags;
} pasta_amd_sampling;

typedef struct pasta_amd_buffered {
    uint32_t category, kind;
    const void *payload;
} pasta_amd_buffered;

typedef struct pasta_amd_host_trap {
    uint64_t bytes, place, code_object, offset, lanes, time, dispatch;
    uint64_t correlation, external;
    uint32_t workgroup[3], wave;
} pasta_amd_host_trap;

typedef struct pasta_amd_stochastic {
    uint64_t bytes;
    uint8_t flags, wave, issued; /* lowest bit of the last one: an instruction was */
    uint64_t place, code_object, offset, lanes;
    uint32_t workgroup[3], waves;
    uint64_t time, dispatch, correlation, external;
    uint32_t snapshot; /* lowest four bits: why none was issued */
    uint32_t outstanding;
} pasta_amd_stochastic;

typedef int32_t pasta_amd_on_samplings(const pasta_amd_sampling *offered, size_t count, void *user);
typedef void pasta_amd_on_buffer(uint64_t context, uint64_t buffer, pasta_amd_buffered **records, size_t count,
                                 void *user, uint64_t dropped);

/* ---- as measured from librocprofiler-sdk 0.5.0 and 1.0.0 ---- */

#define PASTA_AMD_AT(type, field, offset) \
    _Static_assert(offsetof(pasta_amd_##type, field) == (offset), #type "." #field)
#define PASTA_AMD_IS(type, size) _Static_assert(sizeof(pasta_amd_##type) == (size), #type)

PASTA_AMD_IS(client_0_5, 16);
PASTA_AMD_IS(client_1, 24);
PASTA_AMD_IS(tool, 32);
PASTA_AMD_IS(agent, 296);
PASTA_AMD_AT(agent, name, 248);
PASTA_AMD_AT(agent, node, 280);
PASTA_AMD_IS(record_0_5, 56);
PASTA_AMD_AT(record_0_5, thread, 8);
PASTA_AMD_AT(record_0_5, correlation, 16);
PASTA_AMD_AT(record_0_5, kind, 32);
PASTA_AMD_AT(record_0_5, operation, 36);
PASTA_AMD_AT(record_0_5, phase, 40);
PASTA_AMD_AT(record_0_5, payload, 48);
PASTA_AMD_IS(record_1, 64);
PASTA_AMD_AT(record_1, thread, 8);
PASTA_AMD_AT(record_1, correlation, 16);
PASTA_AMD_AT(record_1, kind, 40);
PASTA_AMD_AT(record_1, operation, 44);
PASTA_AMD_AT(record_1, phase, 48);
PASTA_AMD_AT(record_1, payload, 56);
PASTA_AMD_IS(dispatch_info, 128);
PASTA_AMD_AT(dispatch_info, agent, 8);
PASTA_AMD_AT(dispatch_info, queue, 16);
PASTA_AMD_AT(dispatch_info, kernel, 24);
PASTA_AMD_AT(dispatch_info, dispatch, 32);
PASTA_AMD_AT(dispatch_info, private_bytes, 40);
PASTA_AMD_AT(dispatch_info, group_bytes, 44);
PASTA_AMD_AT(dispatch_info, workgroup, 48);
PASTA_AMD_AT(dispatch_info, grid, 60);
PASTA_AMD_IS(dispatch, 152);
PASTA_AMD_AT(dispatch, start, 8);
PASTA_AMD_AT(dispatch, end, 16);
PASTA_AMD_AT(dispatch, info, 24);
PASTA_AMD_IS(code_object, 88);
PASTA_AMD_AT(code_object, memory_base, 72);
PASTA_AMD_IS(kernel_symbol, 88);
PASTA_AMD_AT(kernel_symbol, entry_offset, 72); /* the size in 0.5 */
PASTA_AMD_IS(memory_copy, 64);
PASTA_AMD_AT(memory_copy, destination, 48); /* the size in 0.5 */
PASTA_AMD_IS(allocation, 48);
PASTA_AMD_IS(scratch, 56);
PASTA_AMD_IS(runtime, 24);
PASTA_AMD_IS(hip_call, 120);
PASTA_AMD_AT(hip_call, status, 96);
PASTA_AMD_IS(marker_call, 32);
PASTA_AMD_IS(counting, 168); /* from here on: as the headers have them */
PASTA_AMD_IS(count_value, 40);
PASTA_AMD_IS(counter_info, 48);
PASTA_AMD_IS(dimension, 24);
PASTA_AMD_IS(sampling, 40);
PASTA_AMD_IS(buffered, 16);
PASTA_AMD_IS(host_trap, 88);
PASTA_AMD_IS(stochastic, 104);

#endif
