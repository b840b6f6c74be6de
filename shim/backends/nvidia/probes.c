/* Probes: patches in the program's kernels (patches.c), and slots for the results of each launch (batches.c).
 *
 * Launches of a stream take slots of a batch, a piece of device memory that the stream clears before
 * its first slot is used.  When the batch is full, when some time has passed, or when the program has
 * synchronized, a marker goes into the stream: a byte in page-locked memory, set to the number of slots
 * whose launches are complete at that point of the stream.  A thread of PASTA (readback.c) sees it and
 * copies the slots on a stream of its own.  So no launch waits, and no stream is stopped.
 *
 * No vendor function is called with a lock held: the vendor calls these functions with its own held.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "probes.h"

#define plan pasta_nv_the_plan

/* A launch between its begin and its end on this thread, or the nodes of a graph launch. */
static _Thread_local struct {
    pasta_nv_batch *batch;
    uint64_t launch;
    pasta_nv_prober *announced; /* a launch that may be probed is about to be recorded */
    pasta_nv_prober *waited; /* whose work this thread waited for in a copy, which has no callback at its end */
    struct {
        pasta_nv_batch *batch;
        uint32_t begun;
    } *nodes;
    size_t node_count, node_room;
    pasta_nv_nodes *table; /* of that graph launch */
} here;

/* ---- setup ---- */

static void on_tensor(uint64_t address, uint64_t bytes) {
    if (pasta_nv_probes_on()) pasta_nv_tensor(address, bytes);
}

bool pasta_nv_probes_set_up(const char *api) {
    const char *path = pasta_config("probes");
    if (!path || !*path || !pasta_nv_read_plan(path)) return false;
    if (!plan.patch_count) return false; /* nothing for this source */
    if (plan.object_words > PASTA_NV_MAX_WORDS) {
        pasta_say("probes do not run: %" PRIu64 " counters by object do not fit: use fewer tools at once",
                  plan.object_words);
        return false;
    }
    if (plan.api && strcmp(plan.api, api) != 0) {
        pasta_say("probes do not run: they were compiled for version %s of the Sanitizer library, and %s is loaded",
                  plan.api, api);
        return false;
    }
    if (!pasta_nv_load_for_probes()) return false;
    uint64_t share = plan.memory / 4;
    pasta_nv_table_storage((pasta_nv_storage){
        .bin_shift = (uint8_t)plan.bin_shift,
        .plane_shift = (uint8_t)plan.plane_shift,
        .bins = plan.bin_words ? (uint32_t)(share / (plan.bin_words * plan.bin_stripes * sizeof(uint64_t))) : 0,
        .planes = plan.planes ? (uint32_t)(2 * share / (plan.planes * sizeof(uint64_t))) : 0,
    });
    pasta_on_tensor(on_tensor);
    pasta_nv_patches_set_up();
    pasta_probe_patches(PASTA_NV_FIRST_PATCHING_NS);
    __atomic_store_n(&pasta_nv_probing, true, __ATOMIC_RELEASE);
    return true;
}

/* ---- contexts ---- */

static uint64_t cleared_memory(pasta_nv_prober *p, uint64_t bytes) {
    uint64_t address = pasta_nv_device_memory(p, bytes);
    if (address && !PROBED(p, set, address, 0, bytes, 0)) return 0;
    return address;
}

void pasta_nv_probes_context(uint64_t context, pasta_nv_place at) {
    if (!pasta_nv_probes_on() || pasta_nv_prober_of(context)) return;
    pasta_nv_prober *p = calloc(1, sizeof *p);
    if (!p) return;
    p->context = context;
    p->at = at;
    p->since = pasta_now();
    pthread_mutex_init(&p->reading, NULL);
    void *markers = NULL;
    if (!pasta_nv_add_patches(p) || !PROBED(p, alloc_host, context, &markers, PASTA_NV_MARKERS)) p->broken = true;
    p->markers = markers;
    for (uint32_t i = 0; i < plan.hash_count && !p->broken; i++) {
        p->hashes[i] = cleared_memory(p, pasta_nv_hash_bytes(&plan.hashes[i]));
        if (!p->hashes[i] && !p->broken)
            pasta_say("probes: not enough memory on device %d for a map of %" PRIu64 " rows: raise probes.memory", at.device,
                      plan.hashes[i].rows);
    }
    if (plan.bin_words && !p->broken && !(p->bins = cleared_memory(p, plan.memory / 4)) && !p->broken)
        pasta_say("probes: not enough memory on device %d for the bins of objects: free device memory", at.device);
    for (uint32_t i = 0; i < plan.planes && !p->broken; i++) {
        p->planes[i] = cleared_memory(p, plan.memory / 2 / plan.planes);
        if (!p->planes[i] && !p->broken)
            pasta_say("probes: not enough memory on device %d for a bitmap of %" PRIu64 " MiB: lower probes.memory or free some",
                      at.device, plan.memory / 2 / plan.planes >> 20);
    }
    p->trace = pasta_nv_trace_open(p);
    pasta_nv_prober_add(p);
    pasta_nv_readback_start();
}

/* ---- launches ---- */

/* A launch of this thread without an end has failed. */
static void forget_failed(void) {
    if (!here.batch) return;
    pthread_mutex_lock(&pasta_nv_probes_lock);
    here.batch->ended++;
    pthread_mutex_unlock(&pasta_nv_probes_lock);
    __atomic_sub_fetch(&here.batch->owner->under_way, 1, __ATOMIC_ACQ_REL);
    here.batch = NULL;
}

/* Keeps a launch that is under way, until its end. */
static bool remember(pasta_nv_batch *b, const pasta_nv_launch *l, bool graph) {
    if (!graph) {
        forget_failed();
        here.batch = b;
        here.launch = l->launch;
        return true;
    }
    if (here.node_count && here.nodes[here.node_count - 1].batch == b) {
        here.nodes[here.node_count - 1].begun++;
        return true;
    }
    if (here.node_count == here.node_room) {
        size_t wanted = 2 * here.node_room + 16;
        void *grown = realloc(here.nodes, wanted * sizeof *here.nodes);
        if (!grown) return false;
        here.nodes = grown;
        here.node_room = wanted;
    }
    here.nodes[here.node_count].batch = b;
    here.nodes[here.node_count++].begun = 1;
    return true;
}

static void missed(pasta_nv_prober *p, uint64_t ordinal) {
    bool broken = p->broken;
    pasta_nv_missed_launch(p, (pasta_nv_missed){ordinal, broken ? PASTA_MISSED_error : PASTA_MISSED_memory});
    if (!broken && !__atomic_exchange_n(&p->misses, true, __ATOMIC_RELAXED))
        pasta_say("probes: launches of context %u are not probed: not enough memory on device %d; raise probes.memory",
                  p->at.context, p->at.device);
}

/* Gives a patched launch its data; a descriptor of 0: it is not probed. Without data a kernel uses those of an earlier
 * launch, and a node of a graph reads any address. */
static bool give_data(pasta_nv_prober *p, const pasta_nv_launch *l, bool graph, uint64_t descriptor) {
    uint64_t data = graph && !p->broken ? pasta_nv_nodes_data(p, &here.table, l, descriptor) : descriptor;
    if (data) return PROBED(p, set_launch_data, l->launch, l->function, l->unique_stream, data) && descriptor;
    (void)pasta_nv.set_launch_data(l->launch, l->function, l->unique_stream, 0);
    return false;
}

/* Assigns a slot to a probed launch in progress.  False: no slot, and no launch end. */
static bool give_slot(pasta_nv_prober *p, const pasta_nv_launch *l, uint64_t ordinal, bool graph, uint32_t shape) {
    pasta_nv_version *v = plan.objects ? pasta_nv_version_use(p) : NULL;
    pasta_nv_batch *b;
    int slot = pasta_nv_batch_slot(p, l->unique_stream, ordinal, v, &b);
    if (slot < 0) {
        pthread_mutex_lock(&pasta_nv_probes_lock);
        pasta_nv_version_release(v);
        pthread_mutex_unlock(&pasta_nv_probes_lock);
        (void)give_data(p, l, graph, 0);
        missed(p, ordinal);
        return false;
    }
    b->shapes[slot] = shape;
    bool kept = remember(b, l, graph), good = kept && (!v || pasta_nv_version_copy(p, v, l->unique_stream));
    pasta_nv_trace_launch(p, b->first_epoch + (uint32_t)slot, ordinal);
    if (!give_data(p, l, graph, good ? pasta_nv_batch_descriptor(b, (uint32_t)slot, v) : 0)) {
        b->ordinals[slot] = PASTA_ABSENT_U64;
        missed(p, ordinal);
    }
    return kept;
}

/* A launch that was announced is not probed. */
static void passed(void) {
    if (here.announced) __atomic_sub_fetch(&here.announced->under_way, 1, __ATOMIC_ACQ_REL);
    here.announced = NULL;
}

bool pasta_nv_probes_ready(const pasta_nv_launch *l) {
    pasta_nv_prober *p = pasta_nv_prober_of(l->context);
    if (!p || p->broken) return false;
    __atomic_add_fetch(&p->under_way, 1, __ATOMIC_SEQ_CST);
    here.announced = p;
    if (pasta_nv_patches_ready(p, l)) {
        pasta_tensors_need();
        return true;
    }
    passed();
    return false;
}

void pasta_nv_probes_launch(const pasta_nv_launch *l, uint32_t name, uint64_t ordinal, bool graph, bool selected,
                            pasta_probe_decision decision) {
    if (!decision.probed) passed();
    here.announced = NULL;
    pasta_nv_prober *p = pasta_nv_prober_of(l->context);
    if (!p) return;
    if (PASTA_UNLIKELY(p->broken)) {
        (void)give_data(p, l, graph, 0);
        if (decision.probed) missed(p, ordinal);
        return;
    }
    if (PASTA_UNLIKELY(here.waited == p)) {
        here.waited = NULL;
        pasta_probe_waited();
        pasta_nv_readback_at_once(p);
    }
    bool patched = pasta_nv_patches_follow(p, &(pasta_nv_launching){l, ordinal, name, graph, selected, decision});
    if (!decision.probed) {
        if (patched) (void)give_data(p, l, graph, 0);
    } else if (!give_slot(p, l, ordinal, graph, decision.shape)) {
        __atomic_sub_fetch(&p->under_way, 1, __ATOMIC_ACQ_REL);
    }
}

static void ended(pasta_nv_batch *b, uint32_t launches) {
    __atomic_sub_fetch(&b->owner->under_way, launches, __ATOMIC_ACQ_REL);
    pasta_nv_batch_ended(b, launches);
}

void pasta_nv_probes_launched(uint64_t launch, bool graph) {
    if (!pasta_nv_probes_on()) return;
    if (graph) {
        pasta_nv_nodes_end(&here.table);
        for (size_t i = 0; i < here.node_count; i++) ended(here.nodes[i].batch, here.nodes[i].begun);
        here.node_count = 0;
    } else if (here.batch && here.launch == launch) {
        pasta_nv_batch *b = here.batch;
        here.batch = NULL;
        ended(b, 1);
    }
}

/* ---- synchronization, destruction ---- */

static void mark_all(pasta_nv_prober *p, bool last, uint64_t stream) {
    forget_failed();
    pasta_nv_batches_mark(p, last, stream);
}

/* The handle may be reused for another stream. */
void pasta_nv_probes_stream_destroyed(uint64_t context, uint64_t stream) {
    if (!pasta_nv_probes_on()) return;
    pasta_nv_prober *p = pasta_nv_prober_of(context);
    if (!p || p->broken) return;
    mark_all(p, true, stream);
    pasta_nv_batches_close(p, stream);
    pasta_nv_nodes_close(p, stream);
}

void pasta_nv_probes_synchronized(uint64_t context) {
    if (!pasta_nv_probes_on()) return;
    pasta_nv_prober *p = pasta_nv_prober_of(context);
    if (!p || p->broken) return;
    mark_all(p, false, PASTA_NO_STREAM);
    pasta_nv_readback_at_once(p);
}

/* A copy that the program waits for: afterwards the kernels before it are complete, too. */
void pasta_nv_probes_copies(uint64_t context) {
    if (!pasta_nv_probes_on()) return;
    pasta_nv_prober *p = pasta_nv_prober_of(context);
    if (!p || p->broken) return;
    mark_all(p, false, PASTA_NO_STREAM);
    here.waited = p;
}

void pasta_nv_probes_context_destroyed(uint64_t context) {
    if (!pasta_nv_probes_on()) return;
    pasta_nv_prober *p = pasta_nv_prober_of(context);
    if (!p) return;
    if (!p->broken) mark_all(p, true, PASTA_NO_STREAM);
    pasta_nv_readback_context(p);
    __atomic_store_n(&p->ended, true, __ATOMIC_RELEASE);
}

void pasta_nv_probes_finish(void) {
    if (!pasta_nv_probes_on()) return;
    for (pasta_nv_prober *p = pasta_nv_probers(); p; p = p->next)
        if (!p->broken && !p->ended) mark_all(p, true, PASTA_NO_STREAM);
    for (pasta_nv_prober *p = pasta_nv_probers(); p; p = p->next) pasta_nv_patches_finish(p);
    pasta_nv_readback_finish();
    pasta_nv_trace_finish();
    __atomic_store_n(&pasta_nv_probing, false, __ATOMIC_RELEASE);
}
