"""Heat maps of objects, from the results of tools that count accesses by place."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pasta.errors import RunError
from pasta.table import has_columns, plain

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.run.results import StoredResult
    from pasta.table import Figure, Table

#: Maximum columns and lines of a strip; more places are combined.
_MAX_POINTS = 512
_MAX_LINES = 64
_MAX_STRIPS = 10
#: Parts of a line of a tensor, if its shape allows.
_MIN_ACROSS = 4
_WORD_BYTES = 4
#: Ratio of accesses from which on a tensor is shown by its shape.
_UNEVEN = 1.25
_MAX_EXACT = 2.0**53


@dataclass(frozen=True)
class Strip:
    """Accesses of one object: `cells` is float64 (lines, points), NaN where nothing was observed.

    A point covers `step` bytes, beginning at offset `start`; a line covers `lines_step` units of
    the map's `lines`.
    """

    label: str
    start: int
    step: int
    cells: NDArray[Any]
    lines_step: int = 1


@dataclass(frozen=True)
class HeatMap:
    """Strips with a common color scale. `lines` is the unit of a strip's lines."""

    title: str
    strips: list[Strip]
    lines: str = ""


def heat_maps(result: StoredResult) -> Iterator[HeatMap]:
    """Heat maps of a tool's result, if it counts accesses by place. Raises RunError."""
    strips = [strip for name, each in result.figures.items() if (strip := _of_figure(name, each))]
    if strips:
        yield HeatMap("Accesses to objects, by offset", strips)
    shapes = _shapes(result.tables.get("objects")) if strips else {}
    folded = [_by_shape(strip, shapes[strip.label]) for strip in strips if strip.label in shapes]
    if tensors := [strip for strip in folded if strip is not None and _is_uneven(strip)]:
        title = "Tensors with uneven accesses: rows down, columns across"
        yield HeatMap(title, tensors, "row")
    windows = result.tables.get("window_bins")
    if has_columns(windows, "window", "object", "object_id", "offset", "count"):
        lines = HeatMap(
            "Accesses to objects: offset across, time down", _by_window(windows), "window"
        )
        yield from (lines,) if lines.strips else ()
    sectors = result.tables.get("sectors")
    if has_columns(sectors, "kernel", "object", "offset", "word_0", "word_7"):
        words = HeatMap("Accesses to sectors: offset across, words down", _by_word(sectors), "word")
        yield from (words,) if words.strips else ()


def is_strip(name: str, figure: Figure) -> bool:
    """Whether a figure is shown as a strip of a heat map."""
    return (
        name.startswith("object_")
        and figure.kind == "bar"
        and figure.x_unit == "bytes"
        and len(figure.series) == 1
        and all(isinstance(each, int) for each in figure.x)
    )


def _of_figure(name: str, figure: Figure) -> Strip | None:
    if not is_strip(name, figure) or not len(figure.x):
        return None
    (values,) = figure.series.values()
    step = int(figure.x[1] - figure.x[0]) if len(figure.x) > 1 else 0
    label = figure.title.removeprefix("Accesses to ")
    return Strip(label, int(figure.x[0]), step, np.asarray(values, np.float64).reshape(1, -1))


def _shapes(table: Table | None) -> dict[str, tuple[list[int], int]]:
    """Shape and bytes of tensors, by the name of their object."""
    if not has_columns(table, "object", "object_shape", "object_bytes"):
        return {}
    found = {}
    for row in table.rows():
        sizes = str(row["object_shape"] or "").split(",")
        if len(sizes) > 1 and all(size.isdecimal() and len(size) < 12 for size in sizes):
            found[str(row["object"])] = [int(size) for size in sizes], _whole(row["object_bytes"])
    return found


def _whole(value: object) -> int:
    return value if isinstance(value, int) and 0 < value < _MAX_EXACT else 0


def _by_shape(strip: Strip, tensor: tuple[list[int], int]) -> Strip | None:
    """A strip folded into lines of the tensor's last dimensions, as few as its parts resolve."""
    shape, bytes = tensor
    count = math.prod(shape)
    if not 0 < count <= bytes or strip.step <= 0 or strip.start:
        return None
    item = 1 << min((bytes // count).bit_length() - 1, 4)  # storage may be rounded up
    wide, lines = item, count
    for size in reversed(shape):
        if wide >= strip.step * _MIN_ACROSS and wide > item:
            break
        wide, lines = wide * size, lines // size
    if lines < 2 or wide < strip.step:
        return None
    each = -(-lines // _MAX_LINES)
    (values,) = strip.cells
    offset = np.arange(len(values)) * strip.step
    line = offset // wide // each
    place = offset % wide // strip.step
    inside = line < -(-lines // each)
    cells = np.full((-(-lines // each), -(-wide // strip.step)), np.nan)
    at = line[inside], place[inside]
    cells[at] = 0
    np.add.at(cells, at, np.nan_to_num(values[inside]))
    label = f"[{', '.join(map(str, shape))}] {strip.label}"
    return Strip(label, 0, strip.step, cells, lines_step=each)


def _is_uneven(strip: Strip) -> bool:
    """Whether parts differ by more than the ends of rows, which may be in two parts."""
    cells = strip.cells[:, :-1] if strip.cells.shape[1] > 1 else strip.cells
    return bool(np.nanmax(cells) > _UNEVEN * np.nanmin(cells))


def _numbers(table: Table, name: str) -> NDArray[Any]:
    """A column of numbers that are exact in float64. Raises RunError for others."""
    try:
        found = np.asarray(table.columns[name], np.float64)
    except (TypeError, ValueError):
        found = np.array([np.nan])
    # -1: no object
    if found.ndim != 1 or not ((found >= -1) & (found < _MAX_EXACT)).all():
        raise RunError(f"column {plain(name, 80)} of {table.title!r} has no numbers from 0 to 2^53")
    return found


def _groups(keys: list[Any], weights: NDArray[Any]) -> Iterator[tuple[Any, NDArray[Any]]]:
    """The heaviest keys with their rows."""
    codes: dict[Any, int] = {}
    code = np.asarray([codes.setdefault(key, len(codes)) for key in keys], np.intp)
    order = np.argsort(-np.bincount(code, weights), kind="stable")[:_MAX_STRIPS]
    names = list(codes)
    for at in order.tolist():
        yield names[at], np.flatnonzero(code == at)


def _placed(
    offsets: NDArray[Any], unit: int, lines: NDArray[Any], line_count: int, weights: NDArray[Any]
) -> tuple[int, int, NDArray[Any]]:
    """Start, step and cells of weights at these offsets (multiples of `unit`) and lines."""
    start = int(offsets.min())
    places = ((offsets - start) // unit).astype(np.int64)
    width = int(places.max()) // _MAX_POINTS + 1
    cells = np.full((line_count, int(places.max()) // width + 1), np.nan)
    at = lines.astype(np.intp), places // width
    cells[at] = 0
    np.add.at(cells, at, weights)
    return start, width * unit, cells


def _unit(offsets: NDArray[Any]) -> int:
    """The greatest common divisor of the offsets."""
    return int(np.gcd.reduce(offsets.astype(np.int64))) or 1


def _by_window(table: Table) -> list[Strip]:
    offsets, counts = _numbers(table, "offset"), _numbers(table, "count")
    windows = _numbers(table, "window").astype(np.int64)
    each = int(windows.max()) // _MAX_LINES + 1
    numbers = _numbers(table, "object_id").astype(np.int64).tolist()
    names = list(zip(table.columns["object"], numbers, strict=True))
    strips = []
    for (name, number), rows in _groups(names, counts):
        if number >= 0:
            line = windows[rows] // each
            unit = _unit(offsets)
            placed = _placed(
                offsets[rows], unit, line, int(windows.max()) // each + 1, counts[rows]
            )
            strips.append(Strip(str(name), *placed, lines_step=each))
    return strips


def _by_word(table: Table) -> list[Strip]:
    words = [name for name in table.columns if name.startswith("word_")]
    counts = np.stack([_numbers(table, name) for name in words], axis=1)
    offsets = _numbers(table, "offset")
    sector = _WORD_BYTES * len(words)
    keys = list(zip(table.columns["kernel"], table.columns["object"], strict=True))
    strips = []
    for (kernel, object), rows in _groups(keys, counts.sum(axis=1)):
        line = np.tile(np.arange(len(words)), len(rows))
        place = np.repeat(offsets[rows], len(words))
        placed = _placed(place, sector, line, len(words), counts[rows].reshape(-1))
        strips.append(Strip(f"{kernel}: {object}", *placed))
    return strips
