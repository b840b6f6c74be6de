/* When probes run and inside which kernels: one case a process, named by the first argument. */
#define pasta_now simulated_now
#include "../../shim/core/windows.c"
#undef pasta_now

#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static uint64_t now = 1;
uint64_t simulated_now(void) { return __atomic_load_n(&now, __ATOMIC_RELAXED); }

/* ---- windows ---- */

static void always(void) {
    for (uint64_t i = 0; i < 5000; i++) CHECK(pasta_probe_takes(i, 8));
    CHECK(pasta_probe_always() && pasta_probe_window_changes() == 0);
}

/* launches 100/1000 */
static void launches(void) {
    for (uint64_t i = 0; i < 5000; i++) CHECK(pasta_probe_wanted(i) == (i % 1000 < 100));
    CHECK(!pasta_probe_always() && pasta_probe_window_changes() == 9);
}

/* steps 1/3 */
static void in_steps(void) {
    for (uint64_t step = 0; step < 30; step++) {
        for (int i = 0; i < 3; i++) CHECK(pasta_probe_wanted(3 * step + (uint64_t)i) == (step % 3 == 0));
        pasta_probe_step();
    }
}

/* seconds 1/60, in ns */
static void seconds(void) {
    uint64_t second = 1000000000;
    for (uint64_t i = 0; i < 600; i++, now += second / 2) CHECK(pasta_probe_wanted(i) == (i % 120 < 2));
}

/* launches 4/8, every 3 */
static void every(void) {
    uint32_t of_a = 0, of_b = 0;
    for (uint64_t i = 0; i < 8000; i++) {
        bool open = i % 8 < 4, a = i % 2;
        uint32_t number = open ? (a ? of_a++ : of_b++) : 1;
        CHECK(pasta_probe_takes(i, a ? 16 : 0) == (number % 3 == 0));
    }
}

/* skip 5, count 10, launches 4/8: both count all launches, in windows or not */
static void counted(void) {
    for (uint64_t i = 0; i < 100; i++) CHECK(pasta_probe_takes(i, 8) == (i >= 5 && i < 15 && i % 8 < 4));
}

/* A forked child starts again at step 0 and launch 0. */
static void forked(void) {
    for (uint64_t i = 0; i < 20; i++) pasta_probe_takes(i, 8);
    pasta_probe_step();
    CHECK(!pasta_probe_wanted(21));
    pid_t child = fork();
    if (!child) {
        bool good = pasta_probe_wanted(0) && !pasta_probe_takes(0, 8) && pasta_probe_takes(1, 8);
        _exit(!good);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* ---- budgets ---- */

/* What a program does: ns per launch, in and out of windows, and at the edges of a window. */
typedef struct {
    uint64_t plain, probed, edge, noise, per_step; /* per_step: launches; 0: no steps */
    uint64_t first;                                /* start-up, before launch 0 has ended */
} program;

static uint64_t seed = 1;
static uint64_t random_below(uint64_t limit) {
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return limit ? (seed >> 33) % limit : 0;
}

/* Time added by probes as a share of the time without them, after a beginning. */
static double overhead_of(const program *p, uint64_t count, uint64_t *probed) {
    uint64_t plain = 0, added = 0;
    bool before = false;
    *probed = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (p->per_step && i && i % p->per_step == 0) pasta_probe_step();
        bool open = pasta_probe_wanted(i), late = i >= count / 4;
        uint64_t own = p->plain + random_below(p->noise) + (i ? 0 : p->first);
        if (i % 50000 == 49999) own += 1000 * p->plain; /* the program writes a checkpoint */
        uint64_t extra = (open ? p->probed - p->plain : 0) + (open != before ? p->edge : 0);
        now += own + extra;
        if (late) plain += own;
        if (late) added += extra;
        *probed += open;
        before = open;
    }
    return (double)added / (double)plain;
}

static void within(const program *p, uint64_t count, double least, double most) {
    uint64_t probed;
    double overhead = overhead_of(p, count, &probed);
    if (overhead < least || overhead > most) fprintf(stderr, "overhead %g, %g to %g\n", overhead, least, most);
    CHECK(overhead >= least && overhead <= most && probed > 0);
}

/* 20 %: kept, and used */
static void budget_launches(void) {
    within(&(program){.plain = 10000, .probed = 300000, .noise = 5000, .first = 3000000000}, 4000000, 0.12, 0.205);
}
static void budget_steps(void) {
    program p = {.plain = 10000, .probed = 150000, .edge = 30000000, .noise = 5000, .per_step = 800};
    within(&p, 4000000, 0.12, 0.205);
}
/* Cheap probes are on for a third of the time, so that their cost remains known. */
static void budget_cheap(void) {
    uint64_t probed;
    program p = {.plain = 10000, .probed = 10500};
    CHECK(overhead_of(&p, 300000, &probed) < 0.02 && probed > 90000 && probed < 110000);
}
/* Steps begin later: the count by launches ends. */
static void budget_then_steps(void) {
    for (uint64_t i = 0; i < 3500; i++, now += 10000) CHECK(pasta_probe_wanted(i) == (i < 1000 || i >= 3000));
    CHECK(pasta_probe_window_changes() == 2);
    pasta_probe_step();
    CHECK(pasta_probe_wanted(10000) && pasta_probe_wanted(10999));
    pasta_probe_step();
    CHECK(!pasta_probe_wanted(11000));
}

/* ---- kernels ---- */

static uint32_t id(const char *text) { return pasta_intern_z(text); }

/* kernel = ^void gemm|vadd, exclude = <double> */
static void select_kernels(void) {
    static const struct {
        const char *symbol;
        bool wanted;
    } kernels[] = {{"vadd", true},         {"my_vadd_2", true},      {"gemm", false},
                   {"_Z4gemmIfEvT_", true}, {"_Z4gemmIdEvT_", false}, {"_Zbroken_vadd", true},
                   {"", false}};
    CHECK(pasta_open());
    for (int again = 0; again < 3; again++)
        for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
            CHECK(pasta_probe_selects(id(kernels[i].symbol), kernels[i].symbol) == kernels[i].wanted);
            CHECK(pasta_probe_selects(0, kernels[i].symbol) == kernels[i].wanted);
        }
    /* more names than the table holds */
    for (uint32_t i = 1; i < 40000; i++) CHECK(pasta_probe_selects(1000000 + i, i % 2 ? "vadd" : "x") == i % 2);
}

/* step_range = ^iteration$, steps 1/2 */
static void step_ranges(void) {
    CHECK(pasta_open() && pasta_probe_wanted(0));
    for (uint64_t i = 1; i < 10; i++) {
        pasta_probe_range(id("iteration"));
        pasta_probe_range(id("iteration 2"));
        pasta_probe_range(0);
        CHECK(pasta_probe_wanted(i) == (i % 2 == 0));
    }
}

/* step_range = ^(step.*)$, steps 1/2: of ranges that nest the outermost, on each stack for itself */
static void nested_ranges(void) {
    enum { STACK = 3, OTHER = 4 };
    CHECK(pasta_open() && pasta_probe_wanted(0));
    for (uint64_t i = 1; i < 10; i++) {
        pasta_probe_range_push(STACK, id("epoch"));
        pasta_probe_range_push(STACK, id(i % 3 ? "step a" : "step b"));
        CHECK(pasta_probe_wanted(i) == (i % 2 == 0));
        pasta_probe_range_push(STACK, id("step a"));
        pasta_probe_range_push(OTHER, id("step c"));
        pasta_probe_range_pop(OTHER);
        pasta_probe_range(id("step d"));
        pasta_probe_range_pop(STACK);
        pasta_probe_range_push(STACK, id("step a"));
        pasta_probe_range_pop(STACK);
        pasta_probe_range_pop(STACK);
        pasta_probe_range_pop(STACK);
        CHECK(pasta_probe_wanted(i) == (i % 2 == 0));
    }
    pasta_probe_range_pop(STACK); /* none is open */
    pasta_probe_range_push(OTHER, id("step a"));
    CHECK(pasta_probe_wanted(10));
}

static void wrong_expression(void) {
    CHECK(!pasta_probe_selects(8, "vadd"));
}

/* ---- threads, speed ---- */

static uint64_t taken, next;

static void *launch_many(void *count) {
    for (uint64_t i = 0; i < *(uint64_t *)count; i++) {
        uint64_t ordinal = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(&now, 1000, __ATOMIC_RELAXED);
        uint32_t name = (uint32_t)(ordinal % 100) + 1;
        if (pasta_probe_selects(name, "vadd") && pasta_probe_takes(ordinal, name))
            __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED);
        if (ordinal % 1000 == 0) pasta_probe_step();
    }
    return NULL;
}

static uint64_t launch_in_threads(uint64_t count) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) CHECK(!pthread_create(&threads[i], NULL, launch_many, &count));
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    return taken;
}

/* launches 1/2, every 5: of 40 * 1000 launches, 50 kernels in windows, 400 each, every 5th of them */
static void threads(void) { CHECK(launch_in_threads(10000) == 50 * 400 / 5); }
static void budget_threads(void) {
    uint64_t probed = launch_in_threads(10000);
    CHECK(probed > 0 && probed < 40000);
}

static void speed(void) {
    enum { COUNT = 5000000 };
    struct timespec a, b;
    uint64_t wanted = 0;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (uint64_t i = 0; i < COUNT; i++) wanted += pasta_probe_selects(8, "vadd") && pasta_probe_takes(i, 8);
    clock_gettime(CLOCK_MONOTONIC, &b);
    double ns = ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / COUNT;
    printf("%.1f ns a launch, %llu probed\n", ns, (unsigned long long)wanted);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"always", always}, {"launches", launches}, {"steps", in_steps}, {"seconds", seconds}, {"every", every},
        {"counted", counted}, {"forked", forked}, {"budget_launches", budget_launches},
        {"budget_steps", budget_steps}, {"budget_cheap", budget_cheap}, {"budget_then_steps", budget_then_steps},
        {"select", select_kernels}, {"step_ranges", step_ranges}, {"nested_ranges", nested_ranges},
        {"wrong_expression", wrong_expression},
        {"threads", threads}, {"budget_threads", budget_threads}, {"speed", speed},
    };
    return RUN_CASE(cases, argc > 1 ? argv[1] : NULL);
}
