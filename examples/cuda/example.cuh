// Shared by the CUDA examples: stop at the first error; print what a profiler must record.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#define CHECK(call) check((call), #call, __FILE__, __LINE__)

inline void check(cudaError_t status, const char *call, const char *file, int line) {
    if (status == cudaSuccess) return;
    std::fprintf(stderr, "%s:%d: %s: %s\n", file, line, call, cudaGetErrorString(status));
    std::exit(1);
}

// With --expect a program prints lines "KIND[.DETAIL]=COUNT": the records of its run.
inline bool expects(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (!std::strcmp(argv[i], "--expect")) return true;
    return false;
}

// The number after `option`, or `otherwise`.
inline long number(int argc, char **argv, const char *option, long otherwise) {
    for (int i = 1; i + 1 < argc; i++)
        if (!std::strcmp(argv[i], option)) return std::strtol(argv[i + 1], nullptr, 0);
    return otherwise;
}
