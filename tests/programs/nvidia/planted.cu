// Programs with one planted fault each, for the first finding of `utilization`.
//
//     planted host_bound|sync_in_a_loop|pageable_copies|tiny_kernels|tail_wave|serialised_streams|copies_alone|balanced
#include <chrono>
#include <vector>

#include "example.cuh"

enum { THREADS = 256, BYTES = 32 << 20 };

// Takes this long, whatever the device does besides.
__device__ static void spin(long long ns) {
    long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - begin < ns);
}
__global__ void work(long long ns) { spin(ns); }
__global__ void small(long long ns) { spin(ns); }

static int full_wave, multiprocessors;

static void launch(int us, cudaStream_t stream = 0) { work<<<full_wave, THREADS, 0, stream>>>(1000ll * us); }

// The thread is busy, as a slow program is: a sleep would take 50 us more.
static void pause(int us) {
    auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(us);
    while (std::chrono::steady_clock::now() < until) {}
}

static void host_bound() {
    for (int i = 0; i < 2000; i++) {
        launch(20);
        pause(100);
    }
}

static void sync_in_a_loop() {
    for (int i = 0; i < 1000; i++) {
        launch(100);
        CHECK(cudaDeviceSynchronize());
        pause(60);
    }
}

static void pageable_copies() {
    std::vector<char> host(BYTES);
    char *device;
    CHECK(cudaMalloc(&device, BYTES));
    for (int i = 0; i < 100; i++) {
        CHECK(cudaMemcpy(device, host.data(), BYTES, cudaMemcpyHostToDevice));
        launch(300);
    }
}

static void tiny_kernels() {
    for (int i = 0; i < 20000; i++) {
        small<<<1, 32>>>(0);
        pause(8);
    }
}

static void tail_wave() {
    for (int i = 0; i < 200; i++) work<<<full_wave + full_wave / 4, THREADS>>>(500000);
}

// Blocking streams: the kernel in the default stream waits for both, and both wait for it.
static void serialised_streams() {
    cudaStream_t streams[2];
    for (auto &stream : streams) CHECK(cudaStreamCreate(&stream));
    for (int i = 0; i < 200; i++)
        for (auto stream : streams) {
            work<<<multiprocessors, THREADS, 0, stream>>>(1000000);
            small<<<1, 32>>>(6000);
        }
}

static void copies(bool alone) {
    char *host, *device;
    cudaStream_t compute, copy;
    cudaEvent_t copied, computed;
    CHECK(cudaMallocHost(&host, BYTES));
    CHECK(cudaMalloc(&device, BYTES));
    CHECK(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&copy, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&computed, cudaEventDisableTiming));
    for (int i = 0; i < 200; i++) {
        CHECK(cudaMemcpyAsync(device, host, BYTES, cudaMemcpyHostToDevice, copy));
        if (alone) {
            CHECK(cudaEventRecord(copied, copy));
            CHECK(cudaStreamWaitEvent(compute, copied));
        }
        launch(1000, compute);
        if (alone) {
            CHECK(cudaEventRecord(computed, compute));
            CHECK(cudaStreamWaitEvent(copy, computed));
        }
        if (i % 10 == 9) CHECK(cudaStreamSynchronize(copy)); // the kernels are behind
    }
}
static void copies_alone() { copies(true); }
static void balanced() { copies(false); }

int main(int count, char **words) {
    static const struct {
        const char *name;
        void (*run)();
    } programs[] = {{"host_bound", host_bound}, {"sync_in_a_loop", sync_in_a_loop},
                    {"pageable_copies", pageable_copies}, {"tiny_kernels", tiny_kernels},
                    {"tail_wave", tail_wave}, {"serialised_streams", serialised_streams},
                    {"copies_alone", copies_alone}, {"balanced", balanced}};
    int blocks;
    CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, work, THREADS, 0));
    full_wave = blocks * multiprocessors;
    launch(1); // loads the kernels
    small<<<1, 32>>>(0);
    CHECK(cudaDeviceSynchronize());
    for (auto &program : programs)
        if (count == 2 && !strcmp(words[1], program.name)) {
            program.run();
            CHECK(cudaDeviceSynchronize());
            printf("done\n");
            return 0;
        }
    return 2;
}
