"""Operators of frameworks: the one open at a record, and calls and times of each.

Operators are nodes of a calling context tree, by name, module, Python stack, and for an operator of
a gradient its forward operator. The number of nodes is bounded by the distinct contexts of the
program, not by its run time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pasta import abi
from pasta.compiled import compiled, internal
from pasta.processors.batch import ABSENT_U16, ABSENT_U32, ABSENT_U64
from pasta.processors.codes import distinct, grown
from pasta.processors.correlate import LateNodes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch

#: A node; node 0 is the root. Times are nanoseconds of the host, `own` without the operators called
#: from it; `first_total` and `first_own` are the parts in the node's first call, which initializes
#: libraries; `longest` is the longest other call; `began` and `last` are the begin times of the
#: first and the last call. `forward`: the node of a gradient's forward operator, or 0.
NODE = np.dtype(
    [
        ("parent", "i4"),
        ("forward", "i4"),
        ("name", "u4"),
        ("module", "u4"),
        ("stack", "u4"),
        ("scope", "u4"),
        ("calls", "i8"),
        ("total", "i8"),
        ("own", "i8"),
        ("first_total", "i8"),
        ("first_own", "i8"),
        ("longest", "i8"),
        ("began", "i8"),
        ("last", "i8"),
    ]
)
#: Time (ns) in which no thread was in an operator, by the Python stacks of the operators before and
#: after it (0: unknown). `first` is the time of the first such gap, `longest` of the longest other;
#: `handed` counts gaps that end in another thread than the one of the last operator. Row 0 is
#: unused.
GAP = np.dtype(
    [
        ("before", "u4"),
        ("after", "u4"),
        ("count", "i8"),
        ("total", "i8"),
        ("first", "i8"),
        ("longest", "i8"),
        ("handed", "i8"),
    ]
)
#: State of all threads together: number of threads in an operator, time when the last one left (0:
#: unknown), stack and slot of that thread, begin of the first operator, end of the last one.
_OPEN, _SINCE, _LAST_STACK, _LAST_SLOT, _FIRST_TIME, _LAST_TIME = range(6)
#: Scope of operators that compute gradients, as operator_begin has it.
BACKWARD = 1

_MAX_DEPTH = 256
#: Slots of the hash table from sequence numbers to forward operators.
_LINK_SLOTS = 1 << 20


@internal
def _mixed(h, value):  # type: ignore[no-untyped-def]
    h = (h ^ np.uint64(value)) * np.uint64(0x9E3779B97F4A7C15)
    return h ^ (h >> np.uint64(29))


@internal
def _node(parent, forward, event, nodes, count, table):  # type: ignore[no-untyped-def]
    """The node of this context, which is created if new; `table` has free slots."""
    h = _mixed(_mixed(np.uint64(1), parent), forward)
    h = _mixed(_mixed(h, event["name"]), event["module"])
    h = _mixed(_mixed(h, event["stack"]), event["scope"])
    at = h % np.uint64(len(table))
    while table[at] != 0:
        node = nodes[table[at]]
        if (
            node["parent"] == parent
            and node["forward"] == forward
            and node["name"] == event["name"]
            and node["module"] == event["module"]
            and node["stack"] == event["stack"]
            and node["scope"] == event["scope"]
        ):
            return table[at]
        at = (at + np.uint64(1)) % np.uint64(len(table))
    made = count[0]
    count[0] += 1
    table[at] = made
    nodes[made]["parent"] = parent
    nodes[made]["forward"] = forward
    nodes[made]["name"] = event["name"]
    nodes[made]["module"] = event["module"]
    nodes[made]["stack"] = event["stack"]
    nodes[made]["scope"] = event["scope"]
    return made


@internal
def _place_of_gap(before, after, length):  # type: ignore[no-untyped-def]
    """First slot of a pair of stacks in a hash table whose length is a power of two."""
    pair = np.uint64(before) << np.uint64(32) | np.uint64(after)
    return (pair * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32) & np.uint64(length - 1)


@compiled(gaps=[GAP], count="i8", table=["i4"])
def _insert_gaps(gaps, count, table):  # type: ignore[no-untyped-def]
    for row in range(1, count):
        at = _place_of_gap(gaps[row]["before"], gaps[row]["after"], len(table))
        while table[at] != 0:
            at = (at + np.uint64(1)) & np.uint64(len(table) - 1)
        table[at] = row


@internal(inline=True)
def _open(  # type: ignore[no-untyped-def]
    begin, slot, nodes, count, table, link_keys, link_nodes, open_nodes, begun, inside, first,
    depths,
):  # fmt: skip
    """Opens an operator in the thread of a slot and returns its node."""
    level = np.int64(begin["depth"]) - 1
    while depths[slot] < level:  # begins that were lost
        open_nodes[slot, depths[slot]] = 0
        begun[slot, depths[slot]] = begin["time"]
        inside[slot, depths[slot]] = 0
        first[slot, depths[slot]] = 0
        depths[slot] += 1
    forward = 0
    has_sequence = begin["sequence"] != ABSENT_U32
    of_gradient = begin["forward_thread"] != ABSENT_U16
    place, key = np.uint64(0), np.uint64(0)
    if has_sequence:
        thread = begin["forward_thread"] if of_gradient else begin["framework_thread"]
        key = (np.uint64(thread) << np.uint64(32) | np.uint64(begin["sequence"])) + np.uint64(1)
        place = _mixed(np.uint64(7), key) % np.uint64(len(link_keys))
        if of_gradient and link_keys[place] == key:
            forward = link_nodes[place]
    parent = open_nodes[slot, level - 1] if level > 0 else 0
    node = _node(parent, forward, begin, nodes, count, table)
    if has_sequence and not of_gradient:
        link_keys[place] = key
        link_nodes[place] = node
    nodes[node]["calls"] += 1
    nodes[node]["last"] = np.int64(begin["time"])
    first[slot, level] = 1 if nodes[node]["calls"] == 1 else 0
    if first[slot, level]:
        nodes[node]["began"] = nodes[node]["last"]
    open_nodes[slot, level] = node
    begun[slot, level] = begin["time"]
    inside[slot, level] = 0
    depths[slot] = level + 1
    return node


@internal(inline=True)
def _close(  # type: ignore[no-untyped-def]
    end, slot, nodes, open_nodes, begun, inside, first, depths
):
    """Closes an operator in the thread of a slot, and those in it whose ends were lost."""
    level = np.int64(end["depth"]) - 1
    if level >= depths[slot]:
        return
    node = open_nodes[slot, level]
    took = np.int64(end["time"] - begun[slot, level])
    if node != 0 and took > 0:
        nodes[node]["total"] += took
        nodes[node]["own"] += took - inside[slot, level]
        if first[slot, level]:
            nodes[node]["first_total"] += took
            nodes[node]["first_own"] += took - inside[slot, level]
        else:
            nodes[node]["longest"] = max(nodes[node]["longest"], took)
    if level > 0:
        inside[slot, level - 1] += took
    depths[slot] = level


@compiled(
    begins=[abi.dtype("operator_begin")], ends=[abi.dtype("operator_end")], breaks=["i8"],
    begin_slots=["i4"], end_slots=["i4"], nodes=[NODE], count=["i8"], table=["i4"],
    link_keys=["u8"], link_nodes=["i4"], open_nodes=[["i4"]], begun=[["u8"]], inside=[["i8"]],
    first=[["u1"]], depths=["i8"], threads=["i8"], last_stacks=["u4"], gaps=[GAP],
    gap_count=["i8"], gap_table=["i4"], began=["i4"], ended=["i4"], left=["i4"], places=["i8"],
    indices=["i8"], found=["i4"],
)  # fmt: skip
def _follow(  # type: ignore[no-untyped-def]
    begins, ends, breaks, begin_slots, end_slots, nodes, count, table, link_keys, link_nodes,
    open_nodes, begun, inside, first, depths, threads, last_stacks, gaps, gap_count, gap_table,
    began, ended, left, places, indices, found,
):  # fmt: skip
    """Opens and closes operators in ring order. `began` and `ended` are the nodes of `begins` and
    `ends`, `left` the rows of the gaps that `begins` end. For each event `found` is twice the
    innermost node of its thread after it, plus 1 during the node's first call, and `indices` its
    index; those of a thread are contiguous, from its place on. Profiling was stopped at the indices
    `breaks`, which discard the current gap."""
    b = e = k = 0
    while b < len(begins) or e < len(ends):
        is_begin = e == len(ends) or (b < len(begins) and begins[b]["index"] < ends[e]["index"])
        slot = begin_slots[b] if is_begin else end_slots[e]
        index = begins[b]["index"] if is_begin else ends[e]["index"]
        while k < len(breaks) and breaks[k] < index:
            threads[_SINCE] = 0
            k += 1
        was_open = depths[slot] > 0
        place = places[slot]
        places[slot] += 1
        if is_begin:
            if 0 < begins[b]["depth"] <= _MAX_DEPTH:
                if not was_open:
                    # inlined by hand: passing arrays to a function would double the cost
                    time, stack = np.int64(begins[b]["time"]), begins[b]["stack"]
                    if threads[_OPEN] == 0 and threads[_SINCE] != 0:
                        # a thread without Python, such as autograd's, continues another one
                        before = last_stacks[slot] if stack else np.uint32(threads[_LAST_STACK])
                        gap = max(time - threads[_SINCE], 0)
                        at = _place_of_gap(before, stack, len(gap_table))
                        row = gap_table[at]
                        while row and (
                            gaps[row]["before"] != before or gaps[row]["after"] != stack
                        ):
                            at = (at + np.uint64(1)) & np.uint64(len(gap_table) - 1)
                            row = gap_table[at]
                        if row == 0:
                            row = gap_table[at] = gap_count[0]
                            gap_count[0] += 1
                            gaps[row]["before"], gaps[row]["after"] = before, stack
                            gaps[row]["first"] = gap
                        else:
                            gaps[row]["longest"] = max(gaps[row]["longest"], gap)
                        gaps[row]["count"] += 1
                        gaps[row]["total"] += gap
                        gaps[row]["handed"] += 1 if slot != threads[_LAST_SLOT] else 0
                        left[b] = row
                    if threads[_FIRST_TIME] == 0:
                        threads[_FIRST_TIME] = time
                    threads[_OPEN] += 1
                    if stack:
                        last_stacks[slot] = stack
                _open(
                    begins[b], slot, nodes, count, table, link_keys, link_nodes,
                    open_nodes, begun, inside, first, depths,
                )  # fmt: skip
        else:
            ended[e] = open_nodes[slot, depths[slot] - 1] if was_open else 0
            if 0 < ends[e]["depth"] <= _MAX_DEPTH:
                _close(ends[e], slot, nodes, open_nodes, begun, inside, first, depths)
            if was_open and depths[slot] == 0:
                threads[_OPEN] -= 1
                threads[_SINCE] = threads[_LAST_TIME] = np.int64(ends[e]["time"])
                threads[_LAST_STACK], threads[_LAST_SLOT] = last_stacks[slot], slot
        level = depths[slot] - 1
        found[place] = open_nodes[slot, level] * 2 + first[slot, level] if level >= 0 else 0
        indices[place] = index
        if is_begin:
            began[b] = found[place] >> 1
            b += 1
        else:
            e += 1


def _replayed(launches: NDArray[Any]) -> NDArray[Any]:
    """Whether (bool) graphs launched them; not every source names nodes."""
    in_graph = (launches["flags"] & abi.FLAG_GRAPH) != 0
    return np.asarray(in_graph | (launches["graph_node"] != ABSENT_U64))


@dataclass
class _Captured:
    """Operators that captured the nodes of a graph, by handle, and in order by kernel name."""

    nodes: dict[int, int] = field(default_factory=dict)
    kernels: dict[int, list[int]] = field(default_factory=dict)


@dataclass
class _Launched:
    """A launch of a graph: the operators that captured its nodes, the operator that launched it and
    the name of its outermost one, and launches so far by kernel name."""

    captured: _Captured = field(default_factory=_Captured)
    operator: int = 0
    outermost: int = 0
    counts: dict[int, int] = field(default_factory=dict)


class _Graphs:
    """Operators that captured the launches of graphs.

    A launch has the handle of the captured node only while that graph exists; otherwise the k-th
    launch of a kernel name belongs to its k-th node. Handles of graphs and nodes may be reused
    after the graph was instantiated, those of executables after they are destroyed.

    An operator may also name its kernel without a graph: launches of that kernel then belong to it,
    in any graph that the same outermost operator launches; those of a kernel that several operators
    name belong to them in turn. Other launches belong to the operator that launches the graph.
    """

    def __init__(self) -> None:
        self._captured: dict[int, _Captured] = {}  # by graph
        self._complete: set[int] = set()  # graphs that were instantiated
        self._executables: dict[int, _Captured] = {}
        #: By thread: its last graph launch.
        self._open: dict[int, _Launched] = {}
        #: The same by thread and time, for nodes that are recorded later.
        self._launched: dict[tuple[int, int], _Launched] = {}
        #: Operators by the name of their outermost operator and the kernel that they name.
        self._named: dict[tuple[int, int], list[int]] = {}
        self._ordinals = np.empty(0, np.uint64)  # of the batch's launches by graphs, …
        self._nodes = np.empty(0, np.int32)  # … and their operators

    def feed(self, batch: Batch, operators: Operators) -> None:
        """Follows a batch with all its launches, including launches that the filter drops."""
        launches = batch["kernel_launch"]
        launches = launches[_replayed(launches)]
        self._ordinals, self._nodes = launches["ordinal"], np.zeros(len(launches), np.int32)
        captured = batch["graph_node"]
        calls: list[tuple[int, Callable[..., None], tuple[int, ...]]] = []
        for take, records, fields in (
            (self._capture, captured, ("graph", "node", "name")),
            (self._instantiate, batch["graph_instantiate"], ("graph", "executable")),
            (self._begin, batch["graph_launch"], ("thread", "time", "graph")),
            (self._launch, launches, ("thread", "time", "graph_node", "name")),
        ):
            columns = [records[name].tolist() for name in fields]
            if take in (self._capture, self._begin):
                nodes = operators.at(records).tolist()
                columns += [nodes, operators.outermost_names(nodes)]
            if take == self._launch:
                columns.append(list(range(len(launches))))
            rows = zip(*columns, strict=True)
            calls += [
                (index, take, row)
                for index, row in zip(records["index"].tolist(), rows, strict=True)
            ]
        calls.sort(key=lambda each: each[0])
        for _, take, row in calls:
            take(*row)

    def _capture(self, graph: int, node: int, name: int, operator: int, outermost: int) -> None:
        if graph == ABSENT_U64:
            named = self._named.setdefault((outermost, name), [])
            if operator not in named:
                named.append(operator)
            return
        if graph in self._complete:  # another graph with a reused handle
            self._complete.discard(graph)
            del self._captured[graph]
        captured = self._captured.setdefault(graph, _Captured())
        captured.nodes[node] = operator
        if name:
            captured.kernels.setdefault(name, []).append(operator)

    def _instantiate(self, graph: int, executable: int) -> None:
        self._executables[executable] = self._captured.setdefault(graph, _Captured())
        self._complete.add(graph)

    def _begin(
        self, thread: int, time: int, executable: int, operator: int, outermost: int
    ) -> None:
        launched = _Launched(self._executables.get(executable, _Captured()), operator, outermost)
        self._open[thread] = self._launched[thread, time] = launched
        if len(self._launched) > LateNodes.LIMIT:
            del self._launched[next(iter(self._launched))]

    def _launch(self, thread: int, time: int, node: int, name: int, at: int) -> None:
        launched = self._launched.get((thread, time)) or self._open.get(thread) or _Launched()
        number = launched.counts[name] = launched.counts.get(name, 0) + 1
        same = launched.captured.kernels.get(name, [])
        in_order = same[number - 1] if number <= len(same) else 0
        found = launched.captured.nodes.get(node, in_order)
        named = self._named.get((launched.outermost, name), [launched.operator])
        self._nodes[at] = found or named[(number - 1) % len(named)]

    def operators_of(self, ordinals: NDArray[Any]) -> NDArray[Any]:
        """Nodes (int32) of the operators that captured these launches, or 0."""
        if not len(self._ordinals):
            return np.zeros(len(ordinals), np.int32)
        at = np.minimum(np.searchsorted(self._ordinals, ordinals), len(self._ordinals) - 1)
        return np.where(self._ordinals[at] == ordinals, self._nodes[at], np.int32(0))


class Operators:
    """Operators of all threads: `context.operators`."""

    def __init__(self) -> None:
        self._nodes = np.zeros(1024, NODE)
        self._count = np.ones(1, np.int64)
        self._table = np.zeros(4096, np.int32)
        self._link_keys = np.zeros(_LINK_SLOTS, np.uint64)
        self._link_nodes = np.zeros(_LINK_SLOTS, np.int32)
        self._slots: dict[int, int] = {}
        self._open = np.zeros((0, _MAX_DEPTH), np.int32)
        self._begun = np.zeros((0, _MAX_DEPTH), np.uint64)
        self._inside = np.zeros((0, _MAX_DEPTH), np.int64)
        self._first = np.zeros((0, _MAX_DEPTH), np.uint8)
        self._depths = np.zeros(0, np.int64)
        self._threads = np.zeros(6, np.int64)
        self._last_stacks = np.zeros(0, np.uint32)
        self._gaps = np.zeros(256, GAP)
        self._gap_count = np.ones(1, np.int64)
        self._gap_table = np.zeros(1024, np.int32)
        self._backward = np.zeros(1024, bool)  # by node
        self._phased = 1  # nodes covered by `_backward`
        self._graphs: _Graphs | None = None
        self._before: dict[int, int] = {}
        self._changes: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}
        #: Nodes (int32) that the batch's operator_begin opened, and that its operator_end closed.
        self.began = self.ended = np.zeros(0, np.int32)
        #: Rows of `gaps` (int32) that the batch's operator_begin end, 0: none.
        self.left = np.zeros(0, np.int32)

    @property
    def gaps(self) -> NDArray[Any]:
        """Gaps between operators (dtype GAP) by number; row 0 is unused."""
        return self._gaps[: int(self._gap_count[0])]

    @property
    def observed(self) -> tuple[int, int]:
        """Begin of the first operator and end of the last outermost one, ns; 0: none."""
        return int(self._threads[_FIRST_TIME]), int(self._threads[_LAST_TIME])

    @property
    def nodes(self) -> NDArray[Any]:
        """All nodes by number (dtype NODE); times include only operators that ended."""
        return self._nodes[: int(self._count[0])]

    def feed(self, batch: Batch) -> None:
        """Follows the operators of a batch; `at` then answers for its records."""
        self._before = {slot: self._innermost(slot) for slot in self._slots.values()}
        self._changes = {}
        begins, ends = batch["operator_begin"], batch["operator_end"]
        self._begins = begins
        self.began = np.zeros(len(begins), np.int32)
        self.ended = np.zeros(len(ends), np.int32)
        self.left = np.zeros(len(begins), np.int32)
        stopped = batch["profiling_stop"]["index"].astype(np.int64)
        if len(begins) or len(ends):
            self._follow(begins, ends, stopped)
        if len(stopped) and (not len(ends) or stopped[-1] > ends["index"][-1]):
            self._threads[_SINCE] = 0

    def follow(self, selected: Batch, whole: Batch) -> None:
        """Follow graph launches, in the batch with all its launches."""
        kinds = ("graph_node", "graph_instantiate", "graph_launch")
        if self._graphs or any(len(whole[kind]) for kind in kinds):
            self._graphs = self._graphs or _Graphs()
            self._graphs.feed(whole, self)

    def _follow(self, begins: NDArray[Any], ends: NDArray[Any], breaks: NDArray[Any]) -> None:
        wanted = int(self._count[0]) + len(begins)
        self._nodes = grown(self._nodes, wanted)
        if 2 * wanted > len(self._table):
            self._rebuild(4 * wanted)
        self._reserve_gaps(int(np.count_nonzero(begins["depth"] == 1)))
        begin_slots, end_slots = self._slots_of(begins["thread"]), self._slots_of(ends["thread"])
        threads = len(self._slots)
        counts = np.bincount(begin_slots, minlength=threads)
        counts += np.bincount(end_slots, minlength=threads)
        places = np.cumsum(counts) - counts
        starts = places.tolist()
        indices = np.empty(len(begins) + len(ends), np.int64)
        found = np.empty(len(indices), np.int32)
        _follow(
            begins, ends, breaks, begin_slots, end_slots, self._nodes, self._count, self._table,
            self._link_keys, self._link_nodes, self._open, self._begun, self._inside, self._first,
            self._depths, self._threads, self._last_stacks, self._gaps, self._gap_count,
            self._gap_table, self.began, self.ended, self.left, places, indices, found,
        )  # fmt: skip
        for slot, (start, stop) in enumerate(zip(starts, places.tolist(), strict=True)):
            if start < stop:
                self._changes[slot] = indices[start:stop], found[start:stop]

    def _innermost(self, slot: int) -> int:
        """`_innermost_at` the end of the last batch."""
        level = int(self._depths[slot]) - 1
        return 2 * int(self._open[slot, level]) + int(self._first[slot, level]) if level >= 0 else 0

    def _reserve_gaps(self, more: int) -> None:
        """Grow the arrays for this number of new gaps."""
        wanted = int(self._gap_count[0]) + more
        self._gaps = grown(self._gaps, wanted)
        if 2 * wanted > len(self._gap_table):
            self._gap_table = np.zeros(1 << (2 * wanted).bit_length(), np.int32)
            _insert_gaps(self._gaps, int(self._gap_count[0]), self._gap_table)

    def _rebuild(self, length: int) -> None:
        """Replace the hash table of nodes by a larger one."""
        kept = self.nodes.copy()
        self._table = np.zeros(length, np.int32)
        self._count[0] = 1
        _insert_all(kept, self._nodes, self._count, self._table)

    def _slots_of(self, threads: NDArray[Any]) -> NDArray[Any]:
        different = distinct(threads)
        for thread in different:
            if thread not in self._slots:
                self._before[len(self._slots)] = 0
                self._slots[thread] = len(self._slots)
        count = len(self._slots)
        self._open, self._begun, self._inside, self._first, self._depths, self._last_stacks = (
            grown(each, count)
            for each in (
                self._open, self._begun, self._inside, self._first, self._depths,
                self._last_stacks,
            )
        )  # fmt: skip
        slots = np.zeros(len(threads), np.int32)
        for thread in different:
            slots[threads == thread] = self._slots[thread]
        return slots

    def gap_after(self, records: NDArray[Any]) -> NDArray[Any]:
        """Rows of `gaps` (int32) of the first gap that ends after each record; 0: none in the
        batch."""
        ending = self.left != 0
        indices = self._begins["index"][ending].astype(np.int64)
        rows = np.concatenate([self.left[ending], np.zeros(1, np.int32)])
        return rows[np.searchsorted(indices, records["index"].astype(np.int64), "right")]

    def at(self, records: NDArray[Any]) -> NDArray[Any]:
        """Nodes (int32) of the innermost operators of the records' threads at each record. Launches
        of graphs belong to the operators that captured them."""
        found = self._innermost_at(records) >> 1
        if self._graphs and {"ordinal", "graph_node"} <= set(records.dtype.names or ()):
            replayed = _replayed(records)
            found[replayed] = self._graphs.operators_of(records["ordinal"][replayed])
        return found

    def outermost_names(self, nodes: Iterable[int]) -> list[int]:
        """Ids of the names of the outermost operators around nodes; 0 for node 0."""
        parents, names, found = self.nodes["parent"], self.nodes["name"], []
        for node in nodes:
            while parents[node]:
                node = int(parents[node])
            found.append(int(names[node]))
        return found

    def in_first_call(self, records: NDArray[Any]) -> NDArray[Any]:
        """Whether (bool) the innermost operator at each record is the first call of its node."""
        return (self._innermost_at(records) & 1).astype(bool)

    def _innermost_at(self, records: NDArray[Any]) -> NDArray[Any]:
        """Twice the innermost node of the records' threads, plus 1 during its first call."""
        found = np.zeros(len(records), np.int32)
        threads = records["thread"]
        for thread in distinct(threads):
            slot = self._slots.get(thread)
            if slot is None:
                continue
            mine = threads == thread
            first = self._before.get(slot, 0)
            indices, nodes = self._changes.get(slot, (np.empty(0, np.int64), np.empty(0, np.int32)))
            after = np.searchsorted(indices, records["index"][mine].astype(np.int64), "right")
            found[mine] = np.concatenate([np.asarray([first], np.int32), nodes])[after]
        return found

    @property
    def backward(self) -> NDArray[Any]:
        """Whether nodes (bool) belong to the backward pass."""
        nodes = self.nodes
        self._backward = grown(self._backward, len(nodes))
        own, parents = (nodes["scope"] == BACKWARD) | (nodes["forward"] != 0), nodes["parent"]
        for number in range(self._phased, len(nodes)):  # a node comes after its parent
            self._backward[number] = own[number] or self._backward[parents[number]]
        self._phased = len(nodes)
        return self._backward[: len(nodes)]

    def within(self, chosen: NDArray[Any]) -> NDArray[Any]:
        """Whether nodes (bool) are `chosen` or called from a chosen one, directly or not."""
        found, parents = np.array(chosen, bool), self.nodes["parent"]
        # a node comes after its parent
        for number in np.flatnonzero(~chosen & (parents != 0)).tolist():
            found[number] = found[parents[number]]
        return found

    def nearest(self, chosen: NDArray[Any]) -> NDArray[Any]:
        """Of each node the nearest `chosen` (bool) one among itself and its callers; itself if none
        is."""
        found = np.arange(len(chosen))
        reached = np.array(chosen, bool)
        # a node comes after its parent
        for number in np.flatnonzero(~reached & (self.nodes["parent"] != 0)).tolist():
            parent = self.nodes["parent"][number]
            if reached[parent]:
                found[number], reached[number] = found[parent], True
        return found

    def with_callees(self, amounts: NDArray[Any]) -> NDArray[Any]:
        """Amounts (int64) of nodes, including all nodes called from them."""
        found, parents = amounts.tolist(), self.nodes["parent"].tolist()
        for number in range(len(found) - 1, 0, -1):  # a node comes after its parent
            if parents[number]:
                found[parents[number]] += found[number]
        return np.asarray(found, np.int64)

    def first_of(self, codes: NDArray[Any]) -> NDArray[Any]:
        """Whether nodes (bool) have no caller, direct or not, with the same code."""
        parents = self.nodes["parent"].tolist()
        around: list[frozenset[int]] = []  # codes of a node and its callers
        first = np.zeros(len(codes), bool)
        for number, code in enumerate(codes.tolist()):
            outside = around[parents[number]] if parents[number] else frozenset()
            first[number] = code not in outside
            around.append(outside if code in outside else outside | {code})
        return first

    def inherited(self, field: str) -> NDArray[Any]:
        """The value of a field of each node; if 0, that of the nearest caller with another
        value."""
        values, parents = np.array(self.nodes[field]), self.nodes["parent"]
        for number in np.flatnonzero((values == 0) & (parents != 0)).tolist():
            values[number] = values[parents[number]]
        return values

    def forward_values(self, field: str) -> NDArray[Any]:
        """`inherited` values; for gradients that of the forward operator unless it is 0."""
        own, forward = self.inherited(field), self.inherited("forward")
        there = own[forward]
        return np.asarray(np.where((forward != 0) & (there != 0), there, own))


@compiled(kept=[NODE], nodes=[NODE], count=["i8"], table=["i4"])
def _insert_all(kept, nodes, count, table):  # type: ignore[no-untyped-def]
    for i in range(1, len(kept)):
        _node(kept[i]["parent"], kept[i]["forward"], kept[i], nodes, count, table)
