/* The cases of `accesses`: launches of the golden kernels (golden.c) with their results checked, and the
 * numbers that their accesses must have.  Tests of the reference accelerator and of PASTA share them. */
#ifndef RA_GOLDEN_H
#define RA_GOLDEN_H

#include "demo.h"
#include "refacc_tools.h"

/* Of all accesses of a kind: warp instructions, those that read, write and are atomic, active lanes, bytes
 * (lanes * size, or of the transfer); global memory: 32-byte sectors per instruction, and as many as its
 * bytes need; shared memory: wavefronts, and as many as its size needs.  -1: not stated. */
struct golden_count {
    ra_kind kind;
    long instructions, reads, writes, atomics, lanes, bytes, sectors, ideal_sectors, ways, ideal_ways;
};

enum { GOLDEN_KINDS = 9 };

struct golden {
    const char *name;
    void (*run)(int argument);
    int argument;
    struct demo_counts calls;
    long unknown; /* lanes whose address is outside live allocations */
    struct golden_count accesses[GOLDEN_KINDS];
};

/* ---- building blocks of the cases ---- */

static ra_module golden_module; /* of the current context */

static ra_function golden_function(const char *symbol) {
    ra_function function;
    RA(ra_module_function(&function, golden_module, symbol));
    return function;
}

static void golden_launch_in(ra_stream stream, const char *symbol, uint32_t blocks, uint32_t threads, uint32_t shared,
                             void *const *parameters) {
    RA(ra_launch(golden_function(symbol), (uint32_t[]){blocks, 1, 1}, (uint32_t[]){threads, 1, 1}, shared, stream,
                 parameters));
}

static void golden_launch(const char *symbol, uint32_t blocks, uint32_t threads, uint32_t shared,
                          void *const *parameters) {
    golden_launch_in(NULL, symbol, blocks, threads, shared, parameters);
}

static void *golden_upload(const void *values, uint64_t bytes) {
    void *address = demo_alloc(bytes);
    RA(ra_memcpy(address, values, bytes));
    return address;
}

static void *golden_zeros(uint64_t words) {
    void *address = demo_alloc(words * 4);
    RA(ra_memset(address, 0, 4, words));
    return address;
}

/* Copies to the host and frees; the call waits for the launches before it. */
static void golden_download(void *values, void *address, uint64_t bytes) {
    RA(ra_memcpy(values, address, bytes));
    RA(ra_context_synchronize());
    RA(ra_free(address));
}

/* Threads of most cases, in blocks of 128: 16 warps. */
enum { BLOCKS = 4, THREADS = 128, N = BLOCKS * THREADS, W = N / 32 };
#define P(...) (void *[]) { __VA_ARGS__ }

static float golden_in[32 * N], golden_out[4 * N];

/* ---- global memory ---- */

static void golden_strided(int stride) {
    int n = N;
    uint64_t bytes = (uint64_t)stride * N * sizeof(float);
    demo_numbers(golden_in, (long)stride * N, 1);
    void *in = golden_upload(golden_in, bytes), *out = golden_zeros(N);
    golden_launch("_Z7stridedPKfPfii", BLOCKS, THREADS, 0, P(&in, &out, &stride, &n));
    golden_download(golden_out, out, N * sizeof(float));
    RA(ra_free(in));
    for (int i = 0; i < N; i++) CHECK(golden_out[i] == golden_in[i * stride]);
}

/* 970 of 1000 threads, blocks of 100. */
static void golden_tail(int n) {
    int stride = 1;
    demo_numbers(golden_in, n, 2);
    void *in = golden_upload(golden_in, (uint64_t)n * sizeof(float)), *out = golden_zeros((uint64_t)n);
    golden_launch("_Z7stridedPKfPfii", 10, 100, 0, P(&in, &out, &stride, &n));
    golden_download(golden_out, out, (uint64_t)n * sizeof(float));
    RA(ra_free(in));
    CHECK(!memcmp(golden_in, golden_out, (size_t)n * sizeof(float)));
}

static void golden_divergent(int argument) {
    (void)argument;
    static float b[N];
    demo_numbers(golden_in, N, 3);
    demo_numbers(b, N, 4);
    void *in = golden_upload(golden_in, sizeof b), *other = golden_upload(b, sizeof b), *out = golden_zeros(N);
    golden_launch("_Z9divergentPKfS0_Pf", BLOCKS, THREADS, 0, P(&in, &other, &out));
    golden_download(golden_out, out, sizeof b);
    RA(ra_free(in));
    RA(ra_free(other));
    for (int i = 0; i < N; i++)
        CHECK(golden_out[i] == (i % 32 < 16 ? golden_in[i] : b[i]) + (float)(i % 4) * golden_in[i]);
}

static void golden_atomics(int distinct) {
    static uint32_t result[N];
    void *x = golden_zeros(N);
    golden_launch("_Z7atomicsPji", BLOCKS, THREADS, 0, P(&x, &distinct));
    golden_download(result, x, sizeof result);
    for (int i = 0; i < N; i++) CHECK(result[i] == (distinct ? 1u : i ? 0 : N));
}

static void golden_prefetch(int argument) {
    (void)argument;
    demo_numbers(golden_in, N, 5);
    void *out = golden_zeros(N), *in = golden_upload(golden_in, N * sizeof(float));
    golden_launch("_Z8prefetchPKfPf", BLOCKS, THREADS, 0, P(&in, &out));
    golden_download(golden_out, out, N * sizeof(float));
    RA(ra_free(in));
    CHECK(!memcmp(golden_in, golden_out, N * sizeof(float)));
}

enum { LARGE_BLOCKS = 16, LARGE_W = 64, LARGE_TRIPS = 140000 };

static void golden_large(int trips) {
    enum { LARGE_N = LARGE_BLOCKS * THREADS };
    static float in_values[4 * LARGE_N];
    for (int i = 0; i < 4 * LARGE_N; i++) in_values[i] = 1;
    void *in = golden_upload(in_values, sizeof in_values), *out = golden_zeros(LARGE_N);
    golden_launch("_Z6repeatPK6float4Pfi", LARGE_BLOCKS, THREADS, 0, P(&in, &out, &trips));
    golden_download(golden_out, out, LARGE_N * sizeof(float));
    RA(ra_free(in));
    for (int i = 0; i < LARGE_N; i++) CHECK(golden_out[i] == (float)trips);
}

/* ---- shared and local memory ---- */

enum { WARPS = 4 }; /* blocks of one warp each */

static void golden_shared_words(int stride) {
    void *out = golden_zeros(32 * WARPS);
    golden_launch("_Z12shared_wordsPfi", WARPS, 32, 128 * (uint32_t)stride, P(&out, &stride));
    golden_download(golden_out, out, 32 * WARPS * sizeof(float));
    for (int i = 0; i < 32 * WARPS; i++) CHECK(golden_out[i] == (float)i);
}

static void golden_shared_pairs(int stride) {
    static uint64_t result[32 * WARPS];
    void *out = golden_zeros(64 * WARPS);
    golden_launch("_Z12shared_pairsPyi", WARPS, 32, 256 * (uint32_t)stride, P(&out, &stride));
    golden_download(result, out, sizeof result);
    for (int i = 0; i < 32 * WARPS; i++) CHECK(result[i] == (uint64_t)i);
}

static void golden_shared_quads(int stride) {
    void *out = golden_zeros(128 * WARPS);
    golden_launch("_Z12shared_quadsP6float4i", WARPS, 32, 512 * (uint32_t)stride, P(&out, &stride));
    golden_download(golden_out, out, 128 * WARPS * sizeof(float));
    for (int i = 0; i < 128 * WARPS; i++) CHECK(golden_out[i] == (float)i);
}

static void golden_local(int argument) {
    (void)argument;
    demo_numbers(golden_in, N, 6);
    void *in = golden_upload(golden_in, N * sizeof(float)), *out = golden_zeros(N);
    golden_launch("_Z11local_spillPKfPf", BLOCKS, THREADS, 0, P(&in, &out));
    golden_download(golden_out, out, N * sizeof(float));
    RA(ra_free(in));
    for (int i = 0; i < N; i++) CHECK(golden_out[i] == 4 * golden_in[i]);
}

/* ---- copies between global and shared memory ---- */

static void golden_async_copy(int argument) {
    (void)argument;
    demo_numbers(golden_in, 4 * N, 7);
    void *in = golden_upload(golden_in, sizeof golden_out), *out = golden_zeros(4 * N);
    golden_launch("_Z10async_copyPK6float4PS_", BLOCKS, THREADS, THREADS * 16, P(&in, &out));
    golden_download(golden_out, out, sizeof golden_out);
    RA(ra_free(in));
    CHECK(!memcmp(golden_in, golden_out, sizeof golden_out));
}

static void golden_bulk(int argument) {
    (void)argument;
    demo_numbers(golden_in, N, 8);
    void *in = golden_upload(golden_in, N * sizeof(float)), *out = golden_zeros(N);
    golden_launch("_Z9bulk_copyPKfPf", BLOCKS, THREADS, THREADS * 4, P(&in, &out));
    golden_download(golden_out, out, N * sizeof(float));
    RA(ra_free(in));
    for (int i = 0; i < N; i++) CHECK(golden_out[i] == golden_in[i] + 1);
}

static void golden_bulk_reduction(int argument) {
    (void)argument;
    static uint32_t result[THREADS];
    void *sum = golden_zeros(THREADS);
    golden_launch("_Z11bulk_reducePj", BLOCKS, THREADS, THREADS * 4, P(&sum));
    golden_download(result, sum, sizeof result);
    for (uint32_t i = 0; i < THREADS; i++) CHECK(result[i] == BLOCKS * i);
}

enum { COLUMNS = 100, ROWS = 50, BOX_COLUMNS = 32, BOX_ROWS = 16, CELLS = COLUMNS * ROWS };

/* Boxes that cover the matrix and more, from (-origin, -origin / 2) on. */
static void golden_tensor(int origin) {
    static float in_values[CELLS], result[CELLS + 16];
    const uint64_t size[2] = {COLUMNS, ROWS}, pitch[1] = {COLUMNS * sizeof(float)};
    const uint32_t box[2] = {BOX_COLUMNS, BOX_ROWS};
    int x = -origin, y = -origin / 2, width = BOX_COLUMNS, height = BOX_ROWS;
    ra_tensor tensor;
    demo_numbers(in_values, CELLS, 9);
    void *in = golden_upload(in_values, sizeof in_values), *out = golden_zeros(CELLS + 16);
    RA(ra_tensor_make(&tensor, in, sizeof(float), 2, size, pitch, box));
    void *from = golden_upload(&tensor, sizeof tensor);
    RA(ra_tensor_make(&tensor, out, sizeof(float), 2, size, pitch, box));
    void *to = golden_upload(&tensor, sizeof tensor);
    RA(ra_launch(golden_function("_Z11tensor_copyPK9ra_tensorS1_iiii"), (uint32_t[]){origin ? 5 : 4, 4, 1},
                 (uint32_t[]){32, 1, 1}, BOX_COLUMNS * BOX_ROWS * sizeof(float), NULL,
                 P(&from, &to, &x, &y, &width, &height)));
    golden_download(result, out, sizeof result);
    RA(ra_free(in));
    RA(ra_free(from));
    RA(ra_free(to));
    CHECK(!memcmp(in_values, result, sizeof in_values));
    for (int i = 0; i < 16; i++) CHECK(result[CELLS + i] == 0);
}

static void golden_matrix(int argument) {
    (void)argument;
    demo_numbers(golden_in, 128 * WARPS, 10);
    void *in = golden_upload(golden_in, 512 * WARPS), *out = golden_zeros(128 * WARPS);
    golden_launch("_Z11matrix_copyPKjPj", WARPS, 32, 0, P(&in, &out));
    golden_download(golden_out, out, 512 * WARPS);
    RA(ra_free(in));
    CHECK(!memcmp(golden_in, golden_out, 512 * WARPS));
}

static void golden_cluster(int argument) {
    (void)argument;
    static uint32_t result[256];
    void *out = golden_zeros(256);
    golden_launch("_Z16cluster_exchangePj", 4, 64, 0, P(&out));
    golden_download(result, out, sizeof result);
    for (uint32_t i = 0; i < 256; i++) CHECK(result[i] == i + 1 + (i ^ 64));
}

/* ---- control ---- */

static void golden_early_exit(int argument) {
    (void)argument;
    demo_numbers(golden_in, N, 11);
    void *in = golden_upload(golden_in, N * sizeof(float)), *out = golden_zeros(N);
    golden_launch("_Z10early_exitPKfPf", BLOCKS, THREADS, 0, P(&in, &out));
    golden_download(golden_out, out, N * sizeof(float));
    RA(ra_free(in));
    for (int i = 0; i < N; i++) CHECK(golden_out[i] == (i / 32 % 2 || i % 32 >= 16 ? 0 : golden_in[i]));
}

/* Blocks of 100 threads: the last warp has 4. */
static void golden_barriers(int count) {
    static int32_t result[400];
    void *out = golden_zeros(400);
    golden_launch("_Z8barriersPii", 4, 100, 0, P(&out, &count));
    golden_download(result, out, sizeof result);
    for (int i = 0; i < 400; i++) CHECK(result[i] == count);
}

static void golden_calls(int argument) {
    (void)argument;
    static uint32_t result[N];
    void *x = golden_zeros(N);
    golden_launch("_Z5callsPj", BLOCKS, THREADS, 0, P(&x));
    golden_download(result, x, sizeof result);
    for (int i = 0; i < N; i++) CHECK(result[i] == 2);
}

/* ---- memory outside objects ---- */

enum { SHORT = 250 };

/* The input ends after 250 floats, and nothing is allocated after it. */
static void golden_past_end(int n) {
    int stride = 1;
    demo_numbers(golden_in, SHORT, 12);
    void *out = golden_zeros((uint64_t)n), *in = golden_upload(golden_in, SHORT * sizeof(float));
    golden_launch("_Z7stridedPKfPfii", BLOCKS, THREADS, 0, P(&in, &out, &stride, &n));
    golden_download(golden_out, out, (uint64_t)n * sizeof(float));
    RA(ra_free(in));
    CHECK(!memcmp(golden_in, golden_out, SHORT * sizeof(float)));
}

/* The input is freed before the launch. */
static void golden_freed(int n) {
    int stride = 1;
    demo_numbers(golden_in, n, 13);
    void *out = golden_zeros((uint64_t)n), *in = golden_upload(golden_in, (uint64_t)n * sizeof(float));
    RA(ra_free(in));
    golden_launch("_Z7stridedPKfPfii", BLOCKS, THREADS, 0, P(&in, &out, &stride, &n));
    golden_download(golden_out, out, (uint64_t)n * sizeof(float));
}

/* ---- the life of launches and objects ---- */

static void golden_graph(int replays) {
    int stride = 1, n = N;
    ra_stream stream;
    ra_graph graph;
    ra_graph_exec exec;
    demo_numbers(golden_in, N, 14);
    RA(ra_stream_create(&stream, 0));
    void *in = golden_upload(golden_in, N * sizeof(float)), *out = golden_zeros(N);
    RA(ra_context_synchronize()); /* the set is in another stream */
    RA(ra_stream_begin_capture(stream));
    golden_launch_in(stream, "_Z7stridedPKfPfii", BLOCKS, THREADS, 0, P(&in, &out, &stride, &n));
    RA(ra_stream_end_capture(stream, &graph));
    RA(ra_graph_instantiate(&exec, graph));
    RA(ra_graph_destroy(graph));
    for (int i = 0; i < replays; i++) RA(ra_graph_launch(exec, stream));
    RA(ra_stream_synchronize(stream));
    golden_download(golden_out, out, N * sizeof(float));
    RA(ra_graph_exec_destroy(exec));
    RA(ra_stream_destroy(stream));
    RA(ra_free(in));
    CHECK(!memcmp(golden_in, golden_out, N * sizeof(float)));
}

/* Each stream has its input and output. */
static void golden_streams(int argument) {
    (void)argument;
    int stride = 1, n = N;
    ra_stream streams[2];
    void *in[2], *out[2];
    demo_numbers(golden_in, 2 * N, 15);
    for (int s = 0; s < 2; s++) {
        RA(ra_stream_create(&streams[s], 0));
        in[s] = golden_upload(golden_in + s * N, N * sizeof(float));
        out[s] = golden_zeros(N);
    }
    RA(ra_context_synchronize());
    for (int s = 0; s < 2; s++)
        golden_launch_in(streams[s], "_Z7stridedPKfPfii", BLOCKS, THREADS, 0, P(&in[s], &out[s], &stride, &n));
    for (int s = 0; s < 2; s++) {
        RA(ra_stream_synchronize(streams[s]));
        golden_download(golden_out + s * N, out[s], N * sizeof(float));
        RA(ra_free(in[s]));
        RA(ra_stream_destroy(streams[s]));
    }
    CHECK(!memcmp(golden_in, golden_out, 2 * N * sizeof(float)));
}

/* The same launch in two contexts of one device, made for it. */
static void golden_contexts(int stride) {
    ra_context before, context;
    ra_module module = golden_module;
    RA(ra_context_get_current(&before));
    for (int i = 0; i < 2; i++) {
        RA(ra_context_create(&context, 0));
        RA(ra_module_load_builtin(&golden_module));
        golden_strided(stride);
        RA(ra_context_destroy(context));
    }
    RA(ra_context_set_current(before));
    golden_module = module;
}

/* Two inputs, one after the other, at one address. */
static void golden_reuse(int n) {
    int stride = 1;
    void *first = NULL;
    for (int i = 0; i < 2; i++) {
        demo_numbers(golden_in, n, 16 + i);
        void *in = golden_upload(golden_in, (uint64_t)n * sizeof(float));
        CHECK(!first || in == first);
        first = in;
        void *out = golden_zeros((uint64_t)n);
        golden_launch("_Z7stridedPKfPfii", BLOCKS, THREADS, 0, P(&in, &out, &stride, &n));
        golden_download(golden_out, out, (uint64_t)n * sizeof(float));
        RA(ra_free(in));
        CHECK(!memcmp(golden_in, golden_out, (size_t)n * sizeof(float)));
    }
}

/* ---- the cases ---- */

/* One launch with `uploads` inputs and an output of zeros. */
#define ONE_LAUNCH(uploads) \
    {.launches = 1, .copies = (uploads) + 1, .sets = 1, .allocations = (uploads) + 1, .frees = (uploads) + 1}
#define NONE -1, -1
#define LIFE(warps, lanes)                                                       \
    {RA_KIND_BLOCK_ENTER, (warps), 0, 0, 0, (lanes), 0, NONE, NONE},             \
    {RA_KIND_BLOCK_EXIT, (warps), 0, 0, 0, (lanes), 0, NONE, NONE}
#define BARRIERS(warps, lanes) {RA_KIND_BARRIER, (warps), 0, 0, 0, (lanes), 0, NONE, NONE}
/* kind, loads, stores, lanes, bytes; no atomics */
#define GLOBAL(kind, loads, stores, lanes, bytes, sectors, ideal) \
    {RA_KIND_##kind, (loads) + (stores), (loads), (stores), 0, (lanes), (bytes), (sectors), (ideal), NONE}
#define SHARED(kind, loads, stores, lanes, bytes, ways, ideal) \
    {RA_KIND_##kind, (loads) + (stores), (loads), (stores), 0, (lanes), (bytes), NONE, (ways), (ideal)}
/* `times` times a load and a store of N floats, unit stride: 4 sectors per warp */
#define COPY(times) GLOBAL(GLOBAL, (times) * W, (times) * W, (times) * 2 * N, (times) * 8 * N, (times) * 8 * W, (times) * 8 * W)

#define STRIDED(stride)                                                                                     \
    {"stride_" #stride, golden_strided, stride, ONE_LAUNCH(1), 0,                                           \
     {GLOBAL(GLOBAL, W, W, 2 * N, 8 * N, W * (4 * (stride) < 32 ? 4 * (stride) : 32) + 4 * W, 8 * W), LIFE(W, N)}}
#define SHARED_WORDS(stride)                                                                   \
    {"shared_" #stride "way", golden_shared_words, stride, ONE_LAUNCH(0), 0,              \
     {SHARED(SHARED, WARPS, WARPS, 64 * WARPS, 256 * WARPS, 2 * WARPS * (stride), 2 * WARPS),   \
      GLOBAL(GLOBAL, 0, WARPS, 32 * WARPS, 128 * WARPS, 4 * WARPS, 4 * WARPS), LIFE(WARPS, 32 * WARPS)}}
#define SHARED_WIDE(name, run, ways, bytes, groups)                                                           \
    {name, run, ways, ONE_LAUNCH(0), 0,                                                                       \
     {SHARED(SHARED, WARPS, WARPS, 64 * WARPS, 64 * WARPS * (bytes), 2 * WARPS * (groups) * (ways), 2 * WARPS * (groups)), \
      GLOBAL(GLOBAL, 0, WARPS, 32 * WARPS, 32 * WARPS * (bytes), WARPS * (bytes), WARPS * (bytes)),           \
      LIFE(WARPS, 32 * WARPS)}}

static const struct golden golden_cases[] = {
    STRIDED(1), STRIDED(2), STRIDED(32),
    /* Blocks of 400 bytes of input: every second one begins in the middle of a sector, so that its full
     * warps touch 5, not 4.  Per full block 13 or 16 sectors, in the last (70 threads, 3 warps) 12. */
    {"tail", golden_tail, 970, ONE_LAUNCH(1), 0,
     {GLOBAL(GLOBAL, 39, 39, 2 * 970, 8 * 970, 2 * (5 * 13 + 4 * 16 + 12), 2 * (9 * 13 + 9)), LIFE(40, 1000)}},
    {"divergent", golden_divergent, 0, ONE_LAUNCH(2), 0,
     {GLOBAL(GLOBAL, 5 * W, W, 112 * W, 448 * W, 20 * W, 14 * W), LIFE(W, N)}},
    {"atomic_same", golden_atomics, 0, ONE_LAUNCH(0), 0,
     {{RA_KIND_GLOBAL, W, W, W, W, N, 4 * N, W, W, NONE}, LIFE(W, N)}},
    {"atomic_distinct", golden_atomics, 1, ONE_LAUNCH(0), 0,
     {{RA_KIND_GLOBAL, W, W, W, W, N, 4 * N, 4 * W, 4 * W, NONE}, LIFE(W, N)}},
    /* the last warp prefetches beyond the input */
    {"prefetch", golden_prefetch, 0, ONE_LAUNCH(1), 32,
     {GLOBAL(GLOBAL, 2 * W, W, 3 * N, 12 * N, 12 * W, 12 * W), LIFE(W, N)}},
    SHARED_WORDS(1), SHARED_WORDS(2), SHARED_WORDS(8), SHARED_WORDS(32),
    SHARED_WIDE("shared_8byte", golden_shared_pairs, 1, 8, 2),
    SHARED_WIDE("shared_8byte_2way", golden_shared_pairs, 2, 8, 2),
    SHARED_WIDE("shared_16byte", golden_shared_quads, 1, 16, 4),
    SHARED_WIDE("shared_16byte_2way", golden_shared_quads, 2, 16, 4),
    {"local_spill", golden_local, 0, ONE_LAUNCH(1), 0,
     {{RA_KIND_LOCAL, 8 * W, 4 * W, 4 * W, 0, 8 * N, 32 * N, NONE, NONE}, COPY(1), LIFE(W, N)}},
    {"async_copy", golden_async_copy, 0, ONE_LAUNCH(1), 0,
     {GLOBAL(ASYNC_COPY, W, 0, N, 16 * N, 16 * W, 16 * W), GLOBAL(GLOBAL, 0, W, N, 16 * N, 16 * W, 16 * W),
      SHARED(SHARED, W, 0, N, 16 * N, 4 * W, 4 * W), BARRIERS(W, N), LIFE(W, N)}},
    {"bulk", golden_bulk, 0, ONE_LAUNCH(1), 0,
     {GLOBAL(BULK_LOAD, BLOCKS, 0, BLOCKS, 4 * N, N / 8, N / 8), GLOBAL(BULK_STORE, 0, BLOCKS, BLOCKS, 4 * N, N / 8, N / 8),
      SHARED(SHARED, W, W, 2 * N, 8 * N, 2 * W, 2 * W), BARRIERS(2 * W, 2 * N), LIFE(W, N)}},
    {"bulk_reduction", golden_bulk_reduction, 0, ONE_LAUNCH(0), 0,
     {{RA_KIND_BULK_REDUCTION, BLOCKS, BLOCKS, BLOCKS, BLOCKS, BLOCKS, 4 * N, N / 8, N / 8, NONE},
      SHARED(SHARED, 0, W, N, 4 * N, W, W), BARRIERS(W, N), LIFE(W, N)}},
    /* 4 x 4 boxes, the last column 4 wide, the last row 2 high.  Rows are 400 bytes apart: every second
     * one begins in the middle of a sector, and 128 bytes there touch 5; 16 bytes touch 1 always. */
    {"tensor", golden_tensor, 0, {.launches = 1, .copies = 4, .sets = 1, .allocations = 4, .frees = 4}, 0,
     {GLOBAL(TENSOR_LOAD, 16, 0, 16, 4 * CELLS, 3 * 25 * (4 + 5) + 50, 3 * (3 * 64 + 8) + 3 * 8 + 1),
      GLOBAL(TENSOR_STORE, 0, 16, 16, 4 * CELLS, 3 * 25 * (4 + 5) + 50, 3 * (3 * 64 + 8) + 3 * 8 + 1), LIFE(16, 512)}},
    /* 5 x 4 boxes from (-8, -4): columns of 24, 32, 32, 12 and none; rows of 12, 16, 16, 6. */
    {"tensor_outside", golden_tensor, 8, {.launches = 1, .copies = 4, .sets = 1, .allocations = 4, .frees = 4}, 0,
     {GLOBAL(TENSOR_LOAD, 20, 0, 20, 4 * CELLS, 25 * (3 + 4 + 4 + 2) + 25 * (4 + 5 + 5 + 2), 150 + 200 + 200 + 75),
      GLOBAL(TENSOR_STORE, 0, 20, 20, 4 * CELLS, 25 * (3 + 4 + 4 + 2) + 25 * (4 + 5 + 5 + 2), 150 + 200 + 200 + 75),
      LIFE(20, 640)}},
    {"matrix", golden_matrix, 0, ONE_LAUNCH(1), 0,
     {SHARED(MATRIX, WARPS, WARPS, 64 * WARPS, 1024 * WARPS, 8 * WARPS, 8 * WARPS),
      SHARED(SHARED, 4 * WARPS, 4 * WARPS, 256 * WARPS, 1024 * WARPS, 8 * WARPS, 8 * WARPS),
      GLOBAL(GLOBAL, 4 * WARPS, 4 * WARPS, 256 * WARPS, 1024 * WARPS, 32 * WARPS, 32 * WARPS), LIFE(WARPS, 32 * WARPS)}},
    {"cluster", golden_cluster, 0, ONE_LAUNCH(0), 0,
     {SHARED(SHARED, 16, 8, 768, 3072, 24, 24), SHARED(REMOTE_SHARED, 8, 0, 256, 1024, 8, 8),
      SHARED(ASYNC_STORE, 0, 8, 256, 1024, 8, 8), {RA_KIND_BULK_SHARED, 4, 0, 4, 0, 4, 1024, NONE, NONE},
      GLOBAL(GLOBAL, 0, 8, 256, 1024, 32, 32), BARRIERS(16, 512), LIFE(8, 256)}},
    {"early_exit", golden_early_exit, 0, ONE_LAUNCH(1), 0,
     {GLOBAL(GLOBAL, W / 2, W / 2, N / 2, 2 * N, 2 * W, 2 * W), {RA_KIND_BLOCK_ENTER, W, 0, 0, 0, N, 0, NONE, NONE},
      {RA_KIND_BLOCK_EXIT, 3 * W / 2, 0, 0, 0, N, 0, NONE, NONE}}},
    /* sectors of the stores as in `tail` */
    {"barriers", golden_barriers, 3, ONE_LAUNCH(0), 0,
     {GLOBAL(GLOBAL, 0, 16, 400, 1600, 2 * 13 + 2 * 16, 4 * 13), BARRIERS(48, 1200), LIFE(16, 400)}},
    {"calls", golden_calls, 0, ONE_LAUNCH(0), 0,
     {{RA_KIND_CALL, 2 * W, 0, 0, 0, 2 * N, 0, NONE, NONE}, COPY(2), LIFE(W, N)}},
    {"past_end", golden_past_end, N, ONE_LAUNCH(1), N - SHORT, {COPY(1), LIFE(W, N)}},
    {"freed", golden_freed, N, ONE_LAUNCH(1), N, {COPY(1), LIFE(W, N)}},
    {"graph", golden_graph, 3,
     {.launches = 3, .graph_launches = 3, .copies = 2, .sets = 1, .allocations = 2, .frees = 2, .streams = 1}, 0,
     {COPY(3), LIFE(3 * W, 3 * N)}},
    {"streams", golden_streams, 0,
     {.launches = 2, .copies = 4, .sets = 2, .allocations = 4, .frees = 4, .streams = 2}, 0,
     {COPY(2), LIFE(2 * W, 2 * N)}},
    {"contexts", golden_contexts, 1, {.launches = 2, .copies = 4, .sets = 2, .allocations = 4, .frees = 4}, 0,
     {COPY(2), LIFE(2 * W, 2 * N)}},
    {"reuse", golden_reuse, N, {.launches = 2, .copies = 4, .sets = 2, .allocations = 4, .frees = 4}, 0,
     {COPY(2), LIFE(2 * W, 2 * N)}},
    /* Last, and only when named: its bytes need 64 bits. */
    {"large", golden_large, LARGE_TRIPS, ONE_LAUNCH(1), 0,
     {GLOBAL(GLOBAL, (long)LARGE_TRIPS * LARGE_W, LARGE_W, 32L * LARGE_W * (LARGE_TRIPS + 1),
             128L * LARGE_W * (4L * LARGE_TRIPS + 1), 4L * LARGE_W * (4L * LARGE_TRIPS + 1),
             4L * LARGE_W * (4L * LARGE_TRIPS + 1)),
      LIFE(LARGE_W, 32 * LARGE_W)}},
};
enum { GOLDEN_CASES = sizeof golden_cases / sizeof *golden_cases };

static void golden_run(const struct golden *g) {
    RA(ra_module_load_builtin(&golden_module));
    g->run(g->argument);
    RA(ra_module_unload(golden_module));
}

#endif
