"""Operators of frameworks: which one is open around a record, how often and how long each ran.

Operators are told apart by what they are called from, as nodes of a tree: name, module, Python
stack, and for a gradient's operator the forward one that it belongs to. There are as many nodes as
a program has distinct contexts, however long it runs.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np

from pasta.processors.batch import ABSENT_U16, ABSENT_U32, ABSENT_U64
from pasta.processors.codes import grown
from pasta.processors.compiled import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch

#: A node; 0 is what is called from no operator. Times are nanoseconds of the host, `own` those
#: outside of operators called from it. `forward`: the node of a gradient's forward operator, or 0.
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
    ]
)
#: Scope numbers of PyTorch: operators of gradients.
BACKWARD = 1

_EVENT = np.dtype(
    [
        ("index", "i8"),
        ("time", "u8"),
        ("slot", "i4"),
        ("depth", "u2"),
        ("begin", "u1"),
        ("scope", "u1"),
        ("name", "u4"),
        ("module", "u4"),
        ("stack", "u4"),
        ("sequence", "u4"),
        ("forward_thread", "u2"),
        ("framework_thread", "u2"),
    ]
)
_FIELDS = ("scope", "name", "module", "stack", "sequence", "forward_thread", "framework_thread")
_DEEPEST = 256
#: Forward operators that are remembered for their gradients.
_LINKS = 1 << 20


@compiled()
def _mixed(h, value):  # type: ignore[no-untyped-def]
    h = (h ^ np.uint64(value)) * np.uint64(0x9E3779B97F4A7C15)
    return h ^ (h >> np.uint64(29))


@compiled()
def _node(parent, forward, event, nodes, count, table):  # type: ignore[no-untyped-def]
    """The node of these, made if there is none; `table` has room."""
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


@compiled()
def _follow(  # type: ignore[no-untyped-def]
    events, nodes, count, table, link_keys, link_nodes, open_nodes, begun, inside, depths, found
):
    """Opens and closes operators; `found` is what is innermost in the thread after each event."""
    for e in range(len(events)):
        event = events[e]
        slot, level = event["slot"], np.int64(event["depth"]) - 1
        if level < 0 or level >= _DEEPEST:
            found[e] = open_nodes[slot, depths[slot] - 1] if depths[slot] > 0 else 0
            continue
        if event["begin"]:
            while depths[slot] < level:  # begins that were lost
                open_nodes[slot, depths[slot]] = 0
                begun[slot, depths[slot]] = event["time"]
                inside[slot, depths[slot]] = 0
                depths[slot] += 1
            forward = 0
            told = event["sequence"] != ABSENT_U32
            of_gradient = event["forward_thread"] != ABSENT_U16
            if told:
                thread = event["forward_thread"] if of_gradient else event["framework_thread"]
                key = (
                    np.uint64(thread) << np.uint64(32) | np.uint64(event["sequence"])
                ) + np.uint64(1)
                place = _mixed(np.uint64(7), key) % np.uint64(len(link_keys))
                if of_gradient and link_keys[place] == key:
                    forward = link_nodes[place]
            parent = open_nodes[slot, level - 1] if level > 0 else 0
            node = _node(parent, forward, event, nodes, count, table)
            if told and not of_gradient:
                link_keys[place] = key
                link_nodes[place] = node
            nodes[node]["calls"] += 1
            open_nodes[slot, level] = node
            begun[slot, level] = event["time"]
            inside[slot, level] = 0
            depths[slot] = level + 1
            found[e] = node
            continue
        if level < depths[slot]:
            node = open_nodes[slot, level]
            took = np.int64(event["time"] - begun[slot, level])
            if node != 0 and took > 0:
                nodes[node]["total"] += took
                nodes[node]["own"] += took - inside[slot, level]
            if level > 0:
                inside[slot, level - 1] += took
            depths[slot] = level
        found[e] = open_nodes[slot, depths[slot] - 1] if depths[slot] > 0 else 0


class _Graphs:
    """Which operators made the nodes of graphs, by the executables that launch them.

    Handles of graphs and nodes are given again once a graph was instantiated; those of executables
    once they are destroyed.
    """

    def __init__(self) -> None:
        self._captured: dict[int, dict[int, int]] = {}  # graph: node: operator's
        self._executables: dict[int, list[tuple[int, dict[int, int]]]] = {}  # from a position on
        self._launched: dict[int, list[tuple[int, int]]] = {}  # thread: executables, by position

    def feed(self, batch: Batch, operators: Operators) -> None:
        for each in self._launched.values():
            del each[:-1]  # the last one may go on
        captured, made = batch["graph_node"], batch["graph_instantiate"]
        if len(captured) or len(made):
            nodes = operators.at(captured)
            told = [
                (index, graph, node, of)
                for index, graph, node, of in zip(
                    captured["index"].tolist(), captured["graph"].tolist(),
                    captured["node"].tolist(), nodes.tolist(), strict=True,
                )
            ]  # fmt: skip
            for index, graph, executable in zip(
                *(made[name].tolist() for name in ("index", "graph", "executable")), strict=True
            ):
                told.append((index, graph, -1, executable))
            for index, graph, node, of in sorted(told):
                if node >= 0:
                    self._captured.setdefault(graph, {})[node] = of
                    continue
                known = self._executables.setdefault(of, [])
                known.append((batch.base + index, dict(self._captured.get(graph, {}))))
        launches = batch["graph_launch"]
        for thread, index, graph in zip(
            *(launches[name].tolist() for name in ("thread", "index", "graph")), strict=True
        ):
            self._launched.setdefault(thread, []).append((batch.base + index, graph))

    def operators_of(self, launches: NDArray[Any], base: int) -> list[int]:
        """Nodes of the operators that captured what these launches by graphs replay, or 0."""
        found = []
        for thread, index, node in zip(
            *(launches[name].tolist() for name in ("thread", "index", "graph_node")), strict=True
        ):
            mapping = self._mapping(thread, base + index)
            found.append(mapping.get(node, 0))
        return found

    def _mapping(self, thread: int, position: int) -> dict[int, int]:
        executable = _last(self._launched.get(thread, []), position)
        return _last(self._executables.get(executable or 0, []), position) or {}


def _last(known: list[tuple[int, Any]], position: int) -> Any:
    """The value from the last position that is not above this one."""
    at = bisect_right(known, position, key=lambda each: each[0])
    return known[at - 1][1] if at else None


class Operators:
    """Follows the operators of all threads; `context.operators`."""

    def __init__(self) -> None:
        self._nodes = np.zeros(1024, NODE)
        self._count = np.ones(1, np.int64)
        self._table = np.zeros(4096, np.int32)
        self._link_keys = np.zeros(_LINKS, np.uint64)
        self._link_nodes = np.zeros(_LINKS, np.int32)
        self._slots: dict[int, int] = {}
        self._open = np.zeros((0, _DEEPEST), np.int32)
        self._begun = np.zeros((0, _DEEPEST), np.uint64)
        self._inside = np.zeros((0, _DEEPEST), np.int64)
        self._depths = np.zeros(0, np.int64)
        self._backward = np.zeros(1024, bool)  # by node
        self._phased = 1  # nodes that are in it
        self._graphs = _Graphs()
        self._base = 0
        self._before: dict[int, int] = {}
        self._changes: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}

    @property
    def nodes(self) -> NDArray[Any]:
        """All nodes by number (dtype NODE); times are those of operators that ended."""
        return self._nodes[: int(self._count[0])]

    def feed(self, batch: Batch) -> None:
        """Follows the operators of a batch; `at` then answers for its records."""
        self._base = batch.base
        self._before = {slot: self._innermost(slot) for slot in self._slots.values()}
        self._changes = {}
        events = self._events(batch)
        if len(events):
            self._follow(events, batch)
        self._graphs.feed(batch, self)

    def _follow(self, events: NDArray[Any], batch: Batch) -> None:
        wanted = int(self._count[0]) + len(batch["operator_begin"])
        self._nodes = grown(self._nodes, wanted)
        if 2 * wanted > len(self._table):
            self._rebuild(4 * wanted)
        found = np.empty(len(events), np.int32)
        _follow(
            events, self._nodes, self._count, self._table, self._link_keys, self._link_nodes,
            self._open, self._begun, self._inside, self._depths, found,
        )  # fmt: skip
        order = np.argsort(events["slot"], kind="stable")
        slots, first = np.unique(events["slot"][order], return_index=True)
        for slot, mine in zip(slots.tolist(), np.split(order, first[1:]), strict=True):
            self._changes[slot] = events["index"][mine], found[mine]

    def _innermost(self, slot: int) -> int:
        depth = int(self._depths[slot])
        return int(self._open[slot, depth - 1]) if depth else 0

    def _rebuild(self, length: int) -> None:
        """A larger table for the nodes there are."""
        nodes, count = self._nodes, int(self._count[0])
        self._table = np.zeros(length, np.int32)
        events = np.zeros(count, _EVENT)
        for name in ("name", "module", "stack", "scope"):
            events[name] = nodes[name][:count]
        self._count[0] = 1
        _insert_all(nodes[:count].copy(), events, nodes, self._count, self._table)

    def _events(self, batch: Batch) -> NDArray[Any]:
        parts = []
        for kind, begin in (("operator_begin", 1), ("operator_end", 0)):
            records = batch[kind]
            events = np.zeros(len(records), _EVENT)
            for name in ("index", "time", "depth", *(_FIELDS if begin else ())):
                events[name] = records[name]
            events["begin"] = begin
            events["slot"] = self._slots_of(records["thread"])
            parts.append(events)
        together = np.concatenate(parts)
        return together[np.argsort(together["index"], kind="stable")]

    def _slots_of(self, threads: NDArray[Any]) -> NDArray[Any]:
        distinct, codes = np.unique(threads, return_inverse=True)
        for thread in distinct.tolist():
            if thread not in self._slots:
                self._before[len(self._slots)] = 0
                self._slots[thread] = len(self._slots)
        count = len(self._slots)
        self._open, self._begun, self._inside, self._depths = (
            grown(each, count) for each in (self._open, self._begun, self._inside, self._depths)
        )
        slots = np.asarray([self._slots[thread] for thread in distinct.tolist()], np.int32)
        return slots[codes] if len(slots) else np.empty(0, np.int32)

    def at(self, records: NDArray[Any], *, before: bool = False) -> NDArray[Any]:
        """Nodes (int32) of the innermost operators of the records' threads as of each record;
        with `before`, for the ends of operators the ones that end. What graphs launch is of the
        operators that captured it."""
        found = np.zeros(len(records), np.int32)
        side: Any = "left" if before else "right"
        threads = records["thread"]
        for thread in np.unique(threads).tolist():
            slot = self._slots.get(thread)
            if slot is None:
                continue
            mine = threads == thread
            first = self._before.get(slot, 0)
            indices, nodes = self._changes.get(slot, (np.empty(0, np.int64), np.empty(0, np.int32)))
            after = np.searchsorted(indices, records["index"][mine].astype(np.int64), side)
            found[mine] = np.concatenate([np.asarray([first], np.int32), nodes])[after]
        if "graph_node" in (records.dtype.names or ()):
            replayed = records["graph_node"] != ABSENT_U64
            if replayed.any():
                found[replayed] = self._graphs.operators_of(records[replayed], self._base)
        return found

    @property
    def backward(self) -> NDArray[Any]:
        """Which nodes (bool) belong to the backward pass."""
        nodes = self.nodes
        self._backward = grown(self._backward, len(nodes))
        own = (nodes["scope"] == BACKWARD) | (nodes["forward"] != 0)
        for number in range(self._phased, len(nodes)):  # a node comes after its parent
            self._backward[number] = own[number] or self._backward[nodes["parent"][number]]
        self._phased = len(nodes)
        return self._backward[: len(nodes)]

    def within(self, chosen: NDArray[Any]) -> NDArray[Any]:
        """Which nodes (bool) are `chosen`, or called from one that is."""
        found = np.array(chosen, bool)
        # a node comes after its parent
        for number in np.flatnonzero(~chosen & (self.nodes["parent"] != 0)).tolist():
            found[number] = found[self.nodes["parent"][number]]
        return found

    def first_of(self, codes: NDArray[Any]) -> NDArray[Any]:
        """Which nodes (bool) are called from none with the same code."""
        parents = self.nodes["parent"].tolist()
        around: list[frozenset[int]] = []  # codes of a node and of those around it
        first = np.zeros(len(codes), bool)
        for number, code in enumerate(codes.tolist()):
            outside = around[parents[number]] if parents[number] else frozenset()
            first[number] = code not in outside
            around.append(outside if code in outside else outside | {code})
        return first

    def inherited(self, field: str) -> NDArray[Any]:
        """For each node the nearest value other than 0 of itself or the operators around it."""
        nodes = self.nodes
        values = np.array(nodes[field])
        for number in np.flatnonzero((values == 0) & (nodes["parent"] != 0)).tolist():
            values[number] = values[nodes["parent"][number]]
        return values

    def of_forward(self, field: str) -> NDArray[Any]:
        """`inherited`; for a gradient's operator that of its forward operator, if there is one."""
        own, forward = self.inherited(field), self.inherited("forward")
        there = own[forward]
        return np.asarray(np.where((forward != 0) & (there != 0), there, own))


@compiled()
def _insert_all(kept, events, nodes, count, table):  # type: ignore[no-untyped-def]
    for i in range(1, len(kept)):
        _node(kept[i]["parent"], kept[i]["forward"], events[i], nodes, count, table)
