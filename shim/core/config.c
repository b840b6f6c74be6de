/* The launcher's configuration: items "key=value" in the environment variable PASTA_SHIM, copied once:
 * the target may clear its environment.  They are separated by the character 0x1f, or by newlines: programs
 * that read the lines of `env` get the variable as one. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

static const char SEPARATORS[] = "\x1f\n";

static struct entry {
    const char *key, *value;
} *entries;
static int entry_count;
static bool wanted;

void pasta_config_load(void) {
    const char *text = getenv("PASTA_SHIM");
    if (!text || entry_count) return;
    char *copy = strdup(text), *rest = NULL;
    size_t most = 1;
    for (const char *at = text; *(at += strcspn(at, SEPARATORS)); at++) most++;
    entries = copy ? calloc(most, sizeof *entries) : NULL;
    if (!entries) {
        free(copy);
        return;
    }
    for (char *item = strtok_r(copy, SEPARATORS, &rest); item; item = strtok_r(NULL, SEPARATORS, &rest)) {
        char *equals = strchr(item, '=');
        if (!equals) continue;
        *equals = '\0';
        entries[entry_count].key = item;
        entries[entry_count++].value = equals + 1;
    }
    wanted = pasta_session() && pasta_config_u64("schema", 0) == PASTA_SCHEMA;
    if (wanted && !pasta_config_u64("children", 1)) wanted = pasta_config_u64("root", 0) == (uint64_t)getpid();
}

bool pasta_wanted(void) { return wanted; }

const char *pasta_config(const char *key) {
    for (int i = 0; i < entry_count; i++)
        if (!strcmp(entries[i].key, key)) return entries[i].value;
    return NULL;
}

uint64_t pasta_config_u64(const char *key, uint64_t otherwise) {
    const char *value = pasta_config(key);
    if (!value) return otherwise;
    char *end;
    uint64_t number = strtoull(value, &end, 0);
    return end == value || *end ? otherwise : number;
}

pasta_window pasta_config_window(const char *key, const char *unit) {
    const char *text = pasta_config(key);
    size_t length = strlen(unit);
    pasta_window found = {0};
    if (!text || strncmp(text, unit, length) || text[length] != ' ') return found;
    char *end;
    found.length = strtoull(text + length, &end, 10);
    found.period = strtoull(end, NULL, 10);
    return found;
}

bool pasta_listens_to(const char *backend) {
    const char *chosen = pasta_config("backend");
    return wanted && (!chosen || !strcmp(chosen, "auto") || !strcmp(chosen, backend));
}

const char *pasta_session(void) { return pasta_config("session"); }

void pasta_config_forked(void) {
    /* --no-children: only the launched process, and what it execs, is profiled */
    if (wanted && !pasta_config_u64("children", 1)) wanted = false;
}
