"""The run, as tools see it: `tool.context`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from pasta.errors import ToolError
from pasta.processors.conventions import Conventions
from pasta.processors.demangle import demangle
from pasta.processors.symbols import Symbols

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.call_paths import CallPaths
    from pasta.processors.correlate import LaunchNames, OpenRanges
    from pasta.processors.objects import ObjectTable
    from pasta.processors.operators import Operators
    from pasta.processors.processor import Processor
    from pasta.processors.sampling import Sampling
    from pasta.processors.snapshots import Launches
    from pasta.processors.stacks import Stacks
    from pasta.processors.strings import Strings
    from pasta.processors.tensors import Tensors


class Process(NamedTuple):
    """The profiled process."""

    pid: int = 0
    program: str = ""  # path of the executable; empty until its process_start was read
    start_realtime: int = 0  # ns since the epoch
    start_time: int = 0  # ns, of the monotonic clock that records have


class KernelCode(Protocol):
    """The code of probed kernels, implemented by `pasta.probes.kernels`."""

    def begins(self) -> dict[int, set[int]]:
        """Name ids of the kernels that begin at an address, by address."""

    def lines(self, strings: Strings, pcs: NDArray[Any]) -> list[str | None]:
        """Source lines, `file:line`, of the instructions at addresses (uint64); None if unknown."""


class Probes(Protocol):
    """Launches of a run with probes, implemented by `pasta.runtime.probe_runtime`."""

    @property
    def launches(self) -> Launches:
        """Launches by ordinal."""

    @property
    def kernels(self) -> KernelCode:
        """Code of the probed kernels."""

    @property
    def sampling(self) -> Sampling:
        """Which launches were probed."""


@dataclass
class Context:
    """The run, as tools see it.

    Ids of strings are uint32, addresses uint64, times int64 or uint64 nanoseconds of the monotonic
    clock. A property of a processor that no tool of the run needs raises ToolError.
    """

    #: Texts of ids: `strings[id]`, `strings.many(ids)`.
    strings: Strings
    process: Process = field(default_factory=Process)
    #: Versions of the run's sources by name, where no process_start names any.
    sources: Mapping[str, str] = field(default_factory=dict)
    #: All recorded batches from the beginning: for tools that need "recording", in `result`.
    recorded: Callable[[], Iterator[Batch]] = lambda: iter(())
    #: File of a module's image by the hash (uint64) of its content; None if it was not kept.
    images: Callable[[int], Path | None] = lambda hash: None
    #: Names and lines of native code.
    symbols: Symbols = field(default_factory=Symbols)
    #: Processors of the run by need, in processing order.
    processors: Mapping[str, Processor] = field(default_factory=dict)
    #: Names by which code of frameworks is recognized.
    conventions: Conventions = field(default_factory=Conventions)
    #: Names of all tools of the run.
    tools: Sequence[str] = ()
    #: Kernels (name ids) of which the filter selects launches, apart from their number: also those
    #: with launches before `launch_skip` or after `launch_count` only. Empty if it selects all.
    selected_kernels: Callable[[], Collection[int]] = lambda: ()
    #: Measured roofs of devices by uuid: bytes or operations per second by the name of the roof.
    #: Empty where nothing was measured.
    roofs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def demangled(self, names: Iterable[int]) -> list[str]:
        """C++ names of kernel name ids: a list as long as `names`, which may be an array."""
        return [demangle(name) for name in self.strings.many(names)]

    def has(self, need: str) -> bool:
        """Whether the run has a processor, because a tool needs it."""
        return need in self.processors

    def _get(self, need: str, remedy: str = "") -> Any:
        found = self.processors.get(need)
        if found is None:
            raise ToolError(
                f"no tool of this run needs {need}",
                remedy=remedy or f'add "{need}" to `needs` of the tool\'s class',
            )
        return found

    @property
    def objects(self) -> ObjectTable:
        """Live allocations and tensors: `lookup(addresses, indices)` gives ids (int64, -1 for
        none) at records of the batch, `rows[ids]` their addresses and sizes in bytes."""
        return cast("ObjectTable", self._get("objects"))

    @property
    def launches(self) -> LaunchNames:
        """Kernel name ids (uint32) of launch ordinals (uint64): `names(ordinals)`. Tools with
        handlers of records that have only the ordinal need it implicitly."""
        return cast("LaunchNames", self._get("launches"))

    @property
    def ranges(self) -> OpenRanges:
        """Ranges open around records of the batch: `at(records)` gives a number for each record,
        `path(number, strings)` their names."""
        return cast("OpenRanges", self._get("ranges"))

    @property
    def operators(self) -> Operators:
        """Framework operators: `at(records)` gives the node (int32, 0 for none) of the operator
        open around each record of the batch, `nodes[node]` its name, calls and times in ns."""
        return cast("Operators", self._get("operators"))

    @property
    def stacks(self) -> Stacks:
        """Stacks by id (uint32), innermost frame first."""
        return cast("Stacks", self._get("stacks"))

    @property
    def call_paths(self) -> CallPaths:
        """Host stacks of launches: `stacks_of(ordinals)` gives ids (uint32) in `stacks`, 0 for
        none."""
        return cast("CallPaths", self._get("call_paths"))

    @property
    def tensors(self) -> Tensors:
        """The tensors in `objects` at the end of the batch: `rows[ids]` and `category(ids)`
        (int8)."""
        return cast("Tensors", self._get("tensors"))

    @property
    def probes(self) -> Probes:
        """Launches and code of a run with probes."""
        return cast("Probes", self._get("probes", "declare a probe in the tool's class"))

    @property
    def sampling(self) -> Sampling:
        """How many launches of each kernel were probed, and estimates for all launches."""
        return self.probes.sampling
