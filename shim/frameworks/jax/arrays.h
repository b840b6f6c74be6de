/* Arrays of JAX; see arrays.c. */
#ifndef PASTA_JAX_ARRAYS_H
#define PASTA_JAX_ARRAYS_H

#include <stdint.h>

/* A module was executed: arrays may have been made. */
void pasta_jax_executed(void);

/* Id of a new stack; ids of other frameworks' hooks count from 1, ids of host stacks have the upper bit set. */
uint32_t pasta_jax_new_stack(void);

#endif
