#include <string.h>

#include "internal.h"

uint64_t pasta_hash(const void *bytes, size_t length) {
    const uint8_t *p = bytes;
    uint64_t hash = UINT64_C(0xcbf29ce484222325), word;
    for (; length >= 8; p += 8, length -= 8) {
        memcpy(&word, p, 8);
        hash = (hash ^ word) * UINT64_C(0x100000001b3);
        hash ^= hash >> 29;
    }
    if (length) {
        word = 0;
        memcpy(&word, p, length);
        hash = (hash ^ word ^ (uint64_t)length << 56) * UINT64_C(0x100000001b3);
    }
    return hash ^ hash >> 32;
}
