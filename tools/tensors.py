"""Tensors of a framework: what is live at the peak and what for, who made it, how long it lives."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.codes import RowCodes, grown
from pasta.processors.object_names import TensorNames
from pasta.table import Table, Unit, absent_where, formatted, shares
from pasta.tool import Finding, Result, Tool, option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pasta.processors.batch import Batch

_UNITS: dict[str, Unit] = {
    "bytes": "bytes",
    "storage": "bytes",
    "rounding": "bytes",
    "at_peak": "bytes",
    "allocated": "bytes",
    "share": "share",
    "lifetime": "ns",
    "time": "ns",
}
#: What is known of a tensor when it is freed, or at the end.
_KNOWN = (
    "device",
    "category",
    "node",
    "shape",
    "dtype",
    "name",
    "bytes",
    "storage",
    "reads",
    "time",
)
#: Of which one row of the patterns is made.
_PATTERN = ("device", "category", "node", "shape", "dtype")

_STATE = "optimizer state"
#: What to do about categories that hold much of a peak.
_REMEDIES = {
    "parameter": "keep parameters in lower precision, or shard them over devices",
    _STATE: "an optimizer with less state (8-bit, factored), or shard it over devices",
    "gradient": "free gradients as they are applied, or shard them over devices",
    "buffer": "keep buffers in lower precision, or make them when they are used",
    "activation": "checkpoint activations, use smaller batches or lower precision",
    "input": "use smaller batches, and free inputs as they were used",
    "temporary": "work in place, or in parts",
}
#: Categories that a model cannot be without.
_NEEDED = ("parameter", "gradient", "buffer")
#: By which runs are compared.
_KEYS = ("device", "category", "shape", "dtype", "operator", "module", "line")


@dataclass
class _Device:
    """Live bytes of tensors on a device, and the tensors that were live at their peak."""

    live: int = 0
    peak: int = 0
    peak_time: int = 0
    reserved: int = 0  # of the allocator when the peak was reached; 0: not told
    freed: list[NDArray[Any]] = field(default_factory=list)  # of those live at the peak


class Tensors(Tool):
    """What tensors are live at the peak, by category, operator, module and line; lifetimes."""

    needs_tensors = True
    needs_allocations = True
    top = option(15, help="rows of each table in the text report; the tables have all", minimum=1)

    least_peak = option("64MiB", kind="bytes", help="peak from which there are findings")
    dominant = option(0.5, help="share of the peak from which a category is a finding", minimum=0.0)
    state_share = option(
        0.25, help="share of the peak from which optimizer state is a finding", minimum=0.0
    )

    def start(self) -> None:
        self.devices: dict[int, _Device] = {}
        self.at_peak = np.zeros(1024, bool)  # by object
        self.patterns = RowCodes(sys.maxsize)
        self.amounts = np.zeros((1024, 4), np.int64)  # by pattern: count, bytes, lifetime, reads
        self.reserved: dict[int, int] = {}  # by device, before this batch

    def on_batch(self, batch: Batch) -> None:
        changes = self.context.objects.changes
        rows = self.context.objects.rows
        changes = changes[rows["layer"][changes["object"]] == _tensor_layer()]
        if len(changes):
            self._follow_all(changes, batch)
        for number in np.unique(batch["allocator_state"]["device"]).tolist():
            states = batch["allocator_state"]
            self.reserved[number] = int(states["reserved"][states["device"] == number][-1])

    def _follow_all(self, changes: NDArray[Any], batch: Batch) -> None:
        rows = self.context.objects.rows
        self.at_peak = grown(self.at_peak, len(rows))
        device_of = rows["device"][changes["object"]]
        for number in np.unique(device_of).tolist():
            self._follow(number, changes[device_of == number], batch)
        freed = changes[changes["sign"] < 0]
        if len(freed):
            self._finish(freed["object"], freed["time"])

    def _follow(self, number: int, changes: NDArray[Any], batch: Batch) -> None:
        """Finds a device's peak, and what is live then."""
        rows = self.context.objects.rows
        device = self.devices.setdefault(number, _Device())
        ids, sign = changes["object"], changes["sign"].astype(np.int64)
        levels = device.live + np.cumsum(rows["bytes"][ids].astype(np.int64) * sign)
        highest = int(levels.argmax())
        device.live = int(levels[-1])
        if levels[highest] <= device.peak:
            return
        device.peak, device.peak_time = int(levels[highest]), int(changes["time"][highest])
        device.reserved = self._reserved(number, int(changes["index"][highest]), batch)
        device.freed = []
        before = self.context.objects.live()
        mine = (rows["device"][before] == number) & (rows["layer"][before] == _tensor_layer())
        # live at the end of the batch, without what came after the peak, with what went after it
        later, since = ids[highest + 1 :], sign[highest + 1 :]
        self.at_peak[: len(rows)][rows["device"] == number] = False
        self.at_peak[before[mine]] = True
        self.at_peak[later[since < 0]] = True
        self.at_peak[later[since > 0]] = False

    def _reserved(self, number: int, index: int, batch: Batch) -> int:
        """Bytes that a device's allocator held when the allocation of this index was made."""
        states = batch["allocator_state"]
        found = states["reserved"][(states["index"] < index) & (states["device"] == number)]
        return int(found[-1]) if len(found) else self.reserved.get(number, 0)

    def _known(self, ids: NDArray[Any]) -> NDArray[Any]:
        rows, told = self.context.objects.rows[ids], self.context.tensors.rows[ids]
        known = _nothing(len(ids), _KNOWN)
        for name in ("node", "shape", "dtype", "name", "storage", "reads"):
            known[name] = told[name]
        known["device"], known["bytes"], known["time"] = (
            rows["device"],
            rows["bytes"],
            rows["alloc_time"],
        )
        known["category"] = self.context.tensors.category(ids)
        return known

    def _finish(self, ids: NDArray[Any], times: NDArray[Any]) -> None:
        known = self._known(ids)
        for number in np.unique(known["device"]).tolist():
            mine = self.at_peak[ids] & (known["device"] == number)
            if mine.any():
                self.devices[number].freed.append(known[mine])
        self.at_peak[ids] = False
        self._add_patterns(known, times.astype(np.int64) - known["time"])

    def _add_patterns(self, known: NDArray[Any], lifetimes: NDArray[Any]) -> None:
        keys = np.stack([known[name].astype(np.int64) for name in _PATTERN], axis=1)
        codes = self.patterns.encode(keys.view(np.uint64))
        self.amounts = grown(self.amounts, len(self.patterns))
        ones = np.ones(len(known), np.int64)
        for at, each in enumerate((ones, known["bytes"], np.maximum(lifetimes, 0), known["reads"])):
            np.add.at(self.amounts[:, at], codes, each.astype(np.int64))

    def _known_patterns(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Patterns (int64 of shape (patterns, fields of _PATTERN)) and their amounts."""
        keys = np.asarray(self.patterns.rows, np.uint64).reshape(-1, len(_PATTERN))
        return keys.view(np.int64), self.amounts[: len(keys)]

    def result(self) -> Result:
        live = self.context.objects.live()
        live = live[self.context.objects.rows["layer"][live] == _tensor_layer()]
        known = self._known(live)
        end = int(known["time"].max()) if len(known) else 0
        self._add_patterns(known, end - known["time"])
        peaks = {}
        for number, device in sorted(self.devices.items()):
            mine = self.at_peak[live] & (known["device"] == number)
            peaks[number] = np.concatenate([*device.freed, known[mine]])
        named = TensorNames(self.context)
        return Result(
            summary=self._summary(peaks),
            tables={
                "categories": self._categories(peaks),
                "peak": self._peak(peaks, named),
                "patterns": self._patterns(named),
            },
            findings=list(self._findings(peaks, named)),
        )

    def _findings(self, peaks: dict[int, NDArray[Any]], named: TensorNames) -> Iterator[Finding]:
        """What holds the peak of each device."""
        from pasta.processors.tensors import CATEGORIES

        for number, known in peaks.items():
            peak = self.devices[number].peak
            if not peak or peak < self.least_peak:
                continue
            held = np.zeros(len(CATEGORIES), np.int64)
            np.add.at(held, known["category"], known["bytes"])
            for category in np.flatnonzero(held).tolist():
                name, share = CATEGORIES[category], int(held[category]) / peak
                least = self.state_share if name == _STATE else self.dominant
                if share >= least:
                    mine = known[known["category"] == category]
                    yield self._finding(number, name, mine, share, named)

    def _finding(
        self, number: int, category: str, known: NDArray[Any], share: float, named: TensorNames
    ) -> Finding:
        nodes, of = np.unique(known["node"], return_inverse=True)
        sums = np.zeros(len(nodes), np.int64)
        np.add.at(sums, of.reshape(-1), known["bytes"])
        most = known[known["node"] == nodes[int(sums.argmax())]][:1]
        made = {name: values[0] for name, values in _columns(named, most).items()}
        by = " ".join(filter(None, (made["operator"], made["module"])))
        line = f" at {made['line']}" if made["line"] else ""
        where = "host" if number < 0 else f"device {number}"
        total, peak = int(known["bytes"].sum()), self.devices[number].peak
        return Finding(
            what=f"{category} tensors hold much of the peak",
            where=f"{where}, most by {by or 'no operator'}{line}",
            evidence=f"{formatted(total, 'bytes')} of {formatted(peak, 'bytes')} in"
            f" {len(known):,} tensors; {formatted(int(sums.max()), 'bytes')} of them made there",
            remedy=_REMEDIES[category],
            gain=share,
            of="peak memory",
            confidence="low" if category in _NEEDED else "medium",
        )

    def _summary(self, peaks: dict[int, NDArray[Any]]) -> str:
        parts = []
        for number, device in sorted(self.devices.items()):
            where = "host" if number < 0 else f"device {number}"
            when = formatted(device.peak_time - self.context.run.start_time, "ns")
            peak = formatted(device.peak, "bytes")
            text = f"{where}: peak of {peak} in {len(peaks[number]):,} tensors at {when}"
            if device.reserved:
                text += f", {formatted(device.reserved, 'bytes')} reserved by the allocator"
            parts.append(text)
        return "; ".join(parts) or (
            "no tensor of a framework was seen: "
            "PyTorch is followed in programs that import it after they were started"
        )

    def _hidden(self, *columns: str) -> frozenset[str]:
        """Columns that the text report has no room for; the device too where there is one."""
        return frozenset(columns) | ({"device"} if len(self.devices) == 1 else set())

    def _categories(self, peaks: dict[int, NDArray[Any]]) -> Table:
        from pasta.processors.tensors import CATEGORIES

        totals: dict[tuple[int, int], list[int]] = {}
        keys, amounts = self._known_patterns()
        for (number, category), (count, bytes) in zip(
            keys[:, :2].tolist(), amounts[:, :2].tolist(), strict=True
        ):
            found = totals.setdefault((number, category), [0, 0])
            found[0] += count
            found[1] += bytes
        rows = []
        for (number, category), (count, bytes) in totals.items():
            peak = peaks.get(number, _nothing(0, _KNOWN))
            mine = peak[peak["category"] == category]
            live, told = mine["bytes"], mine["storage"]
            rounding = int((live - np.where(told, told, live)).sum())
            name = CATEGORIES[category]
            rows.append((number, name, len(mine), int(live.sum()), rounding, count, bytes))
        rows.sort(key=lambda row: (row[0], -row[3], row[1]))
        columns: list[Any] = [list(column) for column in zip(*rows, strict=True)] or [[]] * 7
        whole = {number: max(1, device.peak) for number, device in self.devices.items()}
        return _table(
            {
                "device": [None if number < 0 else number for number in columns[0]],
                "category": columns[1],
                "tensors": columns[2],
                "at_peak": columns[3],
                "share": [
                    bytes / whole[number]
                    for number, bytes in zip(columns[0], columns[3], strict=True)
                ],
                "rounding": columns[4],
                "allocations": columns[5],
                "allocated": columns[6],
            },
            labels={
                "tensors": "tensors at the peak",
                "share": "of the peak",
                "rounding": "of that, rounding",
                "allocations": "allocations in all",
            },
            keys=("device", "category"),
            sums=("at_peak", "tensors", "rounding", "allocations", "allocated"),
            title="Categories of tensors",
            shown=self.top,
            hidden=self._hidden(),
        )

    def _peak(self, peaks: dict[int, NDArray[Any]], named: TensorNames) -> Table:
        known = np.concatenate([_nothing(0, _KNOWN), *peaks.values()])
        known = known[np.argsort(-known["bytes"], kind="stable")]
        whole = np.asarray(
            [self.devices[int(each)].peak for each in known["device"].tolist()], np.int64
        )
        return _table(
            {
                **_columns(named, known),
                "name": named.texts(known["name"]),
                "bytes": known["bytes"],
                "share": known["bytes"] / np.maximum(whole, 1),
                "storage": absent_where(known["storage"], known["storage"] == 0),
                "reads": known["reads"],
                "time": np.maximum(known["time"] - self.context.run.start_time, 0),
            },
            labels={
                "share": "of the peak",
                "time": "allocated at",
                "reads": "operators that read it",
            },
            keys=_KEYS,
            sums=("bytes",),
            title="Live at the peak",
            shown=self.top,
            hidden=self._hidden("storage", "reads", "time", "dtype", "file", "name"),
        )

    def _patterns(self, named: TensorNames) -> Table:
        keys, amounts = self._known_patterns()
        order = np.argsort(-amounts[:, 1], kind="stable")
        keys, amounts = keys[order], amounts[order]
        known = _nothing(len(keys), _PATTERN)
        for at, name in enumerate(_PATTERN):
            known[name] = keys[:, at]
        count = np.maximum(amounts[:, 0], 1)
        return _table(
            {
                **_columns(named, known),
                "allocations": amounts[:, 0],
                "bytes": amounts[:, 1],
                "share": shares(amounts[:, 1], amounts[:, 1].sum()),
                "lifetime": amounts[:, 2] / count,
                "reads": amounts[:, 3] / count,
            },
            labels={"share": "of all bytes", "lifetime": "mean lifetime", "reads": "reads of each"},
            keys=_KEYS,
            sums=("allocations", "bytes"),
            levels=("lifetime", "reads"),
            title="Allocations",
            shown=self.top,
            hidden=self._hidden("dtype", "reads", "file"),
        )


def _columns(named: TensorNames, known: NDArray[Any]) -> dict[str, Any]:
    return {
        "device": absent_where(known["device"], known["device"] < 0),
        **named.described(known["category"], known["shape"], known["dtype"], known["node"]),
    }


def _table(columns: dict[str, Any], **arguments: Any) -> Table:
    units = {name: unit for name, unit in _UNITS.items() if name in columns}
    return Table(columns, units=units, **arguments)


def _nothing(length: int, names: tuple[str, ...]) -> NDArray[Any]:
    """Rows of zeros with these columns."""
    return np.zeros(length, [(name, "i8") for name in names])


def _tensor_layer() -> int:
    from pasta.processors.objects import TENSOR

    return TENSOR
