/* Between the files of the probes.  Lowest first: plan, prober · rest, versions, trace · batches, nodes, patches · results ·
 * readback · probes. */
#ifndef PASTA_NVIDIA_PROBES_H
#define PASTA_NVIDIA_PROBES_H

#include <pthread.h>

#include "../../include/pasta_probes.h"
#include "source.h"

enum {
    PASTA_NV_PATCHES = 32,
    PASTA_NV_CUBINS = 16,
    PASTA_NV_SLOTS = PASTA_PROBE_SLOTS, /* launches in a batch; a marker's byte counts them */
    PASTA_NV_MARKERS = 1 << 16,
    PASTA_NV_COPIED = 32,
    PASTA_NV_FUNCTIONS_LOG2 = 14, /* of a context */
    PASTA_NV_MODULES = 1 << 10, /* ways of the table of modules */
    PASTA_NV_MAX_WORDS = 64, /* of an object's row */
    PASTA_NV_WAYS = 64, /* of the table of streams */
    PASTA_NV_MISSED = 1 << 12, /* launches that are written together */
    PASTA_NV_FIRST_PATCHING_NS = 300 * 1000 * 1000, /* assumed by an overhead budget before its first window */
};

typedef struct pasta_nv_patch {
    int32_t instruction;
    const char *function;
} pasta_nv_patch;

typedef struct pasta_nv_hash {
    uint64_t rows, words;
    uint64_t stripes; /* 0: a shadow, pairs of a key and a value, which only patches read */
} pasta_nv_hash;

/* The launcher's plan (pasta/backends/nvidia/plan.py writes it). */
typedef struct pasta_nv_plan {
    const char *api; /* version of the Sanitizer library that the patches are for */
    pasta_nv_patch patches[PASTA_NV_PATCHES];
    const char *cubins[PASTA_NV_CUBINS];
    pasta_nv_hash hashes[PASTA_PROBE_HASHES];
    uint32_t patch_count, cubin_count, hash_count;
    uint64_t plain_words;  /* of a launch, without stripes */
    uint64_t slot_words;   /* of a launch … */
    uint64_t slot_stripe_bytes; /* … and their bytes, in each of … */
    uint64_t slot_stripes;      /* … these copies, a power of two; 0: no words */
    uint64_t object_words; /* of an object that a launch touches */
    uint64_t stripes;      /* copies of them, a power of two, at most */
    pasta_nv_hash pairs;   /* of a launch: by object and instruction */
    uint64_t objects;      /* 1: patches look addresses up */
    uint64_t planes, plane_shift;
    uint64_t lasting_planes; /* bits: planes of the whole run, not of launches */
    uint64_t bin_words, bin_shift, bin_stripes;
    uint64_t memory; /* bytes on each device */
    uint64_t trace;  /* bytes of page-locked memory for access records; 0: none are written */
} pasta_nv_plan;
extern pasta_nv_plan pasta_nv_the_plan;
extern bool pasta_nv_probing; /* probes are on; see pasta_nv_probes_on */

/* A table of objects as of one state of the allocations. */
typedef struct pasta_nv_version {
    struct pasta_nv_version *next;
    uint64_t address, room, bytes, as_of;
    uint32_t users; /* launches that may read it and may be incomplete */
    uint32_t plane_words; /* of a plane: its objects' are below */
    void *image;
    uint64_t streams[PASTA_NV_COPIED]; /* in which it was copied */
    uint32_t stream_count;
    bool retired;
} pasta_nv_version;

typedef struct pasta_nv_batch {
    struct pasta_nv_batch *next, *next_current;
    struct pasta_nv_prober *owner;
    uint64_t stream, descriptors;
    uint64_t room;  /* bytes from `words` on */
    uint64_t words; /* of the launches, with all stripes: pasta_nv_words_bytes() of each */
    uint64_t slots; /* of the launches: keys, plain words, pairs and rows of objects */
    const pasta_nv_version *table; /* in the descriptors of its unused slots; NULL: none */
    uint64_t as_of;                /* state of that table */
    volatile uint8_t *marker;
    uint64_t keys_bytes, plain_bytes, pairs_bytes, slot_bytes, last_marker;
    uint32_t rows, stripes, stripe_bytes;
    uint32_t rows_wanted; /* more than `rows` if memory was short */
    uint32_t spill_rows; /* after all slots, for each: for objects without a row in the slot */
    uint32_t plane_part, plane_words; /* of the planes: which part, and its words */
    uint32_t used;         /* slots given out */
    uint32_t begun, ended; /* launches by their callbacks */
    uint32_t marked;       /* slots that a marker in the stream covers */
    uint32_t done;         /* slots read */
    bool closed; /* its stream is destroyed */
    bool last;   /* launches that have not ended never will */
    bool marking, mark_again;
    uint64_t first_epoch; /* slots have consecutive ones */
    uint64_t ordinals[PASTA_NV_SLOTS]; /* absent: it is missed, and its slot empty */
    uint32_t shapes[PASTA_NV_SLOTS]; /* absent: not sampled */
    pasta_nv_version *versions[PASTA_NV_SLOTS]; /* NULL: without a table */
} pasta_nv_batch;

/* A launch that has the flag of probed ones, but no counts. */
typedef struct pasta_nv_missed {
    uint64_t ordinal, why; /* PASTA_MISSED_* */
} pasta_nv_missed;

typedef struct pasta_nv_tracer pasta_nv_tracer;
typedef struct pasta_nv_nodes pasta_nv_nodes; /* nodes.c */

/* A module, and whether it has patches (patches.c). */
typedef struct pasta_nv_patched {
    struct pasta_nv_patched *next;
    uint64_t handle;
    bool loaded, patched; /* read without the lock of patching */
    bool mixed;           /* has no patches, but functions in it that were loaded later do */
    bool fixed;           /* is in executable graphs that were made when it had no patches: it gets none again */
    uint8_t asked;        /* by a node of `graph`, for its next launch: PASTA_NV_TAKE_OUT, PASTA_NV_PUT_IN */
    uint64_t graph;
    int32_t wanted;       /* kernels, or shapes of launches, still to be probed */
    uint32_t idle;        /* launches since the last probed one */
} pasta_nv_patched;

enum { PASTA_NV_TAKE_OUT = 1, PASTA_NV_PUT_IN = 2 };

/* A handle of a function that was launched. If the program names the function by it in its calls, also what is known of
 * the function from its last launch. */
typedef struct pasta_nv_called {
    uint64_t function; /* 0: free */
    pasta_nv_patched *module; /* NULL: not known */
    uint32_t name, selected;
} pasta_nv_called;

/* A context's side of the probes. */
typedef struct pasta_nv_prober {
    struct pasta_nv_prober *next;
    uint64_t context;
    pasta_nv_place at;
    pasta_nv_patched *modules[PASTA_NV_MODULES]; /* of the program, hashed */
    uint32_t switches; /* of patches of single modules, and the time that they took, ns; under the lock of patching */
    uint64_t switching;
    pasta_nv_called called[1 << PASTA_NV_FUNCTIONS_LOG2]; /* hashed */
    uint32_t graphs;     /* that were made with patches put in for them */
    bool asked;          /* some module is asked for something */
    uint32_t unprepared; /* launches that were not probed because their module had no patches */
    uint32_t under_way; /* probed launches between begin and end */
    bool broken, ended, short_of_memory, misses; /* the latter two were said */
    volatile uint8_t *markers;
    uint32_t markers_used;
    uint64_t memory; /* bytes in use on the device */
    uint64_t refused, refused_at; /* bytes that the device did not have, and when */
    uint64_t epochs;
    pasta_nv_missed missed[PASTA_NV_MISSED]; /* not written yet */
    uint32_t missed_count;
    uint64_t missed_at; /* when some were written */
    uint64_t trace; /* pasta_probe_trace on the device; 0: none */
    pasta_nv_tracer *tracer;
    uint64_t hashes[PASTA_PROBE_HASHES], planes[PASTA_PROBE_PLANES], bins;
    pasta_nv_version *version, *versions;
    pasta_nv_batch *batches, *spare, *current[PASTA_NV_WAYS];
    pasta_nv_nodes *nodes;
    bool crowded; /* a graph has more nodes than fit */
    /* of the thread that reads back */
    uint64_t own_stream; /* handle; 0: none yet */
    uint32_t stream_tries;
    void *staging;       /* page-locked */
    uint64_t totals_of, totals_at;
    pthread_mutex_t reading;
    uint64_t since, waited; /* when the context began; how long its program was kept waiting for markers */
} pasta_nv_prober;

/* ---- plan.c ---- */
bool pasta_nv_read_plan(const char *path);

/* ---- prober.c ---- */
extern pthread_mutex_t pasta_nv_probes_lock; /* of probers, batches and versions */
pasta_nv_prober *pasta_nv_probers(void);
pasta_nv_prober *pasta_nv_prober_of(uint64_t context); /* NULL: none */
void pasta_nv_prober_add(pasta_nv_prober *p);
bool pasta_nv_probed(pasta_nv_prober *p, int32_t result, const char *call);
#define PROBED(p, function, ...) pasta_nv_probed(p, pasta_nv.function(__VA_ARGS__), #function)
uint64_t pasta_nv_device_memory(pasta_nv_prober *p, uint64_t bytes); /* address; 0: the plan's memory or the device is full */
uint64_t pasta_nv_hash_bytes(const pasta_nv_hash *h);

/* How the thread that reads results is woken. */
typedef struct pasta_nv_reader_state {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool woken;
} pasta_nv_reader_state;
extern pasta_nv_reader_state pasta_nv_reader;
void pasta_nv_readback_wake(void);

/* ---- versions.c ---- */
/* The current table, with one more user; NULL: out of memory, and addresses belong to no object. */
pasta_nv_version *pasta_nv_version_use(pasta_nv_prober *p);
/* On the device when the stream gets there.  Other streams copy the same bytes again, in their own order. */
bool pasta_nv_version_copy(pasta_nv_prober *p, pasta_nv_version *v, uint64_t stream);
void pasta_nv_version_release(pasta_nv_version *v); /* NULL is none; the lock is held */
uint64_t pasta_nv_oldest_version(void); /* oldest state of allocations that a launch may use; absent: none */

/* ---- batches.c ---- */
uint64_t pasta_nv_words_bytes(void); /* of the words of a launch, with all stripes */
uint64_t pasta_nv_spill_bytes(const pasta_nv_batch *b); /* of a slot */
uint64_t pasta_nv_spill_of(const pasta_nv_batch *b, uint32_t slot); /* address */
/* A slot for a launch in a stream, in `batch`; -1: no memory. */
int pasta_nv_batch_slot(pasta_nv_prober *p, uint64_t stream, uint64_t ordinal, pasta_nv_version *v, pasta_nv_batch **batch);
/* Address of a slot's descriptor, for a launch that uses table `v`; 0: failed. */
uint64_t pasta_nv_batch_descriptor(pasta_nv_batch *b, uint32_t slot, const pasta_nv_version *v);
void pasta_nv_batch_ended(pasta_nv_batch *b, uint32_t launches); /* their calls returned */
/* Marks every batch that holds complete but unmarked launches; those of a stream that is destroyed, or of
 * all (PASTA_NO_STREAM), for the last time. */
void pasta_nv_batches_mark(pasta_nv_prober *p, bool last, uint64_t stream);
void pasta_nv_batches_close(pasta_nv_prober *p, uint64_t stream); /* the stream is destroyed */
void pasta_nv_batch_recycle(pasta_nv_batch *b); /* everything in it was read */

/* ---- nodes.c ---- */
/* What a node of a graph in progress is given: `descriptor` of its slot, or 0 if it is not probed. `mine`: the table of
 * this thread, until the end. 0: none, or no memory. */
uint64_t pasta_nv_nodes_data(pasta_nv_prober *p, pasta_nv_nodes **mine, const pasta_nv_launch *l, uint64_t descriptor);
void pasta_nv_nodes_end(pasta_nv_nodes **mine); /* all nodes of the graph are submitted */
void pasta_nv_nodes_close(pasta_nv_prober *p, uint64_t stream); /* it is destroyed */

/* ---- rest.c ---- */
void pasta_nv_rest_due(uint64_t ordinal); /* this launch is, or may be: ends the rest */
bool pasta_nv_rest_is_near(uint64_t ordinal); /* none has been for a while */
void pasta_nv_rest_begin(void);
bool pasta_nv_rest_hears(void); /* calls that launch kernels have callbacks, all of them */
void pasta_nv_rest_attend(void); /* by the thread that reads results */

/* ---- patches.c ---- */
bool pasta_nv_add_patches(pasta_nv_prober *p);
bool pasta_nv_patches_ready(pasta_nv_prober *p, const pasta_nv_launch *launch); /* which has announced itself */
typedef struct pasta_nv_launching {
    const pasta_nv_launch *launch;
    uint64_t ordinal;
    uint32_t name;
    bool graph, selected;
    pasta_probe_decision decision;
} pasta_nv_launching;
/* Notes a launch, and what its graph needs next. True: its kernel may have patches. */
bool pasta_nv_patches_follow(pasta_nv_prober *p, const pasta_nv_launching *l);
void pasta_nv_patches_set_up(void);
void pasta_nv_patches_finish(const pasta_nv_prober *p);

/* ---- results.c ---- */
/* Page-locked memory for results, or with `pinned` false memory to be freed. */
char *pasta_nv_staging(pasta_nv_prober *p, uint64_t bytes, bool *pinned);
void pasta_nv_missed_launch(pasta_nv_prober *p, pasta_nv_missed launch);
void pasta_nv_missed_results(pasta_nv_prober *p); /* those that were not read never will be */
void pasta_nv_write_missed(pasta_nv_prober *p, bool now); /* those so far, a few times a second or `now` */
/* True if some launch is marked and not complete yet.  `own_stream` 0: on the streams of the batches. */
bool pasta_nv_read_batches(pasta_nv_prober *p, uint64_t own_stream);
void pasta_nv_read_totals(pasta_nv_prober *p, uint64_t stream);

/* ---- readback.c ---- */
void pasta_nv_readback_start(void);
void pasta_nv_readback_context(pasta_nv_prober *p); /* its last results, on the calling thread */
void pasta_nv_readback_at_once(pasta_nv_prober *p); /* complete results, where they are small */
void pasta_nv_readback_finish(void);

/* ---- trace.c ---- */
uint64_t pasta_nv_trace_open(pasta_nv_prober *p); /* address on the device; 0: not traced */
void pasta_nv_trace_launch(pasta_nv_prober *p, uint64_t epoch, uint64_t ordinal); /* before the launch */
/* Takes the complete part of open chunks, once a second or `now`; calls the driver. */
void pasta_nv_trace_flush(pasta_nv_prober *p, uint64_t stream, bool now);
void pasta_nv_trace_close(pasta_nv_prober *p); /* the context is destroyed: its memory is not accessed any more */
void pasta_nv_trace_finish(void);

#endif
