"""Functions of the compiled executor of probes: bits, lane addresses, sectors, banks, objects.

They are compiled into the module that `cpu` generates for a set of tools. All numbers are int64,
addresses with the bits of the unsigned address. Arrays are passed as the address of their memory:
Numba counts references of array arguments at every call, which costs more than a probe.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pasta.compiled import compiled, internal, intrinsic
from pasta.lazy import LazyModule
from pasta.probes.kinds import MAP_SHIFT

#: First bit of the map's number in a record's first word.
MAP_AT = 40 + MAP_SHIFT
#: Words of a record without the addresses that follow.
RECORD = 7
#: Rows of `scratch` (int64) per bank, after the first 64 cells.
_PER_BANK = 32
SCRATCH = 64 + 32 + 32 * _PER_BANK
#: Cells of `scratch` with results of `locate_lanes`, after the addresses; they overlap the banks.
OBJECTS, OFFSETS, _FOUND = 32, 64, 96

ir: Any = LazyModule("llvmlite.ir")
types: Any = LazyModule("numba.core.types")


@intrinsic
def bit_count(context, word):  # type: ignore[no-untyped-def]
    """Number of set bits of an int64."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.ctpop(arguments[0])

    return types.int64(types.int64), generate


@intrinsic
def lowest_bit(context, word):  # type: ignore[no-untyped-def]
    """Index of the lowest set bit of a nonzero int64."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), generate


@intrinsic
def highest_bit(context, word):  # type: ignore[no-untyped-def]
    """Index of the highest set bit of a nonzero int64."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        zeros = builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 1))
        return builder.sub(ir.Constant(ir.IntType(64), 63), zeros)

    return types.int64(types.int64), generate


@intrinsic
def peek(context, memory, index):  # type: ignore[no-untyped-def]
    """The int64 at an index of memory."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.load(_place(builder, *arguments))

    return types.int64(types.int64, types.int64), generate


@intrinsic
def peek_unaligned(context, memory, offset):  # type: ignore[no-untyped-def]
    """The int64 at any offset in bytes."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        address = builder.add(*arguments)
        return builder.load(builder.inttoptr(address, ir.IntType(64).as_pointer()), align=1)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def poke(context, memory, index, value):  # type: ignore[no-untyped-def]
    """Stores an int64 at an index of memory."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        builder.store(arguments[2], _place(builder, *arguments[:2]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _wrapping(operation: str) -> Any:
    """Arithmetic on int64 that wraps around, which Numba does not guarantee."""

    def function(context, a, b):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            numbers = [
                context.cast(builder, value, given, types.int64)
                for value, given in zip(arguments, signature.args, strict=True)
            ]
            return getattr(builder, operation)(*numbers)

        return types.int64(a, b), generate

    return intrinsic(function)


plus, minus, times = map(_wrapping, ("add", "sub", "mul"))


def _place(builder: Any, memory: Any, index: Any) -> Any:
    pointer = builder.inttoptr(memory, ir.IntType(64).as_pointer())
    return builder.gep(pointer, [index])


@internal
def add(memory, index, value):  # type: ignore[no-untyped-def]
    """Adds to an int64 at an index of memory."""
    poke(memory, index, plus(peek(memory, index), value))


@internal
def words_after(form, lanes, values):  # type: ignore[no-untyped-def]
    """Words that follow a record: addresses, and `values` words for each lane."""
    if form == 1:
        return ((lanes + 1) >> 1) + lanes * values
    return (lanes if form == 2 else 0) + lanes * values


@internal
def lane_address(words, at, form, base, stride, lane, place):  # type: ignore[no-untyped-def]
    """Address of a lane, which is the `place`-th active one of the record at `at`."""
    if form == 0:
        return base + stride * lane
    if form == 1:
        half = (peek(words, at + RECORD + (place >> 1)) >> ((place & 1) << 5)) & 0xFFFFFFFF
        return base + ((half ^ 0x80000000) - 0x80000000)
    if form == 2:
        return peek(words, at + RECORD + place)
    return base


@internal
def sorted_addresses(words, at, form, mask, base, stride, scratch):  # type: ignore[no-untyped-def]
    """Writes the addresses of all active lanes to `scratch` in ascending order; returns their
    number."""
    count = 0
    left = mask
    while left != 0:
        lane = lowest_bit(left)
        left &= left - 1
        address = lane_address(words, at, form, base, stride, lane, count)
        place = count
        while place > 0 and peek(scratch, place - 1) > address:
            poke(scratch, place, peek(scratch, place - 1))
            place -= 1
        poke(scratch, place, address)
        count += 1
    return count


@internal
def sector_counts(  # type: ignore[no-untyped-def]
    words, at, form, mask, base, stride, bytes, rows, scratch
):
    """Distinct 32-byte sectors that a record touches, and the minimum for its distinct bytes."""
    if bytes <= 0:
        return 0, 0
    if form == 3:
        count = rows
        first = base if stride >= 0 else base + (rows - 1) * stride
        step = abs(stride)
    else:
        count = bit_count(mask)
        first = 0
        step = 0
        if form == 0 and abs(stride) <= bytes:
            low = lowest_bit(mask)
            run = (mask >> low) + 1
            if run & (run - 1) == 0:  # contiguous lanes and bytes
                ends = low if stride >= 0 else low + count - 1
                first = base + stride * ends
                last = first + abs(stride) * (count - 1) + bytes - 1
                return (last >> 5) - (first >> 5) + 1, (last - first + 32) >> 5
        sorted_addresses(words, at, form, mask, base, stride, scratch)
    sectors = 0
    distinct = 0
    last_sector = np.int64(-1) << 60
    end = np.int64(-1) << 62
    for i in range(count):
        begin = first + i * step if form == 3 else peek(scratch, i)
        stop = begin + bytes
        low_sector = max(begin >> 5, last_sector + 1)
        high_sector = (stop - 1) >> 5
        if high_sector >= low_sector:
            sectors += high_sector - low_sector + 1
            last_sector = high_sector
        if stop > end:
            distinct += stop - max(begin, end)
            end = stop
    return sectors, (distinct + 31) >> 5


@internal
def way_counts(  # type: ignore[no-untyped-def]
    words, at, form, mask, base, stride, bytes, rows, scratch
):
    """Wavefronts that an access to shared memory takes, and those without conflicts."""
    if bytes <= 0:
        return 0, 0
    if form == 3 or bytes > 64:
        waves = (bytes * rows * bit_count(mask) + 127) >> 7
        return waves, waves
    group = 32 if bytes <= 4 else 16 if bytes <= 8 else 8
    ways = 0
    groups = 0
    place = 0
    for start in range(0, 32, group):
        left = (mask >> start) & ((1 << group) - 1)
        if left == 0:
            continue
        groups += 1
        highest = 0
        for bank in range(32):
            poke(scratch, 64 + bank, 0)
        while left != 0:
            lane = start + lowest_bit(left)
            left &= left - 1
            address = lane_address(words, at, form, base, stride, lane, place)
            place += 1
            for word in range(address >> 2, ((address + bytes - 1) >> 2) + 1):
                bank = word & 31
                known = peek(scratch, 64 + bank)
                own = 96 + bank * 32
                i = 0
                while i < known and peek(scratch, own + i) != word:
                    i += 1
                if i == known:
                    poke(scratch, own + known, word)
                    poke(scratch, 64 + bank, known + 1)
                    highest = max(highest, known + 1)
        ways += highest
    return ways, groups


@internal
def _step(starts, at, step, address):  # type: ignore[no-untyped-def]
    """A step of a binary search, without an unpredictable branch."""
    return at + step if np.uint64(peek(starts, at + step)) <= address else at


@internal
def _below(starts, count, address):  # type: ignore[no-untyped-def]
    """Index of the last start less than or equal to the address (uint64), or -1."""
    at = np.int64(-1)
    if count > 0:
        step = 1 << highest_bit(count)
        at = _step(starts, at, count - step + 1, address)
        while step > 1:
            step >>= 1
            at = _step(starts, at, step, address)
    return at


@internal
def _in_layer(layers, number, address, low, high):  # type: ignore[no-untyped-def]
    """The object of a layer that holds the address, or -1, its start, and the range around the
    address in [low, high] with the same result."""
    starts, lasts = peek(layers, 4 * number), peek(layers, 4 * number + 1)
    ids, count = peek(layers, 4 * number + 2), peek(layers, 4 * number + 3)
    at = _below(starts, count, address)
    if at >= 0:
        start, last = np.uint64(peek(starts, at)), np.uint64(peek(lasts, at))
        if address <= last:
            return peek(ids, at), start, max(low, start), min(high, last)
        low = max(low, last + np.uint64(1))
    if at + 1 < count:
        high = min(high, np.uint64(peek(starts, at + 1)) - np.uint64(1))
    return np.int64(-1), np.uint64(0), low, high


@internal
def locate(layers, address):  # type: ignore[no-untyped-def]
    """Object that holds an address (uint64), its start, and the first and last address of the range
    around it with the same result. `layers`: starts, lasts, ids and their number, for 3 layers."""
    low = np.uint64(0)
    high = np.uint64(0xFFFFFFFFFFFFFFFF)
    id, start, low, high = _in_layer(layers, 0, address, low, high)
    if id < 0:
        id, start, low, high = _in_layer(layers, 1, address, low, high)
    if id < 0:
        id, start, low, high = _in_layer(layers, 2, address, low, high)
    return id, start, low, high


@internal
def _locate_in_layer(layers, number, lanes, scratch):  # type: ignore[no-untyped-def]
    """Locates lanes without an object in a layer; returns the number of located ones.

    The binary searches of all lanes (see `_below`) are interleaved, so that their loads overlap.
    """
    starts, lasts = peek(layers, 4 * number), peek(layers, 4 * number + 1)
    ids, count = peek(layers, 4 * number + 2), peek(layers, 4 * number + 3)
    if count == 0:
        return 0
    step = 1 << highest_bit(count)
    for lane in range(lanes):
        at = _step(starts, np.int64(-1), count - step + 1, np.uint64(peek(scratch, lane)))
        poke(scratch, _FOUND + lane, at)
    while step > 1:
        step >>= 1
        for lane in range(lanes):
            at = peek(scratch, _FOUND + lane)
            at = _step(starts, at, step, np.uint64(peek(scratch, lane)))
            poke(scratch, _FOUND + lane, at)
    found = 0
    for lane in range(lanes):
        address, object = peek(scratch, lane), peek(scratch, OBJECTS + lane)
        at = max(peek(scratch, _FOUND + lane), 0)
        start, last = peek(starts, at), peek(lasts, at)
        inside = (np.uint64(start) <= np.uint64(address)) & (np.uint64(address) <= np.uint64(last))
        if inside & (object < 0):
            poke(scratch, OBJECTS + lane, peek(ids, at))
            poke(scratch, OFFSETS + lane, minus(address, start))
            found += 1
    return found


@internal
def locate_lanes(  # type: ignore[no-untyped-def]
    words, at, form, base, lanes, layers, low, high, scratch
):
    """Whether listed addresses of a record are outside of [low, high]; if so, writes the object and
    offset of every active lane to `scratch`."""
    outside = 0
    for place in range(lanes):
        address = lane_address(words, at, form, base, 0, 0, place)
        outside |= np.uint64(address) - low > high - low
        poke(scratch, place, address)
        poke(scratch, OBJECTS + place, -1)
        poke(scratch, OFFSETS + place, address)
    if outside == 0:
        return False
    missing = lanes
    for number in range(3):
        if missing > 0:
            missing -= _locate_in_layer(layers, number, lanes, scratch)
    return True


@internal
def hashed(h, key):  # type: ignore[no-untyped-def]
    """Mixes a key into a hash."""
    h = times(h ^ key, 0x1E3779B97F4A7C15)
    return h ^ ((h >> 29) & 0x7FFFFFFFF)


@compiled(
    words="i8", begin="i8", end="i8", launches="i8", starts="i8", kinds="i8", takers="i8",
    capacity="i8", reached="i8",
)  # fmt: skip
def launch_runs(  # type: ignore[no-untyped-def]
    words, begin, end, launches, starts, kinds, takers, capacity, reached
):
    """Splits records into at most `capacity` runs of one launch. Writes begin, kinds as bits, and
    the number of the map that took all of the run on a GPU, if no words follow its records,
    otherwise 0, and to `reached` their end. Returns the number of runs."""
    count, at = 0, begin
    launch, bits, first, other = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    while at + RECORD <= end:
        head = peek(words, at)
        lanes = bit_count(head & 0xFFFFFFFF)
        following = words_after((head >> 48) & 15, lanes, (head >> 52) & 15)
        number = (head >> MAP_AT) & 15
        if at + RECORD + following > end:
            break
        if count == 0 or peek(words, at + 5) != launch:
            if count == capacity:
                break
            if count:
                poke(kinds, count - 1, bits)
                poke(takers, count - 1, 0 if other else first)
            launch, bits, first, other = peek(words, at + 5), np.int64(0), number, np.int64(0)
            poke(launches, count, launch)
            poke(starts, count, at)
            count += 1
        bits |= 1 << ((head >> 32) & 255)
        other |= (number ^ first) | following
        at += RECORD + following
    if count:
        poke(kinds, count - 1, bits)
        poke(takers, count - 1, 0 if other else first)
    poke(reached, 0, at)
    return count


@compiled(old="i8", length="i8", new="i8", new_length="i8", width="i8", keys="i8")
def move_rows(old, length, new, new_length, width, keys):  # type: ignore[no-untyped-def]
    """Moves the rows of a hash table to an empty one."""
    mask = new_length // width - 1
    at = 0
    while at < length:
        if peek(old, at) != 0:
            h = np.int64(0)
            for i in range(keys):
                h = hashed(h, peek(old, at + 1 + i))
            slot = (h & mask) * width
            while peek(new, slot) != 0:
                slot += width
                if slot == new_length:
                    slot = 0
            for i in range(width):
                poke(new, slot + i, peek(old, at + i))
        at += width
