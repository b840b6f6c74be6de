"""Names of framework operators in tables, and the operators that launch kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from pasta.lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.context import Context
    from pasta.processors.snapshots import Launches
    from pasta.processors.stacks import Frame
    from pasta.table import Column

#: Name of the operator of launches outside of operators.
NO_OPERATOR = "(no operator)"
_MAX_NAMED = 3


def of_probes(context: Context) -> Launches | None:
    """Launches by ordinal, in a run with probes in which a framework's operators were seen."""
    if not context.has("probes") or len(context.operators.nodes) < 2:
        return None
    return context.probes.launches


def user_lines(context: Context) -> list[Frame | None]:
    """The program's line that called the operator, by node; empty in a run without operators."""
    if not context.has("operators"):
        return []
    stacks = context.operators.forward_values("stack").tolist()
    found = {each: context.stacks.user_line(each, context.strings) for each in set(stacks)}
    return [found[each] if each else None for each in stacks]


#: Columns of `OperatorGroups` that identify rows across runs.
GROUP_KEYS = ("operator", "backward", "module", "line")


class OperatorGroups:
    """Nodes of operators grouped by name, pass, module and Python line."""

    def __init__(self, context: Context) -> None:
        operators, strings = context.operators, context.strings
        nodes = operators.nodes
        names = strings.many(nodes["name"])
        names[0] = NO_OPERATOR
        modules = operators.forward_values("module").tolist()
        lines = context.stacks.lines(operators.forward_values("stack"), strings)
        groups: dict[Any, int] = {}
        self.codes = np.asarray(
            [
                groups.setdefault(row, len(groups))
                for row in zip(names, operators.backward.tolist(), modules, lines, strict=True)
            ],
            np.int64,
        )  #: Number of the group, by node.
        self._rows = [
            (name, backward, strings[module] if module else None, line)
            for name, backward, module, line in groups
        ]

    def columns(self, groups: NDArray[Any]) -> dict[str, Column]:
        """Columns of these groups."""
        rows = [self._rows[group] for group in groups.tolist()]
        return {
            "operator": [name for name, *_ in rows],
            "backward": [backward for _, backward, *_ in rows],
            "module": [module for *_, module, _ in rows],
            "line": [str(line) if line else None for *_, line in rows],
            "file": [line.file if line else None for *_, line in rows],
        }


def kernel_operators(
    context: Context, kernels: Sequence[Collection[int]]
) -> dict[str, list[str | None]]:
    """The column `operators`: the operators that launch each kernel most often. Kernels are sets of
    name ids. No column in a run without operators."""
    launches = of_probes(context)
    if launches is None:
        return {}
    names, nodes = launches.by_operator()
    texts = context.strings.many(context.operators.nodes["name"])
    texts[0] = NO_OPERATOR
    pairs, counts = np.unique(np.stack([names, nodes], axis=1), axis=0, return_counts=True)
    found: dict[int, Counter[str]] = {}
    for (name, node), count in zip(pairs.tolist(), counts.tolist(), strict=True):
        found.setdefault(name, Counter())[texts[node]] += count
    return {
        "operators": [
            _in_words(sum((found.get(name, Counter()) for name in of_kernel), Counter()))
            for of_kernel in kernels
        ]
    }


def _in_words(counts: Counter[str]) -> str | None:
    ordered = sorted(counts, key=lambda name: (-counts[name], name))
    more = f" and {len(ordered) - _MAX_NAMED} more" if len(ordered) > _MAX_NAMED else ""
    return ", ".join(ordered[:_MAX_NAMED]) + more if ordered else None
