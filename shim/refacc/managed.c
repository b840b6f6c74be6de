/* Managed memory: which processors hold its pages, and what moves them.
 *
 * Pages are in host memory at one address for all, so nothing is copied; the model decides what hardware would
 * fault on and move, and the processor that waits for it waits as long as the model says.  A launch first runs;
 * then the pages that it touched are served in the order of their addresses, so that faults and migrations do
 * not depend on the order in which threads run blocks.
 *
 *   page   64 KiB: what a fault is for
 *   block  2 MiB: what is evicted, the least recently used first, and within which a fault brings more pages
 *
 * A fault on a page brings the largest aligned group of 2, 4, ..., 32 pages of its block of which, with that page,
 * more than 51 % are resident: the density prefetcher that NVIDIA documents for its driver (uvm_perf_prefetch of
 * the open kernel modules).  Pages of other allocations, and those that prefer another place, are not in the group. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "internal.h"

/* The cost model; docs/reference-accelerator.md has it for users. */
enum {
    FAULT_NS = 10000,     /* a fault of a device or the host */
    BYTES_PER_NS = 16,    /* of a migration */
    REMOTE_PER_NS = 4,    /* bytes of a page that a launch accesses where it is: counted as the whole page */
    DENSE_PERCENT = 51,
};
#define PAGE (UINT64_C(1) << RA_PAGE_SHIFT)
#define BLOCK_PAGES 32u
#define NO_BLOCK UINT32_MAX
#define NOWHERE (-2) /* no preferred location */

struct page {
    uint16_t resident; /* bits: 1 the host, 2 << d device d */
    uint16_t accessed; /* devices that may access it where it is */
    uint16_t mapped;   /* devices that do */
    int8_t preferred;  /* RA_HOST, a device, or NOWHERE */
    uint8_t read_mostly;
    uint32_t owner; /* its allocation; 0: none */
};

struct link {
    uint32_t previous, next; /* towards the more and the less recently used */
    uint32_t pages;          /* resident; 0: not in the list */
};

static struct {
    pthread_mutex_t mutex;
    struct page *pages;
    uint64_t count;   /* pages of the region */
    uint64_t end;     /* first page after the last managed one */
    uint64_t live;    /* allocations */
    uint32_t owners;
    struct link *links[RA_MAX_DEVICES]; /* by block */
    uint32_t newest[RA_MAX_DEVICES], oldest[RA_MAX_DEVICES];
    uint64_t used[RA_MAX_DEVICES]; /* pages */
} managed = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* What is served for one processor: its records, and the time they take. */
struct service {
    ra_uvm_activity_data *records;
    size_t count, room, lost;
    bool recorded;
    uint64_t clock; /* ns */
    ra_uvm_activity_data common;
};

static uint16_t bit_of(int place) { return (uint16_t)(1u << (place + 1)); }
static uint64_t base(void) { return ra_window.base; }
static uint64_t page_of(uint64_t address) { return (address - base()) >> RA_PAGE_SHIFT; }
static int any_place(uint16_t resident) { return __builtin_ctz(resident) - 1; }

/* ---- records ---- */

static void record(struct service *s, ra_callback_id id, uint64_t first, uint64_t pages, int source, int destination,
                   uint32_t reason, uint64_t duration) {
    uint64_t start = s->clock;
    s->clock += duration;
    if (!s->recorded) return;
    if (s->count == s->room) {
        size_t room = s->room ? 2 * s->room : 64;
        ra_uvm_activity_data *grown = realloc(s->records, room * sizeof *grown);
        if (!grown) { /* the model does not depend on its records */
            s->lost++;
            return;
        }
        s->records = grown;
        s->room = room;
    }
    ra_uvm_activity_data *r = &s->records[s->count++];
    *r = s->common;
    r->id = id;
    r->address = base() + (first << RA_PAGE_SHIFT);
    r->bytes = pages << RA_PAGE_SHIFT;
    r->source = source;
    r->destination = destination;
    r->reason = reason;
    r->start = start;
    r->end = s->clock;
}

static void fault(struct service *s, uint64_t page, int place, bool write) {
    record(s, RA_CALLBACK_UVM_FAULT, page, 1, place, place, write ? RA_FAULT_WRITE : RA_FAULT_READ, FAULT_NS);
}

static void migrated(struct service *s, uint64_t first, uint64_t pages, int source, int destination, uint32_t reason) {
    if (pages)
        record(s, RA_CALLBACK_UVM_MIGRATED, first, pages, source, destination, reason,
               (pages << RA_PAGE_SHIFT) / BYTES_PER_NS);
}

/* ---- blocks of a device, by use ---- */

static void unlink_block(int device, uint32_t block) {
    struct link *links = managed.links[device], *l = &links[block];
    if (l->previous == NO_BLOCK) managed.newest[device] = l->next;
    else links[l->previous].next = l->next;
    if (l->next == NO_BLOCK) managed.oldest[device] = l->previous;
    else links[l->next].previous = l->previous;
}

static void link_newest(int device, uint32_t block) {
    struct link *links = managed.links[device];
    links[block].previous = NO_BLOCK;
    links[block].next = managed.newest[device];
    if (managed.newest[device] == NO_BLOCK) managed.oldest[device] = block;
    else links[managed.newest[device]].previous = block;
    managed.newest[device] = block;
}

static void used_now(int device, uint32_t block) {
    if (!managed.links[device][block].pages) return;
    unlink_block(device, block);
    link_newest(device, block);
}

static void arrives(int place, uint64_t page) {
    managed.pages[page].resident |= bit_of(place);
    if (place == RA_HOST) return;
    uint32_t block = (uint32_t)(page / BLOCK_PAGES);
    managed.used[place]++;
    if (!managed.links[place][block].pages++) link_newest(place, block);
}

static void leaves(int place, uint64_t page) {
    managed.pages[page].resident &= (uint16_t)~bit_of(place);
    if (place == RA_HOST) return;
    uint32_t block = (uint32_t)(page / BLOCK_PAGES);
    managed.used[place]--;
    if (!--managed.links[place][block].pages) unlink_block(place, block);
}

static void keep_only(int place, uint64_t page) {
    uint16_t others = managed.pages[page].resident & (uint16_t)~bit_of(place);
    for (; others; others &= (uint16_t)(others - 1)) leaves(any_place(others), page);
}

/* ---- eviction ---- */

static bool prefers(int device, uint32_t block) {
    for (uint64_t p = (uint64_t)block * BLOCK_PAGES, end = p + BLOCK_PAGES; p < end && p < managed.end; p++)
        if (managed.pages[p].resident & bit_of(device) && managed.pages[p].preferred == device) return true;
    return false;
}

/* The least recently used block other than `except`; one whose pages prefer the device only if there is no other. */
static uint32_t victim(int device, uint32_t except) {
    uint32_t preferring = NO_BLOCK;
    for (uint32_t b = managed.oldest[device]; b != NO_BLOCK; b = managed.links[device][b].previous) {
        if (b == except) continue;
        if (!prefers(device, b)) return b;
        if (preferring == NO_BLOCK) preferring = b;
    }
    return preferring;
}

static void evict(struct service *s, int device, uint32_t block) {
    uint64_t run = 0;
    for (uint64_t p = (uint64_t)block * BLOCK_PAGES, end = p + BLOCK_PAGES; p < end; p++) {
        bool here = p < managed.end && managed.pages[p].resident & bit_of(device);
        bool moves = here && managed.pages[p].resident == bit_of(device);
        if (!moves) {
            migrated(s, p - run, run, device, RA_HOST, RA_MIGRATED_EVICTION);
            run = 0;
        }
        if (here) leaves(device, p);
        if (moves) arrives(RA_HOST, p), run++;
    }
    migrated(s, (uint64_t)(block + 1) * BLOCK_PAGES - run, run, device, RA_HOST, RA_MIGRATED_EVICTION);
}

static void make_space(struct service *s, int device, uint32_t block, uint64_t pages) {
    while (device != RA_HOST && managed.used[device] + pages > ra_settings.managed >> RA_PAGE_SHIFT) {
        uint32_t out = victim(device, block);
        if (out == NO_BLOCK) return; /* a block always fits */
        evict(s, device, out);
    }
}

/* ---- what brings pages ---- */

static bool may_come(const struct page *p, int place, uint32_t owner) {
    return p->owner == owner && !(p->resident & bit_of(place)) && (p->preferred == NOWHERE || p->preferred == place);
}

/* Brings the pages first .. end - 1 of one block that are not at `place`, and may come, to it; copy: those that are
 * read mostly stay where they were too. */
static void bring(struct service *s, int place, uint64_t first, uint64_t end, bool copy, uint64_t always,
                  uint32_t reason) {
    uint32_t owner = managed.pages[first].owner;
    uint64_t wanted = 0;
    for (uint64_t p = first; p < end; p++) wanted += p == always || may_come(&managed.pages[p], place, owner);
    make_space(s, place, (uint32_t)(first / BLOCK_PAGES), wanted);
    uint64_t run = 0;
    int from = NOWHERE;
    for (uint64_t p = first; p <= end; p++) {
        struct page *page = &managed.pages[p];
        bool comes = p < end && (p == always || may_come(page, place, owner));
        int source = comes && page->resident ? any_place(page->resident) : NOWHERE;
        if (source != from) {
            if (from != NOWHERE) migrated(s, p - run, run, from, place, reason);
            run = 0;
            from = source;
        }
        run += source != NOWHERE;
        if (!comes) continue;
        arrives(place, p);
        if (!copy || !page->read_mostly) keep_only(place, p);
    }
}

/* A fault of `place` on a page: brings it and its dense surroundings. */
static void fetch(struct service *s, int place, uint64_t page, bool write) {
    uint32_t owner = managed.pages[page].owner;
    uint64_t first = page, end = page + 1;
    for (uint64_t size = 2; size <= BLOCK_PAGES; size *= 2) {
        uint64_t low = page / size * size, pages = 0, resident = 0;
        for (uint64_t p = low; p < low + size && p < managed.end; p++) {
            if (managed.pages[p].owner != owner) continue;
            pages++;
            resident += p == page || managed.pages[p].resident & bit_of(place);
        }
        if (resident * 100 <= pages * DENSE_PERCENT) continue;
        first = low;
        end = low + size < managed.end ? low + size : managed.end;
        while (managed.pages[first].owner != owner) first++;
    }
    bring(s, place, first, end, !write, page, RA_MIGRATED_FAULT);
    if (write) keep_only(place, page);
}

/* A launch accesses the page where it is. */
static void access_remotely(struct service *s, int device, uint64_t page, bool write) {
    struct page *p = &managed.pages[page];
    if (!((p->mapped | p->accessed) & bit_of(device))) fault(s, page, device, write);
    p->mapped |= bit_of(device);
    if (!p->resident) {
        make_space(s, p->preferred, (uint32_t)(page / BLOCK_PAGES), 1);
        arrives(p->preferred, page);
    }
    if (write) keep_only(any_place(p->resident), page);
    s->clock += PAGE / REMOTE_PER_NS;
}

static void serve_device(struct service *s, int device, uint64_t page, bool write) {
    struct page *p = &managed.pages[page];
    if (p->resident & bit_of(device)) {
        if (write && p->resident != bit_of(device)) {
            fault(s, page, device, true);
            keep_only(device, page);
        }
    } else if (p->preferred != NOWHERE && p->preferred != device && (!p->resident || p->resident & bit_of(p->preferred))) {
        access_remotely(s, device, page, write);
    } else if (p->resident && p->accessed & bit_of(device)) {
        access_remotely(s, device, page, write);
    } else {
        fault(s, page, device, write);
        fetch(s, device, page, write);
    }
    used_now(device, (uint32_t)(page / BLOCK_PAGES));
}

static void serve_host(struct service *s, uint64_t page, bool write) {
    struct page *p = &managed.pages[page];
    if (!p->resident) { /* the system's own fault */
        arrives(RA_HOST, page);
    } else if (!(p->resident & bit_of(RA_HOST))) {
        fault(s, page, RA_HOST, write);
        fetch(s, RA_HOST, page, write);
    } else if (write && p->resident != bit_of(RA_HOST)) {
        fault(s, page, RA_HOST, true);
        keep_only(RA_HOST, page);
    }
}

/* ---- services ---- */

static struct service begin(const struct ra_context_s *context, uint64_t stream, uint64_t launch) {
    return (struct service){.recorded = ra_tools_want(RA_DOMAIN_UVM),
                            .clock = ra_now(),
                            .common = {.size = sizeof(ra_uvm_activity_data),
                                       .device = context->device,
                                       .context = (uintptr_t)context,
                                       .stream = stream,
                                       .launch = launch}};
}

/* Waits until what was served is done, and tells the tools. */
static void finish(struct service *s) {
    struct timespec until = {(time_t)(s->clock / 1000000000u), (long)(s->clock % 1000000000u)};
    if (s->clock > ra_now())
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) continue;
    for (size_t i = 0; i < s->count; i++)
        if (ra_tools_want(RA_DOMAIN_UVM)) ra_tools_call(RA_DOMAIN_UVM, s->records[i].id, &s->records[i]);
    if (s->lost) fprintf(stderr, "refacc: out of memory: %zu faults and migrations are not reported to tools\n", s->lost);
    free(s->records);
}

/* ---- what a launch touches: bits of pages read, then of pages written ---- */

void ra_managed_begin(struct ra_launch *launch) {
    pthread_mutex_lock(&managed.mutex);
    uint64_t pages = managed.live ? managed.end : 0;
    pthread_mutex_unlock(&managed.mutex);
    launch->managed_words = (pages + 63) / 64;
    launch->touched = pages ? calloc(2 * launch->managed_words, sizeof *launch->touched) : NULL;
    if (pages && !launch->touched) launch->fault = RA_OUT_OF_MEMORY;
}

void ra_warp_touch(const ra_warp *w, uint32_t mask, const uint64_t address[RA_LANES], uint32_t bytes, uint32_t flags) {
    uint64_t before = UINT64_MAX, *bits = w->touched + (flags & RA_ACCESS_WRITE ? w->managed_words : 0);
    for (; mask; mask &= mask - 1) {
        uint64_t offset = address[__builtin_ctz(mask)] - w->window;
        for (uint64_t p = offset >> RA_PAGE_SHIFT; p <= (offset + bytes - 1) >> RA_PAGE_SHIFT; p++) {
            if (p == before || p / 64 >= w->managed_words) continue;
            before = p;
            uint64_t bit = UINT64_C(1) << p % 64;
            if (!(__atomic_load_n(&bits[p / 64], __ATOMIC_RELAXED) & bit))
                __atomic_fetch_or(&bits[p / 64], bit, __ATOMIC_RELAXED);
        }
    }
}

void ra_managed_end(struct ra_launch *launch) {
    if (!launch->touched) return;
    struct service s = begin(launch->context, launch->data.stream, launch->data.launch);
    pthread_mutex_lock(&managed.mutex);
    for (uint64_t word = 0; word < launch->managed_words; word++) {
        uint64_t written = launch->touched[launch->managed_words + word];
        for (uint64_t left = launch->touched[word] | written; left; left &= left - 1) {
            uint64_t page = word * 64 + (uint64_t)__builtin_ctzll(left);
            if (page < managed.end && managed.pages[page].owner)
                serve_device(&s, launch->data.device, page, written >> page % 64 & 1);
        }
    }
    pthread_mutex_unlock(&managed.mutex);
    free(launch->touched);
    launch->touched = NULL;
    finish(&s);
}

/* ---- other accesses, prefetches, advice ---- */

void ra_managed_written(uint64_t address, uint64_t bytes, const struct ra_context_s *context, uint64_t stream) {
    struct service s = begin(context, stream, 0);
    pthread_mutex_lock(&managed.mutex);
    uint64_t end = page_of(address + bytes - 1) + 1;
    for (uint64_t p = page_of(address); p < end && p < managed.end; p++) {
        struct page *page = &managed.pages[p];
        if (!page->owner) continue;
        if (!page->resident) {
            make_space(&s, context->device, (uint32_t)(p / BLOCK_PAGES), 1);
            arrives(context->device, p);
        }
        keep_only(page->resident & bit_of(context->device) ? context->device : any_place(page->resident), p);
    }
    pthread_mutex_unlock(&managed.mutex);
    finish(&s);
}

void ra_managed_host(const struct ra_context_s *context, uint64_t address, uint64_t bytes, bool write) {
    struct service s = begin(context, 0, 0);
    pthread_mutex_lock(&managed.mutex);
    for (uint64_t p = page_of(address); p <= page_of(address + bytes - 1); p++) serve_host(&s, p, write);
    pthread_mutex_unlock(&managed.mutex);
    finish(&s);
}

void ra_managed_prefetch(const struct ra_context_s *context, uint64_t stream, uint64_t address, uint64_t bytes,
                         int place) {
    struct service s = begin(context, stream, 0);
    pthread_mutex_lock(&managed.mutex);
    uint64_t end = page_of(address + bytes - 1) + 1;
    for (uint64_t p = page_of(address), next; p < end && managed.pages[p].owner; p = next) {
        next = (p / BLOCK_PAGES + 1) * BLOCK_PAGES < end ? (p / BLOCK_PAGES + 1) * BLOCK_PAGES : end;
        bring(&s, place, p, next, true, UINT64_MAX, RA_MIGRATED_PREFETCH);
        if (place != RA_HOST) used_now(place, (uint32_t)(p / BLOCK_PAGES));
    }
    pthread_mutex_unlock(&managed.mutex);
    finish(&s);
}

void ra_managed_advise(uint64_t address, uint64_t bytes, ra_advice advice, int place) {
    pthread_mutex_lock(&managed.mutex);
    for (uint64_t p = page_of(address); p <= page_of(address + bytes - 1); p++) {
        struct page *page = &managed.pages[p];
        switch (advice) {
        case RA_ADVICE_READ_MOSTLY: page->read_mostly = 1; break;
        case RA_ADVICE_UNSET_READ_MOSTLY: page->read_mostly = 0; break;
        case RA_ADVICE_PREFERRED_LOCATION: page->preferred = (int8_t)place; break;
        case RA_ADVICE_UNSET_PREFERRED_LOCATION: page->preferred = NOWHERE; break;
        case RA_ADVICE_ACCESSED_BY: page->accessed |= bit_of(place); break;
        case RA_ADVICE_UNSET_ACCESSED_BY: page->accessed &= (uint16_t)~bit_of(place); break;
        }
    }
    pthread_mutex_unlock(&managed.mutex);
}

/* ---- life ---- */

static bool tables_make(void) {
    if (managed.pages) return true;
    uint64_t count = ra_settings.memory >> RA_PAGE_SHIFT, blocks = count / BLOCK_PAGES + 1;
    bool made = true;
    for (int d = 0; d < ra_settings.devices; d++) {
        managed.links[d] = calloc(blocks, sizeof *managed.links[d]);
        managed.newest[d] = managed.oldest[d] = NO_BLOCK;
        made = made && managed.links[d];
    }
    managed.pages = made ? calloc(count + 1, sizeof *managed.pages) : NULL; /* bring() looks one further */
    managed.count = count;
    if (!managed.pages) ra_managed_clear();
    return managed.pages != NULL;
}

int ra_managed_born(uint64_t address, uint64_t bytes) {
    pthread_mutex_lock(&managed.mutex);
    bool made = tables_make();
    if (made) {
        uint64_t end = page_of(address + bytes - 1) + 1;
        managed.owners++;
        managed.live++;
        for (uint64_t p = page_of(address); p < end; p++)
            managed.pages[p] = (struct page){.preferred = NOWHERE, .owner = managed.owners};
        if (managed.end < end) managed.end = end;
    }
    pthread_mutex_unlock(&managed.mutex);
    return made ? RA_OK : RA_OUT_OF_MEMORY;
}

void ra_managed_dead(uint64_t address, uint64_t bytes) {
    pthread_mutex_lock(&managed.mutex);
    for (uint64_t p = page_of(address); managed.pages && p <= page_of(address + bytes - 1); p++) {
        uint16_t resident = managed.pages[p].resident;
        for (; resident; resident &= (uint16_t)(resident - 1)) leaves(any_place(resident), p);
        managed.pages[p].owner = 0;
    }
    if (managed.live && !--managed.live) managed.end = 0;
    pthread_mutex_unlock(&managed.mutex);
}

void ra_managed_clear(void) {
    for (int d = 0; d < RA_MAX_DEVICES; d++) {
        free(managed.links[d]);
        managed.links[d] = NULL;
        managed.used[d] = 0;
    }
    free(managed.pages);
    managed.pages = NULL;
    managed.count = managed.end = managed.live = 0;
    managed.owners = 0;
}

/* A worker of the parent may have held the lock. */
void ra_managed_forget(void) {
    pthread_mutex_init(&managed.mutex, NULL);
    managed.pages = NULL;
    memset(managed.links, 0, sizeof managed.links);
    memset(managed.used, 0, sizeof managed.used);
    managed.count = managed.end = managed.live = 0;
    managed.owners = 0;
}
