/* Texts by which XLA names its own work. */
#ifndef PASTA_XLA_H
#define PASTA_XLA_H

#include <stdbool.h>
#include <stddef.h>

typedef struct pasta_xla_text {
    const char *text; /* not terminated; NULL: absent */
    size_t length;
} pasta_xla_text;

/* A range's name:
 *     XlaModule:#prefix=jit(step)/jvp(MLP),hlo_module=jit_step,program_id=7#
 *     Thunk:#name=jvp(MLP)/Dense_0/dot_general,hlo_op=gemm_fusion_dot.5,unique_hlo_op_id=12#
 * The prefix is what the names of all operations of the module begin with, and is left out of them. */
typedef struct pasta_xla_title {
    bool is_module;
    pasta_xla_text prefix, module;    /* of a module */
    pasta_xla_text name, instruction; /* of an operation */
} pasta_xla_title;

/* False for other texts. */
bool pasta_xla_read_title(const char *text, pasta_xla_title *title);

/* What an instruction's HLO says of its origin: here from op_name to the number.
 *     fusion.1 = f32[16,64]{1,0} fusion(x), metadata={op_name="jit(step)/mul" deduplicated_name="fusion" stack_frame_id=5} */
pasta_xla_text pasta_xla_read_metadata(const char *hlo);
/* The value of a key of it, such as `op_name`; NULL: absent. */
pasta_xla_text pasta_xla_read_value(const char *metadata, const char *key);

/* One line of a list of source locations:
 *     - /home/me/train.py:31:12[loss] dot_general
 * with more dashes for frames called from the one before; no dash in the list that all of a module's have in common. */
typedef struct pasta_xla_frame {
    unsigned level; /* number of dashes */
    pasta_xla_text file, function;
    unsigned line;
} pasta_xla_frame;

/* Reads the line at `text` and returns the next one; NULL at the end.  A line without a place has no file. */
const char *pasta_xla_read_frame(const char *text, pasta_xla_frame *frame);

/* Writes a text in which XLA escaped < and > as in HTML; returns its length, `size` at most. */
size_t pasta_xla_unescape(pasta_xla_text text, char *to, size_t size);

#endif
