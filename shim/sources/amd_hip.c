/* Calls of the HIP runtime: each a row of a table that says what its arguments mean.
 *
 * A call is open from its ENTER to its EXIT on its thread.  What the SDK tells in between (dispatches,
 * allocations, copies) belongs to it.
 */
#include <string.h>

#include "amd_hip_calls.h"
#include "amd_source.h"

/* Where an argument is, plus one; 0: there is none. */
#define AT(type, field) ((uint8_t)(offsetof(type, field) + 1))

enum { /* flags of a row */
    ASYNC = 1,
    PER_THREAD = 2,     /* the default stream is the thread's */
    DEFAULT_STREAM = 4, /* it works in that */
    ALWAYS = 8,         /* `exit` whether it succeeded or not */
};

typedef struct frame frame;

typedef struct call {
    pasta_amd_operation is;
    void (*enter)(frame *f, const void *arguments);
    void (*exit)(frame *f, const void *arguments); /* after success */
    uint8_t what;                                  /* pasta_amd_what */
    uint8_t stream;                                /* where the argument is */
    uint8_t flags;
    uint8_t memory;  /* PASTA_MEMORY_*, of what it allocates */
    uint8_t kind;    /* of a copy: where that argument is, or */
    int8_t fixed;    /* … what it always is */
    uint8_t element; /* of a set: bytes */
    uint8_t options; /* where flags are that the record has */
} call;

struct frame {
    const call *is;
    uint64_t correlation, stream, began;
    uint64_t record; /* correlation id of its records */
    pasta_amd_place on; /* where it allocates */
    bool captured;      /* nothing happens until a graph is launched */
    bool has_freed;
    pasta_amd_live freed;
};

enum { DEEPEST = 8 };
static _Thread_local struct {
    frame open[DEEPEST];
    uint32_t depth;
    int16_t device; /* the program's current one */
    uint64_t created; /* stream, and its priority, for HIP_STREAM */
    int32_t priority;
} here;

/* ---- the call around something ---- */

/* Calls whose work may be submitted by another thread, by their correlation id. */
enum { RECENT = 1024 };
static struct {
    uint64_t correlation; /* 0: it is being written */
    uint64_t stream;
    uint32_t what;
} recent[RECENT];

static void remember(const frame *f) {
    uint32_t at = f->correlation % RECENT;
    PASTA_STORE(recent[at].correlation, 0);
    PASTA_STORE(recent[at].stream, f->stream);
    PASTA_STORE(recent[at].what, f->is->what);
    PASTA_STORE(recent[at].correlation, f->correlation);
}

static bool recall(uint64_t correlation, pasta_amd_within *within) {
    uint32_t at = correlation % RECENT;
    if (!correlation || PASTA_LOAD(recent[at].correlation) != correlation) return false;
    within->stream = PASTA_LOAD(recent[at].stream);
    within->what = (pasta_amd_what)PASTA_LOAD(recent[at].what);
    within->known = PASTA_LOAD(recent[at].correlation) == correlation;
    return within->known;
}

pasta_amd_within pasta_amd_call_of(const pasta_amd_record *record) {
    if (PASTA_LIKELY(here.depth)) {
        const frame *f = &here.open[here.depth - 1];
        return (pasta_amd_within){true, (pasta_amd_what)f->is->what, f->stream};
    }
    pasta_amd_within within;
    if (recall(record->correlation, &within) || recall(record->ancestor, &within)) return within;
    return (pasta_amd_within){false, PASTA_AMD_OTHER, PASTA_NO_STREAM};
}

void pasta_amd_call_allocates_on(pasta_amd_place at) {
    if (here.depth && at.device != PASTA_NO_DEVICE) here.open[here.depth - 1].on = at;
}

/* ---- streams ---- */

static pasta_amd_map stream_devices; /* that are not the default one's */

static uint64_t named_stream(uint64_t stream, uint8_t flags) {
    if (stream == HIP_LEGACY_STREAM) return 0;
    return !stream && flags & PER_THREAD ? HIP_STREAM_PER_THREAD : stream;
}

static uint64_t stream_of(const call *c, const void *arguments) {
    uint64_t stream = 0;
    if (!c->stream) return c->flags & DEFAULT_STREAM ? named_stream(0, c->flags) : PASTA_NO_STREAM;
    memcpy(&stream, (const char *)arguments + c->stream - 1, sizeof stream);
    return named_stream(stream, c->flags);
}

static pasta_amd_place place_of(uint64_t stream) {
    uint64_t device;
    if (stream <= HIP_STREAM_PER_THREAD || stream == PASTA_NO_STREAM ||
        !pasta_amd_get(&stream_devices, stream, &device))
        return pasta_amd_place_on(here.device);
    return pasta_amd_place_on((int16_t)device);
}

static void stream_created(uint64_t handle, uint64_t id, int32_t priority) {
    pasta_amd_put(&stream_devices, handle, (uint64_t)here.device);
    pasta_amd_place at = pasta_amd_place_on(here.device);
    pasta_stream *e = PASTA_BEGIN_AS(stream_create, stream, at.device, at.context, handle);
    if (!e) return;
    e->handle = handle;
    e->id = id;
    e->priority = priority;
    pasta_publish(e);
}

static void stream_destroyed(uint64_t handle, uint64_t id) {
    pasta_amd_place at = place_of(handle);
    uint64_t device;
    pasta_amd_take(&stream_devices, handle, &device);
    pasta_stream *e = PASTA_BEGIN_AS(stream_destroy, stream, at.device, at.context, handle);
    if (!e) return;
    e->handle = handle;
    e->id = id;
    pasta_publish(e);
}

/* With HIP_STREAM it comes a second time, with the stream's id. */
static void on_stream_create(frame *f, const void *arguments) {
    const hip_stream_create *c = arguments;
    if (!c->stream || !*c->stream) return;
    here.priority = f->is->options ? c->priority : (int32_t)PASTA_ABSENT_U32;
    here.created = *c->stream;
    if (!pasta_amd_has_kind("HIP_STREAM")) stream_created(*c->stream, PASTA_ABSENT_U64, here.priority);
}

static void on_stream_destroy(frame *f, const void *arguments) {
    const hip_on_stream *c = arguments;
    (void)f;
    if (!pasta_amd_has_kind("HIP_STREAM")) stream_destroyed(c->stream, PASTA_ABSENT_U64);
}

static void on_stream(const pasta_amd_record *r, const pasta_amd_operation *operation) {
    const pasta_amd_stream *s = r->payload;
    if (r->phase == PASTA_AMD_ENTER || !PASTA_AMD_HAS(s, handle)) return;
    if (strcmp(operation->name, "HIP_STREAM_CREATE") != 0) {
        stream_destroyed(s->handle, s->id);
        return;
    }
    stream_created(s->handle, s->id, here.created == s->handle ? here.priority : (int32_t)PASTA_ABSENT_U32);
    here.created = 0;
}

static const pasta_amd_operation streams[] = {{"HIP_STREAM_CREATE", on_stream}, {"HIP_STREAM_DESTROY", on_stream}};
const pasta_amd_table pasta_amd_streams = PASTA_AMD_TABLE(streams);

/* ---- capture: what is captured does nothing until its graph is launched ---- */

static uint32_t captures; /* that are open */
static pasta_amd_map capturing; /* number of the capture, by stream */
static pasta_amd_map captured_events; /* likewise, by event that was recorded in one */

static bool captures_are_open(void) { return PASTA_UNLIKELY(__atomic_load_n(&captures, __ATOMIC_RELAXED) != 0); }

static bool is_captured(uint64_t stream) {
    uint64_t capture;
    return captures_are_open() && pasta_amd_get(&capturing, stream, &capture);
}

static void on_capture_begin(frame *f, const void *arguments) {
    static uint64_t numbers;
    (void)arguments;
    __atomic_fetch_add(&captures, 1, __ATOMIC_RELAXED);
    pasta_amd_put(&capturing, f->stream, __atomic_add_fetch(&numbers, 1, __ATOMIC_RELAXED));
}

static void on_capture_end(frame *f, const void *arguments) {
    uint64_t capture;
    (void)arguments;
    if (!pasta_amd_take(&capturing, f->stream, &capture)) return;
    pasta_amd_drop(&capturing, capture);
    pasta_amd_drop(&captured_events, capture);
    __atomic_fetch_sub(&captures, 1, __ATOMIC_RELAXED);
}

/* ---- memory ---- */

static void allocated(frame *f, uint64_t address, uint64_t bytes, uint32_t element, uint32_t flags) {
    const call *c = f->is;
    if (!address || f->captured) return;
    pasta_amd_live memory = {.address = address, .bytes = bytes, .memory = c->memory, .element = element,
                             .device = f->on.device};
    bool async = c->flags & ASYNC;
    pasta_amd_allocated(&memory, async ? f->stream : PASTA_NO_STREAM, async ? PASTA_FLAG_ASYNC : 0, flags);
}

static uint32_t options_of(const call *c, const void *arguments) {
    uint32_t flags = PASTA_ABSENT_U32;
    if (c->options) memcpy(&flags, (const char *)arguments + c->options - 1, sizeof flags);
    return flags;
}

static void on_alloc(frame *f, const void *arguments) {
    const hip_alloc *a = arguments;
    if (a->address) allocated(f, *a->address, a->bytes, 0, options_of(f->is, arguments));
}

static void on_alloc_pitch(frame *f, const void *arguments) {
    const hip_alloc_pitch *a = arguments;
    if (a->address && a->pitch) allocated(f, *a->address, *a->pitch * a->height, 0, PASTA_ABSENT_U32);
}

static void on_alloc_3d(frame *f, const void *arguments) {
    const hip_alloc_3d *a = arguments;
    if (a->pitched) allocated(f, a->pitched[0], a->pitched[1] * a->height * a->depth, 0, PASTA_ABSENT_U32);
}

static uint64_t at_least_1(uint64_t extent) { return extent ? extent : 1; }

static void array_allocated(frame *f, uint64_t handle, const uint64_t extent[3], uint32_t element, uint32_t flags) {
    uint64_t elements = extent[0] * at_least_1(extent[1]) * at_least_1(extent[2]);
    allocated(f, handle, elements * element, element, flags);
}

static uint32_t channel_bytes(const int32_t *bits) { /* of x, y, z, w */
    return bits ? (uint32_t)(bits[0] + bits[1] + bits[2] + bits[3]) / 8 : 0;
}

static uint32_t format_bytes(int32_t format) {
    switch (format) {
    case 0x01: case 0x08: return 1;
    case 0x02: case 0x09: case 0x10: return 2;
    default: return 4;
    }
}

static void on_array(frame *f, const void *arguments) {
    const hip_array *a = arguments;
    if (!a->array) return;
    array_allocated(f, *a->array, (uint64_t[]){a->width, a->height, 0}, channel_bytes(a->channels), a->flags);
}

static void on_array_3d(frame *f, const void *arguments) {
    const hip_array_3d *a = arguments;
    if (!a->array) return;
    array_allocated(f, *a->array, (uint64_t[]){a->width, a->height, a->depth}, channel_bytes(a->channels), a->flags);
}

static void on_array_described(frame *f, const void *arguments) {
    const hip_array_described *a = arguments;
    const hip_array_description *d = a->described;
    if (!a->array || !d) return;
    array_allocated(f, *a->array, (uint64_t[]){d->width, d->height, 0},
                    format_bytes(d->format) * (uint32_t)d->channels, PASTA_ABSENT_U32);
}

static void on_array_described_3d(frame *f, const void *arguments) {
    const hip_array_described *a = arguments;
    const hip_array_description_3d *d = a->described;
    if (!a->array || !d) return;
    array_allocated(f, *a->array, (uint64_t[]){d->width, d->height, d->depth},
                    format_bytes(d->format) * (uint32_t)d->channels, d->flags);
}

static void on_host_register(frame *f, const void *arguments) {
    const hip_host_register *a = arguments;
    allocated(f, a->address, a->bytes, 0, a->flags);
}

static void on_map(frame *f, const void *arguments) {
    const hip_span *a = arguments;
    allocated(f, a->address, a->bytes, 0, PASTA_ABSENT_U32);
}

static void on_mapped_buffer(frame *f, const void *arguments) {
    const hip_mapped_buffer *a = arguments;
    if (a->address && a->described) allocated(f, *a->address, a->described[1], 0, PASTA_ABSENT_U32);
}

/* What is freed may be given out again before the call returns, so it is recorded at its begin. */
static void on_free(frame *f, const void *arguments) {
    const hip_free *a = arguments;
    bool async = f->is->flags & ASYNC;
    if (!a->address || f->captured) return;
    uint64_t stream = async ? f->stream : PASTA_NO_STREAM;
    f->has_freed = pasta_amd_freed(a->address, stream, async ? PASTA_FLAG_ASYNC : 0, &f->freed);
}

static void on_unmap(frame *f, const void *arguments) {
    const hip_span *a = arguments;
    (void)f;
    pasta_amd_freed_within(a->address, a->bytes);
}

static void on_reset(frame *f, const void *arguments) {
    (void)f, (void)arguments;
    pasta_amd_freed_on(here.device);
}

/* A reserved range is no memory, so it is in no table: its end has its size. */
static void reserved(frame *f, bool made, uint64_t address, uint64_t bytes) {
    pasta_amd_place at = f->on;
    pasta_memory *e = made ? PASTA_BEGIN_AS(memory_alloc, memory, at.device, at.context, PASTA_NO_STREAM)
                           : PASTA_BEGIN_AS(memory_free, memory, at.device, at.context, PASTA_NO_STREAM);
    if (!e) return;
    e->address = address;
    e->bytes = bytes;
    e->memory = PASTA_MEMORY_virtual;
    pasta_publish(e);
}

static void on_reserve(frame *f, const void *arguments) {
    const hip_reserve *a = arguments;
    if (a->address && *a->address) reserved(f, true, *a->address, a->bytes);
}

static void on_unreserve(frame *f, const void *arguments) {
    const hip_span *a = arguments;
    reserved(f, false, a->address, a->bytes);
}

/* ---- copies ---- */

typedef struct copy {
    uint64_t destination, source, width, height, depth, destination_pitch, source_pitch;
    int32_t kind;
    int16_t destination_device, source_device; /* as the call says; absent: -1 */
    bool of_arrays; /* the width is in their elements */
} copy;

static pasta_amd_odd arrays = {.what = "copies with arrays whose allocation was not seen, which are not recorded"};

/* Device whose memory it is; absent for the host's. */
static int16_t owner_of(uint64_t address) {
    pasta_amd_live l;
    return pasta_amd_find(address, &l) && !pasta_amd_is_host(&l) ? l.device : PASTA_NO_DEVICE;
}

static uint32_t direction_of(int32_t kind, int16_t from, int16_t to) {
    if (kind == HIP_DEVICE_TO_DEVICE_NO_CU) kind = HIP_DEVICE_TO_DEVICE;
    if (kind == HIP_DEFAULT) kind = (from == PASTA_NO_DEVICE ? 0 : 2) + (to == PASTA_NO_DEVICE ? 0 : 1);
    if (kind < HIP_HOST_TO_HOST || kind > HIP_DEVICE_TO_DEVICE) return PASTA_ABSENT_U32;
    if (kind == HIP_DEVICE_TO_DEVICE && from != to && from != PASTA_NO_DEVICE && to != PASTA_NO_DEVICE)
        return PASTA_COPY_peer_to_peer;
    return (uint32_t)(PASTA_COPY_host_to_host + kind);
}

static bool reads_device(uint32_t direction) { return direction >= PASTA_COPY_device_to_host; }
static bool writes_device(uint32_t direction) {
    return direction == PASTA_COPY_host_to_device || direction >= PASTA_COPY_device_to_device;
}

static void copied(frame *f, const copy *c) {
    if (f->captured || !c->width || !c->height || !c->depth) return;
    pasta_amd_place at = place_of(f->stream);
    int16_t from = c->source_device, to = c->destination_device;
    if (from == PASTA_NO_DEVICE) from = owner_of(c->source);
    if (to == PASTA_NO_DEVICE) to = owner_of(c->destination);
    uint32_t direction = direction_of(c->kind, from, to);
    pasta_memory_copy *e = PASTA_BEGIN(memory_copy, at.device, at.context, f->stream);
    if (!e) return;
    pasta_header_of(e)->flags = f->is->flags & ASYNC ? PASTA_FLAG_ASYNC : 0;
    e->source = c->source;
    e->destination = c->destination;
    e->bytes = c->width * c->height * c->depth;
    e->width = c->width;
    e->height = c->height;
    e->depth = c->depth;
    e->source_pitch = c->source_pitch;
    e->destination_pitch = c->destination_pitch;
    e->direction = direction;
    e->source_device = PASTA_NO_DEVICE;
    e->destination_device = PASTA_NO_DEVICE;
    if (direction != PASTA_ABSENT_U32) { /* what is not in the table is the stream's device's: globals, say */
        if (reads_device(direction)) e->source_device = from == PASTA_NO_DEVICE ? at.device : from;
        if (writes_device(direction)) e->destination_device = to == PASTA_NO_DEVICE ? at.device : to;
    }
    pasta_publish(e);
}

static copy copy_of(const frame *f, const void *arguments, uint64_t destination, uint64_t source) {
    copy c = {.destination = destination, .source = source, .height = 1, .depth = 1, .kind = f->is->fixed,
              .destination_device = PASTA_NO_DEVICE, .source_device = PASTA_NO_DEVICE};
    if (f->is->kind) memcpy(&c.kind, (const char *)arguments + f->is->kind - 1, sizeof c.kind);
    return c;
}

static void copied_linear(frame *f, copy c, uint64_t bytes) {
    c.width = c.source_pitch = c.destination_pitch = bytes;
    copied(f, &c);
}

#define ON_LINEAR(name, type, to, from)                                             \
    static void name(frame *f, const void *arguments) {                             \
        const type *a = arguments;                                                  \
        copied_linear(f, copy_of(f, a, to, from), a->bytes);                        \
    }
ON_LINEAR(on_copy, hip_copy, a->destination, a->source)
ON_LINEAR(on_copy_sided, hip_copy_sided, a->destination, a->source)
/* the call has the host's name of a symbol, not its address */
ON_LINEAR(on_copy_to_symbol, hip_copy_symbol, PASTA_ABSENT_U64, a->second)
ON_LINEAR(on_copy_from_symbol, hip_copy_symbol, a->first, PASTA_ABSENT_U64)
ON_LINEAR(on_from_array, hip_from_array, a->destination, a->source)
ON_LINEAR(on_to_array, hip_to_array, a->destination, a->source)
ON_LINEAR(on_from_array_1d, hip_from_array_1d, a->destination, a->source)
ON_LINEAR(on_to_array_1d, hip_to_array_1d, a->destination, a->source)
ON_LINEAR(on_array_to_array_1d, hip_array_to_array_1d, a->destination, a->source)

static void on_copy_peer(frame *f, const void *arguments) {
    const hip_copy_peer *a = arguments;
    copy c = copy_of(f, a, a->destination, a->source);
    c.destination_device = (int16_t)a->device;
    c.source_device = (int16_t)a->source_device;
    copied_linear(f, c, a->bytes);
}

static void copied_2d(frame *f, copy c, uint64_t width, uint64_t height, uint64_t to, uint64_t from) {
    c.width = width;
    c.height = height;
    c.destination_pitch = to;
    c.source_pitch = from;
    copied(f, &c);
}

#define ON_2D(name, type, to, from)                                                                   \
    static void name(frame *f, const void *arguments) {                                               \
        const type *a = arguments;                                                                    \
        copied_2d(f, copy_of(f, a, a->destination, a->source), a->width, a->height, to, from);        \
    }
/* rows of an array have no pitch that is told: they are as wide as what is copied */
ON_2D(on_copy_2d, hip_copy_2d, a->destination_pitch, a->source_pitch)
ON_2D(on_from_array_2d, hip_from_array_2d, a->pitch, a->width)
ON_2D(on_to_array_2d, hip_to_array_2d, a->width, a->pitch)
ON_2D(on_array_to_array_2d, hip_array_to_array_2d, a->width, a->width)

/* Of a box in pitched memory; an array has its handle, whatever is copied of it. */
static uint64_t address_in(const hip_side *s) {
    return s->array ? s->array : s->address + (s->z * s->height + s->y) * s->pitch + s->x;
}

static void on_copy_3d(frame *f, const void *arguments) {
    const hip_parameters_3d *p = ((const hip_copy_described *)arguments)->described;
    if (!p) return;
    uint64_t array = p->source.array ? p->source.array : p->destination.array, element = 1;
    pasta_amd_live l;
    if (array) { /* the width counts its elements */
        if (!pasta_amd_find(array, &l) || !l.element) {
            pasta_amd_count(&arrays, array);
            return;
        }
        element = l.element;
    }
    copy c = copy_of(f, arguments, address_in(&p->destination), address_in(&p->source));
    c.kind = p->kind;
    c.depth = p->depth;
    uint64_t width = p->width * element;
    copied_2d(f, c, width, p->height, p->destination.array ? width : p->destination.pitch,
              p->source.array ? width : p->source.pitch);
}

/* A side of a driver's copy says what it is. */
typedef struct side {
    int32_t type;
    uint64_t host, device, array, offset;
} side;

static uint64_t address_of(const side *s) {
    if (s->type == HIP_MEMORY_ARRAY) return s->array;
    return (s->type == HIP_MEMORY_HOST || !s->device ? s->host : s->device) + s->offset;
}

static void on_driver_copy(frame *f, const side *to, const side *from, copy *c) {
    c->destination = address_of(to);
    c->source = address_of(from);
    c->kind = HIP_DEFAULT;
    if (to->type && from->type)
        c->kind = (from->type == HIP_MEMORY_HOST ? 0 : 2) + (to->type == HIP_MEMORY_HOST ? 0 : 1);
    copied(f, c);
}

#define SIDE(s, offset) {(s).type, (s).host, (s).device, (s).array, offset}

static void on_parameters_2d(frame *f, const void *arguments) {
    const hip_parameters_2d *p = ((const hip_copy_described *)arguments)->described;
    if (!p) return;
    side to = SIDE(p->destination, p->destination.y * p->destination.pitch + p->destination.x);
    side from = SIDE(p->source, p->source.y * p->source.pitch + p->source.x);
    copy c = copy_of(f, arguments, 0, 0);
    c.width = p->width;
    c.height = p->height;
    c.destination_pitch = p->destination.pitch;
    c.source_pitch = p->source.pitch;
    on_driver_copy(f, &to, &from, &c);
}

static uint64_t offset_3d(const hip_driver_side_3d *s) { return (s->z * s->height + s->y) * s->pitch + s->x; }

static void on_parameters_3d(frame *f, const void *arguments) {
    const hip_parameters_driver *p = ((const hip_copy_described *)arguments)->described;
    if (!p) return;
    side to = SIDE(p->destination, offset_3d(&p->destination)), from = SIDE(p->source, offset_3d(&p->source));
    copy c = copy_of(f, arguments, 0, 0);
    c.width = p->width;
    c.height = p->height;
    c.depth = p->depth;
    c.destination_pitch = p->destination.pitch;
    c.source_pitch = p->source.pitch;
    on_driver_copy(f, &to, &from, &c);
}

/* ---- sets ---- */

typedef struct set {
    uint64_t address, width, height, pitch;
    uint32_t value;
} set;

static void was_set(frame *f, const set *s) {
    if (f->captured || !s->width || !s->height) return;
    pasta_amd_place at = place_of(f->stream);
    uint32_t element = f->is->element;
    pasta_memory_set *e = PASTA_BEGIN(memory_set, at.device, at.context, f->stream);
    if (!e) return;
    pasta_header_of(e)->flags = f->is->flags & ASYNC ? PASTA_FLAG_ASYNC : 0;
    e->address = s->address;
    e->bytes = s->width * s->height * element;
    e->width = s->width;
    e->height = s->height;
    e->pitch = s->pitch;
    e->element = element;
    e->value = element < 4 ? s->value & ((1u << 8 * element) - 1) : s->value;
    pasta_publish(e);
}

static void on_set(frame *f, const void *arguments) {
    const hip_set *s = arguments;
    was_set(f, &(set){s->address, s->count, 1, s->count * f->is->element, s->value});
}

static void on_set_2d(frame *f, const void *arguments) {
    const hip_set_2d *s = arguments;
    was_set(f, &(set){s->address, s->width, s->height, s->pitch, s->value});
}

/* Planes follow each other: `y` rows each, of which so many are set. */
static void on_set_3d(frame *f, const void *arguments) {
    const hip_set_3d *s = arguments;
    was_set(f, &(set){s->address, s->width, s->height * s->depth, s->pitch, s->value});
}

/* ---- waits, events ---- */

static void waited(frame *f, uint64_t handle, uint32_t what, uint64_t stream) {
    pasta_amd_place at = place_of(stream);
    uint64_t duration = pasta_now() - f->began;
    pasta_sync *e = PASTA_BEGIN(sync, at.device, at.context, stream);
    if (!e) return;
    e->handle = handle;
    e->what = what;
    e->duration = duration;
    pasta_publish(e);
}

static void on_begin_wait(frame *f, const void *arguments) {
    (void)arguments;
    f->began = pasta_now();
}

static void on_stream_wait(frame *f, const void *arguments) {
    (void)arguments;
    waited(f, f->stream, PASTA_SYNC_stream, f->stream);
}

static void on_device_wait(frame *f, const void *arguments) {
    (void)arguments;
    waited(f, PASTA_ABSENT_U64, PASTA_SYNC_device, PASTA_NO_STREAM);
}

static void on_context_wait(frame *f, const void *arguments) {
    uint64_t context = PASTA_ABSENT_U64; /* a device's: its agent */
    const char *name;
    (void)arguments;
    pasta_amd_gpu(here.device, &context, &name);
    waited(f, context, PASTA_SYNC_context, PASTA_NO_STREAM);
}

static void on_event_wait(frame *f, const void *arguments) {
    const hip_event *e = arguments;
    waited(f, e->event, PASTA_SYNC_event, PASTA_NO_STREAM);
}

static void event(pasta_event_kind kind, uint64_t handle, uint64_t stream) {
    pasta_amd_place at = place_of(stream);
    pasta_event *e = pasta_begin(kind, PASTA_SLOTS(pasta_event), at.device, at.context, stream);
    if (!e) return;
    e->handle = handle;
    pasta_publish(e);
}

static void on_event_create(frame *f, const void *arguments) {
    const hip_event_create *e = arguments;
    (void)f;
    if (e->event) event(PASTA_EVENT_event_create, *e->event, PASTA_NO_STREAM);
}

static void on_event_destroy(frame *f, const void *arguments) {
    const hip_event *e = arguments;
    uint64_t capture;
    (void)f;
    if (captures_are_open()) pasta_amd_take(&captured_events, e->event, &capture);
    event(PASTA_EVENT_event_destroy, e->event, PASTA_NO_STREAM);
}

static void on_event_record(frame *f, const void *arguments) {
    const hip_event *e = arguments;
    uint64_t capture;
    if (captures_are_open()) {
        if (pasta_amd_get(&capturing, f->stream, &capture)) {
            pasta_amd_put(&captured_events, e->event, capture);
            return;
        }
        pasta_amd_take(&captured_events, e->event, &capture);
    }
    event(PASTA_EVENT_event_record, e->event, f->stream);
}

static void on_stream_waits(frame *f, const void *arguments) {
    const hip_wait *w = arguments;
    uint64_t capture;
    if (captures_are_open() && pasta_amd_get(&captured_events, w->event, &capture)) {
        pasta_amd_put(&capturing, f->stream, capture); /* it joins the capture */
        return;
    }
    if (!f->captured) event(PASTA_EVENT_event_wait, w->event, f->stream);
}

/* ---- graphs ---- */

static void graph(frame *f, const hip_graph *g, bool begins) {
    pasta_amd_place at = place_of(f->stream);
    if (begins) f->record = pasta_next_correlation();
    pasta_graph_launch *e = begins ? PASTA_BEGIN(graph_launch, at.device, at.context, f->stream)
                                   : PASTA_BEGIN_AS(graph_launch_end, graph_launch, at.device, at.context, f->stream);
    if (!e) return;
    pasta_header_of(e)->correlation = f->record;
    e->graph = g->executable;
    e->upload = f->is->what != PASTA_AMD_GRAPH;
    pasta_publish(e);
}

static void on_graph_begin(frame *f, const void *arguments) { graph(f, arguments, true); }
static void on_graph_end(frame *f, const void *arguments) { graph(f, arguments, false); }

static void on_instantiate(frame *f, const void *arguments) {
    const hip_instantiate *i = arguments;
    pasta_amd_place at = pasta_amd_place_on(here.device);
    (void)f;
    if (!i->executable) return;
    pasta_graph_instantiate *e = PASTA_BEGIN(graph_instantiate, at.device, at.context, PASTA_NO_STREAM);
    if (!e) return;
    e->graph = i->graph;
    e->executable = *i->executable;
    pasta_publish(e);
}

/* ---- managed memory ---- */

static void managed(pasta_event_kind kind, frame *f, uint64_t address, uint64_t bytes, uint32_t advice,
                    int32_t device) {
    pasta_amd_place at = place_of(f->stream);
    if (f->captured) return;
    pasta_uvm *e = pasta_begin(kind, PASTA_SLOTS(pasta_uvm), at.device, at.context, f->stream);
    if (!e) return;
    if (kind == PASTA_EVENT_uvm_prefetch) pasta_header_of(e)->flags = PASTA_FLAG_ASYNC;
    e->address = address;
    e->bytes = bytes;
    e->advice = advice;
    e->destination = (int16_t)(device < 0 ? PASTA_NO_DEVICE : device);
    pasta_publish(e);
}

static int32_t located(int32_t where, int32_t device) {
    return where == HIP_LOCATION_DEVICE ? device : PASTA_NO_DEVICE;
}

static void on_prefetch(frame *f, const void *arguments) {
    const hip_prefetch *p = arguments;
    managed(PASTA_EVENT_uvm_prefetch, f, p->address, p->bytes, PASTA_ABSENT_U32, p->device);
}

static void on_prefetch_v2(frame *f, const void *arguments) {
    const hip_prefetch_v2 *p = arguments;
    managed(PASTA_EVENT_uvm_prefetch, f, p->address, p->bytes, PASTA_ABSENT_U32, located(p->where, p->device));
}

static void on_advise(frame *f, const void *arguments) {
    const hip_advise *a = arguments;
    managed(PASTA_EVENT_uvm_advise, f, a->address, a->bytes, (uint32_t)a->advice, a->device);
}

static void on_advise_v2(frame *f, const void *arguments) {
    const hip_advise_v2 *a = arguments;
    managed(PASTA_EVENT_uvm_advise, f, a->address, a->bytes, (uint32_t)a->advice, located(a->where, a->device));
}

static void on_attach(frame *f, const void *arguments) {
    const hip_attach *a = arguments;
    managed(PASTA_EVENT_uvm_attach, f, a->address, a->bytes, a->flags, PASTA_NO_DEVICE);
}

/* ---- the program's device, profiling ---- */

static void on_set_device(frame *f, const void *arguments) {
    (void)f;
    here.device = (int16_t)((const hip_device *)arguments)->device;
}

static void on_profiler_start(frame *f, const void *arguments) {
    (void)f, (void)arguments;
    pasta_profiling_set(true, PASTA_ORIGIN_profiler);
}

static void on_profiler_stop(frame *f, const void *arguments) {
    (void)f, (void)arguments;
    pasta_profiling_set(false, PASTA_ORIGIN_profiler);
}

/* ---- dispatch ---- */

static void enter(const call *c, const pasta_amd_record *r, const void *arguments) {
    if (here.depth == DEEPEST) here.depth = 0; /* their ends were lost */
    frame *f = &here.open[here.depth++];
    f->is = c;
    f->correlation = r->correlation;
    f->stream = arguments ? stream_of(c, arguments) : PASTA_NO_STREAM;
    f->captured = is_captured(f->stream);
    f->has_freed = false;
    if (c->what == PASTA_AMD_ALLOCATES) f->on = place_of(f->stream);
    else if (c->what != PASTA_AMD_OTHER) remember(f);
    if (c->enter && arguments) c->enter(f, arguments);
}

static void leave(const call *c, const pasta_amd_record *r, const void *arguments, bool failed) {
    uint32_t at = here.depth;
    while (at && (here.open[at - 1].is != c || here.open[at - 1].correlation != r->correlation)) at--;
    if (!at) return; /* it began before we listened */
    frame *f = &here.open[at - 1];
    if (failed && f->has_freed) pasta_amd_allocated(&f->freed, PASTA_NO_STREAM, 0, PASTA_ABSENT_U32);
    if (c->exit && arguments && (!failed || c->flags & ALWAYS)) c->exit(f, arguments);
    here.depth = at - 1;
}

static void on_hip(const pasta_amd_record *r, const pasta_amd_operation *operation) {
    const call *c = (const call *)operation;
    const pasta_amd_hip_call *h = r->payload;
    const void *arguments = PASTA_AMD_HAS(h, arguments) ? h->arguments : NULL;
    if (r->phase == PASTA_AMD_ENTER) enter(c, r, arguments);
    if (r->phase == PASTA_AMD_EXIT) leave(c, r, arguments, !PASTA_AMD_HAS(h, status) || h->status != 0);
}

/* ---- the table ---- */

#define CALL(name, ...) \
    { .is = {name, on_hip}, __VA_ARGS__ }
#define SKIP(name) \
    { .is = {name, NULL} }
#define BOTH(name, more, ...) \
    CALL(name, .flags = more, __VA_ARGS__), CALL(name "_spt", .flags = (more) | PER_THREAD, __VA_ARGS__)

#define LAUNCH(type) .what = PASTA_AMD_LAUNCHES, .stream = AT(type, stream)
#define COPY(handler) .what = PASTA_AMD_COPIES, .exit = handler
#define BY_KIND(type) .kind = AT(type, kind)
#define ON(type) .stream = AT(type, stream)
#define SET(handler, bytes) .what = PASTA_AMD_SETS, .exit = handler, .element = bytes
#define ALLOC(handler, of) .what = PASTA_AMD_ALLOCATES, .exit = handler, .memory = PASTA_MEMORY_##of
#define FREE(handler) .what = PASTA_AMD_ALLOCATES, .enter = handler
#define WAIT(handler) .enter = on_begin_wait, .exit = handler
#define FLAGS_AT(type) .options = AT(type, flags)

static const call calls[] = {
    /* what begins so may allocate for the runtime itself; the most frequent queries do not */
    CALL("hipInit"), CALL("hipDeviceGet*"), CALL("hipDeviceCan*"), CALL("hipDeviceEnable*"), CALL("hipDeviceSet*"),
    CALL("hipDevicePrimary*"), CALL("hipGetDeviceC*"), CALL("hipGetDeviceP*"), CALL("hipGetSymbol*"),
    CALL("hipModule*"), CALL("hipFunc*"), CALL("hipOccupancy*"), CALL("hipCtx*"), CALL("hipMemPool*"),
    CALL("hipMemGetInfo"), CALL("hipGraph*"), CALL("hipStream*"), CALL("hipExtStream*"), CALL("hipEvent*"),
    SKIP("hipCtxGet*"), SKIP("hipStreamGet*"), SKIP("hipStreamIs*"),
    SKIP("hipStreamQuery*"), SKIP("hipEventQuery*"),
    SKIP("hipEventElapsed*"),

    BOTH("hipLaunchKernel", 0, LAUNCH(hip_launch)),
    BOTH("hipLaunchCooperativeKernel", 0, LAUNCH(hip_launch_cooperative)),
    CALL("hipExtLaunchKernel", LAUNCH(hip_launch)),
    CALL("hipModuleLaunchKernel", LAUNCH(hip_launch_module)),
    CALL("hipModuleLaunchCooperativeKernel", LAUNCH(hip_launch_module)),
    CALL("hipExtModuleLaunchKernel", LAUNCH(hip_launch_extended)),
    CALL("hipHccModuleLaunchKernel", LAUNCH(hip_launch_extended)),

    BOTH("hipMemcpy", DEFAULT_STREAM, COPY(on_copy), BY_KIND(hip_copy)),
    BOTH("hipMemcpyAsync", ASYNC, COPY(on_copy), BY_KIND(hip_copy), ON(hip_copy)),
    CALL("hipMemcpyWithStream", COPY(on_copy), BY_KIND(hip_copy), ON(hip_copy)),
    CALL("hipMemcpyHtoD", .flags = DEFAULT_STREAM, COPY(on_copy_sided), .fixed = HIP_HOST_TO_DEVICE),
    CALL("hipMemcpyDtoH", .flags = DEFAULT_STREAM, COPY(on_copy_sided), .fixed = HIP_DEVICE_TO_HOST),
    CALL("hipMemcpyDtoD", .flags = DEFAULT_STREAM, COPY(on_copy_sided), .fixed = HIP_DEVICE_TO_DEVICE),
    CALL("hipMemcpyHtoDAsync", .flags = ASYNC, COPY(on_copy_sided), .fixed = HIP_HOST_TO_DEVICE, ON(hip_copy_sided)),
    CALL("hipMemcpyDtoHAsync", .flags = ASYNC, COPY(on_copy_sided), .fixed = HIP_DEVICE_TO_HOST, ON(hip_copy_sided)),
    CALL("hipMemcpyDtoDAsync", .flags = ASYNC, COPY(on_copy_sided), .fixed = HIP_DEVICE_TO_DEVICE, ON(hip_copy_sided)),
    BOTH("hipMemcpyToSymbol", DEFAULT_STREAM, COPY(on_copy_to_symbol), BY_KIND(hip_copy_symbol)),
    BOTH("hipMemcpyToSymbolAsync", ASYNC, COPY(on_copy_to_symbol), BY_KIND(hip_copy_symbol), ON(hip_copy_symbol)),
    BOTH("hipMemcpyFromSymbol", DEFAULT_STREAM, COPY(on_copy_from_symbol), BY_KIND(hip_copy_symbol)),
    BOTH("hipMemcpyFromSymbolAsync", ASYNC, COPY(on_copy_from_symbol), BY_KIND(hip_copy_symbol), ON(hip_copy_symbol)),
    CALL("hipMemcpyPeer", .flags = DEFAULT_STREAM, COPY(on_copy_peer), .fixed = HIP_DEVICE_TO_DEVICE),
    CALL("hipMemcpyPeerAsync", .flags = ASYNC, COPY(on_copy_peer), .fixed = HIP_DEVICE_TO_DEVICE, ON(hip_copy_peer)),
    BOTH("hipMemcpy2D", DEFAULT_STREAM, COPY(on_copy_2d), BY_KIND(hip_copy_2d)),
    BOTH("hipMemcpy2DAsync", ASYNC, COPY(on_copy_2d), BY_KIND(hip_copy_2d), ON(hip_copy_2d)),
    BOTH("hipMemcpy2DFromArray", DEFAULT_STREAM, COPY(on_from_array_2d), BY_KIND(hip_from_array_2d)),
    BOTH("hipMemcpy2DFromArrayAsync", ASYNC, COPY(on_from_array_2d), BY_KIND(hip_from_array_2d), ON(hip_from_array_2d)),
    BOTH("hipMemcpy2DToArray", DEFAULT_STREAM, COPY(on_to_array_2d), BY_KIND(hip_to_array_2d)),
    BOTH("hipMemcpy2DToArrayAsync", ASYNC, COPY(on_to_array_2d), BY_KIND(hip_to_array_2d), ON(hip_to_array_2d)),
    CALL("hipMemcpy2DArrayToArray", .flags = DEFAULT_STREAM, COPY(on_array_to_array_2d),
         BY_KIND(hip_array_to_array_2d)),
    BOTH("hipMemcpyFromArray", DEFAULT_STREAM, COPY(on_from_array), BY_KIND(hip_from_array)),
    CALL("hipMemcpyToArray", .flags = DEFAULT_STREAM, COPY(on_to_array), BY_KIND(hip_to_array)),
    CALL("hipMemcpyAtoH", .flags = DEFAULT_STREAM, COPY(on_from_array_1d), .fixed = HIP_DEVICE_TO_HOST),
    CALL("hipMemcpyAtoHAsync", .flags = ASYNC, COPY(on_from_array_1d), .fixed = HIP_DEVICE_TO_HOST,
         ON(hip_from_array_1d)),
    CALL("hipMemcpyAtoD", .flags = DEFAULT_STREAM, COPY(on_from_array_1d), .fixed = HIP_DEVICE_TO_DEVICE),
    CALL("hipMemcpyHtoA", .flags = DEFAULT_STREAM, COPY(on_to_array_1d), .fixed = HIP_HOST_TO_DEVICE),
    CALL("hipMemcpyHtoAAsync", .flags = ASYNC, COPY(on_to_array_1d), .fixed = HIP_HOST_TO_DEVICE, ON(hip_to_array_1d)),
    CALL("hipMemcpyDtoA", .flags = DEFAULT_STREAM, COPY(on_to_array_1d), .fixed = HIP_DEVICE_TO_DEVICE),
    CALL("hipMemcpyAtoA", .flags = DEFAULT_STREAM, COPY(on_array_to_array_1d), .fixed = HIP_DEVICE_TO_DEVICE),
    BOTH("hipMemcpy3D", DEFAULT_STREAM, COPY(on_copy_3d)),
    BOTH("hipMemcpy3DAsync", ASYNC, COPY(on_copy_3d), ON(hip_copy_described)),
    CALL("hipMemcpyParam2D", .flags = DEFAULT_STREAM, COPY(on_parameters_2d)),
    CALL("hipMemcpyParam2DAsync", .flags = ASYNC, COPY(on_parameters_2d), ON(hip_copy_described)),
    CALL("hipDrvMemcpy2DUnaligned", .flags = DEFAULT_STREAM, COPY(on_parameters_2d)),
    CALL("hipDrvMemcpy3D", .flags = DEFAULT_STREAM, COPY(on_parameters_3d)),
    CALL("hipDrvMemcpy3DAsync", .flags = ASYNC, COPY(on_parameters_3d), ON(hip_copy_described)),

    BOTH("hipMemset", DEFAULT_STREAM, SET(on_set, 1)),
    BOTH("hipMemsetAsync", ASYNC, SET(on_set, 1), ON(hip_set)),
    CALL("hipMemsetD8", .flags = DEFAULT_STREAM, SET(on_set, 1)),
    CALL("hipMemsetD8Async", .flags = ASYNC, SET(on_set, 1), ON(hip_set)),
    CALL("hipMemsetD16", .flags = DEFAULT_STREAM, SET(on_set, 2)),
    CALL("hipMemsetD16Async", .flags = ASYNC, SET(on_set, 2), ON(hip_set)),
    CALL("hipMemsetD32", .flags = DEFAULT_STREAM, SET(on_set, 4)),
    CALL("hipMemsetD32Async", .flags = ASYNC, SET(on_set, 4), ON(hip_set)),
    BOTH("hipMemset2D", DEFAULT_STREAM, SET(on_set_2d, 1)),
    BOTH("hipMemset2DAsync", ASYNC, SET(on_set_2d, 1), ON(hip_set_2d)),
    CALL("hipMemsetD2D8", .flags = DEFAULT_STREAM, SET(on_set_2d, 1)),
    CALL("hipMemsetD2D8Async", .flags = ASYNC, SET(on_set_2d, 1), ON(hip_set_2d)),
    CALL("hipMemsetD2D16", .flags = DEFAULT_STREAM, SET(on_set_2d, 2)),
    CALL("hipMemsetD2D16Async", .flags = ASYNC, SET(on_set_2d, 2), ON(hip_set_2d)),
    CALL("hipMemsetD2D32", .flags = DEFAULT_STREAM, SET(on_set_2d, 4)),
    CALL("hipMemsetD2D32Async", .flags = ASYNC, SET(on_set_2d, 4), ON(hip_set_2d)),
    BOTH("hipMemset3D", DEFAULT_STREAM, SET(on_set_3d, 1)),
    BOTH("hipMemset3DAsync", ASYNC, SET(on_set_3d, 1), ON(hip_set_3d)),

    CALL("hipMalloc", ALLOC(on_alloc, device)),
    CALL("hipExtMallocWithFlags", ALLOC(on_alloc, device), FLAGS_AT(hip_alloc)),
    CALL("hipMallocManaged", ALLOC(on_alloc, managed), FLAGS_AT(hip_alloc)),
    CALL("hipHostMalloc", ALLOC(on_alloc, pinned), FLAGS_AT(hip_alloc)),
    CALL("hipHostAlloc", ALLOC(on_alloc, pinned), FLAGS_AT(hip_alloc)),
    CALL("hipExtHostAlloc", ALLOC(on_alloc, pinned), FLAGS_AT(hip_alloc)),
    CALL("hipMallocHost", ALLOC(on_alloc, pinned)),
    CALL("hipMemAllocHost", ALLOC(on_alloc, pinned)),
    CALL("hipHostRegister", ALLOC(on_host_register, pinned)),
    CALL("hipMallocAsync", .flags = ASYNC, ALLOC(on_alloc, pool), ON(hip_alloc_async)),
    CALL("hipMallocFromPoolAsync", .flags = ASYNC, ALLOC(on_alloc, pool), ON(hip_alloc_from_pool)),
    CALL("hipMallocPitch", ALLOC(on_alloc_pitch, device)),
    CALL("hipMemAllocPitch", ALLOC(on_alloc_pitch, device)),
    CALL("hipMalloc3D", ALLOC(on_alloc_3d, device)),
    CALL("hipMallocArray", ALLOC(on_array, array)),
    CALL("hipMalloc3DArray", ALLOC(on_array_3d, array)),
    CALL("hipArrayCreate", ALLOC(on_array_described, array)),
    CALL("hipArray3DCreate", ALLOC(on_array_described_3d, array)),
    CALL("hipMemMap", ALLOC(on_map, device)),
    CALL("hipExternalMemoryGetMappedBuffer", ALLOC(on_mapped_buffer, external)),
    CALL("hipMemAddressReserve", ALLOC(on_reserve, virtual)),
    CALL("hipFree", FREE(on_free)),
    CALL("hipHostFree", FREE(on_free)),
    CALL("hipFreeHost", FREE(on_free)),
    CALL("hipHostUnregister", FREE(on_free)),
    CALL("hipFreeArray", FREE(on_free)),
    CALL("hipArrayDestroy", FREE(on_free)),
    CALL("hipFreeAsync", .flags = ASYNC, FREE(on_free), ON(hip_free)),
    CALL("hipMemUnmap", FREE(on_unmap)),
    CALL("hipMemAddressFree", .what = PASTA_AMD_ALLOCATES, .exit = on_unreserve),
    CALL("hipMemCreate", .what = PASTA_AMD_ALLOCATES), /* it has no address until it is mapped */
    CALL("hipMemRelease", .what = PASTA_AMD_ALLOCATES),
    CALL("hipDeviceReset", .enter = on_reset),

    CALL("hipStreamCreate", .exit = on_stream_create),
    CALL("hipStreamCreateWithFlags", .exit = on_stream_create),
    CALL("hipStreamCreateWithPriority", .exit = on_stream_create, .options = AT(hip_stream_create, priority)),
    CALL("hipExtStreamCreateWithCUMask", .exit = on_stream_create),
    CALL("hipStreamDestroy", .exit = on_stream_destroy),
    BOTH("hipStreamBeginCapture", 0, .exit = on_capture_begin, ON(hip_on_stream)),
    CALL("hipStreamBeginCaptureToGraph", .exit = on_capture_begin, ON(hip_on_stream)),
    BOTH("hipStreamEndCapture", ALWAYS, .exit = on_capture_end, ON(hip_on_stream)),
    BOTH("hipStreamSynchronize", 0, WAIT(on_stream_wait), ON(hip_on_stream)),
    CALL("hipDeviceSynchronize", WAIT(on_device_wait)),
    CALL("hipCtxSynchronize", WAIT(on_context_wait)),
    CALL("hipEventSynchronize", WAIT(on_event_wait)),
    BOTH("hipStreamWaitEvent", 0, .exit = on_stream_waits, ON(hip_wait)),
    CALL("hipEventCreate", .exit = on_event_create),
    CALL("hipEventCreateWithFlags", .exit = on_event_create),
    CALL("hipEventDestroy", .exit = on_event_destroy),
    BOTH("hipEventRecord", 0, .exit = on_event_record, ON(hip_event)),
    CALL("hipEventRecordWithFlags", .exit = on_event_record, ON(hip_event)),

    BOTH("hipGraphLaunch", ALWAYS, .what = PASTA_AMD_GRAPH, .enter = on_graph_begin, .exit = on_graph_end,
         ON(hip_graph)),
    CALL("hipGraphUpload", .flags = ALWAYS, .enter = on_graph_begin, .exit = on_graph_end, ON(hip_graph)),
    CALL("hipGraphInstantiate", .exit = on_instantiate),
    CALL("hipGraphInstantiateWithFlags", .exit = on_instantiate),
    CALL("hipGraphInstantiateWithParams", .exit = on_instantiate),

    CALL("hipMemPrefetchAsync", .exit = on_prefetch, ON(hip_prefetch)),
    CALL("hipMemPrefetchAsync_v2", .exit = on_prefetch_v2, ON(hip_prefetch_v2)),
    CALL("hipMemAdvise", .exit = on_advise),
    CALL("hipMemAdvise_v2", .exit = on_advise_v2),
    CALL("hipStreamAttachMemAsync", .exit = on_attach, ON(hip_attach)),

    CALL("hipSetDevice", .exit = on_set_device),
    CALL("hipProfilerStart", .exit = on_profiler_start),
    CALL("hipProfilerStop", .exit = on_profiler_stop),
};
const pasta_amd_table pasta_amd_hip_calls = PASTA_AMD_TABLE(calls);
