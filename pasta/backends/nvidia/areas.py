"""Device memory that maps share, by area: patches, libpasta and readers use one layout.

Words of a launch (in its slot, in stripes, or plain), words of each object
that a launch touches (in stripes too), and totals of the whole run (hash tables of program
counters and other keys, bins of objects, planes of granules).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pasta.backends.nvidia.structs import constants
from pasta.errors import ToolError

#: Bytes of a word; words are unsigned.
WORD = 8
#: Copies of the bins of objects, a power of two.
BIN_STRIPES = 16
#: The most copies of the words of a launch, and of its objects; a power of two.
STRIPES = 128
#: The share of the memory for probes that the words of all launches in flight may take, without and
#: with words of objects, which get what half leaves.
_SLOT_SHARES = 3 / 8, 1 / 4
#: Rows of the table of program counters, a power of two.
_PC_ROWS = 1 << 14
_MAX_HASHES, _MAX_PLANES, _MAX_TRACES = 4, 4, 15
#: Copies of the words of pairs of an object and an instruction, at most, and the bytes that they
#: take in a launch: a batch has 64 launches.
_PAIR_STRIPES, _PAIR_BYTES = 8, 1 << 20


@dataclass(frozen=True)
class Hash:
    """A table of keys: rows (a power of two), words of a row, stripes; without stripes, a shadow:
    pairs of a key and a value, which are not read back."""

    rows: int
    words: int
    stripes: int = 16

    @property
    def claims(self) -> int:
        """Offset in bytes of the number of keys that have a row, behind all of them."""
        if not self.stripes:
            return 2 * WORD * self.rows
        return WORD * (self.rows + self.stripes * (self.rows + 1) * self.words)


@dataclass
class Areas:
    """Size of each area that the maps of a run need, in `memory` bytes for all launches in flight.
    Shifts are log2 of bytes."""

    memory: int = 256 << 20
    slot_words: int = 0
    plain_words: int = 0
    object_words: int = 0
    pc_words: int = 0
    pair_words: int = 0
    pair_rows: int = 0
    key_tables: list[Hash] = field(default_factory=list)
    planes: int = 0
    lasting_planes: int = 0  # bits: planes of the whole run, not of launches
    plane_shift: int = 5
    traces: int = 0
    bin_words: int = 0
    bin_shift: int = 12

    @property
    def hashes(self) -> list[Hash]:
        """All hash tables; the table of program counters, if any, is first."""
        words = self.pc_words
        pcs = [Hash(_PC_ROWS, words, 4 if words > 16 else 16)] if words else []
        return [*pcs, *self.key_tables]

    @property
    def slot_stripe_bytes(self) -> int:
        """Bytes of the words of a launch in each copy: sectors of no other one."""
        return (WORD * self.slot_words + 31) // 32 * 32

    @property
    def slot_stripes(self) -> int:
        """Copies of the words of a launch; 0 without words."""
        shared, stripes = constants(), STRIPES
        each = shared["BATCHES"] * shared["SLOTS"] * self.slot_stripe_bytes
        most = _SLOT_SHARES[self.object_words > 0] * self.memory
        while stripes > shared["MIN_STRIPES"] and stripes * each > most:
            stripes //= 2
        return stripes if each else 0

    @property
    def pairs(self) -> Hash:
        """The table of each launch by object and instruction; without words if no map needs it."""
        stripes, stripe = _PAIR_STRIPES, WORD * self.pair_rows * self.pair_words
        while stripes > 1 and stripes * stripe > _PAIR_BYTES:
            stripes //= 2
        return Hash(self.pair_rows, self.pair_words, stripes)

    def take(self, area: str, words: int) -> int:
        """Reserve words of `slot`, `plain`, `object`, `pair`, `pc` or `bin`. Returns the offset."""
        name = f"{area}_words"
        offset: int = getattr(self, name)
        setattr(self, name, offset + words)
        return offset

    def check(self) -> None:
        """Raises ToolError if an area exceeds the limits of devices."""
        hashes = len(self.hashes)
        if hashes > _MAX_HASHES or self.planes > _MAX_PLANES:
            raise ToolError(
                f"{hashes} key tables and {self.planes} bitmaps do not fit",
                remedy=f"run fewer tools at once: at most {_MAX_HASHES} and {_MAX_PLANES}",
            )
        if self.traces > _MAX_TRACES:
            raise ToolError(f"{self.traces} Trace maps do not fit: at most {_MAX_TRACES}")
