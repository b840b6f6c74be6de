"""Lookups in patches: their PTX, interpreted on tables built by the source."""

from __future__ import annotations

import ctypes
import itertools
import random
import re
import struct
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from pasta._native import ffi, lib
from pasta.backends.nvidia.intrinsics import bins, define, planes, values
from pasta.backends.nvidia.intrinsics import objects as lookups
from pasta.backends.nvidia.structs import constants
from tests.support.examples import examples
from tests.support.places import ROOT
from tests.support.ptx import Lane, Machine, Memory, Program
from tests.support.session import compile_c

OFFSETS = constants()
USER, TABLE, SLOT, KEYS = 0x1000, 0x7F30_0000_0000, 0x20_0000, 0x30_0000
SPILL, PLANE = 0x40_0000, 0x50_0000
ABSENT = 0xFFFFFFFF
ROWS, SPILL_ROWS = 16, 40
#: The 64-bit registers among operands of inline assembly.
WIDE = {"find": {"$1", "$2"}, "find_offset": {"$1", "$2", "$3"}}
FIND = {"LOAD": "ld.global", **lookups._NO_OFFSET}


@cache
def program_of(text: str, wide: frozenset[str]) -> Program:
    """A text of inline assembly, with its operands' registers."""
    names = re.findall(r"\$\d", text)
    return Program(define.with_offsets(text), {name: 64 if name in wide else 32 for name in names})


class Allocation(ctypes.Structure):
    """pasta_nv_allocation"""

    _fields_ = (
        ("address", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("memory", ctypes.c_uint32),
        ("device", ctypes.c_int16),
        ("flags", ctypes.c_uint8),
        ("peer", ctypes.c_bool),
        ("number", ctypes.c_uint32),
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """object_table.c."""
    path = compile_c(
        tmp_path_factory.mktemp("table") / "table.so",
        [ROOT / "shim" / "backends" / "nvidia" / "object_table.c"],
        "-shared", "-fPIC", "-O2",
    )  # fmt: skip
    library = ctypes.CDLL(str(path))
    library.pasta_nv_table_image.restype = ctypes.c_void_p
    library.pasta_nv_table_place.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    return library


class Launch:
    """Memory with a table of objects and the descriptor of a launch that uses it."""

    def __init__(
        self, source: ctypes.CDLL, objects: list[tuple[int, int]], *, hashed: bool = False
    ) -> None:
        self.objects = objects
        listed = (Allocation * max(1, len(objects)))(
            *(Allocation(address, size, 0, 0, 0, False, number)
              for number, (address, size) in enumerate(objects, 1))
        )  # fmt: skip
        size = ctypes.c_size_t()
        image = source.pasta_nv_table_image(
            listed, ctypes.c_size_t(len(objects)), ctypes.byref(size)
        )
        source.pasta_nv_table_place(image, TABLE)
        self.memory = Memory()
        table = ctypes.string_at(image, size.value)
        self.table = self.memory.add(TABLE, table)
        (self.ranges,) = struct.unpack_from("<Q", table, OFFSETS["T_RANGES"])
        user = bytearray(ffi.sizeof("pasta_probe_launch"))
        base, shape = ABSENT, 0
        if objects:
            first = OFFSETS["T_CLUSTER"]
            (at,) = struct.unpack_from("<Q", table, first + OFFSETS["C_BASE"])
            shift, last = struct.unpack_from("<II", table, first + OFFSETS["C_SHIFT"])
            if at >> lib.PASTA_PROBE_BASE_SHIFT < ABSENT:  # otherwise all lookups use the table
                base, shape = at >> lib.PASTA_PROBE_BASE_SHIFT, last << 8 | shift
        struct.pack_into("<IIQ", user, OFFSETS["L_BASE"], base, shape, self.ranges)
        direct = 0 if hashed else 1 << 31
        struct.pack_into("<QII", user, OFFSETS["L_ROWS"], SLOT, 0, direct)
        struct.pack_into("<Q", user, OFFSETS["L_TABLE"], TABLE)
        struct.pack_into("<QII", user, OFFSETS["L_KEYS"], KEYS, ROWS - 1, SPILL_ROWS)
        struct.pack_into("<Q", user, OFFSETS["L_SPILL"], SPILL)
        struct.pack_into("<Q", user, OFFSETS["L_PLANES"], PLANE)
        self.user = self.memory.add(USER, user)
        self.keys = self.memory.add(KEYS, bytes(4 * ROWS + 4))

    def run(self, text: str, wide: set[str], **given: int) -> dict[str, int]:
        """Registers of a lane after `text`; `given` are `$N` as rN."""
        program = program_of(text, frozenset(wide))
        registers = {f"${name[1:]}": value for name, value in given.items()}
        lane = Lane(0, registers, {"clock": 0})
        Machine(program, self.memory, lambda: None).run([[lane]], random.Random(0))
        return lane.registers

    def find(self, address: int) -> tuple[int, int]:
        """The object's index from 1 and the offset, by both lookups."""
        text = define.fill_in(lookups._FIND, lookups._OFFSET)
        found = self.run(text, WIDE["find_offset"], r2=USER, r3=address)
        for load in ("ld.global", "ld.global.nc"):
            text = define.fill_in(lookups._FIND, {**lookups._NO_OFFSET, "LOAD": load})
            assert self.run(text, WIDE["find"], r1=USER, r2=address)["$0"] == found["$0"]
        bucket = self.bucket(address)
        assert bucket < 1 << 31 or bucket == found["$0"] | 1 << 31
        return found["$0"], found["$1"]

    def bucket(self, address: int) -> int:
        """The bucket of an address, or its part; bit 31: filled by an object."""
        text = define.fill_in(lookups._BUCKET, FIND)
        return self.run(text, WIDE["find"], r1=USER, r2=address)["$0"]

    def forget_ranges(self) -> None:
        """Only buckets remain in the table."""
        at = self.ranges - TABLE
        self.table[at : at + len(self.objects) * OFFSETS["RANGE"]] = bytes(
            len(self.objects) * OFFSETS["RANGE"]
        )

    def owner(self, address: int) -> tuple[int, int]:
        """Expected result of `find`: the last object that begins at or below the address."""
        at = max((each for each in self.objects if each[0] <= address), default=(0, 0))
        if not address - at[0] < at[1]:
            return 0, address
        return self.objects.index(at) + 1, address - at[0]

    def set(self, object: int, field: str, value: int) -> None:
        """Changes a field of an object's range."""
        at = self.ranges - TABLE + (object - 1) * OFFSETS["RANGE"] + OFFSETS[field]
        (format_,) = {"R_PLANE": "I", "R_BINS": "I"}.get(field, "B")
        struct.pack_into(f"<{format_}", self.table, at, value)


SIZES = st.one_of(
    st.integers(1, 8), st.integers(1, 1 << 13), st.integers(1, 1 << 22),
    st.integers(1, 64).map(lambda n: 512 * n), st.integers(1, 1 << 36),
)  # fmt: skip
#: Address ranges from which the driver allocates pools, mapped, device and pinned memory, and one
#: below 128 KiB.
AREAS = (0x1000, 0x2_0000_0000, 0x3_0200_0000, 0x100_0000_0000, 0x7F4D_4FE0_0000, 0x1FFFF_0000_0000)


@st.composite
def objects(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Sorted, with distinct starts; some overlap the previous one."""
    found: list[tuple[int, int]] = []
    for area in sorted(draw(st.sets(st.sampled_from(AREAS)))):
        at = max(area, found[-1][0] + 1) if found else area
        for size, gap in draw(
            st.lists(st.tuples(SIZES, st.sampled_from((0, 0, 1, 512, 1 << 20, 1 << 33, -1))),
                     max_size=6)
        ):  # fmt: skip
            found.append((at, size))
            at += max(1, size // 2) if gap < 0 else size + gap
    return found


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(objects(), st.data())
def test_address_maps_to_the_containing_object(
    source: ctypes.CDLL, objects: list[tuple[int, int]], data: st.DataObject
) -> None:
    launch = Launch(source, objects)
    addresses = {0, (1 << 64) - 2}
    for start, size in objects:
        inside = start + data.draw(st.integers(0, size - 1))
        addresses |= {start - 1, start, start + size - 1, start + size, inside, inside + (1 << 32)}
    for address in addresses:
        assert launch.find(address) == launch.owner(address), hex(address)


def test_large_objects_are_found_by_the_bucket_alone(source: ctypes.CDLL) -> None:
    start = 0x7F4D_0000_0000
    launch = Launch(source, [(start - 4096, 512), (start, 1 << 30)])
    launch.forget_ranges()
    text = define.fill_in(lookups._FIND, FIND)
    for address in range(start + (1 << 25), start + (1 << 30) - (1 << 25), 1 << 25):
        assert launch.run(text, WIDE["find"], r1=USER, r2=address)["$0"] == 2
        assert launch.bucket(address) == 1 << 31 | 2


def test_small_tensors_are_found_by_the_parts_of_their_bucket(source: ctypes.CDLL) -> None:
    """Beside large ones, which make buckets longer than many tensors together."""
    start, size, large = 0x7F4D_0000_0000, 16 << 10, 64 << 20
    tensors = [(start + size * number, size) for number in range(100)]
    launch = Launch(source, [*tensors, (start + large, large)])
    launch.forget_ranges()
    text = define.fill_in(lookups._FIND, FIND)
    for number, (address, _) in enumerate(tensors, 1):
        middle = address + size // 2
        assert launch.run(text, WIDE["find"], r1=USER, r2=middle)["$0"] == number
        assert launch.bucket(middle) == 1 << 31 | number


@pytest.mark.parametrize("seed", [1, 2])
def test_segments_of_a_framework(source: ctypes.CDLL, seed: int) -> None:
    """Of 2 and 20 MiB, often adjacent, some of them in pieces: each ends where the next begins."""
    chosen, at = random.Random(seed), 0x7F4D_0000_0000
    pieces: list[tuple[int, int]] = []
    for _ in range(16):
        size = chosen.choice((2, 2, 2, 20, 20, 34)) << 20
        cuts = {512 * chosen.randrange(1, size // 512) for _ in range(chosen.choice((0, 1, 5, 30)))}
        edges = [0, *sorted(cuts), size]
        pieces += [(at + begin, end - begin) for begin, end in itertools.pairwise(edges)]
        at += size + chosen.choice((0, 0, 0, 2 << 20, 1 << 30))
    launch = Launch(source, pieces)
    for start, size in pieces:
        for address in (start, start + size - 1, start + size):
            assert launch.find(address) == launch.owner(address), hex(address)


def test_the_smallest_tensors_fill_parts_of_buckets(source: ctypes.CDLL) -> None:
    """PyTorch aligns tensors to 512 bytes; its segments may be far apart."""
    start, segment = 0x7F4D_0000_0000, 2 << 20
    tensors = [(start + 512 * number, 512) for number in range(200)]
    far = [(start + number * (100 << 20), segment) for number in range(1, 9)]
    launch = Launch(source, [*tensors, (start + 512 * 200, segment - 512 * 200), *far])
    for number, (address, _) in enumerate(launch.objects, 1):
        assert launch.bucket(address) == 1 << 31 | number


def test_many_objects_in_one_part_are_searched(source: ctypes.CDLL) -> None:
    start = 0x7F4D_0000_0000
    launch = Launch(
        source, [(start + 16 * n, 12) for n in range(300)] + [(start + (1 << 30), 1 << 34)]
    )
    for address in (*range(start, start + 16 * 300, 5), start + (1 << 30), start + (1 << 33)):
        assert launch.find(address) == launch.owner(address), hex(address)


def small(count: int) -> list[tuple[int, int]]:
    return [(0x7F4D_0000_0000 + 512 * number, 400) for number in range(count)]


def test_rows_are_object_indices_if_they_suffice(source: ctypes.CDLL) -> None:
    launch = Launch(source, small(10))
    for object in range(11):
        assert at_row(launch, object) == SLOT + 24 * object
    assert not any(launch.keys)


def test_objects_without_a_row_are_counted_behind_the_slots(source: ctypes.CDLL) -> None:
    launch = Launch(source, small(60), hashed=True)
    order = list(range(61))
    random.Random(3).shuffle(order)
    found = {object: at_row(launch, object) for object in order}
    assert {object: at_row(launch, object) for object in order} == found  # and stay there
    hashed = [at for at in found.values() if at < SLOT + 24 * ROWS and at >= SLOT]
    assert len(hashed) == len(set(hashed)) == ROWS
    for object, at in found.items():
        if at not in hashed:
            assert at == (SPILL + 24 * object if object < SPILL_ROWS else SLOT + 24 * ROWS)
    keys = struct.unpack(f"<{ROWS + 1}I", launch.keys)
    assert all(keys) and keys[-1] == 1
    for row, key in enumerate(keys[:-1]):  # the number of an object is its index here
        assert found[key - 1] == SLOT + 24 * row


def test_spill_flag_is_unset_while_rows_suffice(source: ctypes.CDLL) -> None:
    launch = Launch(source, small(60), hashed=True)
    for object in (3, 19, 35, 51, 0):  # all but one hash to the same row
        at_row(launch, object)
    assert struct.unpack_from("<I", launch.keys, 4 * ROWS) == (0,)


def at_row(launch: Launch, object: int) -> int:
    text = define.fill_in(lookups._AT_ROW, {"BYTES": "24"})
    return launch.run(text, {"$0", "$1"}, r1=USER, r2=object)["$0"]


@given(st.integers(0, 600), st.integers(0, 7), st.integers(0, 1 << 12), st.integers(0, 1 << 32))
def test_rows_are_found_in_any_stripe(object: int, log: int, pieces: int, clock: int) -> None:
    bytes, stripes = 32 * pieces, 1 << log
    text = define.fill_in(lookups._ROW_AT, {"BYTES": "24"})
    shape = bytes | (stripes - 1 | 1 << 31) << 32  # negative as int64: rows are indices
    given = {"$1": SLOT, "$2": shape, "$3": object}
    lane = Lane(0, given, {"clock": clock % (1 << 32)})
    program = program_of(text, frozenset(("$0", "$1", "$2")))
    Machine(program, Memory(), lambda: None).run([[lane]], random.Random(0))
    expected = SLOT + clock % stripes * bytes + 24 * object
    assert lane.registers["$0"] == expected


@given(st.integers(1, 1 << 34), st.integers(5, 26), st.data())
def test_granule_bytes_end_with_the_object(
    source: ctypes.CDLL, size: int, shift: int, data: st.DataObject
) -> None:
    launch = Launch(source, [(0x7F4D_0000_0000, size)])
    launch.set(1, "R_PLANE_SHIFT", shift)
    last = (size - 1) >> shift
    granule = data.draw(st.one_of(st.integers(0, last), st.just(last)))
    first = granule & ~31
    bits = data.draw(st.integers(1, (1 << (min(last, first + 31) - first + 1)) - 1))
    text = planes._BYTES
    found = launch.run(text, {"$0", "$1"}, r1=USER, r2=1, r3=bits, r4=granule)["$0"]
    granules = [first + bit for bit in range(32) if bits >> bit & 1]
    assert found == sum(min((each + 1) << shift, size) - (each << shift) for each in granules)


@given(st.integers(0, (1 << 34) - 1), st.integers(0, 30))
def test_bins_are_parts_of_the_object(source: ctypes.CDLL, offset: int, shift: int) -> None:
    launch = Launch(source, [(0x7F4D_0000_0000, 1 << 34)])
    text = bins._BIN
    wide = {"$1", "$3"}
    assert launch.run(text, wide, r1=USER, r2=1, r3=offset)["$0"] == ABSENT  # it has none
    launch.set(1, "R_BINS", 7)
    launch.set(1, "R_BIN_SHIFT", shift)
    found = launch.run(text, wide, r1=USER, r2=1, r3=offset)["$0"]
    assert found == (7 + (offset >> shift)) % (1 << 32)
    assert launch.run(text, wide, r1=USER, r2=0, r3=offset)["$0"] == ABSENT


# ---- granules -------------------------------------------------------------------------------


@cache
def marking() -> Program:
    widths = {"$0": 32, "$1": 32, "$2": 64, "$3": 32, "$4": 64}
    return Program(planes._marking(0, by_launch=True), widths)


def touch(launch: Launch, warps: list[tuple[int, dict[int, int]]], seed: int) -> list[Any]:
    """Runs `warps` concurrently, each with an epoch and offsets by lane. Returns (epoch, granule)
    for each first marking.
    """
    by_epoch = {}
    for epoch in {epoch for epoch, _ in warps}:
        by_epoch[epoch] = USER + 0x1000 * epoch
        user = bytearray(launch.user)
        struct.pack_into("<Q", user, OFFSETS["L_EPOCH"], epoch)
        launch.memory.add(by_epoch[epoch], user)
    program = marking()
    lanes = [
        [
            Lane(number, {"$2": by_epoch[epoch], "$3": 1, "$4": offset}, {"laneid": number})
            for number, offset in offsets.items()
        ]
        for epoch, offsets in warps
    ]
    Machine(program, launch.memory, lambda: None).run(lanes, random.Random(seed))
    marked = []
    for (epoch, _), warp in zip(warps, lanes, strict=True):
        for lane in warp:
            first = lane.registers["$1"] & ~31
            bits = lane.registers["$0"]
            marked += [(epoch, first + bit) for bit in range(32) if bits >> bit & 1]
    return marked


OFFSET = st.one_of(st.integers(0, 4095), st.integers(0, 127).map(lambda n: 4 * n))
WARP = st.dictionaries(st.integers(0, 31), OFFSET, min_size=1)


def plane(source: ctypes.CDLL) -> Launch:
    launch = Launch(source, [(0x7F4D_0000_0000, 4096)])
    launch.set(1, "R_PLANE_SHIFT", 5)
    launch.set(1, "R_PLANE", 3)
    launch.memory.add(PLANE, bytes(8 * (3 + 4)))
    return launch


@examples(40)
@given(st.lists(WARP, min_size=1, max_size=4), st.integers(0, 99))
def test_each_granule_is_first_marked_once(
    source: ctypes.CDLL, warps: list[dict[int, int]], seed: int
) -> None:
    launch = plane(source)
    for epoch in (5, 6):
        marked = touch(launch, [(epoch, warp) for warp in warps], seed)
        wanted = {offset >> 5 for warp in warps for offset in warp.values()}
        assert sorted(granule for _, granule in marked) == sorted(wanted)


@examples(40)
@given(st.permutations(range(128)), st.permutations(range(128)), st.integers(0, 99))
def test_concurrent_launches_share_words(
    source: ctypes.CDLL, first: list[int], second: list[int], seed: int
) -> None:
    """Exact if no launch touches a granule twice."""
    warps = [
        (epoch, {lane: 32 * granule for lane, granule in enumerate(granules[at : at + 32])})
        for epoch, granules in ((5, first), (6, second))
        for at in range(0, 128, 32)
    ]
    marked = touch(plane(source), warps, seed)
    assert sorted(marked) == [(epoch, granule) for epoch in (5, 6) for granule in range(128)]


@pytest.mark.parametrize("bytes", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("offset", [0, 16])
def test_values_are_zero_extended(bytes: int, offset: int) -> None:
    """Of the first 16 bytes; nothing behind the value is read."""
    content = struct.pack("<6Q", *(0xF1E2_D3C4_B5A6_9788 * n % (1 << 64) for n in range(1, 7)))
    memory = Memory()
    memory.add(SLOT, content[: offset + bytes])
    program = Program(define.with_offsets(values._VALUE), {"$0": 64, "$1": 64, "$2": 64, "$3": 32})

    def value_at(address: int) -> tuple[int, int]:
        lane = Lane(0, {"$2": address, "$3": bytes}, {})
        Machine(program, memory, lambda: None).run([[lane]], random.Random(0))
        return lane.registers["$0"], lane.registers["$1"]

    whole = int.from_bytes(content[offset : offset + min(bytes, 16)], "little")
    assert value_at(SLOT + offset) == (whole % (1 << 64), whole >> 64)
    assert value_at(0) == (0, 0)
