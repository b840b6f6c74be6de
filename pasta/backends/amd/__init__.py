"""AMD GPUs, through rocprofiler-sdk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pasta import paths
from pasta.backends.amd.rocprofiler import (
    DEVICE,
    LIBPASTA_AMD,
    NAMED,
    REGISTERED,
    SAMPLING,
    refusal,
    usable_rocprofiler,
    with_tool,
)
from pasta.backends.base import Backend, DeviceCounter, Launch, Prepared, Sampler
from pasta.capabilities import Source, names
from pasta.errors import ConfigError, MissingDependency
from pasta.extensions import Check
from pasta.settings import Section, Sections, parse_interval, parse_names, setting

if TYPE_CHECKING:
    from pasta.probes.device import DeviceProbes


class AmdSettings(Section):
    """Settings of AMD's backend."""

    counters = setting(
        "amd.counters", parse_names, "", "hardware counters: SQ_WAVES,GRBM_COUNT",
        shim="amd.counters",
    )  # fmt: skip
    pc_sampling = setting(
        "amd.pc_sampling", parse_interval, "", "sampling interval: 100us", shim="amd.pc_sampling"
    )

    def check(self) -> None:
        """Refuse counters together with PC sampling. Raises ConfigError."""
        if self.counters and self.pc_sampling:
            raise ConfigError(
                "amd.counters and amd.pc_sampling: the SDK cannot count and sample in one run",
                remedy="run the program twice, once with each",
            )


class Amd(Backend):
    """AMD GPUs: the SDK, which HIP loads, loads PASTA's tool.

    rocprofiler-register aborts a program if a tool is named and no SDK can be loaded, so PASTA
    names its tool only after a test process has loaded the SDK.
    """

    name = "amd"
    title = "AMD"
    settings = AmdSettings
    selectors = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    runtime_images = (r"/lib(amdhip64|hsa-runtime64|roc|hip|MIOpen|rccl|pasta_amd)[^/]*\.so",)
    runtime_functions = (r"^hip[A-Z]",)
    unused = (
        "no HIP or HSA runtime called rocprofiler-register (the program is statically "
        "linked, uses ROCm older than 6.2, or used no device)"
    )
    sources = (
        Source(
            "amd_rocprofiler",
            "AMD (rocprofiler-sdk)",
            names(
                """device context_create stream_create stream_destroy module_load module_unload
                kernel_launch kernel_launch_end kernel_complete graph_launch graph_launch_end
                graph_instantiate memory_alloc memory_free memory_copy memory_set copy_complete
                uvm_attach uvm_prefetch uvm_advise sync event_create event_destroy event_record
                event_wait counter pc_sample device_name stream_id stream_priority module_hash
                module_of_launch
                registers shared_static shared_dynamic local entry_pc vendor_flags copy_addresses
                copy_devices wait_times"""
            ),
            notes={
                "accesses": (
                    "the SDK has counters, PC sampling and thread traces, but no memory accesses"
                ),
                "counter": "the counters in `amd.counters` that the device has",
                "pc_sample": "if `amd.pc_sampling` is set; MI200 and newer",
                "stream_id": "assigned by PASTA",
                "stream_priority": "if the program sets one",
                "entry_pc": "since version 0.6",
                "registers": "vector registers of a work-item",
                "copy_complete": "of copies by engines, not of those by kernels or the CPU",
                "copy_addresses": "of `hipMemcpy*`; for other copies since version 1.0",
                "device": "name and architecture",
                "context_create": "one per device, at its first use",
                "graph_node_of_launch": "launches in a graph have the graph flag, but no node",
            },
        ),
    )

    def prepare(self, launch: Launch) -> Prepared:
        """The tool's library and the SDK's; empty after an explanation if unusable."""
        try:
            found = usable_rocprofiler(launch.program)
            if found is None and launch.is_named:
                raise MissingDependency(
                    "rocprofiler-sdk was not found",
                    remedy=f"install ROCm 6.3 or 7, or name the library with {NAMED}",
                )
            if found is None:
                return {}
            refused = refusal(found)
            if refused:
                (launch.say if launch.is_named or DEVICE.exists() else launch.log)(refused)
                return {}
            tool = paths.built(LIBPASTA_AMD)
        except MissingDependency as error:
            launch.explain(f"ROCm is not recorded: {error}")
            return {}
        launch.log(f"rocprofiler-sdk {found.version} at {found.library}")
        if launch.is_named and not os.access(DEVICE, os.R_OK | os.W_OK):
            why = "cannot be opened by this user" if DEVICE.exists() else "does not exist"
            launch.say(f"no AMD device is usable, {DEVICE} {why}: see pasta doctor")
        return {"tool": str(tool), "sdk": str(found.library)}

    def environment(
        self, target: Mapping[str, str], prepared: Prepared, config: Sections
    ) -> dict[str, str]:
        """The environment with PASTA's tool and the SDK; without the tool if it cannot be used."""
        if not prepared:
            return self.withdrawn(target)
        changed = with_tool(target, Path(prepared["tool"]))
        changed.setdefault(REGISTERED, prepared["sdk"])
        if config.of(AmdSettings).pc_sampling:
            changed.setdefault(SAMPLING, "1")
        return changed

    def withdrawn(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment without PASTA's tool."""
        return with_tool(environment, None)

    def nothing_recorded(self, prepared: Prepared) -> str | None:
        """Why there are no events; None if `prepare` reported that the SDK cannot be used."""
        return self.unused if prepared else None

    def checks(self) -> Iterator[Check]:
        """Checks of the driver, the SDK and the devices."""
        from pasta.backends.amd.checks import checks

        return checks()

    def counters(self, chip: str = "") -> list[tuple[str, Sequence[DeviceCounter]]]:
        """Counters of each GPU; the SDK does not list counters of other chips. Raises
        MissingDependency."""
        from pasta.backends.amd.checks import counters

        return [] if chip else list(counters())

    def sampler(self) -> Sampler:
        """Samples by AMD SMI."""
        from pasta.backends.amd.telemetry import AmdSmiSampler

        return AmdSmiSampler()

    @property
    def probes(self) -> DeviceProbes:
        """Probes of AMD GPUs: none run."""
        from pasta.backends.amd.device import AmdProbes

        return AmdProbes()


BACKEND = Amd()
