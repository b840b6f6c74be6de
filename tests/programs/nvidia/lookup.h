/* The end of a patch's lookup, from a bucket to the range: `find` of pasta/backends/nvidia/intrinsics/objects.py. */
#ifndef PASTA_TEST_LOOKUP_H
#define PASTA_TEST_LOOKUP_H

#include <stddef.h>
#include <stdint.h>

#include "../../../shim/include/pasta_probes.h"
#include "../check.h"

/* `entry`: the bucket of an address, of 1 << shift bytes; NULL: no object has the address. */
static inline const pasta_object_range *range_in_bucket(const pasta_object_table *table, const uint32_t *entry,
                                                        uint64_t shift, uint64_t address) {
    const pasta_object_range *ranges = (const void *)(uintptr_t)table->ranges;
    if (!(*entry & PASTA_PROBE_WHOLE) && *entry & PASTA_PROBE_PARTS) {
        uint64_t part = address >> (shift - PASTA_PROBE_PARTS_SHIFT) & ((1 << PASTA_PROBE_PARTS_SHIFT) - 1);
        entry -= (*entry & ~PASTA_PROBE_PARTS) + part;
        CHECK(*entry & PASTA_PROBE_WHOLE || !(*entry & PASTA_PROBE_PARTS));
    }
    if (*entry & PASTA_PROBE_WHOLE) {
        const pasta_object_range *whole = &ranges[(*entry & ~PASTA_PROBE_WHOLE) - 1];
        CHECK(whole < ranges + table->count && address - whole->start < whole->size);
        return whole;
    }
    uint32_t low = *entry & ((1 << PASTA_PROBE_MORE_SHIFT) - 1), more = *entry >> PASTA_PROBE_MORE_SHIFT;
    uint32_t high = more == PASTA_PROBE_MANY ? table->count : low + more;
    CHECK(low >= 1 && low <= high && high <= table->count);
    while (low < high) {
        uint32_t middle = (low + high + 1) / 2;
        if (address < ranges[middle - 1].start) high = middle - 1;
        else low = middle;
    }
    return address - ranges[low - 1].start < ranges[low - 1].size ? &ranges[low - 1] : NULL;
}

#endif
