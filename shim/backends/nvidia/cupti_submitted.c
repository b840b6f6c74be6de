/* Work whose records have not arrived, by CUPTI's correlation id, which counts all calls that any client of CUPTI asked for.
 *
 * Threads that launch write, CUPTI's own thread reads. A correlation id has four possible places, as in a set-associative cache:
 * while another client, such as torch.profiler, asks for all calls, and the program polls, the ids of pending work have arbitrary
 * remainders, and would replace each other if each had only one.
 */
#include <stddef.h>
#include <string.h>

#include "cupti_source.h"

enum { ENTRIES = 1 << 16, WAYS = 4, NOWHERE = ENTRIES };

typedef struct entry {
    uint32_t version;
    uint64_t words[(sizeof(pasta_cupti_submitted) + 7) / 8];
} entry;

static entry entries[ENTRIES];
static uint32_t correlations[ENTRIES]; /* of the entries; 0: free, or being written */

#define LOAD(place) __atomic_load_n(&(place), __ATOMIC_ACQUIRE)
#define STORE(place, value) __atomic_store_n(&(place), value, __ATOMIC_RELEASE)

static bool is_older(uint32_t correlation, uint32_t than) { return (int32_t)(correlation - than) < 0; }

static uint32_t first_place(uint32_t correlation) { return correlation % (ENTRIES / WAYS) * WAYS; }

/* The place from `first` on with an id, or with 0 a free one; NOWHERE if there is none. */
static uint32_t find(uint32_t first, uint32_t correlation) {
    for (uint32_t at = first; at < first + WAYS; at++)
        if (LOAD(correlations[at]) == correlation) return at;
    return NOWHERE;
}

static uint32_t place_of(uint32_t correlation) { return correlation ? find(first_place(correlation), correlation) : NOWHERE; }

static uint32_t oldest(uint32_t first) {
    uint32_t found = first;
    for (uint32_t at = first + 1; at < first + WAYS; at++)
        if (is_older(LOAD(correlations[at]), LOAD(correlations[found]))) found = at;
    return found;
}

/* Where an entry goes: to its own place, a free one, or that of the oldest. */
static uint32_t place_for(uint32_t correlation) {
    uint32_t first = first_place(correlation), at = place_of(correlation);
    if (at == NOWHERE) at = find(first, 0);
    return at == NOWHERE ? oldest(first) : at;
}

void pasta_cupti_prepare(uint32_t correlation) {
    const char *e = (const char *)&entries[place_for(correlation)];
    for (size_t at = 0; at < sizeof(entry); at += 64) __builtin_prefetch(e + at, 1);
}

void pasta_cupti_put(uint32_t correlation, const pasta_cupti_submitted *submitted) {
    uint32_t at = place_for(correlation);
    entry *e = &entries[at];
    uint64_t words[sizeof e->words / 8] = {0};
    memcpy(words, submitted, sizeof *submitted);
    STORE(correlations[at], 0);
    /* no atomic addition, which would wait for the entry's cache lines: two writers of a place are 16,384 calls apart */
    STORE(e->version, __atomic_load_n(&e->version, __ATOMIC_RELAXED) + 1);
    for (size_t i = 0; i < sizeof e->words / 8; i++) STORE(e->words[i], words[i]); /* none before the version */
    STORE(correlations[at], correlation);
}

bool pasta_cupti_get(uint32_t correlation, pasta_cupti_submitted *found) {
    uint32_t at = place_of(correlation);
    if (at == NOWHERE) return false;
    entry *e = &entries[at];
    uint64_t words[sizeof e->words / 8];
    uint32_t version = LOAD(e->version); /* the id is read again after it: a new version's words may be incomplete */
    if (LOAD(correlations[at]) != correlation) return false;
    for (size_t i = 0; i < sizeof e->words / 8; i++) words[i] = LOAD(e->words[i]);
    if (LOAD(correlations[at]) != correlation || LOAD(e->version) != version) return false;
    memcpy(found, words, sizeof *found);
    return true;
}

/* An entry is replaced when it is the oldest, so only newer ones are in its places afterwards. */
bool pasta_cupti_replaced(uint32_t correlation) {
    uint32_t first = first_place(correlation);
    for (uint32_t at = first; at < first + WAYS; at++) {
        uint32_t there = LOAD(correlations[at]);
        if (!there || !is_older(correlation, there)) return false;
    }
    return true;
}

void pasta_cupti_forget(uint32_t correlation) {
    uint32_t at = place_of(correlation), mine = correlation;
    if (at == NOWHERE) return;
    __atomic_compare_exchange_n(&correlations[at], &mine, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}
