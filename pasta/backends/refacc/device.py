"""Probes of the reference accelerator: the CPU executor runs them over all accesses."""

from __future__ import annotations

from pasta.probes.coverage import Visibility
from pasta.probes.device import DeviceProbes
from pasta.probes.kinds import KIND


class ReferenceProbes(DeviceProbes):
    """Kernels are C functions of the host: nothing to disassemble, and every access is reported."""

    def visibility(self, source: str, version: str) -> Visibility:
        """All access kinds."""
        return Visibility("the reference accelerator", frozenset(KIND), complete=True)
