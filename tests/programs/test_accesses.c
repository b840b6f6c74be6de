/* Every golden kernel's accesses, as the hook sees them, against the numbers of golden.h, which are
 * computed here again from the addresses.  SOURCES: every C file of shim/refacc.
 *
 *   cc -std=c11 -Ishim/refacc -pthread tests/programs/test_accesses.c SOURCES -lm -ldl
 *   test_accesses [large]
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "../../shim/refacc/demos/golden.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct golden_count seen[RA_KIND_COUNT];
static long unknown;

/* ---- live memory, from the resource callbacks ---- */

static struct {
    uint64_t address, bytes;
} live[64];
static int live_count;

static bool is_known(uint64_t address) {
    for (int i = 0; i < live_count; i++)
        if (address - live[i].address < live[i].bytes) return true;
    return false;
}

static void on_memory(void *userdata, ra_domain domain, ra_callback_id id, void *data) {
    (void)userdata, (void)domain;
    const ra_memory_data *d = data;
    pthread_mutex_lock(&lock);
    if (id == RA_CALLBACK_MEMORY_ALLOCATED) {
        CHECK(live_count < 64);
        live[live_count].address = d->address;
        live[live_count++].bytes = d->bytes;
    } else if (id == RA_CALLBACK_MEMORY_FREED) {
        int i = 0;
        while (i < live_count && live[i].address != d->address) i++;
        CHECK(i < live_count);
        live[i] = live[--live_count];
    }
    pthread_mutex_unlock(&lock);
}

/* ---- sectors and ways, byte by byte and word by word ---- */

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static long distinct(uint64_t *values, long count) {
    long found = 0;
    qsort(values, (size_t)count, sizeof *values, ascending);
    for (long i = 0; i < count; i++) found += !i || values[i] != values[i - 1];
    return found;
}

static void count_sectors(const ra_access *a, struct golden_count *c) {
    static uint64_t bytes[1 << 16], sectors[1 << 16];
    long count = 0;
    for (int lane = 0; lane < 32; lane++) {
        if (!(a->mask >> lane & 1)) continue;
        for (uint32_t row = 0; row < a->rows; row++)
            for (uint32_t i = 0; i < a->bytes; i++) {
                bytes[count] = a->address[lane] + row * (uint64_t)a->stride + i;
                sectors[count] = bytes[count] / 32;
                count++;
            }
    }
    c->sectors += distinct(sectors, count);
    c->ideal_sectors += (distinct(bytes, count) + 31) / 32;
}

static void count_ways(const ra_access *a, struct golden_count *c) {
    int together = a->bytes == 16 ? 8 : a->bytes == 8 ? 16 : 32;
    for (int first = 0; first < 32; first += together) {
        uint64_t words[256];
        long count = 0, per_bank[32] = {0}, most = 0;
        for (int lane = first; lane < first + together; lane++)
            for (uint32_t i = 0; a->mask >> lane & 1 && i < a->bytes; i += 4) words[count++] = a->address[lane] / 4 + i / 4;
        qsort(words, (size_t)count, sizeof *words, ascending);
        for (long i = 0; i < count; i++)
            if ((!i || words[i] != words[i - 1]) && ++per_bank[words[i] % 32] > most) most = per_bank[words[i] % 32];
        c->ways += most;
        c->ideal_ways += most > 0;
    }
}

/* ---- the hook ---- */

static void tally(void *userdata, const ra_access *a) {
    bool cheaply = *(const bool *)userdata;
    pthread_mutex_lock(&lock);
    CHECK(a->size == sizeof *a && a->mask && a->kind < RA_KIND_COUNT);
    struct golden_count *c = &seen[a->kind];
    c->instructions++;
    c->reads += (a->flags & RA_ACCESS_READ) != 0;
    c->writes += (a->flags & RA_ACCESS_WRITE) != 0;
    c->atomics += (a->flags & RA_ACCESS_ATOMIC) != 0;
    c->lanes += __builtin_popcount(a->mask);
    c->bytes += (long)a->transfer;
    for (int lane = 0; lane < 32 && !cheaply; lane++) {
        bool active = a->mask >> lane & 1;
        CHECK(active || !a->address[lane]);
        if (a->space == RA_SPACE_GLOBAL) unknown += active && a->transfer && !is_known(a->address[lane]);
        if (a->kind == RA_KIND_CALL) CHECK(!active || a->address[lane] / 4096 == a->pc / 4096);
    }
    if (a->space == RA_SPACE_GLOBAL && !cheaply) count_sectors(a, c);
    if (a->space == RA_SPACE_SHARED && a->kind != RA_KIND_BULK_SHARED) count_ways(a, c);
    if (a->space == RA_SPACE_NONE) CHECK(!a->bytes && !a->flags && !a->transfer);
    pthread_mutex_unlock(&lock);
}

static int wrong;

static void compare(const char *name, const char *field, int kind, long got, long expected) {
    if (expected < 0 || got == expected) return;
    fprintf(stderr, "%s: kind %d: %ld %s, not %ld\n", name, kind, got, field, expected);
    wrong++;
}

static struct golden_count expectation(const struct golden *g, int kind) {
    for (int i = 0; i < GOLDEN_KINDS; i++)
        if ((int)g->accesses[i].kind == kind) return g->accesses[i];
    return (struct golden_count){0};
}

static void check_case(const struct golden *g, ra_tools_handle tools) {
    bool cheaply = g == &golden_cases[GOLDEN_CASES - 1];
    memset(seen, 0, sizeof seen);
    unknown = 0;
    RA(ra_tools()->set_access_hook(tools, tally, &cheaply));
    golden_run(g);
    RA(ra_tools()->set_access_hook(tools, NULL, NULL));
    for (int kind = 1; kind < RA_KIND_COUNT; kind++) {
        struct golden_count e = expectation(g, kind), s = seen[kind];
        compare(g->name, "instructions", kind, s.instructions, e.instructions);
        compare(g->name, "reads", kind, s.reads, e.reads);
        compare(g->name, "writes", kind, s.writes, e.writes);
        compare(g->name, "atomics", kind, s.atomics, e.atomics);
        compare(g->name, "lanes", kind, s.lanes, e.lanes);
        compare(g->name, "bytes", kind, s.bytes, e.bytes);
        if (cheaply) continue;
        compare(g->name, "sectors", kind, s.sectors, e.sectors);
        compare(g->name, "ideal sectors", kind, s.ideal_sectors, e.ideal_sectors);
        compare(g->name, "ways", kind, s.ways, e.ways);
        compare(g->name, "ideal ways", kind, s.ideal_ways, e.ideal_ways);
    }
    compare(g->name, "unknown lanes", 0, unknown, g->unknown);
    CHECK(live_count == 0);
}

int main(int argc, char **argv) {
    ra_tools_handle tools;
    bool large = argc > 1 && !strcmp(argv[1], "large");
    RA(ra_tools()->subscribe(&tools, on_memory, NULL));
    RA(ra_tools()->enable_domain(tools, RA_DOMAIN_RESOURCE, 1));
    for (int c = 0; c < GOLDEN_CASES; c++)
        if (large == (c == GOLDEN_CASES - 1)) check_case(&golden_cases[c], tools);
    RA(ra_shutdown());
    return wrong != 0;
}
