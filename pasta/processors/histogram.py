"""Durations in logarithmic buckets: quantiles of any number of values in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.codes import grown

if TYPE_CHECKING:
    from numpy.typing import NDArray


class DurationSummary:
    """Count, total, minimum, maximum and quantiles of durations, for each dense code.

    All but the quantiles are exact: a bucket holds values within 1/64 of each other (64 buckets
    per octave), and a quantile is the middle of its bucket, within 0.8 % of a value of that rank
    and never outside of the minimum and maximum.
    """

    PER_OCTAVE = 64
    _STRIDE = 1 << 12

    def __init__(self) -> None:
        self.count = np.zeros(0, np.int64)
        self.total = np.zeros(0, np.int64)
        self.minimum = np.zeros(0, np.int64)
        self.maximum = np.zeros(0, np.int64)
        self._buckets: dict[int, int] = {}

    def add(self, codes: NDArray[Any], durations: NDArray[Any]) -> None:
        """Adds durations (int64, nonnegative ns) of codes (nonnegative integers), of equal
        length."""
        if not len(codes):
            return
        self._grow(int(codes.max()) + 1)
        self.count += np.bincount(codes, minlength=len(self.count))
        np.add.at(self.total, codes, durations)
        np.minimum.at(self.minimum, codes, durations)
        np.maximum.at(self.maximum, codes, durations)
        keys = codes.astype(np.int64) * self._STRIDE + self._bucket(durations)
        distinct, counts = np.unique(keys, return_counts=True)
        for key, count in zip(distinct.tolist(), counts.tolist(), strict=True):
            self._buckets[key] = self._buckets.get(key, 0) + count

    def _grow(self, length: int) -> None:
        self.count = grown(self.count, length)
        self.total = grown(self.total, length)
        self.minimum = grown(self.minimum, length, np.iinfo(np.int64).max)
        self.maximum = grown(self.maximum, length, -1)

    def _bucket(self, durations: NDArray[Any]) -> NDArray[Any]:
        mantissa, exponent = np.frexp(durations.astype(np.float64))
        within = ((mantissa - 0.5) * (2 * self.PER_OCTAVE)).astype(np.int64)
        return np.where(durations > 0, exponent * self.PER_OCTAVE + within, 0)

    def _middle(self, bucket: int) -> float:
        exponent, within = divmod(bucket, self.PER_OCTAVE)
        return float(np.ldexp(0.5 + (within + 0.5) / (2 * self.PER_OCTAVE), exponent))

    def quantiles(self, codes: int, *shares: float) -> list[NDArray[Any]]:
        """For each share, the quantile (int64 ns) of codes 0 … `codes` - 1; -1 without values."""
        found = [np.full(codes, -1, np.int64) for _ in shares]
        below = np.zeros(codes, np.int64)
        for key in sorted(self._buckets):
            code, bucket = divmod(key, self._STRIDE)
            reached = below[code] + self._buckets[key]
            for share, values in zip(shares, found, strict=True):
                rank = max(1, int(np.ceil(share * self.count[code])))
                if below[code] < rank <= reached:
                    middle = round(self._middle(bucket)) if bucket else 0
                    values[code] = min(max(middle, self.minimum[code]), self.maximum[code])
            below[code] = reached
        return found
