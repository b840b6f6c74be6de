/* Shapes of launches: kernel, module, grid, block, dynamic shared memory, and the framework's operator, unless a graph
 * launched them. Launches of one shape are probed as samples of each other: the first `enough` of them, and later ones
 * in rounds, in each of which the next launch of a shape is probed. A launch alone costs far more than one in a round:
 * modules are patched for it, and operators followed.
 *
 * Spot checks are rounds of all shapes, since what a kernel does may depend on its data. The distance between them
 * doubles. Extra rounds are of the shapes whose amounts differ, until enough is known of them: the distance is in
 * proportion to the number of these shapes, and grows by as much with each round, so that the error becomes smaller as
 * the run goes on, at a cost that becomes smaller, too. Both start over when a spot check finds that amounts differ.
 *
 * While a framework's operators are not followed (scope.c), no shape is known. Then a launch counts in an entry for all
 * operators, which tells when one of their shapes is to be probed: operators are followed again from there on. With a
 * budget they are followed in its windows.
 *
 * The table is lock-free and never shrinks; a launch costs one look-up, or two where operators pause. */
#include <sched.h>
#include <string.h>

#include "probing.h"

enum { SHAPES = 1 << 15, MAX_PROBES = 64 };
enum { MAX_DOUBLINGS = 6 }; /* of the distance between spot checks */
enum { EXTRA_DISTANCE = 4 }; /* launches per shape and differing shape before the first extra round; added to that before each */
/* Standard error of a mean, as a share of it, that sampling aims at; and the least spread that counts. A shape with less
 * than SMALL of all amounts may have an error as large, compared with all of them, as one with SMALL. */
#define WANTED_ERROR 0.01
#define MIN_SPREAD 1e-4
#define SMALL 0.005

typedef struct {
    uint64_t key; /* 0: free */
    uint32_t launches, probed;
    uint32_t check, extra; /* numbers of the last rounds in which a launch was probed */
    uint32_t wanted;       /* launches to be probed: more than `enough` where amounts differ */
    uint32_t differing;    /* more are wanted than were counted; of all operators: the number of these shapes */
    uint32_t all;          /* place of the entry for all operators, plus one; 0: none */
    uint32_t known;        /* of all operators: one of these shapes is */
    uint32_t counted;      /* amounts, so far */
    double mean, squares;  /* of these amounts: their mean, sum of squared differences from it */
    double total;          /* of all launches, as estimated when one was last counted */
} shape;

typedef struct {
    uint64_t begun;         /* launch, of all shapes */
    uint32_t number, grown; /* of the current one; how often the distance to the next one has grown */
} rounds;

static shape shapes[SHAPES];
static pasta_sampling settings;
/* Of this process. */
static rounds checks, extra;
static struct {
    uint64_t launches;
    uint32_t shapes, differing;
    int32_t left; /* differing shapes of which none was probed in the current extra round */
} all_shapes;
/* Of this process: a lock, for counting; estimated amount of all shapes. */
static struct {
    uint32_t busy;
    double total;
} amounts;

void pasta_shapes_configure(pasta_sampling sampling) {
    settings = sampling;
    checks = extra = (rounds){0};
    memset(&all_shapes, 0, sizeof all_shapes);
    memset(&amounts, 0, sizeof amounts);
}

static uint64_t mixed(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 29;
}

static bool has_operator(const pasta_kernel_launch *l) {
    return settings.enough != UINT32_MAX && l->graph_node == PASTA_ABSENT_U64;
}

/* In place of an operator's name, for all of them. */
#define ANY_OPERATOR (UINT64_C(1) << 32)

/* Without sampling, only kernels of a module are distinguished.  The child of a fork starts from zero. */
static uint64_t key_of(const pasta_kernel_launch *l, uint64_t operator) {
    uint64_t key = mixed(mixed(pasta_generation(), l->name), l->module);
    for (int axis = 0; axis < 3 && settings.enough != UINT32_MAX; axis++)
        key = mixed(key, (uint64_t)l->grid[axis] << 32 | l->block[axis]);
    if (settings.enough != UINT32_MAX) key = mixed(key, l->shared_dynamic);
    if (has_operator(l)) key = mixed(key, operator);
    return key ? key : 1;
}

/* The entry of a shape, or of all operators'; with `create` created at first use; NULL where there is none, or the table
 * is full. */
static shape *shape_of(const pasta_kernel_launch *l, uint64_t operator, bool create) {
    uint64_t key = key_of(l, operator);
    for (uint32_t i = 0; i < MAX_PROBES; i++) {
        shape *s = &shapes[((key >> 32) + i) % SHAPES];
        uint64_t held = LOAD(s->key);
        if (PASTA_LIKELY(held == key)) return s;
        if (held) continue;
        if (!create) return NULL;
        if (__atomic_compare_exchange_n(&s->key, &held, key, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
            if (operator != ANY_OPERATOR) __atomic_fetch_add(&all_shapes.shapes, 1, __ATOMIC_RELAXED);
            return s;
        }
        if (held == key) return s;
    }
    return NULL;
}

static uint64_t distance_of_checks(void) {
    return ((uint64_t)settings.spot_check * LOAD(all_shapes.shapes)) << LOAD(checks.grown);
}

static uint64_t distance_of_extra(void) {
    return (uint64_t)EXTRA_DISTANCE * LOAD(all_shapes.shapes) * LOAD(all_shapes.differing) * (1 + LOAD(extra.grown));
}

/* `distance` in launches of all shapes; 0: there are no such rounds. */
static bool next_begins(const rounds *r, uint64_t distance, uint64_t launch) {
    return PASTA_UNLIKELY(distance && launch >= LOAD(r->begun) + distance);
}

/* False if another thread has begun it. */
static bool begin_next(rounds *r, uint64_t launch, uint32_t most_grown) {
    uint64_t begun = LOAD(r->begun);
    if (begun >= launch || !__atomic_compare_exchange_n(&r->begun, &begun, launch, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return false;
    if (LOAD(r->grown) < most_grown) STORE(r->grown, LOAD(r->grown) + 1);
    __atomic_fetch_add(&r->number, 1, __ATOMIC_RELAXED);
    return true;
}

/* A launch of any shape: it may begin rounds. */
static void count_launch(void) {
    uint64_t launch = __atomic_fetch_add(&all_shapes.launches, 1, __ATOMIC_RELAXED);
    if (next_begins(&checks, distance_of_checks(), launch)) (void)begin_next(&checks, launch, MAX_DOUBLINGS);
    if (next_begins(&extra, distance_of_extra(), launch) && begin_next(&extra, launch, UINT32_MAX))
        STORE(all_shapes.left, (int32_t)LOAD(all_shapes.differing));
}

typedef enum { NOT_DUE, DUE_FOR_EXTRA, DUE } dueness;

static dueness due_in_rounds(const shape *s) {
    if (LOAD(s->check) != LOAD(checks.number)) return DUE;
    return LOAD(s->differing) && LOAD(s->extra) != LOAD(extra.number) ? DUE_FOR_EXTRA : NOT_DUE;
}

static dueness due_of(const shape *s) { return LOAD(s->probed) < settings.enough ? DUE : due_in_rounds(s); }

static void set_rounds(shape *s, uint32_t check, uint32_t of_extra) {
    STORE(s->check, check);
    STORE(s->extra, of_extra);
}

bool pasta_shapes_are_due(const pasta_kernel_launch *l) {
    if (has_operator(l) && pasta_scope_is_unknown()) return !shape_of(l, ANY_OPERATOR, false);
    const shape *s = shape_of(l, pasta_scope_operator(), false);
    uint64_t launch = LOAD(all_shapes.launches);
    return !s || due_of(s) != NOT_DUE || next_begins(&checks, distance_of_checks(), launch) ||
           (LOAD(s->differing) && next_begins(&extra, distance_of_extra(), launch));
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
    if (due_in_rounds(s) == DUE_FOR_EXTRA) __atomic_fetch_sub(&all_shapes.left, 1, __ATOMIC_RELAXED);
    set_rounds(s, LOAD(checks.number), LOAD(extra.number));
    if (__atomic_add_fetch(&s->probed, 1, __ATOMIC_RELAXED) == settings.enough) d.wanted--;
    return d;
}

/* ---- where operators pause ---- */

/* A launch whose operator is unknown: it is not probed. Operators are followed if one of their shapes is due, which is
 * tried once, or if a budget's window is open. */
static pasta_probe_decision pass(const pasta_kernel_launch *l, shape *all, pasta_chance chance, bool *due) {
    count_launch();
    dueness found = LOAD(all->known) ? due_in_rounds(all) : DUE;
    pasta_follow need = PASTA_FOLLOW_NOT;
    if (chance == PASTA_WINDOW_CLOSED) {
        *due = found != NOT_DUE;
    } else if (found != NOT_DUE) {
        need = found == DUE ? PASTA_FOLLOW : PASTA_FOLLOW_BRIEFLY;
        STORE(all->known, 1);
        set_rounds(all, LOAD(checks.number), LOAD(extra.number));
    } else if (settings.in_windows) {
        need = PASTA_FOLLOW_BRIEFLY;
    }
    pasta_scope_launched(l->ordinal, need, true);
    return (pasta_probe_decision){.paused = true, .shape = PASTA_ABSENT_U32};
}

/* For `pass`, after a launch of a shape. */
static void expect(shape *all, shape *s, uint32_t number) {
    if (number == 0) STORE(s->all, (uint32_t)(all - shapes) + 1); /* later, `differing` may have been counted without it */
    STORE(all->known, 1);
    set_rounds(all, LOAD(s->check), LOAD(s->differing) ? LOAD(s->extra) : LOAD(all->extra));
}

/* How operators are followed after a launch of a shape, which was due. */
static pasta_follow follow_for(dueness due, uint32_t number, pasta_chance chance) {
    if (due == NOT_DUE) return PASTA_FOLLOW_NOT;
    if (number == 0 || chance == PASTA_CANNOT_PROBE) return PASTA_FOLLOW;
    if (chance == PASTA_WINDOW_CLOSED) return PASTA_FOLLOW_ENOUGH; /* one will open */
    if (settings.in_windows) return PASTA_FOLLOW_BRIEFLY;
    if (due == DUE) return PASTA_FOLLOW;
    return LOAD(all_shapes.left) > 0 ? PASTA_FOLLOW_BRIEFLY : PASTA_FOLLOW_ENOUGH;
}

pasta_probe_decision pasta_shapes_decide(const pasta_kernel_launch *l, pasta_chance chance, bool *due) {
    shape *all = has_operator(l) && pasta_scope_pauses() ? shape_of(l, ANY_OPERATOR, true) : NULL;
    uint32_t number_of_all = all ? __atomic_fetch_add(&all->launches, 1, __ATOMIC_RELAXED) : 0;
    bool unknown = all && pasta_scope_is_unknown();
    *due = false;
    if (unknown && (number_of_all || chance != PASTA_MAY_PROBE)) return pass(l, all, chance, due);
    shape *s = shape_of(l, pasta_scope_operator(), true);
    if (!s) return without_shape(chance, due);
    count_launch();
    uint32_t number = __atomic_fetch_add(&s->launches, 1, __ATOMIC_RELAXED);
    dueness found = due_of(s);
    pasta_probe_decision d = decide(s, number, found, chance);
    *due = found != NOT_DUE;
    if (!all) return d;
    d.paused = unknown || pasta_scope_is_brief();
    expect(all, s, number);
    pasta_scope_launched(l->ordinal, follow_for(found, number, chance), unknown);
    return d;
}

/* Launches to probe for the wanted error, from the spread so far; with the lock held. */
static uint32_t wanted_for(const shape *s) {
    if (s->counted < 2 || !(s->mean > 0)) return 0;
    double variance = s->squares / (s->counted - 1) / (s->mean * s->mean); /* no root: libm is not linked */
    if (variance < MIN_SPREAD * MIN_SPREAD) return 0;
    double share = s->total / amounts.total, error = WANTED_ERROR * (share < SMALL ? SMALL / share : 1);
    double wanted = variance / (error * error);
    return wanted < UINT32_MAX / 4 ? 1 + (uint32_t)wanted : UINT32_MAX / 4;
}

/* With the lock held. */
static void set_differing(shape *s, bool differs) {
    if (LOAD(s->differing) == differs) return;
    uint32_t change = differs ? 1 : UINT32_MAX, all = LOAD(s->all);
    STORE(s->differing, differs);
    __atomic_fetch_add(&all_shapes.differing, change, __ATOMIC_RELAXED);
    if (all) __atomic_fetch_add(&shapes[all - 1].differing, change, __ATOMIC_RELAXED);
}

void pasta_probe_counted(uint32_t which, uint64_t amount) {
    if (which >= SHAPES || settings.enough == UINT32_MAX) return;
    shape *s = &shapes[which];
    while (__atomic_exchange_n(&amounts.busy, 1, __ATOMIC_ACQUIRE)) sched_yield();
    double difference = (double)amount - s->mean, total = s->total;
    s->counted++;
    s->mean += difference / s->counted;
    s->squares += difference * ((double)amount - s->mean);
    s->total = s->mean * LOAD(s->launches);
    amounts.total += s->total - total;
    bool alike = !s->wanted && s->counted > settings.enough; /* so far */
    s->wanted = wanted_for(s);
    bool differs = s->wanted > s->counted;
    if (alike && differs) {
        STORE(checks.grown, 0);
        STORE(extra.grown, 0);
    }
    set_differing(s, differs);
    __atomic_store_n(&amounts.busy, 0, __ATOMIC_RELEASE);
}
