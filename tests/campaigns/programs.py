"""Programs of the campaigns, and a scratch directory in which pasta-preload runs them."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.places import PROGRAMS, ROOT
from tests.support.preload import base_environment, cli

#: Seconds that a command may take before it counts as hanging.
LIMIT = 120
_HEADERS = "#include <sys/prctl.h>\n#include <sys/resource.h>\n#include <sched.h>\n"


def compile_program(source: str, directory: Path, name: str, *options: str) -> Path:
    """Compiles C that may call `launch(count)` of programs/accelerate.h; `options`: of cc."""
    from pasta import paths

    file = directory / f"{name}.c"
    file.write_text(f'#include "accelerate.h"\n{_HEADERS}{source}\n')
    output = directory / name
    command = [
        "cc", "-std=gnu11", "-O1", "-pthread", *options, "-DACCELERATED", f"-I{PROGRAMS}",
        f"-I{ROOT / 'shim' / 'include'}", f"-I{ROOT / 'shim' / 'refacc'}", str(file),
        "-o", str(output), f"-L{paths.NATIVE}", "-lrefacc", f"-Wl,-rpath,{paths.NATIVE}",
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return output


#: Launches on N threads until it is ended, or SECONDS are over; FILE has a counter for each
#: thread, of the launches whose call has returned, and its own pid in front of them.
COUNTING = """
static _Atomic uint64_t *counts;
static atomic_bool over;
static void *work(void *at) {
    ra_module module; ra_function scale; void *x;
    uint32_t grid[3] = {1, 1, 1}, block[3] = {32, 1, 1};
    float half = 0.5f, one = 1;
    int n = 32;
    RA(ra_module_load_builtin(&module));
    RA(ra_module_function(&scale, module, "_Z5scalePfffi"));
    RA(ra_alloc(&x, 32 * sizeof(float)));
    while (!over) {
        RA(ra_launch(scale, grid, block, 0, NULL, (void *[]){&x, &half, &one, &n}));
        counts[1 + (intptr_t)at]++;
        if (counts[1 + (intptr_t)at] % 64 == 0) usleep(1000);
    }
    return NULL;
}
int main(int n, char **a) {
    if (n != 4) return 2;
    int threads = atoi(a[2]), fd = open(a[1], O_RDWR);
    counts = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    counts[0] = (uint64_t)getpid();
    pthread_t thread[8];
    for (int i = 0; i < threads; i++) pthread_create(&thread[i], NULL, work, (void *)(intptr_t)i);
    sleep_ms(atol(a[3]));
    over = true;
    for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    return 7;
}
"""


class Counter:
    """The shared page with the progress of a COUNTING program."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(4096))

    def read(self) -> tuple[int, int]:
        """The program's pid (0: it has not started yet), and launches that have returned."""
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as page:
            pid, *counts = struct.unpack_from("<9Q", page)
        return pid, sum(counts)


@dataclass
class Place:
    """A directory with separate sessions, in which pasta-preload runs."""

    directory: Path
    sessions: Path
    launched: list[int] = field(default_factory=list)

    def start(
        self,
        command: Sequence[str | Path],
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        umask: int = -1,
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [
                *cli("pasta-preload"), "--set", f"ring.directory={self.sessions}", *options, "--",
                *map(str, command),
            ],
            cwd=self.directory, env={**base_environment(), **(environment or {})},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, umask=umask,
        )  # fmt: skip
        self.launched.append(process.pid)
        return process

    def pasta(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*cli("pasta"), *map(str, arguments)], cwd=self.directory, env=base_environment(),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT,
        )  # fmt: skip

    def left(self) -> list[Path]:
        """Session directories that still exist."""
        return sorted(self.sessions.glob("pasta-*"))

    def manifests(self) -> list[dict[str, object]]:
        found = (self.directory / "pasta-out").glob("*/run.json")
        return [json.loads(path.read_text()) for path in sorted(found)]

    def processes(self) -> dict[int, bytes]:
        """Live processes that refer to this place's sessions: launchers, collectors."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command = entry.read_bytes()
            except OSError:
                continue
            if os.fsencode(self.sessions) in command and int(entry.parent.name) != os.getpid():
                found[int(entry.parent.name)] = command
        return found

    def collectors(self) -> list[int]:
        return [pid for pid, command in self.processes().items() if b"runtime.collector" in command]


@contextmanager
def place(where: str | None = None) -> Iterator[Place]:
    """A new place, below `where` or the temporary directory; sessions are in shared memory."""
    directory = Path(tempfile.mkdtemp(prefix="campaign-", dir=where))
    sessions = Path(tempfile.mkdtemp(prefix="campaign-", dir="/dev/shm"))
    made = Place(directory, sessions)
    try:
        yield made
    finally:
        for pid in made.processes():
            kill(pid, signal.SIGKILL)
        shutil.rmtree(directory, ignore_errors=True)
        shutil.rmtree(sessions, ignore_errors=True)


def kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def alive(pid: int) -> bool:
    """Whether a process still runs; zombies do not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def wait_for(condition: object, seconds: float = LIMIT) -> bool:
    """Whether a condition (a function) became true in time."""
    until = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True
