/* Interned strings: an arena and an open-addressing table of (hash, offset / 8), both lock-free. */
#include <string.h>

#include "internal.h"

enum { MAX_LENGTH = 1 << 20, MAX_PROBES = 128 };

typedef struct {
    uint32_t length;
    char text[];
} pasta_string;

static pasta_string *string_at(pasta_ring *r, uint32_t id) {
    return (pasta_string *)((uint8_t *)r + r->arena_offset + (uint64_t)id * 8);
}

static uint32_t put_string(pasta_ring *r, const char *text, size_t length) {
    uint64_t bytes = (sizeof(pasta_string) + length + 1 + 7) / 8 * 8;
    uint64_t offset = __atomic_load_n(&r->arena_used, __ATOMIC_ACQUIRE);
    do /* no addition that is undone when full: others would get offsets above it meanwhile */
        if (offset + bytes > r->arena_bytes || !pasta_ring_commit_arena(r, offset + bytes)) return 0;
    while (!__atomic_compare_exchange_n(&r->arena_used, &offset, offset + bytes, true, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE));
    pasta_string *s = string_at(r, (uint32_t)(offset / 8));
    s->length = (uint32_t)length;
    memcpy(s->text, text, length);
    s->text[length] = '\0';
    return (uint32_t)(offset / 8);
}

uint32_t pasta_intern(const char *text, size_t length) {
    pasta_ring *r = pasta_ring_mine();
    if (!r || !text || !pasta_same_process()) return 0;
    if (length > MAX_LENGTH) length = MAX_LENGTH;
    uint64_t hash = pasta_hash(text, length);
    uint32_t tag = (uint32_t)(hash >> 32), fresh = 0;
    uint64_t *table = (uint64_t *)((uint8_t *)r + r->strings_offset);
    for (unsigned probe = 0; probe < MAX_PROBES; probe++) {
        uint64_t *entry = &table[(hash + probe) % PASTA_STRING_SLOTS];
        uint64_t found = __atomic_load_n(entry, __ATOMIC_ACQUIRE);
        if (!found) {
            if (!fresh) fresh = put_string(r, text, length);
            if (!fresh) return 0;
            if (__atomic_compare_exchange_n(entry, &found, (uint64_t)tag << 32 | fresh, false, __ATOMIC_ACQ_REL,
                                            __ATOMIC_ACQUIRE))
                return fresh;
        }
        if (found >> 32 != tag) continue;
        pasta_string *s = string_at(r, (uint32_t)found);
        if (s->length == length && !memcmp(s->text, text, length)) return (uint32_t)found;
    }
    return 0;
}

uint32_t pasta_intern_z(const char *text) { return text ? pasta_intern(text, strlen(text)) : 0; }

const char *pasta_interned(uint32_t id, size_t *length) {
    pasta_ring *r = pasta_ring_mine();
    if (!r || !id || !pasta_same_process()) return NULL;
    const pasta_string *s = string_at(r, id);
    *length = s->length;
    return s->text;
}
