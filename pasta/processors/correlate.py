"""Correlation of records: a completion with its kernel, a launch with its ranges."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pasta.lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.strings import Strings

RANGE_KINDS = ("range_push", "range_pop", "range_start", "range_end")

#: Ordinals of launches are below this; the sentinel is all ones.
_MAX_ORDINAL = 1 << 62

#: State of a thread: (domain id, name id) of its open ranges, outermost first.
Frames = tuple[tuple[int, int], ...]


class LaunchWindow:
    """A nonzero number for each of the last `limit` launch ordinals.

    Completions may come many batches after their launch; the window bounds the memory
    for them (4 bytes per launch).
    """

    def __init__(self, limit: int = 1 << 22) -> None:
        self.limit = limit
        self.end = 0  # one more than the highest ordinal seen
        self._values = np.zeros(min(1 << 12, limit), np.int32)

    def put(self, ordinals: NDArray[Any], values: NDArray[Any]) -> None:
        """Stores nonzero numbers (int32) for launch ordinals (uint64); absent ordinals are
        skipped."""
        valid = ordinals < _MAX_ORDINAL
        if not valid.all():
            ordinals, values = ordinals[valid], values[valid]
        if not len(ordinals):
            return
        self._extend(int(ordinals.max()) + 1)
        inside = self._inside(ordinals)
        slots = (ordinals[inside] % np.uint64(len(self._values))).astype(np.intp)
        self._values[slots] = values[inside]

    def get(self, ordinals: NDArray[Any]) -> NDArray[Any]:
        """Numbers (int32) of launches; 0 if never stored or outside the window."""
        slots = (ordinals % np.uint64(len(self._values))).astype(np.intp)
        return np.where(self._inside(ordinals), self._values[slots], 0)

    def _inside(self, ordinals: NDArray[Any]) -> NDArray[Any]:
        start = max(0, self.end - len(self._values))
        return np.asarray((ordinals >= start) & (ordinals < self.end))

    def _extend(self, end: int) -> None:
        if end <= self.end:
            return
        size = len(self._values)
        while size < end and size < self.limit:
            size *= 2
        if size != len(self._values):
            kept = np.arange(max(0, self.end - len(self._values)), self.end)
            larger = np.zeros(size, np.int32)
            larger[kept % size] = self._values[kept % len(self._values)]
            self._values = larger
        new = np.arange(max(self.end, end - size), end)
        self._values[new % size] = 0
        self.end = end


class LaunchNames:
    """Kernel names by launch ordinal, for records that carry only the ordinal."""

    def __init__(self) -> None:
        self._window = LaunchWindow()

    def feed(self, batch: Batch) -> None:
        """Follows the launches of a batch."""
        launches = batch["kernel_launch"]
        self._window.put(launches["ordinal"], launches["name"].view(np.int32))

    def names(self, ordinals: NDArray[Any]) -> NDArray[Any]:
        """Name ids (uint32) of launch ordinals (uint64); 0 if the launch is unknown."""
        return np.asarray(self._window.get(ordinals).view(np.uint32))


class Submissions:
    """What is known of submitted work that has not completed, by a key that increases.

    At most `limit` are remembered from one `put` to the next: the oldest are forgotten first.
    """

    def __init__(self, key: str, dtype: Any, limit: int = 1 << 18) -> None:
        self.key = key
        self.limit = limit
        self._rows = np.zeros(0, dtype)

    def put(self, rows: NDArray[Any]) -> None:
        """Adds rows, whose keys were not added before."""
        rows = np.concatenate([self._rows[-self.limit :], rows])
        self._rows = rows[np.argsort(rows[self.key], kind="stable")]

    def take(self, keys: NDArray[Any], *, forget: bool = True) -> tuple[NDArray[Any], NDArray[Any]]:
        """Rows of these keys, and which keys (bool) are known; others have the row of zeros."""
        found = np.zeros(len(keys), self._rows.dtype)
        at = np.searchsorted(self._rows[self.key], keys)
        known = at < len(self._rows)
        known[known] = self._rows[self.key][at[known]] == keys[known]
        found[known] = self._rows[at[known]]
        if forget and known.any():
            left = np.ones(len(self._rows), bool)
            left[at[known]] = False
            self._rows = self._rows[left]
        return found, known

    @property
    def pending(self) -> NDArray[Any]:
        """Rows of the work that has not completed, by key."""
        return self._rows


class LateNodes:
    """What is known of graph launches, for nodes that are recorded when they have run: those have
    the time and the thread of their graph launch. `fields`: of the rows that are kept."""

    LIMIT = 1 << 16

    def __init__(self, fields: Any) -> None:
        self._fields = [name for name, *_ in fields]
        key = [("launch_time", "u8"), ("launch_thread", "u4")]
        self._launches = Submissions("launch_time", [*key, *fields], self.LIMIT)

    def put(self, launches: NDArray[Any], values: NDArray[Any]) -> None:
        """Adds a batch's records of kind graph_launch with a row of values each."""
        rows = np.zeros(len(launches), self._launches.pending.dtype)
        rows["launch_time"], rows["launch_thread"] = launches["time"], launches["thread"]
        for name in self._fields:
            rows[name] = values[name]
        self._launches.put(rows)

    def fill(self, records: NDArray[Any], values: NDArray[Any]) -> None:
        """Overwrites the rows of late nodes among records with the rows of their graph launches."""
        from pasta import abi

        nodes = np.flatnonzero(records["flags"] & abi.FLAG_GRAPH)
        if not len(nodes):
            return
        rows, known = self._launches.take(records["time"][nodes], forget=False)
        known &= rows["launch_thread"] == records["thread"][nodes]
        for name in self._fields:
            values[name][nodes[known]] = rows[name][known]


class OpenRanges:
    """The ranges open at a record: nested ones of its thread, and process-wide ones.

    The open ranges of a thread are a state. Transitions by push and pop are cached, so that the
    cost is one dictionary lookup per range event, and none per launch.
    """

    def __init__(self) -> None:
        self.states: list[Frames] = [()]
        self._state_of: dict[Frames, int] = {(): 0}
        self._steps: dict[tuple[int, int, int], int] = {}
        self._thread: dict[int, int] = {}
        self._process: dict[int, int] = {}
        self._clear_batch()

    def _clear_batch(self) -> None:
        self._before = dict(self._thread)
        self._process_before = tuple(self._process.values())
        self._changes: dict[int, tuple[list[int], list[int]]] = {}
        self._process_changes: list[tuple[int, int, int]] = []  # index, name id, +1 or -1

    def feed(self, batch: Batch) -> None:
        """Follows the ranges of a batch; `at` and `process_wide` then answer for its records."""
        self._clear_batch()
        ranges = batch.merged(*RANGE_KINDS)
        if not len(ranges):
            return
        from pasta import abi

        push, pop, start = (abi.KINDS[kind] for kind in RANGE_KINDS[:3])
        fields = ("kind", "thread", "index", "domain", "origin", "name", "id")
        for kind, thread, index, domain, origin, name, id in zip(
            *(ranges[field].tolist() for field in fields), strict=True
        ):
            # PASTA and NVTX annotations nest separately, also in their default domains.
            domain |= origin << 32
            if kind in (push, pop):
                key = (self._thread.get(thread, 0), domain, name if kind == push else -1)
                state = self._steps.get(key)
                if state is None:
                    state = self._steps[key] = self._step(*key)
                self._thread[thread] = state
                indices, states = self._changes.setdefault(thread, ([], []))
                indices.append(index)
                states.append(state)
            elif kind == start:
                self._end(index, id)  # a reused id: the earlier range can no longer end
                self._process[id] = name
                self._process_changes.append((index, name, 1))
            else:
                self._end(index, id)

    def _end(self, index: int, id: int) -> None:
        name = self._process.pop(id, None)
        if name is not None:
            self._process_changes.append((index, name, -1))

    def _step(self, state: int, domain: int, name: int) -> int:
        frames = self.states[state]
        if name >= 0:
            frames = (*frames, (domain, name))
        else:
            last = next((i for i in reversed(range(len(frames))) if frames[i][0] == domain), None)
            if last is not None:
                frames = frames[:last] + frames[last + 1 :]
        if frames not in self._state_of:
            self._state_of[frames] = len(self.states)
            self.states.append(frames)
        return self._state_of[frames]

    def at(self, records: NDArray[Any]) -> NDArray[Any]:
        """State numbers (int64, for `states`) of the records' threads at each record."""
        found = np.zeros(len(records), np.int64)
        threads = records["thread"]
        for thread in np.unique(threads).tolist():
            mine = threads == thread
            indices, states = self._changes.get(thread, ([], []))
            after = np.searchsorted(np.asarray(indices, np.int64), records["index"][mine], "right")
            found[mine] = np.asarray([self._before.get(thread, 0), *states], np.int64)[after]
        return found

    def within(
        self, records: NDArray[Any], prefixes: tuple[str, ...], strings: Strings
    ) -> NDArray[Any]:
        """Whether each record (bool) is in a range of its thread with one of these name
        prefixes."""
        states = self.at(records)
        found = np.zeros(len(records), bool)
        for state in np.unique(states).tolist():
            if any(strings[name].startswith(prefixes) for _, name in self.states[state]):
                found |= states == state
        return found

    def process_wide(self, records: NDArray[Any], counts: Callable[[int], bool]) -> NDArray[Any]:
        """How many process-wide ranges whose name id `counts` are open at each record."""
        changes = [change for change in self._process_changes if counts(change[1])]
        count = sum(map(counts, self._process_before))
        levels = count + np.cumsum([0, *(delta for _, _, delta in changes)])
        indices = np.asarray([index for index, _, _ in changes], np.int64)
        return np.asarray(levels[np.searchsorted(indices, records["index"], "right")])

    def path(self, state: int, strings: Strings) -> str:
        """Names of a state's ranges, outermost first, joined by `/`."""
        return "/".join(strings[name] for _, name in self.states[state])
