"""Tools within limits of time, and the results of those that keep them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pasta.progress import doing
from pasta.run.results import write_result
from pasta.runtime.parity import with_gaps

if TYPE_CHECKING:
    from pasta.processors.pipeline import Pipeline
    from pasta.run.directory import RunDirectory

_WRITING_FACTOR = 10


class ToolTimeout(BaseException):
    """A tool did not return in time; not an Exception, so that tools do not catch it."""


@contextmanager
def time_limit(milliseconds: int) -> Iterator[None]:
    """Raises ToolTimeout when the block takes longer; in other threads than the main one nothing
    can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def expired(_signal: int, _frame: Any) -> None:
        raise ToolTimeout(f"did not return within {milliseconds / 1000:g} s (run.tool-timeout)")

    before = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, milliseconds / 1000)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def store_results(
    run: RunDirectory,
    pipeline: Pipeline,
    sources: Iterable[str],
    timeout: int,
    log: Callable[[str], None],
) -> None:
    """Stores the results of all tools; one that fails here is disabled like any other.

    `sources` of the run's events; `timeout` in milliseconds for a call of a tool. `log` is told of
    failures.
    """
    sources = list(sources)
    results = pipeline.finish()
    for tool in pipeline.tools:
        if tool.name not in results:
            continue
        doing(f"writing results of {tool.name}")
        try:
            # Files may take long to write, for as many events as there are.
            with time_limit(_WRITING_FACTOR * timeout):
                result = with_gaps(tool, results[tool.name], sources)
                write_result(run.results, tool.name, result)
        except (Exception, ToolTimeout):
            pipeline.fail(tool, "writing its result")
    for failure in pipeline.failures.values():
        log(f"tool {failure.tool} failed in {failure.where}:\n{failure.traceback}")


def failures_of(pipeline: Pipeline) -> dict[str, dict[str, str]]:
    """What the manifest says of tools that were disabled."""
    return {
        failure.tool: {"where": failure.where, "reason": failure.reason}
        for failure in pipeline.failures.values()
    }
