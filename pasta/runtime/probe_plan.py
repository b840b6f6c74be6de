"""Compiles probes and writes the plan by which sources run them, before the program starts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pasta.config import Config
from pasta.errors import ConfigError
from pasta.runtime.session import Session
from pasta.settings import native_window

if TYPE_CHECKING:
    from pasta.probes.device import ProbeSettings
    from pasta.tool import Tool


def write_plan(session: Session, config: Config, tools: Sequence[Tool]) -> None:
    """Write the plan for the tools that have probes, if any, into the session.

    Raises PastaError if their probes cannot be compiled.
    """
    probing = [tool for tool in tools if "probes" in tool.needed()]
    if not probing:
        return
    from pasta.probes.declare import probes_of
    from pasta.probes.kinds import KIND

    probes = [probe for tool in probing for probe in probes_of(tool)]
    kinds = ",".join(
        map(str, sorted({KIND[kind].number for each in probes for kind in each.kinds}))
    )
    lines, reads_code = [f"kinds {kinds}"], False
    given = replace(given_by(config), waits=False, on_missing=partial(_compile_for_host, config))
    for device in (found for backend in config.backends() if (found := backend.probes)):
        compiled = device.compile(probing, given)
        lines += compiled
        reads_code = reads_code or (bool(compiled) and device.reads_code())
    session.probes.write_text("".join(f"{line}\n" for line in lines))
    if reads_code:
        keep_code(session, config)
    session.document["probe_kinds"] = kinds
    session.document["probe_ordered"] = needs_order(probing)
    session.document["probe_values"] = needs_values(probing)
    session.document["probe_slowdown"] = max(_slowdowns(config, probing))
    session.document["probe_traces"] = has_traces(probing)


def _compile_for_host(config: Config) -> None:
    """Start compiling what the run's collector will call, which is not in the cache either if
    patches are not. The collector waits for it, and reports errors."""
    import json
    import os
    import subprocess
    import tempfile

    from pasta.own_python import own_environment, own_python

    with suppress(OSError), tempfile.TemporaryFile() as request:
        request.write(json.dumps(config.document()).encode())
        request.seek(0)
        subprocess.Popen(
            own_python("pasta.runtime.preparation"), stdin=request, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env=own_environment(os.environ), start_new_session=True,
        )  # fmt: skip


def reach_host(session: Session, tools: Sequence[Tool]) -> bool:
    """Whether the host processes accesses of the run: it has no device that counts them, or its
    devices record them for some map."""
    from pasta.probes.declare import maps_of

    try:
        lines = session.probes.read_text().splitlines()
    except OSError:
        return True
    of_devices = [line for line in lines if not line.startswith("kinds ")]
    specs = [each for tool in tools for each in maps_of(tool).values()]
    return not of_devices or any(each.hands_on or each.recorded for each in specs)


def keep_code(session: Session, config: Config) -> None:
    """Have processes keep the images of their modules until the run is finished."""
    # rings must not run out of memory because of it
    free = shutil.disk_usage(session.directory).free
    session.document["code_memory"] = min(config.probes_code_memory, free // 4)


def given_by(config: Config) -> ProbeSettings:
    """The settings that concern devices."""
    from pasta.probes.device import ProbeSettings

    return ProbeSettings(config.probes_memory, config.probes_trace_memory, config.probes_sm)


def _slowdowns(config: Config, tools: Sequence[Tool]) -> Iterator[float]:
    yield 10.0  # the CPU's, and where nothing better is known
    for backend in config.backends():
        if backend.probes:
            yield backend.probes.slowdown(tools)


def has_traces(tools: Sequence[Tool]) -> bool:
    """Whether tools record accesses, so that a few launches do not represent the others."""
    from pasta.probes.declare import maps_of

    return any(each.hands_on for tool in tools for each in maps_of(tool).values())


def needs_order(tools: Sequence[Tool]) -> bool:
    """Whether results depend on the order of different warps, or on times: then a source that can
    execute blocks one after the other does."""
    from pasta.probes.declare import maps_of, probes_of
    from pasta.probes.kinds import TIMED

    for tool in tools:
        maps = maps_of(tool)
        if any(each.method.returns for each in maps.values()):
            return True
        for probe in probes_of(tool):
            takes = any(maps[op.map].hands_on for op in probe.ops) or "time" in probe.fields
            if takes and set(probe.kinds) & set(TIMED):
                return True
    return False


def needs_values(tools: Sequence[Tool]) -> bool:
    """Whether probes use values, or records have to have them."""
    from pasta.probes.declare import maps_of, probes_of

    used = {field for tool in tools for probe in probes_of(tool) for field in probe.fields}
    recorded = any(each.with_values for tool in tools for each in maps_of(tool).values())
    return recorded or bool(used & {"value", "value_high", "has_value"})


def _scope(key: str, name: str, pattern: str) -> dict[str, object]:
    """Without an equivalent for libpasta, it probes all launches; the filter selects among them
    in any case."""
    from pasta.probes.regex import posix

    try:
        return {key: posix(pattern, name)}
    except ConfigError:
        return {}


def step_settings(config: Config) -> dict[str, str]:
    """The ranges that are steps, by whole names. Raises ConfigError for an expression that only
    Python understands."""
    from pasta.probes.regex import posix

    pattern = config.probes_step_range
    return {"probe_step_range": f"^({posix(pattern, 'probes.step-range')})$"} if pattern else {}


def probe_settings(
    config: Config, *, traces: bool = False, slowdown: float = 10.0
) -> dict[str, object]:
    """What libpasta reads of when probes run, by key. `traces`: access records are the results, so
    a budget does not imply sampling. `slowdown`: of launches by probes, before it is measured.

    Raises ConfigError for settings that exclude each other and for regular expressions that only
    Python understands.
    """
    if config.probes_window and config.probes_overhead_budget:
        raise ConfigError(
            "probes.window and probes.overhead-budget both set when probes run",
            remedy="use only one of them",
        )
    from pasta.probes.regex import posix

    settings: dict[str, object] = {"probe_every": max(1, config.probes_every)}
    for key, name, pattern in (
        ("probe_kernel", "filter.kernel", config.kernel),
        ("probe_exclude", "filter.exclude", config.exclude),
    ):
        if pattern:
            settings[key] = posix(pattern, name)
    settings |= step_settings(config)
    scopes = {
        "probe_range": ("filter.range", config.range),
        "probe_operator": ("filter.operator", config.operator),
        "probe_module": ("filter.module", config.module),
    }
    for key, (name, pattern) in scopes.items():
        if pattern:
            settings |= _scope(key, name, pattern)
    if not any(pattern for _, pattern in scopes.values()):  # otherwise launches are counted later
        settings["probe_skip"] = config.launch_skip
        if config.launch_count is not None:
            settings["probe_count"] = config.launch_count
    if config.probes_window:
        settings["probe_window"] = native_window(config.probes_window)
    if config.probes_overhead_budget:
        settings["probe_budget"] = round(config.probes_overhead_budget * 1e6)
        settings["probe_factor"] = round(100 * slowdown)  # in per cent
    if config.probes_sample or (config.probes_overhead_budget and not traces):
        settings["probe_enough"] = config.probes_enough
        settings["probe_spot_check"] = config.probes_spot_check
    return settings
