/* Rest: when no launch has been due for a while, no module has patches, and most callbacks have nothing to do.
 *
 * Calls that launch kernels, and their returns, then have no callbacks. A launch still has its record; decisions are put off and
 * made many at a time (pasta_probe_put_off). The first launch that is due is missed and ends the rest. So do patches, in a module
 * that is loaded or for a graph that is made. The thread that reads results switches the callbacks, since the vendor may hold
 * locks where other threads would; until all of them are back, calls put no patches in.
 *
 * A function's first launch is never treated as at rest: it may have the patches of its module (patches.c). */
#include <string.h>

#include "probes.h"

enum { REST_AFTER = 1024 }; /* launches: spot checks of one round are closer together */

uint32_t pasta_nv_resting PASTA_HOT;
static uint64_t last_due PASTA_WARM;    /* ordinal of a launch */
static uint32_t hearing PASTA_WARM = 1; /* 0 from before callbacks are disabled until after they are enabled */
static uint32_t empty;                  /* for benchmarks: the subscription is as with nvidia.empty */

static void end(void) {
    if (PASTA_LIKELY(!pasta_nv_rests()) || !__atomic_exchange_n(&pasta_nv_resting, 0, __ATOMIC_SEQ_CST)) return;
    pasta_tensors_need(); /* operators that are followed again may use them */
    pasta_nv_readback_wake();
}

void pasta_nv_rest_due(uint64_t ordinal) {
    __atomic_store_n(&last_due, ordinal, __ATOMIC_RELAXED);
    end();
}

bool pasta_nv_rest_is_near(uint64_t ordinal) {
    return ordinal > __atomic_load_n(&last_due, __ATOMIC_RELAXED) + REST_AFTER && !pasta_nv_rests() && pasta_probe_rests();
}

void pasta_nv_rest_begin(void) {
    __atomic_store_n(&pasta_nv_resting, 1, __ATOMIC_SEQ_CST);
    pasta_tensors_put_off();
    pasta_nv_readback_wake();
}

/* ---- callbacks ---- */

static const struct {
    uint32_t id;
    bool kernel; /* it launches one */
} calls[] = {
#define CALL(name, kind) {PASTA_NV_##name, !strncmp(#kind, "kernel", 6)},
    PASTA_NV_LAUNCH_CALLS(CALL)
#undef CALL
};

/* Of calls that launch kernels, or of all others. */
static int32_t hear(bool on, bool kernels) {
    int32_t result = 0;
    for (size_t i = 0; i < sizeof calls / sizeof *calls && result == 0; i++)
        if (calls[i].kernel == kernels)
            result = pasta_nv.enable_callback(on, pasta_nv.subscriber, PASTA_NV_DRIVER, calls[i].id);
    return result;
}

int32_t pasta_nv_hear_all_calls(void) {
    int32_t result = hear(true, true);
    return result ? result : hear(true, false);
}

/* If it fails, launches are missed; the next time something is due, it is tried again. */
static bool switch_callbacks(bool of_calls, bool of_returns) {
    static bool said;
    int32_t result = hear(of_calls, true);
    if (result == 0) result = pasta_nv.enable_callback(of_returns, pasta_nv.subscriber, PASTA_NV_LAUNCH, PASTA_NV_LAUNCH_END);
    if (result && !said) pasta_say("probes: callbacks of launches cannot be switched (%d): some launches are not probed", result);
    said |= result != 0;
    return result == 0;
}

bool pasta_nv_rest_hears(void) { return __atomic_load_n(&hearing, __ATOMIC_SEQ_CST); }

void pasta_nv_rest_attend(void) {
    static bool hears_returns = true;
    bool is_empty = __atomic_load_n(&empty, __ATOMIC_ACQUIRE);
    bool of_calls = !pasta_nv_rests() && !is_empty, of_returns = of_calls || is_empty;
    if (of_calls == pasta_nv_rest_hears() && of_returns == hears_returns) return;
    if (!of_calls) __atomic_store_n(&hearing, 0, __ATOMIC_SEQ_CST);
    if (!switch_callbacks(of_calls, of_returns)) return;
    hears_returns = of_returns;
    if (of_calls) __atomic_store_n(&hearing, 1, __ATOMIC_SEQ_CST);
}

void pasta_nv_rest_empty(bool profiling) {
    __atomic_store_n(&empty, !profiling, __ATOMIC_RELEASE);
    pasta_nv_readback_wake();
}
