"""Finding and testing rocprofiler-sdk, and changing its list of tools."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pasta import paths
from pasta.backends.amd import rocprofiler as rocm
from pasta.backends.amd.rocprofiler import (
    find_rocprofiler,
    load_rocprofiler,
    usable_rocprofiler,
    with_tool,
)
from pasta.errors import MissingDependency
from pasta.runtime.injection import unprofiled_environment

LIBRARY = "librocprofiler-sdk.so"
SDK = """
#include <stdint.h>
#include <stdlib.h>
int rocprofiler_set_api_table(void) { return 0; }
int rocprofiler_get_version(uint32_t *major, uint32_t *minor, uint32_t *patch) {
    *major = 1, *minor = 2, *patch = 3;
    return 0;
}
"""

Sdk = Callable[..., Path]


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment without an SDK, even if this machine has one; tests add to it."""
    for name in (rocm.NAMED, "ROCPROFILER_REGISTER_LIBRARY", "LD_LIBRARY_PATH", *rocm._ROOTS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(paths, "module_path", lambda: [str(tmp_path / "site")])
    monkeypatch.setattr(rocm, "_installed", lambda: [tmp_path / "rocm"])
    monkeypatch.setattr(rocm, "_CACHE", tmp_path / "ld.so.cache")
    return tmp_path


@pytest.fixture(scope="session")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Sdk:
    """Compiles a library that replaces the SDK."""

    def build(source: str = SDK, *options: str) -> Path:
        directory = tmp_path_factory.mktemp("sdk")
        (directory / "sdk.c").write_text(source)
        command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "sdk.c", "-o", LIBRARY]
        subprocess.run([*command, *options], cwd=directory, check=True)
        return directory / LIBRARY

    return build


def put(directory: Path, *names: str) -> Path:
    directory.mkdir(parents=True)
    for name in names or (LIBRARY,):
        (directory / name).touch()
    return directory / min(names or (LIBRARY,))


def test_no_installation(nowhere: Path) -> None:
    assert find_rocprofiler() is None
    assert usable_rocprofiler() is None


def test_search_order(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each place precedes those that were filled earlier."""
    linked = put(nowhere / "linked")
    (nowhere / "ld.so.cache").write_bytes(
        b"glibc-ld.so.cache1.1\0" + b"\0".join([b"libc.so.6", b"/nonexistent/" + LIBRARY.encode()])
        + b"\0" + os.fsencode(linked) + b"\0"
    )  # fmt: skip
    assert find_rocprofiler() == linked
    installed = put(nowhere / "rocm" / "lib")
    assert find_rocprofiler() == installed
    monkeypatch.setenv("ROCM_PATH", str(nowhere / "other"))
    named = put(nowhere / "other" / "lib")
    assert find_rocprofiler() == named
    of_torch = put(nowhere / "site" / "torch" / "lib", f"{LIBRARY}.1")
    assert find_rocprofiler() == of_torch
    of_rocm = put(nowhere / "site" / "_rocm_sdk_core" / "lib", f"{LIBRARY}.1")
    assert find_rocprofiler() == of_rocm
    beside = put(nowhere / "env" / "lib" / "python3.12" / "site-packages" / "torch" / "lib")
    assert find_rocprofiler(str(nowhere / "env" / "bin" / "python")) == beside
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nonexistent:{put(nowhere / 'first').parent}")
    assert find_rocprofiler(str(nowhere / "env" / "bin" / "python")) == nowhere / "first" / LIBRARY
    monkeypatch.setenv("ROCPROFILER_REGISTER_LIBRARY", "/registered.so")
    assert find_rocprofiler() == Path("/registered.so")
    monkeypatch.setenv(rocm.NAMED, "/named.so")
    assert find_rocprofiler() == Path("/named.so")


def test_library_names_in_a_directory(nowhere: Path) -> None:
    put(nowhere / "rocm" / "lib", f"{LIBRARY}.1.0.0", f"{LIBRARY}.1", f"{LIBRARY}.debug")
    assert find_rocprofiler() == nowhere / "rocm" / "lib" / f"{LIBRARY}.1"


@pytest.mark.parametrize("place", ["environment", "root", "installed", "wheel", "path", "loader"])
def test_versioned_library_name_only(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """As in ROCm's wheels and runtime packages."""
    directory = {
        "environment": nowhere / "named",
        "root": nowhere / "root" / "lib",
        "installed": nowhere / "rocm" / "lib",
        "wheel": nowhere / "site" / "_rocm_sdk_core" / "lib",
        "path": nowhere / "path",
        "loader": nowhere / "linked",
    }[place]
    library = put(directory, f"{LIBRARY}.1")
    monkeypatch.setenv("ROCM_PATH", str(nowhere / "root"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nowhere / "path"))
    if place == "environment":
        monkeypatch.setenv(rocm.NAMED, str(library))
    if place == "loader":
        (nowhere / "ld.so.cache").write_bytes(b"glibc\0" + os.fsencode(library) + b"\0")
    assert find_rocprofiler() == library


def test_newest_rocm_version_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("rocm-6.3.1", "rocm-7.0.0", "rocm-6.10.0"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(rocm, "Path", lambda _: tmp_path)
    assert [path.name for path in rocm._installed()] == [
        "rocm", "rocm-7.0.0", "rocm-6.10.0", "rocm-6.3.1",
    ]  # fmt: skip


def test_loadable_sdk(sdk: Sdk, nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = sdk()
    monkeypatch.setenv(rocm.NAMED, str(library))
    found = usable_rocprofiler()
    assert found is not None
    assert (found.library, found.version) == (library, "1.2.3")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("int x;", "rocprofiler_set_api_table"),
        (SDK + "__attribute__((constructor)) static void end(void) { abort(); }", "status -6"),
        (SDK + "extern int missing(void); int call(void) { return missing(); }", "missing"),
        (SDK.replace("return 0;\n}", "return 7;\n}"), "it does not report its version"),
        (SDK + '__attribute__((constructor)) static void say(void) { exit(3); }', "status 3"),
    ],
)  # fmt: skip
def test_unloadable_sdk(sdk: Sdk, source: str, why: str) -> None:
    with pytest.raises(MissingDependency, match="cannot be loaded") as raised:
        load_rocprofiler(sdk(source))
    assert why in str(raised.value)
    assert raised.value.remedy and rocm.NAMED in raised.value.remedy


def test_hanging_sdk(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocm, "_LOAD_SECONDS", 0.2)
    source = (
        SDK + "#include <unistd.h>\n__attribute__((constructor)) static void w(void) {pause();}"
    )
    with pytest.raises(MissingDependency, match=r"no answer within 0.2 s"):
        load_rocprofiler(sdk(source))


def test_loading_the_sdk_runs_no_tool(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    source = SDK + (
        "__attribute__((constructor)) static void tools(void) {"
        '    if (getenv("ROCP_TOOL_LIBRARIES") || getenv("LD_PRELOAD")) abort();'
        "}"
    )
    monkeypatch.setenv("ROCP_TOOL_LIBRARIES", "/a/tool.so")
    assert load_rocprofiler(sdk(source)).version == "1.2.3"


def test_the_search_starts_no_process(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", start)
    assert find_rocprofiler("/usr/bin/python3") is None


def test_list_of_tools() -> None:
    tool, ours = rocm.LIBPASTA_AMD, str(rocm.LIBPASTA_AMD)
    assert with_tool({"A": "1"}, None) == {"A": "1"}
    assert with_tool({"A": "1"}, tool) == {"A": "1", rocm.TOOLS: ours}
    assert with_tool({rocm.TOOLS: "/a.so:/b.so"}, tool) == {rocm.TOOLS: f"/a.so:/b.so:{ours}:"}
    assert with_tool({rocm.TOOLS: f"{ours}:/a.so"}, tool) == {rocm.TOOLS: f"/a.so:{ours}:"}
    assert with_tool({rocm.TOOLS: f"/a.so:{ours}:"}, None) == {rocm.TOOLS: "/a.so"}
    assert with_tool({rocm.TOOLS: ours}, None) == {}
    assert with_tool({rocm.TOOLS: ""}, None) == {rocm.TOOLS: ""}
    assert with_tool({rocm.TOOLS: "/a.so::/b.so"}, None) == {rocm.TOOLS: "/a.so::/b.so"}
    assert rocm.TOOLS not in unprofiled_environment({rocm.TOOLS: ours})
