/* Memory: one window of address space, cut into regions of RA_REGION_BYTES: the host's (pinned and
 * managed memory) first, then one per device.  A region is usable from its start for
 * ra_settings.memory bytes, allocated or not, as on hardware that maps large pages: a kernel that
 * leaves an allocation but not the region is not stopped. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>

#include "internal.h"

#define GRANULE UINT64_C(512)
#define RETURN_PAGES (UINT64_C(1) << 20) /* freed blocks of this size are returned to the system */
#define FIRST_BASE UINT64_C(0x6a0000000000)

enum block_state { BLOCK_FREE, BLOCK_LIVE, BLOCK_PENDING /* freed, not yet returned */ };

/* The blocks of a region are a list in address order without gaps. */
struct block {
    struct block *previous;
    struct block *next;
    uint64_t address;
    uint64_t bytes;     /* a multiple of GRANULE */
    uint64_t requested; /* bytes */
    enum block_state state;
    ra_memory_kind kind;
    struct ra_context_s *context;
};

struct ra_window ra_window;
static struct block *regions[1 + RA_MAX_DEVICES]; /* ra_lock */

int ra_memory_map(void) {
    int count = 1 + ra_settings.devices;
    uint64_t bytes = (uint64_t)count * RA_REGION_BYTES;
    /* A recognizable base where it is free (a fork's child finds its parent's there). */
    void *wanted = (void *)(uintptr_t)FIRST_BASE;
    void *base = mmap(wanted, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    RA_REQUIRE(base != MAP_FAILED, RA_SYSTEM);
    ra_window = (struct ra_window){(uintptr_t)base, bytes};
    for (int i = 0; i < count; i++) {
        uint64_t address = ra_window.base + (uint64_t)i * RA_REGION_BYTES;
        struct block *block = calloc(1, sizeof *block);
        if (!block || mprotect((void *)(uintptr_t)address, ra_settings.memory, PROT_READ | PROT_WRITE)) {
            free(block);
            ra_memory_unmap();
            return block ? RA_SYSTEM : RA_OUT_OF_MEMORY;
        }
        block->address = address;
        block->bytes = ra_settings.memory;
        regions[i] = block;
    }
    return RA_OK;
}

void ra_memory_unmap(void) {
    for (int i = 0; i <= RA_MAX_DEVICES; i++) {
        for (struct block *b = regions[i], *next; b; b = next) {
            next = b->next;
            free(b);
        }
        regions[i] = NULL;
    }
    ra_managed_clear();
    if (ra_window.bytes) munmap((void *)(uintptr_t)ra_window.base, ra_window.bytes);
    ra_window = (struct ra_window){0};
}

/* The window stays mapped: the child may read what its parent computed into pinned memory. */
void ra_memory_forget(void) {
    memset(regions, 0, sizeof regions);
    ra_managed_forget();
    ra_window = (struct ra_window){0};
}

/* ---- blocks; ra_lock held ---- */

static bool in_window(uint64_t address) { return address - ra_window.base < ra_window.bytes; }

/* The live block that holds all of [address, address + bytes), or NULL. */
static struct block *block_of(uint64_t address, uint64_t bytes) {
    if (!in_window(address)) return NULL;
    struct block *b = regions[(address - ra_window.base) / RA_REGION_BYTES];
    while (b && address - b->address >= b->bytes) b = b->next;
    if (!b || b->state != BLOCK_LIVE) return NULL;
    uint64_t offset = address - b->address;
    return offset <= b->requested && bytes <= b->requested - offset ? b : NULL;
}

/* Shortens a block; the rest becomes a free block after it. */
static bool block_split(struct block *b, uint64_t bytes) {
    if (b->bytes == bytes) return true;
    struct block *rest = malloc(sizeof *rest);
    if (!rest) return false;
    *rest = (struct block){.previous = b, .next = b->next, .address = b->address + bytes, .bytes = b->bytes - bytes};
    if (b->next) b->next->previous = rest;
    b->next = rest;
    b->bytes = bytes;
    return true;
}

static struct block *block_take(struct block *region, uint64_t bytes, uint64_t alignment) {
    struct block *b = region;
    uint64_t before = 0;
    for (; b; b = b->next) {
        before = -b->address & (alignment - 1);
        if (b->state == BLOCK_FREE && b->bytes >= bytes && b->bytes - bytes >= before) break;
    }
    if (b && before) b = block_split(b, before) ? b->next : NULL;
    return b && block_split(b, bytes) ? b : NULL;
}

static void block_absorb_next(struct block *b) {
    struct block *next = b->next;
    b->bytes += next->bytes;
    b->next = next->next;
    if (next->next) next->next->previous = b;
    free(next);
}

static void block_release(struct block *b) {
    if (b->bytes >= RETURN_PAGES) {
        uint64_t first = (b->address + 4095) & ~UINT64_C(4095), end = (b->address + b->bytes) & ~UINT64_C(4095);
        madvise((void *)(uintptr_t)first, end - first, MADV_DONTNEED);
    }
    if (b->kind == RA_MEMORY_MANAGED) ra_managed_dead(b->address, b->bytes);
    b->state = BLOCK_FREE;
    b->kind = RA_MEMORY_DEVICE;
    b->context = NULL;
    if (b->next && b->next->state == BLOCK_FREE) block_absorb_next(b);
    if (b->previous && b->previous->state == BLOCK_FREE) block_absorb_next(b->previous);
}

void ra_memory_release_context(struct ra_context_s *context) {
    for (int i = 0; i <= RA_MAX_DEVICES; i++) {
        for (struct block *b = regions[i]; b; b = b->next) {
            if (b->context != context) continue;
            struct block *before = b->previous;
            block_release(b); /* may merge b into before */
            if (before && before->state == BLOCK_FREE) b = before;
        }
    }
}

/* ---- allocation ---- */

static struct block *live_block_of(const struct ra_context_s *context) {
    for (int i = 0; i <= RA_MAX_DEVICES; i++)
        for (struct block *b = regions[i]; b; b = b->next)
            if (b->context == context && b->state == BLOCK_LIVE) return b;
    return NULL;
}

static void tell_memory(const struct block *b, uint64_t stream, bool asynchronous, ra_callback_id id) {
    if (!ra_tools_want(RA_DOMAIN_RESOURCE)) return;
    ra_memory_data data = {
        sizeof data, b->context->device, (uintptr_t)b->context, stream, b->address, b->requested, b->kind, asynchronous};
    ra_tools_call(RA_DOMAIN_RESOURCE, id, &data);
}

void ra_memory_retire_context(struct ra_context_s *context) {
    struct block *b;
    do {
        pthread_mutex_lock(&ra_lock);
        b = live_block_of(context);
        if (b) b->state = BLOCK_PENDING;
        pthread_mutex_unlock(&ra_lock);
        if (b) tell_memory(b, 0, false, RA_CALLBACK_MEMORY_FREED);
    } while (b);
}

static int allocate(void **address, uint64_t bytes, ra_memory_kind kind, struct ra_context_s *context,
                    uint64_t stream) {
    RA_REQUIRE(address && bytes, RA_INVALID_VALUE);
    RA_REQUIRE(bytes <= ra_settings.memory, RA_OUT_OF_MEMORY);
    int region = kind == RA_MEMORY_MANAGED || kind == RA_MEMORY_PINNED ? 0 : 1 + context->device;
    uint64_t alignment = kind != RA_MEMORY_MANAGED       ? GRANULE
                         : bytes < RA_MANAGED_BLOCK ? UINT64_C(1) << RA_PAGE_SHIFT
                                                    : RA_MANAGED_BLOCK;
    uint64_t whole = kind == RA_MEMORY_MANAGED ? UINT64_C(1) << RA_PAGE_SHIFT : GRANULE;
    pthread_mutex_lock(&ra_lock);
    struct block *b = block_take(regions[region], (bytes + whole - 1) / whole * whole, alignment);
    if (b && kind == RA_MEMORY_MANAGED && ra_managed_born(b->address, b->bytes) != RA_OK) {
        block_release(b);
        b = NULL;
    }
    struct block made;
    if (b) {
        b->requested = bytes;
        b->state = BLOCK_LIVE;
        b->kind = kind;
        b->context = context;
        made = *b;
    }
    pthread_mutex_unlock(&ra_lock);
    RA_REQUIRE(b, RA_OUT_OF_MEMORY);
    tell_memory(&made, stream, kind == RA_MEMORY_POOL, RA_CALLBACK_MEMORY_ALLOCATED);
    *address = (void *)(uintptr_t)made.address;
    return RA_OK;
}

static int allocate_now(void **address, uint64_t bytes, ra_memory_kind kind) {
    struct ra_context_s *context;
    RA_TRY(ra_current(&context));
    return allocate(address, bytes, kind, context, 0);
}

int ra_alloc(void **address, uint64_t bytes) { return allocate_now(address, bytes, RA_MEMORY_DEVICE); }
int ra_alloc_managed(void **address, uint64_t bytes) { return allocate_now(address, bytes, RA_MEMORY_MANAGED); }
int ra_alloc_pinned(void **address, uint64_t bytes) { return allocate_now(address, bytes, RA_MEMORY_PINNED); }

int ra_alloc_async(void **address, uint64_t bytes, ra_stream handle) {
    struct ra_stream_s *stream;
    RA_TRY(ra_stream_get(handle, &stream));
    RA_REQUIRE(!stream->capture, RA_CAPTURE);
    return allocate(address, bytes, RA_MEMORY_POOL, stream->context, ra_stream_handle(stream));
}

/* Removes the block from the program's view, so that a second free fails. */
static int block_retire(const void *address, bool pool_only, struct block **block) {
    pthread_mutex_lock(&ra_lock);
    struct block *b = block_of((uintptr_t)address, 0);
    if (b && (b->address != (uintptr_t)address || (pool_only && b->kind != RA_MEMORY_POOL))) b = NULL;
    if (b) b->state = BLOCK_PENDING;
    pthread_mutex_unlock(&ra_lock);
    *block = b;
    return b ? RA_OK : RA_INVALID_ADDRESS;
}

int ra_free(void *address) {
    RA_TRY(ra_init());
    if (!address) return RA_OK;
    struct block *b;
    RA_TRY(block_retire(address, false, &b));
    int error = ra_context_drain(b->context);
    tell_memory(b, 0, false, RA_CALLBACK_MEMORY_FREED);
    pthread_mutex_lock(&ra_lock);
    block_release(b);
    pthread_mutex_unlock(&ra_lock);
    return error;
}

struct free_op {
    struct ra_op op;
    struct block *block;
};

static void free_run(struct ra_op *op, struct ra_stream_s *stream, struct ra_executor *executor) {
    (void)stream;
    (void)executor;
    pthread_mutex_lock(&ra_lock);
    block_release(((struct free_op *)op)->block);
    pthread_mutex_unlock(&ra_lock);
}

int ra_free_async(void *address, ra_stream handle) {
    struct ra_stream_s *stream;
    RA_TRY(ra_stream_get(handle, &stream));
    RA_REQUIRE(!stream->capture, RA_CAPTURE);
    struct free_op *op = calloc(1, sizeof *op);
    RA_REQUIRE(op, RA_OUT_OF_MEMORY);
    op->op.run = free_run;
    int error = block_retire(address, true, &op->block);
    if (error != RA_OK) {
        free(op);
        return error;
    }
    tell_memory(op->block, ra_stream_handle(stream), true, RA_CALLBACK_MEMORY_FREED);
    return ra_stream_queue(stream, &op->op);
}

int ra_pointer_query(ra_pointer *pointer, const void *address) {
    RA_TRY(ra_init());
    RA_REQUIRE(pointer, RA_INVALID_VALUE);
    pthread_mutex_lock(&ra_lock);
    struct block *b = block_of((uintptr_t)address, 1);
    if (b) *pointer = (ra_pointer){b->address, b->requested, b->kind, b->context->device};
    pthread_mutex_unlock(&ra_lock);
    return b ? RA_OK : RA_INVALID_ADDRESS;
}

/* ---- copies and sets ---- */

/* Bytes from the first to the last of `height` rows, or an error where they overflow or overlap. */
static int extent(uint64_t pitch, uint64_t width, uint64_t height, uint64_t *bytes) {
    RA_REQUIRE(width && height && (height == 1 || pitch >= width), RA_INVALID_VALUE);
    RA_REQUIRE(!__builtin_mul_overflow(pitch, height - 1, bytes) && !__builtin_add_overflow(*bytes, width, bytes),
               RA_INVALID_VALUE);
    return RA_OK;
}

/* Checks the range; *device: whose memory it is, RA_HOST for pinned and pageable memory. */
static int locate(const void *address, uint64_t bytes, int *device) {
    RA_REQUIRE(address, RA_INVALID_VALUE);
    *device = RA_HOST;
    if (!in_window((uintptr_t)address)) return RA_OK;
    pthread_mutex_lock(&ra_lock);
    struct block *b = block_of((uintptr_t)address, bytes);
    if (b && b->kind != RA_MEMORY_PINNED) *device = b->context->device;
    pthread_mutex_unlock(&ra_lock);
    return b ? RA_OK : RA_INVALID_ADDRESS;
}

struct copy_op {
    struct ra_op op;
    ra_memcpy_data data;
};

static void copy_run(struct ra_op *op, struct ra_stream_s *stream, struct ra_executor *executor) {
    (void)executor;
    if (atomic_load(&stream->context->error) != RA_OK) return;
    ra_memcpy_data *d = &((struct copy_op *)op)->data;
    d->start = ra_now();
    for (uint64_t row = 0; row < d->height; row++)
        memmove((void *)(uintptr_t)(d->destination + row * d->destination_pitch),
                (const void *)(uintptr_t)(d->source + row * d->source_pitch), d->width);
    ra_managed_written(d->destination, (d->height - 1) * d->destination_pitch + d->width, stream->context, d->stream);
    d->end = ra_now();
    if (ra_tools_want(RA_DOMAIN_MEMCPY)) ra_tools_call(RA_DOMAIN_MEMCPY, RA_CALLBACK_MEMCPY_COMPLETE, d);
}

static int copy_submit(struct ra_op *op, struct ra_stream_s *stream, bool asynchronous, uint64_t graph,
                       uint64_t node) {
    (void)graph;
    ra_memcpy_data *d = &((struct copy_op *)op)->data;
    d->device = stream->context->device;
    d->context = (uintptr_t)stream->context;
    d->stream = ra_stream_handle(stream);
    d->asynchronous = asynchronous;
    d->node = node;
    if (ra_tools_want(RA_DOMAIN_MEMCPY)) {
        ra_memcpy_data copy = *d;
        ra_tools_call(RA_DOMAIN_MEMCPY, RA_CALLBACK_MEMCPY, &copy);
        d->user = copy.user;
    }
    return ra_stream_queue(stream, op);
}

int ra_copy_make(struct ra_op **op, void *destination, uint64_t destination_pitch, const void *source,
                 uint64_t source_pitch, uint64_t width, uint64_t height) {
    uint64_t from, to;
    int from_device, to_device;
    RA_TRY(extent(source_pitch, width, height, &from));
    RA_TRY(extent(destination_pitch, width, height, &to));
    RA_TRY(locate(source, from, &from_device));
    RA_TRY(locate(destination, to, &to_device));
    struct copy_op *copy = calloc(1, sizeof *copy);
    RA_REQUIRE(copy, RA_OUT_OF_MEMORY);
    copy->op.bytes = sizeof *copy;
    copy->op.submit = copy_submit;
    copy->op.run = copy_run;
    copy->data = (ra_memcpy_data){.size = sizeof copy->data,
                                  .source = (uintptr_t)source,
                                  .destination = (uintptr_t)destination,
                                  .source_pitch = source_pitch,
                                  .destination_pitch = destination_pitch,
                                  .width = width,
                                  .height = height,
                                  .source_device = from_device,
                                  .destination_device = to_device};
    *op = &copy->op;
    return RA_OK;
}

struct set_op {
    struct ra_op op;
    ra_memset_data data;
};

static void set_row(uint64_t address, uint64_t count, uint32_t element, uint32_t value) {
    void *row = (void *)(uintptr_t)address;
    if (element == 1) {
        memset(row, (int)(value & 0xff), count);
    } else if (element == 2) {
        for (uint64_t i = 0; i < count; i++) ((uint16_t *)row)[i] = (uint16_t)value;
    } else {
        for (uint64_t i = 0; i < count; i++) ((uint32_t *)row)[i] = value;
    }
}

static void set_run(struct ra_op *op, struct ra_stream_s *stream, struct ra_executor *executor) {
    (void)executor;
    if (atomic_load(&stream->context->error) != RA_OK) return;
    ra_memset_data *d = &((struct set_op *)op)->data;
    d->start = ra_now();
    for (uint64_t row = 0; row < d->height; row++) set_row(d->address + row * d->pitch, d->width, d->element, d->value);
    ra_managed_written(d->address, (d->height - 1) * d->pitch + d->width * d->element, stream->context, d->stream);
    d->end = ra_now();
    if (ra_tools_want(RA_DOMAIN_MEMSET)) ra_tools_call(RA_DOMAIN_MEMSET, RA_CALLBACK_MEMSET_COMPLETE, d);
}

static int set_submit(struct ra_op *op, struct ra_stream_s *stream, bool asynchronous, uint64_t graph, uint64_t node) {
    (void)graph;
    ra_memset_data *d = &((struct set_op *)op)->data;
    d->device = stream->context->device;
    d->context = (uintptr_t)stream->context;
    d->stream = ra_stream_handle(stream);
    d->asynchronous = asynchronous;
    d->node = node;
    if (ra_tools_want(RA_DOMAIN_MEMSET)) {
        ra_memset_data copy = *d;
        ra_tools_call(RA_DOMAIN_MEMSET, RA_CALLBACK_MEMSET, &copy);
        d->user = copy.user;
    }
    return ra_stream_queue(stream, op);
}

int ra_set_make(struct ra_op **op, void *address, uint64_t pitch, uint32_t value, uint32_t element, uint64_t width,
                uint64_t height) {
    RA_REQUIRE(element == 1 || element == 2 || element == 4, RA_INVALID_VALUE);
    RA_REQUIRE((uintptr_t)address % element == 0 && (height == 1 || pitch % element == 0), RA_INVALID_VALUE);
    uint64_t row, bytes;
    int device;
    RA_REQUIRE(!__builtin_mul_overflow(width, element, &row), RA_INVALID_VALUE);
    RA_TRY(extent(pitch, row, height, &bytes));
    RA_REQUIRE(in_window((uintptr_t)address), RA_INVALID_ADDRESS);
    RA_TRY(locate(address, bytes, &device));
    struct set_op *set = calloc(1, sizeof *set);
    RA_REQUIRE(set, RA_OUT_OF_MEMORY);
    set->op.bytes = sizeof *set;
    set->op.submit = set_submit;
    set->op.run = set_run;
    set->data = (ra_memset_data){.size = sizeof set->data,
                                 .address = (uintptr_t)address,
                                 .pitch = pitch,
                                 .width = width,
                                 .height = height,
                                 .element = element,
                                 .value = value};
    *op = &set->op;
    return RA_OK;
}

static int copy_give(void *destination, uint64_t destination_pitch, const void *source, uint64_t source_pitch,
                     uint64_t width, uint64_t height, ra_stream handle, bool asynchronous) {
    struct ra_stream_s *stream;
    struct ra_op *op;
    RA_TRY(ra_stream_get(handle, &stream));
    RA_TRY(ra_copy_make(&op, destination, destination_pitch, source, source_pitch, width, height));
    return ra_stream_give(stream, op, asynchronous);
}

static int set_give(void *address, uint64_t pitch, uint32_t value, uint32_t element, uint64_t width, uint64_t height,
                    ra_stream handle, bool asynchronous) {
    struct ra_stream_s *stream;
    struct ra_op *op;
    RA_TRY(ra_stream_get(handle, &stream));
    RA_TRY(ra_set_make(&op, address, pitch, value, element, width, height));
    return ra_stream_give(stream, op, asynchronous);
}

int ra_memcpy(void *destination, const void *source, uint64_t bytes) {
    return copy_give(destination, bytes, source, bytes, bytes, 1, NULL, false);
}

int ra_memcpy_async(void *destination, const void *source, uint64_t bytes, ra_stream stream) {
    return copy_give(destination, bytes, source, bytes, bytes, 1, stream, true);
}

int ra_memcpy_2d(void *destination, uint64_t destination_pitch, const void *source, uint64_t source_pitch,
                 uint64_t width, uint64_t height) {
    return copy_give(destination, destination_pitch, source, source_pitch, width, height, NULL, false);
}

int ra_memcpy_2d_async(void *destination, uint64_t destination_pitch, const void *source, uint64_t source_pitch,
                       uint64_t width, uint64_t height, ra_stream stream) {
    return copy_give(destination, destination_pitch, source, source_pitch, width, height, stream, true);
}

int ra_memset(void *address, uint32_t value, uint32_t element, uint64_t count) {
    return set_give(address, count * element, value, element, count, 1, NULL, false);
}

int ra_memset_async(void *address, uint32_t value, uint32_t element, uint64_t count, ra_stream stream) {
    return set_give(address, count * element, value, element, count, 1, stream, true);
}

int ra_memset_2d(void *address, uint64_t pitch, uint32_t value, uint32_t element, uint64_t width, uint64_t height) {
    return set_give(address, pitch, value, element, width, height, NULL, false);
}

int ra_memset_2d_async(void *address, uint64_t pitch, uint32_t value, uint32_t element, uint64_t width,
                       uint64_t height, ra_stream stream) {
    return set_give(address, pitch, value, element, width, height, stream, true);
}

/* ---- managed memory ---- */

static int managed_range(const void *address, uint64_t bytes) {
    RA_REQUIRE(bytes, RA_INVALID_VALUE);
    pthread_mutex_lock(&ra_lock);
    struct block *b = block_of((uintptr_t)address, bytes);
    bool managed = b && b->kind == RA_MEMORY_MANAGED;
    pthread_mutex_unlock(&ra_lock);
    return managed ? RA_OK : RA_INVALID_ADDRESS;
}

static int uvm(ra_callback_id id, struct ra_stream_s *stream, const void *address, uint64_t bytes, uint32_t value,
               int destination) {
    RA_REQUIRE(destination >= RA_HOST && destination < ra_settings.devices, RA_INVALID_DEVICE);
    RA_REQUIRE(!stream->capture, RA_CAPTURE);
    RA_TRY(managed_range(address, bytes));
    if (ra_tools_want(RA_DOMAIN_UVM)) {
        ra_uvm_data data = {sizeof data,
                            stream->context->device,
                            (uintptr_t)stream->context,
                            ra_stream_handle(stream),
                            (uintptr_t)address,
                            bytes,
                            value,
                            destination};
        ra_tools_call(RA_DOMAIN_UVM, id, &data);
    }
    return RA_OK;
}

struct prefetch_op {
    struct ra_op op;
    uint64_t address, bytes;
    int place;
};

static void prefetch_run(struct ra_op *op, struct ra_stream_s *stream, struct ra_executor *executor) {
    (void)executor;
    const struct prefetch_op *p = (const struct prefetch_op *)op;
    if (atomic_load(&stream->context->error) != RA_OK) return;
    ra_managed_prefetch(stream->context, ra_stream_handle(stream), p->address, p->bytes, p->place);
}

int ra_prefetch(const void *address, uint64_t bytes, int device, ra_stream handle) {
    struct ra_stream_s *stream;
    RA_TRY(ra_stream_get(handle, &stream));
    RA_TRY(uvm(RA_CALLBACK_UVM_PREFETCH, stream, address, bytes, 0, device));
    struct prefetch_op *op = calloc(1, sizeof *op);
    RA_REQUIRE(op, RA_OUT_OF_MEMORY);
    *op = (struct prefetch_op){.op.run = prefetch_run, .address = (uintptr_t)address, .bytes = bytes, .place = device};
    return ra_stream_queue(stream, &op->op);
}

int ra_host_access(const void *address, uint64_t bytes, int write) {
    struct ra_context_s *context;
    RA_TRY(ra_current(&context));
    RA_TRY(managed_range(address, bytes));
    ra_managed_host(context, (uintptr_t)address, bytes, write != 0);
    return RA_OK;
}

int ra_advise(const void *address, uint64_t bytes, ra_advice advice, int device) {
    struct ra_stream_s *stream;
    RA_TRY(ra_stream_get(NULL, &stream));
    RA_REQUIRE(advice >= RA_ADVICE_READ_MOSTLY && advice <= RA_ADVICE_UNSET_ACCESSED_BY, RA_INVALID_VALUE);
    RA_TRY(uvm(RA_CALLBACK_UVM_ADVISE, stream, address, bytes, advice, device));
    ra_managed_advise((uintptr_t)address, bytes, advice, device);
    return RA_OK;
}

int ra_stream_attach(ra_stream handle, const void *address, uint64_t bytes, uint32_t flags) {
    struct ra_stream_s *stream;
    RA_TRY(ra_stream_get(handle, &stream));
    return uvm(RA_CALLBACK_UVM_ATTACH, stream, address, bytes, flags, RA_HOST);
}
