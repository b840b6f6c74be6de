/* What CUPTI itself costs: a client that enables the records and callbacks that PASTA's source enables, and throws
 * them away.
 *
 *     CUDA_INJECTION64_PATH=libcupti_client.so ./program
 *
 * CUPTI_CLIENT_LIB   the library; otherwise libcupti.so.13 is searched for
 * CUPTI_CLIENT_LOG   a file that gets the numbers of callbacks, records and samples at exit
 * CUPTI_CLIENT_SAMPLING=12  continuous PC sampling of every context, each 2^12 cycles, with PASTA's buffers
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>

#include "cupti_client.h"

enum { FLUSH_US = 500000 };

static unsigned long callbacks, records;

/* ---- PC samples ---- */

enum { CONTEXTS = 16, PCS = 4096 };

#define POINTER(name, symbol, arguments) static int32_t(*sampling_##name) arguments;
PASTA_CUPTI_SAMPLING_FUNCTIONS(POINTER)
#undef POINTER

static pthread_mutex_t sampling = PTHREAD_MUTEX_INITIALIZER;
static struct {
    uint64_t context, reasons;
    pasta_cupti_samples fetched, left;
} sampled[CONTEXTS];
static unsigned long samples;
static bool exiting;

static void load_sampling(void) {
    const char *path = getenv("CUPTI_CLIENT_LIB");
    void *library = dlopen(path ? path : "libcupti.so.13", RTLD_NOW);
#define RESOLVE(name, symbol, arguments)                 \
    *(void **)&sampling_##name = dlsym(library, symbol); \
    if (!sampling_##name) failed(symbol, -1);
    PASTA_CUPTI_SAMPLING_FUNCTIONS(RESOLVE)
#undef RESOLVE
}

static void reset(pasta_cupti_samples *data, uint64_t reasons) {
    data->count = data->remaining = 0;
    for (uint64_t i = 0; i < data->room; i++) data->pcs[i].stall_count = reasons;
}

static pasta_cupti_samples make_buffer(uint64_t reasons) {
    pasta_cupti_samples data = {.size = sizeof data, .room = PCS, .pcs = calloc(PCS, sizeof *data.pcs)};
    pasta_cupti_stall *stalls = calloc(PCS * reasons, sizeof *stalls);
    if (!stalls || !data.pcs) failed("memory of samples", -1);
    for (uint64_t i = 0; i < PCS; i++) data.pcs[i].size = sizeof *data.pcs, data.pcs[i].stalls = stalls + i * reasons;
    reset(&data, reasons);
    return data;
}

static void count(const pasta_cupti_samples *data) {
    for (uint64_t i = 0; i < data->count; i++)
        for (uint64_t stall = 0; stall < data->pcs[i].stall_count; stall++) samples += data->pcs[i].stalls[stall].samples;
}

static void fetch(int i) {
    pasta_cupti_get_samples get = {sizeof get, NULL, sampled[i].context, &sampled[i].fetched};
    do {
        reset(&sampled[i].fetched, sampled[i].reasons);
        if (sampling_get(&get) != 0) return;
        count(&sampled[i].fetched);
    } while (sampled[i].fetched.count || sampled[i].fetched.remaining);
}

static void begin_sampling(uint64_t context) {
    int i = 0;
    while (i < CONTEXTS - 1 && sampled[i].context) i++;
    pasta_cupti_sampling enable = {sizeof enable, NULL, context};
    pasta_cupti_reason_count ask = {sizeof ask, NULL, context, &sampled[i].reasons};
    CHECKED(sampling_enable, &enable);
    CHECKED(sampling_reason_count, &ask);
    sampled[i].fetched = make_buffer(sampled[i].reasons);
    sampled[i].left = make_buffer(sampled[i].reasons);
    pasta_cupti_sampling_attribute attributes[] = {
        {.type = PASTA_CUPTI_SAMPLING_MODE, .value = PASTA_CUPTI_SAMPLING_CONTINUOUS},
        {.type = PASTA_CUPTI_SAMPLING_PERIOD, .value = strtoull(getenv("CUPTI_CLIENT_SAMPLING"), NULL, 10)},
        {.type = PASTA_CUPTI_SAMPLING_SCRATCH, .value = 64 << 20},
        {.type = PASTA_CUPTI_SAMPLING_HARDWARE, .value = 512 << 20},
        {.type = PASTA_CUPTI_SAMPLING_SLEEP, .value = 10},
        {.type = PASTA_CUPTI_SAMPLING_DATA, .value = (uintptr_t)&sampled[i].left},
    };
    pasta_cupti_sampling_config config = {sizeof config, NULL, context, sizeof attributes / sizeof *attributes, attributes};
    CHECKED(sampling_configure, &config);
    sampled[i].context = context;
}

static void end_sampling(int i) {
    pasta_cupti_sampling disable = {sizeof disable, NULL, sampled[i].context};
    fetch(i);
    reset(&sampled[i].left, sampled[i].reasons);
    int32_t result = sampling_disable(&disable);
    if (result && !exiting) failed("sampling_disable", result); /* at exit the context may be gone */
    count(&sampled[i].left);
    sampled[i].context = 0;
}

/* `does`: fetch or end_sampling; of all contexts, or of one. */
static void with_contexts(void (*does)(int), uint64_t context) {
    pthread_mutex_lock(&sampling);
    for (int i = 0; i < CONTEXTS; i++)
        if (sampled[i].context && (!context || sampled[i].context == context)) does(i);
    pthread_mutex_unlock(&sampling);
}

static void on_resource(uint32_t id, const pasta_cupti_resource *r) {
    if (id == PASTA_CUPTI_CONTEXT_CREATED) {
        pthread_mutex_lock(&sampling);
        begin_sampling(r->context);
        pthread_mutex_unlock(&sampling);
    }
    if (id == PASTA_CUPTI_MODULE_UNLOADING) with_contexts(fetch, 0);
    if (id == PASTA_CUPTI_CONTEXT_DESTROYING) with_contexts(end_sampling, r->context);
}

/* ---- callbacks and records ---- */

static void on_callback(void *user, int32_t domain, uint32_t id, const void *data) {
    (void)user;
    __atomic_fetch_add(&callbacks, 1, __ATOMIC_RELAXED);
    if (sampling_get && domain == PASTA_CUPTI_RESOURCE) on_resource(id, data);
}

static void take_buffer(uint64_t context, uint32_t stream, uint8_t *buffer, uint64_t bytes, uint64_t valid) {
    (void)context, (void)stream, (void)bytes;
    void *record = NULL;
    while (valid && next_record(buffer, valid, &record) == 0) __atomic_fetch_add(&records, 1, __ATOMIC_RELAXED);
    free(buffer);
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void *flush_regularly(void *unused) {
    for (;;) {
        usleep(FLUSH_US);
        flush_all(0);
        if (sampling_get) with_contexts(fetch, 0);
    }
    return unused;
}

static void at_exit(void) {
    const char *log = getenv("CUPTI_CLIENT_LOG");
    flush_all(PASTA_CUPTI_FLUSH_FORCED);
    exiting = true;
    if (sampling_get) with_contexts(end_sampling, 0);
    FILE *file = log ? fopen(log, "w") : NULL;
    if (!file) return;
    fprintf(file, "callbacks %lu, samples %lu, records %lu\n", callbacks, samples, records);
    fclose(file);
}

int InitializeInjection(void) {
    static bool done;
    pthread_t thread;
    if (done) return 1;
    done = true;
    load_cupti(getenv("CUPTI_CLIENT_LIB"));
    if (getenv("CUPTI_CLIENT_SAMPLING")) load_sampling();
    enable_all(on_callback, take_buffer, now);
    if (pthread_create(&thread, NULL, flush_regularly, NULL) == 0) pthread_detach(thread);
    atexit(at_exit);
    return 1;
}
