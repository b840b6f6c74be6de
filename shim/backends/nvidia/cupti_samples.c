/* PC samples, if `nvidia.pc_sampling` sets an interval.
 *
 * Continuous mode samples all kernels of a context from its creation on, and names no launch.  Serialized mode names
 * it, runs one kernel at a time, and samples the launches that windows and filters select, as they do for probes.
 * CUPTI's threads decode the hardware's buffer; we fetch what they have: regularly, where a module or a context ends,
 * and at exit.  A place that is sampled again and again is one record in some seconds.  Reasons come in pairs, NAME and
 * NAME_not_issued: the first counts the samples of the second too.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cupti_source.h"

enum { CONTEXTS = 64, PCS = 4096, REASONS = 256, FUNCTIONS = 1024, PLACES = 1 << 15 };
enum { FETCHES = 4096, WAIT_S = 1, KEEP_S = 5 };

static struct {
    PASTA_CUPTI_SAMPLING_FUNCTIONS(PASTA_CUPTI_FIELD)
} cupti;

static struct {
    bool on, serialized;
    uint64_t period, scratch, hardware, sleep; /* log2 of cycles, bytes, bytes, ms */
} settings;

/* Number of CUPTI's reasons, pairs of which map to one of ours. */
typedef struct reasons {
    uint32_t count, numbers;  /* ours, CUPTI's */
    uint32_t names[REASONS];  /* ids, of ours */
    uint16_t reason[REASONS]; /* ours, by CUPTI's number; absent: all ones */
    bool not_issued[REASONS]; /* by CUPTI's number */
    bool pairs;
} reasons;

typedef struct sampled {
    uint64_t context; /* 0: free; RETIRED: CUPTI may still write to `left` */
    pasta_nv_place at;
    bool started; /* serialized mode: between start and stop */
    pasta_cupti_samples fetched, left; /* left: CUPTI writes it when sampling ends */
    reasons reasons;
} sampled;

typedef struct place {
    uint64_t crc, offset, ordinal; /* of the launch; absent: all ones */
    uint32_t function, name;
    uint16_t reason, context;     /* ours; index */
    uint32_t samples, not_issued; /* no samples: free */
} place;

#define RETIRED UINT64_MAX

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows */
static sampled contexts[CONTEXTS];
static struct {
    uint64_t crc;
    uint32_t function, name; /* plus one; id */
} functions[FUNCTIONS];
static place places[PLACES]; /* that are not published yet */
static uint32_t place_count;
static uint64_t published_at;
static uint64_t total, dropped, full; /* samples, samples, fetches */
static bool discards; /* profiling is stopped */
static uint32_t sampled_generation;

/* Not in the child of a fork, where CUPTI does not work and the lock may have been held. */
static bool is_on(void) { return settings.on && pasta_generation() == sampled_generation; }

/* CUPTI may hold a lock of its own around a callback, and want it while another thread fetches. */
static bool lock_soon(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_S;
    return pthread_mutex_timedlock(&lock, &until) == 0;
}

/* ---- modules are not fetched for while they are loaded or unloaded: CUPTI's own tables change then ---- */

static uint32_t changing; /* threads in such a call */
static bool fetching;

void pasta_cupti_samples_module_call(bool entering) {
    if (!is_on()) return;
    if (!entering) {
        __atomic_fetch_sub(&changing, 1, __ATOMIC_SEQ_CST);
        return;
    }
    __atomic_fetch_add(&changing, 1, __ATOMIC_SEQ_CST);
    uint64_t until = pasta_now() + WAIT_S * UINT64_C(1000000000);
    while (__atomic_load_n(&fetching, __ATOMIC_SEQ_CST) && pasta_now() < until) sched_yield();
}

static bool may_fetch(void) {
    __atomic_store_n(&fetching, true, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&changing, __ATOMIC_SEQ_CST)) return true;
    __atomic_store_n(&fetching, false, __ATOMIC_SEQ_CST);
    return false;
}

/* ---- publishing ---- */

static pasta_pc_sample *begin(const sampled *s) {
    pasta_pc_sample *e = pasta_begin_result(pasta_thread(), PASTA_EVENT_pc_sample, PASTA_SLOTS(pasta_pc_sample),
                                            s->at.device, s->at.context, PASTA_NO_STREAM);
    if (e) e->name = e->reason = PASTA_STRING_absent;
    return e;
}

/* Samples without a place in the code. */
static void publish_unlocated(const sampled *s, const char *reason, uint64_t samples) {
    uint32_t id = pasta_intern_z(reason);
    do {
        uint32_t some = samples < UINT32_MAX ? (uint32_t)samples : UINT32_MAX - 1;
        pasta_pc_sample *e = begin(s);
        if (!e) return;
        e->reason = id;
        e->samples = some;
        pasta_publish(e);
        samples -= some;
    } while (samples);
}

static uint32_t name_of(const pasta_cupti_pc *pc) {
    uint32_t slot = (uint32_t)((pc->crc ^ pc->function * UINT64_C(0x9e3779b97f4a7c15)) >> 17) % FUNCTIONS;
    if (functions[slot].crc != pc->crc || functions[slot].function != pc->function + 1) {
        functions[slot].crc = pc->crc;
        functions[slot].function = pc->function + 1;
        functions[slot].name = pasta_intern_z(pc->name);
    }
    return functions[slot].name;
}

static void publish_place(const place *p) {
    const sampled *s = &contexts[p->context];
    pasta_pc_sample *e = begin(s);
    if (!e) return;
    e->pc = p->offset;
    e->name = p->name;
    e->reason = s->reasons.names[p->reason];
    e->samples = p->samples;
    if (s->reasons.pairs) e->not_issued = p->not_issued;
    e->ordinal = p->ordinal;
    e->module_hash = p->crc;
    e->symbol = p->function;
    pasta_publish(e);
}

static void publish_places(void) {
    for (uint32_t i = 0; i < PLACES && place_count; i++) {
        if (!places[i].samples) continue;
        publish_place(&places[i]);
        places[i].samples = 0;
        place_count--;
    }
    published_at = pasta_now();
}

static bool is_same(const place *a, const place *b) {
    return a->offset == b->offset && a->crc == b->crc && a->reason == b->reason && a->function == b->function &&
           a->ordinal == b->ordinal && a->context == b->context;
}

static void add_place(const place *sample) {
    uint64_t hash = sample->crc ^ sample->offset << 20 ^ (uint64_t)sample->function << 40 ^ sample->ordinal << 8 ^
                    (uint64_t)sample->context << 52 ^ sample->reason;
    uint32_t i = (uint32_t)(hash * UINT64_C(0x9e3779b97f4a7c15) >> 40) % PLACES;
    while (places[i].samples && !is_same(&places[i], sample)) i = (i + 1) % PLACES;
    place *p = &places[i];
    if (!p->samples) {
        *p = *sample;
        place_count++;
    } else {
        if (sample->samples >= UINT32_MAX - p->samples) {
            publish_place(p);
            p->samples = p->not_issued = 0;
        }
        p->samples += sample->samples;
        p->not_issued += sample->not_issued;
    }
    if (place_count > PLACES / 4 * 3) publish_places();
}

/* Soon after the launch: others take its place among the submitted. */
static uint64_t ordinal_of(uint32_t correlation) {
    pasta_cupti_submitted work;
    bool launched = correlation && pasta_cupti_get(correlation, &work) && work.kind == PASTA_CUPTI_A_LAUNCH;
    return launched ? work.work.ordinal : PASTA_ABSENT_U64;
}

static void add_pc(const sampled *s, const pasta_cupti_pc *pc) {
    const reasons *r = &s->reasons;
    uint32_t samples[REASONS], not_issued[REASONS];
    memset(samples, 0, r->count * sizeof *samples);
    memset(not_issued, 0, r->count * sizeof *not_issued);
    for (uint64_t i = 0; i < pc->stall_count && i < r->numbers; i++) {
        uint32_t number = pc->stalls[i].reason;
        uint16_t reason = number < REASONS ? r->reason[number] : PASTA_ABSENT_U16;
        if (reason == PASTA_ABSENT_U16) continue;
        (r->not_issued[number] ? not_issued : samples)[reason] += pc->stalls[i].samples;
    }
    place p = {.crc = pc->crc, .offset = pc->offset, .ordinal = ordinal_of(pc->correlation), .function = pc->function,
               .name = name_of(pc), .context = (uint16_t)(s - contexts)};
    for (uint16_t i = 0; i < r->count; i++) {
        if (!samples[i] && !not_issued[i]) continue;
        p.reason = i;
        p.samples = samples[i] > not_issued[i] ? samples[i] : not_issued[i];
        p.not_issued = not_issued[i];
        add_place(&p);
    }
}

/* Result of a fetch. */
static void take(const sampled *s, const pasta_cupti_samples *data) {
    if (discards) return;
    for (uint64_t i = 0; i < data->count && i < data->room; i++) add_pc(s, &data->pcs[i]);
    total += data->total;
    dropped += data->dropped;
    if (data->dropped) publish_unlocated(s, "dropped by the hardware", data->dropped);
    if (data->others) publish_unlocated(s, "not a kernel of the program", data->others);
    if (data->buffer_full) {
        publish_unlocated(s, "the hardware's buffer was full", 0);
        full++;
    }
}

/* ---- buffers ---- */

static void free_buffer(pasta_cupti_samples *data) {
    if (data->pcs) free(data->pcs->stalls);
    free(data->pcs);
    *data = (pasta_cupti_samples){0};
}

static void reset(pasta_cupti_samples *data, uint64_t reason_count) {
    data->total = data->dropped = data->others = data->count = data->remaining = 0;
    data->buffer_full = 0;
    for (uint64_t i = 0; i < data->room; i++) data->pcs[i].stall_count = reason_count;
}

static bool make_buffer(pasta_cupti_samples *data, uint64_t reason_count) {
    pasta_cupti_stall *stalls = calloc(PCS * (reason_count + 1), sizeof *stalls);
    *data = (pasta_cupti_samples){.size = sizeof *data, .room = PCS, .pcs = calloc(PCS, sizeof *data->pcs)};
    if (!stalls || !data->pcs) {
        free(stalls);
        free(data->pcs);
        *data = (pasta_cupti_samples){0};
        return false;
    }
    for (uint64_t i = 0; i < PCS; i++) {
        data->pcs[i].size = sizeof *data->pcs;
        data->pcs[i].stalls = stalls + i * reason_count;
    }
    reset(data, reason_count);
    return true;
}

/* ---- fetching ---- */

/* Under the lock.  Before the first data CUPTI reports an invalid operation: measured. */
static void fetch(sampled *s) {
    pasta_cupti_get_samples get = {sizeof get, NULL, s->context, &s->fetched};
    for (int i = 0; i < FETCHES; i++) {
        reset(&s->fetched, s->reasons.numbers);
        int32_t result = cupti.get(&get);
        if (result == PASTA_CUPTI_OUT_OF_MEMORY) s->fetched.buffer_full = 1;
        else if (result == PASTA_CUPTI_INVALID_OPERATION) return;
        else if (result != 0) {
            pasta_say("PC samples are missing: cuptiPCSamplingGetData failed with %d (%s)", result, pasta_cupti_error(result));
            return;
        }
        take(s, &s->fetched);
        if (!s->fetched.count && !s->fetched.remaining) return;
        if (s->fetched.buffer_full && !s->fetched.count) return;
    }
}

static bool is_live(const sampled *s) { return s->context && s->context != RETIRED; }

static void fetch_all(void) {
    for (int i = 0; i < CONTEXTS; i++)
        if (is_live(&contexts[i])) fetch(&contexts[i]);
}

/* On our own thread. */
void pasta_cupti_samples_fetch(void) {
    if (!is_on() || pthread_mutex_trylock(&lock) != 0) return;
    if (may_fetch()) {
        fetch_all();
        __atomic_store_n(&fetching, false, __ATOMIC_SEQ_CST);
    }
    if (pasta_now() - published_at > KEEP_S * UINT64_C(1000000000)) publish_places();
    pthread_mutex_unlock(&lock);
}

/* Offsets are of this module until it is unloaded. */
void pasta_cupti_samples_module_unloading(void) {
    if (!is_on()) return;
    if (!lock_soon()) {
        pasta_log("%s: the samples of a module were not fetched before it was unloaded", PASTA_CUPTI_SOURCE);
        return;
    }
    fetch_all();
    pthread_mutex_unlock(&lock);
}

static void on_profiling(bool on) {
    if (!is_on() || !lock_soon()) return;
    fetch_all(); /* samples taken while profiling was stopped are dropped */
    publish_places();
    discards = !on;
    pthread_mutex_unlock(&lock);
}

/* ---- contexts ---- */

static bool failed(int32_t result, const char *call) {
    bool said = false; /* of each context */
    return pasta_cupti_failed(result, call, "PC samples are not recorded", &said);
}

static bool ends_with(const char *text, const char *suffix) {
    size_t length = strlen(text), of_suffix = strlen(suffix);
    return length > of_suffix && !strcmp(text + length - of_suffix, suffix);
}

/* "smsp__pcsamp_warps_issue_stalled_wait_not_issued" is "wait". */
static void add_reason(reasons *r, uint32_t number, const char *text) {
    static const char prefix[] = "smsp__pcsamp_warps_issue_stalled_", suffix[] = "_not_issued";
    if (number >= REASONS) return;
    if (!strncmp(text, prefix, sizeof prefix - 1)) text += sizeof prefix - 1;
    size_t length = strlen(text);
    r->not_issued[number] = ends_with(text, suffix);
    if (r->not_issued[number]) length -= sizeof suffix - 1, r->pairs = true;
    uint32_t name = pasta_intern(text, length), i = 0;
    while (i < r->count && r->names[i] != name) i++;
    if (i == r->count) r->names[r->count++] = name;
    r->reason[number] = (uint16_t)i;
}

static bool read_reasons(sampled *s) {
    uint64_t count = 0;
    pasta_cupti_reason_count ask = {sizeof ask, NULL, s->context, &count};
    uint32_t numbers[REASONS];
    char texts[REASONS][PASTA_CUPTI_REASON_NAME], *names[REASONS];
    if (failed(cupti.reason_count(&ask), "cuptiPCSamplingGetNumStallReasons")) return false;
    if (count > REASONS) count = REASONS;
    for (int i = 0; i < REASONS; i++) names[i] = texts[i], texts[i][0] = '\0';
    pasta_cupti_reasons get = {sizeof get, NULL, s->context, count, numbers, names};
    if (failed(cupti.reasons(&get), "cuptiPCSamplingGetStallReasons")) return false;
    s->reasons = (reasons){.numbers = (uint32_t)count};
    memset(s->reasons.reason, 0xff, sizeof s->reasons.reason);
    for (uint64_t i = 0; i < count; i++) {
        texts[i][PASTA_CUPTI_REASON_NAME - 1] = '\0';
        add_reason(&s->reasons, numbers[i], texts[i]);
    }
    return true;
}

static bool configure(sampled *s) {
    uint64_t mode = settings.serialized ? PASTA_CUPTI_SAMPLING_SERIALIZED : PASTA_CUPTI_SAMPLING_CONTINUOUS;
    pasta_cupti_sampling_attribute attributes[] = {
        {.type = PASTA_CUPTI_SAMPLING_MODE, .value = mode},
        {.type = PASTA_CUPTI_SAMPLING_PERIOD, .value = settings.period},
        {.type = PASTA_CUPTI_SAMPLING_SCRATCH, .value = settings.scratch},
        {.type = PASTA_CUPTI_SAMPLING_HARDWARE, .value = settings.hardware},
        {.type = PASTA_CUPTI_SAMPLING_SLEEP, .value = settings.sleep},
        {.type = PASTA_CUPTI_SAMPLING_STARTED, .value = settings.serialized},
        {.type = PASTA_CUPTI_SAMPLING_DATA, .value = (uintptr_t)&s->left},
    };
    size_t count = sizeof attributes / sizeof *attributes;
    pasta_cupti_sampling_config config = {sizeof config, NULL, s->context, count, attributes};
    if (failed(cupti.configure(&config), "cuptiPCSamplingSetConfigurationAttribute")) return false;
    for (size_t i = 0; i < count; i++)
        if (attributes[i].status != 0) {
            pasta_say("PC samples are not recorded: CUPTI rejects %llu for attribute %d of PC sampling (%s); see the "
                      "settings nvidia.pc_sampling*",
                      (unsigned long long)attributes[i].value, attributes[i].type, pasta_cupti_error(attributes[i].status));
            return false;
        }
    return true;
}

static bool make_buffers(sampled *s) {
    bool made = make_buffer(&s->fetched, s->reasons.numbers) && make_buffer(&s->left, s->reasons.numbers);
    if (!made) pasta_say("PC samples are not recorded: out of memory");
    return made;
}

static bool disable(sampled *s) {
    pasta_cupti_sampling sampling = {sizeof sampling, NULL, s->context};
    int32_t result = cupti.disable(&sampling);
    if (result == 0) return true;
    pasta_say("the last PC samples of a context are missing: cuptiPCSamplingDisable failed with %d (%s)", result,
              pasta_cupti_error(result));
    return false;
}

/* Where CUPTI was not disabled it may still write to `left`. */
static void forget(sampled *s, bool disabled) {
    free_buffer(&s->fetched);
    if (disabled) free_buffer(&s->left);
    s->context = disabled ? 0 : RETIRED;
}

static bool is_sampled(int16_t device) {
    for (int i = 0; i < CONTEXTS; i++)
        if (is_live(&contexts[i]) && contexts[i].at.device == device) return true;
    return false;
}

/* The reasons of a context are known only after sampling is enabled in it.  Where a second context of a device is
 * sampled, CUPTI may accept it, and then says that the hardware is busy for both: seen on an H200. */
static void add(sampled *s, uint64_t context, pasta_nv_place at) {
    pasta_cupti_sampling sampling = {sizeof sampling, NULL, context};
    if (is_sampled(at.device)) {
        pasta_say("PC samples cover the first of several contexts only: a device samples one at a time");
        return;
    }
    if (failed(cupti.enable(&sampling), "cuptiPCSamplingEnable")) return;
    s->context = context;
    s->at = at;
    s->started = false;
    if (read_reasons(s) && make_buffers(s) && configure(s)) return;
    forget(s, disable(s));
}

void pasta_cupti_samples_context_created(uint64_t context, pasta_nv_place at) {
    if (!is_on()) return;
    if (!lock_soon()) {
        pasta_say("PC samples of a context are not recorded: CUPTI was busy for %d s when it was created", WAIT_S);
        return;
    }
    sampled *s = contexts;
    while (s < contexts + CONTEXTS && s->context) s++;
    if (s < contexts + CONTEXTS) add(s, context, at);
    else pasta_say("PC samples of a context are not recorded: %d others are already sampled", CONTEXTS);
    pthread_mutex_unlock(&lock);
}

static void set_started(sampled *s, bool start) {
    pasta_cupti_sampling sampling = {sizeof sampling, NULL, s->context};
    if (s->started == start) return;
    int32_t result = (start ? cupti.start : cupti.stop)(&sampling);
    if (failed(result, start ? "cuptiPCSamplingStart" : "cuptiPCSamplingStop")) return;
    s->started = start;
    if (!start) fetch(s);
}

/* CUPTI gives what is left when it disables sampling, up to the room of the buffer: so the rest is fetched before. */
static void end(sampled *s) {
    set_started(s, false);
    fetch(s);
    reset(&s->left, s->reasons.numbers);
    bool disabled = disable(s);
    if (disabled) take(s, &s->left);
    publish_places();
    forget(s, disabled);
}

void pasta_cupti_samples_context_destroyed(uint64_t context) {
    if (!context || !is_on() || !lock_soon()) return;
    for (int i = 0; i < CONTEXTS; i++)
        if (contexts[i].context == context) end(&contexts[i]);
    pthread_mutex_unlock(&lock);
}

/* ---- launches, in serialized mode ---- */

bool pasta_cupti_samples_by_launch(void) { return is_on() && settings.serialized; }

static _Thread_local bool taken;

pasta_flags pasta_cupti_samples_decide(const pasta_kernel_launch *launch) {
    taken = pasta_probe_takes(launch).probed;
    return 0; /* it has no probes */
}

void pasta_cupti_samples_launching(uint64_t context) {
    bool start = taken;
    taken = false;
    if (!lock_soon()) {
        pasta_log("%s: CUPTI was busy: a launch has samples though it was not selected, or has none", PASTA_CUPTI_SOURCE);
        return;
    }
    for (int i = 0; i < CONTEXTS; i++)
        if (contexts[i].context == context) set_started(&contexts[i], start);
    pthread_mutex_unlock(&lock);
}

/* ---- start and end ---- */

/* Modules have our hash of their contents. */
static void hash(const void *cubin, uint64_t bytes, uint64_t *crc) { *crc = cubin ? pasta_hash(cubin, bytes) : 0; }

static bool read_settings(void) {
    const char *interval = pasta_config("nvidia.pc_sampling"), *mode = pasta_config("nvidia.pc_sampling_mode");
    if (!interval || !*interval) return false;
    char *unit;
    unsigned long long cycles = strtoull(interval, &unit, 10);
    while (settings.period < 31 && UINT64_C(1) << settings.period < cycles) settings.period++;
    if (strcmp(unit, "cycles") != 0 || settings.period < 5 || cycles != UINT64_C(1) << settings.period) {
        pasta_say("PC samples are not recorded: nvidia.pc_sampling=%s is not a power of two from 32 to 2147483648 cycles, such as "
                  "4096cycles",
                  interval);
        return false;
    }
    settings.serialized = mode && !strcmp(mode, "serialized");
    settings.scratch = pasta_config_u64("nvidia.pc_sampling_scratch", 64 << 20);
    settings.hardware = pasta_config_u64("nvidia.pc_sampling_hardware", 512 << 20);
    settings.sleep = pasta_config_u64("nvidia.pc_sampling_sleep_ms", 10);
    return true;
}

static bool resolve(void) {
    const char *missing = NULL;
    PASTA_CUPTI_SAMPLING_FUNCTIONS(PASTA_CUPTI_FIND)
    if (missing) pasta_say("PC samples are not recorded: the library has no %s; " PASTA_CUPTI_INSTALL, missing);
    return !missing;
}

void pasta_cupti_samples_start(void) {
    if (!read_settings() || !resolve() || failed(cupti.register_crc(hash), "cuptiRegisterComputeCrcCallback")) return;
    discards = !pasta_profiling_is_on();
    pasta_on_profiling(on_profiling);
    published_at = pasta_now();
    sampled_generation = pasta_generation();
    settings.on = true;
}

bool pasta_cupti_samples_on(void) { return is_on(); }

void pasta_cupti_samples_finish(void) {
    if (!is_on() || !lock_soon()) return;
    for (int i = 0; i < CONTEXTS; i++)
        if (is_live(&contexts[i])) end(&contexts[i]);
    if (dropped || full)
        pasta_say("the hardware dropped %llu of %llu PC samples%s: raise nvidia.pc_sampling or "
                  "nvidia.pc_sampling_hardware, or lower nvidia.pc_sampling_sleep",
                  (unsigned long long)dropped, (unsigned long long)total, full ? ", and its buffer was full" : "");
    settings.on = false;
    pthread_mutex_unlock(&lock);
}
