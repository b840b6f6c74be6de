/* PC samples, if `amd.pc_sampling` sets an interval.
 *
 * The SDK fills a buffer for each device and delivers it on a separate thread; equal samples become one
 * record.
 *
 * Written to the headers of 1.x, as the records of 0.5 differ; it has never run on hardware.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "source.h"

enum { BUFFER_BYTES = 1 << 20, WATERMARK = BUFFER_BYTES / 4 * 3, PLACES = 256 };

#define POINTER(name, symbol, arguments) int32_t(*name) arguments;
static struct {
    PASTA_AMD_SAMPLING(POINTER)
} sdk;

static uint64_t buffers[PASTA_AMD_DEVICES];
static int16_t buffer_count;

static bool succeeded(int32_t status, const char *what) {
    if (status != 0)
        pasta_say("PC samples are not recorded: %s failed with %d (%s); the SDK may need "
                  "ROCPROFILER_PC_SAMPLING_BETA_ENABLED=1 in the environment",
                  what, status, pasta_amd_status(status));
    return status == 0;
}

/* ---- the interval ---- */

typedef struct interval {
    uint64_t length;
    uint32_t unit, method; /* method 0: the device does not offer it */
} interval;

static bool read_interval(const char *text, interval *i) {
    static const struct {
        const char *name;
        uint32_t unit;
        uint64_t factor;
    } units[] = {{"us", PASTA_AMD_UNIT_TIME, 1},
                 {"ms", PASTA_AMD_UNIT_TIME, 1000},
                 {"cycles", PASTA_AMD_UNIT_CYCLES, 1},
                 {"instructions", PASTA_AMD_UNIT_INSTRUCTIONS, 1}};
    char *end;
    unsigned long long length = strtoull(text, &end, 10);
    while (*end == ' ') end++;
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        if (strcmp(end, units[u].name) != 0 || !length || length > UINT32_MAX || *text == '-') continue;
        *i = (interval){length * units[u].factor, units[u].unit, 0};
        return true;
    }
    pasta_say("amd.pc_sampling=%s is not an interval: use a number and us, ms, cycles or instructions, such as 100us", text);
    return false;
}

static int32_t on_samplings(const pasta_amd_sampling *offered, size_t count, void *user) {
    interval *i = user;
    for (size_t o = 0; o < count; o++)
        if (offered[o].unit == i->unit && i->length >= offered[o].least && i->length <= offered[o].most)
            i->method = offered[o].method;
    return 0;
}

/* ---- samples ---- */

/* Stall reasons by their numbers in 1.x (pc_sampling.h); the first is for issued instructions. */
static const char *const reasons[] = {
    "none", "no instruction there", "dependency on the ALU", "s_waitcnt", "internal instruction", "barrier",
    "arbiter chose another", "execution stalled", "other wait", "sleep",
};

static uint32_t reason_name(uint16_t reason) {
    char text[16];
    if (reason == PASTA_ABSENT_U16) return PASTA_STRING_absent;
    if (reason < sizeof reasons / sizeof *reasons) return pasta_intern_z(reasons[reason]);
    snprintf(text, sizeof text, "reason %u", reason);
    return pasta_intern_z(text);
}

typedef struct place {
    uint64_t code_object, offset, dispatch;
    uint32_t samples, not_issued;
    uint16_t reason;
} place;

static void publish(const place *p, int16_t device) {
    uint64_t kernel, within, ordinal;
    pasta_amd_place at = pasta_amd_place_on(device);
    bool known = pasta_amd_kernel_at(p->code_object, p->offset, &kernel, &within);
    bool launched = pasta_amd_ordinal_of(p->dispatch, &ordinal);
    uint32_t reason = reason_name(p->reason);
    pasta_pc_sample *e = PASTA_BEGIN(pc_sample, at.device, at.context, PASTA_NO_STREAM);
    if (!e) return;
    e->pc = known ? within : p->offset;
    if (known) e->function = kernel;
    if (p->code_object) e->module = p->code_object;
    if (launched) e->ordinal = ordinal;
    e->name = PASTA_STRING_absent; /* its launch, or its module, has it */
    e->reason = reason;
    e->samples = p->samples;
    e->not_issued = p->not_issued;
    pasta_publish(e);
}

static void add(place *places, const place *sample, int16_t device) {
    uint64_t hash = (sample->offset ^ sample->dispatch << 20 ^ sample->code_object << 40 ^ sample->reason) *
                    UINT64_C(0x9e3779b97f4a7c15);
    place *p = &places[hash >> 32 & (PLACES - 1)];
    bool same = p->samples && p->offset == sample->offset && p->dispatch == sample->dispatch &&
                p->code_object == sample->code_object && p->reason == sample->reason;
    if (same) {
        p->samples++;
        if (p->not_issued != PASTA_ABSENT_U32) p->not_issued += sample->not_issued;
        return;
    }
    if (p->samples) publish(p, device);
    *p = *sample;
}

static bool read_sample(const pasta_amd_buffered *record, place *p) {
    const pasta_amd_host_trap *trap = record->payload;
    const pasta_amd_stochastic *s = record->payload;
    if (record->category != PASTA_AMD_PC_SAMPLES || !record->payload) return false;
    uint32_t host_trap = pasta_amd_new_layout() ? PASTA_AMD_HOST_TRAP : PASTA_AMD_HOST_TRAP_0_6;
    if (record->kind == host_trap && PASTA_AMD_HAS(trap, dispatch)) {
        *p = (place){trap->code_object, trap->offset, trap->dispatch, 1, PASTA_ABSENT_U32, PASTA_ABSENT_U16};
        return true;
    }
    if (!pasta_amd_new_layout() || record->kind != PASTA_AMD_STOCHASTIC || !PASTA_AMD_HAS(s, snapshot)) return false;
    bool issued = s->issued & 1;
    *p = (place){s->code_object, s->offset, s->dispatch, 1, !issued, issued ? 0 : s->snapshot & 15};
    return true;
}

static pasta_amd_odd lost = {.what = "buffers of PC samples with some that the SDK dropped"};

static void on_full(uint64_t context, uint64_t buffer, pasta_amd_buffered **records, size_t count, void *user,
                    uint64_t dropped) {
    place places[PLACES] = {0}, sample;
    int16_t device = (int16_t)(intptr_t)user;
    (void)context, (void)buffer;
    if (!pasta_amd_records()) return;
    if (dropped) pasta_amd_count(&lost, dropped);
    for (size_t i = 0; i < count; i++)
        if (records[i] && read_sample(records[i], &sample)) add(places, &sample, device);
    for (size_t i = 0; i < PLACES; i++)
        if (places[i].samples) publish(&places[i], device);
}

/* ---- start and end ---- */

static void sample_device(uint64_t context, int16_t device, uint64_t agent, const char *name, interval i) {
    uint64_t buffer = 0;
    if (!succeeded(sdk.each_sampling(agent, on_samplings, &i), "the list of sampling methods")) return;
    if (!i.method) {
        pasta_say("PC samples of %s are not recorded: it does not support amd.pc_sampling=%s", name ? name : "a device",
                  pasta_config("amd.pc_sampling"));
        return;
    }
    void *user = (void *)(intptr_t)device;
    if (succeeded(sdk.create_buffer(context, BUFFER_BYTES, WATERMARK, PASTA_AMD_LOSSLESS, on_full, user, &buffer),
                  "a buffer") &&
        succeeded(sdk.sample(context, agent, i.method, i.unit, i.length, buffer, 0), "the sampling service"))
        buffers[buffer_count++] = buffer;
}

static bool resolve(void) {
    const char *missing = NULL;
#define RESOLVE(name, symbol, arguments) PASTA_AMD_RESOLVE(sdk, name, symbol)
    PASTA_AMD_SAMPLING(RESOLVE)
    if (missing) pasta_say("PC samples are not recorded: the SDK has no %s; run without amd.pc_sampling", missing);
    return !missing;
}

void pasta_amd_sample_pcs(void) {
    const char *asked = pasta_config("amd.pc_sampling"), *counters = pasta_config("amd.counters"), *name;
    uint64_t context = 0, agent;
    interval i;
    if (!asked || !*asked || !read_interval(asked, &i)) return;
    if (pasta_amd.version < PASTA_AMD_0_6) {
        pasta_say("PC samples are not recorded: they need rocprofiler-sdk 0.6 (ROCm 6.4) or newer");
        return;
    }
    if (counters && *counters) {
        pasta_say("PC samples are not recorded: the SDK cannot count and sample in one run; run without amd.counters");
        return;
    }
    if (!resolve() || !succeeded(pasta_amd.create_context(&context), "rocprofiler_create_context")) return;
    for (int16_t device = 0; device < PASTA_AMD_DEVICES && pasta_amd_gpu(device, &agent, &name); device++)
        sample_device(context, device, agent, name, i);
    if (!buffer_count) return;
    pasta_amd_keep_ordinals();
    succeeded(pasta_amd.start_context(context), "rocprofiler_start_context");
}

void pasta_amd_samples_finish(void) {
    for (int16_t i = 0; i < buffer_count; i++) sdk.flush_buffer(buffers[i]);
}
