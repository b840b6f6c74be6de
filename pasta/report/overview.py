"""The beginning of the HTML report: what ran, its main numbers, and where time and memory went."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pasta.capabilities import read_not_given
from pasta.table import counted, formatted, has_columns, plain

if TYPE_CHECKING:
    from pasta.report.timeline import Timeline
    from pasta.run.results import StoredResult
    from pasta.table import Table, Unit

#: Parts of a bar with a color of their own (--s0 to --s7 in report.css); the rest are one part.
MAX_PARTS = 7
_MAX_NAMED = 4
_MIN_SHARE = 0.005
_RANK = "rank"  # the column that merged tables have
#: Characters of a label.
MAX_LABEL = 400


@dataclass(frozen=True)
class Fact:
    """A number of the run, with its meaning."""

    label: str
    value: str
    about: str = ""


@dataclass(frozen=True)
class Part:
    """A part of a bar: `share` (0 to 1) of the whole. `color` is a series' number, -1: the rest."""

    label: str
    value: str
    share: float
    color: int


@dataclass(frozen=True)
class Bar:
    """Where something went: parts of a whole, the largest first."""

    title: str
    unit: Unit
    whole: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Overview:
    """`coverage`: sentences about what was observed, and what was not."""

    facts: Sequence[Fact]
    bars: Sequence[Bar]
    coverage: Sequence[str]


def overview(
    manifest: Mapping[str, Any], results: Sequence[StoredResult], timeline: Timeline | None
) -> Overview:
    """The overview of a run; `manifest` is empty for an unfinished run. Raises RunError."""
    return Overview(
        list(_facts(manifest, results, timeline)),
        [bar for bar in (_time(results, timeline), _memory(results)) if bar],
        list(_coverage(manifest, results, bool(timeline and timeline.work.span))),
    )


def own_notes(result: StoredResult) -> list[str]:
    """Notes of a tool's result, except notes that the coverage states for all tools."""
    return [note for note in result.notes if read_not_given(note) is None]


def _facts(
    manifest: Mapping[str, Any], results: Sequence[StoredResult], timeline: Timeline | None
) -> Iterator[Fact]:
    if manifest:
        yield Fact("Observed", formatted(manifest["observed_ns"], "ns"), manifest["ended"]["text"])
    yield from _busy(results, timeline)
    yield from _peak(results, timeline)
    launches = manifest.get("launches", {}).get("seen")
    if launches is None:
        launches = manifest.get("events", {}).get("kernel_launch")
    if launches is not None:
        kernels = _first(results, "kernels", "kernel", "launches")
        of = f"of {counted(_count(kernels, 'kernel'), 'kernel')}" if kernels else ""
        yield Fact("Kernel launches", f"{launches:,}", of)


def _count(table: Table, key: str) -> int:
    """The number of different values of a column, which a merged table has by rank."""
    if _RANK in table.columns:
        return len({str(value) for value in table.values(key)})
    return table.of or len(table)


def _busy(results: Sequence[StoredResult], timeline: Timeline | None) -> Iterator[Fact]:
    """The share of the time from first to last work in which devices were busy."""
    spans = [(busy, timeline.work.span) for busy in timeline.work.busy.values()] if timeline else []
    table = _first(results, "devices", "device", "span", "busy")
    if not spans and table:  # the events are elsewhere, as after a merge
        pairs = zip(table.values("busy"), table.values("span"), strict=True)
        spans = [(_number(busy), _number(span)) for busy, span in pairs]
    shares = [busy / span for busy, span in spans if span]
    if not shares:
        return
    value = formatted(shares[0], "share")
    if len(shares) > 1:
        value = f"{min(shares):.0%} to {max(shares):.0%}"
    of = formatted(max(span for _, span in spans), "ns")
    devices = f", {len(shares)} devices" if len(shares) > 1 else ""
    yield Fact("Device busy", value, f"of {of} from first to last device work{devices}")


def _peak(results: Sequence[StoredResult], timeline: Timeline | None) -> Iterator[Fact]:
    table = _first(results, "peaks", "layer", "device", "memory", "peak")
    totals = [row for row in (table.rows() if table else ()) if row["memory"] == "total"]
    if any(row["device"] is not None for row in totals):
        totals = [row for row in totals if row["device"] is not None]
    for layer in ("memory", "tensor"):  # without memory of the runtime: memory of tensors
        found = [
            (_number(row["peak"]), _where(row["device"])) for row in totals if row["layer"] == layer
        ]
        if found:
            break
    else:
        counters = timeline.counters if timeline else ()
        found = [(int(c.peak), c.label) for c in counters if c.unit == "bytes" and c.device >= 0]
    if found:
        peak, where = max(found)
        yield Fact("Peak memory", formatted(peak, "bytes"), where)


def _where(device: object) -> str:
    return "of tensors on the host" if device is None else f"on device {device}"


def _time(results: Sequence[StoredResult], timeline: Timeline | None) -> Bar | None:
    """Device time by kernel; without device times, host time by operator."""
    sums: dict[str, int] = {}
    if timeline:
        for code, took in timeline.work.by_name.items():
            name = timeline.names[code][1]
            sums[name] = sums.get(name, 0) + took
    kernels = _first(results, "kernels", "kernel", "total_time")
    if not sums and kernels:
        sums = _sums(kernels, "kernel", "total_time")
    if any(sums.values()):
        return _bar("Device time", sums, "ns")
    table = _first(results, "operators", "operator", "own_time")
    if table is None:
        return None
    return _bar("Host time in operators", _sums(table, "operator", "own_time"), "ns")


def _memory(results: Sequence[StoredResult]) -> Bar | None:
    """Memory at the peak of the device with most: tensors by category, or allocations by kind."""
    table = _first(results, "categories", "device", "category", "at_peak")
    if table is not None:
        totals = _sums(table, "device", "at_peak")
        if any(totals.values()):
            device = max(totals, key=lambda key: (totals[key], str(key)))
            rows = [row for row in table.rows() if row["device"] == device]
            where = "the host" if device is None else f"device {device}"
            sums: dict[str, int] = {}
            for row in rows:
                category = str(row["category"])
                sums[category] = sums.get(category, 0) + _number(row["at_peak"])
            return _bar(f"Tensors at the peak of {where}{_of_ranks(table)}", sums, "bytes")
    table = _first(results, "at_peak", "peak_of", "device", "memory", "bytes")
    if table is None:
        return None
    sums = {}
    for row in table.rows():
        if row["peak_of"] == "memory":
            place = "host" if row["device"] is None else f"device {row['device']}"
            label = f"{place}: {row['memory']}"
            sums[label] = sums.get(label, 0) + _number(row["bytes"])
    return _bar(f"Allocations at the peak{_of_ranks(table)}", sums, "bytes")


def _of_ranks(table: Table) -> str:
    """Says that a bar adds up ranks, each of which has a peak of its own."""
    if _RANK not in table.columns:
        return ""
    return f", sum of {counted(len(set(table.values(_RANK))), 'rank')}"


def _sums(table: Table, key: str, value: str) -> dict[Any, int]:
    sums: dict[Any, int] = {}
    for given, amount in zip(table.values(key), table.values(value), strict=True):
        name = given if isinstance(given, (int, str)) else None if given is None else str(given)
        sums[name] = sums.get(name, 0) + _number(amount)
    return sums


def _number(value: object) -> int:
    """A number of a table, whose columns may have any type; 0 for others."""
    return max(int(value), 0) if isinstance(value, (int, float)) and value < math.inf else 0


def _bar(title: str, sums: Mapping[Any, int], unit: Unit) -> Bar | None:
    whole = sum(sums.values())
    sums = {plain(str(name), MAX_LABEL): part for name, part in sums.items()}
    if whole <= 0:
        return None
    order = sorted(sums.items(), key=lambda each: (-each[1], each[0]))
    own = [(name, part) for name, part in order[:MAX_PARTS] if part >= _MIN_SHARE * whole]
    parts = [
        Part(name, _amount(part, whole, unit), part / whole, color)
        for color, (name, part) in enumerate(own)
    ]
    rest = whole - sum(part for _, part in own)
    others = sum(part > 0 for _, part in order) - len(own)
    if rest:
        parts.append(Part(f"{others:,} others", _amount(rest, whole, unit), rest / whole, -1))
    return Bar(title, unit, formatted(whole, unit), parts)


def _amount(part: int, whole: int, unit: Unit) -> str:
    share = part / whole
    return f"{formatted(part, unit)}, {f'{share:.0%}' if share >= 0.01 else '<1%'}"


def _coverage(
    manifest: Mapping[str, Any], results: Sequence[StoredResult], timed: bool
) -> Iterator[str]:
    """What was observed and what was not; `timed`: with device times."""
    events = sum(manifest.get("events", {}).values())
    accesses = {"chunks": 0, "dropped": 0, **manifest.get("accesses", {})}
    if events:
        dropped = {**manifest.get("dropped", {}), "accesses": accesses["dropped"]}
        lost = ", ".join(f"{count:,} {kind}" for kind, count in dropped.items() if count)
        left = sum(manifest.get("left_out", {}).values())
        yield (
            f"{counted(events, 'event')} observed; "
            + (f"dropped: {lost}" if lost else "none dropped")
            + (f"; {left:,} not recorded" if left else "")
        )
    launches = {"seen": 0, **manifest.get("launches", {})}
    if launches.get("selected", launches["seen"]) < launches["seen"]:
        yield f"{launches['selected']:,} of {counted(launches['seen'], 'launch')} selected"
    if timed and accesses["chunks"]:
        yield (
            "device times include those of probes, which slow kernels down: with --passes auto they"
            " are of a run without probes"
        )
    gaps: dict[str, list[str]] = {}
    for result in results:
        for source, texts in filter(None, map(read_not_given, result.notes)):
            gaps.setdefault(source, []).extend(texts)
    for source, texts in gaps.items():
        yield f"not given by {source}: {', '.join(dict.fromkeys(texts))}"
    yield from _probed(results)


def _probed(results: Sequence[StoredResult]) -> Iterator[str]:
    """How many kernels' accesses the probes saw."""
    verdicts: dict[str, set[str]] = {}
    for result in results:
        table = result.tables.get("coverage")
        if has_columns(table, "kernel", "coverage"):
            for kernel, verdict in zip(
                table.values("kernel"), table.values("coverage"), strict=True
            ):
                verdicts.setdefault(str(kernel), set()).add(str(verdict))
    if not verdicts:
        return
    incomplete = {"partly", "unseen"}
    seen = [kernel for kernel, found in verdicts.items() if found == {"seen"}]
    missed = [kernel for kernel, found in verdicts.items() if found & incomplete]
    unknown = len(verdicts) - len(seen) - len(missed)
    kernels = counted(len(verdicts), "kernel")
    if unknown == len(verdicts):
        yield f"accesses: unknown whether all kinds were seen in {kernels}: their code was not kept"
        return
    text = f"accesses: all kinds seen in {len(seen):,} of {kernels}"
    if missed:
        named = ", ".join(plain(kernel, MAX_LABEL) for kernel in sorted(missed)[:_MAX_NAMED])
        more = f" and {len(missed) - _MAX_NAMED:,} more" if len(missed) > _MAX_NAMED else ""
        text += f"; not all in {named}{more}"
    yield text + (f"; unknown in {unknown:,}: their code was not kept" if unknown else "")


def _first(results: Sequence[StoredResult], name: str, *columns: str) -> Table | None:
    """The first table of this name with these columns. Raises RunError."""
    for result in results:
        if name in result.tables:
            table = result.tables[name]
            if has_columns(table, *columns):
                return table
    return None
