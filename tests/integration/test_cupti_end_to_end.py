"""A CUDA program on the fake driver under pasta-preload: which source records it, and what the
tools make of its times."""

from __future__ import annotations

import ctypes
import json
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from bench.cupti_switch import switch_library
from tests.support.places import PROGRAMS, ROOT

KERNEL = "_Z4fillIfEvPT_S0_i"
SCRIPTS = ("context", "launches", "copies", "graph", "events", "end")


@pytest.fixture(scope="module")
def built(cupti: Path) -> Path:
    """With a fake Sanitizer beside it."""
    sanitizer = [PROGRAMS / "nvidia" / "fake_sanitizer.c", "-o", cupti / "libsanitizer.so"]
    subprocess.run(["cc", "-shared", "-fPIC", "-fvisibility=hidden", *sanitizer], check=True)
    return cupti


def environment(built: Path, **more: str) -> dict[str, str]:
    return {
        "FAKE_CUPTI": str(built / "libcupti.so.13"),
        "FAKE_DRIVER": str(built / "libcuda.so.1"),
        "PASTA_CUPTI_LIB": str(built / "libcupti.so.13"),
        "PASTA_SANITIZER_LIB": str(built / "libsanitizer.so"),
        **more,
    }


def table(run: Any, tool: str, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(
        run.path / "results" / tool / f"{name}.parquet"
    ).to_pylist()
    return rows


@pytest.mark.main
def test_tools_have_times(built: Path, pasta_preload: Any) -> None:
    options = ("-t", "kernel_freq,copies,utilization")
    done = pasta_preload(
        built / "program", *SCRIPTS, options=options, environment=environment(built)
    )
    assert (done.exit_status, done.stdout) == (7, "done\n")
    manifest = json.loads((done.run.path / "run.json").read_text())
    assert manifest["sources"] == {"nvidia_cupti": "13.5"}
    assert manifest["devices"] == {"0": "A Device"}
    assert all(row["source"] < 1 << 63 for row in table(done.run, "copies", "repeats"))
    (fill,) = [row for row in table(done.run, "kernel_freq", "kernels") if row["name"] == KERNEL]
    # of `launches` the one that ran, the refused and the unfinished one; of `graph` 2, and 4 nodes
    assert fill["launches"] == 9
    assert fill["total_time"] == 5 * 1000  # of those with times
    device = table(done.run, "utilization", "devices")[0]  # the other one only has a context
    assert device["kernels"] == 8 * 1000
    assert device["copies"] == 16 * 1000


def test_the_sanitizer_can_be_chosen(built: Path, pasta_preload: Any) -> None:
    options = ("--set", "nvidia.source=sanitizer")
    done = pasta_preload(
        built / "program", *SCRIPTS, options=options, environment=environment(built)
    )
    assert (done.exit_status, done.stdout) == (7, "done\n")
    manifest = json.loads((done.run.path / "run.json").read_text())
    assert list(manifest["sources"]) == ["nvidia_sanitizer"]


def test_sanitizer_where_cupti_does_not_work(built: Path, pasta_preload: Any) -> None:
    failing = environment(built, FAKE_CUPTI_FAIL="Subscribe=39")
    done = pasta_preload(built / "program", *SCRIPTS, environment=failing)
    assert (done.exit_status, done.stdout) == (7, "done\n")
    line = (
        "pasta: no device times: subscribe failed with 39 "
        "(CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED); another CUPTI tool (nsys, ncu, a "
        "framework's profiler) came first: run without it. The Compute Sanitizer records the rest"
    )
    assert line in done.stderr.splitlines()
    manifest = json.loads((done.run.path / "run.json").read_text())
    assert list(manifest["sources"]) == ["nvidia_sanitizer"]


def test_unknown_source_is_an_error(pasta_preload: Any) -> None:
    done = pasta_preload("/bin/true", options=("--set", "nvidia.source=nsight"))
    assert done.exit_status == 2
    assert "auto, cupti, sanitizer" in done.stderr


@pytest.mark.parametrize("switched", [False, True])
def test_client_of_the_benchmark(built: Path, switched: bool, tmp_path: Path) -> None:
    """It gets what the source gets: callbacks of its calls, records, and samples; also through the
    library that switches CUPTI off."""
    library, log = tmp_path / "libclient.so", tmp_path / "log"
    source = ROOT / "bench" / "c" / "cupti_client.c"
    flags = ["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden"]
    subprocess.run(["cc", *flags, source, "-o", library, "-ldl", "-lpthread"], check=True)
    cupti = built / "libcupti.so.13"
    loads = {
        "CUDA_INJECTION64_PATH": str(library), "CUPTI_CLIENT_LOG": str(log),
        "CUPTI_CLIENT_LIB": str(switch_library(tmp_path, cupti) if switched else cupti),
        "CUPTI_CLIENT_SAMPLING": "12",
    }  # fmt: skip
    done = subprocess.run(
        [built / "program", *SCRIPTS[:-1], "samples", SCRIPTS[-1]],
        env=environment(built, **loads),
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (7, b"")
    # 5 kernels of `launches`, 14 copies and sets of `copies`, 6 nodes of `graph`, 2 devices, and
    # 2 kernels of `samples`
    assert log.read_text().endswith(" samples 588, records 29\n")


def test_switch_of_the_benchmark(built: Path, tmp_path: Path) -> None:
    """It switches what was enabled through it, each kind once."""
    switch = ctypes.CDLL(str(switch_library(tmp_path, built / "libcupti.so.13")))
    assert switch.cupti_switch(0) == 0
    assert [switch.cuptiActivityEnable(kind) for kind in (1, 3, 1)] == [0, 0, 0]
    assert [switch.cupti_switch(on) for on in (0, 1)] == [2, 2]
    assert switch.cuptiActivityDisable(1) == 0  # a jump


def test_a_tool_of_both_passes_has_faults_in_the_first(built: Path, pasta_preload: Any) -> None:
    """CUPTI with faults, although the tool has probes. The program ends with 7, so it runs once."""
    done = pasta_preload(
        built / "program", "context", "managed", "end",
        options=("--passes", "auto", "-t", "uvm_advisor"), environment=environment(built),
    )  # fmt: skip
    assert done.exit_status == 7
    assert any("the second pass does not run: the first exited with 7" in e for e in done.lines)
    assert not any("probes do not run" in line for line in done.lines)
    (whole,) = (done.directory / "pasta-out").iterdir()
    manifest = json.loads((whole / "passes" / "times" / "run.json").read_text())
    assert set(manifest["sources"]) == {"nvidia_cupti"}
    assert manifest["events"]["uvm_fault"] == 2
