"""PASTA's reference accelerator as a PyTorch device, `"refacc"`.

    import torch_refacc
    x = torch.randn(3, 4, device="refacc")

This module is `torch.refacc`, with the functions that `torch.cuda` has for streams, memory and
devices. The first import for a version of torch builds the extension, in about half a minute.
Raises ImportError with the reason if it cannot be built. README.md describes each file.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta import paths
from pasta.frameworks.torch import build

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeAlias

    Device: TypeAlias = "torch.device | str | int | None"

try:
    import torch
except ImportError as error:
    raise ImportError(
        "torch_refacc needs PyTorch, which cannot be imported here"
        f" ({error}): pip install 'torch>=2.4'"
    ) from error

NAME = "refacc"
SOURCES = ("refacc", "device", "memory", "tensors", "elements", "layers", "kernels", "profiler")


def _load() -> Any:
    """Build the extension, or find it in the cache, and register the device's name."""
    here, native = Path(__file__).parent, paths.NATIVE
    major, minor = build.version(torch)
    if (major, minor) < (2, 4):
        raise ImportError(f"torch {torch.__version__} is too old for refacc: it needs 2.4 or newer")
    named = torch._C._get_privateuse1_backend_name()
    if named not in ("privateuseone", NAME):
        raise ImportError(
            f"torch has room for one device of an extension, and {named!r} is there already:"
            " import it in another process than refacc"
        )
    try:
        extension = build.extension(
            torch,
            [str(here / f"{name}.cpp") for name in SOURCES],
            str(paths.cache("torch", make=True)),
            [str(here), str(native / "include")],
            say=lambda text: print(f"pasta: {text}", file=sys.stderr),
            options=(
                f"-DPASTA_TORCH={major * 100 + minor}",
                "-pthread",
                f"-L{native}",
                "-lrefacc",
                f"-Wl,-rpath,{native}",
            ),
        )
    except (build.CannotBuild, OSError) as error:
        raise ImportError(f"refacc, as a torch device, cannot be built: {error}") from error
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, sys.modules[__name__])
    torch.utils.generate_methods_for_privateuse1_backend()
    return extension


_C = _load()


def _autograd_runs() -> bool:
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended
            if (thread / "comm").read_text().startswith("pt_autograd"):
                return True
    return False


def _leave(importer: int = os.getpid()) -> None:
    if os.getpid() != importer:  # a fork's child has no threads of autograd
        return
    _C.stop_autograd()
    until = time.monotonic() + 1
    while _autograd_runs() and time.monotonic() < until:
        time.sleep(0.001)  # without the interpreter's lock, which they need to end


atexit.register(_leave)


# ---- devices ---------------------------------------------------------------------------------


def is_available() -> bool:
    """Whether there is a device."""
    return device_count() > 0


def is_initialized() -> bool:
    """As `is_available`: devices are initialized at their first use."""
    return is_available()


def init() -> None:
    """Do nothing: devices are initialized at their first use."""


def device_count() -> int:
    """Number of devices: `REFACC_DEVICES`."""
    return int(_C.device_count())


def current_device() -> int:
    """Index of this thread's current device."""
    return int(_C.current_device())


def set_device(device: Device) -> None:
    """Make a device this thread's current one."""
    _C.exchange_device(_index(device))


@contextmanager
def device(device: Device) -> Iterator[None]:
    """Make a device this thread's current one inside the block."""
    before = _C.exchange_device(_index(device))
    try:
        yield
    finally:
        _C.exchange_device(before)


def _index(device: Device) -> int:
    if device is None:
        return current_device()
    if isinstance(device, int):
        return device
    found = torch.device(device)
    if found.type != NAME:
        raise ValueError(f"{found} is not a device of {NAME}")
    return current_device() if found.index is None else int(found.index)


def get_device_properties(device: Device = None) -> dict[str, Any]:
    """Its name and limits; memory is in bytes."""
    return dict(_C.properties(_index(device)))


def get_device_name(device: Device = None) -> str:
    """The device's name."""
    return str(get_device_properties(device)["name"])


def synchronize(device: Device = None) -> None:
    """Wait for the device's work. Raises RuntimeError if a kernel failed."""
    _C.synchronize(_index(device))


# ---- streams ---------------------------------------------------------------------------------


def _stream(number: int, device: int) -> torch.Stream:
    kind = int(torch._C._autograd.DeviceType.PrivateUse1)
    return torch.Stream(stream_id=number, device_index=device, device_type=kind)


def Stream(device: Device = None, priority: int = 0) -> torch.Stream:
    """A stream of the device's pool, which is reused in turn; a priority below 0 is high."""
    return torch.Stream(f"{NAME}:{_index(device)}", priority=priority)


def Event(enable_timing: bool = False) -> torch.Event:
    """An event of the current device, with timestamps if `enable_timing`."""
    return torch.Event(NAME, enable_timing=enable_timing)


def current_stream(device: Device = None) -> torch.Stream:
    """The stream of the device that this thread launches into."""
    index = _index(device)
    return _stream(_C.current_stream(index), index)


def default_stream(device: Device = None) -> torch.Stream:
    """The device's default stream."""
    return _stream(0, _index(device))


def set_stream(stream: torch.Stream) -> None:
    """Make a stream the current one of its device, in this thread."""
    _C.set_stream(stream.device_index, stream.stream_id)


@contextmanager
def stream(stream: torch.Stream) -> Iterator[None]:
    """Launch into a stream inside the block."""
    with device(stream.device_index):
        before = _C.set_stream(stream.device_index, stream.stream_id)
        try:
            yield
        finally:
            _C.set_stream(stream.device_index, before)


# ---- memory: bytes ---------------------------------------------------------------------------


def memory_stats(device: Device = None) -> dict[str, int]:
    """Bytes allocated and reserved, now and at their peaks; counts since the start."""
    return dict(_C.usage(_index(device)))


def memory_allocated(device: Device = None) -> int:
    """Bytes of live tensors."""
    return memory_stats(device)["allocated_bytes"]


def memory_reserved(device: Device = None) -> int:
    """Bytes of the allocator's segments."""
    return memory_stats(device)["reserved_bytes"]


def max_memory_allocated(device: Device = None) -> int:
    """Peak bytes of live tensors."""
    return memory_stats(device)["max_allocated_bytes"]


def max_memory_reserved(device: Device = None) -> int:
    """Peak bytes of the allocator's segments."""
    return memory_stats(device)["max_reserved_bytes"]


def reset_peak_memory_stats(device: Device = None) -> None:
    """Set the peaks to the current bytes."""
    _C.reset_peak(_index(device))


def empty_cache() -> None:
    """Return memory that no tensor uses to the device."""
    _C.empty_cache()


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Free and total bytes."""
    total = get_device_properties(device)["total_memory"]
    return total - memory_reserved(device), total


# ---- random numbers: drawn by the CPU's generators, which torch seeds itself -------------------


def manual_seed(seed: int) -> None:
    """Seed the CPU's generator."""
    torch.default_generator.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Do nothing: torch.manual_seed, which calls it, seeds the CPU's generator."""


def seed_all() -> None:
    """Do nothing, as manual_seed_all."""


def get_rng_state(device: Device = None) -> torch.Tensor:
    """State of the CPU's generator."""
    return torch.default_generator.get_state()


def set_rng_state(new_state: torch.Tensor, device: Device = None) -> None:
    """Set the state of the CPU's generator."""
    torch.default_generator.set_state(new_state)


def _is_in_bad_fork() -> bool:
    return bool(_C.was_forked())


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Types that autocast accepts; operators of these run on the CPU."""
    return [torch.bfloat16, torch.float16]
