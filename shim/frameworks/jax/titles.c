/* Reads the texts by which XLA names its own work (xla/backends/gpu/runtime/annotation.cc of July 2026; the titles are
 * the same since 2023). */
#define _GNU_SOURCE
#include "xla.h"

#include <ctype.h>
#include <string.h>

static pasta_xla_text part(const char *from, const char *to) { return (pasta_xla_text){from, (size_t)(to - from)}; }

/* The value of the last `key` before `end`, up to `end`. */
static pasta_xla_text value_of(const char *text, const char *end, const char *key) {
    size_t length = strlen(key);
    for (const char *at = end - length; at >= text; at--)
        if (!memcmp(at, key, length)) return part(at + length, end);
    return (pasta_xla_text){NULL, 0};
}

bool pasta_xla_read_title(const char *text, pasta_xla_title *title) {
    static const char module[] = "XlaModule:", operation[] = "Thunk:";
    *title = (pasta_xla_title){.is_module = !strncmp(text, module, sizeof module - 1)};
    if (!title->is_module && strncmp(text, operation, sizeof operation - 1) != 0) return false;
    const char *end = strrchr(text, '#'), *from = strchr(text, '#');
    if (!end || end == from) return false;
    /* from the end: names of the program's may have any character */
    pasta_xla_text id = value_of(from, end, title->is_module ? ",program_id=" : ",unique_hlo_op_id=");
    if (id.text) end = id.text - strlen(title->is_module ? ",program_id=" : ",unique_hlo_op_id=");
    pasta_xla_text *own = title->is_module ? &title->module : &title->instruction;
    const char *key = title->is_module ? "hlo_module=" : "hlo_op=";
    *own = value_of(from, end, key);
    if (!own->text || !own->length) return false;
    const char *first = title->is_module ? "#prefix=" : "#name=", *start = from + strlen(first);
    const char *stop = own->text - strlen(key) - 1; /* its comma, or the first # */
    if (stop > start && !strncmp(from, first, strlen(first))) *(title->is_module ? &title->prefix : &title->name) = part(start, stop);
    return true;
}

pasta_xla_text pasta_xla_read_metadata(const char *hlo) {
    static const char key[] = ", metadata={";
    const char *at = strstr(hlo, key), *from = at ? at + sizeof key - 1 : NULL, *end = from;
    bool quoted = false;
    for (; end && *end && (quoted || *end != '}'); end++) quoted ^= *end == '"';
    return end && *end && end > from ? part(from, end) : (pasta_xla_text){NULL, 0};
}

pasta_xla_text pasta_xla_read_value(const char *metadata, const char *key) {
    size_t length = strlen(key);
    for (const char *at = metadata; at && (at = strstr(at, key)); at += length) {
        bool is_key = (at == metadata || at[-1] == ' ') && at[length] == '=' && at[length + 1] == '"';
        const char *from = at + length + 2, *end = is_key ? strchr(from, '"') : NULL;
        if (end && end > from) return part(from, end);
    }
    return (pasta_xla_text){NULL, 0};
}

/* The end of a number, or `text`. */
static const char *read_number(const char *text, unsigned *number) {
    *number = 0;
    for (; isdigit((unsigned char)*text) && *number < 100000000; text++) *number = 10 * *number + (unsigned)(*text - '0');
    return text;
}

const char *pasta_xla_read_frame(const char *text, pasta_xla_frame *frame) {
    *frame = (pasta_xla_frame){0};
    while (*text == '\n') text++;
    if (!*text) return NULL;
    const char *end = text + strcspn(text, "\n");
    const char *from = text + strspn(text, "-");
    if (*from == ' ' && from > text) frame->level = (unsigned)(from++ - text);
    else from = text;
    for (const char *at = from; at < end && !frame->file.text; at++) {
        const char *after = *at == ':' ? read_number(at + 1, &frame->line) : at + 1;
        if (*at == ':' && after > at + 1 && (after == end || strchr(":[ ", *after))) {
            unsigned column;
            frame->file = part(from, at);
            if (*after == ':') after = read_number(after + 1, &column);
            const char *close = *after == '[' ? memchr(after, ']', (size_t)(end - after)) : NULL;
            if (close) frame->function = part(after + 1, close);
        }
    }
    return end;
}

size_t pasta_xla_unescape(pasta_xla_text text, char *to, size_t size) {
    size_t length = 0;
    for (size_t i = 0; i < text.length && length < size; i++) {
        const char *at = text.text + i;
        bool escaped = text.length - i >= 4 && (!memcmp(at, "&lt;", 4) || !memcmp(at, "&gt;", 4));
        to[length++] = escaped ? (at[1] == 'l' ? '<' : '>') : *at;
        if (escaped) i += 3;
    }
    return length;
}
