#include "source.h"

static void load(void) {
    pasta_exec_variable(PASTA_NV_VARIABLE, NULL);
    pasta_accelerator_library("libcuda.so");
    if (pasta_listens_to("nvidia")) pasta_inject(PASTA_NV_SOURCE, PASTA_NV_VARIABLE, "CUDA is not recorded");
}

const pasta_component pasta_nvidia_backend = {.name = "nvidia", .load = load};
