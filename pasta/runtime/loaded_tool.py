"""Tools of a run: their classes' declarations at load time, their context, their failures."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pasta import paths

if TYPE_CHECKING:
    from pasta.processors.context import Context
    from pasta.tool import Tool

#: Characters of an exception's text in `ToolFailure.reason`.
_MAX_REASON = 500


@dataclass(frozen=True)
class ToolFailure:
    """Why a tool was disabled: the method, the exception in one line, the traceback, and the line
    of the tool's file ("FILE:LINE", if there is one)."""

    tool: str
    where: str
    reason: str
    traceback: str
    place: str = ""

    @classmethod
    def of(cls, tool: str, where: str, error: BaseException) -> ToolFailure:
        """The failure for an exception, including one whose `__str__` raises."""
        kind = type(error).__name__
        try:
            text = str(error).strip().partition("\n")[0][:_MAX_REASON]
            trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        except Exception:
            text, trace = "", f"{kind}, whose traceback cannot be formatted\n"
        return cls(tool, where, f"{kind}: {text}" if text else kind, trace, _place(error))


def _place(error: BaseException) -> str:
    """The innermost line of the first file outside PASTA in the traceback."""
    lines = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith((f"{paths.PACKAGE}/", "<"))
    ]
    return next((f"{file}:{line}" for file, line in reversed(lines) if file == lines[0][0]), "")


@dataclass(frozen=True, eq=False)
class LoadedTool:
    """A tool, and the declarations of its class at load time.

    The pipeline uses only these: attributes that the instance sets later (`self.name = {}`) have
    no effect on it.
    """

    tool: Tool
    name: str
    handlers: tuple[str, ...]
    kinds: frozenset[str] | None
    #: Names of the processors and events that the tool needs, as `Tool.needed` has them.
    needs: frozenset[str]

    @classmethod
    def of(cls, tool: Tool) -> LoadedTool:
        """The declarations of the tool's class. Raises whatever the class raises."""
        kind = type(tool)
        return cls(tool, name_of(kind), tuple(kind.handlers()), kind.kinds(), kind.needed())

    @property
    def has_probes(self) -> bool:
        """Whether the tool needs the probe runtime."""
        return "probes" in self.needs


def name_of(kind: type[Tool]) -> str:
    """The name of a tool; the name of its class if it has no usable one."""
    name: object = kind.name
    return name if isinstance(name, str) and name else kind.__name__


class ContextView:
    """Read-only view of the context, which all tools share."""

    __slots__ = ("_of",)

    def __init__(self, context: Context) -> None:
        object.__setattr__(self, "_of", context)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"context.{name} is shared by all tools and cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"context.{name} is shared by all tools and cannot be deleted")

    def __reduce__(self) -> Any:
        raise TypeError("the context of a tool is not part of its state")
