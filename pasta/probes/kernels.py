"""The kernels of a run that were probed, and what their code contains."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta import abi, paths
from pasta.lazy import np
from pasta.probes import coverage, sass
from pasta.probes.coverage import Backend, Code, Coverage
from pasta.probes.kinds import KINDS
from pasta.processors.batch import ABSENT_U64
from pasta.progress import doing
from pasta.table import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.strings import Strings
    from pasta.tool import Context, Tool

#: Where the image of a module is, by the hash of its content; None where it was not kept.
Images = Callable[[int], "Path | None"]
#: Longest time that reading code may take in all, s.
_PATIENCE = 60.0


class ProbedKernels:
    """Kernels by the id of their name and the hash of their module, as launches tell of them.

    `read_code` reads their code once all launches are known; `coverage` then compares it with what
    a tool's probes ask for and what they saw. `sources`: who saw the launches, and its version, ids
    of strings; the runtime adds to it.
    """

    def __init__(self, sources: Set[tuple[int, int]]) -> None:
        self._sources = sources
        self._loads: dict[int, list[tuple[int, int]]] = {}  # handle: position, hash
        self._entries: dict[tuple[int, int], set[int]] = {}  # name, hash: where they begin
        self._fired: dict[int, int] = {}  # name: bits of kinds that the CPU executor saw
        self._code: dict[int, Code] = {}

    def feed(self, selected: Batch) -> None:
        """Follows a batch as the filter left it."""
        loads = selected["module_load"]
        for load, position in zip(loads, selected.positions(loads).tolist(), strict=True):
            history = self._loads.setdefault(int(load["handle"]), [])
            history.append((position, int(load["hash"])))
        launches = selected["kernel_launch"]
        launches = launches[launches["flags"] & abi.FLAG_PROBED != 0]
        kernels = np.column_stack(
            [launches["name"], self._hashes(launches, selected), launches["entry_pc"]]
        )
        for name, hash, entry in np.unique(kernels, axis=0).tolist():
            entries = self._entries.setdefault((name, hash), set())
            if entry != ABSENT_U64:
                entries.add(entry)

    def _hashes(self, launches: NDArray[Any], selected: Batch) -> NDArray[Any]:
        """Hashes (uint64) of the modules that had the handles when these launches were made;
        absent where a load was not seen."""
        found = np.full(len(launches), ABSENT_U64, np.uint64)
        positions = selected.positions(launches)
        for module in np.unique(launches["module"]).tolist():
            history = self._loads.get(module)
            if history:
                mine = launches["module"] == module
                loaded, hashes = np.array(history, np.uint64).T
                at = np.searchsorted(loaded, positions[mine])
                found[mine] = np.where(at > 0, hashes[at - 1], found[mine])
        return found

    def fire(self, names: NDArray[Any], kinds: NDArray[Any]) -> None:
        """Accesses of these kinds (bits, int64) were seen in kernels (ids of names)."""
        for name, bits in zip(names.tolist(), kinds.tolist(), strict=True):
            self._fired[name] = self._fired.get(name, 0) | bits

    def read_code(self, context: Context) -> None:
        """Reads the code of kernels that GPUs ran, for a bounded time; what was not read has its
        reason."""
        if not self._backend(context).has_code:
            return
        end = time.monotonic() + _PATIENCE
        wanted: dict[int, set[int]] = {}
        for name, hash in self._entries:
            wanted.setdefault(hash, set()).add(name)
        kernels = sum(map(len, wanted.values()))
        done = 0
        for hash, names in wanted.items():
            doing(f"reading code of {counted(kernels, 'kernel')}", f"{done:,} of {kernels:,}")
            done += len(names)
            if hash not in self._code:
                mangled = context.strings.many(sorted(names))
                self._code[hash] = _read(context.images, hash, mangled, end)

    def coverage(self, tool: Tool, context: Context) -> list[Coverage]:
        """What the tool's probes could see of each kernel, by its mangled name."""
        asked = {kind for probe in type(tool).probes() for kind in probe.kinds}
        counters = _program_counters(tool)
        backend, strings = self._backend(context), context.strings
        patched = asked & backend.kinds
        found = []
        for (name, hash), entries in sorted(self._entries.items()):
            kernel, code = strings[name], self._code.get(hash, _NOT_READ)
            seen: dict[str, Collection[int] | None] | None = None
            if not backend.has_code:  # a GPU's records are those that some probe chose to write
                bits = self._fired.get(name, 0)
                seen = {kind.name: None for kind in KINDS if bits >> kind.number & 1}
            elif counters is not None:
                seen = _fired_at(code, kernel, counters, entries)
            found.append(
                coverage.cover(kernel, code, seen, wanted=asked, patched=patched, backend=backend)
            )
        return found

    def _backend(self, context: Context) -> Backend:
        text = context.strings
        named = {text[source]: text[version] for source, version in self._sources if source}
        return coverage.backend_of(named or context.sources)

    def begins(self) -> dict[int, set[int]]:
        """Ids of names of the kernels that begin at addresses."""
        found: dict[int, set[int]] = {}
        for (name, _), entries in self._entries.items():
            for entry in entries:
                found.setdefault(entry, set()).add(name)
        return found

    def lines(self, strings: Strings, pcs: NDArray[Any]) -> list[str | None]:
        """Source lines, as file:line, of instructions at addresses (uint64); None where the code
        was not read or has no line table."""
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
        """Where kernels begin, in order, and their lines by offset."""
        starts: dict[int, dict[int, str]] = {}
        for (name, hash), entries in self._entries.items():
            functions = self._code.get(hash, _NOT_READ).functions or {}
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


def _read(images: Images, hash: int, names: Iterable[str], end: float) -> Code:
    if hash == ABSENT_U64:
        return Code(None, "its module was loaded before PASTA was there")
    path = images(hash)
    if path is None:
        return Code(None, "its module was not kept: see probes.code-memory")
    left = end - time.monotonic()
    if left <= 0:
        return Code(None, f"reading the code of other kernels took {_PATIENCE:g} s")
    try:
        return coverage.read_code(path, list(names), cache=paths.cache("sass"), timeout=left)
    except Exception as error:  # no module may cost a run its results
        return Code(None, f"reading it failed: {type(error).__name__}: {error}")


def _program_counters(tool: Tool) -> NDArray[Any] | None:
    """Addresses that the tool's maps by instruction have, sorted; None where it has no such map."""
    maps = [each for each in tool._maps.values() if "pc" in each.spec.keys]
    if not maps:
        return None
    return np.unique(np.concatenate([each.rows()["pc"] for each in maps]).astype(np.uint64))


def _fired_at(
    code: Code, name: str, pcs: NDArray[Any], entries: Collection[int]
) -> dict[str, Collection[int] | None] | None:
    """Offsets of instructions that fired, by the kind that the code has there."""
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
            # where a generic one accessed does not matter: `cover` knows it by its place
            kind = "global" if each.kind == sass.GENERIC else each.kind
            if kind in sass.SPACES:
                fired.setdefault(kind, set()).add(each.offset)
    return dict(fired)
