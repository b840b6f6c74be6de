"""Writes docs/backends.md and docs/settings.md from what backends, frameworks and settings declare.

`python -m docs.reference backends|settings` prints one; tests hold the files against it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from pasta.capabilities import CAPABILITIES, Capability, Source
from pasta.config import all_settings
from pasta.sources import known_sources

_BACKENDS = """\
# Backends

Generated from each backend's declarations (`pasta/backends`, `pasta/frameworks`) by
`python -m docs.reference backends`: do not edit.

A backend records the events of one vendor's accelerators. The libraries that the program loads
decide which backend is used; a program that loads several is recorded through all of them, and each
run lists them (`sources`). `--backend nvidia`, `amd` or `refacc` restricts recording to one,
`--backend none` to none: annotations and events of frameworks are still recorded.

**The [AMD](amd.md) backend has never run on AMD hardware.** It has run inside the genuine
rocprofiler-sdk 1.0.0 on a model of a device that executes no shaders, and CI replays the streams
recorded there. Its times, counts and names have not been compared with a device's;
`ci/gpu-suite --amd` does this on a machine with an AMD GPU.

Events, tools and reports are the same for all backends; data that a backend cannot provide is
absent. Results of tools note it:

```
kernel_freq: 1,204 launches of 17 kernels
note: not given by nvidia_sanitizer: device times of kernels, properties of devices, …
```

If a backend cannot observe memory accesses, tools with [probes](probes.md) are
`not available on this backend`. In Python, `"registers" in pasta.load(DIR).capabilities`.

## Where rocprofiler-sdk is looked for

HIP's rocprofiler-register loads the SDK into a program if `ROCP_TOOL_LIBRARIES` names a tool, and
aborts the program if it cannot. Therefore `pasta-preload` adds its own tool, `libpasta_amd.so`,
after the user's, only if it has found the SDK and loaded it in a test process. On machines without
an SDK no process is started: the search takes a fraction of a millisecond. Search order:

1. `PASTA_ROCPROFILER_LIB`, then `ROCPROFILER_REGISTER_LIBRARY`, which HIP also uses
2. `LD_LIBRARY_PATH`
3. wheels (`_rocm_sdk_core`, PyTorch's) in the environment of the program, then in PASTA's
4. `ROCM_PATH`, `ROCM_HOME`, `HIP_PATH`, `/opt/rocm`, `/opt/rocm-*`
5. the cache of ldconfig

The program gets the result in `ROCPROFILER_REGISTER_LIBRARY`, unless that is set:
rocprofiler-register searches fewer places. If nothing can be recorded, `--backend amd` prints the
reason; `auto` only logs it, because most programs use no AMD device. `PASTA_INJECT=preload`
disables AMD, because there is no other way to load the tool.

## Capabilities

Tests check this table against the records that each backend's tests make: every claimed capability
occurs in some record, every other one in none.
"""


_SETTINGS = """\
# Settings

Generated from the declarations of settings (`pasta/config.py`, `pasta/backends`,
`pasta/frameworks`) by `python -m docs.reference settings`: do not edit.

Set in a [TOML file](command-line.md) or with `--set`. Sizes are bytes or have a unit, such as
`4KiB`; durations are seconds or have a unit, such as `500ms`.

| setting | default | option | meaning |
|---|---|---|---|
"""


def render_backends() -> str:
    return "\n".join(_backend_lines()) + "\n"


def _backend_lines() -> Iterator[str]:
    sources = [each for each in known_sources().values() if each.is_accelerator]
    frameworks = [each for each in known_sources().values() if not each.is_accelerator]
    yield _BACKENDS
    yield "| " + " | ".join(["", "name", *(each.title for each in sources)]) + " |"
    yield "|---" * (2 + len(sources)) + "|"
    yield "| source | | " + " | ".join(f"`{each.name}`" for each in sources) + " |"
    notes: list[str] = []
    for each in CAPABILITIES.values():
        if any(each.name in source.gives for source in sources):
            yield _row(each, sources, notes)
    yield ""
    for number, note in enumerate(notes, 1):
        yield f"{number}. {note}"
    given = {name for each in (*sources, *frameworks) for name in each.gives}
    yield f"\nProvided by no backend: {_names(CAPABILITIES.keys() - given)}."
    for framework in frameworks:
        yield f"\nProvided by {framework.title} with any backend: {_names(framework.gives)}."


def _names(names: frozenset[str] | set[str]) -> str:
    return ", ".join(f"`{name}`" for name in CAPABILITIES if name in names)


def _row(capability: Capability, sources: list[Source], notes: list[str]) -> str:
    shown = f"`{capability.name}`"
    if capability.is_kind:
        shown = f"[{shown}](events.md)"
    elif capability.field:
        shown += f" (`{capability.kind}.{capability.field}`)"
    cells = []
    for source in sources:
        cell = "yes" if capability.name in source.gives else "-"
        note = source.notes.get(capability.name)
        if note is not None:
            notes.append(note)
            cell += f" ({len(notes)})"
        cells.append(cell)
    return f"| {capability.text} | {shown} | " + " | ".join(cells) + " |"


def render_settings() -> str:
    return _SETTINGS + "".join(_setting_rows())


def _setting_rows() -> Iterator[str]:
    for each in all_settings():
        default = each.written(each.default)
        options = ", ".join(f"`{name}`" for name in (each.option.names if each.option else ()))
        cells = [f"`{each.key}`", f"`{default}`" if default else "", options, each.help]
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    print({"backends": render_backends, "settings": render_settings}[sys.argv[1]](), end="")
