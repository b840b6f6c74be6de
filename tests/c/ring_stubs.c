/* What the ring needs of the other parts of libpasta when it is tested or measured alone. */
#include "../../shim/core/internal.h"

void pasta_refacc_source_load(void) {}
void pasta_nvidia_source_load(void) {}
__attribute__((weak)) void pasta_annotate_source_load(void) {} /* some tests link the source */
__attribute__((weak)) void pasta_framework_source_load(void) {}
void pasta_consumer_start(bool after_fork) { (void)after_fork; }
void pasta_consumer_forget(void) {}
void pasta_consumer_finish(void) {}
void pasta_consumer_leave(bool every_thread) { (void)every_thread; }
/* No setenv of ours: the environment is what it was at the start. */
void pasta_environment_each(void (*take)(void *, const char *), void *into) { (void)take, (void)into; }
