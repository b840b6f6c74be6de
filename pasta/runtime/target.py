"""Starts the target: a child of the launcher that executes the program."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Mapping

from pasta.runtime.executable import CannotRun, Executable, is_text
from pasta.runtime.injection import target_environment
from pasta.runtime.session import Session


def start_target(
    session: Session,
    executable: Executable,
    command: list[str],
    environment: Mapping[str, str],
    *,
    umask: int | None,
    mask: set[int | signal.Signals],
    before_exec: Callable[[int], None] | None = None,
) -> int:
    """Starts the target with the signal mask `mask`, and `umask` unless None; its pid. Raises
    CannotRun if exec fails. `before_exec` is called with the pid before the program is executed;
    it must not raise."""
    # If SIGCHLD were ignored, the kernel would discard the target's status.
    on_child = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    reader, writer = os.pipe()
    waits, lets = os.pipe() if before_exec else (-1, -1)
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGCHLD, on_child)
        if before_exec:
            os.close(lets)
            os.read(waits, 1)  # until the launcher closes its end
        if umask is not None:
            os.umask(umask)
        _become(session, executable, command, environment, mask, writer)
    os.close(writer)
    if before_exec:
        os.close(waits)
        before_exec(pid)
        os.close(lets)
    with os.fdopen(reader, "rb") as failure:
        message = failure.read()
    if message:
        os.waitpid(pid, 0)
        number = int(message)
        raise CannotRun(
            f"{executable.path}: cannot be run ({os.strerror(number)})",
            127 if number == errno.ENOENT else 126,
        )
    return pid


def _become(
    session: Session,
    executable: Executable,
    command: list[str],
    environment: Mapping[str, str],
    mask: set[int | signal.Signals],
    failure: int,
) -> None:
    """Executes the target in the child. Never returns."""
    number, path = errno.EIO, executable.path
    try:
        preload = executable.preloadable
        target = target_environment(session, environment, os.getpid(), preload=preload)
        # Python ignores these signals; the program must see the defaults.
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            os.execve(path, command, target)
        except OSError as error:
            if error.errno != errno.ENOEXEC or not is_text(path):
                raise
            # a script without an interpreter line: run it with sh, as shells and env do
            os.execve("/bin/sh", ["/bin/sh", path, *command[1:]], target)
    except OSError as error:
        number = error.errno or errno.EIO
    finally:
        os.write(failure, str(number).encode())
        os._exit(127)
