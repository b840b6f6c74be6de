#include "torch.h"

static void load(void) {
    pasta_framework_provide(pasta_torch_memory_follow);
    pasta_accelerator_library("libtorch.so");
    if (!pasta_framework_is_watched("torch")) return;
    pasta_torch_memory_follow(true);
    pasta_follow_captures = true;
}

const pasta_component pasta_torch_framework = {.name = "torch", .load = load, .late = true};
