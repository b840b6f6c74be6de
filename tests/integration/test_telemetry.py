"""Samples of devices in the runs of real processes, from a library with known values."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support import fake_gpu, fake_nvml
from tests.support.preload import EMBED_NOW, Done, Preload, RunDirectory, wait_until

GIB = 1 << 30
#: Shorter than the default, so that tests see several samples soon.
OFTEN = ("--set", "run.telemetry-interval=20ms")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("fake-nvml")
    fake_gpu.build(directory)
    fake_nvml.build(directory)
    return directory


class Running:
    """A program under pasta-preload that does what it reads from its standard input."""

    def __init__(self, preload: Preload, process: subprocess.Popen[str], log: Path) -> None:
        self.preload, self.process, self.log = preload, process, log

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def wait_for(self, samples: int, device: int = 0) -> None:
        """Waits until a device was sampled this often since the program began."""
        wait_until(lambda: self.samples(device) >= samples, f"{samples} samples of {device}")

    def samples(self, device: int = 0) -> int:
        return fake_nvml.calls(self.log)["PowerUsage", device]

    def finish(self) -> Done:
        return self.preload.finish(self.process)


@pytest.fixture
def start(built: Path, pasta_preload: Preload, tmp_path: Path) -> Callable[..., Running]:
    def begin(*options: str, more: dict[str, str] | None = None, **fake: str) -> Running:
        log = tmp_path / "calls"
        environment = {
            **fake_gpu.environment(built),
            **fake_nvml.environment(built, log, **fake),
            **(more or {}),
        }
        for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
            environment.setdefault(name, "")
        process = pasta_preload.popen(
            built / "program",
            options=("-t", "kernel_freq", *OFTEN, *options),
            environment={name: value for name, value in environment.items() if value},
            stdin=subprocess.PIPE,
        )
        return Running(pasta_preload, process, log)

    return begin


@contextmanager
def without(*names: str) -> Iterator[None]:
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    yield
    os.environ.update(kept)


@pytest.fixture(autouse=True)
def no_selection() -> Iterator[None]:
    with without("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        yield


def samples(run: RunDirectory) -> list[dict[str, Any]]:
    """The recorded samples, in order."""
    parts = sorted((run.path / "events").glob("device_sample-*.parquet"))
    return [row for part in parts for row in pq.read_table(part).to_pylist()]


def of_device(rows: list[dict[str, Any]], device: int) -> list[dict[str, Any]]:
    return [row for row in rows if row["uuid"] == fake_nvml.uuid(device)]


@pytest.mark.main
@pytest.mark.parametrize("way", [(), EMBED_NOW, ("--collector",)], ids=["after", "in", "collector"])
def test_samples_have_the_values_of_the_library(
    start: Callable[..., Running], way: tuple[str, ...]
) -> None:
    # 1 is a process of everybody's, which is not of this session
    running = start(*way, DEVICES="2", PROCESSES=f"1:{3 * GIB}")
    running.say("launch 51")
    running.wait_for(5)
    running.say("launch 51")
    done = running.finish()
    assert (done.exit_status, done.stdout, done.target_stderr) == (7, "done\n", "")
    rows = samples(done.run)
    assert len(rows) == done.run.count("device_sample") >= 10
    for device in (0, 1):
        mine = of_device(rows, device)
        assert [row["power"] for row in mine] == [
            100_000 * (device + 1) + 1000 * number for number in range(len(mine))
        ]
        expected = {
            "device": device, "thread": 0, "power_limit": 700_000, "clock": 1500,
            "max_clock": 1980, "memory_clock": 2619, "throttle": 1, "temperature": 40 + device,
            "utilization": 75, "memory_activity": 30, "others": 1,
            "memory_used": 10 * GIB * (device + 1), "memory_others": 3 * GIB,
            "memory_total": 80 * GIB, "link_bandwidth": 17 * 25_000,
        }  # fmt: skip
        for row in mine:
            assert {name: row[name] for name in expected} == expected
    assert done.run.manifest["link_bandwidth"] == {"0": 425_000, "1": 425_000}
    times = [row["time"] for row in rows]
    assert times == sorted(times)
    (launches,) = (done.run.path / "events").glob("kernel_launch-*.parquet")
    first, second = pq.read_table(launches)["time"].to_pylist()
    assert times[0] < second  # sampled while it ran, not from its end
    start_of = done.run.manifest["start"]["monotonic_ns"]
    assert start_of < times[0] and first > start_of


def test_processes_of_the_session_are_no_others(start: Callable[..., Running]) -> None:
    running = start(PROCESSES=f"{os.getpid()}:{GIB},1:-")
    running.say("launch 51")
    running.wait_for(3)
    done = running.finish()
    # the memory of one of the two others is not known, so neither is the sum
    assert {(row["others"], row["memory_others"]) for row in samples(done.run)} == {(2, None)}


def test_pids_of_another_namespace_may_be_ours(start: Callable[..., Running]) -> None:
    running = start(PROCESSES=f"1:{GIB},{(1 << 22) - 1}:{GIB}")
    running.say("launch 51")
    running.wait_for(3)
    rows = samples(running.finish().run)
    assert {(row["others"], row["memory_others"]) for row in rows} == {(None, None)}


def test_unsupported_queries_are_absent_and_asked_once(start: Callable[..., Running]) -> None:
    missing = (
        "ClockInfo,CurrentClocksEventReasons,UtilizationRates,ComputeRunningProcesses,MemoryInfo_v2"
    )
    running = start(UNSUPPORTED=missing, FLAKY="Temperature")
    running.say("launch 51")
    running.wait_for(6)
    rows = samples(running.finish().run)
    absent = {
        "clock", "memory_clock", "utilization", "memory_activity", "others", "memory_others",
        "memory_used", "memory_total",
    }  # fmt: skip
    for row in rows:
        assert {name for name in absent if row[name] is None} == absent
        assert (row["power_limit"], row["max_clock"], row["throttle"]) == (700_000, 1980, 1)
    # a query that failed once is repeated
    assert {row["temperature"] for row in rows} == {40, None}
    calls = fake_nvml.calls(running.log)
    for name in missing.split(","):
        assert calls[name, 0] == (2 if name == "ClockInfo" else 1), name
    assert calls["CurrentClocksThrottleReasons", 0] >= len(rows)  # instead


def test_a_lost_device_ends_only_its_samples(start: Callable[..., Running]) -> None:
    running = start("-v", DEVICES="2", LOST="1:3")
    running.say("launch 51")
    running.wait_for(3, device=1)
    running.wait_for(running.samples() + 4)
    done = running.finish()
    assert done.exit_status == 7
    rows = samples(done.run)
    assert len(of_device(rows, 1)) == 3 < len(of_device(rows, 0))
    lines = [line for line in done.lines if "sampled" in line]
    assert len(lines) == 1
    assert f"device {fake_nvml.uuid(1)} is no longer sampled: NVMLError" in lines[0]
    assert "GPU is lost" in lines[0]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, {2: 0, 0: 1}),
        ({"CUDA_VISIBLE_DEVICES": f"GPU-00000001,{fake_nvml.uuid(2)}"}, {1: 0, 2: 1}),
        ({"CUDA_VISIBLE_DEVICES": "1,7,0"}, {1: 0}),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1234"}, {0: None, 1: None, 2: None}),
    ],
    ids=["indices", "uuids", "invalid", "mig"],
)
def test_devices_have_the_ordinals_of_the_program(
    start: Callable[..., Running], variables: dict[str, str], expected: dict[int, int | None]
) -> None:
    running = start(DEVICES="3", more=variables)
    running.say("launch 51")
    running.wait_for(3, device=next(iter(expected)))
    rows = samples(running.finish().run)
    uuids = {fake_nvml.uuid(device): ordinal for device, ordinal in expected.items()}
    assert {row["uuid"]: row["device"] for row in rows} == uuids


def test_samples_survive_the_death_of_the_program(start: Callable[..., Running]) -> None:
    running = start(*EMBED_NOW)
    running.say("launch 51")
    running.wait_for(5)
    running.say("kill")
    done = running.finish()
    assert done.exit_status == -signal.SIGKILL
    powers = [row["power"] for row in samples(done.run)]
    assert powers == [100_000 + 1000 * number for number in range(len(powers))]
    assert len(powers) >= 4


def test_samples_survive_the_death_of_the_launcher(
    start: Callable[..., Running], pasta: Any, pasta_preload: Preload
) -> None:
    pasta_preload.may_leave_sessions = True
    running = start("--collector")
    running.say("launch 51")
    running.wait_for(5)
    running.process.kill()
    running.process.wait()
    written = running.samples()
    directory = pasta_preload.directory / "pasta-out"
    running.finish()  # ends the program, whose collector then finishes the run

    def runs() -> list[Path]:
        return list(directory.glob("[!.]*/run.json"))

    wait_until(lambda: pasta("recover").returncode == 0 and runs(), "the run is recovered")
    (manifest,) = runs()
    powers = [row["power"] for row in samples(RunDirectory(manifest.parent))]
    assert powers == [100_000 + 1000 * number for number in range(len(powers))]
    assert written - 1 <= len(powers) <= written


def test_filtered_runs_and_replays_keep_samples(
    start: Callable[..., Running], pasta: Any, tmp_path: Path
) -> None:
    running = start("-k", "no_such_kernel")
    running.say("launch 51")
    running.wait_for(3)
    done = running.finish()
    assert done.run.count("kernel_launch") == 0
    count = done.run.count("device_sample")
    assert count >= 3
    tool = tmp_path / "counts.py"
    tool.write_text(
        "from pasta.tool import Result, Tool\n"
        "class Counts(Tool):\n"
        "    def start(self): self.seen = self.power = 0\n"
        "    def on_device_samples(self, samples):\n"
        "        self.seen += len(samples); self.power += int(samples['power'].sum())\n"
        "    def result(self): return Result(f'{self.seen} samples, {self.power} mW')\n"
    )
    replayed = pasta("replay", done.run.path, "-t", tool, "-o", tmp_path / "replayed")
    assert replayed.returncode == 0, replayed.stderr
    total = sum(100_000 + 1000 * number for number in range(count))
    assert f"{count} samples, {total} mW" in replayed.stdout


@pytest.mark.parametrize("how", ["off", "other accelerator", "none used"])
def test_nothing_is_loaded_without_need(
    how: str, built: Path, start: Callable[..., Running], pasta_preload: Preload, compile_c: Any,
    tmp_path: Path,
) -> None:  # fmt: skip
    if how == "off":
        running = start("--set", "run.telemetry-interval=0")
        running.say("launch 51")
        running.say("sleep 12c")  # ms, hexadecimal
        done = running.finish()
        assert (done.exit_status, samples(done.run)) == (7, [])
    else:
        work = "launch(1); usleep(200000);" if how == "other accelerator" else ""
        program = compile_c(f"int main(void) {{ {work} return 0; }}")
        environment = fake_nvml.environment(built, tmp_path / "calls")
        done = pasta_preload(program, environment=environment, options=OFTEN)
        assert done.exit_status == 0
        assert not any(samples(run) for run in done.runs)
    assert not (tmp_path / "calls").exists()


@pytest.mark.slow
def test_tool_and_merged_ranks(
    start: Callable[..., Running], pasta: Any, pasta_preload: Preload, tmp_path: Path
) -> None:
    """The tool in the run of a process that uses device 3, in the merged run, and replayed."""
    root = tmp_path / "job"
    running = start(
        "-t", "telemetry", "--set", "telemetry.least_busy=1ms", "--root", str(root),
        DEVICES="4", PROCESSES=f"1:{3 * GIB}", more={"SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
    )  # fmt: skip
    running.say("launch 51")
    running.say("alloc 200000000 1000")
    running.wait_for(5, device=3)
    done = running.finish()
    assert done.exit_status == 7, done.stderr
    (run,) = (path.parent for path in root.glob("*/run.json"))
    rows = pq.read_table(run / "results" / "telemetry" / "devices.parquet").to_pylist()
    assert [row["device"] for row in rows] == [0, 1, 2, 3]
    for row in rows:
        assert row["min_power"] == 100 * (row["device"] + 1)
        assert (row["clock"], row["highest_clock"]) == (1500, 1980)
        assert row["memory_of_others"] == 3 * GIB
        assert row["throttled"] == row["busy"] == row["time"] > 0
    report = (run / "report.txt").read_text()
    assert "clocks are lowered: power limit: device 3" in report
    assert "another process uses the device: device 3" in report
    assert "lowered: power limit: device 0" not in report
    merged = pasta("merge", root, "-o", tmp_path / "merged")
    assert merged.returncode == 0, merged.stderr
    table = pq.read_table(tmp_path / "merged" / "results" / "telemetry" / "devices.parquet")
    assert table["energy"].to_pylist() == [row["energy"] for row in rows]
    replayed = pasta("replay", run, "-t", "telemetry", "-o", tmp_path / "replayed")
    assert replayed.returncode == 0, replayed.stderr
    again = tmp_path / "replayed" / "results" / "telemetry" / "devices.parquet"
    assert [row["energy"] for row in pq.read_table(again).to_pylist()] == [
        row["energy"] for row in rows
    ]
    analyzed = pasta("analyze", root, "-t", "telemetry", "-o", tmp_path / "analyzed")
    assert analyzed.returncode == 0, analyzed.stderr
    assert list((tmp_path / "analyzed").rglob("telemetry/devices.parquet"))
