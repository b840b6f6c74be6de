"""Notes on what results or recorded events leave out, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pasta.table import counted, formatted

if TYPE_CHECKING:
    from pasta.config import Config
    from pasta.processors.sampling import Sampling
    from pasta.runtime.pipeline import Pipeline


def profiled_part(config: Config, observed: int, stopped: int) -> Iterator[str]:
    """How much of a run (ns) was profiled, if options had profiling stopped in some of it."""
    if not config.window and not stopped:
        return
    on = max(0, observed - stopped)
    if not on and not config.start:
        yield (
            "profiling was never on (run.start = false): call pasta.start(), or leave out "
            "--profile-from-start off"
        )
        return
    reasons = []
    if config.window:
        reasons.append(f"run.window = {config.window!r}")
    if config.duration:
        reasons.append(f"run.duration = {formatted(config.duration * 1_000_000, 'ns')}")
    if not config.start:
        reasons.append("run.start = false")
    if not reasons:
        return
    yield (
        f"profiling was on for {formatted(on, 'ns')} of {formatted(observed, 'ns')} "
        f"({', '.join(reasons)}): results, also estimates for all launches, cover this part"
    )


def not_kept(events: int, *, rotate: bool, replayed: bool = False) -> Iterator[str]:
    """Events beyond the maximum size of a recording; `replayed`: as a replay of it reports them."""
    if not events:
        return
    what = f"the {'oldest' if rotate else 'newest'} {counted(events, 'event was', 'events were')}"
    if replayed:
        yield (
            f"{what} not recorded (run.max-size): results, also estimates for all launches, are "
            "of the recorded events only"
        )
    else:
        yield f"{what} not kept (run.max-size); results include them"


def none_selected(pipeline: Pipeline) -> Iterator[str]:
    """Launches, if the filter selected none of them."""
    selection = pipeline.selection
    if selection.matched_nothing:
        names = sorted(pipeline.context.demangled(selection.launched))
        shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        yield (
            f"the filter selected none of {counted(selection.seen, 'launch')}; launched "
            f"kernels: {shown}{_scopes(pipeline)}"
        )


def _scopes(pipeline: Pipeline) -> str:
    """Operators and modules that a filter by them looked at, for a filter that matched nothing."""
    if not pipeline.filter.needs_operators:
        return ""
    text, strings = "", pipeline.context.strings
    kinds = ("--operator", "operators"), ("--module", "modules")
    for (option, kind), ids in zip(kinds, pipeline.selection.operators, strict=True):
        if ids:
            names = sorted(strings[id] for id in ids)
            more = f" and {len(names) - 20:,} more" if len(names) > 20 else ""
            text += f"; {kind} ({option}) were: {', '.join(names[:20])}{more}"
    return text or "; no framework reported an operator with launches (--operator, --module)"


def none_probed(config: Config, sampling: Sampling) -> Iterator[str]:
    """Launches, if none was probed because of the overhead budget."""
    if config.probes_overhead_budget and sampling.seen and not sampling.probed:
        if len(sampling.all_missed):  # a window was open
            return
        budget = formatted(config.probes_overhead_budget, "share")
        yield (
            f"no launches were probed: the program was too short for a window within the overhead "
            f"budget ({budget}); use --sample, a higher budget or a longer run"
        )
