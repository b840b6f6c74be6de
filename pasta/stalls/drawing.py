"""The forest of views as a graph of Graphviz: what stalls are charged to, with all its views."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pasta.table import formatted, visible

#: Objects and views of each that are drawn; the others are in forest.json.
_MAX_OBJECTS: Final = 24
_MAX_VIEWS: Final = 48
#: Minimum share of all samples for an object to be drawn in red.
_RED: Final = 0.05
_TIMEOUT: Final = 20  # s


def dot_of(trees: list[dict[str, Any]], total: int) -> str:
    """A graph of objects (`Forest.trees` with stalls) and their views; `total`: all samples.

    Objects are solid ellipses, larger with their share, views dashed ones.
    """
    lines = ["digraph stalls {", "  rankdir=LR;", '  node [fontname="sans-serif", fontsize=10];']
    for number, tree in enumerate(trees[:_MAX_OBJECTS]):
        lines += _object(f"o{number}", tree, tree["stalls"] / total if total else 0.0)
    return "\n".join([*lines, "}"]) + "\n"


def _object(name: str, tree: Mapping[str, Any], share: float) -> Iterator[str]:
    red = ", color=red, fontcolor=red, penwidth=2" if share >= _RED else ""
    label = f"{tree['object']}\n{formatted(share, 'share')} of samples"
    size = 1 + 3 * share
    yield (
        f"  {name} [shape=ellipse, style=solid, width={size:.2f}, height={size / 2:.2f},"
        f" label={_quoted(label)}, tooltip={_quoted(_made(tree))}{red}];"
    )
    waiting = [(name, view) for view in reversed(tree["views"])]
    count = 0
    while waiting and count < _MAX_VIEWS:
        parent, view = waiting.pop()
        own = f"{name}v{count}"
        count += 1
        changed = f"\n{view['versions']:,} changes in place" if view["versions"] else ""
        label = f"[{view['shape']}] {view['dtype']} at {view['offset']:,}{changed}"
        yield (
            f"  {own} [shape=ellipse, style=dashed, label={_quoted(label)},"
            f" tooltip={_quoted(_made(view))}];"
        )
        yield f"  {parent} -> {own} [label={_quoted(view['operator'] or '')}];"
        waiting += [(own, each) for each in reversed(view["views"])]


def _made(about: Mapping[str, Any]) -> str:
    """Operator, module and line that created an object or view."""
    parts = [about.get(name) for name in ("operator", "module", "line")]
    return "\n".join(part for part in parts if part) or "not made by an operator"


def _quoted(text: str) -> str:
    escaped = "\\n".join(
        visible(line).replace("\\", "\\\\").replace('"', '\\"') for line in text.split("\n")
    )
    return f'"{escaped}"'


def svg_of(dot: str) -> bytes | None:
    """The graph drawn by Graphviz; None without it, or if it fails."""
    program = shutil.which("dot")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "-Tsvg"], input=dot.encode(), capture_output=True, timeout=_TIMEOUT,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
