"""Floating-point operations of instructions."""

from __future__ import annotations

import re
from typing import Final

WARP: Final = 32
#: Of a thread; a multiply-add is two.
_OF_THREAD: Final = {
    "FADD": 1, "FMUL": 1, "FFMA": 2, "DADD": 1, "DMUL": 1, "DFMA": 2,
    "HADD2": 2, "HMUL2": 2, "HFMA2": 4, "FADD2": 2, "FMUL2": 2, "FFMA2": 4,
}  # fmt: skip
#: Rows, columns and depth of a warp's matrices, as opcodes write them.
_SHAPES: Final = {
    "884": (8, 8, 4), "1684": (16, 8, 4), "1688": (16, 8, 8), "16816": (16, 8, 16),
    "16832": (16, 8, 32),
}  # fmt: skip
_MATRICES = re.compile(r"(?:H|D|Q)MMA\.(?:SP\.)?(\d+)")
#: Of four warps together.
_WARPGROUP = re.compile(r"(?:H|Q)GMMA\.(?:SP\.)?(\d+)x(\d+)x(\d+)")


def opcode_of(text: str) -> str:
    """Opcode with modifiers of an instruction's text, without a predicate."""
    words = text.split(maxsplit=2)
    if not words:
        return ""
    return words[1] if words[0].startswith("@") and len(words) > 1 else words[0]


def operations(opcode: str) -> int:
    """Floating-point operations that a full warp does with one instruction; 0 for others."""
    root = opcode.partition(".")[0]
    if root in _OF_THREAD:
        return WARP * _OF_THREAD[root]
    if found := _WARPGROUP.match(opcode):
        rows, columns, depth = map(int, found.groups())
        return 2 * rows * columns * depth // 4
    found = _MATRICES.match(opcode)
    rows, columns, depth = _SHAPES.get(found[1], (0, 0, 0)) if found else (0, 0, 0)
    return 2 * rows * columns * depth
