"""A whole run as one JSON document."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

from pasta.report.exports.base import FileExport, Request
from pasta.run.directory import RunDirectory
from pasta.table import Table

if TYPE_CHECKING:
    from pasta.run.results import StoredResult

#: Version of the document.
SCHEMA = 1


class Json(FileExport):
    """A run as one JSON document."""

    name = "json"
    help = "write everything as JSON (- is stdout, here and below)"

    def writer(self, request: Request) -> Callable[[BinaryIO], object]:
        """Returns a function that writes the document."""
        return partial(write_json, request.run)


def write_json(run: RunDirectory, file: BinaryIO) -> None:
    """Writes the manifest, findings, and every tool's summary, tables and figures as one document.

    Absent values, NaN and infinities are null; integers are exact.
    """
    from pasta.run.results import ranked, read_results

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


#: Shared: json.dumps creates an encoder for every call with options.
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


EXPORT = Json()
