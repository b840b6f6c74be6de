/* When probes run: always, or in windows of launches, steps or seconds, or as often as a budget
 * allows; of the launches in them, every N-th of each kernel.
 *
 * A window is open at the start of each period: its first `length` of every `period` units.  Before
 * the first pasta.step() everything is step 0. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

typedef enum { ALWAYS, LAUNCHES, STEPS, SECONDS, BUDGET } unit;

static struct {
    unit unit;
    uint64_t length, period; /* units; ns for SECONDS */
    uint64_t every, skip, count;
    double budget; /* added time / time without probes */
} settings;

static uint64_t steps;      /* marked so far */
static uint64_t candidates; /* launches that -k and --exclude select */
static uint64_t begun;      /* first question, ns */
static uint32_t was_open, changes;

/* ---- a budget: the distance of windows, from their cost ----
 *
 * A period is a window, as many units after it (the aftermath), and a rest.  The aftermath counts to the
 * window's cost: patches are removed, and a queue of slow launches drains.  The rest gives the cost of a
 * unit without probes.  Both are medians of the last periods, so that a pause of the program has no effect. */

enum { PERIODS = 5, WINDOW_LAUNCHES = 1000, WINDOW_STEPS = 1, MAX_GROWTH = 8 };
typedef enum { WINDOW, AFTERMATH, REST } phase;

typedef struct {
    double values[PERIODS]; /* of the last periods, cyclic */
    uint32_t count;
} median;

static struct {
    uint32_t busy;
    uint32_t open; /* read by launches without the lock, as `end` and `by_steps` */
    uint64_t end;  /* unit at which the phase ends */
    uint32_t by_steps;
    phase phase;
    uint64_t window, rest; /* units */
    uint64_t start, since; /* of the phase that is timed: unit, ns */
    median probed, plain;  /* ns per unit: of a window with its aftermath, of a rest */
} budget;

static void put(median *m, double value) { m->values[m->count++ % PERIODS] = value; }

static double middle(const median *m) {
    double sorted[PERIODS];
    uint32_t count = m->count < PERIODS ? m->count : PERIODS;
    for (uint32_t i = 0, j; i < count; i++) {
        for (j = i; j > 0 && sorted[j - 1] > m->values[i]; j--) sorted[j] = sorted[j - 1];
        sorted[j] = m->values[i];
    }
    return count ? sorted[count / 2] : 0;
}

/* Units of rest at which the added time equals the budget.  The program starts up in the first window,
 * so the rest grows step by step. */
static uint64_t planned_rest(void) {
    double plain = middle(&budget.plain), units = (double)(2 * budget.window);
    double added = units * (middle(&budget.probed) - plain);
    double wanted = plain > 0 && added > 0 ? added / (settings.budget * plain) - units : 0;
    double max = (double)(MAX_GROWTH * budget.rest), min = (double)budget.window;
    if (wanted > max) wanted = max;
    return (uint64_t)(wanted < min ? min : wanted) + 1;
}

static void begin_phase(phase next, uint64_t at, uint64_t units) {
    budget.phase = next;
    __atomic_store_n(&budget.open, next == WINDOW, __ATOMIC_RELAXED);
    __atomic_store_n(&budget.end, at + units, __ATOMIC_RELEASE);
}

static void restart_budget(bool by_steps, uint64_t at) {
    memset(&budget.probed, 0, sizeof budget.probed);
    memset(&budget.plain, 0, sizeof budget.plain);
    budget.window = budget.rest = by_steps ? WINDOW_STEPS : WINDOW_LAUNCHES;
    budget.start = at;
    budget.since = pasta_now();
    __atomic_store_n(&budget.by_steps, by_steps, __ATOMIC_RELAXED);
    begin_phase(WINDOW, at, budget.window);
}

static void next_phase(uint64_t at) {
    if (budget.phase == WINDOW) {
        begin_phase(AFTERMATH, at, budget.window);
        return;
    }
    uint64_t now = pasta_now();
    double each = (double)(now - budget.since) / (double)(at - budget.start);
    put(budget.phase == AFTERMATH ? &budget.probed : &budget.plain, each);
    budget.start = at;
    budget.since = now;
    if (budget.phase == AFTERMATH) {
        if (budget.plain.count) budget.rest = planned_rest();
        begin_phase(REST, at, budget.rest);
    } else {
        begin_phase(WINDOW, at, budget.window);
    }
}

/* Of several threads at the end of a phase one starts the next; the others still see the old one. */
static bool within_budget(uint64_t ordinal) {
    uint64_t step = __atomic_load_n(&steps, __ATOMIC_RELAXED);
    bool by_steps = step > 0;
    uint64_t at = by_steps ? step : ordinal;
    bool same = __atomic_load_n(&budget.by_steps, __ATOMIC_RELAXED) == by_steps;
    if ((!same || at >= __atomic_load_n(&budget.end, __ATOMIC_ACQUIRE)) &&
        !__atomic_exchange_n(&budget.busy, 1, __ATOMIC_ACQUIRE)) {
        if (!budget.window || budget.by_steps != by_steps) restart_budget(by_steps, at);
        else if (at >= budget.end) next_phase(at);
        __atomic_store_n(&budget.busy, 0, __ATOMIC_RELEASE);
    }
    return __atomic_load_n(&budget.open, __ATOMIC_RELAXED);
}

/* ---- configuration ---- */

static void read_window(const char *text) {
    static const char *const units[] = {[LAUNCHES] = "launches ", [STEPS] = "steps ", [SECONDS] = "seconds "};
    settings.unit = ALWAYS;
    for (unit u = LAUNCHES; text && u <= SECONDS; u++) {
        size_t length = strlen(units[u]);
        if (strncmp(text, units[u], length)) continue;
        char *end;
        settings.length = strtoull(text + length, &end, 10);
        settings.period = strtoull(end, NULL, 10);
        settings.unit = settings.period ? u : ALWAYS;
    }
}

static void read_configuration(void) {
    read_window(pasta_config("probe_window"));
    uint64_t millionths = pasta_config_u64("probe_budget", 0);
    if (millionths) settings.unit = BUDGET;
    settings.budget = (double)millionths / 1e6;
    settings.every = pasta_config_u64("probe_every", 1);
    settings.skip = pasta_config_u64("probe_skip", 0);
    settings.count = pasta_config_u64("probe_count", UINT64_MAX);
    pasta_select_configure();
}

/* A fork's child counts from 0. */
static void begin_process(void) {
    steps = candidates = begun = 0;
    was_open = 1;
    memset(&budget, 0, sizeof budget);
    read_configuration();
}

/* 1 + the generation of the process that this state belongs to, and of the one that is preparing it: a
 * lock that another thread of a fork's parent held is void. */
static uint32_t ready, preparing;

static __attribute__((noinline)) void prepare(uint32_t mine) {
    uint32_t held = 0;
    while (!__atomic_compare_exchange_n(&preparing, &held, mine, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        if (held == mine) {
            sched_yield();
            held = 0;
        }
    if (ready != mine) {
        begin_process();
        __atomic_store_n(&ready, mine, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&preparing, 0, __ATOMIC_RELEASE);
}

static void prepare_process(void) {
    uint32_t mine = pasta_generation() + 1;
    if (PASTA_UNLIKELY(__atomic_load_n(&ready, __ATOMIC_ACQUIRE) != mine)) prepare(mine);
}

/* ---- decisions ---- */

static bool within_seconds(void) {
    uint64_t now = pasta_now(), none = 0;
    uint64_t first = __atomic_load_n(&begun, __ATOMIC_RELAXED);
    if (!first && __atomic_compare_exchange_n(&begun, &none, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) first = now;
    if (!first) first = none; /* another thread's */
    return now < first || (now - first) % settings.period < settings.length;
}

static bool is_open(uint64_t ordinal) {
    switch (settings.unit) {
    case LAUNCHES: return ordinal % settings.period < settings.length;
    case STEPS: return __atomic_load_n(&steps, __ATOMIC_RELAXED) % settings.period < settings.length;
    case SECONDS: return within_seconds();
    case BUDGET: return within_budget(ordinal);
    default: return true;
    }
}

bool pasta_probe_selects(uint32_t name, const char *symbol) {
    prepare_process();
    return pasta_select_kernel(name, symbol);
}

bool pasta_probe_wanted(uint64_t ordinal) {
    prepare_process();
    bool open = is_open(ordinal);
    if (PASTA_UNLIKELY(__atomic_load_n(&was_open, __ATOMIC_RELAXED) != open) &&
        __atomic_exchange_n(&was_open, open, __ATOMIC_RELAXED) != open)
        __atomic_fetch_add(&changes, 1, __ATOMIC_RELEASE);
    return open;
}

uint32_t pasta_probe_window_changes(void) { return __atomic_load_n(&changes, __ATOMIC_ACQUIRE); }

bool pasta_probe_always(void) {
    prepare_process();
    return settings.unit == ALWAYS;
}

bool pasta_probe_takes(uint64_t ordinal, uint32_t name) {
    bool open = pasta_probe_wanted(ordinal); /* counts also where the launch is not taken */
    if (settings.skip || settings.count != UINT64_MAX) {
        uint64_t number = __atomic_fetch_add(&candidates, 1, __ATOMIC_RELAXED);
        if (number < settings.skip || number - settings.skip >= settings.count) return false;
    }
    if (!open || settings.every <= 1) return open;
    return pasta_select_launched(name) % settings.every == 0;
}

/* ---- steps ---- */

void pasta_probe_step(void) {
    prepare_process();
    __atomic_fetch_add(&steps, 1, __ATOMIC_RELAXED);
}

/* The open range that began this thread's last step: its stack, and how many ranges of that stack are
 * open from it on.  Ranges inside it belong to that step. */
static __thread struct {
    uint64_t stack;
    uint32_t open;
} step_range;

static bool begins_step(uint32_t name) {
    prepare_process();
    if (step_range.open || !pasta_select_is_step(name)) return false;
    pasta_probe_step();
    return true;
}

void pasta_probe_range(uint32_t name) { (void)begins_step(name); }

void pasta_probe_range_push(uint64_t stack, uint32_t name) {
    if (step_range.open) {
        if (step_range.stack == stack) step_range.open++;
    } else if (begins_step(name)) {
        step_range.stack = stack;
        step_range.open = 1;
    }
}

void pasta_probe_range_pop(uint64_t stack) {
    if (step_range.open && step_range.stack == stack) step_range.open--;
}
