/* The table in which patches look addresses up.
 *
 * Ranges sorted by address, and over each cluster of them (the driver gives device, managed and
 * pinned memory from areas far apart) an array of buckets with the first range of each.  Where an object
 * covers all of a bucket nothing more is read; else the next bucket and, with as many buckets as ranges,
 * one range.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "../../include/pasta_probes.h"
#include "source.h"

enum { BUCKETS_PER_RANGE = 4, MIN_BUCKETS = 1024, GRANULES_PER_WORD = 32, MAX_SHIFT = 40 };

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

uint64_t pasta_nv_table_bins_used(void) {
    pthread_mutex_lock(&changing);
    uint64_t used = bins.used;
    pthread_mutex_unlock(&changing);
    return used;
}

uint64_t pasta_nv_table_bins_room(void) { return room.bins; }

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

/* The widest gaps separate the clusters: look-ups in all but the first cost more, and over gaps up to WIDE
 * times as long as the objects buckets are fine enough. */
static uint32_t part(const pasta_nv_allocation *objects, size_t count, gap cuts[PASTA_PROBE_CLUSTERS]) {
    enum { WIDE = 4 };
    uint64_t wide = WIDE * bytes_of(objects, 0, count);
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

/* The first and the last bucket may reach into other clusters: they refer to the ranges there too.
 * Equal buckets are written together: those before a range begins, and those that it covers. */
static void fill_buckets(uint32_t *end, const pasta_object_cluster *c, const pasta_object_range *ranges,
                         size_t first, size_t count) {
    uint64_t left = c->last_bucket + UINT64_C(2), begin = c->base, bytes = UINT64_C(1) << c->shift;
    size_t low = first;
    while (low && ranges[low - 1].start + ranges[low - 1].size > c->base) low--;
    while (left) {
        while (low < count - 1 && ranges[low].start + ranges[low].size <= begin) low++;
        uint64_t start = ranges[low].start, stop = start + ranges[low].size, same = left;
        uint32_t bucket = (uint32_t)(low + 1);
        if (start > begin) {
            same = ((start - begin - 1) >> c->shift) + 1;
        } else if (stop > begin) {
            same = (stop - begin) >> c->shift;
            if (same) bucket |= PASTA_PROBE_WHOLE;
            else same = 1;
        }
        if (same > left) same = left;
        for (uint64_t i = 0; i < same; i++) *--end = bucket;
        begin += same * bytes;
        left -= same;
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
        c->base = first->address >> PASTA_PROBE_BASE_SHIFT << PASTA_PROBE_BASE_SHIFT;
        uint64_t length = last->address + last->bytes - c->base;
        c->shift = shift_for(length, spans[i].last - spans[i].first);
        c->last_bucket = (uint32_t)((length - 1) >> c->shift);
        at = aligned(at + ((uint64_t)c->last_bucket + 2) * sizeof(uint32_t));
        c->buckets = at;
        if (!i) at += count * sizeof(pasta_object_range);
    }
    table.ranges = table.clusters ? table.cluster[0].buckets : aligned(at);
    *bytes = aligned(at);
    char *image = calloc(1, *bytes);
    if (!image) return NULL;
    memcpy(image, &table, sizeof table);
    pasta_object_range *ranges = (void *)(image + table.ranges);
    fill_ranges(ranges, objects, count);
    for (uint32_t i = 0; i < table.clusters; i++)
        fill_buckets((void *)(image + table.cluster[i].buckets), &table.cluster[i], ranges, spans[i].first,
                     count);
    return image;
}

void pasta_nv_table_place(void *image, uint64_t address) {
    pasta_object_table *table = image;
    table->ranges += address;
    for (uint32_t i = 0; i < table->clusters; i++) table->cluster[i].buckets += address;
}
