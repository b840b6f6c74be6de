"""Host time outside of operators, by the Python lines between which it passed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.codes import grown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pasta.processors.operators import Operators
    from pasta.processors.stacks import Frame
    from pasta.tool import Context

#: PyTorch's function that waits for the thread of gradients.
_ENGINE = "_engine_run_backward"
#: PyTorch's function that waits for the worker processes of a DataLoader.
_WORKERS = "_try_get_data"
#: Samples of a place from which its most frequent line is named.
_SAMPLES = 3


@dataclass
class Place:
    """Gaps between the same two lines of the program; times in ns.

    `first` is the part of each stack pair's first gap: imports and start-up are there. `handed`
    gaps are between operators of two threads. `loader` asks a data loader for data in these gaps;
    `lines` are those that samples found running, `backward` samples were inside backward(),
    `asking` are lines that samples found asking a data loader, `workers` of them one with workers.
    """

    before: Frame | None
    after: Frame | None
    loader: Frame | None
    count: int = 0
    repeats: int = 0  # without first ones
    total: int = 0
    first: int = 0
    longest: int = 0
    waits: int = 0
    waited: int = 0  # 0 where it is not known how long
    handed: int = 0
    backward: int = 0
    lines: Counter[Frame] = field(default_factory=Counter)
    asking: Counter[Frame] = field(default_factory=Counter)
    workers: int = 0

    @property
    def steady(self) -> int:
        """Time without the first gaps."""
        return self.total - self.first

    @property
    def line(self) -> Frame | None:
        """The line that samples found running most, in the function that most of them are in."""
        functions: Counter[tuple[str, str]] = Counter()
        for frame, found in self.lines.items():
            functions[frame.file, frame.function] += found
        samples = self.lines.total()
        if samples < _SAMPLES:
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
    """What happened in a gap whose end has not been seen."""

    waited: NDArray[Any] = field(default_factory=lambda: np.zeros(2, np.int64))
    samples: Counter[int] = field(default_factory=Counter)


class Gaps:
    """Collects what happens in gaps while a run is followed, and tells their places at its end."""

    def __init__(self) -> None:
        self._waited = np.zeros((256, 2), np.int64)  # by row: time, and how often
        self._samples: Counter[tuple[int, int]] = Counter()  # by row and stack
        #: Of a gap that has not ended in its batch: waits, and samples by stack.
        self._open, self._opened = _Open(), _Open()

    def add_waits(self, operators: Operators, syncs: NDArray[Any], durations: NDArray[Any]) -> None:
        """Waits for a device outside of operators; a duration of 0 is not known."""
        rows = operators.gap_after(syncs)
        self._waited = grown(self._waited, len(operators.gaps))
        np.add.at(self._waited, rows, np.stack([durations, np.ones_like(durations)], axis=1))
        self._opened.waited, self._waited[0] = self._waited[0].copy(), 0

    def add_samples(self, operators: Operators, samples: NDArray[Any]) -> None:
        """Stacks of a thread between two operators."""
        rows = operators.gap_after(samples).tolist()
        for row, stack in zip(rows, samples["stack"].tolist(), strict=True):
            if row:
                self._samples[row, stack] += 1
            else:
                self._opened.samples[stack] += 1

    def end_batch(self, operators: Operators) -> None:
        """After all of a batch's records: what an earlier batch left open goes to its first gap."""
        left = operators.left
        ended = np.flatnonzero(left)
        if len(ended):
            row = int(left[ended[0]])
            self._waited = grown(self._waited, row + 1)
            self._waited[row] += self._open.waited
            for stack, count in self._open.samples.items():
                self._samples[row, stack] += count
            self._open = _Open()
        self._open.waited = self._open.waited + self._opened.waited
        self._open.samples += self._opened.samples
        self._opened = _Open()

    def places(self, context: Context) -> list[Place]:
        """Gaps by their lines, longest in the steady state first."""
        operators, stacks, strings = context.operators, context.stacks, context.strings
        waited = grown(self._waited, len(operators.gaps))
        found: dict[Any, Place] = {}
        for number, gap in enumerate(operators.gaps.tolist()):
            before, after, count, total, first, longest, handed = gap
            if not number:
                continue
            lines = [stacks.users(stack, strings) if stack else None for stack in (before, after)]
            loader = stacks.loader(after, strings) or stacks.loader(before, strings)
            place = found.setdefault((*lines, loader), Place(lines[0], lines[1], loader))
            place.count += count
            place.repeats += count - 1
            place.total += total
            place.first += first
            place.longest = max(place.longest, longest)
            place.handed += handed
            place.waited += min(int(waited[number, 0]), total)
            place.waits += int(waited[number, 1])
            for stack, samples in self._sampled(number):
                line = stacks.users(stack, strings)
                asking = stacks.loader(stack, strings)
                if asking is not None:
                    place.asking[asking] += samples
                    place.workers += samples * stacks.calls(stack, _WORKERS, strings)
                if stacks.calls(stack, _ENGINE, strings):
                    place.backward += samples
                elif line is not None:
                    place.lines[line] += samples
        for place in found.values():
            if 2 * place.asking.total() > place.lines.total():
                place.loader = place.asking.most_common(1)[0][0]
        return sorted(found.values(), key=lambda place: (-place.steady, -place.total))

    def _sampled(self, row: int) -> Iterator[tuple[int, int]]:
        return ((stack, count) for (at, stack), count in self._samples.items() if at == row)
