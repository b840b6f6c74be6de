/* Replaces the NVTX headers if they are not installed: loads the injection library and
 * calls through the tables that it fills, as NVTX does. */
#ifndef PASTA_TEST_NVTX_FAKE_H
#define PASTA_TEST_NVTX_FAKE_H

#include <dlfcn.h>
#include <stdlib.h>

#include "../../shim/annotations/nvtx_abi.h"

enum { FAKE_FUNCTIONS = 16 };
static pasta_nvtx_function fake_core[FAKE_FUNCTIONS], fake_core2[FAKE_FUNCTIONS];

static int fake_module_table(int module, pasta_nvtx_function ***table, unsigned *size) {
    static pasta_nvtx_function *slots[2][FAKE_FUNCTIONS + 1];
    if (module != PASTA_NVTX_CORE && module != PASTA_NVTX_CORE2) return 0;
    int second = module == PASTA_NVTX_CORE2;
    for (int i = 1; i < FAKE_FUNCTIONS; i++) slots[second][i] = second ? &fake_core2[i] : &fake_core[i];
    *table = slots[second];
    *size = FAKE_FUNCTIONS;
    return 1;
}

static const void *fake_tables(uint32_t table) {
    static const pasta_nvtx_callbacks callbacks = {sizeof callbacks, fake_module_table};
    return table == PASTA_NVTX_TABLE_CALLBACKS ? &callbacks : NULL;
}

static void fake_load(void) {
    static int loaded;
    if (loaded++) return;
    const char *path = getenv("NVTX_INJECTION64_PATH"); /* empty: linked into this program */
    void *library = path ? dlopen(*path ? path : NULL, RTLD_LAZY) : NULL;
    int (*initialize)(pasta_nvtx_tables) = NULL;
    if (library) *(void **)&initialize = dlsym(library, "InitializeInjectionNvtx2");
    if (initialize) initialize(fake_tables);
}

/* A call of function `number`, or `otherwise` if it is unset. */
#define FAKE_CALL(table, number, type, otherwise, ...) \
    (fake_load(), table[PASTA_NVTX_##number] ? ((type)table[PASTA_NVTX_##number])(__VA_ARGS__) : otherwise)

typedef void *nvtxDomainHandle_t;
typedef const void *nvtxStringHandle_t;
typedef uint64_t nvtxRangeId_t;

typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t colorType;
    uint32_t color;
    int32_t payloadType, reserved0;
    uint64_t payload;
    int32_t messageType;
    union {
        const char *ascii;
        const wchar_t *unicode;
        const void *registered;
    } message;
} nvtxEventAttributes_t;

enum { NVTX_VERSION = 3, NVTX_COLOR_ARGB = 1, NVTX_MESSAGE_TYPE_ASCII = 1, NVTX_MESSAGE_TYPE_UNICODE, NVTX_MESSAGE_TYPE_REGISTERED };

static inline void nvtxMarkA(const char *m) { FAKE_CALL(fake_core, MARK_A, void (*)(const char *), (void)0, m); }
static inline void nvtxMarkW(const wchar_t *m) { FAKE_CALL(fake_core, MARK_W, void (*)(const wchar_t *), (void)0, m); }
static inline int nvtxRangePushA(const char *m) { return FAKE_CALL(fake_core, RANGE_PUSH_A, int (*)(const char *), -2, m); }
static inline int nvtxRangePushW(const wchar_t *m) { return FAKE_CALL(fake_core, RANGE_PUSH_W, int (*)(const wchar_t *), -2, m); }
static inline int nvtxRangePushEx(const nvtxEventAttributes_t *a) {
    return FAKE_CALL(fake_core, RANGE_PUSH_EX, int (*)(const nvtxEventAttributes_t *), -2, a);
}
static inline int nvtxRangePop(void) { return FAKE_CALL(fake_core, RANGE_POP, int (*)(void), -2, ); }
static inline nvtxRangeId_t nvtxRangeStartA(const char *m) {
    return FAKE_CALL(fake_core, RANGE_START_A, nvtxRangeId_t(*)(const char *), 0, m);
}
static inline void nvtxRangeEnd(nvtxRangeId_t id) { FAKE_CALL(fake_core, RANGE_END, void (*)(nvtxRangeId_t), (void)0, id); }
static inline nvtxDomainHandle_t nvtxDomainCreateA(const char *m) {
    return FAKE_CALL(fake_core2, DOMAIN_CREATE_A, nvtxDomainHandle_t(*)(const char *), NULL, m);
}
static inline nvtxStringHandle_t nvtxDomainRegisterStringA(nvtxDomainHandle_t d, const char *m) {
    return FAKE_CALL(fake_core2, DOMAIN_REGISTER_STRING_A, nvtxStringHandle_t(*)(void *, const char *), NULL, d, m);
}
static inline int nvtxDomainRangePushEx(nvtxDomainHandle_t d, const nvtxEventAttributes_t *a) {
    return FAKE_CALL(fake_core2, DOMAIN_RANGE_PUSH_EX, int (*)(void *, const nvtxEventAttributes_t *), -2, d, a);
}
static inline int nvtxDomainRangePop(nvtxDomainHandle_t d) {
    return FAKE_CALL(fake_core2, DOMAIN_RANGE_POP, int (*)(void *), -2, d);
}
static inline nvtxRangeId_t nvtxDomainRangeStartEx(nvtxDomainHandle_t d, const nvtxEventAttributes_t *a) {
    return FAKE_CALL(fake_core2, DOMAIN_RANGE_START_EX, nvtxRangeId_t(*)(void *, const nvtxEventAttributes_t *), 0, d, a);
}
static inline void nvtxDomainRangeEnd(nvtxDomainHandle_t d, nvtxRangeId_t id) {
    FAKE_CALL(fake_core2, DOMAIN_RANGE_END, void (*)(void *, nvtxRangeId_t), (void)0, d, id);
}
static inline void nvtxDomainMarkEx(nvtxDomainHandle_t d, const nvtxEventAttributes_t *a) {
    FAKE_CALL(fake_core2, DOMAIN_MARK_EX, void (*)(void *, const nvtxEventAttributes_t *), (void)0, d, a);
}

/* ---- payloads ---- */

typedef pasta_nvtx_payload nvtxPayloadData_t;
typedef struct {
    uint64_t flags, type;
    const char *name, *description;
    uint64_t arrayOrUnionDetail, offset;
    const void *semantics, *reserved;
} nvtxPayloadSchemaEntry_t;

typedef struct {
    uint64_t fieldMask;
    const char *name;
    uint64_t type, flags;
    const nvtxPayloadSchemaEntry_t *entries;
    size_t numEntries, payloadStaticSize, packAlign;
    uint64_t schemaId;
    void *extension;
} nvtxPayloadSchemaAttr_t;

#define NVTX_PAYLOAD_TYPE_EXT ((int32_t)0xdfbd0009)
enum { NVTX_PAYLOAD_ENTRY_TYPE_NVTX_REGISTERED_STRING_HANDLE = 80, NVTX_PAYLOAD_SCHEMA_TYPE_STATIC = 1 };
enum {
    NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_TYPE = 1 << 2,
    NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ENTRIES = 1 << 4,
    NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NUM_ENTRIES = 1 << 5,
    NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_STATIC_SIZE = 1 << 6,
};

static inline uint64_t nvtxPayloadSchemaRegister(nvtxDomainHandle_t d, const nvtxPayloadSchemaAttr_t *schema) {
    static pasta_nvtx_function slots[FAKE_FUNCTIONS];
    pasta_nvtx_segment segment = {0, FAKE_FUNCTIONS, slots};
    pasta_nvtx_extension extension = {3, sizeof extension, PASTA_NVTX_EXTENSION_PAYLOAD, 0x0104, 1, &segment, NULL, NULL};
    const char *path = getenv("NVTX_INJECTION64_PATH");
    void *library = path ? dlopen(*path ? path : NULL, RTLD_LAZY) : NULL;
    int (*initialize)(pasta_nvtx_extension *) = NULL;
    if (library) *(void **)&initialize = dlsym(library, "InitializeInjectionNvtxExtension");
    if (!slots[PASTA_NVTX_PAYLOAD_SCHEMA_REGISTER] && (!initialize || !initialize(&extension))) return 0;
    uint64_t (*function)(void *, const nvtxPayloadSchemaAttr_t *) =
        (uint64_t(*)(void *, const nvtxPayloadSchemaAttr_t *))slots[PASTA_NVTX_PAYLOAD_SCHEMA_REGISTER];
    return function ? function(d, schema) : 0;
}

#endif
