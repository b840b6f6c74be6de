"""Stores of the tensor memory accelerator: where each takes its map from, and how often it ran."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pasta.lazy import np
from pasta.sass import resources
from pasta.sass.control_flow import build_control_flow
from pasta.sass.dataflow import DefUse
from pasta.sass.instructions import split

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.sass.disassembler import Code

#: Copies from shared to global memory, and reductions into global memory.
_STORES: Final = frozenset({"UTMASTG", "UTMAREDG"})
#: Constants that hold addresses of parameters, by architecture: the place in bank 0, and how many
#: bytes before the first parameter the address is.
_WINDOWS: Final = {90: {0x198: 0, 0xC0: 0x210}}
_MAP = re.compile(r"\], \[UR(\d+)")
_REGISTER = re.compile(r"(U?R)(\d+)(?:\.64)?$")
_CONSTANT = re.compile(r"c\[0x0\]\[(0x[0-9a-f]+)\]$")
_IMMEDIATE = re.compile(r"-?0x[0-9a-f]+$")
#: Operands that add nothing.
_ZERO = re.compile(r"(?:U?RZ|!?U?PT|!?U?P\d+)$")
_ADD: Final = frozenset({"UIADD3", "IADD3", "UIADD3.64", "IADD3.64", "IADD.64", "UIADD.64"})
_COPY: Final = frozenset(
    {"UMOV", "MOV", "R2UR", "IMAD.MOV.U32", "ULDC", "ULDC.64", "LDC", "LDC.64", "LDCU.64"}
)
_MAX_STEPS: Final = 16


class TensorStore(NamedTuple):
    """A store: number of its instruction; the place of its tensor map among the kernel's
    parameters, in bytes, None if the code does not determine it; the instructions of its block."""

    at: int
    offset: int | None
    block: range


def tensor_stores(code: Code) -> list[TensorStore]:
    """The stores of a function, in the order of its code."""
    roots = np.array([name.partition(".")[0] in _STORES for name in code.forms.opcode_names])
    places = np.flatnonzero(roots[code.forms.opcodes[code.form]]).tolist() if len(roots) else []
    if not places:
        return []
    flow = build_control_flow(code)
    maps = _Maps(code, DefUse(code, flow))
    return [
        TensorStore(index, maps.offset(index), flow.block(flow.block_of(index))) for index in places
    ]


def executed(store: TensorStore, warps: NDArray[Any], threads: NDArray[Any]) -> int:
    """How many boxes a store wrote, from the executions of all instructions of its function, by
    number, by warps and by threads whose predicate was true.

    A warp that executes it writes one box, unless its predicate is false. So the executions by
    threads are divided by the threads of a warp that were active, as another instruction of the
    block shows them that all of these executed.
    """
    mine = slice(store.block.start, store.block.stop)
    active = int(threads[mine].max(initial=0))
    if not active:
        return 0
    return round(int(threads[store.at]) * int(warps[store.at]) / active)


class _Maps:
    """Places of maps, found by following the registers that hold their addresses."""

    def __init__(self, code: Code, chains: DefUse) -> None:
        self._code, self._chains = code, chains
        self._windows = _WINDOWS.get(code.architecture, {})

    def offset(self, index: int) -> int | None:
        """Place among the parameters of the map of a store."""
        found = _MAP.search(self._code.text(index))
        return self._value(index, resources.UR + int(found[1]), 0) if found else None

    def _value(self, index: int, register: int, steps: int) -> int | None:
        """What a register holds that an instruction reads, if all definitions agree."""
        if steps == _MAX_STEPS:
            return None
        values = {self._defined(each, steps) for each in self._chains.definitions(index, register)}
        return values.pop() if len(values) == 1 else None

    def _defined(self, index: int, steps: int) -> int | None:
        """What an instruction writes, as a place among the parameters."""
        _, opcode, operands = split(self._code.text(index))
        if not operands or opcode not in (_ADD | _COPY):
            return None
        added, bases = 0, []
        for operand in operands.split(", ")[1:]:
            if _IMMEDIATE.match(operand) and opcode in _ADD:
                added += int(operand, 16)
            elif not _ZERO.match(operand):
                bases.append(operand)
        if len(bases) != 1:
            return None
        if constant := _CONSTANT.match(bases[0]):
            before = self._windows.get(int(constant[1], 16))
            return None if before is None else added - before
        register = _REGISTER.match(bases[0])
        if register is None:
            return None
        first = resources.UR if register[1] == "UR" else resources.R
        base = self._value(index, first + int(register[2]), steps + 1)
        return None if base is None else base + added
