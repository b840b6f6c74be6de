"""Copies between and within the host and devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pasta import abi
from pasta.lazy import np
from pasta.processors.codes import grown
from pasta.processors.correlate import LaunchWindow
from pasta.processors.groups import Groups
from pasta.processors.operator_names import user_lines
from pasta.table import Figure, Table, absent_where, counted, formatted, shares
from pasta.tool import Finding, Result, Tool, option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.table import Unit

_ABSENT = (1 << 64) - 1
_SIZE_BINS = 65  # a histogram of 64-bit sizes by powers of two: 0, 1, 2-3, 4-7, …
#: Which sides of a direction are on the host: source, destination.
_ON_HOST = {
    "host_to_host": (True, True),
    "host_to_device": (True, False),
    "device_to_host": (False, True),
}
_HOST_DEVICE_DIRECTIONS = ("host_to_device", "device_to_host")


class _DeviceTimes:
    """Device times of copies by group: completions carry the correlation of their copy only."""

    #: Labels and units of the columns.
    LABELS: Final = {"device_time": "device time", "bandwidth": "per second"}
    UNITS: Final[dict[str, Unit]] = {
        "device_time": "ns", "timed_bytes": "bytes", "bandwidth": "bytes",
    }  # fmt: skip

    def __init__(self) -> None:
        self._group_of = LaunchWindow()  # number of the group + 1, by correlation
        self._sums = Groups(1 << 16, "time", "bytes", "time_of_bytes")

    def submitted(self, copies: NDArray[Any], groups: NDArray[Any]) -> None:
        """Follows copies of the given groups (int64, -1: of none)."""
        followed = (groups >= 0) & (copies["correlation"] != 0)
        numbers = (groups[followed] + 1).astype(np.int32)
        self._group_of.put(copies["correlation"][followed], numbers)

    def completed(self, completions: NDArray[Any]) -> None:
        """Adds the times of copies that were submitted; sets are not."""
        groups = self._group_of.get(completions["correlation"])
        start, end = completions["start"], completions["end"]
        good = (groups > 0) & (end >= start) & (end != _ABSENT)
        times = np.where(good, end - start, 0).astype(np.int64)[good]
        bytes = completions["bytes"][good]
        sized = bytes != _ABSENT
        self._sums.add(
            groups[good] - 1,
            time=times,
            bytes=np.where(sized, bytes, 0).astype(np.int64),
            time_of_bytes=np.where(sized, times, 0),
        )

    def columns(self, groups: NDArray[Any]) -> dict[str, Any]:
        """Columns of a table whose rows are these groups: device time, bytes copied in it, and
        bytes per second; absent without completions."""
        at = self._sums.column(0).astype(np.int64)

        def of_groups(values: NDArray[Any]) -> NDArray[Any]:
            spread = np.zeros(max([*at.tolist(), *groups.tolist(), -1]) + 1, np.int64)
            spread[at] = values
            return np.asarray(spread[groups])

        untimed = of_groups(self._sums.count) == 0
        bytes, time = of_groups(self._sums.sum("bytes")), of_groups(self._sums.sum("time_of_bytes"))
        return {
            "device_time": absent_where(of_groups(self._sums.sum("time")), untimed),
            "timed_bytes": absent_where(bytes, untimed),
            "bandwidth": absent_where(bytes / np.maximum(time, 1) * 1e9, time == 0),
        }

    def order(self, bytes: NDArray[Any]) -> NDArray[Any]:
        """Groups by device time, then by their bytes, the largest first."""
        times = self.columns(np.arange(len(bytes)))["device_time"].filled(0)
        return np.lexsort((-bytes, -times))

    @staticmethod
    def hidden(columns: dict[str, Any]) -> frozenset[str]:
        """Columns that the text report leaves out: without any value, and `timed_bytes`."""
        empty = {
            name
            for name in _DeviceTimes.UNITS
            if np.ma.getmaskarray(columns[name]).all()  # type: ignore[no-untyped-call]
        }
        return frozenset(empty | {"timed_bytes"})


class Copies(Tool):
    """Copies by direction, kind of memory and size, and repeated transfers."""

    title = "Copies"
    topic = "memory"

    needs = ("objects",)
    uses = ("copy_addresses", "copy_devices")

    top = option(10, help="rows of each table in the text report", minimum=1)
    transfers = option(
        1 << 18, help="maximum number of distinct copies (source, destination, bytes)", minimum=1
    )
    repeated = option(
        "16MiB", kind="bytes", help="finding: minimum bytes copied again in a direction"
    )
    pageable = option(
        "16MiB",
        kind="bytes",
        help="finding: minimum bytes copied from or to pageable host memory",
    )
    small = option("16KiB", kind="bytes", help="copies smaller than this are small")
    small_copies = option(
        1000, help="finding: minimum number of small copies in a direction", minimum=1
    )
    copy_cost = option(
        "10us", kind="duration", help="assumed fixed time of a copy, to estimate gains"
    )
    bandwidth = option(
        "10GB", kind="bytes", help="assumed bytes copied per second, to estimate gains"
    )

    def start(self) -> None:
        """Initialize the groups of copies, each limited in size."""
        self.memories = Groups(1 << 16, "bytes")
        self.pairs = Groups(1 << 16, "bytes")
        self.same = Groups(self.transfers, "bytes")
        self.sizes = np.zeros((0, _SIZE_BINS), np.int64)
        #: Copies by direction, memory of both sides, small or not, and operator.
        self.callers = Groups(1 << 16, "bytes")
        #: Times of the first and the last copy of each caller.
        self.spans = np.zeros((0, 2), np.int64)
        #: Device times by group of `memories` and of `pairs`.
        self.times, self.pair_times = _DeviceTimes(), _DeviceTimes()
        self.end = 0  # time of the last event
        #: Tensors copied to a device: object, bytes, operator.
        self.sent = Groups(self.transfers, "bytes")
        #: Host memory copied from and to a device: direction, address, bytes, operator.
        self.host = Groups(self.transfers, "bytes")
        self.first_time, self.last_time = np.iinfo(np.int64).max, 0
        self.unsized = 0

    def on_copies(self, copies: NDArray[Any]) -> None:
        """Group copies by direction and memory, devices, transferred object and operator."""
        sized = copies["bytes"] != np.iinfo(np.uint64).max
        self.unsized += int(len(sized) - sized.sum())
        copies = copies[sized]
        if not len(copies):
            return
        self.first_time = min(self.first_time, int(copies["time"].min()))
        self.last_time = max(self.last_time, int(copies["time"].max()))
        bytes = copies["bytes"].astype(np.int64)
        source, destination = (self._memory(copies, side) for side in ("source", "destination"))
        asynchronous = (copies["flags"] & abi.FLAG_ASYNC) != 0
        codes = self.memories.add(
            copies["direction"], source, destination, asynchronous, bytes=bytes
        )
        self.sizes = grown(self.sizes, len(self.memories.codes))
        np.add.at(self.sizes, (codes, _bit_length(copies["bytes"])), 1)
        devices = (copies[f"{side}_device"] + 1 for side in ("source", "destination"))
        self.times.submitted(copies, codes)
        self.pair_times.submitted(copies, self.pairs.add(*devices, bytes=bytes))
        sides = (copies["source"], copies["destination"])
        located = (sides[0] != _ABSENT) & (sides[1] != _ABSENT)
        pinned = next(number for number, name in abi.enums()["memory"].items() if name == "pinned")
        staged = (source == pinned) | (destination == pinned)
        self.same.add(
            copies["direction"][located], *(side[located] for side in sides),
            copies["bytes"][located], staged[located], bytes=bytes[located],
        )  # fmt: skip
        self._follow_callers(copies, bytes, source, destination)

    def on_copy_completions(self, completions: NDArray[Any]) -> None:
        """Add device times to the groups of their copies."""
        self.times.completed(completions)
        self.pair_times.completed(completions)

    def _follow_callers(
        self,
        copies: NDArray[Any],
        bytes: NDArray[Any],
        source: NDArray[Any],
        destination: NDArray[Any],
    ) -> None:
        """Attributes copies to operators, for findings."""
        followed = self.context.has("operators")  # only if another tool needs them
        nodes = self.context.operators.at(copies) if followed else np.zeros(len(copies), np.int32)
        direction = copies["direction"]
        codes = self.callers.add(
            direction, source, destination, bytes < self.small, nodes, bytes=bytes
        )
        known = codes >= 0
        times = copies["time"].astype(np.int64)
        before = len(self.spans)
        self.spans = grown(self.spans, len(self.callers))
        self.spans[before:, 0] = np.iinfo(np.int64).max
        np.minimum.at(self.spans[:, 0], codes[known], times[known])
        np.maximum.at(self.spans[:, 1], codes[known], times[known])
        to_device = direction == _number("host_to_device")
        to_host = direction == _number("device_to_host")
        host = np.where(to_device, copies["source"], copies["destination"])
        across = (to_device | to_host) & (bytes >= self.small)
        self.host.add(
            direction[across], host[across], bytes[across], nodes[across], bytes=bytes[across]
        )
        up = copies[to_device]
        ids = self.context.objects.lookup(up["source"], up["index"], "tensor")
        known = ids >= 0
        rows = ids[known], bytes[to_device][known], nodes[to_device][known]
        self.sent.add(*rows, bytes=rows[1])

    def on_batch(self, batch: Batch) -> None:
        """Update the time of the last event."""
        self.end = max([self.end, *(int(each["time"][-1]) for _, each in batch if len(each))])

    def _is_recurring(self, caller: int) -> bool:
        """Whether a caller's copies span at least half of the time after its first one.

        Start-up copies such as those of `model.cuda()` do not.
        """
        first, last = self.spans[caller].tolist()
        return 2 * (last - first) >= self.end - first

    def _memory(self, copies: NDArray[Any], side: str) -> NDArray[Any]:
        """Kind of memory on a side of each copy; 0 for unknown addresses."""
        ids = self.context.objects.lookup(copies[side], copies["index"], "memory")
        return self.context.objects.memory_of(ids)

    def result(self) -> Result:
        """Tables by direction, size, transfer and device pair, a figure of sizes, and findings."""
        directions = self._directions()
        return Result(
            summary=self._summary(directions),
            findings=[
                *self._round_trips(),
                *self._repeated(),
                *self._from_pageable(),
                *self._small(),
            ],
            tables={
                "directions": directions,
                "sizes": self._sizes(),
                "repeats": self._repeats(),
                "devices": self._devices(),
            },
            figures={"sizes": self._figure()},
        )

    def _gain(self, time: float) -> float | None:
        """A time (ns) as a share of the time from the first copy to the last."""
        span = self.last_time - self.first_time
        return min(1.0, time / span) if span > 0 else None

    def _time_of(self, bytes: int) -> float:
        """Time of copies between host and device, ns: at the measured rate if it is known."""
        of = self.times.columns(np.arange(len(self.memories)))
        directions = [_direction(row[0]) for row in self.memories.rows]
        measured = np.isin(directions, _HOST_DEVICE_DIRECTIONS)
        measured &= of["bandwidth"].filled(0) > 0
        timed = of["timed_bytes"].data[measured]
        seconds = (timed / of["bandwidth"].data[measured]).sum()
        rate = timed.sum() / seconds if seconds else self.bandwidth
        return float(bytes / rate * 1e9)

    def _line(self, bytes_by_node: dict[int, int]) -> str:
        """The program's line that copies most of these bytes; "" without operators."""
        lines = user_lines(self.context)
        sums: dict[str, int] = {}
        for node, bytes in bytes_by_node.items():
            if node and node < len(lines) and lines[node] is not None:
                sums[str(lines[node])] = sums.get(str(lines[node]), 0) + bytes
        return max(sums, key=sums.__getitem__) if sums else ""

    def _round_trips(self) -> Iterator[Finding]:
        """Data copied from a device to host memory and from there back to a device."""
        up, down = _number("host_to_device"), _number("device_to_host")
        rows, count, _ = _columns(self.host)
        found: dict[tuple[int, int], dict[int, dict[int, int]]] = {}
        for (direction, address, size, node), copies in zip(rows, count.tolist(), strict=True):
            nodes = found.setdefault((address, size), {up: {}, down: {}})[direction]
            nodes[node] = nodes.get(node, 0) + copies
        trips = bytes = 0
        by_node: dict[int, int] = {}
        for (_, size), both in found.items():
            back = min(sum(both[up].values()), sum(both[down].values()))
            trips += back
            bytes += back * size
            for node, copies in both[down].items() if back else ():
                by_node[node] = by_node.get(node, 0) + copies * size
        if trips < 10 or 2 * bytes < self.repeated:
            return
        line = self._line(by_node)
        yield Finding(
            what="data goes from the device to the host and back",
            where=line or f"{trips:,} times",
            evidence=f"{trips:,} round trips: data was copied from a device to host memory, "
            "and the same number of bytes back to a device; "
            f"{formatted(2 * bytes, 'bytes')} of {formatted(self._bytes, 'bytes')} "
            "copied",
            remedy=f"{line or 'there'}: compute this on the device, without .cpu() and .to()",
            gain=self._gain(2 * self._time_of(bytes) + 2 * trips * self.copy_cost),
            of="the time from first to last copy",
        )

    def _repeated(self) -> Iterator[Finding]:
        """Repeated copies: of tensors if known, otherwise between the same addresses."""
        rows, count, _ = _columns(self.sent)
        again: dict[tuple[int, int], list[int]] = {}
        by_node: dict[int, int] = {}
        for (id, size, node), copies in zip(rows, count.tolist(), strict=True):
            again.setdefault((id, size), [0])[0] += copies
            by_node[node] = by_node.get(node, 0) + copies * size
        bytes = sum((copies - 1) * size for (_, size), (copies,) in again.items())
        if bytes and bytes >= self.repeated:
            tensors = sum(copies > 1 for (copies,) in again.values())
            line = self._line(by_node)
            times = sum(copies for (copies,) in again.values() if copies > 1)
            yield Finding(
                what="the same tensors are sent to the device repeatedly",
                where=line or f"{tensors:,} tensors in host memory",
                evidence=f"{tensors:,} tensors in host memory were sent {times:,} times; "
                f"{formatted(bytes, 'bytes')} of {formatted(self._bytes, 'bytes')} "
                "were copied after the first time",
                remedy=f"{line or 'there'}: send them once, before the loop, and keep them on the"
                " device, unless their values change (not checked)",
                gain=self._gain(2 * self._time_of(bytes)),  # staged, and sent
                of="the time from first to last copy",
            )
        else:
            yield from self._same_addresses()

    def _same_addresses(self) -> Iterator[Finding]:
        """Copies between the same addresses; not of pinned memory."""
        rows, count, total = _columns(self.same)
        # a pinned buffer is usually refilled for each copy
        staged = np.asarray([row[4] for row in rows], np.bool_)
        again = np.where(staged, 0, total - total // np.maximum(count, 1))
        directions = np.asarray([row[0] for row in rows], np.uint64)
        for number in np.unique(directions).tolist():
            mine = np.where(directions == number, again, 0)
            bytes, most = int(mine.sum()), int(mine.argmax())
            if not bytes or bytes < self.repeated:
                continue
            _, source, destination, size, _ = rows[most]
            yield Finding(
                what="the same transfer is repeated",
                where=f"{_direction(number)}: {formatted(size, 'bytes')} from {source:#x} to"
                f" {destination:#x}, {int(count[most]):,} times",
                evidence=f"{formatted(bytes, 'bytes')} of {formatted(self._bytes, 'bytes')} "
                "were copied again between the same addresses",
                remedy="copy it once, before the loop, unless the bytes at this address "
                "change (not checked)",
                gain=self._gain(self._time_of(bytes)),
                of="the time from first to last copy",
                confidence="low",
            )

    def _from_pageable(self) -> Iterator[Finding]:
        """Copies that the driver stages through its own pinned memory."""
        found: dict[str, dict[int, int]] = {}
        copies = small = 0
        rows, count, total = _columns(self.callers)
        for caller, (row, number, bytes) in enumerate(
            zip(rows, count.tolist(), total.tolist(), strict=True)
        ):
            direction, source, destination, _ = _described((*row[:3], 0))
            pageable = direction in _HOST_DEVICE_DIRECTIONS and "pageable" in (source, destination)
            if pageable and self._is_recurring(caller):
                nodes = found.setdefault(direction, {})
                nodes[row[4]] = nodes.get(row[4], 0) + bytes
                copies, small = copies + number, small + number * row[3]
        bytes = sum(sum(nodes.values()) for nodes in found.values())
        if not bytes or bytes < self.pageable:
            return
        by_node: dict[int, int] = {}
        for nodes in found.values():
            for node, part in nodes.items():
                by_node[node] = by_node.get(node, 0) + part
        line = self._line(by_node)
        directions = ", ".join(sorted(found))
        yield Finding(
            what="copies between pageable host memory and devices",
            where=f"{directions} at {line}" if line else directions,
            evidence=f"{counted(copies, 'copy')}, {formatted(bytes, 'bytes')} in total, are staged:"
            " the driver copies each byte once more on the host, and the host waits",
            remedy=f"{line}: pin the host tensor (DataLoader(…, pin_memory=True), or"
            " .pin_memory() once) and copy with non_blocking=True"
            if line
            else "allocate the host buffer with cudaMallocHost (hipHostMalloc) instead of malloc",
            gain=self._gain(self._time_of(bytes)),
            of="the time from first to last copy",
        )

    def _small(self) -> Iterator[Finding]:
        found: dict[str, list[int]] = {}
        callers: dict[str, dict[int, int]] = {}
        rows, count, total = _columns(self.callers)
        for row, number, bytes in zip(rows, count.tolist(), total.tolist(), strict=True):
            if not row[3]:
                continue
            direction = _direction(row[0])
            sums = found.setdefault(direction, [0, 0])
            sums[0], sums[1] = sums[0] + number, sums[1] + bytes
            nodes = callers.setdefault(direction, {})
            nodes[row[4]] = nodes.get(row[4], 0) + number
        every = int(self.memories.count.sum())
        for direction, (copies, bytes) in found.items():
            if copies < self.small_copies:
                continue
            line = self._line(callers[direction])
            below = f"{direction}, below {formatted(self.small, 'bytes')}"
            make = {
                "host_to_device": "create the tensor on the device (device=…), or pack the "
                "values into one host buffer and copy that",
                "device_to_host": "pack the values into one tensor on the device and copy that",
            }.get(direction, "pack them into one buffer and copy that")
            yield Finding(
                what="many small copies",
                where=f"{below}, at {line}" if line else below,
                evidence=f"{copies:,} of {counted(every, 'copy')} move"
                f" {formatted(bytes // copies, 'bytes')} each,"
                f" {formatted(bytes, 'bytes')} in total",
                remedy=f"{line}: {make}" if line else make,
                gain=self._gain((copies - 1) * self.copy_cost),
                of="the time from first to last copy",
            )

    def _directions(self) -> Table:
        rows, count, total = _columns(self.memories)
        order = self.times.order(total)
        described = [_described(rows[at]) for at in order]
        times = self.times.columns(order)
        return Table(
            {
                "direction": [direction for direction, *_ in described],
                "source_memory": [source for _, source, _, _ in described],
                "destination_memory": [destination for _, _, destination, _ in described],
                "asynchronous": [bool(asynchronous) for *_, asynchronous in described],
                "copies": count[order],
                "bytes": total[order],
                "share": shares(total, total.sum())[order],
                "mean_bytes": total[order] // count[order],
                **times,
            },
            units={"bytes": "bytes", "mean_bytes": "bytes", "share": "share", **_DeviceTimes.UNITS},
            labels={
                "share": "of bytes copied",
                "mean_bytes": "mean",
                "source_memory": "from",
                "destination_memory": "to",
                "asynchronous": "async",
                **_DeviceTimes.LABELS,
            },
            sums=("copies", "bytes", "device_time"),
            levels=("mean_bytes", "bandwidth"),
            title="Copies by direction and memory",
            shown=self.top,
            hidden=_DeviceTimes.hidden(times),
        )

    def _by_direction(self) -> dict[str, NDArray[Any]]:
        """Size histogram of each direction."""
        found: dict[str, NDArray[Any]] = {}
        for code, row in enumerate(self.memories.codes.rows):
            direction = _described(row)[0]
            found[direction] = found.get(direction, 0) + self.sizes[code]
        return dict(sorted(found.items()))

    def _sizes(self) -> Table:
        filled = [
            (direction, power, int(counts[power]))
            for direction, counts in self._by_direction().items()
            for power in np.flatnonzero(counts).tolist()
        ]
        return Table(
            {
                "direction": [direction for direction, _, _ in filled],
                "from_bytes": [_smallest(power) for _, power, _ in filled],
                "below_bytes": [1 << power for _, power, _ in filled],
                "copies": [count for _, _, count in filled],
            },
            units={"from_bytes": "bytes", "below_bytes": "bytes"},
            keys=("direction", "from_bytes"),
            sums=("copies",),
            title="Sizes",
            shown=4 * self.top,
        )

    def _figure(self) -> Figure:
        histograms = self._by_direction()
        filled = np.flatnonzero(sum(histograms.values(), np.zeros(_SIZE_BINS, np.int64)))
        powers = range(filled[0], filled[-1] + 1) if len(filled) else range(0)
        return Figure(
            "bar",
            "Sizes of copies",
            [_smallest(power) for power in powers],
            {name: counts[list(powers)] for name, counts in histograms.items()},
            x_label="bytes, from",
            x_unit="bytes",
            y_label="copies",
        )

    def _repeats(self) -> Table:
        rows, count, total = _columns(self.same)
        again = total - total // np.maximum(count, 1)
        order = np.argsort(-again, kind="stable")
        order = order[count[order] > 1]
        distinct = np.asarray(rows, np.uint64).reshape(-1, 5)[order]
        return Table(
            {
                "direction": [_direction(row[0]) for row in distinct.tolist()],
                "source": distinct[:, 1],
                "destination": distinct[:, 2],
                "bytes": distinct[:, 3],
                "copies": count[order],
                "bytes_again": again[order],
                "share": shares(again, self._bytes)[order],
            },
            units={
                "source": "address",
                "destination": "address",
                "bytes": "bytes",
                "bytes_again": "bytes",
                "share": "share",
            },
            labels={"bytes_again": "bytes after the first", "share": "of bytes copied"},
            keys=("direction", "bytes"),
            sums=("copies", "bytes_again"),
            title="Repeated copies of the same source, destination and size",
            shown=self.top,
        )

    def _devices(self) -> Table:
        rows, count, total = _columns(self.pairs)
        order = self.pair_times.order(total)
        pairs = [rows[at] for at in order]
        times = self.pair_times.columns(order)
        return Table(
            {
                "source_device": [_device(source) for source, _ in pairs],
                "destination_device": [_device(destination) for _, destination in pairs],
                "copies": count[order],
                "bytes": total[order],
                "share": shares(total, total.sum())[order],
                **times,
            },
            units={"bytes": "bytes", "share": "share", **_DeviceTimes.UNITS},
            labels={
                "source_device": "from",
                "destination_device": "to",
                "share": "of bytes copied",
                **_DeviceTimes.LABELS,
            },
            keys=("source_device", "destination_device"),
            sums=("copies", "bytes", "device_time"),
            levels=("bandwidth",),
            title="Copies between devices (-: host or unknown)",
            shown=self.top,
            hidden=_DeviceTimes.hidden(times),
        )

    @property
    def _bytes(self) -> int:
        return int(self.memories.sum("bytes").sum())

    def _summary(self, directions: Table) -> str:
        copies = int(self.memories.count.sum())
        if not copies:
            return "no copies were recorded"
        text = f"{counted(copies, 'copy')}, {formatted(self._bytes, 'bytes')} in total"
        pageable = sum(
            row["bytes"]
            for row in directions.rows()
            if "pageable" in (row["source_memory"], row["destination_memory"])
        )
        if pageable:
            share = formatted(pageable / self._bytes, "share")
            text += f", {share} of the bytes from or to pageable host memory"
        _, count, total = _columns(self.same)
        again = int((total - total // np.maximum(count, 1)).sum())
        if again:
            text += f"; {formatted(again, 'bytes')} copied again between the same addresses"
        if self.same.left_out:
            text += (
                f"; repeats are detected among the first {self.transfers:,} distinct "
                f"transfers, {counted(self.same.left_out, 'further copy', 'further copies')} "
                "not checked"
            )
        if self.unsized:
            text += f"; {counted(self.unsized, 'copy')} of unknown size left out"
        return text


def _columns(groups: Groups) -> tuple[list[tuple[int, ...]], NDArray[Any], NDArray[Any]]:
    """Rows, with the number and bytes of their copies, in order of first appearance."""
    return groups.rows, groups.count, groups.sum("bytes")


def _described(row: tuple[int, ...]) -> tuple[str, str, str, bool]:
    """Direction, memory of source and destination as names; whether asynchronous."""
    direction = _direction(row[0])
    memories = (
        abi.enums()["memory"].get(memory) or ("pageable" if on_host else "unknown")
        for memory, on_host in zip(row[1:3], _ON_HOST.get(direction, (False, False)), strict=True)
    )
    return (direction, *memories, bool(row[3]))  # type: ignore[return-value]


def _direction(number: int) -> str:
    return abi.enums()["copy"].get(number, "unknown")


def _number(direction: str) -> int:
    return next(number for number, name in abi.enums()["copy"].items() if name == direction)


def _bit_length(bytes: NDArray[Any]) -> NDArray[Any]:
    """Number of bits of each size: 0 for 0, 1 for 1, 2 for 2 and 3, …; exact up to 2**64 - 1."""
    high, low = bytes >> np.uint64(32), bytes & np.uint64(0xFFFF_FFFF)
    _, high_bits = np.frexp(high.astype(np.float64))
    _, low_bits = np.frexp(low.astype(np.float64))
    return np.asarray(np.where(high > 0, high_bits + 32, low_bits))


def _smallest(power: int) -> int:
    return 1 << (power - 1) if power else 0


def _device(code: int) -> int | None:
    return code - 1 if code else None
