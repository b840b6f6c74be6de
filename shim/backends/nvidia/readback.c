/* The thread that reads the results of probes.
 *
 * It copies on a stream of its own, which waits for no other.  It makes the only CUDA calls of PASTA,
 * outside any callback; callbacks that come on this thread are ignored.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "probes.h"

enum {
    POLL_NS = 1000 * 1000,
    IDLE_NS = 100 * 1000 * 1000,
    TOTALS_NS = 1000 * 1000 * 1000,
    LOCK_SECONDS = 2,
    SECOND_NS = 1000 * 1000 * 1000,
    MAX_TRIES = 50, /* to create the stream */
    NON_BLOCKING = 1,
    PRIORITY = -5, /* clamped by the driver to the highest */
};

/* With pasta_nv_reader.lock. */
static struct {
    pthread_cond_t finished;
    pthread_t thread;
    bool started, finish, done;
    uint32_t generation; /* of the process that started it */
} reader = {.finished = PTHREAD_COND_INITIALIZER};

static pthread_t own PASTA_HOT; /* 0: none; asked at each callback, where a thread's own variable would cost a call */

/* Without a call, where the compiler can: every callback asks. */
static inline pthread_t this_thread(void) {
#ifdef __has_builtin
#if __has_builtin(__builtin_thread_pointer)
    return (pthread_t)__builtin_thread_pointer();
#endif
#endif
    return pthread_self();
}

bool pasta_nv_probes_own_thread(void) { return __atomic_load_n(&own, __ATOMIC_RELAXED) == this_thread(); }

/* ---- storage of objects that were freed ---- */

static struct {
    pasta_nv_left_over *objects;
    size_t count;
    uint64_t as_of; /* from this state of the allocations on, none of them lives */
    uint64_t not_before;
} freed; /* by the thread only */

static void clear(pasta_nv_prober *p, uint64_t address, uint64_t words) {
    if (words) pasta_nv_probed(p, pasta_nv.set(address, 0, words * sizeof(uint64_t), p->own_stream), "sanitizerMemset");
}

/* Reads their bins, then clears their storage.  False: not possible now. */
static bool clear_left_over(pasta_nv_prober *p) {
    const pasta_nv_plan *plan = &pasta_nv_the_plan;
    uint64_t stripe = pasta_nv_table_bins_room() * plan->bin_words;
    if (p->broken || __atomic_load_n(&p->ended, __ATOMIC_ACQUIRE)) return true; /* its counts are final */
    if (!p->own_stream || pthread_mutex_trylock(&p->reading) != 0) return false;
    if (p->bins) pasta_nv_read_totals(p, p->own_stream);
    for (size_t i = 0; i < freed.count && !p->broken; i++) {
        const pasta_nv_left_over *o = &freed.objects[i];
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
    if (!pasta_nv_table_is_scarce() || !pasta_nv_objects(&live, &count, &freed.as_of)) return;
    freed.count = pasta_nv_table_left_over(live, count, &freed.objects);
    free(live);
}

/* Where bins or planes get scarce, reuse those of freed objects, once no launch uses a table that has them. */
static void reuse_storage(void) {
    enum { SHARE_OF_TIME = 10 };
    uint64_t begin = pasta_now();
    if (!freed.count) {
        if (begin < freed.not_before) return;
        find_left_over();
        freed.not_before = begin + IDLE_NS;
    }
    if (freed.count) {
        if (pasta_nv_oldest_version() < freed.as_of) return;
        for (pasta_nv_prober *p = pasta_nv_probers(); p; p = p->next)
            if (!clear_left_over(p)) return; /* retried later: clearing twice is harmless */
        for (size_t i = 0; i < freed.count; i++) pasta_nv_table_give_back(freed.objects[i].number);
        freed.not_before = begin + SHARE_OF_TIME * (pasta_now() - begin);
    }
    free(freed.objects);
    freed.objects = NULL;
    freed.count = 0;
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
        error = create(&stream, NON_BLOCKING, PRIORITY);
        pop(&popped);
    }
    dlclose(driver);
    bool pinned = true; /* allocated now: it takes milliseconds, in which a kernel could break the context */
    void *staging = error == 0 ? pasta_nv_staging(p, 1, &pinned) : NULL;
    if (!pinned) free(staging);
    if (error == 0) error = pasta_nv.stream_handle(p->context, stream, &p->own_stream);
    if (error != 0 && ++p->stream_tries < MAX_TRIES) return 0; /* the context is being created */
    if (error != 0 && !__atomic_exchange_n(&p->broken, true, __ATOMIC_ACQ_REL))
        pasta_say("probes of context %u stopped: cannot create a stream to read results (error %d)", p->at.context, error);
    return p->own_stream;
}

/* After a kernel broke the context no marker comes: a copy reports the error. */
static void check_context(pasta_nv_prober *p) {
    uint64_t some = 0, word;
    pthread_mutex_lock(&pasta_nv_probes_lock);
    if (p->batches) some = p->batches->descriptors;
    pthread_mutex_unlock(&pasta_nv_probes_lock);
    if (some) pasta_nv_probed(p, pasta_nv.copy_out(&word, some, sizeof word, p->own_stream), "sanitizerMemcpyDeviceToHost");
}

static bool attend(pasta_nv_prober *p, bool last) {
    bool waiting = false;
    pasta_nv_write_missed(p, last);
    if (p->broken || __atomic_load_n(&p->ended, __ATOMIC_ACQUIRE)) return false;
    if (pthread_mutex_trylock(&p->reading) != 0) return false; /* it is being destroyed */
    if (!__atomic_load_n(&p->ended, __ATOMIC_ACQUIRE) && own_stream(p)) {
        waiting = pasta_nv_read_batches(p, p->own_stream);
        if (waiting && last) check_context(p);
        if (p->epochs) pasta_nv_trace_flush(p, p->own_stream, last && !waiting);
        uint64_t epochs = __atomic_load_n(&p->epochs, __ATOMIC_RELAXED), now = pasta_now();
        bool due = epochs != p->totals_of && now - p->totals_at > TOTALS_NS;
        if (!waiting && last ? epochs != 0 : due) {
            p->totals_of = epochs;
            p->totals_at = now;
            pasta_nv_read_totals(p, p->own_stream);
        }
    } else {
        waiting = !p->broken && !last; /* no stream yet */
    }
    pthread_mutex_unlock(&p->reading);
    return waiting;
}

static void pause_until_woken(uint64_t nanoseconds) { /* pasta_nv_reader.lock held */
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)(nanoseconds % 1000000000);
    until.tv_sec += (time_t)(nanoseconds / 1000000000) + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (!pasta_nv_reader.woken && !reader.finish) pthread_cond_timedwait(&pasta_nv_reader.wake, &pasta_nv_reader.lock, &until);
    pasta_nv_reader.woken = false;
}

static void *run(void *unused) {
    (void)unused;
    __atomic_store_n(&own, this_thread(), __ATOMIC_RELAXED);
    pthread_setname_np(pthread_self(), "pasta-probes");
    bool waiting = true; /* create the stream at once: a kernel may break the context soon */
    for (;;) {
        pthread_mutex_lock(&pasta_nv_reader.lock);
        if (waiting && reader.finish) pasta_nv_reader.woken = false;
        if (waiting) {
            struct timespec shortly = {0, POLL_NS};
            pthread_mutex_unlock(&pasta_nv_reader.lock);
            nanosleep(&shortly, NULL);
            pthread_mutex_lock(&pasta_nv_reader.lock);
        } else {
            pause_until_woken(IDLE_NS);
        }
        bool finish = reader.finish;
        pthread_mutex_unlock(&pasta_nv_reader.lock);
        waiting = false;
        for (pasta_nv_prober *p = pasta_nv_probers(); p; p = p->next) waiting |= attend(p, finish);
        if (!finish) pasta_nv_rest_attend();
        if (!finish) reuse_storage();
        if (finish && !waiting) break;
    }
    __atomic_store_n(&own, 0, __ATOMIC_RELAXED);
    pthread_mutex_lock(&pasta_nv_reader.lock);
    reader.done = true;
    pthread_cond_broadcast(&reader.finished);
    pthread_mutex_unlock(&pasta_nv_reader.lock);
    return NULL;
}

void pasta_nv_readback_start(void) {
    pthread_mutex_lock(&pasta_nv_reader.lock);
    if (!reader.started) {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        int error = pthread_create(&reader.thread, NULL, run, NULL);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        reader.started = error == 0;
        reader.generation = pasta_generation();
        if (error) pasta_say("probe results are read only when a context is destroyed: cannot create a thread (%s)", strerror(error));
    }
    pthread_mutex_unlock(&pasta_nv_reader.lock);
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

/* The program has synchronized: read the results before a later kernel can break the context, here or on
 * the thread, which may be reading them.  Copies use PASTA's own stream, once there is one, so that nothing
 * waits for kernels of other threads; large results, those not complete soon, and what would take more than a
 * hundredth of the program's time are left to the thread. */
void pasta_nv_readback_at_once(pasta_nv_prober *p) {
    /* A marker that goes into an idle stream takes some 20 us, above 500 where processes share the GPU
     * (measured); results of 70 launches take 300.  While another stream is busy, all of the patience is lost:
     * hence the share of the time. */
    enum { MAX_BYTES = 4 << 20, MIN_NS = 50 * 1000, FIRST_NS = 5 * 1000 * 1000, MAX_NS = 10 * 1000 * 1000, SHARE_OF_TIME = 100 };
    uint64_t begin = pasta_now(), credit = FIRST_NS + (begin - p->since) / SHARE_OF_TIME, patience = MIN_NS;
    uint64_t spent = __atomic_load_n(&p->waited, __ATOMIC_RELAXED);
    if (credit > spent + MIN_NS) patience = credit - spent;
    if (patience > MAX_NS) patience = MAX_NS;
    if (p->broken || !lock_for(&p->reading, (long)patience)) return;
    uint64_t bytes;
    bool waiting;
    do {
        waiting = false;
        bytes = 0;
        pthread_mutex_lock(&pasta_nv_probes_lock);
        for (pasta_nv_batch *b = p->batches; b; b = b->next) {
            bytes += (b->marked - b->done) * (pasta_nv_words_bytes() + b->slot_bytes);
            waiting |= __atomic_load_n(b->marker, __ATOMIC_ACQUIRE) < b->marked;
        }
        pthread_mutex_unlock(&pasta_nv_probes_lock);
    } while (waiting && pasta_now() - begin < patience);
    bool affordable = spent + (pasta_now() - begin) < credit;
    /* The thread may have no stream yet: creating one waits for locks that the program's calls hold. */
    if (bytes && bytes <= MAX_BYTES && affordable && !p->ended) pasta_nv_read_batches(p, p->own_stream);
    __atomic_fetch_add(&p->waited, pasta_now() - begin, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&p->reading);
}

/* The context is being destroyed on this thread: synchronize its streams, as the driver would. */
void pasta_nv_readback_context(pasta_nv_prober *p) {
    if (!lock_for(&p->reading, LOCK_SECONDS * (long)SECOND_NS)) {
        pasta_say("the last probe results of context %u are lost: it was destroyed while they were read",
                  p->at.context);
        return;
    }
    uint64_t some_stream = 0;
    pthread_mutex_lock(&pasta_nv_probes_lock);
    for (pasta_nv_batch *b = p->batches; b; b = b->next) some_stream = b->stream;
    pthread_mutex_unlock(&pasta_nv_probes_lock);
    for (int tries = 0; !p->broken && pasta_nv_read_batches(p, 0) && tries < 1000; tries++) {
        pthread_mutex_lock(&pasta_nv_probes_lock);
        uint64_t stream = 0;
        for (pasta_nv_batch *b = p->batches; b && !stream; b = b->next)
            if (b->marked > b->done) stream = b->stream;
        pthread_mutex_unlock(&pasta_nv_probes_lock);
        if (stream) pasta_nv_probed(p, pasta_nv.stream_wait(stream), "sanitizerStreamSynchronize");
    }
    if (!p->broken && p->epochs) pasta_nv_read_totals(p, some_stream);
    if (!p->broken && p->epochs) pasta_nv_trace_flush(p, some_stream, true);
    pasta_nv_missed_results(p);
    pasta_nv_trace_close(p);
    pthread_mutex_unlock(&p->reading);
}

void pasta_nv_readback_finish(void) {
    struct timespec until;
    uint64_t milliseconds = pasta_config_u64("exit_timeout_ms", 5000);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)(milliseconds / 1000) + 1;
    pthread_mutex_lock(&pasta_nv_reader.lock);
    bool mine = reader.started && reader.generation == pasta_generation();
    reader.finish = true;
    pthread_cond_signal(&pasta_nv_reader.wake);
    int error = 0;
    while (mine && !reader.done && error == 0) error = pthread_cond_timedwait(&reader.finished, &pasta_nv_reader.lock, &until);
    pthread_mutex_unlock(&pasta_nv_reader.lock);
    for (pasta_nv_prober *p = pasta_nv_probers(); p; p = p->next) {
        pasta_nv_write_missed(p, true);
        if (!lock_for(&p->reading, SECOND_NS / 4)) continue; /* a call of the thread hangs */
        pasta_nv_missed_results(p);
        pthread_mutex_unlock(&p->reading);
    }
    if (error) pasta_say("probes: kernels were still running at exit; the results of their launches are missing");
}
