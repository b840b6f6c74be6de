"""Memory instructions of the functions of a module: what coverage compares with the probes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pasta.lazy import np
from pasta.sass.memory import (
    GENERIC,
    PREFETCH,
    SHARED_FILL,
    SPACES,
    TENSOR_CORE,
    TEXTURE,
    UNKNOWN,
    Opcode,
    classify,
    find_opcode,
)
from pasta.sass.toolkit import SassError, find_nvdisasm

if TYPE_CHECKING:
    from pasta.sass.disassembler import Code
    from pasta.sass.lines import Lines


@dataclass(frozen=True)
class Instruction:
    """An instruction, `offset` bytes into its function; file and line are known with -lineinfo."""

    offset: int
    opcode: Opcode
    predicated: bool = False
    file: str | None = None
    line: int | None = None

    @property
    def kind(self) -> str:
        """Kind of the opcode."""
        return self.opcode.kind


@dataclass(frozen=True)
class Function:
    """The memory, barrier, call and exit instructions of a kernel or device function.

    A function is a code section: device functions that the compiler placed in the section of their
    kernel belong to it. `name` is mangled, `bytes` is the section's code with its padding, `calls`
    are functions in other sections that it calls by name; `indirect`: it calls through a register.
    """

    name: str
    bytes: int
    instructions: tuple[Instruction, ...]
    calls: frozenset[str] = frozenset()
    indirect: bool = False


def disassemble(
    cubin: bytes | Path,
    functions: Collection[str] | None = None,
    *,
    cache: Path | None = None,
    timeout: float = 600,
) -> list[Function]:
    """Functions of a module, all or those with the mangled names `functions`.

    `cache` is a directory of texts by the hash of the module, created if missing. Names that are
    not in the module are ignored. Raises MissingDependency without nvdisasm, SassError if the
    module cannot be read within `timeout` seconds.
    """
    (found,) = disassemble_together([(cubin, functions)], cache=cache, timeout=timeout)
    return found


def disassemble_together(
    modules: Sequence[tuple[bytes | Path, Collection[str] | None]],
    *,
    cache: Path | None = None,
    timeout: float = 600,
) -> list[list[Function]]:
    """Functions of several modules, of each all or those named: nvdisasm is started for all of them
    together. Raises as `disassemble`."""
    # not above: the launcher imports this file, but reads no code
    from pasta.sass.cubin import Cubin
    from pasta.sass.disassembler import read_code
    from pasta.sass.lines import Lines, read_lines

    opened = [
        (Cubin(image if isinstance(image, bytes) else image.read_bytes()), functions)
        for image, functions in modules
    ]
    found = []
    for (module, _), codes in zip(
        opened, read_code(opened, cache=cache, timeout=timeout), strict=True
    ):
        lines = read_lines(module) if codes else {}
        found.append([summarize(code, lines.get(name, Lines())) for name, code in codes.items()])
    return found


def summarize(code: Code, lines: Lines) -> Function:
    """The instructions of a function that matter to probes."""
    from pasta.sass.cubin import INSTRUCTION_BYTES
    from pasta.sass.forms import CONDITIONAL, NEVER
    from pasta.sass.instructions import Flow

    forms = code.forms
    pattern, texts = forms.texts.patterns(code.form)
    distinct, which = np.unique(pattern, return_inverse=True)
    opcodes = [_opcode_of(texts[each]) for each in distinct.tolist()]
    flags = forms.flags[code.form]
    # @!PT is never true: padding around some hardware hazards.
    counts = np.array([each is not None for each in opcodes], bool)[which] & (flags & NEVER == 0)
    listed = []
    for index in np.flatnonzero(counts).tolist():
        offset = INSTRUCTION_BYTES * index
        place = lines.at(offset)
        source = () if place is None else (place.file, place.line)
        opcode = cast("Opcode", opcodes[which[index]])
        listed.append(Instruction(offset, opcode, bool(flags[index] & CONDITIONAL), *source))
    calls = np.flatnonzero(forms.flow(code.form) == Flow.CALL).tolist()
    references = {at // INSTRUCTION_BYTES: name for at, name in code.references.items()}
    named = {references[at] for at in calls if at in references}
    unnamed = (at for at in calls if at not in references)
    return Function(
        code.name,
        len(code.form) * INSTRUCTION_BYTES,
        tuple(listed),
        frozenset(named - {*code.symbols.values()}),
        any(forms.deltas.get(int(code.form[at])) is None for at in unnamed),
    )


@lru_cache(maxsize=1 << 16)
def _opcode_of(text: str) -> Opcode | None:
    """The effect of an instruction on memory, which does not depend on register numbers."""
    rest = text.partition(" ")[2] if text.startswith("@") else text
    opcode, _, operands = rest.strip().partition(" ")
    return find_opcode(opcode, operands)


__all__ = [
    "GENERIC", "PREFETCH", "SHARED_FILL", "SPACES", "TENSOR_CORE", "TEXTURE", "UNKNOWN", "Function",
    "Instruction", "Opcode", "SassError", "classify", "disassemble", "find_nvdisasm", "find_opcode",
]  # fmt: skip
