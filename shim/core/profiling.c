/* Whether profiling is on: it was started, a recording window (run.window) is open and run.duration is not over. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "internal.h"

enum { STARTED = 1, OPEN = 2, HELD = 4, OVER = 8 }; /* HELD: in a block, whatever window is open; OVER: for good */
static uint32_t state;

static pasta_window of_time, of_steps; /* that are recorded: ns, steps */

enum { MAX_CHANGED = 8 };
static void (*profiling_changed[MAX_CHANGED])(bool on);

void pasta_on_profiling(void (*changed)(bool on)) {
    for (int i = 0; i < MAX_CHANGED; i++) {
        void (*none)(bool) = NULL;
        if (__atomic_compare_exchange_n(&profiling_changed[i], &none, changed, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ||
            none == changed)
            return;
    }
    pasta_log("too many profiling hooks");
}

static bool is_on(uint32_t bits) { return bits & STARTED && bits & (OPEN | HELD) && !(bits & OVER); }

/* Nothing is recorded between the record of a stop and that of the next start, except what was in progress at the stop. */
static void announce(bool on, uint32_t origin) {
    if (!on) pasta_ring_stop(true);
    pasta_profiling *e = on ? PASTA_BEGIN_AS(profiling_start, profiling, PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM)
                            : PASTA_BEGIN_AS(profiling_stop, profiling, PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (e) {
        e->origin = origin;
        pasta_publish(e);
    }
    if (on) pasta_ring_stop(false);
    for (int i = 0; i < MAX_CHANGED; i++) {
        void (*changed)(bool) = __atomic_load_n(&profiling_changed[i], __ATOMIC_ACQUIRE);
        if (changed) changed(on);
    }
}

/* Returns the bits before. Without a lock: a thread may be in a callback, with locks of the vendor's library. Where two
 * threads switch at a time, the one that announces last repeats what holds by then. */
static uint32_t change(uint32_t set, uint32_t clear, uint32_t origin) {
    if (!pasta_same_process() || !pasta_ring_mine()) return 0;
    uint32_t before = __atomic_load_n(&state, __ATOMIC_RELAXED), after;
    do after = (before & ~clear) | set;
    while (!__atomic_compare_exchange_n(&state, &before, after, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
    for (bool was = is_on(before), on = is_on(after); was != on; on = is_on(__atomic_load_n(&state, __ATOMIC_ACQUIRE))) {
        announce(on, origin);
        was = on;
    }
    return before;
}

void pasta_profiling_start(bool on, uint32_t origin) { change(on ? STARTED : 0, on ? 0 : STARTED, origin); }
bool pasta_profiling_is_on(void) { return !pasta_ring_stopped(); }
bool pasta_profiling_hold(void) { return change(STARTED | HELD, 0, PASTA_ORIGIN_api) & STARTED; }
void pasta_profiling_release(bool started) { change(started ? STARTED : 0, HELD | (started ? 0 : STARTED), PASTA_ORIGIN_api); }

static void open_window(bool open) { change(open ? OPEN : 0, open ? 0 : OPEN, PASTA_ORIGIN_window); }

void pasta_profiling_step(uint64_t number) {
    if (of_steps.period) open_window(number % of_steps.period < of_steps.length);
}

/* ---- configuration ---- */

void pasta_profiling_begin(void) {
    of_time = pasta_config_window("window", "seconds");
    of_steps = pasta_config_window("window", "steps");
    __atomic_store_n(&state, OPEN | (pasta_config_u64("start", 1) ? STARTED : 0), __ATOMIC_RELEASE);
    pasta_ring_stop(!is_on(state));
}

/* ---- time ---- */

/* Waits until a time of the monotonic clock, at most until `end`; false: that was earlier. */
static bool wait_until(uint64_t time, uint64_t end) {
    uint64_t at = time < end ? time : end;
    struct timespec when = {(time_t)(at / 1000000000), (long)(at % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) == EINTR) continue;
    return time < end;
}

static void *keep_time(void *unused) {
    (void)unused;
    uint64_t milliseconds = pasta_config_u64("duration_ms", 0), begun = pasta_now(), next;
    uint64_t end = milliseconds ? begun + milliseconds * 1000000 : INT64_MAX;
    pasta_window w = of_time.period ? of_time : (pasta_window){INT64_MAX, INT64_MAX};
    pthread_setname_np(pthread_self(), "pasta-duration");
    do { /* a process may have been stopped for several periods */
        uint64_t time = pasta_now(), into = (time - begun) % w.period;
        open_window(into < w.length);
        next = time - into + (into < w.length ? w.length : w.period);
    } while (wait_until(next, end));
    change(OVER, 0, PASTA_ORIGIN_limit);
    return NULL;
}

void pasta_profiling_limit(void) {
    if (!pasta_config_u64("duration_ms", 0) && !of_time.period) return;
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, keep_time, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) pthread_detach(thread);
    else pasta_say("run.duration and run.window have no effect: cannot create a thread (%s)", strerror(error));
}
