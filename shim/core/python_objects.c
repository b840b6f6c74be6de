/* Layouts of CPython's objects, which no longer change in these versions (pycore_frame.h, code.h, unicodeobject.h,
 * pycore_runtime.h, pycore_interp.h; tests/unit/test_c_call_paths.py compares). */
#include "python_objects.h"

#include <string.h>

#define FIELD PASTA_PYTHON_FIELD

static const pasta_python_layout layouts[] = {
    [11] = {56, 8, 32, 48, 56, 69, 68, 72, 184, 168, 48, 72, 40, 16, 8, 160},
    [12] = {56, 0, 0, 8, 56, 70, -1, 68, 192, 176, 40, 56, 40, 72, 8, 144},
    [13] = {72, -1, 0, 8, 56, 70, -1, 68, 200, 184, 40, 56, 632, 7344, 8, 160},
};

const pasta_python_layout *pasta_python_layout_of(unsigned long minor) {
    return minor >= 11 && minor < sizeof layouts / sizeof *layouts ? &layouts[minor] : NULL;
}

pasta_python_text pasta_python_text_of(const pasta_python_layout *layout, const void *object) {
    enum { COMPACT = 1 << 5, ASCII = 1 << 6 };
    uint32_t state = FIELD(uint32_t, object, PASTA_PYTHON_TEXT_STATE);
    pasta_python_text t = {.length = (size_t)FIELD(int64_t, object, PASTA_PYTHON_SIZE),
                           .kind = state >> 2 & 7, .ascii = state & ASCII,
                           .hash = FIELD(int64_t, object, PASTA_PYTHON_TEXT_HASH)};
    t.data = (const uint8_t *)object + (t.ascii ? layout->ascii : layout->compact);
    if (!(state & COMPACT)) t.length = 0; /* a text of the old interface: none of the compiler's */
    return t;
}

static uint32_t character(const pasta_python_text *t, size_t i) {
    uint16_t two;
    uint32_t four;
    if (t->kind == 1) return t->data[i];
    if (t->kind == 2) return memcpy(&two, t->data + 2 * i, sizeof two), two;
    return memcpy(&four, t->data + 4 * i, sizeof four), four;
}

static size_t put_utf8(char *to, uint32_t c) {
    if (c < 0x80) return to[0] = (char)c, 1;
    if (c < 0x800) return to[0] = (char)(0xc0 | c >> 6), to[1] = (char)(0x80 | (c & 63)), 2;
    if (c < 0x10000) return to[0] = (char)(0xe0 | c >> 12), to[1] = (char)(0x80 | (c >> 6 & 63)), to[2] = (char)(0x80 | (c & 63)), 3;
    to[0] = (char)(0xf0 | c >> 18);
    to[1] = (char)(0x80 | (c >> 12 & 63));
    to[2] = (char)(0x80 | (c >> 6 & 63));
    to[3] = (char)(0x80 | (c & 63));
    return 4;
}

size_t pasta_python_utf8(const pasta_python_text *t, char *utf8, size_t size) {
    size_t used = 0;
    for (size_t i = 0; i < t->length && used + 4 <= size; i++) used += put_utf8(utf8 + used, character(t, i));
    return used;
}

typedef struct reader {
    const uint8_t *at, *end;
} reader;

static uint32_t varint(reader *r) {
    uint32_t value = 0;
    for (unsigned shift = 0; r->at < r->end && shift < 32; shift += 6) {
        uint8_t byte = *r->at++;
        value |= (uint32_t)(byte & 63) << shift;
        if (!(byte & 64)) break;
    }
    return value;
}

uint32_t pasta_python_line_of(const uint8_t *table, int64_t size, int first_line, int64_t instruction) {
    enum { FIRST_ONE_LINE = 10, NO_COLUMNS = 13, LONG = 14, NOWHERE = 15 };
    reader r = {.at = table, .end = table + size};
    int64_t line = first_line, start = 0;
    while (r.at < r.end) {
        uint8_t head = *r.at++;
        unsigned form = head >> 3 & 15;
        if (form == NO_COLUMNS || form == LONG) {
            uint32_t delta = varint(&r);
            line += delta & 1 ? -(int64_t)(delta >> 1) : (int64_t)(delta >> 1);
        } else if (form >= FIRST_ONE_LINE && form < NO_COLUMNS) {
            line += form - FIRST_ONE_LINE;
        }
        start += (head & 7) + 1;
        if (instruction < start) return form == NOWHERE ? 0 : (uint32_t)line;
        while (r.at < r.end && !(*r.at & 128)) r.at++; /* columns */
    }
    return 0;
}
