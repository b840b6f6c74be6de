/* What is where in objects of CPython 3.11 to 3.13, of this process or copied from another. */
#ifndef PASTA_PYTHON_OBJECTS_H
#define PASTA_PYTHON_OBJECTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct pasta_python_layout {
    uint16_t thread_frame;  /* in the thread's state: its frame, or a structure that has it at `chain_frame` */
    int16_t chain_frame;    /* -1: the frame itself */
    uint16_t code, previous, instruction, owner;
    int16_t is_entry;       /* -1: a frame of owner PASTA_PYTHON_OWNED_BY_C precedes the outermost one of a call */
    uint16_t first_line, instructions, first_traceable; /* in a code object */
    uint16_t ascii, compact; /* sizes of the two headers of texts */
    /* from the runtime to the first interpreter, from there to its first thread, to the next one, and its id */
    uint16_t interpreters, threads, next_thread, native_id;
} pasta_python_layout;

/* In all versions. */
enum {
    PASTA_PYTHON_TYPE = 8, /* of any object */
    PASTA_PYTHON_SIZE = 16,
    PASTA_PYTHON_CODE_FILE = 112,
    PASTA_PYTHON_CODE_NAME = 120,
    PASTA_PYTHON_CODE_LINES = 136,
    PASTA_PYTHON_TEXT_HASH = 24,
    PASTA_PYTHON_TEXT_STATE = 32,
    PASTA_PYTHON_BYTES_DATA = 32,
};
enum { PASTA_PYTHON_OWNED_BY_GENERATOR = 1, PASTA_PYTHON_OWNED_BY_C = 3 };

#define PASTA_PYTHON_FIELD(type, object, offset) (*(const type *)((const char *)(object) + (offset)))

/* Of Python 3.`minor`; NULL if it is not known. */
const pasta_python_layout *pasta_python_layout_of(unsigned long minor);

typedef struct pasta_python_text {
    const uint8_t *data;
    size_t length; /* characters */
    unsigned kind; /* bytes of a character */
    bool ascii;
    int64_t hash;  /* Python's; -1: not computed */
} pasta_python_text;
pasta_python_text pasta_python_text_of(const pasta_python_layout *layout, const void *object);
size_t pasta_python_utf8(const pasta_python_text *text, char *utf8, size_t size); /* its length; cut at `size` */

/* Line of an instruction by the location table of a code object (Objects/locations.md). */
uint32_t pasta_python_line_of(const uint8_t *table, int64_t size, int first_line, int64_t instruction);

#endif
