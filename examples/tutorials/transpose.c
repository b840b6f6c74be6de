/* Transposes a matrix on the reference accelerator.
 *
 * PITCH selects the kernel: 0 without shared memory, otherwise the words from one row of its tile to
 * the next.
 */
#include <stdio.h>
#include <stdlib.h>

#include "refacc_kernel.h"

#ifndef PITCH
#define PITCH 0
#endif
enum { SIZE = 512, SIDE = 32, ROWS = 8 };

#if PITCH == 0

static bool transpose(ra_warp *w) {
    int64_t column[RA_LANES], row[RA_LANES];
    uint64_t from[RA_LANES], to[RA_LANES];
    float x[RA_LANES] = {0};
    ra_global_index(w, 0, column);
    ra_global_index(w, 1, row);
    RA_EACH_LANE(lane) {
        from[lane] = ra_parameter_u64(w, 0) + (uint64_t)(row[lane] * SIZE + column[lane]) * sizeof(float);
        to[lane] = ra_parameter_u64(w, 1) + (uint64_t)(column[lane] * SIZE + row[lane]) * sizeof(float);
    }
    ra_load_f32(w, 0, w->live, from, x);
    ra_store_f32(w, 1, w->live, to, x);
    return false;
}

#else

static bool transpose(ra_warp *w) {
    bool loading = w->phase == 0; /* the second phase begins after the barrier */
    int64_t row0 = (int64_t)w->block[1] * SIDE, column0 = (int64_t)w->block[0] * SIDE;
    for (int step = 0; step < SIDE; step += ROWS) {
        uint64_t global[RA_LANES], tile[RA_LANES];
        float x[RA_LANES] = {0};
        RA_EACH_LANE(lane) {
            int64_t i = w->thread[1][lane] + step, j = w->thread[0][lane];
            int64_t row = (loading ? row0 : column0) + i, column = (loading ? column0 : row0) + j;
            global[lane] = ra_parameter_u64(w, !loading) + (uint64_t)(row * SIZE + column) * sizeof(float);
            tile[lane] = (uint64_t)(loading ? i * PITCH + j : j * PITCH + i) * sizeof(float);
        }
        if (loading) {
            ra_load_f32(w, 0, w->live, global, x);
            ra_shared_store_f32(w, 1, w->live, tile, x);
        } else {
            ra_shared_load_f32(w, 3, w->live, tile, x);
            ra_store_f32(w, 4, w->live, global, x);
        }
    }
    return loading ? ra_barrier(w, 2) : false;
}

#endif

static const ra_kernel kernel = {
    .symbol = "_Z9transposePKfPf",
    .run = transpose,
    .shared_static = SIDE * PITCH * sizeof(float),
    .registers = 16,
    .parameters = 2,
    .parameter_bytes = {8, 8},
};

static const char image[] = "refacc-module 1\n_Z9transposePKfPf\n";

static void check(int error) {
    if (error == RA_OK) return;
    fprintf(stderr, "%s\n", ra_error_string(error));
    exit(1);
}

int main(void) {
    size_t bytes = sizeof(float) * SIZE * SIZE;
    float *host = malloc(bytes);
    void *in, *out;
    ra_module module;
    ra_function function;
    check(ra_kernel_register(&kernel, 1));
    check(ra_module_load(&module, image, sizeof image - 1));
    check(ra_module_function(&function, module, kernel.symbol));
    check(ra_alloc(&in, bytes));
    check(ra_alloc(&out, bytes));
    for (int i = 0; i < SIZE * SIZE; i++) host[i] = (float)i;
    check(ra_memcpy(in, host, bytes));
    check(ra_launch(function, (uint32_t[]){SIZE / SIDE, SIZE / (PITCH ? SIDE : ROWS), 1},
                    (uint32_t[]){SIDE, ROWS, 1}, 0, NULL, (void *[]){&in, &out}));
    check(ra_memcpy(host, out, bytes));
    for (int i = 0; i < SIZE * SIZE; i++)
        if (host[i] != (float)(i % SIZE * SIZE + i / SIZE)) return puts("wrong"), 1;
    puts("correct");
    return 0;
}
