/* Stands for librocprofiler-sdk.so: our own library with the functions that a tool calls, which finds
 * rocprofiler_configure as the library does, and delivers what a stream says with the sizes of
 * the version that it plays.  hip_app.c has the streams.
 *
 * REPLAY_VERSION=0.5.0|1.0.0|…        what it says it is; from 0.6 on it has the layout of 1.0.0
 * REPLAY_SEED=N                       another order of the numbers of kinds and operations
 * REPLAY_FAIL=NAME=STATUS[@N]         rocprofiler_NAME gives STATUS, from its N-th call on
 * REPLAY_LATE=1                       delivers after finalisation too
 * REPLAY_ERRNO=1                      ends the program where a tool changes errno
 * REPLAY_DRY=1                        does all but the call of the tool: what the replayer itself costs
 *
 * A payload ends where memory ends: what reads beyond its size faults.  What it points to is
 * gone, or another's, when the callback has returned.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "replay.h"
#include "replay_abi.h"
#include "replay_operations.h"

#define EXPORT __attribute__((visibility("default")))

enum {
    SUCCESS = 0, ERROR = 1, NO_CONTEXT = 2, NO_KIND = 4, NO_OPERATION = 5, NOT_ZERO = 13,
    CONFIGURED_ALREADY = 15, LOCKED = 16, INCOMPATIBLE = 18, INVALID = 19,
}; /* rocprofiler_status_t, fwd.h of 1.0.0 */

enum { MAX_OPERATIONS = 512, MAX_CONTEXTS = 8, MAX_CLIENTS = 8, MAX_AGENTS = 16, PAGE = 4096, FIXUPS = 4 };

static void fails(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void fails(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fputs("replay: ", stderr);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    exit(95);
}

static int planned(const char *function) {
    const char *plan = getenv("REPLAY_FAIL"), *equals = plan ? strchr(plan, '=') : NULL;
    if (!equals || strlen(function) != (size_t)(equals - plan) || strncmp(plan, function, strlen(function))) return 0;
    const char *from = strchr(equals, '@');
    static int calls; /* of that one function */
    if (from && __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) < atoi(from + 1)) return 0;
    return atoi(equals + 1);
}
#define PLANNED(function)                                  \
    do {                                                   \
        int planned_status = planned(function);            \
        if (planned_status) return planned_status;         \
    } while (0)

static uint32_t version(void) {
    static uint32_t known;
    unsigned major = 1, minor = 0, patch = 0;
    const char *text = getenv("REPLAY_VERSION");
    if (known) return known;
    if (text && sscanf(text, "%u.%u.%u", &major, &minor, &patch) != 3) fails("REPLAY_VERSION=%s", text);
    return known = 10000 * major + 100 * minor + patch;
}
static bool is_0_5(void) { return version() < 600; }

/* Memory of so many bytes that ends at a page which cannot be accessed. */
static void *at_the_end(size_t bytes) {
    char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || mprotect(pages + PAGE, PAGE, PROT_NONE) || bytes > PAGE) fails("no memory");
    return pages + PAGE - bytes;
}

/* ---- values of fields ---- */

typedef struct {
    uint64_t pointer, pitch, width, height;
} pitched_pointer;
typedef struct {
    uint64_t width, height, depth;
} extent;
typedef struct { /* hipMemcpy3DParms */
    uint64_t source_array;
    extent source_position;
    pitched_pointer source;
    uint64_t destination_array;
    extent destination_position;
    pitched_pointer destination;
    extent size;
    int32_t kind;
} box;
typedef struct { /* hip_Memcpy2D */
    uint64_t source_x, source_y;
    int32_t source_type;
    uint64_t source_host, source_device, source_array, source_pitch, destination_x, destination_y;
    int32_t destination_type;
    uint64_t destination_host, destination_device, destination_array, destination_pitch, width, height;
} plane;
typedef struct { /* HIP_ARRAY_DESCRIPTOR */
    uint64_t width, height;
    int32_t format;
    uint32_t channels;
} plate;
typedef struct { /* HIP_ARRAY3D_DESCRIPTOR */
    uint64_t width, height, depth;
    int32_t format;
    uint32_t channels, flags;
} cube;
typedef struct { /* hipChannelFormatDesc */
    int32_t bits[4], kind;
} format;
_Static_assert(sizeof(box) == 160 && sizeof(plane) == 128, "as HIP has them");

/* clang-format off */
#define TYPES(X)                                                                                        \
    X(ptr, uint64_t) X(u64, uint64_t) X(int, int32_t) X(u32, uint32_t) X(u16, uint16_t) X(u8, uint8_t)  \
    X(dim, dim3) X(pitched, pitched_pointer) X(extent, extent)                                          \
    X(out, uint64_t *) X(text, const char *) X(outpitched, pitched_pointer *)                           \
    X(box, box *) X(plane, plane *) X(plate, plate *) X(cube, cube *) X(format, format *)
/* clang-format on */
#define DEFINE_TYPE(name, type) typedef type value_##name;
#define ENUMERATE_TYPE(name, type) TYPE_##name,
TYPES(DEFINE_TYPE)
enum type { TYPES(ENUMERATE_TYPE) };

typedef struct {
    const char *name;
    uint16_t offset; /* in the payload */
    uint8_t type, bytes;
} field;

/* ---- operations ---- */

#define DEFINE_MEMBER(type, name) value_##type name;
#define DEFINE_ARGUMENTS(name, members) typedef struct { members } arguments_##name;
#define DESCRIBE_MEMBER(type, name) {#name, 0, TYPE_##type, sizeof(value_##type)},
#define MEMBER(type, name) DEFINE_MEMBER(type, name)
HIP_OPERATIONS(DEFINE_ARGUMENTS, MEMBER)
MARKER_CORE_OPERATIONS(DEFINE_ARGUMENTS, MEMBER)
MARKER_CONTROL_OPERATIONS(DEFINE_ARGUMENTS, MEMBER)
MARKER_NAME_OPERATIONS(DEFINE_ARGUMENTS, MEMBER)
MARKER_RANGE_OPERATIONS(DEFINE_ARGUMENTS, MEMBER)
#undef MEMBER

#define FITS_HIP(name, members) _Static_assert(sizeof(arguments_##name) <= HIP_ARGUMENTS, #name);
#define FITS_MARKER(name, members) _Static_assert(sizeof(arguments_##name) <= MARKER_ARGUMENTS, #name);
#define NOTHING(type, name)
HIP_OPERATIONS(FITS_HIP, NOTHING)
MARKER_CORE_OPERATIONS(FITS_MARKER, NOTHING)
MARKER_NAME_OPERATIONS(FITS_MARKER, NOTHING)
/* the longest one is as long as the table says that they all are */
_Static_assert(sizeof(arguments_hipExtModuleLaunchKernel) == HIP_ARGUMENTS, "arguments");

#define DESCRIBE_FIELDS(name, members) static const field fields_##name[] = {members};
HIP_OPERATIONS(DESCRIBE_FIELDS, DESCRIBE_MEMBER)
MARKER_CORE_OPERATIONS(DESCRIBE_FIELDS, DESCRIBE_MEMBER)
MARKER_CONTROL_OPERATIONS(DESCRIBE_FIELDS, DESCRIBE_MEMBER)
MARKER_NAME_OPERATIONS(DESCRIBE_FIELDS, DESCRIBE_MEMBER)
MARKER_RANGE_OPERATIONS(DESCRIBE_FIELDS, DESCRIBE_MEMBER)

typedef struct {
    const char *name;
    const field *fields; /* of its own */
    size_t count, bytes;
} operation;

#define LIST(name, members) {#name, fields_##name, sizeof fields_##name / sizeof(field), sizeof(arguments_##name)},
static const operation hip_operations[] = {HIP_OPERATIONS(LIST, NOTHING)};
static const operation marker_core[] = {MARKER_CORE_OPERATIONS(LIST, NOTHING)};
static const operation marker_control[] = {MARKER_CONTROL_OPERATIONS(LIST, NOTHING)};
static const operation marker_name[] = {MARKER_NAME_OPERATIONS(LIST, NOTHING)};
static const operation marker_range[] = {MARKER_RANGE_OPERATIONS(LIST, NOTHING)};
#define NAMED(text) {text, NULL, 0, 0}
static const operation object_operations[] = {NAMED("CODE_OBJECT_NONE"), NAMED("CODE_OBJECT_LOAD"),
                                              NAMED("CODE_OBJECT_DEVICE_KERNEL_SYMBOL_REGISTER"),
                                              NAMED("CODE_OBJECT_HOST_KERNEL_SYMBOL_REGISTER")};
static const operation scratch_operations[] = {NAMED("SCRATCH_MEMORY_NONE"), NAMED("SCRATCH_MEMORY_ALLOC"),
                                               NAMED("SCRATCH_MEMORY_FREE"), NAMED("SCRATCH_MEMORY_ASYNC_RECLAIM")};
static const operation dispatch_operations[] = {NAMED("KERNEL_DISPATCH_NONE"), NAMED("KERNEL_DISPATCH_ENQUEUE"),
                                                NAMED("KERNEL_DISPATCH_COMPLETE")};
static const operation copy_operations[] = {NAMED("MEMORY_COPY_NONE"), NAMED("MEMORY_COPY_HOST_TO_HOST"),
                                            NAMED("MEMORY_COPY_HOST_TO_DEVICE"), NAMED("MEMORY_COPY_DEVICE_TO_HOST"),
                                            NAMED("MEMORY_COPY_DEVICE_TO_DEVICE")};
static const operation allocation_operations[] = {
    NAMED("MEMORY_ALLOCATION_NONE"), NAMED("MEMORY_ALLOCATION_ALLOCATE"), NAMED("MEMORY_ALLOCATION_VMEM_ALLOCATE"),
    NAMED("MEMORY_ALLOCATION_FREE"), NAMED("MEMORY_ALLOCATION_VMEM_FREE")};
static const operation stream_operations[] = {NAMED("HIP_STREAM_NONE"), NAMED("HIP_STREAM_CREATE"),
                                              NAMED("HIP_STREAM_DESTROY"), NAMED("HIP_STREAM_SET")};
static const operation runtime_operations[] = {NAMED("RUNTIME_INITIALIZATION_NONE"), NAMED("RUNTIME_INITIALIZATION_HSA"),
                                               NAMED("RUNTIME_INITIALIZATION_HIP"), NAMED("RUNTIME_INITIALIZATION_MARKER")};
static const operation others[] = {NAMED("ANOTHER_API_FIRST"), NAMED("ANOTHER_API_SECOND")};

/* Where the compiler places a member, behind so many bytes. */
static size_t alignment_of(const field *f) { return f->type == TYPE_dim ? 4 : f->bytes < 8 ? f->bytes : 8; }
static size_t place_argument(const field *f, size_t behind) {
    return (behind + alignment_of(f) - 1) / alignment_of(f) * alignment_of(f);
}

static void check_placement(const operation *operations, size_t count) {
    for (size_t i = 0; i < count; i++) {
        size_t end = 0, alignment = 1;
        for (size_t j = 0; j < operations[i].count; j++) {
            const field *f = &operations[i].fields[j];
            if (alignment < alignment_of(f)) alignment = alignment_of(f);
            end = place_argument(f, end) + f->bytes;
        }
        if ((end + alignment - 1) / alignment * alignment != operations[i].bytes)
            fails("%s is not placed as the compiler does", operations[i].name);
    }
}

/* ---- payloads ---- */

#define PART(type, kind, member, ...) {#member, offsetof(type, __VA_ARGS__ member), TYPE_##kind, sizeof(value_##kind)}
static const field dispatch_fields[] = {
    PART(dispatch_data, u64, agent, info.), PART(dispatch_data, u64, queue, info.),
    PART(dispatch_data, u64, kernel, info.), PART(dispatch_data, u64, dispatch, info.),
    PART(dispatch_data, u32, scratch, info.), PART(dispatch_data, u32, lds, info.),
    PART(dispatch_data, dim, workgroup, info.), PART(dispatch_data, dim, grid, info.)};
static const field copy_fields[] = {
    PART(copy_data, u64, destination_agent), PART(copy_data, u64, source_agent), PART(copy_data, u64, bytes),
    PART(copy_data, u64, destination), PART(copy_data, u64, source)};
static const field allocation_fields[] = {PART(allocation_data, u64, agent), PART(allocation_data, u64, address),
                                          PART(allocation_data, u64, bytes)};
static const field object_fields[] = {
    PART(object_data, u64, object), PART(object_data, u64, agent), PART(object_data, text, uri),
    PART(object_data, u64, base), PART(object_data, u64, bytes), PART(object_data, u64, delta),
    PART(object_data, u32, storage), PART(object_data, u64, memory), PART(object_data, u64, memory_bytes),
    PART(object_data, int, file)};
static const field symbol_fields[] = {
    PART(symbol_data, u64, kernel), PART(symbol_data, u64, object), PART(symbol_data, text, name),
    PART(symbol_data, u64, kernel_object), PART(symbol_data, u32, arguments), PART(symbol_data, u32, alignment),
    PART(symbol_data, u32, lds), PART(symbol_data, u32, scratch), PART(symbol_data, u32, sgpr),
    PART(symbol_data, u32, vgpr), PART(symbol_data, u32, accum_vgpr), PART(symbol_data, u64, entry),
    PART(symbol_data, u64, address)};
static const field host_symbol_fields[] = {PART(host_symbol_data, u64, kernel), PART(host_symbol_data, u64, object),
                                           PART(host_symbol_data, text, name)};
static const field scratch_fields[] = {
    PART(scratch_data, u64, agent), PART(scratch_data, u64, queue), PART(scratch_data, u32, flags),
    PART(scratch_data, u32, event), PART(scratch_data, u64, dispatch), PART(scratch_data, u64, bytes),
    PART(scratch_data, u64, slots)};
static const field stream_fields[] = {PART(stream_data, u64, id), PART(stream_data, u64, value)};
static const field runtime_fields[] = {PART(runtime_data, u64, version), PART(runtime_data, u64, instance)};

enum { ABSENT = -1, ANY = -2 }; /* for numbers */
enum { OTHER, HIP, CORE, CONTROL, NAMES, OBJECT, SCRATCH, DISPATCH, COPY, ALLOCATION, RUNTIME, STREAM, RANGE };

typedef struct {
    const char *name;
    int what, number_0_5, number_1_0; /* as the tables have it, or any */
    const operation *operations;
    size_t operation_count;
    const field *fields; /* without those of an operation's arguments */
    size_t field_count, size_0_5, size_1_0;
    size_t arguments, result; /* where those are */
} kind;

#define COUNTED(array) array, sizeof array / sizeof *array
#define UNUSED(name) {name, OTHER, ANY, ANY, COUNTED(others), NULL, 0, 32, 32, 0, 0}
#define UNUSED_SINCE_1_0(name) {name, OTHER, ABSENT, ANY, COUNTED(others), NULL, 0, 32, 32, 0, 0}
#define MARKERS(name, what, old, new, operations)                                                        \
    {name, what, old, new, COUNTED(operations), NULL, 0, sizeof(marker_data), sizeof(marker_data),       \
     offsetof(marker_data, arguments), offsetof(marker_data, result)}
static const kind kinds[] = {
    UNUSED("HSA_CORE_API"), UNUSED("HSA_AMD_EXT_API"), UNUSED("HSA_IMAGE_EXT_API"), UNUSED("HSA_FINALIZE_EXT_API"),
    {"HIP_RUNTIME_API", HIP, 5, 5, COUNTED(hip_operations), NULL, 0, sizeof(hip_data), sizeof(hip_data),
     offsetof(hip_data, arguments), offsetof(hip_data, result)},
    UNUSED("HIP_COMPILER_API"),
    MARKERS("MARKER_CORE_API", CORE, 7, 7, marker_core),
    MARKERS("MARKER_CONTROL_API", CONTROL, ANY, ANY, marker_control),
    MARKERS("MARKER_NAME_API", NAMES, ANY, ANY, marker_name),
    {"CODE_OBJECT", OBJECT, 10, 10, COUNTED(object_operations), NULL, 0, 0, 0, 0, 0},
    {"SCRATCH_MEMORY", SCRATCH, ANY, ANY, COUNTED(scratch_operations), COUNTED(scratch_fields), sizeof(scratch_data),
     sizeof(scratch_data), 0, 0},
    {"KERNEL_DISPATCH", DISPATCH, 12, 12, COUNTED(dispatch_operations), COUNTED(dispatch_fields), sizeof(dispatch_data),
     sizeof(dispatch_data), 0, 0},
    {"MEMORY_COPY", COPY, 13, 13, COUNTED(copy_operations), COUNTED(copy_fields), COPY_0_5, sizeof(copy_data), 0, 0},
    UNUSED("RCCL_API"),
    UNUSED_SINCE_1_0("OMPT"),
    {"MEMORY_ALLOCATION", ALLOCATION, ABSENT, 16, COUNTED(allocation_operations), COUNTED(allocation_fields),
     sizeof(allocation_data), sizeof(allocation_data), 0, 0},
    {"RUNTIME_INITIALIZATION", RUNTIME, ABSENT, ANY, COUNTED(runtime_operations), COUNTED(runtime_fields),
     sizeof(runtime_data), sizeof(runtime_data), 0, 0},
    UNUSED_SINCE_1_0("ROCDECODE_API"), UNUSED_SINCE_1_0("ROCJPEG_API"),
    {"HIP_STREAM", STREAM, ABSENT, 20, COUNTED(stream_operations), COUNTED(stream_fields), sizeof(stream_data),
     sizeof(stream_data), 0, 0},
    MARKERS("MARKER_CORE_RANGE_API", RANGE, ABSENT, ANY, marker_range),
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* ---- numbers ---- */

static int kind_numbers[KINDS];                    /* 0: this version has no such kind */
static int last_kind, last_operation[KINDS];       /* the first that there is not */
static int operation_numbers[KINDS][MAX_OPERATIONS];
static const char *operation_names[KINDS][MAX_OPERATIONS]; /* by number */

static uint64_t random_state;
static uint32_t draw(uint32_t below) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % below;
}

static void shuffle(int *numbers, int count) {
    for (int i = count; i > 1; i--) {
        int other = (int)draw((uint32_t)i), kept = numbers[i - 1];
        numbers[i - 1] = numbers[other], numbers[other] = kept;
    }
}

/* Gives those of `wanted` that are any the numbers from `from` on that no other one has, in any order. */
static void fill_numbers(int *wanted, int count, int from, int last) {
    int free_numbers[MAX_OPERATIONS], found = 0;
    for (int number = from; number < last; number++) {
        bool taken = false;
        for (int i = 0; i < count; i++) taken |= wanted[i] == number;
        if (!taken) free_numbers[found++] = number;
    }
    shuffle(free_numbers, found);
    for (int i = 0; i < count; i++)
        if (wanted[i] == ANY) wanted[i] = free_numbers[--found];
}

static int listed_operation(const char *name) {
    static const struct {
        const char *name;
        int number;
    } listed[] = {{"hipMalloc", 215}, {"hipFree", 90}, {"hipMemcpy", 259}, {"hipLaunchKernel", 214}};
    for (size_t i = 0; i < sizeof listed / sizeof *listed; i++)
        if (!strcmp(listed[i].name, name)) return listed[i].number;
    return ANY;
}

/* 0.5.0 names copies HOST_TO_DEVICE and so on. */
static const char *operation_name(const kind *k, size_t i) {
    static const char prefix[] = "MEMORY_COPY_";
    const char *name = k->operations[i].name;
    return is_0_5() && !strncmp(name, prefix, sizeof prefix - 1) ? name + sizeof prefix - 1 : name;
}

static void number_operations(int which) {
    const kind *k = &kinds[which];
    int *numbers = operation_numbers[which], count = (int)k->operation_count;
    bool api = k->what == HIP;
    last_operation[which] = api ? (is_0_5() ? 463 : 477) : count;
    for (int i = 0; i < count; i++) numbers[i] = listed_operation(k->operations[i].name);
    if (k->what == HIP || k->fields == NULL) {
        if (k->what == OBJECT) numbers[0] = MAX_OPERATIONS; /* NONE is 0, below */
        fill_numbers(numbers, count, k->what == OBJECT, last_operation[which]);
        if (k->what == OBJECT) numbers[0] = 0;
    } else {
        numbers[0] = MAX_OPERATIONS;
        fill_numbers(numbers, count, 1, count);
        numbers[0] = 0;
    }
    for (int number = 0; number < last_operation[which]; number++) {
        char *other = NULL;
        if (api && asprintf(&other, "hipSomethingElse%d", number) < 0) fails("no memory");
        operation_names[which][number] = other;
    }
    for (int i = 0; i < count; i++) operation_names[which][numbers[i]] = operation_name(k, (size_t)i);
}

__attribute__((constructor)) static void number(void) {
    for (int i = 0; i < KINDS; i++) check_placement(kinds[i].operations, kinds[i].operation_count);
    const char *seed = getenv("REPLAY_SEED");
    random_state = seed ? strtoull(seed, NULL, 0) : 1;
    last_kind = is_0_5() ? 15 : 22;
    int present[KINDS], numbers[KINDS], count = 0;
    for (int i = 0; i < KINDS; i++) {
        int listed = is_0_5() ? kinds[i].number_0_5 : kinds[i].number_1_0;
        if (listed == ABSENT) continue;
        present[count] = i;
        /* what a later version numbers is not in the tables */
        numbers[count++] = version() > 10000 ? ANY : listed;
    }
    if (count != last_kind - 1) fails("%d kinds for %d numbers", count, last_kind - 1);
    fill_numbers(numbers, count, 1, last_kind);
    for (int i = 0; i < count; i++) {
        kind_numbers[present[i]] = numbers[i];
        number_operations(present[i]);
    }
}

static int kind_of_number(int number) {
    for (int i = 0; i < KINDS; i++)
        if (number > 0 && kind_numbers[i] == number) return i;
    return -1;
}

/* ---- clients and contexts ---- */

typedef union {
    record_0_5 old;
    record_1_0 new;
} any_record;
typedef void callback_0_5(record_0_5 record, uint64_t *user, void *argument);
typedef void callback_1_0(record_1_0 record, uint64_t *user, void *argument);
typedef tool_result *configure_function(uint32_t version, const char *text, uint32_t priority, void *client);

static struct {
    configure_function *configure;
    void *id; /* client_0_5 or client_1_0 */
    tool_result result;
    bool given;
} clients[MAX_CLIENTS];
static uint32_t client_count, configuring = MAX_CLIENTS;
static int initialized, finalized; /* -1: being so */

static struct {
    uint32_t client;
    bool started;
    struct {
        void *callback, *argument;
        bool wanted[MAX_OPERATIONS];
    } services[KINDS];
} contexts[MAX_CONTEXTS];
static uint32_t context_count;
enum { CONTEXT = 0x5000 }; /* handles are this and more */

static bool is_context(uint64_t handle) { return handle - CONTEXT < context_count; }

EXPORT int rocprofiler_create_context(uint64_t *handle) {
    PLANNED("create_context");
    if (configuring == MAX_CLIENTS) return LOCKED;
    if (*handle) return NOT_ZERO;
    if (context_count == MAX_CONTEXTS) return ERROR;
    contexts[context_count].client = configuring;
    *handle = CONTEXT + context_count++;
    return SUCCESS;
}

EXPORT int rocprofiler_start_context(uint64_t handle) {
    PLANNED("start_context");
    if (!is_context(handle)) return NO_CONTEXT;
    contexts[handle - CONTEXT].started = true;
    return SUCCESS;
}

EXPORT int rocprofiler_stop_context(uint64_t handle) {
    PLANNED("stop_context");
    if (!is_context(handle)) return NO_CONTEXT;
    contexts[handle - CONTEXT].started = false;
    return SUCCESS;
}

EXPORT int rocprofiler_context_is_valid(uint64_t handle, int *valid) {
    PLANNED("context_is_valid");
    *valid = is_context(handle);
    return SUCCESS;
}

EXPORT int rocprofiler_context_is_active(uint64_t handle, int *active) {
    PLANNED("context_is_active");
    if (!is_context(handle)) return NO_CONTEXT;
    *active = contexts[handle - CONTEXT].started;
    return SUCCESS;
}

EXPORT int rocprofiler_configure_callback_tracing_service(uint64_t handle, int number, const int32_t *operations,
                                                          size_t count, void *callback, void *argument) {
    PLANNED("configure_callback_tracing_service");
    int which = kind_of_number(number);
    if (configuring == MAX_CLIENTS) return LOCKED;
    if (!is_context(handle)) return NO_CONTEXT;
    if (which < 0) return NO_KIND;
    if (contexts[handle - CONTEXT].services[which].callback) return CONFIGURED_ALREADY;
    if (!callback) return INVALID;
    bool *wanted = contexts[handle - CONTEXT].services[which].wanted;
    for (size_t i = 0; i < count; i++) {
        if (operations[i] < 0 || operations[i] >= last_operation[which]) return NO_OPERATION;
        wanted[operations[i]] = true;
    }
    if (!operations || !count) memset(wanted, true, MAX_OPERATIONS);
    contexts[handle - CONTEXT].services[which].argument = argument;
    contexts[handle - CONTEXT].services[which].callback = callback;
    return SUCCESS;
}

EXPORT void replay_subscriptions(void) {
    for (uint32_t i = 0; i < client_count; i++) {
        const char *name = is_0_5() ? ((client_0_5 *)clients[i].id)->name : ((client_1_0 *)clients[i].id)->name;
        printf("client %s\n", name ? name : "(unnamed)");
    }
    for (uint32_t c = 0; c < context_count; c++)
        for (int which = 0; which < KINDS; which++) {
            if (!contexts[c].services[which].callback) continue;
            printf("subscribed %s:", kinds[which].name);
            for (int number = 0; number < last_operation[which]; number++)
                if (contexts[c].services[which].wanted[number]) printf(" %s", operation_names[which][number]);
            puts("");
        }
}

/* ---- what there is ---- */

EXPORT int rocprofiler_iterate_callback_tracing_kinds(int (*take)(int, void *), void *user) {
    PLANNED("iterate_callback_tracing_kinds");
    for (int number = 1; number < last_kind; number++)
        if (take(number, user)) break;
    return SUCCESS;
}

EXPORT int rocprofiler_iterate_callback_tracing_kind_operations(int kind_number, int (*take)(int, uint32_t, void *),
                                                                void *user) {
    PLANNED("iterate_callback_tracing_kind_operations");
    int which = kind_of_number(kind_number);
    if (which < 0) return NO_KIND;
    for (int number = 0; number < last_operation[which]; number++)
        if (take(kind_number, (uint32_t)number, user)) break;
    return SUCCESS;
}

static int give(const char *found, const char **name, uint64_t *length) {
    if (name) *name = found;
    if (length) *length = strlen(found);
    return SUCCESS;
}

EXPORT int rocprofiler_query_callback_tracing_kind_name(int number, const char **name, uint64_t *length) {
    PLANNED("query_callback_tracing_kind_name");
    int which = kind_of_number(number);
    return which < 0 ? NO_KIND : give(kinds[which].name, name, length);
}

EXPORT int rocprofiler_query_callback_tracing_kind_operation_name(int kind_number, uint32_t number, const char **name,
                                                                  uint64_t *length) {
    PLANNED("query_callback_tracing_kind_operation_name");
    int which = kind_of_number(kind_number);
    if (which < 0) return NO_KIND;
    if (number >= (uint32_t)last_operation[which]) return NO_OPERATION;
    return give(operation_names[which][number], name, length);
}

static const void *agents[MAX_AGENTS];
static size_t agent_count;

EXPORT int rocprofiler_query_available_agents(int layout, int (*take)(int, const void **, size_t, void *), size_t bytes,
                                              void *user) {
    PLANNED("query_available_agents");
    if (layout != 1) return INVALID;
    if (bytes > (is_0_5() ? (size_t)AGENT_0_5 : sizeof(agent_data))) return INCOMPATIBLE;
    return take(layout, agents, agent_count, user);
}

/* Not the clock of the program: a tool has to find out how far it is from that. */
static const uint64_t clock_offset = 25200000000000;

EXPORT uint64_t replay_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec + clock_offset;
}

EXPORT int rocprofiler_get_timestamp(uint64_t *time) {
    PLANNED("get_timestamp");
    *time = replay_clock();
    return SUCCESS;
}

EXPORT int rocprofiler_get_version(uint32_t *major, uint32_t *minor, uint32_t *patch) {
    PLANNED("get_version");
    if (major) *major = version() / 10000;
    if (minor) *minor = version() / 100 % 100;
    if (patch) *patch = version() % 100;
    return SUCCESS;
}

EXPORT const char *rocprofiler_get_status_name(int status) {
    return status == LOCKED ? "ROCPROFILER_STATUS_ERROR_CONFIGURATION_LOCKED" : "ROCPROFILER_STATUS_ERROR";
}

EXPORT const char *rocprofiler_get_status_string(int status) {
    return status == LOCKED ? "Function call is not valid outside of configuration" : "Generalized error";
}

EXPORT int rocprofiler_is_initialized(int *status) {
    *status = initialized;
    return SUCCESS;
}

EXPORT int rocprofiler_is_finalized(int *status) {
    *status = finalized;
    return SUCCESS;
}

/* ---- configuring ---- */

static void add_client(void *function) {
    for (uint32_t i = 0; i < client_count; i++)
        if (function == (void *)(uintptr_t)clients[i].configure) return;
    if (!function || client_count == MAX_CLIENTS) return;
    *(void **)&clients[client_count].configure = function;
    if (is_0_5()) {
        client_0_5 *id = clients[client_count].id = at_the_end(sizeof *id);
        *id = (client_0_5){NULL, 1000 + client_count};
    } else {
        client_1_0 *id = clients[client_count].id = at_the_end(sizeof *id);
        *id = (client_1_0){sizeof *id, NULL, 1000 + client_count};
    }
    client_count++;
}

/* What follows the last colon of a list with colons is not loaded: so it is in the library. */
static void find_clients(void) {
    const char *list = getenv("ROCP_TOOL_LIBRARIES");
    char *names = strdup(list ? list : ""), *rest = names;
    bool several = strchr(names, ':') != NULL;
    while (rest && *rest) {
        char *name = strsep(&rest, ":");
        if (!*name || (several && !rest)) continue;
        void *library = dlopen(name, RTLD_LOCAL | RTLD_LAZY);
        if (!library) {
            fprintf(stderr, "error dlopening '%s': %s\n", name, dlerror());
            abort(); /* as the library does */
        }
        add_client(dlsym(library, "rocprofiler_configure"));
    }
    free(names);
    add_client(dlsym(RTLD_DEFAULT, "rocprofiler_configure"));
}

static void finalize_client(uint32_t i) {
    for (uint32_t c = 0; c < context_count; c++)
        if (contexts[c].client == i) contexts[c].started = false;
    void (*finish)(void *) = clients[i].result.finalize;
    clients[i].result.finalize = NULL;
    if (finish) finish(clients[i].result.user);
}

EXPORT void replay_finalize(void) {
    if (initialized < 1 || finalized) return;
    finalized = -1;
    for (uint32_t i = 0; i < client_count; i++) finalize_client(i);
    finalized = 1;
}

/* Each client's: which one is known by its id, which we do not need where all are finalised. */
static void finalize_all(void) { replay_finalize(); }

static void configure(uint32_t i, uint32_t priority) {
    char text[32];
    snprintf(text, sizeof text, "%u.%u.%u", version() / 10000, version() / 100 % 100, version() % 100);
    tool_result *result = clients[i].configure(version(), text, priority, clients[i].id);
    clients[i].given = result != NULL;
    const client_1_0 *id = clients[i].id;
    if (!is_0_5() && (id->size != sizeof *id || (id->name && !*id->name))) fails("a client wrote its id's size");
    if (result) clients[i].result = *result;
}

static void initialize(uint32_t i) {
    if (!clients[i].given || !clients[i].result.initialize) return;
    configuring = i;
    int status = clients[i].result.initialize(finalize_all, clients[i].result.user);
    configuring = MAX_CLIENTS;
    clients[i].result.initialize = NULL;
    for (uint32_t c = 0; status && c < context_count; c++)
        if (contexts[c].client == i) contexts[c].started = false;
}

static void set_up(void) {
    initialized = -1;
    find_clients();
    for (uint32_t i = 0; i < client_count; i++) configure(i, i);
    for (uint32_t i = 0; i < client_count; i++) initialize(i);
    initialized = 1;
    atexit(replay_finalize);
}

/* What rocprofiler-register calls for each runtime. */
EXPORT int rocprofiler_set_api_table(const char *name, uint64_t runtime_version, uint64_t instance, void **tables,
                                     uint64_t count) {
    (void)name, (void)runtime_version, (void)instance, (void)tables, (void)count;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    PLANNED("set_api_table");
    pthread_once(&once, set_up);
    return SUCCESS;
}

EXPORT void replay_configure(void) {
    for (uint32_t i = 0; i < client_count; i++) {
        configure(i, i + client_count);
        printf("configured again: %s\n", clients[i].given ? "taken" : "refused");
        initialize(i);
    }
}

/* ---- events from words ---- */

typedef struct {
    uint16_t offset;
    uint8_t type;
    bool null;
    char *text;
    uint64_t values[8];
} fixup; /* a pointer that is made at each delivery */

struct replay_event {
    int which, operation, phase;
    uint64_t internal, external, ancestor, object;
    uint32_t bytes, fixup_count;
    fixup fixups[FIXUPS];
    bool timed_now;
    uint64_t payload[24];
};

static uint64_t started; /* the library's clock when the first event was read */

static char *decoded(const char *word) { /* %20 is a space */
    char *text = strdup(word), *to = text;
    for (const char *from = word; *from; from++) {
        unsigned code;
        if (*from == '%' && sscanf(from + 1, "%2x", &code) == 1) *to++ = (char)code, from += 2;
        else *to++ = *from;
    }
    *to = 0;
    return text;
}

static int numbers_in(const char *word, uint64_t *values, int most) {
    int count = 0;
    for (char *end; count < most; word = end + 1) {
        values[count++] = *word == '-' ? (uint64_t)strtoll(word, &end, 0) : strtoull(word, &end, 0);
        if (end == word || (*end && *end != ',')) fails("not a number: %s", word);
        if (!*end) break;
    }
    return count;
}

static void set_pointer(replay_event *e, const field *f, const char *word) {
    if (e->fixup_count == FIXUPS) fails("too many pointers");
    fixup *x = &e->fixups[e->fixup_count++];
    *x = (fixup){.offset = f->offset, .type = f->type, .null = !strcmp(word, "null")};
    if (x->null) return;
    if (f->type == TYPE_text) x->text = decoded(word);
    else numbers_in(word, x->values, 8);
}

static void set_field(replay_event *e, const field *f, const char *word) {
    if (f->type >= TYPE_out) {
        set_pointer(e, f, word);
        return;
    }
    uint64_t values[4] = {0};
    int count = numbers_in(word, values, 4);
    char *place = (char *)e->payload + f->offset;
    if (f->type == TYPE_dim) {
        dim3 d = {(uint32_t)values[0], count > 1 ? (uint32_t)values[1] : 1, count > 2 ? (uint32_t)values[2] : 1};
        memcpy(place, &d, sizeof d);
    } else {
        memcpy(place, values, f->bytes); /* little-endian */
    }
}

static void set_times(replay_event *e, const char *word) {
    uint64_t times[2] = {0};
    e->timed_now = !strcmp(word, "now");
    if (e->timed_now) return;
    if (numbers_in(word + (*word == '+'), times, 2) != 2) fails("t=%s", word);
    for (int i = 0; i < 2; i++) e->payload[1 + i] = *word == '+' ? started + times[i] : times[i];
}

static const field *find_field(const field *fields, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (!strcmp(fields[i].name, name)) return &fields[i];
    return NULL;
}

static void set_argument(replay_event *e, const kind *k, const operation *o, const char *name, const char *word) {
    size_t offset = 0;
    for (size_t i = 0; i < o->count; i++) {
        field f = o->fields[i];
        offset = place_argument(&f, offset);
        f.offset = (uint16_t)(k->arguments + offset);
        offset += f.bytes;
        if (!strcmp(f.name, name)) {
            set_field(e, &f, word);
            return;
        }
    }
    fails("%s has no %s", o->name, name);
}

static void describe_object_payload(const operation *o, const field **fields, size_t *count, size_t *bytes) {
    if (strstr(o->name, "LOAD")) {
        *fields = object_fields, *count = sizeof object_fields / sizeof(field), *bytes = sizeof(object_data);
    } else if (strstr(o->name, "DEVICE")) {
        *fields = symbol_fields, *count = sizeof symbol_fields / sizeof(field);
        *bytes = is_0_5() ? (size_t)SYMBOL_0_5 : sizeof(symbol_data);
    } else {
        *fields = host_symbol_fields, *count = sizeof host_symbol_fields / sizeof(field);
        *bytes = sizeof(host_symbol_data);
    }
}

/* Where the program wants results is there at ENTER too. */
static void add_results(replay_event *e, const kind *k, const operation *o) {
    size_t offset = 0;
    for (size_t i = 0; i < o->count; i++) {
        offset = place_argument(&o->fields[i], offset);
        bool result = o->fields[i].type == TYPE_out || o->fields[i].type == TYPE_outpitched, named = false;
        for (uint32_t j = 0; j < e->fixup_count; j++) named |= e->fixups[j].offset == k->arguments + offset;
        if (result && !named)
            set_pointer(e, &(field){NULL, (uint16_t)(k->arguments + offset), o->fields[i].type, 8}, "0");
        offset += o->fields[i].bytes;
    }
}

/* An image of so many bytes: a later one of the same object is the same one. */
static uint64_t image_of(uint64_t object, uint64_t bytes) {
    uint8_t *image = malloc(bytes);
    if (!image) fails("no memory");
    for (uint64_t i = 0; i < bytes; i++) image[i] = (uint8_t)(i * 7 + object);
    return (uint64_t)(uintptr_t)image;
}

static void set(replay_event *e, const kind *k, const operation *o, const field *fields, size_t count, char *word) {
    char *value = strchr(word, '=');
    if (!value) fails("no value: %s", word);
    *value++ = 0;
    const field *f = find_field(fields, count, word);
    if (!strcmp(word, "@corr")) e->internal = strtoull(value, NULL, 0);
    else if (!strcmp(word, "@anc")) e->ancestor = strtoull(value, NULL, 0);
    else if (!strcmp(word, "@ext")) e->external = strtoull(value, NULL, 0);
    else if (!strcmp(word, "@size")) e->bytes = (uint32_t)strtoul(value, NULL, 0);
    else if (*word == '@') return; /* the program's */
    else if (!strcmp(word, "t")) set_times(e, value);
    else if (!strcmp(word, "ret") && k->result) ((int32_t *)e->payload)[k->result / 4] = (int32_t)strtol(value, NULL, 0);
    else if (f) set_field(e, f, value);
    else set_argument(e, k, o, word, value);
}

EXPORT replay_event *replay_event_of(const char *words) {
    char *copy = strdup(words), *rest = copy, *word = strsep(&rest, " ");
    char *colon = strchr(word, ':'), *phase = strsep(&rest, " ");
    replay_event *e = calloc(1, sizeof *e);
    if (!colon || !phase || !e) fails("%s", words);
    *colon++ = 0;
    if (!started) started = replay_clock();
    int which = 0, i = 0;
    while (which < KINDS && strcmp(kinds[which].name, word)) which++;
    if (which == KINDS) fails("no kind %s", word);
    const kind *k = &kinds[which];
    while (i < (int)k->operation_count && strcmp(k->operations[i].name, colon)) i++;
    if (i == (int)k->operation_count) fails("%s has no %s", word, colon);
    const operation *o = &k->operations[i];
    const field *fields = k->fields;
    size_t count = k->field_count, bytes = is_0_5() ? k->size_0_5 : k->size_1_0;
    if (k->what == OBJECT) describe_object_payload(o, &fields, &count, &bytes);
    e->which = which;
    e->operation = i;
    e->phase = !strcmp(phase, "ENTER") ? PHASE_ENTER : !strcmp(phase, "EXIT") ? PHASE_EXIT : PHASE_NONE;
    e->bytes = (uint32_t)bytes;
    while ((word = strsep(&rest, " ")))
        if (*word) set(e, k, o, fields, count, word);
    add_results(e, k, o);
    if (k->what == DISPATCH) ((dispatch_data *)e->payload)->info.size = sizeof(dispatch_info);
    if (k->what == OBJECT) {
        object_data *d = (object_data *)e->payload;
        bool load = strstr(o->name, "LOAD");
        e->object = load ? d->object : ((symbol_data *)e->payload)->object;
        if (load && d->storage == 2 && !d->memory) d->memory = image_of(d->object, d->memory_bytes);
    }
    e->payload[0] = e->bytes;
    free(copy);
    return e;
}

EXPORT void replay_agent(const char *words) {
    char *copy = strdup(words), *rest = copy, *word;
    size_t bytes = is_0_5() ? (size_t)AGENT_0_5 : sizeof(agent_data);
    agent_data a = {.size = bytes, .name = "cpu", .vendor_name = "AMD", .product_name = "", .model_name = "", .visible = 31,
                    .logical_node = (int32_t)agent_count, .node = (uint32_t)agent_count, .wave_front_size = 64};
    while ((word = strsep(&rest, " "))) {
        char *value = strchr(word, '=');
        if (!value) continue;
        *value++ = 0;
        if (!strcmp(word, "id")) a.id = strtoull(value, NULL, 0);
        else if (!strcmp(word, "type")) a.type = !strcmp(value, "gpu") ? 2 : 1;
        else if (!strcmp(word, "name")) a.name = decoded(value);
        else if (!strcmp(word, "product")) a.product_name = decoded(value);
        else if (!strcmp(word, "visible")) a.visible = (uint32_t)strtoul(value, NULL, 0);
        else if (!strcmp(word, "logical")) a.logical_of_type = (int32_t)strtol(value, NULL, 0);
        else fails("an agent has no %s", word);
    }
    free(copy);
    if (agent_count == MAX_AGENTS) fails("too many agents");
    agents[agent_count++] = memcpy(at_the_end(bytes), &a, bytes);
}

/* ---- what tools keep from ENTER to EXIT, and of a dispatch to its completion ---- */

typedef struct {
    uint64_t key, values[MAX_CONTEXTS];
} kept_user;

static pthread_mutex_t users = PTHREAD_MUTEX_INITIALIZER;
static kept_user *kept;
static size_t kept_places, kept_count; /* a power of two */

static size_t place_of(uint64_t key) {
    size_t i = (size_t)(key * 0x9e3779b97f4a7c15u >> 20) & (kept_places - 1);
    while (kept[i].key && kept[i].key != key) i = (i + 1) & (kept_places - 1);
    return i;
}

static void keep(uint64_t key, const uint64_t *values) {
    uint64_t any = 0;
    for (int c = 0; c < MAX_CONTEXTS; c++) any |= values[c];
    if (!any) return; /* nobody wants to know */
    pthread_mutex_lock(&users);
    if (2 * (kept_count + 1) > kept_places) {
        kept_user *old = kept;
        size_t places = kept_places;
        kept_places = places ? 2 * places : 1024;
        kept = calloc(kept_places, sizeof *kept);
        for (size_t i = 0; i < places; i++)
            if (old[i].key) kept[place_of(old[i].key)] = old[i];
        free(old);
    }
    size_t i = place_of(key);
    if (!kept[i].key) __atomic_add_fetch(&kept_count, 1, __ATOMIC_RELAXED);
    kept[i].key = key;
    memcpy(kept[i].values, values, sizeof kept[i].values);
    pthread_mutex_unlock(&users);
}

static void take(uint64_t key, uint64_t *values, bool remove) {
    if (!__atomic_load_n(&kept_count, __ATOMIC_RELAXED)) return;
    pthread_mutex_lock(&users);
    size_t i = kept_places ? place_of(key) : 0;
    if (kept_places && kept[i].key) {
        memcpy(values, kept[i].values, sizeof kept[i].values);
        for (size_t j = (i + 1) & (kept_places - 1); remove && kept[j].key; j = (j + 1) & (kept_places - 1)) {
            size_t home = (size_t)(kept[j].key * 0x9e3779b97f4a7c15u >> 20) & (kept_places - 1);
            if (((j - home) & (kept_places - 1)) < ((j - i) & (kept_places - 1))) continue;
            kept[i] = kept[j];
            i = j;
        }
        if (remove) kept[i].key = 0, __atomic_sub_fetch(&kept_count, 1, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&users);
}

/* ---- names that live as long as their code object ---- */

typedef struct owned {
    struct owned *next;
    uint64_t object;
    char *text;
} owned;
static owned *names;
static pthread_mutex_t naming = PTHREAD_MUTEX_INITIALIZER;

static char *own(uint64_t object, const char *text) {
    owned *o = malloc(sizeof *o);
    char *copy = strdup(text);
    pthread_mutex_lock(&naming);
    *o = (owned){names, object, copy};
    names = o;
    pthread_mutex_unlock(&naming);
    return copy;
}

static void disown(uint64_t object) {
    pthread_mutex_lock(&naming);
    for (owned **at = &names, *o; (o = *at);) {
        if (o->object != object) {
            at = &o->next;
            continue;
        }
        *at = o->next;
        memset(o->text, '!', strlen(o->text)); /* a tool that kept the pointer shows it */
        free(o->text);
        free(o);
    }
    pthread_mutex_unlock(&naming);
}

/* ---- delivery ---- */

enum { DEPTH = 16, TEXT = 512 };

static _Thread_local struct {
    char *end; /* of a page, behind which is none */
    int depth; /* of the API calls that are open */
    uint64_t users[DEPTH][MAX_CONTEXTS], outs[DEPTH][FIXUPS];
    union {
        pitched_pointer pitched;
        box box;
        plane plane;
        plate plate;
        cube cube;
        format format;
    } structs[DEPTH];
    char text[TEXT];
} mine;

static void make_struct(const fixup *x, int level, bool done) {
    const uint64_t *v = x->values;
    memset(&mine.structs[level], 0, sizeof mine.structs[level]);
    switch (x->type) {
    case TYPE_outpitched:
        mine.structs[level].pitched = (pitched_pointer){v[0], v[1], v[2], v[3]};
        if (!done) memset(&mine.structs[level].pitched, 0xba, sizeof(pitched_pointer));
        return;
    case TYPE_box:
        mine.structs[level].box = (box){.source = {v[0], v[1], v[4], v[5]}, .destination = {v[2], v[3], v[4], v[5]},
                                        .size = {v[4], v[5], v[6]}, .kind = (int32_t)v[7]};
        return;
    case TYPE_plane:
        mine.structs[level].plane = (plane){.source_type = (int32_t)v[0], .source_pitch = v[2],
                                            .destination_type = (int32_t)v[3], .destination_pitch = v[5],
                                            .width = v[6], .height = v[7]};
        *(v[0] == 1 ? &mine.structs[level].plane.source_host : &mine.structs[level].plane.source_device) = v[1];
        *(v[3] == 1 ? &mine.structs[level].plane.destination_host
                    : &mine.structs[level].plane.destination_device) = v[4];
        return;
    case TYPE_plate: mine.structs[level].plate = (plate){v[0], v[1], 0x20, 1}; return;
    case TYPE_cube: mine.structs[level].cube = (cube){v[0], v[1], v[2], 0x20, 1, 0}; return;
    case TYPE_format:
        for (int i = 0; i < 4; i++) mine.structs[level].format.bits[i] = (int32_t)v[i];
        mine.structs[level].format.kind = (int32_t)v[4];
        return;
    default: fails("no struct");
    }
}

static void *pointer_of(const replay_event *e, const fixup *x, int level, int index) {
    bool done = e->phase == PHASE_EXIT;
    if (x->null) return NULL;
    if (x->type == TYPE_out) {
        mine.outs[level][index] = done ? x->values[0] : 0xbad0bad0bad0bad0;
        return &mine.outs[level][index];
    }
    if (x->type != TYPE_text) {
        make_struct(x, level, done);
        return &mine.structs[level];
    }
    if (kinds[e->which].what == OBJECT) return own(e->object, x->text);
    snprintf(mine.text, TEXT, "%s", x->text);
    return mine.text;
}

static void *payload_of(const replay_event *e, const replay_round *round, int level) {
    if (!mine.end) mine.end = (char *)at_the_end(0);
    char *payload = mine.end - (e->bytes < 8 ? 8 : (e->bytes + 7) / 8 * 8); /* its size is always there */
    uint64_t changed[24];
    const uint64_t *from = e->payload;
    if (round->add || e->timed_now || e->fixup_count) {
        memcpy(changed, e->payload, sizeof changed);
        if (kinds[e->which].what == DISPATCH) ((dispatch_data *)changed)->info.dispatch += round->add;
        if (e->timed_now) changed[2] = replay_clock(), changed[1] = changed[2] - 1000;
        for (uint32_t i = 0; i < e->fixup_count; i++) {
            void *pointer = pointer_of(e, &e->fixups[i], level, (int)i);
            memcpy((char *)changed + e->fixups[i].offset, &pointer, sizeof pointer);
        }
        from = changed;
    }
    return memcpy(payload, from, e->bytes < 8 ? 8 : e->bytes);
}

/* A program may look at errno after a call that a tool heard of. */
enum { UNCHANGED = 4711 };
static void check_errno(const char *what) {
    static int wanted = -1;
    if (wanted < 0) wanted = getenv("REPLAY_ERRNO") && *getenv("REPLAY_ERRNO");
    if (wanted && errno != UNCHANGED) fails("%s: the tool set errno to %d", what, errno);
}

static void call(uint32_t c, const replay_event *e, const replay_round *round, void *payload, uint64_t *user) {
    static int dry = -1;
    if (dry < 0) dry = getenv("REPLAY_DRY") != NULL;
    if (dry) return;
    int number = kind_numbers[e->which], operation = operation_numbers[e->which][e->operation];
    void *callback = contexts[c].services[e->which].callback, *argument = contexts[c].services[e->which].argument;
    uint64_t internal = e->internal ? e->internal + round->add : 0, ancestor = e->ancestor ? e->ancestor + round->add : 0;
    errno = UNCHANGED;
    if (is_0_5()) {
        callback_0_5 *function;
        *(void **)&function = callback;
        function((record_0_5){CONTEXT + c, round->thread, internal, e->external, number, operation, e->phase, payload},
                 user, argument);
    } else {
        callback_1_0 *function;
        *(void **)&function = callback;
        function((record_1_0){CONTEXT + c, round->thread, internal, e->external, ancestor, number, operation, e->phase,
                              payload},
                 user, argument);
    }
    check_errno(kinds[e->which].name);
}

static bool wanted_by(uint32_t c, const replay_event *e) {
    static int late = -1;
    if (late < 0) late = getenv("REPLAY_LATE") != NULL;
    return (contexts[c].started || late) && contexts[c].services[e->which].callback &&
           contexts[c].services[e->which].wanted[operation_numbers[e->which][e->operation]];
}

/* The key under which a tool's data of an operation that ends elsewhere is kept; 0: it ends on the thread. */
static uint64_t key_of(const replay_event *e, const replay_round *round) {
    const dispatch_data *d = (const dispatch_data *)e->payload;
    if (kinds[e->which].what == DISPATCH) return 2 * (d->info.dispatch + round->add) + 1;
    if (kinds[e->which].what == COPY) return 2 * (e->internal + round->add + 1);
    return 0;
}

#include "replay_counters.h"

static bool deliver(const replay_event *e, const replay_round *round) {
    bool wanted = false;
    for (uint32_t c = 0; c < context_count; c++) wanted |= wanted_by(c, e);
    if (!wanted) return false;
    uint64_t key = key_of(e, round), here[MAX_CONTEXTS] = {0}, *values = here;
    bool completes = kinds[e->which].what == DISPATCH ? e->phase == PHASE_NONE : e->phase == PHASE_EXIT;
    int level = 0;
    if (key) {
        if (e->phase != PHASE_ENTER) take(key, here, completes);
    } else if (e->phase != PHASE_NONE && kinds[e->which].what != OBJECT) {
        if (e->phase == PHASE_EXIT && mine.depth) mine.depth--;
        level = mine.depth < DEPTH ? mine.depth : DEPTH - 1;
        values = mine.users[level];
        if (e->phase == PHASE_ENTER) {
            memset(values, 0, sizeof mine.users[level]);
            mine.depth++;
        }
    } else {
        level = mine.depth < DEPTH ? mine.depth : DEPTH - 1; /* above what is open */
    }
    void *payload = payload_of(e, round, level);
    for (uint32_t c = 0; c < context_count; c++)
        if (wanted_by(c, e)) call(c, e, round, payload, &values[c]);
    if (key && e->phase == PHASE_ENTER) keep(key, here);
    if (kinds[e->which].what == OBJECT && e->operation == 1 && e->phase == PHASE_EXIT) disown(e->object);
    memset(payload, 0x5a, e->bytes);
    memset(mine.text, '?', TEXT - 1);
    return true;
}

/* Counters of a dispatch are asked for in its submission, and come before or after its completion is told. */
EXPORT bool replay_deliver(const replay_event *e, const replay_round *round) {
    if (!kind_numbers[e->which]) return false; /* a kind that this version does not have */
    bool dispatch = kinds[e->which].what == DISPATCH, completed = dispatch && e->phase == PHASE_NONE;
    bool early = completed && ((const dispatch_data *)e->payload)->info.dispatch % 2;
    if (early) give_counters(e, round);
    bool wanted = deliver(e, round);
    if (dispatch && e->phase == PHASE_ENTER) ask_counters(e, round);
    if (completed && !early) give_counters(e, round);
    return wanted;
}
