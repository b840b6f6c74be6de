"""Results of tools in a run directory: `results/TOOL/*.parquet`, `result.json` and files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pasta.errors import RunError
from pasta.table import Figure, Table
from pasta.tool import Finding, Result

_LAYOUT = b"pasta.layout"


def write_result(directory: Path, name: str, result: Result) -> None:
    """Stores a tool's result. Raises OSError where the disk is full."""
    target = directory / name
    target.mkdir(parents=True, exist_ok=True)
    for title, table in result.tables.items():
        pq.write_table(_to_arrow(table), target / f"{title}.parquet", compression="zstd")
    for file, write in result.files.items():
        if isinstance(write, Path):
            _move(write, target / file)
        else:
            with (target / file).open("wb") as output:
                write(output)
    document = {
        "tool": name,
        "summary": result.summary,
        "tables": list(result.tables),
        "files": list(result.files),
        "findings": [asdict(finding) for finding in result.findings],
        "figures": {key: _figure(figure) for key, figure in result.figures.items()},
    }
    (target / "result.json").write_text(json.dumps(document, indent=1), encoding="utf-8")


def _move(source: Path, target: Path) -> None:
    target.touch()
    shutil.copymode(target, source)  # temporary files are their owner's alone
    shutil.move(source, target)


@dataclass(frozen=True)
class StoredResult:
    """A tool's result as it was stored."""

    name: str
    summary: str
    tables: dict[str, Table]
    files: list[Path]
    findings: list[Finding]
    figures: dict[str, Figure]


def read_results(directory: Path) -> Iterator[StoredResult]:
    """Stored results, in the order of their names. Raises RunError for a damaged one."""
    for path in sorted(directory.glob("*/result.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            tables = {
                # not read_table, which imports the whole dataset module for one file
                name: _from_arrow(pq.ParquetFile(path.parent / f"{name}.parquet").read())
                for name in document["tables"]
            }
            files = [path.parent / name for name in document["files"]]
            findings = [Finding(**each) for each in document.get("findings", ())]
            figures = {name: Figure(**each) for name, each in document.get("figures", {}).items()}
            yield StoredResult(
                document["tool"], document["summary"], tables, files, findings, figures
            )
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise RunError(f"{path.parent}: damaged result ({error})") from None


def ranked(results: Iterable[StoredResult]) -> list[tuple[str, Finding]]:
    """Findings with their tools, the one to look at first before others."""
    found = [(result.name, finding) for result in results for finding in result.findings]
    return sorted(found, key=lambda each: -each[1].rank)


def stored_tables(directory: Path) -> dict[str, list[str]]:
    """Names of the tables of each tool, its main one first. Raises RunError."""
    paths = sorted(directory.glob("*/result.json"))
    return {path.parent.name: list(_document(path)["tables"]) for path in paths}


def read_summary(directory: Path, tool: str) -> str:
    """What a tool said in a line. Raises RunError."""
    return str(_document(directory / tool / "result.json")["summary"])


def _document(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not {"summary", "tables"} <= document.keys():
            raise ValueError("keys are missing")
    except (OSError, ValueError) as error:
        raise RunError(f"{path.parent}: damaged result ({error})") from None
    return document


def read_table(directory: Path, tool: str, name: str) -> pa.Table:
    """A stored table, with units and labels in the metadata of its fields. Raises RunError."""
    path = directory / tool / f"{name}.parquet"
    try:
        return pq.ParquetFile(path).read()
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{path}: cannot be read ({error})") from None


def _to_arrow(table: Table) -> pa.Table:
    stored = table.to_arrow()
    layout = {"shown": table.shown, "hidden": sorted(table.hidden)}
    metadata = {**(stored.schema.metadata or {}), _LAYOUT: json.dumps(layout).encode()}
    return stored.replace_schema_metadata(metadata)


def _from_arrow(stored: pa.Table) -> Table:
    metadata = stored.schema.metadata or {}
    layout = json.loads(metadata.get(_LAYOUT, b"{}"))
    units, labels = {}, {}
    for column in stored.schema:
        told = column.metadata or {}
        if b"unit" in told:
            units[column.name] = told[b"unit"].decode()
        if b"label" in told:
            labels[column.name] = told[b"label"].decode()
    return Table(
        {name: _column(stored.column(name)) for name in stored.column_names},
        units=units,
        labels=labels,
        title=metadata.get(b"title", b"").decode(),
        shown=layout.get("shown", 10),
        hidden=frozenset(layout.get("hidden", ())),
    )


def _column(column: Any) -> Any:
    if column.null_count or not (
        pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    ):
        return column.to_pylist()
    return column.to_numpy()


def _figure(figure: Figure) -> dict[str, Any]:
    document = {key: value for key, value in vars(figure).items() if key not in ("x", "series")}
    document["x"] = _list(figure.x)
    document["series"] = {name: _list(values) for name, values in figure.series.items()}
    return document


def _list(column: Any) -> list[Any]:
    return list(column.tolist() if isinstance(column, np.ndarray) else column)
