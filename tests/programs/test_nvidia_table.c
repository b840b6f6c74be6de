/* nvidia_table.c against a model without tables: every lookup as in patches, and the data of
 * objects besides their ranges. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../shim/include/pasta_probes.h"
#include "../../shim/backends/nvidia/source.h"
#include "check.h"
#include "nvidia/lookup.h"

static uint64_t state;

static uint64_t any(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * UINT64_C(0x2545f4914f6cdd1d);
}

static uint64_t below(uint64_t end) { return any() % end; }

/* ---- a patch's lookup: `find` of pasta/backends/nvidia/intrinsics/objects.py ---- */

static const pasta_object_range *find(const pasta_object_table *table, uint64_t address) {
    pasta_object_cluster c = table->clusters ? table->cluster[0] : (pasta_object_cluster){.base = UINT64_MAX};
    uint64_t bucket = (address - c.base) >> c.shift;
    for (uint32_t i = 0; bucket > c.last_bucket; i++) {
        if (i == table->clusters) return NULL;
        c = table->cluster[i];
        bucket = (address - c.base) >> c.shift;
    }
    const uint32_t *end = (const uint32_t *)(uintptr_t)c.buckets;
    return range_in_bucket(table, end - bucket - 1, c.shift, address);
}

/* The object at an address: the last one that begins at or below it, if it contains it. */
static uint32_t owner(const pasta_nv_allocation *objects, size_t count, uint64_t address) {
    const pasta_nv_allocation *last = NULL;
    for (size_t i = 0; i < count; i++)
        if (objects[i].address <= address && (!last || objects[i].address > last->address)) last = &objects[i];
    return last && address - last->address < last->bytes ? last->number : 0;
}

static pasta_object_table *table_of(const pasta_nv_allocation *objects, size_t count) {
    size_t bytes;
    void *image = pasta_nv_table_image(objects, count, &bytes);
    CHECK(image && bytes % 32 == 0);
    void *exact = aligned_alloc(32, bytes); /* so that a read past the end is detected */
    CHECK(exact);
    memcpy(exact, image, bytes);
    free(image);
    pasta_nv_table_place(exact, (uint64_t)(uintptr_t)exact);
    const pasta_object_table *t = exact;
    CHECK(t->count == count);
    CHECK(t->ranges % 32 == 0 && (!count || t->ranges == t->cluster[0].buckets));
    for (uint32_t i = 0; i < t->clusters; i++) {
        CHECK(t->cluster[i].base % (1 << PASTA_PROBE_BASE_SHIFT) == 0);
        CHECK(t->cluster[i].base % (UINT64_C(1) << t->cluster[i].shift) == 0);
        CHECK(t->cluster[i].last_bucket < PASTA_PROBE_BUCKETS && t->cluster[i].shift < 64);
    }
    return exact;
}

static void same(const pasta_object_table *table, const pasta_nv_allocation *objects, size_t count, uint64_t address) {
    const pasta_object_range *found = find(table, address);
    CHECK((found ? found->number : 0) == owner(objects, count, address));
    if (found) CHECK(address >= found->start);
}

static void look_up(const pasta_nv_allocation *objects, size_t count, size_t most) {
    pasta_object_table *table = table_of(objects, count);
    for (size_t n = 0; n < (count < most ? count : most); n++) {
        const pasta_nv_allocation *a = &objects[count <= most ? n : below(count)];
        const uint64_t last = a->address + a->bytes - 1;
        const uint64_t addresses[] = {a->address - 1, a->address, a->address + a->bytes / 2, last, last + 1,
                                      last + 1 + below(1 << 20), a->address + below(a->bytes), any() >> 16};
        for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++) same(table, objects, count, addresses[i]);
    }
    const uint64_t ends[] = {0, 1, UINT64_MAX - 1, UINT64_C(1) << 63}; /* all ones: no byte of a GPU */
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) same(table, objects, count, ends[i]);
    free(table);
}

/* ---- objects: sorted, with distinct starts ---- */

static uint64_t size_of_kind(uint64_t kind) {
    switch (kind) {
    case 0: return 1 + below(4);
    case 1: return 1 + below(1 << 12);
    case 2: return (UINT64_C(1) << below(34)) + below(3) - 1 + (UINT64_C(1) << 20);
    case 3: return (UINT64_C(4) << 30) + below(UINT64_C(1) << 32);
    default: return 512 * (1 + below(1 << 12));
    }
}

/* Up to six areas as far apart as device, managed and pinned memory are; within one, adjacent
 * objects, gaps of any width, and objects that begin inside the one before. */
static size_t make(pasta_nv_allocation *objects, size_t wanted, bool overlapping) {
    static const uint64_t areas[] = {0x1000, 0x200000000, 0x302000000000, 0x7f0000000000, 0x7f8000000000, 0x7fff00000000};
    size_t count = 0, used = 1 + below(6);
    uint32_t number = 1;
    for (size_t area = 0; area < used && count < wanted; area++) {
        uint64_t at = areas[area] + below(1 << 10);
        size_t here = area + 1 == used ? wanted - count : below(wanted - count + 1);
        for (size_t i = 0; i < here; i++) {
            uint64_t bytes = size_of_kind(below(5));
            if (area + 1 < used && at + bytes >= areas[area + 1]) break;
            objects[count++] = (pasta_nv_allocation){.address = at, .bytes = bytes, .memory = PASTA_MEMORY_device,
                                                     .number = number++};
            switch (below(overlapping ? 4 : 3)) {
            case 0: at += bytes; break;
            case 1: at += bytes + below(1 << 16); break;
            case 2: at += bytes + below(UINT64_C(1) << 28); break;
            default: at += 1 + below(bytes); break;
            }
        }
    }
    return count;
}

static void lookups(void) {
    pasta_nv_allocation objects[600];
    for (int round = 0; round < 1500; round++) {
        size_t count = make(objects, below(round % 10 ? 12 : 600), round % 3 == 0);
        look_up(objects, count, 100);
    }
}

/* Pieces that touch each other, of sizes that fill no bucket: the widest gaps are no gaps. */
static void adjacent(void) {
    for (int round = 0; round < 200; round++) {
        pasta_nv_allocation objects[9];
        size_t count = 1 + below(9);
        uint64_t at = UINT64_C(1) << 33;
        for (uint32_t i = 0; i < count; i++) {
            objects[i] = (pasta_nv_allocation){.address = at, .bytes = (UINT64_C(1) << below(33)) + 1, .number = i + 1};
            at += (objects[i].bytes + 511) / 512 * 512;
        }
        look_up(objects, count, 100);
    }
}

static void many(void) {
    enum { MANY = 65536 };
    pasta_nv_allocation *objects = calloc(MANY, sizeof *objects);
    CHECK(objects);
    uint64_t at = 0x7f0000000000;
    for (uint32_t i = 0; i < MANY; i++) {
        objects[i] = (pasta_nv_allocation){.address = at, .bytes = 1 + below(1 << 21), .number = i + 1};
        at += (objects[i].bytes + 511) / 512 * 512 + (below(2000) ? 0 : UINT64_C(1) << 38);
    }
    look_up(objects, MANY, 200);
    pasta_object_table *table = table_of(objects, MANY);
    for (uint32_t i = 0; i < MANY; i++) { /* objects are apart: each holds its own ends */
        const pasta_object_range *first = find(table, objects[i].address);
        CHECK(first && first->number == i + 1 && find(table, objects[i].address + objects[i].bytes - 1) == first);
        const pasta_object_range *behind = find(table, objects[i].address + objects[i].bytes);
        CHECK(!behind || behind == first + 1);
    }
    free(table);
    free(objects);
}

/* ---- bins and granules ---- */

typedef struct piece {
    uint64_t first, end;
} piece;

static int by_first(const void *a, const void *b) {
    const piece *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

static void apart(piece *pieces, size_t count, uint64_t room) {
    qsort(pieces, count, sizeof *pieces, by_first);
    for (size_t i = 0; i < count; i++) {
        CHECK(pieces[i].first < pieces[i].end && pieces[i].end <= room);
        CHECK(!i || pieces[i - 1].end <= pieces[i].first);
    }
}

/* As fine as requested, or such that the object takes at most half of the remaining bins. */
static uint64_t taken(uint64_t bytes, uint64_t unit, unsigned shift, unsigned wished, uint64_t left) {
    uint64_t count = ((bytes - 1) >> shift) / unit + 1;
    CHECK(shift >= wished && count <= (left + 1) / 2);
    if (shift > wished) CHECK(((bytes - 1) >> (shift - 1)) / unit + 1 > (left + 1) / 2);
    return count;
}

static void storage(uint32_t bins_room, uint32_t planes_room) {
    enum { ROUNDS = 300, ALIVE = 40, MOST = ROUNDS };
    const pasta_nv_storage room = {12, 5, bins_room, planes_room};
    pasta_nv_table_storage(room);
    CHECK(pasta_nv_table_bins_room() == bins_room && pasta_nv_table_bins_used() == 0);
    static pasta_object_range known[MOST + 1];
    piece bins[MOST], planes[MOST];
    size_t bin_count = 0, plane_count = 0;
    uint64_t bins_used = 0, planes_used = 0;
    pasta_nv_allocation alive[ALIVE];
    for (uint32_t i = 0; i < ROUNDS; i++) { /* each takes the place of an older one */
        uint64_t begin = 0x7f0000000000 + (i % ALIVE) * (UINT64_C(16) << 30);
        alive[i % ALIVE] = (pasta_nv_allocation){.address = begin + (i % 7 ? 0 : 8), .bytes = size_of_kind(below(5)),
                                                 .number = i + 1};
        size_t count = i < ALIVE ? i + 1 : ALIVE;
        pasta_object_table *table = table_of(alive, count);
        const pasta_object_range *ranges = (const void *)(uintptr_t)table->ranges;
        for (size_t n = 0; n < count; n++) {
            const pasta_object_range *r = &ranges[n];
            if (known[r->number].number) { /* kept while it is live */
                CHECK(memcmp(&known[r->number], r, sizeof *r) == 0);
                continue;
            }
            known[r->number] = *r;
            if (r->bins != PASTA_ABSENT_U32) {
                CHECK(r->bins == bins_used);
                uint64_t wanted = taken(r->size, 1, r->bin_shift, room.bin_shift, bins_room - bins_used);
                bins[bin_count++] = (piece){r->bins, r->bins + wanted};
                bins_used += wanted;
            }
            CHECK(r->bins != PASTA_ABSENT_U32 || bins_used >= bins_room);
            CHECK(r->plane == PASTA_ABSENT_U32 || r->start % 16 == 0);
            if (r->plane != PASTA_ABSENT_U32) {
                CHECK(r->plane == planes_used);
                uint64_t wanted = taken(r->size, 32, r->plane_shift, room.plane_shift, planes_room - planes_used);
                planes[plane_count++] = (piece){r->plane, r->plane + wanted};
                planes_used += wanted;
            }
            CHECK(r->plane != PASTA_ABSENT_U32 || r->start % 16 || planes_used >= planes_room);
        }
        free(table);
    }
    apart(bins, bin_count, bins_room);
    apart(planes, plane_count, planes_room);
    CHECK(pasta_nv_table_bins_used() == bins_used);
    pasta_nv_binned object = {0};
    size_t listed = 0;
    uint32_t before = 0;
    while (pasta_nv_table_next_binned(&object)) {
        CHECK(object.number > before && known[object.number].bins == object.first);
        CHECK(object.shift == known[object.number].bin_shift);
        CHECK(object.count == ((known[object.number].size - 1) >> object.shift) + 1);
        before = object.number;
        listed++;
    }
    CHECK(listed == bin_count);
}

/* What objects left is given back now and then: those that live share nothing, and in the end all is
 * free. */
static void reused(uint32_t bins_room, uint32_t planes_room) {
    enum { ROUNDS = 4000, ALIVE = 40 };
    pasta_nv_table_storage((pasta_nv_storage){12, 5, bins_room, planes_room});
    pasta_nv_allocation alive[ALIVE];
    uint64_t bins_of[ROUNDS + 1] = {0}, planes_of[ROUNDS + 1] = {0}; /* of objects that have some: how many */
    bool was_scarce = false, was_not = false;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint64_t begin = 0x7f0000000000 + (i % ALIVE) * (UINT64_C(16) << 30);
        alive[i % ALIVE] = (pasta_nv_allocation){.address = begin, .bytes = 1 + below(1 << (12 + below(14))), .number = i + 1};
        size_t count = i < ALIVE ? i + 1 : ALIVE;
        pasta_object_table *table = table_of(alive, count);
        const pasta_object_range *ranges = (const void *)(uintptr_t)table->ranges;
        piece bins[ALIVE], planes[ALIVE];
        size_t bin_count = 0, plane_count = 0;
        for (size_t n = 0; n < count; n++) {
            const pasta_object_range *r = &ranges[n];
            uint64_t wanted = ((r->size - 1) >> r->bin_shift) + 1, words = ((r->size - 1) >> r->plane_shift) / 32 + 1;
            if (r->bins != PASTA_ABSENT_U32) bins[bin_count++] = (piece){r->bins, r->bins + wanted};
            if (r->plane != PASTA_ABSENT_U32) planes[plane_count++] = (piece){r->plane, r->plane + words};
            bins_of[r->number] = r->bins != PASTA_ABSENT_U32 ? wanted : 0;
            planes_of[r->number] = r->plane != PASTA_ABSENT_U32 ? words : 0;
        }
        apart(bins, bin_count, bins_room);
        apart(planes, plane_count, planes_room);
        free(table);
        bool scarce = pasta_nv_table_is_scarce();
        was_scarce |= scarce;
        was_not |= !scarce;
        if (below(20) && i + 1 < ROUNDS) continue;
        pasta_nv_left_over *left;
        size_t found = pasta_nv_table_left_over(alive, i + 1 < ROUNDS ? count : 0, &left);
        for (size_t n = 0; n < found; n++) {
            CHECK(left[n].bin_count == bins_of[left[n].number] && left[n].plane_count == planes_of[left[n].number]);
            for (size_t m = 0; i + 1 < ROUNDS && m < count; m++) CHECK(alive[m].number != left[n].number);
            pasta_nv_table_give_back(left[n].number);
        }
        free(left);
        CHECK(!pasta_nv_table_left_over(alive, i + 1 < ROUNDS ? count : 0, &left));
        free(left);
    }
    CHECK(was_scarce && was_not);
    CHECK(pasta_nv_table_bins_used() == 0 && !pasta_nv_table_is_scarce());
    pasta_nv_binned none = {0};
    CHECK(!pasta_nv_table_next_binned(&none));
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    state = strtoull(arguments[2], NULL, 0);
    if (!strcmp(arguments[1], "lookups")) lookups();
    else if (!strcmp(arguments[1], "adjacent")) adjacent();
    else if (!strcmp(arguments[1], "many")) many();
    else if (!strcmp(arguments[1], "storage")) storage(1 << 24, 1 << 26);
    else if (!strcmp(arguments[1], "short_storage")) storage(1000, 3000);
    else if (!strcmp(arguments[1], "tiny_storage")) storage(1, 2);
    else if (!strcmp(arguments[1], "reused")) reused(200000, 400000);
    else if (!strcmp(arguments[1], "no_storage")) storage(0, 0);
    else return 2;
    return 0;
}
