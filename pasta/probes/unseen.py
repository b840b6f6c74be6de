"""What the probes of a tool did not see: every result says it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pasta.probes.accumulators import TopKAccumulator, TraceAccumulator
from pasta.probes.signatures import ApiError, signatures

if TYPE_CHECKING:
    from pasta.tool import Tool


def unseen(tool: Tool) -> list[str]:
    """Parts of the tool's summary, in `result`: what is known to be missing from its numbers."""
    parts = []
    for name, each in tool._maps.items():
        if isinstance(each, TraceAccumulator) and each.dropped:
            parts.append(f"{each.dropped:,} accesses were lost on their way")
        if isinstance(each, TopKAccumulator) and each.other:
            parts.append(f"{each.other:,} of {name} had no room")
    probes = tool.context._probes
    if probes is None:
        return parts
    if probes.orphans:
        parts.append("accesses of launches that were not seen are left out")
    for source, version in sorted(probes.sources):
        library = tool.context.strings.many([source, version])
        blind = _blind(tool, *library)
        if blind:
            parts.append(f"{library[0]} {library[1]} cannot see {', '.join(blind)}")
    return parts + [text for name, text in probes.device_losses() if name in (tool.name, "")]


def _blind(tool: Tool, source: str, version: str) -> list[str]:
    """Kinds that a tool's probes ask for and the source has no callback for."""
    if source != "nvidia_sanitizer":
        return []
    try:
        return [
            kind
            for kind in dict.fromkeys(kind for probe in tool.probes() for kind in probe.kinds)
            if not signatures(kind, version)
        ]
    except ApiError:  # the source said so, and no probe ran
        return []
