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


class Program:
    """Parsed text; `$N` are a lane's initial registers."""

    def __init__(self, text: str) -> None:
        self.labels: dict[str, int] = {}
        self.code: list[Instruction] = []
        self.widths: dict[str, int] = {}
        for raw in text.replace("${:uid}", "").splitlines():
            line = raw.strip()
            if line in "{}":
                continue
            if line.startswith(".reg"):
                kind, names = line[5:].rstrip(";").split(" ", 1)
                width = {".pred": 1, ".b32": 32, ".b64": 64}[kind]
                self.widths.update({name.strip(): width for name in names.split(",")})
            elif line.endswith(":"):
                self.labels[line[:-1]] = len(self.code)
            else:
                match = _LINE.match(line)
                assert match, line
                operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", match[4])
                self.code.append(Instruction(match[3], operands, match[2] or "", bool(match[1])))


@dataclass(eq=False)
class Lane:
    number: int
    registers: dict[str, int]
    special: Mapping[str, int]
    at: int = 0
    #: Instruction, lanes; for activemask, the lanes that have not ended yet.
    waits: tuple[int, int | None] | None = None
    given: dict[str, Any] = field(default_factory=dict)


class Machine:
    """Lanes of any number of warps; `idle` runs whenever a lane sleeps."""

    def __init__(self, program: Program, memory: Memory, idle: Callable[[], None]) -> None:
        self.program, self.memory, self.idle = program, memory, idle
        self.clock = 0

    def run(self, warps: Sequence[Sequence[Lane]], choose: random.Random) -> None:
        """Runs until all lanes have ended."""
        end = len(self.program.code)
        left = [lane for warp in warps for lane in warp]
        warp_of = {id(lane): warp for warp in warps for lane in warp}
        steps = 0
        while left:
            lane = choose.choice(left)
            for _ in range(choose.randrange(1, 40)):
                if lane.at == end:
                    break
                if lane.waits is None:
                    self._step(lane)
                if lane.waits is not None and not self._meet(lane, warp_of[id(lane)]):
                    break
            if lane.at == end:
                left.remove(lane)
            steps += 1
            assert steps < 2_000_000, "the warps do not come to an end"

    # ---- operations of a warp ----

    def _meet(self, lane: Lane, warp: Sequence[Lane]) -> bool:
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
        if any(each.waits != (here, mask) for each in others):
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
            each.waits = None
            each.at += 1
        return True

    # ---- operations of one lane ----

    def _width(self, name: str) -> int:
        return self.program.widths[name]

    def _set(self, lane: Lane, name: str, value: int) -> None:
        lane.registers[name] = value % (1 << self._width(name))

    def _value(self, lane: Lane, text: str) -> int:
        if text.startswith("%"):
            if text == "%globaltimer":
                self.clock += 1
                return self.clock
            return lane.special[text[1:]]
        if text in lane.registers:
            return lane.registers[text]
        assert re.fullmatch(r"0x[0-9a-f]+|[-+0-9]+", text), f"{text} was never set"
        return int(eval(text))

    def _address(self, lane: Lane, text: str) -> int:
        base, _, offset = text.strip("[]").partition("+")
        return self._value(lane, base) + (int(eval(offset)) if offset else 0)

    def _step(self, lane: Lane) -> None:
        instruction = self.program.code[lane.at]
        if instruction.predicate:
            taken = bool(lane.registers[instruction.predicate]) != instruction.negated
            if not taken:
                lane.at += 1
                return
        name, operands = instruction.operation, instruction.operands
        if name.split(".")[0] in _COLLECTIVE:
            lane.given = {}
            if name.startswith("shfl"):
                lane.given = {
                    "value": self._value(lane, operands[1]), "lane": self._value(lane, operands[2])
                }  # fmt: skip
            elif name.startswith(("vote", "match")):
                lane.given = {"value": self._value(lane, operands[1])}
            mask = None if name.startswith("activemask") else self._value(lane, operands[-1])
            lane.waits = (lane.at, mask)
            return
        if name == "bra":
            lane.at = self.program.labels[operands[0]]
            return
        self._execute(lane, name, operands)
        lane.at += 1

    def _execute(self, lane: Lane, name: str, operands: list[str]) -> None:
        parts = name.split(".")
        kind = parts[-1]
        bits = int(kind[1:]) if re.fullmatch(r"[bus]\d+", kind) else 0
        if parts[0] == "ld":
            address = self._address(lane, operands[1])
            names = [each.strip() for each in operands[0].strip("{}").split(",")]
            assert address % (len(names) * bits // 8) == 0, "a vector is not aligned"
            for i, each in enumerate(names):
                self._set(lane, each, self.memory.load(address + i * bits // 8, bits // 8))
        elif parts[0] == "st":
            address = self._address(lane, operands[0])
            values = [each.strip() for each in operands[1].strip("{}").split(",")]
            assert address % (len(values) * bits // 8) == 0, "a vector is not aligned"
            for i, value in enumerate(values):
                self.memory.store(address + i * bits // 8, bits // 8, self._value(lane, value))
        elif parts[0] in ("atom", "red"):
            self._atomic(lane, parts, operands, bits // 8)
        elif parts[0] == "mov" and operands[0].startswith("{"):
            low, high = (each.strip() for each in operands[0].strip("{}").split(","))
            whole = self._value(lane, operands[1])
            self._set(lane, low, whole)
            self._set(lane, high, whole >> 32)
        elif parts[0] == "mov" and operands[1].startswith("{"):
            low, high = (
                self._value(lane, each.strip()) for each in operands[1].strip("{}").split(",")
            )
            self._set(lane, operands[0], low % (1 << 32) | high << 32)
        elif parts[0] == "nanosleep":
            self.idle()
        elif parts[0] != "fence":
            given = [self._value(lane, each) for each in operands[1:]]
            self._set(lane, operands[0], self._result(parts, given))

    def _atomic(self, lane: Lane, parts: list[str], operands: list[str], bytes: int) -> None:
        returns = parts[0] == "atom"
        address = self._address(lane, operands[returns])
        given = [self._value(lane, each) for each in operands[1 + returns :]]
        old = self.memory.load(address, bytes)
        new = {
            "add": lambda: old + given[0],
            "or": lambda: old | given[0],
            "cas": lambda: given[1] if old == given[0] else old,
        }[next(part for part in parts if part in ("add", "or", "cas"))]()
        self.memory.store(address, bytes, new)
        if returns:
            self._set(lane, operands[0], old)

    @staticmethod
    def _result(parts: list[str], given: list[int]) -> int:
        operation, kind = parts[0], parts[-1]
        if operation == "selp":
            return given[0] if given[2] else given[1]
        bits = int(kind[1:])

        def typed(value: int) -> int:
            value %= 1 << bits
            return value - (1 << bits) if kind[0] == "s" and value >> (bits - 1) else value

        wide = "wide" in parts
        a = typed(given[0])
        b = typed(given[1]) if len(given) > 1 else 0
        if operation == "setp":
            compared = {
                "eq": a == b,
                "ne": a != b,
                "lt": a < b,
                "le": a <= b,
                "gt": a > b,
                "ge": a >= b,
            }
            combined = {"and": lambda a, b: a & b, "or": lambda a, b: a | b}
            found = int(compared[parts[1]])
            return combined[parts[2]](found, given[2]) if parts[2] in combined else found
        if operation in ("mul", "mad"):
            assert wide or "lo" in parts
            return a * b + (given[2] if operation == "mad" else 0)
        if operation == "div":
            return int(abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)
        simple: dict[str, Callable[[], int]] = {
            "mov": lambda: a,
            "cvt": lambda: a,
            "add": lambda: a + b,
            "sub": lambda: a - b,
            "and": lambda: a & b,
            "or": lambda: a | b,
            "shl": lambda: a << given[1] if given[1] < bits else 0,
            "shr": lambda: a >> given[1],
            "xor": lambda: a ^ b,
            "neg": lambda: -a,
            "not": lambda: ~a,
            "bfind": lambda: bits - a.bit_length() if "shiftamt" in parts else a.bit_length() - 1,
            "brev": lambda: int(f"{a:0{bits}b}"[::-1], 2),
            "clz": lambda: bits - a.bit_length(),
            "popc": lambda: bin(a).count("1"),
        }
        return simple[operation]()


def lanes_of(mask: int) -> Iterator[int]:
    return (lane for lane in range(32) if mask >> lane & 1)
