// Kernels with memory accesses known from arithmetic; tests/support/expected_accesses.py has the expected counts.
//   kernels SCENARIO... [--OPTION NUMBER]...      the table at the end lists the scenarios
// Prints "object ROLE ADDRESS BYTES" per allocation.  Exits with 1 if a result is wrong, with 77 if
// this device or driver does not support it.
//
// Accesses that NVVM could merge, widen or drop are inline PTX.  ptxas optimises PTX too: it adds up
// a warp's atomics on an address that is the same for all lanes, and a load after a store to the
// same shared word is gone unless it is volatile.
#include <cooperative_groups.h>
#include <cuda.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "example.cuh"

static void check(CUresult status, const char *call, const char *file, int line) {
    if (status == CUDA_SUCCESS) return;
    std::fprintf(stderr, "%s:%d: %s: driver error %d\n", file, line, call, int(status));
    std::exit(1);
}

// A function of the driver, without linking libcuda.
template <class Function> static Function driver_function(const char *name) {
    void *function = nullptr;
    CHECK(cudaGetDriverEntryPointByVersion(name, &function, CUDART_VERSION, cudaEnableDefault));
    if (!function) {
        std::fprintf(stderr, "the driver has no %s\n", name);
        std::exit(77);
    }
    return reinterpret_cast<Function>(function);
}
#define DRIVER(name) driver_function<decltype(&name)>(#name)

static int count_of_arguments;
static char **arguments;

static size_t option(const char *name, size_t otherwise) {
    return size_t(number(count_of_arguments, arguments, name, long(otherwise)));
}

static void announce(const char *role, const void *at, size_t bytes) {
    std::printf("object %s %p %zu\n", role, at, bytes);
    std::fflush(stdout);
}

static void expect(bool right, const char *what) {
    if (right) return;
    std::fprintf(stderr, "wrong: %s\n", what);
    std::exit(1);
}

template <class T> using Values = std::function<T(size_t)>;

template <class T> static void fill(T *at, size_t count, Values<T> value) {
    std::vector<T> host(count);
    for (size_t i = 0; i < count; i++) host[i] = value(i);
    CHECK(cudaMemcpy(at, host.data(), count * sizeof(T), cudaMemcpyDefault));
}

// Device memory whose element i is value(i).
template <class T>
static T *object(const char *role, size_t count, Values<T> value = [](size_t) { return T(); }) {
    T *at;
    CHECK(cudaMalloc(&at, count * sizeof(T)));
    announce(role, at, count * sizeof(T));
    fill(at, count, value);
    return at;
}

// Waits for the device; element i must be value(i).
template <class T>
static void verify(const char *what, const T *at, size_t count, Values<T> value) {
    std::vector<T> host(count);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(host.data(), at, count * sizeof(T), cudaMemcpyDefault));
    for (size_t i = 0; i < count; i++)
        if (!(host[i] == value(i))) {
            std::fprintf(stderr, "wrong: element %zu of %s\n", i, what);
            std::exit(1);
        }
}

static unsigned blocks(size_t threads, size_t block) { return unsigned((threads + block - 1) / block); }

// For kernels in which every thread accesses memory.
static unsigned full_blocks(size_t threads, size_t block) {
    expect(threads % block == 0, "--n: not a multiple of the block");
    return blocks(threads, block);
}

static float from_index(size_t i) { return float(i % 4096); }

#define KERNEL extern "C" __global__ void

// ---- the instructions -----------------------------------------------------------------------

__device__ static size_t thread() { return blockIdx.x * size_t(blockDim.x) + threadIdx.x; }

__device__ static unsigned shared_address(const void *at) { return unsigned(__cvta_generic_to_shared(at)); }

__device__ static size_t global_address(const void *at) { return __cvta_generic_to_global(at); }

__device__ static unsigned load(const unsigned *at) {
    unsigned value;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(global_address(at)) : "memory");
    return value;
}

__device__ static float load(const float *at) {
    float value;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(global_address(at)) : "memory");
    return value;
}

__device__ static double load(const double *at) {
    double value;
    asm volatile("ld.global.f64 %0, [%1];" : "=d"(value) : "l"(global_address(at)) : "memory");
    return value;
}

__device__ static void store(unsigned *at, unsigned value) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(global_address(at)), "r"(value) : "memory");
}

__device__ static void reduce(unsigned *at, unsigned value) {
    asm volatile("red.global.add.u32 [%0], %1;" ::"l"(global_address(at)), "r"(value) : "memory");
}

// Nanoseconds; the limit of loops that wait for another kernel.
__device__ static uint64_t now() {
    uint64_t time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

// ---- global memory --------------------------------------------------------------------------

KERNEL strided(float *to, const float *from, size_t n, size_t stride) {
    const size_t i = thread();
    if (i >= n) return;
    to[i * stride] = from[i * stride] + 1;
}

KERNEL accumulate(float *to, const float *from, size_t n) {
    const size_t i = thread();
    if (i >= n) return;
    to[i] += from[i];
}

KERNEL increment(unsigned *values, size_t n) {
    const size_t i = thread();
    if (i >= n) return;
    values[i] += 1;
}

KERNEL write_index(unsigned *to, size_t n) {
    const size_t i = thread();
    if (i >= n) return;
    to[i] = unsigned(i);
}

static void run_strided(size_t n, size_t block, size_t stride) {
    float *from = object<float>("from", n * stride, from_index);
    float *to = object<float>("to", n * stride);
    strided<<<blocks(n, block), unsigned(block)>>>(to, from, n, stride);
    verify<float>("to", to, n * stride, [=](size_t i) { return i % stride ? 0 : from_index(i) + 1; });
}

static void stride1() { run_strided(option("--n", 4096), option("--block", 128), 1); }
static void stride2() { run_strided(option("--n", 4096), option("--block", 128), 2); }
static void stride32() { run_strided(option("--n", 4096), option("--block", 128), 32); }
static void tail() { run_strided(option("--n", 1003), option("--block", 50), 1); }
static void one_thread() { run_strided(option("--n", 64), 1, 1); }
static void many_blocks() { run_strided(option("--n", 70000 * 32), 32, 1); }

KERNEL divergent_loads(float *to, const float *narrow, const double *wide) {
    const unsigned lane = threadIdx.x % 32;
    float sum;
    if (lane < 16) sum = load(narrow + thread());
    else sum = float(load(wide + thread()));
    __syncwarp();
#pragma unroll 1
    for (unsigned k = 0; k <= lane; k++) sum += load(narrow + k);
    __syncwarp();
    to[thread()] = sum;
}

static void divergent() {
    const size_t n = option("--n", 1024), block = 128;
    float *narrow = object<float>("narrow", n, from_index);
    double *wide = object<double>("wide", n, [](size_t i) { return -double(from_index(i)); });
    float *to = object<float>("to", n);
    divergent_loads<<<full_blocks(n, block), block>>>(to, narrow, wide);
    verify<float>("to", to, n, [](size_t i) {
        const size_t lane = i % 32;
        return (lane < 16 ? from_index(i) : -from_index(i)) + float(lane * (lane + 1) / 2);
    });
}

KERNEL exit_early(unsigned *to) {
    if (threadIdx.x / 32 % 2) return;
    if (threadIdx.x % 32 >= 20) return;
    to[thread()] = unsigned(thread());
}

static void early_exit() {
    const size_t n = option("--n", 1024), block = 128;
    unsigned *to = object<unsigned>("to", n);
    exit_early<<<full_blocks(n, block), block>>>(to);
    verify<unsigned>("to", to, n, [](size_t i) { return i / 32 % 2 || i % 32 >= 20 ? 0u : unsigned(i); });
}

// `stride` is 0, which the compiler must not know.
KERNEL red_one(unsigned *sum, size_t stride) { reduce(sum + thread() * stride, 1 + threadIdx.x % 2); }

KERNEL atom_one(unsigned *to, unsigned *ticket, size_t stride) {
    unsigned old;
    asm volatile("atom.global.add.u32 %0, [%1], %2;"
                 : "=r"(old) : "l"(global_address(ticket + thread() * stride)), "r"(1 + threadIdx.x % 2) : "memory");
    to[thread()] = old;
}

static void atomics_one() {
    const size_t n = option("--n", 4096), block = 128;
    unsigned *sum = object<unsigned>("sum", 1), *ticket = object<unsigned>("ticket", 2);
    unsigned *to = object<unsigned>("to", n);
    red_one<<<full_blocks(n, block), block>>>(sum, 0);
    atom_one<<<full_blocks(n, block), block>>>(to, ticket, 0);
    verify<unsigned>("sum", sum, 1, [=](size_t) { return unsigned(n / 2 * 3); });
    verify<unsigned>("ticket", ticket, 2, [=](size_t i) { return i ? 0u : unsigned(n / 2 * 3); });
}

KERNEL red_distinct(unsigned *sums) { reduce(sums + thread(), 1); }

KERNEL atom_distinct(unsigned *to, unsigned *sums) {
    unsigned old;
    asm volatile("atom.global.add.u32 %0, [%1], 5;"
                 : "=r"(old) : "l"(global_address(sums + thread())) : "memory");
    to[thread()] = old;
}

KERNEL atom_system(unsigned *to, unsigned *sums) {
    unsigned old;
    asm volatile("atom.global.sys.exch.b32 %0, [%1], 7;"
                 : "=r"(old) : "l"(global_address(sums + thread())) : "memory");
    to[thread()] = old;
}

static void atomics_distinct() {
    const size_t n = option("--n", 4096), block = 128;
    unsigned *sums = object<unsigned>("sums", n), *to = object<unsigned>("to", n);
    red_distinct<<<full_blocks(n, block), block>>>(sums);
    atom_distinct<<<full_blocks(n, block), block>>>(to, sums);
    verify<unsigned>("to", to, n, [](size_t) { return 1u; });
    atom_system<<<full_blocks(n, block), block>>>(to, sums);
    verify<unsigned>("to", to, n, [](size_t) { return 6u; });
    verify<unsigned>("sums", sums, n, [](size_t) { return 7u; });
}

// ---- shared and local memory ----------------------------------------------------------------

// All warps of the block write the same values to the same words.
KERNEL shared_4bytes(unsigned *to, unsigned ways) {
    __shared__ unsigned words[32 * 32];
    const unsigned word = threadIdx.x % 32 * ways, at = shared_address(words + word);
    unsigned value;
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(word) : "memory");
    asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(value) : "r"(at) : "memory");
    to[thread()] = value;
}

KERNEL shared_wide8(uint64_t *to) {
    __shared__ uint64_t words[32];
    const unsigned lane = threadIdx.x % 32, at = shared_address(words + lane);
    uint64_t value;
    asm volatile("st.shared.u64 [%0], %1;" ::"r"(at), "l"(uint64_t(lane)) : "memory");
    asm volatile("ld.volatile.shared.u64 %0, [%1];" : "=l"(value) : "r"(at) : "memory");
    to[thread()] = value;
}

KERNEL shared_wide16(uint4 *to) {
    __shared__ uint4 words[32];
    const unsigned lane = threadIdx.x % 32, at = shared_address(words + lane);
    uint4 v;
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(lane) : "memory");
    asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
    to[thread()] = v;
}

static void run_shared(unsigned ways) {
    const size_t n = option("--n", 1024), block = 128;
    unsigned *to = object<unsigned>("to", n);
    shared_4bytes<<<full_blocks(n, block), block>>>(to, ways);
    verify<unsigned>("to", to, n, [=](size_t i) { return unsigned(i % 32) * ways; });
}

static void shared_broadcast() { run_shared(0); }
static void shared_1way() { run_shared(1); }
static void shared_2way() { run_shared(2); }
static void shared_8way() { run_shared(8); }
static void shared_32way() { run_shared(32); }

static void shared_8bytes() {
    const size_t n = option("--n", 1024), block = 128;
    uint64_t *to = object<uint64_t>("to", n);
    shared_wide8<<<full_blocks(n, block), block>>>(to);
    verify<uint64_t>("to", to, n, [](size_t i) { return i % 32; });
}

static void shared_16bytes() {
    const size_t n = option("--n", 1024), block = 128;
    uint4 *to = object<uint4>("to", n);
    shared_wide16<<<full_blocks(n, block), block>>>(to);
    verify<unsigned>("to", &to->x, 4 * n, [](size_t i) { return unsigned(i / 4 % 32); });
}

// Words are visited in an order that the compiler does not know; 5 is coprime to 32.
KERNEL local_words(unsigned *to, unsigned trips, unsigned step) {
    volatile unsigned words[32];
    unsigned sum = 0;
#pragma unroll 1
    for (unsigned k = 0; k < trips; k++) words[k * step % 32] = unsigned(thread()) + k;
#pragma unroll 1
    for (unsigned k = 0; k < trips; k++) sum += words[k * step % 32];
    to[thread()] = sum;
}

static void local() {
    const size_t n = option("--n", 1024), block = 128;
    const unsigned trips = unsigned(option("--trips", 16));
    unsigned *to = object<unsigned>("to", n);
    expect(trips <= 32, "--trips");
    local_words<<<full_blocks(n, block), block>>>(to, trips, 5);
    verify<unsigned>("to", to, n, [=](size_t i) { return unsigned(i) * trips + trips * (trips - 1) / 2; });
}

// ---- asynchronous copies --------------------------------------------------------------------

template <class Word> __device__ static void copy_through_shared(Word *to, const Word *from) {
    __shared__ Word staged[128];
    const unsigned at = shared_address(staged + threadIdx.x);
    const size_t source = global_address(from + thread());
    if constexpr (sizeof(Word) == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(source) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(source), "n"(sizeof(Word)) : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    to[thread()] = staged[threadIdx.x];
}

KERNEL async_copy4(unsigned *to, const unsigned *from) { copy_through_shared(to, from); }
KERNEL async_copy8(uint2 *to, const uint2 *from) { copy_through_shared(to, from); }
KERNEL async_copy16(uint4 *to, const uint4 *from) { copy_through_shared(to, from); }

// Lanes read 4, 8, 12 and 16 of 16 bytes; the rest becomes zero.
KERNEL async_copy_zfill(uint4 *to, const uint4 *from) {
    __shared__ uint4 staged[128];
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(staged + threadIdx.x)),
                 "l"(global_address(from + thread())), "r"(4 + threadIdx.x % 4 * 4) : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    to[thread()] = staged[threadIdx.x];
}

// Odd lanes copy nothing: they write zeros and do not access `from`.
KERNEL async_copy_skip(uint4 *to, const uint4 *from) {
    __shared__ uint4 staged[128];
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(staged + threadIdx.x)),
                 "l"(global_address(from + thread())), "r"(threadIdx.x % 2 ? 0 : 16) : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    to[thread()] = staged[threadIdx.x];
}

static void async_copy() {
    const size_t n = option("--n", 1024), block = 128;
    const Values<unsigned> value = [](size_t i) { return unsigned(i + 1); };
    unsigned *from = object<unsigned>("from", 4 * n, value), *to = object<unsigned>("to", 4 * n);
    async_copy4<<<full_blocks(n, block), block>>>(to, from);
    verify<unsigned>("to", to, n, value);
    async_copy8<<<full_blocks(n, block), block>>>((uint2 *)to, (uint2 *)from);
    verify<unsigned>("to", to, 2 * n, value);
    async_copy16<<<full_blocks(n, block), block>>>((uint4 *)to, (uint4 *)from);
    verify<unsigned>("to", to, 4 * n, value);
    async_copy_zfill<<<full_blocks(n, block), block>>>((uint4 *)to, (uint4 *)from);
    verify<unsigned>("to", to, 4 * n, [=](size_t i) { return i % 4 <= i / 4 % 4 ? value(i) : 0u; });
    async_copy_skip<<<full_blocks(n, block), block>>>((uint4 *)to, (uint4 *)from);
    verify<unsigned>("to", to, 4 * n, [=](size_t i) { return i / 4 % 2 ? 0u : value(i); });
}

// ---- bulk copies and the tensor memory accelerator ------------------------------------------

// A barrier in shared memory for the bytes of one transfer; all by one thread.
__device__ static void open_barrier(uint64_t *barrier, unsigned bytes) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n\t"
                 "fence.proxy.async.shared::cta;\n\t"
                 "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

__device__ static void wait_barrier(uint64_t *barrier) {
    unsigned done = 0;
    while (!done)
        asm volatile("{ .reg .pred complete;\n\t"
                     "mbarrier.try_wait.parity.shared::cta.b64 complete, [%1], 0;\n\t"
                     "selp.u32 %0, 1, 0, complete; }"
                     : "=r"(done) : "r"(shared_address(barrier)) : "memory");
}

__device__ static void finish_stores() {
    asm volatile("cp.async.bulk.commit_group;\n\tcp.async.bulk.wait_group 0;" ::: "memory");
}

// Thread 0 of each block moves the block's `bytes`.
KERNEL bulk_copies(unsigned *to, unsigned *sum, const unsigned *from, unsigned bytes) {
    extern __shared__ __align__(128) unsigned staged[];
    __shared__ uint64_t full;
    const size_t offset = blockIdx.x * size_t(bytes);
    if (threadIdx.x) return;
    open_barrier(&full, bytes);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared_address(staged)), "l"(global_address(from) + offset), "r"(bytes),
                 "r"(shared_address(&full)) : "memory");
    wait_barrier(&full);
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 ::"l"(global_address(to) + offset), "r"(shared_address(staged)), "r"(bytes) : "memory");
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], %2;"
                 ::"l"(global_address(sum)), "r"(shared_address(staged)), "r"(bytes) : "memory");
    finish_stores();
}

static void bulk() {
    const size_t grid = option("--blocks", 4), bytes = option("--bytes", 1024), words = bytes / 4;
    const Values<unsigned> value = [](size_t i) { return unsigned(3 * i + 1); };
    unsigned *from = object<unsigned>("from", grid * words, value);
    unsigned *to = object<unsigned>("to", grid * words), *sum = object<unsigned>("sum", words);
    bulk_copies<<<unsigned(grid), 64, bytes>>>(to, sum, from, unsigned(bytes));
    verify<unsigned>("to", to, grid * words, value);
    verify<unsigned>("sum", sum, words, [=](size_t i) {
        unsigned total = 0;
        for (size_t b = 0; b < grid; b++) total += value(b * words + i);
        return total;
    });
}

#define LOAD_BOX(RANK, COORDINATES, ...)                                                              \
    asm volatile("cp.async.bulk.tensor." #RANK "d.shared::cluster.global.tile"                        \
                 ".mbarrier::complete_tx::bytes [%0], [%1, {" COORDINATES "}], [%2];"                 \
                 ::"r"(box), "l"(from), "r"(barrier), __VA_ARGS__ : "memory")
#define STORE_BOX(RANK, COORDINATES, ...)                                                             \
    asm volatile("cp.async.bulk.tensor." #RANK "d.global.shared::cta.tile.bulk_group"                 \
                 " [%0, {" COORDINATES "}], [%1];" ::"l"(to), "r"(box), __VA_ARGS__ : "memory")

// Thread 0 of each block moves the box at (x, y, z) = block * box - shift.
template <int RANK>
__device__ static void move_box(const CUtensorMap *to, const CUtensorMap *from, int x, int y, int z, unsigned bytes) {
    extern __shared__ unsigned tile[]; // where dynamic memory begins is aligned to 16 bytes at most
    __shared__ uint64_t full;
    if (threadIdx.x) return;
    const unsigned box = (shared_address(tile) + 127) / 128 * 128, barrier = shared_address(&full);
    open_barrier(&full, bytes);
    if constexpr (RANK == 1) LOAD_BOX(1, "%3", "r"(x));
    if constexpr (RANK == 2) LOAD_BOX(2, "%3, %4", "r"(x), "r"(y));
    if constexpr (RANK == 3) LOAD_BOX(3, "%3, %4, %5", "r"(x), "r"(y), "r"(z));
    wait_barrier(&full);
    if constexpr (RANK == 1) STORE_BOX(1, "%2", "r"(x));
    if constexpr (RANK == 2) STORE_BOX(2, "%2, %3", "r"(x), "r"(y));
    if constexpr (RANK == 3) STORE_BOX(3, "%2, %3, %4", "r"(x), "r"(y), "r"(z));
    finish_stores();
}

#define TENSOR_KERNEL(RANK)                                                                           \
    KERNEL tensor_##RANK##d(const __grid_constant__ CUtensorMap to,                                   \
                            const __grid_constant__ CUtensorMap from, int3 box, int3 shift) {         \
        move_box<RANK>(&to, &from, int(blockIdx.x) * box.x - shift.x,                                 \
                       int(blockIdx.y) * box.y - shift.y, int(blockIdx.z) * box.z - shift.z,          \
                       unsigned(box.x * box.y * box.z) * 4);                                          \
    }
TENSOR_KERNEL(1)
TENSOR_KERNEL(2)
TENSOR_KERNEL(3)

using TensorKernel = void (*)(CUtensorMap, CUtensorMap, int3, int3);

static CUtensorMap tensor_map(float *at, int rank, const cuuint64_t size[3], const cuuint32_t box[3]) {
    CUtensorMap map;
    const cuuint64_t pitch[2] = {size[0] * 4, size[0] * size[1] * 4};
    const cuuint32_t every[3] = {1, 1, 1};
    CHECK(DRIVER(cuTensorMapEncodeTiled)(
        &map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, cuuint32_t(rank), at, size, pitch, box, every,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    return map;
}

// Boxes end behind the tensor: what is outside is neither read nor written. (A store that begins before
// its tensor is an illegal instruction: seen on an H200.)
static void run_tensor(TensorKernel kernel, int rank, const char *role_from, const char *role_to,
                       const cuuint64_t (&size)[3], const cuuint32_t (&box)[3], const int (&shift)[3]) {
    const size_t count = size[0] * size[1] * size[2];
    float *from = object<float>(role_from, count, from_index), *to = object<float>(role_to, count);
    unsigned grid[3];
    for (int k = 0; k < 3; k++) grid[k] = blocks(size[k] + unsigned(shift[k]), box[k]);
    kernel<<<dim3(grid[0], grid[1], grid[2]), 32, 4 * box[0] * box[1] * box[2] + 128>>>(
        tensor_map(to, rank, size, box), tensor_map(from, rank, size, box),
        int3{int(box[0]), int(box[1]), int(box[2])}, int3{shift[0], shift[1], shift[2]});
    verify<float>(role_to, to, count, from_index);
}

static void tensor() {
    run_tensor(tensor_1d, 1, "from1", "to1", {1000, 1, 1}, {256, 1, 1}, {0, 0, 0});
    run_tensor(tensor_2d, 2, "from2", "to2", {100, 50, 1}, {32, 16, 1}, {0, 0, 0});
    run_tensor(tensor_3d, 3, "from3", "to3", {40, 20, 10}, {16, 8, 4}, {0, 0, 0});
}

// ---- matrices -------------------------------------------------------------------------------

// Register m of lane t of a loaded 8x8 matrix of 16-bit elements is word t of matrix m.
KERNEL matrices(unsigned *to) {
    __shared__ __align__(16) unsigned rows[32 * 4], stored[32 * 4];
    const unsigned lane = threadIdx.x, at = shared_address(rows), into = shared_address(stored);
    unsigned a, b[2], c[4], d[4];
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at + 16 * lane), "r"(4 * lane), "r"(4 * lane + 1),
                 "r"(4 * lane + 2), "r"(4 * lane + 3) : "memory");
    __syncwarp();
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(a) : "r"(at + lane % 8 * 16) : "memory");
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(b[0]), "=r"(b[1]) : "r"(at + lane % 16 * 16) : "memory");
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3]) : "r"(at + lane * 16) : "memory");
    asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(into + lane % 8 * 16), "r"(a) : "memory");
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};"
                 ::"r"(into + lane % 16 * 16), "r"(b[0]), "r"(b[1]) : "memory");
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(into + lane * 16),
                 "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]) : "memory");
    __syncwarp();
    asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(into + 16 * lane) : "memory");
    to[thread()] = a + b[0] + b[1] + d[0] + d[1] + d[2] + d[3];
}

static void matrix() {
    const size_t grid = option("--blocks", 8);
    unsigned *to = object<unsigned>("to", grid * 32);
    matrices<<<unsigned(grid), 32>>>(to);
    verify<unsigned>("to", to, grid * 32, [](size_t i) {
        const unsigned t = i % 32;
        return t + t + (t + 32) + (16 * t + 6);
    });
}

// ---- clusters -------------------------------------------------------------------------------

// Each thread writes its index into the other block's memory and reads its own block's, twice.
KERNEL __cluster_dims__(2, 1, 1) exchange(unsigned *to) {
    __shared__ unsigned words[128];
    __shared__ uint64_t full;
    const unsigned mine = shared_address(words + threadIdx.x), my_barrier = shared_address(&full);
    unsigned rank, theirs, their_barrier, near, far;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(mine), "r"(rank ^ 1));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(their_barrier) : "r"(my_barrier), "r"(rank ^ 1));
    if (!threadIdx.x) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(my_barrier) : "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                     ::"r"(my_barrier), "r"(blockDim.x * 4) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(theirs),
                 "r"(unsigned(thread())), "r"(their_barrier) : "memory");
    wait_barrier(&full);
    asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(near) : "r"(mine) : "memory");
    asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(theirs), "r"(near + 1) : "memory");
    asm volatile("ld.volatile.shared::cluster.u32 %0, [%1];" : "=r"(far) : "r"(theirs) : "memory");
    asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
    to[thread()] = near * 2 + (far - near);
}

static void cluster() {
    const size_t n = option("--n", 1024), block = 128;
    unsigned *to = object<unsigned>("to", n);
    exchange<<<2 * full_blocks(n, 2 * block), block>>>(to);
    verify<unsigned>("to", to, n, [](size_t i) { return unsigned(i ^ block) * 2 + 1; });
}

// ---- control --------------------------------------------------------------------------------

KERNEL meet(unsigned *to, unsigned rounds) {
#pragma unroll 1
    for (unsigned k = 0; k < rounds; k++) asm volatile("bar.sync 0;" ::: "memory");
    to[thread()] = rounds;
}

static void barrier() {
    const size_t n = option("--n", 1024), block = 256;
    const unsigned rounds = unsigned(option("--rounds", 5));
    unsigned *to = object<unsigned>("to", n);
    meet<<<full_blocks(n, block), block>>>(to, rounds);
    verify<unsigned>("to", to, n, [=](size_t) { return rounds; });
}

__device__ __noinline__ static unsigned inner(unsigned value) {
    asm volatile("" : "+r"(value));
    return value * 3 + 1;
}

__device__ __noinline__ static unsigned outer(unsigned value) { return inner(value) ^ 5; }

// Every lane calls outer, which calls inner; half of the lanes call inner once more.
KERNEL call_functions(unsigned *to) {
    unsigned value = outer(unsigned(thread()));
    if (threadIdx.x % 32 < 16) value = inner(value);
    __syncwarp();
    to[thread()] = value;
}

static void call() {
    const size_t n = option("--n", 1024), block = 128;
    unsigned *to = object<unsigned>("to", n);
    call_functions<<<full_blocks(n, block), block>>>(to);
    verify<unsigned>("to", to, n, [](size_t i) {
        const unsigned value = (unsigned(i) * 3 + 1) ^ 5;
        return i % 32 < 16 ? value * 3 + 1 : value;
    });
}

KERNEL shift_in_grid(unsigned *to, unsigned *data, size_t n) {
    const size_t i = thread();
    data[i] = unsigned(i);
    cooperative_groups::this_grid().sync();
    to[i] = data[i + blockDim.x < n ? i + blockDim.x : i + blockDim.x - n];
}

static void cooperative() {
    const size_t block = 128, n = block * option("--blocks", 16);
    unsigned *data = object<unsigned>("data", n), *to = object<unsigned>("to", 2 * n);
    size_t count = n;
    void *parameters[] = {&to, &data, &count};
    CHECK(cudaLaunchCooperativeKernel((void *)shift_in_grid, blocks(n, block), block, parameters, 0, nullptr));
    verify<unsigned>("to", to, n, [=](size_t i) { return unsigned((i + block) % n); });
}

// ---- launches, streams, contexts, modules ---------------------------------------------------

static void graph() {
    const size_t n = option("--n", 4096), block = 128, replays = option("--replays", 5);
    float *from = object<float>("from", n, [](size_t) { return 2.f; }), *to = object<float>("to", 2 * n);
    cudaStream_t stream;
    cudaGraph_t captured;
    cudaGraphExec_t ready;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    accumulate<<<blocks(n, block), block, 0, stream>>>(to, from, n);
    CHECK(cudaStreamEndCapture(stream, &captured));
    CHECK(cudaGraphInstantiate(&ready, captured, 0));
    for (size_t k = 0; k < replays; k++) CHECK(cudaGraphLaunch(ready, stream));
    verify<float>("to", to, n, [=](size_t) { return 2.f * float(replays); });
}

// Each stream has its own buffers, and both add to a shared one.
static void two_streams() {
    const size_t n = option("--n", 4096), block = 128, launches = option("--launches", 10);
    cudaStream_t streams[2];
    float *from[2], *to[2];
    unsigned *both = object<unsigned>("both", 5 * n);
    for (int s = 0; s < 2; s++) {
        CHECK(cudaStreamCreateWithFlags(&streams[s], cudaStreamNonBlocking));
        from[s] = object<float>(s ? "from1" : "from0", n * size_t(1 + s), [=](size_t) { return float(1 + s); });
        to[s] = object<float>(s ? "to1" : "to0", n * size_t(3 + s));
    }
    CHECK(cudaDeviceSynchronize());
    for (size_t k = 0; k < launches; k++)
        for (int s = 0; s < 2; s++) {
            accumulate<<<blocks(n, block), block, 0, streams[s]>>>(to[s], from[s], n);
            red_distinct<<<full_blocks(n, block), block, 0, streams[s]>>>(both);
        }
    for (int s = 0; s < 2; s++)
        verify<float>(s ? "to1" : "to0", to[s], n, [=](size_t) { return float(launches) * float(1 + s); });
    verify<unsigned>("both", both, n, [=](size_t) { return unsigned(2 * launches); });
}

static void two_contexts() {
    const size_t n = option("--n", 4096), block = 128;
    CUcontext contexts[2];
    unsigned *values[2];
    CHECK(cudaFree(nullptr));
    for (size_t c = 0; c < 2; c++) {
#if CUDA_VERSION >= 13000
        CHECK(DRIVER(cuCtxCreate)(&contexts[c], nullptr, 0, 0));
#else
        CHECK(DRIVER(cuCtxCreate)(&contexts[c], 0, 0));
#endif
        values[c] = object<unsigned>(c ? "second" : "first", n * (1 + c));
        increment<<<blocks(n * (1 + c), block), block>>>(values[c], n * (1 + c));
    }
    for (size_t c = 0; c < 2; c++) {
        CHECK(DRIVER(cuCtxSetCurrent)(contexts[c]));
        increment<<<blocks(n, block), block>>>(values[c], n);
        verify<unsigned>(c ? "second" : "first", values[c], n * (1 + c), [=](size_t i) { return i < n ? 2u : 1u; });
        CHECK(DRIVER(cuCtxDestroy)(contexts[c]));
    }
    CHECK(cudaSetDevice(0));
}

// The consumer's stream comes first, so a profiler that serialises launches never lets it end.
KERNEL consume(unsigned *to, const unsigned *data, const unsigned *flag, unsigned *late, uint64_t limit) {
    const uint64_t until = now() + limit;
    unsigned ready = 0;
    while (!ready && now() < until)
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(ready) : "l"(global_address(flag)) : "memory");
    if (!ready) store(late, 1);
    to[threadIdx.x] = load(data + threadIdx.x) + 1;
}

KERNEL produce(unsigned *data, unsigned *flag) {
    store(data + threadIdx.x, threadIdx.x);
    __threadfence();
    __syncthreads();
    if (!threadIdx.x) store(flag, 1);
}

static void pair() {
    const uint64_t limit = option("--seconds", 5) * uint64_t(1000000000);
    unsigned *data = object<unsigned>("data", 32), *flag = object<unsigned>("flag", 64);
    unsigned *late = object<unsigned>("late", 96), *to = object<unsigned>("to", 128), was_late;
    cudaStream_t streams[2];
    cudaFuncAttributes loaded; // a module that loads lazily would wait for the consumer
    CHECK(cudaFuncGetAttributes(&loaded, produce));
    CHECK(cudaFuncGetAttributes(&loaded, consume));
    for (auto &stream : streams) CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaDeviceSynchronize());
    consume<<<1, 32, 0, streams[0]>>>(to, data, flag, late, limit);
    produce<<<1, 32, 0, streams[1]>>>(data, flag);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(&was_late, late, sizeof was_late, cudaMemcpyDefault));
    expect(!was_late, "the producer did not run beside the consumer: launches are serialised");
    verify<unsigned>("to", to, 32, [](size_t i) { return unsigned(i + 1); });
}

// One kernel name in two modules, one after the other: the second one's writes twice as much.
static std::string module_text(bool twice) {
    std::string text = ".version 7.0\n.target sm_70\n.address_size 64\n"
                       ".visible .entry from_module(.param .u64 to)\n{\n"
                       ".reg .b64 %at<3>;\n.reg .b32 %i;\n"
                       "ld.param.u64 %at0, [to];\ncvta.to.global.u64 %at0, %at0;\n"
                       "mov.u32 %i, %tid.x;\nmul.wide.u32 %at1, %i, 4;\nadd.s64 %at2, %at0, %at1;\n";
    if (twice) text += "st.volatile.global.u32 [%at2+512], %i;\n";
    return text + "st.volatile.global.u32 [%at2], %i;\nret;\n}\n";
}

static void unload() {
    const unsigned block = 64;
    unsigned *to = object<unsigned>("to", 256);
    for (int twice = 0; twice < 2; twice++) {
        CUmodule module;
        CUfunction kernel;
        void *parameters[] = {&to};
        CHECK(DRIVER(cuModuleLoadData)(&module, module_text(twice).c_str()));
        CHECK(DRIVER(cuModuleGetFunction)(&kernel, module, "from_module"));
        CHECK(DRIVER(cuLaunchKernel)(kernel, 1, 1, 1, block, 1, 1, 0, nullptr, parameters, nullptr));
        CHECK(cudaDeviceSynchronize());
        CHECK(DRIVER(cuModuleUnload)(module));
    }
    verify<unsigned>("to", to, 256, [](size_t i) { return i % 128 < block ? unsigned(i % 128) : 0u; });
}

static void reset() {
    const size_t n = option("--n", 4096), block = 128;
    for (size_t round = 1; round <= 2; round++) {
        unsigned *to = object<unsigned>(round == 1 ? "before" : "after", n * round);
        write_index<<<blocks(n * round, block), block>>>(to, n * round);
        verify<unsigned>("to", to, n * round, [](size_t i) { return unsigned(i); });
        CHECK(cudaDeviceReset());
    }
}

// ---- how programs end -----------------------------------------------------------------------

KERNEL write_nowhere(unsigned *at) { store(at + threadIdx.x, 1); }

KERNEL stop_here() { asm volatile("trap;"); }

static void run_bad(bool trap) {
    const size_t n = option("--n", 4096), block = 128;
    unsigned *to = object<unsigned>("to", n);
    write_index<<<blocks(n, block), block>>>(to, n);
    verify<unsigned>("to", to, n, [](size_t i) { return unsigned(i); });
    if (trap) stop_here<<<1, 32>>>();
    else write_nowhere<<<1, 32>>>((unsigned *)4096);
    const cudaError_t status = cudaDeviceSynchronize();
    std::printf("%s\n", cudaGetErrorName(status));
    expect(trap ? status != cudaSuccess : status == cudaErrorIllegalAddress, "the error of a bad kernel");
}

static void fault() { run_bad(false); }
static void trap() { run_bad(true); }

static void no_sync() {
    const size_t n = option("--n", 1 << 20), block = 128;
    unsigned *to = object<unsigned>("to", n);
    for (int k = 0; k < 4; k++) write_index<<<blocks(n, block), block>>>(to, n);
    CHECK(cudaGetLastError());
}

// ---- sizes ----------------------------------------------------------------------------------

// 2^20 threads, 2^32 + 2^20 reads. The address changes, else ptxas reads once before the loop.
KERNEL reread(unsigned *to, const unsigned *from, unsigned trips) {
    unsigned sum = 0;
#pragma unroll 1
    for (unsigned k = 0; k < trips; k++) sum += load(from + (threadIdx.x + 32 * k) % 256);
    to[thread()] = sum;
}

static void many() {
    const size_t n = option("--n", 1 << 20), block = 256, trips = option("--trips", 4097);
    unsigned *from = object<unsigned>("from", block, [](size_t i) { return unsigned(i); });
    std::vector<unsigned> sums(block);
    for (size_t i = 0; i < block * trips; i++) sums[i % block] += unsigned((i % block + 32 * (i / block)) % block);
    unsigned *to = object<unsigned>("to", n);
    reread<<<full_blocks(n, block), block>>>(to, from, unsigned(trips));
    verify<unsigned>("to", to, n, [&](size_t i) { return sums[i % block]; });
}

// One word per MiB, and the last one.
KERNEL touch(unsigned *object, size_t bytes) {
    const size_t i = thread(), steps = bytes >> 20;
    if (i > steps) return;
    store(object + (i < steps ? i << 18 : bytes / 4 - 1), unsigned(i + 1));
}

static void large() {
    const size_t bytes = option("--gib", 5) << 30, steps = bytes >> 20, block = 128;
    unsigned *big, last;
    CHECK(cudaMalloc(&big, bytes));
    announce("big", big, bytes);
    touch<<<blocks(steps + 1, block), block>>>(big, bytes);
    CHECK(cudaDeviceSynchronize());
    std::vector<unsigned> words(steps);
    CHECK(cudaMemcpy2D(words.data(), 4, big, 1 << 20, 4, steps, cudaMemcpyDefault));
    CHECK(cudaMemcpy(&last, big + bytes / 4 - 1, 4, cudaMemcpyDefault));
    for (size_t i = 0; i < steps; i++) expect(words[i] == i + 1, "a word of big");
    expect(last == steps + 1, "the last word of big");
    CHECK(cudaFree(big));
}

KERNEL touch_all(unsigned **objects, unsigned n) {
    const unsigned i = unsigned(thread());
    if (i >= n) return;
    unsigned *at;
    asm volatile("ld.global.u64 %0, [%1];" : "=l"(at) : "l"(global_address(objects + i)) : "memory");
    store(at + i % 64, i);
}

// Object k has 256 bytes and is touched once, k words (modulo 64) from its beginning.
static void many_objects() {
    const size_t n = option("--objects", 5000), block = 128;
    std::vector<unsigned *> each(n);
    for (auto &at : each) CHECK(cudaMalloc(&at, 256));
    unsigned **table = object<unsigned *>("table", n, [&](size_t i) { return each[i]; });
    touch_all<<<blocks(n, block), block>>>(table, unsigned(n));
    CHECK(cudaDeviceSynchronize());
    for (size_t i = 0; i < n; i++) {
        unsigned value;
        CHECK(cudaMemcpy(&value, each[i] + i % 64, 4, cudaMemcpyDefault));
        expect(value == i, "a word of an object");
        CHECK(cudaFree(each[i]));
    }
}

// ---- kinds and lifetimes of memory ------------------------------------------------------------

// Memory at the address of an object that was freed, of another size.
static void reuse() {
    const size_t n = option("--n", 1 << 20), block = 128, rounds = 3;
    const void *first = nullptr;
    for (size_t round = 0; round < rounds; round++) {
        const size_t count = n >> round;
        const std::string role = "round" + std::to_string(round);
        unsigned *to = object<unsigned>(role.c_str(), count);
        if (!round) first = to;
        if (to != first) std::printf("%s is at another address\n", role.c_str());
        write_index<<<blocks(count, block), block>>>(to, count);
        verify<unsigned>(role.c_str(), to, count, [](size_t i) { return unsigned(i); });
        CHECK(cudaFree(to));
    }
}

KERNEL copy_words(unsigned *to, const unsigned *from) { store(to + thread(), load(from + thread())); }

// 512 bytes inside an object, then 512 that were freed and are still mapped; the next object
// begins where they end.
static void unknown() {
    const size_t bytes = 512, words = bytes / 4, tries = 64;
    std::vector<char *> each(tries);
    unsigned *to = object<unsigned>("to", 4 * words);
    for (auto &at : each) CHECK(cudaMalloc(&at, bytes));
    for (size_t k = 0; k + 2 < tries; k++) {
        if (each[k + 1] != each[k] + bytes || each[k + 2] != each[k] + 2 * bytes) continue;
        CHECK(cudaFree(each[k + 1]));
        announce("inside", each[k], bytes);
        announce("gone", each[k + 1], 0);
        announce("neighbour", each[k + 2], bytes);
        write_index<<<2, unsigned(words)>>>((unsigned *)each[k], 2 * words);
        copy_words<<<2, unsigned(words)>>>(to, (unsigned *)each[k]);
        verify<unsigned>("to", to, 2 * words, [](size_t i) { return unsigned(i); });
        return;
    }
    std::fprintf(stderr, "no three allocations in a row\n");
    std::exit(77);
}

__device__ unsigned in_module[6 * 1024];

// Each kind of memory has a size of its own.
static void memory_kinds() {
    const size_t n = 1024, block = 128;
    unsigned *managed, *pinned, *pooled, *mapped, *symbol;
    CHECK(cudaMallocManaged(&managed, n * 4));
    announce("managed", managed, n * 4);
    CHECK(cudaHostAlloc(&pinned, 2 * n * 4, cudaHostAllocMapped));
    announce("pinned", pinned, 2 * n * 4);
    CHECK(cudaMallocAsync(&pooled, 3 * n * 4, nullptr));
    announce("pooled", pooled, 3 * n * 4);
    CHECK(cudaGetSymbolAddress((void **)&symbol, in_module));
    announce("symbol", symbol, sizeof in_module);

    CUmemAllocationProp where = {};
    CUmemAccessDesc access = {};
    CUmemGenericAllocationHandle physical;
    CUdeviceptr virtual_address;
    size_t page;
    where.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    where.location.type = access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CHECK(DRIVER(cuMemGetAllocationGranularity)(&page, &where, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CHECK(DRIVER(cuMemCreate)(&physical, page, &where, 0));
    CHECK(DRIVER(cuMemAddressReserve)(&virtual_address, page, 0, 0, 0));
    CHECK(DRIVER(cuMemMap)(virtual_address, page, 0, physical, 0));
    CHECK(DRIVER(cuMemSetAccess)(virtual_address, page, &access, 1));
    mapped = (unsigned *)virtual_address;
    announce("mapped", mapped, page);

    unsigned *const each[] = {managed, pinned, pooled, mapped, symbol};
    for (size_t k = 0; k < 5; k++) {
        const size_t count = n * (k == 4 ? 6 : k + 1);
        fill<unsigned>(each[k], count, [=](size_t i) { return unsigned(i + k); });
        increment<<<blocks(count, block), block>>>(each[k], count);
        verify<unsigned>("a kind of memory", each[k], count, [=](size_t i) { return unsigned(i + k + 1); });
    }
}

// ---------------------------------------------------------------------------------------------

static const struct {
    const char *name;
    void (*run)();
    const char *options;
} scenarios[] = {
    {"stride1", stride1, "--n 4096 --block 128"},
    {"stride2", stride2, "--n 4096 --block 128"},
    {"stride32", stride32, "--n 4096 --block 128"},
    {"tail", tail, "--n 1003 --block 50"},
    {"one_thread", one_thread, "--n 64"},
    {"many_blocks", many_blocks, "--n 2240000"},
    {"divergent", divergent, "--n 1024"},
    {"early_exit", early_exit, "--n 1024"},
    {"atomics_one", atomics_one, "--n 4096"},
    {"atomics_distinct", atomics_distinct, "--n 4096"},
    {"shared_broadcast", shared_broadcast, "--n 1024"},
    {"shared_1way", shared_1way, "--n 1024"},
    {"shared_2way", shared_2way, "--n 1024"},
    {"shared_8way", shared_8way, "--n 1024"},
    {"shared_32way", shared_32way, "--n 1024"},
    {"shared_8bytes", shared_8bytes, "--n 1024"},
    {"shared_16bytes", shared_16bytes, "--n 1024"},
    {"local", local, "--n 1024 --trips 16"},
    {"async_copy", async_copy, "--n 1024"},
    {"bulk", bulk, "--blocks 4 --bytes 1024"},
    {"tensor", tensor, ""},
    {"matrix", matrix, "--blocks 8"},
    {"cluster", cluster, "--n 1024"},
    {"barrier", barrier, "--n 1024 --rounds 5"},
    {"call", call, "--n 1024"},
    {"cooperative", cooperative, "--blocks 16"},
    {"graph", graph, "--n 4096 --replays 5"},
    {"two_streams", two_streams, "--n 4096 --launches 10"},
    {"two_contexts", two_contexts, "--n 4096"},
    {"pair", pair, "--seconds 5"},
    {"unload", unload, ""},
    {"reset", reset, "--n 4096"},
    {"fault", fault, "--n 4096"},
    {"trap", trap, "--n 4096"},
    {"no_sync", no_sync, "--n 1048576"},
    {"many", many, "--n 1048576 --trips 4097"},
    {"large", large, "--gib 5"},
    {"many_objects", many_objects, "--objects 5000"},
    {"reuse", reuse, "--n 1048576"},
    {"unknown", unknown, ""},
    {"memory_kinds", memory_kinds, ""},
};

static bool run(const char *name) {
    for (const auto &scenario : scenarios)
        if (!std::strcmp(name, scenario.name)) {
            scenario.run();
            return true;
        }
    return false;
}

int main(int argc, char **argv) {
    count_of_arguments = argc;
    arguments = argv;
    for (int i = 1; i < argc && std::strncmp(argv[i], "--", 2); i++)
        if (!run(argv[i])) {
            std::fprintf(stderr, "no scenario %s\n", argv[i]);
            return 2;
        }
    if (argc == 1)
        for (const auto &scenario : scenarios) std::printf("%s %s\n", scenario.name, scenario.options);
    return 0;
}
