"""Recorded disassembly: cubins of our own kernels in tests/data/sass, and their listings.

    python -m tests.support.sass CUBIN...

writes the listing beside each cubin, for which it needs nvdisasm. Tests read the cubins with
our own code and take the texts of instructions from the listings.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pasta.sass import nvdisasm
from pasta.sass.control import SCOREBOARDS, decode_control
from pasta.sass.cubin import Cubin
from pasta.sass.disassembler import Code, read_code
from pasta.sass.forms import build_forms
from pasta.sass.patterns import CONTROL_SHIFT, without_patterns
from tests.support.places import DATA

LISTINGS = DATA / "sass"
_LINE = re.compile(r"  [0-9a-f]{4,} \S+ W\S R\S [Y-] \d\d(?:  (.*))?$")


def write_listing(path: Path) -> None:
    """Write the listing of a cubin.

    A line has the offset, scoreboards waited for, write and read scoreboard, yield, stall cycles,
    and the text.
    """
    (codes,) = read_code([(Cubin(path.read_bytes()), None)])
    lines = []
    for name, code in codes.items():
        lines.append(f"{name}:")
        fields = decode_control(code.control)
        for index in range(len(code.form)):
            lines.append(
                f"  {16 * index:04x} {_control(fields, index)}  {code.text(index)}".rstrip()
            )
    path.with_suffix(".sass").write_text("\n".join(lines) + "\n")


def _control(fields: Any, index: int) -> str:
    mask = int(fields.wait[index])
    waits = "".join(str(bit) if mask >> bit & 1 else "-" for bit in range(SCOREBOARDS))
    write, read = (
        str(each[index]) if each[index] < SCOREBOARDS else "-"
        for each in (fields.write, fields.read)
    )
    yields = "Y" if fields.yields[index] else "-"
    return f"{waits} W{write} R{read} {yields} {int(fields.stall[index]):02d}"


def read_listing(path: Path) -> dict[str, list[str]]:
    """Texts of the instructions of each function."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in path.read_text().splitlines():
        if line.endswith(":") and not line.startswith(" "):
            name = line[:-1]
            found[name] = []
        elif match := _LINE.match(line):
            found[name].append(match[1] or "")
    return found


@lru_cache(maxsize=1)
def _recorded() -> dict[tuple[int, int, int], str]:
    """Texts by architecture and words without control bits."""
    found = {}
    for path in sorted(LISTINGS.glob("*.cubin")):
        cubin = Cubin(path.read_bytes())
        for name, texts in read_listing(path.with_suffix(".sass")).items():
            section = cubin.code(name)
            assert section is not None
            for (low, high), text in zip(section.words.tolist(), texts, strict=True):
                found[cubin.architecture, low, high & (1 << CONTROL_SHIFT) - 1] = text
    return found


def play_recorded(architecture: int, words: Any, end: float) -> Iterator[list[str]]:
    """Stands in for nvdisasm.list_instructions; what is not recorded is no instruction."""
    known = _recorded()
    mask = (1 << CONTROL_SHIFT) - 1
    yield [known.get((architecture, low, high & mask), "") for low, high in words.tolist()]


@lru_cache(maxsize=8)
def recorded_code(module: str) -> dict[str, Code]:
    """Functions of a recorded module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvdisasm, "list_instructions", play_recorded)
        (codes,) = read_code([(Cubin((LISTINGS / f"{module}.cubin").read_bytes()), None)])
    return codes


def code_of(
    *texts: str,
    control: Sequence[int] | None = None,
    symbols: dict[int, str] | None = None,
    references: dict[int, str] | None = None,
    jumps: dict[int, tuple[int, ...]] | None = None,
) -> Code:
    """A function of instructions, with scoreboards as `bits` makes them."""
    return Code(
        "k",
        90,
        build_forms(without_patterns(np.zeros((len(texts), 2), np.uint64), texts)),
        np.arange(len(texts), dtype=np.int32),
        np.array([bits()] * len(texts) if control is None else control, np.uint32),
        symbols or {},
        references or {},
        jumps or {},
    )


def bits(*, stall: int = 1, write: int = 7, read: int = 7, wait: Sequence[int] = ()) -> int:
    """Control bits."""
    mask = sum(1 << board for board in wait)
    return stall | write << 5 | read << 8 | mask << 11


def make_cubin(
    functions: dict[str, Sequence[tuple[int, int]]],
    architecture: int = 90,
    symbols: Sequence[tuple[str, str, int]] = (),
    calls: Sequence[tuple[str, int, str]] = (),
) -> bytes:
    """A cubin of functions by their words; each has a symbol.

    `symbols`: further functions, as name, section and offset; `calls`: relocations, as section,
    offset and the symbol's name.
    """
    strings, names = _Strings(), _Strings()
    # null, names of sections, names of symbols, symbols, then code
    sections = {name: 4 + index for index, name in enumerate(functions)}
    listed = [(name, name, 0) for name in functions] + list(symbols)
    table = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", strings.add(name), 0x12, 0, sections[section], value, 0)
        for name, section, value in listed
    )
    order = [name for name, _, _ in listed]
    bodies = [(1, ".text." + name, 0, 0, np.array(words, "<u8").tobytes())
              for name, words in functions.items()]  # fmt: skip
    for section, offset, target in calls:
        entry = struct.pack("<QQq", offset, (1 + order.index(target)) << 32 | 1, 0)
        bodies.append((4, ".rela.text." + section, 3, sections[section], entry))
    bodies = [(2, ".symtab", 2, 1, table), *bodies]
    for _, name, *_ in bodies:
        names.add(name)
    bodies = [(3, "", 0, 0, names.text), (3, "", 0, 0, strings.text), *bodies]
    at = 64
    headers = bytes(64)
    for kind, name, link, info, body in bodies:
        headers += struct.pack(
            "<IIQQQQIIQQ", names.add(name), kind, 0, 0, at, len(body), link, info, 1, 0
        )
        at += len(body)
    header = b"\x7fELF\x02\x01\x01\x41\x08".ljust(0x28, b"\0") + struct.pack("<Q", at)
    header = header[:0x30] + struct.pack("<I", architecture << 8) + header[0x34:]
    header = header.ljust(0x3A, b"\0") + struct.pack("<HHH", 64, len(bodies) + 1, 1)
    return header.ljust(64, b"\0") + b"".join(body for *_, body in bodies) + headers


class _Strings:
    """A string table."""

    def __init__(self) -> None:
        self.text = b"\0"
        self._known = {"": 0}

    def add(self, text: str) -> int:
        if text not in self._known:
            self._known[text] = len(self.text)
            self.text += text.encode() + b"\0"
        return self._known[text]


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        write_listing(Path(argument))
