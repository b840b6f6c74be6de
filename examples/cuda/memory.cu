// Every kind of allocation, copy, set and synchronisation once.
//   memory [--expect]
#include <cuda.h>

#include "example.cuh"

// Driver functions through the runtime: nothing to link, and the same order in CUDA 12 and 13.
template <typename Function> Function driver(const char *name) {
    void *function = nullptr;
    cudaDriverEntryPointQueryResult found;
    CHECK(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess) std::fprintf(stderr, "%s is missing\n", name), std::exit(1);
    return reinterpret_cast<Function>(function);
}

static void prefetch(void *p, size_t bytes, cudaStream_t stream) {
#if CUDART_VERSION >= 13000
    cudaMemLocation place = {};
    place.type = cudaMemLocationTypeDevice;
    CHECK(cudaMemAdvise(p, bytes, cudaMemAdviseSetPreferredLocation, place));
    CHECK(cudaMemPrefetchAsync(p, bytes, place, 0, stream));
#else
    CHECK(cudaMemAdvise(p, bytes, cudaMemAdviseSetPreferredLocation, 0));
    CHECK(cudaMemPrefetchAsync(p, bytes, 0, stream));
#endif
}

int main(int argc, char **argv) {
    enum { KIB = 1024 };
    auto set16 = driver<CUresult (*)(CUdeviceptr, unsigned short, size_t)>("cuMemsetD16");
    auto set32 = driver<CUresult (*)(CUdeviceptr, unsigned, size_t)>("cuMemsetD32");
    auto set2d = driver<CUresult (*)(CUdeviceptr, size_t, unsigned, size_t, size_t)>("cuMemsetD2D32");
    char *device, *pitched, *managed, *pinned, *pool;
    size_t pitch;
    int pageable = 7, managed_supported = 0;
    cudaStream_t stream, other;
    cudaEvent_t event;
    cudaArray_t array;
    cudaChannelFormatDesc texel = cudaCreateChannelDesc<float>();
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaStreamCreate(&other));
    CHECK(cudaDeviceGetAttribute(&managed_supported, cudaDevAttrConcurrentManagedAccess, 0));

    CHECK(cudaMalloc(&device, 64 * KIB));
    CHECK(cudaMallocPitch(&pitched, &pitch, 300, 100));
    CHECK(cudaMallocManaged(&managed, 64 * KIB));
    CHECK(cudaMallocHost(&pinned, 64 * KIB));
    CHECK(cudaMallocAsync(&pool, 4 * KIB, stream));
    CHECK(cudaMallocArray(&array, &texel, 64, 64));

    CHECK(cudaMemset(device, 7, 4097));
    CHECK(cudaMemsetAsync(device, 7, 4 * KIB, stream));
    CHECK(cudaMemset2D(pitched, pitch, 7, 300, 100));
    bool set = !set32(CUdeviceptr(device), 5, 1000) && !set16(CUdeviceptr(device), 5, 1000) &&
               !set2d(CUdeviceptr(pitched), pitch, 5, 50, 10);

    CHECK(cudaMemcpyAsync(device, pinned, 4 * KIB, cudaMemcpyHostToDevice, stream));
    CHECK(cudaMemcpy2D(pinned, 300, pitched, pitch, 300, 10, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpyAsync(pool, device, 4 * KIB, cudaMemcpyDeviceToDevice, stream));
    CHECK(cudaMemcpy(device, &pageable, 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(&pageable, device, 4, cudaMemcpyDeviceToHost));

    CHECK(cudaEventCreate(&event));
    CHECK(cudaEventRecord(event, stream));
    CHECK(cudaStreamWaitEvent(other, event));
    CHECK(cudaEventSynchronize(event));
    CHECK(cudaEventDestroy(event));
    if (managed_supported) prefetch(managed, 64 * KIB, stream);
    CHECK(cudaStreamAttachMemAsync(stream, managed, 0, cudaMemAttachGlobal));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaFreeAsync(pool, stream));
    CHECK(cudaDeviceSynchronize());

    CHECK(cudaFreeArray(array));
    CHECK(cudaFreeHost(pinned));
    CHECK(cudaFree(managed));
    CHECK(cudaFree(pitched));
    CHECK(cudaFree(device));
    CHECK(cudaStreamDestroy(other));
    CHECK(cudaStreamDestroy(stream));
    std::printf("memory: read back %d, sets %s\n", pageable, set ? "ok" : "failed");
    if (expects(argc, argv)) {
        std::printf("memory_alloc.device=2\n");
        std::printf("memory_alloc.device.bytes=%zu\n", 64 * KIB + 100 * pitch);
        std::printf("memory_alloc.managed=1\nmemory_alloc.managed.bytes=%d\n", 64 * KIB);
        std::printf("memory_alloc.pinned=1\nmemory_alloc.pinned.bytes=%d\n", 64 * KIB);
        std::printf("memory_alloc.pool=1\nmemory_alloc.pool.bytes=%d\n", 4 * KIB);
        std::printf("memory_alloc.array=1\nmemory_free.array=1\nmemory_free.pinned=1\n");
        std::printf("memory_set=6\nmemory_set.bytes=%d\n", 4097 + 4096 + 30000 + 4000 + 2000 + 2000);
        std::printf("memory_copy.host_to_device=2\nmemory_copy.host_to_device.bytes=%d\n", 4 * KIB + 4);
        std::printf("memory_copy.device_to_host=2\nmemory_copy.device_to_host.bytes=3004\n");
        std::printf("memory_copy.device_to_device=1\nmemory_copy.device_to_device.bytes=%d\n", 4 * KIB);
        std::printf("event_create=1\nevent_record=1\nevent_wait=1\nevent_destroy=1\n");
        std::printf("sync.event=1\nsync.stream=1\nsync.context=1\n");
        std::printf("uvm_attach=1\nuvm_advise=%d\nuvm_prefetch=%d\n", managed_supported, managed_supported);
        std::printf("stream_create=2\nstream_destroy=2\nkernel_launch=0\n");
    }
    return pageable != 7 || !set;
}
