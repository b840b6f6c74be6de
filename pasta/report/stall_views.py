"""Views of charged stalls for the HTML report: the forest of tensors, and annotated code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pasta.table import formatted, has_columns

if TYPE_CHECKING:
    from pasta.run.results import StoredResult
    from pasta.table import Table

#: What is shown at most; forest.json and the tables have all.
_MAX_OBJECTS: Final = 40
_MAX_VIEWS: Final = 40
_MAX_KERNELS: Final = 8
_MAX_LINES: Final = 2000
#: Share of a kernel's samples from which on an instruction is marked.
_HOT: Final = 0.05


@dataclass(frozen=True)
class Node:
    """An object or a view: a label, its operator, and the views created from it."""

    label: str
    about: str
    share: float | None = None
    views: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class Line:
    """An instruction: offset, text, source line, samples, their reasons, the instructions that they
    waited for (offset, text), and samples of others that waited for this one."""

    offset: str
    text: str
    source: str
    samples: int
    reasons: str
    blamed: list[tuple[str, str]]
    waited_for: int
    hot: bool


@dataclass(frozen=True)
class Kernel:
    """Code of a kernel with its samples; `cut`: how many instructions are left out."""

    name: str
    samples: int
    lines: list[Line]
    cut: int


@dataclass(frozen=True)
class StallViews:
    """What the report shows below the summary of charged stalls."""

    forest: list[Node]
    kernels: list[Kernel]


def stall_views(result: StoredResult) -> StallViews | None:
    """The views of a tool's result; None if it has no charged stalls. Raises RunError."""
    cost, objects = (result.tables.get(name) for name in ("tensor_stall_cost", "objects"))
    if not has_columns(cost, "object_id", "stalls", "share"):
        return None
    forest: list[Node] = []
    if has_columns(objects, "object_id", "object", "generation", "operator", "line"):
        forest = _forest(cost, objects, result.tables.get("views"))
    code = result.tables.get("sass")
    kernels: list[Kernel] = []
    if has_columns(code, "kernel", "offset", "instruction", "samples", "blamed", "waited_for"):
        kernels = list(_kernels(code))
    return StallViews(forest, kernels)


def _forest(cost: Table, objects: Table, views: Table | None) -> list[Node]:
    shares: dict[int, float] = {}
    for id, share in zip(cost.values("object_id"), cost.values("share"), strict=True):
        shares[id] = shares.get(id, 0.0) + share
    chosen = sorted(shares, key=lambda id: (-shares[id], id))[:_MAX_OBJECTS]
    rows = {row["object_id"]: row for row in objects.rows() if row["object_id"] in set(chosen)}
    below: dict[int, list[Mapping[str, Any]]] = {}
    if has_columns(views, "object", "view", "parent", "shape", "offset", "versions", "operator"):
        for view in views.rows():
            if view["object"] in rows and len(below.setdefault(view["object"], [])) < _MAX_VIEWS:
                below[view["object"]].append(view)
    return [
        Node(_label(rows[id]), _made(rows[id]), shares[id], _nested(below.get(id, [])))
        for id in chosen
        if id in rows
    ]


def _label(row: Mapping[str, Any]) -> str:
    shape = f" [{row['shape']}]" if row.get("shape") else ""
    again = f", generation {row['generation']}" if row["generation"] else ""
    return f"{row['object']}{shape}{again}"


def _made(row: Mapping[str, Any]) -> str:
    parts = [row.get(name) for name in ("operator", "module", "line")]
    return " · ".join(part for part in parts if part)


def _nested(views: list[Mapping[str, Any]]) -> list[Node]:
    made: dict[int, Node] = {}
    roots: list[Node] = []
    for view in views:  # a parent appears before its views
        extent = view.get("extent")
        parts = [
            f"[{view['shape']}] strides ({view.get('strides') or ''}) {view.get('dtype') or ''}",
            f"at byte {view['offset']:,}",
            f"{formatted(extent, 'bytes')} long" if extent is not None else "",
            f"{view['versions']:,} changes in place" if view["versions"] else "",
        ]
        node = Node(", ".join(part for part in parts if part), _made(view))
        parent = made.get(view["parent"])
        (roots if parent is None else parent.views).append(node)
        made[view["view"]] = node
    return roots


def _kernels(code: Table) -> Iterator[Kernel]:
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in code.rows():
        rows.setdefault(row["kernel"], []).append(row)
    samples = {name: sum(row["samples"] for row in each) for name, each in rows.items()}
    for name in sorted(rows, key=lambda name: -samples[name])[:_MAX_KERNELS]:
        shown = rows[name][:_MAX_LINES]
        lines = [_line(row, samples[name]) for row in shown]
        yield Kernel(name, samples[name], lines, len(rows[name]) - len(shown))


def _line(row: Mapping[str, Any], samples: int) -> Line:
    blamed = [
        (place.partition(" ")[0], place) for place in (row["blamed"] or "").split(", ") if place
    ]
    most = max(row["samples"], row["waited_for"])
    return Line(
        f"{row['offset']:#x}",
        row["instruction"] or "",
        row.get("line") or "",
        row["samples"],
        row.get("reasons") or "",
        blamed,
        row["waited_for"],
        bool(samples) and most >= _HOT * samples,
    )
