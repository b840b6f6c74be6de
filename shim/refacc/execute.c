/* Launches: blocks over threads, warps of a block in turn, phase by phase. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "internal.h"

#define MAX_WARPS (RA_MAX_THREADS / RA_LANES)
#define POOL_WORTH 4096 /* threads in a launch below which waking helpers costs more than it brings */

/* What one thread needs to execute blocks; its buffers grow to what kernels ask for. */
struct ra_executor {
    unsigned char *shared, *state, *local;
    size_t shared_bytes, state_bytes, local_bytes;
    uint32_t block_size[3]; /* that the tables below are for */
    uint32_t warps;
    uint32_t live[MAX_WARPS];
    uint32_t thread[3][MAX_WARPS][RA_LANES];
};

static _Atomic uint64_t launches;

/* ---- what kernels call ---- */

void ra_warp_report(const ra_warp *w, uint32_t at, ra_space space, uint32_t flags, uint32_t bytes, uint32_t mask,
                    const uint64_t *address, const void *value) {
    const ra_launch_data *launch = w->launch;
    uint64_t block = ((uint64_t)w->block[2] * w->grid_size[1] + w->block[1]) * w->grid_size[0] + w->block[0];
    ra_access access = {.size = sizeof access,
                        .space = (uint16_t)space,
                        .flags = (uint16_t)flags,
                        .bytes = bytes,
                        .mask = mask,
                        .pc = launch->entry_pc + (uint64_t)at * RA_INSTRUCTION_BYTES,
                        .launch = launch->launch,
                        .block = {w->block[0], w->block[1], w->block[2]},
                        .warp = w->warp,
                        .multiprocessor = (uint32_t)(block % RA_MULTIPROCESSORS),
                        .device = launch->device,
                        .function = launch->function,
                        .value = value};
    if (address) RA_EACH_LANE(lane) access.address[lane] = RA_ACTIVE(mask, lane) ? address[lane] : 0;
    w->hook(w->hook_userdata, &access);
}

void ra_warp_fault(ra_warp *w, uint32_t mask, const uint64_t *address, uint32_t bytes) {
    int error = RA_ILLEGAL_ADDRESS, none = RA_OK;
    RA_EACH_LANE(lane) if (RA_ACTIVE(mask, lane) && address[lane] % bytes) error = RA_MISALIGNED_ADDRESS;
    __atomic_compare_exchange_n(w->fault, &none, error, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    w->live = 0;
}

/* ---- blocks ---- */

struct ra_executor *ra_executor_new(void) { return calloc(1, sizeof(struct ra_executor)); }

void ra_executor_delete(struct ra_executor *x) {
    if (!x) return;
    free(x->shared);
    free(x->state);
    free(x->local);
    free(x);
}

static bool grow(unsigned char **buffer, size_t *have, size_t want) {
    if (*have >= want) return true;
    free(*buffer);
    *buffer = aligned_alloc(64, (want + 63) / 64 * 64);
    *have = *buffer ? want : 0;
    return *buffer != NULL;
}

static void lay_out(struct ra_executor *x, const uint32_t size[3]) {
    if (!memcmp(x->block_size, size, sizeof x->block_size)) return;
    memcpy(x->block_size, size, sizeof x->block_size);
    uint32_t threads = size[0] * size[1] * size[2];
    x->warps = (threads + RA_LANES - 1) / RA_LANES;
    memset(x->live, 0, sizeof x->live);
    for (uint32_t t = 0; t < x->warps * RA_LANES; t++) {
        uint32_t warp = t / RA_LANES, lane = t % RA_LANES;
        x->live[warp] |= (uint32_t)(t < threads) << lane;
        x->thread[0][warp][lane] = t % size[0];
        x->thread[1][warp][lane] = t / size[0] % size[1];
        x->thread[2][warp][lane] = t / size[0] / size[1];
    }
}

static bool prepare(struct ra_executor *x, const struct ra_launch *launch) {
    if (!x) return false;
    lay_out(x, launch->data.block);
    return grow(&x->shared, &x->shared_bytes, launch->data.shared_static + (size_t)launch->data.shared_dynamic) &&
           grow(&x->state, &x->state_bytes, (size_t)launch->kernel->state * x->warps) &&
           grow(&x->local, &x->local_bytes, (size_t)launch->kernel->local * RA_LANES * x->warps);
}

static void run_block(struct ra_launch *launch, struct ra_executor *x, uint64_t block, ra_access_hook hook) {
    const ra_kernel *kernel = launch->kernel;
    const uint32_t *grid = launch->data.grid;
    ra_warp w = {.block = {(uint32_t)(block % grid[0]), (uint32_t)(block / grid[0] % grid[1]),
                           (uint32_t)(block / grid[0] / grid[1])},
                 .grid_size = grid,
                 .block_size = launch->data.block,
                 .parameters = launch->parameters,
                 .shared = x->shared,
                 .shared_bytes = launch->data.shared_static + launch->data.shared_dynamic,
                 .local_bytes = kernel->local,
                 .window = ra_window.base,
                 .window_bytes = ra_window.bytes,
                 .region_bytes = ra_settings.memory,
                 .hook = hook,
                 .hook_userdata = launch->data.hook_userdata,
                 .launch = &launch->data,
                 .fault = &launch->fault};
    /* Zeroed, so that a result cannot depend on which thread ran the block. */
    if (w.shared_bytes) memset(x->shared, 0, w.shared_bytes);
    if (kernel->state) memset(x->state, 0, (size_t)kernel->state * x->warps);
    if (kernel->local) memset(x->local, 0, (size_t)kernel->local * RA_LANES * x->warps);
    uint32_t running = x->warps == 32 ? UINT32_MAX : (1u << x->warps) - 1;
    for (w.phase = 0; running; w.phase++) {
        for (w.warp = 0; w.warp < x->warps; w.warp++) {
            if (!RA_ACTIVE(running, w.warp)) continue;
            w.live = x->live[w.warp];
            for (int d = 0; d < 3; d++) w.thread[d] = x->thread[d][w.warp];
            w.state = x->state + (size_t)kernel->state * w.warp;
            w.local = x->local + (size_t)kernel->local * RA_LANES * w.warp;
            if (!kernel->run(&w)) running &= ~(1u << w.warp);
            if (__builtin_expect(!w.live, 0)) return; /* faulted: the launch is over */
        }
    }
}

static void run_blocks(struct ra_launch *launch, struct ra_executor *x) {
    int none = RA_OK;
    if (!prepare(x, launch))
        __atomic_compare_exchange_n(&launch->fault, &none, RA_OUT_OF_MEMORY, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED);
    while (__atomic_load_n(&launch->fault, __ATOMIC_RELAXED) == RA_OK) {
        uint64_t block = atomic_fetch_add(&launch->next_block, launch->chunk), end = block + launch->chunk;
        if (block >= launch->blocks) break;
        if (end > launch->blocks) end = launch->blocks;
        for (; block < end; block++) {
            bool hooked = launch->data.hook && ra_tools_enter(launch->subscription);
            run_block(launch, x, block, hooked ? launch->data.hook : NULL);
            if (hooked) ra_tools_leave();
        }
    }
}

/* ---- the pool: threads that help streams' workers with large launches ---- */

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t work;
    pthread_cond_t done;
    struct ra_launch *jobs;
    pthread_t *threads;
    uint32_t count;
    bool stop;
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};

static struct ra_launch *job_with_work(void) { /* pool.mutex held */
    for (struct ra_launch *job = pool.jobs; job; job = job->next_job)
        if (atomic_load(&job->next_block) < job->blocks &&
            __atomic_load_n(&job->fault, __ATOMIC_RELAXED) == RA_OK)
            return job;
    return NULL;
}

static void *helper(void *argument) {
    (void)argument;
    struct ra_executor *executor = ra_executor_new();
    pthread_mutex_lock(&pool.mutex);
    while (!pool.stop) {
        struct ra_launch *job = job_with_work();
        if (!job) {
            pthread_cond_wait(&pool.work, &pool.mutex);
            continue;
        }
        job->helpers++;
        pthread_mutex_unlock(&pool.mutex);
        run_blocks(job, executor);
        pthread_mutex_lock(&pool.mutex);
        if (--job->helpers == 0) pthread_cond_broadcast(&pool.done);
    }
    pthread_mutex_unlock(&pool.mutex);
    ra_executor_delete(executor);
    return NULL;
}

/* Fewer helpers than wished for only cost time, so a thread that cannot be had is no error. */
static void pool_start(void) { /* pool.mutex held */
    if (pool.threads || ra_settings.threads < 2) return;
    pool.threads = calloc(ra_settings.threads - 1, sizeof *pool.threads);
    while (pool.threads && pool.count < ra_settings.threads - 1 &&
           ra_thread_start(&pool.threads[pool.count], helper, NULL) == RA_OK)
        pool.count++;
}

void ra_pool_stop(void) {
    pthread_mutex_lock(&pool.mutex);
    pool.stop = true;
    pthread_cond_broadcast(&pool.work);
    pthread_mutex_unlock(&pool.mutex);
    for (uint32_t i = 0; i < pool.count; i++) pthread_join(pool.threads[i], NULL);
    free(pool.threads);
    pool.threads = NULL;
    pool.count = 0;
    pool.stop = false;
}

void ra_pool_forget(void) {
    pthread_mutex_init(&pool.mutex, NULL);
    pthread_cond_init(&pool.work, NULL);
    pthread_cond_init(&pool.done, NULL);
    pool.jobs = NULL;
    pool.threads = NULL;
    pool.count = 0;
    pool.stop = false;
    atomic_store(&launches, 0);
}

static void run_with_help(struct ra_launch *launch, struct ra_executor *executor) {
    pthread_mutex_lock(&pool.mutex);
    pool_start();
    launch->next_job = pool.jobs;
    pool.jobs = launch;
    pthread_cond_broadcast(&pool.work);
    pthread_mutex_unlock(&pool.mutex);
    run_blocks(launch, executor);
    pthread_mutex_lock(&pool.mutex);
    struct ra_launch **link = &pool.jobs;
    while (*link != launch) link = &(*link)->next_job;
    *link = launch->next_job;
    while (launch->helpers) pthread_cond_wait(&pool.done, &pool.mutex);
    pthread_mutex_unlock(&pool.mutex);
}

/* ---- launches ---- */

static void launch_run(struct ra_op *op, struct ra_stream_s *stream, struct ra_executor *executor) {
    struct ra_launch *launch = (struct ra_launch *)op;
    uint64_t threads = (uint64_t)launch->data.block[0] * launch->data.block[1] * launch->data.block[2];
    int none = RA_OK;
    launch->data.start = ra_now();
    launch->fault = atomic_load(&stream->context->error);
    launch->chunk = launch->blocks / ((uint64_t)ra_settings.threads * 16) + 1;
    if (launch->chunk > 64) launch->chunk = 64;
    if (launch->fault == RA_OK) {
        bool alone = launch->data.serial || launch->blocks < 2 || ra_settings.threads < 2 ||
                     (launch->blocks < POOL_WORTH && threads * launch->blocks < POOL_WORTH);
        (alone ? run_blocks : run_with_help)(launch, executor);
        if (launch->fault != RA_OK) atomic_compare_exchange_strong(&stream->context->error, &none, launch->fault);
    }
    launch->data.end = ra_now();
    launch->data.error = launch->fault;
    if (ra_tools_want(RA_DOMAIN_LAUNCH)) ra_tools_call(RA_DOMAIN_LAUNCH, RA_CALLBACK_LAUNCH_COMPLETE, &launch->data);
}

static int launch_submit(struct ra_op *op, struct ra_stream_s *stream, bool asynchronous, uint64_t graph,
                         uint64_t node) {
    (void)asynchronous;
    struct ra_launch *launch = (struct ra_launch *)op;
    ra_launch_data *d = &launch->data;
    if (launch->context != stream->context) {
        free(op);
        return RA_INVALID_HANDLE;
    }
    d->device = stream->context->device;
    d->context = (uintptr_t)stream->context;
    d->stream = ra_stream_handle(stream);
    d->launch = 1 + atomic_fetch_add(&launches, 1);
    d->graph = graph;
    d->node = node;
    launch->subscription = ra_tools_hook(&d->hook, &d->hook_userdata);
    bool told = ra_tools_want(RA_DOMAIN_LAUNCH);
    if (!told) return ra_stream_queue(stream, op);
    ra_tools_call(RA_DOMAIN_LAUNCH, RA_CALLBACK_LAUNCH_BEGIN, d);
    ra_launch_data end = *d; /* the worker frees the op */
    end.error = ra_stream_queue(stream, op);
    ra_tools_call(RA_DOMAIN_LAUNCH, RA_CALLBACK_LAUNCH_END, &end);
    return end.error;
}

static int shape(const uint32_t grid[3], const uint32_t block[3], uint64_t shared) {
    RA_REQUIRE(grid && block, RA_INVALID_VALUE);
    for (int d = 0; d < 3; d++) {
        RA_REQUIRE(grid[d] && block[d], RA_INVALID_VALUE);
        RA_REQUIRE(grid[d] <= (d ? UINT16_MAX : INT32_MAX), RA_INVALID_VALUE);
        RA_REQUIRE(block[d] <= RA_MAX_THREADS, RA_TOO_MANY_RESOURCES);
    }
    RA_REQUIRE((uint64_t)block[0] * block[1] * block[2] <= RA_MAX_THREADS, RA_TOO_MANY_RESOURCES);
    RA_REQUIRE(shared <= RA_MAX_SHARED, RA_TOO_MANY_RESOURCES);
    return RA_OK;
}

int ra_launch_make(struct ra_op **op, ra_function function, const uint32_t grid[3], const uint32_t block[3],
                   uint32_t shared_dynamic, void *const *parameters) {
    RA_REQUIRE(ra_function_is(function), RA_INVALID_HANDLE);
    const ra_kernel *kernel = function->kernel;
    RA_TRY(shape(grid, block, (uint64_t)kernel->shared_static + shared_dynamic));
    RA_REQUIRE(parameters || !kernel->parameters, RA_INVALID_VALUE);
    for (uint32_t i = 0; i < kernel->parameters; i++) RA_REQUIRE(parameters[i], RA_INVALID_VALUE);
    struct ra_launch *launch = calloc(1, sizeof *launch);
    RA_REQUIRE(launch, RA_OUT_OF_MEMORY);
    launch->op.bytes = sizeof *launch;
    launch->op.submit = launch_submit;
    launch->op.run = launch_run;
    launch->kernel = kernel;
    launch->context = function->module->context;
    for (uint32_t i = 0; i < kernel->parameters; i++)
        memcpy(&launch->parameters[i], parameters[i], kernel->parameter_bytes[i]);
    launch->blocks = (uint64_t)grid[0] * grid[1] * grid[2];
    launch->data = (ra_launch_data){.size = sizeof launch->data,
                                    .function = (uintptr_t)function,
                                    .module = (uintptr_t)function->module,
                                    .symbol = kernel->symbol,
                                    .entry_pc = function->entry_pc,
                                    .grid = {grid[0], grid[1], grid[2]},
                                    .block = {block[0], block[1], block[2]},
                                    .shared_static = kernel->shared_static,
                                    .shared_dynamic = shared_dynamic,
                                    .local = kernel->local,
                                    .registers = kernel->registers};
    *op = &launch->op;
    return RA_OK;
}

int ra_launch(ra_function function, const uint32_t grid[3], const uint32_t block[3], uint32_t shared_dynamic,
              ra_stream handle, void *const *parameters) {
    struct ra_stream_s *stream;
    struct ra_op *op;
    RA_TRY(ra_stream_get(handle, &stream));
    RA_TRY(ra_launch_make(&op, function, grid, block, shared_dynamic, parameters));
    return ra_stream_give(stream, op, true);
}
