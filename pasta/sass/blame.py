"""Instructions that stalled ones waited for, found backwards from program counter samples.

A sample is taken where a warp waits; the cost belongs to the instruction that it waits for. Method:
GPA (Zhou et al., CGO 2021), on scoreboards. docs/sass.md describes how candidates are found and
weighted, and its limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Final, NamedTuple

from pasta.lazy import np
from pasta.sass import resources
from pasta.sass.async_copies import AsyncCopies
from pasta.sass.control import SCOREBOARDS, decode_control
from pasta.sass.control_flow import ControlFlow, build_control_flow
from pasta.sass.cubin import INSTRUCTION_BYTES
from pasta.sass.dataflow import DefUse
from pasta.sass.disassembler import Code
from pasta.sass.distances import distances_back
from pasta.sass.forms import RESOURCE_MASK, role_of
from pasta.sass.instructions import Flow, Role
from pasta.sass.memory import TEXTURE, classify

#: Samples by reason of the instructions at byte offsets in a code section.
Samples = Mapping[int, Mapping[str, int]]

#: How the stalled instruction depends on the blamed one: it uses its value as a value, in an
#: address or as its predicate; it overwrites what it reads, or shares a scoreboard with it; data
#: that it copies asynchronously; or it is the instruction itself.
DATA: Final = "data"
ADDRESS: Final = "address"
GUARD: Final = "guard"
ORDER: Final = "order"
ASYNC: Final = "async"
SELF: Final = "self"
_ROLES: Final = {Role.DATA: DATA, Role.ADDRESS: ADDRESS, Role.GUARD: GUARD}


class Edge(NamedTuple):
    """Samples of one reason at the byte offset `stalled`, charged to the one at `blamed`."""

    stalled: int
    blamed: int
    reason: str
    samples: int
    dependency: str


class Unattributed(NamedTuple):
    """Samples without a candidate."""

    stalled: int
    reason: str
    samples: int


class Blame(NamedTuple):
    """All samples: edges and unattributed samples add up to the input."""

    edges: list[Edge]
    unattributed: list[Unattributed]

    @property
    def attributed(self) -> int:
        """Samples of all edges."""
        return sum(edge.samples for edge in self.edges)


class _Candidate(NamedTuple):
    """An instruction that may have been waited for; `distance` in cycles of issue, at least 1."""

    at: int
    dependency: str
    distance: int


#: Fixed latencies in cycles by kind: a longer wait is not for such a result.
_LATENCY_BOUNDS: Final = {"long": 4096, "short": 512}
#: Kinds of memory instructions behind the long scoreboard; LD may be of any space.
_LONG: Final = frozenset(
    {"global", "local", "generic", "async_copy", "prefetch", TEXTURE, "tensor_load", "bulk_load"}
)
#: Operations that set scoreboards of both kinds, or may.
_BOTH: Final = frozenset({"SYNCS", "LD", "ST", "ATOM", "LDGDEPBAR", "ARRIVES"})
_STORES: Final = frozenset({"global", "local", "generic"})
#: Reasons for which the instruction itself is the cause: units that are busy, or no stall at all.
_OWN: Final = ("throttle", "dispatch", "selected", "sleeping", "misc", "imc", "constant")
_ROOTS: Final = {
    "barrier": ("BAR", "B2R", "UCGABAR_WAIT", "UCGABAR_ARV", "BARRIER"),
    "membar": ("MEMBAR", "ERRBAR", "FENCE", "CCTL"),
}


def blame(code: Code, samples: Samples) -> Blame:
    """Charge samples to the instructions that were waited for.

    `samples`: by byte offset in the code section, then by reason, as the source names it. Samples
    at offsets without an instruction are unattributed. Raises ValueError for a negative number.
    """
    return Blamer(code).blame(samples)


class Blamer:
    """Blame within one function; candidates are found once for each instruction and kind."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self.flow: ControlFlow = build_control_flow(code)
        self.def_use = DefUse(code, self.flow)
        self._control = decode_control(code.control)
        self._stall = np.maximum(self._control.stall, 1).tolist()
        self._copies = AsyncCopies(code, self.flow)
        self._kept: dict[tuple[int, str], list[_Candidate]] = {}

    def blame(self, samples: Samples) -> Blame:
        """As the function."""
        issued = self._issued(samples)
        edges: list[Edge] = []
        rest: list[Unattributed] = []
        for offset, reasons in sorted(samples.items()):
            for reason, count in sorted(reasons.items()):
                if count < 0:
                    raise ValueError(f"{count} samples of {reason} at {offset:#x}")
                if not count:
                    continue
                candidates = self._candidates(offset, reason)
                if not candidates:
                    rest.append(Unattributed(offset, reason, count))
                    continue
                weights = [issued(each.at) / each.distance for each in candidates]
                for each, part in zip(candidates, apportion(count, weights), strict=True):
                    if part:
                        at = each.at * INSTRUCTION_BYTES
                        edges.append(Edge(offset, at, reason, part, each.dependency))
        return Blame(edges, rest)

    def _issued(self, samples: Samples) -> Callable[[int], float]:
        """How often an instruction was issued, by index: (1 + samples issued) per instruction of
        its basic block, whose instructions are issued equally often."""
        of_block: dict[int, int] = {}
        for offset, reasons in samples.items():
            index, remainder = divmod(offset, INSTRUCTION_BYTES)
            if remainder or not 0 <= index < len(self.code.form):
                continue
            for reason, count in reasons.items():
                if "selected" in reason and "not_selected" not in reason:
                    block = self.flow.block_of(index)
                    of_block[block] = of_block.get(block, 0) + count

        def issued(index: int) -> float:
            block = self.flow.block_of(index)
            return (1 + of_block.get(block, 0)) / len(self.flow.block(block))

        return issued

    def _candidates(self, offset: int, reason: str) -> list[_Candidate]:
        index, remainder = divmod(offset, INSTRUCTION_BYTES)
        if remainder or not 0 <= index < len(self.code.form):
            return []
        kind = kind_of(reason)
        found = self._kept.get((index, kind))
        if found is None:
            found = self._kept[index, kind] = self._find[kind](index)
        return found

    @cached_property
    def _find(self) -> Mapping[str, Callable[[int], list[_Candidate]]]:
        return {
            "long": lambda index: self._scoreboard(index, "long"),
            "short": lambda index: self._scoreboard(index, "short"),
            "wait": self._fixed_latency,
            "barrier": lambda index: self._nearest(index, _ROOTS["barrier"]),
            "membar": lambda index: self._nearest(index, _ROOTS["membar"]),
            "branch": self._branch,
            "drain": self._drain,
            "gmma": self._warpgroup,
            "own": lambda index: [_Candidate(index, SELF, 1)],
            "none": lambda index: [],
        }

    # ---- scoreboards

    def _scoreboard(self, index: int, kind: str) -> list[_Candidate]:
        """Setters of the scoreboards that the instruction waits for, the most fitting ones."""
        waiting = self._waiting(index)
        setters: dict[int, bool] = {}  # whether it is for their results, not for their sources
        for board in self._waited(waiting):
            for each in self.def_use.definitions(waiting, board):
                is_result = int(self._control.write[each]) == board - resources.SB
                setters[each] = setters.get(each, False) or is_result
        results = [each for each, is_result in setters.items() if is_result]
        fitting = [each for each in setters if self._fits(each, kind)]
        both = [each for each in fitting if setters[each]]
        chosen = both or fitting or results or list(setters)
        copies = self._copies.waited(waiting)
        if copies:
            chosen = [each for each in chosen if self._root(each) != "LDGDEPBAR"]
        for each in [each for each in chosen if "PHASECHK" in self._opcode(each)]:
            behind = self._copies.of_mbarrier(each)
            if behind:
                chosen.remove(each)
                copies += behind
        wanted = {*chosen, *copies}
        distances = distances_back(self.flow, self._stall, index, wanted=wanted) if wanted else {}
        roles = self._roles(index, chosen)
        found = [
            _Candidate(each, roles.get(each, ORDER), distances[each])
            for each in chosen
            if each in distances
        ]
        near = [each for each in found if each.distance <= _LATENCY_BOUNDS[kind]]
        return (near or found) + [
            _Candidate(each, ASYNC, distances.get(each, _LATENCY_BOUNDS["long"]))
            for each in dict.fromkeys(copies)
        ]

    def _waiting(self, index: int) -> int:
        """The instruction itself, or a DEPBAR before it: its wait may show on the next one."""
        if not self._waited(index) and index > 0 and self._root(index - 1) == "DEPBAR":
            return index - 1
        return index

    def _waited(self, index: int) -> list[int]:
        """Scoreboards in the wait mask, and scoreboards of DEPBAR."""
        mask = int(self._control.wait[index])
        masked = [resources.SB + bit for bit in range(SCOREBOARDS) if mask >> bit & 1]
        waits = self.code.forms.waits.get(int(self.code.form[index]), ())
        return list(dict.fromkeys([*masked, *(board for board, _ in waits)]))

    def _fits(self, index: int, kind: str) -> bool:
        root = self._root(index)
        if root in _BOTH:
            return True
        opcode = classify(self._opcode(index))
        is_long = opcode is not None and opcode.kind in _LONG
        return is_long == (kind == "long")

    def _roles(self, index: int, producers: Iterable[int]) -> dict[int, str]:
        """What the instruction uses of each producer, the value before the address."""
        wanted = set(producers)
        found: dict[int, str] = {}
        starts, values = self.code.forms.uses
        form = int(self.code.form[index])
        for value in sorted(values[starts[form] : starts[form + 1]].tolist()):
            role = _ROLES[role_of(value)]
            for each in self.def_use.definitions(index, value & RESOURCE_MASK):
                if each in wanted:
                    found.setdefault(each, role)
        return found

    # ---- other reasons

    def _fixed_latency(self, index: int) -> list[_Candidate]:
        """The preceding instructions, whose stall counts the instruction waits for."""
        return [_Candidate(each, self._role_of_one(index, each), self._stall[each])
                for each in self._before(index)]  # fmt: skip

    def _role_of_one(self, index: int, producer: int) -> str:
        return self._roles(index, [producer]).get(producer, ORDER)

    def _before(self, index: int) -> list[int]:
        block = self.flow.block_of(index)
        if index > self.flow.starts[block]:
            return [index - 1]
        return [self.flow.starts[each + 1] - 1 for each in self.flow.predecessors[block]]

    def _nearest(self, index: int, roots: tuple[str, ...]) -> list[_Candidate]:
        """The instruction itself, or the nearest ones before it on every path."""
        if self._root(index) in roots:
            return [_Candidate(index, SELF, 1)]
        return self._first_back(index, lambda each: self._root(each) in roots)

    def _branch(self, index: int) -> list[_Candidate]:
        flows = self.code.forms.flow(self.code.form)
        before = [each for each in self._before(index) if flows[each] != Flow.NONE]
        if before:
            return [_Candidate(each, ORDER, self._stall[each]) for each in before]
        return [_Candidate(index, SELF, 1)] if flows[index] != Flow.NONE else []

    def _drain(self, index: int) -> list[_Candidate]:
        """Stores that the end of the warp waits for."""

        def is_store(each: int) -> bool:
            opcode = classify(self._opcode(each))
            return opcode is not None and opcode.writes and opcode.kind in _STORES

        return self._first_back(index, is_store)

    def _warpgroup(self, index: int) -> list[_Candidate]:
        waits = self.code.forms.waits.get(int(self.code.form[index]), ())
        setters = [each for board, _ in waits for each in self.def_use.definitions(index, board)]
        distances = distances_back(self.flow, self._stall, index, wanted=setters)
        found = [_Candidate(each, ASYNC, distances[each]) for each in setters if each in distances]
        if found or not self._root(index).endswith("GMMA"):
            return found
        return [_Candidate(index, SELF, 1)]

    def _first_back(self, index: int, is_wanted: Callable[[int], bool]) -> list[_Candidate]:
        distances = distances_back(self.flow, self._stall, index, ends=is_wanted)
        return [_Candidate(each, ORDER, distance)
                for each, distance in sorted(distances.items()) if is_wanted(each)]  # fmt: skip

    def _opcode(self, index: int) -> str:
        return self.code.forms.opcode_names[int(self.code.forms.opcodes[self.code.form[index]])]

    def _root(self, index: int) -> str:
        return self._opcode(index).partition(".")[0]


def kind_of(reason: str) -> str:
    """How candidates of a reason are found, from words in its name."""
    text = reason.lower().replace(" ", "_")
    for word, kind in _KINDS:
        if word in text:
            return kind
    return "none"


#: In this order: lg_throttle is not a wait, and not_selected not a stall.
_KINDS: Final = (
    *((word, "own") for word in _OWN),
    ("long_scoreboard", "long"),
    ("short_scoreboard", "short"),
    ("memory_dependency", "long"),
    ("gmma", "gmma"),
    ("membar", "membar"),
    ("barrier", "barrier"),
    ("branch", "branch"),
    ("drain", "drain"),
    ("wait", "wait"),
)


def apportion(count: int, weights: list[float]) -> list[int]:
    """Whole parts of `count` in proportion to weights, by largest remainder; they add up to it.

    Equal remainders go to the first ones.
    """
    total = sum(weights)
    exact = [count * weight / total for weight in weights]
    parts = [min(int(each), count) for each in exact]
    order = sorted(range(len(weights)), key=lambda at: (parts[at] - exact[at], at))
    for at in order[: count - sum(parts)]:
        parts[at] += 1
    return parts
