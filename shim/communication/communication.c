/* Communicators, their numbers and orders, and the records of calls. */
#define _GNU_SOURCE
#include "communication.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_COMMUNICATORS = 1024, MAX_PEERS = 1 << 16 };

static bool loaded;
static void load(void) { loaded = true; }
const pasta_component pasta_communication = {.name = "communication", .load = load};

/* ---- communicators: a hash table by handle ---- */

static pasta_comm *table[MAX_COMMUNICATORS];
static pasta_comm removed; /* marks an entry whose communicator is gone */
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;
static uint64_t last_number;

static size_t first_place(const void *handle) { return ((uintptr_t)handle >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 54; }
_Static_assert(MAX_COMMUNICATORS == 1 << (64 - 54), "places of the table");

static pasta_comm **place_of(const void *handle) {
    size_t at = first_place(handle);
    for (size_t i = 0; i < MAX_COMMUNICATORS; i++, at = (at + 1) % MAX_COMMUNICATORS) {
        pasta_comm *found = __atomic_load_n(&table[at], __ATOMIC_ACQUIRE);
        if (!found) return NULL;
        if (found != &removed && found->handle == handle) return &table[at];
    }
    return NULL;
}

pasta_comm *pasta_comm_find(const void *handle) {
    pasta_comm **place = handle ? place_of(handle) : NULL;
    pasta_comm *found = place ? __atomic_load_n(place, __ATOMIC_ACQUIRE) : NULL;
    return found && found->handle == handle ? found : NULL;
}

static bool insert(pasta_comm *made) {
    size_t at = first_place(made->handle);
    for (size_t i = 0; i < MAX_COMMUNICATORS; i++, at = (at + 1) % MAX_COMMUNICATORS)
        if (!table[at] || table[at] == &removed || table[at]->handle == made->handle) {
            __atomic_store_n(&table[at], made, __ATOMIC_RELEASE);
            return true;
        }
    return false;
}

pasta_comm *pasta_comm_add(const pasta_comm *made, const pasta_comm *parent, const char *library) {
    pasta_comm *added = malloc(sizeof *added);
    if (!added) return NULL;
    *added = *made;
    added->number = __atomic_add_fetch(&last_number, 1, __ATOMIC_RELAXED);
    added->calls = added->splits = 0;
    added->peers = NULL;
    pthread_mutex_lock(&changing);
    bool done = insert(added);
    pthread_mutex_unlock(&changing);
    if (!done) {
        free(added);
        return NULL;
    }
    uint32_t name = pasta_intern_z(library);
    pasta_communicator *e = PASTA_BEGIN(communicator, added->device, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!e) return added;
    e->communicator = added->number;
    e->id = added->id;
    if (parent) e->parent = parent->number;
    e->handle = (uint64_t)added->handle;
    e->rank = added->rank;
    e->size = added->size;
    e->library = name;
    pasta_publish(e);
    return added;
}

void pasta_comm_remove(const void *handle) {
    pthread_mutex_lock(&changing);
    pasta_comm **place = handle ? place_of(handle) : NULL;
    if (place) __atomic_store_n(place, &removed, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&changing);
}

uint64_t pasta_comm_own_id(void) {
    static uint64_t made;
    uint64_t words[] = {(uint64_t)getpid(), pasta_now(), __atomic_add_fetch(&made, 1, __ATOMIC_RELAXED)};
    return pasta_hash(words, sizeof words);
}

uint64_t pasta_comm_child_id(pasta_comm *parent, uint64_t color) {
    uint64_t words[] = {parent->id, __atomic_fetch_add(&parent->splits, 1, __ATOMIC_RELAXED), color};
    return parent->id == PASTA_ABSENT_U64 ? PASTA_ABSENT_U64 : pasta_hash(words, sizeof words);
}

/* ---- calls ---- */

static uint64_t last_group;

static __thread struct {
    uint32_t depth; /* of groups */
    uint32_t calls; /* in the group */
    uint64_t group;
    bool inside; /* of a recorded call; calls of the library to itself are not recorded */
} thread;

bool pasta_comm_records(void) { return loaded && !thread.inside; }
bool pasta_comm_in_group(void) { return thread.depth != 0; }

void pasta_comm_begin(pasta_comm_call *call) {
    thread.inside = true;
    pasta_launches_mark();
    call->begin = pasta_now();
}

/* Counters of sends and receives: NULL where their number is not known, or too large. */
static uint64_t *peers_of(pasta_comm *communicator) {
    uint64_t *peers = __atomic_load_n(&communicator->peers, __ATOMIC_ACQUIRE);
    if (peers || communicator->size > MAX_PEERS) return peers;
    uint64_t *made = calloc((size_t)communicator->size * 2, sizeof *made);
    if (!made || __atomic_compare_exchange_n(&communicator->peers, &peers, made, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return made;
    free(made);
    return peers;
}

static uint64_t next_order(const pasta_comm_call *call) {
    pasta_comm *communicator = call->communicator;
    if (!communicator) return PASTA_ABSENT_U64;
    bool receives = call->operation == PASTA_COLLECTIVE_recv;
    if (!receives && call->operation != PASTA_COLLECTIVE_send)
        return __atomic_fetch_add(&communicator->calls, 1, __ATOMIC_RELAXED);
    uint64_t *peers = call->peer < communicator->size ? peers_of(communicator) : NULL;
    return peers ? __atomic_fetch_add(&peers[2 * call->peer + receives], 1, __ATOMIC_RELAXED) : PASTA_ABSENT_U64;
}

static void publish(const pasta_comm_call *call, uint64_t order, uint64_t group, uint32_t result) {
    pasta_launch_range launched = pasta_launches_since_mark();
    uint32_t type = pasta_intern_z(call->type);
    int16_t device = call->communicator ? call->communicator->device : PASTA_NO_DEVICE;
    pasta_collective *e = PASTA_BEGIN(collective, device, PASTA_NO_CONTEXT, call->stream);
    if (!e) return;
    if (call->communicator) e->communicator = call->communicator->number;
    e->count = call->count;
    e->order = order;
    e->group = group;
    e->begin = call->begin;
    if (launched.count) e->launch = launched.first;
    e->launches = launched.count;
    e->operation = call->operation;
    e->element = call->element;
    e->type = type;
    e->peer = call->peer;
    e->result = result;
    pasta_publish(e);
}

void pasta_comm_end(const pasta_comm_call *call, uint32_t result) {
    uint64_t order = result == 0 ? next_order(call) : PASTA_ABSENT_U64;
    publish(call, order, thread.depth ? thread.group : PASTA_ABSENT_U64, result);
    thread.calls += thread.depth != 0;
    thread.inside = false;
}

void pasta_comm_group_began(void) {
    if (thread.depth++) return;
    thread.group = __atomic_add_fetch(&last_group, 1, __ATOMIC_RELAXED);
    thread.calls = 0;
}

bool pasta_comm_group_ends(pasta_comm_call *call) {
    if (!thread.depth || --thread.depth) return false;
    pasta_comm_begin(call);
    return true;
}

void pasta_comm_group_ended(const pasta_comm_call *call, uint32_t result) {
    pasta_comm_call ended = *call;
    ended.count = thread.calls;
    if (thread.calls) publish(&ended, PASTA_ABSENT_U64, thread.group, result);
    thread.inside = false;
}
