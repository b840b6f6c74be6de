/* For fake_cupti_program.c: plays a file of cupti_recorder.c through the fake library, each recorded thread on one of
 * its own.  Times of records are those of the recording. */
#include "cupti_stream.h"

enum { REPLAY_THREADS = 64, REPLAY_BLOBS = 8 };

static struct {
    uint8_t *bytes;
    size_t size, at;
    pthread_mutex_t lock;
    pthread_cond_t turn;
    uint32_t threads;
    void (*define)(uint64_t kind, uint64_t handle, uint64_t number);
    void (*hand_over)(const void *bytes, uint64_t valid);
} replay = {.lock = PTHREAD_MUTEX_INITIALIZER, .turn = PTHREAD_COND_INITIALIZER};

static uint8_t *copied_bytes(const void *bytes, size_t count) {
    uint8_t *copy = aligned_alloc(8, (count + 15) / 8 * 8);
    memcpy(copy, bytes, count);
    return copy;
}

/* Lets pointers in `parent` point to copies of the blobs; they live as long as the program. */
static void point_to_blobs(uint8_t *parent, const uint8_t *at, const uint8_t *end) {
    uint8_t *made[REPLAY_BLOBS + 1] = {parent};
    for (uint32_t n = 1; at < end; n++) {
        stream_blob blob;
        memcpy(&blob, at, sizeof blob);
        uint8_t *copy = copied_bytes(at + sizeof blob, blob.bytes);
        memcpy(made[blob.parent] + blob.offset, &copy, sizeof copy);
        if (n <= REPLAY_BLOBS) made[n] = copy;
        at += sizeof blob + blob.bytes;
    }
}

static void replay_call(const uint8_t *bytes, uint32_t size) {
    stream_call s;
    memcpy(&s, bytes, sizeof s);
    const char *symbol = s.symbol_bytes ? (const char *)bytes + sizeof s : NULL;
    uint64_t arguments[STREAM_ARGUMENTS / 8], user = 0;
    memcpy(arguments, s.arguments, sizeof arguments);
    point_to_blobs((uint8_t *)arguments, bytes + sizeof s + s.symbol_bytes, bytes + size);
    pasta_cupti_call c = {{s.site, "call", arguments, &s.result, symbol, s.context}, s.context_id, &user, s.correlation};
    deliver(s.domain, s.id, &c);
    /* what the driver would say of the stream; others that join a capture are not known */
    bool ends = s.domain == PASTA_CUPTI_DRIVER && s.site == PASTA_NV_API_EXIT && driver_captures;
    if (ends && (s.id == PASTA_CUPTI_cuStreamBeginCapture_v2 || s.id == PASTA_CUPTI_cuStreamBeginCapture_v2_ptsz))
        driver_captures(arguments[0]);
    if (ends && (s.id == PASTA_CUPTI_cuStreamEndCapture || s.id == PASTA_CUPTI_cuStreamEndCapture_ptsz)) driver_captures(0);
}

static void replay_resource(const uint8_t *bytes, uint32_t size) {
    stream_resource s;
    memcpy(&s, bytes, sizeof s);
    uint8_t *image = size > sizeof s ? copied_bytes(bytes + sizeof s, s.image_bytes) : NULL;
    pasta_cupti_module m = {s.module, s.image_bytes, image};
    pasta_cupti_graph g = {.node = s.node, .original_node = s.original_node};
    bool is_module = s.id == PASTA_CUPTI_MODULE_LOADED || s.id == PASTA_CUPTI_MODULE_UNLOADING;
    pasta_cupti_resource r = {s.context, s.stream, is_module ? (void *)&m : (void *)&g};
    deliver(PASTA_CUPTI_RESOURCE, s.id, &r);
    free(image);
}

static void replay_entry(const stream_entry *e, const uint8_t *bytes) {
    stream_number n;
    switch (e->type) {
    case STREAM_CALL: replay_call(bytes, e->bytes); return;
    case STREAM_RESOURCE: replay_resource(bytes, e->bytes); return;
    case STREAM_NUMBER:
        memcpy(&n, bytes, sizeof n);
        replay.define(n.kind, n.handle, n.number);
        return;
    case STREAM_BUFFER: {
        uint32_t valid;
        memcpy(&valid, bytes, sizeof valid);
        uint8_t *records = copied_bytes(bytes, 8 + valid);
        point_to_blobs(records, bytes + 8 + valid, bytes + e->bytes);
        replay.hand_over(records + 8, valid);
        free(records);
        return;
    }
    default: return;
    }
}

static void *replay_thread(void *number) {
    uint32_t mine = (uint32_t)(uintptr_t)number;
    pthread_mutex_lock(&replay.lock);
    while (replay.at < replay.size) {
        stream_entry e;
        memcpy(&e, replay.bytes + replay.at, sizeof e);
        if (e.thread % replay.threads == mine) {
            replay_entry(&e, replay.bytes + replay.at + sizeof e);
            replay.at += sizeof e + e.bytes;
            pthread_cond_broadcast(&replay.turn);
        } else {
            pthread_cond_wait(&replay.turn, &replay.lock);
        }
    }
    pthread_mutex_unlock(&replay.lock);
    return NULL;
}

static void play_stream(const char *path) {
    pthread_t threads[REPLAY_THREADS];
    FILE *file = fopen(path, "r");
    void *fake = required(dlopen(getenv("FAKE_CUPTI"), RTLD_NOW), "fake library");
    if (!file) exit(94);
    fseek(file, 0, SEEK_END);
    replay.size = (size_t)ftell(file);
    rewind(file);
    replay.bytes = malloc(replay.size);
    if (fread(replay.bytes, 1, replay.size, file) != replay.size) exit(94);
    fclose(file);
    *(void **)&replay.define = required(dlsym(fake, "fake_cupti_define"), "fake_cupti_define");
    *(void **)&replay.hand_over = required(dlsym(fake, "fake_cupti_hand_over"), "fake_cupti_hand_over");
    for (size_t at = 0; at < replay.size;) {
        stream_entry e;
        memcpy(&e, replay.bytes + at, sizeof e);
        if (e.thread >= replay.threads) replay.threads = e.thread + 1;
        at += sizeof e + e.bytes;
    }
    if (replay.threads > REPLAY_THREADS) replay.threads = REPLAY_THREADS;
    for (uintptr_t i = 0; i < replay.threads; i++)
        if (pthread_create(&threads[i], NULL, replay_thread, (void *)i)) exit(92);
    for (uint32_t i = 0; i < replay.threads; i++) pthread_join(threads[i], NULL);
}
