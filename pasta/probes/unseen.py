"""Adds coverage and sampling to the results of tools with probes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from pasta.errors import ToolError
from pasta.lazy import np
from pasta.probes import coverage
from pasta.probes.maps import accumulators_of
from pasta.processors.demangle import demangle, distinct_names
from pasta.processors.kernel_names import kernel_names
from pasta.table import Table

if TYPE_CHECKING:
    from pasta.findings import Finding, Result
    from pasta.members import Owner
    from pasta.processors.context import Context
    from pasta.processors.sampling import Sampling

#: Tables of every tool with probes: of coverage, and of launches unless all were probed.
TABLE = "coverage"
PROBED = "probed"


class Seen(Protocol):
    """Coverage and drops of a run, implemented by `pasta.runtime.probe_runtime`."""

    sampling: Sampling
    #: Runs of access records whose launch was never seen.
    orphans: int

    def coverage(self, tool: Owner) -> list[coverage.Coverage]:
        """Coverage of each kernel by the tool's probes."""

    def device_losses(self) -> list[tuple[str, str]]:
        """Accesses that devices could not count: name of the tool (empty: all), text."""


def with_unseen(name: str, tool: Owner, context: Context, probes: Seen, result: Result) -> Result:
    """The result of a tool with tables of coverage and of probed launches, and a summary that
    lists accesses missing from its counts.

    Raises ToolError if the tool has tables of these names.
    """
    for own in (TABLE, PROBED):
        if own in result.tables:
            raise ToolError(
                f"tool {name}: the table {own} is PASTA's own", remedy="give it another name"
            )
    covered = probes.coverage(tool)
    mangled = list(dict.fromkeys(each.kernel for each in covered))
    names = dict(zip(mangled, distinct_names([demangle(each) for each in mangled]), strict=True))
    sampling = probes.sampling
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
    """Launches and probed launches by kernel; kernels that were never probed come first."""
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
    """The finding, with the number of launches that it is based on."""
    if sampling.exact:
        return finding
    probed, seen = sum(sampling.probed.values()), sum(sampling.seen.values())
    return replace(
        finding,
        evidence=f"{finding.evidence}; in the {probed:,} of {seen:,} launches that were probed",
        confidence="low" if sampling.unprobed else finding.confidence,
    )


def _missing(tool_name: str, tool: Owner, probes: Seen) -> list[str]:
    parts = [text for each in accumulators_of(tool).values() for text in each.losses()]
    if probes.orphans:
        parts.append("accesses of launches that were not seen are left out")
    return parts + [text for name, text in probes.device_losses() if name in (tool_name, "")]
