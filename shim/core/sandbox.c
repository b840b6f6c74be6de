/* Programs that restrict their system calls (seccomp).
 *
 * A filter allows what the program needs; a system call of this library would end it.  So the call
 * that installs a filter is interposed: before it the embedded consumer, which opens files, hands over
 * to a collector, and the ring gets the memory that it may grow into; after it nothing here makes a
 * system call.  A program that restricts itself without libc is seen by the launcher only, which backs
 * the ring ahead of the producers. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

static bool sandboxed;
static bool strict PASTA_HOT; /* a thread has no system calls but read, write and exit */
static pid_t process; /* that these variables describe: the child of a vfork shares its parent's */
static void (*on_restrict)(bool every_thread);
static int (*real_prctl)(int, ...);
static long (*real_syscall)(long, ...);

bool pasta_is_sandboxed(void) { return __atomic_load_n(&sandboxed, __ATOMIC_RELAXED); }

clockid_t pasta_clock(void) {
    return PASTA_UNLIKELY(__atomic_load_n(&strict, __ATOMIC_RELAXED)) ? CLOCK_MONOTONIC_COARSE : CLOCK_MONOTONIC;
}

static void find_real(void) {
    *(void **)&real_prctl = dlsym(RTLD_NEXT, "prctl");
    *(void **)&real_syscall = dlsym(RTLD_NEXT, "syscall");
}

static void note_process(void) {
    if (!pasta_is_sandboxed()) process = getpid();
}

void pasta_sandbox_load(void (*restricting)(bool every_thread)) {
    on_restrict = restricting;
    find_real();
    note_process();
    pthread_atfork(NULL, NULL, note_process);
}

/* True where the process becomes sandboxed; leave() undoes it where the system call fails. */
static bool enter(bool every_thread, bool strictly) {
    int saved = errno;
    if (strictly) __atomic_store_n(&strict, true, __ATOMIC_RELEASE);
    if (pasta_is_sandboxed() || !pasta_session() || (pasta_same_process() && process != getpid())) return false;
    if (pasta_wanted() && pasta_same_process() && on_restrict) on_restrict(every_thread);
    __atomic_store_n(&sandboxed, true, __ATOMIC_RELEASE);
    errno = saved;
    return true;
}

static void leave(void) {
    __atomic_store_n(&sandboxed, false, __ATOMIC_RELEASE);
    __atomic_store_n(&strict, false, __ATOMIC_RELEASE);
}

/* A NULL filter only asks whether the kernel supports filters. */
static bool sets_seccomp(unsigned long mode, const void *filter) {
    return mode == SECCOMP_MODE_STRICT || (mode == SECCOMP_MODE_FILTER && filter);
}

/* As libc's: reads the maximum number of arguments, though a caller may pass fewer. */
#define VARIADIC __attribute__((no_sanitize("address", "undefined")))

PASTA_EXPORT VARIADIC int prctl(int option, ...) {
    unsigned long a[4];
    va_list arguments;
    va_start(arguments, option);
    for (int i = 0; i < 4; i++) a[i] = va_arg(arguments, unsigned long);
    va_end(arguments);
    if (!real_prctl) find_real(); /* called from another library's constructor, before ours */
    bool entered = option == PR_SET_SECCOMP && sets_seccomp(a[0], (const void *)a[1]) &&
                   enter(false, a[0] == SECCOMP_MODE_STRICT);
    int result = real_prctl(option, a[0], a[1], a[2], a[3]);
    if (result && entered) leave();
    return result;
}

static bool restricts(long number, const long *a) {
    return number == SYS_seccomp && (a[0] == SECCOMP_SET_MODE_STRICT || (a[0] == SECCOMP_SET_MODE_FILTER && a[2]));
}

/* A listener's descriptor is a success, and the id of a thread that could not be restricted a failure. */
static bool failed(long flags, long result) {
    return result < 0 || (result > 0 && !(flags & SECCOMP_FILTER_FLAG_NEW_LISTENER));
}

PASTA_EXPORT VARIADIC long syscall(long number, ...) {
    long a[6];
    va_list arguments;
    va_start(arguments, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(arguments, long);
    va_end(arguments);
    if (!real_syscall) find_real();
    bool entered = PASTA_UNLIKELY(restricts(number, a)) &&
                   enter(a[1] & SECCOMP_FILTER_FLAG_TSYNC, a[0] == SECCOMP_SET_MODE_STRICT);
    long result = real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (PASTA_UNLIKELY(entered) && failed(a[1], result)) leave();
    return result;
}
