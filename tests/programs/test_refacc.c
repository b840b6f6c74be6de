/* Self-test of the reference accelerator: exit status 0 when everything holds.
 * SOURCES: every C file of shim/refacc.
 *
 *   cc -std=c11 -O1 -g -Wall -Wextra -Werror -pthread -Ishim/refacc [-fsanitize=…] \
 *      tests/programs/test_refacc.c SOURCES -o test_refacc -lm -ldl
 *   cc … -fPIC -shared -DRA_TEST_TOOL tests/programs/test_refacc.c -o tool.so
 *   ./test_refacc ./tool.so        (with -fsanitize=thread: TSAN_OPTIONS=die_after_fork=0)
 *   ./test_refacc --speed          prints lane accesses per second, hooks off and on
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "refacc_kernel.h"

#ifdef RA_TEST_TOOL /* the library that is injected: counts callbacks */

__attribute__((visibility("default"))) _Atomic uint32_t ra_test_counts[RA_CALLBACK_COUNT];
__attribute__((visibility("default"))) _Atomic uint32_t ra_test_initialized;

static void count(void *userdata, ra_domain domain, ra_callback_id id, void *data) {
    static const uint32_t sizes[RA_CALLBACK_COUNT] = {
#define SIZE(name, number, domain, type) [number] = sizeof(type),
        RA_CALLBACKS(SIZE)
#undef SIZE
    };
    static const ra_domain domains[RA_CALLBACK_COUNT] = {
#define DOMAIN(name, number, domain, type) [number] = RA_DOMAIN_##domain,
        RA_CALLBACKS(DOMAIN)
#undef DOMAIN
    };
    (void)userdata;
    if (*(uint32_t *)data != sizes[id] || domains[id] != domain) abort();
    atomic_fetch_add(&ra_test_counts[id], 1);
}

__attribute__((visibility("default"))) int ra_tools_initialize(const ra_tools_api *api) {
    ra_tools_handle handle;
    atomic_fetch_add(&ra_test_initialized, 1);
    if (api->version != RA_TOOLS_VERSION || api->size != sizeof *api) return 1;
    if (api->subscribe(&handle, count, NULL)) return 1;
    for (int domain = 0; domain < RA_DOMAIN_COUNT; domain++) api->enable_domain(handle, (ra_domain)domain, 1);
    return 0;
}

#else

static _Atomic int checks;
#define CHECK(condition)                                                            \
    do {                                                                            \
        checks++;                                                                   \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                                \
        }                                                                           \
    } while (0)
#define GIVES(error, call)                                                                            \
    do {                                                                                              \
        int got_ = (call);                                                                            \
        checks++;                                                                                     \
        if (got_ != (error)) {                                                                        \
            fprintf(stderr, "%s:%d: %s gives %s\n", __FILE__, __LINE__, #call, ra_error_string(got_)); \
            exit(1);                                                                                  \
        }                                                                                             \
    } while (0)
#define RA(call) GIVES(RA_OK, call)
#define P(...) (void *[]) { __VA_ARGS__ }

static ra_module module;

static ra_function function(const char *symbol) {
    ra_function f;
    RA(ra_module_function(&f, module, symbol));
    return f;
}

static void launch(const char *symbol, uint32_t gx, uint32_t gy, uint32_t bx, uint32_t by, uint32_t shared,
                   void *const *parameters) {
    RA(ra_launch(function(symbol), (uint32_t[]){gx, gy, 1}, (uint32_t[]){bx, by, 1}, shared, NULL, parameters));
}

static void *device(uint64_t bytes) {
    void *address;
    RA(ra_alloc(&address, bytes));
    return address;
}

static float *upload(const float *x, size_t n) {
    float *address = device(n * sizeof *x);
    RA(ra_memcpy(address, x, n * sizeof *x));
    return address;
}

static float *numbers(size_t n) {
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (float)((i * 7919 + 13) % 1009) / 16.0f - 30.0f;
    return x;
}

static float *download(const float *x, size_t n) {
    float *result = malloc(n * sizeof *x);
    RA(ra_memcpy(result, x, n * sizeof *x));
    return result;
}

/* ---- the access hook: lanes and instructions per instruction number, by space ---- */

static struct {
    _Atomic uint64_t warps[16], lanes[16], partial, wrong;
    uint64_t entry;
    uint32_t bytes;
} seen;

static void tally(void *userdata, const ra_access *a) {
    (void)userdata;
    if (a->kind == RA_KIND_BLOCK_ENTER || a->kind == RA_KIND_BLOCK_EXIT) return;
    uint64_t at = (a->pc - seen.entry) / RA_INSTRUCTION_BYTES;
    bool known = a->size == sizeof *a && at < 16 && a->mask;
    for (int lane = 0; lane < 32; lane++) known = known && (a->mask >> lane & 1 || !a->address[lane]);
    if (a->space != RA_SPACE_NONE) known = known && a->bytes == seen.bytes;
    if (a->space == RA_SPACE_NONE) known = known && a->flags == 0;
    if (a->flags == RA_ACCESS_WRITE) known = known && a->value;
    if (!known) {
        atomic_fetch_add(&seen.wrong, 1);
        return;
    }
    atomic_fetch_add(&seen.warps[at], 1);
    atomic_fetch_add(&seen.lanes[at], (uint64_t)__builtin_popcount(a->mask));
    atomic_fetch_add(&seen.partial, a->mask != UINT32_MAX);
}

static ra_tools_handle tools;

static void ignore(void *userdata, ra_domain domain, ra_callback_id id, void *data) {
    (void)userdata, (void)domain, (void)id, (void)data;
}

static void hook_on(const char *symbol, uint32_t bytes) {
    ra_function_properties properties;
    RA(ra_function_query(&properties, function(symbol)));
    memset(&seen, 0, sizeof seen);
    seen.entry = properties.entry_pc;
    seen.bytes = bytes;
    RA(ra_tools()->set_access_hook(tools, tally, NULL));
}

static void hook_off(void) {
    RA(ra_context_synchronize());
    RA(ra_tools()->set_access_hook(tools, NULL, NULL));
    CHECK(atomic_load(&seen.wrong) == 0);
}

/* ---- kernels ---- */

static void test_elementwise(void) {
    int n = 100003; /* 3125 full warps and one of 3 lanes */
    float *a = numbers((size_t)n), *da = upload(a, (size_t)n), *db = upload(a, (size_t)n);
    float *dc = device((uint64_t)n * 4);
    hook_on("_Z4vaddPKfS0_Pfi", 4);
    launch("_Z4vaddPKfS0_Pfi", 391, 1, 256, 1, 0, P(&da, &db, &dc, &n));
    hook_off();
    for (int at = 0; at < 3; at++) CHECK(seen.lanes[at] == (uint64_t)n && seen.warps[at] == 3126);
    CHECK(seen.partial == 3 && seen.warps[3] == 0);
    float *c = download(dc, (size_t)n);
    for (int i = 0; i < n; i++) CHECK(c[i] == a[i] + a[i]);
    free(c);

    float two = 2, one = 1, five = 5;
    launch("_Z5scalePfffi", 391, 1, 256, 1, 0, P(&da, &two, &one, &n));
    c = download(da, (size_t)n);
    for (int i = 0; i < n; i++) CHECK(c[i] == 2 * a[i] + 1);
    free(c);
    launch("_Z4fillIfEvPT_S0_i", 391, 1, 256, 1, 0, P(&dc, &five, &n));
    c = download(dc, (size_t)n);
    for (int i = 0; i < n; i++) CHECK(c[i] == 5);
    free(c);

    int *index = malloc((size_t)n * sizeof *index);
    for (int i = 0; i < n; i++) index[i] = (int)((uint64_t)i * 7919 % (uint64_t)n);
    int *di = (int *)upload((float *)index, (size_t)n);
    launch("_Z6gatherPKfPKiPfi", 391, 1, 256, 1, 0, P(&db, &di, &dc, &n));
    c = download(dc, (size_t)n);
    for (int i = 0; i < n; i++) CHECK(c[i] == a[index[i]]);
    free(c);
    free(index);

    launch("_Z9stencil1dPKfPfi", 391, 1, 256, 1, 0, P(&db, &dc, &n));
    c = download(dc, (size_t)n);
    CHECK(c[0] == a[0] && c[n - 1] == a[n - 1]);
    for (int i = 1; i < n - 1; i++) CHECK(c[i] == (a[i - 1] + a[i] + a[i + 1]) / 3.0f);
    free(c);
    free(a);
    RA(ra_free(da));
    RA(ra_free(db));
    RA(ra_free(dc));
    RA(ra_free(di));
}

static void test_transpose(void) {
    enum { ROWS = 70, COLUMNS = 130, COUNT = ROWS * COLUMNS };
    int rows = ROWS, columns = COLUMNS;
    float *a = numbers(COUNT), *da = upload(a, COUNT), *dc = device(COUNT * 4);
    for (int tiled = 0; tiled < 2; tiled++) {
        const char *symbol = tiled ? "_Z15transpose_tiledPKfPfii" : "_Z15transpose_naivePKfPfii";
        RA(ra_memset(dc, 0, 4, COUNT));
        hook_on(symbol, 4);
        launch(symbol, 5, tiled ? 3 : 9, 32, 8, 0, P(&da, &dc, &rows, &columns));
        hook_off();
        if (tiled) {
            CHECK(seen.lanes[0] == COUNT && seen.lanes[1] == COUNT && seen.lanes[3] == COUNT && seen.lanes[4] == COUNT);
            CHECK(seen.warps[2] == 5 * 3 * 8); /* one barrier per warp */
        } else {
            CHECK(seen.lanes[0] == COUNT && seen.lanes[1] == COUNT && seen.warps[0] == 5 * ROWS);
        }
        float *c = download(dc, COUNT);
        for (int i = 0; i < COUNT; i++) CHECK(c[i % COLUMNS * ROWS + i / COLUMNS] == a[i]);
        free(c);
    }
    free(a);
    RA(ra_free(da));
    RA(ra_free(dc));
}

static void test_gemm(void) {
    int m = 50, n = 41, k = 35; /* 4 x 3 tiles, 3 along k */
    size_t count_a = (size_t)(m * k), count_b = (size_t)(k * n), count_c = (size_t)(m * n);
    float *a = numbers(count_a), *b = numbers(count_b), *da = upload(a, count_a), *db = upload(b, count_b);
    float *dc = device(count_c * 4);
    hook_on("_Z10gemm_tiledILi16EEvPKfS1_Pfiii", 4);
    launch("_Z10gemm_tiledILi16EEvPKfS1_Pfiii", 3, 4, 16, 16, 0, P(&da, &db, &dc, &m, &n, &k));
    hook_off();
    uint64_t blocks = 3 * 4, steps = 3;
    CHECK(seen.lanes[0] == (uint64_t)(m * k) * 3 && seen.lanes[2] == (uint64_t)(k * n) * 4);
    CHECK(seen.lanes[1] == blocks * steps * 256 && seen.lanes[3] == blocks * steps * 256);
    CHECK(seen.lanes[5] == blocks * steps * 256 * 16 && seen.lanes[6] == seen.lanes[5]);
    CHECK(seen.warps[4] == blocks * steps * 8 && seen.warps[7] == blocks * steps * 8);
    CHECK(seen.lanes[8] == (uint64_t)(m * n));
    float *c = download(dc, count_c);
    for (int i = 0; i < m * n; i++) {
        float sum = 0;
        for (int j = 0; j < k; j++) sum += a[i / n * k + j] * b[j * n + i % n];
        CHECK(fabsf(c[i] - sum) <= 1e-4f * fabsf(sum) + 1e-2f);
    }
    free(a);
    free(b);
    free(c);
    RA(ra_free(da));
    RA(ra_free(db));
    RA(ra_free(dc));
}

static void test_reduce(void) {
    uint32_t n = 10007, *x = malloc(n * sizeof *x);
    uint64_t sum = 0, *result = device(8);
    for (uint32_t i = 0; i < n; i++) sum += x[i] = i * 2654435761u;
    uint32_t *dx = (uint32_t *)upload((float *)x, n);
    for (int round = 0; round < 20; round++) {
        uint64_t got;
        RA(ra_memset(result, 0, 4, 2));
        launch("_Z10reduce_sumPKjPyj", 79, 1, 128, 1, 128 * 8, P(&dx, &result, &n));
        RA(ra_memcpy(&got, result, 8));
        CHECK(got == sum);
    }
    free(x);
    RA(ra_free(dx));
    RA(ra_free(result));
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void test_stencils(void) {
    int rows = 45, columns = 83;
    size_t n = (size_t)(rows * columns);
    float *a = numbers(n), *da = upload(a, n), *dc = device(n * 4);
    launch("_Z9stencil2dPKfPfii", 3, 6, 32, 8, 0, P(&da, &dc, &rows, &columns));
    float *stencil = download(dc, n);
    hook_on("_Z9median3x3PKfPfii", 4);
    launch("_Z9median3x3PKfPfii", 3, 6, 32, 8, 0, P(&da, &dc, &rows, &columns));
    hook_off();
    uint64_t inner = (uint64_t)((rows - 2) * (columns - 2));
    CHECK(seen.lanes[0] == 9 * inner && seen.lanes[1] == 9 * inner); /* loads, local stores */
    CHECK(seen.lanes[2] == 30 * inner && seen.lanes[5] == 30 * inner);
    CHECK(seen.lanes[6] == n - inner && seen.lanes[7] == inner && seen.lanes[8] == n);
    float *median = download(dc, n);
    for (int i = 0; i < (int)n; i++) {
        int row = i / columns, column = i % columns;
        if (!row || !column || row == rows - 1 || column == columns - 1) {
            CHECK(stencil[i] == a[i] && median[i] == a[i]);
            continue;
        }
        CHECK(stencil[i] == 0.5f * a[i] + 0.125f * (a[i - columns] + a[i + columns] + a[i - 1] + a[i + 1]));
        float window[9];
        for (int j = 0; j < 9; j++) window[j] = a[i + (j / 3 - 1) * columns + j % 3 - 1];
        qsort(window, 9, sizeof *window, ascending);
        CHECK(median[i] == window[4]);
    }
    free(a);
    free(stencil);
    free(median);
    RA(ra_free(da));
    RA(ra_free(dc));
}

static void test_network(void) {
    int rows = 37, columns = 77;
    size_t n = (size_t)(rows * columns);
    float *a = numbers(n), *da = upload(a, n), *dc = device(n * 4);
    launch("_Z12softmax_rowsPKfPfii", 10, 1, 128, 1, 0, P(&da, &dc, &rows, &columns));
    float *c = download(dc, n);
    for (int row = 0; row < rows; row++) {
        float *x = a + row * columns, most = x[0];
        double sum = 0;
        for (int i = 0; i < columns; i++) most = fmaxf(most, x[i]);
        for (int i = 0; i < columns; i++) sum += exp((double)x[i] - (double)most);
        for (int i = 0; i < columns; i++)
            CHECK(fabs((double)c[row * columns + i] - exp((double)x[i] - (double)most) / sum) < 1e-5);
    }
    free(a);
    free(c);
    RA(ra_free(da));
    RA(ra_free(dc));

    int batch = 2, channels = 3, height = 9, width = 11, filters = 4, side = 3;
    size_t in = (size_t)(batch * channels * height * width), out = (size_t)(batch * filters * height * width);
    size_t weights = (size_t)(filters * channels * side * side);
    float *x = numbers(in), *w = numbers(weights), *b = numbers((size_t)filters);
    float *dx = upload(x, in), *dw = upload(w, weights), *db = upload(b, (size_t)filters), *dy = device(out * 4);
    launch("_Z6conv2dPKfS0_S0_Pfiiiiii", (uint32_t)(out + 63) / 64, 1, 64, 1, 0,
           P(&dx, &dw, &db, &dy, &batch, &channels, &height, &width, &filters, &side));
    float *y = download(dy, out);
    for (int i = 0; i < (int)out; i++) {
        int column = i % width, row = i / width % height, f = i / width / height % filters;
        int image = i / width / height / filters;
        float sum = b[f];
        for (int ch = 0; ch < channels; ch++)
            for (int u = 0; u < side; u++)
                for (int v = 0; v < side; v++) {
                    int r = row + u - 1, q = column + v - 1;
                    if (r < 0 || r >= height || q < 0 || q >= width) continue;
                    sum += x[((image * channels + ch) * height + r) * width + q] *
                           w[((f * channels + ch) * side + u) * side + v];
                }
        CHECK(y[i] == sum);
    }
    free(x);
    free(w);
    free(b);
    free(y);
    RA(ra_free(dx));
    RA(ra_free(dw));
    RA(ra_free(db));
    RA(ra_free(dy));
}

/* ---- a kernel of the program's own: three-dimensional blocks, 64-bit and shared atomics ---- */

static bool count_threads(ra_warp *w) {
    uint64_t at[32], one[32];
    uint32_t slot[32] = {0}, ones[32];
    for (int lane = 0; lane < 32; lane++) {
        at[lane] = 0;
        one[lane] = ones[lane] = 1;
    }
    if (w->phase == 0) {
        ra_shared_atomic_add_u32(w, 0, w->live, at, ones);
        return ra_barrier(w, 1);
    }
    uint32_t first = 0;
    for (int lane = 0; lane < 32; lane++)
        first |= (uint32_t)(!w->thread[0][lane] && !w->thread[1][lane] && !w->thread[2][lane]) << lane;
    ra_shared_load_u32(w, 2, first & w->live, at, slot);
    for (int lane = 0; lane < 32; lane++) one[lane] = slot[lane];
    for (int lane = 0; lane < 32; lane++) at[lane] = ra_parameter_u64(w, 0);
    ra_atomic_add_u64(w, 3, first & w->live, at, one);
    return false;
}

static bool touch(ra_warp *w) {
    uint64_t at[32];
    uint32_t value[32] = {0};
    for (int lane = 0; lane < 32; lane++) at[lane] = ra_parameter_u64(w, 0);
    ra_load_u32(w, 0, w->live, at, value);
    return false;
}

static bool slow(ra_warp *w) {
    (void)w;
    nanosleep(&(struct timespec){0, 30 * 1000 * 1000}, NULL);
    return false;
}

/* One instruction of those that can go wrong, chosen by the first parameter. */
enum { BULK_LOAD, BULK_STORE, BULK_ADD, BULK_SHARED, TENSOR_LOAD, REMOTE, ASYNC_STORE, MATRIX, ASYNC_COPY, PREFETCH };

static bool transfer(ra_warp *w) {
    uint64_t a = ra_parameter_u64(w, 1), b = ra_parameter_u64(w, 2), as[32], bs[32];
    uint32_t value[1][32] = {{0}}, all = w->live;
    for (int lane = 0; lane < 32; lane++) {
        as[lane] = a;
        bs[lane] = b;
    }
    switch (ra_parameter_i32(w, 0)) {
    case BULK_LOAD: ra_bulk_load(w, 0, all, a, b, 64); break;
    case BULK_STORE: ra_bulk_store(w, 0, all, b, a, 64); break;
    case BULK_ADD: ra_bulk_add_u32(w, 0, all, b, a, 64); break;
    case BULK_SHARED: ra_bulk_shared(w, 0, all, a, b, 64); break;
    case TENSOR_LOAD: ra_tensor_load(w, 0, all, a, b, (int32_t[5]){0}); break;
    case REMOTE: ra_remote_load_u32(w, 0, all, as, value[0]); break;
    case ASYNC_STORE: ra_async_store_u32(w, 0, all, as, value[0]); break;
    case MATRIX: ra_matrix_load(w, 0, 1, as, value); break;
    case ASYNC_COPY: ra_async_copy(w, 0, all, as, bs, 8); break;
    case PREFETCH: ra_prefetch_global(w, 0, all, as, 4); break;
    }
    return false;
}

/* Copies the box at the coordinates in parameters 2, 3 and 4, packed, to parameter 1. */
static bool box_of(ra_warp *w) {
    ra_tensor t;
    memcpy(&t, (const void *)(uintptr_t)ra_parameter_u64(w, 0), sizeof t);
    uint32_t bytes = t.box[0] * t.box[1] * t.box[2] * t.element;
    ra_tensor_load(w, 0, w->live, 64, ra_parameter_u64(w, 0),
                   (int32_t[]){ra_parameter_i32(w, 2), ra_parameter_i32(w, 3), ra_parameter_i32(w, 4)});
    ra_bulk_store(w, 1, w->live, ra_parameter_u64(w, 1), 64, bytes);
    return false;
}

static const ra_kernel own_kernels[] = {
    {.symbol = "_Z8transferiyy", .run = transfer, .shared_static = 1024, .cluster = 2, .parameters = 3,
     .parameter_bytes = {4, 8, 8}},
    {.symbol = "_Z6box_ofPK9ra_tensorPtiii", .run = box_of, .shared_static = 1024, .parameters = 5,
     .parameter_bytes = {8, 8, 4, 4, 4}},
    {.symbol = "_Z13count_threadsPy", .run = count_threads, .shared_static = 4, .parameters = 1, .parameter_bytes = {8}},
    {.symbol = "_Z5touchPKj", .run = touch, .parameters = 1, .parameter_bytes = {8}},
    {.symbol = "_Z4slowv", .run = slow},
};
static const char own_image[] = "refacc-module 1\n_Z13count_threadsPy\n_Z5touchPKj\n_Z4slowv\n_Z8transferiyy\n"
                                "_Z6box_ofPK9ra_tensorPtiii\n";

static void own(ra_function *f, const char *symbol) {
    ra_module m;
    RA(ra_module_load(&m, own_image, sizeof own_image - 1));
    RA(ra_module_function(f, m, symbol));
}

static void test_own_kernels(void) {
    ra_function f;
    uint64_t got, *sum = device(8);
    own(&f, "_Z13count_threadsPy");
    RA(ra_memset(sum, 0, 4, 2));
    RA(ra_launch(f, (uint32_t[]){7, 5, 3}, (uint32_t[]){5, 3, 3}, 0, NULL, P(&sum)));
    RA(ra_memcpy(&got, sum, 8));
    CHECK(got == 7 * 5 * 3 * 45);
    RA(ra_free(sum));
}

/* ---- memory ---- */

static void test_memory(void) {
    unsigned char *x, *y, *managed, *pinned, host[1000];
    ra_pointer p;
    x = device(1000);
    CHECK((uintptr_t)x % 512 == 0);
    RA(ra_alloc_managed((void **)&managed, 1000));
    RA(ra_alloc_pinned((void **)&pinned, 1000));
    RA(ra_pointer_query(&p, x + 999));
    CHECK(p.base == (uintptr_t)x && p.bytes == 1000 && p.kind == RA_MEMORY_DEVICE && p.device == 0);
    RA(ra_pointer_query(&p, pinned));
    CHECK(p.kind == RA_MEMORY_PINNED);
    GIVES(RA_INVALID_ADDRESS, ra_pointer_query(&p, x + 1000));
    GIVES(RA_INVALID_ADDRESS, ra_pointer_query(&p, host));
    GIVES(RA_INVALID_ADDRESS, ra_memcpy(host, x + 1, 1000));
    GIVES(RA_INVALID_ADDRESS, ra_memset(x, 0, 1, 1001));
    GIVES(RA_INVALID_ADDRESS, ra_memset(host, 0, 1, 10));
    GIVES(RA_INVALID_VALUE, ra_memset(x, 0, 3, 10));
    GIVES(RA_INVALID_VALUE, ra_memset(x + 1, 0, 4, 10));
    GIVES(RA_INVALID_VALUE, ra_memcpy(host, x, 0));
    GIVES(RA_INVALID_VALUE, ra_memcpy_2d(host, 10, x, 9, 10, 10)); /* rows overlap */
    GIVES(RA_INVALID_VALUE, ra_memcpy_2d(host, 10, x, UINT64_MAX / 2, 10, 10));
    GIVES(RA_INVALID_ADDRESS, ra_memcpy_2d(host, 100, x, 111, 100, 10));
    RA(ra_memcpy_2d(host, 100, x, 100, 100, 10));
    GIVES(RA_INVALID_ADDRESS, ra_free(x + 512));
    GIVES(RA_INVALID_ADDRESS, ra_free(host));
    GIVES(RA_INVALID_ADDRESS, ra_free_async(x, NULL)); /* not from the pool */
    RA(ra_free(x));
    GIVES(RA_INVALID_ADDRESS, ra_free(x));
    RA(ra_free(NULL));
    y = device(1000);
    CHECK(x == y); /* given out again */
    RA(ra_free(y));
    GIVES(RA_INVALID_VALUE, ra_alloc((void **)&x, 0));
    GIVES(RA_OUT_OF_MEMORY, ra_alloc((void **)&x, UINT64_MAX));
    GIVES(RA_INVALID_ADDRESS, ra_prefetch(pinned, 1000, 0, NULL));
    GIVES(RA_INVALID_DEVICE, ra_prefetch(managed, 1000, 7, NULL));
    GIVES(RA_INVALID_VALUE, ra_advise(managed, 1000, 9, 0));
    RA(ra_prefetch(managed, 1000, RA_HOST, NULL));
    RA(ra_advise(managed, 1000, RA_ADVICE_PREFERRED_LOCATION, 1));
    RA(ra_free(managed));
    RA(ra_free(pinned));
    /* Stream order: the freed block is not given out before the stream got there. */
    ra_function f;
    ra_stream stream;
    RA(ra_stream_create(&stream, 0));
    own(&f, "_Z4slowv");
    RA(ra_alloc_async((void **)&x, 4096, stream));
    RA(ra_launch(f, (uint32_t[]){1, 1, 1}, (uint32_t[]){1, 1, 1}, 0, stream, NULL));
    RA(ra_free_async(x, stream));
    GIVES(RA_INVALID_ADDRESS, ra_free_async(x, stream));
    RA(ra_alloc_async((void **)&y, 4096, stream));
    CHECK(x != y);
    RA(ra_stream_synchronize(stream));
    RA(ra_free_async(y, stream));
    RA(ra_stream_destroy(stream));
    /* Fragments join again. */
    ra_properties properties;
    void *parts[64];
    RA(ra_device_properties(0, &properties));
    for (int i = 0; i < 64; i++) parts[i] = device(properties.memory / 128);
    for (int i = 0; i < 64; i += 2) RA(ra_free(parts[i]));
    GIVES(RA_OUT_OF_MEMORY, ra_alloc((void **)&x, properties.memory / 4 * 3));
    for (int i = 1; i < 64; i += 2) RA(ra_free(parts[i]));
    x = device(properties.memory / 4 * 3);
    RA(ra_free(x));
}

/* ---- streams, events ---- */

static void test_streams(void) {
    ra_stream a, b;
    ra_event start, end;
    ra_function f;
    uint64_t nanoseconds;
    RA(ra_stream_create(&a, 0));
    RA(ra_stream_create(&b, 0));
    RA(ra_event_create(&start));
    RA(ra_event_create(&end));
    own(&f, "_Z4slowv");
    GIVES(RA_INVALID_VALUE, ra_event_elapsed(&nanoseconds, start, end));
    RA(ra_event_synchronize(start));
    uint32_t *x = device(4), value = 0;
    RA(ra_memset(x, 1, 4, 1));
    RA(ra_event_record(start, a));
    RA(ra_launch(f, (uint32_t[]){1, 1, 1}, (uint32_t[]){32, 1, 1}, 0, a, NULL));
    RA(ra_memset_async(x, 2, 4, 1, a));
    RA(ra_event_record(end, a));
    GIVES(RA_NOT_READY, ra_stream_query(a));
    GIVES(RA_NOT_READY, ra_event_query(end));
    GIVES(RA_NOT_READY, ra_event_elapsed(&nanoseconds, start, end));
    RA(ra_stream_wait_event(b, end));
    RA(ra_event_record(end, a)); /* the wait was for the record before, and outlives the event */
    RA(ra_event_destroy(start));
    RA(ra_memcpy_async(&value, x, 4, b));
    RA(ra_stream_synchronize(b));
    CHECK(value == 2);
    RA(ra_event_synchronize(end));
    RA(ra_event_query(end));
    RA(ra_stream_synchronize(a));
    GIVES(RA_INVALID_HANDLE, ra_event_query(start));
    RA(ra_stream_query(a));
    RA(ra_event_create(&start));
    RA(ra_event_record(start, a));
    RA(ra_launch(f, (uint32_t[]){1, 1, 1}, (uint32_t[]){32, 1, 1}, 0, a, NULL));
    RA(ra_event_record(end, a));
    RA(ra_context_synchronize());
    RA(ra_event_elapsed(&nanoseconds, start, end));
    CHECK(nanoseconds >= 30 * 1000 * 1000);
    RA(ra_stream_destroy(a));
    GIVES(RA_INVALID_HANDLE, ra_stream_synchronize(a));
    GIVES(RA_INVALID_HANDLE, ra_stream_destroy(NULL));
    RA(ra_stream_destroy(b));
    RA(ra_event_destroy(start));
    RA(ra_event_destroy(end));
    RA(ra_free(x));
}

static void *thread_work(void *argument) {
    int n = 3000, rounds = 30;
    float one = 1, two = 2, expected = 0;
    ra_stream stream;
    (void)argument;
    RA(ra_device_set(0));
    RA(ra_stream_create(&stream, 0));
    float *x = device((uint64_t)n * 4);
    RA(ra_memset_async(x, 0, 4, (uint64_t)n, stream));
    for (int i = 0; i < rounds; i++) {
        if (expected > 1e6f) two = 0;
        expected = two * expected + one;
        RA(ra_launch(function("_Z5scalePfffi"), (uint32_t[]){12, 1, 1}, (uint32_t[]){256, 1, 1}, 0, stream,
                     P(&x, &two, &one, &n)));
        if (i % 10 == 0) RA(ra_device_synchronize());
    }
    float *y = malloc((size_t)n * 4);
    RA(ra_memcpy_async(y, x, (uint64_t)n * 4, stream));
    RA(ra_stream_destroy(stream));
    for (int i = 0; i < n; i++)
        if (y[i] != expected) return (void *)1;
    free(y);
    RA(ra_free(x));
    return NULL;
}

static void test_threads(void) {
    pthread_t threads[6];
    for (int i = 0; i < 6; i++) CHECK(!pthread_create(&threads[i], NULL, thread_work, NULL));
    for (int i = 0; i < 6; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        CHECK(!failed);
    }
}

/* ---- graphs ---- */

static void test_graphs(void) {
    enum { N = 500 };
    int n = N;
    float *x = device(N * 4), y[N], three = 3, two = 2, one = 1;
    ra_graph graph, captured;
    ra_graph_exec exec;
    ra_node set, fill, scale, copy;
    ra_stream stream;
    RA(ra_graph_create(&graph));
    RA(ra_graph_add_memset(&set, graph, NULL, 0, x, N * 4, 0, 4, N, 1));
    RA(ra_graph_add_kernel(&fill, graph, &set, 1, function("_Z4fillIfEvPT_S0_i"), (uint32_t[]){2, 1, 1},
                           (uint32_t[]){256, 1, 1}, 0, P(&x, &three, &n)));
    RA(ra_graph_add_kernel(&scale, graph, &fill, 1, function("_Z5scalePfffi"), (uint32_t[]){2, 1, 1},
                           (uint32_t[]){256, 1, 1}, 0, P(&x, &two, &one, &n)));
    RA(ra_graph_add_memcpy(&copy, graph, (ra_node[]){fill, scale}, 2, y, N * 4, x, N * 4, N * 4, 1));
    ra_node foreign = (ra_node)x;
    GIVES(RA_INVALID_HANDLE, ra_graph_add_memset(&set, graph, &foreign, 1, x, N * 4, 0, 4, N, 1));
    RA(ra_graph_instantiate(&exec, graph));
    RA(ra_graph_destroy(graph));
    GIVES(RA_INVALID_HANDLE, ra_graph_instantiate(&exec, graph));
    for (int i = 0; i < 10; i++) {
        memset(y, 0, sizeof y);
        RA(ra_graph_launch(exec, NULL));
        RA(ra_stream_synchronize(NULL));
        for (int j = 0; j < N; j++) CHECK(y[j] == 7);
    }
    RA(ra_graph_exec_destroy(exec));
    GIVES(RA_INVALID_HANDLE, ra_graph_launch(exec, NULL));
    RA(ra_stream_create(&stream, 0));
    GIVES(RA_CAPTURE, ra_stream_end_capture(stream, &captured));
    RA(ra_stream_begin_capture(stream));
    GIVES(RA_CAPTURE, ra_stream_begin_capture(stream));
    GIVES(RA_CAPTURE, ra_stream_synchronize(stream));
    GIVES(RA_CAPTURE, ra_stream_destroy(stream));
    RA(ra_memset_async(x, 0x40400000, 4, N, stream));
    RA(ra_stream_end_capture(stream, &captured));
    RA(ra_graph_instantiate(&exec, captured));
    RA(ra_graph_launch(exec, stream));
    RA(ra_memcpy_async(y, x, sizeof y, stream));
    RA(ra_stream_synchronize(stream));
    CHECK(y[N - 1] == 3.0f);
    RA(ra_graph_exec_destroy(exec));
    RA(ra_graph_destroy(captured));
    RA(ra_stream_destroy(stream));
    RA(ra_free(x));
}

/* ---- errors and faults ---- */

static void test_errors(void) {
    int count;
    ra_module m;
    ra_function f = function("_Z4vaddPKfS0_Pfi");
    ra_properties properties;
    void *p = NULL;
    RA(ra_device_count(&count));
    CHECK(count == 2);
    GIVES(RA_INVALID_DEVICE, ra_device_properties(2, &properties));
    GIVES(RA_INVALID_DEVICE, ra_device_set(-1));
    GIVES(RA_NOT_FOUND, ra_module_function(&f, module, "vadd"));
    GIVES(RA_INVALID_IMAGE, ra_module_load(&m, "refacc-module 2\nx\n", 18));
    GIVES(RA_INVALID_IMAGE, ra_module_load(&m, "refacc-module 1\n_Z5scalePfffi", 29));
    GIVES(RA_NOT_FOUND, ra_module_load(&m, "refacc-module 1\nnone\n", 21));
    GIVES(RA_INVALID_VALUE, ra_kernel_register(own_kernels, 1)); /* already registered */
    GIVES(RA_INVALID_VALUE, ra_launch(f, (uint32_t[]){0, 1, 1}, (uint32_t[]){1, 1, 1}, 0, NULL, P(p, p, p, p)));
    GIVES(RA_TOO_MANY_RESOURCES, ra_launch(f, (uint32_t[]){1, 1, 1}, (uint32_t[]){1025, 1, 1}, 0, NULL, P(&p)));
    GIVES(RA_TOO_MANY_RESOURCES, ra_launch(f, (uint32_t[]){1, 1, 1}, (uint32_t[]){33, 32, 1}, 0, NULL, P(&p)));
    GIVES(RA_TOO_MANY_RESOURCES, ra_launch(f, (uint32_t[]){1, 1, 1}, (uint32_t[]){1, 1, 1}, 1 << 17, NULL, P(&p)));
    GIVES(RA_INVALID_VALUE, ra_launch(f, (uint32_t[]){1, 1, 1}, (uint32_t[]){1, 1, 1}, 0, NULL, NULL));
    GIVES(RA_INVALID_HANDLE, ra_launch(NULL, (uint32_t[]){1, 1, 1}, (uint32_t[]){1, 1, 1}, 0, NULL, NULL));
    CHECK(!strcmp(ra_error_string(RA_OK), "no error") && !strcmp(ra_error_string(99), "unknown error"));
}

static void test_fault(uint64_t address, int error) {
    ra_context before, context;
    ra_function f;
    RA(ra_context_get_current(&before));
    RA(ra_context_create(&context, 1));
    own(&f, "_Z5touchPKj");
    uint32_t *x = device(4);
    RA(ra_launch(f, (uint32_t[]){100, 1, 1}, (uint32_t[]){64, 1, 1}, 0, NULL, P(&x)));
    RA(ra_context_synchronize());
    RA(ra_launch(f, (uint32_t[]){100, 1, 1}, (uint32_t[]){64, 1, 1}, 0, NULL, P(&address)));
    GIVES(error, ra_context_synchronize());
    GIVES(error, ra_launch(f, (uint32_t[]){1, 1, 1}, (uint32_t[]){1, 1, 1}, 0, NULL, P(&x)));
    GIVES(error, ra_memset(x, 0, 4, 1));
    RA(ra_context_destroy(context));
    GIVES(RA_INVALID_HANDLE, ra_context_set_current(context));
    RA(ra_context_set_current(before));
    RA(ra_context_synchronize()); /* another context has no part in it */
}

/* The error that an instruction of `transfer` leaves; each requires its own context. */
static void test_transfer(int what, uint64_t a, uint64_t b, int error) {
    ra_context before, context;
    ra_function f;
    RA(ra_context_get_current(&before));
    RA(ra_context_create(&context, 0));
    own(&f, "_Z8transferiyy");
    GIVES(RA_INVALID_VALUE, ra_launch(f, (uint32_t[]){3, 1, 1}, (uint32_t[]){32, 1, 1}, 0, NULL, P(&what, &a, &b)));
    RA(ra_launch(f, (uint32_t[]){2, 1, 1}, (uint32_t[]){32, 1, 1}, 0, NULL, P(&what, &a, &b)));
    GIVES(error, ra_context_synchronize());
    RA(ra_context_destroy(context));
    RA(ra_context_set_current(before));
}

static void test_transfers(void) {
    uint64_t x = (uintptr_t)device(256), outside = (uintptr_t)&checks / 16 * 16;
    ra_tensor bad = {.base = x, .element = 4, .rank = 6};
    RA(ra_memcpy((void *)(uintptr_t)x, &bad, sizeof bad));
    static const int bulk[] = {BULK_LOAD, BULK_STORE, BULK_ADD};
    for (int i = 0; i < 3; i++) {
        test_transfer(bulk[i], 960, x, RA_OK);
        test_transfer(bulk[i], 976, x, RA_ILLEGAL_ADDRESS);
        test_transfer(bulk[i], 0, outside, RA_ILLEGAL_ADDRESS);
        test_transfer(bulk[i], 0, x + 8, RA_MISALIGNED_ADDRESS);
        test_transfer(bulk[i], 8, x, RA_MISALIGNED_ADDRESS);
    }
    test_transfer(BULK_SHARED, ra_cluster_address(1, 960), 0, RA_OK);
    test_transfer(BULK_SHARED, ra_cluster_address(2, 0), 0, RA_ILLEGAL_ADDRESS);
    test_transfer(BULK_SHARED, ra_cluster_address(1, 0), 976, RA_ILLEGAL_ADDRESS);
    RA(ra_memcpy((void *)(uintptr_t)x, &bad, sizeof bad));
    test_transfer(TENSOR_LOAD, 0, x, RA_ILLEGAL_ADDRESS);
    test_transfer(TENSOR_LOAD, 0, outside, RA_ILLEGAL_ADDRESS);
    for (int what = REMOTE; what <= ASYNC_STORE; what++) {
        test_transfer(what, ra_cluster_address(1, 1020), 0, RA_OK);
        test_transfer(what, ra_cluster_address(1, 1024), 0, RA_ILLEGAL_ADDRESS);
        test_transfer(what, ra_cluster_address(2, 0), 0, RA_ILLEGAL_ADDRESS);
        test_transfer(what, 2, 0, RA_MISALIGNED_ADDRESS);
    }
    test_transfer(MATRIX, 1008, 0, RA_OK);
    test_transfer(MATRIX, 1024, 0, RA_ILLEGAL_ADDRESS);
    test_transfer(MATRIX, 8, 0, RA_MISALIGNED_ADDRESS);
    test_transfer(ASYNC_COPY, 1016, x, RA_OK);
    test_transfer(ASYNC_COPY, 1024, x, RA_ILLEGAL_ADDRESS);
    test_transfer(ASYNC_COPY, 0, x + 4, RA_MISALIGNED_ADDRESS);
    test_transfer(ASYNC_COPY, 0, outside, RA_ILLEGAL_ADDRESS);
    test_transfer(PREFETCH, outside, 0, RA_OK);
    RA(ra_free((void *)(uintptr_t)x));
}

/* ---- boxes of a tensor of 20 x 5 x 4 unsigned shorts, the box 8 x 3 x 2 ---- */

static ra_access transferred;

static void keep(void *userdata, const ra_access *a) {
    (void)userdata;
    if (a->kind == RA_KIND_TENSOR_LOAD) transferred = *a;
}

static void test_box(ra_function f, void *tensor, const uint16_t *host, uint64_t base, const int32_t at[3]) {
    enum { X = 20, Y = 5, Z = 4, PITCH = 24 }; /* elements from row to row */
    uint16_t got[8 * 3 * 2];
    void *out = device(sizeof got);
    int x = at[0], y = at[1], z = at[2];
    uint64_t first = 0, bytes = 0;
    memset(&transferred, 0, sizeof transferred);
    RA(ra_launch(f, (uint32_t[]){1, 1, 1}, (uint32_t[]){32, 1, 1}, 0, NULL, P(&tensor, &out, &x, &y, &z)));
    RA(ra_memcpy(got, out, sizeof got));
    for (int i = 0; i < 48; i++) {
        int cx = x + i % 8, cy = y + i / 8 % 3, cz = z + i / 24;
        bool inside = cx >= 0 && cx < X && cy >= 0 && cy < Y && cz >= 0 && cz < Z;
        int cell = (cz * Y + cy) * PITCH + cx;
        CHECK(got[i] == (inside ? host[cell] : 0));
        if (inside && !first) first = base + (uint64_t)cell * 2;
        bytes += inside * 2u;
    }
    CHECK(transferred.mask == 1 && transferred.transfer == bytes);
    CHECK(transferred.address[0] == (first ? first : base));
    CHECK(!bytes || (uint64_t)transferred.rows * transferred.bytes == bytes);
    CHECK(transferred.rows < 2 || transferred.stride == PITCH * 2 || transferred.stride == PITCH * 2 * Y);
    RA(ra_free(out));
}

static void test_tensors(void) {
    static const int32_t boxes[][3] = {{0, 0, 0}, {8, 1, 1}, {-3, -1, -1}, {15, 4, 3},  {16, 3, 0}, {0, -2, 2},
                                       {20, 0, 0}, {0, 5, 0}, {-8, 0, 0},   {0, 0, -2}, {-7, 4, 1}, {0, 0, INT32_MAX - 1}};
    const uint64_t size[3] = {20, 5, 4}, stride[2] = {48, 240}, odd[2] = {40, 240};
    const uint32_t box[3] = {8, 3, 2}, thin[3] = {4, 3, 2};
    uint16_t host[480];
    ra_function f;
    ra_tensor tensor;
    for (int i = 0; i < 480; i++) host[i] = (uint16_t)(i + 1);
    void *data = device(sizeof host), *map = device(sizeof tensor);
    RA(ra_memcpy(data, host, sizeof host));
    GIVES(RA_INVALID_VALUE, ra_tensor_make(&tensor, data, 3, 3, size, stride, box));
    GIVES(RA_INVALID_VALUE, ra_tensor_make(&tensor, data, 2, 6, size, stride, box));
    GIVES(RA_INVALID_VALUE, ra_tensor_make(&tensor, data, 2, 0, size, stride, box));
    GIVES(RA_INVALID_VALUE, ra_tensor_make(&tensor, data, 2, 3, size, odd, box));
    GIVES(RA_INVALID_VALUE, ra_tensor_make(&tensor, data, 2, 3, size, stride, thin));
    GIVES(RA_INVALID_VALUE, ra_tensor_make(&tensor, (char *)data + 2, 2, 3, size, stride, box));
    GIVES(RA_INVALID_VALUE, ra_tensor_make(&tensor, data, 2, 3, size, NULL, box));
    RA(ra_tensor_make(&tensor, data, 2, 3, size, stride, box));
    RA(ra_memcpy(map, &tensor, sizeof tensor));
    own(&f, "_Z6box_ofPK9ra_tensorPtiii");
    RA(ra_tools()->set_access_hook(tools, keep, NULL));
    for (size_t i = 0; i < sizeof boxes / sizeof *boxes; i++) test_box(f, map, host, (uintptr_t)data, boxes[i]);
    RA(ra_tools()->set_access_hook(tools, NULL, NULL));
    RA(ra_free(data));
    RA(ra_free(map));
}

static void test_devices(void) {
    void *first = device(64), *second;
    ra_pointer p;
    uint32_t value = 0;
    RA(ra_device_set(1));
    second = device(64);
    RA(ra_pointer_query(&p, second));
    CHECK(p.device == 1);
    CHECK((uintptr_t)second - (uintptr_t)first >= RA_REGION_BYTES / 2);
    RA(ra_memset(first, 77, 4, 16));
    RA(ra_memcpy(second, first, 64));
    RA(ra_memcpy(&value, second, 4));
    CHECK(value == 77);
    GIVES(RA_INVALID_HANDLE, ra_launch(function("_Z4fillIfEvPT_S0_i"), (uint32_t[]){1, 1, 1}, (uint32_t[]){1, 1, 1}, 0,
                                       NULL, P(&first, &value, &value))); /* of the other context's module */
    RA(ra_free(second));
    RA(ra_device_set(0));
    RA(ra_free(first));
}

/* ---- tools ---- */

static struct {
    int begun, hooked;
    _Atomic int completed, wrong;
} launches;

static void choose(void *userdata, ra_domain domain, ra_callback_id id, void *data) {
    (void)userdata, (void)domain;
    ra_launch_data *d = data;
    if (id == RA_CALLBACK_LAUNCH_BEGIN) {
        d->user[0] = d->launch * 3;
        d->user[1] = 7;
        d->serial = 1;
        launches.begun++;
        d->hook = launches.begun % 2 ? tally : NULL;
        launches.hooked += d->hook != NULL;
        return;
    }
    bool right = d->user[0] == d->launch * 3 && d->user[1] == 7 && !strcmp(d->symbol, "_Z4fillIfEvPT_S0_i");
    if (id == RA_CALLBACK_LAUNCH_COMPLETE) {
        atomic_fetch_add(&launches.completed, 1);
        right = right && d->error == RA_OK && d->start && d->start <= d->end;
    }
    if (!right) atomic_fetch_add(&launches.wrong, 1);
}

static struct {
    int begun;
    _Atomic int completed, wrong;
    uint64_t last; /* end of the one before on the stream */
} copies;

/* Gives each copy and set its number and how it was made. */
static void number(uint32_t asynchronous, uint64_t *user, bool complete, uint64_t start, uint64_t end) {
    if (!complete) {
        *user = (uint64_t)++copies.begun << 1 | asynchronous;
        return;
    }
    uint64_t done = (uint64_t)atomic_fetch_add(&copies.completed, 1) + 1;
    if (*user != (done << 1 | asynchronous) || !start || start > end || start < copies.last)
        atomic_fetch_add(&copies.wrong, 1);
    copies.last = end;
}

static void number_copies(void *userdata, ra_domain domain, ra_callback_id id, void *data) {
    (void)userdata;
    ra_memcpy_data *copy = data;
    ra_memset_data *set = data;
    if (domain == RA_DOMAIN_MEMCPY)
        number(copy->asynchronous, &copy->user, id == RA_CALLBACK_MEMCPY_COMPLETE, copy->start, copy->end);
    else
        number(set->asynchronous, &set->user, id == RA_CALLBACK_MEMSET_COMPLETE, set->start, set->end);
}

static void test_copies_complete(void) {
    const ra_tools_api *api = ra_tools();
    ra_tools_handle handle;
    ra_stream stream;
    char *x = device(4096), host[4096];
    RA(api->unsubscribe(tools));
    RA(api->subscribe(&handle, number_copies, NULL));
    RA(api->enable_domain(handle, RA_DOMAIN_MEMCPY, 1));
    RA(api->enable_domain(handle, RA_DOMAIN_MEMSET, 1));
    RA(ra_memset(x, 1, 1, 4096)); /* has completed when it returns */
    CHECK(copies.begun == 1 && copies.completed == 1);
    RA(ra_memcpy_2d(host, 8, x, 16, 8, 4));
    CHECK(copies.completed == 2);
    RA(ra_stream_create(&stream, 0));
    for (int i = 0; i < 50; i++) {
        RA(ra_memset_async(x, (uint32_t)i, 4, 1024, stream));
        RA(ra_memcpy_async(host, x, 4096, stream));
    }
    RA(ra_stream_synchronize(stream));
    CHECK(copies.begun == 102 && copies.completed == 102 && copies.wrong == 0);
    RA(ra_memset_async(x, 0, 1, 4096, stream));
    RA(ra_stream_synchronize(stream));
    RA(ra_stream_destroy(stream));
    RA(api->unsubscribe(handle));
    RA(api->subscribe(&tools, ignore, NULL));
    RA(ra_free(x));
}

static void test_tools(void) {
    const ra_tools_api *api = ra_tools();
    ra_tools_handle handle, second;
    RA(api->unsubscribe(tools));
    GIVES(RA_INVALID_HANDLE, api->unsubscribe(tools));
    RA(api->subscribe(&handle, choose, NULL));
    GIVES(RA_BUSY, api->subscribe(&second, choose, NULL));
    GIVES(RA_INVALID_VALUE, api->enable_domain(handle, RA_DOMAIN_COUNT, 1));
    RA(api->enable_domain(handle, RA_DOMAIN_LAUNCH, 1));
    int n = 1000;
    float zero = 0, *x = device(4000);
    ra_function_properties properties;
    RA(ra_function_query(&properties, function("_Z4fillIfEvPT_S0_i")));
    memset(&seen, 0, sizeof seen);
    seen.entry = properties.entry_pc;
    seen.bytes = 4;
    for (int i = 0; i < 10; i++) launch("_Z4fillIfEvPT_S0_i", 4, 1, 256, 1, 0, P(&x, &zero, &n));
    RA(ra_context_synchronize());
    CHECK(launches.begun == 10 && launches.hooked == 5 && launches.completed == 10 && launches.wrong == 0);
    CHECK(seen.lanes[0] == 5 * 1000 && seen.wrong == 0);
    /* Launches queued with a hook no longer call it once the subscriber is gone. */
    for (int i = 0; i < 200; i++) launch("_Z4fillIfEvPT_S0_i", 4, 1, 256, 1, 0, P(&x, &zero, &n));
    RA(api->unsubscribe(handle));
    uint64_t after = seen.lanes[0];
    RA(ra_context_synchronize());
    CHECK(seen.lanes[0] == after);
    RA(api->subscribe(&tools, ignore, NULL));
    RA(ra_free(x));
}

/* ---- life ---- */

static void child_work(void) {
    int n = 10000;
    float one = 1, *y = malloc((size_t)n * 4);
    RA(ra_module_load_builtin(&module)); /* the parent's handle means nothing here */
    float *x = device((uint64_t)n * 4);
    launch("_Z4fillIfEvPT_S0_i", 40, 1, 256, 1, 0, P(&x, &one, &n));
    RA(ra_memcpy(y, x, (uint64_t)n * 4));
    for (int i = 0; i < n; i++) CHECK(y[i] == 1);
    free(y);
    RA(ra_free(x));
}

static void *keep_busy(void *argument) {
    _Atomic bool *stop = argument;
    float *x = device(40000), one = 1;
    int n = 10000;
    while (!atomic_load(stop)) {
        launch("_Z4fillIfEvPT_S0_i", 40, 1, 256, 1, 0, P(&x, &one, &n));
        RA(ra_stream_synchronize(NULL));
    }
    RA(ra_free(x));
    return NULL;
}

static void test_fork(void) {
#ifdef __SANITIZE_THREAD__ /* its runtime cannot start threads in the child of a process with threads */
    return;
#endif
    _Atomic bool stop = false;
    pthread_t busy;
    char *shared;
    RA(ra_alloc_pinned((void **)&shared, 100));
    strcpy(shared, "of the parent");
    CHECK(!pthread_create(&busy, NULL, keep_busy, &stop));
    for (int i = 0; i < 5; i++) {
        pid_t child = fork();
        if (!child) {
            CHECK(!strcmp(shared, "of the parent"));
            child_work();
#ifdef __SANITIZE_ADDRESS__ /* memory referenced only by the parent's threads would be reported as leaks */
            RA(ra_shutdown());
            _exit(0);
#endif
            exit(0); /* exit handlers run too */
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    atomic_store(&stop, true);
    pthread_join(busy, NULL);
    RA(ra_free(shared));
}

static void on_signal(int number) { (void)number; }

static void test_signals(void) {
    /* A signal to the process must find no worker: with it blocked here, it stays pending. */
    sigset_t one, pending;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &one, NULL);
    signal(SIGUSR1, on_signal);
    kill(getpid(), SIGUSR1);
    nanosleep(&(struct timespec){0, 20 * 1000 * 1000}, NULL);
    sigpending(&pending);
    CHECK(sigismember(&pending, SIGUSR1));
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
}

static void test_injection(const char *tool) {
    setenv("REFACC_INJECTION_PATH", "/nonexistent/tool.so", 1);
    RA(ra_init()); /* silently without */
    RA(ra_shutdown());
    setenv("REFACC_INJECTION_PATH", tool, 1);
    RA(ra_module_load_builtin(&module)); /* initialises */
    void *library = dlopen(tool, RTLD_NOW | RTLD_NOLOAD);
    CHECK(library);
    _Atomic uint32_t *counts = dlsym(library, "ra_test_counts"), *initialized = dlsym(library, "ra_test_initialized");
    CHECK(counts && *initialized == 1);
    ra_stream stream;
    ra_event event;
    ra_graph graph;
    ra_graph_exec exec;
    void *managed, *pool;
    int n = 64;
    float zero = 0, *x = device(256), *y = device(256);
    RA(ra_stream_create(&stream, 0));
    RA(ra_event_create(&event));
    RA(ra_alloc_managed(&managed, 64));
    RA(ra_alloc_async(&pool, 64, stream));
    RA(ra_free_async(pool, stream));
    launch("_Z4fillIfEvPT_S0_i", 1, 1, 64, 1, 0, P(&y, &zero, &n));
    RA(ra_stream_begin_capture(stream));
    RA(ra_launch(function("_Z4fillIfEvPT_S0_i"), (uint32_t[]){1, 1, 1}, (uint32_t[]){64, 1, 1}, 0, stream,
                 P(&x, &zero, &n)));
    RA(ra_memset_async(x, 0, 4, 64, stream));
    RA(ra_memcpy_async(managed, x, 64, stream));
    RA(ra_stream_end_capture(stream, &graph));
    CHECK(counts[RA_CALLBACK_LAUNCH_BEGIN] == 1 && counts[RA_CALLBACK_MEMSET] == 0);
    RA(ra_graph_instantiate(&exec, graph));
    for (int i = 0; i < 4; i++) RA(ra_graph_launch(exec, stream));
    RA(ra_event_record(event, stream));
    RA(ra_stream_wait_event(NULL, event));
    RA(ra_event_synchronize(event));
    RA(ra_stream_synchronize(stream));
    RA(ra_context_synchronize());
    RA(ra_device_synchronize());
    RA(ra_host_access(managed, 64, 0));
    RA(ra_prefetch(managed, 64, 0, stream));
    RA(ra_advise(managed, 64, RA_ADVICE_READ_MOSTLY, 0));
    RA(ra_stream_attach(stream, managed, 64, 1));
    RA(ra_profiler_start());
    RA(ra_profiler_stop());
    RA(ra_graph_exec_destroy(exec));
    RA(ra_graph_destroy(graph));
    RA(ra_event_destroy(event));
    RA(ra_stream_destroy(stream));
    RA(ra_free(managed));
    RA(ra_free(x));
    RA(ra_free(y));
    RA(ra_module_unload(module));
    ra_context context;
    RA(ra_context_create(&context, 1));
    RA(ra_context_destroy(context));
    static const struct {
        ra_callback_id id;
        uint32_t count;
    } expected[] = {
        {RA_CALLBACK_CONTEXT_CREATED, 2},   {RA_CALLBACK_CONTEXT_DESTROYED, 1}, {RA_CALLBACK_STREAM_CREATED, 1},
        {RA_CALLBACK_STREAM_DESTROYED, 1},  {RA_CALLBACK_MODULE_LOADED, 1},     {RA_CALLBACK_MODULE_UNLOADED, 1},
        {RA_CALLBACK_MEMORY_ALLOCATED, 4},  {RA_CALLBACK_MEMORY_FREED, 4},      {RA_CALLBACK_LAUNCH_BEGIN, 5},
        {RA_CALLBACK_LAUNCH_END, 5},        {RA_CALLBACK_LAUNCH_COMPLETE, 5},   {RA_CALLBACK_MEMCPY, 4},
        {RA_CALLBACK_MEMSET, 4},            {RA_CALLBACK_SYNCHRONIZED, 4},      {RA_CALLBACK_EVENT_CREATED, 1},
        {RA_CALLBACK_EVENT_DESTROYED, 1},   {RA_CALLBACK_EVENT_RECORDED, 1},    {RA_CALLBACK_EVENT_WAITED, 1},
        {RA_CALLBACK_GRAPH_LAUNCH_BEGIN, 4}, {RA_CALLBACK_GRAPH_LAUNCH_END, 4}, {RA_CALLBACK_GRAPH_NODE_LAUNCH, 12},
        {RA_CALLBACK_UVM_ATTACH, 1},        {RA_CALLBACK_UVM_PREFETCH, 1},      {RA_CALLBACK_UVM_ADVISE, 1},
        {RA_CALLBACK_PROFILER_START, 1},    {RA_CALLBACK_PROFILER_STOP, 1},     {RA_CALLBACK_MEMCPY_COMPLETE, 4},
        {RA_CALLBACK_MEMSET_COMPLETE, 4},   {RA_CALLBACK_UVM_FAULT, 1},         {RA_CALLBACK_UVM_MIGRATED, 2},
    };
    CHECK(sizeof expected / sizeof *expected == RA_CALLBACK_COUNT - 1);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        if (counts[expected[i].id] != expected[i].count)
            fprintf(stderr, "callback %d came %u times\n", (int)expected[i].id, counts[expected[i].id]);
        CHECK(counts[expected[i].id] == expected[i].count);
    }
    pid_t child = fork(); /* injected again when used */
    if (!child) {
        RA(ra_module_load_builtin(&module));
        _exit(*initialized == 2 && counts[RA_CALLBACK_MODULE_LOADED] == 2 ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    RA(ra_shutdown());
    unsetenv("REFACC_INJECTION_PATH");
    dlclose(library);
}

/* ---- managed memory: a device holds two blocks of 32 pages ---- */

static struct {
    uint32_t faults, host_faults, wrong; /* wrong: not as long as the model says */
    uint64_t pages[4];                   /* moved, by reason */
    uint64_t to_host;
} uvm;

static void count_uvm(void *userdata, ra_domain domain, ra_callback_id id, void *data) {
    (void)userdata, (void)domain;
    const ra_uvm_activity_data *d = data;
    if (id != RA_CALLBACK_UVM_FAULT && id != RA_CALLBACK_UVM_MIGRATED) return;
    bool fault = id == RA_CALLBACK_UVM_FAULT;
    uvm.wrong += d->end - d->start != (fault ? 10000 : d->bytes / 16);
    if (fault && d->source == RA_HOST) uvm.host_faults++;
    else if (fault) uvm.faults++;
    if (!fault) uvm.pages[d->reason] += d->bytes >> 16;
    if (!fault && d->destination == RA_HOST) uvm.to_host += d->bytes >> 16;
}

static void moved(uint32_t faults, uint32_t host_faults, uint64_t by_fault, uint64_t prefetched, uint64_t evicted,
                  uint64_t to_host) {
    RA(ra_context_synchronize());
    bool as_expected = uvm.faults == faults && uvm.host_faults == host_faults && uvm.pages[RA_MIGRATED_FAULT] == by_fault &&
                       uvm.pages[RA_MIGRATED_PREFETCH] == prefetched && uvm.pages[RA_MIGRATED_EVICTION] == evicted &&
                       uvm.to_host == to_host && !uvm.wrong;
    if (!as_expected)
        fprintf(stderr, "faults %u, of the host %u; pages %d, %d, %d, to the host %d\n", uvm.faults, uvm.host_faults,
                (int)uvm.pages[1], (int)uvm.pages[2], (int)uvm.pages[3], (int)uvm.to_host);
    CHECK(as_expected);
    memset(&uvm, 0, sizeof uvm);
}

static void test_managed(void) {
    enum { BLOCK = 2 << 20, FLOATS = BLOCK / 4 };
    int n = FLOATS, few = 64;
    float zero = 0, one = 1, *x;
    RA(ra_tools()->unsubscribe(tools));
    RA(ra_tools()->subscribe(&tools, count_uvm, NULL));
    RA(ra_tools()->enable_domain(tools, RA_DOMAIN_UVM, 1));
    RA(ra_alloc_managed((void **)&x, 3 * BLOCK));
    CHECK((uintptr_t)x % BLOCK == 0);
    float *y = x + FLOATS, *z = y + FLOATS;
    RA(ra_host_access(x, 3 * BLOCK, 1));
    moved(0, 0, 0, 0, 0, 0); /* the host's first accesses */
    launch("_Z5scalePfffi", FLOATS / 256, 1, 256, 1, 0, P(&x, &one, &zero, &n));
    moved(6, 0, 32, 0, 0, 0); /* pages 0, 1, 2, 4, 8 and 16 fault, and bring 1, 1, 2, 4, 8 and 16 */
    launch("_Z5scalePfffi", FLOATS / 256, 1, 256, 1, 0, P(&x, &one, &zero, &n));
    moved(0, 0, 0, 0, 0, 0);
    launch("_Z5scalePfffi", 1, 1, 64, 1, 0, P(&y, &one, &zero, &few));
    moved(1, 0, 1, 0, 0, 0); /* page 0 alone */
    RA(ra_prefetch(y, BLOCK, 0, NULL));
    moved(0, 0, 0, 31, 0, 0);
    launch("_Z5scalePfffi", FLOATS / 256, 1, 256, 1, 0, P(&z, &one, &zero, &n));
    moved(6, 0, 32, 0, 32, 32); /* x, which was used before y, is evicted */
    RA(ra_host_access(z, BLOCK, 0));
    moved(0, 6, 32, 0, 0, 32);
    /* read mostly: both have it, until one writes */
    RA(ra_advise(x, BLOCK, RA_ADVICE_READ_MOSTLY, 0));
    launch("_Z4vaddPKfS0_Pfi", 1, 1, 64, 1, 0, P(&x, &x, &y, &few));
    moved(1, 0, 1, 0, 0, 0);
    RA(ra_host_access(x, 64, 0));
    moved(0, 0, 0, 0, 0, 0);
    RA(ra_host_access(x, 64, 1));
    moved(0, 1, 0, 0, 0, 0);
    launch("_Z4vaddPKfS0_Pfi", 1, 1, 64, 1, 0, P(&x, &x, &y, &few));
    moved(1, 0, 1, 0, 0, 0);
    launch("_Z5scalePfffi", 1, 1, 64, 1, 0, P(&x, &one, &zero, &few));
    moved(1, 0, 0, 0, 0, 0);
    /* accessed on the host, where it prefers to be; with a mapping from the start without a fault */
    RA(ra_prefetch(z, BLOCK, RA_HOST, NULL));
    RA(ra_advise(z, BLOCK, RA_ADVICE_PREFERRED_LOCATION, RA_HOST));
    launch("_Z5scalePfffi", 1, 1, 64, 1, 0, P(&z, &one, &zero, &few));
    launch("_Z5scalePfffi", 1, 1, 64, 1, 0, P(&z, &one, &zero, &few));
    moved(1, 0, 0, 0, 0, 0);
    RA(ra_advise(z, BLOCK, RA_ADVICE_ACCESSED_BY, 0));
    float *later = z + FLOATS / 2;
    launch("_Z5scalePfffi", 1, 1, 64, 1, 0, P(&later, &one, &zero, &few));
    moved(0, 0, 0, 0, 0, 0);
    GIVES(RA_INVALID_ADDRESS, ra_host_access(x, 3 * BLOCK + 1, 0));
    RA(ra_free(x));
    CHECK(!uvm.faults && !uvm.wrong);
    RA(ra_tools()->unsubscribe(tools));
    RA(ra_tools()->subscribe(&tools, ignore, NULL));
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void nothing(void *userdata, const ra_access *access) { (void)userdata, (void)access; }

static int speed(void) {
    int n = 1 << 22;
    RA(ra_module_load_builtin(&module));
    RA(ra_tools()->subscribe(&tools, ignore, NULL));
    float *a = device((uint64_t)n * 4), *b = device((uint64_t)n * 4), *c = device((uint64_t)n * 4);
    for (int hooked = 0; hooked < 2; hooked++) {
        RA(ra_tools()->set_access_hook(tools, hooked ? nothing : NULL, NULL));
        launch("_Z4vaddPKfS0_Pfi", (uint32_t)n / 256, 1, 256, 1, 0, P(&a, &b, &c, &n));
        RA(ra_context_synchronize());
        double start = seconds();
        for (int i = 0; i < 10; i++) launch("_Z4vaddPKfS0_Pfi", (uint32_t)n / 256, 1, 256, 1, 0, P(&a, &b, &c, &n));
        RA(ra_context_synchronize());
        printf("hook %s: %.0f million lane accesses per second\n", hooked ? "on" : "off",
               30.0 * n / (seconds() - start) / 1e6);
    }
    int launches_timed = 20000, small = 32;
    RA(ra_tools()->set_access_hook(tools, NULL, NULL));
    double start = seconds();
    for (int i = 0; i < launches_timed; i++) launch("_Z4vaddPKfS0_Pfi", 1, 1, 32, 1, 0, P(&a, &b, &c, &small));
    RA(ra_context_synchronize());
    printf("%.2f microseconds per small launch\n", (seconds() - start) / launches_timed * 1e6);
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s TOOL.so | --speed\n", argv[0]);
        return 2;
    }
    if (!strcmp(argv[1], "--speed")) return speed();
    setenv("REFACC_DEVICES", "two", 1);
    GIVES(RA_INVALID_VALUE, ra_init());
    setenv("REFACC_DEVICES", "2", 1);
    setenv("REFACC_MANAGED", "4", 1);
    test_injection(argv[1]);

    RA(ra_kernel_register(own_kernels, sizeof own_kernels / sizeof *own_kernels));
    RA(ra_module_load_builtin(&module));
    RA(ra_tools()->subscribe(&tools, ignore, NULL));
    test_elementwise();
    test_transpose();
    test_gemm();
    test_reduce();
    test_stencils();
    test_network();
    test_own_kernels();
    test_memory();
    test_streams();
    test_threads();
    test_graphs();
    test_errors();
    test_fault(0, RA_ILLEGAL_ADDRESS);
    test_fault((uintptr_t)&checks, RA_ILLEGAL_ADDRESS);
    uint32_t *x = device(16);
    test_fault((uintptr_t)x + 2, RA_MISALIGNED_ADDRESS);
    RA(ra_free(x));
    test_transfers();
    test_tensors();
    test_devices();
    test_managed();
    test_copies_complete();
    test_tools();
    test_signals();
    test_fork();
    printf("%d checks\n", atomic_load(&checks));
    return 0;
}

#endif
