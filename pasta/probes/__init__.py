"""Probes: small functions that run at every access inside kernels, and the maps they fill.

class Reads(Tool):
    \"\"\"Bytes read by each kernel.\"\"\"

    bytes = Counter(by="kernel")

    @probe.global_memory
    def count(access, maps):
        if access.is_read:
            maps.bytes.add(access.bytes)

    def result(self) -> Result:
        return Result(summary=f"{self.bytes.total():,} bytes read")
"""

from __future__ import annotations

from pasta.errors import ProbeError
from pasta.probes.declare import maps_of, probe, probes_of
from pasta.probes.kinds import FIELDS, KINDS
from pasta.probes.language import Op, ProbeFunction
from pasta.probes.maps import Bitmap, Counter, Histogram, PerPC, Shadow, TopK, Trace
from pasta.probes.specs import MapSpec

__all__ = [
    "FIELDS",
    "KINDS",
    "Bitmap",
    "Counter",
    "Histogram",
    "MapSpec",
    "Op",
    "PerPC",
    "ProbeError",
    "ProbeFunction",
    "Shadow",
    "TopK",
    "Trace",
    "maps_of",
    "probe",
    "probes_of",
]
