/* Contexts with probes, and what all files of the probes share: errors, device memory, the lock, waking the
 * thread that reads results. */
#include "probes.h"

static pasta_nv_prober *probers PASTA_WARM; /* newest first; never freed: a few per process */
pthread_mutex_t pasta_nv_probes_lock = PTHREAD_MUTEX_INITIALIZER;

pasta_nv_reader_state pasta_nv_reader = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

void pasta_nv_readback_wake(void) {
    pthread_mutex_lock(&pasta_nv_reader.lock);
    pasta_nv_reader.woken = true;
    pthread_cond_signal(&pasta_nv_reader.wake);
    pthread_mutex_unlock(&pasta_nv_reader.lock);
}

/* ---- errors: they end the probes of the context, nothing else ---- */

bool pasta_nv_probed(pasta_nv_prober *p, int32_t result, const char *call) {
    if (result == 0) return true;
    const char *text = NULL;
    if (pasta_nv.result_string(result, &text) != 0 || !text) text = "unknown error";
    if (!__atomic_exchange_n(&p->broken, true, __ATOMIC_ACQ_REL))
        pasta_say("probes of context %u stopped: %s failed with %d (%s); results so far are kept", p->at.context,
                  call, result, text);
    return false;
}

pasta_nv_prober *pasta_nv_probers(void) { return __atomic_load_n(&probers, __ATOMIC_ACQUIRE); }

pasta_nv_prober *pasta_nv_prober_of(uint64_t context) {
    for (pasta_nv_prober *p = pasta_nv_probers(); p; p = p->next)
        if (p->context == context && !__atomic_load_n(&p->ended, __ATOMIC_ACQUIRE)) return p;
    return NULL;
}

void pasta_nv_prober_add(pasta_nv_prober *p) {
    pthread_mutex_lock(&pasta_nv_probes_lock);
    p->next = probers;
    __atomic_store_n(&probers, p, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&pasta_nv_probes_lock);
}

/* ---- device memory, bounded by the plan ---- */

static bool reserve(pasta_nv_prober *p, uint64_t bytes) {
    uint64_t now = __atomic_add_fetch(&p->memory, bytes, __ATOMIC_RELAXED);
    if (now <= pasta_nv_the_plan.memory) return true;
    __atomic_sub_fetch(&p->memory, bytes, __ATOMIC_RELAXED);
    return false;
}

uint64_t pasta_nv_device_memory(pasta_nv_prober *p, uint64_t bytes) {
    enum { RETRY_NS = 100 * 1000 * 1000 }; /* callers ask for less and less, at every launch */
    uint64_t address = 0, refused = __atomic_load_n(&p->refused, __ATOMIC_RELAXED);
    if (refused && bytes >= refused && pasta_now() - __atomic_load_n(&p->refused_at, __ATOMIC_RELAXED) < RETRY_NS) return 0;
    if (!reserve(p, bytes)) return 0;
    if (pasta_nv.alloc(p->context, &address, bytes) == 0) return address;
    __atomic_sub_fetch(&p->memory, bytes, __ATOMIC_RELAXED);
    __atomic_store_n(&p->refused_at, pasta_now(), __ATOMIC_RELAXED);
    __atomic_store_n(&p->refused, bytes, __ATOMIC_RELAXED);
    return 0; /* the device is full: the caller does with less */
}

/* Behind the rows is the number of those that have a key. */
uint64_t pasta_nv_hash_bytes(const pasta_nv_hash *h) {
    uint64_t words = h->stripes ? h->rows + h->stripes * (h->rows + 1) * h->words : 2 * h->rows;
    return (words + 1) * sizeof(uint64_t);
}
