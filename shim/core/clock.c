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

#include "internal.h"

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
    SCALE_BITS = 32,
};

/* Of all threads; a thread that makes `version` odd may change the others. */
static struct {
    uint32_t version;
    bool usable;
    uint64_t ticks, time; /* at the last reading of the clock */
    uint64_t scale;       /* ns of 2³² ticks */
    uint64_t window;      /* ticks; 0: the rate is not known */
} base __attribute__((aligned(64)));

static uint64_t first_ticks, first_time, span; /* of the rate's measurement; with an odd version */

static uint64_t ns_of(uint64_t ticks, uint64_t scale) { return (uint64_t)((__uint128_t)ticks * scale >> SCALE_BITS); }

/* By the last reading of the clock; 0 where that is too old, or changes now. */
static inline uint64_t extrapolate(void) {
    uint32_t version = __atomic_load_n(&base.version, __ATOMIC_ACQUIRE);
    uint64_t window = __atomic_load_n(&base.window, __ATOMIC_ACQUIRE), scale = __atomic_load_n(&base.scale, __ATOMIC_ACQUIRE);
    uint64_t time = __atomic_load_n(&base.time, __ATOMIC_ACQUIRE);
    uint64_t passed = __builtin_ia32_rdtsc() - __atomic_load_n(&base.ticks, __ATOMIC_ACQUIRE);
    if (PASTA_UNLIKELY(passed >= window || version & 1)) return 0;
    return PASTA_LIKELY(__atomic_load_n(&base.version, __ATOMIC_RELAXED) == version) ? time + ns_of(passed, scale) : 0;
}

static void set_window(uint64_t scale) {
    uint64_t window = scale ? ((uint64_t)WINDOW_NS << SCALE_BITS) / scale : 0;
    __atomic_store_n(&base.scale, scale, __ATOMIC_RELEASE);
    __atomic_store_n(&base.window, window, __ATOMIC_RELEASE);
}

static void start_measuring(uint64_t ticks, uint64_t time, uint64_t over) {
    first_ticks = ticks;
    first_time = time;
    span = over;
}

/* Measures the rate by a further reading of the clock. */
static void measure(uint64_t ticks, uint64_t time) {
    uint64_t took = time - first_time, passed = ticks - first_ticks;
    if (took < span) return;
    if (took >= 2 * LAST_SPAN_NS || passed <= took / 16 || passed >= took * 16) { /* no records meanwhile; no such processor */
        start_measuring(ticks, time, span);
        return;
    }
    uint64_t scale = (uint64_t)(((__uint128_t)took << SCALE_BITS) / passed);
    uint64_t change = scale > base.scale ? scale - base.scale : base.scale - scale;
    if (base.scale && change > base.scale / 1000) { /* another machine, or it slept */
        __atomic_store_n(&base.usable, false, __ATOMIC_RELAXED);
        scale = 0;
    }
    set_window(scale);
    if (span < LAST_SPAN_NS)
        span *= 2;
    else
        start_measuring(ticks, time, span);
}

static __attribute__((noinline)) uint64_t read_both(void) {
    uint32_t version = __atomic_load_n(&base.version, __ATOMIC_RELAXED);
    for (int i = 0; version & 1 && i < MOST_WAITS; i++) {
        uint64_t time = extrapolate();
        if (time) return time;
        version = __atomic_load_n(&base.version, __ATOMIC_RELAXED);
    }
    if (version & 1 || !__atomic_compare_exchange_n(&base.version, &version, version + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return read_clock();
    uint64_t before = __builtin_ia32_rdtsc(), time = read_clock(), after = __builtin_ia32_rdtsc();
    uint64_t ticks = before + (after - before) / 2, passed = ticks - base.ticks;
    if (base.window) { /* no thread has a later time than this one */
        uint64_t least = base.time + (passed < base.window ? ns_of(passed, base.scale) : WINDOW_NS);
        if (time < least && least - time < WINDOW_NS) time = least;
    }
    if (after - before < MOST_TICKS) {
        if (!first_time) start_measuring(ticks, time, FIRST_SPAN_NS);
        measure(ticks, time);
        __atomic_store_n(&base.ticks, ticks, __ATOMIC_RELEASE);
        __atomic_store_n(&base.time, time, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&base.version, version + 2, __ATOMIC_RELEASE);
    return time;
}

uint64_t pasta_now(void) {
    uint64_t time = extrapolate();
    if (PASTA_LIKELY(time != 0)) return time;
    return __atomic_load_n(&base.usable, __ATOMIC_RELAXED) ? read_both() : read_clock();
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
    set_window(0);
    start_measuring(0, 0, FIRST_SPAN_NS);
    __atomic_store_n(&base.version, 0, __ATOMIC_RELEASE); /* in the child of a fork, a thread of the parent's may have changed it */
    __atomic_store_n(&base.usable, usable, __ATOMIC_RELEASE);
}

void pasta_clock_stop(void) {
    __atomic_store_n(&base.usable, false, __ATOMIC_RELEASE);
    __atomic_store_n(&base.window, 0, __ATOMIC_RELEASE);
}

#else

uint64_t pasta_now(void) { return read_clock(); }
void pasta_clock_load(void) {}
void pasta_clock_stop(void) {}

#endif
