"""Quantities over time in a bounded number of bins, whose width doubles when they are full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class _Bins:
    """Time since `start` in bins of 2**shift ns; earlier times are in the first."""

    def __init__(self, start: int, bins: int = 1024, shift: int = 14) -> None:
        if bins % 2:
            raise ValueError(f"bins must be even, not {bins}")
        self.start = start
        self.bins = bins
        self.shift = shift
        self.used = 0

    @property
    def width(self) -> int:
        """Nanoseconds in a bin."""
        return 1 << self.shift

    @property
    def times(self) -> NDArray[Any]:
        """Begin of each used bin, ns since `start`."""
        return np.arange(self.used, dtype=np.int64) << self.shift

    def place(self, times: NDArray[Any]) -> NDArray[Any]:
        """Bins (int64) of times (uint64 ns), after widening the bins to include all."""
        since = np.maximum(times.astype(np.int64) - self.start, 0)
        last = int(since.max())
        while last >> self.shift >= self.bins:
            self.halve()
            self.shift += 1
            self.used = (self.used + 1) // 2
        self.used = max(self.used, (last >> self.shift) + 1)
        return np.asarray(since >> self.shift)

    def halve(self) -> None:
        """Merges pairs of adjacent bins."""
        raise NotImplementedError


class CountTimeline(_Bins):
    """Number of events in each bin."""

    def __init__(self, start: int, bins: int = 1024) -> None:
        super().__init__(start, bins)
        self._counts = np.zeros(bins, np.int64)

    def add(self, times: NDArray[Any]) -> None:
        """Counts events at times (uint64 ns)."""
        if len(times):
            bins = self.place(times)  # first: it may widen the bins
            self._counts += np.bincount(bins, minlength=self.bins)

    @property
    def counts(self) -> NDArray[Any]:
        """Events in each used bin (int64)."""
        return self._counts[: self.used]

    def halve(self) -> None:
        """Merges pairs of adjacent bins: counts are added."""
        pairs = self._counts.reshape(-1, 2).sum(axis=1)
        self._counts = np.concatenate([pairs, np.zeros_like(pairs)])


class TotalTimeline(_Bins):
    """Growth of a running total in each bin; it grows evenly between known times."""

    def __init__(self, start: int, bins: int = 1024) -> None:
        super().__init__(start, bins)
        self._growth = np.zeros(bins)

    def add(self, times: NDArray[Any], totals: NDArray[Any]) -> None:
        """Adds the growth between ascending times (int64 ns); `totals` may begin at any number."""
        if not len(times):
            return
        bins = self.place(times)
        first, last = int(bins[0]), int(bins[-1])
        edges = np.arange(first, last + 2) << self.shift
        self._growth[first : last + 1] += np.diff(np.interp(edges, times - self.start, totals))

    @property
    def growth(self) -> NDArray[Any]:
        """Growth in each used bin (float64)."""
        return self._growth[: self.used]

    def halve(self) -> None:
        """Merges pairs of adjacent bins: growth is added."""
        pairs = self._growth.reshape(-1, 2).sum(axis=1)
        self._growth = np.concatenate([pairs, np.zeros_like(pairs)])


class LevelTimeline(_Bins):
    """The highest and the last level of a stepped quantity in each bin; no maximum is lost."""

    def __init__(self, start: int, bins: int = 1024) -> None:
        super().__init__(start, bins)
        self._highest = np.full(bins, -1, np.int64)
        self._highest_time = np.zeros(bins, np.int64)
        self._last = np.full(bins, -1, np.int64)
        self._last_time = np.zeros(bins, np.uint64)

    def add(self, times: NDArray[Any], levels: NDArray[Any]) -> None:
        """Adds levels (int64, nonnegative) that begin at times (uint64 ns), in event order."""
        if not len(times):
            return
        bins = self.place(times)
        before = self._highest[bins]
        np.maximum.at(self._highest, bins, levels)
        top = np.flatnonzero((levels == self._highest[bins]) & (levels > before))
        raised, first = np.unique(bins[top], return_index=True)
        began = times[top[first]].astype(np.int64)
        self._highest_time[raised] = np.maximum(began - self.start, 0)
        # Threads publish a little out of order: the last level of a bin is the latest one.
        order = np.argsort(times, kind="stable")
        bins, times, levels = bins[order], times[order], levels[order]
        final = np.append(bins[1:] != bins[:-1], True)
        bins, times, levels = bins[final], times[final], levels[final]
        later = times >= self._last_time[bins]
        self._last[bins[later]] = levels[later]
        self._last_time[bins[later]] = times[later]

    @property
    def last(self) -> NDArray[Any]:
        """Level at the end of each used bin; 0 before the first event."""
        last = self._last[: self.used]
        latest = np.maximum.accumulate(np.where(last >= 0, np.arange(len(last)), -1))
        return np.asarray(np.where(latest >= 0, last[latest], 0))

    @property
    def highest(self) -> NDArray[Any]:
        """Highest level during each used bin, including the level at its begin."""
        last = self.last
        before = np.concatenate([np.zeros(1, np.int64), last[:-1]])[: self.used]
        return np.asarray(np.maximum(self._highest[: self.used], before))

    @property
    def peaks(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Of each bin with an event: when its highest level began (int64 ns since `start`,
        ascending), and that level."""
        known = self._highest[: self.used] >= 0
        return self._highest_time[: self.used][known], self._highest[: self.used][known]

    def halve(self) -> None:
        """Merges pairs of adjacent bins: the maximum, and the later of the last levels."""
        first, second = self._highest.reshape(-1, 2).T
        highest = np.maximum(first, second)
        highest_time = np.where(second > first, *self._highest_time.reshape(-1, 2).T[::-1])
        first, second = self._last.reshape(-1, 2).T
        last = np.where(second >= 0, second, first)
        times = np.where(second >= 0, *self._last_time.reshape(-1, 2).T[::-1])
        self._highest = np.concatenate([highest, np.full_like(highest, -1)])
        self._highest_time = np.concatenate([highest_time, np.zeros_like(highest_time)])
        self._last = np.concatenate([last, np.full_like(last, -1)])
        self._last_time = np.concatenate([times, np.zeros_like(times)])
