"""Writes docs/events.md from include/pasta_abi.h.

`python -m shim.reference` prints it; a test holds the file against the header.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HEADER = Path(__file__).resolve().parent / "include" / "pasta_abi.h"

_EVENT = re.compile(r"X\(\s*(\d+)," + r"\s*(\w+)," * 7 + r'\s*"([^"]*)",\s*"([^"]*)"\)')
_STRUCT = re.compile(r"typedef struct pasta_(\w+) \{\n(.*?)\n\} pasta_\1;", re.S)
_FIELD = re.compile(r"^\s+(\w+) (\w+)(?:\[(\d+)\])?;\s*(?:/\*\s*(.*?)\s*\*/)?$", re.M)
_INTEGER = re.compile(r"^PASTA_INTEGER\(pasta_(\w+), \w+,\n(.*?)\n\)", re.S | re.M)
_ENUMERATOR = re.compile(r"PASTA_[A-Z]+_(\w+) = (\d+),(?:\s*/\*\s*(.*?)\s*\*/)?")

_INTRODUCTION = """\
# Events

Generated from `shim/include/pasta_abi.h` by `python -m shim.reference`: do not edit.

An event is one record of the ring, and one row of the Parquet table of its kind
(`events/KIND-00000.parquet`). Every table has the header's fields and the fields of its payload.
Strings (`string_id`) and named numbers are dictionary-encoded text there, bits (`flags`,
`throttle`) are a number, an array of three is three columns (`grid_x`, `grid_y`, `grid_z`), a
longer one (`tensor`) is a list without its absent entries, `position` is the order over all kinds,
and a value that the source cannot give is null, never zero.

*Handler* is the method of a [tool](writing-a-tool.md) that receives a kind; `on_batch` receives
all. *Kept* kinds are recorded while profiling is stopped too, because later events refer to them.
"""


@dataclass(frozen=True)
class Field:
    """One field of a struct: C type, length of an array, and its comment."""

    name: str
    type: str
    length: int | None
    text: str


@dataclass(frozen=True)
class Event:
    """A row of PASTA_EVENTS."""

    number: int
    kind: str
    payload: str
    handler: str | None
    keep: bool
    text: str


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


def events(header: str) -> list[Event]:
    """Event kinds in order of their numbers."""
    found = (
        Event(int(number), kind, payload, None if handler == "none" else handler, keep == "1", text)
        for number, kind, payload, handler, _, keep, _, _, _, text in _EVENT.findall(header)
    )
    return sorted(found, key=lambda event: event.number)


def render(header: str) -> str:
    return "\n".join(_lines(header)) + "\n"


def _lines(header: str) -> Iterator[str]:
    found = structs(header)
    yield _INTRODUCTION
    yield "| number | kind | payload | handler | kept | when |"
    yield "|---|---|---|---|---|---|"
    for event in events(header):
        payload = f"[{event.payload}](#{event.payload})"
        handler = f"`{event.handler}`" if event.handler else ""
        kept = "yes" if event.keep else ""
        yield f"| {event.number} | `{event.kind}` | {payload} | {handler} | {kept} | {event.text} |"
    yield "\n## header\n"
    yield from _table(found["header"])
    for payload in dict.fromkeys(event.payload for event in events(header)):
        yield f"\n## {payload}\n"
        yield from _table(found[payload])
    yield "\n## Named numbers\n"
    yield "| type | number | name | meaning |"
    yield "|---|---|---|---|"
    fields = (field.type for fields in found.values() for field in fields)
    named = {type.removeprefix("pasta_") for type in fields}
    for type, body in _INTEGER.findall(header):
        for name, number, text in _ENUMERATOR.findall(body) if type in named else ():
            yield f"| {type} | {number} | `{name}` | {text} |"


def _table(fields: list[Field]) -> Iterator[str]:
    if not fields:
        yield "No fields."
        return
    yield "| field | type | meaning |"
    yield "|---|---|---|"
    for field in fields:
        length = f"[{field.length}]" if field.length else ""
        type = field.type.removeprefix("pasta_")
        yield f"| `{field.name}` | {type}{length} | {field.text} |"


if __name__ == "__main__":
    print(render(HEADER.read_text(encoding="utf-8")), end="")
