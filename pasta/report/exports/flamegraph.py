"""Stacks as folded lines for flamegraph.pl and similar tools: `a;b;c 123`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from pasta.report.exports.base import FileExport, Request
from pasta.table import visible

if TYPE_CHECKING:
    from pasta.report.stacks import Call, CallTree
    from pasta.report.weights import Weight


class Flamegraph(FileExport):
    """Stacks as folded lines."""

    name = "flamegraph"
    help = "write stacks as folded lines"
    weighted = True

    def writer(self, request: Request) -> Callable[[BinaryIO], object]:
        """Returns a function that writes the folded stacks. Raises RunError."""
        from pasta.report.stacks import read_call_tree

        tree = read_call_tree(request.run)
        return partial(write_folded, tree, tree.chosen(request.weight, request.run.path))


def write_folded(tree: CallTree, weight: Weight, file: BinaryIO) -> None:
    """Writes a line `a;b;c 123` for each node with a weight."""
    for node, own in enumerate(tree.weights[weight]):
        if own > 0:
            stack = ";".join(_folded(call) for call in tree.path(node)) or "all"
            file.write(f"{stack} {own}\n".encode())


def _folded(call: Call) -> str:
    return visible(call.name).replace(";", ":") or "(unnamed)"


EXPORT = Flamegraph()
