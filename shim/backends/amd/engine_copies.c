/* Copy engines: copies without a HIP call, and device times of all copies.
 *
 * A copy of the SDK begins on the thread that submits it and ends on one of the SDK's, with its times.  Inside a HIP
 * copy or set it is a part of that, whose record is published when the call has succeeded: a part may end before.
 */
#include "source.h"

/* ---- copies that have not ended, or whose record is not published yet ---- */

enum { RECORDED = 1, ENDED = 2 }; /* steps; the last one publishes the times */

typedef struct work {
    uint64_t correlation; /* 0: its copy or set was not recorded */
    uint64_t stream, start, end, bytes;
    pasta_amd_place at;
    pasta_copy_direction direction;
    uint8_t flags;
} work;

typedef struct followed {
    uint64_t ticket;  /* 0: free */
    uint64_t earlier; /* ticket of another part of the same call; 0: none */
    uint32_t steps;
    work work;
} followed;

enum { FOLLOWED = 16384, TRIES = 16 };
#define TAKEN UINT64_MAX
static followed table[FOLLOWED];
static pasta_amd_odd crowded = {.what = "copies without device times: too many are in flight"};
static pasta_amd_odd timeless = {.what = "copies that ended without times"};

/* A free entry with a ticket of its own; NULL where many are in flight. */
static followed *take_entry(uint64_t *ticket) {
    static uint64_t tickets;
    for (int i = 0; i < TRIES; i++) {
        uint64_t mine = __atomic_add_fetch(&tickets, 1, __ATOMIC_RELAXED), free = 0;
        followed *f = &table[mine % FOLLOWED];
        if (!__atomic_compare_exchange_n(&f->ticket, &free, TAKEN, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) continue;
        *ticket = mine;
        return f;
    }
    return NULL;
}

static followed *find(uint64_t ticket) {
    followed *f = &table[ticket % FOLLOWED];
    return ticket && ticket != TAKEN && PASTA_LOAD(f->ticket) == ticket ? f : NULL;
}

static void publish(const work *w) {
    if (!w->correlation || !w->start) return;
    pasta_copy_complete *e = PASTA_BEGIN(copy_complete, w->at.device, w->at.context, w->stream);
    if (!e) return;
    pasta_header_of(e)->flags = w->flags;
    pasta_header_of(e)->correlation = w->correlation;
    e->start = w->start;
    e->end = w->end;
    e->bytes = w->bytes;
    e->direction = w->direction;
    pasta_publish(e);
}

static void step(followed *f, uint32_t mine) {
    uint32_t before = __atomic_fetch_or(&f->steps, mine, __ATOMIC_ACQ_REL);
    if ((before | mine) != (RECORDED | ENDED)) return;
    publish(&f->work);
    PASTA_STORE(f->ticket, 0);
}

void pasta_amd_parts_recorded(uint64_t last, bool recorded) {
    for (uint64_t ticket = last; ticket;) {
        followed *f = find(ticket);
        if (!f) return;
        ticket = f->earlier;
        if (!recorded) f->work.correlation = 0;
        step(f, RECORDED);
    }
}

/* ---- begin and end of an engine's copy ---- */

static pasta_copy_direction direction_between(int16_t from, int16_t to) { /* devices; absent: the host */
    if (from == PASTA_NO_DEVICE) return to == PASTA_NO_DEVICE ? PASTA_COPY_host_to_host : PASTA_COPY_host_to_device;
    if (to == PASTA_NO_DEVICE) return PASTA_COPY_device_to_host;
    return from == to ? PASTA_COPY_device_to_device : PASTA_COPY_peer_to_peer;
}

/* The record of a copy that is no part of a HIP copy: of programs that use HSA, and of graphs' nodes. */
static bool record_copy(const pasta_amd_memory_copy *c, const work *w, int16_t from, int16_t to) {
    pasta_memory_copy *e = PASTA_BEGIN(memory_copy, w->at.device, w->at.context, w->stream);
    if (!e) return false;
    pasta_header_of(e)->flags = w->flags;
    pasta_header_of(e)->correlation = w->correlation;
    if (PASTA_AMD_HAS(c, source)) {
        e->source = c->source;
        e->destination = c->destination;
    }
    e->bytes = e->width = c->copied;
    e->height = e->depth = 1;
    e->direction = w->direction;
    e->source_device = from;
    e->destination_device = to;
    pasta_publish(e);
    return true;
}

/* `recorded`: else its record comes at the end of the call that is open. */
static void follow(const work *w, bool recorded, uint64_t *user) {
    uint64_t ticket;
    followed *f = take_entry(&ticket);
    if (!f) {
        pasta_amd_count(&crowded, w->correlation);
        return;
    }
    f->work = *w;
    f->earlier = recorded ? 0 : pasta_amd_call_takes_part(ticket);
    f->steps = recorded ? RECORDED : 0;
    PASTA_STORE(f->ticket, ticket);
    *user = ticket;
}

static void begin(const pasta_amd_record *r, const pasta_amd_memory_copy *c) {
    pasta_amd_within within = pasta_amd_call_of(r);
    bool is_part = within.category == PASTA_AMD_COPIES || within.category == PASTA_AMD_SETS;
    pasta_amd_place from = pasta_amd_place_of(c->source_agent), to = pasta_amd_place_of(c->destination_agent);
    work w = {.stream = within.stream, .at = to.device == PASTA_NO_DEVICE ? from : to, .bytes = c->copied,
              .direction = direction_between(from.device, to.device)};
    *r->user = 0;
    if (is_part) {
        w.correlation = within.record;
        w.flags = within.flags;
        if (within.is_open) w.at = pasta_amd_call_place();
        if (within.category == PASTA_AMD_SETS) w.direction = PASTA_ABSENT_U32;
    } else {
        w.correlation = pasta_next_correlation();
        w.flags = within.category == PASTA_AMD_GRAPH ? PASTA_FLAG_GRAPH : within.known ? PASTA_FLAG_INTERNAL : 0;
        w.flags |= PASTA_FLAG_ASYNC;
        if (!record_copy(c, &w, from.device, to.device)) return;
    }
    if (w.correlation) follow(&w, !(is_part && within.is_open), r->user);
}

static void end(const pasta_amd_record *r, const pasta_amd_memory_copy *c) {
    followed *f = find(*r->user);
    if (!f) return; /* not recorded, or counted as crowded */
    if (c->start && c->end) {
        f->work.start = pasta_amd_time(c->start);
        f->work.end = pasta_amd_time(c->end);
    } else {
        pasta_amd_count(&timeless, r->correlation);
    }
    step(f, ENDED);
}

static void on_copy(const pasta_amd_record *r, const pasta_amd_operation *operation) {
    (void)operation;
    const pasta_amd_memory_copy *c = r->payload;
    if (!PASTA_AMD_HAS(c, copied)) return;
    if (r->phase == PASTA_AMD_ENTER) begin(r, c);
    if (r->phase == PASTA_AMD_EXIT) end(r, c);
}

/* 0.5 has the names without their common prefix. */
static const pasta_amd_operation copies[] = {
    {"MEMORY_COPY_HOST_TO_*", on_copy},   {"HOST_TO_*", on_copy},
    {"MEMORY_COPY_DEVICE_TO_*", on_copy}, {"DEVICE_TO_*", on_copy},
};
const pasta_amd_table pasta_amd_copies = PASTA_AMD_TABLE(copies);
