"""Dependencies between instructions: which one last touched the same bytes, and how far away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.probes import Counter, PerPC, Shadow, TopK, probe
from pasta.processors.kernel_names import (
    INSTRUCTION_UNITS,
    at_line,
    instruction_columns,
    instruction_hidden,
    instruction_keys,
    instruction_place,
)
from pasta.processors.object_names import (
    ALIKE,
    ALIKE_HIDDEN,
    ALIKE_KEYS,
    OBJECT_HIDDEN,
    OBJECT_UNITS,
    TensorNames,
    has_tensors,
    object_columns,
    object_keys,
)
from pasta.processors.rows import combined, places_of
from pasta.table import Figure, Table, counted, formatted, shares
from pasta.tool import Finding, Result, Tool, option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

# What an access does, in the lowest bits of its word in the shadow: atomics read and write.
_READ, _WRITE, _ATOMIC = 1, 2, 3
_WHAT = 2
# Bits of the word above those: lane, warp, block, launch, instruction.  Blocks, launches and
# instructions are distinguished by this many low bits of their numbers.
_LANE, _WARP, _BLOCK, _LAUNCH, _PC = 2, 7, 12, 32, 44
_LANE_BITS, _WARP_BITS, _BLOCK_BITS, _LAUNCH_BITS, _PC_BITS = 5, 5, 20, 12, 20
#: log2 of the bytes of an instruction.
_PC_SHIFT = 4

#: Distances in ascending order; a number is an index.
DISTANCES = ("thread", "warp", "block", "grid", "launch")
_DISTANCE_BITS = 3
#: Kinds of dependences: the access, after the previous one.
DEPENDENCES = ("RAW", "WAR", "WAW", "RAR")
_PER_OBJECT = ("cold", *(f"after_{name}" for name in DISTANCES))
_OBJECT_FIELDS = ("granules", *_PER_OBJECT)
_OBJECT_LABELS = {
    "cold": "first touches",
    "after_thread": "after same thread",
    "after_warp": "same warp",
    "after_block": "same block",
    "after_grid": "other block",
    "after_launch": "other launch",
}
_MAX_FINDINGS = 5
_COUNT_BITS = 12
#: Granules of an access that are followed: those at the end of a longer transfer are not.
_MAX_GRANULES = (1 << _COUNT_BITS) - 1


@probe.function
def low_bits(value: int, bits: int) -> int:
    return value & ((1 << bits) - 1)


@probe.function
def distance_of(one: int, other: int) -> int:
    """Index in DISTANCES of the innermost scope common to both accesses."""
    differs = one ^ other
    if low_bits(differs >> _LAUNCH, _LAUNCH_BITS):
        return 4
    if low_bits(differs >> _BLOCK, _BLOCK_BITS):
        return 3
    if low_bits(differs >> _WARP, _WARP_BITS):
        return 2
    return low_bits(differs >> _LANE, _LANE_BITS) != 0


class PcDependency(Tool):
    """Dependencies between instructions through global memory, by distance and kind."""

    title = "Instruction dependencies"
    topic = "accesses"

    top = option(20, help="rows of each table in the text report; the tables have all", minimum=1)
    granule = option("4B", kind="bytes", help="bytes per granule, a power of two", minimum=1)
    granules = option(1 << 20, help="maximum number of granules of memory to follow", minimum=1)
    edges_kept = option(1 << 14, help="maximum number of distinct edges", minimum=1)
    redundant = option(
        0.1, help="finding: minimum share of an instruction's granules that the same thread "
                  "reads again",
        minimum=0.0,
    )  # fmt: skip
    shared = option(
        0.25, help="… and that the warp, the block, or other blocks read again", minimum=0.0
    )
    streaming = option(0.95, help="… and that are touched once", minimum=0.0)
    contended = option(
        0.5,
        help="… and of an atomic's granules, those last touched by an atomic of another thread",
        minimum=0.0,
    )
    at_least = option(0.05, help="… all findings: minimum share of all granules", minimum=0.0)

    last = Shadow(granularity=granule, capacity=granules)
    edges = TopK(edges_kept, capacity=edges_kept)
    instructions = PerPC("granules", "cold")
    objects = Counter(by="object", fields=_PER_OBJECT)

    @probe.global_memory
    def touch(access: Any, maps: Any, options: Any) -> None:
        """Exchange the last access of each granule, and count the edge to it."""
        what = _READ
        if access.is_write:
            what = _WRITE + access.is_atomic
        word = (
            what
            | access.lane << _LANE
            | low_bits(access.warp, _WARP_BITS) << _WARP
            | low_bits(access.block, _BLOCK_BITS) << _BLOCK
            | low_bits(access.epoch, _LAUNCH_BITS) << _LAUNCH
            | access.pc >> _PC_SHIFT << _PC
        )
        granules = cold = 0
        counts = 0  # by distance, in as many bits of a word each: a patch has few registers
        for i in range(_MAX_GRANULES):
            at = i * options.granule
            if at >= access.bytes:
                break
            address = access.address + at
            if access.rows > 1:
                width = access.bytes // access.rows
                address += at // width * (access.stride - width)
            previous = maps.last.exchange(address, word)
            granules += 1
            if previous == 0:
                cold += 1
            else:
                distance = distance_of(word, previous)
                counts += 1 << distance * _COUNT_BITS
                before = low_bits(previous >> _PC, _PC_BITS) << _DISTANCE_BITS | distance
                edge = low_bits(word >> _PC, _PC_BITS) << (_PC_BITS + _DISTANCE_BITS) | before
                maps.edges.add(edge << 2 * _WHAT | what << _WHAT | low_bits(previous, _WHAT))
        maps.instructions.add(access.pc, granules=granules, cold=cold)
        maps.objects.add(
            access.object,
            cold=cold,
            after_thread=low_bits(counts, _COUNT_BITS),
            after_warp=low_bits(counts >> _COUNT_BITS, _COUNT_BITS),
            after_block=low_bits(counts >> 2 * _COUNT_BITS, _COUNT_BITS),
            after_grid=low_bits(counts >> 3 * _COUNT_BITS, _COUNT_BITS),
            after_launch=low_bits(counts >> 4 * _COUNT_BITS, _COUNT_BITS),
        )

    def result(self) -> Result:
        """Edges, instructions and objects, those with the most granules first, and findings."""
        every = self.instructions.rows()
        edges = self._decoded(every["pc"])
        instructions = self._by_instruction(every, edges)
        tables = {
            "edges": self._edges(edges, int(every["granules"].sum())),
            "instructions": self._instructions(instructions),
            "objects": self._objects(),
        }
        if has_tensors(self.context):
            tables["tensors"] = self._tensors()
        return Result(
            summary=self._summary(every, edges),
            tables=tables,
            findings=list(self._findings(tables["instructions"], instructions)),
            figures={"distances": self._figure(every, edges)},
            notes=self._notes(every["pc"]),
        )

    # ---- edges

    def _decoded(self, pcs: NDArray[Any]) -> NDArray[Any]:
        """Edges as rows: pc and pc before, distance and kind as indices, whether both are atomic,
        and granules."""
        rows = self.edges.rows()
        key = rows["key"]
        edges = np.empty(
            len(rows),
            [("pc", "u8"), ("before", "u8"), ("distance", "u1"), ("kind", "u1"),
             ("atomic", "?"), ("granules", "u8")],
        )  # fmt: skip
        was, what = _field(key, 0, _WHAT), _field(key, _WHAT, _WHAT)
        reads = what == _READ
        wrote, read_before = was >= _WRITE, was == _READ
        kind = np.where(read_before, np.where(reads, 3, 1), 2)
        # an atomic reads: after a write it depends on the value
        edges["kind"] = np.where(wrote & (what != _WRITE), 0, kind)
        edges["atomic"] = (was == _ATOMIC) & (what == _ATOMIC)
        edges["distance"] = _field(key, 2 * _WHAT, _DISTANCE_BITS)
        at = 2 * _WHAT + _DISTANCE_BITS
        edges["before"], known_before = _with_tags(_field(key, at, _PC_BITS), pcs)
        edges["pc"], known = _with_tags(_field(key, at + _PC_BITS, _PC_BITS), pcs)
        edges["granules"] = rows["count"]
        return edges[known & known_before]  # a program that was killed may have lost instructions

    def _notes(self, pcs: NDArray[Any]) -> list[str]:
        alike = len(pcs) - len(np.unique(_tags(pcs)))
        if not alike:
            return []
        far = formatted(1 << (_PC_BITS + _PC_SHIFT), "bytes")
        return [
            f"{counted(alike, 'instruction')} a multiple of {far} after another: an edge may "
            "name either of them"
        ]

    def _by_instruction(self, every: NDArray[Any], edges: NDArray[Any]) -> NDArray[Any]:
        """Granules of each instruction: in all, touched for the first time, for the last, at least
        those touched only once, read again by distance, and atomically after another thread's
        atomic; the most first."""
        again = tuple(f"again_{name}" for name in DISTANCES)
        fields = ("granules", "cold", "last", "once", *again, "contended")
        found = np.zeros(len(every), [("pc", "u8"), *((name, "u8") for name in fields)])
        for name in ("pc", "granules", "cold"):
            found[name] = every[name]
        followed = np.zeros(len(every), np.uint64)
        np.add.at(followed, np.searchsorted(every["pc"], edges["before"]), edges["granules"])
        found["last"] = found["granules"] - np.minimum(followed, found["granules"])
        both = found["cold"] + found["last"]  # in first and last touches, once those in both
        found["once"] = both - np.minimum(both, found["granules"])
        at = np.searchsorted(every["pc"], edges["pc"])
        for number, name in enumerate(again):
            some = (edges["kind"] == 3) & (edges["distance"] == number)
            np.add.at(found[name], at[some], edges["granules"][some])
        some = edges["atomic"] & (edges["distance"] > 0)
        np.add.at(found["contended"], at[some], edges["granules"][some])
        return found[np.argsort(-found["granules"].astype(np.float64), kind="stable")]

    # ---- tables

    def _edges(self, edges: NDArray[Any], granules: int) -> Table:
        keys = ("pc", "before", "distance", "kind")
        edges = combined(edges[[*keys, "granules"]], keys)
        edges = edges[np.argsort(-edges["granules"].astype(np.float64), kind="stable")]
        here = instruction_columns(self.context, edges["pc"])
        before = instruction_columns(self.context, edges["before"])
        named = {f"previous_{name}": before[name] for name in ("kernel", "line", "offset", "pc")}
        hidden = instruction_hidden(here)
        return Table(
            {
                **here,
                **named,
                "distance": [DISTANCES[each] for each in edges["distance"].tolist()],
                "kind": [DEPENDENCES[each] for each in edges["kind"].tolist()],
                "granules": edges["granules"],
                "share": shares(edges["granules"], granules),
            },
            units={
                **INSTRUCTION_UNITS,
                **{f"previous_{name}": unit for name, unit in INSTRUCTION_UNITS.items()},
                "share": "share",
            },
            labels={
                "previous_kernel": "after kernel",
                "previous_line": "after line",
                "previous_offset": "after offset",
                "share": "of all granules",
            },
            keys=(
                *instruction_keys(here), *(f"previous_{each}" for each in instruction_keys(here)),
                "distance", "kind",
            ),
            sums=("granules",),
            important=("offset", "previous_offset", "distance", "kind", "granules", "share"),
            title="Accesses and the previous accesses to the same bytes, most granules first",
            shown=self.top,
            hidden=hidden | {f"previous_{name}" for name in hidden} | {"operators"},
        )  # fmt: skip

    def _instructions(self, rows: NDArray[Any]) -> Table:
        where = instruction_columns(self.context, rows["pc"])
        granules = int(rows["granules"].sum())
        again = {f"again_{name}": rows[f"again_{name}"] for name in DISTANCES}
        return Table(
            {
                **where,
                "granules": rows["granules"],
                "share": shares(rows["granules"], granules),
                "cold": rows["cold"],
                "last": rows["last"],
                "once": rows["once"],
                **again,
                "contended": rows["contended"],
            },
            units={**INSTRUCTION_UNITS, "share": "share"},
            labels={
                "share": "of all granules",
                "cold": "first touches",
                "last": "last touches",
                "once": "only touches",
                "again_thread": "read again by thread",
                "again_warp": "by warp",
                "again_block": "by block",
                "again_grid": "by grid",
                "again_launch": "by a later launch",
                "contended": "atomics after atomics",
            },
            keys=instruction_keys(where),
            sums=("granules", "cold", "last", "once", *again, "contended"),
            important=("offset", "granules", "share", "cold"),
            title="Instructions by granules of global memory",
            shown=self.top,
            hidden=instruction_hidden(where) | {"last", "once", "contended"},
        )

    def _objects(self) -> Table:
        rows = self._object_rows()
        rows = rows[np.argsort(-rows["granules"].astype(np.float64), kind="stable")]
        return Table(
            {
                **object_columns(self.context, rows["object"]),
                **{name: rows[name] for name in _OBJECT_FIELDS},
            },
            units=OBJECT_UNITS,
            labels=_OBJECT_LABELS,
            keys=object_keys(self.context),
            sums=_OBJECT_FIELDS,
            important=("granules", "cold"),
            title="Objects: granules by distance to the previous access",
            shown=self.top,
            hidden=OBJECT_HIDDEN,
        )

    def _object_rows(self) -> NDArray[Any]:
        """Granules of each object, in all, for the first time, and by distance."""
        rows = self.objects.rows()
        found = np.empty(len(rows), [("object", "i8"), *((name, "u8") for name in _OBJECT_FIELDS)])
        for name in rows.dtype.names or ():
            found[name] = rows[name]
        found["granules"] = np.sum([rows[name] for name in _PER_OBJECT], axis=0)
        return found

    def _tensors(self) -> Table:
        columns, found = TensorNames(self.context).alike(self._object_rows(), "granules")
        return Table(
            {
                **columns,
                "tensors": found["tensors"],
                **{name: found[name] for name in _OBJECT_FIELDS},
            },
            labels=_OBJECT_LABELS,
            keys=ALIKE_KEYS,
            sums=("tensors", *_OBJECT_FIELDS),
            title=f"Granules of tensors, {ALIKE}",
            shown=self.top,
            hidden=ALIKE_HIDDEN,
        )

    def _figure(self, every: NDArray[Any], edges: NDArray[Any]) -> Figure:
        series = {}
        for number, name in enumerate(DEPENDENCES):
            counts = np.zeros(len(DISTANCES) + 1, np.uint64)
            mine = edges[edges["kind"] == number]
            np.add.at(counts, mine["distance"].astype(np.intp) + 1, mine["granules"])
            series[name] = counts
        first = np.zeros(len(DISTANCES) + 1, np.uint64)
        first[0] = every["cold"].sum()
        return Figure(
            "bar",
            "Granules by distance to the previous access",
            ["first touch", *DISTANCES],
            {"first touch": first, **series},
            y_label="granules",
        )

    # ---- findings

    def _findings(self, table: Table, rows: NDArray[Any]) -> Iterator[Finding]:
        whole = max(int(rows["granules"].sum()), 1)
        size = formatted(self.granule, "bytes")
        reread = "bytes are read again by"
        patterns = (
            ("again_thread", self.redundant, f"{reread} the same thread",
             "keep them in registers", "medium"),
            ("again_warp", self.shared, f"{reread} other lanes of the warp",
             "read them once per warp, or keep them in constant memory", "low"),
            ("again_block", self.shared, f"{reread} other warps of the block",
             "keep them in shared memory", "medium"),
            ("again_grid", self.shared, f"{reread} other blocks",
             "use larger tiles, or run blocks that share bytes together, for reuse in L2",
             "low"),
            ("contended", self.contended, "many threads contend for the same bytes with atomics",
             "reduce in the warp or in shared memory, then issue one atomic per block", "medium"),
            ("once", self.streaming, "bytes are touched once",
             "load or store them with a streaming hint (__ldcs, __stcs), to leave L2 to others",
             "low"),
        )  # fmt: skip
        named = list(table.rows(_MAX_FINDINGS))
        for field, threshold, what, remedy, confidence in patterns:
            for row, place in zip(rows, named, strict=False):
                amount, all = int(row[field]), int(row["granules"])
                if all < self.at_least * whole or amount <= threshold * all:
                    continue
                yield Finding(
                    what=what,
                    where=instruction_place(place),
                    evidence=f"{formatted(amount / all, 'share')} of its {all:,} accesses to "
                    f"granules of {size}",
                    remedy=at_line(place, remedy),
                    gain=None if field == "once" else amount / whole,
                    of="accesses to global memory",
                    confidence=confidence,
                )

    def _summary(self, every: NDArray[Any], edges: NDArray[Any]) -> str:
        granules, cold = int(every["granules"].sum()), int(every["cold"].sum())
        if not granules:
            return "no global memory accesses were recorded"
        text = (
            f"{counted(granules, 'access')} to granules of {formatted(self.granule, 'bytes')},"
            f" {formatted(cold / granules, 'share')} first touches"
        )
        by_kind = [int(edges["granules"][edges["kind"] == n].sum()) for n in range(4)]
        for name, amount in zip(DEPENDENCES, by_kind, strict=True):
            if amount:
                text += f", {formatted(amount / granules, 'share')} {name}"
        return text


def _field(key: NDArray[Any], at: int, bits: int) -> NDArray[Any]:
    return np.asarray((key >> np.uint64(at)) & np.uint64((1 << bits) - 1))


def _tags(pcs: NDArray[Any]) -> NDArray[Any]:
    """The bits of instructions that words and edges have."""
    return _field(pcs, _PC_SHIFT, _PC_BITS)


def _with_tags(tags: NDArray[Any], pcs: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The first of these instructions with each tag, and for which tags there is one (bool)."""
    distinct, first = np.unique(_tags(pcs), return_index=True)
    at, known = places_of(distinct, tags)
    found = np.zeros(len(tags), np.uint64)
    found[known] = pcs[first[at]]
    return found, known
