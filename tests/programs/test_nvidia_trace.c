/* shim/backends/nvidia/trace.c with threads that write like kernels (pasta/backends/nvidia/trace_records.py), and a
 * consumer that checks every record.  test_nvidia_trace CASE [RECORDS] */
#define _GNU_SOURCE
#include <inttypes.h>
#include <sched.h>
#include <string.h>
#include <time.h>

#include "../../shim/core/internal.h"
#include "../../shim/python/trace_reader.h"
#include "../../shim/backends/nvidia/probes.h"
#include "check.h"

enum { WARPS = 8 };

static uint64_t records = 20000; /* per warp */
static pasta_nv_prober prober = {.context = 1};

/* ---- the vendor's functions: device memory is memory ---- */

static int32_t fake_alloc(uint64_t context, uint64_t *address, uint64_t bytes) {
    (void)context;
    *address = (uint64_t)(uintptr_t)aligned_alloc(64, (bytes + 63) / 64 * 64);
    return 0;
}

static int32_t fake_alloc_host(uint64_t context, void **address, uint64_t bytes) {
    (void)context;
    *address = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return 0;
}

static int32_t fake_copy_in(uint64_t to, const void *from, uint64_t bytes, uint64_t stream) {
    (void)stream;
    memcpy((void *)(uintptr_t)to, from, bytes);
    return 0;
}

static int32_t fake_copy_out(void *to, uint64_t from, uint64_t bytes, uint64_t stream) {
    (void)stream;
    for (uint64_t i = 0; i < bytes / 8; i++)
        ((uint64_t *)to)[i] = __atomic_load_n((uint64_t *)(uintptr_t)from + i, __ATOMIC_ACQUIRE);
    return 0;
}

pasta_nv_library pasta_nv = {.alloc = fake_alloc, .alloc_host = fake_alloc_host, .copy_in = fake_copy_in,
                             .copy_out = fake_copy_out};
pasta_nv_plan pasta_nv_the_plan;

bool pasta_nv_probed(pasta_nv_prober *p, int32_t result, const char *call) {
    (void)p, (void)call;
    return result == 0;
}

/* ---- a warp: the text in pasta/backends/nvidia/trace_records.py, line by line ---- */

static pasta_probe_trace *ring;

static void finish(uint32_t place, uint64_t change) {
    uint64_t now = __atomic_add_fetch(&ring->done[place], change, __ATOMIC_ACQ_REL);
    if ((uint32_t)now != now >> 32) return;
    __atomic_store_n(&ring->done[place], 0, __ATOMIC_RELAXED);
    pasta_probe_places *control = (void *)(uintptr_t)ring->control;
    __atomic_store_n(&control->ready[place], (uint32_t)now, __ATOMIC_RELEASE);
}

static bool wait_until_open(uint32_t place, uint32_t number) {
    pasta_probe_places *control = (void *)(uintptr_t)ring->control;
    uint32_t beat = PASTA_TRACE_OVER;
    for (uint64_t since = 0; __atomic_load_n(&control->open[place], __ATOMIC_ACQUIRE) != number;) {
        uint32_t now = __atomic_load_n(&control->beat, __ATOMIC_RELAXED);
        if (now == PASTA_TRACE_OVER) return false;
        if (now != beat) since = pasta_now();
        beat = now;
        sched_yield();
        if (pasta_now() >= since + ring->patience) return false;
    }
    return true;
}

static uint8_t *reserve(uint32_t stripe, uint32_t total, uint32_t *place) {
    uint64_t *cursor = &ring->cursor[stripe][0];
    uint32_t used, number;
    for (;;) {
        uint64_t before = __atomic_fetch_add(cursor, total, __ATOMIC_ACQ_REL);
        used = (uint32_t)before;
        number = (uint32_t)(before >> 32);
        if (used + total <= ring->chunk_bytes || used <= ring->chunk_bytes) break;
        for (;;) {
            uint64_t now = __atomic_load_n(cursor, __ATOMIC_ACQUIRE);
            if (now >> 32 != number) break;
            if ((uint32_t)now >= PASTA_TRACE_OVER) goto over;
            sched_yield();
        }
    }
    if (used + total > ring->chunk_bytes) {
        if (number) finish(stripe * PASTA_TRACE_WAYS + number % PASTA_TRACE_WAYS, (uint64_t)used << 32);
        number++;
        if (!wait_until_open(stripe * PASTA_TRACE_WAYS + number % PASTA_TRACE_WAYS, number)) {
            number--;
            goto over;
        }
        __atomic_store_n(cursor, (uint64_t)number << 32 | total, __ATOMIC_RELEASE);
        used = 0;
    }
    *place = stripe * PASTA_TRACE_WAYS + number % PASTA_TRACE_WAYS;
    return (uint8_t *)(uintptr_t)ring->data + ((uint64_t)*place << ring->chunk_shift) + used;
over:
    __atomic_store_n(cursor, (uint64_t)number << 32 | PASTA_TRACE_OVER, __ATOMIC_RELEASE);
    __atomic_fetch_add(&ring->dropped, 1, __ATOMIC_RELAXED);
    return NULL;
}

static uint8_t form_of(uint64_t sequence) { return (uint8_t)(sequence % 3); }

static uint32_t mask_of(uint64_t sequence) {
    uint32_t mask = (uint32_t)(sequence * 0x9e3779b9u);
    return mask ? mask : 1;
}

static bool write_record(uint32_t stripe, uint64_t warp, uint64_t sequence, uint64_t epoch) {
    uint32_t mask = mask_of(sequence), lanes = (uint32_t)__builtin_popcount(mask), place;
    uint8_t form = form_of(sequence);
    uint32_t tail = form == PASTA_FORM_DELTAS ? 4 * lanes : form == PASTA_FORM_FULL ? 8 * lanes : 0;
    uint32_t total = PASTA_TRACE_HEAD + (tail + 31) / 32 * 32;
    uint8_t *slot = reserve(stripe, total, &place);
    if (!slot) return false;
    pasta_access e = {.mask = mask, .kind = PASTA_ACCESS_global, .form = form, .bytes = 4, .rows = 1,
                      .address = sequence, .pc = warp, .launch = epoch, .block = sequence ^ warp};
    memcpy(slot, &e, sizeof e);
    for (uint32_t i = 0; i < tail / 4; i++) ((uint32_t *)(void *)(slot + PASTA_TRACE_HEAD))[i] = (uint32_t)sequence + i;
    finish(place, total);
    return true;
}

static struct {
    bool idle_stripes; /* a warp writes a little on its own stripes, and stops */
    uint32_t launches;
    uint64_t refused[WARPS];
} how = {.launches = 16};

static void *warp(void *number) {
    uint64_t me = (uint64_t)(uintptr_t)number;
    uint64_t count = how.idle_stripes && me >= WARPS / 2 ? 3 : records;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t epoch = 1 + i * how.launches / count;
        uint32_t stripe = how.idle_stripes ? (uint32_t)me : (uint32_t)(me / 4);
        how.refused[me] += !write_record(stripe, me, i, epoch);
    }
    return NULL;
}

/* ---- the consumer ---- */

static struct {
    bool stop;
    uint64_t pause_ns, taken, seen[WARPS];
} consumer;

static uint64_t ordinal_of(uint64_t epoch) { return 1000 + 7 * epoch; }

static void check(const uint8_t *at, const uint8_t *end) {
    while (at < end) {
        const pasta_access *e = (const void *)at;
        uint64_t i = e->address;
        CHECK(e->pc < WARPS && e->kind == PASTA_ACCESS_global && e->block == (i ^ e->pc));
        CHECK(e->mask == mask_of(i) && e->form == form_of(i) && e->rows == 1);
        uint64_t count = how.idle_stripes && e->pc >= WARPS / 2 ? 3 : records;
        CHECK(e->launch == ordinal_of(1 + i * how.launches / count));
        uint32_t lanes = (uint32_t)__builtin_popcount(e->mask);
        uint32_t words = e->form == PASTA_FORM_DELTAS ? lanes : e->form == PASTA_FORM_FULL ? 2 * lanes : 0;
        for (uint32_t w = 0; w < words; w++) CHECK(((const uint32_t *)(const void *)(e + 1))[w] == (uint32_t)i + w);
        CHECK(i >= consumer.seen[e->pc]); /* those of a warp come in order */
        consumer.seen[e->pc] = i + 1;
        consumer.taken++;
        at += pasta_access_bytes(e->form, (int)lanes);
    }
    CHECK(at == end);
}

static void *consume(void *trace) {
    for (bool last = false; !last;) {
        uint32_t bytes;
        last = __atomic_load_n(&consumer.stop, __ATOMIC_ACQUIRE);
        for (const uint8_t *data; (data = pasta_trace_take(trace, last ? PASTA_TAKE_final : PASTA_TAKE_seal, &bytes));) {
            check(data, data + bytes);
            if (consumer.pause_ns) nanosleep(&(struct timespec){0, (long)consumer.pause_ns}, NULL);
            pasta_trace_release(trace);
        }
        sched_yield();
    }
    return NULL;
}

/* ---- cases ---- */

static void open_all(uint64_t bytes) {
    CHECK(pasta_use("test", "1"));
    pasta_nv_the_plan.trace = bytes;
    prober.trace = pasta_nv_trace_open(&prober);
    CHECK(prober.trace && prober.tracer);
    ring = (void *)(uintptr_t)prober.trace;
    for (uint64_t epoch = 1; epoch <= how.launches; epoch++)
        pasta_nv_trace_launch(&prober, epoch, ordinal_of(epoch));
}

static uint64_t run_warps(void) {
    pthread_t threads[WARPS];
    uint64_t refused = 0;
    for (uint64_t i = 0; i < WARPS; i++) CHECK(!pthread_create(&threads[i], NULL, warp, (void *)(uintptr_t)i));
    for (int i = 0; i < WARPS; i++) CHECK(!pthread_join(threads[i], NULL));
    for (int i = 0; i < WARPS; i++) refused += how.refused[i];
    return refused;
}

static void flows(void) {
    pthread_t thread;
    open_all(4 << 20);
    CHECK(!pthread_create(&thread, NULL, consume, pasta_trace_mine()));
    CHECK(run_warps() == 0);
    pasta_nv_trace_flush(&prober, 0, true); /* contents of open chunks */
    pasta_nv_trace_close(&prober);
    __atomic_store_n(&consumer.stop, true, __ATOMIC_RELEASE);
    CHECK(!pthread_join(thread, NULL));
    uint64_t wanted = how.idle_stripes ? WARPS / 2 * (records + 3) : WARPS * records;
    CHECK(consumer.taken == wanted);
    CHECK(pasta_trace_mine()->dropped == 0);
}

/* Flushes while warps write give each record once. */
static void *flush_often(void *stop) {
    while (!__atomic_load_n((bool *)stop, __ATOMIC_ACQUIRE)) {
        pasta_nv_trace_flush(&prober, 0, true);
        sched_yield();
    }
    return NULL;
}

static void flushes(void) {
    pthread_t thread, flusher;
    bool stop = false;
    open_all(4 << 20);
    CHECK(!pthread_create(&thread, NULL, consume, pasta_trace_mine()));
    CHECK(!pthread_create(&flusher, NULL, flush_often, &stop));
    CHECK(run_warps() == 0);
    __atomic_store_n(&stop, true, __ATOMIC_RELEASE);
    CHECK(!pthread_join(flusher, NULL));
    pasta_nv_trace_flush(&prober, 0, true);
    pasta_nv_trace_close(&prober);
    __atomic_store_n(&consumer.stop, true, __ATOMIC_RELEASE);
    CHECK(!pthread_join(thread, NULL));
    CHECK(consumer.taken == WARPS * records);
    CHECK(pasta_trace_mine()->dropped == 0);
}

/* A consumer that dies: no warp hangs, and every record is delivered or counted. */
static void dead_consumer(void) {
    open_all(4 << 20);
    uint64_t refused = run_warps();
    pasta_nv_trace_flush(&prober, 0, true);
    pasta_nv_trace_close(&prober);
    consumer.stop = true;
    consume(pasta_trace_mine());
    CHECK(consumer.taken > 0 && consumer.taken < WARPS * records);
    CHECK(consumer.taken + pasta_trace_mine()->dropped == WARPS * records);
    CHECK(refused == 0); /* the thread continues to take them */
}

/* Kernels that still run when the process ends do not wait for long. */
static void closed(void) {
    open_all(4 << 20);
    pasta_nv_trace_finish();
    uint64_t refused = run_warps();
    CHECK(refused > 0 && refused == ring->dropped);
}

/* Launches that the table has forgotten. */
static void forgotten(void) {
    open_all(4 << 20);
    for (uint64_t epoch = 1; epoch <= how.launches; epoch++)
        pasta_nv_trace_launch(&prober, epoch + (1 << 20), 5);
    records = 100;
    CHECK(run_warps() == 0);
    pasta_nv_trace_flush(&prober, 0, true);
    pasta_nv_trace_close(&prober);
    consumer.stop = true;
    consume(pasta_trace_mine());
    CHECK(consumer.taken == 0 && pasta_trace_mine()->dropped == WARPS * records);
}

int main(int count, char **arguments) {
    CHECK(count >= 2);
    const char *name = arguments[1];
    if (count > 2) records = strtoull(arguments[2], NULL, 10);
    if (!strcmp(name, "flows")) flows();
    else if (!strcmp(name, "flushes")) flushes();
    else if (!strcmp(name, "idle")) how.idle_stripes = true, flows();
    else if (!strcmp(name, "slow")) consumer.pause_ns = 2000000, flows();
    else if (!strcmp(name, "dead_consumer")) dead_consumer();
    else if (!strcmp(name, "closed")) closed();
    else if (!strcmp(name, "forgotten")) forgotten();
    else CHECK(!"a case of this name");
    return 0;
}
