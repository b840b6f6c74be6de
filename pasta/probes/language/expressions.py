"""Expressions of probes: checked, and translated to expressions of 64-bit integers."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from pasta.probes.kinds import FIELDS, missing
from pasta.probes.language.division import integer__divide, integer__remainder
from pasta.probes.language.functions import OPTION, Helper, Op, Per
from pasta.probes.language.source import BUILTINS, Source, choose, placed, shown

if TYPE_CHECKING:
    from pasta.options import Option
    from pasta.probes.maps import Map

_MAX_INT = (1 << 63) - 1
_OPERATORS = (
    ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod,
    ast.LShift, ast.RShift, ast.BitAnd, ast.BitOr, ast.BitXor,
)  # fmt: skip
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)


@dataclass(frozen=True)
class Value:
    """A translated expression. `varying`: it may differ between the lanes of a warp."""

    node: ast.expr
    boolean: bool = False
    varying: bool = False
    constant: bool = False

    @property
    def integer(self) -> ast.expr:
        """The expression as int64, converted if boolean."""
        if not self.boolean:
            return self.node
        call = ast.Call(ast.Name("int", ast.Load()), [self.node], [])
        ast.copy_location(call, self.node)
        return placed(call, self.node)  # type: ignore[no-any-return]


class Expressions:
    """Translates the expressions of one function: a probe, or with `maps` None a helper.

    It collects: `fields`, `options_used` and `ops` that the function uses, `divides` (names of the
    functions of division.py that it calls), `varying` (locals that may differ between the lanes of
    a warp) and `assigned` (locals that have a value at the current statement).
    """

    def __init__(
        self,
        source: Source,
        helpers: dict[FunctionType, ast.FunctionDef],
        parameters: tuple[str, ...],
        maps: Mapping[str, Map[Any]] | None,
        options: Mapping[str, Option[Any]],
        kinds: tuple[str, ...],
        per: Per,
        calling: tuple[FunctionType, ...] = (),
    ) -> None:
        self.source = source
        self.helpers = helpers
        self.maps = maps
        self.known_options = options
        self.kinds = kinds
        self.per = per
        self.calling = (*calling, source.function)
        self.parameters = parameters
        special = (*parameters, "", "")[:3] if maps is not None else ("", "", "")
        self.access, self.map_parameter, self.option_parameter = special
        self.fields: set[str] = set()
        self.options_used: set[str] = set()
        self.ops: set[Op] = set()
        self.divides: set[str] = set()
        self.varying: set[str] = set()
        self.assigned: frozenset[str] = frozenset()
        self.locals = self._find_locals()

    @property
    def is_helper(self) -> bool:
        """Whether the function is one that probes call."""
        return self.maps is None

    def _find_locals(self) -> frozenset[str]:
        names = set(self.parameters) if self.is_helper else set()
        for node in ast.walk(self.source.tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                if node.id in (*BUILTINS, self.access, self.map_parameter, self.option_parameter):
                    self._wrong(node, f"{node.id} is assigned", "use another name")
                if "__" in node.id:
                    self._wrong(node, f"the name {node.id}", "use one without two underscores")
                names.add(node.id)
        return frozenset(names)

    def _wrong(self, node: ast.AST, what: str, remedy: str) -> NoReturn:
        self.source.wrong(node, what, remedy)

    def _translated(self, helper: Helper) -> ast.FunctionDef:
        """The translation of a function that this one calls. Raises ProbeError."""
        raise NotImplementedError

    def _value(self, node: ast.expr) -> Value:
        value = self._expression(node)
        return Value(
            placed(ast.copy_location(value.node, node), node),
            value.boolean,
            value.varying,
            value.constant,
        )

    def _expression(self, node: ast.expr) -> Value:
        if isinstance(node, ast.Constant):
            return self._literal(node, node.value, shown(node))
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.UnaryOp):
            return self._unary(node)
        if isinstance(node, ast.BinOp):
            return self._arithmetic(node, node.left, node.op, node.right)
        if isinstance(node, ast.BoolOp):
            values = [self._value(each) for each in node.values]
            boolean = all(value.boolean for value in values)
            parts = [value.node if boolean else value.integer for value in values]
            return joined(ast.BoolOp(node.op, parts), values, boolean)
        if isinstance(node, ast.Compare):
            return self._comparison(node)
        if isinstance(node, ast.IfExp):
            test, body, other = map(self._value, (node.test, node.body, node.orelse))
            made = ast.IfExp(test.node, body.integer, other.integer)
            return joined(made, (test, body, other))
        if isinstance(node, ast.Call):
            return self._call(node)
        return self._wrong(
            node,
            f"{shown(node)} is not in the probe language",
            "use integers, fields of access, options, arithmetic and comparisons",
        )

    def _literal(self, node: ast.AST, value: Any, shown: str) -> Value:
        if not isinstance(value, int):
            self._wrong(
                node, f"{shown} is a {type(value).__name__}", "probes compute with integers"
            )
        if abs(value) > _MAX_INT:
            self._wrong(node, f"{shown} has more than 64 bits", "integers are 64-bit and signed")
        constant: ast.expr = ast.Constant(abs(int(value)))
        if value < 0:
            constant = ast.UnaryOp(ast.USub(), constant)
        return Value(constant, constant=True)

    def _name(self, node: ast.Name) -> Value:
        name = node.id
        if name in self.locals:
            if name not in self.assigned:
                self._wrong(
                    node, f"{name} may be unassigned here", "assign it before, on every path"
                )
            return Value(
                ast.Name(self._renamed(name), ast.Load()),
                varying=name in self.varying,
            )
        if name and name in (self.access, self.map_parameter, self.option_parameter):
            what = {self.access: "a field of it", self.map_parameter: "a method of a map"}
            self._wrong(
                node, f"{name} alone is not an integer", f"use {what.get(name, 'an option')}"
            )
        try:
            value = self.source.value(name)
        except KeyError:
            self._wrong(
                node,
                f"{name} is not defined",
                "use locals, options.NAME, integer constants of the module, min, max or abs",
            )
        return self._literal(node, value, name)

    def _renamed(self, name: str) -> str:
        """Name of a local that does not hide a field, as fields become parameters."""
        return (
            f"{name}__local" if not self.is_helper and (name in FIELDS or name == "env") else name
        )

    def _attribute(self, node: ast.Attribute) -> Value:
        base = node.value
        if isinstance(base, ast.Name) and base.id not in self.locals:
            if base.id == self.access and self.access:
                return self._field(node, node.attr)
            if base.id == self.option_parameter and self.option_parameter:
                return self._option(node)
            if base.id == self.map_parameter and self.map_parameter:
                self._wrong(node, f"{shown(node)} is not an integer", "call a method of the map")
            module = self.source.function.__globals__.get(base.id)
            if isinstance(module, ModuleType) and hasattr(module, node.attr):
                return self._literal(node, getattr(module, node.attr), shown(node))
        return self._wrong(
            node,
            f"{shown(node)} is not in the probe language",
            f"use fields of access: {', '.join(FIELDS)}",
        )

    def _field(self, node: ast.AST, name: str) -> Value:
        found = FIELDS.get(name)
        if found is None:
            self._wrong(node, f"access has no field {name}", choose(name, FIELDS, "fields"))
        without = missing(found, self.kinds)
        if without:
            remedy = "use @probe.shared_memory" if found.needs == "shared" else "remove it"
            self._wrong(node, f"{', '.join(without)} has no access.{name}", remedy)
        if found.lane and self.per == "warp":
            self._wrong(
                node,
                f"access.{name} differs between lanes, and the probe runs once per warp",
                'remove per="warp"',
            )
        self.fields.add(name)
        varying = found.lane and self.per == "lane"
        return Value(ast.Name(name, ast.Load()), varying=varying)

    def _option(self, node: ast.Attribute) -> Value:
        found = self.known_options.get(node.attr)
        if found is None:
            remedy = choose(node.attr, self.known_options, "options")
            self._wrong(node, f"the tool has no option {node.attr}", remedy)
        if found.kind in ("str", "float"):
            self._wrong(
                node,
                f"the option {node.attr} is a {found.kind}",
                "probes compute with integers",
            )
        self.options_used.add(node.attr)
        return Value(ast.Name(OPTION + node.attr, ast.Load()), constant=True)

    def _unary(self, node: ast.UnaryOp) -> Value:
        value = self._value(node.operand)
        if isinstance(node.op, ast.Not):
            return joined(ast.UnaryOp(ast.Not(), value.node), (value,), True)
        return joined(ast.UnaryOp(node.op, value.integer), (value,))

    def _arithmetic(
        self, node: ast.AST, left: ast.expr, operator: ast.operator, right: ast.expr
    ) -> Value:
        if not isinstance(operator, _OPERATORS):
            sign = {ast.Div: "/", ast.Pow: "**", ast.MatMult: "@"}[type(operator)]
            remedy = {"/": "divide with //", "**": "multiply, or shift with <<"}
            self._wrong(
                node,
                f"{sign} does not return an integer",
                remedy.get(sign, "probes compute with integers"),
            )
        a, b = self._value(left), self._value(right)
        divisor = literal_of(b.node)
        if isinstance(operator, (ast.FloorDiv, ast.Mod)):
            if divisor == 0:
                self._wrong(node, "division by zero", "use another divisor")
            if divisor is None or divisor < 0:
                divide = (
                    integer__divide if isinstance(operator, ast.FloorDiv) else integer__remainder
                )
                name = divide.__name__
                self.divides.add(name)
                call = ast.Call(ast.Name(name, ast.Load()), [a.integer, b.integer], [])
                return joined(call, (a, b), constant=False)
        count = b.integer
        if isinstance(operator, (ast.LShift, ast.RShift)):
            if divisor is not None and not 0 <= divisor < 64:
                self._wrong(node, f"a shift by {divisor}", "shift by 0 to 63")
            if divisor is None:
                count = ast.BinOp(b.integer, ast.BitAnd(), ast.Constant(63))
        return joined(ast.BinOp(a.integer, operator, count), (a, b))

    def _comparison(self, node: ast.Compare) -> Value:
        for operator in node.ops:
            if not isinstance(operator, _COMPARISONS):
                self._wrong(
                    node,
                    f"{shown(node)} is not a comparison of integers",
                    "use ==, !=, <, <=, >, >=",
                )
        values = [self._value(each) for each in (node.left, *node.comparators)]
        first, *others = (value.integer for value in values)
        return joined(ast.Compare(first, list(node.ops), others), values, True)

    def _call(self, node: ast.Call) -> Value:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if self._is_map_call(node):
            attribute = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if any(
                each.method.returns and each.method.name == attribute
                for each in (self.maps or {}).values()
            ):
                self._wrong(
                    node,
                    f"{shown(node.func)}(…) is part of an expression",
                    f"assign its result first: name = {shown(node)}",
                )
            self._gives_no_value(node)
        if node.keywords or any(isinstance(each, ast.Starred) for each in node.args):
            self._wrong(node, f"{shown(node)}", "use plain arguments")
        if name in ("min", "max", "abs", "int", "bool") and not self._is_global(name):
            return self._builtin(node, name)
        helper = None if name in self.locals else self.source.function.__globals__.get(name)
        if helper is None and name in self.source.function.__code__.co_freevars:
            helper = self.source.value(name)
        if isinstance(helper, Helper):
            return self._helper_call(node, helper)
        return self._wrong(
            node,
            f"{shown(node.func)} is not in the probe language",
            "use min, max, abs or a function decorated with @probe.function",
        )

    def _is_map_call(self, node: ast.expr) -> bool:
        """Whether the node calls something of the parameter for maps."""
        start = f"{self.map_parameter}."
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        return bool(self.map_parameter) and called.startswith(start)

    def _gives_no_value(self, node: ast.Call) -> NoReturn:
        self._wrong(node, f"{shown(node.func)}(…) returns no value", "write it as a statement")

    def _is_global(self, name: str) -> bool:
        return name in self.source.function.__globals__

    def _builtin(self, node: ast.Call, name: str) -> Value:
        values = [self._value(each) for each in node.args]
        minimum, maximum = {"min": (2, 8), "max": (2, 8)}.get(name, (1, 1))
        if not minimum <= len(values) <= maximum:
            self._wrong(node, f"{shown(node)}", f"pass {name} {minimum} to {maximum} arguments")
        if name == "int":
            return joined(values[0].integer, values)
        if name == "bool":
            test = ast.Compare(values[0].integer, [ast.NotEq()], [ast.Constant(0)])
            return joined(test, values, True)
        call = ast.Call(ast.Name(name, ast.Load()), [value.integer for value in values], [])
        return joined(call, values)

    def _helper_call(self, node: ast.Call, helper: Helper) -> Value:
        function = helper.function
        if function in self.calling:
            self._wrong(node, f"{function.__name__} calls itself", "use a loop with a constant N")
        if function not in self.helpers:
            self.helpers[function] = self._translated(helper)
        values = [self._value(each) for each in node.args]
        made = self.helpers[function]
        if len(values) != len(made.args.args):
            self._wrong(
                node,
                f"{shown(node)}",
                (f"pass {function.__name__} {len(made.args.args)} arguments"),
            )
        call = ast.Call(ast.Name(made.name, ast.Load()), [each.integer for each in values], [])
        return joined(call, values, constant=False)


def joined(
    node: ast.expr,
    parts: Iterable[Value],
    boolean: bool = False,
    constant: bool = True,
) -> Value:
    """A value from parts: varying if any part is, constant if all parts are and `constant`."""
    parts = list(parts)
    return Value(
        node,
        boolean,
        varying=any(part.varying for part in parts),
        constant=constant and all(part.constant for part in parts),
    )


def literal_of(node: ast.expr) -> int | None:
    """Value of an integer literal; None for other expressions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = literal_of(node.operand)
        return None if value is None else -value
    return None
