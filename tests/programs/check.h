/* For the C tests: exit with the line of a failed check. */
#ifndef PASTA_TEST_CHECK_H
#define PASTA_TEST_CHECK_H

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                  \
        }                                                                             \
    } while (0)

/* A program with several cases: runs the named one; returns the exit status. */
typedef struct {
    const char *name;
    void (*run)(void);
} test_case;

static inline int run_case(const test_case *cases, size_t count, const char *name) {
    for (size_t i = 0; name && i < count; i++) {
        if (strcmp(name, cases[i].name)) continue;
        cases[i].run();
        return 0;
    }
    fprintf(stderr, "no such case\n");
    return 2;
}
#define RUN_CASE(cases, name) run_case(cases, sizeof(cases) / sizeof *(cases), name)

#endif
