/* The launcher as a producer of the rings of its processes, for cffi (pasta._native). */
#ifndef PASTA_WRITER_H
#define PASTA_WRITER_H

#ifndef PASTA_CFFI
#include "../include/pasta_abi.h"
#endif

/* Appends a record of this kind to the ring of another process, with its time; 0 where the ring is full
 * (counted) or of another layout, or `bytes` are not those of the kind's payload.  The ring's process must not have been marked as ended. */
int pasta_append(pasta_ring *ring, pasta_event_kind kind, int16_t device, const void *payload,
                 uint32_t bytes);
/* The same, with the time and the thread of the process that it is about. */
int pasta_append_at(pasta_ring *ring, pasta_event_kind kind, int16_t device, uint64_t time, uint32_t thread, const void *payload,
                    uint32_t bytes);
/* 0: records of some slots, which take at most a segment, would be dropped now, but no longer once pasta_back_ahead has
 * given the ring memory. */
int pasta_has_room(pasta_ring *ring, uint32_t slots);
/* Id of a string in the ring of another process; 0 where its arena is full. */
uint32_t pasta_intern_text(pasta_ring *ring, const char *text, uint32_t length);
#endif
