"""When probes run, and what the launches that were probed say of all of them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pasta.errors import ConfigError
from pasta.lazy import np
from pasta.probes.regex import posix
from pasta.table import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.config import Config
    from pasta.processors.batch import Batch
    from pasta.processors.strings import Strings

_SECOND = 10**9
#: Names of ranges in a manifest, and in a line.
_MAX_NAMES, _MAX_SHOWN = 100, 4


def shim_settings(config: Config) -> dict[str, object]:
    """What libpasta is told about probes, by key.

    Raises ConfigError for settings that exclude each other and for regular expressions that only
    Python understands.
    """
    if config.probes_window and config.probes_overhead_budget:
        raise ConfigError(
            "probes.window and probes.overhead-budget both say when probes run",
            remedy="give one of them",
        )
    settings: dict[str, object] = {"probe_every": max(1, config.probes_every)}
    for key, name, pattern in (
        ("probe_kernel", "filter.kernel", config.kernel),
        ("probe_exclude", "filter.exclude", config.exclude),
    ):
        if pattern:
            settings[key] = posix(pattern, name)
    if config.probes_step_range:  # a whole name
        settings["probe_step_range"] = f"^({posix(config.probes_step_range, 'probes.step-range')})$"
    if not config.range:  # C does not follow ranges: those launches are sorted out afterwards
        settings["probe_skip"] = config.launch_skip
        if config.launch_count is not None:
            settings["probe_count"] = config.launch_count
    if config.probes_window:
        unit, _, numbers = config.probes_window.partition(" ")
        length, period = (float(number) for number in numbers.split("/"))
        scale = _SECOND if unit == "seconds" else 1
        settings["probe_window"] = f"{unit} {round(length * scale)} {round(period * scale)}"
    if config.probes_overhead_budget:
        settings["probe_budget"] = round(config.probes_overhead_budget * 1e6)
    return settings


class StepRanges:
    """Which ranges began the steps of a run, as shim/core/windows.c has it: those whose whole names
    match, but for those that are inside such a one."""

    def __init__(self, pattern: str, strings: Strings) -> None:
        self.pattern = pattern
        #: Ranges that matched and those of them that were inside others, by name.
        self.matched: Counter[str] = Counter()
        self.inside: Counter[str] = Counter()
        self._strings = strings
        self._matches: dict[int, str | None] = {}
        self._open: dict[int, tuple[int, int]] = {}  # by thread: stack, ranges open on it

    def feed(self, batch: Batch) -> None:
        """Follows the ranges of a batch."""
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
        """The name of a range, if it matches."""
        if id not in self._matches:
            text = self._strings[id] if id else ""
            found = bool(text) and re.fullmatch(self.pattern, text) is not None
            self._matches[id] = text if found else None
        return self._matches[id]

    def summary(self) -> dict[str, Any]:
        """For the manifest: counts by name, of the most frequent names."""
        names = dict(self.matched.most_common(_MAX_NAMES))
        return {
            "pattern": self.pattern,
            "names": len(self.matched),
            "ranges": names,
            "inside": {name: self.inside[name] for name in names if self.inside[name]},
            "steps": self.matched.total() - self.inside.total(),
        }

    def text(self) -> str:
        """What a user may not have meant: nothing matched, several names did, or some are inside
        others; else empty."""
        said = f"probes.step-range = {self.pattern!r}"
        if not self.matched:
            return f"{said} matched the whole name of no range: all launches were of step 0"
        inside = self.inside.total()
        if len(self.matched) == 1 and not inside:
            return ""
        shown = [f"{name} {count:,} times" for name, count in self.matched.most_common(_MAX_SHOWN)]
        more = len(self.matched) - len(shown)
        names = counted(len(self.matched), "name")
        text = f"{said} matched {names} ({', '.join(shown)}{f', {more:,} more' if more else ''})"
        if not inside:
            return text
        steps = self.matched.total() - inside
        return f"{text}, {inside:,} of them inside others: the {steps:,} outermost are the steps"


@dataclass(frozen=True)
class Estimate:
    """A total over all launches, and its standard error.

    `error` is 0 where all were probed, and NaN where nothing tells it: a kernel of which one
    launch of several was probed, or none.
    """

    total: float
    error: float

    @property
    def relative(self) -> float:
        """The error as a share of the total; NaN where the total is 0."""
        return self.error / self.total if self.total else math.nan


@dataclass
class Sampling:
    """How many launches of each kernel (by name id) there were, and how many were probed."""

    seen: dict[int, int] = field(default_factory=dict)
    probed: dict[int, int] = field(default_factory=dict)

    def add(self, launches: NDArray[Any]) -> None:
        """Counts launch records."""
        from pasta import abi

        probed = launches["flags"] & abi.FLAG_PROBED != 0
        for counts, names in (
            (self.seen, launches["name"]),
            (self.probed, launches["name"][probed]),
        ):
            for name, count in zip(*np.unique(names, return_counts=True), strict=True):
                counts[int(name)] = counts.get(int(name), 0) + int(count)

    @property
    def exact(self) -> bool:
        """All launches were probed."""
        return self.seen == self.probed

    @property
    def unprobed(self) -> list[int]:
        """Kernels (name ids) of which no launch was probed."""
        return sorted(name for name in self.seen if not self.probed.get(name))

    def scale(self, kernel: int) -> float:
        """Launches for each that was probed; NaN where none was."""
        probed = self.probed.get(kernel, 0)
        return self.seen[kernel] / probed if probed else math.nan

    def estimate(self, kernel: int, counts: NDArray[Any]) -> Estimate:
        """Total over all launches of a kernel, from the counts of probed ones.

        Launches that counted nothing may be left out. The mean of the probed launches stands for
        all; its error is that of a sample without replacement.
        """
        values = np.asarray(counts, np.float64)
        seen, total = self.seen.get(kernel, 0), float(values.sum())
        probed = max(self.probed.get(kernel, 0), len(values))
        if seen == probed:
            return Estimate(total, 0.0)
        if not probed:
            return Estimate(math.nan, math.nan)
        mean = total / probed
        if probed == 1:
            return Estimate(mean * seen, math.nan)
        zeros = probed - len(values)
        squares = float(((values - mean) ** 2).sum()) + zeros * mean**2
        variance = squares / (probed - 1)
        return Estimate(mean * seen, seen * math.sqrt((1 - probed / seen) * variance / probed))

    def estimates(self, kernels: NDArray[Any], counts: NDArray[Any]) -> dict[int, Estimate]:
        """An estimate for each kernel that was launched; one count a launch, with its kernel."""
        return {name: self.estimate(name, counts[kernels == np.uint32(name)]) for name in self.seen}

    def total(self, estimates: Mapping[int, Estimate]) -> Estimate:
        """Sum over the kernels that were probed; the error is NaN where that of one is."""
        known = [each for each in estimates.values() if not math.isnan(each.total)]
        error = math.sqrt(sum(each.error**2 for each in known))
        return Estimate(sum(each.total for each in known), error)

    def total_text(self, estimates: Mapping[int, Estimate]) -> str:
        """`about 2,469,600 in all launches, ± 0.4 %`: of the kernels that were probed only, where
        others were not, and with the share of launches that are theirs. Empty where all launches
        were probed, or none.

        ± is one standard error; without it where a kernel was probed once, so that nothing tells
        how its launches differ.
        """
        if self.exact or not any(self.probed.values()):
            return ""
        total, unprobed = self.total(estimates), self.unprobed
        text = f"about {total.total:,.0f} in all launches"
        if unprobed:
            text += (
                f" of the {len(self.seen) - len(unprobed):,} of {len(self.seen):,} kernels that"
                f" were probed ({_percent(1 - self._share(unprobed))} of"
                f" {counted(sum(self.seen.values()), 'launch')})"
            )
        once = sum(count == 1 and self.seen[name] > 1 for name, count in self.probed.items())
        if once:
            return f"{text}, no error bound: {counted(once, 'kernel')} with one probed launch"
        return text + ("" if math.isnan(total.relative) else f", ± {_percent(total.relative)}")

    def text(self) -> str:
        """`counted in 1,029 of 102,900 launches`, with the kernels that were never probed and what
        to do about them; empty where all launches were probed."""
        if self.exact:
            return ""
        seen, probed = sum(self.seen.values()), sum(self.probed.values())
        if not probed:
            return f"no launch was probed, of {seen:,}"
        text, unprobed = f"counted in {probed:,} of {counted(seen, 'launch')}", self.unprobed
        if unprobed:
            every = max(1, round(seen / probed))
            text += (
                f"; never probed: {counted(len(unprobed), 'kernel')},"
                f" {_percent(self._share(unprobed))} of launches (--set probes.every={every}"
                " instead of a window or budget probes the first launch of each)"
            )
        return text

    def _share(self, kernels: Collection[int]) -> float:
        """Share of launches that are of these kernels."""
        return sum(self.seen[name] for name in kernels) / sum(self.seen.values())


def _percent(share: float) -> str:
    percent = 100 * share
    if 0 < percent < 0.1:
        return "less than 0.1 %"
    return f"{percent:.1f} %" if percent < 10 else f"{percent:.0f} %"
