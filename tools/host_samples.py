"""Processor time of the host by thread, function and call path, from samples of call stacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.groups import Groups
from pasta.processors.path_columns import combined_paths
from pasta.table import Table, counted, formatted, shares
from pasta.tool import Finding, Result, Tool, option

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.stacks import Frame

#: Maximum number of distinct (thread, stack) pairs.
_LIMIT = 1 << 18
_NO_SAMPLES = "no samples: record with pasta-preload --perf"
_UNKNOWN = "(unknown)"
#: Function, and file.
_Place = tuple[str, str]


class HostSamples(Tool):
    """Processor time of the host by thread, function and call path, from samples of call stacks."""

    title = "Host processor time"
    topic = "time"

    needs = ("stacks",)

    @property
    def passes(self) -> tuple[str, ...]:
        """Probes would be sampled too."""
        return ("times",)

    top = option(10, help="rows of each table in the text report", minimum=1)
    least_share = option(
        0.3, help="finding: minimum share of processor time in one line", minimum=0.0
    )
    least_time = option("1s", kind="duration", help="… and minimum processor time in that line")

    def start(self) -> None:
        """Initialize the sums."""
        self.groups = Groups(_LIMIT, "time")  # by thread, stack, in the kernel or not
        self.periods = Groups(16)
        self.lost = self.truncated = self.left_out = 0

    def on_host_samples(self, samples: NDArray[Any]) -> None:
        """Add samples to their threads and stacks."""
        time = samples["period"].astype(np.int64)
        codes = self.groups.add(
            samples["thread"], samples["stack"], samples["in_kernel"] != 0, time=time
        )
        self.left_out += int(time[codes < 0].sum())
        self.periods.add(samples["period"])
        self.lost += int(samples["lost"].sum(dtype=np.int64))
        self.truncated += int((samples["truncated"] == 1).sum())

    def result(self) -> Result:
        """Tables by thread, function and call path."""
        rows = self._rows()
        if not len(rows):
            return Result(summary=_NO_SAMPLES)
        places = {stack: self._places(stack) for stack in np.unique(rows["stack"]).tolist()}
        functions = self._functions(rows, places)
        lines = self._lines(rows)
        return Result(
            summary=self._summary(rows, functions),
            tables={
                "functions": functions,
                "call_paths": self._call_paths(rows),
                "threads": self._threads(rows, places),
                "lines": lines,
            },
            findings=list(self._findings(lines, int(rows["time"].sum()))),
            notes=list(self._notes(rows)),
        )

    def _rows(self) -> NDArray[Any]:
        """Sums by thread, stack, and whether in the kernel."""
        names = [("thread", "u4"), ("stack", "u4"), ("in_kernel", "?")]
        rows = np.zeros(len(self.groups), [*names, ("count", "i8"), ("time", "i8")])
        if len(rows):
            for at, (name, _) in enumerate(names):
                rows[name] = self.groups.column(at)
            rows["count"], rows["time"] = self.groups.count, self.groups.sum("time")
        return rows

    def _by(self, rows: NDArray[Any], name: str) -> NDArray[Any]:
        """Sums of the rows with an equal value, the most time first."""
        values, first, of = np.unique(rows[name], return_index=True, return_inverse=True)
        sums = np.zeros(len(values), [*rows.dtype.descr, ("kernel_time", "i8")])
        sums["stack"], sums["thread"] = rows["stack"][first], rows["thread"][first]
        for field in ("count", "time"):
            np.add.at(sums[field], of.reshape(-1), rows[field])
        np.add.at(sums["kernel_time"], of.reshape(-1), rows["time"] * rows["in_kernel"])
        found: NDArray[Any] = sums[np.lexsort((values, -sums["time"]))]
        return found

    def _threads(self, rows: NDArray[Any], places: dict[int, list[_Place]]) -> Table:
        by_thread = self._by(rows, "thread")
        total = by_thread["time"].sum()
        most: dict[int, dict[str, int]] = {}
        for thread, stack, time in rows[["thread", "stack", "time"]].tolist():
            of_thread, (function, _) = most.setdefault(thread, {}), places[stack][-1]
            of_thread[function] = of_thread.get(function, 0) + time
        return Table(
            {
                "thread": by_thread["thread"].astype(np.int64),
                "samples": by_thread["count"],
                "time": by_thread["time"],
                "share": shares(by_thread["time"], total),
                "kernel_time": by_thread["kernel_time"],
                "mostly_in": [
                    max(most[thread], key=lambda name: (most[thread][name], name))
                    for thread in by_thread["thread"].tolist()
                ],
            },
            units={"time": "ns", "share": "share", "kernel_time": "ns"},
            labels={"share": "of processor time", "kernel_time": "in the kernel"},
            keys=("mostly_in",),
            sums=("samples", "time", "kernel_time"),
            title="Host threads",
            shown=self.top,
        )

    def _functions(self, rows: NDArray[Any], of_stack: dict[int, list[_Place]]) -> Table:
        """Time in each function itself, and with all that it calls."""
        own: dict[_Place, int] = {}
        whole: dict[_Place, int] = {}
        for stack, time in self._by(rows, "stack")[["stack", "time"]].tolist():
            path = of_stack[stack]
            own[path[-1]] = own.get(path[-1], 0) + time
            for place in set(path):
                whole[place] = whole.get(place, 0) + time
        places = sorted(whole, key=lambda place: (-own.get(place, 0), -whole[place], place))
        own_times = np.asarray([own.get(place, 0) for place in places], np.int64)
        times = np.asarray([whole[place] for place in places], np.int64)
        total = rows["time"].sum()
        return Table(
            {
                "function": [function for function, _ in places],
                "file": [file for _, file in places],
                "self_time": own_times,
                "self_share": shares(own_times, total),
                "time": times,
                "share": shares(times, total),
            },
            units={"self_time": "ns", "self_share": "share", "time": "ns", "share": "share"},
            labels={
                "self_time": "in itself", "self_share": "of processor time",
                "time": "including callees", "share": "of total, including callees",
            },
            keys=("function", "file"),
            sums=("self_time",),
            levels=("time",),
            title="Host functions",
            shown=self.top,
        )  # fmt: skip

    def _places(self, stack: int) -> list[_Place]:
        """Functions of a call path, outermost first; at least one."""
        path = self.context.stacks.path(stack, self.context.strings) if stack else []
        return [_place(frame) for frame in path] or [(_UNKNOWN, "")]

    def _call_paths(self, rows: NDArray[Any]) -> Table:
        paths, found = combined_paths(
            self.context, self._by(rows, "stack")[["stack", "count", "time"]]
        )
        return Table(
            {
                "samples": found["count"],
                "time": found["time"],
                "share": shares(found["time"], rows["time"].sum()),
                "line": [line or _UNKNOWN for line in paths["line"]],
                "call_path": [path or _UNKNOWN for path in paths["call_path"]],
            },
            units={"time": "ns", "share": "share"},
            labels={"share": "of processor time", "line": "line of the program"},
            keys=("line", "call_path"),
            sums=("samples", "time"),
            title="Host call paths",
            shown=self.top,
        )

    def _lines(self, rows: NDArray[Any]) -> Table:
        """Time by the innermost line of the program itself, with all that it calls."""
        sums: dict[str, list[int]] = {}
        for stack, count, time in self._by(rows, "stack")[["stack", "count", "time"]].tolist():
            line = self.context.stacks.user_line(stack, self.context.strings) if stack else None
            found = sums.setdefault(_line_text(line), [0, 0])
            found[0] += count
            found[1] += time
        lines = sorted(sums, key=lambda line: (-sums[line][1], line))
        times = np.asarray([sums[line][1] for line in lines], np.int64)
        return Table(
            {
                "line": lines,
                "samples": np.asarray([sums[line][0] for line in lines], np.int64),
                "time": times,
                "share": shares(times, rows["time"].sum()),
            },
            units={"time": "ns", "share": "share"},
            labels={"share": "of processor time", "line": "line of the program"},
            keys=("line",),
            sums=("samples", "time"),
            title="Lines of the program, including their callees",
            shown=self.top,
        )

    def _summary(self, rows: NDArray[Any], functions: Table) -> str:
        total = int(rows["time"].sum())
        threads = counted(len(np.unique(rows["thread"])), "thread")
        first = next(functions.rows(1))
        return (
            f"{formatted(total, 'ns')} of processor time in {threads}, {self._intervals()};"
            f" {formatted(first['self_share'], 'share')} in {first['function']}"
        )

    def _intervals(self) -> str:
        samples = counted(int(self.groups.count.sum()) + self.groups.left_out, "sample")
        if len(self.periods) != 1:
            return samples
        return f"{samples} of {formatted(int(self.periods.column(0)[0]), 'ns')}"

    def _findings(self, lines: Table, total: int) -> Iterator[Finding]:
        for row in lines.rows(1):
            if row["time"] < self.least_time or row["share"] < self.least_share:
                return
            if row["line"] != _UNKNOWN:
                yield Finding(
                    what="one line takes much of the host's processor time",
                    where=row["line"],
                    evidence=f"{formatted(row['time'], 'ns')} of {formatted(total, 'ns')},"
                    f" in {counted(row['samples'], 'sample')}",
                    remedy="see what it calls: pasta report DIR --flamegraph FILE --weight cpu",
                    confidence="low",  # whether anything waits for it is unknown
                )

    def _notes(self, rows: NDArray[Any]) -> Iterator[str]:
        samples = int(rows["count"].sum())
        if self.lost:
            yield (
                f"{counted(self.lost, 'host sample')} lost: the launcher was too slow to read them"
            )
        if self.truncated:
            yield (
                f"outer frames are missing in {formatted(self.truncated / samples, 'share')} of the"
                " samples"
            )
        if not rows["in_kernel"].any():
            yield "no samples in the kernel: time in system calls may be missing"
        if self.left_out:
            yield f"{formatted(self.left_out, 'ns')} in further call paths not shown"


def _line_text(frame: Frame | None) -> str:
    if frame is None:
        return _UNKNOWN
    return str(frame) if frame.name == frame.function else frame.name


def _place(frame: Frame) -> _Place:
    """Function, and the file of its source or the library that it is in."""
    return frame.name, (frame.file or frame.image).rpartition("/")[2]
