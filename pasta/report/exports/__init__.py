"""Export formats: one module each, whose `EXPORT` writes a run in the format."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pasta.report.exports.base import Export

#: Modules, in the order of `pasta report --help`. A new format needs a module and its name here.
FORMATS = (
    "html", "markdown", "json", "csv", "parquet", "speedscope", "flamegraph", "perfetto",
    "memory_snapshot",
)  # fmt: skip


def exports() -> list[Export]:
    """All formats."""
    return [import_module(f"{__name__}.{name}").EXPORT for name in FORMATS]
