/* Streams: one queue and one worker thread each, started with the first work.  Events. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "internal.h"

/* ---- streams ---- */

int ra_stream_make(struct ra_context_s *context, int priority, struct ra_stream_s **made) {
    struct ra_stream_s *stream = ra_object_new(RA_TYPE_STREAM);
    RA_REQUIRE(stream, RA_OUT_OF_MEMORY);
    if (!stream->ready) {
        pthread_mutex_init(&stream->mutex, NULL);
        pthread_cond_init(&stream->work, NULL);
        pthread_cond_init(&stream->idle, NULL);
        stream->ready = true;
    }
    pthread_mutex_lock(&stream->mutex);
    stream->context = context;
    stream->priority = priority;
    stream->started = stream->stop = false;
    stream->capture = NULL;
    pthread_mutex_unlock(&stream->mutex);
    pthread_mutex_lock(&ra_lock);
    stream->next = context->streams;
    context->streams = stream;
    pthread_mutex_unlock(&ra_lock);
    ra_object_publish(stream);
    *made = stream;
    return RA_OK;
}

int ra_stream_get(ra_stream handle, struct ra_stream_s **stream) {
    if (!handle) {
        struct ra_context_s *context;
        RA_TRY(ra_current(&context));
        *stream = context->default_stream;
        return RA_OK;
    }
    RA_TRY(ra_init());
    RA_REQUIRE(ra_object_is(handle, RA_TYPE_STREAM), RA_INVALID_HANDLE);
    *stream = handle;
    return RA_OK;
}

uint64_t ra_stream_handle(const struct ra_stream_s *stream) {
    return stream == stream->context->default_stream ? 0 : (uintptr_t)stream;
}

static void *worker(void *argument) {
    struct ra_stream_s *stream = argument;
    struct ra_executor *executor = ra_executor_new();
    pthread_mutex_lock(&stream->mutex);
    for (;;) {
        struct ra_op *op = stream->first;
        if (!op) {
            if (stream->stop) break;
            pthread_cond_wait(&stream->work, &stream->mutex);
            continue;
        }
        stream->first = op->next;
        if (!stream->first) stream->last = NULL;
        pthread_mutex_unlock(&stream->mutex);
        op->run(op, stream, executor);
        free(op);
        pthread_mutex_lock(&stream->mutex);
        stream->completed++;
        pthread_cond_broadcast(&stream->idle);
    }
    pthread_mutex_unlock(&stream->mutex);
    ra_executor_delete(executor);
    return NULL;
}

int ra_stream_queue(struct ra_stream_s *stream, struct ra_op *op) {
    pthread_mutex_lock(&stream->mutex);
    int error = stream->stop ? RA_SHUT_DOWN : RA_OK;
    if (error == RA_OK && !stream->started) {
        error = ra_thread_start(&stream->thread, worker, stream);
        stream->started = error == RA_OK;
    }
    if (error == RA_OK) {
        op->next = NULL;
        *(stream->last ? &stream->last->next : &stream->first) = op;
        stream->last = op;
        stream->submitted++;
        pthread_cond_signal(&stream->work);
    }
    pthread_mutex_unlock(&stream->mutex);
    if (error != RA_OK) free(op);
    return error;
}

int ra_stream_give(struct ra_stream_s *stream, struct ra_op *op, bool asynchronous) {
    int error = atomic_load(&stream->context->error);
    if (error == RA_OK && stream->capture && !asynchronous) error = RA_CAPTURE;
    if (error != RA_OK) {
        free(op);
        return error;
    }
    if (stream->capture) return ra_graph_append(stream->capture, op);
    RA_TRY(op->submit(op, stream, asynchronous, 0, 0));
    if (asynchronous) return RA_OK;
    ra_stream_drain(stream);
    return atomic_load(&stream->context->error);
}

static uint64_t submitted(struct ra_stream_s *stream) {
    pthread_mutex_lock(&stream->mutex);
    uint64_t count = stream->submitted;
    pthread_mutex_unlock(&stream->mutex);
    return count;
}

static void wait_for(struct ra_stream_s *stream, uint64_t count) {
    pthread_mutex_lock(&stream->mutex);
    while (stream->completed < count) pthread_cond_wait(&stream->idle, &stream->mutex);
    pthread_mutex_unlock(&stream->mutex);
}

void ra_stream_drain(struct ra_stream_s *stream) { wait_for(stream, submitted(stream)); }

int ra_context_drain(struct ra_context_s *context) {
    struct goal {
        struct ra_stream_s *stream;
        uint64_t count;
    } *goals;
    size_t count = 0;
    pthread_mutex_lock(&ra_lock);
    for (struct ra_stream_s *s = context->streams; s; s = s->next) count++;
    goals = malloc(count * sizeof *goals);
    size_t i = 0;
    for (struct ra_stream_s *s = context->streams; goals && s; s = s->next) {
        goals[i].stream = s;
        goals[i++].count = submitted(s);
    }
    pthread_mutex_unlock(&ra_lock);
    RA_REQUIRE(goals, RA_OUT_OF_MEMORY);
    while (i--) wait_for(goals[i].stream, goals[i].count);
    free(goals);
    return RA_OK;
}

void ra_stream_tell_stop(struct ra_stream_s *stream) {
    if (!stream->ready) return;
    pthread_mutex_lock(&stream->mutex);
    stream->stop = true;
    pthread_cond_signal(&stream->work);
    pthread_mutex_unlock(&stream->mutex);
}

void ra_stream_join(struct ra_stream_s *stream) {
    if (!stream->started) return;
    pthread_join(stream->thread, NULL);
    stream->started = false;
}

void ra_stream_discard(struct ra_stream_s *stream) {
    if (!stream->ready) return;
    pthread_mutex_destroy(&stream->mutex);
    pthread_cond_destroy(&stream->work);
    pthread_cond_destroy(&stream->idle);
}

static void tell_stream(const struct ra_stream_s *stream, ra_callback_id id) {
    if (!ra_tools_want(RA_DOMAIN_RESOURCE)) return;
    ra_stream_data data = {sizeof data, stream->context->device, (uintptr_t)stream->context,
                           ra_stream_handle(stream), stream->priority};
    ra_tools_call(RA_DOMAIN_RESOURCE, id, &data);
}

int ra_stream_create(ra_stream *handle, int priority) {
    RA_REQUIRE(handle, RA_INVALID_VALUE);
    struct ra_context_s *context;
    struct ra_stream_s *stream;
    RA_TRY(ra_current(&context));
    RA_TRY(ra_stream_make(context, priority, &stream));
    tell_stream(stream, RA_CALLBACK_STREAM_CREATED);
    *handle = stream;
    return RA_OK;
}

int ra_stream_destroy(ra_stream handle) {
    RA_REQUIRE(handle, RA_INVALID_HANDLE);
    struct ra_stream_s *stream;
    RA_TRY(ra_stream_get(handle, &stream));
    RA_REQUIRE(stream != stream->context->default_stream, RA_INVALID_HANDLE);
    RA_REQUIRE(!stream->capture, RA_CAPTURE);
    atomic_store(&stream->object.alive, 0);
    ra_stream_drain(stream);
    tell_stream(stream, RA_CALLBACK_STREAM_DESTROYED);
    pthread_mutex_lock(&ra_lock);
    struct ra_stream_s **link = &stream->context->streams;
    while (*link != stream) link = &(*link)->next;
    *link = stream->next;
    pthread_mutex_unlock(&ra_lock);
    ra_stream_tell_stop(stream);
    ra_stream_join(stream);
    ra_object_delete(stream);
    return RA_OK;
}

static int synchronized(struct ra_context_s *context, ra_sync_kind kind, uint64_t handle, uint64_t start) {
    int error = atomic_load(&context->error);
    if (ra_tools_want(RA_DOMAIN_SYNCHRONIZE)) {
        ra_sync_data data = {
            sizeof data, context->device, (uintptr_t)context, handle, kind, error, start, ra_now()};
        ra_tools_call(RA_DOMAIN_SYNCHRONIZE, RA_CALLBACK_SYNCHRONIZED, &data);
    }
    return error;
}

int ra_stream_synchronize(ra_stream handle) {
    struct ra_stream_s *stream;
    RA_TRY(ra_stream_get(handle, &stream));
    RA_REQUIRE(!stream->capture, RA_CAPTURE);
    uint64_t start = ra_now();
    ra_stream_drain(stream);
    return synchronized(stream->context, RA_SYNC_STREAM, ra_stream_handle(stream), start);
}

int ra_stream_query(ra_stream handle) {
    struct ra_stream_s *stream;
    RA_TRY(ra_stream_get(handle, &stream));
    RA_REQUIRE(!stream->capture, RA_CAPTURE);
    pthread_mutex_lock(&stream->mutex);
    bool done = stream->completed == stream->submitted;
    pthread_mutex_unlock(&stream->mutex);
    return done ? atomic_load(&stream->context->error) : RA_NOT_READY;
}

int ra_stream_begin_capture(ra_stream handle) {
    struct ra_stream_s *stream;
    RA_TRY(ra_stream_get(handle, &stream));
    RA_REQUIRE(!stream->capture, RA_CAPTURE);
    return ra_graph_make(&stream->capture);
}

int ra_stream_end_capture(ra_stream handle, ra_graph *graph) {
    struct ra_stream_s *stream;
    RA_TRY(ra_stream_get(handle, &stream));
    RA_REQUIRE(graph, RA_INVALID_VALUE);
    RA_REQUIRE(stream->capture, RA_CAPTURE);
    *graph = stream->capture;
    stream->capture = NULL;
    return RA_OK;
}

/* ---- events ----
 * Each record makes a mark, shared by the event, the record's op and the waits for it, so that an
 * event may be recorded again or destroyed while work still refers to the old record. */

struct mark {
    uint32_t references; /* marks_lock */
    bool done;
    uint64_t time; /* ns */
};

struct ra_event_s {
    struct ra_object object;
    struct ra_context_s *context;
    struct mark *mark; /* of the last record; NULL: none. marks_lock */
};

const size_t ra_event_bytes = sizeof(struct ra_event_s);
static pthread_mutex_t marks_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t marks_done = PTHREAD_COND_INITIALIZER;

struct mark_op {
    struct ra_op op;
    struct mark *mark;
};

static void mark_drop(struct mark *mark) { /* marks_lock held */
    if (mark && --mark->references == 0) free(mark);
}

static struct mark *mark_take(struct ra_event_s *event) {
    pthread_mutex_lock(&marks_lock);
    struct mark *mark = event->mark;
    if (mark) mark->references++;
    pthread_mutex_unlock(&marks_lock);
    return mark;
}

static void mark_wait(struct mark *mark) {
    pthread_mutex_lock(&marks_lock);
    while (!mark->done) pthread_cond_wait(&marks_done, &marks_lock);
    mark_drop(mark);
    pthread_mutex_unlock(&marks_lock);
}

static void record_run(struct ra_op *op, struct ra_stream_s *stream, struct ra_executor *executor) {
    (void)stream;
    (void)executor;
    struct mark *mark = ((struct mark_op *)op)->mark;
    pthread_mutex_lock(&marks_lock);
    mark->done = true;
    mark->time = ra_now();
    pthread_cond_broadcast(&marks_done);
    mark_drop(mark);
    pthread_mutex_unlock(&marks_lock);
}

static void wait_run(struct ra_op *op, struct ra_stream_s *stream, struct ra_executor *executor) {
    (void)stream;
    (void)executor;
    mark_wait(((struct mark_op *)op)->mark);
}

static void tell_event(const struct ra_event_s *event, uint64_t stream, ra_callback_id id) {
    if (!ra_tools_want(RA_DOMAIN_EVENT)) return;
    ra_event_data data = {sizeof data, event->context->device, (uintptr_t)event->context, (uintptr_t)event, stream};
    ra_tools_call(RA_DOMAIN_EVENT, id, &data);
}

int ra_event_create(ra_event *handle) {
    RA_REQUIRE(handle, RA_INVALID_VALUE);
    struct ra_context_s *context;
    RA_TRY(ra_current(&context));
    struct ra_event_s *event = ra_object_new(RA_TYPE_EVENT);
    RA_REQUIRE(event, RA_OUT_OF_MEMORY);
    event->context = context;
    event->mark = NULL;
    ra_object_publish(event);
    tell_event(event, 0, RA_CALLBACK_EVENT_CREATED);
    *handle = event;
    return RA_OK;
}

static int event_get(ra_event handle) {
    RA_TRY(ra_init());
    RA_REQUIRE(ra_object_is(handle, RA_TYPE_EVENT), RA_INVALID_HANDLE);
    return RA_OK;
}

int ra_event_destroy(ra_event event) {
    RA_TRY(event_get(event));
    tell_event(event, 0, RA_CALLBACK_EVENT_DESTROYED);
    ra_events_clear(event);
    ra_object_delete(event);
    return RA_OK;
}

void ra_events_clear(void *handle) {
    struct ra_event_s *event = handle;
    pthread_mutex_lock(&marks_lock);
    mark_drop(event->mark);
    event->mark = NULL;
    pthread_mutex_unlock(&marks_lock);
}

void ra_events_forget(void) {
    pthread_mutex_init(&marks_lock, NULL);
    pthread_cond_init(&marks_done, NULL);
}

int ra_event_record(ra_event event, ra_stream handle) {
    struct ra_stream_s *stream;
    RA_TRY(event_get(event));
    RA_TRY(ra_stream_get(handle, &stream));
    RA_REQUIRE(!stream->capture, RA_CAPTURE);
    struct mark *mark = calloc(1, sizeof *mark);
    struct mark_op *op = calloc(1, sizeof *op);
    if (!mark || !op) {
        free(mark);
        free(op);
        return RA_OUT_OF_MEMORY;
    }
    mark->references = 2;
    *op = (struct mark_op){.op.run = record_run, .mark = mark};
    tell_event(event, ra_stream_handle(stream), RA_CALLBACK_EVENT_RECORDED);
    /* Queued first: a mark that is never done would block its waiters. */
    int error = ra_stream_queue(stream, &op->op);
    if (error != RA_OK) {
        free(mark);
        return error;
    }
    pthread_mutex_lock(&marks_lock);
    mark_drop(event->mark);
    event->mark = mark;
    pthread_mutex_unlock(&marks_lock);
    return RA_OK;
}

int ra_stream_wait_event(ra_stream handle, ra_event event) {
    struct ra_stream_s *stream;
    RA_TRY(event_get(event));
    RA_TRY(ra_stream_get(handle, &stream));
    RA_REQUIRE(!stream->capture, RA_CAPTURE);
    struct mark_op *op = calloc(1, sizeof *op);
    RA_REQUIRE(op, RA_OUT_OF_MEMORY);
    tell_event(event, ra_stream_handle(stream), RA_CALLBACK_EVENT_WAITED);
    struct mark *mark = mark_take(event);
    if (!mark) {
        free(op);
        return RA_OK;
    }
    *op = (struct mark_op){.op.run = wait_run, .mark = mark};
    int error = ra_stream_queue(stream, &op->op);
    if (error != RA_OK) {
        pthread_mutex_lock(&marks_lock);
        mark_drop(mark);
        pthread_mutex_unlock(&marks_lock);
    }
    return error;
}

int ra_event_synchronize(ra_event event) {
    RA_TRY(event_get(event));
    uint64_t start = ra_now();
    struct mark *mark = mark_take(event);
    if (mark) mark_wait(mark);
    return synchronized(event->context, RA_SYNC_EVENT, (uintptr_t)event, start);
}

int ra_event_query(ra_event event) {
    RA_TRY(event_get(event));
    pthread_mutex_lock(&marks_lock);
    bool done = !event->mark || event->mark->done;
    pthread_mutex_unlock(&marks_lock);
    return done ? RA_OK : RA_NOT_READY;
}

int ra_event_elapsed(uint64_t *nanoseconds, ra_event start, ra_event end) {
    RA_REQUIRE(nanoseconds, RA_INVALID_VALUE);
    RA_TRY(event_get(start));
    RA_TRY(event_get(end));
    pthread_mutex_lock(&marks_lock);
    bool recorded = start->mark && end->mark;
    bool done = recorded && start->mark->done && end->mark->done;
    if (done) *nanoseconds = end->mark->time - start->mark->time;
    pthread_mutex_unlock(&marks_lock);
    RA_REQUIRE(recorded, RA_INVALID_VALUE);
    return done ? RA_OK : RA_NOT_READY;
}
