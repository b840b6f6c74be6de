/* A thread that brings home what patches counted.
 *
 * It copies on a stream of its own, which waits for no other, and writes what it read, summed over
 * stripes, to the file PID-SEQUENCE.probes.  It makes the only CUDA calls of PASTA, outside any
 * callback; those of the program's that come on this thread are ignored.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "nvidia_probes.h"

enum {
    STAGING = 8 << 20,
    POLL_NS = 1000 * 1000,
    IDLE_NS = 100 * 1000 * 1000,
    TOTALS_NS = 1000 * 1000 * 1000,
    LOCK_SECONDS = 2,
    SECOND_NS = 1000 * 1000 * 1000,
    STREAM_TRIES = 50,
    NON_BLOCKING = 1,
    FIRST_PRIORITY = -5, /* the driver takes the highest that it has */
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake, finished;
    pthread_t thread;
    bool started, woken, finish, done;
    uint32_t generation; /* of the process that started it */
    int file;
    uint64_t offset;
} reader = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER,
            .finished = PTHREAD_COND_INITIALIZER, .file = -1};

static _Thread_local bool own;

bool pasta_nv_probes_own_thread(void) { return own; }

/* ---- the file ---- */

typedef struct text {
    char *bytes;
    size_t used, room;
} text;

static void *extend(text *t, size_t bytes) {
    if (t->used + bytes > t->room) {
        size_t wanted = 2 * (t->used + bytes) + 4096;
        char *grown = realloc(t->bytes, wanted);
        if (!grown) return NULL;
        t->bytes = grown;
        t->room = wanted;
    }
    void *place = t->bytes + t->used;
    t->used += bytes;
    return memset(place, 0, bytes);
}

static void publish(text *t, const pasta_nv_prober *p) {
    if (!t->used) return;
    pthread_mutex_lock(&reader.lock);
    if (reader.file < 0) reader.file = pasta_open_beside(".probes");
    uint64_t offset = reader.offset;
    bool written = reader.file >= 0 && pasta_write_all(reader.file, t->bytes, t->used);
    if (written) reader.offset += t->used;
    pthread_mutex_unlock(&reader.lock);
    if (written) {
        pasta_probe_data *e = PASTA_BEGIN(probe_data, p->at.device, p->at.context, PASTA_NO_STREAM);
        if (e) {
            e->offset = offset;
            e->bytes = t->used;
            e->map = 0;
            pasta_publish(e);
        }
    } else {
        pasta_say("results of probes are lost: no room in the session directory (%s)", strerror(errno));
    }
    t->used = 0;
}

static pasta_probed *entry(text *t, const pasta_nv_prober *p, uint32_t kind, size_t payload) {
    pasta_probed *e = extend(t, sizeof *e + payload);
    if (!e) return NULL;
    e->kind = kind;
    e->device = p->at.device;
    e->context = p->at.context;
    return e;
}

/* Before anything that was counted for them. */
static void publish_pieces(const pasta_nv_prober *p) {
    static pthread_mutex_t telling = PTHREAD_MUTEX_INITIALIZER;
    pasta_nv_piece *pieces;
    text t = {0};
    pthread_mutex_lock(&telling);
    size_t count = pasta_nv_new_pieces(&pieces);
    pasta_probed *e = count ? entry(&t, p, PASTA_PROBED_pieces, count * sizeof *pieces) : NULL;
    if (e) {
        e->rows = (uint32_t)count;
        e->words = sizeof *pieces / sizeof(uint64_t);
        memcpy(e + 1, pieces, count * sizeof *pieces);
        publish(&t, p);
    }
    pthread_mutex_unlock(&telling);
    free(pieces);
    free(t.bytes);
}

/* ---- launches ---- */

static void add_stripes(uint64_t *sum, const char *first, uint32_t stripes, uint64_t stripe_bytes, uint64_t words) {
    for (uint32_t s = 0; s < stripes; s++) {
        const uint64_t *from = (const void *)(first + s * stripe_bytes);
        for (uint64_t w = 0; w < words; w++) sum[w] += from[w];
    }
}

/* Number of an object by its index from 1 in a table. 0: unknown. */
static uint64_t number_at(const pasta_nv_version *v, uint32_t index) {
    const pasta_object_table *table = v->image;
    const pasta_object_range *ranges = (const void *)((const char *)v->image + (table->ranges - v->address));
    return index ? ranges[index - 1].number : 0;
}

/* Number of the object in a row: by the table that the launch used, or by the keys. 0: unknown. */
static uint64_t number_of(const pasta_nv_batch *b, uint32_t slot, const uint32_t *keys, uint32_t row) {
    const pasta_nv_version *v = b->versions[slot];
    const pasta_object_table *table = v ? v->image : NULL;
    if (!table || table->count >= b->rows)
        return row == b->rows ? (uint64_t)PASTA_PROBED_OTHER : keys[row] - (uint64_t)1;
    return number_at(v, row);
}

static bool in_use(const pasta_nv_batch *b, uint32_t slot, const uint32_t *keys, uint32_t row) {
    const pasta_nv_version *v = b->versions[slot];
    const pasta_object_table *table = v ? v->image : NULL;
    return table && table->count < b->rows ? row <= table->count : row == b->rows || keys[row] != 0;
}

/* An object's words, where something was counted: 1, else 0. */
static uint32_t write_object(text *t, uint64_t number, const uint64_t *words) {
    uint64_t count = pasta_nv_the_plan.object_words;
    bool counted = false;
    for (uint64_t w = 0; w < count; w++) counted |= words[w] != 0;
    uint64_t *more = counted ? extend(t, (1 + count) * sizeof *more) : NULL;
    if (!more) return 0;
    *more = number;
    memcpy(more + 1, words, count * sizeof *words);
    return 1;
}

/* What objects without a row counted; how many. */
static uint32_t write_spill(text *t, const pasta_nv_batch *b, uint32_t slot, uint64_t stream) {
    const pasta_nv_version *v = b->versions[slot];
    const pasta_object_table *table = v ? v->image : NULL;
    uint64_t bytes = pasta_nv_spill_bytes(b);
    uint64_t *words = malloc(bytes);
    uint32_t found = 0, rows = table && table->count < b->spill_rows ? table->count + 1 : b->spill_rows;
    if (words && pasta_nv_probed(b->owner, pasta_nv.copy_out(words, pasta_nv_spill_of(b, slot), bytes, stream),
                                 "sanitizerMemcpyDeviceToHost"))
        for (uint32_t row = 0; row < rows; row++)
            found += write_object(t, v ? number_at(v, row) : 0, words + row * pasta_nv_the_plan.object_words);
    free(words);
    return found;
}

static void write_launch(text *t, const pasta_nv_batch *b, uint32_t number, const char *slot, uint64_t stream) {
    const pasta_nv_plan *plan = &pasta_nv_the_plan;
    const uint32_t *keys = (const void *)slot;
    const char *plain = slot + b->keys_bytes, *stripes = plain + b->plain_bytes;
    const char *rows = stripes + plan->slot_words * sizeof(uint64_t);
    uint64_t row_bytes = plan->object_words * sizeof(uint64_t), fixed = plan->plain_words + plan->slot_words;
    uint64_t sums[PASTA_NV_MOST_WORDS];
    size_t begin = t->used;
    pasta_probed *e = entry(t, b->owner, PASTA_PROBED_launch, fixed * sizeof(uint64_t));
    if (!e) return;
    e->words = (uint32_t)fixed;
    e->row_words = (uint32_t)plan->object_words;
    e->ordinal = b->ordinals[number];
    uint64_t *to = (void *)(e + 1);
    memcpy(to, plain, plan->plain_words * sizeof *to);
    add_stripes(to + plan->plain_words, stripes, b->stripes, b->stripe_bytes, plan->slot_words);
    uint32_t count = 0;
    for (uint32_t row = 0; b->rows && row <= b->rows; row++) {
        if (!in_use(b, number, keys, row)) continue;
        memset(sums, 0, row_bytes);
        add_stripes(sums, rows + row * row_bytes, b->stripes, b->stripe_bytes, plan->object_words);
        count += write_object(t, number_of(b, number, keys, row), sums);
    }
    if (b->spill_rows && keys[b->rows]) count += write_spill(t, b, number, stream);
    ((pasta_probed *)(void *)(t->bytes + begin))->rows = count; /* the text may have moved */
}

static char *staging_of(pasta_nv_prober *p, uint64_t bytes, bool *pinned) {
    void *memory = NULL;
    *pinned = bytes <= STAGING;
    if (*pinned && !p->staging && pasta_nv.alloc_host(p->context, &memory, STAGING) == 0) p->staging = memory;
    if (*pinned && p->staging) return p->staging;
    *pinned = false;
    return malloc(bytes);
}

static void read_slots(text *t, pasta_nv_batch *b, uint32_t from, uint32_t to, uint64_t stream) {
    pasta_nv_prober *p = b->owner;
    uint32_t at_once = (uint32_t)(STAGING / b->slot_bytes ? STAGING / b->slot_bytes : 1);
    for (uint32_t slot = from; slot < to && !p->broken; slot += at_once) {
        uint32_t count = to - slot < at_once ? to - slot : at_once;
        bool pinned;
        char *staging = staging_of(p, count * b->slot_bytes, &pinned);
        if (!staging) return;
        if (pasta_nv_probed(p, pasta_nv.copy_out(staging, b->slots + slot * b->slot_bytes, count * b->slot_bytes, stream),
                            "sanitizerMemcpyDeviceToHost"))
            for (uint32_t i = 0; i < count; i++)
                write_launch(t, b, slot + i, staging + i * b->slot_bytes, stream);
        if (!pinned) free(staging);
    }
}

/* Nothing of it is left to read, and no launch will take a slot. */
static bool is_over(const pasta_nv_batch *b) {
    return b->done == b->used && b->marked == b->used && (b->used == PASTA_NV_SLOTS || b->closed);
}

/* True if some launch is marked and not yet complete. */
static bool read_batches(pasta_nv_prober *p, uint64_t own_stream) {
    enum { AT_ONCE = 256 };
    struct {
        pasta_nv_batch *batch;
        uint32_t from, to;
    } ready[AT_ONCE];
    uint32_t count = 0;
    bool waiting = false;
    pthread_mutex_lock(pasta_nv_probes_lock());
    for (pasta_nv_batch *b = p->batches; b && count < AT_ONCE; b = b->next) {
        uint32_t complete = __atomic_load_n(b->marker, __ATOMIC_ACQUIRE);
        if (complete > b->used) complete = b->used;
        waiting |= b->marked > complete;
        bool over = is_over(b);
        if (complete > b->done || over) {
            ready[count].batch = b;
            ready[count].from = b->done;
            ready[count++].to = complete > b->done ? complete : b->done;
        }
    }
    pthread_mutex_unlock(pasta_nv_probes_lock());
    waiting |= count == AT_ONCE; /* there may be more */
    if (count) publish_pieces(p);
    text t = {0};
    for (uint32_t i = 0; i < count && !p->broken; i++) {
        pasta_nv_batch *b = ready[i].batch;
        read_slots(&t, b, ready[i].from, ready[i].to, own_stream ? own_stream : b->stream);
        if (p->broken) break;
        pthread_mutex_lock(pasta_nv_probes_lock());
        for (uint32_t slot = b->done; slot < ready[i].to; slot++) pasta_nv_version_release(b->versions[slot]);
        b->done = ready[i].to;
        bool over = is_over(b);
        pthread_mutex_unlock(pasta_nv_probes_lock());
        if (over) pasta_nv_batch_recycle(b);
    }
    publish(&t, p);
    free(t.bytes);
    return waiting && !p->broken;
}

/* ---- totals ---- */

static void read_hash(text *t, pasta_nv_prober *p, uint32_t index, uint64_t stream) {
    const pasta_nv_hash *h = &pasta_nv_the_plan.hashes[index];
    uint64_t bytes = pasta_nv_hash_bytes(h), row_bytes = h->words * sizeof(uint64_t);
    char *all = malloc(bytes);
    if (!all) return;
    if (pasta_nv_probed(p, pasta_nv.copy_out(all, p->hashes[index], bytes, stream), "sanitizerMemcpyDeviceToHost")) {
        const uint64_t *keys = (const void *)all;
        const char *rows = all + h->rows * sizeof(uint64_t);
        uint64_t count = 1; /* the last row is that of all other keys */
        for (uint64_t row = 0; row < h->rows; row++) count += keys[row] != 0;
        pasta_probed *e = entry(t, p, PASTA_PROBED_hash, count * (1 + h->words) * sizeof(uint64_t));
        if (e) {
            e->words = (uint32_t)h->words;
            e->rows = (uint32_t)count;
            e->index = index;
            uint64_t *to = (void *)(e + 1);
            for (uint64_t row = 0; row <= h->rows; row++) {
                if (row < h->rows && !keys[row]) continue;
                *to = row < h->rows ? keys[row] : UINT64_MAX;
                add_stripes(to + 1, rows + row * row_bytes, (uint32_t)h->stripes, (h->rows + 1) * row_bytes, h->words);
                to += 1 + h->words;
            }
        }
    }
    free(all);
}

/* Adds up the stripes of all bins in use. */
static uint64_t *copy_bins(pasta_nv_prober *p, uint64_t count, uint64_t stream) {
    const pasta_nv_plan *plan = &pasta_nv_the_plan;
    uint64_t stripe = pasta_nv_table_bins_room() * plan->bin_words * sizeof(uint64_t);
    uint64_t *sum = calloc(count, sizeof *sum), *one = malloc(count * sizeof *one);
    bool good = sum && one;
    for (uint64_t s = 0; s < plan->bin_stripes && good; s++) {
        good = pasta_nv_probed(p, pasta_nv.copy_out(one, p->bins + s * stripe, count * sizeof *one, stream),
                               "sanitizerMemcpyDeviceToHost");
        for (uint64_t i = 0; good && i < count; i++) sum[i] += one[i];
    }
    free(one);
    if (good) return sum;
    free(sum);
    return NULL;
}

static void read_bins(text *t, pasta_nv_prober *p, uint64_t stream) {
    uint64_t words = pasta_nv_the_plan.bin_words, used = pasta_nv_table_bins_used();
    uint64_t *all = used ? copy_bins(p, used * words, stream) : NULL;
    if (!all) return;
    pasta_nv_binned object = {0};
    while (pasta_nv_table_next_binned(&object)) {
        if (object.first + (uint64_t)object.count > used) continue; /* newer than the copy */
        const uint64_t *values = all + object.first * words;
        bool touched = false;
        for (uint64_t i = 0; i < object.count * words && !touched; i++) touched = values[i] != 0;
        if (!touched) continue;
        pasta_probed *e = entry(t, p, PASTA_PROBED_bins, object.count * words * sizeof(uint64_t));
        if (!e) break;
        e->words = (uint32_t)words;
        e->rows = object.count;
        e->row_words = object.shift;
        e->ordinal = object.number;
        memcpy(e + 1, values, object.count * words * sizeof(uint64_t));
    }
    free(all);
}

/* They only grow, so that a copy made while kernels run is a lower bound, and the last one is exact. */
static void read_totals(pasta_nv_prober *p, uint64_t stream) {
    publish_pieces(p);
    text t = {0};
    for (uint32_t i = 0; i < pasta_nv_the_plan.hash_count && !p->broken; i++)
        if (p->hashes[i]) read_hash(&t, p, i, stream);
    if (p->bins && !p->broken) read_bins(&t, p, stream);
    publish(&t, p);
    free(t.bytes);
}

/* ---- storage of objects that were freed ---- */

static struct {
    pasta_nv_left_over *objects;
    size_t count;
    uint64_t as_of; /* none of them lived in this state of the allocations, or lives later */
    uint64_t not_before;
} leaving; /* of the thread */

static void clear(pasta_nv_prober *p, uint64_t address, uint64_t words) {
    if (words) pasta_nv_probed(p, pasta_nv.set(address, 0, words * sizeof(uint64_t), p->own_stream), "sanitizerMemset");
}

/* Brings home what their bins hold, and clears what they had. False: not now. */
static bool clear_left_over(pasta_nv_prober *p) {
    const pasta_nv_plan *plan = &pasta_nv_the_plan;
    uint64_t stripe = pasta_nv_table_bins_room() * plan->bin_words;
    if (p->broken || __atomic_load_n(&p->ended, __ATOMIC_ACQUIRE)) return true; /* counts no more */
    if (!p->own_stream || pthread_mutex_trylock(&p->reading) != 0) return false;
    if (p->bins) read_totals(p, p->own_stream);
    for (size_t i = 0; i < leaving.count && !p->broken; i++) {
        const pasta_nv_left_over *o = &leaving.objects[i];
        for (uint64_t s = 0; s < plan->bin_stripes && p->bins; s++)
            clear(p, p->bins + (s * stripe + o->bins * plan->bin_words) * sizeof(uint64_t), o->bin_count * plan->bin_words);
        for (uint64_t n = 0; n < plan->planes; n++)
            if (p->planes[n]) clear(p, p->planes[n] + o->plane * sizeof(uint64_t), o->plane_count);
    }
    if (!p->broken) pasta_nv_probed(p, pasta_nv.stream_wait(p->own_stream), "sanitizerStreamSynchronize");
    pthread_mutex_unlock(&p->reading);
    return true;
}

static void find_left_over(void) {
    pasta_nv_allocation *live;
    size_t count;
    if (!pasta_nv_table_is_scarce() || !pasta_nv_objects(&live, &count, &leaving.as_of)) return;
    leaving.count = pasta_nv_table_left_over(live, count, &leaving.objects);
    free(live);
}

/* Where bins or planes get scarce, those of objects that were freed are used again, once no launch
 * goes by a table that has them. */
static void reuse_storage(void) {
    enum { SHARE_OF_TIME = 10 };
    uint64_t begin = pasta_now();
    if (!leaving.count) {
        if (begin < leaving.not_before) return;
        find_left_over();
        leaving.not_before = begin + IDLE_NS;
    }
    if (leaving.count) {
        if (pasta_nv_oldest_version() < leaving.as_of) return;
        for (pasta_nv_prober *p = pasta_nv_probers(); p; p = p->next)
            if (!clear_left_over(p)) return; /* once more, later: to clear twice does no harm */
        for (size_t i = 0; i < leaving.count; i++) pasta_nv_table_give_back(leaving.objects[i].number);
        leaving.not_before = begin + SHARE_OF_TIME * (pasta_now() - begin);
    }
    free(leaving.objects);
    leaving.objects = NULL;
    leaving.count = 0;
}

/* ---- the thread ---- */

static uint64_t own_stream(pasta_nv_prober *p) {
    typedef int (*push_function)(uint64_t), (*pop_function)(uint64_t *);
    typedef int (*create_function)(uint64_t *, unsigned, int);
    if (p->own_stream) return p->own_stream;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!driver) return 0;
    push_function push;
    pop_function pop;
    create_function create;
    *(void **)&push = dlsym(driver, "cuCtxPushCurrent_v2");
    *(void **)&pop = dlsym(driver, "cuCtxPopCurrent_v2");
    *(void **)&create = dlsym(driver, "cuStreamCreateWithPriority");
    uint64_t stream = 0, popped;
    int error = push && pop && create ? push(p->context) : -1;
    if (error == 0) {
        error = create(&stream, NON_BLOCKING, FIRST_PRIORITY);
        pop(&popped);
    }
    dlclose(driver);
    bool pinned = true; /* made now: it takes milliseconds, in which a kernel could break the context */
    void *staging = error == 0 ? staging_of(p, 1, &pinned) : NULL;
    if (!pinned) free(staging);
    if (error == 0) error = pasta_nv.stream_handle(p->context, stream, &p->own_stream);
    if (error != 0 && ++p->stream_tries < STREAM_TRIES) return 0; /* the context is being made */
    if (error != 0 && !__atomic_exchange_n(&p->broken, true, __ATOMIC_ACQ_REL))
        pasta_say("probes of context %u end here: no stream for reading results (error %d)", p->at.context, error);
    return p->own_stream;
}

/* Where a kernel broke the context, no marker comes any more: a copy tells. */
static void check_context(pasta_nv_prober *p) {
    uint64_t some = 0, word;
    pthread_mutex_lock(pasta_nv_probes_lock());
    if (p->batches) some = p->batches->descriptors;
    pthread_mutex_unlock(pasta_nv_probes_lock());
    if (some) pasta_nv_probed(p, pasta_nv.copy_out(&word, some, sizeof word, p->own_stream), "sanitizerMemcpyDeviceToHost");
}

static bool attend(pasta_nv_prober *p, bool last) {
    bool waiting = false;
    if (p->broken || __atomic_load_n(&p->ended, __ATOMIC_ACQUIRE)) return false;
    if (pthread_mutex_trylock(&p->reading) != 0) return false; /* it is being destroyed */
    if (!__atomic_load_n(&p->ended, __ATOMIC_ACQUIRE) && own_stream(p)) {
        waiting = read_batches(p, p->own_stream);
        if (waiting && last) check_context(p);
        if (p->epochs) pasta_nv_trace_flush(p, p->own_stream, last && !waiting);
        uint64_t epochs = __atomic_load_n(&p->epochs, __ATOMIC_RELAXED), now = pasta_now();
        bool due = epochs != p->totals_of && now - p->totals_at > TOTALS_NS;
        if (!waiting && last ? epochs != 0 : due) {
            p->totals_of = epochs;
            p->totals_at = now;
            read_totals(p, p->own_stream);
        }
    } else {
        waiting = !p->broken && !last; /* no stream yet */
    }
    pthread_mutex_unlock(&p->reading);
    return waiting;
}

static void pause_until_woken(uint64_t nanoseconds) { /* reader.lock held */
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)(nanoseconds % 1000000000);
    until.tv_sec += (time_t)(nanoseconds / 1000000000) + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (!reader.woken && !reader.finish) pthread_cond_timedwait(&reader.wake, &reader.lock, &until);
    reader.woken = false;
}

static void *run(void *unused) {
    (void)unused;
    own = true;
    pthread_setname_np(pthread_self(), "pasta-probes");
    bool waiting = true; /* the stream is made at once: a kernel may break the context soon */
    for (;;) {
        pthread_mutex_lock(&reader.lock);
        if (waiting && reader.finish) reader.woken = false;
        if (waiting) {
            struct timespec shortly = {0, POLL_NS};
            pthread_mutex_unlock(&reader.lock);
            nanosleep(&shortly, NULL);
            pthread_mutex_lock(&reader.lock);
        } else {
            pause_until_woken(IDLE_NS);
        }
        bool finish = reader.finish;
        pthread_mutex_unlock(&reader.lock);
        waiting = false;
        for (pasta_nv_prober *p = pasta_nv_probers(); p; p = p->next) waiting |= attend(p, finish);
        if (!finish) reuse_storage();
        if (finish && !waiting) break;
    }
    pthread_mutex_lock(&reader.lock);
    reader.done = true;
    pthread_cond_broadcast(&reader.finished);
    pthread_mutex_unlock(&reader.lock);
    return NULL;
}

void pasta_nv_readback_start(void) {
    pthread_mutex_lock(&reader.lock);
    if (!reader.started) {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        int error = pthread_create(&reader.thread, NULL, run, NULL);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        reader.started = error == 0;
        reader.generation = pasta_generation();
        if (error) pasta_say("results of probes are read only when a context ends: no thread (%s)", strerror(error));
    }
    pthread_mutex_unlock(&reader.lock);
}

void pasta_nv_readback_wake(void) {
    pthread_mutex_lock(&reader.lock);
    reader.woken = true;
    pthread_cond_signal(&reader.wake);
    pthread_mutex_unlock(&reader.lock);
}

static bool lock_for(pthread_mutex_t *mutex, long nanoseconds) {
    struct timespec until;
    if (pthread_mutex_trylock(mutex) == 0) return true;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += nanoseconds;
    until.tv_sec += until.tv_nsec / SECOND_NS;
    until.tv_nsec %= SECOND_NS;
    return pthread_mutex_timedlock(mutex, &until) == 0;
}

/* The program has waited: what it waited for is read before a later kernel can break the context,
 * here or by the thread, which may be at it.  Copies go over our own stream, once there is one, so that
 * nothing waits for kernels of other threads; what is more than a little, or not complete soon, is left
 * to the thread. */
void pasta_nv_readback_at_once(pasta_nv_prober *p) {
    /* A marker that goes into an idle stream takes some 20 us, above 500 where processes share the GPU
     * (measured).  While another stream is busy, all of the patience is spent in vain: hence its share. */
    enum { LITTLE = 4 << 20, LEAST_NS = 50 * 1000, FIRST_NS = 5 * 1000 * 1000, MOST_NS = 10 * 1000 * 1000, SHARE_OF_TIME = 100 };
    uint64_t begin = pasta_now(), credit = FIRST_NS + (begin - p->since) / SHARE_OF_TIME, patience = LEAST_NS;
    uint64_t spent = __atomic_load_n(&p->waited, __ATOMIC_RELAXED);
    if (credit > spent + LEAST_NS) patience = credit - spent;
    if (patience > MOST_NS) patience = MOST_NS;
    if (p->broken || !lock_for(&p->reading, (long)patience)) return;
    uint64_t bytes;
    bool waiting;
    do {
        waiting = false;
        bytes = 0;
        pthread_mutex_lock(pasta_nv_probes_lock());
        for (pasta_nv_batch *b = p->batches; b; b = b->next) {
            bytes += (b->marked - b->done) * b->slot_bytes;
            waiting |= __atomic_load_n(b->marker, __ATOMIC_ACQUIRE) < b->marked;
        }
        pthread_mutex_unlock(pasta_nv_probes_lock());
    } while (waiting && pasta_now() - begin < patience);
    __atomic_fetch_add(&p->waited, pasta_now() - begin, __ATOMIC_RELAXED);
    /* The thread may have no stream yet: making one waits for what the program's calls hold. */
    if (bytes && bytes <= LITTLE && !p->ended) read_batches(p, p->own_stream);
    pthread_mutex_unlock(&p->reading);
}

/* The context is being destroyed on this thread: its streams are waited for, as the driver would. */
void pasta_nv_readback_context(pasta_nv_prober *p) {
    if (!lock_for(&p->reading, LOCK_SECONDS * (long)SECOND_NS)) {
        pasta_say("the last results of probes in context %u are lost: it was destroyed while they were read",
                  p->at.context);
        return;
    }
    uint64_t some_stream = 0;
    pthread_mutex_lock(pasta_nv_probes_lock());
    for (pasta_nv_batch *b = p->batches; b; b = b->next) some_stream = b->stream;
    pthread_mutex_unlock(pasta_nv_probes_lock());
    for (int tries = 0; !p->broken && read_batches(p, 0) && tries < 1000; tries++) {
        pthread_mutex_lock(pasta_nv_probes_lock());
        uint64_t stream = 0;
        for (pasta_nv_batch *b = p->batches; b && !stream; b = b->next)
            if (b->marked > b->done) stream = b->stream;
        pthread_mutex_unlock(pasta_nv_probes_lock());
        if (stream) pasta_nv_probed(p, pasta_nv.stream_wait(stream), "sanitizerStreamSynchronize");
    }
    if (!p->broken && p->epochs) read_totals(p, some_stream);
    if (!p->broken && p->epochs) pasta_nv_trace_flush(p, some_stream, true);
    pasta_nv_trace_close(p);
    pthread_mutex_unlock(&p->reading);
}

void pasta_nv_readback_finish(void) {
    struct timespec until;
    uint64_t milliseconds = pasta_config_u64("exit_timeout_ms", 5000);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)(milliseconds / 1000) + 1;
    pthread_mutex_lock(&reader.lock);
    bool mine = reader.started && reader.generation == pasta_generation();
    reader.finish = true;
    pthread_cond_signal(&reader.wake);
    int error = 0;
    while (mine && !reader.done && error == 0) error = pthread_cond_timedwait(&reader.finished, &reader.lock, &until);
    pthread_mutex_unlock(&reader.lock);
    if (error) pasta_say("probes: kernels were still running at exit; the results of their launches are missing");
}
