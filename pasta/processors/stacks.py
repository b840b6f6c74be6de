"""Stacks by id: Python stacks, and host stacks with native and Python frames."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pasta.processors.conventions import Conventions
from pasta.processors.demangle import short_name
from pasta.processors.symbols import Code, Symbols

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.strings import Strings

#: Files of the import system.
_MACHINERY = "^<frozen "
#: Files of any library, including the standard library.
_LIBRARIES = (
    r"/(site|dist)-packages/", r"/lib/python\d", r"/pasta/frameworks/", "^<",
    r"^/(usr/)?lib(x?32|64)?/",
)  # fmt: skip
#: Matches no file.
_NOTHING = "(?!)"


#: Where processes and threads begin.
_START = re.compile(r"_start|__libc_start\w*|start_thread|(__GI_)?_*clone3?")
#: Images of Python itself: its functions are left out of paths that have frames of Python.
_INTERPRETER = re.compile(r"/(lib)?python\d[^/]*$")
_GENERATED = "generated code"


@dataclass(frozen=True)
class Frame:
    """A frame of a stack: the line that ran in it.

    Of native code `image` is the program or library; `file` is empty and `line` 0 if unknown.
    """

    file: str
    function: str
    line: int
    image: str = ""

    @property
    def name(self) -> str:
        """The function; the name of its image if it is unknown."""
        image = self.image.rpartition("/")[2]
        return image if image and self.function.startswith(f"{image}+0x") else self.function

    def __str__(self) -> str:
        """File name, line and function, for tables; the image where the line is unknown."""
        image = self.image.rpartition("/")[2]
        if self.image and not self.line:
            return (
                self.function if self.function.startswith(image) else f"{self.function} ({image})"
            )
        return f"{self.file.rpartition('/')[2]}:{self.line} {self.function}"


class Stacks:
    """All recorded stacks: `context.stacks`."""

    def __init__(self, conventions: Conventions, symbols: Symbols | None = None) -> None:
        self._own_files = re.compile("|".join((*conventions.own_files, _MACHINERY)))
        self._libraries = re.compile("|".join((*conventions.library_files, *_LIBRARIES)))
        self._loader_files = re.compile("|".join(conventions.loader_files) or _NOTHING)
        self._runtime = re.compile("|".join(conventions.runtime_images) or _NOTHING)
        self._functions = re.compile("|".join(conventions.runtime_functions) or _NOTHING)
        #: Names of native code.
        self.symbols = symbols or Symbols()
        #: Depth, file, function, line and the function's first line of each frame.
        self._frames: dict[int, list[tuple[int, int, int, int, int]]] = {}
        #: Depth, image, build id and address of each native frame.
        self._native: dict[int, list[tuple[int, int, int, int]]] = {}

    def feed(self, batch: Batch) -> None:
        """Follows the frames of a batch."""
        frames = batch["python_frame"]
        fields = ("stack", "depth", "file", "function", "line", "first_line")
        for stack, *frame in zip(*(frames[name].tolist() for name in fields), strict=True):
            depth, file, function, line, first = frame
            self._frames.setdefault(stack, []).append((depth, file, function, line, first))
        native = batch["host_frame"]
        places = ("stack", "depth", "image", "build", "address")
        for stack, depth, image, build, address in zip(
            *(native[name].tolist() for name in places), strict=True
        ):
            self._native.setdefault(stack, []).append((depth, image, build, address))

    def frames(self, stack: int, strings: Strings) -> list[Frame]:
        """Frames, innermost first; empty for an unknown id."""
        found = [
            (depth, [Frame(strings[file], strings[function], line)])
            for depth, file, function, line, _ in self._frames.get(stack, [])
        ]
        for depth, image, build, address in self._native.get(stack, []):
            code = Code(strings[image], strings[build], address)
            found.append((depth, self._native_frames(code)))
        found.sort(key=lambda each: each[0])
        return [frame for _, frames in found for frame in frames]

    def _native_frames(self, code: Code) -> list[Frame]:
        image = code.image or _GENERATED
        unknown = f"{image.rpartition('/')[2]}+{code.address:#x}" if code.image else image
        return [
            Frame(symbol.file, short_name(symbol.function) or unknown, symbol.line, image)
            for symbol in self.symbols.at(code)
        ]

    def is_native(self, stack: int) -> bool:
        """Whether a stack is a host stack, which may have native frames."""
        return stack in self._native

    def path(self, stack: int, strings: Strings) -> list[Frame]:
        """The call path, outermost first: without the start of the process or thread, the
        interpreter's own functions between frames of Python, and what the accelerator's runtime
        calls inside itself."""
        frames = self.frames(stack, strings)
        python = any(not frame.image for frame in frames)
        inner = 0  # up to the function of the runtime that the program called
        while inner + 1 < len(frames) and self._is_runtimes(frames[inner + 1]):
            inner += 1
        mains = [at for at, each in enumerate(frames) if each.image and each.function == "main"]
        return [
            frame
            for frame in reversed(frames[inner : mains[-1] + 1 if mains else None])
            if not frame.image
            or not (
                _START.fullmatch(frame.function) or (python and _INTERPRETER.search(frame.image))
            )
        ]

    def _is_runtimes(self, frame: Frame) -> bool:
        return bool(
            frame.image
            and (self._runtime.search(frame.image) or self._functions.search(frame.function))
        )

    def content(self, stack: int, strings: Strings) -> list[tuple[str, str, int, int]]:
        """File, function, its first line and the line of each frame, innermost first: the same in
        every process that runs the same code."""
        return [
            (strings[file], strings[function], first, line)
            for _, file, function, line, first in sorted(set(self._frames.get(stack, [])))
        ]

    def own(self, stack: int, strings: Strings) -> list[Frame]:
        """Frames outside of the framework, of the host outside of libraries, innermost first;
        without any, the innermost frame."""
        frames = self.frames(stack, strings)
        if self.is_native(stack):
            return [each for each in frames if self._is_users(each)] or self.path(stack, strings)[
                -1:
            ]
        return [each for each in frames if self._is_own(each)] or frames[:1]

    def _is_own(self, frame: Frame) -> bool:
        return not self._own_files.search(frame.file)

    def _is_users(self, frame: Frame) -> bool:
        if not frame.image:
            return not self._libraries.search(frame.file)
        return not (
            frame.image == _GENERATED
            or self._is_runtimes(frame)
            or _START.fullmatch(frame.function)
            or self._libraries.search(frame.image)
            or _INTERPRETER.search(frame.image)
        )

    def lines(self, stacks: NDArray[Any], strings: Strings) -> list[Frame | None]:
        """`line` of each stack."""
        of = {stack: self.line(stack, strings) for stack in set(stacks.tolist())}
        return [of[stack] for stack in stacks.tolist()]

    def line(self, stack: int, strings: Strings) -> Frame | None:
        """The innermost frame outside of the framework; without one, the innermost frame."""
        return next(iter(self.own(stack, strings)), None)

    def user_line(self, stack: int, strings: Strings) -> Frame | None:
        """The innermost frame outside of libraries, if possible one whose line is known; without
        one, `line`."""
        users = [frame for frame in self.frames(stack, strings) if self._is_users(frame)]
        if not users:
            return self.line(stack, strings)
        return next((frame for frame in users if frame.line), users[0])

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
