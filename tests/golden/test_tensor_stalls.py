"""Stalls charged to tensors, with numbers from arithmetic, in one run and in two passes."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pasta import abi
from pasta.plugins import find_tools
from pasta.processors.batch import ABSENT_U64
from pasta.report.page import render_page
from pasta.report.text import write_text_report
from pasta.run.directory import RunDirectory
from pasta.run.passes import join_as
from pasta.run.results import read_results, write_result
from pasta.sass import cache, nvdisasm, places
from pasta.stalls.spread import spread
from pasta.testing import Events, run_tool
from pasta.tool import Result
from tests.support.passes import manifested
from tests.support.runs import recorded
from tests.support.sass import LISTINGS, play_recorded, recorded_code

TensorStalls, PcSamples = find_tools("tensor_stalls")[0], find_tools("pc_samples")[0]
SEGMENT, W, X = 0x100_0000, 0x100_0000, 0x101_0000
MODULE = 0xABCD
#: In tests/data/sass/stalls_sm90: x = a[i] * b[i], two loads that one instruction waits for.
KERNEL = "two_loads_one_use"
LONG, WAIT = "stall_long_scoreboard", "stall_wait"


def offset(text: str, nth: int = 0) -> int:
    texts = recorded_code("stalls_sm90")[KERNEL].texts()
    return [16 * at for at, each in enumerate(texts) if each.startswith(text)][nth]


@pytest.fixture(autouse=True)
def disassembler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listings beside the modules stand in for nvdisasm."""
    monkeypatch.setattr(nvdisasm, "list_instructions", play_recorded)
    for name in ("find_nvdisasm", "required_nvdisasm"):
        monkeypatch.setattr(nvdisasm, name, lambda: Path("nvdisasm"))
    monkeypatch.setattr(nvdisasm, "version", lambda program: "recorded")
    monkeypatch.setattr(cache, "load", lambda *given: None)
    monkeypatch.setattr(cache, "store", lambda *given: None)


def work(probed: bool, entry: int, steps: int = 2) -> Events:
    """A weight, and for each step an input with a view, read by the two loads of a kernel."""
    events = Events()
    events.frames(1, ("/my/train.py", "train", 7))
    events.add("module_load", handle=1, hash=MODULE, bytes=100)
    events.alloc(SEGMENT, 0x10_0000)
    events.tensor_alloc(W, 0x1000)
    events.role(W, "parameter", "fc.weight")
    for _ in range(steps):
        events.operator("aten::randn", stack=1)
        events.tensor_alloc(X, 512)
        events.tensor(2, X, 512, "8,16", strides="16,1")
        events.operator_end(outputs=[2])
        events.operator("aten::t", stack=1, inputs=[2])
        events.tensor(3, X, 512, "16,8", strides="1,16")
        events.operator_end(outputs=[3])
        events.operator("aten::add_", stack=1, inputs=[3])
        events.operator_end(outputs=[3])
        events.operator("aten::mm", stack=1, module="Net.fc (Linear)", inputs=[3])
        flags = abi.FLAG_PROBED if probed else 0
        # CUPTI gives the module of a sample, but not of a launch
        place = {"entry_pc": entry, "module": 1} if probed else {}
        ordinal = events.launch(KERNEL, **place, function=9, flags=flags)
        if probed:
            first, second = offset("LDG", 0), offset("LDG", 1)
            events.access("global", [W + 4 * i for i in range(4)], pc=entry + first)
            events.access("global", [W, W + 4, W + 8, X], pc=entry + second)
            events.access("global", [X], pc=entry + offset("STG"), write=True)
        else:
            events.complete(ordinal, 10_000_000 * (ordinal + 1), 10_000_000 * (ordinal + 1) + 300)
        events.operator_end()
        events.tensor_free(X)
    return events


def sample(events: Events, pc: int, samples: int, reason: str, **fields: Any) -> None:
    fields = {"name": KERNEL, "module_hash": MODULE, **fields}
    events.add("pc_sample", pc=pc, samples=samples, reason=reason, **fields)


def rows(tables: Any, table: str, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in columns) for row in tables[table].rows()]


def adds_up(tables: Any, total: int) -> None:
    """Every sample is charged to a tensor or in `unattributed`, and once in each table."""
    rest = sum(count for (count,) in rows(tables, "unattributed", "samples"))
    for table in ("tensors", "lines", "tensor_stall_cost"):
        assert sum(count for (count,) in rows(tables, table, "stalls")) + rest == total
    assert sum(count for (count,) in rows(tables, "reasons", "samples")) == total


def test_samples_of_accesses_in_one_run() -> None:
    """A source that samples the access itself: nothing is blamed."""
    events = work(True, 0x5000)
    second = offset("LDG", 1)
    for launch, samples in ((0, 8), (1, 12)):
        sample(events, second, samples, "memory access", ordinal=launch)
    sample(events, 0, 5, "memory access", ordinal=0)  # not an access that was counted
    sample(events, second, 7, "other", ordinal=0)
    result = run_tool(TensorStalls, events)
    found = rows(result.tables, "tensors", "category", "operator", "tensors", "stalls")
    assert found == [("parameter", None, 1, 15), ("input", "aten::randn", 2, 5)]
    assert sorted(rows(result.tables, "unattributed", "why", "samples")) == [
        ("no accesses of the load were counted", 5), ("not waiting for memory", 7),
    ]  # fmt: skip
    assert not any("divided" in note for note in result.notes)
    adds_up(result.tables, 32)


@pytest.mark.parametrize("splits", [[], range(3, 18, 2)])
def test_views_of_tensors(splits: Iterable[int]) -> None:
    result = run_tool(TensorStalls, work(True, 0x5000, steps=1), splits=splits)
    file = io.BytesIO()
    result.files["forest.json"](file)  # type: ignore[operator]
    (tree,) = [
        each for each in json.loads(file.getvalue())["objects"] if each["operator"] == "aten::randn"
    ]
    (base,) = tree["views"]
    (view,) = base["views"]
    assert (base["shape"], base["operator"], base["versions"]) == ("8,16", "aten::randn", 0)
    assert (view["shape"], view["operator"], view["versions"]) == ("16,8", "aten::t", 1)
    assert (base["extent"], view["extent"]) == (512, 512)
    assert view["line"] == "train.py:7 train"
    assert result.summary.startswith("2 loads read 32 B of 2 objects; no stalls")


def joined_run(tmp_path: Path, times: Events, accesses: Events, keep: bool = True) -> RunDirectory:
    first, second = recorded(times, tmp_path / "times"), recorded(accesses, tmp_path / "accesses")
    write_result(first.results, "pc_samples", run_tool(PcSamples, times))
    write_result(second.results, "tensor_stalls", run_tool(TensorStalls, accesses))
    if keep:
        first.modules.mkdir()
        image = (LISTINGS / "stalls_sm90.cubin").read_bytes()
        (first.modules / f"{MODULE:016x}.cubin").write_bytes(image)
    manifested(first, tools=["pc_samples"])
    manifested(second, tools=["tensor_stalls"])
    done = join_as(first, second, tmp_path / "joined", finish=write_text_report)
    return done.run


def stalls(run: RunDirectory) -> Any:
    (found,) = [each for each in read_results(run.results) if each.name == "tensor_stalls"]
    return found


def test_two_passes_without_launches_in_samples(tmp_path: Path) -> None:
    """Samples of the stalled instruction are charged to both loads, and these to what they read."""
    times = work(False, 0x7000)
    sample(times, offset("FMUL"), 600, LONG)
    sample(times, offset("FMUL"), 50, WAIT)
    sample(times, offset("LDG", 0), 10, "selected")
    sample(times, 0x10, 3, LONG, name="unknown_kernel", module_hash=0x77)
    sample(times, ABSENT_U64, 0, "the hardware's buffer was full", name=0)
    run = joined_run(tmp_path, times, work(True, 0x9000))
    found = stalls(run)
    adds_up(found.tables, 663)
    loads = dict(rows(found.tables, "loads", "offset", "stalls"))
    first, second = offset("LDG", 0), offset("LDG", 1)
    assert set(loads) == {first, second} and sum(loads.values()) == 600
    tensors = dict(rows(found.tables, "tensors", "category", "stalls"))
    # the first load reads the weight; of the second one's accesses a quarter are to the input
    assert abs(tensors["input"] - loads[second] / 4) <= 1
    assert tensors["input"] + tensors["parameter"] == 600
    by_launch = [0, 0]
    for launch, count in rows(found.tables, "tensor_stall_cost", "launch", "stalls"):
        by_launch[launch] += count
    assert abs(by_launch[0] - 300) <= 2  # both took as long
    assert dict(rows(found.tables, "unattributed", "why", "samples")) == {
        "not waiting for memory": 60, "the function's code is unknown": 3,
    }  # fmt: skip
    assert any("600 samples without a certain launch" in note for note in found.notes)
    assert found.notes[-1].endswith("is missing: the hardware's buffer was full (1 times)")
    assert all(samples for (samples,) in rows(found.tables, "reasons", "samples"))
    lines = {row["offset"]: row for row in found.tables["sass"].rows()}
    assert lines[offset("FMUL")]["samples"] == 650
    place = lines[offset("FMUL")]
    assert place["file"].endswith("/" + place["line"].partition(":")[0])
    assert lines[first]["waited_for"] == loads[first]
    assert f"{first:#x}" in lines[offset("FMUL")]["blamed"]
    (best, *_) = found.findings
    assert best.where == "parameter fc.weight"
    assert best.gain == pytest.approx(tensors["parameter"] / 663)
    names = {path.name for path in found.files}
    assert {"forest.json", "blame.dot"} <= names
    assert "parameter fc.weight" in (run.results / "tensor_stalls" / "blame.dot").read_text()


def test_samples_of_launches_are_charged_in_their_launch(tmp_path: Path) -> None:
    times, accesses = work(False, 0x7000, steps=3), work(True, 0x9000)
    for launch, count in enumerate((100, 40, 30)):  # the third has no partner
        sample(times, offset("FMUL"), count, LONG, ordinal=launch)
    found = stalls(joined_run(tmp_path, times, accesses))
    adds_up(found.tables, 170)
    by_launch = {0: 0, 1: 0}
    for launch, count in rows(found.tables, "tensor_stall_cost", "launch", "stalls"):
        by_launch[launch] += count
    assert by_launch == {0: 100, 1: 40}
    assert dict(rows(found.tables, "unattributed", "why", "samples")) == {
        "its launch has no partner with accesses": 30
    }
    assert not any("without a certain launch" in note for note in found.notes)


def test_without_the_code_nothing_is_blamed(tmp_path: Path) -> None:
    times = work(False, 0x7000)
    sample(times, offset("FMUL"), 600, LONG)
    found = stalls(joined_run(tmp_path, times, work(True, 0x9000), keep=False))
    adds_up(found.tables, 600)
    assert rows(found.tables, "unattributed", "why", "samples") == [
        ("the function's code is unknown", 600)
    ]
    assert any("run.modules=true" in note for note in found.notes)


def test_passes_without_samples_have_accesses_only(tmp_path: Path) -> None:
    result: Result = stalls(joined_run(tmp_path, work(False, 0x7000), work(True, 0x9000)))
    assert "no stalls" in result.summary


@pytest.mark.slow
def test_reference_accelerator_runs_twice(pasta_preload: Any, demo: Any) -> None:
    """Each vector of vadd is read once, 8 floats in a sector: so many samples."""
    elements = 10_240
    done = pasta_preload(
        demo("vadd"), str(elements),
        options=("-c", "tensor_stalls", "--set", "refacc.samples=1", "-q", "-o", "run"),
    )  # fmt: skip
    found = stalls(RunDirectory.open(done.directory / "run"))
    assert rows(found.tables, "tensors", "category", "tensors", "stalls") == [
        ("device", 1, elements // 8), ("device", 1, elements // 8),
    ]  # fmt: skip
    adds_up(found.tables, 2 * elements // 8)
    assert {row["kernel"] for row in found.tables["loads"].rows()} == {"vadd"}


@pytest.mark.parametrize("seed", range(3))
def test_whole_parts_add_up_and_are_near_their_shares(seed: int) -> None:
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 50, 200)
    counts, weights = random.integers(0, 10_000, 200), random.random(int(sizes.sum()))
    weights[: sizes[0]] = 0  # divided equally
    parts = spread(counts, sizes, weights)
    starts = np.cumsum(sizes) - sizes
    assert (np.add.reduceat(parts, starts) == counts).all()
    weights[: sizes[0]] = 1
    exact = weights * np.repeat(counts / np.add.reduceat(weights, starts), sizes)
    assert (abs(parts - exact) < 1 + 1e-6).all()
    # many groups of one, in equal parts: each part gets its share of them, within the shift
    many = spread(np.ones(1000, np.int64), np.full(1000, 10), np.ones(10_000)).reshape(1000, 10)
    assert (abs(many.sum(0) - 100) < 3).all()


def test_html_report_shows_the_forest_and_the_code(tmp_path: Path) -> None:
    times = work(False, 0x7000)
    sample(times, offset("FMUL"), 600, LONG)
    page = render_page(joined_run(tmp_path, times, work(True, 0x9000)))
    assert "Stall samples by tensors" in page
    assert "Tensors that warps waited for" in page and f"Code of {KERNEL}" in page
    load = offset("LDG", 0)
    assert f'id="sass-1-{load:#x}" class="hot"' in page and f'href="#sass-1-{load:#x}"' in page
    assert "[16,8] strides (1,16) Float, at byte 0, 512 B long, 1 changes in place" in page
    assert "style=" not in page.split("<main")[1].split("<script")[0]  # the policy forbids it


def test_samples_in_a_device_function_count_in_its_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function `behind` begins at an offset in the section of its kernel."""
    begin = offset("LDG", 0)
    monkeypatch.setattr(
        places, "sections_of", lambda cubin: {"behind": (KERNEL, begin), KERNEL: (KERNEL, 0)}
    )
    times = work(False, 0x7000)
    sample(times, offset("FMUL") - begin, 600, LONG, name="behind")
    found = stalls(joined_run(tmp_path, times, work(True, 0x9000)))
    adds_up(found.tables, 600)
    assert sum(count for (count,) in rows(found.tables, "tensors", "stalls")) == 600
    assert {row["kernel"] for row in found.tables["loads"].rows()} == {KERNEL}
