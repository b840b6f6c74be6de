"""Reference model of probes, without tables, compilation or records: Python executes a tool's
probes directly, lane by lane, on access objects built from the definitions."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from pasta.probes.declare import Declared, maps_of
from pasta.probes.kinds import KIND, ROWS
from pasta.probes.maps.bitmap import BitmapSpec
from pasta.probes.maps.histogram import HistogramSpec
from pasta.probes.maps.shadow import ShadowSpec
from pasta.probes.maps.top_k import TopKSpec
from pasta.probes.specs import MapSpec
from pasta.processors.batch import ABSENT_U64
from pasta.tool import Tool

LAYERS = ("tensor", "memory", "virtual")


@dataclass
class Thing:
    """An object; `layer` as the object table has it."""

    id: int
    layer: str
    address: int
    bytes: int

    @property
    def size(self) -> int:
        return 1 if self.bytes == ABSENT_U64 else self.bytes

    def holds(self, address: int) -> bool:
        return self.address <= address < self.address + self.size


@dataclass
class Made:
    """An access defined by a test."""

    kind: str
    launch: int
    mask: int
    addresses: list[int]
    bytes: int
    flags: int = 1
    pc: int = 0
    block: int = 0
    warp: int = 0
    sm: int = 0
    rows: int = 1
    stride: int = 0
    form: int | None = None
    time: int = 0
    values: list[int] | None = None

    @property
    def lanes(self) -> list[int]:
        return [lane for lane in range(32) if self.mask >> lane & 1]

    @property
    def is_transfer(self) -> bool:
        return self.rows != 1 or self.stride != 0 or self.form == ROWS

    def spans(self) -> list[tuple[int, int]]:
        """First byte and number of bytes of every touched range."""
        if self.is_transfer:
            return [(self.addresses[0] + row * self.stride, self.bytes) for row in range(self.rows)]
        return [(address, self.bytes) for address in self.addresses]


def sectors_of(made: Made) -> tuple[int, int]:
    touched = {byte for start, count in made.spans() for byte in range(start, start + count)}
    return len({byte // 32 for byte in touched}), -(-len(touched) // 32)


def ways_of(made: Made) -> tuple[int, int]:
    if not made.bytes:
        return 0, 0
    if made.is_transfer or made.bytes > 64:
        waves = -(-made.bytes * made.rows * len(made.lanes) // 128)
        return waves, waves
    size = 32 if made.bytes <= 4 else 16 if made.bytes <= 8 else 8
    groups: dict[int, dict[int, set[int]]] = {}
    for lane, address in zip(made.lanes, made.addresses, strict=True):
        for word in range(address // 4, (address + made.bytes - 1) // 4 + 1):
            groups.setdefault(lane // size, {}).setdefault(word % 32, set()).add(word)
    return sum(max(map(len, banks.values())) for banks in groups.values()), len(groups)


@dataclass
class Model:
    """Live objects, launches, and the maps of one tool."""

    tool: Tool
    things: list[Thing] = field(default_factory=list)
    objects: list[Thing] = field(default_factory=list)
    launches: list[tuple[str, list[Thing]]] = field(default_factory=list)
    maps: dict[str, MapModel] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, spec in maps_of(self.tool).items():
            self.maps[name] = MapModel(spec, self)
        self.probes = [
            each for each in vars(type(self.tool)).values() if isinstance(each, Declared)
        ]

    def alloc(self, layer: str, address: int, bytes: int) -> None:
        if bytes:
            new = Thing(len(self.objects), layer, address, bytes)
            self.objects.append(new)
            self.things = [
                each
                for each in self.things
                if each.layer != layer
                or each.address >= address + new.size
                or address >= each.address + each.size
            ]
            self.things.append(new)

    def free(self, layer: str, address: int) -> None:
        self.things = [
            each for each in self.things if (each.layer, each.address) != (layer, address)
        ]

    def launch(self, name: str) -> None:
        self.launches.append((name, list(self.things)))

    def object_at(self, launch: int, address: int) -> Thing | None:
        for layer in LAYERS:
            for each in self.launches[launch][1]:
                if each.layer == layer and each.holds(address):
                    return each
        return None

    def access(self, made: Made) -> None:
        for probe in self.probes:
            if made.kind in probe.kinds:
                self._run(probe, made)
        for each in self.maps.values():
            each.end_access(made)

    def _run(self, probe: Declared, made: Made) -> None:
        sectors, ideal_sectors = sectors_of(made)
        ways, ideal_ways = ways_of(made)
        shared: dict[str, Any] = {
            "pc": made.pc, "bytes": made.bytes * made.rows, "kind": KIND[made.kind].number,
            "is_read": made.flags & 1, "is_write": made.flags >> 1 & 1,
            "is_atomic": made.flags >> 2 & 1, "mask": made.mask, "lanes": len(made.lanes),
            "sectors": sectors, "ideal_sectors": ideal_sectors, "ways": ways,
            "ideal_ways": ideal_ways, "block": made.block, "warp": made.warp, "sm": made.sm,
            "time": made.time, "launch": made.launch, "epoch": made.launch,
            "rows": made.rows, "stride": made.stride, "has_value": int(made.values is not None),
        }  # fmt: skip
        if probe.per == "warp":
            self._call(probe, shared, made.launch, made.mask)
            return
        addresses = made.addresses or [0] * len(made.lanes)
        values = made.values or [0] * len(made.lanes)
        for lane, address, value in zip(made.lanes, addresses, values, strict=True):
            found = None
            if KIND[made.kind].space == "global":
                found = self.object_at(made.launch, address)
            own = {
                "address": address,
                "object": found.id if found else -1,
                "offset": address - found.address if found else address,
                "known": int(found is not None),
                "lane": lane,
                "leader": int(lane == made.lanes[0]),
                "value": value % (1 << 64),
                "value_high": value >> 64,
            }
            self._call(probe, {**shared, **own}, made.launch, 1 << lane)

    def _call(self, probe: Declared, fields: dict[str, Any], launch: int, lanes: int) -> None:
        access = SimpleNamespace(**fields)
        maps = SimpleNamespace(
            **{name: each.at(launch, access, lanes) for name, each in self.maps.items()}
        )
        if probe.function.__code__.co_argcount == 3:
            probe.function(access, maps, SimpleNamespace(**self.tool._options))
        else:
            probe.function(access, maps)


@dataclass
class MapModel:
    """Expected content of one map: `rows` in the order of its columns."""

    spec: MapSpec
    model: Model
    sums: Tally[tuple[tuple[Any, ...], str]] = field(default_factory=Tally)
    bytes: dict[tuple[Any, ...], set[tuple[int, int]]] = field(default_factory=dict)
    written: list[tuple[Any, int]] = field(default_factory=list)
    values: dict[int, int] = field(default_factory=dict)
    lanes: int = 0

    def at(self, launch: int, access: Any, lanes: int) -> Any:
        def add(*arguments: int, **named: int) -> None:
            values = dict(zip(self.spec.method.keys, arguments, strict=False))
            rest = arguments[len(values) :]
            self._add(launch, values, rest, named)

        def touch(access: Any) -> None:
            self._touch(launch, access)

        def write(access: Any) -> None:
            self.lanes |= lanes

        def exchange(address: int, value: int) -> int:
            assert isinstance(self.spec, ShadowSpec)
            granule = address % (1 << 64) // self.spec.granularity
            previous = self.values.get(granule, 0)
            self.values[granule] = value
            return previous

        return SimpleNamespace(add=add, touch=touch, write=write, exchange=exchange)

    def _by(self, launch: int, values: dict[str, int]) -> tuple[Any, ...]:
        implicit = {"launch": launch, "kernel": self.model.launches[launch][0]}
        return tuple(implicit[each] if each in implicit else values[each] for each in self.spec.by)

    def _add(
        self, launch: int, values: dict[str, int], rest: tuple[int, ...], named: dict[str, int]
    ) -> None:
        spec = self.spec
        for key, limit in spec.limits.items():
            values[key] = min(max(values[key], 0), limit - 1)
        key = self._by(launch, values)
        if isinstance(spec, HistogramSpec):
            bin, found = 0, values["object"]
            if found >= 0:
                last = (self.model.objects[found].size - 1) // spec.bin
                bin = min(max(values["offset"] // spec.bin, 0), last)
            key = (launch if spec.window else None, *key, bin)
        elif "bin" in values:
            key = (*key, values["bin"])
        elif isinstance(spec, TopKSpec):
            key = (values["key"],)
        amounts = dict(zip(spec.fields, rest, strict=False)) | named
        if len(spec.fields) == 1:
            amounts = {spec.fields[0]: amounts.get("amount", amounts.get(spec.fields[0], 1))}
        for name in spec.fields:
            self.sums[key, name] += amounts.get(name, 0)

    def _touch(self, launch: int, access: Any) -> None:
        key = self._by(launch, {"object": access.object})
        if access.bytes <= 0:
            return
        if access.object < 0:
            self.sums[key, "unknown"] += 1
            return
        assert isinstance(self.spec, BitmapSpec)
        size, grain = self.model.objects[access.object].size, self.spec.granularity
        touched = self.bytes.setdefault(key, set())
        for row in range(access.rows):
            start = access.offset + row * access.stride
            for byte in range(start, start + access.bytes // access.rows):
                if 0 <= byte < size:
                    first = byte // grain * grain
                    every = range(first, min(first + grain, size))
                    touched.update((access.object, each) for each in every)

    def end_access(self, made: Made) -> None:
        if self.lanes:
            self.written.append((made, self.lanes))
            self.lanes = 0

    def rows(self, name_id: Callable[[str], int]) -> dict[tuple[int, ...], tuple[int, ...]]:
        """Fields by keys, as `rows()` of an accumulator has them."""
        spec = self.spec
        found: dict[tuple[Any, ...], dict[str, int]] = {}
        if isinstance(spec, BitmapSpec):
            for key, touched in self.bytes.items():
                if touched:
                    found.setdefault(key, {"bytes": 0, "unknown": 0})["bytes"] = len(touched)
            for (key, _), count in self.sums.items():
                found.setdefault(key, {"bytes": 0, "unknown": 0})["unknown"] += count
        else:
            for (key, name), amount in self._windowed():
                found.setdefault(key, dict.fromkeys(spec.fields, 0))[name] += amount
        return {
            tuple(name_id(each) if isinstance(each, str) else each for each in key): tuple(
                fields.values()
            )
            for key, fields in found.items()
        }

    def _windowed(self) -> Iterable[tuple[tuple[tuple[Any, ...], str], int]]:
        if not isinstance(self.spec, HistogramSpec):
            return list(self.sums.items())
        if not self.spec.window:
            return [((key[1:], name), amount) for (key, name), amount in self.sums.items()]
        of_launch: Tally[int] = Tally()
        for (key, _), amount in self.sums.items():
            of_launch[key[0]] += amount
        windows, before = {}, 0
        for launch in sorted(of_launch):
            windows[launch] = before // self.spec.window
            before += of_launch[launch]
        result = []
        for (key, name), amount in self.sums.items():
            result.append((((windows[key[0]], *key[1:]), name), amount))
        return result
