"""Results of tools, and findings: suggested changes of the program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, Literal

if TYPE_CHECKING:
    from pathlib import Path

    from pasta.table import Figure, Table

Confidence = Literal["high", "medium", "low"]
#: Topic of a tool; reports show tools in this order.
Topic = Literal["time", "operators", "memory", "accesses", "other"]
_WEIGHTS: dict[Confidence, float] = {"high": 1.0, "medium": 0.6, "low": 0.3}


@dataclass(frozen=True)
class Finding:
    """A suggested change of the program; reports list the most promising first.

    `gain`: largest share (0 to 1) of `of`, such as "device time" or "peak memory", that the
    evidence shows could be saved; None if unknown. `confidence`: "high" if the evidence
    shows the fault itself, "medium" if it shows the cost and the remedy may not apply, "low" for a
    place to inspect.
    """

    what: str  # in a line, without where: "one kernel takes most of the device time"
    where: str  # kernel, operator, line, object
    evidence: str  # the measured figures that show it
    remedy: str  # a command to paste, or a change to a named line: "train.py:12 step: …"
    gain: float | None = None
    of: str = "device time"
    confidence: Confidence = "medium"

    @property
    def rank(self) -> float:
        """Expected gain, by which findings of all tools are sorted."""
        return (self.gain or 0.0) * _WEIGHTS[self.confidence]


@dataclass(frozen=True)
class Result:
    """Result of a tool.

    `files`: functions are called with an open binary file to write, files at paths are moved.
    `notes`: remarks on the result; PASTA adds missing capabilities of the run's backend.
    """

    summary: str
    tables: Mapping[str, Table] = field(default_factory=dict)
    findings: Sequence[Finding] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    files: Mapping[str, Callable[[BinaryIO], None] | Path] = field(default_factory=dict)
    notes: Sequence[str] = ()
