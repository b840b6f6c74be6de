"""Weights of a run's stacks."""

from __future__ import annotations

from typing import Literal

from pasta.table import Unit

Weight = Literal["device", "host", "bytes"]
#: Label and unit of each weight. Host time excludes operators called from the node.
WEIGHTS: dict[Weight, tuple[str, Unit]] = {
    "device": ("device time", "ns"),
    "host": ("host time", "ns"),
    "bytes": ("allocated bytes", "bytes"),
}
