"""Sampling of launches by probes, and estimates for all launches."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.rows import combined
from pasta.table import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: In place of the id of an operator's name.
_ANY = (1 << 32) - 1
#: Launches of a page of `Sampling`: a damaged record with a huge ordinal costs one page.
_PAGE = 1 << 16
#: Launches before a pause whose operators are taken as those of the launches at the pause. libpasta
#: follows operators for at least as many before it pauses (PATIENCE of scope.c).
_RECENT = 4096
#: Launches that are divided at a time: their order does not matter.
_CHUNK = 1024
#: Most first launches of a shape that are kept apart, and the fewest probed launches after them for
#: which they are: what comes first in a run, or in a step, may be unlike the rest.
_FIRST, _OTHERS = 8, 5


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


def estimate(counts: NDArray[Any], probed: int, launches: float) -> Estimate:
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
    operator.

    A shape has two numbers: `number` + 1 for its first launches. Numbers are consecutive, from 1.

    `alike` is equal for shapes that differ in the operator only. Launches while operators were
    paused or followed briefly, which were not probed, are a shape without a known operator:
    `paused`. `brief`: probed ones of these, which do not tell how often their operator launches.
    `first`: those before the first that was not probed; `first_missed`: of them without counts.
    `divided`: launches at pauses that count for this shape, by those that were followed shortly
    before."""

    number: int
    alike: int
    paused: bool
    kernel: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    seen: int = 0
    probed: int = 0
    brief: int = 0
    divided: float = 0.0
    first: int = 0
    first_missed: int = 0

    @property
    def followed(self) -> int:
        """Launches that tell how often the operator launches."""
        return 0 if self.paused else self.seen - self.brief

    @property
    def split(self) -> bool:
        """Whether the first launches, which were all probed, stand for themselves only."""
        return self.first > 1 and not self.first_missed and self.probed - self.first >= _OTHERS


class Sampling:
    """Numbers of launches and of probed launches, by shape and by kernel (name id)."""

    def __init__(self) -> None:
        self.shapes: dict[int, Shape] = {}
        #: By kernel.
        self.seen: dict[int, int] = {}
        self.probed: dict[int, int] = {}
        #: Numbers of the shapes of launches (0: unknown), by ordinal: in pages of `_PAGE`.
        self._numbers: dict[int, NDArray[Any]] = {}
        #: Launches that are flagged as probed, but have no counts, in such pages; their number.
        self._missed: dict[int, NDArray[Any]] = {}
        self._misses = 0
        #: Numbers of the shapes of the last followed launches, oldest first.
        self._recent: NDArray[Any] = np.empty(0, np.uint32)

    def add(self, launches: NDArray[Any], operators: NDArray[Any] | None = None) -> None:
        """Counts launch records. `operators`: ids of the names (uint32) of the operators in which
        they are, if those are followed."""
        from pasta import abi

        if not len(launches):
            return
        probed = launches["flags"] & abi.FLAG_PROBED != 0
        keys = alike = _keys_of(launches)
        paused = brief = np.zeros(len(launches), bool)
        if operators is not None:
            direct = launches["flags"] & abi.FLAG_GRAPH == 0
            at_pause = direct & (launches["flags"] & abi.FLAG_PAUSED != 0)
            paused, brief = at_pause & ~probed, at_pause & probed
            alike = np.where(direct, _mixed(keys, np.uint64(_ANY)), keys)
            keys = np.where(direct & ~paused, _mixed(keys, operators), alike)
        distinct, first, group = np.unique(keys, return_index=True, return_inverse=True)
        group = group.reshape(-1)
        seen = np.bincount(group, minlength=len(distinct)).tolist()
        hits, briefly = (
            np.bincount(group[of], minlength=len(distinct)).tolist() for of in (probed, brief)
        )
        shapes = [
            self._shape(*each)
            for each in zip(
                distinct.tolist(), launches[first], alike[first].tolist(), paused[first].tolist(),
                strict=True,
            )
        ]  # fmt: skip
        of_launch = np.asarray([shape.number for shape in shapes], np.uint32)[group]
        of_launch[self._firsts(shapes, group, probed, launches["ordinal"])] += 1
        for shape, *counts in zip(shapes, seen, hits, briefly, strict=True):
            self._count(shape, *counts)
        for page, mine, at in _pages(launches["ordinal"]):
            self._numbers.setdefault(page, np.zeros(_PAGE, np.uint32))[at] = of_launch[mine]
        if operators is not None:
            order = np.argsort(launches["ordinal"][direct], kind="stable")
            self._divide(*(each[direct][order] for each in (of_launch, alike, at_pause)))

    def _firsts(
        self, shapes: Sequence[Shape], group: NDArray[Any], probed: NDArray[Any],
        ordinals: NDArray[Any],
    ) -> NDArray[Any]:  # fmt: skip
        """Indices of launches that are among the first ones of their shape, of which none was left
        out. `shapes`: by group; their launches were not counted yet."""
        new = [each.first == each.seen and each.first < _FIRST for each in shapes]
        if not any(new):
            return np.empty(0, np.intp)
        mine = np.flatnonzero(np.asarray(new)[group])
        mine = mine[np.lexsort((ordinals[mine], group[mine]))]
        found = []
        for part in np.split(mine, np.flatnonzero(np.diff(group[mine])) + 1):
            shape, hit = shapes[group[part[0]]], probed[part]
            part = part[: len(part) if hit.all() else int(hit.argmin())][: _FIRST - shape.first]
            shape.first += len(part)
            found.append(part)
        return np.concatenate(found)

    def _divide(self, numbers: NDArray[Any], alike: NDArray[Any], at_pause: NDArray[Any]) -> None:
        """Divides launches at pauses among shapes, in proportion to those that were followed
        shortly before: what a program launches at its start may not recur."""
        shapes = [*self.shapes.values()]
        shares: dict[int, list[tuple[Shape, float]]] | None = None
        for begin in range(0, len(numbers), _CHUNK):
            part = slice(begin, begin + _CHUNK)
            followed = numbers[part][~at_pause[part]]
            if len(followed):
                self._recent = np.concatenate([self._recent, followed])[-_RECENT:]
                shares = None
            if len(followed) == len(numbers[part]):
                continue
            if shares is None:
                shares = _shares(shapes, self._recent)
            distinct, counts = np.unique(alike[part][at_pause[part]], return_counts=True)
            for key, count in zip(distinct.tolist(), counts.tolist(), strict=True):
                for shape, share in shares.get(key, ()):
                    shape.divided += count * share

    def _shape(self, key: int, launch: Any, alike: int, paused: bool) -> Shape:
        shape = self.shapes.get(key)
        if shape is None:
            grid, block = tuple(launch["grid"].tolist()), tuple(launch["block"].tolist())
            shape = self.shapes[key] = Shape(
                2 * len(self.shapes) + 1, alike, paused, int(launch["name"]), grid, block,
                int(launch["shared_dynamic"]),
            )  # fmt: skip
        return shape

    def _count(self, shape: Shape, seen: int, probed: int, brief: int) -> None:
        shape.seen += seen
        shape.probed += probed
        shape.brief += brief
        self.seen[shape.kernel] = self.seen.get(shape.kernel, 0) + seen
        if probed:
            self.probed[shape.kernel] = self.probed.get(shape.kernel, 0) + probed

    def miss(self, launches: NDArray[Any]) -> NDArray[Any]:
        """Takes launches by ordinal, which were added as probed, out of the probed ones; which of
        them (bool) were not taken out before."""
        _, first = np.unique(launches, return_index=True)
        new = np.zeros(len(launches), bool)
        new[first] = ~self.missed(launches[first])
        new &= self.numbers(launches) > 0
        self._misses += int(new.sum())
        for page, _, at in _pages(launches[new]):
            self._missed.setdefault(page, np.zeros(_PAGE, bool))[at] = True
        shapes = [*self.shapes.values()]
        numbers, counts = np.unique(self.numbers(launches[new]), return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            shape = shapes[(number - 1) // 2]
            shape.probed -= count
            shape.first_missed += count if number != shape.number else 0
            self.probed[shape.kernel] -= count
            if not self.probed[shape.kernel]:
                del self.probed[shape.kernel]
        return new

    def missed(self, launches: NDArray[Any]) -> NDArray[Any]:
        """Which launches (bool), by ordinal, have the flag of probed ones but no counts: the device
        lacked memory, for example."""
        found = np.zeros(len(launches), bool)
        for page, mine, at in _pages(launches):
            if page in self._missed:
                found[mine] = self._missed[page][at]
        return found

    @property
    def all_missed(self) -> NDArray[Any]:
        """The launches that are `missed`, by ordinal (uint64)."""
        pages = sorted(self._missed.items())
        found = [np.flatnonzero(missed) + page * _PAGE for page, missed in pages]
        return np.concatenate([np.empty(0, np.int64), *found]).astype(np.uint64)

    def numbers(self, launches: NDArray[Any]) -> NDArray[Any]:
        """Numbers of the shapes (uint32) of launches, by ordinal; 0: unknown."""
        found = np.zeros(len(launches), np.uint32)
        for page, mine, at in _pages(launches):
            if page in self._numbers:
                found[mine] = self._numbers[page][at]
        return found

    @property
    def exact(self) -> bool:
        """Whether all launches were probed."""
        return self.seen == self.probed

    @property
    def unprobed(self) -> list[int]:
        """Kernels (name ids) without a probed launch."""
        return sorted(name for name in self.seen if not self.probed.get(name))

    def launches(self) -> dict[int, float]:
        """Launches by the number of a shape: those while operators were paused or followed briefly
        are divided among the shapes that differ in the operator only, in proportion to their other
        launches: those shortly before the pause, or if none of them was, all."""
        followed: dict[int, int] = {}
        others: dict[int, float] = {}
        for each in self.shapes.values():
            followed[each.alike] = followed.get(each.alike, 0) + each.followed
            if each.paused or each.followed:
                more = each.seen - each.followed - each.divided
                others[each.alike] = others.get(each.alike, 0) + more
        found: dict[int, float] = {}
        for each in self.shapes.values():
            more, own = max(others.get(each.alike, 0), 0), followed[each.alike]
            if each.followed:
                share = each.divided + (each.followed * more / own if more else 0)
                found[each.number] = max(each.followed + share, each.probed)
            else:
                found[each.number] = 0 if each.paused and own else each.seen
        return found

    def estimates(self, launches: NDArray[Any], counts: NDArray[Any]) -> dict[int, Estimate]:
        """Estimates by launched kernel, from one count per probed launch and its ordinal.

        The estimate of a kernel is the sum over its shapes. Launches of shapes that were never
        probed count as the mean of its probed launches.
        """
        numbers = self.numbers(launches)
        order = np.argsort(numbers, kind="stable")
        distinct, starts = np.unique(numbers[order], return_index=True)
        groups = np.split(counts[order], starts[1:])
        values = dict(zip(distinct.tolist(), groups, strict=False))
        shapes: dict[int, list[tuple[Estimate, NDArray[Any]]]] = {}
        seen = self.launches()
        for shape in self.shapes.values():
            if shape.probed:
                own, first = (values.get(shape.number + n, counts[:0]) for n in (0, 1))
                both = np.concatenate([first, own])
                if shape.split:
                    rest = shape.probed - shape.first
                    found = estimate(own, rest, seen[shape.number] - shape.first)
                    found = Estimate(found.total + float(first.sum()), found.error)
                else:
                    found = estimate(both, shape.probed, seen[shape.number])
                shapes.setdefault(shape.kernel, []).append((found, both))
        rests = self._rests(seen)
        return {
            name: self._of_kernel(name, shapes.get(name, []), rests.get(name, 0))
            for name in self.seen
        }

    def weights(self, launches: NDArray[Any]) -> NDArray[Any]:
        """Launches (float64; int64 ones if all were probed) that each probed launch stands for, by
        ordinal: those of its shape divided by the probed ones, and its share of those of its
        kernel's shapes that were never probed. A sum of weighted counts is an estimate for all
        launches of probed kernels."""
        if self.exact:
            return np.ones(len(launches), np.int64)
        return np.asarray(self.shape_weights()[self.numbers(launches)])

    def totals(self, rows: NDArray[Any], key: str) -> NDArray[Any]:
        """Sums over all launches (uint64) of the fields of rows by `launch` and `key`, by key."""
        weights = self.weights(rows["launch"])
        fields = [name for name in rows.dtype.names or () if name not in ("launch", key)]
        types = [(name, weights.dtype) for name in fields]
        found = np.empty(len(rows), [(key, rows.dtype[key]), *types])
        found[key] = rows[key]
        for name in fields:
            found[name] = weights * rows[name].astype(weights.dtype)
        found = combined(found, [key])
        for name in fields:
            found[name] = np.rint(found[name])
        return found.astype([(key, rows.dtype[key]), *((name, "u8") for name in fields)])

    def shape_weights(self) -> NDArray[Any]:
        """`weights` by the number of a shape; 1 for unknown shapes (number 0)."""
        seen, found = self.launches(), np.ones(2 * len(self.shapes) + 1)
        rests = self._rests(seen)
        for each in self.shapes.values():
            if each.probed:
                first = each.first if each.split else 0
                weight = (seen[each.number] - first) / (each.probed - first)
                both = found[each.number : each.number + 2]
                both[:] = weight, 1 if first else weight
                both += rests.get(each.kernel, 0) / self.probed[each.kernel]
        return found

    def completed(self, launches: NDArray[Any], counts: NDArray[Any]) -> NDArray[Any]:
        """Counts (float64; NaN: not probed) by ordinal, those of launches that were not probed as
        the mean of their shape, or if that was never probed, of the shapes that differ in the
        operator only, or of their kernel; NaN if none was."""
        numbers = self.numbers(launches)
        wider = np.zeros((3, 2 * len(self.shapes) + 1), np.uint64)
        for each in self.shapes.values():
            wider[:, each.number] = each.number, each.alike, each.kernel
            wider[:, each.number + 1] = each.number + each.split, each.alike, each.kernel
        found = counts
        for of in wider:
            groups = np.unique(of[numbers], return_inverse=True)[1].reshape(-1)
            known = ~np.isnan(counts)
            size = int(groups.max(initial=0)) + 1
            probed = np.bincount(groups[known], minlength=size)
            sums = np.bincount(groups[known], counts[known], size)
            means = np.where(probed > 0, sums / np.maximum(probed, 1), np.nan)
            found = np.where(np.isnan(found), means[groups], found)
        return np.asarray(found)

    def _rests(self, seen: Mapping[int, float]) -> dict[int, float]:
        """Launches of shapes that were never probed, by kernel; `seen`: `launches`."""
        found: dict[int, float] = {}
        for each in self.shapes.values():
            if not each.probed:
                found[each.kernel] = found.get(each.kernel, 0) + seen[each.number]
        return found

    def _of_kernel(
        self, kernel: int, shapes: Sequence[tuple[Estimate, NDArray[Any]]], rest: float
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

    def total(self, estimates: Mapping[int, Estimate]) -> Estimate:
        """Sum over the probed kernels; the error is NaN if that of any kernel is."""
        known = [each for each in estimates.values() if not math.isnan(each.total)]
        error = math.sqrt(sum(each.error**2 for each in known))
        return Estimate(sum(each.total for each in known), error)

    def total_text(self, estimates: Mapping[int, Estimate]) -> str:
        """`about 2,469,600 in all launches, ± 0.4 %`, with `scope_text`. Empty if all launches were
        probed, or none."""
        scope = self.scope_text(estimates)
        return f"about {self.total(estimates).total:,.0f} in {scope}" if scope else ""

    def scope_text(self, estimates: Mapping[int, Estimate]) -> str:
        """`all launches, ± 0.4 %`; if some kernels were never probed, of the others only, with
        their share of launches. Empty if all launches were probed, or none.

        ± is one standard error; it is omitted if one launch of several of a shape was probed.
        """
        if self.exact or not any(self.probed.values()):
            return ""
        total, unprobed = self.total(estimates), self.unprobed
        text = "all launches"
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
            return f"no launches were probed, of {seen:,}"
        text, unprobed = f"counted in {probed:,} of {counted(seen, 'launch')}", self.unprobed
        if unprobed:
            every = max(1, round(seen / probed))
            text += (
                f"; never probed: {counted(len(unprobed), 'kernel')},"
                f" {_percent(self._share(unprobed))} of launches"
            )
        if unprobed and probed + self._misses < seen:
            text += (
                f" (--sample, or --set probes.every={every}, instead of a window or budget probes"
                " the first launch of each)"
            )
        launched = self.launches()
        rest = [
            launched[each.number]
            for each in self.shapes.values()
            if not each.probed and each.kernel in self.probed and launched[each.number]
        ]
        if rest:
            text += (
                f"; {counted(len(rest), 'shape')} of launches never probed,"
                f" {_percent(sum(rest) / seen)} of launches: counted as the mean of their kernels"
            )
        paused = sum(each.seen for each in self.shapes.values() if each.paused)
        if paused:
            text += (
                f"; operators were paused in {_percent(paused / seen)} of launches, which count for"
                " them in proportion to the others"
            )
        return text

    def _share(self, kernels: Collection[int]) -> float:
        """Share of launches of these kernels."""
        return sum(self.seen[name] for name in kernels) / sum(self.seen.values())


def _shares(shapes: Sequence[Shape], numbers: NDArray[Any]) -> dict[int, list[tuple[Shape, float]]]:
    """The shapes with these numbers, each with its share of those alike, by `alike`."""
    found: dict[int, list[tuple[Shape, int]]] = {}
    distinct, counts = np.unique((numbers - 1) // 2, return_counts=True)
    for index, count in zip(distinct.tolist(), counts.tolist(), strict=True):
        shape = shapes[index]
        found.setdefault(shape.alike, []).append((shape, count))
    totals = {key: sum(count for _, count in each) for key, each in found.items()}
    return {
        key: [(shape, count / totals[key]) for shape, count in each] for key, each in found.items()
    }


def _pages(launches: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any], NDArray[Any]]]:
    """Pages of launches by ordinal: number, which launches are in it, and their places."""
    page, at = np.divmod(launches.astype(np.int64), _PAGE)
    for number in np.unique(page).tolist():
        mine = page == number
        yield number, mine, at[mine]


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
