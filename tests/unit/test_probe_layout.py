"""Placement of maps on a device: no two maps share a word, for any combination of maps."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta.backends.nvidia.intrinsics.objects import slot_text
from pasta.backends.nvidia.layout import Layout
from pasta.backends.nvidia.places import (
    BinWords,
    KeyWords,
    LaunchPcWords,
    LaunchWords,
    ObjectWords,
    PairWords,
    PcWords,
    Place,
    PlaneBits,
    Records,
)
from pasta.backends.nvidia.structs import constants
from pasta.errors import ToolError
from pasta.probes import Bitmap, Counter, Histogram, PerPC, TopK, Trace
from pasta.probes.placements import PerGranule, PerKey, PerPc
from pasta.probes.specs import MapSpec
from tests.support.ptx import Lane, Machine, Memory, Program

_FIELDS = st.integers(1, 4).map(lambda count: tuple(f"f{n}" for n in range(count)))
_MAPS = st.one_of(
    st.builds(
        lambda by, fields: Counter(by=by, fields=fields),
        st.sampled_from(
            [
                (),
                "launch",
                "kernel",
                "object",
                ("object", "launch"),
                "pc",
                ("launch", "pc"),
                "sm",
                ("launch", "object", "pc"),
            ]
        ),
        _FIELDS,
    ),
    st.builds(
        lambda blocks, fields: Counter(by="block", blocks=blocks, fields=fields),
        st.integers(1, 300),
        _FIELDS,
    ),
    st.builds(lambda limit, fields: Counter(by=limit, fields=fields), st.integers(1, 70), _FIELDS),
    st.builds(lambda shift: Histogram(by="object", bin=1 << shift), st.integers(0, 20)),
    st.builds(lambda fields: PerPC(*fields), _FIELDS),
    st.builds(lambda bins: PerPC(bins=bins), st.integers(1, 33)),
    st.builds(
        lambda by, shift: Bitmap(by=by, granularity=1 << shift),
        st.sampled_from([(), "launch", "object", ("object", "launch")]),
        st.integers(0, 12),
    ),
    st.builds(lambda k: TopK(k, capacity=64 * k), st.integers(1, 20)),
)


def spec_of(made: Any, name: str) -> MapSpec:
    made.name = name
    spec: MapSpec = made.spec({})
    return spec


def size_of(spec: MapSpec) -> int:
    size = len(spec.fields)
    for limit in spec.limits.values():
        size *= limit
    return size


def words_of(place: Place[Any]) -> list[tuple[tuple[object, ...], int]]:
    """Every word of a map, as an area and an offset in it."""
    size = size_of(place.spec)
    if isinstance(place, PlaneBits):
        area = "object" if place.request.by_object else "slot"
        counted = [((area,), place.offset)]
        unknown = [(("slot",), place.unknown + i) for i in range(2)]
        return [*counted, *unknown, (("plane",), place.index)]
    if isinstance(place, BinWords):
        return [(("bins",), place.offset), *((("slot",), place.unknown + i) for i in range(2))]
    if isinstance(place, (PcWords, KeyWords)):
        return [(("hash", place.index), place.offset + i) for i in range(size)]
    assert isinstance(place, (LaunchWords, LaunchPcWords, ObjectWords, PairWords))
    area = "pair" if isinstance(place, (LaunchPcWords, PairWords)) else "object"
    if isinstance(place, LaunchWords):
        area = "slot" if place.request.contended else "plain"
    return [((area,), place.offset + i) for i in range(size)]


@given(st.lists(_MAPS, max_size=12))
def test_maps_do_not_overlap(maps: list[Any]) -> None:
    specs = [(f"tool{n % 3}", spec_of(each, f"m{n}")) for n, each in enumerate(maps)]
    tables = sum(isinstance(spec.placement, PerKey) for _, spec in specs)
    tables += any(isinstance(spec.placement, PerPc) for _, spec in specs)
    planes = sum(isinstance(spec.placement, PerGranule) for _, spec in specs)
    if tables > 4 or planes > 4:
        with pytest.raises(ToolError, match="do not fit"):
            Layout(specs)
        return
    layout = Layout(specs)
    room: dict[tuple[object, ...], int] = {
        ("slot",): layout.slot_words,
        ("plain",): layout.plain_words,
        ("object",): layout.object_words,
        ("pair",): layout.pair_words,
        ("bins",): layout.bin_words,
        ("plane",): layout.planes,
        **{("hash", n): each.words for n, each in enumerate(layout.hashes)},
    }
    used = [word for place in layout.places for word in words_of(place)]
    assert len(set(used)) == len(used)
    assert sorted(used, key=repr) == sorted(
        ((area, word) for area, size in room.items() for word in range(size)), key=repr
    )
    for tool, spec in specs:
        assert layout.place_of(tool, spec.name) is layout.places[specs.index((tool, spec))]
    assert layout.objects == any("object" in spec.keys for _, spec in specs)


@given(st.integers(1, 5000), st.integers(0, 63), st.integers(0, 255), st.sampled_from([20, 28, 34]))
def test_words_of_a_launch_are_found_by_its_address(
    words: int, slot: int, clock: int, log: int
) -> None:
    spec = spec_of(Counter(by=("launch", words)), "m")
    layout = Layout([("tool", spec)], memory=1 << log)
    size, launches = constants()["LAUNCH"], constants()["SLOTS"]
    bytes, stripes = layout.slot_stripe_bytes, layout.slot_stripes
    assert words * 8 <= bytes < words * 8 + 32 and stripes in (8, 16, 32, 64, 128)
    assert stripes == 8 or 16 * launches * stripes * bytes <= 1 << log
    array, offset = 7 * launches * size, 8 * (words - 1)
    text = slot_text(bytes, stripes)
    program = Program(text, {"$0": 64, "$1": 64, "$2": 32})
    lane = Lane(0, {"$1": array + slot * size, "$2": offset}, {"clock": clock})
    Machine(program, Memory(), lambda: None).run([[lane]], random.Random(0))
    # behind the launches the words of each, stripe by stripe
    words_at = array + launches * size + (slot * stripes + clock % stripes) * bytes
    assert lane.registers["$0"] == words_at + offset


def test_bins_and_granules_are_powers_of_two() -> None:
    for made in (Histogram(by="object", bin=100), Bitmap(granularity=24)):
        with pytest.raises(ToolError, match="power of two"):
            Layout([("t", spec_of(made, "m"))])


def test_instructions_by_launch_are_in_its_table_of_pairs() -> None:
    """No hash table of the run: neither for a map by launch, nor for one that is estimated."""
    estimated = spec_of(PerPC(bins=33), "m").for_estimates()
    maps = [
        spec_of(Counter(by=("launch", "pc"), fields=("a", "b")), "by_launch"),
        replace(estimated, sampled=True),
    ]
    layout = Layout([("t", each) for each in maps])
    assert [type(each) for each in layout.places] == [LaunchPcWords] * 2
    assert (layout.pair_words, layout.hashes) == (2 + 33, [])
    assert layout.pairs.stripes * layout.pairs.words * layout.pairs.rows * 8 <= 1 << 20
    assert isinstance(Layout([("t", estimated)]).places[0], PcWords)


def test_bins_by_launch_are_recorded_like_traces() -> None:
    made = [Trace(), Histogram(by=("object", "launch"), bin=100), Histogram(bin=64), Trace()]
    layout = Layout([("t", spec_of(each, f"m{n}")) for n, each in enumerate(made)])
    assert [type(each) for each in layout.places] == [Records, Records, BinWords, Records]
    assert [each.index for each in layout.places if isinstance(each, Records)] == [1, 2, 3]
    assert (layout.traces, layout.bin_shift) == (3, 6)
