// Launches into streams of the program's own, in the ways that a program can launch:
//
//     streams plain|ex|dependent|cluster|graph
//
// Two kernels with 20 launches of each of five grids; a thread asks for the state of the streams all the while. `graph`:
// 20 plain launches of each kernel with another grid, captured, and the graph is launched ten times.
#include <atomic>
#include <thread>

#include "example.cuh"

enum { THREADS = 64, FLOATS = 1 << 14, LAUNCHES = 20 };

__global__ void add(float *x) { x[blockIdx.x * blockDim.x + threadIdx.x] += 1; }
__global__ void multiply(float *x) { x[blockIdx.x * blockDim.x + threadIdx.x] *= 2; }

static const char *way;
static cudaStream_t stream;
static float *memory;

static void launch(void (*kernel)(float *), int blocks) {
    void *arguments[] = {&memory};
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    config.attrs = &attribute;
    if (!std::strcmp(way, "dependent")) {
        attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute.val.programmaticStreamSerializationAllowed = 1;
        config.numAttrs = 1;
    } else if (!std::strcmp(way, "cluster")) {
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = 2;
        attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
        config.numAttrs = 1;
    } else if (std::strcmp(way, "ex")) {
        CHECK(cudaLaunchKernel((const void *)kernel, config.gridDim, config.blockDim, arguments, 0, stream));
        return;
    }
    CHECK(cudaLaunchKernelExC(&config, (const void *)kernel, arguments));
}

static void launch_both(int blocks) {
    launch(add, blocks);
    launch(multiply, blocks);
}

static void launch_graph() {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    for (int i = 0; i < LAUNCHES; i++) launch_both(2);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    launch_both(4);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    for (int i = 0; i < 10; i++) CHECK(cudaGraphLaunch(executable, stream));
}

int main(int argc, char **argv) {
    way = argc > 1 ? argv[1] : "plain";
    bool graph = !std::strcmp(way, "graph");
    CHECK(cudaMalloc(&memory, FLOATS * sizeof(float)));
    CHECK(cudaMemset(memory, 0, FLOATS * sizeof(float)));
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaDeviceSynchronize());
    std::atomic<bool> ended{false};
    std::thread asks([&] {
        while (!ended && !graph) cudaStreamQuery(stream);
    });
    if (graph) launch_graph();
    for (int blocks = 2; blocks <= 32 && !graph; blocks *= 2)
        for (int i = 0; i < LAUNCHES; i++) {
            launch_both(blocks);
            if (i % 7 == 0) CHECK(cudaStreamSynchronize(stream));
        }
    CHECK(cudaDeviceSynchronize());
    ended = true;
    asks.join();
    float first;
    CHECK(cudaMemcpy(&first, memory, sizeof first, cudaMemcpyDeviceToHost));
    std::printf("%g\n", first);
}
