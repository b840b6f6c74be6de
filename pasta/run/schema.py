"""Schemas of the JSON documents of a run, run.json and result.json, with size limits.

Runs are untrusted. A document is validated as a whole before use, and the first invalid value is
reported with its place: `start.realtime_ns: expected a whole number`. A check is a function of a
value and its place; unknown keys are allowed, so that older versions can read newer documents.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

from pasta.errors import RunError
from pasta.findings import Topic
from pasta.run.files import NAME_RULE, is_plain_name, read_bounded
from pasta.table import plain

Check = Callable[[Any, str], None]

#: Maximum size of a document, in bytes.
MAX_DOCUMENT = 64 << 20
#: Default maximum of entries of a list or object.
MAX_ENTRIES = 100_000
#: Maximum length of a text shown on one line, in characters.
MAX_LINE = 1 << 16
#: Ranks of a job.
MAX_RANKS = 1 << 20
_MAX_DIGITS = 20  # of an integer: 64 bits and a sign


class Invalid(ValueError):
    """A value that violates its schema; the text includes its place."""


def _invalid(place: str, expected: str) -> Invalid:
    return Invalid(f"{plain(place, 200) or 'the document'}: expected {expected}")


def text(value: Any, place: str) -> None:
    """A string."""
    if not isinstance(value, str):
        raise _invalid(place, "text")


def line(value: Any, place: str) -> None:
    """A string shown on one line."""
    text(value, place)
    if len(value) > MAX_LINE:
        raise _invalid(place, f"at most {MAX_LINE:,} characters, not {len(value):,}")


def name(value: Any, place: str) -> None:
    """A plain name, which is used in a path."""
    if not is_plain_name(value):
        raise _invalid(place, NAME_RULE)


def whole(low: int = 0, high: int = 2**63 - 1) -> Check:
    """A check for an integer from `low` to `high`."""

    def check(value: Any, place: str) -> None:
        if not isinstance(value, int) or isinstance(value, bool):
            raise _invalid(place, "a whole number")
        if not low <= value <= high:
            raise _invalid(place, f"a number from {low} to {high}")

    return check


def number(value: Any, place: str) -> None:
    """A finite number below 2^63."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _invalid(place, "a number")
    if not math.isfinite(value) or abs(value) >= 2**63:
        raise _invalid(place, "a number below 2^63")


def one_of(*values: str) -> Check:
    """A check for one of these strings."""

    def check(value: Any, place: str) -> None:
        if not isinstance(value, str) or value not in values:
            raise _invalid(place, "one of " + ", ".join(values))

    return check


def optional(of: Check) -> Check:
    """A check for None or what `of` allows."""
    return lambda value, place: None if value is None else of(value, place)


def list_of(of: Check, max_entries: int = MAX_ENTRIES, *, distinct: bool = False) -> Check:
    """A check for a list of at most `max_entries` values; `distinct`: no two are equal."""

    def check(value: Any, place: str) -> None:
        if not isinstance(value, list):
            raise _invalid(place, "a list")
        _check_size(value, place, max_entries)
        for at, each in enumerate(value):
            of(each, f"{place}.{at}")
        if distinct and len(set(value)) < len(value):
            raise _invalid(place, "different names")

    return check


def map_of(of: Check, max_entries: int = MAX_ENTRIES) -> Check:
    """A check for an object of at most `max_entries` entries with any keys."""

    def check(value: Any, place: str) -> None:
        if not isinstance(value, dict):
            raise _invalid(place, "an object")
        _check_size(value, place, max_entries)
        for key, each in value.items():
            of(each, f"{place}.{key}" if place else key)

    return check


def _check_size(value: Any, place: str, max_entries: int) -> None:
    if len(value) > max_entries:
        raise _invalid(place, f"at most {max_entries:,} entries, not {len(value):,}")


def record(required: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    """A check for an object with these keys; others are ignored."""

    def check(value: Any, place: str) -> None:
        if not isinstance(value, dict):
            raise _invalid(place, "an object")
        _check_size(value, place, MAX_ENTRIES)
        prefix = f"{place}." if place else ""
        for key, of in required.items():
            if key not in value:
                raise Invalid(f"{prefix}{key}: missing")
            of(value[key], prefix + key)
        for key, of in (optional or {}).items():
            if key in value:
                of(value[key], prefix + key)

    return check


# ---- run.json ----

_TEXTS = list_of(text)
_COUNTS = map_of(whole(0, 2**64))
_PROCESS_ID = whole(0, 2**64)
_RANK = optional(whole(0, MAX_RANKS - 1))

MANIFEST = record(
    {
        "command": _TEXTS,
        "host": text,
        "pid": _PROCESS_ID,
        "start": record({"realtime_ns": whole(), "monotonic_ns": whole()}),
        "observed_ns": whole(-(2**63)),
        "ended": record({"text": text}),
        "sources": map_of(text),
        "devices": map_of(text),
    },
    {
        "executable": optional(text),
        "launched": optional(_TEXTS),
        "parent": optional(_PROCESS_ID),
        "rank": _RANK,
        "local_rank": _RANK,
        "world_size": optional(whole(0, MAX_RANKS)),
        "environment": map_of(text),
        "roofs": map_of(map_of(number)),
        "link_bandwidth": _COUNTS,
        "clock": optional(record({}, {"boot": optional(text), "error_ns": optional(whole())})),
        "config": optional(record({})),
        "tools": _TEXTS,
        "failures": map_of(record({"reason": text, "where": text})),
        "launches": _COUNTS,
        "events": _COUNTS,
        "recorded": _COUNTS,
        "left_out": _COUNTS,
        "dropped": _COUNTS,
        "samples": record({"located": whole(0, 2**64)}, {"unlocated": _COUNTS}),
        "warnings": _TEXTS,
        "replay": record({"of": text}),
        "merged": record({"of": text}),
        "ranks": list_of(record({}), MAX_RANKS),
        "passes": map_of(
            record(
                {"directory": text, "pid": _PROCESS_ID, "gave": text, "launches": whole()},
                {"command": _TEXTS, "sources": map_of(text), "tools": _TEXTS, "alone": whole()},
            ),
            2,
        ),
        "joined": record({"launches": whole()}),
    },
)

# ---- results/TOOL/result.json ----

_UNIT = optional(one_of("bytes", "ns", "address", "count", "share"))


_POINTS = list_of(lambda value, place: None, 1 << 22)


def _points(value: Any, place: str) -> None:
    """Values of a figure; None and NaN are gaps. `figure` checks strings."""
    _POINTS(value, place)
    types = set(map(type, value))
    known = [each for each in value if type(each) in (int, float) and each == each]
    if types - {int, float, str, type(None)}:
        raise _invalid(place, "numbers")
    if known and not -(2**63) < min(known) <= max(known) < 2**63:
        raise _invalid(place, "numbers below 2^63")


_FIGURE_KEYS = record(
    {
        "kind": one_of("line", "step", "bar", "area"),
        "title": text,
        "x": _points,
        "series": map_of(_points, 1000),
    },
    {"x_label": text, "y_label": text, "x_unit": _UNIT, "y_unit": _UNIT},
)


def figure(value: Any, place: str) -> None:
    """A figure whose series have as many values as `x`."""
    _FIGURE_KEYS(value, place)
    columns = {"x": value["x"], **{f"series.{key}": of for key, of in value["series"].items()}}
    for key, points in columns.items():
        if len(points) != len(value["x"]):
            raise _invalid(f"{place}.{key}", f"{len(value['x'])} values, as x has")
        types = set(map(type, points))
        if str in types and (key != "x" or len(types) > 1):
            raise _invalid(f"{place}.{key}", "numbers")


FINDING = record(
    {"what": line, "where": line, "evidence": line, "remedy": line},
    {"gain": optional(number), "of": line, "confidence": one_of("high", "medium", "low")},
)

RESULT = record(
    {"summary": text, "tables": list_of(name, 1000, distinct=True)},
    {
        "tool": name,
        "title": line,
        "topic": one_of(*get_args(Topic)),
        "files": list_of(name, 10_000, distinct=True),
        "findings": list_of(FINDING, 10_000),
        "figures": map_of(figure, 1000),
        "notes": list_of(text, 10_000),
    },
)


# ---- reading ----


def read_document(path: Path, run: Path) -> Any:
    """Reads the JSON document at `path`, a file of `run`. Raises RunError."""
    content = read_bounded(path, run, MAX_DOCUMENT)
    try:
        return json.loads(content, object_pairs_hook=_distinct, parse_int=_integer)
    except RecursionError:
        why = "nested too deeply"
    except ValueError as error:  # includes invalid UTF-8
        why = f"not valid JSON ({error})"
    raise RunError(f"{plain(str(path))}: {plain(why)}")


def check_document(document: Any, schema: Check, path: Path) -> dict[str, Any]:
    """Validates a document and returns it. Raises RunError with the file and the place."""
    try:
        schema(document, "")
    except Invalid as error:
        raise RunError(f"{plain(str(path))}: {error}") from None
    found: dict[str, Any] = document
    return found


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"duplicate key {plain(twice, 80)!r}")
    return found


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits")
    return int(digits)
