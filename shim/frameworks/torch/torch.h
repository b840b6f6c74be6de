/* Between the files for PyTorch. */
#ifndef PASTA_TORCH_H
#define PASTA_TORCH_H

#include "../framework.h"

/* Follows the allocators, or not; returns the earlier state. */
bool pasta_torch_memory_follow(bool follow);

#endif
