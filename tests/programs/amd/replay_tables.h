/* The tables of replay_sdk.c: types of values, operations and their arguments, kinds and their
 * payloads, and their numbers in this process. */

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
typedef struct { /* hipLaunchConfig_t, HIP_LAUNCH_CONFIG */
    uint32_t grid[3], block[3];
    uint64_t shared, stream;
    const void *attributes;
    uint32_t attribute_count;
} launch_description;
typedef struct { /* hipLaunchParams */
    uint64_t function;
    uint32_t grid[3], block[3];
    uint64_t arguments, shared, stream;
} device_launch;
_Static_assert(sizeof(launch_description) == 56 && sizeof(device_launch) == 56, "as HIP has them");
_Static_assert(sizeof(box) == 160 && sizeof(plane) == 128, "as HIP has them");

/* clang-format off */
#define TYPES(X)                                                                                        \
    X(ptr, uint64_t) X(u64, uint64_t) X(int, int32_t) X(u32, uint32_t) X(u16, uint16_t) X(u8, uint8_t)  \
    X(dim, dim3) X(pitched, pitched_pointer) X(extent, extent)                                          \
    X(out, uint64_t *) X(text, const char *) X(outpitched, pitched_pointer *)                           \
    X(box, box *) X(plane, plane *) X(plate, plate *) X(cube, cube *) X(format, format *) \
    X(described, launch_description *) X(devices, device_launch *)
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
/* the longest one has the size that the table states for all */
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
static const operation runtime_operations[] = {
    NAMED("RUNTIME_INITIALIZATION_NONE"), NAMED("RUNTIME_INITIALIZATION_HSA"), NAMED("RUNTIME_INITIALIZATION_HIP"),
    NAMED("RUNTIME_INITIALIZATION_MARKER")};
static const operation others[] = {NAMED("ANOTHER_API_FIRST"), NAMED("ANOTHER_API_SECOND")};

/* Offset of a member after this many bytes, as placed by the compiler. */
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
    int what, number_0_5, number_1_0; /* from the tables, or ANY */
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
static int last_kind, last_operation[KINDS];       /* one past the last valid one */
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

/* Assigns unused numbers from `from` on, in any order, to entries of `wanted` that are ANY. */
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
    last_operation[which] = api ? (has_old_records() ? 463 : 477) : count;
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

/* A kind's number; ABSENT where this version has none.  Those of 0.6, and of versions after 1.0, are in no table. */
static int number_in_this_version(const kind *k) {
    if (is_0_5()) return k->number_0_5;
    if (is_0_6()) return k->what == STREAM || k->what == RANGE ? ABSENT : ANY;
    return version() > 10000 ? ANY : k->number_1_0;
}

static size_t payload_bytes(const kind *k) {
    return is_0_5() || (is_0_6() && k->what == COPY) ? k->size_0_5 : k->size_1_0;
}

static size_t agent_bytes(void) {
    return is_0_5() ? (size_t)AGENT_0_5 : is_0_6() ? (size_t)AGENT_0_6 : sizeof(agent_data);
}

__attribute__((constructor)) static void number(void) {
    for (int i = 0; i < KINDS; i++) check_placement(kinds[i].operations, kinds[i].operation_count);
    const char *seed = getenv("REPLAY_SEED");
    random_state = seed ? strtoull(seed, NULL, 0) : 1;
    int present[KINDS], numbers[KINDS], count = 0;
    for (int i = 0; i < KINDS; i++) {
        int listed = number_in_this_version(&kinds[i]);
        if (listed == ABSENT) continue;
        present[count] = i;
        numbers[count++] = listed;
    }
    last_kind = is_0_5() ? 15 : is_0_6() ? count + 1 : 22;
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
