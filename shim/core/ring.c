/* The producers' side of the ring: reserve with one compare-and-swap, write, publish.
 *
 * Positions only grow.  A producer may hand out positions of a logical segment only after some
 * producer installed memory for it in segment_map, so a reservation never lacks memory: at the
 * cap the event is counted and dropped before anything was reserved.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"
#include "private.h"
#include "reserve.h"

enum {
    SEGMENT_BYTES = PASTA_SEGMENT_BYTES,
    SEGMENT_SLOTS = PASTA_SEGMENT_SLOTS,
    ARENA_STEP = 1 << 18,
    ARENA_CAP = 64 << 20,
    MAX_GROWTH = 4,             /* segments that are backed at once */
    RESERVE = 256 << 10,        /* behind the strings: released where the file system is full */
    ARENA_SANDBOX = 4 << 20,    /* for strings interned after a process restricted itself */
    SEGMENTS_UNUSED = 16,       /* backed before that where no accelerator was used yet */
};

_Static_assert(offsetof(pasta_ring, tail) % 64 == 0, "what every record needs is in one line of the cache");

pasta_ring *pasta_ring_opened PASTA_HOT;
static bool stopped PASTA_HOT;
static uint32_t backing; /* calls of back_with_memory at work */
void (*pasta_tapped)(const pasta_header *) PASTA_HOT;
static char ring_path[PATH_MAX];

#define KEPT(number, name, payload, handler, category, keep, ...) [number] = keep,
static const bool kept_kinds[PASTA_KINDS] = {PASTA_EVENTS(KEPT)};

static uint64_t align(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

uint64_t pasta_now(void) {
    struct timespec t;
    clock_gettime(pasta_clock(), &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- memory of the file ---- */

/* 0 or an errno value.  A signal, such as a sampling profiler's timer, interrupts the call. */
static int allocate(int fd, uint64_t offset, uint64_t bytes) {
    int error;
    do
        error = posix_fallocate(fd, (off_t)offset, (off_t)bytes);
    while (error == EINTR);
    return error;
}

/* Before Linux 5.14.  Opens the file by name: the target may have closed, or reused, any descriptor that was kept open. */
static int allocate_by_name(uint64_t offset, uint64_t bytes) {
    pasta_signals held;
    int fd = open(ring_path, O_RDWR | O_CLOEXEC), error = errno;
    if (fd < 0) return error;
    pasta_signals_hold(&held); /* the target may have set a limit since */
    error = allocate(fd, offset, bytes);
    pasta_signals_restore(&held);
    close(fd);
    return error;
}

static bool is_full(pasta_ring *r) { return __atomic_load_n(&r->limited, __ATOMIC_SEQ_CST) == PASTA_LIMIT_memory; }

/* The file system is full.  Launcher and consumer have to write there too: release the reserve for them, but not
 * before the last producer has given up.  One that still populates would take it, and keep it although it fails. */
static void release_reserve(pasta_ring *r) {
    if (!is_full(r) || __atomic_load_n(&backing, __ATOMIC_SEQ_CST)) return;
    madvise((uint8_t *)r + r->arena_offset + r->arena_bytes, RESERVE, MADV_REMOVE);
}

static void set_limited(pasta_ring *r, uint32_t why) {
    __atomic_store_n(&r->limited, why, __ATOMIC_SEQ_CST);
    release_reserve(r);
}

static int populate(pasta_ring *r, uint64_t offset, uint64_t bytes) {
    int error;
    do
        error = madvise((uint8_t *)r + offset, bytes, MADV_POPULATE_WRITE) ? errno : 0;
    while (error == EINTR);
    if (error == EFAULT) return ENOSPC; /* what would have been SIGBUS */
    return error && error != ENOMEM ? allocate_by_name(offset, bytes) : error;
}

/* Backs [offset, offset + bytes) of the ring with memory, so that touching it cannot raise
 * SIGBUS on a full file system; 0 or an errno value.  One system call, through the mapping: the
 * target may have left itself no way to open a file, or no descriptor. */
static int back_with_memory(pasta_ring *r, uint64_t offset, uint64_t bytes) {
    if (pasta_is_sandboxed()) return EPERM;
    int saved = errno;
    __atomic_add_fetch(&backing, 1, __ATOMIC_SEQ_CST);
    int error = is_full(r) ? ENOSPC : populate(r, offset, bytes);
    if (!__atomic_sub_fetch(&backing, 1, __ATOMIC_SEQ_CST)) release_reserve(r);
    errno = saved;
    return error;
}

static pasta_ring *create_file(int fd, char *why, size_t why_size) {
    uint64_t strings = align(sizeof(pasta_ring), 4096);
    uint64_t arena = strings + PASTA_STRING_SLOTS * sizeof(uint64_t);
    uint64_t data = align(arena + ARENA_CAP + RESERVE, SEGMENT_BYTES);
    uint64_t segments = pasta_config_u64("ring_max", UINT64_C(256) << 20) / SEGMENT_BYTES;
    if (segments < 2) segments = 2;
    if (segments > PASTA_MAX_SEGMENTS) segments = PASTA_MAX_SEGMENTS;
    uint64_t total = data + segments * SEGMENT_BYTES;

    struct rlimit limit; /* growing a file past this limit would raise SIGXFSZ in the target */
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < total) {
        if (limit.rlim_cur < data + 2 * SEGMENT_BYTES) {
            snprintf(why, why_size, "the limit on file sizes (ulimit -f) is too small for the event ring");
            return NULL;
        }
        segments = (limit.rlim_cur - data) / SEGMENT_BYTES;
        total = data + segments * SEGMENT_BYTES;
    }
    int error = ftruncate(fd, (off_t)total) ? errno : allocate(fd, 0, arena + ARENA_STEP);
    if (!error) error = allocate(fd, arena + ARENA_CAP, RESERVE);
    if (!error) error = allocate(fd, data, SEGMENT_BYTES);
    if (error) {
        snprintf(why, why_size, "no memory for the event ring in %s (%s)", pasta_session(), strerror(error));
        return NULL;
    }
    pasta_ring *r = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (r == MAP_FAILED) {
        snprintf(why, why_size, "cannot map the event ring (%s)", strerror(errno));
        return NULL;
    }
    madvise(r, total, MADV_DONTDUMP); /* a core dump of the target stays the target's */
    struct timespec real;
    r->schema = PASTA_SCHEMA;
    r->pid = (uint32_t)getpid();
    r->parent = (uint32_t)getppid();
    r->registration = pasta_registration();
    r->start_time = pasta_now();
    clock_gettime(CLOCK_REALTIME, &real);
    r->start_realtime = (uint64_t)real.tv_sec * 1000000000u + (uint64_t)real.tv_nsec;
    r->file_bytes = total;
    r->strings_offset = strings;
    r->arena_offset = arena;
    r->arena_bytes = ARENA_CAP;
    r->arena_used = 8; /* 0 is the id of no string */
    r->arena_committed = ARENA_STEP;
    r->data_offset = data;
    r->segment_bytes = SEGMENT_BYTES;
    r->segment_slots = SEGMENT_SLOTS;
    r->max_segments = (uint32_t)segments;
    r->segments = r->backed = 1;
    r->segment_map[0] = UINT64_C(1) << 16 | 1;
    r->state = PASTA_STATE_open;
    return r;
}

pasta_ring *pasta_ring_create(char *why, size_t why_size) {
    int fd = -1;
    uint32_t sequence = 0;
    char path[PATH_MAX];
    for (; fd < 0 && sequence < 10000; sequence++) {
        int length = snprintf(path, sizeof path, "%s/rings/%d-%u", pasta_session(), (int)getpid(), sequence);
        if (length < 0 || (size_t)length >= sizeof path) break;
        fd = pasta_open_private(path, O_RDWR | O_EXCL);
        if (fd < 0 && errno != EEXIST) break;
    }
    if (fd < 0) {
        snprintf(why, why_size, "cannot create the event ring %s (%s)", path, strerror(errno));
        return NULL;
    }
    pasta_ring *r = create_file(fd, why, why_size);
    if (!r) {
        unlink(path);
        close(fd);
        return NULL;
    }
    close(fd);
    r->sequence = sequence - 1;
    memcpy(ring_path, path, sizeof ring_path);
    /* the collector recognises a ring by its magic: last */
    __atomic_store_n(&r->magic, PASTA_MAGIC, __ATOMIC_RELEASE);
    __atomic_store_n(&pasta_ring_opened, r, __ATOMIC_RELEASE);
    return r;
}

void pasta_ring_forget(void) {
    __atomic_store_n(&pasta_tapped, NULL, __ATOMIC_RELAXED);
    pasta_ring *parents = __atomic_exchange_n(&pasta_ring_opened, NULL, __ATOMIC_ACQ_REL);
    __atomic_store_n(&backing, 0, __ATOMIC_RELAXED); /* by threads of the parent */
    if (!parents) return;
    if (!pasta_is_sandboxed()) munmap(parents, parents->file_bytes);
}

const char *pasta_ring_path(void) { return ring_path; }
void pasta_ring_stop(bool value) { __atomic_store_n(&stopped, value, __ATOMIC_RELEASE); }
bool pasta_ring_stopped(void) { return __atomic_load_n(&stopped, __ATOMIC_ACQUIRE); }

/* ---- segments ---- */

/* Backs `count` segments after the first `backed`; 0 or an errno value.  Several producers, and the
 * launcher, may do that at once: memory that is there stays as it is. */
static int back_segments(pasta_ring *r, uint32_t backed, uint32_t count) {
    int error = back_with_memory(r, r->data_offset + (uint64_t)backed * SEGMENT_BYTES, (uint64_t)count * SEGMENT_BYTES);
    if (!error) pasta_raise_backed(r, backed + count);
    return error;
}

/* Backs segments ahead of their use; false at the cap, or where there is no memory, which is then the cap. */
static bool back_more(pasta_ring *r, uint32_t backed) {
    uint32_t left = r->max_segments > backed ? r->max_segments - backed : 0;
    uint32_t step = backed / 4 > MAX_GROWTH ? MAX_GROWTH : backed / 4;
    if (!left || is_full(r)) return false;
    if (step > 1 && step <= left && !back_segments(r, backed, step)) return true;
    int error = back_segments(r, backed, 1);
    if (!error || __atomic_load_n(&r->backed, __ATOMIC_ACQUIRE) > backed) return true;
    if (pasta_is_sandboxed()) { /* the launcher may still give it memory */
        set_limited(r, PASTA_LIMIT_sandbox);
        return false;
    }
    /* what there is stays the cap; another producer may just have added to it */
    __atomic_store_n(&r->max_segments, backed, __ATOMIC_SEQ_CST);
    uint32_t now = __atomic_load_n(&r->backed, __ATOMIC_SEQ_CST);
    if (now > backed) __atomic_store_n(&r->max_segments, now, __ATOMIC_SEQ_CST);
    set_limited(r, PASTA_LIMIT_memory);
    pasta_say("the event ring cannot grow beyond %u KiB: %s %s", backed * (SEGMENT_BYTES >> 10), pasta_session(),
              error == ENOSPC ? "is full; make room there or lower ring.max" : strerror(error));
    return false;
}

/* Each page of memory that the launcher backed would be a fault at its first record, of several us.  Where a page is read, the
 * kernel also maps those around it, usually 16: a system call could do the same, but the program may have forbidden it. */
static void map_pages(const pasta_ring *r, uint32_t segment) {
    enum { AROUND = 16 * 4096 };
    const volatile uint8_t *memory = (const uint8_t *)r + r->data_offset + (uint64_t)segment * SEGMENT_BYTES;
    for (uint32_t at = 0; at < SEGMENT_BYTES; at += AROUND) (void)memory[at];
}

/* A new physical segment (number + 1), or 0 at the cap.  No system call while there are backed ones. */
static PASTA_APART uint32_t grow(pasta_ring *r) {
    uint32_t have = __atomic_load_n(&r->segments, __ATOMIC_ACQUIRE);
    for (;;) {
        uint32_t backed = __atomic_load_n(&r->backed, __ATOMIC_ACQUIRE);
        if (have >= __atomic_load_n(&r->max_segments, __ATOMIC_SEQ_CST)) return 0; /* the consumer looks no further */
        if (have >= backed) {
            if (!back_more(r, backed)) return 0;
            have = __atomic_load_n(&r->segments, __ATOMIC_ACQUIRE);
        } else if (__atomic_compare_exchange_n(&r->segments, &have, have + 1, true, __ATOMIC_ACQ_REL,
                                               __ATOMIC_ACQUIRE)) {
            map_pages(r, have);
            return have + 1;
        }
    }
}

bool pasta_ring_commit_arena(pasta_ring *r, uint64_t end) {
    uint64_t committed = __atomic_load_n(&r->arena_committed, __ATOMIC_ACQUIRE), wanted = align(end, ARENA_STEP);
    if (end <= committed) return true;
    if (is_full(r)) return false;
    if (back_with_memory(r, r->arena_offset + committed, wanted - committed)) {
        set_limited(r, pasta_is_sandboxed() ? PASTA_LIMIT_sandbox : PASTA_LIMIT_memory);
        return false;
    }
    while (committed < wanted && !__atomic_compare_exchange_n(&r->arena_committed, &committed, wanted, false,
                                                              __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    }
    return true;
}

/* Half of the free bytes of the file system; the rest is left to others. */
static uint64_t half_of_free(void) {
    struct statvfs room;
    if (statvfs(pasta_session(), &room)) return 0;
    return (uint64_t)room.f_bavail * room.f_frsize / 2;
}

void pasta_ring_back_all(void) {
    pasta_ring *r = pasta_ring_mine();
    if (!r) return;
    uint64_t room = half_of_free(), arena = __atomic_load_n(&r->arena_used, __ATOMIC_ACQUIRE) + ARENA_SANDBOX;
    if (room > ARENA_SANDBOX && arena <= r->arena_bytes) pasta_ring_commit_arena(r, arena);
    uint32_t backed = __atomic_load_n(&r->backed, __ATOMIC_ACQUIRE), most = r->max_segments;
    uint32_t used = __atomic_load_n(&r->used, __ATOMIC_ACQUIRE) ? most : backed + SEGMENTS_UNUSED;
    if (most > used) most = used;
    if (most > backed + room / SEGMENT_BYTES) most = backed + (uint32_t)(room / SEGMENT_BYTES);
    while (backed < most && !back_segments(r, backed, most - backed < MAX_GROWTH ? most - backed : MAX_GROWTH))
        backed = __atomic_load_n(&r->backed, __ATOMIC_ACQUIRE);
}

static inline pasta_header *reserve(pasta_ring *r, uint16_t kind, uint8_t slots) {
    return pasta_reserve(r, kind, slots, grow, false);
}

/* ---- records ---- */

/* The kernel's id of this thread.  It is in the number of its CPU-time clock (CPUCLOCK_PID), which
 * libc forms without a system call: a thread may be under a filter that allows no gettid.  After a
 * fork, which may be a raw clone that libc does not know of, the kernel is asked. */
static uint32_t find_thread_id(uint32_t generation) {
    clockid_t clock;
    bool forked = generation != 1 && !pasta_is_sandboxed();
    if (forked || pthread_getcpuclockid(pthread_self(), &clock) != 0) return (uint32_t)syscall(SYS_gettid);
    return (uint32_t) ~(clock >> 3);
}

uint32_t pasta_thread(void) {
    static __thread struct {
        uint32_t id, generation;
    } mine;
    uint32_t generation = pasta_generation() + 1;
    if (PASTA_UNLIKELY(mine.generation != generation)) {
        mine.id = find_thread_id(generation);
        mine.generation = generation;
    }
    return mine.id;
}

static inline void *write_header(pasta_header *h, int16_t device, uint16_t context, uint64_t stream, uint32_t thread) {
    h->flags = 0;
    h->time = pasta_now();
    h->thread = thread;
    h->device = device;
    h->context = context;
    h->stream = stream;
    h->correlation = 0;
    return h + 1;
}

/* Every field is absent; in steps of constant size, which need no call. */
static inline void *clear(void *payload, uint8_t slots) {
    uint8_t *at = payload;
    memset(at, 0xff, PASTA_SLOT - sizeof(pasta_header));
    at += PASTA_SLOT - sizeof(pasta_header);
    for (; slots > 1; slots--, at += PASTA_SLOT) memset(at, 0xff, PASTA_SLOT);
    return payload;
}

static PASTA_APART void report_drops(pasta_ring *r) {
    uint64_t count = __atomic_exchange_n(&r->pending_drops, 0, __ATOMIC_ACQ_REL);
    if (!count) return;
    pasta_header *h = reserve(r, PASTA_EVENT_dropped, PASTA_SLOTS(pasta_dropped));
    if (!h) {
        __atomic_fetch_add(&r->pending_drops, count, __ATOMIC_RELAXED);
        return;
    }
    pasta_dropped *e = write_header(h, PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM, pasta_thread());
    clear(e, PASTA_SLOTS(pasta_dropped));
    e->count = count;
    pasta_publish(e);
}

/* Leaves the payload as it is. */
static inline void *begin(bool always, uint32_t thread, pasta_event_kind kind, uint8_t slots, int16_t device,
                          uint16_t context, uint64_t stream) {
    if (PASTA_UNLIKELY(!pasta_same_process())) pasta_after_fork();
    pasta_ring *r = pasta_ring_mine();
    if (PASTA_UNLIKELY(!r)) return NULL;
    if (PASTA_UNLIKELY(__atomic_load_n(&stopped, __ATOMIC_RELAXED)) && !always && !kept_kinds[kind]) return NULL;
    if (PASTA_UNLIKELY(__atomic_load_n(&r->pending_drops, __ATOMIC_RELAXED) != 0)) report_drops(r);
    pasta_header *h = reserve(r, (uint16_t)kind, slots);
    if (PASTA_UNLIKELY(!h)) {
        __atomic_fetch_add(&r->dropped[kind], 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(&r->pending_drops, 1, __ATOMIC_RELAXED);
        return NULL;
    }
    return write_header(h, device, context, stream, thread);
}

static inline void *begin_clear(bool always, uint32_t thread, pasta_event_kind kind, uint8_t slots, int16_t device,
                                uint16_t context, uint64_t stream) {
    void *payload = begin(always, thread, kind, slots, device, context, stream);
    return PASTA_LIKELY(payload != NULL) ? clear(payload, slots) : NULL;
}

void *pasta_begin(pasta_event_kind kind, uint8_t slots, int16_t device, uint16_t context, uint64_t stream) {
    return begin_clear(false, pasta_thread(), kind, slots, device, context, stream);
}

void *pasta_begin_on(uint32_t thread, pasta_event_kind kind, uint8_t slots, int16_t device, uint16_t context,
                     uint64_t stream) {
    return begin_clear(false, thread, kind, slots, device, context, stream);
}

void *pasta_begin_result(uint32_t thread, pasta_event_kind kind, uint8_t slots, int16_t device, uint16_t context,
                         uint64_t stream) {
    return begin_clear(true, thread, kind, slots, device, context, stream);
}

void *pasta_reserve_on(uint32_t thread, pasta_event_kind kind, uint8_t slots, int16_t device) {
    return begin(false, thread, kind, slots, device, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
}

static uint64_t correlation PASTA_HOT, launch PASTA_HOT;

uint64_t pasta_next_correlation(void) { return __atomic_add_fetch(&correlation, 1, __ATOMIC_RELAXED); }

static __thread pasta_launch_range launched; /* by this thread, since pasta_launches_mark */
static uint32_t marked PASTA_HOT;            /* some thread has; until then `launched` stays out of the cache */

void pasta_launches_mark(void) {
    __atomic_store_n(&marked, 1, __ATOMIC_RELAXED);
    launched.count = 0;
}

pasta_launch_range pasta_launches_since_mark(void) { return launched; }

uint64_t pasta_next_launch(void) {
    uint64_t ordinal = __atomic_fetch_add(&launch, 1, __ATOMIC_RELAXED);
    if (PASTA_UNLIKELY(__atomic_load_n(&marked, __ATOMIC_RELAXED)) && !launched.count++) launched.first = ordinal;
    pasta_ring *r = pasta_same_process() ? pasta_ring_mine() : NULL;
    if (r) __atomic_store_n(&r->launches, ordinal + 1, __ATOMIC_RELAXED);
    return ordinal;
}

uint64_t pasta_coming_launch(void) { return __atomic_load_n(&launch, __ATOMIC_RELAXED); }

void pasta_ring_restart_counters(void) { correlation = launch = 0; }
