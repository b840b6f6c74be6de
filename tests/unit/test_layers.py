"""Folders and files import only lower layers of pyproject.toml, without cycles."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest
from importlinter.application.use_cases import lint_imports
from importlinter.configuration import configure

from tests.support.places import ROOT

#: What tools may import from PASTA, and exceptions for single tools.
OF_TOOLS = (
    "pasta.abi", "pasta.arrow", "pasta.findings", "pasta.lazy", "pasta.options", "pasta.probes",
    "pasta.processors", "pasta.rules", "pasta.table", "pasta.tool",
)  # fmt: skip
OF_ONE_TOOL = {
    "event_trace": ("pasta.report.exports",),
    "instructions": ("pasta.sass",),
    "pc_samples": ("pasta.sass.places", "pasta.stalls.samples"),
    "record_accesses": ("pasta.run.accesses",),
    "tensor_stalls": ("pasta.errors", "pasta.stalls"),
}


def test_folders_import_only_lower_layers(capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    kept = lint_imports(config_filename=str(ROOT / "pyproject.toml"), cache_dir=None)
    assert kept, capsys.readouterr().out


def test_imports_have_no_cycles() -> None:
    graph = grimp.build_graph("pasta", exclude_type_checking_imports=False, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the files


@pytest.mark.parametrize("path", sorted((ROOT / "tools").glob("*.py")), ids=lambda path: path.stem)
def test_tools_import_only_the_public_api(path: Path) -> None:
    allowed = tuple(f"{each}." for each in (*OF_TOOLS, *OF_ONE_TOOL.get(path.stem, ())))
    for module in imported(ast.parse(path.read_text())):
        assert not module.startswith("pasta.") or f"{module}.".startswith(allowed), module


def imported(tree: ast.Module) -> Iterator[str]:
    """Modules, and names of packages that may be modules, that a file imports anywhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{each.name}" for each in node.names)
