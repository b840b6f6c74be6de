// Captures a memset, a kernel and a copy into a graph and replays it.
//   graph [--replays COUNT] [--expect]
#include "example.cuh"

enum { N = 4096 };

__global__ void increment(int *x) { x[blockIdx.x * blockDim.x + threadIdx.x] += 1; }

int main(int argc, char **argv) {
    const long replays = number(argc, argv, "--replays", 10);
    int *x, *last;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t instance;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaMalloc(&x, 2 * N * sizeof(int)));
    CHECK(cudaMallocHost(&last, N * sizeof(int)));
    CHECK(cudaMemset(x, 0, 2 * N * sizeof(int)));

    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaMemsetAsync(x + N, 0, N * sizeof(int), stream));
    increment<<<N / 256, 256, 0, stream>>>(x);
    CHECK(cudaMemcpyAsync(last, x, N * sizeof(int), cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&instance, graph, 0));
    for (long i = 0; i < replays; i++) CHECK(cudaGraphLaunch(instance, stream));
    increment<<<N / 256, 256, 0, stream>>>(x + N); // one launch outside the graph
    CHECK(cudaStreamSynchronize(stream));

    long wrong = 0;
    for (int i = 0; i < N; i++) wrong += last[i] != replays;
    std::printf("graph: %ld replays, %ld wrong\n", replays, wrong);
    CHECK(cudaGraphExecDestroy(instance));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaFreeHost(last));
    CHECK(cudaFree(x));
    CHECK(cudaStreamDestroy(stream));
    if (expects(argc, argv)) {
        std::printf("graph_launch=%ld\n", replays);
        std::printf("kernel_launch=%ld\n", replays + 1);
        std::printf("kernel_launch.graph=%ld\n", replays);
        std::printf("kernel_launch_end=%ld\n", replays + 1);
        std::printf("memory_set.graph=%ld\n", replays);
        std::printf("memory_set=%ld\n", replays + 1);
        std::printf("memory_copy.graph=%ld\n", replays);
        std::printf("memory_copy=%ld\n", replays);
        std::printf("memory_copy.device_to_host.bytes=%ld\n", replays * long(N * sizeof(int)));
    }
    return wrong != 0;
}
