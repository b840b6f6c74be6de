"""Adds notes to results about data that the run's backend does not provide."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pasta.capabilities import ACCESSES, CAPABILITIES, not_given
from pasta.errors import ToolError
from pasta.sources import Capabilities
from pasta.tool import Result, Tool


def with_gaps(tool: Tool, result: Result, sources: Iterable[str]) -> Result:
    """The result with a note for each accelerator among `sources` without data that the tool uses.

    If a tool requires accesses and no source provides them, the result contains only that note.
    Raises ToolError if `uses` of the tool has an unknown capability.
    """
    kind = type(tool)  # the instance may have attributes of these names
    unknown = [name for name in kind.uses if name not in CAPABILITIES]
    if unknown:
        raise ToolError(
            f"tool {kind.name}: uses = {unknown[0]!r} is not a capability",
            remedy="docs/backends.md has their names",
        )
    capabilities = Capabilities(tuple(sources))
    wants = kind.wants()
    if ACCESSES in wants and capabilities.blind and not kind.optional_accesses:
        who, what = " and ".join(capabilities.blind), CAPABILITIES[ACCESSES].text
        return Result(summary=f"not available on this backend: {who} does not provide {what}")
    notes = [
        not_given(source, [each.text for each in missing])
        for source, missing in capabilities.missing(wants).items()
    ]
    return replace(result, notes=(*result.notes, *notes)) if notes else result
