/* Work whose records have not arrived, by CUPTI's correlation id, which counts up.
 *
 * Threads that launch write, CUPTI's own thread reads.  An entry is overwritten when as many calls as there are
 * entries came later: then its work is recorded when its record comes, as work of an unknown call.
 */
#include <stddef.h>
#include <string.h>

#include "cupti_source.h"

enum { ENTRIES = 1 << 16 };

typedef struct entry {
    uint32_t correlation; /* 0: free, or being written */
    uint32_t version;
    uint64_t words[(sizeof(pasta_cupti_submitted) + 7) / 8];
} entry;

static entry entries[ENTRIES];

#define LOAD(place) __atomic_load_n(&(place), __ATOMIC_ACQUIRE)
#define STORE(place, value) __atomic_store_n(&(place), value, __ATOMIC_RELEASE)

void pasta_cupti_prepare(uint32_t correlation) {
    const char *e = (const char *)&entries[correlation % ENTRIES];
    for (size_t at = 0; at < sizeof(entry); at += 64) __builtin_prefetch(e + at, 1);
}

void pasta_cupti_put(uint32_t correlation, const pasta_cupti_submitted *submitted) {
    entry *e = &entries[correlation % ENTRIES];
    uint64_t words[sizeof e->words / 8] = {0};
    memcpy(words, submitted, sizeof *submitted);
    STORE(e->correlation, 0);
    /* no atomic addition, which would wait for the entry's cache lines: two writers are 65,536 calls apart */
    STORE(e->version, __atomic_load_n(&e->version, __ATOMIC_RELAXED) + 1);
    for (size_t i = 0; i < sizeof e->words / 8; i++) STORE(e->words[i], words[i]); /* none before the version */
    STORE(e->correlation, correlation);
}

bool pasta_cupti_get(uint32_t correlation, pasta_cupti_submitted *found) {
    entry *e = &entries[correlation % ENTRIES];
    uint64_t words[sizeof e->words / 8];
    uint32_t version = LOAD(e->version);
    if (!correlation || LOAD(e->correlation) != correlation) return false;
    for (size_t i = 0; i < sizeof e->words / 8; i++) words[i] = LOAD(e->words[i]);
    if (LOAD(e->correlation) != correlation || LOAD(e->version) != version) return false;
    memcpy(found, words, sizeof *found);
    return true;
}

void pasta_cupti_forget(uint32_t correlation) {
    entry *e = &entries[correlation % ENTRIES];
    uint32_t mine = correlation;
    __atomic_compare_exchange_n(&e->correlation, &mine, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}
