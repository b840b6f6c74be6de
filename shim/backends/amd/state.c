/* State that all files share: the SDK's functions, its clock, whether to record, rare conditions. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>

#include "source.h"

/* ---- the SDK ---- */

pasta_amd_library pasta_amd;

void *pasta_amd_resolve(const char *symbol) { return dlsym(pasta_amd.handle, symbol); }
bool pasta_amd_new_layout(void) { return pasta_amd.version >= PASTA_AMD_1_0; }

const char *pasta_amd_status(int32_t status) {
    const char *(*text_of)(int32_t) = (const char *(*)(int32_t))pasta_amd_resolve("rocprofiler_get_status_string");
    const char *text = text_of ? text_of(status) : NULL;
    return text ? text : "unknown error";
}

static int64_t clock_offset;

void pasta_amd_set_clock(int64_t ahead) { clock_offset = ahead; }
uint64_t pasta_amd_time(uint64_t device) { return device - (uint64_t)clock_offset; }

/* ---- recording ---- */

static bool recording;
static uint32_t recorded_generation;

void pasta_amd_set_recording(bool on) {
    if (on) recorded_generation = pasta_generation();
    __atomic_store_n(&recording, on, __ATOMIC_RELEASE);
}

bool pasta_amd_records(void) {
    return __atomic_load_n(&recording, __ATOMIC_ACQUIRE) && pasta_generation() == recorded_generation;
}

/* ---- rare conditions ---- */

static pasta_amd_odd *occurred;

void pasta_amd_count(pasta_amd_odd *odd, uint64_t id) {
    if (__atomic_fetch_add(&odd->count, 1, __ATOMIC_RELAXED)) return;
    odd->next = PASTA_LOAD(occurred);
    while (!__atomic_compare_exchange_n(&occurred, &odd->next, odd, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        continue;
    pasta_log(PASTA_AMD_SOURCE ": %s (%" PRIu64 "); further ones are counted", odd->what, id);
}

void pasta_amd_log_counts(void) {
    for (const pasta_amd_odd *odd = PASTA_LOAD(occurred); odd; odd = odd->next)
        pasta_log(PASTA_AMD_SOURCE ": %s: %" PRIu64, odd->what, PASTA_LOAD(odd->count));
}
