"""Patches compiled once, and the plan: versions, the cache, errors for missing parts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pasta import private
from pasta.backends.nvidia.libraries import find_ptxas
from pasta.backends.nvidia.nvptx import compile_patches
from pasta.backends.nvidia.patches import write
from pasta.backends.nvidia.plan import (
    arguments_of,
    functions_of,
    instances_of,
    layout_of,
    library_version,
    plan_for,
)
from pasta.errors import MissingDependency, PastaError, ToolError
from pasta.plugins import built_in_names, load_tools
from pasta.probes import Counter, maps_of, probe
from pasta.probes.placements import PerLaunchPc
from pasta.tool import Result, Tool
from tests.support.counted import Counted
from tests.support.places import ROOT

PTXAS = """#!/bin/sh
while [ $# -gt 0 ]; do
    [ "$1" = -o ] && echo cubin >"$2"
    shift
done
echo call >>{log}
"""


@pytest.fixture
def ptxas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file with a line for each call of a compiler that does nothing."""
    log = tmp_path / "calls"
    log.write_text("")
    script = tmp_path / "ptxas"
    script.write_text(PTXAS.format(log=log))
    script.chmod(0o755)
    monkeypatch.setenv("PASTA_PTXAS", str(script))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PASTA_SANITIZER_VERSION", "13.5")
    find_ptxas.cache_clear()
    yield log
    find_ptxas.cache_clear()  # of later tests


def calls(log: Path) -> int:
    return len(log.read_text().splitlines())


def plan(
    sms: tuple[int, ...] = (90,),
    *,
    waits: bool = True,
    on_missing: Callable[[], None] | None = None,
) -> tuple[str, ...]:
    library = Path("libsanitizer-public.so")
    return plan_for([Counted()], library, sms, 1 << 28, waits=waits, on_missing=on_missing)


@pytest.mark.slow
def test_a_plan_is_compiled_once(ptxas: Path) -> None:
    missing: list[str] = []
    first = plan(on_missing=lambda: missing.append("first"))
    assert calls(ptxas) == 1
    assert plan(on_missing=lambda: missing.append("second")) == first
    assert missing == ["first"]
    assert calls(ptxas) == 1
    (cubin,) = (Path(line.split()[2]) for line in first if line.startswith("cubin 90 "))
    assert cubin.read_text() == "cubin\n"
    assert plan((90, 80))[0] == first[0]
    assert calls(ptxas) == 2
    assert "api 13.5" in first and "patch 3 pasta_global" in first


def test_nothing_is_compiled_without_a_device(ptxas: Path) -> None:
    assert plan(()) == ()
    assert calls(ptxas) == 0


@pytest.mark.slow
def test_a_cubin_exists_soon_after_the_launcher_went_on(ptxas: Path) -> None:
    lines = plan(waits=False)
    (cubin,) = (Path(line.split()[2]) for line in lines if line.startswith("cubin 90 "))
    with cubin.with_suffix(".lock").open() as lock:
        private.lock(lock.fileno(), wait=True)  # until the compiler has ended
    assert cubin.exists() and calls(ptxas) == 1


@pytest.mark.slow
def test_concurrent_processes_compile_once(ptxas: Path) -> None:
    code = "from tests.unit.test_probe_build import plan; print(plan())"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    both = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    first, second = (process.communicate(timeout=60)[0] for process in both)
    assert first == second and b"cubin" in first
    assert calls(ptxas) == 1


def test_the_launcher_waits_until_ptxas_is_left(
    ptxas: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = tmp_path / "begin"
    code = (
        "import json, os, sys; os.close(json.load(sys.stdin)['before_ptxas']);"
        "sys.exit(open(sys.argv[1]).read())"
    )
    os.mkfifo(begin)
    command = [sys.executable, "-c", code]
    monkeypatch.setattr("pasta.own_python.own_python", lambda module: [*command, str(begin)])
    first, second = plan(waits=False), plan(waits=False)
    assert first == second
    (cubin,) = (Path(line.split()[2]) for line in first if line.startswith("cubin 90 "))
    with cubin.with_suffix(".lock").open() as lock:
        assert not private.lock(lock.fileno())  # what libpasta waits for
        begin.write_text("")
        private.lock(lock.fileno(), wait=True)
    begin.unlink()
    begin.write_text("pasta: no such thing")
    with pytest.raises(ToolError, match="probes do not compile for sm_90: no such thing"):
        plan()


class Known(Tool):
    """Counts by object, and unattributed accesses."""

    objects = Counter(by="object")
    others = Counter()

    @probe.global_memory
    def count(access, maps) -> None:  # type: ignore[no-untyped-def]
        if access.object >= 0:
            maps.objects.add(access.object)
        else:
            maps.others.add()

    def result(self) -> Result:
        return Result(summary="")


class Objects(Tool):
    """Counts by object."""

    objects = Counter(by="object")

    @probe.global_memory
    def count(access, maps) -> None:  # type: ignore[no-untyped-def]
        maps.objects.add(access.object)

    def result(self) -> Result:
        return Result(summary="")


class SectorsOfObjects(Objects):
    """Counts sectors by object."""

    @probe.global_memory
    def count(access, maps) -> None:  # type: ignore[no-untyped-def]
        maps.objects.add(access.object, access.sectors)


class Warps(Tool):
    """Counts warp instructions, lanes, and wavefronts."""

    warps = Counter(by="launch")
    lanes = Counter(by="launch")
    waves = Counter(by="launch")

    @probe.on("shared", "matrix", "remote_shared", per="warp")
    def count(access, maps) -> None:  # type: ignore[no-untyped-def]
        maps.warps.add()

    @probe.on("shared")
    def count_lanes(access, maps) -> None:  # type: ignore[no-untyped-def]
        maps.lanes.add()

    @probe.on("remote_shared", per="warp")
    def count_waves(access, maps) -> None:  # type: ignore[no-untyped-def]
        maps.waves.add(access.ways)

    def result(self) -> Result:
        return Result(summary="")


def patch(tool: Tool, kind: str = "global") -> str:
    text, _ = write(layout_of([tool]), instances_of([tool]), "13.5")
    return text[text.index(f"def pasta_{kind}(") :].split("\n\n")[0]


def test_lanes_with_nothing_to_do_leave_at_once() -> None:
    mask, first = "mask = activemask() & first_lanes(8 * count)", "is_first(mask)"
    idle = "if (user == 0) | (some(before(mask) | flags & 8)) | (some(mask) == 0):"
    lines = [line.strip() for line in patch(Warps(), "matrix").splitlines()]
    at = lines.index(idle)
    assert lines.index(mask) < at and lines[at + 1] == "return 0"
    assert not any(first in line for line in lines)
    # lanes are counted here, and their addresses compared there
    for kind in ("shared", "remote_shared"):
        text = patch(Warps(), kind)
        assert f"if {first} != 0:\n        t0_count(" in text and "before(" not in text


def test_object_is_looked_up_where_a_probe_compares_it() -> None:
    assert "found = find(user, address)\n    object = found - 1\n" in patch(Known())
    # otherwise lanes in buckets of one object go another way than others
    ways = patch(Objects()).partition("low = bucket_of(user, address)\n    if low < 0:\n")[2]
    usual, _, other = ways.partition("        return 0\n    found = find_apart(user, address)\n")
    assert "find" not in ways.replace("find_apart(user, address)", "")
    for way, text in (("USUAL", usual), ("OTHER", other)):
        assert text.count("t0_count(") == 1 and f"env = (user, found, {way}, " in text
    # but not if a field compares lanes
    assert "found = find(user, address)" in patch(SectorsOfObjects())


@pytest.mark.slow
@pytest.mark.parametrize("sm", [90, 100])  # on older devices patches have fewer free registers
def test_common_path_saves_no_registers(sm: int) -> None:
    """Each register that a patch saves costs as much as one that the library's trampoline saves;
    three tools together need more registers than each of them."""
    try:
        find_ptxas()
    except MissingDependency as error:
        pytest.skip(str(error))
    tools = load_tools(["access_count", "working_set", "hotness"])
    text, patches = write(layout_of(tools), instances_of(tools), "13.5")
    usage = compile_patches(functions_of(text, arguments_of(patches)), sm).usage
    frames = dict(re.findall(r"properties for (\w+)\n +(\d+) bytes stack frame", usage))
    most = {f"pasta_{kind}" for kind in ("global", "shared", "local", "matrix", "async_copy")}
    assert most <= frames.keys()
    assert {frames[each] for each in most} == {"0"}


def test_missing_ptxas_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PASTA_PTXAS", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("pasta.paths.module_path", list)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    find_ptxas.cache_clear()
    with pytest.raises(MissingDependency) as raised:
        find_ptxas()
    find_ptxas.cache_clear()
    assert "pip install nvidia-cuda-nvcc" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_unknown_version_is_one_line(ptxas: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASTA_SANITIZER_VERSION", "14.0")
    with pytest.raises(PastaError, match=r"version 14\.0") as raised:
        plan()
    assert "\n" not in str(raised.value)
    assert calls(ptxas) == 0


@pytest.mark.parametrize(
    ("library", "beside", "text", "version"),
    [
        ("nvidia/cu13/compute-sanitizer", "nvidia_cuda_sanitizer_api-13.4.92", "", "13.4"),
        ("nvidia/cu13/lib", "nvidia_cuda_sanitizer_api-13.0.85", "", "13.0"),
        ("nvidia/cuda_sanitizer_api/lib", "nvidia_cuda_sanitizer_api_cu12-12.9.79", "", "12.9"),
        ("cuda/compute-sanitizer", "", '{"cuda_sanitizer_api": {"version": "13.1.118"}}', "13.1"),
        ("cuda/compute-sanitizer", "", '{"cuda": {"version": "13.2.0"}}', "13.2"),
    ],
)
def test_version_of_a_library(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    library: str,
    beside: str,
    text: str,
    version: str,
) -> None:
    monkeypatch.delenv("PASTA_SANITIZER_VERSION", raising=False)
    path = tmp_path / library / "libsanitizer-public.so"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    if beside:
        (tmp_path / f"{beside}.dist-info").mkdir()
    else:
        json.loads(text)
        (tmp_path / "cuda" / "version.json").write_text(text)
    assert library_version(path) == version


def test_library_of_unknown_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PASTA_SANITIZER_VERSION", raising=False)
    with pytest.raises(PastaError, match="PASTA_SANITIZER_VERSION="):
        library_version(tmp_path / "libsanitizer-public.so")


def _has_ptxas() -> bool:
    try:
        return bool(find_ptxas())
    except MissingDependency:
        return False


def _probing() -> list[str]:
    return [name for name in built_in_names() if "probes" in load_tools([name])[0].needed()]


def _counts_by_launch(name: str) -> bool:
    (tool,) = load_tools([name], sampled=True)
    return any(isinstance(each.placement, PerLaunchPc) for each in maps_of(tool).values())


#: Every tool for one device and version; the one with all access kinds for the other versions, and
#: the other devices; and for samples the tools that then count instructions by launch.
COMBINATIONS = [
    *((name, 90, "13.5", False) for name in _probing()),
    *((name, 90, "13.5", True) for name in _probing() if _counts_by_launch(name)),
    *(("access_count", sm, version, False) for sm, version in ((80, "12.9"), (100, "13.0"))),
]


@pytest.mark.slow
@pytest.mark.skipif(not _has_ptxas(), reason="no ptxas: pip install nvidia-cuda-nvcc")
@pytest.mark.parametrize(("name", "sm", "version", "sampled"), COMBINATIONS)
def test_built_in_tools_compile(
    name: str,
    sm: int,
    version: str,
    sampled: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PASTA_SANITIZER_VERSION", version)
    find_ptxas.cache_clear()
    tools = load_tools([name], sampled=sampled)
    lines = plan_for(tools, Path("libsanitizer-public.so"), [sm], 1 << 28)
    (cubin,) = (Path(line.split()[2]) for line in lines if line.startswith("cubin "))
    assert cubin.read_bytes()[:4] == b"\x7fELF"
    symbols = cubin.read_bytes()
    for line in lines:
        if line.startswith("patch "):
            assert line.split()[2].encode() in symbols
