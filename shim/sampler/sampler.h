/* Samples of a program's call stacks by the kernel's perf events, for cffi (pasta._native._sampler).
 *
 * All of it runs in the launcher: the program is not interrupted, and gets no signal. */
#ifndef PASTA_SAMPLER_H
#define PASTA_SAMPLER_H

#ifndef PASTA_CFFI
#include <stdint.h>
#endif

typedef struct pasta_sampler pasta_sampler;

/* Samples a process that has not executed its program yet, from then on, and all that it starts: `rate` times in each
 * second of processor time of a thread.  `unwind`: a pasta_unwind_method.  NULL with an errno value. */
pasta_sampler *pasta_sampler_open(int pid, uint32_t rate, int unwind, int *error);
/* Whether the kernel's part of the time is sampled too, and whether stacks of code without frame pointers can be walked. */
int pasta_sampler_sees_kernel(const pasta_sampler *sampler);
int pasta_sampler_has_cfi(const pasta_sampler *sampler);
/* An errno value if memory of the program may not be read, for frames of Python; else 0. */
int pasta_sampler_python_error(const pasta_sampler *sampler);
/* Waits for samples, until `wake` (a descriptor) is readable or for `timeout_ms`, and publishes them. */
void pasta_sampler_work(pasta_sampler *sampler, int wake, int timeout_ms);
/* Publishes samples of a process to its ring, beginning with those that waited for it, until pasta_sampler_leave. */
void pasta_sampler_follow(pasta_sampler *sampler, uint32_t pid, void *ring);
void pasta_sampler_leave(pasta_sampler *sampler, void *ring);
void pasta_sampler_close(pasta_sampler *sampler);
#endif
