"""Coverage: the share of a kernel's memory instructions that its probes could see.

It compares the instructions of the disassembled code, those that probes saw executed, and the
access kinds that the backend reports.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from pasta.sass import disassembly as sass
from pasta.sass.disassembly import Function
from pasta.table import Table, counted

#: seen: the probes saw all accesses of their kinds. unknown: none were executed, and the code could
#: not be read.
Verdict = Literal["seen", "partly", "unseen", "unknown"]

#: Kinds whose probes see generic instructions, each in its space.
_GENERIC_SEEN_BY: Final = frozenset({"global", "shared", "local", "remote_shared"})
_NO_PROBE: Final = {
    sass.TEXTURE: "{name} has no callback for texture and surface instructions",
    sass.TENSOR_CORE: "no probe sees shared memory that the tensor core reads directly",
    sass.SHARED_FILL: "no probe sees bulk stores of zeros to shared memory",
    sass.UNKNOWN: "not known to PASTA ({opcodes})",
}


@dataclass(frozen=True)
class Visibility:
    """The access kinds that a source reports; `name` is its name in messages.

    `complete`: it reports every access of these kinds, and kernels have no others. `has_code`: the
    code of kernels can be read. `is_known` is False for a source that PASTA does not know.
    """

    name: str
    kinds: frozenset[str] = frozenset()
    complete: bool = False
    has_code: bool = False
    is_known: bool = True


@dataclass(frozen=True)
class Code:
    """Functions of a module by mangled name; None with the reason if the code was not read."""

    functions: Mapping[str, Function] | None
    reason: str = ""


@dataclass(frozen=True)
class KindCoverage:
    """One kind of instruction in a kernel.

    `instructions`: their number in the code, None if unknown. `executed`: the number that probes
    saw, None if not counted; `fired`: whether they saw any, None if unknown. `wanted`: a probe
    requests the kind, or the space that it accesses. `visible`: the backend reports it. `patched`:
    a probe for it was installed in this kernel; both are None if the backend is unknown. `reason`:
    why a wanted kind was not seen.
    """

    kind: str
    instructions: int | None
    executed: int | None
    fired: bool | None
    wanted: bool
    visible: bool | None
    patched: bool | None
    reason: str = ""

    @property
    def missed(self) -> bool:
        """Whether the kind is wanted, not patched, and may be in the code."""
        return self.wanted and self.patched is False and self.instructions != 0

    @property
    def state(self) -> str:
        """Coverage of the kind in words, with counts of instructions, not of accesses."""
        if self.instructions == 0 and not self.fired:
            return "none in the code"
        if self.patched:
            return self._patched_state()
        if not self.wanted:
            return "not selected"
        if self.patched is None:
            return "executed" if self.fired else "not known"
        return f"not seen: {self.reason}"

    def _patched_state(self) -> str:
        of = "" if self.instructions is None else f" of {self.instructions}"
        if self.executed is None:
            if self.fired:
                return f"executed ({self.instructions} in the code)" if of else "executed"
            known = "unknown whether the code has any"
            return f"{self.instructions} in the code, patched" if of else f"patched; {known}"
        if self.executed:
            return f"{self.executed}{of} executed"
        if of:
            return f"0{of} executed (in the code, patched)"
        return "0 executed (patched; unknown whether the code has any)"


@dataclass(frozen=True)
class Coverage:
    """Coverage of a kernel by kind.

    `reasons`: missing kinds; `notes`: other effects on counts. `known`: the code was read;
    `unread`: why it was not, if it may contain unseen accesses.
    """

    kernel: str
    kinds: tuple[KindCoverage, ...]
    verdict: Verdict
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    known: bool = True
    unread: str = ""


@dataclass
class _Counted:
    """Instructions of a kernel and its callees, by kind."""

    of_kind: dict[str, int] = field(default_factory=dict)
    opcodes: dict[str, set[str]] = field(default_factory=dict)
    offsets: dict[str, set[int]] = field(default_factory=dict)  # in the kernel itself
    bytes: int = 0
    missing: set[str] = field(default_factory=set)
    indirect: bool = False


def cover(
    kernel: str,
    code: Code,
    fired: Mapping[str, Collection[int] | None] | None,
    *,
    wanted: Collection[str],
    patched: Collection[str],
    visibility: Visibility,
) -> Coverage:
    """Compute the coverage of a kernel (mangled name).

    `fired`: for each kind the distinct program counters that its probes saw, in bytes from the
    start of the kernel, None if only known to have fired; None if unknown. `wanted`: kinds of
    probes; `patched`: kinds installed in this kernel. Raises ValueError for a kind that
    is not in pasta_trace.h.
    """
    for kind in (*(fired or ()), *wanted, *patched):
        if kind not in sass.SPACES:
            raise ValueError(f"{kind!r} is not an access kind")
    if not visibility.is_known:
        return _not_known(kernel, fired or {}, wanted, visibility)
    code_counts = _count(kernel, code)
    executed = {kind: set(at) for kind, at in (fired or {}).items() if at is not None}
    uncounted = {kind for kind, at in (fired or {}).items() if at is None}
    generic: set[int] = set()
    if code_counts is not None:
        at = code_counts.offsets.get(sass.GENERIC, set())
        for kind in _GENERIC_SEEN_BY & executed.keys():
            generic |= executed[kind] & at
            executed[kind] -= at
        executed[sass.GENERIC] = generic

    rows = []
    for kind in (*sass.SPACES, sass.GENERIC, *_NO_PROBE):
        instructions = None if code_counts is None else code_counts.of_kind.get(kind, 0)
        if kind == "block_enter":
            instructions = 1
        asked = _asks_for(kind, wanted)
        ran: int | None = len(executed.get(kind, ()))
        did: bool | None = bool(ran)
        if kind in uncounted or fired is None or (kind == sass.GENERIC and uncounted):
            ran, did = None, True if kind in uncounted else None
        if kind in sass.SPACES:
            if not (asked or instructions or did):
                continue
            visible, installed = kind in visibility.kinds, kind in patched
        else:
            # no probe can name these: a row only if the code is known to have them
            if not instructions:
                continue
            visible = kind == sass.GENERIC and bool(_GENERIC_SEEN_BY & visibility.kinds)
            installed = (
                kind == sass.GENERIC and asked and _GENERIC_SEEN_BY & set(wanted) <= set(patched)
            )
        reason = ""
        if asked and not installed and instructions != 0:
            reason = _why(kind, visible, visibility, code_counts)
        rows.append(KindCoverage(kind, instructions, ran, did, asked, visible, installed, reason))
    unread = ""
    if code_counts is None and not visibility.complete:
        unread = code.reason or "the module's code does not have this kernel"
    return Coverage(
        kernel,
        tuple(rows),
        _verdict(rows, code_counts is not None or visibility.complete),
        tuple(_sentence(row) for row in rows if row.missed),
        () if visibility.complete else tuple(_notes(rows, code_counts, executed, unread, wanted)),
        code_counts is not None,
        unread,
    )


def _not_known(
    kernel: str, fired: Collection[str], wanted: Collection[str], visibility: Visibility
) -> Coverage:
    """Coverage of a kernel of an unknown source."""
    kinds = [kind for kind in sass.SPACES if kind in wanted or kind in fired]
    rows = [
        KindCoverage(kind, None, None, kind in fired or None, kind in wanted, None, None)
        for kind in kinds
    ]
    reason = f"{visibility.name} does not report code"
    note = f"coverage unknown: {reason}"
    return Coverage(kernel, tuple(rows), "unknown", (), (note,), known=False, unread=reason)


def _count(kernel: str, code: Code) -> _Counted | None:
    if code.functions is None or kernel not in code.functions:
        return None
    code_counts = _Counted(bytes=code.functions[kernel].bytes)
    open_, done = [kernel], {kernel}
    while open_:
        name = open_.pop()
        function = code.functions.get(name)
        if function is None:
            code_counts.missing.add(name)
            continue
        code_counts.indirect |= function.indirect
        for instruction in function.instructions:
            kind = instruction.kind
            code_counts.of_kind[kind] = code_counts.of_kind.get(kind, 0) + 1
            code_counts.opcodes.setdefault(kind, set()).add(instruction.opcode.text)
            if name == kernel:
                code_counts.offsets.setdefault(kind, set()).add(instruction.offset)
        open_ += function.calls - done
        done |= function.calls
    return code_counts


def _asks_for(kind: str, wanted: Collection[str]) -> bool:
    """Whether probes request a kind, or the space that it accesses."""
    if kind in sass.SPACES:
        return kind in wanted
    if kind == sass.GENERIC:
        return not _GENERIC_SEEN_BY.isdisjoint(wanted)
    spaces = {sass.SPACES[one] for one in wanted}
    if kind == sass.UNKNOWN:
        return spaces != {None} and bool(spaces)
    return sass.Opcode("", kind).space in spaces


def _why(kind: str, visible: bool, visibility: Visibility, code_counts: _Counted | None) -> str:
    if kind in _NO_PROBE:
        opcodes = sorted(code_counts.opcodes.get(kind, ())) if code_counts else []
        listed = ", ".join(opcodes[:4]) + (", …" if len(opcodes) > 4 else "")
        return _NO_PROBE[kind].format(name=visibility.name, opcodes=listed)
    if not visible:
        return f"{visibility.name} has no callback for them"
    return "not patched in this kernel"


def _sentence(row: KindCoverage) -> str:
    if row.instructions is None:
        return f"{row.kind} instructions, if the code has any, were not seen: {row.reason}"
    if row.instructions == 1:
        reason = row.reason.replace("for them", "for it")
        return f"1 {row.kind} instruction was not seen: {reason}"
    return f"{row.instructions} {row.kind} instructions were not seen: {row.reason}"


def _verdict(rows: Sequence[KindCoverage], known: bool) -> Verdict:
    missed = any(row.missed for row in rows)
    if known:
        covered = any(row.wanted and row.patched and row.instructions != 0 for row in rows)
    else:
        covered = any(row.wanted and row.patched and row.fired for row in rows)
        if not covered and any(row.wanted and row.patched for row in rows):
            return "unknown"
    if missed:
        return "partly" if covered else "unseen"
    return "seen"


def _notes(
    rows: Sequence[KindCoverage],
    code_counts: _Counted | None,
    executed: Mapping[str, set[int]],
    unread: str,
    wanted: Collection[str],
) -> list[str]:
    if code_counts is None:
        return [f"from the probes that fired; the rest of the code is unknown: {unread}"]
    notes = []
    for row in rows:
        if row.kind == sass.GENERIC and row.wanted:
            notes.append(
                f"{counted(row.instructions or 0, 'instruction')} may access any address "
                "space (generic addresses): each access is counted by its address"
            )
    if code_counts.missing or code_counts.indirect:
        others = ", ".join(sorted(code_counts.missing)) or "functions chosen at run time"
        notes.append(f"calls code that is not counted here: {others}")
    misplaced = sum(
        1
        for kind, offsets in executed.items()
        if kind in wanted and kind != "block_enter"
        for offset in offsets - code_counts.offsets.get(kind, set())
        if 0 <= offset < code_counts.bytes
    )
    if misplaced:
        notes.append(
            f"{counted(misplaced, 'instruction')} fired where the code has no instruction of "
            "that kind: instruction counts may come from other code"
        )
    return notes


# ---- reports -------------------------------------------------------------------------------

_MAX_SHOWN = 20


def summary(coverages: Sequence[Coverage], names: Mapping[str, str] | None = None) -> str:
    """Coverage for a tool's summary: kinds that were not seen, or that all can be seen; empty if
    the backend reports everything."""
    parts = []
    missed = [each for each in coverages if each.known and each.reasons]
    if missed:
        name = (names or {}).get(missed[0].kernel, missed[0].kernel)
        kernels = f"{len(missed):,} of {counted(len(coverages), 'kernel')}"
        parts.append(f"{kernels} seen only in part ({name}: {missed[0].reasons[0]})")
    unread = [each for each in coverages if each.unread]
    if unread:
        kernels = counted(len(unread), "kernel")
        text = f"coverage unknown for {kernels}: {unread[0].unread}"
        blind = dict.fromkeys(row.kind for each in unread for row in each.kinds if row.missed)
        parts.append(text + (f" ({', '.join(blind)} would not be seen)" if blind else ""))
    known = [each for each in coverages if each.known]
    if known and not parts:
        count = sum(row.instructions or 0 for each in known for row in each.kinds if row.wanted)
        kernels = counted(len(known), "kernel")
        parts.append(f"all {counted(count, 'such instruction')} of {kernels} can be seen")
    return "; ".join(parts)


def table(coverages: Iterable[Coverage], names: Mapping[str, str] | None = None) -> Table:
    """Table with a row for each kernel and kind; `names`: displayed names by mangled name.

    Kinds that the code has and probes missed come first, and the text report shows only these;
    kernels with unknown code come last. Unknown numbers are absent.
    """
    order = {"unseen": 0, "partly": 1, "unknown": 2, "seen": 3}
    rows = [(coverage, row) for coverage in coverages for row in coverage.kinds]
    missed = [coverage.known and row.missed for coverage, row in rows]
    ranks = [
        (not miss, not coverage.known, order[coverage.verdict])
        for (coverage, _), miss in zip(rows, missed, strict=True)
    ]
    rows = [rows[at] for at in sorted(range(len(rows)), key=ranks.__getitem__)]
    names = names or {}
    return Table(
        {
            "kernel": [names.get(coverage.kernel, coverage.kernel) for coverage, _ in rows],
            "coverage": [coverage.verdict for coverage, _ in rows],
            "kind": [row.kind for _, row in rows],
            "instructions": [row.instructions for _, row in rows],
            "executed": [row.executed for _, row in rows],
            "visible": [row.visible for _, row in rows],
            "patched": [row.patched for _, row in rows],
            "state": [row.state for _, row in rows],
        },
        units={"instructions": "count", "executed": "count"},
        labels={"instructions": "instructions in the code"},
        title="What probes could see",
        keys=("kernel", "kind"),
        sums=("instructions", "executed"),
        shown=min(_MAX_SHOWN, sum(missed)),
        hidden=frozenset({"visible", "patched"}),
    )
