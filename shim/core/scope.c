/* Launches inside a range, an operator or a module of a framework whose name matches: --range, --operator, --module.
 *
 * What this file takes for inside is at least what the filter of the results does (pasta/processors/filter.py): a
 * launch of which it cannot know is probed, and dropped later. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { MAX_DEPTH = 256, MAX_STARTED = 256, LINKS = 1 << 16 };

static struct {
    bool range, by_operator, module;
} asked PASTA_WARM;

/* What is open on this thread, the innermost last, also in a fork's child; what is deeper than MAX_DEPTH is only
 * counted. */
static _Thread_local struct {
    uint32_t ranges, lost_ranges, in_ranges; /* open; of them beyond MAX_DEPTH; of them that match */
    uint32_t operators, in_operators, in_modules;
    uint64_t stack[MAX_DEPTH];
    bool matches[MAX_DEPTH]; /* of ranges */
    uint8_t found[MAX_DEPTH]; /* of operators: bits */
    uint32_t name[MAX_DEPTH];
    uint32_t pauses;  /* number of the last pause when an outermost operator began */
    uint32_t silence; /* launches since the last pause, before an operator began */
} here;
enum { IN_OPERATOR = 1, IN_MODULE = 2 };

/* Operators are paused when the last PATIENCE launches needed none; if they are followed briefly, as soon as the launches that
 * needed them have come. A thread in which SILENCE launches are in none has none. */
enum { PATIENCE = 4096, SILENCE = 256 };
static struct {
    bool allowed;
    uint32_t on, number; /* `number`: of the last pause, from 1 */
    uint32_t changing;   /* a thread does */
    uint32_t brief;      /* they are followed briefly */
    uint64_t until, until_briefly; /* ordinal of the launch after which operators are not needed */
    bool (*change)(bool paused);
} pause PASTA_HOT;

uint32_t pasta_scope_follows_operators PASTA_WARM;

/* Ranges of the whole process that match and are open. */
static struct {
    uint64_t ids[MAX_STARTED]; /* plus one; 0: free */
    uint32_t open, lost;       /* `lost`: without a place */
} started;

bool pasta_scope_configure(bool operators, bool pauses) {
    asked.range = pasta_select_asks(PASTA_SELECT_RANGE);
    asked.by_operator = pasta_select_asks(PASTA_SELECT_OPERATOR);
    asked.module = pasta_select_asks(PASTA_SELECT_MODULE);
    memset(&started, 0, sizeof started); /* a fork's child has no range of its own open */
    pause.allowed = pauses && !asked.by_operator && !asked.module;
    pause.on = pause.number = pause.changing = pause.brief = 0;
    pause.until = pause.until_briefly = PATIENCE;
    __atomic_store_n(&pasta_scope_follows_operators, operators || asked.by_operator || asked.module, __ATOMIC_RELEASE);
    return asked.range || asked.by_operator || asked.module;
}

/* ---- ranges ---- */

/* The filter also looks at what a mangled name means. */
static bool range_matches(uint32_t name) {
    size_t length;
    const char *text = name ? pasta_interned(name, &length) : NULL;
    return text && (pasta_select_matches(PASTA_SELECT_RANGE, name) || (length > 2 && !strncmp(text, "_Z", 2)));
}

void pasta_scope_push(uint64_t stack, uint32_t name) {
    if (!asked.range) return;
    if (here.ranges == MAX_DEPTH) {
        here.lost_ranges++;
        return;
    }
    bool matches = range_matches(name);
    here.stack[here.ranges] = stack;
    here.matches[here.ranges++] = matches;
    here.in_ranges += matches;
}

/* The innermost range of its stack closes: of several stacks not always the last one that was opened. */
void pasta_scope_pop(uint64_t stack) {
    if (!asked.range) return;
    if (here.lost_ranges) {
        here.lost_ranges--;
        return;
    }
    uint32_t at = here.ranges;
    while (at && here.stack[at - 1] != stack) at--;
    if (!at) return;
    here.in_ranges -= here.matches[at - 1];
    memmove(here.stack + at - 1, here.stack + at, (here.ranges - at) * sizeof *here.stack);
    memmove(here.matches + at - 1, here.matches + at, (here.ranges - at) * sizeof *here.matches);
    here.ranges--;
}

void pasta_scope_start(uint64_t id, uint32_t name) {
    if (!asked.range || !range_matches(name)) return;
    __atomic_fetch_add(&started.open, 1, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < MAX_STARTED; i++) {
        uint64_t none = 0;
        if (__atomic_compare_exchange_n(&started.ids[i], &none, id + 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return;
    }
    __atomic_store_n(&started.lost, 1, __ATOMIC_RELAXED); /* its end will not be known: inside from now on */
}

void pasta_scope_end(uint64_t id) {
    if (!asked.range || !__atomic_load_n(&started.open, __ATOMIC_RELAXED)) return;
    for (uint32_t i = 0; i < MAX_STARTED; i++) {
        uint64_t held = id + 1;
        if (!__atomic_compare_exchange_n(&started.ids[i], &held, 0, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) continue;
        __atomic_fetch_sub(&started.open, 1, __ATOMIC_RELAXED);
        return;
    }
}

/* ---- operators, and their modules ---- */

/* Forward operators whose gradient is computed later, by thread and sequence number: fingerprint and whether their
 * module matches. An entry that another one replaced is unknown, which counts as a match. */
static uint32_t links[LINKS];

static uint64_t link_of(uint32_t thread, uint32_t sequence) {
    return ((uint64_t)thread << 32 | sequence) * UINT64_C(0x9e3779b97f4a7c15);
}

static void put_link(uint64_t link, bool matches) {
    __atomic_store_n(&links[link >> 48], (uint32_t)(link & 0xfffffffe) | matches, __ATOMIC_RELAXED);
}

static bool forward_matches(uint64_t link) {
    uint32_t held = __atomic_load_n(&links[link >> 48], __ATOMIC_RELAXED);
    return (held & 0xfffffffe) != (uint32_t)(link & 0xfffffffe) || held & 1;
}

static bool in_module(const pasta_operator_begin *e) {
    bool has_sequence = e->sequence != PASTA_ABSENT_U32, of_gradient = e->forward_thread != PASTA_ABSENT_U16;
    bool matches = e->module && pasta_select_matches(PASTA_SELECT_MODULE, e->module);
    if (has_sequence && !of_gradient) put_link(link_of(e->framework_thread, e->sequence), matches);
    return matches || (of_gradient && (!has_sequence || forward_matches(link_of(e->forward_thread, e->sequence))));
}

void pasta_scope_operator_begins(const pasta_operator_begin *e) {
    if (!here.operators) {
        here.pauses = __atomic_load_n(&pause.number, __ATOMIC_RELAXED);
        here.silence = 0;
    }
    if (here.operators++ >= MAX_DEPTH) return;
    uint8_t found = 0;
    if (asked.by_operator && pasta_select_matches(PASTA_SELECT_OPERATOR, e->name)) found |= IN_OPERATOR;
    if (asked.module && in_module(e)) found |= IN_MODULE;
    here.found[here.operators - 1] = found;
    here.name[here.operators - 1] = e->name;
    here.in_operators += found & IN_OPERATOR;
    here.in_modules += found >> 1;
}

void pasta_scope_operator_ends(void) {
    if (!here.operators || here.operators-- > MAX_DEPTH) return;
    uint8_t found = here.found[here.operators];
    here.in_operators -= found & IN_OPERATOR;
    here.in_modules -= found >> 1;
}

/* ---- pauses ---- */

void pasta_scope_on_pause(bool (*change)(bool paused)) { __atomic_store_n(&pause.change, change, __ATOMIC_RELEASE); }

bool pasta_scope_pauses(void) { return pause.allowed && __atomic_load_n(&pause.change, __ATOMIC_ACQUIRE); }

pasta_scope pasta_scope_here(void) {
    uint32_t number = __atomic_load_n(&pause.number, __ATOMIC_RELAXED); /* 0 in the child of a fork, too */
    bool on = __atomic_load_n(&pause.on, __ATOMIC_RELAXED);
    return (pasta_scope){.operator = here.operators && here.operators <= MAX_DEPTH ? here.name[here.operators - 1] : 0,
                         .unknown = on || (number && here.pauses != number && here.silence < SILENCE)};
}

bool pasta_scope_is_brief(void) { return __atomic_load_n(&pause.brief, __ATOMIC_RELAXED); }

/* The framework may refuse, and another thread may be at it: false. */
static bool set_paused(bool on) {
    if (__atomic_exchange_n(&pause.changing, 1, __ATOMIC_ACQUIRE)) return false;
    bool (*change)(bool) = __atomic_load_n(&pause.change, __ATOMIC_ACQUIRE);
    bool done = true;
    if (__atomic_load_n(&pause.on, __ATOMIC_RELAXED) != on) {
        if (on) __atomic_store_n(&pause.on, true, __ATOMIC_RELEASE); /* before operators begin that are not followed */
        done = change(on);
        if (on && done) __atomic_fetch_add(&pause.number, 1, __ATOMIC_RELAXED);
        if (on != done) __atomic_store_n(&pause.on, false, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&pause.changing, 0, __ATOMIC_RELEASE);
    return done;
}

/* If it fails, the next launch that needs operators tries again. */
static void follow(uint64_t ordinal, bool briefly) {
    bool on = __atomic_load_n(&pause.on, __ATOMIC_RELAXED);
    __atomic_store_n(briefly ? &pause.until_briefly : &pause.until, ordinal + PATIENCE, __ATOMIC_RELAXED);
    if (!briefly || on) __atomic_store_n(&pause.brief, briefly, __ATOMIC_RELAXED);
    if (on) (void)set_paused(false);
}

static bool is_needed(uint64_t ordinal) {
    return ordinal <= __atomic_load_n(&pause.until, __ATOMIC_RELAXED) ||
           ordinal <= __atomic_load_n(&pause.until_briefly, __ATOMIC_RELAXED);
}

void pasta_scope_launched(uint64_t ordinal, pasta_follow need, bool unknown) {
    bool on = __atomic_load_n(&pause.on, __ATOMIC_RELAXED);
    if (unknown) here.silence = on ? 0 : here.silence + 1;
    if (__atomic_load_n(&pasta_capturing, __ATOMIC_RELAXED)) need = PASTA_FOLLOW;
    if (need == PASTA_FOLLOW || need == PASTA_FOLLOW_BRIEFLY) {
        follow(ordinal, need == PASTA_FOLLOW_BRIEFLY);
        return;
    }
    if (need == PASTA_FOLLOW_ENOUGH) __atomic_store_n(&pause.until_briefly, 0, __ATOMIC_RELAXED);
    if (!on && !is_needed(ordinal) && !set_paused(true))
        __atomic_store_n(&pause.until_briefly, ordinal + PATIENCE, __ATOMIC_RELAXED); /* tries again then */
}

void pasta_capture_begins(void) {
    if (pasta_scope_pauses()) follow(pasta_coming_launch(), false);
}

/* ---- launches ---- */

static bool in_range(void) {
    return here.in_ranges || here.lost_ranges || __atomic_load_n(&started.open, __ATOMIC_RELAXED) ||
           __atomic_load_n(&started.lost, __ATOMIC_RELAXED);
}

bool pasta_scope_fits(bool in_graph) {
    if (asked.range && !in_range()) return false;
    if (in_graph || here.operators > MAX_DEPTH) return true; /* operators that captured a graph are not known here */
    return (!asked.by_operator || here.in_operators) && (!asked.module || here.in_modules);
}
