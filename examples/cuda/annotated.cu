// NVTX ranges around launches, and cudaProfilerStop/Start around one of them.
//   annotated [--expect]
#include <cuda_profiler_api.h>
#include <nvtx3/nvToolsExt.h>

#include "example.cuh"

__global__ void step(int *x) { x[threadIdx.x] += 1; }

int main(int argc, char **argv) {
    int *x, result;
    nvtxRangePushA("setup");
    CHECK(cudaMalloc(&x, 32 * sizeof(int)));
    CHECK(cudaMemset(x, 0, 32 * sizeof(int)));
    nvtxRangePop();

    nvtxDomainHandle_t domain = nvtxDomainCreateA("annotated");
    nvtxEventAttributes_t attributes = {};
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
    attributes.message.ascii = "steps";
    nvtxRangeId_t range = nvtxDomainRangeStartEx(domain, &attributes);
    for (int i = 0; i < 3; i++) {
        char name[16];
        std::snprintf(name, sizeof name, "step %d", i);
        nvtxRangePushA(name);
        if (i == 1) CHECK(cudaProfilerStop()); // this launch must not be recorded
        step<<<1, 32>>>(x);
        if (i == 1) CHECK(cudaProfilerStart());
        nvtxRangePop();
    }
    nvtxDomainRangeEnd(domain, range);
    nvtxMarkA("end");
    CHECK(cudaMemcpy(&result, x, sizeof result, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(x));
    std::printf("annotated: %d steps\n", result);
    if (expects(argc, argv)) {
        std::printf("kernel_launch=2\nkernel_launch_end=2\n");
        std::printf("profiling_stop=1\nprofiling_start=1\n");
        std::printf("range_push=4\nrange_pop=4\nrange_start=1\nrange_end=1\nmark=1\n");
    }
    return result != 3;
}
