"""Calls of communication libraries, joined with the device times of their kernels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from pasta import abi
from pasta.lazy import np
from pasta.processors.batch import ABSENT_U32, ABSENT_U64
from pasta.processors.rows import group_starts, places_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.context import Context

#: Operation of a unit that is not a single operation of the library.
EXCHANGE, MIXED = 254, 255
#: An absent number.
NONE = -1


@cache
def operations() -> dict[str, int]:
    """Numbers of operations by name, `exchange` (sends and receives at once) and `mixed` too."""
    names = {name: number for number, name in abi.enums()["collective"].items()}
    return {**names, "exchange": EXCHANGE, "mixed": MIXED}


def link_bandwidths(batch: Batch) -> dict[int, int]:
    """Bandwidth of devices' links in one direction (10^6 bytes/s), by ordinal, from samples."""
    samples = batch["device_sample"]
    samples = samples[(samples["link_bandwidth"] != ABSENT_U32) & (samples["device"] >= 0)]
    return dict(zip(samples["device"].tolist(), samples["link_bandwidth"].tolist(), strict=True))


class Communicator(NamedTuple):
    """A communicator of this process, or several with the same id, by their ranks in it."""

    id: int
    rank: int  # NONE: unknown, as all numbers
    size: int
    device: int
    parent: int
    library: str


@cache
def _call() -> Any:
    """A call; `launch` and `launches` until the call returned, `count` elements of `element`
    bytes; absent numbers are NONE."""
    numbers = ("communicator", "count", "order", "group", "begin", "launch", "launches", "peer")
    return np.dtype(
        [(name, "i8") for name in numbers]
        + [("stream", "u8"), ("time", "i8"), ("thread", "u4"), ("element", "u4"), ("type", "u4")]
        + [("node", "i4"), ("device", "i2"), ("operation", "u1")]
    )


@dataclass(frozen=True)
class Units:
    """What runs on the device as one: a call, or the calls of a group on one communicator and
    stream. Arrays by unit; times are NONE where no kernel was seen."""

    operation: NDArray[Any]
    communicator: NDArray[Any]
    calls: NDArray[Any]
    bytes: NDArray[Any]
    bus: NDArray[Any]  # bytes that a link carries, NaN: unknown
    begin: NDArray[Any]  # the host's first call
    start: NDArray[Any]
    end: NDArray[Any]
    time: NDArray[Any]
    alone: NDArray[Any]  # time in which nothing else ran on the device
    node: NDArray[Any]

    @property
    def timed(self) -> NDArray[Any]:
        """Which (bool) have device times."""
        return np.asarray(self.time >= 0)


def message_bytes(
    operation: NDArray[Any], payload: NDArray[Any], size: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Bytes of the whole operation (int64), and the minimum bytes that each link carries (float64).

    As NCCL's tests define them (doc/PERFORMANCE.md of nccl-tests): the size of an all_gather,
    reduce_scatter, all_to_all, gather or scatter is that of all ranks' parts together. `payload`:
    bytes by the call's count, `size`: ranks (NONE: unknown).
    """
    of = operations()
    ranks = np.maximum(size, 1)
    parts = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
    divided = np.isin(operation, [of[name] for name in parts])
    total = np.where(divided, payload * ranks, payload)
    factor = np.where(divided, (ranks - 1) / ranks, 1.0)
    factor = np.where(operation == of["all_reduce"], 2 * (ranks - 1) / ranks, factor)
    factor = np.where((size < 1) & (divided | (operation == of["all_reduce"])), np.nan, factor)
    return total, total * factor


class CommunicationCalls:
    """Communicators and calls of the run. Kernels are joined by the ordinals of their launches."""

    def __init__(self) -> None:
        self.communicators: dict[int, Communicator] = {}
        self.failed = 0
        self._calls: list[NDArray[Any]] = []

    def add(self, batch: Batch, context: Context) -> None:
        """Adds the calls of a batch."""
        made = batch["communicator"]
        for record in made:
            absent = [int(record[name]) for name in ("rank", "size")]
            rank, size = (NONE if each == ABSENT_U32 else each for each in absent)
            parent = int(record["parent"])
            self.communicators[int(record["communicator"])] = Communicator(
                int(record["id"]), rank, size, int(record["device"]),
                NONE if parent == ABSENT_U64 else parent, context.strings[int(record["library"])],
            )  # fmt: skip
        records = batch["collective"]
        failed = records["result"] != 0
        self.failed += int(failed.sum())
        records = records[~failed]
        if not len(records):
            return
        rows = np.zeros(len(records), _call())
        for name in ("communicator", "count", "order", "group", "begin", "launch"):
            rows[name] = records[name].astype(np.int64)  # absent: -1
        for name in ("launches", "stream", "time", "thread", "element", "type", "device"):
            rows[name] = records[name]
        rows["operation"] = records["operation"]
        peers = records["peer"].astype(np.int64)
        rows["peer"] = np.where(peers == ABSENT_U32, NONE, peers)
        if context.has("operators"):
            rows["node"] = context.operators.at(records)
        self._calls.append(rows)

    def joined(self, kernels: NDArray[Any], alone: NDArray[Any]) -> Joined:
        """The calls with their kernels: `kernels` have the fields of `device_use.FOLLOWED`, `alone`
        those of `Activity.alone`."""
        return Joined(self, kernels, alone)

    def rows(self) -> NDArray[Any]:
        """All calls that succeeded, ends of groups included, in ring order."""
        return np.concatenate([np.zeros(0, _call()), *self._calls])


class Joined:
    """Calls, their units, and kernels that no call is known of."""

    def __init__(self, of: CommunicationCalls, kernels: NDArray[Any], alone: NDArray[Any]) -> None:
        rows = of.rows()
        group = rows["operation"] == operations()["group"]
        self.calls, groups = rows[~group], rows[group]
        self.kernels = kernels[np.argsort(kernels["key"], kind="stable")]
        self.alone = np.zeros(len(self.kernels), np.int64)
        at, known = places_of(self.kernels["key"], alone["key"])
        np.add.at(self.alone, at, alone["time"][known])
        self._of = of.communicators
        self._follow_groups(groups)
        self.size = self._property("size")
        self.member = self._property("rank")
        payload = self.calls["count"] * self.calls["element"].astype(np.int64)
        payload[self.calls["element"] == ABSENT_U32] = 0
        self.bytes, self.bus = message_bytes(self.calls["operation"], payload, self.size)
        self._join()

    def _property(self, name: str) -> NDArray[Any]:
        """A number of each call's communicator, or NONE."""
        known = np.unique(self.calls["communicator"])
        values = [
            getattr(self._of[number], name) if number in self._of else NONE
            for number in known.tolist()
        ]
        if not len(known):
            return np.zeros(0, np.int64)
        at = np.searchsorted(known, self.calls["communicator"])
        return np.asarray(np.asarray(values, np.int64)[at])

    def _follow_groups(self, groups: NDArray[Any]) -> None:
        """Calls in a group launch when it ends."""
        groups = groups[np.argsort(groups["group"], kind="stable")]
        self.first, self.count = self.calls["launch"].copy(), self.calls["launches"].copy()
        if not len(groups):
            return
        at = np.minimum(np.searchsorted(groups["group"], self.calls["group"]), len(groups) - 1)
        mine = groups["group"][at] == self.calls["group"]
        self.first[mine], self.count[mine] = (
            groups["launch"][at[mine]],
            groups["launches"][at[mine]],
        )

    def _pairs(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Calls and kernels that belong together: kernels launched by the thread in the call, and
        of several those in the call's stream."""
        keys = self.kernels["key"].astype(np.int64)
        launched = (self.count > 0) & (self.first >= 0)
        first = np.where(launched, self.first, 0)
        low = np.searchsorted(keys, first)
        count = np.searchsorted(keys, first + np.where(launched, self.count, 0)) - low
        call = np.repeat(np.arange(len(self.calls)), count)
        before = np.cumsum(count) - count
        kernel = np.arange(len(call)) - before[call] + low[call]
        own = self.kernels["thread"][kernel] == self.calls["thread"][call]
        call, kernel = call[own], kernel[own]
        same = self.kernels["stream"][kernel] == self.calls["stream"][call]
        device = self.calls["device"][call]
        same &= (device < 0) | (device == self.kernels["device"][kernel])
        exact = np.bincount(call, same, len(self.calls)) > 0
        kept = same | ~exact[call]
        return call[kept], kernel[kept]

    def _units_of_calls(self) -> NDArray[Any]:
        """Number of each call's unit, in the order of their first calls."""
        grouped = np.flatnonzero(self.calls["group"] != NONE)
        first = np.arange(len(self.calls))
        keys = ("group", "communicator", "stream")
        order = grouped[np.lexsort([self.calls[name][grouped] for name in reversed(keys)])]
        starts = group_starts(self.calls[order], keys)
        # lexsort is stable: the first call
        first[order] = np.repeat(order[starts], np.diff(np.append(starts, len(order))))
        return np.asarray(np.unique(first, return_inverse=True)[1])

    def _join(self) -> None:
        self.unit = unit = self._units_of_calls()
        length = int(unit.max(initial=-1)) + 1
        call, kernel = self._pairs()
        self.unclaimed = np.ones(len(self.kernels), bool)
        self.unclaimed[kernel] = False
        pairs = np.unique(unit[call] * max(1, len(self.kernels)) + kernel)
        of, kernel = np.divmod(pairs, max(1, len(self.kernels)))
        durations = self.kernels["end"] - self.kernels["start"]
        never = np.iinfo(np.int64).max
        start, end = np.full(length, never), np.full(length, NONE)
        np.minimum.at(start, of, self.kernels["start"][kernel])
        np.maximum.at(end, of, self.kernels["end"][kernel])
        timed = np.bincount(of, minlength=length) > 0
        # floats are exact: sums are below 2**53
        time = np.bincount(of, durations[kernel], length).astype(np.int64)
        alone = np.bincount(of, self.alone[kernel], length).astype(np.int64)
        first = np.unique(unit, return_index=True)[1]
        operation, bytes, bus = self._messages(length)
        self.units = Units(
            operation=operation,
            communicator=self.calls["communicator"][first],
            calls=np.bincount(unit, minlength=length),
            bytes=bytes,
            bus=bus,
            begin=self.calls["begin"][first],
            start=np.where(timed, start, NONE),
            end=end,
            time=np.where(timed, time, NONE),
            alone=np.where(timed, alone, NONE),
            node=self.calls["node"][first],
        )

    def _messages(self, length: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Operation, bytes and bytes on the link of each unit. Sends and receives in one unit run
        at once: the larger of both counts."""
        of, unit = operations(), self.unit
        kind = self.calls["operation"]
        send, recv = kind == of["send"], kind == of["recv"]
        sums = {
            name: np.bincount(unit[mine], values[mine].astype(np.float64), length)
            for name, values, mine in (
                ("sent", self.bytes, send),
                ("received", self.bytes, recv),
                ("bytes", self.bytes, ~send & ~recv),
                ("bus", self.bus, ~send & ~recv),
            )
        }
        moved = np.maximum(sums["sent"], sums["received"])
        least, most = np.full(length, 255, np.uint8), np.zeros(length, np.uint8)
        np.minimum.at(least, unit, kind)
        np.maximum.at(most, unit, kind)
        between = np.bincount(unit, send | recv, length) == np.bincount(unit, minlength=length)
        operation = np.where(least == most, least, np.where(between, EXCHANGE, MIXED))
        total = (sums["bytes"] + moved).astype(np.int64)
        return operation.astype(np.uint8), total, sums["bus"] + moved
