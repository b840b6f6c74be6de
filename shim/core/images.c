/* Images of loaded modules, kept once per content in the session directory: all with run.modules, else as
 * many as fit, for the coverage of probes.  That directory is shared memory: a vendor's callback waits for
 * a copy in memory, never for a disk. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"
#include "private.h"

bool pasta_write_all(int fd, const void *bytes, size_t length) {
    const char *from = bytes;
    while (length) {
        ssize_t written = write(fd, from, length);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return false;
        from += written;
        length -= (size_t)written;
    }
    return true;
}

int pasta_open_beside(const char *suffix) {
    char path[PATH_MAX];
    const char *ring = pasta_ring_path();
    if (!ring || pasta_is_sandboxed()) {
        errno = ring ? EPERM : ENOENT;
        return -1;
    }
    snprintf(path, sizeof path, "%s%s", ring, suffix);
    return pasta_open_private(path, O_WRONLY | O_APPEND);
}

/* Reserve `bytes` of the limit for images; false when it is reached. */
static bool reserve(size_t bytes) {
    static uint64_t taken;
    uint64_t room = pasta_config_u64("modules", 0), before = __atomic_load_n(&taken, __ATOMIC_RELAXED);
    do {
        if (bytes > room || before > room - bytes) return false;
    } while (!__atomic_compare_exchange_n(&taken, &before, before + bytes, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return true;
}

void pasta_keep_image(uint64_t hash, const void *image, size_t bytes) {
    if (!image || !bytes || !pasta_config_u64("modules", 0) || pasta_is_sandboxed()) return;
    char path[PATH_MAX], temporary[PATH_MAX];
    snprintf(path, sizeof path, "%s/modules/%016" PRIx64, pasta_session(), hash);
    snprintf(temporary, sizeof temporary, "%s/modules/.%016" PRIx64 ".%d", pasta_session(), hash, (int)gettid());
    pasta_signals held;
    pasta_signals_hold(&held);
    if (access(path, F_OK) != 0 && reserve(bytes)) {
        int fd = pasta_open_private(temporary, O_WRONLY | O_EXCL);
        bool complete = fd >= 0 && pasta_write_all(fd, image, bytes);
        if (fd >= 0) close(fd);
        if (!complete || rename(temporary, path) != 0) {
            unlink(temporary);
            pasta_say("the image of a module (%zu bytes) could not be kept in %s: make room there", bytes,
                      pasta_session());
        }
    }
    pasta_signals_restore(&held);
}
