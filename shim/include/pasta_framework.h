/* What a framework's hooks call: they are built against the framework, at first use, and find this
 * table in the preloaded library, so that neither links to the other. */
#ifndef PASTA_FRAMEWORK_H
#define PASTA_FRAMEWORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pasta_abi.h"

#define PASTA_FRAMEWORK_VERSION 5
#define PASTA_FRAMEWORK_SYMBOL "pasta_framework_api"

/* Sees a record of this process as it is published: one of a source's or an annotation's, no record of
 * the framework's own hooks.  It is called where the vendor's callbacks are, on any thread and with any
 * lock held, so it must not wait; the record is valid until it returns. */
typedef void pasta_tap(const pasta_header *record);

typedef struct pasta_framework {
    uint32_t version;
    /* The functions of the same names in core.h. */
    void *(*begin_on)(uint32_t thread, pasta_event_kind kind, uint8_t slots, int16_t device, uint16_t context,
                      uint64_t stream);
    uint32_t (*intern)(const char *text, size_t length);
    bool (*use)(const char *source, const char *version);
    bool (*is_on)(void);
    uint32_t (*generation)(void);
    /* Called when profiling starts or stops, by the thread that does it. */
    void (*on_profiling)(void (*changed)(bool on));
    /* Where this thread's allocations find the id of their Python stack. */
    uint32_t *(*stack)(void);
    /* A range of this name opens or closes, nested on its thread: it may be a step that windows of
     * probes count. */
    void (*range_begins)(uint32_t name);
    void (*range_ends)(void);
    /* How many graphs are being captured; while there are some, the begin and the end of each operator
     * call `captured` before they are told. */
    const uint32_t *capturing;
    void (*captured)(void);
    /* Has `tap` called from now on; NULL: no more, though on other threads calls may not have returned. */
    void (*tap)(pasta_tap *tap);
    /* Text of a string id, without a NUL, or NULL: as long as the process lives. */
    const char *(*interned)(uint32_t id, size_t *length);
    void (*say)(const char *format, ...) __attribute__((format(printf, 1, 2)));
    /* Follows the allocators of torch, or not, where this library comes before theirs; what was before. */
    bool (*follow_allocators)(bool follow);
} pasta_framework;

/* NULL for a version that this library does not have. */
typedef const pasta_framework *pasta_framework_function(uint32_t version);

/* Makes a record that `begin` gave visible to the consumer. */
static inline void pasta_framework_publish(void *payload) {
    pasta_header *h = (pasta_header *)payload - 1;
    __atomic_store_n(&h->commit, ~__atomic_load_n(&h->commit, __ATOMIC_RELAXED), __ATOMIC_RELEASE);
}

#endif
