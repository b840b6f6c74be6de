/* Reservation of records: shared by the producers of a process (ring.c) and its launcher (python/writer.c).
 *
 * `grow` gives a new physical segment (number + 1), or 0 at the cap.  `strange`: the ring is that of another
 * process, which may have overwritten it: nothing outside of the mapping is touched. */
#ifndef PASTA_RESERVE_H
#define PASTA_RESERVE_H

#include <stdbool.h>

#include "segments.h"

enum {
    PASTA_SEGMENT_BYTES = 1 << 20,
    PASTA_SEGMENT_SLOTS = PASTA_SEGMENT_BYTES / PASTA_SLOT,
    PASTA_PREFETCH = 16 * PASTA_SLOT,
};

typedef uint32_t pasta_grow(pasta_ring *r);

static inline uint32_t pasta_pop_free(pasta_ring *r) {
    uint64_t head = __atomic_load_n(&r->free_head, __ATOMIC_ACQUIRE);
    for (;;) {
        uint32_t segment = (uint32_t)head;
        if (!segment || segment > PASTA_MAX_SEGMENTS) return 0;
        uint32_t next = __atomic_load_n(&r->free_next[segment - 1], __ATOMIC_RELAXED);
        uint64_t with_next = ((head >> 32) + 1) << 32 | next;
        if (__atomic_compare_exchange_n(&r->free_head, &head, with_next, true, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return segment;
    }
}

static inline bool pasta_install(pasta_ring *r, uint64_t logical, pasta_grow *grow) {
    uint64_t *entry = &r->segment_map[logical % PASTA_MAX_SEGMENTS];
    uint64_t old = __atomic_load_n(entry, __ATOMIC_ACQUIRE);
    if (old >> 16 == logical + 1) return true;
    uint64_t first_held = __atomic_load_n(&r->released, __ATOMIC_ACQUIRE) / PASTA_SEGMENT_SLOTS;
    if (logical - first_held >= PASTA_MAX_SEGMENTS) return false;
    uint32_t segment = pasta_pop_free(r);
    if (!segment) segment = grow(r);
    if (!segment) return __atomic_load_n(entry, __ATOMIC_ACQUIRE) >> 16 == logical + 1;
    if (!__atomic_compare_exchange_n(entry, &old, (logical + 1) << 16 | segment, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE))
        pasta_push_free(r, segment); /* another producer was first, for this segment or a later one */
    return __atomic_load_n(entry, __ATOMIC_ACQUIRE) >> 16 == logical + 1;
}

static inline uint64_t pasta_slot_offset(pasta_ring *r, uint64_t position) {
    uint64_t logical = position / PASTA_SEGMENT_SLOTS;
    uint64_t entry = __atomic_load_n(&r->segment_map[logical % PASTA_MAX_SEGMENTS], __ATOMIC_ACQUIRE);
    return r->data_offset + ((entry & 0xffff) - 1) * PASTA_SEGMENT_BYTES + position % PASTA_SEGMENT_SLOTS * PASTA_SLOT;
}

static inline void pasta_mark_busy(pasta_header *h, uint64_t position, uint16_t kind, uint8_t slots) {
    h->kind = kind;
    h->slots = slots;
    __atomic_store_n(&h->commit, ~pasta_commit_word(position / PASTA_SEGMENT_SLOTS), __ATOMIC_RELEASE);
}

/* A record with the busy mark; NULL at the cap. */
static inline __attribute__((always_inline)) pasta_header *pasta_reserve(pasta_ring *r, uint16_t kind, uint8_t slots,
                                                                         pasta_grow *grow, bool strange) {
    uint64_t tail = __atomic_load_n(&r->tail, __ATOMIC_RELAXED);
    for (;;) {
        uint64_t offset = tail % PASTA_SEGMENT_SLOTS;
        bool crosses = offset + slots > PASTA_SEGMENT_SLOTS;
        uint8_t take = crosses ? (uint8_t)(PASTA_SEGMENT_SLOTS - offset) : slots;
        if (__builtin_expect(offset == 0, 0) && !pasta_install(r, tail / PASTA_SEGMENT_SLOTS, grow)) {
            uint64_t moved = __atomic_load_n(&r->tail, __ATOMIC_ACQUIRE);
            if (moved == tail) return NULL;
            tail = moved;
            continue;
        }
        if (strange && pasta_slot_offset(r, tail) > r->file_bytes - take * PASTA_SLOT) return NULL;
        if (!__atomic_compare_exchange_n(&r->tail, &tail, tail + take, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            continue;
        pasta_header *h = (pasta_header *)((uint8_t *)r + pasta_slot_offset(r, tail));
        /* The consumer's processor has the lines of memory that is used again. */
        __builtin_prefetch((uint8_t *)h + PASTA_PREFETCH, 1);
        pasta_mark_busy(h, tail, crosses ? PASTA_EVENT_pad : kind, take);
        if (!crosses) return h;
        __atomic_store_n(&h->commit, pasta_commit_word(tail / PASTA_SEGMENT_SLOTS), __ATOMIC_RELEASE);
        tail += take;
    }
}

#endif
