/* Interface between the library that replaces rocprofiler-sdk and the program that plays a stream. */
#ifndef REPLAY_H
#define REPLAY_H

#include <stdbool.h>
#include <stdint.h>

typedef struct replay_event replay_event; /* a line of a stream, ready to be delivered */

/* Offsets that an iteration of a loop adds to an event's ids, and the event's thread. */
typedef struct {
    uint64_t add;    /* to correlation and dispatch ids */
    uint64_t thread; /* of the operating system: the record's */
} replay_round;

/* X(type, name, parameters): found with dlsym as replay_NAME, in each copy of the library. */
#define REPLAY_FUNCTIONS(X)                                                                             \
    X(void, agent, (const char *words))             /* before any client is configured */              \
    X(replay_event *, event_of, (const char *words))   /* aborts if it cannot be parsed */                 \
    X(bool, deliver, (const replay_event *e, const replay_round *round)) /* whether a tool received it */ \
    X(void, finalize, (void))                                                                           \
    X(void, configure, (void))                      /* again; prints the tool's result */               \
    X(uint64_t, clock, (void))                      /* the library's, ns */                             \
    X(void, sample, (const char *words))            /* a sample of a program counter, or several */     \
    X(void, flush, (void))                          /* hands samples over */                            \
    X(void, subscriptions, (void))                  /* prints them */

#endif
