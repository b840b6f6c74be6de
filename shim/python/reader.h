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
    uint32_t final;  /* 1: nobody publishes any more, so records that were never finished are skipped */
    uint64_t torn; /* slots skipped so */
    uint32_t counts[64]; /* records per kind in [from, end) */
} pasta_stretch;

/* Maps a ring file; NULL with an errno value, or -1 where it is no ring of this schema (yet). */
pasta_ring *pasta_map(const char *path, int *error);
void pasta_unmap(pasta_ring *ring);

const char *pasta_payload_name(int kind);
int pasta_kind_slots(int kind);

/* Finds the published records of a stretch: sets end, torn and counts. */
void pasta_scan(pasta_stretch *stretch);
/* Copies the records that pasta_scan found to outputs[kind], whole slots each, in order; commit
 * becomes the record's position relative to `base`.  outputs[kind] may be NULL to leave it out. */
void pasta_gather(const pasta_stretch *stretch, uint64_t base, void **outputs);

/* `position`, or the lower one that the reader of a block has come to. */
uint64_t pasta_releasable(pasta_ring *ring, uint64_t position);
/* The reader of a block needs nothing before `position` any more; all ones: nothing at all.  0 where it is
 * not that block's turn any more. */
int pasta_move_reader(pasta_ring *ring, uint32_t block, uint64_t position);
/* Gives the memory of all segments that end at or before that back to the producers. */
void pasta_release(pasta_ring *ring, uint64_t position);
/* Gives memory to `count` segments beyond those that the producers have taken, so that these need not
 * ask for it: they may be under a filter that ends them for that.  0 or an errno value. */
int pasta_back_ahead(pasta_ring *ring, const char *path, uint32_t count);
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
