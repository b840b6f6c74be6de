/* Work whose records have not arrived, by CUPTI's correlation id, which counts calls up, also those that submit nothing.
 *
 * Threads that launch write, CUPTI's own thread reads. An entry is in one of the places of its set: a free one, else that of
 * the oldest. A program that polls counts so fast that ids of pending work are any numbers: with one place for each remainder
 * they would replace each other.
 */
#include <stddef.h>
#include <string.h>

#include "cupti_source.h"

enum { SETS = 1 << 14, PLACES = 4 };

typedef struct entry {
    uint32_t version;
    uint64_t words[(sizeof(pasta_cupti_submitted) + 7) / 8];
} entry;

static entry entries[SETS][PLACES];
static uint32_t correlations[SETS][PLACES]; /* of entries; 0: free, or being written */

#define LOAD(place) __atomic_load_n(&(place), __ATOMIC_ACQUIRE)
#define STORE(place, value) __atomic_store_n(&(place), value, __ATOMIC_RELEASE)

static bool is_older(uint32_t correlation, uint32_t than) { return (int32_t)(correlation - than) < 0; }

/* The place of a correlation id in a set, or with 0 a free one; PLACES: none. */
static uint32_t find(const uint32_t *set, uint32_t correlation) {
    uint32_t place = 0;
    while (place < PLACES && LOAD(set[place]) != correlation) place++;
    return place;
}

static uint32_t place_of(uint32_t correlation) {
    return correlation ? find(correlations[correlation % SETS], correlation) : PLACES;
}

static uint32_t oldest(const uint32_t *set) {
    uint32_t place = 0, found = LOAD(set[0]);
    for (uint32_t i = 1; i < PLACES; i++) {
        uint32_t there = LOAD(set[i]);
        if (!is_older(there, found)) continue;
        place = i;
        found = there;
    }
    return place;
}

static uint32_t place_for(uint32_t correlation) {
    const uint32_t *set = correlations[correlation % SETS];
    uint32_t own = place_of(correlation), free = own < PLACES ? own : find(set, 0);
    return free < PLACES ? free : oldest(set);
}

void pasta_cupti_prepare(uint32_t correlation) {
    const char *e = (const char *)&entries[correlation % SETS][place_for(correlation)];
    for (size_t at = 0; at < sizeof(entry); at += 64) __builtin_prefetch(e + at, 1);
}

void pasta_cupti_put(uint32_t correlation, const pasta_cupti_submitted *submitted) {
    uint32_t set = correlation % SETS, place = place_for(correlation);
    entry *e = &entries[set][place];
    uint64_t words[sizeof e->words / 8] = {0};
    memcpy(words, submitted, sizeof *submitted);
    STORE(correlations[set][place], 0);
    /* no atomic addition, which would wait for the entry's cache lines: two writers of a set are 16,384 calls apart */
    STORE(e->version, __atomic_load_n(&e->version, __ATOMIC_RELAXED) + 1);
    for (size_t i = 0; i < sizeof e->words / 8; i++) STORE(e->words[i], words[i]); /* none before the version */
    STORE(correlations[set][place], correlation);
}

bool pasta_cupti_get(uint32_t correlation, pasta_cupti_submitted *found) {
    uint32_t set = correlation % SETS, place = place_of(correlation);
    if (place == PLACES) return false;
    entry *e = &entries[set][place];
    uint64_t words[sizeof e->words / 8];
    uint32_t version = LOAD(e->version); /* before the correlation: a place is free while its words are written */
    if (LOAD(correlations[set][place]) != correlation) return false;
    for (size_t i = 0; i < sizeof e->words / 8; i++) words[i] = LOAD(e->words[i]);
    if (LOAD(correlations[set][place]) != correlation || LOAD(e->version) != version) return false;
    memcpy(found, words, sizeof *found);
    return true;
}

/* Its entry was the oldest then, so those that are there are newer. */
bool pasta_cupti_replaced(uint32_t correlation) {
    for (uint32_t place = 0; place < PLACES; place++) {
        uint32_t there = LOAD(correlations[correlation % SETS][place]);
        if (!there || !is_older(correlation, there)) return false;
    }
    return true;
}

void pasta_cupti_forget(uint32_t correlation) {
    uint32_t place = place_of(correlation), mine = correlation;
    if (place == PLACES) return;
    __atomic_compare_exchange_n(&correlations[correlation % SETS][place], &mine, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}
