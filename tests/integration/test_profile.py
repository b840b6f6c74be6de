"""`pasta.profile` without PyTorch: blocks of programs under pasta-preload, and of plain ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.preload import EMBED_NOW, base_environment, wait_until

CONSUMERS = {"afterwards": (), "embedded": EMBED_NOW, "collector": ("--collector",)}

LAUNCHES = """
import json, os, time
import pasta
def launches(run):
    return sum(run.arrow("kernel_freq")["launches"].to_pylist())
launch(5)
if "wait" in sys.argv:
    time.sleep(1)  # for the consumer
found = []
for count in (7, 2):
    with pasta.profile("kernel_freq") as run:
        launch(count)
    found.append((launches(run), list(run.manifest["devices"]), run.manifest["command"][-1]))
    launch(3)
print(json.dumps([found, pasta.is_active(), run.manifest["ended"]["text"]]))
"""


@pytest.mark.parametrize("start", ["on", "off"])
@pytest.mark.parametrize("consumer", CONSUMERS)
def test_launches_of_blocks(pasta_preload, python_program, consumer: str, start: str) -> None:
    path, options = python_program(LAUNCHES), CONSUMERS[consumer]
    waits = ["wait"] if options else ["at once"]
    done = pasta_preload(
        sys.executable, path, *waits, options=(*options, f"--profile-from-start={start}")
    )
    assert done.exit_status == 0, done.stderr
    found, active, ended = json.loads(done.stdout)
    assert found == [[7, ["0"], waits[0]], [2, ["0"], waits[0]]]
    assert (active, ended) == (start == "on", "a block of the program")
    assert done.run.launches == (20 if start == "on" else 9)
    assert done.run.consumer == consumer
    assert done.notes == []


OUTSIDE_WINDOWS = """
import pasta
launch(5)
pasta.step()
launch(3)  # the window is closed
with pasta.profile("kernel_freq") as run:
    launch(7)
    pasta.step()
    launch(2)
launch(3)
print(sum(run.arrow("kernel_freq")["launches"].to_pylist()), pasta.is_active())
"""


def test_blocks_outside_of_windows(pasta_preload, python_program) -> None:
    path = python_program(OUTSIDE_WINDOWS)
    done = pasta_preload(sys.executable, path, options=("--window", "steps 1/1000"))
    assert (done.exit_status, done.stdout) == (0, "9 False\n"), done.stderr
    assert done.run.launches == 14


MARKS = """
import pasta
launch(1)
for _ in range(2):
    with pasta.profile("marks.py") as run:
        for _ in range(600_000):
            pasta.mark("x")
    print(run.arrow("marks")["marks"].to_pylist(), run.manifest["dropped"], run.failures)
"""
COUNTING = """
from pasta.tool import Result, Table, Tool
class Marks(Tool):
    def start(self): self.count = 0
    def on_ranges(self, ranges): self.count += len(ranges)
    def result(self): return Result("", {"marks": Table({"marks": [self.count]})})
"""


@pytest.mark.parametrize("consumer", ["embedded", "collector"])
def test_more_events_than_the_ring_holds(pasta_preload, python_program, consumer: str) -> None:
    """Events that the run's own consumer has processed stay in the ring until the block's reader
    has read them."""
    (pasta_preload.directory / "marks.py").write_text(COUNTING)
    options = (*CONSUMERS[consumer], "--set=ring.max=40MiB")
    done = pasta_preload(sys.executable, python_program(MARKS), options=options)
    assert done.stdout == "[600000] {} {}\n" * 2, done.stderr
    assert done.run.count("mark") == 1_200_000
    assert done.run.manifest["dropped"] == {}


@pytest.mark.main
def test_unfollowed_process(pasta_preload, python_program) -> None:
    path = python_program("""
import subprocess, sys
if sys.argv[1:]:
    import pasta
    with pasta.profile("kernel_freq"):
        pass
launch(1)
done = subprocess.run([sys.executable, __file__, "child"], stderr=subprocess.PIPE, text=True)
print(done.stderr.splitlines()[-1])
""")
    done = pasta_preload(sys.executable, path, options=("--no-children",))
    assert done.stdout == (
        "pasta.errors.RunError: this process is not profiled: pasta-preload was configured"
        " not to follow it, or has printed why\n"
    )


# ---- without pasta-preload


def plain(text: str, directory: Path) -> list[str]:
    """Output lines of a program that imports pasta."""
    temporary = directory / "temporary"
    temporary.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import pasta, os, sys\n{text}"],
        env={**base_environment(), "TMPDIR": str(temporary)}, capture_output=True, text=True,
        timeout=60, cwd=directory,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    wait_until(lambda: not list(temporary.iterdir()), "temporary directories are removed")
    return done.stdout.splitlines()


SHIM = """
before = dict(os.environ)
for number in range(3):
    with pasta.profile("event_trace") as run:
        assert pasta.is_active()
        with pasta.range(f"block {number}"):
            pasta.mark("inside")
    pasta.mark("outside")
    path = run.path
    print(run.manifest["recorded"], path.exists(), pasta.is_active(), run.summary("event_trace"))
del run
print(path.exists(), before == dict(os.environ), "REFACC_INJECTION_PATH" in os.environ)
import subprocess
print(subprocess.run(["env"], capture_output=True, text=True).stdout.count("libpasta"))
"""


def test_annotations_of_a_plain_program(tmp_path: Path) -> None:
    *blocks, gone, children = plain(SHIM, tmp_path)
    assert len(blocks) == 3
    for line in blocks:
        assert "'mark': 1" in line and "'range_push': 1" in line and "'range_pop': 1" in line
        assert "} True False " in line
    assert (gone, children) == ("False True False", "0")


REFUSED = {
    'pasta.profile("kernel_freq").__enter__()':
        "tool kernel_freq needs GPU events: start the program with pasta-preload",
    'pasta.profile("hotness")':
        "tool hotness has probes, which are compiled before the program starts: "
        "pasta-preload -t hotness --profile-from-start=off, and pasta.start()",
    'sys.modules["torch"] = None; pasta.profile().__enter__()':
        "tool kernel_freq needs GPU events: start the program with pasta-preload",
    'sys.modules["torch"] = None; pasta.profile("operators").__enter__()':
        "tool operators needs PyTorch, which cannot be imported (import of torch halted; None in "
        "sys.modules): pip install torch",
    'pasta.profile("operatros")':
        "there is no tool 'operatros': did you mean operators?",
    'pasta.profile("operators", settings={"ring.max": "1GiB"})':
        "pasta.profile: ring.max applies to the whole program, not to a block: "
        "pasta-preload --set ring.max=…",
    'pasta.profile("operators", settings={"torch.frame": 5})':
        "pasta.profile: unknown key 'torch.frame': did you mean torch.frames",
    'pasta.profile("operators", settings={"torch.frames": "x"})':
        "pasta.profile: torch.frames = 'x' is not a whole number, 0 or more",
    'pasta.profile("operators", settings={"operators.top": 0})':
        "pasta.profile: tool operators: top = 0 is not accepted: use an integer, at least 1",
    'pasta.profile(config="nowhere")': "unknown preset 'nowhere'",
    'pasta.profile("operators", out="/etc/passwd/x")':
        "/etc/passwd/x: /etc/passwd is not a directory: use another directory in out=",
    'pasta.profile("operators", out="run-%z")': "run.out = 'run-%z': unknown placeholder %z",
}  # fmt: skip


def test_rejected_settings(tmp_path: Path) -> None:
    """The error is one line, and the next block works."""
    attempts = "\n".join(
        f"try:\n    {code}\nexcept pasta.errors.PastaError as error:\n    print(error)"
        for code in REFUSED
    )
    trace = 'with pasta.profile("event_trace"): pass\nprint("works")'
    lines = plain(f"import pasta.errors\n{attempts}\n{trace}", tmp_path)
    assert len(lines) == len(REFUSED) + 1
    for line, expected in zip(lines, [*REFUSED.values(), "works"], strict=True):
        assert line.startswith(expected), line


def test_presets_and_files(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('tools = ["event_trace"]\n[run]\ntool-timeout = "7s"\n')
    (tmp_path / "runs").mkdir()
    lines = plain(
        """
with pasta.profile(config="mine.toml", out="runs/%n-%p") as run:
    os.chdir("/")
print(run.manifest["config"]["tool_timeout"], run.path.parent.name, os.listdir(run.path.parent))
print(pasta.load(run.path).tables())
""",
        tmp_path,
    )
    assert lines[0].startswith("7000 runs ['-c-") and "event_trace" in lines[1]


def test_programs_without_standard_streams(tmp_path: Path) -> None:
    code = 'import pasta\nwith pasta.profile("event_trace", out="run"): pass'
    done = subprocess.run(
        ["/bin/sh", "-c", f"'{sys.executable}' -c '{code}' <&- >&- 2>&-"],
        env=base_environment(), cwd=tmp_path, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0
    assert pq.read_schema(next((tmp_path / "run" / "results").glob("*/*.parquet"))) is not None


def test_lazy_imports() -> None:
    code = "import pasta, sys; print(sorted({'numpy', 'pyarrow', 'ctypes'} & set(sys.modules)))"
    done: Any = subprocess.run(
        [sys.executable, "-c", code], env=base_environment(), capture_output=True, text=True
    )
    assert done.stdout == "[]\n"
    assert "PASTA_SHIM" not in os.environ
