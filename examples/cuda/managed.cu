// A layer in managed memory: the host writes the input before each iteration and reads the output after it; the
// weights are written once, and both read them.  As `pasta demo managed` on the reference accelerator.
//   managed [--n FLOATS] [--iterations N] [--prefetch] [--expect]
// It refuses to use more than half of the free device memory, so that nothing is evicted.
#include "example.cuh"

__global__ void add(const float *a, const float *b, float *c, long n) {
    long i = blockIdx.x * static_cast<long>(blockDim.x) + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

__global__ void scale(float *x, float factor, float offset, long n) {
    long i = blockIdx.x * static_cast<long>(blockDim.x) + threadIdx.x;
    if (i < n) x[i] = factor * x[i] + offset;
}

static void prefetch(void *p, size_t bytes, bool to_device) {
#if CUDART_VERSION >= 13000
    cudaMemLocation place = {};
    place.type = to_device ? cudaMemLocationTypeDevice : cudaMemLocationTypeHost;
    CHECK(cudaMemPrefetchAsync(p, bytes, place, 0, nullptr));
#else
    CHECK(cudaMemPrefetchAsync(p, bytes, to_device ? 0 : cudaCpuDeviceId, nullptr));
#endif
}

static void advise_read_mostly(void *p, size_t bytes) {
#if CUDART_VERSION >= 13000
    cudaMemLocation place = {};
    place.type = cudaMemLocationTypeDevice;
    CHECK(cudaMemAdvise(p, bytes, cudaMemAdviseSetReadMostly, place));
#else
    CHECK(cudaMemAdvise(p, bytes, cudaMemAdviseSetReadMostly, 0));
#endif
}

static void fill(float *x, long n, long seed) {
    for (long i = 0; i < n; i++) x[i] = ((i * 7 + seed) % 23 - 11) * 0.5f;
}

int main(int argc, char **argv) {
    long n = number(argc, argv, "--n", 1l << 24), iterations = number(argc, argv, "--iterations", 4);
    bool planned = false;
    for (int i = 1; i < argc; i++) planned = planned || !std::strcmp(argv[i], "--prefetch");
    size_t bytes = n * sizeof(float), free_bytes, total;
    CHECK(cudaMemGetInfo(&free_bytes, &total));
    if (3 * bytes > free_bytes / 2) {
        std::fprintf(stderr, "%zu bytes are more than half of the free device memory\n", 3 * bytes);
        return 1;
    }
    float *input, *weights, *output;
    CHECK(cudaMallocManaged(&input, bytes));
    CHECK(cudaMallocManaged(&weights, bytes));
    CHECK(cudaMallocManaged(&output, bytes));
    fill(weights, n, 2);
    if (planned) advise_read_mostly(weights, bytes);
    unsigned blocks = static_cast<unsigned>((n + 255) / 256);
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    for (long k = 0; k < iterations; k++) {
        fill(input, n, k);
        CHECK(cudaEventRecord(begin));
        if (planned) {
            prefetch(input, bytes, true);
            prefetch(weights, bytes, true);
            prefetch(output, bytes, true);
        }
        add<<<blocks, 256>>>(input, weights, output, n);
        scale<<<blocks, 256>>>(output, 2, 1, n);
        CHECK(cudaGetLastError());
        CHECK(cudaEventRecord(end));
        if (planned) prefetch(output, bytes, false);
        CHECK(cudaDeviceSynchronize());
        for (long i = 0; i < n; i++)
            if (output[i] != 2 * (input[i] + weights[i]) + 1) return std::fprintf(stderr, "wrong at %ld\n", i), 1;
        float ms;
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        std::fprintf(stderr, "iteration %ld: %.3f ms\n", k, ms);
    }
    CHECK(cudaFree(input));
    CHECK(cudaFree(weights));
    CHECK(cudaFree(output));
    if (expects(argc, argv))
        std::printf("kernel_launch=%ld\nmemory_alloc.managed=3\nmemory_free.managed=3\n", 2 * iterations);
    else
        std::printf("managed: %ld iterations over %ld elements, correct\n", iterations, n);
    return 0;
}
