/* managed [N] [ITERATIONS]: a network layer in managed memory, N floats (1048576) for each of its arrays.
 *
 * The host writes the input before each iteration (4) and reads the output after it; the weights are written once,
 * and both processors read them.  2 launches per iteration, 3 allocations, 3 frees, no copy: pages move when one
 * processor touches what the other holds, unless --prefetch moves them before. */
#include "demo.h"

int main(int argc, char **argv) {
    long n = demo_number(argc, argv, 0, 1L << 20, 1L << 26), iterations = demo_number(argc, argv, 1, 4, 1000);
    demo_expect(argc, argv, (struct demo_counts){.launches = 2 * iterations, .allocations = 3, .frees = 3});
    bool prefetch = demo_flag(argc, argv, "--prefetch");
    uint64_t bytes = (uint64_t)n * sizeof(float);
    float *input, *weights, *output;
    RA(ra_alloc_managed((void **)&input, bytes));
    RA(ra_alloc_managed((void **)&weights, bytes));
    RA(ra_alloc_managed((void **)&output, bytes));
    ra_function add = demo_function("_Z4vaddPKfS0_Pfi"), scale = demo_function("_Z5scalePfffi");
    int count = (int)n;
    float factor = 2.0f, offset = 1.0f;
    RA(ra_host_access(weights, bytes, 1));
    demo_numbers(weights, n, 2);
    if (prefetch) RA(ra_advise(weights, bytes, RA_ADVICE_READ_MOSTLY, 0));
    for (long i = 0; i < iterations; i++) {
        RA(ra_host_access(input, bytes, 1));
        demo_numbers(input, n, i);
        if (prefetch) {
            RA(ra_prefetch(input, bytes, 0, NULL));
            RA(ra_prefetch(weights, bytes, 0, NULL));
            RA(ra_prefetch(output, bytes, 0, NULL));
        }
        demo_launch(add, n, NULL, (void *[]){&input, &weights, &output, &count});
        demo_launch(scale, n, NULL, (void *[]){&output, &factor, &offset, &count});
        if (prefetch) RA(ra_prefetch(output, bytes, RA_HOST, NULL));
        RA(ra_context_synchronize());
        RA(ra_host_access(output, bytes, 0));
        RA(ra_host_access(weights, bytes, 0));
        for (long k = 0; k < n; k++) CHECK(output[k] == 2.0f * (input[k] + weights[k]) + 1.0f);
    }
    RA(ra_free(input));
    RA(ra_free(weights));
    RA(ra_free(output));
    printf("managed: %ld iterations over %ld elements, correct\n", iterations, n);
    return 0;
}
