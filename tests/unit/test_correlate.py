from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pasta.processors.correlate import LaunchNames, LaunchWindow, OpenRanges
from pasta.testing import Events
from tests.support.examples import examples


@examples(200)
@given(
    st.lists(
        st.tuples(st.booleans(), st.lists(st.integers(0, 40), min_size=1, max_size=12)), max_size=12
    )
)
def test_window_keeps_the_last_launches(calls: Any) -> None:
    window, model, end, value = LaunchWindow(limit=16), {}, 0, 0
    for put, ordinals in calls:
        array = np.asarray(ordinals, np.uint64)
        if put:
            unique = list(dict.fromkeys(ordinals))
            values = np.arange(value + 1, value + 1 + len(unique), dtype=np.int32)
            value += len(unique)
            window.put(np.asarray(unique, np.uint64), values)
            end = max(end, max(unique) + 1)
            for ordinal, number in zip(unique, values.tolist(), strict=True):
                if ordinal >= end - 16:
                    model[ordinal] = number
        expected = [model.get(o, 0) if o >= end - 16 else 0 for o in ordinals]
        assert window.get(array).tolist() == expected


def test_window_grows_without_loss() -> None:
    window = LaunchWindow(limit=1 << 15)
    for start in range(0, 40_000, 1000):
        ordinals = np.arange(start, start + 1000, dtype=np.uint64)
        window.put(ordinals, ordinals.astype(np.int32) + 1)
    everything = np.arange(40_000, dtype=np.uint64)
    expected = np.where(everything >= 40_000 - (1 << 15), everything + np.uint64(1), 0)
    assert np.array_equal(window.get(everything), expected)


def test_completions_match_kernels_of_earlier_batches() -> None:
    events = Events()
    first, second = events.launch("a"), events.launch("b")
    events.complete(second, 1, 2)
    events.complete(first, 3, 4)
    events.complete(99, 5, 6)
    names = LaunchNames()
    *launches, completions = events.batches([1, 2])
    for batch in launches:
        names.feed(batch)
    names.feed(completions)
    ids = names.names(completions["kernel_complete"]["ordinal"])
    assert events.strings.many(ids) == ["b", "a", ""]


def test_paths_of_open_ranges() -> None:
    events = Events()
    events.launch("before")
    events.push("step")
    events.push("forward")
    events.launch("inside")
    events.launch("elsewhere", thread=2)
    events.pop()
    events.launch("after")
    events.pop()
    events.pop()  # one too many
    events.launch("outside")
    ranges, paths = OpenRanges(), []
    for batch in events.batches([2, 4]):
        ranges.feed(batch)
        states = ranges.at(batch["kernel_launch"])
        paths += [ranges.path(state, events.strings) for state in states.tolist()]
    assert paths == ["", "step/forward", "", "step", ""]


def test_a_pop_ends_the_innermost_range_of_its_domain() -> None:
    events = Events()
    events.push("a")
    events.push("b", domain="library")
    events.pop()
    events.launch("kernel")
    ranges = OpenRanges()
    ranges.feed(events.batch())
    (state,) = ranges.at(events.batch()["kernel_launch"]).tolist()
    assert ranges.path(state, events.strings) == "b"


def test_ranges_of_two_origins_nest_separately() -> None:
    events = Events()
    api, nvtx = 1, 3
    events.add("range_push", name="ours", origin=api)
    events.add("range_push", name="theirs", origin=nvtx)
    events.add("range_pop", origin=api)
    events.launch("inside")
    events.add("range_pop", origin=nvtx)
    ranges = OpenRanges()
    (batch,) = events.batches()
    ranges.feed(batch)
    launch = batch["kernel_launch"]
    (state,) = ranges.at(launch).tolist()
    assert [events.strings[name] for _, name in ranges.states[state]] == ["theirs"]
