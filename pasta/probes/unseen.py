"""What the probes of a tool did not see: every result says it, and shows it by kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pasta.errors import ToolError
from pasta.probes import coverage
from pasta.probes.accumulators import TopKAccumulator, TraceAccumulator
from pasta.processors.demangle import demangle, distinct_names
from pasta.table import counted

if TYPE_CHECKING:
    from pasta.tool import Result, Tool

#: Name of the table of every tool with probes.
TABLE = "coverage"


def with_unseen(tool: Tool, result: Result) -> Result:
    """The result with the table of what probes could see, and a summary that tells what is known
    to be missing from its numbers. Raises ToolError where the tool has a table of that name."""
    if TABLE in result.tables:
        raise ToolError(
            f"tool {tool.name}: the table {TABLE} is PASTA's own", remedy="give it another name"
        )
    probes = tool.context._probes
    covered = probes.kernels.coverage(tool) if probes is not None else []
    mangled = list(dict.fromkeys(each.kernel for each in covered))
    names = dict(zip(mangled, distinct_names([demangle(each) for each in mangled]), strict=True))
    parts = [result.summary, *_missing(tool), coverage.summary(covered, names)]
    return replace(
        result,
        summary="; ".join(part for part in parts if part),
        tables={**result.tables, TABLE: coverage.table(covered, names)},
    )


def _missing(tool: Tool) -> list[str]:
    parts = []
    for name, each in tool._maps.items():
        if isinstance(each, TraceAccumulator) and each.dropped:
            parts.append(
                f"{counted(each.dropped, 'access was', 'accesses were')} lost on their way"
            )
        if isinstance(each, TopKAccumulator) and each.other:
            parts.append(f"{each.other:,} of {name} had no room")
    probes = tool.context._probes
    if probes is None:
        return parts
    if probes.orphans:
        parts.append("accesses of launches that were not seen are left out")
    return parts + [text for name, text in probes.device_losses() if name in (tool.name, "")]
