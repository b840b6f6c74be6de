"""Texts of many instructions from few: what differs only in registers is disassembled once.

Four fields of an instruction hold register numbers, unless its operation has other bits there.
nvdisasm tells which: it lists an instruction whose fields hold marks, and a field is a register if
its mark is one in the text. Other fields keep their values. Texts reconstructed from patterns are
identical to nvdisasm's (docs/sass.md).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from pasta.lazy import np
from pasta.sass import nvdisasm

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Bits of an instruction's high half that schedule it: the text does not depend on them.
CONTROL_SHIFT: Final = 41
OPERATION_MASK: Final = (1 << CONTROL_SHIFT) - 1
#: Architectures checked against nvdisasm; instructions of others are listed one by one.
_COMPARED: Final = range(75, 122)
#: Their register fields, of 8 bits: half of the instruction, first bit.
_FIELDS: Final = ((0, 16), (0, 24), (0, 32), (1, 0))
#: Register numbers that mark the fields, aligned as vectors must be.
MARKS: Final = (8, 16, 24, 32)
#: The field of a mark in a text.
FIELD_OF_MARK: Final = {str(mark): field for field, mark in enumerate(MARKS)}
_EVERY: Final = (1 << len(MARKS)) - 1
#: RZ keeps its number: operations are printed differently with it.
_ZERO_REGISTER: Final = 255
_REGISTER = re.compile(r"(?<![\w.])R([0-9]+)(?!\w)")
#: Up to so many, all are disassembled: starting nvdisasm three times would take longer.
_FEW: Final = 1 << 14


class Listing(NamedTuple):
    """Distinct instructions and their texts.

    `words`: (n, 2) uint64 without control bits. `pattern`: index into `texts`, int32. `fields`: of
    each text the register fields whose marks in it stand for the instruction's numbers, as bits,
    uint8.
    """

    words: NDArray[np.uint64]
    pattern: NDArray[np.int32]
    texts: Sequence[str]
    fields: NDArray[np.uint8]

    def take(self, rows: NDArray[np.int64]) -> Listing:
        """Some of the instructions, with the texts that they need."""
        used, pattern = np.unique(self.pattern[rows], return_inverse=True)
        return Listing(
            self.words[rows],
            pattern.astype(np.int32),
            [self.texts[index] for index in used.tolist()],
            self.fields[used],
        )

    def registers(self, field: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Number in a register field of each of the instructions `rows`."""
        return _field(self.words[rows], field).astype(np.int64)

    def text(self, index: int) -> str:
        """Text of an instruction."""
        pattern = int(self.pattern[index])
        text = self.texts[pattern]
        if not self.fields[pattern]:
            return text
        words = self.words[index].tolist()

        def number(found: re.Match[str]) -> str:
            half, shift = _FIELDS[FIELD_OF_MARK[found[1]]]
            return f"R{words[half] >> shift & 255}"

        return _REGISTER.sub(number, text)


class Texts(Sequence[str]):
    """Texts of a listing's instructions, made when they are asked for."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing

    def __len__(self) -> int:
        return len(self._listing.pattern)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]  # no slices
        return self._listing.text(index)

    def patterns(self, rows: NDArray[np.int32]) -> tuple[NDArray[np.int32], Sequence[str]]:
        """For each of the instructions `rows` the index of a text that differs in register numbers
        only, and these texts."""
        return self._listing.pattern[rows], self._listing.texts


def without_patterns(words: NDArray[np.uint64], texts: Sequence[str]) -> Listing:
    """A listing with a text for each instruction."""
    return Listing(words, np.arange(len(texts), dtype=np.int32), texts, np.zeros(len(texts), "u1"))


def join(listings: Sequence[Listing]) -> Listing:
    """All instructions of several listings; equal patterns of them become one."""
    texts: dict[tuple[str, int], int] = {}
    patterns = []
    for each in listings:
        both = zip(each.texts, each.fields.tolist(), strict=True)
        numbers = np.array([texts.setdefault(key, len(texts)) for key in both], np.int32)
        patterns.append(numbers[each.pattern])
    return Listing(
        np.concatenate([each.words for each in listings]),
        np.concatenate(patterns),
        [text for text, _ in texts],
        np.array([fields for _, fields in texts], np.uint8),
    )


def list_distinct(architecture: int, words: NDArray[np.uint64], end: float) -> Listing:
    """Distinct instructions, with control bits: nvdisasm rejects instructions without. Raises as
    `nvdisasm.list_instructions`."""
    listings = []
    fields = np.full(len(words), _EVERY, np.uint8)
    # the first round finds which fields are registers, the second one marks only these
    by_pattern = architecture in _COMPARED and len(words) > _FEW
    for _ in range(2 if by_pattern else 0):
        listing, is_right, fields = _list_marked(architecture, words, fields, end)
        listings.append(listing)
        words = words[~is_right]
    texts = _list(architecture, words, end)
    return join([*listings, without_patterns(without_control(words), texts)])


def _list_marked(
    architecture: int, words: NDArray[np.uint64], fields: NDArray[np.uint8], end: float
) -> tuple[Listing, NDArray[np.bool_], NDArray[np.uint8]]:
    """Instructions with marks in `fields` that all are registers, which ones these are, and the
    fields that are registers in the others."""
    marked, group, fields = _mark(words, fields)
    texts = _list(architecture, marked, end)
    seen = np.array([_marks(text) for text in texts], np.uint8)[group]
    is_right = seen == fields
    used = np.zeros(len(texts), np.uint8)
    used[group] = fields
    listing = Listing(without_control(words), group.astype(np.int32), texts, used)
    return listing.take(np.flatnonzero(is_right)), is_right, (seen & fields)[~is_right]


def without_control(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Instructions without their control bits."""
    return words & np.array([~np.uint64(0), OPERATION_MASK], np.uint64)


def distinct(keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First row of each distinct one, and for each row the index of its first."""
    _, first, inverse = np.unique(_mix(keys), return_index=True, return_inverse=True)
    if not np.array_equal(keys[first[inverse]], keys):  # two instructions with one hash
        _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)


def find(known: NDArray[np.uint64], wanted: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Index in `known` of each wanted row; -1 if it is not there."""
    if not len(known):
        return np.full(len(wanted), -1)
    hashes = _mix(known)
    order = np.argsort(hashes)
    at = order[np.minimum(np.searchsorted(hashes, _mix(wanted), sorter=order), len(known) - 1)]
    return np.where((known[at] == wanted).all(1), at, -1)


def _mark(
    words: NDArray[np.uint64], fields: NDArray[np.uint8]
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.uint8]]:
    """Distinct instructions with marks in the fields, for each row the index of its one, and the
    fields that were marked."""
    marked, used = words.copy(), fields.copy()
    for field, (half, shift) in enumerate(_FIELDS):
        bit = np.uint8(1 << field)
        is_zero = _field(words, field) == _ZERO_REGISTER
        used[is_zero] &= ~bit
        rows = (used & bit) != 0
        marked[rows, half] &= ~np.uint64(255 << shift)
        marked[rows, half] |= np.uint64(MARKS[field] << shift)
    # the fields are part of the key: a number may be that of a mark
    keys = without_control(marked)
    keys[:, 1] |= used.astype(np.uint64) << np.uint64(CONTROL_SHIFT)
    first, group = distinct(keys)
    return marked[first], group, used


def _marks(text: str) -> int:
    """Fields whose marks are registers of a text; none if it has other registers, too."""
    found = 0
    for number in _REGISTER.findall(text):
        field = FIELD_OF_MARK.get(number)
        if field is None:
            return 0
        found |= 1 << field
    return found


def _field(words: NDArray[np.uint64], field: int) -> NDArray[np.uint64]:
    half, shift = _FIELDS[field]
    found: NDArray[np.uint64] = words[:, half] >> np.uint64(shift) & np.uint64(255)
    return found


def _list(architecture: int, words: NDArray[np.uint64], end: float) -> list[str]:
    """Texts, without `.reuse`, which depends on control bits."""
    parts = nvdisasm.list_instructions(architecture, words, end) if len(words) else ()
    return [text.replace(".reuse", "") for part in parts for text in part]


def _mix(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed: NDArray[np.uint64] = keys[:, 0] * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= keys[:, 1] * np.uint64(0xC2B2AE3D27D4EB4F)
    return mixed
