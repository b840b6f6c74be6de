"""Creates the tools, filter, context and pipeline of one process from its configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING

from pasta.config import Config
from pasta.plugins import load_tools, load_usable_tools
from pasta.processors.filter import Filter
from pasta.processors.strings import Strings
from pasta.runtime.loaded_tool import ToolFailure
from pasta.runtime.pipeline import Limit, Pipeline
from pasta.tool import Context, Process, Tool

if TYPE_CHECKING:
    from pasta.processors.batch import Batch
    from pasta.runtime.ring import Ring


def make_tools(config: Config) -> list[Tool]:
    """Create the configured tools. Raises ToolError."""
    return load_tools(
        config.tools, config.tool_options, config.tool_paths, config.origins,
        sampled=config.probes_part,
    )  # fmt: skip


def make_filter(config: Config) -> Filter:
    """The filter of launches and ranges."""
    return Filter(
        kernel=config.kernel,
        exclude=config.exclude,
        launch_skip=config.launch_skip,
        launch_count=config.launch_count,
        range=config.range,
        operator=config.operator,
        module=config.module,
    )


def make_context(
    ring: Ring, strings: Strings, recorded: Callable[[], Iterator[Batch]] | None = None
) -> Context:
    """The context of the process that writes a ring; `recorded` reads its recorded batches."""
    process = Process(pid=ring.pid, start_realtime=ring.start_realtime, start_time=ring.start_time)
    context = Context(strings=strings, process=process)
    if recorded is not None:
        context.recorded = recorded
    return context


def make_pipeline(config: Config, context: Context, limit: Limit = nullcontext) -> Pipeline:
    """A new pipeline. Raises ToolError."""
    return Pipeline(make_filter(config), make_tools(config), context, limit)


def make_usable_pipeline(
    config: Config, context: Context, limit: Limit, state: bytes | None = None
) -> Pipeline:
    """A new pipeline, or the one restored from `state`, for a run in progress: tools that can no
    longer be loaded are listed in its failures."""
    tools, failed = load_usable_tools(
        config.tools, config.tool_options, config.tool_paths, sampled=config.probes_part
    )
    failures = [ToolFailure.of(name, "loading", error) for name, error in failed.items()]
    if state is not None:
        return Pipeline.restore(state, tools, context, limit, failures)
    return Pipeline(make_filter(config), tools, context, limit, failures)
