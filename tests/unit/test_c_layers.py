"""The order of folders and files in shim/: includes as written, symbols as compiled.

A file may use its own folder and those that `ALLOWED` lists for it; files have no cycles.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.places import ROOT

SHIM = ROOT / "shim"
#: Folders that a file in a folder may include and call, besides its own.
ALLOWED = {
    "include": set[str](),
    "core": {"include"},
    "managed": {"include", "core"},
    "backends/nvidia": {"include", "core", "managed"},
    "backends/amd": {"include", "core"},
    "backends/refacc": {"include", "core", "managed"},
    "frameworks": {"include", "core"},
    "frameworks/torch": {"include", "core", "frameworks"},
    "frameworks/jax": {"include", "core", "frameworks"},
    "annotations": {"include", "core"},
    "communication": {"include", "core"},
    "communication/nccl": {"include", "core", "communication"},
    "python": {"include", "core"},
    "sampler": {"include", "core", "python"},
    "refacc": set[str](),
    "refacc/demos": {"include", "refacc"},
    ".": {"core", "backends/nvidia", "backends/amd", "backends/refacc", "frameworks",
          "frameworks/torch", "frameworks/jax", "annotations", "communication", "python"},
}  # fmt: skip
#: Folders of which only headers are used: those of a vendor.
HEADERS = {"backends/refacc": {"refacc"}}
#: The device of the reference accelerator: shim/README.md explains why these files form a cycle.
CIRCLE = {
    f"refacc/{name}.c"
    for name in (
        *("device", "execute", "golden", "graph", "kernels", "managed", "memory", "module"),
        *("stream", "tools", "transfer"),
    )
}
#: Files that interpose functions of others, which nobody here calls there.
INTERPOSING = {"backends/nvidia/managed.c", "backends/refacc/managed.c"}
#: Separate programs and generated modules.
NOT_LINKED = {"command.c", "python/interpreter.inc.c"}


def folder(file: str) -> str:
    return str(Path(file).parent)


def allowed(file: str, used: str) -> bool:
    return folder(used) == folder(file) or folder(used) in ALLOWED[folder(file)]


def sources() -> list[str]:
    return sorted(str(path.relative_to(SHIM)) for path in SHIM.rglob("*.[ch]"))


def included(file: str) -> Iterator[str]:
    """Headers of shim/ that a file includes."""
    directories = [(SHIM / file).parent, SHIM / "include", SHIM / "refacc"]
    for name in re.findall(r'^\s*#include "([^"]+)"', (SHIM / file).read_text(), re.MULTILINE):
        found = [path for each in directories if (path := (each / name).resolve()).exists()]
        assert found, f"{file} includes {name}, which is nowhere"
        yield str(found[0].relative_to(SHIM))


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Groups of nodes that reach each other."""
    reached: dict[str, set[str]] = {}
    for node in graph:
        seen, left = set[str](), [node]
        while left:
            new = graph.get(left.pop(), set()) - seen
            seen |= new
            left.extend(new)
        reached[node] = seen
    found = []
    for node in graph:
        group = {other for other in reached[node] if node in reached.get(other, ())}
        if group and group not in found:
            found.append(group)
    return found


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The files that define the functions and variables used by each file."""
    directory = tmp_path_factory.mktemp("objects")
    compiler = os.environ.get("CC", "cc").split()
    files = [
        file
        for file in sources()
        if file.endswith(".c") and file not in NOT_LINKED and folder(file) != "refacc/demos"
    ]

    def symbols(file: str) -> tuple[set[str], set[str]]:
        output = directory / (file.replace("/", "-") + ".o")
        command = [*compiler, "-std=c11", "-O0", "-w", "-pthread", "-DPASTA_INSIDE", "-c"]
        subprocess.run([*command, SHIM / file, "-o", output], check=True)
        listed = subprocess.run(
            ["nm", "--format=posix", output], check=True, capture_output=True, text=True
        ).stdout
        rows = [line.split()[:2] for line in listed.splitlines()]
        defined = {name for name, kind in rows if kind.isupper() and kind != "U"}
        if file in INTERPOSING:
            defined = {name for name in defined if name.startswith("pasta_")}
        return defined, {name for name, kind in rows if kind == "U"}

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip(files, pool.map(symbols, files), strict=True))
    owners = {name: file for file, (defined, _) in found.items() for name in defined}
    return {
        file: {owners[name] for name in used if name in owners} - {file}
        for file, (_, used) in found.items()
    }


def test_every_folder_has_a_layer() -> None:
    assert {folder(file) for file in sources()} <= set(ALLOWED)


def test_files_include_only_lower_layers() -> None:
    wrong = [
        f"{file} includes {used}"
        for file in sources()
        for used in included(file)
        if not allowed(file, used) and folder(used) not in HEADERS.get(folder(file), ())
    ]
    assert wrong == []


def test_headers_have_no_cycles() -> None:
    assert circles({file: set(included(file)) for file in sources()}) == []


@pytest.mark.slow
def test_files_call_only_lower_layers(calls: dict[str, set[str]]) -> None:
    wrong = [
        f"{file} uses {used}"
        for file, others in calls.items()
        for used in sorted(others)
        if not allowed(file, used)
    ]
    assert wrong == []


@pytest.mark.slow
def test_files_have_no_cycles(calls: dict[str, set[str]]) -> None:
    assert circles(calls) == [CIRCLE]
