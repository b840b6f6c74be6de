/* Launches: blocks over threads, warps of a block in turn, phase by phase. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "internal.h"

#define MAX_WARPS (RA_MAX_THREADS / RA_LANES)
#define POOL_WORTH 4096 /* threads of a launch from which on waking helpers pays */

/* Memory with which a thread executes the blocks of a cluster, one after the other in `shared`, `state`
 * and `local`; these grow to the kernels' needs. */
struct ra_executor {
    unsigned char *shared, *state, *local;
    size_t shared_bytes, state_bytes, local_bytes;
    uint32_t block_size[3]; /* of the tables below */
    uint32_t warps;
    uint32_t live[MAX_WARPS];                 /* lanes that exist */
    uint32_t left[RA_MAX_CLUSTER][MAX_WARPS]; /* lanes that have not ended */
    uint32_t thread[3][MAX_WARPS][RA_LANES];
};

static _Atomic uint64_t launches;

/* ---- functions for kernels ---- */

#define SPACE(name, number, space, text) [number] = RA_SPACE_##space,
static const uint16_t space_of[RA_KIND_COUNT] = {RA_KINDS(SPACE)};
#undef SPACE

/* Fills the fields other than addresses, one by one: the addresses are written once. */
static void describe(const ra_warp *w, uint32_t at, ra_kind kind, uint32_t flags, uint32_t bytes, uint32_t mask,
                     ra_access *access) {
    const ra_launch_data *launch = w->launch;
    access->size = sizeof *access;
    access->space = space_of[kind];
    access->flags = (uint16_t)flags;
    access->bytes = bytes;
    access->mask = mask;
    access->pc = launch->entry_pc + (uint64_t)at * RA_INSTRUCTION_BYTES;
    access->launch = launch->launch;
    memcpy(access->block, w->block, sizeof access->block);
    access->warp = w->warp;
    access->multiprocessor = (uint32_t)(w->block_index % RA_MULTIPROCESSORS);
    access->device = launch->device;
    access->function = launch->function;
    access->value = NULL;
    access->kind = kind;
    access->rows = 1;
    access->stride = 0;
    access->transfer = (uint64_t)bytes * (uint32_t)__builtin_popcount(mask);
    access->block_index = w->block_index;
    access->time = w->clock ? *w->clock : 0;
}

/* The device clock: an instruction that is reported takes a fixed time of the block's multiprocessor. */
static void tick(const ra_warp *w) {
    if (w->clock) *w->clock += RA_INSTRUCTION_NS;
}

enum { VALUE_BYTES = 16 }; /* of a lane, at most */

/* What global memory has at the lanes' addresses; false where they are not valid, and the kernel will fault. */
static bool find_values(const ra_warp *w, ra_kind kind, uint32_t flags, uint32_t bytes, uint32_t mask,
                        const uint64_t *address, unsigned char *found) {
    bool loads = kind == RA_KIND_GLOBAL || kind == RA_KIND_ASYNC_COPY;
    if (!loads || !(flags & RA_ACCESS_READ) || flags & RA_ACCESS_PREFETCH || bytes > VALUE_BYTES) return false;
    if (!ra_global_valid(w, mask, address, bytes)) return false;
    RA_EACH_LANE(lane)
        if (RA_ACTIVE(mask, lane)) memcpy(found + (size_t)lane * bytes, (const void *)(uintptr_t)address[lane], bytes);
    return true;
}

void ra_warp_report(const ra_warp *w, uint32_t at, ra_kind kind, uint32_t flags, uint32_t bytes, uint32_t mask,
                    const uint64_t *address, const void *value) {
    tick(w);
    if (!RA_ACTIVE(w->hook_kinds, kind)) return;
    ra_access access;
    describe(w, at, kind, flags, bytes, mask, &access);
    unsigned char found[RA_LANES * VALUE_BYTES];
    if (w->launch->hook_values && !value && find_values(w, kind, flags, bytes, mask, address, found)) value = found;
    access.value = value;
    if (!address)
        memset(access.address, 0, sizeof access.address);
    else if (mask == UINT32_MAX)
        memcpy(access.address, address, sizeof access.address);
    else
        RA_EACH_LANE(lane) access.address[lane] = RA_ACTIVE(mask, lane) ? address[lane] : 0;
    w->hook(w->hook_userdata, &access);
}

void ra_warp_transfer(const ra_warp *w, uint32_t at, const ra_access *what) {
    if (!w->hook) return;
    tick(w);
    if (!RA_ACTIVE(w->hook_kinds, what->kind)) return;
    ra_access access = *what;
    describe(w, at, (ra_kind)what->kind, what->flags, what->bytes, what->mask, &access);
    access.rows = what->rows;
    access.stride = what->stride;
    access.transfer = (uint64_t)what->rows * what->bytes;
    w->hook(w->hook_userdata, &access);
}

void ra_warp_stop(ra_warp *w, int error) {
    int none = RA_OK;
    __atomic_compare_exchange_n(w->fault, &none, error, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    w->live = 0;
}

void ra_warp_fault(ra_warp *w, uint32_t mask, const uint64_t *address, uint32_t bytes) {
    int error = RA_ILLEGAL_ADDRESS;
    RA_EACH_LANE(lane) if (RA_ACTIVE(mask, lane) && address[lane] % bytes) error = RA_MISALIGNED_ADDRESS;
    ra_warp_stop(w, error);
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

static uint32_t cluster_of(const ra_kernel *kernel) { return kernel->cluster ? kernel->cluster : 1; }

static size_t shared_step(const ra_launch_data *d) {
    return (d->shared_static + (size_t)d->shared_dynamic + 63) / 64 * 64;
}

static bool prepare(struct ra_executor *x, const struct ra_launch *launch) {
    if (!x) return false;
    lay_out(x, launch->data.block);
    size_t blocks = cluster_of(launch->kernel), warps = blocks * x->warps;
    return grow(&x->shared, &x->shared_bytes, blocks * shared_step(&launch->data)) &&
           grow(&x->state, &x->state_bytes, launch->kernel->state * warps) &&
           grow(&x->local, &x->local_bytes, (size_t)launch->kernel->local * RA_LANES * warps);
}

/* Runs one phase of a block; returns the warps of `running` that remain. */
static uint32_t run_phase(ra_warp *w, struct ra_executor *x, const ra_kernel *kernel, uint32_t running) {
    uint32_t *left = x->left[w->cluster_rank];
    for (w->warp = 0; w->warp < x->warps; w->warp++) {
        if (!RA_ACTIVE(running, w->warp)) continue;
        size_t slot = (size_t)w->cluster_rank * x->warps + w->warp;
        w->live = left[w->warp];
        for (int d = 0; d < 3; d++) w->thread[d] = x->thread[d][w->warp];
        w->state = x->state + kernel->state * slot;
        w->local = x->local + (size_t)kernel->local * RA_LANES * slot;
        if (__builtin_expect(w->hook != NULL, 0) && w->phase == 0)
            ra_warp_report(w, 0, RA_KIND_BLOCK_ENTER, 0, 0, w->live, NULL, NULL);
        bool continues = kernel->run(w);
        left[w->warp] = w->live;
        if (__builtin_expect(!w->live, 0)) { /* all ended, or faulted: then the launch is over */
            if (__atomic_load_n(w->fault, __ATOMIC_RELAXED) != RA_OK) return 0;
            continues = false;
        }
        if (continues) continue;
        running &= ~(1u << w->warp);
        if (__builtin_expect(w->hook != NULL, 0) && w->live)
            ra_warp_report(w, 0, RA_KIND_BLOCK_EXIT, 0, 0, w->live, NULL, NULL);
    }
    return running;
}

/* Fields that are equal for all warps of a launch. */
static ra_warp any_warp(struct ra_launch *launch, struct ra_executor *x) {
    return (ra_warp){.grid_size = launch->data.grid,
                     .block_size = launch->data.block,
                     .parameters = launch->parameters,
                     .shared_bytes = launch->data.shared_static + launch->data.shared_dynamic,
                     .local_bytes = launch->kernel->local,
                     .window = ra_window.base,
                     .window_bytes = ra_window.bytes,
                     .region_bytes = ra_settings.memory,
                     .hook_userdata = launch->data.hook_userdata,
                     .launch = &launch->data,
                     .fault = &launch->fault,
                     .hook_kinds = launch->data.hook_kinds,
                     .cluster_blocks = cluster_of(launch->kernel),
                     .cluster = x->shared,
                     .cluster_step = shared_step(&launch->data),
                     .touched = launch->touched,
                     .managed_words = launch->managed_words};
}

static void place(ra_warp *w, struct ra_launch *launch, uint64_t block, uint32_t rank) {
    w->block_index = block;
    w->clock = launch->data.serial ? &launch->clock[block % RA_MULTIPROCESSORS] : NULL;
    w->block[0] = (uint32_t)(block % w->grid_size[0]);
    w->block[1] = (uint32_t)(block / w->grid_size[0] % w->grid_size[1]);
    w->block[2] = (uint32_t)(block / w->grid_size[0] / w->grid_size[1]);
    w->cluster_rank = rank;
    w->shared = w->cluster + w->cluster_step * rank;
}

static void run_cluster(struct ra_launch *launch, struct ra_executor *x, ra_warp *w, uint64_t first) {
    const ra_kernel *kernel = launch->kernel;
    uint32_t blocks = w->cluster_blocks, running[RA_MAX_CLUSTER], any = 1;
    /* Zeroed, so that a result cannot depend on which thread ran the block. */
    if (w->shared_bytes) memset(x->shared, 0, w->cluster_step * blocks);
    if (kernel->state) memset(x->state, 0, (size_t)kernel->state * x->warps * blocks);
    if (kernel->local) memset(x->local, 0, (size_t)kernel->local * RA_LANES * x->warps * blocks);
    for (uint32_t i = 0; i < blocks; i++) {
        running[i] = x->warps == 32 ? UINT32_MAX : (1u << x->warps) - 1;
        memcpy(x->left[i], x->live, x->warps * sizeof *x->live);
    }
    for (w->phase = 0; any; w->phase++) {
        any = 0;
        for (uint32_t i = 0; i < blocks; i++) {
            if (blocks > 1 || w->phase == 0) place(w, launch, first + i, i);
            running[i] = run_phase(w, x, kernel, running[i]);
            any |= running[i];
        }
    }
}

static void run_blocks(struct ra_launch *launch, struct ra_executor *x) {
    int none = RA_OK;
    if (!prepare(x, launch)) {
        __atomic_compare_exchange_n(&launch->fault, &none, RA_OUT_OF_MEMORY, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED);
        return;
    }
    ra_warp w = any_warp(launch, x);
    while (__atomic_load_n(&launch->fault, __ATOMIC_RELAXED) == RA_OK) {
        uint64_t block = atomic_fetch_add(&launch->next_block, launch->chunk), end = block + launch->chunk;
        if (block >= launch->blocks) break;
        if (end > launch->blocks) end = launch->blocks;
        for (; block < end; block += w.cluster_blocks) {
            bool hooked = launch->data.hook && ra_tools_enter(launch->subscription);
            w.hook = hooked ? launch->data.hook : NULL;
            run_cluster(launch, x, &w, block);
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

/* Fewer helpers only cost time, so a thread that cannot be created is not an error. */
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
    for (int i = 0; i < RA_MULTIPROCESSORS; i++) launch->clock[i] = launch->data.start;
    launch->fault = atomic_load(&stream->context->error);
    launch->chunk = launch->blocks / ((uint64_t)ra_settings.threads * 16) + 1;
    if (launch->chunk > 64) launch->chunk = 64;
    launch->chunk = (launch->chunk + launch->data.cluster - 1) / launch->data.cluster * launch->data.cluster;
    if (launch->fault == RA_OK) {
        bool alone = launch->data.serial || launch->blocks < 2 || ra_settings.threads < 2 ||
                     (launch->blocks < POOL_WORTH && threads * launch->blocks < POOL_WORTH);
        ra_managed_begin(launch);
        (alone ? run_blocks : run_with_help)(launch, executor);
        ra_managed_end(launch);
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
    d->hook_kinds = UINT32_MAX;
    bool wanted = ra_tools_want(RA_DOMAIN_LAUNCH);
    if (!wanted) return ra_stream_queue(stream, op);
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
    RA_REQUIRE(grid[0] % cluster_of(kernel) == 0, RA_INVALID_VALUE);
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
                                    .registers = kernel->registers,
                                    .cluster = cluster_of(kernel)};
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
