"""A running program, examined from outside: whether `pasta attach` can run Python code in it."""

from __future__ import annotations

import mmap
import os
import pwd
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pasta.errors import RunError
from pasta.runtime.processes import ProcessIdentity

#: The oldest Python that runs PASTA's side in the program.
_OLDEST_MINOR = 8
_CAP_SYS_PTRACE = 19
#: Mode, and number of filters, which are more than this process's in a restricted program.
_SECCOMP = ("Seccomp", "Seccomp_filters")
_YAMA = "sys/kernel/yama/ptrace_scope"
#: A function that every CPython has.
_CPYTHON = b"\0Py_AddPendingCall\0"


class Program(NamedTuple):
    """A running Python program."""

    identity: ProcessIdentity
    command: list[str]
    environment: dict[str, str]
    #: Path of its interpreter, if it is one that could run other code.
    interpreter: str | None
    #: N of its Python 3.N, if known.
    minor: int | None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.identity.pid

    def __str__(self) -> str:
        return f"process {self.pid}"


def examine(pid: int, proc: Path = Path("/proc")) -> Program:
    """The program of a process. Raises RunError if PASTA cannot be attached to it."""
    status = _status(pid, proc)
    _check_state(pid, status, proc)
    _check_access(pid, status, proc)
    directory = proc / str(pid)
    try:
        names = _mapped_files(directory)
        executable = os.readlink(directory / "exe").removesuffix(" (deleted)")
        is_cpython = any(_is_libpython(name) for name in names) or _contains(directory / "exe")
        command = os.fsdecode((directory / "cmdline").read_bytes()).split("\0")[:-1]
        variables = os.fsdecode((directory / "environ").read_bytes()).split("\0")
    except OSError as error:
        raise RunError(f"process {pid} cannot be examined ({error.strerror})") from None
    if any("libpypy" in name for name in names):
        raise RunError(f"process {pid} runs PyPy", remedy="PASTA attaches to CPython only")
    if not is_cpython:
        raise RunError(
            f"process {pid} ({os.path.basename(executable)}) does not run CPython",
            remedy="start the program with pasta-preload",
        )
    minor = _minor([executable, *names])
    if minor is not None and minor < _OLDEST_MINOR:
        raise RunError(
            f"process {pid} runs Python 3.{minor}",
            remedy=f"PASTA attaches to Python 3.{_OLDEST_MINOR} and newer; use pasta-preload",
        )
    is_interpreter = os.path.basename(executable).startswith("python")
    return Program(
        ProcessIdentity.of(pid),
        command,
        dict(each.split("=", 1) for each in variables if "=" in each),
        executable if is_interpreter else None,
        minor,
    )


# ---- obstacles ---------------------------------------------------------------------------------


def _status(pid: int, proc: Path) -> Mapping[str, str]:
    try:
        lines = (proc / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        raise RunError(
            f"there is no process {pid}", remedy="pgrep -af python lists Python programs"
        ) from None
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _check_state(pid: int, status: Mapping[str, str], proc: Path) -> None:
    if pid == os.getpid():
        raise RunError(f"process {pid} is this pasta attach itself")
    if status["Tgid"] != str(pid):
        raise RunError(
            f"{pid} is a thread of process {status['Tgid']}",
            remedy=f"pasta attach {status['Tgid']}",
        )
    if status["State"][0] in "ZX":
        raise RunError(f"process {pid} has ended")
    tracer = status.get("TracerPid", "0")
    if tracer != "0":
        name = _status(int(tracer), proc).get("Name", "")
        raise RunError(
            f"process {pid} is traced by process {tracer} ({name})",
            remedy="end that debugger or tracer first",
        )
    if status["State"][0] in "Tt":
        raise RunError(f"process {pid} is stopped", remedy=f"kill -CONT {pid}")


def _check_access(pid: int, status: Mapping[str, str], proc: Path) -> None:
    own = _status(os.getpid(), proc)
    owner = int(status["Uid"].split()[0])
    if status["Uid"].split()[:3] != own["Uid"].split()[:3]:
        user = _user_name(owner)
        raise RunError(
            f"process {pid} belongs to user {user}",
            remedy=f"run pasta attach as that user: sudo -u {user} pasta attach {pid}",
        )
    try:
        elsewhere = any(
            os.readlink(proc / str(pid) / "ns" / name)
            != os.readlink(proc / str(os.getpid()) / "ns" / name)
            for name in ("mnt", "pid")
        )
    except OSError as error:
        raise RunError(
            f"process {pid} does not let this user trace it ({error.strerror})",
            remedy="it has changed its user or capabilities, or the container lacks the "
            "capability SYS_PTRACE: docker run --cap-add=SYS_PTRACE",
        ) from None
    if elsewhere:
        raise RunError(
            f"process {pid} runs in another container or namespace",
            remedy="run pasta attach inside, with the pid that the process has there:"
            " docker exec, kubectl exec",
        )
    if any(int(status.get(key, 0)) > int(own.get(key, 0)) for key in _SECCOMP):
        raise RunError(
            (
                f"process {pid} has restricted its system calls (seccomp), and PASTA's calls "
                "could end it"
            ),
            remedy="start the program with pasta-preload",
        )
    _check_yama(pid, own, proc)


def _check_yama(pid: int, own: Mapping[str, str], proc: Path) -> None:
    try:
        scope = int((proc / _YAMA).read_text())
    except (OSError, ValueError):  # a kernel without Yama
        return
    privileged = int(own["CapEff"], 16) >> _CAP_SYS_PTRACE & 1
    if scope and not (privileged and scope < 3):
        raise RunError(
            f"this system does not let a process trace process {pid}"
            f" (kernel.yama.ptrace_scope = {scope})",
            remedy="only a reboot can change 3"
            if scope == 3
            else "sudo sysctl kernel.yama.ptrace_scope=0; in a container, run the command on its"
            " host, or start the container with --cap-add=SYS_PTRACE",
        )


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


# ---- Python ------------------------------------------------------------------------------------


def _mapped_files(directory: Path) -> set[str]:
    lines = os.fsdecode((directory / "maps").read_bytes()).splitlines()
    return {line[line.index("/") :] for line in lines if "/" in line}


def mapped_files(pid: int) -> set[str]:
    """Paths of the files that a process has mapped. Raises RunError."""
    try:
        return _mapped_files(Path("/proc", str(pid)))
    except OSError as error:
        raise RunError(f"process {pid} cannot be examined ({error.strerror})") from None


def _is_libpython(path: str) -> bool:
    return os.path.basename(path).startswith("libpython3")


def _contains(file: Path) -> bool:
    """Whether an executable has CPython in it."""
    with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as map:
        return map.find(_CPYTHON) >= 0


def _minor(paths: list[str]) -> int | None:
    """N of Python 3.N by names such as python3.12 and libpython3.12.so.1.0."""
    for path in paths:
        found = re.match(r"(?:lib)?python3\.(\d+)", os.path.basename(path))
        if found:
            return int(found[1])
    return None
