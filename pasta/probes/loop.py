"""The loop of the CPU executor over access records, common to all tools.

Compiled into the module that `cpu` generates, whose functions are arguments: Numba compiles calls
of them as direct calls. All numbers are int64, memory is passed as its address.
"""

from __future__ import annotations

import numpy as np

from pasta.compiled import internal
from pasta.probes.tables import DONE, EXCHANGED, FULL, LANES, LAUNCH
from pasta.probes.warp import (
    MAP_AT,
    OBJECTS,
    OFFSETS,
    RECORD,
    bit_count,
    lane_address,
    locate,
    locate_lanes,
    lowest_bit,
    peek,
    poke,
    sector_counts,
    way_counts,
    words_after,
)

#: Arguments of the function that runs the probes of a warp, after `env` and `number`.
WARP_FIELDS = (
    "kind", "pc", "bytes", "is_read", "is_write", "is_atomic", "mask", "lanes", "sectors",
    "ideal_sectors", "ways", "ideal_ways", "block", "warp", "sm", "launch", "time", "rows",
    "stride", "has_value", "warp_bytes",
)  # fmt: skip
#: The same of the function that runs the probes of a lane.
LANE_FIELDS = (
    "address", "object", "offset", "known", "lane", "leader", "value", "value_high", *WARP_FIELDS,
)  # fmt: skip


@internal(inline=True)
def run_records(  # type: ignore[no-untyped-def]
    words, at, end, env, scratch, layers, traced, capacity,
    probed, by_lanes, located, with_sectors, with_ways, counted, recorded,
    run_warp, run_lane, take_record, write_record,
):  # fmt: skip
    """Runs the probes over the records in `words[at:end]` and returns where it stopped: at `end`,
    or at the record for which a map is full (the cell FULL of the state).

    `probed`, `by_lanes`, `located`, `with_sectors`, `with_ways`: kinds of accesses (bit n: the kind
    of number n) with a probe, with a probe that runs in each lane, and with a probe that uses
    objects, sectors or wavefronts. `counted`: numbers of the maps whose accesses a device recorded
    for the host to count, `recorded`: their kinds. The functions come from the tools:
    `run_warp(env, number, *WARP_FIELDS)` and `run_lane(env, number, *LANE_FIELDS)` run the probes,
    or with a map's `number` count for it; `take_record(state, traced, capacity, at, mask, number)`
    and `write_record(state, traced, capacity, at)` note the record for the maps that hand records
    on. Kinds with a time have it in place of an address.
    """
    state = env[0]
    found, origin, low, high = locate(layers, np.uint64(0))
    while at + RECORD <= end:
        head = peek(words, at)
        mask = head & 0xFFFFFFFF
        kind = (head >> 32) & 255
        form = (head >> 48) & 15
        values = (head >> 52) & 15
        lanes = bit_count(mask)
        after = at + RECORD + words_after(form, lanes, values)
        if after > end:
            break
        number = (head >> MAP_AT) & 15
        if number != 0 and (counted >> number) & 1 == 0:
            # recorded by patches on a device, whose probes have run
            take_record(state, traced, capacity, at, mask, number)
            at = after
            continue
        wanted, in_objects, in_lanes = probed, located, by_lanes
        if number != 0:
            wanted, in_objects, in_lanes = recorded, recorded, recorded
        if mask != 0 and kind < 64 and (wanted >> kind) & 1:
            second = peek(words, at + 1)
            row_stride, base = peek(words, at + 2), peek(words, at + 3)
            pc, launch, block = peek(words, at + 4), peek(words, at + 5), peek(words, at + 6)
            row_bytes = second & 0xFFFFFFFF
            rows, stride = 1, 0
            if form == 3:
                rows, stride = max((second >> 32) & 0xFFFF, 1), row_stride
            bytes = row_bytes * rows
            warp = (second >> 48) & 0xFFFF
            sm = (head >> 56) & 255
            is_read = (head >> 40) & 1
            is_write = (head >> 41) & 1
            is_atomic = (head >> 42) & 1
            has_value = 1 if values != 0 else 0
            sectors, ideal_sectors, ways, ideal_ways = 0, 0, 0, 0
            if number == 0 and (with_sectors >> kind) & 1:
                sectors, ideal_sectors = sector_counts(
                    words, at, form, mask, base, row_stride, row_bytes, rows, scratch
                )
            if number == 0 and (with_ways >> kind) & 1:
                ways, ideal_ways = way_counts(
                    words, at, form, mask, base, row_stride, row_bytes, rows, scratch
                )
            poke(state, LAUNCH, launch)
            poke(state, DONE, 0)
            poke(state, EXCHANGED, 0)
            poke(state, LANES, mask)
            run_warp(
                env, number, kind, pc, bytes, is_read, is_write, is_atomic, mask, lanes, sectors,
                ideal_sectors, ways, ideal_ways, block, warp, sm, launch, base, rows, stride,
                has_value, bytes * lanes,
            )  # fmt: skip
            if (in_lanes >> kind) & 1:
                apart = False
                if (in_objects >> kind) & 1 and (form == 1 or form == 2):
                    apart = locate_lanes(words, at, form, base, lanes, layers, low, high, scratch)
                    first, last = OBJECTS, OBJECTS + lanes - 1
                    if apart and peek(scratch, first) == peek(scratch, last):
                        # likely all lanes, and those of the next warps, are in one object
                        found, origin, low, high = locate(layers, np.uint64(peek(scratch, 0)))
                left = mask
                place = 0
                while left != 0:
                    lane = lowest_bit(left)
                    left &= left - 1
                    leader = 1 if place == 0 else 0
                    address = lane_address(words, at, form, base, row_stride, lane, place)
                    object, known, offset = np.int64(-1), 0, address
                    if apart:
                        object = peek(scratch, OBJECTS + place)
                        offset = peek(scratch, OFFSETS + place)
                    elif (in_objects >> kind) & 1:
                        unsigned = np.uint64(address)
                        if unsigned - low > high - low:
                            found, origin, low, high = locate(layers, unsigned)
                        object = found
                        offset = address - np.int64(origin)
                    known = 1 if object >= 0 else 0
                    value, value_high = np.int64(0), np.int64(0)
                    if values != 0:
                        beside = at + RECORD + words_after(form, lanes, 0) + place * values
                        value = peek(words, beside)
                        if values > 1:
                            value_high = peek(words, beside + 1)
                    place += 1
                    poke(state, LANES, 1 << lane)
                    run_lane(
                        env, number, address, object, offset, known, lane, leader, value,
                        value_high, kind, pc, bytes, is_read, is_write, is_atomic, mask, lanes,
                        sectors, ideal_sectors, ways, ideal_ways, block, warp, sm, launch, base,
                        rows, stride, has_value, bytes * lanes,
                    )  # fmt: skip
            if peek(state, FULL) != 0:
                return at
            write_record(state, traced, capacity, at)
        at = after
    return at
