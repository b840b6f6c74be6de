/* The time of records: CLOCK_MONOTONIC.
 *
 * libc's function reads the processor's counter, from which the kernel derives this clock, but waits for all earlier
 * instructions first: that takes longer than the rest of a record.  So the counter alone continues a reading of the clock
 * for a millisecond or so, at a rate that is slightly too low: no such time is later than the clock's. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

static bool strict; /* a thread may read neither the counter nor CLOCK_MONOTONIC */

static uint64_t read_clock(void) {
    struct timespec t;
    clock_gettime(PASTA_UNLIKELY(__atomic_load_n(&strict, __ATOMIC_RELAXED)) ? CLOCK_MONOTONIC_COARSE : CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#ifdef __x86_64__

#define WINDOW (UINT64_C(1) << 21)   /* ticks for which a reading is continued */
#define BASE (UINT64_C(1) << 26)     /* ticks between two readings that give the rate: at least, … */
#define MAX_BASE (UINT64_C(1) << 30) /* … and at most */
#define CLOSE 1024u                  /* ticks that a reading may take, or it is not continued */

/* Bits of the rate; by 2^-15, more than CLOSE / BASE; by 2^-7, more than the kernel changes it: the clock or the counter
 * began anew. */
enum { FRACTION = 32, TOO_LOW = 15, OTHER = 7 };

/* The last reading.  `sequence` is odd while a thread replaces it. */
static struct {
    uint32_t sequence;
    bool enabled;
    uint64_t ticks, time;
    uint64_t rate; /* at which it is continued: ns per tick, << FRACTION; 0: not yet known */
    uint64_t base_ticks, base_time, base_rate; /* an earlier reading, and the rate since the one before that */
} __attribute__((aligned(64))) last;

/* The processor may execute it some instructions earlier or later. */
static inline uint64_t ticks(void) { return __builtin_ia32_rdtsc(); }

static bool kernel_uses_ticks(void) {
    char name[8] = "";
    int fd = open("/sys/devices/system/clocksource/clocksource0/current_clocksource", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t length = read(fd, name, sizeof name - 1);
    close(fd);
    return length > 0 && !strcmp(name, "tsc\n");
}

/* In the child of a fork too, where the thread that replaced the reading may be missing. */
void pasta_clock_load(void) {
    memset(&last, 0, sizeof last);
    __atomic_store_n(&last.enabled, kernel_uses_ticks(), __ATOMIC_RELEASE);
}

/* With the sequence odd. */
static void find_rate(uint64_t at, uint64_t time) {
    uint64_t since = at - last.base_ticks;
    if (last.base_time && since < BASE) return;
    if (last.base_time && since <= MAX_BASE && time > last.base_time) {
        uint64_t rate = (uint64_t)(((unsigned __int128)(time - last.base_time) << FRACTION) / since);
        bool other = last.base_rate && (rate > last.base_rate ? rate - last.base_rate : last.base_rate - rate) > rate >> OTHER;
        last.base_rate = other ? 0 : rate - (rate >> TOO_LOW);
    }
    __atomic_store_n(&last.base_ticks, at, __ATOMIC_RELAXED);
    last.base_time = time;
}

/* Replaces the last reading by this one; gives the time that is continued, or 0 where another thread replaces it.  Where
 * the kernel has slowed the clock down since, that is the latest one that was given, and the rate is lower until the clock
 * has caught up. */
static uint64_t replace(uint64_t at, uint64_t time) {
    uint32_t sequence = __atomic_load_n(&last.sequence, __ATOMIC_ACQUIRE);
    if (sequence & 1 || !__atomic_compare_exchange_n(&last.sequence, &sequence, sequence + 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return 0;
    uint64_t given = last.time + (WINDOW * last.rate >> FRACTION), lower = 0;
    if (!last.rate || at - last.ticks >= WINDOW) {
        find_rate(at, time);
        if (last.rate && given > time) lower = given - time < UINT32_MAX ? ((given - time) << FRACTION) / WINDOW : UINT64_MAX;
        if (lower < last.base_rate / 2 && lower) time = given;
        else lower = 0;
        __atomic_store_n(&last.ticks, at, __ATOMIC_RELAXED);
        __atomic_store_n(&last.time, time, __ATOMIC_RELAXED);
        __atomic_store_n(&last.rate, last.base_rate - lower, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&last.sequence, sequence + 2, __ATOMIC_RELEASE);
    return time;
}

/* The last reading, continued; 0: it is too old, or being replaced. */
static inline uint64_t continued(void) {
    uint32_t sequence = __atomic_load_n(&last.sequence, __ATOMIC_ACQUIRE);
    uint64_t rate = __atomic_load_n(&last.rate, __ATOMIC_ACQUIRE), time = __atomic_load_n(&last.time, __ATOMIC_ACQUIRE);
    uint64_t passed = ticks() - __atomic_load_n(&last.ticks, __ATOMIC_ACQUIRE);
    bool valid = rate && passed < WINDOW && !(sequence & 1) && __atomic_load_n(&last.sequence, __ATOMIC_RELAXED) == sequence;
    return PASTA_LIKELY(valid) ? time + (passed * rate >> FRACTION) : 0;
}

/* The clock itself is ahead of a continued reading.  A thread that returned it might go back with its next time, so it
 * does so only where the readings of several attempts are of no use. */
static __attribute__((noinline)) uint64_t read_again(void) {
    enum { ATTEMPTS = 3, SPINS = 100 };
    if (!__atomic_load_n(&last.enabled, __ATOMIC_RELAXED)) return read_clock();
    uint64_t base = __atomic_load_n(&last.base_ticks, __ATOMIC_RELAXED), time = 0;
    if (base && !__atomic_load_n(&last.rate, __ATOMIC_RELAXED) && ticks() - base < BASE) return read_clock();
    for (int i = 0; i < ATTEMPTS; i++) {
        uint64_t before = ticks(), found;
        time = read_clock();
        uint64_t after = ticks();
        if (after - before >= CLOSE) continue; /* interrupted in between */
        if ((found = replace(after, time))) return found;
        for (int spins = 0; spins < SPINS && __atomic_load_n(&last.sequence, __ATOMIC_ACQUIRE) & 1; spins++) __builtin_ia32_pause();
        if ((found = continued())) return found;
    }
    return time;
}

uint64_t pasta_now(void) {
    uint64_t time = PASTA_LIKELY(__atomic_load_n(&last.enabled, __ATOMIC_RELAXED)) ? continued() : 0;
    return PASTA_LIKELY(time) ? time : read_again();
}

void pasta_clock_restrict(bool strictly) {
    if (strictly) __atomic_store_n(&last.enabled, false, __ATOMIC_RELEASE);
    __atomic_store_n(&strict, strictly, __ATOMIC_RELEASE);
}

#else

void pasta_clock_load(void) {}
uint64_t pasta_now(void) { return read_clock(); }
void pasta_clock_restrict(bool strictly) { __atomic_store_n(&strict, strictly, __ATOMIC_RELEASE); }

#endif
