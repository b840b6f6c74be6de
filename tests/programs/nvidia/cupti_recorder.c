/* Records what CUPTI delivers to a client that enables what PASTA's source enables (cupti_stream.h).
 *
 *     CUPTI_RECORDER_LIB=libcupti.so.13 CUPTI_RECORDER_FILE=vadd.stream CUDA_INJECTION64_PATH=libcupti_recorder.so ./vadd
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "../../../bench/c/cupti_client.h"
#include "cupti_stream.h"

enum { ROOM = 8 << 20 };

static FILE *file;
static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;
static uint8_t entry[ROOM];
static uint32_t used;

static void put(const void *bytes, uint32_t count) {
    if (used + count > ROOM) abort();
    memcpy(entry + used, bytes, count);
    used += count;
}

static void put_blob(uint32_t parent, uint32_t offset, const void *bytes, uint32_t count) {
    if (!bytes || !count) return;
    stream_blob blob = {parent, offset, count, 0};
    put(&blob, sizeof blob);
    put(bytes, count);
}

static void finish(uint32_t type) {
    static uint32_t threads;
    static _Thread_local uint32_t mine; /* plus one */
    if (!mine) mine = ++threads;
    stream_entry head = {type, used, mine - 1, 0};
    fwrite(&head, sizeof head, 1, file);
    fwrite(entry, used, 1, file);
    used = 0;
}

static void number(uint64_t kind, uint64_t handle, uint64_t value) {
    stream_number n = {kind, handle, value};
    put(&n, sizeof n);
    finish(STREAM_NUMBER);
}

/* ---- calls ---- */

static const void *pointed(uint64_t address) { return (const void *)(uintptr_t)address; }

static void put_pointed(uint32_t id, const uint64_t *a, bool ends) {
    switch (id) {
    case PASTA_CUPTI_cuLaunchKernelEx:
    case PASTA_CUPTI_cuLaunchKernelEx_ptsz: {
        const pasta_cupti_config *config = pointed(a[0]);
        put_blob(0, 0, config, sizeof *config);
        if (config && config->count)
            put_blob(1, offsetof(pasta_cupti_config, attributes), config->attributes,
                     config->count * (uint32_t)sizeof *config->attributes);
        return;
    }
    case PASTA_CUPTI_cuMemcpy2D_v2:
    case PASTA_CUPTI_cuMemcpy2D_v2_ptds:
    case PASTA_CUPTI_cuMemcpy2DUnaligned_v2:
    case PASTA_CUPTI_cuMemcpy2DUnaligned_v2_ptds:
    case PASTA_CUPTI_cuMemcpy2DAsync_v2:
    case PASTA_CUPTI_cuMemcpy2DAsync_v2_ptsz: put_blob(0, 0, pointed(a[0]), sizeof(pasta_cupti_copy_2d)); return;
    case PASTA_CUPTI_cuMemcpy3D_v2:
    case PASTA_CUPTI_cuMemcpy3D_v2_ptds:
    case PASTA_CUPTI_cuMemcpy3DAsync_v2:
    case PASTA_CUPTI_cuMemcpy3DAsync_v2_ptsz:
    case PASTA_CUPTI_cuMemcpy3DPeer:
    case PASTA_CUPTI_cuMemcpy3DPeer_ptds:
    case PASTA_CUPTI_cuMemcpy3DPeerAsync:
    case PASTA_CUPTI_cuMemcpy3DPeerAsync_ptsz: put_blob(0, 0, pointed(a[0]), sizeof(pasta_cupti_copy_3d)); return;
    case PASTA_CUPTI_cuMemAllocPitch_v2:
        if (ends) put_blob(0, 8, pointed(a[1]), 8);
        /* fall through */
    case PASTA_CUPTI_cuMemAlloc_v2:
    case PASTA_CUPTI_cuMemAllocManaged:
    case PASTA_CUPTI_cuMemAllocHost_v2:
    case PASTA_CUPTI_cuMemHostAlloc:
    case PASTA_CUPTI_cuMemAllocAsync:
    case PASTA_CUPTI_cuMemAllocAsync_ptsz:
    case PASTA_CUPTI_cuMemAllocFromPoolAsync:
    case PASTA_CUPTI_cuMemAllocFromPoolAsync_ptsz:
    case PASTA_CUPTI_cuMemAddressReserve:
    case PASTA_CUPTI_cuArrayCreate_v2:
    case PASTA_CUPTI_cuArray3DCreate_v2:
    case PASTA_CUPTI_cuIpcOpenMemHandle:
    case PASTA_CUPTI_cuIpcOpenMemHandle_v2:
    case PASTA_CUPTI_cuEventCreate:
        if (ends) put_blob(0, 0, pointed(a[0]), 8);
        return;
    case PASTA_CUPTI_cuExternalMemoryGetMappedBuffer:
        if (ends) put_blob(0, 0, pointed(a[0]), 8);
        put_blob(0, 16, pointed(a[2]), 16);
        return;
    default: return;
    }
}

static void on_call(int32_t domain, uint32_t id, const pasta_cupti_call *c) {
    bool ends = c->api.site == PASTA_NV_API_EXIT;
    const char *symbol = c->api.symbol;
    stream_call call = {.domain = domain, .id = id, .site = c->api.site, .result = ends ? *c->api.result : 0,
                        .correlation = c->correlation, .context_id = c->context_id, .context = c->api.context,
                        .symbol_bytes = symbol ? (uint32_t)strlen(symbol) + 1 : 0};
    /* the arguments lie on the caller's stack, which is larger */
    if (c->api.arguments && domain == PASTA_CUPTI_DRIVER) memcpy(call.arguments, c->api.arguments, sizeof call.arguments);
    put(&call, sizeof call);
    if (symbol) put(symbol, call.symbol_bytes);
    if (domain == PASTA_CUPTI_DRIVER) put_pointed(id, (const uint64_t *)(const void *)call.arguments, ends);
    finish(STREAM_CALL);
}

/* ---- resources, and the numbers of handles ---- */

static void on_resource(uint32_t id, const pasta_cupti_resource *r) {
    stream_resource s = {.id = id, .context = r->context, .stream = r->stream};
    const pasta_cupti_module *m = r->more;
    const pasta_cupti_graph *g = r->more;
    uint32_t small = 0;
    uint64_t large = 0;
    bool is_module = id == PASTA_CUPTI_MODULE_LOADED || id == PASTA_CUPTI_MODULE_UNLOADING;
    if (id == PASTA_CUPTI_CONTEXT_CREATED) {
        if (device_of(r->context, &small) == 0) number(NUMBER_OF_DEVICE, r->context, small);
        if (context_id(r->context, &small) == 0) number(NUMBER_OF_CONTEXT, r->context, small);
    }
    if (id == PASTA_CUPTI_STREAM_CREATED && stream_id(r->context, r->stream, 0, &small) == 0)
        number(NUMBER_OF_STREAM, r->stream, small);
    if (is_module && m) s.module = m->id, s.image_bytes = m->bytes < 4096 ? (uint32_t)m->bytes : 4096; /* enough to tell them apart */
    if (id == PASTA_CUPTI_NODE_CREATED || id == PASTA_CUPTI_NODE_CLONED) {
        s.node = g->node;
        s.original_node = g->original_node;
        if (node_id(g->node, &large) == 0) number(NUMBER_OF_NODE, g->node, large);
    }
    put(&s, sizeof s);
    if (is_module && m && m->cubin) put(m->cubin, s.image_bytes);
    finish(STREAM_RESOURCE);
}

static void on_callback(void *user, int32_t domain, uint32_t id, const void *data) {
    (void)user;
    pthread_mutex_lock(&writing);
    if (domain == PASTA_CUPTI_RESOURCE) on_resource(id, data);
    else on_call(domain, id, data);
    pthread_mutex_unlock(&writing);
}

/* ---- buffers ---- */

static void take_buffer(uint64_t context, uint32_t stream, uint8_t *buffer, uint64_t bytes, uint64_t valid) {
    (void)context, (void)stream, (void)bytes;
    void *record = NULL;
    pthread_mutex_lock(&writing);
    uint32_t size = (uint32_t)valid;
    put(&size, sizeof size);
    put(&size, sizeof size); /* aligned to 8 */
    put(buffer, size);
    while (valid && next_record(buffer, valid, &record) == 0) {
        const pasta_cupti_kernel *k = record;
        const pasta_cupti_device *d = record;
        uint32_t at = 8 + (uint32_t)((uint8_t *)record - buffer);
        if (k->kind == PASTA_CUPTI_KERNEL && k->name)
            put_blob(0, at + (uint32_t)offsetof(pasta_cupti_kernel, name), k->name, (uint32_t)strlen(k->name) + 1);
        if (d->kind == PASTA_CUPTI_DEVICE && d->name)
            put_blob(0, at + (uint32_t)offsetof(pasta_cupti_device, name), d->name, (uint32_t)strlen(d->name) + 1);
    }
    finish(STREAM_BUFFER);
    pthread_mutex_unlock(&writing);
    free(buffer);
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void at_exit(void) {
    flush_all(PASTA_CUPTI_FLUSH_FORCED);
    pthread_mutex_lock(&writing);
    fclose(file);
    file = fopen("/dev/null", "w");
    pthread_mutex_unlock(&writing);
}

int InitializeInjection(void) {
    static bool done;
    const char *path = getenv("CUPTI_RECORDER_FILE");
    uint32_t version = 0;
    if (done) return 1;
    done = true;
    if (!path || !(file = fopen(path, "w"))) failed("CUPTI_RECORDER_FILE", -1);
    load_cupti(getenv("CUPTI_RECORDER_LIB"));
    CHECKED(get_version, &version);
    put(&version, sizeof version);
    finish(STREAM_VERSION);
    enable_all(on_callback, take_buffer, now);
    atexit(at_exit);
    return 1;
}
