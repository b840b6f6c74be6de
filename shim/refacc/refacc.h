/* refacc: the reference accelerator, a software accelerator for development and CI.
 *
 * It executes kernels on the host, warp by warp, behind a driver-like API.  It does not emulate
 * any product, and its times are not representative of one.  docs/reference-accelerator.md is the guide.
 *
 * Every function returns an ra_error and may be called by any thread.  The first call
 * initialises.  A thread that never chose a context uses the primary context of device 0.
 */
#ifndef REFACC_H
#define REFACC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RA_API __attribute__((visibility("default")))
#define RA_VERSION 1000 /* major * 1000 + minor */
#define RA_VERSION_TEXT "1.0"

#define RA_ERRORS(X)                                                                  \
    X(OK, 0, "no error")                                                              \
    X(INVALID_VALUE, 1, "an argument is out of range")                                \
    X(INVALID_HANDLE, 2, "the handle is unknown or was destroyed")                    \
    X(INVALID_ADDRESS, 3, "the address range is not inside one live allocation")      \
    X(INVALID_DEVICE, 4, "there is no such device")                                   \
    X(INVALID_IMAGE, 5, "the module image is malformed")                              \
    X(NOT_FOUND, 6, "no kernel has this name")                                        \
    X(OUT_OF_MEMORY, 7, "not enough memory")                                          \
    X(TOO_MANY_RESOURCES, 8, "the launch wants more threads or shared memory than a block has") \
    X(NOT_READY, 9, "the work is not finished yet")                                   \
    X(CAPTURE, 10, "not possible while, or only while, the stream is being captured") \
    X(ILLEGAL_ADDRESS, 11, "a kernel accessed memory outside the accelerator's")      \
    X(MISALIGNED_ADDRESS, 12, "a kernel made a misaligned access")                    \
    X(BUSY, 13, "there is a tools subscriber already")                                \
    X(SHUT_DOWN, 14, "the process is exiting")                                        \
    X(SYSTEM, 15, "the operating system refused a thread or memory mapping")

#define RA_ENUMERATOR(name, number, text) RA_##name = number,
typedef enum ra_error { RA_ERRORS(RA_ENUMERATOR) } ra_error;
#undef RA_ENUMERATOR

typedef struct ra_context_s *ra_context;
typedef struct ra_stream_s *ra_stream; /* NULL: the current context's default stream */
typedef struct ra_event_s *ra_event;
typedef struct ra_module_s *ra_module;
typedef struct ra_function_s *ra_function;
typedef struct ra_graph_s *ra_graph;
typedef struct ra_node_s *ra_node;
typedef struct ra_graph_exec_s *ra_graph_exec;

enum { RA_HOST = -1 }; /* the host where a device ordinal is wanted */

typedef struct ra_properties {
    char name[64];
    uint64_t memory; /* bytes */
    uint32_t multiprocessors;
    uint32_t warp; /* lanes */
    uint32_t max_threads; /* per block */
    uint32_t max_shared;  /* bytes per block */
} ra_properties;

typedef enum ra_memory_kind {
    RA_MEMORY_DEVICE = 1,
    RA_MEMORY_MANAGED = 2,
    RA_MEMORY_PINNED = 3,
    RA_MEMORY_POOL = 4, /* stream-ordered */
} ra_memory_kind;

typedef struct ra_pointer {
    uint64_t base; /* of the allocation */
    uint64_t bytes;
    ra_memory_kind kind;
    int device; /* of the allocating context */
} ra_pointer;

typedef enum ra_advice {
    RA_ADVICE_READ_MOSTLY = 1,
    RA_ADVICE_UNSET_READ_MOSTLY = 2,
    RA_ADVICE_PREFERRED_LOCATION = 3,
    RA_ADVICE_UNSET_PREFERRED_LOCATION = 4,
    RA_ADVICE_ACCESSED_BY = 5,
    RA_ADVICE_UNSET_ACCESSED_BY = 6,
} ra_advice;

typedef struct ra_function_properties {
    uint64_t entry_pc;
    uint32_t registers;     /* per thread */
    uint32_t shared_static; /* bytes per block */
    uint32_t local;         /* bytes per thread */
    uint32_t parameters;
} ra_function_properties;

/* ---- library and devices ---- */
RA_API const char *ra_error_string(int error);
RA_API int ra_version(void);
RA_API int ra_init(void);
/* Finishes queued work, ends the worker threads and invalidates every handle; ra_init starts again. */
RA_API int ra_shutdown(void);
RA_API int ra_device_count(int *count);
RA_API int ra_device_properties(int device, ra_properties *properties);
/* Makes the device's primary context current to the calling thread. */
RA_API int ra_device_set(int device);
RA_API int ra_device_synchronize(void);
RA_API int ra_profiler_start(void);
RA_API int ra_profiler_stop(void);

/* ---- contexts ---- */
/* A new context; it becomes current. */
RA_API int ra_context_create(ra_context *context, int device);
/* Waits for its work and releases all it owns.  Memory is released without a free callback. */
RA_API int ra_context_destroy(ra_context context);
RA_API int ra_context_set_current(ra_context context);
RA_API int ra_context_get_current(ra_context *context);
/* Waits for every stream; returns the error that a kernel left in the context, which stays. */
RA_API int ra_context_synchronize(void);

/* ---- streams and events ----
 * A stream executes in the order of submission, on a thread of its own.  The default stream is a
 * stream like any other: it neither waits for others nor makes them wait. */
RA_API int ra_stream_create(ra_stream *stream, int priority);
RA_API int ra_stream_destroy(ra_stream stream); /* waits for its work */
RA_API int ra_stream_synchronize(ra_stream stream);
RA_API int ra_stream_query(ra_stream stream); /* RA_OK or RA_NOT_READY */
RA_API int ra_stream_wait_event(ra_stream stream, ra_event event);
RA_API int ra_event_create(ra_event *event);
RA_API int ra_event_destroy(ra_event event);
RA_API int ra_event_record(ra_event event, ra_stream stream);
RA_API int ra_event_synchronize(ra_event event); /* at once for one never recorded */
RA_API int ra_event_query(ra_event event);
RA_API int ra_event_elapsed(uint64_t *nanoseconds, ra_event start, ra_event end);

/* ---- memory ---- */
RA_API int ra_alloc(void **address, uint64_t bytes);
RA_API int ra_alloc_managed(void **address, uint64_t bytes);
RA_API int ra_alloc_pinned(void **address, uint64_t bytes);
RA_API int ra_alloc_async(void **address, uint64_t bytes, ra_stream stream);
/* Waits for the context's work first. Takes what every ra_alloc function gave. */
RA_API int ra_free(void *address);
/* For memory of ra_alloc_async: freed when the stream gets there. */
RA_API int ra_free_async(void *address, ra_stream stream);
RA_API int ra_pointer_query(ra_pointer *pointer, const void *address);

/* The direction follows from the addresses; an address outside the accelerator's is pageable host
 * memory and must stay valid until an async copy is done. */
RA_API int ra_memcpy(void *destination, const void *source, uint64_t bytes);
RA_API int ra_memcpy_async(void *destination, const void *source, uint64_t bytes, ra_stream stream);
RA_API int ra_memcpy_2d(void *destination, uint64_t destination_pitch, const void *source, uint64_t source_pitch,
                        uint64_t width, uint64_t height);
RA_API int ra_memcpy_2d_async(void *destination, uint64_t destination_pitch, const void *source,
                              uint64_t source_pitch, uint64_t width, uint64_t height, ra_stream stream);
/* element: 1, 2 or 4 bytes; count and width count elements, the pitch bytes. */
RA_API int ra_memset(void *address, uint32_t value, uint32_t element, uint64_t count);
RA_API int ra_memset_async(void *address, uint32_t value, uint32_t element, uint64_t count, ra_stream stream);
RA_API int ra_memset_2d(void *address, uint64_t pitch, uint32_t value, uint32_t element, uint64_t width,
                        uint64_t height);
RA_API int ra_memset_2d_async(void *address, uint64_t pitch, uint32_t value, uint32_t element, uint64_t width,
                              uint64_t height, ra_stream stream);

/* For managed memory, whose pages of 64 KiB are where they were last used.  A device faults on pages that it does
 * not hold, and is told of by a model with costs (docs/reference-accelerator.md); the values are at the same address
 * for all.  ra_prefetch moves pages in the stream's order, before they are used. */
RA_API int ra_prefetch(const void *address, uint64_t bytes, int device, ra_stream stream);
RA_API int ra_advise(const void *address, uint64_t bytes, ra_advice advice, int device);
/* The host is about to read, or also to write, managed memory, which refacc cannot see by itself: its pages come to
 * the host.  Waits for no work. */
RA_API int ra_host_access(const void *address, uint64_t bytes, int write);
RA_API int ra_stream_attach(ra_stream stream, const void *address, uint64_t bytes, uint32_t flags);

/* ---- modules and launches ---- */
/* An image is text: the line "refacc-module 1", then one kernel symbol per line. Loading links the
 * symbols to the built-in kernels and to those of ra_kernel_register (refacc_kernel.h). */
RA_API int ra_module_load(ra_module *module, const void *image, size_t bytes);
RA_API int ra_module_load_builtin(ra_module *module);
RA_API int ra_module_unload(ra_module module);
RA_API int ra_module_function(ra_function *function, ra_module module, const char *symbol);
RA_API int ra_function_query(ra_function_properties *properties, ra_function function);
/* parameters: one pointer to each value, copied before the call returns. */
RA_API int ra_launch(ra_function function, const uint32_t grid[3], const uint32_t block[3], uint32_t shared_dynamic,
                     ra_stream stream, void *const *parameters);

/* ---- tensors ---- */
#define RA_TENSOR_RANK 5

/* A tensor and the box that one transfer moves, dimensions innermost first.  A kernel reads it from
 * the accelerator's memory, where the program copies it. */
typedef struct ra_tensor {
    uint64_t base;    /* address, a multiple of 16 */
    uint32_t element; /* bytes: 1, 2, 4 or 8 */
    uint32_t rank;    /* 1 to RA_TENSOR_RANK */
    uint64_t size[RA_TENSOR_RANK];   /* elements, 1 to 2^32 */
    uint64_t stride[RA_TENSOR_RANK]; /* bytes, multiples of 16; the first is `element` */
    uint32_t box[RA_TENSOR_RANK];    /* elements, 1 to 256; the first a multiple of 16 bytes */
} ra_tensor;

/* Checks and fills a tensor. stride: of the rank - 1 outer dimensions. */
RA_API int ra_tensor_make(ra_tensor *tensor, const void *base, uint32_t element, uint32_t rank, const uint64_t *size,
                          const uint64_t *stride, const uint32_t *box);

/* ---- graphs ---- */
/* Launches, copies and sets given to the stream become nodes, each depending on the one before.
 * Other stream-ordered calls return RA_CAPTURE meanwhile. */
RA_API int ra_stream_begin_capture(ra_stream stream);
RA_API int ra_stream_end_capture(ra_stream stream, ra_graph *graph);
RA_API int ra_graph_create(ra_graph *graph);
RA_API int ra_graph_destroy(ra_graph graph);
/* Dependencies are nodes of the same graph. */
RA_API int ra_graph_add_kernel(ra_node *node, ra_graph graph, const ra_node *dependencies, size_t count,
                               ra_function function, const uint32_t grid[3], const uint32_t block[3],
                               uint32_t shared_dynamic, void *const *parameters);
RA_API int ra_graph_add_memcpy(ra_node *node, ra_graph graph, const ra_node *dependencies, size_t count,
                               void *destination, uint64_t destination_pitch, const void *source,
                               uint64_t source_pitch, uint64_t width, uint64_t height);
RA_API int ra_graph_add_memset(ra_node *node, ra_graph graph, const ra_node *dependencies, size_t count,
                               void *address, uint64_t pitch, uint32_t value, uint32_t element, uint64_t width,
                               uint64_t height);
RA_API int ra_graph_instantiate(ra_graph_exec *exec, ra_graph graph);
RA_API int ra_graph_exec_destroy(ra_graph_exec exec);
/* The nodes run in the stream, in an order that respects the dependencies. */
RA_API int ra_graph_launch(ra_graph_exec exec, ra_stream stream);

#ifdef __cplusplus
}
#endif
#endif
