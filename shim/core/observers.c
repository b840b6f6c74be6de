/* What frameworks report to backends and backends to frameworks, by slots: neither calls the other.  And ranges that
 * a framework reads. */
#include <string.h>

#include "internal.h"

uint32_t pasta_blocks PASTA_WARM;
bool pasta_follow_captures;
uint32_t pasta_capturing PASTA_WARM;

static void (*tensor_observer)(uint64_t address, uint64_t bytes) PASTA_WARM;
static void (*capture_observer)(void);

void pasta_on_tensor(void (*observe)(uint64_t address, uint64_t bytes)) {
    __atomic_store_n(&tensor_observer, observe, __ATOMIC_RELEASE);
}

void pasta_tensor_allocated(uint64_t address, uint64_t bytes) {
    void (*observe)(uint64_t, uint64_t) = __atomic_load_n(&tensor_observer, __ATOMIC_ACQUIRE);
    if (observe) observe(address, bytes);
}

void pasta_on_capture(void (*observe)(void)) { __atomic_store_n(&capture_observer, observe, __ATOMIC_RELEASE); }

void pasta_captured(void) {
    void (*observe)(void) = __atomic_load_n(&capture_observer, __ATOMIC_ACQUIRE);
    if (observe) observe();
}

static const pasta_range_reader *range_reader;

void pasta_read_ranges(const pasta_range_reader *reader) { range_reader = reader; }

const pasta_range_reader *pasta_range_reader_of(const char *domain, size_t length) {
    const pasta_range_reader *r = range_reader;
    return r && strlen(r->domain) == length && !memcmp(r->domain, domain, length) ? r : NULL;
}
