#include "torch.h"

static void follow(bool on) { (void)pasta_torch_memory_follow(on); }

static void load(void) {
    pasta_framework_provide(pasta_torch_memory_follow);
    pasta_accelerator_library("libtorch.so");
    if (!pasta_framework_is_watched("torch")) return;
    follow(true);
    if (pasta_config_u64("empty_while_off", 0)) pasta_on_profiling(follow);
    pasta_follow_captures = true;
}

const pasta_component pasta_torch_framework = {.name = "torch", .load = load, .late = true};
