"""Writes docs/backends.md, docs/settings.md, docs/verbs.md and the manual pages docs/man/*.1 from
what backends, frameworks, settings and the parsers of command lines declare.

`python -m docs.reference backends|settings|verbs|pasta.1|pasta-preload.1` prints one; tests hold
the files against it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from pasta.capabilities import CAPABILITIES, Capability, Source
from pasta.cli.completion import Argument, arguments
from pasta.cli.main import VERBS, parsers
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


_DESCRIPTIONS = {
    "pasta": "reports, tools and checks of the accelerator profiler PASTA",
    "pasta-preload": "run a program and profile its accelerator work",
}
_STATUS = {
    "pasta": """\
0; 1 if a check fails, a threshold is exceeded, or something could not be written;
2 for a wrong command line or input.""",
    "pasta-preload": """\
The program's. If a signal ended the program, pasta-preload ends by the same signal.
2 for a wrong command line or configuration; 126 and 127, as in a shell, for a program that
cannot be run or found.""",
}
_ENVIRONMENT = {
    "PASTA_OPTIONS": "options for pasta-preload, quoted as in a shell and read before those on the"
    " command line",
    "PASTA_CUPTI_LIB, PASTA_SANITIZER_LIB": "NVIDIA's libraries",
    "PASTA_ROCPROFILER_LIB": "AMD's rocprofiler-sdk",
    "PASTA_PTXAS, PASTA_NVDISASM": "NVIDIA's assembler and disassembler",
    "PASTA_LIBPYTHON": "the Python library to embed; empty: none",
    "PASTA_INJECT": "preload or vendor: how PASTA's library gets into the program",
    "XDG_CACHE_HOME": "directory of compiled probes and hooks (default: ~/.cache)",
    "TMPDIR": "directory of files that are not yet in the run directory",
}
_FILES = {
    "pasta-out": "the default directory of runs",
    "*.toml": "settings and tools, for -c",
}


_VERBS = """\
# Commands and verbs

Generated from the parsers of the command lines by `python -m docs.reference verbs`: do not edit.

[Command line](command-line.md) explains the most important options, [settings](settings.md) lists
what can also be set in TOML. `pasta VERB --help` prints the same.
"""


def render_verbs() -> str:
    """A section for pasta-preload and each verb of `pasta`, with a table of its arguments."""
    return _VERBS + "".join(_verb_sections())


def _verb_sections() -> Iterator[str]:
    for command, parser in parsers().items():
        given = arguments(parser)
        places = "".join(f" {_placed(each)}" for each in given if not each.options)
        text = _DESCRIPTIONS.get(command) or parser.description or ""
        usage = f"{command} [options]{places}"
        yield f"\n## {command}\n{text[0].upper()}{text[1:]}.\n\n```\n{usage}\n```\n"
        shown = [each for each in given if each.help and each.options != ("-h", "--help")]
        if shown:
            yield "\n| argument | |\n|---|---|\n"
        for each in shown:
            value = f" {_placed(each)}" if each.kind and each.options else ""
            name = ", ".join(each.options) or each.metavar
            cells = f"`{name}{value}` | {each.help}".replace("|", "\\|").replace(" \\| ", " | ", 1)
            yield f"| {cells} |\n"


def render_man(command: str) -> str:
    """The manual page of a command, in the man macros of roff."""
    return "\n".join(_man_lines(command)) + "\n"


def _man_lines(command: str) -> Iterator[str]:
    yield f'.TH {command.upper()} 1 "" PASTA "User Commands"'
    yield f".SH NAME\n{_roff(command)} \\- {_DESCRIPTIONS[command]}"
    found = parsers()
    if command == "pasta":
        yield ".SH SYNOPSIS\n.B pasta\nVERB [options]"
        yield ".SH VERBS"
        for verb, (_, description) in VERBS.items():
            given = arguments(found[f"pasta {verb}"])
            names = " ".join(_placed(each) for each in given if not each.options)
            yield f".SS pasta {_roff(verb)} [options] {names}".rstrip()
            yield _roff(f"{description[0].upper()}{description[1:]}.")
            yield from _items(given)
        other = "pasta-preload"
    else:
        yield f".SH SYNOPSIS\n.B {_roff(command)}\n[options] [\\-\\-] program [arguments ...]"
        parser = found[command]
        yield f".SH DESCRIPTION\n{_roff(parser.description or '')}\n{_roff(parser.epilog or '')}"
        yield ".SH OPTIONS"
        yield from _items(arguments(parser))
        other = "pasta"
    yield f".SH EXIT STATUS\n{_STATUS[command]}"
    for title, table in (("ENVIRONMENT", _ENVIRONMENT), ("FILES", _FILES)):
        yield f".SH {title}"
        for name, text in table.items():
            yield f".TP\n.B {_roff(name)}\n{_roff(text)}"
    yield f".SH SEE ALSO\n.BR {_roff(other)} (1)"


def _items(given: list[Argument]) -> Iterator[str]:
    for each in given:
        if each.help and each.options != ("-h", "--help"):
            yield f".TP\n{_item(each)}\n{_roff(each.help)}"


def _item(each: Argument) -> str:
    value = f"\\fI{_roff(each.metavar)}\\fR" if each.kind else ""
    names = ", ".join(f"\\fB{_roff(name)}\\fR" for name in each.options)
    return " ".join(filter(None, (names, f"[{value}]" if each.optional and names else value)))


def _placed(each: Argument) -> str:
    return f"[{each.metavar}]" if each.optional else each.metavar


def _roff(text: str) -> str:
    """Text with characters that roff would interpret escaped."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{text}" if text.startswith(".") else text


#: What is printed by name.
PAGES = {
    "backends": render_backends,
    "settings": render_settings,
    "verbs": render_verbs,
    "pasta.1": lambda: render_man("pasta"),
    "pasta-preload.1": lambda: render_man("pasta-preload"),
}

if __name__ == "__main__":
    print(PAGES[sys.argv[1]](), end="")
