"""Fixtures of all tests, and the markers that they imply.

def test_target_keeps_its_exit_status(pasta_preload, compile_c):
    done = pasta_preload(compile_c("int main(void) { return 7; }"))
    assert done.exit_status == 7
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent))  # after an installed PASTA

from tests.support.places import OBJECTS, PROGRAMS, ROOT
from tests.support.preload import TIMEOUT, Preload, base_environment, cli, wait_until

if find_spec("hypothesis"):  # ci/gpu-suite has none
    importlib.import_module("tests.support.examples")  # sets the defaults
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started by a shell's `&`
    signal.signal(signal.SIGINT, signal.default_int_handler)  # so programs begin with the default


@pytest.fixture
def pasta_preload(tmp_path: Path) -> Iterator[Preload]:
    """Runs commands under pasta-preload; afterwards no files in shared memory and no unfinished run
    may remain."""
    directory = tmp_path / "work"
    directory.mkdir()
    preload = Preload(directory)
    yield preload
    if preload.may_leave_sessions:
        for path in preload.sessions():
            shutil.rmtree(path, ignore_errors=True)
        return
    gone = "the session directory is removed"
    wait_until(lambda: not preload.sessions(), gone, explain=preload.explained)
    assert not list(directory.glob("**/.pasta-*")), "half-written runs are left"


@pytest.fixture
def pasta(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a verb of `pasta`."""

    def run(*arguments: str | Path, **how: Any) -> subprocess.CompletedProcess[str]:
        environment = {**base_environment(), **how.pop("environment", {})}
        return subprocess.run(
            [*cli("pasta"), *map(str, arguments)],
            env=environment, capture_output=True, text=True, timeout=TIMEOUT, cwd=tmp_path, **how,
        )  # fmt: skip

    return run


@pytest.fixture(scope="session")
def native() -> Path:
    """Directory of the native parts of the PASTA under test."""
    found = subprocess.run(
        [sys.executable, "-c", "from pasta import paths; print(paths.NATIVE)"],
        env=base_environment(), cwd="/", capture_output=True, text=True, check=True,
    )  # fmt: skip
    return Path(found.stdout.strip())


@pytest.fixture
def demo(native: Path) -> Callable[[str], Path]:
    """Path of a demonstration program of the reference accelerator."""
    return lambda name: native / "bin" / name


@pytest.fixture(scope="session")
def _compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Path]]:
    return tmp_path_factory.mktemp("programs"), {}


@pytest.fixture
def compile_c(_compiled: tuple[Path, dict[str, Path]], native: Path) -> Callable[..., Path]:
    """Compiles a C program from its text, with programs/accelerate.h; linked to the reference
    accelerator where it calls `launch`. One program per text."""
    directory, known = _compiled

    def build(source: str, *options: str, name: str = "") -> Path:
        key = f"{source}{options}{name}"
        if key in known:
            return known[key]
        accelerated = "launch(" in source
        file = directory / f"{name or 'program'}{len(known)}.c"
        output = file.with_suffix("") if not name else directory / str(len(known)) / name
        output.parent.mkdir(exist_ok=True)
        file.write_text(f'#include "accelerate.h"\n{source}\n')
        command = [
            *os.environ.get("CC", "cc").split(), "-std=gnu11", "-g1", "-Wall", "-Wextra", "-Werror",
            "-Wno-unused-function", "-pthread", f"-I{PROGRAMS}", f"-I{ROOT / 'shim' / 'include'}",
            f"-I{ROOT / 'shim' / 'refacc'}", file, "-o", output, *options,
        ]  # fmt: skip
        if accelerated:
            command += ["-DACCELERATED", f"-L{native}", "-lrefacc", f"-Wl,-rpath,{native}"]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        known[key] = output
        return output

    return build


@pytest.fixture
def python_program(tmp_path: Path, native: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a Python program that may call `launch(count)`; returns its path."""
    monkeypatch.setenv("REFACC_LIBRARY", str(native / "librefacc.so"))

    def write(source: str, name: str = "program.py") -> Path:
        path = tmp_path / name
        helper = f"import sys; sys.path.append({str(PROGRAMS)!r})\nfrom accelerate import launch\n"
        path.write_text(helper + source)
        return path

    return write


#: Fixtures whose tests start programs under pasta-preload, or a verb of `pasta`.
PROCESS_FIXTURES = {"pasta_preload", "pasta"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--passed-in",
        metavar="XML",
        help="leave out tests that passed in the run of this JUnit file (of property tests it may"
        " have tried fewer examples: they run again)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # workers inherit it
        os.environ[OBJECTS] = tempfile.mkdtemp(prefix="pasta-objects-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(OBJECTS), ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if PROCESS_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.process)
    earlier = config.getoption("--passed-in")
    if earlier:
        passed = passed_tests(Path(earlier))
        parts: dict[bool, list[pytest.Item]] = {True: [], False: []}
        for each in items:
            parts[junit_name(each) not in passed or tries_examples(each)].append(each)
        config.hook.pytest_deselected(items=parts[False])
        items[:] = parts[True]


def passed_tests(junit: Path) -> set[tuple[str, str]]:
    """Class and test names, as JUnit files give them, of the tests that passed."""
    cases = ElementTree.parse(junit).iter("testcase")
    # a case has children only if the test failed, was skipped, or printed something
    return {
        (case.get("classname", ""), case.get("name", ""))
        for case in cases
        if not {child.tag for child in case} & {"skipped", "failure", "error"}
    }


def junit_name(item: pytest.Item) -> tuple[str, str]:
    """Class and test name of a test in JUnit files."""
    path, _, rest = item.nodeid.partition("::")
    classes, _, parameters = rest.partition("[")
    *outer, name = classes.split("::")
    return ".".join([path.removesuffix(".py").replace("/", "."), *outer]), (
        f"{name}[{parameters}" if parameters else name
    )


def tries_examples(item: pytest.Item) -> bool:
    """Whether Hypothesis makes up examples for a test."""
    return getattr(getattr(item, "function", None), "is_hypothesis_test", False)


@pytest.fixture(scope="session")
def cupti(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with a fake CUPTI, CUDA driver and program, compiled once for all tests."""
    from tests.support.fake_cupti import build

    return build(tmp_path_factory.mktemp("fake-cupti"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("torch") and not find_spec("torch"):
        pytest.skip("PyTorch is not installed")
