"""Interface of backends whose devices run probes, for `pasta.runtime`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pasta.errors import ToolError
from pasta.probes.coverage import Code

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from pasta.members import Owner
    from pasta.probes.coverage import Visibility


class Numbers(Protocol):
    """Objects by the numbers that a source assigns to them; see `ObjectNumbers`."""

    def ids(self, numbers: NDArray[Any], ordinals: NDArray[Any]) -> NDArray[Any]:
        """Object ids (int64) at the time of launches; -1 if unknown."""

    def place(self, number: int) -> tuple[int, int]:
        """The object that a number always denoted, -1 if unknown, and an offset in it in bytes."""

    def add_pieces(self, words: NDArray[Any]) -> None:
        """Register pieces: number, address, bytes and allocation's number of each, as uint64."""


class DeviceReader(Protocol):
    """Delivers the counts of devices to the maps of tools."""

    @property
    def no_room(self) -> Mapping[tuple[str, str], int]:
        """Accesses dropped for lack of memory, by tool and map."""

    @property
    def other_objects(self) -> int:
        """Launches that touched more objects than are counted separately."""

    def feed(self, data: bytes) -> None:
        """Read the buffer of a probe_data event. Raises ValueError if it is damaged."""

    def finish(self) -> None:
        """Deliver all pending counts."""


@dataclass(frozen=True)
class ProbeSettings:
    """Settings of probes that concern devices; sizes in bytes."""

    memory: int  # of each context, for maps
    trace_memory: int  # page-locked, per context, for access records in transfer
    architecture: int  # to compile for; 0: the architectures of the devices
    #: Whether `DeviceProbes.compile` waits for its compilers; otherwise the backend's source does,
    #: in the program, when it first needs the code.
    waits: bool = True
    #: Called once if code has to be compiled, before `DeviceProbes.compile` waits.
    on_missing: Callable[[], None] | None = None


class DeviceProbes(Protocol):
    """Probes on the devices of a backend; by default they run none."""

    #: Whether probes are patches of whole modules, which slow down all kernels in them.
    patches_modules: ClassVar[bool] = False

    def visibility(self, source: str, version: str) -> Visibility:
        """The access kinds that a source of the backend reports in this version."""

    def compile(self, tools: Sequence[Owner], given: ProbeSettings) -> Sequence[str]:
        """Compiles the probes of tools for the devices of this machine; returns the lines of the
        plan for the backend's source (shim/include/pasta_probes.h). Raises PastaError."""
        return ()

    def slowdown(self, tools: Sequence[Owner]) -> float:
        """Typical time of a launch with the probes of tools, divided by its time without: what an
        overhead budget assumes before it has measured it."""
        return 10.0

    def reads_code(self) -> bool:
        """Whether this machine has the programs that `read_code` needs."""
        return False

    def results(
        self,
        tools: Sequence[Owner],
        numbers: Numbers,
        selected: Callable[[NDArray[Any]], NDArray[Any]],
        missed: Callable[[NDArray[Any], str], None],
    ) -> DeviceReader:
        """A reader for the maps of tools with probes. `selected`: whether the filter keeps launches
        (bool by uint64 ordinals). `missed` is called with launches (ordinals) that are flagged as
        probed but have no counts, and why. Raises ToolError for maps that devices do not support.
        """
        raise ToolError("probes do not run on the devices of this backend")

    def read_code(
        self, modules: Sequence[tuple[Path, Collection[str]]], timeout: float
    ) -> list[Code]:
        """The code of kernels (mangled names) and their callees in images of modules, read for at
        most `timeout` seconds; of a module that cannot be read, the result has the reason."""
        return [Code(None, "code for this backend cannot be read") for _ in modules]
