/* Files that only the user of the target can touch.  Needs _GNU_SOURCE. */
#ifndef PASTA_PRIVATE_H
#define PASTA_PRIVATE_H

#include <fcntl.h>
#include <sys/stat.h>

/* Opens or creates a file with mode 0600, whatever the target's umask is.  -1: see errno. */
static inline int pasta_open_private(const char *path, int flags) {
    int fd = open(path, flags | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    struct stat status;
    if (fd >= 0 && fstat(fd, &status) == 0 && (status.st_mode & 0777) != 0600) fchmod(fd, 0600);
    return fd;
}

#endif
