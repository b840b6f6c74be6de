/* gemm [M] [N] [K]: C[M][N] = A[M][K] * B[K][N] with tiles in shared memory (150, 130, 110).
 * 1 launch, 3 allocations, 3 frees, 3 copies. */
#include "demo.h"

int main(int argc, char **argv) {
    int m = (int)demo_number(argc, argv, 0, 150, 8192), n = (int)demo_number(argc, argv, 1, 130, 8192),
        k = (int)demo_number(argc, argv, 2, 110, 8192);
    demo_expect(argc, argv, (struct demo_counts){.launches = 1, .copies = 3, .allocations = 3, .frees = 3});
    size_t bytes_a = sizeof(float) * (size_t)m * (size_t)k, bytes_b = sizeof(float) * (size_t)k * (size_t)n,
           bytes_c = sizeof(float) * (size_t)m * (size_t)n;
    float *a = malloc(bytes_a), *b = malloc(bytes_b), *c = malloc(bytes_c);
    CHECK(a && b && c);
    demo_numbers(a, (long)m * k, 1);
    demo_numbers(b, (long)k * n, 2);
    void *device_a = demo_alloc(bytes_a), *device_b = demo_alloc(bytes_b), *device_c = demo_alloc(bytes_c);
    RA(ra_memcpy(device_a, a, bytes_a));
    RA(ra_memcpy(device_b, b, bytes_b));
    uint32_t grid[3] = {(uint32_t)(n + 15) / 16, (uint32_t)(m + 15) / 16, 1}, block[3] = {16, 16, 1};
    RA(ra_launch(demo_function("_Z10gemm_tiledILi16EEvPKfS1_Pfiii"), grid, block, 0, NULL,
                 (void *[]){&device_a, &device_b, &device_c, &m, &n, &k}));
    RA(ra_memcpy(c, device_c, bytes_c));
    for (long i = 0; i < (long)m * n; i++) {
        double sum = 0; /* exact: all terms are multiples of a quarter */
        for (long j = 0; j < k; j++) sum += (double)a[i / n * k + j] * (double)b[j * n + i % n];
        CHECK((double)c[i] == sum);
    }
    RA(ra_free(device_a));
    RA(ra_free(device_b));
    RA(ra_free(device_c));
    free(a);
    free(b);
    free(c);
    printf("gemm: %d x %d x %d, correct\n", m, n, k);
    return 0;
}
