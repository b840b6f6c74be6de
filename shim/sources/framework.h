/* Between the sources of frameworks and core. */
#ifndef PASTA_SOURCES_FRAMEWORK_H
#define PASTA_SOURCES_FRAMEWORK_H

#include "../core/internal.h"

uint32_t pasta_framework_stack(void); /* id of the Python stack of this thread's operator; 0: none */
bool pasta_torch_memory_follow(bool follow); /* the allocators of torch; returns what was before */
void pasta_torch_graphs_load(void);   /* follows the graphs that torch captures from now on */

/* Of torch_graphs.c, for hooks: how many captures are under way, and a look for their new nodes, by the
 * thread that made them. */
extern uint32_t pasta_torch_capturing;
void pasta_torch_captured(void);

/* The function of that name in the library that `caller` is in or was linked to, else the next one. */
void *pasta_framework_theirs(const char *name, void *caller);

/* Declares `call`, the function of that name that ours came before; NULL where it is gone. */
#define PASTA_THEIRS(type, name)                                                               \
    static type *next;                                                                         \
    type *call = __atomic_load_n(&next, __ATOMIC_RELAXED);                                     \
    if (PASTA_UNLIKELY(!call)) {                                                               \
        *(void **)&call = pasta_framework_theirs(name, __builtin_return_address(0));           \
        __atomic_store_n(&next, call, __ATOMIC_RELAXED);                                       \
    }

#endif
