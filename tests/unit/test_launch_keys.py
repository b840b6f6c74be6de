"""Contents and places of launches, and the match of two processes, against simple models."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pasta import abi
from pasta.processors.conventions import Conventions
from pasta.processors.launch_keys import LAUNCH, LaunchKeys, occurrences, text_hash
from pasta.processors.launch_matching import matched, pairs
from pasta.testing import Events
from tests.support.examples import examples

FRAMES = (("/a.py", "f", 7), ("/b.py", "<module>", 9))


def keys_of(events: Events, splits: list[int] | None = None) -> LaunchKeys:
    keys = LaunchKeys(events.strings, Conventions())
    for batch in events.batches(splits or []):
        keys.feed(batch)
    return keys


def places(rows: NDArray[Any]) -> list[tuple[int, ...]]:
    """Operator, call, number within, and content of each launch."""
    names = ("operator", "call", "within", "content")
    return [tuple(int(row[name]) for name in names) for row in rows]


# ---- places ----------------------------------------------------------------------------------

#: What a thread does: opens an operator (name, with a stack of its own), closes one, or launches.
STEPS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.one_of(
            st.tuples(st.just("open"), st.sampled_from("pqr"), st.sampled_from((0, 1, 2))),
            st.just(("close",)),
            st.tuples(st.just("launch"), st.sampled_from("xy"), st.integers(1, 2)),
        ),
    ),
    min_size=8,  # Hypothesis prefers short lists, in which nothing is nested
    max_size=60,
)


def play(steps: Any, events: Events) -> list[tuple[Any, ...]]:
    """Adds the steps as events; the place of each launch, by names."""
    events.frames(1, *FRAMES)
    events.frames(2, FRAMES[1])
    frames = {
        0: (),
        1: tuple((file, function, 1, line) for file, function, line in FRAMES),
        2: ((*FRAMES[1][:2], 1, FRAMES[1][2]),),
    }
    stacks: dict[int, list[Any]] = {}
    calls: Counter[Any] = Counter()
    inside: Counter[Any] = Counter()
    found = []
    for thread, step in steps:
        stack = stacks.setdefault(thread, [])
        if step[0] == "open":
            own = step[2] or (stack[-1][0][1] if stack else 0)
            site = (step[1], own)
            stack.append((site, calls[thread, site], object()))
            calls[thread, site] += 1
            events.operator(step[1], len(stack), stack=step[2], thread=100 + thread)
        elif step[0] == "close":
            if stack:
                events.operator_end(len(stack), thread=100 + thread)
                stack.pop()
        else:
            _, kernel, grid = step
            events.launch(kernel, grid=(grid, 1, 1), thread=100 + thread)
            if stack:
                (name, own), call, identity = stack[-1]
                found.append(((name, frames[own]), call, inside[identity], (kernel, grid)))
                inside[identity] += 1
            else:
                found.append((None, 0, inside[thread, kernel, grid], (kernel, grid)))
                inside[thread, kernel, grid] += 1
    return found


@examples(200)
@given(STEPS, st.data())
def test_places_are_those_of_a_walk_through_the_events(steps: Any, data: Any) -> None:
    events = Events()
    expected = play(steps, events)
    splits = data.draw(st.lists(st.integers(0, len(events)), max_size=4))
    rows = keys_of(events, splits).rows()
    assert rows["ordinal"].tolist() == list(range(len(expected)))
    hashed = {None: 0} | {
        place: text_hash(place[0], [list(frame) for frame in place[1]])
        for place, *_ in expected
        if place
    }
    assert [each[:3] for each in places(rows)] == [
        (hashed[place], call, within) for place, call, within, _ in expected
    ]
    contents = {row[3]: content for row, (*_, content) in zip(places(rows), expected, strict=True)}
    assert len(contents) == len(set(contents.values())) == len({each[3] for each in expected})


def test_content_is_equal_in_other_processes() -> None:
    """With other ids of strings and stacks, threads, addresses and times."""
    found = []
    for other in (0, 1):
        events = Events(start_time=1_000_000 * (1 + other))
        for text in ["unused", "more"] * other:
            events.string(text)
        events.frames(5 + other, *FRAMES)
        events.operator("op", stack=5 + other, thread=20 + other)
        events.launch("k", grid=(2, 3, 4), thread=20 + other, function=77 + other)
        found.append(places(keys_of(events).rows()))
    assert found[0] == found[1]


@pytest.mark.parametrize("change", ["name", "file", "function", "line", "first_line", "depth"])
def test_every_part_of_an_operator_counts(change: str) -> None:
    def operator(changed: bool) -> int:
        events = Events()
        frames = [
            {"file": "/a.py", "function": "f", "line": 7, "first_line": 1},
            {"file": "/b.py", "function": "g", "line": 9, "first_line": 2},
        ]
        if changed and change == "depth":
            frames.reverse()
        elif changed and change != "name":
            value = frames[0][change]
            frames[0][change] = value + 1 if isinstance(value, int) else f"{value}x"
        for depth, frame in enumerate(frames):
            events.add("python_frame", stack=1, depth=depth, **frame)
        events.operator("other" if changed and change == "name" else "op", stack=1)
        events.launch("k")
        return int(keys_of(events).rows()["operator"][0])

    assert operator(changed=False) == operator(changed=False) != operator(changed=True)


def test_parts_of_texts_are_kept_apart() -> None:
    assert text_hash("ab", "c") != text_hash("a", "bc")
    assert text_hash("a", ["b", "c"]) != text_hash("a", "b", "c")


def test_kernel_grid_and_block_are_the_content() -> None:
    events = Events()
    shapes = [("k", (1, 2, 3), (4, 5, 6)), ("k", (2, 1, 3), (4, 5, 6)), ("k", (1, 2, 3), (4, 6, 5)),
              ("l", (1, 2, 3), (4, 5, 6))]  # fmt: skip
    for name, grid, block in [*shapes, shapes[0]]:
        events.launch(name, grid=grid, block=block)
    content = keys_of(events).rows()["content"].tolist()
    assert len(set(content[:4])) == 4
    assert content[4] == content[0]


def test_operators_can_be_ignored() -> None:
    """If only one process recorded them."""
    events, plain = Events(), Events()
    events.launch("k")
    plain.launch("k")
    events.operator("op")
    for _ in range(2):
        events.launch("k")
        plain.launch("k")
    keys = keys_of(events)
    assert keys.has_operators
    assert places(keys.rows(operators=False)) == places(keys_of(plain).rows())
    assert keys.rows()["within"].tolist() == [0, 0, 1]
    assert keys.rows(operators=False)["within"].tolist() == [0, 1, 2]


# ---- the match -------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 5)))
def test_occurrences(keys: list[int]) -> None:
    seen: Counter[int] = Counter()
    expected = []
    for key in keys:
        expected.append(seen[key])
        seen[key] += 1
    assert occurrences(np.asarray(keys, np.uint64)).tolist() == expected


@given(st.lists(st.integers(0, 5)), st.lists(st.integers(0, 5)))
def test_pairs_join_the_nth_of_a_key(one: list[int], other: list[int]) -> None:
    rows, others = pairs(np.asarray(one, np.uint64), np.asarray(other, np.uint64))
    found = dict(zip(rows.tolist(), others.tolist(), strict=True))
    expected = {}
    for key in set(one) & set(other):
        mine = [at for at, each in enumerate(one) if each == key]
        theirs = [at for at, each in enumerate(other) if each == key]
        expected.update(zip(mine, theirs, strict=False))
    assert found == expected


#: The launches of each thread of a program: (kernel, grid).
PROGRAM = st.lists(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3)), max_size=12), max_size=5
)


def interleaved(program: Any, data: Any) -> tuple[NDArray[Any], list[tuple[int, int]]]:
    """Launches of the threads in any order, in another process; and the thread and number in it of
    each launch."""
    order = [thread for thread, launches in enumerate(program) for _ in launches]
    order = data.draw(st.permutations(order))
    ids = data.draw(st.permutations(range(50, 50 + len(program))))
    events, done = Events(), [0] * len(program)
    came = []
    for thread in order:
        kernel, grid = program[thread][done[thread]]
        events.launch(kernel, grid=(grid, 1, 1), thread=ids[thread])
        came.append((thread, done[thread]))
        done[thread] += 1
    return keys_of(events).rows(), came


@examples(200)
@given(PROGRAM, st.data())
def test_the_same_launches_match_on_any_threads_in_any_order(program: Any, data: Any) -> None:
    one, came = interleaved(program, data)
    other, went = interleaved(program, data)
    found = matched(one, other)
    assert found.one.tolist() == list(range(len(one)))
    assert sorted(found.other.tolist()) == list(range(len(other)))
    assert found.placed.all()
    threads: dict[int, int] = {}
    for mine, theirs in zip(found.one.tolist(), found.other.tolist(), strict=True):
        (thread, number), (partner, at) = came[mine], went[theirs]
        # one thread with its partner alone, launch by launch
        assert threads.setdefault(thread, partner) == partner
        assert Counter(program[thread]) == Counter(program[partner])
        assert program[thread][number] == program[partner][at]
        assert program[thread][:number].count(program[thread][number]) == (
            program[partner][:at].count(program[partner][at])
        )


@examples(200)
@given(PROGRAM, PROGRAM, st.data())
def test_as_many_launches_match_as_both_have(program: Any, others: Any, data: Any) -> None:
    """Also where launches are missing, too many, or on other threads."""
    dropped = [[each for each in launches if data.draw(st.integers(0, 3))] for launches in program]
    one, _ = interleaved(program, data)
    other, _ = interleaved(data.draw(st.sampled_from([dropped, others])), data)
    found = matched(one, other)
    mine, theirs = found.one.tolist(), found.other.tolist()
    assert len(set(mine)) == len(set(theirs)) == len(mine)
    assert (one["content"][mine] == other["content"][theirs]).all()
    both = Counter(one["content"].tolist()) & Counter(other["content"].tolist())
    assert Counter(one["content"][mine].tolist()) == both
    assert mine == sorted(mine)
    alone = Counter(one["content"].tolist()) - both
    assert both.total() + alone.total() == len(one)


def launches(*rows: tuple[int, int, int, int, int]) -> NDArray[Any]:
    """Launches of these threads, operators, calls, numbers within and contents."""
    found = np.zeros(len(rows), LAUNCH)
    for name, column in zip(
        ("thread", "operator", "call", "within", "content"), zip(*rows, strict=True), strict=True
    ):
        found[name] = column
    found["ordinal"] = np.arange(len(rows))
    return found


def test_a_missing_launch_in_an_operator_moves_no_other_call() -> None:
    one = launches(*((0, 7, call, at, 1) for call in range(3) for at in range(2)))
    other = np.delete(one, 1)
    found = matched(one, other)
    assert found.one.tolist() == [0, 2, 3, 4, 5]
    assert other["call"][found.other].tolist() == [0, 1, 1, 2, 2]


def test_operators_go_before_contents() -> None:
    """The same kernel in two operators, in another order and another call."""
    one = launches((0, 7, 0, 0, 1), (0, 8, 0, 0, 1))
    other = launches((0, 8, 1, 0, 1), (0, 7, 1, 0, 1))
    found = matched(one, other)
    assert found.other.tolist() == [1, 0]
    assert not found.placed.any()


def test_a_thread_that_lost_its_last_launch_keeps_its_partner() -> None:
    """Threads that begin with the same launch are partners, whichever launches first."""
    one = launches((0, 0, 0, 0, 1), (0, 0, 0, 0, 5), (0, 0, 0, 1, 5),
                   (1, 0, 0, 0, 2), (1, 0, 0, 0, 5), (1, 0, 0, 1, 5))  # fmt: skip
    other = np.concatenate([one[3:5], one[:2]])
    other["ordinal"] = range(4)
    found = matched(one, other)
    assert found.one.tolist() == [0, 1, 3, 4]
    assert found.other.tolist() == [2, 3, 0, 1]
    assert found.placed.all()


def test_a_launch_on_another_thread_keeps_its_place() -> None:
    one = launches((0, 0, 0, 0, 1), (0, 0, 0, 0, 2))
    other = launches((0, 0, 0, 0, 1), (1, 0, 0, 0, 2))
    found = matched(one, other)
    assert found.other.tolist() == [0, 1]
    assert found.placed.all()


def test_contents_alone_are_the_last_resort() -> None:
    found = matched(launches((0, 7, 0, 0, 1)), launches((0, 8, 0, 0, 1)))
    assert (found.one.tolist(), found.other.tolist()) == ([0], [0])
    assert not found.placed.any()


def test_nothing_matches_nothing() -> None:
    one = launches((0, 0, 0, 0, 1))
    for pair in ((one, one[:0]), (one[:0], one), (one[:0], one[:0])):
        assert len(matched(*pair)) == 0


# ---- nodes of graphs that are recorded when they have run --------------------------------------


@pytest.mark.parametrize("operators", [True, False])
@pytest.mark.parametrize("splits", [[], [3, 6], list(range(1, 20))], ids=str)
def test_late_nodes_have_the_place_of_their_graph_launch(
    splits: list[int], operators: bool
) -> None:
    def run(*, late: bool) -> Counter[tuple[int, ...]]:
        events, told = Events(), []
        for step in range(3):
            time = 1000 * (step + 1)
            if operators:
                events.operator("replay", time=time)
            events.add("graph_launch", graph=1, time=time + 1, thread=1)
            nodes = [("node", step, time + 1 + (0 if late else 1), abi.FLAG_GRAPH)] * 2
            if late:
                told += nodes
            else:
                for kernel, grid, at, flags in nodes:
                    events.launch(kernel, grid=(grid, 1, 1), time=at, flags=flags)
            if operators:
                events.operator_end(time=time + 5)
            events.launch("node", grid=(step, 1, 1), time=time + 7)
        if operators:
            events.operator("later", time=9000)
        for kernel, grid, at, flags in told:
            events.launch(kernel, grid=(grid, 1, 1), time=at, flags=flags)
        keys = keys_of(events, [each for each in splits if each < len(events)])
        return Counter(places(keys.rows()))

    assert run(late=True) == run(late=False)
