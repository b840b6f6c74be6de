/* NVIDIA's Sanitizer API as an event source: how it is found, subscribed and released. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "source.h"

static const char *remedy_of(int32_t result) {
    switch (result) {
    case PASTA_NV_MAX_LIMIT: return "another Sanitizer tool is active in this process: run without it";
    case PASTA_NV_NOT_INITIALIZED:
    case PASTA_NV_NOT_COMPATIBLE: return "the driver is not compatible with this library: " PASTA_NV_INSTALL ", or a newer driver";
    default: return "see `pasta doctor`";
    }
}

/* Checks every vendor call: a failure ends the source, never the target. */
static bool succeeded(int32_t result, const char *call) {
    if (result == 0) return true;
    const char *text = NULL;
    if (pasta_nv.result_string(result, &text) != 0 || !text) text = "unknown error";
    pasta_nv_record(false);
    pasta_say("CUDA is not recorded: %s failed with %d (%s); %s", call, result, text, remedy_of(result));
    return false;
}
#define SUCCEEDED(function, ...) succeeded(pasta_nv.function(__VA_ARGS__), #function)

/* ---- version: the library does not report it, but accepts only its own callback ids ---- */

static bool accepts(int32_t domain, uint32_t id) {
    return pasta_nv.enable_callback(0, pasta_nv.subscriber, domain, id) == 0;
}

/* Last callback ids of the API domains, read from the libraries of these versions. */
static const struct {
    const char *version;
    uint32_t driver, runtime;
} versions[] = {
    {"13.5", 872, 566}, {"13.4", 867, 565}, {"13.3", 859, 558}, {"13.2", 845, 558}, {"13.1", 845, 549},
    {"13.0", 806, 522}, {"12.9", 783, 486}, {"12.8", 781, 479}, {"12.6", 762, 479},
};

static const char *version_of_library(void) {
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++)
        if (accepts(PASTA_NV_DRIVER, versions[i].driver) && accepts(PASTA_NV_RUNTIME, versions[i].runtime))
            return i == 0 && accepts(PASTA_NV_DRIVER, versions[i].driver + 1) ? "13.5+" : versions[i].version;
    return "12";
}

/* The first ids that no known library accepts: one that does may have other layouts of structs. */
static bool known_layout(void) {
    static const struct {
        int32_t domain;
        uint32_t id;
    } unknown[] = {
        {PASTA_NV_RESOURCE, 34}, {PASTA_NV_SYNCHRONIZE, 4}, {PASTA_NV_LAUNCH, 4},  {PASTA_NV_MEMCPY, 6},
        {PASTA_NV_MEMSET, 2},    {PASTA_NV_UVM, 2},         {PASTA_NV_GRAPHS, 8},  {PASTA_NV_EVENTS, 11},
        {PASTA_NV_EXTERNAL, 4},
    };
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        if (accepts(unknown[i].domain, unknown[i].id)) {
            pasta_say("CUDA is not recorded: " PASTA_NV_LIBRARY " is newer than this PASTA supports (callback %u of domain %d); "
                      "pip install 'nvidia-cuda-sanitizer-api<13.6', or a newer PASTA",
                      unknown[i].id, unknown[i].domain);
            return false;
        }
    if (!accepts(PASTA_NV_RESOURCE, PASTA_NV_POOL_IMPORT)) {
        pasta_say("CUDA is not recorded: " PASTA_NV_LIBRARY " is older than 12.6; " PASTA_NV_INSTALL);
        return false;
    }
    pasta_nv.layout_13_1 = accepts(PASTA_NV_RESOURCE, PASTA_NV_GREEN_CREATED);
    return true;
}

/* ---- subscription ---- */

static bool enable(void) {
    static const int32_t domains[] = {
        PASTA_NV_RESOURCE, PASTA_NV_SYNCHRONIZE, PASTA_NV_LAUNCH, PASTA_NV_MEMCPY,   PASTA_NV_MEMSET,
        PASTA_NV_UVM,      PASTA_NV_GRAPHS,      PASTA_NV_EVENTS, PASTA_NV_EXTERNAL,
    };
    /* API domains cost two callbacks for every call of the program: only the needed ones */
    static const uint32_t driver_calls[] = {
        PASTA_NV_PROFILER_START, PASTA_NV_PROFILER_STOP, PASTA_NV_ADVISE,      PASTA_NV_ADVISE_V2,
        PASTA_NV_PREFETCH,       PASTA_NV_PREFETCH_PTSZ, PASTA_NV_PREFETCH_V2, PASTA_NV_PREFETCH_V2_PTSZ,
    };
    static const uint32_t runtime_calls[] = {PASTA_NV_RUNTIME_PROFILER_START, PASTA_NV_RUNTIME_PROFILER_STOP};
    void *subscriber = pasta_nv.subscriber;
    for (size_t i = 0; i < sizeof domains / sizeof *domains; i++)
        if (!SUCCEEDED(enable_domain, 1, subscriber, domains[i])) return false;
    if (!SUCCEEDED(enable_callback, 0, subscriber, PASTA_NV_LAUNCH, PASTA_NV_LAUNCH_SET_UP)) return false;
    for (size_t i = 0; i < sizeof driver_calls / sizeof *driver_calls; i++)
        if (!SUCCEEDED(enable_callback, 1, subscriber, PASTA_NV_DRIVER, driver_calls[i])) return false;
    for (size_t i = 0; i < sizeof runtime_calls / sizeof *runtime_calls; i++)
        if (!SUCCEEDED(enable_callback, 1, subscriber, PASTA_NV_RUNTIME, runtime_calls[i])) return false;
    return !pasta_nv_probes_on() || succeeded(pasta_nv_hear_all_calls(), "enable_callback");
}

/* For benchmarks: the cost of a subscription without recording ("nvidia.empty" = 1). */
static void on_nothing(void *user, int32_t domain, uint32_t id, const void *data) {
    (void)user, (void)domain, (void)id, (void)data;
}

static uint32_t subscribed_generation;

/* An earlier CUPTI subscriber receives every callback, and the Sanitizer reports no error. */
static void at_exit(void) {
    if (pasta_generation() == subscribed_generation) pasta_nv_probes_finish();
    if (pasta_nv_delivered() || pasta_generation() != subscribed_generation) return;
    static const char *const names[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *cupti = dlopen(names[i], RTLD_NOW | RTLD_NOLOAD);
        if (!cupti) continue;
        dlclose(cupti);
        pasta_say("CUDA was not recorded: the driver made no callback in this process; if the program "
                  "used the GPU, a CUPTI tool (torch.profiler, nsys, ncu) came first: run without it");
        return;
    }
    pasta_log("%s: no callback came in this process", PASTA_NV_SOURCE);
}

void pasta_nv_start_sanitizer(void) {
    bool empty = pasta_config_u64("nvidia.empty", 0) != 0;
    if (!pasta_nv_load()) return;
    if (!SUCCEEDED(subscribe, &pasta_nv.subscriber, empty ? on_nothing : pasta_nv_on_callback, NULL)) return;
    if (known_layout() && (empty || pasta_use(PASTA_NV_SOURCE, version_of_library()))) {
        subscribed_generation = pasta_generation();
        if (!empty) {
            pasta_nv_read_device_name();
            pasta_nv_probes_set_up(version_of_library());
            pasta_nv_record(true);
            if (pasta_config_u64("empty_while_off", 0)) {
                pasta_on_profiling(pasta_nv_record);
                pasta_on_profiling(pasta_nv_rest_empty);
            }
            atexit(at_exit);
        }
        if (enable()) return;
    }
    if (SUCCEEDED(unsubscribe, pasta_nv.subscriber)) pasta_nv.subscriber = NULL;
}
