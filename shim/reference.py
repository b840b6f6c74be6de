"""Writes docs/events.md from include/pasta_abi.h, and docs/backends.md from
include/pasta_capabilities.h.

`python -m shim.reference [events|backends]` prints one; tests hold the files against the headers.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_INCLUDE = Path(__file__).resolve().parent / "include"
HEADER = _INCLUDE / "pasta_abi.h"
CAPABILITIES = _INCLUDE / "pasta_capabilities.h"

_EVENT = re.compile(r'X\(\s*(\d+),\s*(\w+),\s*(\w+),\s*([01]),\s*"([^"]*)"\)')
_STRUCT = re.compile(r"typedef struct pasta_(\w+) \{\n(.*?)\n\} pasta_\1;", re.S)
_FIELD = re.compile(r"^\s+(\w+) (\w+)(?:\[(\d+)\])?;\s*(?:/\*\s*(.*?)\s*\*/)?$", re.M)
_ENUM = re.compile(r"enum \{\n(.*?)\n\};", re.S)
_ENUMERATOR = re.compile(r"PASTA_([A-Z]+)_(\w+) = (\d+),(?:\s*/\*\s*(.*?)\s*\*/)?")

_INTRODUCTION = """\
# Events

Generated from `shim/include/pasta_abi.h` by `python -m shim.reference`: do not edit.

An event is one record of the ring, and one row of the Parquet table of its kind
(`events/KIND-00000.parquet`). Every table has the header's fields and the fields of its payload.
Strings and named numbers are dictionary-encoded text there, an array of three is three columns
(`grid_x`, `grid_y`, `grid_z`), a longer one (`tensor`) is a list of those there are, `position` is
the order over all kinds, and what a source cannot give is null: never zero.

*Kept* kinds are recorded also while profiling is stopped, because what follows a start needs them.
"""


@dataclass(frozen=True)
class Field:
    """One field of a struct: C type, length of an array, and its comment."""

    name: str
    type: str
    length: int | None
    text: str

    @property
    def is_string(self) -> bool:
        return bool(re.match(r"string\b", self.text))


def structs(header: str) -> dict[str, list[Field]]:
    """Fields of every struct, without padding, by name without its prefix."""
    found = {}
    for name, body in _STRUCT.findall(header):
        fields = [
            Field(field, kind, int(length) if length else None, text or "")
            for kind, field, length, text in _FIELD.findall(body)
            if not field.startswith("unused")
        ]
        found[name] = fields
    return found


def events(header: str) -> list[tuple[int, str, str, bool, str]]:
    """(number, kind, payload, kept while stopped, text) of every event."""
    return [
        (int(number), kind, payload, keep == "1", text)
        for number, kind, payload, keep, text in _EVENT.findall(header)
    ]


def render(header: str) -> str:
    return "\n".join(_lines(header)) + "\n"


def _lines(header: str) -> Iterator[str]:
    found = structs(header)
    yield _INTRODUCTION
    yield "| number | kind | payload | kept | when |"
    yield "|---|---|---|---|---|"
    for number, kind, payload, keep, text in events(header):
        kept = "yes" if keep else ""
        yield f"| {number} | `{kind}` | [{payload}](#{payload}) | {kept} | {text} |"
    yield "\n## header\n"
    yield from _table(found["header"])
    for payload in dict.fromkeys(event[2] for event in events(header)):
        yield f"\n## {payload}\n"
        yield from _table(found[payload])
    yield "\n## Named numbers\n"
    yield "| number | name | meaning |"
    yield "|---|---|---|"
    for body in _ENUM.findall(header):
        for group, name, number, text in _ENUMERATOR.findall(body):
            yield f"| {group.lower()} {number} | `{name}` | {text} |"


def _table(fields: list[Field]) -> Iterator[str]:
    if not fields:
        yield "No fields."
        return
    yield "| field | type | meaning |"
    yield "|---|---|---|"
    for field in fields:
        length = f"[{field.length}]" if field.length else ""
        yield f"| `{field.name}` | {field.type}{length} | {field.text} |"


# ---- backends ----

_SOURCE = re.compile(r'X\(\d+, (\w+),\s*([01]), "([^"]*)"\)')
_BITS = r"\s*([01]), ([01]), ([01])"
_KIND = re.compile(rf'X\((\w+),{_BITS}, ([01]), "([^"]*)"\)')
_CAPABILITY = re.compile(rf'X\((\w+),\s*(\w+),\s*(\w+),{_BITS},\s*"([^"]*)"\)')

_BACKENDS = """\
# Backends

Generated from `shim/include/pasta_capabilities.h` by `python -m shim.reference backends`: do not
edit.

A backend is what PASTA listens to an accelerator through. Which one is used the program decides, by
what it loads; one that loads several is recorded through all of them, and every run says which it
was (`sources`). `--backend nvidia`, `amd` or `refacc` listens to that one only, `--backend none` to
none: annotations and what frameworks tell are recorded nevertheless.

**The [AMD](amd.md) backend has never run on AMD hardware.** It has run inside the genuine
rocprofiler-sdk 1.0.0 on a model of a device that executes no shaders, and CI replays what was
recorded there. No time, count or name that it gives has been compared with a device's:
`ci/gpu-suite --amd` is for whoever has one.

Events, tools and reports are the same for all; what a backend cannot give is absent. Results of
tools say so:

```
kernel_freq: 1,204 launches of 17 kernels
note: not given by nvidia_sanitizer: device times of kernels, registers, …
```

and tools with [probes](probes.md), where memory accesses cannot be seen, are
`not available on this backend`. In Python, `"registers" in pasta.load(DIR).capabilities`.

## Where rocprofiler-sdk is looked for

HIP's rocprofiler-register loads the SDK into a program for which `ROCP_TOOL_LIBRARIES` names a
tool, and aborts the program where it cannot. So `pasta-preload` names its own, `libpasta_amd.so`,
behind the user's, only after it has found the SDK and loaded it in a process of its own. Machines
without an SDK start none: looking takes a fraction of a millisecond. It looks at, in this order:

1. `PASTA_ROCPROFILER_LIB`, then `ROCPROFILER_REGISTER_LIBRARY`, which HIP obeys too
2. `LD_LIBRARY_PATH`
3. wheels (`_rocm_sdk_core`, PyTorch's) in the environment of the program, then in PASTA's
4. `ROCM_PATH`, `ROCM_HOME`, `HIP_PATH`, `/opt/rocm`, `/opt/rocm-*`
5. what ldconfig knows

What was found is named to the program in `ROCPROFILER_REGISTER_LIBRARY`, unless that is set:
rocprofiler-register looks in fewer places. With `--backend amd` a line says why nothing can be
recorded; with `auto` only the log does, as most programs use no AMD device. `PASTA_INJECT=preload`
leaves AMD out, as there is no other way in.

## What they give

Tests hold this table against the records that each backend's tests make: what it claims is in some
record, what it does not claim is in none.
"""

#: What "yes" does not say: by capability and source.
_FOOTNOTES = {
    ("accesses", "nvidia_sanitizer"): "by [probes](nvidia.md#probes) that are patched into kernels",
    ("accesses", "amd_rocprofiler"): "the SDK has counters, PC sampling and thread traces, but no"
    " accesses",
    ("accesses", "refacc"): "by probes that run on the CPU",
    ("device_name", "nvidia_sanitizer"): "where all devices of the machine are of one model",
    ("counter", "amd_rocprofiler"): "those that `amd.counters` names, where the device has them",
    ("pc_sample", "amd_rocprofiler"): "where `amd.pc_sampling` asks for it, on MI200 and newer",
    ("stream_id", "amd_rocprofiler"): "counted by PASTA",
    (
        "stream_priority",
        "amd_rocprofiler",
    ): "where the program gives one",
    ("entry_pc", "amd_rocprofiler"): "since version 0.6",
    ("registers", "amd_rocprofiler"): "vector registers of a work-item",
    ("copy_addresses", "amd_rocprofiler"): "of `hipMemcpy*`; of other copies since version 1.0",
    ("wait_times", "nvidia_sanitizer"): "the call's begin is not told",
    ("context_create", "amd_rocprofiler"): "one for each device, when it is first used",
    ("graph_node_of_launch", "amd_rocprofiler"): "launches of a graph have its flag, not the node",
    ("kernel_complete", "nvidia_sanitizer"): "CUPTI would have them, which the driver does not"
    " serve beside the Sanitizer",
}


def render_backends(header: str) -> str:
    return "\n".join(_backend_lines(header)) + "\n"


def _backend_lines(header: str) -> Iterator[str]:
    sources = [(name, title) for name, used, title in _SOURCE.findall(header) if used == "1"]
    yield _BACKENDS
    yield "| " + " | ".join(["", "name", *(title for _, title in sources)]) + " |"
    yield "|---" * (2 + len(sources)) + "|"
    yield "| source | | " + " | ".join(f"`{name}`" for name, _ in sources) + " |"
    notes: list[str] = []
    for name, *bits, _, text in _KIND.findall(header):
        if any(bit == "1" for bit in bits):
            yield _row(name, f"[`{name}`](events.md)", text, sources, bits, notes)
    for name, kind, field, *bits, text in _CAPABILITY.findall(header):
        if any(bit == "1" for bit in bits):
            where = "" if field == "none" else f" (`{kind}.{field}`)"
            yield _row(name, f"`{name}`{where}", text, sources, bits, notes)
    yield ""
    for number, note in enumerate(notes, 1):
        yield f"{number}. {note}"
    yield ""
    nobody = [name for name, *bits, _ in _KIND.findall(header) if "1" not in bits]
    nobody += [name for name, _, _, *bits, _ in _CAPABILITY.findall(header) if "1" not in bits]
    yield "Given by no backend: " + ", ".join(f"`{name}`" for name in nobody) + "."
    told = [name for name, *bits, _ in _KIND.findall(header) if bits[-1] == "1"]
    yield "\nGiven by PyTorch beside any of them: " + ", ".join(f"`{name}`" for name in told) + "."


def _row(
    name: str, shown: str, text: str, sources: list[tuple[str, str]], bits: list[str],
    notes: list[str],
) -> str:  # fmt: skip
    cells = []
    for (source, _), bit in zip(sources, bits, strict=True):
        cell = "yes" if bit == "1" else "-"
        note = _FOOTNOTES.get((name, source))
        if note is not None:
            notes.append(note)
            cell += f" ({len(notes)})"
        cells.append(cell)
    return f"| {text} | {shown} | " + " | ".join(cells) + " |"


_PAGES = {"events": (HEADER, render), "backends": (CAPABILITIES, render_backends)}


if __name__ == "__main__":
    file, make = _PAGES[sys.argv[1] if len(sys.argv) > 1 else "events"]
    print(make(file.read_text(encoding="utf-8")), end="")
