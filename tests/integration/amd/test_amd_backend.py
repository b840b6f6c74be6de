"""AMD through the launcher, and capabilities of its source, with the replayer as the SDK."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import pasta
from pasta.backends.amd import rocprofiler as rocm
from tests.integration.amd.conftest import Replay, Replayer
from tests.support.amd_stream import Stream, recorded
from tests.support.capabilities import disagreements
from tests.support.places import DATA

RECORDED = DATA / "amd" / "hip63_sdk100.events.txt"
#: Claimed capabilities that are missing in the replayed streams, by version. Samples and counters
#: exclude each other; test_amd_counters.py has them.
UNPLAYED = {
    "0.5.0": {"pc_sample", "counter", "entry_pc"},
    "0.6.0": {"pc_sample", "counter"},
    "1.0.0": {"pc_sample"},
}


def everything() -> Stream:
    """The recorded program, and operations missing in it."""
    s = recorded(RECORDED)
    s.correlation = 1000
    s.hip("hipStreamCreateWithPriority", stream=0x51, flags=1, priority=1)
    s.hip("hipMallocManaged", dev_ptr=0x7000, size=4096, flags=1)
    s.hip("hipMemAdvise", dev_ptr=0x7000, count=4096, advice=3, device=0)
    s.hip("hipMemPrefetchAsync", dev_ptr=0x7000, count=4096, device=0, stream=0x51)
    s.hip("hipStreamAttachMemAsync", stream=0x51, dev_ptr=0x7000, length=4096, flags=1)
    s.hip("hipEventCreate", event=0xE1)
    s.hip("hipEventRecord", event=0xE1, stream=0x51)
    s.hip("hipStreamWaitEvent", stream=0, event=0xE1, flags=0)
    s.hip("hipEventDestroy", event=0xE1)
    s.load(100, {1000: "_Z4vaddPf.kd"})
    s.dispatches = 1000
    with s.call("hipLaunchKernel", numBlocks=(1, 1, 1), dimBlocks=(64, 1, 1), stream=0x51):
        launched = s.dispatch(1000)
    s.complete(launched)
    s.unload(100, {1000: "_Z4vaddPf.kd"})
    return s


def test_capabilities_match_records(replay: Replay, version: str) -> None:
    played = replay(everything(), version, settings="amd.counters=SQ_WAVES\n")
    unplayed = UNPLAYED[version]
    assert disagreements("amd_rocprofiler", [played.tables], unplayed=unplayed) == {}


@pytest.fixture
def rocm_environment(replayer: Replayer, tmp_path: Path) -> dict[str, str]:
    """A machine with an SDK, and a program's stream."""
    stream = recorded(RECORDED).write(tmp_path / "stream.txt")
    return {
        rocm.NAMED: str(replayer.library),
        "ROCPROFILER_REGISTER_LIBRARY": str(replayer.library),
        "REPLAY_VERSION": "1.0.0",
        "STREAM": str(stream),
    }


@pytest.mark.main
def test_program_is_recorded(
    pasta_preload, replayer: Replayer, rocm_environment: dict[str, str]
) -> None:
    done = pasta_preload(
        replayer.program, rocm_environment["STREAM"], environment=rocm_environment,
        options=("-t", "kernel_freq", "-t", "access_count", "-t", "counters",
                 "--set", "amd.counters=SQ_WAVES"),
    )  # fmt: skip
    assert done.exit_status == 7
    assert done.stdout.endswith("done\n")
    run = done.run
    assert set(run.manifest["sources"]) == {"amd_rocprofiler"}
    assert run.launches > 0
    report = " ".join(run.report.split())
    assert "note: not given by amd_rocprofiler: cluster sizes" in report
    assert "access_count: not available on this backend: amd_rocprofiler does not provide" in report
    loaded = pasta.load(run.path)
    assert loaded.tables()["access_count"] == []
    recorded_values = loaded.events("counter", ["value"]).column("value").to_pylist()
    sums = loaded.arrow("counters").column("sum").to_pylist()
    assert sum(sums) == sum(recorded_values) > 0


@pytest.mark.main
def test_backend_named_on_the_command_line(
    pasta_preload, replayer: Replayer, rocm_environment: dict[str, str]
) -> None:
    """A missing device is reported; the program continues."""
    done = pasta_preload(
        replayer.program, rocm_environment["STREAM"], environment=rocm_environment,
        options=("--backend", "amd"),
    )  # fmt: skip
    assert done.run.launches > 0
    messages = [line for line in done.notes if "no AMD device is usable" in line]
    assert len(messages) == (not os.access(rocm.DEVICE, os.R_OK | os.W_OK))


@pytest.mark.parametrize("backend", ["nvidia", "none"])
def test_program_is_not_recorded_with_another_backend(
    pasta_preload, replayer: Replayer, rocm_environment: dict[str, str], backend: str
) -> None:
    """Even if the library is loaded anyway, for example by an outer pasta-preload."""
    for tools in ("", str(rocm.LIBPASTA_AMD)):
        environment = {**rocm_environment, rocm.TOOLS: tools}
        done = pasta_preload(
            replayer.program, rocm_environment["STREAM"], environment=environment,
            options=("--backend", backend),
        )  # fmt: skip
        assert (done.exit_status, done.target_stderr, done.runs) == (7, "", [])
        assert done.stdout.endswith("done\n")
        assert not any("ROCm" in line for line in done.lines)


def tools_of(printed: str) -> list[str]:
    lines = [line for line in printed.splitlines() if line.startswith(f"{rocm.TOOLS}=")]
    assert len(lines) <= 1
    return list(filter(None, lines[0].partition("=")[2].split(":"))) if lines else []


def test_pastas_tool_follows_the_users(
    pasta_preload, rocm_environment: dict[str, str], replayer: Replayer
) -> None:
    ours = str(rocm.LIBPASTA_AMD)
    assert tools_of(pasta_preload("env", environment=rocm_environment).stdout) == [ours]
    environment = {**rocm_environment, rocm.TOOLS: str(replayer.tool)}
    assert tools_of(pasta_preload("env", environment=environment).stdout) == [
        str(replayer.tool), ours,
    ]  # fmt: skip


def test_both_tools_are_loaded(
    pasta_preload, rocm_environment: dict[str, str], replayer: Replayer
) -> None:
    """The SDK loads no tool that follows the last colon of a list."""
    environment = {**rocm_environment, rocm.TOOLS: str(replayer.tool)}
    done = pasta_preload(replayer.program, rocm_environment["STREAM"], environment=environment)
    assert done.stdout.count("tool KERNEL_DISPATCH_COMPLETE") == 6
    assert done.run.launches == 4


def test_program_with_an_empty_environment(
    pasta_preload, rocm_environment: dict[str, str], replayer: Replayer
) -> None:
    """PASTA's tool is added again, but not the user's, which the program removed."""
    environment = {**rocm_environment, rocm.TOOLS: str(replayer.tool)}
    done = pasta_preload("env", "-i", "/usr/bin/env", environment=environment)
    assert tools_of(done.stdout) == [str(rocm.LIBPASTA_AMD)]


def test_unloadable_sdk(pasta_preload, rocm_environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "broken.so").write_text("no library")
    environment = {**rocm_environment, rocm.NAMED: str(tmp_path / "broken.so")}
    silent = pasta_preload("env", environment=environment)
    assert (tools_of(silent.stdout), silent.lines) == ([], [])
    named_backend = pasta_preload("env", environment=environment, options=("--backend", "amd"))
    assert tools_of(named_backend.stdout) == []
    (line,) = named_backend.lines
    assert line.startswith(f"ROCm is not recorded: {tmp_path / 'broken.so'} cannot be loaded (")
    assert line.endswith(f"check it with pasta doctor, or name another with {rocm.NAMED}")


def test_program_uses_the_detected_sdk(
    pasta_preload, rocm_environment: dict[str, str], replayer: Replayer
) -> None:
    """rocprofiler-register aborts a program if a tool is named and it finds no SDK."""
    environment = {name: text for name, text in rocm_environment.items() if name != rocm.REGISTERED}
    done = pasta_preload(replayer.program, environment["STREAM"], environment=environment)
    assert (done.exit_status, done.run.launches) == (7, 4)
    emptied = pasta_preload("env", "-i", "/usr/bin/env", environment=environment).stdout
    assert f"{rocm.REGISTERED}={replayer.library}\n" in emptied
    theirs = {**environment, rocm.REGISTERED: str(replayer.library.parent / "." / "theirs.so")}
    seen = pasta_preload("env", environment=theirs).stdout
    assert f"{rocm.REGISTERED}={theirs[rocm.REGISTERED]}\n" in seen


def test_unknown_version_is_rejected_before_the_program_starts(
    pasta_preload, rocm_environment: dict[str, str], replayer: Replayer
) -> None:
    environment = {**rocm_environment, "REPLAY_VERSION": "0.7.1"}
    done = pasta_preload(
        replayer.program, environment["STREAM"], environment=environment,
        options=("--backend", "amd"),
    )  # fmt: skip
    assert (done.exit_status, done.runs) == (7, [])
    first, *_ = done.lines
    assert first.startswith(f"ROCm is not recorded: {replayer.library} is rocprofiler-sdk 0.7.1")
    assert tools_of(pasta_preload("env", environment=environment).stdout) == []


def test_unregistered_hip_is_explained(pasta_preload, rocm_environment: dict[str, str]) -> None:
    done = pasta_preload("true", environment=rocm_environment, options=("--backend", "amd"))
    assert (done.exit_status, done.runs) == (0, [])
    (line,) = [line for line in done.lines if "nothing was recorded" in line]
    assert "rocprofiler-register" in line
    assert pasta_preload("true", environment=rocm_environment).lines == []


def test_counters_and_samples(pasta_preload, rocm_environment: dict[str, str]) -> None:
    sampling = ("--set", "amd.pc_sampling=100us")
    done = pasta_preload("env", environment=rocm_environment, options=sampling)
    assert f"{rocm.SAMPLING}=1\n" in done.stdout
    assert "\x1famd.pc_sampling=100us\x1f" in done.stdout  # of PASTA_SHIM
    assert rocm.SAMPLING not in pasta_preload("env", environment=rocm_environment).stdout
    both = pasta_preload("env", options=(*sampling, "--set", "amd.counters=SQ_WAVES"))
    assert both.exit_status == 2
    assert "the SDK cannot count and sample in one run" in both.stderr
