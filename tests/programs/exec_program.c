/* Starts itself with any exec function: exec_program WAY [NAME=value …].  The started program
 * gets exactly the given environment and prints its own (NUL-separated), a blank line before:
 * whether libpasta is loaded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

extern char **environ;

static int show(void) {
    printf("%s\n", dlsym(RTLD_DEFAULT, "pasta_api_mark") ? "loaded" : "not loaded");
    for (char **entry = environ; *entry; entry++) printf("%s%c", *entry, 0);
    return 0;
}

static int wait_for(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

static int many_children(void) {
    for (int i = 0; i < 200; i++) {
        pid_t child = fork();
        if (!child) return 0;
        CHECK(wait_for(child) == 0);
    }
    return 0;
}

static void *exec_path(void *arguments) {
    execvp(*(char **)arguments, arguments);
    return NULL;
}

/* As on the stack of a signal handler. */
static void exec_on_small_stack(char **arguments) {
    pthread_attr_t small;
    pthread_t thread;
    pthread_attr_init(&small);
    CHECK(!pthread_attr_setstacksize(&small, PTHREAD_STACK_MIN));
    CHECK(!pthread_create(&thread, &small, exec_path, arguments));
    pthread_join(thread, NULL);
}

int main(int count, char **arguments) {
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    CHECK(length > 0 && count > 1);
    self[length] = '\0';
    const char *other = getenv("TEST_PROGRAM"); /* started instead */
    if (other) snprintf(self, sizeof self, "%s", other);
    const char *way = arguments[1];
    char *show_it[] = {self, "show", NULL}, **given = arguments + 2;
    pid_t child;

    if (!strcmp(way, "show")) return show();
    if (!strcmp(way, "children")) return many_children();
    if (!strcmp(way, "execve")) execve(self, show_it, given);
    if (!strcmp(way, "execvpe")) execvpe(self, show_it, given);
    if (!strcmp(way, "execle")) execle(self, self, "show", (char *)NULL, given);
    if (!strcmp(way, "fexecve")) fexecve(open(self, O_RDONLY), show_it, given);
    if (!strcmp(way, "execveat")) {
        int (*call)(int, const char *, char *const *, char *const *, int) = NULL;
        *(void **)&call = dlsym(RTLD_DEFAULT, "execveat");
        CHECK(call);
        call(AT_FDCWD, self, show_it, given, 0);
    }
    if (!strcmp(way, "posix_spawn")) {
        CHECK(!posix_spawn(&child, self, NULL, NULL, show_it, given));
        return wait_for(child);
    }
    if (!strcmp(way, "posix_spawnp")) {
        CHECK(!posix_spawnp(&child, self, NULL, NULL, show_it, given));
        return wait_for(child);
    }
    if (!strcmp(way, "vfork")) {
        child = vfork();
        if (!child) {
            execve(self, show_it, given);
            _exit(98);
        }
        return wait_for(child);
    }
    if (!strcmp(way, "null")) { /* Linux treats a null environment as empty */
        char **none = NULL;
        execve(self, show_it, none);
    }
    environ = given; /* the others use the environment of the process */
    if (!strcmp(way, "execv")) execv(self, show_it);
    if (!strcmp(way, "execvp")) execvp(self, show_it);
    if (!strcmp(way, "small_stack")) exec_on_small_stack(show_it);
    if (!strcmp(way, "execl")) execl(self, self, "show", (char *)NULL);
    if (!strcmp(way, "execlp")) execlp(self, self, "show", (char *)NULL);
    return 97;
}
