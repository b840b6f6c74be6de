/* streams [THREADS] [STREAMS] [ROUNDS]: each of THREADS threads (4) hands one buffer round its
 * STREAMS streams (3), ordered by events, ROUNDS times (20).
 * Per thread: ROUNDS * STREAMS launches and event records, STREAMS streams, 1 allocation, 1 free,
 * 1 set, 1 copy. */
#include <pthread.h>

#include "demo.h"

enum { N = 4096 };

static long thread_count, stream_count, rounds;

/* x = x / 2 + turn depends on the order of turns, so a lost or swapped one shows. */
static float turn_of(float x, float turn) { return 0.5f * x + turn; }

static void *work(void *argument) {
    ra_function scale = *(ra_function *)argument;
    ra_stream *streams = malloc((size_t)stream_count * sizeof *streams);
    float *result = malloc(N * sizeof *result);
    ra_event passed;
    CHECK(streams && result);
    RA(ra_event_create(&passed));
    for (long s = 0; s < stream_count; s++) RA(ra_stream_create(&streams[s], 0));
    void *x = demo_alloc(N * sizeof(float));
    RA(ra_memset_async(x, 0, 4, N, streams[0]));
    int n = N;
    float half = 0.5f, expected = 0;
    for (long turn = 0; turn < rounds * stream_count; turn++) {
        ra_stream stream = streams[turn % stream_count];
        float number = (float)(turn % 7);
        RA(ra_stream_wait_event(stream, passed));
        demo_launch(scale, N, stream, (void *[]){&x, &half, &number, &n});
        RA(ra_event_record(passed, stream));
        expected = turn_of(expected, number);
    }
    RA(ra_event_synchronize(passed));
    RA(ra_memcpy_async(result, x, N * sizeof(float), streams[0]));
    RA(ra_stream_synchronize(streams[0]));
    for (int i = 0; i < N; i++) CHECK(result[i] == expected);
    for (long s = 0; s < stream_count; s++) RA(ra_stream_destroy(streams[s]));
    RA(ra_event_destroy(passed));
    RA(ra_free(x));
    free(streams);
    free(result);
    return NULL;
}

int main(int argc, char **argv) {
    thread_count = demo_number(argc, argv, 0, 4, 64);
    stream_count = demo_number(argc, argv, 1, 3, 64);
    rounds = demo_number(argc, argv, 2, 20, 1L << 24);
    long turns = thread_count * stream_count * rounds;
    demo_expect(argc, argv,
                (struct demo_counts){.launches = turns,
                                     .copies = thread_count,
                                     .sets = thread_count,
                                     .allocations = thread_count,
                                     .frees = thread_count,
                                     .streams = thread_count * stream_count,
                                     .event_records = turns});
    pthread_t threads[64];
    ra_function scale = demo_function("_Z5scalePfffi");
    for (long t = 0; t < thread_count; t++) CHECK(!pthread_create(&threads[t], NULL, work, &scale));
    for (long t = 0; t < thread_count; t++) pthread_join(threads[t], NULL);
    printf("streams: %ld threads, %ld streams each, %ld rounds, correct\n", thread_count, stream_count, rounds);
    return 0;
}
