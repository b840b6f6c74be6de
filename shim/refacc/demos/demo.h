/* What the demonstration programs share: arguments, checks and --expect. */
#ifndef RA_DEMO_H
#define RA_DEMO_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "refacc.h"

static void demo_fail(const char *what, const char *text, int line) {
    fprintf(stderr, "line %d: %s: %s\n", line, what, text);
    exit(1);
}

#define RA(call)                                                            \
    do {                                                                    \
        int error_ = (call);                                                \
        if (error_ != RA_OK) demo_fail(#call, ra_error_string(error_), __LINE__); \
    } while (0)
#define CHECK(condition)                                            \
    do {                                                            \
        if (!(condition)) demo_fail(#condition, "does not hold", __LINE__); \
    } while (0)

/* Number of operations of the program that a profiler counts. */
struct demo_counts {
    long launches; /* kernels, those of graphs included */
    long graph_launches;
    long copies;
    long sets;
    long allocations;
    long frees;
    long streams;       /* created */
    long event_records;
    long leaked_bytes;
};

/* For main: with --expect, prints the counts and ends. */
static inline void demo_expect(int argc, char **argv, struct demo_counts c) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--expect")) continue;
        printf("launches=%ld\ngraph_launches=%ld\ncopies=%ld\nsets=%ld\nallocations=%ld\nfrees=%ld\nstreams=%ld\n"
               "event_records=%ld\nleaked_bytes=%ld\n",
               c.launches, c.graph_launches, c.copies, c.sets, c.allocations, c.frees, c.streams, c.event_records,
               c.leaked_bytes);
        exit(0);
    }
}

static inline bool demo_flag(int argc, char **argv, const char *flag) {
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], flag)) return true;
    return false;
}

/* The number-th argument that is not an option. */
static inline long demo_number(int argc, char **argv, int number, long otherwise, long max) {
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-' || number-- > 0) continue;
        char *end;
        long value = strtol(argv[i], &end, 10);
        if (*end || value < 1 || value > max) {
            fprintf(stderr, "%s: not a number from 1 to %ld\n", argv[i], max);
            exit(2);
        }
        return value;
    }
    return otherwise;
}

static inline ra_function demo_function(const char *symbol) {
    static ra_module module;
    ra_function function;
    if (!module) RA(ra_module_load_builtin(&module));
    RA(ra_module_function(&function, module, symbol));
    return function;
}

/* Launches over n threads in blocks of 256. */
static inline void demo_launch(ra_function function, long n, ra_stream stream, void *const *parameters) {
    uint32_t grid[3] = {(uint32_t)((n + 255) / 256), 1, 1}, block[3] = {256, 1, 1};
    RA(ra_launch(function, grid, block, 0, stream, parameters));
}

static inline void *demo_alloc(uint64_t bytes) {
    void *address;
    RA(ra_alloc(&address, bytes));
    return address;
}

/* Small whole and half numbers, so that sums are exact. */
static inline void demo_numbers(float *x, long n, long seed) {
    for (long i = 0; i < n; i++) x[i] = (float)((i * 7 + seed) % 23 - 11) * 0.5f;
}

#endif
