// One vadd of 2^26 floats, timed on the device: vadd [SMALL]
//   SMALL  other allocations, of 64 KiB, that are live meanwhile
// Prints vadd_ms=MEDIAN of nine launches on stderr.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#define CHECK(call)                                                                              \
    do {                                                                                         \
        cudaError_t error = (call);                                                              \
        if (error != cudaSuccess) {                                                              \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error));       \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

__global__ void vadd(const float *a, const float *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

static void allocate_small(int count) {
    void *kept;
    for (int i = 0; i < count; i++) CHECK(cudaMalloc(&kept, 1 << 16));
}

int main(int argc, char **argv) {
    const int n = 1 << 26, small = argc > 1 ? atoi(argv[1]) : 0, rounds = 9;
    const size_t bytes = n * sizeof(float);
    float *a, *b, *c, ms[rounds];
    allocate_small(small / 2);
    CHECK(cudaMalloc(&a, bytes));
    CHECK(cudaMalloc(&b, bytes));
    CHECK(cudaMalloc(&c, bytes));
    allocate_small(small - small / 2);
    CHECK(cudaMemset(a, 0, bytes));
    CHECK(cudaMemset(b, 0, bytes));
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    for (float &time : ms) {
        CHECK(cudaEventRecord(begin));
        vadd<<<n / 256, 256>>>(a, b, c, n);
        CHECK(cudaEventRecord(end));
        CHECK(cudaEventSynchronize(end));
        CHECK(cudaEventElapsedTime(&time, begin, end));
    }
    std::sort(ms, ms + rounds);
    fprintf(stderr, "vadd_ms=%.3f\n", ms[rounds / 2]);
}
