/* A piece of work that several runtimes do: lines of words, as amd_work.py writes them, and the names
 * in them.  Read by the programs that do it on the played driver and on the reference accelerator. */
#ifndef PASTA_TEST_WORK_H
#define PASTA_TEST_WORK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORK_WORDS = 12, WORK_NAMES = 64 };

typedef struct {
    int count;
    char *word[WORK_WORDS]; /* the first is the operation */
} work_step;

static inline uint64_t work_number(const work_step *s, int i) {
    return i < s->count ? strtoull(s->word[i], NULL, 0) : 0;
}

/* The object of a name. */
static struct {
    char name[16];
    uint64_t value, more, kind;
} work_named[WORK_NAMES];

static inline int work_place(const char *name) {
    int i = 0;
    while (i < WORK_NAMES - 1 && *work_named[i].name && strcmp(work_named[i].name, name)) i++;
    snprintf(work_named[i].name, sizeof work_named[i].name, "%s", name);
    return i;
}

static inline uint64_t work_value(const work_step *s, int i) {
    return i < s->count ? work_named[work_place(s->word[i])].value : 0; /* "-", or none: 0 */
}

static inline void work_name(const char *name, uint64_t value) { work_named[work_place(name)].value = value; }

static inline void work_do(const char *path, void (*step)(const work_step *)) {
    char line[256];
    FILE *file = fopen(path, "r");
    if (!file) exit(94);
    while (fgets(line, sizeof line, file)) {
        work_step s = {0};
        for (char *word = strtok(line, " \n"); word && s.count < WORK_WORDS; word = strtok(NULL, " \n"))
            s.word[s.count++] = word;
        if (s.count) step(&s);
    }
    fclose(file);
}

#define WORK_IS(what) (!strcmp(s->word[0], what))

#endif
