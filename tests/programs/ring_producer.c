/* Publishes records as commanded on its standard input, for tests/unit/test_ring.py:
 *   publish KIND SEED REPEAT   records with payload bytes derived from SEED
 *   abandon KIND               a record that is begun and never published
 *   skip SLOTS                 slots that are handed out and never written, within a segment
 *   intern HEX                 prints the id of the text */
#define _GNU_SOURCE
#include <string.h>

#include "../../shim/core/internal.h"
#include "../../shim/python/reader.h"
#include "check.h"

static void *begin(unsigned kind, unsigned seed) {
    return pasta_begin((pasta_event_kind)kind, (uint8_t)pasta_kind_slots((int)kind), (int16_t)(seed % 100), (uint16_t)seed, seed * UINT64_C(1000003));
}

static void publish(unsigned kind, unsigned seed) {
    uint8_t *payload = begin(kind, seed);
    CHECK(payload);
    size_t bytes = (size_t)pasta_kind_slots((int)kind) * PASTA_SLOT - sizeof(pasta_header);
    for (size_t i = 0; i < bytes; i++) payload[i] = (uint8_t)(seed + 7 * i);
    pasta_header *h = pasta_header_of(payload);
    h->flags = (uint8_t)seed;
    h->correlation = ~(uint64_t)seed;
    pasta_publish(payload);
}

static void skip(unsigned slots) {
    pasta_ring *r = pasta_ring_mine();
    uint64_t offset = r->tail % r->segment_slots, left = r->segment_slots - offset;
    if (offset) r->tail += slots < left ? slots : left;
}

static uint32_t intern(const char *hex) {
    char text[1024];
    size_t length = strlen(hex) / 2;
    for (size_t i = 0; i < length; i++) {
        unsigned byte;
        CHECK(sscanf(hex + 2 * i, "%2x", &byte) == 1);
        text[i] = (char)byte;
    }
    return pasta_intern(text, length);
}

int main(void) {
    char line[4096], hex[4096];
    unsigned a, b, c;
    CHECK(pasta_open());
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "publish %u %u %u", &a, &b, &c) == 3) {
            for (unsigned i = 0; i < c; i++) publish(a, b + i);
        } else if (sscanf(line, "abandon %u", &a) == 1) {
            CHECK(begin(a, 0));
        } else if (sscanf(line, "skip %u", &a) == 1) {
            skip(a);
        } else if (!strncmp(line, "intern", 6)) {
            hex[0] = '\0';
            CHECK(sscanf(line, "intern %4095s", hex) <= 1);
            printf("%u\n", intern(hex));
        } else {
            CHECK(!"a line that is known");
        }
    }
    return 0;
}
