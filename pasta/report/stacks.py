"""Time and memory by Python stack: the call tree of a run's operators, from its events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pasta.errors import RunError
from pasta.frameworks import FRAMEWORKS, conventions
from pasta.processors.correlate import LaunchNames, LaunchWindow
from pasta.processors.demangle import demangle
from pasta.processors.operator_names import NO_OPERATOR
from pasta.processors.operators import Operators
from pasta.processors.stacks import Stacks
from pasta.processors.strings import Strings
from pasta.report.weights import WEIGHTS, Weight
from pasta.run.directory import RunDirectory
from pasta.run.events import parts, read_batches

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch

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
    """Nodes by index: 0 is the root; the others have a call and a parent with a lower index."""

    parents: list[int] = field(default_factory=lambda: [-1])
    calls: list[Call] = field(default_factory=lambda: [Call("all", "python")])
    weights: dict[Weight, list[int]] = field(
        default_factory=lambda: {weight: [0] for weight in WEIGHTS}
    )  #: Of the node itself, without its callees.
    _nodes: dict[tuple[int, Call], int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.parents)

    def node(self, parent: int, call: Call) -> int:
        """The node of a call from `parent`, created on first use."""
        found = self._nodes.setdefault((parent, call), len(self.parents))
        if found == len(self.parents):
            self.parents.append(parent)
            self.calls.append(call)
            for own in self.weights.values():
                own.append(0)
        return found

    def path(self, node: int) -> list[Call]:
        """Calls from below the root to the node."""
        calls = []
        while node:
            calls.append(self.calls[node])
            node = self.parents[node]
        return calls[::-1]

    def total(self, weight: Weight) -> int:
        """Sum of a weight over all nodes."""
        return sum(self.weights[weight])

    @property
    def present(self) -> list[Weight]:
        """Weights that are not zero."""
        return [weight for weight in WEIGHTS if self.total(weight)]

    def chosen(self, weight: Weight | None, where: object) -> Weight:
        """The requested weight, by default the first present one. Raises RunError if absent."""
        if weight is None and self.present:
            return self.present[0]
        if weight is None or weight not in self.present:
            what = WEIGHTS[weight][0] if weight else "time or memory of operators"
            known = f"--weight {' or '.join(self.present)}" if self.present else None
            raise RunError(f"{where}: no {what} was recorded", remedy=known)
        return weight


def has_operators(run: RunDirectory) -> bool:
    """Whether operators of a framework were recorded. Raises RunError."""
    return "operator_begin" in parts(run.recorded().events)


def read_call_tree(run: RunDirectory) -> CallTree:
    """The call tree of a run's events. Raises RunError if they contain no operators."""
    if not has_operators(run):
        raise RunError(
            f"{run.path}: no operators were recorded, which stacks require",
            remedy="record with a framework followed: "
            + " or ".join(f"pasta-preload -c {each.name}" for each in FRAMEWORKS.known()),
        )
    strings = Strings()
    weights = _CallWeights(strings)
    for batch in read_batches(run.recorded().events, strings, kinds=_KINDS):
        try:
            weights.feed(batch)
        except Exception as error:  # records of an untrusted run may be inconsistent
            why = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise RunError(f"{run.path}: inconsistent events ({why})") from error
    return weights.tree()


class _CallWeights:
    """Device time, host time and memory by operator and kernel."""

    def __init__(self, strings: Strings) -> None:
        self.strings = strings
        self.launches, self.operators = LaunchNames(), Operators()
        self.stacks = Stacks(conventions())
        self.window = LaunchWindow()
        self.device: dict[int, int] = {}  # ns by node and kernel name
        self.allocated: dict[int, int] = {}  # bytes by node

    def feed(self, batch: Batch) -> None:
        """Adds a batch; batches must come in the order of the run."""
        self.launches.feed(batch)
        self.operators.feed(batch)
        self.stacks.feed(batch)
        self.operators.follow(batch, batch)
        new, launches = batch["tensor_alloc"], batch["kernel_launch"]
        _add(self.allocated, self.operators.at(new), new["bytes"].astype(np.int64))
        self.window.put(launches["ordinal"], self.operators.at(launches) + 1)
        self._complete(batch["kernel_complete"])

    def _complete(self, completions: NDArray[Any]) -> None:
        nodes = self.window.get(completions["ordinal"]).astype(np.int64) - 1
        names = self.launches.names(completions["ordinal"]).astype(np.int64)
        start, end = completions["start"], completions["end"]
        good = (nodes >= 0) & (end >= start) & (end != np.iinfo(np.uint64).max)
        took = (end[good] - start[good]).astype(np.int64)
        _add(self.device, nodes[good] << 32 | names[good], took)

    def tree(self) -> CallTree:
        tree = CallTree()
        nodes = self._operator_nodes(tree)
        for node, own in zip(nodes, self.operators.nodes["own"].tolist(), strict=True):
            tree.weights["host"][node] += own
        for number, bytes in self.allocated.items():
            tree.weights["bytes"][nodes[number]] += bytes
        for key, took in self.device.items():
            name = demangle(self.strings[key & 0xFFFF_FFFF]) or "(unnamed kernel)"
            kernel = tree.node(nodes[key >> 32], Call(name, "kernel"))
            tree.weights["device"][kernel] += took
        return tree

    def _operator_nodes(self, tree: CallTree) -> list[int]:
        """Nodes of the tree by operator node: Python frames, the module, then operators around."""
        operators = self.operators
        parents = operators.nodes["parent"].tolist()
        modules = operators.forward_values("module").tolist()
        stacks = operators.forward_values("stack").tolist()
        backward = operators.backward.tolist()
        names = self.strings.many(operators.nodes["name"])
        above = {
            key: self._context_node(tree, *key)
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

    def _context_node(self, tree: CallTree, stack: int, module: int, backward: bool) -> int:
        node = 0
        for frame in reversed(self.stacks.own(stack, self.strings)):
            node = tree.node(node, Call(str(frame), "python", frame.file, frame.line))
        if module:
            node = tree.node(node, Call(self.strings[module], "module"))
        return tree.node(node, Call(_BACKWARD, "module")) if backward else node


def _add(sums: dict[int, int], keys: NDArray[Any], amounts: NDArray[Any]) -> None:
    distinct, of = np.unique(keys, return_inverse=True)
    found = np.zeros(len(distinct), np.int64)
    np.add.at(found, of, amounts)
    for key, amount in zip(distinct.tolist(), found.tolist(), strict=True):
        sums[key] = sums.get(key, 0) + amount
