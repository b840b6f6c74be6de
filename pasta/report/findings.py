"""Findings as the HTML report shows them: with their line of source and commands to copy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pasta.report.text import gain_of

if TYPE_CHECKING:
    from pasta.report.sources import Source
    from pasta.tool import Finding

#: A command in a remedy, and a line of source in a finding.
_COMMAND = re.compile(r"pasta(?:-preload)? [^;]*?-- PROGRAM")
_LINE = re.compile(r"(?:^|[\s(/])(?P<file>[^\s:/()]+):(?P<line>\d{1,7})(?!\d)")


@dataclass(frozen=True)
class ShownFinding:
    """A finding as the page shows it.

    `remedy` is its text in parts, each with whether it is a command, in which PROGRAM is the
    program of the run. `line` is the line of source that it names, and `number` that line's
    number; None where it names none whose text is known.
    """

    title: str
    tool: str
    finding: Finding
    gain: str
    remedy: Sequence[tuple[str, bool]]
    number: int | None
    line: str

    @classmethod
    def of(
        cls, title: str, tool: str, finding: Finding, command: str, sources: Sequence[Source]
    ) -> ShownFinding:
        """A finding of a run of `command`, with its line in `sources`."""
        number, line = _named_line(finding, sources) or (None, "")
        remedy = list(_remedy(finding.remedy, command))
        return cls(title, tool, finding, gain_of(finding), remedy, number, line)


def _named_line(finding: Finding, sources: Sequence[Source]) -> tuple[int, str] | None:
    """Number and text of the first line of source that a finding's remedy or place names."""
    for text in (finding.remedy, finding.where):
        for found in _LINE.finditer(text):
            number = int(found["line"])
            for source in sources:
                if source.path.endswith(f"/{found['file']}") and number in source.text:
                    return number, source.text[number].strip()
    return None


def _remedy(text: str, command: str) -> Iterator[tuple[str, bool]]:
    at = 0
    for found in _COMMAND.finditer(text):
        if found.start() > at:
            yield text[at : found.start()], False
        shown = found[0].removesuffix("PROGRAM") + command if command else found[0]
        yield shown, True
        at = found.end()
    if at < len(text):
        yield text[at:], False
