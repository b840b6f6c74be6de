// Adds two vectors: three allocations, two copies to the device, launches, one copy back.
//   vadd [--n FLOATS] [--launches COUNT] [--blocks COUNT] [--apart 1] [--expect]
// With --apart, a kernel reads an input after each launch: the next one finds nothing in the L2 cache that is to be
// written back.
#include <vector>

#include "example.cuh"

__global__ void vadd(const float *a, const float *b, float *c, size_t n) {
#pragma unroll 1
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x)
        c[i] = a[i] + b[i];
}

__global__ void sweep(const float *a, float *c, size_t n) {
    float sum = 0;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) sum += a[i];
    if (sum < 0) *c = sum; // never
}

int main(int argc, char **argv) {
    const size_t n = number(argc, argv, "--n", 1 << 20), bytes = n * sizeof(float);
    const long launches = number(argc, argv, "--launches", 1), apart = number(argc, argv, "--apart", 0);
    std::vector<float> a(n), b(n), c(n);
    for (size_t i = 0; i < n; i++) a[i] = float(i % 1000), b[i] = float(i % 7);

    float *da, *db, *dc;
    CHECK(cudaMalloc(&da, bytes));
    CHECK(cudaMalloc(&db, bytes));
    CHECK(cudaMalloc(&dc, bytes));
    CHECK(cudaMemcpy(da, a.data(), bytes, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(db, b.data(), bytes, cudaMemcpyHostToDevice));
    const unsigned blocks = unsigned(number(argc, argv, "--blocks", long((n + 255) / 256)));
    for (long i = 0; i < launches; i++) {
        vadd<<<blocks, 256>>>(da, db, dc, n);
        if (apart) sweep<<<1024, 256>>>(da, dc, n);
    }
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(c.data(), dc, bytes, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(da));
    CHECK(cudaFree(db));
    CHECK(cudaFree(dc));

    size_t wrong = 0;
    for (size_t i = 0; i < n; i++) wrong += c[i] != a[i] + b[i];
    std::printf("vadd: %zu floats, %zu wrong\n", n, wrong);
    if (expects(argc, argv)) {
        std::printf("kernel_launch=%ld\n", launches * (apart ? 2 : 1));
        std::printf("kernel_launch.blocks=%ld\n", launches * (long(blocks) + (apart ? 1024 : 0)));
        std::printf("kernel_launch_end=%ld\n", launches * (apart ? 2 : 1));
        std::printf("memory_alloc.device=3\n");
        std::printf("memory_alloc.device.bytes=%zu\n", 3 * bytes);
        std::printf("memory_copy.host_to_device=2\n");
        std::printf("memory_copy.host_to_device.bytes=%zu\n", 2 * bytes);
        std::printf("memory_copy.device_to_host=1\n");
        std::printf("memory_copy.device_to_host.bytes=%zu\n", bytes);
        std::printf("graph_launch=0\n");
    }
    return wrong != 0;
}
