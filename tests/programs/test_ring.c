/* The ring, its strings and the life of the process, one case for each run: test_ring CASE.
 * The environment variable PASTA_SHIM names the session and the size of the ring, as in a target;
 * tests/unit/test_c_sanitizers.py lists the cases with their configurations. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../shim/core/internal.h"
#include "../../shim/core/segments.h"
#include "../../shim/python/reader.h"
#include "check.h"

enum { THREADS = 8, SLOTS = 16384 };

static unsigned events = 100000; /* per thread; fewer under sanitizers */

/* ---- published records: marks of one slot, launches of two ---- */

static uint64_t mixed(uint64_t value) { return (value ^ value >> 29) * UINT64_C(0xbf58476d1ce4e5b9); }

static bool is_launch(uint32_t sequence) { return sequence % 3 == 0; }

/* False if the ring was full. */
static bool publish(uint32_t thread, uint32_t sequence) {
    uint64_t key = (uint64_t)thread << 32 | sequence;
    if (is_launch(sequence)) {
        pasta_kernel_launch *e = PASTA_BEGIN(kernel_launch, 1, 2, 3);
        if (!e) return false;
        e->ordinal = key;
        e->function = mixed(key);
        e->entry_pc = mixed(key + 1);
        e->name = (uint32_t)mixed(key + 2);
        pasta_publish(e);
    } else {
        pasta_range *e = PASTA_BEGIN_AS(mark, range, 1, 2, 3);
        if (!e) return false;
        e->id = key;
        e->name = (uint32_t)mixed(key);
        e->color = (uint32_t)mixed(key + 1);
        pasta_publish(e);
    }
    return true;
}

static void publish_waiting(uint32_t thread, uint32_t sequence) {
    while (!publish(thread, sequence)) sched_yield();
}

/* ---- a consumer that checks the records ---- */

typedef struct {
    pasta_ring *ring;
    uint64_t position, torn, drops_told;
    uint32_t next[THREADS];
    bool gaps;    /* sequences may skip: events were dropped */
    bool stopped; /* profiling was */
} consumer;

static void check_header(const pasta_header *h) {
    CHECK(h->device == 1 && h->context == 2 && h->stream == 3 && h->correlation == 0 && h->flags == 0);
    CHECK(h->time > 0 && h->thread != 0);
}

static void check_key(consumer *c, uint64_t key) {
    uint32_t thread = (uint32_t)(key >> 32), sequence = (uint32_t)key;
    CHECK(thread < THREADS);
    CHECK(c->gaps ? sequence >= c->next[thread] : sequence == c->next[thread]);
    c->next[thread] = sequence + 1;
}

static void check_mark(consumer *c, const pasta_header *h) {
    const pasta_range *e = (const pasta_range *)(h + 1);
    check_header(h);
    CHECK(e->name == (uint32_t)mixed(e->id) && e->color == (uint32_t)mixed(e->id + 1));
    CHECK(e->domain == PASTA_ABSENT_U32 && e->origin == PASTA_ABSENT_U32);
    check_key(c, e->id);
}

static void check_launch(consumer *c, const pasta_header *h) {
    const pasta_kernel_launch *e = (const pasta_kernel_launch *)(h + 1);
    check_header(h);
    CHECK(e->function == mixed(e->ordinal) && e->entry_pc == mixed(e->ordinal + 1));
    CHECK(e->name == (uint32_t)mixed(e->ordinal + 2) && e->module == PASTA_ABSENT_U64);
    CHECK(!c->stopped);
    check_key(c, e->ordinal);
}

/* Reads all published records in order of position; returns their number. */
static uint64_t consume(consumer *c, bool final) {
    pasta_stretch s = {.ring = c->ring, .segment_slots = SLOTS, .from = c->position, .end = pasta_tail(c->ring), .final = final};
    pasta_scan(&s);
    void *outputs[PASTA_KINDS] = {NULL};
    uint8_t *next[PASTA_KINDS] = {NULL}, *stop[PASTA_KINDS] = {NULL};
    uint64_t records = 0;
    for (int kind = 0; kind < PASTA_KINDS; kind++) {
        if (!s.counts[kind] || kind == PASTA_EVENT_pad) continue;
        size_t bytes = (size_t)s.counts[kind] * (size_t)pasta_kind_slots(kind) * PASTA_SLOT;
        CHECK(outputs[kind] = next[kind] = malloc(bytes));
        stop[kind] = next[kind] + bytes;
        records += s.counts[kind];
    }
    pasta_gather(&s, s.from, outputs);
    for (uint64_t done = 0; done < records; done++) {
        int first = -1;
        for (int kind = 0; kind < PASTA_KINDS; kind++)
            if (next[kind] < stop[kind] &&
                (first < 0 || ((pasta_header *)next[kind])->commit < ((pasta_header *)next[first])->commit))
                first = kind;
        const pasta_header *h = (const pasta_header *)next[first];
        next[first] += (size_t)h->slots * PASTA_SLOT;
        CHECK(h->kind == first);
        if (first == PASTA_EVENT_mark) check_mark(c, h);
        if (first == PASTA_EVENT_kernel_launch) check_launch(c, h);
        if (first == PASTA_EVENT_profiling_start || first == PASTA_EVENT_profiling_stop)
            c->stopped = first == PASTA_EVENT_profiling_stop;
        if (first == PASTA_EVENT_dropped) c->drops_told += ((const pasta_dropped *)(h + 1))->count;
    }
    for (int kind = 0; kind < PASTA_KINDS; kind++) free(outputs[kind]);
    c->position = s.end;
    c->torn += s.torn;
    return records;
}

static consumer open_ring(void) {
    CHECK(pasta_open());
    return (consumer){.ring = pasta_ring_mine()};
}

/* ---- producers ---- */

static uint32_t running;

static void *produce(void *thread) {
    for (unsigned i = 0; i < events; i++) publish_waiting((uint32_t)(uintptr_t)thread, i);
    __atomic_sub_fetch(&running, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void run_producers(consumer *c, unsigned threads) {
    pthread_t ids[THREADS];
    running = threads;
    for (uintptr_t i = 0; i < threads; i++) CHECK(!pthread_create(&ids[i], NULL, produce, (void *)i));
    while (__atomic_load_n(&running, __ATOMIC_ACQUIRE)) {
        if (!consume(c, false)) sched_yield();
        pasta_release(c->ring, c->position);
    }
    for (unsigned i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    consume(c, false);
    CHECK(c->position == pasta_tail(c->ring));
    for (unsigned i = 0; i < threads; i++) CHECK(c->next[i] == events);
}

static uint64_t dropped_in_all(pasta_ring *r) {
    uint64_t sum = 0;
    for (int kind = 0; kind < PASTA_KINDS; kind++) sum += r->dropped[kind];
    return sum;
}

static void case_order(void) {
    consumer c = open_ring();
    for (unsigned i = 0; i < events; i++) CHECK(publish(0, i));
    CHECK(consume(&c, false) == events && c.next[0] == events && !c.torn);
    CHECK(c.position == pasta_tail(c.ring));
    CHECK(c.ring->pid == (uint32_t)getpid() && c.ring->parent == (uint32_t)getppid() && c.ring->sequence == 0);
}

static void case_wrap(void) {
    consumer c = open_ring();
    events *= 5;
    run_producers(&c, 1);
    CHECK(pasta_tail(c.ring) / SLOTS > c.ring->max_segments && c.ring->segments <= c.ring->max_segments);
}

/* Eight producers; with the default cap nothing may be dropped, with a small one segments are
 * reused all the time. */
static void case_many(void) {
    consumer c = open_ring();
    run_producers(&c, THREADS);
    /* producers retried after each drop: exactly the reported drops occurred */
    uint64_t pending = c.ring->pending_drops;
    CHECK(c.drops_told + pending == dropped_in_all(c.ring));
    if (c.ring->max_segments > 64) CHECK(!dropped_in_all(c.ring));
}

/* Logical segments pass a multiple of the map's size, and the bits of the commit word: 2^31 - 1 is
 * where its complement is zero, 2^32 where it would be zero were it the number alone. */
static void start_at(consumer *c, uint64_t logical) {
    c->ring->segment_map[0] = 0;
    c->ring->segments = 0;
    c->ring->tail = c->ring->released = c->position = logical * SLOTS;
}

static void case_map_wraps(void) {
    consumer c = open_ring();
    start_at(&c, 3 * PASTA_MAX_SEGMENTS - 2);
    run_producers(&c, THREADS);
    CHECK(pasta_tail(c.ring) / SLOTS > 3 * PASTA_MAX_SEGMENTS);
}

static void case_commit_wraps(void) {
    consumer c = open_ring();
    start_at(&c, UINT32_MAX - 2);
    CHECK(pasta_commit_word(UINT32_MAX) == UINT32_MAX && pasta_commit_word(UINT64_C(1) << 32) != 0);
    run_producers(&c, THREADS);
    CHECK(pasta_tail(c.ring) / SLOTS > (uint64_t)UINT32_MAX + 1);
}

static void case_cap(void) {
    consumer c = open_ring();
    unsigned taken = 0;
    while (publish(0, taken)) taken++;
    for (int i = 0; i < 9; i++) CHECK(!PASTA_BEGIN(memory_set, 0, 0, 0));
    unsigned refused = is_launch(taken) ? PASTA_EVENT_kernel_launch : PASTA_EVENT_mark;
    CHECK(c.ring->dropped[refused] == 1 && c.ring->dropped[PASTA_EVENT_memory_set] == 9);
    CHECK(c.ring->pending_drops == 10 && c.ring->segments == c.ring->max_segments);
    CHECK(consume(&c, false) == taken && !c.drops_told);
    pasta_release(c.ring, c.position);
    CHECK(publish(0, taken));
    CHECK(consume(&c, false) == 2 && c.drops_told == 10 && c.ring->pending_drops == 0);
}

static void case_stop(void) {
    consumer c = open_ring();
    CHECK(pasta_profiling_is_on());
    pasta_profiling_set(false, PASTA_ORIGIN_api);
    pasta_profiling_set(false, PASTA_ORIGIN_api); /* a second stop is none */
    CHECK(!pasta_profiling_is_on());
    CHECK(!PASTA_BEGIN(kernel_launch, 0, 0, 0) && !PASTA_BEGIN(memory_copy, 0, 0, 0) && !PASTA_BEGIN(sync, 0, 0, 0));
    pasta_publish(PASTA_BEGIN_AS(memory_alloc, memory, 0, 0, 0));
    pasta_publish(PASTA_BEGIN_AS(range_push, range, 0, 0, 0));
    pasta_publish(PASTA_BEGIN_AS(module_load, module, 0, 0, 0));
    pasta_profiling_set(true, PASTA_ORIGIN_profiler);
    pasta_publish(PASTA_BEGIN(sync, 0, 0, 0));
    CHECK(consume(&c, false) == 6 && !dropped_in_all(c.ring));
}

static bool announced;
static void on_change(bool on) { __atomic_store_n(&announced, on, __ATOMIC_RELEASE); }

static void *switch_often(void *odd) {
    for (unsigned i = 0; i < 2000; i++) pasta_profiling_set(i % 2 == (odd ? 1 : 0), PASTA_ORIGIN_api);
    return NULL;
}

/* What was announced last holds, whichever thread was the last to switch. */
static void case_switches(void) {
    consumer c = open_ring();
    pthread_t threads[4];
    pasta_on_profiling(on_change);
    for (unsigned round = 0; round < 20; round++) {
        for (uintptr_t t = 0; t < 4; t++) CHECK(!pthread_create(&threads[t], NULL, switch_often, (void *)(t % 2)));
        for (unsigned t = 0; t < 4; t++) pthread_join(threads[t], NULL);
        CHECK(announced == pasta_profiling_is_on());
        bool held = pasta_profiling_hold();
        CHECK(pasta_profiling_is_on() && announced);
        pasta_profiling_release(held);
        CHECK(pasta_profiling_is_on() == held && announced == held);
        consume(&c, false);
    }
}

enum { STARTS = 2000 };
static uint32_t permitted, seen_on; /* starts */

static void *publish_when_on(void *unused) {
    for (uint32_t i = 0; i < STARTS; i++) {
        while (__atomic_load_n(&permitted, __ATOMIC_ACQUIRE) <= i) continue;
        while (!pasta_profiling_is_on()) continue;
        CHECK(publish(0, i));
        __atomic_store_n(&seen_on, i + 1, __ATOMIC_RELEASE);
    }
    return unused;
}

/* The record of a start comes before all that was recorded since. */
static void case_starts(void) {
    consumer c = open_ring();
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, publish_when_on, NULL));
    for (uint32_t i = 0; i < STARTS; i++) {
        pasta_profiling_set(false, PASTA_ORIGIN_api);
        __atomic_store_n(&permitted, i + 1, __ATOMIC_RELEASE);
        pasta_profiling_set(true, PASTA_ORIGIN_api);
        while (__atomic_load_n(&seen_on, __ATOMIC_ACQUIRE) <= i) continue;
    }
    pthread_join(thread, NULL);
    CHECK(consume(&c, false) == 3 * STARTS && c.next[0] == STARTS);
}

/* ---- records that are never finished ---- */

static void case_torn(void) {
    consumer c = open_ring();
    CHECK(publish(0, 0));
    pasta_memory_copy *e = PASTA_BEGIN(memory_copy, 0, 0, 0); /* ended while it wrote */
    CHECK(e && publish(0, 1));
    __atomic_fetch_add(&c.ring->tail, 2, __ATOMIC_RELAXED); /* ended before it wrote anything */
    CHECK(publish(0, 2));
    CHECK(consume(&c, false) == 1 && consume(&c, false) == 0);
    consumer last = {.ring = c.ring};
    CHECK(consume(&last, true) == 3 && last.torn == 4 && last.next[0] == 3);
    pasta_publish(e); /* it was only slow: a waiting consumer loses nothing */
    CHECK(consume(&c, false) == 2 && !c.torn);
}

/* Earlier contents of a segment must not look like records of its next use. */
static void case_stale(void) {
    consumer c = open_ring();
    uint32_t word = pasta_commit_word(c.ring->max_segments); /* of the first segment's second use */
    for (uint64_t n = 0; n < (uint64_t)c.ring->max_segments * SLOTS / 2; n++) {
        pasta_kernel_launch *e = PASTA_BEGIN(kernel_launch, 0, 0, 0);
        CHECK(e);
        pasta_header forged = {.commit = word, .kind = PASTA_EVENT_mark, .slots = 1};
        memcpy((uint8_t *)pasta_header_of(e) + PASTA_SLOT, &forged, sizeof forged);
        pasta_publish(e);
    }
    pasta_stretch s = {.ring = c.ring, .segment_slots = SLOTS, .from = 0, .end = pasta_tail(c.ring)};
    pasta_scan(&s);
    c.position = s.end;
    CHECK(c.position == (uint64_t)c.ring->max_segments * SLOTS);
    pasta_release(c.ring, c.position);
    CHECK(publish(0, 0)); /* two slots: the forged header is next but one */
    __atomic_fetch_add(&c.ring->tail, 3, __ATOMIC_RELAXED);
    CHECK(publish(0, 1));
    CHECK(consume(&c, false) == 1);
    CHECK(consume(&c, true) == 1 && c.torn == 3);
}

static uint32_t *published; /* by each thread of the child, shared with the parent */

static void *produce_for_ever(void *thread) {
    for (uint32_t i = 0;; i++) {
        publish_waiting((uint32_t)(uintptr_t)thread, i);
        __atomic_store_n(&published[(uintptr_t)thread], i + 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

static void case_killed(void) {
    enum { PRODUCERS = 2 };
    published = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char path[4096];
    CHECK(published != MAP_FAILED);
    pid_t child = fork();
    if (!child) {
        CHECK(pasta_open());
        pthread_t other;
        for (uintptr_t t = 0; t < PRODUCERS; t++) {
            CHECK(!pthread_create(&other, NULL, produce_for_ever, (void *)t));
        }
        pause();
    }
    while (__atomic_load_n(&published[0], __ATOMIC_ACQUIRE) < 20000 || __atomic_load_n(&published[1], __ATOMIC_ACQUIRE) < 20000)
        sched_yield();
    kill(child, SIGKILL);
    CHECK(waitpid(child, NULL, 0) == child);
    snprintf(path, sizeof path, "%s/rings/%d-0", pasta_session(), (int)child);
    int error;
    consumer c = {.ring = pasta_map(path, &error)};
    CHECK(c.ring && !error && c.ring->state == PASTA_STATE_open);
    consume(&c, true);
    CHECK(c.position == pasta_tail(c.ring));
    for (int t = 0; t < PRODUCERS; t++) /* one more may have been published than was counted */
        CHECK(c.next[t] == published[t] || c.next[t] == published[t] + 1);
    pasta_unmap(c.ring);
}

/* ---- strings ---- */

enum { STRINGS = 3000 };
static uint32_t ids[THREADS][STRINGS];

static void *intern_all(void *thread) {
    uintptr_t t = (uintptr_t)thread;
    for (unsigned i = 0; i < STRINGS; i++) {
        unsigned n = (i + (unsigned)t * 377) % STRINGS;
        char text[64];
        int length = snprintf(text, sizeof text, "string number %u%s", n, n % 7 ? "" : " of seven");
        ids[t][n] = pasta_intern(text, (size_t)length);
    }
    return NULL;
}

static void case_strings(void) {
    consumer c = open_ring();
    pthread_t threads[THREADS];
    CHECK(!pasta_intern_z(NULL) && pasta_intern_z("") && pasta_intern_z("") == pasta_intern("x", 0));
    for (uintptr_t t = 0; t < THREADS; t++) CHECK(!pthread_create(&threads[t], NULL, intern_all, (void *)t));
    for (int t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
    for (unsigned n = 0; n < STRINGS; n++) {
        char text[64];
        uint32_t length, expected = (uint32_t)snprintf(text, sizeof text, "string number %u%s", n, n % 7 ? "" : " of seven");
        const char *found = pasta_string_text(c.ring, ids[0][n], &length);
        CHECK(found && length == expected && !memcmp(found, text, length));
        for (int t = 1; t < THREADS; t++) CHECK(ids[t][n] == ids[0][n]);
    }
    CHECK(!pasta_string_text(c.ring, 0, &(uint32_t){0}) && !pasta_string_text(c.ring, UINT32_MAX, &(uint32_t){0}));
}

/* Threads fill the arena with strings of all sizes: their ids are distinct. */
enum { LONG_STRINGS = 400 };
static struct {
    uint32_t id, length;
} longs[THREADS][LONG_STRINGS];

static void fill_text(char *text, size_t length, unsigned thread, unsigned n) {
    memset(text, 'a' + (int)((thread * 7 + n) % 26), length);
    size_t start = (size_t)snprintf(text, length, "%u/%u", thread, n);
    text[start] = ' ';
}

static void *intern_long(void *thread) {
    unsigned t = (unsigned)(uintptr_t)thread;
    char *text = malloc(1 << 20);
    for (unsigned n = 0; n < LONG_STRINGS; n++) {
        size_t length = 64 + mixed(t * 1000 + n) % (n % 2 ? 100 : 100000);
        fill_text(text, length, t, n);
        longs[t][n].id = pasta_intern(text, length);
        longs[t][n].length = (uint32_t)length;
    }
    free(text);
    return NULL;
}

static void case_arena_full(void) {
    consumer c = open_ring();
    pthread_t threads[THREADS];
    char *text = malloc(1 << 20);
    unsigned refused = 0;
    for (uintptr_t t = 0; t < THREADS; t++) CHECK(!pthread_create(&threads[t], NULL, intern_long, (void *)t));
    for (int t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
    for (unsigned t = 0; t < THREADS; t++)
        for (unsigned n = 0; n < LONG_STRINGS; n++) {
            uint32_t length;
            if (!longs[t][n].id && ++refused) continue;
            const char *found = pasta_string_text(c.ring, longs[t][n].id, &length);
            fill_text(text, longs[t][n].length, t, n);
            CHECK(found && length == longs[t][n].length && !memcmp(found, text, length));
        }
    CHECK(refused && c.ring->arena_used <= c.ring->arena_bytes && c.ring->arena_used <= c.ring->arena_committed);
    CHECK(publish(0, 0)); /* an event without its name is better than none */
    free(text);
}

/* ---- fork ---- */

static int status_of(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

static void use_in_child(uint32_t generation) {
    CHECK(!PASTA_BEGIN_AS(mark, range, 0, 0, 0)); /* no ring until it is asked for */
    CHECK(pasta_generation() == generation + 1);
    CHECK(!pasta_ring_mine() && pasta_next_launch() == 0 && !pasta_intern_z("child"));
    consumer c = open_ring();
    CHECK(c.ring->pid == (uint32_t)getpid() && c.ring->sequence == 0 && pasta_tail(c.ring) == 0);
    CHECK(publish(0, 0) && publish(0, 1) && consume(&c, false) == 2);
    _exit(0);
}

static void case_fork(void) {
    consumer c = open_ring();
    CHECK(publish(0, 0));
    uint64_t launch = pasta_next_launch(), used = c.ring->arena_used;
    uint32_t generation = pasta_generation();
    pid_t child = fork();
    if (!child) use_in_child(generation);
    CHECK(status_of(child) == 0);
    CHECK(publish(0, 1) && consume(&c, false) == 2 && pasta_next_launch() == launch + 1);
    CHECK(c.ring->arena_used == used && c.ring->launches == launch + 2 && pasta_generation() == generation);
}

static unsigned tapped;

static void count_tapped(const pasta_header *record) {
    CHECK(record->kind == PASTA_EVENT_sync && ((const pasta_sync *)(record + 1))->duration == tapped);
    tapped++;
}

static void publish_sync(uint64_t duration) {
    pasta_sync *e = PASTA_BEGIN(sync, 0, 0, 0);
    CHECK(e);
    e->duration = duration;
    pasta_publish(e);
}

static void case_tap(void) {
    consumer c = open_ring();
    publish_sync(99);
    pasta_tapped = count_tapped;
    for (unsigned i = 0; i < 3; i++) publish_sync(i);
    pid_t child = fork(); /* the parent's tap must not receive its records */
    if (!child) {
        CHECK(pasta_open() && !pasta_tapped);
        publish_sync(99);
        _exit(0);
    }
    CHECK(status_of(child) == 0);
    pasta_tapped = NULL;
    publish_sync(99);
    CHECK(tapped == 3 && consume(&c, false) == 5);
}

/* A child that no fork handler saw. */
static void case_clone(void) {
    consumer c = open_ring();
    CHECK(publish(0, 0));
    pasta_next_launch();
    uint64_t used = c.ring->arena_used, launches = c.ring->launches;
    uint32_t generation = pasta_generation();
    long child = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, 0);
    if (!child) {
        CHECK(!pasta_intern_z("before anything else"));
        use_in_child(generation);
    }
    CHECK(status_of((pid_t)child) == 0);
    CHECK(publish(0, 1) && consume(&c, false) == 2 && c.ring->arena_used == used && c.ring->launches == launches);
}

static void first_handler(void) {
    CHECK(pasta_open());
    publish_waiting(0, 0);
}

/* Another library's handler, run before ours, uses us: the child keeps that ring. */
static void case_fork_handlers(void) {
    CHECK(pasta_open());
    pid_t child = fork();
    if (!child) {
        consumer c = {.ring = pasta_ring_mine()};
        CHECK(c.ring && c.ring->pid == (uint32_t)getpid() && consume(&c, false) == 1);
        _exit(0);
    }
    CHECK(status_of(child) == 0);
}

/* Threads publish while the process forks: every child starts clean. */
static void case_fork_threads(void) {
    consumer c = open_ring();
    pthread_t ids[2];
    running = 2;
    for (uintptr_t i = 0; i < 2; i++) CHECK(!pthread_create(&ids[i], NULL, produce, (void *)i));
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (!child) {
            consumer own = open_ring();
            CHECK(own.ring->pid == (uint32_t)getpid() && publish(0, 0) && consume(&own, false) == 1);
            _exit(0);
        }
        CHECK(status_of(child) == 0);
    }
    for (int i = 0; i < 2; i++) pthread_join(ids[i], NULL);
    CHECK(consume(&c, false) == 2 * (uint64_t)events && c.next[0] == events && c.next[1] == events);
}

/* ---- too little room ---- */

/* The session's file system has room for some segments, not for all. */
static void case_full(void) {
    consumer c = open_ring();
    unsigned taken = 0;
    c.gaps = true;
    while (publish(0, taken)) taken++;
    CHECK(c.ring->segments >= 2 && c.ring->max_segments < 64 && c.ring->dropped[PASTA_EVENT_kernel_launch] + c.ring->dropped[PASTA_EVENT_mark] == 1);
    for (unsigned i = 1; i < 100; i++) publish(0, taken + i);
    CHECK(consume(&c, false) == taken);
    char *text = malloc(1 << 20);
    memset(text, 'x', 1 << 20);
    CHECK(!pasta_intern(text, 1 << 20) && pasta_intern_z("short")); /* in the remaining space */
    free(text);
    pasta_release(c.ring, c.position);
    CHECK(publish(0, taken + 100) && consume(&c, false) == 2);
}

static void case_file_limit(void) {
    struct rlimit limit = {72 << 20, 72 << 20};
    CHECK(!setrlimit(RLIMIT_FSIZE, &limit));
    consumer c = open_ring();
    CHECK(c.ring->max_segments >= 2 && c.ring->max_segments < 16 && c.ring->file_bytes <= limit.rlim_cur);
    limit.rlim_cur = limit.rlim_max = 1 << 20; /* lowered later: the file has its size already */
    CHECK(!setrlimit(RLIMIT_FSIZE, &limit));
    unsigned taken = 0;
    while (publish(0, taken)) taken++;
    CHECK(taken > SLOTS && consume(&c, false) == taken);
}

static void case_file_limit_small(void) {
    struct rlimit limit = {1 << 20, 1 << 20};
    CHECK(!setrlimit(RLIMIT_FSIZE, &limit));
    CHECK(!pasta_open() && !pasta_open() && !PASTA_BEGIN_AS(mark, range, 0, 0, 0));
}

static bool interrupting, forbidden, filling;
static int populates; /* errno of populating a mapping; 0: success */

/* Stand in for libc's: a signal may interrupt them, and Linux before 5.14 cannot populate. */
int posix_fallocate(int fd, off_t offset, off_t bytes) {
    static unsigned calls;
    CHECK(!forbidden);
    if (interrupting && calls++ % 3 < 2) return EINTR;
    return fallocate(fd, 0, offset, bytes) ? errno : 0;
}

static unsigned populating; /* calls so far, on a full file system */
static bool given_up;       /* the thread of the second call */
static size_t room;

/* A full file system: the first call fails after the second, and takes what became free meanwhile. */
static int populate_full(void) {
    if (__atomic_add_fetch(&populating, 1, __ATOMIC_ACQ_REL) == 1) {
        while (!__atomic_load_n(&given_up, __ATOMIC_ACQUIRE)) sched_yield();
        room = 0;
    }
    errno = EFAULT;
    return -1;
}

int madvise(void *address, size_t bytes, int advice) {
    static unsigned calls;
    CHECK(!forbidden);
    if (filling && advice == 23) return populate_full();
    if (filling && advice == MADV_REMOVE) room = bytes;
    errno = interrupting && calls++ % 3 < 2 ? EINTR : populates;
    if (errno && advice == 23) return -1;
    return (int)syscall(SYS_madvise, address, bytes, advice);
}

static void check_it_fills(void) {
    consumer c = open_ring();
    unsigned taken = 0;
    while (publish(0, taken)) taken++;
    CHECK(c.ring->segments == c.ring->max_segments && pasta_tail(c.ring) == (uint64_t)c.ring->max_segments * SLOTS);
    CHECK(c.ring->limited == PASTA_LIMIT_none && consume(&c, false) == taken);
}

/* A sampling profiler's timer interrupts the calls that grow the ring: that is no lack of memory. */
static void case_interrupted(void) {
    interrupting = true;
    check_it_fills();
}

static void case_old_kernel(void) {
    populates = EINVAL;
    check_it_fills();
}

/* What the launcher backed is taken without a system call. */
static void case_ahead(void) {
    consumer c = open_ring();
    CHECK(publish(0, 0) && !pasta_back_ahead(c.ring, pasta_ring_path(), 4));
    forbidden = true;
    unsigned taken = 1;
    while (pasta_tail(c.ring) < (uint64_t)c.ring->backed * SLOTS - 4) CHECK(publish(0, taken++));
    forbidden = false;
    CHECK(c.ring->segments == 5 && c.ring->backed == 5 && consume(&c, false) == taken);
}

/* Producers and the launcher back memory at once. */
static void case_ahead_many(void) {
    consumer c = open_ring();
    pthread_t producers[THREADS];
    running = THREADS;
    for (uintptr_t t = 0; t < THREADS; t++) CHECK(!pthread_create(&producers[t], NULL, produce, (void *)t));
    while (__atomic_load_n(&running, __ATOMIC_ACQUIRE)) {
        CHECK(!pasta_back_ahead(c.ring, pasta_ring_path(), 2));
        consume(&c, false);
    }
    for (unsigned t = 0; t < THREADS; t++) CHECK(!pthread_join(producers[t], NULL));
    consume(&c, false);
    CHECK(c.ring->segments <= c.ring->backed && c.ring->backed <= c.ring->max_segments);
    for (unsigned t = 0; t < THREADS; t++) CHECK(c.next[t] == events);
}

static void *publish_one(void *taken) {
    *(bool *)taken = publish(1, 1);
    return NULL;
}

/* Two producers fill the file system at once: there is room for the launcher when both have given up. */
static void case_full_many(void) {
    consumer c = open_ring();
    pthread_t first;
    bool taken = true;
    while (pasta_tail(c.ring) < SLOTS) CHECK(publish(0, 1));
    filling = true;
    CHECK(!pthread_create(&first, NULL, publish_one, &taken));
    while (!__atomic_load_n(&populating, __ATOMIC_ACQUIRE)) sched_yield();
    CHECK(!publish(0, 1));
    __atomic_store_n(&given_up, true, __ATOMIC_RELEASE);
    CHECK(!pthread_join(first, NULL) && !taken);
    CHECK(c.ring->limited == PASTA_LIMIT_memory && c.ring->max_segments == 1);
    CHECK(room >= 256 << 10);
}

/* A sandboxed process keeps its memory, makes no system call, and reports why the ring does not grow. */
static void case_restricted(void) {
    consumer c = open_ring();
    CHECK(publish(0, 0));
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    struct sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog filter = {1, all};
    CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) && pasta_is_sandboxed());
    forbidden = true;
    unsigned taken = 1;
    while (publish(0, taken)) taken++;
    forbidden = false;
    CHECK(c.ring->backed == 17 && c.ring->limited == PASTA_LIMIT_sandbox && c.ring->max_segments > 17);
    CHECK(!pasta_back_ahead(c.ring, pasta_ring_path(), 1)); /* the launcher may still */
    CHECK(publish(0, taken) && consume(&c, false) == taken + 2); /* with the event that reports the loss */
}

/* ---- configuration ---- */

enum { KEYS = 100 };

/* Inserts KEYS keys before the test's own configuration. */
static void add_keys(void) {
    static char text[1 << 14];
    size_t length = 0;
    for (unsigned i = 0; i < KEYS; i++) length += (size_t)snprintf(text + length, sizeof text - length, "key%u=%u\x1f", i, i);
    snprintf(text + length, sizeof text - length, "%s", getenv("PASTA_SHIM"));
    setenv("PASTA_SHIM", text, 1);
}

static void case_keys(void) {
    consumer c = open_ring(); /* needs the test's own keys, which come last */
    CHECK(c.ring && pasta_config_u64("key0", KEYS) == 0 && pasta_config_u64("key99", KEYS) == 99);
}

static const test_case cases[] = {
    {"order", case_order},
    {"wrap", case_wrap},
    {"many", case_many},
    {"map_wraps", case_map_wraps},
    {"commit_wraps", case_commit_wraps},
    {"cap", case_cap},
    {"stop", case_stop},
    {"switches", case_switches},
    {"starts", case_starts},
    {"torn", case_torn},
    {"stale", case_stale},
    {"killed", case_killed},
    {"strings", case_strings},
    {"arena_full", case_arena_full},
    {"fork", case_fork},
    {"tap", case_tap},
    {"clone", case_clone},
    {"fork_handlers", case_fork_handlers},
    {"fork_threads", case_fork_threads},
    {"full", case_full},
    {"file_limit", case_file_limit},
    {"file_limit_small", case_file_limit_small},
    {"interrupted", case_interrupted},
    {"old_kernel", case_old_kernel},
    {"ahead", case_ahead},
    {"ahead_many", case_ahead_many},
    {"full_many", case_full_many},
    {"restricted", case_restricted},
    {"keys", case_keys},
};

/* Before the library's own constructor, so that its fork handler comes before the library's. */
__attribute__((constructor(101))) static void early(void) {
    const char *first = getenv("TEST_FIRST_HANDLER");
    if (first) pthread_atfork(NULL, NULL, first_handler);
    if (getenv("TEST_KEYS")) add_keys();
}

int main(int count, char **arguments) {
    if (count > 2) events = (unsigned)strtoul(arguments[2], NULL, 10);
    return RUN_CASE(cases, count > 1 ? arguments[1] : NULL);
}
