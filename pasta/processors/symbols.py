"""Functions and source lines of native code, after the run: from the program's files.

Functions come from ELF symbols, of the file or of its separate debug file; lines and inlined calls
from DWARF, by elfutils' libdw if that is installed. A file whose build id differs from the recorded
one is not the one that ran: it is not read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pasta.lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.debug_lines import DebugLines

_DEBUG_DIRECTORY: Final = Path("/usr/lib/debug")
_FUNCTION_TYPES: Final = (2, 10)  # STT_FUNC, STT_GNU_IFUNC
_SYMBOL_TABLES: Final = (2, 11)  # SHT_SYMTAB, SHT_DYNSYM
_NOTE: Final = 7
_BUILD_ID: Final = 3
_HEADER: Final = 64
_MAX_SECTIONS: Final = 1 << 16
_SECTION = [
    ("name", "<u4"), ("type", "<u4"), ("flags", "<u8"), ("address", "<u8"), ("offset", "<u8"),
    ("size", "<u8"), ("link", "<u4"), ("info", "<u4"), ("align", "<u8"), ("entry", "<u8"),
]  # fmt: skip
_SYMBOL = [
    ("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"),
    ("size", "<u8"),
]  # fmt: skip


class Code(NamedTuple):
    """An address of an image: its path, its build id (hexadecimal, may be empty), and the address
    in the file."""

    image: str
    build: str
    address: int


class Symbol(NamedTuple):
    """A function, mangled; `file` and `line` of the call in it, empty and 0 if unknown."""

    function: str
    file: str = ""
    line: int = 0


class Symbols:
    """Symbols of code; each is looked up once. `reads_files`: in this machine's files, otherwise
    only known symbols."""

    def __init__(
        self, known: Mapping[Code, tuple[Symbol, ...]] | None = None, *, reads_files: bool = True
    ) -> None:
        self._found = dict(known or {})
        self._reads_files = reads_files

    def at(self, code: Code) -> tuple[Symbol, ...]:
        """Functions at an address, the innermost inlined one first; at least one, which has no name
        if the function is unknown."""
        found = self._found.get(code)
        if found is None:
            reads = self._reads_files and bool(code.image)
            image = _image(code.image, code.build) if reads else None
            found = image.at(code.address) if image else (Symbol(""),)
            self._found[code] = found
        return found

    def document(self, codes: Iterable[Code]) -> list[list[Any]]:
        """The symbols of some code in JSON types, for `from_document`."""
        return [[*code, [list(symbol) for symbol in self.at(code)]] for code in sorted(codes)]

    @classmethod
    def from_document(cls, document: list[list[Any]]) -> Symbols:
        """The symbols that `document` gave, and no others. Raises ValueError for anything else."""
        try:
            return cls(
                {
                    Code(str(image), str(build), int(address)): tuple(
                        Symbol(str(function), str(file), int(line))
                        for function, file, line in symbols
                    )
                    or (Symbol(""),)
                    for image, build, address, symbols in document
                },
                reads_files=False,
            )
        except (TypeError, OverflowError):
            raise ValueError("no table of symbols") from None


@cache
def _image(path: str, build: str) -> Image | None:
    """An image that ran; None if its file is gone or another one."""
    try:
        image = Image(Path(path))
    except (OSError, ValueError):
        return None
    return image if not build or image.build in ("", build) else None


class Image:
    """The symbols of a file. Raises OSError, or ValueError for a file that is not a
    64-bit little-endian ELF."""

    def __init__(self, path: Path) -> None:
        self.path = path
        file = _Elf(path)
        self.build = file.build_id()
        debug = debug_file(path, self.build, file.debug_link())
        values, sizes, names = [], [], []
        self._names: list[tuple[NDArray[Any], NDArray[Any]]] = []
        for each in [file] + ([_Elf(debug)] if debug else []):
            for symbols, strings in each.functions():
                values.append(symbols["value"])
                sizes.append(symbols["size"])
                names.append(symbols["name"].astype(np.int64) | len(self._names) << 32)
                self._names.append((symbols, strings))
        self._lines_of = debug or path
        self._values = np.concatenate(values) if values else np.zeros(0, np.uint64)
        self._sizes = np.concatenate(sizes) if sizes else np.zeros(0, np.uint64)
        self._name = np.concatenate(names) if names else np.zeros(0, np.int64)
        order = np.lexsort((self._sizes, self._values))
        self._values, self._sizes, self._name = (
            each[order] for each in (self._values, self._sizes, self._name)
        )
        self._debug: DebugLines | None = None

    def at(self, address: int) -> tuple[Symbol, ...]:
        """Functions at an address, innermost inlined one first."""
        function = self.function(address)
        if self._debug is None:
            from pasta.processors.debug_lines import DebugLines

            self._debug = DebugLines(self._lines_of)
        places = self._debug.at(address)
        if not places:
            return (Symbol(function),)
        *inlined, outer = places
        found = [Symbol(name, file, line) for name, file, line in inlined]
        return (*found, Symbol(function or outer[0], outer[1], outer[2]))

    def function(self, address: int) -> str:
        """The name of the function at an address, mangled; empty if unknown."""
        at = int(np.searchsorted(self._values, np.uint64(address), side="right")) - 1
        if at < 0:
            return ""
        size = int(self._sizes[at])
        if size and address >= int(self._values[at]) + size:
            return ""
        table, offset = divmod(int(self._name[at]), 1 << 32)
        return _text(self._names[table][1], offset).partition("@")[0]  # without a version


def debug_file(path: Path, build: str, link: str) -> Path | None:
    """The separate debug file of an image, by its build id or its debug link; None without one."""
    candidates = []
    if len(build) > 2:
        candidates.append(_DEBUG_DIRECTORY / ".build-id" / build[:2] / f"{build[2:]}.debug")
    if link and "/" not in link:
        folder = path.resolve().parent
        candidates += [folder / link, folder / ".debug" / link]
        candidates.append(_DEBUG_DIRECTORY / folder.relative_to("/") / link)
    for each in candidates:
        if each.is_file() and each != path and _has_build(each, build):
            return each
    return None


def _has_build(path: Path, build: str) -> bool:
    try:
        return not build or _Elf(path).build_id() in ("", build)
    except (OSError, ValueError):
        return False


def _text(strings: NDArray[Any], offset: int) -> str:
    """The NUL-terminated text at an offset."""
    rest = strings[offset : offset + 4096].tobytes()
    return rest.partition(b"\0")[0].decode("utf-8", "replace")


class _Elf:
    """Sections of a 64-bit little-endian ELF file, read on demand."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():  # no device, no pipe
            raise ValueError(f"{path}: not a file")
        with path.open("rb") as file:
            header = file.read(_HEADER)
        if len(header) < _HEADER or header[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path}: not a 64-bit ELF file")
        self._content = np.memmap(path, np.uint8, "r")
        offset = int.from_bytes(header[40:48], "little")
        count = int.from_bytes(header[60:62], "little")
        names = int.from_bytes(header[62:64], "little")
        self.sections = self._array(offset, count * _HEADER, _SECTION)[:_MAX_SECTIONS]
        self._section_names = (
            self._contents(self.sections[names])
            if names < len(self.sections)
            else self._content[:0]
        )

    def _array(self, offset: int, size: int, dtype: Any) -> NDArray[Any]:
        end = min(offset + size, len(self._content))
        item = np.dtype(dtype).itemsize
        length = max(0, end - offset) // item
        if not length:
            return np.zeros(0, dtype)
        found: NDArray[Any] = np.frombuffer(self._content, dtype, length, offset)
        return found

    def _contents(self, section: Any) -> NDArray[Any]:
        if section["type"] == 8:  # no bits: in the other file
            return self._content[:0]
        start = int(section["offset"])
        return self._content[start : start + int(section["size"])]

    def _named(self, name: str) -> NDArray[Any]:
        for section in self.sections:
            if _text(self._section_names, int(section["name"])) == name:
                return self._contents(section)
        return self._content[:0]

    def functions(self) -> Iterable[tuple[NDArray[Any], NDArray[Any]]]:
        """Symbols of functions, and the strings that they name, by table."""
        for section in self.sections:
            if section["type"] not in _SYMBOL_TABLES or section["link"] >= len(self.sections):
                continue
            symbols = self._array(int(section["offset"]), int(section["size"]), _SYMBOL)
            if section["type"] == 8:
                continue
            kinds = symbols["info"] & 15
            mine = np.isin(kinds, _FUNCTION_TYPES) & (symbols["section"] != 0)
            yield symbols[mine], self._contents(self.sections[section["link"]])

    def build_id(self) -> str:
        """The build id, hexadecimal; empty without one."""
        for section in self.sections[self.sections["type"] == _NOTE]:
            note = self._contents(section).tobytes()
            at = 0
            while at + 12 <= len(note):
                name, size, kind = np.frombuffer(note, "<u4", 3, at).tolist()
                start = at + 12 + (name + 3) // 4 * 4
                if kind == _BUILD_ID and note[at + 12 : at + 16] == b"GNU\0":
                    return note[start : start + size].hex()
                at = start + (size + 3) // 4 * 4
        return ""

    def debug_link(self) -> str:
        """The name of the separate debug file; empty without one."""
        return os.fsdecode(self._named(".gnu_debuglink").tobytes().partition(b"\0")[0])
