/* An overhead budget: a window opens when the time that it is expected to add is already paid for.
 *
 * The device works behind the host: what probes delay there is on the host's clock only once the host has waited for
 * the device. So time is taken over periods from wait to wait. A period lasts at least a unit (one of the program's
 * steps, or else UNIT launches); in a program that does not wait it ends when the device's queue must have been full,
 * or after twice as many launches as ever lay between two waits. The first period is start-up. Periods without probes
 * give the time of a launch, and every nanosecond of them earns `share` of a nanosecond.
 *
 * A window starts with a unit. It ends with it, or sooner, when as many launches were probed as are paid for, or their
 * time is spent. Its aftermath, in which patches are removed and the device catches up, lasts for a further unit, and
 * until the next wait. What all this took, from the wait before the window on, beyond the time of as many launches
 * without probes, is what the window cost, and about what the next one will cost. Before the first one that is assumed:
 * it is small and opens when much more is paid for. Each is at most GROWTH times as large as the one before. */
#include <string.h>

#include "probing.h"

enum {
    UNIT = 256,
    QUEUE = 2048, /* launches; a stream takes 1,024 before the next one waits (CUDA) */
    GROUP = 4,    /* number of periods to average */
    FIRST = 8,    /* launches of the first window, and the fewest that are worth one */
    GROWTH = 8,
};
/* How many times the expected cost must be paid for: shapes differ; before the first window little is known. */
#define MARGIN 3.0
#define FIRST_MARGIN 24.0
#define WHOLE 1e18

typedef enum { START_UP, REST, WINDOW, AFTERMATH } phase;

typedef struct {
    double time, launches, units; /* ns */
    uint32_t periods;
} group;

static struct {
    uint32_t busy;
    /* read and written by launches without the lock: */
    uint32_t open, by_steps;
    uint64_t unit;   /* number of the current one, plus one */
    uint32_t waited; /* the host has, since the last launch that looked */
    uint32_t due;    /* a launch should have been probed since the last window */
    int64_t left;    /* launches that the window may still probe */
    uint32_t taken;  /* launches that were probed in it */
    uint64_t until;  /* ns: when the host has spent the paid time */
    /* under the lock: */
    phase phase;
    uint64_t begun;                    /* ns: end of start-up */
    uint64_t since, first, first_unit; /* ns, launch, unit: begin of the period */
    uint64_t mark, mark_unit;          /* launch, unit: the same, or the end of the window in it */
    uint64_t last_wait, longest_wait;  /* launch; launches between two */
    bool rested;                       /* a period without probes has passed since the last window */
    group groups[2], current;          /* of periods without probes: the last two complete ones */
    double last, noise;                /* ns: of a launch in the last period; by which one differs from the one before */
    uint32_t windows;                  /* charged so far */
    double added, quota;               /* ns, by all windows; launches, of the last one */
    double assumed;                    /* ns that a probed launch adds, before a window was charged */
    double cost, probed;               /* ns, launches: of all windows, each counting half as much as the next */
} state;

static pasta_budget given;
static uint64_t first_patching; /* ns */

static double min(double a, double b) { return a < b ? a : b; }
static double max(double a, double b) { return a > b ? a : b; }
static double distance(double a, double b) { return a < b ? b - a : a - b; }

void pasta_budget_begin(pasta_budget budget) {
    memset(&state, 0, sizeof state);
    given = budget;
}

void pasta_budget_patches(uint64_t first_ns) { STORE(first_patching, first_ns); }

void pasta_budget_waited(void) {
    if (!LOAD(state.waited)) STORE(state.waited, 1);
}

/* ---- time of the program without probes ---- */

static bool known(void) { return state.groups[0].periods > 0; }

/* ns of a launch. The lower of two means: a pause, or a slow start, may be in one, and would hide the cost of windows. */
static double rate(void) {
    const group *g = state.groups;
    return min(g[0].time / g[0].launches, g[1].time / g[1].launches);
}

static void learn(double time, double launches, double units) {
    group *g = &state.current;
    if (state.last > 0) state.noise += (distance(time, launches * state.last) - state.noise) / GROUP;
    state.last = time / launches;
    g->time += time;
    g->launches += launches;
    g->units += units;
    if (++g->periods < GROUP) return;
    state.groups[0] = state.groups[1];
    state.groups[1] = *g;
    *g = (group){0};
}

static double launches_in_unit(void) { return max(state.groups[1].launches / state.groups[1].units, 1); }

/* ---- windows ---- */

/* `settled`: the host has waited for the device. */
static void charge(double took, double launches, bool settled) {
    double taken = LOAD(state.taken), added = max(took - launches * rate(), 0);
    if (!settled) added = max(added, taken * state.assumed);
    state.added += added;
    if (!state.windows++) added = max(added - (double)LOAD(first_patching), taken * state.assumed); /* once only */
    state.cost = state.cost / 2 + added + state.noise; /* which may have hidden so much */
    state.probed = state.probed / 2 + taken;
}

/* Launches that a window starting now may probe; 0: none. */
static double affordable(double paid) {
    bool first = !state.windows;
    if (first) {
        state.assumed = (given.factor - 1) * rate();
        state.cost = FIRST * state.assumed;
        state.probed = FIRST;
        paid -= (double)LOAD(first_patching);
    }
    double quota = paid * state.probed / ((first ? FIRST_MARGIN : MARGIN) * max(state.cost, 1));
    double most = first ? FIRST : GROWTH * state.quota;
    if (given.sampled || first) return quota < FIRST ? 0 : min(quota, most);
    /* in the end of the whole unit: otherwise only the first launches of units were ever probed */
    double whole = launches_in_unit();
    return quota < min(whole, most) ? 0 : most < whole ? most : WHOLE;
}

static void open_window(uint64_t now) {
    double plain = (double)(now - state.begun) - state.added, paid = given.share * plain - state.added;
    double quota = affordable(paid);
    if (quota < 1) return;
    state.quota = quota;
    state.phase = WINDOW;
    STORE(state.due, 0);
    STORE(state.taken, 0);
    STORE(state.left, quota < WHOLE ? (int64_t)quota : INT64_MAX);
    STORE(state.until, now + (uint64_t)(paid + launches_in_unit() * rate()));
    STORE(state.open, 1);
}

static void close_window(uint64_t unit, uint64_t ordinal) {
    STORE(state.open, 0);
    state.phase = AFTERMATH;
    state.mark_unit = unit;
    state.mark = ordinal;
    state.rested = false;
}

/* ---- periods ---- */

static void begin_period(phase next, uint64_t unit, uint64_t ordinal, uint64_t now) {
    state.phase = next;
    state.since = now;
    state.first = state.mark = ordinal;
    state.first_unit = state.mark_unit = unit;
}

static void end_period(uint64_t unit, uint64_t ordinal, bool settled) {
    uint64_t now = pasta_now();
    double took = (double)(now - state.since), launches = (double)(ordinal - state.first);
    if (state.phase == START_UP) {
        if (!state.begun) state.begun = now;
    } else if (state.phase == AFTERMATH && LOAD(state.taken)) {
        charge(took, launches, settled);
        STORE(state.taken, 0);
    } else {
        learn(took, launches, (double)(unit - state.first_unit));
        state.rested = true;
    }
    begin_period(REST, unit, ordinal, now);
}

/* At the first launch of a unit, or after a wait. */
static void follow(uint64_t unit, uint64_t ordinal, bool waited) {
    bool begins = unit >= state.unit;
    if (waited && ordinal > state.last_wait) {
        if (ordinal - state.last_wait > state.longest_wait) state.longest_wait = ordinal - state.last_wait;
        state.last_wait = ordinal;
    }
    uint64_t most = 2 * state.longest_wait > QUEUE ? 2 * state.longest_wait : QUEUE;
    if (state.phase == WINDOW) {
        if (begins) close_window(unit, ordinal);
    } else if (unit > state.mark_unit && (waited || ordinal >= state.mark + most)) {
        end_period(unit, ordinal, waited);
    }
    if (begins && state.phase == REST && state.rested && known() && LOAD(state.due)) open_window(pasta_now());
}

static void begin(bool by_steps, uint64_t unit, uint64_t ordinal) {
    if (state.probed > 0) state.added += LOAD(state.taken) * state.cost / state.probed; /* of a window that is not charged yet */
    memset(state.groups, 0, sizeof state.groups);
    state.current = (group){0};
    state.rested = false;
    STORE(state.taken, 0);
    STORE(state.by_steps, by_steps);
    STORE(state.unit, 0);
    STORE(state.open, 0);
    begin_period(START_UP, unit, ordinal, pasta_now());
}

/* Of several threads at the end of a unit one starts the next; the others still see the old one. */
bool pasta_budget_is_open(uint64_t ordinal, uint64_t steps) {
    bool by_steps = steps > 0;
    uint64_t unit = by_steps ? steps : ordinal / UNIT;
    bool later = LOAD(state.by_steps) != by_steps || unit >= LOAD(state.unit) || LOAD(state.waited);
    if (later && !__atomic_exchange_n(&state.busy, 1, __ATOMIC_ACQUIRE)) {
        bool waited = LOAD(state.waited);
        if (waited) STORE(state.waited, 0);
        if (!state.since || state.by_steps != by_steps) begin(by_steps, unit, ordinal);
        else if (ordinal > state.first) follow(unit, ordinal, waited);
        if (unit >= state.unit) STORE(state.unit, unit + 1);
        __atomic_store_n(&state.busy, 0, __ATOMIC_RELEASE);
    }
    return LOAD(state.open);
}

void pasta_budget_decided(bool probed, bool due) {
    if (probed) {
        __atomic_fetch_add(&state.taken, 1, __ATOMIC_RELAXED);
        if (__atomic_sub_fetch(&state.left, 1, __ATOMIC_RELAXED) <= 0 || pasta_now() >= LOAD(state.until)) STORE(state.open, 0);
    } else if (due && !LOAD(state.due)) {
        STORE(state.due, 1);
    }
}
