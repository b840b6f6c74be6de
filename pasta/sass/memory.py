"""Memory instructions: their kind, and how many bytes each lane accesses.

Opcodes are those of CUDA Binary Utilities 13.5, "Instruction Set Reference"; their form on
sm_80 to sm_120 was compared with the source PTX (tests/data/sass).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from pasta.probes.kinds import KINDS

#: Space of each access kind; None if it accesses no memory.
SPACES: Final[dict[str, str | None]] = {
    kind.name: None if kind.space == "none" else kind.space for kind in KINDS
}

#: Further kinds of instructions, which probes cannot name.
GENERIC: Final = "generic"  # load, store or atomic whose space is known at run time only
TEXTURE: Final = "texture"  # texture and surface instructions: global memory
TENSOR_CORE: Final = "tensor_core"  # wgmma, tcgen05: shared memory read through descriptors
SHARED_FILL: Final = "shared_fill"  # st.bulk: a range of shared memory set to zero
PREFETCH: Final = "prefetch"  # into a cache; no data reaches the program
UNKNOWN: Final = "unknown"  # an unknown opcode with an address operand

_READ, _WRITE, _ATOMIC = 1, 2, 4
_UPDATE = _READ | _WRITE | _ATOMIC

_OPCODES: Final[dict[str, tuple[str, int]]] = {
    "LDG": ("global", _READ),
    "LDGMC": ("global", _READ),  # multimem.ld_reduce
    "STG": ("global", _WRITE),
    "ATOMG": ("global", _UPDATE),
    "RED": ("global", _UPDATE),  # up to sm_89
    "REDG": ("global", _UPDATE),
    "LDS": ("shared", _READ),
    "STS": ("shared", _WRITE),
    "ATOMS": ("shared", _UPDATE),
    "LDL": ("local", _READ),
    "STL": ("local", _WRITE),
    "LD": (GENERIC, _READ),
    "ST": (GENERIC, _WRITE),
    "ATOM": (GENERIC, _UPDATE),
    "LDGSTS": ("async_copy", _READ),
    "LDSM": ("matrix", _READ),
    "STSM": ("matrix", _WRITE),
    "STAS": ("async_store", _WRITE),
    "REDAS": ("async_store", _UPDATE),
    "UTMALDG": ("tensor_load", _READ),
    "UTMASTG": ("tensor_store", _WRITE),
    "UTMAREDG": ("tensor_store", _UPDATE),
    "UBLKPF": (PREFETCH, 0),
    "UTMAPF": (PREFETCH, 0),
    "UMEMSETS": (SHARED_FILL, _WRITE),
    "TEX": (TEXTURE, _READ),
    "TLD": (TEXTURE, _READ),
    "TLD4": (TEXTURE, _READ),
    "TXD": (TEXTURE, _READ),
    "SULD": (TEXTURE, _READ),
    "SUST": (TEXTURE, _WRITE),
    "SUATOM": (TEXTURE, _UPDATE),
    "SURED": (TEXTURE, _UPDATE),
    "UTCCP": (TENSOR_CORE, _READ),
    "BAR": ("barrier", 0),
    "CALL": ("call", 0),
    "EXIT": ("block_exit", 0),
}
#: Bulk copies and reductions: destination and source are the first two modifiers.
_BULK: Final[dict[tuple[str, str], tuple[str, int]]] = {
    ("UBLKCP", "S.G"): ("bulk_load", _READ),
    ("UBLKCP", "G.S"): ("bulk_store", _WRITE),
    ("UBLKCP", "S.S"): ("bulk_shared", _READ | _WRITE),
    ("UBLKRED", "G.S"): ("bulk_reduction", _UPDATE),
    ("UBLKRED", "S.S"): ("bulk_shared", _UPDATE),
}
#: Have an address operand and move no data of the program: constants, mbarriers, caches, tensor
#: memory.
_NO_ACCESS = re.compile(
    r"U?LDC|LDCU|SYNCS|ARRIVES|QSPC|CCTL[LT]?|UTMACCTL|UTMACMDFLUSH|UTCBAR|UTCATOMSWS|UTCSHIFT|"
    r"UGETNEXTWORKID|LDTM?|STTM?|TXQ|TMML|SUQUERY|BRXU?|JMXU?"
)
_MMA = re.compile(r"(?:[A-Z]GMMA|UTC[A-Z0-9]*MMA)$")
_WIDTH = re.compile(r"(?:B?F|U|S)?(8|16|32|64|128|256)(?:(?:x|_V)(\d+))?$")
#: One address for each row of a matrix: 16 bytes in every shape of ldmatrix and stmatrix.
_MATRIX_ROW = 16
_SIZED = frozenset({"global", "shared", "local", GENERIC, "async_copy", "async_store"})


@dataclass(frozen=True)
class Opcode:
    """An opcode with its modifiers, and its effect on memory.

    `kind` is an access kind of pasta_trace.h, or one of the constants above. `bytes` is the size
    of one lane's access (matrix: the row at one address), None if the code does not specify it.
    """

    text: str
    kind: str
    reads: bool = False
    writes: bool = False
    atomic: bool = False
    bytes: int | None = None

    @property
    def space(self) -> str | None:
        """global, shared or local; None without an access or if unknown."""
        if self.kind in (TENSOR_CORE, SHARED_FILL):
            return "shared"
        return "global" if self.kind == TEXTURE else SPACES.get(self.kind)


@lru_cache(maxsize=4096)
def classify(text: str) -> Opcode | None:
    """The effect of an opcode with its modifiers; None if it is not counted."""
    root, *modifiers = text.split(".")
    if root in ("UBLKCP", "UBLKRED"):
        found = _BULK.get((root, ".".join(modifiers[:2])), (UNKNOWN, 0))
    elif root in ("CCTL", "CCTLL") and modifiers[-1:] in (["PF1"], ["PF2"]):
        found = (PREFETCH, 0)
    elif _MMA.match(root):
        found = (TENSOR_CORE, _READ)
    elif root in _OPCODES:
        found = _OPCODES[root]
    else:
        return None
    kind, flags = found
    return Opcode(
        text,
        kind,
        reads=bool(flags & _READ),
        writes=bool(flags & _WRITE),
        atomic=bool(flags & _ATOMIC),
        bytes=_bytes_per_lane(kind, modifiers),
    )


def _bytes_per_lane(kind: str, modifiers: Iterable[str]) -> int | None:
    if kind == "matrix":
        return _MATRIX_ROW
    if kind not in _SIZED:
        return None
    for modifier in modifiers:
        if width := _WIDTH.match(modifier):
            return int(width[1]) * int(width[2] or 1) // 8
    return 4


#: An operand that is an address: not c[…], whose bracket follows a letter, nor gdesc[…].
_ADDRESS = re.compile(r"[ \t,](?:desc)?\[")


def find_opcode(text: str, operands: str) -> Opcode | None:
    """The effect of an instruction on memory; `UNKNOWN` for an unknown opcode
    with an address, and for what nvdisasm does not know; None if it is not counted."""
    if not text:
        return Opcode(text, UNKNOWN)
    found = classify(text)
    if found is None and _ADDRESS.search(f" {operands}"):
        return None if _NO_ACCESS.fullmatch(text.split(".")[0]) else Opcode(text, UNKNOWN)
    return found
