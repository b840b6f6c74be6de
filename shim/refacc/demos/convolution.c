/* convolution [ITERATIONS]: a small network's forward pass, ITERATIONS times (10):
 * conv2d 3x3 (3 to 8 channels, 32x32), scale, conv2d 1x1 (8 to 10 channels), scale, softmax.
 * 5 launches and 2 copies per iteration, 4 copies before; 8 allocations, 8 frees. */
#include <math.h>

#include "demo.h"

enum { CHANNELS = 3, HIDDEN = 8, CLASSES = 10, SIDE = 32, PIXELS = SIDE * SIDE, TAP = 3 };

static float input[CHANNELS * PIXELS], output[CLASSES * PIXELS], expected[CLASSES * PIXELS];
static float weight1[HIDDEN * CHANNELS * TAP * TAP], bias1[HIDDEN], weight2[CLASSES * HIDDEN], bias2[CLASSES];

static void convolve(const float *in, const float *weight, const float *bias, float *out, int channels, int filters,
                     int side) {
    for (int f = 0; f < filters; f++)
        for (int p = 0; p < PIXELS; p++) {
            float sum = bias[f];
            for (int tap = 0; tap < channels * side * side; tap++) {
                int row = p / SIDE + tap / side % side - side / 2, column = p % SIDE + tap % side - side / 2;
                if (row < 0 || row >= SIDE || column < 0 || column >= SIDE) continue;
                sum += in[tap / side / side * PIXELS + row * SIDE + column] * weight[f * channels * side * side + tap];
            }
            out[f * PIXELS + p] = 0.25f * sum + 0.5f;
        }
}

static void reference(void) {
    static float hidden[HIDDEN * PIXELS];
    convolve(input, weight1, bias1, hidden, CHANNELS, HIDDEN, TAP);
    convolve(hidden, weight2, bias2, expected, HIDDEN, CLASSES, 1);
    for (int row = 0; row < CLASSES * SIDE; row++) {
        float *x = expected + row * SIDE, max = x[0], sum = 0;
        for (int i = 1; i < SIDE; i++) max = fmaxf(max, x[i]);
        for (int i = 0; i < SIDE; i++) sum += x[i] = expf(x[i] - max);
        for (int i = 0; i < SIDE; i++) x[i] /= sum;
    }
}

static void *upload(const float *x, uint64_t bytes) {
    void *address = demo_alloc(bytes);
    RA(ra_memcpy(address, x, bytes));
    return address;
}

static void conv2d(void *in, void *weight, void *bias, void *out, int channels, int filters, int side) {
    int batch = 1, size = SIDE;
    demo_launch(demo_function("_Z6conv2dPKfS0_S0_Pfiiiiii"), filters * PIXELS, NULL,
                (void *[]){&in, &weight, &bias, &out, &batch, &channels, &size, &size, &filters, &side});
}

static void scale(void *x, int n) {
    float factor = 0.25f, offset = 0.5f;
    demo_launch(demo_function("_Z5scalePfffi"), n, NULL, (void *[]){&x, &factor, &offset, &n});
}

static void softmax(void *in, void *out, int rows, int columns) {
    uint32_t grid[3] = {(uint32_t)(rows + 3) / 4, 1, 1}, block[3] = {128, 1, 1};
    RA(ra_launch(demo_function("_Z12softmax_rowsPKfPfii"), grid, block, 0, NULL,
                 (void *[]){&in, &out, &rows, &columns}));
}

int main(int argc, char **argv) {
    long iterations = demo_number(argc, argv, 0, 10, 1L << 30);
    demo_expect(argc, argv,
                (struct demo_counts){
                    .launches = 5 * iterations, .copies = 4 + 2 * iterations, .allocations = 8, .frees = 8});
    demo_numbers(input, CHANNELS * PIXELS, 0);
    demo_numbers(weight1, HIDDEN * CHANNELS * TAP * TAP, 3);
    demo_numbers(bias1, HIDDEN, 5);
    demo_numbers(weight2, CLASSES * HIDDEN, 7);
    demo_numbers(bias2, CLASSES, 9);
    reference();
    void *device_weight1 = upload(weight1, sizeof weight1), *device_bias1 = upload(bias1, sizeof bias1);
    void *device_weight2 = upload(weight2, sizeof weight2), *device_bias2 = upload(bias2, sizeof bias2);
    void *device_input = demo_alloc(sizeof input), *hidden = demo_alloc(HIDDEN * PIXELS * sizeof(float));
    void *logits = demo_alloc(sizeof output), *device_output = demo_alloc(sizeof output);
    for (long i = 0; i < iterations; i++) {
        RA(ra_memcpy(device_input, input, sizeof input));
        conv2d(device_input, device_weight1, device_bias1, hidden, CHANNELS, HIDDEN, TAP);
        scale(hidden, HIDDEN * PIXELS);
        conv2d(hidden, device_weight2, device_bias2, logits, HIDDEN, CLASSES, 1);
        scale(logits, CLASSES * PIXELS);
        softmax(logits, device_output, CLASSES * SIDE, SIDE);
        RA(ra_memcpy(output, device_output, sizeof output));
    }
    for (int i = 0; i < CLASSES * PIXELS; i++) CHECK(fabsf(output[i] - expected[i]) < 1e-5f);
    void *all[] = {device_weight1, device_bias1, device_weight2, device_bias2, device_input, hidden, logits, device_output};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) RA(ra_free(all[i]));
    printf("convolution: %ld iterations, correct\n", iterations);
    return 0;
}
