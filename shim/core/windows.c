/* When probes run: always, or in windows of launches, steps or seconds, or as often as a budget (budget.c)
 * allows; of the launches in them, every N-th of each kernel, or as many of each shape as are enough (shapes.c).
 *
 * A window is open at the start of each period: its first `length` of every `period` units.  Before
 * the first pasta.step() everything is step 0. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>

#include "probing.h"

typedef enum { ALWAYS, LAUNCHES, STEPS, SECONDS, BUDGET } unit;

static struct {
    unit unit;
    uint64_t length, period; /* units; ns for SECONDS */
    uint64_t every, skip, count;
    bool in_scope; /* launches are selected by what is open around them */
    bool always;   /* every launch is probed */
    bool returns;  /* of launch calls are recorded */
    bool rests;    /* see pasta_probe_rests */
} settings PASTA_WARM;

static uint64_t steps;      /* marked so far */
static uint64_t candidates; /* launches that -k and --exclude select */
static uint64_t begun;      /* first question, ns */

/* ---- configuration ---- */

static void read_window(void) {
    static const char *const units[] = {[LAUNCHES] = "launches", [STEPS] = "steps", [SECONDS] = "seconds"};
    settings.unit = ALWAYS;
    for (unit u = LAUNCHES; u <= SECONDS; u++) {
        pasta_window found = pasta_config_window("probe_window", units[u]);
        if (!found.period) continue;
        settings.unit = u;
        settings.length = found.length;
        settings.period = found.period;
    }
}

static void read_configuration(void) {
    read_window();
    settings.every = pasta_config_u64("probe_every", 1);
    settings.skip = pasta_config_u64("probe_skip", 0);
    settings.count = pasta_config_u64("probe_count", UINT64_MAX);
    uint64_t enough = pasta_config_u64("probe_enough", 0), spot_check = pasta_config_u64("probe_spot_check", 0);
    uint64_t millionths = pasta_config_u64("probe_budget", 0), percent = pasta_config_u64("probe_factor", 2000);
    if (millionths) settings.unit = BUDGET;
    pasta_shapes_configure((pasta_sampling){.enough = enough && enough < UINT32_MAX ? (uint32_t)enough : UINT32_MAX,
                                            .spot_check = spot_check < UINT32_MAX ? (uint32_t)spot_check : 0,
                                            .in_windows = settings.unit != ALWAYS});
    pasta_budget_begin((pasta_budget){.share = (double)millionths / 1e6, .factor = (double)percent / 100, .sampled = enough > 0});
    bool selects = pasta_select_configure();
    bool by_shape = enough && (settings.unit == ALWAYS || settings.unit == BUDGET);
    settings.in_scope = pasta_scope_configure(enough > 0, by_shape && pasta_config_u64("probe_pause", 0));
    selects = selects || settings.in_scope;
    settings.returns = pasta_config_u64("probe_returns", 1);
    bool at_all_times = settings.unit == ALWAYS && settings.every <= 1 && !settings.skip && settings.count == UINT64_MAX;
    settings.rests = at_all_times && enough && !settings.returns && !settings.in_scope;
    settings.always = at_all_times && !enough && !selects;
}

/* A fork's child counts from 0. */
static void begin_process(void) {
    steps = candidates = begun = 0;
    read_configuration();
}

/* 1 + the generation of the process that this state belongs to, and of the one that is preparing it: a
 * lock that another thread of a fork's parent held is void. */
static uint32_t ready PASTA_HOT, preparing;

static PASTA_APART void prepare(uint32_t mine) {
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

void pasta_probe_configure(void) { prepare_process(); }

/* ---- decisions ---- */

static bool within_seconds(void) {
    uint64_t now = pasta_now(), none = 0;
    uint64_t first = __atomic_load_n(&begun, __ATOMIC_RELAXED);
    if (!first && __atomic_compare_exchange_n(&begun, &none, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) first = now;
    if (!first) first = none; /* another thread's */
    return now < first || (now - first) % settings.period < settings.length;
}

static bool is_open(uint64_t ordinal) {
    uint64_t marked = __atomic_load_n(&steps, __ATOMIC_RELAXED);
    switch (settings.unit) {
    case LAUNCHES: return ordinal % settings.period < settings.length;
    case STEPS: return marked % settings.period < settings.length;
    case SECONDS: return within_seconds();
    case BUDGET: return pasta_budget_is_open(ordinal, marked);
    default: return true;
    }
}

/* Whether a number of a selected launch lies between skip and count. */
static bool is_counted(uint64_t number) { return number >= settings.skip && number - settings.skip < settings.count; }

bool pasta_probe_selects(uint32_t name, const char *symbol) {
    prepare_process();
    return pasta_select_kernel(name, symbol);
}

bool pasta_probe_wanted(uint64_t ordinal) {
    prepare_process();
    return is_open(ordinal) && is_counted(__atomic_load_n(&candidates, __ATOMIC_RELAXED));
}

bool pasta_probe_always(void) {
    prepare_process();
    return settings.always;
}

bool pasta_probe_rests(void) {
    prepare_process();
    return settings.rests;
}

bool pasta_probe_records_returns(void) {
    prepare_process();
    return settings.returns;
}

/* ---- decisions that are put off ---- */

typedef struct {
    pasta_shaped launch;
    pasta_scope scope;
} put_off;

enum { MOST_PUT_OFF = 64, LINES = 64 };

/* Waiting launches of a thread, in order. Not in thread-local storage, which would take them from the thread's stack. */
typedef struct {
    uint32_t count, generation;
    put_off launches[MOST_PUT_OFF];
} line;
static line lines[LINES];
static uint32_t lines_taken;        /* each for good */
static _Thread_local line *waiting; /* NULL: none yet, or none was left */

static PASTA_APART bool takes_line(void) {
    if (LOAD(lines_taken) == LINES) return false;
    uint32_t mine = __atomic_fetch_add(&lines_taken, 1, __ATOMIC_RELAXED);
    if (mine < LINES) waiting = &lines[mine];
    else STORE(lines_taken, LINES);
    return mine < LINES;
}

static void (*on_settled)(uint64_t ordinal, uint64_t module, pasta_probe_decision decision);

void pasta_probe_on_settled(void (*settled)(uint64_t ordinal, uint64_t module, pasta_probe_decision decision)) {
    __atomic_store_n(&on_settled, settled, __ATOMIC_RELEASE);
}

static PASTA_APART void settle(const put_off *p) {
    bool due;
    pasta_probe_decision decision = pasta_shapes_decide(&p->launch, p->scope, PASTA_CANNOT_PROBE, &due);
    decision.missed = due;
    __atomic_load_n(&on_settled, __ATOMIC_ACQUIRE)(p->launch.ordinal, p->launch.module, decision);
}

/* After a fork, launches that waited in the parent are discarded. */
static void discard_parents(void) {
    if (PASTA_LIKELY(waiting->generation == pasta_generation())) return;
    waiting->generation = pasta_generation();
    waiting->count = 0;
}

static PASTA_APART void settle_all(void) {
    discard_parents();
    enum { AHEAD = 8 };
    uint32_t count = waiting->count;
    waiting->count = 0;
    for (uint32_t i = 0; i < count + AHEAD; i++) {
        if (i < count) pasta_shapes_expect(&waiting->launches[i].launch, waiting->launches[i].scope);
        if (i >= AHEAD) settle(&waiting->launches[i - AHEAD]);
    }
}

static bool some_wait(void) { return PASTA_UNLIKELY(waiting && waiting->count); }

pasta_flags pasta_probe_put_off(const pasta_kernel_launch *l) {
    prepare_process();
    put_off p = {pasta_shaped_of(l), pasta_scope_here()};
    if (PASTA_LIKELY(waiting || takes_line())) {
        discard_parents();
        if (PASTA_UNLIKELY(waiting->count == MOST_PUT_OFF)) settle_all();
        waiting->launches[waiting->count++] = p;
    } else {
        settle(&p);
    }
    bool paused = pasta_scope_pauses() && (p.scope.unknown || pasta_scope_is_brief());
    return pasta_probe_flags((pasta_probe_decision){.paused = paused});
}

/* ---- launches ---- */

pasta_probe_decision pasta_probe_takes(const pasta_kernel_launch *l) { return pasta_probe_takes_if(l, true); }

pasta_probe_decision pasta_probe_takes_if(const pasta_kernel_launch *l, bool able) {
    prepare_process();
    if (some_wait()) settle_all();
    pasta_probe_decision decision = {.shape = PASTA_ABSENT_U32};
    if (settings.always) return (pasta_probe_decision){.probed = able, .missed = !able, .shape = PASTA_ABSENT_U32};
    bool open = is_open(l->ordinal), due; /* asked for every launch: it may begin a unit */
    if (settings.in_scope && !pasta_scope_fits(l->graph_node != PASTA_ABSENT_U64)) return decision;
    if ((settings.skip || settings.count != UINT64_MAX) &&
        !is_counted(__atomic_fetch_add(&candidates, 1, __ATOMIC_RELAXED)))
        return decision;
    if (settings.every > 1 && open) open = pasta_select_launched(l->name) % settings.every == 0;
    pasta_shaped shaped = pasta_shaped_of(l);
    pasta_chance chance = !open ? PASTA_WINDOW_CLOSED : able ? PASTA_MAY_PROBE : PASTA_CANNOT_PROBE;
    decision = pasta_shapes_decide(&shaped, pasta_scope_here(), chance, &due);
    decision.missed = open && due && !able;
    if (settings.unit == BUDGET) pasta_budget_decided(decision.probed, due);
    return decision;
}

/* Of numbers that differ by at most `others`. */
static bool any(bool (*holds)(uint64_t number), uint64_t number, uint32_t others) {
    uint64_t first = number - (number < others ? number : others);
    for (uint64_t each = first; each <= number + others; each++)
        if (holds(each)) return true;
    return false;
}

bool pasta_probe_would_take(const pasta_kernel_launch *l, uint32_t others) {
    prepare_process();
    if (some_wait()) settle_all();
    if (settings.always) return true;
    if (!any(is_open, l->ordinal, settings.unit == LAUNCHES ? others : 0)) return false;
    if (!any(is_counted, LOAD(candidates), others)) return false;
    if (settings.in_scope && !pasta_scope_fits(l->graph_node != PASTA_ABSENT_U64)) return false;
    return (settings.every <= 1 || pasta_select_count(l->name) % settings.every == 0) && pasta_shapes_are_due(l);
}

void pasta_probe_waited(void) {
    if (settings.unit == BUDGET) pasta_budget_waited();
}

void pasta_probe_patches(uint64_t first_ns) { pasta_budget_patches(first_ns); }

/* ---- steps ---- */

void pasta_probe_step(void) {
    prepare_process();
    pasta_profiling_step(__atomic_add_fetch(&steps, 1, __ATOMIC_RELAXED));
}

/* The open range that began this thread's last step: its stack, and how many ranges of that stack are
 * open from it on.  Ranges inside it belong to that step. */
static __thread struct {
    uint64_t stack;
    uint32_t open;
} step_range;

static bool begins_step(uint32_t name) {
    prepare_process();
    if (step_range.open || !pasta_select_matches(PASTA_SELECT_STEP, name)) return false;
    pasta_probe_step();
    return true;
}

void pasta_probe_range_start(uint64_t id, uint32_t name) {
    (void)begins_step(name);
    pasta_scope_start(id, name);
}

void pasta_probe_range_end(uint64_t id) { pasta_scope_end(id); }

void pasta_probe_range_push(uint64_t stack, uint32_t name) {
    prepare_process();
    pasta_scope_push(stack, name);
    if (step_range.open) {
        if (step_range.stack == stack) step_range.open++;
    } else if (begins_step(name)) {
        step_range.stack = stack;
        step_range.open = 1;
    }
}

void pasta_probe_range_pop(uint64_t stack) {
    pasta_scope_pop(stack);
    if (step_range.open && step_range.stack == stack) step_range.open--;
}
