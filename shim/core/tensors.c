/* Tensors in memory. While no launch is probed, and tools look at tensors at probed launches only, their records are put off: one
 * that is freed before the next probed launch has none. Training allocates and frees thousands in a step, nearly all of them
 * between two probed launches. */
#include <sched.h>

#include "internal.h"

bool pasta_tensor_publish(pasta_event_kind kind, int16_t device, const pasta_tensor_memory *t) {
    pasta_tensor_memory *e = pasta_begin(kind, PASTA_SLOTS(pasta_tensor_memory), device, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!e) return false;
    *e = *t;
    pasta_publish(e);
    return true;
}

/* ---- whose records are put off, by address: each in the first free place from that of its hash on ---- */

enum { PLACES_LOG2 = 14, PLACES = 1 << PLACES_LOG2, MOST = PLACES / 2 };

static struct {
    pasta_tensor_memory tensor; /* address 0: free */
    int16_t device;
} table[PLACES];
static uint32_t held PASTA_WARM;        /* places that are not free */
static uint32_t busy PASTA_WARM;        /* a thread changes the table */
static uint32_t putting_off PASTA_WARM; /* 1 + the generation of the process that does */

static void lock(void) {
    while (PASTA_UNLIKELY(__atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE))) sched_yield();
}

static void unlock(void) { __atomic_store_n(&busy, 0, __ATOMIC_RELEASE); }

static bool puts_off(void) { return __atomic_load_n(&putting_off, __ATOMIC_ACQUIRE) == pasta_generation() + 1; }

static uint32_t home(uint64_t address) { return (uint32_t)(address * UINT64_C(0x9e3779b97f4a7c15) >> (64 - PLACES_LOG2)); }
static uint32_t after(uint32_t at) { return (at + 1) % PLACES; }

/* Its place, or the free one where it would be. */
static uint32_t place_of(uint64_t address) {
    uint32_t at = home(address);
    while (table[at].tensor.address && table[at].tensor.address != address) at = after(at);
    return at;
}

/* Later ones move up, so that no free place is between one and its home. */
static void remove_at(uint32_t at) {
    for (uint32_t next = after(at); table[next].tensor.address; next = after(next)) {
        if ((next - home(table[next].tensor.address)) % PLACES < (next - at) % PLACES) continue;
        table[at] = table[next];
        at = next;
    }
    table[at].tensor.address = 0;
    held--;
}

/* Whether tensors are put off; its place comes from memory while the lock is waited for. */
static bool is_asked(uint64_t address) {
    if (!puts_off() || !address) return false;
    __builtin_prefetch(&table[home(address)], 1);
    return true;
}

bool pasta_tensor_put_off(int16_t device, const pasta_tensor_memory *t) {
    if (!is_asked(t->address)) return false;
    lock();
    uint32_t at = place_of(t->address);
    bool is_new = !table[at].tensor.address, kept = puts_off() && (!is_new || held < MOST);
    if (kept) {
        held += is_new;
        table[at].tensor = *t;
        table[at].device = device;
    }
    unlock();
    return kept;
}

bool pasta_tensor_forget(uint64_t address) {
    if (!is_asked(address)) return false;
    lock();
    uint32_t at = place_of(address);
    bool known = table[at].tensor.address;
    if (known) remove_at(at);
    unlock();
    return known;
}

void pasta_tensors_put_off(void) {
    if (pasta_config_u64("tensors_put_off", 0)) __atomic_store_n(&putting_off, pasta_generation() + 1, __ATOMIC_RELEASE);
}

void pasta_tensors_need(void) {
    if (PASTA_LIKELY(!puts_off())) return;
    lock();
    for (uint32_t at = 0; held; at++) {
        pasta_tensor_memory *t = &table[at].tensor;
        if (!t->address) continue;
        pasta_tensor_allocated(t->address, t->bytes);
        pasta_tensor_publish(PASTA_EVENT_tensor_alloc, table[at].device, t);
        t->address = 0;
        held--;
    }
    __atomic_store_n(&putting_off, 0, __ATOMIC_RELEASE);
    unlock();
}
