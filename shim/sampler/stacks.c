/* Stacks by content, and their frames in rings. */
#include <stdlib.h>
#include <string.h>

#include "../python/writer.h"
#include "internal.h"

uint64_t pasta_hash(const void *bytes, size_t length); /* core/hash.c */

enum { SLOTS = 2 * PASTA_MAX_STACKS, MAX_LINES = 1 << 21 };
/* Stacks that the process itself records count from 2^31 on. */
#define FIRST_ID UINT32_C(0xc0000000)

struct pasta_stacks {
    struct {
        uint32_t first, count; /* of `lines` */
        uint64_t hash;
    } stacks[PASTA_MAX_STACKS];
    uint32_t slots[SLOTS]; /* numbers; 0: free */
    uint32_t count;
    pasta_host_line *lines;
    size_t used, room;
    pasta_texts *texts;
};

pasta_stacks *pasta_stacks_create(pasta_texts *texts) {
    pasta_stacks *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->count = 1;
    s->texts = texts;
    return s;
}

void pasta_stacks_free(pasta_stacks *s) {
    if (s) free(s->lines);
    free(s);
}

static uint64_t hash_of(const pasta_host_line *lines, uint32_t count) {
    uint64_t hash = count;
    for (const pasta_host_line *l = lines; l < lines + count; l++)
        hash = pasta_mix(pasta_mix(hash, (uint64_t)l->file << 32 | l->name), pasta_mix(l->address, (uint64_t)l->line << 1 | l->python));
    return hash;
}

static bool is_same(const pasta_host_line *a, const pasta_host_line *b) {
    return a->file == b->file && a->name == b->name && a->line == b->line && a->first_line == b->first_line && a->address == b->address &&
           a->python == b->python;
}

static bool has_room(pasta_stacks *s, uint32_t count) {
    if (s->used + count <= s->room) return true;
    size_t room = s->room ? 2 * s->room : 4096;
    pasta_host_line *larger = room <= MAX_LINES ? realloc(s->lines, room * sizeof *larger) : NULL;
    if (!larger) return false;
    s->lines = larger;
    s->room = room;
    return true;
}

uint32_t pasta_stacks_put(pasta_stacks *s, const pasta_host_line *lines, uint32_t count) {
    uint64_t hash = hash_of(lines, count), at = hash % SLOTS;
    for (uint32_t number; (number = s->slots[at]); at = (at + 1) % SLOTS) {
        uint32_t same = 0;
        if (s->stacks[number].hash != hash || s->stacks[number].count != count) continue;
        while (same < count && is_same(&lines[same], &s->lines[s->stacks[number].first + same])) same++;
        if (same == count) return number;
    }
    if (!count || s->count == PASTA_MAX_STACKS || !has_room(s, count)) return 0;
    for (uint32_t i = 0; i < count; i++) s->lines[s->used + i] = lines[i];
    s->stacks[s->count].first = (uint32_t)s->used;
    s->stacks[s->count].count = count;
    s->stacks[s->count].hash = hash;
    s->used += count;
    return s->slots[at] = s->count++;
}

static uint32_t intern(const pasta_stacks *s, pasta_ring *ring, uint32_t number) {
    uint32_t length;
    const char *text = pasta_texts_get(s->texts, number, &length);
    return length ? pasta_intern_text(ring, text, length) : PASTA_STRING_absent;
}

static int publish_line(const pasta_stacks *s, pasta_ring *ring, uint32_t id, uint32_t depth, const pasta_host_line *l) {
    uint32_t file = intern(s, ring, l->file), name = intern(s, ring, l->name);
    if ((l->file && !file) || (l->name && !name)) return 0;
    if (l->python) {
        pasta_python_frame e = {.stack = id, .depth = depth, .file = file, .function = name, .line = l->line, .first_line = l->first_line};
        return pasta_append(ring, PASTA_EVENT_python_frame, -1, &e, sizeof e);
    }
    pasta_host_frame e = {.stack = id, .depth = depth, .image = file, .build = name, .address = l->address};
    return pasta_append(ring, PASTA_EVENT_host_frame, -1, &e, sizeof e);
}

uint32_t pasta_stacks_publish(pasta_stacks *s, uint32_t number, pasta_process_state *process) {
    if (!number || number >= s->count || !process->published) return PASTA_STACK_absent;
    uint8_t *bits = &process->published[number / 8], bit = (uint8_t)(1 << number % 8);
    if (*bits & bit) return FIRST_ID | number;
    for (uint32_t depth = 0; depth < s->stacks[number].count; depth++)
        if (!publish_line(s, process->ring, FIRST_ID | number, depth, &s->lines[s->stacks[number].first + depth])) return PASTA_STACK_absent;
    *bits |= bit;
    return FIRST_ID | number;
}
