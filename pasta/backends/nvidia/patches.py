"""From probes to patches: the text of one function per kind of access, for the GPU.

All lanes that access memory together call the patch together. Each lane looks up its address and
calls the probes of all tools. A map's operation sums over the lanes that called it with the same
key, and the lowest of them makes one atomic addition to a copy of the words, a stripe: the only
shared memory that is written. The multiprocessor's clock chooses the stripe, so that additions are
spread evenly; other numbers that differ between warps take five times as long to read.

lowering.py and nvptx.py compile the text. Values are 64-bit patterns in int64, as in the language.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pasta.backends.nvidia.layout import Layout
from pasta.backends.nvidia.patch import (
    ENV,
    WAYS,
    WRITERS,
    Instance,
    patch_text,
    prefix_of,
    traces_whole,
)
from pasta.backends.nvidia.signatures import Signature, signatures
from pasta.backends.nvidia.structs import constants
from pasta.errors import ToolError


@dataclass(frozen=True)
class PatchText:
    """A patch: name of its function, access kind, and arguments from the vendor's library."""

    name: str
    kind: str
    signature: Signature


def write(
    layout: Layout, instances: Sequence[Instance], version: str
) -> tuple[str, list[PatchText]]:
    """Text of all patches for a version of the Sanitizer library, and the patches in it.

    Raises ApiError for an unknown version, ToolError for probes that cannot run on the GPU.
    """
    text = [_header()]
    if layout.bin_words:
        text.append(f"bin_at = bin_address({layout.bin_words})")
    if layout.slot_words:
        copies = f"{layout.slot_stripe_bytes}, {layout.slot_stripes}"
        text.append(f"in_slot = slot_address({copies})")
    if layout.object_words:
        text.append(f"at_row = row_address({layout.object_words})")
        text.append(f"direct_row = direct_row_address({layout.object_words})")
    for instance in instances:
        _check_recorded(instance, layout)
    prefixes = {instance.probe.tool: instance.prefix for instance in instances}
    for place in layout.places:
        if place.tool in prefixes:
            text += place.operation(prefixes[place.tool])
    for instance in instances:
        if traces_whole(instance, layout):
            text += _by_leader(instance, layout)
        prefix = prefix_of(instance, layout)
        text.append(instance.probe.source(instance.options, prefix))
    patches = []
    for kind in dict.fromkeys(kind for each in instances for kind in each.probe.kinds):
        called = [each for each in instances if kind in each.probe.kinds]
        for number, signature in enumerate(signatures(kind, version)):
            name = f"pasta_{kind}" + (f"_{number}" if number else "")
            text.append(patch_text(name, kind, signature, called, layout))
            patches.append(PatchText(name, kind, signature))
    return "\n\n".join(text) + "\n", patches


def _check_recorded(instance: Instance, layout: Layout) -> None:
    """Raises ToolError if a map of recorded accesses adds an amount other than 1."""
    tool = instance.probe.tool
    specs = [place.spec for place in layout.of_tool(tool)]
    recorded = {spec.name for spec in specs if spec.recorded and spec.method.amounts}
    if not recorded:
        return
    for node in ast.walk(ast.parse(instance.probe.source(instance.options, ""))):
        name = ast.unparse(node.func).partition("__")[0] if isinstance(node, ast.Call) else ""
        if name in recorded and ast.unparse(node.args[-1]) != "1":  # type: ignore[attr-defined]
            raise ToolError(
                f"tool {tool}: {name} counts by launch and adds an amount other than 1",
                remedy="on a GPU such a histogram counts accesses: leave out the amount",
            )


def _by_leader(instance: Instance, layout: Layout) -> list[str]:
    """Operations of a probe that all lanes run: only records are written by all of them."""
    text = []
    for op in instance.probe.ops:
        call = f"{instance.prefix}{op.name}(env, *given)"
        place = layout.place_of(instance.probe.tool, op.map)
        if place.spec.method.returns:
            call = f"if env[LEADS] != 0:\n        return {call}\n    return 0"
        elif not place.writes_records:
            call = f"if env[LEADS] != 0:\n        {call}"
        text.append(f"def {prefix_of(instance, layout)}{op.name}(env, *given):\n    {call}")
    return text


def _header() -> str:
    lines = [
        "from pasta.backends.nvidia.device_functions import *",
        "from pasta.backends.nvidia.intrinsics import *",
        "",
        *(f"{name} = {value}" for name, value in constants().items()),
    ]
    for names in (WRITERS, WAYS, ENV):
        lines += [f"{name} = {number}" for number, name in enumerate(names)]
    return "\n".join(lines)


def symbols(patches: Iterable[PatchText]) -> list[str]:
    """Lines `patch ID NAME` of the plan."""
    return [f"patch {each.signature.instruction} {each.name}" for each in patches]
