/* Profiled blocks of the program (pasta.profile, pasta attach): a second reader next to the ring's consumer reads the
 * events of a block, and the ring keeps the events that it has not read. */
#define _GNU_SOURCE
#include "internal.h"

/* Path of this process's ring, which it opens; NULL in a process that is not profiled. */
PASTA_EXPORT const char *pasta_block_ring(void) { return pasta_open() ? pasta_ring_path() : NULL; }

/* Whether a block is read: the next one would take its place. */
PASTA_EXPORT int pasta_block_is_read(void) {
    pasta_ring *r = pasta_same_process() ? pasta_ring_mine() : NULL;
    return r && __atomic_load_n(&r->reader, __ATOMIC_ACQUIRE) != 0;
}

/* Starts profiling; returns the position at which the block's events begin.  The ring keeps earlier
 * events too.  `was_on`: whether it was started before, which pasta_block_end restores; `number`: of the block, which its
 * reader passes on. */
PASTA_EXPORT uint64_t pasta_block_begin(int *was_on, uint32_t *number) {
    pasta_ring *r = pasta_ring_mine();
    uint64_t from;
    *number = __atomic_add_fetch(&pasta_blocks, 1, __ATOMIC_RELAXED) & 0xffff;
    __atomic_store_n(&r->ends, 0, __ATOMIC_SEQ_CST);
    do {
        from = __atomic_load_n(&r->released, __ATOMIC_SEQ_CST);
        __atomic_store_n(&r->reader, (uint64_t)*number << 48 | (from + 1), __ATOMIC_SEQ_CST);
    } while (__atomic_load_n(&r->released, __ATOMIC_SEQ_CST) != from);
    /* read after `reader` is set: a consumer that did not see that has released nothing behind it */
    uint64_t begin = __atomic_load_n(&r->tail, __ATOMIC_SEQ_CST);
    *was_on = pasta_profiling_hold();
    return begin;
}

/* Restores the state before the block; returns the position at which the block's events end. */
PASTA_EXPORT uint64_t pasta_block_end(int was_on) {
    pasta_ring *r = pasta_same_process() ? pasta_ring_mine() : NULL;
    /* first: a reader that does not see it has seen no later tail than the one returned */
    if (r) __atomic_store_n(&r->ends, 1, __ATOMIC_SEQ_CST);
    pasta_profiling_release(was_on);
    return r ? __atomic_load_n(&r->tail, __ATOMIC_SEQ_CST) : 0;
}

/* The reader is gone: keep nothing for it. */
PASTA_EXPORT void pasta_block_forget(void) {
    pasta_ring *r = pasta_same_process() ? pasta_ring_mine() : NULL;
    if (r) __atomic_store_n(&r->reader, 0, __ATOMIC_RELEASE);
}
