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

enum { BUCKETS = 1 << 14 };
#define NONE UINT32_MAX

#define LOAD(place) __atomic_load_n(&(place), __ATOMIC_ACQUIRE)
#define STORE(place, value) __atomic_store_n(&(place), value, __ATOMIC_RELEASE)
#define COUNT(place) __atomic_fetch_add(&(place), 1, __ATOMIC_RELAXED) /* returns the old value */

struct entry {
    pasta_plan_action action;
    uint32_t allocation, kernel; /* in the tables below */
    uint64_t offset, bytes;
    int64_t number;
    uint64_t done, failed;
    int error; /* the first */
};

/* The three tables: elements with equal hashes of their keys are linked by `next`. */
struct allocation {
    uint64_t bytes, occurrence;
    uint32_t next;
    uint64_t address;     /* 0: not live */
    uint32_t next_living; /* in the chain of live ones by address */
};
struct size { /* each distinct one of the plan's allocations */
    uint64_t bytes, count;
    uint32_t next;
};
struct kernel { /* each distinct one with its grid */
    char *name;
    uint32_t grid[3];
    uint32_t next;
    uint64_t count;
};

/* Does not change once `on` is set, except counts, addresses and chains of live allocations. */
static struct {
    bool on, exits;
    uint32_t entries, allocations, sizes, kernels;
    struct entry *entry;
    struct allocation *allocation;
    struct size *size;
    struct kernel *kernel;
    uint32_t *order; /* entries, sorted by their keys */
    uint64_t used;   /* the process that used it: its generation + 1 */
} plan;

static uint32_t allocation_at[BUCKETS], size_at[BUCKETS], kernel_at[BUCKETS]; /* first of a chain */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;                     /* of live allocations */
static uint32_t living_at[BUCKETS];

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

static uint32_t *bucket_of(uint32_t *table, const uint64_t *key, size_t words) {
    return &table[pasta_hash(key, words * sizeof *key) >> 32 & (BUCKETS - 1)];
}
static uint32_t *allocation_bucket(uint64_t bytes, uint64_t occurrence) {
    return bucket_of(allocation_at, (uint64_t[]){bytes, occurrence}, 2);
}
static uint32_t *size_bucket(uint64_t bytes) { return bucket_of(size_at, &bytes, 1); }
static uint32_t *living_bucket(uint64_t address) { return bucket_of(living_at, &address, 1); }
static uint32_t *kernel_bucket(const char *name, const uint32_t grid[3]) {
    uint64_t key[] = {pasta_hash(name, strlen(name)), (uint64_t)grid[0] << 32 | grid[1], grid[2]};
    return bucket_of(kernel_at, key, 3);
}

static uint32_t find_allocation(uint64_t bytes, uint64_t occurrence) {
    uint32_t i = *allocation_bucket(bytes, occurrence);
    while (i != NONE && (plan.allocation[i].bytes != bytes || plan.allocation[i].occurrence != occurrence))
        i = plan.allocation[i].next;
    return i;
}

static uint32_t find_size(uint64_t bytes) {
    uint32_t i = *size_bucket(bytes);
    while (i != NONE && plan.size[i].bytes != bytes) i = plan.size[i].next;
    return i;
}

static uint32_t find_kernel(const char *name, const uint32_t grid[3]) {
    uint32_t i = *kernel_bucket(name, grid);
    while (i != NONE && (memcmp(plan.kernel[i].grid, grid, sizeof plan.kernel->grid) || strcmp(plan.kernel[i].name, name)))
        i = plan.kernel[i].next;
    return i;
}

static bool add_allocation(uint64_t bytes, uint64_t occurrence, uint32_t *number) {
    *number = find_allocation(bytes, occurrence);
    if (*number != NONE) return true;
    uint32_t *first = allocation_bucket(bytes, occurrence);
    APPEND(allocation, allocations, (struct allocation){.bytes = bytes, .occurrence = occurrence, .next = *first});
    *first = *number = plan.allocations - 1;
    if (find_size(bytes) != NONE) return true;
    first = size_bucket(bytes);
    APPEND(size, sizes, (struct size){.bytes = bytes, .next = *first});
    *first = plan.sizes - 1;
    return true;
}

static bool add_kernel(const char *name, const uint32_t grid[3], uint32_t *number) {
    *number = find_kernel(name, grid);
    if (*number != NONE) return true;
    uint32_t *first = kernel_bucket(name, grid);
    char *copy = strdup(name);
    if (!copy) return false;
    APPEND(kernel, kernels, (struct kernel){.name = copy, .grid = {grid[0], grid[1], grid[2]}, .next = *first});
    *first = *number = plan.kernels - 1;
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
    if (e.action == PASTA_PLAN_ACTIONS || !add_allocation(size, occurrence, &e.allocation)) return false;
    if (e.number != AT_ALLOCATION && !add_kernel(line + used + 1, grid, &e.kernel)) return false;
    APPEND(entry, entries, e);
    return true;
}

/* ---- entries by trigger ---- */

/* Entries of an allocation, or of a kernel, to run before or after each launch or a numbered one. */
typedef struct key {
    bool at_launch;
    uint32_t owner;
    bool after;
    int64_t number;
    uint32_t entry;
} key;

static key key_of(uint32_t entry) {
    const struct entry *e = &plan.entry[entry];
    if (e->number == AT_ALLOCATION) return (key){false, e->allocation, false, AT_ALLOCATION, entry};
    return (key){true, e->kernel, e->action == PASTA_PLAN_EVICT, e->number, entry};
}

static int compare(const key *a, const key *b) {
#define BY(field) if (a->field != b->field) return a->field < b->field ? -1 : 1;
    BY(at_launch) BY(owner) BY(after) BY(number) BY(entry)
    return 0;
}

static int compare_entries(const void *a, const void *b) {
    key first = key_of(*(const uint32_t *)a), second = key_of(*(const uint32_t *)b);
    return compare(&first, &second);
}

static bool sort_entries(void) {
    plan.order = malloc((plan.entries + 1) * sizeof *plan.order); /* + 1: never 0 bytes */
    for (uint32_t i = 0; plan.order && i < plan.entries; i++) plan.order[i] = i;
    if (plan.order) qsort(plan.order, plan.entries, sizeof *plan.order, compare_entries);
    return plan.order != NULL;
}

/* The place in `order` of the first entry that is not below k. */
static uint32_t lower_bound(key k) {
    uint32_t low = 0, high = plan.entries;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        key found = key_of(plan.order[middle]);
        if (compare(&found, &k) < 0) low = middle + 1;
        else high = middle;
    }
    return low;
}

static pasta_plan_range range_of(key k) {
    k.entry = 0;
    uint32_t first = lower_bound(k);
    k.entry = NONE;
    return (pasta_plan_range){first, lower_bound(k)};
}

/* Another thread of the parent may have held it. */
static void forked(void) { pthread_mutex_init(&mutex, NULL); }

__attribute__((constructor)) static void load(void) {
    const char *path = pasta_config("uvm_plan");
    if (!path || !*path) return;
    memset(allocation_at, 0xff, sizeof allocation_at);
    memset(size_at, 0xff, sizeof size_at);
    memset(kernel_at, 0xff, sizeof kernel_at);
    FILE *file = fopen(path, "re");
    char *line = NULL; /* names of kernels are of any length */
    size_t room = 0;
    bool good = file != NULL;
    while (good && getline(&line, &room, file) >= 0) good = read_entry(line);
    free(line);
    if (file) fclose(file);
    if (!good) pasta_say("the managed memory plan is not applied: %s cannot be read", path);
    plan.on = good && plan.entries && sort_entries() && !pthread_atfork(NULL, NULL, forked);
}

bool pasta_plan_is_on(void) { return plan.on; }

/* ---- report ---- */

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
    if (LOAD(plan.used) != pasta_generation() + UINT64_C(1)) return;
    uint64_t done = 0, listed = 0, missing = 0;
    uint32_t carried = 0;
    for (uint32_t i = 0; i < plan.entries; i++) {
        done += plan.entry[i].done;
        carried += plan.entry[i].done > 0;
    }
    pasta_say("managed memory plan: %u of %u entries applied, %" PRIu64 " calls", carried, plan.entries, done);
    for (uint32_t i = 0; i < plan.entries; i++) {
        const struct entry *e = &plan.entry[i];
        if (e->done && !e->failed) continue;
        char text[512];
        missing++;
        if (listed++ >= MAX_LISTED) continue;
        describe(e, text, sizeof text);
        if (e->failed) pasta_say("managed memory plan: entry %u: %" PRIu64 " calls failed, the first with error %d: %s", i + 1, e->failed, e->error, text);
        else pasta_say("managed memory plan: entry %u matched nothing: %s", i + 1, text);
    }
    if (missing > MAX_LISTED) pasta_say("managed memory plan: %" PRIu64 " more entries failed or matched nothing", missing - MAX_LISTED);
}

/* ---- the program's calls ---- */

/* The child of a fork starts as a process of its own. */
static void begin(void) {
    uint64_t process = pasta_generation() + UINT64_C(1);
    if (LOAD(plan.used) == process) return;
    pthread_mutex_lock(&mutex);
    if (LOAD(plan.used) != process) {
        memset(living_at, 0xff, sizeof living_at);
        for (uint32_t i = 0; i < plan.allocations; i++) plan.allocation[i].address = 0;
        for (uint32_t i = 0; i < plan.sizes; i++) plan.size[i].count = 0;
        for (uint32_t i = 0; i < plan.kernels; i++) plan.kernel[i].count = 0;
        for (uint32_t i = 0; i < plan.entries; i++) plan.entry[i].done = plan.entry[i].failed = 0;
        if (!plan.exits) plan.exits = !atexit(report);
        STORE(plan.used, process);
    }
    pthread_mutex_unlock(&mutex);
}

/* mutex held.  Several have an address where the program freed one in a way that is not followed. */
static void forget_living(uint64_t address) {
    for (uint32_t *link = living_bucket(address); *link != NONE;) {
        struct allocation *a = &plan.allocation[*link];
        if (a->address == address) {
            STORE(a->address, 0);
            *link = a->next_living;
        } else {
            link = &a->next_living;
        }
    }
}

pasta_plan_steps pasta_plan_allocated(uint64_t address, uint64_t bytes) {
    pasta_plan_steps none = {{{0, 0}, {0, 0}}};
    begin();
    uint32_t size = find_size(bytes);
    uint32_t found = size == NONE ? NONE : find_allocation(bytes, COUNT(plan.size[size].count));
    if (found == NONE || !address) return none;
    pthread_mutex_lock(&mutex);
    forget_living(address);
    uint32_t *first = living_bucket(address);
    plan.allocation[found].next_living = *first;
    *first = found;
    STORE(plan.allocation[found].address, address);
    pthread_mutex_unlock(&mutex);
    return (pasta_plan_steps){{range_of((key){.owner = found, .number = AT_ALLOCATION}), {0, 0}}};
}

void pasta_plan_freed(uint64_t address) {
    if (LOAD(plan.used) != pasta_generation() + UINT64_C(1)) return; /* nothing lives */
    pthread_mutex_lock(&mutex);
    forget_living(address);
    pthread_mutex_unlock(&mutex);
}

pasta_plan_launch pasta_plan_launched(const char *kernel, const uint32_t grid[3]) {
    pasta_plan_launch launch = {{{{0, 0}, {0, 0}}}, {{{0, 0}, {0, 0}}}};
    begin();
    uint32_t found = find_kernel(kernel, grid);
    if (found == NONE) return launch;
    int64_t number = (int64_t)COUNT(plan.kernel[found].count);
    for (int after = 0; after < 2; after++) {
        pasta_plan_steps *steps = after ? &launch.after : &launch.before;
        steps->range[0] = range_of((key){true, found, after, EACH, 0});
        steps->range[1] = range_of((key){true, found, after, number, 0});
    }
    return launch;
}

/* Removes the earlier of two ranges' first entries; NONE: both are empty. */
static uint32_t take_entry(pasta_plan_steps *steps) {
    pasta_plan_range *a = &steps->range[0], *b = &steps->range[1];
    if (a->next == a->end && b->next == b->end) return NONE;
    bool first = b->next == b->end || (a->next < a->end && plan.order[a->next] < plan.order[b->next]);
    return plan.order[first ? a->next++ : b->next++];
}

bool pasta_plan_next(pasta_plan_steps *steps, pasta_plan_step *step) {
    for (uint32_t i; (i = take_entry(steps)) != NONE;) {
        const struct entry *e = &plan.entry[i];
        uint64_t address = LOAD(plan.allocation[e->allocation].address);
        if (!address) continue; /* not live */
        *step = (pasta_plan_step){e->action, i, address + e->offset, e->bytes};
        return true;
    }
    return false;
}

void pasta_plan_done(const pasta_plan_step *step, int error) {
    struct entry *e = &plan.entry[step->entry];
    if (!error) COUNT(e->done);
    else if (COUNT(e->failed) == 0) STORE(e->error, error);
}
