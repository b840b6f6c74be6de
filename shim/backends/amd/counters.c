/* Hardware counters of each launch, if `amd.counters` is set.
 *
 * Before a dispatch the SDK asks for a configuration, and delivers the values after its completion: one for
 * each instance of a counter in the device (a shader engine, an XCC, …).
 *
 * Written to the headers of 1.x; it has never run on hardware.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "source.h"

enum { MAX_COUNTERS = 64, MAX_NAME = 256 };

#define POINTER(name, symbol, arguments) int32_t(*name) arguments;
static struct {
    PASTA_AMD_COUNTING(POINTER)
} sdk;

static bool succeeded(int32_t status, const char *what) {
    if (status != 0)
        pasta_say("counters are not recorded: %s failed with %d (%s); run without amd.counters", what, status,
                  pasta_amd_status(status));
    return status == 0;
}

static bool resolve(void) {
    const char *missing = NULL;
#define RESOLVE(name, symbol, arguments) PASTA_AMD_RESOLVE(sdk, name, symbol)
    PASTA_AMD_COUNTING(RESOLVE)
    if (missing) pasta_say("counters are not recorded: the SDK has no %s; run without amd.counters", missing);
    return !missing;
}

/* ---- selection: names to the SDK's ids, for each device ---- */

typedef struct wanted {
    const char *names; /* separated by commas */
    uint64_t ids[MAX_COUNTERS];
    size_t count;
} wanted;

static bool is_named(const char *list, const char *name) {
    size_t length = strlen(name);
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!strncmp(at, name, length) && (at[length] == ',' || !at[length])) return true;
    return false;
}

static const char *name_of(uint64_t counter) {
    pasta_amd_counter_info info = {0};
    return sdk.counter_info(counter, PASTA_AMD_COUNTER_INFO_VERSION, &info) == 0 ? info.name : NULL;
}

static int32_t on_counters(uint64_t agent, uint64_t *counters, size_t count, void *user) {
    wanted *w = user;
    (void)agent;
    for (size_t i = 0; i < count && w->count < MAX_COUNTERS; i++) {
        const char *name = name_of(counters[i]);
        if (name && is_named(w->names, name)) w->ids[w->count++] = counters[i];
    }
    return 0;
}

static void say_unknown(const wanted *w, const char *device) {
    for (const char *at = w->names; at && *at;) {
        const char *comma = strchr(at, ',');
        size_t length = comma ? (size_t)(comma - at) : strlen(at);
        bool known = false;
        for (size_t i = 0; i < w->count && !known; i++) {
            const char *name = name_of(w->ids[i]);
            known = name && strlen(name) == length && !strncmp(at, name, length);
        }
        if (!known && length)
            pasta_say("amd.counters: %s has no counter %.*s; `pasta doctor --counters` lists the counters that it has", device,
                      (int)length, at);
        at = comma ? comma + 1 : NULL;
    }
}

static uint64_t configs[PASTA_AMD_DEVICES]; /* the SDK's, by device; 0: nothing is counted there */

static bool configure(const char *names) {
    bool any = false;
    uint64_t agent;
    const char *device;
    for (int16_t i = 0; i < PASTA_AMD_DEVICES && pasta_amd_gpu(i, &agent, &device); i++) {
        wanted w = {.names = names};
        if (!succeeded(sdk.each_counter(agent, on_counters, &w), "the list of counters")) continue;
        say_unknown(&w, device ? device : "the device");
        if (!w.count || !succeeded(sdk.create_config(agent, w.ids, w.count, &configs[i]), "their configuration"))
            continue;
        any = true;
    }
    return any;
}

/* ---- instances: which counter, and where ---- */

static pasta_amd_map instances; /* ids of two strings, by the SDK's id */

typedef struct position {
    uint64_t instance;
    char text[MAX_NAME];
    size_t length;
} position;

static int32_t on_dimensions(uint64_t counter, const pasta_amd_dimension *dimensions, size_t count, void *user) {
    position *p = user;
    (void)counter;
    for (size_t i = 0; i < count; i++) {
        size_t at;
        if (dimensions[i].positions < 2 || sdk.position(p->instance, dimensions[i].id, &at) != 0) continue;
        int more = snprintf(p->text + p->length, sizeof p->text - p->length, "%s%s=%zu", p->length ? "," : "",
                            dimensions[i].name ? dimensions[i].name : "", at);
        if (more < 0 || (size_t)more >= sizeof p->text - p->length) break;
        p->length += (size_t)more;
    }
    return 0;
}

static uint64_t describe(uint64_t instance) {
    uint64_t known, counter;
    if (pasta_amd_get(&instances, instance, &known)) return known;
    position p = {.instance = instance};
    uint32_t name = 0;
    if (sdk.counter_of(instance, &counter) == 0) {
        name = pasta_intern_z(name_of(counter));
        sdk.each_dimension(counter, on_dimensions, &p);
    }
    known = name | (uint64_t)(p.length ? pasta_intern(p.text, p.length) : 0) << 32;
    pasta_amd_put(&instances, instance, known);
    return known;
}

/* ---- launches ---- */

static pasta_amd_odd unlaunched = {.what = "counters of unknown dispatches"};

static void on_dispatch(pasta_amd_counting d, uint64_t *config, uint64_t *user, void *own) {
    (void)user, (void)own;
    int16_t device = pasta_amd_records() && pasta_profiling_is_on() ? pasta_amd_place_of(d.info.agent).device
                                                                    : PASTA_NO_DEVICE;
    if (device != PASTA_NO_DEVICE && configs[device]) *config = configs[device];
}

static void on_counted(pasta_amd_counting d, pasta_amd_count_value *values, size_t count, uint64_t user, void *own) {
    uint64_t ordinal;
    (void)user, (void)own;
    if (!pasta_amd_records()) return;
    if (!pasta_amd_ordinal_of(d.info.dispatch, &ordinal)) {
        pasta_amd_count(&unlaunched, d.info.dispatch);
        return;
    }
    pasta_amd_place at = pasta_amd_place_of(d.info.agent);
    for (size_t i = 0; i < count; i++) {
        uint64_t described = describe(values[i].instance);
        pasta_counter *e = PASTA_BEGIN(counter, at.device, at.context, PASTA_NO_STREAM);
        if (!e) return;
        e->ordinal = ordinal;
        e->value = values[i].value;
        e->name = (uint32_t)described;
        e->instance = (uint32_t)(described >> 32);
        pasta_publish(e);
    }
}

void pasta_amd_count_launches(void) {
    const char *names = pasta_config("amd.counters");
    uint64_t context = 0;
    if (!names || !*names) return;
    if (!pasta_amd_new_layout()) { /* values have another size in the headers of 0.5; headers of 0.6 were not available */
        pasta_say("counters are not recorded: they need rocprofiler-sdk 1.0 (ROCm 7) or newer");
        return;
    }
    if (!resolve() || !configure(names)) return;
    pasta_amd_keep_ordinals();
    if (succeeded(pasta_amd.create_context(&context), "rocprofiler_create_context") &&
        succeeded(sdk.count_dispatches(context, on_dispatch, NULL, on_counted, NULL), "the counting service"))
        succeeded(pasta_amd.start_context(context), "rocprofiler_start_context");
}
