/* Programs that the target starts keep our preload, also where the target gives them an
 * environment of its own (env -i, clearenv, execle, posix_spawn).
 *
 * Interposes the exec family.  A call may come from the child of a vfork or from a signal handler:
 * nothing here allocates, and all memory is on the stack.  What is missing is added; a value that
 * the target set for itself stays, and where PASTA_SHIM is set but empty, or another session's, the
 * environment is left as it is: that is how a program starts another one unprofiled.  A program that would not
 * start with our library gets the environment without it.  system() and popen() exec inside
 * libc, with the environment as it is then. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "internal.h"

/* Larger environments pass unchanged: the arrays are on the stack of any thread. */
enum { ENTRIES_MOST = 4096, PRELOAD_LONGEST = 8192 };

extern char **environ;

static struct {
    int (*execve)(const char *, char *const *, char *const *);
    int (*execvpe)(const char *, char *const *, char *const *);
    int (*fexecve)(int, char *const *, char *const *);
    int (*execveat)(int, const char *, char *const *, char *const *, int);
    int (*spawn)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const *,
                 char *const *);
    int (*spawnp)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const *,
                  char *const *);
} real;

/* Variables of the session, as this process had them when it was loaded; "NAME=value" or NULL. */
enum { SHIM, CUDA, REFACC, NVTX, ROCP, SDK, VARIABLES };
static const char *const names[VARIABLES] = {"PASTA_SHIM=", "CUDA_INJECTION64_PATH=", "REFACC_INJECTION_PATH=",
                                             "NVTX_INJECTION64_PATH=", "ROCP_TOOL_LIBRARIES=",
                                             "ROCPROFILER_REGISTER_LIBRARY="};
static const char AMD_TOOL[] = "/libpasta_amd.so";
static char *kept[VARIABLES];
static const char PRELOAD[] = "LD_PRELOAD=";
static const char *library; /* our entry of LD_PRELOAD, or NULL where we came without it */

/* ---- what this process had ---- */

static const char *value_of(const char *entry, const char *name) {
    size_t length = strlen(name);
    return strncmp(entry, name, length) ? NULL : entry + length;
}

/* Is `path` one of the entries of a value of LD_PRELOAD? */
static bool lists(const char *value, const char *path) {
    size_t length = strlen(path);
    while (*value) {
        value += strspn(value, ": ");
        size_t entry = strcspn(value, ": ");
        if (entry == length && !strncmp(value, path, length)) return true;
        value += entry;
    }
    return false;
}

/* Of a list of tools only ours: where the target leaves the variable out, it wants none of the others. */
static char *own_tool(const char *list) {
    for (size_t length; *list; list += length + (list[length] == ':')) {
        length = strcspn(list, ":");
        size_t name = sizeof AMD_TOOL - 1, prefix = strlen(names[ROCP]);
        if (length <= name || strncmp(list + length - name, AMD_TOOL, name) != 0) continue;
        char *entry = malloc(prefix + length + 1);
        if (!entry) return NULL;
        memcpy(entry, names[ROCP], prefix);
        memcpy(entry + prefix, list, length);
        entry[prefix + length] = '\0';
        return entry;
    }
    return NULL;
}

static char *to_keep(int variable, const char *entry) {
    return variable == ROCP ? own_tool(value_of(entry, names[ROCP])) : strdup(entry);
}

static void find_real(void) {
    *(void **)&real.execvpe = dlsym(RTLD_NEXT, "execvpe");
    *(void **)&real.fexecve = dlsym(RTLD_NEXT, "fexecve");
    *(void **)&real.execveat = dlsym(RTLD_NEXT, "execveat"); /* glibc 2.34 */
    *(void **)&real.spawn = dlsym(RTLD_NEXT, "posix_spawn");
    *(void **)&real.spawnp = dlsym(RTLD_NEXT, "posix_spawnp");
    *(void **)&real.execve = dlsym(RTLD_NEXT, "execve");
}

__attribute__((constructor)) static void load(void) {
    int saved = errno;
    find_real();
    for (char **entry = environ; entry && *entry; entry++)
        for (int i = 0; i < VARIABLES; i++)
            if (!kept[i] && value_of(*entry, names[i])) kept[i] = to_keep(i, *entry);
    Dl_info self;
    const char *preload = getenv("LD_PRELOAD");
    if (preload && dladdr((void *)names, &self) && self.dli_fname && lists(preload, self.dli_fname))
        library = strdup(self.dli_fname);
    errno = saved;
}

/* ---- what a new program gets ---- */

typedef struct {
    size_t entries; /* room that the arrays need; 1 where the environment stays as it is */
    size_t preload;
    bool change, without, add[VARIABLES]; /* without: our library leaves LD_PRELOAD */
    size_t at; /* where LD_PRELOAD is; `entries` where it is missing */
} pasta_exec_plan;

/* Of this session; else a program is to be left alone (empty), or another launcher has chosen for it. */
static bool is_ours(const char *shim) { return kept[SHIM] && !strcmp(shim, value_of(kept[SHIM], names[SHIM])); }

/* Once for each program and session, so that what starts it often does not fill the log. */
static void tell_unprofiled(const char *program) {
    char path[4096];
    int saved = errno, length = snprintf(path, sizeof path, "%s/unprofiled-%016" PRIx64, pasta_session(),
                                         pasta_hash(program, strlen(program)));
    int fd = length < (int)sizeof path ? open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    if (fd >= 0) {
        close(fd);
        pasta_log("%s is for 32 bits, another libc or another processor, or has the runtime of a sanitizer: it "
                  "starts without PASTA", program);
    }
    errno = saved;
}

static pasta_exec_plan plan_for(char *const *environment, bool refuses, const char *program) {
    pasta_exec_plan plan = {.entries = 1, .preload = 1}, same = plan;
    if (!real.execve) find_real(); /* called from another library's constructor, before ours */
    if (!pasta_wanted()) return same;
    size_t count = 0, at = SIZE_MAX;
    bool has[VARIABLES] = {false};
    const char *theirs = NULL;
    for (; environment && environment[count]; count++) {
        for (int i = 0; i < VARIABLES; i++) has[i] = has[i] || value_of(environment[count], names[i]);
        if (!theirs && (theirs = value_of(environment[count], PRELOAD))) at = count;
        const char *shim = value_of(environment[count], names[SHIM]);
        if ((shim && !is_ours(shim)) || count >= ENTRIES_MOST) return same;
    }
    plan.entries = count + VARIABLES + 2;
    for (int i = 0; i < VARIABLES; i++) plan.change |= plan.add[i] = kept[i] && !has[i];
    plan.at = SIZE_MAX;
    if (refuses) {
        tell_unprofiled(program);
        if (!library || !theirs || !lists(theirs, library)) return plan.change ? plan : same;
        plan.at = at;
        plan.preload = sizeof PRELOAD + strlen(theirs);
        plan.change = plan.without = true;
    } else if (library && !(theirs && lists(theirs, library))) {
        plan.at = theirs ? at : count;
        plan.preload = sizeof PRELOAD + strlen(library) + 1 + (theirs ? strlen(theirs) : 0);
        plan.change = true;
    }
    return plan.change && plan.preload <= PRELOAD_LONGEST ? plan : same;
}

/* Copies a value of LD_PRELOAD without our library. */
static bool copy_without(char *to, const char *value) {
    bool any = false;
    for (size_t length; *value; value += length) {
        value += strspn(value, ": ");
        length = strcspn(value, ": ");
        if (!length || (length == strlen(library) && !strncmp(value, library, length))) continue;
        if (any) *to++ = ':';
        memcpy(to, value, length);
        to += length;
        any = true;
    }
    *to = '\0';
    return any;
}

static char *const *fill(const pasta_exec_plan *plan, char *const *environment, char **entries, char *preload) {
    if (!plan->change) return environment;
    size_t count = 0;
    const char *theirs = NULL;
    for (; environment && environment[count]; count++) entries[count] = environment[count];
    if (plan->at != SIZE_MAX && plan->at < count) theirs = value_of(entries[plan->at], PRELOAD);
    if (plan->without) {
        if (copy_without(stpcpy(preload, PRELOAD), theirs)) entries[plan->at] = preload;
        else memmove(&entries[plan->at], &entries[plan->at + 1], (count-- - plan->at - 1) * sizeof *entries);
    } else if (plan->at != SIZE_MAX) {
        char *end = stpcpy(stpcpy(preload, PRELOAD), library);
        if (theirs && *theirs) stpcpy(stpcpy(end, ":"), theirs);
        entries[plan->at] = preload;
        count += plan->at == count;
    }
    for (int i = 0; i < VARIABLES; i++)
        if (plan->add[i]) entries[count++] = kept[i];
    entries[count] = NULL;
    return entries;
}

/* Declares `full`: `environment` with what is missing, in arrays of the calling function. */
#define COMPLETE(environment, refuses, program)                                                    \
    pasta_exec_plan plan = plan_for(environment, pasta_wanted() && library && (refuses), program); \
    char *entries[plan.entries], preload[plan.preload];                                            \
    char *const *full = fill(&plan, environment, entries, preload)

static bool refuses_at(int directory, const char *path, int flags) {
    bool itself = (flags & AT_EMPTY_PATH) && path && !*path;
    return itself ? pasta_refuses_preload_fd(directory) : pasta_refuses_preload(directory, path);
}

/* ---- the exec family ---- */

PASTA_EXPORT int execve(const char *path, char *const argv[], char *const envp[]) {
    COMPLETE(envp, pasta_refuses_preload(AT_FDCWD, path), path);
    return real.execve(path, argv, full);
}

PASTA_EXPORT int execvpe(const char *file, char *const argv[], char *const envp[]) {
    COMPLETE(envp, pasta_refuses_preload_in_path(file), file);
    return real.execvpe(file, argv, full);
}

PASTA_EXPORT int execv(const char *path, char *const argv[]) { return execve(path, argv, environ); }
PASTA_EXPORT int execvp(const char *file, char *const argv[]) { return execvpe(file, argv, environ); }

PASTA_EXPORT int fexecve(int fd, char *const argv[], char *const envp[]) {
    COMPLETE(envp, pasta_refuses_preload_fd(fd), "a program that was open");
    return real.fexecve(fd, argv, full);
}

PASTA_EXPORT int execveat(int directory, const char *path, char *const argv[], char *const envp[], int flags) {
    COMPLETE(envp, refuses_at(directory, path, flags), path);
    if (!real.execveat) return (int)syscall(SYS_execveat, directory, path, argv, full, flags);
    return real.execveat(directory, path, argv, full, flags);
}

/* Counts the arguments after `first` up to and with the NULL that ends them. */
static size_t count_arguments(const char *first, va_list *arguments) {
    size_t count = 1;
    for (const char *a = first; a; count++) a = va_arg(*arguments, const char *);
    return count;
}

static void take_arguments(const char *first, va_list *arguments, char **argv) {
    for (const char *a = first; (*argv++ = (char *)a);) a = va_arg(*arguments, const char *);
}

/* Declares `argv` from the variable arguments after `first`; `rest` then stands after the NULL. */
#define TAKE_ARGUMENTS(first)                           \
    va_list rest;                                       \
    va_start(rest, first);                              \
    size_t count = count_arguments(first, &rest);       \
    va_end(rest);                                       \
    char *argv[count];                                  \
    va_start(rest, first);                              \
    take_arguments(first, &rest, argv)

PASTA_EXPORT int execl(const char *path, const char *argument, ...) {
    TAKE_ARGUMENTS(argument);
    va_end(rest);
    return execve(path, argv, environ);
}

PASTA_EXPORT int execlp(const char *file, const char *argument, ...) {
    TAKE_ARGUMENTS(argument);
    va_end(rest);
    return execvpe(file, argv, environ);
}

PASTA_EXPORT int execle(const char *path, const char *argument, ...) {
    TAKE_ARGUMENTS(argument);
    char *const *envp = va_arg(rest, char *const *);
    va_end(rest);
    return execve(path, argv, envp);
}

PASTA_EXPORT int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                             const posix_spawnattr_t *attributes, char *const argv[], char *const envp[]) {
    COMPLETE(envp, pasta_refuses_preload(AT_FDCWD, path), path);
    return real.spawn(pid, path, actions, attributes, argv, full);
}

PASTA_EXPORT int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
                              const posix_spawnattr_t *attributes, char *const argv[], char *const envp[]) {
    COMPLETE(envp, pasta_refuses_preload_in_path(file), file);
    return real.spawnp(pid, file, actions, attributes, argv, full);
}
