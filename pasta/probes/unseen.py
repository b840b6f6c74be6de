"""What the probes of a tool did not see: every result says it, and shows it by kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pasta.errors import ToolError
from pasta.lazy import np
from pasta.probes import coverage
from pasta.probes.accumulators import TopKAccumulator, TraceAccumulator
from pasta.processors.demangle import demangle, distinct_names
from pasta.processors.kernel_names import kernel_names
from pasta.table import Table, counted

if TYPE_CHECKING:
    from pasta.probes.runtime import ProbeRuntime
    from pasta.probes.windows import Sampling
    from pasta.tool import Context, Finding, Result, Tool

#: Names of the tables of every tool with probes; the second one where not all launches were.
TABLE = "coverage"
PROBED = "probed"


def with_unseen(name: str, tool: Tool, context: Context, result: Result) -> Result:
    """The result of the tool of this name with tables of what probes could see and of the launches
    that were probed, and a summary that tells what is known to be missing from its numbers.

    Raises ToolError where the tool has tables of these names.
    """
    for own in (TABLE, PROBED):
        if own in result.tables:
            raise ToolError(
                f"tool {name}: the table {own} is PASTA's own", remedy="give it another name"
            )
    probes = context._probes
    covered = probes.kernels.coverage(tool, context) if probes is not None else []
    mangled = list(dict.fromkeys(each.kernel for each in covered))
    names = dict(zip(mangled, distinct_names([demangle(each) for each in mangled]), strict=True))
    sampling = context.sampling
    missing = _missing(name, tool, probes)
    parts = [result.summary, sampling.text(), *missing, coverage.summary(covered, names)]
    return replace(
        result,
        summary="; ".join(part for part in parts if part),
        tables={
            **result.tables,
            TABLE: coverage.table(covered, names),
            **({} if sampling.exact else {PROBED: _probed(sampling, context)}),
        },
        findings=[_within(finding, sampling) for finding in result.findings],
    )


def _probed(sampling: Sampling, context: Context) -> Table:
    """Kernels with their launches; those that were never probed come first."""
    seen, probed = sampling.seen, sampling.probed
    ids = sorted(seen, key=lambda name: (probed.get(name, 0) > 0, -seen[name], name))
    counts = [probed.get(name, 0) for name in ids]
    return Table(
        {
            "kernel": kernel_names(context, np.asarray(ids, np.uint32)),
            "launches": [seen[name] for name in ids],
            "probed": counts,
            "share": [count / seen[name] for name, count in zip(ids, counts, strict=True)],
        },
        units={"launches": "count", "probed": "count", "share": "share"},
        labels={"share": "of its launches"},
        title="Launches that were probed, by kernel",
        keys=("kernel",),
        sums=("launches", "probed"),
        shown=0,
    )


def _within(finding: Finding, sampling: Sampling) -> Finding:
    """A finding that says of which launches it is."""
    if sampling.exact:
        return finding
    probed, seen = sum(sampling.probed.values()), sum(sampling.seen.values())
    return replace(
        finding,
        evidence=f"{finding.evidence}; in the {probed:,} of {seen:,} launches that were probed",
        confidence="low" if sampling.unprobed else finding.confidence,
    )


def _missing(tool_name: str, tool: Tool, probes: ProbeRuntime | None) -> list[str]:
    parts = []
    for name, each in tool._maps.items():
        if isinstance(each, TraceAccumulator) and each.dropped:
            parts.append(
                f"{counted(each.dropped, 'access was', 'accesses were')} lost on their way"
            )
        if isinstance(each, TopKAccumulator) and each.other:
            parts.append(f"{each.other:,} of {name} had no room")
    if probes is None:
        return parts
    if probes.orphans:
        parts.append("accesses of launches that were not seen are left out")
    return parts + [text for name, text in probes.device_losses() if name in (tool_name, "")]
