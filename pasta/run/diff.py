"""Compares two runs: the tables that both have, row by row and column by column."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from pasta.errors import ConfigError, RunError
from pasta.probes.unseen import PROBED
from pasta.run.files import reading
from pasta.run.results import as_table, read_schema, read_table, stored_tables
from pasta.table import counted, formatted

if TYPE_CHECKING:
    from pasta.run.directory import RunDirectory
    from pasta.table import Table, Unit

#: A row is in both runs, or in one only.
Side = Literal["both", "before", "after"]
_TEXT = 120  # characters of a command in a note
#: Maximum number of rows with different keys: each takes some hundred bytes.
_MAX_ROWS = 1 << 19


@dataclass(frozen=True)
class Change:
    """A number in two runs; None if absent. Rows missing in a run count as 0 in sums."""

    before: int | float | None
    after: int | float | None
    difference: int | float | None

    @classmethod
    def of(
        cls, before: int | float | None, after: int | float | None, absent: int | None
    ) -> Change:
        """`absent` replaces a number that is None; if it is None too, so is the difference."""
        counted = [absent if each is None else each for each in (before, after)]
        known = counted[0] is not None and counted[1] is not None
        return cls(before, after, counted[1] - counted[0] if known else None)  # type: ignore[operator]

    @property
    def ratio(self) -> float | None:
        """`after` divided by `before`; None if undefined."""
        if not self.before or self.after is None:
            return None
        return self.after / self.before

    def document(self) -> dict[str, int | float | None]:
        """The change as a JSON object."""
        return {**vars(self), "ratio": self.ratio}


@dataclass(frozen=True)
class ColumnDiff:
    """A column of numbers in two runs. `total` is None unless the column adds up over rows."""

    name: str
    label: str
    unit: Unit | None
    changes: list[Change]
    total: Change | None
    #: Whether reports show it without a request.
    shown: bool = True

    @property
    def whole(self) -> int | float:
        """The larger total, or the largest number of a column of levels: differences are a share
        of it."""
        of = [self.total] if self.total is not None else self.changes
        return max((abs(n) for each in of for n in (each.before, each.after) if n), default=0)

    @property
    def weight(self) -> float:
        """Relative size of the column's changes, for sorting: their sum divided by `whole`."""
        changed = [abs(each.difference) for each in self.changes if each.difference]
        most = sum(changed) if self.total is not None else max(changed, default=0)
        return most / self.whole if self.whole else 0.0


@dataclass(frozen=True)
class TableDiff:
    """A table in two runs. Rows with equal keys are merged; `sides` has the runs of each row."""

    tool: str
    name: str
    title: str
    keys: dict[str, list[Any]]
    units: Mapping[str, Unit]
    sides: list[Side]
    columns: dict[str, ColumnDiff]
    notes: list[str]

    def label(self, row: int) -> str:
        """A row's keys as text, which thresholds match: "gemm, forward"."""
        return ", ".join(
            formatted(values[row], self.units.get(name)) for name, values in self.keys.items()
        )

    def to_arrow(self) -> pa.Table:
        """Key columns, `run` (both, before or after), and for each column COLUMN_before, _after,
        _difference and _ratio, with its unit in the metadata of the fields."""
        arrays: list[pa.Array] = [pa.array(values) for values in self.keys.values()]
        fields = [
            pa.field(name, array.type, metadata=_unit(self.units.get(name)))
            for name, array in zip(self.keys, arrays, strict=True)
        ]
        arrays.append(pa.array(self.sides, pa.string()))
        fields.append(pa.field("run", pa.string()))
        for name, column in self.columns.items():
            for part in ("before", "after", "difference", "ratio"):
                array = _numbers([getattr(each, part) for each in column.changes])
                unit = None if part == "ratio" else _unit(column.unit)
                arrays.append(array)
                fields.append(pa.field(f"{name}_{part}", array.type, metadata=unit))
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

    def document(self, chosen: Collection[str] = ()) -> dict[str, Any]:
        """The table as a JSON object, with all columns or those `chosen`."""
        columns = {
            name: each for name, each in self.columns.items() if not chosen or name in chosen
        }
        return {
            "tool": self.tool,
            "table": self.name,
            "title": self.title,
            "keys": list(self.keys),
            "columns": {
                name: {
                    "unit": column.unit,
                    "label": column.label,
                    "total": None if column.total is None else column.total.document(),
                }
                for name, column in columns.items()
            },
            "rows": [
                {
                    "run": side,
                    "keys": {name: values[row] for name, values in self.keys.items()},
                    "columns": {
                        name: each.changes[row].document() for name, each in columns.items()
                    },
                }
                for row, side in enumerate(self.sides)
            ],
            "notes": self.notes,
        }


def _unit(unit: Unit | None) -> dict[str, str] | None:
    return {"unit": unit} if unit else None


def _numbers(values: Sequence[int | float | None]) -> pa.Array:
    whole = all(each is None or (isinstance(each, int) and abs(each) < 2**63) for each in values)
    return pa.array(values, pa.int64() if whole and values else pa.float64())


@dataclass
class Comparison:
    """Two run directories: what can be compared, and notes on what cannot."""

    before: RunDirectory
    after: RunDirectory
    _tables: dict[tuple[str, str], TableDiff] = field(default_factory=dict, init=False)
    _layouts: dict[tuple[str, str], _Layout] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Reads both manifests. Raises RunError."""
        self._manifests = (self.before.manifest(), self.after.manifest())
        self._stored = (stored_tables(self.before.results), stored_tables(self.after.results))

    @cached_property
    def tables(self) -> dict[str, list[str]]:
        """Names of the tables that both runs have, by tool; the main table first."""
        before, after = self._stored
        return {
            tool: [name for name in after[tool] if name in before[tool]]
            for tool in after
            if tool in before
        }

    @cached_property
    def notes(self) -> list[str]:
        """What cannot or should not be compared, one line each."""
        return [*self._of_runs(), *self._of_tools(), *self._of_samples()]

    def _of_runs(self) -> Iterable[str]:
        for run, manifest in zip((self.before, self.after), self._manifests, strict=True):
            if not manifest:
                yield f"{run.path}: unfinished run, compared as far as it was written"
            lost = sum(manifest.get("dropped", {}).values())
            if lost:
                yield (
                    f"{run.path}: {counted(lost, 'event was', 'events were')} lost, so its "
                    "numbers are too low"
                )
        if not all(self._manifests):
            return
        for what, value_of in (
            ("backends", lambda run: ", ".join(sorted(run.get("sources", ()))) or "none"),
            ("devices", lambda run: ", ".join(sorted(run.get("devices", {}).values())) or "none"),
            ("commands", lambda run: " ".join(run.get("command", ()))),
            ("ends", lambda run: run.get("ended", {}).get("text", "")),
        ):
            before, after = (value_of(each) for each in self._manifests)
            if before != after:
                yield (f"the runs have different {what}: {_shortened(before)}; {_shortened(after)}")

    def _of_tools(self) -> Iterable[str]:
        sides = list(zip((self.before, self.after), self._stored, self._manifests, strict=True))
        for (_, mine, _), (other, others, manifest) in (sides, sides[::-1]):
            for tool, names in mine.items():
                if tool not in others:
                    failure = manifest.get("failures", {}).get(tool)
                    why = f" (it was disabled: {failure['reason']})" if failure else ""
                    yield f"{tool}: not compared, missing in {other.path}{why}"
                    continue
                missing = [name for name in names if name not in (PROBED, *others[tool])]
                if missing:
                    tables = ", ".join(missing)
                    yield f"{tool}: {tables} not compared, missing in {other.path}"

    def _of_samples(self) -> Iterable[str]:
        tools: dict[str, list[str]] = {}
        for tool in self.tables:
            if sampled := self.sampled(tool):
                tools.setdefault(sampled, []).append(tool)
        for sampled, names in tools.items():
            yield (
                f"not all launches were probed in {sampled}: estimates for all launches are "
                f"compared, and no counts of the probed launches ({', '.join(names)})"
            )

    def sampled(self, tool: str) -> str:
        """The runs in which some launches were not probed for a tool: "before and after"; empty
        without any."""
        runs = zip((self.before, self.after), self._stored, strict=True)
        return " and ".join(str(run.path) for run, mine in runs if PROBED in mine.get(tool, ()))

    def uncompared(self, tool: str, name: str) -> Mapping[str, str | None]:
        """Columns of a table that are not compared because they cover the probed launches only,
        each with the column of its estimate, if there is one. Raises RunError."""
        return self._layout(tool, name).uncompared

    def uncomparable(self, option: str, tool: str, name: str, column: str) -> ConfigError:
        """The error of an option that names a column of `uncompared`."""
        estimate = self.uncompared(tool, name)[column]
        return ConfigError(
            f"{option}: {tool}.{name}.{column} counts the probed launches only, which are not all "
            f"launches in {self.sampled(tool)}",
            remedy=f"use {tool}.{name}.{estimate}"
            if estimate
            else "compare runs in which all launches were probed",
        )

    def compared(self, tool: str, name: str) -> list[str]:
        """Compared columns of a table, sums first. Raises RunError."""
        layout = self._layout(tool, name)
        return [*layout.sums, *layout.levels]

    def shown(self, tool: str, name: str) -> bool:
        """Whether text reports show a table. Raises RunError."""
        return self._layout(tool, name).table.shown > 0

    def _layout(self, tool: str, name: str) -> _Layout:
        if (tool, name) not in self._layouts:
            before, after = (
                read_schema(run.results, tool, name) for run in (self.before, self.after)
            )
            where = self.after.results / tool / f"{name}.parquet"
            self._layouts[tool, name] = _Layout.of(before, after, where, bool(self.sampled(tool)))
        return self._layouts[tool, name]

    def table(self, tool: str, name: str) -> TableDiff:
        """Compares a table that both runs have. Raises RunError."""
        if (tool, name) not in self._tables:
            before, after = (
                read_table(run.results, tool, name) for run in (self.before, self.after)
            )
            layout = self._layout(tool, name)
            with reading(self.after.results / tool / f"{name}.parquet"):
                self._tables[tool, name] = _diff(tool, name, before, after, layout)
        return self._tables[tool, name]


def _shortened(text: str) -> str:
    return text if len(text) <= _TEXT else text[:_TEXT] + "…"


# ---- one table ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Layout:
    """Columns of a table that both runs have, by their role in comparisons."""

    table: Table  # without rows
    keys: list[str]
    sums: list[str]
    levels: list[str]
    #: Columns that are not compared because they cover the probed launches only, with the columns
    #: of their estimates, and all columns of estimates.
    uncompared: Mapping[str, str | None]
    estimates: frozenset[str]

    @classmethod
    def of(cls, before: pa.Schema, after: pa.Schema, where: Path, sampled: bool) -> _Layout:
        """`sampled`: not all launches were probed, in one run at least."""
        table = as_table(after.empty_table(), where)
        types = {name: _type(before, after, name) for name in after.names if name in before.names}
        texts = [name for name, type in types.items() if not _holds_numbers(type)]
        keys = texts if table.keys is None else [name for name in table.keys if name in types]
        if table.sums is not None or table.levels is not None:
            sums, levels = table.sums or (), table.levels or ()
        else:
            numbers = [name for name in types if name not in (*texts, *keys)]
            sums = [
                name
                for name in numbers
                if pa.types.is_integer(types[name])
                and table.units.get(name) not in ("address", "share")
            ]
            levels = [
                name for name in numbers if name not in sums and table.units.get(name) != "address"
            ]
        texts = [name for name in texts if not pa.types.is_null(types[name])]
        probed = table.probed or {}
        sums = [*dict.fromkeys((*sums, *(each for name in sums if (each := probed.get(name)))))]
        there = [name for name in types if name not in texts]
        uncompared = {
            name: each for name, each in probed.items() if sampled and name in (*sums, *levels)
        }
        there = [name for name in there if name not in uncompared]
        return cls(
            table,
            keys,
            [name for name in sums if name in there],
            [name for name in levels if name in there],
            uncompared,
            frozenset(each for each in probed.values() if each),
        )


def _type(before: pa.Schema, after: pa.Schema, name: str) -> pa.DataType:
    """A column's type, from the run in which it has values."""
    type = after.field(name).type
    return before.field(name).type if pa.types.is_null(type) else type


def _holds_numbers(type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type) or pa.types.is_floating(type))


@dataclass(frozen=True)
class _Grouped:
    """Rows of one run by key, in order, with totals and numbers of absent values by column."""

    rows: dict[tuple[Any, ...], dict[str, int | float | None]]
    totals: dict[str, int | float | None]
    absent: dict[str, int]
    several: bool  # whether rows share keys


def _grouped(table: pa.Table, layout: _Layout) -> _Grouped:
    keys, sums, levels = layout.keys, layout.sums, layout.levels
    columns = {f"key_{at}": _hashable(table.column(name)) for at, name in enumerate(keys)}
    absent = {}
    for name in (*sums, *levels):
        columns[f"value_{name}"] = column = _finite(table.column(name))
        absent[name] = column.null_count
    some = min(len(table), 1)  # the sum of no rows is 0; of absent values only, it is absent
    totals = {name: pc.sum(columns[f"value_{name}"], min_count=some).as_py() for name in sums}
    by = [f"key_{at}" for at in range(len(keys))]
    if not keys:  # rows cannot be matched
        return _Grouped({}, totals, absent, False)
    wanted = [(f"value_{name}", "sum") for name in sums]
    wanted += [(f"value_{name}", which) for name in levels for which in ("min", "max")]
    found = pa.table(columns).group_by(by, use_threads=False).aggregate(wanted)
    if len(found) > _MAX_ROWS:
        raise ValueError(f"{len(found):,} rows differ, only {_MAX_ROWS:,} are compared")
    rows = {}
    for row in found.to_pylist():
        numbers = {name: row[f"value_{name}_sum"] for name in sums}
        for name in levels:
            least, most = row[f"value_{name}_min"], row[f"value_{name}_max"]
            numbers[name] = least if least == most else None
        rows[tuple(row[key] for key in by)] = numbers
    return _Grouped(rows, totals, absent, len(rows) < len(table))


def _hashable(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    if pa.types.is_null(column.type):
        return column.cast(pa.string())
    if pa.types.is_nested(column.type):
        return pa.array([None if each is None else formatted(each) for each in column.to_pylist()])
    return column


def _finite(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """The column with infinities and NaN replaced by null."""
    if pa.types.is_null(column.type):
        return column.cast(pa.int64())
    if pa.types.is_floating(column.type):
        return pc.if_else(pc.is_finite(column), column, None)
    return column


def _diff(tool: str, name: str, before: pa.Table, after: pa.Table, layout: _Layout) -> TableDiff:
    runs = [_grouped(each, layout) for each in (before, after)]
    rows = list(dict.fromkeys([*runs[1].rows, *runs[0].rows]))
    sides = [_side(row, runs[0], runs[1]) for row in rows]
    columns = {}
    table = layout.table
    for column in (*layout.sums, *layout.levels):
        adds_up = column in layout.sums
        changes = []
        for row, side in zip(rows, sides, strict=True):
            first, second = (run.rows.get(row, {}).get(column) for run in runs)
            absent = 0 if adds_up and side != "both" else None
            changes.append(Change.of(first, second, absent))
        total = None
        if adds_up:
            total = Change.of(runs[0].totals[column], runs[1].totals[column], None)
        columns[column] = ColumnDiff(
            column,
            table.labels.get(column, column.replace("_", " ")),
            table.units.get(column),
            changes,
            total,
            shown=bool(layout.uncompared) or column not in layout.estimates,
        )
    return TableDiff(
        tool,
        name,
        table.title,
        {key: [row[at] for row in rows] for at, key in enumerate(layout.keys)},
        table.units,
        sides,
        columns,
        list(_notes(f"{tool}.{name}", runs, layout.levels)),
    )


def _side(row: tuple[Any, ...], before: _Grouped, after: _Grouped) -> Side:
    if row not in before.rows:
        return "after"
    return "both" if row in after.rows else "before"


def _notes(place: str, runs: list[_Grouped], levels: list[str]) -> Iterable[str]:
    absent = [
        f"{name} ({before:,} before, {after:,} after)"
        for name, before in runs[0].absent.items()
        if (after := runs[1].absent[name]) or before
    ]
    if absent:
        yield f"{place}: rows without a value are left out: {', '.join(absent)}"
    if levels and any(run.several for run in runs):
        yield (
            f"{place}: rows with equal keys are added up, and not compared by "
            f"{', '.join(levels)} where it differs"
        )


def require(comparison: Comparison, tool: str, name: str | None) -> str:
    """Name of a table that both runs have; None: the tool's main one. Raises RunError."""
    if tool not in comparison.tables:
        known = f"both have {', '.join(comparison.tables)}" if comparison.tables else None
        raise RunError(f"the runs do not both have a tool {tool!r}", remedy=known)
    names = comparison.tables[tool]
    if name is None and names:
        return names[0]
    if name not in names:
        what = f"a table {name!r} of {tool}" if name else f"a table of {tool}"
        known = f"both have {', '.join(names)}" if names else None
        raise RunError(f"the runs do not both have {what}", remedy=known)
    assert name is not None
    return name
