"""Cubins: ELF files of GPU code. Their functions, calls by name, and architecture.

Layout: System V gABI, "Object Files"; `e_flags` and `.text.NAME` sections as nvcc 12 and 13 write
them (compared with nvdisasm's `.headerflags`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from pasta.lazy import np
from pasta.sass.toolkit import SassError

if TYPE_CHECKING:
    from numpy.typing import NDArray

INSTRUCTION_BYTES: Final = 16  # sm_70 and later
_SYMTAB, _RELA, _REL = 2, 4, 9
_FUNC = 2  # STT_FUNC
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_TEXT = ".text."
_SIZED_ATTRIBUTE, _INDIRECT_BRANCHES = 4, 0x34
#: From this EI_ABIVERSION on, the architecture is in bits 8 to 15 of e_flags, before in 0 to 7.
_WIDE_FLAGS = 8


class Section(NamedTuple):
    """A section header; `offset` and `size` in bytes of the file."""

    name: str
    kind: int
    offset: int
    size: int
    link: int
    info: int


class Symbol(NamedTuple):
    """A symbol: index of its section, byte offset in it."""

    name: str
    is_function: bool
    section: int
    value: int


class Relocation(NamedTuple):
    """A place (byte offset in the section) that refers to a symbol."""

    offset: int
    symbol: int
    addend: int


class CodeSection(NamedTuple):
    """The code of a kernel or device function, with the device functions placed behind it.

    `words`: (n, 2) uint64, low and high half of each instruction. `symbols`: names of the functions
    in it by byte offset. `references`: names of the symbols that instructions refer to, by byte
    offset. `jumps`: targets of indirect branches, in bytes, by byte offset.
    """

    name: str
    words: NDArray[np.uint64]
    symbols: Mapping[int, str]
    references: Mapping[int, str]
    jumps: Mapping[int, tuple[int, ...]]


class Cubin:
    """A 64-bit little-endian ELF file. Raises SassError if it is none or is damaged."""

    def __init__(self, image: bytes) -> None:
        if image[:6] != b"\x7fELF\x02\x01":
            raise SassError("a module is not a 64-bit ELF file, so its code cannot be read")
        self.image = image
        try:
            self.sections = list(_sections(image))
            self.by_name = {section.name: i for i, section in enumerate(self.sections)}
            self.symbols = list(self._symbols())
        except (struct.error, IndexError, ValueError, OverflowError) as error:
            raise SassError("the symbol table of a module cannot be read") from error

    @cached_property
    def architecture(self) -> int:
        """Number of the architecture, such as 90."""
        (flags,) = struct.unpack_from("<I", self.image, 0x30)
        return int(flags >> 8 & 0xFF if self.image[8] >= _WIDE_FLAGS else flags & 0xFF)

    def names(self) -> list[str]:
        """Mangled names of the code sections."""
        return [each.name[len(_TEXT) :] for each in self.sections if each.name.startswith(_TEXT)]

    def code(self, name: str) -> CodeSection | None:
        """The code of a section; None if there is none. Raises SassError."""
        index = self.by_name.get(_TEXT + name)
        if index is None:
            return None
        section = self.sections[index]
        if section.offset + section.size > len(self.image):
            raise SassError(f"the code of {name} lies outside its module")
        words = np.frombuffer(self.image, "<u8", section.size // 16 * 2, section.offset)
        return CodeSection(
            name,
            words.reshape(-1, 2),
            self._functions.get(index, {}),
            self._references(index),
            dict(_jumps(self.contents(f".nv.info.{name}") or b"")),
        )

    def contents(self, name: str) -> bytes | None:
        """Bytes of a section; None if there is none."""
        index = self.by_name.get(name)
        if index is None:
            return None
        section = self.sections[index]
        return self.image[section.offset : section.offset + section.size]

    def relocations(self, target: int) -> Iterator[Relocation]:
        """Relocations of a section, by its index."""
        for section in self._relocated.get(target, ()):
            body = self.image[section.offset : section.offset + section.size]
            step = 24 if section.kind == _RELA else 16
            body = body[: len(body) - len(body) % step]
            for fields in struct.iter_unpack("<QQq" if step == 24 else "<QQ", body):
                addend = fields[2] if step == 24 else 0
                yield Relocation(fields[0], fields[1] >> 32, addend)

    @cached_property
    def _relocated(self) -> dict[int, list[Section]]:
        found: dict[int, list[Section]] = {}
        for section in self.sections:
            if section.kind in (_RELA, _REL):
                found.setdefault(section.info, []).append(section)
        return found

    @cached_property
    def _functions(self) -> dict[int, dict[int, str]]:
        found: dict[int, dict[int, str]] = {}
        for symbol in self.symbols:
            if symbol.is_function:
                found.setdefault(symbol.section, {})[symbol.value] = symbol.name
        return found

    def _references(self, index: int) -> dict[int, str]:
        found = {}
        for relocation in self.relocations(index):
            if relocation.symbol < len(self.symbols):
                at = relocation.offset & -INSTRUCTION_BYTES
                found[at] = self.symbols[relocation.symbol].name
        return found

    def _symbols(self) -> Iterator[Symbol]:
        for section in self.sections:
            if section.kind != _SYMTAB:
                continue
            strings = self.sections[section.link].offset
            table = self.image[section.offset : section.offset + section.size]
            table = table[: len(table) - len(table) % _SYMBOL.size]
            for name, info, _, index, value, _ in _SYMBOL.iter_unpack(table):
                yield Symbol(_string(self.image, strings + name), info & 15 == _FUNC, index, value)
            return  # an ELF file has one


def _sections(image: bytes) -> Iterator[Section]:
    (headers,) = struct.unpack_from("<Q", image, 0x28)
    entry, count, strings = struct.unpack_from("<HHH", image, 0x3A)
    if headers == 0:
        return
    first = _SECTION.unpack_from(image, headers)
    count = count or first[5]  # 65,280 sections or more: the count is in the first header
    strings = first[6] if strings == 0xFFFF else strings
    if entry < _SECTION.size or headers + entry * count > len(image):
        raise ValueError("section headers outside the file")
    names = _SECTION.unpack_from(image, headers + entry * strings)[4]
    for index in range(count):
        name, kind, _, _, offset, size, link, info, _, _ = _SECTION.unpack_from(
            image, headers + entry * index
        )
        yield Section(_string(image, names + name), kind, offset, size, link, info)


def _jumps(attributes: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Indirect branches with their targets, from the attributes of a function (.nv.info.NAME):
    format, kind and size or value of each; of a branch its offset, 0, the number of targets, and
    these (compared with the compiler's code)."""
    at = 0
    while at + 4 <= len(attributes):
        form, kind, size = struct.unpack_from("<BBH", attributes, at)
        at += 4
        if form != _SIZED_ATTRIBUTE:
            continue
        body = attributes[at : at + size - size % 4]
        at += size
        words = struct.unpack(f"<{len(body) // 4}I", body[: len(body) & -4])
        while kind == _INDIRECT_BRANCHES and len(words) > 3:
            end = 3 + words[2]
            yield words[0], words[3:end]
            words = words[end:]


def _string(image: bytes, at: int) -> str:
    return image[at : image.index(b"\0", at)].decode("utf-8", "surrogateescape")
