"""NVIDIA GPUs, through CUPTI or the Compute Sanitizer library.

They exclude each other in a process: CUPTI has device times, the Sanitizer has probes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pasta.backends.base import Backend, DeviceCounter, DeviceRoofs, Prepared, Sampler
from pasta.capabilities import COUNTERS, INSTRUCTIONS, PC_SAMPLES, Source, names
from pasta.errors import ConfigError
from pasta.extensions import Check
from pasta.settings import (
    Section,
    Sections,
    parse_bool,
    parse_bytes,
    parse_interval,
    parse_milliseconds,
    parse_names,
    setting,
)

if TYPE_CHECKING:
    from pasta.probes.device import DeviceProbes
    from pasta.processors.architecture import Architecture


AUTO, CUPTI, SANITIZER = SOURCES = ("auto", "cupti", "sanitizer")
CONTINUOUS, SERIALIZED = SAMPLING_MODES = ("continuous", "serialized")
KERNEL, RANGE = COUNTING_MODES = ("kernel", "range")
#: Counters, if a tool needs some and none are named: one pass on GA100, AD102, GH100 and GB100.
DEFAULT_COUNTERS = ",".join(
    (
        "dram__bytes.sum",
        "dram__bytes_read.sum",
        "dram__bytes_write.sum",
        "lts__t_bytes.sum",
        "lts__t_tag_requests_hit.sum",
        "lts__t_tag_requests_miss.sum",
        "l1tex__t_sector_hit_rate.pct",
        "sm__inst_executed.sum",
        "sm__issue_active.avg.pct_of_peak_sustained_active",
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__warps_active.avg.pct_of_peak_sustained_active",
    )
)
_INSTRUCTIONS = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
_PRODUCTS = "sm__ops_path_tensor_src_{}.sum"
#: Counters of operations, as Nsight Compute's rooflines count them: instructions of threads, of
#: which those on half precision do two operations at once, and operations of tensor cores.
FLOP_COUNTERS = (
    (_INSTRUCTIONS.format("fadd"), "float32", 1),
    (_INSTRUCTIONS.format("fmul"), "float32", 1),
    (_INSTRUCTIONS.format("ffma"), "float32", 2),
    (_INSTRUCTIONS.format("dadd"), "float64", 1),
    (_INSTRUCTIONS.format("dmul"), "float64", 1),
    (_INSTRUCTIONS.format("dfma"), "float64", 2),
    (_INSTRUCTIONS.format("hadd"), "float16", 2),
    (_INSTRUCTIONS.format("hmul"), "float16", 2),
    (_INSTRUCTIONS.format("hfma"), "float16", 4),
    (_PRODUCTS.format("fp64"), "float64 matrix", 1),
    (_PRODUCTS.format("tf32_dst_fp32"), "tf32 matrix", 1),
    (_PRODUCTS.format("bf16_dst_fp32"), "bfloat16 matrix", 1),
    (_PRODUCTS.format("fp16"), "float16 matrix", 1),  # GH100; the others have the next two
    (_PRODUCTS.format("fp16_dst_fp16"), "float16 matrix", 1),
    (_PRODUCTS.format("fp16_dst_fp32"), "float16 matrix", 1),
    (_PRODUCTS.format("fp8"), "float8 matrix", 1),
)
_MEMORY_BYTES = "dram__bytes.sum"
_FLOPS = tuple(name for name, _, _ in FLOP_COUNTERS)
#: Names in `nvidia.counters` for several counters. A chip need not have all of them.
COUNTER_GROUPS = {
    "dram": (_MEMORY_BYTES, "dram__bytes_read.sum", "dram__bytes_write.sum"),
    "flops": _FLOPS,
    "roofline": (_MEMORY_BYTES, *_FLOPS),
}
#: Cycles between the samples of a multiprocessor, if a tool needs samples and no interval is set:
#: of all kernels, and of single launches, which may be short.
DEFAULT_INTERVAL, LAUNCH_INTERVAL = "32768cycles", "4096cycles"
_INTERVALS = {f"{1 << power}cycles" for power in range(5, 32)}


def parse_source(value: object) -> str:
    """One of SOURCES. Raises ValueError."""
    if value not in SOURCES:
        raise ValueError(f"one of {', '.join(SOURCES)}")
    return str(value)


def parse_sampling_mode(value: object) -> str:
    """One of SAMPLING_MODES. Raises ValueError."""
    if value not in SAMPLING_MODES:
        raise ValueError(f"one of {', '.join(SAMPLING_MODES)}")
    return str(value)


def parse_counting_mode(value: object) -> str:
    """One of COUNTING_MODES. Raises ValueError."""
    if value not in COUNTING_MODES:
        raise ValueError(f"one of {', '.join(COUNTING_MODES)}")
    return str(value)


def counter_names(text: str) -> str:
    """`nvidia.counters` with the counters of each group in its place. A question mark precedes
    them: libpasta leaves them out without a message if the chip does not have them."""
    given = text.split(",")
    named = [name for name in given if name not in COUNTER_GROUPS]
    of_groups = (each for name in given for each in COUNTER_GROUPS.get(name, ()))
    return ",".join(
        [*named, *(f"?{each}" for each in dict.fromkeys(of_groups) if each not in named)]
    )


class NvidiaSettings(Section):
    """Settings of NVIDIA's backend."""

    source = setting(
        "nvidia.source",
        parse_source,
        AUTO,
        "library that records events: cupti provides device times and PC samples, sanitizer "
        "runs probes; auto: sanitizer if a tool has probes, otherwise cupti if it is usable",
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
    pc_sampling = setting(
        "nvidia.pc_sampling",
        parse_interval,
        "",
        "interval between PC samples of a multiprocessor (CUPTI): a power of two of cycles, such"
        f" as 4096cycles. If a tool needs samples: {DEFAULT_INTERVAL}, or {LAUNCH_INTERVAL} in mode"
        " serialized",
        shim="nvidia.pc_sampling",
    )
    pc_sampling_mode = setting(
        "nvidia.pc_sampling_mode",
        parse_sampling_mode,
        CONTINUOUS,
        "continuous: sample all kernels, without their launches; serialized: sample each "
        "selected launch, which runs alone",
        shim="nvidia.pc_sampling_mode",
    )
    pc_sampling_hardware = setting(
        "nvidia.pc_sampling_hardware",
        parse_bytes,
        512 << 20,
        "device memory per context for PC samples",
        minimum=1 << 20,
        shim="nvidia.pc_sampling_hardware",
    )
    pc_sampling_scratch = setting(
        "nvidia.pc_sampling_scratch",
        parse_bytes,
        64 << 20,
        "host memory per context for PC samples",
        minimum=1 << 16,
        shim="nvidia.pc_sampling_scratch",
    )
    pc_sampling_sleep = setting(
        "nvidia.pc_sampling_sleep",
        parse_milliseconds,
        10,
        "how long CUPTI's threads sleep between reads of PC samples from the device",
        minimum=1,
        maximum=60_000,
        shim="nvidia.pc_sampling_sleep_ms",
    )
    counters = setting(
        "nvidia.counters",
        parse_names,
        "",
        "hardware counters (CUPTI), such as dram__bytes.sum,sm__inst_executed.sum, or the "
        f"groups {', '.join(COUNTER_GROUPS)}; default if a tool needs counters: common ones",
        shim="nvidia.counters",
    )
    counters_mode = setting(
        "nvidia.counters_mode",
        parse_counting_mode,
        KERNEL,
        "kernel: count each selected launch, which runs alone, once per pass; range: count "
        "all that runs during consecutive selected launches, once",
        shim="nvidia.counters_mode",
    )
    instructions = setting(
        "nvidia.instructions",
        parse_bool,
        False,
        "count the executions of each instruction in each selected launch (CUPTI), which "
        "runs alone, patched; on if a tool needs it",
        shim="nvidia.instructions",
    )
    empty = setting(
        "nvidia.empty", parse_bool, False, "subscribe, but record nothing", shim="nvidia.empty"
    )
    empty_while_off = setting(
        "nvidia.empty_while_off",
        parse_bool,
        False,
        "for benchmarks: nothing is followed while recording is off (pasta.stop), as with "
        "nvidia.empty; what is recorded later is incomplete",
        shim="empty_while_off",
    )

    def check(self) -> None:
        """Refuse intervals that the hardware does not have, and counters together with PC samples.
        Raises ConfigError."""
        if self.counters and self.pc_sampling:
            raise ConfigError(
                "nvidia.counters and nvidia.pc_sampling: the hardware cannot count and "
                "sample in one run",
                remedy="run the program twice, once with each",
            )
        other = "nvidia.counters" if self.counters else "nvidia.pc_sampling"
        if self.instructions and (self.counters or self.pc_sampling):
            raise ConfigError(
                f"nvidia.instructions and {other}: CUPTI supports only one of them in a run",
                remedy="run the program twice, once with each",
            )
        if self.pc_sampling and self.pc_sampling not in _INTERVALS:
            raise ConfigError(
                f"nvidia.pc_sampling = {self.pc_sampling}: the interval must be a power of two, "
                "32cycles or more",
                remedy=f"use one such as {DEFAULT_INTERVAL}",
            )


class Nvidia(Backend):
    """NVIDIA GPUs."""

    name = "nvidia"
    title = "NVIDIA"
    settings = NvidiaSettings
    injections = ("CUDA_INJECTION64_PATH",)
    selectors = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    runtime_images = (
        r"/lib(cuda|cudnn|cublas|cufft|cusparse|cusolver|curand|cupti|nccl|nv|sanitizer)[^/]*\.so",
    )
    runtime_functions = (r"^(__)?cu(da)?[A-Z]", r"^(__cudart|libcudart_static_)")
    memory_counters = (_MEMORY_BYTES,)
    flop_counters = FLOP_COUNTERS
    unused = "no CUDA driver was loaded while PASTA was active"
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
                "pc_sample": "requires CUPTI, which excludes the Sanitizer",
                "counter": "requires CUPTI, which excludes the Sanitizer",
                "instruction_count": "requires CUPTI, which excludes the Sanitizer",
                "tensor_map": "requires CUPTI, which excludes the Sanitizer",
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
                clock_error counter instruction_count tensor_map pc_sample device_name stream_id
                module_hash cluster registers shared_static shared_dynamic local
                graph_node_of_launch graph_node_of_copy vendor_flags copy_addresses copy_devices
                wait_times"""
            ),
            notes={
                "accesses": "requires the Compute Sanitizer, which excludes CUPTI",
                "kernel_details": "with the setting `nvidia.details`",
                "uvm_fault": "with the setting `nvidia.uvm`",
                "uvm_migration": "with the setting `nvidia.uvm`",
                "uvm_thrashing": "with the setting `nvidia.uvm`",
                "pc_sample": "if a tool needs them or `nvidia.pc_sampling` is set",
                "counter": "if a tool needs them or `nvidia.counters` names some; not with PC "
                "samples",
                "instruction_count": "if a tool needs them or `nvidia.instructions` is set; not "
                "with counters or PC samples",
                "tensor_map": "with `instruction_count`",
                "device_name": "if all devices of the machine are the same model",
                "copy_addresses": "not of nodes of graphs",
            },
            is_buffered=True,
        ),
    )

    def adapt(self, config: Sections, wanted: Collection[str]) -> None:
        """Sample or count if a tool needs it."""
        own = config.of(NvidiaSettings)
        if own.instructions:
            return
        if PC_SAMPLES in wanted and not own.pc_sampling and not own.counters:
            by_launch = own.pc_sampling_mode == SERIALIZED
            own.pc_sampling = LAUNCH_INTERVAL if by_launch else DEFAULT_INTERVAL
        if COUNTERS in wanted and not own.pc_sampling and not own.counters:
            own.counters = DEFAULT_COUNTERS
        if INSTRUCTIONS in wanted and not own.pc_sampling and not own.counters:
            own.instructions = True

    def leave_to_times(self, config: Sections) -> None:
        """Samples, counters, instructions and faults, which CUPTI takes."""
        own = config.of(NvidiaSettings)
        own.pc_sampling, own.counters, own.uvm = "", "", False
        own.instructions = False

    def adapt_times(self, config: Sections, wanted: Collection[str]) -> None:
        """Faults and migrations of managed memory."""
        if "uvm_fault" in wanted:
            config.of(NvidiaSettings).uvm = True

    def selects_launches(self, config: Sections) -> bool:
        """Whether launches are sampled or counted one by one."""
        own = config.of(NvidiaSettings)
        return bool(own.counters) or own.instructions or self.requires_selection(config)

    def requires_selection(self, config: Sections) -> bool:
        """Whether launches are sampled one by one."""
        own = config.of(NvidiaSettings)
        return bool(own.pc_sampling) and own.pc_sampling_mode == SERIALIZED

    def shim_settings(self, prepared: Prepared, config: Sections) -> dict[str, object]:
        """Paths of the libraries, empty if not found; names of counters instead of groups."""
        from pasta.backends.nvidia.libraries import find_cupti, find_sanitizer

        return {
            "sanitizer_lib": find_sanitizer() or "",
            "cupti_lib": find_cupti() or "",
            "nvidia.counters": counter_names(config.of(NvidiaSettings).counters),
        }

    def checks(self) -> Iterator[Check]:
        """Checks of the driver, the Sanitizer library, and the compiler of probes."""
        from pasta.backends.nvidia.checks import checks

        return checks()

    def counters(self, chip: str = "") -> list[tuple[str, Sequence[DeviceCounter]]]:
        """Counters by chip, of the devices or of the one named. Raises MissingDependency."""
        from pasta.backends.nvidia.libraries import find_cupti
        from pasta.backends.nvidia.metrics import counters

        return counters(find_cupti(), chip)

    def roofs(
        self, environment: Mapping[str, str], say: Callable[[str], None], *, again: bool = False
    ) -> list[DeviceRoofs]:
        """Roofs measured in a short process on each device."""
        from pasta.backends.nvidia.roofs import find_roofs

        return find_roofs(environment, say, again=again)

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
