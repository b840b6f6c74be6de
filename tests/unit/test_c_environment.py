"""setenv and related functions: programs/test_environment.c, and libc's own behaviour in the same
cases."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.c_builds import BUILDS, Build
from tests.support.places import PROGRAMS, ROOT
from tests.support.session import Session, compile_c

ALONE = ("model", "own_array", "wrong", "bounded")
THREADS = ("threads", "fork")


@pytest.fixture(scope="module")
def program(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [ROOT / "shim" / "core" / "environment.c", PROGRAMS / "test_environment.c"]
    return compile_c(
        tmp_path_factory.mktemp(build.name) / "test_environment", sources, *build.flags
    )


@pytest.mark.parametrize("case", [*ALONE, *THREADS])
def test_environment(build: Build, program: Path, case: str) -> None:
    if case == "fork" and build.name != "plain":
        pytest.skip("the sanitizers' own allocators may be locked in the child")
    done = build.run(program, case, build.events)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("case", ALONE)
def test_libc(tmp_path: Path, case: str) -> None:
    """The model is right: libc's own functions agree with it."""
    (plain,) = (each for each in BUILDS if each.name == "plain")
    done = plain.run(
        compile_c(tmp_path / "test_environment", [PROGRAMS / "test_environment.c"], *plain.flags),
        case,
    )
    assert (done.returncode, done.stderr) == (0, "")


LEAKS = """
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
static void *nothing(void *x) { return x; }
int main(int count, char **arguments) {
    char name[16], value[16];
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "N%d", i % 40);
        snprintf(value, sizeof value, "value %d", i);
        setenv(name, value, 1);
    }
    unsetenv("N1");
    pthread_t thread;
    pthread_create(&thread, NULL, nothing, NULL);
    pthread_join(thread, NULL);
    if (count > 1) malloc(1000); /* lost */
    (void)arguments;
    return 0;
}
"""


def test_leak_check_results_are_unchanged(tmp_path: Path) -> None:
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        pytest.skip("no valgrind")
    (tmp_path / "leaks.c").write_text(LEAKS)
    program = compile_c(tmp_path / "leaks", [tmp_path / "leaks.c"], "-Wno-unused-result")
    check = [valgrind, "-q", "--leak-check=full", "--errors-for-leak-kinds=definite,possible"]
    session = Session.create(tmp_path / "session")
    for arguments, status, said in (((), 0, ""), (("leak",), 9, "definitely lost")):
        done = subprocess.run(
            [*check, "--error-exitcode=9", program, *arguments],
            env=session.environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == status, done.stderr
        assert done.stderr.count("lost in loss record") == bool(said), done.stderr
        assert said in done.stderr
