"""Python stacks by the ids that events give."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.strings import Strings

#: Files of the framework itself, and of Python's machinery: a line in them says little.
_OF_FRAMEWORK = re.compile(
    r"/(site|dist)-packages/torch/|/torch/(nn|_\w+|optim|autograd)/|^<frozen "
)
#: Files of any library, Python's own included.
_OF_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python\d|/pasta/frameworks/|^<")
#: The data loaders of PyTorch.
_OF_LOADER = re.compile(r"/torch/utils/data/")


@dataclass(frozen=True)
class Frame:
    """A frame of a stack: the line that ran in it."""

    file: str
    function: str
    line: int

    def __str__(self) -> str:
        """Without the file's directory, for tables."""
        return f"{self.file.rpartition('/')[2]}:{self.line} {self.function}"


class Stacks:
    """All stacks that were told; `context.stacks`."""

    def __init__(self) -> None:
        self._frames: dict[int, list[tuple[int, int, int, int]]] = {}  # depth, file, function, line

    def feed(self, batch: Batch) -> None:
        frames = batch["python_frame"]
        fields = ("stack", "depth", "file", "function", "line")
        for stack, *frame in zip(*(frames[name].tolist() for name in fields), strict=True):
            self._frames.setdefault(stack, []).append((frame[0], frame[1], frame[2], frame[3]))

    def frames(self, stack: int, strings: Strings) -> list[Frame]:
        """Frames, innermost first; none for an id that no event told."""
        return [
            Frame(strings[file], strings[function], line)
            for _, file, function, line in sorted(self._frames.get(stack, []))
        ]

    def own(self, stack: int, strings: Strings) -> list[Frame]:
        """Frames that are not the framework's own, innermost first, else the innermost of it."""
        frames = self.frames(stack, strings)
        return [each for each in frames if not _OF_FRAMEWORK.search(each.file)] or frames[:1]

    def lines(self, stacks: NDArray[Any], strings: Strings) -> list[Frame | None]:
        """`line` of each of these stacks."""
        of = {stack: self.line(stack, strings) for stack in set(stacks.tolist())}
        return [of[stack] for stack in stacks.tolist()]

    def line(self, stack: int, strings: Strings) -> Frame | None:
        """The innermost frame that is not the framework's own, else the innermost."""
        return next(iter(self.own(stack, strings)), None)

    def users(self, stack: int, strings: Strings) -> Frame | None:
        """The innermost frame that is of no library, else `line`."""
        for frame in self.frames(stack, strings):
            if not _OF_LIBRARY.search(frame.file):
                return frame
        return self.line(stack, strings)

    def loader(self, stack: int, strings: Strings) -> Frame | None:
        """The frame that asks a data loader of PyTorch for data, where the stack is inside one."""
        inside = False
        for frame in self.frames(stack, strings):
            if _OF_LOADER.search(frame.file):
                inside = True
            elif inside and not _OF_LIBRARY.search(frame.file):
                return frame
        return None

    def calls(self, stack: int, function: str, strings: Strings) -> bool:
        """Whether a function of this name is in the stack."""
        return any(frame.function == function for frame in self.frames(stack, strings))
