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

static void nvtxMarkA(const char *m) { FAKE_CALL(fake_core, MARK_A, void (*)(const char *), (void)0, m); }
static void nvtxMarkW(const wchar_t *m) { FAKE_CALL(fake_core, MARK_W, void (*)(const wchar_t *), (void)0, m); }
static int nvtxRangePushA(const char *m) { return FAKE_CALL(fake_core, RANGE_PUSH_A, int (*)(const char *), -2, m); }
static int nvtxRangePushW(const wchar_t *m) { return FAKE_CALL(fake_core, RANGE_PUSH_W, int (*)(const wchar_t *), -2, m); }
static int nvtxRangePushEx(const nvtxEventAttributes_t *a) {
    return FAKE_CALL(fake_core, RANGE_PUSH_EX, int (*)(const nvtxEventAttributes_t *), -2, a);
}
static int nvtxRangePop(void) { return FAKE_CALL(fake_core, RANGE_POP, int (*)(void), -2, ); }
static nvtxRangeId_t nvtxRangeStartA(const char *m) {
    return FAKE_CALL(fake_core, RANGE_START_A, nvtxRangeId_t(*)(const char *), 0, m);
}
static void nvtxRangeEnd(nvtxRangeId_t id) { FAKE_CALL(fake_core, RANGE_END, void (*)(nvtxRangeId_t), (void)0, id); }
static nvtxDomainHandle_t nvtxDomainCreateA(const char *m) {
    return FAKE_CALL(fake_core2, DOMAIN_CREATE_A, nvtxDomainHandle_t(*)(const char *), NULL, m);
}
static nvtxStringHandle_t nvtxDomainRegisterStringA(nvtxDomainHandle_t d, const char *m) {
    return FAKE_CALL(fake_core2, DOMAIN_REGISTER_STRING_A, nvtxStringHandle_t(*)(void *, const char *), NULL, d, m);
}
static int nvtxDomainRangePushEx(nvtxDomainHandle_t d, const nvtxEventAttributes_t *a) {
    return FAKE_CALL(fake_core2, DOMAIN_RANGE_PUSH_EX, int (*)(void *, const nvtxEventAttributes_t *), -2, d, a);
}
static int nvtxDomainRangePop(nvtxDomainHandle_t d) {
    return FAKE_CALL(fake_core2, DOMAIN_RANGE_POP, int (*)(void *), -2, d);
}
static nvtxRangeId_t nvtxDomainRangeStartEx(nvtxDomainHandle_t d, const nvtxEventAttributes_t *a) {
    return FAKE_CALL(fake_core2, DOMAIN_RANGE_START_EX, nvtxRangeId_t(*)(void *, const nvtxEventAttributes_t *), 0, d, a);
}
static void nvtxDomainRangeEnd(nvtxDomainHandle_t d, nvtxRangeId_t id) {
    FAKE_CALL(fake_core2, DOMAIN_RANGE_END, void (*)(void *, nvtxRangeId_t), (void)0, d, id);
}
static void nvtxDomainMarkEx(nvtxDomainHandle_t d, const nvtxEventAttributes_t *a) {
    FAKE_CALL(fake_core2, DOMAIN_MARK_EX, void (*)(void *, const nvtxEventAttributes_t *), (void)0, d, a);
}

#endif
