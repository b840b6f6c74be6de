"""Source lines and texts of single instructions of a run's modules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pasta import paths
from pasta.errors import MissingDependency
from pasta.sass.toolkit import SassError

if TYPE_CHECKING:
    from pasta.sass.cubin import Cubin
    from pasta.sass.disassembler import Code

#: File of a module's image by the hash of its content; None if it was not kept.
Images = Callable[[int], "Path | None"]

_MACHINE: Final = b"\xbe\x00"  # EM_CUDA
_TEXT: Final = ".text."
_MAX_READING: Final = 60.0


class Place(NamedTuple):
    """An instruction: hash of its module, mangled name of its function, byte offset in it."""

    module: int
    function: str
    offset: int


class Described(NamedTuple):
    """What is known of an instruction: `file:line`, and its text."""

    line: str | None = None
    text: str | None = None


def describe(places: Sequence[Place], images: Images) -> list[Described]:
    """Lines and texts of instructions, in their order, as far as they can be read: a line needs the
    image of the module with a line table, a text nvdisasm too."""
    return describe_in(open_cubins({place.module for place in places}, images), places)


def describe_in(cubins: Mapping[int, Cubin], places: Sequence[Place]) -> list[Described]:
    """The same of modules that are open, by hash."""
    from pasta.sass.cubin import INSTRUCTION_BYTES
    from pasta.sass.lines import Lines, read_lines

    cubins = {place.module: cubins[place.module] for place in places if place.module in cubins}
    functions = {module: sections_of(cubin) for module, cubin in cubins.items()}
    located = []  # by section: a device function may lie behind its kernel
    for module, function, offset in places:
        section, start = functions.get(module, {}).get(function, (function, 0))
        located.append(Place(module, section, start + offset))
    wanted: dict[int, set[str]] = {}
    for place in located:
        wanted.setdefault(place.module, set()).add(place.function)
    lines = {module: read_lines(cubin) for module, cubin in cubins.items()}
    texts = {key: code.texts() for key, code in read_functions(cubins, wanted).items()}
    found = []
    for place in located:
        at = lines.get(place.module, {}).get(place.function, Lines()).at(place.offset)
        text = texts.get((place.module, place.function), ())
        index = place.offset // INSTRUCTION_BYTES
        line = f"{at.file}:{at.line}" if at else None
        found.append(Described(line, text[index] if index < len(text) else None))
    return found


def sections_of(cubin: Cubin) -> dict[str, tuple[str, int]]:
    """Code section, by its name without prefix, and byte offset in it of each function."""
    return {
        symbol.name: (cubin.sections[symbol.section].name[len(_TEXT) :], symbol.value)
        for symbol in cubin.symbols
        if symbol.is_function
        and symbol.section < len(cubin.sections)
        and cubin.sections[symbol.section].name.startswith(_TEXT)
    }


def open_cubins(modules: Iterable[int], images: Images) -> dict[int, Cubin]:
    """Modules by the hash of their content, except modules that were not kept or have no readable
    machine code."""
    from pasta.sass.cubin import Cubin

    found = {}
    for module in modules:
        path = images(module)
        try:
            image = path.read_bytes() if path else b""
            if image[18:20] == _MACHINE:
                found[module] = Cubin(image)
        except (OSError, SassError):
            continue
    return found


def read_functions(
    cubins: Mapping[int, Cubin],
    wanted: Mapping[int, Collection[str]],
    problems: list[str] | None = None,
) -> dict[tuple[int, str], Code]:
    """Code of the wanted functions (mangled names) by module and name; without modules that
    cannot be disassembled, whose reasons are added to `problems`."""
    from pasta.sass.disassembler import read_code

    found = {}
    try:
        modules = [(cubin, wanted[module]) for module, cubin in cubins.items()]
        codes = read_code(modules, cache=paths.cache("sass"), timeout=_MAX_READING)
        for module, functions in zip(cubins, codes, strict=True):
            for name, code in functions.items():
                found[module, name] = code
    except (MissingDependency, SassError, OSError) as error:
        if len(cubins) > 1 and not isinstance(error, MissingDependency):
            # a damaged one does not affect the others
            for module, cubin in cubins.items():
                found |= read_functions({module: cubin}, wanted, problems)
        elif problems is not None:
            problems.append(str(error))
    return found
