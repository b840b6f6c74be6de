/* The session's table of processes: each process with this library appends its pid, so that the
 * launcher knows which ones still run when the launched process has ended, and which ones called exec.
 * A few microseconds, no descriptor kept. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

enum { TABLE_BYTES = 1 << 19, TABLE_ENTRIES = TABLE_BYTES / 8 - 1 };

typedef struct {
    uint64_t count;
    struct {
        uint32_t pid;
        uint32_t forked; /* 1: a fork without exec */
    } entries[TABLE_ENTRIES];
} pasta_process_table;

static pasta_process_table *table;
static uint64_t registration;

uint64_t pasta_registration(void) { return registration; }

/* Not inlined: its path would be on the stack of every fork, also of one in a signal handler. */
__attribute__((noinline)) static void open_table(void) {
    char path[4096];
    int saved = errno;
    snprintf(path, sizeof path, "%s/processes", pasta_session());
    int fd = open(path, O_RDWR | O_CLOEXEC); /* fails: the session is over, or in another root directory */
    void *mapped = fd < 0 ? MAP_FAILED : mmap(NULL, TABLE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    errno = saved;
    if (mapped != MAP_FAILED) table = mapped;
}

void pasta_register_process(bool forked) {
    if (pasta_is_sandboxed()) return;
    if (!table) open_table();
    if (!table) return;
    uint64_t index = registration = __atomic_fetch_add(&table->count, 1, __ATOMIC_ACQ_REL);
    if (index >= TABLE_ENTRIES) return;
    table->entries[index].forked = forked;
    __atomic_store_n(&table->entries[index].pid, (uint32_t)getpid(), __ATOMIC_RELEASE);
}
