"""Samples of the program's call stacks on the host, by a thread of the launcher.

The kernel samples the threads (perf events) and the launcher reads the samples, so the program
gets no signals and its system calls are not interrupted. The native part is shim/sampler.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

from pasta.runtime.ring import Ring
from pasta.settings import UNWIND

_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
#: Longest time that samples wait for the thread, ms.
_WAIT_MS = 100
_STOP_SECONDS = 5.0
#: Levels of perf_event_paranoid: from this one on time in the kernel is hidden, and (Debian,
#: Ubuntu) nothing is allowed.
_NO_KERNEL, _NOTHING = 2, 3


class HostSampling:
    """Samples a process, and all that it starts, `rate` times in each second of processor time.

    The process must not have executed its program yet. `unwind`: one of UNWIND. Raises OSError.
    """

    def __init__(self, pid: int, rate: int, unwind: str, log: Callable[[str], None]) -> None:
        from pasta._native import ffi
        from pasta._native._sampler import lib  # only where the host is sampled

        error = ffi.new("int *")
        self._ffi, self._lib = ffi, lib
        self._sampler = lib.pasta_sampler_open(pid, rate, UNWIND.index(unwind), error)
        if not self._sampler:
            raise OSError(error[0], os.strerror(error[0]))
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._log = log
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="pasta-perf", daemon=True)
        self._thread.start()

    @property
    def notes(self) -> list[str]:
        """What is missing in the samples."""
        found = []
        if not self._lib.pasta_sampler_sees_kernel(self._sampler):
            found.append(
                "host samples: time in system calls is not sampled; to include it: sysctl "
                f"kernel.perf_event_paranoid={_NO_KERNEL - 1}, or run as root"
            )
        if not self._lib.pasta_sampler_has_cfi(self._sampler):
            found.append(
                "host samples: libunwind is not installed, or not available for this "
                "processor: frames of code without frame pointers are missing (Debian, "
                "Ubuntu: apt install libunwind8; Fedora: dnf install libunwind)"
            )
        return found

    def _run(self) -> None:
        while not self._stopped:
            self._lib.pasta_sampler_work(self._sampler, self._wake, _WAIT_MS)

    def follow(self, pid: int, ring: Ring) -> None:
        """Publishes samples of a process to its ring, also those since its start."""
        self._lib.pasta_sampler_follow(self._sampler, pid, ring.address)

    def leave(self, ring: Ring) -> None:
        """Publishes the last samples of a process that has ended, and nothing more."""
        self._lib.pasta_sampler_leave(self._sampler, ring.address)

    def stop(self) -> None:
        """Ends sampling. Raises RuntimeError if the thread does not end."""
        self._stopped = True
        os.eventfd_write(self._wake, 1)
        self._thread.join(_STOP_SECONDS)
        if self._thread.is_alive():
            raise RuntimeError("the host sampling thread did not end")
        unread = self._lib.pasta_sampler_python_error(self._sampler)
        self._lib.pasta_sampler_close(self._sampler)
        os.close(self._wake)
        if unread:
            self._log(f"host samples have no Python frames: {os.strerror(unread)}")


def obstacle() -> str:
    """Why this machine does not allow samples of the host, in one line; empty if it does."""
    from pasta._native import ffi
    from pasta._native._sampler import lib

    error = ffi.new("int *")
    sampler = lib.pasta_sampler_open(os.getpid(), 1, UNWIND.index("auto"), error)
    if sampler:
        lib.pasta_sampler_close(sampler)
        return ""
    return problem(OSError(error[0], os.strerror(error[0])))


def problem(error: OSError) -> str:
    """Why the host cannot be sampled, in one line, with the remedy."""
    head = f"--perf: the host's call stacks are not sampled: {error.strerror}"
    if error.errno in (errno.EACCES, errno.EPERM):
        level = _paranoid()
        if level is not None and level >= _NOTHING:
            return (
                f"{head} (kernel.perf_event_paranoid is {level}); an administrator can allow it: "
                f"sysctl kernel.perf_event_paranoid={_NO_KERNEL}"
            )
        return (
            f"{head}; the container must allow perf_event_open (docker, podman: --cap-add "
            "PERFMON; Kubernetes: capabilities.add: [PERFMON])"
        )
    if error.errno == errno.EMFILE:
        return f"{head}; each processor needs a file descriptor: ulimit -n 4096"
    if error.errno == errno.ENOSYS:
        return f"{head}; the kernel of this machine or sandbox does not support perf events"
    return head


def _paranoid() -> int | None:
    try:
        return int(_PARANOID.read_text())
    except (OSError, ValueError):
        return None
