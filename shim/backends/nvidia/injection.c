/* Which of the two sources records a process.
 *
 * The driver calls InitializeInjection of the library that CUDA_INJECTION64_PATH names inside cuInit, however the
 * driver was loaded: before the first context, and never in a process without CUDA.  CUPTI and the Sanitizer exclude
 * each other in a process: only CUPTI has times, only the Sanitizer has probes.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "cupti_source.h"

PASTA_EXPORT int InitializeInjection(void);

static bool is_automatic(void) {
    const char *wanted = pasta_config("nvidia.source");
    return !wanted || !strcmp(wanted, "auto");
}

static bool has_probes(void) {
    const char *probes = pasta_config("probes");
    return probes && *probes;
}

/* What only CUPTI records and the configuration asks for; NULL: nothing. */
static const char *asked_of_cupti(void) {
    const char *interval = pasta_config("nvidia.pc_sampling"), *counters = pasta_config("nvidia.counters");
    if (interval && *interval) return "PC samples";
    if (counters && *counters) return "counters";
    if (pasta_config_u64("nvidia.instructions", 0)) return "executed instructions";
    return pasta_config_u64("nvidia.uvm", 0) ? "faults of managed memory" : NULL;
}

static void say_not_taken(const char *what) {
    if (has_probes())
        pasta_say("no %s: they require CUPTI, which excludes probes: --set nvidia.source=cupti records them without probes, and "
                  "--passes auto runs the program twice, once for each, if there is also a tool without probes",
                  what);
    else pasta_say("no %s: nvidia.source is sanitizer; use cupti or auto", what);
}

bool pasta_nv_takes_cupti(void) {
    if (!pasta_listens_to("nvidia") || pasta_config_u64("nvidia.empty", 0)) return false;
    return is_automatic() ? !has_probes() : !strcmp(pasta_config("nvidia.source"), "cupti");
}

static void choose(void) {
    char why[512] = "";
    bool automatic = is_automatic(), cupti = pasta_nv_takes_cupti();
    const char *asked = asked_of_cupti();
    if (cupti && has_probes())
        pasta_say("probes do not run: nvidia.source is cupti; use auto or sanitizer, or --passes auto for both");
    if (cupti && (pasta_cupti_start(why, sizeof why) || !*why)) return;
    if (cupti && !automatic) pasta_say("CUDA is not recorded: %s", why);
    else if (cupti) pasta_say("no %s: %s. The Compute Sanitizer records the rest", asked ? asked : "device times", why);
    else if (asked && !pasta_config_u64("nvidia.empty", 0)) say_not_taken(asked);
    if (!cupti || automatic) pasta_nv_start_sanitizer();
}

void pasta_nv_start(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int saved = errno;
    if (pasta_listens_to("nvidia")) pthread_once(&once, choose);
    errno = saved;
}

/* Called by the driver inside cuInit.  Always 1: a failure here is not the target's. */
int InitializeInjection(void) {
    pasta_nv_start();
    return 1;
}
