"""NVIDIA GPUs, through the Compute Sanitizer library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pasta.backends.base import Backend, Prepared
from pasta.capabilities import Source, names
from pasta.extensions import Check
from pasta.settings import Section, Sections, parse_bool, setting

if TYPE_CHECKING:
    from pasta.probes.device import DeviceProbes
    from pasta.processors.architecture import Architecture


class NvidiaSettings(Section):
    """Settings of NVIDIA's backend."""

    empty = setting(
        "nvidia.empty", parse_bool, False, "subscribe, record nothing", shim="nvidia.empty"
    )


class Nvidia(Backend):
    """NVIDIA GPUs."""

    name = "nvidia"
    title = "NVIDIA"
    settings = NvidiaSettings
    injections = ("CUDA_INJECTION64_PATH",)
    unused = "no CUDA driver was loaded with PASTA in it"
    sources = (
        Source(
            "nvidia_sanitizer",
            "NVIDIA (Compute Sanitizer)",
            names(
                """context_create context_destroy stream_create stream_destroy module_load
                module_unload kernel_launch kernel_launch_end graph_launch graph_launch_end
                memory_alloc memory_free memory_copy memory_set uvm_attach uvm_prefetch uvm_advise
                sync event_create event_destroy event_record event_wait accesses device_name
                stream_id module_hash cluster graph_node_of_launch graph_node_of_copy entry_pc
                vendor_flags copy_addresses copy_devices copy_stream"""
            ),
            notes={
                "accesses": "by [probes](nvidia.md#probes) that are patched into kernels",
                "device_name": "if all devices of the machine are the same model",
                "wait_times": "the library does not report when the call begins",
                "kernel_complete": "requires CUPTI, which excludes the Sanitizer",
                "copy_complete": "requires CUPTI, which excludes the Sanitizer",
            },
        ),
    )

    def shim_settings(self, prepared: Prepared, config: Sections) -> dict[str, object]:
        """Path of the Sanitizer library; empty if it was not found."""
        from pasta.backends.nvidia.sanitizer import find_sanitizer

        return {"sanitizer_lib": find_sanitizer() or ""}

    def checks(self) -> Iterator[Check]:
        """Checks of the driver, the Sanitizer library, and the compiler of probes."""
        from pasta.backends.nvidia.checks import checks

        return checks()

    def architecture(self, name: str) -> Architecture | None:
        """Limits, units and rates by compute capability: "sm_90"."""
        from pasta.backends.nvidia.architectures import find_architecture

        return find_architecture(name)

    @property
    def probes(self) -> DeviceProbes:
        """Probes as patches of the Sanitizer library."""
        from pasta.backends.nvidia.device import NvidiaProbes

        return NvidiaProbes()


BACKEND = Nvidia()
