/* Patches in the program's modules, added and removed at the edges of windows. */
#include <inttypes.h>
#include <stdlib.h>

#include "probes.h"

#define plan pasta_nv_the_plan
static pthread_mutex_t patching = PTHREAD_MUTEX_INITIALIZER; /* the API requires serialized patching */

bool pasta_nv_add_patches(pasta_nv_prober *p) {
    int32_t result = -1;
    pthread_mutex_lock(&patching);
    for (uint32_t i = 0; i < plan.cubin_count && result != 0; i++) /* those of other devices do not load */
        result = pasta_nv.add_patches(plan.cubins[i], p->context);
    pthread_mutex_unlock(&patching);
    return pasta_nv_probed(p, result, "sanitizerAddPatchesFromFile");
}

/* With `patching` held. */
static void patch(pasta_nv_prober *p, uint64_t module) {
    for (uint32_t i = 0; i < plan.patch_count && !p->broken; i++)
        PROBED(p, patch_instructions, plan.patches[i].instruction, module, plan.patches[i].function);
    if (!p->broken) PROBED(p, patch_module, module);
}

static void unpatch(pasta_nv_prober *p, uint64_t module) {
    if (!p->broken) PROBED(p, unpatch_module, module);
}

static void remember_module(pasta_nv_prober *p, uint64_t module) {
    if (p->module_count == p->module_room) {
        uint32_t wanted = 2 * p->module_room + 64;
        void *grown = realloc(p->modules, wanted * sizeof *p->modules);
        if (!grown) return; /* keeps its patches between windows */
        p->modules = grown;
        p->module_room = wanted;
    }
    p->modules[p->module_count].handle = module;
    p->modules[p->module_count++].patched = true;
}

static void forget_module(pasta_nv_prober *p, uint64_t module) {
    for (uint32_t i = 0; i < p->module_count; i++)
        if (p->modules[i].handle == module) p->modules[i--] = p->modules[--p->module_count];
}

void pasta_nv_probes_module(uint64_t context, uint64_t module, bool loaded) {
    if (!pasta_nv_probes_on()) return;
    pasta_nv_prober *p = pasta_nv_prober_of(context);
    if (!p) return;
    pthread_mutex_lock(&patching);
    if (loaded) {
        /* also between windows: a module that never was patched runs three times slower than one
         * whose patches were removed, which cannot be done before it is loaded (measured) */
        patch(p, module);
        remember_module(p, module);
        __atomic_store_n(&p->window_changes, PASTA_ABSENT_U32, __ATOMIC_RELEASE); /* compare again */
    } else {
        forget_module(p, module);
    }
    pthread_mutex_unlock(&patching);
    if (!loaded) pasta_nv_readback_wake();
}

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
    return false; /* table full: the function keeps its patches between windows */
}

/* A function that is loaded later than its module gets the module's patches, also after they were
 * removed (13.5 on 580.159: measured): remove them again. */
static void loaded_later(pasta_nv_prober *p, const pasta_nv_launch *l) {
    if (!is_new(p, l->function)) return;
    pthread_mutex_lock(&patching);
    for (uint32_t i = 0; i < p->module_count; i++)
        if (p->modules[i].handle == l->module) p->modules[i].patched = true;
    __atomic_store_n(&p->window_changes, PASTA_ABSENT_U32, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&patching);
}

/* At the edge of a window: between windows the program runs its own code.  While a probed launch of another
 * thread is under way, patches stay until a later launch. */
static void follow_window(pasta_nv_prober *p, uint64_t ordinal) {
    bool open = pasta_probe_wanted(ordinal);
    uint32_t changes = pasta_probe_window_changes();
    if (__atomic_load_n(&p->window_changes, __ATOMIC_ACQUIRE) == changes) return;
    uint64_t begin = pasta_now();
    uint32_t switched = 0;
    pthread_mutex_lock(&patching);
    bool possible = open || __atomic_load_n(&p->under_way, __ATOMIC_ACQUIRE) == 0;
    for (uint32_t i = 0; possible && i < p->module_count && !p->broken; i++) {
        if (p->modules[i].patched == open) continue;
        (open ? patch : unpatch)(p, p->modules[i].handle);
        p->modules[i].patched = open;
        switched++;
    }
    if (possible) __atomic_store_n(&p->window_changes, changes, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&patching);
    if (switched)
        pasta_log("probes: %s %u modules of context %u in %" PRIu64 " us", open ? "patched" : "unpatched", switched,
                  p->at.context, (pasta_now() - begin) / 1000);
}

void pasta_nv_patches_follow(pasta_nv_prober *p, const pasta_nv_launch *l, uint64_t ordinal) {
    follow_window(p, ordinal);
    loaded_later(p, l);
}
