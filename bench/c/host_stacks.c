/* host_stacks DEPTH COUNT: the host's time for a launch from DEPTH nested calls on the reference accelerator, ns, the
 * median of COUNT. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "refacc.h"

#define RA(call) \
    do {         \
        if (call) exit(1); \
    } while (0)

static ra_function scale;
static void *x;
static uint64_t *times;
static long count;
static volatile int sink;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void launch_all(void) {
    uint32_t grid[3] = {1, 1, 1}, block[3] = {1, 1, 1};
    float half = 0.5f, one = 1;
    int n = 1;
    for (long i = 0; i < count; i++) {
        uint64_t begin = now();
        RA(ra_launch(scale, grid, block, 0, NULL, (void *[]){&x, &half, &one, &n}));
        times[i] = now() - begin;
        if (i % 64 == 0) RA(ra_context_synchronize());
    }
}

static __attribute__((noinline)) void nested(long depth) {
    if (depth) nested(depth - 1);
    else launch_all();
    sink++;
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    ra_module module;
    if (argc < 3) return 2;
    count = atol(argv[2]);
    times = calloc((size_t)count, sizeof *times);
    RA(ra_module_load_builtin(&module));
    RA(ra_module_function(&scale, module, "_Z5scalePfffi"));
    RA(ra_alloc(&x, 64));
    nested(atol(argv[1]));
    RA(ra_context_synchronize());
    qsort(times, (size_t)count, sizeof *times, ascending);
    printf("median %llu\n", (unsigned long long)times[count / 2]);
    return 0;
}
