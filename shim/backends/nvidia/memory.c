/* Live allocations by address, so that each is recorded once.
 *
 * The driver reports an allocation, and its free, once for each context that sees it: those of its
 * device, and those of others that have peer access.  A context that is created or gets access reports
 * existing memory; one that is destroyed reports its free.  Memory that ends with its last context is not
 * reported at all.  13.5 on 580.159: measured.
 *
 * The callbacks of a forked child are ignored, so a child never looks at its copy of the table.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "source.h"

enum { WORD = 64, WORDS = PASTA_NV_CONTEXTS / WORD, MAX_PIECES = 1 << 16 };

/* From an address where a tensor began or ended to the next such address, or the allocation's end. */
typedef struct piece {
    uint64_t address;
    uint32_t number; /* as an object's; 0: changed, and about to get a new one */
} piece;

typedef struct live {
    pasta_nv_allocation allocation;
    uint64_t seen_by[WORDS]; /* a bit for each slot of a context */
    piece *pieces;           /* by address; memory before the first has the allocation's number */
    uint32_t piece_count, piece_room;
} live;

static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;
static live **table; /* sorted by address */
static size_t count, room;
static uint64_t version;
static uint64_t layout; /* changes where allocations begin and end */
static uint32_t numbers;
static size_t all_pieces;
static bool full; /* MAX_PIECES is reached */
static struct {
    pasta_nv_piece *list; /* pieces that were not taken yet */
    size_t count, room;
} news;

/* Memory reported without a context is seen by none, and lives until its free is reported. */
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
        if (table[middle]->allocation.address < address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static live *at_index(size_t index, uint64_t address) {
    return index < count && table[index]->allocation.address == address ? table[index] : NULL;
}

/* NULL if out of memory: then every report is recorded. */
static live *insert(size_t index) {
    if (count == room) {
        size_t wanted = room ? 2 * room : 256;
        live **grown = realloc(table, wanted * sizeof *table);
        if (!grown) return NULL;
        table = grown;
        room = wanted;
    }
    live *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    memmove(&table[index + 1], &table[index], (count - index) * sizeof *table);
    table[index] = l;
    count++;
    return l;
}

static void release(live *l) {
    all_pieces -= l->piece_count;
    free(l->pieces);
    free(l);
}

static void changed_layout(void) {
    __atomic_fetch_add(&version, 1, __ATOMIC_RELEASE);
    __atomic_fetch_add(&layout, 1, __ATOMIC_RELEASE);
}

static void drop(size_t index) {
    changed_layout();
    release(table[index]);
    memmove(&table[index], &table[index + 1], (--count - index) * sizeof *table);
}

bool pasta_nv_allocated(pasta_nv_place at, pasta_nv_allocation *reported) {
    pthread_mutex_lock(&changing);
    size_t index = index_of(reported->address);
    live *l = at_index(index, reported->address);
    /* reported twice by one context: its free was missed */
    bool known = l && l->allocation.bytes == reported->bytes && !sees(l, at);
    if (known && l->allocation.peer && !reported->peer) {
        l->allocation.device = reported->device;
        l->allocation.peer = false;
    }
    if (!known) {
        reported->number = ++numbers;
        if (!l) l = insert(index);
        if (l) {
            all_pieces -= l->piece_count; /* its free was missed */
            free(l->pieces);
            *l = (live){.allocation = *reported};
        }
        changed_layout();
    }
    if (l) see(l, at);
    pthread_mutex_unlock(&changing);
    return !known;
}

bool pasta_nv_freed(pasta_nv_place at, pasta_nv_allocation *reported) {
    bool gone = true;
    pthread_mutex_lock(&changing);
    size_t index = index_of(reported->address);
    live *l = at_index(index, reported->address);
    if (l) {
        /* freed by a context that did not report it, as with a stream of another one: that is the end */
        bool view = sees(l, at);
        unsee(l, at);
        gone = !view || !seen(l);
    }
    if (l && gone) {
        *reported = l->allocation;
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
            record_free(&l->allocation, l->allocation.device == destroyed.device ? destroyed.context : PASTA_NO_CONTEXT);
            release(l);
        }
    }
    if (kept != count) changed_layout();
    count = kept;
    pthread_mutex_unlock(&changing);
}

bool pasta_nv_allocation_at(uint64_t address, pasta_nv_allocation *found) {
    bool holds = false;
    pthread_mutex_lock(&changing);
    size_t index = index_of(address);
    if (!at_index(index, address) && index) index--;
    if (index < count) {
        *found = table[index]->allocation;
        holds = address - found->address < found->bytes; /* also false below it */
    }
    pthread_mutex_unlock(&changing);
    return holds;
}

bool pasta_nv_allocation_in(uint64_t address, uint64_t bytes, pasta_nv_allocation *found) {
    pthread_mutex_lock(&changing);
    size_t index = index_of(address);
    bool inside = index < count && table[index]->allocation.address - address < bytes;
    if (inside) *found = table[index]->allocation;
    pthread_mutex_unlock(&changing);
    return inside;
}

int16_t pasta_nv_owner_of(uint64_t address) {
    pasta_nv_allocation a;
    bool on_device = pasta_nv_allocation_at(address, &a) && a.memory != PASTA_MEMORY_managed && a.memory != PASTA_MEMORY_pinned;
    return on_device ? a.device : PASTA_NO_DEVICE;
}

uint64_t pasta_nv_objects_version(void) { return __atomic_load_n(&version, __ATOMIC_ACQUIRE); }

/* ---- tensors ----
 *
 * A framework's allocator reuses parts of allocations before nearly every launch; the tables in which
 * patches look addresses up would never be current.  So they have pieces, which begin wherever a tensor
 * ever began or ended: a repetitive program soon creates no new ones.  The tensor that a piece
 * belonged to at a launch is found later, off the critical path. */

/* Index of the first piece that does not begin below the address. */
static uint32_t piece_index(const live *l, uint64_t address) {
    uint32_t low = 0, high = l->piece_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (l->pieces[middle].address < address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool cut(live *l, uint64_t address) {
    uint32_t at = piece_index(l, address);
    if (at < l->piece_count && l->pieces[at].address == address) return false;
    if (all_pieces == MAX_PIECES) {
        full = true;
        return false;
    }
    if (l->piece_count == l->piece_room) {
        uint32_t wanted = 2 * l->piece_room + 8;
        piece *grown = realloc(l->pieces, wanted * sizeof *grown);
        if (!grown) return false;
        l->pieces = grown;
        l->piece_room = wanted;
    }
    memmove(&l->pieces[at + 1], &l->pieces[at], (l->piece_count++ - at) * sizeof *l->pieces);
    l->pieces[at] = (piece){address, 0};
    if (at) l->pieces[at - 1].number = 0;
    all_pieces++;
    return true;
}

static uint64_t end_of(const live *l, uint32_t at) {
    return at + 1 < l->piece_count ? l->pieces[at + 1].address : l->allocation.address + l->allocation.bytes;
}

/* Numbers the pieces that changed with the cuts at `first` and `last`. */
static void number_pieces(live *l, uint64_t first, uint64_t last) {
    uint32_t from = piece_index(l, first), to = piece_index(l, last);
    for (uint32_t at = from ? from - 1 : 0; at <= to && at < l->piece_count; at++) {
        piece *p = &l->pieces[at];
        if (p->number) continue;
        p->number = ++numbers;
        if (news.count == news.room) {
            size_t wanted = 2 * news.room + 64;
            pasta_nv_piece *grown = realloc(news.list, wanted * sizeof *grown);
            if (!grown) continue; /* its counts belong to no object */
            news.list = grown;
            news.room = wanted;
        }
        news.list[news.count++] =
            (pasta_nv_piece){p->number, p->address, end_of(l, at) - p->address, l->allocation.number};
    }
}

/* Tensors whose pieces there are, by a hash of them and the layout. A program allocates most of its tensors again at each
 * step, and that must not cost a search with the lock held. Of equal hashes, of 64 bits, one is taken for the other. */
enum { KNOWN = 1 << 13 };
static uint64_t known[KNOWN];

void pasta_nv_tensor(uint64_t address, uint64_t bytes) {
    uint64_t end = address + bytes, as_of = __atomic_load_n(&layout, __ATOMIC_ACQUIRE);
    uint64_t hash = pasta_mix(pasta_mix(pasta_mix(0, address), bytes), as_of);
    bool first = false, changed = false;
    if (__atomic_load_n(&known[hash % KNOWN], __ATOMIC_RELAXED) == hash) return;
    pthread_mutex_lock(&changing);
    bool was_full = full;
    size_t index = index_of(address);
    if (!at_index(index, address) && index) index--;
    for (; index < count && table[index]->allocation.address < end; index++) { /* several where segments grow */
        live *l = table[index];
        uint64_t last = l->allocation.address + l->allocation.bytes;
        if (last <= address || l->allocation.memory == PASTA_MEMORY_array) continue;
        uint64_t begin = address > l->allocation.address ? address : l->allocation.address;
        bool mine = cut(l, begin);
        if (end < last) mine |= cut(l, end);
        if (mine) number_pieces(l, begin, end);
        changed |= mine;
    }
    first = full && !was_full;
    if (changed) __atomic_fetch_add(&version, 1, __ATOMIC_RELEASE);
    __atomic_store_n(&known[hash % KNOWN], hash, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&changing);
    if (first)
        pasta_say("probes: tensors began at more than %d addresses: accesses to further tensors count for their allocations",
                  MAX_PIECES);
}

size_t pasta_nv_new_pieces(pasta_nv_piece **pieces) {
    pthread_mutex_lock(&changing);
    size_t found = news.count;
    *pieces = news.list;
    news.list = NULL;
    news.count = news.room = 0;
    pthread_mutex_unlock(&changing);
    return found;
}

/* ---- memory that kernels can access ---- */

bool pasta_nv_objects(pasta_nv_allocation **objects, size_t *number, uint64_t *as_of) {
    pthread_mutex_lock(&changing);
    *as_of = version;
    *number = 0;
    pasta_nv_allocation *to = *objects = malloc((count + all_pieces + 1) * sizeof **objects);
    for (size_t i = 0; to && i < count; i++) {
        const live *l = table[i];
        if (!l->allocation.bytes || l->allocation.memory == PASTA_MEMORY_array) continue;
        uint64_t own = l->piece_count ? l->pieces[0].address - l->allocation.address : l->allocation.bytes;
        if (own) {
            *to = l->allocation;
            to++->bytes = own;
        }
        for (uint32_t at = 0; at < l->piece_count; at++) {
            *to = l->allocation;
            to->address = l->pieces[at].address;
            to->bytes = end_of(l, at) - to->address;
            to++->number = l->pieces[at].number;
        }
    }
    if (to) *number = (size_t)(to - *objects);
    pthread_mutex_unlock(&changing);
    return *objects != NULL;
}
