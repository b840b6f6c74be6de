"""Two recorded passes joined as one run: tables, manifest, processes, and what cannot be joined."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pasta
from pasta.cli.main import main
from pasta.errors import RunError
from pasta.plugins import find_tools
from pasta.run.directory import SCHEMA, RunDirectory
from pasta.run.passes import join_all, join_as, partners
from pasta.run.results import read_results, write_result
from pasta.run.root import Root, is_root
from pasta.table import Table
from pasta.testing import Events, run_tool
from pasta.tool import Result
from tests.support.examples import examples
from tests.support.passes import WORK, Launch, accesses_run, manifested, times_run
from tests.support.runs import recorded


def nothing(_: RunDirectory) -> None:
    pass


def joined(one: RunDirectory, other: RunDirectory, out: Path) -> pasta.Run:
    return pasta.load(join_as(one, other, out, finish=nothing).run.path)


def rows(run: pasta.Run, table: str, tool: str = "joined") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run.arrow(tool, table).to_pylist()
    return found


def result(run: pasta.Run, tool: str = "joined") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.path / "results" / tool / "result.json").read_text())
    return found


def runs(tmp_path: Path, **options: Any) -> tuple[RunDirectory, RunDirectory]:
    return times_run(tmp_path / "t", WORK), accesses_run(tmp_path / "a", WORK, **options)


# ---- tables ----------------------------------------------------------------------------------


@pytest.mark.parametrize("swapped", [False, True])
def test_kernels_have_times_of_one_pass_and_bytes_of_the_other(
    tmp_path: Path, swapped: bool
) -> None:
    times, accesses = runs(tmp_path)
    pair = (accesses, times) if swapped else (times, accesses)
    run = joined(*pair, tmp_path / "out")
    a, b = rows(run, "kernels")
    assert (a["kernel"], a["launches_times"], a["launches_accesses"], a["joined"]) == ("a", 2, 2, 2)
    assert (a["device_time"], a["mean_time"]) == (400, 200.0)
    assert (a["bytes"], a["read_bytes"], a["write_bytes"], a["atomic_bytes"]) == (96, 64, 32, 0)
    assert a["gb_per_second"] == pytest.approx(2 * 96 / 400)
    assert (b["bytes"], b["read_bytes"], b["write_bytes"]) == (128, 128, 0)
    assert b["gb_per_second"] == pytest.approx(128 / 50)
    assert "share_of_peak" not in a  # no device has a peak
    assert rows(run, "unmatched") == []
    assert result(run)["summary"] == (
        "3 launches joined, of 3 in times and 3 in accesses; 320 B requested in 450 ns, 0.711 GB/s"
    )
    notes = result(run)["notes"]
    assert notes == ["device times: the pass times (refacc 1.0); bytes: the pass accesses (refacc"
                     " 1.0)"]  # fmt: skip


def test_share_of_the_peak(tmp_path: Path) -> None:
    times = times_run(tmp_path / "t", WORK, peak=2_000_000_000)  # 2 bytes/ns
    run = joined(times, accesses_run(tmp_path / "a", WORK), tmp_path / "out")
    a, b = rows(run, "kernels")
    assert a["share_of_peak"] == pytest.approx(2 * 96 / 400 / 2)
    assert b["share_of_peak"] == pytest.approx(128 / 50 / 2)


def test_launches_without_partner_are_listed(tmp_path: Path) -> None:
    times = times_run(tmp_path / "t", [*WORK, ("c", 5, 0, 0), ("c", 6, 0, 0), ("a", 7, 0, 0)])
    accesses = accesses_run(tmp_path / "a", [*WORK, ("d", 0, 4, 4)])
    run = joined(times, accesses, tmp_path / "out")
    assert rows(run, "unmatched") == [
        {"kernel": "c", "pass": "times", "launches": 2, "first_launch": 3},
        {"kernel": "a", "pass": "times", "launches": 1, "first_launch": 5},
        {"kernel": "d", "pass": "accesses", "launches": 1, "first_launch": 3},
    ]
    a = next(row for row in rows(run, "kernels") if row["kernel"] == "a")
    assert (a["launches_times"], a["launches_accesses"], a["joined"]) == (3, 2, 2)
    assert a["device_time"] == 400  # of the joined launches
    c, d = (next(r for r in rows(run, "kernels") if r["kernel"] == name) for name in "cd")
    assert (c["joined"], c["device_time"], c["bytes"], c["gb_per_second"]) == (0, None, None, None)
    assert (d["launches_times"], d["launches_accesses"], d["joined"]) == (0, 1, 0)
    assert (
        "without partner: 3 launches of times, 1 launch of accesses (table unmatched)"
        in result(run)["notes"]
    )


def test_only_probed_launches_have_bytes(tmp_path: Path) -> None:
    """GB/s divides the bytes of probed launches by the time of these, not of all."""
    work: list[Launch] = [("a", 100, 64, 0), ("a", 1_000_000, 4, 0), ("a", 300, 64, 0)]
    times, accesses = times_run(tmp_path / "t", work), accesses_run(tmp_path / "a", work, every=2)
    run = joined(times, accesses, tmp_path / "out")
    (a,) = rows(run, "kernels")
    assert (a["joined"], a["probed"], a["device_time"]) == (3, 2, 1_000_400)
    assert a["bytes"] == 64
    assert a["gb_per_second"] == pytest.approx(128 / 400)
    assert (
        "bytes cover the 2 probed of 3 joined launches; GB/s covers these launches only"
        in result(run)["notes"]
    )


def test_launches_without_counts_were_not_probed(tmp_path: Path) -> None:
    work: list[Launch] = [("a", 100, 64, 0), ("a", 1_000_000, 0, 0), ("a", 300, 64, 0)]
    times, accesses = times_run(tmp_path / "t", work), accesses_run(tmp_path / "a", work)
    directory = accesses.results / "access_count"
    stored = json.loads((directory / "result.json").read_text())
    stored["tables"].append("missed")
    (directory / "result.json").write_text(json.dumps(stored))
    missed = Table({"launch": np.asarray([1], np.uint64)})
    pq.write_table(missed.to_arrow(), directory / "missed.parquet")
    (a,) = rows(joined(times, accesses, tmp_path / "out"), "kernels")
    assert (a["joined"], a["probed"], a["device_time"]) == (3, 2, 1_000_400)
    assert a["gb_per_second"] == pytest.approx(128 / 400)


def test_operators(tmp_path: Path) -> None:
    """Launches are joined and summed by operator, also if the calls come in another order."""
    found = []
    for name, order in (("t", "mn"), ("a", "nm")):
        events = Events()
        if name == "a":
            events.alloc(0x1000, 4096)
        events.frames(1, ("/net.py", "forward", 12))
        for operator in order:
            events.operator(operator, stack=1)
            ordinal = events.launch("k", flags=8 * (name == "a"))
            events.operator_end()
            if name == "t":
                events.complete(ordinal, 0, 100 if operator == "m" else 200)
            else:
                count = 1 if operator == "m" else 5
                events.access("global", [0x1000 + 4 * i for i in range(count)])
        run = recorded(events, tmp_path / name)
        if name == "a":
            tool = find_tools("access_count")[0]
            write_result(run.results, tool.name, run_tool(tool, events))
        found.append(manifested(run))
    n, m = rows(joined(*found, tmp_path / "out"), "operators")
    assert (n["operator"], n["line"], n["joined"]) == ("n", "net.py:12 forward", 1)
    assert (n["device_time"], n["bytes"], n["gb_per_second"]) == (200, 20, pytest.approx(0.1))
    assert (m["operator"], m["device_time"], m["bytes"]) == ("m", 100, 4)


@examples(25)
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12), st.data())
def test_joined_and_unmatched_add_up(
    tmp_path_factory: pytest.TempPathFactory, kernels: list[str], data: Any
) -> None:
    place = tmp_path_factory.mktemp("passes")
    work: list[Launch] = [(name, 10 + at, 4 * (at % 8), 4) for at, name in enumerate(kernels)]
    kept = [each for each in work if data.draw(st.booleans())]
    others = [("d", 5, 4, 4)] * data.draw(st.integers(0, 2))
    sides = [work, [*others, *kept, work[0]]]
    if data.draw(st.booleans()):
        sides.reverse()
    run = joined(
        times_run(place / "t", sides[0]), accesses_run(place / "a", sides[1]), place / "out"
    )
    table, alone = rows(run, "kernels"), rows(run, "unmatched")
    for name, side in (("times", sides[0]), ("accesses", sides[1])):
        left = sum(row["launches"] for row in alone if row["pass"] == name)
        assert sum(row["joined"] for row in table) + left == len(side)
        assert sum(row[f"launches_{name}"] for row in table) == len(side)
    manifest = run.manifest
    assert manifest["joined"]["launches"] == sum(row["joined"] for row in table)


# ---- the run ---------------------------------------------------------------------------------


def test_the_joined_run_has_the_results_of_both(tmp_path: Path) -> None:
    times, accesses = runs(tmp_path)
    run = joined(times, accesses, tmp_path / "out")
    assert set(run.tables()) == {"kernel_freq", "access_count", "joined"}
    for tool, of in (("kernel_freq", times), ("access_count", accesses)):
        for table in run.tables()[tool]:
            path = of.results / tool / f"{table}.parquet"
            assert run.arrow(tool, table).to_pylist() == pq.read_table(path).to_pylist()
        name = (
            "times (refacc 1.0)" if of is times else "accesses (refacc 1.0) with probes in kernels"
        )
        assert result(run, tool)["notes"][0] == f"of the pass {name}"
    manifest = run.manifest
    assert manifest["schema"] == SCHEMA
    assert manifest["tools"] == ["kernel_freq", "access_count", "joined"]
    passes = manifest["passes"]
    assert passes["times"]["directory"] == str(times.path)
    assert (passes["times"]["gave"], passes["times"]["launches"]) == ("device times", 3)
    assert (passes["accesses"]["gave"], passes["accesses"]["alone"]) == ("memory accesses", 0)
    assert passes["accesses"]["sources"] == {"refacc": "1.0"}


def test_reports_in_every_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times, accesses = runs(tmp_path)
    out = tmp_path / "out"
    assert main(["merge", "--passes", str(accesses.path), str(times.path), "-o", str(out)]) == 0
    assert capsys.readouterr().out.startswith("3 joined launches, 0 without partner: ")
    assert main(["report", str(out)]) == 0
    report = capsys.readouterr().out
    assert "passes times (process 4242) and accesses (process 4242) on here" in report
    assert "Kernels: bytes and device time" in report and "Accesses by kernel" in report
    formats = {"html": "r.html", "json": "r.json", "csv": "csv", "parquet": "pq",
               "perfetto": "trace.json"}  # fmt: skip
    given_ = [word for each, name in formats.items() for word in (f"--{each}", tmp_path / name)]
    assert main(["report", str(out), *map(str, given_)]) == 0
    document = json.loads((tmp_path / "r.json").read_text())
    assert set(document["tools"]) == {"kernel_freq", "access_count", "joined"}
    assert document["run"]["passes"]["times"]["gave"] == "device times"
    assert (tmp_path / "csv" / "joined.kernels.csv").exists()
    assert "Kernels: bytes and device time" in (tmp_path / "r.html").read_text()
    trace = (tmp_path / "trace.json").read_text()  # of the events of the pass with times
    assert '"name": "a"' in trace or '"name":"a"' in trace


def test_a_replay_needs_the_run_of_a_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times, accesses = runs(tmp_path)
    run = joined(times, accesses, tmp_path / "out")
    assert main(["replay", str(run.path), "-t", "kernel_freq", "-o", str(tmp_path / "again")]) == 2
    error = capsys.readouterr().err
    assert f"they are in the runs that it joins: {times.path}, {accesses.path}" in error
    assert main(["replay", str(times.path), "-t", "kernel_freq", "-o", str(tmp_path / "re")]) == 0


# ---- what is not clear -----------------------------------------------------------------------


def merge(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str]:
    status = main(["merge", *map(str, arguments)])
    written = capsys.readouterr()
    return status, written.out + written.err


def test_two_runs_of_a_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times, accesses = runs(tmp_path)
    again = times_run(tmp_path / "t2", WORK)
    more = accesses_run(tmp_path / "a2", WORK)
    out = tmp_path / "out"
    status, text = merge(capsys, "--passes", times.path, again.path, "-o", out)
    assert status == 2 and text.count("\n") == 1
    assert "probes ran in neither" in text and "record one of them with -t access_count" in text
    status, text = merge(capsys, "--passes", accesses.path, more.path, "-o", out)
    assert status == 2 and "probes ran in both" in text and "without tools that have probes" in text
    assert not out.exists() and not list(tmp_path.glob(".pasta-*"))


def test_runs_without_what_a_join_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times, accesses = runs(tmp_path)
    out = tmp_path / "out"
    for path in times.events.glob("kernel_complete-*"):
        path.unlink()
    status, text = merge(capsys, "--passes", times.path, accesses.path, "-o", out)
    assert status == 2 and "no device times; refacc 1.0 did not provide them" in text
    shutil.rmtree(times.events)
    status, text = merge(capsys, "--passes", times.path, accesses.path, "-o", out)
    assert status == 2 and "no launches were recorded" in text
    (times.path / "run.json").unlink()
    times.events.mkdir()
    status, text = merge(capsys, "--passes", times.path, accesses.path, "-o", out)
    assert status == 2 and "unfinished" in text
    status, text = merge(capsys, tmp_path, "--passes", times.path, accesses.path)
    assert status == 2 and "give either a root or --passes" in text
    assert not out.exists()


def test_tensor_stores_belong_to_the_bytes(tmp_path: Path) -> None:
    """A pass that counts instructions has no device times; its stores are of the second launch."""
    times, accesses = runs(tmp_path)
    for path in times.events.glob("kernel_complete-*"):
        path.rename(path.with_name("instruction_count-00000.parquet"))
    columns = {"launch": [1, 1], "bytes": [1000, 24]}
    stored = Table({name: np.asarray(of, np.uint64) for name, of in columns.items()})
    write_result(times.results, "instructions", Result("", {"launch_tensor_stores": stored}))
    run = joined(times, accesses, tmp_path / "out")
    found = {row["kernel"]: row for row in rows(run, "kernels")}
    assert [found[name]["bytes"] for name in "ab"] == [96, 128 + 1024]
    assert [found[name]["write_bytes"] for name in "ab"] == [32, 1024]
    assert {row["device_time"] for row in found.values()} == {None}
    notes = result(run)["notes"]
    assert any("include 1.00 KiB of tensor stores, inferred" in note for note in notes)


def test_nothing_in_common(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = times_run(tmp_path / "t", [("a", 1, 0, 0)])
    accesses = accesses_run(tmp_path / "a", [("b", 1, 4, 0)])
    out = tmp_path / "out"
    status, text = merge(capsys, "--passes", times.path, accesses.path, "-o", out)
    assert status == 2 and text.count("\n") == 1
    assert "no launch of one is also in the other" in text
    assert not out.exists() and not list(tmp_path.glob(".pasta-*"))


def test_different_commands_are_joined_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = times_run(tmp_path / "t", WORK, command=["app", "1"])
    accesses = accesses_run(tmp_path / "a", WORK, command=["app", "2"], warnings=["slow"])
    out = tmp_path / "out"
    status, text = merge(capsys, "--passes", times.path, accesses.path, "-o", out)
    assert status == 0
    assert "note: the passes ran different commands: app 1; app 2\n" in text
    assert "note: pass accesses: slow\n" in text
    assert rows(pasta.load(out), "kernels")


def test_places_of_the_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times, accesses = runs(tmp_path)
    status, text = merge(capsys, "--passes", times.path, accesses.path, "-o", times.path / "x")
    assert status == 2 and "is inside a run to join" in text
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("")
    status, text = merge(capsys, "--passes", times.path, accesses.path, "-o", out)
    assert status == 2 and "exists" in text
    joined_run = joined(times, accesses, tmp_path / "j")
    status, text = merge(capsys, "--passes", joined_run.path, accesses.path, "-o", tmp_path / "o2")
    assert status == 2 and "already joined" in text


def test_a_pass_without_the_tool_that_counts_bytes(tmp_path: Path) -> None:
    times, accesses = runs(tmp_path)
    shutil.rmtree(accesses.results / "access_count")
    run = joined(times, accesses, tmp_path / "out")
    a, _ = rows(run, "kernels")
    assert (a["joined"], a["device_time"]) == (2, 400)
    assert "bytes" not in a
    stored = {each.name: each for each in read_results(run.path / "results")}
    assert "probed" in stored["joined"].tables["kernels"].hidden  # it would be 0 of launches
    assert any("access_count did not run in the pass accesses" in n for n in result(run)["notes"])


def test_bytes_of_an_older_version_are_not_divided(tmp_path: Path) -> None:
    times, accesses = runs(tmp_path)
    path = accesses.results / "access_count" / "launches.parquet"
    table = pq.read_table(path).drop_columns(["read_bytes", "write_bytes", "atomic_bytes"])
    pq.write_table(table, path)
    run = joined(times, accesses, tmp_path / "out")
    a, _ = rows(run, "kernels")
    assert a["bytes"] == 96 and "read_bytes" not in a
    assert any("not split into reads and writes" in note for note in result(run)["notes"])


def test_lost_launches_are_noted(tmp_path: Path) -> None:
    times, accesses = runs(tmp_path)
    manifested(times, dropped={"kernel_launch": 5})
    manifested(accesses, left_out={"kernel_launch": 1})
    notes = result(joined(times, accesses, tmp_path / "out"))["notes"]
    assert any(note.startswith("5 launches of times were lost") for note in notes)
    assert any(note.startswith("1 launch of accesses were left out") for note in notes)


def test_a_damaged_result_is_left_out(tmp_path: Path) -> None:
    times, accesses = runs(tmp_path)
    (times.results / "kernel_freq" / "result.json").write_text("{")
    run = joined(times, accesses, tmp_path / "out")
    assert set(run.tables()) == {"access_count", "joined"}
    assert any("not valid JSON" in warning for warning in run.manifest["warnings"])


# ---- processes -------------------------------------------------------------------------------


def test_processes_are_matched_by_command_rank_and_order(tmp_path: Path) -> None:
    def process(name: str, command: str, start: int, rank: int | None = None) -> RunDirectory:
        return manifested(
            recorded(Events(), tmp_path / name), command=command.split(), rank=rank,
            start={"realtime_ns": start, "monotonic_ns": 0}, executable="/app",
        )  # fmt: skip

    times = [
        process("t0", "app x", 5, 0), process("t1", "app x", 6, 1), process("t2", "other", 1),
        process("t3", "other", 2), process("t4", "app --fd 7", 9), process("t5", "app x", 1, 2),
    ]  # fmt: skip
    accesses = [
        process("a1", "app x", 3, 1), process("a0", "app x", 4, 0), process("a3", "other", 8),
        process("a2", "other", 7), process("a4", "app --fd 8", 2), process("a9", "app x", 1, 3),
    ]  # fmt: skip
    found = partners(times, accesses)
    assert {(one.path.name, other.path.name) for one, other in found.pairs} == {
        ("t0", "a0"), ("t1", "a1"), ("t2", "a2"), ("t3", "a3"), ("t4", "a4"),
    }  # fmt: skip
    assert [(name, run.path.name) for name, run in found.alone] == [
        ("times", "t5"), ("accesses", "a9"),
    ]  # fmt: skip


def test_several_processes_are_a_root(tmp_path: Path) -> None:
    passes = tmp_path / "whole" / "passes"
    times = [times_run(passes / f"times-{pid}", WORK, pid=pid, rank=rank, world_size=3)
             for rank, pid in enumerate((10, 11, 12))]  # fmt: skip
    accesses = [accesses_run(passes / f"accesses-{pid}", WORK, pid=pid, rank=rank, world_size=3)
                for rank, pid in enumerate((20, 21))]  # fmt: skip
    done, lines = join_all(times, accesses, tmp_path / "whole", nothing)
    assert [run.manifest()["rank"] for run in done] == [0, 1]
    (line,) = lines
    assert line.startswith("process 12 (program) was recorded in the pass times only: ")
    root = Root.open(tmp_path / "whole")
    assert root.ranks == [0, 1] and root.problems == []
    assert [run.pid for run in root.runs] == [10, 11]
    assert is_root(passes)
    assert done[0].manifest()["passes"]["times"]["directory"] == "../passes/times-10"
    assert done[0].recorded().path.resolve() == times[0].path


def test_the_joined_run_can_be_moved_with_its_passes(tmp_path: Path) -> None:
    passes = tmp_path / "whole" / "passes"
    times, accesses = times_run(passes / "times", WORK), accesses_run(passes / "accesses", WORK)
    (run,), lines = join_all([times], [accesses], tmp_path / "whole", nothing)
    assert run.path == tmp_path / "whole" and lines == []
    assert sorted(path.name for path in run.path.iterdir()) == ["passes", "results", "run.json"]
    assert run.manifest()["passes"]["times"]["directory"] == "passes/times"
    moved = RunDirectory((tmp_path / "whole").rename(tmp_path / "moved"))
    assert moved.recorded().path == tmp_path / "moved" / "passes" / "times"


def test_nothing_is_left_of_a_join_that_fails(tmp_path: Path) -> None:
    passes = tmp_path / "whole" / "passes"
    times = times_run(passes / "times", WORK)
    accesses = accesses_run(passes / "accesses", [("z", 1, 4, 4)])
    done, lines = join_all([times], [accesses], tmp_path / "whole", nothing)
    assert done == []
    assert lines[0].startswith("the passes are not joined: ")
    assert [path.name for path in (tmp_path / "whole").iterdir()] == ["passes"]
    with pytest.raises(RunError):
        join_as(times, accesses, tmp_path / "out", finish=nothing)
    assert not (tmp_path / "out").exists()
