/* The time of records: CLOCK_MONOTONIC, read through the processor's time stamp counter.
 *
 * Where the kernel itself keeps time by that counter (x86, clocksource tsc), it advances at one rate on all
 * processors.  A time is then that of the last reading of the clock and of the ticks since, at most WINDOW_NS: the
 * rate is known to 10⁻⁴ after a millisecond and to 10⁻⁷ after a second, so times are right to nanoseconds.  Reading the
 * counter takes 10 ns, the clock 20 to 40. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"

static uint64_t read_clock(void) {
    struct timespec t;
    clock_gettime(pasta_clock(), &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#ifdef __x86_64__

#define FIRST_SPAN_NS (UINT64_C(1) << 20) /* over which the rate is measured first; then over twice that, … */
#define LAST_SPAN_NS (UINT64_C(1) << 30)

enum {
    WINDOW_NS = 50000, /* for which a reading of the clock is used */
    MOST_TICKS = 4000, /* of a reading that nothing interrupted */
    MOST_WAITS = 100,  /* for a thread that reads the clock, which may have been interrupted */
};

struct pasta_clock_base pasta_clock_base;

#define BASE(field) __atomic_load_n(&pasta_clock_base.field, __ATOMIC_RELAXED)
#define SET_BASE(field, value) __atomic_store_n(&pasta_clock_base.field, value, __ATOMIC_RELEASE)

static void set_scale(uint64_t scale) {
    SET_BASE(scale, scale);
    SET_BASE(window, scale && BASE(usable) ? ((uint64_t)WINDOW_NS << PASTA_SCALE_BITS) / scale : 0);
}

static void start_measuring(uint64_t ticks, uint64_t time, uint64_t span) {
    SET_BASE(first_ticks, ticks);
    SET_BASE(first_time, time);
    SET_BASE(span, span);
}

/* Measures the rate by a further reading of the clock. */
static void measure(uint64_t ticks, uint64_t time) {
    uint64_t since = BASE(first_time), span = BASE(span), before = BASE(scale);
    uint64_t took = time - since, passed = ticks - BASE(first_ticks);
    if (since && took < span) return;
    if (!since || took >= 2 * LAST_SPAN_NS || passed <= took / 16 || passed >= took * 16) { /* no records for long */
        start_measuring(ticks, time, span);
        return;
    }
    uint64_t scale = (uint64_t)(((__uint128_t)took << PASTA_SCALE_BITS) / passed);
    uint64_t change = scale > before ? scale - before : before - scale;
    if (before && change > before / 1000) SET_BASE(usable, false); /* another machine, or it slept */
    set_scale(scale);
    if (span < LAST_SPAN_NS)
        SET_BASE(span, 2 * span);
    else
        start_measuring(ticks, time, span);
}

static __attribute__((noinline)) uint64_t read_both(void) {
    uint32_t version = BASE(version);
    for (int i = 0; version & 1 && i < MOST_WAITS; i++) {
        uint64_t time = pasta_extrapolate();
        if (time) return time;
        version = BASE(version);
    }
    if (version & 1 || !__atomic_compare_exchange_n(&pasta_clock_base.version, &version, version + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return read_clock();
    uint64_t before = __builtin_ia32_rdtsc(), time = read_clock(), after = __builtin_ia32_rdtsc();
    uint64_t ticks = before + (after - before) / 2, passed = ticks - BASE(ticks), window = BASE(window);
    if (window) { /* no thread was given a later time than this one */
        uint64_t latest = BASE(time) + (passed < window ? pasta_ns_of(passed, BASE(scale)) : WINDOW_NS);
        if (time < latest && latest - time < WINDOW_NS) time = latest;
    }
    if (after - before < MOST_TICKS) {
        measure(ticks, time);
        SET_BASE(ticks, ticks);
        SET_BASE(time, time);
    }
    SET_BASE(version, version + 2);
    return time;
}

uint64_t pasta_now(void) {
    uint64_t time = pasta_extrapolate();
    if (PASTA_LIKELY(time != 0)) return time;
    return BASE(usable) ? read_both() : read_clock();
}

/* Whether the kernel keeps time by the counter: then it found it to be the same on all processors. */
static bool kernel_uses_counter(void) {
    char text[8] = "";
    int fd = open("/sys/devices/system/clocksource/clocksource0/current_clocksource", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t length = read(fd, text, sizeof text);
    close(fd);
    return length == 4 && memcmp(text, "tsc\n", 4) == 0;
}

void pasta_clock_load(void) {
    bool usable = !pasta_is_sandboxed() && kernel_uses_counter();
    SET_BASE(usable, false);
    set_scale(0);
    start_measuring(0, 0, FIRST_SPAN_NS);
    SET_BASE(version, 0); /* in the child of a fork, a thread of the parent's may have been changing it */
    SET_BASE(usable, usable);
}

void pasta_clock_stop(void) {
    SET_BASE(usable, false);
    SET_BASE(window, 0);
}

#else

struct pasta_clock_base pasta_clock_base;

uint64_t pasta_now(void) { return read_clock(); }
void pasta_clock_load(void) {}
void pasta_clock_stop(void) {}

#endif
