/* The producers' side of the access trace: each takes a chunk, fills it alone, and takes the next.
 *
 * Producers stand for the device: while the trace is full they wait for the consumer, as long as its
 * heartbeat continues, and before the first one for its start, which takes long on a busy machine.  Unlike
 * the ring the file has all its memory from the start: a device that writes accesses soon fills it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"
#include "private.h"

enum { PAGE = 4096, SPINS = 200, SLEEP_NS = 50000 };

_Static_assert(sizeof(pasta_trace) <= PAGE, "the chunks follow in the next page");

static struct {
    pasta_trace *map;    /* NULL: there is none */
    pasta_chunk *chunks;
    uint8_t *data;
    uint64_t opened;     /* CLOCK_MONOTONIC, ns */
    uint64_t patience;   /* ns without a heartbeat */
    uint64_t start;      /* ns without a first one */
    uint32_t generation; /* of its process, + 1: the memory is not mapped in a fork's child */
} trace;

/* 1 + the generation of the process in which a thread is opening the trace: a lock that another
 * thread of a fork's parent held is void. */
static uint32_t opening;

/* ---- opening ---- */

static uint64_t clamp(uint64_t value, uint64_t min, uint64_t max) {
    return value < min ? min : value > max ? max : value;
}

/* Gives the file its size and memory, so that touching it cannot raise SIGBUS; 0 or an errno value. */
static int allocate(int fd, uint64_t bytes) {
    pasta_signals held;
    pasta_signals_hold(&held); /* the target may have a limit on file sizes */
    int error = ftruncate(fd, (off_t)bytes) ? errno : 0;
    while (!error && (error = posix_fallocate(fd, 0, (off_t)bytes)) == EINTR) error = 0;
    pasta_signals_restore(&held);
    return error;
}

/* An errno value, or 0. */
static int create(const char *path) {
    uint64_t chunk_bytes = clamp(pasta_config_u64("trace_chunk_bytes", 1 << 20), PAGE, 1 << 30) / PAGE * PAGE;
    uint64_t chunks = clamp(pasta_config_u64("trace_chunks", 64), 2, 1 << 16);
    uint64_t data = (PAGE + chunks * sizeof(pasta_chunk) + PAGE - 1) / PAGE * PAGE;
    uint64_t bytes = data + chunks * chunk_bytes;
    int fd = pasta_open_private(path, O_RDWR | O_EXCL);
    if (fd < 0) return errno;
    int error = allocate(fd, bytes);
    pasta_trace *t = error ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (!error && t == MAP_FAILED) error = errno;
    close(fd);
    if (error) {
        unlink(path);
        return error;
    }
    madvise(t, bytes, MADV_DONTDUMP);
    madvise(t, bytes, MADV_DONTFORK);
    t->schema = 1;
    t->pid = (uint32_t)getpid();
    t->chunk_bytes = (uint32_t)chunk_bytes;
    t->chunks = (uint32_t)chunks;
    t->chunks_offset = PAGE;
    t->data_offset = data;
    trace.chunks = (pasta_chunk *)(void *)((uint8_t *)t + t->chunks_offset);
    trace.data = (uint8_t *)t + t->data_offset;
    trace.opened = pasta_now();
    trace.patience = pasta_config_u64("trace_patience_ms", 10000) * 1000000u;
    trace.start = pasta_config_u64("trace_start_ms", 60000) * 1000000u;
    __atomic_store_n(&t->magic, PASTA_TRACE_MAGIC, __ATOMIC_RELEASE); /* last: by it a consumer recognizes a complete trace */
    trace.map = t;
    return 0;
}

static void open_beside_ring(void) {
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s.trace", pasta_ring_path());
    int error = length < 0 || (size_t)length >= sizeof path ? ENAMETOOLONG
                : pasta_is_sandboxed()                       ? EPERM
                                                             : create(path);
    if (!error) return;
    trace.map = NULL;
    pasta_say("accesses are not recorded: cannot create the access trace %s (%s); make room there or lower trace_chunks", path,
              strerror(error));
}

bool pasta_trace_open(void) {
    if (!pasta_open()) return false;
    uint32_t mine = pasta_generation() + 1, held = 0;
    int saved = errno;
    while (!__atomic_compare_exchange_n(&opening, &held, mine, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        if (held == mine) {
            if (!pasta_is_sandboxed()) sched_yield();
            held = 0;
        }
    if (trace.generation != mine) {
        open_beside_ring();
        __atomic_store_n(&trace.generation, mine, __ATOMIC_RELEASE);
    }
    bool open = trace.map != NULL;
    __atomic_store_n(&opening, 0, __ATOMIC_RELEASE);
    errno = saved;
    return open;
}

pasta_trace *pasta_trace_mine(void) {
    bool mine = __atomic_load_n(&trace.generation, __ATOMIC_ACQUIRE) == pasta_generation() + 1;
    return mine && pasta_same_process() ? trace.map : NULL;
}

/* ---- writing ---- */

bool pasta_trace_is_consumed(uint64_t now) {
    uint64_t seen = __atomic_load_n(&trace.map->heartbeat, __ATOMIC_RELAXED);
    uint64_t patience = seen ? trace.patience : trace.start;
    if (seen < trace.opened) seen = trace.opened;
    return now < seen || now - seen <= patience;
}

/* Waits until the place is free for lap `lap`; false where the consumer is gone. */
static bool wait_for_place(const pasta_chunk *chunk, uint64_t lap) {
    static const struct timespec pause = {0, SLEEP_NS};
    uint64_t start = pasta_now(), now = start;
    bool free = false;
    int saved = errno;
    for (int spins = 0; !free && pasta_trace_is_consumed(now); now = pasta_now()) {
        if (spins++ > SPINS && !pasta_is_sandboxed()) nanosleep(&pause, NULL);
        free = __atomic_load_n(&chunk->lap, __ATOMIC_ACQUIRE) >= lap;
    }
    __atomic_fetch_add(&trace.map->waited, now - start, __ATOMIC_RELAXED);
    errno = saved;
    return free;
}

/* The next chunk for a writer without one; false if the trace is full and the consumer is gone. */
static bool take_chunk(pasta_trace_writer *w) {
    pasta_trace *t = trace.map;
    for (;;) {
        if (!w->numbered) w->number = __atomic_fetch_add(&t->next, 1, __ATOMIC_RELAXED);
        w->numbered = true;
        pasta_chunk *chunk = &trace.chunks[w->number % t->chunks];
        uint64_t lap = w->number / t->chunks, now = __atomic_load_n(&chunk->lap, __ATOMIC_ACQUIRE);
        if (now < lap) {
            if (!wait_for_place(chunk, lap)) return false;
            continue;
        }
        w->numbered = false;
        if (now > lap) continue; /* taken, empty, during the wait */
        w->chunk = chunk;
        w->data = trace.data + w->number % t->chunks * t->chunk_bytes;
        w->state = lap << PASTA_CHUNK_LAP;
        return true;
    }
}

/* A writer of another generation has a chunk of another process. */
static bool is_open(pasta_trace_writer *w) {
    uint32_t mine = pasta_generation() + 1;
    if (PASTA_UNLIKELY(!pasta_same_process())) return false;
    if (PASTA_LIKELY(w->generation == mine)) return true;
    if (__atomic_load_n(&trace.generation, __ATOMIC_ACQUIRE) != mine || !trace.map) return false;
    *w = (pasta_trace_writer){.generation = mine};
    return true;
}

void *pasta_trace_begin(pasta_trace_writer *w, size_t bytes) {
    if (PASTA_UNLIKELY(!is_open(w))) return NULL;
    pasta_trace *t = trace.map;
    bytes = (bytes + 7) / 8 * 8;
    for (;;) {
        uint32_t used = (uint32_t)w->state;
        if (w->chunk && bytes <= t->chunk_bytes - used) {
            uint64_t expected = w->state;
            if (PASTA_LIKELY(__atomic_compare_exchange_n(&w->chunk->state, &expected, w->state + bytes, false,
                                                         __ATOMIC_RELAXED, __ATOMIC_RELAXED))) {
                w->state += bytes;
                return w->data + used;
            }
        } else if (w->chunk) { /* full; compared, since it may be sealed and reused */
            uint64_t expected = w->state;
            __atomic_compare_exchange_n(&w->chunk->state, &expected, w->state | PASTA_CHUNK_SEALED, false,
                                        __ATOMIC_RELEASE, __ATOMIC_RELAXED);
        }
        w->chunk = NULL;
        if (bytes > t->chunk_bytes || !take_chunk(w)) {
            __atomic_fetch_add(&t->dropped, 1, __ATOMIC_RELAXED);
            return NULL;
        }
    }
}

/* ---- lost accesses ---- */

static void increase(uint64_t *word, uint64_t value) {
    uint64_t now = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (now < value && !__atomic_compare_exchange_n(word, &now, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

void pasta_trace_lost(uint64_t launch) {
    pasta_trace *t = pasta_trace_mine();
    if (!t) return;
    uint64_t block = launch / 64 + 1;
    for (uint64_t i = 0; i < PASTA_TRACE_LOST; i++) {
        pasta_lost *place = &t->lost[(block + i) % PASTA_TRACE_LOST];
        uint64_t of = 0;
        if (__atomic_compare_exchange_n(&place->block, &of, block, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED) || of == block) {
            __atomic_fetch_or(&place->launches, UINT64_C(1) << launch % 64, __ATOMIC_RELAXED);
            return;
        }
    }
    increase(&t->lost_first, ~launch);
    increase(&t->lost_end, launch + 1);
}
