/* Lines for the user and for the log.  The target may close or redirect its stderr at any time,
 * so a duplicate is kept from the moment that a ring is opened. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"
#include "private.h"

enum { MAX_LINE = 1024, MAX_REPEATS = 16, MAX_PATH = 512, MAX_DIGITS = 20 };

static int kept_stderr = -1;
static dev_t kept_device;
static ino_t kept_inode;
static uint64_t said[MAX_REPEATS]; /* hashes of lines, so that none is repeated */
static unsigned said_count;

static bool is_kept(void) {
    struct stat now;
    return kept_stderr >= 0 && fstat(kept_stderr, &now) == 0 && now.st_dev == kept_device && now.st_ino == kept_inode;
}

void pasta_say_keep_stderr(void) {
    if (is_kept()) return;
    struct stat now;
    kept_stderr = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 900);
    if (kept_stderr < 0 && errno == EINVAL) kept_stderr = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 100);
    if (kept_stderr >= 0 && fstat(kept_stderr, &now) == 0) {
        kept_device = now.st_dev;
        kept_inode = now.st_ino;
    }
}

static void set_held(sigset_t *set) {
    sigemptyset(set);
    sigaddset(set, SIGXFSZ);
    sigaddset(set, SIGPIPE);
}

void pasta_signals_hold(pasta_signals *held) {
    sigset_t both;
    set_held(&both);
    sigpending(&held->pending);
    pthread_sigmask(SIG_BLOCK, &both, &held->mask);
}

void pasta_signals_restore(const pasta_signals *held) {
    static const struct timespec at_once;
    sigset_t held_back;
    int saved = errno;
    set_held(&held_back);
    if (sigismember(&held->pending, SIGXFSZ)) sigdelset(&held_back, SIGXFSZ);
    if (sigismember(&held->pending, SIGPIPE)) sigdelset(&held_back, SIGPIPE);
    while (sigtimedwait(&held_back, NULL, &at_once) > 0) {
    }
    pthread_sigmask(SIG_SETMASK, &held->mask, NULL);
    errno = saved;
}

static void append(const char *path, const char *line, size_t length) {
    int fd = pasta_open_private(path, O_WRONLY | O_APPEND);
    if (fd < 0) return; /* the log is the last resort */
    if (write(fd, line, length) < 0) { /* likewise */
    }
    close(fd);
}

static size_t format_line(char *line, const char *prefix, const char *format, va_list arguments) {
    int start = snprintf(line, MAX_LINE, "%s", prefix);
    int length = vsnprintf(line + start, MAX_LINE - (size_t)start - 1, format, arguments);
    if (length < 0) length = 0;
    size_t total = (size_t)start + (size_t)length;
    if (total > MAX_LINE - 2) total = MAX_LINE - 2;
    line[total++] = '\n';
    return total;
}

static void to_log(const char *line, size_t length) {
    const char *session = pasta_session();
    if (!session) return;
    char path[MAX_LINE];
    snprintf(path, sizeof path, "%s/log.txt", session);
    append(path, line, length);
}

void pasta_log(const char *format, ...) {
    if (pasta_is_sandboxed()) return;
    char line[MAX_LINE], prefix[48];
    va_list arguments;
    pasta_signals held;
    int saved = errno;
    snprintf(prefix, sizeof prefix, "[%d] ", (int)getpid());
    va_start(arguments, format);
    size_t length = format_line(line, prefix, format, arguments);
    va_end(arguments);
    pasta_signals_hold(&held);
    to_log(line, length);
    pasta_signals_restore(&held);
    errno = saved;
}

/* Writes a number in front of `end`; returns its first digit. */
static char *put_number(char *end, uint64_t number, unsigned base) {
    do *--end = "0123456789abcdef"[number % base];
    while (number /= base);
    return end;
}

static int open_in_session(const char *name, const char *suffix, int flags) {
    char path[MAX_PATH];
    const char *session = pasta_session();
    if (strlen(session) + strlen(name) + strlen(suffix) + 2 > sizeof path) return -1;
    stpcpy(stpcpy(stpcpy(stpcpy(path, session), "/"), name), suffix);
    return pasta_open_private(path, O_WRONLY | flags);
}

static void write_line(const char *subject, const char *text) {
    char buffer[MAX_DIGITS + 3], *end = stpcpy(buffer + MAX_DIGITS, "] ") - 2, *pid = put_number(end, (uint64_t)getpid(), 10);
    int fd = open_in_session("log.txt", "", O_APPEND);
    *--pid = '[';
    struct iovec parts[] = {{pid, strlen(pid)}, {(char *)subject, strlen(subject)}, {(char *)text, strlen(text)}};
    if (fd < 0) return;
    if (writev(fd, parts, 3) < 0) { /* the log is the last resort */
    }
    close(fd);
}

void pasta_log_once(const char *subject, const char *text) {
    if (pasta_is_sandboxed()) return;
    char digits[MAX_DIGITS] = "";
    pasta_signals held;
    int saved = errno;
    pasta_signals_hold(&held);
    int fd = open_in_session("unprofiled-", put_number(digits + MAX_DIGITS - 1, pasta_hash(subject, strlen(subject)), 16), O_EXCL);
    if (fd >= 0) {
        close(fd);
        write_line(subject, text);
    }
    pasta_signals_restore(&held);
    errno = saved;
}

void pasta_say(const char *format, ...) {
    if (pasta_is_sandboxed()) return;
    char line[MAX_LINE];
    va_list arguments;
    pasta_signals held;
    int saved = errno;
    va_start(arguments, format);
    size_t length = format_line(line, "pasta: ", format, arguments);
    va_end(arguments);
    uint64_t hash = pasta_hash(line, length);
    unsigned count = __atomic_load_n(&said_count, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; i < count && i < MAX_REPEATS; i++)
        if (said[i] == hash) return;
    if (count < MAX_REPEATS) {
        said[count] = hash; /* a race may repeat a line */
        __atomic_store_n(&said_count, count + 1, __ATOMIC_RELEASE);
    }
    pasta_signals_hold(&held);
    if (!pasta_config_u64("quiet", 0)) {
        int fd = is_kept() ? kept_stderr : STDERR_FILENO;
        if (write(fd, line, length) < 0) { /* the target closed it: the log has the line */
        }
    }
    to_log(line, length);
    pasta_signals_restore(&held);
    errno = saved;
}
