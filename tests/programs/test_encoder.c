/* refacc's accesses as records: every encoding, and the cost of a record (--speed). */
#include "../../shim/backends/refacc/accesses.c"

#include <stdio.h>

#include "../../shim/python/trace_reader.h"
#include "check.h"

static uint64_t seed = 1;

static uint64_t random_word(void) { return seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u; }

static const uint8_t *next_record(uint32_t *bytes) {
    const uint8_t *data = pasta_trace_take(pasta_trace_mine(), PASTA_TAKE_seal, bytes);
    CHECK(data);
    return data;
}

/* Decodes as specified in the header. */
static void check_addresses(const ra_access *a, const pasta_access *e) {
    const int32_t *delta = (const int32_t *)(e + 1);
    const uint64_t *full = (const uint64_t *)(e + 1);
    for (int lane = 0; lane < 32; lane++) {
        if (!(e->mask >> lane & 1)) continue;
        uint64_t address = e->form == PASTA_FORM_STRIDE   ? e->address + (uint64_t)lane * (uint64_t)e->stride
                           : e->form == PASTA_FORM_DELTAS ? e->address + (uint64_t)(int64_t)*delta++
                                                          : *full++;
        CHECK(address == a->address[lane]);
    }
}

static void check_access(const ra_access *a, int form) {
    uint32_t bytes;
    pasta_refacc_on_access((void *)UINT64_C(77), a);
    const pasta_access *e = (const void *)next_record(&bytes);
    CHECK(e->form == form && bytes == pasta_access_bytes(e->form, __builtin_popcount(a->mask)));
    CHECK(e->mask == a->mask && e->kind == PASTA_ACCESS_global && e->flags == a->flags && e->bytes == a->bytes);
    CHECK(e->sm == 9 && e->rows == a->rows && e->warp == 3 && e->pc == 4242 && e->launch == 77 && e->block == 11);
    if (form == PASTA_FORM_ROWS)
        CHECK(e->address == a->address[__builtin_ctz(a->mask)] && e->stride == a->stride);
    else
        check_addresses(a, e);
    pasta_trace_release(pasta_trace_mine());
}

static ra_access access_of(uint32_t mask) {
    return (ra_access){.size = sizeof(ra_access), .kind = RA_KIND_GLOBAL, .flags = RA_ACCESS_READ, .bytes = 4,
                       .mask = mask, .rows = 1, .warp = 3, .multiprocessor = 9, .pc = 4242, .block_index = 11};
}

static void set_strided(ra_access *a, uint64_t base, int64_t stride) {
    for (uint32_t lane = 0; lane < 32; lane++)
        a->address[lane] = a->mask >> lane & 1 ? base + lane * (uint64_t)stride : 0;
}

/* Where another form would do for few lanes, that one: STRIDE for one, and for two unless their distance
 * is no multiple of their lanes'. */
static void check_forms(uint32_t mask) {
    ra_access a = access_of(mask);
    int lanes = __builtin_popcount(mask), last = 31 - __builtin_clz(mask);
    static const int64_t strides[] = {0, 4, -4, 128, 1, INT64_C(1) << 40, INT64_MIN / 64};
    for (size_t i = 0; i < sizeof strides / sizeof *strides; i++) {
        set_strided(&a, UINT64_C(0x6a1000000000), strides[i]);
        check_access(&a, PASTA_FORM_STRIDE);
    }
    if (lanes < 3) return;
    set_strided(&a, UINT64_C(0x6a1000000000), 4);
    a.address[last] += 3;
    check_access(&a, PASTA_FORM_DELTAS);
    a.address[last] = a.address[__builtin_ctz(mask)] + INT32_MAX;
    check_access(&a, PASTA_FORM_DELTAS);
    a.address[last]++;
    check_access(&a, PASTA_FORM_FULL);
    a.address[last] = a.address[__builtin_ctz(mask)] - (UINT64_C(1) << 31);
    check_access(&a, PASTA_FORM_DELTAS);
    a.address[last]--;
    check_access(&a, PASTA_FORM_FULL);
    for (int lane = 0; lane < 32; lane++) a.address[lane] = mask >> lane & 1 ? random_word() : 0;
    check_access(&a, PASTA_FORM_FULL);
}

static void check_rows(void) {
    ra_access a = access_of(1u << 5);
    a.address[5] = 4096;
    a.rows = 7;
    a.stride = 400;
    a.kind = RA_KIND_TENSOR_LOAD;
    uint32_t bytes;
    pasta_refacc_on_access(NULL, &a);
    const pasta_access *e = (const void *)next_record(&bytes);
    CHECK(bytes == sizeof *e && e->form == PASTA_FORM_ROWS && e->kind == PASTA_ACCESS_tensor_load);
    CHECK(e->rows == 7 && e->stride == 400 && e->address == 4096 && e->mask == 1u << 5);
    pasta_trace_release(pasta_trace_mine());
}

/* Behind the addresses, a word or two for each lane; of kinds and sizes that have values. */
static void check_values(void) {
    unsigned char values[32 * 16];
    for (size_t i = 0; i < sizeof values; i++) values[i] = (unsigned char)(7 * i + 1);
    static const struct {
        uint32_t bytes, words;
        ra_kind kind;
    } cases[] = {{1, 1, RA_KIND_GLOBAL}, {4, 1, RA_KIND_GLOBAL}, {8, 1, RA_KIND_ASYNC_COPY},
                 {16, 2, RA_KIND_GLOBAL}, {4, 0, RA_KIND_SHARED}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int wanted = 0; wanted < 2; wanted++) {
            uint32_t bytes, words = wanted ? cases[i].words : 0;
            ra_access a = access_of(1u << 2 | 1u << 5 | 1u << 6);
            a.bytes = cases[i].bytes;
            a.kind = cases[i].kind;
            a.value = values;
            set_strided(&a, 4096, 16);
            a.address[6]++;
            pasta_refacc_values = wanted;
            pasta_refacc_on_access(NULL, &a);
            const pasta_access *e = (const void *)next_record(&bytes);
            CHECK(e->form == (PASTA_FORM_DELTAS | words << PASTA_FORM_VALUES));
            CHECK(bytes == pasta_access_bytes(e->form, 3) && bytes == sizeof *e + 16 + 3 * words * 8);
            const unsigned char *found = (const unsigned char *)(e + 1) + 16;
            static const int lanes[] = {2, 5, 6};
            for (uint32_t lane = 0; lane < 3 && words; lane++) {
                uint64_t expected[2] = {0, 0};
                memcpy(expected, values + lanes[lane] * (int)a.bytes, a.bytes);
                CHECK(!memcmp(found + (size_t)lane * words * 8, expected, words * 8));
            }
            pasta_trace_release(pasta_trace_mine());
        }
    pasta_refacc_values = false;
}

/* A time in place of an address, where the accelerator tells it. */
static void check_times(void) {
    uint32_t bytes;
    for (int old = 0; old < 2; old++) {
        ra_access a = access_of(UINT32_MAX);
        a.kind = RA_KIND_BLOCK_ENTER;
        a.time = 12345;
        if (old) a.size = offsetof(ra_access, time);
        pasta_refacc_on_access(NULL, &a);
        const pasta_access *e = (const void *)next_record(&bytes);
        CHECK(e->address == (old ? 0 : 12345) && e->stride == 0 && bytes == sizeof *e);
        pasta_trace_release(pasta_trace_mine());
    }
}

static void two_lanes(void) {
    ra_access a = access_of(1u << 2 | 1u << 5);
    a.address[2] = 1000;
    a.address[5] = 1001;
    check_access(&a, PASTA_FORM_DELTAS);
    a.address[5] = 1003;
    check_access(&a, PASTA_FORM_STRIDE);
}

static void speed(const char *what, const ra_access *a) {
    enum { RECORDS = 5000000, BATCH = 5000 };
    uint64_t spent = 0;
    uint32_t bytes;
    for (int done = 0; done < RECORDS; done += BATCH) {
        uint64_t start = pasta_now();
        for (int i = 0; i < BATCH; i++) pasta_refacc_on_access(NULL, a);
        spent += pasta_now() - start;
        while (pasta_trace_take(pasta_trace_mine(), PASTA_TAKE_seal, &bytes)) pasta_trace_release(pasta_trace_mine());
    }
    printf("%s: %.1f million records per second\n", what, RECORDS * 1e3 / (double)spent);
}

int main(int count, char **arguments) {
    CHECK(pasta_trace_open());
    if (count > 1 && !strcmp(arguments[1], "--speed")) {
        ra_access a = access_of(UINT32_MAX);
        set_strided(&a, UINT64_C(0x6a1000000000), 4);
        speed("unit stride", &a);
        a.mask = 0x0ffffff0;
        speed("24 lanes", &a);
        a.mask = UINT32_MAX;
        a.address[7] += 1000;
        speed("scattered near", &a);
        a.address[7] += UINT64_C(1) << 40;
        speed("scattered far", &a);
        return 0;
    }
    check_forms(UINT32_MAX);
    check_forms(1);
    check_forms(1u << 31);
    check_forms(0x80000001);
    check_forms(0x0000ffff);
    check_forms(0xffff0000);
    check_forms(0xeeeeeeee);
    for (int i = 0; i < 1000; i++) {
        uint32_t mask = (uint32_t)(random_word() >> 32);
        if (mask) check_forms(mask);
    }
    two_lanes();
    check_rows();
    check_values();
    check_times();
    CHECK(configured_kinds() == (pasta_config("probe_kinds")
                                     ? (1u << RA_KIND_GLOBAL | 1u << RA_KIND_BULK_LOAD)
                                     : (1u << RA_KIND_COUNT) - 2));
    CHECK(pasta_trace_mine()->dropped == 0);
    return 0;
}
