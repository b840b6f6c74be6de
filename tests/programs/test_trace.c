/* The access trace, one case for each run: test_trace CASE [RECORDS].  tests/unit/test_c_trace.py lists the
 * cases with their configurations. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../shim/core/internal.h"
#include "../../shim/python/trace_reader.h"
#include "check.h"

enum { THREADS = 6, WORDS = 12 };

static uint64_t records = 200000; /* per producer; fewer under sanitizers */

/* ---- records of 16 to 16 + 8 * WORDS bytes that can be checked for completeness ---- */

typedef struct {
    uint32_t thread, words;
    uint64_t sequence;
    uint64_t word[];
} record;

static uint64_t mixed(uint64_t value) { return (value ^ value >> 29) * UINT64_C(0xbf58476d1ce4e5b9); }

static uint32_t words_of(uint64_t sequence) { return (uint32_t)(mixed(sequence) >> 40) % (WORDS + 1); }

static bool put(pasta_trace_writer *w, uint32_t thread, uint64_t sequence) {
    uint32_t words = words_of(sequence);
    record *r = pasta_trace_begin(w, sizeof *r + words * 8);
    if (!r) return false;
    r->thread = thread;
    r->words = words;
    r->sequence = sequence;
    for (uint32_t i = 0; i < words; i++) r->word[i] = mixed(sequence + i + thread);
    pasta_trace_commit(w);
    return true;
}

typedef struct {
    uint64_t next[THREADS]; /* sequence of each producer */
    bool gaps;              /* sequences may skip: records were dropped */
    uint64_t taken, chunks;
} reader;

static void check_chunk(reader *c, const uint8_t *data, uint32_t bytes) {
    const uint8_t *end = data + bytes;
    while (data < end) {
        const record *r = (const record *)(const void *)data;
        CHECK(r->thread < THREADS && r->words == words_of(r->sequence));
        CHECK(c->gaps ? r->sequence >= c->next[r->thread] : r->sequence == c->next[r->thread]);
        for (uint32_t i = 0; i < r->words; i++) CHECK(r->word[i] == mixed(r->sequence + i + r->thread));
        c->next[r->thread] = r->sequence + 1;
        c->taken++;
        data += sizeof *r + r->words * 8;
    }
    CHECK(data == end);
    c->chunks++;
}

/* Takes all available records; returns whether there were any. */
static bool drain(pasta_trace *t, reader *c, int how) {
    uint32_t bytes;
    bool any = false;
    for (const uint8_t *data; (data = pasta_trace_take(t, how, &bytes)); any = true) {
        check_chunk(c, data, bytes);
        pasta_trace_release(t);
    }
    return any;
}

/* ---- threads ---- */

static struct {
    uint32_t pause_every; /* records after which a producer yields; 0: never */
    uint32_t running;
} production;

static void *produce(void *argument) {
    static _Thread_local pasta_trace_writer w;
    for (uint64_t i = 0; i < records; i++) {
        CHECK(put(&w, (uint32_t)(uintptr_t)argument, i));
        if (production.pause_every && i % production.pause_every == 0) sched_yield();
    }
    __atomic_fetch_sub(&production.running, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* Until no place is free, every producer has the number of one to come, and had time to find it taken. */
static void let_producers_wait(const pasta_trace *t, uint32_t threads) {
    static const struct timespec pause = {0, 20000000};
    while (__atomic_load_n(&t->next, __ATOMIC_ACQUIRE) < t->chunks + threads) {
        CHECK(__atomic_load_n(&production.running, __ATOMIC_ACQUIRE) == threads); /* enough records to fill it */
        sched_yield();
    }
    nanosleep(&pause, NULL);
}

/* The producers' records reach one consumer, complete and in order per producer; `late`: it starts when they wait. */
static void produce_and_consume(uint32_t threads, int how, uint32_t pause_every, bool late, reader *c) {
    pthread_t thread[THREADS];
    CHECK(pasta_trace_open());
    pasta_trace *t = pasta_trace_mine();
    production.running = threads;
    production.pause_every = pause_every;
    for (uintptr_t i = 0; i < threads; i++) CHECK(!pthread_create(&thread[i], NULL, produce, (void *)i));
    if (late) let_producers_wait(t, threads);
    while (__atomic_load_n(&production.running, __ATOMIC_ACQUIRE)) {
        if (drain(t, c, how)) continue;
        sched_yield();
        /* a consumer that would wait seals: chunks may be held by producers that wait for others' room */
        if (how == PASTA_TAKE_full) drain(t, c, PASTA_TAKE_seal);
    }
    for (uint32_t i = 0; i < threads; i++) CHECK(!pthread_join(thread[i], NULL));
    drain(t, c, PASTA_TAKE_seal);
    CHECK(c->taken == threads * records && t->dropped == 0);
    /* the remaining numbers are unused */
    CHECK(t->next - t->consumed <= threads);
}

static void case_one(void) {
    reader c = {0};
    produce_and_consume(1, PASTA_TAKE_full, 0, false, &c);
    CHECK(c.chunks > 1);
}

static void case_many(void) {
    reader c = {0};
    CHECK(pasta_trace_open());
    bool small = pasta_trace_mine()->chunks <= 8;
    produce_and_consume(THREADS, PASTA_TAKE_full, 0, small, &c);
    CHECK(!small || pasta_trace_mine()->waited > 0);
}

/* The consumer seals every chunk with a record. */
static void case_seal(void) {
    reader c = {0};
    produce_and_consume(THREADS, PASTA_TAKE_seal, 3, false, &c);
}

/* Threads that write one record and end hold nothing. */
static void *produce_one(void *argument) {
    static _Thread_local pasta_trace_writer w;
    CHECK(put(&w, 0, (uintptr_t)argument));
    return NULL;
}

static void case_threads(void) {
    reader c = {0};
    CHECK(pasta_trace_open());
    for (uintptr_t i = 0; i < 500; i++) {
        pthread_t thread;
        CHECK(!pthread_create(&thread, NULL, produce_one, (void *)i) && !pthread_join(thread, NULL));
        drain(pasta_trace_mine(), &c, PASTA_TAKE_seal);
    }
    CHECK(c.taken == 500 && c.chunks == 500 && pasta_trace_mine()->dropped == 0);
}

/* ---- the protocol, step by step ---- */

static void case_steps(void) {
    static pasta_trace_writer w, other;
    uint32_t bytes;
    reader c = {.gaps = true};
    CHECK(pasta_trace_open() && pasta_trace_open());
    pasta_trace *t = pasta_trace_mine();
    CHECK(t->chunk_bytes == 4096 && t->chunks == 4 && t->magic == PASTA_TRACE_MAGIC);
    CHECK(!pasta_trace_take(t, PASTA_TAKE_seal, &bytes));
    CHECK(!pasta_trace_begin(&w, 4097) && t->dropped == 1); /* in no chunk */
    /* a record that is not complete keeps its chunk, even a sealed one */
    uint64_t *first = pasta_trace_begin(&w, 9);
    CHECK(first && (uint32_t)w.state == 16);
    CHECK(!pasta_trace_take(t, PASTA_TAKE_full, &bytes) && !pasta_trace_take(t, PASTA_TAKE_seal, &bytes));
    CHECK(!pasta_trace_take(t, PASTA_TAKE_seal, &bytes));
    CHECK(t->consumed == 0);
    pasta_trace_commit(&w);
    CHECK(pasta_trace_take(t, PASTA_TAKE_full, &bytes) && bytes == 16);
    pasta_trace_release(t);
    CHECK(t->consumed == 1);
    /* its producer continues in another chunk, and an idle one's chunk is skipped */
    CHECK(put(&w, 0, 0) && w.number == 1 && put(&other, 1, 0) && other.number == 2);
    drain(t, &c, PASTA_TAKE_seal);
    CHECK(c.taken == 2 && t->consumed == 3);
    /* the chunk that w had is filled again, in the next lap and as far as w had got: not w's any more */
    static pasta_trace_writer third;
    for (int number = 3; number < 5; number++) {
        CHECK(put(&third, (uint32_t)number - 1, 0));
        drain(t, &c, PASTA_TAKE_seal);
    }
    pasta_trace_writer stale = w;
    CHECK(put(&third, 4, 0) && third.number == 5 && third.chunk == stale.chunk && (uint32_t)third.state == (uint32_t)stale.state);
    CHECK(put(&w, 0, 1) && w.chunk != stale.chunk && w.number == 6);
    drain(t, &c, PASTA_TAKE_seal);
    /* a consumer ended between the two steps of a release: the next one passes over it */
    CHECK(put(&w, 0, 2) && pasta_trace_take(t, PASTA_TAKE_seal, &bytes));
    pasta_trace_release(t);
    t->consumed--;
    CHECK(put(&w, 0, 3));
    drain(t, &c, PASTA_TAKE_seal);
    CHECK(c.next[0] == 4 && t->dropped == 1);
}

/* A number without a producer is skipped once there is a later one. */
static void case_numbers(void) {
    static pasta_trace_writer w;
    reader c = {0};
    CHECK(pasta_trace_open());
    pasta_trace *t = pasta_trace_mine();
    t->next = 2;
    CHECK(!drain(t, &c, PASTA_TAKE_full) && put(&w, 0, 0));
    CHECK(!drain(t, &c, PASTA_TAKE_full) && t->consumed == 0);
    CHECK(drain(t, &c, PASTA_TAKE_seal) && c.taken == 1 && t->consumed == 3);
}

/* ---- no consumer ---- */

static uint64_t milliseconds(void) { return pasta_now() / 1000000; }

static void case_dead_consumer(void) {
    static pasta_trace_writer w;
    uint64_t taken = 0, start = milliseconds();
    reader c = {.gaps = true};
    CHECK(pasta_trace_open());
    pasta_trace *t = pasta_trace_mine();
    while (put(&w, 0, taken)) taken++;
    CHECK(milliseconds() - start >= 400 && t->dropped == 1 && t->waited > 0); /* it may still start */
    start = milliseconds();
    for (int i = 1; i < 1000; i++) CHECK(!put(&w, 0, taken + (uint64_t)i));
    CHECK(t->dropped == 1000 && milliseconds() - start < 100); /* no more waiting */
    /* it comes back */
    drain(t, &c, PASTA_TAKE_seal);
    CHECK(c.taken == taken && c.next[0] == taken);
    CHECK(put(&w, 0, taken + 1000));
    drain(t, &c, PASTA_TAKE_seal);
    CHECK(c.taken == taken + 1 && t->dropped == 1000);
    /* and disappears again, with a full trace */
    start = milliseconds();
    while (put(&w, 0, ++taken + 1000)) {
    }
    CHECK(milliseconds() - start >= 200 && t->dropped == 1001);
}

/* Launches with lost accesses are known one by one, and further ones as a range. */
static void case_lost(void) {
    CHECK(pasta_trace_open());
    pasta_trace *t = pasta_trace_mine();
    uint64_t found = 0, end = PASTA_TRACE_LOST * 64 + 1000;
    for (uint64_t launch = 1000; launch < end; launch += 2)
        for (int twice = 0; twice < 2; twice++) pasta_trace_lost(launch);
    for (int i = 0; i < PASTA_TRACE_LOST; i++) {
        CHECK(t->lost[i].block > 1000 / 64 && (t->lost[i].launches & UINT64_C(0xaaaaaaaaaaaaaaaa)) == 0);
        found += (uint64_t)__builtin_popcountll(t->lost[i].launches);
    }
    uint64_t beyond = (1000 / 64 + PASTA_TRACE_LOST) * 64; /* the first block without a place */
    CHECK(found == (beyond - 1000) / 2);
    CHECK(~t->lost_first == beyond && t->lost_end == end - 1);
}

/* ---- processes ---- */

static void trace_path(pid_t pid, char *path, size_t size) {
    snprintf(path, size, "%s/rings/%d-0.trace", pasta_session(), (int)pid);
}

/* kill -9 during writes leaves complete records. */
static void case_killed(void) {
    char path[4096];
    int error;
    for (int round = 0; round < 10; round++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            pthread_t thread;
            CHECK(pasta_trace_open());
            records = UINT64_MAX;
            for (uintptr_t i = 0; i < THREADS; i++) CHECK(!pthread_create(&thread, NULL, produce, (void *)i));
            for (;;) pause();
        }
        trace_path(child, path, sizeof path);
        pasta_trace *t;
        while (!(t = pasta_trace_map(path, &error))) sched_yield();
        reader c = {0};
        while (c.taken < 1000 * (uint64_t)round) drain(t, &c, PASTA_TAKE_seal);
        CHECK(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
        drain(t, &c, PASTA_TAKE_final);
        CHECK(t->consumed == t->next && c.taken >= 1000 * (uint64_t)round);
        pasta_trace_unmap(t);
    }
    CHECK(!pasta_trace_map("/nonexistent", &error) && error > 0);
    CHECK(!pasta_trace_map("/proc/self/exe", &error));
}

static void case_fork(void) {
    static pasta_trace_writer w;
    char path[4096];
    int error, status;
    reader c = {0};
    CHECK(pasta_trace_open() && put(&w, 0, 0));
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        CHECK(!pasta_trace_mine() && !put(&w, 0, 1)); /* the parent's is not ours */
        CHECK(pasta_trace_open() && put(&w, 0, 0) && put(&w, 0, 1));
        _exit(7);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    CHECK(put(&w, 0, 1));
    drain(pasta_trace_mine(), &c, PASTA_TAKE_seal);
    CHECK(c.taken == 2);
    trace_path(child, path, sizeof path);
    pasta_trace *t = pasta_trace_map(path, &error);
    CHECK(t && t->pid == (uint32_t)child);
    reader theirs = {0};
    drain(t, &theirs, PASTA_TAKE_final);
    CHECK(theirs.taken == 2);
    pasta_trace_unmap(t);
}

static void case_no_room(void) {
    static pasta_trace_writer w;
    CHECK(pasta_open());
    struct rlimit limit = {1 << 20, 1 << 20};
    CHECK(!setrlimit(RLIMIT_FSIZE, &limit));
    CHECK(!pasta_trace_open() && !pasta_trace_open() && !pasta_trace_mine() && !put(&w, 0, 0));
    char path[4096];
    trace_path(getpid(), path, sizeof path);
    CHECK(access(path, F_OK));
}

/* ---- speed: cost of writing a unit-stride record ---- */

static void *write_fast(void *argument) {
    static _Thread_local pasta_trace_writer w;
    for (uint64_t i = 0; i < records; i++) {
        pasta_access *a = pasta_trace_begin(&w, sizeof *a);
        CHECK(a);
        *a = (pasta_access){.mask = UINT32_MAX, .kind = 1, .bytes = 4, .rows = 1, .stride = 4, .address = i};
        pasta_trace_commit(&w);
    }
    __atomic_fetch_sub(&production.running, 1, __ATOMIC_RELEASE);
    return argument;
}

static void case_speed(void) {
    CHECK(pasta_trace_open());
    pasta_trace *t = pasta_trace_mine();
    pthread_t thread;
    uint32_t bytes;
    uint64_t start = pasta_now(), all = 0;
    production.running = 1;
    CHECK(!pthread_create(&thread, NULL, write_fast, NULL));
    for (bool running = true; running;) {
        running = __atomic_load_n(&production.running, __ATOMIC_ACQUIRE);
        while (pasta_trace_take(t, running ? PASTA_TAKE_full : PASTA_TAKE_seal, &bytes)) {
            all += bytes;
            pasta_trace_release(t);
        }
        usleep(100);
    }
    CHECK(!pthread_join(thread, NULL) && all == records * sizeof(pasta_access));
    printf("%.1f million records per second, %.0f%% of the time waiting\n",
           (double)records * 1e3 / (double)(pasta_now() - start),
           100.0 * (double)t->waited / (double)(pasta_now() - start));
}

static const test_case cases[] = {
    {"one", case_one},           {"many", case_many},     {"seal", case_seal},
    {"threads", case_threads},   {"steps", case_steps},   {"numbers", case_numbers},
    {"killed", case_killed},     {"fork", case_fork},     {"dead_consumer", case_dead_consumer},
    {"lost", case_lost},
    {"no_room", case_no_room},   {"speed", case_speed},
};

int main(int count, char **arguments) {
    if (count > 2) records = strtoull(arguments[2], NULL, 10);
    return RUN_CASE(cases, count > 1 ? arguments[1] : NULL);
}
