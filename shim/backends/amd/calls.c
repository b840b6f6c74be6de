/* Open calls of the HIP runtime, and the streams that they name.
 *
 * A call is open from its ENTER to its EXIT on its thread.  What the SDK reports in between (dispatches,
 * allocations, copies) belongs to it.
 */
#include <string.h>

#include "hip.h"

enum { MAX_DEPTH = 8 };
static _Thread_local struct {
    pasta_hip_frame open[MAX_DEPTH];
    uint32_t depth;
    int16_t device;      /* the thread's current one */
    uint64_t configured; /* stream of the last hipConfigureCall, plus 1; 0: none */
} here;

int16_t pasta_hip_device(void) { return here.device; }
void pasta_hip_set_device(int16_t device) { here.device = device; }
void pasta_hip_configure(uint64_t stream) { here.configured = stream + 1; }

/* ---- the call that something happens in ---- */

/* Calls whose work may be submitted by another thread, by their correlation id. */
enum { MAX_RECENT = 1024 };
static struct {
    uint64_t correlation; /* 0: being written */
    uint64_t stream, record;
    uint32_t category, flags;
} recent[MAX_RECENT];

/* Flags of the call's copy or set. */
static uint8_t flags_of(const pasta_hip_frame *f) { return f->call->flags & PASTA_HIP_ASYNC ? PASTA_FLAG_ASYNC : 0; }

static void remember(const pasta_hip_frame *f) {
    uint32_t at = f->correlation % MAX_RECENT;
    PASTA_STORE(recent[at].correlation, 0);
    PASTA_STORE(recent[at].stream, f->stream);
    PASTA_STORE(recent[at].record, f->record);
    PASTA_STORE(recent[at].category, f->call->category);
    PASTA_STORE(recent[at].flags, flags_of(f));
    PASTA_STORE(recent[at].correlation, f->correlation);
}

static bool recall(uint64_t correlation, pasta_amd_within *within) {
    uint32_t at = correlation % MAX_RECENT;
    if (!correlation || PASTA_LOAD(recent[at].correlation) != correlation) return false;
    within->stream = PASTA_LOAD(recent[at].stream);
    within->record = PASTA_LOAD(recent[at].record);
    within->category = (pasta_amd_category)PASTA_LOAD(recent[at].category);
    within->flags = (uint8_t)PASTA_LOAD(recent[at].flags);
    within->is_open = false;
    within->known = PASTA_LOAD(recent[at].correlation) == correlation;
    return within->known;
}

pasta_amd_within pasta_amd_call_of(const pasta_amd_record *record) {
    if (PASTA_LIKELY(here.depth)) {
        const pasta_hip_frame *f = &here.open[here.depth - 1];
        return (pasta_amd_within){true, (pasta_amd_category)f->call->category, f->stream, f->record, flags_of(f), true};
    }
    pasta_amd_within within;
    if (recall(record->correlation, &within) || recall(record->ancestor, &within)) return within;
    return (pasta_amd_within){.category = PASTA_AMD_OTHER, .stream = PASTA_NO_STREAM};
}

uint64_t pasta_amd_call_takes_part(uint64_t ticket) {
    pasta_hip_frame *f = &here.open[here.depth - 1];
    uint64_t before = f->parts;
    f->parts = ticket;
    return before;
}

void pasta_amd_call_allocates_on(pasta_amd_place at) {
    if (here.depth && at.device != PASTA_NO_DEVICE) here.open[here.depth - 1].on = at;
}

/* ---- streams ---- */

/* Streams are known from the calls that create them.  HIP_STREAM is never subscribed: with it SDK 1.0.0 looks up
 * the stream of each call and ends the program at an unknown handle, such as hipStreamPerThread. */
enum { DEVICE_BITS = 8 };
static pasta_amd_map known_streams; /* by handle: unique id << DEVICE_BITS | device */

_Static_assert(PASTA_AMD_DEVICES <= 1 << DEVICE_BITS, "a device's ordinal fits");

static uint64_t named_stream(uint64_t stream, uint8_t flags) {
    if (stream == HIP_LEGACY_STREAM) return 0;
    return !stream && flags & PASTA_HIP_PER_THREAD ? HIP_STREAM_PER_THREAD : stream;
}

/* Stream of the call that hipConfigureCall made ready on this thread, plus 1. */
static uint64_t take_configured(void) {
    uint64_t stream = here.configured;
    here.configured = 0;
    return stream;
}

static uint64_t stream_of(const pasta_hip_call *c, const void *arguments) {
    uint64_t stream = 0;
    if (c->flags & PASTA_HIP_CONFIGURED) return (stream = take_configured()) ? stream - 1 : PASTA_NO_STREAM;
    if (!c->stream) return c->flags & PASTA_HIP_DEFAULT_STREAM ? named_stream(0, c->flags) : PASTA_NO_STREAM;
    memcpy(&stream, (const char *)arguments + c->stream - 1, sizeof stream);
    if (c->flags & PASTA_HIP_DESCRIBED) { /* the argument points to a description that has it */
        if (!stream) return PASTA_NO_STREAM;
        stream = ((const hip_launch_description *)(uintptr_t)stream)->stream;
    }
    return named_stream(stream, c->flags);
}

/* The device that a stream was created on; false for default streams and those from before recording. */
static bool device_of_stream(uint64_t stream, int16_t *device) {
    uint64_t known;
    if (stream <= HIP_STREAM_PER_THREAD || stream == PASTA_NO_STREAM || !pasta_amd_get(&known_streams, stream, &known))
        return false;
    *device = (int16_t)(known & ((1u << DEVICE_BITS) - 1));
    return true;
}

pasta_amd_place pasta_hip_place_of(uint64_t stream) {
    int16_t device = here.device;
    device_of_stream(stream, &device);
    return pasta_amd_place_on(device);
}

pasta_amd_place pasta_amd_call_place(void) { return pasta_hip_place_of(here.open[here.depth - 1].stream); }

uint64_t pasta_amd_stream_on(int16_t device) {
    const pasta_hip_frame *f = here.depth ? &here.open[here.depth - 1] : NULL;
    int16_t its;
    for (uint32_t i = 0; f && i < f->launch_count; i++)
        if (device_of_stream(f->launches[i].stream, &its) && its == device) return f->launches[i].stream;
    return PASTA_NO_STREAM;
}

void pasta_hip_add_stream(uint64_t stream, uint64_t id) {
    pasta_amd_put(&known_streams, stream, id << DEVICE_BITS | (uint64_t)here.device);
}

uint64_t pasta_hip_remove_stream(uint64_t stream) {
    uint64_t known;
    return pasta_amd_take(&known_streams, stream, &known) ? known >> DEVICE_BITS : PASTA_ABSENT_U64;
}

/* ---- begin and end of a call ---- */

pasta_hip_frame *pasta_hip_open(const pasta_hip_call *call, uint64_t correlation, const void *arguments) {
    if (here.depth == MAX_DEPTH) here.depth = 0; /* their ends were lost */
    pasta_hip_frame *f = &here.open[here.depth++];
    f->call = call;
    f->correlation = correlation;
    f->stream = arguments ? stream_of(call, arguments) : PASTA_NO_STREAM;
    f->has_freed = f->recorded = false;
    f->parts = f->record = 0;
    f->launch_count = 0;
    if (call->category == PASTA_AMD_COPIES || call->category == PASTA_AMD_SETS) f->record = pasta_next_correlation();
    if (call->category == PASTA_AMD_ALLOCATES) f->on = pasta_hip_place_of(f->stream);
    else if (call->category != PASTA_AMD_OTHER) remember(f);
    return f;
}

pasta_hip_frame *pasta_hip_find(const pasta_hip_call *call, uint64_t correlation) {
    uint32_t at = here.depth;
    while (at && (here.open[at - 1].call != call || here.open[at - 1].correlation != correlation)) at--;
    return at ? &here.open[at - 1] : NULL;
}

void pasta_hip_unrecorded(const pasta_hip_frame *f) {
    uint32_t at = f->correlation % MAX_RECENT;
    if (PASTA_LOAD(recent[at].correlation) == f->correlation) PASTA_STORE(recent[at].record, 0);
}

void pasta_hip_close(pasta_hip_frame *f) { here.depth = (uint32_t)(f - here.open); }
