/* lifetimes [ITERATIONS]: memory and calls as they should not be, for the tools that find it.
 * A staging buffer that is freed late, an output that is allocated early, a buffer that nothing uses, and per
 * iteration (200) an allocation that is freed again, a set that the next copy overwrites, and a wait after a small
 * launch.  5 + 3 per iteration launches, 2 + 1 per iteration copies, 1 per iteration sets. */
#include "demo.h"

enum { N = 1 << 18, SMALL = 64 };

static float numbers[N], result[N];

static void scale(void *x, int n) {
    float factor = 0.5f, offset = 1.0f;
    demo_launch(demo_function("_Z5scalePfffi"), n, NULL, (void *[]){&x, &factor, &offset, &n});
}

static void add(void *a, void *b, void *c, int n) {
    demo_launch(demo_function("_Z4vaddPKfS0_Pfi"), n, NULL, (void *[]){&a, &b, &c, &n});
}

static void softmax(void *in, void *out) {
    int rows = 2, columns = SMALL / 2;
    demo_launch(demo_function("_Z12softmax_rowsPKfPfii"), SMALL, NULL, (void *[]){&in, &out, &rows, &columns});
}

int main(int argc, char **argv) {
    long iterations = demo_number(argc, argv, 0, 200, 1L << 30);
    demo_expect(argc, argv,
                (struct demo_counts){.launches = 5 + 3 * iterations,
                                     .copies = 2 + iterations,
                                     .sets = iterations,
                                     .allocations = 5 + iterations,
                                     .frees = 5 + iterations});
    demo_numbers(numbers, N, 0);
    void *staging = demo_alloc(sizeof numbers), *output = demo_alloc(sizeof numbers);
    void *unused = demo_alloc(sizeof numbers / 2), *state = demo_alloc(sizeof numbers);
    RA(ra_memcpy(staging, numbers, sizeof numbers));
    add(staging, staging, state, N); /* the last use of staging */
    for (int i = 0; i < 3; i++) scale(state, N);
    void *parameters = demo_alloc(SMALL * sizeof(float));
    for (long i = 0; i < iterations; i++) {
        void *scratch = demo_alloc(SMALL * sizeof(float));
        RA(ra_memset(parameters, 0, 4, SMALL));
        RA(ra_memcpy(parameters, numbers, SMALL * sizeof(float)));
        add(parameters, parameters, scratch, SMALL);
        scale(state, SMALL);
        softmax(scratch, scratch);
        RA(ra_device_synchronize());
        RA(ra_free(scratch));
    }
    add(state, state, output, N); /* the first use of output */
    RA(ra_memcpy(result, output, sizeof result));
    for (int i = SMALL; i < N; i++) CHECK(result[i] == 2 * (((2 * numbers[i] * 0.5f + 1) * 0.5f + 1) * 0.5f + 1));
    void *all[] = {staging, output, unused, state, parameters};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) RA(ra_free(all[i]));
    printf("lifetimes: %ld iterations, correct\n", iterations);
    return 0;
}
