/* NCCL, and RCCL, which has the same functions: their public calls, where the program or its libraries link to them.
 *
 * A program that looks the functions up itself (dlsym), or links to them statically, is not seen here.  Declarations
 * follow nccl.h 2.32.3.  Not run with a real library and a GPU so far: tests play one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../communication.h"

typedef void *handle;
typedef struct unique_id {
    char bytes[128];
} unique_id;

enum { SUCCESS = 0, SYSTEM_ERROR = 2, IN_PROGRESS = 7 };
enum { NO_PEER = -1 };

static bool succeeded(int result) { return result == SUCCESS || result == IN_PROGRESS; }

/* ---- the library's functions ---- */

/* The function for a caller: a process may have several copies of the library, whose communicators differ. */
static void *next_of(const char *name, void *caller) {
    enum { PLACES = 16 };
    static __thread struct {
        const void *caller;
        const char *name;
        void *function;
    } known[PLACES];
    size_t at = ((uintptr_t)caller ^ (uintptr_t)name >> 3) % PLACES;
    if (PASTA_UNLIKELY(known[at].caller != caller || known[at].name != name)) {
        void *found = pasta_next_symbol(name, caller);
        if (!found) return NULL;
        known[at].caller = caller;
        known[at].name = name;
        known[at].function = found;
    }
    return known[at].function;
}

static int missing(const char *name) {
    pasta_say("%s was called, but no loaded library defines it: the call returns a system error", name);
    return SYSTEM_ERROR;
}

/* `call`: the function of this name that the caller would reach without this library. */
#define FIND(type, name)                                                 \
    type *call;                                                          \
    *(void **)&call = next_of(name, __builtin_return_address(0));        \
    if (PASTA_UNLIKELY(!call)) return missing(name);

/* "NCCL 2.27.3", of the library that has a function. */
static const char *library_of(void *function, char *text, size_t size) {
    Dl_info info;
    int (*get_version)(int *version) = NULL;
    int version = 0;
    bool located = dladdr(function, &info) != 0 && info.dli_fname;
    void *library = located ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (library) *(void **)&get_version = dlsym(library, "ncclGetVersion");
    if (library) dlclose(library);
    const char *title = located && strstr(info.dli_fname, "rccl") ? "RCCL" : "NCCL";
    if (!get_version || get_version(&version) != SUCCESS) return title;
    int major = version < 10000 ? version / 1000 : version / 10000;
    int minor = version < 10000 ? version / 100 % 10 : version / 100 % 100;
    snprintf(text, size, "%s %d.%d.%d", title, major, minor, version % 100);
    return text;
}

/* A property of a communicator, or -1. */
static int64_t property(const char *name, handle communicator, void *caller) {
    int (*get)(handle communicator, int *value);
    int value = -1;
    *(void **)&get = next_of(name, caller);
    return get && get(communicator, &value) == SUCCESS ? value : -1;
}

static pasta_comm *add(handle made, uint64_t id, int64_t rank, int64_t size, const pasta_comm *parent, void *caller) {
    char text[64];
    pasta_comm described = {.handle = made, .id = id};
    if (rank < 0) rank = property("ncclCommUserRank", made, caller);
    if (size < 0) size = property("ncclCommCount", made, caller);
    described.rank = (uint32_t)rank;
    described.size = (uint32_t)size;
    described.device = (int16_t)property("ncclCommCuDevice", made, caller);
    return pasta_comm_add(&described, parent, library_of(next_of("ncclCommCount", caller), text, sizeof text));
}

/* A communicator of a call; one that was created unseen is recorded now. */
static pasta_comm *communicator_of(handle given, void *caller) {
    pasta_comm *found = pasta_comm_find(given);
    return found || !given ? found : add(given, PASTA_ABSENT_U64, -1, -1, NULL, caller);
}

/* ---- creation: inside of a group, handles are there when it ends ---- */

typedef struct creation {
    struct creation *next;
    handle *made;
    uint64_t id;
    int64_t rank, size;
    pasta_comm *parent;
} creation;

static __thread creation *pending; /* of this thread's group, the first one first */

static void created(handle *made, uint64_t id, int64_t rank, int64_t size, pasta_comm *parent, void *caller) {
    if (!made) return;
    if (!pasta_comm_in_group()) {
        if (*made) add(*made, id, rank, size, parent, caller);
        return;
    }
    creation **last = &pending, *waiting = malloc(sizeof *waiting);
    if (!waiting) return;
    *waiting = (creation){NULL, made, id, rank, size, parent};
    while (*last) last = &(*last)->next; /* one for each device of the process */
    *last = waiting;
}

static void created_in_group(bool good, void *caller) {
    creation *waiting = pending;
    pending = NULL;
    for (creation *next; waiting; waiting = next) {
        next = waiting->next;
        if (good) created(waiting->made, waiting->id, waiting->rank, waiting->size, waiting->parent, caller);
        free(waiting);
    }
}

typedef int init_rank_function(handle *made, int size, unique_id id, int rank);
typedef int init_config_function(handle *made, int size, unique_id id, int rank, void *config);
typedef int init_scalable_function(handle *made, int size, int rank, int ids, unique_id *id, void *config);
typedef int init_all_function(handle *made, int devices, const int *device);
typedef int split_function(handle parent, int color, int key, handle *made, void *config);
typedef int shrink_function(handle parent, int *excluded, int count, handle *made, void *config, int flags);
typedef int end_function(handle communicator);

PASTA_EXPORT init_rank_function pasta_nccl_init_rank __asm__("ncclCommInitRank");
PASTA_EXPORT init_config_function pasta_nccl_init_config __asm__("ncclCommInitRankConfig");
PASTA_EXPORT init_scalable_function pasta_nccl_init_scalable __asm__("ncclCommInitRankScalable");
PASTA_EXPORT init_all_function pasta_nccl_init_all __asm__("ncclCommInitAll");
PASTA_EXPORT split_function pasta_nccl_split __asm__("ncclCommSplit");
PASTA_EXPORT shrink_function pasta_nccl_shrink __asm__("ncclCommShrink");
PASTA_EXPORT end_function pasta_nccl_destroy __asm__("ncclCommDestroy");
PASTA_EXPORT end_function pasta_nccl_abort __asm__("ncclCommAbort");

int pasta_nccl_init_rank(handle *made, int size, unique_id id, int rank) {
    FIND(init_rank_function, "ncclCommInitRank")
    int result = call(made, size, id, rank);
    if (succeeded(result) && pasta_comm_records())
        created(made, pasta_hash(&id, sizeof id), rank, size, NULL, __builtin_return_address(0));
    return result;
}

int pasta_nccl_init_config(handle *made, int size, unique_id id, int rank, void *config) {
    FIND(init_config_function, "ncclCommInitRankConfig")
    int result = call(made, size, id, rank, config);
    if (succeeded(result) && pasta_comm_records())
        created(made, pasta_hash(&id, sizeof id), rank, size, NULL, __builtin_return_address(0));
    return result;
}

int pasta_nccl_init_scalable(handle *made, int size, int rank, int ids, unique_id *id, void *config) {
    FIND(init_scalable_function, "ncclCommInitRankScalable")
    uint64_t hash = id && ids > 0 ? pasta_hash(id, (size_t)ids * sizeof *id) : PASTA_ABSENT_U64;
    int result = call(made, size, rank, ids, id, config);
    if (succeeded(result) && pasta_comm_records()) created(made, hash, rank, size, NULL, __builtin_return_address(0));
    return result;
}

int pasta_nccl_init_all(handle *made, int devices, const int *device) {
    FIND(init_all_function, "ncclCommInitAll")
    int result = call(made, devices, device);
    uint64_t id = pasta_comm_own_id();
    for (int i = 0; i < devices && made && succeeded(result) && pasta_comm_records(); i++)
        created(&made[i], id, i, devices, NULL, __builtin_return_address(0));
    return result;
}

/* Made from another one, at the same point in all its ranks. */
static void derived(handle *made, handle from, uint64_t color, int result, void *caller) {
    if (!pasta_comm_records()) return;
    pasta_comm *parent = communicator_of(from, caller);
    uint64_t id = parent ? pasta_comm_child_id(parent, color) : PASTA_ABSENT_U64;
    if (succeeded(result)) created(made, id, -1, -1, parent, caller);
}

int pasta_nccl_split(handle parent, int color, int key, handle *made, void *config) {
    FIND(split_function, "ncclCommSplit")
    int result = call(parent, color, key, made, config);
    derived(made, parent, (uint32_t)color, result, __builtin_return_address(0));
    return result;
}

int pasta_nccl_shrink(handle parent, int *excluded, int count, handle *made, void *config, int flags) {
    FIND(shrink_function, "ncclCommShrink")
    uint64_t color = UINT64_C(1) << 32; /* no color of a split */
    if (excluded && count > 0) color ^= pasta_hash(excluded, (size_t)count * sizeof *excluded);
    int result = call(parent, excluded, count, made, config, flags);
    derived(made, parent, color, result, __builtin_return_address(0));
    return result;
}

/* Forgotten first: another thread may get the same handle at once. */
int pasta_nccl_destroy(handle communicator) {
    FIND(end_function, "ncclCommDestroy")
    pasta_comm_remove(communicator);
    return call(communicator);
}

int pasta_nccl_abort(handle communicator) {
    FIND(end_function, "ncclCommAbort")
    pasta_comm_remove(communicator);
    return call(communicator);
}

/* ---- communication ---- */

static const struct {
    const char *name;
    uint32_t bytes;
} types[] = {
    {"int8", 1},    {"uint8", 1},   {"int32", 4},   {"uint32", 4},   {"int64", 8},       {"uint64", 8},
    {"float16", 2}, {"float32", 4}, {"float64", 8}, {"bfloat16", 2}, {"float8_e4m3", 1}, {"float8_e5m2", 1},
};

static pasta_comm_call call_of(pasta_collective_operation operation, size_t count, int type, int peer, handle communicator,
                               handle stream, void *caller) {
    bool known = type >= 0 && (size_t)type < sizeof types / sizeof *types;
    return (pasta_comm_call){
        .communicator = communicator_of(communicator, caller),
        .operation = operation,
        .count = count,
        .stream = (uint64_t)stream,
        .element = known ? types[type].bytes : PASTA_ABSENT_U32,
        .type = known ? types[type].name : NULL,
        .peer = (uint32_t)peer,
    };
}

/* Makes a call, recorded with a count, type and peer. */
#define RECORDED(operation, count, type, peer, ...)                                                                     \
    if (!pasta_comm_records()) return call(__VA_ARGS__);                                                                \
    pasta_comm_call recorded =                                                                                          \
        call_of(PASTA_COLLECTIVE_##operation, count, type, peer, communicator, stream, __builtin_return_address(0));    \
    pasta_comm_begin(&recorded);                                                                                        \
    int result = call(__VA_ARGS__);                                                                                     \
    pasta_comm_end(&recorded, result == IN_PROGRESS ? SUCCESS : (uint32_t)result);                                      \
    return result;

typedef int all_reduce_function(const void *from, void *to, size_t count, int type, int reduction, handle communicator,
                                handle stream); /* and reduce_scatter */
typedef int reduce_function(const void *from, void *to, size_t count, int type, int reduction, int root,
                            handle communicator, handle stream);
typedef int exchange_function(const void *from, void *to, size_t count, int type, handle communicator, handle stream);
typedef int rooted_function(const void *from, void *to, size_t count, int type, int root, handle communicator,
                            handle stream);
typedef int in_place_function(void *buffer, size_t count, int type, int root, handle communicator, handle stream);
typedef int send_function(const void *from, size_t count, int type, int peer, handle communicator, handle stream);
typedef int receive_function(void *to, size_t count, int type, int peer, handle communicator, handle stream);
typedef int group_function(void);

PASTA_EXPORT all_reduce_function pasta_nccl_all_reduce __asm__("ncclAllReduce");
PASTA_EXPORT all_reduce_function pasta_nccl_reduce_scatter __asm__("ncclReduceScatter");
PASTA_EXPORT reduce_function pasta_nccl_reduce __asm__("ncclReduce");
PASTA_EXPORT rooted_function pasta_nccl_broadcast __asm__("ncclBroadcast");
PASTA_EXPORT in_place_function pasta_nccl_bcast __asm__("ncclBcast");
PASTA_EXPORT exchange_function pasta_nccl_all_gather __asm__("ncclAllGather");
PASTA_EXPORT exchange_function pasta_nccl_all_to_all __asm__("ncclAlltoAll");
PASTA_EXPORT exchange_function pasta_rccl_all_to_all __asm__("ncclAllToAll");
PASTA_EXPORT rooted_function pasta_nccl_gather __asm__("ncclGather");
PASTA_EXPORT rooted_function pasta_nccl_scatter __asm__("ncclScatter");
PASTA_EXPORT send_function pasta_nccl_send __asm__("ncclSend");
PASTA_EXPORT receive_function pasta_nccl_receive __asm__("ncclRecv");
PASTA_EXPORT group_function pasta_nccl_group_start __asm__("ncclGroupStart");
PASTA_EXPORT group_function pasta_nccl_group_end __asm__("ncclGroupEnd");

int pasta_nccl_all_reduce(const void *from, void *to, size_t count, int type, int reduction, handle communicator,
                          handle stream) {
    FIND(all_reduce_function, "ncclAllReduce")
    RECORDED(all_reduce, count, type, NO_PEER, from, to, count, type, reduction, communicator, stream)
}

int pasta_nccl_reduce_scatter(const void *from, void *to, size_t count, int type, int reduction, handle communicator,
                              handle stream) {
    FIND(all_reduce_function, "ncclReduceScatter")
    RECORDED(reduce_scatter, count, type, NO_PEER, from, to, count, type, reduction, communicator, stream)
}

int pasta_nccl_reduce(const void *from, void *to, size_t count, int type, int reduction, int root, handle communicator,
                      handle stream) {
    FIND(reduce_function, "ncclReduce")
    RECORDED(reduce, count, type, root, from, to, count, type, reduction, root, communicator, stream)
}

int pasta_nccl_broadcast(const void *from, void *to, size_t count, int type, int root, handle communicator, handle stream) {
    FIND(rooted_function, "ncclBroadcast")
    RECORDED(broadcast, count, type, root, from, to, count, type, root, communicator, stream)
}

int pasta_nccl_bcast(void *buffer, size_t count, int type, int root, handle communicator, handle stream) {
    FIND(in_place_function, "ncclBcast")
    RECORDED(broadcast, count, type, root, buffer, count, type, root, communicator, stream)
}

int pasta_nccl_all_gather(const void *from, void *to, size_t count, int type, handle communicator, handle stream) {
    FIND(exchange_function, "ncclAllGather")
    RECORDED(all_gather, count, type, NO_PEER, from, to, count, type, communicator, stream)
}

int pasta_nccl_all_to_all(const void *from, void *to, size_t count, int type, handle communicator, handle stream) {
    FIND(exchange_function, "ncclAlltoAll")
    RECORDED(all_to_all, count, type, NO_PEER, from, to, count, type, communicator, stream)
}

int pasta_rccl_all_to_all(const void *from, void *to, size_t count, int type, handle communicator, handle stream) {
    FIND(exchange_function, "ncclAllToAll")
    RECORDED(all_to_all, count, type, NO_PEER, from, to, count, type, communicator, stream)
}

int pasta_nccl_gather(const void *from, void *to, size_t count, int type, int root, handle communicator, handle stream) {
    FIND(rooted_function, "ncclGather")
    RECORDED(gather, count, type, root, from, to, count, type, root, communicator, stream)
}

int pasta_nccl_scatter(const void *from, void *to, size_t count, int type, int root, handle communicator, handle stream) {
    FIND(rooted_function, "ncclScatter")
    RECORDED(scatter, count, type, root, from, to, count, type, root, communicator, stream)
}

int pasta_nccl_send(const void *from, size_t count, int type, int peer, handle communicator, handle stream) {
    FIND(send_function, "ncclSend")
    RECORDED(send, count, type, peer, from, count, type, peer, communicator, stream)
}

int pasta_nccl_receive(void *to, size_t count, int type, int peer, handle communicator, handle stream) {
    FIND(receive_function, "ncclRecv")
    RECORDED(recv, count, type, peer, to, count, type, peer, communicator, stream)
}

int pasta_nccl_group_start(void) {
    FIND(group_function, "ncclGroupStart")
    int result = call();
    if (result == SUCCESS && pasta_comm_records()) pasta_comm_group_began();
    return result;
}

int pasta_nccl_group_end(void) {
    FIND(group_function, "ncclGroupEnd")
    pasta_comm_call group = {.operation = PASTA_COLLECTIVE_group, .element = PASTA_ABSENT_U32, .peer = PASTA_ABSENT_U32,
                             .stream = PASTA_NO_STREAM};
    if (!pasta_comm_records() || !pasta_comm_group_ends(&group)) return call();
    int result = call();
    pasta_comm_group_ended(&group, result == IN_PROGRESS ? SUCCESS : (uint32_t)result);
    created_in_group(succeeded(result), __builtin_return_address(0));
    return result;
}
