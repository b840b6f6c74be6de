/* Between the files of the backend for the reference accelerator. */
#ifndef PASTA_REFACC_SOURCE_H
#define PASTA_REFACC_SOURCE_H

#include <stdbool.h>
#include <stddef.h>

#include "../../core/internal.h"
#include "../../refacc/refacc.h"
#include "../../refacc/refacc_tools.h"

/* The reference accelerator loads the library that this variable names. */
#define PASTA_REFACC_VARIABLE "REFACC_INJECTION_PATH"
#define PASTA_REFACC_SOURCE "refacc"

/* ---- accesses.c ---- */
/* Kinds of accesses to record, bits 1 << RA_KIND_*; 0: none.  Opens the access trace. */
uint32_t pasta_refacc_kinds(void);
extern bool pasta_refacc_values; /* whether records have values */
/* On worker threads of refacc.  `userdata`: the launch's ordinal. */
void pasta_refacc_on_access(void *userdata, const ra_access *a);
/* Counts the accesses of a launch that is a sample of its shape; reports them when it is complete. */
void pasta_refacc_count(uint64_t launch, uint32_t shape);
void pasta_refacc_counted(uint64_t launch);

/* ---- samples.c ---- */
void pasta_refacc_samples(void); /* reads the configuration */
/* Whether a launch is sampled: then its accesses must be reported until it is complete. */
bool pasta_refacc_sample(uint64_t launch);
void pasta_refacc_sample_access(uint64_t launch, const ra_access *a); /* on worker threads of refacc */
void pasta_refacc_sampled(const ra_launch_data *d, uint16_t context); /* publishes the samples of a complete launch */

#endif
