"""Tree maps of memory at the peak: tensors by category and module, allocations by kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pasta.report.overview import MAX_LABEL
from pasta.table import Unit, counted, formatted, has_columns, plain

if TYPE_CHECKING:
    from pasta.run.results import StoredResult
    from pasta.table import Table

#: Leaves of a tree map; smaller ones of a group are combined.
MAX_LEAVES = 500
#: Rows of a table in it: the first, which are the largest.
_MAX_ROWS = 100_000


@dataclass(frozen=True)
class Leaf:
    """Memory with its groups, outermost first. `find`: what selects its row in `table`."""

    groups: tuple[str, ...]
    name: str
    detail: str
    bytes: int
    find: str = ""


@dataclass
class TreeMap:
    """Nodes by index: 0 is the root, parents come before their children.

    `size` is the size of a node itself, without its children. `color` is the outermost group, which
    determines the color; `table` is the table with the rows of the leaves.
    """

    title: str
    table: str
    unit: Unit = "bytes"
    parent: list[int] = field(default_factory=lambda: [-1])
    name: list[str] = field(default_factory=lambda: ["all"])
    detail: list[str] = field(default_factory=lambda: [""])
    size: list[int] = field(default_factory=lambda: [0])
    color: list[str] = field(default_factory=lambda: [""])
    find: list[str] = field(default_factory=lambda: [""])

    def add(self, parent: int, name: str, color: str, leaf: Leaf | None = None) -> int:
        """Adds a node and returns its index."""
        self.parent.append(parent)
        self.name.append(plain(name, MAX_LABEL))
        self.color.append(color)
        self.detail.append(plain(leaf.detail, MAX_LABEL) if leaf else "")
        self.size.append(leaf.bytes if leaf else 0)
        self.find.append(leaf.find if leaf else "")
        return len(self.parent) - 1


def tree_maps(result: StoredResult) -> Iterator[TreeMap]:
    """Tree maps of a result with memory at the peak. Raises RunError."""
    tensors = result.tables.get("peak")
    if has_columns(tensors, "device", "category", "shape", "operator", "line", "bytes"):
        for device, leaves in _by_device(tensors, _tensor).items():
            yield _tree(f"Tensors at the peak of {_place(device)}{_cut(tensors)}", "peak", leaves)
    memory = result.tables.get("at_peak")
    if has_columns(memory, "peak_of", "device", "memory", "bytes"):
        of_memory = {
            device: leaves
            for device, leaves in _by_device(memory, _allocation).items()
            if len({leaf.groups for leaf in leaves}) > 1 or len(leaves) > 1
        }
        for device, leaves in of_memory.items():
            title = f"Allocations at the peak of {_place(device)}{_cut(memory)}"
            yield _tree(title, "at_peak", leaves)


def _cut(table: Table) -> str:
    return f", of the {_MAX_ROWS:,} largest" if len(table) > _MAX_ROWS else ""


def _place(device: Any) -> str:
    return "the host" if device is None else f"device {device}"


def _by_device(table: Table, leaf_of: Any) -> dict[Any, list[Leaf]]:
    """Leaves by device, equal ones combined."""
    found: dict[Any, dict[tuple[Any, ...], list[int]]] = {}
    for row in table.rows(_MAX_ROWS):
        bytes = row["bytes"]
        leaf = leaf_of(row) if isinstance(bytes, (int, float)) and bytes > 0 else None
        if leaf is not None:
            key = (leaf.groups, leaf.name, leaf.detail, leaf.find)
            sums = found.setdefault(row["device"], {}).setdefault(key, [0, 0])
            sums[0] += 1
            sums[1] += int(bytes)
    return {
        device: [
            Leaf(
                groups,
                f"{count:,} \N{MULTIPLICATION SIGN} {name}" if count > 1 else name,
                detail,
                bytes,
                find,
            )
            for (groups, name, detail, find), (count, bytes) in each.items()
        ]
        for device, each in found.items()
    }


def _tensor(row: dict[str, Any]) -> Leaf:
    module = row.get("module") or row["operator"] or "(no operator)"
    shape = f"[{row['shape']}]" if row["shape"] is not None else "(no shape)"
    name = row.get("name") or shape
    about = (row["category"], shape, row.get("dtype"), row["operator"], row["line"])
    detail = ", ".join(str(each) for each in about if each)
    find = row["line"] or row["operator"] or row["category"]
    return Leaf((str(row["category"]), str(module)), str(name), detail, 0, str(find))


def _allocation(row: dict[str, Any]) -> Leaf | None:
    if row["peak_of"] != "memory":
        return None
    size, memory = formatted(row["bytes"], "bytes"), str(row["memory"])
    return Leaf((memory,), size, f"{memory} memory", 0, memory)


def _tree(title: str, table: str, leaves: list[Leaf]) -> TreeMap:
    tree = TreeMap(title, table)
    nodes: dict[tuple[str, ...], int] = {(): 0}
    smaller: dict[tuple[str, ...], list[int]] = {}
    ordered = sorted(leaves, key=lambda each: (-each.bytes, each.groups, each.name))
    for number, leaf in enumerate(ordered):
        if number >= MAX_LEAVES:
            sums = smaller.setdefault(leaf.groups[:1], [0, 0])
            sums[0] += 1
            sums[1] += leaf.bytes
            continue
        for depth in range(len(leaf.groups)):
            path = leaf.groups[: depth + 1]
            if path not in nodes:
                nodes[path] = tree.add(nodes[path[:-1]], path[-1], path[0])
        tree.add(nodes[leaf.groups], leaf.name, leaf.groups[0], leaf)
    for path, (count, bytes) in smaller.items():
        if path not in nodes:
            nodes[path] = tree.add(0, path[0], path[0])
        rest = Leaf(path, counted(count, "smaller one"), "", bytes, path[0])
        tree.add(nodes[path], rest.name, path[0], rest)
    return tree
