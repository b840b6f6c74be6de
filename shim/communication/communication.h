/* Calls of communication libraries, whatever the library: its folder interposes its functions and calls these. */
#ifndef PASTA_COMMUNICATION_H
#define PASTA_COMMUNICATION_H

#include "../core/internal.h"

/* A communicator of this process. Never freed: another thread may just be using it. */
typedef struct pasta_comm {
    void *handle;    /* the library's */
    uint64_t number; /* from 1 */
    uint64_t id;     /* shared by its ranks; absent: all ones */
    uint64_t calls;  /* collectives so far */
    uint64_t splits; /* communicators made from it so far */
    uint64_t *peers; /* 2 * size: sends to and receives from each peer so far; NULL: none */
    uint32_t rank, size; /* absent: all ones */
    int16_t device;
} pasta_comm;

typedef struct pasta_comm_call {
    pasta_comm *communicator; /* NULL: not known */
    pasta_collective_operation operation;
    uint64_t count, stream;
    uint32_t element, peer; /* bytes of an element, and its type; absent: all ones, NULL */
    const char *type;
    uint64_t begin; /* written by pasta_comm_begin */
} pasta_comm_call;

/* False: nothing is recorded, or this thread is inside of another recorded call. */
bool pasta_comm_records(void);

pasta_comm *pasta_comm_find(const void *handle); /* or NULL */
/* Records a new communicator; the caller sets all fields except `number`.  NULL: too many. */
pasta_comm *pasta_comm_add(const pasta_comm *made, const pasta_comm *parent, const char *library);
void pasta_comm_remove(const void *handle);
/* An id unique to this process, for a communicator whose ranks are all in it. */
uint64_t pasta_comm_own_id(void);
/* The id of a communicator that all ranks of `parent` make at the same point, those with the same `color`. */
uint64_t pasta_comm_child_id(pasta_comm *parent, uint64_t color);

/* Around a call that communicates. */
void pasta_comm_begin(pasta_comm_call *call);
void pasta_comm_end(const pasta_comm_call *call, uint32_t result);
/* Groups nest: after a begin that succeeded; around the end, `false` for all but the outermost. */
void pasta_comm_group_began(void);
bool pasta_comm_group_ends(pasta_comm_call *call);
void pasta_comm_group_ended(const pasta_comm_call *call, uint32_t result);
bool pasta_comm_in_group(void);

#endif
