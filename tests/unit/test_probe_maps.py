"""Declarations of maps, and accumulation independent of how results are split."""

from __future__ import annotations

import itertools
import pickle
import re
from collections import Counter as Tally
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pasta
from pasta.backends.nvidia.places import PLACES
from pasta.errors import ProbeError, ToolError
from pasta.probes import Bitmap, Counter, Histogram, PerPC, TopK, maps_of, probe
from pasta.probes.accumulators import Sums
from pasta.probes.maps import counter
from pasta.probes.placements import Placement
from pasta.processors.sampling import Sampling
from pasta.tool import Result, Tool, option

SIZES = {0: 1000, 1: 64, 2: 1}
KERNELS = 3  # a launch's kernel is its ordinal modulo this


def bound(accumulator: Any) -> Any:
    accumulator.bind(
        lambda launches: (launches % np.uint64(KERNELS)).astype(np.uint32),
        lambda ids: np.asarray([SIZES[int(id)] for id in ids], np.uint64),
        Sampling(),
    )
    return accumulator


def named(declared: Any, name: str = "m") -> Any:
    declared.__set_name__(Tool, name)
    return declared


TEXT = option("a", help="")


@pytest.mark.parametrize(
    ("make", "what", "remedy"),
    [
        (lambda: Counter(by="tensor"), "by 'tensor'", '"launch", "kernel", "object"'),
        (lambda: Counter(by=("object", "block")), "by ('object', 'block')", "at most one"),
        (lambda: Counter(by=("object", "pc", 4)), "by ('object', 'pc', 4)", "at most one"),
        (lambda: Counter(by=("object", "pc"), pairs=0), "pairs = 0", "at least 1"),
        (lambda: Counter(by=("pc", 4, 5)), "by ('pc', 4, 5)", "at most one"),
        (lambda: Counter(by=("block", 4)), "by ('block', 4)", '"pc" with N'),
        (lambda: Counter(by=("launch", "launch")), "by ('launch', 'launch')", "once"),
        (lambda: Counter(by=0), "by = 0", "at least 1"),
        (lambda: Counter(by=True), "by True", "an int"),
        (lambda: Counter(fields=()), "fields ()", "distinct names"),
        (lambda: Counter(fields=("a", "a")), "fields ('a', 'a')", "distinct names"),
        (lambda: Counter(fields="a b"), "field 'a b'", "identifier"),
        (lambda: Counter(fields=("pc", "a")), "field 'pc'", "another name"),
        (lambda: Counter(by="block", blocks=1 << 21), "blocks = 2097152", "at most 1048576"),
        (lambda: Histogram(by="launch", bin=4), "by 'launch'", '"object"'),
        (lambda: Histogram(by="pc", bin=4), "by 'pc'", '"launch", "kernel", "object"'),
        (lambda: Histogram(bin=0), "bin = 0", "at least 1"),
        (lambda: Histogram(bin="4 parsecs"), 'bin = "4 parsecs"', "4KiB"),
        (lambda: Histogram(bin=1.5), "bin = 1.5", "an integer"),
        (lambda: Histogram(bin=TEXT), "bin = option", "int or bytes option"),
        (lambda: Histogram(bin=4, window=0), "window = 0", "at least 1"),
        (lambda: PerPC("a", bins=4), "bins with fields", "one of them"),
        (lambda: PerPC(bins=0), "bins = 0", "at least 1"),
        (lambda: Bitmap(by="kernel"), "by 'kernel'", '"launch", "object"'),
        (lambda: Bitmap(granularity=0), "granularity = 0", "at least 1"),
        (lambda: TopK(0), "k = 0", "at least 1"),
        (lambda: named(Counter(), "a__b"), "the map name a__b", "without __"),
        (lambda: named(Counter(), "_a"), "the map name _a", "without __"),
    ],
)
def test_rejected_declarations(make: Callable[[], Any], what: str, remedy: str) -> None:
    with pytest.raises(ProbeError) as caught:
        make()
    assert what in caught.value.message
    assert remedy in str(caught.value.remedy)
    assert caught.value.file == __file__


def test_options_are_checked_per_instance() -> None:
    class Sized(Tool):
        """A map whose size is an option."""

        bin = option("4KiB", kind="bytes", help="bytes per bin")
        heat = Histogram(bin=bin)

    assert maps_of(Sized())["heat"].bin == 4096
    assert maps_of(Sized({"bin": "1MiB"}))["heat"].bin == 1 << 20
    with pytest.raises(ToolError, match="bin = 0 is not accepted by the map heat"):
        Sized({"bin": 0})


def test_maps_cannot_be_replaced_on_an_instance() -> None:
    class Counted(Tool):
        """A map."""

        n = Counter()

    with pytest.raises(AttributeError, match="only probes write to the map"):
        Counted().n = 3  # type: ignore[assignment]
    assert Counted.n.name == "n"
    assert "probes" not in Counted().needed()


@pytest.mark.parametrize(
    ("declared", "keys", "columns"),
    [
        (Counter(), (), ("count",)),
        (Counter(by="launch"), (), ("launch", "count")),
        (Counter(by=("object", "kernel")), ("object",), ("launch", "object", "count")),
        (Counter(by=("pc", 4), fields=("a", "b")), ("pc", "index"), ("pc", "index", "a", "b")),
        (Counter(by=("launch", "object", "pc")), ("object", "pc"),
         ("launch", "object", "pc", "count")),
        (Histogram(bin=4), ("object", "offset"), ("object", "bin", "count")),
        (Histogram(bin=4, window=9), ("object", "offset"), ("launch", "object", "bin", "count")),
        (PerPC("a"), ("pc",), ("pc", "a")),
        (PerPC(bins=9), ("pc", "bin"), ("pc", "bin", "count")),
        (TopK(3), ("key",), ("key", "count")),
        (Bitmap(by=()), ("object", "offset", "bytes", "rows", "stride"),
         ("object", "word", "mask")),
        (Bitmap(by=("launch", "object")), ("object", "offset", "bytes", "rows", "stride"),
         ("launch", "object", "word", "mask")),
    ],
)  # fmt: skip
def test_keys_and_columns_of_specifications(declared: Any, keys: Any, columns: Any) -> None:
    spec = declared.spec({})
    assert spec.method.keys == keys
    assert spec.columns == columns


def deliver(accumulator: Any, rows: list[tuple[int, ...]], cuts: list[int]) -> None:
    """Rows of all columns, in pieces."""
    names = accumulator.spec.columns
    edges = sorted({0, len(rows), *(cut % (len(rows) + 1) for cut in cuts)})
    for begin, end in itertools.pairwise(edges):
        part = rows[begin:end]
        accumulator.accumulate(
            {name: np.asarray([row[i] for row in part], np.int64) for i, name in enumerate(names)}
        )


CUTS = st.lists(st.integers(0, 40), max_size=4)
small = st.integers(0, 3)
amount = st.integers(0, 1 << 62)


@given(st.lists(st.tuples(small, st.integers(-1, 2), amount), max_size=40), CUTS, st.booleans())
def test_counters_by_kernel_add_up_over_launches(rows: Any, cuts: Any, compact: bool) -> None:
    accumulator = bound(Counter(by=("kernel", "object")).accumulator({}))
    if compact:
        accumulator._sums.limit = 1
    deliver(accumulator, rows, cuts)
    expected: Tally[tuple[int, int]] = Tally()
    for launch, object, count in rows:
        expected[launch % KERNELS, object] += count
    found = accumulator.rows()
    assert found.dtype.names == ("kernel", "object", "count")
    assert found.tolist() == [(*key, total % (1 << 64)) for key, total in sorted(expected.items())]


def test_pairs_beyond_the_capacity_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rows stay in any order of deliveries: those of the first launches."""
    monkeypatch.setattr(counter, "_SLACK", 0)
    rows = [(launch, launch % 3, 16 * pc, launch + pc) for launch in range(6) for pc in range(4)]
    for order in (rows, rows[::-1], rows[1::2] + rows[::2]):
        made = bound(Counter(by=("launch", "object", "pc"), capacity=10).accumulator({}))
        deliver(made, [*order, *order], list(range(0, 48, 7)))
        kept = sorted((*key, 2 * count) for *key, count in rows)[:10]
        assert made.rows().tolist() == kept
        assert made.other == 2 * sum(each[-1] for each in rows) - sum(each[-1] for each in kept)
        assert made.losses() == [f"{made.other} of  did not fit"]


def test_sums_are_exact_beyond_double_precision() -> None:
    accumulator = Counter().accumulator({})
    for _ in range(3):
        accumulator.accumulate({"count": np.asarray([(1 << 53) + 1, 1 << 60], np.uint64)})
    assert accumulator.total() == 3 * ((1 << 53) + 1 + (1 << 60))
    assert accumulator.rows().tolist() == [(accumulator.total(),)]


def test_total_requires_a_field_if_there_are_several() -> None:
    accumulator = Counter(fields=("a", "b")).accumulator({})
    accumulator.accumulate({"a": np.asarray([1, 2]), "b": np.asarray([3, 4])})
    assert (accumulator.total("a"), accumulator.total("b")) == (3, 7)
    with pytest.raises(ValueError, match="name one"):
        accumulator.total()
    with pytest.raises(ValueError, match="no field c"):
        accumulator.total("c")
    with pytest.raises(ValueError, match="not"):
        accumulator.accumulate({"a": np.asarray([1])})


def test_empty_maps_have_no_rows() -> None:
    for declared in (Counter(), Counter(by="kernel"), Histogram(bin=4, window=2), PerPC(), TopK(2)):
        accumulator = bound(declared.accumulator({}))
        assert len(accumulator.rows()) == 0
        assert accumulator.total() == 0
    bitmap = bound(Bitmap().accumulator({}))
    assert (len(bitmap.rows()), bitmap.total(), bitmap.total("unknown")) == (0, 0, 0)


@given(st.lists(st.tuples(st.integers(0, 6), small, small, st.integers(1, 9)), max_size=30), CUTS)
def test_windows_follow_launch_order(rows: Any, cuts: Any) -> None:
    accumulator = bound(Histogram(by=("object", "kernel"), bin=4, window=10).accumulator({}))
    deliver(accumulator, rows, cuts)
    of_launch: Tally[int] = Tally()
    for launch, _, _, count in rows:
        of_launch[launch] += count
    windows = {
        launch: sum(of_launch[other] for other in range(launch)) // 10 for launch in of_launch
    }
    expected: Tally[tuple[int, ...]] = Tally()
    for launch, object, bin, count in rows:
        expected[windows[launch], object, launch % KERNELS, bin] += count
    found = accumulator.rows()
    assert found.dtype.names == ("window", "object", "kernel", "bin", "count")
    assert found.tolist() == [(*key, count) for key, count in sorted(expected.items())]


touches = st.lists(
    st.tuples(small, st.sampled_from([-1, 0, 1, 2]), st.integers(0, 40), st.integers(1, 2**64 - 1)),
    max_size=30,
)


@pytest.mark.parametrize("by", [(), "launch", "object", ("object", "launch")], ids=str)
@pytest.mark.parametrize("grain", [1, 7, 32])
@given(touches=touches, cuts=CUTS, close=st.integers(0, 4))
def test_bitmaps_count_every_byte_once(
    by: Any, grain: int, touches: Any, cuts: Any, close: int
) -> None:
    accumulator = bound(Bitmap(by=by, granularity=grain).accumulator({}))
    by = accumulator.spec.by
    per_launch = "launch" in by
    rows, bytes, unknown = [], {}, Tally()  # type: ignore[var-annotated]
    for launch, object, word, mask in sorted(touches, key=lambda row: row[0]):
        key = tuple({"launch": launch, "object": object}[name] for name in by)
        if object < 0:
            word, mask = 0, mask % 5 + 1
            unknown[key] += mask
        else:
            inside = (SIZES[object] - 1) // grain + 1 - 64 * word
            mask &= (1 << max(0, min(64, inside))) - 1
            if not mask:
                continue
            touched = bytes.setdefault(key, set())
            for bit in range(64):
                if mask >> bit & 1:
                    first = (64 * word + bit) * grain
                    every = range(first, min(first + grain, SIZES[object]))
                    touched.update((object, byte) for byte in every)
        signed = mask - (1 << 64) if mask >> 63 else mask
        rows.append((launch, object, word, signed)[0 if per_launch else 1 :])
    if per_launch:  # launches complete while others continue
        early = [row for row in rows if row[0] < close]
        deliver(accumulator, early, cuts)
        accumulator.close(close)
        accumulator = bound(pickle.loads(pickle.dumps(accumulator)))
        deliver(accumulator, [row for row in rows if row[0] >= close], cuts)
    else:
        deliver(accumulator, rows, cuts)
    expected = {key: (len(bytes.get(key, ())), unknown[key]) for key in {*bytes, *unknown}}
    found = accumulator.rows()
    assert found.dtype.names == (*by, "bytes", "unknown")
    assert {tuple(row[:-2]): tuple(row[-2:]) for row in found.tolist()} == expected
    assert accumulator.total() == sum(each for each, _ in expected.values())


def test_bitmaps_accept_precomputed_bytes() -> None:
    accumulator = bound(Bitmap(by="launch").accumulator({}))
    columns = {"launch": [3, 3, 4], "object": [0, -1, -1], "bytes": [32, 0, 64],
               "unknown": [0, 2, 0]}  # fmt: skip
    accumulator.accumulate_bytes({name: np.asarray(each) for name, each in columns.items()})
    accumulator.accumulate_bytes({name: np.asarray(each) for name, each in columns.items()})
    assert accumulator.rows().tolist() == [(3, 64, 4), (4, 128, 0)]


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=8), max_size=5),
    st.integers(1, 12),
)
def test_top_k_keeps_the_first_keys_that_fit(pieces: Any, capacity: int) -> None:
    accumulator = TopK(3, capacity=capacity).accumulator({})
    known: dict[int, int] = {}
    other = 0
    for piece in pieces:
        deliver(accumulator, piece, [])
        for key, count in piece:
            if key in known or len(known) < capacity:
                known[key] = known.get(key, 0) + count
            else:
                other += count
    best = sorted(known.items(), key=lambda each: (-each[1], each[0]))
    assert accumulator.rows().tolist() == best[:3]
    assert accumulator.other == other
    assert accumulator.total() == sum(known.values()) + other


@given(st.lists(st.tuples(small, small), max_size=60))
def test_memory_grows_with_distinct_keys_only(rows: list[tuple[int, int]]) -> None:
    sums = Sums(("key",), ("count",), limit=8)
    for key, count in rows:
        sums.add({"key": np.asarray([key]), "count": np.asarray([count])})
        assert sum(map(len, sums._pending)) < 8
    assert len(sums.rows()) <= 4


@pytest.mark.slow
def test_fields_may_have_names_of_generated_code() -> None:
    class Odd(Tool):
        """Fields that are names of the generated code."""

        n = Counter(fields=("state", "table", "at", "env"))

        @probe.global_memory
        def each(access: Any, maps: Any) -> None:
            maps.n.add(state=1, table=2, at=access.lane, env=access.bytes)

        def result(self) -> Result:
            return Result(summary=str(self.n.rows().tolist()))

    from pasta.testing import Events, run_tool

    events = Events()
    events.launch("kernel")
    events.access(addresses=[0, 4, 8])
    assert run_tool(Odd, events).summary == "[(3, 6, 3, 12)]"


def test_behaviour_is_defined_by_the_map_type() -> None:
    """No code outside its file tests the type of a map."""
    root = Path(pasta.__file__).parent
    types = "Counter|Histogram|PerPC|Bitmap|TopK|Trace"
    switch = re.compile(rf"isinstance\([^)]*\b({types})(Spec|Accumulator)?\b|map_type|spec\.type\b")
    found = [
        f"{path}: {line.strip()}"
        for path in root.rglob("*.py")
        if path.parent != root / "probes" / "maps"
        for line in path.read_text().splitlines()
        if switch.search(line)
    ]
    assert found == []


def test_every_map_requirement_has_a_device_placement() -> None:
    assert set(PLACES) == set(Placement.__subclasses__())
