/* Between windows.c and the files that it decides with. */
#ifndef PASTA_PROBING_H
#define PASTA_PROBING_H

#include "internal.h"

#define LOAD(place) __atomic_load_n(&(place), __ATOMIC_RELAXED)
#define STORE(place, value) __atomic_store_n(&(place), value, __ATOMIC_RELAXED)

/* ---- shapes.c: launches that are probed as samples of each other ---- */

typedef struct pasta_sampling {
    uint32_t enough;     /* launches of a shape that are probed; UINT32_MAX: all */
    uint32_t spot_check; /* launches of a shape before the first later check, in the mean over shapes; 0: none */
    bool in_windows;     /* launches may be probed in windows only */
} pasta_sampling;

typedef enum { PASTA_MAY_PROBE, PASTA_WINDOW_CLOSED, PASTA_CANNOT_PROBE } pasta_chance;

/* What decisions look at. */
typedef struct pasta_shaped {
    uint64_t base; /* hash of the shape without its operator */
    uint64_t module, ordinal;
    bool with_operator; /* which is a part of the shape */
} pasta_shaped;

void pasta_shapes_configure(pasta_sampling sampling);
pasta_shaped pasta_shaped_of(const pasta_kernel_launch *launch);
/* Counts a launch. `due` is set if it should be probed, whether it may or not. */
pasta_probe_decision pasta_shapes_decide(const pasta_shaped *launch, pasta_scope scope, pasta_chance chance, bool *due);
void pasta_shapes_expect(const pasta_shaped *launch, pasta_scope scope); /* fetches into the cache what its decision will need */
bool pasta_shapes_are_due(const pasta_kernel_launch *launch); /* counts nothing, but may choose which launch a round probes */

/* ---- budget.c: windows that keep an overhead budget ---- */

typedef struct pasta_budget {
    double share;  /* of the time without probes that they may add */
    double factor; /* by which probes slow a launch down, until it is known; above 1 */
    bool sampled;  /* shapes are complete at some time: a window may end before its unit */
} pasta_budget;

void pasta_budget_begin(pasta_budget given);
/* Whether a window is open at this launch; `steps`: how many the program has marked. */
bool pasta_budget_is_open(uint64_t ordinal, uint64_t steps);
void pasta_budget_decided(bool probed, bool due); /* about a launch */
void pasta_budget_waited(void);                   /* see pasta_probe_waited */
void pasta_budget_patches(uint64_t first_ns);

#endif
