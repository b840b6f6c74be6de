// Contexts of the driver API: two at a time on device 0, twice, each with its own module.
//   contexts [--launches COUNT] [--expect]
// The module is read from the file PROGRAM.fatbin.  The second context of each pair is destroyed
// with all its objects.
#include <cuda.h>

#include <filesystem>
#include <string>

#include "example.cuh"

enum { ROUNDS = 2, TOGETHER = 2, CONTEXTS = ROUNDS * TOGETHER };

extern "C" __global__ void ping(unsigned *sum) { if (!threadIdx.x) atomicAdd(sum, 1u); }
extern "C" __global__ void pong(unsigned *sum) { if (!threadIdx.x) atomicAdd(sum, 2u); }

struct Context {
    CUcontext handle;
    CUmodule module;
    CUfunction kernel;
    CUstream stream;
    CUdeviceptr sum;
};

static void check(CUresult status, const char *call, const char *file, int line) {
    const char *text = "unknown error";
    if (status == CUDA_SUCCESS) return;
    cuGetErrorString(status, &text);
    std::fprintf(stderr, "%s:%d: %s: %s\n", file, line, call, text);
    std::exit(1);
}

static unsigned blocks(int number) { return unsigned(number + 1); }

static size_t bytes(int number) { return 4096 * size_t(number + 1); }

// Alternates between rounds, so that a reused function handle is another kernel's.
static bool is_pong(int number) { return (number + number / TOGETHER) % 2; }

static Context open(const std::string &image, CUdevice device, int number) {
    Context c;
#if CUDA_VERSION >= 13000
    CHECK(cuCtxCreate(&c.handle, nullptr, 0, device));
#else
    CHECK(cuCtxCreate(&c.handle, 0, device));
#endif
    CHECK(cuModuleLoad(&c.module, image.c_str()));
    CHECK(cuModuleGetFunction(&c.kernel, c.module, is_pong(number) ? "pong" : "ping"));
    CHECK(cuStreamCreate(&c.stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAlloc(&c.sum, bytes(number)));
    CHECK(cuMemsetD32(c.sum, 0, 1));
    CHECK(cuStreamSynchronize(nullptr));
    return c;
}

static void launch(Context &c, int number) {
    void *arguments[] = {&c.sum};
    CHECK(cuCtxSetCurrent(c.handle));
    CHECK(cuLaunchKernel(c.kernel, blocks(number), 1, 1, 32, 1, 1, 0, c.stream, arguments, nullptr));
}

// The counts of the kernels.
static unsigned close(const Context &c, bool tidy) {
    unsigned sum;
    CHECK(cuCtxSetCurrent(c.handle));
    CHECK(cuStreamSynchronize(c.stream));
    CHECK(cuMemcpyDtoH(&sum, c.sum, sizeof sum));
    if (tidy) {
        CHECK(cuMemFree(c.sum));
        CHECK(cuStreamDestroy(c.stream));
        CHECK(cuModuleUnload(c.module));
    }
    CHECK(cuCtxDestroy(c.handle));
    return sum;
}

int main(int argc, char **argv) {
    const long launches = number(argc, argv, "--launches", 5);
    const std::string image = std::filesystem::read_symlink("/proc/self/exe").string() + ".fatbin";
    CUdevice device;
    int wrong = 0;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    for (int from = 0; from < CONTEXTS; from += TOGETHER) {
        Context contexts[TOGETHER];
        for (int i = 0; i < TOGETHER; i++) contexts[i] = open(image, device, from + i);
        for (long n = 0; n < launches; n++)
            for (int i = 0; i < TOGETHER; i++) launch(contexts[i], from + i);
        for (int i = 0; i < TOGETHER; i++) {
            const unsigned each = blocks(from + i) * (is_pong(from + i) ? 2 : 1);
            wrong += close(contexts[i], i == 0) != each * launches;
        }
    }
    std::printf("contexts: %d contexts, %d wrong\n", int(CONTEXTS), wrong);
    if (expects(argc, argv)) {
        const size_t allocated = bytes(0) + bytes(1) + bytes(2) + bytes(3);
        std::printf("context_create=%d\ncontext_destroy=%d\n", int(CONTEXTS), int(CONTEXTS));
        std::printf("kernel_launch=%ld\nkernel_launch_end=%ld\n", CONTEXTS * launches, CONTEXTS * launches);
        std::printf("kernel_launch:ping=%ld\nkernel_launch:pong=%ld\n", 2 * launches, 2 * launches);
        std::printf("kernel_launch.blocks=%ld\n", (1 + 2 + 3 + 4) * launches);
        std::printf("memory_alloc.device=%d\nmemory_alloc.device.bytes=%zu\n", int(CONTEXTS), allocated);
        std::printf("memory_set=%d\nmemory_copy.device_to_host=%d\n", int(CONTEXTS), int(CONTEXTS));
        std::printf("stream_create=%d\nsync.stream=%d\n", int(CONTEXTS), 2 * CONTEXTS);
        std::printf("module_load.at_least=%d\nmodule_unload.at_least=%d\n", int(CONTEXTS), int(ROUNDS));
        std::printf("memory_free.device=%d\nmemory_free.device.bytes=%zu\n", int(CONTEXTS), allocated);
        std::printf("stream_destroy.at_least=%d\n", int(ROUNDS));
    }
    return wrong != 0;
}
