/* The table in which patches look addresses up.
 *
 * Ranges sorted by address, and over each cluster of them (the driver gives device, managed and
 * pinned memory from areas far apart) an array of buckets with the first range of each.  Where an object
 * covers all of a bucket nothing more is read.  A bucket of several ranges is divided once more: frameworks keep
 * hundreds of small tensors side by side, and each step of a search among them is a load that waits for the one before.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "../../include/pasta_probes.h"
#include "source.h"

enum {
    BUCKETS_PER_RANGE = 4,
    MIN_BUCKETS = 1024,
    PARTS = 1 << PASTA_PROBE_PARTS_SHIFT,
    FINE_SHIFT = 17,        /* log2 of the bytes of a bucket whose parts have 512, as PyTorch aligns tensors */
    FINE_BUCKETS = 1 << 16, /* buckets get that short where it takes no more of them */
    MIN_DIVIDED = 128, /* buckets of a cluster that are divided, at most: these, and one of … */
    RANGES_PER_DIVIDED = 16, /* … ranges */
    GRANULES_PER_WORD = 32,
    MAX_SHIFT = 40
};

/* ---- bins and planes of an object: assigned once, kept while it lives or is in use ---- */

typedef struct storage {
    uint32_t bins, bin_count, plane, plane_count;
    uint8_t bin_shift, plane_shift, known;
} storage;

typedef struct piece {
    uint32_t first, count;
} piece;

/* Bins, or words of planes. */
typedef struct pool {
    uint32_t all;
    uint32_t used; /* all from here on are unused */
    uint32_t returned; /* returned ones below that: `pieces`, sorted, not adjacent */
    piece *pieces;
    size_t count, room;
} pool;

static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;
static pasta_nv_storage room;
static storage *given; /* by object number */
static size_t given_room;
static pool bins, planes;

void pasta_nv_table_storage(pasta_nv_storage storage) {
    room = storage;
    bins.all = storage.bins;
    planes.all = storage.planes;
}

static bool take_returned(pool *p, uint32_t wanted, uint32_t *first) {
    for (size_t i = 0; i < p->count; i++) {
        piece *here = &p->pieces[i];
        if (here->count < wanted) continue;
        *first = here->first;
        here->first += wanted;
        here->count -= wanted;
        p->returned -= wanted;
        if (!here->count) memmove(here, here + 1, (--p->count - i) * sizeof *here);
        return true;
    }
    return false;
}

static uint32_t take(pool *p, uint64_t bytes, uint64_t unit, uint8_t *shift, uint32_t *count) {
    *count = 0;
    if (!p->all) return PASTA_ABSENT_U32;
    for (; *shift < MAX_SHIFT; ++*shift) { /* coarser where there are too few */
        uint64_t wanted = ((bytes - 1) >> *shift) / unit + 1, fresh = p->all - p->used;
        /* an object gets at most half of the rest, so that later objects get some */
        if (wanted > (fresh + p->returned + 1) / 2) continue;
        uint32_t first;
        if (!take_returned(p, (uint32_t)wanted, &first)) {
            if (wanted > fresh) continue;
            first = p->used;
            p->used += (uint32_t)wanted;
        }
        *count = (uint32_t)wanted;
        return first;
    }
    return PASTA_ABSENT_U32;
}

static void give_back(pool *p, uint32_t first, uint32_t count) {
    if (!count) return;
    size_t at = 0;
    while (at < p->count && p->pieces[at].first < first) at++;
    piece *before = at ? &p->pieces[at - 1] : NULL, *after = at < p->count ? &p->pieces[at] : NULL;
    bool joins_before = before && before->first + before->count == first;
    bool joins_after = after && first + count == after->first;
    if (joins_before && joins_after) {
        before->count += count + after->count;
        memmove(after, after + 1, (--p->count - at) * sizeof *after);
    } else if (joins_before) {
        before->count += count;
    } else if (joins_after) {
        after->first = first;
        after->count += count;
    } else {
        if (p->count == p->room) {
            size_t wanted = 2 * p->room + 16;
            piece *grown = realloc(p->pieces, wanted * sizeof *grown);
            if (!grown) return; /* out of memory: these are not reused */
            p->pieces = grown;
            p->room = wanted;
        }
        memmove(&p->pieces[at + 1], &p->pieces[at], (p->count++ - at) * sizeof *p->pieces);
        p->pieces[at] = (piece){first, count};
    }
    p->returned += count;
    const piece *last = &p->pieces[p->count - 1];
    if (last->first + last->count != p->used) return;
    p->used = last->first;
    p->returned -= last->count;
    p->count--;
}

static storage storage_of(const pasta_nv_allocation *a) { /* changing held */
    storage none = {.bins = PASTA_ABSENT_U32, .plane = PASTA_ABSENT_U32, .bin_shift = room.bin_shift,
                    .plane_shift = room.plane_shift, .known = 1};
    if (a->number >= given_room) {
        size_t wanted = 2 * (size_t)a->number + 64;
        storage *grown = realloc(given, wanted * sizeof *grown);
        if (!grown) return none;
        memset(grown + given_room, 0, (wanted - given_room) * sizeof *grown);
        given = grown;
        given_room = wanted;
    }
    storage *s = &given[a->number];
    if (!s->known) {
        *s = none;
        s->bins = take(&bins, a->bytes, 1, &s->bin_shift, &s->bin_count);
        if (a->address % 16 == 0) /* so that no access lies in two granules */
            s->plane = take(&planes, a->bytes, GRANULES_PER_WORD, &s->plane_shift, &s->plane_count);
    }
    return *s;
}

static uint64_t used_of(const pool *p) {
    pthread_mutex_lock(&changing);
    uint64_t used = p->used;
    pthread_mutex_unlock(&changing);
    return used;
}

uint64_t pasta_nv_table_bins_used(void) { return used_of(&bins); }
uint64_t pasta_nv_table_bins_room(void) { return room.bins; }
uint64_t pasta_nv_table_planes_used(void) { return used_of(&planes); }
uint32_t pasta_nv_table_planes_room(void) { return room.planes; }

bool pasta_nv_table_next_binned(pasta_nv_binned *object) {
    bool found = false;
    pthread_mutex_lock(&changing);
    for (size_t number = object->number + (size_t)1; number < given_room && !found; number++) {
        const storage *s = &given[number];
        found = s->known && s->bin_count;
        if (found) *object = (pasta_nv_binned){(uint32_t)number, s->bins, s->bin_count, s->bin_shift};
    }
    pthread_mutex_unlock(&changing);
    return found;
}

bool pasta_nv_table_is_scarce(void) {
    pthread_mutex_lock(&changing);
    bool scarce = bins.used - bins.returned > bins.all / 2 || planes.used - planes.returned > planes.all / 2;
    pthread_mutex_unlock(&changing);
    return scarce;
}

size_t pasta_nv_table_left_over(const pasta_nv_allocation *live, size_t count, pasta_nv_left_over **objects) {
    size_t found = 0;
    pthread_mutex_lock(&changing);
    uint8_t *lives = calloc(given_room + 1, 1);
    *objects = malloc((given_room + 1) * sizeof **objects);
    for (size_t i = 0; lives && i < count; i++)
        if (live[i].number < given_room) lives[live[i].number] = 1;
    for (size_t number = 1; lives && *objects && number < given_room; number++) {
        const storage *s = &given[number];
        if (lives[number] || !(s->bin_count || s->plane_count)) continue;
        (*objects)[found++] = (pasta_nv_left_over){(uint32_t)number, s->bins, s->bin_count, s->plane, s->plane_count};
    }
    pthread_mutex_unlock(&changing);
    free(lives);
    return found;
}

void pasta_nv_table_give_back(uint32_t number) {
    pthread_mutex_lock(&changing);
    storage *s = &given[number];
    give_back(&bins, s->bins, s->bin_count);
    give_back(&planes, s->plane, s->plane_count);
    s->bins = s->plane = PASTA_ABSENT_U32;
    s->bin_count = s->plane_count = 0;
    pthread_mutex_unlock(&changing);
}

/* ---- clusters ---- */

typedef struct gap {
    uint64_t bytes;
    size_t at; /* index of the range after it */
} gap;

typedef struct span {
    size_t first, last;
    uint64_t bytes; /* of the objects */
} span;

static int by_place(const void *a, const void *b) {
    const gap *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

static uint64_t bytes_of(const pasta_nv_allocation *objects, size_t first, size_t last) {
    uint64_t bytes = 0;
    for (size_t i = first; i < last; i++) bytes += objects[i].bytes;
    return bytes;
}

/* The widest gaps separate the clusters: look-ups in all but the first cost more, and buckets are fine enough over gaps
 * up to WIDE times as long as the objects, or that the finest ones span. */
static uint32_t part(const pasta_nv_allocation *objects, size_t count, gap cuts[PASTA_PROBE_CLUSTERS]) {
    enum { WIDE = 4 };
    uint64_t wide = WIDE * bytes_of(objects, 0, count), fine = (uint64_t)FINE_BUCKETS << FINE_SHIFT;
    if (wide < fine) wide = fine;
    uint32_t found = 0;
    for (size_t i = 1; i < count; i++) {
        uint64_t end = objects[i - 1].address + objects[i - 1].bytes;
        gap here = {objects[i].address > end ? objects[i].address - end : 0, i};
        uint32_t least = 0;
        if (here.bytes <= wide) continue;
        if (found < PASTA_PROBE_CLUSTERS - 1) {
            cuts[found++] = here;
            continue;
        }
        for (uint32_t c = 1; c < found; c++)
            if (cuts[c].bytes < cuts[least].bytes) least = c;
        if (here.bytes > cuts[least].bytes) cuts[least] = here;
    }
    qsort(cuts, found, sizeof *cuts, by_place);
    cuts[found] = (gap){0, count};
    return count ? found + 1 : 0;
}

static uint32_t shift_for(uint64_t span, size_t ranges) {
    uint64_t buckets = MIN_BUCKETS;
    while (buckets < ranges * BUCKETS_PER_RANGE && buckets < PASTA_PROBE_BUCKETS / 2) buckets *= 2;
    uint32_t shift = 0;
    while (span >> shift > buckets) shift++;
    return shift;
}

/* ---- the image ---- */

static size_t aligned(size_t bytes) { return (bytes + 31) / 32 * 32; }

static void fill_ranges(pasta_object_range *ranges, const pasta_nv_allocation *objects, size_t count) {
    pthread_mutex_lock(&changing);
    for (size_t i = 0; i < count; i++) {
        const pasta_nv_allocation *a = &objects[i];
        storage s = storage_of(a);
        ranges[i] = (pasta_object_range){
                                         .start = a->address, .size = a->bytes, .number = a->number,
                                         .bin_shift = s.bin_shift, .plane_shift = s.plane_shift,
                                         .bins = s.bins, .plane = s.plane};
        /* overlapping addresses belong to the latest allocation */
        if (i && ranges[i - 1].size > a->address - ranges[i - 1].start)
            ranges[i - 1].size = a->address - ranges[i - 1].start;
    }
    pthread_mutex_unlock(&changing);
}

/* Buckets of 1 << shift bytes from `begin` on. */
typedef struct walk {
    const pasta_object_range *ranges;
    size_t count, low;
    uint64_t begin;
    uint32_t shift;
} walk;

/* Equal buckets: those that no range touches, or that one covers; or one bucket, in which `more` ranges begin. */
typedef struct run {
    uint64_t buckets;
    uint32_t first, more;
    bool whole;
} run;

/* The first and the last bucket may reach into other clusters: they refer to the ranges there too. */
static run next_run(walk *w, uint64_t left) {
    const pasta_object_range *r = w->ranges;
    uint64_t bytes = UINT64_C(1) << w->shift;
    while (w->low < w->count - 1 && r[w->low].start + r[w->low].size <= w->begin) w->low++;
    uint64_t start = r[w->low].start, stop = start + r[w->low].size;
    run found = {.buckets = 1, .first = (uint32_t)w->low + 1};
    if (stop <= w->begin) {
        found.buckets = left;
    } else if (start > w->begin && start - w->begin >= bytes) {
        found.buckets = (start - w->begin) >> w->shift;
    } else if (start <= w->begin && stop - w->begin >= bytes) {
        found.buckets = (stop - w->begin) >> w->shift;
        found.whole = true;
    } else {
        size_t next = w->low + 1;
        while (next < w->count && r[next].start - w->begin < bytes) next++;
        found.more = (uint32_t)(next - w->low - 1);
    }
    if (found.buckets > left) found.buckets = left;
    w->begin += found.buckets * bytes;
    return found;
}

static uint32_t entry_of(run r) {
    if (r.whole) return r.first | PASTA_PROBE_WHOLE;
    return r.first | (r.more < PASTA_PROBE_MANY ? r.more : PASTA_PROBE_MANY) << PASTA_PROBE_MORE_SHIFT;
}

/* The buckets of 1 << shift bytes of a cluster of ranges from `first` on, between two addresses. */
static walk buckets_of(pasta_object_cluster *c, uint32_t shift, uint64_t begin, uint64_t end,
                       const pasta_object_range *ranges, size_t first, size_t count) {
    c->shift = shift;
    c->base = begin >> shift << shift;
    c->last_bucket = (uint32_t)((end - c->base - 1) >> shift);
    while (first && ranges[first - 1].start + ranges[first - 1].size > c->base) first--;
    return (walk){ranges, count, first, c->base, shift};
}

/* Buckets of several ranges are divided: then parts that one range fills are found at once, others are searched. */
static uint32_t fine_shift(uint64_t span, uint32_t shift) {
    while (shift > FINE_SHIFT && span >> (shift - 1) < FINE_BUCKETS) shift--;
    return shift;
}

/* How many ranges more than its first one begin in a bucket that is not divided, and how many are divided. */
static uint32_t undivided(walk w, uint64_t buckets, uint64_t *divided) {
    uint64_t most = MIN_DIVIDED + w.count / RANGES_PER_DIVIDED, with[32] = {0}; /* that many or more, to the power of 2 */
    *divided = 0;
    if (w.shift < PASTA_PROBE_PARTS_SHIFT) return UINT32_MAX;
    for (uint64_t left = buckets; left;) {
        run r = next_run(&w, left);
        left -= r.buckets;
        for (uint32_t power = 0; power < 32 && r.more >> power; power++) with[power]++;
    }
    for (uint32_t power = 0; power < 32; power++)
        if (with[power] <= most) {
            *divided = with[power];
            return (uint32_t)((UINT64_C(1) << power) - 1);
        }
    return UINT32_MAX;
}

/* Buckets lie before `end`, the first one last. */
static void fill_buckets(uint32_t *end, walk w, uint64_t buckets, uint32_t most) {
    uint64_t parts = buckets; /* where the next ones begin */
    for (uint64_t at = 0; at < buckets;) {
        walk inside = w;
        run r = next_run(&w, buckets - at);
        if (r.more > most) {
            end[-1 - (int64_t)at] = PASTA_PROBE_PARTS | (uint32_t)(parts - at);
            inside.low = r.first - 1;
            inside.shift -= PASTA_PROBE_PARTS_SHIFT;
            fill_buckets(end - parts, inside, PARTS, UINT32_MAX);
            parts += PARTS;
            at++;
        }
        else
            for (uint64_t last = at + r.buckets; at < last; at++) end[-1 - (int64_t)at] = entry_of(r);
    }
}

/* The cluster with the most memory is searched first. */
static int by_bytes(const void *a, const void *b) {
    const span *x = a, *y = b;
    return (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

void *pasta_nv_table_image(const pasta_nv_allocation *objects, size_t count, size_t *bytes) {
    gap cuts[PASTA_PROBE_CLUSTERS];
    span spans[PASTA_PROBE_CLUSTERS];
    walk walks[PASTA_PROBE_CLUSTERS];
    uint32_t most[PASTA_PROBE_CLUSTERS];
    if (count >> PASTA_PROBE_MORE_SHIFT) return NULL;
    pasta_object_range *ranges = malloc((count + 1) * sizeof *ranges);
    if (!ranges) return NULL;
    fill_ranges(ranges, objects, count);
    pasta_object_table table = {.count = (uint32_t)count, .clusters = part(objects, count, cuts)};
    for (uint32_t i = 0; i < table.clusters; i++) {
        size_t first = i ? cuts[i - 1].at : 0, last = cuts[i].at;
        spans[i] = (span){first, last, bytes_of(objects, first, last)};
    }
    qsort(spans, table.clusters, sizeof *spans, by_bytes);
    uint64_t at = sizeof table;
    for (uint32_t i = 0; i < table.clusters; i++) {
        const pasta_nv_allocation *first = &objects[spans[i].first], *last = &objects[spans[i].last - 1];
        pasta_object_cluster *c = &table.cluster[i];
        uint64_t base = first->address >> PASTA_PROBE_BASE_SHIFT << PASTA_PROBE_BASE_SHIFT, divided;
        uint64_t stop = last->address + last->bytes;
        uint32_t coarse = shift_for(stop - base, spans[i].last - spans[i].first);
        walks[i] = buckets_of(c, coarse, base, stop, ranges, spans[i].first, count);
        most[i] = undivided(walks[i], c->last_bucket + UINT64_C(1), &divided);
        if (divided && fine_shift(stop - base, coarse) < coarse) {
            walks[i] = buckets_of(c, fine_shift(stop - base, coarse), base, stop, ranges, spans[i].first, count);
            most[i] = undivided(walks[i], c->last_bucket + UINT64_C(1), &divided);
        }
        at = aligned(at + (c->last_bucket + UINT64_C(1) + divided * PARTS) * sizeof(uint32_t));
        c->buckets = at;
        if (!i) at += count * sizeof(pasta_object_range);
    }
    table.ranges = table.clusters ? table.cluster[0].buckets : aligned(at);
    *bytes = aligned(at);
    char *image = calloc(1, *bytes);
    if (image) {
        memcpy(image, &table, sizeof table);
        memcpy(image + table.ranges, ranges, count * sizeof *ranges);
        for (uint32_t i = 0; i < table.clusters; i++)
            fill_buckets((void *)(image + table.cluster[i].buckets), walks[i], table.cluster[i].last_bucket + UINT64_C(1),
                         most[i]);
    }
    free(ranges);
    return image;
}

void pasta_nv_table_place(void *image, uint64_t address) {
    pasta_object_table *table = image;
    table->ranges += address;
    for (uint32_t i = 0; i < table->clusters; i++) table->cluster[i].buckets += address;
}
