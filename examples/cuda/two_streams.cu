// Two host threads, each with its own stream and kernel, launch at the same time.
//   two_streams [--launches COUNT] [--expect]
#include <thread>

#include "example.cuh"

__global__ void left(unsigned *sum) { if (!threadIdx.x) atomicAdd(sum, 1u); }
__global__ void right(unsigned *sum) { if (!threadIdx.x) atomicAdd(sum, 1u); }

template <typename Kernel> void work(Kernel kernel, long launches, unsigned *sum) {
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    for (long i = 0; i < launches; i++) kernel<<<unsigned(i % 64 + 1), 32, 0, stream>>>(sum);
    CHECK(cudaGetLastError());
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaStreamDestroy(stream));
}

int main(int argc, char **argv) {
    const long launches = number(argc, argv, "--launches", 1000);
    unsigned *sums;
    CHECK(cudaMallocManaged(&sums, 2 * sizeof(unsigned)));
    sums[0] = sums[1] = 0;
    std::thread one([&] { work(left, launches, &sums[0]); });
    std::thread two([&] { work(right, launches, &sums[1]); });
    one.join();
    two.join();
    CHECK(cudaDeviceSynchronize());

    unsigned blocks = 0;
    for (long i = 0; i < launches; i++) blocks += unsigned(i % 64 + 1);
    const bool wrong = sums[0] != blocks || sums[1] != blocks;
    std::printf("two_streams: %u and %u blocks\n", sums[0], sums[1]);
    CHECK(cudaFree(sums));
    if (expects(argc, argv)) {
        std::printf("kernel_launch=%ld\n", 2 * launches);
        std::printf("kernel_launch.blocks=%u\n", 2 * blocks);
        std::printf("kernel_launch_end=%ld\n", 2 * launches);
        std::printf("stream_create=2\n");
        std::printf("stream_destroy=2\n");
        std::printf("sync.stream=2\n");
        std::printf("memory_alloc.managed=1\n");
    }
    return wrong;
}
