/* The network's forward pass of the demonstration convolution, timed by itself: steps COUNT.
 * Prints the time of the loop, the process's processor time in it, and the median of its steps: 5
 * launches and a wait each. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "demos/demo.h"

enum { CHANNELS = 3, HIDDEN = 8, CLASSES = 10, SIDE = 32, PIXELS = SIDE * SIDE };

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t processor_time(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000000u +
           (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1000u;
}

static void conv2d(void *in, void *weight, void *bias, void *out, int channels, int filters, int side) {
    int batch = 1, size = SIDE;
    demo_launch(demo_function("_Z6conv2dPKfS0_S0_Pfiiiiii"), filters * PIXELS, NULL,
                (void *[]){&in, &weight, &bias, &out, &batch, &channels, &size, &size, &filters, &side});
}

static void scale(void *x, int n) {
    float factor = 0.25f, offset = 0.5f;
    demo_launch(demo_function("_Z5scalePfffi"), n, NULL, (void *[]){&x, &factor, &offset, &n});
}

static void softmax(void *in, void *out, int rows, int columns) {
    uint32_t grid[3] = {(uint32_t)(rows + 3) / 4, 1, 1}, block[3] = {128, 1, 1};
    RA(ra_launch(demo_function("_Z12softmax_rowsPKfPfii"), grid, block, 0, NULL,
                 (void *[]){&in, &out, &rows, &columns}));
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    long steps = demo_number(argc, argv, 0, 1000, 1L << 20);
    demo_expect(argc, argv, (struct demo_counts){.launches = 5 * steps, .sets = 3, .allocations = 6});
    uint64_t *each = calloc((size_t)steps, sizeof *each);
    CHECK(each);
    void *input = demo_alloc(CHANNELS * PIXELS * 4), *hidden = demo_alloc(HIDDEN * PIXELS * 4);
    void *logits = demo_alloc(CLASSES * PIXELS * 4), *output = demo_alloc(CLASSES * PIXELS * 4);
    void *weight = demo_alloc(4096), *bias = demo_alloc(4096);
    RA(ra_memset(input, 0, 4, CHANNELS * PIXELS));
    RA(ra_memset(weight, 0, 4, 1024));
    RA(ra_memset(bias, 0, 4, 1024));
    uint64_t begin = now(), used = processor_time();
    for (long i = 0; i < steps; i++) {
        uint64_t start = now();
        conv2d(input, weight, bias, hidden, CHANNELS, HIDDEN, 3);
        scale(hidden, HIDDEN * PIXELS);
        conv2d(hidden, weight, bias, logits, HIDDEN, CLASSES, 1);
        scale(logits, CLASSES * PIXELS);
        softmax(logits, output, CLASSES * SIDE, SIDE);
        RA(ra_context_synchronize());
        each[i] = now() - start;
    }
    printf("loop_ns %llu\n", (unsigned long long)(now() - begin));
    printf("processor_ns %llu\n", (unsigned long long)(processor_time() - used));
    qsort(each, (size_t)steps, sizeof *each, ascending);
    printf("step_ns %llu\n", (unsigned long long)each[steps / 2]);
    return 0;
}
