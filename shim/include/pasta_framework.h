/* What a framework's hooks call: they are built against the framework, at first use, and find this
 * table in the preloaded library, so that neither links to the other. */
#ifndef PASTA_FRAMEWORK_H
#define PASTA_FRAMEWORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pasta_abi.h"

#define PASTA_FRAMEWORK_VERSION 2
#define PASTA_FRAMEWORK_SYMBOL "pasta_framework_api"

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
