/* Interned strings of this process. */
#include <string.h>

#include "internal.h"
#include "interning.h"

enum { MAX_LENGTH = 1 << 20 };

uint32_t pasta_intern(const char *text, size_t length) {
    pasta_ring *r = pasta_ring_mine();
    if (!r || !text || !pasta_same_process()) return 0;
    if (length > MAX_LENGTH) length = MAX_LENGTH;
    return pasta_intern_in(r, text, length, pasta_hash(text, length), pasta_ring_commit_arena);
}

uint32_t pasta_intern_z(const char *text) { return text ? pasta_intern(text, strlen(text)) : 0; }

const char *pasta_interned(uint32_t id, size_t *length) {
    pasta_ring *r = pasta_ring_mine();
    if (!r || !id || !pasta_same_process()) return NULL;
    const pasta_string *s = pasta_string_at(r, id);
    *length = s->length;
    return s->text;
}
