"""Steps of a program, the unit of windows."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from pasta.table import counted

if TYPE_CHECKING:
    from pasta.processors.batch import Batch
    from pasta.processors.strings import Strings

#: Names of ranges in a manifest, and in a message.
_MAX_NAMES, _MAX_SHOWN = 100, 4


class StepRanges:
    """Ranges that began the steps of a run, by the rule of shim/core/windows.c: their whole names
    match, and they are not inside another match. Without a pattern, only `pasta.step()` does."""

    def __init__(self, pattern: str, strings: Strings) -> None:
        self.pattern = pattern
        #: Matched ranges, and matched ranges nested in others, by name.
        self.matched: Counter[str] = Counter()
        self.inside: Counter[str] = Counter()
        #: Whether `pasta.step()` was called.
        self.called = False
        self._strings = strings
        self._matches: dict[int, str | None] = {}
        self._open: dict[int, tuple[int, int]] = {}  # by thread: stack, ranges open on it

    def feed(self, batch: Batch) -> None:
        """Follow the ranges and marks of a batch."""
        self.called = self.called or any(
            self._strings[name] == "step" and self._strings[domain] == "pasta"
            for name, domain in batch["mark"][["name", "domain"]].tolist()
            if name and domain
        )
        if not self.pattern:
            return
        from pasta import abi
        from pasta.processors.correlate import RANGE_KINDS

        push, pop, start = (abi.KINDS[kind] for kind in RANGE_KINDS[:3])
        ranges = batch.merged(*RANGE_KINDS)
        fields = ("kind", "thread", "domain", "origin", "name")
        for kind, thread, domain, origin, name in zip(
            *(ranges[each].tolist() for each in fields), strict=True
        ):
            stack = origin << 32 | domain
            held, count = self._open.get(thread, (stack, 0))
            if kind == pop and count:
                self._open[thread] = held, count - (held == stack)
            elif kind in (push, start):
                matched = self._name(name)
                if matched is not None:
                    self.matched[matched] += 1
                    self.inside[matched] += count > 0
                if kind == push and count:
                    self._open[thread] = held, count + (held == stack)
                elif kind == push and matched is not None:
                    self._open[thread] = stack, 1

    def _name(self, id: int) -> str | None:
        """Name of a range; None if it does not match."""
        if id not in self._matches:
            text = self._strings[id] if id else ""
            found = bool(text) and re.fullmatch(self.pattern, text) is not None
            self._matches[id] = text if found else None
        return self._matches[id]

    def summary(self) -> dict[str, Any]:
        """Counts of the most frequent names, for the manifest."""
        names = dict(self.matched.most_common(_MAX_NAMES))
        return {
            "pattern": self.pattern,
            "names": len(self.matched),
            "ranges": names,
            "inside": {name: self.inside[name] for name in names if self.inside[name]},
            "steps": self.matched.total() - self.inside.total(),
        }

    def text(self) -> str:
        """Warning if there were no steps, no range or several names matched, or ranges are nested;
        otherwise empty."""
        one_step = ": all launches were in step 0"
        if not self.pattern:
            none = "no call of pasta.step() was recorded, and probes.step-range is not set"
            return "" if self.called else none + one_step
        setting = f"probes.step-range = {self.pattern!r}"
        if not self.matched:
            return f"{setting} matched the full name of no range{'' if self.called else one_step}"
        inside = self.inside.total()
        if len(self.matched) == 1 and not inside:
            return ""
        shown = [f"{name} {count:,} times" for name, count in self.matched.most_common(_MAX_SHOWN)]
        more = len(self.matched) - len(shown)
        names = counted(len(self.matched), "name")
        text = f"{setting} matched {names} ({', '.join(shown)}{f', {more:,} more' if more else ''})"
        if not inside:
            return text
        steps = self.matched.total() - inside
        return f"{text}, {inside:,} of them nested: the {steps:,} outermost are the steps"
