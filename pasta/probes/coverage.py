"""How much of a kernel's memory traffic its probes could see: never a silent zero.

What the code contains comes from its disassembly (sass.py), what ran from the probes, and what can
be seen at all from the backend: the library that patches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from pasta.capabilities import SOURCES
from pasta.errors import PastaError
from pasta.probes import sass
from pasta.probes.sass import Function
from pasta.probes.signatures import ApiError, signatures
from pasta.table import Table

#: seen: nothing that the probes ask for escaped them. unknown: nothing ran, and the code could
#: not be read.
Verdict = Literal["seen", "partly", "unseen", "unknown"]

#: Kinds whose probes see what a generic instruction does, each in its space.
_GENERIC_SEEN_BY: Final = frozenset({"global", "shared", "local", "remote_shared"})
_NO_PROBE: Final = {
    sass.TEXTURE: "{backend} has no callback for texture and surface instructions",
    sass.TENSOR_CORE: "no probe sees shared memory that the tensor core reads by itself",
    sass.SHARED_FILL: "no probe sees bulk stores of zeros to shared memory",
    sass.UNKNOWN: "not known to PASTA ({opcodes})",
}


@dataclass(frozen=True)
class Backend:
    """What patches kernels: its name for messages, and the access kinds it has callbacks for.

    `complete`: it reports every access of its kinds, and kernels have no other. `has_code`: PASTA
    can read the code that it patches. `is_known`: else nobody knows what it reports.
    """

    name: str
    kinds: frozenset[str]
    complete: bool = False
    has_code: bool = False
    is_known: bool = True


def sanitizer(version: str) -> Backend:
    """NVIDIA's Sanitizer library, with the kinds that probes have callbacks for in this version."""
    try:
        kinds = frozenset(kind for kind in sass.SPACES if signatures(kind, version))
    except ApiError:  # not known, so that no probe ran
        kinds = frozenset()
    return Backend(f"the Sanitizer library {version}", kinds, has_code=True)


@dataclass(frozen=True)
class Code:
    """Functions of a module by mangled name, or None and the reason why they are not known."""

    functions: Mapping[str, Function] | None
    reason: str = ""


#: Kernels are C functions of the host there: nothing to disassemble, and nothing hidden.
REFERENCE: Final = Backend("the reference accelerator", frozenset(sass.SPACES), complete=True)


#: Backends of sources that PASTA knows, by the version of the source.
_BACKENDS: Final[Mapping[str, Callable[[str], Backend]]] = {
    "nvidia_sanitizer": sanitizer,
    "refacc": lambda version: REFERENCE,
    "amd_rocprofiler": lambda version: Backend("rocprofiler-sdk", frozenset()),
}


def backend_of(sources: Mapping[str, str]) -> Backend:
    """What patched the kernels of a run; `sources`: versions by name.

    Of several accelerators it is the one whose code is read, else the one that says least.
    """
    found = [
        _BACKENDS[name](version) if name in _BACKENDS else _unknown(f"source {name}")
        for name, version in sorted(sources.items())
        if name not in SOURCES or SOURCES[name].is_accelerator
    ]
    found = found or [_unknown("a source without a name")]
    return min(found, key=lambda each: (not each.has_code, each.is_known, len(each.kinds)))


def _unknown(source: str) -> Backend:
    return Backend(source, frozenset(), is_known=False)


def read_code(
    cubin: bytes | Path,
    kernels: Collection[str] | None = None,
    *,
    cache: Path | None = None,
    timeout: float = 600,
) -> Code:
    """The code of a module, or of `kernels` in it and what they call; never raises for its state.

    `cache` and `timeout` as for sass.disassemble.
    """
    functions: dict[str, Function] = {}
    wanted = None if kernels is None else set(kernels)
    try:
        while wanted is None or wanted:
            found = sass.disassemble(cubin, wanted, cache=cache, timeout=timeout)
            functions |= {function.name: function for function in found}
            if wanted is None:
                break
            wanted = {name for function in found for name in function.calls} - functions.keys()
    except (PastaError, OSError) as error:
        return Code(None, str(error))
    return Code(functions)


@dataclass(frozen=True)
class KindCoverage:
    """One kind of instruction in a kernel.

    `instructions`: how many the code has, None where unknown. `executed`: how many of them probes
    saw, None where that was not counted; `fired`: whether they saw any, likewise. `wanted`: a
    probe asks for the kind, or for the space that it accesses. `visible`: the backend can see it.
    `patched`: a probe for it was installed in this kernel; both are None where the backend is not
    known. `reason`: why what is wanted was not seen.
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
        """Wanted, not patched, and not known to be absent."""
        return self.wanted and self.patched is False and self.instructions != 0

    @property
    def state(self) -> str:
        """What became of the kind, in words; counts are of instructions, not of accesses."""
        if self.instructions == 0 and not self.fired:
            return "none in the code"
        if self.patched:
            return self._patched_state()
        if not self.wanted:
            return "not asked for"
        if self.patched is None:
            return "executed" if self.fired else "not known"
        return f"not seen: {self.reason}"

    def _patched_state(self) -> str:
        of = "" if self.instructions is None else f" of {self.instructions}"
        if self.executed is None:
            if self.fired:
                return f"executed ({self.instructions} in the code)" if of else "executed"
            known = "whether the code has any is not known"
            return f"{self.instructions} in the code, patched" if of else f"patched; {known}"
        if self.executed:
            return f"{self.executed}{of} executed"
        if of:
            return f"0{of} executed (in the code, patched)"
        return "0 executed (patched; whether the code has any is not known)"


@dataclass(frozen=True)
class Coverage:
    """What the probes of a kernel could see, kind by kind.

    `reasons` say what is missing, `notes` what to bear in mind where nothing may be. `known`: the
    code was read; `unread`: why not, where it could hide something.
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
    """Instructions of a kernel and of what it calls, by kind."""

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
    backend: Backend,
) -> Coverage:
    """Coverage of a kernel, by its mangled name.

    `fired`: for each kind, the distinct program counters its probes saw, in bytes from the start
    of the kernel, or None where it fired and they were not kept; None where nothing was. `wanted`:
    the kinds that probes ask for; `patched`: those installed in this kernel. Raises ValueError for
    a kind that pasta_trace.h does not have.
    """
    for kind in (*(fired or ()), *wanted, *patched):
        if kind not in sass.SPACES:
            raise ValueError(f"{kind!r} is no access kind")
    if not backend.is_known:
        return _not_known(kernel, fired or {}, wanted, backend)
    counted = _count(kernel, code)
    executed = {kind: set(at) for kind, at in (fired or {}).items() if at is not None}
    uncounted = {kind for kind, at in (fired or {}).items() if at is None}
    generic: set[int] = set()
    if counted is not None:
        at = counted.offsets.get(sass.GENERIC, set())
        for kind in _GENERIC_SEEN_BY & executed.keys():
            generic |= executed[kind] & at
            executed[kind] -= at
        executed[sass.GENERIC] = generic

    rows = []
    for kind in (*sass.SPACES, sass.GENERIC, *_NO_PROBE):
        instructions = None if counted is None else counted.of_kind.get(kind, 0)
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
            visible, installed = kind in backend.kinds, kind in patched
        else:
            # no probe can name these: a row only where the code is known to have them
            if not instructions:
                continue
            visible = kind == sass.GENERIC and bool(_GENERIC_SEEN_BY & backend.kinds)
            installed = (
                kind == sass.GENERIC and asked and _GENERIC_SEEN_BY & set(wanted) <= set(patched)
            )
        reason = ""
        if asked and not installed and instructions != 0:
            reason = _why(kind, visible, backend, counted)
        rows.append(KindCoverage(kind, instructions, ran, did, asked, visible, installed, reason))
    unread = ""
    if counted is None and not backend.complete:
        unread = code.reason or "the module's code does not have this kernel"
    return Coverage(
        kernel,
        tuple(rows),
        _verdict(rows, counted is not None or backend.complete),
        tuple(_sentence(row) for row in rows if row.missed),
        () if backend.complete else tuple(_notes(rows, counted, executed, unread, wanted)),
        counted is not None,
        unread,
    )


def _not_known(
    kernel: str, fired: Collection[str], wanted: Collection[str], backend: Backend
) -> Coverage:
    """Coverage of a kernel of which only what fired is known."""
    kinds = [kind for kind in sass.SPACES if kind in wanted or kind in fired]
    rows = [
        KindCoverage(kind, None, None, kind in fired or None, kind in wanted, None, None)
        for kind in kinds
    ]
    reason = f"{backend.name} does not report code"
    note = f"coverage unknown: {reason}"
    return Coverage(kernel, tuple(rows), "unknown", (), (note,), known=False, unread=reason)


def _count(kernel: str, code: Code) -> _Counted | None:
    if code.functions is None or kernel not in code.functions:
        return None
    counted = _Counted(bytes=code.functions[kernel].bytes)
    open_, done = [kernel], {kernel}
    while open_:
        name = open_.pop()
        function = code.functions.get(name)
        if function is None:
            counted.missing.add(name)
            continue
        counted.indirect |= function.indirect
        for instruction in function.instructions:
            kind = instruction.kind
            counted.of_kind[kind] = counted.of_kind.get(kind, 0) + 1
            counted.opcodes.setdefault(kind, set()).add(instruction.opcode.text)
            if name == kernel:
                counted.offsets.setdefault(kind, set()).add(instruction.offset)
        open_ += function.calls - done
        done |= function.calls
    return counted


def _asks_for(kind: str, wanted: Collection[str]) -> bool:
    """Whether a kind, or the space it accesses, is asked for."""
    if kind in sass.SPACES:
        return kind in wanted
    if kind == sass.GENERIC:
        return not _GENERIC_SEEN_BY.isdisjoint(wanted)
    spaces = {sass.SPACES[one] for one in wanted}
    if kind == sass.UNKNOWN:
        return spaces != {None} and bool(spaces)
    return sass.Opcode("", kind).space in spaces


def _why(kind: str, visible: bool, backend: Backend, counted: _Counted | None) -> str:
    if kind in _NO_PROBE:
        opcodes = sorted(counted.opcodes.get(kind, ())) if counted else []
        listed = ", ".join(opcodes[:4]) + (", …" if len(opcodes) > 4 else "")
        return _NO_PROBE[kind].format(backend=backend.name, opcodes=listed)
    if not visible:
        return f"{backend.name} has no callback for them"
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
    counted: _Counted | None,
    executed: Mapping[str, set[int]],
    unread: str,
    wanted: Collection[str],
) -> list[str]:
    if counted is None:
        return [f"from what fired; what else the code contains is not known: {unread}"]
    notes = []
    for row in rows:
        if row.kind == sass.GENERIC and row.wanted:
            notes.append(
                f"{_plural(row.instructions or 0, 'instruction')} may access any space"
                " (generic addresses): an access counts where its address lies"
            )
    if counted.missing or counted.indirect:
        others = ", ".join(sorted(counted.missing)) or "functions chosen at run time"
        notes.append(f"calls code that is not counted here: {others}")
    strange = sum(
        1
        for kind, offsets in executed.items()
        if kind in wanted and kind != "block_enter"
        for offset in offsets - counted.offsets.get(kind, set())
        if 0 <= offset < counted.bytes
    )
    if strange:
        notes.append(
            f"{_plural(strange, 'instruction')} fired where the code has none of their kind:"
            " the counts of instructions may be those of other code"
        )
    return notes


# ---- reports -------------------------------------------------------------------------------

_SHOWN = 20


def summary(coverages: Sequence[Coverage], names: Mapping[str, str] | None = None) -> str:
    """One part of a tool's summary: what of the kernels' code probes could not see, or that they
    can see it all; "" where the backend hides nothing."""
    parts = []
    missed = [each for each in coverages if each.known and each.reasons]
    if missed:
        name = (names or {}).get(missed[0].kernel, missed[0].kernel)
        kernels = f"{len(missed):,} of {_plural(len(coverages), 'kernel')}"
        parts.append(f"{kernels} seen only in part ({name}: {missed[0].reasons[0]})")
    unread = [each for each in coverages if each.unread]
    if unread:
        kernels = _plural(len(unread), "kernel")
        text = f"what the code of {kernels} contains is not known ({unread[0].unread})"
        if all(row.patched is None for each in unread for row in each.kinds):
            text = f"coverage of {kernels} unknown: {unread[0].unread}"
        blind = dict.fromkeys(row.kind for each in unread for row in each.kinds if row.missed)
        parts.append(text + (f": {', '.join(blind)} would not be seen" if blind else ""))
    known = [each for each in coverages if each.known]
    if known and not parts:
        count = sum(row.instructions or 0 for each in known for row in each.kinds if row.wanted)
        kernels = _plural(len(known), "kernel")
        parts.append(f"all {_plural(count, 'such instruction')} of {kernels} can be seen")
    return "; ".join(parts)


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def table(coverages: Iterable[Coverage], names: Mapping[str, str] | None = None) -> Table:
    """A row for each kernel and kind; `names` gives the names to show for mangled ones.

    Kinds that a kernel's code has and probes missed come first, and the text report shows only
    those; kernels whose code is not known come last. A number that is not known is absent.
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
        shown=min(_SHOWN, sum(missed)),
        hidden=frozenset({"visible", "patched"}),
    )
