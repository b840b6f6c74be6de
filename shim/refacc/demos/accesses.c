/* accesses [NAME...]: runs the cases of golden.h, all but `large` or those named, whose accesses are known
 * from arithmetic.  With --expect the numbers of each come before the counts: NAME.KIND.instructions=16, ...;
 * a number that is not stated has no line. */
#include <ctype.h>

#include "golden.h"

static bool is_wanted(int argc, char **argv, int number) {
    bool any = false;
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-') continue;
        if (!strcmp(argv[i], golden_cases[number].name)) return true;
        any = true;
    }
    return !any && number != GOLDEN_CASES - 1;
}

static void check_names(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        bool known = argv[i][0] == '-';
        for (int c = 0; c < GOLDEN_CASES; c++) known = known || !strcmp(argv[i], golden_cases[c].name);
        if (known) continue;
        fprintf(stderr, "%s: no such case; there are", argv[i]);
        for (int c = 0; c < GOLDEN_CASES; c++) fprintf(stderr, " %s", golden_cases[c].name);
        fprintf(stderr, "\n");
        exit(2);
    }
}

static void print_number(const char *name, const char *kind, const char *field, long number) {
    if (number >= 0) printf("%s.%s%s%s=%ld\n", name, kind, *kind ? "." : "", field, number);
}

static void print_case(const struct golden *g) {
    static const char *const kinds[RA_KIND_COUNT] = {
#define NAME(name, number, space, text) [number] = #name,
        RA_KINDS(NAME)
#undef NAME
    };
    print_number(g->name, "", "launches", g->calls.launches);
    print_number(g->name, "", "unknown", g->unknown);
    for (const struct golden_count *c = g->accesses; c < g->accesses + GOLDEN_KINDS && c->kind; c++) {
        char kind[32] = "";
        for (size_t i = 0; kinds[c->kind][i]; i++) kind[i] = (char)tolower(kinds[c->kind][i]);
        print_number(g->name, kind, "instructions", c->instructions);
        print_number(g->name, kind, "reads", c->reads);
        print_number(g->name, kind, "writes", c->writes);
        print_number(g->name, kind, "atomics", c->atomics);
        print_number(g->name, kind, "lanes", c->lanes);
        print_number(g->name, kind, "bytes", c->bytes);
        print_number(g->name, kind, "sectors", c->sectors);
        print_number(g->name, kind, "ideal_sectors", c->ideal_sectors);
        print_number(g->name, kind, "ways", c->ways);
        print_number(g->name, kind, "ideal_ways", c->ideal_ways);
    }
}

int main(int argc, char **argv) {
    struct demo_counts all = {0};
    int run = 0;
    check_names(argc, argv);
    for (int c = 0; c < GOLDEN_CASES; c++) {
        const struct golden *g = &golden_cases[c];
        if (!is_wanted(argc, argv, c)) continue;
        run++;
        all.launches += g->calls.launches;
        all.graph_launches += g->calls.graph_launches;
        all.copies += g->calls.copies;
        all.sets += g->calls.sets;
        all.allocations += g->calls.allocations;
        all.frees += g->calls.frees;
        all.streams += g->calls.streams;
        if (demo_flag(argc, argv, "--expect")) print_case(g);
    }
    demo_expect(argc, argv, all);
    for (int c = 0; c < GOLDEN_CASES; c++)
        if (is_wanted(argc, argv, c)) golden_run(&golden_cases[c]);
    printf("accesses: %d cases, correct\n", run);
    return 0;
}
