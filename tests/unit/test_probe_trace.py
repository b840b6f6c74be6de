"""Trace maps on a GPU: records written by patches in a PTX interpreter, and complete patches."""

from __future__ import annotations

import random
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from pasta._native import ffi
from pasta.backends.nvidia import trace_records as trace
from pasta.backends.nvidia.libraries import find_ptxas
from pasta.backends.nvidia.nvptx import compile_patches
from pasta.backends.nvidia.patches import write
from pasta.backends.nvidia.plan import arguments_of, functions_of, instances_of, layout_of
from pasta.backends.nvidia.structs import constants
from pasta.errors import MissingDependency, ToolError
from pasta.plugins import load_tools
from pasta.probes.cpu import CpuExecutor
from pasta.probes.kinds import DELTAS, FULL, MAP_SHIFT, ROWS, STRIDE
from pasta.probes.maps import accumulators_of
from pasta.probes.records import ACCESS, WORDS, Access, Accesses
from pasta.processors.filter import Filter
from pasta.processors.snapshots import Layer, Snapshot
from pasta.runtime.pipeline import Pipeline
from pasta.testing import Events
from tests.support.examples import examples
from tests.support.ptx import Lane, Machine, Memory, Program, lanes_of

USER, RING, CONTROL, DATA = 0x1000, 0x10000, 0x40000, 0x100000
SHIFT, WAYS = 12, 8
OFFSETS = constants()
EPOCH = 77
EMPTY = Layer(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.int64))


class Device:
    """Memory as the NVIDIA source prepares it, and a host that takes ready chunks."""

    def __init__(self, *, single: bool = False) -> None:
        self.memory = Memory()
        self.slots: list[tuple[int, bytes]] = []
        user = bytearray(ffi.sizeof("pasta_probe_launch"))
        struct.pack_into("<Q", user, OFFSETS["L_TRACE"], RING)
        struct.pack_into("<Q", user, OFFSETS["L_EPOCH"], EPOCH)
        self.memory.add(USER, user)
        ring = bytearray(ffi.sizeof("pasta_probe_trace"))
        struct.pack_into("<QQII", ring, 0, DATA, CONTROL, 1 << SHIFT, SHIFT)
        struct.pack_into("<Q", ring, OFFSETS["Q_PATIENCE"], 2000)
        for stripe in range(128):
            struct.pack_into("<Q", ring, OFFSETS["Q_CURSOR"] + 32 * stripe, 1 << SHIFT)
        self.ring = self.memory.add(RING, ring)
        control = bytearray(ffi.sizeof("pasta_probe_places"))
        for place in range(1024):
            struct.pack_into("<I", control, OFFSETS["P_OPEN"] + 4 * place, place % WAYS or WAYS)
        self.control = self.memory.add(CONTROL, control)
        self.data = self.memory.add(DATA, bytes(1024 << SHIFT))
        self.next = [1] * 128
        self.works = True
        self.machine = Machine(
            Program(trace.assembly(OFFSETS, single=single)), self.memory, self.host
        )

    def word(self, of: bytearray, offset: int) -> int:
        return int.from_bytes(of[offset : offset + 4], "little")

    def host(self) -> None:
        """Takes the next ready chunk of every stripe, if the host works."""
        for stripe in range(4) if self.works else ():
            place = stripe * WAYS + self.next[stripe] % WAYS
            ready = self.word(self.control, OFFSETS["P_READY"] + 4 * place)
            if ready:
                self._take(stripe, place, ready)
                struct.pack_into("<I", self.control, OFFSETS["P_READY"] + 4 * place, 0)
                number = self.next[stripe] + WAYS
                struct.pack_into("<I", self.control, OFFSETS["P_OPEN"] + 4 * place, number)
                self.next[stripe] += 1

    def _take(self, stripe: int, place: int, size: int) -> None:
        begin = place << SHIFT
        self.slots.append((stripe, bytes(self.data[begin : begin + size])))
        self.data[begin : begin + (1 << SHIFT)] = bytes(1 << SHIFT)

    def finish(self) -> None:
        """Takes all chunks, including open ones; all their records must be complete."""
        for _ in range(2 * WAYS):
            self.host()
        for stripe in range(128):
            at = OFFSETS["Q_CURSOR"] + 32 * stripe
            used, number = struct.unpack_from("<II", self.ring, at)
            if number == 0 or used & trace.CONSTANTS["OVER"]:
                continue
            assert number == self.next[stripe]
            place = stripe * WAYS + number % WAYS
            (done,) = struct.unpack_from("<Q", self.ring, OFFSETS["Q_DONE"] + 8 * place)
            assert done == used
            self._take(stripe, place, used)

    @property
    def records(self) -> list[tuple[Any, bytes]]:
        """Records, and the addresses behind them."""
        found = []
        for _, chunk in self.slots:
            at = 0
            while at < len(chunk):
                record = np.frombuffer(chunk[at : at + 8 * WORDS], ACCESS)[0]
                lanes = bin(record["mask"]).count("1")
                tail = {DELTAS: 4, FULL: 8}.get(int(record["form"]), 0) * lanes
                found.append((record, chunk[at + 64 : at + 64 + tail]))
                at += 64 + -(-tail // 32) * 32
        return found


def special(lane: int, *, sm: int = 0, block: int = 0, warp: int = 0) -> dict[str, int]:
    thread = 32 * warp + lane
    return {
        "laneid": lane, "lanemask_lt": (1 << lane) - 1, "smid": sm,
        "tid.x": thread % 16, "tid.y": thread // 16 % 2, "tid.z": thread // 32,
        "ntid.x": 16, "ntid.y": 2, "ntid.z": 8,
        "ctaid.x": block % 5, "ctaid.y": block // 5 % 3, "ctaid.z": block // 15,
        "nctaid.x": 5, "nctaid.y": 3, "nctaid.z": 1 << 10,
    }  # fmt: skip


def warp_of(
    addresses: dict[int, int], *, pc: int = 0x4000, size: int = 4, head: int = 0x101, **where: int
) -> list[Lane]:
    """A warp of lanes that write together, each with its address."""
    mask = sum(1 << lane for lane in addresses)
    return [
        Lane(
            lane,
            {"$0": USER, "$1": pc, "$2": address, "$3": mask, "$4": size, "$5": head},
            special(lane, **where),
        )
        for lane, address in addresses.items()
    ]


def addresses_of(record: Any, tail: bytes) -> dict[int, int]:
    """Address of each active lane."""
    lanes = list(lanes_of(int(record["mask"])))
    base, form = int(record["address"]), int(record["form"])
    if form == STRIDE:
        return {lane: (base + lane * int(record["stride"])) % (1 << 64) for lane in lanes}
    values = np.frombuffer(tail, np.int32 if form == DELTAS else np.uint64).tolist()
    offset = base if form == DELTAS else 0
    return {lane: (offset + value) % (1 << 64) for lane, value in zip(lanes, values, strict=True)}


BASE = 0x7F12_3456_7800
ACCESSES = {
    "coalesced": ({lane: BASE + 4 * lane for lane in range(32)}, STRIDE),
    "backwards": ({lane: BASE - 16 * lane for lane in range(32)}, STRIDE),
    "one address": (dict.fromkeys(range(32), BASE), STRIDE),
    "one lane": ({17: BASE + 3}, STRIDE),
    "every third lane": ({lane: BASE + 8 * lane for lane in range(1, 32, 3)}, STRIDE),
    "gaps": ({lane: BASE + 8 * lane for lane in (3, 4, 9, 30)}, STRIDE),
    "no division": ({lane: BASE + 7 * (lane // 2) for lane in range(0, 32, 3)}, DELTAS),
    "scattered": ({lane: BASE + lane * lane * 4 for lane in range(32)}, DELTAS),
    "far down": ({0: BASE, 1: BASE - (1 << 31)}, STRIDE),
    "scattered down": ({0: BASE, 1: BASE - (1 << 31), 5: BASE}, DELTAS),
    "too far": ({0: BASE, 1: BASE + (1 << 31)}, FULL),
    "wraps in 32 bits": ({0: BASE, 1: BASE + (1 << 30), 4: BASE}, DELTAS),
    "ends of memory": ({2: 0, 3: (1 << 64) - 4, 9: 1 << 63}, FULL),
    "three scattered": ({5: BASE, 6: BASE + 1, 31: BASE}, DELTAS),
}


@pytest.mark.parametrize("name", ACCESSES)
def test_addresses_use_the_shortest_encoding(name: str) -> None:
    addresses, form = ACCESSES[name]
    device = Device()
    lanes = warp_of(addresses, pc=0x123456789A, size=16, head=0x1301, sm=131, block=38, warp=5)
    device.machine.run([lanes], random.Random(1))
    device.finish()
    ((record, tail),) = device.records
    assert addresses_of(record, tail) == addresses
    mask = sum(1 << lane for lane in addresses)
    assert {field: int(record[field]) for field in ACCESS.names or ()} == {
        "mask": mask, "kind": 1, "flags": 0x13, "form": form, "sm": 131, "bytes": 16, "rows": 1,
        "warp": 5, "stride": int(record["stride"]), "address": int(record["address"]),
        "pc": 0x123456789A, "launch": EPOCH, "block": 38,
    }  # fmt: skip
    ordered = [addresses[lane] for lane in lanes_of(mask)]
    encoded = np.frombuffer(Access("global", ordered, mask=mask).encoded()[: 8 * WORDS], ACCESS)[0]
    if form == STRIDE:
        assert (record["address"], record["stride"]) == (encoded["address"], encoded["stride"])


@pytest.mark.parametrize("rows", [1, 9])
def test_one_lane_writes_for_the_warp(rows: int) -> None:
    device = Device(single=True)
    registers = {
        "$0": USER, "$1": 8, "$2": BASE, "$3": 0xFF00, "$4": 128 * rows, "$5": 0x109,
        "$6": rows, "$7": 1 << 33,
    }  # fmt: skip
    device.machine.run([[Lane(8, registers, special(8, block=(1 << 32) - 1))]], random.Random(1))
    device.finish()
    ((record, _),) = device.records
    found = [int(record[name]) for name in ("mask", "bytes", "rows", "form", "stride", "address")]
    assert found == [
        0xFF00,
        128,
        rows,
        ROWS if rows > 1 else STRIDE,
        (1 << 33) if rows > 1 else 0,
        BASE,
    ]
    assert int(record["block"]) == (1 << 32) - 1


def test_no_record_without_a_ring() -> None:
    device = Device()
    device.memory.store(USER + OFFSETS["L_TRACE"], 8, 0)
    device.machine.run([warp_of({0: BASE})], random.Random(1))
    device.finish()
    assert device.records == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_concurrent_warps_neither_lose_nor_duplicate_records(seed: int) -> None:
    """More records than fit in a stripe, on two multiprocessors and one that stops early."""
    choose = random.Random(seed)
    device = Device()
    expected = []
    for turn in range(40):
        warps = []
        for number in range(12):
            sm = number % 2 if turn else number % 3
            base = (turn << 16 | number << 8) << 16
            stretch = choose.choice((1, 2))
            addresses = {lane: base + 4 * lane**stretch for lane in range(32)}
            expected.append(addresses)
            warps.append(warp_of(addresses, sm=sm, warp=number))
        device.machine.run(warps, choose)
    device.finish()
    found = sorted(addresses_of(*each)[0] for each in device.records)
    assert found == sorted(each[0] for each in expected)
    by_first = {each[0]: each for each in expected}
    assert all(by_first[addresses_of(*each)[0]] == addresses_of(*each) for each in device.records)


@pytest.mark.slow
@pytest.mark.parametrize("says", [False, True], ids=["silent", "closed"])
def test_warps_terminate_and_count_drops_without_a_host(says: bool) -> None:
    device = Device()
    device.works = False
    if says:
        struct.pack_into("<I", device.control, OFFSETS["P_BEAT"], trace.CONSTANTS["OVER"])
        struct.pack_into("<Q", device.ring, OFFSETS["Q_PATIENCE"], 1 << 40)
    written = 0
    for turn in range(40):
        warps = [warp_of({lane: BASE + 4 * lane for lane in range(32)}) for _ in range(16)]
        device.machine.run(warps, random.Random(turn))
        written += len(warps)
    (dropped,) = struct.unpack_from("<Q", device.ring, OFFSETS["Q_DROPPED"])
    device.works = True
    device.finish()
    assert len(device.records) + dropped == written
    assert len(device.records) == (WAYS << SHIFT) // 64


# ---- whole patches ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def patches() -> tuple[str, Any]:
    tools = load_tools(
        ["mem_trace"], {"mem_trace": {"shared_memory": "true", "local_memory": "true"}}
    )
    return write(layout_of(tools), instances_of(tools), "13.5")


@pytest.mark.slow
@pytest.mark.parametrize("sm", [80, 90, 100])
def test_patches_compile_without_a_large_stack(patches: tuple[str, Any], sm: int) -> None:
    try:
        find_ptxas()
    except MissingDependency as error:
        pytest.skip(str(error))
    text, found = patches
    functions = functions_of(text, arguments_of(found))
    made = compile_patches(functions, sm)
    stacks = [int(size) for size in re.findall(r"(\d+) bytes stack frame", made.usage)]
    assert len(stacks) == len(functions)
    assert max(stacks) <= 160
    assert made.ptx.count("atom.release.sys.global.add.u64") > len(functions)


LANES = """
from pasta.tool import Result, Tool
from pasta.probes import Counter, Trace, probe

class Lanes(Tool):
    "Some lanes."
    odd = Trace()
    all = Trace()
    count = Counter(by="launch")

    @probe.global_memory
    def some(access, maps):
        if access.lane & 1:
            maps.odd.write(access)

    @probe.memory(per="warp")
    def whole(access, maps):
        maps.count.add()
        if access.lanes > 3:
            maps.all.write(access)

    def start(self):
        self.taken = []

    def on_accesses(self, accesses):
        rows = zip(*(accesses.columns[name].tolist() for name in ("launch", "address", "mask")))
        self.taken += [(accesses.map, *row) for row in rows]

    def result(self):
        return Result()
"""


def test_patches_of_lanes_and_of_warps_write_their_map_number(tmp_path: Path) -> None:
    path = tmp_path / "lanes.py"
    path.write_text(LANES)
    tools = load_tools([str(path)])
    text, found = write(layout_of(tools), instances_of(tools), "13.5")
    numbers = re.findall(r"def t0_(\w+)__write\(env\):(?:\n.*){3}\n    head \|= (\d+)", text)
    assert numbers == [("odd", str(1 << 12)), ("all", str(2 << 12))]
    assert "if env[LEADS] != 0:\n        t0_count__add_uniform(env, *given)" in text
    patch = text[text.index("def pasta_global") :].split("\n\n")[0]
    assert "    t0_some(lane, env)" in patch
    assert "EVERYONE), is_first(mask))\n    t0_whole_whole(lanes, env)" in patch
    assert {each.kind for each in found} >= {"global", "tensor_load", "shared", "local"}


HEAT = """
from pasta.tool import Result, Tool
from pasta.probes import Counter, Histogram, Trace, probe

class Heat(Tool):
    "Bins over time, and all in all."
    first = Trace()
    heat = Histogram(by="object", bin=100, window=20)
    total = Counter()

    @probe.global_memory
    def touch(access, maps):
        if access.is_write == 0:
            maps.heat.add(access.object, access.offset{amount})
        maps.total.add()

    def on_accesses(self, accesses):
        pass

    def result(self):
        return Result()
"""


def heat(tmp_path: Path, amount: str = "") -> Any:
    path = tmp_path / "heat.py"
    path.write_text(HEAT.replace("{amount}", amount))
    (tool,) = load_tools([str(path)])
    return tool


def test_histogram_by_window_is_recorded(tmp_path: Path) -> None:
    tool = heat(tmp_path)
    text, found = write(layout_of([tool]), instances_of([tool]), "13.5")
    (op,) = re.findall(r"def t0_heat__add_uniform\(.*?\n\n", text, re.DOTALL)
    assert f"head |= {2 << 12}" in op and "trace_lanes(" in op and "atomic" not in op
    assert functions_of(text, arguments_of(found))


def test_a_histogram_by_window_counts_accesses(tmp_path: Path) -> None:
    tool = heat(tmp_path, ", access.bytes")
    with pytest.raises(ToolError, match="an amount other than 1") as raised:
        write(layout_of([tool]), instances_of([tool]), "13.5")
    assert "leave out the amount" in str(raised.value)


# ---- on the host -----------------------------------------------------------------------------


@pytest.mark.slow
@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(
    st.tuples(
        st.integers(0, 3), st.booleans(),
        st.lists(st.integers(0, 5000), min_size=1, max_size=32),
    ),
    max_size=20,
))  # fmt: skip
def test_recorded_accesses_count_like_probes(
    tmp_path: Path, given: list[tuple[int, bool, list[int]]]
) -> None:
    """Through the probes, on records without a map, and on records that patches wrote for their
    maps."""
    starts, lasts = np.array([100, 3000], np.uint64), np.array([2099, 4000], np.uint64)
    layers = (Layer(starts, lasts, np.array([0, 1], np.int64)), *(EMPTY,) * 2)
    sizes = np.array([2000, 1001], np.uint64)
    found = []
    for number in (0, 2):
        tool = heat(tmp_path)
        executor = CpuExecutor([tool])
        records = [
            Access(
                "global", addresses, launch=launch,
                flags=(2 if write else 1) | number << MAP_SHIFT,
            ).encoded()
            for launch, write, addresses in sorted(given)
            if not (number and write)  # the patch's probe did not write those
        ]  # fmt: skip
        words = np.frombuffer(b"".join(records), np.int64)
        executor.run(words, 0, len(words), Snapshot(0, layers), sizes)
        executor.flush()
        found.append(accumulators_of(tool)["heat"].rows().tolist())
        if number:
            assert accumulators_of(tool)["total"].total() == 0
    assert found[0] == found[1]


@pytest.mark.slow
def test_probes_do_not_rerun_on_gpu_records(tmp_path: Path) -> None:
    path = tmp_path / "lanes.py"
    path.write_text(LANES)
    (tool,) = load_tools([str(path)])
    executor = CpuExecutor([tool])
    numbers = (1, 2, 2, 0)
    records = [
        Access("global", [0, 4, 8, 100], flags=1 | number << MAP_SHIFT).encoded()
        for number in numbers
    ]
    words = np.frombuffer(b"".join(records), np.int64)
    begins = [sum(map(len, records[:i])) // 8 for i in range(len(records))]
    sizes = np.empty(0, np.uint64)
    written = executor.run(words, 0, len(words), Snapshot(0, (EMPTY,) * 3), sizes)
    taken = {
        name: (starts.tolist(), masks.tolist())
        for (_, name), (starts, masks) in zip(executor.traces, written, strict=True)
    }
    # The last one has no map: probes process it, and its odd lanes are lanes 1 and 3.
    assert taken == {
        "odd": ([begins[0], begins[3]], [15, 10]),
        "all": ([begins[1], begins[2], begins[3]], [15, 15, 15]),
    }
    executor.flush()
    assert accumulators_of(tool)["count"].total() == 1
    some = Accesses("odd", words, *written[0], lambda launches, addresses: launches)
    assert some.records["flags"].tolist() == [1, 1]
    assert some.columns["address"].tolist() == [0, 4]
    assert Accesses.joined([some, some]).lanes["address"].tolist() == [0, 4, 8, 100, 4, 100] * 2


@pytest.mark.slow
@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans()), max_size=30),
    st.sampled_from([None, 0, 2]),
)
def test_trace_maps_accept_gpu_records(
    tmp_path: Path, given: list[tuple[int, int, bool]], dropped: int | None
) -> None:
    """In sequences of one map, and mixed; with and without lanes' addresses after a record."""
    path = tmp_path / "lanes.py"
    path.write_text(LANES)
    (tool,) = load_tools([str(path)])
    events = Events()
    for launch in range(4):
        events.launch("dropped" if launch == dropped else "kept")
    pipeline = Pipeline(Filter(kernel="kept"), [tool], events.context())
    pipeline.feed(events.batch())
    chunk, expected = [], []
    for at, (launch, number, listed) in enumerate(given):
        lanes = [64 * at, 64 * at + 8 + 4 * listed, 64 * at + 16]
        access = Access("global", lanes, launch=launch, flags=1 | number << MAP_SHIFT)
        chunk.append(access.encoded())
        if launch != dropped:
            name, mask = {0: ("odd", 0b010), 1: ("odd", 0b111), 2: ("all", 0b111)}[number]
            expected.append((name, launch, lanes[0] if number else lanes[1], mask))
    pipeline.feed_accesses(b"".join(chunk))
    assert not pipeline.failures
    for name in ("odd", "all"):
        assert [each for each in tool.taken if each[0] == name] == [
            each for each in expected if each[0] == name
        ]
