"""Time and memory by stack: the call tree of a run's operators and call paths, from its events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pasta.errors import RunError
from pasta.frameworks import FRAMEWORKS, conventions
from pasta.processors.call_paths import CallPaths, WorkByPath, matched, of_work
from pasta.processors.correlate import LaunchNames, LaunchWindow, Submissions
from pasta.processors.demangle import demangle
from pasta.processors.operator_names import NO_OPERATOR
from pasta.processors.operators import Operators
from pasta.processors.stacks import Stacks
from pasta.processors.strings import Strings
from pasta.report.weights import WEIGHTS, Weight
from pasta.run.directory import RunDirectory
from pasta.run.events import parts, read_batches
from pasta.run.results import read_table, stored_tables

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.symbols import Symbols

_KINDS = frozenset(
    {
        "operator_begin", "operator_end", "python_frame", "tensor_alloc", "kernel_launch",
        "kernel_complete", "graph_node", "graph_instantiate", "graph_launch", "host_frame",
        "host_stack", "host_sample", "kernel_launch_end", "memory_alloc", "sync",
    }
)  # fmt: skip
#: Records of earlier batches whose stacks may follow.
_RECENT = 256
_BACKWARD = "(backward)"


@dataclass(frozen=True)
class Call:
    """A frame of a stack: a Python line, a native function, a module, operator or kernel."""

    name: str
    kind: Literal["python", "native", "module", "operator", "kernel"]
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
            what = WEIGHTS[weight][0] if weight else "time or memory of stacks"
            known = f"--weight {' or '.join(self.present)}" if self.present else None
            raise RunError(f"{where}: no {what} was recorded", remedy=known)
        return weight


def has_operators(run: RunDirectory) -> bool:
    """Whether operators of a framework were recorded. Raises RunError."""
    return "operator_begin" in parts(run.recorded().events)


def has_stacks(run: RunDirectory) -> bool:
    """Whether operators of a framework, or call paths of the host, were recorded. Raises
    RunError."""
    return not {"operator_begin", "host_stack", "host_sample"}.isdisjoint(
        parts(run.recorded().events)
    )


def read_call_tree(run: RunDirectory) -> CallTree:
    """The call tree of a run's events. Raises RunError if they contain neither operators nor call
    paths."""
    if not has_stacks(run):
        raise RunError(
            (
                f"{run.path}: neither operators nor call paths were recorded, and stacks require "
                "one of them"
            ),
            remedy="record with --call-paths all, --perf, or a framework: "
            + " or ".join(f"pasta-preload -c {each.name}" for each in FRAMEWORKS.known()),
        )
    strings = Strings()
    symbols = run.recorded().symbols()
    weights = (
        _CallWeights(strings, symbols) if has_operators(run) else _PathWeights(strings, symbols)
    )
    for batch in read_batches(run.recorded().events, strings, kinds=_KINDS):
        try:
            weights.feed(batch)
        except Exception as error:  # records of an untrusted run may be inconsistent
            why = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise RunError(f"{run.path}: inconsistent events ({why})") from error
    try:
        weights.add_accesses(run)
    except (KeyError, ValueError) as error:
        raise RunError(f"{run.path}: inconsistent results of {ACCESSES} ({error})") from error
    return weights.tree()


#: The tool, and its table, with the accesses of each launch.
ACCESSES, _BY_LAUNCH = "access_count", "launches"


class _Weights:
    """Amounts of work by call path."""

    def __init__(self, strings: Strings, symbols: Symbols) -> None:
        self.strings = strings
        self.launches, self.paths = LaunchNames(), CallPaths()
        self.stacks = Stacks(conventions(), symbols)
        self.device, self.accesses = WorkByPath(), WorkByPath()
        self.sampled: dict[int, int] = {}  # processor time (ns) by stack

    def _feed(self, batch: Batch) -> None:
        """Adds what all runs may have."""
        self.launches.feed(batch)
        self.stacks.feed(batch)
        self.paths.feed(batch)
        samples = batch["host_sample"]
        _add(self.sampled, samples["stack"], samples["period"].astype(np.int64))

    def add_accesses(self, run: RunDirectory) -> None:
        """Adds the accesses that were counted in launches with call paths. Raises RunError."""
        if _BY_LAUNCH not in stored_tables(run.results).get(ACCESSES, ()):
            return
        table = read_table(run.results, ACCESSES, _BY_LAUNCH)
        ordinals = table["launch"].to_numpy().astype(np.uint64)
        counts = table["accesses"].to_numpy().astype(np.int64)
        self._add_counts(ordinals, counts)

    def _add_counts(self, ordinals: NDArray[Any], counts: NDArray[Any]) -> None:
        self.accesses.add(self.launches.names(ordinals), self.paths.stacks_of(ordinals), counts)

    def _add_paths(self, tree: CallTree) -> None:
        """Adds processor time of the host, and device times and accesses of kernels below their
        call paths."""
        for stack, time in self.sampled.items():
            tree.weights["cpu"][self._path_node(tree, stack)] += time
        work: tuple[tuple[Weight, WorkByPath], ...] = (
            ("device", self.device),
            ("accesses", self.accesses),
        )
        for weight, of_paths in work:
            for name, stack, _, amount in of_paths.rows().tolist():
                kernel = Call(demangle(self.strings[name]) or "(unnamed kernel)", "kernel")
                node = tree.node(self._path_node(tree, stack), kernel)
                tree.weights[weight][node] += amount

    def _path_node(self, tree: CallTree, stack: int) -> int:
        """The node of a call path."""
        node = 0
        for frame in self.stacks.path(stack, self.strings):
            kind: Literal["native", "python"] = "native" if frame.image else "python"
            node = tree.node(node, Call(str(frame), kind, frame.file, frame.line))
        return node


class _CallWeights(_Weights):
    """Device time, host time and memory by operator and kernel."""

    def __init__(self, strings: Strings, symbols: Symbols) -> None:
        super().__init__(strings, symbols)
        self.operators = Operators()
        self.window = LaunchWindow()
        #: Device time (ns) and accesses by node and kernel name.
        self.without_path: dict[int, int] = {}
        self.accesses_without_path: dict[int, int] = {}
        self.launched: list[NDArray[Any]] = []  # ordinal and node of each launch
        self.allocated: dict[int, int] = {}  # bytes by node

    def feed(self, batch: Batch) -> None:
        """Adds a batch; batches must come in the order of the run."""
        self._feed(batch)
        self.operators.feed(batch)
        self.operators.follow(batch, batch)
        new, launches = batch["tensor_alloc"], batch["kernel_launch"]
        _add(self.allocated, self.operators.at(new), new["bytes"].astype(np.int64))
        nodes = self.operators.at(launches)
        self.window.put(launches["ordinal"], nodes + 1)
        self.launched.append(np.stack([launches["ordinal"].astype(np.int64), nodes]))
        self._complete(batch["kernel_complete"])

    def _add_counts(self, ordinals: NDArray[Any], counts: NDArray[Any]) -> None:
        super()._add_counts(ordinals, counts)
        launched, nodes = np.concatenate([np.zeros((2, 0), np.int64), *self.launched], axis=1)
        order = np.argsort(launched, kind="stable")
        at = np.searchsorted(launched[order], ordinals.astype(np.int64))
        alone = (at < len(launched)) & (self.paths.stacks_of(ordinals) == 0)
        alone[alone] = launched[order[at[alone]]] == ordinals[alone].astype(np.int64)
        names = self.launches.names(ordinals[alone]).astype(np.int64)
        keys = nodes[order[at[alone]]] << 32 | names
        _add(self.accesses_without_path, keys, counts[alone])

    def _complete(self, completions: NDArray[Any]) -> None:
        nodes = self.window.get(completions["ordinal"]).astype(np.int64) - 1
        names = self.launches.names(completions["ordinal"]).astype(np.int64)
        start, end = completions["start"], completions["end"]
        good = (nodes >= 0) & (end >= start) & (end != np.iinfo(np.uint64).max)
        took = (end[good] - start[good]).astype(np.int64)
        stacks, names = self.paths.stacks_of(completions["ordinal"])[good], names[good]
        self.device.add(names, stacks, took)
        alone = stacks == 0
        _add(self.without_path, nodes[good][alone] << 32 | names[alone], took[alone])

    def tree(self) -> CallTree:
        tree = CallTree()
        nodes = self._operator_nodes(tree)
        for node, own in zip(nodes, self.operators.nodes["own"].tolist(), strict=True):
            tree.weights["host"][node] += own
        for number, bytes in self.allocated.items():
            tree.weights["bytes"][nodes[number]] += bytes
        work: tuple[tuple[Weight, dict[int, int]], ...] = (
            ("device", self.without_path),
            ("accesses", self.accesses_without_path),
        )
        for weight, amounts in work:
            for key, amount in amounts.items():
                name = demangle(self.strings[key & 0xFFFF_FFFF]) or "(unnamed kernel)"
                kernel = tree.node(nodes[key >> 32], Call(name, "kernel"))
                tree.weights[weight][kernel] += amount
        self._add_paths(tree)
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


class _PathWeights(_Weights):
    """Device time, host time, memory and accesses by call path and kernel, of a run without
    operators.

    Host time is that of launch calls and of waits.
    """

    def __init__(self, strings: Strings, symbols: Symbols) -> None:
        super().__init__(strings, symbols)
        self.sums: dict[Weight, dict[int, int]] = {"host": {}, "bytes": {}}  # by stack
        self.called = Submissions("ordinal", [("ordinal", "u8"), ("time", "u8")])
        self.unmatched: dict[str, NDArray[Any]] = {}

    def feed(self, batch: Batch) -> None:
        """Adds a batch; batches must come in the order of the run."""
        self._feed(batch)
        self._add_calls(batch["kernel_launch"], batch["kernel_launch_end"])
        ends = batch["kernel_complete"]
        known = (ends["end"] >= ends["start"]) & (ends["end"] != np.iinfo(np.uint64).max)
        ordinals = ends["ordinal"][known]
        took = (ends["end"][known] - ends["start"][known]).astype(np.int64)
        self.device.add(self.launches.names(ordinals), self.paths.stacks_of(ordinals), took)
        self._add_work("bytes", "memory_alloc", "address", "bytes", batch)
        self._add_work("host", "sync", "thread", "duration", batch)

    def _add_calls(self, launches: NDArray[Any], ends: NDArray[Any]) -> None:
        begun = np.zeros(len(launches), [("ordinal", "u8"), ("time", "u8")])
        begun["ordinal"], begun["time"] = launches["ordinal"], launches["time"]
        self.called.put(begun)
        found, known = self.called.take(ends["ordinal"])
        took = ends["time"][known].astype(np.int64) - found["time"][known].astype(np.int64)
        stacks = self.paths.stacks_of(ends["ordinal"][known])
        _add(self.sums["host"], stacks, np.maximum(took, 0))

    def _add_work(self, weight: Weight, kind: str, key: str, amount: str, batch: Batch) -> None:
        """Adds an amount of records to the stacks that follow them, in this batch or the next."""
        records = np.concatenate([self.unmatched.get(kind, batch[kind][:0]), batch[kind]])
        self.unmatched[kind] = records[-_RECENT:]
        stacks = of_work(batch["host_stack"], kind)
        keys = stacks[key if key == "thread" else "key"]
        at = matched(records[key], records["time"], keys, stacks["work_time"])
        amounts = records[amount][at[at >= 0]]
        known = amounts != np.iinfo(np.uint64).max
        _add(self.sums[weight], stacks["stack"][at >= 0][known], amounts[known].astype(np.int64))

    def tree(self) -> CallTree:
        tree = CallTree()
        for weight, sums in self.sums.items():
            for stack, amount in sums.items():
                node = self._path_node(tree, stack) if stack else 0
                tree.weights[weight][node] += amount
        self._add_paths(tree)
        return tree


def _add(sums: dict[int, int], keys: NDArray[Any], amounts: NDArray[Any]) -> None:
    distinct, of = np.unique(keys, return_inverse=True)
    found = np.zeros(len(distinct), np.int64)
    np.add.at(found, of, amounts)
    for key, amount in zip(distinct.tolist(), found.tolist(), strict=True):
        sums[key] = sums.get(key, 0) + amount
