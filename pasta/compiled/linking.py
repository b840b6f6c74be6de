"""A linker for the object file of one function without variables: code for any address."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from pasta.errors import PastaError

# ELF: types of sections and their flags, relocations of x86-64.
_SYMTAB, _RELA, _NOBITS = 2, 4, 8
_WRITE, _ALLOC = 1, 2
_PC32, _PLT32 = 2, 4


class CodeError(PastaError):
    """A function cannot be compiled to self-contained machine code."""


@dataclass(frozen=True)
class _Section:
    name: str
    type: int
    flags: int
    link: int
    info: int
    alignment: int
    content: bytes


@dataclass(frozen=True)
class _Symbol:
    name: str
    section: int
    value: int


def linked(object: bytes, function: str) -> tuple[bytes, int]:
    """Code and constants of an object file for x86-64, and the offset of a function in them.

    All references are relative. Raises CodeError if one leads outside, is absolute, or if there are
    variables.
    """
    sections = _sections(object)
    symbols = _symbols(sections)
    offsets: dict[int, int] = {}
    code = bytearray()
    for index, each in enumerate(sections):
        # .eh_frame has no use: code does not raise, and is not called by what does
        if not each.flags & _ALLOC or not each.content or each.name == ".eh_frame":
            continue
        if each.flags & _WRITE or each.type == _NOBITS:
            raise CodeError("it has variables")
        code += bytes(-len(code) % max(each.alignment, 1))
        offsets[index] = len(code)
        code += each.content

    def place(symbol: _Symbol) -> int:
        if symbol.section not in offsets:
            raise CodeError(f"it refers to {symbol.name}")
        return offsets[symbol.section] + symbol.value

    for each in sections:
        if each.type == _RELA and each.info in offsets:
            for offset, info, addend in struct.iter_unpack("<QQq", each.content):
                target = place(symbols[info >> 32])
                if info & 0xFFFFFFFF not in (_PC32, _PLT32):
                    raise CodeError("it has an absolute address")
                at = offsets[each.info] + offset
                struct.pack_into("<i", code, at, target + addend - at)
    return bytes(code), place(next(each for each in symbols if each.name == function))


def _sections(object: bytes) -> list[_Section]:
    (table,) = struct.unpack_from("<Q", object, 40)
    size, count, names = struct.unpack_from("<HHH", object, 58)
    headers = [
        struct.unpack_from("<IIQQQQIIQ", object, table + size * number) for number in range(count)
    ]
    texts = object[headers[names][4] :]
    return [
        _Section(
            _text(texts, name), type, flags, link, info, alignment,
            bytes(length) if type == _NOBITS else object[offset : offset + length],
        )
        for name, type, flags, _, offset, length, link, info, alignment in headers
    ]  # fmt: skip


def _symbols(sections: list[_Section]) -> list[_Symbol]:
    table = next(each for each in sections if each.type == _SYMTAB)
    texts = sections[table.link].content
    return [
        _Symbol(_text(texts, name), section, value)
        for name, _, _, section, value, _ in struct.iter_unpack("<IBBHQQ", table.content)
    ]


def _text(texts: bytes, offset: int) -> str:
    return texts[offset : texts.index(0, offset)].decode()
