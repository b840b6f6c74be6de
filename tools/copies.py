"""Copies between and within host and devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.codes import grown
from pasta.processors.groups import Groups
from pasta.table import Figure, Table, counted, formatted, shares
from pasta.tool import Finding, Result, Tool, option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_SIZES = 65  # a histogram of 64-bit sizes by powers of two: 0, 1, 2-3, 4-7, …
#: Which sides of a direction are on the host: source, destination.
_ON_HOST = {
    "host_to_host": (True, True),
    "host_to_device": (True, False),
    "device_to_host": (False, True),
}


class Copies(Tool):
    """Copies by direction, kind of memory and size, and the same transfer made again."""

    needs_objects = True
    uses = ("copy_addresses", "copy_devices")

    top = option(10, help="rows of each table in the text report", minimum=1)
    transfers = option(1 << 18, help="distinct (source, destination, bytes) to remember", minimum=1)
    repeated = option(
        "16MiB", kind="bytes", help="bytes copied again in a direction that are a finding"
    )
    pageable = option(
        "16MiB", kind="bytes", help="bytes from or to pageable host memory that are a finding"
    )
    small = option("16KiB", kind="bytes", help="copies below this size are small")
    small_copies = option(1000, help="small copies in a direction that are a finding", minimum=1)

    def start(self) -> None:
        self.memories = Groups(1 << 16, "bytes")
        self.pairs = Groups(1 << 16, "bytes")
        self.same = Groups(self.transfers, "bytes")
        self.sizes = np.zeros((0, _SIZES), np.int64)
        self.small_by = np.zeros((0, 2), np.int64)  # as memories: small copies, and their bytes
        self.unsized = 0

    def on_copies(self, copies: NDArray[Any]) -> None:
        sized = copies["bytes"] != np.iinfo(np.uint64).max
        self.unsized += int(len(sized) - sized.sum())
        copies = copies[sized]
        bytes = copies["bytes"].astype(np.int64)
        source, destination = (self._memory(copies, side) for side in ("source", "destination"))
        asynchronous = (copies["flags"] & _flag("FLAG_ASYNC")) != 0
        codes = self.memories.add(
            copies["direction"], source, destination, asynchronous, bytes=bytes
        )
        self.sizes = grown(self.sizes, len(self.memories.codes))
        np.add.at(self.sizes, (codes, _power(copies["bytes"])), 1)
        self.small_by = grown(self.small_by, len(self.memories.codes))
        few = bytes < self.small
        np.add.at(self.small_by, codes[few], np.stack([few[few], bytes[few]], axis=1))
        devices = (copies[f"{side}_device"] + 1 for side in ("source", "destination"))
        self.pairs.add(*devices, bytes=bytes)
        sides = (copies["source"], copies["destination"])
        self.same.add(copies["direction"], *sides, copies["bytes"], bytes=bytes)

    def _memory(self, copies: NDArray[Any], side: str) -> NDArray[Any]:
        """Kind of the memory on a side of each copy; 0 where nothing is known of the address."""
        ids = self.context.objects.lookup(copies[side], copies["index"], "memory")
        return self.context.objects.memory_of(ids)

    def result(self) -> Result:
        directions = self._directions()
        return Result(
            summary=self._summary(directions),
            findings=[*self._again(), *self._from_pageable(directions), *self._small()],
            tables={
                "directions": directions,
                "sizes": self._sizes(),
                "repeats": self._repeats(),
                "devices": self._devices(),
            },
            figures={"sizes": self._figure()},
        )

    def _again(self) -> Iterator[Finding]:
        """Directions in which the same transfers are made again and again."""
        rows, count, total = _columns(self.same)
        again = total - total // np.maximum(count, 1)
        directions = np.asarray([row[0] for row in rows], np.uint64)
        for number in np.unique(directions).tolist():
            mine = np.where(directions == number, again, 0)
            bytes, most = int(mine.sum()), int(mine.argmax())
            if not bytes or bytes < self.repeated:
                continue
            _, source, destination, size = rows[most]
            yield Finding(
                what="the same transfer is made again and again",
                where=f"{_direction(number)}: {formatted(size, 'bytes')} from {source:#x} to"
                f" {destination:#x}, {int(count[most]):,} times",
                evidence=f"{formatted(bytes, 'bytes')} went between addresses that they had gone"
                f" between before, of {formatted(self._bytes, 'bytes')} copied",
                remedy="keep on the device what does not change; whether it does is not looked at",
                gain=bytes / self._bytes,
                of="bytes copied",
                confidence="low",
            )

    def _from_pageable(self, directions: Table) -> Iterator[Finding]:
        """Copies that the driver makes twice: by way of its own pinned memory."""
        rows = [
            row
            for row in directions.rows()
            if row["direction"] in ("host_to_device", "device_to_host")
            and "pageable" in (row["source_memory"], row["destination_memory"])
        ]
        bytes = sum(row["bytes"] for row in rows)
        if not bytes or bytes < self.pageable:
            return
        copies = sum(row["copies"] for row in rows)
        asynchronous = sum(row["copies"] for row in rows if row["asynchronous"])
        wait = f"; {asynchronous:,} asynchronous ones wait for it" if asynchronous else ""
        yield Finding(
            what="copies between pageable host memory and devices",
            where=", ".join(dict.fromkeys(row["direction"] for row in rows)),
            evidence=f"{counted(copies, 'copy')} of {formatted(bytes, 'bytes')} are"
            " staged: each byte is"
            f" copied on the host once more{wait}",
            remedy="allocate it with cudaMallocHost, or DataLoader(pin_memory=True) in PyTorch",
            gain=bytes / (self._bytes + bytes),
            of="bytes moved by copies",
        )

    def _small(self) -> Iterator[Finding]:
        found: dict[str, NDArray[Any]] = {}
        for code, row in enumerate(self.memories.codes.rows):
            found[_told(row)[0]] = found.get(_told(row)[0], 0) + self.small_by[code]
        every = int(self.memories.count.sum())
        for direction, (copies, bytes) in found.items():
            if copies >= self.small_copies:
                yield Finding(
                    what="many small copies",
                    where=f"{direction}, below {formatted(self.small, 'bytes')}",
                    evidence=f"{int(copies):,} of {counted(every, 'copy')} move"
                    f" {formatted(int(bytes // copies), 'bytes')} each,"
                    f" {formatted(int(bytes), 'bytes')} in all",
                    remedy="put them together in one buffer, or let a kernel read them",
                    gain=(int(copies) - 1) / every,
                    of="copies",
                )

    def _directions(self) -> Table:
        rows, count, total = _columns(self.memories)
        order = np.argsort(-total, kind="stable")
        told = [_told(rows[at]) for at in order]
        return Table(
            {
                "direction": [direction for direction, *_ in told],
                "source_memory": [source for _, source, _, _ in told],
                "destination_memory": [destination for _, _, destination, _ in told],
                "asynchronous": [bool(asynchronous) for *_, asynchronous in told],
                "copies": count[order],
                "bytes": total[order],
                "share": shares(total, total.sum())[order],
                "mean_bytes": total[order] // count[order],
            },
            units={"bytes": "bytes", "mean_bytes": "bytes", "share": "share"},
            labels={
                "share": "of bytes copied",
                "mean_bytes": "mean",
                "source_memory": "from",
                "destination_memory": "to",
                "asynchronous": "async",
            },
            sums=("copies", "bytes"),
            levels=("mean_bytes",),
            title="Copies by direction and memory",
            shown=self.top,
        )

    def _by_direction(self) -> dict[str, NDArray[Any]]:
        """Size histogram of each direction."""
        found: dict[str, NDArray[Any]] = {}
        for code, row in enumerate(self.memories.codes.rows):
            direction = _told(row)[0]
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
                "from_bytes": [_lowest(power) for _, power, _ in filled],
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
        filled = np.flatnonzero(sum(histograms.values(), np.zeros(_SIZES, np.int64)))
        powers = range(filled[0], filled[-1] + 1) if len(filled) else range(0)
        return Figure(
            "bar",
            "Sizes of copies",
            [_lowest(power) for power in powers],
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
        told = np.asarray(rows, np.uint64).reshape(-1, 4)[order]
        return Table(
            {
                "direction": [_direction(row[0]) for row in told.tolist()],
                "source": told[:, 1],
                "destination": told[:, 2],
                "bytes": told[:, 3],
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
            title="The same source, destination and size, more than once",
            shown=self.top,
        )

    def _devices(self) -> Table:
        rows, count, total = _columns(self.pairs)
        order = np.argsort(-total, kind="stable")
        pairs = [rows[at] for at in order]
        return Table(
            {
                "source_device": [_device(source) for source, _ in pairs],
                "destination_device": [_device(destination) for _, destination in pairs],
                "copies": count[order],
                "bytes": total[order],
                "share": shares(total, total.sum())[order],
            },
            units={"bytes": "bytes", "share": "share"},
            labels={
                "source_device": "from",
                "destination_device": "to",
                "share": "of bytes copied",
            },
            keys=("source_device", "destination_device"),
            sums=("copies", "bytes"),
            title="Copies between devices (- is the host, or not told)",
            shown=self.top,
        )

    @property
    def _bytes(self) -> int:
        return int(self.memories.sum("bytes").sum())

    def _summary(self, directions: Table) -> str:
        copies = int(self.memories.count.sum())
        if not copies:
            return "nothing was copied"
        text = f"{counted(copies, 'copy')} of {formatted(self._bytes, 'bytes')}"
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
            text += f"; {formatted(again, 'bytes')} went between the same addresses again"
        if self.same.left_out:
            text += (
                f"; repeats are looked for among the first {self.transfers:,} distinct transfers,"
                f" {counted(self.same.left_out, 'copy was', 'copies were')} of others"
            )
        if self.unsized:
            text += f"; {counted(self.unsized, 'copy')} of unknown size left out"
        return text


def _columns(groups: Groups) -> tuple[list[tuple[int, ...]], NDArray[Any], NDArray[Any]]:
    """Rows, number and bytes of the copies of each, in order of first appearance."""
    return groups.rows, groups.count, groups.sum("bytes")


def _flag(name: str) -> int:
    from pasta import abi

    return int(getattr(abi, name))


def _told(row: tuple[int, ...]) -> tuple[str, str, str, bool]:
    """Direction, memory of source and destination, asynchronous, in words."""
    from pasta import abi

    direction = _direction(row[0])
    memories = (
        abi.ENUMS["memory"].get(memory) or ("pageable" if on_host else "unknown")
        for memory, on_host in zip(row[1:3], _ON_HOST.get(direction, (False, False)), strict=True)
    )
    return (direction, *memories, bool(row[3]))  # type: ignore[return-value]


def _direction(number: int) -> str:
    from pasta import abi

    return abi.ENUMS["copy"].get(number, "unknown")


def _power(bytes: NDArray[Any]) -> NDArray[Any]:
    """Number of bits of each size: 0 for 0, 1 for 1, 2 for 2 and 3, …; exact up to 2**64 - 1."""
    high, low = bytes >> np.uint64(32), bytes & np.uint64(0xFFFF_FFFF)
    _, high_bits = np.frexp(high.astype(np.float64))
    _, low_bits = np.frexp(low.astype(np.float64))
    return np.asarray(np.where(high > 0, high_bits + 32, low_bits))


def _lowest(power: int) -> int:
    return 1 << (power - 1) if power else 0


def _device(code: int) -> int | None:
    return code - 1 if code else None
