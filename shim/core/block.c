/* Blocks of the program that are profiled by themselves (pasta.profile): another reader than the
 * ring's consumer follows the events of a block, and what it has not read stays in the ring. */
#define _GNU_SOURCE
#include "internal.h"

/* Path of this process's ring, opened if need be; NULL in a process that is not to be profiled. */
PASTA_EXPORT const char *pasta_block_ring(void) { return pasta_open() ? pasta_ring_path() : NULL; }

/* Starts profiling; returns the position at which the block's events begin.  What the ring still has
 * from before is kept for the reader too.  `was_on`: what pasta_block_end is to go back to; `number`:
 * of the block, which the reader must give. */
PASTA_EXPORT uint64_t pasta_block_begin(int *was_on, uint32_t *number) {
    static uint32_t blocks;
    pasta_ring *r = pasta_ring_mine();
    uint64_t from;
    *number = ++blocks & 0xffff;
    __atomic_store_n(&r->ends, 0, __ATOMIC_SEQ_CST);
    do {
        from = __atomic_load_n(&r->released, __ATOMIC_SEQ_CST);
        __atomic_store_n(&r->reader, (uint64_t)*number << 48 | (from + 1), __ATOMIC_SEQ_CST);
    } while (__atomic_load_n(&r->released, __ATOMIC_SEQ_CST) != from);
    /* after it is held: whoever did not see that has released nothing behind this */
    uint64_t begin = __atomic_load_n(&r->tail, __ATOMIC_SEQ_CST);
    *was_on = pasta_profiling_is_on();
    pasta_profiling_set(true, PASTA_ORIGIN_api);
    return begin;
}

/* Goes back to what was before; returns the position at which the block's events end. */
PASTA_EXPORT uint64_t pasta_block_end(int was_on) {
    pasta_ring *r = pasta_same_process() ? pasta_ring_mine() : NULL;
    /* first: a reader that does not see it has seen no later tail than the one below */
    if (r) __atomic_store_n(&r->ends, 1, __ATOMIC_SEQ_CST);
    pasta_profiling_set(was_on, PASTA_ORIGIN_api);
    return r ? __atomic_load_n(&r->tail, __ATOMIC_SEQ_CST) : 0;
}

/* Where the reader is gone: nothing is kept for it any more. */
PASTA_EXPORT void pasta_block_forget(void) {
    pasta_ring *r = pasta_same_process() ? pasta_ring_mine() : NULL;
    if (r) __atomic_store_n(&r->reader, 0, __ATOMIC_RELEASE);
}
