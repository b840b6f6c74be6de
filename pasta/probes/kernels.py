"""Probed kernels of a run, and their code."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pasta import abi
from pasta.interruption import is_interrupted
from pasta.lazy import np
from pasta.probes import coverage
from pasta.probes.coverage import Code, Coverage
from pasta.probes.declare import probes_of
from pasta.probes.kinds import KINDS
from pasta.probes.maps import accumulators_of
from pasta.processors.batch import ABSENT_U64
from pasta.processors.module_hashes import ModuleHashes
from pasta.progress import report_progress
from pasta.sass import disassembly as sass
from pasta.table import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.members import Owner
    from pasta.probes.coverage import Visibility
    from pasta.processors.batch import Batch
    from pasta.processors.strings import Strings

#: File of a module's image by the hash of its content; None if it was not kept.
Images = Callable[[int], "Path | None"]
#: Image of a module and kernels in it, and `DeviceProbes.read_code`.
Module = tuple[Path, Collection[str]]
ReadCode = Callable[[Sequence[Module], float], list[Code]]
#: Modules that are read together: reading one takes nearly as long as reading all of them.
_TOGETHER = 64
#: Time limit of reading all code, s.
MAX_READING = 60.0
_INTERRUPTED = "reading it was interrupted by a signal"


class Unread(NamedTuple):
    """Kernels (name ids) of a module whose code is to be read, by the hash of its image."""

    hash: int
    names: list[int]
    module: Module


class ProbedKernels:
    """Kernels by name id and hash of their module, from the records of their launches.

    `read_code` reads their code after all launches, `unread` and `learn` before; `coverage`
    compares it with the kinds of a tool's probes and the accesses that they saw.
    """

    def __init__(self) -> None:
        self._modules = ModuleHashes()
        self._entries: dict[tuple[int, int], set[int]] = {}  # name, hash: entry points
        self._fired: dict[int, int] = {}  # name: bits of kinds that the CPU executor saw
        #: By name and hash: the functions that were read together with the kernel.
        self._code: dict[tuple[int, int], Code] = {}

    def feed(self, selected: Batch) -> None:
        """Follow a filtered batch."""
        self._modules.feed(selected)
        launches = selected["kernel_launch"]
        launches = launches[launches["flags"] & abi.FLAG_PROBED != 0]
        if not len(launches):
            return
        kernels = np.column_stack(
            [launches["name"], self._modules.of(launches, selected), launches["entry_pc"]]
        )
        for name, hash, entry in np.unique(kernels, axis=0).tolist():
            entries = self._entries.setdefault((name, hash), set())
            if entry != ABSENT_U64:
                entries.add(entry)

    def fire(self, names: NDArray[Any], kinds: NDArray[Any]) -> None:
        """Register access kinds (int64 bits) seen in kernels (name ids)."""
        for name, bits in zip(names.tolist(), kinds.tolist(), strict=True):
            self._fired[name] = self._fired.get(name, 0) | bits

    def unread(self, strings: Strings, images: Images) -> list[Unread]:
        """Kernels whose code was not read yet, by module, if the module's image was kept."""
        wanted: dict[int, list[int]] = {}
        for name, hash in self._entries:
            if (name, hash) not in self._code and hash != ABSENT_U64:
                wanted.setdefault(hash, []).append(name)
        return [
            Unread(hash, names, (path, strings.many(sorted(names))))
            for hash, names in wanted.items()
            if (path := images(hash)) is not None
        ]

    def learn(self, unread: Sequence[Unread], codes: Sequence[Code]) -> None:
        """Keep what was read: the code of each module."""
        for each, code in zip(unread, codes, strict=True):
            self._code.update(dict.fromkeys(((name, each.hash) for name in each.names), code))

    def read_code(self, strings: Strings, images: Images, read: ReadCode) -> None:
        """Read the code of all kernels that was not read yet, for at most 60 s in total; code that
        is still unread has the reason."""
        end = time.monotonic() + MAX_READING
        unread = self.unread(strings, images)
        kernels, done = sum(len(each.names) for each in unread), 0
        for first in range(0, len(unread), _TOGETHER):
            report_progress(
                f"reading code of {counted(kernels, 'kernel')}", f"{done:,} of {kernels:,}"
            )
            some = unread[first : first + _TOGETHER]
            self.learn(some, read_unread(some, end, read))
            done += sum(len(each.names) for each in some)
        for name, hash in self._entries.keys() - self._code.keys():
            loaded = "not kept, see probes.code-memory"
            why = "loaded before PASTA" if hash == ABSENT_U64 else loaded
            self._code[name, hash] = Code(None, f"module {why}")

    def coverage(self, tool: Owner, strings: Strings, visibility: Visibility) -> list[Coverage]:
        """Coverage of each kernel by the tool's probes."""
        asked = {kind for probe in probes_of(type(tool)) for kind in probe.kinds}
        counters = _program_counters(tool)
        patched = asked & visibility.kinds
        found = []
        for (name, hash), entries in sorted(self._entries.items()):
            kernel, code = strings[name], self._code.get((name, hash), _NOT_READ)
            seen: dict[str, Collection[int] | None] | None = None
            if not visibility.has_code:  # otherwise records depend on the probes
                bits = self._fired.get(name, 0)
                seen = {kind.name: None for kind in KINDS if bits >> kind.number & 1}
            elif counters is not None:
                seen = _fired_at(code, kernel, counters, entries)
            found.append(
                coverage.cover(
                    kernel, code, seen, wanted=asked, patched=patched, visibility=visibility
                )
            )
        return found

    def begins(self) -> dict[int, set[int]]:
        """Name ids of the kernels that begin at an address, by address."""
        found: dict[int, set[int]] = {}
        for (name, _), entries in self._entries.items():
            for entry in entries:
                found.setdefault(entry, set()).add(name)
        return found

    def lines(self, strings: Strings, pcs: NDArray[Any]) -> list[str | None]:
        """Source lines, `file:line`, of instructions at addresses (uint64); None if the code was
        not read or has no line table."""
        places = list(self._placed(strings))
        starts = np.asarray([start for start, _ in places], np.uint64)
        found: list[str | None] = []
        for pc, at in zip(
            pcs.tolist(), np.searchsorted(starts, pcs, "right").tolist(), strict=True
        ):
            start, lines = places[at - 1] if at else (0, {})
            found.append(lines.get(pc - start))
        return found

    def _placed(self, strings: Strings) -> Iterator[tuple[int, dict[int, str]]]:
        """Addresses of kernels in ascending order, each with its source lines by offset."""
        starts: dict[int, dict[int, str]] = {}
        for (name, hash), entries in self._entries.items():
            functions = self._code.get((name, hash), _NOT_READ).functions or {}
            function = functions.get(strings[name])
            lines = {
                each.offset: f"{each.file}:{each.line}"
                for each in (function.instructions if function else ())
                if each.file is not None
            }
            for entry in entries:
                starts[entry] = lines
        return iter(sorted(starts.items(), key=lambda item: item[0]))


_NOT_READ = Code(None, "it was not read")


def read_unread(unread: Sequence[Unread], end: float, read: ReadCode) -> list[Code]:
    """The code of each module, read until a time of `time.monotonic`; otherwise the reason."""
    left = end - time.monotonic()
    why = f"reading the code of other kernels took {MAX_READING:g} s"
    if is_interrupted():
        why = _INTERRUPTED
    elif left > 0:
        try:
            return read([each.module for each in unread], left)
        except Exception as error:  # a damaged module must not end a run
            why = f"reading it failed: {type(error).__name__}: {error}"
    return [Code(None, why) for _ in unread]


def _program_counters(tool: Owner) -> NDArray[Any] | None:
    """Instruction addresses in the tool's maps, ascending; None if no map is by instruction."""
    maps = [each for each in accumulators_of(tool).values() if "pc" in each.spec.keys]
    if not maps:
        return None
    return np.unique(np.concatenate([each.rows()["pc"] for each in maps]).astype(np.uint64))


def _fired_at(
    code: Code, name: str, pcs: NDArray[Any], entries: Collection[int]
) -> dict[str, Collection[int] | None] | None:
    """Offsets of instructions that fired, by their kind in the code."""
    function = (code.functions or {}).get(name)
    if function is None:
        return None
    offsets = set()
    for entry in entries:
        inside = pcs[(pcs >= entry) & (pcs < entry + function.bytes)]
        offsets.update((inside - np.uint64(entry)).tolist())
    fired: dict[str, set[int]] = {}
    for each in function.instructions:
        if each.offset in offsets:
            # `cover` recognizes generic instructions by their offsets
            kind = "global" if each.kind == sass.GENERIC else each.kind
            if kind in sass.SPACES:
                fired.setdefault(kind, set()).add(each.offset)
    return dict(fired)
