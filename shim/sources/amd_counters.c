#include "amd_source.h"
void pasta_amd_counters_configure(uint64_t context) { (void)context; }
void pasta_amd_counters_finish(void) {}
