// Launches behind kernels that still run, with many calls in between that submit nothing:
//
//     polled
//
// CUPTI's correlation ids count all calls, so those of the launches that wait are far apart. Prints the numbers of launches and
// of other calls.
#include "example.cuh"

enum { STREAMS = 8, LAUNCHES = 900, MOST_CALLS = 40 };

__global__ void busy(long long cycles) {
    for (long long begin = clock64(); clock64() - begin < cycles;) {}
}
__global__ void add(int *x) { atomicAdd(x, 1); }

int main() {
    cudaStream_t streams[STREAMS];
    cudaEvent_t event;
    int *x, result = 0;
    long long calls = 0;
    CHECK(cudaMalloc(&x, sizeof *x));
    CHECK(cudaMemset(x, 0, sizeof *x));
    CHECK(cudaEventCreate(&event));
    for (cudaStream_t &stream : streams) {
        CHECK(cudaStreamCreate(&stream));
        busy<<<1, 1, 0, stream>>>(1'000'000'000);
    }
    CHECK(cudaEventRecord(event, streams[0]));
    unsigned random = 1;
    for (int i = 0; i < STREAMS * LAUNCHES; i++) {
        add<<<1, 1, 0, streams[i % STREAMS]>>>(x);
        random = random * 1664525 + 1013904223;
        for (unsigned n = (random >> 16) % MOST_CALLS; n; n--, calls++) cudaEventQuery(event);
    }
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(&result, x, sizeof result, cudaMemcpyDeviceToHost));
    std::printf("%d %lld\n", STREAMS + result, calls);
}
