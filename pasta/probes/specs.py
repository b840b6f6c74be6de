"""Specifications of maps for executors: a declaration with the options of a tool instance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pasta.probes.placements import Placement, Recorded
from pasta.probes.tables import DONE, LAUNCH, Table


@dataclass(frozen=True)
class Parameter:
    """A parameter of a map's method. An `amount` is added up; other parameters are keys.

    A `field` must be given as `access.NAME`: its range is bounded by the run, not by a size in the
    declaration.
    """

    name: str
    amount: bool = False
    default: int | None = None
    alias: str = ""
    field: bool = False


@dataclass(frozen=True)
class Method:
    """The method of a map that probes call. `takes_access`: its only argument is `access`, for the
    fields with the parameters' names. `returns`: it returns an integer, which probes assign."""

    name: str
    parameters: tuple[Parameter, ...] = ()
    takes_access: bool = False
    returns: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the parameters that are keys."""
        return tuple(each.name for each in self.parameters if not each.amount)

    @property
    def amounts(self) -> tuple[str, ...]:
        """Names of the parameters that are amounts."""
        return tuple(each.name for each in self.parameters if each.amount)


@dataclass(frozen=True, kw_only=True)
class MapSpec:
    """Base of specifications, one for each type of map.

    Keys are stored as given, except that an index is clamped to [0, `limits[name]`).
    """

    name: str
    by: tuple[str, ...] = ()
    method: Method
    keys: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    per_launch: bool = False
    #: Whether its rows are of all launches, estimated from the probed ones (`Tool.estimates`): sums
    #: over launches, which executors deliver by launch.
    estimated: bool = False
    #: Whether some launches run without probes, so that devices must count by launch too.
    sampled: bool = False
    limits: Mapping[str, int] = field(default_factory=dict)

    #: Whether its records have the values of accesses.
    with_values: bool = False

    #: Whether the map passes whole records to the tool's `on_accesses` and counts nothing.
    hands_on: ClassVar[bool] = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that executors deliver to `accumulate`, in order: with `per_launch` the ordinal
        of the launch, then the keys, then the fields."""
        return (*self._row_keys, *self.fields)

    @property
    def _row_keys(self) -> tuple[str, ...]:
        return (*(("launch",) if self.per_launch else ()), *self.keys)

    def for_estimates(self) -> MapSpec:
        """The same map, estimated if it can be."""
        return self

    @property
    def placement(self) -> Placement:
        """Placement of the counts on a device."""
        raise NotImplementedError

    @property
    def recorded(self) -> bool:
        """Whether a device records the accesses, for the host to count."""
        return isinstance(self.placement, Recorded)

    # the CPU executor

    def table(self, name: str, number: int) -> Table:
        """A table for the map; `name` begins the names of the functions on it."""
        return Table(name, number, self._row_keys, self.fields)

    def operation(self, table: Table) -> str:
        """Source of the map's method, compiled by Numba: adds the amounts to the row of the keys.

        It is called as NAME__METHOD(env, *parameters of the method), where NAME is the table's.
        """
        # fields may have any name: the prefix a_ avoids the names used here
        parameters = [
            f"a_{each.name}" if each.amount else each.name for each in self.method.parameters
        ]
        lines = self.key_lines()
        if self.per_launch:
            lines.append(f"launch = peek(state, {LAUNCH})")
        full = table.lose("a_amount") if table.limit else table.stop()
        first = 1 + len(table.keys)
        added = [
            self.update(f"at + {first + i}", f"a_{name}")
            for i, name in enumerate(self.method.amounts)
        ]
        return (
            table.find()
            + "\n"
            + table.head(self.method.name, parameters)
            + "".join(f"\n    {line}" for line in lines)
            + table.row("    ", full)
            + "".join(f"\n    {line}" for line in added)
            + f"\n    add(state, {DONE}, 1)\n"
        )

    def key_lines(self) -> list[str]:
        """Statements that compute the table's keys from the method's parameters."""
        return [f"{key} = min(max({key}, 0), {limit - 1})" for key, limit in self.limits.items()]

    def update(self, cell: str, amount: str) -> str:
        """The statement that adds an amount to a cell of the table."""
        return f"add(table, {cell}, {amount})"
