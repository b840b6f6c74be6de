/* Executions of each instruction of a launch, by CUPTI's SASS metrics, if `nvidia.instructions` is set.
 *
 * CUPTI patches the kernel: cupti_counters.c selects launches, and lets each run alone, between `begin` and `end`. */
#include <stdlib.h>
#include <string.h>

#include "cupti_source.h"

enum { WARPS, THREADS, METRICS, DEVICES = 64 };

static const char *const names[METRICS] = {"smsp__sass_inst_executed", "smsp__sass_thread_inst_executed_pred_on"};

static struct {
    PASTA_CUPTI_INSTRUCTION_FUNCTIONS(PASTA_CUPTI_FIELD)
} cupti;

/* All under the lock of cupti_counters.c. */
static struct {
    bool configured, failed;
    uint64_t ids[METRICS];
} devices[DEVICES];
static uint64_t lost; /* launches */

static _Thread_local bool waits;
bool pasta_cupti_instructions_waits(void) { return waits; }

static bool failed(int32_t result, const char *call) {
    static bool said;
    return pasta_cupti_failed(result, call, "instructions are not counted", &said);
}

static bool configure(uint32_t device) {
    pasta_cupti_profiler_initialize start = {sizeof start, NULL};
    pasta_cupti_chip chip = {sizeof chip, NULL, device, NULL};
    pasta_cupti_sass_metric metrics[METRICS];
    if (failed(cupti.initialize(&start), "cuptiProfilerInitialize")) return false;
    if (failed(cupti.chip(&chip), "cuptiDeviceGetChipName")) return false;
    for (int i = 0; i < METRICS; i++) {
        pasta_cupti_sass_properties p = {.size = sizeof p, .chip = chip.name, .name = names[i]};
        if (failed(cupti.properties(&p), "cuptiSassMetricsGetProperties")) return false;
        metrics[i] = (pasta_cupti_sass_metric){p.id, PASTA_CUPTI_OF_DEVICE};
        devices[device].ids[i] = p.id;
    }
    pasta_cupti_sass_config config = {.size = PASTA_CUPTI_SIZE(pasta_cupti_sass_config, device), .count = METRICS,
                                      .metrics = metrics, .device = device};
    return !failed(cupti.configure(&config), "cuptiSassMetricsSetConfig");
}

static bool wait_for_kernels(void) {
    waits = true;
    int32_t result = pasta_cuda.synchronize();
    waits = false;
    return !failed(result, "cuCtxSynchronize");
}

bool pasta_cupti_instructions_begin(uint64_t context) {
    uint32_t device = 0;
    if (failed(pasta_cupti.device_of(context, &device), "cuptiGetDeviceId") || device >= DEVICES) return false;
    if (devices[device].failed) return false;
    if (!devices[device].configured) devices[device].failed = !configure(device);
    devices[device].configured = true;
    if (devices[device].failed || !wait_for_kernels()) return false; /* kernels before it are not patched */
    pasta_cupti_sass_enable enable = {.size = PASTA_CUPTI_SIZE(pasta_cupti_sass_enable, lazily), .context = context,
                                      .lazily = 1};
    devices[device].failed = failed(cupti.enable(&enable), "cuptiSassMetricsEnable");
    return !devices[device].failed;
}

/* ---- values ---- */

static int by_place(const void *left, const void *right) {
    const pasta_cupti_sass_data *a = left, *b = right;
    if (a->crc != b->crc) return a->crc < b->crc ? -1 : 1;
    if (a->function != b->function) return a->function < b->function ? -1 : 1;
    return a->pc < b->pc ? -1 : a->pc > b->pc;
}

static void publish(const pasta_cupti_sass_data *at, const uint64_t *values, pasta_nv_place place,
                    const pasta_cupti_counted_launch *launch) {
    if (!values[WARPS]) return;
    uint32_t name = at->name ? pasta_intern_z(at->name) : 0;
    pasta_instruction_count *e =
        pasta_begin_result(pasta_thread(), PASTA_EVENT_instruction_count, PASTA_SLOTS(pasta_instruction_count),
                           place.device, place.context, PASTA_NO_STREAM);
    if (!e) return;
    *e = (pasta_instruction_count){.ordinal = launch->ordinal, .pc = at->pc, .warps = values[WARPS],
                                   .threads = values[THREADS], .name = name == launch->name ? 0 : name,
                                   .symbol = at->function};
    pasta_publish(e);
}

/* A record holds one metric. Sorting brings the records of one instruction together. */
static void publish_all(pasta_cupti_sass_data *data, uint64_t count, const uint64_t *ids, pasta_nv_place place,
                        const pasta_cupti_counted_launch *launch) {
    uint64_t values[METRICS] = {0};
    qsort(data, count, sizeof *data, by_place);
    for (uint64_t i = 0; i < count; i++) {
        for (int k = 0; k < METRICS; k++)
            if (data[i].values->id == ids[k]) values[k] += data[i].values->value;
        if (i + 1 < count && by_place(&data[i], &data[i + 1]) == 0) continue;
        publish(&data[i], values, place, launch);
        memset(values, 0, sizeof values);
    }
}

static void flush(uint64_t context, const uint64_t *ids, const pasta_cupti_counted_launch *launch) {
    pasta_cupti_sass_count n = {.size = sizeof n, .context = context};
    if (failed(cupti.count(&n), "cuptiSassMetricsGetDataProperties")) return;
    if (!n.records || !n.instances) {
        lost++;
        return;
    }
    uint64_t each = n.instances * METRICS;
    pasta_cupti_sass_data *data = calloc(n.records, sizeof *data);
    pasta_cupti_sass_value *values = calloc(n.records * each, sizeof *values);
    pasta_cupti_sass_flush get = {.size = PASTA_CUPTI_SIZE(pasta_cupti_sass_flush, instances), .context = context,
                                  .records = n.records, .instances = n.instances, .data = data};
    if (!data || !values) pasta_say("instructions are not counted: out of memory");
    else {
        for (uint64_t i = 0; i < n.records; i++) {
            data[i].size = sizeof *data;
            data[i].values = values + i * each;
        }
        if (!failed(cupti.flush(&get), "cuptiSassMetricsFlushData"))
            publish_all(data, n.records, ids, pasta_nv_place_here(context), launch);
    }
    free(data);
    free(values);
}

void pasta_cupti_instructions_end(uint64_t context, const pasta_cupti_counted_launch *launch) {
    uint32_t device = 0;
    if (failed(pasta_cupti.device_of(context, &device), "cuptiGetDeviceId")) return;
    if (launch && wait_for_kernels()) {
        pasta_cupti_publish_tensor_maps(pasta_nv_place_here(context), launch);
        flush(context, devices[device].ids, launch);
    }
    pasta_cupti_sass_disable disable = {.size = sizeof disable, .context = context};
    devices[device].failed = failed(cupti.disable(&disable), "cuptiSassMetricsDisable");
}

/* ---- start and end ---- */

bool pasta_cupti_instructions_start(void) {
    const char *missing = pasta_cuda.synchronize ? NULL : "cuCtxSynchronize";
    if (!pasta_config_u64("nvidia.instructions", 0)) return false;
    PASTA_CUPTI_INSTRUCTION_FUNCTIONS(PASTA_CUPTI_FIND)
    if (missing) pasta_say("instructions are not counted: the library has no %s; " PASTA_CUPTI_INSTALL, missing);
    return !missing;
}

void pasta_cupti_instructions_finish(void) {
    if (lost)
        pasta_say("%llu selected launches have no executed instructions: CUPTI returned no data, as while the "
                  "program's own profiler records kernels or copies",
                  (unsigned long long)lost);
    lost = 0;
}
