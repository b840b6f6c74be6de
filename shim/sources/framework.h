/* Between the sources of frameworks and core. */
#ifndef PASTA_SOURCES_FRAMEWORK_H
#define PASTA_SOURCES_FRAMEWORK_H

#include "../core/internal.h"

uint32_t pasta_framework_stack(void); /* id of the Python stack of this thread's operator; 0: none */
bool pasta_torch_memory_follow(bool follow); /* the allocators of torch; returns what was before */

#endif
