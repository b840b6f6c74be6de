/* SASS metrics of the fake library: of each kernel that runs in an enabled context.
 *
 * A kernel of B blocks executes pc 0x0 B times, 0x10 2 B times, with 32 and 10 threads a time, and 0x20 never; it calls
 * `helper`, symbol 8, whose pc 0x0 runs once.  A record has one metric.  While kernels are recorded all counts are 0; while
 * copies are recorded there are no counts.
 *
 * FAKE_CUPTI_FAIL=SassMetrics...=RESULT  as in fake_cupti.c
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "../../../shim/backends/nvidia/cupti_abi.h"

#define EXPORT __attribute__((visibility("default")))
#define PLANNED(function) \
    if (fake_cupti_planned(function)) return fake_cupti_planned(function);

enum { INVALID = 1, WARPS = 70, THREADS = 71, PLACES = 4, RECORDS = 2 * PLACES };

int32_t fake_cupti_planned(const char *function);
bool fake_cupti_records(int32_t kind);
void fake_cupti_execute(uint64_t context, uint64_t blocks);

static bool configured;
static uint64_t enabled, executed; /* context, blocks */

void fake_cupti_execute(uint64_t context, uint64_t blocks) {
    if (context && context == enabled && !fake_cupti_records(PASTA_CUPTI_KERNEL)) executed += blocks;
}

EXPORT int32_t cuptiSassMetricsGetProperties(pasta_cupti_sass_properties *p) {
    PLANNED("SassMetricsGetProperties")
    if (strcmp(p->chip, "CHIP")) return INVALID;
    bool warps = !strcmp(p->name, "smsp__sass_inst_executed");
    if (!warps && strcmp(p->name, "smsp__sass_thread_inst_executed_pred_on")) return INVALID;
    p->id = warps ? WARPS : THREADS;
    return 0;
}

EXPORT int32_t cuptiSassMetricsSetConfig(pasta_cupti_sass_config *p) {
    PLANNED("SassMetricsSetConfig")
    if (configured || p->count != 2 || p->metrics[0].granularity != PASTA_CUPTI_OF_DEVICE) return INVALID;
    configured = true;
    return 0;
}

EXPORT int32_t cuptiSassMetricsEnable(pasta_cupti_sass_enable *p) {
    PLANNED("SassMetricsEnable")
    if (!configured || enabled || !p->lazily) return INVALID;
    enabled = p->context;
    executed = 0;
    return 0;
}

EXPORT int32_t cuptiSassMetricsDisable(pasta_cupti_sass_disable *p) {
    PLANNED("SassMetricsDisable")
    if (enabled != p->context) return INVALID;
    enabled = 0;
    return 0;
}

EXPORT int32_t cuptiSassMetricsGetDataProperties(pasta_cupti_sass_count *p) {
    PLANNED("SassMetricsGetDataProperties")
    if (enabled != p->context) return INVALID;
    p->records = fake_cupti_records(PASTA_CUPTI_COPY) ? 0 : RECORDS;
    p->instances = 1;
    return 0;
}

EXPORT int32_t cuptiSassMetricsFlushData(pasta_cupti_sass_flush *p) {
    PLANNED("SassMetricsFlushData")
    if (enabled != p->context || p->records != RECORDS || p->instances != 1) return INVALID;
    for (uint32_t i = 0; i < RECORDS; i++) {
        uint32_t place = i % PLACES; /* all of one metric, then of the other */
        uint64_t warps[] = {executed, 2 * executed, 0, executed > 0}, threads[] = {32, 10, 0, 1};
        pasta_cupti_sass_data *d = &p->data[i];
        if (d->size != sizeof *d) return INVALID;
        d->function = place == 3 ? 8 : 7;
        d->name = place == 3 ? "helper" : "kernel";
        d->pc = place == 3 ? 0 : 16 * place;
        *d->values = i < PLACES ? (pasta_cupti_sass_value){WARPS, warps[place]}
                                : (pasta_cupti_sass_value){THREADS, warps[place] * threads[place]};
    }
    return 0;
}
