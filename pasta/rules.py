"""Rules: checks of the calls that a program makes, each a few lines of Python.

    from pasta.rules import Rules, Violation, rule

    class SmallCopies(Rules):
        \"\"\"Copies that are too small.\"\"\"

        @rule("copies of single bytes")
        def single_bytes(self, calls):
            copies = calls.of("memory_copy") & (calls.rows["bytes"] == 1)
            for site, found in calls.sites(copies):
                if len(found) >= 100:
                    yield Violation(site, len(found), "of one byte each", "copy them together")

A class of rules is a tool: `-t ./small_copies.py`, `tools = ["./small_copies.py"]` in TOML, or an
entry point of the group `pasta.tools`. The built-in rules are the tool `code_check`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from pasta.lazy import np
from pasta.members import Member
from pasta.processors.batch import ABSENT_U64
from pasta.processors.kernel_names import kernel_names
from pasta.processors.launch_waves import LaunchWaves
from pasta.processors.operator_names import user_lines
from pasta.table import Table, counted
from pasta.tool import Confidence, Finding, Result, Tool, option

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.context import Context
    from pasta.processors.stacks import Frame

__all__ = ["Calls", "Rules", "Site", "Violation", "rule"]

#: A call. `kind`: number of its event kind; `name`: id of the kernel's name; `node`: operator
#: around it; `ranges`: number of the open ranges; `address`: memory that is written, allocated or
#: freed; `source`: memory that is read; `detail`: kind of memory of an allocation, direction of a
#: copy, value of a set, target of a wait, 1 for a launch by a graph; `duration`: ns that a wait
#: took, or device time of a launch, copy or set (-1: unknown); `waves`: waves of blocks of a launch
#: (NaN: unknown); `key`: launch ordinal, or correlation; `contiguous`: whether a copy or set writes
#: one row of bytes. Fields that a kind of call does not have are 0.
CALL = [
    ("kind", "u1"),
    ("device", "i2"),
    ("time", "i8"),
    ("thread", "u4"),
    ("stream", "u8"),
    ("name", "u4"),
    ("node", "i4"),
    ("ranges", "i4"),
    ("address", "u8"),
    ("source", "u8"),
    ("bytes", "u8"),
    ("detail", "u4"),
    ("duration", "i8"),
    ("waves", "f4"),
    ("key", "u8"),
    ("contiguous", "?"),
]
#: A CALL whose waves are computed later, from a launch's blocks and its shape (of LaunchWaves).
_COLLECTED = [*CALL, ("blocks", "i8"), ("shape", "i4")]
#: Fields of a CALL that are named differently in records of a kind.
_FIELDS: dict[str, dict[str, str]] = {
    "kernel_launch": {"name": "name", "key": "ordinal"},
    "memory_copy": {
        "address": "destination", "source": "source", "bytes": "bytes", "detail": "direction",
        "key": "correlation",
    },
    "memory_set": {
        "address": "address", "bytes": "bytes", "detail": "value", "key": "correlation",
    },
    "memory_alloc": {"address": "address", "bytes": "bytes", "detail": "memory"},
    "memory_free": {"address": "address", "detail": "memory"},
    "sync": {"detail": "what", "duration": "duration"},
    "event_wait": {},
    "graph_launch": {},
}  # fmt: skip
_DONE = [("key", "u8"), ("duration", "i8")]


@dataclass(frozen=True)
class Site:
    """A place in the program that makes calls; unknown fields are empty."""

    operator: str = ""
    line: Frame | None = None
    ranges: str = ""  # open ranges, outermost first, with slashes
    kernel: str = ""

    def __str__(self) -> str:
        """For `where` of findings: `conv2d in step, relu at train.py:12 forward`."""
        text = " in ".join(filter(None, (self.kernel, self.ranges)))
        at = " at ".join(filter(None, (self.operator, str(self.line or ""))))
        return ", ".join(filter(None, (text, at))) or "outside ranges and operators"


@dataclass(frozen=True)
class Violation:
    """A rule that a program breaks at a site, `count` times.

    `evidence`, `remedy`, `gain` and `of` are those of a `Finding`. The line of the site, if known,
    precedes the remedy.
    """

    site: Site
    count: int
    evidence: str
    remedy: str
    gain: float | None = None
    of: str = "the time from first to last call"
    confidence: Confidence = "medium"


Check = Callable[[Any, "Calls"], Iterable[Violation]]


@dataclass(frozen=True)
class Rule(Member):
    """A rule of a class: what is wrong, and a method that yields violations."""

    what: str
    check: Check


def rule(what: str) -> Callable[[Check], Rule]:
    """Declares a method, `(self, calls)`, as a rule; `what` states the problem."""
    return lambda check: Rule(what, check)


class Calls:
    """All calls of the program in order: `rows`, a structured array (dtype CALL)."""

    def __init__(self, rows: NDArray[Any], context: Context) -> None:
        self.rows = rows
        self.context = context

    def of(self, *kinds: str) -> NDArray[Any]:
        """Mask (bool) of the calls of these event kinds, such as "kernel_launch" or "sync"."""
        from pasta import abi

        return np.isin(self.rows["kind"], [abi.KINDS[kind] for kind in kinds])

    @cached_property
    def span(self) -> int:
        """Time from the first to the last call, ns; at least 1."""
        times = self.rows["time"]
        return max(1, int(times.max() - times.min())) if len(times) else 1

    @cached_property
    def previous(self) -> NDArray[Any]:
        """Index (int64) of the previous call in the thread of each call; -1 for the first."""
        order = np.argsort(self.rows["thread"], kind="stable")
        same = self.rows["thread"][order][1:] == self.rows["thread"][order][:-1]
        found = np.full(len(order), -1, np.int64)
        found[order[1:][same]] = order[:-1][same]
        return found

    def before(self, chosen: NDArray[Any]) -> NDArray[Any]:
        """Number (int64) of chosen calls (bool) before each call."""
        return np.asarray(np.cumsum(chosen) - chosen)

    def sites(
        self, chosen: NDArray[Any], at: NDArray[Any] | None = None
    ) -> Iterator[tuple[Site, NDArray[Any]]]:
        """Sites of the chosen calls (bool or indices), most calls first, and the indices of their
        calls. `at`: indices of as many calls whose sites are used instead."""
        indices = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        rows = self.rows[indices if at is None else at]
        keys = np.stack([rows[name] for name in ("node", "ranges", "name")], axis=1)
        distinct, of = np.unique(keys.astype(np.int64), axis=0, return_inverse=True)
        order = np.argsort(of.reshape(-1), kind="stable")
        ends = np.cumsum(np.bincount(of.reshape(-1), minlength=len(distinct)))
        found: dict[Site, list[NDArray[Any]]] = {}
        parts = np.split(indices[order], ends[:-1]) if len(distinct) else []
        for key, part in zip(distinct.tolist(), parts, strict=True):
            found.setdefault(self._site(*key), []).append(part)
        joined = {site: np.sort(np.concatenate(parts)) for site, parts in found.items()}
        yield from sorted(joined.items(), key=lambda each: -len(each[1]))

    @cached_property
    def _lines(self) -> list[Frame | None]:
        return user_lines(self.context)

    def _site(self, node: int, ranges: int, name: int) -> Site:
        strings = self.context.strings
        operator, line = "", None
        if node:
            operator = strings[int(self.context.operators.nodes["name"][node])]
            line = self._lines[node]
        kernel = kernel_names(self.context, np.asarray([name], np.uint32))[0] if name else ""
        return Site(operator, line, self.context.ranges.path(ranges, strings), kernel)


class Rules(Tool):
    """Base class of tools that check the calls of a program with rules; it collects the calls."""

    title: ClassVar[str] = "Checks of calls"
    needs = ("operators", "ranges")

    calls = option(20_000_000, help="maximum number of calls to check", minimum=1)
    top = option(20, help="rows of the table in the text report", minimum=1)

    def start(self) -> None:
        """Initialize the calls."""
        self.parts: list[NDArray[Any]] = []
        self.kept = self.left_out = 0
        self.launch_times: list[NDArray[Any]] = []
        self.copy_times: list[NDArray[Any]] = []
        self.waves = LaunchWaves()

    def on_batch(self, batch: Batch) -> None:
        """Collect the calls of a batch and the device times in it."""
        self.waves.add_devices(batch["device"])
        parts = [self._calls(batch[kind], kind) for kind in _FIELDS if len(batch[kind])]
        if parts:
            rows = np.concatenate([rows for rows, _ in parts])
            rows = rows[np.argsort(np.concatenate([indices for _, indices in parts]))]
            taken = max(0, self.calls - self.kept)
            self.left_out += max(0, len(rows) - taken)
            self.parts.append(rows[:taken])
            self.kept += len(self.parts[-1])
        for kind, key, times in (
            ("kernel_complete", "ordinal", self.launch_times),
            ("copy_complete", "correlation", self.copy_times),
        ):
            done = batch[kind]
            done = done[(done["end"] >= done["start"]) & (done["end"] != ABSENT_U64)]
            if len(done):
                found = np.empty(len(done), _DONE)
                found["key"], found["duration"] = done[key], done["end"] - done["start"]
                times.append(found)

    def _calls(self, records: NDArray[Any], kind: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Rows of records that are calls of the program, and their indices in the batch."""
        from pasta import abi

        records = records[(records["flags"] & abi.FLAG_INTERNAL) == 0]
        rows = np.zeros(len(records), _COLLECTED)
        rows["kind"], rows["duration"], rows["shape"] = abi.KINDS[kind], -1, -1
        rows["time"] = records["time"].astype(np.int64)
        for name in ("thread", "device", "stream"):
            rows[name] = records[name]
        for name, field in _FIELDS[kind].items():
            rows[name] = records[field].astype(rows.dtype[name])
        rows["node"] = self.context.operators.at(records)
        rows["ranges"] = self.context.ranges.at(records)
        if kind in ("memory_copy", "memory_set"):
            from pasta.processors.object_uses import is_contiguous

            rows["contiguous"] = is_contiguous(records)
        if kind == "kernel_launch":
            rows["detail"] = (records["flags"] & abi.FLAG_GRAPH) != 0
            rows["shape"] = self.waves.shapes(records)
            rows["blocks"] = records["grid"].prod(axis=1, dtype=np.int64)
        return rows, records["index"]

    def result(self) -> Result:
        """A table of all violations, and a finding for each."""
        rows = np.concatenate([np.zeros(0, _COLLECTED), *self.parts])
        self.parts = [rows]
        rows["waves"] = self.waves.of(rows["shape"], rows["blocks"], self.context)
        self._add_times(rows, "kernel_launch", self.launch_times)
        for kind in ("memory_copy", "memory_set"):
            self._add_times(rows, kind, self.copy_times)
        calls = Calls(rows, self.context)
        found: list[tuple[str, str, Violation]] = []
        notes = []
        names = [name for name, each in self._members.items() if isinstance(each, Rule)]
        for name in names:
            each = self._members[name]
            assert isinstance(each, Rule)
            try:
                found += [(name, each.what, one) for one in each.check(self, calls)]
            except Exception as error:  # the other rules still count
                notes.append(f"rule {name} failed: {type(error).__name__}: {error}")
        if self.left_out:
            notes.append(f"{counted(self.left_out, 'later call')} not checked (option calls)")
        found.sort(key=lambda each: -(each[2].gain or 0.0))
        text = f"{counted(len(rows), 'call')} checked by {counted(len(names), 'rule')}"
        broken = len({name for name, *_ in found})
        text += f", {broken:,} of them broken at {counted(len(found), 'site')}" if found else ""
        return Result(
            summary=text,
            tables={"violations": self._table(found)},
            findings=[_finding(what, one) for _, what, one in found],
            notes=notes,
        )

    @staticmethod
    def _add_times(rows: NDArray[Any], kind: str, times: list[NDArray[Any]]) -> None:
        """Sets the device times of calls of a kind; the parts of a copy add up."""
        from pasta import abi
        from pasta.processors.rows import combined

        mine = (rows["kind"] == abi.KINDS[kind]) & (rows["key"] != ABSENT_U64)
        if kind != "kernel_launch":
            mine &= rows["key"] != 0  # without a correlation
        mine = np.flatnonzero(mine)
        done = combined(np.concatenate([np.zeros(0, _DONE), *times]), ["key"])
        at = np.minimum(np.searchsorted(done["key"], rows["key"][mine]), len(done) - 1)
        if len(done) and len(mine):
            known = done["key"][at] == rows["key"][mine]
            rows["duration"][mine[known]] = done["duration"][at[known]]

    def _table(self, found: list[tuple[str, str, Violation]]) -> Table:
        sites = [one.site for *_, one in found]
        columns: dict[str, Any] = {
            "rule": [name for name, *_ in found],
            "count": [one.count for *_, one in found],
            "kernel": [site.kernel or None for site in sites],
            "ranges": [site.ranges or None for site in sites],
            "operator": [site.operator or None for site in sites],
            "line": [str(site.line) if site.line else None for site in sites],
            "evidence": [one.evidence for *_, one in found],
            "remedy": [one.remedy for *_, one in found],
            "gain": [one.gain for *_, one in found],
            "of": [one.of for *_, one in found],
        }
        empty = {
            name for name in ("kernel", "ranges", "operator", "line") if not any(columns[name])
        }
        return Table(
            columns,
            units={"count": "count", "gain": "share"},
            labels={"gain": "may save"},
            keys=("rule", "kernel", "ranges", "operator", "line"),
            sums=("count",),
            levels=("gain",),
            title="Violations of rules, by site",
            shown=self.top,
            hidden=frozenset({"evidence", "remedy", "of"} | empty),
        )


def _finding(what: str, one: Violation) -> Finding:
    line = one.site.line
    return Finding(
        what=what,
        where=str(one.site),
        evidence=one.evidence,
        remedy=f"{line}: {one.remedy}" if line else one.remedy,
        gain=one.gain,
        of=one.of,
        confidence=one.confidence,
    )
