"""Faults of tools, disks and shared memory: the program is unaffected, recorded data is kept, and
the report lists what is missing."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pasta.run.failures import failure_lines
from tests.support.preload import EMBED_NOW, wait_until

PROGRAM = """
int main(int n, char **a) {
    (void)a;
    launch(30);
    if (n == 1) wait_for_consumer();
    launch(10);
    puts("output");
    return 3;
}"""
#: Every way of consuming, the options and the program's argument that lead to it.
WAYS = {
    "afterwards": ((), ("brief",)),
    "embedded": (EMBED_NOW, ()),
    "collector": (("--collector",), ()),
}

FAULTY = {
    "in a handler": (
        "def on_launches(self, launches): raise KeyError('mine')",
        "on_launches",
        "KeyError: 'mine'",
    ),
    "in result": ("def result(self): raise KeyError('mine')", "result", "KeyError: 'mine'"),
    "exits in a handler": (
        "def on_launches(self, launches): sys.exit(5)",
        "on_launches",
        "SystemExit: 5",
    ),
    "exits in result": ("def result(self): sys.exit(5)", "result", "SystemExit: 5"),
    "no result": (
        "def result(self): return 5",
        "result",
        "TypeError: result() must return a pasta.tool.Result, not int",
    ),
    "in start": ("def start(self): raise KeyError('mine')", "start", "KeyError: 'mine'"),
    "endless handler": (
        "def on_launches(self, launches):\n        while True: pass",
        "on_launches",
        "did not return within 1 s (run.tool-timeout)",
    ),
    "endless result": (
        "def result(self):\n        while True: pass",
        "result",
        "did not return within 1 s (run.tool-timeout)",
    ),
    "catches everything": (
        "def result(self):\n"
        "        while True:\n"
        "            try: time.sleep(1)\n"
        "            except Exception: pass",
        "result",
        "did not return within 1 s (run.tool-timeout)",
    ),
}


def tool(directory: Path, body: str) -> str:
    path = directory / "faulty.py"
    path.write_text(
        "import os, sys, time\n"
        "from pasta.tool import Result, Tool\n"
        "class Faulty(Tool):\n"
        "    'Fails.'\n"
        f"    {body}\n"
        + ("" if "def result" in body else "    def result(self): return Result()\n")
    )
    return str(path)


#: Handlers run in the consumer's process; results are always computed in a collector.
CASES = [
    (fault, way)
    for fault, (_, where, _) in FAULTY.items()
    for way in WAYS
    if where != "result" or way == "afterwards"
]
CASES.remove(("endless handler", "embedded"))  # see test_endless_handler_in_the_program


@pytest.mark.parametrize(("fault", "way"), CASES)
def test_faulty_tool(pasta_preload, compile_c, tmp_path: Path, fault: str, way: str) -> None:
    """It is disabled and named, with its traceback in the log; other tools' results are
    complete."""
    body, where, reason = FAULTY[fault]
    options, arguments = WAYS[way]
    done = pasta_preload(
        compile_c(PROGRAM), *arguments,
        options=(
            *options, "-t", tool(tmp_path, body), "-t", "kernel_freq",
            "--set", "run.tool-timeout=1s",
        ),
    )  # fmt: skip
    assert (done.exit_status, done.stdout, done.target_stderr) == (3, "output\n", "")
    run = done.run
    assert run.launches == 40
    assert run.consumer == way
    failure = run.manifest["failures"]["faulty"]
    assert failure["where"] == where
    assert reason in failure["reason"]
    assert next(failure_lines(run.manifest)) in re.sub(r"\s+", " ", " ".join(done.lines))
    assert fault == "no result" or re.search(r"/faulty\.py:\d+$", failure["place"])
    assert "Traceback (most recent call last)" in run.log
    assert fault == "no result" or "faulty.py" in run.log
    assert "kernel_freq: 40 launches" in run.report


def test_endless_handler_in_the_program(pasta_preload, compile_c, tmp_path: Path) -> None:
    """The program exits in time, and a collector, which enforces the time limit, takes over."""
    body, where, reason = FAULTY["endless handler"]
    done = pasta_preload(
        compile_c("int main(void) { launch(40); sleep_ms(1500); return 3; }"),
        options=(
            *EMBED_NOW, "-t", tool(tmp_path, body), "-t", "kernel_freq",
            "--set", "run.tool-timeout=1s", "--set", "python.exit-timeout=200ms",
        ),
    )  # fmt: skip
    assert done.exit_status == 3
    assert done.run.launches == 40
    failure = done.run.manifest["failures"]["faulty"]
    assert (failure["where"], reason in failure["reason"]) == (where, True)


def test_tool_that_cannot_be_made(pasta_preload, tmp_path: Path) -> None:
    """Before the program is started."""
    body = "def __init__(self, options=None): raise KeyError('mine')"
    done = pasta_preload("echo", "never", options=("-t", tool(tmp_path, body)))
    assert (done.exit_status, done.stdout) == (2, "")
    assert len(done.lines) == 1
    assert "faulty" in done.lines[0]
    assert "KeyError: 'mine'" in done.lines[0]


def test_tool_that_cannot_be_pickled(pasta_preload, compile_c, tmp_path: Path) -> None:
    """Its state cannot leave the program: the collector recomputes it, without loss for any
    tool."""
    body = (
        "count = 0\n"
        "    def start(self): self.lock = __import__('threading').Lock()\n"
        "    def on_launches(self, launches): self.count += len(launches)\n"
        "    def result(self): return Result(summary=f'{self.count} counted')\n"
    )
    for way, (options, arguments) in WAYS.items():
        options = (*options, "-t", tool(tmp_path, body), "-f", "-o", "pasta-out/r")
        done = pasta_preload(compile_c(PROGRAM), *arguments, options=options)
        assert done.run.consumer == way
        assert done.run.manifest["failures"] == {}
        assert "faulty: 40 counted" in done.run.report


def test_tool_whose_state_cannot_be_read(pasta_preload, compile_c, tmp_path: Path) -> None:
    """A state that cannot be restored is recomputed, for all tools."""
    body = (
        "count = 0\n"
        "    def on_launches(self, launches): self.count += len(launches)\n"
        "    def __setstate__(self, state): raise KeyError('mine')\n"
        "    def result(self): return Result(summary=f'{self.count} counted')\n"
    )
    options = (*EMBED_NOW, "-t", tool(tmp_path, body), "-t", "kernel_freq")
    run = pasta_preload(compile_c(PROGRAM), options=options).run
    assert (run.consumer, run.manifest["failures"], run.launches) == ("embedded", {}, 40)
    assert "faulty: 40 counted" in run.report
    assert "kernel_freq: 40 launches" in run.report
    assert "state of faulty cannot be restored; replaying" in run.log


def test_tools_that_fail_only_in_the_collector(
    pasta_preload, pasta, compile_c, tmp_path: Path
) -> None:
    """One cannot be loaded there, one leaves a thread behind and something to do at the end of its
    process: both are disabled and reported, also with -q."""
    (tmp_path / "absent.py").write_text(
        "import sys\n"
        "if 'pasta.runtime.collector' in ' '.join(sys.orig_argv): import nothing_of_that_name\n"
        "from pasta.tool import Result, Tool\n"
        "class Absent(Tool): 'Is not there.'\n"
    )
    body = (
        "def result(self):\n"
        "        import atexit, pathlib, threading\n"
        f"        atexit.register(pathlib.Path({str(tmp_path / 'ended')!r}).touch)\n"
        "        threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "        self.name = {}\n"
        "        return Result('', files={'x': lambda file: sys.exit(1)})"
    )
    tools = ("-t", str(tmp_path / "absent.py"), "-t", tool(tmp_path, body), "-t", "kernel_freq")
    done = pasta_preload(compile_c(PROGRAM), "brief", options=("-q", *tools))
    assert (done.exit_status, done.stdout, done.target_stderr) == (3, "output\n", "")
    run = done.run
    assert "kernel_freq: 40 launches" in run.report
    failures = run.manifest["failures"]
    assert {name: each["where"] for name, each in failures.items()} == {
        "absent": "loading", "faulty": "writing its result",
    }  # fmt: skip
    lines = [re.sub(r"^process \d+: ", "", line) for line in done.lines]
    assert lines == list(failure_lines(run.manifest))
    assert f"{tmp_path}/absent.py:2: ModuleNotFoundError" in failures["absent"]["reason"]
    assert pasta("report", run.path).returncode == 1
    assert (tmp_path / "ended").exists()


@pytest.mark.main
def test_tool_that_ends_its_process(pasta_preload, compile_c, tmp_path: Path) -> None:
    """os._exit in a collector: the events are kept, and a line gives their location and the
    remedy."""
    body = "def result(self): os._exit(66)"
    done = pasta_preload(compile_c(PROGRAM), "brief", options=("-t", tool(tmp_path, body)))
    pasta_preload.may_leave_sessions = True
    assert (done.exit_status, done.stdout, done.target_stderr) == (3, "output\n", "")
    assert done.runs == []
    (line,) = done.lines
    assert re.fullmatch(
        r"the run of process \d+ could not be finished \(status 66\); its events are kept in "
        r"/\S+/rings/\d+-0, the log is /\S+/log.txt; try again with: pasta recover",
        line,
    )
    (session,) = pasta_preload.sessions()
    assert (session / "log.txt").exists()


def test_recover_with_a_fixed_tool(pasta_preload, pasta, compile_c, tmp_path: Path) -> None:
    path = Path(tool(tmp_path, "def result(self): os._exit(66)"))
    done = pasta_preload(
        compile_c(PROGRAM), "brief", options=("-t", str(path), "-t", "kernel_freq")
    )
    assert done.runs == []
    (session,) = pasta_preload.sessions()
    path.write_text(path.read_text().replace("os._exit(66)", "return Result(summary='mended')"))
    recovered = pasta("recover", os.path.relpath(session, tmp_path))
    assert recovered.returncode == 0, recovered.stdout
    assert done.run.launches == 40
    assert "faulty: mended" in done.run.report
    assert done.run.ended == "exited with 3"


def test_tool_that_writes_to_descriptors(pasta_preload, compile_c, tmp_path: Path) -> None:
    """Below Python's print: in a collector descriptors refer to the log."""
    body = "def on_launches(self, launches): os.write(1, b'raw out\\n'); os.write(2, b'raw err\\n')"
    for way in ("afterwards", "collector"):
        options, arguments = WAYS[way]
        options = (*options, "-t", tool(tmp_path, body), "-f", "-o", "pasta-out/r")
        done = pasta_preload(compile_c(PROGRAM), *arguments, options=options)
        assert (done.stdout, done.target_stderr) == ("output\n", "")
        assert "raw out\nraw err\n" in done.run.log


# ---- filters


def test_regex_without_matches(pasta_preload, compile_c) -> None:
    done = pasta_preload(compile_c(PROGRAM), "brief", options=("-k", "gemm"))
    assert done.exit_status == 3
    note = "the filter selected none of 40 launches; launched kernels: scale"
    assert note in re.sub(r"\s+", " ", " ".join(done.lines))
    assert done.run.manifest["launches"] == {"seen": 40, "selected": 0}


# ---- full disks and shared memory


def fill(place: Path, leave: int = 0) -> Path:
    """A file that takes all space except `leave` bytes."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            file.truncate(file.tell() - leave)
    return ballast


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m,mode=777", "tmpfs", str(place)]
    try:
        failed = subprocess.run(mount, capture_output=True).returncode
    except OSError:
        failed = 1
    if failed:
        pytest.skip("no file system can be mounted here: not root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


FAST = 'int main(void) { for (int i = 0; i < %d; i++) launch(1000); puts("output"); return 3; }'


@pytest.mark.parametrize("way", ["afterwards", "collector"])
def test_full_disk(pasta_preload, compile_c, small_disk: Path, way: str) -> None:
    """Results are complete, or the events are kept; the program does not notice."""
    fill(small_disk, leave=100 << 10)
    options, _ = WAYS[way]
    done = pasta_preload(
        compile_c(FAST % 40), options=(*options, "-o", str(small_disk / "out" / "run"))
    )
    assert (done.exit_status, done.stdout, done.target_stderr) == (3, "output\n", "")
    said = re.sub(r"\s+", " ", " ".join(done.lines))
    assert "No space left on device" in said
    run = small_disk / "out" / "run"
    if (run / "run.json").exists():
        assert "events could not be recorded" in said
        assert "kernel_freq: 40,000 launches" in said
    else:
        pasta_preload.may_leave_sessions = True
        assert "could not be" in said
        assert pasta_preload.sessions(), "the events must be kept"


@pytest.mark.main
def test_full_disk_and_recovery(pasta_preload, pasta, compile_c, small_disk: Path) -> None:
    """No directory can be created; after space is freed, recovery completes the run."""
    ballast = fill(small_disk)
    done = pasta_preload(compile_c(FAST % 1), options=("-o", str(small_disk / "out" / "run")))
    assert (done.exit_status, done.stdout) == (3, "output\n")
    assert "No space left on device" in " ".join(done.lines)
    sessions = pasta_preload.sessions()
    assert sessions, done.lines
    ballast.unlink()
    recovered = pasta("recover", *sessions)
    assert recovered.returncode == 0, recovered.stdout + recovered.stderr
    parts = (small_disk / "out" / "run" / "events").glob("kernel_launch-*.parquet")
    assert sum(pq.ParquetFile(part).metadata.num_rows for part in parts) == 1000


@pytest.mark.parametrize("way", ["afterwards", "collector"])
def test_full_shared_memory(pasta_preload, compile_c, small_disk: Path, way: str) -> None:
    """The ring keeps its size; dropped events are counted and reported."""
    options, _ = WAYS[way]
    done = pasta_preload(
        compile_c(FAST % 300), options=(*options, "--set", f"ring.directory={small_disk}")
    )
    assert (done.exit_status, done.stdout, done.target_stderr) == (3, "output\n", "")
    run = done.run
    lost = run.manifest["dropped"].get("kernel_launch", 0)
    assert run.launches + lost == 300_000
    if lost:
        assert any(line.startswith("the event ring cannot grow beyond ") for line in done.lines)
        lost_text = "events were lost because the event ring could not grow beyond"
        assert lost_text in re.sub(r"\s+", " ", run.report)


def test_the_program_fills_shared_memory(pasta_preload, compile_c, small_disk: Path) -> None:
    """Not the ring: what was kept for the files of launcher and collector is theirs at the end."""
    program = compile_c(
        r"""int main(int n, char **a) {
            static char piece[1 << 16];
            if (n < 2) return 1;
            launch(40);
            int file = open(a[1], O_WRONLY | O_CREAT, 0600);
            while (write(file, piece, sizeof piece) > 0) {
            }
            return 3;
        }"""
    )
    given = ("--set", f"ring.directory={small_disk}")
    done = pasta_preload(program, small_disk / "ballast", options=given)
    assert (done.exit_status, done.run.launches, done.run.ended) == (3, 40, "exited with 3")


def test_no_space_for_a_session(pasta_preload, small_disk: Path) -> None:
    fill(small_disk)
    done = pasta_preload("echo", "never", options=("--set", f"ring.directory={small_disk}"))
    assert (done.exit_status, done.stdout) == (2, "")
    (line,) = done.lines
    assert line.startswith(f"cannot create the session directory {small_disk}/pasta-")
    assert "(No space left on device): make room there" in line
    assert [path.name for path in small_disk.iterdir()] == ["ballast"]


def test_no_space_for_a_ring(pasta_preload, compile_c, small_disk: Path) -> None:
    fill(small_disk, leave=1 << 20)
    program = compile_c(PROGRAM)
    done = pasta_preload(program, "brief", options=("--set", f"ring.directory={small_disk}"))
    assert (done.exit_status, done.stdout, done.target_stderr) == (3, "output\n", "")
    (line,) = done.lines
    assert re.fullmatch(
        r"no memory for the event ring in \S+ \(No space left on device\): "
        r"this process is not profiled",
        line,
    )


@pytest.mark.parametrize("way", WAYS)
def test_ring_at_its_cap(pasta_preload, compile_c, way: str) -> None:
    """2 MiB for a fast producer: lost events are counted by kind, and every report lists them."""
    options, _ = WAYS[way]
    done = pasta_preload(compile_c(FAST % 300), options=(*options, "--set", "ring.max=2MiB"))
    assert (done.exit_status, done.stdout, done.target_stderr) == (3, "output\n", "")
    run = done.run
    lost = run.manifest["dropped"].get("kernel_launch", 0)
    assert run.launches + lost == 300_000
    total = sum(run.manifest["dropped"].values())
    if way == "afterwards":
        assert lost
    if total:
        report = re.sub(r"\s+", " ", run.report)
        assert f"{total:,} events were lost because the event ring was full: raise it" in report


# ---- the processes of PASTA


def collectors_of(launcher: int) -> list[int]:
    found = []
    for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        try:
            if b"pasta.runtime.collector" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
        except OSError:
            pass
    return found


@pytest.mark.main
def test_killed_collector(pasta_preload, pasta, compile_c) -> None:
    """The program continues, the events are kept, and `pasta recover` writes the run."""
    program = compile_c(
        r"""int main(void) {
            launch(30);
            wait_for_consumer();
            puts("ready");
            fflush(stdout);
            sleep_ms(700);
            launch(10);
            return 3;
        }"""
    )
    process = pasta_preload.popen(program, options=("--collector",))
    assert process.stdout.readline() == "ready\n"
    (collector,) = collectors_of(process.pid)
    os.kill(collector, 9)
    done = pasta_preload.finish(process)
    assert done.exit_status == 3
    if not done.runs:
        assert any("could not be finished (status -9)" in line for line in done.lines)
        recovered = pasta("recover", *pasta_preload.sessions())
        assert recovered.returncode == 0, recovered.stdout
    assert done.run.launches == 40
    assert done.run.ended == "exited with 3"


def test_recover_discards(pasta_preload, pasta, compile_c, tmp_path: Path) -> None:
    body = "def result(self): os._exit(66)"
    pasta_preload(compile_c(PROGRAM), "brief", options=("-t", tool(tmp_path, body)))
    (session,) = pasta_preload.sessions()
    discarded = pasta("recover", "--discard", session)
    assert (discarded.returncode, discarded.stdout) == (0, f"{session}: discarded\n")
    wait_until(lambda: not session.exists(), "the session is removed")
    pasta_preload.may_leave_sessions = True  # the unfinished run remains
