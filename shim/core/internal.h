/* Between the files of core, python and frameworks only.
 *
 * Order of the core's files, lowest first (a file calls only those before it):
 * config, hash, process, environment, cpython, observers, interpose · sandbox · say, processes, loadable · exec, ring ·
 * strings · objects, cfi, python_objects · python_frames · unwind · select, images · scope, shapes, budget · call_paths · windows,
 * life · trace, block. */
#ifndef PASTA_INTERNAL_H
#define PASTA_INTERNAL_H

#include <signal.h>
#include <time.h>

#include "../include/pasta_source.h"

/* A part of the library that is loaded into wanted processes (shim/load.c): a backend, a framework, … */
typedef struct pasta_component {
    const char *name;
    void (*load)(void);
    bool late; /* also loaded where the program itself opens PASTA (pasta.profile) */
} pasta_component;

/* ---- config.c ---- */
void pasta_config_load(void);
const char *pasta_session(void); /* directory of the session, or NULL */
void pasta_config_forked(void);
/* The first `length` of each `period`: seconds in ns. */
typedef struct pasta_window {
    uint64_t length, period;
} pasta_window;
/* A window in a unit ("steps"); its period is 0 without one, or in another unit. */
pasta_window pasta_config_window(const char *key, const char *unit);

/* ---- process.c ---- */
extern uint32_t *pasta_fork_page; /* 1 in the process that wrote it, 0 in its forks */
/* True in the process that opened the ring; false in the child of a fork until it opens its own. */
static inline bool pasta_same_process(void) { return __atomic_load_n(pasta_fork_page, __ATOMIC_ACQUIRE) != 0; }
void pasta_after_fork(void);
extern uint32_t pasta_generation_number; /* of pasta_generation */
/* From now on forks are noticed: `forked` runs in the child, before anything else is recorded there. */
void pasta_process_load(void (*forked)(void));

/* ---- ring.c: the producers' side ---- */
/* Creates and maps the ring file of this process; NULL with a message in `why`. */
pasta_ring *pasta_ring_create(char *why, size_t why_size);
void pasta_ring_forget(void); /* in the child of a fork: unmap the parent's ring */
extern pasta_ring *pasta_ring_opened; /* NULL until then; never unmapped while threads may hold records */
static inline pasta_ring *pasta_ring_mine(void) { return __atomic_load_n(&pasta_ring_opened, __ATOMIC_ACQUIRE); }
const char *pasta_ring_path(void);
void pasta_ring_stop(bool stopped);
/* As pasta_begin_on, but the caller writes every field. */
void *pasta_reserve_on(uint32_t thread, pasta_event_kind kind, uint8_t slots, int16_t device);
bool pasta_ring_stopped(void);
void pasta_ring_restart_counters(void);
void pasta_ring_back_all(void); /* backs all segments, as far as the file system has free memory */
/* Backs the arena of strings up to `end`; false when full. */
bool pasta_ring_commit_arena(pasta_ring *r, uint64_t end);

/* ---- profiling.c ---- */
void pasta_profiling_begin(void); /* before there is a ring */
void pasta_profiling_start(bool on, uint32_t origin); /* of pasta_profiling_set, in a ring */
void pasta_profiling_limit(void); /* from now on, by time: run.duration and run.window */
void pasta_profiling_step(uint64_t number);
/* Starts profiling for a block, outside of windows too; whether it was started before, which `release` restores. */
bool pasta_profiling_hold(void);
void pasta_profiling_release(bool started);

/* ---- strings.c ---- */
const char *pasta_interned(uint32_t id, size_t *length); /* text without a NUL, or NULL */

/* ---- sandbox.c ---- */
/* True once this process restricted its system calls: make no avoidable one any more. */
bool pasta_is_sandboxed(void);
/* CLOCK_MONOTONIC, or its last tick: strict mode also forbids reading the processor's counter (x86). */
clockid_t pasta_clock(void);
/* `restricting` runs while system calls are still allowed; `every_thread` will be restricted, or only the caller. */
void pasta_sandbox_load(void (*restricting)(bool every_thread));

/* ---- loadable.c ---- */
/* True where a program, or its interpreter, would not start with this library preloaded. */
bool pasta_refuses_preload(int directory, const char *path);
bool pasta_refuses_preload_in_path(const char *file); /* found as execvp finds it */
bool pasta_refuses_preload_fd(int fd);
bool pasta_must_come_first(const char *library); /* by its name */

/* ---- exec.c ---- */
void pasta_exec_load(void);
/* Sets the variable by which a vendor's runtime loads one library to this one.  If it names another, the log
 * says so, with the consequence: "nothing is recorded". */
void pasta_inject(const char *source, const char *variable, const char *consequence);

/* ---- select.c ---- */
bool pasta_select_configure(void); /* true: it can reject kernels */
bool pasta_select_kernel(uint32_t name, const char *symbol); /* by -k and --exclude */
typedef enum pasta_selection {
    PASTA_SELECT_KERNEL, /* with EXCLUDE: pasta_select_kernel */
    PASTA_SELECT_EXCLUDE,
    PASTA_SELECT_STEP, /* ranges that are steps: whole names */
    PASTA_SELECT_RANGE,
    PASTA_SELECT_OPERATOR,
    PASTA_SELECT_MODULE, /* of a framework */
    PASTA_SELECTIONS,
} pasta_selection;
bool pasta_select_asks(pasta_selection selection); /* an expression was given */
bool pasta_select_matches(pasta_selection selection, uint32_t name); /* by an interned text */
uint32_t pasta_select_launched(uint32_t name); /* number of earlier calls for this kernel */
uint32_t pasta_select_count(uint32_t name);    /* the same, not counted as a call */

/* ---- windows.c ---- */
void pasta_probe_configure(void); /* reads the configuration, as the first launch or range would */

/* ---- scope.c: what is open around launches ---- */
/* True: launches are selected by it. `operators`: they are followed in any case; `pauses`: but not while none of them
 * is needed, if nothing is selected by them. */
bool pasta_scope_configure(bool operators, bool pauses);
/* Ranges: nested on a stack of this thread, or of the whole process. */
void pasta_scope_push(uint64_t stack, uint32_t name);
void pasta_scope_pop(uint64_t stack);
void pasta_scope_start(uint64_t id, uint32_t name);
void pasta_scope_end(uint64_t id);
/* Operators of a framework, nested on this thread; called unless `follows_operators` is 0. */
extern uint32_t pasta_scope_follows_operators;
void pasta_scope_operator_begins(const pasta_operator_begin *begin);
void pasta_scope_operator_ends(void);
bool pasta_scope_fits(bool in_graph);
/* This thread's innermost operator, 0: none; `unknown`: operators are not followed, or were not when those that are open
 * began. */
typedef struct pasta_scope {
    uint32_t operator; /* name */
    bool unknown;
} pasta_scope;
pasta_scope pasta_scope_here(void);
/* The framework pauses and resumes by this function, which may run in any callback and must not wait; false: not now. */
void pasta_scope_on_pause(bool (*change)(bool paused));
bool pasta_scope_pauses(void); /* at times */
/* Whether operators are followed briefly: it does not tell how often each of them launches. */
bool pasta_scope_is_brief(void);
/* How long operators are followed because of a launch. */
typedef enum {
    PASTA_FOLLOW_NOT,     /* it needs none */
    PASTA_FOLLOW,         /* until none was needed for a while */
    PASTA_FOLLOW_BRIEFLY, /* until the launches that are due have come, */
    PASTA_FOLLOW_ENOUGH,  /* which they have with this one */
} pasta_follow;
void pasta_scope_launched(uint64_t ordinal, pasta_follow need, bool unknown);
void pasta_capture_begins(void); /* of a graph, whose nodes belong to operators: they are followed */

/* ---- environment.c ---- */
void pasta_environment_load(void);
/* Calls `take` with each "NAME=value" of the current environment; with none where the program calls
 * another setenv, since other threads may then change it during a read. */
void pasta_environment_each(void (*take)(void *into, const char *entry), void *into);

/* ---- life.c ---- */
/* Where Python runs. */
typedef struct pasta_consumer {
    void (*start)(bool after_fork);
    void (*forget)(void); /* in the child of a fork: the consumer is the parent's */
    void (*finish)(void); /* bounded wait for the embedded consumer */
    /* Before the process restricts itself: the embedded consumer hands over to a collector;
     * `every_thread`: the consumer's thread would be restricted too, and is gone on return. */
    void (*leave)(bool every_thread);
} pasta_consumer;

/* Reads the configuration and registers the process with its session. */
void pasta_life_load(const pasta_consumer *consumer);
bool pasta_is_late(void); /* the program opens PASTA itself (pasta.profile) */

/* ---- say.c ---- */
void pasta_say_keep_stderr(void);
/* Logs the line `subject` `text`, once in a session.  For small stacks: printf alone takes kilobytes. */
void pasta_log_once(const char *subject, const char *text);
/* Between hold and restore, a write beyond a limit of the target (SIGXFSZ) or to a closed pipe
 * (SIGPIPE) gives an error instead of the signal. */
typedef struct {
    sigset_t mask, pending;
} pasta_signals;
void pasta_signals_hold(pasta_signals *held);
void pasta_signals_restore(const pasta_signals *held);

/* ---- call_paths.c ---- */
typedef void pasta_tap_function(const pasta_header *record);
void pasta_tap_set(pasta_tap_function *tap); /* of a framework's hooks; NULL: none */
/* When a source is first used; `program`: id of the program's path. */
void pasta_call_paths_begin(uint32_t program);
void pasta_call_paths_forget(void); /* in the child of a fork */

/* ---- processes.c: processes of the session ---- */
void pasta_register_process(bool forked);
uint64_t pasta_registration(void);

/* ---- observers.c: between frameworks and backends ---- */
/* Blocks that have begun in this process. What is recorded once for its readers is recorded again in each. */
extern uint32_t pasta_blocks;
/* A framework's allocator hands out `bytes` of device memory. */
void pasta_tensor_allocated(uint64_t address, uint64_t bytes);
extern bool pasta_follow_captures; /* set by a framework: backends record the nodes of graphs at their capture */
extern uint32_t pasta_capturing;   /* graphs that are being captured */
void pasta_on_capture(void (*observe)(void)); /* set by a backend before it increments `pasta_capturing` */
void pasta_captured(void); /* records new nodes, on the thread whose operator added them */

/* ---- tensors.c ---- */
/* A tensor_alloc or tensor_free; false where nothing is recorded. */
bool pasta_tensor_publish(pasta_event_kind kind, int16_t device, const pasta_tensor_memory *tensor);
/* A tensor in device memory; true: its record, and pasta_tensor_allocated, come later. */
bool pasta_tensor_put_off(int16_t device, const pasta_tensor_memory *tensor);
bool pasta_tensor_forget(uint64_t address); /* it is freed; true: its record was put off, so that it needs none */

enum { PASTA_RANGE_FIELDS = 3 };
/* Reads the nested ranges of one NVTX domain, by which a framework's runtime names its own work.  Called on the thread
 * of the range; its ranges are recorded as any others where `push` returns false. */
typedef struct pasta_range_reader {
    const char *domain;
    const char *fields[PASTA_RANGE_FIELDS]; /* names of texts in the payloads of ranges */
    /* The part of a text that the runtime registers which is kept as a range's name or field; NULL: none. */
    const char *(*part)(const char *text, size_t *length);
    /* Each range that begins.  `fields`: texts of the payload, NULL where it has none.  `*kept`: a word for the reader, of
     * this registered name; NULL where the name, which may be NULL too, is not registered. */
    bool (*push)(const char *name, const char *const *fields, void **kept);
    bool (*pop)(void); /* whether the range that ends was taken */
} pasta_range_reader;
void pasta_read_ranges(const pasta_range_reader *reader); /* one, when the library is loaded */
const pasta_range_reader *pasta_range_reader_of(const char *domain, size_t length); /* NULL: none */

/* ---- interpose.c ---- */
/* The function `name` of the library that contains `caller` or of those that it links to; otherwise the next one. */
void *pasta_next_symbol(const char *name, void *caller);

/* Declares `call`, the function `name` that is interposed here; NULL where it is gone. */
#define PASTA_NEXT(type, name)                                                 \
    static type *next;                                                         \
    type *call = __atomic_load_n(&next, __ATOMIC_RELAXED);                     \
    if (PASTA_UNLIKELY(!call)) {                                               \
        *(void **)&call = pasta_next_symbol(name, __builtin_return_address(0)); \
        __atomic_store_n(&next, call, __ATOMIC_RELAXED);                       \
    }

#endif
