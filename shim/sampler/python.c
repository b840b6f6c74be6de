/* Frames of Python in another process, which runs meanwhile: its memory is copied, and what does not fit together is
 * left out.
 *
 * The frames are read a moment after the sample.  Those that are still running are the same; the innermost ones may be
 * of a later call. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "../core/python_objects.h"
#include "internal.h"

enum { CODES = 1 << 13, MAX_PROBES = 16, MAX_THREADS = 4096, MAX_TEXT = 4096, MAX_TABLE = 1 << 20 };
enum { FRAME_BYTES = 72, CODE_BYTES = 208, THREAD_BYTES = 168, TEXT_BYTES = 72 };

#define FIELD PASTA_PYTHON_FIELD

/* A code object: its identity, and the fields that were read once. */
typedef struct code {
    uint64_t key; /* hash of the process and the address; 0: free */
    uint64_t file_object, name_object, table_object;
    uint32_t file, name; /* texts */
    int first_line;
    uint8_t *table;
    int64_t table_bytes;
} code;

struct pasta_python {
    code codes[CODES];
    pasta_texts *texts;
    int error;
};

pasta_python *pasta_python_create(pasta_texts *texts) {
    pasta_python *p = calloc(1, sizeof *p);
    if (p) p->texts = texts;
    return p;
}

void pasta_python_free(pasta_python *p) {
    for (size_t i = 0; p && i < CODES; i++) free(p->codes[i].table);
    free(p);
}

int pasta_python_error(const pasta_python *p) { return p->error; }

typedef struct remote {
    pasta_python *python;
    const pasta_python_layout *layout;
    uint32_t pid;
    uint64_t code_type;
} remote;

static bool peek(remote *r, uint64_t address, void *to, size_t bytes) {
    struct iovec here = {to, bytes}, there = {(void *)(uintptr_t)address, bytes};
    if (!address || address % sizeof(void *)) return false;
    if (process_vm_readv((pid_t)r->pid, &here, 1, &there, 1, 0) == (ssize_t)bytes) return true;
    if (errno == EPERM || errno == ENOSYS) r->python->error = errno;
    return false;
}

static uint32_t read_text(remote *r, uint64_t object) {
    union {
        uint64_t align;
        uint8_t bytes[TEXT_BYTES + 4 * MAX_TEXT];
    } copy;
    char utf8[MAX_TEXT];
    memset(copy.bytes, 0, TEXT_BYTES);
    if (!peek(r, object, copy.bytes, r->layout->ascii)) return 0;
    pasta_python_text t = pasta_python_text_of(r->layout, copy.bytes);
    if (!t.length || t.length > MAX_TEXT || (t.kind != 1 && t.kind != 2 && t.kind != 4)) return 0;
    size_t head = (size_t)(t.data - copy.bytes);
    if (!peek(r, object, copy.bytes, head + t.length * t.kind)) return 0;
    return pasta_texts_put(r->python->texts, utf8, pasta_python_utf8(&t, utf8, sizeof utf8));
}

static bool read_code(remote *r, const uint8_t *object, code *c) {
    uint8_t head[PASTA_PYTHON_BYTES_DATA];
    c->file = read_text(r, c->file_object);
    c->name = read_text(r, c->name_object);
    c->first_line = FIELD(int, object, r->layout->first_line);
    if (!c->name || !peek(r, c->table_object, head, sizeof head)) return false;
    int64_t bytes = FIELD(int64_t, head, PASTA_PYTHON_SIZE);
    uint8_t *table = bytes > 0 && bytes <= MAX_TABLE ? malloc((size_t)bytes) : NULL;
    if (!table) return false;
    free(c->table);
    c->table = table;
    c->table_bytes = bytes;
    return peek(r, c->table_object + PASTA_PYTHON_BYTES_DATA, table, (size_t)bytes);
}

/* The code object at an address, of which there is a copy; NULL if it cannot be read. */
static const code *code_at(remote *r, uint64_t address, const uint8_t *object) {
    uint64_t file = FIELD(uint64_t, object, PASTA_PYTHON_CODE_FILE), name = FIELD(uint64_t, object, PASTA_PYTHON_CODE_NAME);
    uint64_t table = FIELD(uint64_t, object, PASTA_PYTHON_CODE_LINES), key = pasta_mix(r->pid, address) | 1;
    code *c = NULL;
    for (unsigned probe = 0; probe < MAX_PROBES; probe++) {
        c = &r->python->codes[((key >> 8) + probe) % CODES];
        if (!c->key || c->key == key) break;
    }
    if (c->key == key && c->file_object == file && c->name_object == name && c->table_object == table) return c;
    c->file_object = file;
    c->name_object = name;
    c->table_object = table;
    c->key = read_code(r, object, c) ? key : 0;
    return c->key ? c : NULL;
}

/* The state of a thread of the operating system; 0 if it runs no Python. */
static uint64_t find_thread(remote *r, uint64_t runtime, uint32_t thread, uint8_t *state) {
    uint64_t at = 0, interpreter;
    if (!peek(r, runtime + r->layout->interpreters, &interpreter, sizeof interpreter)) return 0;
    if (!peek(r, interpreter + r->layout->threads, &at, sizeof at)) return 0;
    for (unsigned seen = 0; at && seen < MAX_THREADS; seen++) {
        if (!peek(r, at, state, THREAD_BYTES)) return 0;
        if (FIELD(uint64_t, state, r->layout->native_id) == thread) return at;
        at = FIELD(uint64_t, state, r->layout->next_thread);
    }
    return 0;
}

static bool describe(remote *r, const uint8_t *frame, pasta_host_line *line) {
    uint64_t object[CODE_BYTES / 8], address = FIELD(uint64_t, frame, r->layout->code);
    if (!peek(r, address, object, sizeof object) || FIELD(uint64_t, object, PASTA_PYTHON_TYPE) != r->code_type) return false;
    int64_t offset = (int64_t)(FIELD(uint64_t, frame, r->layout->instruction) - address - r->layout->instructions) / 2;
    bool hidden = offset < FIELD(int, object, r->layout->first_traceable) && FIELD(char, frame, r->layout->owner) != PASTA_PYTHON_OWNED_BY_GENERATOR;
    if (offset < -1 || offset >= FIELD(int64_t, object, PASTA_PYTHON_SIZE) || hidden) return false;
    const code *c = code_at(r, address, (const uint8_t *)object);
    if (!c) return false;
    *line = (pasta_host_line){.python = true, .file = c->file, .name = c->name, .first_line = (uint32_t)c->first_line,
                              .line = pasta_python_line_of(c->table, c->table_bytes, c->first_line, offset)};
    return true;
}

uint32_t pasta_python_lines(pasta_python *p, uint32_t pid, uint32_t thread, const pasta_interpreter *interpreter, pasta_host_line *lines,
                            uint32_t *calls, uint32_t *call_count) {
    remote r = {.python = p, .layout = pasta_python_layout_of(interpreter->minor), .pid = pid, .code_type = interpreter->code_type};
    uint64_t state[THREAD_BYTES / 8], words[FRAME_BYTES / 8], at;
    uint8_t *frame = (uint8_t *)words;
    uint32_t count = 0;
    *call_count = 0;
    if (!r.layout || !find_thread(&r, interpreter->runtime, thread, (uint8_t *)state)) return 0;
    at = FIELD(uint64_t, state, r.layout->thread_frame);
    if (r.layout->chain_frame >= 0 && !peek(&r, at + (uint64_t)r.layout->chain_frame, &at, sizeof at)) return 0;
    for (unsigned seen = 0; at && seen < 2 * PASTA_MAX_FRAMES && count < PASTA_MAX_FRAMES; seen++) {
        if (!peek(&r, at, frame, FRAME_BYTES)) break;
        bool of_c = r.layout->is_entry < 0 && FIELD(char, frame, r.layout->owner) == PASTA_PYTHON_OWNED_BY_C;
        bool last = of_c || (r.layout->is_entry >= 0 && FIELD(char, frame, r.layout->is_entry) != 0);
        if (!of_c && describe(&r, frame, &lines[count])) count++;
        if (last) calls[(*call_count)++] = count;
        at = FIELD(uint64_t, frame, r.layout->previous);
    }
    return count;
}
