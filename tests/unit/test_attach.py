"""`pasta attach`: obstacles seen before the program is touched, debuggers, and calls on its main
thread."""

from __future__ import annotations

import importlib
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest

from pasta.errors import PastaError, RunError
from pasta.runtime import attach, attached, debugger
from pasta.runtime.processes import ProcessIdentity
from pasta.runtime.program import Program, examine

PID = 4711


class FakeProc:
    """A /proc with one program and this process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.status = {
            "Name": "python3.12", "State": "S (sleeping)", "Tgid": str(PID), "TracerPid": "0",
            "Uid": "1000\t1000\t1000\t1000", "CapEff": "0000000000000000", "Seccomp_filters": "1",
        }  # fmt: skip
        self.executable = directory / "bin" / "python3.12"
        self.content = b"\x7fELF\0Py_AddPendingCall\0"
        self.maps = "7f00-7f01 r-xp 00000000 08:01 42   /usr/lib/libc.so.6\n"
        self.namespace = "mnt:[1]"
        self.own = dict(self.status)
        self.yama: int | None = None

    def examine(self) -> Program:
        self.executable.parent.mkdir(exist_ok=True)
        self.executable.write_bytes(self.content)
        for pid, status, namespace in (
            (PID, self.status, self.namespace), (os.getpid(), self.own, "mnt:[1]"),
        ):  # fmt: skip
            process = self.directory / str(pid)
            (process / "ns").mkdir(parents=True)
            lines = "".join(f"{key}:\t{value}\n" for key, value in status.items())
            (process / "status").write_text(lines)
            (process / "maps").write_text(self.maps)
            (process / "cmdline").write_bytes(b"python\0train.py\0")
            (process / "environ").write_bytes(b"A=1\0RANK=3\0")
            (process / "exe").symlink_to(self.executable)
            (process / "ns" / "mnt").symlink_to(namespace)
            (process / "ns" / "pid").symlink_to("pid:[1]")
        if self.yama is not None:
            (self.directory / "sys/kernel/yama").mkdir(parents=True)
            (self.directory / "sys/kernel/yama/ptrace_scope").write_text(f"{self.yama}\n")
        return examine(PID, self.directory)


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def test_examined_program(proc: FakeProc) -> None:
    proc.own["Uid"] = proc.status["Uid"]
    program = proc.examine()
    assert program.command == ["python", "train.py"]
    assert program.environment == {"A": "1", "RANK": "3"}
    assert program.interpreter == str(proc.executable)
    assert program.minor == 12


def test_version_of_a_shared_library(proc: FakeProc) -> None:
    """In a program that embeds Python; its executable could not run other code."""
    proc.executable, proc.content = proc.directory / "bin" / "app", b"\x7fELF"
    proc.maps += "7f02-7f03 r-xp 00000000 08:01 43   /opt/py/lib/libpython3.14t.so.1.0\n"
    program = proc.examine()
    assert (program.minor, program.interpreter) == (14, None)


OBSTACLES: dict[str, Callable[[FakeProc], object]] = {
    f"{PID} is a thread of process 4000: pasta attach 4000":
        lambda proc: proc.status.update(Tgid="4000"),
    f"process {PID} has ended": lambda proc: proc.status.update(State="Z (zombie)"),
    f"process {PID} is stopped: kill -CONT {PID}":
        lambda proc: proc.status.update(State="T (stopped)"),
    f"process {PID} belongs to user 54321: run pasta attach as that user: sudo -u 54321 pasta"
    f" attach {PID}":
        lambda proc: proc.status.update(Uid="54321\t54321\t54321\t54321"),
    f"process {PID} runs in another container or namespace: run pasta attach inside":
        lambda proc: setattr(proc, "namespace", "mnt:[2]"),
    f"process {PID} has restricted its system calls (seccomp)":
        lambda proc: proc.status.update(Seccomp_filters="2"),
    f"this system does not let a process trace process {PID} (kernel.yama.ptrace_scope = 1): sudo"
    " sysctl kernel.yama.ptrace_scope=0":
        lambda proc: setattr(proc, "yama", 1),
    f"process {PID} (python3.12) does not run CPython: start the program with pasta-preload":
        lambda proc: setattr(proc, "content", b"\x7fELF"),
    f"process {PID} runs PyPy: PASTA attaches to CPython only":
        lambda proc: setattr(proc, "maps", "7f-80 r-xp 0 08:01 4 /opt/pypy/libpypy3-c.so\n"),
    f"process {PID} runs Python 3.6: PASTA attaches to Python 3.8 and newer":
        lambda proc: setattr(proc, "executable", proc.directory / "bin" / "python3.6"),
}  # fmt: skip


@pytest.mark.parametrize("message", OBSTACLES, ids=lambda message: message.split(":")[0][:50])
def test_obstacles(proc: FakeProc, message: str) -> None:
    OBSTACLES[message](proc)
    with pytest.raises(RunError) as raised:
        proc.examine()
    assert str(raised.value).startswith(message)


def test_traced_program(proc: FakeProc) -> None:
    proc.status["TracerPid"] = str(os.getpid())
    proc.own["Name"] = "strace"
    with pytest.raises(RunError, match=rf"is traced by process {os.getpid()} \(strace\)"):
        proc.examine()


@pytest.mark.parametrize("scope", [1, 2])
def test_privileged_user_ignores_yama(proc: FakeProc, scope: int) -> None:
    proc.yama = scope
    proc.own["CapEff"] = f"{1 << 19:016x}"
    assert proc.examine().minor == 12


def test_no_such_process(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="there is no process 4711: pgrep"):
        examine(PID, tmp_path)


# ---- debuggers -----------------------------------------------------------------------------------

SAFE = {
    "x86-64 system call": ("0x7f1:\t0x00\t0x00\t0x0f\t0x05", "#0 futex_wait ()\n#1 PyThread_x ()"),
    "AArch64 system call": ("0x7f1: 0x01 0x00 0x00 0xd4", "#0 __GI___poll ()"),
    "evaluating": ("0x7f1:\t0x48\t0x89\t0xe5\t0x90", "#0 _PyEval_EvalFrameDefault ()\n#1 main ()"),
    "in malloc": ("0x7f1:\t0x48\t0x89\t0xe5\t0x90", "#0 _int_malloc ()\n#1 PyObject_Malloc ()"),
}
UNSAFE = {
    "scheduling": ("0x7f1:\t0x48\t0x89\t0xe5\t0x90", "#0 _push_pending_call ()\n#1 x ()"),
    "taking the lock": ("0x7f1:\t0x48\t0x89\t0xe5\t0x90", "#0 sem_trywait ()\n#1 PyThread_x ()"),
    "taking a mutex": ("0x7f1:\t0x48\t0x89\t0xe5\t0x90", "#0 PyMutex_Lock ()"),
}


@pytest.mark.parametrize("where", [*SAFE, *UNSAFE])
def test_safe_stops(where: str) -> None:
    assert debugger._is_safe(*{**SAFE, **UNSAFE}[where]) == (where in SAFE)


def stand_in(directory: Path, code: str) -> debugger._Debugger:
    """A debugger with the commands of gdb that is a Python program; `answer(command)` prints."""
    script = directory / "gdb"
    script.write_text(
        f"#!{sys.executable}\nimport os, sys, time\n{code}\n"
        "for line in sys.stdin:\n"
        "    if line.startswith('echo'): print('--pasta--', flush=True)\n"
        "    elif line.strip(): answer(line.strip())\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return replace(debugger._DEBUGGERS[0], name=str(script), arguments=())


STOPPED = "if command.startswith('x/'): print('0x7f1:\\t0x00\\t0x00\\t0x0f\\t0x05')\n    "
TROUBLE = {
    "cannot be traced (gdb: ptrace: Operation not permitted.): in a container":
        "if command.startswith('attach'): print('ptrace: Operation not permitted.')",
    "has not started its Python": f"{STOPPED}elif 'Py_IsInitialized' in command: print('$1 = 0')",
    "gdb: No symbol \"Py_IsInitialized\" in current context.":
        f"{STOPPED}elif 'Py_Is' in command:"
        " print('No symbol \"Py_IsInitialized\" in current context.')",
    "gdb: Couldn't write extended state status: Bad address.: install a gdb that knows":
        f"{STOPPED}elif 'Py_Is' in command:"
        " print(\"Couldn't write extended state status: Bad address.\")",
    "gdb ended: Aborted": "if command.startswith('attach'): print('Aborted'); sys.exit(6)",
    "gdb did not answer within": "if command.startswith('attach'): time.sleep(100)",
    "holds locks that block the call: try again":
        "if command.startswith('x/'): print('0x7f1:\\t0x48\\t0x89\\t0xe5\\t0x90')\n"
        "    elif command.startswith('backtrace'): print('#0 _pop_pending_call ()')",
    "has no memory left": f"{STOPPED}elif 'mmap' in command: print('$2 = 18446744073709551615')\n"
        "    elif command.startswith('print'): print('$1 = 1')",
}  # fmt: skip


@pytest.mark.parametrize("message", TROUBLE)
def test_debugger_fails(message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debugger, "_SECONDS", 2.0 if "answer" in message else 60.0)
    monkeypatch.setattr(debugger, "_ENDING_SECONDS", 0.5)
    monkeypatch.setattr(debugger, "_TRIAL_SECONDS", 0.0)
    program = Program(ProcessIdentity(PID, 1), [], {}, None, 11)
    code = f"def answer(command):\n    {TROUBLE[message]}"
    dialogue = debugger._Dialogue(stand_in(tmp_path, code), program)
    with pytest.raises(PastaError) as raised, dialogue:
        dialogue.schedule(tmp_path / "entry.py")
    assert message in str(raised.value).replace(str(tmp_path / "gdb"), "gdb")
    assert dialogue.process.poll() is not None


def test_without_a_debugger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program = Program(ProcessIdentity(PID, 1), [], {}, None, 13)
    with pytest.raises(PastaError, match=r"neither gdb nor lldb was found.*apt install gdb"):
        debugger.run_in(program, tmp_path / "entry.py")


# ---- the program's side --------------------------------------------------------------------------


def test_entry_fits_a_page_and_leaves_no_names(tmp_path: Path) -> None:
    """Without a socket, as after Ctrl-C, it does nothing."""
    code = attach.entry(tmp_path / "gone")
    assert len(code.encode()) < 4096
    names: dict[str, object] = {}
    exec(code, names)
    assert set(names) == {"__builtins__"}


def from_another_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def run_python_code(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def test_call_on_the_main_thread() -> None:
    found: list[object] = []
    thread = from_another_thread(
        lambda: found.append(attached._on_main_thread(threading.current_thread))
    )
    while not found:
        time.sleep(0.001)
    thread.join()
    assert found == [threading.main_thread()]
    assert not attached._calls


def test_error_of_a_call_is_not_raised_in_the_program() -> None:
    found: list[str] = []

    def work() -> None:
        try:
            attached._on_main_thread(lambda: 1 / 0)
        except ZeroDivisionError as error:
            found.append(str(error))

    thread = from_another_thread(work)
    while not found:
        time.sleep(0.001)
    thread.join()
    assert found == ["division by zero"]


class Late(Exception):
    """Raised by a signal handler of the program."""


def test_signal_during_a_call_is_handled_by_the_program() -> None:
    def on_alarm(_number: int, _frame: FrameType | None) -> None:
        raise Late

    def interrupted() -> None:
        signal.raise_signal(signal.SIGALRM)
        run_python_code(10)

    def work() -> None:
        with pytest.raises(Late):
            attached._on_main_thread(interrupted)

    before = signal.signal(signal.SIGALRM, on_alarm)
    thread = threading.Thread(target=work)
    try:
        with pytest.raises(Late):
            thread.start()
            run_python_code(10)
    finally:
        signal.signal(signal.SIGALRM, before)
    thread.join()


def test_a_framework_that_is_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its module is there, but not yet complete."""
    (tmp_path / "half_imported.py").write_text(
        "import socket, pytest\n"
        "from pasta.runtime import attached\n"
        "with socket.socket(socket.AF_UNIX) as connection:\n"
        "    request = {'modules': ['half_imported'], 'configuration': ''}\n"
        "    with pytest.raises(attached.Refused, match='importing half_imported: attach again'):\n"
        "        attached._Attached(connection).open(request)\n"
        "asked = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.import_module("half_imported").asked


def test_main_thread_in_a_call_of_c() -> None:
    found: list[BaseException] = []

    def work() -> None:
        time.sleep(0.2)  # until the main thread waits
        try:
            attached._on_main_thread(lambda: None, 0.05)
        except TimeoutError as error:
            found.append(error)

    from_another_thread(work).join()  # runs no Python code until then
    assert len(found) == 1
    run_python_code(0.1)
    assert not attached._calls
