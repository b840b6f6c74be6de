"""PyTorch's operators and a HIP runtime's events in one program: launches, allocations and
synchronizations of the AMD source have their operators, as with other backends."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pasta.api.runs import Run
from pasta.backends.amd import rocprofiler as rocm
from tests.support.amd_replayer import Replayer, build
from tests.support.amd_stream import Stream

pytest.importorskip("torch")

STEPS, ELEMENTS = 20, 1024
#: An operator with a replayed kernel: the callbacks of rocprofiler-sdk, on the calling thread.
PROGRAM = """
import ctypes, json, sys, threading
import torch

class Round(ctypes.Structure):
    _fields_ = [("add", ctypes.c_uint64), ("thread", ctypes.c_uint64)]

library, lines = sys.argv[1:]
document = json.load(open(lines))
sdk = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
sdk.replay_event_of.restype = ctypes.c_void_p
sdk.replay_deliver.argtypes = [ctypes.c_void_p, ctypes.POINTER(Round)]
sdk.replay_deliver.restype = ctypes.c_bool
for line in document["agents"]:
    sdk.replay_agent(line.removeprefix("agent ").encode())
tables = (ctypes.c_void_p * 1)()
status = sdk.rocprofiler_set_api_table(b"hip", ctypes.c_uint64(60300), ctypes.c_uint64(0), tables,
                                       ctypes.c_uint64(1))
assert status == 0
events = {name: [sdk.replay_event_of(line.encode()) for line in lines]
          for name, lines in document["events"].items()}

def play(name, add=0):
    now = Round(add, threading.get_native_id())
    for event in events[name]:
        sdk.replay_deliver(event, ctypes.byref(now))

steps = iter(range(100))

@torch.library.custom_op("demo::scale", mutates_args=())
def scale(x: torch.Tensor) -> torch.Tensor:
    play("scale", 10 * next(steps))
    return x * 2

play("begin")
class Net(torch.nn.Module):
    def forward(self, x):
        return scale(x) + 1

net, x = Net(), torch.ones(ELEMENTS)
for step in range(STEPS):
    y = net(x)
play("end")
sdk.replay_finalize()
print(float(y.sum()))
"""


@pytest.fixture(scope="module")
def replayer(tmp_path_factory: pytest.TempPathFactory) -> Replayer:
    return build(tmp_path_factory.mktemp("rocm"))


def played() -> dict[str, Any]:
    """Lines of a stream by part; a step's ids are 10 apart."""
    s = Stream()
    agents, s.lines = s.lines, []
    s.load(1, {7: "_Z5scalePfi.kd"})
    s.hip("hipMalloc", ptr=0x10000, size=4 * ELEMENTS)
    begin, s.lines = s.lines, []
    with s.call("hipLaunchKernel", numBlocks=(4, 1, 1), dimBlocks=(256, 1, 1), stream=0):
        launched = s.dispatch(7, grid=(ELEMENTS, 1, 1), workgroup=(256, 1, 1))
    s.complete(launched, 1000, 2500, by=1)
    s.hip("hipStreamSynchronize", stream=0)
    scale, s.lines = s.lines, []
    s.correlation += 1000
    s.hip("hipFree", ptr=0x10000)
    return {"agents": agents, "events": {"begin": begin, "scale": scale, "end": s.lines}}


def test_operators_have_amd_launches(
    pasta_preload: Any, replayer: Replayer, tmp_path: Path
) -> None:
    lines = tmp_path / "lines.json"
    lines.write_text(json.dumps(played()))
    program = tmp_path / "program.py"
    program.write_text(f"STEPS, ELEMENTS = {STEPS}, {ELEMENTS}\n{PROGRAM}")
    done = pasta_preload(
        sys.executable, program, replayer.library, lines,
        options=("-c", "torch", "-t", "kernel_freq", "-t", "memory_timeline", "-t", "copies"),
        environment={rocm.NAMED: str(replayer.library), "REPLAY_VERSION": "1.0.0"},
    )  # fmt: skip
    assert (done.exit_status, done.stdout) == (0, f"{ELEMENTS * 3.0}\n"), done.stderr
    run = Run.load(done.run.path)
    assert set(run.manifest["sources"]) == {"torch", "amd_rocprofiler"}
    (kernel,) = run.arrow("kernel_freq", "kernels").to_pylist()
    assert (kernel["demangled"], kernel["launches"]) == ("scale(float*, int)", STEPS)
    rows = {row["operator"]: row for row in run.arrow("operators", "operators").to_pylist()}
    assert rows["demo::scale"]["calls"] == rows["demo::scale"]["launches"] == STEPS
    assert rows["demo::scale"]["device_time"] == STEPS * 1500
    assert rows["demo::scale"]["waits"] == STEPS
    assert sum(row["launches"] for row in rows.values()) == STEPS
    modules = {row["module"]: row for row in run.arrow("operators", "modules").to_pylist()}
    assert modules["Net"]["launches"] == STEPS
    peaks = {
        (row["layer"], row["memory"]): row["peak"]
        for row in run.arrow("memory_timeline", "peaks").to_pylist()
    }
    assert peaks["memory", "device"] == 4 * ELEMENTS
    tensors = run.arrow("tensors", "categories").to_pylist()
    assert sum(row["at_peak"] for row in tensors) >= 4 * ELEMENTS  # of the host
