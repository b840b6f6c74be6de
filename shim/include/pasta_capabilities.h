/* What each source can give.
 *
 * Read by cffi (pasta/capabilities.py), which compares it with what tools ask for, and by the
 * generator of docs/backends.md.  Tests hold it against streams of records: what is claimed is in
 * some record, what is not claimed is in none.
 */
#ifndef PASTA_CAPABILITIES_H
#define PASTA_CAPABILITIES_H

#ifndef PASTA_CFFI
#include <stddef.h>
#include <stdint.h>
#endif

/* Every source once, as it is named in process_start: X(number, name, accelerator, title).
 * accelerator = 1: one of the backends of --backend; 0: a framework, beside any of them. */
/* clang-format off */
#define PASTA_SOURCES(X)                                       \
    X(0, nvidia_sanitizer, 1, "NVIDIA (Compute Sanitizer)")    \
    X(1, amd_rocprofiler,  1, "AMD (rocprofiler-sdk)")         \
    X(2, refacc,           1, "reference accelerator")         \
    X(3, torch,            0, "PyTorch")

/* Kinds of events: X(kind, nvidia_sanitizer, amd_rocprofiler, refacc, torch, text).  Kinds that are
 * not here are PASTA's own: any process may have them. */
#define PASTA_KIND_CAPABILITIES(X)                                                                   \
    X(context_create,    1, 1, 1, 0, "contexts")                                                     \
    X(context_destroy,   1, 0, 1, 0, "ends of contexts")                                             \
    X(stream_create,     1, 1, 1, 0, "streams")                                                      \
    X(stream_destroy,    1, 1, 1, 0, "ends of streams")                                              \
    X(module_load,       1, 1, 1, 0, "modules")                                                      \
    X(module_unload,     1, 1, 1, 0, "ends of modules")                                              \
    X(kernel_launch,     1, 1, 1, 0, "kernel launches")                                              \
    X(kernel_launch_end, 1, 1, 1, 0, "returns of launches")                                          \
    X(kernel_complete,   0, 1, 1, 0, "device times of kernels")                                      \
    X(graph_launch,      1, 1, 1, 0, "graph launches")                                               \
    X(graph_launch_end,  1, 1, 1, 0, "returns of graph launches")                                    \
    X(graph_instantiate, 0, 1, 0, 1, "instantiations of graphs")                                     \
    X(graph_node,        0, 0, 0, 1, "operators of graph nodes")                                     \
    X(memory_alloc,      1, 1, 1, 0, "allocations")                                                  \
    X(memory_free,       1, 1, 1, 0, "frees")                                                        \
    X(memory_copy,       1, 1, 1, 0, "copies")                                                       \
    X(memory_set,        1, 1, 1, 0, "memory sets")                                                  \
    X(uvm_attach,        1, 1, 1, 0, "attachments of managed memory")                                \
    X(uvm_prefetch,      1, 1, 1, 0, "prefetches of managed memory")                                 \
    X(uvm_advise,        1, 1, 1, 0, "advice for managed memory")                                    \
    X(uvm_fault,         0, 0, 0, 0, "page faults of managed memory")                                \
    X(uvm_migration,     0, 0, 0, 0, "migrations of managed memory")                                 \
    X(sync,              1, 1, 1, 0, "waits")                                                        \
    X(event_create,      1, 1, 1, 0, "events")                                                       \
    X(event_destroy,     1, 1, 1, 0, "ends of events")                                               \
    X(event_record,      1, 1, 1, 0, "records of events")                                            \
    X(event_wait,        1, 1, 1, 0, "waits of streams for events")                                  \
    X(counter,           0, 1, 0, 0, "hardware counters")                                            \
    X(pc_sample,         0, 1, 0, 0, "samples of program counters")                                  \
    X(operator_begin,    0, 0, 0, 1, "operators")                                                    \
    X(operator_end,      0, 0, 0, 1, "ends of operators")                                            \
    X(operator_tensors,  0, 0, 0, 1, "further tensors of operators")                                 \
    X(tensor_alloc,      0, 0, 0, 1, "allocations by frameworks")                                    \
    X(tensor_free,       0, 0, 0, 1, "frees by frameworks")                                          \
    X(tensor_create,     0, 0, 0, 1, "tensors")                                                      \
    X(allocator_state,   0, 0, 0, 1, "what frameworks hold")                                         \
    X(python_frame,      0, 0, 0, 1, "Python stacks")                                                \
    X(python_sample,     0, 0, 0, 1, "samples of Python stacks between operators")

/* What not every accelerator gives beyond kinds: X(name, kind, field, nvidia_sanitizer,
 * amd_rocprofiler, refacc, text).  `field` of the records of `kind` is never absent in all of a
 * source's records where it is given; `none`: no field shows it. */
#define PASTA_FIELD_CAPABILITIES(X)                                                                  \
    X(accesses,           kernel_launch, none,               1, 0, 1, "memory accesses inside kernels") \
    X(device_name,        context_create, name,              1, 1, 1, "names of devices")            \
    X(stream_id,          stream_create, id,                 1, 1, 0, "unique ids of streams")       \
    X(stream_priority,    stream_create, priority,           0, 1, 1, "priorities of streams")       \
    X(module_hash,        module_load,   hash,               1, 1, 1, "hashes of modules")           \
    X(cluster,            kernel_launch, cluster,            1, 0, 1, "cluster sizes")               \
    X(registers,          kernel_launch, registers,          0, 1, 1, "registers")                   \
    X(shared_static,      kernel_launch, shared_static,      0, 1, 1, "static shared memory")        \
    X(shared_dynamic,     kernel_launch, shared_dynamic,     0, 1, 1, "dynamic shared memory")       \
    X(local,              kernel_launch, local,              0, 1, 1, "local memory")                \
    X(graph_node_of_launch, kernel_launch, graph_node,       1, 0, 1, "graph nodes of launches")     \
    X(graph_node_of_copy, memory_copy,   graph_node,         1, 0, 1, "graph nodes of copies")       \
    X(entry_pc,           kernel_launch, entry_pc,           1, 1, 1, "addresses of kernels' code")  \
    X(vendor_flags,       memory_alloc,  vendor_flags,       1, 1, 0, "vendors' flags of allocations") \
    X(copy_addresses,     memory_copy,   source,             1, 1, 1, "addresses of copies")         \
    X(copy_devices,       memory_copy,   source_device,      1, 1, 1, "devices of copies")           \
    X(copy_stream,        memory_copy,   destination_stream, 1, 0, 0, "second streams of copies")    \
    X(uvm_source,         uvm_prefetch,  source,             0, 0, 0, "where managed memory came from") \
    X(wait_times,         sync,          duration,           0, 1, 1, "how long the host waited")
/* clang-format on */

typedef struct pasta_source {
    const char *name, *title;
    uint32_t accelerator;
} pasta_source;

typedef struct pasta_capability {
    const char *name;
    const char *kind;
    const char *field; /* NULL: the kind itself; "none": no field shows it */
    const char *text;  /* as in "not given by …: cluster sizes" */
    uint32_t sources;  /* 1 << number of each that gives it */
} pasta_capability;

#define PASTA_ONE(...) +1
enum {
    PASTA_SOURCE_count = 0 PASTA_SOURCES(PASTA_ONE),
    PASTA_CAPABILITY_count = 0 PASTA_KIND_CAPABILITIES(PASTA_ONE) PASTA_FIELD_CAPABILITIES(PASTA_ONE),
};
#undef PASTA_ONE

#ifdef PASTA_CFFI
extern const pasta_source pasta_sources[];
extern const pasta_capability pasta_capabilities[];
#else
#define PASTA_SOURCE(number, name, accelerator, title) [number] = {#name, title, accelerator},
static const pasta_source pasta_sources[] = {PASTA_SOURCES(PASTA_SOURCE)};
#undef PASTA_SOURCE

#define PASTA_KIND_ROW(kind, sanitizer, rocprofiler, refacc, torch, text) \
    {#kind, #kind, NULL, text, (sanitizer) | (rocprofiler) << 1 | (refacc) << 2 | (torch) << 3},
#define PASTA_FIELD_ROW(name, kind, field, sanitizer, rocprofiler, refacc, text) \
    {#name, #kind, #field, text, (sanitizer) | (rocprofiler) << 1 | (refacc) << 2},
static const pasta_capability pasta_capabilities[] = {
    PASTA_KIND_CAPABILITIES(PASTA_KIND_ROW) PASTA_FIELD_CAPABILITIES(PASTA_FIELD_ROW)};
#undef PASTA_KIND_ROW
#undef PASTA_FIELD_ROW
#endif

#endif
