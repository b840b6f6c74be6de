/* Programs that the target starts keep the preload, also where the target gives them another
 * environment (env -i, clearenv, execle, posix_spawn).
 *
 * Interposes the exec family.  A call may come from the child of a vfork or from a signal handler:
 * nothing allocates, and all memory is on the stack.  Missing variables are added; those that the
 * target sets stay.  Where PASTA_SHIM is set but empty, or another session's, the environment is left
 * as it is: that is how a program starts another one unprofiled.  A program that would not start with
 * this library, or not find it (in another root directory, as another user), gets the environment without
 * it, and so does the loader where it only lists libraries (ldd).  system() and popen() exec inside libc,
 * with the environment as it is then. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "internal.h"

/* Larger environments pass unchanged: the arrays are on the stack. */
enum { MAX_ENTRIES = 4096, MAX_PRELOAD = 8192 };

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

/* Variables that new programs get, with the values that this process was loaded with. */
enum { SHIM, MAX_VARIABLES = 16 };
static struct {
    const char *name;
    char *entry; /* "NAME=value"; NULL: this process was started without it */
} variables[MAX_VARIABLES];
static int variable_count;
static const char PRELOAD[] = "LD_PRELOAD";
static const char *library; /* this library's entry of LD_PRELOAD; NULL: loaded in another way */

/* ---- variables of this process ---- */

/* Value of the entry "NAME=value"; NULL for an entry of another name. */
static const char *value_of(const char *entry, const char *name) {
    size_t length = strlen(name);
    return strncmp(entry, name, length) || entry[length] != '=' ? NULL : entry + length + 1;
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

/* The list "NAME=PATH:…" with the path of `file` only: where the target unsets the variable, it wants none of
 * the others.  NULL where the list has no such path. */
static char *own_entry(const char *name, const char *list, const char *file) {
    size_t suffix = strlen(file);
    for (size_t length; *list; list += length + (list[length] == ':')) {
        length = strcspn(list, ":");
        if (length <= suffix || list[length - suffix - 1] != '/' || strncmp(list + length - suffix, file, suffix)) continue;
        char *entry = malloc(strlen(name) + 1 + length + 1);
        if (!entry) return NULL;
        char *end = stpcpy(stpcpy(entry, name), "=");
        memcpy(end, list, length);
        end[length] = '\0';
        return entry;
    }
    return NULL;
}

void pasta_exec_variable(const char *name, const char *file) {
    const char *value = getenv(name);
    if (variable_count == MAX_VARIABLES) {
        pasta_log("too many variables for programs that the target starts, ignored: %s", name);
        return;
    }
    char *entry = NULL;
    if (value && file) entry = own_entry(name, value, file);
    else if (value && (entry = malloc(strlen(name) + 1 + strlen(value) + 1))) stpcpy(stpcpy(stpcpy(entry, name), "="), value);
    variables[variable_count].name = name;
    variables[variable_count++].entry = entry;
}

void pasta_inject(const char *source, const char *variable, const char *consequence) {
    const char *present = getenv(variable);
    Dl_info self;
    if (!dladdr((void *)variables, &self) || !self.dli_fname) return;
    if (!present || !*present)
        setenv(variable, self.dli_fname, 1); /* the runtime reads it later */
    else if (strcmp(present, self.dli_fname) != 0)
        pasta_log("%s: %s names %s: if that is another tool, %s", source, variable, present, consequence);
}

static void find_real(void) {
    *(void **)&real.execvpe = dlsym(RTLD_NEXT, "execvpe");
    *(void **)&real.fexecve = dlsym(RTLD_NEXT, "fexecve");
    *(void **)&real.execveat = dlsym(RTLD_NEXT, "execveat"); /* glibc 2.34 */
    *(void **)&real.spawn = dlsym(RTLD_NEXT, "posix_spawn");
    *(void **)&real.spawnp = dlsym(RTLD_NEXT, "posix_spawnp");
    *(void **)&real.execve = dlsym(RTLD_NEXT, "execve");
}

void pasta_exec_load(void) {
    find_real();
    pasta_exec_variable("PASTA_SHIM", NULL);
    Dl_info self;
    const char *preload = getenv("LD_PRELOAD");
    if (preload && dladdr((void *)variables, &self) && self.dli_fname && lists(preload, self.dli_fname))
        library = strdup(self.dli_fname);
}

/* ---- environment of a new program ---- */

typedef struct {
    size_t entries; /* size of the array; 1 where the environment stays as it is */
    size_t preload; /* bytes of the new value of LD_PRELOAD */
    bool change, without, add[MAX_VARIABLES]; /* without: this library is removed from LD_PRELOAD */
    size_t at; /* index of LD_PRELOAD; the number of entries where it is missing; SIZE_MAX: it stays */
} pasta_exec_plan;

/* A value of PASTA_SHIM is this session's; empty: the program is not to be profiled; else another launcher's. */
static bool is_ours(const char *shim) {
    return variables[SHIM].entry && !strcmp(shim, value_of(variables[SHIM].entry, variables[SHIM].name));
}

/* Is one of the entries of LD_PRELOAD the runtime of a sanitizer, which must be the first library? */
static bool has_first_library(const char *value) {
    for (size_t length; *value; value += length) {
        value += strspn(value, ": ");
        length = strcspn(value, ": ");
        const char *slash = memrchr(value, '/', length);
        if (pasta_must_come_first(slash ? slash + 1 : value)) return true;
    }
    return false;
}

/* Can the loader of a new program open this library?  Unknown where system calls are restricted: yes. */
static bool can_open_library(void) {
    if (pasta_is_sandboxed()) return true;
    int saved = errno, fd = open(library, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) close(fd);
    errno = saved;
    return fd >= 0;
}

static pasta_exec_plan plan_for(char *const *environment, bool refuses, const char *program) {
    pasta_exec_plan plan = {.entries = 1, .preload = 1}, same = plan;
    if (!real.execve) find_real(); /* called from another library's constructor, before ours */
    if (!pasta_wanted()) return same;
    size_t count = 0, at = SIZE_MAX;
    bool has[MAX_VARIABLES] = {false}, lists_only = false;
    const char *present = NULL;
    for (; environment && environment[count]; count++) {
        for (int i = 0; i < variable_count; i++) has[i] = has[i] || value_of(environment[count], variables[i].name);
        if (!present && (present = value_of(environment[count], PRELOAD))) at = count;
        lists_only = lists_only || value_of(environment[count], "LD_TRACE_LOADED_OBJECTS");
        const char *shim = value_of(environment[count], variables[SHIM].name);
        if ((shim && !is_ours(shim)) || count >= MAX_ENTRIES) return same;
    }
    plan.entries = count + (size_t)variable_count + 2;
    for (int i = 0; i < variable_count; i++) plan.change |= plan.add[i] = variables[i].entry && !has[i];
    plan.at = SIZE_MAX;
    refuses = refuses || (library && present && has_first_library(present));
    if (refuses)
        pasta_log_once(program, " is for 32 bits, another libc or another processor, or has the runtime of a sanitizer: it "
                                "starts without PASTA\n");
    if (refuses || (library && (lists_only || !can_open_library()))) {
        if (!library || !present || !lists(present, library)) return plan.change ? plan : same;
        plan.at = at;
        plan.preload = sizeof PRELOAD + 1 + strlen(present);
        plan.change = plan.without = true;
    } else if (library && !(present && lists(present, library))) {
        plan.at = present ? at : count;
        plan.preload = sizeof PRELOAD + 1 + strlen(library) + 1 + (present ? strlen(present) : 0);
        plan.change = true;
    }
    return plan.change && plan.preload <= MAX_PRELOAD ? plan : same;
}

/* Copies a value of LD_PRELOAD without this library; false where nothing is left. */
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

static char *begin_preload(char *to) { return stpcpy(stpcpy(to, PRELOAD), "="); }

static char *const *fill(const pasta_exec_plan *plan, char *const *environment, char **entries, char *preload) {
    if (!plan->change) return environment;
    size_t count = 0;
    const char *present = NULL;
    for (; environment && environment[count]; count++) entries[count] = environment[count];
    if (plan->at != SIZE_MAX && plan->at < count) present = value_of(entries[plan->at], PRELOAD);
    if (plan->without) {
        if (copy_without(begin_preload(preload), present)) entries[plan->at] = preload;
        else memmove(&entries[plan->at], &entries[plan->at + 1], (count-- - plan->at - 1) * sizeof *entries);
    } else if (plan->at != SIZE_MAX) {
        char *end = stpcpy(begin_preload(preload), library);
        if (present && *present) stpcpy(stpcpy(end, ":"), present);
        entries[plan->at] = preload;
        count += plan->at == count;
    }
    for (int i = 0; i < variable_count; i++)
        if (plan->add[i]) entries[count++] = variables[i].entry;
    entries[count] = NULL;
    return entries;
}

/* Declares `full`: the completed `environment`, in arrays of the calling function. */
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

/* Declares `argv` from the variable arguments after `first`; `rest` is then after the NULL. */
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
