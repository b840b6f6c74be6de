/* The consumer's side of the access trace: one consumer, chunk after chunk. */
#define _GNU_SOURCE
#include "trace_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static uint64_t file_bytes(const pasta_trace *t) { return t->data_offset + (uint64_t)t->chunks * t->chunk_bytes; }

pasta_trace *pasta_trace_map(const char *path, int *error) {
    struct stat size;
    pasta_trace *t = NULL;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    *error = 0;
    if (fd < 0 || fstat(fd, &size) != 0) {
        *error = errno;
    } else if ((uint64_t)size.st_size < sizeof(pasta_trace)) {
        *error = -1;
    } else {
        t = mmap(NULL, (size_t)size.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (t == MAP_FAILED) {
            *error = errno;
            t = NULL;
        } else if (__atomic_load_n(&t->magic, __ATOMIC_ACQUIRE) != PASTA_TRACE_MAGIC || t->schema != 1 ||
                   file_bytes(t) != (uint64_t)size.st_size) {
            *error = -1;
            munmap(t, (size_t)size.st_size);
            t = NULL;
        }
    }
    if (fd >= 0) close(fd);
    return t;
}

void pasta_trace_unmap(pasta_trace *t) { munmap(t, file_bytes(t)); }

void pasta_trace_beat(pasta_trace *t) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    __atomic_store_n(&t->heartbeat, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec, __ATOMIC_RELEASE);
}

static pasta_chunk *chunk_of(pasta_trace *t, uint64_t number) {
    return (pasta_chunk *)(void *)((uint8_t *)t + t->chunks_offset) + number % t->chunks;
}

/* Whether a chunk can be taken, and its bytes. */
static bool is_ready(pasta_chunk *c, int how, bool last, uint32_t *bytes) {
    uint64_t state = __atomic_load_n(&c->state, __ATOMIC_ACQUIRE);
    if (how != PASTA_TAKE_final && !(state & PASTA_CHUNK_SEALED)) {
        /* an empty last chunk delays no other */
        if (how == PASTA_TAKE_full || (last && !(uint32_t)state)) return false;
        state = __atomic_fetch_or(&c->state, PASTA_CHUNK_SEALED, __ATOMIC_ACQ_REL);
    }
    *bytes = (uint32_t)__atomic_load_n(&c->committed, __ATOMIC_ACQUIRE);
    return how == PASTA_TAKE_final || *bytes == (uint32_t)state;
}

const uint8_t *pasta_trace_take(pasta_trace *t, int how, uint32_t *bytes) {
    pasta_trace_beat(t);
    for (;;) {
        uint64_t number = t->consumed, next = __atomic_load_n(&t->next, __ATOMIC_ACQUIRE);
        if (number == next) return NULL;
        pasta_chunk *c = chunk_of(t, number);
        if (__atomic_load_n(&c->lap, __ATOMIC_ACQUIRE) > number / t->chunks) {
            /* an earlier consumer ended between the two steps of the release */
            __atomic_store_n(&t->consumed, number + 1, __ATOMIC_RELEASE);
            continue;
        }
        if (!is_ready(c, how, number + 1 == next, bytes)) return NULL;
        if (*bytes) return (uint8_t *)t + t->data_offset + number % t->chunks * t->chunk_bytes;
        pasta_trace_release(t);
    }
}

void pasta_trace_release(pasta_trace *t) {
    uint64_t number = t->consumed, lap = number / t->chunks + 1;
    pasta_chunk *c = chunk_of(t, number);
    __atomic_store_n(&c->committed, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&c->state, lap << PASTA_CHUNK_LAP, __ATOMIC_RELAXED);
    __atomic_store_n(&c->lap, lap, __ATOMIC_RELEASE);
    __atomic_store_n(&t->consumed, number + 1, __ATOMIC_RELEASE);
}
