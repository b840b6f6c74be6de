/* Times of records, with a simulated counter and clock: one case a process. */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

static uint64_t counter = UINT64_C(1) << 60; /* a wrap of the differences would show */
static double clock_ns = 5e12, ns_per_tick = 0.4;
static unsigned reading_ticks = 60; /* that a reading of the clock takes */
static unsigned readings;
static clockid_t asked;

static void pass(uint64_t ticks) {
    counter += ticks;
    clock_ns += (double)ticks * ns_per_tick;
}

static uint64_t simulated_ticks(void) { return counter; }

static int simulated_clock(clockid_t clock, struct timespec *t) {
    pass(reading_ticks / 2);
    uint64_t ns = (uint64_t)clock_ns;
    *t = (struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    pass(reading_ticks - reading_ticks / 2);
    asked = clock;
    readings++;
    return 0;
}

#define __builtin_ia32_rdtsc simulated_ticks
#define clock_gettime simulated_clock
#include "../../shim/core/clock.c"
#undef clock_gettime

#include "check.h"

#ifdef __x86_64__

/* Records one after the other, `every` ticks apart, with times that grow and are at most `behind` ns before the clock's;
 * returns the readings of the clock. */
static unsigned record(unsigned count, uint64_t every, double behind, double ahead) {
    unsigned before = readings;
    uint64_t previous = 0;
    for (unsigned i = 0; i < count; i++) {
        uint64_t time = pasta_now();
        CHECK(time >= previous);
        CHECK((double)time <= clock_ns + ahead);
        CHECK((double)time + behind >= clock_ns - 60 * ns_per_tick - 1);
        previous = time;
        pass(every);
    }
    return readings - before;
}

static void enable(void) {
    last.enabled = true;
    record(200, 1 << 20, 100, 0); /* the rate becomes known */
    CHECK(last.rate);
}

static void steady(void) {
    enable();
    CHECK(record(100000, 1000, 60, 0) < 100); /* 40 ms of events: a reading in 0.8 ms */
    CHECK(record(1000, UINT64_C(1) << 34, 60, 0) >= 999); /* rare events */
    record(100000, 1000, 60, 0);
}

/* The kernel slows the clock down by as much as it may: 500 ppm. */
static void slewed(void) {
    enable();
    ns_per_tick *= 1 - 5e-4;
    record(200000, 1000, 1000, 1000);
    ns_per_tick *= 1 + 5e-4;
    record(200000, 1000, 1000, 0);
}

/* The machine is suspended, or another one continues the program: the counter and the clock begin anew. */
static void jumps(void) {
    enable();
    clock_ns += 1e12;
    record(3, WINDOW, 1e13, 0);
    record(100000, 1000, 100, 0);
    counter -= UINT64_C(1) << 50;
    record(100000, 1000, 100, 0);
}

/* The thread is interrupted in each reading. */
static void interrupted(void) {
    reading_ticks = 100000;
    last.enabled = true;
    for (int i = 0; i < 1000; i++) pasta_now();
    CHECK(!last.rate && readings == 3 * 1000); /* attempts */
}

/* Another thread is stopped while it replaces the reading. */
static void stuck(void) {
    enable();
    last.sequence++;
    CHECK(record(1000, 1000, 0, 0) == 3 * 1000);
}

/* Neither the counter nor the clock is read, only the last tick. */
static void restricted(void) {
    enable();
    pasta_clock_restrict(true);
    CHECK(record(10, 1000, 0, 0) == 10);
    CHECK(asked == CLOCK_MONOTONIC_COARSE);
}

static const test_case cases[] = {
    {"steady", steady}, {"slewed", slewed}, {"jumps", jumps}, {"interrupted", interrupted}, {"stuck", stuck}, {"restricted", restricted}};

#else

static void not_continued(void) {
    pasta_clock_load();
    for (int i = 0; i < 1000; i++) pasta_now();
    CHECK(readings == 1000);
}
static const test_case cases[] = {{"steady", not_continued}};

#endif

int main(int count, char **arguments) { return RUN_CASE(cases, count > 1 ? arguments[1] : NULL); }
