/* Fuzz target: the event decoder (shim/python/reader.c) over arbitrary ring memory and spilled segments.
 *
 * Input: one byte of flags (1: a ring, else spilled segments; 2: final), one byte: segments, two bytes: the
 * first position, then, of a ring, 8 bytes of map for each segment; then the segments' memory.
 *
 * With libFuzzer: cc -fsanitize=fuzzer,address,undefined -DLIBFUZZER; without, `decoder SEED SECONDS FILE…`
 * mutates the files itself, and `decoder FILE…` runs each once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../shim/python/reader.h"

enum { SLOTS = 32, SEGMENT = SLOTS * 64, MOST = 8, ARENA = 256, INPUT = 4 + MOST * 8 + MOST * SEGMENT };

static void decode(pasta_stretch *stretch, uint64_t from, uint64_t end, uint32_t final) {
    stretch->segment_slots = SLOTS;
    stretch->from = from;
    stretch->end = end;
    stretch->final = final;
    pasta_scan(stretch);
    if (stretch->end < from || stretch->end > end) abort();
    void *outputs[PASTA_KINDS] = {0};
    for (int kind = 1; kind < PASTA_KINDS; kind++)
        if (kind != PASTA_EVENT_pad && pasta_kind_slots(kind) && stretch->counts[kind])
            outputs[kind] = malloc((size_t)stretch->counts[kind] * (size_t)pasta_kind_slots(kind) * 64);
    pasta_gather(stretch, from, outputs);
    for (int kind = 1; kind < PASTA_KINDS; kind++) free(outputs[kind]);
}

static void of_ring(const uint8_t *data, size_t size, unsigned segments, uint64_t from, uint32_t final) {
    if (size < segments * 8u) return;
    size_t header = (sizeof(pasta_ring) + 63) / 64 * 64;
    pasta_ring *ring = calloc(1, header + ARENA + segments * SEGMENT);
    ring->file_bytes = header + ARENA + segments * SEGMENT;
    ring->arena_offset = header;
    ring->arena_bytes = ARENA;
    ring->data_offset = header + ARENA;
    ring->segment_bytes = SEGMENT;
    ring->segment_slots = SLOTS;
    ring->max_segments = segments;
    for (unsigned i = 0; i < segments; i++) memcpy(&ring->segment_map[i], data + 8 * i, 8);
    data += segments * 8;
    size -= segments * 8;
    if (size > segments * SEGMENT) size = segments * SEGMENT;
    memcpy((uint8_t *)ring + ring->data_offset, data, size);
    pasta_stretch stretch = {.ring = ring};
    decode(&stretch, from, (uint64_t)segments * SLOTS, final);
    /* the arena: what is in front of the segments, with any length of what is used */
    memcpy((uint8_t *)ring + header, data, size < ARENA ? size : ARENA);
    if (size >= 16) {
        memcpy(&ring->arena_used, data, 8);
        memcpy(&ring->arena_committed, data + 8, 8);
    }
    for (uint32_t id = 0; id < ARENA / 8 + 2; id++) {
        uint32_t length = 0, sum = 0;
        const char *text = pasta_string_text(ring, id, &length);
        for (uint32_t i = 0; text && i < length; i++) sum += (unsigned char)text[i];
        if (sum == UINT32_MAX) abort(); /* so that they are read */
    }
    free(ring);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 4) return 0;
    unsigned segments = 1 + data[1] % MOST;
    uint64_t from = (data[2] | (unsigned)data[3] << 8) % (segments * SLOTS);
    uint32_t final = data[0] >> 1 & 1;
    if (data[0] & 1) {
        of_ring(data + 4, size - 4, segments, from, final);
        return 0;
    }
    uint8_t *memory = calloc(segments, SEGMENT); /* of the heap: what reads beyond it is seen */
    size_t length = size - 4 < segments * (size_t)SEGMENT ? size - 4 : segments * (size_t)SEGMENT;
    memcpy(memory, data + 4, length);
    pasta_stretch stretch = {.spilled = memory};
    decode(&stretch, from, (uint64_t)segments * SLOTS, final);
    free(memory);
    return 0;
}

#ifndef LIBFUZZER
static uint64_t state;
static uint64_t rnd(uint64_t below) { /* xorshift64* */
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return below ? (state * UINT64_C(2685821657736338717)) % below : 0;
}

static size_t load(const char *path, uint8_t *to) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(2);
    }
    size_t size = fread(to, 1, INPUT, file);
    fclose(file);
    return size;
}

static size_t change(uint8_t *data, size_t size) {
    static const uint64_t interesting[] = {0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0xffffffff, ~0ull};
    for (uint64_t n = 1 + rnd(8); n && size; n--) {
        size_t at = rnd(size);
        uint64_t value = interesting[rnd(sizeof interesting / sizeof *interesting)];
        size_t width = (size_t)1 << rnd(4), slot = at / 64 * 64 + 4;
        switch (rnd(6)) {
        case 0: data[at] ^= (uint8_t)(1u << rnd(8)); break;
        case 1: data[at] = (uint8_t)rnd(256); break;
        case 2: if (at + width <= size) memcpy(data + at, &value, width); break;
        case 3: if (slot + 8 < size) data[slot + rnd(8)] = (uint8_t)rnd(256); break; /* a record's header */
        case 4: if (slot + 64 < size) memcpy(data + slot, data + 4 + rnd((size - 4) / 64) * 64, 8); break;
        default: size = rnd(16) ? size : at + 1;
        }
    }
    return size;
}

int main(int argc, char **argv) {
    static uint8_t seed[INPUT], data[INPUT];
    if (argc < 2) return 2;
    char *end;
    state = strtoull(argv[1], &end, 10) * 2 + 1;
    if (*end) { /* files: once each */
        for (int i = 1; i < argc; i++) LLVMFuzzerTestOneInput(data, load(argv[i], data));
        return 0;
    }
    if (argc < 4) return 2;
    double seconds = strtod(argv[2], NULL), slowest = 0;
    uint64_t executions = 0;
    struct timespec began, before, now;
    clock_gettime(CLOCK_MONOTONIC, &began);
    before = began;
    do {
        size_t size = load(argv[3 + rnd((uint64_t)(argc - 3))], seed);
        for (int i = 0; i < 500; i++, executions++) {
            memcpy(data, seed, size);
            LLVMFuzzerTestOneInput(data, change(data, size));
            clock_gettime(CLOCK_MONOTONIC, &now);
            double took = (double)(now.tv_sec - before.tv_sec) + (double)(now.tv_nsec - before.tv_nsec) / 1e9;
            slowest = i && took > slowest ? took : slowest;
            before = now;
        }
    } while ((double)(now.tv_sec - began.tv_sec) + (double)(now.tv_nsec - began.tv_nsec) / 1e9 < seconds);
    printf("%llu %.6f\n", (unsigned long long)executions, slowest);
    return 0;
}
#endif
