// Captures a kernel that is launched twice into a graph and replays it.
//   graph [--replays COUNT] [--expect]
#include "example.h"

enum { N = 4096 };

__global__ void increment(int *x) { x[blockIdx.x * blockDim.x + threadIdx.x] += 1; }

int main(int argc, char **argv) {
    const long replays = number(argc, argv, "--replays", 10);
    static int last[N];
    int *x;
    hipStream_t stream;
    hipGraph_t graph;
    hipGraphExec_t instance;
    CHECK(hipStreamCreate(&stream));
    CHECK(hipMalloc(&x, N * sizeof(int)));
    CHECK(hipMemset(x, 0, N * sizeof(int)));
    CHECK(hipDeviceSynchronize());

    CHECK(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal));
    increment<<<N / 256, 256, 0, stream>>>(x);
    increment<<<N / 256, 256, 0, stream>>>(x);
    CHECK(hipStreamEndCapture(stream, &graph));
    CHECK(hipGraphInstantiate(&instance, graph, nullptr, nullptr, 0));
    for (long i = 0; i < replays; i++) CHECK(hipGraphLaunch(instance, stream));
    increment<<<N / 256, 256, 0, stream>>>(x); // one launch outside the graph
    CHECK(hipStreamSynchronize(stream));
    CHECK(hipMemcpy(last, x, sizeof last, hipMemcpyDeviceToHost));

    long wrong = 0;
    for (int i = 0; i < N; i++) wrong += last[i] != 2 * replays + 1;
    std::printf("graph: %ld replays, %ld wrong\n", replays, wrong);
    CHECK(hipGraphExecDestroy(instance));
    CHECK(hipGraphDestroy(graph));
    CHECK(hipFree(x));
    CHECK(hipStreamDestroy(stream));
    if (expects(argc, argv)) {
        std::printf("graph_instantiate=1\ngraph_launch=%ld\ngraph_launch_end=%ld\n", replays, replays);
        std::printf("kernel_launch=%ld\n", 2 * replays + 1);
        std::printf("kernel_launch.graph=%ld\n", 2 * replays);
        std::printf("kernel_launch.blocks=%ld\n", (2 * replays + 1) * (N / 256));
        std::printf("kernel_complete=%ld\n", 2 * replays + 1);
        std::printf("memory_set=1\nmemory_copy.device_to_host=1\n");
    }
    return wrong != 0;
}
