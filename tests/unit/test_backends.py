"""Notes in results about the run's backend, and docs/backends.md."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

import pasta
from docs import reference
from pasta.capabilities import Source, names
from pasta.plugins import find_tools, list_tools, load_tools
from pasta.probes import Counter, probe
from pasta.report.exports.json import write_json
from pasta.report.notebook import render_html
from pasta.report.page import render_page
from pasta.report.text import text_report, write_text_report
from pasta.run.directory import RunDirectory
from pasta.run.merge import merge
from pasta.run.results import write_result
from pasta.run.root import Root
from pasta.runtime.parity import with_gaps
from pasta.sources import Capabilities
from pasta.table import Table
from pasta.tool import Result, Tool
from tests.support.places import ROOT
from tests.support.runs import made_up

RESULT = Result("something", {"table": Table({"one": [1]})})
NOTE = (
    "not given by nvidia_sanitizer: device times of kernels, properties of devices, registers, "
    "static shared memory, "
    "dynamic shared memory, local memory"
)


class Reads(Tool):
    """A tool with a probe."""

    read = Counter(by="kernel")

    @probe.global_memory
    def count(access, maps) -> None:
        maps.read.add(1)

    def result(self) -> Result:
        return RESULT


class Wrong(Tool):
    """A tool that requires an unknown capability."""

    uses = ("register",)


def kernel_freq() -> Tool:
    (found,) = load_tools(["kernel_freq"], {}, [])
    return found


def test_docs_are_up_to_date() -> None:
    for name, render in reference.PAGES.items():
        path = f"docs/man/{name}" if name.endswith(".1") else f"docs/{name}.md"
        assert (ROOT / path).read_text() == render(), (
            f"run: python -m docs.reference {name} > {path}"
        )


def test_sources_declare_known_capabilities() -> None:
    with pytest.raises(ValueError, match="source made_up: 'register' is not a capability"):
        Source("made_up", "made up", names("kernel_launch register"))


def test_capabilities_of_several_sources() -> None:
    both = Capabilities(("torch", "nvidia_sanitizer", "amd_rocprofiler", "of a later PASTA"))
    assert both.accelerators == ("nvidia_sanitizer", "amd_rocprofiler")
    assert "kernel_complete" in both and "accesses" in both and "operator_begin" in both
    assert "uvm_source" not in both
    assert "operator_begin" in both.kinds and "registers" not in both.kinds
    gaps = both.missing(["kernel_complete", "accesses", "uvm_source", "range_push", "graph_node"])
    assert {source: [each.name for each in found] for source, found in gaps.items()} == {
        "nvidia_sanitizer": ["kernel_complete"],
        "amd_rocprofiler": ["accesses"],
    }


def test_framework_capabilities_are_not_missing() -> None:
    alone, torch = Capabilities(("refacc",)), Capabilities(("refacc", "torch"))
    assert [each.name for each in alone.missing(["graph_instantiate"])["refacc"]] == [
        "graph_instantiate"
    ]
    assert torch.missing(["graph_instantiate"]) == {}


def test_missing_capabilities_are_noted() -> None:
    assert with_gaps(kernel_freq(), RESULT, ["nvidia_sanitizer"]).notes == (NOTE,)
    assert with_gaps(kernel_freq(), RESULT, ["amd_rocprofiler"]).notes == (
        "not given by amd_rocprofiler: cluster sizes",
    )


@pytest.mark.parametrize("sources", [["refacc"], ["refacc", "torch"], ["torch"], []])
def test_no_note_without_missing_capabilities(sources: list[str]) -> None:
    """For capabilities of every accelerator; other sources have neither counters nor samples."""
    for listed in list_tools([]):
        if listed.name in ("counters", "pc_samples", "instructions"):
            continue
        for tool in find_tools(listed.name):
            assert with_gaps(tool(), RESULT, sources) is RESULT, listed.name


def test_probes_without_accesses() -> None:
    noted = with_gaps(Reads(), RESULT, ["amd_rocprofiler"])
    assert noted.summary == (
        "not available on this backend: amd_rocprofiler does not provide memory accesses"
        " inside kernels"
    )
    assert (dict(noted.tables), list(noted.notes)) == ({}, [])
    mixed = with_gaps(Reads(), RESULT, ["refacc", "amd_rocprofiler"])
    assert mixed.tables is RESULT.tables
    assert mixed.notes == ("not given by amd_rocprofiler: memory accesses inside kernels",)


def test_unknown_capability() -> None:
    with pytest.raises(pasta.errors.ToolError, match=r"uses = 'register' is not a capability"):
        with_gaps(Wrong(), RESULT, ["refacc"])


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    path = made_up(tmp_path / "job", 0, sources={"nvidia_sanitizer": "13.5"})
    noted = with_gaps(kernel_freq(), RESULT, ["nvidia_sanitizer"])
    write_result(path / "results", "kernel_freq", noted)
    return RunDirectory(path)


def test_every_report_format_has_the_note(run: RunDirectory) -> None:
    assert f"note: {NOTE}" in " ".join(text_report(run).split())
    assert f"<p>note: {NOTE}</p>" in render_html(run)
    assert f"<li>{NOTE}</li>" in render_page(run)
    out = io.BytesIO()
    write_json(run, out)
    assert json.loads(out.getvalue())["tools"]["kernel_freq"]["notes"] == [NOTE]


def test_merged_run_has_each_note_once(run: RunDirectory, tmp_path: Path) -> None:
    other = made_up(tmp_path / "job", 1)
    write_result(other / "results", "kernel_freq", Result("no note", RESULT.tables))
    merged = merge(Root.open(tmp_path / "job"), tmp_path / "all", finish=write_text_report)
    assert text_report(merged).count("note: not given") == 1


def test_run_has_capabilities(run: RunDirectory) -> None:
    capabilities = pasta.load(run.path).capabilities
    assert "accesses" in capabilities and "registers" not in capabilities
