"""Which parts of which objects kernels access most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.probes import Histogram, probe
from pasta.processors.object_names import (
    OBJECT_HIDDEN,
    OBJECT_UNITS,
    object_columns,
    object_names,
    object_sizes,
)
from pasta.table import Figure, Table, formatted, shares
from pasta.tool import Result, Tool, option

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Of a heat map; an object with more bins shows several in each.
_POINTS = 512


class Hotness(Tool):
    """Accesses to each part of each object: heat maps of the objects that are accessed most."""

    top = option(10, help="heat maps, and rows of each table in the text report", minimum=1)
    bin = option("4KiB", kind="bytes", help="bytes of a part; on a GPU a power of two", minimum=1)
    heat = Histogram(by="object", bin=bin)

    @probe.global_memory
    def touch(access: Any, maps: Any) -> None:
        maps.heat.add(access.object, access.offset)

    def result(self) -> Result:
        rows = self.heat.rows()
        objects = self._by_object(rows)
        return Result(
            summary=self._summary(objects),
            tables={"objects": self._objects(objects), "bins": self._bins(rows, objects)},
            figures=self._heat_maps(rows, objects),
        )

    def _by_object(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Objects that were accessed, most accesses first."""
        fields = ("accesses", "touched", "bins", "hottest", "most")
        ids, starts = np.unique(rows["object"], return_index=True)
        found = np.zeros(len(ids), [("object", "i8"), *((name, "u8") for name in fields)])
        found["object"] = ids
        if len(ids):
            ends = np.append(starts[1:], len(rows))
            found["accesses"] = np.add.reduceat(rows["count"], starts)
            found["touched"] = ends - starts
            found["most"] = np.maximum.reduceat(rows["count"], starts)
            sizes = object_sizes(self.context.objects, ids)
            found["bins"] = np.maximum(-(-sizes.astype(np.int64) // self.bin), 1)
            found["hottest"] = [
                rows["bin"][start + rows["count"][start:end].argmax()]
                for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
            ]
        return found[np.argsort(-found["accesses"].astype(np.float64), kind="stable")]

    def _objects(self, objects: NDArray[Any]) -> Table:
        known = objects["object"] >= 0
        return Table(
            {
                **object_columns(self.context.objects, objects["object"]),
                "accesses": objects["accesses"],
                "share": shares(objects["accesses"], int(objects["accesses"].sum())),
                "bins_touched": np.ma.MaskedArray(objects["touched"], mask=~known),
                "bins": np.ma.MaskedArray(objects["bins"], mask=~known),
                "hottest": np.ma.MaskedArray(objects["hottest"] * np.uint64(self.bin), mask=~known),
                "hottest_share": np.ma.MaskedArray(
                    objects["most"] / np.maximum(objects["accesses"], 1), mask=~known
                ),
            },
            units={
                "share": "share",
                "hottest": "address",
                "hottest_share": "share",
                **OBJECT_UNITS,
            },
            labels={
                "share": "of accesses to global memory",
                "bins_touched": "parts touched",
                "bins": "parts",
                "hottest": "hottest at",
                "hottest_share": "of the object's accesses",
            },
            title=f"Objects by accesses, in parts of {formatted(self.bin, 'bytes')}",
            shown=self.top,
            hidden=OBJECT_HIDDEN,
        )

    def _bins(self, rows: NDArray[Any], objects: NDArray[Any]) -> Table:
        """All parts that were touched, hottest first."""
        at = np.searchsorted(objects["object"], rows["object"], sorter=_order(objects))
        whole = objects["accesses"][_order(objects)][at]
        hottest = np.argsort(-rows["count"].astype(np.float64), kind="stable")
        rows, whole = rows[hottest], whole[hottest]
        return Table(
            {
                **object_columns(self.context.objects, rows["object"]),
                "bin": rows["bin"],
                "offset": rows["bin"] * np.uint64(self.bin),
                "count": rows["count"],
                "share": rows["count"] / np.maximum(whole, 1),
            },
            units={"offset": "address", "share": "share", **OBJECT_UNITS},
            labels={"count": "accesses", "share": "of the object's accesses"},
            title="Hottest parts",
            shown=self.top,
            hidden=OBJECT_HIDDEN | {"bin"},
        )

    def _heat_maps(self, rows: NDArray[Any], objects: NDArray[Any]) -> dict[str, Figure]:
        figures = {}
        known = objects[objects["object"] >= 0][: self.top]
        names = object_names(self.context.objects, known["object"])
        for name, object in zip(names, known, strict=True):
            mine = rows[rows["object"] == object["object"]]
            width = -(-int(object["bins"]) // _POINTS)
            counts = np.zeros(-(-int(object["bins"]) // width), np.uint64)
            np.add.at(counts, (mine["bin"] // np.uint64(width)).astype(np.intp), mine["count"])
            figures[f"object_{object['object']}"] = Figure(
                "bar",
                f"Accesses to {name}",
                np.arange(len(counts)) * (width * self.bin),
                {"accesses": counts},
                x_label="offset",
                x_unit="bytes",
                y_label=f"accesses per {formatted(width * self.bin, 'bytes')}",
            )
        return figures

    def _summary(self, objects: NDArray[Any]) -> str:
        accesses = int(objects["accesses"].sum())
        if not accesses:
            return "no access to global memory was seen"
        known = objects[objects["object"] >= 0]
        parts = [f"{accesses:,} accesses to {len(known):,} objects"]
        if len(known):
            (name,) = object_names(self.context.objects, known["object"][:1])
            share = formatted(int(known["accesses"][0]) / accesses, "share")
            parts[0] += f"; most: {name}, {share} of accesses to global memory"
        unknown = accesses - int(known["accesses"].sum())
        if unknown:
            share = formatted(unknown / accesses, "share")
            parts.append(f"{share} of them were to no known object")
        return "; ".join(parts)


def _order(objects: NDArray[Any]) -> NDArray[Any]:
    return np.argsort(objects["object"])
