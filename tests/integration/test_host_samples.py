"""Samples of real programs. Where the kernel does not allow them, they run without."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pasta.runtime.host_sampling import obstacle
from tests.support.preload import Done, Preload

RATE = ("--set", "host.sample-rate=1999", "-t", "host_samples")

#: Waits, each for a millisecond, beside a thread that uses a processor: none may be interrupted.
PROGRAM = """
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>
static double used(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
__attribute__((noinline)) static void inner(double seconds) {
    for (double end = used() + seconds; used() < end;)
        for (volatile int i = 0; i < 10000; i++) continue;
}
__attribute__((noinline)) static void heavy(void) { inner(0.15); __asm__ volatile(""); }
__attribute__((noinline)) static void light(void) { inner(0.05); __asm__ volatile(""); }
static void *other(void *unused) { heavy(); __asm__ volatile(""); return unused; }
int main(void) {
    pthread_t thread;
    struct timespec rest = {0, 1000000};
    int queue = epoll_create1(0), interrupted = 0;
    struct epoll_event event;
    sigset_t pending;
    launch(1);
    pthread_create(&thread, NULL, other, NULL);
    for (int i = 0; i < 40; i++) {
        interrupted += nanosleep(&rest, NULL) != 0;
        interrupted += poll(NULL, 0, 1) != 0;
        interrupted += epoll_wait(queue, &event, 1, 1) != 0;
    }
    heavy();
    light();
    pthread_join(thread, NULL);
    if (!fork()) { /* a process of its own */
        launch(1);
        light();
        return 0;
    }
    wait(NULL);
    sigpending(&pending);
    printf("%d %d\\n", interrupted, sigisemptyset(&pending));
    return 3;
}
"""

PYTHON = """
import ctypes, json, sys, time
accelerator, address = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p()
accelerator.ra_alloc(ctypes.byref(address), ctypes.c_uint64(1024))
def spin(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(1000))
def step():
    return sorted([1], key=lambda value: spin(0.15) or value)  # through C
step()
"""


def paths(done: Done, run: int = 0) -> dict[str, int]:
    """Samples by call path, functions only."""
    found: dict[str, int] = {}
    table = done.runs[run].path / "results" / "host_samples" / "call_paths.parquet"
    for row in pq.read_table(table).to_pylist():
        path = " > ".join(each.partition(":")[0] for each in row["call_path"].split(" > "))
        found[path] = found.get(path, 0) + row["samples"]
    return found


@pytest.mark.main
def test_a_program_is_not_interrupted(
    pasta_preload: Preload, compile_c: Callable[..., Path]
) -> None:
    program = compile_c(PROGRAM, "-O1", "-fomit-frame-pointer", "-pthread")
    done = pasta_preload(program, options=RATE)
    assert (done.exit_status, done.stdout, done.target_stderr) == (3, "0 1\n", "")
    why = obstacle()
    if why:
        assert why in done.stderr
        return
    (parent, child) = sorted(range(len(done.runs)), key=lambda at: -len(paths(done, at)))
    of_parent = paths(done, parent)
    heavy, light = of_parent["main > heavy > inner"], of_parent["main > light > inner"]
    assert heavy > light > 0 and of_parent["other > heavy > inner"] > light
    assert "main > light > inner" in paths(done, child)
    assert "main > heavy > inner" not in paths(done, child)


@pytest.mark.slow
def test_python(pasta_preload: Preload, tmp_path: Path, native: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PYTHON)
    done = pasta_preload(sys.executable, script, native / "librefacc.so", options=RATE)
    assert done.exit_status == 0
    if obstacle():
        return
    expected = "<module> > step > <lambda> > spin"
    found = sum(count for path, count in paths(done).items() if path.startswith(expected))
    assert found > sum(paths(done).values()) / 4
