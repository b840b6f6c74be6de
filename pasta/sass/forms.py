"""Decoded instructions of one architecture, each distinct one once, in NumPy arrays.

Texts that differ in numbers only share a *template*: it is decoded once, and NumPy puts the numbers
in. A library's five million instructions are a million forms and some ten thousand templates.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from pasta.lazy import np
from pasta.sass import resources
from pasta.sass.instructions import (
    FLOWS,
    Decoded,
    Flow,
    Role,
    Span,
    decode,
    parse_operation,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: A number behind the name of a register or predicate, or a hexadecimal immediate.
_NUMBER = re.compile(r"((?<=[RP])[0-9]+(?![A-Z])|0x[0-9a-f]+)")
#: All predicates that an immediate can select.
_EVERY = re.compile(r"(?<!\w)U?PR(?!\w)")
_NUMBERED: Final = (resources.R, resources.UR, resources.P, resources.UP)
_NAMED = re.compile(r"(?<![\w.])U?[RP]$")
#: Opcodes whose immediates determine the registers that they use.
_BY_VALUE: Final = frozenset({*FLOWS, "DEPBAR", "WARPGROUP"})
_ROLE_SHIFT: Final = 12
RESOURCE_MASK: Final = (1 << _ROLE_SHIFT) - 1

CONDITIONAL, NEVER, FALLS = 1, 2, 4
_FLOW_SHIFT: Final = 3


class Rows(NamedTuple):
    """Ragged rows: row i is `values[starts[i] : starts[i + 1]]`."""

    starts: NDArray[np.int64]
    values: NDArray[np.int16]

    def take(self, rows: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int16]]:
        """For every value of the given rows in order, the position in `rows` and the value."""
        first = self.starts[rows]
        counts = self.starts[rows + 1] - first
        owner = np.repeat(np.arange(len(rows)), counts)
        ends = np.cumsum(counts)
        within = np.arange(len(owner)) - np.repeat(ends - counts, counts)
        return owner, self.values[first[owner] + within]


class Forms(NamedTuple):
    """Distinct instructions; a form is an index.

    `texts`: as nvdisasm prints them. `opcodes`: index into `opcode_names`. `flags`: CONDITIONAL,
    NEVER, FALLS, and the flow. `defs`: written resources. `uses`: read resources, with their role
    (`role_of`). `deltas`: branch target minus the instruction's address, by form. `waits`: DEPBAR's
    scoreboards with the count that may remain, by form.
    """

    texts: Sequence[str]
    opcode_names: Sequence[str]
    opcodes: NDArray[np.int32]
    flags: NDArray[np.uint8]
    defs: Rows
    uses: Rows
    deltas: dict[int, int]
    waits: dict[int, tuple[tuple[int, int], ...]]

    def flow(self, forms: NDArray[np.int32]) -> NDArray[np.uint8]:
        """`Flow` of instructions."""
        flows: NDArray[np.uint8] = self.flags[forms] >> np.uint8(_FLOW_SHIFT)
        return flows


def role_of(use: int) -> Role:
    """The role of a value of `Forms.uses`."""
    return Role(use >> _ROLE_SHIFT)


class _Template(NamedTuple):
    """Texts that differ in numbers only.

    `decoded`: with numbers of slots in place of register numbers; None if it must be decoded for
    each text. `slots`: places of register numbers among the text's numbers.
    """

    decoded: Decoded | None
    slots: list[int]
    forms: list[int]
    numbers: list[list[str]]


def _make_template(pieces: list[str]) -> _Template:
    slots = [at for at, number in enumerate(pieces[1::2]) if number[1:2] != "x"]
    named = list(pieces)
    for slot, at in enumerate(slots):
        named[2 * at + 1] = str(slot)
    decoded = None
    if all(_NAMED.search(pieces[2 * at]) for at in slots):
        try:
            decoded = decode("".join(named))
        except ValueError:
            pass
    if decoded is not None and (decoded.root in _BY_VALUE or _EVERY.search(decoded.operands)):
        decoded = None
    return _Template(decoded, slots, [], [])


class FormsBuilder:
    """Makes Forms from texts, in any number of parts."""

    def __init__(self) -> None:
        self._templates: dict[str, _Template] = {}
        self._texts: list[str] = []

    def add(self, texts: Sequence[str]) -> None:
        """Add instructions."""
        templates = self._templates
        split = _NUMBER.split
        for form, text in enumerate(texts, len(self._texts)):
            pieces = split(text)
            key = "#".join(pieces[::2])
            template = templates.get(key)
            if template is None:
                template = templates[key] = _make_template(pieces)
            template.forms.append(form)
            template.numbers.append(pieces[1::2])
        self._texts += texts

    def finish(self) -> Forms:
        """All forms, in the order in which they were added.

        A text that is not an instruction has no operands, and an empty opcode.
        """
        arrays = _Arrays(len(self._texts))
        for template in self._templates.values():
            if template.decoded is None:
                for form in template.forms:
                    arrays.add_single(form, self._texts[form])
            else:
                arrays.add_template(template, template.decoded)
        return arrays.finish(self._texts)


class _Arrays:
    """Arrays of forms while templates are filled in."""

    def __init__(self, count: int) -> None:
        self.names: dict[str, int] = {}
        self.opcodes = np.zeros(count, np.int32)
        self.flags = np.zeros(count, np.uint8)
        self.deltas: dict[int, int] = {}
        self.waits: dict[int, tuple[tuple[int, int], ...]] = {}
        self.defs = _Ragged(count)
        self.uses = _Ragged(count)

    def add_single(self, form: int, text: str) -> None:
        try:
            operation = parse_operation(text)
        except ValueError:
            self.opcodes[form] = self._opcode("")
            self.flags[form] = FALLS
            return
        self.opcodes[form] = self._opcode(operation.opcode)
        self.flags[form] = (
            _guard_flags(operation.guard) | operation.falls * FALLS | operation.flow << _FLOW_SHIFT
        )
        if operation.target is not None:
            self.deltas[form] = operation.target
        if operation.waits:
            self.waits[form] = operation.waits
        one = np.array([form])
        uses = [use.resource | use.role << _ROLE_SHIFT for use in operation.uses]
        self.defs.add(one, np.array([operation.defs], np.int16))
        self.uses.add(one, np.array([uses], np.int16))

    def add_template(self, template: _Template, decoded: Decoded) -> None:
        forms = np.array(template.forms)
        self.opcodes[forms] = self._opcode(decoded.opcode)
        self.flags[forms] = _guard_flags(decoded.guard) | FALLS
        numbers = [
            np.array([int(row[at][:4]) for row in template.numbers]) for at in template.slots
        ]
        self.defs.add(forms, _columns(decoded.defs, numbers, len(forms)))
        self.uses.add(forms, _columns(decoded.uses, numbers, len(forms)))

    def finish(self, texts: Sequence[str]) -> Forms:
        return Forms(
            texts, list(self.names), self.opcodes, self.flags, self.defs.rows(), self.uses.rows(),
            self.deltas, self.waits,
        )  # fmt: skip

    def _opcode(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))


def _guard_flags(guard: str) -> int:
    if guard in ("!PT", "!UPT"):
        return CONDITIONAL | NEVER
    return CONDITIONAL if guard not in ("", "PT", "UPT") else 0


def _columns(
    spans: Sequence[Span], numbers: Sequence[NDArray[np.int64]], count: int
) -> NDArray[np.int16]:
    """Resources of instructions of a template, (count, resources of each)."""
    width = sum(span.length for span in spans)
    columns = np.empty((count, width), np.int16)
    at = 0
    for first, slot, length, role in spans:
        last = resources.span(first, 0, 1 << 16)[-1]
        numbered = first in _NUMBERED
        values = first + (numbers[slot][:, None] if numbered else slot) + np.arange(length)
        columns[:, at : at + length] = np.minimum(values, last) | role << _ROLE_SHIFT
        at += length
    return columns


class _Ragged:
    """Rows in any order, put together at the end."""

    def __init__(self, count: int) -> None:
        self.counts = np.zeros(count + 1, np.int64)
        self.parts: list[tuple[NDArray[np.int64], NDArray[np.int16]]] = []

    def add(self, rows: NDArray[np.int64], values: NDArray[np.int16]) -> None:
        if values.shape[1]:
            self.counts[rows + 1] = values.shape[1]
            self.parts.append((rows, values))

    def rows(self) -> Rows:
        starts = np.cumsum(self.counts)
        joined = np.empty(int(starts[-1]), np.int16)
        for rows, values in self.parts:
            joined[starts[rows][:, None] + np.arange(values.shape[1])] = values
        return Rows(starts, joined)


__all__ = [
    "CONDITIONAL",
    "FALLS",
    "NEVER",
    "RESOURCE_MASK",
    "Flow",
    "Forms",
    "FormsBuilder",
    "Rows",
    "role_of",
]
