"""The report of a root: the ranks of a job side by side."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from rich.text import Text

from pasta.arrow import to_numpy
from pasta.errors import RunError
from pasta.processors.demangle import distinct_names
from pasta.report.layout import View
from pasta.report.text import findings_of, text_of
from pasta.run.events import parts
from pasta.run.files import batches, open_parquet, reading
from pasta.run.merge import RunFinding, merged_findings
from pasta.run.results import read_findings, values_of
from pasta.run.root import RankRun, Root, ranks_text
from pasta.table import Table, counted, formatted, plain

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pasta.findings import Finding

#: Default rows of the tables of ranks and kernels.
RANKS, KERNELS = 64, 10
_BATCH_ROWS = 1 << 16
_KERNEL_COLUMNS = ["demangled", "launches", "total_time"]
_TEXTS = frozenset({"demangled", "layer", "memory"})


@dataclass
class Measures:
    """Measures of a run to compare; None if unknown. Times are ns on the root's time line."""

    run: RankRun
    start: int
    end: int
    launches: int
    copies: int
    dropped: int
    device_time: int | None = None
    copied: int | None = None
    peak: int | None = None
    #: Launches and device time by full kernel name; None if kernel_freq did not run.
    kernels: dict[str, tuple[int, int | None]] | None = None
    findings: list[tuple[str, Finding]] = field(default_factory=list)
    #: What could not be read, one line each.
    problems: list[str] = field(default_factory=list)

    @property
    def observed(self) -> int:
        """Time that the process was observed, in ns."""
        return self.run.observed


def measure(root: Root, run: RankRun) -> Measures:
    """Reads the measures of a run; errors are collected in `problems`."""
    manifest = run.manifest
    start = root.since(run, run.start)
    events, launches = manifest.get("events", {}), manifest.get("launches", {})
    found = Measures(
        run,
        start,
        start + run.observed,
        launches=int(launches.get("selected", events.get("kernel_launch", 0))),
        copies=int(events.get("memory_copy", 0)),
        dropped=sum(manifest.get("dropped", {}).values()),
    )
    for read in (_kernels, _copied, _peak, _findings):
        try:
            read(found)
        except RunError as error:
            found.problems.append(plain(str(error).replace(f"{run.directory.path}/", "")))
    return found


def _kernels(found: Measures) -> None:
    columns = _result(found.run, "kernel_freq", "kernels", _KERNEL_COLUMNS)
    if columns is None:
        found.device_time = _of_events(
            found.run, "kernel_complete", ("start", "end"), lambda start, end: end - start
        )
        return
    names = columns["demangled"]
    rows = list(zip(names, columns["launches"], columns["total_time"], strict=True))
    found.kernels = {str(name): (launches or 0, time) for name, launches, time in rows}
    times = [time for _, _, time in rows if time is not None]
    if times or not rows:
        found.device_time = sum(times)


def _copied(found: Measures) -> None:
    columns = _result(found.run, "copies", "directions", ["bytes"])
    if columns is not None:
        found.copied = sum(each or 0 for each in columns["bytes"])
    elif found.copies:
        found.copied = _of_events(found.run, "memory_copy", ("bytes",), lambda bytes: bytes)


def _peak(found: Measures) -> None:
    columns = _result(found.run, "memory_timeline", "peaks", ["layer", "memory", "peak"])
    if columns is None:
        return
    rows = zip(columns["layer"], columns["memory"], columns["peak"], strict=True)
    found.peak = max(
        (peak or 0 for layer, memory, peak in rows if (layer, memory) == ("memory", "total")),
        default=0,
    )


def _findings(found: Measures) -> None:
    found.findings.extend(read_findings(found.run.directory.results))


def _result(run: RankRun, tool: str, name: str, wanted: list[str]) -> dict[str, list[Any]] | None:
    """Columns of a stored table; None if the tool did not run. Raises RunError."""
    path = run.directory.results / tool / f"{name}.parquet"
    if not os.path.lexists(path):
        return None
    file = open_parquet(path, run.directory.path)
    missing = [name for name in wanted if name not in file.schema_arrow.names]
    if missing:
        raise RunError(f"{path}: no column {missing[0]!r}")
    found = list(batches(file, path, wanted))
    with reading(path):
        rows = pa.Table.from_batches(found, pa.schema(map(file.schema_arrow.field, wanted)))
        return {name: _checked(name, rows.column(name)) for name in wanted}


def _checked(name: str, column: pa.ChunkedArray) -> list[Any]:
    """Values of a column: texts, or 64-bit integers. Raises ValueError for other types."""
    if name not in _TEXTS:
        values: list[Any] = column.cast(pa.int64()).to_pylist()
        return values
    if not (pa.types.is_dictionary(column.type) or pa.types.is_null(column.type)):
        raise ValueError(f"{name} is not text")
    return list(values_of(column))


def _of_events(
    run: RankRun, kind: str, columns: Sequence[str], value: Callable[..., Any]
) -> int | None:
    """Sum of a value over recorded events of a kind; None without such events."""
    files = parts(run.directory.events).get(kind, [])
    total = 0
    for path in files:
        file = open_parquet(path, run.directory.path)
        for chunk in batches(file, path, columns, rows=_BATCH_ROWS):
            with reading(path):
                known = chunk.drop_null()
                arrays = [to_numpy(column.cast(pa.int64())) for column in known.columns]
                total += int(np.maximum(value(*arrays), 0).sum())
    return total if files else None


# ---- the report ----


def render(root: Root, rows: int | None = None) -> Iterator[RenderableType]:
    """Parts of the report; `rows` overrides the number of rows of each table."""
    measured = [measure(root, run) for run in root.runs]
    yield from _heading(root)
    yield from _problems(root, measured)
    by_run = {id(each.run): each for each in measured}
    for program, runs in root.programs.items():
        yield from _program(root, program, [by_run[id(run)] for run in runs], rows)
    found = [
        RunFinding(root.label(each.run), each.run.rank, tool, finding)
        for each in measured
        for tool, finding in each.findings
    ]
    yield from findings_of(merged_findings(found))
    yield from _notes(root)


def _heading(root: Root) -> Iterator[Text]:
    ranks, size = root.ranks, root.world_size
    what = counted(len(ranks), "rank") if ranks else "no ranks"
    if ranks and size and size != len(ranks):
        what = f"{len(ranks):,} of {counted(size, 'rank')}"
    hosts = root.hosts
    yield Text(
        f"{plain(str(root.path))}: {counted(len(root.runs), 'run')}, {what}, on"
        f" {counted(len(hosts), 'host')}",
        style="bold",
    )
    for host, runs in hosts.items():
        mine = sorted({run.rank for run in runs if run.rank is not None})
        if mine and len(hosts) > 1:
            yield Text(f"{plain(host)}: {ranks_text(mine)}")
    if len(root.clocks) > 1:
        error = root.worst_error
        how = (
            "of which at least one is not synchronized"
            if error is None
            else f"off by up to {formatted(error, 'ns')}, as their kernels report"
        )
        yield Text(f"times: exact on one host; between hosts from their real-time clocks, {how}")


def _problems(root: Root, measured: Iterable[Measures]) -> Iterator[Text]:
    """A line about missing ranks, and one for each unusable run."""
    if root.missing:
        yield Text(
            f"{ranks_text(root.missing)}: no run: no accelerator used, not profiled, or not "
            "written yet",
            style="yellow",
        )
    for problem in root.problems:
        rank = "" if problem.rank is None else f"rank {problem.rank}: "
        yield Text(f"{rank}{plain(problem.path.name)}: {plain(problem.why)}", style="yellow")
    for each in measured:
        for line in each.problems:
            yield Text(f"{plain(root.label(each.run))}: {line}", style="yellow")
    for doubt in root.doubts():
        yield Text(doubt, style="yellow")


def _program(
    root: Root, program: str, measured: list[Measures], rows: int | None
) -> Iterator[RenderableType]:
    yield Text()
    ranks = {each.run.rank for each in measured}
    title = f"{plain(program)}: {counted(len(measured), 'run')}"
    if None not in ranks and len(ranks) < len(measured):
        title += f" of {counted(len(ranks), 'rank')}"
    yield Text(title, style="bold")
    yield View(_table(root, measured), RANKS if rows is None else rows)
    yield from _imbalance(root, measured)
    kernels = _kernel_table(root, measured)
    if kernels is not None and len(kernels):
        yield View(kernels, KERNELS if rows is None else rows)


def _table(root: Root, measured: list[Measures]) -> Table:
    columns = {
        "run": [plain(root.label(each.run)) for each in measured],
        "host": [plain(each.run.host) for each in measured],
        **{
            name: [getattr(each, name) for each in measured]
            for name in (
                "device_time", "launches", "start", "observed", "peak", "copies", "copied",
                "dropped",
            )
        },
        "ended": [plain(str(each.run.manifest["ended"]["text"])) for each in measured],
    }  # fmt: skip
    several = len({each.run.host for each in measured}) > 1
    as_usual = all(text == "exited with 0" or text == "ended" for text in columns["ended"])
    return Table(
        columns,
        units={
            "device_time": "ns", "start": "ns", "observed": "ns", "peak": "bytes",
            "copied": "bytes",
        },
        labels={"start": "started after", "peak": "peak memory", "dropped": "events lost"},
        title="Ranks" if any(each.run.rank is not None for each in measured) else "Processes",
        hidden=frozenset(
            ([] if several else ["host"])
            + (["ended"] if as_usual else [])
            + [
                name
                for name in ("device_time", "peak", "copied", "dropped")
                if not any(columns[name])
            ]
        ),
    )  # fmt: skip


def _imbalance(root: Root, measured: list[Measures]) -> Iterator[Text]:
    """Imbalance between ranks, and the rank that the others wait for."""
    for what, values, unit in (
        ("device time", _by_rank(measured, "device_time", sum), "ns"),
        ("launches", _by_rank(measured, "launches", sum), "count"),
        ("time observed", _by_rank(measured, "observed", max), "ns"),
    ):
        mean = sum(values.values()) / len(values) if values else 0
        if len(values) < 2 or not mean:
            continue
        late = max(values, key=lambda rank: values[rank])
        early = min(values, key=lambda rank: values[rank])
        if values[late] == values[early]:
            yield Text(f"{what}: the same in all ranks")
            continue
        most = "latest" if unit == "ns" else "most"
        amount = formatted(values[late], "ns" if unit == "ns" else None)
        yield Text(
            f"{what}: max/mean {values[late] / mean:.2f}; {most}: rank {late}, {amount}, "
            f"{values[late] / mean - 1:.0%} over the mean; least: rank {early}"
        )
    ranked = [each for each in measured if each.run.rank is not None]
    if len({each.run.rank for each in ranked}) > 1:
        first, last = (which(ranked, key=lambda each: each.end) for which in (min, max))
        error = root.error(first.run, last.run)
        accuracy = {None: ", clocks not synchronized", 0: ""}.get(
            error, f" ± {formatted(error or 0, 'ns')}"
        )
        yield Text(
            f"last seen: rank {last.run.rank}, {formatted(last.end - first.end, 'ns')} "
            f"after rank {first.run.rank}{accuracy}"
        )


def _by_rank(measured: list[Measures], name: str, combined: Callable[[Any], int]) -> dict[int, int]:
    """A measure by rank, combined over its processes, for ranks where it is known."""
    found: dict[int, list[int]] = {}
    for each in measured:
        value = getattr(each, name)
        if each.run.rank is not None and value is not None:
            found.setdefault(each.run.rank, []).append(value)
    return {rank: combined(values) for rank, values in found.items()}


def _kernel_table(root: Root, measured: list[Measures]) -> Table | None:
    """Kernels over ranks: by device time if all ranks have it, otherwise by launches."""
    known = [each for each in measured if each.kernels is not None]
    if not known:
        return None
    timed = all(each.device_time is not None for each in known)
    runs = list(dict.fromkeys(_rank_label(root, each.run) for each in known))
    row_of = {run: row for row, run in enumerate(runs)}
    names = list(dict.fromkeys(name for each in known for name in each.kernels or ()))
    column_of = {name: column for column, name in enumerate(names)}
    launches = np.zeros(len(names), np.int64)
    values = np.zeros((len(runs), len(names)), np.int64)
    for each in known:
        for name, (count, time) in (each.kernels or {}).items():
            launches[column_of[name]] += count
            value = (time or 0) if timed else count
            values[row_of[_rank_label(root, each.run)], column_of[name]] += value
    order = np.argsort(-values.sum(axis=0), kind="stable")
    values = values[:, order]
    mean = values.mean(axis=0)
    most = values.max(axis=0) if len(names) else mean
    unit: Any = "ns" if timed else "count"
    what = "device time" if timed else "launches"
    left_out = len(measured) - len(known)
    without = f"; {counted(left_out, 'run is', 'runs are')} without kernel_freq" if left_out else ""
    return Table(
        {
            "kernel": [plain(name) for name in distinct_names([names[at] for at in order])],
            "launches": launches[order],
            "min": values.min(axis=0),
            "mean": np.rint(mean).astype(np.int64),
            "max": most,
            "imbalance": np.divide(most, mean, out=np.ones(len(mean)), where=mean > 0).round(2),
            "most_in": [runs[row] for row in values.argmax(axis=0).tolist()],
        },
        units={"min": unit, "mean": unit, "max": unit},
        labels={"imbalance": "max/mean", "most_in": "max in"},
        title=f"Kernels ({what} of each rank{without})",
        hidden=frozenset(() if timed else ("launches",)),
    )


def _rank_label(root: Root, run: RankRun) -> str:
    return plain(root.label(run) if run.rank is None else f"rank {run.rank}")


def _notes(root: Root) -> Iterator[Text]:
    """Failures and warnings of runs; equal ones as one line."""
    said: dict[tuple[str, str], list[RankRun]] = {}
    for run in root.runs:
        for tool, failure in run.manifest.get("failures", {}).items():
            line = f"tool {tool} was disabled: {failure['reason']} (in {failure['where']})"
            said.setdefault((line, "red"), []).append(run)
        for warning in run.manifest.get("warnings", []):
            said.setdefault((f"note: {warning}", "yellow"), []).append(run)
    for (line, style), runs in said.items():
        yield Text(f"{_who(root, runs)}: {plain(line)}", style=style)


def _who(root: Root, runs: list[RankRun]) -> str:
    ranks = sorted({run.rank for run in runs if run.rank is not None})
    others = [plain(root.label(run)) for run in runs if run.rank is None]
    more = [f"{len(others) - 3:,} more"] if len(others) > 3 else []
    return ", ".join([*([ranks_text(ranks)] if ranks else []), *others[:3], *more])


def text_report(root: Root) -> str:
    """The report as plain text."""
    return text_of(render(root))
