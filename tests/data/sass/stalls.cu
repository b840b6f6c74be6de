// One kernel for each way of waiting.  stalls_sm80, stalls_sm90 and stalls_sm120 are made of it:
//   nvcc -arch=sm_80 -cubin -o stalls_sm80.cubin stalls.cu
//   python -m tests.support.sass stalls_sm80.cubin
// with CUDA 13.5; that of sm_90a with -lineinfo.  tests/unit/test_sass_blame.py has what is expected, by hand.
#define KERNEL extern "C" __global__ void

KERNEL pointer_chase(const long *next, long *out, int n)
{
    long at = threadIdx.x;
#pragma unroll 1
    for (int i = 0; i < n; i++) at = next[at];
    out[threadIdx.x] = at;
}
KERNEL dependent_loads(const int *index, const float *values, float *out)
{
    out[threadIdx.x] = values[index[threadIdx.x]] + 1.0f;
}
KERNEL two_loads_one_use(const float *a, const float *b, float *out)
{
    out[threadIdx.x] = a[threadIdx.x] * b[threadIdx.x];
}
KERNEL load_to_address(const int *where, float *out)
{
    out[where[threadIdx.x]] = 2.0f;
}
KERNEL shared_then_global(const float *a, float *out)
{
    __shared__ float s[256];
    s[threadIdx.x] = a[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = s[255 - threadIdx.x] * 3.0f;
}
KERNEL predicated(const float *a, float *out, int n)
{
    float x = 1.0f;
    if ((int)threadIdx.x < n) x = a[threadIdx.x];
    out[threadIdx.x] = x + 2.0f;
}
KERNEL loop_carried(const float *a, float *out, int n)
{
    float sum = 0;
#pragma unroll 1
    for (int i = 0; i < n; i++) sum = sum * 0.5f + a[i * 256 + threadIdx.x];
    out[threadIdx.x] = sum;
}
KERNEL pipelined(const float *a, float *out, int n)
{
    float sum = 0, next = a[threadIdx.x];
#pragma unroll 1
    for (int i = 1; i <= n; i++) {
        float now = next;
        next = a[i * 256 + threadIdx.x];
#pragma unroll
        for (int k = 0; k < 8; k++) now = now * now + 1.5f;
        sum += now;
    }
    out[threadIdx.x] = sum + next;
}
KERNEL atomics(int *counter, int *out)
{
    int ticket = atomicExch(counter + threadIdx.x, 5);
    out[threadIdx.x] = ticket * 3;
}
KERNEL divergent(const float *a, const float *b, float *out)
{
    float x;
    if (threadIdx.x & 1)
        x = a[threadIdx.x] * __sinf(a[threadIdx.x + 99]);
    else
        x = b[threadIdx.x] / b[threadIdx.x + 7];
    out[threadIdx.x] = x;
}
KERNEL special_function(float x, float *out)
{
    out[threadIdx.x] = __expf(x * threadIdx.x) + 1.0f;
}
#if __CUDA_ARCH__ >= 800
__device__ unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

KERNEL copy_async(const float4 *a, float4 *out)
{
    __shared__ float4 s[128];
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :: "r"(shared_address(&s[threadIdx.x])), "l"(a + threadIdx.x));
    asm volatile("cp.async.commit_group; cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    out[threadIdx.x] = s[127 - threadIdx.x];
}
KERNEL copy_async_stages(const float4 *a, const float4 *b, float4 *out)
{
    __shared__ float4 s[2][128];
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :: "r"(shared_address(&s[0][threadIdx.x])), "l"(a + threadIdx.x));
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :: "r"(shared_address(&s[1][threadIdx.x])), "l"(b + threadIdx.x));
    asm volatile("cp.async.commit_group; cp.async.wait_group 1;" ::: "memory");
    out[threadIdx.x] = s[0][threadIdx.x];
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    out[threadIdx.x + 128] = s[1][threadIdx.x];
}
#endif
#if __CUDA_ARCH__ >= 900
struct alignas(64) TensorMap { long words[16]; };

KERNEL tensor_copy(const __grid_constant__ TensorMap map, float *out)
{
    __shared__ alignas(128) float tile[256];
    __shared__ alignas(8) unsigned long long barrier;
    unsigned bar = shared_address(&barrier), to = shared_address(tile);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(bar) : "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 1024;" :: "r"(bar) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     " [%0], [%1, {%3, %3}], [%2];"
                     :: "r"(to), "l"(&map), "r"(bar), "r"(0) : "memory");
    }
    __syncthreads();
    asm volatile("{.reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], 0;"
                 " @!p bra again;}" :: "r"(bar) : "memory");
    out[threadIdx.x] = tile[255 - threadIdx.x];
}
#endif
