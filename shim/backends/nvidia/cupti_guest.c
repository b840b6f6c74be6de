/* A CUPTI tool of the program itself, such as a framework's profiler: it shares our subscription and our buffers.
 *
 * CUPTI has one subscriber, and one pair of buffer functions.  The program's calls of it are interposed
 * (cupti_interpose.c): we forward the callbacks that it enabled, record into its buffers while it has enabled records,
 * read them first, and leave in them what it enabled.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cupti_source.h"

enum { DOMAINS = 8, IDS = 1024, KINDS = 128 };

#define LOAD(place) __atomic_load_n(&(place), __ATOMIC_ACQUIRE)
#define STORE(place, value) __atomic_store_n(&(place), value, __ATOMIC_RELEASE)

/* Never freed: another thread may be in its function when it ends. */
typedef struct subscription {
    pasta_cupti_callback *function;
    void *user;
} subscription;

static subscription *subscribed; /* NULL: none */
static bool enabled[DOMAINS][IDS];
static struct {
    bool on, ever;
    uint64_t from, to; /* enabled, disabled, on the clock of records */
} kinds[KINDS];
static uint32_t kind_count;
static pthread_mutex_t kinds_lock = PTHREAD_MUTEX_INITIALIZER; /* of changes */
static pasta_cupti_request *request;
static pasta_cupti_complete *complete;

/* A buffer of the tool that CUPTI does not have. */
typedef struct room {
    uint8_t *buffer;
    uint64_t bytes, max_records; /* 0: as many as fit */
} room;

/* Kineto flushes only while a buffer of it is outstanding, and CUPTI may be filling one of ours.  So we take one at the
 * next call, and copy into it. */
static room spare;
static bool wants_spare;
static pthread_mutex_t spare_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- callbacks ---- */

bool pasta_cupti_guest_subscribe(pasta_cupti_callback *function, void *user) {
    subscription *none = NULL, *made = malloc(sizeof *made);
    if (!made) return false;
    *made = (subscription){function, user};
    if (__atomic_compare_exchange_n(&subscribed, &none, made, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return true;
    free(made);
    return false;
}

void pasta_cupti_guest_unsubscribe(void) {
    STORE(subscribed, NULL);
    for (int domain = 0; domain < DOMAINS; domain++)
        for (int id = 0; id < IDS; id++) STORE(enabled[domain][id], false);
}

void pasta_cupti_guest_enable(int32_t domain, uint32_t id, bool on) {
    if (domain > 0 && domain < DOMAINS && id < IDS) STORE(enabled[domain][id], on);
}

bool pasta_cupti_guest_wants(int32_t domain, uint32_t id) {
    return domain > 0 && domain < DOMAINS && id < IDS && LOAD(enabled[domain][id]);
}

static room take_spare(void) {
    pthread_mutex_lock(&spare_lock);
    room taken = spare;
    spare = (room){0};
    pthread_mutex_unlock(&spare_lock);
    return taken;
}

static room ask_for_room(void) {
    room r = {0};
    LOAD(request)(&r.buffer, &r.bytes, &r.max_records);
    return r;
}

static void give_back(uint64_t context, uint32_t stream, room r, uint64_t valid) {
    LOAD(complete)(context, stream, r.buffer, r.bytes, valid);
}

static void make_spare(void) {
    if (!__atomic_exchange_n(&wants_spare, false, __ATOMIC_ACQ_REL)) return;
    room made = ask_for_room();
    pthread_mutex_lock(&spare_lock);
    room left = spare.buffer ? made : (room){0};
    if (!spare.buffer) spare = made;
    pthread_mutex_unlock(&spare_lock);
    if (left.buffer) give_back(0, 0, left, 0);
}

void pasta_cupti_guest_on_callback(int32_t domain, uint32_t id, const void *data) {
    const subscription *s = LOAD(subscribed);
    if (PASTA_UNLIKELY(LOAD(wants_spare))) make_spare();
    if (PASTA_UNLIKELY(s != NULL) && pasta_cupti_guest_wants(domain, id)) s->function(s->user, domain, id, data);
}

/* ---- records ---- */

void pasta_cupti_guest_buffers(pasta_cupti_request *requests, pasta_cupti_complete *completes) {
    STORE(complete, completes);
    STORE(request, requests);
}

void pasta_cupti_guest_records(int32_t kind, bool on) {
    if (kind < 0 || kind >= KINDS) return;
    pthread_mutex_lock(&kinds_lock);
    if (LOAD(kinds[kind].on) != on) {
        uint64_t now = pasta_cupti_clock();
        STORE(*(on ? &kinds[kind].from : &kinds[kind].to), now);
        STORE(kinds[kind].on, on);
        STORE(kinds[kind].ever, true);
        uint32_t before = kind_count;
        STORE(kind_count, on ? before + 1 : before - 1);
        if (on && before == 0 && LOAD(request)) STORE(wants_spare, true);
        if (!on && before == 1) STORE(wants_spare, false);
    }
    pthread_mutex_unlock(&kinds_lock);
}

bool pasta_cupti_guest_wants_records(int32_t kind) { return kind >= 0 && kind < KINDS && LOAD(kinds[kind].on); }

/* Of kinds that we enable it gets what ran while it had enabled them, also if it disables them and flushes then. */
static bool is_theirs(const uint8_t *record) {
    uint32_t kind;
    uint64_t start;
    memcpy(&kind, record, sizeof kind);
    if (kind >= KINDS || !LOAD(kinds[kind].ever)) return false;
    size_t at = kind == PASTA_CUPTI_OVERHEAD ? offsetof(pasta_cupti_overhead, start) : offsetof(pasta_cupti_kernel, start);
    if (kind != PASTA_CUPTI_KERNEL && kind != PASTA_CUPTI_COPY && kind != PASTA_CUPTI_PEER_COPY &&
        kind != PASTA_CUPTI_SET && kind != PASTA_CUPTI_OVERHEAD)
        return true;
    memcpy(&start, record + at, sizeof start);
    return start >= LOAD(kinds[kind].from) && (LOAD(kinds[kind].on) || start <= LOAD(kinds[kind].to));
}
_Static_assert(offsetof(pasta_cupti_kernel, start) == offsetof(pasta_cupti_copy, start) &&
                   offsetof(pasta_cupti_kernel, start) == offsetof(pasta_cupti_peer_copy, start) &&
                   offsetof(pasta_cupti_kernel, start) == offsetof(pasta_cupti_set, start),
               "start of records");

bool pasta_cupti_guest_request(uint8_t **buffer, uint64_t *bytes, uint64_t *max_records) {
    if (!LOAD(request) || !LOAD(kind_count)) return false;
    STORE(wants_spare, false);
    room given = take_spare();
    if (!given.buffer) given = ask_for_room();
    if (!given.buffer) return false;
    *buffer = given.buffer;
    *bytes = given.bytes;
    *max_records = given.max_records;
    return true;
}

/* ---- times ----
 *
 * CUPTI has one clock of the host, which can be set only before it records.  So it is always ours, and the times in
 * records that the tool gets are converted to the clock that it set.
 */

static uint64_t realtime_ahead; /* of CLOCK_MONOTONIC; settimeofday does not change it here */

/* CLOCK_REALTIME, which CUPTI uses by default. */
/* Two clocks at one moment.  A thread may be interrupted between the readings: the closest of some are taken. */
typedef struct pair {
    uint64_t ours, theirs;
} pair;

enum { READINGS = 8, CLOSE_NS = 1000 };

static pair read_both(uint64_t (*ours)(void), uint64_t (*theirs)(void)) {
    pair closest = {0};
    for (uint64_t i = 0, apart = UINT64_MAX; i < READINGS && apart > CLOSE_NS; i++) {
        uint64_t before = ours(), value = theirs(), after = ours();
        if (after - before >= apart) continue;
        apart = after - before;
        closest = (pair){before + apart / 2, value};
    }
    return closest;
}

static uint64_t realtime(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

void pasta_cupti_set_clock(void) {
    pair now = read_both(pasta_now, realtime);
    realtime_ahead = now.theirs - now.ours;
}

uint64_t pasta_cupti_clock(void) { return pasta_now() + realtime_ahead; }

uint64_t pasta_cupti_time(uint64_t value) { return value ? value - realtime_ahead : 0; }

typedef struct conversion {
    pair at;
    double rate; /* their ticks in 1 ns; 0: their clock is ours */
} conversion;

static uint64_t (*their_clock)(void);
static pair clock_set; /* when they set their clock */
static pthread_mutex_t clock_lock = PTHREAD_MUTEX_INITIALIZER;

void pasta_cupti_guest_clock(uint64_t (*function)(void)) {
    pthread_mutex_lock(&clock_lock);
    their_clock = function;
    if (function) clock_set = read_both(pasta_cupti_clock, function);
    pthread_mutex_unlock(&clock_lock);
}

/* Between the moment at which they set their clock and now. */
static conversion current_conversion(void) {
    pthread_mutex_lock(&clock_lock);
    uint64_t (*clock)(void) = their_clock;
    pair first = clock_set;
    pthread_mutex_unlock(&clock_lock);
    if (!clock) return (conversion){0};
    pair last = read_both(pasta_cupti_clock, clock);
    double ours = (double)(last.ours - first.ours), theirs = (double)(int64_t)(last.theirs - first.theirs);
    return (conversion){last, last.ours > first.ours && theirs > 0 ? theirs / ours : 1};
}

/* Offsets of times in records, in bytes.  Versions of a record that end before an offset do not have that time. */
enum { TIMES = 5 };
static const uint8_t times_at[KINDS][TIMES] = {
    [PASTA_CUPTI_COPY] = {16, 24},
    [PASTA_CUPTI_SET] = {16, 24},
    [PASTA_CUPTI_DRIVER_CALL] = {8, 16},
    [PASTA_CUPTI_RUNTIME_CALL] = {8, 16},
    [PASTA_CUPTI_SERIAL_KERNEL] = {16, 24, 32, 120, 128},
    [PASTA_CUPTI_KERNEL] = {16, 24, 32, 120, 128},
    [PASTA_CUPTI_MARKER] = {8},
    [PASTA_CUPTI_OVERHEAD] = {24, 32},
    [PASTA_CUPTI_ENVIRONMENT] = {8},
    [PASTA_CUPTI_PEER_COPY] = {16, 24},
    [PASTA_CUPTI_UVM] = {16, 24},
    [PASTA_CUPTI_EVENT] = {40},
    [PASTA_CUPTI_SYNCHRONIZATION] = {8, 16},
    [PASTA_CUPTI_INTERNAL_CALL] = {8, 16},
    [PASTA_CUPTI_MEMORY] = {32},
    [PASTA_CUPTI_POOL] = {56},
    [PASTA_CUPTI_GRAPH_TRACE] = {8, 16},
    [PASTA_CUPTI_JIT] = {16, 24},
};

static void convert(uint8_t *record, size_t size, conversion to) {
    uint32_t kind;
    memcpy(&kind, record, sizeof kind);
    for (int i = 0; kind < KINDS && i < TIMES && times_at[kind][i]; i++) {
        uint64_t value;
        if (times_at[kind][i] + sizeof value > size) return;
        memcpy(&value, record + times_at[kind][i], sizeof value);
        if (!value) continue; /* not recorded */
        value = to.at.theirs + (uint64_t)(int64_t)((double)(int64_t)(value - to.at.ours) * to.rate);
        memcpy(record + times_at[kind][i], &value, sizeof value);
    }
}

/* ---- records that the tool gets ---- */

/* Keeps its records, with times of its clock; returns the remaining bytes. */
static uint64_t keep_wanted(uint8_t *buffer, uint64_t valid) {
    conversion to_theirs = current_conversion();
    uint8_t *to = buffer;
    void *record = NULL;
    bool more = valid && pasta_cupti.next_record(buffer, valid, &record) == 0;
    while (more) {
        uint8_t *from = record;
        more = pasta_cupti.next_record(buffer, valid, &record) == 0;
        size_t size = (size_t)((more ? (uint8_t *)record : buffer + valid) - from);
        if (!is_theirs(from)) continue;
        memmove(to, from, size);
        if (to_theirs.rate != 0) convert(to, size, to_theirs);
        to += size;
    }
    return (uint64_t)(to - buffer);
}

void pasta_cupti_guest_complete(uint64_t context, uint32_t stream, uint8_t *buffer, uint64_t bytes, uint64_t valid) {
    if (buffer) give_back(context, stream, (room){.buffer = buffer, .bytes = bytes}, keep_wanted(buffer, valid));
}

/* Bytes of the first record. */
static uint64_t first_size(uint8_t *from, uint64_t bytes) {
    void *record = NULL;
    for (int i = 0; i < 2; i++)
        if (pasta_cupti.next_record(from, bytes, &record) != 0) return bytes;
    return (uint64_t)((uint8_t *)record - from);
}

/* Bytes of the records at `from` that fit. */
static uint64_t fitting(const room *r, uint8_t *from, uint64_t bytes) {
    void *record = NULL;
    uint64_t fits = 0, count = 0;
    while (pasta_cupti.next_record(from, bytes, &record) == 0) {
        uint64_t begin = (uint64_t)((uint8_t *)record - from);
        if (begin > r->bytes) return fits;
        fits = begin;
        if (r->max_records && count == r->max_records) return fits;
        count++;
    }
    return bytes <= r->bytes ? bytes : fits;
}

/* CUPTI would drop it as well. */
static void say_lost(uint64_t bytes) {
    pasta_say("the program's own CUPTI tool misses records: one did not fit into its buffer of %llu bytes; make "
              "the tool's buffers larger",
              (unsigned long long)bytes);
}

void pasta_cupti_guest_copy(uint64_t context, uint32_t stream, uint8_t *ours, uint64_t valid) {
    uint64_t left = LOAD(request) ? keep_wanted(ours, valid) : 0;
    if (!left && LOAD(kind_count)) return;
    room to = take_spare();
    for (uint64_t done = 0; left > done;) {
        if (!to.buffer) to = ask_for_room();
        if (!to.buffer) return say_lost(0);
        uint64_t fits = fitting(&to, ours + done, left - done);
        if (!fits) { /* in the same buffer, those after it */
            say_lost(to.bytes);
            done += first_size(ours + done, left - done);
            continue;
        }
        memcpy(to.buffer, ours + done, fits);
        give_back(context, stream, to, fits);
        to = (room){0};
        done += fits;
    }
    if (to.buffer) give_back(context, stream, to, 0);
}
