/* The consumer's side of the ring: finds published records, copies them by kind, and releases memory.
 * Runs without the interpreter lock.  It is C, not Numba, since publication needs acquire loads. */
#define _GNU_SOURCE
#include "reader.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "../core/segments.h"

#define KIND(number, name, payload, handler, category, keep, retain, own, label, text) \
    {#name, #payload, #handler, label, number, PASTA_CATEGORY_##category, retain, own},
const pasta_kind pasta_kinds[] = {PASTA_EVENTS(KIND)};
#define KIND_SLOTS(number, name, payload, ...) \
    [number] = (sizeof(pasta_header) + sizeof(pasta_##payload)) / PASTA_SLOT,
_Static_assert(sizeof ((pasta_stretch *)NULL)->counts == PASTA_KINDS * sizeof(uint32_t), "a count for each kind");
static const uint8_t kind_slots[PASTA_KINDS] = {PASTA_EVENTS(KIND_SLOTS)};

int pasta_kind_slots(int kind) { return kind > 0 && kind < PASTA_KINDS ? kind_slots[kind] : 0; }

pasta_ring *pasta_map(const char *path, int *error) {
    struct stat size;
    pasta_ring *r = NULL;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    *error = 0;
    if (fd < 0 || fstat(fd, &size) != 0) {
        *error = errno;
    } else if ((uint64_t)size.st_size < sizeof(pasta_ring)) {
        *error = -1;
    } else {
        r = mmap(NULL, (size_t)size.st_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
        if (r == MAP_FAILED) {
            *error = errno;
            r = NULL;
        } else if (__atomic_load_n(&r->magic, __ATOMIC_ACQUIRE) != PASTA_MAGIC || r->schema != PASTA_SCHEMA ||
                   r->file_bytes != (uint64_t)size.st_size) {
            *error = -1;
            munmap(r, (size_t)size.st_size);
            r = NULL;
        }
    }
    if (fd >= 0) close(fd);
    return r;
}

void pasta_unmap(pasta_ring *r) { munmap(r, r->file_bytes); }

/* As pasta_segment, but NULL where the entry leads out of the ring: the program may have overwritten its map. */
static uint8_t *held_segment(pasta_ring *r, uint64_t logical) {
    uint64_t entry = __atomic_load_n(&r->segment_map[logical % PASTA_MAX_SEGMENTS], __ATOMIC_ACQUIRE);
    uint64_t physical = entry & 0xffff;
    if (entry >> 16 != logical + 1 || !physical || physical > r->max_segments) return NULL;
    uint64_t offset = r->data_offset + (physical - 1) * r->segment_bytes;
    return offset + r->segment_bytes <= r->file_bytes ? (uint8_t *)r + offset : NULL;
}

static const uint8_t *segment_of(const pasta_stretch *s, uint64_t logical) {
    if (s->ring) return held_segment(s->ring, logical);
    return s->spilled + (logical - s->spilled_first) * s->segment_slots * PASTA_SLOT;
}

static int plausible(const pasta_header *h, uint64_t room) {
    if (h->kind == PASTA_EVENT_pad) return h->slots > 0 && h->slots <= room;
    return h->kind < PASTA_KINDS && h->slots && h->slots == kind_slots[h->kind] && h->slots <= room;
}

/* Length of the record at `h` if it is published; 0 if not (yet). */
static uint32_t published(const pasta_header *h, uint32_t word, uint64_t room) {
    if (__atomic_load_n(&h->commit, __ATOMIC_ACQUIRE) != word) return 0;
    return plausible(h, room) ? h->slots : 0;
}

/* Slots of an unfinished record: known once its producer stored the busy mark. */
static uint32_t unfinished(const pasta_header *h, uint32_t word, uint64_t room) {
    if (h->commit == ~word && plausible(h, room)) return h->slots;
    return 1;
}

void pasta_scan(pasta_stretch *s) {
    uint64_t position = s->from;
    memset(s->counts, 0, sizeof s->counts);
    s->torn = 0;
    while (position < s->end) {
        uint64_t logical = position / s->segment_slots, stop = (logical + 1) * s->segment_slots;
        const uint8_t *memory = segment_of(s, logical);
        if (!memory) {
            if (!s->final) break;
            s->torn += (stop < s->end ? stop : s->end) - position;
            position = stop < s->end ? stop : s->end;
            continue;
        }
        uint32_t word = pasta_commit_word(logical);
        if (stop > s->end) stop = s->end;
        while (position < stop) {
            const pasta_header *h = (const pasta_header *)(memory + position % s->segment_slots * PASTA_SLOT);
            uint32_t length = published(h, word, stop - position);
            if (length) {
                s->counts[h->kind]++;
            } else if (s->final) {
                length = unfinished(h, word, stop - position);
                s->torn += length;
            } else {
                s->end = position;
                return;
            }
            position += length;
        }
    }
    s->end = position;
}

void pasta_gather(const pasta_stretch *s, uint64_t base, void **outputs) {
    uint8_t *next[PASTA_KINDS];
    uint32_t left[PASTA_KINDS]; /* the counts, whatever the program wrote since */
    memcpy(next, outputs, sizeof next);
    memcpy(left, s->counts, sizeof left);
    for (uint64_t position = s->from; position < s->end;) {
        uint64_t logical = position / s->segment_slots, stop = (logical + 1) * s->segment_slots;
        const uint8_t *memory = segment_of(s, logical);
        if (stop > s->end) stop = s->end;
        if (!memory) {
            position = stop;
            continue;
        }
        uint32_t word = pasta_commit_word(logical);
        while (position < stop) {
            const pasta_header *h = (const pasta_header *)(memory + position % s->segment_slots * PASTA_SLOT);
            uint32_t length = published(h, word, stop - position);
            if (!length) {
                position += unfinished(h, word, stop - position);
                continue;
            }
            uint8_t *to = next[h->kind];
            if (to && left[h->kind]) {
                left[h->kind]--;
                memcpy(to, h, (size_t)length * PASTA_SLOT);
                ((pasta_header *)to)->commit = (uint32_t)(position - base);
                next[h->kind] = to + (size_t)length * PASTA_SLOT;
            }
            position += length;
        }
    }
}

#define READER_POSITION ((UINT64_C(1) << 48) - 1)

uint64_t pasta_releasable(pasta_ring *r, uint64_t position) {
    uint64_t reader = __atomic_load_n(&r->reader, __ATOMIC_SEQ_CST) & READER_POSITION;
    return reader && reader - 1 < position ? reader - 1 : position;
}

int pasta_move_reader(pasta_ring *r, uint32_t block, uint64_t position) {
    uint64_t before = __atomic_load_n(&r->reader, __ATOMIC_ACQUIRE);
    uint64_t after = position == UINT64_MAX ? 0 : (uint64_t)block << 48 | (position + 1);
    do
        if (!before || before >> 48 != block) return 0;
    while (!__atomic_compare_exchange_n(&r->reader, &before, after, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    return 1;
}

void pasta_release(pasta_ring *r, uint64_t position) {
    uint64_t from = r->released / r->segment_slots;
    /* evaluated for each segment: a block may begin meanwhile */
    for (uint64_t logical = from; logical < pasta_releasable(r, position) / r->segment_slots; logical++) {
        uint64_t entry = __atomic_load_n(&r->segment_map[logical % PASTA_MAX_SEGMENTS], __ATOMIC_ACQUIRE);
        uint8_t *memory = held_segment(r, logical);
        /* first the position, then the memory: after a crash between the two a segment of memory is
         * lost, but never read while it is reused */
        __atomic_store_n(&r->released, (logical + 1) * r->segment_slots, __ATOMIC_SEQ_CST);
        if (!memory) continue;
        /* old payload bytes must not look like a commit where a record will begin */
        memset(memory, 0, r->segment_bytes);
        pasta_push_free(r, (uint32_t)(entry & 0xffff));
    }
}

int pasta_back_ahead(pasta_ring *r, const char *path, uint32_t count) {
    uint32_t backed = __atomic_load_n(&r->backed, __ATOMIC_ACQUIRE);
    uint32_t wanted = __atomic_load_n(&r->segments, __ATOMIC_ACQUIRE) + count;
    if (wanted > r->max_segments) wanted = r->max_segments;
    if (wanted <= backed) return 0;
    int fd = open(path, O_RDWR | O_CLOEXEC), error = fd < 0 ? errno : 0;
    off_t from = (off_t)(r->data_offset + (uint64_t)backed * r->segment_bytes);
    off_t bytes = (off_t)(wanted - backed) * r->segment_bytes;
    struct statvfs room;
    if (!error && fstatvfs(fd, &room)) error = errno;
    if (!error && (uint64_t)bytes > (uint64_t)room.f_bavail * room.f_frsize / 4) error = ENOSPC; /* it may not be needed */
    if (!error) error = posix_fallocate(fd, from, bytes);
    if (fd >= 0) close(fd);
    /* cleared now: the kernel maps only such pages into the program ahead of their use (map_pages in core/ring.c) */
    if (!error && (uint64_t)(from + bytes) <= r->file_bytes) madvise((uint8_t *)r + from, (size_t)bytes, MADV_POPULATE_WRITE);
    if (!error) pasta_raise_backed(r, wanted);
    return error;
}

void pasta_release_reserve(pasta_ring *r) {
    uint64_t from = r->arena_offset + r->arena_bytes;
    if (from < r->data_offset && r->data_offset <= r->file_bytes)
        madvise((uint8_t *)r + from, r->data_offset - from, MADV_REMOVE);
}

uint8_t *pasta_segment_memory(pasta_ring *r, uint64_t logical) { return held_segment(r, logical); }
uint64_t pasta_tail(pasta_ring *r) { return __atomic_load_n(&r->tail, __ATOMIC_ACQUIRE); }

static int wait_set(uint32_t *word, uint32_t timeout_ms) {
    if (!__atomic_load_n(word, __ATOMIC_ACQUIRE)) pasta_futex_wait(word, 0, (uint64_t)timeout_ms * 1000000u);
    return __atomic_load_n(word, __ATOMIC_ACQUIRE) != 0;
}

static void set_and_wake(uint32_t *word) {
    __atomic_store_n(word, 1, __ATOMIC_RELEASE);
    pasta_futex_wake(word);
}

int pasta_wait_finish(pasta_ring *r, uint32_t timeout_ms) { return wait_set(&r->finish, timeout_ms); }
int pasta_wait_finished(pasta_ring *r, uint32_t timeout_ms) { return wait_set(&r->finished, timeout_ms); }
void pasta_ask_finish(pasta_ring *r) { set_and_wake(&r->finish); }
void pasta_mark_finished(pasta_ring *r) { set_and_wake(&r->finished); }

void pasta_beat(pasta_ring *r) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    __atomic_store_n(&r->heartbeat, (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec, __ATOMIC_RELEASE);
}

const char *pasta_string_text(pasta_ring *r, uint32_t id, uint32_t *length) {
    uint64_t offset = (uint64_t)id * 8, used = __atomic_load_n(&r->arena_used, __ATOMIC_ACQUIRE);
    if (used > r->arena_committed) used = r->arena_committed;
    if (used > r->arena_bytes) used = r->arena_bytes;
    if (!id || offset + sizeof(uint32_t) > used) return NULL;
    const uint8_t *entry = (const uint8_t *)r + r->arena_offset + offset;
    memcpy(length, entry, sizeof *length);
    if (offset + sizeof(uint32_t) + *length + 1 > used) return NULL;
    return (const char *)entry + sizeof(uint32_t);
}
