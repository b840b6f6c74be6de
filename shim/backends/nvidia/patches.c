/* Patches in the program's modules.
 *
 * A module is patched when it is loaded, also if no launch in it will be probed: one that never was runs three times
 * slower than one whose patches were removed (measured). If every launch is probed, it stays so. Otherwise its patches
 * are taken out before a launch in it that is not probed, if no kernel or shape in it is still to be probed, no window is
 * open, or profiling is stopped; and put back before one that is.
 *
 * Both need the driver's lock of the context for writing, which a launch into a stream of the program's holds for
 * reading: in the callback of such a launch they would wait forever (580.159: measured). So they are made where the
 * program calls the driver, which has no lock yet. What is launched there is known from earlier launches of the same
 * function, and whether that would be probed is asked in advance. A launch whose module turns out to have no patches is
 * not probed. While work is captured into a graph, patches stay as they are. Nodes are known only when their graph has
 * begun: they ask for what the next launch of the graph needs.
 *
 * For the same reason nobody waits for `patching` in the callback of a launch: who holds it may wait for that launch.
 *
 * Which patches a module has is read without a lock. A launch that may be probed first announces itself (`under_way`);
 * whoever takes patches out first says so (`patched`), then looks for such launches: one of both sees the other. */
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "probes.h"

#define plan pasta_nv_the_plan
static pthread_mutex_t patching = PTHREAD_MUTEX_INITIALIZER; /* the API requires serialized patching */
static bool switching;                                       /* who holds it may wait for a lock of the driver's */
static bool unknown_modules;                                 /* some module has no entry: it keeps its patches */

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

/* NULL: out of memory, and the module keeps its patches. */
static pasta_nv_patched *add_module(pasta_nv_prober *p, uint64_t module) {
    static pthread_mutex_t adding = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&adding);
    pasta_nv_patched *m = module_of(p, module), **bucket = bucket_of(p, module);
    if (!m && (m = calloc(1, sizeof *m))) {
        m->handle = module;
        m->next = *bucket;
        __atomic_store_n(bucket, m, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&adding);
    return m;
}

/* The module after `m`, of all that were loaded; NULL: the first one, or none is left. */
static pasta_nv_patched *module_after(pasta_nv_prober *p, const pasta_nv_patched *m) {
    if (m && m->next) return m->next;
    pasta_nv_patched *found = NULL;
    for (ptrdiff_t way = m ? bucket_of(p, m->handle) - p->modules + 1 : 0; way < PASTA_NV_MODULES && !found; way++)
        found = __atomic_load_n(&p->modules[way], __ATOMIC_ACQUIRE);
    return found;
}

/* ---- putting patches in and taking them out, with `patching` held ---- */

static void patch(pasta_nv_prober *p, uint64_t module) {
    for (uint32_t i = 0; i < plan.patch_count && !p->broken; i++)
        PROBED(p, patch_instructions, plan.patches[i].instruction, module, plan.patches[i].function);
    if (!p->broken) PROBED(p, patch_module, module);
}

static bool is(const bool *flag) { return __atomic_load_n(flag, __ATOMIC_SEQ_CST); }
static void set(bool *flag, bool value) { __atomic_store_n(flag, value, __ATOMIC_SEQ_CST); }
static bool has_some(const pasta_nv_patched *m) { return is(&m->patched) || is(&m->mixed); }

/* Patches of a new module are for its first launches: no rest takes them out at once. */
static void set_some(bool *flag) {
    set(flag, true);
    pasta_nv_rest_due(pasta_coming_launch());
}

static void begin_switching(void) {
    pthread_mutex_lock(&patching);
    set(&switching, true);
}

static void end_switching(void) {
    set(&switching, false);
    pthread_mutex_unlock(&patching);
}

static void switched(pasta_nv_prober *p, uint64_t begin) {
    __atomic_fetch_add(&p->switches, 1, __ATOMIC_RELAXED);
    p->switching += pasta_now() - begin;
}

static void put_in(pasta_nv_prober *p, pasta_nv_patched *m) {
    uint64_t begin = pasta_now();
    begin_switching();
    if (is(&m->loaded) && !is(&m->patched) && !is(&m->fixed) && !p->broken) {
        if (is(&m->mixed)) PROBED(p, unpatch_module, m->handle);
        patch(p, m->handle);
        set(&m->mixed, false);
        set_some(&m->patched);
        switched(p, begin);
    }
    end_switching();
}

/* Not while a launch that may be probed, perhaps in this module, is between its begin and its end: at a later call. */
static void take_out(pasta_nv_prober *p, pasta_nv_patched *m) {
    uint64_t begin = pasta_now();
    begin_switching();
    bool patched = is(&m->patched);
    if (is(&m->loaded) && has_some(m) && !p->broken) {
        set(&m->patched, false);
        if (__atomic_load_n(&p->under_way, __ATOMIC_SEQ_CST)) {
            set(&m->patched, patched);
        } else {
            set(&m->mixed, false);
            PROBED(p, unpatch_module, m->handle);
            switched(p, begin);
        }
    }
    end_switching();
}

/* A module that is loaded while another's patches are switched gets its own at a later call. */
static bool patched_now(pasta_nv_prober *p, uint64_t module) {
    while (pthread_mutex_trylock(&patching) != 0) {
        if (is(&switching)) {
            __atomic_fetch_add(&p->switches, 1, __ATOMIC_RELAXED);
            return false;
        }
        sched_yield();
    }
    patch(p, module);
    pthread_mutex_unlock(&patching);
    return true;
}

void pasta_nv_probes_module(uint64_t context, uint64_t module, bool loaded) {
    if (!pasta_nv_probes_on()) return;
    pasta_nv_prober *p = pasta_nv_prober_of(context);
    if (!p) return;
    bool patched = loaded && patched_now(p, module);
    pasta_nv_patched *m = loaded ? add_module(p, module) : module_of(p, module);
    if (m) {
        __atomic_store_n(&m->wanted, 0, __ATOMIC_RELAXED); /* another one may have had the handle */
        set(&m->mixed, false);
        set(&m->fixed, false);
        set(&m->loaded, loaded);
        patched ? set_some(&m->patched) : set(&m->patched, false);
    } else if (loaded) {
        set_some(&unknown_modules);
    }
    if (!loaded) pasta_nv_readback_wake();
}

/* ---- launches ---- */

/* Whether a module with patches should lose them at a launch that is not probed. */
static bool is_spared(pasta_nv_patched *m, uint64_t ordinal) {
    uint32_t idle = __atomic_add_fetch(&m->idle, 1, __ATOMIC_RELAXED);
    return __atomic_load_n(&m->wanted, __ATOMIC_RELAXED) <= 0 || idle > PATIENCE || !pasta_profiling_is_on() ||
           !pasta_probe_wanted(ordinal);
}

/* Every launch is probed, and no module has lost its patches. */
static bool all_patched(pasta_nv_prober *p) {
    return pasta_probe_always() && pasta_profiling_is_on() && !__atomic_load_n(&p->switches, __ATOMIC_RELAXED);
}

/* ---- calls ---- */

static _Thread_local pasta_nv_calling calling; /* of this thread, in progress */
static uint32_t captures PASTA_WARM, calls PASTA_WARM; /* of all threads, in progress */

/* The entry of a function's handle, with `created` created at first use. NULL: there is none, or the table is full: then
 * launches of the function change no patches. */
static pasta_nv_called *called_of(pasta_nv_prober *p, uint64_t function, bool *created) {
    enum { SIZE = 1 << PASTA_NV_FUNCTIONS_LOG2 };
    uint32_t at = (uint32_t)(function * UINT64_C(0x9e3779b97f4a7c15) >> (64 - PASTA_NV_FUNCTIONS_LOG2));
    for (uint32_t probe = 0; probe < SIZE / 2; probe++, at = (at + 1) % SIZE) {
        pasta_nv_called *f = &p->called[at];
        uint64_t there = __atomic_load_n(&f->function, __ATOMIC_RELAXED);
        if (!there && !created) return NULL;
        if (!there && __atomic_compare_exchange_n(&f->function, &there, function, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
            *created = true;
            return f;
        }
        if (there == function) return f;
    }
    return NULL;
}

static bool is_new(pasta_nv_prober *p, uint64_t function) {
    bool created = false;
    if (function) (void)called_of(p, function, &created);
    return created;
}

/* What is launched by the call in progress. */
static void learn(pasta_nv_prober *p, pasta_nv_patched *m, const pasta_nv_launching *l) {
    bool created;
    pasta_nv_called *f = calling.function ? called_of(p, calling.function, &created) : NULL;
    if (!f || (__atomic_load_n(&f->module, __ATOMIC_RELAXED) == m && __atomic_load_n(&f->name, __ATOMIC_RELAXED) == l->name))
        return;
    __atomic_store_n(&f->name, l->name, __ATOMIC_RELAXED);
    __atomic_store_n(&f->selected, l->selected, __ATOMIC_RELAXED);
    __atomic_store_n(&f->module, m, __ATOMIC_RELEASE);
}

enum { MOST_OTHERS = 64 };

static void function_called(pasta_nv_prober *p, const pasta_nv_calling *call) {
    pasta_nv_called *f = called_of(p, call->function, NULL);
    pasta_nv_patched *m = f ? __atomic_load_n(&f->module, __ATOMIC_ACQUIRE) : NULL;
    if (!m) return;
    pasta_kernel_launch l = {.ordinal = pasta_coming_launch(),
                             .name = __atomic_load_n(&f->name, __ATOMIC_RELAXED),
                             .module = m->handle,
                             .graph_node = PASTA_ABSENT_U64,
                             .shared_dynamic = PASTA_ABSENT_U32};
    memcpy(l.grid, call->grid, sizeof l.grid);
    memcpy(l.block, call->block, sizeof l.block);
    bool selected = __atomic_load_n(&f->selected, __ATOMIC_RELAXED);
    uint32_t others = __atomic_load_n(&calls, __ATOMIC_SEQ_CST) - 1;
    if (selected && pasta_profiling_is_on() && pasta_probe_would_take(&l, others < MOST_OTHERS ? others : MOST_OTHERS)) {
        if (!is(&m->patched)) put_in(p, m);
    } else if (has_some(m) && is_spared(m, l.ordinal)) {
        take_out(p, m);
    }
}

static void graph_called(pasta_nv_prober *p, uint64_t graph) {
    if (!is(&p->asked)) return;
    set(&p->asked, false);
    for (pasta_nv_patched *m = module_after(p, NULL); m; m = module_after(p, m)) {
        uint8_t asked = __atomic_load_n(&m->asked, __ATOMIC_ACQUIRE);
        if (!asked) continue;
        if (__atomic_load_n(&m->graph, __ATOMIC_RELAXED) != graph) {
            set(&p->asked, true);
            continue;
        }
        __atomic_store_n(&m->asked, 0, __ATOMIC_RELAXED);
        asked == PASTA_NV_PUT_IN ? put_in(p, m) : take_out(p, m);
    }
}

static bool some_has_patches(void) {
    for (pasta_nv_prober *p = pasta_nv_probers(); p; p = p->next)
        for (pasta_nv_patched *m = module_after(p, NULL); m; m = module_after(p, m))
            if (is(&m->loaded) && has_some(m)) return true;
    return is(&unknown_modules);
}

/* A rest begins only when no module has patches. Those in modules of other contexts are taken out by calls in these contexts. */
static void rest(pasta_nv_prober *p) {
    for (pasta_nv_patched *m = module_after(p, NULL); m; m = module_after(p, m))
        if (is(&m->loaded) && has_some(m)) take_out(p, m);
    if (!some_has_patches()) pasta_nv_rest_begin();
    /* perhaps another thread has just put some in, and has not seen that the rest began */
    if (some_has_patches()) pasta_nv_rest_due(pasta_coming_launch());
}

void pasta_nv_probes_calling(uint64_t context, const pasta_nv_calling *call) {
    pasta_nv_prober *p = pasta_nv_probes_on() ? pasta_nv_prober_of(context) : NULL;
    if (!p || p->broken) return;
    if (!calling.function && !calling.graph) __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
    calling = *call;
    if (all_patched(p) || __atomic_load_n(&captures, __ATOMIC_SEQ_CST)) return;
    if (call->graph) {
        graph_called(p, call->graph);
    } else if (pasta_nv_rest_hears()) {
        function_called(p, call);
        if (PASTA_UNLIKELY(pasta_nv_rest_is_near(pasta_coming_launch()))) rest(p);
    }
}

void pasta_nv_probes_called(void) {
    if (calling.function || calling.graph) __atomic_sub_fetch(&calls, 1, __ATOMIC_SEQ_CST);
    calling = (pasta_nv_calling){0};
}

/* Changing patches while some thread captures work into a graph would make the capture invalid. */
void pasta_nv_probes_capture(bool begins) {
    uint32_t before = __atomic_load_n(&captures, __ATOMIC_RELAXED), after;
    do {
        after = begins ? before + 1 : before ? before - 1 : 0;
    } while (!__atomic_compare_exchange_n(&captures, &before, after, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
}

/* Puts patches in that are missing; modules that remain without get none again. */
static void prepare_graph(pasta_nv_prober *p, bool put) {
    bool missing = false;
    for (pasta_nv_patched *m = module_after(p, NULL); m; m = module_after(p, m)) {
        if (!is(&m->loaded) || is(&m->patched)) continue;
        missing = true;
        if (put) put_in(p, m);
        if (!is(&m->patched)) set(&m->fixed, true);
    }
    if (missing) __atomic_add_fetch(&p->graphs, 1, __ATOMIC_RELAXED);
}

/* A graph that was made when a kernel had no patches executes illegal instructions once it has (580.159: measured); one
 * that was made with patches follows when they are taken out and put in. So they are put in before. This takes time:
 * modules that have none when a later graph is made are left without. Nothing changes until the call has ended. */
void pasta_nv_probes_graph(uint64_t context, bool begins, bool made) {
    enum { GRAPHS = 8 };
    pasta_nv_prober *p = begins && pasta_nv_probes_on() ? pasta_nv_prober_of(context) : NULL;
    bool captured = __atomic_load_n(&captures, __ATOMIC_SEQ_CST) != 0;
    pasta_nv_probes_capture(begins);
    if (p && !p->broken && !all_patched(p))
        prepare_graph(p, made && !captured && __atomic_load_n(&p->graphs, __ATOMIC_RELAXED) < GRAPHS);
}

/* ---- launches in a call ---- */

bool pasta_nv_patches_ready(pasta_nv_prober *p, const pasta_nv_launch *l) {
    if (all_patched(p)) return true;
    pasta_nv_patched *m = module_of(p, l->module);
    return !m || is(&m->patched);
}

static void ask(pasta_nv_prober *p, pasta_nv_patched *m, uint8_t what) {
    if (!calling.graph || is(&m->fixed) || __atomic_load_n(&m->asked, __ATOMIC_RELAXED) >= what) return;
    __atomic_store_n(&m->graph, calling.graph, __ATOMIC_RELAXED);
    __atomic_store_n(&m->asked, what, __ATOMIC_RELEASE);
    set(&p->asked, true);
}

bool pasta_nv_patches_follow(pasta_nv_prober *p, const pasta_nv_launching *l) {
    if (all_patched(p)) return true;
    pasta_nv_patched *m = module_of(p, l->launch->module);
    if (!m) return true;
    /* a function that is loaded later than its module gets the module's patches, also after they were removed (13.5 on
     * 580.159: measured) */
    if (is_new(p, l->launch->function) && !is(&m->patched)) set_some(&m->mixed);
    if (!l->graph && pasta_nv_rest_hears()) learn(p, m, l);
    if (l->decision.probed || l->decision.missed) pasta_nv_rest_due(l->ordinal);
    if (l->decision.wanted) __atomic_add_fetch(&m->wanted, l->decision.wanted, __ATOMIC_RELAXED);
    if (l->decision.missed) __atomic_add_fetch(&p->unprepared, 1, __ATOMIC_RELAXED);
    if (l->decision.probed) __atomic_store_n(&m->idle, 0, __ATOMIC_RELAXED);
    else if (l->decision.missed) ask(p, m, PASTA_NV_PUT_IN);
    else if (l->graph && has_some(m) && is_spared(m, l->ordinal)) ask(p, m, PASTA_NV_TAKE_OUT);
    return has_some(m);
}

/* The decision on a launch that was made at rest. */
static void settled(uint64_t ordinal, uint64_t module, pasta_probe_decision decision) {
    if (decision.missed) pasta_nv_rest_due(ordinal);
    if (!decision.wanted) return;
    for (pasta_nv_prober *p = pasta_nv_probers(); p; p = p->next) {
        pasta_nv_patched *m = module_of(p, module);
        if (m) __atomic_add_fetch(&m->wanted, decision.wanted, __ATOMIC_RELAXED);
    }
}

void pasta_nv_patches_set_up(void) { pasta_probe_on_settled(settled); }

void pasta_nv_patches_finish(const pasta_nv_prober *p) {
    if (p->switches)
        pasta_log("probes: patches of single modules of context %u were put in or taken out %u times, in %" PRIu64 " us",
                  p->at.context, p->switches, p->switching / 1000);
    if (p->unprepared && !pasta_config_u64("probe_enough", 0))
        pasta_say("probes: %u launches in context %u were not probed: their module had no patches when they began",
                  p->unprepared, p->at.context);
}
