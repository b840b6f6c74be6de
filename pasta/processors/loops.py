"""The line of the program's main loop that called an operator, and the lines within it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.context import Context
    from pasta.processors.stacks import Frame


class Loop:
    """Python stacks of operators relative to the main loop: its frame is the outermost one that has
    different lines for the operators called at least `calls` times."""

    def __init__(self, context: Context, calls: int) -> None:
        self._context = context
        self._stacks: NDArray[Any] = context.operators.forward_values("stack")
        self._known: dict[int, tuple[Frame, ...]] = {}
        often = context.operators.nodes["calls"] >= calls
        frames = {self._frames(stack) for stack in set(self._stacks[often].tolist())} - {()}
        roots = Counter((each[0].file, each[0].function) for each in frames)
        self._root = min(roots, key=lambda each: (-roots[each], each), default=None)
        frames = {each for each in frames if self._is_rooted(each)}
        self._depth = 0
        while frames and len({each[: self._depth + 1] for each in frames}) == 1:
            if self._depth + 1 >= min(map(len, frames)):
                break
            self._depth += 1

    def _is_rooted(self, frames: tuple[Frame, ...]) -> bool:
        return bool(frames) and (frames[0].file, frames[0].function) == self._root

    def _frames(self, stack: int) -> tuple[Frame, ...]:
        """Frames of the program, outermost first."""
        if stack not in self._known:
            own = self._context.stacks.own(stack, self._context.strings)
            self._known[stack] = tuple(reversed(own))
        return self._known[stack]

    def lines(self, node: int) -> tuple[Frame, ...]:
        """Frames of an operator from the loop inwards; all frames in other threads; empty if
        unknown."""
        frames = self._frames(int(self._stacks[node]))
        if not self._is_rooted(frames):
            return frames
        return frames[min(self._depth, len(frames) - 1) :]

    def line(self, node: int) -> Frame | None:
        """The line of the loop that called an operator; None if unknown."""
        return next(iter(self.lines(node)), None)
