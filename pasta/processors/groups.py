"""Counts and sums by rows of numbers, in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.codes import RowCodes, grown

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Groups:
    """Counts of distinct rows of numbers, and sums of amounts by row.

    At most `limit` rows are distinguished; `left_out` counts the other rows.
    """

    def __init__(self, limit: int, *amounts: str, dtype: str = "i8") -> None:
        """`amounts`: names of the summed values, of type `dtype`."""
        self.codes = RowCodes(limit)
        self.left_out = 0
        self._count = np.zeros(0, np.int64)
        self._sums = {name: np.zeros(0, dtype) for name in amounts}

    def __len__(self) -> int:
        return len(self.codes)

    def add(self, *columns: NDArray[Any], **amounts: NDArray[Any]) -> NDArray[Any]:
        """Counts rows, given by their columns of one length; returns their codes (int64), -1 past
        the limit."""
        words = np.column_stack([column.astype(np.uint64) for column in columns])
        codes = self.codes.encode(words)
        known = codes >= 0
        self.left_out += int(len(known) - known.sum())
        self._count = grown(self._count, len(self.codes))
        self._count += np.bincount(codes[known], minlength=len(self._count))
        for name, values in amounts.items():
            self._sums[name] = grown(self._sums[name], len(self.codes))
            np.add.at(self._sums[name], codes[known], values[known])
        return codes

    @property
    def rows(self) -> list[tuple[int, ...]]:
        """Distinct rows, in order of first appearance, as the arrays below."""
        return self.codes.rows

    @property
    def count(self) -> NDArray[Any]:
        """Number of occurrences of each row (int64)."""
        return self._count[: len(self.codes)]

    def sum(self, amount: str) -> NDArray[Any]:
        """Sums of an amount, by row."""
        return grown(self._sums[amount], len(self.codes))[: len(self.codes)]

    def column(self, at: int) -> NDArray[Any]:
        """A column of the distinct rows (uint64)."""
        return np.asarray([row[at] for row in self.rows], np.uint64)
