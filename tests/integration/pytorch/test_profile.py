"""`pasta.profile` in programs with PyTorch, started plainly and under pasta-preload."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.preload import base_environment, wait_until
from tests.support.pytorch import events, table

#: Prologue of every program: `calls` and `rows` of a run, and `say`, whose lines the test reads.
HEAD = """
import json, os, sys, threading, time, warnings
import torch, pasta
warnings.simplefilter("error")
def rows(run, *names):
    return run.arrow(*names).to_pylist()
def calls(run, name):
    return sum(row["calls"] for row in rows(run, "operators") if row["operator"] == name)
def say(*values):
    print(json.dumps(values), flush=True)
"""


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "program.py"
        path.write_text(HEAD + text)
        return path

    return write


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs a program that leaves nothing in shared memory or among temporary files."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    pids: list[int] = []
    former = set(Path("/dev/shm").glob("pasta-*"))  # of killed processes, whose pids come again

    def run(path: Path) -> subprocess.CompletedProcess[str]:
        process = subprocess.Popen(
            [sys.executable, path], env={**base_environment(), "TMPDIR": str(temporary)}, text=True,
            cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        pids.append(process.pid)
        with process:
            output = process.communicate(timeout=100)
        return subprocess.CompletedProcess(process.args, process.returncode, *output)

    def sessions() -> list[Path]:
        own = (Path("/dev/shm").glob(f"pasta-{os.getuid()}-{pid}-*") for pid in pids)
        return [found for each in own for found in each if found not in former]

    yield run
    wait_until(lambda: not list(temporary.glob("pasta-*")), "temporary directories are removed")
    wait_until(lambda: not sessions(), "sessions are removed")


def said(done: Any) -> list[Any]:
    assert "Traceback" not in done.stderr, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


WAYS = {
    "plain": None,
    "torch": ("-c", "torch"),
    "other tools": ("-t", "kernel_freq", "--set=python.embed-delay=0", "--profile-from-start=off"),
}


@pytest.fixture(params=WAYS)
def start(request: pytest.FixtureRequest, plain: Any, pasta_preload: Any) -> Any:
    """Starts a program, plainly or under pasta-preload."""
    options = WAYS[request.param]
    if options is None:
        return plain
    return lambda path: pasta_preload(sys.executable, path, options=options)


BLOCKS = """
held = torch.empty(8 << 20, dtype=torch.uint8)
x = torch.ones(4, requires_grad=True)
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.ReLU()))
before = pasta.is_active()

# exactly what is in the block, whatever was before, and all that is in it
for _ in range(3):
    torch.relu(x)
for times in (7, 2, 0):
    with pasta.profile("operators") as run:
        for _ in range(times):
            torch.relu(x)
    torch.relu(x)
    say("calls", times, calls(run, "aten::relu"), calls(run, "aten::clamp_min"))

# lines, modules and parameters are recorded in every block
for _ in range(2):
    with pasta.profile() as run:
        net(x)
    modules = {row["module"]: row["calls"] for row in rows(run, "operators", "modules")}
    lines = {row["line"] for row in rows(run, "operators", "lines")}
    say("modules", modules["Sequential.0 (Linear)"], modules["Sequential.1.0 (ReLU)"],
        "program.py:%d <module>" % LINE in lines)

# threads, and the backward pass, which has its own
def work():
    for _ in range(50):
        torch.neg(x)
with pasta.profile("operators") as run:
    threads = [threading.Thread(target=work) for _ in range(4)]
    [each.start() for each in threads]
    [each.join() for each in threads]
    (x * 3).exp().sum().backward()
backward = {row["operator"]: row["calls"] for row in rows(run, "operators")
            if row["phase"] == "backward"}
say("threads", calls(run, "aten::neg"), backward["ExpBackward0"])

# the peak: three of five, and what took their place; what was there before is not of the block
with pasta.profile("tensors") as run:
    kept = [torch.empty(1 << 20, dtype=torch.uint8) for _ in range(5)]
    del kept[1], kept[1], held
    kept.append(torch.empty(3, 1 << 20, dtype=torch.uint8)[1:].t())
    del kept
say("peak", sorted((row["shape"], row["bytes"]) for row in rows(run, "tensors", "peak")),
    [(row["allocations"], row["bytes"]) for row in rows(run, "tensors", "patterns")])

# an exception goes on, and what ran is there
try:
    with pasta.profile("operators") as run:
        torch.relu(x)
        {}["nothing"]
except KeyError as error:
    say("exception", repr(error), calls(run, "aten::relu"))

# no nesting, in no thread
messages = []
def nested():
    try:
        with pasta.profile("operators"):
            pass
    except pasta_errors.PastaError as error:
        messages.append(str(error))
import pasta.errors as pasta_errors
with pasta.profile("operators") as run:
    nested()
    thread = threading.Thread(target=nested)
    thread.start()
    thread.join()
    torch.relu(x)
say("nested", messages, calls(run, "aten::relu"))

# a block of another thread; stop and start in it
def other():
    with pasta.profile("operators") as found:
        torch.relu(x)
        pasta.stop()
        torch.relu(x)
        pasta.start()
        torch.relu(x)
    runs.append(found)
runs = []
thread = threading.Thread(target=other)
thread.start()
thread.join()
say("other thread", calls(runs[0], "aten::relu"))

# settings, annotations
with pasta.profile("operators", settings={"torch.stacks": False, "operators.top": 1}) as run:
    torch.relu(x)
say("settings", run.manifest["config"]["torch_stacks"], run.manifest["config"]["tool_options"])
say("active", before == pasta.is_active())
"""
BLOCKS = BLOCKS.replace(
    "LINE", str((HEAD + BLOCKS).splitlines().index("        net(x)") + 1)
)  # where it is called


def test_blocks(start: Any, program: Any) -> None:
    done = start(program(BLOCKS))
    found = said(done)
    nested = "another block is being profiled, and blocks cannot be nested: "
    assert found[:3] == [["calls", times, times, times] for times in (7, 2, 0)]
    assert found[3:5] == [["modules", 1, 1, True]] * 2
    assert found[5] == ["threads", 200, 1]
    assert found[6] == [
        "peak", [["1048576", 1 << 20]] * 3 + [["3,1048576", 3 << 20]],
        [[5, 5 << 20], [1, 3 << 20]],
    ]  # fmt: skip
    assert found[7] == ["exception", "KeyError('nothing')", 1]
    assert found[8] == ["nested", [nested + "end it first; a block covers all threads"] * 2, 1]
    assert found[9] == ["other thread", 2]
    assert found[10] == ["settings", False, {"operators": {"top": 1}}]
    assert found[11] == ["active", True]


RUN_AND_BLOCK = """
net = torch.nn.Linear(4, 4)
x = torch.ones(4)
for _ in range(3):
    net(x)
with pasta.profile("operators", settings={"torch.stacks": False}) as run:
    for _ in range(2):
        net(x)
say(calls(run, "aten::linear"), [row["module"] for row in rows(run, "operators", "modules")])
net(x)
held = torch.empty(1 << 20, dtype=torch.uint8)
"""


def test_block_does_not_change_the_enclosing_run(pasta_preload: Any, program: Any) -> None:
    done = pasta_preload(sys.executable, program(RUN_AND_BLOCK), options=("-c", "torch"))
    assert said(done) == [[2, ["Linear"]]]  # the run's own settings remain in effect
    modules = {row["module"]: row["calls"] for row in table(done.run, "operators", "modules")}
    assert modules["Linear"] == 6
    assert sum(row["name"] == "aten::linear" for row in events(done.run, "operator_begin")) == 6
    peak = table(done.run, "tensors", "peak")
    assert [row["shape"] for row in peak if row["bytes"] == 1 << 20] == ["1048576"]
    assert sum(row["category"] == "parameter" for row in peak) == 2


FORK = """
x = torch.ones(4)
with pasta.profile() as run:
    torch.relu(x)
    child = os.fork()
    if not child:
        torch.relu(x)
if not child:
    try:
        run.tables()
    except pasta.errors.PastaError as error:
        say(str(error).replace(str(os.getppid()), "PARENT"))
    try:
        with pasta.profile("operators"):
            pass
    except pasta.errors.PastaError as error:
        say(str(error).replace(str(os.getppid()), "PARENT"))
    sys.exit(3)
say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), calls(run, "aten::relu"))
try:
    os.wait()  # what PASTA has started is no child of the program's
except ChildProcessError:
    say("no child")
with pasta.profile("operators") as run:
    torch.relu(x)
say(calls(run, "aten::relu"), os.path.isdir(run.path))
"""


def test_fork_in_a_block(plain: Any, program: Any) -> None:
    done = plain(program(FORK))
    assert said(done) == [
        ["the block was profiled in process PARENT"],
        ["process PARENT had profiled a block before this process was forked from it: use the start"
         " method spawn, or start the program with pasta-preload"],
        [3, 1], ["no child"], [1, True],
    ]  # fmt: skip
    assert done.returncode == 0


def test_fork_under_pasta_preload(pasta_preload: Any, program: Any) -> None:
    """The child has its own ring, and can profile blocks."""
    path = program("""
x = torch.ones(4)
with pasta.profile("operators") as run:
    torch.relu(x)
    child = os.fork()
if not child:
    with pasta.profile("operators") as run:
        torch.relu(x), torch.relu(x)
    lines = [row["line"] for row in rows(run, "operators", "lines") if row["calls"]]
    say(calls(run, "aten::relu"), lines)
    os._exit(0)
say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), calls(run, "aten::relu"))
""")
    done = pasta_preload(sys.executable, path, options=("-c", "torch"))
    line = path.read_text().splitlines().index("        torch.relu(x), torch.relu(x)") + 1
    assert said(done) == [[2, [f"program.py:{line} <module>"]], [0, 1]]


BESIDE_TORCH = """
import ctypes
x = torch.ones(300, 300)
with pasta.profile("operators", "tensors") as run:
    with torch.profiler.profile(profile_memory=True) as profile:
        x @ x
found = {each.key: each for each in profile.key_averages()}
say(found["aten::mm"].count, found["aten::mm"].self_cpu_memory_usage, calls(run, "aten::mm"))
with torch.profiler.profile(profile_memory=True):
    with pasta.profile("operators", "tensors") as run:
        x @ x
say(calls(run, "aten::mm"), rows(run, "tensors", "peak")[0]["bytes"])

# what allocators of devices report to torch's profiler; there is none here, so a report is made up
torch.version.cuda = "13.0"
c10 = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so"))
report = c10._ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE
def allocate(address, bytes, allocated, reserved):
    CUDA, index = 1, 2
    report(ctypes.c_void_p(address), ctypes.c_int64(bytes), ctypes.c_size_t(allocated),
           ctypes.c_size_t(reserved), ctypes.c_uint16(CUDA | index << 8))
allocate(4096, 1 << 30, 1 << 30, 1 << 30)
for _ in range(2):
    with pasta.profile("tensors") as run:
        allocate(8192, 512, 512, 2048)
        allocate(16384, 1024, 1536, 2048)
        allocate(16384, -1024, 512, 2048)
        torch.autograd._profiler_enabled()
        held = x + 1
    allocate(32768, 1 << 30, 1 << 30, 1 << 30)
    say(sorted((row["device"] or -1, row["bytes"]) for row in rows(run, "tensors", "peak")
               if row["bytes"] > 100),
        "2.00 KiB reserved by the allocator" in run.summary("tensors"))
with torch.profiler.profile():  # the place is free again
    x + 1
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with torch.profiler.profile():
        with pasta.profile("tensors") as run:
            held = x + 1
say([(str(each.message), each.filename == __file__) for each in caught])

torch.cuda.is_initialized = lambda: True
for expected in (1, 0):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pasta.profile("operators") as run:
            x + 1
    say([str(each.message) for each in caught])
"""


def test_together_with_torchs_profiler_and_devices(plain: Any, program: Any) -> None:
    found = said(plain(program(BESIDE_TORCH)))
    assert found[0] == [1, 360_000, 1]
    assert found[1] == [1, 360_000]
    assert found[2] == found[3] == [[[-1, 360_000], [2, 512], [2, 1024]], True]
    assert found[4] == [
        [["pasta.profile: not followed: memory of devices: torch's profiler is active", True]]
    ]
    assert found[5:] == [
        [["pasta.profile: GPU kernels and copies are not followed: "
          "start the program with pasta-preload"]], [[]],
    ]  # fmt: skip


NOTEBOOK = """
def say(*values):
    print("@" + json.dumps(values))
os.environ.pop("VIRTUAL_ENV", None)  # of another one than this, IPython would warn
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
def cell(text):
    done = shell.run_cell(text)
    return done.result if done.success else repr(done.error_in_exec)
cell("import torch, pasta; x = torch.ones(4)")
for _ in range(3):
    cell('''with pasta.profile("operators") as run:
    for _ in range(4):
        torch.relu(x)''')
    frame = cell("run['operators']")
    counts = dict(zip(frame["operator"], frame["calls"].tolist()))
    line = cell("run['operators', 'lines']")["line"][0]
    say(counts["aten::relu"], line.endswith(":3 <module>"))
error = cell('''with pasta.profile("operators") as run:
    torch.relu(x)
    1 / 0''')
data, _ = shell.display_formatter.format(cell("run"))
say(error, "aten::relu" in data["text/html"], "aten::relu" in data["text/plain"])
"""


def test_notebook_cells(plain: Any, program: Any) -> None:
    pytest.importorskip("IPython")
    pytest.importorskip("pandas")
    done = plain(program(NOTEBOOK))
    found = [json.loads(each[1:]) for each in done.stdout.splitlines() if each.startswith("@")]
    assert found == [
        *[[4, True]] * 3, ["ZeroDivisionError('division by zero')", True, True],
    ], done.stdout + done.stderr  # fmt: skip


FAILING = """
import signal
from pathlib import Path
x = torch.ones(4)
with pasta.profile("operators") as run:
    torch.relu(x)

def readers():
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\\0")
        except OSError:
            continue
        if str(os.getpid()).encode() in words and b"block_reader" in b" ".join(words):
            yield int(entry.parent.name)
reader, = readers()
try:
    with pasta.profile("operators") as run:
        torch.relu(x)
        os.kill(reader, signal.SIGKILL)
except pasta.errors.PastaError as error:
    say("killed", str(error).partition(" (")[0], str(run).partition(" (")[0])
with pasta.profile("operators") as run:
    torch.relu(x)
say("next", calls(run, "aten::relu"))

# an interrupt while results are waited for
reader, = readers()
os.kill(reader, signal.SIGSTOP)
threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
try:
    with pasta.profile("operators") as run:
        torch.relu(x)
except KeyboardInterrupt:
    say("interrupted", str(run))
os.kill(reader, signal.SIGCONT)
with pasta.profile("operators") as run:
    torch.relu(x)
say("next", calls(run, "aten::relu"))

# failing tools and unwritable output are reported
Path("mine.py").write_text('''
from pasta.tool import Result, Tool
class Mine(Tool):
    def on_operators(self, operators):
        raise ValueError("no")
''')
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with pasta.profile("operators", "mine.py", out="named") as run:
        torch.relu(x)
say("tool", [str(each.message) for each in caught], calls(run, "aten::relu"), run.path.name,
    [each for each in os.listdir() if each.startswith((".", "named"))])
try:
    pasta.profile("operators", out="named")
except pasta.errors.PastaError as error:
    say("exists", str(error))
with pasta.profile("operators", out="named", settings={"run.force": True}) as run:
    torch.relu(x), torch.relu(x)
say("again", calls(pasta.load("named"), "aten::relu"))
sys.exit(7)
"""


def test_failures_are_reported(plain: Any, program: Any) -> None:
    done = plain(program(FAILING))
    mine = "pasta.profile: tool mine was disabled: ValueError: no (in on_operators)"
    assert said(done) == [
        ["killed", "the reader of blocks ended", "the reader of blocks ended"], ["next", 1],
        ["interrupted", "the block was interrupted while its results were written"], ["next", 1],
        ["tool", [mine], 1, "named", ["named"]],
        ["exists", 'named exists: use another directory in out=, or set {"run.force": True}'],
        ["again", 2],
    ]  # fmt: skip
    assert done.returncode == 7


@pytest.mark.parametrize(
    ("end", "status"),
    [("sys.exit(5)", 5), ("os._exit(6)", 6), ("os.kill(os.getpid(), 9)", -9),
     ("threading.Thread(target=time.sleep, args=[9], daemon=True).start(); raise KeyError(1)", 1)],
    ids=["exit", "_exit", "kill", "exception"],
)  # fmt: skip
def test_program_ends_in_a_block(plain: Any, program: Any, end: str, status: int) -> None:
    done = plain(
        program(f"""
with pasta.profile() as run:
    held = torch.ones(4)
    {end}
""")
    )
    assert (done.returncode, done.stdout) == (status, "")
    assert ("KeyError: 1" in done.stderr) == (status == 1)
