/* An allocator of managed memory for frameworks that take one as a library: setting torch.managed.  Not run on a GPU
 * so far: tests play a driver.
 *
 * As frameworks' own allocators do, it hands out parts of larger allocations, and keeps what is freed for the stream
 * that it was used in: without an event, no other stream may use it.  So tensors and allocations differ, and each
 * tensor is recorded.  Memory that other streams used too waits, once it is freed, until the device is idle: it is
 * awaited before the pool would grow.  Segments are given back to the driver only when memory runs out. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#include "../../include/pasta_framework.h"
#include "../../include/pasta_source.h"

typedef int alloc_function(uint64_t *address, size_t bytes, unsigned flags);
typedef int free_function(uint64_t address);
typedef int synchronize_function(void);

PASTA_EXPORT int pasta_managed_ready(void);
PASTA_EXPORT void *pasta_managed_alloc(ptrdiff_t bytes, int device, void *stream);
PASTA_EXPORT void pasta_managed_free(void *address, size_t bytes, int device, void *stream);
PASTA_EXPORT void pasta_managed_record_stream(void *address, void *stream);

enum { ATTACH_GLOBAL = 1, BUCKETS = 64, HASHES = 1 << 14 };
#define GRANULE ((uint64_t)512)
#define SEGMENT ((uint64_t)32 << 20)
#define LARGE ((uint64_t)16 << 20) /* from here on a segment of its own */
#define LARGE_GRANULE ((uint64_t)2 << 20)

/* Part of a segment; parts are linked in address order. */
struct part {
    uint64_t address, bytes;
    struct part *before, *after;
    struct part **list, *previous, *next; /* in a list of free parts, or of used ones by address */
    void *stream;
    int device;
    bool free;
    bool shared; /* another stream uses it too */
};

static struct {
    pthread_mutex_t mutex; /* never held during a call of the driver */
    struct part *unused[BUCKETS]; /* by the logarithm of their bytes */
    struct part *used[HASHES];
    struct part *waiting; /* shared ones that were freed */
    uint64_t allocated, reserved;
    bool inherited; /* by a forked child: it has no driver, and the lists may be in the middle of a change */
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* ---- the driver ---- */

static alloc_function *driver_alloc;
static free_function *driver_free;
static synchronize_function *driver_synchronize;

static void forked(void) { pool.inherited = true; }

/* Whether there is a driver.  Called before the first allocation. */
int pasta_managed_ready(void) {
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!library) return 0;
    *(void **)&driver_alloc = dlsym(library, "cuMemAllocManaged");
    *(void **)&driver_free = dlsym(library, "cuMemFree_v2");
    *(void **)&driver_synchronize = dlsym(library, "cuCtxSynchronize");
    return driver_alloc && driver_free && driver_synchronize && !pthread_atfork(NULL, NULL, forked);
}

static bool is_ready(void) { return driver_alloc && !pool.inherited; }

/* ---- records ---- */

static uint32_t stack(void) {
    static const pasta_framework *known;
    const pasta_framework *framework = __atomic_load_n(&known, __ATOMIC_ACQUIRE);
    if (!framework) {
        pasta_framework_function *find = NULL;
        *(void **)&find = dlsym(RTLD_DEFAULT, PASTA_FRAMEWORK_SYMBOL);
        framework = find ? find(PASTA_FRAMEWORK_VERSION) : NULL;
        __atomic_store_n(&known, framework, __ATOMIC_RELEASE);
    }
    return framework ? *framework->stack() : PASTA_STACK_absent;
}

static void publish(pasta_event_kind kind, uint64_t address, uint64_t bytes, int device, uint64_t allocated,
                    uint64_t reserved) {
    pasta_allocator_state *state = PASTA_BEGIN(allocator_state, (int16_t)device, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (state) {
        state->allocated = allocated;
        state->reserved = reserved;
        pasta_publish(state);
    }
    pasta_tensor_memory *e =
        pasta_begin(kind, PASTA_SLOTS(pasta_tensor_memory), (int16_t)device, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!e) return;
    e->address = address;
    e->bytes = bytes;
    e->stack = stack();
    e->memory = PASTA_MEMORY_managed;
    pasta_publish(e);
}

/* ---- parts; pool.mutex held ---- */

static struct part **unused_list(uint64_t bytes) { return &pool.unused[63 - __builtin_clzll(bytes)]; }
static struct part **used_list(uint64_t address) { return &pool.used[address / GRANULE % HASHES]; }

static void put(struct part *p, struct part **list) {
    p->list = list;
    p->previous = NULL;
    p->next = *list;
    if (p->next) p->next->previous = p;
    *list = p;
}

static void take(struct part *p) {
    if (p->previous) p->previous->next = p->next;
    else *p->list = p->next;
    if (p->next) p->next->previous = p->previous;
}

static struct part *find_unused(uint64_t bytes, int device, void *stream) {
    for (size_t bucket = 63 - (size_t)__builtin_clzll(bytes); bucket < BUCKETS; bucket++)
        for (struct part *p = pool.unused[bucket]; p; p = p->next)
            if (p->bytes >= bytes && p->device == device && p->stream == stream) return p;
    return NULL;
}

static void use(struct part *p, uint64_t bytes) {
    take(p);
    struct part *rest = p->bytes - bytes >= GRANULE ? malloc(sizeof *rest) : NULL;
    if (rest) {
        *rest = *p;
        rest->address += bytes;
        rest->bytes -= bytes;
        rest->before = p;
        if (rest->after) rest->after->before = rest;
        p->after = rest;
        p->bytes = bytes;
        put(rest, unused_list(rest->bytes));
    }
    p->free = p->shared = false;
    put(p, used_list(p->address));
    pool.allocated += p->bytes;
}

/* `next` follows p, and is in no list. */
static void absorb(struct part *p, struct part *next) {
    p->bytes += next->bytes;
    p->after = next->after;
    if (p->after) p->after->before = p;
    free(next);
}

/* `p` is in no list. */
static void unuse(struct part *p) {
    p->free = true;
    if (p->after && p->after->free) {
        take(p->after);
        absorb(p, p->after);
    }
    if (p->before && p->before->free) {
        p = p->before;
        take(p);
        absorb(p, p->after);
    }
    put(p, unused_list(p->bytes));
}

static struct part *find_used(uint64_t address) {
    struct part *p = *used_list(address);
    while (p && p->address != address) p = p->next;
    return p;
}

/* Removes the segments that are not used from the pool; they are linked by `next`. */
static struct part *take_unused_segments(void) {
    struct part *taken = NULL;
    for (size_t bucket = 0; bucket < BUCKETS; bucket++)
        for (struct part *p = pool.unused[bucket], *next; p; p = next) {
            next = p->next;
            if (p->before || p->after) continue;
            take(p);
            pool.reserved -= p->bytes;
            p->next = taken;
            taken = p;
        }
    return taken;
}

/* Removes the parts of a device that wait. */
static struct part *take_waiting(int device) {
    struct part *taken = NULL;
    for (struct part *p = pool.waiting, *next; p; p = next) {
        next = p->next;
        if (p->device != device) continue;
        take(p);
        p->next = taken;
        taken = p;
    }
    return taken;
}

/* ---- calls of the driver, without the mutex ---- */

static void release_unused(void) {
    pthread_mutex_lock(&pool.mutex);
    struct part *p = take_unused_segments();
    pthread_mutex_unlock(&pool.mutex);
    for (struct part *next; p; p = next) {
        next = p->next;
        int error = driver_free(p->address);
        if (error) pasta_say("managed memory could not be freed (error %d)", error);
        free(p);
    }
}

/* Makes what waits on the device usable, as its context is current; false: nothing. */
static bool await_shared(int device) {
    pthread_mutex_lock(&pool.mutex);
    struct part *p = take_waiting(device);
    pthread_mutex_unlock(&pool.mutex);
    if (!p) return false;
    bool idle = driver_synchronize() == 0; /* otherwise the program's next call reports the error */
    pthread_mutex_lock(&pool.mutex);
    for (struct part *next; p; p = next) {
        next = p->next;
        if (idle) unuse(p);
        else put(p, &pool.waiting);
    }
    pthread_mutex_unlock(&pool.mutex);
    return idle;
}

static struct part *new_segment(uint64_t bytes, int device, void *stream) {
    struct part *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->bytes = bytes < LARGE ? SEGMENT : (bytes + LARGE_GRANULE - 1) / LARGE_GRANULE * LARGE_GRANULE;
    p->stream = stream;
    p->device = device;
    p->free = true;
    int error = driver_alloc(&p->address, p->bytes, ATTACH_GLOBAL);
    if (error) {
        release_unused();
        error = driver_alloc(&p->address, p->bytes, ATTACH_GLOBAL);
    }
    if (!error) return p;
    pasta_say("%llu bytes of managed memory could not be allocated (error %d)", (unsigned long long)p->bytes, error);
    free(p);
    return NULL;
}

void *pasta_managed_alloc(ptrdiff_t wanted, int device, void *stream) {
    if (wanted <= 0 || !is_ready()) return NULL;
    uint64_t bytes = ((uint64_t)wanted + GRANULE - 1) / GRANULE * GRANULE;
    pthread_mutex_lock(&pool.mutex);
    struct part *p = find_unused(bytes, device, stream);
    if (!p) {
        pthread_mutex_unlock(&pool.mutex);
        bool more = await_shared(device);
        pthread_mutex_lock(&pool.mutex);
        if (more) p = find_unused(bytes, device, stream);
    }
    if (!p) {
        pthread_mutex_unlock(&pool.mutex);
        if (!(p = new_segment(bytes, device, stream))) return NULL;
        pthread_mutex_lock(&pool.mutex);
        pool.reserved += p->bytes;
        put(p, unused_list(p->bytes));
    }
    use(p, bytes);
    uint64_t address = p->address, allocated = pool.allocated, reserved = pool.reserved;
    pthread_mutex_unlock(&pool.mutex);
    publish(PASTA_EVENT_tensor_alloc, address, (uint64_t)wanted, device, allocated, reserved);
    return (void *)(uintptr_t)address;
}

void pasta_managed_free(void *pointer, size_t bytes, int device, void *stream) {
    (void)stream;
    if (!is_ready()) return;
    uint64_t address = (uintptr_t)pointer;
    pthread_mutex_lock(&pool.mutex);
    struct part *p = find_used(address);
    if (p) {
        take(p);
        pool.allocated -= p->bytes;
    }
    uint64_t allocated = pool.allocated, reserved = pool.reserved;
    pthread_mutex_unlock(&pool.mutex);
    if (!p) return;
    /* first: another thread may get the memory at once */
    publish(PASTA_EVENT_tensor_free, address, bytes ? bytes : PASTA_ABSENT_U64, device, allocated, reserved);
    pthread_mutex_lock(&pool.mutex);
    if (p->shared) put(p, &pool.waiting);
    else unuse(p);
    pthread_mutex_unlock(&pool.mutex);
}

/* Called before the memory is freed. */
void pasta_managed_record_stream(void *pointer, void *stream) {
    if (!is_ready()) return;
    pthread_mutex_lock(&pool.mutex);
    struct part *p = find_used((uintptr_t)pointer);
    if (p && p->stream != stream) p->shared = true;
    pthread_mutex_unlock(&pool.mutex);
}
