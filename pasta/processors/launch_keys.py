"""Launches by their content, which is the same in all processes that do the same work.

Ids, addresses, threads and times differ between processes. The content of a launch is its kernel,
grid and block; its place is the operator call around it, or without operators its number among the
launches of its thread with the same content.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from pasta import abi
from pasta.processors.batch import ABSENT_U64
from pasta.processors.codes import Codes, row_hashes
from pasta.processors.correlate import LateNodes
from pasta.processors.stacks import Stacks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.conventions import Conventions
    from pasta.processors.stacks import Frame
    from pasta.processors.strings import Strings

#: A launch. `content` is a hash of kernel, grid and block, `operator` one of the innermost operator
#: around it (name and Python frames; 0: none). `call` is the number of earlier calls of that
#: operator on the thread, `within` that of earlier launches in the call; without an operator that
#: of earlier launches with the same content on the thread. `thread`, `kernel` and `site` are
#: numbers in this process: `kernel` of `LaunchKeys.kernels`, `site` of `LaunchKeys.sites`.
LAUNCH = np.dtype(
    [
        ("ordinal", "u8"),
        ("content", "u8"),
        ("operator", "u8"),
        ("thread", "u4"),
        ("kernel", "u4"),
        ("site", "u4"),
        ("call", "u4"),
        ("within", "u4"),
        ("device", "i2"),
        ("probed", "?"),
    ]
)
#: A call of an operator: its number in the run from 1, its site, the earlier calls of the site on
#: the thread, and its stack.
_CALL = np.dtype([("number", "u8"), ("site", "u4"), ("earlier", "u4"), ("stack", "u4")])
_STORED = np.dtype([*LAUNCH.descr, ("number", "u8"), ("time", "u8")])
#: Deepest operator that is followed.
_MAX_DEPTH = 256
_DEPTHS = np.uint64(_MAX_DEPTH + 1)
_32 = np.uint64(32)


def text_hash(*parts: object) -> int:
    """A hash (64 bits) of texts, numbers and lists of them, the same in every process."""
    text = json.dumps(parts)  # keeps the parts apart
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def mixed(*columns: NDArray[Any]) -> NDArray[Any]:
    """Hashes (uint64) of rows, given by their columns of one length."""
    return row_hashes(np.column_stack([column.astype(np.uint64) for column in columns]))


def occurrences(keys: NDArray[Any]) -> NDArray[Any]:
    """How many equal keys precede each one (int64)."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    new = np.ones(len(keys), bool)
    new[1:] = ordered[1:] != ordered[:-1]
    found = np.empty(len(keys), np.int64)
    found[order] = np.arange(len(keys)) - np.flatnonzero(new)[np.cumsum(new) - 1]
    return found


class _OpenCalls:
    """The innermost operator call around each launch. Threads are numbers from 0 (uint64)."""

    def __init__(self) -> None:
        #: Name and stack of each site; the first stands for no operator.
        self.sites: list[tuple[int, int]] = [(0, 0)]
        self._site_of: dict[int, int] = {}  # by name and stack
        self._calls = 0
        self._earlier: dict[int, int] = {}  # calls by thread and site
        self._last_calls: dict[int, tuple[int, ...]] = {}  # _CALL by thread and depth
        self._levels: dict[int, int] = {}  # open operators by thread

    def feed(
        self,
        batch: Batch,
        begins: NDArray[Any],
        ends: NDArray[Any],
        launches: NDArray[Any],
        index: NDArray[Any],
    ) -> NDArray[Any]:
        """Calls (_CALL, number 0: none) around the launches of a batch. `begins`, `ends` and
        `launches` are the threads of its operator_begin, operator_end and launches, which have the
        indices `index`."""
        if not self._levels and not len(begins):
            return np.zeros(len(launches), _CALL)
        index = index.astype(np.uint64)
        levels = self._levels_at(batch, begins, ends, launches << _32 | index)
        calls, places = self._begun(batch["operator_begin"], begins)
        found = self._last(calls, places, launches * _DEPTHS + levels, index)
        around = places >> _32
        last = _last_of_each(around)
        self._last_calls.update(zip(around[last].tolist(), calls[last].tolist(), strict=True))
        return found

    def _levels_at(
        self, batch: Batch, begins: NDArray[Any], ends: NDArray[Any], wanted: NDArray[Any]
    ) -> NDArray[Any]:
        """Open operators (uint64) at places of threads, which are thread << 32 | index."""
        begin, end = batch["operator_begin"], batch["operator_end"]
        index = np.concatenate([begin["index"], end["index"]]).astype(np.uint64)
        depth = np.concatenate([begin["depth"], np.maximum(end["depth"], 1) - 1])
        depth = np.minimum(depth, _MAX_DEPTH).astype(np.uint64)
        places = np.concatenate([begins, ends]) << _32 | index
        order = np.argsort(places)
        places, depth = places[order], depth[order]
        at = np.searchsorted(places, wanted) - 1
        known = at >= 0
        known[known] = places[at[known]] >> _32 == wanted[known] >> _32
        found = np.zeros(len(wanted), np.uint64)
        found[known] = depth[at[known]]
        different, inverse = np.unique(wanted[~known] >> _32, return_inverse=True)
        before = [self._levels.get(thread, 0) for thread in different.tolist()]
        found[~known] = np.asarray(before, np.uint64)[inverse.reshape(-1)]
        last = _last_of_each(places >> _32)
        threads = (places[last] >> _32).tolist()
        self._levels.update(zip(threads, depth[last].tolist(), strict=True))
        return found

    def _begun(
        self, begin: NDArray[Any], threads: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """The calls that operators begin, with their places: (thread * _DEPTHS + depth) << 32 |
        index; in order of the places."""
        depth = np.minimum(begin["depth"], _MAX_DEPTH).astype(np.uint64)
        index = begin["index"].astype(np.uint64)
        around = threads * _DEPTHS + depth
        places = around << _32 | index
        order = np.argsort(places)
        calls = np.zeros(len(begin), _CALL)
        calls["number"] = self._calls + 1 + np.arange(len(begin))
        calls["stack"] = begin["stack"]
        self._calls += len(begin)
        # Stack 0 is that of the enclosing operator, which is complete in order of depth.
        inherits = (begin["stack"] == 0) & (depth > 1)
        for level in np.unique(depth[inherits]):
            rows = np.flatnonzero(inherits & (depth == level))
            outer = order[depth[order] == level - np.uint64(1)]
            found = self._last(
                calls[outer], places[outer], around[rows] - np.uint64(1), index[rows]
            )
            calls["stack"][rows] = found["stack"]
        calls["site"] = self._sites_of(begin["name"].astype(np.uint64) << _32 | calls["stack"])
        keys = threads << _32 | calls["site"]
        different, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
        earlier = np.asarray([self._earlier.get(key, 0) for key in different.tolist()], np.int64)
        calls["earlier"] = earlier[inverse.reshape(-1)] + occurrences(keys)
        after = (earlier + counts).tolist()
        self._earlier.update(zip(different.tolist(), after, strict=True))
        return calls[order], places[order]

    def _last(
        self, calls: NDArray[Any], places: NDArray[Any], around: NDArray[Any], index: NDArray[Any]
    ) -> NDArray[Any]:
        """The last call of a thread and depth, which are `around`, before each index: one of these
        or of an earlier batch."""
        at = np.searchsorted(places, around << _32 | index) - 1
        known = at >= 0
        known[known] = places[at[known]] >> _32 == around[known]
        found = np.zeros(len(around), _CALL)
        found[known] = calls[at[known]]
        different, inverse = np.unique(around[~known], return_inverse=True)
        before = np.zeros(len(different), _CALL)
        for row, place in enumerate(different.tolist()):
            before[row] = self._last_calls.get(place, (0, 0, 0, 0))
        found[~known] = before[inverse.reshape(-1)]
        return found

    def _sites_of(self, pairs: NDArray[Any]) -> NDArray[Any]:
        different, inverse = np.unique(pairs, return_inverse=True)
        numbers = np.zeros(len(different), np.uint32)
        for at, pair in enumerate(different.tolist()):
            numbers[at] = self._site_of.setdefault(pair, len(self.sites))
            if numbers[at] == len(self.sites):
                self.sites.append((pair >> 32, pair & 0xFFFF_FFFF))
        return np.asarray(numbers[inverse.reshape(-1)])


class LaunchKeys:
    """The launches of a run, from its batches in order.

    Memory: 52 bytes for each launch, and a few hundred for each distinct kernel, operator with its
    stack, and thread.
    """

    #: Event kinds that `feed` reads.
    KINDS = frozenset(
        {"kernel_launch", "graph_launch", "operator_begin", "operator_end", "python_frame"}
    )

    def __init__(self, strings: Strings, conventions: Conventions) -> None:
        self._strings = strings
        self._names = Codes()
        self._threads: dict[int, int] = {}
        self._stacks = Stacks(conventions)
        self._calls = _OpenCalls()
        self._graphs = LateNodes(_CALL.descr)
        self._parts: list[NDArray[Any]] = [np.empty(0, _STORED)]

    @property
    def kernels(self) -> list[str]:
        """Names of the kernels, as recorded."""
        return self._strings.many(self._names.ids)

    @property
    def sites(self) -> list[tuple[str, Frame | None]]:
        """Name and Python line of the distinct operators; the first stands for no operator."""
        return [
            (self._strings[name], self._stacks.line(stack, self._strings) if stack else None)
            for name, stack in self._calls.sites
        ]

    @property
    def has_operators(self) -> bool:
        """Whether any operator began."""
        return len(self._calls.sites) > 1

    def feed(self, batch: Batch) -> None:
        """Follows a batch with all its launches, operators and frames."""
        self._stacks.feed(batch)
        launches, graphs = batch["kernel_launch"], batch["graph_launch"]
        begins, ends, on, of_graphs = (
            self._numbered(each["thread"])
            for each in (batch["operator_begin"], batch["operator_end"], launches, graphs)
        )
        threads = np.concatenate([on, of_graphs])
        index = np.concatenate([launches["index"], graphs["index"]])
        calls = self._calls.feed(batch, begins, ends, threads, index)
        self._graphs.put(graphs, calls[len(launches) :])
        calls = calls[: len(launches)].copy()
        self._graphs.fill(launches, calls)
        rows = np.zeros(len(launches), _STORED)
        rows["ordinal"], rows["device"] = launches["ordinal"], launches["device"]
        rows["probed"] = (launches["flags"] & abi.FLAG_PROBED) != 0
        rows["thread"], rows["time"] = on, launches["time"]
        rows["kernel"] = self._names.encode(launches["name"])
        sizes = [launches[field][:, axis] for field in ("grid", "block") for axis in range(3)]
        rows["content"] = mixed(*sizes)  # without the kernel's name
        rows["site"], rows["call"] = calls["site"], calls["earlier"]
        rows["number"] = calls["number"]
        self._parts.append(rows[rows["ordinal"] != ABSENT_U64])

    def _numbered(self, threads: NDArray[Any]) -> NDArray[Any]:
        different, inverse = np.unique(threads, return_inverse=True)
        numbers = [self._threads.setdefault(id, len(self._threads)) for id in different.tolist()]
        return np.asarray(numbers, np.uint64)[inverse.reshape(-1)]

    def rows(self, *, operators: bool = True) -> NDArray[Any]:
        """All launches (LAUNCH), by ordinal; without `operators` their places are those of a run
        without operators."""
        rows = np.concatenate(self._parts)
        rows = rows[np.argsort(rows["ordinal"], kind="stable")]
        self._parts = [rows.copy()]
        names = np.asarray([text_hash(name) for name in self.kernels], np.uint64)
        if len(rows):
            rows["content"] = mixed(names[rows["kernel"]], rows["content"])
        inside = rows["number"] != 0 if operators else np.zeros(len(rows), bool)
        hashes = np.zeros(len(self._calls.sites), np.uint64)
        for site, (name, stack) in enumerate(self._calls.sites[1:], 1):
            frames = self._stacks.content(stack, self._strings) if stack else []
            hashes[site] = text_hash(self._strings[name], frames)
        of_sites = rows["site"]
        rows["operator"] = np.where(inside, hashes[of_sites], 0)
        rows["call"][~inside] = 0
        by_time = np.argsort(rows["time"], kind="stable")  # not in the order of their records
        inside, outside = by_time[inside[by_time]], by_time[~inside[by_time]]
        rows["within"][inside] = occurrences(rows["number"][inside])
        keys = mixed(rows["thread"][outside], rows["content"][outside])
        rows["within"][outside] = occurrences(keys)
        return rows[list(LAUNCH.names or ())].astype(LAUNCH)


def _last_of_each(groups: NDArray[Any]) -> NDArray[Any]:
    """Indices of the last row of each group; equal ones are adjacent."""
    return np.flatnonzero(np.append(groups[1:] != groups[:-1], True)[: len(groups)])
