/* Shapes of launches: kernel, module, grid, block, dynamic shared memory, and the framework's operator, unless a graph
 * launched them. Launches of one shape are probed as samples of each other: the first `enough` of them, and later one
 * now and then (a spot check), since what a kernel does may depend on its data. The distance between spot checks doubles,
 * until the amounts counted in launches differ: then more are probed, at growing distances, and spot checks begin anew.
 *
 * The table is lock-free and never shrinks; a launch costs one look-up. */
#include <sched.h>

#include "probing.h"

enum { SHAPES = 1 << 15, MAX_PROBES = 64 };
enum { MAX_DISTANCE = 64 }; /* of spot checks: times the one that is set */
/* Standard error of a mean, as a share of it, that sampling aims at; and the least spread that counts. */
#define WANTED_ERROR 0.01
#define MIN_SPREAD 1e-4

typedef struct {
    uint64_t key; /* 0: free */
    uint32_t launches, probed;
    uint32_t wanted; /* more than `enough` where amounts differ */
    uint32_t next;     /* number of the launch that is probed next, when `enough` were */
    uint32_t distance; /* to it, of a spot check; 0: none yet */
    uint32_t counting, counted; /* a lock; amounts counted so far */
    double mean, squares;       /* of these amounts: their mean, sum of squared differences from it */
} shape;

static shape shapes[SHAPES];
static pasta_sampling settings;

void pasta_shapes_configure(pasta_sampling sampling) { settings = sampling; }

static uint64_t mixed(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 29;
}

/* Without sampling, only kernels of a module are distinguished.  The child of a fork starts from zero. */
static uint64_t key_of(const pasta_kernel_launch *l) {
    uint64_t key = mixed(mixed(pasta_generation(), l->name), l->module);
    for (int axis = 0; axis < 3 && settings.enough != UINT32_MAX; axis++)
        key = mixed(key, (uint64_t)l->grid[axis] << 32 | l->block[axis]);
    if (settings.enough != UINT32_MAX) key = mixed(key, l->shared_dynamic);
    if (settings.enough != UINT32_MAX && l->graph_node == PASTA_ABSENT_U64) key = mixed(key, pasta_scope_operator());
    return key ? key : 1;
}

/* The entry of a shape, created at first use; NULL where the table is full. */
static shape *shape_of(const pasta_kernel_launch *l) {
    uint64_t key = key_of(l);
    for (uint32_t i = 0; i < MAX_PROBES; i++) {
        shape *s = &shapes[((key >> 32) + i) % SHAPES];
        uint64_t held = __atomic_load_n(&s->key, __ATOMIC_RELAXED);
        if (PASTA_LIKELY(held == key)) return s;
        if (held) continue;
        if (__atomic_compare_exchange_n(&s->key, &held, key, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED) || held == key)
            return s;
    }
    return NULL;
}

static uint32_t sum(uint32_t a, uint32_t b) { return a > UINT32_MAX - b ? UINT32_MAX : a + b; }

/* Launches to the next spot check after one at a distance of `last`: a quarter of the setting, all of it, twice, … */
static uint32_t distance_after(uint32_t last) {
    uint32_t set = settings.spot_check, first = 1 + set / 4;
    if (last < first) return first;
    if (last < set) return set;
    return last / set >= MAX_DISTANCE ? last : sum(last, last);
}

/* Number of the next launch to probe after `probed` ones, the last of which was `number`. */
static uint32_t next_after(shape *s, uint32_t number, uint32_t probed) {
    if (probed < __atomic_load_n(&s->wanted, __ATOMIC_RELAXED)) return sum(number, 2 * probed);
    if (!settings.spot_check) return UINT32_MAX;
    uint32_t distance = distance_after(__atomic_load_n(&s->distance, __ATOMIC_RELAXED));
    __atomic_store_n(&s->distance, distance, __ATOMIC_RELAXED);
    return sum(number, distance);
}

pasta_probe_decision pasta_shapes_decide(const pasta_kernel_launch *l, bool open, bool *due) {
    shape *s = shape_of(l);
    *due = s || settings.enough == UINT32_MAX;
    if (!s) {
        static uint32_t said;
        if (!*due && !__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
            pasta_say("probes: more than %d launch shapes: further shapes are not probed", SHAPES);
        return (pasta_probe_decision){.probed = *due && open, .shape = PASTA_ABSENT_U32};
    }
    uint32_t number = __atomic_fetch_add(&s->launches, 1, __ATOMIC_RELAXED);
    uint32_t probed = __atomic_load_n(&s->probed, __ATOMIC_RELAXED);
    pasta_probe_decision d = {.shape = (uint32_t)(s - shapes), .wanted = number == 0};
    *due = probed < settings.enough || number >= __atomic_load_n(&s->next, __ATOMIC_RELAXED);
    if (!*due || !open) return d;
    d.probed = true;
    if (settings.enough == UINT32_MAX) return d;
    probed = __atomic_add_fetch(&s->probed, 1, __ATOMIC_RELAXED);
    if (probed == settings.enough) d.wanted--;
    if (probed >= settings.enough) __atomic_store_n(&s->next, next_after(s, number, probed), __ATOMIC_RELAXED);
    return d;
}

/* Launches to probe for the wanted error, from the spread so far; with the lock held. */
static uint32_t wanted_for(const shape *s) {
    if (s->counted < 2 || !(s->mean > 0)) return 0;
    double variance = s->squares / (s->counted - 1) / (s->mean * s->mean); /* no root: libm is not linked */
    if (variance < MIN_SPREAD * MIN_SPREAD) return 0;
    double wanted = variance / (WANTED_ERROR * WANTED_ERROR);
    return wanted < UINT32_MAX / 4 ? 1 + (uint32_t)wanted : UINT32_MAX / 4;
}

void pasta_probe_counted(uint32_t which, uint64_t amount) {
    if (which >= SHAPES || settings.enough == UINT32_MAX) return;
    shape *s = &shapes[which];
    while (__atomic_exchange_n(&s->counting, 1, __ATOMIC_ACQUIRE)) sched_yield();
    double difference = (double)amount - s->mean;
    s->counted++;
    s->mean += difference / s->counted;
    s->squares += difference * ((double)amount - s->mean);
    uint32_t wanted = wanted_for(s), probed = __atomic_load_n(&s->probed, __ATOMIC_RELAXED);
    __atomic_store_n(&s->wanted, wanted, __ATOMIC_RELAXED);
    __atomic_store_n(&s->counting, 0, __ATOMIC_RELEASE);
    if (probed < settings.enough || probed >= wanted) return;
    __atomic_store_n(&s->distance, 0, __ATOMIC_RELAXED);
    uint32_t sooner = sum(__atomic_load_n(&s->launches, __ATOMIC_RELAXED), 2 * probed);
    if (sooner < __atomic_load_n(&s->next, __ATOMIC_RELAXED)) __atomic_store_n(&s->next, sooner, __ATOMIC_RELAXED);
}
