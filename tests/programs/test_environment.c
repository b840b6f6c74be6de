/* setenv and its kin against a plain model, and with readers on other threads:
 * test_environment CASE STEPS. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { NAMES = 300, VALUES = 5, READERS = 2, WRITERS = 3 };

extern char **environ;
__attribute__((weak)) void pasta_environment_load(void); /* not linked where the model is tested with libc */

static unsigned steps = 100000;

static uint32_t random_below(uint32_t *state, uint32_t limit) {
    *state = *state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)*state * limit) >> 32);
}

static void name_of(char *text, size_t size, unsigned i) { snprintf(text, size, "V%u", i); }

/* ---- one thread: a model of libc's functions ---- */

static int values[NAMES]; /* of the model; -1: not set */

static void compare(void) {
    unsigned set = 0, there = 0;
    for (unsigned i = 0; i < NAMES; i++) {
        char name[16], value[32];
        name_of(name, sizeof name, i);
        const char *found = getenv(name);
        snprintf(value, sizeof value, "value %d", values[i]);
        CHECK(values[i] < 0 ? !found : found && !strcmp(found, value));
        set += values[i] >= 0;
    }
    for (char **entry = environ; entry && *entry; entry++) there++;
    CHECK(there == set);
}

static void step(uint32_t *state) {
    static char entries[NAMES][VALUES][48]; /* of putenv: the program's own memory */
    unsigned i = random_below(state, NAMES);
    int to = (int)random_below(state, VALUES);
    char name[16], value[32];
    name_of(name, sizeof name, i);
    snprintf(value, sizeof value, "value %d", to);
    switch (random_below(state, 5)) {
    case 0:
    case 1: CHECK(!setenv(name, value, 1)); values[i] = to; break;
    case 2:
        CHECK(!setenv(name, value, 0));
        if (values[i] < 0) values[i] = to;
        break;
    case 3:
        snprintf(entries[i][to], sizeof entries[i][to], "V%u=%s", i, value);
        CHECK(!putenv(entries[i][to]));
        CHECK(getenv(name) == strchr(entries[i][to], '=') + 1);
        values[i] = to;
        break;
    default: CHECK(!(to & 1 ? unsetenv(name) : putenv(name))); values[i] = -1;
    }
}

static void clear(void) {
    CHECK(!clearenv() && !environ);
    for (unsigned i = 0; i < NAMES; i++) values[i] = -1;
}

static void case_model(void) {
    uint32_t state = 1;
    clear();
    for (unsigned n = 0; n < steps; n++) {
        step(&state);
        if (n % 1000 == 0) compare();
        if (n % 20000 == 19999) clear();
    }
    compare();
}

/* A program may set environ to its own array, even to a part of the current one. */
static void case_own_array(void) {
    static char a[] = "A=1", b[] = "B=2";
    char *mine[] = {a, b, NULL};
    environ = mine;
    CHECK(!setenv("A", "3", 1) && environ == mine && !strcmp(mine[0], "A=3"));
    CHECK(!setenv("C", "4", 1) && environ != mine && !mine[2]);
    CHECK(!strcmp(getenv("A"), "3") && !strcmp(getenv("B"), "2") && !strcmp(getenv("C"), "4"));
    environ++;
    CHECK(!getenv("A") && !setenv("D", "5", 1));
    CHECK(!getenv("A") && !strcmp(getenv("B"), "2") && !strcmp(getenv("C"), "4") && !strcmp(getenv("D"), "5"));
    environ = mine;
    CHECK(!setenv("E", "6", 1) && !strcmp(getenv("A"), "3") && !getenv("D") && !unsetenv("B"));
    CHECK(!getenv("B") && !strcmp(getenv("E"), "6"));
}

static void case_wrong(void) {
    const char *const names[] = {"", "A=B", NULL};
    for (int i = 0; i < 3; i++) {
        errno = 0;
        CHECK(setenv(names[i], "1", 1) == -1 && errno == EINVAL);
        errno = 0;
        if (names[i]) CHECK(unsetenv(names[i]) == -1 && errno == EINVAL);
    }
    char none[] = "";
    CHECK(!putenv(none));
    errno = 7;
    CHECK(!setenv("FINE", "", 1) && !*getenv("FINE") && !unsetenv("FINE") && errno == 7);
    static char twice[] = "TWICE=2", again[] = "TWICE=1";
    char *both[] = {again, twice, NULL};
    environ = both;
    CHECK(!unsetenv("TWICE") && !*environ);
}

/* The same text many times over takes no more memory. */
static void case_bounded(void) {
    CHECK(!setenv("A", "0", 1));
    const char *zero = getenv("A"), *one = NULL;
    for (unsigned n = 0; n < steps; n++) {
        CHECK(!setenv("A", n & 1 ? "0" : "1", 1));
        if (!n) one = getenv("A");
        CHECK(getenv("A") == (n & 1 ? zero : one));
        if (n % 100 == 0) CHECK(!clearenv());
    }
}

/* ---- readers on other threads ---- */

static uint32_t writing;

static void *write_it(void *thread) {
    uint32_t state = (uint32_t)(uintptr_t)thread;
    for (unsigned n = 0; n < steps; n++) {
        char name[16], value[32];
        name_of(name, sizeof name, random_below(&state, NAMES));
        snprintf(value, sizeof value, "value %u", random_below(&state, VALUES));
        if (n % 8 < 6)
            CHECK(!setenv(name, value, 1));
        else
            CHECK(!unsetenv(name));
        if (n % 500 == 499) CHECK(!clearenv());
    }
    __atomic_sub_fetch(&writing, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void *read_it(void *none) {
    while (__atomic_load_n(&writing, __ATOMIC_ACQUIRE)) {
        char **entry = __atomic_load_n(&environ, __ATOMIC_ACQUIRE), *text;
        for (unsigned n = 0; entry && (text = __atomic_load_n(entry, __ATOMIC_ACQUIRE)); entry++, n++) {
            const char *value = strchr(text, '=');
            CHECK(*text == 'V' && value && !strncmp(value + 1, "value ", 6) && strlen(value) == 8);
            CHECK(n < 2 * NAMES);
        }
    }
    return none;
}

static void in_threads(void (*meanwhile)(void)) {
    pthread_t ids[READERS + WRITERS];
    clear();
    writing = WRITERS;
    for (uintptr_t i = 0; i < READERS + WRITERS; i++)
        CHECK(!pthread_create(&ids[i], NULL, i < READERS ? read_it : write_it, (void *)(i * (i >= READERS))));
    if (meanwhile) meanwhile();
    for (int i = 0; i < READERS + WRITERS; i++) pthread_join(ids[i], NULL);
}

static void case_threads(void) { in_threads(NULL); }

/* A forked child sets variables while another thread of its parent was setting some. */
static void fork_children(void) {
    for (int n = 0; n < 50; n++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            for (int i = 0; i < 1000; i++) {
                char name[16];
                name_of(name, sizeof name, (unsigned)i);
                if (setenv(name, "value 0", 1) || strcmp(getenv(name), "value 0")) _exit(1);
            }
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
    }
}

static void case_fork(void) { in_threads(fork_children); }

static const test_case cases[] = {
    {"model", case_model},     {"own_array", case_own_array}, {"wrong", case_wrong},
    {"bounded", case_bounded}, {"threads", case_threads},     {"fork", case_fork},
};

int main(int count, char **arguments) {
    if (pasta_environment_load) pasta_environment_load();
    if (count > 2) steps = (unsigned)strtoul(arguments[2], NULL, 10);
    return RUN_CASE(cases, count > 1 ? arguments[1] : NULL);
}
