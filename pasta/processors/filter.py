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

    from pasta.processors.operators import Operators
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
    it happens in a range whose name matches `range`, in an operator whose name matches `operator`,
    and in one whose module (path and class) matches `module`. Of the selected launches the first
    `launch_skip` are dropped and then `launch_count` kept (None: all). Ranges are those that the
    launching thread has open, and process-wide ones; for a node of a graph those at the graph's
    launch. Operators are all that the thread has open, for a node of a graph those open at its
    capture; an operator of a gradient has the module of its forward operator, too. Copies, sets
    with their device times, synchronisation and marks outside of them are dropped too. Raises
    ConfigError for a wrong expression or a negative number.
    """

    kernel: str | None = None
    exclude: str | None = None
    launch_skip: int = 0
    launch_count: int | None = None
    range: str | None = None
    operator: str | None = None
    module: str | None = None

    def __post_init__(self) -> None:
        for name in ("kernel", "exclude", "range", "operator", "module"):
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
                raise ConfigError(f"{name} = {number} is negative", remedy="use 0 or more")

    @property
    def selects_launches(self) -> bool:
        """Whether the filter can drop launches."""
        return (
            bool(self.kernel or self.exclude or self.launch_skip)
            or self.launch_count is not None
            or self.selects_activity
        )

    @property
    def needs_operators(self) -> bool:
        """Whether `Selection.apply` needs the operators of frameworks."""
        return bool(self.operator or self.module)

    @property
    def selects_activity(self) -> bool:
        """Whether the filter can drop copies, waits and the like."""
        return bool(self.range) or self.needs_operators


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


class _Scopes:
    """Nodes of operators in which launches are selected, each decided once."""

    def __init__(self, operator: str | None, module: str | None) -> None:
        self._operator, self._module = (
            re.compile(each) if each else None for each in (operator, module)
        )
        #: By node: in an operator that matches, in a module that does.
        self._inside: list[tuple[bool, bool]] = [(False, False)]
        #: Names of operators and modules, by id: their matches.
        self._found: dict[tuple[bool, int], bool] = {}

    def contain(
        self, operators: Operators, records: NDArray[Any], strings: Strings
    ) -> NDArray[Any]:
        """Whether records are inside selected operators (bool)."""
        for node in operators.nodes[len(self._inside) :]:  # a node comes after its parent
            in_operator, in_module = self._inside[node["parent"]]
            in_operator = in_operator or self._matches(False, int(node["name"]), strings)
            in_module = (
                in_module
                or self._matches(True, int(node["module"]), strings)
                or self._inside[node["forward"]][1]
            )
            self._inside.append((in_operator, in_module))
        fits = [
            (in_operator or not self._operator) and (in_module or not self._module)
            for in_operator, in_module in self._inside
        ]
        return np.asarray(np.asarray(fits, bool)[operators.at(records)])

    def _matches(self, is_module: bool, id: int, strings: Strings) -> bool:
        pattern = self._module if is_module else self._operator
        if pattern is None or not id:
            return False
        if (is_module, id) not in self._found:
            self._found[is_module, id] = bool(pattern.search(strings[id]))
        return self._found[is_module, id]

    @property
    def names(self) -> tuple[set[int], set[int]]:
        """Ids of the names of operators and modules that were looked at."""
        modules = {id for is_module, id in self._found if is_module}
        return {id for is_module, id in self._found if not is_module}, modules


class Selection:
    """Applies a filter to a stream of batches; its state spans them and can be pickled.

    `seen` and `selected` count launches.
    """

    def __init__(self, filter: Filter) -> None:
        self.filter = filter
        self.seen = 0
        self.selected = 0
        #: Kernels (name ids) with launches that fit, also before `launch_skip` and after
        #: `launch_count`, if the filter can drop launches.
        self.kernels: set[int] = set()
        self._candidates = 0  # launches that fit, before skip and count
        self._kernels = _Matches(filter.kernel, filter.exclude)
        self._range_names = _Matches(filter.range)
        self._ranges = OpenRanges()
        self._window = LaunchWindow()
        self._copies = LaunchWindow()  # by correlation
        self._graphs = LateNodes([("inside", "?")])
        self._scopes = _Scopes(filter.operator, filter.module)

    @property
    def launched(self) -> list[int]:
        """Ids of all distinct launched names, in order of first appearance."""
        return list(self._kernels.codes.ids)

    @property
    def matched_nothing(self) -> bool:
        """Launches were seen and none was selected."""
        return self.seen > 0 and self.selected == 0

    @property
    def operators(self) -> tuple[set[int], set[int]]:
        """Ids of all names that were compared with `operator` and `module`."""
        return self._scopes.names

    def apply(self, batch: Batch, strings: Strings, operators: Operators | None = None) -> Batch:
        """The records of `batch` that the filter keeps; `batch` itself if it keeps all.

        `operators` have been fed with the batch; without them nothing is inside one.
        """
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
        if self.filter.selects_activity:
            fits &= self._inside(launches, strings, operators)
            for kind in ACTIVITY:
                if kind in records:
                    inside = self._inside(records[kind], strings, operators)
                    if kind in _COPY_KINDS:
                        self._follow(records[kind]["correlation"], inside)
                    records[kind] = records[kind][inside]
            for kind in COPY_RESULT_KINDS:
                if kind in records:
                    known = self._copies.get(records[kind]["correlation"])
                    records[kind] = records[kind][known == _SELECTED]
        self.kernels.update(np.unique(launches["name"][fits]).tolist())
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
                if kind == "pc_sample":  # without a launch, by the name that they may have
                    names = records[kind]["name"]
                    unlaunched &= (names == 0) | self._kernels.of(names, strings)
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

    def _inside(
        self, records: NDArray[Any], strings: Strings, operators: Operators | None
    ) -> NDArray[Any]:
        """Whether records (bool) are inside the selected ranges, operators and modules."""
        inside = np.ones(len(records), bool)
        if self.filter.range:
            inside &= self._in_range(records, strings)
        if self.filter.needs_operators:
            inside &= operators is not None and self._scopes.contain(operators, records, strings)
        return inside

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
