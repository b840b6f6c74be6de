/* Between the files of the CUPTI source.  Lowest first: cupti_library · cupti_submitted, cupti_guest · cupti_samples,
 * cupti_instructions · cupti_counters · cupti_resources, cupti_calls, cupti_records · cupti · injection · cupti_interpose. */
#ifndef PASTA_CUPTI_SOURCE_H
#define PASTA_CUPTI_SOURCE_H

#include "cupti_abi.h"
#include "source.h"

#define PASTA_CUPTI_SOURCE "nvidia_cupti"
/* For a file's table `cupti` of functions, from a list of X(name, symbol, arguments): its fields, and what fills them.
 * `missing` becomes a symbol that the library lacks. */
#define PASTA_CUPTI_FIELD(name, symbol, arguments) int32_t(*name) arguments;
#define PASTA_CUPTI_FIND(name, symbol, arguments)          \
    *(void **)&cupti.name = pasta_cupti_function(symbol); \
    if (!cupti.name) missing = symbol;

#define PASTA_CUPTI_INSTALL "pip install 'nvidia-cuda-cupti>=13'"

/* ---- cupti_library.c ---- */

#define PASTA_CUPTI_POINTER(name, symbol, arguments) int32_t(*name) arguments;
typedef struct pasta_cupti_library {
    PASTA_CUPTI_FUNCTIONS(PASTA_CUPTI_POINTER)
    void *subscriber;
    uint32_t version; /* of the API */
} pasta_cupti_library;
#undef PASTA_CUPTI_POINTER
extern pasta_cupti_library pasta_cupti;

/* The library that the program has loaded, else the configured one.  False: `why` says what is missing. */
bool pasta_cupti_load(char *why, size_t size);
void *pasta_cupti_function(const char *symbol); /* of the loaded library, or NULL */
const char *pasta_cupti_version(void); /* of the toolkit that it belongs to */
const char *pasta_cupti_error(int32_t result);
/* Whether a call that needs the hardware's counters or samplers failed: reports it with the remedy, or only logs it if `said`,
 * which it sets.  `what`: what is missing then. */
bool pasta_cupti_failed(int32_t result, const char *call, const char *what, bool *said);

/* Functions of the CUDA driver that callbacks may call; NULL where it has none. */
typedef struct pasta_cupti_driver {
    int32_t (*function_attribute)(int32_t *value, int32_t attribute, uint64_t function);
    int32_t (*function_name)(const char **name, uint64_t function);
    int32_t (*kernel_function)(uint64_t *function, uint64_t kernel);
    int32_t (*parameter)(uint64_t function, uint64_t index, uint64_t *offset, uint64_t *bytes); /* since 12.4 */
    int32_t (*is_capturing)(uint64_t stream, int32_t *status);
    int32_t (*range)(uint64_t *base, uint64_t *bytes, uint64_t address);
    int32_t (*synchronize)(void); /* the current context */
} pasta_cupti_driver;
extern pasta_cupti_driver pasta_cuda;

/* ---- cupti_submitted.c: work whose records have not come, by CUPTI's correlation id ---- */

typedef enum pasta_cupti_kind {
    PASTA_CUPTI_NOTHING, /* neither its call nor its work is recorded */
    PASTA_CUPTI_A_LAUNCH,
    PASTA_CUPTI_A_GRAPH,
    PASTA_CUPTI_A_COPY, /* or set */
} pasta_cupti_kind;

typedef struct pasta_cupti_submitted {
    pasta_cupti_kind kind;
    pasta_nv_work work; /* with the time and the thread of its call */
} pasta_cupti_submitted;

void pasta_cupti_prepare(uint32_t correlation); /* prefetches what `put` will write */
void pasta_cupti_put(uint32_t correlation, const pasta_cupti_submitted *submitted);
bool pasta_cupti_get(uint32_t correlation, pasta_cupti_submitted *found);
bool pasta_cupti_replaced(uint32_t correlation); /* whether it may have been put and replaced since */
void pasta_cupti_forget(uint32_t correlation);

/* ---- cupti_guest.c: the program's own use of CUPTI, its "guest" ---- */

bool pasta_cupti_guest_subscribe(pasta_cupti_callback *callback, void *user); /* false: there is one already */
void pasta_cupti_guest_unsubscribe(void);
void pasta_cupti_guest_enable(int32_t domain, uint32_t id, bool on);
bool pasta_cupti_guest_wants(int32_t domain, uint32_t id);
void pasta_cupti_guest_on_callback(int32_t domain, uint32_t id, const void *data);
void pasta_cupti_guest_buffers(pasta_cupti_request *request, pasta_cupti_complete *complete);
void pasta_cupti_guest_records(int32_t kind, bool on);
bool pasta_cupti_guest_wants_records(int32_t kind);
/* Gives one of its buffers; false: it has enabled no records. */
bool pasta_cupti_guest_request(uint8_t **buffer, uint64_t *bytes, uint64_t *max_records);
/* Its buffer is full; a buffer of ours is, of which it gets copies of its records. */
void pasta_cupti_guest_complete(uint64_t context, uint32_t stream, uint8_t *buffer, uint64_t bytes, uint64_t valid);
void pasta_cupti_guest_copy(uint64_t context, uint32_t stream, uint8_t *ours, uint64_t valid);
/* The clock of records, the conversion of a record's time to CLOCK_MONOTONIC (0 stays 0), and the clock of the guest. */
void pasta_cupti_set_clock(void);
uint64_t pasta_cupti_clock(void);
void pasta_cupti_guest_clock(uint64_t (*clock)(void));
uint64_t pasta_cupti_time(uint64_t value);

/* ---- cupti_samples.c: PC samples; no-ops unless they are asked for ---- */

void pasta_cupti_samples_start(void); /* a failure is reported, and nothing is sampled */
bool pasta_cupti_samples_on(void);
void pasta_cupti_samples_fetch(void); /* what CUPTI has: on a thread of ours */
void pasta_cupti_samples_context_created(uint64_t context, pasta_nv_place at);
void pasta_cupti_samples_context_destroyed(uint64_t context);
void pasta_cupti_samples_module_unloading(void);
void pasta_cupti_samples_module_call(bool entering); /* a call that loads or unloads a module */
/* Samples are of launches, which windows select: `decide` gets a launch's record, `launching` comes before it runs. */
bool pasta_cupti_samples_by_launch(void);
pasta_flags pasta_cupti_samples_decide(const pasta_kernel_launch *launch);
void pasta_cupti_samples_launching(uint64_t context);
void pasta_cupti_samples_finish(void); /* the process exits */

/* ---- cupti_instructions.c: executed instructions of one launch at a time: calls come under the lock of counters ---- */

typedef struct pasta_cupti_arguments {
    uint64_t function;
    void *const *parameters, *const *extra; /* as pasta_cupti_launch has them */
} pasta_cupti_arguments;

typedef struct pasta_cupti_counted_launch {
    uint64_t ordinal;
    pasta_string_id name; /* of the kernel */
    pasta_cupti_arguments arguments;
} pasta_cupti_counted_launch;

bool pasta_cupti_instructions_start(void); /* false: not asked for, or a failure, which is reported */
bool pasta_cupti_instructions_begin(uint64_t context); /* false: nothing is counted */
/* Publishes the launch's executed instructions; NULL: it failed. */
void pasta_cupti_instructions_end(uint64_t context, const pasta_cupti_counted_launch *launch);
bool pasta_cupti_instructions_waits(void); /* this thread, in a call of ours that CUPTI reports */
void pasta_cupti_instructions_finish(void);

/* ---- cupti_tensor_maps.c: tensor maps among the arguments of a launch ---- */

void pasta_cupti_publish_tensor_maps(pasta_nv_place place, const pasta_cupti_counted_launch *launch);

/* ---- cupti_counters.c: hardware counters, or instructions, by launch; no-ops unless they are asked for ---- */

void pasta_cupti_counters_start(void); /* a failure is reported, and nothing is counted */
bool pasta_cupti_counters_on(void);
/* `decide` gets the record of a launch that is selected; `launching` comes before every launch, of a graph too, whose
 * nodes are not selected; `launched` at its return. */
pasta_flags pasta_cupti_counters_decide(const pasta_kernel_launch *launch);
void pasta_cupti_counters_launching(uint64_t context, const pasta_cupti_arguments *arguments); /* NULL: of a graph */
bool pasta_cupti_counters_wait(void); /* for the context, around a selected launch */
uint64_t pasta_cupti_counters_launched(bool succeeded); /* ns that it took, where it was counted; else 0 */
void pasta_cupti_counters_context_destroyed(uint64_t context);
void pasta_cupti_counters_finish(void); /* the process exits */

/* ---- cupti_resources.c: contexts, streams, modules, nodes of graphs ---- */

void pasta_cupti_on_resource(uint32_t id, const pasta_cupti_resource *resource);
/* By the numbers that records have; absent: unknown. */
pasta_nv_place pasta_cupti_place(uint32_t context);
uint64_t pasta_cupti_stream(uint32_t context, uint32_t stream);
uint64_t pasta_cupti_node(uint64_t node); /* handle of the captured node */

/* ---- cupti_calls.c: callbacks of API calls ---- */

void pasta_cupti_on_call(uint32_t id, const pasta_cupti_call *call);
bool pasta_cupti_wants_call(uint32_t id);

/* ---- cupti_records.c: buffers of records ---- */

/* Publishes a buffer's records. */
void pasta_cupti_read_buffer(uint64_t context, uint32_t stream, uint8_t *buffer, uint64_t valid);
void pasta_cupti_with_details(bool wanted);
/* A counted launch has no record: it ran in its call, for `ns`. */
void pasta_cupti_complete_counted(uint32_t correlation, const pasta_nv_work *work, uint64_t ns);
void pasta_cupti_finish_records(void); /* the process exits: the error of times, and losses */

/* ---- cupti.c ---- */

/* Subscribes.  False: `why` says what is missing and the remedy. */
bool pasta_cupti_start(char *why, size_t size);
bool pasta_cupti_is_on(void); /* we are the subscriber */
bool pasta_cupti_wants(int32_t domain, uint32_t id);
bool pasta_cupti_wants_records(int32_t kind);
void pasta_cupti_enable_callbacks(void); /* again, the ones that PASTA needs */

/* ---- injection.c ---- */

void pasta_nv_start(void); /* once: chooses and starts a source */
bool pasta_nv_takes_cupti(void); /* it chooses CUPTI first */

#endif
