/* The functions that a framework's hooks call.  Hooks are built against the framework at first use, and find
 * this table in the preloaded library: neither links to the other. */
#ifndef PASTA_FRAMEWORK_H
#define PASTA_FRAMEWORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pasta_abi.h"

#define PASTA_FRAMEWORK_VERSION 9
#define PASTA_FRAMEWORK_SYMBOL "pasta_framework_api"

/* Called with each record of this process at its publication, but not with those of the framework's hooks.
 * It runs in vendors' callbacks, on any thread and with any lock held: it must not wait.  The record is
 * valid until it returns. */
typedef void pasta_tap(const pasta_header *record);

typedef struct pasta_framework {
    uint32_t version; /* the members in the same line as this one are used for each operator */
    /* As pasta_begin_on without context and stream, but the caller writes every field. */
    void *(*reserve_on)(uint32_t thread, pasta_event_kind kind, uint8_t slots, int16_t device);
    /* The number that pasta_generation returns. */
    const uint32_t *generation;
    /* Number of graphs that are being captured; unless 0, call `captured` before the record of each begin
     * and end of an operator. */
    const uint32_t *capturing;
    void (*captured)(void);
    /* Unless `follows_operators` is 0, each begin of an operator is reported with its record, or a copy of what that would
     * be where it is dropped, and each end: which launches are probed depends on them. */
    const uint32_t *follows_operators;
    void (*operator_begins)(const pasta_operator_begin *begin);
    void (*operator_ends)(void);
    /* The functions of these names in pasta_source.h. */
    uint32_t (*intern)(const char *text, size_t length);
    bool (*use)(const char *source, const char *version);
    bool (*is_on)(void);
    /* Called when profiling starts or stops, by the thread that does it. */
    void (*on_profiling)(void (*changed)(bool on));
    /* Address of the id of the Python stack that this thread's allocations get. */
    uint32_t *(*stack)(void);
    /* A range of this name begins or ends, nested on its thread: windows may count it as a step. */
    void (*range_begins)(uint32_t name);
    void (*range_ends)(void);
    /* Whether it may: then ranges are reported while profiling is stopped, too. */
    bool (*steps_are_ranges)(void);
    /* Sets the tap; NULL: none, though calls on other threads may not have returned. */
    void (*tap)(pasta_tap *tap);
    /* Text of a string id, without a NUL, or NULL.  Valid as long as the process. */
    const char *(*interned)(uint32_t id, size_t *length);
    void (*say)(const char *format, ...) __attribute__((format(printf, 1, 2)));
    /* `change` stops and resumes the records of operators, in which no launch needs them. It runs in vendors' callbacks, on
     * any thread and with any lock held: it must not wait. It returns false if nothing changed. */
    void (*on_pause)(bool (*change)(bool paused));
    /* Records the framework's allocations, or not, where its allocators are interposed; the earlier state. */
    bool (*follow_allocators)(bool follow);
} pasta_framework;

/* NULL for another version. */
typedef const pasta_framework *pasta_framework_function(uint32_t version);

/* Makes a record of `reserve_on` visible to the consumer. */
static inline void pasta_framework_publish(void *payload) {
    pasta_header *h = (pasta_header *)payload - 1;
    __atomic_store_n(&h->commit, ~__atomic_load_n(&h->commit, __ATOMIC_RELAXED), __ATOMIC_RELEASE);
}

#endif
