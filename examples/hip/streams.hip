// Two host threads, each with its own stream and kernel, launch at the same time.
//   streams [--launches COUNT] [--expect]
#include <thread>

#include "example.h"

__global__ void left(unsigned *sum) { if (!threadIdx.x) atomicAdd(sum, 1u); }
__global__ void right(unsigned *sum) { if (!threadIdx.x) atomicAdd(sum, 1u); }

template <typename Kernel> void work(Kernel kernel, long launches, unsigned *sum) {
    hipStream_t stream;
    CHECK(hipStreamCreate(&stream));
    for (long i = 0; i < launches; i++) kernel<<<unsigned(i % 64 + 1), 64, 0, stream>>>(sum);
    CHECK(hipGetLastError());
    CHECK(hipStreamSynchronize(stream));
    CHECK(hipStreamDestroy(stream));
}

int main(int argc, char **argv) {
    const long launches = number(argc, argv, "--launches", 1000);
    unsigned *sums, counted[2] = {0, 0};
    CHECK(hipMalloc(&sums, sizeof counted));
    CHECK(hipMemset(sums, 0, sizeof counted));
    CHECK(hipDeviceSynchronize());
    std::thread one([&] { work(left, launches, &sums[0]); });
    std::thread two([&] { work(right, launches, &sums[1]); });
    one.join();
    two.join();
    CHECK(hipMemcpy(counted, sums, sizeof counted, hipMemcpyDeviceToHost));
    CHECK(hipFree(sums));

    unsigned blocks = 0;
    for (long i = 0; i < launches; i++) blocks += unsigned(i % 64 + 1);
    const bool wrong = counted[0] != blocks || counted[1] != blocks;
    std::printf("streams: %u and %u blocks\n", counted[0], counted[1]);
    if (expects(argc, argv)) {
        std::printf("kernel_launch=%ld\n", 2 * launches);
        std::printf("kernel_launch:left=%ld\nkernel_launch:right=%ld\n", launches, launches);
        std::printf("kernel_launch.blocks=%u\n", 2 * blocks);
        std::printf("kernel_launch_end=%ld\n", 2 * launches);
        std::printf("kernel_complete=%ld\n", 2 * launches);
        std::printf("stream_create=2\nstream_destroy=2\n");
        std::printf("sync.stream=2\nsync.device=1\n");
        std::printf("memory_set=1\nmemory_set.bytes=%zu\n", sizeof counted);
    }
    return wrong;
}
