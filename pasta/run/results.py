"""Results of tools in a run directory: `results/TOOL/*.parquet`, `result.json` and files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pasta.arrow import to_numpy
from pasta.errors import RunError
from pasta.table import Figure, Table
from pasta.tool import Finding, Result

#: Key of a stored table's metadata that says how reports show it.
LAYOUT = b"pasta.layout"
_SHOWN = 10
#: What a table says of its columns, for comparisons and for narrow terminals.
_COMPARED = ("keys", "sums", "levels", "important")


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
        "notes": list(result.notes),
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
    notes: list[str]


def read_findings(directory: Path) -> Iterator[tuple[str, Finding]]:
    """Findings with their tools, as stored. Raises RunError for a damaged result."""
    for path in sorted(directory.glob("*/result.json")):
        for finding in findings_in(path):
            yield path.parent.name, finding


def findings_in(path: Path) -> list[Finding]:
    """Findings in a result.json. Raises RunError for a damaged one."""
    try:
        return _findings(document_of(path))
    except TypeError as error:
        raise RunError(f"{path.parent}: damaged result ({error})") from None


def _findings(document: dict[str, Any]) -> list[Finding]:
    return [Finding(**each) for each in document.get("findings", ())]


def read_results(
    directory: Path, *, shown: bool = False, rows: int | None = None
) -> Iterator[StoredResult]:
    """Stored results, in the order of their names. Raises RunError for a damaged one.

    `shown`: of each table only the rows that reports show, or as many as `rows`.
    """
    for path in sorted(directory.glob("*/result.json")):
        try:
            document = document_of(path)
            tables = {
                name: _stored(path.parent / f"{name}.parquet", shown, rows)
                for name in document["tables"]
            }
            files = [path.parent / name for name in document["files"]]
            figures = {name: Figure(**each) for name, each in document.get("figures", {}).items()}
            notes = [str(note) for note in document.get("notes", ())]
            yield StoredResult(
                document["tool"], document["summary"], tables, files, _findings(document),
                figures, notes,
            )  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise RunError(f"{path.parent}: damaged result ({error})") from None


def trace_of(results: Path) -> Path | None:
    """The trace of the tool event_trace, packed or not, where there is one."""
    traces = (results / "event_trace" / f"trace.json{end}" for end in (".gz", ""))
    return next((path for path in traces if path.is_file()), None)


def ranked(results: Iterable[StoredResult]) -> list[tuple[str, Finding]]:
    """Findings with their tools, the one to look at first before others."""
    found = [(result.name, finding) for result in results for finding in result.findings]
    return sorted(found, key=lambda each: -each[1].rank)


def stored_tables(directory: Path) -> dict[str, list[str]]:
    """Names of the tables of each tool, its main one first. Raises RunError."""
    paths = sorted(directory.glob("*/result.json"))
    return {path.parent.name: list(document_of(path)["tables"]) for path in paths}


def read_summary(directory: Path, tool: str) -> str:
    """What a tool said in a line. Raises RunError."""
    return str(document_of(directory / tool / "result.json")["summary"])


def document_of(path: Path) -> dict[str, Any]:
    """What result.json says of a tool's result. Raises RunError."""
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict) or not {"summary", "tables"} <= document.keys():
            raise ValueError("keys are missing")
        if not isinstance(document["tables"], list):
            raise ValueError("tables are no list")
    except (OSError, ValueError) as error:
        raise RunError(f"{path.parent}: damaged result ({error})") from None
    found: dict[str, Any] = document
    return found


def read_table(directory: Path, tool: str, name: str) -> pa.Table:
    """A stored table, with units and labels in the metadata of its fields. Raises RunError."""
    path = directory / tool / f"{name}.parquet"
    try:
        return pq.ParquetFile(path).read()
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{path}: cannot be read ({error})") from None


def read_schema(directory: Path, tool: str, name: str) -> pa.Schema:
    """The schema of a stored table. Raises RunError."""
    path = directory / tool / f"{name}.parquet"
    try:
        return pq.ParquetFile(path).schema_arrow
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{path}: cannot be read ({error})") from None


def _to_arrow(table: Table) -> pa.Table:
    stored = table.to_arrow()
    compared = {name: getattr(table, name) for name in _COMPARED}
    layout = {
        "shown": table.shown,
        "hidden": sorted(table.hidden),
        **{name: list(names) for name, names in compared.items() if names is not None},
    }
    metadata = {**(stored.schema.metadata or {}), LAYOUT: json.dumps(layout).encode()}
    return stored.replace_schema_metadata(metadata)


def _stored(path: Path, shown: bool, rows: int | None) -> Table:
    file = pq.ParquetFile(path)  # not read_table, which imports the whole dataset module for it
    if not shown:
        return as_table(file.read())
    layout = json.loads((file.schema_arrow.metadata or {}).get(LAYOUT, b"{}"))
    first = layout.get("shown", _SHOWN) if rows is None else rows
    batch = next(file.iter_batches(max(first, 1)), None)
    few = pa.Table.from_batches([batch] if batch else [], file.schema_arrow)
    return replace(as_table(few), of=file.metadata.num_rows)


def as_table(stored: pa.Table) -> Table:
    """A stored table with its units, labels and layout."""
    metadata = stored.schema.metadata or {}
    layout = json.loads(metadata.get(LAYOUT, b"{}"))
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
        shown=layout.get("shown", _SHOWN),
        hidden=frozenset(layout.get("hidden", ())),
        **{name: layout.get(name) for name in _COMPARED},
    )


def _column(column: Any) -> Any:
    if column.null_count or not (
        pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    ):
        return column.to_pylist()
    return to_numpy(column)


def _figure(figure: Figure) -> dict[str, Any]:
    document = {key: value for key, value in vars(figure).items() if key not in ("x", "series")}
    document["x"] = _list(figure.x)
    document["series"] = {name: _list(values) for name, values in figure.series.items()}
    return document


def _list(column: Any) -> list[Any]:
    return list(column.tolist() if isinstance(column, np.ndarray) else column)
