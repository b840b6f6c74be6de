/* Shapes of launches: kernel, module, grid, block, dynamic shared memory, and the framework's operator, unless a graph
 * launched them. Launches of one shape are probed as samples of each other: the first `enough` of them, and later one now
 * and then, in rounds.
 *
 * The first launches of a shape may be a row at the start of a loop. Another one is therefore probed soon after them.
 *
 * Spot checks are rounds of all shapes, since what a kernel does may depend on its data. The distance between them
 * doubles. Extra rounds are of the shapes whose amounts differ, until enough is known of them: the distance is in
 * proportion to the number of these shapes, and grows by as much with each round, so that the error becomes smaller as
 * the run goes on, at a cost that becomes smaller, too. Both start over when a spot check finds that amounts differ.
 * Which of a shape's next launches is probed in a round is chosen at random: of launches in a row, such as those of an
 * optimizer, the next one would nearly always be the first.
 *
 * If the amounts of a shape differ, it is first divided by place: what came before a launch on its thread. A place is the
 * position in a row of launches alike, and the last two rows before, with their lengths. Where a program repeats its steps,
 * launches at one place do the same (measured: docs/internals.md), and each place is complete after `enough` of them.
 * Extra rounds are for the places whose amounts still differ. A shape that seemed alike at first may change in the course of
 * the run: one more launch at each of its places is probed when twice as many were launched as when it differed.
 * pasta/processors/sampling.py estimates by the same places.
 *
 * While a framework's operators are not followed (scope.c), no shape is known. Then a launch counts in an entry for all
 * operators, which has the turn in rounds: operators are followed again from that launch on, in an extra round until the
 * next launch in the entry, and with a budget in its windows.
 *
 * The table is lock-free and never shrinks; a launch costs one look-up, and one more each where operators pause and where the
 * shape is divided. */
#include <sched.h>
#include <string.h>

#include "probing.h"

enum { SHAPES = 1 << 15, MAX_PROBES = 64 };
enum { MOST_PLACES = 128, MOST_IN_ROW = 64 }; /* places of a shape; positions in a row: all further ones count as the last */
enum { MAX_DOUBLINGS = 6 }; /* of the distance between spot checks */
enum { EXTRA_DISTANCE = 4 }; /* launches per shape and differing shape before the first extra round; added to that before each */
enum { WITHIN = 4096 }; /* launches of all shapes in which a round probes one of each: more than most programs' steps have */
/* Standard error of a mean, as a share of it, that sampling aims at; and the least spread that counts. A shape with less
 * than SMALL of all amounts may have an error as large, compared with all of them, as one with SMALL. */
#define WANTED_ERROR 0.005
#define MIN_SPREAD 1e-4
#define SMALL 0.005
enum { LEAST = 8 }; /* amounts that tell how much they differ, where they do */
enum { SETTLING = 256 }; /* launches after which all shapes are considered again, besides a quarter of those before */

/* What a launch asks for is in the first of two lines of the cache. */
typedef struct __attribute__((aligned(64))) {
    uint64_t key;   /* 0: free */
    uint64_t again; /* launch, of all shapes, from which on one more is probed; of a shape: at each of its places; 0: none */
    uint32_t launches;
    uint32_t probed;       /* of all operators: `enough` once one of these shapes is known */
    uint32_t check, extra; /* numbers of the last rounds in which it had its turn */
    uint32_t turn;         /* number of the launch that has it in the current round, plus one; 0: not chosen yet */
    uint32_t wanted;       /* launches to be probed: more than `enough` where amounts differ */
    uint32_t differing;    /* more are wanted than were counted; of all operators: the number of these shapes */
    uint32_t all;          /* number of the entry for all operators, plus one; 0: none */
    uint32_t of_place;     /* is one place of a shape */
    uint32_t divided;      /* by place; of all operators: some of these shapes are */
    uint32_t places;       /* that have entries */
    uint32_t next;         /* of all operators: the next launch whose operator is known has the turn */
    uint32_t counted;      /* amounts, so far */
    double mean, squares;  /* of these amounts: their mean, sum of squared differences from it */
    double total;          /* of all launches, as estimated last */
} shape;

typedef struct {
    uint64_t begun;         /* launch, of all shapes */
    uint32_t number, grown; /* of the current one; how often the distance to the next one has grown */
} rounds;

static shape shapes[SHAPES];
static pasta_sampling settings PASTA_HOT;
/* Of this process. */
static rounds checks PASTA_WARM, extra PASTA_WARM;
static struct {
    uint64_t launches;
    uint32_t shapes, differing;
    uint32_t incomplete; /* shapes with too few probed launches */
    uint32_t awaited;    /* entries whose next launch has the turn */
} all_shapes PASTA_WARM;
/* Of this process: a lock, for counting; estimated amount of all shapes, and number of launches when all were estimated. */
static struct {
    uint32_t busy;
    uint64_t estimated;
    double total;
} amounts;

void pasta_shapes_configure(pasta_sampling sampling) {
    settings = sampling;
    checks = extra = (rounds){0};
    if (all_shapes.shapes) memset(shapes, 0, sizeof shapes); /* in the child of a fork */
    memset(&all_shapes, 0, sizeof all_shapes);
    memset(&amounts, 0, sizeof amounts);
}

static uint64_t mixed(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 29;
}

/* Without sampling, only kernels of a module are distinguished. */
pasta_shaped pasta_shaped_of(const pasta_kernel_launch *l) {
    bool sampled = settings.enough != UINT32_MAX;
    uint64_t base = mixed(mixed(0, l->name), l->module);
    for (int axis = 0; axis < 3 && sampled; axis++) base = mixed(base, (uint64_t)l->grid[axis] << 32 | l->block[axis]);
    if (sampled) base = mixed(base, l->shared_dynamic);
    return (pasta_shaped){base, l->module, l->ordinal, sampled && l->graph_node == PASTA_ABSENT_U64};
}

/* ---- places ---- */

/* The last row of launches alike on this thread, and hashes of those before it, the last one first. */
static _Thread_local struct {
    uint64_t base, before[2];
    uint32_t length;
} row;

static uint32_t up_to_most(uint32_t in_row, uint32_t most) { return in_row < most ? in_row : most; }

static uint64_t this_row(void) { return mixed(row.base, up_to_most(row.length, MOST_IN_ROW)); }

static uint64_t place_of(uint64_t base) {
    if (base != row.base) return mixed(mixed(0, this_row()), row.before[0]);
    return mixed(mixed(up_to_most(row.length, MOST_IN_ROW - 1), row.before[0]), row.before[1]);
}

static void launch_at_place(uint64_t base) {
    if (base != row.base) {
        row.before[1] = row.before[0];
        row.before[0] = this_row();
        row.base = base;
        row.length = 0;
    }
    row.length++;
}

/* ---- entries ---- */

/* In place of an operator's name, for all of them. */
#define ANY_OPERATOR (UINT64_C(1) << 32)

static uint64_t key_of(const pasta_shaped *l, uint64_t operator) {
    return l->with_operator ? mixed(l->base, operator) : l->base;
}

/* NULL: there is none, or with `create`, the table is full. */
static shape *find(uint64_t key, bool create, bool *created) {
    if (PASTA_UNLIKELY(!key)) key = 1; /* 0: free */
    for (uint32_t i = 0; i < MAX_PROBES; i++) {
        shape *s = &shapes[((key >> 32) + i) % SHAPES];
        uint64_t held = LOAD(s->key);
        if (PASTA_LIKELY(held == key)) return s;
        if (held) continue;
        if (!create) return NULL;
        *created = __atomic_compare_exchange_n(&s->key, &held, key, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
        if (*created || held == key) return s;
    }
    return NULL;
}

/* The entry for all places, and if it is divided, that for the place. */
static shape *entry_of(const pasta_shaped *l, uint64_t operator, bool create) {
    bool is_new = false, is_new_place = false;
    uint64_t key = key_of(l, operator);
    shape *s = find(key, create, &is_new);
    if (s && LOAD(s->divided)) {
        bool more = LOAD(s->places) < MOST_PLACES;
        key = mixed(key, place_of(l->base));
        shape *of_place = find(key, create && more, &is_new_place);
        if (is_new_place) {
            __atomic_fetch_add(&s->places, 1, __ATOMIC_RELAXED);
            STORE(of_place->of_place, 1);
            STORE(of_place->again, LOAD(s->again));
        }
        if (of_place || more) s = of_place;
    }
    if ((is_new || is_new_place) && operator != ANY_OPERATOR) {
        __atomic_fetch_add(&all_shapes.shapes, 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(&all_shapes.incomplete, 1, __ATOMIC_RELAXED);
    }
    return s;
}

/* ---- rounds ---- */

static uint64_t distance_of_checks(void) {
    return ((uint64_t)settings.spot_check * LOAD(all_shapes.shapes)) << LOAD(checks.grown);
}

static uint64_t distance_of_extra(void) {
    return (uint64_t)EXTRA_DISTANCE * LOAD(all_shapes.shapes) * LOAD(all_shapes.differing) * (1 + LOAD(extra.grown));
}

/* Begins the next round if the last one is `distance` launches of all shapes ago; 0: there are no such rounds. */
static void follow_rounds(rounds *r, uint64_t distance, uint64_t launch, uint32_t most_grown) {
    uint64_t begun = LOAD(r->begun);
    if (PASTA_LIKELY(!distance || launch < begun + distance)) return;
    if (!__atomic_compare_exchange_n(&r->begun, &begun, launch, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return; /* another thread has begun it */
    if (LOAD(r->grown) < most_grown) STORE(r->grown, LOAD(r->grown) + 1);
    __atomic_fetch_add(&r->number, 1, __ATOMIC_RELAXED);
}

/* A launch of any shape: it may begin rounds. */
static void count_launch(void) {
    uint64_t launch = __atomic_fetch_add(&all_shapes.launches, 1, __ATOMIC_RELAXED);
    follow_rounds(&checks, distance_of_checks(), launch, MAX_DOUBLINGS);
    follow_rounds(&extra, distance_of_extra(), launch, UINT32_MAX);
}

typedef enum { NOT_DUE, DUE_FOR_EXTRA, DUE } dueness;

static bool is_due_again(const shape *s) {
    uint64_t again = LOAD(s->again);
    return PASTA_UNLIKELY(again) && LOAD(all_shapes.launches) >= again;
}

/* Of a shape, and of the entry that has its turn: its own, or that of all operators. */
static dueness due_in_rounds(const shape *s, const shape *entry) {
    if (LOAD(s->check) != LOAD(checks.number)) return DUE;
    if (is_due_again(s)) return DUE;
    bool in_extra = LOAD(entry->differing) && LOAD(entry->extra) != LOAD(extra.number);
    return in_extra || LOAD(entry->next) ? DUE_FOR_EXTRA : NOT_DUE;
}

/* Modules whose last launch was probed, by their last bits: their patches are still in. */
static uint64_t patched[256];

static uint64_t *patched_like(uint64_t module) { return &patched[mixed(0, module) % (sizeof patched / sizeof *patched)]; }

static bool is_patched(uint64_t module) { return LOAD(*patched_like(module)) == module; }

static void decided(uint64_t module, bool probed) {
    if (probed) STORE(*patched_like(module), module);
    else if (PASTA_UNLIKELY(is_patched(module))) STORE(*patched_like(module), 0);
}

/* Whether the launch `number` of an entry that is due is the one to probe, or comes after it. The launch at which that is
 * chosen cannot be the one, since patches must be in before. Where they still are, it is the next one at a place: they are
 * not put in again. */
static bool has_turn(const pasta_shaped *l, shape *entry, uint32_t number, dueness due) {
    if (LOAD(entry->next) || settings.in_windows) return true; /* hardly one at random would be in a window */
    if (LOAD(entry->of_place) && is_patched(l->module)) return true; /* which one does not matter: all do the same */
    uint32_t turn = LOAD(entry->turn);
    if (!turn) {
        uint64_t launches = LOAD(all_shapes.launches), within = due == DUE ? distance_of_checks() : distance_of_extra();
        if (within > WITHIN) within = WITHIN;
        uint64_t usual = within * number / launches, some = mixed(launches, number) >> 32; /* the same in each run */
        turn = number + 2 + (usual ? (uint32_t)(some % usual) : 0);
        STORE(entry->turn, turn);
    }
    return number + 1 >= turn;
}

/* What a round or a change in the course of the run asked for. */
static void probed_again(shape *s) {
    STORE(s->check, LOAD(checks.number));
    if (is_due_again(s)) STORE(s->again, 0);
}

static void end_turn(shape *entry) {
    STORE(entry->turn, 0);
    STORE(entry->extra, LOAD(extra.number));
    if (LOAD(entry->next) && __atomic_exchange_n(&entry->next, 0, __ATOMIC_RELAXED))
        __atomic_fetch_sub(&all_shapes.awaited, 1, __ATOMIC_RELAXED);
}

/* The launch `number` of an entry. */
static dueness due_of(const pasta_shaped *l, const shape *s, shape *entry, uint32_t number) {
    if (LOAD(s->probed) < settings.enough) return DUE;
    dueness due = due_in_rounds(s, entry);
    return due == NOT_DUE || has_turn(l, entry, number, due) ? due : NOT_DUE;
}

bool pasta_shapes_are_due(const pasta_kernel_launch *launch) {
    pasta_shaped l = pasta_shaped_of(launch);
    pasta_scope scope = pasta_scope_here();
    bool pauses = l.with_operator && pasta_scope_pauses();
    shape *all = pauses ? entry_of(&l, ANY_OPERATOR, false) : NULL;
    if (pauses && scope.unknown) return !all && !find(key_of(&l, ANY_OPERATOR), false, NULL);
    shape *s = entry_of(&l, scope.operator, false), *entry = all ? all : s;
    return !s || due_of(&l, s, entry, LOAD(entry->launches)) != NOT_DUE;
}

/* A launch of none of the shapes: the table is full. */
static pasta_probe_decision without_shape(pasta_chance chance, bool *due) {
    static uint32_t said;
    *due = settings.enough == UINT32_MAX;
    if (!*due && !__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
        pasta_say("probes: more than %d launch shapes: further shapes are not probed", SHAPES);
    return (pasta_probe_decision){.probed = *due && chance == PASTA_MAY_PROBE, .shape = PASTA_ABSENT_U32};
}

/* A launch of a shape; `number`: how many came before it. */
static pasta_probe_decision decide(shape *s, uint32_t number, dueness due, pasta_chance chance) {
    pasta_probe_decision d = {.shape = (uint32_t)(s - shapes), .wanted = number == 0};
    if (due == NOT_DUE || chance != PASTA_MAY_PROBE) return d;
    d.probed = true;
    if (settings.enough == UINT32_MAX) return d;
    probed_again(s);
    if (__atomic_add_fetch(&s->probed, 1, __ATOMIC_RELAXED) == settings.enough) {
        __atomic_fetch_sub(&all_shapes.incomplete, 1, __ATOMIC_RELAXED);
        d.wanted--;
        if (settings.spot_check && !settings.in_windows && !LOAD(s->of_place)) STORE(s->check, LOAD(checks.number) - 1);
    }
    return d;
}

/* ---- where operators pause ---- */

/* The launch `number` of an entry for all operators, whose own is unknown: it is not probed. */
static pasta_probe_decision pass(const pasta_shaped *l, shape *all, uint32_t number, pasta_chance chance, bool *due) {
    count_launch();
    decided(l->module, false);
    dueness found = due_of(l, all, all, number);
    pasta_follow need = PASTA_FOLLOW_NOT;
    if (chance == PASTA_WINDOW_CLOSED) {
        *due = found != NOT_DUE;
    } else if (found == DUE) { /* is tried once */
        need = PASTA_FOLLOW;
        STORE(all->probed, settings.enough);
        probed_again(all);
    } else if (found == DUE_FOR_EXTRA) {
        need = PASTA_FOLLOW_BRIEFLY;
        end_turn(all);
        if (!__atomic_exchange_n(&all->next, 1, __ATOMIC_RELAXED)) __atomic_fetch_add(&all_shapes.awaited, 1, __ATOMIC_RELAXED);
    } else if (settings.in_windows) {
        need = PASTA_FOLLOW_BRIEFLY;
    }
    pasta_scope_launched(l->ordinal, need, true);
    return (pasta_probe_decision){.paused = true, .shape = PASTA_ABSENT_U32};
}

/* How operators are followed after a launch of a shape; `number`: how many came before it. */
static pasta_follow follow_for(dueness due, uint32_t number, pasta_chance chance) {
    if (number == 0) return PASTA_FOLLOW;
    if (chance == PASTA_WINDOW_CLOSED) return due != NOT_DUE || !LOAD(all_shapes.incomplete) ? PASTA_FOLLOW_ENOUGH : PASTA_FOLLOW_NOT;
    if (due == NOT_DUE) return PASTA_FOLLOW_NOT;
    if (settings.in_windows) return PASTA_FOLLOW_BRIEFLY;
    if (due == DUE) return PASTA_FOLLOW;
    return LOAD(all_shapes.awaited) ? PASTA_FOLLOW_BRIEFLY : PASTA_FOLLOW_ENOUGH;
}

void pasta_shapes_expect(const pasta_shaped *l, pasta_scope scope) {
    __builtin_prefetch(&shapes[(key_of(l, scope.unknown ? ANY_OPERATOR : scope.operator) >> 32) % SHAPES], 1);
}

static pasta_probe_decision decide_at_place(const pasta_shaped *l, pasta_scope scope, pasta_chance chance, bool *due) {
    shape *all = l->with_operator && pasta_scope_pauses() ? entry_of(l, ANY_OPERATOR, true) : NULL;
    uint32_t number_of_all = all ? __atomic_fetch_add(&all->launches, 1, __ATOMIC_RELAXED) : 0;
    bool unknown = all && scope.unknown, is_first = all && number_of_all == 0 && !LOAD(all->of_place);
    *due = false;
    if (unknown && (!is_first || chance != PASTA_MAY_PROBE)) return pass(l, all, number_of_all, chance, due);
    shape *s = entry_of(l, scope.operator, true);
    if (!s) return without_shape(chance, due);
    count_launch();
    uint32_t number = __atomic_fetch_add(&s->launches, 1, __ATOMIC_RELAXED);
    shape *entry = all ? all : s;
    dueness found = due_of(l, s, entry, all ? number_of_all : number);
    bool is_new = LOAD(s->probed) < settings.enough;
    pasta_probe_decision d = decide(s, number, found, chance);
    decided(l->module, d.probed);
    *due = found != NOT_DUE;
    if (d.probed && !is_new) end_turn(entry);
    if (!all) return d;
    d.paused = unknown || pasta_scope_is_brief();
    if (number == 0) STORE(s->all, (uint32_t)(all - shapes) + 1); /* later, `differing` may have been counted without it */
    STORE(all->probed, settings.enough);
    STORE(all->check, LOAD(s->check));
    if (d.probed) STORE(all->again, LOAD(s->again));
    pasta_scope_launched(l->ordinal, follow_for(found, number, chance), unknown);
    return d;
}

pasta_probe_decision pasta_shapes_decide(const pasta_shaped *l, pasta_scope scope, pasta_chance chance, bool *due) {
    pasta_probe_decision d = decide_at_place(l, scope, chance, due);
    launch_at_place(l->base);
    return d;
}

/* ---- what was counted; with the lock held ---- */

/* Launches to probe for the wanted error, from the spread so far. */
static uint32_t wanted_for(const shape *s) {
    if (s->counted < 2 || !(s->mean > 0)) return 0;
    double variance = s->squares / (s->counted - 1) / (s->mean * s->mean); /* no root: libm is not linked */
    if (variance < MIN_SPREAD * MIN_SPREAD) return 0;
    double share = s->total / amounts.total, error = WANTED_ERROR * (share < SMALL ? SMALL / share : 1);
    double wanted = variance / (error * error), least = share < SMALL ? 1 : LEAST;
    return wanted < least ? (uint32_t)least : wanted < UINT32_MAX / 4 ? 1 + (uint32_t)wanted : UINT32_MAX / 4;
}

/* A shape whose amounts differ is divided once it is complete: its places are entries of their own from then on. */
static void consider(shape *s) {
    s->wanted = wanted_for(s);
    uint32_t differs = s->wanted > s->counted, all = LOAD(s->all);
    if (differs && !LOAD(s->of_place) && !LOAD(s->divided) && LOAD(s->probed) >= settings.enough) {
        uint64_t again = s->counted > settings.enough ? 2 * LOAD(all_shapes.launches) : 0;
        STORE(s->again, again);
        if (all) STORE(shapes[all - 1].again, again);
        STORE(s->divided, 1);
        if (all) STORE(shapes[all - 1].divided, 1);
    }
    if (LOAD(s->divided) && LOAD(s->places) < MOST_PLACES) differs = 0;
    if (LOAD(s->differing) == differs) return;
    STORE(s->differing, differs);
    __atomic_fetch_add(&all_shapes.differing, differs ? 1 : UINT32_MAX, __ATOMIC_RELAXED);
    if (all) __atomic_fetch_add(&shapes[all - 1].differing, differs ? 1 : UINT32_MAX, __ATOMIC_RELAXED);
}

static void estimate(shape *s) {
    double before = s->total;
    s->total = s->mean * LOAD(s->launches);
    amounts.total += s->total - before;
}

/* A shape's share changes with the launches of others. */
static void consider_all(void) {
    for (shape *s = shapes; s < shapes + SHAPES; s++)
        if (s->counted) estimate(s);
    for (shape *s = shapes; s < shapes + SHAPES; s++)
        if (s->counted) consider(s);
}

static void count(shape *s, double amount) {
    double difference = amount - s->mean;
    bool alike = s->counted >= settings.enough && !wanted_for(s); /* so far */
    s->counted++;
    s->mean += difference / s->counted;
    s->squares += difference * (amount - s->mean);
    estimate(s);
    consider(s);
    if (alike && s->wanted > s->counted) {
        STORE(checks.grown, 0);
        STORE(extra.grown, 0);
    }
    uint64_t launches = LOAD(all_shapes.launches);
    if (launches < amounts.estimated + amounts.estimated / 4 + SETTLING) return;
    amounts.estimated = launches;
    consider_all();
}

void pasta_probe_counted(uint32_t which, uint64_t amount) {
    if (which >= SHAPES || settings.enough == UINT32_MAX) return;
    while (__atomic_exchange_n(&amounts.busy, 1, __ATOMIC_ACQUIRE)) sched_yield();
    count(&shapes[which], (double)amount);
    __atomic_store_n(&amounts.busy, 0, __ATOMIC_RELEASE);
}
