"""Host time outside of operators, by the Python lines before and after it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.codes import grown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.context import Context
    from pasta.processors.operators import Operators
    from pasta.processors.stacks import Frame

#: Samples required to report the most frequent line of a site.
_MIN_SAMPLES = 3


@dataclass
class GapSite:
    """Gaps between the same two lines of the program; times in ns.

    `first` is the time in the first gap of each stack pair, which includes imports and start-up;
    `longest_repeat` is the longest of the others.
    `handed` counts gaps between operators of two threads. `loader` is the frame that requests data
    from a data loader in these gaps. `lines` counts samples by running line, `backward` samples
    inside backward(), `asking` samples by line that waits for a data loader, `workers` those of
    them where the loader has worker processes.
    """

    before: Frame | None
    after: Frame | None
    loader: Frame | None
    count: int = 0
    repeats: int = 0  # without the first of each stack pair
    total: int = 0
    first: int = 0
    longest: int = 0
    longest_repeat: int = 0
    waits: int = 0
    waited: int = 0  # 0 if unknown
    handed: int = 0
    backward: int = 0
    lines: Counter[Frame] = field(default_factory=Counter)
    asking: Counter[Frame] = field(default_factory=Counter)
    workers: int = 0

    @classmethod
    def between_stacks(cls, before: int, after: int, context: Context) -> GapSite:
        """The site of a gap, without counts, by the stacks of the operators around it; 0: none."""
        stacks, strings = context.stacks, context.strings
        lines = [stacks.user_line(each, strings) if each else None for each in (before, after)]
        loader = stacks.loader(after, strings) or stacks.loader(before, strings)
        return cls(lines[0], lines[1], loader)

    @property
    def steady(self) -> int:
        """Time without the first gaps, ns."""
        return self.total - self.first

    @property
    def line(self) -> Frame | None:
        """The most sampled line of the most sampled function; None without a clear one."""
        functions: Counter[tuple[str, str]] = Counter()
        for frame, found in self.lines.items():
            functions[frame.file, frame.function] += found
        samples = self.lines.total()
        if samples < _MIN_SAMPLES:
            return None
        ((function, found),) = functions.most_common(1)
        if 2 * found < samples:
            return None
        mine = [each for each in self.lines if (each.file, each.function) == function]
        return max(mine, key=self.lines.__getitem__)

    @property
    def between(self) -> str:
        """The lines of the operators before and after: `train.py:31 f → train.py:35 f`."""
        if self.before == self.after:
            return str(self.before or "(no Python line)")
        if self.before is None or self.after is None:
            return f"after {self.before}" if self.before else f"before {self.after}"
        return f"{self.before} → {self.after}"


@dataclass
class _Open:
    """Waits and samples in a gap that has not ended."""

    waited: NDArray[Any] = field(default_factory=lambda: np.zeros(2, np.int64))
    samples: Counter[int] = field(default_factory=Counter)


class Gaps:
    """Collects waits and samples in gaps, and returns the gaps by line at the end of the run."""

    def __init__(self) -> None:
        self._waited = np.zeros((256, 2), np.int64)  # by row: time, and how often
        self._samples: dict[int, Counter[int]] = {}  # by row and stack
        #: Of a gap that has not ended in its batch: waits, and samples by stack.
        self._open, self._opened = _Open(), _Open()

    def add_waits(self, operators: Operators, syncs: NDArray[Any], durations: NDArray[Any]) -> None:
        """Adds waits for a device outside of operators; a duration of 0 ns is unknown."""
        rows = operators.gap_after(syncs)
        self._waited = grown(self._waited, len(operators.gaps))
        np.add.at(self._waited, rows, np.stack([durations, np.ones_like(durations)], axis=1))
        self._opened.waited, self._waited[0] = self._waited[0].copy(), 0

    def add_samples(self, operators: Operators, samples: NDArray[Any]) -> None:
        """Adds samples of stacks between two operators."""
        rows = operators.gap_after(samples).tolist()
        for row, stack in zip(rows, samples["stack"].tolist(), strict=True):
            if row:
                self._samples.setdefault(row, Counter())[stack] += 1
            else:
                self._opened.samples[stack] += 1

    def end_batch(self, operators: Operators) -> None:
        """Call after all records of a batch: assigns data of the still open gap to the first gap
        that ended."""
        left = operators.left
        ended = np.flatnonzero(left)
        if len(ended):
            row = int(left[ended[0]])
            self._waited = grown(self._waited, row + 1)
            self._waited[row] += self._open.waited
            if self._open.samples:
                self._samples.setdefault(row, Counter()).update(self._open.samples)
            self._open = _Open()
        self._open.waited = self._open.waited + self._opened.waited
        self._open.samples += self._opened.samples
        self._opened = _Open()

    def places(self, context: Context) -> list[GapSite]:
        """Gaps by their lines, those with the most time after the first gap first."""
        operators, stacks, strings = context.operators, context.stacks, context.strings
        known = context.conventions
        waited = grown(self._waited, len(operators.gaps))
        found: dict[Any, GapSite] = {}
        for number, gap in enumerate(operators.gaps.tolist()):
            before, after, count, total, first, longest, handed = gap
            if not number:
                continue
            site = GapSite.between_stacks(before, after, context)
            place = found.setdefault((site.before, site.after, site.loader), site)
            place.count += count
            place.repeats += count - 1
            place.total += total
            place.first += first
            place.longest = max(place.longest, first, longest)
            place.longest_repeat = max(place.longest_repeat, longest)
            place.handed += handed
            place.waited += min(int(waited[number, 0]), total)
            place.waits += int(waited[number, 1])
            for stack, samples in self._samples.get(number, Counter()).items():
                line = stacks.user_line(stack, strings)
                asking = stacks.loader(stack, strings)
                if asking is not None:
                    place.asking[asking] += samples
                    place.workers += samples * stacks.calls(stack, known.loader_waits, strings)
                if stacks.calls(stack, known.backward_waits, strings):
                    place.backward += samples
                elif line is not None:
                    place.lines[line] += samples
        for place in found.values():
            if 2 * place.asking.total() > place.lines.total():
                place.loader = place.asking.most_common(1)[0][0]
        return sorted(found.values(), key=lambda place: (-place.steady, -place.total))
