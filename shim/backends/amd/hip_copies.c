/* Copies and sets of HIP calls. */
#include <string.h>

#include "hip.h"

typedef struct copy {
    uint64_t destination, source, width, height, depth, destination_pitch, source_pitch;
    int32_t kind;
    int16_t destination_device, source_device; /* the call's arguments; absent: -1 */
    bool of_arrays; /* the width counts their elements */
} copy;

static pasta_amd_odd arrays = {.what = "copies with arrays whose allocation was not seen, which are not recorded"};

/* Device that holds the address; absent for host memory. */
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

static void copied(pasta_hip_frame *f, const copy *c) {
    if (f->captured || !c->width || !c->height || !c->depth) return;
    pasta_amd_place at = pasta_hip_place_of(f->stream);
    int16_t from = c->source_device, to = c->destination_device;
    if (from == PASTA_NO_DEVICE) from = owner_of(c->source);
    if (to == PASTA_NO_DEVICE) to = owner_of(c->destination);
    uint32_t direction = direction_of(c->kind, from, to);
    pasta_memory_copy *e = PASTA_BEGIN(memory_copy, at.device, at.context, f->stream);
    if (!e) return;
    pasta_header_of(e)->flags = f->call->flags & PASTA_HIP_ASYNC ? PASTA_FLAG_ASYNC : 0;
    pasta_header_of(e)->correlation = f->record;
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
    if (direction != PASTA_ABSENT_U32) { /* memory that is not in the table, such as globals, is on the stream's device */
        if (reads_device(direction)) e->source_device = from == PASTA_NO_DEVICE ? at.device : from;
        if (writes_device(direction)) e->destination_device = to == PASTA_NO_DEVICE ? at.device : to;
    }
    pasta_publish(e);
    f->recorded = true;
}

static copy copy_of(const pasta_hip_frame *f, const void *arguments, uint64_t destination, uint64_t source) {
    copy c = {.destination = destination, .source = source, .height = 1, .depth = 1, .kind = f->call->fixed,
              .destination_device = PASTA_NO_DEVICE, .source_device = PASTA_NO_DEVICE};
    if (f->call->kind) memcpy(&c.kind, (const char *)arguments + f->call->kind - 1, sizeof c.kind);
    return c;
}

static void copied_linear(pasta_hip_frame *f, copy c, uint64_t bytes) {
    c.width = c.source_pitch = c.destination_pitch = bytes;
    copied(f, &c);
}

#define ON_LINEAR(name, type, to, from)                      \
    void name(pasta_hip_frame *f, const void *arguments) {   \
        const type *a = arguments;                           \
        copied_linear(f, copy_of(f, a, to, from), a->bytes); \
    }
ON_LINEAR(pasta_hip_on_copy, hip_copy, a->destination, a->source)
ON_LINEAR(pasta_hip_on_copy_sided, hip_copy_sided, a->destination, a->source)
/* the call has the host's symbol, not its address */
ON_LINEAR(pasta_hip_on_copy_to_symbol, hip_copy_symbol, PASTA_ABSENT_U64, a->second)
ON_LINEAR(pasta_hip_on_copy_from_symbol, hip_copy_symbol, a->first, PASTA_ABSENT_U64)
ON_LINEAR(pasta_hip_on_from_array, hip_from_array, a->destination, a->source)
ON_LINEAR(pasta_hip_on_to_array, hip_to_array, a->destination, a->source)
ON_LINEAR(pasta_hip_on_from_array_1d, hip_from_array_1d, a->destination, a->source)
ON_LINEAR(pasta_hip_on_to_array_1d, hip_to_array_1d, a->destination, a->source)
ON_LINEAR(pasta_hip_on_array_to_array_1d, hip_array_to_array_1d, a->destination, a->source)

void pasta_hip_on_copy_peer(pasta_hip_frame *f, const void *arguments) {
    const hip_copy_peer *a = arguments;
    copy c = copy_of(f, a, a->destination, a->source);
    c.destination_device = (int16_t)a->device;
    c.source_device = (int16_t)a->source_device;
    copied_linear(f, c, a->bytes);
}

static void copied_2d(pasta_hip_frame *f, copy c, uint64_t width, uint64_t height, uint64_t to, uint64_t from) {
    c.width = width;
    c.height = height;
    c.destination_pitch = to;
    c.source_pitch = from;
    copied(f, &c);
}

#define ON_2D(name, type, to, from)                                                            \
    void name(pasta_hip_frame *f, const void *arguments) {                                     \
        const type *a = arguments;                                                             \
        copied_2d(f, copy_of(f, a, a->destination, a->source), a->width, a->height, to, from); \
    }
/* the pitch of an array is unknown: use the width of the copy */
ON_2D(pasta_hip_on_copy_2d, hip_copy_2d, a->destination_pitch, a->source_pitch)
ON_2D(pasta_hip_on_from_array_2d, hip_from_array_2d, a->pitch, a->width)
ON_2D(pasta_hip_on_to_array_2d, hip_to_array_2d, a->width, a->pitch)
ON_2D(pasta_hip_on_array_to_array_2d, hip_array_to_array_2d, a->width, a->width)

/* Address of a box in pitched memory; of an array its handle. */
static uint64_t address_in(const hip_side *s) {
    return s->array ? s->array : s->address + (s->z * s->height + s->y) * s->pitch + s->x;
}

void pasta_hip_on_copy_3d(pasta_hip_frame *f, const void *arguments) {
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

/* A side of a driver copy, with its type. */
typedef struct side {
    int32_t type;
    uint64_t host, device, array, offset;
} side;

static uint64_t address_of(const side *s) {
    if (s->type == HIP_MEMORY_ARRAY) return s->array;
    return (s->type == HIP_MEMORY_HOST || !s->device ? s->host : s->device) + s->offset;
}

static void on_driver_copy(pasta_hip_frame *f, const side *to, const side *from, copy *c) {
    c->destination = address_of(to);
    c->source = address_of(from);
    c->kind = HIP_DEFAULT;
    if (to->type && from->type)
        c->kind = (from->type == HIP_MEMORY_HOST ? 0 : 2) + (to->type == HIP_MEMORY_HOST ? 0 : 1);
    copied(f, c);
}

#define SIDE(s, offset) {(s).type, (s).host, (s).device, (s).array, offset}

void pasta_hip_on_parameters_2d(pasta_hip_frame *f, const void *arguments) {
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

void pasta_hip_on_parameters_3d(pasta_hip_frame *f, const void *arguments) {
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

static void was_set(pasta_hip_frame *f, const set *s) {
    if (f->captured || !s->width || !s->height) return;
    pasta_amd_place at = pasta_hip_place_of(f->stream);
    uint32_t element = f->call->element;
    pasta_memory_set *e = PASTA_BEGIN(memory_set, at.device, at.context, f->stream);
    if (!e) return;
    pasta_header_of(e)->flags = f->call->flags & PASTA_HIP_ASYNC ? PASTA_FLAG_ASYNC : 0;
    pasta_header_of(e)->correlation = f->record;
    e->address = s->address;
    e->bytes = s->width * s->height * element;
    e->width = s->width;
    e->height = s->height;
    e->pitch = s->pitch;
    e->element = element;
    e->value = element < 4 ? s->value & ((1u << 8 * element) - 1) : s->value;
    pasta_publish(e);
    f->recorded = true;
}

void pasta_hip_on_set(pasta_hip_frame *f, const void *arguments) {
    const hip_set *s = arguments;
    was_set(f, &(set){s->address, s->count, 1, s->count * f->call->element, s->value});
}

void pasta_hip_on_set_2d(pasta_hip_frame *f, const void *arguments) {
    const hip_set_2d *s = arguments;
    was_set(f, &(set){s->address, s->width, s->height, s->pitch, s->value});
}

/* Planes of `y` rows each, of which `height` are set. */
void pasta_hip_on_set_3d(pasta_hip_frame *f, const void *arguments) {
    const hip_set_3d *s = arguments;
    was_set(f, &(set){s->address, s->width, s->height * s->depth, s->pitch, s->value});
}
