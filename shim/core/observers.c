/* What frameworks report to backends and backends to frameworks, by slots: neither calls the other. */
#include "internal.h"

bool pasta_follow_captures;
uint32_t pasta_capturing;

static void (*tensor_observer)(uint64_t address, uint64_t bytes);
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
