/* A map of integers: open addressing, read without a lock.
 *
 * Writers are rare (a module, a stream), and every launch reads: readers compare a version before and
 * after, and retry where it changed.  All loads acquire and all stores release: cells are read before the
 * second load of the version, and written after it was made odd.  A table that became too small is kept,
 * as readers may use it; all of those together are smaller than the last.
 */
#include <sched.h>
#include <stdlib.h>

#include "source.h"

enum { MIN_CELLS = 64, MAX_TRIES = 1000 };

typedef struct cell {
    uint64_t key; /* + 1; 0: empty */
    uint64_t value;
} cell;

struct pasta_amd_cells {
    struct pasta_amd_cells *before;
    size_t mask;
    cell at[];
};

static size_t first_of(const struct pasta_amd_cells *cells, uint64_t key) {
    return (size_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 32) & cells->mask;
}

/* Index of the key, or of the empty cell for it. */
static size_t find(const struct pasta_amd_cells *cells, uint64_t key) {
    size_t at = first_of(cells, key);
    /* bounded: the table may be changed meanwhile */
    for (size_t probe = 0; probe <= cells->mask; probe++, at = (at + 1) & cells->mask) {
        uint64_t found = PASTA_LOAD(cells->at[at].key);
        if (!found || found == key + 1) break;
    }
    return at;
}

static bool look(pasta_amd_map *map, uint64_t key, uint64_t *value) {
    const struct pasta_amd_cells *cells = PASTA_LOAD(map->cells);
    if (!cells) return false;
    size_t at = find(cells, key);
    *value = PASTA_LOAD(cells->at[at].value);
    return PASTA_LOAD(cells->at[at].key) == key + 1;
}

static void lock(pasta_amd_map *map) {
    while (__atomic_exchange_n(&map->locked, 1, __ATOMIC_ACQUIRE)) sched_yield();
}

static void unlock(pasta_amd_map *map) { __atomic_store_n(&map->locked, 0, __ATOMIC_RELEASE); }

bool pasta_amd_get(pasta_amd_map *map, uint64_t key, uint64_t *value) {
    for (int tries = 0; tries < MAX_TRIES; tries++) {
        uint32_t version = PASTA_LOAD(map->version);
        if (version & 1) continue;
        bool found = look(map, key, value);
        if (PASTA_LOAD(map->version) == version) return found;
    }
    lock(map); /* the writer is preempted */
    bool found = look(map, key, value);
    unlock(map);
    return found;
}

static void begin(pasta_amd_map *map) {
    lock(map);
    PASTA_STORE(map->version, map->version + 1);
}

static void end(pasta_amd_map *map) {
    PASTA_STORE(map->version, map->version + 1);
    unlock(map);
}

static void store(struct pasta_amd_cells *cells, uint64_t key, uint64_t value) {
    size_t at = find(cells, key);
    PASTA_STORE(cells->at[at].value, value);
    PASTA_STORE(cells->at[at].key, key + 1);
}

static bool make_room(pasta_amd_map *map) {
    struct pasta_amd_cells *old = map->cells;
    size_t size = old ? 2 * (old->mask + 1) : MIN_CELLS;
    if (old && map->count < (old->mask + 1) / 2) return true;
    struct pasta_amd_cells *fresh = calloc(1, sizeof *fresh + size * sizeof *fresh->at);
    if (!fresh) return false;
    fresh->before = old;
    fresh->mask = size - 1;
    for (size_t i = 0; old && i <= old->mask; i++)
        if (old->at[i].key) store(fresh, old->at[i].key - 1, old->at[i].value);
    PASTA_STORE(map->cells, fresh);
    return true;
}

bool pasta_amd_put(pasta_amd_map *map, uint64_t key, uint64_t value) {
    begin(map);
    bool room = make_room(map);
    if (room) {
        map->count += !map->cells->at[find(map->cells, key)].key;
        store(map->cells, key, value);
    }
    end(map);
    return room;
}

/* Removes a cell; cells after it move up unless they are at their own index. */
static void empty(pasta_amd_map *map, size_t at) {
    struct pasta_amd_cells *cells = map->cells;
    size_t gap = at, next = at;
    for (;;) {
        next = (next + 1) & cells->mask;
        uint64_t key = cells->at[next].key;
        if (!key) break;
        size_t home = first_of(cells, key - 1);
        if (((next - home) & cells->mask) < ((next - gap) & cells->mask)) continue;
        PASTA_STORE(cells->at[gap].value, cells->at[next].value);
        PASTA_STORE(cells->at[gap].key, key);
        gap = next;
    }
    PASTA_STORE(cells->at[gap].key, 0);
    map->count--;
}

bool pasta_amd_take(pasta_amd_map *map, uint64_t key, uint64_t *value) {
    begin(map);
    bool found = look(map, key, value);
    if (found) empty(map, find(map->cells, key));
    end(map);
    return found;
}

void pasta_amd_drop(pasta_amd_map *map, uint64_t value) {
    begin(map);
    for (size_t i = 0; map->cells && i <= map->cells->mask;)
        if (map->cells->at[i].key && map->cells->at[i].value == value) empty(map, i);
        else i++;
    end(map);
}
