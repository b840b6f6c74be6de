"""Programs that sandbox themselves after the first use of an accelerator: they exit as without
PASTA, and every event is recorded."""

from __future__ import annotations

import platform
import sys

import pytest

from tests.support.preload import EMBED_NOW

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of system calls")

LAUNCHES = 150_000
#: Launches, sandboxes itself, and launches enough to grow the ring many times.
PROGRAM = f"""
#define MORE %s
#include "restrict.h"
int main(int n, char **a) {{
    (void)a;
    launch(300);
    if (n > 1) wait_for_consumer();
    %s();
    launch({LAUNCHES});
    return 5;
}}"""
#: System calls with which the accelerator's own threads exit.
THREADS = "ALLOW(SYS_rt_sigprocmask), ALLOW(SYS_madvise), ALLOW(SYS_munmap),"

WAYS = [
    "restrict_by_prctl", "restrict_by_syscall", "restrict_every_thread", "to_empty_root",
    "to_nobody", "no_descriptors", "close_all", "landlock",
]  # fmt: skip


def check(done, status: int) -> None:
    if done.exit_status == 77:
        pytest.skip(f"not here: {done.target_stderr}")
    assert (done.exit_status, done.stdout, done.target_stderr) == (status, "", "")
    assert done.run.manifest["dropped"] == {}
    assert done.run.manifest["torn_slots"] == 0


@pytest.mark.parametrize("way", WAYS)
def test_sandboxed_program_loses_no_event(pasta_preload, compile_c, way: str) -> None:
    done = pasta_preload(compile_c(PROGRAM % ("" if "every" not in way else THREADS, way)))
    check(done, 5)
    assert done.run.launches == LAUNCHES + 300


@pytest.mark.parametrize("way", ["restrict_by_prctl", "restrict_every_thread", "to_empty_root"])
def test_embedded_consumer_hands_over(pasta_preload, compile_c, way: str) -> None:
    """Python ran in the process; its libraries make no system call at exit."""
    program = compile_c(PROGRAM % ("" if "every" not in way else THREADS, way))
    done = pasta_preload(program, "wait", options=EMBED_NOW)
    check(done, 5)
    assert done.run.launches == LAUNCHES + 300
    restricted = "the program restricts its own system calls"
    assert done.run.consumer == ("embedded" if way == "to_empty_root" else "collector")
    assert any(restricted in note for note in done.notes) == (way != "to_empty_root")


@pytest.mark.main
def test_annotations_in_strict_mode(pasta_preload, compile_c) -> None:
    """Only read, write, exit and sigreturn are allowed, and no precise clock."""
    done = pasta_preload(
        compile_c(
            """
            #include "pasta.h"
            #include "restrict.h"
            int main(void) {
                launch(0);
                MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
                for (int i = 0; i < 200000; i++) pasta_mark("step");
                raw(SYS_exit, 6, 0, 0);
            }"""
        )
    )
    check(done, 6)
    assert done.run.count("mark") == 200_000


@pytest.mark.main
def test_failed_filter_installation_changes_nothing(pasta_preload, compile_c) -> None:
    """Libraries probe in this way whether filters are supported."""
    done = pasta_preload(
        compile_c(
            """
            #include "restrict.h"
            int main(void) {
                launch(10);
                int asked = prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL) ? errno : 0;
                struct sock_fprog empty = {0, allowed};
                int refused = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &empty) ? errno : 0;
                launch(10);
                if (!fork()) { launch(7); _exit(0); }
                wait(NULL);
                return asked == EFAULT && refused == EINVAL ? 5 : 6;
            }"""
        )
    )
    assert (done.exit_status, done.target_stderr) == (5, "")
    assert sorted(run.launches for run in done.runs) == [7, 20]


FILTER = """
import ctypes, os, struct, time

launch(300)
if "PASTA_SHIM" in os.environ:
    time.sleep(1.5)
libc = ctypes.CDLL(None, use_errno=True)
code = [(0x20, 0, 0, 0)]
for number in (2, 257, 285, 318, 56, 435):  # open, openat, fallocate, getrandom, clone, clone3
    code += [(0x15, 0, 1, number), (0x06, 0, 0, 0x80000000)]
code = [struct.pack("HBBI", *each) for each in [*code, (0x06, 0, 0, 0x7FFF0000)]]
text = ctypes.create_string_buffer(b"".join(code))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code), ctypes.addressof(text)))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.syscall(ctypes.c_long(317), ctypes.c_long(1), ctypes.c_long(1), program) == 0
launch(20000)
print("done")
"""


def test_sandboxed_python_program(pasta_preload, python_program) -> None:
    program = python_program(FILTER)
    done = pasta_preload(sys.executable, program, options=EMBED_NOW)
    assert (done.exit_status, done.stdout, done.target_stderr) == (0, "done\n", "")
    assert done.run.launches == 20_300
