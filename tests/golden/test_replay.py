"""Tools on recorded events give the same results as live."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import pasta
from pasta.cli.main import main
from pasta.config import Config
from pasta.errors import PastaError, RunError
from pasta.plugins import load_tools
from pasta.processors.filter import Filter
from pasta.run.directory import RunDirectory
from pasta.run.results import write_result
from pasta.runtime.omissions import not_kept
from pasta.runtime.replay import Replay
from pasta.testing import Events, run_tools
from tests.support.runs import TOOLS, content, recorded
from tests.support.streams import training_run


def live(events: Events, directory: Path, filter: Filter) -> None:
    """Live results of the same events."""
    tools = load_tools(TOOLS, {}, [])
    results = run_tools(tools, events, splits=range(11, len(events), 37), filter=filter)
    for tool in tools:
        write_result(directory, tool.name, results[tool.name], title=tool.title, topic=tool.topic)


@pytest.mark.parametrize("kernel", ["", "vadd|kernel"])
def test_replay_reproduces_the_results(kernel: str, tmp_path: Path) -> None:
    events = training_run()
    run = recorded(events, tmp_path / "run")
    config = Config(tools=TOOLS, kernel=kernel or None)
    done = Replay(run, config).write(tmp_path / "again")
    live(events, tmp_path / "live", Filter(kernel=kernel or None))
    wanted, found = content(tmp_path / "live"), content(done.results)
    assert found.keys() == wanted.keys()
    assert [name for name in wanted if found[name] != wanted[name]] == []
    manifest = done.manifest()
    assert manifest["replay"]["of"] == str(run.path)
    assert manifest["tools"] == TOOLS
    assert manifest["launches"]["seen"] == 48


@pytest.mark.parametrize("rotate", [False, True])
def test_replay_of_a_part_is_not_of_all_events(rotate: bool, tmp_path: Path) -> None:
    run = recorded(training_run(), tmp_path / "run")
    (note,) = not_kept(1000, rotate=rotate)
    assert note.endswith("results include them")
    run.write_manifest(
        {
            **run.manifest(),
            "config": {"rotate": rotate},
            "left_out": {"kernel_launch": 900, "memory_copy": 100},
            "warnings": ["another", note],
        }
    )
    done = Replay(run, Config(tools=["kernel_freq"], kernel="nosuch")).write(tmp_path / "again")
    other, replayed, none = done.manifest()["warnings"]
    assert other == "another"
    assert replayed == (
        f"the {'oldest' if rotate else 'newest'} 1,000 events were not recorded (run.max-size): "
        "results, also estimates for all launches, are of the recorded events only"
    )
    assert none.startswith("the filter selected none of 48 launches; launched kernels: ")


@pytest.mark.parametrize("verb", ["replay", "analyze"])
def test_settings_of_probes_do_not_apply_to_replays(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = recorded(training_run(), tmp_path / "run")
    where = run.path if verb == "replay" else tmp_path
    assert main([verb, str(where), "--set", "probes.enough=10"]) == 2
    assert capsys.readouterr().err == (
        "pasta: --set 'probes.enough=10': probes run while a program is recorded, not in a replay: "
        "pasta-preload --set probes.enough=…\n"
    )


def test_truncated_run_is_replayed(tmp_path: Path) -> None:
    run = recorded(training_run(), tmp_path / "run", unfinished=True)
    done = Replay(run, Config(tools=["kernel_freq"])).write(tmp_path / "again")
    assert "48 launches" in done.report.read_text()
    assert done.manifest()["ended"]["text"] == "cut short"


def test_missing_events_or_accesses_are_an_error(tmp_path: Path) -> None:
    run = recorded(training_run(), tmp_path / "run")
    with pytest.raises(RunError, match="no accesses were recorded, which hotness needs"):
        Replay(run, Config(tools=["hotness", "kernel_freq"]))
    shutil.rmtree(run.events)
    with pytest.raises(RunError, match="no events were recorded"):
        Replay(run, Config(tools=["kernel_freq"]))


def test_failing_tool_does_not_affect_others(tmp_path: Path) -> None:
    run = recorded(training_run(), tmp_path / "run")
    (tmp_path / "bad.py").write_text(
        "from pasta.tool import Tool\n\n\nclass Bad(Tool):\n    '''Fails.'''\n\n"
        "    def on_launches(self, launches):\n        raise ValueError('no')\n"
    )
    config = Config(tools=["kernel_freq", str(tmp_path / "bad.py")])
    done = Replay(run, config).write(tmp_path / "again")
    assert list(done.manifest()["failures"]) == ["bad"]
    assert "ValueError: no" in (done.path / "log.txt").read_text()
    assert (done.results / "kernel_freq").is_dir()
    assert not list(tmp_path.glob(".again*"))


def test_readable_parts_of_damaged_runs_are_used(tmp_path: Path) -> None:
    run = recorded(training_run(), tmp_path / "run")
    parts = sorted(run.events.glob("kernel_launch-*"))
    rows = [pq.ParquetFile(path).metadata.num_rows for path in parts]
    assert len(parts) > 2
    parts[0].write_bytes(b"PAR1 and no more")
    done = Replay(run, Config(tools=["kernel_freq"])).write(tmp_path / "again")
    found = pasta.load(done.path).arrow("kernel_freq").column("launches").to_pylist()
    assert sum(found) == sum(rows[1:]) == done.manifest()["events"]["kernel_launch"]
    (warning,) = done.manifest()["warnings"]
    assert warning.startswith(f"{parts[0]}: cannot be read")
    assert warning.endswith("its events are missing")
    assert warning in " ".join(done.report.read_text().split())


def test_full_disk_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = recorded(training_run(), tmp_path / "run")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunDirectory, "write_manifest", full)
    with pytest.raises(RunError, match="again: No space left on device"):
        Replay(run, Config(tools=["kernel_freq"])).write(tmp_path / "again")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_events_and_replay_from_python(tmp_path: Path) -> None:
    run = pasta.load(recorded(training_run(), tmp_path / "run").path)
    assert run.event_counts()["kernel_launch"] == 48
    launches = run.events("kernel_launch", ["name", "grid_x"])
    assert launches.column_names == ["name", "grid_x"]
    assert launches.column("grid_x").to_pylist() == [1 + at // 4 for at in range(48)]
    begins = run.events("operator_begin")
    assert begins.column("tensor").to_pylist()[0] == [1, 2]
    assert sum(batch.num_rows for batch in run.event_batches("kernel_launch")) == 48
    again = run.replay("kernel_freq", settings={"filter.kernel": "vadd"})
    place = again.path
    assert again.arrow("kernel_freq").column("launches").to_pylist() == [12]
    del again
    assert not place.exists()
    kept = run.replay("kernel_freq", out=tmp_path / "kept")
    assert sum(kept.arrow("kernel_freq").column("launches").to_pylist()) == 48
    for call, message in (
        (lambda: run.events("kernel_lunch"), "no events of kind 'kernel_lunch'"),
        (lambda: run.events("kernel_launch", ["grid"]), "no column 'grid'"),
        (lambda: run.replay(), "no tool was named"),
        (lambda: run.replay("kernel_freq", out=tmp_path / "kept"), "kept exists"),
    ):
        with pytest.raises(PastaError, match=message):
            call()


def test_names_are_escaped_and_truncated(tmp_path: Path) -> None:
    events = Events()
    events.add("process_start", executable="/bin/program", command="program")
    for name in (
        "\x1b[2J\x1b[31mred",
        "two\nlines\t",
        "x" * 100_000,
        "[bold]",
        "\u202eleft",
        "\x9b31m",
    ):
        events.complete(events.launch(name), 10, 20)
    run = recorded(events, tmp_path / "run")
    manifest = {**run.manifest(), "command": ["program", "\x1b]0;title\x07"], "warnings": ["\x1bc"]}
    run.write_manifest(manifest)
    done = Replay(run, Config(tools=["kernel_freq", "event_trace"])).write(tmp_path / "again")
    report = done.report.read_text()
    assert not [each for each in report if each != "\n" and not each.isprintable()]
    assert r"\x1b" in report
    assert "[bold]" in report
    assert len(report) < 20_000
    names = pasta.load(done.path).arrow("kernel_freq").column("kernel").to_pylist()
    assert "x" * 100_000 in names  # results contain them in full
