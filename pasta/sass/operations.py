"""Floating-point operations of instructions."""

from __future__ import annotations

from typing import Final

from pasta.sass.instructions import split, tile

WARP: Final = 32
#: Of a thread; a multiply-add is two.
_OF_THREAD: Final = {
    "FADD": 1, "FMUL": 1, "FFMA": 2, "DADD": 1, "DMUL": 1, "DFMA": 2,
    "HADD2": 2, "HMUL2": 2, "HFMA2": 4, "FADD2": 2, "FMUL2": 2, "FFMA2": 4,
}  # fmt: skip
#: On tensor cores: of a warp, and of four warps together.
_MATRICES: Final = {"HMMA": 1, "DMMA": 1, "QMMA": 1, "HGMMA": 4, "QGMMA": 4}


def opcode_of(text: str) -> str:
    """Opcode with modifiers of an instruction's text; empty without a text."""
    return split(text)[1] if text else ""


def operations(opcode: str) -> int:
    """Floating-point operations that a full warp does with one instruction; 0 for others."""
    root, *modifiers = opcode.split(".")
    if root in _OF_THREAD:
        return WARP * _OF_THREAD[root]
    if root not in _MATRICES:
        return 0
    rows, columns, depth = tile(modifiers)
    return 2 * rows * columns * depth // _MATRICES[root]
