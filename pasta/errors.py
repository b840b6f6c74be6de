"""Exceptions of PASTA: every message names the fault and its place, with a remedy."""

from __future__ import annotations

import re


def shown(value: object, limit: int = 60) -> str:
    """A value for a message: one line of at most `limit` printable characters."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        text = "a number too long to show"
    text = "".join(each if each.isprintable() else "?" for each in text)
    return text if len(text) <= limit else f"{text[: limit - 10]}…{text[-9:]}"


def visible(text: str) -> str:
    """A text in one line, with control and invisible characters escaped, as \\x1b or \\u202e."""
    return _INVISIBLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


#: Control characters, direction marks, line separators and lone surrogates.
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


class PastaError(Exception):
    """An error that a user can fix. `remedy` is what to type or change, if known."""

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
    """A probe or map of a tool is wrong, at a line of its file."""

    def __init__(self, file: str, line: int, what: str, remedy: str) -> None:
        super().__init__(f"{file}:{line}: {what}", remedy=remedy)
        self.file = file
        self.line = line


class MissingDependency(PastaError):
    """A library or program that PASTA needs is not installed."""


class RunError(PastaError):
    """A run directory cannot be written or read."""
