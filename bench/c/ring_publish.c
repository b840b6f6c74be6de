/* Cost of one event for the thread that publishes it: ring_publish THREADS EVENTS, or
 * ring_publish quiet EVENTS, which publishes while seccomp kills the process at any system
 * call.  Prints "name value" lines; bench/publish.py compiles and reads it. */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../shim/core/internal.h"
#include "../../shim/python/reader.h"

enum { BATCH = 1000, SLOTS = 16384 };

static unsigned threads, batches;
static uint32_t running;
static double *samples; /* ns per event of every batch */
static pthread_barrier_t together;

static bool publish(uint64_t value) {
    pasta_memory *e = PASTA_BEGIN_AS(memory_alloc, memory, 0, 0, 0);
    if (!e) return false;
    e->address = value;
    e->bytes = 4096;
    e->memory = PASTA_MEMORY_device;
    pasta_publish(e);
    return true;
}

static void *produce(void *number) {
    double *own = samples + (uintptr_t)number * batches;
    pthread_barrier_wait(&together);
    for (unsigned b = 0; b < batches; b++) {
        uint64_t start = pasta_now();
        for (unsigned i = 0; i < BATCH; i++) publish(i);
        own[b] = (double)(pasta_now() - start) / BATCH;
    }
    __atomic_sub_fetch(&running, 1, __ATOMIC_RELEASE);
    return NULL;
}

static uint64_t consume(pasta_ring *r, uint64_t position) {
    pasta_stretch s = {.ring = r, .segment_slots = SLOTS, .from = position, .end = pasta_tail(r)};
    pasta_scan(&s);
    pasta_release(r, s.end);
    return s.end;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int measure(pasta_ring *r) {
    pthread_t ids[threads];
    uint64_t position = 0, dropped = 0;
    size_t count = (size_t)threads * batches;
    samples = calloc(count, sizeof *samples);
    running = threads;
    pthread_barrier_init(&together, NULL, threads + 1);
    for (uintptr_t i = 0; i < threads; i++)
        if (pthread_create(&ids[i], NULL, produce, (void *)i)) return 1;
    pthread_barrier_wait(&together);
    uint64_t start = pasta_now();
    while (__atomic_load_n(&running, __ATOMIC_ACQUIRE)) {
        position = consume(r, position);
        usleep(2000); /* a consumer works in batches, unlike producers */
    }
    uint64_t wall = pasta_now() - start;
    for (unsigned i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    for (int kind = 0; kind < PASTA_KINDS; kind++) dropped += r->dropped[kind];
    qsort(samples, count, sizeof *samples, ascending);
    printf("median_ns %.1f\np99_ns %.1f\nwall_ns %.1f\ndropped %llu\n", samples[count / 2], samples[count * 99 / 100],
           (double)wall / ((double)count * BATCH), (unsigned long long)dropped);
    return 0;
}

/* From here on the kernel kills the process at any system call but exit.  (Not by strict mode, which
 * also disables the time stamp counter that the vDSO reads.) */
static bool forbid_system_calls(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static int quiet(pasta_ring *r, unsigned events) {
    for (unsigned i = 0; i < events + SLOTS; i++)
        if (!publish(i)) return 1;
    consume(r, 0);
    fflush(NULL);
    if (!forbid_system_calls()) return 2;
    int failed = 0;
    for (unsigned i = 0; i < events; i++) failed |= !publish(i);
    syscall(SYS_exit, failed ? 3 : 0);
    return 4;
}

int main(int count, char **arguments) {
    if (count != 3 || !pasta_open()) return 1;
    pasta_ring *r = pasta_ring_mine();
    if (!strcmp(arguments[1], "quiet")) {
        pid_t child = fork();
        int status;
        if (!child) return pasta_open() ? quiet(pasta_ring_mine(), (unsigned)atoi(arguments[2])) : 1;
        waitpid(child, &status, 0);
        printf("quiet %d\n", status == 0);
        return 0;
    }
    threads = (unsigned)atoi(arguments[1]);
    batches = (unsigned)atoi(arguments[2]) / BATCH;
    return measure(r);
}
