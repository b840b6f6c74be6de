"""Windows: settings, their form for C, and estimates from probed launches."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta import abi
from pasta.config import Config
from pasta.errors import ConfigError
from pasta.plugins import find_tools
from pasta.probes.windows import StepRanges
from pasta.processors.sampling import Estimate, Sampling
from pasta.runtime.omissions import none_probed, profiled_part
from pasta.runtime.probe_plan import probe_settings
from pasta.settings import parse_budget, parse_recording_window, parse_window
from pasta.testing import Events, run_tool

# ---- settings


def config(*assignments: str) -> Config:
    made = Config()
    for assignment in assignments:
        made.set_text(assignment)
    return made


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("launches 100/1000", "launches 100/1000"),
        ("  steps  1 / 100 ", "steps 1/100"),
        ("seconds 0.5/60", "seconds 0.5/60"),
        ("launches 5/5", "launches 5/5"),
        ("", ""),
    ],
)
def test_windows(text: str, window: str) -> None:
    assert parse_window(text) == window


@pytest.mark.parametrize(
    "text",
    ["launches", "launches 1", "launches 0/5", "launches 6/5", "launches 1.5/5", "hours 1/2",
     "steps 1/1000000000", "launches -1/5", "1/5"],
)  # fmt: skip
def test_invalid_windows(text: str) -> None:
    with pytest.raises(ValueError, match="launches 100/1000"):
        parse_window(text)


def test_recording_windows() -> None:
    assert parse_recording_window(" seconds 0.5/10") == "seconds 0.5/10"
    for text in ("launches 1/2", "1/10", "minutes 1/2", "seconds 0.001/1"):
        with pytest.raises(ValueError, match=r"^.seconds 1/10., of .* or .steps 1/100.$"):
            parse_recording_window(text)


def test_budgets() -> None:
    given = ("20%", 0.2, "5 %", 1, "150%", 1.5)  # numbers: also as a run's manifest has them
    assert [parse_budget(each) for each in given] == [0.2, 0.2, 0.05, 1.0, 1.5, 1.5]
    for text in ("0", "-1", "20 percent", "", "0.01%", "20"):
        with pytest.raises(ValueError, match="20%"):
            parse_budget(text)


def test_settings_passed_to_c() -> None:
    assert probe_settings(Config()) == {"probe_every": 1, "probe_skip": 0}
    passed = probe_settings(
        config(
            "probes.window=seconds 0.5/60", "probes.every=4", "probes.step-range=^it.*",
            "filter.kernel=(?:gemm|\\d+)", "filter.exclude=x", "filter.launch-skip=2",
            "filter.launch-count=7",
        )
    )  # fmt: skip
    assert passed == {
        "probe_window": "seconds 500000000 60000000000",
        "probe_every": 4,
        "probe_step_range": "^(^it.*)$",
        "probe_kernel": "(gemm|[0123456789]+)",
        "probe_exclude": "x",
        "probe_skip": 2,
        "probe_count": 7,
    }
    budget = config("probes.overhead-budget=20%")
    passed = {"probe_every": 1, "probe_skip": 0, "probe_budget": 200_000, "probe_factor": 1200}
    assert probe_settings(budget, traces=True, slowdown=12.0) == passed
    passed |= {"probe_enough": 3, "probe_spot_check": 10_000}
    assert probe_settings(budget, slowdown=12.0) == passed
    sampled = config("probes.sample=true", "probes.enough=5", "probes.spot-check=0")
    assert probe_settings(sampled, traces=True) == {
        "probe_every": 1, "probe_skip": 0, "probe_enough": 5, "probe_spot_check": 0,
    }  # fmt: skip


def test_launches_in_ranges_are_counted_afterwards() -> None:
    passed = probe_settings(config("filter.range=epoch", "filter.launch-skip=2"))
    assert passed == {"probe_every": 1, "probe_range": "epoch"}
    passed = probe_settings(config("filter.operator=mm$", "filter.module=fc1"))
    assert passed == {"probe_every": 1, "probe_operator": "mm$", "probe_module": "fc1"}
    assert probe_settings(config("filter.range=(?=epoch)")) == {"probe_every": 1}


def test_a_window_and_a_budget_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="both set when") as error:
        probe_settings(config("probes.window=steps 1/2", "probes.overhead-budget=20%"))
    assert error.value.remedy == "use only one of them"


# ---- steps


def steps(pattern: str, events: Events, splits: Iterable[int] = ()) -> StepRanges:
    found = StepRanges(pattern, events.strings)
    for batch in events.batches(splits):
        found.feed(batch)
    return found


def trained() -> Events:
    """Three steps with two names, with nested ranges, on a thread; one concurrently on another
    thread."""
    events = Events()
    for number in range(3):
        events.push("step b" if number == 1 else "step a")
        events.push("step.forward")
        events.push("step a", thread=2)
        events.push("step.forward", domain="library")
        events.pop(domain="library")
        events.pop()
        events.pop(thread=2)
        events.pop()
        events.push("epoch")
        events.pop()
    return events


@pytest.mark.parametrize("splits", [(), range(1, 30)])
def test_steps_are_outermost_ranges_with_a_full_match(splits: Iterable[int]) -> None:
    found = steps("step.*", trained(), splits)
    assert found.summary() == {
        "pattern": "step.*",
        "names": 3,
        "ranges": {"step.forward": 6, "step a": 5, "step b": 1},
        "inside": {"step.forward": 6},
        "steps": 6,
    }
    assert found.text() == (
        "probes.step-range = 'step.*' matched 3 names (step.forward 6 times, step a 5 times,"
        " step b 1 times), 6 of them nested: the 6 outermost are the steps"
    )
    assert steps("step .", trained(), splits).text() == (
        "probes.step-range = 'step .' matched 2 names (step a 5 times, step b 1 times)"
    )


def test_single_step_range_has_no_warning() -> None:
    assert steps("epoch", trained()).text() == ""
    assert steps("step a", trained()).summary()["steps"] == 5


def test_partial_names_do_not_match() -> None:
    assert steps("step", trained()).text() == (
        "probes.step-range = 'step' matched the full name of no range: all launches were in step 0"
    )


def test_a_window_of_steps_without_steps_has_a_warning() -> None:
    assert steps("", trained()).text() == (
        "no call of pasta.step() was recorded, and probes.step-range is not set: all launches were "
        "in step 0"
    )
    events = trained()
    events.add("mark", name="step", domain="library")
    assert steps("", events).text()
    events.add("mark", name="step", domain="pasta")
    assert steps("", events).text() == ""
    assert steps("other", events).text() == (
        "probes.step-range = 'other' matched the full name of no range"
    )


# ---- what is left out


@pytest.mark.parametrize(
    ("settings", "stopped", "text"),
    [
        ([], 0, None),
        ([], 25, None),
        (["run.duration=75ms"], 0, None),
        (["run.duration=75ms"], 25, "on for 75 ns of 100 ns (run.duration = 75.00 ms): "),
        (["run.window=steps 1/2"], 0, "on for 100 ns of 100 ns (run.window = 'steps 1/2'): "),
        (["run.start=false"], 40, "on for 60 ns of 100 ns (run.start = false): "),
        (["run.start=false"], 100, "never on (run.start = false): call pasta.start(), or leave"),
    ],
)
def test_a_part_that_was_not_profiled_has_a_reason(
    settings: list[str], stopped: int, text: str | None
) -> None:
    notes = list(profiled_part(config(*settings), 100, stopped))
    assert len(notes) == (text is not None)
    assert not notes or notes[0].startswith(f"profiling was {text}")


def test_budget_that_opened_no_window_has_a_remedy() -> None:
    budget = config("probes.overhead-budget=10%")
    (note,) = none_probed(budget, sampling({1: 9}, {}))
    assert note == (
        "no launches were probed: the program was too short for a window within the overhead "
        "budget (10.0 %); use --sample, a higher budget or a longer run"
    )
    for settings, seen, probed in ((budget, 9, 1), (budget, 0, 0), (config(), 9, 0)):
        assert not [*none_probed(settings, sampling({1: seen}, {1: probed}))]


# ---- estimates


def sampling(seen: dict[int, int], probed: dict[int, int], grid: int = 1) -> Sampling:
    """Launches by kernel, of which the first ones were probed."""
    found = Sampling()
    add(found, seen, probed, grid)
    return found


def add(counts: Sampling, seen: dict[int, int], probed: dict[int, int], grid: int) -> None:
    """Adds launches; ordinals count up."""
    launches = np.zeros(sum(seen.values()), abi.dtype("kernel_launch"))
    launches["name"] = np.repeat([*seen], [*seen.values()])
    launches["ordinal"] = np.arange(len(launches)) + sum(counts.seen.values())
    if len(launches) <= 2000:  # all are the first ones of a thread: at the same place
        launches["thread"] = launches["ordinal"]
    launches["grid"][:, 0] = grid
    begins = np.cumsum([0, *seen.values()])
    for name, begin in zip(seen, begins.tolist(), strict=False):
        launches["flags"][begin : begin + probed.get(name, 0)] |= abi.FLAG_PROBED
    counts.add(launches)


def estimated(counts: list[float], probed: int, launches: int) -> Estimate:
    """Of launches of a kernel, of which the first ones were probed, the last of these without
    counts."""
    found = sampling({1: launches}, {1: probed})
    return found.estimates(np.arange(len(counts), dtype=np.uint64), np.asarray(counts))[1]


def test_probing_all_launches_is_exact() -> None:
    counts = sampling({1: 3}, {1: 3})
    assert counts.exact and counts.text() == ""
    assert estimated([5, 7], 3, 3) == Estimate(12.0, 0.0)


def test_estimates_scale_the_mean() -> None:
    found = estimated([10, 20, 30], 4, 100)
    assert found.total == 1500
    variance = np.var([10, 20, 30, 0], ddof=1)
    assert found.error == pytest.approx(100 * math.sqrt((1 - 4 / 100) * variance / 4))


def test_equal_launches_have_zero_error() -> None:
    assert estimated([8] * 5, 5, 50) == Estimate(400.0, 0.0)


def test_error_is_unknown_with_fewer_than_two_samples() -> None:
    one, none = estimated([6], 1, 10), estimated([], 0, 10)
    assert one.total == 60 and math.isnan(one.error)
    assert math.isnan(none.total) and math.isnan(none.error)
    assert sampling({1: 10, 2: 10}, {1: 1}).unprobed == [2]


def test_error_matches_the_sampling_formula() -> None:
    """Of many samples, about 68 % of the estimates are within one error of the truth."""
    random = np.random.default_rng(3)
    truth = random.gamma(2.0, 100.0, 2000)
    counts, launches = sampling({1: 2000}, {1: 200}), np.arange(200, dtype=np.uint64)
    within = 0
    for _ in range(400):
        sample = random.choice(truth, 200, replace=False)
        found = counts.estimates(launches, sample)[1]
        within += abs(found.total - truth.sum()) <= found.error
    assert 0.6 < within / 400 < 0.76


def test_kernels_are_estimated_separately() -> None:
    """A kernel in few windows does not use the mean of the others."""
    counts = sampling({1: 100, 2: 10}, {1: 10, 2: 10})
    launches = np.asarray([*range(10), *range(100, 110)], np.uint64)
    found = counts.estimates(launches, np.asarray([1] * 10 + [1000] * 10, np.uint64))
    assert found == {1: Estimate(100.0, 0.0), 2: Estimate(10_000.0, 0.0)}
    assert counts.total(found) == Estimate(10_100.0, 0.0)


def test_estimate_of_a_kernel_is_the_sum_over_its_shapes() -> None:
    """Grids of 1 and 8 blocks were probed equally often, though one runs ten times as often."""
    counts = sampling({1: 1000}, {1: 3}, grid=1)
    add(counts, {1: 100}, {1: 3}, grid=8)
    launches = np.asarray([0, 1, 2, 1000, 1001, 1002], np.uint64)
    amounts = np.asarray([10, 10, 10, 80, 80, 80])
    found = counts.estimates(launches, amounts)
    assert found == {1: Estimate(1000 * 10 + 100 * 80, 0.0)}
    assert len(counts.shapes) == 2 and counts.text() == "counted in 6 of 1,100 launches"
    assert counts.weights(launches).tolist() == [1000 / 3] * 3 + [100 / 3] * 3


def test_shapes_that_were_never_probed_count_as_their_kernels_mean() -> None:
    counts = sampling({1: 1000}, {1: 4}, grid=1)
    add(counts, {1: 10}, {}, grid=8)
    found = counts.estimates(np.arange(4, dtype=np.uint64), np.asarray([8, 12, 8, 12]))
    variance = np.var([8, 12, 8, 12], ddof=1)
    assert found[1].total == pytest.approx(1010 * 10)
    assert counts.weights(np.asarray([3])).tolist() == pytest.approx([1010 / 4])
    assert found[1].error == pytest.approx(
        math.sqrt(1000**2 * 0.996 * variance / 4 + 10**2 * variance / 4 + 10 * variance)
    )
    assert counts.text() == (
        "counted in 4 of 1,010 launches; 1 shape of launches never probed, 1.0 % of launches:"
        " counted as the mean of their kernels"
    )


def test_launches_at_pauses_are_divided_among_the_operators_of_their_shape() -> None:
    """Of 40 launches that were followed, 30 were in an operator with twice the accesses."""
    counts = Sampling()
    launches = np.zeros(1060, abi.dtype("kernel_launch"))
    launches["thread"] = np.arange(1060)  # at one place
    launches["name"] = 1
    launches["name"][1050:] = 2  # another kernel, never followed nor probed
    launches["ordinal"] = np.arange(len(launches))
    operators = np.zeros(len(launches), np.uint32)
    operators[:30], operators[30:40] = 7, 8
    launches["flags"][40:] |= abi.FLAG_PAUSED
    launches["flags"][[0, 1, 30, 31]] |= abi.FLAG_PROBED
    launches["flags"][1040:1050] |= abi.FLAG_GRAPH  # has no operator: as it is
    for part in (slice(0, 700), slice(700, 1060)):
        counts.add(launches[part], operators[part])
    probed = np.asarray([0, 1, 30, 31], np.uint64)
    amounts = np.asarray([20.0, 20.0, 10.0, 10.0])
    # launches of a graph count as the mean of the kernel's others
    assert counts.estimates(probed, amounts)[1].total == pytest.approx(1050 / 4 * (3 * 20 + 10))
    weights = [1050 * 3 / 4 / 2, 1050 / 4 / 2]
    assert counts.weights(probed) == pytest.approx([weights[0]] * 2 + [weights[1]] * 2)
    assert counts.unprobed == [2] and counts.seen == {1: 1050, 2: 10}
    known = np.full(len(launches), np.nan)
    known[probed.astype(int)] = amounts
    completed = counts.completed(launches["ordinal"], known)
    assert completed[[2, 32, 500, 1045]] == pytest.approx([20, 10, 17.5, 17.5])
    assert np.isnan(completed[1055])
    assert "operators were paused in 95 % of launches" in counts.text()
    assert "1 shape of launches never probed, 0.9 % of launches" in counts.text()


def test_launches_that_were_followed_briefly_do_not_count_for_proportions() -> None:
    """Operators were followed from some launch to one of operator 7, which was probed."""
    counts = Sampling()
    launches = np.zeros(1000, abi.dtype("kernel_launch"))
    launches["thread"] = np.arange(1000)  # at one place
    launches["name"] = 1
    launches["ordinal"] = np.arange(len(launches))
    operators = np.zeros(len(launches), np.uint32)
    operators[:40], operators[40:100] = 7, 8
    launches["flags"][100:] |= abi.FLAG_PAUSED
    operators[500:510] = 8
    operators[510:515] = 7
    probed = [0, 1, 40, 41, *range(510, 515)]
    launches["flags"][probed] |= abi.FLAG_PROBED
    counts.add(launches, operators)
    seen = dict(zip(counts.of_shapes()[1], counts.shape_launches().values(), strict=True))
    assert seen == {0: 0, 2: 600, 7: 400}
    amounts = np.asarray([20.0, 20.0, 10.0, 10.0, *[20.0] * 5])
    assert counts.estimates(np.asarray(probed), amounts)[1].total == 400 * 20 + 600 * 10


@given(
    flags=st.lists(
        st.sampled_from((0, abi.FLAG_PROBED, abi.FLAG_PAUSED, abi.FLAG_PAUSED | abi.FLAG_PROBED)),
        min_size=1,
    ),
    splits=st.lists(st.integers(1, 50), max_size=3),
)
def test_each_launch_at_a_pause_counts_once(flags: list[int], splits: list[int]) -> None:
    """Also one that was probed without its operator, because its kernel was new."""
    launches = np.zeros(len(flags), abi.dtype("kernel_launch"))
    launches["name"], launches["ordinal"], launches["flags"] = 1, np.arange(len(flags)), flags
    operators = np.where(launches["flags"] & abi.FLAG_PAUSED, 0, 7).astype(np.uint32)
    whole, parts = Sampling(), Sampling()
    whole.add(launches, operators)
    for at in np.split(np.arange(len(flags)), sorted({*splits})):
        parts.add(launches[at], operators[at])
    assert sum(whole.shape_launches().values()) == pytest.approx(len(flags))
    assert parts.shape_launches() == pytest.approx(whole.shape_launches())


def test_launches_at_pauses_are_like_those_shortly_before() -> None:
    """Operator 7 launched a thousand times at the start, and then no more."""
    counts = Sampling()
    launches = np.zeros(20_000, abi.dtype("kernel_launch"))
    launches["thread"] = np.arange(20_000)  # at one place
    launches["name"] = 1
    launches["name"][[100, 15_000]] = 2  # one at the start, one at a pause
    launches["ordinal"] = np.arange(len(launches))
    operators = np.full(len(launches), 7, np.uint32)
    operators[1000:7000] = [8, 8, 9] * 2000
    launches["flags"][7000:] |= abi.FLAG_PAUSED
    for part in range(0, len(launches), 3000):
        counts.add(launches[part : part + 3000], operators[part : part + 3000])
    seen = [*counts.shape_launches().values()]
    at_pause = 13_000 - 1
    assert sum(seen) == pytest.approx(len(launches))
    assert sorted(seen) == pytest.approx(
        [0, 0, 2, 999, 2000 + at_pause / 3, 4000 + 2 * at_pause / 3], rel=1e-3
    )


def steps_of(places: list[tuple[int, int]], steps: int, threads: int = 1) -> np.ndarray:
    """Launch records of steps, each of these kernels and grids on every thread."""
    launches = np.zeros(len(places) * steps * threads, abi.dtype("kernel_launch"))
    launches["name"] = np.tile([name for name, _ in places], steps * threads)
    launches["grid"][:, 0] = np.tile([grid for _, grid in places], steps * threads)
    launches["thread"] = np.repeat(np.arange(threads), len(places) * steps)
    order = np.argsort(np.tile(np.arange(len(places) * steps), threads), kind="stable")
    launches = launches[order]
    launches["ordinal"] = np.arange(len(launches))
    return launches


#: Kernels and grids: of kernel 1, rows of six, four and one launch, after different ones.
PLACES = [(2, 1), *[(1, 1)] * 6, (3, 1), *[(1, 1)] * 4, (3, 2), (1, 1)]
AMOUNTS = [1, 10, 20, 30, 40, 50, 60, 1, 70, 80, 90, 100, 1, 110]
UNPROBED = 8


@pytest.mark.parametrize("batch", [1, 7, 100, 10_000])
@pytest.mark.parametrize("threads", [1, 3])
def test_launches_at_one_place_are_alike(batch: int, threads: int) -> None:
    """What a launch does depends on its place. Places are probed two or more times, or never."""
    launches = steps_of(PLACES, 100, threads)
    place = np.arange(len(launches)) // threads % len(PLACES)
    step = np.arange(len(launches)) // threads // len(PLACES)
    probed = (step >= 2) & (step < 4 + place) & (place != UNPROBED)
    launches["flags"][probed] |= abi.FLAG_PROBED
    counts = Sampling()
    for begin in range(0, len(launches), batch):
        counts.add(launches[begin : begin + batch])
    assert len(counts.shapes) == 4
    at, amounts = np.flatnonzero(probed).astype(np.uint64), np.asarray(AMOUNTS)[place]
    found = counts.estimates(at, amounts[probed])
    # launches at a place without probed ones are like the others, also the first row of a thread
    total = 100 * (sum(AMOUNTS) - 3 - AMOUNTS[UNPROBED]) - sum(AMOUNTS[1:7])
    assert found[1].total == pytest.approx(threads * total * 1100 / (1000 - 6))
    assert found[2] == Estimate(threads * 100.0, 0.0)
    assert found[1].error > 0
    weights = counts.weights(at)
    assert (weights * amounts[probed]).sum() == pytest.approx(sum(e.total for e in found.values()))
    completed = counts.completed(launches["ordinal"], np.where(probed, amounts, np.nan))
    assert completed.sum() == pytest.approx(weights @ amounts[probed])
    assert completed[(place == 6) & (step > 20)] == pytest.approx(60)


@given(
    launched=st.lists(st.tuples(st.integers(1, 2), st.integers(1, 3)), min_size=1, max_size=80),
    splits=st.lists(st.integers(1, 79), max_size=3),
)
def test_places_are_positions_in_rows_after_two_others(
    launched: list[tuple[int, int]], splits: list[int]
) -> None:
    """Of each thread: the kernel, its position in the row, and the two rows before it."""
    launches = np.zeros(len(launched), abi.dtype("kernel_launch"))
    launches["thread"], launches["name"] = np.transpose(launched)
    launches["ordinal"] = np.arange(len(launches))
    counts = Sampling()
    for part in np.split(launches, sorted({each for each in splits if each < len(launches)})):
        counts.add(part)
    rows: dict[int, list[tuple[int, int]]] = {1: [], 2: []}
    places = []
    for thread, kernel in launched:
        mine = rows[thread]
        if mine and mine[-1][0] == kernel:
            mine[-1] = kernel, mine[-1][1] + 1
        else:
            mine.append((kernel, 1))
        places.append(tuple(mine[-3:]))
    numbers = counts.numbers(launches["ordinal"]).tolist()
    assert len({*zip(numbers, places, strict=True)}) == len({*numbers}) == len({*places})


def test_a_place_with_one_probed_launch_varies_like_the_others_of_its_shape() -> None:
    launches = steps_of(PLACES, 1, threads=10)
    place, step = np.arange(140) // 10, np.arange(140) % 10
    probed = (launches["name"] == 1) & ((step < 2) | (step == 2) & (place == 1))
    probed &= (place != UNPROBED) | (step == 1)
    launches["flags"][probed] |= abi.FLAG_PROBED
    counts = Sampling()
    counts.add(launches)
    more = (place + step) % 2 * 4  # in every other step, at each place
    amounts = (np.asarray(AMOUNTS)[place] + more)[probed]
    found = counts.estimates(np.flatnonzero(probed).astype(np.uint64), amounts)[1]
    assert found.total == pytest.approx(10 * (sum(AMOUNTS) - 3 + 9 * 2 + 8 / 3 + 4))
    squares, few = 9 * 8 + 32 / 3, 9 + 2  # of places with two probed launches, and with three
    two, three = 10**2 * (1 - 2 / 10) * 8 / 2, 10**2 * (1 - 3 / 10) * (32 / 3 / 2) / 3
    one = 10**2 * (1 - 1 / 10) * squares / few
    assert found.error == pytest.approx(math.sqrt(9 * two + three + one))


CHANGES = {
    "late": lambda at: np.where(at < 0.5, 16.0, 1024.0),
    "growing": lambda at: 1 + 1023 * at,
    "random": lambda at: np.random.default_rng(1).normal(100, 10, len(at)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("row", [1, 4])
def test_errors_where_launches_change_during_the_run(change: str, row: int) -> None:
    """Rows of launches; the first three are probed, one soon after, and all in rows after 64 %."""
    launches = np.zeros(10_000, abi.dtype("kernel_launch"))
    at = np.arange(len(launches))
    launches["name"] = np.where(at % (row + 1) < row, 1, 2)
    launches["ordinal"] = at
    probed = np.isin(at, [0, 1, 2, 3, 505]) | (at > 6400) & (at < 6400 + 5 * (row + 1))
    launches["flags"][probed] |= abi.FLAG_PROBED
    counts = Sampling()
    counts.add(launches)
    amounts = np.where(launches["name"] == 1, CHANGES[change](at / len(at)), 7)
    found = counts.estimates(at[probed], amounts[probed])
    exact = amounts[launches["name"] == 1].sum()
    assert found[2].error == 0
    off = abs(found[1].total - exact)
    if change == "random":
        assert off < 3 * found[1].error < 0.15 * exact
    else:
        assert 0.2 * exact < off < 2 * found[1].error


@pytest.mark.parametrize(("limit", "most"), [("_MOST_PLACES", 5), ("_MOST_IN_SHAPE", 10 + 1)])
def test_places_are_limited(monkeypatch: pytest.MonkeyPatch, limit: str, most: int) -> None:
    """Launches after other ones each time: the first places are kept apart, the others are one."""
    monkeypatch.setattr(f"pasta.processors.sampling.{limit}", 10)
    launches = steps_of([(1, 1), (2, 1)], 5000)
    launches["grid"][1::2, 0] = np.arange(5000)
    launches["flags"][::500] |= abi.FLAG_PROBED
    counts = Sampling()
    for begin in range(0, len(launches), 300):
        counts.add(launches[begin : begin + 300])
    assert len([each for each in counts.places if each.shape.kernel == 1]) == most
    found = counts.estimates(np.arange(0, 10_000, 500).astype(np.uint64), np.full(20, 6))
    assert found[1] == Estimate(30_000.0, 0.0)


def test_missed_launches_were_not_probed() -> None:
    counts = sampling({1: 10, 2: 5, 3: 4}, {1: 10, 2: 5, 3: 4})
    assert counts.exact
    first = counts.miss(np.asarray([0, 1, 1, 11, 400_000], np.uint64))
    assert first.tolist() == [True, True, False, True, False]  # again, and unknown
    assert counts.miss(np.asarray([1, 2], np.uint64)).tolist() == [False, True]
    assert counts.missed(np.arange(4, dtype=np.uint64)).tolist() == [True, True, True, False]
    assert counts.all_missed.tolist()[:3] == [0, 1, 2]
    assert counts.missed(counts.all_missed).all()
    assert not counts.exact and counts.probed == {1: 7, 2: 4, 3: 4}
    assert counts.text() == "counted in 15 of 19 launches"
    probed = np.asarray([3, 4, 5, 6, 7, 8, 9], np.uint64)
    assert counts.estimates(probed, np.full(7, 3))[1] == Estimate(30.0, 0.0)
    assert counts.weights(np.asarray([3, 10, 15])).tolist() == [10 / 7, 5 / 4, 1]


def test_kernels_that_were_missed_have_no_remedy_of_windows() -> None:
    counts = sampling({1: 10, 2: 5}, {1: 10, 2: 5})
    counts.miss(np.arange(10, 15, dtype=np.uint64))
    assert counts.unprobed == [2] and counts.probed == {1: 10}
    assert counts.text() == (
        "counted in 10 of 15 launches; never probed: 1 kernel, 33 % of launches"
    )


def test_texts() -> None:
    counts = sampling({1: 102_900}, {1: 1029})
    assert counts.text() == "counted in 1,029 of 102,900 launches"
    assert counts.total_text({1: Estimate(1000.0, 4.0)}) == "about 1,000 in all launches, ± 0.4 %"
    assert counts.total_text({1: Estimate(1000.0, 0.1)}).endswith(", ± less than 0.1 %")
    assert counts.total_text({1: Estimate(1000.0, 0.0)}) == (
        "about 1,000 in all launches; probed launches of one shape, or place, were alike"
    )
    assert counts.total_text({1: Estimate(1000.0, math.nan)}) == (
        "about 1,000 in all launches, no error bound: one probed launch counts for others"
    )
    assert sampling({1: 5}, {}).text() == "no launches were probed, of 5"
    assert sampling({1: 5}, {}).total_text({1: Estimate(math.nan, math.nan)}) == ""
    assert sampling({1: 5}, {1: 5}).total_text({1: Estimate(9.0, 0.0)}) == ""


def test_totals_cover_probed_kernels() -> None:
    """The uncovered part is reported with it, with a remedy."""
    counts = sampling({1: 20_000, 2: 4_000, 3: 600, **dict.fromkeys(range(4, 59), 3_196)},
                      {1: 20, 2: 15, 3: 2})  # fmt: skip
    estimates = dict.fromkeys(counts.seen, Estimate(math.nan, math.nan))
    estimates |= {1: Estimate(1e9, 3e7), 2: Estimate(1e9, 4e7), 3: Estimate(0.0, 0.0)}
    assert counts.total_text(estimates) == (
        "about 2,000,000,000 in all launches of the 3 of 58 kernels that were probed"
        " (12 % of 200,380 launches), ± 2.5 %"
    )
    assert counts.text() == (
        "counted in 37 of 200,380 launches; never probed: 55 kernels, 88 % of launches"
        " (--sample, or --set probes.every=5416, instead of a window or budget probes the first"
        " launch of each)"
    )


def test_single_launch_has_no_error_bound() -> None:
    counts = sampling({1: 10, 2: 1, 3: 7}, {1: 1, 2: 1, 3: 2})
    estimates = {1: Estimate(60.0, math.nan), 2: Estimate(1.0, 0.0), 3: Estimate(7.0, 1.0)}
    assert counts.total_text(estimates) == (
        "about 68 in all launches, no error bound: 1 shape with one probed launch"
    )


# ---- in a tool


def test_access_count_estimates() -> None:
    events = Events()
    events.alloc(0x1000, 4096)
    for number in range(100):
        probed = number % 10 == 0
        events.launch("vadd", flags=abi.FLAG_PROBED if probed else 0)
        if probed:
            for _ in range(1 + number // 10 % 2):
                events.access("global", [0x1000 + 4 * lane for lane in range(32)])
    result = run_tool(find_tools("access_count")[0], events)
    (row,) = result.tables["kernels"].rows()
    assert (row["launches"], row["probed"], row["accesses"]) == (100, 10, 15 * 32)
    assert row["estimate"] == 4800
    error = 100 * math.sqrt(0.9 * np.var([32, 64] * 5, ddof=1) / 10)
    assert row["error"] == pytest.approx(error)
    assert "; about 4,800 in all launches, ± 11 %; counted in 10 of 100 launches" in result.summary
    assert "in probed launches" in result.summary


def test_shares_and_order_are_of_all_launches() -> None:
    """`often` accesses less than `large` in probed launches, and more in all."""
    events = Events()
    events.alloc(0x1000, 4096)
    for number in range(40):
        name = "often" if number % 4 else "large"
        first = number < 4 + 4 * (name == "large")
        events.launch(name, flags=abi.FLAG_PROBED if first else 0)
        for _ in range((8 if name == "large" else 4) * first):
            events.access("global", [0x1000 + 4 * lane for lane in range(32)])
    result = run_tool(find_tools("access_count")[0], events)
    rows = [(row["kernel"], row["estimate"]) for row in result.tables["kernels"].rows()]
    assert rows == [("often", 30 * 128), ("large", 10 * 256)]
    assert [row["share"] for row in result.tables["kernels"].rows()] == [0.6, 0.4]
    figure = result.figures["kernels"]
    assert list(figure.x) == ["often", "large"]
    assert [list(each) for each in figure.series.values()] == [[4 * 3840, 4 * 2560]]
    assert "; about 6,400 in all launches; probed launches of one shape, or" in result.summary


def test_access_count_estimates_tables_by_shape_and_operator() -> None:
    """One launch of each shape is probed; operators are part of the shape, with a framework."""
    events = Events()
    events.alloc(0x1000, 4096)
    events.alloc(0x8000, 4096)
    probed: set[tuple[str, int]] = set()
    for number in range(30):
        operator, object = ("aten::a", 0x1000) if number % 3 else ("aten::b", 0x8000)
        events.operator(operator)
        first = (operator, object) not in probed
        probed.add((operator, object))
        events.launch("copy", flags=abi.FLAG_PROBED if first else 0)
        for _ in range(2 if first and number % 3 else int(first)):
            events.access("global", [object + 4 * lane for lane in range(32)])
        events.operator_end()

    class Followed(find_tools("access_count")[0]):  # type: ignore[misc]
        needs = ("operators", "launches")

    result = run_tool(Followed, events)
    operators = {row["operator"]: row for row in result.tables["operators"].rows()}
    found = [operators[name] for name in ("aten::a", "aten::b")]
    assert [row["bytes"] for row in found] == [256, 128]
    assert [row["estimate"] for row in found] == [20 * 256, 10 * 128]
    assert [row["share"] for row in found] == [0.8, 0.2]
    assert [row["estimate"] for row in result.tables["objects"].rows()] == [5120, 1280]
    (kind,) = result.tables["kinds"].rows()
    assert (kind["bytes"], kind["estimate"], kind["share"]) == (384, 6400, 1.0)
    (kernel,) = result.tables["kernels"].rows()
    assert kernel["estimate"] == 6400 // 4


def windows() -> Events:
    """10 launches of `often`, 4 of them probed, with 32 and 64 accesses of 4 bytes in turn, and 30
    unprobed launches of `never`."""
    events = Events()
    events.alloc(0x1000, 4096)
    for number in range(10):
        events.launch("often", flags=abi.FLAG_PROBED if number < 4 else 0)
        for warp in range(1 + number % 2 if number < 4 else 0):
            events.access("global", [0x1000 + 128 * warp + 4 * lane for lane in range(32)])
    for _ in range(30):
        events.launch("never", flags=0)
    return events


def test_unprobed_kernels_are_in_no_total() -> None:
    """Exact: 4 * 48 accesses are observed, and 10 * 48 estimated; `never` is not included."""
    result = run_tool(find_tools("access_count")[0], windows())
    often, never = result.tables["kernels"].rows()
    assert (often["launches"], often["probed"], often["accesses"]) == (10, 4, 192)
    assert often["estimate"] == 480
    assert (never["launches"], never["probed"]) == (30, 0)
    assert {never[key] for key in ("accesses", "bytes", "share", "estimate", "error")} == {None}
    for text in (
        "about 480 in all launches of the 1 of 2 kernels that were probed (25 % of 40 launches), ±",
        "counted in 4 of 40 launches; never probed: 1 kernel, 75 % of launches"
        " (--sample, or --set probes.every=10, ",
    ):
        assert text in result.summary
    assert [tuple(row.values()) for row in result.tables["probed"].rows()] == [
        ("never", "1x1x1", "32x1x1", None, 30, 0, 0.0),
        ("often", "1x1x1", "32x1x1", None, 10, 4, 0.4),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["bank_conflicts", "coalescing", "divergence", "hotness", "working_set"]
)
def test_every_tool_with_probes_reports_its_coverage(name: str) -> None:
    result = run_tool(find_tools(name)[0], windows())
    assert "counted in 4 of 40 launches; never probed: 1 kernel, 75 % of" in result.summary
    assert "probed" in result.tables


def test_findings_name_their_launches() -> None:
    options = {"hot_accesses": 1, "hot": 0.1}
    (finding,) = run_tool(find_tools("hotness")[0], windows(), options=options).findings
    assert finding.evidence.endswith("; from the 4 of 40 launches that were probed")
    assert finding.confidence == "low"


def test_findings_of_estimates_say_so() -> None:
    options = {"wasted": 0, "wasted_share": 0.0}
    events = windows()
    events.launch("often", flags=abi.FLAG_PROBED)
    events.access("global", [0x1000 + 64 * lane for lane in range(32)])
    finding, *_ = run_tool(find_tools("coalescing")[0], events, options=options).findings
    assert finding.evidence.endswith("; estimated from the 5 of 41 launches that were probed")


def test_working_sets_are_of_probed_launches() -> None:
    """Other launches are absent, not 0."""
    result = run_tool(find_tools("working_set")[0], windows())
    often, never = result.tables["kernels"].rows()
    assert (often["launches"], often["min"], often["mean"], often["max"]) == (10, 128, 192, 256)
    assert (never["launches"], never["min"], never["max"], never["footprint"]) == (
        30, None, None, 4096,
    )  # fmt: skip
    rows = {row["measure"]: row for row in result.tables["run"].rows()}
    assert rows["touched (unique bytes)"]["min"] == 128
    launches = list(result.tables["launches"].rows())
    assert [row["working_set"] for row in launches] == [128, 256] * 2 + [None] * 36
    assert result.summary.startswith("4 probed launches touch at most 256 B (often, launch 1)")
    assert "others may touch more" in result.summary
    series = result.figures["launches"].series
    assert np.isnan(series["touched (unique bytes)"][4:]).all()
    assert (np.asarray(series["live"]) == 4096).all()


def test_access_count_is_exact_without_windows() -> None:
    events = Events()
    events.launch("vadd")
    events.access("global", [0x1000])
    result = run_tool(find_tools("access_count")[0], events)
    (row,) = result.tables["kernels"].rows()
    assert (row["launches"], row["probed"], row["estimate"], row["error"]) == (1, 1, 1.0, 0.0)
    assert "estimated" not in result.summary
    assert {"probed", "estimate", "error"} <= result.tables["kernels"].hidden
