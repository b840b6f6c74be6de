/* Shapes of launches: kernel, module, grid, block, dynamic shared memory, and the framework's operator, unless a graph
 * launched them. Launches of one shape are probed as samples of each other: the first `enough` of them, and later one
 * now and then (a spot check), since what a kernel does may depend on its data.
 *
 * Spot checks come in rounds: in each, the next launch of every shape is probed. A check alone costs far more than one in
 * a round, since a module is patched for it. The distance between rounds doubles, and starts over when the amounts counted
 * in a shape turn out to differ. More launches of such a shape are probed, at growing distances.
 *
 * While a framework's operators are not followed (scope.c), no shape is known. Then a launch counts in an entry for all
 * operators, which tells when one of their shapes is to be probed: operators are followed again from there on.
 *
 * The table is lock-free and never shrinks; a launch costs one look-up, or two where operators pause. */
#include <sched.h>
#include <string.h>

#include "probing.h"

enum { SHAPES = 1 << 15, MAX_PROBES = 64 };
enum { MAX_DOUBLINGS = 6 }; /* of the distance between rounds */
/* Standard error of a mean, as a share of it, that sampling aims at; and the least spread that counts. A shape with less
 * than SMALL of all amounts may have an error as large, compared with all of them, as one with SMALL. */
#define WANTED_ERROR 0.01
#define MIN_SPREAD 1e-4
#define SMALL 0.005

typedef struct {
    uint64_t key; /* 0: free */
    uint32_t launches, probed;
    uint32_t wanted; /* more than `enough` where amounts differ */
    uint32_t next;   /* number of the launch that is probed next where more are wanted, when `enough` were */
    uint32_t round;  /* the last one in which a launch was probed */
    uint32_t counted; /* amounts, so far */
    double mean, squares; /* of these amounts: their mean, sum of squared differences from it */
    double total;         /* of all launches, as estimated when one was last counted */
} shape;

static shape shapes[SHAPES];
static pasta_sampling settings;
/* Of this process: shapes, their launches, and of these the one that began the current round of spot checks. */
static struct {
    uint64_t launches, begun;
    uint32_t shapes, number, doublings;
} rounds;
/* Of this process: a lock, for counting; estimated amount of all shapes. */
static struct {
    uint32_t busy;
    double total;
} amounts;

void pasta_shapes_configure(pasta_sampling sampling) {
    settings = sampling;
    memset(&rounds, 0, sizeof rounds);
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
            if (operator != ANY_OPERATOR) __atomic_fetch_add(&rounds.shapes, 1, __ATOMIC_RELAXED);
            return s;
        }
        if (held == key) return s;
    }
    return NULL;
}

static uint32_t sum(uint32_t a, uint32_t b) { return a > UINT32_MAX - b ? UINT32_MAX : a + b; }

/* Number of the launch, of all shapes, that begins the next round. */
static uint64_t round_ends(uint64_t begun) {
    return begun + (((uint64_t)settings.spot_check * LOAD(rounds.shapes)) << LOAD(rounds.doublings));
}

/* Counts a launch of any shape; the number of the round that it is in. A round begins when the shapes had `spot_check`
 * launches each, in the mean. */
static uint32_t round_of_launch(void) {
    if (!settings.spot_check) return 0;
    uint64_t launch = __atomic_fetch_add(&rounds.launches, 1, __ATOMIC_RELAXED), begun = LOAD(rounds.begun);
    uint32_t doublings = LOAD(rounds.doublings);
    if (PASTA_LIKELY(launch < round_ends(begun))) return LOAD(rounds.number);
    if (!__atomic_compare_exchange_n(&rounds.begun, &begun, launch, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return LOAD(rounds.number);
    if (doublings < MAX_DOUBLINGS) STORE(rounds.doublings, doublings + 1);
    return __atomic_add_fetch(&rounds.number, 1, __ATOMIC_RELAXED);
}

static bool is_due(const shape *s, uint32_t number, uint32_t round) {
    return LOAD(s->probed) < settings.enough || number >= LOAD(s->next) || LOAD(s->round) != round;
}

bool pasta_shapes_are_due(const pasta_kernel_launch *l) {
    if (has_operator(l) && pasta_scope_is_unknown()) return !shape_of(l, ANY_OPERATOR, false);
    const shape *s = shape_of(l, pasta_scope_operator(), false);
    bool begins = settings.spot_check && LOAD(rounds.launches) >= round_ends(LOAD(rounds.begun));
    return !s || begins || is_due(s, LOAD(s->launches), LOAD(rounds.number));
}

/* Number of the next launch to probe after `probed` ones, the last of which was `number`, outside rounds. */
static uint32_t next_after(const shape *s, uint32_t number, uint32_t probed) {
    return probed < LOAD(s->wanted) ? sum(number, 2 * probed) : UINT32_MAX;
}

/* A launch of none of the shapes: the table is full. */
static pasta_probe_decision without_shape(bool open, bool *due) {
    static uint32_t said;
    *due = settings.enough == UINT32_MAX;
    if (!*due && !__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
        pasta_say("probes: more than %d launch shapes: further shapes are not probed", SHAPES);
    return (pasta_probe_decision){.probed = *due && open, .shape = PASTA_ABSENT_U32};
}

/* The launch `number` of a shape. */
static pasta_probe_decision decide(shape *s, uint32_t number, bool open, bool *due) {
    uint32_t round = round_of_launch();
    pasta_probe_decision d = {.shape = (uint32_t)(s - shapes), .wanted = number == 0};
    *due = is_due(s, number, round);
    if (!*due || !open) return d;
    d.probed = true;
    if (settings.enough == UINT32_MAX) return d;
    STORE(s->round, round);
    uint32_t probed = __atomic_add_fetch(&s->probed, 1, __ATOMIC_RELAXED);
    if (probed == settings.enough) d.wanted--;
    if (probed >= settings.enough) STORE(s->next, next_after(s, number, probed));
    return d;
}

/* The launch `number` of all operators, whose own is unknown: it is not probed. */
static pasta_probe_decision pass(const pasta_kernel_launch *l, shape *all, uint32_t number) {
    uint32_t round = round_of_launch();
    bool needed = number >= LOAD(all->next) || LOAD(all->round) != round; /* `next` of a new entry is 0 */
    if (needed) { /* once */
        STORE(all->next, UINT32_MAX);
        STORE(all->round, round);
    }
    pasta_scope_launched(l->ordinal, needed, true);
    return (pasta_probe_decision){.paused = true, .shape = PASTA_ABSENT_U32};
}

/* For `pass`: when the next launch of a shape is to be probed, whose launch `number` was decided about. */
static void expect(shape *all, uint32_t number_of_all, const shape *s, uint32_t number) {
    uint32_t next = LOAD(s->probed) < settings.enough ? UINT32_MAX : LOAD(s->next), known = LOAD(all->next);
    if (next != UINT32_MAX) next = next > number ? sum(number_of_all, next - number) : number_of_all + 1;
    if (!number_of_all || next < known || known <= number_of_all) STORE(all->next, next);
    STORE(all->round, LOAD(s->round));
}

pasta_probe_decision pasta_shapes_decide(const pasta_kernel_launch *l, bool open, bool *due) {
    shape *all = has_operator(l) && pasta_scope_pauses() ? shape_of(l, ANY_OPERATOR, true) : NULL;
    uint32_t number_of_all = all ? __atomic_fetch_add(&all->launches, 1, __ATOMIC_RELAXED) : 0;
    bool unknown = all && pasta_scope_is_unknown();
    *due = false;
    if (unknown && (number_of_all || !open)) return pass(l, all, number_of_all);
    shape *s = shape_of(l, pasta_scope_operator(), true);
    if (!s) return without_shape(open, due);
    uint32_t number = __atomic_fetch_add(&s->launches, 1, __ATOMIC_RELAXED);
    pasta_probe_decision d = decide(s, number, open, due);
    if (!all) return d;
    d.paused = unknown;
    expect(all, number_of_all, s, number);
    pasta_scope_launched(l->ordinal, *due, unknown);
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
    uint32_t wanted = wanted_for(s), probed = LOAD(s->probed);
    bool alike = !LOAD(s->wanted) && s->counted > settings.enough; /* so far */
    STORE(s->wanted, wanted);
    __atomic_store_n(&amounts.busy, 0, __ATOMIC_RELEASE);
    if (probed < settings.enough || probed >= wanted) return;
    if (alike) STORE(rounds.doublings, 0);
    uint32_t sooner = sum(LOAD(s->launches), 2 * probed);
    if (sooner < LOAD(s->next)) STORE(s->next, sooner);
}
