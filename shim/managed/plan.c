/* Which steps an allocation or a launch finds, and what became of the plan's entries. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../include/pasta_source.h"
#include "plan.h"

/* Instead of the number of a launch. */
enum { EACH = -1, AT_ALLOCATION = -2 };
enum { MAX_LISTED = 8 };

static const char *const names[PASTA_PLAN_ACTIONS] = {"prefetch",       "evict",       "read_mostly",
                                                      "preferred_host", "accessed_by", "pin"};

struct entry {
    pasta_plan_action action;
    uint32_t allocation, kernel; /* in the tables below */
    uint64_t offset, bytes;
    int64_t number;
    uint64_t done, failed;
    int error; /* the first */
};

struct allocation {
    uint64_t bytes, occurrence;
    uint64_t address; /* 0: not live */
};

/* Each distinct size of the plan's allocations, and each distinct kernel with its grid. */
struct size {
    uint64_t bytes, count;
};
struct kernel {
    char *name;
    uint32_t grid[3];
    uint64_t count;
};

static struct {
    pthread_mutex_t mutex;
    bool on;
    uint32_t entries, allocations, sizes, kernels;
    struct entry *entry;
    struct allocation *allocation;
    struct size *size;
    struct kernel *kernel;
    uint32_t generation; /* of the process, which a fork changes */
    bool used, exits;
} plan = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* ---- reading ---- */

static void *grown(void *array, uint32_t count, size_t bytes) {
    return count & (count - 1) ? array : realloc(array, (count ? 2 * (size_t)count : 1) * bytes);
}

#define APPEND(array, count, ...)                                                    \
    do {                                                                             \
        void *grown_ = grown(plan.array, plan.count, sizeof *plan.array);            \
        if (!grown_) return false;                                                   \
        plan.array = grown_;                                                         \
        plan.array[plan.count++] = __VA_ARGS__;                                      \
    } while (0)

static bool find_allocation(uint64_t bytes, uint64_t occurrence, uint32_t *found) {
    for (*found = 0; *found < plan.allocations; ++*found)
        if (plan.allocation[*found].bytes == bytes && plan.allocation[*found].occurrence == occurrence) return true;
    APPEND(allocation, allocations, (struct allocation){bytes, occurrence, 0});
    for (uint32_t i = 0; i < plan.sizes; i++)
        if (plan.size[i].bytes == bytes) return true;
    APPEND(size, sizes, (struct size){bytes, 0});
    return true;
}

static bool find_kernel(const char *name, const uint32_t grid[3], uint32_t *found) {
    for (*found = 0; *found < plan.kernels; ++*found) {
        const struct kernel *k = &plan.kernel[*found];
        if (!memcmp(k->grid, grid, sizeof k->grid) && !strcmp(k->name, name)) return true;
    }
    char *copy = strdup(name);
    if (!copy) return false;
    APPEND(kernel, kernels, (struct kernel){.name = copy, .grid = {grid[0], grid[1], grid[2]}});
    return true;
}

static bool read_entry(char *line) {
    char action[32];
    uint64_t size, occurrence;
    struct entry e = {0};
    uint32_t grid[3];
    int used = 0;
    line[strcspn(line, "\n")] = '\0';
    int read = sscanf(line, "%31[a-z_]\t%" SCNu64 "\t%" SCNu64 "\t%" SCNu64 "\t%" SCNu64 "\t%" SCNd64 "\t%" SCNu32 "\t%" SCNu32
                            "\t%" SCNu32 "%n",
                      action, &size, &occurrence, &e.offset, &e.bytes, &e.number, &grid[0], &grid[1], &grid[2], &used);
    if (read != 9 || line[used] != '\t') return false;
    while (e.action < PASTA_PLAN_ACTIONS && strcmp(names[e.action], action)) e.action++;
    if (e.action == PASTA_PLAN_ACTIONS || !find_allocation(size, occurrence, &e.allocation)) return false;
    if (e.number != AT_ALLOCATION && !find_kernel(line + used + 1, grid, &e.kernel)) return false;
    APPEND(entry, entries, e);
    return true;
}

/* Another thread of the parent may have held it. */
static void forked(void) { pthread_mutex_init(&plan.mutex, NULL); }

__attribute__((constructor)) static void load(void) {
    const char *path = pasta_config("uvm_plan");
    if (!path || !*path) return;
    FILE *file = fopen(path, "re");
    char *line = NULL; /* names of kernels are of any length */
    size_t room = 0;
    bool good = file != NULL;
    while (good && getline(&line, &room, file) >= 0) good = read_entry(line);
    free(line);
    if (file) fclose(file);
    if (!good) pasta_say("the plan for managed memory is not carried out: %s cannot be read", path);
    plan.generation = pasta_generation();
    plan.on = good && plan.entries && !pthread_atfork(NULL, NULL, forked);
}

bool pasta_plan_is_on(void) { return plan.on; }

/* ---- what became of it ---- */

static void describe(const struct entry *e, char *text, size_t size) {
    const struct allocation *a = &plan.allocation[e->allocation];
    int length = snprintf(text, size, "%s of %" PRIu64 " bytes of allocation %" PRIu64 " of %" PRIu64 " bytes",
                          names[e->action], e->bytes, a->occurrence, a->bytes);
    if (e->number == AT_ALLOCATION || length < 0 || (size_t)length >= size) return;
    const struct kernel *k = &plan.kernel[e->kernel];
    char number[24] = "each";
    if (e->number != EACH) snprintf(number, sizeof number, "%" PRId64, e->number);
    snprintf(text + length, size - (size_t)length, " at launch %s of %.200s", number, k->name);
}

static void report(void) {
    if (!plan.used || plan.generation != pasta_generation()) return;
    uint64_t done = 0, listed = 0, missing = 0;
    uint32_t carried = 0;
    for (uint32_t i = 0; i < plan.entries; i++) {
        done += plan.entry[i].done;
        carried += plan.entry[i].done > 0;
    }
    pasta_say("plan for managed memory: %u of %u entries carried out, %" PRIu64 " calls", carried, plan.entries, done);
    for (uint32_t i = 0; i < plan.entries; i++) {
        const struct entry *e = &plan.entry[i];
        if (e->done && !e->failed) continue;
        char text[512];
        missing++;
        if (listed++ >= MAX_LISTED) continue;
        describe(e, text, sizeof text);
        if (e->failed) pasta_say("entry %u of the plan: %" PRIu64 " calls failed, the first with error %d: %s", i + 1, e->failed, e->error, text);
        else pasta_say("entry %u of the plan matched nothing: %s", i + 1, text);
    }
    if (missing > MAX_LISTED) pasta_say("and %" PRIu64 " more entries of the plan", missing - MAX_LISTED);
}

/* ---- the program's calls ---- */

/* plan.mutex held.  The child of a fork starts as a process of its own. */
static void begin(void) {
    if (plan.generation != pasta_generation()) {
        plan.generation = pasta_generation();
        for (uint32_t i = 0; i < plan.allocations; i++) plan.allocation[i].address = 0;
        for (uint32_t i = 0; i < plan.sizes; i++) plan.size[i].count = 0;
        for (uint32_t i = 0; i < plan.kernels; i++) plan.kernel[i].count = 0;
        for (uint32_t i = 0; i < plan.entries; i++) plan.entry[i].done = plan.entry[i].failed = 0;
    }
    plan.used = true;
    if (!plan.exits) plan.exits = !atexit(report);
}

static void add_step(pasta_plan_steps *steps, uint32_t entry) {
    const struct entry *e = &plan.entry[entry];
    uint64_t address = plan.allocation[e->allocation].address;
    if (address && steps->count < PASTA_PLAN_STEPS)
        steps->step[steps->count++] = (pasta_plan_step){e->action, entry, address + e->offset, e->bytes};
}

void pasta_plan_allocated(uint64_t address, uint64_t bytes, pasta_plan_steps *steps) {
    *steps = (pasta_plan_steps){0};
    pthread_mutex_lock(&plan.mutex);
    begin();
    struct size *size = NULL;
    for (uint32_t i = 0; i < plan.sizes && !size; i++)
        if (plan.size[i].bytes == bytes) size = &plan.size[i];
    uint64_t occurrence = size ? size->count++ : UINT64_MAX;
    for (uint32_t i = 0; size && i < plan.allocations; i++) {
        struct allocation *a = &plan.allocation[i];
        if (a->bytes != bytes || a->occurrence != occurrence) continue;
        a->address = address;
        for (uint32_t e = 0; e < plan.entries; e++)
            if (plan.entry[e].allocation == i && plan.entry[e].number == AT_ALLOCATION) add_step(steps, e);
    }
    steps->before = steps->count;
    pthread_mutex_unlock(&plan.mutex);
}

void pasta_plan_freed(uint64_t address) {
    pthread_mutex_lock(&plan.mutex);
    for (uint32_t i = 0; address && i < plan.allocations; i++)
        if (plan.allocation[i].address == address) plan.allocation[i].address = 0;
    pthread_mutex_unlock(&plan.mutex);
}

void pasta_plan_launched(const char *kernel, const uint32_t grid[3], pasta_plan_steps *steps) {
    steps->before = steps->count = 0;
    pthread_mutex_lock(&plan.mutex);
    begin();
    uint32_t found = 0;
    while (found < plan.kernels && (memcmp(plan.kernel[found].grid, grid, sizeof plan.kernel->grid) ||
                                    strcmp(plan.kernel[found].name, kernel)))
        found++;
    uint64_t number = found < plan.kernels ? plan.kernel[found].count++ : 0;
    for (int after = 0; found < plan.kernels && after < 2; after++) {
        for (uint32_t e = 0; e < plan.entries; e++) {
            const struct entry *entry = &plan.entry[e];
            bool mine = entry->number != AT_ALLOCATION && entry->kernel == found &&
                        (entry->number == EACH || (uint64_t)entry->number == number);
            if (mine && (entry->action == PASTA_PLAN_EVICT) == (after == 1)) add_step(steps, e);
        }
        if (!after) steps->before = steps->count;
    }
    pthread_mutex_unlock(&plan.mutex);
}

void pasta_plan_done(const pasta_plan_step *step, int error) {
    pthread_mutex_lock(&plan.mutex);
    struct entry *e = &plan.entry[step->entry];
    if (!error) e->done++;
    else if (!e->failed++) e->error = error;
    pthread_mutex_unlock(&plan.mutex);
}
