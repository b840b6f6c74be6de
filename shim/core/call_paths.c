/* Call paths of the host: the stack of the thread that submits work or allocates memory.
 *
 * Every stack is recorded once: its frames, by an id.  The work's stack is a record of its own, right behind that of the
 * work.  Everything happens in the tap of published records, so sources know nothing of it, and a program without call
 * paths pays nothing. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "unwind.h"

enum { STACKS = 1 << 16, MAX_PROBES = 64, KERNELS = 1 << 12, ID_BITS = 31 };
#define ID_MASK ((UINT64_C(1) << ID_BITS) - 1)
#define FIRST_ID UINT32_C(0x80000000) /* smaller ones are of frameworks' hooks */

static struct {
    uint64_t kinds; /* bits 1 << PASTA_EVENT_* */
    uint64_t every; /* sampling: one of this many launches of each kernel */
    bool configured;
} settings;

static uint64_t stacks[STACKS]; /* upper bits of the hash, id; 0: free */
static uint64_t stacks_epoch;
static uint32_t program; /* id of its path */
static uint32_t last_id;
static uint32_t launches_of[KERNELS]; /* by a hash of the kernel */
static pasta_tap_function *framework_tap;

/* ---- configuration ---- */

#define BIT(kind) (UINT64_C(1) << PASTA_EVENT_##kind)

static uint64_t kinds_of(const char *text) {
    static const struct {
        const char *name;
        uint64_t kinds;
    } groups[] = {
        {"launches", BIT(kernel_launch) | BIT(graph_launch)},
        {"allocations", BIT(memory_alloc) | BIT(tensor_alloc)},
        {"copies", BIT(memory_copy) | BIT(memory_set)},
        {"waits", BIT(sync)},
    };
    uint64_t found = 0;
    for (size_t length; text && *text; text += length + (text[length] == ',')) {
        length = strcspn(text, ",");
        for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
            if (length == strlen(groups[i].name) && !memcmp(text, groups[i].name, length)) found |= groups[i].kinds;
    }
    return found;
}

static void configure(void) {
    static const char *const methods[] = {[PASTA_UNWIND_AUTO] = "auto", [PASTA_UNWIND_FRAME_POINTERS] = "frame_pointers",
                                          [PASTA_UNWIND_EH_FRAME] = "eh_frame"};
    const char *chosen = pasta_config("unwind");
    pasta_unwind_method method = PASTA_UNWIND_EH_FRAME;
    while (method > PASTA_UNWIND_AUTO && (!chosen || strcmp(chosen, methods[method]))) method--;
    settings.every = pasta_config_u64("call_paths_every", 1);
    if (!settings.every) settings.every = 1;
    settings.kinds = kinds_of(pasta_config("call_paths"));
    if (settings.kinds && !pasta_unwind_configure(method))
        pasta_say("call paths: libunwind is not installed: %s; install it (Debian, Ubuntu: apt install libunwind8; Fedora: dnf install libunwind)",
                  method == PASTA_UNWIND_EH_FRAME ? "no stacks are recorded" : "frames of code without frame pointers are missing");
    settings.configured = true;
}

/* ---- frames ---- */

static void record_native(uint32_t stack, uint32_t depth, const pasta_frame *frame) {
    pasta_object object;
    char build[PASTA_MAX_BUILD];
    uint32_t image = PASTA_STRING_absent, id = PASTA_STRING_absent;
    uint64_t address = frame->address;
    if (pasta_object_at(address, &object)) {
        image = *object.path ? pasta_intern_z(object.path) : program;
        id = pasta_intern(build, pasta_object_build_id(&object, build));
        address -= object.bias;
    }
    pasta_host_frame *e = PASTA_BEGIN(host_frame, PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!e) return;
    *e = (pasta_host_frame){.stack = stack, .depth = depth, .image = image, .build = id, .address = address};
    pasta_publish(e);
}

static void record_python(uint32_t stack, uint32_t depth, const pasta_frame *frame) {
    pasta_python_line line = pasta_python_describe(frame);
    pasta_python_frame *e = PASTA_BEGIN(python_frame, PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!e) return;
    *e = (pasta_python_frame){.stack = stack, .depth = depth, .file = line.file, .function = line.function, .line = line.line,
                              .first_line = line.first_line};
    pasta_publish(e);
}

static void record_frames(uint32_t stack, const pasta_frame *frames, size_t count) {
    for (uint32_t depth = 0; depth < count; depth++)
        if (frames[depth].code) record_python(stack, depth, &frames[depth]);
        else record_native(stack, depth, &frames[depth]);
}

/* ---- stacks by hash ---- */

static uint64_t hash_of(const pasta_frame *frames, size_t count, uint64_t epoch) {
    uint64_t hash = epoch;
    for (size_t i = 0; i < count; i++) hash = pasta_mix(hash, frames[i].code ? pasta_python_hash(&frames[i]) : frames[i].address);
    return hash;
}

/* Addresses and ids mean something else after a library was unloaded, in a fork's child, and in another block. */
static uint64_t current_epoch(void) {
    uint64_t epoch = pasta_mix(pasta_mix(pasta_loads_now().removed + 1, pasta_generation()), __atomic_load_n(&pasta_blocks, __ATOMIC_RELAXED));
    uint64_t before = __atomic_load_n(&stacks_epoch, __ATOMIC_ACQUIRE);
    if (PASTA_UNLIKELY(before != epoch) &&
        __atomic_compare_exchange_n(&stacks_epoch, &before, epoch, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        for (size_t i = 0; i < STACKS; i++) __atomic_store_n(&stacks[i], 0, __ATOMIC_RELAXED);
    return epoch;
}

/* Id of a stack, whose frames are recorded if it is new; 0 if there are too many. */
static uint32_t intern_stack(const pasta_frame *frames, size_t count) {
    uint64_t hash = hash_of(frames, count, current_epoch()), tag = hash & ~ID_MASK;
    uint64_t fresh = 0;
    if (!tag) tag = ID_MASK + 1;
    for (size_t probe = 0; probe < MAX_PROBES; probe++) {
        uint64_t *entry = &stacks[(hash + probe) % STACKS], known = __atomic_load_n(entry, __ATOMIC_ACQUIRE);
        if (!known) {
            if (!fresh) fresh = __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED) & ID_MASK;
            if (__atomic_compare_exchange_n(entry, &known, tag | fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
                record_frames(FIRST_ID | (uint32_t)fresh, frames, count);
                return FIRST_ID | (uint32_t)fresh;
            }
        }
        if ((known & ~ID_MASK) == tag) return FIRST_ID | (uint32_t)(known & ID_MASK);
    }
    pasta_say("call paths: too many distinct stacks: some are not recorded");
    return PASTA_STACK_absent;
}

/* ---- records ---- */

/* The number by which results refer to the work: a launch's ordinal, an allocation's address. */
static uint64_t key_of(const pasta_header *h) {
    const void *payload = h + 1;
    switch (h->kind) {
    case PASTA_EVENT_kernel_launch: return ((const pasta_kernel_launch *)payload)->ordinal;
    case PASTA_EVENT_memory_alloc: return ((const pasta_memory *)payload)->address;
    case PASTA_EVENT_tensor_alloc: return ((const pasta_tensor_memory *)payload)->address;
    default: return PASTA_ABSENT_U64;
    }
}

static bool is_sampled(const pasta_header *h) {
    if (h->kind != PASTA_EVENT_kernel_launch || settings.every == 1) return true;
    uint32_t name = ((const pasta_kernel_launch *)(h + 1))->name;
    return __atomic_fetch_add(&launches_of[name * UINT32_C(2654435761) % KERNELS], 1, __ATOMIC_RELAXED) % settings.every == 0;
}

static __attribute__((noinline)) void record_stack(const pasta_header *h) {
    pasta_frame frames[PASTA_MAX_FRAMES];
    bool truncated;
    int saved = errno;
    size_t count = pasta_unwind(frames, PASTA_MAX_FRAMES, &truncated);
    uint32_t stack = count ? intern_stack(frames, count) : PASTA_STACK_absent;
    errno = saved;
    if (!stack) return;
    pasta_host_stack *e = (pasta_host_stack *)pasta_begin(PASTA_EVENT_host_stack, PASTA_SLOTS(pasta_host_stack), h->device, h->context, h->stream);
    if (!e) return;
    pasta_header_of(e)->correlation = h->correlation;
    *e = (pasta_host_stack){.stack = stack, .work = h->kind, .truncated = truncated, .key = key_of(h), .work_time = h->time};
    pasta_publish(e);
}

static void on_record(const pasta_header *h) {
    pasta_tap_function *tap = __atomic_load_n(&framework_tap, __ATOMIC_RELAXED);
    if (tap) tap(h);
    /* late records have the thread of the work, or none of the program's */
    if (h->kind < 64 && settings.kinds >> h->kind & 1 && h->thread == pasta_thread() && is_sampled(h)) record_stack(h);
}

void pasta_tap_set(pasta_tap_function *tap) {
    __atomic_store_n(&framework_tap, tap, __ATOMIC_SEQ_CST);
    /* relaxed loads see it: a tap must be ready for calls before it is set */
    __atomic_store_n(&pasta_tapped, settings.kinds ? on_record : tap, __ATOMIC_SEQ_CST);
}

void pasta_call_paths_begin(uint32_t of_program) {
    program = of_program;
    if (!settings.configured) configure();
    if (!settings.kinds) return;
    pasta_python_find();
    pasta_tap_set(framework_tap);
}

void pasta_call_paths_forget(void) {
    framework_tap = NULL;
    memset(launches_of, 0, sizeof launches_of);
}
