"""Tools on many runs in parallel: with threads, and with a real scheduler whose workers are
processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pytest

from pasta.cli.main import main
from pasta.config import Config
from pasta.errors import RunError
from pasta.run.directory import RunDirectory
from pasta.runtime.analyze import analyze
from pasta.runtime.replay import Replay
from tests.support.preload import base_environment, wait_until
from tests.support.runs import content, recorded
from tests.support.streams import training_run

pytest.importorskip("distributed")
CONFIG = Config(tools=["kernel_freq", "tensors"])


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, Path]:
    """Three runs, and one without events."""
    found = {f"rank-{number}": recorded(training_run(), tmp_path / str(number)).path
             for number in range(4)}  # fmt: skip
    shutil.rmtree(found["rank-2"] / "events")
    return found


def check(runs: dict[str, Path], problems: dict[str, str | None], out: Path, alone: Path) -> None:
    assert [name for name, problem in problems.items() if problem] == ["rank-2"]
    assert "no events were recorded" in (problems["rank-2"] or "")
    wanted = content(Replay(RunDirectory.open(runs["rank-0"]), CONFIG).write(alone).results)
    for name in ("rank-0", "rank-1", "rank-3"):
        assert content(out / name / "results") == wanted
    assert sorted(path.name for path in out.iterdir()) == ["rank-0", "rank-1", "rank-3"]


def test_analysis_with_threads(runs: dict[str, Path], tmp_path: Path) -> None:
    reported: list[int] = []
    problems = analyze(runs, CONFIG, tmp_path / "out", workers=2, on_done=reported.append)
    check(runs, problems, tmp_path / "out", tmp_path / "alone")
    assert reported == [1, 2, 3, 4]


def test_failing_tool_is_reported_even_if_quiet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, tool = tmp_path / "job", tmp_path / "faulty.py"
    recorded(training_run(), root / "rank-0")
    tool.write_text(
        "from pasta.tool import Tool\n"
        "class Faulty(Tool):\n"
        "    def result(self): raise KeyError('mine')\n"
    )
    out = tmp_path / "out"
    given = ["-t", str(tool), "-t", "kernel_freq", "-q", "-o", str(out)]
    line = (
        f"tool faulty was disabled: KeyError: 'mine' (in result, {tool}:3; traceback in log.txt)\n"
    )
    assert main(["analyze", str(root), "--workers", "1", *given]) == 1
    assert capsys.readouterr() == ("", f"pasta: rank-0: {line}")
    assert (out / "rank-0" / "results" / "kernel_freq" / "result.json").exists()
    assert main(["replay", str(root / "rank-0"), *given[:-1], str(tmp_path / "again")]) == 1
    assert capsys.readouterr() == ("", f"pasta: {line}")


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[str]:
    """Address of a scheduler on the loopback interface with two workers."""
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    file = tmp_path / "scheduler.json"
    environment = {**base_environment(), "PYTHONPATH": os.pathsep.join(sys.path)}
    started = []
    try:
        for command in (
            [*dask, "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--no-show",
             "--scheduler-file", str(file)],
            *[[sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(file),
               "--nworkers", "1", "--nthreads", "1", "--no-dashboard", "--no-nanny",
               "--local-directory", str(tmp_path)]] * 2,
        ):  # fmt: skip
            started.append(
                subprocess.Popen(
                    command, env=environment, cwd=tmp_path,
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )
            )  # fmt: skip
            wait_until(file.exists, "the scheduler's file")
        from distributed import Client

        with Client(scheduler_file=str(file), timeout=20) as client:
            client.wait_for_workers(2, timeout=30)
            address = client.scheduler.address
        yield address
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait(20)


@pytest.mark.slow
def test_dask_scheduler_with_two_workers(
    runs: dict[str, Path], scheduler: str, tmp_path: Path
) -> None:
    reported: list[int] = []
    problems = analyze(runs, CONFIG, tmp_path / "out", scheduler=scheduler, on_done=reported.append)
    check(runs, problems, tmp_path / "out", tmp_path / "alone")
    assert reported == [1, 2, 3, 4]
    from distributed import Client

    with Client(scheduler, timeout=20) as client:  # one thread each, Arrow's included
        assert 1 in client.run(pyarrow.cpu_count).values()


def test_unreachable_scheduler_is_one_line(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pasta.runtime.analyze._CONNECT_SECONDS", 1)
    for address in ("tcp://127.0.0.1:1", "nonsense://x"):
        with pytest.raises(RunError, match="no Dask scheduler at"):
            analyze(runs, CONFIG, tmp_path / "out", scheduler=address)
