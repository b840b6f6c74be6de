/* Between the files of the sampler only.  Lowest first: texts · files, mappings, python, stacks · rules ·
 * walk · perf. */
#ifndef PASTA_SAMPLER_INTERNAL_H
#define PASTA_SAMPLER_INTERNAL_H

#include <stddef.h>
#include <sys/types.h>

#include "../core/unwind.h"
#include "../include/pasta_abi.h"
#include "sampler.h"

/* ---- texts.c: texts by number; 0 is the empty one ---- */
typedef struct pasta_texts pasta_texts;
pasta_texts *pasta_texts_create(void);
void pasta_texts_free(pasta_texts *texts);
uint32_t pasta_texts_put(pasta_texts *texts, const char *text, size_t length); /* 0 if there are too many */
const char *pasta_texts_get(const pasta_texts *texts, uint32_t number, uint32_t *length);

/* ---- files.c: programs and libraries that are mapped, by their files ---- */
enum { PASTA_MAX_FILES = 4096 };
typedef struct pasta_file {
    char *path;
    dev_t device;
    ino_t inode;
    uint32_t image, build; /* texts */
    pasta_object object;   /* addresses are file addresses */
    ElfW(Phdr) *headers;
    int64_t used;          /* when its descriptor was last used; 0: it is closed */
    bool is_elf;
    uint32_t python;       /* minor version of Python 3, of its interpreter; 0: another file */
    uint64_t eval_start, eval_end, runtime, code_type; /* addresses in the interpreter's file */
} pasta_file;
typedef struct pasta_files pasta_files;
pasta_files *pasta_files_create(pasta_texts *texts);
void pasta_files_free(pasta_files *files);
/* Number of a file that a process has mapped; -1 if there are too many. */
int32_t pasta_files_find(pasta_files *files, const char *path, dev_t device, ino_t inode, uint32_t pid);
pasta_file *pasta_files_get(pasta_files *files, int32_t number);
/* Address in the file of the byte at an offset; false where that is not code. */
bool pasta_file_address(const pasta_file *file, uint64_t offset, uint64_t *address);
/* Opens the file for pasta_cfi_rule; false where it is not there any more. */
bool pasta_files_open(pasta_files *files, pasta_file *file);

/* ---- rules.c: rules of frames by address ---- */
typedef struct pasta_rules pasta_rules;
pasta_rules *pasta_rules_create(pasta_files *files, pasta_unwind_method method);
void pasta_rules_free(pasta_rules *rules);
bool pasta_rules_have_cfi(const pasta_rules *rules);
/* `file`: -1 for code of none. */
pasta_rule pasta_rules_at(pasta_rules *rules, int32_t file, uint64_t address);

/* ---- mappings.c ---- */
typedef struct pasta_mapping {
    uint64_t start, end, offset;
    int32_t file;
} pasta_mapping;
typedef struct pasta_process_state {
    struct pasta_process_state *next;
    uint32_t pid, count, room;
    pasta_mapping *mappings; /* by address */
    pasta_ring *ring;
    uint8_t *published; /* bitmap of stacks whose frames are in the ring */
    uint32_t lost;      /* since the last sample */
    uint64_t begun;     /* ns; of its program, or of its fork */
    uint64_t ended;     /* ns; 0: it runs */
} pasta_process_state;
void pasta_mappings_add(pasta_process_state *process, pasta_mapping mapping);
const pasta_mapping *pasta_mappings_at(const pasta_process_state *process, uint64_t address);
bool pasta_mappings_copy(pasta_process_state *process, const pasta_process_state *parent);

/* ---- stacks.c: stacks by content ---- */
typedef struct pasta_host_line {
    uint32_t file, name; /* texts: image and build id; of a frame of Python its file and function */
    uint32_t line, first_line;
    uint64_t address;    /* of native code */
    bool python;
} pasta_host_line;
enum { PASTA_MAX_STACKS = 1 << 16 };
typedef struct pasta_stacks pasta_stacks;
pasta_stacks *pasta_stacks_create(pasta_texts *texts);
void pasta_stacks_free(pasta_stacks *stacks);
/* Number of a stack; 0 if there are too many. */
uint32_t pasta_stacks_put(pasta_stacks *stacks, const pasta_host_line *lines, uint32_t count);
/* Publishes the frames of a stack; its id in the ring, PASTA_STACK_absent where the ring is full. */
uint32_t pasta_stacks_publish(pasta_stacks *stacks, uint32_t number, pasta_process_state *process);

/* ---- python.c ---- */
typedef struct pasta_interpreter {
    uint32_t minor;
    uint64_t runtime, code_type; /* addresses in the process */
} pasta_interpreter;
typedef struct pasta_python pasta_python;
pasta_python *pasta_python_create(pasta_texts *texts);
void pasta_python_free(pasta_python *python);
int pasta_python_error(const pasta_python *python); /* errno value where processes may not be read; 0: none */
/* Frames of Python of a thread, innermost first, at most PASTA_MAX_FRAMES; their number.  `calls`: the numbers of frames up to
 * the end of each call of the interpreter's loop, at most 2 * PASTA_MAX_FRAMES. */
uint32_t pasta_python_lines(pasta_python *python, uint32_t pid, uint32_t thread, const pasta_interpreter *interpreter,
                            pasta_host_line *lines, uint32_t *calls, uint32_t *call_count);

/* ---- walk.c ---- */
typedef struct pasta_dump {
    pasta_registers registers;
    const uint8_t *stack; /* from the stack pointer on */
    uint64_t bytes;
    uint32_t thread;
} pasta_dump;
typedef struct pasta_walker {
    pasta_files *files;
    pasta_rules *rules;
    pasta_python *python;
} pasta_walker;
/* The lines of a stack, innermost first; their number. */
uint32_t pasta_walk(const pasta_walker *walker, const pasta_process_state *process, const pasta_dump *dump, pasta_host_line *lines,
                    bool *truncated);

#endif
