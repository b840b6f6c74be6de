"""Streams that CUPTI delivered, recorded by tests/programs/nvidia/cupti_recorder.c, played again.

Recordings of a GPU lie in tests/data/nvidia; one of the fake library is made here, and must give
the events of the program that it was made from.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_cupti import play_cupti
from tests.support.places import DATA
from tests.support.played import Played

SCRIPTS = ("context", "launches", "copies", "memory", "graph", "events", "unknown", "end")
#: What differs between two plays of one stream. Registers and the like are those of a fake driver.
OWN = {
    "index",
    "time",
    "thread",
    "start",
    "end",
    "duration",
    "pid",
    "parent",
    "command",
    "function",
}


def record(cupti: Path, stream: Path, *scripts: str) -> None:
    environment = {
        "FAKE_CUPTI": str(cupti / "libcupti.so.13"), "FAKE_DRIVER": str(cupti / "libcuda.so.1"),
        "CUPTI_RECORDER_LIB": str(cupti / "libcupti.so.13"), "CUPTI_RECORDER_FILE": str(stream),
        "CUDA_INJECTION64_PATH": str(cupti / "librecorder.so"),
    }  # fmt: skip
    done = subprocess.run([cupti / "program", *scripts], env=environment, capture_output=True)
    assert (done.returncode, done.stderr) == (7, b"")


def events(played: Played) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for kind, row in played.in_order():
        plain = played.plain(kind, row)
        found.setdefault(kind, []).append({k: v for k, v in plain.items() if k not in OWN})
    found["device"] = found["device"][-1:]  # the fake library has one of its own
    found.pop("clock_error")  # the recording's times are of another day
    return found


@pytest.mark.main
def test_a_recording_gives_the_events_of_the_program(cupti: Path, tmp_path: Path) -> None:
    stream = tmp_path / "work.stream"
    record(cupti, stream, *SCRIPTS)
    places = tmp_path / "direct", tmp_path / "again"
    for each in places:
        each.mkdir()
    direct = play_cupti(cupti, places[0], *SCRIPTS)
    again = play_cupti(cupti, places[1], f"replay:{stream}")
    assert (again.status, again.stderr) == (7, "")
    assert events(again) == events(direct)
    durations = [
        [end - start for start, end in each.rows("kernel_complete", "start", "end")]
        for each in (direct, again)
    ]
    assert durations[0] == durations[1] == [1000] * len(durations[0])


@pytest.mark.slow
def test_threads_of_a_recording(cupti: Path, tmp_path: Path) -> None:
    stream = tmp_path / "threads.stream"
    record(cupti, stream, "context", "threads")
    again = play_cupti(cupti, tmp_path, f"replay:{stream}")
    assert len(again["kernel_launch"]) == len(again["kernel_launch_end"]) == 40_000
    assert len(again["kernel_complete"]) == 40_000
    assert len({thread for (thread,) in again.rows("kernel_launch", "thread")}) == 8


H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"
#: Device, launches, copies and sets of each recording, known from the program (examples/cuda).
WORK = {
    "vadd": (H200, 1, 3, 0),
    "graph": (H200, 11, 10, 11),
    "memory": (H200, 0, 5, 6),
    "annotated": (H200, 2, 1, 1),
    "contexts": (H100, 20, 4, 4),
}


def play_recording(cupti: Path, directory: Path, name: str) -> Played:
    stream = DATA / "nvidia" / f"{name}.stream"
    version = int.from_bytes(stream.read_bytes()[16:20], "little")
    played = play_cupti(cupti, directory, f"replay:{stream}", FAKE_CUPTI_API=str(version))
    assert (played.status, played.stderr) == (7, "")
    return played


@pytest.mark.parametrize("name", WORK)
def test_recordings_of_a_gpu(cupti: Path, tmp_path: Path, name: str) -> None:
    """All work of the program is there, and has its times."""
    played = play_recording(cupti, tmp_path, name)
    device, launches, copies, sets = WORK[name]
    assert len(played["kernel_launch"]) == launches
    assert (len(played["memory_copy"]), len(played["memory_set"])) == (copies, sets)
    for work, done, key in (
        (("kernel_launch",), "kernel_complete", "ordinal"),
        (("memory_copy", "memory_set"), "copy_complete", "correlation"),
    ):
        submitted = sorted(row for kind in work for row in played.rows(kind, key))
        assert sorted(played.rows(done, key)) == submitted
        assert all(start < end for start, end in played.rows(done, "start", "end"))
    assert played.rows("device", "name")[-1:] == [(device,)]
    contexts = [len(played[f"context_{what}"]) for what in ("create", "destroy")]
    assert contexts == ([4, 4] if name == "contexts" else [1, 0])


def test_nodes_of_graphs_that_pytorch_captured(cupti: Path, tmp_path: Path) -> None:
    """The first of two graphs is destroyed before the second, whose nodes have its handles, and
    both are replayed: each kernel knows its node, and no two nodes of a launch are the same."""
    played = play_recording(cupti, tmp_path, "torch_graphs")
    nodes: dict[int, list[int | None]] = {}
    for flags, node, time in played.rows("kernel_launch", "flags", "graph_node", "time"):
        if flags:
            nodes.setdefault(time, []).append(node)
    assert [len(found) for found in nodes.values()] == [8, 9, 8]
    assert all(None not in found and len(set(found)) == len(found) for found in nodes.values())
    first, _, again = nodes.values()
    assert first == again
