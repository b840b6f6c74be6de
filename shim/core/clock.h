/* The part of the clock that each record runs. */
#ifndef PASTA_CLOCK_H
#define PASTA_CLOCK_H

#include "internal.h"

#ifdef __x86_64__

enum { PASTA_SCALE_BITS = 32 };

/* Of all threads; one that makes `version` odd may change the others. */
extern struct pasta_clock_base {
    uint32_t version;
    bool usable;
    uint64_t ticks, time; /* at the last reading of the clock */
    uint64_t scale;       /* ns of 2³² ticks */
    uint64_t window;      /* ticks; 0: the rate is not known */
    uint64_t first_ticks, first_time, span; /* of the rate's measurement */
} __attribute__((aligned(64))) pasta_clock_base;

static inline uint64_t pasta_ns_of(uint64_t ticks, uint64_t scale) {
    return (uint64_t)((__uint128_t)ticks * scale >> PASTA_SCALE_BITS);
}

/* The time by the last reading of the clock; 0 where that is too old, or changes now. */
static inline uint64_t pasta_extrapolate(void) {
    const struct pasta_clock_base *base = &pasta_clock_base;
    uint32_t version = __atomic_load_n(&base->version, __ATOMIC_ACQUIRE);
    uint64_t window = __atomic_load_n(&base->window, __ATOMIC_ACQUIRE), scale = __atomic_load_n(&base->scale, __ATOMIC_ACQUIRE);
    uint64_t time = __atomic_load_n(&base->time, __ATOMIC_ACQUIRE), ticks = __atomic_load_n(&base->ticks, __ATOMIC_ACQUIRE);
    if (PASTA_UNLIKELY(!window || version & 1)) return 0; /* the counter may be forbidden */
    uint64_t passed = __builtin_ia32_rdtsc() - ticks;
    if (PASTA_UNLIKELY(passed >= window)) return 0;
    return PASTA_LIKELY(__atomic_load_n(&base->version, __ATOMIC_RELAXED) == version) ? time + pasta_ns_of(passed, scale) : 0;
}

#else

extern struct pasta_clock_base {
    bool usable;
    uint64_t window;
} pasta_clock_base; /* never used */

static inline uint64_t pasta_extrapolate(void) { return 0; }

#endif

#endif
