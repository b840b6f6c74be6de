/* Annotations of roctx: ranges, marks, and the control of profiling. */
#include <string.h>

#include "source.h"

static _Thread_local int32_t depth; /* of this thread's nested ranges */

static void publish(pasta_event_kind kind, const char *name, uint64_t id) {
    uint32_t interned = pasta_intern_z(name);
    uint64_t stack = PASTA_RANGE_STACK(PASTA_ORIGIN_roctx, 0);
    if (kind == PASTA_EVENT_range_push) pasta_probe_range_push(stack, interned);
    if (kind == PASTA_EVENT_range_pop) pasta_probe_range_pop(stack);
    if (kind == PASTA_EVENT_range_start) pasta_probe_range_start(id, interned);
    if (kind == PASTA_EVENT_range_end) pasta_probe_range_end(id);
    pasta_range *e = pasta_begin(kind, PASTA_SLOTS(pasta_range), PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!e) return;
    e->id = id;
    e->name = interned;
    e->domain = 0;
    e->origin = PASTA_ORIGIN_roctx;
    pasta_publish(e);
}

static const pasta_amd_marker_call *begun(const pasta_amd_record *r) {
    const pasta_amd_marker_call *m = r->payload;
    return r->phase == PASTA_AMD_ENTER && PASTA_AMD_HAS(m, text) ? m : NULL;
}

static void on_mark(const pasta_amd_record *r, const pasta_amd_operation *operation) {
    const pasta_amd_marker_call *m = begun(r);
    (void)operation;
    if (m) publish(PASTA_EVENT_mark, m->text, PASTA_ABSENT_U64);
}

static void on_push(const pasta_amd_record *r, const pasta_amd_operation *operation) {
    const pasta_amd_marker_call *m = begun(r);
    (void)operation;
    if (!m) return;
    depth++;
    publish(PASTA_EVENT_range_push, m->text, PASTA_ABSENT_U64);
}

static void on_pop(const pasta_amd_record *r, const pasta_amd_operation *operation) {
    (void)operation;
    if (r->phase != PASTA_AMD_ENTER || depth <= 0) return;
    depth--;
    publish(PASTA_EVENT_range_pop, NULL, PASTA_ABSENT_U64);
}

static void on_start(const pasta_amd_record *r, const pasta_amd_operation *operation) {
    const pasta_amd_marker_call *m = r->payload;
    (void)operation;
    if (r->phase == PASTA_AMD_EXIT && PASTA_AMD_HAS(m, range)) publish(PASTA_EVENT_range_start, m->text, m->range);
}

static void on_stop(const pasta_amd_record *r, const pasta_amd_operation *operation) {
    const pasta_amd_marker_call *m = begun(r);
    (void)operation;
    if (m) publish(PASTA_EVENT_range_end, NULL, m->id);
}

static const pasta_amd_operation markers[] = {
    {"roctxMarkA", on_mark},        {"roctxRangePushA", on_push}, {"roctxRangePop", on_pop},
    {"roctxRangeStartA", on_start}, {"roctxRangeStop", on_stop},
};
const pasta_amd_table pasta_amd_markers = PASTA_AMD_TABLE(markers);

static void on_control(const pasta_amd_record *r, const pasta_amd_operation *operation) {
    static pasta_amd_odd threads = {.what = "roctxProfilerPause or Resume for one thread, which is not followed"};
    const pasta_amd_marker_call *m = begun(r);
    if (!m) return;
    if (m->id) pasta_amd_count(&threads, m->id); /* 0: all threads */
    else pasta_profiling_set(strcmp(operation->name, "roctxProfilerResume") == 0, PASTA_ORIGIN_roctx);
}

static const pasta_amd_operation controls[] = {{"roctxProfilerPause", on_control}, {"roctxProfilerResume", on_control}};
const pasta_amd_table pasta_amd_controls = PASTA_AMD_TABLE(controls);
