/* graph [REPLAYS]: captures a set, a fill, a vadd, a scale and a copy, and replays them REPLAYS
 * times (20).
 * Per replay 1 graph launch, 3 launches, 1 set, 1 copy; 2 allocations, 2 frees, 1 stream. */
#include "demo.h"

enum { N = 10000 };

int main(int argc, char **argv) {
    long replays = demo_number(argc, argv, 0, 20, 1L << 24);
    demo_expect(argc, argv,
                (struct demo_counts){.launches = 3 * replays,
                                     .graph_launches = replays,
                                     .copies = replays,
                                     .sets = replays,
                                     .allocations = 2,
                                     .frees = 2,
                                     .streams = 1});
    static float result[N];
    ra_stream stream;
    ra_graph graph;
    ra_graph_exec exec;
    RA(ra_stream_create(&stream, 0));
    void *x = demo_alloc(N * sizeof(float)), *y = demo_alloc(N * sizeof(float));
    int n = N;
    float three = 3, two = 2, one = 1;
    RA(ra_stream_begin_capture(stream));
    RA(ra_memset_async(x, 0, 4, N, stream));
    demo_launch(demo_function("_Z4fillIfEvPT_S0_i"), N, stream, (void *[]){&y, &three, &n});
    demo_launch(demo_function("_Z4vaddPKfS0_Pfi"), N, stream, (void *[]){&x, &y, &x, &n});
    demo_launch(demo_function("_Z5scalePfffi"), N, stream, (void *[]){&x, &two, &one, &n});
    RA(ra_memcpy_async(result, x, sizeof result, stream));
    RA(ra_stream_end_capture(stream, &graph));
    RA(ra_graph_instantiate(&exec, graph));
    RA(ra_graph_destroy(graph));
    for (int i = 0; i < N; i++) CHECK(result[i] == 0); /* captured, not run */
    for (long i = 0; i < replays; i++) RA(ra_graph_launch(exec, stream));
    RA(ra_stream_synchronize(stream));
    for (int i = 0; i < N; i++) CHECK(result[i] == 7);
    RA(ra_graph_exec_destroy(exec));
    RA(ra_free(x));
    RA(ra_free(y));
    RA(ra_stream_destroy(stream));
    printf("graph: %ld replays, correct\n", replays);
    return 0;
}
