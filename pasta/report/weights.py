"""Weights of a run's stacks."""

from __future__ import annotations

from typing import Literal

from pasta.table import Unit

Weight = Literal["device", "host", "cpu", "bytes", "accesses"]
#: Label and unit of each weight. Host time excludes operators called from the node; without
#: operators it is that of launch calls and waits. Processor time is from samples (--perf).
#: Accesses are those of probed launches, as access_count has them.
WEIGHTS: dict[Weight, tuple[str, Unit]] = {
    "device": ("device time", "ns"),
    "host": ("host time", "ns"),
    "cpu": ("processor time of the host", "ns"),
    "bytes": ("allocated bytes", "bytes"),
    "accesses": ("memory accesses", "count"),
}
