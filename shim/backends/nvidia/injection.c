/* Which of the two sources records a process.
 *
 * The driver calls InitializeInjection of the library that CUDA_INJECTION64_PATH names inside cuInit, however the
 * driver was loaded: before the first context, and never in a process without CUDA.  CUPTI and the Sanitizer exclude
 * each other in a process: only CUPTI has times, only the Sanitizer has probes.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "cupti.h"

PASTA_EXPORT int InitializeInjection(void);

static void start(void) {
    char why[512] = "";
    const char *wanted = pasta_config("nvidia.source"), *probes = pasta_config("probes");
    bool automatic = !wanted || !strcmp(wanted, "auto");
    bool cupti = automatic ? !(probes && *probes) : !strcmp(wanted, "cupti");
    if (pasta_config_u64("nvidia.empty", 0)) cupti = false;
    if (cupti && (pasta_cupti_start(why, sizeof why) || !*why)) return;
    if (cupti && !automatic) pasta_say("CUDA is not recorded: %s", why);
    else if (cupti) pasta_say("no device times: %s. The Compute Sanitizer records the rest", why);
    if (!cupti || automatic) pasta_nv_start_sanitizer();
}

/* Called by the driver inside cuInit.  Always 1: a failure here is not the target's. */
int InitializeInjection(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int saved = errno;
    if (pasta_listens_to("nvidia")) pthread_once(&once, start);
    errno = saved;
    return 1;
}
