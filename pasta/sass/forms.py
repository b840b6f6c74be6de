"""Decoded instructions of one architecture, each distinct one once, in NumPy arrays.

Texts that differ in numbers only share a *template*: it is decoded once, and NumPy puts the numbers
in, from the texts or from the register fields of the instructions. A library's five million
instructions are a million forms and some ten thousand templates.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pasta.lazy import np
from pasta.sass import resources
from pasta.sass.instructions import (
    Decoded,
    Flow,
    Role,
    Span,
    decode,
    parse_operation,
    transfer,
)
from pasta.sass.patterns import FIELD_OF_MARK, Listing, Texts

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The number of a register or predicate, or a hexadecimal immediate.
_NUMBER = re.compile(r"((?:(?<=[^\w.][RP])|(?<=[^\w.]U[RP]))[0-9]+(?!\w)|0x[0-9a-f]+)")
#: All predicates that an immediate can select.
_EVERY = re.compile(r"(?<!\w)U?PR(?!\w)")
_NUMBERED: Final = (resources.R, resources.UR, resources.P, resources.UP)
#: Opcodes whose immediates determine the registers that they use.
_BY_VALUE: Final = frozenset({"DEPBAR", "WARPGROUP"})
_ROLE_SHIFT: Final = 12
RESOURCE_MASK: Final = (1 << _ROLE_SHIFT) - 1

CONDITIONAL, NEVER, FALLS, WAITS = 1, 2, 4, 8
_FLOW_SHIFT: Final = 4


class Rows(NamedTuple):
    """Ragged rows: row i is `values[starts[i] : starts[i + 1]]`."""

    starts: NDArray[np.int64]
    values: NDArray[np.int16]

    def take(self, rows: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int16]]:
        """For every value of the given rows in order, the position in `rows` and the value."""
        owner, at = _expand(self.starts, rows)
        return owner, self.values[at]


def _expand(
    starts: NDArray[np.int64], rows: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places of all values of ragged rows, each with the position of its row in `rows`."""
    first = starts[rows]
    counts = starts[rows + 1] - first
    owner = np.repeat(np.arange(len(rows)), counts)
    shift = first - (np.cumsum(counts) - counts)
    return owner, np.arange(len(owner)) + shift[owner]


class Forms(NamedTuple):
    """Distinct instructions; a form is an index.

    `texts`: as nvdisasm prints them. `opcodes`: index into `opcode_names`. `flags`: CONDITIONAL,
    NEVER, FALLS, WAITS, and the flow. `defs`: written resources. `uses`: read resources, with their
    role (`role_of`). `deltas`: branch target minus the instruction's address, by form. `waits`:
    DEPBAR's scoreboards with the count that may remain, by form, of those with the flag WAITS.
    """

    texts: Texts
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
    """Patterns whose texts differ in numbers only.

    `decoded`: with numbers of slots in place of register numbers; None if it must be decoded for
    each text. `slots`: places of register numbers among the text's numbers. `sources`: of each
    number the register field that it comes from, or -1. `numbers`: `width` for each pattern.
    """

    decoded: Decoded | None
    slots: list[int]
    sources: tuple[int, ...]
    width: int
    patterns: list[int]
    numbers: list[str]

    def column(self, at: int) -> list[str]:
        """One number of each pattern."""
        return self.numbers[at :: self.width]


def _make_template(pieces: list[str], sources: tuple[int, ...]) -> _Template:
    slots = [at for at, number in enumerate(pieces[1::2]) if number[1:2] != "x"]
    named = list(pieces)
    for slot, at in enumerate(slots):
        named[2 * at + 1] = str(slot)
    try:
        decoded: Decoded | None = decode("".join(named))
    except ValueError:
        decoded = None
    if decoded is not None and (decoded.root in _BY_VALUE or _EVERY.search(decoded.operands)):
        decoded = None
    return _Template(decoded, slots, sources, len(pieces) // 2, [], [])


def build_forms(listing: Listing) -> Forms:
    """Forms of a listing's instructions, in their order.

    A text that is not an instruction has no operands, and an empty opcode.
    """
    arrays = _Arrays(listing)
    for template in _find_templates(listing).values():
        if template.decoded is None:
            for form in arrays.forms_of(template)[1].tolist():
                arrays.add_single(form, listing.text(form))
        else:
            arrays.add_template(template, template.decoded)
    return arrays.finish()


def _find_templates(listing: Listing) -> dict[tuple[str, tuple[int, ...]], _Template]:
    found: dict[tuple[str, tuple[int, ...]], _Template] = {}
    for pattern, (text, fields) in enumerate(
        zip(listing.texts, listing.fields.tolist(), strict=True)
    ):
        pieces = _NUMBER.split(text)
        texts, numbers = pieces[::2], pieces[1::2]
        sources: tuple[int, ...] = ()
        if fields:
            sources = tuple([
                FIELD_OF_MARK[number] if before[-1:] == "R" and before[-2:] != "UR" else -1
                for before, number in zip(texts, numbers, strict=False)
            ])  # fmt: skip
        key = "#".join(texts), sources
        template = found.get(key)
        if template is None:
            template = found[key] = _make_template(pieces, sources)
        template.patterns.append(pattern)
        template.numbers.extend(numbers)
    return found


class _Arrays:
    """Arrays of forms while templates are filled in."""

    def __init__(self, listing: Listing) -> None:
        count = len(listing.pattern)
        self._listing = listing
        self._by_pattern = np.argsort(listing.pattern, kind="stable")
        self._starts = np.zeros(len(listing.texts) + 1, np.int64)
        np.cumsum(np.bincount(listing.pattern, minlength=len(listing.texts)), out=self._starts[1:])
        self.names: dict[str, int] = {}
        self.opcodes = np.zeros(count, np.int32)
        self.flags = np.zeros(count, np.uint8)
        self.deltas: dict[int, int] = {}
        self.waits: dict[int, tuple[tuple[int, int], ...]] = {}
        self.defs = _Ragged(count)
        self.uses = _Ragged(count)

    def forms_of(self, template: _Template) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Forms of a template, each with the index of its pattern in the template."""
        owner, at = _expand(self._starts, np.array(template.patterns))
        return owner, self._by_pattern[at]

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
            self.flags[form] |= WAITS
            self.waits[form] = operation.waits
        one = np.array([form])
        uses = [use.resource | use.role << _ROLE_SHIFT for use in operation.uses]
        self.defs.add(one, np.array([operation.defs], np.int16))
        self.uses.add(one, np.array([uses], np.int16))

    def add_template(self, template: _Template, decoded: Decoded) -> None:
        owner, forms = self.forms_of(template)
        flow, falls, target = transfer(decoded)
        self.opcodes[forms] = self._opcode(decoded.opcode)
        self.flags[forms] = _guard_flags(decoded.guard) | falls * FALLS | flow << _FLOW_SHIFT
        if target is not None:  # the last number
            sign = -1 if target < 0 else 1
            deltas = [sign * int(each, 16) for each in template.column(template.width - 1)]
            for form, pattern in zip(forms.tolist(), owner.tolist(), strict=True):
                self.deltas[form] = deltas[pattern]
        numbers = [self._numbers(template, at, owner, forms) for at in template.slots]
        self.defs.add(forms, _columns(decoded.defs, numbers, len(forms)))
        self.uses.add(forms, _columns(decoded.uses, numbers, len(forms)))

    def _numbers(
        self, template: _Template, at: int, owner: NDArray[np.int64], forms: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """One of the numbers in the texts of forms."""
        if template.sources and template.sources[at] >= 0:
            return self._listing.registers(template.sources[at], forms)
        return np.array([int(each[:4]) for each in template.column(at)])[owner]

    def finish(self) -> Forms:
        return Forms(
            Texts(self._listing), list(self.names), self.opcodes, self.flags, self.defs.rows(),
            self.uses.rows(), self.deltas, self.waits,
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
    "WAITS",
    "Flow",
    "Forms",
    "Rows",
    "build_forms",
    "role_of",
]
