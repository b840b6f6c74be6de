/* Patches in the program's modules.
 *
 * A module is patched when it is loaded, also if no launch in it will be probed: one that never was runs three times
 * slower than one whose patches were removed (measured). If every launch is probed, it stays so. Otherwise its patches
 * are taken out before a launch in it that is not probed, if no kernel or shape in it is still to be probed, no window is
 * open, or profiling is stopped; and put back before one that is.
 *
 * Which patches a module has is read without a lock. A probed launch first announces itself (`under_way`); whoever
 * takes patches out first says so (`patched`), then looks for such launches: one of both sees the other. */
#include <inttypes.h>
#include <stdlib.h>

#include "probes.h"

#define plan pasta_nv_the_plan
static pthread_mutex_t patching = PTHREAD_MUTEX_INITIALIZER; /* the API requires serialized patching */

bool pasta_nv_add_patches(pasta_nv_prober *p) {
    int32_t result = -1;
    pthread_mutex_lock(&patching);
    for (uint32_t i = 0; i < plan.cubin_count && result != 0; i++) /* cubins for other devices do not load */
        result = pasta_nv.add_patches(plan.cubins[i], p->context);
    pthread_mutex_unlock(&patching);
    return pasta_nv_probed(p, result, "sanitizerAddPatchesFromFile");
}

/* ---- modules by handle: entries are never freed, since launches read them without the lock ---- */

/* Launches without a probe after which a module loses its patches though something in it is still to be probed, perhaps
 * a shape that never returns. On an H200 such a launch costs 0.5 ms (1.5 ms with shared memory), and so does taking the
 * patches of a module out and putting them in again (docs/performance.md). */
enum { PATIENCE = 4 };

static pasta_nv_patched **bucket_of(pasta_nv_prober *p, uint64_t module) {
    return &p->modules[(module * UINT64_C(0x9e3779b97f4a7c15) >> 32) % PASTA_NV_MODULES];
}

static pasta_nv_patched *module_of(pasta_nv_prober *p, uint64_t module) {
    pasta_nv_patched *m = __atomic_load_n(bucket_of(p, module), __ATOMIC_ACQUIRE);
    while (m && m->handle != module) m = m->next;
    return m;
}

/* With `patching` held. NULL: out of memory, and the module keeps its patches. */
static pasta_nv_patched *add_module(pasta_nv_prober *p, uint64_t module) {
    pasta_nv_patched *m = module_of(p, module), **bucket = bucket_of(p, module);
    if (m || !(m = calloc(1, sizeof *m))) return m;
    m->handle = module;
    m->next = *bucket;
    __atomic_store_n(bucket, m, __ATOMIC_RELEASE);
    return m;
}

/* ---- putting patches in and taking them out, with `patching` held ---- */

static void patch(pasta_nv_prober *p, uint64_t module) {
    for (uint32_t i = 0; i < plan.patch_count && !p->broken; i++)
        PROBED(p, patch_instructions, plan.patches[i].instruction, module, plan.patches[i].function);
    if (!p->broken) PROBED(p, patch_module, module);
}

static void set_patched(pasta_nv_patched *m, bool patched) { __atomic_store_n(&m->patched, patched, __ATOMIC_SEQ_CST); }

static void put_in(pasta_nv_prober *p, pasta_nv_patched *m) {
    uint64_t begin = pasta_now();
    pthread_mutex_lock(&patching);
    if (m->loaded && !m->patched && !p->broken) {
        patch(p, m->handle);
        set_patched(m, true);
        __atomic_fetch_add(&p->switches, 1, __ATOMIC_RELAXED);
        p->switching += pasta_now() - begin;
    }
    pthread_mutex_unlock(&patching);
}

/* Not while a probed launch, perhaps in this module, is between its begin and its end: at a later one. */
static void take_out(pasta_nv_prober *p, pasta_nv_patched *m) {
    uint64_t begin = pasta_now();
    pthread_mutex_lock(&patching);
    if (m->loaded && m->patched && !p->broken) {
        set_patched(m, false);
        if (__atomic_load_n(&p->under_way, __ATOMIC_SEQ_CST)) {
            set_patched(m, true);
        } else {
            PROBED(p, unpatch_module, m->handle);
            __atomic_fetch_add(&p->switches, 1, __ATOMIC_RELAXED);
            p->switching += pasta_now() - begin;
        }
    }
    pthread_mutex_unlock(&patching);
}

void pasta_nv_probes_module(uint64_t context, uint64_t module, bool loaded) {
    if (!pasta_nv_probes_on()) return;
    pasta_nv_prober *p = pasta_nv_prober_of(context);
    if (!p) return;
    pthread_mutex_lock(&patching);
    if (loaded) patch(p, module);
    pasta_nv_patched *m = loaded ? add_module(p, module) : module_of(p, module);
    if (m) {
        m->loaded = loaded;
        __atomic_store_n(&m->wanted, 0, __ATOMIC_RELAXED); /* another one may have had the handle */
        set_patched(m, loaded);
    }
    pthread_mutex_unlock(&patching);
    if (!loaded) pasta_nv_readback_wake();
}

/* ---- launches ---- */

/* True at the first launch of each function. */
static bool is_new(pasta_nv_prober *p, uint64_t function) {
    uint32_t at = (uint32_t)(function * UINT64_C(0x9e3779b97f4a7c15) >> 51) % PASTA_NV_SEEN;
    for (uint32_t probe = 0; probe < PASTA_NV_SEEN / 2; probe++, at = (at + 1) % PASTA_NV_SEEN) {
        uint64_t there = __atomic_load_n(&p->seen[at], __ATOMIC_RELAXED);
        if (there == function) return false;
        if (there == 0 && __atomic_compare_exchange_n(&p->seen[at], &there, function, false, __ATOMIC_RELAXED,
                                                      __ATOMIC_RELAXED))
            return true;
        if (there == function) return false;
    }
    return false; /* table full: the function keeps its patches */
}

/* A function that is loaded later than its module gets the module's patches, also after they were
 * removed (13.5 on 580.159: measured): the next launch takes them out again. */
static void loaded_later(pasta_nv_prober *p, pasta_nv_patched *m, uint64_t function) {
    if (is_new(p, function)) set_patched(m, true);
}

/* Whether a module with patches should lose them at a launch that is not probed. */
static bool is_spared(pasta_nv_patched *m, uint64_t ordinal) {
    uint32_t idle = __atomic_add_fetch(&m->idle, 1, __ATOMIC_RELAXED);
    return __atomic_load_n(&m->wanted, __ATOMIC_RELAXED) <= 0 || idle > PATIENCE || !pasta_profiling_is_on() ||
           !pasta_probe_wanted(ordinal);
}

void pasta_nv_patches_follow(pasta_nv_prober *p, const pasta_nv_launch *l, uint64_t ordinal, pasta_probe_decision d) {
    if (pasta_probe_always() && pasta_profiling_is_on() && !__atomic_load_n(&p->switches, __ATOMIC_RELAXED)) return;
    pasta_nv_patched *m = module_of(p, l->module);
    if (!m) return;
    if (d.wanted) __atomic_add_fetch(&m->wanted, d.wanted, __ATOMIC_RELAXED);
    bool patched = __atomic_load_n(&m->patched, __ATOMIC_SEQ_CST);
    if (d.probed) {
        __atomic_store_n(&m->idle, 0, __ATOMIC_RELAXED);
        if (!patched) put_in(p, m);
    } else if (patched && is_spared(m, ordinal)) {
        take_out(p, m);
    }
    loaded_later(p, m, l->function);
}

void pasta_nv_patches_finish(const pasta_nv_prober *p) {
    if (p->switches)
        pasta_log("probes: patches of single modules of context %u were put in or taken out %u times, in %" PRIu64 " us",
                  p->at.context, p->switches, p->switching / 1000);
}
