/* The consumer's side of the ring, for cffi (pasta._native). */
#ifndef PASTA_READER_H
#define PASTA_READER_H

#ifndef PASTA_CFFI
#include "../include/pasta_abi.h"
#endif

/* A stretch of slots: of a ring (`ring`), or of spilled segments in memory (`spilled`). */
typedef struct pasta_stretch {
    pasta_ring *ring;
    const uint8_t *spilled; /* whole segments, one after the other, when ring is NULL */
    uint64_t spilled_first; /* number of the first spilled segment */
    uint32_t segment_slots;
    uint64_t from; /* first position to decode */
    uint64_t end;  /* position to stop before; set to where decoding stopped */
    uint32_t final;  /* 1: no producer is left, so unfinished records are skipped */
    uint64_t torn; /* slots of those */
    uint32_t counts[128]; /* records per kind in [from, end) */
} pasta_stretch;

/* Maps a ring file; NULL with an errno value, or -1 where it is not (yet) a ring of this schema. */
pasta_ring *pasta_map(const char *path, int *error);
void pasta_unmap(pasta_ring *ring);

/* A row of PASTA_EVENTS; pasta_kinds has PASTA_EVENT_count of them, in its order. */
typedef struct pasta_kind {
    const char *name, *payload, *handler, *label;
    uint32_t number;
    pasta_category category;
    uint32_t retain, own;
} pasta_kind;
extern const pasta_kind pasta_kinds[];
int pasta_kind_slots(int kind);

/* Finds the published records of a stretch: sets end, torn and counts. */
void pasta_scan(pasta_stretch *stretch);
/* Copies the records that pasta_scan found to outputs[kind], whole slots each, in order; commit
 * becomes the record's position relative to `base`.  outputs[kind] may be NULL to leave it out. */
void pasta_gather(const pasta_stretch *stretch, uint64_t base, void **outputs);

/* `position`, or the position of a block's reader where that is lower. */
uint64_t pasta_releasable(pasta_ring *ring, uint64_t position);
/* The reader of a block is done with everything before `position`; all ones: with everything.  0 where
 * another block has begun. */
int pasta_move_reader(pasta_ring *ring, uint32_t block, uint64_t position);
/* Releases the memory of all segments that end at or before that to the producers. */
void pasta_release(pasta_ring *ring, uint64_t position);
/* Backs `count` segments beyond those that the producers use with memory, for producers under a filter of
 * system calls.  0 or an errno value. */
int pasta_back_ahead(pasta_ring *ring, const char *path, uint32_t count);
/* Releases the reserve of the file, which is kept for those who write beside the ring when its process has ended. */
void pasta_release_reserve(pasta_ring *ring);
/* Memory of a logical segment or NULL. */
uint8_t *pasta_segment_memory(pasta_ring *ring, uint64_t logical);
uint64_t pasta_tail(pasta_ring *ring);
/* Waits until the ring asks its consumer to finish, or for `timeout_ms`; 1 if it asks. */
int pasta_wait_finish(pasta_ring *ring, uint32_t timeout_ms);
int pasta_wait_finished(pasta_ring *ring, uint32_t timeout_ms);
void pasta_ask_finish(pasta_ring *ring);
void pasta_mark_finished(pasta_ring *ring);
void pasta_beat(pasta_ring *ring);
/* Text of an interned string and its length, or NULL. */
const char *pasta_string_text(pasta_ring *ring, uint32_t id, uint32_t *length);
#endif
