"""Statements of probes and their calls of maps: checked, and translated."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pasta.probes.language.expressions import Expressions, Value, literal_of
from pasta.probes.language.functions import Helper, Op
from pasta.probes.language.source import (
    Source,
    choose,
    definition,
    parameters_of,
    placed,
    shown,
    without_docstring,
)

if TYPE_CHECKING:
    from pasta.probes.specs import Method, Parameter


@dataclass(frozen=True)
class _Position:
    """Context of a statement: its loop, and whether only some lanes may reach it."""

    divergent: bool = False
    loop: ast.For | None = None


#: Names definitely assigned after a statement; None: the next statement is unreachable.
_Assigned = frozenset[str] | None


class Translator(Expressions):
    """Translates one function.

    Whether locals vary between lanes depends on later assignments, so the body is translated
    repeatedly until no further local varies.
    """

    #: Lines of loops that some lanes may leave before others.
    divergent_loops: set[int]

    def function_body(self) -> tuple[list[ast.stmt], _Assigned]:
        """Translated statements, and names assigned at their end."""
        self.divergent_loops = set()
        while True:
            before = (len(self.varying), len(self.divergent_loops))
            self.ops.clear()
            assigned = frozenset(self.parameters if self.is_helper else ())
            body, after = self._block(
                without_docstring(self.source.tree.body), assigned, _Position()
            )
            if before == (len(self.varying), len(self.divergent_loops)):
                return body, after

    def _block(
        self, statements: Sequence[ast.stmt], assigned: _Assigned, place: _Position
    ) -> tuple[list[ast.stmt], _Assigned]:
        result: list[ast.stmt] = []
        for statement in statements:
            if assigned is None:
                self._wrong(statement, "this statement is unreachable", "remove it")
            translated, assigned = self._statement(statement, assigned, place)
            result.append(placed(ast.copy_location(translated, statement), statement))
        return result, assigned

    def _statement(
        self, node: ast.stmt, assigned: frozenset[str], place: _Position
    ) -> tuple[ast.stmt, _Assigned]:
        self.assigned = assigned
        if isinstance(node, ast.Assign):
            return self._assign(node, assigned, place)
        if isinstance(node, ast.AugAssign):
            if not isinstance(node.target, ast.Name):
                self._wrong(node, "only local names can be assigned", "use a local name")
            target = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
            value = self._arithmetic(node, target, node.op, node.value)
            return self._stored([node.target.id], value, place), assigned
        if isinstance(node, ast.If):
            return self._if(node, assigned, place)
        if isinstance(node, ast.For):
            return self._for(node, assigned, place)
        if isinstance(node, ast.Return):
            return self._return(node), None
        if isinstance(node, (ast.Break, ast.Continue)):
            if place.divergent and place.loop is not None:
                self.divergent_loops.add(place.loop.lineno)
            return (ast.Break() if isinstance(node, ast.Break) else ast.Continue()), None
        if isinstance(node, ast.Pass):
            return ast.Pass(), assigned
        if isinstance(node, ast.Expr):
            return ast.Expr(self._map_call(node.value)), assigned
        if isinstance(node, ast.While):
            self._wrong(node, "while has no bound", "write for i in range(N) with a constant N")
        return self._wrong(
            node,
            f"{shown(node)} is not in the probe language",
            "use assignments, if, for … in range(N), return and calls of maps",
        )

    def _assign(
        self, node: ast.Assign, assigned: frozenset[str], place: _Position
    ) -> tuple[ast.stmt, _Assigned]:
        names = []
        for target in node.targets:
            if not isinstance(target, ast.Name):
                self._wrong(node, "only local names can be assigned", "assign one name at a time")
            names.append(target.id)
        if self._is_map_call(node.value):
            value = Value(self._map_call(node.value, assigned=True), varying=self.per == "lane")
        else:
            value = self._value(node.value)
        return self._stored(names, value, place), assigned | set(names)

    def _stored(self, names: list[str], value: Value, place: _Position) -> ast.stmt:
        if value.varying or place.divergent:
            self.varying.update(names)
        targets: list[ast.expr] = [ast.Name(self._renamed(name), ast.Store()) for name in names]
        return ast.Assign(targets, value.integer)

    def _if(
        self, node: ast.If, assigned: frozenset[str], place: _Position
    ) -> tuple[ast.stmt, _Assigned]:
        test = self._value(node.test)
        inside = _Position(place.divergent or test.varying, place.loop)
        body, after_body = self._block(node.body, assigned, inside)
        other, after_other = self._block(node.orelse, assigned, inside)
        if after_body is None or after_other is None:
            after = after_other if after_body is None else after_body
        else:
            after = after_body & after_other
        return ast.If(test.node, body or [ast.Pass()], other), after

    def _for(
        self, node: ast.For, assigned: frozenset[str], place: _Position
    ) -> tuple[ast.stmt, _Assigned]:
        loop = "write for i in range(N) with a constant N"
        call = node.iter
        if not isinstance(node.target, ast.Name):
            self._wrong(node, "the loop's target is not a local name", loop)
        if not _calls(call, "range") or "range" in self.locals:
            self._wrong(node, f"a loop over {shown(call)}", loop)
        assert isinstance(call, ast.Call)
        if call.keywords or not 1 <= len(call.args) <= 3:
            self._wrong(node, f"the loop's {shown(call)}", loop)
        if node.orelse:
            self._wrong(node.orelse[0], "else of a loop", "write it after the loop")
        bounds = [self._value(each) for each in call.args]
        for each, bound in zip(call.args, bounds, strict=True):
            if not bound.constant:
                self._wrong(each, f"the loop's bound {shown(each)} is not constant", loop)
        divergent = node.lineno in self.divergent_loops
        inside = _Position(place.divergent or divergent, node)
        if inside.divergent:
            self.varying.add(node.target.id)
        body, _ = self._block(node.body, assigned | {node.target.id}, inside)
        target = ast.Name(self._renamed(node.target.id), ast.Store())
        over = ast.Call(ast.Name("range", ast.Load()), [each.integer for each in bounds], [])
        return ast.For(target, over, body or [ast.Pass()], [], None), assigned

    def _return(self, node: ast.Return) -> ast.stmt:
        if self.is_helper:
            if node.value is None:
                self._wrong(node, "the function returns no value", "return an integer")
            return ast.Return(self._value(node.value).integer)
        if node.value is not None and not _is_none(node.value):
            self._wrong(node, "a probe cannot return a value", "write return alone")
        return ast.Return(None)

    def _map_call(self, node: ast.expr, *, assigned: bool = False) -> ast.expr:
        if not isinstance(node, ast.Call):
            self._wrong(node, f"{shown(node)} has no effect", "assign it, or remove it")
        name, method = self._map_of(node)
        if assigned and not method.returns:
            self._gives_no_value(node)
        if method.takes_access:
            if not self._is_access_alone(node):
                signature = _signature(f"{self.map_parameter}.{name}", method)
                self._wrong(
                    node,
                    f"{shown(node)} must take access as its only argument",
                    f"write {signature}",
                )
            values = [self._field(node, each.name) for each in method.parameters]
        else:
            values = self._arguments(node, name, method)
        amounts = [
            value
            for value, parameter in zip(values, method.parameters, strict=True)
            if parameter.amount
        ]
        uniform = bool(amounts) and not any(amount.varying for amount in amounts)
        op = Op(name, method.name, uniform)
        self.ops.add(op)
        called = ast.Name(op.name, ast.Load())
        environment = ast.Name("env", ast.Load())
        return ast.Call(called, [environment, *(value.integer for value in values)], [])

    def _map_of(self, node: ast.Call) -> tuple[str, Method]:
        call = "call a method of a map: maps.NAME.add(…)"
        called = node.func
        if not (
            isinstance(called, ast.Attribute)
            and isinstance(called.value, ast.Attribute)
            and isinstance(called.value.value, ast.Name)
            and called.value.value.id == self.map_parameter
            and self.maps is not None
        ):
            if self.is_helper:
                call = "call maps from the probe itself"
            self._wrong(node, f"{shown(node.func)}(…) has no effect", call)
        name = called.value.attr
        if name not in self.maps:
            self._wrong(node, f"there is no map {name}", choose(name, self.maps, "maps"))
        method: Method = self.maps[name].method
        if called.attr != method.name:
            self._wrong(
                node,
                f"the map {name} has no method {called.attr}",
                f"write {self.map_parameter}.{name}.{method.name}(…)",
            )
        return name, method

    def _is_access_alone(self, node: ast.Call) -> bool:
        first = node.args[0] if len(node.args) == 1 and not node.keywords else None
        return isinstance(first, ast.Name) and first.id == self.access

    def _arguments(self, node: ast.Call, name: str, method: Method) -> list[Value]:
        """Arguments in the order of the method's parameters, with defaults."""
        signature = _signature(f"{self.map_parameter}.{name}", method)
        parameters = method.parameters
        given: dict[str, ast.expr] = {}
        if len(node.args) > len(parameters) or any(
            isinstance(each, ast.Starred) for each in node.args
        ):
            self._wrong(node, f"{shown(node)} has too many arguments", f"write {signature}")
        for parameter, argument in zip(parameters, node.args, strict=False):
            given[parameter.name] = argument
        for keyword in node.keywords:
            found = [each for each in parameters if keyword.arg in (each.name, each.alias)]
            if not keyword.arg or not found or found[0].name in given:
                self._wrong(
                    node, f"{name} does not take {keyword.arg or '**'} here", f"write {signature}"
                )
            given[found[0].name] = keyword.value
        values = []
        for parameter in parameters:
            argument_or_none = given.get(parameter.name)
            if argument_or_none is not None:
                values.append(self._argument(argument_or_none, parameter))
            elif parameter.default is not None:
                values.append(Value(ast.Constant(parameter.default), constant=True))
            else:
                self._wrong(node, f"{name} needs {parameter.name}", f"write {signature}")
        if len(method.amounts) > 1 and not any(each in given for each in method.amounts):
            self._wrong(node, f"{name} has no amount to add", f"write {signature}")
        return values

    def _argument(self, node: ast.expr, parameter: Parameter) -> Value:
        value = self._value(node)
        if parameter.field and not self._is_field(node, parameter.name):
            self._wrong(
                node,
                f"{parameter.name} is {shown(node)}",
                f"pass {self.access or 'access'}.{parameter.name}",
            )
        if (
            parameter.amount
            and literal_of(value.node) is not None
            and (literal_of(value.node) or 0) < 0
        ):
            self._wrong(node, f"the amount {shown(node)} is negative", "amounts are unsigned")
        return value

    def _is_field(self, node: ast.expr, name: str) -> bool:
        return (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == self.access
            and node.attr == name
        )

    def _translated(self, helper: Helper) -> ast.FunctionDef:
        source = Source.of(helper.function)
        names = [each.arg for each in source.tree.args.args]
        parameters = parameters_of(source, names, len(names))
        inner = Translator(
            source, self.helpers, parameters, None, {}, self.kinds, self.per, self.calling
        )
        body, after = inner.function_body()
        if after is not None:
            source.wrong(
                source.tree, f"{source.tree.name} may return no value", "end it with return"
            )
        self.divides |= inner.divides
        name = f"function__{len(self.helpers)}_{source.tree.name}"
        made = definition(source, name, parameters, body)
        made.probe_file = source.file  # type: ignore[attr-defined]
        return made


def _calls(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _signature(called: str, method: Method) -> str:
    if method.takes_access:
        return f"{called}.{method.name}(access)"
    parameters = [
        each.name if each.default is None else f"{each.name}={each.default}"
        for each in method.parameters
    ]
    return f"{called}.{method.name}({', '.join(parameters)})"
