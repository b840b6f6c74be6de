/* Shared by refacc's files.  Lock order: init, primary, ra_lock, then one stream's.  No lock is held in
 * callbacks of tools.
 *
 * These files call each other in a circle, as the parts of a device do: a context owns streams, memory and
 * modules, and device.c creates and destroys them with it; each of those starts with the current context
 * of device.c, which initializes the library; and work that one queues, another executes. */
#ifndef REFACC_INTERNAL_H
#define REFACC_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "refacc_kernel.h"

#define RA_MAX_DEVICES 15
#define RA_MAX_THREADS 1024
#define RA_MAX_SHARED 65536
#define RA_MULTIPROCESSORS 16
#define RA_INSTRUCTION_NS 10 /* of a warp, by the device clock */

#pragma GCC visibility push(hidden)

/* Returns the error of a failed step from the calling function. */
#define RA_TRY(expression)                    \
    do {                                      \
        int ra_try_ = (expression);           \
        if (ra_try_ != RA_OK) return ra_try_; \
    } while (0)
#define RA_REQUIRE(condition, error)      \
    do {                                  \
        if (!(condition)) return (error); \
    } while (0)

/* ---- objects: memory of one type keeps its type until shutdown, so a stale handle is detected
 * and a waiter never reads freed memory ---- */
enum ra_type { RA_TYPE_CONTEXT, RA_TYPE_STREAM, RA_TYPE_EVENT, RA_TYPE_MODULE, RA_TYPE_GRAPH, RA_TYPE_EXEC, RA_TYPES };

struct ra_object {
    _Atomic uint32_t alive; /* type + RA_ALIVE; 0 when destroyed */
    enum ra_type type;
    struct ra_object *all;  /* every object ever made of the type */
    struct ra_object *free;
};
#define RA_ALIVE 0x52410000u

void *ra_object_new(enum ra_type type); /* a reused one keeps its old contents; NULL: out of memory */
void ra_object_publish(void *object);   /* from now on the handle is valid */
void ra_object_delete(void *object);
bool ra_object_is(const void *object, enum ra_type type);
extern const size_t ra_event_bytes, ra_graph_bytes, ra_exec_bytes; /* of the types private to their file */

/* ---- device.c ---- */
struct ra_settings {
    int devices;
    uint32_t threads; /* that execute blocks */
    uint64_t memory;  /* bytes per region */
    uint64_t managed; /* bytes of managed memory that a device holds at most */
};
extern struct ra_settings ra_settings;
extern pthread_mutex_t ra_lock; /* object lists, contexts' lists, memory blocks */

struct ra_context_s {
    struct ra_object object;
    int device;
    bool primary;
    _Atomic int error; /* of a kernel; permanent */
    struct ra_stream_s *default_stream;
    struct ra_stream_s *streams;
    struct ra_module_s *modules;
    struct ra_context_s *next;
};

int ra_current(struct ra_context_s **context); /* initializes */
uint64_t ra_now(void);
int ra_thread_start(pthread_t *thread, void *(*run)(void *), void *argument); /* with all signals blocked */

/* ---- tools.c ---- */
extern _Atomic uint32_t ra_tools_domains;
static inline bool ra_tools_want(ra_domain domain) {
    return atomic_load_explicit(&ra_tools_domains, memory_order_relaxed) >> domain & 1;
}
void ra_tools_call(ra_domain domain, ra_callback_id id, void *data);
void ra_tools_inject(void);
void ra_tools_forget(void);
/* The access hook in force and its subscription, for ra_tools_enter. */
uint64_t ra_tools_hook(ra_access_hook *hook, void **userdata);
/* Between enter and leave the subscriber stays subscribed. */
bool ra_tools_enter(uint64_t subscription);
void ra_tools_leave(void);

/* ---- memory.c ---- */
struct ra_window {
    uint64_t base;
    uint64_t bytes;
};
extern struct ra_window ra_window;

int ra_memory_map(void);
void ra_memory_unmap(void);
void ra_memory_forget(void);
/* Frees what is live in a context, with callbacks of tools; no lock held. */
void ra_memory_retire_context(struct ra_context_s *context);
void ra_memory_release_context(struct ra_context_s *context); /* ra_lock held */

/* ---- stream.c ---- */
struct ra_executor;

/* One piece of stream work. */
struct ra_op {
    struct ra_op *next;
    size_t bytes; /* of the struct this begins: graphs copy it */
    /* Calls the tools and queues the op; owns it, also when failing. */
    int (*submit)(struct ra_op *op, struct ra_stream_s *stream, bool asynchronous, uint64_t graph, uint64_t node);
    void (*run)(struct ra_op *op, struct ra_stream_s *stream, struct ra_executor *executor);
};

struct ra_stream_s {
    struct ra_object object;
    struct ra_context_s *context;
    struct ra_stream_s *next;
    int priority;
    bool ready; /* mutex and conditions are initialized: once per memory, kept when reused */
    pthread_mutex_t mutex;
    pthread_cond_t work;
    pthread_cond_t idle;
    struct ra_op *first;
    struct ra_op *last;
    uint64_t submitted; /* continues when reused, so that an old waiter ends */
    uint64_t completed;
    bool started;
    bool stop;
    pthread_t thread;
    struct ra_graph_s *capture;
};

int ra_stream_make(struct ra_context_s *context, int priority, struct ra_stream_s **stream);
int ra_stream_get(ra_stream handle, struct ra_stream_s **stream); /* initializes; NULL is the default stream */
uint64_t ra_stream_handle(const struct ra_stream_s *stream);      /* 0 for a default stream */
int ra_stream_queue(struct ra_stream_s *stream, struct ra_op *op);
/* Submits or, while capturing, records. Owns the op. */
int ra_stream_give(struct ra_stream_s *stream, struct ra_op *op, bool asynchronous);
void ra_stream_drain(struct ra_stream_s *stream);
void ra_stream_tell_stop(struct ra_stream_s *stream); /* after its work */
void ra_stream_join(struct ra_stream_s *stream);
void ra_stream_discard(struct ra_stream_s *stream); /* frees its memory at shutdown */
int ra_context_drain(struct ra_context_s *context);
void ra_events_clear(void *event);
void ra_events_forget(void);

/* ---- execute.c ---- */
struct ra_launch {
    struct ra_op op;
    const ra_kernel *kernel;
    struct ra_context_s *context;
    uint64_t parameters[RA_MAX_PARAMETERS];
    ra_launch_data data;
    uint64_t subscription;
    uint64_t blocks;
    uint64_t chunk;
    _Atomic uint64_t next_block;
    int fault;
    uint32_t helpers; /* pool threads that work on it; the pool's mutex */
    uint64_t *touched; /* as of ra_warp */
    uint64_t managed_words;
    struct ra_launch *next_job;
    uint64_t clock[RA_MULTIPROCESSORS]; /* of a serial launch, ns: each executes its blocks one after the other */
};

void ra_warp_transfer(const ra_warp *w, uint32_t at, const ra_access *what); /* kind, flags, bytes, mask, rows, stride */
void ra_warp_stop(ra_warp *w, int error);
int ra_launch_make(struct ra_op **op, ra_function function, const uint32_t grid[3], const uint32_t block[3],
                   uint32_t shared_dynamic, void *const *parameters);
struct ra_executor *ra_executor_new(void);
void ra_executor_delete(struct ra_executor *executor);
void ra_pool_stop(void);
void ra_pool_forget(void);

/* ---- managed.c ---- */
#define RA_PAGE_SHIFT 16
#define RA_MANAGED_BLOCK (UINT64_C(1) << 21)
int ra_managed_born(uint64_t address, uint64_t bytes);
void ra_managed_dead(uint64_t address, uint64_t bytes); /* ra_lock held */
void ra_managed_begin(struct ra_launch *launch);
void ra_managed_end(struct ra_launch *launch); /* serves the touched pages */
/* A copy or set writes: pages that are nowhere come to the device, other copies of pages end. */
void ra_managed_written(uint64_t address, uint64_t bytes, const struct ra_context_s *context, uint64_t stream);
void ra_managed_host(const struct ra_context_s *context, uint64_t address, uint64_t bytes, bool write);
void ra_managed_prefetch(const struct ra_context_s *context, uint64_t stream, uint64_t address, uint64_t bytes,
                         int place);
void ra_managed_advise(uint64_t address, uint64_t bytes, ra_advice advice, int place);
void ra_managed_clear(void);
void ra_managed_forget(void);

/* ---- memory.c: operations ---- */
int ra_copy_make(struct ra_op **op, void *destination, uint64_t destination_pitch, const void *source,
                 uint64_t source_pitch, uint64_t width, uint64_t height);
int ra_set_make(struct ra_op **op, void *address, uint64_t pitch, uint32_t value, uint32_t element, uint64_t width,
                uint64_t height);

/* ---- module.c ---- */
struct ra_function_s {
    const ra_kernel *kernel;
    struct ra_module_s *module;
    uint64_t entry_pc;
};

struct ra_module_s {
    struct ra_object object;
    struct ra_context_s *context;
    struct ra_module_s *next;
    unsigned char *image;
    size_t image_bytes;
    struct ra_function_s *functions;
    size_t count;
};

extern const ra_kernel ra_builtin_kernels[];
extern const size_t ra_builtin_count;
extern const ra_kernel ra_golden_kernels[];
extern const size_t ra_golden_count;
extern pthread_mutex_t ra_kernels_lock;
bool ra_function_is(ra_function function);
void ra_modules_release(struct ra_context_s *context);
void ra_module_clear(struct ra_module_s *module);
void ra_modules_forget(void);

/* ---- graph.c ---- */
int ra_graph_append(struct ra_graph_s *graph, struct ra_op *op); /* owns the op */
int ra_graph_make(struct ra_graph_s **graph);
void ra_graph_clear(void *graph);
void ra_graph_exec_clear(void *exec);
void ra_graphs_forget(void);

#pragma GCC visibility pop
#endif
