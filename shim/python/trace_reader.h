/* The consumer's side of the access trace, for cffi (pasta._native). */
#ifndef PASTA_TRACE_READER_H
#define PASTA_TRACE_READER_H

#ifndef PASTA_CFFI
#include "../include/pasta_trace.h"
#endif

/* What pasta_trace_take may do where the next chunk is not full */
enum {
    PASTA_TAKE_full = 0,  /* leave it */
    PASTA_TAKE_seal = 1,  /* close it; its producer goes on in another */
    PASTA_TAKE_final = 2, /* no producer lives: give what they completed */
};

/* Maps a trace; NULL with an errno value, or -1 where it is no trace of this schema (yet). */
pasta_trace *pasta_trace_map(const char *path, int *error);
void pasta_trace_unmap(pasta_trace *trace);

/* The next chunk's records and their bytes, or NULL where there are none (yet).  They stay until
 * pasta_trace_release.  Counts as a look: producers wait
 * for a consumer that looks. */
const uint8_t *pasta_trace_take(pasta_trace *trace, int how, uint32_t *bytes);
/* Gives the place of the chunk that was taken last back to the producers. */
void pasta_trace_release(pasta_trace *trace);
/* For a consumer that is busy with a chunk for seconds. */
void pasta_trace_beat(pasta_trace *trace);
#endif
