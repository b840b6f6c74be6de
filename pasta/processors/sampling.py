"""Sampling of launches by probes, and estimates for all launches."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
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


def estimate(counts: NDArray[Any], probed: int, launches: int) -> Estimate:
    """Total over `launches`, from the counts of the `probed` ones among them.

    Launches with a count of 0 may be omitted. The total is the mean of probed launches times the
    number of launches; its error is that of a sample without replacement.
    """
    values = np.asarray(counts, np.float64)
    probed, total = max(probed, len(values)), float(values.sum())
    if launches == probed:
        return Estimate(total, 0.0)
    if not probed:
        return Estimate(math.nan, math.nan)
    mean, variance = total / probed, _variance(values, probed)
    share = 1 - probed / launches
    return Estimate(mean * launches, launches * math.sqrt(share * variance / probed))


def _variance(values: NDArray[Any], count: int) -> float:
    """Variance of `count` values, of which zeros may be omitted; NaN for a single one."""
    if count < 2:
        return math.nan
    mean = float(values.sum()) / count
    squares = float(((values - mean) ** 2).sum()) + (count - len(values)) * mean**2
    return squares / (count - 1)


@dataclass
class Shape:
    """Launches that do the same, unless it depends on their data: same kernel (name id), module,
    grid, block, dynamic shared memory (bytes; absent: all ones) and, unless a graph launched them,
    operator."""

    kernel: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    seen: int = 0
    probed: int = 0


class Sampling:
    """Numbers of launches and of probed launches, by shape and by kernel (name id)."""

    def __init__(self) -> None:
        self.shapes: dict[int, Shape] = {}
        #: By kernel.
        self.seen: dict[int, int] = {}
        self.probed: dict[int, int] = {}
        #: Ordinals of probed launches and the keys of their shapes.
        self._ordinals: list[NDArray[Any]] = []
        self._keys: list[NDArray[Any]] = []

    def add(self, launches: NDArray[Any], operators: NDArray[Any] | None = None) -> None:
        """Counts launch records. `operators`: ids of the names (uint32) of the operators in which
        they are, if those are followed."""
        from pasta import abi

        if not len(launches):
            return
        probed = launches["flags"] & abi.FLAG_PROBED != 0
        keys = _keys_of(launches)
        if operators is not None:
            direct = launches["flags"] & abi.FLAG_GRAPH == 0
            keys = np.where(direct, _mixed(keys, operators), keys)
        distinct, first, group = np.unique(keys, return_index=True, return_inverse=True)
        group = group.reshape(-1)
        seen = np.bincount(group, minlength=len(distinct)).tolist()
        hits = np.bincount(group[probed], minlength=len(distinct)).tolist()
        for key, row, launched, hit in zip(
            distinct.tolist(), launches[first], seen, hits, strict=True
        ):
            self._count(key, row, launched, hit)
        if probed.any():
            self._ordinals.append(launches["ordinal"][probed])
            self._keys.append(keys[probed])

    def _count(self, key: int, launch: Any, seen: int, probed: int) -> None:
        shape = self.shapes.get(key)
        if shape is None:
            grid, block = tuple(launch["grid"].tolist()), tuple(launch["block"].tolist())
            shape = Shape(int(launch["name"]), grid, block, int(launch["shared_dynamic"]))
            self.shapes[key] = shape
        shape.seen += seen
        shape.probed += probed
        self.seen[shape.kernel] = self.seen.get(shape.kernel, 0) + seen
        if probed:
            self.probed[shape.kernel] = self.probed.get(shape.kernel, 0) + probed

    @property
    def exact(self) -> bool:
        """Whether all launches were probed."""
        return self.seen == self.probed

    @property
    def unprobed(self) -> list[int]:
        """Kernels (name ids) of which no launch was probed."""
        return sorted(name for name in self.seen if not self.probed.get(name))

    def estimates(self, launches: NDArray[Any], counts: NDArray[Any]) -> dict[int, Estimate]:
        """Estimates by launched kernel, from one count per probed launch and its ordinal.

        The estimate of a kernel is the sum over its shapes. Launches of shapes that were never
        probed count as the mean of its probed launches.
        """
        keys = self._keys_at(launches)
        order = np.argsort(keys, kind="stable")
        distinct, starts = np.unique(keys[order], return_index=True)
        groups = np.split(counts[order], starts[1:])
        values = dict(zip(distinct.tolist(), groups, strict=False))
        shapes: dict[int, list[tuple[Estimate, NDArray[Any]]]] = {}
        for key, shape in self.shapes.items():
            if shape.probed:
                own = values.get(key, counts[:0])
                found = estimate(own, shape.probed, shape.seen), own
                shapes.setdefault(shape.kernel, []).append(found)
        rests = self._rests()
        return {
            name: self._of_kernel(name, shapes.get(name, []), rests.get(name, 0))
            for name in self.seen
        }

    def weights(self, launches: NDArray[Any]) -> NDArray[Any]:
        """Launches (float64) that each probed launch stands for, by ordinal: those of its shape
        divided by the probed ones, and its share of those of its kernel's shapes that were never
        probed. A sum of weighted counts is an estimate for all launches of probed kernels."""
        rests = self._rests()
        weights = {
            key: shape.seen / shape.probed + rests.get(shape.kernel, 0) / self.probed[shape.kernel]
            for key, shape in self.shapes.items()
            if shape.probed
        }
        keys, group = np.unique(self._keys_at(launches), return_inverse=True)
        found = np.asarray([weights[key] for key in keys.tolist()], np.float64)
        return np.asarray(found[group.reshape(-1)])

    def _rests(self) -> dict[int, int]:
        """Launches of shapes that were never probed, by kernel."""
        found: dict[int, int] = {}
        for each in self.shapes.values():
            if not each.probed:
                found[each.kernel] = found.get(each.kernel, 0) + each.seen
        return found

    def _of_kernel(
        self, kernel: int, shapes: Sequence[tuple[Estimate, NDArray[Any]]], rest: int
    ) -> Estimate:
        """From the probed shapes of a kernel, each with its counts, and its other launches."""
        if not shapes:
            return Estimate(math.nan, math.nan)
        total = sum(each.total for each, _ in shapes)
        squares = sum(each.error**2 for each, _ in shapes)
        if rest:
            probed = self.probed[kernel]
            values = np.concatenate([counts for _, counts in shapes]).astype(np.float64)
            variance = _variance(values, max(probed, len(values)))
            total += rest * float(values.sum()) / probed
            squares += rest**2 * variance / probed + rest * variance
        return Estimate(total, math.sqrt(squares))

    def _keys_at(self, launches: NDArray[Any]) -> NDArray[Any]:
        """Keys of the shapes of probed launches, by ordinal."""
        if len(self._ordinals) > 1:
            self._ordinals = [np.concatenate(self._ordinals)]
            self._keys = [np.concatenate(self._keys)]
        if not self._ordinals:
            return np.zeros(0, np.uint64)
        order = np.argsort(self._ordinals[0], kind="stable")
        at = np.searchsorted(self._ordinals[0], launches, sorter=order)
        return np.asarray(self._keys[0][order[at]])

    def total(self, estimates: Mapping[int, Estimate]) -> Estimate:
        """Sum over the probed kernels; the error is NaN if that of any kernel is."""
        known = [each for each in estimates.values() if not math.isnan(each.total)]
        error = math.sqrt(sum(each.error**2 for each in known))
        return Estimate(sum(each.total for each in known), error)

    def total_text(self, estimates: Mapping[int, Estimate]) -> str:
        """`about 2,469,600 in all launches, ± 0.4 %`; if some kernels were never probed, of the
        others only, with their share of launches. Empty if all launches were probed, or none.

        ± is one standard error; it is omitted if one launch of several of a shape was probed.
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
        once = sum(each.probed == 1 and each.seen > 1 for each in self.shapes.values())
        if once:
            return f"{text}, no error bound: {counted(once, 'shape')} with one probed launch"
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
                f" {_percent(self._share(unprobed))} of launches (--sample, or --set"
                f" probes.every={every}, instead of a window or budget probes the first launch of"
                " each)"
            )
        rest = [
            each for each in self.shapes.values() if not each.probed and each.kernel in self.probed
        ]
        if rest:
            text += (
                f"; {counted(len(rest), 'shape')} of launches never probed,"
                f" {_percent(sum(each.seen for each in rest) / seen)} of launches: counted as the"
                " mean of their kernels"
            )
        return text

    def _share(self, kernels: Collection[int]) -> float:
        """Share of launches of these kernels."""
        return sum(self.seen[name] for name in kernels) / sum(self.seen.values())


def _keys_of(launches: NDArray[Any]) -> NDArray[Any]:
    """A hash of each launch's shape (uint64); libpasta tells shapes apart by the same fields."""
    keys = launches["name"].astype(np.uint64)
    fields = [launches["module"], launches["shared_dynamic"]]
    fields += [launches[name][:, axis] for name in ("grid", "block") for axis in range(3)]
    for values in fields:
        keys = _mixed(keys, values)
    return keys


def _mixed(keys: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    keys = (keys ^ values.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
    return np.asarray(keys ^ keys >> np.uint64(29))


def _percent(share: float) -> str:
    percent = 100 * share
    if 0 < percent < 0.1:
        return "less than 0.1 %"
    return f"{percent:.1f} %" if percent < 10 else f"{percent:.0f} %"
