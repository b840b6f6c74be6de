/* The consumer's side of the access trace, for cffi (pasta._native). */
#ifndef PASTA_TRACE_READER_H
#define PASTA_TRACE_READER_H

#ifndef PASTA_CFFI
#include "../include/pasta_trace.h"
#endif

/* How pasta_trace_take treats a chunk that is not full */
enum {
    PASTA_TAKE_full = 0,  /* leave it */
    PASTA_TAKE_seal = 1,  /* close it; its producer continues in another */
    PASTA_TAKE_final = 2, /* no producer is left: take the complete records */
};

/* Maps a trace; NULL with an errno value, or -1 where it is not (yet) a trace of this schema. */
pasta_trace *pasta_trace_map(const char *path, int *error);
void pasta_trace_unmap(pasta_trace *trace);

/* The next chunk's records and their bytes, or NULL where there are none (yet).  They stay valid until
 * pasta_trace_release.  Also a heartbeat. */
const uint8_t *pasta_trace_take(pasta_trace *trace, int how, uint32_t *bytes);
/* Releases the place of the last taken chunk to the producers. */
void pasta_trace_release(pasta_trace *trace);
/* Heartbeat of a consumer that is busy with a chunk for seconds. */
void pasta_trace_beat(pasta_trace *trace);
#endif
