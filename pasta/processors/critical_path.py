"""The critical path of a run: the chain of work and host time that ends last.

Each piece of work starts when the last of its conditions is met: the host submitted it, the work
before it in its stream ended, or work of another stream that it waits for, by an event or because
streams wait for the default stream. The host goes on when the work that it waits for has ended.
Followed back from its end, a run is therefore one chain of intervals, whose lengths add up to its
time.

Work is followed forward, in order of time: a node is the end of a piece of work or of a wait of the
host, with the node before it on its chain. Nodes to which only one chain leads are merged with the
next one, as sums by kind of interval, so that memory does not grow with the length of a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pasta.compiled import compiled, internal
from pasta.processors.codes import RowCodes, grown

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Kinds of intervals; those from WORK on are work, by number.
HOST, LATENCY, NEXT, WAITED, RETURN, WORK = range(6)
#: What a piece of work waited for besides its submission.
BEFORE, EVENT, DEFAULT = range(3)
#: Operations of the host, and their order at one time: waits of the host end, then it submits.
_SYNC, _BACK, _RECORD, _WAIT, _SUBMIT, _START = range(6)
SYNC, RECORD, EVENT_WAIT = _SYNC, _RECORD, _WAIT
#: Targets of a wait of the host.
OF_STREAM, OF_EVENT, OF_DEVICE = range(3)

#: Work that completed, times in ns; `order` is that of submission among all that the host does,
#: `blocking`: the host waited for its end.
WORKS = [
    ("submitted", "i8"), ("start", "i8"), ("end", "i8"), ("order", "i8"), ("thread", "i8"),
    ("stream", "u8"), ("device", "i8"), ("what", "i8"), ("blocking", "?"),
]  # fmt: skip
#: Operations of the host: SYNC (from `begin` to `time`, of a stream, an event, or all of a device
#: or all devices, -1), RECORD or EVENT_WAIT of an event.
HOSTS = [
    ("time", "i8"), ("order", "i8"), ("kind", "i1"), ("target", "i1"), ("begin", "i8"),
    ("thread", "i8"), ("stream", "u8"), ("device", "i8"), ("event", "u8"),
]  # fmt: skip
#: Waits of work: slots of its stream and of the awaited stream, how, and by what it was
#: delayed beyond its other conditions, ns.
WAITS = [("stream", "i4"), ("other", "i4"), ("how", "i1"), ("what", "i8"), ("time", "i8")]

_MAX_STREAMS, _MAX_THREADS, _MAX_EVENTS, _MAX_MARKS = 1 << 12, 1 << 14, 1 << 15, 1 << 13
#: Maximum number of distinct awaited items.
_MAX_WAITS = 1 << 16
#: Number of last pieces of work to keep per stream; work of a graph may overlap.
_LAST = 4
#: Waits for events that a piece of work may have.
_DEPENDENCIES = 4
#: Device times may be this late on the clock of the host, ns.
_CLOCK_ERROR = 1_000

_PENDING = np.dtype(
    [
        *WORKS, ("phase", "i1"), ("version", "i8"), ("since", "i8"), ("node", "i8"),
        ("marks", "i4", (_DEPENDENCIES,)),
    ],
    align=True,
)  # fmt: skip
#: `free`: it overlapped with the default stream, so neither waits for the other.
_STREAM = np.dtype(
    [
        ("device", "i8"), ("default", "?"), ("free", "?"), ("submitted", "i8"), ("started", "i8"),
        ("end", "i8", (_LAST,)), ("node", "i8", (_LAST,)), ("order", "i8", (_LAST,)),
        ("what", "i8", (_LAST,)), ("waits", "i4", (_DEPENDENCIES,)), ("unresolved", "i4"),
        ("busy", "i8"),
    ]
)  # fmt: skip
_THREAD = np.dtype([("node", "i8"), ("since", "i8"), ("last", "i8")])
#: Work recorded by an event: the `number`-th of a stream; `end` is -1 until it starts.
_MARK = np.dtype(
    [
        ("stream", "i4"), ("number", "i8"), ("end", "i8"), ("node", "i8"), ("what", "i8"),
        ("used", "i4"), ("next", "i4"),
    ]
)  # fmt: skip
#: A node: its predecessor, and the intervals up to it: host time, time until the start, and work.
_NODE = np.dtype(
    [
        ("parent", "i8"),
        ("host", "i8"),
        ("gap", "i8"),
        ("kind", "i8"),
        ("work", "i8"),
        ("what", "i8"),
    ]
)
#: Latest two ends of work of different streams of a device, time in which streams overlapped, and
#: the slot of the default stream.
_DEVICE = np.dtype(
    [
        ("first", "i4"),
        ("first_end", "i8"),
        ("second_end", "i8"),
        ("overlap", "i8"),
        ("default", "i4"),
    ]
)
_SUMS = np.dtype([("node", "i8"), ("what", "i8"), ("time", "i8"), ("count", "i8")])


@internal(inline=True)
def _release(mark, marks, free):  # type: ignore[no-untyped-def]
    marks[mark]["used"] -= 1
    if marks[mark]["used"] == 0 and marks[mark]["end"] != -1:
        free[0] += 1
        free[free[0]] = mark


@internal(inline=True)
def _made(nodes, count, parent, host, gap, kind, work, what):  # type: ignore[no-untyped-def]
    node = count[0]
    count[0] += 1
    nodes[node]["parent"], nodes[node]["host"] = parent, host
    nodes[node]["gap"], nodes[node]["kind"] = gap, kind
    nodes[node]["work"], nodes[node]["what"] = work, what
    return node


@internal(inline=True)
def _latest(stream, until):  # type: ignore[no-untyped-def]
    """Place of the remembered work of a stream that ended last, by `until`; -1: none."""
    found = -1
    for at in range(min(stream["started"], _LAST)):
        if stream["end"][at] <= until and (found < 0 or stream["end"][at] > stream["end"][found]):
            found = at
    return found


@compiled(
    times=["i8"], kinds=["i1"], rows=["i8"], works=[_PENDING], hosts=[np.dtype(HOSTS)],
    streams=[_STREAM], stream_count="i8", threads=[_THREAD], last=["i8"], devices=[_DEVICE],
    marks=[_MARK], free=["i4"], events=["i4"], nodes=[_NODE], count=["i8"],
    waits=[np.dtype(WAITS)], latency="i8",
)  # fmt: skip
def _walk(  # type: ignore[no-untyped-def]
    times, kinds, rows, works, hosts, streams, stream_count, threads, last, devices, marks, free,
    events, nodes, count, waits, latency,
):  # fmt: skip
    """Follows what happened in order of time; returns the number of waits. `last`: the node at
    which the last wait of any thread ended, and its time."""
    waited = 0
    for item in range(len(times)):
        kind, row, time = kinds[item], rows[item], times[item]
        if kind == _SYNC:
            host = hosts[row]
            until, end, node = time + _CLOCK_ERROR, np.int64(-1), np.int64(-1)
            if host["target"] == OF_EVENT:
                mark = events[host["event"]]
                if mark >= 0 and marks[mark]["end"] <= until:
                    end, node = marks[mark]["end"], marks[mark]["node"]
            else:
                for s in range(stream_count):
                    if host["target"] == OF_STREAM and s != np.int64(host["stream"]):
                        continue
                    if host["device"] >= 0 and streams[s]["device"] != host["device"]:
                        continue
                    at = _latest(streams[s], until)
                    if at >= 0 and streams[s]["end"][at] > end:
                        end, node = streams[s]["end"][at], streams[s]["node"][at]
            if node >= 0 and end > host["begin"]:
                resumed = max(end, time)
                thread = threads[host["thread"]]
                thread["node"] = _made(nodes, count, node, 0, resumed - end, RETURN, 0, 0)
                thread["since"] = resumed
                if resumed > last[1]:
                    last[0], last[1] = thread["node"], resumed
        elif kind == _BACK:
            work = works[row]
            thread = threads[work["thread"]]
            if work["phase"] == 2:
                work["phase"] = 3
                if thread["last"] <= work["submitted"]:  # the host did wait
                    thread["node"], thread["since"] = work["node"], work["end"]
                    if work["end"] > last[1]:
                        last[0], last[1] = work["node"], work["end"]
        elif kind == _RECORD:
            host = hosts[row]
            event, s = host["event"], np.int64(host["stream"])
            if events[event] >= 0:
                _release(events[event], marks, free)
                events[event] = -1
            if free[0] > 0:
                mark = free[free[0]]
                free[0] -= 1
                events[event] = mark
                stream = streams[s]
                marks[mark]["stream"], marks[mark]["number"] = s, stream["submitted"]
                marks[mark]["used"], marks[mark]["next"] = 1, -1
                marks[mark]["node"], marks[mark]["end"] = -1, -1
                if stream["submitted"] <= stream["started"]:
                    marks[mark]["end"] = -2  # nothing to wait for
                    if stream["started"] > 0:
                        at = (stream["started"] - 1) % _LAST
                        marks[mark]["end"] = stream["end"][at]
                        marks[mark]["node"] = stream["node"][at]
                        marks[mark]["what"] = stream["what"][at]
                else:
                    marks[mark]["next"] = stream["unresolved"]
                    stream["unresolved"] = mark
        elif kind == _WAIT:
            host = hosts[row]
            mark = events[host["event"]]
            if mark >= 0:
                own = streams[np.int64(host["stream"])]["waits"]
                for at in range(_DEPENDENCIES):
                    if own[at] < 0:
                        own[at] = mark
                        marks[mark]["used"] += 1
                        break
        elif kind == _SUBMIT:
            work = works[row]
            stream, thread = streams[work["stream"]], threads[work["thread"]]
            # a thread that did nothing since another thread's wait ended continues that thread's
            # chain
            if thread["last"] < last[1] and thread["since"] < last[1]:
                thread["node"], thread["since"] = last[0], last[1]
            thread["last"] = time
            work["version"], work["since"] = thread["node"], thread["since"]
            for at in range(_DEPENDENCIES):
                work["marks"][at] = stream["waits"][at]
                stream["waits"][at] = -1
            stream["submitted"] += 1
            work["phase"] = 1
        else:
            work = works[row]
            s = np.int64(work["stream"])
            stream, device = streams[s], devices[work["device"] + 1]
            begin = min(work["submitted"], time)
            # the latest condition, and the previous one
            bound, second, parent = begin, np.int64(-1), np.int64(-1)
            other, how, what = s, np.int8(-1), np.int64(0)
            at = _latest(stream, time)
            if at >= 0:
                end = stream["end"][at]
                if end > bound:
                    second, bound, parent, how = bound, end, stream["node"][at], np.int8(BEFORE)
                    what = stream["what"][at]
                else:
                    second = end
            for at in range(_DEPENDENCIES):
                mark = work["marks"][at]
                if mark < 0:
                    continue
                end = marks[mark]["end"]
                if end >= 0 and end <= time and marks[mark]["node"] >= 0:
                    if end > bound:
                        second, bound, parent, how = bound, end, marks[mark]["node"], np.int8(EVENT)
                        other, what = np.int64(marks[mark]["stream"]), marks[mark]["what"]
                    elif end > second:
                        second = end
                _release(mark, marks, free)
            first, after = device["default"], device["default"] + 1
            if stream["default"]:
                first, after = 0, stream_count
            for o in range(max(first, 0), after):
                if o == s or streams[o]["device"] != stream["device"]:
                    continue
                side = streams[o] if stream["default"] else stream
                for each in range(min(streams[o]["started"], _LAST)):
                    if streams[o]["end"][each] > time and (
                        streams[o]["order"][each] < work["order"]
                    ):
                        side["free"] = True
                at = _latest(streams[o], time)
                if side["free"] or at < 0 or streams[o]["order"][at] > work["order"]:
                    continue
                end = streams[o]["end"][at]
                if end > bound and time - end <= latency:
                    second, bound, parent, how = (
                        bound,
                        end,
                        streams[o]["node"][at],
                        np.int8(DEFAULT),
                    )
                    other, what = np.int64(o), streams[o]["what"][at]
                elif end > second and end <= bound:
                    second = end
            gap, took = time - bound, work["end"] - time
            named = WORK + work["what"]
            if parent < 0:
                reason = LATENCY if gap <= latency else WAITED
                node = _made(
                    nodes, count, work["version"], bound - work["since"], gap, reason, took, named
                )
            else:
                reason = NEXT if gap <= latency else WAITED
                node = _made(nodes, count, parent, 0, gap, reason, took, named)
                waits[waited]["stream"], waits[waited]["other"] = s, other
                waits[waited]["how"], waits[waited]["what"] = how, what
                waits[waited]["time"] = bound - max(second, begin)
                waited += 1
            work["node"], work["phase"] = node, 2 if work["blocking"] and took > 0 else 3
            at = stream["started"] % _LAST
            stream["end"][at], stream["node"][at] = work["end"], node
            stream["order"][at], stream["what"][at] = work["order"], work["what"]
            stream["started"] += 1
            stream["busy"] += took
            previous, mark = -1, stream["unresolved"]
            while mark >= 0:
                following = marks[mark]["next"]
                if marks[mark]["number"] <= stream["started"]:
                    marks[mark]["end"], marks[mark]["node"] = work["end"], node
                    marks[mark]["what"] = work["what"]
                    if previous < 0:
                        stream["unresolved"] = following
                    else:
                        marks[previous]["next"] = following
                    if marks[mark]["used"] == 0:
                        free[0] += 1
                        free[free[0]] = mark
                else:
                    previous = mark
                mark = following
            latest = device["second_end"] if device["first"] == s else device["first_end"]
            device["overlap"] += max(0, min(work["end"], latest) - time)
            if device["first"] == s:
                device["first_end"] = max(device["first_end"], work["end"])
            elif work["end"] > device["first_end"]:
                device["second_end"], device["first_end"] = device["first_end"], work["end"]
                device["first"] = s
            else:
                device["second_end"] = max(device["second_end"], work["end"])
    return waited


@compiled(parents=["i8"], count="i8", heads=["?"], target=["i8"], place=["i8"], chains=["i4"])
def _merge(parents, count, heads, target, place, chains):  # type: ignore[no-untyped-def]
    """Marks in `heads` the nodes that remain: these, node 0, and those where chains meet.
    `target[node]` is the number of the one that gets its sums (-1: no chain leads to it),
    `place[node]` that of the next one before it, itself included. `chains`: zeros, the number of
    chains from the nodes after it."""
    heads[0] = True
    for node in range(count - 1, 0, -1):
        if heads[node] or chains[node]:
            chains[parents[node]] += 1
    kept = 0
    for node in range(count):
        target[node] = -1
        if heads[node] or chains[node] > 1:
            heads[node] = True
            place[node] = kept
            kept += 1
        else:
            place[node] = place[parents[node]]
    for node in range(count - 1, -1, -1):
        if heads[node]:
            target[node] = place[node]
        if node and target[node] >= 0:
            parent = parents[node]
            if not heads[parent] and chains[parent] == 1:
                target[parent] = target[node]


@internal(inline=True)
def _add(node, what, time, count, sums, used, table):  # type: ignore[no-untyped-def]
    """Adds to the sum of a node and a kind; `table` is a hash table of rows of `sums`."""
    at = (node * 0x9E3779B1 + what * 0x85EBCA77) & (len(table) - 1)
    while table[at] != 0:
        row = table[at] - 1
        if sums[row]["node"] == node and sums[row]["what"] == what:
            sums[row]["time"] += time
            sums[row]["count"] += count
            return
        at = (at + 1) & (len(table) - 1)
    table[at] = used[0] + 1
    sums[used[0]]["node"], sums[used[0]]["what"] = node, what
    sums[used[0]]["time"], sums[used[0]]["count"] = time, count
    used[0] += 1


@compiled(
    old=[_SUMS], nodes=[_NODE], first="i8", target=["i8"], sums=[_SUMS], used=["i8"], table=["i4"]
)
def _collect(old, nodes, first, target, sums, used, table):  # type: ignore[no-untyped-def]
    """Adds up the sums so far, and the intervals of nodes from `first` on, by where they go."""
    for row in range(len(old)):
        node = target[old[row]["node"]]
        if node >= 0:
            _add(node, old[row]["what"], old[row]["time"], old[row]["count"], sums, used, table)
    for row in range(first, len(nodes)):
        node = target[row]
        if node < 0:
            continue
        if nodes[row]["host"] != 0:
            _add(node, HOST, nodes[row]["host"], 1, sums, used, table)
        if nodes[row]["gap"] != 0:
            _add(node, nodes[row]["kind"], nodes[row]["gap"], 1, sums, used, table)
        if nodes[row]["work"] != 0:
            _add(node, nodes[row]["what"], nodes[row]["work"], 1, sums, used, table)


class CriticalPath:
    """Follows work and waits; see the module. Times before `begin` (ns) do not count."""

    def __init__(self, begin: int, latency: int) -> None:
        """`latency`: what starts this long (ns) after its conditions waited for something else."""
        self.begin, self.latency = begin, latency
        self._stream_codes = RowCodes(_MAX_STREAMS)
        self._thread_codes = RowCodes(_MAX_THREADS)
        self._event_codes = RowCodes(_MAX_EVENTS)
        self._works = np.zeros(0, _PENDING)
        self._hosts = np.zeros(0, HOSTS)
        self._streams = np.zeros(0, _STREAM)
        self._threads = np.zeros(0, _THREAD)
        self._devices = np.zeros(0, _DEVICE)  # by number + 1
        self._events = np.zeros(0, np.int32)
        self._marks = np.zeros(_MAX_MARKS, _MARK)
        #: Numbers of unused marks from 1 on; [0]: how many.
        self._free = np.arange(-1, _MAX_MARKS, dtype=np.int32)
        self._free[0] = _MAX_MARKS
        self._nodes = np.zeros(1, np.int64)  # the parent of each; 0: begin of the run
        self._sums = np.zeros(0, _SUMS)
        self._last = np.asarray([0, begin], np.int64)
        #: Waits of work by stream, other stream, how, and what was waited for: number and time.
        self.waits: dict[tuple[int, int, int, int], list[int]] = {}

    def add(self, works: NDArray[Any], devices: NDArray[Any], what: NDArray[Any]) -> None:
        """Adds work that completed: an array with the other fields of WORKS, devices (0 and more)
        and what identifies it (below 2**40)."""
        if not len(works):
            return
        rows = np.zeros(len(works), _PENDING)
        for name in ("start", "end", "order", "blocking"):
            rows[name] = works[name]
        submitted = works["submitted"]
        rows["submitted"] = np.where(submitted < 0, works["start"], submitted)
        rows["device"], rows["what"] = devices, what
        rows["stream"] = self._stream_slots(devices, works["stream"])
        rows["thread"] = self._thread_slots(works["thread"])
        rows["marks"] = -1
        self._know_device(int(devices.max()))  # also where its streams are beyond the limit
        self._works = np.concatenate([self._works, rows]) if len(self._works) else rows

    def add_host(self, hosts: NDArray[Any]) -> None:
        """Adds operations of the host (dtype HOSTS)."""
        if not len(hosts):
            return
        rows = hosts.copy()
        rows["stream"] = self._stream_slots(hosts["device"], hosts["stream"])
        rows["thread"] = self._thread_slots(hosts["thread"])
        rows["event"] = self._event_slots(hosts["event"])
        self._hosts = np.concatenate([self._hosts, rows])

    def _stream_slots(self, devices: NDArray[Any], streams: NDArray[Any]) -> NDArray[Any]:
        words = np.column_stack([devices.astype(np.uint64), streams])
        found = self._stream_codes.encode(words)
        count = len(self._streams)
        if len(self._stream_codes) > count:
            self._streams = np.concatenate(
                [self._streams, np.zeros(len(self._stream_codes) - count, _STREAM)]
            )
            new = self._streams[count:]
            known = np.asarray(self._stream_codes.rows[count:], np.uint64)
            new["device"] = known[:, 0].astype(np.int64)
            new["default"] = known[:, 1] == 0
            new["waits"], new["unresolved"] = -1, -1
            for slot in range(count, len(self._streams)):
                self._know_device(int(self._streams[slot]["device"]), slot)
        return np.asarray(np.where(found < 0, _MAX_STREAMS - 1, found))

    def _know_device(self, number: int, slot: int = -1) -> None:
        count = len(self._devices)
        self._devices = grown(self._devices, number + 2)
        self._devices["first"][count:] = self._devices["default"][count:] = -1
        if slot >= 0 and self._streams[slot]["default"]:
            self._devices["default"][number + 1] = slot

    def _thread_slots(self, threads: NDArray[Any]) -> NDArray[Any]:
        same = (threads == threads[0]).all()
        found = self._thread_codes.encode(threads[: 1 if same else None].astype(np.uint64)[:, None])
        count = len(self._threads)
        self._threads = grown(self._threads, len(self._thread_codes))
        self._threads["since"][count:] = self.begin
        self._threads["last"][count:] = -1
        return np.asarray(np.where(found < 0, _MAX_THREADS - 1, found))

    def _event_slots(self, events: NDArray[Any]) -> NDArray[Any]:
        found = self._event_codes.encode(events.astype(np.uint64)[:, None])
        count = len(self._events)
        self._events = grown(self._events, len(self._event_codes))
        self._events[count:] = -1
        return np.asarray(np.where(found < 0, _MAX_EVENTS - 1, found))

    def sweep(self, until: int) -> None:
        """Follows what happened before a time (ns): all work that was submitted before has been
        added."""
        works, hosts = self._works, self._hosts
        now = np.flatnonzero(hosts["time"] < until)
        waits = now[hosts["kind"][now] == _SYNC]
        others = now[hosts["kind"][now] != _SYNC]
        submitted = np.flatnonzero((works["phase"] == 0) & (works["submitted"] < until))
        started = np.flatnonzero((works["phase"] < 2) & (works["start"] < until))
        started = started[np.argsort(works["order"][started], kind="stable")]
        back = np.flatnonzero(works["blocking"] & (works["end"] < until))
        orders = np.concatenate([hosts["order"][others], works["order"][submitted]])
        mixed = np.argsort(orders, kind="stable")

        def together(of_waits: Any, of_back: Any, of_mixed: Any, of_started: Any) -> NDArray[Any]:
            return np.concatenate([of_waits, of_back, of_mixed[mixed], of_started])

        times = together(
            hosts["time"][waits],
            works["end"][back],
            np.concatenate([hosts["time"][others], works["submitted"][submitted]]),
            works["start"][started],
        )
        kinds = together(
            np.full(len(waits), _SYNC, np.int8),
            np.full(len(back), _BACK, np.int8),
            np.concatenate([hosts["kind"][others], np.full(len(submitted), _SUBMIT, np.int8)]),
            np.full(len(started), _START, np.int8),
        )
        rows = together(waits, back, np.concatenate([others, submitted]), started)
        order = np.argsort(times, kind="stable")
        count = np.asarray([len(self._nodes)])
        nodes = np.zeros(len(self._nodes) + len(order), _NODE)
        nodes["parent"][: len(self._nodes)] = self._nodes
        found = np.zeros(len(started), WAITS)
        waited = _walk(
            times[order], kinds[order], rows[order], works, hosts, self._streams,
            len(self._streams), self._threads, self._last, self._devices, self._marks, self._free,
            self._events, nodes, count, found, self.latency,
        )  # fmt: skip
        self._add_waits(found[:waited])
        self._works = works[works["phase"] < 3].copy()
        self._hosts = hosts[hosts["time"] >= until]
        self._fold(nodes, int(count[0]))

    def _add_waits(self, waits: NDArray[Any]) -> None:
        if not len(waits):
            return
        names = ("stream", "other", "how", "what")
        words = np.column_stack([waits[name].astype(np.int64) for name in names])
        mixed = (words[:, 0] << 48) | (words[:, 1] << 34) | (words[:, 2] << 32) | words[:, 3]
        _, first, at = np.unique(mixed, return_index=True, return_inverse=True)
        counts, sums = np.bincount(at), np.zeros(len(first), np.int64)
        np.add.at(sums, at, waits["time"])
        for row, number, time in zip(
            words[first].tolist(), counts.tolist(), sums.tolist(), strict=True
        ):
            stream, other, how, what = row
            if (stream, other, how, what) not in self.waits and len(self.waits) >= _MAX_WAITS:
                what = -1
            total = self.waits.setdefault((stream, other, how, what), [0, 0])
            total[0] += number
            total[1] += time

    def _fold(self, nodes: NDArray[Any], count: int) -> None:
        """Merges nodes to which one chain leads; keeps those that something may still follow."""
        used = self._streams["node"][self._streams["end"] > 0]
        self._marks["node"][self._marks["used"] == 0] = -1
        marks = self._marks["node"]
        pending = self._works
        references = (
            used, self._threads["node"], marks, pending["version"], pending["node"], self._last[:1],
        )  # fmt: skip
        heads = np.zeros(count, bool)
        for each in references:
            heads[each[each >= 0]] = True
        target, place = np.zeros(count, np.int64), np.zeros(count, np.int64)
        parents = np.ascontiguousarray(nodes["parent"][:count])
        _merge(parents, count, heads, target, place, np.zeros(count, np.int32))
        most = len(self._sums) + 3 * (count - len(self._nodes))
        sums, used = np.zeros(most, _SUMS), np.zeros(1, np.int64)
        table = np.zeros(2 << most.bit_length(), np.int32)
        _collect(self._sums, nodes[:count], len(self._nodes), target, sums, used, table)
        self._sums = sums[: used[0]].copy()
        self._nodes = place[parents[heads]]
        for array in (self._streams, self._threads, self._marks, self._works):
            array["node"] = np.where(array["node"] >= 0, place[np.clip(array["node"], 0, None)], -1)
        self._works["version"] = place[self._works["version"]]
        self._last[0] = place[self._last[0]]

    def path(self, end: int, thread: int) -> NDArray[Any]:
        """Intervals of the chain that ends last, by what they are: `what` (a kind, or WORK and the
        number of the work), `time` (ns) and `count`. `end`: that of the run, `thread`: the one that
        ended it."""
        ends = self._streams["end"]
        rest = np.zeros(1, _SUMS)
        if len(ends) and int(ends.max(initial=0)) >= end:
            node = int(self._streams["node"].reshape(-1)[int(ends.argmax())])
        else:
            slot = int(self._thread_slots(np.asarray([thread]))[0])
            last, since = self._threads["last"][slot], int(self._threads["since"][slot])
            node = int(self._threads["node"][slot])
            if last < self._last[1] and since < self._last[1]:
                node, since = self._last.tolist()
            rest["what"], rest["time"], rest["count"] = HOST, end - since, 1
        chain = np.zeros(len(self._nodes), bool)
        while node:
            chain[node] = True
            node = int(self._nodes[node])
        nodes = self._sums["node"]
        found = np.concatenate([self._sums[chain[nodes]], rest[rest["time"] != 0]])
        found["node"] = 0
        return _added(found)

    def streams(self) -> list[tuple[int, int, int]]:
        """Device, handle and busy time (ns) of each stream, by its slot in `waits`."""
        rows = self._stream_codes.rows
        busy = self._streams["busy"].tolist()
        devices = self._streams["device"].tolist()
        return [
            (device, row[1], time) for device, row, time in zip(devices, rows, busy, strict=True)
        ]

    def overlap(self, device: int) -> int:
        """Time in which work of different streams of a device overlapped, ns."""
        known = device + 1 < len(self._devices)
        return int(self._devices["overlap"][device + 1]) if known else 0


def _added(sums: NDArray[Any]) -> NDArray[Any]:
    """Sums of equal node and kind, as one row each."""
    keys = sums["node"] << 42 | sums["what"]
    order = np.argsort(keys)
    sums, keys = sums[order], keys[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    found = sums[first]
    if len(first):
        found["time"] = np.add.reduceat(sums["time"], first)
        found["count"] = np.add.reduceat(sums["count"], first)
    return found
