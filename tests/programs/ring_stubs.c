/* What the ring needs of the other parts of libpasta when it is tested or measured alone. */
#include "../../shim/core/internal.h"

static void start(bool after_fork) { (void)after_fork; }
static void forget(void) {}
static void leave(bool every_thread) { (void)every_thread; }
static const pasta_consumer consumer = {start, forget, forget, leave};

__attribute__((constructor)) static void load(void) {
    pasta_exec_load();
    pasta_life_load(&consumer);
}

/* setenv is libc's: other threads may change the environment, so it is never read. */
void pasta_environment_each(void (*take)(void *, const char *), void *into) { (void)take, (void)into; }
