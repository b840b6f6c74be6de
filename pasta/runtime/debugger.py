"""Has a running CPython execute a file of Python code on its main thread.

Python 3.14 can do so itself (`sys.remote_exec`). For earlier ones a debugger, gdb or lldb, stops
the program for a moment and calls two of its functions:

    mmap(…)                                   memory for the code, which the debugger fills
    Py_AddPendingCall(PyRun_SimpleString, …)  CPython runs it between two instructions of the
                                              main thread's Python code

mmap takes no lock, and Py_AddPendingCall takes one of its own alone, for a few instructions: so the
stopped thread may be anywhere else, even in malloc or in an import. `_is_safe` recognizes a thread
that may hold that lock; it then runs on, and is stopped again. If this process is killed, the
debugger reads the end of its input, detaches and ends; it never ends the program.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from pasta.errors import MissingDependency, RunError
from pasta.own_python import own_environment
from pasta.runtime.injection import unprofiled_environment
from pasta.runtime.program import Program

#: Time limit for a debugger; reading the symbols of large programs takes seconds.
_SECONDS = 60.0
_ENDING_SECONDS = 10.0
_TRIALS = 20
_TRIAL_SECONDS = 0.05
#: Bytes of the memory for the code, which ends with a zero.
_PAGE = 4096
#: The first Python with sys.remote_exec.
_REMOTE_MINOR = 14


@dataclass(frozen=True)
class _Debugger:
    """The commands of a debugger."""

    name: str
    arguments: tuple[str, ...]
    #: Before the program is stopped.
    settings: tuple[str, ...]
    attach: str
    #: Makes functions of libpython and libc known.
    symbols: tuple[str, ...]
    #: The innermost frames, and the four bytes before the program counter.
    frames: str
    code: str
    #: Prints the value of an expression of C, in which it may call functions.
    evaluate: str
    load: str
    #: Prints a line that begins with `mark`.
    print_mark: str
    mark: str


_DEBUGGERS = (
    _Debugger(
        name="gdb",
        # no configuration or scripts of files, and no debug information, which is slow to read
        arguments=("--nx", "--nh", "--quiet", "--readnever", "-iex", "set auto-load no"),
        settings=(
            "set confirm off", "set pagination off", "set width 0", "set auto-solib-add off",
            "set debuginfod enabled off", "set unwindonsignal on",
            "set libthread-db-search-path /nonexistent",
            "handle all nostop noprint pass", "handle SIGINT nostop noprint pass",
        ),
        attach="attach {pid}",
        symbols=("sharedlibrary libpython3", r"sharedlibrary libc[.-]", "sharedlibrary ld-musl"),
        frames="backtrace 3",
        code="x/4xb $pc-4",
        evaluate="print {expression}",
        load="restore {file} binary {address}",
        print_mark=r"echo \n--pasta--\n",
        mark="--pasta--",
    ),
    _Debugger(
        name="lldb",
        arguments=("--no-lldbinit", "--no-use-colors"),
        settings=(
            "settings set auto-confirm true", "settings set target.preload-symbols false",
            "settings set stop-line-count-before 0", "settings set stop-line-count-after 0",
        ),
        attach="process attach --pid {pid}",
        symbols=("process handle --stop false --notify false --pass true",),
        frames="thread backtrace --count 3",
        code="memory read --size 1 --count 4 --format x $pc-4",
        evaluate="expression --timeout 5000000 -- {expression}",
        load="memory write --infile {file} {address}",
        print_mark="version",
        mark="lldb version",
    ),
)  # fmt: skip

#: Instructions of system calls: x86-64 and AArch64.
_SYSTEM_CALL = re.compile(r"0x0f\s+0x05$|0x01\s+0x00\s+0x00\s+0xd4$")
#: Functions around the lock of Py_AddPendingCall.
_LOCKS = re.compile(r"[Pp]ending|PyThread_|Mutex|mutex|ParkingLot|\bsem_|new_sem")
_BYTES = re.compile(r"(?:0x[0-9a-f]{2}\s+){3}0x[0-9a-f]{2}\s*$", re.MULTILINE)
_VALUE = re.compile(r"\$\d+ = (0x[0-9a-f]+|-?\d+)")
#: What gdb says if it does not know all registers of the processor: before version 14, of new ones.
REGISTERS_UNKNOWN = "Couldn't write extended state status"


def run_in(program: Program, file: Path) -> None:
    """Has the program run a file of Python code, of less than 4096 bytes, when its main thread runs
    Python code next. Raises RunError, and MissingDependency without a debugger."""
    if (program.minor or 0) >= _REMOTE_MINOR and _run_remotely(program, file):
        return
    debugger = next((each for each in _DEBUGGERS if shutil.which(each.name)), None)
    if debugger is None:
        raise MissingDependency(
            "neither gdb nor lldb was found; pasta attach needs one of them for Python "
            f"before 3.{_REMOTE_MINOR}",
            remedy="apt install gdb, or dnf install gdb",
        )
    with _Dialogue(debugger, program) as dialogue:
        dialogue.schedule(file)


# ---- sys.remote_exec ---------------------------------------------------------------------------


def _run_remotely(program: Program, file: Path) -> bool:
    """Whether sys.remote_exec could be used; it needs a Python of the program's version."""
    if sys.version_info[:2] == (3, program.minor):
        python: str | None = sys.executable
    else:
        python = program.interpreter
    if python is None:
        return False
    code = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])"
    command = [python, "-S", "-c", code, str(program.pid), str(file)]
    home = {name: value for name, value in program.environment.items() if name == "PYTHONHOME"}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, cwd="/",
            env={**_environment(), **home},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    if b"PermissionError" in done.stderr:
        raise _denied(program, done.stderr.decode(errors="replace").splitlines()[-1])
    return done.returncode == 0


def _denied(program: Program, why: str) -> RunError:
    return RunError(
        f"{program} cannot be traced ({why})",
        remedy="in a container: docker run --cap-add=SYS_PTRACE",
    )


def _environment() -> dict[str, str]:
    return {**own_environment(unprofiled_environment(os.environ)), "DEBUGINFOD_URLS": ""}


# ---- debuggers ---------------------------------------------------------------------------------


class _Dialogue:
    """A running debugger that answers commands; at the end of the block it detaches and ends."""

    def __init__(self, debugger: _Debugger, program: Program) -> None:
        self.debugger, self.program = debugger, program
        self.deadline = time.monotonic() + _SECONDS
        # a session of its own: Ctrl-C on the terminal would interrupt it with the program stopped
        self.process = subprocess.Popen(
            [debugger.name, *debugger.arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env=_environment(), cwd="/", start_new_session=True,
        )  # fmt: skip

    def __enter__(self) -> _Dialogue:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.process.communicate(b"\ndetach\nquit\n", timeout=_ENDING_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            self.process.terminate()  # gdb detaches then, too
            try:
                self.process.wait(_ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()  # and the kernel
                self.process.wait()

    def ask(self, command: str) -> str:
        """Output of a command. Raises RunError if the debugger ended or takes too long."""
        assert self.process.stdin is not None and self.process.stdout is not None
        mark = re.compile(rf"^.*{re.escape(self.debugger.mark)}.*\n", re.MULTILINE)
        found = ""
        try:
            self.process.stdin.write(f"{command}\n{self.debugger.print_mark}\n".encode())
            self.process.stdin.flush()
            while True:
                left = self.deadline - time.monotonic()
                if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                    raise RunError(f"{self.debugger.name} did not answer within {_SECONDS:.0f} s")
                piece = os.read(self.process.stdout.fileno(), 1 << 16)
                if not piece:
                    break
                found += piece.decode(errors="replace")
                end = mark.search(found)
                if end:
                    return found[: end.start()]
        except BrokenPipeError:
            pass
        raise RunError(f"{self.debugger.name} ended: {_last_line(found)}")

    def evaluate(self, expression: str) -> str:
        """Value of an expression of C. Raises RunError."""
        answer = self.ask(self.debugger.evaluate.format(expression=expression))
        found = _VALUE.search(answer)
        if not found:
            newer = "install a gdb that knows this processor, version 14 or later"
            raise RunError(
                f"{self.debugger.name}: {_last_line(answer)}",
                remedy=newer if REGISTERS_UNKNOWN in answer else None,
            )
        return found[1]

    def schedule(self, file: Path) -> None:
        """Stops the program and schedules the code. Raises RunError."""
        for command in self.debugger.settings:
            self.ask(command)
        self._stop_safely()
        if self.evaluate("((int (*)(void))Py_IsInitialized)()") != "1":
            raise RunError(f"{self.program} has not started its Python, or is ending it")
        arguments = f"(void *)0, {_PAGE}, 3, 0x22, -1, 0"  # readable, writable; private, anonymous
        map = f"((unsigned long (*)(void *, unsigned long, int, int, int, long))mmap)({arguments})"
        address = int(self.evaluate(map), 0)
        if address % _PAGE:
            raise RunError(f"{self.program} has no memory left")
        self.ask(self.debugger.load.format(file=file, address=address))
        run = self.evaluate("(unsigned long)((int (*)(void))PyRun_SimpleString)")
        add = "((int (*)(unsigned long, unsigned long))Py_AddPendingCall)"
        if self.evaluate(f"{add}({run}, {address})") != "0":
            raise RunError(f"{self.program} has too many pending calls", remedy="try again")

    def _stop_safely(self) -> None:
        for _ in range(_TRIALS):
            answer = self.ask(self.debugger.attach.format(pid=self.program.pid))
            code = self.ask(self.debugger.code)
            if not _BYTES.search(code):
                raise _denied(self.program, f"{self.debugger.name}: {_reason(answer)}")
            for command in self.debugger.symbols:
                self.ask(command)
            if _is_safe(code, self.ask(self.debugger.frames)):
                return
            self.ask("detach")
            time.sleep(_TRIAL_SECONDS)
        raise RunError(f"{self.program} holds locks that block the call", remedy="try again")


def _is_safe(code: str, frames: str) -> bool:
    """Whether a stopped thread cannot hold the lock of Py_AddPendingCall: it is in a system call,
    during which that lock is never held, or outside the functions that take it."""
    return bool(_SYSTEM_CALL.search(code.strip())) or not _LOCKS.search(frames)


def _reason(answer: str) -> str:
    """The line of a debugger's output with the reason why it could not stop the program."""
    telling = re.compile(r"ptrace|error:|[Nn]ot permitted|denied")
    return next((line for line in _lines(answer) if telling.search(line)), _last_line(answer))


def _last_line(answer: str) -> str:
    return (_lines(answer) or ["it printed nothing"])[-1]


def _lines(answer: str) -> list[str]:
    """Lines of output without prompts, and without commands, which lldb repeats."""
    lines = [line.replace("(gdb) ", "").strip() for line in answer.splitlines()]
    return [line for line in lines if line and not line.startswith("(lldb)")]
