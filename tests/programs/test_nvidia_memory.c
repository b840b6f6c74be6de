/* Pieces of allocations, in which tensors begin and end, against a model of each address. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../../shim/backends/nvidia/source.h"
#include "check.h"

static unsigned said;
void (*pasta_tapped)(const pasta_header *);

void *pasta_begin(pasta_event_kind kind, uint8_t slots, int16_t device, uint16_t context, uint64_t stream) {
    (void)kind, (void)slots, (void)device, (void)context, (void)stream;
    return NULL; /* as when the ring is full */
}

void pasta_say(const char *format, ...) {
    (void)format;
    said++;
}

static uint64_t state;

static uint64_t below(uint64_t end) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * UINT64_C(0x2545f4914f6cdd1d) % end;
}

enum { SPACE = 4096 };
static const pasta_nv_place here = {.context = 0, .device = 0, .slot = 0};
static struct {
    uint32_t allocation; /* that holds the address, 0: none */
    bool cut;            /* a tensor began or ended there */
} model[SPACE + 1];

static struct {
    uint64_t address, bytes, allocation;
} known[1 << 20]; /* of pieces by number */

static void allocate(uint64_t address, uint64_t bytes) {
    pasta_nv_allocation a = {.address = address, .bytes = bytes, .memory = PASTA_MEMORY_device, .device = 0};
    CHECK(pasta_nv_allocated(here, &a));
    for (uint64_t i = address; i < address + bytes; i++) {
        model[i].allocation = a.number;
        model[i].cut = false;
    }
}

static void release(uint64_t address) {
    pasta_nv_allocation a = {.address = address};
    CHECK(pasta_nv_freed(here, &a));
    CHECK(a.number == model[address].allocation);
    for (uint64_t i = address; i < address + a.bytes; i++) model[i].allocation = 0;
}

static void tensor(uint64_t address, uint64_t bytes) {
    uint64_t before = pasta_nv_objects_version();
    bool changes = false;
    for (uint64_t i = address; i <= address + bytes; i++) {
        bool first_of_segment = i < address + bytes && i > address && model[i].allocation != model[i - 1].allocation;
        if (!model[i].allocation || (i != address && i != address + bytes && !first_of_segment)) continue;
        /* the end of an allocation needs no cut, another one may begin there */
        if (i == address + bytes && model[i].allocation != model[i - 1].allocation) continue;
        changes |= !model[i].cut;
        model[i].cut = true;
    }
    pasta_nv_tensor(address, bytes);
    CHECK((pasta_nv_objects_version() != before) == changes);
}

static void compare(void) {
    pasta_nv_piece *pieces;
    size_t count = pasta_nv_new_pieces(&pieces);
    for (size_t i = 0; i < count; i++) {
        CHECK(pieces[i].number < sizeof known / sizeof *known && !known[pieces[i].number].bytes);
        known[pieces[i].number].address = pieces[i].address;
        known[pieces[i].number].bytes = pieces[i].bytes;
        known[pieces[i].number].allocation = pieces[i].allocation;
    }
    free(pieces);
    pasta_nv_allocation *objects;
    uint64_t as_of;
    CHECK(pasta_nv_objects(&objects, &count, &as_of) && as_of == pasta_nv_objects_version());
    uint64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        const pasta_nv_allocation *o = &objects[i];
        for (; at < o->address; at++) CHECK(!model[at].allocation);
        bool whole = model[at].allocation == o->number;
        CHECK(whole || known[o->number].allocation == model[at].allocation);
        if (!whole) CHECK(model[at].cut && known[o->number].address == at && known[o->number].bytes == o->bytes);
        for (; at < o->address + o->bytes; at++) {
            CHECK(model[at].allocation == model[o->address].allocation);
            CHECK(at == o->address || !model[at].cut);
        }
        bool ends = model[at].allocation != model[at - 1].allocation || model[at].cut;
        CHECK(ends);
    }
    for (; at < SPACE; at++) CHECK(!model[at].allocation);
    free(objects);
}

static void pieces(void) {
    for (int round = 0; round < 3000; round++) {
        uint64_t address = 64 * below(SPACE / 64), end = address;
        while (end < SPACE && end < address + 64 * 8 && !model[end].allocation) end += 64;
        switch (below(8)) {
        case 0:
            if (end > address) allocate(address, end - address);
            break;
        case 1:
            if (model[address].allocation && (!address || model[address - 1].allocation != model[address].allocation)) release(address);
            break;
        default:
            /* tensors cross the end of a segment into an adjacent one */
            for (end = address; end < SPACE && model[end].allocation && below(24); end += 8) {}
            if (end > address) tensor(address, end - address);
        }
        if (round % 7 == 0) compare();
    }
    pasta_nv_free_all_of(here);
    memset(model, 0, sizeof model);
    compare();
    CHECK(!said);
}

/* A program whose tensors never begin at the same address. */
static void bounded(void) {
    enum { MANY = 1 << 17 };
    pasta_nv_allocation a = {.address = 1 << 20, .bytes = 512 * MANY, .memory = PASTA_MEMORY_device}, *objects;
    size_t count;
    uint64_t as_of;
    CHECK(pasta_nv_allocated(here, &a));
    for (uint64_t i = 0; i < MANY; i++) pasta_nv_tensor(a.address + 512 * i, 512);
    CHECK(said == 1 && pasta_nv_objects(&objects, &count, &as_of) && count == 1 << 16);
    free(objects);
    CHECK(pasta_nv_freed(here, &a));
    CHECK(pasta_nv_allocated(here, &a)); /* there is space again */
    pasta_nv_tensor(a.address, 512);
    CHECK(pasta_nv_objects(&objects, &count, &as_of) && count == 2 && said == 1);
    free(objects);
    pasta_nv_piece *news;
    pasta_nv_new_pieces(&news);
    free(news);
    CHECK(pasta_nv_freed(here, &a));
}

int main(int count, char **arguments) {
    static const test_case cases[] = {{"pieces", pieces}, {"bounded", bounded}};
    CHECK(count == 3);
    state = strtoull(arguments[2], NULL, 0) * UINT64_C(0x9e3779b97f4a7c15);
    return RUN_CASE(cases, arguments[1]);
}
