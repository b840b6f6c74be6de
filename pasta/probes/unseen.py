"""Adds coverage and sampling to the results of tools with probes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from pasta.errors import ToolError
from pasta.lazy import np
from pasta.probes import coverage
from pasta.probes.maps import accumulators_of
from pasta.processors.batch import ABSENT_U32
from pasta.processors.demangle import demangle, distinct_names
from pasta.processors.kernel_names import kernel_names
from pasta.table import Table, absent_where, counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pasta.findings import Finding, Result
    from pasta.members import Owner
    from pasta.probes.accumulators import Accumulator
    from pasta.processors.context import Context
    from pasta.processors.sampling import Sampling

#: Kernels named in a summary.
_MAX_SHOWN = 4
#: Tables of every tool with probes: of coverage, and of launches unless all were probed.
TABLE = "coverage"
PROBED = "probed"


class Seen(Protocol):
    """Coverage and drops of a run, implemented by `pasta.runtime.probe_runtime`."""

    sampling: Sampling

    def patched_beside(self) -> Mapping[int, int]:
        """Launches that were not selected but ran with patches, since their modules have selected
        kernels, by kernel (name id); empty if the backend has no patches."""

    #: Runs of access records whose launch was never seen.
    orphans: int

    def coverage(self, tool: Owner) -> list[coverage.Coverage]:
        """Coverage of each kernel by the tool's probes."""

    def device_losses(self) -> list[tuple[str, str]]:
        """Launches and accesses that devices could not count: tool (empty: all), text."""


def with_unseen(name: str, tool: Owner, context: Context, probes: Seen, result: Result) -> Result:
    """The result of a tool with tables of coverage and of probed launches, and a summary that
    lists accesses missing from its counts.

    Raises ToolError if the tool has tables of these names.
    """
    for own in (TABLE, PROBED):
        if own in result.tables:
            raise ToolError(
                f"tool {name}: the table name {own} is reserved for PASTA",
                remedy="use another name",
            )
    covered = probes.coverage(tool)
    mangled = list(dict.fromkeys(each.kernel for each in covered))
    names = dict(zip(mangled, distinct_names([demangle(each) for each in mangled]), strict=True))
    sampling = probes.sampling
    estimated = not sampling.exact and _estimates(tool)
    missing = _missing(name, tool, probes)
    parts = [result.summary, sampling.text(), *missing, coverage.summary(covered, names)]
    if sampling.probed and not sampling.exact:
        parts.insert(2, _scope(tool, sampling, estimated))
    if shared := probes.patched_beside():
        parts.append(_patched_beside(shared, context))
    return replace(
        result,
        summary="; ".join(part for part in parts if part),
        tables={
            **result.tables,
            TABLE: coverage.table(covered, names),
            **({} if sampling.exact else {PROBED: _probed(sampling, context)}),
        },
        findings=[_within(finding, sampling, estimated) for finding in result.findings],
    )


def _scope(tool: Owner, sampling: Sampling, estimated: bool) -> str:
    """The launches that the results cover, if some were not probed."""
    if not estimated:
        return "counts and shares cover the probed launches only"
    maps = _estimated_maps(tool)
    scope = sampling.scope_text(maps[0].estimates()) if maps else ""
    return f"totals are estimated for {scope}" if scope else ""


def _estimates(tool: Owner) -> bool:
    """Whether results cover all launches."""
    return tool.estimates and all(each.is_estimate() for each in _estimated_maps(tool))


def _estimated_maps(tool: Owner) -> list[Accumulator]:
    return [each for each in accumulators_of(tool).values() if each.spec.estimated]


def _patched_beside(shared: Mapping[int, int], context: Context) -> str:
    most = sorted(shared, key=lambda name: (-shared[name], name))
    names = kernel_names(context, np.asarray(most[:_MAX_SHOWN], np.uint32))
    more = len(most) - len(names)
    kernels = counted(len(most), "kernel was", "kernels were")
    return (
        f"{kernels} not selected but slowed down, because selected kernels are in the same "
        f"modules: {', '.join(names)}{f', {more:,} more' if more else ''}"
    )


def _probed(sampling: Sampling, context: Context) -> Table:
    """Launches and probed launches by shape; those that were never probed come first."""
    launches = {number: round(count) for number, count in sampling.shape_launches().items()}
    probed = sampling.of_shapes()[1]
    shapes = sorted(
        (each for each in sampling.shapes.values() if launches[each.number]),
        key=lambda each: (
            probed[each.number] > 0, -launches[each.number], each.kernel, each.grid, each.block
        ),
    )  # fmt: skip
    seen = [launches[each.number] for each in shapes]
    hits = [probed[each.number] for each in shapes]
    shared = np.asarray([each.shared for each in shapes], np.uint32)
    return Table(
        {
            "kernel": kernel_names(context, np.asarray([each.kernel for each in shapes], "u4")),
            "grid": ["x".join(map(str, each.grid)) for each in shapes],
            "block": ["x".join(map(str, each.block)) for each in shapes],
            "shared": absent_where(shared, shared == ABSENT_U32),
            "launches": seen,
            "probed": hits,
            "share": [hit / count for hit, count in zip(hits, seen, strict=True)],
        },
        units={"shared": "bytes", "launches": "count", "probed": "count", "share": "share"},
        labels={"share": "of its launches", "shared": "dynamic shared memory"},
        title="Launches that were probed, by shape",
        keys=("kernel", "grid", "block", "shared"),
        sums=("launches", "probed"),
        shown=0,
    )


def _within(finding: Finding, sampling: Sampling, estimated: bool) -> Finding:
    """The finding, with the number of launches that it is based on."""
    if sampling.exact:
        return finding
    probed, seen = sum(sampling.probed.values()), sum(sampling.seen.values())
    return replace(
        finding,
        evidence=f"{finding.evidence}; {'estimated ' * estimated}from the {probed:,} of {seen:,}"
        " launches that were probed",
        confidence="low" if sampling.unprobed else finding.confidence,
    )


def _missing(tool_name: str, tool: Owner, probes: Seen) -> list[str]:
    parts = [text for each in accumulators_of(tool).values() for text in each.losses()]
    if probes.orphans:
        parts.append("accesses of unseen launches are left out")
    return parts + [text for name, text in probes.device_losses() if name in (tool_name, "")]
