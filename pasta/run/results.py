"""Results of tools in a run directory: `results/TOOL/*.parquet`, `result.json` and other files."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pasta.arrow import to_numpy
from pasta.errors import RunError
from pasta.findings import Finding, Result, Topic
from pasta.names import check_name, title_of
from pasta.run.files import (
    batches,
    directories,
    open_parquet,
    plain_schema,
    reading,
    regular_file,
    with_texts,
    writing,
)
from pasta.run.schema import (
    RESULT,
    check_document,
    list_of,
    map_of,
    optional,
    read_document,
    record,
    text,
    whole,
)
from pasta.table import Figure, Table, Unit, plain, visible

#: Metadata key of a stored table for the layout that reports use.
LAYOUT = b"pasta.layout"
_SHOWN = 10
#: Number of places listed for equal findings.
_PLACES = 3
#: Column lists in a table's layout, for comparisons and for narrow terminals.
_COMPARED = ("keys", "sums", "levels", "important")
_UNITS = frozenset(get_args(Unit))
#: Rows of tables to read: the first N, those that reports show, or all (None).
Rows = int | Literal["shown"] | None


def write_result(
    directory: Path, name: str, result: Result, *, title: str = "", topic: Topic = "other"
) -> None:
    """Stores a tool's result, with the tool's title (default: from the name) and topic.

    Raises ValueError or TypeError if it cannot be stored, and OSError, for example if the disk is
    full.
    """
    _check(result)
    target = directory / name
    target.mkdir(parents=True, exist_ok=True)
    for each, table in result.tables.items():
        try:
            stored = _to_arrow(table)
        except Exception as error:
            raise TypeError(f"table {each}: {error}") from error
        with writing(target / f"{each}.parquet") as parquet:
            pq.write_table(stored, parquet, compression="zstd")
    for file, write in result.files.items():
        if isinstance(write, Path):
            shutil.move(write, target / file)
        else:
            with (target / file).open("wb") as output:
                write(output)
    document = {
        "tool": name,
        "title": title or title_of(name),
        "topic": topic,
        "summary": result.summary,
        "tables": list(result.tables),
        "files": list(result.files),
        "findings": [asdict(finding) for finding in result.findings],
        "figures": {key: _figure(figure) for key, figure in result.figures.items()},
        "notes": list(result.notes),
    }
    (target / "result.json").write_text(json.dumps(document, indent=1), encoding="utf-8")


def _check(result: Result) -> None:
    """Raises ValueError unless the names of tables, files and figures are plain and unique, and
    units are known, and TypeError for members of other types."""
    _check_type("the summary", result.summary, str, "a str")
    a_table, a_figure = "a pasta.tool.Table", "a pasta.tool.Figure"
    a_file = "a function that writes to an open binary file, or a pathlib.Path"
    for what, named, kind, wanted in (
        ("table", result.tables, Table, a_table),
        ("file", result.files, (Callable, Path), a_file),
        ("figure", result.figures, Figure, a_figure),
    ):
        _check_type(f"{what}s", named, Mapping, f"a dictionary: each name with {wanted}")
        for name, each in named.items():
            check_name(name, what)
            _check_type(f"{what} {name}", each, kind, wanted)
    for name, table in result.tables.items():
        for column, unit in table.units.items():
            if unit not in get_args(Unit):
                units = ", ".join(get_args(Unit))
                raise ValueError(f"table {name}: {unit!r} of {column} is not a unit: {units}")
    for what, sequence, member, wanted in (
        ("findings", result.findings, Finding, "a list of pasta.tool.Finding"),
        ("notes", result.notes, str, "a list of str"),
    ):
        _check_type(what, sequence, (list, tuple), wanted)
        for one in sequence:
            _check_type(what, one, member, wanted)
    taken = {"result.json", *(f"{name}.parquet" for name in result.tables)}
    for name in taken.intersection(result.files):
        raise ValueError(f"the file name {name} is reserved for PASTA")


def _check_type(what: str, value: object, kind: Any, wanted: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{what} must be {wanted}, not {type(value).__name__}")


class StoredTables(Mapping[str, Table]):
    """A result's tables by name, read from file on each access, since they may exceed the memory.
    `rows`: which rows of each table."""

    def __init__(self, run: Path, directory: Path, names: list[str], rows: Rows) -> None:
        self._run, self._directory, self._names, self._rows = run, directory, names, rows

    def __getitem__(self, name: str) -> Table:
        """Reads a table. Raises KeyError, and RunError for a damaged file."""
        path = self._path(name)
        file = open_parquet(path, self._run, whole=self._rows != "shown")
        layout = layout_of(file.schema_arrow.metadata, path)
        rows = layout["shown"] if self._rows == "shown" else self._rows
        return replace(_read(file, path, rows), of=file.metadata.num_rows)

    def pieces(self, name: str) -> Iterator[Table]:
        """A table in pieces of some rows, the first one empty. Raises as `[]`."""
        path = self._path(name)
        file = open_parquet(path, self._run)
        yield _read(file, path, 0)
        for batch in batches(file, path):
            yield as_table(pa.Table.from_batches([batch]), path)

    def with_all_rows(self) -> StoredTables:
        """The same tables, read without a row limit."""
        return StoredTables(self._run, self._directory, self._names, None)

    def _path(self, name: str) -> Path:
        if name not in self._names:
            raise KeyError(name)
        return self._directory / f"{name}.parquet"

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True)
class StoredResult:
    """A tool's stored result."""

    name: str
    summary: str
    tables: StoredTables
    files: list[Path]
    findings: list[Finding]
    figures: dict[str, Figure]
    notes: list[str]
    title: str
    topic: Topic

    def with_all_rows(self) -> StoredResult:
        """The same result, with tables read whole."""
        return replace(self, tables=self.tables.with_all_rows())


def read_findings(directory: Path) -> Iterator[tuple[str, Finding]]:
    """Stored findings with their tools. Raises RunError for a damaged result."""
    for path in result_documents(directory):
        for finding in findings_of(document_of(path)):
            yield path.parent.name, finding


def findings_of(document: dict[str, Any]) -> list[Finding]:
    """Findings of a document from `document_of`."""
    known = {field.name for field in fields(Finding)}
    return [
        Finding(**{key: value for key, value in each.items() if key in known})
        for each in document.get("findings", ())
    ]


def result_documents(directory: Path) -> list[Path]:
    """Paths of the tools' result.json in a directory of results. Raises RunError."""
    found = (each / "result.json" for each in directories(directory, directory.parent))
    return [path for path in found if os.path.lexists(path)]


def read_results(directory: Path, *, rows: Rows = None) -> Iterator[StoredResult]:
    """Stored results, sorted by tool name; `rows`: which rows of each table to read. Raises
    RunError for a damaged result."""
    for path in result_documents(directory):
        document = document_of(path)
        place = path.parent
        files = [place / name for name in document.get("files", ())]
        for each in files:
            if os.path.lexists(each):
                regular_file(each, directory.parent)
        yield StoredResult(
            place.name,
            document["summary"],
            StoredTables(directory.parent, place, document["tables"], rows),
            files,
            findings_of(document),
            {name: _read_figure(each) for name, each in document.get("figures", {}).items()},
            document.get("notes", []),
            document.get("title") or title_of(place.name),
            document.get("topic", "other"),
        )


def _read_figure(document: dict[str, Any]) -> Figure:
    known = {field.name for field in fields(Figure)} - {"x", "series"}
    series = {name: _points(values) for name, values in document["series"].items()}
    about = {key: value for key, value in document.items() if key in known}
    return Figure(x=_points(document["x"]), series=series, **about)


def _points(values: list[Any]) -> list[Any]:
    """Values of one type, since Arrow does not convert lists that mix integers and floats."""
    if any(isinstance(each, float) for each in values):
        return [None if each is None else float(each) for each in values]
    return values


def trace_of(results: Path) -> Path | None:
    """The trace of the tool event_trace, compressed or not; None without one. Raises RunError."""
    traces = (results / "event_trace" / f"trace.json{end}" for end in (".gz", ""))
    found = next((path for path in traces if os.path.lexists(path)), None)
    if found is not None:
        regular_file(found, results.parent)
    return found


def ranked(results: Iterable[StoredResult]) -> list[tuple[str, Finding]]:
    """Findings with their tools, the most promising first, equal ones merged."""
    found = [(result.name, finding) for result in results for finding in result.findings]
    return without_repeats(sorted(found, key=lambda each: -each[1].rank))


#: A place at the beginning of a remedy, up to its colon: `train.py:31 step: `.
_PLACE = re.compile(r"^.*?:\d+ [^:]*: ")


def without_repeats(found: Iterable[tuple[str, Finding]]) -> list[tuple[str, Finding]]:
    """Merges a tool's findings that differ only in their place: the best one, with a list of the
    places and the sum of the gains."""
    groups: dict[tuple[str, str, str, str], list[Finding]] = {}
    for tool, each in found:
        key = (tool, each.what, _PLACE.sub("", each.remedy), each.of)
        groups.setdefault(key, []).append(each)
    merged = [(tool, _merged(group)) for (tool, *_), group in groups.items()]
    return sorted(merged, key=lambda each: -each[1].rank)


def _merged(group: list[Finding]) -> Finding:
    best, *others = group
    if not others:
        return best
    places = list(dict.fromkeys(each.where for each in group))
    left = len(places) - _PLACES
    where = "; ".join(places[:_PLACES]) + (f"; and {left:,} more" if left > 0 else "")
    gains = [each.gain for each in group if each.gain is not None]
    gain = min(1.0, sum(gains)) if gains else None
    evidence = f"{best.evidence} (the first of {len(group):,})"
    return replace(best, where=where, evidence=evidence, gain=gain)


def stored_tables(directory: Path) -> dict[str, list[str]]:
    """Names of the tables of each tool, its main one first. Raises RunError."""
    return {path.parent.name: document_of(path)["tables"] for path in result_documents(directory)}


def read_summary(directory: Path, tool: str) -> str:
    """A tool's summary in one line. Raises RunError."""
    return str(document_of(directory / tool / "result.json")["summary"])


def document_of(path: Path) -> dict[str, Any]:
    """Reads and validates RUN/results/TOOL/result.json. Raises RunError."""
    document = check_document(read_document(path, path.parents[2]), RESULT, path)
    if document.get("tool", path.parent.name) != path.parent.name:
        raise RunError(f"{plain(str(path))}: tool: expected {path.parent.name}, its directory")
    return document


def read_table(directory: Path, tool: str, name: str) -> pa.Table:
    """A stored table, with units and labels in the metadata of its fields. Raises RunError."""
    path = directory / tool / f"{name}.parquet"
    file = open_parquet(path, directory.parent)
    schema = plain_schema(file.schema_arrow)
    found = [with_texts(batch, path) for batch in batches(file, path)]
    with reading(path):
        return pa.Table.from_batches(found, schema)


def read_schema(directory: Path, tool: str, name: str) -> pa.Schema:
    """The schema of a stored table. Raises RunError."""
    file = open_parquet(directory / tool / f"{name}.parquet", directory.parent)
    return plain_schema(file.schema_arrow)


def _to_arrow(table: Table) -> pa.Table:
    stored = table.to_arrow()
    compared = {name: getattr(table, name) for name in _COMPARED}
    probed = {} if table.probed is None else {"probed": dict(table.probed)}
    layout = {
        "shown": table.shown,
        "hidden": sorted(table.hidden),
        **{name: list(names) for name, names in compared.items() if names is not None},
        **probed,
    }
    metadata = {**(stored.schema.metadata or {}), LAYOUT: json.dumps(layout).encode()}
    return stored.replace_schema_metadata(metadata)


def _read(file: pq.ParquetFile, path: Path, rows: int | None) -> Table:
    """The first `rows` of a table, or all."""
    found = list(batches(file, path, first=rows)) if rows != 0 else []
    with reading(path):
        return as_table(pa.Table.from_batches(found, file.schema_arrow), path)


_LAYOUT = record(
    {},
    {
        "shown": whole(0, 1_000_000), "hidden": list_of(text),
        "probed": optional(map_of(optional(text))),
        **{name: optional(list_of(text)) for name in _COMPARED},
    },
)  # fmt: skip


def layout_of(metadata: dict[bytes, bytes] | None, path: Path) -> dict[str, Any]:
    """The layout of a table in reports. Raises RunError."""
    with reading(path):
        layout = json.loads((metadata or {}).get(LAYOUT, b"{}"))
        _LAYOUT(layout, LAYOUT.decode())
    return {"shown": _SHOWN, **layout}


def as_table(stored: pa.Table, path: Path) -> Table:
    """A stored table with its units, labels and layout. Raises RunError."""
    metadata = stored.schema.metadata or {}
    layout = layout_of(metadata, path)
    units: dict[str, Unit] = {}
    labels: dict[str, str] = {}
    with reading(path):
        for column in stored.schema:
            about = column.metadata or {}
            unit = about.get(b"unit", b"").decode()
            if unit in _UNITS and _may_have(column.type, unit):
                units[column.name] = unit
            label = about.get(b"label", b"").decode() or column.name.replace("_", " ")
            if b"label" in about or label != visible(label):
                labels[column.name] = visible(label)
        columns = {name: values_of(stored.column(name)) for name in stored.column_names}
        return Table(
            columns,
            units=units,
            labels=labels,
            title=visible(metadata.get(b"title", b"").decode()),
            shown=layout["shown"],
            hidden=frozenset(layout.get("hidden", ())),
            probed=layout.get("probed"),
            **{name: layout.get(name) for name in _COMPARED},
        )


def _may_have(type: pa.DataType, unit: str) -> bool:
    whole = pa.types.is_integer(type) or pa.types.is_null(type)
    return bool(whole or (unit != "address" and pa.types.is_floating(type)))


def values_of(column: pa.ChunkedArray) -> Any:
    """Values of a column: numbers as an array; columns with absent or other values as a list."""
    type = column.type
    if pa.types.is_dictionary(type) and pa.types.is_string(type.value_type):
        return [text for chunk in column.chunks for text in _texts(chunk)]
    if pa.types.is_integer(type) or pa.types.is_floating(type):
        return column.to_pylist() if column.null_count else to_numpy(column)
    if pa.types.is_boolean(type) or pa.types.is_null(type) or _is_plain_list(type):
        return column.to_pylist()
    return column.cast(pa.string()).to_pylist()  # dates, decimals and other types


def _is_plain_list(type: pa.DataType) -> bool:
    return bool(pa.types.is_list(type) and pa.types.is_primitive(type.value_type))


def _texts(chunk: pa.DictionaryArray) -> list[str | None]:
    """Texts of rows; equal texts are the same object."""
    texts = [*chunk.dictionary.to_pylist(), None]
    return [texts[code] for code in to_numpy(chunk.indices, -1).tolist()]


def _figure(figure: Figure) -> dict[str, Any]:
    document = {key: value for key, value in vars(figure).items() if key not in ("x", "series")}
    document["x"] = _list(figure.x)
    document["series"] = {name: _list(values) for name, values in figure.series.items()}
    return document


def _list(column: Any) -> list[Any]:
    return list(column.tolist() if isinstance(column, np.ndarray) else column)
