"""Sampling of launches by probes, and estimates for all launches."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.table import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Estimate:
    """A total over all launches, and its standard error.

    `error` is 0 if all were probed, and NaN if unknown: one launch of several was probed, or
    none.
    """

    total: float
    error: float

    @property
    def relative(self) -> float:
        """The error as a share of the total; NaN where the total is 0."""
        return self.error / self.total if self.total else math.nan


@dataclass
class Sampling:
    """Numbers of launches and of probed launches by kernel (name id)."""

    seen: dict[int, int] = field(default_factory=dict)
    probed: dict[int, int] = field(default_factory=dict)

    def add(self, launches: NDArray[Any]) -> None:
        """Counts launch records."""
        from pasta import abi

        probed = launches["flags"] & abi.FLAG_PROBED != 0
        for counts, names in (
            (self.seen, launches["name"]),
            (self.probed, launches["name"][probed]),
        ):
            for name, count in zip(*np.unique(names, return_counts=True), strict=True):
                counts[int(name)] = counts.get(int(name), 0) + int(count)

    @property
    def exact(self) -> bool:
        """Whether all launches were probed."""
        return self.seen == self.probed

    @property
    def unprobed(self) -> list[int]:
        """Kernels (name ids) of which no launch was probed."""
        return sorted(name for name in self.seen if not self.probed.get(name))

    def scale(self, kernel: int) -> float:
        """Launches per probed launch of a kernel; NaN if none was probed."""
        probed = self.probed.get(kernel, 0)
        return self.seen[kernel] / probed if probed else math.nan

    def estimate(self, kernel: int, counts: NDArray[Any]) -> Estimate:
        """Total over all launches of a kernel, from the counts of probed ones.

        Launches with a count of 0 may be omitted. The total is the mean of probed launches times
        the number of launches; its error is that of a sample without replacement.
        """
        values = np.asarray(counts, np.float64)
        seen, total = self.seen.get(kernel, 0), float(values.sum())
        probed = max(self.probed.get(kernel, 0), len(values))
        if seen == probed:
            return Estimate(total, 0.0)
        if not probed:
            return Estimate(math.nan, math.nan)
        mean = total / probed
        if probed == 1:
            return Estimate(mean * seen, math.nan)
        zeros = probed - len(values)
        squares = float(((values - mean) ** 2).sum()) + zeros * mean**2
        variance = squares / (probed - 1)
        return Estimate(mean * seen, seen * math.sqrt((1 - probed / seen) * variance / probed))

    def estimates(self, kernels: NDArray[Any], counts: NDArray[Any]) -> dict[int, Estimate]:
        """Estimates by launched kernel, from one count per probed launch and its kernel."""
        return {name: self.estimate(name, counts[kernels == np.uint32(name)]) for name in self.seen}

    def total(self, estimates: Mapping[int, Estimate]) -> Estimate:
        """Sum over the probed kernels; the error is NaN if that of any kernel is."""
        known = [each for each in estimates.values() if not math.isnan(each.total)]
        error = math.sqrt(sum(each.error**2 for each in known))
        return Estimate(sum(each.total for each in known), error)

    def total_text(self, estimates: Mapping[int, Estimate]) -> str:
        """`about 2,469,600 in all launches, ± 0.4 %`; if some kernels were never probed, of the
        others only, with their share of launches. Empty if all launches were probed, or none.

        ± is one standard error; it is omitted if one launch of several of a kernel was probed.
        """
        if self.exact or not any(self.probed.values()):
            return ""
        total, unprobed = self.total(estimates), self.unprobed
        text = f"about {total.total:,.0f} in all launches"
        if unprobed:
            text += (
                f" of the {len(self.seen) - len(unprobed):,} of {len(self.seen):,} kernels that"
                f" were probed ({_percent(1 - self._share(unprobed))} of"
                f" {counted(sum(self.seen.values()), 'launch')})"
            )
        once = sum(count == 1 and self.seen[name] > 1 for name, count in self.probed.items())
        if once:
            return f"{text}, no error bound: {counted(once, 'kernel')} with one probed launch"
        return text + ("" if math.isnan(total.relative) else f", ± {_percent(total.relative)}")

    def text(self) -> str:
        """`counted in 1,029 of 102,900 launches`, with the kernels that were never probed and a
        remedy; empty if all launches were probed."""
        if self.exact:
            return ""
        seen, probed = sum(self.seen.values()), sum(self.probed.values())
        if not probed:
            return f"no launch was probed, of {seen:,}"
        text, unprobed = f"counted in {probed:,} of {counted(seen, 'launch')}", self.unprobed
        if unprobed:
            every = max(1, round(seen / probed))
            text += (
                f"; never probed: {counted(len(unprobed), 'kernel')},"
                f" {_percent(self._share(unprobed))} of launches (--set probes.every={every}"
                " instead of a window or budget probes the first launch of each)"
            )
        return text

    def _share(self, kernels: Collection[int]) -> float:
        """Share of launches of these kernels."""
        return sum(self.seen[name] for name in kernels) / sum(self.seen.values())


def _percent(share: float) -> str:
    percent = 100 * share
    if 0 < percent < 0.1:
        return "less than 0.1 %"
    return f"{percent:.1f} %" if percent < 10 else f"{percent:.0f} %"
