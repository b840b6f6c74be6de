#include <stdlib.h>
#include <string.h>

#include "internal.h"

uint64_t pasta_hash(const void *bytes, size_t length); /* core/hash.c */

enum { MAX_TEXTS = 1 << 16, SLOTS = 1 << 17, MAX_BYTES = 32 << 20 };

struct pasta_texts {
    struct {
        char *text;
        uint32_t length;
    } texts[MAX_TEXTS];
    uint32_t slots[SLOTS]; /* numbers; 0: free */
    uint32_t count;
    size_t bytes;
};

pasta_texts *pasta_texts_create(void) {
    pasta_texts *t = calloc(1, sizeof *t);
    if (t) t->count = 1;
    return t;
}

void pasta_texts_free(pasta_texts *t) {
    for (uint32_t i = 1; t && i < t->count; i++) free(t->texts[i].text);
    free(t);
}

uint32_t pasta_texts_put(pasta_texts *t, const char *text, size_t length) {
    if (!length) return 0;
    uint64_t at = pasta_hash(text, length) % SLOTS;
    for (uint32_t number; (number = t->slots[at]); at = (at + 1) % SLOTS)
        if (t->texts[number].length == length && !memcmp(t->texts[number].text, text, length)) return number;
    if (t->count == MAX_TEXTS || t->bytes + length > MAX_BYTES) return 0;
    char *copy = malloc(length);
    if (!copy) return 0;
    memcpy(copy, text, length);
    t->bytes += length;
    t->texts[t->count].text = copy;
    t->texts[t->count].length = (uint32_t)length;
    return t->slots[at] = t->count++;
}

const char *pasta_texts_get(const pasta_texts *t, uint32_t number, uint32_t *length) {
    *length = number < t->count ? t->texts[number].length : 0;
    return *length ? t->texts[number].text : "";
}
