/* Call stacks of this thread: unwind.c, with rules from cfi.c and the interpreter's frames from python_frames.c. */
#ifndef PASTA_UNWIND_H
#define PASTA_UNWIND_H

#include <link.h>

#include "internal.h"

enum { PASTA_MAX_FRAMES = 192 };

/* A frame: native code, or a line of Python that runs in it. */
typedef struct pasta_frame {
    uint64_t address;  /* inside the call; of a Python frame, the address of its instruction */
    const void *code;  /* Python's code object; NULL: native */
} pasta_frame;

typedef enum pasta_unwind_method {
    PASTA_UNWIND_AUTO, /* .eh_frame where there is some and libunwind is installed, else frame pointers */
    PASTA_UNWIND_FRAME_POINTERS,
    PASTA_UNWIND_EH_FRAME,
} pasta_unwind_method;

/* How the caller's registers are found from those of a frame, by the address of the call.
 *
 *     CFA = BASE + cfa, or the word there        BASE: the stack or the frame pointer
 *     the return address is at CFA + ra, the caller's frame pointer as `saved` says */
typedef struct pasta_rule {
    uint8_t kind;  /* pasta_rule_kind */
    uint8_t saved; /* pasta_saved */
    int16_t ra, fp;
    int32_t cfa;
} pasta_rule;

typedef enum pasta_rule_kind {
    PASTA_RULE_NONE,    /* not known */
    PASTA_RULE_OUTER,   /* the outermost frame */
    PASTA_RULE_SP,      /* CFA = stack pointer + cfa */
    PASTA_RULE_FP,      /* CFA = frame pointer + cfa */
    PASTA_RULE_SP_WORD, /* CFA = the word at stack pointer + cfa */
    PASTA_RULE_FP_WORD,
    PASTA_RULE_SIGNAL,  /* the frame of a signal's handler: `cfa`, `ra` and `fp` are offsets from the stack pointer */
} pasta_rule_kind;

typedef enum pasta_saved {
    PASTA_SAVED_NOT, /* the frame pointer is the caller's */
    PASTA_SAVED_CFA, /* the caller's is at CFA + fp */
    PASTA_SAVED_FP,  /* … at frame pointer + fp */
} pasta_saved;

/* A loaded object, while it is loaded; or one of another process. */
typedef struct pasta_object {
    uint64_t start, end;  /* of the segment with the address */
    uint64_t bias;        /* address of a byte less its address in the file */
    const char *path;     /* empty: the program itself */
    const ElfW(Phdr) *headers;
    uint64_t header_count;
    uint64_t frame_header; /* address of .eh_frame_hdr; 0: none */
    bool in_file;          /* not loaded in this process: read from `file`, a descriptor */
    int file;
} pasta_object;

/* ---- objects.c ---- */
/* Objects that were loaded and unloaded so far: addresses mean something else after a change. */
typedef struct pasta_loads {
    uint64_t added, removed;
} pasta_loads;
pasta_loads pasta_loads_now(void);
/* The object whose executable code is at an address. */
bool pasta_object_at(uint64_t address, pasta_object *object);
/* The segment of the object's file that holds these bytes, which can be read; NULL: none. */
const ElfW(Phdr) *pasta_object_segment(const pasta_object *o, uint64_t address, uint64_t bytes);
enum { PASTA_MAX_BUILD = 64 };
/* The build id of a loaded object, or in notes, as hexadecimal digits, without a NUL; its length, 0 without one. */
size_t pasta_object_build_id(const pasta_object *o, char text[PASTA_MAX_BUILD]);
size_t pasta_build_id_of(const uint8_t *notes, uint64_t bytes, char text[PASTA_MAX_BUILD]);

/* ---- cfi.c ---- */
bool pasta_cfi_load(void); /* false: libunwind is not installed, or has another interface */
typedef enum pasta_cfi_answer {
    PASTA_CFI_NONE,  /* there is no table for the code */
    PASTA_CFI_FOUND, /* `rule`; its kind is PASTA_RULE_NONE where no rule has this form */
} pasta_cfi_answer;
/* Rule for the code at `address` of an object.  One thread at a time. */
pasta_cfi_answer pasta_cfi_rule(uint64_t address, const pasta_object *object, pasta_rule *rule);

/* ---- python_frames.c ---- */
typedef struct pasta_python_walk {
    const void *frame; /* next frame, or NULL */
} pasta_python_walk;
void pasta_python_find(void); /* the program's Python, once; without Python there are no frames */
bool pasta_python_is_eval(uint64_t address); /* code of the interpreter's loop */
pasta_python_walk pasta_python_begin(void);
/* Takes the frames that one call of the interpreter's loop runs, innermost first; their number. */
size_t pasta_python_take(pasta_python_walk *walk, pasta_frame *frames, size_t capacity);
uint64_t pasta_python_hash(const pasta_frame *frame); /* of its content, not of addresses */
/* Fills in the fields of a record but `stack` and `depth`. */
typedef struct pasta_python_line {
    uint32_t file, function, line, first_line;
} pasta_python_line;
pasta_python_line pasta_python_describe(const pasta_frame *frame);

/* ---- steps of a walk ---- */
typedef struct pasta_registers {
    uint64_t ip, sp, fp;
    bool exact; /* ip is the next instruction, not a return address */
} pasta_registers;

/* An address inside the call. */
static inline uint64_t pasta_call_of(const pasta_registers *r) { return r->exact ? r->ip : r->ip - 1; }

/* Of code with frame pointers, after its prologue. */
static const pasta_rule pasta_frame_pointer = {.kind = PASTA_RULE_FP, .saved = PASTA_SAVED_CFA, .cfa = 16, .ra = -8, .fp = -16};

/* Reads a word of a stack. */
typedef bool pasta_load(const void *stack, uint64_t address, uint64_t *value);

/* Steps to the caller; false at the outermost frame, and where a word cannot be read or is none of a stack.
 * `anywhere`: a signal's frame may lead to any other stack. */
static inline __attribute__((always_inline)) bool pasta_step(const void *stack, pasta_load *load, bool anywhere, pasta_rule rule,
                                                             pasta_registers *r, bool *ended) {
    pasta_registers caller = {.fp = r->fp};
    bool by_fp = rule.kind == PASTA_RULE_FP || rule.kind == PASTA_RULE_FP_WORD;
    *ended = rule.kind == PASTA_RULE_OUTER;
    if (rule.kind == PASTA_RULE_NONE || *ended) return false;
    uint64_t cfa = (by_fp ? r->fp : r->sp) + (uint64_t)(int64_t)rule.cfa;
    bool is_word = rule.kind == PASTA_RULE_SP_WORD || rule.kind == PASTA_RULE_FP_WORD || rule.kind == PASTA_RULE_SIGNAL;
    if (is_word && !load(stack, cfa, &cfa)) return false;
    bool signal = rule.kind == PASTA_RULE_SIGNAL;
    uint64_t base = signal ? r->sp : cfa;
    if (!load(stack, base + (uint64_t)(int64_t)rule.ra, &caller.ip)) return false;
    if (signal || rule.saved == PASTA_SAVED_CFA) {
        if (!load(stack, base + (uint64_t)(int64_t)rule.fp, &caller.fp)) return false;
    } else if (rule.saved == PASTA_SAVED_FP && !load(stack, r->fp + (uint64_t)(int64_t)rule.fp, &caller.fp)) {
        return false;
    }
    caller.sp = cfa;
    caller.exact = signal;
    *ended = caller.ip == 0 || (rule.kind == PASTA_RULE_FP && rule.cfa == 16 && caller.fp == 0 && caller.ip < 4096);
    /* stacks grow downwards, so the walk ends; only from a signal's stack it goes anywhere */
    if (caller.ip < 4096 || (caller.sp <= r->sp && !(signal && anywhere))) return false;
    *r = caller;
    return true;
}

/* ---- unwind.c ---- */
/* Before the first walk; false: it needs libunwind, which is not installed. */
bool pasta_unwind_configure(pasta_unwind_method method);
/* The frames of this thread, innermost first, from the caller of this library on; their number.
 * Sets `truncated` where more or unknown frames are left. */
size_t pasta_unwind(pasta_frame *frames, size_t capacity, bool *truncated);

#endif
