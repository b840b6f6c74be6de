/* Memory accesses as warps make them, and the shared-memory ring that carries them to a collector.
 *
 * One record is one memory instruction of one warp.  Whoever sees accesses (the reference
 * accelerator, a Trace map inside a GPU kernel, a recorded run) writes these records, and the
 * CPU executor of probes reads them.
 */
#ifndef PASTA_TRACE_H
#define PASTA_TRACE_H

#ifndef PASTA_CFFI
#include <stdint.h>
#endif

/* What an instruction does, X(number, name, space, text).  Numbers are PASTA's own; the names are
 * those of `@probe.on("…")`. */
/* clang-format off */
#define PASTA_ACCESS_KINDS(X)                                                                \
    X( 1, global,         global, "load, store or atomic on global memory")                  \
    X( 2, shared,         shared, "load, store or atomic on shared memory")                  \
    X( 3, local,          local,  "load or store on local memory")                           \
    X( 4, remote_shared,  shared, "access to the shared memory of another block of the cluster") \
    X( 5, async_copy,     global, "cp.async: global to shared memory, per thread")           \
    X( 6, bulk_load,      global, "cp.async.bulk: global to shared memory")                  \
    X( 7, bulk_store,     global, "cp.async.bulk: shared to global memory")                  \
    X( 8, bulk_reduction, global, "cp.reduce.async.bulk: shared to global memory")           \
    X( 9, tensor_load,    global, "tensor memory access: global to shared memory")           \
    X(10, tensor_store,   global, "tensor memory access: shared to global memory")           \
    X(11, matrix,         shared, "ldmatrix, stmatrix")                                      \
    X(12, bulk_shared,    shared, "bulk copy or reduction from shared to shared memory")     \
    X(13, async_store,    shared, "st.async, red.async: to the shared memory of the cluster") \
    X(14, barrier,        none,   "block barrier")                                           \
    X(15, block_enter,    none,   "a warp begins")                                           \
    X(16, block_exit,     none,   "a warp ends")                                             \
    X(17, call,           none,   "call of a device function; address is its target")
/* clang-format on */

#define PASTA_ACCESS_ENUMERATOR(number, name, space, text) PASTA_ACCESS_##name = number,
enum { PASTA_ACCESS_KINDS(PASTA_ACCESS_ENUMERATOR) PASTA_ACCESS_count = 18 };
#undef PASTA_ACCESS_ENUMERATOR

/* pasta_access.flags */
enum {
    PASTA_ACCESS_READ = 1,
    PASTA_ACCESS_WRITE = 2,
    PASTA_ACCESS_ATOMIC = 4, /* with READ and WRITE; a reduction that returns nothing too */
    PASTA_ACCESS_PREFETCH = 8,
    PASTA_ACCESS_MAP_SHIFT = 4, /* from there: number, from 1, of the Trace map that took the record in
                                 * a kernel, where probes ran already; 0: they are to run over it */
};

/* pasta_access.form: where the addresses of the active lanes are */
enum {
    PASTA_FORM_STRIDE = 0, /* lane i: address + i * stride */
    PASTA_FORM_DELTAS = 1, /* after the record: one int32_t per active lane, from `address` */
    PASTA_FORM_FULL = 2,   /* after the record: one uint64_t per active lane */
    PASTA_FORM_ROWS = 3,   /* a transfer of one lane: `rows` rows of `bytes`, `stride` bytes apart
                            * (the first two, where a box has more than two dimensions) */
};

/* From this bit of `form` on: words of the value that follow for each active lane, after all addresses; 0: none,
 * 1: up to 8 bytes, 2: up to 16.  The value that is stored, or that a load or atomic finds, zero-extended. */
enum { PASTA_FORM_VALUES = 4 };

/* Followed by the data of `form`; padded to a multiple of 8 bytes. */
typedef struct pasta_access {
    uint32_t mask;    /* active lanes; one lane for bulk and tensor transfers; the lanes that provide rows of matrices */
    uint8_t kind;     /* PASTA_ACCESS_* */
    uint8_t flags;    /* PASTA_ACCESS_READ, … */
    uint8_t form;     /* PASTA_FORM_* | words of a value << PASTA_FORM_VALUES */
    uint8_t sm;       /* multiprocessor, low 8 bits */
    uint32_t bytes;   /* per lane (per row); 0 where nothing is accessed */
    uint16_t rows;    /* FORM_ROWS; else 1 */
    uint16_t warp;    /* in its block */
    int64_t stride;   /* bytes */
    uint64_t address; /* of lane 0 as `stride` has it, or of the first active one; shared and local
                       * memory: offset in the window (in a cluster's: rank of the block << 24 | offset);
                       * barrier, block_enter, block_exit: time of the device clock, ns; 0: none */
    uint64_t pc;
    uint64_t launch;  /* ordinal, as in kernel_launch */
    uint64_t block;   /* linear index in the grid */
} pasta_access;

#ifndef PASTA_CFFI
/* Bytes of a record with `lanes` active lanes. */
static inline uint32_t pasta_access_bytes(uint8_t form, int lanes) {
    uint8_t shape = form & ((1 << PASTA_FORM_VALUES) - 1);
    uint32_t each = shape == PASTA_FORM_DELTAS ? sizeof(int32_t) : shape == PASTA_FORM_FULL ? sizeof(uint64_t) : 0;
    uint32_t values = (uint32_t)(form >> PASTA_FORM_VALUES) * sizeof(uint64_t);
    return sizeof(pasta_access) + ((uint32_t)lanes * each + 7) / 8 * 8 + (uint32_t)lanes * values;
}
#endif

/* ---- the ring: PID-SEQUENCE.trace beside the event ring -----------------------------------
 *
 * Chunk n (from 0, unbounded) is in the place n % chunks and may be filled once `lap` of the place
 * is n / chunks.  A producer takes a number from `next` and is the only one to write that chunk:
 * it adds the bytes of a record to `state` (comparing: that fails in a sealed chunk and in one of a
 * later lap), writes the record, then stores `committed`.  Whoever sets PASTA_CHUNK_SEALED closes
 * the chunk at the bytes that `state` has; the producer then takes another one.  The consumer takes
 * chunks in order, sealing one that is not full when it would wait, and then frees the place for
 * the next lap.  A launch's records are committed before its kernel_complete event.
 */
#define PASTA_CHUNK_SEALED (UINT64_C(1) << 32)
#define PASTA_CHUNK_LAP 33 /* the low 31 bits of the lap begin here in `state` */
#ifndef PASTA_CFFI
#define PASTA_TRACE_MAGIC UINT64_C(0x4543415254534150) /* "PASTRACE" */
#endif

typedef struct pasta_chunk {
    uint64_t lap;       /* written by the consumer */
    uint64_t state;     /* bytes handed out | PASTA_CHUNK_SEALED | lap << PASTA_CHUNK_LAP */
    uint64_t committed; /* bytes of complete records; written by the producer */
    uint64_t unused[5];
} pasta_chunk;

/* Up to 64 launches of which accesses were lost. */
typedef struct pasta_lost {
    uint64_t block;    /* ordinal / 64 + 1; 0: none yet */
    uint64_t launches; /* a bit for each */
} pasta_lost;

enum { PASTA_TRACE_LOST = 224 };

typedef struct pasta_trace {
    uint64_t magic;
    uint32_t schema;      /* 1 */
    uint32_t pid;
    uint32_t chunk_bytes; /* of records in a chunk */
    uint32_t chunks;
    uint64_t chunks_offset; /* pasta_chunk[chunks] */
    uint64_t data_offset;   /* chunk_bytes each */
    uint64_t unused[3];
    uint64_t next;        /* number of the next chunk to fill; written by producers */
    uint64_t dropped;     /* accesses lost without a consumer */
    uint64_t waited;      /* ns that producers waited for room */
    uint64_t lost_first;  /* of the launches with lost accesses for which `lost` has no place: the */
    uint64_t lost_end;    /* complement of the least ordinal; the greatest one + 1.  0: there are none */
    uint64_t unused2[3];
    uint64_t consumed;    /* chunks the consumer is done with */
    uint64_t heartbeat;   /* CLOCK_MONOTONIC of the consumer's last look, ns */
    uint64_t unused3[6];
    pasta_lost lost[PASTA_TRACE_LOST]; /* by a launch's block % PASTA_TRACE_LOST and the places after it */
} pasta_trace;

#endif
