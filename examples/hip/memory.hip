// Every kind of allocation, copy, set and synchronisation once.
//   memory [--expect]
#include "example.h"

int main(int argc, char **argv) {
    enum { KIB = 1024 };
    char *device, *pitched, *managed, *pinned, *pool;
    size_t pitch;
    int pageable = 7, managed_supported = 0, pools_supported = 0;
    hipStream_t stream, other;
    hipEvent_t event;
    hipArray_t array;
    hipChannelFormatDesc texel = hipCreateChannelDesc<float>();
    CHECK(hipStreamCreate(&stream));
    CHECK(hipStreamCreate(&other));
    CHECK(hipDeviceGetAttribute(&managed_supported, hipDeviceAttributeConcurrentManagedAccess, 0));
    CHECK(hipDeviceGetAttribute(&pools_supported, hipDeviceAttributeMemoryPoolsSupported, 0));

    CHECK(hipMalloc(&device, 64 * KIB));
    CHECK(hipMallocPitch(reinterpret_cast<void **>(&pitched), &pitch, 300, 100));
    CHECK(hipMallocManaged(&managed, 64 * KIB));
    CHECK(hipHostMalloc(&pinned, 64 * KIB, hipHostMallocDefault));
    if (pools_supported) CHECK(hipMallocAsync(reinterpret_cast<void **>(&pool), 4 * KIB, stream));
    const bool arrays = hipMallocArray(&array, &texel, 64, 64, hipArrayDefault) == hipSuccess;

    CHECK(hipMemset(device, 7, 4097));
    CHECK(hipMemsetAsync(device, 7, 4 * KIB, stream));
    CHECK(hipMemset2D(pitched, pitch, 7, 300, 100));
    CHECK(hipMemsetD32(device, 5, 1000));
    CHECK(hipMemsetD16(device, 5, 1000));
    CHECK(hipDeviceSynchronize());

    CHECK(hipMemcpyAsync(device, pinned, 4 * KIB, hipMemcpyHostToDevice, stream));
    CHECK(hipMemcpy2D(pinned, 300, pitched, pitch, 300, 10, hipMemcpyDeviceToHost));
    CHECK(hipMemcpyAsync(pitched, device, 4 * KIB, hipMemcpyDeviceToDevice, stream));
    CHECK(hipStreamSynchronize(stream));
    CHECK(hipMemcpy(device, &pageable, 4, hipMemcpyHostToDevice));
    CHECK(hipMemcpy(&pageable, device, 4, hipMemcpyDefault));

    CHECK(hipEventCreate(&event));
    CHECK(hipEventRecord(event, stream));
    CHECK(hipStreamWaitEvent(other, event, 0));
    CHECK(hipEventSynchronize(event));
    CHECK(hipEventDestroy(event));
    if (managed_supported) {
        CHECK(hipMemAdvise(managed, 64 * KIB, hipMemAdviseSetPreferredLocation, 0));
        CHECK(hipMemPrefetchAsync(managed, 64 * KIB, 0, stream));
    }
    CHECK(hipStreamSynchronize(stream));
    if (pools_supported) CHECK(hipFreeAsync(pool, stream));
    CHECK(hipDeviceSynchronize());

    if (arrays) CHECK(hipFreeArray(array));
    CHECK(hipHostFree(pinned));
    CHECK(hipFree(managed));
    CHECK(hipFree(pitched));
    CHECK(hipFree(device));
    CHECK(hipStreamDestroy(other));
    CHECK(hipStreamDestroy(stream));
    std::printf("memory: read back %d\n", pageable);
    if (expects(argc, argv)) {
        std::printf("memory_alloc.device=2\nmemory_free.device=2\n");
        std::printf("memory_alloc.managed=1\nmemory_alloc.managed.bytes=%d\n", 64 * KIB);
        std::printf("memory_alloc.pinned=1\nmemory_alloc.pinned.bytes=%d\n", 64 * KIB);
        std::printf("memory_alloc.pool=%d\nmemory_free.pool=%d\n", pools_supported, pools_supported);
        std::printf("memory_alloc.array=%d\nmemory_free.array=%d\n", arrays, arrays);
        std::printf("memory_free.managed=1\nmemory_free.pinned=1\n");
        std::printf("memory_set=5\nmemory_set.bytes=%d\n", 4097 + 4096 + 30000 + 4000 + 2000);
        std::printf("memory_copy.host_to_device=2\nmemory_copy.host_to_device.bytes=%d\n", 4 * KIB + 4);
        std::printf("memory_copy.device_to_host=2\nmemory_copy.device_to_host.bytes=3004\n");
        std::printf("memory_copy.device_to_device=1\nmemory_copy.device_to_device.bytes=%d\n", 4 * KIB);
        std::printf("event_create=1\nevent_record=1\nevent_wait=1\nevent_destroy=1\n");
        std::printf("sync.event=1\nsync.stream=2\nsync.device=2\n");
        std::printf("uvm_advise=%d\nuvm_prefetch=%d\n", managed_supported, managed_supported);
        std::printf("stream_create=2\nstream_destroy=2\nkernel_launch=0\n");
    }
    return pageable != 7;
}
