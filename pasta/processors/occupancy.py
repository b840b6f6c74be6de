"""Theoretical occupancy of launches: how many blocks fit on a multiprocessor, and in how many waves
a grid runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pasta.lazy import np
from pasta.processors.architecture import NO_LIMIT, Architecture, units_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from pasta.processors.context import Context

#: What limits the blocks of a multiprocessor, by number; of equal limits the first is named.
LIMITERS = ("threads", "blocks", "registers", "shared memory")
_ABSENT = 0xFFFF_FFFF
#: Occupancy of a launch: blocks that fit on a multiprocessor at once (-1: unknown), the number of
#: the limit, and resident warps as a share of the multiprocessor's maximum.
_RESIDENT = [("blocks", "i8"), ("limiter", "i1"), ("share", "f8")]


class Limits(NamedTuple):
    """Limits of a device, and the units in which it allocates."""

    multiprocessors: int
    warp: int
    threads: int
    blocks: int
    registers: int
    shared: int  # bytes
    architecture: Architecture


class Devices:
    """Properties of the devices of a run, from its `device` events."""

    def __init__(self) -> None:
        self.properties: dict[int, NDArray[Any]] = {}  # records by number

    def add(self, devices: NDArray[Any]) -> None:
        """Follows `device` events; later properties of a device are ignored."""
        for record in devices:
            self.properties.setdefault(int(record["device"]), record.copy())

    def architecture(self, number: int, context: Context) -> Architecture | None:
        """Documentation of a device's architecture; None if it is not known."""
        record = self.properties.get(number)
        name = context.strings[int(record["architecture"])] if record is not None else ""
        known = (find(name) for find in context.conventions.architectures if name)
        return next((each for each in known if each is not None), None)

    def limits(self, number: int, context: Context) -> Limits | None:
        """Limits of a device; None unless all of them are known."""
        record, known = self.properties.get(number), self.architecture(number, context)
        if record is None or known is None:
            return None
        found: dict[str, int] = {}
        for name in Limits._fields[:-1]:
            given = _given(record, name)
            found[name] = getattr(known, name, 0) if given is None else given
        return Limits(**found, architecture=known) if all(found.values()) else None

    def common_limits(self, context: Context) -> Limits | None:
        """Limits of all devices of the run; None if they are not known or differ."""
        found = [self.limits(number, context) for number in self.properties]
        return found[0] if found and all(each == found[0] for each in found) else None

    def peak(self, number: int, type: str, context: Context) -> float | None:
        """Most operations per second of a device for a type of numbers ("float16"), by any of its
        units; None if unknown."""
        found = (self.unit_peak(number, unit, context) for unit in units_of(type))
        return max((each for each in found if each), default=None)

    def unit_peak(self, number: int, unit: str, context: Context) -> float | None:
        """Most operations per second of some units of a device (`Architecture.operations`), at its
        highest clock; None if unknown."""
        record, known = self.properties.get(number), self.architecture(number, context)
        if record is None or known is None:
            return None
        clock, count = _given(record, "clock"), _given(record, "multiprocessors")
        operations = known.operations.get(unit)
        return 1e3 * clock * count * operations if clock and count and operations else None

    def common_peak(self, type: str, context: Context) -> float | None:
        """`peak` of all devices of the run; None if it is unknown or differs."""
        return _common(self.peak(number, type, context) for number in self.properties)

    def common_unit_peak(self, unit: str, context: Context) -> float | None:
        """`unit_peak` of all devices of the run; None if it is unknown or differs."""
        return _common(self.unit_peak(number, unit, context) for number in self.properties)


def _common(values: Iterable[float | None]) -> float | None:
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _given(record: NDArray[Any], name: str) -> int | None:
    value = int(record[name])
    return None if value == _ABSENT else value


def resident(launches: NDArray[Any], limits: Limits | None) -> NDArray[Any]:
    """Occupancy of launches (records with the fields `block`, `registers`, `shared_static`,
    `shared_dynamic` of kernel_launch), of the dtype `_RESIDENT`; unknown where a field is absent or
    a block does not fit."""
    found = np.zeros(len(launches), _RESIDENT)
    found["blocks"], found["share"] = -1, np.nan
    known = np.ones(len(launches), bool)
    for name in ("registers", "shared_static", "shared_dynamic"):
        known &= launches[name] != np.iinfo(launches.dtype[name]).max
    if limits is None or not known.any():
        return found
    units = limits.architecture
    threads = launches["block"].prod(axis=1, dtype=np.int64)
    warps = _ceil(np.maximum(threads, 1), limits.warp)
    most_warps = limits.threads // limits.warp
    registers = _ceil(launches["registers"].astype(np.int64) * limits.warp, units.register_unit)
    registers *= units.register_unit  # of a warp
    # each partition has its part of the registers, so warps that fit are a multiple of them
    fitting = limits.registers // units.partitions // np.maximum(registers, 1) * units.partitions
    fitting //= warps
    # a block is admitted as if its warps were spread evenly over the partitions
    admitted = registers * _ceil(warps, units.partitions) * units.partitions
    fitting[admitted > units.block_registers] = 0
    shared = launches["shared_static"].astype(np.int64) + launches["shared_dynamic"]
    shared = _ceil(shared + units.shared_reserved, units.shared_unit) * units.shared_unit
    blocks = np.stack(
        [
            most_warps // warps,
            np.full(len(launches), limits.blocks),
            np.where(registers > 0, fitting, NO_LIMIT),
            np.where(shared > 0, limits.shared // np.maximum(shared, 1), NO_LIMIT),
        ]
    )
    known &= blocks.min(axis=0) > 0
    found["blocks"] = np.where(known, blocks.min(axis=0), -1)
    found["limiter"] = np.where(known, blocks.argmin(axis=0), 0)
    found["share"] = np.where(known, found["blocks"] * warps / most_warps, np.nan)
    return found


def places(launches: NDArray[Any], blocks: NDArray[Any], multiprocessors: int) -> NDArray[Any]:
    """Blocks of launches (int64) that the device holds at once, 0: unknown. `blocks`: those that
    fit on a multiprocessor, -1 where unknown.

    Clusters start as a whole, so there is a whole number of them.
    """
    clusters = launches["cluster"].astype(np.int64)
    clusters = np.where(clusters == np.iinfo(np.uint16).max, 1, clusters).prod(axis=1)
    clusters = np.maximum(clusters, 1)
    return np.where(blocks > 0, blocks * multiprocessors // clusters * clusters, 0)


def waves(
    launches: NDArray[Any], blocks: NDArray[Any], multiprocessors: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Waves in which the grids of launches run (float64, NaN: unknown), and which share of the
    last one is idle. `blocks` as for `places`.
    """
    grid = launches["grid"].prod(axis=1, dtype=np.int64)
    held = places(launches, blocks, multiprocessors)
    known = (held > 0) & (grid > 0)
    count = np.where(known, grid / np.maximum(held, 1), np.nan)
    return count, np.ceil(count) - count


def _ceil(values: NDArray[Any], by: int) -> NDArray[Any]:
    return -(-values // by)
