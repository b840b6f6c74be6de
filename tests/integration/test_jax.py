"""JAX, followed by the ranges of XLA: a fake of both on the reference accelerator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pasta.capabilities import CAPABILITIES
from pasta.frameworks.jax import FRAMEWORK, parse_allocator
from pasta.sources import known_sources
from tests.integration.test_annotations import nvtx_include
from tests.support.places import PROGRAMS, ROOT
from tests.support.session import Session, compile_c

FAKE = PROGRAMS / "jax_fake"
#: Titles in jit_step, whose prefix is "jit(step)/jvp(MLP)": operator, module, scope.
TITLES = {
    "Thunk:#name=Dense_0/dot_general,hlo_op=dot.1,unique_hlo_op_id=1#": (
        "dot_general", "jvp(MLP)/Dense_0/dot_general (dot.1)", 0,
    ),
    # of XLA before 2026
    "Thunk:#name=Dense_0/add,hlo_op=add.1#": ("add", "jvp(MLP)/Dense_0/add (add.1)", 0),
    # does not begin with the prefix
    "Thunk:#name=jit(step)/transpose(jvp(MLP))/mul,hlo_op=mul.1#": (
        "mul", "transpose(jvp(MLP))/mul (mul.1)", 1,
    ),
    "Thunk:#name=jit(step),hlo_op=wrapped_sub#": ("wrapped_sub", "jit_step (wrapped_sub)", 0),
    # names of the program's may have any character
    "Thunk:#name=a=b,hlo_op=c#d/exp[axis=0],hlo_op=exp.10,unique_hlo_op_id=2#": (
        "exp", "jvp(MLP)/a=b,hlo_op=c#d/exp[axis=0] (exp.10)", 0,
    ),
    "Thunk:#name=Dense_0/transpose(jvp()),hlo_op=loop_add_fusion.12#": (
        "loop_add_fusion", "jvp(MLP)/Dense_0/transpose(jvp()) (loop_add_fusion.12)", 1,
    ),
    "Thunk:#hlo_op=7#": ("7", "jvp(MLP) (7)", 0),
}  # fmt: skip
#: Not read: recorded as ranges.
OTHERS = ("Thunk:", "Thunk:#", "Thunk:#hlo_op=#", "XlaModule:#program_id=1#", "XlaPass:#name=dce#")
PROGRAM = """
import ctypes, json, sys
import jax
library = ctypes.CDLL(None)
library.pasta_jax_follow(1, b"1.0")
titles, others, places = json.loads(sys.argv[1])
with jax.Range("XlaModule:#prefix=jit(step)/jvp(MLP),hlo_module=jit_step,program_id=1#"):
    for title in [*titles, *others]:
        with jax.Range(title):
            pass
    with jax.Text("Thunk:#hlo_op=not.registered#"):
        pass
    shared = 'x.2 = f32[] y(), metadata={op_name="a}/b" deduplicated_name="x" n=1}, c={op_name="z"'
    with jax.Range("Thunk:#hlo_op=x.2#", "", shared):
        pass
    for number, each in enumerate(places):
        with jax.Range(f"Thunk:#hlo_op=at.{number}#", each):
            pass
    deep = [jax.Range(f"Thunk:#hlo_op=deep.{level}#") for level in range(70)]
    for each in deep:
        each.__enter__()
    for each in deep:
        each.__exit__()
library.pasta_jax_array(4096, 64, 0, 0, b"16", b"float32")
library.pasta_jax_array_freed(4096, 64, 0, None)
"""
#: Source locations as XLA writes them: the first stack, innermost first.
PLACES: dict[str, list[tuple[str, int, str | None]]] = {
    "\n- /a b/c.py:1:2[f]\n-- /d.py:3:4[&lt;lambda&gt;] mul\n--- /e.py:5[g]\n-- /d.py:7[h]\n": [
        ("/e.py", 5, "g"), ("/d.py", 3, "<lambda>"), ("/a b/c.py", 1, "f"),
    ],
    "\n- /d:1x/c.py:12\n": [("/d:1x/c.py", 12, None)],
    "\n": [],
    "\n- [invalid]\n": [],
}  # fmt: skip


@pytest.fixture(scope="session", params=["fake headers", "real headers"])
def xla(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that names work as XLA does."""
    options = ["-shared", "-fPIC", f"-I{ROOT}"]
    if request.param == "real headers":
        include = nvtx_include()
        if not include or not (include / "nvtx3" / "nvToolsExtPayload.h").exists():
            pytest.skip("no NVTX headers: pip install nvidia-nvtx")
        options += ["-DREAL_NVTX", "-isystem", str(include)]
    directory = tmp_path_factory.mktemp("xla")
    return compile_c(directory / "libxla.so", [FAKE / "xla.c"], *options)


@pytest.fixture
def environment(xla: Path, native: Path) -> dict[str, str]:
    """Variables of a program that imports the fake jax."""
    return {
        "FAKE_XLA": str(xla),
        "REFACC_LIBRARY": str(native / "librefacc.so"),
        "PYTHONPATH": os.pathsep.join(map(str, (FAKE, PROGRAMS))),
    }


def rows(run: Any, tool: str, table: str, *columns: str) -> set[tuple[Any, ...]]:
    """Rows of a table of results."""
    found = pq.read_table(run.path / "results" / tool / f"{table}.parquet").select(columns)
    return {tuple(row[name] for name in columns) for row in found.to_pylist()}


@pytest.mark.main
@pytest.mark.parametrize("xla", ["fake headers"], indirect=True)
def test_operators_of_a_training(pasta_preload, environment: dict[str, str]) -> None:
    """Counts from arithmetic: two threads, three steps, two kernels of each instruction."""
    options = ("-t", "operators", "--set", "jax.allocator=platform")
    done = pasta_preload(
        sys.executable, FAKE / "train.py", options=options, environment=environment
    )
    assert (done.exit_status, done.stdout, done.target_stderr) == (0, "trained\n", "")
    assert done.notes == []
    run = done.run
    assert run.manifest["sources"] == {"jax": "0.11.2", "refacc": "1.0"}
    found = rows(run, "operators", "operators", "operator", "phase", "calls", "launches")
    assert {row for row in found if not row[0].startswith("(")} == {
        ("jit_train_step", "forward", 6, 0),
        ("dot_general", "forward", 6, 12),
        ("select_n", "backward", 6, 12),
        ("copy", "forward", 6, 12),
    }
    assert rows(run, "operators", "modules", "module", "launches") == {
        ("(no module)", 0),
        ("jvp(Dense_0)/dot_general (gemm_fusion_dot.5)", 12),
        ("transpose(jvp(Dense_1))/select_n (loop_select_fusion)", 12),
        ("jit_train_step (copy.2)", 12),
    }
    # an instruction without a place of its own has the module's
    assert rows(run, "operators", "lines", "line", "launches") == {
        ("model.py:9 mlp", 12),
        ("train.py:31 fit", 24),
    }


@pytest.mark.parametrize("xla", ["fake headers"], indirect=True)
def test_arrays_are_tensors(pasta_preload, environment: dict[str, str]) -> None:
    """Counts from arithmetic: kernels read and write 32 floats. An array to which another was
    donated stays the same tensor, and an exception of a signal's handler is the program's."""
    options = ("-t", "tensors", "-t", "access_count", "--set", "jax.arrays=true")
    done = pasta_preload(
        sys.executable, FAKE / "arrays.py", options=options, environment=environment
    )
    assert (done.exit_status, done.stdout, done.target_stderr) == (0, "done\n", "")
    made = ("jax.Array", "model.py:7 init")
    columns = ("shape", "dtype", "operator", "line", "allocations", "bytes")
    assert rows(done.run, "tensors", "patterns", *columns) == {
        ("16,64", "float32", *made, 1, 4096),
        ("32", "bfloat16", "jax.Array", None, 1, 64),
        ("16", "float32", *made, 1, 64),
        ("8,8", "float32", "jax.Array", None, 1, 256),
    }
    # the first kernel on the last array runs before it is listed
    columns = ("shape", "category", "accesses")
    assert rows(done.run, "access_count", "tensors", *columns) == {
        ("16,64", "buffer", 3 * 2 * 64),
        ("8,8", "buffer", 64),
    }
    frees = pq.read_table(done.run.path / "events" / "tensor_free-00000.parquet").to_pylist()
    assert [each["bytes"] for each in frees] == [64]


@pytest.mark.parametrize("xla", ["fake headers"], indirect=True)
def test_a_jax_that_lists_no_arrays_is_one_line(pasta_preload, environment: dict[str, str]) -> None:
    done = pasta_preload(
        sys.executable, FAKE / "arrays.py", "broken",
        options=("-t", "operators", "--set", "jax.arrays=true"), environment=environment,
    )  # fmt: skip
    assert (done.exit_status, done.stdout) == (0, "not interrupted\ndone\n")
    assert "_backends" in done.stderr
    assert done.stderr.count("JAX arrays are no longer recorded") == 1
    assert done.run.count("kernel_launch") == 9
    assert not list((done.run.path / "events").glob("tensor_alloc*"))


def test_texts_of_xla(xla: Path, tmp_path: Path) -> None:
    """What titles and source locations mean; what is no title stays a range."""
    session = Session.create(tmp_path / "session")
    given = json.dumps([list(TITLES), OTHERS, list(PLACES)])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, given],
        env={**session.environment(), "FAKE_XLA": str(xla), "PYTHONPATH": str(FAKE)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    records = session.records()
    begun = [each for each in records if each["event"] == "operator_begin"]
    module, *operations = begun[: 1 + len(TITLES)]
    assert (module["name"], module.get("module"), module["depth"]) == ("jit_step", None, 1)
    assert {each["depth"] for each in operations} == {2}
    found = [(each["name"], each.get("module"), each["scope"]) for each in operations]
    assert found == list(TITLES.values())
    ranges = [each["name"] for each in records if each["event"] == "range_push"]
    # the innermost of very deep ranges are ranges, too
    deep = [f"Thunk:#hlo_op=deep.{level}#" for level in range(15, 70)]
    assert ranges == ["jit_step", *OTHERS, "Thunk:#hlo_op=not.registered#", *deep]
    counts = Counter(each["event"] for each in records)
    assert counts["operator_begin"] == counts["operator_end"] == 3 + len(TITLES) + len(PLACES) + 15
    assert counts["range_push"] == counts["range_pop"]
    assert counts.keys() & CAPABILITIES.keys() == set(known_sources()["jax"].gives)
    stacks = {each["name"]: each["stack"] for each in begun}
    frames = [each for each in records if each["event"] == "python_frame"]
    shared, *placed = begun[1 + len(TITLES) : 2 + len(TITLES) + len(PLACES)]
    assert (shared["name"], shared["module"]) == ("b", "a}/b (x.2)")
    for begin, expected in zip(placed, PLACES.values(), strict=True):
        own = [each for each in frames if each["stack"] == begin["stack"]]
        assert [(each["file"], each["line"], each.get("function")) for each in own] == expected
        assert bool(begin["stack"]) == bool(expected)
    assert stacks["jit_step"] == 0
    kernels = [each["name"] for each in records if each["event"] == "graph_node"]
    assert (kernels[:2], kernels[len(TITLES)]) == (["dot_1", "add_1"], "x")


def test_another_reader_of_nvtx_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVTX_INJECTION64_PATH", raising=False)
    assert list(FRAMEWORK.checks()) == []
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/opt/nsys/libToolsInjection64.so")
    (check,) = FRAMEWORK.checks()
    assert (check.state, check.remedy) == ("note", "unset NVTX_INJECTION64_PATH")


@pytest.mark.parametrize("name", ["platform", "bfc", "cuda_async", ""])
def test_allocators(name: str) -> None:
    assert parse_allocator(name) == name
    with pytest.raises(ValueError, match="platform, bfc, cuda_async"):
        parse_allocator(name + "?")
