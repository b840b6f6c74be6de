/* Fills a ring with the events of kernel launches: ring_mix LAUNCHES.
 *
 * Each launch has a launch, the return of its call and, some launches later, its completion, over
 * 50 kernels of 4 shapes each and 4 streams; a launch every 5 us of a synthetic clock, as in a busy
 * program.  bench/consume.py reads the ring. */
#include <stdio.h>
#include <stdlib.h>

#include "../../shim/core/internal.h"

enum { KERNELS = 50, SHAPES = 4, STREAMS = 4, BEHIND = 16, GAP_NS = 5000 };

static uint64_t state = UINT64_C(88172645463325252), now;
static uint32_t names[KERNELS];
static struct {
    uint64_t ordinal, correlation, stream;
} waiting[BEHIND];

static uint32_t chance(uint32_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 33) % below;
}

static void at(void *payload, uint64_t time, uint64_t correlation) {
    pasta_header_of(payload)->time = time;
    pasta_header_of(payload)->correlation = correlation;
}

static bool complete(uint64_t ordinal, uint64_t correlation, uint64_t stream) {
    pasta_kernel_complete *e = PASTA_BEGIN(kernel_complete, 0, 0, stream);
    if (!e) return false;
    at(e, now, correlation);
    e->ordinal = ordinal;
    e->end = now - 100 - chance(1000);
    e->start = e->end - 2000 - chance(20000);
    pasta_publish(e);
    return true;
}

static bool launch(uint64_t number) {
    uint32_t kernel = chance(KERNELS), shape = chance(SHAPES);
    uint64_t stream = 0x7f0000001000 + 0x100 * chance(STREAMS), correlation = pasta_next_correlation();
    now += GAP_NS - 500 + chance(1000);
    pasta_kernel_launch *e = PASTA_BEGIN(kernel_launch, 0, 0, stream);
    if (!e) return false;
    at(e, now, correlation);
    e->name = names[kernel];
    for (int axis = 0; axis < 3; axis++) e->grid[axis] = axis ? 1 : 64 << shape, e->block[axis] = axis ? 1 : 256;
    e->registers = (uint16_t)(32 + kernel);
    e->shared_static = 1024;
    e->shared_dynamic = 0;
    e->local = 0;
    e->ordinal = pasta_next_launch();
    e->entry_pc = UINT64_C(0x7f2000000000) + 4096 * kernel;
    e->function = UINT64_C(0x55d000000000) + 64 * kernel;
    e->module = UINT64_C(0x55d100000000);
    uint64_t ordinal = e->ordinal;
    pasta_publish(e);

    pasta_launch_end *end = PASTA_BEGIN_AS(kernel_launch_end, launch_end, 0, 0, stream);
    if (!end) return false;
    at(end, now + 1500 + chance(500), correlation);
    end->ordinal = ordinal;
    pasta_publish(end);

    size_t slot = number % BEHIND;
    if (number >= BEHIND && !complete(waiting[slot].ordinal, waiting[slot].correlation, waiting[slot].stream))
        return false;
    waiting[slot].ordinal = ordinal;
    waiting[slot].correlation = correlation;
    waiting[slot].stream = stream;
    return true;
}

int main(int count, char **arguments) {
    if (count != 2 || !pasta_open()) return 1;
    uint64_t launches = strtoull(arguments[1], NULL, 10);
    now = pasta_now();
    for (int i = 0; i < KERNELS; i++) {
        char name[64];
        snprintf(name, sizeof name, "_Z%dkernel_number_%02dPKfPfi", 16, i);
        names[i] = pasta_intern_z(name);
    }
    for (uint64_t i = 0; i < launches; i++)
        if (!launch(i)) return 1;
    for (uint64_t i = 0; i < BEHIND && i < launches; i++)
        if (!complete(waiting[i].ordinal, waiting[i].correlation, waiting[i].stream)) return 1;
    return 0;
}
