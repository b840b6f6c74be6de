#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { MAX_MAPPINGS = 1 << 14 };

/* Index of the first mapping that ends after an address. */
static uint32_t first_after(const pasta_process_state *p, uint64_t address) {
    uint32_t low = 0, high = p->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (p->mappings[middle].end > address) high = middle;
        else low = middle + 1;
    }
    return low;
}

static bool has_room(pasta_process_state *p, uint32_t count) {
    if (count <= p->room) return true;
    uint32_t room = p->room ? 2 * p->room : 64;
    while (room < count) room *= 2;
    pasta_mapping *larger = room <= MAX_MAPPINGS ? realloc(p->mappings, room * sizeof *larger) : NULL;
    if (!larger) return false;
    p->mappings = larger;
    p->room = room;
    return true;
}

/* A new mapping replaces overlapping ones: the kernel does not report unmapping. */
void pasta_mappings_add(pasta_process_state *p, pasta_mapping m) {
    if (m.end <= m.start || !has_room(p, p->count + 2)) return;
    uint32_t from = first_after(p, m.start), to = from;
    while (to < p->count && p->mappings[to].start < m.end) to++;
    pasta_mapping parts[3];
    uint32_t count = 0;
    if (from < to && p->mappings[from].start < m.start) {
        parts[count] = p->mappings[from];
        parts[count++].end = m.start;
    }
    parts[count++] = m;
    if (from < to && p->mappings[to - 1].end > m.end) {
        parts[count] = p->mappings[to - 1];
        parts[count].offset += m.end - parts[count].start;
        parts[count++].start = m.end;
    }
    memmove(p->mappings + from + count, p->mappings + to, (p->count - to) * sizeof *parts);
    memcpy(p->mappings + from, parts, count * sizeof *parts);
    p->count += count - (to - from);
}

const pasta_mapping *pasta_mappings_at(const pasta_process_state *p, uint64_t address) {
    uint32_t at = first_after(p, address);
    return at < p->count && p->mappings[at].start <= address ? &p->mappings[at] : NULL;
}

bool pasta_mappings_copy(pasta_process_state *p, const pasta_process_state *parent) {
    p->count = 0;
    if (!has_room(p, parent->count)) return false;
    if (parent->count) memcpy(p->mappings, parent->mappings, parent->count * sizeof *p->mappings);
    p->count = parent->count;
    return true;
}
