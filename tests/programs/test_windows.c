/* When probes run and inside which kernels: one case a process, named by the first argument. */
#define pasta_now simulated_now
#include "../../shim/core/budget.c"
#include "../../shim/core/windows.c"
#undef pasta_now

#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static uint64_t now = 1;
uint64_t simulated_now(void) { return __atomic_load_n(&now, __ATOMIC_RELAXED); }

static pasta_probe_decision decide(uint64_t ordinal, uint32_t name, uint32_t grid, uint64_t module) {
    pasta_kernel_launch launch = {.name = name, .grid = {grid, 1, 1}, .block = {32, 1, 1}, .ordinal = ordinal, .module = module};
    return pasta_probe_takes(&launch);
}
static bool takes(uint64_t ordinal, uint32_t name) { return decide(ordinal, name, 1, 1).probed; }

static uint32_t stride = 1; /* under sanitizers a part is tested: of several programs one, or as much less of a long one */

static uint32_t id(const char *text) { return pasta_intern_z(text); }

/* ---- windows ---- */

static void always(void) {
    for (uint64_t i = 0; i < 5000; i++) {
        pasta_probe_decision d = decide(i, 8, 1, 1);
        CHECK(d.probed && d.wanted == 0 && d.shape == PASTA_ABSENT_U32);
    }
    CHECK(pasta_probe_always());
}

/* launches 100/1000 */
static void launches(void) {
    for (uint64_t i = 0; i < 5000; i++) CHECK(pasta_probe_wanted(i) == (i % 1000 < 100));
    CHECK(!pasta_probe_always());
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
        CHECK(takes(i, a ? 16 : 0) == (number % 3 == 0));
    }
}

/* skip 5, count 10, launches 4/8: both count all launches, in windows or not */
static void counted(void) {
    for (uint64_t i = 0; i < 100; i++) {
        CHECK(takes(i, 8) == (i >= 5 && i < 15 && i % 8 < 4));
        CHECK(pasta_probe_wanted(i) == (i >= 4 && i < 14 && i % 8 < 4)); /* for the launch that follows */
    }
}

/* A forked child starts again at step 0 and launch 0. */
static void forked(void) {
    for (uint64_t i = 0; i < 20; i++) takes(i, 8);
    pasta_probe_step();
    CHECK(!pasta_probe_wanted(21));
    pid_t child = fork();
    if (!child) {
        bool good = !takes(0, 8) && pasta_probe_wanted(1) && takes(1, 8);
        _exit(!good);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* ---- budgets ---- */

static uint64_t seed = 1;
static uint64_t random_below(uint64_t limit) {
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return limit ? (seed >> 33) % limit : 0;
}

/* A host that launches, and a device that follows it, at most QUEUED launches behind; us. */
enum { QUEUED = 1024, MODULES = 20 };

typedef struct {
    double host, device, done[QUEUED];
} timeline;

static void submit(timeline *t, uint64_t number, double host, double device) {
    double *done = &t->done[number % QUEUED];
    t->host += host;
    if (*done > t->host) t->host = *done; /* the queue is full */
    t->device = (t->device > t->host ? t->device : t->host) + device;
    *done = t->device;
}

static void await_device(timeline *t) {
    if (t->device > t->host) t->host = t->device;
}

/* What a program does in rounds of `launches`, which are steps if it marks them. */
typedef struct {
    double host, device;    /* us of a launch, in the mean */
    uint32_t launches;      /* of a round */
    uint32_t wait;          /* launches between waits; 0: at the end only */
    double factor;          /* of a probed launch on the device */
    double seconds;         /* that it runs without probes */
    double first_patching;  /* us; further ones take a ms, and removing them a third */
    bool marks, unsampled;
    bool even;              /* otherwise one launch in 15 takes eight times as long, and the others half as long */
    bool drains;            /* putting patches in waits for the device */
    bool slow_start;        /* three seconds, then three slow rounds */
    bool pauses;            /* ten rounds long, every 20 rounds */
} program;

typedef struct {
    double overhead, worst; /* time added, as a share of the time without probes: in the end, and at most from the second second on */
    uint64_t probed, launches, windows;
} outcome;

static outcome simulate(const program *p) {
    static timeline with, plain;
    bool patched[MODULES] = {0}, before = false;
    double patching = p->first_patching, noise = 1;
    static uint32_t names;
    outcome found = {0};
    memset(&plain, 0, sizeof plain);
    plain.host = plain.device = 1;
    with = plain;
    prepare_process();
    begin_process();
    pasta_budget_patches((uint64_t)(1000 * p->first_patching));
    given.sampled = !p->unsampled;
    pasta_shapes_configure((pasta_sampling){.enough = p->unsampled ? UINT32_MAX : 3, .spot_check = 1000, .in_windows = true});
    names += 1000; /* other shapes than before */
    for (uint64_t i = 0; plain.host < 1e6 * p->seconds; i++) {
        uint64_t round = i / p->launches, kernel = i % p->launches % 60, module = kernel % MODULES;
        if (i % p->launches == 0) {
            noise = 0.7 + 0.6 * (double)random_below(1000) / 1000;
            if (p->slow_start && round < 4) noise = round ? 10 : noise + 3e6 / (p->launches * p->host);
            if (p->marks && i) pasta_probe_step();
            if (p->pauses && round % 20 == 19) with.host += 10 * p->launches * p->host, plain.host += 10 * p->launches * p->host;
        }
        now = (uint64_t)(1000 * with.host);
        bool probed = decide(i, names + (uint32_t)kernel, 1, 1 + module).probed;
        if (probed != patched[module]) {
            if (probed && p->drains) await_device(&with);
            with.host += probed ? patching : 300;
            if (probed && p->first_patching) patching = 1000;
            patched[module] = probed && p->first_patching;
        }
        double host = noise * p->host, device = noise * p->device * (p->even ? 1 : kernel % 15 ? 0.5 : 8);
        submit(&plain, i, host, device);
        submit(&with, i, host, probed ? p->factor * device : device);
        found.probed += probed;
        found.windows += probed && !before;
        before = LOAD(state.open);
        found.launches++;
        if (!p->wait || i % p->wait != p->wait - 1) continue;
        await_device(&plain);
        await_device(&with);
        now = (uint64_t)(1000 * with.host);
        pasta_probe_waited();
        double overhead = with.host / plain.host - 1;
        if (plain.host > 2e6 && overhead > found.worst) found.worst = overhead;
    }
    await_device(&plain);
    await_device(&with);
    found.overhead = with.host / plain.host - 1;
    if (found.overhead > found.worst) found.worst = found.overhead;
    return found;
}

/* The budget of 10 % is kept, to 2 points, and windows open. A probed launch is assumed to take 12 times as long. */
static void keeps(program p, uint64_t least) {
    static const double factors[] = {5, 12, 30, 200};
    static uint32_t number;
    for (size_t i = 0; i < 8; i++) {
        if (number++ % stride) continue;
        p.factor = factors[i / 2];
        p.marks = i % 2;
        outcome found = simulate(&p);
        if (found.worst > 0.12 || found.probed < least)
            fprintf(stderr, "factor %g, marks %d: %g added, at most %g; %llu of %llu launches probed in %llu windows\n", p.factor, p.marks,
                    found.overhead, found.worst, (unsigned long long)found.probed, (unsigned long long)found.launches, (unsigned long long)found.windows);
        CHECK(found.worst <= 0.12 && found.probed >= least);
    }
}

#define PATCHING 300000 /* us */

static void budget_host_bound(void) {
    program p = {.host = 35, .device = 5, .launches = 1000, .wait = 1000, .seconds = 6};
    keeps(p, 180);
    p.pauses = true;
    keeps(p, 8);
    p.first_patching = PATCHING;
    keeps(p, 8);
    p.seconds = 2.5;
    keeps(p, 0);
}

static void budget_device_bound(void) {
    program p = {.host = 8, .device = 30, .launches = 1000, .wait = 1000, .seconds = 6};
    keeps(p, 30);
    p.drains = true;
    p.first_patching = PATCHING;
    keeps(p, 16);
    p.pauses = true;
    keeps(p, 8);
}

static void budget_waits(void) {
    static const uint32_t waits[] = {1, 10, 170, 1413, 10000};
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++) {
        keeps((program){.host = 20, .device = 20, .launches = 200, .wait = waits[i], .seconds = 4}, 16);
        keeps((program){.host = 35, .device = 20, .launches = 1000, .wait = waits[i], .first_patching = PATCHING, .seconds = 8}, 8);
    }
}

static void budget_without_waits(void) {
    keeps((program){.host = 35, .device = 5, .launches = 1000, .seconds = 6}, 100);
    keeps((program){.host = 8, .device = 30, .launches = 1000, .seconds = 6}, 30);
    keeps((program){.host = 8, .device = 30, .launches = 1000, .first_patching = PATCHING, .seconds = 8}, 8);
}

static void budget_slow_start(void) {
    program p = {.host = 35, .device = 15, .launches = 1000, .wait = 1000, .slow_start = true, .seconds = 12};
    keeps(p, 100);
    p.first_patching = PATCHING;
    keeps(p, 8);
}

/* Access records: windows become whole units. */
static void budget_unsampled(void) {
    program p = {.host = 35, .device = 10, .launches = 200, .wait = 200, .unsampled = true, .seconds = 12};
    keeps(p, 70);
    p.first_patching = PATCHING;
    keeps(p, 8);
}

/* Few launches, which take long: none can be paid for in ten seconds. */
static void budget_long_launches(void) {
    program p = {.host = 50, .device = 3000, .launches = 300, .wait = 300, .even = true, .seconds = 10};
    keeps(p, 0);
    p.seconds = 100;
    keeps(p, 8);
}

/* Probes that cost little are on for much of the time. */
static void budget_cheap(void) {
    program p = {.host = 35, .device = 5, .launches = 1000, .wait = 1000, .factor = 1.1, .unsampled = true, .seconds = 20};
    outcome found = simulate(&p);
    CHECK(found.worst < 0.02 && found.probed > found.launches / 20);
}

/* Steps begin later: the count by launches ends. */
static void budget_then_steps(void) {
    for (uint64_t i = 0; i < 40000; i++, now += 10000) takes(i, 8);
    pasta_probe_step();
    uint64_t probed = 0;
    for (uint64_t step = 0; step < 400; step++, pasta_probe_step())
        for (uint64_t i = 0, open = 0; i < 100; i++, now += 10000) {
            bool taken = takes(40000 + 100 * step + i, 8);
            if (i == 0) open = taken;
            CHECK(taken == open); /* of a step all launches or none */
            probed += taken;
        }
    CHECK(probed > 0);
}

/* ---- enough of each shape ---- */

static void enough(void) {
    uint32_t probed = 0;
    for (uint64_t i = 0; i < 100; i++) probed += decide(i, 8 + i % 2 * 8, 1 + i % 10, 1 + i % 20 / 10).probed;
    CHECK(probed == 20 * 3); /* kernels and grids go together, each in two modules */
    CHECK(!pasta_probe_always() && decide(100, 8, 11, 1).probed && !decide(101, 8, 1, 1).probed);
}

/* A framework's operator is part of the shape, but not of launches by graphs. */
static void by_operator(void) {
    CHECK(pasta_open() && !pasta_probe_always() && pasta_scope_follows_operators);
    uint32_t probed = 0, in_graph = 0;
    for (uint64_t i = 0; i < 30; i++) {
        pasta_operator_begin e = {.name = id(i % 2 ? "mm" : "add"), .sequence = PASTA_ABSENT_U32};
        pasta_kernel_launch l = {.name = 8, .graph_node = PASTA_ABSENT_U64}, of_graph = {.name = 8, .graph_node = 7};
        pasta_scope_operator_begins(&e);
        probed += pasta_probe_takes(&l).probed;
        in_graph += pasta_probe_takes(&of_graph).probed;
        pasta_scope_operator_ends();
    }
    CHECK(probed == 2 * 3 && in_graph == 3);
}

/* ---- pauses of operators ---- */

static bool following = true, refusing; /* changed by one thread at a time */
static uint32_t changes;

static bool change(bool paused) {
    CHECK(LOAD(following) == paused);
    changes++;
    if (!refusing) STORE(following, !paused);
    return !refusing;
}

/* A launch in an operator, which is unknown where operators are not followed. */
static pasta_probe_decision launch_in(const char *operator, uint32_t name, uint64_t ordinal) {
    pasta_operator_begin e = {.name = id(operator), .sequence = PASTA_ABSENT_U32};
    pasta_kernel_launch l = {.name = name, .ordinal = ordinal, .graph_node = PASTA_ABSENT_U64};
    bool followed = LOAD(following);
    if (followed) pasta_scope_operator_begins(&e);
    pasta_probe_decision d = pasta_probe_takes(&l);
    if (followed) pasta_scope_operator_ends();
    return d;
}

/* One kernel in two operators, and another one. */
static void pauses(void) {
    static const char *const operators[] = {"mm", "add", "mul"};
    uint32_t probed[3] = {0}, paused = 0;
    uint64_t i = 0;
    CHECK(pasta_open() && !pasta_probe_always());
    pasta_scope_on_pause(change);
    for (; i < 100000; i++) {
        pasta_probe_decision d = launch_in(operators[i % 3], i % 3 == 2 ? 9 : 8, i);
        CHECK(!(d.probed && d.paused));
        probed[i % 3] += d.probed;
        paused += d.paused;
    }
    /* rounds begin at 3,000 launches, and 6,000, 12,000 … later; each has a launch of each shape within 4,096 */
    /* and one soon after the first three, unless a round begins before */
    for (int each = 0; each < 3; each++) CHECK(probed[each] == 3 + 5 || probed[each] == 3 + 1 + 5);
    CHECK(probed[0] + probed[1] + probed[2] > 3 * 8);
    CHECK(paused > 100000 - 4200 - 5 * 2 * 4200 && paused < 100000 - 4096 - 4 * 4096);
    while (following) (void)launch_in("mm", 8, i++);
    CHECK(changes % 2 == 1);

    /* an unknown kernel is probed without its operator; later launches of it with theirs, when one has begun */
    pasta_probe_decision d = launch_in("mm", 10, i++);
    CHECK(d.probed && d.paused && d.wanted == 1 && following);
    pasta_kernel_launch in_it = {.name = 9, .ordinal = i++, .graph_node = PASTA_ABSENT_U64};
    d = pasta_probe_takes(&in_it); /* still in the operator that began before */
    CHECK(!d.probed && d.paused);
    for (int launch = 0; launch < 4; launch++) {
        d = launch_in("mm", 10, i++);
        CHECK(d.probed == (launch < 3) && !d.paused);
    }

    /* captured nodes get their operators */
    while (following) (void)launch_in("mm", 8, i++);
    pasta_capture_begins();
    pasta_capturing = 1;
    CHECK(following);
    for (int launch = 0; launch < 10000; launch++) (void)launch_in("mm", 8, i++);
    CHECK(following);
    pasta_capturing = 0;

    /* launches of graphs have no operator */
    while (following) (void)launch_in("mm", 8, i++);
    pasta_kernel_launch of_graph = {.name = 11, .ordinal = i++, .graph_node = 7};
    d = pasta_probe_takes(&of_graph);
    CHECK(d.probed && !d.paused && !following);

    /* a thread without operators is known to have none after a while */
    (void)launch_in("mm", 12, i++);
    CHECK(following);
    uint32_t without = 0;
    pasta_kernel_launch l = {.name = 9, .ordinal = i, .graph_node = PASTA_ABSENT_U64};
    for (int launch = 0; launch < 1000; launch++) without += pasta_probe_takes(&l).paused;
    CHECK(without == 256);

    /* probes are not ready: the kernel stays unknown, and is probed when it has an operator */
    while (following) (void)launch_in("mm", 8, i++);
    pasta_kernel_launch unready = {.name = 13, .ordinal = i++, .graph_node = PASTA_ABSENT_U64};
    d = pasta_probe_takes_if(&unready, false);
    CHECK(!d.probed && d.paused && d.wanted == 0 && following);
    CHECK(launch_in("mm", 13, i++).probed);

    /* the framework cannot pause */
    refusing = true;
    changes = 0;
    for (int launch = 0; launch < 20000; launch++) CHECK(!launch_in("mm", 8, i++).paused);
    CHECK(following && changes >= 2 && changes <= 5);
}

/* Operators are followed at the start, and in windows that a budget paid for, until all shapes were probed; then at spot
 * checks, and for a new shape. */
static void budget_pauses(void) {
    enum { KERNELS = 20, FIRST_NAME = 20, LAUNCHES = 1000000, ENOUGH = 3 };
    uint32_t probed[KERNELS + 1] = {0}, complete = 0;
    uint64_t i = 0;
    CHECK(pasta_open() && !pasta_probe_always());
    pasta_scope_on_pause(change);
    for (uint32_t kernels = KERNELS; kernels <= KERNELS + 1; kernels++) {
        uint64_t begin = i, followed = 0, needed = 0;
        for (; i < begin + LAUNCHES; i++, now += 35000) {
            uint32_t kernel = (uint32_t)(i % kernels);
            followed += LOAD(following);
            if (launch_in("mm", FIRST_NAME + kernel, i).probed) {
                now += 500000;
                if (++probed[kernel] == ENOUGH && ++complete == kernels) needed = i - begin;
            }
            if (i % 1000 == 999) pasta_probe_waited();
        }
        CHECK(complete == kernels && needed < 30000);
        CHECK(!following && followed > 4096 && followed < LAUNCHES / 30);
    }
}

/* Steps of 600 launches. Amounts of one kernel, which two operators launch, and of another one, once a step, differ; those
 * of a hundred others are alike. */
static void differing_pauses(void) {
    enum { STEPS = 1000, LAUNCHES = 600, FORWARD = 400, SINGLE = 8, DIFFERING = 9, ALIKE = 10, KERNELS = 100 };
    uint64_t i = 0, late = 0, brief = 0;
    uint32_t probed[3] = {0}, regular[2] = {0};
    CHECK(pasta_open() && !pasta_probe_always());
    pasta_scope_on_pause(change);
    for (uint32_t step = 0; step < STEPS; step++)
        for (uint32_t at = 0; at < LAUNCHES; at++, i++) {
            uint32_t name = at == 0 ? SINGLE : at % 10 ? ALIKE + at % KERNELS : DIFFERING;
            bool backward = at > FORWARD, followed = LOAD(following);
            pasta_probe_decision d = launch_in(backward ? "mm_backward" : "mm", name, i);
            CHECK(followed || d.paused);
            late += followed && step >= STEPS / 10;
            brief += followed && d.paused;
            if (name == DIFFERING && !d.paused) regular[backward]++;
            if (!d.probed) continue;
            probed[name < ALIKE ? name - SINGLE : 2]++;
            uint64_t differs = random_below(500);
            pasta_probe_counted(d.shape, name == SINGLE ? 100 * (1000 + differs) : name == DIFFERING ? 1000 + differs : 1000);
        }
    CHECK(!following && probed[0] > 10 && probed[0] <= 40 && probed[1] > 50 && probed[1] <= 200); /* these have several places */
    CHECK(probed[2] <= 2 * KERNELS * (3 + 1)); /* one round of spot checks */
    CHECK(late < (STEPS - STEPS / 10) * LAUNCHES / 50 && brief > 0); /* the single launch is waited for in each round */
    CHECK(regular[1] * 40 > regular[0] * 19 * 0.9 && regular[1] * 40 < regular[0] * 19 * 1.1); /* as many are launched in a step */
}

/* Ten launches of a shape come in a row in each step of 300, and access less and less, but the same in each step. Each is
 * probed as often as the others, and no longer when each is known, except in spot checks. */
static void launches_in_a_row(void) {
    enum { STEPS = 10000, LAUNCHES = 300, ROW = 10, CHECKS = 4 };
    uint64_t probed[ROW] = {0};
    CHECK(pasta_open() && !pasta_probe_always());
    pasta_scope_on_pause(change); /* pauses if the configuration says so */
    for (uint64_t i = 0; i < (uint64_t)STEPS * LAUNCHES / stride; i++) {
        uint64_t at = i % LAUNCHES, amount = at < ROW ? 1000 - 90 * at : 10;
        pasta_probe_decision d = launch_in(at < ROW ? "optimizer" : at < 100 ? "mm" : "add", at < ROW ? 8 : 16 + (uint32_t)(at % 20), i);
        if (!d.probed) continue;
        pasta_probe_counted(d.shape, amount);
        if (at < ROW) probed[at]++;
    }
    if (stride > 1) return; /* too few */
    for (int i = 0; i < ROW; i++) CHECK(probed[i] >= 3 + CHECKS && probed[i] <= 3 + CHECKS + (i < 3)); /* the first ones before they differed */
}

/* A kernel accesses more or less, by the kernel before it: one of a hundred, or of three hundred, which are too many places. */
static void after_different_ones(uint32_t kernels) {
    enum { STEPS = 300, FIRST = 16, MOST = 128 };
    uint32_t probed = 0, last = 0;
    CHECK(pasta_open() && !pasta_probe_always());
    for (uint64_t i = 0; i < (uint64_t)STEPS * kernels * 2; i++) {
        uint32_t kernel = (uint32_t)(i / 2 % kernels);
        pasta_probe_decision d = decide(i, i % 2 ? 8 : FIRST + kernel, 1, 1);
        if (!d.probed) continue;
        pasta_probe_counted(d.shape, i % 2 ? 1000 + 10 * kernel : 100);
        probed += i % 2;
        last += i % 2 && i > (uint64_t)(STEPS - 100) * kernels * 2;
    }
    CHECK(probed > 3 * (kernels < MOST ? kernels : MOST) && probed < 3 * MOST + 200);
    CHECK(kernels < MOST ? last == 0 : last > 0); /* in extra rounds */
}
static void places(void) { after_different_ones(100); }
static void many_places(void) { after_different_ones(300); }

/* A module holds something wanted from its first shape until all that came are complete. */
static void modules(void) {
    static const int8_t wanted[] = {1, 1, 0, 0, -1, -1, 0, 1, 0, -1, 0};
    static const uint32_t grid[] = {1, 2, 1, 2, 1, 2, 1, 3, 3, 3, 3};
    for (uint64_t i = 0; i < sizeof wanted; i++) CHECK(decide(i, 8, grid[i], 1).wanted == wanted[i]);
}

/* -k alone: a module with a selected kernel is wanted for ever. */
static void selected_modules(void) {
    for (uint64_t i = 0; i < 100; i++) {
        pasta_probe_decision d = decide(i, 8 + i % 2 * 8, 1 + (uint32_t)i, 1);
        CHECK(d.probed && d.wanted == (i < 2));
    }
}

static void spot_checks(void) {
    enum { UNLIKE = 300000, END = 500000 };
    uint64_t at[1000], count = 0, alike = 0, anew = 0;
    for (uint64_t i = 0; i < END && count < 1000; i++) {
        pasta_probe_decision d = decide(i, 8, 1, 1);
        if (!d.probed) continue;
        at[count++] = i;
        if (i < UNLIKE) alike++;
        pasta_probe_counted(d.shape, i < UNLIKE ? 1000 : 1200);
    }
    static const uint64_t doubling[] = {0, 1, 2, 4, 1000, 3000, 7000, 15000, 31000, 63000, 127000, 191000, 255000};
    CHECK(alike == sizeof doubling / sizeof *doubling);
    for (uint64_t i = 0; i < alike; i++) CHECK(at[i] >= doubling[i] && at[i] <= doubling[i] + (i < 3 ? 0 : i < 5 ? 1000 : 4098));
    for (uint64_t i = alike + 1; i < count; i++) anew += at[i] - at[i - 1] < 1000;
    for (uint64_t i = alike + 1; i < alike + 4; i++) CHECK(at[i] == at[i - 1] + 1); /* at the place in rows that they have now */
    CHECK(count > alike + 5 && at[alike + 4] < at[alike] + 2000 + 4098 && at[alike + 5] < at[alike] + 6000 + 2 * 4098); /* closer again */
}

/* The first launches of a row access more than its later ones, and a kernel of the same module comes before each row. */
static void begins_of_rows(void) {
    uint64_t later = 0, probed = 0;
    for (uint64_t i = 0; i < 201 * 60; i++) {
        pasta_probe_decision d = decide(i, i % 201 ? 8 : 16, 1, 1);
        if (!d.probed) continue;
        probed++;
        later += i % 201 > 63;
        pasta_probe_counted(d.shape, i % 201 < 64 ? 1000 : 10);
    }
    CHECK(later > 3 && probed > 3 * 64); /* of each place in rows */
}

/* Amounts grow slowly: launches at a place seem alike, but more of them are probed in the course of the run. */
static void growing(void) {
    uint64_t at = 0, late = 0;
    for (uint64_t i = 0; i < 100000; i++) {
        pasta_probe_decision d = decide(i, i % 5 ? 8 : 16, 1, 1);
        if (!d.probed) continue;
        if (i % 5) at = i, late += i > 20000;
        pasta_probe_counted(d.shape, i % 5 ? 10 + i / 10 : 1000);
    }
    CHECK(late > 20 && at > 50000);
}

/* every 7, sampled: rounds count all launches, but begin with one that is the seventh. */
static void every_sampled(void) {
    uint64_t probed = 0;
    for (uint64_t i = 0; i < 20000; i++) {
        if (!takes(i, 8)) continue;
        CHECK(i % 7 == 0);
        probed++;
    }
    CHECK(probed >= 3 + 1 + 4 && probed <= 3 + 1 + 5);
}

/* Of launches that differ by 10 % about a hundred are probed, spread over the run; of those that are alike none more. */
static void unlike_launches(void) {
    uint64_t differing = 0, alike = 0, late = 0;
    for (uint64_t i = 0; i < 20000; i++) {
        bool first = i % 2;
        pasta_probe_decision d = decide(i, first ? 8 : 16, 1, 1);
        if (!d.probed) continue;
        if (first) differing++, late += i > 10000;
        else alike++;
        pasta_probe_counted(d.shape, first ? 1000 + random_below(400) : 1000);
    }
    CHECK(alike == 3 + 1 + 2 && differing > 40 && differing < 110 && late > 10);
}

/* The same spread matters little in a shape with a two-thousandth of all amounts. */
static void unimportant_launches(void) {
    uint64_t differing = 0;
    for (uint64_t i = 0; i < 20000; i++) {
        bool first = i % 2;
        pasta_probe_decision d = decide(i, first ? 8 : 16, 1, 1);
        if (!d.probed) continue;
        differing += first;
        pasta_probe_counted(d.shape, first ? 1000 + random_below(400) : 2400000);
    }
    CHECK(differing >= 3 + 3 && differing < 12);
}

static void many_shapes(void) {
    uint64_t probed = 0;
    for (uint32_t i = 0; i < 40000; i++) probed += decide(i, 8, 1 + i, 1).probed;
    CHECK(probed > 32000 && probed <= 32768);
    CHECK(decide(40000, 8, 1, 1).probed); /* known ones go on */
}

/* ---- kernels ---- */

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
        pasta_probe_range_start(i, id("iteration"));
        pasta_probe_range_start(100 + i, id("iteration 2"));
        pasta_probe_range_start(200 + i, 0);
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
        pasta_probe_range_start(i, id("step d"));
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

static bool fits(bool in_graph) {
    pasta_kernel_launch launch = {.name = 8, .graph_node = in_graph ? 1 : PASTA_ABSENT_U64};
    return pasta_probe_takes(&launch).probed;
}

/* range = epoch */
static void ranges(void) {
    enum { STACK = 3, OTHER = 4 };
    CHECK(pasta_open() && !fits(false));
    pasta_probe_range_push(STACK, id("warm-up"));
    CHECK(!fits(false));
    pasta_probe_range_push(OTHER, id("epoch 1"));
    pasta_probe_range_push(STACK, id("step"));
    CHECK(fits(false) && fits(true));
    pasta_probe_range_pop(STACK);
    pasta_probe_range_pop(OTHER);
    CHECK(!fits(false) && !fits(true));
    pasta_probe_range_start(7, id("an epoch"));
    pasta_probe_range_start(8, id("another"));
    pasta_probe_range_end(8);
    pasta_probe_range_pop(STACK);
    pasta_probe_range_pop(STACK); /* none is open */
    CHECK(fits(false));
    pasta_probe_range_end(7);
    pasta_probe_range_end(7);
    CHECK(!fits(false));
    for (int depth = 0; depth < 400; depth++) pasta_probe_range_push(STACK, id(depth == 300 ? "epoch" : "x"));
    CHECK(fits(false)); /* too deep to know */
    for (int depth = 0; depth < 400; depth++) pasta_probe_range_pop(STACK);
    CHECK(!fits(false));
    for (uint64_t i = 0; i < 1000; i++) pasta_probe_range_start(100 + i, id("epoch"));
    for (uint64_t i = 0; i < 1000; i++) pasta_probe_range_end(100 + i);
    CHECK(fits(false)); /* too many to know */
}

static void begins(const char *name, const char *module, uint32_t sequence, uint16_t forward_thread) {
    pasta_operator_begin e = {.name = id(name), .module = module ? id(module) : 0, .sequence = sequence,
                              .forward_thread = forward_thread, .framework_thread = 1};
    pasta_scope_operator_begins(&e);
}

/* operator = addmm|Backward, module = fc1 */
static void operators(void) {
    enum { NO_THREAD = UINT16_MAX };
    pasta_scope_operator_ends(); /* none is open */
    CHECK(pasta_open() && !fits(false) && pasta_scope_follows_operators);
    begins("linear", "net.fc1 Linear", 7, NO_THREAD);
    CHECK(!fits(false));
    begins("addmm", NULL, PASTA_ABSENT_U32, NO_THREAD);
    CHECK(fits(false));
    pasta_scope_operator_ends();
    CHECK(!fits(false) && fits(true)); /* of a graph: captured elsewhere */
    pasta_scope_operator_ends();
    begins("addmm", "net.act ReLU", 8, NO_THREAD);
    CHECK(!fits(false));
    pasta_scope_operator_ends();
    for (uint32_t sequence = 7; sequence < 10; sequence++) {
        begins("AddmmBackward", NULL, sequence, 1);
        begins("mm", NULL, PASTA_ABSENT_U32, NO_THREAD);
        CHECK(fits(false) == (sequence != 8)); /* 9 is unknown */
        pasta_scope_operator_ends();
        pasta_scope_operator_ends();
    }
    for (int depth = 0; depth < 300; depth++) begins("x", NULL, PASTA_ABSENT_U32, NO_THREAD);
    CHECK(fits(false)); /* too deep to know */
    for (int depth = 0; depth < 300; depth++) pasta_scope_operator_ends();
    CHECK(!fits(false));
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
        if (pasta_probe_selects(name, "vadd") && takes(ordinal, name))
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

static void *launch_and_pause(void *unused) {
    (void)unused;
    for (uint32_t i = 0; i < 30000; i++) {
        uint32_t name = i % 5000 == 0 ? 1000 + i / 5000 : 20 + i % 7;
        (void)launch_in(i % 2 ? "mm" : "add", name, pasta_next_launch());
    }
    return NULL;
}

/* Threads that pause operators and need them at the same time: in the end the framework does what libpasta knows. */
static void pausing_threads(void) {
    pthread_t threads[4];
    CHECK(pasta_open() && !pasta_probe_always());
    pasta_scope_on_pause(change);
    for (int i = 0; i < 4; i++) CHECK(!pthread_create(&threads[i], NULL, launch_and_pause, NULL));
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    CHECK(changes > 2);
    for (int i = 0; i < 10000; i++) (void)launch_in("mm", 20, pasta_next_launch());
    CHECK(!following && launch_in("mm", 20, pasta_next_launch()).paused);
    CHECK(launch_in("mm", 2000, pasta_next_launch()).probed && following);
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
    for (uint64_t i = 0; i < COUNT; i++) wanted += pasta_probe_selects(8, "vadd") && takes(i, 8);
    clock_gettime(CLOCK_MONOTONIC, &b);
    double ns = ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / COUNT;
    printf("%.1f ns a launch, %llu probed\n", ns, (unsigned long long)wanted);
}

/* ---- decisions that are put off ---- */

enum { IN_TURN = 6000 };
static pasta_probe_decision decisions[IN_TURN];
static void keep(uint64_t ordinal, uint64_t module, pasta_probe_decision d) {
    (void)module;
    decisions[ordinal] = d;
}

/* A source that rests from its 500th launch on, and from the 3000th: what it launches changes shortly afterwards. */
static void play(bool puts_off) {
    begin_process();
    for (uint64_t i = 0; i < IN_TURN; i++) {
        bool rests = (i >= 500 && i < 1500) || (i >= 3000 && i < 5000);
        uint32_t name = i % 7 < 3 ? 1 : 2 + (uint32_t)(i % 5), grid = i < 520 || i % 13 ? 1 : 2;
        pasta_kernel_launch l = {.name = name, .grid = {grid, 1, 1}, .block = {32, 1, 1}, .ordinal = i, .module = 1,
                                 .graph_node = PASTA_ABSENT_U64, .shared_dynamic = PASTA_ABSENT_U32};
        if (rests && puts_off) pasta_probe_put_off(&l);
        else keep(i, 1, pasta_probe_takes_if(&l, !rests));
    }
}

/* The decisions are the same, also in a thread for which no line is left. */
static void put_off_launches(void) {
    static pasta_probe_decision at_once[IN_TURN];
    CHECK(pasta_probe_rests());
    pasta_probe_on_settled(keep);
    play(false);
    memcpy(at_once, decisions, sizeof at_once);
    for (int lined = 1; lined >= 0; lined--) {
        uint32_t probed = 0, missed = 0;
        waiting = NULL;
        lines_taken = lined ? 0 : LINES;
        memset(decisions, 0, sizeof decisions);
        play(true);
        CHECK((waiting != NULL) == lined);
        for (uint64_t i = 0; i < IN_TURN; i++) {
            CHECK(decisions[i].probed == at_once[i].probed && decisions[i].missed == at_once[i].missed);
            CHECK(decisions[i].wanted == at_once[i].wanted && decisions[i].shape == at_once[i].shape);
            probed += decisions[i].probed;
            missed += decisions[i].missed;
        }
        CHECK(probed >= 20 && missed >= 20);
    }
}

/* Launches that wait are not the child's. */
static void put_off_and_fork(void) {
    pasta_kernel_launch l = {.grid = {1, 1, 1}, .block = {32, 1, 1}, .graph_node = PASTA_ABSENT_U64, .ordinal = 5};
    pasta_probe_on_settled(keep);
    pasta_probe_put_off(&l);
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        l.ordinal = 7;
        pasta_probe_put_off(&l);
        settle_all();
        _exit(decisions[5].missed ? 1 : decisions[7].missed ? 0 : 2);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    settle_all();
    CHECK(decisions[5].missed);
}

/* With an option by which not only a launch's shape decides. */
static void never_rests(void) { CHECK(!pasta_probe_rests()); }

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"always", always}, {"launches", launches}, {"steps", in_steps}, {"seconds", seconds}, {"every", every},
        {"counted", counted}, {"forked", forked}, {"budget_host_bound", budget_host_bound}, {"budget_device_bound", budget_device_bound}, {"budget_waits", budget_waits}, {"budget_without_waits", budget_without_waits},
        {"budget_slow_start", budget_slow_start}, {"budget_unsampled", budget_unsampled}, {"budget_long_launches", budget_long_launches}, {"budget_cheap", budget_cheap},
        {"budget_then_steps", budget_then_steps},
        {"select", select_kernels}, {"step_ranges", step_ranges}, {"nested_ranges", nested_ranges},
        {"enough", enough}, {"modules", modules}, {"by_operator", by_operator}, {"pauses", pauses}, {"budget_pauses", budget_pauses}, {"differing_pauses", differing_pauses},
        {"pausing_threads", pausing_threads},
        {"selected_modules", selected_modules}, {"spot_checks", spot_checks}, {"unlike_launches", unlike_launches}, {"begins_of_rows", begins_of_rows}, {"growing", growing}, {"every_sampled", every_sampled}, {"launches_in_a_row", launches_in_a_row},
        {"places", places}, {"many_places", many_places},
        {"put_off", put_off_launches}, {"put_off_and_fork", put_off_and_fork}, {"never_rests", never_rests},
        {"unimportant_launches", unimportant_launches},
        {"many_shapes", many_shapes}, {"ranges", ranges}, {"operators", operators}, {"wrong_expression", wrong_expression},
        {"threads", threads}, {"budget_threads", budget_threads}, {"speed", speed},
    };
    if (argc > 2) stride = (uint32_t)atoi(argv[2]);
    return RUN_CASE(cases, argc > 1 ? argv[1] : NULL);
}
