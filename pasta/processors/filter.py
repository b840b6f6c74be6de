"""Selection of launches and activity by the user's filter."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pasta import abi
from pasta.errors import ConfigError
from pasta.lazy import np
from pasta.processors.batch import Batch
from pasta.processors.codes import Codes
from pasta.processors.correlate import LateNodes, LaunchWindow, OpenRanges
from pasta.processors.demangle import demangle

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.strings import Strings

#: Kinds that a range filter drops outside of the range, `kernel_launch` included.
ACTIVITY = abi.kinds_of("activity")
#: Kinds that refer to a launch by its ordinal and are selected with it.
LAUNCH_KINDS = abi.kinds_of("launch_return", "launch_result")
#: Kinds that refer to a copy or set by its correlation and are selected with it.
COPY_RESULT_KINDS = abi.kinds_of("copy_result")
_COPY_KINDS = ("memory_copy", "memory_set")

_SELECTED, _DROPPED = 1, 2


@dataclass(frozen=True)
class Filter:
    """Criteria of launches to keep. Regular expressions are searched for (`re.search`).

    A launch is selected when its name, mangled or demangled, matches `kernel` and not `exclude`,
    and it happens in a range whose name matches `range`. Of the selected launches the first
    `launch_skip` are dropped and then `launch_count` kept (None: all). Ranges are those that the
    launching thread has open, and process-wide ones; for a node of a graph those at the graph's
    launch. Copies, sets with their device times, synchronisation and marks outside of them are
    dropped too. Raises ConfigError for a wrong expression or a negative number.
    """

    kernel: str | None = None
    exclude: str | None = None
    launch_skip: int = 0
    launch_count: int | None = None
    range: str | None = None

    def __post_init__(self) -> None:
        for name in ("kernel", "exclude", "range"):
            pattern = getattr(self, name)
            try:
                re.compile(pattern or "")
            except re.error as error:
                raise ConfigError(
                    f"{name} = {pattern!r} is not a regular expression ({error})",
                    remedy="escape special characters with a backslash",
                ) from None
        for name in ("launch_skip", "launch_count"):
            number = getattr(self, name)
            if number is not None and number < 0:
                raise ConfigError(f"{name} = {number} is negative", remedy="give 0 or more")

    @property
    def selects_launches(self) -> bool:
        """Whether the filter can drop launches."""
        return (
            bool(self.kernel or self.exclude or self.range or self.launch_skip)
            or self.launch_count is not None
        )


class _Matches:
    """Whether the text of an id matches, evaluated once per id."""

    def __init__(self, wanted: str | None, unwanted: str | None = None) -> None:
        self.wanted = wanted
        self.unwanted = unwanted
        self.codes = Codes()
        self._fits = np.zeros(0, bool)

    def of(self, ids: NDArray[Any], strings: Strings) -> NDArray[Any]:
        codes = self.codes.encode(ids)
        new = self.codes.ids[len(self._fits) :]
        if new:
            self._fits = np.append(self._fits, [self.fits(strings[id]) for id in new])
        return np.asarray(self._fits[codes])

    def fits(self, text: str) -> bool:
        def found(pattern: str) -> bool:
            return bool(re.search(pattern, text) or re.search(pattern, demangle(text)))

        if self.wanted and not found(self.wanted):
            return False
        return not (self.unwanted and found(self.unwanted))


class Selection:
    """Applies a filter to a stream of batches; its state spans them and can be pickled.

    `seen` and `selected` count launches.
    """

    def __init__(self, filter: Filter) -> None:
        self.filter = filter
        self.seen = 0
        self.selected = 0
        self._candidates = 0  # launches that fit, before skip and count
        self._kernels = _Matches(filter.kernel, filter.exclude)
        self._range_names = _Matches(filter.range)
        self._ranges = OpenRanges()
        self._window = LaunchWindow()
        self._copies = LaunchWindow()  # by correlation
        self._graphs = LateNodes([("inside", "?")])

    @property
    def launched(self) -> list[int]:
        """Ids of all distinct launched names, in order of first appearance."""
        return list(self._kernels.codes.ids)

    @property
    def matched_nothing(self) -> bool:
        """Launches were seen and none was selected."""
        return self.seen > 0 and self.selected == 0

    def apply(self, batch: Batch, strings: Strings) -> Batch:
        """The records of `batch` that the filter keeps; `batch` itself if it keeps all."""
        launches = batch["kernel_launch"]
        self.seen += len(launches)
        if not self.filter.selects_launches:
            self.selected += len(launches)
            return batch
        records = dict(batch.records)
        fits = self._kernels.of(launches["name"], strings)
        if self.filter.range:
            self._ranges.feed(batch)
            graphs = batch["graph_launch"]
            self._graphs.put(graphs, self._places(graphs, strings))
            fits &= self._in_range(launches, strings)
            for kind in ACTIVITY:
                if kind in records:
                    inside = self._in_range(records[kind], strings)
                    if kind in _COPY_KINDS:
                        self._follow(records[kind]["correlation"], inside)
                    records[kind] = records[kind][inside]
            for kind in COPY_RESULT_KINDS:
                if kind in records:
                    known = self._copies.get(records[kind]["correlation"])
                    records[kind] = records[kind][known == _SELECTED]
        kept = self._counted(fits)
        self.selected += int(kept.sum())
        self._window.put(launches["ordinal"], np.where(kept, _SELECTED, _DROPPED))
        if len(launches):
            records["kernel_launch"] = launches[kept]
        for kind in LAUNCH_KINDS:
            if kind in records:
                ordinals = records[kind]["ordinal"]
                known = self._window.get(ordinals)
                unlaunched = ordinals == np.uint64(0xFFFF_FFFF_FFFF_FFFF)
                records[kind] = records[kind][(known == _SELECTED) | unlaunched]
        return Batch(batch.base, records)

    def _follow(self, correlations: NDArray[Any], kept: NDArray[Any]) -> None:
        """Notes which copies and sets are kept, for their completions on other threads."""
        known = correlations != 0
        self._copies.put(correlations[known], np.where(kept[known], _SELECTED, _DROPPED))

    def end_skip(self) -> None:
        """Treat later launches as already past `launch_skip`, as a previous process filtered
        them."""
        self._candidates = max(self._candidates, self.filter.launch_skip)

    def _counted(self, fits: NDArray[Any]) -> NDArray[Any]:
        number = self._candidates + np.cumsum(fits)
        if len(fits):
            self._candidates = int(number[-1])
        kept = fits & (number > self.filter.launch_skip)
        if self.filter.launch_count is not None:
            kept &= number <= self.filter.launch_skip + self.filter.launch_count
        return np.asarray(kept)

    def _in_range(self, records: NDArray[Any], strings: Strings) -> NDArray[Any]:
        places = self._places(records, strings)
        self._graphs.fill(records, places)
        return np.asarray(places["inside"])

    def _places(self, records: NDArray[Any], strings: Strings) -> NDArray[Any]:
        """Whether records are inside a selected range, by their place in the batch."""
        places = np.zeros(len(records), [("inside", "?")])
        if not len(records):
            return places
        states, state_of = np.unique(self._ranges.at(records), return_inverse=True)
        inside = np.asarray([self._state_fits(state, strings) for state in states.tolist()])
        around = self._ranges.process_wide(records, lambda name: self._name_fits(name, strings))
        places["inside"] = inside[state_of.reshape(-1)] | (around > 0)
        return places

    def _state_fits(self, state: int, strings: Strings) -> bool:
        return any(self._name_fits(name, strings) for _, name in self._ranges.states[state])

    def _name_fits(self, name: int, strings: Strings) -> bool:
        return bool(self._range_names.of(np.asarray([name], np.uint32), strings)[0])
