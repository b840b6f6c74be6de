"""Backends in separate libraries: built with installed headers, named by `libraries`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pasta._native import DIRECTORY
from tests.support.places import PROGRAMS
from tests.support.session import Session, compile_c

MADE_UP = PROGRAMS / "made_up_backend"
#: Exit statuses of the program: its accelerator has a subscriber, or none.
OBSERVED, UNOBSERVED = 7, 3


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("made_up") / "program"
    return compile_c(output, [MADE_UP / "program.c"], "-rdynamic")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled as outside the checkout: against the installed headers."""
    output = tmp_path_factory.mktemp("made_up") / "libmade_up.so"
    command = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    headers = f"-I{DIRECTORY / 'include'}"
    subprocess.run([*command, headers, MADE_UP / "source.c", "-o", output], check=True)
    return output


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session.create(tmp_path / "session")


def run(program: Path, session: Session, **config: object) -> tuple[int, str]:
    environment = session.environment(collector=1, **config)
    done = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


def test_launches_are_recorded(program: Path, library: Path, session: Session) -> None:
    assert run(program, session, libraries=library) == (OBSERVED, "")
    records = session.records()
    (start,) = [record for record in records if record["event"] == "process_start"]
    assert (start["source"], start["version"]) == ("made_up", "1.0")
    launches = [record for record in records if record["event"] == "kernel_launch"]
    assert [record["name"] for record in launches] == ["scale", "scale", "sum"]
    assert [record["grid"] for record in launches] == [[4, 1, 1], [4, 1, 1], [1, 1, 1]]
    assert [record["ordinal"] for record in launches] == [0, 1, 2]


def test_library_of_another_backend_is_inactive(
    program: Path, library: Path, session: Session
) -> None:
    assert run(program, session, libraries=library, backend="nvidia") == (UNOBSERVED, "")
    assert session.rings() == []


def test_unloadable_library_is_reported(
    program: Path, library: Path, session: Session, tmp_path: Path
) -> None:
    missing = tmp_path / "libmissing.so"
    status, stderr = run(program, session, libraries=f"{missing}:{library}")
    assert status == OBSERVED
    assert stderr.startswith(f"pasta: the library of a backend cannot be loaded: {missing}: ")
    assert stderr.count("\n") == 1


def test_library_without_the_entry_function_is_reported(program: Path, session: Session) -> None:
    status, stderr = run(program, session, libraries=DIRECTORY / "librefacc.so")
    assert status == UNOBSERVED
    assert stderr.count("\n") == 1
    assert "undefined symbol: pasta_backend_load" in stderr
