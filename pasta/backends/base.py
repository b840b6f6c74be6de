"""A backend: the Python side of one vendor's accelerators, as one object.

A backend is a subclass of `Backend` in a separate folder, exported there as `BACKEND`; every part
except its name is optional. Its event source is in C (shim/include/pasta_source.h), in libpasta or
in a library that `libraries` names. docs/new-backend.md walks through a complete backend.

The methods are called in this order: `adapt` and `prepare` before the program starts, then
`environment` and `shim_settings` for each process that is started with libpasta, and
`nothing_recorded` if it recorded no event. The result of `prepare` is passed to the others as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pasta.extensions import Extension
from pasta.settings import Sections

if TYPE_CHECKING:
    from pasta.probes.device import DeviceProbes
    from pasta.processors.architecture import Architecture

#: Result of a backend's `prepare`, in JSON's types.
Prepared = Mapping[str, Any]


class Launch(NamedTuple):
    """A program that is about to start, as a backend sees it."""

    program: str  # path of the executable
    is_named: bool  # by --backend; else the program's libraries decide
    config: Sections
    say: Callable[[str], None]  # prints a line for the user
    log: Callable[[str], None]  # writes a line to the session's log

    def explain(self, text: str) -> None:
        """Prints a line if the user named the backend, otherwise logs it."""
        (self.say if self.is_named else self.log)(text)


#: Bandwidth of a PCIe lane in one direction by generation, without the overhead of its line code:
#: 10^6 bytes/s.
PCIE_LANE = {1: 250, 2: 500, 3: 985, 4: 1969, 5: 3938, 6: 7563}


class Sample(NamedTuple):
    """State of a device; None where the device, driver or permissions do not provide it.

    The fields are those of the event device_sample (docs/events.md).
    """

    power: int | None = None  # mW
    power_limit: int | None = None  # mW
    clock: int | None = None  # of multiprocessors, MHz
    max_clock: int | None = None  # MHz
    memory_clock: int | None = None  # MHz
    throttle: int | None = None  # bits: pasta.abi.THROTTLE
    temperature: int | None = None  # degrees Celsius
    utilization: int | None = None  # percent of time with a kernel
    memory_activity: int | None = None  # percent of time with memory traffic
    memory_used: int | None = None  # bytes, by all processes
    memory_total: int | None = None  # bytes
    #: Of all links to other devices, or where it has none to the host, in one direction: 10^6
    #: bytes/s.
    link_bandwidth: int | None = None
    #: Bytes of device memory by the pids of the processes that use the device; None: not given.
    processes: Mapping[int, int | None] | None = None


class DeviceCounter(NamedTuple):
    """A hardware counter, by its name in the backend's setting; `text`: what it counts."""

    name: str
    text: str = ""


class DeviceRoofs(NamedTuple):
    """What a device reached in kernels of PASTA's own: bytes or floating-point operations per
    second by the name of the roof (pasta/processors/architecture.py). `why`: the reason
    why all or some were not measured; empty without one."""

    uuid: str  # as in `device` events
    name: str
    rates: Mapping[str, float]
    why: str = ""


class Sampler(Protocol):
    """Reads the state of a vendor's devices; a thread of the launcher calls all methods."""

    def open(self) -> list[str]:
        """Loads the vendor's library; uuids of the devices. Any exception: no samples."""

    def sample(self, device: int) -> Sample:
        """State of a device, by its index in the list of `open`. Any exception: the device is gone,
        and is not sampled again."""

    def ordinals(self, environment: Mapping[str, str]) -> dict[int, int]:
        """Ordinal, in a process with these variables, of each device that the process may see, by
        index; -1 where it is not known."""

    def close(self) -> None:
        """Ends the use of the library."""


class Backend(Extension):
    """One vendor's accelerators. The defaults suit a backend without special requirements.

    `name` is the name in `--backend NAME` and in the C source's call of `pasta_listens_to`.
    """

    #: Shared libraries that contain an event source, which libpasta loads into the program.
    libraries: tuple[Path, ...] = ()
    #: Environment variables that name a library for the vendor's runtime to load: set to libpasta.
    injections: tuple[str, ...] = ()
    #: Environment variables by which a program selects the devices that it sees; `Sampler.ordinals`
    #: receives their values.
    selectors: tuple[str, ...] = ()
    #: Regular expressions of the files of the vendor's runtime and libraries, and of their
    #: functions that programs link to statically: call paths end in them.
    runtime_images: tuple[str, ...] = ()
    runtime_functions: tuple[str, ...] = ()
    #: Names of hardware counters of the bytes that a kernel reads and writes in device memory.
    memory_counters: tuple[str, ...] = ()
    #: Those of floating-point operations: name, the units that do them (`Architecture.operations`),
    #: and operations for each count.
    flop_counters: tuple[tuple[str, str, int], ...] = ()
    #: Why `--backend NAME` recorded nothing; completes the message "… --backend NAME, and ".
    unused = "the program did not use it"

    def adapt(self, config: Sections, wanted: Collection[str]) -> None:
        """Adapts the backend's settings to the capabilities that the tools want
        (pasta/capabilities.py)."""

    def leave_to_times(self, config: Sections) -> None:
        """Clears settings of data that only the pass with device times can record."""

    def adapt_times(self, config: Sections, wanted: Collection[str]) -> None:
        """Has the pass with device times record what one with probes cannot, and tools that run in
        both passes want (pasta/capabilities.py)."""

    def selects_launches(self, config: Sections) -> bool:
        """Whether the source asks which launches are selected, as for probes, without probes."""
        return False

    def requires_selection(self, config: Sections) -> bool:
        """Whether such a source refuses to take all launches."""
        return False

    def prepare(self, launch: Launch) -> Prepared:
        """Finds the requirements of the backend before the program starts. Raises PastaError.

        An unusable backend calls `launch.explain`; the program runs regardless.
        """
        return {}

    def environment(
        self, target: Mapping[str, str], prepared: Prepared, config: Sections
    ) -> dict[str, str]:
        """The program's environment, which contains `injections`, with the variables that make the
        vendor's runtime load PASTA."""
        return dict(target)

    def withdrawn(self, environment: Mapping[str, str]) -> dict[str, str]:
        """An environment without the additions of `environment`."""
        return dict(environment)

    def shim_settings(self, prepared: Prepared, config: Sections) -> dict[str, object]:
        """Further keys for libpasta; those in `settings` are passed automatically."""
        return {}

    def nothing_recorded(self, prepared: Prepared) -> str | None:
        """Why there are no events; None if `prepare` has reported it."""
        return self.unused

    def sampler(self) -> Sampler | None:
        """Reads power, clocks and memory of the devices; called when a program has used one of the
        backend's sources. None: not supported."""
        return None

    def architecture(self, name: str) -> Architecture | None:
        """What the vendor documents of an architecture, by its name in `device` events; None if it
        is not known, or of another vendor."""
        return None

    def counters(self, chip: str = "") -> list[tuple[str, Sequence[DeviceCounter]]]:
        """Hardware counters by device, or of a chip, which need not be in this machine, by its
        vendor's name. Raises MissingDependency."""
        return []

    def roofs(
        self, environment: Mapping[str, str], say: Callable[[str], None], *, again: bool = False
    ) -> list[DeviceRoofs]:
        """Roofs of the devices that a program with these variables sees: measured once, or `again`,
        and kept in the user's cache. Called before the program starts, if a tool asks for them."""
        return []

    @property
    def probes(self) -> DeviceProbes | None:
        """How probes run on these devices; None: not supported, and coverage is unknown."""
        return None
