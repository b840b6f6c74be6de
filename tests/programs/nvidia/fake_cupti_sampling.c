/* PC sampling of the fake library: samples that the program gives, in contexts that are sampled.
 *
 * FAKE_CUPTI_FAIL=PCSampling...=RESULT  as in fake_cupti.c; PCSamplingAttribute=TYPE refuses one attribute
 * FAKE_CUPTI_SAMPLING=FILE              gets a line for each configuration, start, stop and end
 * FAKE_CUPTI_DROPPED=N, _OTHERS=N, _FULL=1  at the first fetch: samples dropped, of others' kernels, the buffer was full
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../shim/backends/nvidia/cupti_abi.h"

#define EXPORT __attribute__((visibility("default")))

enum { INVALID = 1, INVALID_OPERATION = 7, FULL = 8, BUSY = 26, CONTEXTS = 8, SAMPLES = 1 << 14 };

int32_t fake_cupti_planned(const char *function);
#define PLANNED(function) \
    if (fake_cupti_planned(function)) return fake_cupti_planned(function);

static const struct {
    uint32_t number;
    const char *name;
} reasons[] = {
    {3, "smsp__pcsamp_warps_issue_stalled_selected"},
    {9, "smsp__pcsamp_warps_issue_stalled_long_scoreboard_not_issued"},
    {4, "smsp__pcsamp_warps_issue_stalled_long_scoreboard"},
    {12, "smsp__pcsamp_warps_issue_stalled_wait"},
    {17, "smsp__pcsamp_warps_issue_stalled_wait_not_issued"},
};
enum { REASONS = sizeof reasons / sizeof *reasons };

typedef struct sample {
    uint64_t context, crc, offset;
    uint32_t function, reason, samples, correlation;
    const char *name;
} sample;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    uint64_t context;
    pasta_cupti_samples *left;
    bool by_start, started;
} contexts[CONTEXTS];
static sample taken[SAMPLES];
static size_t taken_count;
static uint64_t since_fetch;
static bool ever;
static pasta_cupti_crc *crc_of;

static void note(const char *format, uint64_t a, uint64_t b) {
    const char *path = getenv("FAKE_CUPTI_SAMPLING");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    fprintf(file, format, (unsigned long long)a, (unsigned long long)b);
    fclose(file);
}

static uint64_t number(const char *variable) {
    const char *text = getenv(variable);
    return text ? strtoull(text, NULL, 10) : 0;
}

static int find(uint64_t context) {
    for (int i = 0; i < CONTEXTS; i++)
        if (contexts[i].context == context) return i;
    return -1;
}

EXPORT int32_t cuptiRegisterComputeCrcCallback(pasta_cupti_crc *crc) {
    PLANNED("RegisterComputeCrcCallback")
    crc_of = crc;
    return 0;
}

EXPORT int32_t cuptiPCSamplingEnable(pasta_cupti_sampling *p) {
    PLANNED("PCSamplingEnable")
    int i = find(0);
    if (p->size != sizeof *p || i < 0) return INVALID;
    contexts[i].context = p->context;
    contexts[i].started = contexts[i].by_start = false;
    return 0;
}

/* Two contexts of a device are enabled without an error, and then none can be read: seen on an H200. */
static bool is_busy(void) {
    int enabled = 0;
    for (int i = 0; i < CONTEXTS; i++) enabled += contexts[i].context != 0;
    return enabled > 1;
}

EXPORT int32_t cuptiPCSamplingGetNumStallReasons(pasta_cupti_reason_count *p) {
    PLANNED("PCSamplingGetNumStallReasons")
    if (find(p->context) < 0) return INVALID_OPERATION;
    *p->count = REASONS;
    return 0;
}

EXPORT int32_t cuptiPCSamplingGetStallReasons(pasta_cupti_reasons *p) {
    PLANNED("PCSamplingGetStallReasons")
    if (find(p->context) < 0 || p->count != REASONS) return INVALID;
    for (int i = 0; i < REASONS; i++) {
        p->indices[i] = reasons[i].number;
        snprintf(p->names[i], PASTA_CUPTI_REASON_NAME, "%s", reasons[i].name);
    }
    return 0;
}

EXPORT int32_t cuptiPCSamplingSetConfigurationAttribute(pasta_cupti_sampling_config *p) {
    PLANNED("PCSamplingSetConfigurationAttribute")
    int i = find(p->context);
    if (i < 0) return INVALID;
    for (uint64_t at = 0; at < p->count; at++) {
        pasta_cupti_sampling_attribute *a = &p->attributes[at];
        a->status = fake_cupti_planned("PCSamplingAttribute") == a->type ? INVALID_OPERATION : 0;
        if (a->type == PASTA_CUPTI_SAMPLING_DATA) contexts[i].left = (void *)(uintptr_t)a->value;
        else note("attribute %llu %llu\n", (uint64_t)a->type, a->value);
        if (a->type == PASTA_CUPTI_SAMPLING_STARTED) contexts[i].by_start = a->value;
    }
    return 0;
}

static int32_t switch_to(uint64_t context, bool started) {
    int i = find(context);
    if (i < 0 || !contexts[i].by_start || contexts[i].started == started) return INVALID_OPERATION;
    contexts[i].started = started;
    note(started ? "start\n" : "stop\n", 0, 0);
    return 0;
}

EXPORT int32_t cuptiPCSamplingStart(pasta_cupti_sampling *p) {
    PLANNED("PCSamplingStart")
    return switch_to(p->context, true);
}

EXPORT int32_t cuptiPCSamplingStop(pasta_cupti_sampling *p) {
    PLANNED("PCSamplingStop")
    return switch_to(p->context, false);
}

/* One instruction with samples of several reasons may have a record each. */
EXPORT bool fake_cupti_sample(uint64_t context, const void *cubin, uint64_t bytes, uint32_t function, const char *name,
                              uint64_t offset, uint32_t reason, uint32_t samples, uint32_t correlation) {
    pthread_mutex_lock(&lock);
    int i = find(context);
    bool sampled = i >= 0 && (!contexts[i].by_start || contexts[i].started) && taken_count < SAMPLES;
    if (sampled) {
        uint64_t crc = 0;
        if (crc_of) crc_of(cubin, bytes, &crc);
        taken[taken_count++] = (sample){context, crc, offset, function, reasons[reason].number, samples,
                                        contexts[i].by_start ? correlation : 0, name};
        since_fetch += samples;
        ever = true;
    }
    pthread_mutex_unlock(&lock);
    return sampled;
}

static bool same_place(const sample *a, const pasta_cupti_pc *b) {
    return a->crc == b->crc && a->offset == b->offset && a->function == b->function && a->correlation == b->correlation;
}

static void take(uint64_t context, pasta_cupti_samples *to) {
    size_t kept = 0;
    to->count = 0;
    for (size_t at = 0; at < taken_count; at++) {
        const sample *s = &taken[at];
        uint64_t place = 0;
        while (place < to->count && !same_place(s, &to->pcs[place])) place++;
        if (s->context != context || place == to->room) {
            taken[kept++] = *s;
            continue;
        }
        pasta_cupti_pc *pc = &to->pcs[place];
        if (pc->size != sizeof *pc) abort();
        if (place == to->count) {
            if (pc->stall_count < REASONS) abort(); /* the room that the client says it has */
            pc->stall_count = 0;
            pc->crc = s->crc, pc->offset = s->offset, pc->function = s->function, pc->correlation = s->correlation;
            pc->name = strdup(s->name);
            to->count++;
        }
        uint64_t stall = 0;
        while (stall < pc->stall_count && pc->stalls[stall].reason != s->reason) stall++;
        if (stall == pc->stall_count) pc->stalls[pc->stall_count++] = (pasta_cupti_stall){s->reason, 0};
        pc->stalls[stall].samples += s->samples;
    }
    taken_count = kept;
    to->remaining = 0;
    for (size_t at = 0; at < kept; at++) to->remaining += taken[at].context == context;
    to->total = since_fetch;
    since_fetch = 0;
}

EXPORT int32_t cuptiPCSamplingGetData(pasta_cupti_get_samples *p) {
    static bool reported;
    PLANNED("PCSamplingGetData")
    if (p->size != sizeof *p || p->samples->size != sizeof *p->samples || find(p->context) < 0) return INVALID;
    if (is_busy()) return BUSY;
    if (!ever) return INVALID_OPERATION;
    pthread_mutex_lock(&lock);
    take(p->context, p->samples);
    bool first = !reported;
    reported = true;
    p->samples->dropped = first ? number("FAKE_CUPTI_DROPPED") : 0;
    p->samples->others = first ? number("FAKE_CUPTI_OTHERS") : 0;
    p->samples->total += p->samples->dropped + p->samples->others;
    p->samples->buffer_full = first && number("FAKE_CUPTI_FULL");
    pthread_mutex_unlock(&lock);
    return p->samples->buffer_full ? FULL : 0;
}

EXPORT int32_t cuptiPCSamplingDisable(pasta_cupti_sampling *p) {
    PLANNED("PCSamplingDisable")
    int i = find(p->context);
    if (i < 0) return INVALID;
    pthread_mutex_lock(&lock);
    if (contexts[i].left) take(p->context, contexts[i].left);
    contexts[i].context = 0;
    pthread_mutex_unlock(&lock);
    note("end %llu\n", p->context, 0);
    return 0;
}
