/* An overhead budget: a window opens when the time that it is expected to add is already paid for.
 *
 * The program is followed in units: its steps, or else UNIT launches. After a first unit, which is start-up, units
 * without probes give the time of one; every nanosecond of the program earns `share` of a nanosecond. A window starts
 * with a unit. It ends with it, or sooner where launches are sampled and as many were probed as are paid for. The time
 * of its unit and of the following one (the aftermath: patches are removed, and a queue of slow launches drains) beyond
 * that of units without probes is what the window cost, and what a probed launch costs. Before the first window that is
 * estimated; so the first windows are small, and each is at most GROWTH times as large as the one before. */
#include <string.h>

#include "probing.h"

enum { UNIT = 256, FIRST = 16, GROWTH = 8, UNITS = 5, PLAIN_UNITS = 2 };
/* The next window may cost more than the ones before. */
#define MARGIN 1.25
/* A window that cost so many times as much as usual met a pause of the program. */
#define PAUSE 8

typedef enum { START_UP, WINDOW, AFTERMATH, REST } phase;

typedef struct {
    double values[UNITS]; /* the last ones, cyclic */
    uint32_t count;
} median;

static struct {
    uint32_t busy;
    /* read and written by launches without the lock: */
    uint32_t open, by_steps;
    uint64_t unit;  /* number of the current one, plus one */
    int64_t left;   /* launches that the window may still probe */
    uint32_t due;   /* a launch should have been probed since the last window */
    uint32_t taken; /* launches that were probed in the window */
    /* under the lock: */
    phase phase;
    uint64_t begun, since; /* ns: of the program, of the phase */
    uint64_t first_unit, first_launch; /* of the phase */
    median plain, launches; /* of a unit without probes: ns, launches */
    median cost;            /* ns of a probed launch beyond its time without probes */
    double added, probed;   /* ns, launches, of all windows */
    double quota;           /* launches, of the last window */
} state;

static pasta_budget given;

#define LOAD(place) __atomic_load_n(&(place), __ATOMIC_RELAXED)
#define STORE(place, value) __atomic_store_n(&(place), value, __ATOMIC_RELAXED)

static void put(median *m, double value) { m->values[m->count++ % UNITS] = value; }

static double middle(const median *m) {
    double sorted[UNITS];
    uint32_t count = m->count < UNITS ? m->count : UNITS;
    for (uint32_t i = 0, j; i < count; i++) {
        for (j = i; j > 0 && sorted[j - 1] > m->values[i]; j--) sorted[j] = sorted[j - 1];
        sorted[j] = m->values[i];
    }
    return count ? sorted[count / 2] : 0;
}

void pasta_budget_begin(pasta_budget budget) {
    memset(&state, 0, sizeof state);
    given = budget;
}

static double max(double a, double b) { return a > b ? a : b; }

/* What a window's unit and aftermath, of `units`, added. */
static void charge(double took, double units) {
    double added = max(took - units * middle(&state.plain), 0), taken = max(LOAD(state.taken), 1);
    if (state.cost.count >= 2 && middle(&state.cost) > 0 && added > PAUSE * taken * middle(&state.cost))
        added = PAUSE * taken * middle(&state.cost);
    put(&state.cost, added / taken);
    state.added += added;
    state.probed += taken;
}

/* Launches that a window starting now may probe; 0: none. */
static double affordable(uint64_t now) {
    double in_unit = max(middle(&state.launches), 1), paid = given.share * ((double)(now - state.begun) - state.added) - state.added;
    double each = state.probed ? MARGIN * max(state.added / state.probed, middle(&state.cost))
                               : (given.factor - 1) * middle(&state.plain) / in_unit;
    double most = state.quota ? GROWTH * state.quota : given.sampled ? FIRST : in_unit;
    if (paid < each * (given.sampled ? FIRST : in_unit)) return 0;
    if (!given.sampled) return 1e18; /* of the whole unit: otherwise only the first launches of units were ever probed */
    return each * most > paid ? paid / each : most;
}

static void enter(phase next, uint64_t unit, uint64_t ordinal, uint64_t now) {
    state.phase = next;
    state.first_unit = unit;
    state.first_launch = ordinal;
    state.since = now;
    STORE(state.taken, 0);
}

static void open_window(uint64_t now) {
    double quota = affordable(now);
    if (quota < 1) return;
    state.quota = quota;
    state.phase = WINDOW;
    STORE(state.due, 0);
    STORE(state.left, quota < 1e18 ? (int64_t)quota : INT64_MAX);
    STORE(state.open, 1);
}

/* At the first launch of a unit. */
static void next_unit(uint64_t unit, uint64_t ordinal, uint64_t now) {
    double took = (double)(now - state.since), units = (double)(unit - state.first_unit);
    STORE(state.open, 0);
    if (state.phase == WINDOW) { /* its time goes on */
        state.phase = AFTERMATH;
        return;
    }
    if (state.phase == AFTERMATH) charge(took, units);
    if (state.phase == REST) {
        put(&state.plain, took / units);
        put(&state.launches, ordinal > state.first_launch ? (double)(ordinal - state.first_launch) / units : 0);
    }
    bool rested = state.phase == REST;
    enter(REST, unit, ordinal, now);
    if (rested && LOAD(state.due) && state.plain.count >= PLAIN_UNITS) open_window(now);
}

static void begin(bool by_steps, uint64_t unit, uint64_t ordinal, uint64_t now) {
    if (!state.begun) state.begun = now;
    memset(&state.plain, 0, sizeof state.plain);
    memset(&state.launches, 0, sizeof state.launches);
    STORE(state.by_steps, by_steps);
    STORE(state.open, 0);
    enter(START_UP, unit, ordinal, now);
}

/* Of several threads at the end of a unit one starts the next; the others still see the old one. */
bool pasta_budget_is_open(uint64_t ordinal, uint64_t steps) {
    bool by_steps = steps > 0;
    uint64_t unit = by_steps ? steps : ordinal / UNIT;
    bool later = LOAD(state.by_steps) != by_steps || unit >= LOAD(state.unit);
    if (later && !__atomic_exchange_n(&state.busy, 1, __ATOMIC_ACQUIRE)) {
        if (!state.begun || state.by_steps != by_steps) begin(by_steps, unit, ordinal, pasta_now());
        else if (unit >= state.unit) next_unit(unit, ordinal, pasta_now());
        STORE(state.unit, unit + 1);
        __atomic_store_n(&state.busy, 0, __ATOMIC_RELEASE);
    }
    return LOAD(state.open);
}

void pasta_budget_decided(bool probed, bool due) {
    if (probed) {
        __atomic_fetch_add(&state.taken, 1, __ATOMIC_RELAXED);
        if (__atomic_sub_fetch(&state.left, 1, __ATOMIC_RELAXED) <= 0) STORE(state.open, 0);
    } else if (due && !LOAD(state.due)) {
        STORE(state.due, 1);
    }
}
