"""NVIDIA GPUs, through CUPTI or the Compute Sanitizer library.

They exclude each other in a process: CUPTI has device times, the Sanitizer has probes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pasta.backends.base import Backend, Prepared, Sampler
from pasta.capabilities import Source, names
from pasta.extensions import Check
from pasta.settings import Section, Sections, parse_bool, parse_milliseconds, setting

if TYPE_CHECKING:
    from pasta.probes.device import DeviceProbes
    from pasta.processors.architecture import Architecture


AUTO, CUPTI, SANITIZER = SOURCES = ("auto", "cupti", "sanitizer")


def parse_source(value: object) -> str:
    """One of SOURCES. Raises ValueError."""
    if value not in SOURCES:
        raise ValueError(f"one of {', '.join(SOURCES)}")
    return str(value)


class NvidiaSettings(Section):
    """Settings of NVIDIA's backend."""

    source = setting(
        "nvidia.source",
        parse_source,
        SANITIZER,
        "library that records events: cupti has device times, sanitizer has probes; auto: "
        "sanitizer if a tool has probes, otherwise cupti if it is usable",
        shim="nvidia.source",
    )
    details = setting(
        "nvidia.details",
        parse_bool,
        False,
        "record how each kernel was queued and configured (CUPTI)",
        shim="nvidia.details",
    )
    uvm = setting(
        "nvidia.uvm",
        parse_bool,
        False,
        "record page faults, migrations and thrashing of managed memory (CUPTI)",
        shim="nvidia.uvm",
    )
    flush = setting(
        "nvidia.flush",
        parse_milliseconds,
        500,
        "interval between flushes of device times (CUPTI); 0: only when buffers are full",
        shim="nvidia.flush_ms",
    )
    empty = setting(
        "nvidia.empty", parse_bool, False, "subscribe, record nothing", shim="nvidia.empty"
    )


class Nvidia(Backend):
    """NVIDIA GPUs."""

    name = "nvidia"
    title = "NVIDIA"
    settings = NvidiaSettings
    injections = ("CUDA_INJECTION64_PATH",)
    selectors = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
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
                stream_id module_hash module_of_launch cluster graph_node_of_launch
                graph_node_of_copy entry_pc vendor_flags copy_addresses copy_devices
                copy_stream"""
            ),
            notes={
                "accesses": "by [probes](nvidia.md#probes) that are patched into kernels",
                "device_name": "if all devices of the machine are the same model",
                "wait_times": "the library does not report when the call begins",
                "kernel_complete": "requires CUPTI, which excludes the Sanitizer",
                "copy_complete": "requires CUPTI, which excludes the Sanitizer",
            },
        ),
        Source(
            "nvidia_cupti",
            "NVIDIA (CUPTI)",
            names(
                """device context_create context_destroy stream_create stream_destroy module_load
                module_unload kernel_launch kernel_launch_end kernel_complete kernel_details
                graph_launch graph_launch_end memory_alloc memory_free memory_copy memory_set
                copy_complete uvm_attach uvm_prefetch uvm_advise uvm_fault uvm_migration
                uvm_thrashing sync event_create event_destroy event_record event_wait overhead
                clock_error device_name stream_id module_hash cluster registers shared_static
                shared_dynamic local graph_node_of_launch graph_node_of_copy vendor_flags
                copy_addresses copy_devices wait_times"""
            ),
            notes={
                "accesses": "requires the Compute Sanitizer, which excludes CUPTI",
                "kernel_details": "with the setting `nvidia.details`",
                "uvm_fault": "with the setting `nvidia.uvm`",
                "uvm_migration": "with the setting `nvidia.uvm`",
                "uvm_thrashing": "with the setting `nvidia.uvm`",
                "device_name": "if all devices of the machine are the same model",
                "copy_addresses": "not of nodes of graphs",
            },
            is_buffered=True,
        ),
    )

    def shim_settings(self, prepared: Prepared, config: Sections) -> dict[str, object]:
        """Paths of the libraries; empty if not found."""
        from pasta.backends.nvidia.libraries import find_cupti, find_sanitizer

        return {"sanitizer_lib": find_sanitizer() or "", "cupti_lib": find_cupti() or ""}

    def checks(self) -> Iterator[Check]:
        """Checks of the driver, the Sanitizer library, and the compiler of probes."""
        from pasta.backends.nvidia.checks import checks

        return checks()

    def sampler(self) -> Sampler:
        """Samples by NVML."""
        from pasta.backends.nvidia.telemetry import NvmlSampler

        return NvmlSampler()

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
