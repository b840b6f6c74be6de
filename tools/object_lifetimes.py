"""Memory that objects hold while nothing uses them, and the peak without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pasta import abi
from pasta.lazy import np
from pasta.probes import Counter, probe
from pasta.processors.batch import ABSENT_U64
from pasta.processors.codes import grown
from pasta.processors.kernel_names import Launched, kernel_names
from pasta.processors.object_names import TensorNames, memory_numbers, object_columns
from pasta.processors.object_uses import COPIED_FROM, LAUNCH, SPAN, USE, WRITTEN, is_contiguous
from pasta.processors.operator_names import user_lines
from pasta.table import Figure, Table, absent_where, counted, formatted, shares
from pasta.tool import Finding, Result, Tool, option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.object_uses import DeviceLaunches, ObjectUses
    from pasta.processors.packing import Packing
    from pasta.tool import Confidence

#: Patterns by number.
PATTERNS = (
    "early allocation", "late free", "leak", "unused allocation", "temporary idleness",
    "redundant allocation", "dead write",
)  # fmt: skip
EARLY, LATE, LEAK, UNUSED, IDLE, REDUNDANT, DEAD_WRITE = range(len(PATTERNS))

#: Kinds of device memory that count for the peak, and kinds whose accesses are all visible.
_ON_DEVICE = ("device", "pool", "array", "module", "external")
_VISIBLE = ("device", "pool")
_LAYERS = ("memory", "tensor")
#: Groups whose savings are computed, those with most bytes at the peak.
_MAX_GROUPS = 64
#: From this number on, allocations that are never freed are growth, which memory_timeline finds.
_GROWTH = 12
_POINTS = 1024
_FOREVER = (1 << 63) - 1

#: A pattern of an object: as a SPAN; `times`: how often; `written`: bytes of dead writes;
#: `partner`: object whose memory it could use; `saved`: bytes of the peak if it alone is changed;
#: `site`: node of the operator that allocated it.
_ROW = [
    *SPAN,
    ("pattern", "u1"),
    ("times", "i8"),
    ("written", "i8"),
    ("partner", "i8"),
    ("bytes", "i8"),
    ("saved", "i8"),
    ("site", "i8"),
]

_CONFIDENCE: dict[int, Confidence] = {EARLY: "medium", LATE: "medium", LEAK: "high", UNUSED: "high"}
_WHAT = {
    EARLY: "memory is allocated long before its first use",
    LATE: "memory is freed long after its last use",
    LEAK: "memory is never freed after its last use",
    UNUSED: "memory is allocated and never used",
    IDLE: "memory is held while unused, and used again later",
    REDUNDANT: "memory is allocated although memory of the same size is no longer used",
}


class ObjectLifetimes(Tool):
    """Objects allocated early, freed late, idle or unused, and the peak of memory without that."""

    title = "Object lifetimes"
    topic = "memory"

    needs = ("objects", "history", "allocations")
    uses = ("copy_addresses",)
    optional_accesses = True

    threshold = option(
        1,
        help="early, late and idle: minimum number of launches on the device without use",
        minimum=1,
    )
    least = option("1MiB", kind="bytes", help="finding: minimum bytes of the peak saved")
    share = option(0.05, help="… and their minimum share of the peak", minimum=0.0)
    keep = option(10_000, help="rows of the table of objects: those that save most", minimum=1)
    top = option(10, help="rows of each table in the text report", minimum=1)

    touched = Counter(by=("launch", "object"))

    @probe.global_memory
    def touch(access: Any, maps: Any) -> None:
        """Count the accesses of a launch to an object."""
        if access.known:
            maps.touched.add(access.object)

    def start(self) -> None:
        """Initialize the launches, the copies, and the sites of allocations."""
        self.launched = Launched(position="u8", device="i2", probed="?")
        self.transfers: list[NDArray[Any]] = []
        self.nodes = np.zeros(1024, np.int32)  # operators that made allocations, by object
        self.holds = np.zeros(1024, bool)  # whether tensors are in an allocation, by object

    def on_batch(self, batch: Batch) -> None:
        """Follow launches, copies, sets, and where memory is allocated."""
        launches = batch["kernel_launch"]
        if len(launches):
            self.launched.add(
                launches,
                position=batch.positions(launches),
                device=launches["device"],
                probed=(launches["flags"] & abi.FLAG_PROBED) != 0,
            )
        self._follow_sites()
        copies, sets = batch["memory_copy"], batch["memory_set"]
        if len(copies):
            self._follow_transfers(batch, copies, "source", COPIED_FROM)
            self._follow_transfers(batch, copies, "destination", WRITTEN)
        if len(sets):
            self._follow_transfers(batch, sets, "address", WRITTEN)

    def _follow_sites(self) -> None:
        from pasta.processors.objects import MEMORY, TENSOR

        objects = self.context.objects
        new = objects.changes[objects.changes["sign"] > 0]
        if not len(new):
            return
        self.nodes = grown(self.nodes, len(objects.rows))
        self.holds = grown(self.holds, len(objects.rows))
        layers = objects.rows["layer"][new["object"]]
        tensors = new["object"][layers == TENSOR]
        indices = new["index"][layers == TENSOR]
        owners = objects.lookup(objects.rows["address"][tensors], indices, "memory")
        self.holds[owners[owners >= 0]] = True
        new = new[layers == MEMORY]
        if self.context.has("operators") and len(new):
            where = np.zeros(len(new), [("index", "u4"), ("thread", "u4")])
            where["index"], where["thread"] = new["index"], objects.rows["thread"][new["object"]]
            self.nodes[new["object"]] = self.context.operators.at(where)

    def _follow_transfers(self, batch: Batch, records: NDArray[Any], field: str, how: int) -> None:
        """Adds uses of the objects at the addresses in a field."""
        addresses = records[field]
        objects = self.context.objects.lookup(addresses, records["index"])
        known = objects >= 0
        found = np.zeros(int(known.sum()), USE)
        found["object"], found["how"] = objects[known], how
        found["launch"] = -2 - self.context.operators.at(records)[known]
        found["position"] = batch.positions(records)[known].astype(np.int64)
        found["address"] = addresses[known]
        sized = is_contiguous(records) & (records["bytes"] != ABSENT_U64)
        found["bytes"] = np.where(sized, records["bytes"], 0)[known]
        self.transfers.append(found)

    def result(self) -> Result:
        """Tables of peaks, groups of patterns and objects, a figure for each peak, and findings."""
        probed = self.launched.rows()["probed"].any()
        self._knows_accesses = bool(probed) and len(self.touched.rows()) > 0
        self._lines = user_lines(self.context)
        launches = self._device_launches()
        uses = self._uses()
        parts = [
            part
            for layer in range(len(_LAYERS))
            for device in self._devices(layer)
            if (part := self._part(layer, device, launches, uses)) is not None
        ]
        return Result(
            summary=self._summary(parts),
            tables={
                "peaks": self._peaks(parts),
                "patterns": self._patterns(parts),
                "objects": self._objects(parts),
            },
            findings=[each for part in parts for each in self._findings(part)],
            figures={part.name: self._figure(part) for part in parts if part.packing.peak},
            notes=self._notes(),
        )

    def _device_launches(self) -> DeviceLaunches:
        from pasta.processors.object_uses import DeviceLaunches

        rows = self.launched.rows()
        unknown = np.zeros(len(rows), bool)
        if self._knows_accesses:
            unknown = ~rows["probed"] | self.context.sampling.missed(rows["launch"])
            # the last launches of a program that was killed may not have run
            unknown |= rows["launch"] > self.touched.rows()["launch"].max()
        return DeviceLaunches(rows["position"].astype(np.int64), rows["device"], unknown)

    def _uses(self) -> NDArray[Any]:
        """All accesses to objects (dtype USE)."""
        rows, touched = self.launched.rows(), self.touched.rows()
        touched = touched[touched["object"] >= 0]
        at = np.minimum(np.searchsorted(rows["launch"], touched["launch"]), len(rows) - 1)
        found = np.zeros(len(touched), USE)
        if len(touched):
            found["position"] = rows["position"][at]
        found["object"], found["launch"] = touched["object"], touched["launch"]
        found["how"] = LAUNCH
        return np.concatenate([found, *self.transfers])

    def _counts(self, layer: int) -> NDArray[Any]:
        """Whether objects (bool) count for the peak of their device in a layer."""
        from pasta.processors.objects import MEMORY, TENSOR

        rows = self.context.objects.rows
        mine = (rows["device"] >= 0) & (rows["bytes"] != ABSENT_U64)
        if layer == _LAYERS.index("tensor"):
            return np.asarray(mine & (rows["layer"] == TENSOR))
        mine &= (rows["layer"] == MEMORY) & ((rows["flags"] & abi.FLAG_INTERNAL) == 0)
        return np.asarray(mine & np.isin(rows["memory"], memory_numbers(_ON_DEVICE)))

    def _devices(self, layer: int) -> list[int]:
        return sorted(set(self.context.objects.rows["device"][self._counts(layer)].tolist()))

    def _part(
        self, layer: int, device: int, launches: DeviceLaunches, uses: NDArray[Any]
    ) -> _Part | None:
        """Patterns of the objects of a layer on a device, and the savings."""
        from pasta.processors.object_uses import ObjectUses
        from pasta.processors.packing import Packing

        rows = self.context.objects.rows
        ids = np.flatnonzero(self._counts(layer) & (rows["device"] == device))
        if not len(ids):
            return None
        begins = rows["alloc_position"][ids].astype(np.int64)
        live = rows["free_position"][ids] == ABSENT_U64
        ends = np.where(live, _FOREVER, rows["free_position"][ids].view(np.int64))
        sizes = rows["bytes"][ids].astype(np.int64)
        packing = Packing(begins, ends, sizes)
        visible = np.isin(rows["memory"][ids], memory_numbers(_VISIBLE)) | (layer == 1)
        visible &= ~grown(self.holds, len(rows))[ids]  # memory of a caching allocator
        at = np.flatnonzero(visible)
        found = ObjectUses(ids[at], begins[at], ends[at], np.full(len(at), device), uses, launches)
        patterns = self._found(found, packing, layer)
        breaks = np.concatenate([patterns["start"], patterns["stop"]])
        packing = Packing(begins, ends, sizes, breaks)
        patterns["site"] = self._sites(patterns["object"], layer)
        groups, of_group = _grouped(patterns, packing)
        together = _together(patterns)
        levels = packing.levels_without(*_intervals(patterns[together]))
        part = _Part(layer, device, packing, found, patterns, groups, of_group, together, levels)
        self._save_by_group(part)
        return part

    def _found(self, uses: ObjectUses, packing: Packing, layer: int) -> NDArray[Any]:
        """Rows (dtype _ROW) of all patterns."""
        rows = self.context.objects.rows
        found: list[NDArray[Any]] = [np.zeros(0, _ROW)]

        def add(
            pattern: int, spans: NDArray[Any], times: Any = 1, written: Any = 0
        ) -> NDArray[Any]:
            made = np.zeros(len(spans), _ROW)
            for name, *_ in SPAN:
                made[name] = spans[name]
            made["pattern"], made["times"], made["written"] = pattern, times, written
            made["partner"] = -1
            found.append(made)
            return made

        early, late = uses.before_first(), uses.after_last()
        add(EARLY, early[early["launches"] >= self.threshold])
        leaks = (late["stop"] == _FOREVER) & (layer == 0)
        add(LATE, late[(late["launches"] >= self.threshold) & ~leaks])
        add(LEAK, late[leaks])
        if self._knows_accesses:
            add(UNUSED, uses.unused())
        gaps = uses.between()
        add(IDLE, *_one_gap(gaps[gaps["launches"] >= self.threshold], packing))
        add(DEAD_WRITE, *_one_write(*uses.overwritten()))
        if self._knows_accesses:
            _, sizes = np.unique(rows["bytes"][uses.objects], return_inverse=True)
            first, second = uses.reusable(sizes.reshape(-1).astype(np.int64))
            spans = np.zeros(len(second), SPAN)
            spans["object"], spans["start"] = uses.objects[second], uses.begins[second]
            spans["stop"] = np.minimum(uses.ends[first], uses.ends[second])
            spans["before"] = uses.uses["launch"][uses.stop[first] - 1]
            spans["after"] = uses.uses["launch"][uses.start[second]]
            last = uses.uses["position"][uses.stop[first] - 1]
            start = uses.uses["position"][uses.start[second]]
            ranks = (uses.launches.ranks(each, uses.devices[second]) for each in (start, last + 1))
            spans["launches"] = np.subtract(*ranks)
            add(REDUNDANT, spans)["partner"] = uses.objects[first]
        all = np.concatenate(found)
        all["bytes"] = rows["bytes"][all["object"]]
        return all

    @staticmethod
    def _save_by_group(part: _Part) -> None:
        """The savings of groups, alone and on top of all other changes, for the groups with most
        bytes; -1 for other groups."""
        groups, packing = part.groups, part.packing
        total = groups["bytes"] * groups["objects"] * (groups["pattern"] != DEAD_WRITE)
        groups["saved"] = np.where(groups["held"] > 0, -1, 0)
        groups["beside"] = np.where(total > 0, -1, 0)
        by_group = np.argsort(part.of_group, kind="stable")
        order = np.lexsort((-total, groups["held"] == 0))[:_MAX_GROUPS]
        starts = np.searchsorted(part.of_group[by_group], [order, order + 1])
        together = part.together[by_group]
        for group, begin, end in zip(order.tolist(), *starts.tolist(), strict=True):
            if not total[group]:
                continue
            mine = part.rows[by_group[begin:end]]
            groups["saved"][group] = packing.peak - packing.peak_without(*_intervals(mine))
            taken = _intervals(mine[together[begin:end]])
            removed = packing.levels - packing.levels_without(*taken)
            groups["beside"][group] = (part.levels_after + removed).max(initial=0) - part.peak_after

    def _sites(self, ids: NDArray[Any], layer: int) -> NDArray[Any]:
        """Nodes of the operators that made objects, 0 if unknown."""
        if layer == _LAYERS.index("tensor"):
            return np.asarray(self.context.tensors.rows["node"][ids])
        return np.asarray(grown(self.nodes, len(self.context.objects.rows))[ids])

    def _findings(self, part: _Part) -> Iterator[Finding]:
        """Groups whose change lowers the peak most, and writes that nothing reads."""
        if not self._is_complete():
            return
        peak = part.packing.peak
        savings = np.maximum(part.groups["saved"], part.groups["beside"])
        for group in np.argsort(-savings, kind="stable").tolist():
            row = part.groups[group]
            saved, pattern = int(savings[group]), int(row["pattern"])
            if saved < max(self.least, self.share * peak, 1):
                break
            if pattern == LEAK and row["objects"] >= _GROWTH:
                continue  # memory_timeline reports it
            yield Finding(
                what=_WHAT[pattern],
                where=self._where(part, group),
                evidence=self._evidence(part, group),
                remedy=self._remedy(part, group),
                gain=saved / peak,
                of="peak memory",
                confidence=_CONFIDENCE.get(pattern, "low") if self._knows_accesses else "low",
            )
        yield from self._dead_writes(part)

    def _dead_writes(self, part: _Part) -> Iterator[Finding]:
        """Writes of copies and sets that no launch up to the next write reads. Without a launch
        between them code_check reports them."""
        groups = part.groups
        dead = (groups["pattern"] == DEAD_WRITE) & (groups["longest"] > 0)
        for group in np.flatnonzero(dead & (groups["written"] >= self.least)).tolist():
            row = groups[group]
            yield Finding(
                what="memory is written, then overwritten before anything reads it",
                where=self._where(part, group),
                evidence=f"{counted(int(row['times']), 'copy or set', 'copies and sets')} of "
                f"{formatted(int(row['written']), 'bytes')}; no launch in between "
                "accesses the memory",
                remedy="remove the first of the two writes",
                confidence="medium" if self._knows_accesses else "low",
            )

    def _is_complete(self) -> bool:
        """Whether no launch was left out by the selection of launches."""
        return not self.context.probes.launches.dropped

    def _where(self, part: _Part, group: int) -> str:
        row = part.groups[group]
        name = str(self._names(part, np.asarray([group]))["object"][0])
        count = int(row["objects"])
        line = self._line(int(row["site"]))
        return (
            f"device {part.device}: "
            + (f"{count:,} of " if count > 1 else "")
            + name
            + (f", {line}" if line else "")
        )

    def _line(self, node: int) -> str:
        frame = self._lines[node] if node < len(self._lines) else None
        return str(frame) if frame else ""

    def _evidence(self, part: _Part, group: int) -> str:
        row, first = part.groups[group], part.rows[part.groups["first"][group]]
        pattern, peak = int(row["pattern"]), part.packing.peak
        alone, without = peak - int(row["saved"]), part.peak_after + int(row["beside"])
        saved = f"the peak of {formatted(peak, 'bytes')} would be"
        if row["beside"] > row["saved"]:
            saved += f" {formatted(part.peak_after, 'bytes')} with all changes, and"
            saved += f" {formatted(without, 'bytes')} without this one"
        else:
            saved += f" {formatted(alone, 'bytes')}"
        launches = counted(int(first["launches"]), "launch")
        if pattern == UNUSED:
            text = f"no launch, copy or set accesses it in {launches}"
        elif pattern == EARLY:
            text = (
                f"{launches} from the allocation to the first use, by {self._user(first['after'])}"
            )
        elif pattern in (LATE, LEAK):
            until = "the end" if first["stop"] == _FOREVER else "the free"
            text = f"{launches} from the last use, by {self._user(first['before'])}, to {until}"
        elif pattern == IDLE:
            text = (
                f"{launches} between {self._user(first['before'])} and"
                f" {self._user(first['after'])}, at the time of the peak"
            )
        else:
            (other,) = object_columns(self.context, first["partner"][None])["object"]
            text = (
                f"its first use, by {self._user(first['after'])}, comes {launches} after the "
                f"last use of {other}, which has the same size"
            )
        if not self._knows_accesses:
            text += "; only copies and sets are known, not what kernels access"
        return f"{text}; {saved}"

    def _user(self, launch: Any) -> str:
        """A launch, with its kernel and the program's line; or a copy or set."""
        launch = int(launch)
        if launch < 0:
            line = self._line(-2 - launch) if launch < -2 else ""
            return f"a copy or set ({line})" if line else "a copy or set"
        ordinal = np.asarray([launch], np.uint64)
        (name,) = kernel_names(self.context, self.launched.of(ordinal))
        node = int(self.context.probes.launches.nodes(ordinal)[0])
        line = self._line(node) if node else ""
        return f"{name} (launch {launch:,}{f', {line}' if line else ''})"

    def _remedy(self, part: _Part, group: int) -> str:
        row, first = part.groups[group], part.rows[part.groups["first"][group]]
        line = self._line(int(row["site"]))
        tensor = part.layer == _LAYERS.index("tensor")
        pattern = int(row["pattern"])
        if pattern == EARLY:
            text = f"allocate it right before its first use, by {self._user(first['after'])}"
        elif pattern in (LATE, LEAK):
            how = "drop the last reference to it (del)" if tensor else "free it"
            text = f"{how} right after its last use, by {self._user(first['before'])}"
        elif pattern == UNUSED:
            text = "do not allocate it"
        elif pattern == IDLE:
            text = "free it or move it to the host until it is used again, or recompute it"
        else:
            text = "reuse the memory of the earlier object, which is no longer used"
        return f"{line}: {text}" if line else text

    def _names(self, part: _Part, groups: NDArray[Any]) -> dict[str, Any]:
        """Columns that describe groups: what their objects are, and where they are allocated."""
        first = part.rows["object"][part.groups["first"][groups]]
        columns = object_columns(self.context, first)
        names = [name.rpartition(" at ")[0] or name for name in columns["object"]]
        sites = part.groups["site"][groups]
        made = {"operator": [None] * len(groups), "module": [None] * len(groups)}
        if self.context.has("operators") and len(self.context.operators.nodes) > 1:
            none = np.zeros(len(groups), np.int64)
            described = TensorNames(self.context).described(none, none, none, sites)
            made = {name: described[name] for name in ("operator", "module")}
        return {
            "object": names,
            **made,
            "line": [self._line(node) or None for node in sites.tolist()],
        }

    def _peaks(self, parts: list[_Part]) -> Table:
        peaks = np.asarray([part.packing.peak for part in parts], np.int64)
        after = np.asarray([part.peak_after for part in parts], np.int64)
        return Table(
            {
                "layer": [_LAYERS[part.layer] for part in parts],
                "device": [part.device for part in parts],
                "objects": [len(part.uses.objects) for part in parts],
                "peak": peaks,
                "peak_after": after,
                "saved": peaks - after,
                "share": (peaks - after) / np.maximum(peaks, 1),
            },
            units={"peak": "bytes", "peak_after": "bytes", "saved": "bytes", "share": "share"},
            labels={"peak_after": "with all changes", "share": "of the peak"},
            keys=("layer", "device"),
            sums=("objects",),
            levels=("peak", "peak_after", "saved"),
            probed={},
            title="Peaks of memory, and with all changes together",
            shown=self.top,
        )

    def _patterns(self, parts: list[_Part]) -> Table:
        columns: dict[str, list[Any]] = {name: [] for name in _PATTERN_COLUMNS}
        for part in parts:
            order = np.lexsort(
                (-part.groups["bytes"] * part.groups["objects"], -part.groups["saved"])
            )
            groups = part.groups[order]
            mine = {
                "pattern": [PATTERNS[each] for each in groups["pattern"].tolist()],
                "layer": [_LAYERS[part.layer]] * len(groups),
                "device": [part.device] * len(groups),
                **self._names(part, order),
                "objects": groups["objects"].tolist(),
                "bytes": (groups["bytes"] * groups["objects"]).tolist(),
                "saved": [each if each >= 0 else None for each in groups["saved"].tolist()],
                "beside": [each if each >= 0 else None for each in groups["beside"].tolist()],
                "share": (
                    np.maximum(groups["saved"], groups["beside"]).clip(0)
                    / max(1, part.packing.peak)
                ).tolist(),
                "launches": (groups["launches"] / groups["objects"]).tolist(),
                "longest": groups["longest"].tolist(),
                "times": groups["times"].tolist(),
                "written": groups["written"].tolist(),
            }
            for name, column in mine.items():
                columns[name] += column
        by_share = sorted(range(len(columns["saved"])), key=lambda at: -columns["share"][at])
        columns = {name: [column[at] for at in by_share] for name, column in columns.items()}
        sites = {name for name in ("operator", "module", "line") if not any(columns[name])}
        return Table(
            columns,
            units={
                "bytes": "bytes",
                "saved": "bytes",
                "beside": "bytes",
                "share": "share",
                "written": "bytes",
            },
            labels={
                "saved": "saved alone",
                "beside": "beside all others",
                "share": "of the peak",
                "launches": "mean launches",
                "longest": "most launches",
            },
            keys=("pattern", "layer", "device", "object", "operator", "module", "line"),
            sums=("objects", "bytes", "times", "written"),
            levels=("saved", "beside", "launches", "longest"),
            important=("share", "saved", "beside", "objects"),
            title="Patterns by site and size, and what each saves of the peak",
            shown=self.top,
            hidden=frozenset({"layer", "times", "written", "module"} | sites),
        )

    def _objects(self, parts: list[_Part]) -> Table:
        rows = np.concatenate([np.zeros(0, _ROW), *(part.rows for part in parts)])
        rows = rows[np.lexsort((-rows["bytes"], -rows["saved"]))[: self.keep]]
        columns = object_columns(self.context, rows["object"])
        partners = object_columns(self.context, rows["partner"])
        dead = rows["pattern"] == DEAD_WRITE
        return Table(
            {
                "pattern": [PATTERNS[each] for each in rows["pattern"].tolist()],
                **columns,
                "saved": rows["saved"],
                "launches": rows["launches"],
                "times": rows["times"],
                "written": absent_where(rows["written"], ~dead),
                "before": absent_where(rows["before"], rows["before"] < 0),
                "after": absent_where(rows["after"], rows["after"] < 0),
                "partner": [
                    name if at >= 0 else None
                    for name, at in zip(partners["object"], rows["partner"].tolist(), strict=True)
                ],
            },
            units={
                "object_address": "address",
                "object_bytes": "bytes",
                "saved": "bytes",
                "written": "bytes",
            },
            labels={
                "saved": "saved of the peak",
                "launches": "launches without use",
                "before": "launch before",
                "after": "launch after",
            },
            keys=("pattern", "memory", "object_bytes"),
            sums=("saved", "launches", "times", "written"),
            title="Patterns by object",
            shown=0,
        )

    def _figure(self, part: _Part) -> Figure:
        """Live bytes over launches, and with all changes."""
        positions = part.packing.positions
        ranks = part.uses.launches.ranks(positions, np.full(len(positions), part.device))
        launches = int(ranks.max(initial=0)) + 1
        width = -(-launches // _POINTS)
        what = "tensors" if part.layer else "memory"
        return Figure(
            "step",
            f"Live {what} of device {part.device}, and without idle time"
            + (f" (highest of each {width:,} launches)" if width > 1 else ""),
            np.arange(0, launches, width),
            {
                "live": _highest(ranks // width, part.packing.levels),
                "with all changes": _highest(ranks // width, part.levels_after),
            },
            x_label="launches of the device before",
            y_label="live bytes",
            y_unit="bytes",
        )

    def _summary(self, parts: list[_Part]) -> str:
        texts = []
        for part in parts:
            peak, after = part.packing.peak, part.peak_after
            what = "tensors" if part.layer else "memory"
            text = f"device {part.device}: peak of {what} {formatted(peak, 'bytes')}"
            if after < peak:
                share = formatted(shares([peak - after], peak)[0], "share")
                text += f", {formatted(after, 'bytes')} with all changes ({share} less)"
            texts.append(text)
        counts = np.zeros(len(PATTERNS), np.int64)
        for part in parts:
            counts += np.bincount(part.rows["pattern"], minlength=len(PATTERNS))
        found = [f"{PATTERNS[at]} {counts[at]:,}" for at in np.flatnonzero(counts).tolist()]
        if found:
            texts.append(f"objects: {', '.join(found)}")
        return "; ".join(texts) or "no device memory was allocated"

    def _notes(self) -> list[str]:
        notes = []
        launches = len(self.launched.rows())
        if launches and not self._knows_accesses:
            notes.append("accesses of kernels are unknown: results are from copies and sets only")
        if not self._is_complete():
            notes.append("the selection excludes launches that may use objects: no findings")
        return notes


@dataclass
class _Part:
    """Objects of a layer on a device."""

    layer: int
    device: int
    packing: Packing
    uses: ObjectUses
    rows: NDArray[Any]  # dtype _ROW
    groups: NDArray[Any]  # dtype _GROUP
    of_group: NDArray[Any]  # by row
    together: NDArray[Any]  # rows (bool) whose changes can be made together
    levels_after: NDArray[Any]  # live bytes with these, by position of `packing`

    @property
    def peak_after(self) -> int:
        """Peak with all changes together, bytes."""
        return int(self.levels_after.max(initial=0))

    @property
    def name(self) -> str:
        return f"{_LAYERS[self.layer]}_{self.device}"


#: Rows of one pattern, site and size: `held` bytes at the peak that the change removes there;
#: `saved` bytes of the peak by this change alone, and `beside` all others; `first`: the row that
#: saves most.
_GROUP = [
    (name, "i8")
    for name in (
        "pattern", "site", "bytes", "objects", "times", "written", "launches", "longest", "held",
        "saved", "beside", "first",
    )
]  # fmt: skip
_PATTERN_COLUMNS = (
    "pattern", "object", "objects", "bytes", "saved", "beside", "share", "launches", "longest",
    "operator", "line", "module", "layer", "device", "times", "written",
)  # fmt: skip


def _highest(bins: NDArray[Any], levels: NDArray[Any]) -> NDArray[Any]:
    """The highest of levels (int64) in each bin, in which they begin in ascending order; a level
    lasts until the next one begins."""
    found = np.zeros(int(bins.max(initial=0)) + 1, np.int64)
    np.maximum.at(found, bins, levels)
    earlier = np.searchsorted(bins, np.arange(len(found)), "left") - 1
    return np.maximum(found, np.where(earlier >= 0, levels[np.maximum(earlier, 0)], 0))


def _grouped(rows: NDArray[Any], packing: Packing) -> tuple[NDArray[Any], NDArray[Any]]:
    """Groups (dtype _GROUP, without `saved`) of rows, and the group of each row; adds to the rows
    what each of them saves alone."""
    movable = rows["pattern"] != DEAD_WRITE
    rows["saved"][movable] = packing.saved_alone(
        *(rows[name][movable] for name in ("start", "stop", "bytes"))
    )
    keys = np.stack([rows[name] for name in ("pattern", "site", "bytes")], axis=1)
    distinct, of = np.unique(keys.astype(np.int64), axis=0, return_inverse=True)
    groups, of = np.zeros(len(distinct), _GROUP), of.reshape(-1)
    for at, name in enumerate(("pattern", "site", "bytes")):
        groups[name] = distinct[:, at]
    groups["objects"] = np.bincount(of, minlength=len(distinct))
    for name in ("times", "written", "launches"):
        np.add.at(groups[name], of, rows[name])
    np.maximum.at(groups["longest"], of, rows["launches"])
    order = np.argsort(rows["saved"], kind="stable")
    groups["first"][of[order]] = order
    held = packing.at_peak(rows["start"], rows["stop"]) & movable
    np.add.at(groups["held"], of[held], rows["bytes"][held])
    return groups, of


def _intervals(rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    return rows["start"], rows["stop"], rows["bytes"]


def _together(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows (bool) whose changes can be made together. Memory is not used again by another object
    if it is freed after its last use, or if the other one has a change."""
    redundant = rows["pattern"] == REDUNDANT
    chosen = ~redundant & (rows["pattern"] != DEAD_WRITE)
    ends_late = chosen & np.isin(rows["pattern"], (LATE, LEAK))
    redundant &= ~np.isin(rows["partner"], rows["object"][ends_late])
    redundant &= ~np.isin(rows["object"], rows["object"][chosen])
    return np.asarray(chosen | redundant)


def _one_gap(gaps: NDArray[Any], packing: Packing) -> tuple[NDArray[Any], NDArray[Any]]:
    """For each object the gap at the peak, otherwise the longest one; and its number of gaps."""
    at_peak = packing.at_peak(gaps["start"], gaps["stop"])
    order = np.lexsort((gaps["launches"], at_peak, gaps["object"]))
    last = np.append(gaps["object"][order][1:] != gaps["object"][order][:-1], True)[: len(order)]
    _, counts = np.unique(gaps["object"], return_counts=True)
    return gaps[order[last]], counts


def _one_write(
    spans: NDArray[Any], sizes: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """For each object its dead write with most launches up to the next one; the number of its dead
    writes and their bytes."""
    order = np.lexsort((spans["launches"], spans["object"]))
    last = np.append(spans["object"][order][1:] != spans["object"][order][:-1], True)[: len(order)]
    objects, of, counts = np.unique(spans["object"], return_inverse=True, return_counts=True)
    written = np.zeros(len(objects), np.int64)
    np.add.at(written, of.reshape(-1), sizes)
    return spans[order[last]], counts, written
