"""Columns of tables for call paths: one line of text, and the line of the program itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pasta.lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.call_paths import WorkByPath
    from pasta.processors.context import Context
    from pasta.processors.stacks import Frame

_SEPARATOR = " > "


def path_text(frames: Iterable[Frame]) -> str:
    """A call path in one line, outermost first: `main:12 > solve:40 > launch`."""
    return _SEPARATOR.join(
        f"{frame.function}:{frame.line}" if frame.line else frame.function for frame in frames
    )


def combined_paths(
    context: Context, rows: NDArray[Any]
) -> tuple[dict[str, list[str | None]], NDArray[Any]]:
    """Columns of stacks as `path_columns`, and the rows: those that differ in nothing but addresses
    of code without lines are one. `rows` have `stack`, fields of which the first of equal ones
    stays, and `count`, `time` or `bytes`, which are summed, in the order of time or bytes."""
    columns = path_columns(context, rows["stack"].tolist())
    sums = [name for name in ("count", "time", "bytes") if name in (rows.dtype.names or ())]
    others = [name for name in rows.dtype.names or () if name not in (*sums, "stack")]
    first: dict[Any, int] = {}
    of = [
        first.setdefault((path, *other), len(first))
        for path, other in zip(
            columns["call_path"], rows[others].tolist() if others else [()] * len(rows), strict=True
        )
    ]
    kept = np.unique(np.asarray(of, np.int64), return_index=True)[1]
    found = rows[kept].copy()
    for name in sums:
        found[name] = 0
        np.add.at(found[name], of, rows[name])
    order = np.argsort(-found["time" if "time" in sums else "bytes"], kind="stable")
    kept = kept[order]
    return {name: [values[at] for at in kept.tolist()] for name, values in columns.items()}, found[
        order
    ]


def path_columns(context: Context, stacks: Iterable[int]) -> dict[str, list[str | None]]:
    """Columns for stacks by id: `line`, the innermost line of the program itself, and `call_path`,
    one line; None for 0."""
    lines: list[str | None] = []
    paths: list[str | None] = []
    known: dict[int, tuple[str | None, str | None]] = {0: (None, None)}
    for stack in stacks:
        if stack not in known:
            line = context.stacks.user_line(stack, context.strings)
            path = context.stacks.path(stack, context.strings)
            known[stack] = (None if line is None else str(line), path_text(path) or None)
        lines.append(known[stack][0])
        paths.append(known[stack][1])
    return {"line": lines, "call_path": paths}


def heaviest_paths(
    context: Context, work: WorkByPath, names: Sequence[int]
) -> dict[str, list[str | None]]:
    """`path_columns` of the call path with the most time of each kernel, by name ids; empty where
    no call paths were recorded."""
    rows = work.rows()
    if not len(rows):
        return {}
    first: dict[int, int] = {}
    for name, stack in rows[["name", "stack"]].tolist():
        first.setdefault(name, stack)
    return path_columns(context, [first.get(name, 0) for name in names])
