/* Hardware counters by CUPTI's range profiler, if `nvidia.counters` names some.
 *
 * Mode `kernel`: a launch that windows and filters select, as they select for probes, is a range of its own.  It runs
 * alone, and as many times as its counters need passes; CUPTI restores the memory between them, inside the call.
 * Launches of other threads wait meanwhile: their kernels would be counted too.  CUPTI's kernel
 * records are off for it, as they would add to what is counted: its time is a counter as well.
 * Mode `range`: consecutive selected launches of a context, and all that runs beside them, are one range.  Nothing is
 * replayed or made to wait, so that the counters must fit one pass.
 *
 * Instead of counters, a selected launch can have the executions of its instructions: cupti_instructions.c.
 *
 * Data of a range is decoded where it ends, as its memory is needed for the next one.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cupti_source.h"

enum { CONTEXTS = 64, METRICS = 256, WAIT_S = 1 };

static const char time_counter[] = "gpu__time_duration.sum"; /* ns; in a list by this address: not requested */

static struct {
    PASTA_CUPTI_COUNTER_FUNCTIONS(PASTA_CUPTI_FIELD)
} cupti;

/* Values of a launch, or of a range of launches, in one context. */
typedef struct counted {
    uint64_t context; /* 0: free */
    pasta_nv_place at;
    bool prepared, failed, started;
    void *host, *profiler; /* profiler: NULL while another context of the device has it */
    uint8_t *config, *data;
    uint64_t config_bytes, data_bytes;
    const char *names[METRICS];
    uint32_t ids[METRICS]; /* of the names */
    uint64_t count;
    uint64_t first, last; /* ordinals */
} counted;

static struct {
    bool on, ranges, instructions;
    char *text; /* of the names, each ended by 0 */
    const char *names[METRICS];
    bool of_group[METRICS]; /* the user did not name it: a chip need not have it */
    uint64_t count;
} settings;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows; in mode `kernel` during a launch */
static counted contexts[CONTEXTS];
static uint64_t lost, unavailable; /* ranges, values */
static uint32_t counting_generation;

/* Of this thread's launch. */
static _Thread_local struct {
    bool selected, locked;
    uint64_t ns;
    counted *counts;
    pasta_cupti_counted_launch launch;
    uint64_t context; /* where its instructions are counted; 0: they are not */
} here;

static bool is_on(void) { return settings.on && pasta_generation() == counting_generation; }
bool pasta_cupti_counters_on(void) { return is_on(); }
bool pasta_cupti_counters_wait(void) { return settings.instructions && is_on(); }

/* A launch may wait for what another thread launches, while CUPTI waits for this one. */
static bool lock_soon(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_S;
    return pthread_mutex_timedlock(&lock, &until) == 0;
}

static bool failed(int32_t result, const char *call) {
    static bool said;
    return pasta_cupti_failed(result, call, "counters are not recorded", &said);
}

static void *allocated(uint64_t bytes) {
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory) pasta_say("counters are not recorded: out of memory");
    return memory;
}

/* ---- which counters: the host's part ---- */

static void *new_host(const char *chip, const uint8_t *availability, int32_t *result) {
    pasta_cupti_host host = {.size = PASTA_CUPTI_SIZE(pasta_cupti_host, object), .type = PASTA_CUPTI_RANGE_PROFILER,
                             .chip = chip, .availability = availability};
    *result = cupti.host(&host);
    return *result == 0 ? host.object : NULL;
}

static void end_host(void *host) {
    if (host) cupti.end_host(&(pasta_cupti_profiler){sizeof(pasta_cupti_profiler), NULL, host});
}

static int32_t add(void *host, const char *const *names, uint64_t count) {
    return cupti.add_metrics(&(pasta_cupti_metrics){sizeof(pasta_cupti_metrics), NULL, host, names, count});
}

/* One unknown name makes CUPTI refuse all, and an object that has refused is of no use: each is tried alone. */
static void keep_known(counted *c, const char *chip, const uint8_t *availability) {
    int32_t result;
    c->count = 0;
    for (uint64_t i = 0; i < settings.count; i++) {
        void *host = new_host(chip, availability, &result);
        if (host && add(host, &settings.names[i], 1) == 0) c->names[c->count++] = settings.names[i];
        else if (settings.of_group[i])
            pasta_log("%s: %s has no counter %s", PASTA_CUPTI_SOURCE, chip, settings.names[i]);
        else
            pasta_say("nvidia.counters: %s has no counter %s; `pasta doctor --counters` lists the counters that it has", chip,
                      settings.names[i]);
        end_host(host);
    }
}

static bool choose(counted *c, const char *chip, const uint8_t *availability) {
    int32_t result;
    memcpy(c->names, settings.names, sizeof c->names);
    c->count = settings.count;
    c->host = new_host(chip, availability, &result);
    if (failed(result, "cuptiProfilerHostInitialize")) return false;
    if (add(c->host, c->names, c->count) == 0) return true;
    end_host(c->host);
    c->host = NULL;
    keep_known(c, chip, availability);
    if (!c->count) return false;
    c->host = new_host(chip, availability, &result);
    return !failed(result, "cuptiProfilerHostInitialize") &&
           !failed(add(c->host, c->names, c->count), "cuptiProfilerHostConfigAddMetrics");
}

/* Once, as all contexts need about as many. */
static bool allows_passes(const counted *c, uint64_t passes) {
    static bool said;
    unsigned long long counters = 0, times = passes;
    for (uint64_t i = 0; i < c->count; i++) counters += c->names[i] != time_counter;
    if (settings.ranges && passes > 1) {
        pasta_say("counters are not recorded: these %llu need %llu passes, but a range runs once: name fewer in "
                  "nvidia.counters, or set nvidia.counters_mode=kernel",
                  counters, times);
        return false;
    }
    if (passes > 1 && !said)
        pasta_say("each selected kernel runs %llu times: %llu counters need as many passes", times, counters);
    else
        pasta_log("%s: %llu counters in %llu passes", PASTA_CUPTI_SOURCE, counters, times);
    said = true;
    return true;
}

static bool configure(counted *c) {
    pasta_cupti_image_size size = {sizeof size, NULL, c->host, 0};
    if (failed(cupti.config_size(&size), "cuptiProfilerHostGetConfigImageSize")) return false;
    c->config_bytes = size.bytes;
    if (!(c->config = allocated(c->config_bytes))) return false;
    pasta_cupti_image image = {sizeof image, NULL, c->host, c->config_bytes, c->config};
    if (failed(cupti.config(&image), "cuptiProfilerHostGetConfigImage")) return false;
    pasta_cupti_passes passes = {sizeof passes, NULL, c->config_bytes, c->config, 0};
    return !failed(cupti.passes(&passes), "cuptiProfilerHostGetNumOfPasses") && allows_passes(c, passes.passes);
}

/* Which of the chip's counters this device allows.  Missing privileges show here. */
static uint8_t *availability_of(uint64_t context) {
    static const char call[] = "cuptiProfilerGetCounterAvailability";
    pasta_cupti_availability a = {.size = PASTA_CUPTI_SIZE(pasta_cupti_availability, image), .context = context};
    if (failed(cupti.availability(&a), call) || !(a.image = allocated(a.bytes))) return NULL;
    if (!failed(cupti.availability(&a), call)) return a.image;
    free(a.image);
    return NULL;
}

static bool prepare(counted *c) {
    uint32_t device = 0;
    pasta_cupti_profiler_initialize start = {sizeof start, NULL};
    if (failed(cupti.initialize(&start), "cuptiProfilerInitialize")) return false;
    if (failed(pasta_cupti.device_of(c->context, &device), "cuptiGetDeviceId")) return false;
    pasta_cupti_chip chip = {sizeof chip, NULL, device, NULL};
    if (failed(cupti.chip(&chip), "cuptiDeviceGetChipName")) return false;
    uint8_t *availability = availability_of(c->context);
    bool good = availability && choose(c, chip.name, availability) && configure(c);
    free(availability);
    for (uint64_t i = 0; i < c->count; i++) c->ids[i] = pasta_intern_z(c->names[i]);
    return good;
}

/* ---- the device's part ---- */

static bool reset_data(counted *c) {
    pasta_cupti_image image = {sizeof image, NULL, c->profiler, c->data_bytes, c->data};
    return !failed(cupti.initialize_data(&image), "cuptiRangeProfilerCounterDataImageInitialize");
}

static bool set_config(counted *c) {
    pasta_cupti_range_config config = {
        .size = PASTA_CUPTI_SIZE(pasta_cupti_range_config, level), .object = c->profiler, .config_bytes = c->config_bytes,
        .config = c->config, .data_bytes = c->data_bytes, .data = c->data,
        .range = settings.ranges ? PASTA_CUPTI_USER_RANGE : PASTA_CUPTI_AUTO_RANGE,
        .replay = settings.ranges ? PASTA_CUPTI_USER_REPLAY : PASTA_CUPTI_KERNEL_REPLAY,
        .max_ranges = 1, .levels = 1, .first_level = 1, .level = 1};
    return !failed(cupti.configure(&config), "cuptiRangeProfilerSetConfig");
}

static bool make_data(counted *c) {
    pasta_cupti_data_size size = {.size = sizeof size, .object = c->profiler, .names = c->names, .count = c->count,
                                  .ranges = 1, .nodes = 1};
    if (failed(cupti.data_size(&size), "cuptiRangeProfilerGetCounterDataSize")) return false;
    free(c->data);
    c->data_bytes = size.bytes;
    return (c->data = allocated(c->data_bytes)) && reset_data(c) && set_config(c);
}

static void disable(counted *c) {
    if (!c->profiler) return;
    int32_t result = cupti.disable(&(pasta_cupti_profiler){sizeof(pasta_cupti_profiler), NULL, c->profiler});
    if (result != 0)
        pasta_log("%s: cuptiRangeProfilerDisable failed with %d (%s)", PASTA_CUPTI_SOURCE, result, pasta_cupti_error(result));
    c->profiler = NULL;
}

static void end_range(counted *c, bool decodes);

/* One context of a device has its counters at a time: while another has, CUPTI does not even say which there are. */
static void release_device(const counted *c) {
    for (int i = 0; i < CONTEXTS; i++)
        if (&contexts[i] != c && contexts[i].profiler && contexts[i].at.device == c->at.device) {
            end_range(&contexts[i], true);
            disable(&contexts[i]);
        }
}

static bool enable(counted *c) {
    pasta_cupti_enable_ranges e = {.size = PASTA_CUPTI_SIZE(pasta_cupti_enable_ranges, object), .context = c->context};
    if (failed(cupti.enable(&e), "cuptiRangeProfilerEnable")) return false;
    c->profiler = e.object;
    return make_data(c);
}

/* ---- values ---- */

static void publish(const counted *c, const double *values) {
    uint32_t instance = 0;
    char text[64];
    if (settings.ranges) {
        snprintf(text, sizeof text, "launches %llu to %llu", (unsigned long long)c->first, (unsigned long long)c->last);
        instance = pasta_intern_z(text);
    }
    for (uint64_t i = 0; i < c->count; i++) {
        if (!strcmp(c->names[i], time_counter) && !isnan(values[i])) here.ns = (uint64_t)values[i];
        if (c->names[i] == time_counter) continue;
        if (isnan(values[i])) {
            unavailable++;
            continue;
        }
        pasta_counter *e = pasta_begin_result(pasta_thread(), PASTA_EVENT_counter, PASTA_SLOTS(pasta_counter), c->at.device,
                                              c->at.context, PASTA_NO_STREAM);
        if (!e) return;
        e->ordinal = settings.ranges ? PASTA_ABSENT_U64 : c->first;
        e->value = values[i];
        e->name = c->ids[i];
        e->instance = instance;
        pasta_publish(e);
    }
}

static bool evaluate(counted *c) {
    double values[METRICS];
    pasta_cupti_decode decode = {sizeof decode, NULL, c->profiler, 0};
    if (failed(cupti.decode(&decode), "cuptiRangeProfilerDecodeData")) return false;
    pasta_cupti_range_count count = {sizeof count, NULL, c->data, c->data_bytes, 0};
    if (failed(cupti.count(&count), "cuptiRangeProfilerGetCounterDataInfo")) return false;
    if (decode.dropped || count.ranges != 1) {
        lost++; /* no kernel ran, or others ran too */
        return true;
    }
    for (uint64_t i = 0; i < c->count; i++) values[i] = NAN;
    pasta_cupti_values get = {.size = sizeof get, .object = c->host, .image = c->data, .bytes = c->data_bytes,
                              .names = c->names, .count = c->count, .values = values};
    if (failed(cupti.values(&get), "cuptiProfilerHostEvaluateToGpuValues")) return false;
    publish(c, values);
    return true;
}

/* ---- ranges ---- */

static void begin_range(counted *c) {
    pasta_cupti_profiler profiler = {sizeof profiler, NULL, c->profiler};
    c->failed = failed(cupti.start(&profiler), "cuptiRangeProfilerStart");
    if (c->failed) return;
    c->started = true;
    pasta_cupti_push_range range = {sizeof range, NULL, c->profiler, "range"};
    if (settings.ranges && failed(cupti.push(&range), "cuptiRangeProfilerPushRange")) {
        end_range(c, false);
        c->failed = true;
    }
}

static void end_range(counted *c, bool decodes) {
    if (!c->started) return;
    pasta_cupti_profiler profiler = {sizeof profiler, NULL, c->profiler};
    pasta_cupti_stop_ranges stop = {.size = PASTA_CUPTI_SIZE(pasta_cupti_stop_ranges, complete), .object = c->profiler};
    c->started = false;
    bool popped = !settings.ranges || !decodes || !failed(cupti.pop(&profiler), "cuptiRangeProfilerPopRange");
    c->failed = failed(cupti.stop(&stop), "cuptiRangeProfilerStop") || !popped || (decodes && !evaluate(c)) || !reset_data(c);
}

static counted *find(uint64_t context) {
    for (int i = 0; i < CONTEXTS; i++)
        if (contexts[i].context == context) return &contexts[i];
    return NULL;
}

/* NULL: nothing can be counted in it. */
static counted *counted_in(uint64_t context) {
    counted *c = find(context);
    if (!c && (c = find(0))) {
        c->context = context;
        c->at = pasta_nv_place_here(context);
    }
    if (!c || c->failed) return NULL;
    if (c->profiler) return c;
    release_device(c);
    if (!c->prepared) c->failed = !prepare(c);
    c->prepared = true;
    if (!c->failed) c->failed = !enable(c);
    return c->failed ? NULL : c;
}

/* ---- launches ---- */

pasta_flags pasta_cupti_counters_decide(const pasta_kernel_launch *launch) {
    here.selected = pasta_probe_takes(launch).probed;
    here.launch = (pasta_cupti_counted_launch){launch->ordinal, launch->name, {0}};
    return 0; /* it has no probes */
}

/* Records of kernels add instructions to them, which would be counted. */
static void time_kernels(bool on) {
    static bool untimed;
    if (untimed == !on || (!on && pasta_cupti_guest_wants_records(PASTA_CUPTI_KERNEL))) return;
    int32_t result = on ? pasta_cupti.enable(PASTA_CUPTI_KERNEL) : pasta_cupti.disable(PASTA_CUPTI_KERNEL);
    if (result == 0) untimed = !on;
    else pasta_log("%s: records of kernels, %d: %s", PASTA_CUPTI_SOURCE, on, pasta_cupti_error(result));
}

static void count_instructions(uint64_t context) {
    here.context = pasta_cupti_instructions_begin(context) ? context : 0;
}

static void count_kernel(uint64_t context) {
    counted *c = counted_in(context);
    if (!c) return;
    c->first = c->last = here.launch.ordinal;
    time_kernels(false);
    begin_range(c);
    here.counts = c->started ? c : NULL;
}

static void count_range(uint64_t context, bool selected) {
    counted *c = selected ? counted_in(context) : find(context);
    if (!c) return;
    if (!selected) end_range(c, true);
    else if (!c->started) {
        c->first = here.launch.ordinal;
        begin_range(c);
    }
    c->last = here.launch.ordinal;
}

void pasta_cupti_counters_launching(uint64_t context, const pasta_cupti_arguments *arguments) {
    bool of_graph = !arguments;
    bool selected = here.selected && !of_graph;
    if (!is_on() || (of_graph && settings.ranges)) return;
    if (!of_graph) here.selected = false;
    if (here.locked) pasta_cupti_counters_launched(false); /* the return of a launch was not reported */
    if (!lock_soon()) {
        if (selected) pasta_log("%s: CUPTI was busy: a selected launch has no counters", PASTA_CUPTI_SOURCE);
        return;
    }
    if (settings.ranges) {
        count_range(context, selected);
        pthread_mutex_unlock(&lock);
        return;
    }
    here.locked = true;
    here.ns = 0;
    if (arguments) here.launch.arguments = *arguments;
    if (selected && settings.instructions) count_instructions(context);
    else if (selected) count_kernel(context);
    if (!here.counts && !settings.instructions) time_kernels(true);
}

uint64_t pasta_cupti_counters_launched(bool succeeded) {
    if (!here.locked || !is_on()) return 0;
    if (here.counts) end_range(here.counts, succeeded);
    here.counts = NULL;
    if (here.context) pasta_cupti_instructions_end(here.context, succeeded ? &here.launch : NULL);
    here.context = 0;
    here.locked = false;
    pthread_mutex_unlock(&lock);
    return here.ns;
}

static void end(counted *c) {
    end_range(c, true);
    disable(c);
    end_host(c->host);
    free(c->config);
    free(c->data);
    *c = (counted){0};
}

void pasta_cupti_counters_context_destroyed(uint64_t context) {
    if (!context || !is_on() || !lock_soon()) return;
    counted *c = find(context);
    if (c) end(c);
    pthread_mutex_unlock(&lock);
}

static void on_profiling(bool on) {
    if (on || !is_on() || !settings.ranges || !lock_soon()) return;
    for (int i = 0; i < CONTEXTS; i++)
        if (contexts[i].context) end_range(&contexts[i], true);
    pthread_mutex_unlock(&lock);
}

/* ---- start and end ---- */

static bool read_settings(void) {
    const char *names = pasta_config("nvidia.counters"), *mode = pasta_config("nvidia.counters_mode");
    char *rest = NULL;
    if (!names || !*names || !(settings.text = strdup(names))) return false;
    for (char *name = strtok_r(settings.text, ",", &rest); name; name = strtok_r(NULL, ",", &rest))
        if (settings.count < METRICS) {
            settings.of_group[settings.count] = *name == '?';
            settings.names[settings.count++] = name + (*name == '?');
        } else {
            pasta_say("counters are not recorded: nvidia.counters names more than %d", METRICS);
            return false;
        }
    settings.ranges = mode && !strcmp(mode, "range");
    if (settings.count && settings.count < METRICS && !settings.ranges) {
        settings.of_group[settings.count] = true;
        settings.names[settings.count++] = time_counter;
    }
    return settings.count > 0;
}

/* CUPTI asks the loader for these by name, and would get those of a toolkit of another version. */
static void load_beside(void) {
    static const char *const names[] = {"libnvperf_host.so", "libnvperf_target.so"};
    char path[4096];
    Dl_info info;
    if (!dladdr((void *)(uintptr_t)cupti.host, &info) || !info.dli_fname) return;
    const char *slash = strrchr(info.dli_fname, '/');
    int directory = slash ? (int)(slash - info.dli_fname) : 0;
    for (size_t i = 0; directory && i < sizeof names / sizeof *names; i++) {
        if (snprintf(path, sizeof path, "%.*s/%s", directory, info.dli_fname, names[i]) >= (int)sizeof path) continue;
        if (!dlopen(path, RTLD_NOW | RTLD_LOCAL)) pasta_log("%s: %s", PASTA_CUPTI_SOURCE, dlerror());
    }
}

static bool resolve(void) {
    const char *missing = NULL;
    PASTA_CUPTI_COUNTER_FUNCTIONS(PASTA_CUPTI_FIND)
    if (missing) pasta_say("counters are not recorded: the library has no %s; " PASTA_CUPTI_INSTALL, missing);
    return !missing;
}

void pasta_cupti_counters_start(void) {
    settings.instructions = pasta_cupti_instructions_start();
    bool counters = read_settings();
    if (counters && settings.instructions) {
        pasta_say("instructions are not counted: nvidia.counters is set; run the program twice, once with each");
        settings.instructions = false;
    }
    if (!settings.instructions && (!counters || !resolve())) return;
    if (pasta_cupti_samples_on()) {
        pasta_say("%s: PC sampling uses the hardware; run the program twice, once with each",
                  settings.instructions ? "instructions are not counted" : "counters are not recorded");
        return;
    }
    if (counters) load_beside();
    pasta_on_profiling(on_profiling);
    counting_generation = pasta_generation();
    settings.on = true;
}

void pasta_cupti_counters_finish(void) {
    if (!is_on() || !lock_soon()) return;
    for (int i = 0; i < CONTEXTS; i++)
        if (contexts[i].context) end(&contexts[i]);
    pasta_cupti_instructions_finish();
    if (lost)
        pasta_say("%llu %s no counters: CUPTI saw no kernel in them, or more than one", (unsigned long long)lost,
                  settings.ranges ? "ranges have" : "selected launches have");
    if (unavailable)
        pasta_say("%llu counter values are missing: the device did not provide them", (unsigned long long)unavailable);
    settings.on = false;
    pthread_mutex_unlock(&lock);
}
