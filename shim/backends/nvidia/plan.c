/* The plan of the probes, which the launcher wrote (pasta/backends/nvidia/plan.py). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "probes.h"

pasta_nv_plan pasta_nv_the_plan;
bool pasta_nv_probing PASTA_WARM;
#define plan pasta_nv_the_plan

bool pasta_nv_probes_on(void) { return PASTA_UNLIKELY(__atomic_load_n(&pasta_nv_probing, __ATOMIC_ACQUIRE)); }

static bool number_of(const char *text, uint64_t *number) {
    char *end;
    *number = strtoull(text, &end, 0);
    return end != text && !*end;
}

static bool plan_line(const char *key, char *value) {
    static const struct {
        const char *key;
        size_t offset;
    } numbers[] = {
        {"slot_words", offsetof(pasta_nv_plan, slot_words)},
        {"slot_stripe_bytes", offsetof(pasta_nv_plan, slot_stripe_bytes)},
        {"slot_stripes", offsetof(pasta_nv_plan, slot_stripes)},
        {"plain_words", offsetof(pasta_nv_plan, plain_words)},
        {"object_words", offsetof(pasta_nv_plan, object_words)},
        {"stripes", offsetof(pasta_nv_plan, stripes)},
        {"objects", offsetof(pasta_nv_plan, objects)},
        {"planes", offsetof(pasta_nv_plan, planes)},
        {"plane_shift", offsetof(pasta_nv_plan, plane_shift)},
        {"lasting_planes", offsetof(pasta_nv_plan, lasting_planes)},
        {"bin_words", offsetof(pasta_nv_plan, bin_words)},
        {"bin_shift", offsetof(pasta_nv_plan, bin_shift)},
        {"bin_stripes", offsetof(pasta_nv_plan, bin_stripes)},
        {"pair_rows", offsetof(pasta_nv_plan, pairs.rows)},
        {"pair_words", offsetof(pasta_nv_plan, pairs.words)},
        {"pair_stripes", offsetof(pasta_nv_plan, pairs.stripes)},
        {"memory", offsetof(pasta_nv_plan, memory)},
        {"trace", offsetof(pasta_nv_plan, trace)},
    };
    char *second = strchr(value, ' ');
    if (!strcmp(key, "patch") || !strcmp(key, "cubin") || !strcmp(key, "hash")) {
        uint64_t first;
        if (!second) return false;
        *second++ = '\0';
        if (!number_of(value, &first)) return false;
        if (*key == 'p' && plan.patch_count < PASTA_NV_PATCHES)
            plan.patches[plan.patch_count++] = (pasta_nv_patch){(int32_t)first, second};
        else if (*key == 'c' && plan.cubin_count < PASTA_NV_CUBINS)
            plan.cubins[plan.cubin_count++] = second;
        else if (*key == 'h' && plan.hash_count < PASTA_PROBE_HASHES) {
            char *third = strchr(second, ' ');
            pasta_nv_hash *h = &plan.hashes[plan.hash_count++];
            h->rows = first;
            if (!third) return false;
            *third++ = '\0';
            return number_of(second, &h->words) && number_of(third, &h->stripes);
        } else
            return false;
        return true;
    }
    if (!strcmp(key, "kinds")) return true; /* for sources that need no patches */
    if (!strcmp(key, "api")) {
        plan.api = value;
        return true;
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(key, numbers[i].key))
            return number_of(value, (uint64_t *)(void *)((char *)&plan + numbers[i].offset));
    return false;
}

/* Writes the path of a file next to a cubin, with another suffix. */
static void beside(char path[PATH_MAX], const char *cubin, const char *suffix) {
    const char *dot = strrchr(cubin, '.');
    snprintf(path, PATH_MAX, "%.*s%s", dot ? (int)(dot - cubin) : 0, cubin, suffix);
}

/* Whether the compiler of a cubin has ended: it holds a lock while it runs. */
static bool compiler_ended(const char *cubin) {
    char path[PATH_MAX];
    beside(path, cubin, ".lock");
    int lock = open(path, O_RDONLY | O_CLOEXEC);
    if (lock < 0) return true;
    bool ended = flock(lock, LOCK_SH | LOCK_NB) == 0;
    close(lock);
    return ended;
}

/* The launcher's compilers may still be at work.  The program waits for them, at most so long that
 * it is certain that something is wrong. */
static bool await_cubins(void) {
    enum { STEP_MS = 5, MAX_WAIT_MS = 120000 };
    int waited = 0;
    for (uint32_t i = 0; i < plan.cubin_count; i++) {
        const char *cubin = plan.cubins[i];
        while (access(cubin, R_OK) != 0) {
            if (waited >= MAX_WAIT_MS || compiler_ended(cubin)) {
                if (access(cubin, R_OK) == 0) break; /* written in between */
                char log[PATH_MAX];
                beside(log, cubin, ".log");
                pasta_say(waited >= MAX_WAIT_MS ? "probes do not run: they are still being compiled, see %s"
                                            : "probes do not run: they failed to compile, see %s",
                          log);
                return false;
            }
            nanosleep(&(struct timespec){.tv_nsec = STEP_MS * 1000000}, NULL);
            waited += STEP_MS;
        }
    }
    return true;
}

bool pasta_nv_read_plan(const char *path) {
    FILE *file = fopen(path, "re");
    if (!file) {
        pasta_say("probes do not run: %s cannot be read (%m)", path);
        return false;
    }
    char line[4096];
    bool good = true;
    while (good && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *space = strchr(line, ' ');
        if (!space) continue;
        *space = '\0';
        char *value = strdup(space + 1); /* kept: the plan points into it */
        good = value && plan_line(line, value);
        if (!good) pasta_say("probes do not run: %s: cannot parse the line that begins with %s", path, line);
    }
    fclose(file);
    return good && await_cubins();
}
