/* What an event source may call.  One prefix, no dependency beyond libc.
 *
 * A source is a file in shim/sources/ that turns vendor callbacks into records:
 *
 *     static void on_memset(const vendor_memset *m) {
 *         pasta_memory_set *e = PASTA_BEGIN(memory_set, device_of(m), context_of(m), m->stream);
 *         if (!e) return;             // stopped, excluded, or the ring is at its cap: counted
 *         e->address = m->address;
 *         …
 *         pasta_publish(e);
 *     }
 *
 * PASTA_BEGIN fills the header and sets every payload byte to all ones (absent); nothing here but
 * pasta_trace_* makes a system call or waits, and nothing calls Python.
 */
#ifndef PASTA_CORE_H
#define PASTA_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../include/pasta_abi.h"
#include "../include/pasta_trace.h"

#define PASTA_LIKELY(x) __builtin_expect(!!(x), 1)
#define PASTA_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define PASTA_EXPORT __attribute__((visibility("default")))

#define PASTA_NO_DEVICE PASTA_ABSENT_DEVICE
#define PASTA_NO_CONTEXT PASTA_ABSENT_U16
#define PASTA_NO_STREAM PASTA_ABSENT_U64

/* A source in a library of its own (libpasta_amd.so) calls libpasta.so's core.  Protected: within
 * libpasta.so calls stay direct, and nothing in the target comes between. */
#ifndef PASTA_OUTSIDE
#pragma GCC visibility push(protected)
#endif

/* ---- configuration (config.c): what the launcher asked for, read once ---- */

/* True in a process that the launcher wants profiled (false: no session, --no-children, …). */
bool pasta_wanted(void);
/* Value of a key of the launcher's configuration, or NULL. Valid for ever. */
const char *pasta_config(const char *key);
uint64_t pasta_config_u64(const char *key, uint64_t otherwise);
/* True where events of a backend are wanted (--backend): "nvidia", "amd" or "refacc". */
bool pasta_listens_to(const char *backend);

/* ---- messages (say.c) ---- */

/* One line "pasta: …" on the target's original stderr, once for each distinct text of this process. */
void pasta_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* One line in the session's log only. */
void pasta_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- process life (life.c) ---- */

/* A source calls this when the target begins to use its accelerator or framework: opens this
 * process's ring if need be, publishes process_start, and has a consumer started.  Cheap to
 * call again.  Returns false where nothing is to be recorded (the source should then not
 * subscribe, or ignore its callbacks). Never waits for Python. */
bool pasta_use(const char *source, const char *version);
/* Opens the ring for annotations only: no consumer, no run directory, unless pasta_use follows. */
bool pasta_open(void);
/* Starts or stops the publication of kinds whose `keep` is 0. */
void pasta_profiling_set(bool on, uint32_t origin);
bool pasta_profiling_is_on(void);
/* Has `changed` called when profiling starts or stops, by the thread that does it; the last one given. */
void pasta_on_profiling(void (*changed)(bool on));

/* ---- publishing (ring.c) ---- */

/* Payload of a new record, or NULL: no ring, stopped, or at the cap (counted per kind). */
void *pasta_begin(pasta_event_kind kind, uint8_t slots, int16_t device, uint16_t context, uint64_t stream);
/* The same where the thread's id is at hand: finding it takes a call. */
void *pasta_begin_on(uint32_t thread, pasta_event_kind kind, uint8_t slots, int16_t device, uint16_t context,
                     uint64_t stream);
/* Makes a record visible to the consumer. */
static inline void pasta_publish(void *payload);

#define PASTA_SLOTS(type) ((uint8_t)((sizeof(pasta_header) + sizeof(type)) / PASTA_SLOT))
/* PASTA_BEGIN(memory_set, …) has the payload's type: for kinds named as their payload. */
#define PASTA_BEGIN(name, device, context, stream) PASTA_BEGIN_AS(name, name, device, context, stream)
/* PASTA_BEGIN_AS(memory_free, memory, …): kind, payload. */
#define PASTA_BEGIN_AS(kind, payload, device, context, stream)                             \
    ((pasta_##payload *)pasta_begin(PASTA_EVENT_##kind, PASTA_SLOTS(pasta_##payload), (int16_t)(device), \
                                    (uint16_t)(context), (uint64_t)(stream)))

static inline pasta_header *pasta_header_of(void *payload) { return (pasta_header *)payload - 1; }

/* Id of a string: equal strings of one process have equal ids; 0 when the arena is full.
 * Lock-free; costs a hash of the string, so cache the id where the string is known. */
uint32_t pasta_intern(const char *text, size_t length);
uint32_t pasta_intern_z(const char *text); /* NUL-terminated; NULL gives 0 */
/* 64-bit FNV-1a over 8-byte words (tail bytes zero-extended): the content hash of modules. */
uint64_t pasta_hash(const void *bytes, size_t length);

/* Keeps a module's image in the run, once per content, if the user asked for that. */
void pasta_keep_image(uint64_t hash, const void *image, size_t bytes);

/* ---- which launches are probed (windows.c, select.c): no locks, no system call but the clock ----
 *
 * Of each launch, while profiling is on, a source asks
 *
 *     bool selected = pasta_probe_selects(name, symbol);     // before PASTA_BEGIN: long, the first time
 *     pasta_kernel_launch *e = PASTA_BEGIN(kernel_launch, …);
 *     …
 *     bool probed = selected && pasta_probe_takes(ordinal, name); // once: it counts
 *     if (probed) pasta_header_of(e)->flags |= PASTA_FLAG_PROBED;
 */

/* Whether -k and --exclude select a kernel: by its symbol, and demangled. `name`: its id. */
bool pasta_probe_selects(uint32_t name, const char *symbol);
/* Whether a selected launch is probed: skip and count, windows, every N-th of its kernel. */
bool pasta_probe_takes(uint64_t ordinal, uint32_t name);
/* Whether a window is open at this launch; asking again changes nothing. */
bool pasta_probe_wanted(uint64_t ordinal);
bool pasta_probe_always(void); /* there are no windows: it is open for ever */
/* How often launches have found a window opened or closed: patches are to be put in or taken out. */
uint32_t pasta_probe_window_changes(void);
/* A step of the program begins (pasta.step()); so it does with ranges of some names. */
void pasta_probe_step(void);
void pasta_probe_range(uint32_t name); /* one that may overlap others: it has a start and an end */
/* Ranges that nest, on a stack of this thread: of those whose names match, the outermost is a step. */
void pasta_probe_range_push(uint64_t stack, uint32_t name);
void pasta_probe_range_pop(uint64_t stack);
#define PASTA_RANGE_STACK(origin, domain) ((uint64_t)(origin) << 32 | (domain))

/* Opens a file for appending beside this process's ring, named as the ring with `suffix`. -1: see errno. */
int pasta_open_beside(const char *suffix);
bool pasta_write_all(int fd, const void *bytes, size_t length); /* goes on after signals */

/* A fresh correlation id (from 1) and launch ordinal (from 0) of this process. */
uint64_t pasta_next_correlation(void);
uint64_t pasta_next_launch(void);
uint64_t pasta_now(void); /* CLOCK_MONOTONIC, ns */

/* Counts up in the child of a fork, so that per-thread and per-process caches can see that
 * they belong to another process. */
uint32_t pasta_generation(void);

/* What a framework's hooks see records by, or NULL (pasta_framework.h). */
extern void (*pasta_tapped)(const pasta_header *record);

/* commit value of the record at `payload`, set aside by pasta_begin in header.commit's place */
static inline void pasta_publish(void *payload) {
    pasta_header *h = pasta_header_of(payload);
    void (*tapped)(const pasta_header *) = __atomic_load_n(&pasta_tapped, __ATOMIC_RELAXED);
    if (PASTA_UNLIKELY(tapped != NULL)) tapped(h); /* before the consumer may give its memory back */
    /* pasta_begin left the busy mark (commit's complement); the complement of that publishes. */
    uint32_t busy = __atomic_load_n(&h->commit, __ATOMIC_RELAXED);
    __atomic_store_n(&h->commit, ~busy, __ATOMIC_RELEASE);
}

/* ---- memory accesses (trace.c) ---- */

/* Opens this process's trace, PID-SEQUENCE.trace beside its ring; cheap to call again.  False, said
 * once, where there is none. */
bool pasta_trace_open(void);
pasta_trace *pasta_trace_mine(void); /* or NULL */

/* What a thread that writes accesses has, zero at first; nothing is to be given back at its end. */
typedef struct pasta_trace_writer {
    pasta_chunk *chunk; /* that it fills; NULL: none */
    uint8_t *data;      /* of the chunk */
    uint64_t number;    /* of the chunk; kept while its place is not free */
    uint64_t state;     /* of the chunk, as this writer left it */
    uint32_t generation;
    bool numbered;
} pasta_trace_writer;

/* Room for a record of so many bytes (rounded up to a multiple of 8), or NULL: no trace, or nobody
 * consumes it (counted).  Waits while the trace is full, so not for threads of the target. */
void *pasta_trace_begin(pasta_trace_writer *w, size_t bytes);
/* Makes the record visible to the consumer. */
static inline void pasta_trace_commit(pasta_trace_writer *w) {
    __atomic_store_n(&w->chunk->committed, (uint32_t)w->state, __ATOMIC_RELEASE);
}

#ifndef PASTA_OUTSIDE
#pragma GCC visibility pop
#endif

/* ---- sources: called by life.c when the library is loaded into a wanted process ---- */
void pasta_refacc_source_load(void);
void pasta_nvidia_source_load(void);
void pasta_annotate_source_load(void);
void pasta_framework_source_load(void);

#endif
