/* What an event source may call.
 *
 * A source turns vendor callbacks into records:
 *
 *     static void on_memset(const vendor_memset *m) {
 *         pasta_memory_set *e = PASTA_BEGIN(memory_set, device_of(m), context_of(m), m->stream);
 *         if (!e) return;             // stopped, or the ring is full: counted
 *         e->address = m->address;
 *         …
 *         pasta_publish(e);
 *     }
 *
 * PASTA_BEGIN fills in the header and sets every payload byte to all ones (absent).  Only pasta_trace_*
 * waits or makes system calls, and nothing calls Python.
 *
 * A source in a library of its own is named by the configuration's key `libraries`; the preloaded library
 * loads it into each profiled process and calls its pasta_backend_load().  It links to nothing of PASTA:
 * these functions are found in the preloaded library.
 */
#ifndef PASTA_SOURCE_H
#define PASTA_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pasta_abi.h"
#include "pasta_trace.h"

/* A variable that every launch needs, also between spot checks: all of them share a few lines of the cache. */
#define PASTA_HOT __attribute__((section("pasta_hot")))
/* A variable that only other records need, or launches while probes are in: kept out of the lines of PASTA_HOT. */
#define PASTA_WARM __attribute__((section("pasta_warm")))
/* All that the function calls becomes a part of it, also from other files: less code to fetch where the cache has none of it. */
#define PASTA_FLAT __attribute__((flatten))
#define PASTA_APART __attribute__((noinline)) /* not a part of a flat function: rarely called */
#define PASTA_LIKELY(x) __builtin_expect(!!(x), 1)
#define PASTA_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define PASTA_EXPORT __attribute__((visibility("default")))

#define PASTA_NO_DEVICE PASTA_ABSENT_DEVICE
#define PASTA_NO_CONTEXT PASTA_ABSENT_U16
#define PASTA_NO_STREAM PASTA_ABSENT_U64

#ifdef PASTA_INSIDE /* libpasta.so itself: calls stay direct, and nothing in the target interposes them */
#pragma GCC visibility push(protected)
#else
/* Exported by a source in a library of its own: called once, when the library is loaded. */
PASTA_EXPORT void pasta_backend_load(void);
#endif

/* ---- configuration (config.c): the launcher's, read once ---- */

/* True in a process that is to be profiled (false: no session, --no-children, …). */
bool pasta_wanted(void);
/* Value of a key, or NULL.  Valid as long as the process. */
const char *pasta_config(const char *key);
uint64_t pasta_config_u64(const char *key, uint64_t otherwise);
/* True where events of the backend of this name are wanted (--backend). */
bool pasta_listens_to(const char *backend);

/* ---- messages (say.c) ---- */

/* One line "pasta: …" on the target's original stderr; equal lines of a process only once. */
void pasta_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* One line in the session's log only. */
void pasta_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- process life (life.c) ---- */

/* A source calls this when the target begins to use its accelerator or framework: opens this
 * process's ring, publishes process_start, and starts a consumer.  Cheap to repeat.  False where
 * nothing is to be recorded: do not subscribe, or ignore the callbacks.  Never waits for Python. */
bool pasta_use(const char *source, const char *version);
/* Opens the ring for annotations only: no consumer, no run directory, unless pasta_use follows. */
bool pasta_open(void);
/* Starts or stops the publication of kinds whose `keep` is 0. */
void pasta_profiling_set(bool on, uint32_t origin);
bool pasta_profiling_is_on(void);
/* Calls `changed` when profiling starts or stops, on the thread that does it; replaces an earlier one. */
void pasta_on_profiling(void (*changed)(bool on));
/* Libraries whose file names begin with `prefix` are an accelerator's: a process that has loaded one
 * and then restricts its system calls gets its ring before it does.  The text is not copied. */
void pasta_accelerator_library(const char *prefix);
/* Programs that the target starts with another environment get this variable too, with the value that it
 * has now (exec.c).  `file`: the variable is a list of paths, of which only the one to this file is
 * passed on; NULL: any value.  The texts are not copied. */
void pasta_exec_variable(const char *name, const char *file);
/* Calls `observe` when a framework's allocator hands out device memory, on the thread that does it. */
void pasta_on_tensor(void (*observe)(uint64_t address, uint64_t bytes));
/* Records of tensors may be put off from now on, until the next launch that may be probed: before its record, `need` writes those
 * of live tensors. */
void pasta_tensors_put_off(void);
void pasta_tensors_need(void);

/* ---- publishing (ring.c, strings.c) ---- */

/* Payload of a new record, or NULL: no ring, stopped, or the ring is full (counted per kind). */
void *pasta_begin(pasta_event_kind kind, uint8_t slots, int16_t device, uint16_t context, uint64_t stream);
/* The same for a caller that knows the thread's id. */
void *pasta_begin_on(uint32_t thread, pasta_event_kind kind, uint8_t slots, int16_t device, uint16_t context,
                     uint64_t stream);
/* The same for a result of work whose record was published; not suppressed while profiling is stopped. */
void *pasta_begin_result(uint32_t thread, pasta_event_kind kind, uint8_t slots, int16_t device, uint16_t context,
                         uint64_t stream);
uint32_t pasta_thread(void); /* id of this thread, as in records */
/* Makes a record visible to the consumer. */
static inline void pasta_publish(void *payload);

#define PASTA_SLOTS(type) ((uint8_t)((sizeof(pasta_header) + sizeof(type)) / PASTA_SLOT))
/* PASTA_BEGIN(memory_set, …): a record whose kind and payload have the same name. */
#define PASTA_BEGIN(name, device, context, stream) PASTA_BEGIN_AS(name, name, device, context, stream)
/* PASTA_BEGIN_AS(memory_free, memory, …): kind, payload. */
#define PASTA_BEGIN_AS(kind, payload, device, context, stream)                             \
    ((pasta_##payload *)pasta_begin(PASTA_EVENT_##kind, PASTA_SLOTS(pasta_##payload), (int16_t)(device), \
                                    (uint16_t)(context), (uint64_t)(stream)))

/* A step of a hash in memory. */
static inline uint64_t pasta_mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 31;
}

static inline pasta_header *pasta_header_of(void *payload) { return (pasta_header *)payload - 1; }

/* Id of a string: equal strings of one process have equal ids; 0 when the arena is full.
 * Lock-free; costs a hash of the string, so cache the id where the string is known. */
uint32_t pasta_intern(const char *text, size_t length);
uint32_t pasta_intern_z(const char *text); /* NUL-terminated; NULL gives 0 */
/* 64-bit FNV-1a over 8-byte words (tail bytes zero-extended): the content hash of modules. */
uint64_t pasta_hash(const void *bytes, size_t length);

/* Keeps a module's image in the run, once per content, if that is configured. */
void pasta_keep_image(uint64_t hash, const void *image, size_t bytes);

/* ---- which launches are probed (windows.c): lock-free, no system call but the clock ----
 *
 * For each launch, while profiling is on, a source calls
 *
 *     bool selected = pasta_probe_selects(name, symbol);     // before PASTA_BEGIN: slow at first
 *     pasta_kernel_launch *e = PASTA_BEGIN(kernel_launch, …);
 *     …                                                      // all fields that the source knows
 *     if (selected) pasta_header_of(e)->flags |= pasta_probe_flags(pasta_probe_takes(e));
 */
typedef struct pasta_probe_decision {
    bool probed;
    bool missed; /* it would be probed, if it could */
    bool paused; /* operators are not followed, or briefly; see PASTA_FLAG_PAUSED */
    /* Change of the number of kernels, or of shapes of launches, in the launch's module that are still to be
     * probed: 1, 0 or -1.  While none is, a module needs no patches. */
    int8_t wanted;
    uint32_t shape; /* for pasta_probe_counted; absent: all ones */
} pasta_probe_decision;

/* Of the record of a launch. */
static inline pasta_flags pasta_probe_flags(pasta_probe_decision d) {
    return (pasta_flags)((d.probed ? PASTA_FLAG_PROBED : 0) | (d.paused ? PASTA_FLAG_PAUSED : 0));
}

/* Whether -k and --exclude select a kernel: by its symbol, and demangled. `name`: its id. */
bool pasta_probe_selects(uint32_t name, const char *symbol);
/* Whether a selected launch is probed: skip and count, windows, every N-th of its kernel, enough of its shape.
 * Called once for a launch: it counts. */
pasta_probe_decision pasta_probe_takes(const pasta_kernel_launch *launch);
/* The same, of a launch that can be probed only if `able`. */
pasta_probe_decision pasta_probe_takes_if(const pasta_kernel_launch *launch, bool able);
/* Predicts whether `takes` will probe a launch, without counting it. While other threads launch, too, the ordinal is not
 * certain: true if any of the next, or last, `others` would do. With a budget, this may open a window. */
bool pasta_probe_would_take(const pasta_kernel_launch *launch, uint32_t others);
/* What probes counted in a launch of this shape, an amount that tells launches which did the same from others.
 * Shapes whose launches differ are probed more often.  May wait for another such call. */
void pasta_probe_counted(uint32_t shape, uint64_t amount);
/* Whether a window is open at this launch; asking again changes nothing. */
bool pasta_probe_wanted(uint64_t ordinal);
bool pasta_probe_always(void); /* every launch is probed, whatever its kernel */
/* After many launches that were not due a source may rest, if this is true: it stops to ask in advance, and its launches are not
 * probed. Decisions on them are put off (`put_off` in place of `takes_if`) and made many at a time; `settled` gets them, on the
 * thread of the launches. One that is `missed` should end the rest. */
bool pasta_probe_rests(void);
pasta_flags pasta_probe_put_off(const pasta_kernel_launch *launch);
void pasta_probe_on_settled(void (*settled)(uint64_t ordinal, uint64_t module, pasta_probe_decision decision));
/* Whether returns of launch calls are recorded. Sampled launches have none unless something reads them. */
bool pasta_probe_records_returns(void);
/* The host has waited for the device: an overhead budget takes the program's time from wait to wait. */
void pasta_probe_waited(void);
/* Probes are patches of modules; the first change of a module's patches while the program runs may take that long. */
void pasta_probe_patches(uint64_t first_ns);
/* A step of the program begins (pasta.step()); so it does with ranges of some names. */
void pasta_probe_step(void);
/* A range of the whole process, which may overlap others; `id` is unique in it. */
void pasta_probe_range_start(uint64_t id, uint32_t name);
void pasta_probe_range_end(uint64_t id);
/* Ranges that nest on a stack of this thread: the outermost one whose name matches is a step. */
void pasta_probe_range_push(uint64_t stack, uint32_t name);
void pasta_probe_range_pop(uint64_t stack);
#define PASTA_RANGE_STACK(origin, domain) ((uint64_t)(origin) << 32 | (domain))

/* Opens a file for appending beside this process's ring, named as the ring with `suffix`. -1: see errno. */
int pasta_open_beside(const char *suffix);
bool pasta_write_all(int fd, const void *bytes, size_t length); /* retries after signals */

/* A fresh correlation id (from 1) and launch ordinal (from 0) of this process. */
uint64_t pasta_next_correlation(void);
uint64_t pasta_next_launch(void);
uint64_t pasta_coming_launch(void); /* the ordinal that the next launch gets, if no other thread takes it */
/* Launches whose ordinals this thread assigned since its last mark. */
typedef struct pasta_launch_range {
    uint64_t first; /* undefined if there were none */
    uint32_t count;
} pasta_launch_range;
void pasta_launches_mark(void);
pasta_launch_range pasta_launches_since_mark(void);
uint64_t pasta_now(void); /* CLOCK_MONOTONIC, ns */

/* Incremented in the child of a fork, which invalidates per-thread and per-process caches. */
uint32_t pasta_generation(void);

/* The tap of a framework's hooks, or NULL (pasta_framework.h). */
extern void (*pasta_tapped)(const pasta_header *record);

static inline void pasta_publish(void *payload) {
    pasta_header *h = pasta_header_of(payload);
    void (*tapped)(const pasta_header *) = __atomic_load_n(&pasta_tapped, __ATOMIC_RELAXED);
    if (PASTA_UNLIKELY(tapped != NULL)) tapped(h); /* first: the consumer may release published memory */
    /* pasta_begin stored the busy mark, the complement of the commit value. */
    uint32_t busy = __atomic_load_n(&h->commit, __ATOMIC_RELAXED);
    __atomic_store_n(&h->commit, ~busy, __ATOMIC_RELEASE);
}

/* ---- memory accesses (trace.c) ---- */

/* Opens this process's trace, PID-SEQUENCE.trace beside its ring; cheap to repeat.  False, with one line
 * for the user, where that fails. */
bool pasta_trace_open(void);
pasta_trace *pasta_trace_mine(void); /* or NULL */

/* State of a thread that writes accesses; initially zero, and needs no cleanup. */
typedef struct pasta_trace_writer {
    pasta_chunk *chunk; /* being filled; NULL: none */
    uint8_t *data;      /* of the chunk */
    uint64_t number;    /* of the chunk; kept while its place is not free */
    uint64_t state;     /* of the chunk after this writer's last change */
    uint32_t generation;
    bool numbered;
} pasta_trace_writer;

/* Reserve `bytes` (rounded up to a multiple of 8) for a record; NULL without a trace, or when it is full
 * and its consumer is gone (counted).  Waits while the trace is full: not for threads of the target. */
void *pasta_trace_begin(pasta_trace_writer *w, size_t bytes);
/* After pasta_trace_begin returned NULL: the launch (ordinal) whose access was lost, for records over which
 * probes are yet to run. */
void pasta_trace_lost(uint64_t launch);
/* Whether the trace has a consumer, or one may still start. */
bool pasta_trace_is_consumed(uint64_t now);
/* Makes the record visible to the consumer. */
static inline void pasta_trace_commit(pasta_trace_writer *w) {
    __atomic_store_n(&w->chunk->committed, (uint32_t)w->state, __ATOMIC_RELEASE);
}

#ifdef PASTA_INSIDE
#pragma GCC visibility pop
#endif

#endif
