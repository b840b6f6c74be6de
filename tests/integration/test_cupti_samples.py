"""PC samples of the CUPTI source, played by the fake library."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pasta.backends.nvidia import NvidiaSettings
from pasta.cli.preload import adapt_backends
from pasta.config import Config
from pasta.errors import ConfigError
from pasta.sass.toolkit import find_nvdisasm
from tests.support.fake_cupti import library, play_cupti
from tests.support.places import DATA
from tests.support.played import Played

KERNEL, CALLED = "_Z4fillIfEvPT_S0_i", "_Z6calledv"
ON = "nvidia.pc_sampling=4096cycles\n"
SERIALIZED = f"{ON}nvidia.pc_sampling_mode=serialized\n"
COLUMNS = ("name", "symbol", "pc", "reason", "ordinal")

Play = Callable[..., Played]


@pytest.fixture
def play(cupti: Path, tmp_path: Path) -> Play:
    def run(*scripts: str, settings: str = ON, **extra: str) -> Played:
        log = str(tmp_path / "sampling")
        return play_cupti(
            cupti, tmp_path, *scripts, settings=settings, FAKE_CUPTI_SAMPLING=log, **extra
        )

    return run


def sums(played: Played) -> dict[tuple[Any, ...], tuple[int, int]]:
    """Samples and those not issued, by place and reason."""
    samples: Counter[tuple[Any, ...]] = Counter()
    not_issued: Counter[tuple[Any, ...]] = Counter()
    for *place, count, waiting in played.rows("pc_sample", *COLUMNS, "samples", "not_issued"):
        samples[tuple(place)] += count
        not_issued[tuple(place)] += waiting or 0
    return {place: (count, not_issued[place]) for place, count in samples.items()}


@pytest.mark.main
def test_continuous_samples(play: Play, tmp_path: Path) -> None:
    """They have no launch; a reason's samples include those not issued."""
    played = play("context", "samples", "end")
    assert (played.status, played.stdout, played.stderr) == (7, "done\n", "")
    assert sums(played) == {
        (KERNEL, 7, 0x40, "selected", None): (15, 0),
        (KERNEL, 7, 0x90, "long_scoreboard", None): (300, 240),
        (KERNEL, 7, 0x90, "wait", None): (30, 0),
        (CALLED, 9, 0x10, "wait", None): (3, 3),
    }
    ((module,),) = played.rows("module_load", "hash")
    assert {row[0] for row in played.rows("pc_sample", "module_hash")} == {module}
    assert set(played["pc_sample"]["device"].tolist()) == {0}
    assert set(played["pc_sample"]["context"].tolist()) == {0}
    assert len(played["pc_sample"]) == 4  # a place is one record in some seconds
    assert len(played["kernel_complete"]) == 2  # times in the same run
    configured = (tmp_path / "sampling").read_text()
    assert configured == (
        "attribute 5 1\nattribute 1 12\nattribute 3 67108864\nattribute 4 536870912\n"
        "attribute 9 10\nattribute 6 0\nend 197\n"
    )


def test_settings(play: Play, tmp_path: Path) -> None:
    settings = (
        "nvidia.pc_sampling=32cycles\nnvidia.pc_sampling_scratch=1048576\n"
        "nvidia.pc_sampling_hardware=2097152\nnvidia.pc_sampling_sleep_ms=7\n"
    )
    play("context", settings=settings)
    configured = (tmp_path / "sampling").read_text()
    for line in ("attribute 1 5", "attribute 3 1048576", "attribute 4 2097152", "attribute 9 7"):
        assert line in configured.splitlines()


def test_no_samples_unless_asked_for(play: Play, tmp_path: Path) -> None:
    played = play("context", "samples", "end", settings="")
    assert len(played["pc_sample"]) == 0
    assert not (tmp_path / "sampling").exists()


def test_more_places_than_a_buffer_holds(play: Play) -> None:
    """Also where the program does not destroy its context."""
    found = sums(play("context", "manysamples"))
    assert len(found) == 10_000
    assert sum(samples for samples, _ in found.values()) == sum(1 + i % 3 for i in range(10_000))


def test_one_context_of_a_device_is_sampled(play: Play) -> None:
    """A second one is not enabled: the first would be lost too."""
    played = play("context", "contexts", "samples", "end")
    assert played.stderr == (
        "pasta: PC samples cover the first of several contexts only: a device samples one at a"
        " time\n"
    )
    assert set(played["pc_sample"]["context"].tolist()) == {0}


def test_samples_are_of_the_module_that_was_loaded(play: Play) -> None:
    played = play("context", "samples", "reload", "samples")
    modules = [row[0] for row in played.rows("module_load", "hash")]
    assert len(set(modules)) == 2
    counted: Counter[int] = Counter()
    for module, samples in played.rows("pc_sample", "module_hash", "samples"):
        counted[module] += samples
    assert counted == dict.fromkeys(modules, 15 + 300 + 30 + 3)


@pytest.mark.parametrize(
    ("settings", "selected"),
    [
        ("probe_count=2\n", [0, 1]),
        ("probe_window=launches 1 4\n", [0, 4]),
        ("probe_kernel=other\n", [3, 7]),
        ("probe_skip=6\n", [6, 7]),
    ],
)
def test_serialized_samples_in_windows(
    play: Play, tmp_path: Path, settings: str, selected: list[int]
) -> None:
    played = play("context", "windows", "end", settings=SERIALIZED + settings)
    assert (played.status, played.stderr) == (7, "")
    found = {place[-1]: samples for place, (samples, _) in sums(played).items()}
    assert found == {ordinal: ordinal + 1 for ordinal in selected}
    assert len(played["kernel_complete"]) == 8
    flags = {row[0] for row in played.rows("kernel_launch", "flags")}
    assert flags == {""}  # no probes
    log = (tmp_path / "sampling").read_text().splitlines()
    assert "attribute 5 2" in log and "attribute 6 1" in log
    assert log.count("start") == log.count("stop") >= 1


def test_samples_while_profiling_is_stopped(play: Play) -> None:
    played = play("context", "stopped", "samples", "end")
    assert sum(samples for samples, _ in sums(played).values()) == 348


def test_losses_are_reported_once(play: Play) -> None:
    lost = {"FAKE_CUPTI_DROPPED": "5000000000", "FAKE_CUPTI_OTHERS": "70", "FAKE_CUPTI_FULL": "1"}
    played = play("context", "samples", "end", **lost)
    unlocated: Counter[str] = Counter()
    for reason, pc, samples in played.rows("pc_sample", "reason", "pc", "samples"):
        if pc is None:
            unlocated[reason] += samples
    assert unlocated == {
        "dropped by the hardware": 5_000_000_000,
        "not a kernel of the program": 70,
        "the hardware's buffer was full": 0,
    }
    (line,) = played.stderr.splitlines()
    assert line.startswith("pasta: the hardware dropped 5000000000 of 50000")
    assert ", and its buffer was full: raise nvidia.pc_sampling or nvidia.pc_sampling_h" in line


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        ("PCSamplingEnable=35", "(ERR_NVGPUCTRPERM): load the driver's module with NVreg_"),
        ("PCSamplingEnable=43", "a MIG device does not allow it: use a whole GPU"),
        ("PCSamplingEnable=39", "another profiler (nsys, ncu, DCGM) uses the hardware"),
        ("PCSamplingEnable=27", "this device or driver does not support it"),
        ("PCSamplingGetStallReasons=999", "cuptiPCSamplingGetStallReasons failed with 999"),
        ("PCSamplingSetConfigurationAttribute=1", "cuptiPCSamplingSetConfigurationAttribute fail"),
        ("PCSamplingAttribute=4", "CUPTI rejects 536870912 for attribute 4 of PC sampling"),
        ("RegisterComputeCrcCallback=1", "cuptiRegisterComputeCrcCallback failed with 1"),
    ],
)
def test_failure_leaves_times_and_program_alone(play: Play, failure: str, expected: str) -> None:
    played = play("context", "samples", "end", FAKE_CUPTI_FAIL=failure)
    assert (played.status, played.stdout) == (7, "done\n")
    (line,) = played.stderr.splitlines()
    assert line.startswith("pasta: PC samples are not recorded: ")
    assert expected in line
    assert len(played["pc_sample"]) == 0
    assert len(played["kernel_complete"]) == 2


def test_library_without_the_functions(play: Play, tmp_path: Path) -> None:
    library(tmp_path / "libcupti.so.13", "fake_cupti.c")
    other = str(tmp_path / "libcupti.so.13")
    played = play("context", "samples", settings=f"{ON}cupti_lib={other}\n", FAKE_CUPTI=other)
    assert played.status == 7
    assert played.stderr == (
        "pasta: PC samples are not recorded: the library has no cuptiRegisterComputeCrcCallback; "
        "pip install 'nvidia-cuda-cupti>=13'\n"
    )
    assert len(played["kernel_complete"]) == 2


@pytest.mark.parametrize("interval", ["100us", "1000cycles", "16cycles", "4294967296cycles"])
def test_interval_is_a_power_of_two_of_cycles(play: Play, interval: str) -> None:
    played = play("context", "samples", settings=f"nvidia.pc_sampling={interval}\n")
    assert f"nvidia.pc_sampling={interval} is not a power of two from 32 to" in played.stderr
    assert len(played["kernel_complete"]) == 2


# ---- under pasta-preload ----

CUBIN = DATA / "sass" / "stalls_sm90.cubin"
LOOP, SOURCE = "dependent_loads", "/tmp/src/stalls.cu"


@pytest.fixture
def environment(cupti: Path) -> dict[str, str]:
    return {
        "FAKE_CUPTI": str(cupti / "libcupti.so.13"),
        "FAKE_DRIVER": str(cupti / "libcuda.so.1"),
        "PASTA_CUPTI_LIB": str(cupti / "libcupti.so.13"),
        "FAKE_CUBIN": str(CUBIN),
        "FAKE_KERNEL": LOOP,
    }


def rows(run: Any, table: str, *columns: str) -> list[tuple[Any, ...]]:
    found = pq.read_table(run.path / "results" / "pc_samples" / f"{table}.parquet").to_pylist()
    return [tuple(row[name] for name in columns) for row in found]


def test_the_tool_takes_samples(
    cupti: Path, pasta_preload: Any, environment: dict[str, str]
) -> None:
    lost = {"FAKE_CUPTI_DROPPED": "70"}
    done = pasta_preload(
        cupti / "program", "context", "samples", "end",
        options=("-t", "pc_samples,kernel_freq"), environment={**environment, **lost},
    )  # fmt: skip
    assert (done.exit_status, done.stdout) == (7, "done\n")
    manifest = json.loads((done.run.path / "run.json").read_text())
    assert list(manifest["sources"]) == ["nvidia_cupti"]
    unlocated = {"dropped by the hardware": 70}
    assert manifest["samples"] == {"located": 348, "unlocated": unlocated}
    assert done.stderr.count("70 further samples have no place: dropped by the hardware") == 1
    assert rows(done.run, "kernels", "kernel", "samples", "not_issued") == [
        (LOOP, 345, 240), ("called", 3, 3),
    ]  # fmt: skip
    # lines from the module's table, texts from nvdisasm
    found = rows(done.run, "places", "kernel", "offset", "samples", "line", "instruction")
    texts = ("LDG.E R4, desc[UR4][R4.64]", "LDC.64 R4, c[0x0][0x218]") * bool(find_nvdisasm())
    assert [row[:4] for row in found] == [
        (LOOP, 0x90, 330, f"{SOURCE}:16"), (LOOP, 0x40, 15, f"{SOURCE}:16"),
        ("called", 0x10, 3, None),
    ]  # fmt: skip
    assert [row[4] for row in found] == [*(texts or (None, None)), None]
    assert rows(done.run, "lines", "kernel", "line", "samples") == [
        (LOOP, f"{SOURCE}:16", 345), ("called", "(unknown)", 3),
    ]  # fmt: skip


def test_only_the_selected_kernel(
    cupti: Path, pasta_preload: Any, environment: dict[str, str]
) -> None:
    done = pasta_preload(
        cupti / "program", "context", "samples", "end",
        options=("-t", "pc_samples", "-k", "called"), environment=environment,
    )  # fmt: skip
    assert rows(done.run, "kernels", "kernel", "samples") == [("called", 3)]


def test_samples_by_launch(cupti: Path, pasta_preload: Any, environment: dict[str, str]) -> None:
    mode = ("--set", "nvidia.pc_sampling_mode=serialized", "--launch-count", "3")
    done = pasta_preload(
        cupti / "program", "context", "windows", "end",
        options=("-t", "pc_samples", *mode), environment=environment,
    )  # fmt: skip
    assert rows(done.run, "kernels", "kernel", "samples") == [("fill", 1 + 2 + 3)]
    config = Config()
    config.of(NvidiaSettings).pc_sampling = "32cycles"
    config.of(NvidiaSettings).pc_sampling_mode = "serialized"
    with pytest.raises(ConfigError, match="runs one kernel at a time, and all launches are sele"):
        adapt_backends(config, [])


def test_samples_and_probes_need_two_passes(
    cupti: Path, pasta_preload: Any, environment: dict[str, str]
) -> None:
    done = pasta_preload(
        cupti / "program", "context", "samples", "end",
        options=("-t", "pc_samples,access_count"), environment=environment,
    )  # fmt: skip
    assert done.exit_status == 7
    line = "pasta: no PC samples: they require CUPTI, which excludes probes: --set nvidia"
    assert done.stderr.count(line) == 1
