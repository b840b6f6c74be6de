/* Between the sources of frameworks and core. */
#ifndef PASTA_SOURCES_FRAMEWORK_H
#define PASTA_SOURCES_FRAMEWORK_H

#include "../core/internal.h"

uint32_t pasta_framework_stack(void); /* id of the Python stack of this thread's operator; 0: none */
void pasta_torch_memory_load(void);   /* follows the allocators of torch from now on */

#endif
