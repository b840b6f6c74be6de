/* Instructions beside plain loads and stores: copies, boxes of tensors, matrices, the shared memory
 * of a cluster, calls, ends of lanes.  Each is reported before it is checked, as the others are. */
#define _GNU_SOURCE
#include "internal.h"

#define TRANSFER_ALIGNMENT 16

static bool global_valid(const ra_warp *w, uint64_t address, uint64_t bytes) {
    uint64_t offset = address - w->window;
    return offset < w->window_bytes && bytes <= w->region_bytes &&
           (offset & (RA_REGION_BYTES - 1)) <= w->region_bytes - bytes;
}

static bool shared_valid(const ra_warp *w, uint64_t offset, uint64_t bytes) {
    return bytes <= w->shared_bytes && offset <= w->shared_bytes - bytes;
}

static void *global(uint64_t address) { return (void *)(uintptr_t)address; }

/* Notes an access of one lane, if there is managed memory. */
static void touch(const ra_warp *w, uint64_t address, uint32_t bytes, uint32_t flags) {
    uint64_t addresses[RA_LANES] = {address};
    if (w->touched && bytes) ra_warp_touch(w, 1, addresses, bytes, flags);
}

/* ---- control ---- */

void ra_exit(ra_warp *w, uint32_t at, uint32_t mask) {
    mask &= w->live;
    if (!mask) return;
    if (w->hook) ra_warp_report(w, at, RA_KIND_BLOCK_EXIT, 0, 0, mask, NULL, NULL);
    w->live &= ~mask;
}

void ra_call(ra_warp *w, uint32_t at, uint32_t mask, uint32_t target) {
    mask &= w->live;
    if (!mask || !w->hook) return;
    uint64_t address[RA_LANES];
    RA_EACH_LANE(lane) address[lane] = w->launch->entry_pc + (uint64_t)target * RA_INSTRUCTION_BYTES;
    ra_warp_report(w, at, RA_KIND_CALL, 0, 0, mask, address, NULL);
}

void ra_prefetch_global(ra_warp *w, uint32_t at, uint32_t mask, const uint64_t address[RA_LANES], uint32_t bytes) {
    mask &= w->live;
    if (!mask || !w->hook) return;
    ra_warp_report(w, at, RA_KIND_GLOBAL, RA_ACCESS_READ | RA_ACCESS_PREFETCH, bytes, mask, address, NULL);
}

/* ---- copies by lanes ---- */

void ra_async_copy(ra_warp *w, uint32_t at, uint32_t mask, const uint64_t to[RA_LANES],
                   const uint64_t from[RA_LANES], uint32_t bytes) {
    mask &= w->live;
    if (!mask) return;
    if (w->hook) ra_warp_report(w, at, RA_KIND_ASYNC_COPY, RA_ACCESS_READ, bytes, mask, from, NULL);
    if (bytes != 4 && bytes != 8 && bytes != 16) {
        ra_warp_stop(w, RA_MISALIGNED_ADDRESS);
    } else if (!ra_global_valid(w, mask, from, bytes)) {
        ra_warp_fault(w, mask, from, bytes);
    } else if (!ra_window_valid(w->shared_bytes, mask, to, bytes)) {
        ra_warp_fault(w, mask, to, bytes);
    } else {
        if (w->touched) ra_warp_touch(w, mask, from, bytes, RA_ACCESS_READ);
        RA_EACH_LANE(lane) if (RA_ACTIVE(mask, lane)) memcpy(w->shared + to[lane], global(from[lane]), bytes);
    }
}

/* ---- copies by one lane ---- */

/* The lane that transfers, as a mask. */
static uint32_t leader(const ra_warp *w, uint32_t mask) {
    mask &= w->live;
    return mask & -mask;
}

static void report_transfer(const ra_warp *w, uint32_t at, ra_kind kind, uint32_t flags, uint32_t one,
                            uint64_t address, uint32_t bytes, uint32_t rows, uint64_t stride) {
    if (!w->hook) return;
    ra_access what = {.kind = kind,
                      .flags = (uint16_t)flags,
                      .bytes = bytes,
                      .mask = one,
                      .rows = rows,
                      .stride = (int64_t)stride};
    what.address[__builtin_ctz(one)] = address;
    ra_warp_transfer(w, at, &what);
}

/* False after a fault. */
static bool bulk_valid(ra_warp *w, bool here, bool there, uint64_t address, uint64_t offset, uint32_t bytes) {
    if ((address | offset | bytes) % TRANSFER_ALIGNMENT) ra_warp_stop(w, RA_MISALIGNED_ADDRESS);
    else if (!here || !there) ra_warp_stop(w, RA_ILLEGAL_ADDRESS);
    return w->live != 0;
}

static bool bulk_begin(ra_warp *w, uint32_t at, uint32_t mask, ra_kind kind, uint32_t flags, uint64_t address,
                       uint64_t shared, uint32_t bytes) {
    uint32_t one = leader(w, mask);
    if (!one) return false;
    report_transfer(w, at, kind, flags, one, address, bytes, 1, 0);
    if (!bulk_valid(w, global_valid(w, address, bytes), shared_valid(w, shared, bytes), address, shared, bytes))
        return false;
    touch(w, address, bytes, flags);
    return true;
}

void ra_bulk_load(ra_warp *w, uint32_t at, uint32_t mask, uint64_t to, uint64_t from, uint32_t bytes) {
    if (bulk_begin(w, at, mask, RA_KIND_BULK_LOAD, RA_ACCESS_READ, from, to, bytes))
        memcpy(w->shared + to, global(from), bytes);
}

void ra_bulk_store(ra_warp *w, uint32_t at, uint32_t mask, uint64_t to, uint64_t from, uint32_t bytes) {
    if (bulk_begin(w, at, mask, RA_KIND_BULK_STORE, RA_ACCESS_WRITE, to, from, bytes))
        memcpy(global(to), w->shared + from, bytes);
}

void ra_bulk_add_u32(ra_warp *w, uint32_t at, uint32_t mask, uint64_t to, uint64_t from, uint32_t bytes) {
    static const uint32_t flags = RA_ACCESS_READ | RA_ACCESS_WRITE | RA_ACCESS_ATOMIC;
    if (!bulk_begin(w, at, mask, RA_KIND_BULK_REDUCTION, flags, to, from, bytes)) return;
    uint32_t *sum = global(to);
    const uint32_t *addend = (const uint32_t *)(const void *)(w->shared + from);
    for (uint32_t i = 0; i < bytes / sizeof *sum; i++) __atomic_fetch_add(&sum[i], addend[i], __ATOMIC_RELAXED);
}

/* ---- the shared memory of the cluster ---- */

/* Local address of an ra_cluster_address; NULL where no block of the cluster has it. */
static unsigned char *cluster_place(const ra_warp *w, uint64_t address, uint32_t bytes) {
    uint64_t rank = address >> RA_CLUSTER_SHIFT, offset = address & ((UINT64_C(1) << RA_CLUSTER_SHIFT) - 1);
    if (rank >= w->cluster_blocks || !shared_valid(w, offset, bytes)) return NULL;
    return w->cluster + rank * w->cluster_step + offset;
}

void ra_bulk_shared(ra_warp *w, uint32_t at, uint32_t mask, uint64_t to, uint64_t from, uint32_t bytes) {
    uint32_t one = leader(w, mask);
    if (!one) return;
    report_transfer(w, at, RA_KIND_BULK_SHARED, RA_ACCESS_WRITE, one, to, bytes, 1, 0);
    unsigned char *place = cluster_place(w, to, bytes);
    if (bulk_valid(w, place != NULL, shared_valid(w, from, bytes), to, from, bytes))
        memmove(place, w->shared + from, bytes);
}

/* The lanes that may continue. */
static uint32_t remote_begin(ra_warp *w, uint32_t at, uint32_t mask, ra_kind kind, uint32_t flags,
                             const uint64_t address[RA_LANES], const uint32_t *value) {
    mask &= w->live;
    if (!mask) return 0;
    if (w->hook) ra_warp_report(w, at, kind, flags, sizeof *value, mask, address, value);
    bool valid = true;
    RA_EACH_LANE(lane) if (RA_ACTIVE(mask, lane)) valid =
        valid && address[lane] % sizeof *value == 0 && cluster_place(w, address[lane], sizeof *value);
    if (!valid) ra_warp_fault(w, mask, address, sizeof *value);
    return valid ? mask : 0;
}

void ra_remote_load_u32(ra_warp *w, uint32_t at, uint32_t mask, const uint64_t address[RA_LANES],
                        uint32_t value[RA_LANES]) {
    mask = remote_begin(w, at, mask, RA_KIND_REMOTE_SHARED, RA_ACCESS_READ, address, NULL);
    RA_EACH_LANE(lane) if (RA_ACTIVE(mask, lane))
        memcpy(&value[lane], cluster_place(w, address[lane], sizeof *value), sizeof *value);
}

static void remote_store(ra_warp *w, uint32_t at, uint32_t mask, ra_kind kind, const uint64_t address[RA_LANES],
                         const uint32_t value[RA_LANES]) {
    mask = remote_begin(w, at, mask, kind, RA_ACCESS_WRITE, address, value);
    RA_EACH_LANE(lane) if (RA_ACTIVE(mask, lane))
        memcpy(cluster_place(w, address[lane], sizeof *value), &value[lane], sizeof *value);
}

void ra_remote_store_u32(ra_warp *w, uint32_t at, uint32_t mask, const uint64_t address[RA_LANES],
                         const uint32_t value[RA_LANES]) {
    remote_store(w, at, mask, RA_KIND_REMOTE_SHARED, address, value);
}

void ra_async_store_u32(ra_warp *w, uint32_t at, uint32_t mask, const uint64_t address[RA_LANES],
                        const uint32_t value[RA_LANES]) {
    remote_store(w, at, mask, RA_KIND_ASYNC_STORE, address, value);
}

/* ---- matrices ---- */

enum { MATRIX_ROWS = 8, MATRIX_ROW = 16 };

/* Lanes whose rows are accessed: none after a fault. */
static uint32_t matrix_begin(ra_warp *w, uint32_t at, uint32_t flags, uint32_t matrices,
                             const uint64_t address[RA_LANES]) {
    uint32_t mask = w->live & (uint32_t)((UINT64_C(1) << matrices * MATRIX_ROWS) - 1);
    if (!mask) return 0;
    if (w->hook) ra_warp_report(w, at, RA_KIND_MATRIX, flags, MATRIX_ROW, mask, address, NULL);
    if (ra_window_valid(w->shared_bytes, mask, address, MATRIX_ROW)) return mask;
    ra_warp_fault(w, mask, address, MATRIX_ROW);
    return 0;
}

/* The 4 bytes of a matrix that a lane has; NULL where the lane that gives their row is not active. */
static unsigned char *matrix_word(const ra_warp *w, uint32_t mask, const uint64_t address[RA_LANES],
                                  uint32_t matrix, uint32_t lane) {
    uint32_t row = matrix * MATRIX_ROWS + lane / 4;
    return RA_ACTIVE(mask, row) && RA_ACTIVE(w->live, lane) ? w->shared + address[row] + lane % 4 * 4 : NULL;
}

void ra_matrix_load(ra_warp *w, uint32_t at, uint32_t matrices, const uint64_t address[RA_LANES],
                    uint32_t value[][RA_LANES]) {
    uint32_t mask = matrix_begin(w, at, RA_ACCESS_READ, matrices, address);
    for (uint32_t m = 0; m < matrices; m++)
        RA_EACH_LANE(lane) {
            const unsigned char *word = matrix_word(w, mask, address, m, (uint32_t)lane);
            if (word) memcpy(&value[m][lane], word, sizeof value[m][lane]);
        }
}

void ra_matrix_store(ra_warp *w, uint32_t at, uint32_t matrices, const uint64_t address[RA_LANES],
                     const uint32_t value[][RA_LANES]) {
    uint32_t mask = matrix_begin(w, at, RA_ACCESS_WRITE, matrices, address);
    for (uint32_t m = 0; m < matrices; m++)
        RA_EACH_LANE(lane) {
            unsigned char *word = matrix_word(w, mask, address, m, (uint32_t)lane);
            if (word) memcpy(word, &value[m][lane], sizeof value[m][lane]);
        }
}

/* ---- boxes of tensors ---- */

static bool tensor_sound(const ra_tensor *t) {
    if (t->rank < 1 || t->rank > RA_TENSOR_RANK || t->base % TRANSFER_ALIGNMENT) return false;
    if (t->element != 1 && t->element != 2 && t->element != 4 && t->element != 8) return false;
    if (t->stride[0] != t->element || t->box[0] * t->element % TRANSFER_ALIGNMENT) return false;
    for (uint32_t d = 0; d < t->rank; d++) {
        if (!t->size[d] || t->size[d] > UINT64_C(1) << 32 || !t->box[d] || t->box[d] > 256) return false;
        if (d && (t->stride[d] % TRANSFER_ALIGNMENT || t->stride[d] >= UINT64_C(1) << 40)) return false;
    }
    return true;
}

int ra_tensor_make(ra_tensor *tensor, const void *base, uint32_t element, uint32_t rank, const uint64_t *size,
                   const uint64_t *stride, const uint32_t *box) {
    RA_REQUIRE(tensor && size && box && rank >= 1 && rank <= RA_TENSOR_RANK && (rank == 1 || stride),
               RA_INVALID_VALUE);
    ra_tensor made = {.base = (uintptr_t)base, .element = element, .rank = rank, .stride = {element}};
    for (uint32_t d = 0; d < rank; d++) {
        made.size[d] = size[d];
        made.box[d] = box[d];
        if (d) made.stride[d] = stride[d - 1];
    }
    RA_REQUIRE(tensor_sound(&made), RA_INVALID_VALUE);
    *tensor = made;
    return RA_OK;
}

/* The part of a box that is inside its tensor. */
struct inside {
    uint64_t address;               /* of its first byte */
    uint64_t offset;                /* of that in the packed box */
    uint32_t count[RA_TENSOR_RANK]; /* elements; 1 beyond the rank */
    uint32_t row;                   /* bytes of a row: 0 where nothing is inside */
    uint32_t rows;
    uint64_t stride;                /* between the first two rows */
};

static struct inside clip(const ra_tensor *t, const int32_t coordinate[]) {
    struct inside in = {.address = t->base, .rows = 1, .count = {1, 1, 1, 1, 1}};
    uint64_t packed = t->element;
    for (uint32_t d = 0; d < t->rank; d++) {
        int64_t first = coordinate[d] > 0 ? coordinate[d] : 0, end = (int64_t)coordinate[d] + t->box[d];
        if (end > (int64_t)t->size[d]) end = (int64_t)t->size[d];
        if (end <= first) return (struct inside){.address = t->base};
        in.count[d] = (uint32_t)(end - first);
        in.address += (uint64_t)first * t->stride[d];
        in.offset += (uint64_t)(first - coordinate[d]) * packed;
        packed *= t->box[d];
        if (d) in.rows *= in.count[d];
        if (d && in.count[d] > 1 && !in.stride) in.stride = t->stride[d];
    }
    in.row = in.count[0] * t->element;
    return in;
}

/* Calls `move` for each row inside, until it is false. */
static bool each_row(ra_warp *w, const ra_tensor *t, const struct inside *in, uint64_t shared,
                     bool (*move)(ra_warp *w, uint64_t address, uint64_t offset, uint32_t bytes)) {
    uint32_t index[RA_TENSOR_RANK] = {0};
    for (uint32_t row = 0; row < in->rows; row++) {
        uint64_t address = in->address, offset = shared + in->offset, packed = t->element;
        for (uint32_t d = 0; d < t->rank; d++) {
            address += index[d] * t->stride[d];
            offset += index[d] * packed;
            packed *= t->box[d];
        }
        if (!move(w, address, offset, in->row)) return false;
        for (uint32_t d = 1; d < t->rank && ++index[d] == in->count[d]; d++) index[d] = 0;
    }
    return true;
}

static bool row_load(ra_warp *w, uint64_t address, uint64_t offset, uint32_t bytes) {
    if (!global_valid(w, address, bytes)) return false;
    touch(w, address, bytes, RA_ACCESS_READ);
    memcpy(w->shared + offset, global(address), bytes);
    return true;
}

static bool row_store(ra_warp *w, uint64_t address, uint64_t offset, uint32_t bytes) {
    if (!global_valid(w, address, bytes)) return false;
    touch(w, address, bytes, RA_ACCESS_WRITE);
    memcpy(global(address), w->shared + offset, bytes);
    return true;
}

static void tensor_transfer(ra_warp *w, uint32_t at, uint32_t mask, uint64_t tensor, const int32_t coordinate[],
                            uint64_t shared, bool load) {
    uint32_t one = leader(w, mask);
    if (!one) return;
    ra_tensor t;
    if (!global_valid(w, tensor, sizeof t)) {
        ra_warp_stop(w, RA_ILLEGAL_ADDRESS);
        return;
    }
    memcpy(&t, global(tensor), sizeof t);
    if (!tensor_sound(&t)) {
        ra_warp_stop(w, RA_ILLEGAL_ADDRESS);
        return;
    }
    struct inside in = clip(&t, coordinate);
    report_transfer(w, at, load ? RA_KIND_TENSOR_LOAD : RA_KIND_TENSOR_STORE, load ? RA_ACCESS_READ : RA_ACCESS_WRITE,
                    one, in.address, in.row, in.rows, in.stride);
    uint64_t bytes = t.element;
    for (uint32_t d = 0; d < t.rank && bytes <= w->shared_bytes; d++) bytes *= t.box[d];
    if (shared % TRANSFER_ALIGNMENT) {
        ra_warp_stop(w, RA_MISALIGNED_ADDRESS);
    } else if (!shared_valid(w, shared, bytes)) {
        ra_warp_stop(w, RA_ILLEGAL_ADDRESS);
    } else {
        if (load) memset(w->shared + shared, 0, bytes);
        if (!each_row(w, &t, &in, shared, load ? row_load : row_store)) ra_warp_stop(w, RA_ILLEGAL_ADDRESS);
    }
}

void ra_tensor_load(ra_warp *w, uint32_t at, uint32_t mask, uint64_t to_shared, uint64_t tensor,
                    const int32_t coordinate[]) {
    tensor_transfer(w, at, mask, tensor, coordinate, to_shared, true);
}

void ra_tensor_store(ra_warp *w, uint32_t at, uint32_t mask, uint64_t tensor, const int32_t coordinate[],
                     uint64_t from_shared) {
    tensor_transfer(w, at, mask, tensor, coordinate, from_shared, false);
}
