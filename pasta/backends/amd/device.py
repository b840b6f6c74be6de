"""Probes on AMD GPUs: none run, and rocprofiler-sdk reports no accesses."""

from __future__ import annotations

from pasta.probes.coverage import Visibility
from pasta.probes.device import DeviceProbes


class AmdProbes(DeviceProbes):
    """No access is seen."""

    def visibility(self, source: str, version: str) -> Visibility:
        """No access kind: rocprofiler-sdk reports no accesses."""
        return Visibility("rocprofiler-sdk")
