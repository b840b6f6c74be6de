/* Interned strings: an arena and an open-addressing table of (hash, offset / 8), both lock-free.  Shared by a
 * process (strings.c) and its launcher (python/writer.c).
 *
 * `commit` backs the arena up to an offset with memory, or returns false. */
#ifndef PASTA_INTERNING_H
#define PASTA_INTERNING_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "../include/pasta_abi.h"

typedef bool pasta_commit_arena(pasta_ring *r, uint64_t end);

typedef struct {
    uint32_t length;
    char text[];
} pasta_string;

static inline pasta_string *pasta_string_at(pasta_ring *r, uint32_t id) {
    return (pasta_string *)((uint8_t *)r + r->arena_offset + (uint64_t)id * 8);
}

static inline uint32_t pasta_put_string(pasta_ring *r, const char *text, size_t length, pasta_commit_arena *commit) {
    uint64_t bytes = (sizeof(pasta_string) + length + 1 + 7) / 8 * 8;
    uint64_t offset = __atomic_load_n(&r->arena_used, __ATOMIC_ACQUIRE);
    do /* no addition that is undone when full: others would get offsets above it meanwhile */
        if (offset + bytes > r->arena_bytes || !commit(r, offset + bytes)) return 0;
    while (!__atomic_compare_exchange_n(&r->arena_used, &offset, offset + bytes, true, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE));
    pasta_string *s = pasta_string_at(r, (uint32_t)(offset / 8));
    s->length = (uint32_t)length;
    memcpy(s->text, text, length);
    s->text[length] = '\0';
    return (uint32_t)(offset / 8);
}

/* Id of a text with this hash; 0 where the arena or the table is full. */
static inline uint32_t pasta_intern_in(pasta_ring *r, const char *text, size_t length, uint64_t hash,
                                       pasta_commit_arena *commit) {
    enum { MAX_PROBES = 128 };
    uint32_t tag = (uint32_t)(hash >> 32), fresh = 0;
    uint64_t *table = (uint64_t *)((uint8_t *)r + r->strings_offset);
    for (unsigned probe = 0; probe < MAX_PROBES; probe++) {
        uint64_t *entry = &table[(hash + probe) % PASTA_STRING_SLOTS];
        uint64_t found = __atomic_load_n(entry, __ATOMIC_ACQUIRE);
        if (!found) {
            if (!fresh) fresh = pasta_put_string(r, text, length, commit);
            if (!fresh) return 0;
            if (__atomic_compare_exchange_n(entry, &found, (uint64_t)tag << 32 | fresh, false, __ATOMIC_ACQ_REL,
                                            __ATOMIC_ACQUIRE))
                return fresh;
        }
        if (found >> 32 != tag || (uint64_t)(uint32_t)found * 8 + length > r->arena_bytes) continue;
        pasta_string *s = pasta_string_at(r, (uint32_t)found);
        if (s->length == length && !memcmp(s->text, text, length)) return (uint32_t)found;
    }
    return 0;
}

#endif
