"""Writes docs/events.md, the event reference, from include/pasta_abi.h.

`python -m shim.reference` prints it; a test holds the file against the header.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HEADER = Path(__file__).resolve().parent / "include" / "pasta_abi.h"

_EVENT = re.compile(r'X\(\s*(\d+),\s*(\w+),\s*(\w+),\s*([01]),\s*"([^"]*)"\)')
_STRUCT = re.compile(r"typedef struct pasta_(\w+) \{\n(.*?)\n\} pasta_\1;", re.S)
_FIELD = re.compile(r"^\s+(\w+) (\w+)(?:\[(\d+)\])?;\s*(?:/\*\s*(.*?)\s*\*/)?$", re.M)
_ENUM = re.compile(r"enum \{\n(.*?)\n\};", re.S)
_ENUMERATOR = re.compile(r"PASTA_([A-Z]+)_(\w+) = (\d+),(?:\s*/\*\s*(.*?)\s*\*/)?")

_INTRODUCTION = """\
# Events

Generated from `shim/include/pasta_abi.h` by `python -m shim.reference`: do not edit.

An event is one record of the ring, and one row of the Parquet table of its kind
(`events/KIND-00000.parquet`). Every table has the header's fields and the fields of its payload.
Strings and named numbers are dictionary-encoded text there, an array of three is three columns
(`grid_x`, `grid_y`, `grid_z`), a longer one (`tensor`) is a list of those there are, `position` is
the order over all kinds, and what a source cannot give is null: never zero.

*Kept* kinds are recorded also while profiling is stopped, because what follows a start needs them.
"""


@dataclass(frozen=True)
class Field:
    """One field of a struct: C type, length of an array, and its comment."""

    name: str
    type: str
    length: int | None
    text: str

    @property
    def is_string(self) -> bool:
        return bool(re.match(r"string\b", self.text))


def structs(header: str) -> dict[str, list[Field]]:
    """Fields of every struct, without padding, by name without its prefix."""
    found = {}
    for name, body in _STRUCT.findall(header):
        fields = [
            Field(field, kind, int(length) if length else None, text or "")
            for kind, field, length, text in _FIELD.findall(body)
            if not field.startswith("unused")
        ]
        found[name] = fields
    return found


def events(header: str) -> list[tuple[int, str, str, bool, str]]:
    """(number, kind, payload, kept while stopped, text) of every event."""
    return [
        (int(number), kind, payload, keep == "1", text)
        for number, kind, payload, keep, text in _EVENT.findall(header)
    ]


def render(header: str) -> str:
    return "\n".join(_lines(header)) + "\n"


def _lines(header: str) -> Iterator[str]:
    found = structs(header)
    yield _INTRODUCTION
    yield "| number | kind | payload | kept | when |"
    yield "|---|---|---|---|---|"
    for number, kind, payload, keep, text in events(header):
        kept = "yes" if keep else ""
        yield f"| {number} | `{kind}` | [{payload}](#{payload}) | {kept} | {text} |"
    yield "\n## header\n"
    yield from _table(found["header"])
    for payload in dict.fromkeys(event[2] for event in events(header)):
        yield f"\n## {payload}\n"
        yield from _table(found[payload])
    yield "\n## Named numbers\n"
    yield "| number | name | meaning |"
    yield "|---|---|---|"
    for body in _ENUM.findall(header):
        for group, name, number, text in _ENUMERATOR.findall(body):
            yield f"| {group.lower()} {number} | `{name}` | {text} |"


def _table(fields: list[Field]) -> Iterator[str]:
    if not fields:
        yield "No fields."
        return
    yield "| field | type | meaning |"
    yield "|---|---|---|"
    for field in fields:
        length = f"[{field.length}]" if field.length else ""
        yield f"| `{field.name}` | {field.type}{length} | {field.text} |"


if __name__ == "__main__":
    print(render(HEADER.read_text(encoding="utf-8")), end="")
