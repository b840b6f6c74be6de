/* vadd [N]: c = a + b over N floats (65536).
 * 1 launch, 3 allocations, 3 frees, 3 copies. */
#include "demo.h"

int main(int argc, char **argv) {
    long n = demo_number(argc, argv, 0, 65536, 1L << 26);
    demo_expect(argc, argv, (struct demo_counts){.launches = 1, .copies = 3, .allocations = 3, .frees = 3});
    uint64_t bytes = (uint64_t)n * sizeof(float);
    float *a = malloc(bytes), *b = malloc(bytes), *c = malloc(bytes);
    CHECK(a && b && c);
    demo_numbers(a, n, 1);
    demo_numbers(b, n, 2);
    void *device_a = demo_alloc(bytes), *device_b = demo_alloc(bytes), *device_c = demo_alloc(bytes);
    RA(ra_memcpy(device_a, a, bytes));
    RA(ra_memcpy(device_b, b, bytes));
    int count = (int)n;
    demo_launch(demo_function("_Z4vaddPKfS0_Pfi"), n, NULL, (void *[]){&device_a, &device_b, &device_c, &count});
    RA(ra_context_synchronize());
    RA(ra_memcpy(c, device_c, bytes));
    for (long i = 0; i < n; i++) CHECK(c[i] == a[i] + b[i]);
    RA(ra_free(device_a));
    RA(ra_free(device_b));
    RA(ra_free(device_c));
    free(a);
    free(b);
    free(c);
    printf("vadd: %ld elements, correct\n", n);
    return 0;
}
