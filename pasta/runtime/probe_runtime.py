"""Runs the probes of tools over the accesses of launches, for the pipeline."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pasta import abi
from pasta.compiled.building import declared
from pasta.errors import ToolError
from pasta.probes.coverage import Coverage, Visibility
from pasta.probes.cpu import CpuExecutor, Runs
from pasta.probes.declare import maps_of
from pasta.probes.device import DeviceProbes
from pasta.probes.kernels import MAX_READING, ProbedKernels, read_unread
from pasta.probes.maps import accumulators_of
from pasta.probes.placements import PerLaunchPc, PerPair
from pasta.probes.records import WORDS, Accesses, words_of
from pasta.processors.object_numbers import ObjectNumbers
from pasta.processors.sampling import Sampling
from pasta.processors.snapshots import SELECTED, UNSEEN, Launches, Snapshots, sizes_of
from pasta.sources import backend_of, find_source
from pasta.table import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.compiled import Compiled
    from pasta.members import Owner
    from pasta.probes.coverage import Code
    from pasta.probes.device import DeviceReader
    from pasta.probes.kernels import ReadCode, Unread
    from pasta.processors.batch import Batch
    from pasta.processors.context import Context
    from pasta.tool import Tool

#: Bytes of accesses that wait for the event of their launch; older ones are dropped.
_MAX_WAITING = 256 << 20
#: Why launches are not counted.
_LOST = "because accesses of them were lost: the trace buffer stayed full"


@dataclass(frozen=True)
class Reading:
    """Kernels whose code is to be read, and how."""

    unread: list[Unread]
    read: ReadCode

    def codes(self) -> list[Code]:
        """The code of each module, or why it cannot be read; uses nothing of the runtime."""
        return read_unread(self.unread, time.monotonic() + MAX_READING, self.read)


class ProbeRuntime:
    """Runs all probes of `tools`; `flush` delivers the counts to their maps.

    Accesses of launches that the filter dropped are skipped. An access that arrives before the
    event of its launch waits, as do all later ones; without that event they count as `orphans`.
    """

    def __init__(self, tools: Sequence[Tool], context: Context) -> None:
        self.launches = Launches()
        self.snapshots = Snapshots(context.objects)
        self.numbers = ObjectNumbers(context.objects, self.snapshots, self.launches)
        self.kernels = ProbedKernels()
        self.sampling = Sampling()
        self.orphans = 0
        #: Launches without counts by why, and those whose events were not seen yet.
        self._missed: Counter[str] = Counter()
        self._unseen: list[tuple[NDArray[Any], str]] = []
        #: Launches of which accesses were lost, by ordinal.
        self._lost: NDArray[Any] = np.empty(0, np.uint64)
        #: Modules with probed launches, and launches that were not selected, by kernel and module.
        self._patched: set[int] = set()
        self._beside: Counter[tuple[int, int]] = Counter()
        self._sources: set[tuple[int, int]] = set()  # name and version: ids of strings
        self._waiting: list[NDArray[Any]] = []
        self.attach(tools, context)

    def attach(self, tools: Sequence[Tool], context: Context) -> None:
        """Use these tools with probes, and bind their maps to kernel names and sizes."""
        self.tools = list(tools)
        self._context = context
        self.objects = context.objects
        self._executor = CpuExecutor(self.tools)
        self._device: DeviceReader | None = None
        for tool in self.tools:
            for accumulator in accumulators_of(tool).values():
                accumulator.bind(self.launches.names, self._sizes, self.sampling)

    def __getstate__(self) -> dict[str, Any]:
        self.flush()
        return {**vars(self), "tools": [], "_executor": None, "_context": None, "_device": None}

    def _sizes(self, ids: NDArray[Any]) -> NDArray[Any]:
        return sizes_of(self.objects.rows[ids])

    def feed(self, batch: Batch) -> None:
        """Follow a batch as the filter left it."""
        self.snapshots.feed(batch)
        self.numbers.feed(batch)
        self.kernels.feed(batch)
        self.sampling.add(batch["kernel_launch"], self._operators_of(batch["kernel_launch"]))
        starts = batch["process_start"]
        self._sources.update(
            zip(starts["source"].tolist(), starts["version"].tolist(), strict=True)
        )

    def _operators_of(self, launches: NDArray[Any]) -> NDArray[Any] | None:
        """Ids of the names of the innermost operators at launches; None if none are followed."""
        if "operators" not in self._context.processors:
            return None
        operators = self._context.operators
        return np.asarray(operators.nodes["name"][operators.at(launches)])

    def follow(self, selected: Batch, whole: Batch) -> None:
        """Follow all launches: dropped ones have accesses too."""
        launched = whole["kernel_launch"]["ordinal"]
        self.launches.feed(selected, launched, self._context.operators)
        self._miss_unseen()
        if len(selected["kernel_launch"]) < len(launched):
            self._follow_unselected(selected["kernel_launch"], whole["kernel_launch"])

    def _miss(self, launches: NDArray[Any], why: str) -> None:
        """Devices have no counts of these launches, which are flagged as probed."""
        states = self.launches.states(launches)
        self._missed[why] += int(self.sampling.miss(launches[states == SELECTED]).sum())
        if (states == UNSEEN).any():
            self._unseen.append((launches[states == UNSEEN], why))

    def leave_out(self, launches: NDArray[Any]) -> None:
        """Count launches (ordinals) of which accesses were lost as not probed, and skip accesses of
        them that arrive from now on."""
        new = np.setdiff1d(launches, self._lost)
        if len(new):
            self._lost = np.concatenate([self._lost, new])
            self._miss(new, _LOST)

    def _miss_unseen(self) -> None:
        unseen, self._unseen = self._unseen, []
        for launches, why in unseen:
            self._miss(launches, why)

    def _follow_unselected(self, selected: NDArray[Any], launches: NDArray[Any]) -> None:
        probed = launches[launches["flags"] & abi.FLAG_PROBED != 0]
        self._patched.update(np.unique(probed["module"]).tolist())
        others = launches[~np.isin(launches["ordinal"], selected["ordinal"])]
        names, name = np.unique(others["name"], return_inverse=True)
        modules, module = np.unique(others["module"], return_inverse=True)
        counts = np.bincount(name.reshape(-1) * len(modules) + module.reshape(-1))
        for code in np.flatnonzero(counts).tolist():
            key = int(names[code // len(modules)]), int(modules[code % len(modules)])
            self._beside[key] += int(counts[code])

    def patched_beside(self) -> dict[int, int]:
        """Launches of kernels that are not selected in modules with probed ones, by kernel (name
        id), if the probes are patches of modules."""
        probes, _ = self._backend()
        selected = self._context.selected_kernels()
        found: dict[int, int] = {}
        for (kernel, module), count in self._beside.items():
            if kernel in selected or module not in self._patched:
                continue
            if probes is not None and probes.patches_modules:
                found[kernel] = found.get(kernel, 0) + count
        return found

    def run(self, chunk: Any = b"", *, final: bool = False) -> list[tuple[Tool, Accesses]]:
        """Run the probes over whole records; return the accesses of Trace maps, for `on_accesses`.

        `final`: no more events follow. `chunk` may be freed afterwards. Raises ValueError if the
        last record is truncated.
        """
        words = words_of(chunk)
        waiting, self._waiting = self._waiting, []
        pieces = [*waiting, words] if len(words) else waiting
        taken: list[tuple[Tool, Accesses]] = []
        for number, piece in enumerate(pieces):
            held = 8 * sum(len(each) for each in pieces[number:])
            end = self._run(piece, taken, give_up=final or held > _MAX_WAITING)
            if end < len(piece):
                self._waiting = [each.copy() for each in (piece[end:], *pieces[number + 1 :])]
                break
        return taken

    def _run(
        self, words: NDArray[Any], taken: list[tuple[Tool, Accesses]], *, give_up: bool
    ) -> int:
        """Run over records until one whose launch is unknown; return the word where it begins."""
        traced = _Traced(self._executor)
        begin, found = 0, True
        while begin < len(words) and found:
            runs, end = self._executor.launch_runs(words, begin)
            if not len(runs.starts):
                raise ValueError(f"the record at word {begin} goes beyond the end of its chunk")
            states = self.launches.states(runs.launches)
            unseen = states == UNSEEN
            if give_up:
                self.orphans += int(unseen.sum())
            elif unseen.any():
                found, end = False, int(runs.starts[unseen.argmax()])
                known = runs.starts < end
                runs, states = runs.where(known), states[known]
            selected = states == SELECTED
            self.kernels.fire(self.launches.names(runs.launches[selected]), runs.kinds[selected])
            if len(self._lost):
                selected &= ~np.isin(runs.launches, self._lost)
            self._run_stretches(words, runs, end, selected, traced)
            begin = end
        taken.extend(traced.accesses(self.tools, words, self._find))
        return begin

    def _run_stretches(
        self, words: NDArray[Any], runs: Runs, end: int, selected: NDArray[Any], traced: _Traced
    ) -> None:
        """Run compiled code once over consecutive records that share a snapshot; records that all
        belong to one Trace map bypass it."""
        if not len(runs.starts):
            return
        whole = selected & (runs.takers >= 0)
        versions = self.snapshots.versions(self.launches.positions(runs.launches))
        groups = np.where(whole, -2 - runs.takers, np.where(selected, versions, -1))
        edges = np.flatnonzero(np.diff(groups, prepend=groups[0] + 1))
        for edge, stop in zip(edges, np.append(runs.starts[edges[1:]], end), strict=True):
            begin, group = int(runs.starts[edge]), int(groups[edge])
            if group >= 0:
                snapshot = self.snapshots.of(group)
                sizes = self.objects.rows["bytes"]
                traced.add(self._executor.run(words, begin, int(stop), snapshot, sizes))
            elif group < -1:
                traced.add_whole(-2 - group, words, begin, int(stop))

    def _find(self, launches: NDArray[Any], addresses: NDArray[Any]) -> NDArray[Any]:
        """Object ids of addresses at the time of launches; thread-safe."""
        from pasta.probes.columns import lookup

        edges = np.flatnonzero(launches[1:] != launches[:-1]) + 1
        firsts = np.append(0, edges)[: len(launches)]
        versions = self.snapshots.versions(self.launches.positions(launches[firsts]))
        begins = np.append(0, np.flatnonzero(versions[1:] != versions[:-1]) + 1)[: len(firsts)]
        if len(begins) == 1:
            return lookup(self.snapshots.of(int(versions[0])), addresses)
        found = np.empty(len(addresses), np.int64)
        ends = np.append(firsts[begins], len(launches))[1:]
        for version, begin, end in zip(versions[begins], firsts[begins], ends, strict=True):
            snapshot = self.snapshots.of(int(version))
            found[begin:end] = lookup(snapshot, addresses[begin:end])
        return found

    def _backend(self) -> tuple[DeviceProbes | None, Visibility]:
        """The backend that ran the kernels: of several, the one whose code can be read, else the
        one that reports least."""
        text = self._context.strings
        named = {text[source]: text[version] for source, version in self._sources if source}
        found: list[tuple[DeviceProbes | None, Visibility]] = []
        for source, version in sorted((named or self._context.sources).items()):
            if (known := find_source(source)) is None or known.is_accelerator:
                backend = backend_of(source)
                probes = backend.probes if backend else None
                unknown = Visibility(f"source {source}", is_known=False)
                found.append((probes, probes.visibility(source, version) if probes else unknown))
        if not found:
            return None, Visibility("a source without a name", is_known=False)
        return min(found, key=lambda each: _trust(each[1]))

    @property
    def device(self) -> DeviceReader:
        """Reader of the counts of devices. Raises ToolError for maps that they do not support."""
        if self._device is None:
            probes, visibility = self._backend()
            if probes is None:
                raise ToolError(f"{visibility.name} reported probe results that PASTA cannot read")
            self._device = probes.results(
                self.tools,
                self.numbers,
                lambda ordinals: self.launches.states(ordinals) == SELECTED,
                self._miss,
            )
        return self._device

    def read_code(self) -> None:
        """Read the code of the probed kernels, where the backend has it; may take a minute."""
        if (read := self._reader()) is not None:
            context = self._context
            self.kernels.read_code(context.strings, context.images, read)

    def reading(self) -> Reading | None:
        """What `read_code` would read now; None if there is nothing."""
        if (read := self._reader()) is None:
            return None
        unread = self.kernels.unread(self._context.strings, self._context.images)
        return Reading(unread, read) if unread else None

    def _reader(self) -> ReadCode | None:
        probes, visibility = self._backend()
        return probes.read_code if probes is not None and visibility.has_code else None

    def coverage(self, tool: Owner) -> list[Coverage]:
        """Coverage of each kernel by the tool's probes."""
        return self.kernels.coverage(tool, self._context.strings, self._backend()[1])

    def close(self, launch: int) -> None:
        """Reduce maps of launches below this ordinal, which have ended, to sums."""
        closable = [
            each
            for tool in self.tools
            for each in accumulators_of(tool).values()
            if each.closable()
        ]
        if closable:
            self.flush()
        for each in closable:
            each.close(launch)

    def functions(self) -> list[Compiled]:
        """The compiled functions that run over accesses."""
        columns = declared("pasta.probes.columns") if self._executor.traces else []
        return [self._executor.loop, *declared("pasta.probes.warp"), *columns]

    def device_losses(self) -> list[tuple[str, str]]:
        """Launches and accesses that could not be counted: tool ("": all), text."""
        losses = []
        if self._device is not None:
            losses = [
                (tool, f"{counted(count, 'access')} left out of {name}: raise {what}")
                for (tool, name), count in self._device.no_room.items()
                for what in [self._scarce(tool, name)]
            ]
            if self._device.other_objects:
                text = (
                    f"{counted(self._device.other_objects, 'launch')} touched more objects than "
                    "can be told apart"
                )
                losses.append(("", text))
        for why, count in sorted(self._missed.items()):
            if count:
                losses.append(("", f"{counted(count, 'launch')} not counted {why}"))
        return losses

    def _scarce(self, tool: str, name: str) -> str:
        """What bounds a map on devices."""
        found = next(maps_of(each) for each in self.tools if type(each).name == tool)
        placement = found[name].placement
        if isinstance(placement, PerLaunchPc):
            return f"its pairs ({placement.pcs} instructions of a launch), or probe all launches"
        return "its pairs" if isinstance(placement, PerPair) else "probes.memory"

    def flush(self) -> None:
        """Deliver all counts to the tools' maps."""
        self._executor.flush()
        if self._device is not None:
            self._device.finish()


class _Traced:
    """Records of a chunk for Trace maps: where they begin, and the lanes that wrote them."""

    def __init__(self, executor: CpuExecutor) -> None:
        self.maps = executor.traces
        self.parts: list[list[tuple[NDArray[Any], NDArray[Any]]]] = [[] for _ in self.maps]

    def add(self, written: list[tuple[NDArray[Any], NDArray[Any]]]) -> None:
        for parts, part in zip(self.parts, written, strict=True):
            if len(part[0]):
                parts.append(part)

    def add_whole(self, index: int, words: NDArray[Any], begin: int, end: int) -> None:
        """Add contiguous records of one map."""
        masks = words[begin:end:WORDS] & 0xFFFF_FFFF
        self.parts[index].append((np.arange(begin, end, WORDS), masks))

    def accesses(
        self, tools: Sequence[Tool], words: NDArray[Any], find: Any
    ) -> Iterator[tuple[Tool, Accesses]]:
        kept = words.copy() if any(self.parts) else words
        for (index, name), parts in zip(self.maps, self.parts, strict=True):
            if parts:
                starts, masks = (_joined(each) for each in zip(*parts, strict=True))
                accumulators_of(tools[index])[name].written += len(starts)
                yield tools[index], Accesses(name, kept, starts, masks, find)


def _trust(visibility: Visibility) -> tuple[bool, bool, int]:
    """Sorts the backend that results depend on first."""
    return not visibility.has_code, visibility.is_known, len(visibility.kinds)


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
