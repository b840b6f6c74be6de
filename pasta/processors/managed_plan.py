"""Managed memory plans: prefetches and advice that PASTA applies in a running program.

A plan is TOML, written by the tool uvm_advisor or by hand; docs/tools/uvm_advisor.md describes it.
It names allocations and launches by their content, so it fits every run of the program with the
same sizes: an allocation by its bytes and its number among the managed allocations of this size, a
launch by kernel, grid and its number among the launches of both.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pasta.errors import ConfigError, shown

VERSION = 1
#: Actions of entries, and whether they belong to launches; others run after the allocation.
ACTIONS = {
    "prefetch": True,  # to the device, before the launch
    "evict": True,  # to the host, after the launch
    "read_mostly": False,
    "preferred_host": False,
    "accessed_by": False,  # by the device
    "pin": False,  # the device is the preferred location
}
EVERY = "every"
#: In place of the number of a launch for C: each, and none: after the allocation.
_EACH, _AT_ALLOCATION = -1, -2
_MAX_NUMBER = (1 << 63) - 1
_MAX_NAME = 1 << 20  # as recorded (shim/core/strings.c)


@dataclass(frozen=True)
class Allocation:
    """A managed allocation: its bytes, and its number from 0 among those of this size."""

    bytes: int
    occurrence: int = 0


@dataclass(frozen=True)
class LaunchKey:
    """A launch: the kernel's recorded name, grid, and number from 0 among both; None: each."""

    kernel: str
    grid: tuple[int, int, int]
    occurrence: int | None = None


@dataclass(frozen=True)
class Entry:
    """One action on `bytes` bytes from `offset` of an allocation."""

    action: str
    allocation: Allocation
    offset: int
    bytes: int
    launch: LaunchKey | None = None
    why: str = ""

    def toml(self) -> str:
        """The entry as a table of the array `entry`."""
        lines = [
            "[[entry]]",
            f"action = {_quoted(self.action)}",
            f"allocation = {{ bytes = {self.allocation.bytes},"
            f" occurrence = {self.allocation.occurrence} }}",
            f"offset = {self.offset}",
            f"bytes = {self.bytes}",
        ]
        if self.launch is not None:
            number = _quoted(EVERY) if self.launch.occurrence is None else self.launch.occurrence
            lines.append(
                f"launch = {{ kernel = {_quoted(self.launch.kernel)},"
                f" grid = {list(self.launch.grid)}, occurrence = {number} }}"
            )
        if self.why:
            lines.append(f"why = {_quoted(self.why)}")
        return "\n".join(lines) + "\n"

    def native(self) -> str:
        """The entry as a line for the preloaded library: fields separated by tabs."""
        launch = self.launch
        if launch is None:
            number, grid, kernel = _AT_ALLOCATION, (0, 0, 0), ""
        else:
            number = _EACH if launch.occurrence is None else launch.occurrence
            grid, kernel = launch.grid, launch.kernel
        fields = (
            self.action, self.allocation.bytes, self.allocation.occurrence, self.offset,
            self.bytes, number, *grid, kernel,
        )  # fmt: skip
        return "\t".join(str(field) for field in fields) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def written(entries: Iterable[Entry], comment: str = "") -> str:
    """The text of a plan; `comment` may have several lines."""
    head = "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())
    return "\n".join([f"{head}version = {VERSION}\n", *(entry.toml() for entry in entries)])


def read(path: str) -> list[Entry]:
    """The entries of a plan's file. Raises ConfigError."""
    try:
        with open(path, encoding="utf-8") as file:
            return parsed(file.read(), path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None


def parsed(text: str, name: str = "plan") -> list[Entry]:
    """The entries of a plan's text. Raises ConfigError that names the entry and the problem."""
    if sys.version_info >= (3, 11):  # deferred: most launches read no TOML
        import tomllib
    else:
        import tomli as tomllib
    try:
        document: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also for dates and long integers
        raise ConfigError(f"{name}: not valid TOML: {error}") from None
    version = document.pop("version", None)
    if version != VERSION:
        raise ConfigError(
            f"{name}: version = {shown(version)} is unknown",
            remedy=f"this PASTA reads version {VERSION}; create the plan again",
        )
    entries = document.pop("entry", [])
    if document or not isinstance(entries, list):
        wrong = next(iter(document), "entry")
        raise ConfigError(f"{name}: {shown(wrong)} is unknown", remedy="use [[entry]] tables")
    return [_entry(each, f"{name}: entry {at}") for at, each in enumerate(entries, 1)]


def _entry(given: Any, where: str) -> Entry:
    if not isinstance(given, dict):
        raise ConfigError(f"{where} is not a table", remedy="begin it with [[entry]]")
    fields = _Fields(given, where)
    action = fields.text("action")
    if action not in ACTIONS:
        fields.reject("action", f"one of {', '.join(ACTIONS)}")
    allocation = _Fields(fields.table("allocation"), f"{where}: allocation")
    key = Allocation(allocation.number("bytes", 1), allocation.number("occurrence", 0))
    allocation.end()
    offset, bytes = fields.number("offset", 0), fields.number("bytes", 1)
    if offset + bytes > key.bytes:
        fields.reject("bytes", "a range inside the allocation")
    launch = None
    if ACTIONS[action]:
        launch = _launch(_Fields(fields.table("launch"), f"{where}: launch"))
    why = fields.text("why") if "why" in given else ""
    fields.end()
    return Entry(action, key, offset, bytes, launch, why)


def _launch(fields: _Fields) -> LaunchKey:
    kernel = fields.text("kernel")
    if not kernel or len(kernel.encode()) > _MAX_NAME or any(c in kernel for c in "\t\n\0"):
        fields.reject("kernel", "the recorded name of a kernel")
    grid = fields.take("grid")
    if (
        not isinstance(grid, Sequence)
        or len(grid) != 3
        or any(type(each) is not int or not 0 < each < 1 << 32 for each in grid)
    ):
        fields.reject("grid", "three positive integers")
    number = fields.take("occurrence")
    if number != EVERY and (type(number) is not int or not 0 <= number <= _MAX_NUMBER):
        fields.reject("occurrence", f'a number from 0, or "{EVERY}"')
    fields.end()
    return LaunchKey(kernel, (grid[0], grid[1], grid[2]), None if number == EVERY else number)


class _Fields:
    """Fields of a table, each to be taken once."""

    def __init__(self, given: dict[str, Any], where: str) -> None:
        self.given, self.left, self.where = given, dict(given), where

    def take(self, name: str) -> Any:
        if name not in self.left:
            raise ConfigError(f"{self.where}: {name} is missing", remedy=f"add {name} = …")
        return self.left.pop(name)

    def reject(self, name: str, accepted: str) -> None:
        raise ConfigError(
            f"{self.where}: {name} = {shown(self.given[name])} is not accepted",
            remedy=f"use {accepted}",
        )

    def text(self, name: str) -> str:
        value = self.take(name)
        if not isinstance(value, str):
            self.reject(name, "a string")
        return str(value)

    def table(self, name: str) -> dict[str, Any]:
        value = self.take(name)
        if not isinstance(value, dict):
            self.reject(name, "a table in braces")
        return dict(value)

    def number(self, name: str, least: int) -> int:
        value = self.take(name)
        if type(value) is not int or not least <= value <= _MAX_NUMBER:
            self.reject(name, f"a number from {least}")
        return int(value)

    def end(self) -> None:
        for name in self.left:
            raise ConfigError(f"{self.where}: {shown(name)} is unknown", remedy="remove it")
