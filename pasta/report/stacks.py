"""Where time and memory go by Python stack: the call tree of a run's operators, from its events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pasta.errors import RunError
from pasta.processors.correlate import LaunchWindow
from pasta.processors.demangle import demangle
from pasta.processors.filter import Filter
from pasta.processors.operator_names import NO_OPERATOR
from pasta.processors.pipeline import Pipeline
from pasta.processors.strings import Strings
from pasta.run.directory import RunDirectory
from pasta.run.events import parts, read_batches
from pasta.tool import Context, Tool

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.table import Unit

Weight = Literal["device", "host", "bytes"]
#: What weights are, and their units. Host time is that outside of operators called from there.
WEIGHTS: dict[Weight, tuple[str, Unit]] = {
    "device": ("device time", "ns"),
    "host": ("host time", "ns"),
    "bytes": ("allocated bytes", "bytes"),
}
_KINDS = frozenset(
    {
        "operator_begin", "operator_end", "python_frame", "tensor_alloc", "kernel_launch",
        "kernel_complete", "graph_node", "graph_instantiate", "graph_launch",
    }
)  # fmt: skip
_BACKWARD = "(backward)"


@dataclass(frozen=True)
class Call:
    """A frame of a stack: a Python line, module, operator or kernel."""

    name: str
    kind: Literal["python", "module", "operator", "kernel"]
    file: str = ""
    line: int = 0


@dataclass
class CallTree:
    """Nodes: 0 is the root; each other one has its parent, which comes before it, and its call."""

    parents: list[int] = field(default_factory=lambda: [-1])
    calls: list[Call] = field(default_factory=lambda: [Call("all", "python")])
    weights: dict[Weight, list[int]] = field(
        default_factory=lambda: {weight: [0] for weight in WEIGHTS}
    )  #: Of the node itself, without those called from it.
    _nodes: dict[tuple[int, Call], int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.parents)

    def node(self, parent: int, call: Call) -> int:
        """The node of a call from `parent`, made if there is none."""
        found = self._nodes.setdefault((parent, call), len(self.parents))
        if found == len(self.parents):
            self.parents.append(parent)
            self.calls.append(call)
            for own in self.weights.values():
                own.append(0)
        return found

    def path(self, node: int) -> list[Call]:
        """Calls from the root's first to the node's own."""
        calls = []
        while node:
            calls.append(self.calls[node])
            node = self.parents[node]
        return calls[::-1]

    def total(self, weight: Weight) -> int:
        return sum(self.weights[weight])

    @property
    def present(self) -> list[Weight]:
        """Weights of which there is something."""
        return [weight for weight in WEIGHTS if self.total(weight)]

    def chosen(self, weight: Weight | None, where: object) -> Weight:
        """The weight asked for, or the first there is. Raises RunError where there is none."""
        if weight is None and self.present:
            return self.present[0]
        if weight is None or weight not in self.present:
            what = WEIGHTS[weight][0] if weight else "time or memory of operators"
            known = f"--weight {' or '.join(self.present)}" if self.present else None
            raise RunError(f"{where}: no {what} was recorded", remedy=known)
        return weight


def has_operators(run: RunDirectory) -> bool:
    """Whether operators of a framework were recorded."""
    return "operator_begin" in parts(run.recorded().events)


def read_call_tree(run: RunDirectory) -> CallTree:
    """The call tree of a run's events. Raises RunError where they have no operators."""
    if not has_operators(run):
        raise RunError(
            f"{run.path}: no operators were recorded, which stacks are of",
            remedy="record with PyTorch followed: pasta-preload -c torch",
        )
    strings = Strings()
    tool = _CallWeights()
    pipeline = Pipeline(Filter(), [tool], Context(strings))
    for batch in read_batches(run.recorded().events, strings, kinds=_KINDS):
        pipeline.feed(batch)
    for failure in pipeline.failures.values():
        raise RunError(f"{run.path}: the events cannot be followed ({failure.reason})")
    return tool.tree()


class _CallWeights(Tool):
    """Device time and memory by operator and kernel."""

    needs_operators = True

    def start(self) -> None:
        self.window = LaunchWindow()
        self.device: dict[int, int] = {}  # ns by node and kernel name
        self.allocated: dict[int, int] = {}  # by node

    def on_batch(self, batch: Batch) -> None:
        new = batch["tensor_alloc"]
        _add(self.allocated, self.context.operators.at(new), new["bytes"].astype(np.int64))

    def on_launches(self, launches: NDArray[Any]) -> None:
        self.window.put(launches["ordinal"], self.context.operators.at(launches) + 1)

    def on_completions(self, completions: NDArray[Any]) -> None:
        nodes = self.window.get(completions["ordinal"]).astype(np.int64) - 1
        names = self.context.launches.names(completions["ordinal"]).astype(np.int64)
        start, end = completions["start"], completions["end"]
        good = (nodes >= 0) & (end >= start) & (end != np.iinfo(np.uint64).max)
        took = (end[good] - start[good]).astype(np.int64)
        _add(self.device, nodes[good] << 32 | names[good], took)

    def tree(self) -> CallTree:
        tree = CallTree()
        context = self.context
        nodes = _operator_nodes(tree, context)
        for node, own in zip(nodes, context.operators.nodes["own"].tolist(), strict=True):
            tree.weights["host"][node] += own
        for number, bytes in self.allocated.items():
            tree.weights["bytes"][nodes[number]] += bytes
        for key, took in self.device.items():
            name = demangle(context.strings[key & 0xFFFF_FFFF]) or "(unnamed kernel)"
            kernel = tree.node(nodes[key >> 32], Call(name, "kernel"))
            tree.weights["device"][kernel] += took
        return tree


def _add(sums: dict[int, int], keys: NDArray[Any], amounts: NDArray[Any]) -> None:
    distinct, of = np.unique(keys, return_inverse=True)
    found = np.zeros(len(distinct), np.int64)
    np.add.at(found, of, amounts)
    for key, amount in zip(distinct.tolist(), found.tolist(), strict=True):
        sums[key] = sums.get(key, 0) + amount


def _operator_nodes(tree: CallTree, context: Context) -> list[int]:
    """Nodes of the tree by operator node: Python frames, the module, then operators around."""
    operators, strings = context.operators, context.strings
    parents = operators.nodes["parent"].tolist()
    modules = operators.of_forward("module").tolist()
    stacks = operators.of_forward("stack").tolist()
    backward = operators.backward.tolist()
    names = strings.many(operators.nodes["name"])
    above = {
        key: _context_node(tree, context, *key)
        for key in dict.fromkeys(zip(stacks, modules, backward, strict=True))
    }
    found = [tree.node(0, Call(NO_OPERATOR, "operator"))]
    for number in range(1, len(parents)):
        chain = [number]
        while parents[chain[-1]]:
            chain.append(parents[chain[-1]])
        node = above[stacks[number], modules[number], backward[number]]
        for each in reversed(chain):
            node = tree.node(node, Call(names[each], "operator"))
        found.append(node)
    return found


def _context_node(tree: CallTree, context: Context, stack: int, module: int, backward: bool) -> int:
    node = 0
    for frame in reversed(context.stacks.own(stack, context.strings)):
        node = tree.node(node, Call(str(frame), "python", frame.file, frame.line))
    if module:
        node = tree.node(node, Call(context.strings[module], "module"))
    return tree.node(node, Call(_BACKWARD, "module")) if backward else node
