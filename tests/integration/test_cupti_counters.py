"""Hardware counters of the CUPTI source, played by the fake library."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pasta.backends.nvidia import (
    CUPTI,
    DEFAULT_COUNTERS,
    FLOP_COUNTERS,
    Nvidia,
    NvidiaSettings,
    counter_names,
)
from pasta.backends.nvidia.metrics import counters as chip_counters
from pasta.cli import doctor
from pasta.cli.preload import adapt_backends
from pasta.config import Config
from pasta.errors import ConfigError, MissingDependency
from pasta.plugins import find_tools
from tests.support.fake_cupti import library, play_cupti
from tests.support.played import Played

BYTES, EXECUTED, HITS = "dram__bytes.sum", "sm__inst_executed.sum", "lts__t_sector_hit_rate.pct"
ON = f"nvidia.counters={BYTES},{EXECUTED},{HITS}\n"
RANGES = f"nvidia.counters={BYTES},{EXECUTED}\nnvidia.counters_mode=range\n"
TWICE = "pasta: each selected kernel runs 2 times: 3 counters need as many passes\n"

Play = Callable[..., Played]


@pytest.fixture
def play(cupti: Path, tmp_path: Path) -> Play:
    def run(*scripts: str, settings: str = ON, **extra: str) -> Played:
        log = str(tmp_path / "log")
        return play_cupti(
            cupti, tmp_path, *scripts, settings=settings, FAKE_CUPTI_COUNTERS=log, **extra
        )

    return run


def values(played: Played) -> dict[Any, dict[str, float]]:
    """Values by the launch's ordinal, or by the range, and the counter's name."""
    found: dict[Any, dict[str, float]] = {}
    rows = played.rows("counter", "ordinal", "name", "instance")
    for (ordinal, name, instance), value in zip(rows, played["counter"]["value"], strict=True):
        of = found.setdefault(instance if ordinal is None else ordinal, {})
        assert name not in of
        of[name] = value
    return found


def expected(blocks: int, added: int = 0) -> dict[str, float]:
    """Of blocks of two warps, each of which executes `added` instructions that record times."""
    return {BYTES: 1000 * blocks, EXECUTED: (32 * 64 + 2 * added) * blocks}


def in_range(blocks: int) -> dict[str, float]:
    return expected(blocks, added=8)


@pytest.mark.main
def test_counters_of_every_launch(play: Play, tmp_path: Path) -> None:
    """A kernel runs once for each pass, and is one launch; nodes of graphs are not counted."""
    played = play("context", "counters", "end")
    assert (played.status, played.stdout, played.stderr) == (7, "done\n", TWICE)
    # ordinal 4 is the launch that the driver refuses
    blocks = {0: 1, 1: 2, 2: 3, 3: 4, 5: 5, 6: 6}
    assert values(played) == {at: {**expected(n), HITS: 12.5} for at, n in blocks.items()}
    assert {row[0] for row in played.rows("counter", "device")} == {0}
    assert len(played["kernel_launch"]) == 7
    times = played.rows("kernel_complete", "ordinal", "start", "end")
    assert {ordinal: end - start for ordinal, start, end in times} == dict.fromkeys(blocks, 700)
    log = (tmp_path / "log").read_text().splitlines()
    assert log[:2] == ["enable c5", "kernels, 2 passes"] and log[-1] == "disable c5"
    assert log.count("start") == 7 and log.count("stop 1") == 6 and log.count("stop 0") == 1


def test_nothing_is_counted_unless_asked_for(play: Play, tmp_path: Path) -> None:
    played = play("context", "counters", "end", settings="")
    assert len(played["counter"]) == 0 and not (tmp_path / "log").exists()


@pytest.mark.parametrize(
    ("settings", "selected"),
    [
        ("probe_count=2\n", [0, 1]),
        ("probe_window=launches 1 5\n", [0, 5]),
        ("probe_kernel=other\n", [5]),
        ("probe_skip=5\n", [5, 6]),
    ],
)
def test_selected_launches(play: Play, settings: str, selected: list[int]) -> None:
    played = play("context", "counters", "end", settings=ON + settings)
    assert list(values(played)) == selected
    assert {row[0] for row in played.rows("kernel_launch", "flags")} == {""}  # no probes


def test_one_pass_is_not_announced(play: Play) -> None:
    played = play("context", "counters", settings=f"nvidia.counters={BYTES}\n")
    assert played.stderr == ""
    assert values(played)[0] == {BYTES: 1000}


def test_ranges_of_launches(play: Play, tmp_path: Path) -> None:
    """Consecutive selected launches are one range, with the graphs between them, and run once."""
    played = play("context", "counters", "end", settings=RANGES)
    assert played.stderr == ""
    assert values(played) == {"launches 0 to 6": in_range(1 + 2 + 3 + 4 + 5 + 100 + 6)}
    log = (tmp_path / "log").read_text().splitlines()
    assert log == ["enable c5", "ranges, 1 passes", "start", "stop 7", "disable c5"]


def test_ranges_end_at_launches_that_are_not_selected(play: Play) -> None:
    played = play("context", "counters", settings=f"{RANGES}probe_window=launches 2 5\n")
    assert values(played) == {
        "launches 0 to 1": in_range(1 + 2),
        "launches 5 to 6": in_range(5 + 100 + 6),
    }


def test_ranges_have_one_pass(play: Play) -> None:
    played = play("context", "counters", settings=f"{ON}nvidia.counters_mode=range\n")
    assert played.status == 7 and len(played["counter"]) == 0
    assert played.stderr == (
        "pasta: counters are not recorded: these 3 need 2 passes, but a range runs once: name fewer"
        " in nvidia.counters, or set nvidia.counters_mode=kernel\n"
    )


def test_unknown_counters(play: Play) -> None:
    """The others are counted; values that the device does not give are reported."""
    names = f"dram__bites.sum,{BYTES},gpu__missing.sum"
    played = play("context", "counters", "end", settings=f"nvidia.counters={names}\n")
    assert played.stderr == (
        "pasta: nvidia.counters: CHIP has no counter dram__bites.sum; `pasta doctor --counters` lis"
        "ts the counters that it has\n"
        "pasta: 6 counter values are missing: the device did not provide them\n"
    )
    assert [of[BYTES] for of in values(played).values()] == [1000, 2000, 3000, 4000, 5000, 6000]
    assert not any(math.isnan(each) for of in values(played).values() for each in of.values())


def test_counters_of_a_group_that_a_chip_does_not_have(play: Play) -> None:
    """They are left out without a message; the user's log names them."""
    names = counter_names(f"{EXECUTED},dram")
    assert names == f"{EXECUTED},?{BYTES},?dram__bytes_read.sum,?dram__bytes_write.sum"
    played = play("context", "counters", settings=f"nvidia.counters={names},?dram__bites.sum\n")
    assert "has no counter" not in played.stderr
    assert {BYTES, EXECUTED} <= set(values(played)[0])


def test_groups_of_counters() -> None:
    assert counter_names(BYTES) == BYTES and counter_names("") == ""
    assert counter_names(f"dram,{BYTES}").split(",").count(BYTES) == 1
    assert counter_names("roofline").split(",") == [
        f"?{name}" for name in (BYTES, *(name for name, _, _ in FLOP_COUNTERS))
    ]
    settings = Nvidia().shim_settings({}, config := Config())
    assert settings["nvidia.counters"] == ""
    config.of(NvidiaSettings).counters = "flops"
    assert "?sm__ops_path_tensor_src_bf16_dst_fp32.sum" in str(
        Nvidia().shim_settings({}, config)["nvidia.counters"]
    )


def test_no_known_counter(play: Play) -> None:
    played = play("context", "counters", settings="nvidia.counters=a,b\n")
    assert played.stderr.count("has no counter") == 2 and len(played["counter"]) == 0


def test_contexts_of_a_device_take_turns(play: Play, tmp_path: Path) -> None:
    played = play("context", "contexts", "end")
    assert [of[BYTES] for of in values(played).values()] == [1000, 2000, 3000]
    assert [row[0] for row in played.rows("counter", "context")][::3] == [0, 1, 0]
    log = (tmp_path / "log").read_text().splitlines()
    assert [line for line in log if "able" in line] == [
        "enable c5", "disable c5", "enable 10c6", "disable 10c6", "enable c5", "disable c5",
    ]  # fmt: skip


def test_launches_of_threads_are_counted_alone(play: Play) -> None:
    played = play("context", "countedthreads", "end")
    assert played.stderr == TWICE
    found = [of[BYTES] for of in values(played).values()]
    assert len(found) == 200 and found.count(1000) == found.count(2000) == 100


def test_some_launches_of_each_shape(play: Play) -> None:
    played = play("context", "countedthreads", settings=f"{ON}probe_enough=3\n")
    found = sorted(of[BYTES] for of in values(played).values())
    assert found == [1000] * 3 + [2000] * 3


def test_child_of_a_fork_counts_nothing(play: Play) -> None:
    played = play("context", "counters", "countedfork", "end")
    assert (played.status, played.stderr) == (7, TWICE)
    assert len(values(played)) == 6


@pytest.mark.parametrize("settings", [RANGES, f"nvidia.counters={BYTES},{EXECUTED}\n"])
def test_stopped_profiling(play: Play, settings: str) -> None:
    scripts = ("counters", "stop", "counters", "start", "counters", "end")
    found = values(play("context", *scripts, settings=settings))
    if settings == RANGES:
        assert found == {f"launches {n} to {n + 6}": in_range(121) for n in (0, 14)}
    else:
        assert list(found) == [0, 1, 2, 3, 5, 6, 14, 15, 16, 17, 19, 20]


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        ("ProfilerGetCounterAvailability=35", "(ERR_NVGPUCTRPERM): load the driver's module"),
        ("RangeProfilerEnable=43", "a MIG device does not allow it: use a whole GPU"),
        ("RangeProfilerStart=26", "another profiler (nsys, ncu, DCGM) uses the hardware"),
        ("RangeProfilerStart=39", "another profiler (nsys, ncu, DCGM) uses the hardware"),
        ("ProfilerInitialize=33", "a virtual GPU allows it only if its host enables profiling"),
        ("ProfilerHostInitialize=999", "cuptiProfilerHostInitialize failed with 999"),
        ("RangeProfilerSetConfig=7", "cuptiRangeProfilerSetConfig failed with 7"),
        ("RangeProfilerDecodeData=7", "cuptiRangeProfilerDecodeData failed with 7"),
        ("ProfilerHostEvaluateToGpuValues=1", "cuptiProfilerHostEvaluateToGpuValues failed with 1"),
    ],
)
def test_failure_leaves_times_and_program_alone(play: Play, failure: str, expected: str) -> None:
    played = play(
        "context", "counters", "end", settings=f"nvidia.counters={BYTES}\n", FAKE_CUPTI_FAIL=failure
    )
    assert (played.status, played.stdout) == (7, "done\n")
    (line,) = played.stderr.splitlines()
    assert line.startswith("pasta: counters are not recorded: ")
    assert expected in line
    assert len(played["counter"]) == 0
    # its counters are the time of a launch that was counted already
    lost = "Decode" in failure or "Evaluate" in failure
    assert len(played["kernel_complete"]) == 6 - lost


def test_samples_and_counters_exclude_each_other(play: Play) -> None:
    played = play("context", "counters", settings=f"{ON}nvidia.pc_sampling=4096cycles\n")
    assert played.stderr == (
        "pasta: counters are not recorded: PC sampling uses the hardware; run the program twice, on"
        "ce with each\n"
    )


def test_library_without_the_functions(play: Play, tmp_path: Path) -> None:
    library(tmp_path / "libcupti.so.13", "fake_cupti.c")
    other = str(tmp_path / "libcupti.so.13")
    played = play("context", "counters", settings=f"{ON}cupti_lib={other}\n", FAKE_CUPTI=other)
    assert played.status == 7 and len(played["kernel_complete"]) == 6
    assert "counters are not recorded: the library has no cuptiRangeProf" in played.stderr


# ---- under pasta-preload ----


def test_the_tool_counts(cupti: Path, pasta_preload: Any) -> None:
    fake = str(cupti / "libcupti.so.13")
    done = pasta_preload(
        cupti / "program", "context", "counters", "end",
        options=("-t", "counters", "--set", f"nvidia.counters={BYTES},{HITS}", "-k", "fill"),
        environment={
            "FAKE_CUPTI": fake, "PASTA_CUPTI_LIB": fake, "FAKE_DRIVER": str(cupti / "libcuda.so.1")
        },
    )  # fmt: skip
    assert (done.exit_status, done.stdout) == (7, "done\n")
    kernels, rates = (
        pq.read_table(done.run.path / "results" / "counters" / f"{name}.parquet").to_pylist()
        for name in ("kernels", "rates")
    )
    blocks = 1 + 2 + 3 + 4 + 6
    assert [tuple(row.values()) for row in kernels] == [
        ("fill", BYTES, 5, 1, 1000 * blocks, 1000 * blocks / 5)
    ]
    assert [tuple(row.values()) for row in rates] == [("fill", HITS, 5, 12.5)]


def test_roofline_has_the_bytes_of_counters(cupti: Path, pasta_preload: Any) -> None:
    """Of a source that gives no accesses, with device times, in one pass."""
    fake = str(cupti / "libcupti.so.13")
    settings = ("--set", "nvidia.source=cupti", "--set", f"nvidia.counters={BYTES}")
    done = pasta_preload(
        cupti / "program", "context", "counters", "end",
        options=("-t", "roofline", *settings, "-k", "fill"),
        environment={
            "FAKE_CUPTI": fake, "PASTA_CUPTI_LIB": fake, "FAKE_DRIVER": str(cupti / "libcuda.so.1")
        },
    )  # fmt: skip
    assert (done.exit_status, done.stdout) == (7, "done\n")
    table = pq.read_table(done.run.path / "results" / "roofline" / "kernels.parquet")
    (row,) = table.to_pylist()
    # the one in a graph has no counters, and counts as the mean of the others
    assert (row["kernel"], row["bytes"]) == ("fill", 1000 * (1 + 2 + 3 + 4 + 6) / 5 * 6)


def adapted(tools: str, **settings: str) -> NvidiaSettings:
    config = Config()
    for name, value in settings.items():
        setattr(config.of(NvidiaSettings), name, value)
    adapt_backends(config, [tool() for name in tools.split(",") for tool in find_tools(name)])
    own = config.of(NvidiaSettings)
    own.check()
    return own


def test_a_tool_that_needs_counters_has_some() -> None:
    own = adapted("counters")
    assert (own.counters, own.source) == (DEFAULT_COUNTERS, "auto")
    assert adapted("kernel_freq").counters == ""
    own = adapted("counters", counters=BYTES, source=CUPTI)
    assert (own.counters, own.source) == (BYTES, CUPTI)
    # the hardware does one of them: what is named is not overridden
    assert adapted("counters,pc_samples").counters == ""
    assert adapted("counters,pc_samples", counters=BYTES).pc_sampling == ""
    with pytest.raises(ConfigError, match=r"the hardware cannot count and sample in one run"):
        adapted("counters", counters=BYTES, pc_sampling="32cycles")


def test_list_of_a_chips_counters(cupti: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ((chip, found),) = chip_counters(cupti / "libcupti.so.13", "CHIP")
    assert chip == "CHIP"
    assert [tuple(each) for each in found] == [
        (BYTES, "# of bytes accessed in DRAM"), (EXECUTED, ""), (HITS, ""),
    ]  # fmt: skip
    with pytest.raises(MissingDependency, match="it does not know CHIP2, only CHIP"):
        chip_counters(cupti / "libcupti.so.13", "CHIP2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PASTA_CUPTI_LIB", str(cupti / "libcupti.so.13"))
        assert doctor._list_counters("CHIP") == 0
    assert f"CHIP {BYTES}  # of bytes accessed in DRAM\n" in capsys.readouterr().out
