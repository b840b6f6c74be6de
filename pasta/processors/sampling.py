"""Sampling of launches by probes, and estimates for all launches."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.codes import RowCodes, distinct, grown, span_dtype
from pasta.processors.drift import Probed, changes
from pasta.processors.rows import combined
from pasta.table import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: In place of the id of an operator's name: unknown, and not in a framework's call.
_ANY, _GRAPH = 1 << 32, 1 << 33
#: Words of a launch record, from `name` to `local`, by which libpasta tells shapes apart, with the
#: module: name, grid, block, dynamic shared memory. Of the last two, only the lower half counts.
_ALIKE = (0, 1, 2, 3, 5)
#: Launches of a page of `Sampling`: a damaged record with a huge ordinal costs one page.
_PAGE = 1 << 16
#: How many launches before a pause tell the operators of the launches during it. libpasta follows
#: operators for at least as many before it pauses (PATIENCE of scope.c).
_RECENT = 4096
#: Launches that are divided at a time: their order does not matter.
_CHUNK = 1024
#: Positions in a row of launches alike, as in shapes.c: all later ones count as the last.
_MOST_IN_ROW = 64
#: Places that are kept apart, of a shape and in all: further ones of a shape are one. More shapes
#: than a run can have.
_MOST_IN_SHAPE, _MOST_PLACES, _MOST_SHAPES = 128, 1 << 14, 1 << 30
#: Share of a shape's launches at places with a probed one from which places are estimated apart.
_COVERED = 0.9


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


@dataclass(frozen=True)
class Shape:
    """Launches with the same kernel (name id), module, grid, block, dynamic shared memory (bytes;
    absent: all ones) and, unless a graph launched them, operator.

    Numbers count from 0. `alike`: number that shapes have in common which differ in the operator
    only. Launches while operators were paused or followed briefly, which were not probed, are a
    shape without a known operator: `paused`."""

    number: int
    alike: int
    paused: bool
    kernel: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int


@dataclass(frozen=True)
class Place:
    """Launches of a shape that do the same where a program repeats its steps: same position in a
    row of launches of one kernel, grid, block and so on, and the same two rows before, with their
    lengths, on their thread. libpasta probes each place of a shape whose launches differ.

    Numbers count from 1. `alike` is equal for the same place of shapes that differ in the operator
    only."""

    number: int
    shape: Shape
    alike: tuple[int, ...]


class _Numbers:
    """Numbers of places, from 1, by the words that tell them apart: at most `limit`; 0: none."""

    def __init__(self, limit: int) -> None:
        self._codes, self._of_code = RowCodes(limit), np.empty(0, np.uint32)

    def of(self, words: NDArray[Any], add: Callable[[int], int]) -> NDArray[Any]:
        """Numbers (uint32) of rows of words; `add` gives the number of a new row, from its
        index."""
        codes, new = self._codes.encode_new(words)
        if len(new):
            added = np.asarray([add(at) for at in new.tolist()], np.uint32)
            self._of_code = np.concatenate([self._of_code, added])
        if not len(self._of_code):
            return np.zeros(len(codes), np.uint32)
        return np.asarray(np.where(codes < 0, np.uint32(0), self._of_code[codes]))


class Sampling:
    """Numbers of launches and of probed launches, by shape, place and kernel (name id)."""

    def __init__(self) -> None:
        self.shapes: dict[int, Shape] = {}
        self.places: list[Place] = []
        #: What launches have in common apart from their operator; it and the operator are the key
        #: of a shape.
        self._alike = RowCodes(_MOST_SHAPES)
        #: Of keys and places; of places beyond the limit, only keys count.
        self._apart, self._beyond = _Numbers(_MOST_PLACES), _Numbers(_MOST_SHAPES)
        #: By the number of a shape: how many places it has, and the number of all others.
        self._places_in: list[int] = []
        self._others: dict[int, int] = {}
        #: Whether a launch was not probed. Until then, places do not matter.
        self._partial = False
        #: By the number of a place: launches, probed ones, and of these the ones while operators
        #: were followed briefly, which do not tell how often their operator launches.
        self._seen, self._probed, self._brief = np.zeros((3, 16), np.int64)
        #: Launches at pauses, by the number of a place: those that are not divided yet, and those
        #: that count for the place, by the launches that were followed shortly before.
        self._waiting, self._divided = np.zeros(16, np.int64), np.zeros(16)
        #: Numbers of the places of launches (0: unknown), by ordinal: in pages of `_PAGE`.
        self._numbers: dict[int, NDArray[Any]] = {}
        #: Launches that are flagged as probed, but have no counts, in such pages; their number.
        self._missed: dict[int, NDArray[Any]] = {}
        self._misses = 0
        #: Numbers of the places of the last followed launches, oldest first.
        self._recent: NDArray[Any] = np.empty(0, np.uint32)
        #: By thread: what the last row of launches is alike in, its length, and hashes of the two
        #: rows before it, the last one last.
        self._rows: dict[int, tuple[Any, int, NDArray[Any]]] = {}

    def add(self, launches: NDArray[Any], operators: NDArray[Any] | None = None) -> None:
        """Counts launch records, which must be in order within each thread. `operators`: ids of the
        names (uint32) of the operators in which they are, if those are followed."""
        from pasta import abi

        if not len(launches):
            return
        flags = launches["flags"]
        probed, direct = flags & abi.FLAG_PROBED != 0, flags & abi.FLAG_GRAPH == 0
        alike = self._alike.encode(_words_of(launches)).astype(np.uint64)
        at_pause = np.zeros(len(launches), bool)
        kinds = np.zeros(len(launches), np.uint64)
        if operators is not None:
            at_pause = direct & (flags & abi.FLAG_PAUSED != 0)
            waiting = at_pause & ~probed  # for launches that tell their operators
            kinds[:] = operators
            kinds[waiting] = _ANY
        kinds[~direct] = _GRAPH
        words = np.empty((len(launches), 2), np.uint64)
        words[:, 0] = alike << np.uint64(34) | kinds
        words[:, 1] = self._places_of(launches["thread"], alike)
        if not self._partial:
            self._partial = not probed.all()
            words[: int(probed.argmin()) if self._partial else None, 1] = 0
        numbers = self._numbers_of(words, launches)
        size = len(self._seen)
        self._seen += np.bincount(numbers, minlength=size)
        if probed.any():
            self._probed += np.bincount(numbers[probed], minlength=size)
            self._brief += np.bincount(numbers[probed & at_pause], minlength=size)
        for page, mine, at in _pages(launches["ordinal"]):
            self._numbers.setdefault(page, np.zeros(_PAGE, np.uint32))[at] = numbers[mine]
        if operators is not None:
            chosen = direct & ~(at_pause & probed)
            self._divide(numbers[chosen], waiting[chosen], launches["ordinal"][chosen])

    def _numbers_of(self, words: NDArray[Any], launches: NDArray[Any]) -> NDArray[Any]:
        """Numbers of the places of launches, from the keys of their shapes and their places."""
        numbers = self._apart.of(words, lambda at: self._add_place(words[at], launches[at]))
        beyond = np.flatnonzero(numbers == 0)
        if len(beyond):
            rest = words[beyond] * np.array([1, 0], np.uint64)
            numbers[beyond] = self._beyond.of(
                rest, lambda at: self._add_place(rest[at], launches[beyond[at]])
            )
        size = len(self.places) + 1
        self._seen, self._probed, self._brief, self._waiting, self._divided = (
            grown(each, size)
            for each in (self._seen, self._probed, self._brief, self._waiting, self._divided)
        )
        return numbers

    def _add_place(self, words: NDArray[Any], launch: Any) -> int:
        """The number of the place of a launch whose key and place were not seen before."""
        key, place = words.tolist()
        alike, kind = key >> 34, key & ((1 << 34) - 1)
        shape = self.shapes.get(key)
        if shape is None:
            grid, block = tuple(launch["grid"].tolist()), tuple(launch["block"].tolist())
            shape = self.shapes[key] = Shape(
                len(self.shapes), alike, kind == _ANY, int(launch["name"]), grid, block,
                int(launch["shared_dynamic"]),
            )  # fmt: skip
            self._places_in.append(0)
        if self._places_in[shape.number] == _MOST_IN_SHAPE:
            place = 0
        if not place and shape.number in self._others:
            return self._others[shape.number]
        self.places.append(Place(len(self.places) + 1, shape, (alike, kind & _GRAPH, place)))
        self._places_in[shape.number] += place != 0
        if not place:
            self._others[shape.number] = len(self.places)
        return len(self.places)

    def _places_of(self, threads: NDArray[Any], alike: NDArray[Any]) -> NDArray[Any]:
        """Hashes of the places of launches."""
        found = np.empty(len(alike), np.uint64)
        for thread, mine in _by_thread(threads):
            own = alike[mine]
            last, length, before = self._rows.get(thread, (np.uint64(0), 0, np.zeros(2, np.uint64)))
            sequence = np.concatenate([[last], own + np.uint64(1)])
            begins = np.flatnonzero(sequence[1:] != sequence[:-1])
            starts = np.concatenate([[-length], begins])
            lengths = np.diff(starts, append=len(own))
            last_of = sequence[np.concatenate([[0], begins + 1])]
            hashes = _mixed(_mixed(last_of), np.minimum(lengths, _MOST_IN_ROW))
            rows = np.concatenate([before, hashes])
            here = lengths - np.maximum(-starts, 0)  # of this batch
            position = np.minimum(np.arange(len(own)) - np.repeat(starts, here), _MOST_IN_ROW - 1)
            both = _mixed(_mixed(rows[1:-1]), rows[:-2])
            found[mine] = _mixed(np.repeat(both, here), position)
            self._rows[thread] = last_of[-1], int(lengths[-1]), rows[-3:-1]
        return found

    def _divide(self, numbers: NDArray[Any], waiting: NDArray[Any], ordinals: NDArray[Any]) -> None:
        """Divides launches without a known operator among places, in proportion to those that were
        followed shortly before: what a program launches at its start may not recur."""
        size = len(self._waiting)
        if waiting.all():
            self._waiting += np.bincount(numbers, minlength=size)
            return
        order = np.argsort(ordinals, kind="stable")
        numbers, waiting = numbers[order], waiting[order]
        for begin in range(0, len(numbers), _CHUNK):
            part = slice(begin, begin + _CHUNK)
            followed = numbers[part][~waiting[part]]
            if len(followed):
                self._settle()
                self._recent = np.concatenate([self._recent, followed])[-_RECENT:]
            self._waiting += np.bincount(numbers[part][waiting[part]], minlength=size)

    def _settle(self) -> None:
        """Divides the launches that wait for it."""
        waiting = np.flatnonzero(self._waiting)
        if not len(waiting):
            return
        shares = _shares(self.places, self._recent)
        for number, count in zip(waiting.tolist(), self._waiting[waiting].tolist(), strict=True):
            for other, share in shares.get(self.places[number - 1].alike, ()):
                self._divided[other] += count * share
        self._waiting[:] = 0

    @property
    def seen(self) -> dict[int, int]:
        """Launches by kernel."""
        return self._by_kernel(self._seen)

    @property
    def probed(self) -> dict[int, int]:
        """Probed launches by kernel; those without any are left out."""
        return {name: count for name, count in self._by_kernel(self._probed).items() if count}

    def _by_kernel(self, counts: NDArray[Any]) -> dict[int, int]:
        found: dict[int, int] = {}
        for place, count in zip(self.places, counts[1:].tolist(), strict=False):
            kernel = place.shape.kernel
            found[kernel] = found.get(kernel, 0) + count
        return found

    @property
    def probed_at(self) -> NDArray[Any]:
        """Probed launches by the number of a place."""
        return self._probed[: len(self.places) + 1]

    def of_shapes(self) -> tuple[list[int], list[int]]:
        """Launches, and probed ones, by the number of a shape."""
        shapes = [each.shape.number for each in self.places]
        seen, probed = (
            np.bincount(shapes, of[1 : len(shapes) + 1]).astype(np.int64).tolist()
            for of in (self._seen, self._probed)
        )
        return seen, probed

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
        self._probed -= np.bincount(self.numbers(launches[new]), minlength=len(self._probed))
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
        """Numbers of the places (uint32) of launches, by ordinal; 0: unknown."""
        found = np.zeros(len(launches), np.uint32)
        for page, mine, at in _pages(launches):
            if page in self._numbers:
                found[mine] = self._numbers[page][at]
        return found

    def pages(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """Numbers of the places of all launches, in order: the first ordinal, and an array (uint32;
        0: unknown)."""
        for page, numbers in sorted(self._numbers.items()):
            yield page * _PAGE, numbers

    @property
    def exact(self) -> bool:
        """Whether all launches were probed."""
        return bool((self._seen == self._probed).all())

    @property
    def unprobed(self) -> list[int]:
        """Kernels (name ids) without a probed launch."""
        return sorted(self.seen.keys() - self.probed.keys())

    def launches(self) -> dict[int, float]:
        """Launches by the number of a place: those while operators were paused or followed briefly
        are divided among the places that differ in the operator only, in proportion to their other
        launches: those shortly before the pause, or if none of them was, all."""
        self._settle()
        seen, probed, divided = (of.tolist() for of in (self._seen, self._probed, self._divided))
        own = (self._seen - self._brief).tolist()  # launches that tell how often operators launch
        for each in self.places:
            if each.shape.paused:
                own[each.number] = 0
        followed: dict[tuple[int, ...], int] = {}
        others: dict[tuple[int, ...], float] = {}
        for each in self.places:
            at = each.number
            followed[each.alike] = followed.get(each.alike, 0) + own[at]
            if each.shape.paused or own[at]:
                more = seen[at] - own[at] - divided[at]
                others[each.alike] = others.get(each.alike, 0) + more
        found: dict[int, float] = {}
        for each in self.places:
            at, of_alike = each.number, followed[each.alike]
            more = max(others.get(each.alike, 0), 0)
            if own[at]:
                share = divided[at] + (own[at] * more / of_alike if more else 0)
                found[at] = max(own[at] + share, probed[at])
            else:
                found[at] = 0 if each.shape.paused and of_alike else seen[at]
        return found

    def shape_launches(self) -> dict[int, float]:
        """`launches` by the number of a shape."""
        found = dict.fromkeys(range(len(self.shapes)), 0.0)
        launches = self.launches()
        for each in self.places:
            found[each.shape.number] += launches[each.number]
        return found

    def estimates(self, launches: NDArray[Any], counts: NDArray[Any]) -> dict[int, Estimate]:
        """Estimates by launched kernel, from one count per probed launch and its ordinal.

        The estimate of a kernel is the sum over its shapes, or their places, each the mean of its
        probed launches times its launches. Where none was probed, that is the mean of the shape, or
        else of the launches that differ from it in the operator only, or else of the kernel. The
        error is larger where launches clearly change in the course of the run.
        """
        return _Estimation(self).estimates(launches, counts)

    def weights(self, launches: NDArray[Any]) -> NDArray[Any]:
        """How many launches each probed launch represents, by ordinal (float64; int64 ones if all
        were probed): the launches at its place divided by the probed ones there, plus a share of
        the launches that count as the mean of others. A sum of weighted counts is an estimate for
        all launches of probed kernels."""
        if self.exact:
            return np.ones(len(launches), np.int64)
        return np.asarray(self.place_weights()[self.numbers(launches)])

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

    def place_weights(self) -> NDArray[Any]:
        """`weights` by the number of a place; 1 for unknown places (number 0)."""
        return _Estimation(self).weights

    def completed(self, launches: NDArray[Any], counts: NDArray[Any]) -> NDArray[Any]:
        """Counts (float64; NaN: not probed) by ordinal, those of launches that were not probed as
        `estimates` takes them; NaN if no launch of the kernel was probed."""
        numbers, known = self.numbers(launches), ~np.isnan(counts)
        means = _Estimation(self).means(numbers[known], counts[known])
        return np.where(known, counts, means[numbers])

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

        ± is one standard error; it is omitted if it is unknown, or 0.
        """
        if self.exact or not self._probed.any():
            return ""
        total, unprobed = self.total(estimates), self.unprobed
        text = "all launches"
        if unprobed:
            text += (
                f" of the {len(self.seen) - len(unprobed):,} of {len(self.seen):,} kernels that"
                f" were probed ({_percent(1 - self._share(unprobed))} of"
                f" {counted(sum(self.seen.values()), 'launch')})"
            )
        once = sum(probed == 1 < seen for seen, probed in zip(*self.of_shapes(), strict=True))
        if once:
            return f"{text}, no error bound: {counted(once, 'shape')} with one probed launch"
        if math.isnan(total.error):
            return f"{text}, no error bound: one probed launch counts for others"
        if not total.error:
            return f"{text}; probed launches of one shape, or place, were alike"
        return f"{text}, ± {_percent(total.relative)}"

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
        launched, probed_of = self.shape_launches(), self.of_shapes()[1]
        kernels = self.probed
        rest = [
            launched[each.number]
            for each in self.shapes.values()
            if not probed_of[each.number] and each.kernel in kernels and launched[each.number]
        ]
        if rest:
            text += (
                f"; {counted(len(rest), 'shape')} of launches never probed,"
                f" {_percent(sum(rest) / seen)} of launches: counted as the mean of their kernels"
            )
        paused = sum(self._seen[each.number] for each in self.places if each.shape.paused)
        if paused:
            text += (
                f"; operators were paused in {_percent(paused / seen)} of launches, which count for"
                " them in proportion to the others"
            )
        return text

    def _share(self, kernels: Collection[int]) -> float:
        """Share of launches of these kernels."""
        seen = self.seen
        return sum(seen[name] for name in kernels) / sum(seen.values())


class _Estimation:
    """Estimates of launches that were not probed.

    Launches are divided into strata: the places of a shape if at least `_COVERED` of its launches
    are at places with a probed one, otherwise the shape. A stratum without a probed launch counts
    as the mean of the next wider level that has one: the shape, those alike, the kernel. Arrays are
    by stratum, from 1, if nothing else is said."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        places, launched = sampling.places, sampling.launches()
        seen = np.asarray([0, *(launched[each.number] for each in places)], np.float64)
        probed = sampling.probed_at
        shape = np.asarray([0, *(1 + each.shape.number for each in places)], np.intp)
        covered, whole = np.bincount(shape, seen * (probed > 0)), np.bincount(shape, seen)
        apart = (covered >= _COVERED * whole)[shape] & (shape > 0)
        own = np.where(apart, np.arange(len(seen)) + len(whole), shape)
        #: By place.
        self._stratum = np.unique(own, return_inverse=True)[1].reshape(-1)
        self._seen, self._probed = (np.bincount(self._stratum, of) for of in (seen, probed))
        self._probed = self._probed.astype(np.int64)
        self._kernels = [*sampling.seen]
        numbers = {name: number for number, name in enumerate(self._kernels)}
        #: By place: what shapes and places have in common if operators are not told apart.
        self._alike = np.asarray([0, *(1 + each.shape.alike for each in places)], np.intp)
        groups = {
            key: 1 + at for at, key in enumerate(dict.fromkeys(each.alike for each in places))
        }
        self._groups = np.asarray([0, *(groups[each.alike] for each in places)], np.intp)
        kernel = [0, *(1 + numbers[each.shape.kernel] for each in places)]
        self._levels = [np.zeros(len(self._seen), np.intp) for _ in range(3)]
        for level, of_place in zip(self._levels, (shape, self._alike, kernel), strict=True):
            level[self._stratum] = np.asarray(of_place)
        #: Launches that count as the mean of a level.
        self._rests: list[NDArray[Any]] = []
        #: Of probed launches, by place.
        self.weights = self._weights()[self._stratum]

    def _weights(self) -> NDArray[Any]:
        known = self._probed > 0
        covered = np.where(known, self._seen, 0.0)
        rest = np.where(known, 0.0, self._seen)
        for level in self._levels:
            sums, rests = (np.bincount(level, each) for each in (covered, rest))
            self._rests.append(np.where(sums[level] > 0, rest, 0.0))
            rest = rest - self._rests[-1]
            covered *= 1 + (rests / np.where(sums > 0, sums, np.inf))[level]
        weights = covered / np.maximum(self._probed, 1)
        weights[0] = 1
        return np.asarray(weights)

    def means(self, numbers: NDArray[Any], counts: NDArray[Any]) -> NDArray[Any]:
        """Means by place, as estimated, from the places and counts of probed launches; NaN:
        unknown."""
        return self._means(self._stratum[numbers], counts)[self._stratum]

    def _means(self, strata: NDArray[Any], counts: NDArray[Any]) -> NDArray[Any]:
        sums = np.bincount(strata, counts, len(self._seen))
        found = np.where(self._probed > 0, sums / np.maximum(self._probed, 1), np.nan)
        covered = np.where(self._probed > 0, self._seen, 0.0)
        for level, rest in zip(self._levels, self._rests, strict=True):
            have = np.bincount(level, covered)
            mean = np.bincount(level, covered * np.nan_to_num(found)) / np.where(have > 0, have, 1)
            found = np.where(np.isnan(found) & (have[level] > 0), mean[level], found)
            covered += rest
        return np.asarray(found)

    def estimates(self, launches: NDArray[Any], counts: NDArray[Any]) -> dict[int, Estimate]:
        """By kernel, from the ordinals and counts of probed launches."""
        numbers, counts = self._sampling.numbers(launches), np.asarray(counts, "f8")
        strata, level = self._stratum[numbers], self._levels[-1]
        totals = np.bincount(level, self._seen * np.nan_to_num(self._means(strata, counts)))
        variances = np.bincount(level, self._variances(strata, counts))
        variances += self._changes(launches, numbers, counts) ** 2
        unknown = np.bincount(level, self._probed) == 0
        totals[unknown] = variances[unknown] = np.nan
        both = zip(totals[1:].tolist(), np.sqrt(variances[1:]).tolist(), strict=True)
        return {name: Estimate(*each) for name, each in zip(self._kernels, both, strict=True)}

    def _changes(
        self, launches: NDArray[Any], numbers: NDArray[Any], counts: NDArray[Any]
    ) -> NDArray[Any]:
        """By kernel, how much its total may be off because launches change in the course of the
        run."""
        alike, found = self._alike[numbers], np.zeros(len(self._kernels) + 1)
        size = int(self._alike.max()) + 1
        most, least = np.full((2, size), -np.inf)
        np.maximum.at(most, alike, counts)
        np.maximum.at(least, alike, -counts)
        # counts of 0 may be omitted: which launches had them is unknown
        complete = np.bincount(alike, minlength=size) == np.bincount(
            self._alike, self._sampling.probed_at, size
        )
        differ = complete & (most > -least)
        differ[0] = False
        if not differ.any():
            return found
        order = np.flatnonzero(differ[alike])
        order = order[np.argsort(launches[order])]
        places, own = np.where(differ[self._alike], self._groups, 0), numbers[order]
        probed = Probed(
            launches[order], places[own], alike[order], self._stratum[own], counts[order]
        )
        pages = ((first, places[page]) for first, page in self._sampling.pages())
        kernels = np.zeros(size, np.intp)
        kernels[self._alike] = self._levels[-1][self._stratum]
        np.add.at(found, kernels, np.abs(changes(pages, probed, len(self._seen), size)))
        return found

    def _variances(self, strata: NDArray[Any], counts: NDArray[Any]) -> NDArray[Any]:
        """Variances of the strata's totals, those of samples without replacement; NaN: unknown."""
        probed, squares = self._squares(np.arange(len(self._seen)), strata, counts)
        shape = self._levels[0]
        free = np.bincount(shape, np.maximum(probed - 1, 0))
        of_shape, of_all = self._squares(shape, strata, counts)
        with np.errstate(divide="ignore", invalid="ignore"):
            # of places with one probed launch: as others differ, or if all have one, as the shape
            within = np.bincount(shape, squares) / free
            within = np.where(free > 0, within, of_all / (of_shape - 1))[shape]
            variance = np.where(probed > 1, squares / (probed - 1), within)
            left = 1 - probed / self._seen
            found = np.where(left > 0, self._seen**2 * left * variance / probed, 0.0)
            found[probed == 0] = 0.0
            for level, rest in zip(self._levels, self._rests, strict=True):
                many, sums = self._squares(level, strata, counts)
                rests = np.bincount(level, rest)
                more = sums / (many - 1) * (rests / many + 1)  # of each launch
                found += np.where(rest > 0, more[level] * rest, 0)
        return np.asarray(found)

    def _squares(
        self, level: NDArray[Any], strata: NDArray[Any], counts: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Probed launches, and sums of squared differences from their mean, by group of a level.
        Counts of 0 may be omitted."""
        size = int(level.max()) + 1
        groups, probed = level[strata], np.bincount(level, self._probed, size)
        mean = np.bincount(groups, counts, size) / np.maximum(probed, 1)
        squares = np.bincount(groups, (counts - mean[groups]) ** 2, size)
        return probed, squares + (probed - np.bincount(groups, minlength=size)) * mean**2


def _shares(
    places: Sequence[Place], numbers: NDArray[Any]
) -> dict[tuple[int, ...], list[tuple[int, float]]]:
    """The places with these numbers, each with its share of those alike, by `alike`."""
    found: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    distinct, counts = np.unique(numbers, return_counts=True)
    for number, count in zip(distinct.tolist(), counts.tolist(), strict=True):
        found.setdefault(places[number - 1].alike, []).append((number, count))
    totals = {key: sum(count for _, count in each) for key, each in found.items()}
    return {
        key: [(number, count / totals[key]) for number, count in each]
        for key, each in found.items()
    }


def _by_thread(threads: NDArray[Any]) -> Iterator[tuple[int, Any]]:
    """Threads, and indices of their launches, in order."""
    if (threads == threads[0]).all():
        yield int(threads[0]), slice(None)
        return
    order = np.argsort(threads, kind="stable")
    for mine in np.split(order, np.flatnonzero(np.diff(threads[order])) + 1):
        yield int(threads[mine[0]]), mine


def _pages(launches: NDArray[Any]) -> Iterator[tuple[int, Any, NDArray[Any]]]:
    """Pages of launches by ordinal: number, which launches are in it, and their places."""
    page, at = np.divmod(launches.astype(np.int64), _PAGE)
    numbers = distinct(page)
    for number in numbers:
        mine = page == number if len(numbers) > 1 else slice(None)
        yield number, mine, at[mine]


def _words_of(launches: NDArray[Any]) -> NDArray[Any]:
    """What launches have in common apart from their operator, as words; libpasta tells shapes apart
    by the same fields."""
    fields = launches.view(span_dtype(launches.dtype, "name", "local"))["words"]
    words = np.empty((len(_ALIKE) + 1, len(launches)), np.uint64)
    for word, column in zip(words, _ALIKE, strict=False):
        word[:] = fields[:, column]
    words[3:5] &= np.uint64(0xFFFF_FFFF)
    words[-1] = launches["module"]
    return np.asarray(words.T)


def _mixed(keys: NDArray[Any], values: NDArray[Any] | None = None) -> NDArray[Any]:
    """Hashes of keys, with values that are not similar to them: small numbers are hashed before."""
    if values is not None:
        keys = keys ^ values.astype(np.uint64)
    keys = keys * np.uint64(0x9E3779B97F4A7C15)
    return np.asarray(keys ^ keys >> np.uint64(29))


def _percent(share: float) -> str:
    percent = 100 * share
    if 0 < percent < 0.1:
        return "less than 0.1 %"
    return f"{percent:.1f} %" if percent < 10 else f"{percent:.0f} %"
