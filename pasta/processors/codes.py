"""Dense codes for sparse ids and for rows of numbers, so that counting is a bincount."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: A string id is an arena offset over 8; no arena is large enough for this id.
MAX_ID = 1 << 27
_BITS_OF_BYTE: list[int] = [bin(byte).count("1") for byte in range(256)]


def grown(array: NDArray[Any], length: int, fill: int | float = 0) -> NDArray[Any]:
    """The array, or a copy at least `length` long along its first axis, filled up with `fill`."""
    if len(array) >= length:
        return array
    shape = (max(length, 2 * len(array), 16), *array.shape[1:])
    longer = np.full(shape, fill, array.dtype) if fill else np.zeros(shape, array.dtype)
    longer[: len(array)] = array
    return longer


def distinct(values: NDArray[Any]) -> list[int]:
    """Distinct values of an array; fast if all are equal."""
    if len(values) and (values == values[0]).all():
        return [int(values[0])]
    found: list[int] = np.unique(values).tolist()
    return found


def bit_count(words: NDArray[Any]) -> NDArray[Any]:
    """Number of set bits in each uint64, as uint64."""
    table = np.asarray(_BITS_OF_BYTE, np.uint8)
    bytes = np.ascontiguousarray(words, np.uint64).view(np.uint8).reshape(-1, 8)
    return np.asarray(table[bytes].sum(axis=1, dtype=np.uint64))


class Codes:
    """0, 1, 2, … for string ids, in order of first appearance; `ids[code]` is the inverse."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._code_plus_1 = np.zeros(1024, np.int32)

    def __len__(self) -> int:
        return len(self.ids)

    def encode(self, ids: NDArray[Any]) -> NDArray[Any]:
        """Codes (int32) of string ids (uint32); an id that cannot be one counts as absent, 0."""
        if not len(ids):
            return np.empty(0, np.int32)
        if int(ids.max()) >= MAX_ID:
            ids = np.where(ids < MAX_ID, ids, 0)
        self._code_plus_1 = grown(self._code_plus_1, int(ids.max()) + 1)
        codes = self._code_plus_1[ids]
        if not codes.all():
            unseen = ids[codes == 0]
            _, first = np.unique(unseen, return_index=True)
            for id in unseen[np.sort(first)].tolist():
                self.ids.append(id)
                self._code_plus_1[id] = len(self.ids)
            codes = self._code_plus_1[ids]
        return np.asarray(codes - np.int32(1))


class RowCodes:
    """0, 1, 2, … for distinct rows of 64-bit words, in order of first appearance.

    At most `limit` rows get a code; later new ones get -1. Rows are compared by a 64-bit hash
    of their words: for a million distinct rows the probability of a collision is below 3e-8.
    """

    SLOTS = 1 << 16

    def __init__(self, limit: int = 1 << 18) -> None:
        self.limit = limit
        self.rows: list[tuple[int, ...]] = []
        self._code_of: dict[int, int] = {}
        # A direct-mapped cache before the dictionary: no sorting and no Python for known rows.
        self._hashes = np.zeros(self.SLOTS, np.uint64)
        self._codes = np.zeros(self.SLOTS, np.int64)

    def __len__(self) -> int:
        return len(self.rows)

    def encode(self, words: NDArray[Any]) -> NDArray[Any]:
        """Codes (int64) of rows: `words` is uint64 of shape (rows, words per row)."""
        hashes = row_hashes(words)
        slots = (hashes & np.uint64(self.SLOTS - 1)).astype(np.intp)
        codes = self._codes[slots]
        missed = np.flatnonzero(self._hashes[slots] != hashes)
        if len(missed):
            codes[missed] = self._encode_slowly(words, hashes, missed)
            self._hashes[slots[missed]] = hashes[missed]
            self._codes[slots[missed]] = codes[missed]
        return np.asarray(codes)

    def encode_new(self, words: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Codes of rows, and the index of the first row of each code that is new, by code."""
        before = len(self)
        codes = self.encode(words)
        if len(self) == before:
            return codes, np.empty(0, np.intp)
        _, first = np.unique(codes, return_index=True)
        return codes, first[codes[first] >= before]

    def _encode_slowly(
        self, words: NDArray[Any], hashes: NDArray[Any], missed: NDArray[Any]
    ) -> NDArray[Any]:
        distinct, first, inverse = np.unique(hashes[missed], return_index=True, return_inverse=True)
        codes = np.empty(len(distinct), np.int64)
        for each in np.argsort(first).tolist():
            key = int(distinct[each])
            code = self._code_of.get(key)
            if code is None:
                code = -1
                if len(self.rows) < self.limit:
                    code = self._code_of[key] = len(self.rows)
                    self.rows.append(tuple(words[missed[first[each]]].tolist()))
            codes[each] = code
        return np.asarray(codes[inverse.reshape(-1)])

    def __getstate__(self) -> dict[str, Any]:
        return {"limit": self.limit, "rows": self.rows, "_code_of": self._code_of}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._hashes = np.zeros(self.SLOTS, np.uint64)
        self._codes = np.zeros(self.SLOTS, np.int64)


def row_hashes(words: NDArray[Any]) -> NDArray[Any]:
    """Hashes (uint64, never 0) of rows of words: multiply and fold, twice for every word."""
    hashes = np.full(len(words), 0x9E37_79B9_7F4A_7C15, np.uint64)
    for column in range(words.shape[1]):
        hashes ^= words[:, column]
        for factor in (0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB):
            hashes *= np.uint64(factor)
            hashes ^= hashes >> np.uint64(31)
    hashes[hashes == 0] = 1
    return hashes


def span_dtype(dtype: np.dtype[Any], first: str, last: str) -> np.dtype[Any]:
    """View of the bytes of consecutive fields `first` … `last` as one field of uint64 words."""
    assert dtype.fields is not None
    begin = dtype.fields[first][1]
    end = dtype.fields[last][1] + dtype[last].itemsize
    if (end - begin) % 8:
        raise ValueError(f"fields {first}…{last} are {end - begin} bytes, not whole words")
    words = (np.uint64, ((end - begin) // 8,))
    return np.dtype(
        {
            "names": ["words"],
            "formats": [words],
            "offsets": [begin],
            "itemsize": dtype.itemsize,
        }
    )


def words_of(records: NDArray[Any], first: str, last: str) -> NDArray[Any]:
    """Fields `first` … `last` of records as a contiguous uint64 array (records, words)."""
    view = np.ascontiguousarray(records).view(span_dtype(records.dtype, first, last))
    return np.ascontiguousarray(view["words"])
