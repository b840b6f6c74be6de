"""Probes of a run's tools over the accesses of its launches: what the pipeline calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pasta.probes.accumulators import BitmapAccumulator, TraceAccumulator
from pasta.probes.build import layout_of
from pasta.probes.cpu import CpuExecutor, Runs
from pasta.probes.kernels import ProbedKernels
from pasta.probes.records import WORDS, Accesses, words_of
from pasta.probes.results import DeviceResults
from pasta.probes.windows import Sampling
from pasta.processors.codes import grown
from pasta.processors.objects import MEMORY, TENSOR, Past
from pasta.processors.snapshots import SELECTED, UNSEEN, Launches, Snapshots, sizes_of
from pasta.table import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.objects import ObjectTable
    from pasta.processors.operators import Operators
    from pasta.tool import Tool

_MAX_NUMBER = 1 << 32
#: Allocations whose events may be missing: a number beyond is of a damaged record.
_MAX_MISSING = 1 << 25
#: Bytes of accesses that wait for the event of their launch; what is older is given up.
_WAITING = 256 << 20
#: Words of a bitmap that are kept of launches that may be going on.
_WORDS = 1 << 20


class ProbeRuntime:
    """Runs all probes of `tools`; their maps get what was counted at `flush`.

    Accesses of launches that the filter dropped are skipped. Where an access comes before the
    event of its launch, it and all after it wait; those for which none came are `orphans`.
    """

    def __init__(
        self, tools: Sequence[Tool], objects: ObjectTable, operators: Operators | None = None
    ) -> None:
        self.objects, self.operators = objects, operators
        self.launches = Launches()
        self.snapshots = Snapshots(objects)
        self.numbers = ObjectNumbers(objects, self.snapshots, self.launches)
        #: Who saw the launches, and its version: ids of strings.
        self.sources: set[tuple[int, int]] = set()
        self.kernels = ProbedKernels(self.sources)
        self.sampling = Sampling()
        self.orphans = 0
        self._waiting: list[NDArray[Any]] = []
        self.attach(tools)

    def attach(self, tools: Sequence[Tool]) -> None:
        """The tools to work for; their maps learn where names and sizes come from."""
        self.tools = [tool for tool in tools if tool.needs_probes]
        self._executor = CpuExecutor(self.tools)
        self._device: DeviceResults | None = None
        for tool in self.tools:
            for accumulator in tool._maps.values():
                accumulator.bind(self.launches.names, self._sizes)

    def __getstate__(self) -> dict[str, Any]:
        self.flush()
        return {**vars(self), "tools": [], "_executor": None}

    def _sizes(self, ids: NDArray[Any]) -> NDArray[Any]:
        return sizes_of(self.objects.rows[ids])

    def feed(self, selected: Batch, launched: NDArray[Any]) -> None:
        """Follows a batch as the filter left it; `launched` are all ordinals in it before that.

        The object table has been fed with it.
        """
        self.launches.feed(selected, launched, self.operators)
        self.snapshots.feed(selected)
        self.numbers.feed(selected)
        self.kernels.feed(selected)
        self.sampling.add(selected["kernel_launch"])
        starts = selected["process_start"]
        self.sources.update(zip(starts["source"].tolist(), starts["version"].tolist(), strict=True))

    def run(self, chunk: Any = b"", *, final: bool = False) -> list[tuple[Tool, Accesses]]:
        """Runs the probes over whole records; returns what Trace maps took, for `on_accesses`.

        With `final` no more events come. The memory of `chunk` is not needed afterwards. Raises
        ValueError where the last record is cut off.
        """
        words = words_of(chunk)
        waiting, self._waiting = self._waiting, []
        pieces = [*waiting, words] if len(words) else waiting
        taken: list[tuple[Tool, Accesses]] = []
        for number, piece in enumerate(pieces):
            held = 8 * sum(len(each) for each in pieces[number:])
            end = self._run(piece, taken, give_up=final or held > _WAITING)
            if end < len(piece):
                self._waiting = [each.copy() for each in (piece[end:], *pieces[number + 1 :])]
                break
        return taken

    def _run(
        self, words: NDArray[Any], taken: list[tuple[Tool, Accesses]], *, give_up: bool
    ) -> int:
        """Runs over records up to one whose launch is not known yet; where that one is."""
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
            self._run_stretches(words, runs, end, selected, traced)
            begin = end
        taken.extend(traced.accesses(self.tools, words, self._find))
        return begin

    def _run_stretches(
        self, words: NDArray[Any], runs: Runs, end: int, selected: NDArray[Any], traced: _Traced
    ) -> None:
        """Stretches of records that share a snapshot go through compiled code together, but those
        that a map took whole."""
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
        """Objects that held addresses when their launches began; any thread may ask."""
        edges = np.flatnonzero(launches[1:] != launches[:-1]) + 1
        firsts = np.append(0, edges)[: len(launches)]
        versions = self.snapshots.versions(self.launches.positions(launches[firsts]))
        different = np.unique(versions).tolist()
        if len(different) == 1:
            return self.snapshots.of(different[0]).lookup(addresses)
        versions = np.repeat(versions, np.diff(firsts, append=len(launches)))
        found = np.empty(len(addresses), np.int64)
        for version in different:
            mine = versions == version
            found[mine] = self.snapshots.of(version).lookup(addresses[mine])
        return found

    @property
    def device(self) -> DeviceResults:
        """What patches on GPUs counted. Raises ToolError for maps that GPUs do not have."""
        if self._device is None:
            self._device = DeviceResults(
                layout=layout_of(self.tools),
                maps={
                    (type(tool).name, name): accumulator
                    for tool in self.tools
                    for name, accumulator in tool._maps.items()
                },
                numbers=self.numbers,
                selected=lambda ordinals: self.launches.states(ordinals) == SELECTED,
            )
        return self._device

    def close(self, launch: int) -> None:
        """No more accesses of launches below this ordinal come: bitmaps keep only their sums."""
        bitmaps = [
            each
            for tool in self.tools
            for each in tool._maps.values()
            if isinstance(each, BitmapAccumulator) and each.words > _WORDS
        ]
        if bitmaps:
            self.flush()
        for each in bitmaps:
            each.close(launch)

    def compile(self) -> None:
        """Compiles what `run` needs; may take some seconds, `run` does it else."""
        _ = self._executor.compiled
        if self._executor.traces:
            import pasta.probes.columns  # noqa: F401

    def device_losses(self) -> list[tuple[str, str]]:
        """What patches on GPUs could not count: tool ("": all), text."""
        if self._device is None:
            return []
        losses = [
            (tool, f"{counted(count, 'access')} left out of {name}: raise probes.memory")
            for (tool, name), count in self._device.no_room.items()
        ]
        if self._device.other_objects:
            text = (
                f"{counted(self._device.other_objects, 'launch')} touched more"
                " objects than fit apart"
            )
            losses.append(("", text))
        return losses

    def flush(self) -> None:
        """Delivers to the tools' maps all that was counted so far."""
        self._executor.flush()
        if self._device is not None:
            self._device.finish()


_PIECE = np.dtype([("number", "u8"), ("address", "u8"), ("bytes", "u8")])


class ObjectNumbers:
    """Ids in `context.objects` of the numbers that a source gives to objects.

    A number may also be of a piece of an allocation, which tensors hold one after the other: its
    object is asked for as of a launch.
    """

    def __init__(self, objects: ObjectTable, snapshots: Snapshots, launches: Launches) -> None:
        self.objects, self._snapshots, self._launches = objects, snapshots, launches
        self._seen = 0
        self._positions = np.zeros(1024, np.uint64)  # of the allocation's record + 1, by number
        self._pieces = np.zeros(1024, _PIECE)  # by number; of no bytes where it is none
        self._past = Past(snapshots)
        self._ranges: dict[int, tuple[int, tuple[NDArray[Any], ...]]] = {}  # of so many objects

    def feed(self, selected: Batch) -> None:
        records = selected["memory_alloc"]
        numbers = records["correlation"].astype(np.int64)
        self._seen += len(records)
        known = (numbers > 0) & (numbers < min(self._seen + _MAX_MISSING, _MAX_NUMBER))
        if known.any():
            self._positions = grown(self._positions, int(numbers[known].max()) + 1)
            self._positions[numbers[known]] = selected.positions(records)[known] + np.uint64(1)

    def add_pieces(self, words: NDArray[Any]) -> None:
        """Learns of pieces: number, address and bytes of each, as uint64."""
        pieces = np.ascontiguousarray(words).view(_PIECE).reshape(-1)
        pieces = pieces[pieces["number"] < _MAX_NUMBER]
        if len(pieces):
            numbers = pieces["number"].astype(np.intp)
            self._pieces = grown(self._pieces, int(numbers.max()) + 1)
            self._pieces[numbers] = pieces

    def ids(self, numbers: NDArray[Any], ordinals: NDArray[Any]) -> NDArray[Any]:
        """Ids (int64) of numbers as of launches; -1 for what no record told of."""
        found = self._allocations(numbers)
        pieces = self._pieces[np.where(numbers < len(self._pieces), numbers, 0).astype(np.intp)]
        some = pieces["bytes"] != 0
        if some.any():
            positions = self._launches.positions(ordinals[some])
            found[some] = self._held(pieces[some], self._snapshots.versions(positions))
        return found

    def _held(self, pieces: NDArray[Any], versions: NDArray[Any]) -> NDArray[Any]:
        """The tensors that held pieces, else the allocations."""
        found = self._past.lookup(pieces["address"], versions, TENSOR)
        rows = self.objects.rows[found]
        whole = pieces["address"] + pieces["bytes"] <= rows["address"] + rows["bytes"]
        other = (found < 0) | ~whole
        found[other] = self._past.lookup(pieces["address"][other], versions[other], MEMORY)
        return found

    def place(self, number: int) -> tuple[int, int]:
        """The object that a number meant all the time, and where in it the number's bytes begin;
        for a piece that several tensors held, the last allocation there; -1 for none."""
        if number >= len(self._pieces) or not self._pieces["bytes"][number]:
            return int(self._allocations(np.asarray([number], np.uint64))[0]), 0
        address, bytes = (int(self._pieces[name][number]) for name in ("address", "bytes"))
        holds: list[int] = []
        for layer in (TENSOR, MEMORY):
            begins, ends, lasts, counts = self._held_by(layer)
            meets = np.flatnonzero((begins < address + bytes) & (ends > address))
            holds = lasts[meets].tolist()
            alone = len(meets) == 1 and counts[meets[0]] == 1
            if alone and begins[meets[0]] <= address and ends[meets[0]] >= address + bytes:
                break
        if not holds:
            return -1, 0
        found = max(holds)
        return found, max(0, address - int(self.objects.rows["address"][found]))

    def _held_by(self, layer: int) -> tuple[NDArray[Any], ...]:
        """Distinct ranges that objects of a layer had: begins, ends, last id, how many."""
        rows = self.objects.rows
        kept = self._ranges.get(layer)
        if kept is None or kept[0] != len(rows):
            ids = np.flatnonzero(rows["layer"] == layer)
            ranges = rows[["address", "bytes"]][ids]
            distinct, at, counts = np.unique(ranges, return_inverse=True, return_counts=True)
            lasts = np.zeros(len(distinct), np.int64)
            lasts[at.reshape(-1)] = ids
            ends = distinct["address"] + distinct["bytes"]
            kept = self._ranges[layer] = len(rows), (distinct["address"], ends, lasts, counts)
        return kept[1]

    def _allocations(self, numbers: NDArray[Any]) -> NDArray[Any]:
        within = numbers < len(self._positions)
        positions = self._positions[np.where(within, numbers, 0).astype(np.intp)]
        rows = self.objects.rows
        told = positions != 0
        positions = positions - told
        at = np.searchsorted(rows["alloc_position"], positions)
        at = np.minimum(at, max(0, len(rows) - 1))
        found = within & told & (len(rows) > 0)
        if len(rows):
            found &= rows["alloc_position"][at] == positions
        return np.where(found, at, -1)


class _Traced:
    """Records of one chunk that Trace maps took: where they begin, and which lanes wrote."""

    def __init__(self, executor: CpuExecutor) -> None:
        self.maps = executor.traces
        self.parts: list[list[tuple[NDArray[Any], NDArray[Any]]]] = [[] for _ in self.maps]

    def add(self, written: list[tuple[NDArray[Any], NDArray[Any]]]) -> None:
        for parts, part in zip(self.parts, written, strict=True):
            if len(part[0]):
                parts.append(part)

    def add_whole(self, index: int, words: NDArray[Any], begin: int, end: int) -> None:
        """Records that one map took, with nothing between them."""
        masks = words[begin:end:WORDS] & 0xFFFF_FFFF
        self.parts[index].append((np.arange(begin, end, WORDS), masks))

    def accesses(
        self, tools: Sequence[Tool], words: NDArray[Any], find: Any
    ) -> Iterator[tuple[Tool, Accesses]]:
        kept = words.copy() if any(self.parts) else words
        for (index, name), parts in zip(self.maps, self.parts, strict=True):
            if parts:
                starts, masks = (_joined(each) for each in zip(*parts, strict=True))
                target = tools[index]._maps[name]
                assert isinstance(target, TraceAccumulator)
                target.written += len(starts)
                yield tools[index], Accesses(name, kept, starts, masks, find)


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
