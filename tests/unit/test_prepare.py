"""`pasta prepare`: what it compiles, for which devices."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pasta import paths
from pasta.cli.main import main
from pasta.compiled import Compiled, store
from pasta.config import Config
from pasta.plugins import built_in_names
from pasta.runtime import preparation
from pasta.runtime.assembly import make_tools
from pasta.runtime.preparation import MODULES, built_in, compile_probes, functions_of
from pasta.runtime.probe_plan import reach_host
from tests.support.places import ROOT


def of(*tools: str) -> Config:
    config = Config()
    config.tools += tools
    return config


def test_all_modules_with_compiled_functions_are_known() -> None:
    marked = re.compile(r"^@compiled\(", re.M)
    files = [path for path in paths.PACKAGE.rglob("*.py") if marked.search(path.read_text())]
    parts = (path.relative_to(paths.PACKAGE.parent).with_suffix("").parts for path in files)
    names = {".".join(each) for each in parts}
    assert names - {"pasta.probes.cpu"} == set(MODULES)  # it generates text with one


def test_functions_of_tools() -> None:
    common, hotness = (
        functions_of([of("kernel_freq")]),
        functions_of([of("hotness"), of("hotness")]),
    )
    assert len(hotness) == len(common) + 1
    assert hotness[-1].text is not None and common == hotness[:-1]
    assert {each.place[0] for each in common} == set(MODULES)


def test_built_in_tools_and_presets_are_prepared() -> None:
    tools = [config.tools for config in built_in()]
    assert [[name] for name in built_in_names()] == tools[: len(built_in_names())]
    assert ["access_count", "working_set", "hotness"] in tools


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Architecture and tools of each call of a device's compiler."""
    calls: list[tuple[str, ...]] = []

    class Device:
        def compile(self, tools: Any, given: Any) -> list[str]:
            calls.append((given.architecture, *(type(each).name for each in tools)))
            return ["line"] * (given.architecture != 75)

    backends = [SimpleNamespace(probes=None), SimpleNamespace(probes=Device())]
    monkeypatch.setattr(Config, "backends", lambda self: backends)
    monkeypatch.setattr(Compiled, "prepare", lambda self: None)
    monkeypatch.setattr("pasta.compiled.building.build_missing", lambda functions: 2)
    monkeypatch.setattr(store, "level", lambda: "x86-64-v9")
    monkeypatch.setattr(store, "is_writable", lambda: True)
    return calls


def test_probes_are_compiled_for_each_architecture(compiled: list[tuple[str, ...]]) -> None:
    configs = [of("kernel_freq"), of("copies", "hotness"), of("hotness", "mem_trace")]
    assert compile_probes(configs, [75, 90]) == 2
    assert sorted(compiled) == [
        (sm, *tools) for sm in (75, 90) for tools in (("hotness",), ("hotness", "mem_trace"))
    ]
    compiled.clear()
    assert compile_probes(configs[:2], []) == 1 and compiled == [(0, "hotness")]


def test_the_verb(compiled: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "-t", "hotness", "--arch", "sm_90", "--arch", "100"]) == 0
    assert sorted(compiled) == [(90, "hotness"), (100, "hotness")]
    out = capsys.readouterr().out
    assert re.match(
        r"2 functions compiled for x86-64-v9, \d+ functions already in the cache\n", out
    )
    assert out.endswith("probes for devices: 2 selections of tools\n")


def test_errors_name_the_option(
    compiled: list[tuple[str, ...]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main(["prepare", "--arch", "hopper"]) == 2
    assert (
        "--arch 'hopper' is not an architecture: use a number such as 90" in capsys.readouterr().err
    )
    monkeypatch.setattr(store, "is_writable", lambda: False)
    assert main(["prepare", "-t", "kernel_freq"]) == 2
    assert "compiled code cannot be stored: set XDG_CACHE_HOME" in capsys.readouterr().err


def test_what_a_collector_calls_is_compiled_beside_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[tuple[str, str]] = []
    monkeypatch.setattr(
        preparation, "build_missing", lambda all: built.extend(f.place for f in all)
    )
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(of("access_count").document())))
    assert preparation.main() == 0
    assert {module for module, _ in built} == {"pasta.processors.objects"}


@pytest.mark.parametrize(
    ("lines", "tool", "reached"),
    [
        ("kinds 1\n", "access_count", True),
        ("kinds 1\napi 13.5\n", "access_count", False),
        ("kinds 1\napi 13.5\n", "mem_trace", True),
        (None, "access_count", True),
    ],
)
def test_accesses_reach_the_host_unless_devices_count_them(
    lines: str | None, tool: str, reached: bool, tmp_path: Path
) -> None:
    session: Any = SimpleNamespace(probes=tmp_path / "probes")
    if lines is not None:
        session.probes.write_text(lines)
    assert reach_host(session, make_tools(of(tool))) == reached


def test_help_names_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "default: all built-in tools and presets" in shown and "default: kernel" not in shown


def test_docs_name_the_verb() -> None:
    assert "pasta prepare --arch" in (ROOT / "docs" / "batch.md").read_text()
