"""Maps: the state of probes. Declared in a tool's class, filled by whoever runs the probes.

A declaration (`Counter`, `Histogram`, …) is checked when it is written; `spec` is what executors
build it from, with the options of one tool instance put in. On a tool instance the attribute is
an accumulator: it adds up what executors deliver and gives `rows()`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast, overload

from pasta.errors import ProbeError, ToolError
from pasta.probes.accumulators import (
    Accumulator,
    BitmapAccumulator,
    TopKAccumulator,
    TraceAccumulator,
)
from pasta.probes.kinds import MULTIPROCESSORS
from pasta.tool import Option, Tool

MapType = Literal["counter", "histogram", "per_pc", "bitmap", "top_k", "trace"]
By = str | int | tuple[str | int, ...]
#: A number, a size as text ("4KiB"), or an option of the tool.
Number = int | str | Option[int]

#: Implicit: the running launch. Executors deliver its ordinal for both.
_IMPLICIT = ("launch", "kernel")
_KEYS = ("object", "pc", "block", "sm")
_MAX_INDEX = 1 << 20


@dataclass(frozen=True)
class Parameter:
    """Of a map's method. An `amount` is added up; everything else is a key.

    A `field` must be given as `access.NAME`: what it indexes is bounded by the run, not by a size
    in the declaration.
    """

    name: str
    amount: bool = False
    default: int | None = None
    alias: str = ""
    field: bool = False


@dataclass(frozen=True)
class Method:
    """What a probe may call on a map. `takes_access`: it is called with `access` alone, which
    stands for the fields of the parameters' names."""

    name: str
    parameters: tuple[Parameter, ...] = ()
    takes_access: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.parameters if not each.amount)

    @property
    def amounts(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.parameters if each.amount)


@dataclass(frozen=True)
class MapSpec:
    """A map as executors build it.

    `columns` is what they deliver, in this order, to `accumulate`: with `per_launch` the ordinal
    of the launch first, then the keys, then the fields. Keys are stored as the call gives them,
    except that an index is clamped to [0, `limits[name]`), that a histogram's key `offset`
    becomes the column `bin` = offset // bin, clamped to the object's bins (0 for object -1), and
    that a bitmap's keys become `object`, `word` and `mask` (64 granules a word; for object -1:
    word 0, and the number of touches).
    """

    name: str
    type: MapType
    by: tuple[str, ...]
    method: Method
    keys: tuple[str, ...]
    fields: tuple[str, ...]
    per_launch: bool = False
    limits: Mapping[str, int] = field(default_factory=dict)
    bin: int = 0  # bytes; histogram
    granularity: int = 0  # bytes; bitmap
    capacity: int = 0  # distinct keys; top_k
    k: int = 0  # rows; top_k
    window: int = 0  # amounts per window; histogram

    @property
    def recorded(self) -> bool:
        """Whether a GPU writes down what it would count, for the host to do it: bins by launch
        would take the bins of all objects for each launch in flight."""
        return self.type == "histogram" and self.per_launch

    @property
    def columns(self) -> tuple[str, ...]:
        launch = ("launch",) if self.per_launch else ()
        return (*launch, *self.keys, *self.fields)


# ---- declarations ---------------------------------------------------------------------------


A = TypeVar("A", bound=Accumulator)


class Map(Generic[A]):
    """Base of declarations. Raises ProbeError where one is wrong."""

    map_type: ClassVar[MapType]
    by: tuple[str, ...] = ()
    method: Method

    def __init__(self) -> None:
        self.name = ""
        self.where = _caller()

    def __set_name__(self, owner: type, name: str) -> None:
        if "__" in name or name.startswith("_"):
            raise self._wrong(f"the map name {name}", "give it one without __ or a leading _")
        self.name = name

    @overload
    def __get__(self, tool: None, owner: type) -> Map[A]: ...
    @overload
    def __get__(self, tool: Tool, owner: type) -> A: ...
    def __get__(self, tool: Tool | None, owner: type) -> Map[A] | A:
        if tool is None:
            return self
        return cast(A, tool._maps[self.name])

    def __set__(self, tool: Tool, value: object) -> None:
        raise AttributeError(f"map {self.name} is filled by probes")

    def spec(self, options: Mapping[str, Any]) -> MapSpec:
        """The map with these values of the tool's options. Raises ToolError."""
        raise NotImplementedError

    def accumulator(self, options: Mapping[str, Any]) -> A:
        raise NotImplementedError

    def _wrong(self, what: str, remedy: str) -> ProbeError:
        return ProbeError(*self.where, f"{type(self).__name__}: {what} is not accepted", remedy)

    def _number(self, value: Number, what: str, least: int = 1, most: int | None = None) -> Number:
        """A checked number, or the option that will give it."""
        if isinstance(value, Option):
            if value.kind not in ("int", "bytes"):
                raise self._wrong(f"{what} = option {value.name}", "give an int or bytes option")
            return value
        if isinstance(value, str):
            try:
                value = int(Option(value, "", None, "bytes", None).default)
            except ValueError:
                raise self._wrong(f'{what} = "{value}"', 'give a size such as "4KiB"') from None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(f"{what} = {value!r}", "give an integer")
        if value < least or (most is not None and value > most):
            raise self._wrong(f"{what} = {value}", _between(least, most))
        return value

    def _value(
        self, value: Number, options: Mapping[str, Any], least: int = 1, most: int | None = None
    ) -> int:
        if not isinstance(value, Option):
            return int(value)
        found = int(options[value.name])
        if found < least or (most is not None and found > most):
            raise ToolError(
                f"{value.name} = {found} is not accepted by the map {self.name}",
                remedy=_between(least, most),
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
                raise self._wrong(f"by {part!r}", f"give {', '.join(names)}")
        if len(set(parts)) < len(parts):
            raise self._wrong(f"by {parts!r}", "give each part once")
        return parts


class Counter(Map[Accumulator]):
    """Sums: `maps.n.add(*keys, amount=1)`, with several fields `maps.n.add(*keys, reads=1, …)`.

    `by` is any of "launch", "kernel" (the running one) and at most one of "object", "pc",
    "block", "sm" and an int N (an index below N); "pc" and N go together. Keys that the call
    gives are in the order of `by`. Of blocks, the last of `blocks` rows collects the rest.
    """

    map_type = "counter"

    def __init__(
        self, *, by: By = (), fields: tuple[str, ...] | str = ("count",), blocks: Number = 4096
    ) -> None:
        super().__init__()
        parts = self._checked_by(by, [*_IMPLICIT, *_KEYS], index=True)
        given = [part for part in parts if part not in _IMPLICIT]
        indices = [part for part in parts if isinstance(part, int)]
        pair = {"index" if isinstance(part, int) else part for part in given}
        if len(given) > 1 and (pair != {"pc", "index"} or len(given) > 2):
            raise self._wrong(
                f"by {parts!r}",
                'give at most one of "object", "pc", "block", "sm", N, or "pc" with N',
            )
        self.by = tuple("index" if isinstance(part, int) else part for part in parts)
        self.fields = _fields(self, fields)
        self.blocks = self._number(blocks, "blocks", most=_MAX_INDEX)
        self.index = self._number(indices[0], "by", most=_MAX_INDEX) if indices else 0
        self.keys = tuple(part for part in self.by if part not in _IMPLICIT)
        keys = (Parameter(key, field=key in ("object", "sm")) for key in self.keys)
        self.method = Method("add", (*keys, *_amounts(self.fields)))

    def spec(self, options: Mapping[str, Any]) -> MapSpec:
        sizes = {
            "block": self._value(self.blocks, options, most=_MAX_INDEX),
            "sm": MULTIPROCESSORS,
            "index": self._value(self.index, options),
        }
        limits = {key: sizes[key] for key in self.keys if key in sizes}
        implicit = any(part in _IMPLICIT for part in self.by)
        return MapSpec(
            self.name, self.map_type, self.by, self.method, self.keys, self.fields, implicit, limits
        )

    def accumulator(self, options: Mapping[str, Any]) -> Accumulator:
        return Accumulator(self.spec(options))


class Histogram(Map[Accumulator]):
    """Sums per bin of each object: `maps.heat.add(access.object, access.offset, amount=1)`.

    `by` is "object", with "launch" or "kernel" or both; `bin` is in bytes. Accesses to no object
    count in bin 0 of object -1. With `window=N` there is a column `window`: launches, in order,
    that together added N; 0: none.
    """

    map_type = "histogram"

    def __init__(self, *, by: By = "object", bin: Number, window: Number | None = None) -> None:
        super().__init__()
        parts = self._checked_by(by, [*_IMPLICIT, "object"])
        if "object" not in parts:
            raise self._wrong(f"by {by!r}", 'give "object", alone or with "launch" or "kernel"')
        self.by = tuple(str(part) for part in parts)
        self.bin = self._number(bin, "bin")
        self.window = None if window is None else self._number(window, "window")
        keys = (Parameter("object", field=True), Parameter("offset", field=True))
        self.method = Method("add", (*keys, *_amounts(("count",))))

    def spec(self, options: Mapping[str, Any]) -> MapSpec:
        window = 0 if self.window is None else self._value(self.window, options, least=0)
        return MapSpec(
            self.name,
            self.map_type,
            self.by,
            self.method,
            ("object", "bin"),
            ("count",),
            per_launch=bool(window) or len(self.by) > 1,
            bin=self._value(self.bin, options),
            window=window,
        )

    def accumulator(self, options: Mapping[str, Any]) -> Accumulator:
        return Accumulator(self.spec(options))


class PerPC(Map[Accumulator]):
    """Sums per instruction: `maps.m.add(access.pc, reads=1, …)`, or with `bins=N` a histogram of
    small numbers at each: `maps.m.add(access.pc, bin, amount=1)`."""

    map_type = "per_pc"

    def __init__(self, *fields: str, bins: Number | None = None) -> None:
        super().__init__()
        if fields and bins is not None:
            raise self._wrong("bins with fields", "give one of them")
        self.by = ("pc",)
        self.fields = _fields(self, fields or ("count",))
        self.bins = None if bins is None else self._number(bins, "bins", most=_MAX_INDEX)
        self.keys = ("pc",) if bins is None else ("pc", "bin")
        self.method = Method("add", (*map(Parameter, self.keys), *_amounts(self.fields)))

    def spec(self, options: Mapping[str, Any]) -> MapSpec:
        bins = self.bins
        limits = {} if bins is None else {"bin": self._value(bins, options, most=_MAX_INDEX)}
        return MapSpec(
            self.name, self.map_type, self.by, self.method, self.keys, self.fields, limits=limits
        )

    def accumulator(self, options: Mapping[str, Any]) -> Accumulator:
        return Accumulator(self.spec(options))


class Bitmap(Map[BitmapAccumulator]):
    """Unique bytes: `maps.m.touch(access)`.

    `by` is (), "launch", "object" or ("launch", "object"). What is touched counts in whole
    granules, of which the last ends with the object. `rows()` has the fields `bytes` and
    `unknown`: touches of no live object, whose bytes are not known.
    """

    map_type = "bitmap"
    method = Method(
        "touch",
        tuple(map(Parameter, ("object", "offset", "bytes", "rows", "stride"))),
        takes_access=True,
    )

    def __init__(self, *, by: By = "launch", granularity: Number = "32B") -> None:
        super().__init__()
        self.by = tuple(str(part) for part in self._checked_by(by, ["launch", "object"]))
        self.granularity = self._number(granularity, "granularity")

    def spec(self, options: Mapping[str, Any]) -> MapSpec:
        return MapSpec(
            self.name,
            self.map_type,
            self.by,
            self.method,
            ("object", "word"),
            ("mask",),
            per_launch="launch" in self.by,
            granularity=self._value(self.granularity, options),
        )

    def accumulator(self, options: Mapping[str, Any]) -> BitmapAccumulator:
        return BitmapAccumulator(self.spec(options))


class TopK(Map[TopKAccumulator]):
    """The `k` keys with the largest sums: `maps.m.add(key, amount=1)`.

    Exact while there are no more than `capacity` distinct keys; later keys go to `other`.
    """

    map_type = "top_k"
    method = Method("add", (Parameter("key"), Parameter("amount", amount=True, default=1)))

    def __init__(self, k: Number, *, capacity: Number = 4096) -> None:
        super().__init__()
        self.k = self._number(k, "k")
        self.capacity = self._number(capacity, "capacity", most=_MAX_INDEX)

    def spec(self, options: Mapping[str, Any]) -> MapSpec:
        return MapSpec(
            self.name,
            self.map_type,
            self.by,
            self.method,
            ("key",),
            ("count",),
            capacity=self._value(self.capacity, options, most=_MAX_INDEX),
            k=self._value(self.k, options),
        )

    def accumulator(self, options: Mapping[str, Any]) -> TopKAccumulator:
        return TopKAccumulator(self.spec(options))


class Trace(Map[TraceAccumulator]):
    """Accesses themselves: `maps.m.write(access)` hands the record, with the lanes that wrote it,
    to the tool's `on_accesses`."""

    map_type = "trace"
    method = Method("write", takes_access=True)

    def spec(self, options: Mapping[str, Any]) -> MapSpec:
        return MapSpec(self.name, self.map_type, (), self.method, (), ())

    def accumulator(self, options: Mapping[str, Any]) -> TraceAccumulator:
        return TraceAccumulator(self.spec(options))


def _amounts(fields: tuple[str, ...]) -> tuple[Parameter, ...]:
    if len(fields) == 1:
        return (Parameter("amount", amount=True, default=1, alias=fields[0]),)
    return tuple(Parameter(name, amount=True, default=0) for name in fields)


def _fields(owner: Map[Any], fields: tuple[str, ...] | str) -> tuple[str, ...]:
    fields = (fields,) if isinstance(fields, str) else tuple(fields)
    reserved = {*_IMPLICIT, *_KEYS, "index", "bin", "window", "amount"}
    for name in fields:
        if not isinstance(name, str) or not name.isidentifier() or "__" in name:
            raise owner._wrong(f"field {name!r}", "give an identifier")
        if name in reserved:
            raise owner._wrong(f"field {name!r}", "give it another name: a column has this one")
    if not fields or len(set(fields)) < len(fields):
        raise owner._wrong(f"fields {fields!r}", "give distinct names")
    return fields


def _between(least: int, most: int | None) -> str:
    return f"give at least {least}" + (f" and at most {most}" if most is not None else "")


def _caller() -> tuple[str, int]:
    """File and line of the declaration at hand."""
    here = Path(__file__).parent
    frame = sys._getframe(1)
    while frame.f_back is not None and Path(frame.f_code.co_filename).parent == here:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
