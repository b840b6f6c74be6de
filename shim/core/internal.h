/* Between the files of core and python only. */
#ifndef PASTA_INTERNAL_H
#define PASTA_INTERNAL_H

#include <signal.h>
#include <time.h>

#include "core.h"

/* ---- config.c ---- */
void pasta_config_load(void);
const char *pasta_session(void); /* directory of the session, or NULL */
void pasta_config_forked(void);

/* ---- ring.c: the producers' side ---- */
/* Creates and maps the ring file of this process; NULL with a message in `why`. */
pasta_ring *pasta_ring_create(char *why, size_t why_size);
void pasta_ring_forget(void); /* in the child of a fork: unmap the parent's ring */
pasta_ring *pasta_ring_mine(void);
const char *pasta_ring_path(void);
void pasta_ring_stop(bool stopped);
bool pasta_ring_stopped(void);
void pasta_ring_restart_counters(void);
void pasta_ring_back_all(void); /* memory for all that may come, as far as there is room */

const char *pasta_interned(uint32_t id, size_t *length); /* text without a NUL, or NULL */

/* ---- sandbox.c ---- */
/* True once this process restricted its system calls: none may be made any more that it can do without. */
bool pasta_is_sandboxed(void);
/* CLOCK_MONOTONIC, or its last tick: strict mode takes the processor's counter from a thread too (x86). */
clockid_t pasta_clock(void);

/* ---- loadable.c ---- */
/* True where a program, or its interpreter, would not start as it does without our library preloaded. */
bool pasta_refuses_preload(int directory, const char *path);
bool pasta_refuses_preload_in_path(const char *file); /* found as execvp finds it */
bool pasta_refuses_preload_fd(int fd);

/* ---- windows.c, select.c ---- */
void pasta_probe_prepare(void); /* reads the configuration, once in a process */
void pasta_select_configure(void);
bool pasta_select_is_step(uint32_t name);
uint32_t pasta_select_launched(uint32_t name); /* how often it was called for the kernel before */

/* ---- environment.c ---- */
/* Calls `take` with each "NAME=value" of the environment as it is now; with none where the program's
 * setenv is not ours, since nothing may be read then while other threads change it. */
void pasta_environment_each(void (*take)(void *into, const char *entry), void *into);

/* ---- life.c ---- */
/* True in the process that opened the ring; false in the child of a fork until it opens its own. */
bool pasta_same_process(void);
void pasta_after_fork(void);
/* While system calls are still allowed: finds out what pasta_use will need, and has the exit handled. */
void pasta_prepare_for_sandbox(void);

/* ---- say.c ---- */
void pasta_say_keep_stderr(void);
/* Between the two, what exceeds a limit of the target (SIGXFSZ) or meets a closed pipe (SIGPIPE)
 * gives an error, and no signal that would end it. */
typedef struct {
    sigset_t mask, pending;
} pasta_signals;
void pasta_signals_hold(pasta_signals *held);
void pasta_signals_restore(const pasta_signals *held);

/* ---- processes.c: who belongs to the session ---- */
void pasta_register_process(bool forked);
uint64_t pasta_registration(void);

/* ---- start.c (shim/python): where Python runs ---- */
void pasta_consumer_start(bool after_fork);
void pasta_consumer_forget(void); /* in the child of a fork: the consumer is the parent's */
void pasta_consumer_finish(void); /* bounded wait for the embedded consumer */
/* Before the process restricts itself: the embedded consumer hands over, and a collector goes on;
 * `every_thread`: the consumer's thread would be restricted too, and is gone on return. */
void pasta_consumer_leave(bool every_thread);

#endif
