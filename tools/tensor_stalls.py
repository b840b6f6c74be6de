"""Stalled warps: the tensor that each was waiting for, and the Python line that created it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pasta.errors import ToolError
from pasta.lazy import np
from pasta.probes import Counter, probe
from pasta.processors.object_names import (
    ALIKE,
    ALIKE_HIDDEN,
    ALIKE_KEYS,
    TensorNames,
    has_tensors,
    object_columns,
)
from pasta.processors.rows import places_of
from pasta.stalls.analysis import stalls_of
from pasta.stalls.charge import access_type, launch_times
from pasta.stalls.result import DESCRIBED
from pasta.stalls.samples import StallSamples
from pasta.stalls.views import Views
from pasta.table import Table, counted, formatted, shares
from pasta.tool import Result, Tool, option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pasta.processors.batch import Batch

_MODES = ("both", "accesses", "stalls", "kernel_replay")


class TensorStalls(Tool):
    """Stalls of warps by the tensor that they waited for, and by the line that made it."""

    title = "Stalls charged to tensors"
    topic = "time"
    needs = ("operators", "tensors")
    estimates = True

    top = option(10, help="rows of each table in the text report; the tables have all", minimum=1)
    mode = option(
        "both",
        choices=_MODES,
        help="passes to run: both, accesses or stalls; kernel_replay requires a driver that "
        "allows it",
    )
    pairs = option(
        1024, help="maximum number of (load, tensor) pairs counted in a launch, on a GPU", minimum=1
    )
    places = option(
        1 << 22, help="maximum number of rows (launch, load, tensor) to keep", minimum=1
    )

    loads = Counter(
        by=("launch", "object", "pc"), fields=("accesses", "bytes"), pairs=pairs, capacity=places
    )

    @probe.global_memory
    def count(access: Any, maps: Any) -> None:
        """Count a lane's read by object and instruction."""
        if access.is_read:
            maps.loads.add(access.object, access.pc, accesses=1, bytes=access.bytes)

    @property
    def passes(self) -> tuple[str, ...]:
        """Passes of a program that runs twice which the mode wants."""
        return {"accesses": ("accesses",), "stalls": ("times",)}.get(self.mode, super().passes)

    @classmethod
    def kinds(cls) -> frozenset[str]:
        """Event kinds that the tool follows."""
        return StallSamples.KINDS | Views.KINDS

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        """Raises ToolError for a mode that no driver allows."""
        super().__init__(options)
        if self.mode == "kernel_replay":
            raise ToolError(
                "tensor_stalls.mode = kernel_replay samples and patches kernels in one "
                "process, which the vendors' libraries do not allow",
                remedy="use mode both: the program runs twice, and the passes are joined",
            )

    def start(self) -> None:
        """Begin without samples and views."""
        self.samples = StallSamples()
        self.views = Views()

    def on_batch(self, batch: Batch) -> None:
        """Follow launches, samples and tensors."""
        self.samples.feed(batch)
        self.views.feed(self.context, batch)

    def result(self) -> Result:
        """Accesses by load and tensor; with samples in the same run, stalls too."""
        accesses = self._accesses()
        objects = self._objects(np.unique(accesses["object"][accesses["object"] >= 0]))
        forest = self.views.forest(self.context, objects)
        tables = {
            "objects": objects,
            "accesses": self._table(accesses),
            "functions": self._functions(),
            "views": forest.table(),
        }
        if has_tensors(self.context):
            tables["accessed"] = self._accessed(accesses)
        files = {"forest.json": forest.write}
        if self.samples.is_empty:
            return Result(self._summary(accesses), tables, files=files)
        samples, strings = self.samples.rows(), self.context.strings
        functions = self.samples.functions(strings)
        ids = np.unique(samples["reason"]).tolist()
        accesses["time"] = launch_times(self.samples.launches(), accesses["launch"])
        stalls = stalls_of(
            functions, samples, {id: strings[id] if id else "" for id in ids}, accesses, objects,
            self.context.images, self.top,
        )  # fmt: skip
        found = stalls.result(self.samples.notes(strings))
        return replace(found, tables={**found.tables, **tables}, files=stalls.files(forest))

    def _accesses(self) -> NDArray[Any]:
        """Accesses (`access_type`) by launch, function and load. Loads in functions that are not
        in the kernel's code have offsets beyond it."""
        rows, launches = self.loads.rows(), self.samples.launches()
        found = np.zeros(len(rows), access_type())
        for name in ("launch", "object", "accesses", "bytes"):
            found[name] = rows[name]
        at, known = places_of(launches["launch"], rows["launch"])
        found["function"] = -1
        found["function"][known] = launches["function"][at]
        found["pc"] = rows["pc"]
        entry = launches["pc"][at]
        inside = (entry != ~np.uint64(0)) & (rows["pc"][known] >= entry)
        found["pc"][np.flatnonzero(known)[inside]] -= entry[inside]
        return found

    def _functions(self) -> Table:
        functions = self.samples.functions(self.context.strings)
        return Table(
            {
                "function": [each.name for each in functions],
                "module": [
                    None if each.module is None else f"{each.module:016x}" for each in functions
                ],
            },
            title="Functions, by their number in accesses",
            shown=0,
        )

    def _table(self, accesses: NDArray[Any]) -> Table:
        names = ("launch", "function", "pc", "object", "accesses", "bytes")
        return Table(
            {name: accesses[name] for name in names},
            units={"pc": "address", "bytes": "bytes"},
            labels={"pc": "offset of the load"},
            title="Reads by launch, load and object",
            keys=(),
            sums=("accesses", "bytes"),
            probed=dict.fromkeys(("accesses", "bytes")),
            shown=0,
        )

    def _objects(self, ids: NDArray[Any]) -> Table:
        columns, count = object_columns(self.context, ids), len(ids)
        described: dict[str, list[Any]] = {
            name: list(columns.get(f"object_{name}", [None] * count)) for name in DESCRIBED
        }
        described["strides"] = self.views.strides(self.context, ids)
        for at, (category, memory) in enumerate(
            zip(described["category"], columns["memory"], strict=True)
        ):
            if category is None:  # no tensor: as allocated, by its number in the run
                described["category"][at] = memory
                described["name"][at] = f"allocation {ids[at]}"
        return Table(
            {
                "object_id": ids,
                "object": columns["object"],
                "bytes": columns["object_bytes"],
                "generation": self.views.generations(self.context, ids),
                **described,
            },
            units={"bytes": "bytes"},
            title="Objects that loads read",
            keys=("category", "shape", "operator", "module", "line"),
            sums=(),
            shown=0,
        )

    def _accessed(self, accesses: NDArray[Any]) -> Table:
        rows = self._in_all_launches(accesses)
        columns, found = TensorNames(self.context).alike(rows, "bytes")
        total = float(rows["bytes"].sum())
        return Table(
            {
                **columns,
                **{name: found[name] for name in ("tensors", "accesses", "bytes")},
                "share": shares(found["bytes"], total),
            },
            units={"bytes": "bytes", "share": "share"},
            labels={"bytes": "bytes read", "share": "of bytes read"},
            title=f"Reads of tensors, {ALIKE}",
            keys=ALIKE_KEYS,
            sums=("tensors", "accesses", "bytes"),
            shown=self.top,
            hidden=ALIKE_HIDDEN,
        )

    def _in_all_launches(self, accesses: NDArray[Any]) -> NDArray[Any]:
        """Accesses and bytes by object."""
        rows = accesses[["launch", "object", "accesses", "bytes"]]
        return self.context.sampling.totals(rows, "object")

    def _summary(self, accesses: NDArray[Any]) -> str:
        known = accesses[accesses["object"] >= 0]
        loads = len(np.unique(accesses[["function", "pc"]]))
        bytes = int(self._in_all_launches(accesses)["bytes"].sum())
        scope = self.context.sampling.scope_text(self.loads.estimates())
        scope = f", estimated for {scope}" if scope else ""
        return (
            f"{counted(loads, 'load')} read {formatted(bytes, 'bytes')} of "
            f"{counted(len(np.unique(known['object'])), 'object')}{scope}; no stalls: this "
            "run has no samples (docs/tools/tensor_stalls.md)"
        )
