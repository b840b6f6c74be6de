"""Joined results of tools that run in both passes: from the recorded events of the pass with device
times, and the tables that the tool stored in the other pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pasta.config import Config
from pasta.errors import PastaError, RunError
from pasta.plugins import built_in_names, find_tools
from pasta.probes.unseen import PROBED, TABLE
from pasta.progress import report_progress
from pasta.run.passes import Rejoined
from pasta.run.results import StoredResult, read_results
from pasta.runtime.replay import Replay
from pasta.tool import OtherPass

if TYPE_CHECKING:
    from pasta.run.pass_launches import RecordedPass
    from pasta.run.pass_tables import Joined
    from pasta.tool import Tool


def rejoin(
    name: str, times: RecordedPass, accesses: RecordedPass, joined: Joined
) -> Rejoined | None:
    """The result of both passes of a tool that ran in the one with accesses; None if the tool does
    not run in both. Raises RunError for damaged runs.

    Only tools that come with PASTA are run, since anyone may have written the runs.
    """
    if name not in built_in_names():
        return None
    (kind,) = find_tools(name)
    if not kind.both_passes:
        return None
    stored = next(each for each in read_results(accesses.run.results) if each.name == name)
    report_progress(f"joining {name}")
    try:
        config = Config(tools=[name], tool_options={name: _options(accesses.manifest, kind)})
        tool = Replay(times.run.recorded(), config).fed()
        _join(tool, _other(stored, joined))
        result = tool.result()
    except RunError:
        raise
    except PastaError as error:
        raise RunError(str(error)) from None
    except Exception as error:  # as in a run, where a tool that fails does not end the others
        raise RunError(f"{name} failed ({type(error).__name__}: {error})") from error
    of_probes = {each: stored.tables[each] for each in (TABLE, PROBED) if each in stored.tables}
    origin = f"of the passes times ({times.sources}) and accesses ({accesses.sources})"
    result = replace(result, tables={**result.tables, **of_probes}, notes=[origin, *result.notes])
    return Rejoined(result, kind.title, kind.topic)


def _options(manifest: Mapping[str, Any], kind: type[Tool]) -> dict[str, Any]:
    """The tool's options in the pass with accesses."""
    config = manifest.get("config")
    options = config.get("tool_options") if isinstance(config, dict) else None
    found = options.get(kind.name) if isinstance(options, dict) else None
    return found if isinstance(found, dict) else {}


def _join(tool: Tool, other: OtherPass) -> None:
    """Raises RunError for damaged tables of the other pass."""
    try:
        tool.join(other)
    except ValueError as error:
        raise RunError(f"{tool.name} of the pass accesses: {error}") from None


def _other(stored: StoredResult, joined: Joined) -> OtherPass:
    """What the tool gets of the pass with accesses."""
    order = np.argsort(joined.pairs.other)
    one, other = joined.pairs.one[order], joined.pairs.other[order]
    probed = joined.accesses.rows[other]
    mine = joined.times.rows["ordinal"][one]
    return OtherPass(stored.tables, probed["ordinal"], mine, probed["probed"])
