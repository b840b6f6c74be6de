"""Hot parts of objects: which parts kernels access most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.probes import Histogram, probe
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
    object_names,
    object_sizes,
)
from pasta.processors.rows import combined, group_starts
from pasta.table import Column, Figure, Table, Unit, absent_where, counted, formatted, shares
from pasta.tool import Finding, Result, Tool, option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

#: Maximum number of points of a heat map; for larger objects a point covers several bins.
_MAX_POINTS = 512
_MAX_FINDINGS = 10
_PART_UNITS: dict[str, Unit] = {"hottest": "address", "hottest_share": "share"}
_PART_LABELS = {
    "bins_touched": "parts touched",
    "bins": "parts",
    "hottest": "hottest at",
    "hottest_share": "of the object's accesses",
}


class Hotness(Tool):
    """Accesses to each part of each object: heat maps of the most accessed objects."""

    title = "Hot parts of objects"
    topic = "accesses"

    top = option(10, help="heat maps, and rows of each table in the text report", minimum=1)
    bin = option("4KiB", kind="bytes", help="bytes of a part; on a GPU a power of two", minimum=1)
    window = option(
        0, help="accesses per time window, which ends with a launch; 0: no windows", minimum=0
    )
    hot = option(
        0.25, help="finding: minimum share of accesses that go to one small object", minimum=0.0
    )
    hot_bytes = option("48KiB", kind="bytes", help="objects up to this size count as small")
    hot_accesses = option(
        1_000_000, help="finding: minimum number of accesses in the run", minimum=1
    )
    heat = Histogram(by="object", bin=bin, window=window)

    @probe.global_memory
    def touch(access: Any, maps: Any) -> None:
        """Count a lane's access by object and offset."""
        maps.heat.add(access.object, access.offset)

    def result(self) -> Result:
        """Tables by object and bin, by tensor and window if there are any, and heat maps."""
        windows = self.heat.rows()
        rows = combined(windows[["object", "bin", "count"]], ("object", "bin"))
        objects = self._by(("object",), rows)
        objects = objects[np.argsort(-objects["accesses"].astype(np.float64), kind="stable")]
        tables = {"objects": self._objects(objects), "bins": self._bins(rows, objects)}
        if has_tensors(self.context):
            tables["tensors"] = self._tensors(objects)
        figures = self._heat_maps(rows, objects)
        if self.window:
            by_window = self._by(("window", "object"), windows)
            tables["windows"] = self._windows(by_window)
            tables["window_bins"] = self._window_bins(windows)
            figures["windows"] = self._over_time(by_window, objects)
        return Result(
            summary=self._summary(objects),
            tables=tables,
            findings=list(self._findings(tables["objects"])),
            figures=figures,
        )

    def _findings(self, objects: Table) -> Iterator[Finding]:
        """Small objects with many accesses; the table lists the hottest first."""
        if int(objects.columns["accesses"].sum()) < self.hot_accesses:
            return
        for row in objects.rows(_MAX_FINDINGS):
            if row["share"] < self.hot:
                return
            size = row["object_bytes"]
            if size is None or not 0 < size <= self.hot_bytes:
                continue
            yield Finding(
                what="a small object receives many of the accesses to global memory",
                where=row["object"],
                evidence=f"{counted(row['accesses'], 'access')}, "
                f"{formatted(row['share'], 'share')} of all; "
                f"{row['accesses'] / size:,.3g} per byte",
                remedy="keep it in shared or constant memory, or in registers",
                gain=row["share"],
                of="accesses to global memory",
                confidence="low",
            )

    def _by(self, keys: tuple[str, ...], rows: NDArray[Any]) -> NDArray[Any]:
        """Accesses, touched parts, and the hottest part, for each distinct key."""
        fields = ("accesses", "touched", "bins", "hottest", "most")
        hottest_first = ~rows["count"]
        rows = rows[np.lexsort([hottest_first, *(rows[key] for key in reversed(keys))])]
        types = [*((key, rows.dtype[key]) for key in keys), *((name, "u8") for name in fields)]
        starts = group_starts(rows, keys)
        found = np.zeros(len(starts), types)
        if len(starts):
            for key in keys:
                found[key] = rows[key][starts]
            found["accesses"] = np.add.reduceat(rows["count"], starts)
            found["touched"] = np.diff(starts, append=len(rows))
            found["most"], found["hottest"] = rows["count"][starts], rows["bin"][starts]
            sizes = object_sizes(self.context.objects, found["object"])
            found["bins"] = np.maximum(-(-sizes.astype(np.int64) // self.bin), 1)
        return found

    def _parts(self, rows: NDArray[Any]) -> dict[str, Column]:
        """Columns of parts, from rows of `_by`; absent for accesses to no known object."""
        unknown = rows["object"] < 0
        return {
            "bins_touched": absent_where(rows["touched"], unknown),
            "bins": absent_where(rows["bins"], unknown),
            "hottest": absent_where(rows["hottest"] * np.uint64(self.bin), unknown),
            "hottest_share": absent_where(rows["most"] / np.maximum(rows["accesses"], 1), unknown),
        }

    def _windows(self, rows: NDArray[Any]) -> Table:
        """Accesses over time: a row for each window and object."""
        return Table(
            {
                "window": rows["window"],
                **object_columns(self.context, rows["object"]),
                "accesses": rows["accesses"],
                **self._parts(rows),
            },
            units={**_PART_UNITS, **OBJECT_UNITS},
            labels={**_PART_LABELS, "hottest_share": "of its accesses"},
            keys=("window", *object_keys(self.context)),
            sums=("accesses",),
            title=f"Objects by windows of {counted(self.window, 'access')}",
            shown=self.top,
            hidden=OBJECT_HIDDEN,
        )

    def _window_bins(self, rows: NDArray[Any]) -> Table:
        return Table(
            {
                "window": rows["window"],
                **object_columns(self.context, rows["object"]),
                "bin": rows["bin"],
                "offset": rows["bin"] * np.uint64(self.bin),
                "count": rows["count"],
            },
            units={"offset": "address", **OBJECT_UNITS},
            labels={"count": "accesses"},
            keys=("window", *object_keys(self.context), "offset"),
            sums=("count",),
            title="Parts by window",
            shown=0,
            hidden=OBJECT_HIDDEN | {"bin"},
        )

    def _over_time(self, rows: NDArray[Any], objects: NDArray[Any]) -> Figure:
        count = int(rows["window"].max()) + 1 if len(rows) else 0
        ids = objects["object"][: self.top]
        series = {}
        for name, id in zip(object_names(self.context, ids), ids.tolist(), strict=True):
            mine = rows[rows["object"] == id]
            accesses = np.zeros(count, np.uint64)
            accesses[mine["window"].astype(np.intp)] = mine["accesses"]
            series[name] = accesses
        return Figure(
            "line",
            "Accesses to objects over time",
            np.arange(count),
            series,
            x_label=f"window of {counted(self.window, 'access')}",
            y_label="accesses",
        )

    def _objects(self, objects: NDArray[Any]) -> Table:
        return Table(
            {
                **object_columns(self.context, objects["object"]),
                "accesses": objects["accesses"],
                "share": shares(objects["accesses"], int(objects["accesses"].sum())),
                **self._parts(objects),
            },
            units={"share": "share", **_PART_UNITS, **OBJECT_UNITS},
            labels={"share": "of accesses to global memory", **_PART_LABELS},
            keys=object_keys(self.context),
            sums=("accesses", "bins_touched"),
            levels=("hottest_share",),
            title=f"Objects by accesses, in parts of {formatted(self.bin, 'bytes')}",
            shown=self.top,
            hidden=OBJECT_HIDDEN,
        )

    def _tensors(self, objects: NDArray[Any]) -> Table:
        columns, found = TensorNames(self.context).alike(
            objects[["object", "accesses"]], "accesses"
        )
        return Table(
            {
                **columns,
                "tensors": found["tensors"],
                "accesses": found["accesses"],
                "share": shares(found["accesses"], int(objects["accesses"].sum())),
            },
            units={"share": "share"},
            labels={"share": "of accesses to global memory"},
            keys=ALIKE_KEYS,
            sums=("accesses", "tensors"),
            title=f"Accesses to tensors, {ALIKE}",
            shown=self.top,
            hidden=ALIKE_HIDDEN,
        )

    def _bins(self, rows: NDArray[Any], objects: NDArray[Any]) -> Table:
        """All touched parts, hottest first."""
        at = np.searchsorted(objects["object"], rows["object"], sorter=_order(objects))
        whole = objects["accesses"][_order(objects)][at]
        hottest = np.argsort(-rows["count"].astype(np.float64), kind="stable")
        rows, whole = rows[hottest], whole[hottest]
        return Table(
            {
                **object_columns(self.context, rows["object"]),
                "bin": rows["bin"],
                "offset": rows["bin"] * np.uint64(self.bin),
                "count": rows["count"],
                "share": rows["count"] / np.maximum(whole, 1),
            },
            units={"offset": "address", "share": "share", **OBJECT_UNITS},
            labels={"count": "accesses", "share": "of the object's accesses"},
            keys=(*object_keys(self.context), "offset"),
            sums=("count",),
            title="Hottest parts",
            shown=self.top,
            hidden=OBJECT_HIDDEN | {"bin"},
        )

    def _heat_maps(self, rows: NDArray[Any], objects: NDArray[Any]) -> dict[str, Figure]:
        figures = {}
        known = objects[objects["object"] >= 0][: self.top]
        names = object_names(self.context, known["object"])
        for name, object in zip(names, known, strict=True):
            mine = rows[rows["object"] == object["object"]]
            width = -(-int(object["bins"]) // _MAX_POINTS)
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
            return "no global memory accesses were recorded"
        known = objects[objects["object"] >= 0]
        parts = [f"{counted(accesses, 'access')} to {counted(len(known), 'object')}"]
        if len(known):
            (name,) = object_names(self.context, known["object"][:1])
            share = formatted(int(known["accesses"][0]) / accesses, "share")
            parts[0] += f"; most accessed: {name}, {share} of accesses to global memory"
        unknown = accesses - int(known["accesses"].sum())
        if unknown:
            share = formatted(unknown / accesses, "share")
            parts.append(f"{share} of them were outside known objects")
        return "; ".join(parts)


def _order(objects: NDArray[Any]) -> NDArray[Any]:
    return np.argsort(objects["object"])
