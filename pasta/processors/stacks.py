"""Python stacks by id."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pasta.processors.conventions import Conventions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.strings import Strings

#: Files of the import system.
_MACHINERY = "^<frozen "
#: Files of any library, including the standard library.
_LIBRARIES = (r"/(site|dist)-packages/", r"/lib/python\d", r"/pasta/frameworks/", "^<")
#: Matches no file.
_NOTHING = "(?!)"


@dataclass(frozen=True)
class Frame:
    """A frame of a stack: the line that ran in it."""

    file: str
    function: str
    line: int

    def __str__(self) -> str:
        """File name, line and function, for tables."""
        return f"{self.file.rpartition('/')[2]}:{self.line} {self.function}"


class Stacks:
    """All recorded stacks: `context.stacks`."""

    def __init__(self, conventions: Conventions) -> None:
        self._own_files = re.compile("|".join((*conventions.own_files, _MACHINERY)))
        self._libraries = re.compile("|".join((*conventions.library_files, *_LIBRARIES)))
        self._loader_files = re.compile("|".join(conventions.loader_files) or _NOTHING)
        #: Depth, file, function, line and the function's first line of each frame.
        self._frames: dict[int, list[tuple[int, int, int, int, int]]] = {}

    def feed(self, batch: Batch) -> None:
        """Follows the frames of a batch."""
        frames = batch["python_frame"]
        fields = ("stack", "depth", "file", "function", "line", "first_line")
        for stack, *frame in zip(*(frames[name].tolist() for name in fields), strict=True):
            depth, file, function, line, first = frame
            self._frames.setdefault(stack, []).append((depth, file, function, line, first))

    def frames(self, stack: int, strings: Strings) -> list[Frame]:
        """Frames, innermost first; empty for an unknown id."""
        return [
            Frame(strings[file], strings[function], line)
            for _, file, function, line, _ in sorted(self._frames.get(stack, []))
        ]

    def content(self, stack: int, strings: Strings) -> list[tuple[str, str, int, int]]:
        """File, function, its first line and the line of each frame, innermost first: the same in
        every process that runs the same code."""
        return [
            (strings[file], strings[function], first, line)
            for _, file, function, line, first in sorted(set(self._frames.get(stack, [])))
        ]

    def own(self, stack: int, strings: Strings) -> list[Frame]:
        """Frames outside of the framework, innermost first; without any, the innermost frame."""
        frames = self.frames(stack, strings)
        return [each for each in frames if not self._own_files.search(each.file)] or frames[:1]

    def lines(self, stacks: NDArray[Any], strings: Strings) -> list[Frame | None]:
        """`line` of each stack."""
        of = {stack: self.line(stack, strings) for stack in set(stacks.tolist())}
        return [of[stack] for stack in stacks.tolist()]

    def line(self, stack: int, strings: Strings) -> Frame | None:
        """The innermost frame outside of the framework; without one, the innermost frame."""
        return next(iter(self.own(stack, strings)), None)

    def user_line(self, stack: int, strings: Strings) -> Frame | None:
        """The innermost frame outside of libraries; without one, `line`."""
        for frame in self.frames(stack, strings):
            if not self._libraries.search(frame.file):
                return frame
        return self.line(stack, strings)

    def loader(self, stack: int, strings: Strings) -> Frame | None:
        """The frame that requests data from a data loader; None outside of data loaders."""
        inside = False
        for frame in self.frames(stack, strings):
            if self._loader_files.search(frame.file):
                inside = True
            elif inside and not self._libraries.search(frame.file):
                return frame
        return None

    def calls(self, stack: int, functions: Collection[str], strings: Strings) -> bool:
        """Whether a function with one of these names is in the stack."""
        return any(frame.function in functions for frame in self.frames(stack, strings))
