"""Memory that grows from step to step, by the operator that allocated it.

A step begins with a step of an optimizer, or, in a program without optimizers, when the first
operator of a call of the model runs again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pasta import abi
from pasta.compiled import compiled
from pasta.processors.batch import ABSENT_U16, ABSENT_U32
from pasta.processors.codes import grown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.context import Context

#: Stored levels of each kind of step; when full, every other one is dropped.
_MAX_LEVELS = 64
#: Steps required to distinguish growth from warm-up.
MIN_STEPS = 8
#: Share of steps in which tensors must increase, and required new tensors per step.
_MIN_GROWING_SHARE, _MIN_TENSORS = 0.9, 0.5

#: The `index` of each step of an optimizer, and of each call of a model (int64).
Marks = tuple["NDArray[Any]", "NDArray[Any]"]


@compiled(
    begins=[abi.dtype("operator_begin")], began=["i4"], modules=["u4"], backward=["?"],
    calls=["i8"], marks=["i8"], sequences=["u4"], last=["i4"], recorded=["i8"],
)  # fmt: skip
def _follow(begins, began, modules, backward, calls, marks, sequences, last, recorded):  # type: ignore[no-untyped-def]
    """Writes the `index` of beginnings of model calls to `marks` and returns their number. Counts
    in `recorded`, by node, operators that recorded inputs of their gradient: the next one of their
    thread has a higher sequence number. `calls`: the first operator of a call, and whether a call
    is open."""
    used = 0
    for i in range(len(begins)):
        begin, node = begins[i], began[i]
        sequence, thread = begin["sequence"], begin["framework_thread"]
        of_gradient = begin["forward_thread"] != np.uint16(ABSENT_U16)
        if sequence != np.uint32(ABSENT_U32) and not of_gradient:
            if sequence > sequences[thread]:
                recorded[last[thread]] += 1
            sequences[thread] = sequence
            last[thread] = node
        if begin["depth"] != 1 or backward[node]:
            continue
        if modules[node] == 0:
            calls[1] = 0
            continue
        if calls[1] == 0:
            calls[0] = node
        calls[1] = 1
        if node == calls[0]:
            marks[used] = begin["index"]
            used += 1
    return used


class Steps:
    """Beginnings of steps of the program, and operators that recorded inputs of gradients."""

    def __init__(self) -> None:
        self._calls = np.zeros(2, np.int64)
        self._sequences = np.full(1 << 16, ABSENT_U32, np.uint32)  # by thread of the framework
        self._last = np.zeros(1 << 16, np.int32)
        self._recorded = np.zeros(1024, np.int64)

    def feed(self, batch: Batch, context: Context) -> Marks:
        """The steps that begin in a batch."""
        operators = context.operators
        begins, nodes = batch["operator_begin"], operators.nodes
        self._recorded = grown(self._recorded, len(nodes))
        marks = np.empty(len(begins), np.int64)
        used = _follow(
            begins, operators.began, nodes["module"], operators.backward, self._calls, marks,
            self._sequences, self._last, self._recorded,
        )  # fmt: skip
        pushes = batch["range_push"]
        names = np.unique(pushes["name"]).tolist()
        known = context.conventions.optimizer_steps
        steps = [name for name in names if context.strings[name].startswith(known)]
        return pushes["index"][np.isin(pushes["name"], steps)].astype(np.int64), marks[:used]

    def recorded(self, length: int) -> NDArray[Any]:
        """Number of times that each of `length` nodes recorded inputs of its gradient (int64)."""
        self._recorded = grown(self._recorded, length)
        return self._recorded[:length]


@dataclass
class _Levels:
    """Levels by node at every `stride`-th step."""

    steps: int = 0
    stride: int = 1
    kept: list[NDArray[Any]] = field(default_factory=list)

    def due(self, marks: NDArray[Any]) -> list[tuple[int, int]]:
        """Counts new steps; marks and numbers of those to store."""
        numbers = np.arange(self.steps, self.steps + len(marks))
        self.steps += len(marks)
        chosen = numbers % self.stride == 0
        return list(zip(marks[chosen].tolist(), numbers[chosen].tolist(), strict=True))

    def add(self, level: NDArray[Any]) -> None:
        self.kept.append(level)
        if len(self.kept) == _MAX_LEVELS:
            self.kept = self.kept[::2]
            self.stride *= 2


@dataclass(frozen=True)
class Growth:
    """Tensors and bytes added in each step and live in the last one, by node."""

    steps: int
    nodes: NDArray[Any]
    tensors: NDArray[Any]
    bytes: NDArray[Any]

    @property
    def total(self) -> int:
        """Bytes added in all steps."""
        return int(self.bytes.sum() * self.steps)


class LiveByOperator:
    """Live tensors of one device by the operators that allocated them, at each step."""

    def __init__(self) -> None:
        self._live = np.zeros((1024, 2), np.int64)  # by node: tensors, bytes
        self._levels = (_Levels(), _Levels())  # by steps of optimizers, by calls of models

    def feed(
        self, nodes: NDArray[Any], changes: NDArray[Any], indices: NDArray[Any], marks: Marks
    ) -> None:
        """Follows a batch: changes of tensors and bytes (int64 of shape (changes, 2)) by nodes, at
        indices, in ring order; `marks` as from `Steps`."""
        self._live = grown(self._live, int(nodes.max(initial=0)) + 1)
        due = [
            (mark, number, levels)
            for levels, of in zip(self._levels, marks, strict=True)
            for mark, number in levels.due(of)
        ]
        at = 0
        for mark, number, levels in sorted(due, key=lambda each: each[:2]):
            if number % levels.stride == 0:
                until = int(np.searchsorted(indices, mark))
                np.add.at(self._live, nodes[at:until], changes[at:until])
                at = until
                levels.add(self._live.copy())
        np.add.at(self._live, nodes[at:], changes[at:])

    def growth(self) -> Growth | None:
        """Steady growth up to the last step, after the first quarter of the steps; None without
        growth, or with too few steps."""
        levels = next((each for each in self._levels if each.steps >= MIN_STEPS), None)
        if levels is None:
            return None
        length = len(levels.kept[-1])
        kept = np.stack([grown(each, length)[:length] for each in levels.kept])
        kept = kept[max(1, len(kept) // 4) :]
        steps = (len(kept) - 1) * levels.stride
        differences = np.diff(kept[:, :, 0], axis=0)
        grows = (differences > 0).mean(axis=0) >= _MIN_GROWING_SHARE
        grows &= differences[-1] > 0
        grows[0] = False  # outside of operators
        growth = (kept[-1] - kept[0])[grows] / steps
        enough = (growth[:, 0] >= _MIN_TENSORS) & (growth[:, 1] > 0)
        grows[grows] = enough
        more = growth[:, 1].sum() * steps
        whole = kept[:, :, 1].sum(axis=1)
        if not grows.any() or whole[-1] - whole[0] < more / 2:
            return None
        growth = growth[enough]
        return Growth(levels.steps, np.flatnonzero(grows), growth[:, 0], growth[:, 1])
