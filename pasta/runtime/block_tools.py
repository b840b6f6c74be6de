"""Tools and settings of a profiled block (pasta.profile, pasta attach)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from pasta.config import Config
from pasta.errors import ConfigError, ToolError
from pasta.plugins import load_tools

if TYPE_CHECKING:
    from pasta.tool import Tool

#: Handlers that get events from frameworks and annotations alone.
_WITHOUT_PRELOAD = {"on_operators", "on_tensors", "on_ranges", "on_batch"}
PRELOAD = "start the program with pasta-preload"


def check_settings(config: Config, usual: Config, where: str, others: Collection[str] = ()) -> None:
    """Raises ConfigError if a setting differs from `usual` that does not apply to single blocks and
    is not one of the keys `others`."""
    for setting in config.unlike(usual):
        if not setting.per_block and setting.key not in others:
            raise ConfigError(
                f"{where}: {setting.key} applies to the whole program, not to a block",
                remedy=f"pasta-preload --set {setting.key}=…",
            )


def load_block_tools(config: Config) -> list[Tool]:
    """The tools of a configuration, which records events if one reads them back. Raises
    PastaError, also for tools with probes."""
    tools = load_tools(config.tools, config.tool_options, config.tool_paths, config.origins)
    for tool in tools:
        if "probes" in tool.needed():
            raise ToolError(
                f"tool {tool.name} has probes, which are compiled before the program starts",
                remedy=f"pasta-preload -t {tool.name} --profile-from-start=off, and pasta.start()",
            )
    config.events = config.events or any("recording" in tool.needed() for tool in tools)
    return tools


def refuse_tools_of_gpus(tools: Iterable[Tool]) -> None:
    """Raises ToolError if a tool has no events in a program without pasta-preload."""
    for tool in tools:
        if not _WITHOUT_PRELOAD.intersection(tool.handlers()) and "operators" not in tool.needed():
            raise ToolError(f"tool {tool.name} needs GPU events", remedy=PRELOAD)
