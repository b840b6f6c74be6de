// vadd, timed on the device: vadd [SMALL [LOG2 [LAUNCHES]]]
//   SMALL     other live allocations of 64 KiB each (0)
//   LOG2      log2 of the number of floats (26)
//   LAUNCHES  number of launches (9)
// Prints vadd_ms=MEDIAN of the launches on stderr.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <vector>

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
    const int small = argc > 1 ? atoi(argv[1]) : 0, n = 1 << (argc > 2 ? atoi(argv[2]) : 26);
    const int launches = argc > 3 ? atoi(argv[3]) : 9;
    const size_t bytes = n * sizeof(float);
    std::vector<float> ms(launches);
    float *a, *b, *c;
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
    std::sort(ms.begin(), ms.end());
    fprintf(stderr, "vadd_ms=%.3f\n", ms[launches / 2]);
}
