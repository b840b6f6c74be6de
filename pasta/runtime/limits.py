"""Time limits for calls of tools, and storing of their results."""

from __future__ import annotations

import errno
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pasta.contained import contained
from pasta.errors import RunError
from pasta.progress import report_progress
from pasta.run.directory import RunDirectory
from pasta.run.results import write_result
from pasta.runtime.parity import with_gaps

if TYPE_CHECKING:
    from pasta.runtime.pipeline import Pipeline
    from pasta.tool import Result, Tool

_WRITING_FACTOR = 10
#: Error numbers of a disk that is full, over quota, read-only or broken.
DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})


class ToolTimeout(BaseException):
    """A tool exceeded its time limit; not an Exception, so that tools do not catch it."""


@contextmanager
def time_limit(milliseconds: int) -> Iterator[None]:
    """Raises ToolTimeout if the block takes longer; has no effect outside of the main thread."""
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


@contextmanager
def tool_call(milliseconds: int) -> Iterator[None]:
    """Wraps a call of a tool in a PASTA process: limits its time, and restores process state that
    it changed."""
    with contained(), time_limit(milliseconds):
        yield


def store_results(
    run: RunDirectory,
    pipeline: Pipeline,
    sources: Iterable[str],
    timeout: int,
    log: Callable[[str], None],
) -> dict[str, str]:
    """Stores the results of all tools, and returns their parts of the text report by name; a tool
    that fails here is disabled.

    `sources`: of the run's events; `timeout`: ms for a call of a tool; `log` receives failures.
    Raises OSError if the disk fails (`DISK_ERRORS`), which is not the tool's fault.
    """
    texts: dict[str, str] = {}
    sources = list(sources)
    results = pipeline.finish()
    for loaded in pipeline.working():
        report_progress(f"writing results of {loaded.name}")
        try:
            # Writing files takes longer, in proportion to the number of events.
            with tool_call(_WRITING_FACTOR * timeout):
                result = with_gaps(loaded.tool, results[loaded.name], sources)
                texts |= _store(run, loaded.tool, loaded.name, result)
        except BaseException as error:  # as in the pipeline: a tool's code may write the file
            if isinstance(error, OSError) and error.errno in DISK_ERRORS:
                raise
            pipeline.fail(loaded.name, "writing its result", error)
    for failure in pipeline.failures.values():
        log(f"tool {failure.tool} failed in {failure.where}:\n{failure.traceback}")
    return texts


def _store(run: RunDirectory, tool: Tool, name: str, result: Result) -> dict[str, str]:
    """Writes a tool's result atomically, after checking that it can be read and rendered; its part
    of the text report by name."""
    from pasta.report.text import check_shown

    staging = RunDirectory(run.path / f".{name}-writing")
    target = run.results / name
    try:
        write_result(staging.results, name, result, title=tool.title, topic=tool.topic)
        try:
            texts = check_shown(staging)
        except RunError as error:  # the place in the result, not that of files that are removed
            raise ValueError(str(error).removeprefix(f"{staging.results}/{name}/")) from error
        run.results.mkdir(exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)  # left by a killed collector
        (staging.results / name).rename(target)
        return texts
    finally:
        shutil.rmtree(staging.path, ignore_errors=True)


def failures_of(pipeline: Pipeline) -> dict[str, dict[str, str]]:
    """The manifest's entry about disabled tools."""
    return {
        failure.tool: {
            "where": failure.where,
            "reason": failure.reason,
            **({"place": failure.place} if failure.place else {}),
        }
        for failure in pipeline.failures.values()
    }
