"""Base class of declarations of maps."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

from pasta.errors import ProbeError, ToolError
from pasta.members import Member, Owner
from pasta.options import Option
from pasta.probes.accumulators import Accumulator
from pasta.probes.specs import MapSpec, Method, Parameter

By = str | int | tuple[str | int, ...]
#: A number, a size as text ("4KiB"), or an option of the tool.
Number = int | str | Option[int]

#: Implicit keys: the current launch, whose ordinal executors deliver for both.
IMPLICIT = ("launch", "kernel")
#: Keys that are fields of an access.
KEYS = ("object", "pc", "block", "sm")
#: Maximum of values of an index and keys of a table.
MAX_INDEX = 1 << 20
#: Maximum of pairs of an object and an instruction in a launch on a device.
MAX_PAIRS = 1 << 14


A = TypeVar("A", bound=Accumulator)
S = TypeVar("S", bound=MapSpec)


class Map(Member, Generic[A]):
    """Base of declarations. Raises ProbeError for a wrong one."""

    #: Class of accumulators.
    storage: type[Any] = Accumulator
    by: tuple[str, ...] = ()
    method: Method

    def __init__(self) -> None:
        self.name = ""
        self.where = _caller()

    def __set_name__(self, owner: type, name: str) -> None:
        if "__" in name or name.startswith("_"):
            raise self._wrong(f"the map name {name}", "use one without __ or a leading _")
        self.name = name

    @overload
    def __get__(self, tool: None, owner: type) -> Map[A]: ...
    @overload
    def __get__(self, tool: object, owner: type) -> A: ...
    def __get__(self, tool: object | None, owner: type) -> Map[A] | A:
        if tool is None:
            return self
        found: A = accumulators_of(tool)[self.name]
        return found

    def __set__(self, tool: object, value: object) -> None:
        raise AttributeError(f"only probes write to the map {self.name}")

    def attach(self, tool: Owner) -> None:
        """Create the accumulator of a new instance. Raises ToolError."""
        made = self.accumulator(tool._options, estimates=tool.estimates)
        vars(tool).setdefault("_maps", {})[self.name] = made

    def spec(self, options: Mapping[str, Any]) -> MapSpec:
        """The map with these values of the tool's options. Raises ToolError."""
        raise NotImplementedError

    def accumulator(self, options: Mapping[str, Any], *, estimates: bool = False) -> A:
        """An accumulator of the map for a tool instance, which `estimates` where it can. Raises
        ToolError."""
        spec = self.spec(options)
        found: A = self.storage(spec.for_estimates() if estimates else spec)
        return found

    def _spec(self, kind: type[S], **more: Any) -> S:
        """A specification with name, method, `by`, and further fields."""
        return kind(name=self.name, by=self.by, method=self.method, **more)

    def _wrong(self, what: str, remedy: str) -> ProbeError:
        return ProbeError(*self.where, f"{type(self).__name__}: {what} is not accepted", remedy)

    def _number(self, value: Number, what: str, low: int = 1, high: int | None = None) -> Number:
        """A checked number, or the option with its value."""
        if isinstance(value, Option):
            if value.kind not in ("int", "bytes"):
                raise self._wrong(f"{what} = option {value.name}", "use an int or bytes option")
            return value
        if isinstance(value, str):
            try:
                value = int(Option(value, "", None, "bytes", None).default)
            except ValueError:
                raise self._wrong(f'{what} = "{value}"', 'use a size such as "4KiB"') from None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(f"{what} = {value!r}", "use an integer")
        if value < low or (high is not None and value > high):
            raise self._wrong(f"{what} = {value}", _between(low, high))
        return value

    def _value(
        self, value: Number, options: Mapping[str, Any], low: int = 1, high: int | None = None
    ) -> int:
        if not isinstance(value, Option):
            return int(value)
        found = int(options[value.name])
        if found < low or (high is not None and found > high):
            raise ToolError(
                f"{value.name} = {found} is not accepted by the map {self.name}",
                remedy=_between(low, high),
            )
        return found

    def _checked_by(
        self, by: By, allowed: Iterable[str], *, index: bool = False
    ) -> tuple[str | int, ...]:
        parts = by if isinstance(by, tuple) else (by,)
        names = [f'"{each}"' for each in allowed] + ["an int"] * index
        for part in parts:
            if isinstance(part, str):
                fits = f'"{part}"' in names
            else:
                fits = index and isinstance(part, int) and not isinstance(part, bool)
            if not fits:
                raise self._wrong(f"by {part!r}", f"use {', '.join(names)}")
        if len(set(parts)) < len(parts):
            raise self._wrong(f"by {parts!r}", "use each part once")
        return parts


def accumulators_of(tool: object) -> dict[str, Any]:
    """Accumulators of a tool's maps, by name: part of its state."""
    found: dict[str, Any] = vars(tool).get("_maps", {})
    return found


def amounts(fields: tuple[str, ...]) -> tuple[Parameter, ...]:
    """Parameters of `add`: `amount` for a single field, otherwise one for each field."""
    if len(fields) == 1:
        return (Parameter("amount", amount=True, default=1, alias=fields[0]),)
    return tuple(Parameter(name, amount=True, default=0) for name in fields)


def checked_fields(owner: Map[Any], fields: tuple[str, ...] | str) -> tuple[str, ...]:
    """Names of fields as a tuple. Raises ProbeError."""
    fields = (fields,) if isinstance(fields, str) else tuple(fields)
    reserved = {*IMPLICIT, *KEYS, "index", "bin", "window", "amount", "shape"}
    for name in fields:
        if not isinstance(name, str) or not name.isidentifier() or "__" in name:
            raise owner._wrong(f"field {name!r}", "use an identifier")
        if name in reserved:
            raise owner._wrong(f"field {name!r}", "use another name: a column already has this one")
    if not fields or len(set(fields)) < len(fields):
        raise owner._wrong(f"fields {fields!r}", "use distinct names")
    return fields


def _between(low: int, high: int | None) -> str:
    return f"use at least {low}" + (f" and at most {high}" if high is not None else "")


def _caller() -> tuple[str, int]:
    """File and line of the current declaration."""
    here = Path(__file__).parent
    frame = sys._getframe(1)
    while frame.f_back is not None and Path(frame.f_code.co_filename).parent == here:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
