/* Transfer of access records from kernels to the trace ring.
 *
 * On the device (pasta/backends/nvidia/trace_records.py): each stripe, usually a multiprocessor, fills its own
 * chunk in page-locked memory.  A warp reserves space with one addition to the stripe's cursor in the
 * device's memory, writes the record, fences, and adds its bytes to `done` of the place.  The one
 * whose addition exceeds the end of the chunk closes it: it adds the reserved bytes to `done`,
 * waits until the stripe's next place is open, and sets the cursor there.  The warp
 * that finds both halves of `done` equal was the last, and marks the chunk as ready for the host.
 *
 * Here: a thread copies ready chunks, stripe by stripe, to the trace ring of core/trace.c, puts the
 * launch's ordinal where the device wrote an epoch, and opens the place again.
 *
 * Deadlock is impossible:
 * - A warp with reserved space waits for nothing until its bytes are in `done`.  So a closed chunk becomes
 *   ready, whatever other warps wait for.
 * - A warp that waits has reserved nothing.  It waits for a place of its own stripe, which holds a closed
 *   chunk, or for the warp of its stripe that does so: never for a chunk that another stripe may keep open
 *   forever.
 * - The thread makes no driver calls and takes no lock under which one is made, so it continues while the
 *   driver waits for a kernel that waits for space.
 * - The thread waits for the collector as long as its heartbeat continues; then records are dropped, and
 *   counted.  Meanwhile it sends heartbeats, so that kernels wait as long.  Without a heartbeat
 *   for `patience` they stop writing, and count.
 *
 * The complete part of an open chunk is taken from time to time and at the end.  The cursors are
 * copied before and after `done`: if a stripe has the same chunk in both, and `done` equals the last
 * cursor, all of it is complete, even if kernels run meanwhile.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "probes.h"

enum {
    STRIPES = PASTA_TRACE_STRIPES,
    WAYS = PASTA_TRACE_WAYS,
    MIN_CHUNK = 4 << 10,
    MAX_CHUNK = 1 << 20,
    PIECE = 64 << 10, /* bytes copied to the ring at once */
    LAUNCHES = 1 << 20,
    ORDINAL_BITS = 44, /* of an entry of `launches`; above them: bits of its epoch */
    WAIT_NS = 50 * 1000,
    POLL_NS = 20 * 1000,
    IDLE_NS = 1000 * 1000,
    POLLS = 50, /* before it sleeps longer */
    FLUSH_NS = 1000 * 1000 * 1000,
};
_Static_assert(PASTA_TRACE_PLACES == STRIPES * WAYS, "the places are those of all stripes");
_Static_assert(sizeof(((pasta_probe_trace *)0)->done) == PASTA_TRACE_PLACES * sizeof(uint64_t), "a word for each place");
_Static_assert(sizeof(((pasta_probe_trace *)0)->cursor) == STRIPES * 4 * sizeof(uint64_t), "a cursor for each stripe");
_Static_assert(sizeof(pasta_access) <= PASTA_TRACE_HEAD, "a record fits its slot's head");

struct pasta_nv_tracer {
    struct pasta_nv_tracer *next;
    pasta_nv_prober *owner;
    pthread_mutex_t lock; /* of taking chunks */
    pasta_probe_places *places;
    const uint8_t *data;
    uint64_t device, flushed;
    uint64_t *launches; /* by the low bits of their epochs */
    uint64_t epoch, ordinal; /* of the launch looked up last */
    uint64_t dropped, lost;
    pasta_trace_writer writer;
    uint32_t chunk[STRIPES], taken[STRIPES], upto[STRIPES]; /* the next chunk; bytes of it: taken, complete */
    bool closed, damaged;
    pasta_probe_trace first, before, done, after; /* initial state of the device; copies of its state */
};

static struct {
    pthread_mutex_t lock; /* of `closed`: held while control words are written */
    pasta_nv_tracer *first; /* never freed: one per context */
    bool started, finish;
} tracers = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void pause_for(long nanoseconds) { nanosleep(&(struct timespec){0, nanoseconds}, NULL); }

static void beat(void) {
    pthread_mutex_lock(&tracers.lock);
    for (pasta_nv_tracer *t = tracers.first; t; t = t->next)
        if (!t->closed)
            __atomic_store_n(&t->places->beat, (t->places->beat + 1) & ~PASTA_TRACE_OVER, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&tracers.lock);
}

/* ---- launches ---- */

void pasta_nv_trace_launch(pasta_nv_prober *p, uint64_t epoch, uint64_t ordinal) {
    pasta_nv_tracer *t = p->tracer;
    if (t) __atomic_store_n(&t->launches[epoch % LAUNCHES], epoch / LAUNCHES << ORDINAL_BITS | ordinal, __ATOMIC_RELEASE);
}

static bool look_up(pasta_nv_tracer *t, uint64_t epoch) {
    if (PASTA_LIKELY(epoch == t->epoch && epoch)) return true;
    uint64_t found = __atomic_load_n(&t->launches[epoch % LAUNCHES], __ATOMIC_ACQUIRE);
    if (!epoch || found >> ORDINAL_BITS != epoch / LAUNCHES) return false;
    t->epoch = epoch;
    t->ordinal = found & ((UINT64_C(1) << ORDINAL_BITS) - 1);
    return true;
}

/* ---- to the trace ring ---- */

static bool has_room(const pasta_trace *to, const pasta_trace_writer *w, size_t bytes) {
    if (w->chunk && bytes <= to->chunk_bytes - (uint32_t)w->state) return true;
    uint64_t number = w->numbered ? w->number : __atomic_load_n(&to->next, __ATOMIC_RELAXED);
    const pasta_chunk *chunks = (const void *)((const uint8_t *)to + to->chunks_offset);
    return __atomic_load_n(&chunks[number % to->chunks].lap, __ATOMIC_ACQUIRE) >= number / to->chunks;
}

/* Reserve `bytes` for records; NULL when the trace is full and its consumer is gone.  Kernels wait as long. */
static void *begin(pasta_nv_tracer *t, pasta_trace *to, size_t bytes, uint64_t records) {
    while (!has_room(to, &t->writer, bytes)) {
        if (!pasta_trace_is_consumed(pasta_now()) || __atomic_load_n(&tracers.finish, __ATOMIC_RELAXED)) break;
        beat();
        pause_for(WAIT_NS);
        __atomic_fetch_add(&to->waited, WAIT_NS, __ATOMIC_RELAXED);
    }
    void *room = pasta_trace_begin(&t->writer, bytes);
    if (!room) __atomic_fetch_add(&to->dropped, records - 1, __ATOMIC_RELAXED); /* pasta_trace_begin counted one */
    return room;
}

static uint32_t tail_bytes(const pasta_access *e) {
    uint32_t each = e->form == PASTA_FORM_DELTAS ? sizeof(int32_t) : e->form == PASTA_FORM_FULL ? sizeof(uint64_t) : 0;
    return each * (uint32_t)__builtin_popcount(e->mask);
}

static uint32_t slot_bytes(const pasta_access *e) {
    return PASTA_TRACE_HEAD + (tail_bytes(e) + PASTA_TRACE_SLOT - 1) / PASTA_TRACE_SLOT * PASTA_TRACE_SLOT;
}

static uint32_t record_bytes(const pasta_access *e) { return sizeof *e + (tail_bytes(e) + 7) / 8 * 8; }

static bool is_record(const pasta_access *e, uint32_t left) {
    return left >= PASTA_TRACE_HEAD && e->kind && e->kind < PASTA_ACCESS_count && e->form <= PASTA_FORM_ROWS &&
           slot_bytes(e) <= left;
}

static void pack(uint8_t *to, const uint8_t *from, const uint8_t *end, uint64_t ordinal) {
    while (from < end) {
        const pasta_access *e = (const void *)from;
        pasta_access *record = (void *)to;
        uint32_t tail = tail_bytes(e);
        *record = *e;
        record->launch = ordinal;
        if (PASTA_UNLIKELY(tail)) {
            memcpy(record + 1, from + PASTA_TRACE_HEAD, tail);
            memset((uint8_t *)(record + 1) + tail, 0, (8 - tail % 8) % 8);
        }
        to += record_bytes(e);
        from += slot_bytes(e);
    }
}

/* Copies slots to the ring, in pieces of one launch. */
static void copy(pasta_nv_tracer *t, const uint8_t *from, uint32_t bytes) {
    pasta_trace *to = pasta_trace_mine();
    uint32_t most = to && to->chunk_bytes < PIECE ? to->chunk_bytes : PIECE;
    for (uint32_t at = 0; to && at < bytes;) {
        const pasta_access *e = (const void *)(from + at);
        uint64_t epoch = e->launch, records = 0;
        uint32_t end = at, size = 0;
        for (; end < bytes; records++) {
            e = (const void *)(from + end);
            if (!is_record(e, bytes - end)) break;
            uint32_t more = record_bytes(e);
            if (e->launch != epoch || size + more > most) break;
            size += more;
            end += slot_bytes(e);
        }
        if (!records) {
            if (!t->damaged)
                pasta_say("part of the access trace of context %u is damaged and left out", t->owner->at.context);
            t->damaged = true;
            return;
        }
        if (look_up(t, epoch)) {
            uint8_t *room = begin(t, to, size, records);
            if (room) {
                pack(room, from + at, from + end, t->ordinal);
                pasta_trace_commit(&t->writer);
            }
        } else {
            t->lost += records;
            __atomic_fetch_add(&to->dropped, records, __ATOMIC_RELAXED);
        }
        at = end;
    }
}

/* ---- taking chunks ---- */

static bool take_stripe(pasta_nv_tracer *t, uint32_t stripe) {
    uint32_t number = t->chunk[stripe], place = stripe * WAYS + number % WAYS;
    uint32_t ready = __atomic_load_n(&t->places->ready[place], __ATOMIC_ACQUIRE);
    uint32_t end = ready ? ready : t->upto[stripe], begun = t->taken[stripe];
    if (end > t->first.chunk_bytes) end = t->first.chunk_bytes; /* damaged, as its records will show */
    if (end > begun) copy(t, t->data + ((uint64_t)place << t->first.chunk_shift) + begun, end - begun);
    t->taken[stripe] = end > begun ? end : begun;
    if (!ready) return end > begun;
    t->taken[stripe] = t->upto[stripe] = 0;
    t->chunk[stripe] = number + 1;
    __atomic_store_n(&t->places->ready[place], 0, __ATOMIC_RELAXED);
    __atomic_store_n(&t->places->open[place], number + WAYS, __ATOMIC_RELEASE);
    return true;
}

static bool take_some(pasta_nv_tracer *t) { /* its lock held */
    bool any = false;
    for (uint32_t stripe = 0; stripe < STRIPES && !t->closed; stripe++) any |= take_stripe(t, stripe);
    return any;
}

/* All that is ready now, while kernels may continue to write. */
static void take_all(pasta_nv_tracer *t) {
    for (int way = 0; way < WAYS && take_some(t);) way++;
}

static void *run(void *unused) {
    (void)unused;
    pthread_setname_np(pthread_self(), "pasta-trace");
    for (int idle = 0; !__atomic_load_n(&tracers.finish, __ATOMIC_ACQUIRE);) {
        bool any = false;
        pthread_mutex_lock(&tracers.lock);
        pasta_nv_tracer *t = tracers.first;
        pthread_mutex_unlock(&tracers.lock);
        for (; t; t = t->next) {
            pthread_mutex_lock(&t->lock);
            any |= take_some(t);
            pthread_mutex_unlock(&t->lock);
        }
        beat();
        idle = any ? 0 : idle + 1;
        if (idle) pause_for(idle < POLLS ? POLL_NS : IDLE_NS);
    }
    return NULL;
}

/* ---- open chunks ---- */

static bool copy_out(pasta_nv_tracer *t, void *to, size_t from, size_t bytes, uint64_t stream) {
    return pasta_nv_probed(t->owner, pasta_nv.copy_out(to, t->device + from, bytes, stream), "sanitizerMemcpyDeviceToHost");
}

void pasta_nv_trace_flush(pasta_nv_prober *p, uint64_t stream, bool now) {
    enum { CURSOR = offsetof(pasta_probe_trace, cursor), DONE = offsetof(pasta_probe_trace, done) };
    pasta_nv_tracer *t = p->tracer;
    uint64_t time = pasta_now();
    if (!t || (!now && time - t->flushed < FLUSH_NS)) return;
    t->flushed = time;
    /* without a lock: these wait for the driver, which may wait for kernels */
    if (!copy_out(t, t->before.cursor, CURSOR, sizeof t->before.cursor, stream) ||
        !copy_out(t, &t->done, 0, CURSOR, stream) ||
        !copy_out(t, t->after.cursor, CURSOR, sizeof t->after.cursor, stream))
        return;
    pthread_mutex_lock(&t->lock);
    take_all(t);
    for (uint32_t stripe = 0; stripe < STRIPES; stripe++) {
        uint32_t number = (uint32_t)(t->after.cursor[stripe][0] >> 32), used = (uint32_t)t->after.cursor[stripe][0];
        bool same = number == (uint32_t)(t->before.cursor[stripe][0] >> 32) && number == t->chunk[stripe];
        if (same && used <= t->first.chunk_bytes && t->done.done[stripe * WAYS + number % WAYS] == used)
            t->upto[stripe] = used;
    }
    take_all(t);
    pasta_trace *to = pasta_trace_mine();
    if (to) __atomic_fetch_add(&to->dropped, t->done.dropped - t->dropped, __ATOMIC_RELAXED);
    t->dropped = t->done.dropped;
    pthread_mutex_unlock(&t->lock);
}

/* ---- contexts ---- */

static bool start(void) { /* tracers.lock held */
    pthread_t thread;
    sigset_t all, before;
    if (tracers.started) return true;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) pasta_say("accesses are not traced: cannot create a thread (%s)", strerror(error));
    else pthread_detach(thread);
    return tracers.started = error == 0;
}

static uint32_t shift_of(uint64_t memory) {
    uint32_t shift = 0;
    while ((UINT64_C(2) << shift) * PASTA_TRACE_PLACES <= memory && (2u << shift) <= MAX_CHUNK) shift++;
    return (1u << shift) < MIN_CHUNK ? (uint32_t)__builtin_ctz(MIN_CHUNK) : shift;
}

static void describe(pasta_nv_tracer *t, uint32_t shift) {
    t->first.data = (uint64_t)(uintptr_t)t->data;
    t->first.control = (uint64_t)(uintptr_t)t->places;
    t->first.chunk_shift = shift;
    t->first.chunk_bytes = 1u << shift;
    t->first.patience = pasta_config_u64("trace_patience_ms", 10000) * 1000000u;
    memset(t->places, 0, sizeof *t->places);
    for (uint32_t stripe = 0; stripe < STRIPES; stripe++) {
        t->chunk[stripe] = 1;
        t->first.cursor[stripe][0] = t->first.chunk_bytes; /* as if chunk 0 were full */
        for (uint32_t way = 0; way < WAYS; way++) t->places->open[stripe * WAYS + way] = way ? way : WAYS;
    }
}

uint64_t pasta_nv_trace_open(pasta_nv_prober *p) {
    uint32_t shift = shift_of(pasta_nv_the_plan.trace);
    uint64_t device = 0;
    void *memory = NULL;
    if (!pasta_nv_the_plan.trace || p->broken || !pasta_trace_open()) return 0;
    pasta_nv_tracer *t = calloc(1, sizeof *t);
    uint64_t *launches = calloc(LAUNCHES, sizeof *launches);
    bool room = t && launches && pasta_nv.alloc(p->context, &device, sizeof t->first) == 0 &&
                pasta_nv.alloc_host(p->context, &memory, sizeof *t->places + ((uint64_t)PASTA_TRACE_PLACES << shift)) == 0;
    if (room) {
        t->owner = p;
        t->places = memory;
        t->data = (const uint8_t *)(t->places + 1);
        t->device = device;
        t->launches = launches;
        t->flushed = pasta_now();
        pthread_mutex_init(&t->lock, NULL);
        describe(t, shift);
        room = pasta_nv_probed(p, pasta_nv.copy_in(device, &t->first, sizeof t->first, 0), "sanitizerMemcpyHostToDeviceAsync");
    } else {
        pasta_say("accesses on device %d are not traced: cannot allocate %" PRIu64 " MiB of page-locked memory; lower probes.trace-memory",
                  p->at.device, pasta_nv_the_plan.trace >> 20);
    }
    pthread_mutex_lock(&tracers.lock);
    room = room && start();
    if (room) {
        t->next = tracers.first;
        tracers.first = p->tracer = t;
    }
    pthread_mutex_unlock(&tracers.lock);
    if (room) return device;
    free(launches);
    free(t);
    return 0;
}

static void close_tracer(pasta_nv_tracer *t, const struct timespec *until) {
    bool locked = pthread_mutex_timedlock(&t->lock, until) == 0;
    if (locked) take_all(t);
    pthread_mutex_lock(&tracers.lock);
    if (!t->closed) __atomic_store_n(&t->places->beat, PASTA_TRACE_OVER, __ATOMIC_RELAXED);
    t->closed = true;
    pthread_mutex_unlock(&tracers.lock);
    if (locked) pthread_mutex_unlock(&t->lock);
    if (t->lost)
        pasta_say("%" PRIu64 " accesses of context %u are lost: they arrived more than %d launches late", t->lost,
                  t->owner->at.context, LAUNCHES);
    t->lost = 0;
}

static struct timespec soon(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)(pasta_config_u64("exit_timeout_ms", 5000) / 1000) + 1;
    return until;
}

void pasta_nv_trace_close(pasta_nv_prober *p) {
    struct timespec until = soon();
    if (p->tracer) close_tracer(p->tracer, &until);
}

void pasta_nv_trace_finish(void) {
    struct timespec until = soon();
    pthread_mutex_lock(&tracers.lock);
    pasta_nv_tracer *t = tracers.first;
    pthread_mutex_unlock(&tracers.lock);
    for (; t; t = t->next) close_tracer(t, &until);
    __atomic_store_n(&tracers.finish, true, __ATOMIC_RELEASE);
}
