/* Which kernels, ranges, operators and modules are probed, by name.  The answer for a name is computed once and kept by
 * the id of its string, in a lock-free table. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { ENTRIES = 1 << 14, MAX_PROBES = 64 };
/* Bits of `found` for each selection: matches, does not; of kernels for the first two together. */
enum { IS_KERNEL = 1, NO_KERNEL = 2 };

typedef struct {
    uint64_t key; /* generation << 32 | id, plus HELD: a fork's child has other ids */
    uint32_t found;
    uint32_t launches;
} entry;
#define HELD (UINT64_C(1) << 63)

static entry entries[ENTRIES];

static struct {
    bool asked, usable;
    regex_t compiled;
} expressions[PASTA_SELECTIONS];
static bool selects_kernels PASTA_HOT __attribute__((aligned(64))); /* comes first: PASTA_HOT begins a line */

/* The entry of a name, created at first use; NULL where the table is full. */
static entry *entry_of(uint32_t name) {
    uint64_t key = HELD | (uint64_t)pasta_generation() << 32 | name;
    uint64_t hash = key * UINT64_C(0x9e3779b97f4a7c15) >> 32;
    for (uint32_t i = 0; i < MAX_PROBES; i++) {
        entry *e = &entries[(hash + i) % ENTRIES];
        uint64_t held = __atomic_load_n(&e->key, __ATOMIC_RELAXED);
        if (PASTA_LIKELY(held == key)) return e;
        if (held) continue;
        if (__atomic_compare_exchange_n(&e->key, &held, key, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED) || held == key)
            return e;
    }
    return NULL;
}

bool pasta_select_configure(void) {
    static const char *const keys[] = {[PASTA_SELECT_KERNEL] = "probe_kernel",
                                       [PASTA_SELECT_EXCLUDE] = "probe_exclude",
                                       [PASTA_SELECT_STEP] = "probe_step_range",
                                       [PASTA_SELECT_RANGE] = "probe_range",
                                       [PASTA_SELECT_OPERATOR] = "probe_operator",
                                       [PASTA_SELECT_MODULE] = "probe_module"};
    for (pasta_selection x = 0; x < PASTA_SELECTIONS; x++) {
        const char *text = pasta_config(keys[x]);
        expressions[x].asked = text && *text;
        /* again in a fork's child, without regfree: another thread may have held its lock */
        int error = expressions[x].asked ? regcomp(&expressions[x].compiled, text, REG_EXTENDED | REG_NOSUB) : 0;
        expressions[x].usable = expressions[x].asked && !error;
        if (!error) continue;
        char why[128];
        regerror(error, &expressions[x].compiled, why, sizeof why);
        pasta_say("%s = %s: %s; nothing matches it", keys[x], text, why);
    }
    selects_kernels = expressions[PASTA_SELECT_KERNEL].asked || expressions[PASTA_SELECT_EXCLUDE].asked;
    return selects_kernels;
}

/* REG_STARTEND: interned text does not end with NUL. */
static bool matches(pasta_selection x, const char *text, size_t length) {
    regmatch_t all = {.rm_so = 0, .rm_eo = (regoff_t)length};
    return expressions[x].usable && !regexec(&expressions[x].compiled, text, 1, &all, REG_STARTEND);
}

/* ---- kernels ---- */

typedef char *(*demangler)(const char *name, char *buffer, size_t *length, int *status);

/* Demangled name, to be freed; NULL where the symbol is not mangled. */
static char *demangled(const char *symbol) {
    if (strncmp(symbol, "_Z", 2)) return NULL;
    void *library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_LOCAL);
    demangler demangle = NULL;
    if (library) *(void **)&demangle = dlsym(library, "__cxa_demangle");
    if (demangle) return demangle(symbol, NULL, NULL, NULL);
    static uint32_t said;
    if (!__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
        pasta_log("libstdc++.so.6 was not found: -k and --exclude match mangled names");
    return NULL;
}

static bool found_in(pasta_selection x, const char *symbol, const char *text) {
    return matches(x, symbol, strlen(symbol)) || (text && matches(x, text, strlen(text)));
}

static PASTA_APART bool is_wanted(const char *symbol) {
    char *text = demangled(symbol);
    bool wanted = (!expressions[PASTA_SELECT_KERNEL].asked || found_in(PASTA_SELECT_KERNEL, symbol, text)) &&
                  !(expressions[PASTA_SELECT_EXCLUDE].asked && found_in(PASTA_SELECT_EXCLUDE, symbol, text));
    free(text);
    return wanted;
}

bool pasta_select_kernel(uint32_t name, const char *symbol) {
    if (!selects_kernels) return true;
    entry *e = name ? entry_of(name) : NULL;
    uint32_t found = e ? __atomic_load_n(&e->found, __ATOMIC_RELAXED) : 0;
    if (PASTA_UNLIKELY(!(found & (IS_KERNEL | NO_KERNEL)))) {
        found = symbol && is_wanted(symbol) ? IS_KERNEL : NO_KERNEL;
        if (e) __atomic_fetch_or(&e->found, found, __ATOMIC_RELAXED);
    }
    return found & IS_KERNEL;
}

uint32_t pasta_select_launched(uint32_t name) {
    static uint32_t unnamed; /* shared by names without an entry */
    entry *e = entry_of(name);
    return __atomic_fetch_add(e ? &e->launches : &unnamed, 1, __ATOMIC_RELAXED);
}

uint32_t pasta_select_count(uint32_t name) {
    entry *e = entry_of(name);
    return e ? __atomic_load_n(&e->launches, __ATOMIC_RELAXED) : 0;
}

/* ---- ranges, operators, modules ---- */

bool pasta_select_asks(pasta_selection x) { return expressions[x].asked; }

bool pasta_select_matches(pasta_selection x, uint32_t name) {
    if (!expressions[x].asked || !name) return false;
    uint32_t is = UINT32_C(1) << 2 * x, is_not = is << 1;
    entry *e = entry_of(name);
    uint32_t found = e ? __atomic_load_n(&e->found, __ATOMIC_RELAXED) : 0;
    if (!(found & (is | is_not))) {
        size_t length;
        const char *text = pasta_interned(name, &length);
        found = text && matches(x, text, length) ? is : is_not;
        if (e) __atomic_fetch_or(&e->found, found, __ATOMIC_RELAXED);
    }
    return found & is;
}
