// What all CUDA programs here have: errors, the option, and the time of their steps.
#pragma once
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define CHECK(call)                                                        \
    do {                                                                   \
        cudaError_t error = (call);                                        \
        if (error != cudaSuccess) {                                        \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error)); \
            exit(1);                                                       \
        }                                                                  \
    } while (0)

static bool changed(int count, char **words) { return count == 2 && !strcmp(words[1], "--changed"); }

// Runs the steps; prints the mean time of one, and the memory in use, on stderr.
template <typename Step> static void measured(int steps, Step step) {
    for (int i = 0; i < 3; i++) step();
    CHECK(cudaDeviceSynchronize());
    auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < steps; i++) step();
    CHECK(cudaDeviceSynchronize());
    std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    size_t available, all;
    CHECK(cudaMemGetInfo(&available, &all));
    fprintf(stderr, "mean_step_ms=%.4f peak_mib=%zu\n", took.count() / steps, (all - available) >> 20);
}
