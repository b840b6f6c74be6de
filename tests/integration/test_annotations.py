"""Annotations of C, C++, Python and NVTX programs: their records in the ring."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.places import PROGRAMS, ROOT
from tests.support.session import LIBPASTA, Session, compile_c

ABSENT = 2**64 - 1
NO_COLOR = 2**32 - 1


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session.create(tmp_path / "session")


def run(program: list[str | Path], environment: dict[str, str]) -> str:
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def brief(records: list[dict[str, Any]], *fields: str) -> list[tuple[Any, ...]]:
    return [(record["event"], *(record.get(field) for field in fields)) for record in records]


ANNOTATED = [
    ("range_push", "outer"),
    ("range_push", "inné"),
    ("range_pop", None),
    ("range_pop", None),
    ("range_start", "process"),
    ("profiling_stop", None),
    ("profiling_start", None),
    ("mark", "mark"),
    ("mark", "step"),
    ("range_end", None),
]


@pytest.mark.parametrize(
    ("compiler", "language"), [("cc", "c99"), ("cc", "c11"), ("c++", "c++11"), ("c++", "c++20")]
)
def test_annotations_through_the_header(
    session: Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    compiler: str,
    language: str,
) -> None:
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler}")
    monkeypatch.setenv("CC", compiler)
    source = tmp_path / ("program.c" if compiler == "cc" else "program.cpp")
    shutil.copy(PROGRAMS / "annotated.c", source)
    program = compile_c(tmp_path / "program", [source], "-pedantic", language=language)
    assert run([program], dict(os.environ)) == ""  # without the preload: nothing happens
    run([program], session.environment())
    records = session.records()
    assert brief(records, "name") == ANNOTATED
    started, ended = records[4], records[9]
    assert [record.get("domain") for record in records[7:9]] == [None, "pasta"]
    assert started["id"] == ended["id"] not in (0, ABSENT)
    assert {record["origin"] for record in records} == {1}
    assert all(record["device"] == -1 and record["stream"] == ABSENT for record in records)


def test_stopped_from_the_start(session: Session, tmp_path: Path) -> None:
    program = compile_c(tmp_path / "program", [PROGRAMS / "annotated.c"])
    run([program], session.environment(start=0))
    assert ("mark", "mark") in brief(session.records(), "name")  # pasta_start() came before it
    assert ("mark", "while stopped") not in brief(session.records(), "name")


def test_annotations_start_no_consumer(session: Session, tmp_path: Path) -> None:
    from pasta._native import ffi, lib

    run([compile_c(tmp_path / "program", [PROGRAMS / "annotated.c"])], session.environment())
    ring = lib.pasta_map(os.fsencode(session.rings()[0]), ffi.new("int *"))
    assert (ring.used, ring.consumer) == (0, lib.PASTA_CONSUMER_none)
    lib.pasta_unmap(ring)


def test_unfollowed_child_records_no_annotations(session: Session, tmp_path: Path) -> None:
    """A process of --no-children that is not the root records nothing."""
    program = compile_c(tmp_path / "program", [PROGRAMS / "annotated.c"])
    run([program], session.environment(children=0, root=1))
    assert session.rings() == []


# ---- NVTX


def nvtx_include() -> Path | None:
    candidates = [Path("/usr/local/cuda/include"), Path("/usr/include")]
    candidates += [Path(entry) / "nvidia" for entry in sys.path if entry]
    for candidate in candidates:
        places = [candidate, *candidate.glob("cu*/include"), candidate / "nvtx" / "include"]
        for place in places:
            if (place / "nvtx3" / "nvToolsExt.h").exists():
                return place
    return None


def test_nvtx_declarations(tmp_path: Path) -> None:
    include = nvtx_include()
    if not include:
        pytest.skip("no NVTX headers: pip install nvidia-nvtx")
    compile_c(tmp_path / "check.o", [PROGRAMS / "nvtx_abi_check.c"], "-isystem", str(include), "-c")


LEVELS = """\
0 1 2 | 2 1 0 negative
0 0 1 | 1 0 0
distinct ids
0
0 | 0
"""


@pytest.mark.parametrize("headers", ["real", "fake"])
def test_nvtx(session: Session, tmp_path: Path, headers: str) -> None:
    include = nvtx_include()
    options = [f"-I{ROOT}"]
    if headers == "real":
        if not include:
            pytest.skip("no NVTX headers: pip install nvidia-nvtx")
        options += ["-DREAL_NVTX", "-isystem", str(include)]
    program = compile_c(tmp_path / "program", [PROGRAMS / "nvtx_program.c"], *options)
    assert run([program], session.environment()) == LEVELS
    parent, child = sorted(map(_records_of, session.rings()), key=len, reverse=True)
    assert brief(parent, "name", "domain") == [
        ("range_push", "outer", None),
        ("range_push", "größe € \U0001f600", None),
        ("range_push", "colored", None),
        ("range_pop", None, None),
        ("range_pop", None, None),
        ("range_pop", None, None),
        ("range_push", "default domain", None),
        ("range_push", "registered", "library"),
        ("range_push", "registered", "library"),
        ("range_pop", None, "library"),
        ("range_pop", None, "library"),
        ("range_pop", None, None),
        ("range_start", "registered", "library"),
        ("range_start", "process", None),
        ("range_end", None, "library"),
        ("range_end", None, None),
        ("mark", "registered", "library"),
        ("mark", "wide", "library"),
        ("mark", None, "library"),
        ("range_push", "open", None),
        ("range_push", "thread", None),
        ("range_pop", None, None),
        ("mark", "mark", None),
        ("mark", "wide mark", None),
    ]
    assert [record["color"] for record in parent[:3]] == [NO_COLOR, NO_COLOR, 0xFF76B900]
    assert {record["origin"] for record in parent} == {3}
    assert [record["id"] for record in parent[12:14]] == [record["id"] for record in parent[14:16]]
    assert parent[20]["thread"] == parent[21]["thread"] != parent[19]["thread"]
    assert brief(child, "name", "domain") == [
        ("mark", "of the child", None),
        ("mark", "registered", "library"),
    ]


def test_nvtx_without_a_session(tmp_path: Path) -> None:
    """The injection refuses, and NVTX stays a no-op."""
    program = compile_c(tmp_path / "program", [PROGRAMS / "nvtx_program.c"], f"-I{ROOT}")
    environment = {**os.environ, "NVTX_INJECTION64_PATH": str(LIBPASTA)}
    assert run([program], environment).startswith("-2 -2 -2 | -2 -2 -2")


def _records_of(ring: Path) -> list[dict[str, Any]]:
    from tests.support.session import records

    return records(ring)


# ---- Python

PYTHON = """
import asyncio, sys
sys.path.insert(0, {root!r})
from pasta import annotate
assert not {{"numpy", "ctypes"}} & set(sys.modules)

@annotate.range("decorated")
def twice(value: int) -> int:
    "doc"
    annotate.mark("inside \\N{{SNOWMAN}}")
    return 2 * value

@annotate.range("coroutine")
async def later() -> int:
    await asyncio.sleep(0)
    return 7

assert twice(4) == 8 and twice.__name__ == "twice" and twice.__doc__ == "doc"
try:
    with annotate.range("raises"):
        with annotate.range("inner"):
            raise KeyError(1)
except KeyError:
    pass
annotate.step()
annotate.push("pushed")
annotate.pop()
assert asyncio.run(later()) == 7
print(annotate.is_active())
annotate.stop()
print(annotate.is_active())
annotate.mark("not recorded")
annotate.start()
"""


def python(environment: dict[str, str]) -> list[bool]:
    output = run([sys.executable, "-c", PYTHON.format(root=str(ROOT))], environment)
    return [ast.literal_eval(line) for line in output.splitlines()]


def test_python(session: Session) -> None:
    assert python(session.environment()) == [True, False]
    records = session.records()
    assert brief(records, "name") == [
        ("range_push", "decorated"),
        ("mark", "inside \N{SNOWMAN}"),
        ("range_pop", None),
        ("range_push", "raises"),
        ("range_push", "inner"),
        ("range_pop", None),
        ("range_pop", None),
        ("mark", "step"),
        ("range_push", "pushed"),
        ("range_pop", None),
        ("range_start", "coroutine"),
        ("range_end", None),
        ("profiling_stop", None),
        ("profiling_start", None),
    ]


def test_python_without_preload() -> None:
    assert python(dict(os.environ)) == [False, False]
