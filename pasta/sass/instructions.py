"""What instructions define and use, from their text.

Opcodes: CUDA Binary Utilities 13.5, "Instruction Set Reference". Which operands are destinations,
and how many registers each has, is not documented; the rules here were compared with the code
of cuBLAS for sm_80, sm_90, sm_100 and sm_120, see docs/sass.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

from pasta.sass import resources
from pasta.sass.memory import classify
from pasta.sass.resources import GSB, SB, UP, UR, P, R


class Role(IntEnum):
    """What a used resource is for."""

    DATA = 0  # a value
    ADDRESS = 1  # part of an address, or a descriptor
    GUARD = 2  # the predicate of the instruction


class Flow(IntEnum):
    """Effect on the control flow."""

    NONE = 0
    BRANCH = 1
    CALL = 2
    RETURN = 3
    EXIT = 4
    INDIRECT = 5  # to an address in a register


class Use(NamedTuple):
    """A used resource (pasta.sass.resources)."""

    resource: int
    role: Role


class Operation(NamedTuple):
    """An instruction without its place, from its text.

    `defs` and `uses`: each register of a vector once; RZ and PT never. `guard`: the predicate in
    the text, without @; `conditional`: it may be false. `target`: branch target, in bytes from the
    instruction; `falls`: the next instruction may follow it. `waits`: scoreboards that the
    operation waits for (DEPBAR), with the count that may remain.
    """

    opcode: str
    guard: str
    conditional: bool
    defs: tuple[int, ...]
    uses: tuple[Use, ...]
    flow: Flow
    falls: bool
    target: int | None
    waits: tuple[tuple[int, int], ...] = ()

    @property
    def never(self) -> bool:
        """Whether it never executes: padding around some hardware hazards."""
        return self.guard in ("!PT", "!UPT")


class _Shape(NamedTuple):
    """Operands of an opcode. Widths are in 32-bit registers."""

    destinations: str  # none, first, setp, before_address, two
    width: int  # of register destinations
    sources: tuple[int, ...]  # of sources by position; the last one holds for the rest
    address: int  # of R in an address without .64 or .U32
    uniform_address: int


class _Register(NamedTuple):
    first: int  # class
    number: int  # -1: RZ, PT
    every: bool  # PR, UPR
    suffix: str
    place: str  # text before the bracket around it; "=": outside of brackets


class _Operand(NamedTuple):
    registers: tuple[_Register, ...]
    kind: int | None  # class of a plain register operand
    negated: bool
    is_address: bool


_TEXT = re.compile(r"\s*(?:\{\s*)?(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*?)[\s;}]*$")
_REGISTER = re.compile(
    r"(?<![\w.])(UR|UP|R|P|SB|B|gsb)([0-9]+|(?<=R)Z|(?<=P)[TR])(?!\w)(\.64|\.U32)?"
)
_BRACKET = re.compile(r"(\w*)\[([^\[\]]*)$")
_CALL_REGISTER = re.compile(r"(?:^|[ ,])U?R\d")
_HEX = re.compile(r"-?0x[0-9a-f]+")
#: Relative to the instruction (pasta.sass.nvdisasm).
_TARGET = re.compile(r"\.([+-]0x[0-9a-f]+)$")

_STORES = frozenset({
    "STG", "STS", "STL", "ST", "RED", "REDG", "STSM", "STAS", "REDAS", "SUST", "SURED", "STTM",
})  # fmt: skip
#: Neither registers nor predicates are written.
_NO_DESTINATION: Final = _STORES | frozenset({
    "LDGSTS", "BRA", "BRX", "BRXU", "JMP", "JMX", "JMXU", "EXIT", "RET", "CALL", "BAR", "DEPBAR",
    "LDGDEPBAR", "MEMBAR", "ERRBAR", "CCTL", "CCTLL", "CCTLT", "NOP", "YIELD", "NANOSLEEP",
    "WARPSYNC", "BSYNC", "BREAK", "KILL", "BPT", "RPCMOV", "FENCE", "UTMALDG", "UTMASTG",
    "UTMAREDG", "UTMAPF", "UTMACCTL", "UTMACMDFLUSH", "UBLKCP", "UBLKRED", "UBLKPF", "ARRIVES",
    "WARPGROUP", "PREEXIT", "ACQBULK", "UCGABAR_ARV", "UCGABAR_WAIT", "CGAERRBAR", "ENDCOLLECTIVE",
    "UTCBAR", "UTCCP", "UTCSHIFT", "USETSHMSZ", "SETLMEMBASE", "UMEMSETS", "UVIRTCOUNT",
    "SETCTAID", "UGETNEXTWORKID", "WARPGROUPSET", "BMOVCLEAR", "PMTRIG",
})  # fmt: skip
_SETP = re.compile(r"U?[A-Z]SETP2?$|U?PLOP3$|FCHK$|CSMTEST$|VOTEU?$")
_ONE_PREDICATE = frozenset({"FCHK", "VOTE", "VOTEU", "CSMTEST"})
_BEFORE_ADDRESS = re.compile(r"LD|U?LDC|ATOM|SYNCS|SULD|SUATOM|QSPC|UTCATOMSWS")
_TEXTURE = re.compile(r"(?:TEX|TLD4?|TXD|TMML)$")
_MMA = re.compile(r"([HIDBQO])MMA$")
_GROUP_MMA = re.compile(r"[HIQB]GMMA$")
_TMEM_MMA = re.compile(r"UTC\w*MMA$")
_DIGITS = re.compile(r"(\d+)(?:x(\d+)x(\d+))?$")
_ELEMENT_BITS = {
    "TF32": 32, "BF16": 16, "E4M3": 8, "E5M2": 8, "S8": 8, "U8": 8, "S4": 4, "U4": 4,
    "E2M1": 4, "E2M3": 8, "E3M2": 8,
}  # fmt: skip
_TMEM_SHAPE = re.compile(r"(\d+)dp(\d+)bit")
#: Opcodes whose 64-bit modifier is the width of their registers (sm_100: MOV.64, IADD.64).
_FUNNEL = frozenset({"SHF", "USHF", "I2F", "F2I", "F2F", "FRND", "I2I", "UI2F", "UF2I", "UMEMSETS"})


@lru_cache(maxsize=8192)
def _shape(opcode: str) -> _Shape:
    root, *modifiers = opcode.split(".")
    return _Shape(
        _destinations(root),
        *_widths(root, modifiers, opcode),
        address=_address_width(root, modifiers),
        uniform_address=2 if root in _WIDE_UNIFORM else 1,
    )


_WIDE_UNIFORM = frozenset({"LDG", "STG", "ATOMG", "RED", "REDG", "LD", "ST", "ATOM"})
_GLOBAL = _WIDE_UNIFORM | {"CCTL", "LDGMC"}


def _destinations(root: str) -> str:
    if root in _NO_DESTINATION or _TMEM_MMA.match(root):
        return "none"
    if _SETP.match(root):
        return "setp"
    if _TEXTURE.match(root):
        return "two"
    if _BEFORE_ADDRESS.match(root):
        return "before_address"
    return "first"


def _address_width(root: str, modifiers: list[str]) -> int:
    return 2 if root in _GLOBAL and "E" in modifiers else 1


def _widths(root: str, modifiers: list[str], opcode: str) -> tuple[int, tuple[int, ...]]:
    if matrix := _MMA.match(root):
        return _mma_widths(matrix[1], modifiers)
    if _GROUP_MMA.match(root):
        return _group_mma_widths(root, modifiers)
    if root in ("LDTM", "STTM"):
        width = _tmem_width(modifiers)
        return width, (width,)
    if root in ("LDSM", "STSM"):
        width = int(modifiers[-1]) if modifiers and modifiers[-1] in ("2", "4") else 1
        width *= 2 if any(each.startswith("MT1616") or each == "M1616" for each in modifiers) else 1
        return width, (width,)
    known = classify(opcode)
    if known is not None and known.bytes is not None:
        width = max(1, known.bytes // 4)
        return width, (width,)
    if root in ("LDC", "ULDC", "LDCU", "SYNCS", "STS", "LDTM", "UMOV", "MOV", "R2UR"):
        width = next((int(each) // 32 for each in modifiers if each in ("64", "128", "256")), 1)
        return width, (width if root != "SYNCS" or "EXCH" in modifiers else 1,)
    if _TEXTURE.match(root):
        return 2, (2,)
    if root in ("CS2R", "CS2UR"):
        return (1 if "32" in modifiers else 2), (1,)
    if root in ("LEPC", "BRX", "JMX", "RET", "CALL", "JMXU", "BRXU", "GETLMEMBASE", "SETLMEMBASE"):
        return 2, (2,)
    if root in ("IMAD", "UIMAD") and "WIDE" in modifiers:
        return 2, (1, 1, 2)
    return _arithmetic_widths(root, modifiers)


def _arithmetic_widths(root: str, modifiers: list[str]) -> tuple[int, tuple[int, ...]]:
    if root in ("DADD", "DMUL", "DFMA", "DMNMX", "DSETP", "DSET"):
        return 2, (2,)
    if root in ("FADD2", "FMUL2", "FFMA2"):
        return 2, (2,)
    if root in ("I2F", "UI2F"):
        source = 2 if {"S64", "U64"} & {*modifiers} else 1
        return (2 if "F64" in modifiers else 1), (source,)
    if root in ("F2I", "UF2I"):
        wide = 2 if {"S64", "U64"} & {*modifiers} else 1
        return wide, (2 if "F64" in modifiers else 1,)
    if root == "F2F":  # F2F.TO.FROM
        types = [each for each in modifiers if re.fullmatch(r"B?F\d+", each)]
        to, operand = [*types, "F32", "F32"][:2]
        return (2 if to == "F64" else 1), (2 if operand == "F64" else 1,)
    if root == "FRND":
        width = 2 if "F64" in modifiers else 1
        return width, (width,)
    if root not in _FUNNEL and {"64", "U64", "S64"} & {*modifiers}:
        return 2, (2,)
    return 1, (1,)


def tile(modifiers: Sequence[str]) -> tuple[int, int, int]:
    """Rows, columns and depth of the matrices of a tensor core's instruction."""
    for modifier in modifiers:
        if found := _DIGITS.match(modifier):
            if found[2]:
                return int(found[1]), int(found[2]), int(found[3])
            if found[1].startswith("168") and len(found[1]) > 3:
                return 16, 8, int(found[1][3:])
            if found[1].startswith("88"):
                return 8, 8, int(found[1][2:])
            break
    return 16, 8, 16


def _mma_widths(kind: str, modifiers: list[str]) -> tuple[int, tuple[int, ...]]:
    """Registers per lane: elements of the tile, divided by 32 lanes."""
    m, n, k = tile(modifiers)
    default = {"H": 16, "D": 64, "I": 8, "B": 1, "Q": 8, "O": 4}[kind]
    bits = [_ELEMENT_BITS[each] for each in modifiers if each in _ELEMENT_BITS]
    a, b = (bits[0], bits[-1]) if bits else (default, default)
    sum_bits = 64 if kind == "D" else 16 if kind == "H" and "F32" not in modifiers else 32
    total = max(1, m * n * sum_bits // 1024)
    sparse = 2 if "SP" in modifiers else 1
    left = max(1, m * k * a // 1024 // sparse)
    return total, (left, max(1, k * n * b // 1024), total, 1)


def _group_mma_widths(root: str, modifiers: list[str]) -> tuple[int, tuple[int, ...]]:
    """A warpgroup has 128 lanes; A is 64 rows of 32 bytes, in registers or shared memory."""
    n = next(
        (int(found[2]) for each in modifiers if (found := _DIGITS.match(each)) and found[2]), 8
    )
    bits = 16 if root[0] in "HQ" and "F32" not in modifiers else 32
    total = max(1, 64 * n * bits // 4096)
    return total, (4, total, total, 1)


def _tmem_width(modifiers: list[str]) -> int:
    each = 1
    repeat = 1
    for modifier in modifiers:
        if found := _TMEM_SHAPE.match(modifier):
            each = max(1, int(found[1]) * int(found[2]) // 1024)
        elif re.fullmatch(r"x\d+", modifier):
            repeat = int(modifier[1:])
    return each * repeat


@lru_cache(maxsize=1 << 16)
def _operand(text: str) -> _Operand:
    registers = []
    for found in _REGISTER.finditer(text):
        first = resources.FIRST[found[1]]
        bracket = _BRACKET.search(text, 0, found.start())
        place = "=" if bracket is None else bracket[1]
        every = found[2] == "R"
        index = -1 if found[2] in "ZTR" else int(found[2])
        registers.append(_Register(first, index, every, found[3] or "", place))
    bare = text.lstrip("-!|~")
    plain = _REGISTER.match(bare) is not None and "[" not in text
    return _Operand(
        tuple(registers),
        registers[0].first if plain else None,
        text.startswith("!"),
        "[" in text and not bare.startswith(("c[", "cx[", "gdesc[", "idesc[")),
    )


class Span(NamedTuple):
    """Consecutive registers of a class, or one predicate, barrier or scoreboard."""

    first: int
    number: int
    length: int
    role: Role = Role.DATA


class Decoded(NamedTuple):
    """An instruction's text with its operands as spans."""

    opcode: str
    guard: str
    defs: list[Span]
    uses: list[Span]
    operands: str

    @property
    def root(self) -> str:
        """Opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def is_conditional(self) -> bool:
        """Whether the predicate may be false."""
        return self.guard not in ("", "PT", "UPT")


def parse_operation(text: str) -> Operation:
    """The operation of an instruction's text, as nvdisasm prints it. Raises ValueError."""
    decoded = decode(text)
    flow, falls, target = transfer(decoded)
    defs = (each for part in decoded.defs for each in resources.span(*part[:3]))
    uses = (Use(each, part.role) for part in decoded.uses for each in resources.span(*part[:3]))
    return Operation(
        decoded.opcode,
        decoded.guard,
        decoded.is_conditional,
        tuple(dict.fromkeys(defs)),
        tuple(dict.fromkeys(uses)),
        flow,
        falls,
        target,
        _waits(decoded.root, decoded.operands),
    )


def transfer(decoded: Decoded) -> tuple[Flow, bool, int | None]:
    """Effect on the control flow, whether the next instruction may follow, and the target."""
    flow, target = _flow(decoded.root, decoded.operands)
    falls = decoded.is_conditional or flow in (Flow.NONE, Flow.CALL) or _may_fall(decoded)
    return flow, falls, target


def split(text: str) -> tuple[str, str, str]:
    """Guard, opcode with modifiers, and operands of an instruction's text. Raises ValueError."""
    found = _TEXT.match(text)
    if found is None:
        raise ValueError(f"no instruction: {text[:80]!r}")
    return found[1] or "", found[2], found[3]


def decode(text: str) -> Decoded:
    """Destinations and sources of an instruction's text. Raises ValueError."""
    guard, opcode, rest = split(text)
    shape = _shape(opcode)
    root = opcode.partition(".")[0]
    words = [each.strip() for each in rest.split(",")] if rest else []
    operands = [_operand(each) for each in words]
    count = _count_destinations(root, shape, operands)
    defs: list[Span] = []
    uses: list[Span] = []
    if guard:
        uses += (Span(e.first, e.number, 1, Role.GUARD) for e in _registers(_operand(guard)))
    for operand in operands[:count]:
        _add_defs(defs, operand, shape, words)
    position = 0
    sources = _texture_widths(words) if _TEXTURE.match(root) else shape.sources
    for operand, word in zip(operands[count:], words[count:], strict=True):
        width = sources[min(position, len(sources) - 1)]
        if root in _BLOCKS and operand.is_address:
            width = _block_width(opcode, root) if operand is operands[0] else 2
        if word.startswith("gdesc"):
            # one operand stands for the descriptors of A and B
            width = 4 if position == 0 and _GROUP_MMA.match(root) else 2
        if word.startswith("gsb") and root != "WARPGROUP":
            defs += (Span(each.first, each.number, 1) for each in _registers(operand))
        elif operand.registers[:1] and operand.registers[0].every:
            uses += _masked(operand.registers[0].first, words)
        else:
            uses += _source_spans(operand, shape, width, root)
        position += not operand.is_address
    return Decoded(opcode, guard, defs, uses, rest)


def _block_width(opcode: str, root: str) -> int:
    found = _DIMENSIONS.search(opcode)
    return _BLOCKS[root] + (int(found[1]) if found else 0)


def _texture_widths(words: list[str]) -> tuple[int, ...]:
    """Coordinates by the kind of texture, then single registers: level, offset."""
    kind = next((each for each in reversed(words) if each.endswith(("D", "CUBE"))), "2D")
    size = {"1D": 1, "2D": 2, "3D": 3, "CUBE": 3}.get(kind.rpartition("_")[2], 2)
    return size + kind.startswith("ARRAY"), 1


def _registers(operand: _Operand) -> list[_Register]:
    return [each for each in operand.registers if each.number >= 0]


def _count_destinations(root: str, shape: _Shape, operands: list[_Operand]) -> int:
    """How many leading operands are written."""
    kinds = [operand.kind for operand in operands]
    rule = shape.destinations
    if rule == "none" or not operands:
        return 0
    if rule == "before_address":
        return next((index for index, kind in enumerate(kinds) if kind is None), 1)
    if rule == "two":
        registers = [index for index, kind in enumerate(kinds) if kind in (R, UR)]
        return registers[1] + 1 if len(registers) > 1 else 1
    if rule == "setp" and kinds[0] in (P, UP):
        return 2 if root not in _ONE_PREDICATE and kinds[1:2] in ([P], [UP]) else 1
    if kinds[0] in (P, UP):
        register = next((at for at, kind in enumerate(kinds) if kind not in (P, UP)), 0)
        is_written = register and kinds[register] in (R, UR) and not operands[0].registers[0].every
        return register + 1 if is_written else 1
    most = 2 if root in _ONE_PREDICATE else 3
    count = 1
    while count < min(len(operands), most) and _is_carry(operands[0], operands[count]):
        count += 1
    return count


def _is_carry(destination: _Operand, operand: _Operand) -> bool:
    """Whether a predicate behind a register is written, too."""
    return (
        destination.kind in (R, UR)
        and operand.kind in (P, UP)
        and not operand.negated
        and not operand.registers[0].every
    )


def _add_defs(defs: list[Span], operand: _Operand, shape: _Shape, words: list[str]) -> None:
    if operand.kind is None:
        return
    register = operand.registers[0]
    if register.every:
        defs += _masked(register.first, words)
    elif register.number >= 0:
        width = shape.width if register.first in (R, UR) else 1
        defs.append(Span(register.first, register.number, width))


def _masked(first: int, words: list[str]) -> list[Span]:
    """Predicates that R2P writes, or P2R reads: bits of the last operand."""
    mask = int(words[-1], 16) if _HEX.fullmatch(words[-1]) else 0x7F
    return [Span(first, bit, 1) for bit in range(7) if mask >> bit & 1]


def _source_spans(operand: _Operand, shape: _Shape, width: int, root: str) -> Iterator[Span]:
    for register in _registers(operand):
        role = Role.DATA if register.place == "=" else Role.ADDRESS
        count = _source_width(register, operand, shape, width, root)
        yield Span(register.first, register.number, count, role)


def _source_width(
    register: _Register, operand: _Operand, shape: _Shape, width: int, root: str
) -> int:
    if register.first not in (R, UR):
        return 1
    if register.suffix:
        return 2 if register.suffix == ".64" else 1
    if register.place in ("=", "gdesc"):
        return width
    if register.place in ("desc", "cx"):
        return 2
    if register.place:  # c[0x0][R4], tmem[UR4]
        return 1
    if register.first == R:
        return shape.address
    if root in _BLOCKS:
        return width
    # [R2.U32+UR4], [R2.64+UR4], [UR4]: the uniform registers are the 64-bit base
    beside = [each for each in operand.registers if each.first == R and each.number >= 0]
    return 2 if root in _WIDE_UNIFORM and (not beside or beside[0].suffix) else 1


#: Bulk operations, with the uniform registers at their first address, without coordinates: where
#: in shared memory, and the mbarrier. The second address is in global memory.
_BLOCKS: Final = {"UTMALDG": 2, "UTMASTG": 1, "UTMAREDG": 1, "UTMAPF": 1, "UBLKCP": 2, "UBLKRED": 2}
_DIMENSIONS = re.compile(r"\.([1-5])D(?![A-Za-z0-9])")


def _flow(root: str, operands: str) -> tuple[Flow, int | None]:
    flow = FLOWS.get(root, Flow.NONE)
    if flow not in (Flow.BRANCH, Flow.CALL):
        return flow, None
    if root == "WARPSYNC" and not _TARGET.search(operands):
        return Flow.NONE, None
    if flow == Flow.CALL and _CALL_REGISTER.search(operands):
        return flow, None
    found = _TARGET.search(operands)
    return flow, int(found[1], 16) if found else None


def _may_fall(decoded: Decoded) -> bool:
    """Whether a branch or exit has a condition besides its guard: BRA P1, BRA.DIV UR4, EXIT P0."""
    return decoded.root in ("BRA", "EXIT", "WARPSYNC") and bool(
        decoded.uses or {"ANY", "DIV"} & {*decoded.opcode.split(".")}
    )


FLOWS: Final = {
    "WARPSYNC": Flow.BRANCH,
    "BRA": Flow.BRANCH, "JMP": Flow.BRANCH, "CALL": Flow.CALL, "RET": Flow.RETURN,
    "EXIT": Flow.EXIT, "KILL": Flow.EXIT, "BRX": Flow.INDIRECT, "BRXU": Flow.INDIRECT,
    "JMX": Flow.INDIRECT, "JMXU": Flow.INDIRECT,
}  # fmt: skip


def _waits(root: str, operands: str) -> tuple[tuple[int, int], ...]:
    """DEPBAR.LE SB0, 0x1 waits until at most one operation of SB0 is open."""
    if root not in ("DEPBAR", "WARPGROUP"):
        return ()
    limits = _HEX.findall(operands)
    limit = int(limits[-1], 16) if limits else 0
    return tuple(
        (register.first + register.number, limit)
        for register in _registers(_operand(operands))
        if register.first in (SB, GSB)
    )
