/* Live memory by address, and allocations of the runtimes.
 *
 * A free gives an address only, so allocations are kept.  Allocations of HIP calls are recorded by the
 * calls (hip.c); the SDK also reports the HSA allocations beneath, which are the same memory, or the
 * runtime's own, or, outside of any HIP call, those of a program that uses HSA.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "source.h"

static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;
static pasta_amd_live **table; /* sorted by address */
static size_t count, room;
static pasta_amd_live *spare; /* linked by their addresses */

static size_t index_of(uint64_t address) { /* of the first that does not begin below */
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (table[middle]->address < address) low = middle + 1;
        else high = middle;
    }
    return low;
}

static bool begins(size_t index, uint64_t address) { return index < count && table[index]->address == address; }

static void remember(const pasta_amd_live *memory) { /* changing held */
    size_t index = index_of(memory->address);
    if (begins(index, memory->address)) { /* its free was missed */
        *table[index] = *memory;
        return;
    }
    if (count == room) {
        size_t wanted = room ? 2 * room : 256;
        pasta_amd_live **grown = realloc(table, wanted * sizeof *table);
        if (!grown) return; /* out of memory: its free will have no size */
        table = grown;
        room = wanted;
    }
    pasta_amd_live *l = spare;
    if (l) spare = (pasta_amd_live *)(uintptr_t)l->address;
    else l = malloc(sizeof *l);
    if (!l) return;
    *l = *memory;
    memmove(&table[index + 1], &table[index], (count++ - index) * sizeof *table);
    table[index] = l;
}

static void forget(size_t index) { /* changing held */
    pasta_amd_live *l = table[index];
    l->address = (uintptr_t)spare;
    spare = l;
    memmove(&table[index], &table[index + 1], (--count - index) * sizeof *table);
}

/* ---- records ---- */

static pasta_memory *describe(pasta_memory *e, const pasta_amd_live *memory, uint8_t flags) {
    if (!e) return NULL;
    pasta_header_of(e)->flags = flags;
    e->address = memory->address;
    e->bytes = memory->bytes;
    e->memory = memory->memory;
    return e;
}

void pasta_amd_allocated(const pasta_amd_live *memory, uint64_t stream, uint8_t flags, uint32_t vendor_flags) {
    pasta_amd_place at = pasta_amd_place_on(memory->device);
    pthread_mutex_lock(&changing);
    remember(memory);
    pthread_mutex_unlock(&changing);
    pasta_memory *e = describe(PASTA_BEGIN_AS(memory_alloc, memory, memory->device, at.context, stream), memory,
                               memory->flags | flags);
    if (!e) return;
    e->vendor_flags = vendor_flags;
    pasta_publish(e);
}

static void record_free(const pasta_amd_live *memory, uint64_t stream, uint8_t flags) {
    pasta_amd_place at = pasta_amd_place_on(memory->device);
    pasta_memory *e =
        describe(PASTA_BEGIN_AS(memory_free, memory, memory->device, at.context, stream), memory, flags);
    if (e) pasta_publish(e);
}

bool pasta_amd_freed(uint64_t address, uint64_t stream, uint8_t flags, pasta_amd_live *was) {
    pthread_mutex_lock(&changing);
    size_t index = index_of(address);
    bool known = begins(index, address);
    if (known) {
        *was = *table[index];
        forget(index);
    }
    pthread_mutex_unlock(&changing);
    if (known) record_free(was, stream, was->flags | flags);
    return known;
}

static void end_where(bool (*ends)(const pasta_amd_live *, uint64_t, uint64_t), uint64_t first, uint64_t second) {
    for (;;) { /* not recorded under the lock: that may be slow where the ring grows */
        pasta_amd_live ended;
        size_t index = 0;
        pthread_mutex_lock(&changing);
        while (index < count && !ends(table[index], first, second)) index++;
        bool found = index < count;
        if (found) {
            ended = *table[index];
            forget(index);
        }
        pthread_mutex_unlock(&changing);
        if (!found) return;
        record_free(&ended, PASTA_NO_STREAM, ended.flags);
    }
}

static bool is_within(const pasta_amd_live *l, uint64_t address, uint64_t bytes) {
    return l->memory != PASTA_MEMORY_array && l->address - address < bytes;
}

static bool is_on(const pasta_amd_live *l, uint64_t device, uint64_t unused) {
    (void)unused;
    return l->device == (int16_t)device && !(l->flags & PASTA_FLAG_INTERNAL) && !pasta_amd_is_host(l);
}

void pasta_amd_freed_within(uint64_t address, uint64_t bytes) { end_where(is_within, address, bytes); }
void pasta_amd_freed_on(int16_t device) { end_where(is_on, (uint64_t)device, 0); }

bool pasta_amd_is_host(const pasta_amd_live *memory) { return memory->memory == PASTA_MEMORY_pinned; }

bool pasta_amd_find(uint64_t address, pasta_amd_live *found) {
    pthread_mutex_lock(&changing);
    size_t index = index_of(address);
    bool exact = begins(index, address);
    if (!exact && index) index--;
    bool holds = exact;
    /* an array has a handle, in which nothing else begins */
    if (!exact && index < count && table[index]->memory != PASTA_MEMORY_array)
        holds = address - table[index]->address < table[index]->bytes; /* also false below it */
    if (holds) *found = *table[index];
    pthread_mutex_unlock(&changing);
    return holds;
}

/* ---- HSA allocations ---- */

static void on_hsa_allocated(const pasta_amd_record *r, const pasta_amd_operation *operation) {
    (void)operation;
    const pasta_amd_allocation *a = r->payload;
    if (r->phase != PASTA_AMD_EXIT || !PASTA_AMD_HAS(a, allocated) || !a->address) return;
    pasta_amd_within within = pasta_amd_call_of(r);
    pasta_amd_place at = pasta_amd_place_of(a->agent);
    if (within.category == PASTA_AMD_ALLOCATES) {
        pasta_amd_call_allocates_on(at);
        return;
    }
    /* memory of no GPU is host memory that GPUs can access */
    pasta_amd_live memory = {.address = a->address, .bytes = a->allocated, .device = at.device,
                             .memory = at.device == PASTA_NO_DEVICE ? PASTA_MEMORY_pinned : PASTA_MEMORY_device,
                             .flags = within.known ? PASTA_FLAG_INTERNAL : 0};
    pasta_amd_allocated(&memory, PASTA_NO_STREAM, 0, PASTA_ABSENT_U32);
}

/* Frees of a HIP call were recorded at its begin. */
static void on_hsa_freed(const pasta_amd_record *r, const pasta_amd_operation *operation) {
    (void)operation;
    const pasta_amd_allocation *a = r->payload;
    pasta_amd_live was;
    if (r->phase == PASTA_AMD_ENTER && PASTA_AMD_HAS(a, address) && a->address)
        pasta_amd_freed(a->address, PASTA_NO_STREAM, 0, &was);
}

static const pasta_amd_operation allocations[] = {
    {"MEMORY_ALLOCATION_ALLOCATE", on_hsa_allocated},
    {"MEMORY_ALLOCATION_FREE", on_hsa_freed},
};
const pasta_amd_table pasta_amd_allocations = PASTA_AMD_TABLE(allocations);

/* ---- scratch: private memory of work-items, one area for a queue; it has no address ---- */

#define ALTERNATE (UINT64_C(1) << 48) /* added to the queue's id for its second area */
static pasta_amd_map scratch;         /* bytes, by queue and area */

static void on_scratch(const pasta_amd_record *r, const pasta_amd_operation *operation) {
    const pasta_amd_scratch *s = r->payload;
    if (r->phase != PASTA_AMD_EXIT || !PASTA_AMD_HAS(s, flags)) return;
    bool allocates = strstr(operation->name, "ALLOC") != NULL;
    uint64_t area = s->flags & PASTA_AMD_SCRATCH_ALTERNATE ? ALTERNATE : 0, key = s->queue + area, bytes;
    pasta_amd_live memory = {.address = key, .memory = PASTA_MEMORY_scratch, .flags = PASTA_FLAG_INTERNAL,
                             .device = pasta_amd_place_of(s->agent).device};
    if (pasta_amd_take(&scratch, key, &bytes)) { /* a larger one replaces it */
        memory.bytes = bytes;
        record_free(&memory, PASTA_NO_STREAM, memory.flags);
    }
    if (!allocates || !PASTA_AMD_HAS(s, allocated) || !s->allocated) return;
    memory.bytes = s->allocated;
    pasta_amd_put(&scratch, key, s->allocated);
    pasta_amd_place at = pasta_amd_place_on(memory.device);
    pasta_memory *e = describe(PASTA_BEGIN_AS(memory_alloc, memory, memory.device, at.context, PASTA_NO_STREAM),
                               &memory, memory.flags);
    if (!e) return;
    e->vendor_flags = s->flags;
    pasta_publish(e);
}

static const pasta_amd_operation scratches[] = {
    {"SCRATCH_MEMORY_ALLOC", on_scratch},
    {"SCRATCH_MEMORY_FREE", on_scratch},
    {"SCRATCH_MEMORY_ASYNC_RECLAIM", on_scratch},
};
const pasta_amd_table pasta_amd_scratches = PASTA_AMD_TABLE(scratches);
