/* A plan for managed memory (managed/plan.c): each argument is a call, and the steps that it finds are printed. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>

#include "../../shim/include/pasta_source.h"
#include "../../shim/managed/plan.h"
#include "check.h"

static uint32_t generation;

uint32_t pasta_generation(void) { return generation; }
const char *pasta_config(const char *name) { return strcmp(name, "uvm_plan") ? NULL : getenv("PLAN"); }
void pasta_say(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
}
uint64_t pasta_hash(const void *bytes, size_t length) { /* few buckets: chains */
    return (uint64_t)(((const unsigned char *)bytes)[0] & 3) << 32 | length;
}

static void print(char what, pasta_plan_steps steps) {
    for (pasta_plan_step step; pasta_plan_next(&steps, &step);) {
        printf("%c %u %" PRIu64 " %" PRIu64 "\n", what, step.entry, step.address, step.bytes);
        pasta_plan_done(&step, 0);
    }
}

/* a BYTES ADDRESS: allocated; f ADDRESS: freed; l KERNEL: launched with grid 1; n: in a forked child from now on */
int main(int count, char **arguments) {
    CHECK(pasta_plan_is_on());
    for (int i = 1; i < count; i++) {
        char what = arguments[i][0], *end;
        const char *rest = arguments[i] + 2;
        if (what == 'a') {
            uint64_t bytes = strtoull(rest, &end, 10);
            print('a', pasta_plan_allocated(strtoull(end, NULL, 10), bytes));
        } else if (what == 'f') {
            pasta_plan_freed(strtoull(rest, NULL, 10));
        } else if (what == 'l') {
            pasta_plan_launch found = pasta_plan_launched(rest, (uint32_t[]){1, 1, 1});
            print('b', found.before);
            print('e', found.after);
        } else if (what == 'n') {
            generation++;
        }
    }
    return 0;
}
