"""Translated probes: plain functions of integers, with the values of a tool's options."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Literal, NoReturn, cast

from pasta.errors import ProbeError
from pasta.probes.language.source import placed

#: Maximum of iterations of all loops of a probe, nested ones multiplied.
MAX_ITERATIONS = 4096
#: Prefix of names of options in a translated function.
OPTION = "option__"

Per = Literal["lane", "warp"]


@dataclass(frozen=True)
class Op:
    """A map's method as a probe calls it; `uniform`: all calling lanes pass equal amounts."""

    map: str
    method: str
    uniform: bool

    @property
    def name(self) -> str:
        """Global name in the translated function: M__add or M__add_uniform."""
        return f"{self.map}__{self.method}" + ("_uniform" if self.uniform else "")


@dataclass(frozen=True, eq=False)
class ProbeFunction:
    """A checked and translated probe.

    The function `make` builds has the parameters `(*fields, env)`, all int64, and calls the
    global `op.name(env, *keys, *amounts)` for every op, with arguments in the order of the
    method's parameters.
    """

    tool: str
    name: str
    file: str
    line: int
    kinds: tuple[str, ...]
    per: Per
    fields: tuple[str, ...]
    ops: tuple[Op, ...]
    options: tuple[str, ...]
    tree: ast.FunctionDef = field(repr=False)
    helpers: tuple[ast.FunctionDef, ...] = field(repr=False)

    def definitions(
        self, options: Mapping[str, Any] | None = None, prefix: str = "", *, wrapping: bool = False
    ) -> list[ast.FunctionDef]:
        """Function definitions, the probe last, with the values of options.

        `prefix` is added to the names of all functions that they define or call, except builtins.
        Numba lets LLVM assume that sums do not overflow, which may remove later checks: with
        `wrapping`, + - * are calls of the global functions `plus`, `minus` and `times`. Raises
        ProbeError if an option makes a loop too long.
        """
        binder = _Binder(self, options or {}, prefix)
        found = [binder.bound(each) for each in (*self.helpers, self.tree)]
        return [_Wrapping().visit(each) for each in found] if wrapping else found

    def source(self, options: Mapping[str, Any] | None = None, prefix: str = "") -> str:
        """`definitions` as text."""
        return "\n\n".join(map(ast.unparse, self.definitions(options, prefix)))

    def make(
        self,
        namespace: Mapping[str, Any],
        options: Mapping[str, Any] | None = None,
        jit: Callable[[Any], Any] = lambda function: function,
    ) -> Any:
        """The function, with the ops of `namespace` as globals; `jit` is applied to its helpers.

        File and line numbers are those of the tool's source.
        """
        functions = self.definitions(options)
        names: dict[str, Any] = {**namespace, "__name__": f"{self.tool}.{self.name}"}
        for each in functions:
            module = ast.fix_missing_locations(ast.Module(body=[each], type_ignores=[]))
            exec(compile(module, getattr(each, "probe_file", self.file), "exec"), names)
        for each in functions[:-1]:
            names[each.name] = jit(names[each.name])
        return names[functions[-1].name]


class Helper:
    """A function that probes and tests call."""

    def __init__(self, function: FunctionType) -> None:
        self.function = function

    def __call__(self, *arguments: int) -> int:
        found: int = self.function(*arguments)
        return found


class _Binder(ast.NodeTransformer):
    """Replaces options in a probe's functions by their values, and checks the length of loops."""

    def __init__(self, probe: ProbeFunction, options: Mapping[str, Any], prefix: str) -> None:
        self.probe = probe
        self.options = options
        self.prefix = prefix
        self.renamed = {each.name for each in (*probe.helpers, probe.tree)}
        self.renamed |= {op.name for op in probe.ops}
        self.costs: dict[str, int] = {}

    def bound(self, function: ast.FunctionDef) -> ast.FunctionDef:
        made = self.visit(copy.deepcopy(function))
        assert isinstance(made, ast.FunctionDef)
        self.costs[made.name] = self._cost(made.body)
        made.name = self.prefix + made.name
        return made

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id.startswith(OPTION):
            value = int(self.options[node.id[len(OPTION) :]])
            constant: ast.expr = ast.Constant(abs(value))
            if value < 0:
                constant = ast.UnaryOp(ast.USub(), constant)
            return placed(ast.copy_location(constant, node), node)  # type: ignore[no-any-return]
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in self.renamed:
            called = ast.Name(self.prefix + node.func.id, ast.Load())
            node.func = ast.copy_location(called, node.func)
        return node

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        assert isinstance(node.iter, ast.Call)
        bounds = [_evaluated(each) for each in node.iter.args]
        if len(bounds) == 3 and bounds[2] == 0:
            self._wrong(node, "the loop's step is 0", "use another step")
        node.iter.args = [
            ast.copy_location(ast.parse(repr(bound), mode="eval").body, node) for bound in bounds
        ]
        return ast.fix_missing_locations(node)

    def _cost(self, statements: Iterable[ast.AST]) -> int:
        total = 0
        for node in statements:
            if isinstance(node, ast.For):
                assert isinstance(node.iter, ast.Call)
                times = len(range(*(_evaluated(each) for each in node.iter.args)))
                cost = times * max(1, self._cost(node.body))
            else:
                cost = self._cost(ast.iter_child_nodes(node))
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    cost += self.costs.get(node.func.id.removeprefix(self.prefix), 0)
            total += cost
            if total > MAX_ITERATIONS:
                self._wrong(
                    node,
                    f"the loops run more than {MAX_ITERATIONS:,} iterations",
                    "reduce their bounds",
                )
        return total

    def _wrong(self, node: ast.AST, what: str, remedy: str) -> NoReturn:
        raise ProbeError(self.probe.file, getattr(node, "lineno", self.probe.line), what, remedy)


class _Wrapping(ast.NodeTransformer):
    """Replaces + - * by calls of functions that wrap around."""

    NAMES: Mapping[type[ast.operator], str] = {
        ast.Add: "plus",
        ast.Sub: "minus",
        ast.Mult: "times",
    }

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        name = self.NAMES.get(type(node.op))
        if name is None:
            return node
        call = ast.Call(ast.Name(name, ast.Load()), [node.left, node.right], [])
        return cast(ast.expr, placed(ast.copy_location(call, node), node))


def _evaluated(node: ast.expr) -> int:
    """Value of a constant expression, as computed by a probe."""
    value = eval(compile(ast.Expression(node), "<constant>", "eval"), {"__builtins__": {}}, {
        "min": min, "max": max, "abs": abs, "int": int,
    })  # fmt: skip
    return int(value)
