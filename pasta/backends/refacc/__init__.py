"""The reference accelerator: a device that runs on the CPU, for tests and demonstrations."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from pasta import paths
from pasta.backends.base import Backend
from pasta.capabilities import PC_SAMPLES, Source, names
from pasta.extensions import Check, built_check
from pasta.settings import Section, Sections, parse_count, setting

if TYPE_CHECKING:
    from pasta.probes.device import DeviceProbes


#: Sectors of a sample, if a tool needs samples and none are set.
_DEFAULT_SECTORS = 64


class RefaccSettings(Section):
    """Settings of the reference accelerator."""

    samples = setting(
        "refacc.samples",
        parse_count,
        0,
        "take one sample for every N 32-byte sectors transferred by a load of global memory; "
        f"0: none, or {_DEFAULT_SECTORS} if a tool needs samples",
        shim="refacc.samples",
    )


class ReferenceAccelerator(Backend):
    """Kernels are C functions of the host: PASTA sees every access."""

    name = "refacc"
    title = "reference accelerator"
    settings = RefaccSettings
    injections = ("REFACC_INJECTION_PATH",)
    runtime_images = (r"/librefacc\.so",)
    unused = "the reference accelerator was not used"
    sources = (
        Source(
            "refacc",
            "reference accelerator",
            names(
                """device context_create context_destroy stream_create stream_destroy module_load
                module_unload kernel_launch kernel_launch_end kernel_complete graph_launch
                graph_launch_end memory_alloc memory_free memory_copy memory_set copy_complete
                uvm_attach uvm_prefetch uvm_advise uvm_fault uvm_migration sync event_create
                event_destroy event_record event_wait accesses device_name stream_priority
                module_hash module_of_launch cluster registers shared_static shared_dynamic local
                graph_node_of_launch graph_node_of_copy entry_pc copy_addresses copy_devices
                wait_times pc_sample"""
            ),
            notes={
                "accesses": "by probes that run on the CPU",
                "pc_sample": "if a tool needs them or `refacc.samples` is set, at loads",
            },
        ),
    )

    def adapt(self, config: Sections, wanted: Collection[str]) -> None:
        """Sample if a tool needs samples."""
        own = config.of(RefaccSettings)
        if PC_SAMPLES in wanted and not own.samples:
            own.samples = _DEFAULT_SECTORS

    def checks(self) -> Iterator[Check]:
        """Whether librefacc.so was built."""
        yield built_check("reference accelerator", paths.NATIVE / "librefacc.so")

    @property
    def probes(self) -> DeviceProbes:
        """Probes run by the CPU executor."""
        from pasta.backends.refacc.device import ReferenceProbes

        return ReferenceProbes()


BACKEND = ReferenceAccelerator()
