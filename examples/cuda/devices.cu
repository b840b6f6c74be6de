// A host thread for each visible device, with its own stream, memory and launches; then every
// device sends its result to the next one.
//   devices [--launches COUNT] [--uva 1] [--expect]
// --uva 1 copies between devices by address, with peer access where the devices have it.
#include <thread>
#include <vector>

#include "example.cuh"

enum { N = 1 << 14, THREADS = 256 };
static const size_t BYTES = N * sizeof(unsigned);

__global__ void step(unsigned *x) { x[blockIdx.x * blockDim.x + threadIdx.x] += 1; }

struct Device {
    unsigned *x, *inbox;
    cudaStream_t stream;
};

static unsigned first(int device) { return 1000u * unsigned(device + 1); }

static size_t inbox_bytes(int device) { return BYTES * size_t(device + 1); }

static void work(Device &mine, int device, long launches) {
    const std::vector<unsigned> start(N, first(device));
    CHECK(cudaSetDevice(device));
    CHECK(cudaStreamCreate(&mine.stream));
    CHECK(cudaMalloc(&mine.x, BYTES));
    CHECK(cudaMalloc(&mine.inbox, inbox_bytes(device)));
    CHECK(cudaMemcpyAsync(mine.x, start.data(), BYTES, cudaMemcpyHostToDevice, mine.stream));
    for (long i = 0; i < launches; i++) step<<<unsigned(device % (N / THREADS) + 1), THREADS, 0, mine.stream>>>(mine.x);
    CHECK(cudaGetLastError());
    CHECK(cudaStreamSynchronize(mine.stream));
}

static void send(const Device *devices, int from, int to, bool uva) {
    CHECK(cudaSetDevice(from));
    if (!uva) {
        CHECK(cudaMemcpyPeerAsync(devices[to].inbox, to, devices[from].x, from, BYTES, devices[from].stream));
        return;
    }
    int reachable = 0;
    CHECK(cudaDeviceCanAccessPeer(&reachable, from, to));
    if (reachable) CHECK(cudaDeviceEnablePeerAccess(to, 0));
    CHECK(cudaMemcpyAsync(devices[to].inbox, devices[from].x, BYTES, cudaMemcpyDefault, devices[from].stream));
}

int main(int argc, char **argv) {
    const long launches = number(argc, argv, "--launches", 10);
    const bool uva = number(argc, argv, "--uva", 0) != 0;
    int count, wrong = 0;
    CHECK(cudaGetDeviceCount(&count));
    const bool peers = count > 1;
    std::vector<Device> devices(count);
    std::vector<std::thread> threads;
    for (int d = 0; d < count; d++) threads.emplace_back([&, d] { work(devices[d], d, launches + d); });
    for (std::thread &thread : threads) thread.join();
    for (int d = 0; d < count && peers; d++) send(devices.data(), d, (d + 1) % count, uva);
    for (int d = 0; d < count && peers; d++) CHECK(cudaStreamSynchronize(devices[d].stream));

    for (int d = 0; d < count; d++) {
        const int before = (d + count - 1) % count;
        unsigned own, received = first(before) + unsigned(launches + before);
        CHECK(cudaSetDevice(d));
        CHECK(cudaMemcpy(&own, devices[d].x, sizeof own, cudaMemcpyDeviceToHost));
        if (peers) CHECK(cudaMemcpy(&received, devices[d].inbox, sizeof received, cudaMemcpyDeviceToHost));
        wrong += own != first(d) + unsigned(launches + d);
        wrong += received != first(before) + unsigned(launches + before);
        CHECK(cudaFree(devices[d].inbox));
        CHECK(cudaFree(devices[d].x));
        CHECK(cudaStreamDestroy(devices[d].stream));
    }
    std::printf("devices: %d devices, %d wrong\n", count, wrong);
    if (expects(argc, argv)) {
        std::printf("context_create=%d\n", count);
        std::printf("memory_copy.peer_to_peer=%d\n", peers ? count : 0);
        std::printf("memory_copy.device_to_device=0\n");
        for (int d = 0; d < count; d++) {
            const long mine = launches + d, blocks = d % (N / THREADS) + 1;
            std::printf("context_create@%d=1\n", d);
            std::printf("kernel_launch@%d=%ld\nkernel_launch_end@%d=%ld\n", d, mine, d, mine);
            std::printf("kernel_launch.blocks@%d=%ld\n", d, mine * blocks);
            std::printf("memory_alloc.device@%d=2\n", d);
            std::printf("memory_alloc.device.bytes@%d=%zu\n", d, BYTES + inbox_bytes(d));
            std::printf("memory_free.device@%d=2\n", d);
            std::printf("memory_free.device.bytes@%d=%zu\n", d, BYTES + inbox_bytes(d));
            std::printf("memory_copy.host_to_device@%d=1\n", d);
            std::printf("memory_copy.host_to_device.bytes@%d=%zu\n", d, BYTES);
            std::printf("memory_copy.device_to_host@%d=%d\n", d, 1 + peers);
            std::printf("memory_copy.device_to_host.bytes@%d=%zu\n", d, (1 + peers) * sizeof(unsigned));
            std::printf("memory_copy.peer_to_peer@%d=%d\n", d, int(peers));
            std::printf("memory_copy.peer_to_peer.bytes@%d=%zu\n", d, peers * BYTES);
            std::printf("stream_create@%d=1\nstream_destroy@%d=1\n", d, d);
        }
    }
    return wrong != 0;
}
