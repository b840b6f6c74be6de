"""What PASTA raises: every message says what and where, and carries its remedy."""

from __future__ import annotations

import re


def shown(value: object, most: int = 60) -> str:
    """A value for a message: one line of printable characters, not too long."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        text = "a number too long to show"
    text = "".join(each if each.isprintable() else "?" for each in text)
    return text if len(text) <= most else f"{text[: most - 10]}…{text[-9:]}"


def visible(text: str) -> str:
    """A text as one line: what a terminal or a browser would obey, or not show, is written as
    \\x1b or \\u202e."""
    return _INVISIBLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


#: Control characters, those that turn the direction of text, line separators and lone surrogates.
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


class PastaError(Exception):
    """Anything a user can mend. `remedy` is what to type or change, if that is known."""

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}: {self.remedy}" if self.remedy else self.message


class ConfigError(PastaError):
    """A preset, TOML file or command-line value is wrong."""


class ToolError(PastaError):
    """A tool cannot be found, loaded or configured."""


class ProbeError(ToolError):
    """A probe or a map of a tool is wrong, at this line of its file."""

    def __init__(self, file: str, line: int, what: str, remedy: str) -> None:
        super().__init__(f"{file}:{line}: {what}", remedy=remedy)
        self.file = file
        self.line = line


class MissingDependency(PastaError):
    """A library or program that PASTA needs is not installed."""


class RunError(PastaError):
    """A run directory cannot be written or read."""
