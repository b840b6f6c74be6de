"""Busy time, overlap and gaps of a device, against a model that looks at every nanosecond."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta.processors.activity import STOPPED, UNKNOWN, WORK, Activity
from pasta.processors.timeline import TotalTimeline

DTYPE = np.dtype([*WORK, ("id", "i4")])
END = 60

#: Begin, duration, time from submission to begin, class.
PIECES = st.lists(
    st.tuples(
        st.integers(0, END - 1), st.integers(0, 12), st.integers(0, 20), st.integers(0, STOPPED)
    ),
    max_size=12,
)


def work(pieces: list[tuple[int, int, int, int]]) -> Any:
    made = np.zeros(len(pieces), DTYPE)
    for number, (start, duration, delay, which) in enumerate(pieces):
        made[number] = (start, min(start + duration, END), max(0, start - delay), which, number)
    return made


def classes_at(pieces: Any, time: int) -> int:
    running = pieces[(pieces["start"] <= time) & (pieces["end"] > time)]
    return int(np.bitwise_or.reduce(1 << running["class"].astype(np.int64), initial=0))


@given(PIECES, st.lists(st.integers(0, END), max_size=4))
def test_sweeps_give_what_a_model_gives(
    pieces: list[tuple[int, int, int, int]], stops: list[int]
) -> None:
    everything = work(pieces)
    activity = Activity(0, DTYPE)
    gaps = []
    # each sweep knows what starts, or was submitted, before its end
    for begin, until in pairwise([-1, *sorted(stops), END]):
        new = (everything["submitted"] < until) & (everything["submitted"] >= begin)
        last = until == END
        activity.add(everything[new | (last & (everything["submitted"] >= until))])
        gaps += activity.sweep(until).tolist()
    expected = np.bincount(
        [classes_at(everything, time) for time in range(END)], minlength=1 << (STOPPED + 1)
    )
    assert activity.overlap.tolist() == expected.tolist()
    assert activity.late == 0
    busy = [bool(classes_at(everything, time) & 7) for time in range(END)]
    assert activity.timeline.growth.sum() == sum(busy)
    begin, _ = activity.open_gap
    found = [time for gap in gaps for time in range(gap[0], gap[1])] + [*range(begin, END)]
    assert found == [time for time in range(END) if not classes_at(everything, time)]
    for gap in gaps:
        later = everything[everything["start"] >= gap[1]]
        assert gap[2] == np.clip(later["submitted"].min(), gap[0], gap[1])
        after = everything[gap[4][-1]]
        assert after["start"] == gap[1]
        if gap[3][3] >= 0:
            assert everything[gap[3][-1]]["end"] == gap[0]
        else:
            assert not (everything["start"] < gap[0]).any()


def test_late_work_is_counted() -> None:
    activity = Activity(0, DTYPE)
    activity.sweep(50)
    made = work([(10, 20, 0, 0), (40, 20, 0, 0)])
    activity.add(made)
    activity.sweep(100)
    assert activity.late == 20 + 10
    assert activity.overlap.tolist()[:2] == [90, 10]


def test_a_submission_may_be_unknown() -> None:
    activity = Activity(0, DTYPE)
    made = work([(10, 5, 0, 0), (20, 5, 0, 0)])
    made["submitted"][1] = UNKNOWN
    activity.add(made)
    assert activity.sweep(30)["submitted"].tolist() == [10, UNKNOWN]


@given(
    st.lists(st.tuples(st.integers(1, 10**8), st.integers(0, 1000)), min_size=1, max_size=20),
    st.integers(0, 20),
)
def test_growth_over_time_is_that_of_the_curve(steps: list[tuple[int, int]], split: int) -> None:
    timeline = TotalTimeline(5_000, bins=16)
    curve = np.cumsum(np.asarray([(5_000, 0), *steps], np.int64), axis=0)
    for part in (curve[: split + 1], curve[split:]):
        timeline.add(part[:, 0], part[:, 1])
    edges = 5_000 + np.append(timeline.times, timeline.used * timeline.width)
    expected = np.diff(np.interp(edges, curve[:, 0], curve[:, 1]))
    assert timeline.growth == pytest.approx(expected)
    assert timeline.used <= 16
