/* Inputs of patches on the device, and their results.
 *
 * The NVIDIA source fills the first group of structs for the code that pasta/probes compiles; the
 * second group is the file PID-SEQUENCE.probes beside the event ring, which the collector reads.
 * Everything is little-endian; device structs are read with aligned loads of 4 and 8 bytes.
 */
#ifndef PASTA_PROBES_H
#define PASTA_PROBES_H

#ifndef PASTA_CFFI
#include <stdint.h>
#endif

enum {
    PASTA_PROBE_HASHES = 4,
    PASTA_PROBE_PLANES = 4,
    PASTA_PROBE_CLUSTERS = 4,
    PASTA_PROBE_SLOTS = 64, /* launches that are described one behind another, at a multiple of their size */
    PASTA_PROBE_BATCHES = 16, /* … of such launches, which must fit into the memory for probes */
    PASTA_PROBE_MIN_STRIPES = 8, /* copies of a launch's words, and of its objects', that are planned for at least */
    PASTA_PROBE_TRIES = 16, /* rows of a hash table of objects that are looked at */
    PASTA_PROBE_NODES = 1 << 16, /* rows of a table of nodes of graphs, by the lowest bits of the grid's number */
    PASTA_PROBE_IS_NODE = 1, /* in a callback's user data: see pasta_probe_launch */
    PASTA_PROBE_BASE_SHIFT = 17,
    PASTA_PROBE_PC_BITS = 49, /* of addresses of instructions, which are multiples of 16 */
    PASTA_PROBE_BUCKETS = 1 << 24, /* of a cluster, at most */
};

/* In a stripe mask: an object's row is its index in the table from 1, row 0 is unknown; no keys. */
#define PASTA_PROBE_DIRECT 0x80000000
#define PASTA_PROBE_NOWHERE 0xffffffff /* a base that no cluster has */

/* A callback's user data: one per launch.  What a patch reads of every access is first, in pieces of
 * 16 bytes: every lane reads the first, one of the warp the second.
 *
 * Words of the launch are at an address that its own gives without a load, which takes longer than all else where
 * few warps run: PASTA_PROBE_SLOTS launches are described at a multiple of their size, and behind them are the words
 * of each, a copy for each stripe (pasta/backends/nvidia/areas.py).
 *
 * Kernels in graphs have instead the address of uint64_t[PASTA_PROBE_NODES], plus PASTA_PROBE_IS_NODE: addresses of
 * launches; 0: not probed. */
typedef struct pasta_probe_launch {
    uint32_t base;        /* of pasta_object_cluster 0, in units of 1 << PASTA_PROBE_BASE_SHIFT, or … */
    uint32_t shape;       /* … PASTA_PROBE_NOWHERE; its last bucket << 8 | its shift */
    uint64_t ranges;      /* pasta_object_range[count]; buckets of that cluster lie before them */
    uint64_t rows;        /* uint64_t words of objects of this launch, `stripe_bytes` apart for each stripe */
    uint32_t stripe_bytes;
    uint32_t stripe_mask; /* stripe of an addition: any number & stripe_mask; and PASTA_PROBE_DIRECT */
    uint64_t table;       /* pasta_object_table */
    uint64_t keys;        /* uint32_t[hash_mask + 2]: object number + 1 of each row; 0: free; then 1: … */
    uint32_t hash_mask;
    uint32_t spill_rows;  /* … objects without a row, by their index, are in `spill`; … */
    uint64_t epoch;       /* of this launch, never given twice in a context */
    uint64_t bins;        /* uint64_t words of object bins */
    uint64_t plain;       /* uint64_t words of this launch that have no stripes */
    uint64_t trace;       /* pasta_probe_trace; 0: none */
    uint64_t bin_stripe;  /* bytes of the bins of one stripe */
    uint64_t spill;       /* … uint64_t[spill_rows][words of a row]; others go to the row behind all */
    uint64_t pairs;       /* by object and instruction: uint64_t keys[rows], free: 0; then for each stripe
                           * uint64_t[rows + 1][words].  A key is 1 + (pc / 16 | index of the object << 45) */
    uint64_t hash[4];     /* PASTA_PROBE_HASHES tables of keys that are not objects */
    uint64_t planes[4];   /* PASTA_PROBE_PLANES: words of epoch << 32 | bits of touched granules */
    uint64_t unused[10];
} pasta_probe_launch;

/* Live objects by address: ranges sorted by start, none overlapping. */
typedef struct pasta_object_range {
    uint64_t start, size;
    uint32_t number;     /* of the object, from 1 */
    uint8_t bin_shift;   /* log2 of the bytes of a bin */
    uint8_t plane_shift; /* log2 of the bytes of a granule */
    uint16_t unused;
    uint32_t bins;       /* first bin; all ones: none */
    uint32_t plane;      /* first word in every plane; all ones: none */
} pasta_object_range;

/* A bucket has the first range that ends behind its begin, by its number from 1, and how many more begin in it
 * (PASTA_PROBE_MANY: that many or more); or WHOLE and the range that holds all of it; or PARTS and how far behind it the
 * first of its equal parts is, which are buckets too. */
#define PASTA_PROBE_WHOLE 0x80000000
enum {
    PASTA_PROBE_PARTS = 1 << 30,
    PASTA_PROBE_MORE_SHIFT = 24,
    PASTA_PROBE_MANY = 63,
    PASTA_PROBE_PARTS_SHIFT = 8, /* log2 of the parts of a bucket */
};

/* Addresses from `base` on are cut in buckets of 1 << shift bytes, the last of which is last_bucket. */
typedef struct pasta_object_cluster {
    uint64_t base; /* a multiple of 1 << PASTA_PROBE_BASE_SHIFT and of 1 << shift */
    uint32_t shift, last_bucket;
    uint64_t buckets; /* end of uint32_t[…]: bucket n is the (n + 1)th before it, and parts follow the last one */
    uint64_t unused;
} pasta_object_cluster;

typedef struct pasta_object_table {
    uint64_t ranges;  /* pasta_object_range[count]; the buckets of cluster 0 end there */
    uint32_t count;
    uint32_t clusters;
    pasta_object_cluster cluster[4]; /* PASTA_PROBE_CLUSTERS */
} pasta_object_table;

/* Access records in transfer from a kernel to the host (see shim/backends/nvidia/trace.c).  Chunk n of a
 * stripe, from 1, is in the stripe's place n % PASTA_TRACE_WAYS. */
enum {
    PASTA_TRACE_STRIPES = 128,
    PASTA_TRACE_WAYS = 8,
    PASTA_TRACE_PLACES = 1024, /* of all stripes */
    PASTA_TRACE_SLOT = 32,     /* records take a multiple of this many bytes */
    PASTA_TRACE_HEAD = 64,     /* of a slot: pasta_access; its addresses begin here */
};
#define PASTA_TRACE_OVER 0x80000000 /* in a cursor: chunks are not consumed, records are dropped */

/* In page-locked memory, before the places. */
typedef struct pasta_probe_places {
    uint32_t beat; /* changes while the host takes chunks */
    uint32_t unused[15];
    uint32_t open[1024];  /* of a place: number of the chunk that may fill it; written by the host */
    uint32_t ready[1024]; /* of a place: bytes of its chunk, which is complete; 0: not yet */
} pasta_probe_places;

/* In the device's memory. */
typedef struct pasta_probe_trace {
    uint64_t data;    /* first place */
    uint64_t control; /* pasta_probe_places */
    uint32_t chunk_bytes, chunk_shift;
    uint64_t patience; /* ns without a beat before records are dropped */
    uint64_t dropped;  /* records */
    uint64_t unused[3];
    uint64_t done[1024];     /* of a place: bytes written | bytes given out << 32, once no more are given out */
    uint64_t cursor[128][4]; /* of a stripe: bytes given out of its chunk | number of the chunk << 32 */
} pasta_probe_trace;

/* ---- results: entries of PID-SEQUENCE.probes, each named by a probe_data event ---------------- */
enum {
    PASTA_PROBED_launch = 1, /* after it: uint64_t[words], then objects × {uint64_t number, uint64_t[object_words]} */
    PASTA_PROBED_hash = 2,   /* after it: rows × {uint64_t key, uint64_t[words]}: totals of all launches so far */
    PASTA_PROBED_bins = 3,   /* after it: rows × {uint64_t number, first, count, shift, values[count × words]} */
    PASTA_PROBED_pieces = 4, /* after it: rows × {uint64_t number, address, bytes, allocation}: parts of allocations (their
                              * numbers), for tensors */
    PASTA_PROBED_pairs = 5,  /* after it: rows × {uint64_t number of the object, pc, uint64_t[words]}, of a launch */
    PASTA_PROBED_missed = 6, /* after it: rows × {uint64_t ordinal, PASTA_MISSED_*}: flagged as probed, but without counts */
};
enum {
    PASTA_MISSED_memory = 0,  /* there was none on the device */
    PASTA_MISSED_error = 1,   /* a call failed */
    PASTA_MISSED_running = 2, /* the kernel still ran when the program ended */
};
enum { PASTA_PROBED_OTHER = 0xffffffff /* object number: the launch touched more objects than rows */ };

typedef struct pasta_probed {
    uint32_t kind;       /* PASTA_PROBED_* */
    uint32_t words;      /* of a row, or fixed ones of a launch */
    uint32_t rows;       /* objects of a launch, pairs, or missed launches */
    uint32_t row_words;  /* of an object */
    uint64_t ordinal;    /* of the launch */
    uint64_t generation; /* of a hash or bins: a new one begins empty */
    uint32_t index;      /* of the hash */
    int16_t device;
    uint16_t context;
} pasta_probed;

#endif
