/* Shared by producers and consumer: the free stack, addresses of slots, waiting. */
#ifndef PASTA_SEGMENTS_H
#define PASTA_SEGMENTS_H

#include <limits.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../include/pasta_abi.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

/* The commit word of published records in a logical segment; its complement marks them busy.  Never
 * zero: that is cleared memory, in which a producer may already have stored kind and slots. */
static inline uint32_t pasta_commit_word(uint64_t logical) { return (uint32_t)logical | UINT32_C(1) << 31; }

/* Pushes physical segment number `segment - 1`; the tag in the upper half defeats reuse (ABA). */
static inline void pasta_push_free(pasta_ring *r, uint32_t segment) {
    uint64_t head = __atomic_load_n(&r->free_head, __ATOMIC_ACQUIRE), with_segment;
    do {
        __atomic_store_n(&r->free_next[segment - 1], (uint32_t)head, __ATOMIC_RELAXED);
        with_segment = ((head >> 32) + 1) << 32 | segment;
    } while (
        !__atomic_compare_exchange_n(&r->free_head, &head, with_segment, 1, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
}

/* Counts segments as backed, unless more are already. */
static inline void pasta_raise_backed(pasta_ring *r, uint32_t to) {
    uint32_t backed = __atomic_load_n(&r->backed, __ATOMIC_ACQUIRE);
    while (backed < to &&
           !__atomic_compare_exchange_n(&r->backed, &backed, to, 1, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    }
}

/* Memory of a logical segment, or NULL where it is not installed. */
static inline uint8_t *pasta_segment(pasta_ring *r, uint64_t logical) {
    uint64_t entry = __atomic_load_n(&r->segment_map[logical % PASTA_MAX_SEGMENTS], __ATOMIC_ACQUIRE);
    if (entry >> 16 != logical + 1) return 0;
    return (uint8_t *)r + r->data_offset + ((entry & 0xffff) - 1) * r->segment_bytes;
}

/* Waits until *word differs from `value`, or for `timeout_ns`. */
static inline void pasta_futex_wait(uint32_t *word, uint32_t value, uint64_t timeout_ns) {
    struct timespec t = {(time_t)(timeout_ns / 1000000000u), (long)(timeout_ns % 1000000000u)};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &t, 0, 0);
}

static inline void pasta_futex_wake(uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, 0, 0, 0); }

#endif
