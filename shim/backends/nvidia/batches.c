/* Batches: pieces of device memory in which launches of a stream find slots for their results. */
#include <stdlib.h>
#include <string.h>

#include "probes.h"

enum {
    MARKER_INTERVAL_NS = 50 * 1000 * 1000,
    MIN_ROWS = 16,
    MAX_ROWS = 512, /* also of the objects whose rows need no hash */
    MIN_SPILL = 1024,
    SPILL_SHARE = 16, /* of the memory: the spill of a batch's slots takes at most 1 / SPILL_SHARE */
    TABLE_BYTES = offsetof(pasta_probe_launch, epoch), /* of a descriptor: what a new table changes */
    DESCRIPTORS = PASTA_NV_SLOTS * sizeof(pasta_probe_launch),
    TABLES_SHARE = 64, /* of the memory: batches leave 1 / TABLES_SHARE to tables, without which no node is probed */
    PLANE_PARTS = 4, /* for streams: all have the words of every object */
};

static uint32_t rows_wanted(const pasta_nv_version *v) {
    if (!pasta_nv_the_plan.object_words) return 0;
    uint64_t live = v ? ((const pasta_object_table *)v->image)->count : 0;
    uint32_t rows = MIN_ROWS;
    while (rows < live + live / 4 + 1 && rows < MAX_ROWS) rows *= 2;
    return rows;
}

/* Rows for all objects where there may be more than rows in a slot; fewer where memory is short. */
static uint32_t spill_wanted(const pasta_nv_version *v) {
    if (!v || rows_wanted(v) < MAX_ROWS) return 0;
    uint64_t live = ((const pasta_object_table *)v->image)->count;
    uint64_t most = pasta_nv_the_plan.memory / SPILL_SHARE / PASTA_NV_SLOTS / (pasta_nv_the_plan.object_words * sizeof(uint64_t));
    uint64_t rows = MIN_SPILL;
    while (rows < live + live / 4 + 1 && rows < most) rows *= 2;
    return (uint32_t)(rows < most ? rows : most);
}

static uint32_t plane_words_wanted(const pasta_nv_version *v) { return v ? v->plane_words : 0; }

uint64_t pasta_nv_spill_bytes(const pasta_nv_batch *b) { return b->spill_rows * pasta_nv_the_plan.object_words * sizeof(uint64_t); }

uint64_t pasta_nv_spill_of(const pasta_nv_batch *b, uint32_t slot) {
    return b->slots + PASTA_NV_SLOTS * b->slot_bytes + slot * pasta_nv_spill_bytes(b);
}

uint64_t pasta_nv_words_bytes(void) { return pasta_nv_the_plan.slot_stripe_bytes * pasta_nv_the_plan.slot_stripes; }

static uint64_t cleared_bytes(const pasta_nv_batch *b) {
    return PASTA_NV_SLOTS * (pasta_nv_words_bytes() + b->slot_bytes + pasta_nv_spill_bytes(b));
}

static void lay_out(pasta_nv_batch *b) {
    uint64_t words = b->rows ? (b->rows + 1) * pasta_nv_the_plan.object_words : 0;
    b->keys_bytes = b->rows ? ((b->rows + 1) * sizeof(uint32_t) + 31) / 32 * 32 : 0;
    b->stripe_bytes = (uint32_t)((words * sizeof(uint64_t) + 31) / 32 * 32);
    b->plain_bytes = (pasta_nv_the_plan.plain_words * sizeof(uint64_t) + 31) / 32 * 32;
    b->pairs_bytes = pasta_nv_the_plan.pairs.words ? (pasta_nv_hash_bytes(&pasta_nv_the_plan.pairs) + 31) / 32 * 32 : 0;
    b->slot_bytes = b->keys_bytes + b->plain_bytes + b->pairs_bytes + (uint64_t)b->stripes * b->stripe_bytes;
}

/* The smallest spare batch with room for all of that. Those that are too small are not freed: a kernel that was launched
 * without a callback (from the device) may still read the descriptor of an earlier launch, and freeing may wait for the
 * device. */
static pasta_nv_batch *recycled(pasta_nv_prober *p, const pasta_nv_batch *like) {
    const uint64_t needed = cleared_bytes(like);
    pasta_nv_batch **best = NULL;
    pthread_mutex_lock(&pasta_nv_probes_lock);
    for (pasta_nv_batch **link = &p->spare; *link; link = &(*link)->next)
        if ((*link)->room >= needed && (!best || (*link)->room < (*best)->room)) best = link;
    pasta_nv_batch *b = best ? *best : NULL;
    if (b) *best = b->next;
    pthread_mutex_unlock(&pasta_nv_probes_lock);
    return b;
}

static volatile uint8_t *new_marker(pasta_nv_prober *p) {
    uint32_t number = __atomic_fetch_add(&p->markers_used, 1, __ATOMIC_RELAXED);
    return number < PASTA_NV_MARKERS / 8 && p->markers ? p->markers + 8 * number : NULL;
}

/* A new batch, if enough memory is left; as it gets short, only one with fewer stripes, so that launches that follow find
 * some, too. */
static pasta_nv_batch *allocated(pasta_nv_prober *p, const pasta_nv_batch *like) {
    enum { STRIPES_SHARE = 4 }; /* of the memory that is left: further stripes take at most 1 / STRIPES_SHARE */
    uint64_t room = cleared_bytes(like), further = PASTA_NV_SLOTS * (like->stripes - (uint64_t)1) * like->stripe_bytes;
    if (room < like->room) room = like->room;
    uint64_t bytes = 2 * DESCRIPTORS + room, most = pasta_nv_the_plan.memory - pasta_nv_the_plan.memory / TABLES_SHARE;
    uint64_t used = __atomic_load_n(&p->memory, __ATOMIC_RELAXED);
    if (used + bytes > most || used + STRIPES_SHARE * further > most) return NULL;
    pasta_nv_batch *b = calloc(1, sizeof *b);
    if (!b) return NULL;
    b->owner = p;
    b->room = room;
    uint64_t memory = pasta_nv_device_memory(p, bytes);
    b->descriptors = (memory + DESCRIPTORS - 1) / DESCRIPTORS * DESCRIPTORS;
    b->words = b->descriptors + DESCRIPTORS;
    b->slots = b->words + PASTA_NV_SLOTS * pasta_nv_words_bytes();
    b->marker = memory ? new_marker(p) : NULL; /* last: markers are not reused */
    if (b->marker) return b;
    free(b);
    return NULL;
}

/* A batch of this shape; its other fields are of an earlier use. */
static pasta_nv_batch *batch_like(pasta_nv_prober *p, const pasta_nv_batch *like) {
    pasta_nv_batch *b = recycled(p, like);
    if (!b) b = allocated(p, like);
    if (!b) return NULL;
    b->rows = like->rows;
    b->rows_wanted = like->rows_wanted;
    b->spill_rows = like->spill_rows;
    b->stripes = like->stripes;
    lay_out(b);
    return b;
}

/* With fewer stripes, which are slower, as memory gets short. */
static pasta_nv_batch *batch_at_most(pasta_nv_prober *p, pasta_nv_batch *like) {
    pasta_nv_batch *b = batch_like(p, like);
    like->room = 0;
    while (!b && like->rows && like->stripes > 1) {
        like->stripes /= 2;
        lay_out(like);
        b = batch_like(p, like);
    }
    return b;
}

/* Room for the rows of any number of objects, once, within the share of a batch: as objects become more, spare batches
 * still fit. */
static uint64_t lasting_room(uint32_t rows) {
    pasta_nv_batch most = {.rows = rows ? MAX_ROWS : 0, .stripes = 1};
    lay_out(&most);
    uint64_t bytes = cleared_bytes(&most), share = pasta_nv_the_plan.memory / 2 / PASTA_PROBE_BATCHES;
    return bytes < share ? bytes : share;
}

static pasta_nv_batch *make_batch(pasta_nv_prober *p, const pasta_nv_version *v) {
    pasta_nv_batch like = {.rows = rows_wanted(v), .spill_rows = spill_wanted(v), .stripes = (uint32_t)pasta_nv_the_plan.stripes};
    like.rows_wanted = like.rows;
    like.room = lasting_room(like.rows);
    lay_out(&like);
    /* the batches of launches in flight must fit into half of the memory */
    const uint64_t launches = PASTA_PROBE_BATCHES * PASTA_NV_SLOTS;
    while (like.stripes > PASTA_PROBE_MIN_STRIPES && (pasta_nv_words_bytes() + like.slot_bytes) * launches > pasta_nv_the_plan.memory / 2) {
        like.stripes /= 2;
        lay_out(&like);
    }
    pasta_nv_batch less = like, *b = batch_at_most(p, &less);
    /* all launches matter more than all objects of some */
    if (!b && like.spill_rows) {
        less = like;
        less.spill_rows = 0;
        b = batch_at_most(p, &less);
    }
    while (!b && less.rows > MIN_ROWS) {
        less.rows /= 2;
        lay_out(&less);
        b = batch_like(p, &less);
    }
    return b;
}

_Static_assert(sizeof(pasta_probe_launch) == 256 && !(PASTA_NV_SLOTS & (PASTA_NV_SLOTS - 1)),
               "patches find the begin of an array by the address of one of its launches");

/* The part of a slot's descriptor that depends on the batch and on a table. */
static pasta_probe_launch describe(const pasta_nv_batch *b, uint32_t slot, const pasta_nv_version *v) {
    pasta_probe_launch l = {.base = PASTA_PROBE_NOWHERE, .stripe_bytes = b->stripe_bytes,
                            .stripe_mask = b->stripes - 1, .hash_mask = b->rows ? b->rows - 1 : 0};
    l.keys = b->slots + slot * b->slot_bytes;
    l.plain = l.keys + b->keys_bytes;
    l.pairs = l.plain + b->plain_bytes;
    l.rows = l.pairs + b->pairs_bytes;
    l.spill = pasta_nv_spill_of(b, slot);
    l.spill_rows = b->spill_rows;
    if (!v) return l;
    const pasta_object_table *table = v->image;
    l.table = v->address;
    l.ranges = table->ranges;
    if (table->count < b->rows || !b->rows) l.stripe_mask |= PASTA_PROBE_DIRECT;
    uint64_t base = table->clusters ? table->cluster[0].base >> PASTA_PROBE_BASE_SHIFT : UINT64_MAX;
    if (base < PASTA_PROBE_NOWHERE) {
        l.base = (uint32_t)base;
        l.shape = table->cluster[0].last_bucket << 8 | table->cluster[0].shift;
    }
    return l;
}

/* Launches in different streams overlap: they mark granules in parts of the planes of their own, if all objects fit into
 * one. A stream keeps its part while it has batches. */
static void take_plane_part(pasta_nv_batch *b, const pasta_nv_version *v) {
    pasta_nv_prober *p = b->owner;
    uint32_t users[PLANE_PARTS] = {0}, part = 0;
    b->plane_part = 0;
    b->plane_words = pasta_nv_table_planes_room() / PLANE_PARTS;
    if (plane_words_wanted(v) > b->plane_words) {
        b->plane_words = pasta_nv_table_planes_room();
        return;
    }
    pthread_mutex_lock(&pasta_nv_probes_lock);
    const pasta_nv_batch *mine = NULL;
    for (const pasta_nv_batch *each = p->batches; each && !mine; each = each->next) {
        if (each->stream == b->stream && each->plane_words == b->plane_words) mine = each;
        users[each->plane_part]++;
    }
    for (uint32_t i = 1; i < PLANE_PARTS; i++)
        if (users[i] < users[part]) part = i;
    b->plane_part = mine ? mine->plane_part : part;
    pthread_mutex_unlock(&pasta_nv_probes_lock);
}

static void place_planes(const pasta_nv_batch *b, uint64_t planes[PASTA_PROBE_PLANES]) {
    for (uint32_t i = 0; i < PASTA_PROBE_PLANES; i++) {
        bool lasting = pasta_nv_the_plan.lasting_planes >> i & 1;
        planes[i] = b->owner->planes[i];
        if (planes[i] && !lasting) planes[i] += b->plane_part * (uint64_t)b->plane_words * sizeof(uint64_t);
    }
}

/* Clears the batch and describes its slots, in stream order. */
static bool open_batch(pasta_nv_batch *b, uint64_t stream, const pasta_nv_version *v) {
    pasta_nv_prober *p = b->owner;
    pasta_probe_launch launches[PASTA_NV_SLOTS];
    b->first_epoch = __atomic_fetch_add(&p->epochs, PASTA_NV_SLOTS, __ATOMIC_RELAXED) + 1;
    uint64_t bin_stripe = pasta_nv_table_bins_room() * pasta_nv_the_plan.bin_words * sizeof(uint64_t);
    b->stream = stream;
    take_plane_part(b, v);
    for (uint32_t i = 0; i < PASTA_NV_SLOTS; i++) {
        launches[i] = describe(b, i, v);
        launches[i].bins = p->bins;
        launches[i].bin_stripe = bin_stripe;
        memcpy(launches[i].hash, p->hashes, sizeof launches[i].hash);
        place_planes(b, launches[i].planes);
        launches[i].trace = p->trace;
        launches[i].epoch = b->first_epoch + i; /* differs between slots; need not be dense */
    }
    b->used = b->begun = b->ended = b->done = b->marked = 0;
    b->closed = b->last = false;
    b->table = v;
    b->as_of = v ? v->as_of : 0;
    b->last_marker = pasta_now();
    *b->marker = 0;
    uint64_t cleared = cleared_bytes(b);
    return (!cleared || PROBED(p, set, b->words, 0, cleared, stream)) &&
           PROBED(p, copy_in, b->descriptors, launches, sizeof launches, stream);
}

static uint32_t way_of(uint64_t stream) { return (uint32_t)(stream * UINT64_C(0x9e3779b97f4a7c15) >> 58) % PASTA_NV_WAYS; }

/* A slot of the stream's open batch; -1: none.  A batch with too few rows, or a part of the planes, for the objects is
 * closed. */
static int take_slot(pasta_nv_prober *p, uint64_t stream, uint64_t ordinal, pasta_nv_version *v,
                     pasta_nv_batch **batch) {
    int slot = -1;
    uint32_t rows = rows_wanted(v), spill = spill_wanted(v), words = plane_words_wanted(v);
    pthread_mutex_lock(&pasta_nv_probes_lock);
    for (pasta_nv_batch *b = p->current[way_of(stream)]; b && slot < 0; b = b->next_current)
        if (b->stream == stream &&
            (b->rows_wanted < rows || (b->spill_rows && b->spill_rows < spill) || b->plane_words < words)) {
            b->closed = true;
        } else if (b->stream == stream && b->used < PASTA_NV_SLOTS && !b->closed) {
            slot = (int)b->used++;
            b->ordinals[slot] = ordinal;
            b->versions[slot] = v;
            b->begun++;
            *batch = b;
        }
    pthread_mutex_unlock(&pasta_nv_probes_lock);
    return slot;
}

static void install(pasta_nv_prober *p, pasta_nv_batch *b) {
    pthread_mutex_lock(&pasta_nv_probes_lock);
    pasta_nv_batch **link = &p->current[way_of(b->stream)];
    while (*link) { /* drop full and closed ones, which remain in the list of all */
        if ((*link)->used == PASTA_NV_SLOTS || (*link)->closed) *link = (*link)->next_current;
        else link = &(*link)->next_current;
    }
    b->next_current = p->current[way_of(b->stream)];
    p->current[way_of(b->stream)] = b;
    b->next = p->batches;
    p->batches = b;
    pthread_mutex_unlock(&pasta_nv_probes_lock);
}

int pasta_nv_batch_slot(pasta_nv_prober *p, uint64_t stream, uint64_t ordinal, pasta_nv_version *v, pasta_nv_batch **batch) {
    int slot = take_slot(p, stream, ordinal, v, batch);
    if (slot >= 0) return slot;
    pasta_nv_batch *b = make_batch(p, v);
    if (!b || !open_batch(b, stream, v)) return -1;
    b->used = b->begun = 1;
    b->ordinals[0] = ordinal;
    b->versions[0] = v;
    install(p, b);
    *batch = b;
    return 0;
}

uint64_t pasta_nv_batch_descriptor(pasta_nv_batch *b, uint32_t slot, const pasta_nv_version *v) {
    uint64_t descriptor = b->descriptors + (uint64_t)slot * sizeof(pasta_probe_launch);
    if (v == b->table && (!v || v->as_of == b->as_of)) return descriptor;
    pasta_probe_launch now = describe(b, slot, v);
    return PROBED(b->owner, copy_in, descriptor, &now, TABLE_BYTES, b->stream) ? descriptor : 0;
}

void pasta_nv_batch_recycle(pasta_nv_batch *batch) {
    pasta_nv_prober *p = batch->owner;
    pthread_mutex_lock(&pasta_nv_probes_lock);
    pasta_nv_batch **link = &p->current[way_of(batch->stream)];
    while (*link && *link != batch) link = &(*link)->next_current;
    if (*link) *link = batch->next_current;
    link = &p->batches;
    while (*link && *link != batch) link = &(*link)->next;
    if (*link) *link = batch->next;
    batch->next = p->spare;
    p->spare = batch;
    pthread_mutex_unlock(&pasta_nv_probes_lock);
}

/* Launches that have begun have ended, or never will end. */
static bool steady(const pasta_nv_batch *b) { return b->begun == b->ended || b->last; }

/* Puts a marker into the stream of the batch: the number of its slots that are complete there.  One thread
 * at a time: a marker must not follow a later one. */
static void mark(pasta_nv_batch *b) {
    for (;;) {
        pthread_mutex_lock(&pasta_nv_probes_lock);
        b->mark_again = b->marking;
        bool due = !b->marking && steady(b) && b->used > b->marked;
        uint32_t used = b->used;
        if (due) {
            b->marking = true;
            b->marked = used;
            b->last_marker = pasta_now();
        }
        pthread_mutex_unlock(&pasta_nv_probes_lock);
        if (!due) return;
        if (!b->owner->broken && PROBED(b->owner, set, (uint64_t)(uintptr_t)b->marker, (int)used, 1, b->stream))
            pasta_nv_readback_wake();
        pthread_mutex_lock(&pasta_nv_probes_lock);
        b->marking = false;
        bool again = b->mark_again;
        pthread_mutex_unlock(&pasta_nv_probes_lock);
        if (!again) return;
    }
}

void pasta_nv_batch_ended(pasta_nv_batch *b, uint32_t launches) {
    pthread_mutex_lock(&pasta_nv_probes_lock);
    b->ended += launches;
    bool due = b->used == PASTA_NV_SLOTS || pasta_now() - b->last_marker > MARKER_INTERVAL_NS;
    pthread_mutex_unlock(&pasta_nv_probes_lock);
    if (due) mark(b);
}

void pasta_nv_batches_mark(pasta_nv_prober *p, bool last, uint64_t stream) {
    enum { BATCH = 64 };
    pasta_nv_batch *batches[BATCH];
    uint32_t count;
    do {
        count = 0;
        pthread_mutex_lock(&pasta_nv_probes_lock);
        for (pasta_nv_batch *b = p->batches; b && count < BATCH; b = b->next) {
            if (last && (stream == PASTA_NO_STREAM || b->stream == stream)) b->last = true;
            if (b->used > b->marked && !b->marking && steady(b)) batches[count++] = b;
        }
        pthread_mutex_unlock(&pasta_nv_probes_lock);
        for (uint32_t i = 0; i < count; i++) mark(batches[i]);
    } while (count == BATCH);
}

void pasta_nv_batches_close(pasta_nv_prober *p, uint64_t stream) {
    pthread_mutex_lock(&pasta_nv_probes_lock);
    pasta_nv_batch **link = &p->current[way_of(stream)];
    while (*link) {
        pasta_nv_batch *b = *link;
        if (b->stream == stream) {
            b->closed = true;
            *link = b->next_current;
        } else {
            link = &b->next_current;
        }
    }
    pthread_mutex_unlock(&pasta_nv_probes_lock);
}
