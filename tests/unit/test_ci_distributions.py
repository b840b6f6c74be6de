"""What ci/distributions does not let into a package index."""

from __future__ import annotations

import zipfile
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from pasta import paths
from shim.build import BuildError, Compiler, Platform
from tests.support.places import ROOT

PLATFORM = "manylinux_2_28_x86_64"


@pytest.fixture(scope="module")
def distributions() -> ModuleType:
    pytest.importorskip("elftools", reason="needs auditwheel: pip install the dev extra")
    loader = SourceFileLoader("distributions", str(ROOT / "ci" / "distributions"))
    spec = spec_from_loader(loader.name, loader)
    assert spec
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture
def objections(distributions: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Objections to a wheel that has all of PASTA's compiled files, and these too."""

    def found(shown: str = PLATFORM, **more: bytes) -> list[str]:
        monkeypatch.setattr(
            distributions, "_run", lambda *_: f'consistent with the platform tag:\n"{shown}"'
        )
        wheel = tmp_path / "pasta_profiler.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for pattern in distributions.COMPILED:
                name = pattern.replace("*", "x")
                archive.writestr(
                    name, more.get(name) or (paths.NATIVE / "libpasta.so").read_bytes()
                )
            for name in more.keys() - {each.replace("*", "x") for each in distributions.COMPILED}:
                archive.writestr(name, more[name])
        return list(distributions.objections(wheel, PLATFORM))

    return found


def test_good_wheel(objections) -> None:
    mine = [each for each in objections() if "path of this checkout" not in each]
    assert mine == []  # libraries of a checkout name it in their debug information


def test_code_of_others_and_foreign_libraries(objections) -> None:
    library = (paths.NATIVE / "libpasta.so").read_bytes()
    linked = (paths.NATIVE / "libpasta_amd.so").read_bytes()
    found = objections(**{"pasta/libvendor.so.1": library, "pasta/_native/librefacc.so": linked})
    assert "pasta/libvendor.so.1: compiled code that is not PASTA's" in found
    assert "pasta/_native/librefacc.so: links libpasta.so" in found


def test_newer_glibc_and_other_machine(objections) -> None:
    for shown in ("manylinux_2_34_x86_64", "manylinux_2_17_aarch64", "linux_x86_64"):
        assert any(f"good for {shown}, not for {PLATFORM}" in each for each in objections(shown))
    assert not any("auditwheel" in each for each in objections("manylinux_2_17_x86_64"))


def test_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASTA_PLATFORM", "manylinux_2_28_aarch64")
    assert Platform.given() == Platform("manylinux_2_28_aarch64", "aarch64", "2.28")
    monkeypatch.setattr("shim.build.find_spec", lambda _name: object())
    assert Compiler.find().command[-2:] == ("-target", "aarch64-linux-gnu.2.28")
    monkeypatch.setattr("shim.build.find_spec", lambda _name: None)
    with pytest.raises(BuildError, match="needs Zig: pip install ziglang"):
        Compiler.find()
    monkeypatch.setenv("PASTA_PLATFORM", "linux_x86_64")
    with pytest.raises(BuildError, match="is not a platform such as"):
        Platform.given()


def test_files_are_joined_where_compiler_and_linker_can(tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    for script, flags, joined in (
        ("exit 0", (), ("-flto=auto",)),
        ("exit 0", ("-fsanitize=address",), ()),
        ("exit 1", (), ()),
    ):
        compiler.write_text(f"#!/bin/sh\n{script}\n")
        compiler.chmod(0o755)
        assert Compiler((str(compiler),), flags).joins_files() == joined
