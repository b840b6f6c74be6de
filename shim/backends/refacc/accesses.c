/* Accesses of the reference accelerator, in the shortest form of a record of the access trace. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "source.h"

/* clang-format off */
#define KINDS(X)                                                                                   \
    X(GLOBAL, global) X(SHARED, shared) X(LOCAL, local) X(REMOTE_SHARED, remote_shared)            \
    X(ASYNC_COPY, async_copy) X(BULK_LOAD, bulk_load) X(BULK_STORE, bulk_store)                    \
    X(BULK_REDUCTION, bulk_reduction) X(TENSOR_LOAD, tensor_load) X(TENSOR_STORE, tensor_store)    \
    X(MATRIX, matrix) X(BULK_SHARED, bulk_shared) X(ASYNC_STORE, async_store) X(BARRIER, barrier)  \
    X(BLOCK_ENTER, block_enter) X(BLOCK_EXIT, block_exit) X(CALL, call)
/* clang-format on */
#define KIND(theirs, ours) [RA_KIND_##theirs] = PASTA_ACCESS_##ours,
static const uint8_t kind_of[RA_KIND_COUNT] = {KINDS(KIND)};

_Static_assert((int)RA_ACCESS_READ == PASTA_ACCESS_READ && (int)RA_ACCESS_WRITE == PASTA_ACCESS_WRITE &&
                   (int)RA_ACCESS_ATOMIC == PASTA_ACCESS_ATOMIC &&
                   (int)RA_ACCESS_PREFETCH == PASTA_ACCESS_PREFETCH,
               "flags are copied as they are");

static bool is_transfer(uint32_t kind) {
    switch (kind) {
    case RA_KIND_BULK_LOAD:
    case RA_KIND_BULK_STORE:
    case RA_KIND_BULK_REDUCTION:
    case RA_KIND_TENSOR_LOAD:
    case RA_KIND_TENSOR_STORE:
    case RA_KIND_BULK_SHARED: return true;
    default: return false;
    }
}

/* Whether the record has the time instead of an address.  Older accelerators do not report it. */
static bool has_time(const ra_access *a) {
    return a->size >= offsetof(ra_access, time) + sizeof a->time &&
           (a->kind == RA_KIND_BARRIER || a->kind == RA_KIND_BLOCK_ENTER || a->kind == RA_KIND_BLOCK_EXIT);
}

/* Whether the active lanes' addresses are base + lane * stride. */
static bool fits_stride(const ra_access *a, uint64_t *base, int64_t *stride) {
    uint32_t others = a->mask & (a->mask - 1), first = (uint32_t)__builtin_ctz(a->mask);
    *stride = 0;
    if (others) {
        uint32_t lanes = (uint32_t)__builtin_ctz(others) - first;
        *stride = (int64_t)(a->address[first + lanes] - a->address[first]);
        if (lanes > 1 && *stride % (int64_t)lanes) return false;
        if (lanes > 1) *stride /= (int64_t)lanes;
    }
    uint64_t expected = *base = a->address[first] - first * (uint64_t)*stride, wrong = 0;
    if (a->mask == UINT32_MAX) {
        for (int lane = 0; lane < 32; lane++, expected += (uint64_t)*stride) wrong |= a->address[lane] ^ expected;
    } else {
        for (; others; others &= others - 1) {
            uint32_t lane = (uint32_t)__builtin_ctz(others);
            wrong |= a->address[lane] ^ (*base + lane * (uint64_t)*stride);
        }
    }
    return !wrong;
}

/* The active lanes' distances from the first; false where one does not fit. */
static bool fits_deltas(const ra_access *a, int32_t *deltas) {
    uint64_t origin = a->address[__builtin_ctz(a->mask)];
    bool fits = true;
    for (uint32_t lanes = a->mask; lanes; lanes &= lanes - 1) {
        int64_t delta = (int64_t)(a->address[__builtin_ctz(lanes)] - origin);
        *deltas = (int32_t)delta;
        fits = fits && *deltas++ == delta;
    }
    return fits;
}

bool pasta_refacc_values;

/* Words of a lane's value in the record; 0: none. */
static uint32_t value_words(const ra_access *a) {
    bool wanted = pasta_refacc_values && a->value && (a->kind == RA_KIND_GLOBAL || a->kind == RA_KIND_ASYNC_COPY);
    return wanted && a->bytes && a->bytes <= 16 ? (a->bytes + 7) / 8 : 0;
}

static void put_values(const ra_access *a, uint32_t words, uint64_t *values) {
    memset(values, 0, (size_t)words * sizeof *values * (size_t)__builtin_popcount(a->mask));
    for (uint32_t lanes = a->mask; lanes; lanes &= lanes - 1, values += words)
        memcpy(values, (const char *)a->value + (size_t)__builtin_ctz(lanes) * a->bytes, a->bytes);
}

static void put_full(const ra_access *a, uint64_t *addresses) {
    for (uint32_t lanes = a->mask; lanes; lanes &= lanes - 1) *addresses++ = a->address[__builtin_ctz(lanes)];
}

/* Sampled launches in progress; a launch whose slot is taken is not counted. */
enum { PLACES = 1024 };
static struct {
    uint64_t launch; /* plus one; 0: free; all ones: being taken */
    uint64_t accesses; /* and their sectors */
    uint32_t shape;
} sampled[PLACES];

void pasta_refacc_count(uint64_t launch, uint32_t shape) {
    uint64_t none = 0, *place = &sampled[launch % PLACES].launch;
    if (shape == PASTA_ABSENT_U32 ||
        !__atomic_compare_exchange_n(place, &none, PASTA_ABSENT_U64, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return;
    sampled[launch % PLACES].shape = shape;
    __atomic_store_n(&sampled[launch % PLACES].accesses, 0, __ATOMIC_RELAXED);
    __atomic_store_n(place, launch + 1, __ATOMIC_RELEASE);
}

void pasta_refacc_counted(uint64_t launch) {
    uint64_t *place = &sampled[launch % PLACES].launch;
    if (__atomic_load_n(place, __ATOMIC_ACQUIRE) != launch + 1) return;
    pasta_probe_counted(sampled[launch % PLACES].shape, __atomic_load_n(&sampled[launch % PLACES].accesses, __ATOMIC_RELAXED));
    __atomic_store_n(place, 0, __ATOMIC_RELEASE);
}

/* How often the sector changes from one lane to the next: launches whose accesses are coalesced otherwise are not alike. */
static uint64_t sector_changes(const ra_access *a) {
    uint64_t changes = 0, sector = 0;
    for (uint32_t lanes = a->mask; lanes; lanes &= lanes - 1) {
        uint64_t next = a->address[__builtin_ctz(lanes)] / 32 + 1;
        changes += next != sector;
        sector = next;
    }
    return changes;
}

static void count(uint64_t launch, const ra_access *a) {
    if (__atomic_load_n(&sampled[launch % PLACES].launch, __ATOMIC_RELAXED) != launch + 1) return;
    uint64_t amount = (uint64_t)__builtin_popcount(a->mask) + sector_changes(a);
    __atomic_fetch_add(&sampled[launch % PLACES].accesses, amount, __ATOMIC_RELAXED);
}

void pasta_refacc_on_access(void *userdata, const ra_access *a) {
    static _Thread_local pasta_trace_writer writer;
    int32_t deltas[32];
    uint64_t base = a->address[__builtin_ctz(a->mask)];
    int64_t stride = a->stride;
    uint8_t form = PASTA_FORM_STRIDE;
    int lanes = __builtin_popcount(a->mask);
    count((uintptr_t)userdata, a);
    if (is_transfer(a->kind)) {
        form = PASTA_FORM_ROWS;
    } else if (!fits_stride(a, &base, &stride)) {
        form = fits_deltas(a, deltas) ? PASTA_FORM_DELTAS : PASTA_FORM_FULL;
        base = a->address[__builtin_ctz(a->mask)];
        stride = 0;
    }
    if (has_time(a)) base = a->time;
    uint32_t words = value_words(a);
    uint8_t whole = (uint8_t)(form | words << PASTA_FORM_VALUES);
    pasta_access *e = pasta_trace_begin(&writer, pasta_access_bytes(whole, lanes));
    if (!e) {
        pasta_trace_lost((uintptr_t)userdata);
        return;
    }
    *e = (pasta_access){.mask = a->mask,
                        .kind = kind_of[a->kind],
                        .flags = (uint8_t)a->flags,
                        .form = whole,
                        .sm = (uint8_t)a->multiprocessor,
                        .bytes = a->bytes,
                        .rows = (uint16_t)a->rows,
                        .warp = (uint16_t)a->warp,
                        .stride = stride,
                        .address = base,
                        .pc = a->pc,
                        .launch = (uintptr_t)userdata,
                        .block = a->block_index};
    if (words) put_values(a, words, (uint64_t *)((char *)e + pasta_access_bytes(form, lanes)));
    if (form == PASTA_FORM_DELTAS) {
        if (lanes % 2) deltas[lanes++] = 0; /* fills the record */
        memcpy(e + 1, deltas, (size_t)lanes * sizeof *deltas);
    }
    if (form == PASTA_FORM_FULL) put_full(a, (uint64_t *)(e + 1));
    pasta_trace_commit(&writer);
}

/* The key probe_kinds: numbers of PASTA_ACCESS_*, as bits of refacc's. */
static uint32_t configured_kinds(void) {
    const char *list = pasta_config("probe_kinds");
    uint32_t wanted = list ? 0 : UINT32_MAX, kinds = 0;
    for (char *end; list && *list; list = *end ? end + 1 : end) {
        unsigned long kind = strtoul(list, &end, 10);
        if (end == list) break;
        if (kind < PASTA_ACCESS_count) wanted |= 1u << kind;
    }
    for (int kind = 1; kind < RA_KIND_COUNT; kind++)
        if (wanted >> kind_of[kind] & 1) kinds |= 1u << kind;
    return kinds;
}

uint32_t pasta_refacc_kinds(void) {
    const char *probes = pasta_config("probes");
    return probes && *probes && pasta_trace_open() ? configured_kinds() : 0;
}
