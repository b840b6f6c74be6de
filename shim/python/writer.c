/* The launcher's side of the ring: it publishes data about a process (samples of its devices).
 *
 * It uses only memory that the ring already has; the process, or pasta_back_ahead, adds more. */
#define _GNU_SOURCE
#include "writer.h"

#include <string.h>
#include <time.h>

#include "../core/interning.h"
#include "../core/reserve.h"
#include "reader.h"

uint64_t pasta_hash(const void *bytes, size_t length); /* core/hash.c */

static uint32_t next_backed(pasta_ring *r) {
    uint32_t have = __atomic_load_n(&r->segments, __ATOMIC_ACQUIRE);
    do {
        uint32_t most = __atomic_load_n(&r->max_segments, __ATOMIC_SEQ_CST);
        uint32_t backed = __atomic_load_n(&r->backed, __ATOMIC_ACQUIRE);
        if (have >= most || have >= backed) return 0;
    } while (!__atomic_compare_exchange_n(&r->segments, &have, have + 1, true, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    return have + 1;
}

static bool has_memory(pasta_ring *r, uint64_t end) {
    return end <= __atomic_load_n(&r->arena_committed, __ATOMIC_ACQUIRE);
}

int pasta_has_room(pasta_ring *r, uint32_t slots) {
    uint64_t tail = __atomic_load_n(&r->tail, __ATOMIC_ACQUIRE);
    uint32_t have = __atomic_load_n(&r->segments, __ATOMIC_ACQUIRE);
    bool fits = pasta_segment(r, tail / PASTA_SEGMENT_SLOTS) && tail % PASTA_SEGMENT_SLOTS + slots <= PASTA_SEGMENT_SLOTS;
    bool freed = (uint32_t)__atomic_load_n(&r->free_head, __ATOMIC_ACQUIRE) != 0;
    return fits || freed || have < __atomic_load_n(&r->backed, __ATOMIC_ACQUIRE) ||
           have >= __atomic_load_n(&r->max_segments, __ATOMIC_SEQ_CST);
}

int pasta_append_at(pasta_ring *r, pasta_event_kind kind, int16_t device, uint64_t time, uint32_t thread, const void *payload,
                    uint32_t bytes) {
    uint8_t slots = (uint8_t)pasta_kind_slots(kind);
    if (!slots || bytes != slots * PASTA_SLOT - sizeof(pasta_header) || r->segment_bytes != PASTA_SEGMENT_BYTES) return 0;
    pasta_header *h = pasta_reserve(r, (uint16_t)kind, slots, next_backed, true);
    if (!h) {
        __atomic_fetch_add(&r->dropped[kind], 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(&r->pending_drops, 1, __ATOMIC_RELAXED);
        return 0;
    }
    h->flags = 0;
    h->time = time;
    h->thread = thread;
    h->device = device;
    h->context = UINT16_MAX;
    h->stream = UINT64_MAX;
    h->correlation = 0;
    memcpy(h + 1, payload, bytes);
    __atomic_store_n(&h->commit, ~h->commit, __ATOMIC_RELEASE);
    return 1;
}

int pasta_append(pasta_ring *r, pasta_event_kind kind, int16_t device, const void *payload, uint32_t bytes) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    return pasta_append_at(r, kind, device, now, 0, payload, bytes); /* of no thread of the process */
}

uint32_t pasta_intern_text(pasta_ring *r, const char *text, uint32_t length) {
    return pasta_intern_in(r, text, length, pasta_hash(text, length), has_memory);
}
