/* host_samples COUNT: processor time (s) of a loop of COUNT steps, in a program that uses the reference accelerator. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "refacc.h"

static double seconds(struct timeval t) { return (double)t.tv_sec + 1e-6 * (double)t.tv_usec; }

int main(int argc, char **argv) {
    long count = argc > 1 ? atol(argv[1]) : 1;
    volatile double sum = 0;
    struct rusage used;
    void *memory;
    if (ra_alloc(&memory, 1024)) return 1;
    for (long i = 0; i < count; i++) sum += (double)i;
    getrusage(RUSAGE_SELF, &used);
    printf("seconds %.6f\n", seconds(used.ru_utime) + seconds(used.ru_stime));
    return 0;
}
