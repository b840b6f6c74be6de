/* A program that mostly launches: launches COUNT GAP, over 50 empty kernels, with at least GAP ns from
 * one launch to the next.  3 events per launch.  Prints ns per launch. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "refacc_kernel.h"

enum { KERNELS = 50, BETWEEN_WAITS = 256 };

static bool nothing(ra_warp *w) {
    (void)w;
    return false;
}

#define RA(call)                                               \
    do {                                                       \
        int error_ = (call);                                   \
        if (error_ != RA_OK) {                                 \
            fprintf(stderr, "%s: %s\n", #call, ra_error_string(error_)); \
            exit(1);                                           \
        }                                                      \
    } while (0)

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void load(ra_function functions[KERNELS]) {
    static char symbols[KERNELS][32], image[16 + KERNELS * 32] = "refacc-module 1\n";
    static ra_kernel kernels[KERNELS];
    for (int i = 0; i < KERNELS; i++) {
        snprintf(symbols[i], sizeof symbols[i], "_Z9nothing%02dv", i);
        kernels[i] = (ra_kernel){.symbol = symbols[i], .run = nothing, .registers = 16};
        strcat(strcat(image, symbols[i]), "\n");
    }
    ra_module module;
    RA(ra_kernel_register(kernels, KERNELS));
    RA(ra_module_load(&module, image, strlen(image)));
    for (int i = 0; i < KERNELS; i++) RA(ra_module_function(&functions[i], module, symbols[i]));
}

int main(int count, char **arguments) {
    ra_function functions[KERNELS];
    uint32_t grid[3] = {1, 1, 1}, block[3] = {32, 1, 1};
    if (count != 3) return 2;
    long launches = atol(arguments[1]);
    uint64_t gap = strtoull(arguments[2], NULL, 10);
    load(functions);
    uint64_t start = now(), next = start;
    for (long i = 0; i < launches; i++) {
        while (gap && now() < next) {
        }
        next = now() + gap;
        RA(ra_launch(functions[i % KERNELS], grid, block, 0, NULL, NULL));
        if (i % BETWEEN_WAITS == 0) RA(ra_context_synchronize());
    }
    RA(ra_context_synchronize());
    printf("launch_ns %.1f\n", (double)(now() - start) / (double)launches);
    return 0;
}
