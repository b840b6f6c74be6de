/* PC samples under load: threads make contexts, load modules and launch, while another fetches.  Every sample that is
 * taken is published once, and nothing is fetched by that thread while a module is loaded. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../shim/backends/nvidia/cupti_source.h"
#include "check.h"

enum { THREADS = 3, ROUNDS = 10, PER_ROUND = 500, REASON = 7 };

/* ---- what the source calls ---- */

static const char *mode = "continuous";
static uint64_t published, unlocated;
void (*pasta_tapped)(const pasta_header *record);
static _Thread_local uint64_t record[16];

uint64_t pasta_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}
const char *pasta_config(const char *key) {
    if (!strcmp(key, "nvidia.pc_sampling")) return "64cycles";
    return !strcmp(key, "nvidia.pc_sampling_mode") ? mode : NULL;
}
uint64_t pasta_config_u64(const char *key, uint64_t otherwise) { return key ? otherwise : 0; }
static bool refuses; /* cuptiPCSamplingDisable */
static unsigned said;
void pasta_say(const char *format, ...) {
    CHECK(refuses && strstr(format, "cuptiPCSamplingDisable failed"));
    said++;
}
void pasta_log(const char *format, ...) { CHECK(!format); }
uint32_t pasta_thread(void) { return 1; }
uint32_t pasta_generation(void) { return 0; }
uint32_t pasta_intern(const char *text, size_t length) { return text && length ? (uint32_t)length : 0; }
uint32_t pasta_intern_z(const char *text) { return pasta_intern(text, strlen(text)); }
uint64_t pasta_hash(const void *bytes, size_t length) { return (uint64_t)(uintptr_t)bytes + length; }
bool pasta_profiling_is_on(void) { return true; }
void pasta_on_profiling(void (*changed)(bool on)) { CHECK(changed != NULL); }
const char *pasta_cupti_error(int32_t result) { return result ? "error" : "none"; }
bool pasta_cupti_failed(int32_t result, const char *call, const char *what, bool *said) {
    (void)call, (void)what, (void)said;
    return result != 0;
}
bool pasta_cupti_get(uint32_t correlation, pasta_cupti_submitted *found) {
    *found = (pasta_cupti_submitted){PASTA_CUPTI_A_LAUNCH, {.ordinal = correlation - 1}};
    return true;
}
pasta_probe_decision pasta_probe_takes(const pasta_kernel_launch *launch) {
    return (pasta_probe_decision){.probed = launch->ordinal % 2 == 0};
}

/* Published in the same thread before it begins another one. */
static void count(void) {
    const pasta_pc_sample *e = (const void *)((const char *)record + sizeof(pasta_header));
    if (!record[0]) return;
    bool located = e->pc != PASTA_ABSENT_U64;
    if (located) CHECK(e->samples % 3 == 0 && e->not_issued == e->samples / 3 * 2 && e->reason == 4 && e->name == 6 && e->symbol == 5);
    if (located && !strcmp(mode, "serialized")) CHECK(e->ordinal % 2 == 0);
    __atomic_fetch_add(located ? &published : &unlocated, e->samples, __ATOMIC_RELAXED);
    record[0] = 0;
}

void *pasta_begin_result(uint32_t thread, pasta_event_kind kind, uint8_t slots, int16_t device, uint16_t context,
                         uint64_t stream) {
    (void)thread, (void)device, (void)context, (void)stream;
    CHECK(kind == PASTA_EVENT_pc_sample && slots * PASTA_SLOT == sizeof record);
    count();
    memset(record, 0xff, sizeof record);
    return (char *)record + sizeof(pasta_header);
}

/* ---- CUPTI: samples of contexts, whose handles are 1, 2, ... ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    bool enabled, by_start, started;
    uint64_t waiting; /* samples of one instruction each */
    uint32_t correlation;
    pasta_cupti_samples *left;
} contexts[THREADS * ROUNDS + 1];
static uint64_t taken, loading;
static _Thread_local bool fetches;

static int32_t enable(pasta_cupti_sampling *p) {
    contexts[p->context].enabled = true;
    return 0;
}
static int32_t start(pasta_cupti_sampling *p) {
    contexts[p->context].started = true;
    return 0;
}
static int32_t stop(pasta_cupti_sampling *p) {
    contexts[p->context].started = false;
    return 0;
}
static int32_t configure(pasta_cupti_sampling_config *p) {
    for (uint64_t i = 0; i < p->count; i++) {
        if (p->attributes[i].type == PASTA_CUPTI_SAMPLING_STARTED) contexts[p->context].by_start = p->attributes[i].value;
        if (p->attributes[i].type == PASTA_CUPTI_SAMPLING_DATA) contexts[p->context].left = (void *)(uintptr_t)p->attributes[i].value;
    }
    return 0;
}
static void give(uint64_t context, pasta_cupti_samples *to) {
    CHECK(to->size == sizeof *to && to->room > 0 && contexts[context].enabled);
    pthread_mutex_lock(&lock);
    for (to->count = 0; to->count < to->room && contexts[context].waiting; contexts[context].waiting--) {
        pasta_cupti_pc *pc = &to->pcs[to->count++];
        CHECK(pc->stall_count == 2);
        pc->name = "kernel";
        pc->function = 5;
        pc->crc = pc->offset = context;
        pc->correlation = contexts[context].correlation;
        pc->stalls[0] = (pasta_cupti_stall){REASON + 1, 2};
        pc->stalls[1] = (pasta_cupti_stall){REASON, 3};
    }
    to->remaining = contexts[context].waiting;
    to->others = to->count ? 1 : 0;
    pthread_mutex_unlock(&lock);
}
static int32_t get(pasta_cupti_get_samples *p) {
    if (fetches) CHECK(!__atomic_load_n(&loading, __ATOMIC_SEQ_CST));
    give(p->context, p->samples);
    if (fetches) CHECK(!__atomic_load_n(&loading, __ATOMIC_SEQ_CST));
    return 0;
}
static int32_t disable(pasta_cupti_sampling *p) {
    if (refuses) return 1;
    give(p->context, contexts[p->context].left);
    contexts[p->context].enabled = false;
    return 0;
}
static int32_t reason_count(pasta_cupti_reason_count *p) {
    *p->count = 2;
    return 0;
}
static int32_t reasons(pasta_cupti_reasons *p) {
    p->indices[0] = REASON, p->indices[1] = REASON + 1;
    strcpy(p->names[0], "smsp__pcsamp_warps_issue_stalled_wait");
    strcpy(p->names[1], "smsp__pcsamp_warps_issue_stalled_wait_not_issued");
    return 0;
}
static int32_t register_crc(pasta_cupti_crc *crc) {
    uint64_t hash = 0;
    crc("x", 1, &hash);
    CHECK(hash != 0);
    return 0;
}

void *pasta_cupti_function(const char *symbol) {
#define FOUND(name, theirs, arguments) \
    if (!strcmp(symbol, theirs)) return (void *)name;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
    PASTA_CUPTI_SAMPLING_FUNCTIONS(FOUND)
#pragma GCC diagnostic pop
    return NULL;
}

/* ---- the program ---- */

static void take(uint64_t context, uint64_t count) {
    pthread_mutex_lock(&lock);
    if (!contexts[context].by_start || contexts[context].started) {
        contexts[context].waiting += count;
        taken += 3 * count;
    }
    pthread_mutex_unlock(&lock);
}

static void load_module(bool unload) {
    pasta_cupti_samples_module_call(true);
    __atomic_fetch_add(&loading, 1, __ATOMIC_SEQ_CST);
    if (unload) pasta_cupti_samples_module_unloading();
    sched_yield();
    __atomic_fetch_sub(&loading, 1, __ATOMIC_SEQ_CST);
    pasta_cupti_samples_module_call(false);
}

static void launch(uint64_t context, uint64_t ordinal) {
    pasta_kernel_launch launch = {.ordinal = ordinal};
    CHECK(!pasta_cupti_samples_decide(&launch));
    pasta_cupti_samples_launching(context);
    pthread_mutex_lock(&lock);
    contexts[context].correlation = (uint32_t)ordinal + 1;
    pthread_mutex_unlock(&lock);
    take(context, 5);
}

static void *run(void *number) {
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint64_t context = (uint64_t)(uintptr_t)number * ROUNDS + round + 1;
        /* each on a device of its own: a device's second one is not sampled */
        pasta_cupti_samples_context_created(context, (pasta_nv_place){.device = (int16_t)context});
        for (uint64_t i = 0; i < PER_ROUND / 50; i++) {
            if (pasta_cupti_samples_by_launch()) launch(context, i);
            else take(context, 50);
            load_module(i % 4 == 3);
        }
        if (round % 5) pasta_cupti_samples_context_destroyed(context);
    }
    count();
    return NULL;
}

static bool ended;

static void *fetch(void *unused) {
    fetches = true;
    /* The lock is not fair: without a pause nobody else gets it for a second, and gives up. */
    struct timespec pause = {0, 100000};
    while (!__atomic_load_n(&ended, __ATOMIC_ACQUIRE)) {
        pasta_cupti_samples_fetch();
        nanosleep(&pause, NULL);
    }
    count();
    return unused;
}

/* CUPTI goes on to write where it was told, although the context is gone. */
static void refused(void) {
    pasta_cupti_samples_start();
    pasta_cupti_samples_context_created(1, (pasta_nv_place){0, 0, 0});
    refuses = true;
    pasta_cupti_samples_context_destroyed(1);
    CHECK(said == 1);
    refuses = false;
    pasta_cupti_samples_context_created(2, (pasta_nv_place){0, 0, 0});
    CHECK(contexts[2].left != contexts[1].left);
    contexts[1].waiting = 7;
    give(1, contexts[1].left); /* into memory of its own */
    take(2, 3);
    pasta_cupti_samples_fetch();
    pasta_cupti_samples_finish();
    count();
    CHECK(published == 9 && contexts[1].left->count == 7);
}

int main(int arguments, char **words) {
    pthread_t threads[THREADS], fetcher;
    CHECK(arguments > 1);
    if (!strcmp(words[1], "refused")) return refused(), 0;
    mode = words[1];
    pasta_cupti_samples_start();
    CHECK(pasta_cupti_samples_on() && pasta_cupti_samples_by_launch() == !strcmp(mode, "serialized"));
    CHECK(!pthread_create(&fetcher, NULL, fetch, NULL));
    for (uintptr_t i = 0; i < THREADS; i++) CHECK(!pthread_create(&threads[i], NULL, run, (void *)i));
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    __atomic_store_n(&ended, true, __ATOMIC_RELEASE);
    pthread_join(fetcher, NULL);
    pasta_cupti_samples_finish();
    count();
    CHECK(taken > 0 && published == taken && unlocated > 0);
    return 0;
}
