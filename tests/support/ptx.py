"""Interprets PTX text of inline assembly: lanes of warps advance one by one, in any order.

Only what the PTX of pasta/backends/nvidia uses. Memory is sequentially consistent.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_LINE = re.compile(r"(?:@(!?)(\w+)\s+)?([\w.]+)\s*(.*?);?$")
_COLLECTIVE = ("shfl", "vote", "match", "bar", "activemask")


#: Executes an instruction for a lane of a machine.
Execute = Callable[["Lane", "Machine"], None]


class Memory:
    """Bytes at addresses; an access outside every piece is an error."""

    def __init__(self) -> None:
        self._pieces: list[tuple[int, bytearray]] = []

    def add(self, address: int, content: bytes | bytearray) -> bytearray:
        piece = bytearray(content)
        self._pieces.append((address, piece))
        return piece

    def _find(self, address: int, size: int) -> tuple[bytearray, int]:
        assert address % size == 0, f"{address:#x} is not aligned to {size}"
        for start, piece in self._pieces:
            if start <= address and address + size <= start + len(piece):
                return piece, address - start
        raise AssertionError(f"nothing is at {address:#x}")

    def load(self, address: int, size: int) -> int:
        piece, at = self._find(address, size)
        return int.from_bytes(piece[at : at + size], "little")

    def store(self, address: int, size: int, value: int) -> None:
        piece, at = self._find(address, size)
        piece[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")


@dataclass
class Instruction:
    operation: str
    operands: list[str]
    predicate: str = ""
    negated: bool = False
    blocks: tuple[int, ...] = ()  # numbers of those around it, the outermost first


class Program:
    """Parsed text; `$N` are a lane's initial registers. `widths`: bits of those it writes."""

    def __init__(self, text: str, widths: Mapping[str, int] | None = None) -> None:
        self.labels: dict[tuple[tuple[int, ...], str], int] = {}  # by blocks, too
        self.code: list[Instruction] = []
        self.widths = dict(widths or {})
        blocks: tuple[int, ...] = ()
        for number, raw in enumerate(text.replace("${:uid}", "").splitlines()):
            line = raw.strip()
            if line == "{":
                blocks = (*blocks, number)
            elif line == "}":
                blocks = blocks[:-1]
            elif not line:
                continue
            elif line.startswith(".reg"):
                kind, names = line[5:].rstrip(";").split(" ", 1)
                width = {".pred": 1, ".b32": 32, ".b64": 64}[kind]
                self.widths.update({name.strip(): width for name in names.split(",")})
            elif line.endswith(":"):
                assert (blocks, line[:-1]) not in self.labels, line
                self.labels[blocks, line[:-1]] = len(self.code)
            else:
                match = _LINE.match(line)
                assert match, line
                operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", match[4])
                self.code.append(
                    Instruction(match[3], operands, match[2] or "", bool(match[1]), blocks)
                )
        self.execute = [self._compiled(at, each) for at, each in enumerate(self.code)]

    def _compiled(self, at: int, instruction: Instruction) -> Execute:
        """A function that executes an instruction for a lane: interpreting its text each time would
        take most of the time."""
        lines = ["registers, special, memory = lane.registers, lane.special, machine.memory"]
        if instruction.predicate:
            skipped = "" if instruction.negated else "not "
            lines += [
                f"if {skipped}registers[{instruction.predicate!r}]:",
                f"    lane.at = {at + 1}",
                "    return",
            ]
        if instruction.operation == "bra":
            lines.append(f"lane.at = {self._target(instruction)}")
        else:
            lines += self._lines(at, instruction.operation.split("."), instruction.operands)
        text = "def execute(lane, machine):\n" + "".join(f"    {line}\n" for line in lines)
        scope: dict[str, Any] = {"signed": _signed, "divided": _divided}
        exec(text, scope)
        execute: Execute = scope["execute"]
        return execute

    def _target(self, branch: Instruction) -> int:
        """Where a branch leads: to the label in the innermost of its blocks that has one."""
        depths = range(len(branch.blocks), -1, -1)
        labels = ((branch.blocks[:depth], branch.operands[0]) for depth in depths)
        return next(self.labels[label] for label in labels if label in self.labels)

    def _lines(self, at: int, parts: list[str], operands: list[str]) -> list[str]:
        """Python statements of an instruction without its predicate."""
        operation, kind, forward = parts[0], parts[-1], f"lane.at = {at + 1}"
        if operation in _COLLECTIVE:
            given = {"shfl": ("value", "lane"), "vote": ("value",), "match": ("value",)}
            taken = zip(given.get(operation, ()), operands[1:], strict=False)
            values = ", ".join(f"{name!r}: {_value(each)}" for name, each in taken)
            mask = None if operation == "activemask" else _value(operands[-1])
            return [f"lane.given = {{{values}}}", f"lane.waits = ({at}, {mask})"]
        if operation == "nanosleep":
            return ["machine.idle()", forward]
        if operation == "fence":
            return [forward]
        bytes = int(kind[1:]) // 8 if re.fullmatch(r"[bus]\d+", kind) else 0
        if operation in ("ld", "st"):
            where, pieces = operands[::-1] if operation == "ld" else operands
            names = _pieces(pieces)
            lines = [
                f"address = {_address(where)}",
                f"assert address % {len(names) * bytes} == 0, 'a vector is not aligned'",
            ]
            for i, each in enumerate(names):
                place = f"address + {i * bytes}, {bytes}"
                lines.append(
                    self._assigned(each, f"memory.load({place})")
                    if operation == "ld"
                    else f"memory.store({place}, {_value(each)})"
                )
            return [*lines, forward]
        if operation in ("atom", "red"):
            returns = operation == "atom"
            given = [_value(each) for each in operands[1 + returns :]]
            new = {
                "add": lambda: f"old + {given[0]}",
                "or": lambda: f"old | {given[0]}",
                "cas": lambda: f"{given[1]} if old == {given[0]} else old",
            }[next(part for part in parts if part in ("add", "or", "cas"))]()
            return [
                f"address = {_address(operands[returns])}",
                f"old = memory.load(address, {bytes})",
                f"memory.store(address, {bytes}, {new})",
                *([self._assigned(operands[0], "old")] if returns else []),
                forward,
            ]
        if operation == "mov" and operands[0].startswith("{"):
            low, high = _pieces(operands[0])
            return [
                f"whole = {_value(operands[1])}",
                self._assigned(low, "whole"),
                self._assigned(high, "whole >> 32"),
                forward,
            ]
        if operation == "mov" and operands[1].startswith("{"):
            low, high = map(_value, _pieces(operands[1]))
            found = f"{low} & 0xFFFFFFFF | {high} << 32"
        else:
            found = _result(parts, [_value(each) for each in operands[1:]])
        return [self._assigned(operands[0], found), forward]

    def _assigned(self, name: str, value: str) -> str:
        mask = (1 << self.widths[name]) - 1
        return f"registers[{name!r}] = ({value}) & {mask:#x}"


@dataclass(eq=False)
class Lane:
    number: int
    registers: dict[str, int]
    special: Mapping[str, int]
    at: int = 0
    #: Instruction, lanes; for activemask, the lanes that have not ended yet.
    waits: tuple[int, int | None] | None = None
    #: A lane that had not come there when this one was looked at.
    before: Lane | None = None
    given: dict[str, Any] = field(default_factory=dict)


class Machine:
    """Lanes of any number of warps; `idle` runs whenever a lane sleeps."""

    def __init__(self, program: Program, memory: Memory, idle: Callable[[], None]) -> None:
        self.program, self.memory, self.idle = program, memory, idle
        self.clock = 0

    def run(self, warps: Sequence[Sequence[Lane]], choose: random.Random) -> None:
        """Runs until all lanes have ended."""
        execute, end = self.program.execute, len(self.program.code)
        left = [lane for warp in warps for lane in warp]
        warp_of = {id(lane): warp for warp in warps for lane in warp}
        steps = 0
        while left:
            lane = choose.choice(left)
            for _ in range(choose.randrange(1, 40)):
                if lane.at == end:
                    break
                if lane.waits is None:
                    execute[lane.at](lane, self)
                if lane.waits is not None and not self._meet(lane, warp_of[id(lane)]):
                    break
            if lane.at == end:
                left.remove(lane)
            steps += 1
            assert steps < 2_000_000, "the warps do not come to an end"

    # ---- operations of a warp ----

    def _meet(self, lane: Lane, warp: Sequence[Lane]) -> bool:
        if lane.before is not None and lane.before.waits != lane.waits:
            return False
        here, mask = lane.waits  # type: ignore[misc]
        if mask is None:
            left = [each for each in warp if each.at != len(self.program.code)]
            if any(each.waits != (here, None) for each in left):
                return False
            active = sum(1 << each.number for each in left)
            for each in left:
                self._set(each, self.program.code[here].operands[0], active)
                each.waits = None
                each.at += 1
            return True
        assert mask >> lane.number & 1, "a lane is not in its own mask"
        others = [each for each in warp if mask >> each.number & 1]
        assert len(others) == bin(mask).count("1"), "a lane of the mask is not there"
        lane.before = next((each for each in others if each.waits != lane.waits), None)
        if lane.before is not None:
            return False
        instruction = self.program.code[here]
        name = instruction.operation
        for each in others:
            if name.startswith("shfl"):
                source = next(o for o in others if o.number == each.given["lane"] % 32)
                self._set(each, instruction.operands[0], source.given["value"])
            elif name.startswith("vote"):
                true = [o for o in others if o.given["value"]]
                found = {
                    "all": int(len(true) == len(others)),
                    "any": int(bool(true)),
                    "ballot": sum(1 << o.number for o in true),
                }[name.split(".")[2]]
                self._set(each, instruction.operands[0], found)
            elif name.startswith("match"):
                same = [o for o in others if o.given["value"] == each.given["value"]]
                self._set(each, instruction.operands[0], sum(1 << o.number for o in same))
        for each in others:
            each.waits = each.before = None
            each.at += 1
        return True

    # ---- operations of one lane ----

    def _set(self, lane: Lane, name: str, value: int) -> None:
        lane.registers[name] = value % (1 << self.program.widths[name])

    def tick(self) -> int:
        self.clock += 1
        return self.clock


def _value(text: str) -> str:
    """A Python expression for the value of an operand."""
    if text.startswith("%"):
        return "machine.tick()" if text == "%globaltimer" else f"special[{text[1:]!r}]"
    if re.fullmatch(r"0x[0-9a-f]+|[-+0-9]+", text):
        return f"({text})"
    return f"registers[{text!r}]"


def _address(text: str) -> str:
    base, _, offset = text.strip("[]").partition("+")
    return f"{_value(base)} + {offset or 0}"


def _pieces(text: str) -> list[str]:
    """Operands of a vector."""
    return [each.strip() for each in text.strip("{}").split(",")]


def _signed(value: int, bits: int) -> int:
    value %= 1 << bits
    return value - (1 << bits) if value >> (bits - 1) else value


def _divided(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _result(parts: list[str], given: list[str]) -> str:
    """A Python expression for what an operation on values returns."""
    operation, kind = parts[0], parts[-1]
    if operation == "selp":
        return f"{given[0]} if {given[2]} else {given[1]}"
    bits = int(kind[1:])
    a, b = (
        f"signed({each}, {bits})" if kind[0] == "s" else f"({each} & {(1 << bits) - 1:#x})"
        for each in (*given, "0")[:2]
    )
    if operation == "setp":
        compared = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
        found = f"int({a} {compared[parts[1]]} {b})"
        combined = {"and": "&", "or": "|"}.get(parts[2])
        return f"{found} {combined} {given[2]}" if combined else found
    if operation in ("mul", "mad"):
        assert "wide" in parts or "lo" in parts
        return f"{a} * {b}" + (f" + {given[2]}" if operation == "mad" else "")
    simple: dict[str, Callable[[], str]] = {
        "mov": lambda: a,
        "cvt": lambda: a,
        "add": lambda: f"{a} + {b}",
        "sub": lambda: f"{a} - {b}",
        "and": lambda: f"{a} & {b}",
        "or": lambda: f"{a} | {b}",
        "shl": lambda: f"{a} << {given[1]} if {given[1]} < {bits} else 0",
        "shr": lambda: f"{a} >> {given[1]}",
        "xor": lambda: f"{a} ^ {b}",
        "neg": lambda: f"-{a}",
        "not": lambda: f"~{a}",
        "div": lambda: f"divided({a}, {b})",
        "bfind": lambda: (
            f"{bits} - {a}.bit_length()" if "shiftamt" in parts else f"{a}.bit_length() - 1"
        ),
        "brev": lambda: f"int(format({a}, '0{bits}b')[::-1], 2)",
        "clz": lambda: f"{bits} - {a}.bit_length()",
        "popc": lambda: f"{a}.bit_count()",
    }
    return simple[operation]()


def lanes_of(mask: int) -> Iterator[int]:
    return (lane for lane in range(32) if mask >> lane & 1)
