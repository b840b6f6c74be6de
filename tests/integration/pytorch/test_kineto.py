"""PASTA's kernels, calls and ranges in the program's own torch.profiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.places import PROGRAMS, ROOT
from tests.support.preload import Done, Preload
from tests.support.pytorch import TORCH, native

Event = dict[str, Any]

#: A program with kernels of the reference accelerator in an operator, its gradient and a range.
ACCELERATED = f"""
import ctypes, json, os, sys, threading, torch
sys.path.append({str(PROGRAMS)!r})
import accelerate
from accelerate import launch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        launch(3)
        return x * 2
    @staticmethod
    def backward(context, gradient):
        launch(2)
        return gradient * 2

@torch.library.custom_op("mine::shifted", mutates_args=())
def shifted(x: torch.Tensor) -> torch.Tensor:
    launch(4)
    return x + 1

x = torch.ones(3, requires_grad=True)
launch(1)
"""

TRACED = (
    ACCELERATED
    + """
def copies():
    ra, address = ctypes.CDLL(os.environ["REFACC_LIBRARY"]), ctypes.c_void_p()
    ra.ra_alloc(ctypes.byref(address), ctypes.c_uint64(64))
    ra.ra_memcpy(address, ctypes.create_string_buffer(64), ctypes.c_uint64(64))
    ra.ra_memset(address, 0, 4, ctypes.c_uint64(16))

def train():
    with record_function("step"):
        y = shifted(Scaled.apply(x).detach()).sum() + Scaled.apply(x).sum()
        y.backward()
        launch(5)
        with record_function("copies"):
            copies()
    worker = threading.Thread(target=launch, args=(6,))
    worker.start()
    worker.join()
    try:
        import pasta
    except ImportError:
        pass
    else:
        with pasta.range("annotated"):
            torch.mm(x.reshape(1, 3), x.reshape(3, 1))
    return float(x.grad.sum())

with profile(activities=[ProfilerActivity.CPU]) as profiled:
    print(train())
launch(7)
profiled.export_chrome_trace(sys.argv[1])
table = profiled.key_averages().table(row_limit=-1)
rows = {each.key: each.count for each in profiled.key_averages()}
print({key: rows[key] for key in sorted(rows) if key.startswith(("aten", "mine", "step"))})
with open(sys.argv[1] + ".rows", "w") as file:
    json.dump({"table": table, "rows": rows}, file)
"""
)


@pytest.fixture(scope="module")
def accelerator(native: Path) -> dict[str, str]:
    return {"REFACC_LIBRARY": str(native / "librefacc.so")}


def run(
    directory: Path, accelerator: dict[str, str], program: str, *arguments: str,
    options: tuple[str, ...] = TORCH, **environment: str,
) -> Done:  # fmt: skip
    path = directory / "program.py"
    path.write_text(program)
    done = Preload(directory)(
        sys.executable,
        path,
        *arguments,
        options=options,
        environment={**accelerator, **environment},
    )
    assert done.exit_status == 0, done.stderr
    assert "collection.cpp" not in done.target_stderr  # torch warns of events it does not expect
    return done


class Traced:
    def __init__(self, directory: Path, done: Done) -> None:
        self.done = done
        self.events: list[Event] = json.loads((directory / "trace.json").read_text())["traceEvents"]
        written = json.loads((directory / "trace.json.rows").read_text())
        self.rows: dict[str, int] = written["rows"]
        self.table: str = written["table"]

    def of(self, *categories: str, name: str = "") -> list[Event]:
        found = [each for each in self.events if each.get("cat") in categories]
        return [each for each in found if name in each["name"]]


@pytest.fixture(scope="module")
def traced(tmp_path_factory, accelerator: dict[str, str]) -> Traced:
    directory = tmp_path_factory.mktemp("traced")
    done = run(directory, accelerator, TRACED, str(directory / "trace.json"))
    return Traced(directory, done)


def inside(event: Event, other: Event) -> bool:
    end = event["ts"] + event.get("dur", 0)
    return bool(other["ts"] <= event["ts"] and end <= other["ts"] + other["dur"])


IN_WINDOW = 4 + 2 * 3 + 2 + 5 + 6


def test_program_output_is_unchanged(traced: Traced, tmp_path, accelerator, monkeypatch) -> None:
    monkeypatch.setenv("REFACC_LIBRARY", accelerator["REFACC_LIBRARY"])
    program = tmp_path / "program.py"
    program.write_text(TRACED)
    alone = native(sys.executable, program, tmp_path / "trace.json")
    assert traced.done.stdout == alone.stdout
    theirs = Traced(tmp_path, traced.done)
    assert not theirs.of("kernel", "cuda_runtime")
    assert theirs.rows.items() <= traced.rows.items()


def test_kernels_have_name_time_device_and_stream(traced: Traced) -> None:
    kernels = traced.of("kernel")
    assert Counter(each["name"] for each in kernels) == {
        "scale(float*, float, float, int)": IN_WINDOW
    }
    (window,) = traced.of("Trace", name="PyTorch Profiler")
    assert all(inside(each, window) and each["dur"] > 0 for each in kernels)
    assert {(each["pid"], each["tid"]) for each in kernels} == {(0, 0)}
    arguments = kernels[0]["args"]
    assert (arguments["grid"], arguments["block"]) == ([1, 1, 1], [32, 1, 1])
    named = {(e["pid"], e["name"]): e["args"] for e in traced.events if e["ph"] == "M"}
    assert named[0, "process_name"] == {"name": "device 0"}
    assert named[0, "thread_name"] == {"name": "default stream"}


def test_each_kernel_belongs_to_its_launch_and_operator(traced: Traced) -> None:
    launches = {
        each["args"]["correlation"]: each for each in traced.of("cuda_runtime", name="Laun")
    }
    assert len(launches) == IN_WINDOW
    operators = {
        each["args"]["External id"]: each for each in traced.of("cpu_op", "user_annotation")
    }
    of: Counter[str] = Counter()
    for kernel in traced.of("kernel"):
        launch = launches[kernel["args"]["correlation"]]
        assert launch["ts"] <= kernel["ts"]
        assert launch["args"]["kernel"] == kernel["name"]
        number = kernel["args"].get("External id")
        assert number == launch["args"].get("External id")
        operator = operators.get(number)
        of[operator["name"] if operator else ""] += 1
        if operator:
            assert inside(launch, operator)
            assert launch["tid"] == operator["tid"]
    assert of == {"Scaled": 6, "ScaledBackward": 2, "mine::shifted": 4, "step": 5, "": 6}


def test_flow_events_link_calls_to_kernels_copies_and_sets(traced: Traced) -> None:
    ends = {phase: {} for phase in "sf"}
    for each in traced.of("ac2g"):
        ends[each["ph"]][each["id"]] = each["ts"]
    assert len(ends["s"]) == IN_WINDOW + 2
    calls = [each for name in ("Laun", "Mem") for each in traced.of("cuda_runtime", name=name)]
    assert ends["s"] == {e["args"]["correlation"]: e["ts"] for e in calls}
    work = traced.of("kernel", "gpu_memcpy", "gpu_memset")
    assert ends["f"] == {e["args"]["correlation"]: e["ts"] for e in work}


def test_copies_sets_waits_and_ranges(traced: Traced) -> None:
    (step,) = traced.of("user_annotation", name="copies")
    for call, name, category in (
        ("cudaMemcpy", "Memcpy HtoD", "gpu_memcpy"), ("cudaMemset", "Memset", "gpu_memset"),
    ):  # fmt: skip
        (called,) = traced.of("cuda_runtime", name=call)
        (work,) = traced.of(category)
        assert (called["name"], work["name"]) == (call, name)
        for each in (called, work):
            assert each["args"]["bytes"] == 64
            assert each["args"]["External id"] == step["args"]["External id"]
        assert called["args"]["correlation"] == work["args"]["correlation"]
        assert (called["dur"], inside(called, step)) == (0, True)
        assert work["dur"] > 0 and work["ts"] >= called["ts"]
        assert (work["pid"], work["tid"]) == (0, 0)
    assert len(traced.of("cuda_runtime", name="Synchronize")) == 6
    (annotated,) = traced.of("external_correlation")
    (mm,) = traced.of("cpu_op", name="aten::mm")
    assert annotated["name"] == "annotated"
    assert inside(mm, annotated)


def test_profiler_tables_contain_kernels(traced: Traced) -> None:
    assert traced.rows["cudaLaunchKernel"] == IN_WINDOW
    assert traced.rows["scale(float*, float, float, int)"] == IN_WINDOW
    for name in ("annotated", "Memset", "Memcpy HtoD", "cudaMemset", "cudaMemcpy"):
        assert traced.rows[name] == 1, name
    assert "scale(float*, float, float, int)" in traced.table


AGAIN = (
    ACCELERATED
    + """
def kernels(profiled):
    return sum(each.count for each in profiled.key_averages() if each.key.startswith("scale"))

for count in (0, 1, 5):
    with profile() as profiled:
        launch(count)
    print(count, kernels(profiled), len(profiled.events()))

found = []
with profile(
    schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
    on_trace_ready=lambda each: found.append(kernels(each)),
) as profiled:
    for step in range(10):
        launch(step)
        profiled.step()
print(found)

try:
    with profile() as profiled:
        with record_function("open"):
            launch(2)
            raise KeyError("mine")
except KeyError:
    print(kernels(profiled))

# prepared, never started; and started where none is looked at
unused = profile(); unused.prepare_trace()
torch.autograd.profiler.profile(use_kineto=True).__enter__().__exit__(None, None, None)

profiled = profile(); profiled.start()
threads = [threading.Thread(target=launch, args=(50,)) for _ in range(4)]
[each.start() for each in threads]
[each.join() for each in threads]
profiled.stop()
print(kernels(profiled))

# threads that go on while the profiler stops
going = True
def endless():
    while going: launch(1)
threads = [threading.Thread(target=endless) for _ in range(2)]
[each.start() for each in threads]
for _ in range(5):
    with profile() as profiled:
        launch(3)
    assert kernels(profiled) >= 3
going = False
[each.join() for each in threads]

import pasta
names = ['"quoted" \\\\ back', "tab\\tnewline\\n\\x01", "<b>&", "n" * 100_000]
with profile() as profiled:
    for name in names:
        with pasta.range(name): x + 1
    entered = pasta.range("never left")
    entered.__enter__()
profiled.export_chrome_trace(sys.argv[1])

child = os.fork()
if not child:
    with profile() as profiled:
        torch.ones(3) + 1
    os._exit(kernels(profiled) + 10)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
with profile() as profiled:
    launch(2)
print(kernels(profiled))
"""
)


def test_many_profilers_schedules_threads_and_forks(tmp_path: Path, accelerator) -> None:
    done = run(tmp_path, accelerator, AGAIN, str(tmp_path / "names.json"))
    counts = done.stdout.splitlines()
    assert [line.split()[:2] for line in counts[:3]] == [["0", "0"], ["1", "1"], ["5", "5"]]
    assert counts[3:] == ["[5, 13]", "2", "200", "10", "2"]
    events = json.loads((tmp_path / "names.json").read_text())["traceEvents"]
    names = [each["name"] for each in events if each.get("cat") == "external_correlation"]
    assert names == [
        "'quoted' / back", "tab?newline??", "<b>&", "n" * 100_000, "never left",
    ]  # fmt: skip


def test_device_columns_on_request(tmp_path: Path, accelerator) -> None:
    """torch has columns of a device if the profiler's activities include it."""
    done = run(tmp_path, accelerator, ACCELERATED + """
import types
torch.utils.rename_privateuse1_backend("reference")
device = types.SimpleNamespace(is_available=lambda: True, device_count=lambda: 1,
                               current_device=lambda: 0, synchronize=lambda *_: None)
torch._register_device_module("reference", device)
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as profiled:
    with record_function("step"):
        shifted(x.detach())
averages = {each.key: each for each in profiled.key_averages()}
kernel = averages["scale(float*, float, float, int)"]
print(kernel.count, kernel.self_device_time_total > 0)
print(averages["mine::shifted"].device_time_total == kernel.self_device_time_total)
print("REFERENCE time avg" in profiled.key_averages().table())
""")  # fmt: skip
    assert done.stdout == "4 True\nTrue\nTrue\n"


SANITIZER = """
import ctypes, json, os, sys, torch
from torch.profiler import ProfilerActivity, profile
player = ctypes.CDLL(sys.argv[1])
def play(*scripts):
    words = (ctypes.c_char_p * (len(scripts) + 1))(b"", *(each.encode() for each in scripts))
    player.play(len(words), words)
@torch.library.custom_op("mine::played", mutates_args=())
def played(x: torch.Tensor) -> torch.Tensor:
    play("launches")
    return x + 1
play("context")
with profile(activities=[ProfilerActivity.CPU]) as profiled:
    played(torch.ones(3))
    play("graph")
profiled.export_chrome_trace(sys.argv[2])
print({each.key: each.count for each in profiled.key_averages() if each.key.startswith("cuda")})
"""


def test_only_calls_without_device_times(tmp_path: Path) -> None:
    compiler = [os.environ.get("CC", "cc"), "-std=gnu11", "-O1", "-shared", "-fPIC"]
    fake, player = tmp_path / "libsanitizer-public.so", tmp_path / "player.so"
    subprocess.run([*compiler, PROGRAMS / "nvidia" / "fake_sanitizer.c", "-o", fake], check=True)
    subprocess.run(
        [*compiler, f"-I{ROOT / 'shim' / 'sources'}", "-Dmain=play", "-Wl,-Bsymbolic",
         PROGRAMS / "nvidia" / "fake_cuda_program.c", "-o", player, "-ldl", "-lpthread"],
        check=True,
    )  # fmt: skip
    trace = tmp_path / "trace.json"
    done = run(
        tmp_path, {"PASTA_SANITIZER_LIB": str(fake), "FAKE_SANITIZER": str(fake)}, SANITIZER,
        str(player), str(trace),
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == (
        "{'cudaLaunchKernel': 13, 'cudaGraphUpload': 1, 'cudaGraphLaunch': 2}"
    )
    events = json.loads(trace.read_text())["traceEvents"]
    assert not [each for each in events if each.get("cat") in ("kernel", "gpu_memcpy", "ac2g")]
    launches = [each for each in events if each["name"] == "cudaLaunchKernel"]
    (operator,) = (each for each in events if each["name"] == "mine::played")
    assert {each["args"]["External id"] for each in launches} == {operator["args"]["External id"]}
    names = Counter(each["args"]["kernel"] for each in launches)
    assert names == {"vadd(float*)": 10, "fail(float*)": 2, "other(float*)": 1}
    # one did not return: its duration is unknown
    assert next(each["dur"] for each in launches if "fail" in each["args"]["kernel"]) == 0
    assert sum(each["dur"] > 0 for each in launches) == 12


COUNTED = (
    ACCELERATED
    + """
with profile() as profiled:
    launch(2)
    x + 1
rows = {each.key: each.count for each in profiled.key_averages()}
print(sum(count for key, count in rows.items() if key.startswith("scale")), rows["aten::add"])
assert torch.autograd.profiler._prepare_profiler is torch._C._autograd._prepare_profiler
"""
)


@pytest.mark.parametrize(
    ("options", "environment", "line"),
    [
        (("--set", "torch.kineto=no"), {}, None),
        (("--profile-from-start=off",), {}, None),
        (
            (),
            {"CXX": "false"},
            "torch.profiler does not show PASTA's records: the C++ compiler failed",
        ),
    ],
)
def test_profiler_is_unchanged_without_records(
    tmp_path: Path, accelerator, options: tuple[str, ...], environment: dict[str, str],
    line: str | None,
) -> None:  # fmt: skip
    if environment:
        environment = {**environment, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = run(tmp_path, accelerator, COUNTED, options=(*TORCH, *options), **environment)
    assert done.stdout == "0 1\n"
    written = [each for each in done.lines if each.startswith("torch.profiler")]
    assert [each[: len(line or "")] for each in written] == ([line] if line else [])
