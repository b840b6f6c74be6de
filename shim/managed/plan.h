/* A plan for managed memory (pasta/processors/managed_plan.py), carried out in the program: libpasta_managed.so, which is preloaded
 * only with --apply-uvm-plan.
 *
 * A backend interposes the vendor's functions that allocate managed memory, free it and launch kernels, and makes the
 * vendor's own calls before or after them, on the program's thread.  This cannot deadlock: no callback of a vendor is
 * on the stack, no lock of ours is held during such a call, and nothing waits; it is what the program itself could
 * call at that place.  A thread of ours with its own stream could not deadlock either, if nothing waited for it, but
 * then a prefetch would race with the launch that it is for. */
#ifndef PASTA_MANAGED_PLAN_H
#define PASTA_MANAGED_PLAN_H

#include <stdbool.h>
#include <stdint.h>

typedef enum pasta_plan_action {
    PASTA_PLAN_PREFETCH, /* to the device, before the launch */
    PASTA_PLAN_EVICT,    /* to the host, after the launch */
    PASTA_PLAN_READ_MOSTLY,
    PASTA_PLAN_PREFERRED_HOST,
    PASTA_PLAN_ACCESSED_BY,
    PASTA_PLAN_PIN, /* prefers the device */
    PASTA_PLAN_ACTIONS,
} pasta_plan_action;

typedef struct pasta_plan_step {
    pasta_plan_action action;
    uint32_t entry;
    uint64_t address, bytes;
} pasta_plan_step;

/* Pending steps: entries of the plan, sorted by trigger. */
typedef struct pasta_plan_range {
    uint32_t next, end;
} pasta_plan_range;
typedef struct pasta_plan_steps {
    pasta_plan_range range[2]; /* merged in the plan's order */
} pasta_plan_steps;

typedef struct pasta_plan_launch {
    pasta_plan_steps before, after;
} pasta_plan_launch;

bool pasta_plan_is_on(void);
pasta_plan_steps pasta_plan_allocated(uint64_t address, uint64_t bytes);
void pasta_plan_freed(uint64_t address);
/* kernel: its name, as recorded. */
pasta_plan_launch pasta_plan_launched(const char *kernel, const uint32_t grid[3]);
/* Takes a step whose allocation is live; false if there are no more. */
bool pasta_plan_next(pasta_plan_steps *steps, pasta_plan_step *step);
/* error: of the vendor's call; 0: done. */
void pasta_plan_done(const pasta_plan_step *step, int error);

#endif
