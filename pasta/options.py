"""Options of tools: named, typed settings, from TOML or `--set`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Generic, Literal, Protocol, TypeVar, overload

from pasta.quantities import BYTES, NANOSECONDS, scaled

T = TypeVar("T")

OptionKind = Literal["bool", "int", "float", "str", "bytes", "duration", "regex"]

_ACCEPTED: dict[str, str] = {
    "bool": "true or false",
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bytes": 'a size such as 4096, "4KiB" or "1MB"',
    "duration": 'a duration such as "10ms", "2s" or a number of seconds',
    "regex": "a regular expression",
}
_BOOLS = {"true": True, "yes": True, "on": True, "1": True} | {
    "false": False, "no": False, "off": False, "0": False,
}  # fmt: skip
#: Bytes of each suffix of a size, ns of each suffix of a duration; in lower case.
SCALES: dict[str, dict[str, int]] = {"bytes": BYTES, "duration": NANOSECONDS}


class Configured(Protocol):
    """An object with values of options, by name."""

    _options: dict[str, Any]


class Option(Generic[T]):
    """A named, typed, validated setting of a tool; on an instance it reads as its value."""

    def __init__(
        self,
        default: T,
        help: str,
        choices: Sequence[T] | None,
        kind: OptionKind,
        minimum: int | float | None,
    ) -> None:
        self.help = help
        self.kind = kind
        self.choices = choices
        self.minimum = minimum
        self.name = ""
        self.given = default
        try:
            self.default: T = self.parse(default)
        except ValueError:
            raise ValueError(f"the default {default!r} is not {self.accepted}") from None

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, tool: None, owner: type) -> Option[T]: ...
    @overload
    def __get__(self, tool: Configured, owner: type) -> T: ...
    def __get__(self, tool: Configured | None, owner: type) -> Option[T] | T:
        if tool is None:
            return self
        value: T = tool._options[self.name]
        return value

    def __set__(self, tool: Configured, value: object) -> None:
        raise AttributeError(f"option {self.name} is set when the tool is created")

    @property
    def accepted(self) -> str:
        """Accepted values, in words."""
        if self.choices is not None:
            return "one of " + ", ".join(map(str, self.choices))
        least = f", at least {self.minimum}" if self.minimum is not None else ""
        return _ACCEPTED[self.kind] + least

    def parse(self, value: object) -> T:
        """Parse a TOML value or the text of `--set`. Raises ValueError if not accepted."""
        try:
            parsed = self._parsed(value)
        except OverflowError:
            raise ValueError(value) from None
        if self.kind in ("int", "bytes", "duration") and abs(parsed) >= 1 << 63:
            raise ValueError(value)
        if self.kind == "float" and not math.isfinite(parsed):
            raise ValueError(value)
        if self.choices is not None and parsed not in self.choices:
            raise ValueError(value)
        if self.minimum is not None and parsed < self.minimum:
            raise ValueError(value)
        return parsed  # type: ignore[no-any-return]

    def _parsed(self, value: object) -> Any:
        text = value.strip() if isinstance(value, str) else None
        if self.kind in ("str", "regex") and isinstance(value, str) and "\0" not in value:
            if self.kind == "regex":
                _check_regex(value)
            return value
        if self.kind == "bool":
            if text is not None and text.lower() in _BOOLS:
                return _BOOLS[text.lower()]
            if isinstance(value, bool):
                return value
        elif isinstance(value, bool):
            pass
        elif self.kind in ("int", "bytes") and isinstance(value, int):
            return value
        elif self.kind == "int" and text is not None:
            return int(text, 0)
        elif self.kind == "float" and (text is not None or isinstance(value, (int, float))):
            return float(text if text is not None else value)  # type: ignore[arg-type]
        elif self.kind in SCALES and (text is not None or self.kind == "duration"):
            found = scaled(str(value), SCALES[self.kind])
            if found is not None:
                return found
        raise ValueError(value)


def _check_regex(text: str) -> None:
    """Raises ValueError for an invalid regular expression."""
    try:
        re.compile(text)
    except (re.error, RecursionError) as error:
        raise ValueError(text) from error


@overload
def option(
    default: str,
    *,
    kind: Literal["regex"],
    help: str,
    choices: None = None,
    minimum: None = None,
) -> Option[str]: ...
@overload
def option(
    default: str,
    *,
    kind: Literal["bytes", "duration"],
    help: str,
    choices: Sequence[int] | None = None,
    minimum: int | None = None,
) -> Option[int]: ...
@overload
def option(
    default: T,
    *,
    kind: None = None,
    help: str,
    choices: Sequence[T] | None = None,
    minimum: int | float | None = None,
) -> Option[T]: ...
def option(
    default: Any,
    *,
    kind: Literal["bytes", "duration", "regex"] | None = None,
    help: str,
    choices: Sequence[Any] | None = None,
    minimum: int | float | None = None,
) -> Any:
    """Declare an option of a tool, typed by its default: bool, int, float or str.

    `kind` "bytes" accepts sizes ("4KiB"), as int bytes; "duration" accepts durations ("10ms", or
    seconds), as int nanoseconds; "regex" accepts regular expressions, as text. Raises
    TypeError for a default of another type.
    """
    found = kind or type(default).__name__
    if found not in _ACCEPTED:
        kinds = '; its kind may be "bytes", "duration" or "regex"' if kind else ""
        raise TypeError(f"an option is bool, int, float or str, not {found}{kinds}")
    return Option(default, help, choices, found, minimum)  # type: ignore[arg-type]
