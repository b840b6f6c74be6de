/* The part of the AMD backend in libpasta.so; all else is libpasta_amd.so, which the SDK loads by the
 * environment that the launcher sets. */
#include "../../core/internal.h"

static void load(void) {
    pasta_exec_variable("ROCP_TOOL_LIBRARIES", "libpasta_amd.so");
    pasta_exec_variable("ROCPROFILER_REGISTER_LIBRARY", NULL);
    pasta_accelerator_library("libamdhip64.so");
}

const pasta_component pasta_amd_backend = {.name = "amd", .load = load};
