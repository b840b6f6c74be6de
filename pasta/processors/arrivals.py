"""Arrival times of the ranks of a communicator at its collectives, and which rank is last.

Calls of ranks belong to one collective if they have the same number in a communicator of the same
id; a send and a receive belong together if they have the same number between two ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from pasta.findings import Finding
from pasta.lazy import np
from pasta.table import Table, counted, formatted

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: `channel` of collectives, which involve all ranks.
OF_ALL = -1
#: Differences between ranks that are listed.
_MAX_LISTED = 1000
#: Fields of differences that are called otherwise.
_DIFFERENT = {"size": "bytes"}


@cache
def arrival() -> Any:
    """A rank's part in an operation. `channel`: sender << 32 | receiver, or OF_ALL; `operation`,
    `type`: codes of the caller's; `root`: -1 where there is none; `start` and `end`: ns, on one
    clock for all ranks."""
    numbers = (
        "channel",
        "order",
        "member",
        "size",
        "operation",
        "type",
        "root",
        "bytes",
        "start",
        "end",
    )
    return np.dtype([("id", "u8"), *((name, "i8") for name in numbers)])


def channel_of(
    sends: NDArray[Any], receives: NDArray[Any], member: NDArray[Any], peer: NDArray[Any]
) -> NDArray[Any]:
    """The field `channel` of calls, by operation, rank and peer."""
    source, target = np.where(sends, member, peer), np.where(sends, peer, member)
    return np.where(sends | receives, source << 32 | target, OF_ALL)


@dataclass(frozen=True)
class Thresholds:
    """When a late rank is a finding: it is last in at least this share of an operation, and each
    other rank waits for it this long in all, ns, and as a share of the time from first to last
    collective."""

    last: float = 0.5
    wait: int = 10_000_000
    share: float = 0.02


class Arrivals:
    """Operations recorded by all ranks, and differences between ranks.

    `rows`: dtype `arrival()`; `operations`: names by code; `group` names a communicator by its id,
    and `rank` a member of it; `error`: of the clocks against each other, ns, or None: unknown.
    """

    def __init__(
        self,
        rows: NDArray[Any],
        operations: list[str],
        *,
        group: Callable[[int], str],
        rank: Callable[[int, int], str],
        error: int | None = 0,
    ) -> None:
        self._operations, self._group, self._rank = operations, group, rank
        self.error = error
        known = (rows["order"] >= 0) & (rows["member"] >= 0) & (rows["size"] > 1)
        known &= rows["id"] != np.iinfo(np.uint64).max
        rows = rows[known]
        #: Time from the first start to the last end, ns; a job's start-up is not part of it.
        self._span = 1
        if len(rows):
            last = max(rows["start"].max(), rows["end"].max())
            self._span = max(1, int(last - rows["start"].min()))
        self._rows = rows = rows[
            np.lexsort((rows["member"], rows["order"], rows["channel"], rows["id"]))
        ]
        new = np.ones(len(rows), bool)
        for at, name in enumerate(("id", "channel", "order")):
            differs = rows[name][1:] != rows[name][:-1]
            new[1:] = differs if at == 0 else new[1:] | differs
        self._begins = np.flatnonzero(new)
        self._of = np.cumsum(new) - 1  # number of the operation, by row
        count = len(self._begins)
        members = np.bincount(self._of, minlength=count)
        repeated = (np.diff(rows["member"], prepend=-1) == 0) & ~new
        distinct = np.bincount(self._of, repeated, count) == 0
        expected = np.where(rows["channel"][new] == OF_ALL, rows["size"][new], 2)
        self.complete = (members == expected) & distinct
        self.incomplete = int((~self.complete).sum())
        self._arrive()

    def _arrive(self) -> None:
        rows, begins = self._rows, self._begins
        if not len(rows):
            self._skew = self._last = self._wait = self._transfer = np.zeros(0, np.int64)
            return
        latest_start = np.maximum.reduceat(rows["start"], begins)
        self._skew = latest_start - np.minimum.reduceat(rows["start"], begins)
        # time once all have arrived; -1: the end is unknown
        ends = np.maximum.reduceat(rows["end"], begins)
        timed = np.minimum.reduceat(rows["end"], begins) >= 0
        self._transfer = np.where(timed, np.maximum(ends - latest_start, 0), -1)
        latest = latest_start[self._of]
        late = np.flatnonzero(rows["start"] == latest)
        # the first of several in each operation
        self._last = late[np.unique(self._of[late], return_index=True)[1]]
        until = np.where(rows["end"] >= 0, np.minimum(latest, rows["end"]), latest)
        self._wait = np.maximum(until - rows["start"], 0)

    # ---- results ----

    def __len__(self) -> int:
        return int(self.complete.sum())

    def _kinds(self) -> tuple[list[tuple[int, int]], NDArray[Any]]:
        """Communicators and operations, and the number of each operation's; -1: incomplete."""
        first = self._rows[self._begins]
        of_all = first["channel"] == OF_ALL
        what = np.where(of_all, first["operation"], len(self._operations))
        ids, codes = np.unique(first["id"], return_inverse=True)
        count = len(self._operations) + 1
        keys, kind = np.unique(codes * count + what, return_inverse=True)
        kinds = [(int(ids[key // count]), int(key % count)) for key in keys.tolist()]
        return kinds, np.where(self.complete, kind, -1)

    def _name(self, operation: int) -> str:
        return [*self._operations, "send and recv"][operation]

    def tables(self) -> dict[str, Table]:
        """`arrivals` by communicator and operation, `members` by rank too, `mismatches`."""
        kinds, kind = self._kinds()
        arrivals: list[tuple[Any, ...]] = []
        members: list[tuple[Any, ...]] = []
        for number, (id, operation) in enumerate(kinds):
            mine = np.flatnonzero(kind == number)
            if not len(mine):
                continue
            skew = self._skew[mine]
            found = self._members(kind, number)
            last = max(found, key=lambda each: each[2])
            name, group = self._name(operation), self._group(id)
            arrivals.append(
                (name, group, len(mine), int(skew.mean()), int(np.median(skew)), int(skew.max()),
                 sum(each[4] for each in found), self._rank(id, last[0]), last[2] / len(mine),
                 *self._speed(mine))
            )  # fmt: skip
            members += [
                (name, group, self._rank(id, member), count, times, times / max(1, count), caused,
                 waited)
                for member, count, times, caused, waited in found
            ]  # fmt: skip
        arrivals.sort(key=lambda row: -row[6])
        members.sort(key=lambda row: -row[6])
        tables = {"arrivals": _arrivals_table(arrivals), "members": _members_table(members)}
        different = self.mismatches
        if different:
            tables["mismatches"] = _mismatches_table(different[:_MAX_LISTED])
        return tables

    def _speed(self, mine: NDArray[Any]) -> tuple[int | None, float | None]:
        """Mean time (ns) from the last start to the last end, and bytes per ns in it."""
        timed = mine[self._transfer[mine] >= 0]
        time = int(self._transfer[timed].sum())
        if not time:
            return None, None
        bytes = int(self._rows["bytes"][self._begins[timed]].sum())
        return time // len(timed), bytes / time

    def _members(self, kind: NDArray[Any], number: int) -> list[tuple[int, int, int, int, int]]:
        """For each member: operations, times that it was last, waits of all others then, own
        waits."""
        chosen = kind[self._of] == number
        rows, wait, of = self._rows[chosen], self._wait[chosen], self._of[chosen]
        members, at = np.unique(rows["member"], return_inverse=True)
        counts = np.bincount(at)
        waited = np.bincount(at, wait).astype(np.int64)
        operations = np.flatnonzero(kind == number)
        last = np.searchsorted(members, self._rows["member"][self._last[operations]])
        times = np.bincount(last, minlength=len(members))
        of_operation = np.bincount(of, wait, len(kind))[operations]
        caused = np.bincount(last, of_operation, len(members)).astype(np.int64)
        columns = (members, counts, times, caused, waited)
        return list(zip(*(each.tolist() for each in columns), strict=True))

    def findings(self, thresholds: Thresholds | None = None) -> Iterator[Finding]:
        """Ranks for which the others wait, and calls that differ between ranks."""
        limits = thresholds or Thresholds()
        yield from self._mismatch_findings()
        if self.error is None:
            return
        kinds, kind = self._kinds()
        for number, (id, operation) in enumerate(kinds):
            found = self._members(kind, number)
            if not found:
                continue
            member, count, times, caused, _ = max(found, key=lambda each: each[3])
            each = caused // max(1, len(found) - 1)
            if times < limits.last * count or each < max(limits.wait, times * self.error):
                continue
            if each < limits.share * self._span:
                continue
            rank, name = self._rank(id, member), self._name(operation)
            yield Finding(
                what="other ranks wait for a late rank",
                where=rank,
                evidence=f"{rank} is last in {formatted(times / count, 'share')} of "
                f"{counted(count, 'operation')} {name} of {self._group(id)}: each of "
                f"the others waits {formatted(each / max(1, times), 'ns')} for it "
                f"each time, {formatted(each, 'ns')} in total",
                remedy=f"check what {rank} does before: a larger share of the data, longer "
                "sequences, a slower device or host (tools operators, utilization, "
                "telemetry)",
                gain=min(1.0, each / self._span),
                of="the time from first to last collective",
            )

    # ---- differences between ranks ----

    @cached_property
    def mismatches(self) -> list[tuple[str, str, int, str, str]]:
        """Operations that differ between ranks: communicator, what differs, order, what two ranks
        do."""
        rows = self._rows
        first = self._begins[self._of]
        of_all = rows["channel"] == OF_ALL
        found: list[tuple[str, str, int, str, str]] = []
        for what in ("operation", "type", "size", "root"):
            name = _DIFFERENT.get(what, what)
            differs = rows[name] != rows[name][first]
            if what in ("operation", "root"):
                differs &= of_all
            if what != "operation":
                differs &= ~of_all | (rows["operation"] == rows["operation"][first])
            seen: set[int] = set()
            for at in np.flatnonzero(differs).tolist():
                number = int(self._of[at])
                if number in seen or len(found) >= _MAX_LISTED:
                    continue
                seen.add(number)
                found.append((
                    self._group(int(rows["id"][at])), what, int(rows["order"][at]),
                    self._call(rows[first[at]]), self._call(rows[at]),
                ))  # fmt: skip
        return [*found, *self._missing()]

    def _call(self, row: Any) -> str:
        rank = self._rank(int(row["id"]), int(row["member"]))
        name, size = self._operations[int(row["operation"])], formatted(int(row["bytes"]), "bytes")
        return f"{rank}: {name} of {size}"

    def _missing(self) -> list[tuple[str, str, int, str, str]]:
        """Communicators in which some ranks made fewer calls than others."""
        rows = self._rows
        if not len(rows):
            return []
        last = np.ones(len(rows), bool)  # of each member in a channel
        order = np.lexsort((rows["order"], rows["member"], rows["channel"], rows["id"]))
        ordered = rows[order]
        last[:-1] = False
        for name in ("id", "channel", "member"):
            last[:-1] |= ordered[name][1:] != ordered[name][:-1]
        ends = ordered[last]
        new = np.ones(len(ends), bool)
        new[1:] = (np.diff(ends["id"]) != 0) | (np.diff(ends["channel"]) != 0)
        begins = np.flatnonzero(new)
        most = np.maximum.reduceat(ends["order"], begins)[np.cumsum(new) - 1]
        found = []
        for at in np.flatnonzero(ends["order"] < most).tolist()[:_MAX_LISTED]:
            row, top = ends[at], int(most[at])
            rank = self._rank(int(row["id"]), int(row["member"]))
            found.append((
                self._group(int(row["id"])), "number of calls", int(row["order"]) + 1,
                f"{rank}: {counted(int(row['order']) + 1, 'call')}",
                f"another rank: {counted(top + 1, 'call')}",
            ))  # fmt: skip
        return found

    def _mismatch_findings(self) -> Iterator[Finding]:
        found = self.mismatches
        for what in dict.fromkeys(each[1] for each in found):
            rows = [each for each in found if each[1] == what]
            group, _, order, one, other = rows[0]
            yield Finding(
                what=f"ranks call collectives with a different {what}"
                if what != "number of calls"
                else "ranks make different numbers of calls on one communicator",
                where=f"{group}, call {order}",
                evidence=f"{one}; {other}" + (f"; {len(rows):,} in all" if len(rows) > 1 else ""),
                remedy="make all ranks issue the same calls in the same order: otherwise "
                "they deadlock or compute wrong results (unless profiling ended "
                "earlier in one of them)",
                confidence="high" if what != "number of calls" else "medium",
            )


def _arrivals_table(rows: list[tuple[Any, ...]]) -> Table:
    names = (
        "operation", "communicator", "joined", "skew", "median_skew", "longest_skew", "waits",
        "last", "last_share", "transfer", "algorithm",
    )  # fmt: skip
    times = ("skew", "median_skew", "longest_skew", "waits", "transfer")
    return Table(
        {name: [row[at] for row in rows] for at, name in enumerate(names)},
        units={**dict.fromkeys(times, "ns"), "last_share": "share"},
        labels={
            "joined": "of all ranks",
            "skew": "mean skew",
            "waits": "waits of all ranks",
            "last": "most often last",
            "last_share": "of the operations",
            "transfer": "mean time once all arrived",
            "algorithm": "GB/s in that time",
        },
        keys=("operation", "communicator"),
        sums=("joined", "waits"),
        levels=("skew", "median_skew", "longest_skew", "last_share", "transfer", "algorithm"),
        important=("skew", "waits"),
        title="Arrival of ranks: latest minus earliest start",
    )


def _members_table(rows: list[tuple[Any, ...]]) -> Table:
    names = ("operation", "communicator", "member", "joined", "last", "last_share", "caused",
             "waited")  # fmt: skip
    return Table(
        {name: [row[at] for row in rows] for at, name in enumerate(names)},
        units={"last_share": "share", "caused": "ns", "waited": "ns"},
        labels={"member": "rank", "joined": "operations", "last": "came last",
                "last_share": "of them", "caused": "others waited for it",
                "waited": "waited for others"},
        keys=("operation", "communicator", "member"), sums=("joined", "last", "caused", "waited"),
        levels=("last_share",), important=("caused", "waited"),
        title="Ranks that others wait for",
    )  # fmt: skip


def _mismatches_table(rows: list[tuple[str, str, int, str, str]]) -> Table:
    names = ("communicator", "differs", "call", "one", "other")
    return Table(
        {name: [row[at] for row in rows] for at, name in enumerate(names)},
        labels={"one": "one rank", "other": "another rank"},
        keys=("communicator", "differs", "call"), sums=(), levels=(),
        title="Calls that differ between ranks",
    )  # fmt: skip
