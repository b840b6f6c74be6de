"""The timeline and the overview of the HTML report."""

from __future__ import annotations

import json
import re
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pasta.capabilities import not_given
from pasta.errors import RunError, ToolError
from pasta.findings import Topic
from pasta.report import timeline as module
from pasta.report.diff_page import render_diff_page
from pasta.report.exports import exports
from pasta.report.exports.base import Request
from pasta.report.exports.trace.format import RUNTIME_CALLS
from pasta.report.overview import overview, own_notes
from pasta.report.page import render_page
from pasta.report.timeline import Timeline, read_timeline
from pasta.run.diff import Comparison
from pasta.run.directory import RunDirectory
from pasta.run.results import StoredResult, StoredTables, read_results, write_result
from pasta.table import Figure, Table
from pasta.testing import Events
from pasta.tool import Finding, Result, Tool
from tests.support.runs import MANIFEST, recorded
from tests.support.streams import training_run

#: Sizes of levels and counters small enough for a short run.
SMALL = {"_BINS": 4, "_FINER": 4, "_MIN_SLICES": 8, "_POINTS": 4}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return recorded(training_run(), tmp_path / "run")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALL.items():
        monkeypatch.setattr(module, name, value)


def timeline_of(run: RunDirectory) -> Timeline:
    found = read_timeline(run)
    assert found is not None
    return found


def of_events(events: Events, path: Path) -> Timeline:
    return timeline_of(recorded(events, path))


def launches(path: Path, times: list[tuple[int, int]]) -> Timeline:
    """The timeline of kernels a, b, a, … that run from and to these times (us)."""
    events = Events(step=1)
    began = events.process.start_time
    for number, (start, end) in enumerate(times):
        ordinal = events.launch("ab"[number % 2], stream=1)
        events.complete(ordinal, began + 1000 * start, began + 1000 * end, stream=1)
    return of_events(events, path)


def slices(found: Timeline, label: str) -> list[list[tuple[str, int, int]]]:
    """Name, start and end of the slices of each row with this label."""
    return [
        [
            (found.names[found.name[at]][1], int(found.start[at]), int(found.end[at]))
            for at in range(row.first, row.first + row.count)
        ]
        for row in found.rows
        if row.label == label
    ]


def scheduled(path: Path, blocks: list[dict[str, int]], *, clocked: bool) -> RunDirectory:
    """Three launches of a kernel, 100 us apart, each 10 us after its call; the second is on device
    1. `blocks`: rows of block_schedule."""
    events = Events(step=1)
    began = events.process.start_time
    for number in range(3):
        called = began + 100_000 * number
        ordinal = events.launch("kernel", time=called, device=number % 2, stream=1)
        if clocked:
            start = called + 10_000
            events.complete(ordinal, start, start + 50_000, device=number % 2, stream=1)
    run = recorded(events, path)
    columns = {name: [each[name] for each in blocks] for name in blocks[0]}
    write_result(run.results, "block_schedule", Result("", {"resident": Table(columns)}))
    return run


def block(launch: int, sm: int, clock: int, duration: int, blocks: int = 1) -> dict[str, int]:
    device = launch % 2
    return {"launch": launch, "device": device, "sm": sm, "clock": clock, "duration": duration,
            "blocks": blocks}  # fmt: skip


#: On the clocks of two devices, one of which is much larger than the host's.
BLOCKS = [
    block(0, 0, 1 << 60, 2000), block(0, 0, (1 << 60) + 2000, 500, 3),
    block(0, 10, (1 << 60) + 100, 2000), block(1, 0, 7, 1000), block(2, 0, (1 << 60) + 90_000, 1),
    block(9, 0, 1 << 60, 1),  # a launch that was not recorded
]  # fmt: skip


def test_blocks_begin_with_their_kernels(tmp_path: Path) -> None:
    found = timeline_of(scheduled(tmp_path / "run", BLOCKS, clocked=True))
    rows = [(row.group, row.heading, row.label) for row in found.rows[-3:]]
    assert rows == [
        ("device 0", "multiprocessors", "multiprocessor 0"),
        ("device 0", "multiprocessors", "multiprocessor 10"),
        ("device 1", "multiprocessors", "multiprocessor 0"),
    ]
    first, other = slices(found, "multiprocessor 0")
    assert first == [
        ("kernel", 10_000, 12_000), ("kernel, 3 blocks", 12_000, 12_500),
        ("kernel", 210_000, 210_001),
    ]  # fmt: skip
    assert other == [("kernel", 110_000, 111_000)]
    assert slices(found, "multiprocessor 10") == [[("kernel", 10_100, 12_100)]]
    assert {kind for kind, name in found.names if "blocks" in name} == {"block"}
    assert found.work.busy == {"device 0": 100_000, "device 1": 50_000}


def test_blocks_of_kernels_without_times_begin_after_the_calls(tmp_path: Path) -> None:
    """By the clock of device 0, the third launch began 90 us after the first, which was called
    100 us before it."""
    found = timeline_of(scheduled(tmp_path / "run", BLOCKS, clocked=False))
    first, other = slices(found, "multiprocessor 0")
    assert [start for _, start, _ in first] == [110_000, 112_000, 200_000]
    assert [start for _, start, _ in other] == [100_000]


def test_of_too_many_slices_blocks_are_left_out_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = scheduled(tmp_path / "run", BLOCKS, clocked=True)
    every = timeline_of(run)
    monkeypatch.setattr(module, "MAX_SLICES", every.total - 2)
    found = timeline_of(run)
    kept = slices(found, "multiprocessor 0")
    assert kept == [[("kernel", 10_000, 12_000)], [("kernel", 110_000, 111_000)]]
    assert found.shortest == 1000 and len(found.start) == every.total - 2


def test_damaged_table_of_blocks(tmp_path: Path) -> None:
    run = scheduled(tmp_path / "run", BLOCKS, clocked=True)
    write_result(run.results, "block_schedule", Result("", {"resident": Table({"launch": [1]})}))
    with pytest.raises(RunError, match="resident"):
        read_timeline(run)


def test_slices_are_those_of_the_trace(run: RunDirectory, tmp_path: Path) -> None:
    (export,) = (each for each in exports() if each.name == "perfetto")
    export.write(Request(run, str(tmp_path / "trace.json")))
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    calls = {shown: name for name, shown in RUNTIME_CALLS.items()}
    drawn = Counter(
        (calls.get(each["name"], each["name"]), round(1000 * each["ts"]), round(1000 * each["dur"]))
        for each in trace
        if each["ph"] == "X"
    )
    found = timeline_of(run)
    took = found.end - found.start
    shown = Counter(
        (found.names[code][1], int(start), int(duration))
        for code, start, duration in zip(found.name, found.start, took, strict=True)
    )
    assert len(drawn) > 100 and drawn <= shown
    levels = {each["name"]: each["args"] for each in trace if each["ph"] == "C"}
    assert {each.label for each in found.counters} == set(levels)
    for counter in found.counters:
        assert list(levels[counter.label].values()) == [counter.value[-1]]


def test_rows_have_no_overlaps_and_the_order_of_a_story(run: RunDirectory) -> None:
    found = timeline_of(run)
    for row in found.rows:
        here = slice(row.first, row.first + row.count)
        assert (found.start[here][1:] >= found.end[here][:-1]).all()
    groups = [row.group for row in found.rows]
    assert groups == sorted(groups, key=lambda group: group != "host")
    assert found.rows[0].label == "process"  # ranges of the process
    assert len(slices(found, "thread 1")) >= 3  # range, operator, inner operator
    assert sum(row.count for row in found.rows) == len(found.start) == found.total


def test_overlapping_work_is_beside_and_counted_once(tmp_path: Path) -> None:
    found = launches(tmp_path / "run", [(10, 20), (15, 30), (40, 50)])
    lanes = [
        rows for row in found.rows if "stream" in row.label for rows in slices(found, row.label)
    ]
    assert lanes == [
        [("a", 10_000, 20_000), ("a", 40_000, 50_000)], [("b", 15_000, 30_000)],
    ]  # fmt: skip
    assert found.work.busy == {"device 0": 30_000} and found.work.span == 40_000
    named = {found.names[code][1]: took for code, took in found.work.by_name.items()}
    assert named == {"a": 20_000, "b": 15_000}


@pytest.mark.usefixtures("small")
def test_levels_have_the_busy_share_and_what_takes_most(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    edges = np.cumsum(random.integers(1, 50, 400)).tolist()
    found = launches(tmp_path / "run", list(zip(edges[::2], edges[1::2], strict=True)))
    (row,) = (each for each in found.rows if each.group == "device 0")
    assert [len(level.name) for level in row.levels] == [4, 16]
    here = slice(row.first, row.first + row.count)
    start, end, name = found.start[here], found.end[here], found.name[here]
    for level in row.levels:
        width = (found.until - found.begin) / len(level.name)
        for number, (code, share) in enumerate(zip(level.name, level.share, strict=True)):
            low = found.begin + number * width
            part = np.clip(np.minimum(end, low + width) - np.maximum(start, low), 0, None)
            assert abs(share - 255 * part.sum() / width) <= 1
            sums = {each: part[name == each].sum() for each in set(name.tolist())}
            assert code == -1 if not part.any() else sums[code] == pytest.approx(max(sums.values()))


@pytest.mark.usefixtures("small")
def test_counters_keep_maxima_and_the_last_value(tmp_path: Path) -> None:
    events = Events(step=1000)
    for number in range(40):
        events.alloc(0x1000 * (number + 1), 100 * (1 + number * 7 % 11))
        if number % 3:
            events.free(0x1000 * (number + 1))
    found = of_events(events, tmp_path / "run")
    (counter,) = found.counters
    assert len(counter.time) <= 8 and (np.diff(counter.time) > 0).all()
    assert counter.peak == counter.value.max()
    live = sum(100 * (1 + number * 7 % 11) for number in range(0, 40, 3))
    assert counter.value[-1] == live


def test_of_too_many_slices_the_longest_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SLICES", 2)
    found = launches(tmp_path / "run", [(10, 11), (20, 29), (30, 35), (40, 41)])
    (stream,) = (label for label in {row.label for row in found.rows} if "stream" in label)
    assert slices(found, stream) == [[("b", 20_000, 29_000), ("a", 30_000, 35_000)]]
    assert found.shortest == 5000
    assert found.notes == [
        "of 8 slices, those of at least 5.00 us are drawn one by one; shorter ones are drawn only "
        "in the unzoomed view"
    ]


def test_reading_stops(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = timeline_of(run)
    monkeypatch.setattr(module, "MAX_EVENTS", 100)
    found = timeline_of(run)
    assert 0 < found.total < everything.total
    assert found.notes[-1].startswith("only the first ")


def test_unrecorded_and_damaged_events(tmp_path: Path) -> None:
    empty = RunDirectory.create(tmp_path / "empty")
    empty.write_manifest(MANIFEST)
    assert read_timeline(empty) is None
    events = Events()
    events.complete(events.launch("k"), 5, 2**64 - 2)  # does not fit into 63 bits
    page = render_page(recorded(events, tmp_path / "damaged"))
    assert "no timeline: " in page and 'id="timeline-section"' not in page


def result(path: Path, tables: dict[str, Table], *notes: str, name: str = "tool") -> StoredResult:
    write_result(path, name, Result("", tables, notes=notes))
    return StoredResult(
        name, "", StoredTables(path.parent, path / name, list(tables), None), [], [], {},
        list(notes), name, "other",
    )  # fmt: skip


def steps(path: Path, first: int) -> Timeline:
    """A launch after 5 us, and 300 steps of 10 us from `first` (us) on."""
    events = Events(step=1)
    began = events.process.start_time
    for start in (5, *range(first, first + 3000, 10)):
        ordinal = events.launch("kernel", time=began + 1000 * start, stream=1)
        times = began + 1000 * start + 2000, began + 1000 * start + 7000
        events.complete(ordinal, *times, time=times[1], stream=1)
    return of_events(events, path)


def test_timeline_shows_the_part_with_the_work_first(tmp_path: Path) -> None:
    """Start-up, here a second with one kernel in it, is not most of the picture."""
    found = steps(tmp_path / "late", 1_000_000)
    begin, until = found.focus() or (0, 0)
    assert 1_000_000_000 - 1_000_000 < begin < 1_000_000_000 and until == found.until
    assert steps(tmp_path / "soon", 1000).focus() is None  # most of the run is work


def test_overview(run: RunDirectory, tmp_path: Path) -> None:
    gaps = not_given("some_source", ["registers", "wait times"])
    tensors = {
        "categories": Table(
            {"device": [0, 0, 1], "category": ["a", "b", "a"], "at_peak": [1024, 3072, 1]}
        )
    }
    coverage = {
        "coverage": Table(
            {"kernel": ["k", "k", "l", "m"], "coverage": ["seen", "seen", "partly", "unknown"]}
        )
    }
    results = [
        result(tmp_path / "results", tensors, gaps, "own"),
        result(tmp_path / "results", coverage, gaps, name="other"),
    ]
    manifest = {
        **run.manifest(), "events": {"kernel_launch": 9}, "launches": {"seen": 9, "selected": 4},
        "dropped": {"memory_alloc": 2}, "accesses": {"chunks": 3, "dropped": 1500},
    }  # fmt: skip
    found = overview(manifest, results, timeline_of(run))
    facts = {fact.label: fact.value for fact in found.facts}
    assert facts["Observed"] == "5 ns" and facts["Kernel launches"] == "9"
    assert facts["Device busy"].endswith(" %")
    time, memory = found.bars
    assert sum(part.share for part in time.parts) == pytest.approx(1)
    assert (memory.title, memory.whole) == ("Tensors at the peak of device 0", "4.00 KiB")
    assert [(part.label, part.value) for part in memory.parts] == [
        ("b", "3.00 KiB, 75%"), ("a", "1.00 KiB, 25%"),
    ]  # fmt: skip
    assert found.coverage == [
        "9 events observed; dropped: 2 memory_alloc, 1,500 accesses",
        "4 of 9 launches selected",
        "device times include those of probes, which slow kernels down: with --passes auto they are"
        " of a run without probes",
        "not given by some_source: registers, wait times",
        "accesses: all kinds seen in 1 of 3 kernels; not all in l; unknown in 1: their code was not"
        " kept",
    ]
    assert own_notes(results[0]) == ["own"]


def test_overview_of_merged_runs(tmp_path: Path) -> None:
    """Kernels of two ranks are the same ones; their peaks are added, and the title says so."""
    tables = {
        "kernels": Table({"rank": [0, 1, 1], "kernel": ["k", "k", "l"], "launches": [1, 2, 3]}),
        "categories": Table(
            {"rank": [0, 1], "device": [0, 0], "category": ["a", "a"], "at_peak": [1024, 2048]}
        ),
    }
    manifest = {**MANIFEST, "launches": {"seen": 6}}
    found = overview(manifest, [result(tmp_path / "results", tables)], None)
    assert {fact.label: fact.about for fact in found.facts}["Kernel launches"] == "of 2 kernels"
    (bar,) = found.bars
    assert (bar.title, bar.whole) == ("Tensors at the peak of device 0, sum of 2 ranks", "3.00 KiB")
    assert [(part.label, part.share) for part in bar.parts] == [("a", 1.0)]


def test_overview_without_events(tmp_path: Path) -> None:
    """After a merge, times come from the tables."""
    tables = {
        "kernels": Table({"kernel": ["k", "l"], "launches": [1, 1], "total_time": [75, None]}),
        "devices": Table({"device": [0, 1], "span": [100, 200], "busy": [50, 40]}),
    }
    found = overview({}, [result(tmp_path / "results", tables)], None)
    (busy,) = found.facts
    assert busy.value == "20% to 50%"
    assert busy.about == "of 200 ns from first to last device work, 2 devices"
    (bar,) = found.bars
    assert [(part.label, part.share) for part in bar.parts] == [("k", 1.0)]


def test_overview_of_an_unfinished_run_with_wrong_types(tmp_path: Path) -> None:
    tables = {
        "operators": Table({"operator": [1, None], "own_time": ["x", None]}),
        "peaks": Table(
            {"layer": ["memory"], "device": ["?"], "memory": ["total"], "peak": ["much"]}
        ),
        "at_peak": Table({"peak_of": ["memory"], "device": [0], "memory": [5], "bytes": [None]}),
        "categories": Table({"device": [[1]], "category": [[2]], "at_peak": [7]}),
        "coverage": Table({"kernel": [[1]], "coverage": [[2]]}),
    }
    found = overview({}, [result(tmp_path / "results", tables)], None)
    assert [fact.label for fact in found.facts] == ["Peak memory"] and not found.bars


def test_sections_have_titles_and_the_order_of_topics(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    run.write_manifest(MANIFEST)
    topics: dict[str, Topic] = {"aaa": "other", "mem": "memory", "when": "time"}
    for name, topic in topics.items():
        tables = {"some_rows": Table({"n": [1]})}
        title = "Memory & more" if name == "mem" else ""
        write_result(run.results, name, Result("", tables), title=title, topic=topic)
    titles = {each.name: each.title for each in read_results(run.results)}
    assert titles == {"aaa": "Aaa", "mem": "Memory & more", "when": "When"}
    page = render_page(run)
    places = [page.index(f'<section id="tool-{name}">') for name in ("when", "mem", "aaa")]
    assert places == sorted(places)
    assert "<h2>Memory &amp; more " in page and "Some rows <span" in page


def test_sections_without_rows_come_last_and_equal_tables_are_shown_once(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    run.write_manifest(MANIFEST)
    rows, none = Table({"n": [1]}, title="What was seen"), Table({"n": []}, title="Nothing")
    for name, tables in {
        "aaa": {"no": none},
        "mem": {"seen": rows, "no": none},
        "sum": {"seen": rows},
    }.items():
        write_result(run.results, name, Result("", tables))
    page = render_page(run)
    places = [page.index(f'<section id="tool-{name}">') for name in ("mem", "sum", "aaa")]
    assert places == sorted(places)
    assert page.count("<summary>What was seen") == 1
    assert 'What was seen: as in <a href="#tool-mem">Mem</a>' in page
    assert page.count("Without rows: Nothing") == 1 and "<summary>Nothing" not in page


def test_findings_have_their_line_of_source_and_commands_of_this_run(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    source = tmp_path / "train.py"
    source.write_text("import x\n    x.step() < 3\n")
    here = {"host": socket.gethostname(), "start": {"realtime_ns": 1 << 62, "monotonic_ns": 0}}
    run.write_manifest({**MANIFEST, **here, "command": ["python", "train.py", "a b"]})
    lines = Table({"line": ["train.py:2 f"], "file": [str(source)], "calls": [1]}, sums=("calls",))
    finding = Finding(
        "slow", "mm", "90 %", "train.py:2 f: see pasta-preload -t copies -- PROGRAM; then less", 0.5
    )
    write_result(run.results, "some", Result("", {"lines": lines}, [finding]))
    page = render_page(run)
    assert '<span class="quiet">2</span><code>x.step() &lt; 3</code>' in page
    command = "pasta-preload -t copies -- python train.py &#39;a b&#39;"
    assert f'f: see <code class="command">{command}</code>; then less</p>' in page
    assert "<code>x.step()" not in render_page(run, source=False)


def test_a_category_has_one_color(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    run.write_manifest(MANIFEST)
    categories = Table({"device": [0, 0], "category": ["b", "a"], "at_peak": [3, 1]})
    figures = {
        name: Figure("area", name, [0, 1], {each: [1, 2] for each in series}, y_unit="bytes")
        for name, series in {"one": "ab", "other": "ca", "alone": "xy"}.items()
    }
    write_result(run.results, "some", Result("", {"categories": categories}, figures=figures))
    page = render_page(run)
    found = [
        json.loads(text).get("colors")
        for text in re.findall(r'id="figure-\d+">(.*?)</script>', page)
    ]
    assert found == [[1, 0], [2, 1], None]


def test_a_category_has_one_color_in_both_runs_of_a_comparison(tmp_path: Path) -> None:
    runs = []
    for name, series in {"before": "ab", "after": "ba"}.items():
        run = RunDirectory.create(tmp_path / name)
        run.write_manifest(MANIFEST)
        live = {each: [1, 2] for each in series}
        area = Figure("area", "live", [0, 1], live, x_unit="ns", y_unit="bytes")
        peak = Table({"device": [0, 0], "category": list(series), "at_peak": [3, 1]})
        write_result(run.results, "some", Result("", {"categories": peak}, figures={"area": area}))
        runs.append(RunDirectory.open(run.path))
    page = render_diff_page(Comparison(*runs), [])
    assert re.findall(r'"colors":(\[.*?\])', page) == ["[1,0]", "[0,1]"]


def test_topics_are_checked() -> None:
    with pytest.raises(ToolError, match="topic"):

        class Wrong(Tool):
            topic: Any = "everything"


def test_page_is_deterministic(run: RunDirectory) -> None:
    assert render_page(run) == render_page(run)
