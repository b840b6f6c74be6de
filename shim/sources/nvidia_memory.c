/* Live allocations by address, so that each is recorded once.
 *
 * The driver announces an allocation, and its end, once for every context that sees it: those of
 * its device, and those of others that have peer access.  Contexts come to see memory when they
 * are created or get access, and announce its end when they are destroyed; what is lost because
 * its last context was destroyed is not announced at all.  13.5 on 580.159: measured.
 *
 * The callbacks of a forked child are ignored, so a child never looks at its copy of the table.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "nvidia_source.h"

enum { WORD = 64, WORDS = PASTA_NV_CONTEXTS / WORD };

typedef struct live {
    pasta_nv_allocation is;
    uint64_t seen_by[WORDS]; /* a bit for each slot of a context */
} live;

static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;
static live **table; /* sorted by address */
static size_t count, room;
static uint64_t version;
static uint32_t numbers;

/* What is announced without a context is seen by none, and lives until its end is announced. */
static bool sees(const live *l, pasta_nv_place at) {
    return at.context != PASTA_NO_CONTEXT && l->seen_by[at.slot / WORD] >> at.slot % WORD & 1;
}

static void see(live *l, pasta_nv_place at) {
    if (at.context != PASTA_NO_CONTEXT) l->seen_by[at.slot / WORD] |= UINT64_C(1) << at.slot % WORD;
}

static void unsee(live *l, pasta_nv_place at) {
    if (at.context != PASTA_NO_CONTEXT) l->seen_by[at.slot / WORD] &= ~(UINT64_C(1) << at.slot % WORD);
}

static bool seen(const live *l) {
    for (int i = 0; i < WORDS; i++)
        if (l->seen_by[i]) return true;
    return false;
}

/* Index of the first allocation that does not begin below the address. */
static size_t index_of(uint64_t address) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (table[middle]->is.address < address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static live *at_index(size_t index, uint64_t address) {
    return index < count && table[index]->is.address == address ? table[index] : NULL;
}

/* NULL without memory: then every announcement is recorded. */
static live *insert(size_t index) {
    if (count == room) {
        size_t wanted = room ? 2 * room : 256;
        live **grown = realloc(table, wanted * sizeof *table);
        if (!grown) return NULL;
        table = grown;
        room = wanted;
    }
    live *l = malloc(sizeof *l);
    if (!l) return NULL;
    memmove(&table[index + 1], &table[index], (count - index) * sizeof *table);
    table[index] = l;
    count++;
    return l;
}

static void drop(size_t index) {
    __atomic_fetch_add(&version, 1, __ATOMIC_RELEASE);
    free(table[index]);
    memmove(&table[index], &table[index + 1], (--count - index) * sizeof *table);
}

bool pasta_nv_allocated(pasta_nv_place at, pasta_nv_allocation *announced) {
    pthread_mutex_lock(&changing);
    size_t index = index_of(announced->address);
    live *l = at_index(index, announced->address);
    /* announced twice by one context: its end was missed */
    bool known = l && l->is.bytes == announced->bytes && !sees(l, at);
    if (known && l->is.peer && !announced->peer) {
        l->is.device = announced->device;
        l->is.peer = false;
    }
    if (!known) {
        announced->number = ++numbers;
        if (!l) l = insert(index);
        if (l) *l = (live){.is = *announced};
        __atomic_fetch_add(&version, 1, __ATOMIC_RELEASE);
    }
    if (l) see(l, at);
    pthread_mutex_unlock(&changing);
    return !known;
}

bool pasta_nv_freed(pasta_nv_place at, pasta_nv_allocation *announced) {
    bool gone = true;
    pthread_mutex_lock(&changing);
    size_t index = index_of(announced->address);
    live *l = at_index(index, announced->address);
    if (l) {
        /* freed by a context that did not announce it, as with a stream of another one: that is all */
        bool view = sees(l, at);
        unsee(l, at);
        gone = !view || !seen(l);
    }
    if (l && gone) {
        *announced = l->is;
        drop(index);
    }
    pthread_mutex_unlock(&changing);
    return gone;
}

static void record_free(const pasta_nv_allocation *a, uint16_t context) {
    pasta_memory *e = PASTA_BEGIN_AS(memory_free, memory, a->device, context, PASTA_NO_STREAM);
    if (!e) return;
    pasta_header_of(e)->flags = a->flags;
    pasta_header_of(e)->correlation = a->number;
    e->address = a->address;
    e->bytes = a->bytes;
    e->memory = a->memory;
    pasta_publish(e);
}

void pasta_nv_free_all_of(pasta_nv_place destroyed) {
    size_t kept = 0;
    pthread_mutex_lock(&changing);
    for (size_t i = 0; i < count; i++) {
        live *l = table[i];
        bool view = sees(l, destroyed);
        unsee(l, destroyed);
        if (!view || seen(l)) {
            table[kept++] = l;
        } else {
            record_free(&l->is, l->is.device == destroyed.device ? destroyed.context : PASTA_NO_CONTEXT);
            free(l);
        }
    }
    if (kept != count) __atomic_fetch_add(&version, 1, __ATOMIC_RELEASE);
    count = kept;
    pthread_mutex_unlock(&changing);
}

int16_t pasta_nv_owner_of(uint64_t address) {
    int16_t device = PASTA_NO_DEVICE;
    pthread_mutex_lock(&changing);
    size_t index = index_of(address);
    if (!at_index(index, address) && index) index--;
    if (index < count) {
        const pasta_nv_allocation *a = &table[index]->is;
        bool holds = address - a->address < a->bytes; /* also false below it */
        if (holds && a->memory != PASTA_MEMORY_managed && a->memory != PASTA_MEMORY_pinned) device = a->device;
    }
    pthread_mutex_unlock(&changing);
    return device;
}

uint64_t pasta_nv_objects_version(void) { return __atomic_load_n(&version, __ATOMIC_ACQUIRE); }

bool pasta_nv_objects(pasta_nv_allocation **objects, size_t *number, uint64_t *as_of) {
    pthread_mutex_lock(&changing);
    *as_of = version;
    *number = 0;
    *objects = malloc((count + 1) * sizeof **objects);
    for (size_t i = 0; *objects && i < count; i++)
        if (table[i]->is.bytes && table[i]->is.memory != PASTA_MEMORY_array) (*objects)[(*number)++] = table[i]->is;
    pthread_mutex_unlock(&changing);
    return *objects != NULL;
}
