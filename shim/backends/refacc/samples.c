/* Samples of program counters.  The device has no latencies: a warp waits at a load for as long as the load takes
 * to transfer its sectors, so one sample is taken for every N of them (the setting refacc.samples), at the load. */
#include <string.h>

#include "source.h"

enum { PLACES = 256, SITES = 512, TRIES = 16, SECTOR_SHIFT = 5 };

/* Sampled launches in progress; a launch whose slot is taken is not sampled. */
static struct {
    uint64_t launch; /* plus one; 0: free; all ones: being taken */
    struct {
        uint64_t pc; /* plus one; 0: free */
        uint64_t sectors;
    } sites[SITES];
} sampled[PLACES];
static uint64_t every; /* sectors of a sample */

static void missed(const char *what) {
    static bool said;
    if (!__atomic_exchange_n(&said, true, __ATOMIC_RELAXED)) pasta_say("refacc: some %s have no samples: too many at once", what);
}

void pasta_refacc_samples(void) {
    every = pasta_config_u64("refacc.samples", 0);
}

bool pasta_refacc_sample(uint64_t launch) {
    uint64_t none = 0, *place = &sampled[launch % PLACES].launch;
    if (!every) return false;
    if (!__atomic_compare_exchange_n(place, &none, PASTA_ABSENT_U64, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
        missed("launches");
        return false;
    }
    memset(sampled[launch % PLACES].sites, 0, sizeof sampled[0].sites);
    __atomic_store_n(place, launch + 1, __ATOMIC_RELEASE);
    return true;
}

static uint32_t sectors_of(const ra_access *a) {
    uint64_t seen[32];
    uint32_t count = 0;
    if (!(a->mask & (a->mask - 1)) && a->transfer > a->bytes) return (uint32_t)(a->transfer >> SECTOR_SHIFT);
    for (uint32_t lanes = a->mask; lanes; lanes &= lanes - 1) {
        uint64_t sector = a->address[__builtin_ctz(lanes)] >> SECTOR_SHIFT;
        uint32_t at = count;
        while (at && seen[at - 1] != sector) at--;
        if (!at) seen[count++] = sector;
    }
    return count;
}

void pasta_refacc_sample_access(uint64_t launch, const ra_access *a) {
    if (!(a->flags & RA_ACCESS_READ) || a->space != RA_SPACE_GLOBAL) return;
    if (__atomic_load_n(&sampled[launch % PLACES].launch, __ATOMIC_ACQUIRE) != launch + 1) return;
    for (uint32_t tries = 0; tries < TRIES; tries++) {
        uint64_t *site = &sampled[launch % PLACES].sites[(a->pc / 16 + tries) % SITES].pc, none = 0;
        if (__atomic_load_n(site, __ATOMIC_RELAXED) != a->pc + 1 &&
            !__atomic_compare_exchange_n(site, &none, a->pc + 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED) &&
            none != a->pc + 1)
            continue;
        __atomic_fetch_add(site + 1, sectors_of(a), __ATOMIC_RELAXED);
        return;
    }
    missed("loads");
}

void pasta_refacc_sampled(const ra_launch_data *d, uint16_t context) {
    uint64_t launch = d->user[0], *place = &sampled[launch % PLACES].launch;
    if (!every || __atomic_load_n(place, __ATOMIC_ACQUIRE) != launch + 1) return;
    for (uint32_t i = 0; i < SITES; i++) {
        uint64_t pc = sampled[launch % PLACES].sites[i].pc, samples = sampled[launch % PLACES].sites[i].sectors / every;
        if (!pc || !samples) continue;
        pasta_pc_sample *e = PASTA_BEGIN(pc_sample, d->device, context, d->stream);
        if (!e) break;
        e->pc = pc - 1 - d->entry_pc;
        e->function = d->function;
        e->name = pasta_intern_z(d->symbol);
        e->reason = pasta_intern_z("memory access");
        e->samples = samples < UINT32_MAX ? (uint32_t)samples : UINT32_MAX - 1;
        e->ordinal = launch;
        e->module = d->module;
        pasta_publish(e);
    }
    __atomic_store_n(place, 0, __ATOMIC_RELEASE);
}
