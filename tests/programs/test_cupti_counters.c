/* Hardware counters under load: threads launch in two contexts of a device, which are destroyed meanwhile, and profiling
 * is stopped.  Every selected launch has the values of its own kernel, once.  The library is the fake one. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "../../shim/backends/nvidia/cupti_source.h"
#include "check.h"

enum { THREADS = 4, LAUNCHES = 100, CONTEXTS = 2 };

/* ---- what the source calls ---- */

static const char *mode = "kernel";
static uint64_t published, blocks_counted, blocks_selected;
static void (*changed)(bool on);
static _Thread_local uint64_t record[sizeof(pasta_header) / 8 + sizeof(pasta_counter) / 8 + 8];
static _Thread_local uint32_t launching; /* blocks */
pasta_cupti_library pasta_cupti;
void (*pasta_tapped)(const pasta_header *record);

const char *pasta_config(const char *key) {
    if (!strcmp(key, "nvidia.counters")) return "dram__bytes.sum,sm__inst_executed.sum";
    return !strcmp(key, "nvidia.counters_mode") ? mode : NULL;
}
void pasta_say(const char *format, ...) { CHECK(!format); }
void pasta_log(const char *format, ...) { CHECK(format != NULL); }
uint32_t pasta_thread(void) { return 1; }
uint32_t pasta_generation(void) { return 0; }
uint32_t pasta_intern_z(const char *text) { return (uint32_t)strlen(text); }
void pasta_on_profiling(void (*hook)(bool on)) { changed = hook; }
const char *pasta_cupti_error(int32_t result) { return result ? "error" : "none"; }
bool pasta_cupti_failed(int32_t result, const char *call, const char *what, bool *said) {
    (void)call, (void)what, (void)said;
    CHECK(result == 0);
    return false;
}
bool pasta_cupti_samples_on(void) { return false; }
bool pasta_cupti_instructions_start(void) { return false; }
bool pasta_cupti_instructions_begin(uint64_t context) { return !context; }
void pasta_cupti_instructions_end(uint64_t context, const pasta_cupti_counted_launch *launch) { CHECK(!context && !launch); }
void pasta_cupti_instructions_finish(void) {}
pasta_nv_place pasta_nv_place_here(uint64_t context) { return (pasta_nv_place){(uint16_t)context, 0, 0}; }
pasta_probe_decision pasta_probe_takes(const pasta_kernel_launch *launch) {
    return (pasta_probe_decision){.probed = launch->ordinal % 4 != 3};
}

/* Of this thread's launch. */
static void check_value(void) {
    const pasta_counter *e = (const void *)((const char *)record + sizeof(pasta_header));
    if (!record[0]) return;
    record[0] = 0;
    bool of_bytes = e->name == strlen("dram__bytes.sum");
    uint64_t blocks = (uint64_t)e->value / (of_bytes ? 1000 : 32 * 64);
    if (!strcmp(mode, "kernel")) CHECK(of_bytes || (uint64_t)e->value == 32 * 64 * blocks);
    if (!strcmp(mode, "kernel")) CHECK(blocks == launching && e->ordinal != PASTA_ABSENT_U64 && !e->instance);
    else CHECK(e->ordinal == PASTA_ABSENT_U64 && e->instance);
    __atomic_fetch_add(&published, 1, __ATOMIC_RELAXED);
    if (of_bytes) __atomic_fetch_add(&blocks_counted, blocks, __ATOMIC_RELAXED);
}

void *pasta_begin_result(uint32_t thread, pasta_event_kind kind, uint8_t slots, int16_t device, uint16_t context,
                         uint64_t stream) {
    (void)thread, (void)slots, (void)device, (void)context, (void)stream;
    CHECK(kind == PASTA_EVENT_counter);
    check_value(); /* the one before */
    memset(record, 0xff, sizeof record);
    return (char *)record + sizeof(pasta_header);
}

/* ---- the library ---- */

static bool timed = true; /* kernels, whose records add instructions */
static int32_t enable(int32_t kind) {
    CHECK(kind == PASTA_CUPTI_KERNEL && !timed);
    timed = true;
    return 0;
}
static int32_t disable(int32_t kind) {
    CHECK(kind == PASTA_CUPTI_KERNEL && timed);
    timed = false;
    return 0;
}
bool pasta_cupti_guest_wants_records(int32_t kind) { return kind != PASTA_CUPTI_KERNEL; }
bool fake_cupti_records(int32_t kind);
bool fake_cupti_records(int32_t kind) { return kind == PASTA_CUPTI_KERNEL && timed; }

int32_t fake_cupti_planned(const char *function);
int32_t fake_cupti_planned(const char *function) { return function ? 0 : 1; }
uint64_t fake_cupti_count(uint64_t context, const uint32_t *grid, const uint32_t *block);

#define DECLARE(name, symbol, arguments) int32_t name##_of_fake arguments __asm__(symbol);
PASTA_CUPTI_COUNTER_FUNCTIONS(DECLARE)
#define FIND(name, symbol, arguments) \
    if (!strcmp(wanted, symbol)) return (void *)(uintptr_t)name##_of_fake;
void *pasta_cupti_function(const char *wanted) {
    PASTA_CUPTI_COUNTER_FUNCTIONS(FIND)
    return NULL;
}

static int32_t device_of(uint64_t context, uint32_t *device) {
    *device = 0;
    return context ? 0 : 1;
}

/* ---- threads ---- */

static void launch(uint64_t context, uint64_t ordinal) {
    pasta_kernel_launch e = {.ordinal = ordinal};
    bool selected = pasta_probe_takes(&e).probed;
    launching = (uint32_t)(1 + ordinal % 7);
    CHECK(!pasta_cupti_counters_decide(&e));
    pasta_cupti_counters_launching(context, &(pasta_cupti_arguments){0});
    fake_cupti_count(context, (uint32_t[]){launching, 1, 1}, (uint32_t[]){64, 1, 1});
    uint64_t ns = pasta_cupti_counters_launched(true);
    CHECK(ns == (selected && !strcmp(mode, "kernel") ? 700 : 0));
    check_value();
    if (selected) __atomic_fetch_add(&blocks_selected, launching, __ATOMIC_RELAXED);
}

static void *run(void *number) {
    for (uint64_t i = 0; i < LAUNCHES; i++) {
        uint64_t ordinal = (uint64_t)(uintptr_t)number * LAUNCHES + i, context = 1 + ordinal / 3 % CONTEXTS;
        launch(context, ordinal);
        if (i % 25 == 24) {
            pasta_cupti_counters_launching(context, NULL); /* a graph */
            pasta_cupti_counters_launched(true);
            pasta_cupti_counters_context_destroyed(context);
        }
        if (i % 40 == 39) changed(false);
    }
    check_value();
    return NULL;
}

int main(int arguments, char **words) {
    pthread_t threads[THREADS];
    CHECK(arguments > 1);
    mode = words[1];
    pasta_cupti.device_of = device_of;
    pasta_cupti.enable = enable;
    pasta_cupti.disable = disable;
    pasta_cupti_counters_start();
    CHECK(pasta_cupti_counters_on() && changed);
    for (uintptr_t i = 0; i < THREADS; i++) CHECK(!pthread_create(&threads[i], NULL, run, (void *)i));
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    pasta_cupti_counters_finish();
    check_value();
    CHECK(!pasta_cupti_counters_on() && published > 0);
    if (!strcmp(mode, "kernel")) CHECK(blocks_counted == blocks_selected && published == 2 * THREADS * LAUNCHES * 3 / 4);
    return 0;
}
