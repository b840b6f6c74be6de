"""Probes on NVIDIA GPUs, which run as patches of the Sanitizer library."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from pasta import paths
from pasta.backends.nvidia import visibility
from pasta.probes.declare import probes_of
from pasta.probes.device import DeviceProbes, DeviceReader, Numbers, ProbeSettings
from pasta.probes.kinds import kinds_of
from pasta.sass.disassembly import find_nvdisasm

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from pasta.members import Owner
    from pasta.probes.coverage import Code, Visibility


class NvidiaProbes(DeviceProbes):
    """Probes in patches; kernels are read with nvdisasm."""

    patches_modules = True

    def visibility(self, source: str, version: str) -> Visibility:
        """The access kinds that the Sanitizer library of this version reports."""
        return visibility.sanitizer(version)

    def compile(self, tools: Sequence[Owner], given: ProbeSettings) -> Sequence[str]:
        """Lines of the plan, with the patches compiled for each architecture. Raises PastaError."""
        from pasta.backends.nvidia.devices import device_architectures
        from pasta.backends.nvidia.libraries import find_sanitizer
        from pasta.backends.nvidia.plan import plan_for

        sms = [given.architecture] if given.architecture else device_architectures()
        return plan_for(
            tools, find_sanitizer(), sms, given.memory, given.trace_memory,
            waits=given.waits, on_missing=given.on_missing,
        )  # fmt: skip

    def slowdown(self, tools: Sequence[Owner]) -> float:
        """Of a training step, in which the patched kinds of instructions matter most (docs/
        performance.md): 12, with shared memory 35."""
        kinds = {kind for tool in tools for each in probes_of(tool) for kind in each.kinds}
        return 35.0 if kinds & set(kinds_of("shared")) else 12.0

    def reads_code(self) -> bool:
        """Whether nvdisasm was found."""
        return find_nvdisasm() is not None

    def results(
        self,
        tools: Sequence[Owner],
        numbers: Numbers,
        selected: Callable[[NDArray[Any]], NDArray[Any]],
        missed: Callable[[NDArray[Any], str], None],
    ) -> DeviceReader:
        """A reader of what patches count for the maps of `tools`. Raises ToolError."""
        from pasta.backends.nvidia.plan import layout_of
        from pasta.backends.nvidia.readback import DeviceResults
        from pasta.probes.maps import accumulators_of

        maps = {
            (type(tool).name, name): accumulator
            for tool in tools
            for name, accumulator in accumulators_of(tool).items()
        }
        return DeviceResults(layout_of(tools), maps, numbers, selected, missed)

    def read_code(
        self, modules: Sequence[tuple[Path, Collection[str]]], timeout: float
    ) -> list[Code]:
        """SASS of kernels and of the functions that they call, from the cache or nvdisasm."""
        return visibility.read_together(modules, cache=paths.cache("sass"), timeout=timeout)
