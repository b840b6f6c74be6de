"""The instructions that stalled warps waited for, in all functions of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pasta.lazy import np
from pasta.processors.rows import combined, group_starts
from pasta.stalls.spread import spread
from pasta.table import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.sass.disassembler import Code
    from pasta.sass.lines import Lines, Place
    from pasta.sass.places import Images
    from pasta.stalls.samples import Function

#: Reason of sources that sample the access itself: nothing is blamed.
DIRECT: Final = "memory access"
#: How a sample is accounted for, by number; `why` of a blamed row.
(
    LOAD, OTHER_REASON, NO_CODE, NO_CANDIDATE, NOT_GLOBAL, NO_LAUNCH, NO_ACCESS, NO_OBJECT
) = range(8)  # fmt: skip
WHY: Final = (
    "charged to a tensor",
    "not waiting for memory",
    "the function's code is unknown",
    "no instruction to blame was found",
    "waiting for local memory or asynchronous work",
    "its launch has no partner with accesses",
    "no accesses of the load were counted",
    "the accessed memory is not a known tensor or allocation",
)
#: Spaces of loads that may read tensors.
_SPACES: Final = frozenset(
    {"global", "generic", "async_copy", "bulk_load", "tensor_load", "bulk_reduction"}
)
_TEXTURES: Final = "texture"


def blamed_type() -> Any:
    """Samples at `pc` of a function, charged to the instruction at `blamed`, offsets in bytes;
    `why` is LOAD for a load that may read tensors, and `dependency` an index into
    `Blamed.dependencies`."""
    return np.dtype(
        [("launch", "i8"), ("function", "i4"), ("pc", "u8"), ("reason", "u4"), ("blamed", "u8"),
         ("dependency", "u1"), ("why", "u1"), ("samples", "i8")]
    )  # fmt: skip


@dataclass
class FunctionCode:
    """The code of functions (`code`), with source lines where they are known, by number."""

    code: dict[int, Code] = field(default_factory=dict)
    lines: dict[int, Lines] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def text(self, function: int, offset: int) -> str | None:
        """The instruction at an offset; None if it is not known."""
        code = self.code.get(function)
        index, rest = divmod(offset, 16)
        if code is None or rest or index >= len(code.form):
            return None
        return code.text(index)

    def place(self, function: int, offset: int) -> Place | None:
        """File and line of an instruction; None if they are not known."""
        lines = self.lines.get(function)
        return None if lines is None else lines.at(offset)

    def line(self, function: int, offset: int) -> str | None:
        """Source line of an instruction, `file:line`; None if it is not known."""
        place = self.place(function, offset)
        return None if place is None else f"{place.file}:{place.line}"


def read_code(functions: Sequence[Function], wanted: Sequence[int], images: Images) -> FunctionCode:
    """The code of the wanted functions (numbers); what cannot be read is in the notes."""
    from pasta.sass.lines import read_lines
    from pasta.sass.places import open_cubins, read_functions

    found = FunctionCode()
    modules: dict[int, dict[str, int]] = {}
    for number in wanted:
        name, module = functions[number]
        if module is not None and name:
            modules.setdefault(module, {})[name] = number
    cubins = open_cubins(modules, images)
    missing = sum(len(modules[each]) for each in modules if images(each) is None)
    codes = read_functions(cubins, modules, found.notes)
    lines = {module: read_lines(cubin) for module, cubin in cubins.items()}
    for (module, name), code in codes.items():
        number = modules[module][name]
        found.code[number] = code
        if name in lines[module]:
            found.lines[number] = lines[module][name]
    if missing:
        found.notes.append(
            f"the modules of {counted(missing, 'sampled function')} were not kept: record with"
            " --set run.modules=true"
        )
    return found


@dataclass(frozen=True)
class Blamed:
    """All samples, as `blamed_type`; they add up to the given ones."""

    rows: NDArray[Any]
    dependencies: list[str]


def blame_all(
    samples: NDArray[Any], reasons: Mapping[int, str], codes: Mapping[int, Code]
) -> Blamed:
    """Charge samples (`sample_type`) to instructions. `reasons`: names by id; `codes`: the
    functions whose code is known.

    Samples of one launch are divided like the samples of all launches at the same place.
    """
    from pasta.sass.blame import SELF

    dependencies = {SELF: 0}
    places = combined(samples[["function", "pc", "reason", "samples"]], _PLACE)
    edges = [_without_code(places, reasons, codes)]
    for function, code in codes.items():
        mine = places[places["function"] == function]
        if len(mine):
            edges.append(_edges(mine, reasons, code, dependencies))
    every = np.concatenate(edges)
    every = every[np.lexsort([every[name] for name in reversed((*_PLACE, "blamed"))])]
    rows = _of_launches(samples, places, every)
    return Blamed(rows, list(dependencies))


_PLACE = ("function", "pc", "reason")


def _without_code(
    places: NDArray[Any], reasons: Mapping[int, str], codes: Mapping[int, Code]
) -> NDArray[Any]:
    """Edges of functions without code: only samples of accesses themselves can be charged."""
    mine = places[~np.isin(places["function"], list(codes))]
    found = _edges_of(mine)
    direct = [id for id, name in reasons.items() if DIRECT in name]
    found["why"] = np.where(np.isin(mine["reason"], direct), LOAD, NO_CODE)
    other = [id for id, name in reasons.items() if not _waits_for_memory(name)]
    found["why"][np.isin(mine["reason"], other)] = OTHER_REASON
    return found


def _edges_of(places: NDArray[Any]) -> NDArray[Any]:
    found = np.zeros(len(places), blamed_type())
    for name in (*_PLACE, "samples"):
        found[name] = places[name]
    found["launch"], found["blamed"] = -1, places["pc"]
    return found


def _waits_for_memory(reason: str) -> bool:
    """Whether a reason is a wait for global memory, or may be."""
    from pasta.sass.blame import kind_of

    return DIRECT in reason or kind_of(reason) == "long"


def _edges(
    places: NDArray[Any], reasons: Mapping[int, str], code: Code, dependencies: dict[str, int]
) -> NDArray[Any]:
    from pasta.sass.blame import blame

    given: dict[int, dict[str, int]] = {}
    ids: dict[str, int] = {}
    for pc, reason, count in places[["pc", "reason", "samples"]].tolist():
        name = reasons.get(reason, "")
        ids[name] = reason
        of_pc = given.setdefault(pc, {})
        of_pc[name] = of_pc.get(name, 0) + count
    result = blame(code, given)
    rows = []
    function = int(places["function"][0])
    for edge in result.edges:
        number = dependencies.setdefault(edge.dependency, len(dependencies))
        why = OTHER_REASON
        if _waits_for_memory(edge.reason):
            why = LOAD if _reads_tensors(code, edge.blamed) else NOT_GLOBAL
        rows.append(
            (-1, function, edge.stalled, ids[edge.reason], edge.blamed, number, why, edge.samples)
        )
    for rest in result.unattributed:
        why = NO_CANDIDATE if _waits_for_memory(rest.reason) else OTHER_REASON
        rows.append(
            (-1, function, rest.stalled, ids[rest.reason], rest.stalled, 0, why, rest.samples)
        )
    return np.asarray(rows, blamed_type())


def _reads_tensors(code: Code, offset: int) -> bool:
    """Whether an instruction may read global memory."""
    from pasta.sass.memory import classify

    index = offset // 16
    name = code.forms.opcode_names[int(code.forms.opcodes[code.form[index]])]
    opcode = classify(name)
    return opcode is not None and opcode.kind in {*_SPACES, _TEXTURES}


def _of_launches(samples: NDArray[Any], places: NDArray[Any], edges: NDArray[Any]) -> NDArray[Any]:
    """Edges of all launches together, divided among the samples of each place."""
    keys, first, sizes = _groups(edges, _PLACE)
    at = _find(keys, samples, _PLACE)
    sizes = sizes[at]
    taken = _expanded(first[at], sizes)
    rows = edges[taken]
    rows["launch"] = np.repeat(samples["launch"], sizes)
    rows["samples"] = spread(samples["samples"], sizes, rows["samples"].astype(np.float64))
    return np.asarray(rows[rows["samples"] > 0])


def _groups(
    rows: NDArray[Any], keys: Sequence[str]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Distinct keys of sorted rows, the first row of each and the number of rows."""
    first = group_starts(rows, keys)
    sizes = np.diff(np.append(first, len(rows)))
    found = np.empty(len(first), [(name, rows.dtype[name]) for name in keys])
    for name in keys:
        found[name] = rows[name][first]
    return found, first, sizes


def _find(known: NDArray[Any], wanted: NDArray[Any], keys: Sequence[str]) -> NDArray[Any]:
    """Index in sorted distinct rows of the keys of each wanted row, -1 if there is none."""
    fields = [(name, known.dtype[name]) for name in keys]
    both = np.empty(len(known) + len(wanted), fields)
    for name in keys:
        both[name] = np.concatenate([known[name], wanted[name].astype(known.dtype[name])])
    order = np.lexsort([both[name] for name in reversed(keys)])  # stable: known ones come first
    is_known = order < len(known)
    last = np.cumsum(is_known) - 1
    new = np.ones(len(both), bool)
    ordered = both[order]
    new[1:] = False
    for name in keys:
        new[1:] |= ordered[name][1:] != ordered[name][:-1]
    group = np.cumsum(new) - 1
    has = np.zeros(int(new.sum()), bool)
    has[group[is_known]] = True
    found = np.empty(len(both), np.int64)
    found[order] = np.where(has[group], last, -1)
    return found[len(known) :]


def _expanded(first: NDArray[Any], sizes: NDArray[Any]) -> NDArray[Any]:
    """Indices of `sizes` rows from each of `first`, one group after another."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(first - (ends - sizes), sizes) + np.arange(total)
