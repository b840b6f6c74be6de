#include "source.h"

static void load(void) {
    pasta_exec_variable(PASTA_REFACC_VARIABLE, NULL);
    pasta_accelerator_library("librefacc.so");
    if (pasta_listens_to("refacc")) pasta_inject(PASTA_REFACC_SOURCE, PASTA_REFACC_VARIABLE, "nothing is recorded");
}

const pasta_component pasta_refacc_backend = {.name = "refacc", .load = load};
