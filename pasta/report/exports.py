"""A run for other programs: JSON, CSV, Parquet, and stacks for flame graphs and speedscope."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from pasta.errors import RunError
from pasta.report.files import directory, written
from pasta.report.stacks import WEIGHTS, Call, CallTree, Weight
from pasta.run.directory import RunDirectory
from pasta.run.files import (
    batches,
    open_parquet,
    plain_schema,
    reading,
    regular_file,
    unreadable,
    with_texts,
)
from pasta.run.results import StoredResult, ranked, read_results, stored_tables
from pasta.table import Table, formatted, visible

#: Version of what `write_json` writes.
SCHEMA = 1


def write_json(run: RunDirectory, file: BinaryIO) -> None:
    """Writes the manifest, findings, and every tool's summary, tables and figures as one document.

    Absent values, and floats that are none, are null; integers are exact.
    """
    results = list(read_results(run.results, rows=0))
    findings = [{"tool": tool, **asdict(each)} for tool, each in ranked(results)]
    head = {"schema": SCHEMA, "run": run.manifest(), "findings": findings}
    file.write(f"{_json(head)[:-1]},\n".encode() + b'"tools":{')
    for number, result in enumerate(results):
        file.write(b",\n" if number else b"\n")
        for piece in _tool(run, result):
            file.write(piece.encode("utf-8"))
    file.write(b"}}\n")


def _tool(run: RunDirectory, result: StoredResult) -> Iterator[str]:
    files = [str(path.relative_to(run.path)) for path in result.files]
    figures = {name: vars(figure) for name, figure in result.figures.items()}
    head = {
        "summary": result.summary,
        "notes": result.notes,
        "files": files,
        "figures": figures,
    }
    yield f'{_json(result.name)}:{_json(head)[:-1]},"tables":{{'
    for number, (name, table) in enumerate(result.tables.items()):
        columns = {
            column: {
                "heading": table.heading(column),
                "unit": table.units.get(column),
                "hidden": column in table.hidden,
            }
            for column in table.columns
        }
        head = {"title": table.title, "columns": columns}
        yield f'{"," * (number > 0)}\n{_json(name)}:{_json(head)[:-1]},"rows":['
        yield from _rows(result.tables.pieces(name))
        yield "]}"
    yield "}}"


def _rows(pieces: Iterable[Table]) -> Iterator[str]:
    for number, row in enumerate(row for piece in pieces for row in piece.rows()):
        yield f"{',' * (number > 0)}\n{_json(row)}"


#: Made once: json.dumps makes an encoder for every call with options.
_ENCODE = json.JSONEncoder(allow_nan=False).encode


def _json(value: Any) -> str:
    try:
        return _ENCODE(value)
    except ValueError:
        return _ENCODE(_finite(value))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value


def write_csv(run: RunDirectory, out: str) -> list[Path]:
    """Writes `TOOL.TABLE.csv` for every table; returns the files.

    Absent values are empty, numbers in their units (bytes, ns, fractions of 1), lists `8x4x1`.
    """
    from pyarrow import csv

    place, files = directory(run, out), []
    for tool, name in _tables(run):
        path = run.results / tool / f"{name}.parquet"
        stored = open_parquet(path, run.path)
        empty = pa.Table.from_batches([], plain_schema(stored.schema_arrow))
        files.append(place / f"{tool}.{name}.csv")
        with written(run, str(files[-1])) as file:
            writer = csv.CSVWriter(file, _plain(empty, path).schema)
            for batch in batches(stored, path):
                rows = pa.Table.from_batches([with_texts(batch, path)])
                writer.write_table(_plain(rows, path))
            writer.close()
    return files


def _plain(table: pa.Table, path: Path) -> pa.Table:
    """A table of types that CSV has. Raises RunError for a column that has none."""
    for at, column in enumerate(table.schema):
        values = table.column(at)
        with reading(path):
            if pa.types.is_list(column.type):
                texts = [None if each is None else formatted(each) for each in values.to_pylist()]
                table = table.set_column(at, column.name, pa.array(texts, pa.string()))
            elif pa.types.is_null(column.type) or pa.types.is_nested(column.type):
                table = table.set_column(at, column.name, values.cast(pa.string()))
    return table


def write_parquet(run: RunDirectory, out: str) -> list[Path]:
    """Copies every table to `TOOL.TABLE.parquet`; returns the files. Units are in the schema."""
    place, files = directory(run, out), []
    for tool, name in _tables(run):
        files.append(place / f"{tool}.{name}.parquet")
        stored = regular_file(run.results / tool / f"{name}.parquet", run.path)
        try:
            source = stored.open("rb")
        except OSError as error:
            raise unreadable(stored, error) from None
        with source, written(run, str(files[-1])) as file:
            shutil.copyfileobj(source, file)
    return files


def _tables(run: RunDirectory) -> list[tuple[str, str]]:
    """Tools with their tables. Raises RunError where there are none."""
    found = [(tool, name) for tool, names in stored_tables(run.results).items() for name in names]
    if not found:
        raise RunError(f"{run.path}: no tool has a table")
    return found


def write_folded(tree: CallTree, weight: Weight, file: BinaryIO) -> None:
    """Writes stacks for flamegraph.pl and what else reads its folded lines: `a;b;c 123`."""
    for node, own in enumerate(tree.weights[weight]):
        if own > 0:
            stack = ";".join(_folded(call) for call in tree.path(node)) or "all"
            file.write(f"{stack} {own}\n".encode())


def _folded(call: Call) -> str:
    return visible(call.name).replace(";", ":") or "(unnamed)"


def write_speedscope(tree: CallTree, weight: Weight, name: str, file: BinaryIO) -> None:
    """Writes a file for speedscope.app: a profile for each weight that there is, `weight` first.

    The format: https://github.com/jlfwong/speedscope/blob/main/src/lib/file-format-spec.ts
    """
    frames: dict[Call, int] = {}
    order = [weight, *(each for each in tree.present if each != weight)]
    profiles = []
    for each in order:
        own = tree.weights[each]
        nodes = [node for node in range(len(tree)) if own[node] > 0]
        samples = [
            [frames.setdefault(call, len(frames)) for call in tree.path(node)] for node in nodes
        ]
        what, unit = WEIGHTS[each]
        profiles.append(
            {
                "type": "sampled",
                "name": what,
                "unit": "nanoseconds" if unit == "ns" else "bytes",
                "startValue": 0,
                "endValue": sum(own[node] for node in nodes),
                "samples": samples,
                "weights": [own[node] for node in nodes],
            }
        )
    document = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "PASTA",
        "name": name,
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(call) for call in frames]},
        "profiles": profiles,
    }
    file.write(json.dumps(document, separators=(",", ":")).encode("utf-8"))


def _frame(call: Call) -> dict[str, Any]:
    place = {"file": call.file, "line": call.line} if call.file else {}
    return {"name": call.name or "(unnamed)", **place}
