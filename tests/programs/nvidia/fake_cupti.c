/* Replaces libcupti.so.13: our own code with the functions that the source calls (with fake_cupti_sampling.c).
 *
 * FAKE_CUPTI_API=24|130000|130500   the version that it is; a record is as long as that version's
 * FAKE_CUPTI_FAIL=NAME=RESULT       the function cupti + NAME gives RESULT
 * FAKE_CUPTI_DROP=N                 N records are lost at the first buffer
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../../shim/backends/nvidia/cupti_abi.h"
#include "cupti_stream.h"

#define EXPORT __attribute__((visibility("default")))

enum { INVALID = 1, LAST = 12, OTHER = 39, DOMAINS = 7, IDS = 1024, KINDS = 64, STREAMS = 8 };

static pasta_cupti_callback *callback;
static void *callback_user;
static bool enabled[DOMAINS][IDS], kinds[KINDS], latency;
static pasta_cupti_request *request;
static pasta_cupti_complete *complete;
static uint64_t (*now)(void);
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t *buffer;
static uint64_t room, used, dropped;

static uint32_t api(void) {
    const char *version = getenv("FAKE_CUPTI_API");
    return version ? (uint32_t)atoi(version) : 130500;
}

int32_t fake_cupti_planned(const char *function);
int32_t fake_cupti_planned(const char *function) {
    const char *plan = getenv("FAKE_CUPTI_FAIL"), *equals = plan ? strchr(plan, '=') : NULL;
    if (!equals || strlen(function) != (size_t)(equals - plan) || strncmp(plan, function, strlen(function))) return 0;
    return atoi(equals + 1);
}
#define PLANNED(function) \
    if (fake_cupti_planned(function)) return fake_cupti_planned(function);

static size_t size_of(uint32_t kind) {
    uint32_t version = api();
    switch (kind) {
    case PASTA_CUPTI_KERNEL: return version < 130000 ? 208 : version < 130100 ? 216 : version < 130300 ? 224 : version < 130400 ? 232 : 248;
    case PASTA_CUPTI_COPY: return version < 25 ? 88 : version < 130400 ? 96 : 112;
    case PASTA_CUPTI_PEER_COPY: return 96;
    case PASTA_CUPTI_SET: return version < 130400 ? 88 : 104;
    case PASTA_CUPTI_DEVICE: return version < 130200 ? 184 : 192;
    case PASTA_CUPTI_OVERHEAD: return 56;
    case PASTA_CUPTI_UVM: return version < 28 ? 64 : 104;
    default: return 0;
    }
}

EXPORT int32_t cuptiGetVersion(uint32_t *version) {
    PLANNED("GetVersion")
    *version = api();
    return 0;
}

EXPORT int32_t cuptiGetResultString(int32_t result, const char **text) {
    *text = result == OTHER ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED" : "CUPTI_ERROR_SOME";
    return 0;
}

EXPORT int32_t cuptiSubscribe(void **subscriber, pasta_cupti_callback *function, void *user) {
    PLANNED("Subscribe")
    if (callback) return OTHER;
    callback = function;
    callback_user = user;
    *subscriber = &callback;
    return 0;
}

EXPORT int32_t cuptiUnsubscribe(void *subscriber) {
    if (subscriber != (void *)&callback || !callback) return INVALID;
    callback = NULL;
    memset(enabled, 0, sizeof enabled);
    return 0;
}

static uint32_t last_call(void) { return api() < 130000 ? 762 : 876; }

EXPORT int32_t cuptiEnableCallback(uint32_t on, void *subscriber, int32_t domain, uint32_t id) {
    PLANNED("EnableCallback")
    if (subscriber != (void *)&callback || domain <= 0 || domain >= DOMAINS || !id || id >= IDS) return INVALID;
    if (domain == PASTA_CUPTI_DRIVER && id > last_call()) return INVALID;
    enabled[domain][id] = on;
    return 0;
}

EXPORT int32_t cuptiEnableDomain(uint32_t on, void *subscriber, int32_t domain) {
    if (subscriber != (void *)&callback || domain <= 0 || domain >= DOMAINS) return INVALID;
    for (uint32_t id = 1; id < IDS; id++) enabled[domain][id] = on;
    return 0;
}

EXPORT int32_t cuptiActivityRegisterCallbacks(pasta_cupti_request *requests, pasta_cupti_complete *completes) {
    PLANNED("ActivityRegisterCallbacks")
    request = requests;
    complete = completes;
    return 0;
}

EXPORT int32_t cuptiActivityRegisterTimestampCallback(uint64_t (*function)(void)) {
    PLANNED("ActivityRegisterTimestampCallback")
    now = function;
    return 0;
}

EXPORT uint64_t fake_cupti_now(void) {
    struct timespec t;
    if (now) return now();
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

EXPORT int32_t cuptiGetTimestamp(uint64_t *time) {
    *time = fake_cupti_now();
    return 0;
}

/* ---- buffers ---- */

static void *hand_over(void *unused) {
    (void)unused;
    complete(0, 0, buffer, room, used);
    return NULL;
}

static void finish_buffer(void) { /* on a thread of its own, as CUPTI does */
    pthread_t thread;
    if (!buffer || !used) return;
    const char *drop = getenv("FAKE_CUPTI_DROP");
    static bool lost;
    if (drop && !lost) dropped = (uint64_t)atoi(drop), lost = true;
    if (pthread_create(&thread, NULL, hand_over, NULL)) abort();
    pthread_join(thread, NULL);
    buffer = NULL;
    used = room = 0;
}

static bool has_context, delivers_managed;

EXPORT bool fake_cupti_record(const void *record) {
    uint32_t kind = *(const uint32_t *)record;
    if (!kinds[kind] || !request || (kind == PASTA_CUPTI_UVM && !delivers_managed)) return false;
    size_t size = size_of(kind);
    pthread_mutex_lock(&lock);
    uint64_t max_records = 0;
    if (buffer && room - used < size) finish_buffer();
    if (!buffer) request(&buffer, &room, &max_records);
    if (buffer && room >= size) {
        memset(buffer + used, 0, size);
        memcpy(buffer + used, record, size);
        used += size;
    } else {
        dropped++;
    }
    pthread_mutex_unlock(&lock);
    return true;
}

/* Whether records of a kind are enabled. */
bool fake_cupti_records(int32_t kind) { return kinds[kind]; }

EXPORT bool fake_cupti_latency(void) { return latency; }

EXPORT int32_t cuptiActivityEnable(int32_t kind) {
    PLANNED("ActivityEnable")
    if (kind == PASTA_CUPTI_KERNEL) PLANNED("ActivityEnableKernel")
    if (kind == PASTA_CUPTI_OVERHEAD) PLANNED("ActivityEnableOverhead")
    kinds[kind] = true;
    if (kind != PASTA_CUPTI_DEVICE) return 0;
    union {
        pasta_cupti_device d;
        uint8_t whole[192];
    } device = {{.kind = PASTA_CUPTI_DEVICE, .bandwidth = 4800000000, .memory = UINT64_C(150) << 30,
                            .l2 = 50 << 20, .warp = 32, .clock = 1980000, .multiprocessors = 132, .warps = 64,
                            .blocks = 32, .shared = 228 << 10, .registers = 65536, .shared_per_block = 48 << 10,
                            .major = 9, .minor = 0, .id = 0, .uuid = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
                            .name = "A Device", .visible = 1}};
    fake_cupti_record(&device);
    device.d.id = 1;
    device.d.visible = 0; /* CUDA_VISIBLE_DEVICES hides it */
    fake_cupti_record(&device);
    return 0;
}

EXPORT int32_t cuptiActivityDisable(int32_t kind) {
    PLANNED("ActivityDisable")
    kinds[kind] = false;
    return 0;
}

EXPORT int32_t cuptiActivityEnableLatencyTimestamps(uint8_t on) {
    PLANNED("ActivityEnableLatencyTimestamps")
    latency = on;
    return 0;
}

EXPORT int32_t cuptiActivityConfigureUnifiedMemoryCounter(pasta_cupti_uvm_config *configs, uint32_t count) {
    PLANNED("ActivityConfigureUnifiedMemoryCounter")
    if (!configs || !count) return INVALID;
    delivers_managed = has_context; /* too early it changes nothing, without an error */
    return 0;
}

EXPORT int32_t cuptiActivityFlushAll(uint32_t flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    finish_buffer();
    pthread_mutex_unlock(&lock);
    return 0;
}

EXPORT int32_t cuptiActivityGetNextRecord(uint8_t *from, uint64_t valid, void **record) {
    uint8_t *next = *record ? (uint8_t *)*record + size_of(*(const uint32_t *)*record) : from;
    if (next >= from + valid) return LAST;
    *record = next;
    return 0;
}

EXPORT int32_t cuptiActivityGetNumDroppedRecords(uint64_t context, uint32_t stream, uint64_t *count) {
    (void)context, (void)stream;
    *count = dropped;
    dropped = 0;
    return 0;
}

/* ---- ids: of a handle those of a recording, else the handle's own low bits ---- */

enum { DEFINED = 1 << 16 };
static struct {
    uint64_t kind, handle, number;
} defined[DEFINED];
static uint32_t defined_count;

EXPORT void fake_cupti_define(uint64_t kind, uint64_t handle, uint64_t number) {
    if (defined_count == DEFINED) abort();
    defined[defined_count].kind = kind;
    defined[defined_count].handle = handle;
    defined[defined_count++].number = number;
}

/* The last one: handles are reused. */
static bool recorded(uint64_t kind, uint64_t handle, uint64_t *number) {
    for (uint32_t i = defined_count; i-- > 0;)
        if (defined[i].kind == kind && defined[i].handle == handle) {
            *number = defined[i].number;
            return true;
        }
    return false;
}
#define RECORDED(kind, handle, to)                       \
    do {                                                 \
        uint64_t number;                                 \
        if (recorded(kind, handle, &number)) {           \
            *(to) = (__typeof__(*(to)))number;           \
            return 0;                                    \
        }                                                \
    } while (0)

/* A whole buffer of a recording. */
EXPORT void fake_cupti_hand_over(const void *bytes, uint64_t valid) {
    pthread_mutex_lock(&lock);
    finish_buffer();
    uint64_t max_records = 0;
    if (!buffer) request(&buffer, &room, &max_records);
    if (!buffer || room < valid) abort();
    memcpy(buffer, bytes, valid);
    used = valid;
    finish_buffer();
    pthread_mutex_unlock(&lock);
}

EXPORT int32_t cuptiGetDeviceId(uint64_t context, uint32_t *device) {
    RECORDED(NUMBER_OF_DEVICE, context, device);
    *device = (uint32_t)(context >> 8 & 0xf);
    return context ? 0 : INVALID;
}

EXPORT int32_t cuptiGetContextId(uint64_t context, uint32_t *id) {
    RECORDED(NUMBER_OF_CONTEXT, context, id);
    *id = (uint32_t)(context & 0xff);
    return context ? 0 : INVALID;
}

EXPORT int32_t cuptiGetStreamIdEx(uint64_t context, uint64_t stream, uint8_t per_thread, uint32_t *id) {
    (void)context, (void)per_thread;
    RECORDED(NUMBER_OF_STREAM, stream, id);
    *id = (uint32_t)(stream & 0xffff) + 7;
    return 0;
}

EXPORT int32_t cuptiGetGraphNodeId(uint64_t node, uint64_t *id) {
    RECORDED(NUMBER_OF_NODE, node, id);
    *id = node & 0xffffff;
    return node ? 0 : INVALID;
}

EXPORT int32_t cuptiFinalize(void) {
    callback = NULL;
    memset(enabled, 0, sizeof enabled);
    memset(kinds, 0, sizeof kinds);
    return 0;
}

EXPORT bool fake_cupti_deliver(int32_t domain, uint32_t id, const void *data) {
    bool wanted = callback && domain > 0 && domain < DOMAINS && id < IDS && enabled[domain][id];
    if (wanted) callback(callback_user, domain, id, data);
    has_context |= domain == PASTA_CUPTI_RESOURCE && id == PASTA_CUPTI_CONTEXT_CREATED; /* not before it is complete */
    return wanted;
}
