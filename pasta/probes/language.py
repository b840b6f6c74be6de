"""The language of probes: a subset of Python, checked when a tool is loaded, and its translation.

A probe computes with 64-bit signed integers that wrap around; what is true or false is 1 or 0.
It consists of assignments to local names, `if`, `for … in range(constant)`, `return`, and calls
of a map's methods. In expressions there are integers, fields of `access`, options of the tool
(`options.NAME`), integer constants of the module, arithmetic, comparisons, `and`, `or`, `not`,
`… if … else …`, `min`, `max`, `abs` and functions decorated with `@probe.function`. A division
by zero gives 0; a shift count is taken modulo 64.

Needs only the standard library: the launcher checks tools before the program starts.
"""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

from pasta.errors import ProbeError
from pasta.probes.kinds import FIELDS, missing

if TYPE_CHECKING:
    from pasta.probes.maps import Map, Method, Parameter
    from pasta.tool import Option

#: Iterations of all loops of a probe together, nested ones multiplied.
MAX_ITERATIONS = 4096

Per = Literal["lane", "warp"]

_MAX_INT = (1 << 63) - 1
_OPTION = "option__"
_DIVIDE = "integer__divide"
_REMAINDER = "integer__remainder"
_OPERATORS = (
    ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod,
    ast.LShift, ast.RShift, ast.BitAnd, ast.BitOr, ast.BitXor,
)  # fmt: skip
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_BUILTINS = ("min", "max", "abs", "int", "bool", "range")
_SUPPORT = f"""
def {_DIVIDE}(a, b):
    if b == 0:
        return 0
    if b == -1:
        return -a
    return a // b

def {_REMAINDER}(a, b):
    if b == 0 or b == -1:
        return 0
    return a % b
"""


@dataclass(frozen=True)
class Op:
    """A map's method as a probe calls it; `uniform`: all lanes that call it give equal amounts."""

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
        """Function definitions, the probe's own last, with the values of options put in.

        `prefix` goes before the names of all functions that they define or call, but for
        Python's own. Numba tells LLVM that sums do not overflow, and a check after one that did
        may be gone: with `wrapping`, + - * are calls of the global functions `plus`, `minus`
        and `times`. Raises ProbeError where an option makes a loop too long.
        """
        binder = _Binder(self, options or {}, prefix)
        found = [binder.bound(each) for each in (*self.helpers, self.tree)]
        return [_Wrapping().visit(each) for each in found] if wrapping else found

    def source(
        self, options: Mapping[str, Any] | None = None, prefix: str = "", *, wrapping: bool = False
    ) -> str:
        """`definitions` as text."""
        found = self.definitions(options, prefix, wrapping=wrapping)
        return "\n\n".join(map(ast.unparse, found))

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
    """A function that probes call, and a test may too."""

    def __init__(self, function: FunctionType) -> None:
        self.function = function

    def __call__(self, *arguments: int) -> int:
        found: int = self.function(*arguments)
        return found


def translate(
    function: FunctionType,
    *,
    tool: str,
    kinds: tuple[str, ...],
    per: Per,
    maps: Mapping[str, Map[Any]],
    options: Mapping[str, Option[Any]],
) -> ProbeFunction:
    """Checks a probe and translates it. Raises ProbeError."""
    helpers: dict[FunctionType, ast.FunctionDef] = {}
    source = _Source.of(function)
    parameters = _parameters(source, ("access", "maps", "options"), least=2)
    translator = _Translator(source, helpers, parameters, maps, options, kinds, per)
    body, _ = translator.function_body()
    fields = tuple(sorted(translator.fields))
    tree = _definition(source, function.__name__, (*fields, "env"), body)
    probe = ProbeFunction(
        tool=tool,
        name=function.__name__,
        file=source.file,
        line=function.__code__.co_firstlineno,
        kinds=kinds,
        per=per,
        fields=fields,
        ops=tuple(sorted(translator.ops, key=lambda op: op.name)),
        options=tuple(sorted(translator.options_used)),
        tree=tree,
        helpers=(*_support(translator), *helpers.values()),
    )
    probe.definitions({name: each.default for name, each in options.items()})
    return probe


# ---- source ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    """A function's definition, with the line numbers of its file."""

    function: FunctionType
    file: str
    tree: ast.FunctionDef

    @classmethod
    def of(cls, function: FunctionType) -> _Source:
        file, line = function.__code__.co_filename, function.__code__.co_firstlineno
        try:
            lines, first = inspect.getsourcelines(function)
        except (OSError, TypeError):
            raise ProbeError(
                file, line, f"the source of {function.__name__} is not there", "put it in a file"
            ) from None
        text = "".join(lines)
        if text[:1].isspace():  # of a class: its indentation needs a block around it
            text, first = "if 1:\n" + text, first - 1
        try:
            nodes = ast.walk(ast.parse(text))
        except SyntaxError:
            nodes = iter(())
        for node in nodes:
            if isinstance(node, ast.FunctionDef) and node.name == function.__name__:
                ast.increment_lineno(node, first - 1)
                return cls(function, file, node)
        raise ProbeError(
            file, line, f"{function.__name__} is no plain function", "define it with def"
        )

    def wrong(self, node: ast.AST, what: str, remedy: str) -> NoReturn:
        raise ProbeError(self.file, getattr(node, "lineno", self.tree.lineno), what, remedy)

    def value(self, name: str) -> Any:
        """What a name that is not local means; raises KeyError."""
        free = self.function.__code__.co_freevars
        if name in free:
            cell = (self.function.__closure__ or ())[free.index(name)]
            try:
                return cell.cell_contents
            except ValueError:
                raise KeyError(name) from None
        return self.function.__globals__[name]


def _parameters(source: _Source, known: Sequence[str], least: int) -> tuple[str, ...]:
    arguments = source.tree.args
    names = tuple(each.arg for each in (*arguments.posonlyargs, *arguments.args))
    plain = not (arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.defaults)
    for name in names:
        if "__" in name or name in _BUILTINS:
            source.wrong(source.tree, f"the parameter {name}", "give it another name")
    if not plain or not least <= len(names) <= len(known):
        shown = ", ".join(known[:least])
        source.wrong(
            source.tree,
            f"{source.tree.name} takes the parameters ({', '.join(known)})",
            f"write def {source.tree.name}({shown})",
        )
    return names


def _definition(
    source: _Source, name: str, parameters: Iterable[str], body: list[ast.stmt]
) -> ast.FunctionDef:
    arguments = ast.arguments(
        posonlyargs=[],
        args=[ast.arg(each) for each in parameters],
        vararg=None,
        kwonlyargs=[],
        kw_defaults=[],
        kwarg=None,
        defaults=[],
    )
    made = ast.parse(f"def {name}(): pass").body[0]
    assert isinstance(made, ast.FunctionDef)
    made.args = arguments
    made.body = body or [ast.Pass()]
    return cast(ast.FunctionDef, _placed(made, source.tree))


def _placed(node: Any, origin: ast.AST) -> Any:
    """The node, and those below it that have no place, at the place of `origin`."""
    if not hasattr(node, "lineno"):
        ast.copy_location(node, origin)
    return ast.fix_missing_locations(node)


# ---- checking and translation ---------------------------------------------------------------


@dataclass(frozen=True)
class _Value:
    """A translated expression. `varying`: it may differ between the lanes of a warp."""

    node: ast.expr
    boolean: bool = False
    varying: bool = False
    constant: bool = False

    @property
    def integer(self) -> ast.expr:
        """Its value as int64, also where it is true or false."""
        if not self.boolean:
            return self.node
        call = ast.Call(ast.Name("int", ast.Load()), [self.node], [])
        ast.copy_location(call, self.node)
        return _placed(call, self.node)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Place:
    """Where a statement is: in which loop, and whether only some lanes may get there."""

    divergent: bool = False
    loop: ast.For | None = None


#: Names that are certainly assigned after a statement; None: what follows is not reached.
_Assigned = frozenset[str] | None


class _Translator:
    """Translates one function: a probe, or with `maps` None a helper.

    Which locals vary between lanes depends on assignments further down, so that the body is
    translated again until nothing more turns out to vary.
    """

    def __init__(
        self,
        source: _Source,
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
        self.divergent_loops: set[int] = set()
        self.locals = self._find_locals()

    @property
    def is_helper(self) -> bool:
        return self.maps is None

    def _find_locals(self) -> frozenset[str]:
        names = set(self.parameters) if self.is_helper else set()
        for node in ast.walk(self.source.tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                if node.id in (*_BUILTINS, self.access, self.map_parameter, self.option_parameter):
                    self._wrong(node, f"{node.id} is assigned", "use another name")
                if "__" in node.id:
                    self._wrong(node, f"the name {node.id}", "use one without two underscores")
                names.add(node.id)
        return frozenset(names)

    def _wrong(self, node: ast.AST, what: str, remedy: str) -> NoReturn:
        self.source.wrong(node, what, remedy)

    def function_body(self) -> tuple[list[ast.stmt], _Assigned]:
        """Translated statements, and what is assigned at their end."""
        while True:
            before = (len(self.varying), len(self.divergent_loops))
            self.ops.clear()
            assigned = frozenset(self.parameters if self.is_helper else ())
            body, after = self._block(_without_docstring(self.source.tree.body), assigned, _Place())
            if before == (len(self.varying), len(self.divergent_loops)):
                return body, after

    # statements

    def _block(
        self, statements: Sequence[ast.stmt], assigned: _Assigned, place: _Place
    ) -> tuple[list[ast.stmt], _Assigned]:
        result: list[ast.stmt] = []
        for statement in statements:
            if assigned is None:
                self._wrong(statement, "this is never reached", "remove it")
            translated, assigned = self._statement(statement, assigned, place)
            result.append(_placed(ast.copy_location(translated, statement), statement))
        return result, assigned

    def _statement(
        self, node: ast.stmt, assigned: frozenset[str], place: _Place
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
            f"{_shown(node)} is not in the language of probes",
            "use assignments, if, for … in range(N), return and calls of maps",
        )

    def _assign(
        self, node: ast.Assign, assigned: frozenset[str], place: _Place
    ) -> tuple[ast.stmt, _Assigned]:
        names = []
        for target in node.targets:
            if not isinstance(target, ast.Name):
                self._wrong(node, "only local names can be assigned", "assign one name at a time")
            names.append(target.id)
        return self._stored(names, self._value(node.value), place), assigned | set(names)

    def _stored(self, names: list[str], value: _Value, place: _Place) -> ast.stmt:
        if value.varying or place.divergent:
            self.varying.update(names)
        targets: list[ast.expr] = [ast.Name(self._renamed(name), ast.Store()) for name in names]
        return ast.Assign(targets, value.integer)

    def _if(
        self, node: ast.If, assigned: frozenset[str], place: _Place
    ) -> tuple[ast.stmt, _Assigned]:
        test = self._value(node.test)
        inside = _Place(place.divergent or test.varying, place.loop)
        body, after_body = self._block(node.body, assigned, inside)
        other, after_other = self._block(node.orelse, assigned, inside)
        if after_body is None or after_other is None:
            after = after_other if after_body is None else after_body
        else:
            after = after_body & after_other
        return ast.If(test.node, body or [ast.Pass()], other), after

    def _for(
        self, node: ast.For, assigned: frozenset[str], place: _Place
    ) -> tuple[ast.stmt, _Assigned]:
        loop = "write for i in range(N) with a constant N"
        call = node.iter
        if not isinstance(node.target, ast.Name):
            self._wrong(node, "the loop's target is no local name", loop)
        if not _calls(call, "range") or "range" in self.locals:
            self._wrong(node, f"a loop over {_shown(call)}", loop)
        assert isinstance(call, ast.Call)
        if call.keywords or not 1 <= len(call.args) <= 3:
            self._wrong(node, f"the loop's {_shown(call)}", loop)
        if node.orelse:
            self._wrong(node.orelse[0], "else of a loop", "write it after the loop")
        bounds = [self._value(each) for each in call.args]
        for each, bound in zip(call.args, bounds, strict=True):
            if not bound.constant:
                self._wrong(each, f"the loop's bound {_shown(each)} is not constant", loop)
        divergent = node.lineno in self.divergent_loops
        inside = _Place(place.divergent or divergent, node)
        if inside.divergent:
            self.varying.add(node.target.id)
        body, _ = self._block(node.body, assigned | {node.target.id}, inside)
        target = ast.Name(self._renamed(node.target.id), ast.Store())
        over = ast.Call(ast.Name("range", ast.Load()), [each.integer for each in bounds], [])
        return ast.For(target, over, body or [ast.Pass()], [], None), assigned

    def _return(self, node: ast.Return) -> ast.stmt:
        if self.is_helper:
            if node.value is None:
                self._wrong(node, "the function returns nothing", "return an integer")
            return ast.Return(self._value(node.value).integer)
        if node.value is not None and not _is_none(node.value):
            self._wrong(node, "a probe returns nothing", "write return alone")
        return ast.Return(None)

    # calls of maps

    def _map_call(self, node: ast.expr) -> ast.expr:
        if not isinstance(node, ast.Call):
            self._wrong(node, f"{_shown(node)} has no effect", "assign it, or remove it")
        name, method = self._map_of(node)
        if method.takes_access:
            if not self._is_access_alone(node):
                signature = _signature(f"{self.map_parameter}.{name}", method)
                self._wrong(node, f"{_shown(node)} does not get access alone", f"write {signature}")
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
                call = "call maps in the probe itself"
            self._wrong(node, f"{_shown(node.func)}(…) has no effect", call)
        name = called.value.attr
        if name not in self.maps:
            self._wrong(node, f"there is no map {name}", _choose(name, self.maps, "maps"))
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

    def _arguments(self, node: ast.Call, name: str, method: Method) -> list[_Value]:
        """Arguments in the order of the method's parameters, defaults put in."""
        signature = _signature(f"{self.map_parameter}.{name}", method)
        parameters = method.parameters
        given: dict[str, ast.expr] = {}
        if len(node.args) > len(parameters) or any(
            isinstance(each, ast.Starred) for each in node.args
        ):
            self._wrong(node, f"{_shown(node)} has too many arguments", f"write {signature}")
        for parameter, argument in zip(parameters, node.args, strict=False):
            given[parameter.name] = argument
        for keyword in node.keywords:
            found = [each for each in parameters if keyword.arg in (each.name, each.alias)]
            if not keyword.arg or not found or found[0].name in given:
                self._wrong(
                    node, f"{name} takes no {keyword.arg or '**'} here", f"write {signature}"
                )
            given[found[0].name] = keyword.value
        values = []
        for parameter in parameters:
            argument_or_none = given.get(parameter.name)
            if argument_or_none is not None:
                values.append(self._argument(argument_or_none, parameter))
            elif parameter.default is not None:
                values.append(_Value(ast.Constant(parameter.default), constant=True))
            else:
                self._wrong(node, f"{name} needs {parameter.name}", f"write {signature}")
        if len(method.amounts) > 1 and not any(each in given for each in method.amounts):
            self._wrong(node, f"nothing is added to {name}", f"write {signature}")
        return values

    def _argument(self, node: ast.expr, parameter: Parameter) -> _Value:
        value = self._value(node)
        if parameter.field and not self._is_field(node, parameter.name):
            self._wrong(
                node,
                f"{parameter.name} is {_shown(node)}",
                f"give {self.access or 'access'}.{parameter.name}",
            )
        if (
            parameter.amount
            and _literal(value.node) is not None
            and (_literal(value.node) or 0) < 0
        ):
            self._wrong(node, f"the amount {_shown(node)} is negative", "amounts are unsigned")
        return value

    def _is_field(self, node: ast.expr, name: str) -> bool:
        return (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == self.access
            and node.attr == name
        )

    # expressions

    def _value(self, node: ast.expr) -> _Value:
        value = self._expression(node)
        return _Value(
            _placed(ast.copy_location(value.node, node), node),
            value.boolean,
            value.varying,
            value.constant,
        )

    def _expression(self, node: ast.expr) -> _Value:
        if isinstance(node, ast.Constant):
            return self._literal(node, node.value, _shown(node))
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
            return _joined(ast.BoolOp(node.op, parts), values, boolean)
        if isinstance(node, ast.Compare):
            return self._comparison(node)
        if isinstance(node, ast.IfExp):
            test, body, other = map(self._value, (node.test, node.body, node.orelse))
            made = ast.IfExp(test.node, body.integer, other.integer)
            return _joined(made, (test, body, other))
        if isinstance(node, ast.Call):
            return self._call(node)
        return self._wrong(
            node,
            f"{_shown(node)} is not in the language of probes",
            "use integers, fields of access, options, arithmetic and comparisons",
        )

    def _literal(self, node: ast.AST, value: Any, shown: str) -> _Value:
        if not isinstance(value, int):
            self._wrong(
                node, f"{shown} is a {type(value).__name__}", "probes compute with integers"
            )
        if abs(value) > _MAX_INT:
            self._wrong(node, f"{shown} has more than 64 bits", "integers are 64-bit and signed")
        constant: ast.expr = ast.Constant(abs(int(value)))
        if value < 0:
            constant = ast.UnaryOp(ast.USub(), constant)
        return _Value(constant, constant=True)

    def _name(self, node: ast.Name) -> _Value:
        name = node.id
        if name in self.locals:
            if name not in self.assigned:
                self._wrong(
                    node, f"{name} may have no value here", "assign it before, on every way"
                )
            return _Value(
                ast.Name(self._renamed(name), ast.Load()),
                varying=name in self.varying,
            )
        if name and name in (self.access, self.map_parameter, self.option_parameter):
            what = {self.access: "a field of it", self.map_parameter: "a method of a map"}
            self._wrong(node, f"{name} alone is no integer", f"use {what.get(name, 'an option')}")
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
        """Locals must not hide the fields, which become parameters."""
        return (
            f"{name}__local" if not self.is_helper and (name in FIELDS or name == "env") else name
        )

    def _attribute(self, node: ast.Attribute) -> _Value:
        base = node.value
        if isinstance(base, ast.Name) and base.id not in self.locals:
            if base.id == self.access and self.access:
                return self._field(node, node.attr)
            if base.id == self.option_parameter and self.option_parameter:
                return self._option(node)
            if base.id == self.map_parameter and self.map_parameter:
                self._wrong(node, f"{_shown(node)} is no integer", "maps are only added to")
            module = self.source.function.__globals__.get(base.id)
            if isinstance(module, ModuleType) and hasattr(module, node.attr):
                return self._literal(node, getattr(module, node.attr), _shown(node))
        return self._wrong(
            node,
            f"{_shown(node)} is not in the language of probes",
            f"use fields of access: {', '.join(FIELDS)}",
        )

    def _field(self, node: ast.AST, name: str) -> _Value:
        found = FIELDS.get(name)
        if found is None:
            self._wrong(node, f"access has no field {name}", _choose(name, FIELDS, "fields"))
        without = missing(found, self.kinds)
        if without:
            remedy = "use @probe.shared_memory" if found.needs == "shared" else "leave it out"
            self._wrong(node, f"{', '.join(without)} has no access.{name}", remedy)
        if found.lane and self.per == "warp":
            self._wrong(
                node,
                f"access.{name} differs between lanes, and the probe runs once per warp",
                'leave out per="warp"',
            )
        self.fields.add(name)
        varying = found.lane and self.per == "lane"
        return _Value(ast.Name(name, ast.Load()), varying=varying)

    def _option(self, node: ast.Attribute) -> _Value:
        found = self.known_options.get(node.attr)
        if found is None:
            remedy = _choose(node.attr, self.known_options, "options")
            self._wrong(node, f"the tool has no option {node.attr}", remedy)
        if found.kind in ("str", "float"):
            self._wrong(
                node,
                f"the option {node.attr} is a {found.kind}",
                "probes compute with integers",
            )
        self.options_used.add(node.attr)
        return _Value(ast.Name(_OPTION + node.attr, ast.Load()), constant=True)

    def _unary(self, node: ast.UnaryOp) -> _Value:
        value = self._value(node.operand)
        if isinstance(node.op, ast.Not):
            return _joined(ast.UnaryOp(ast.Not(), value.node), (value,), True)
        return _joined(ast.UnaryOp(node.op, value.integer), (value,))

    def _arithmetic(
        self, node: ast.AST, left: ast.expr, operator: ast.operator, right: ast.expr
    ) -> _Value:
        if not isinstance(operator, _OPERATORS):
            sign = {ast.Div: "/", ast.Pow: "**", ast.MatMult: "@"}[type(operator)]
            remedy = {"/": "divide with //", "**": "multiply, or shift with <<"}
            self._wrong(
                node, f"{sign} gives no integer", remedy.get(sign, "probes compute with integers")
            )
        a, b = self._value(left), self._value(right)
        divisor = _literal(b.node)
        if isinstance(operator, (ast.FloorDiv, ast.Mod)):
            if divisor == 0:
                self._wrong(node, "division by zero", "divide by something else")
            if divisor is None or divisor < 0:
                name = _DIVIDE if isinstance(operator, ast.FloorDiv) else _REMAINDER
                self.divides.add(name)
                call = ast.Call(ast.Name(name, ast.Load()), [a.integer, b.integer], [])
                return _joined(call, (a, b), constant=False)
        count = b.integer
        if isinstance(operator, (ast.LShift, ast.RShift)):
            if divisor is not None and not 0 <= divisor < 64:
                self._wrong(node, f"a shift by {divisor}", "shift by 0 to 63")
            if divisor is None:
                count = ast.BinOp(b.integer, ast.BitAnd(), ast.Constant(63))
        return _joined(ast.BinOp(a.integer, operator, count), (a, b))

    def _comparison(self, node: ast.Compare) -> _Value:
        for operator in node.ops:
            if not isinstance(operator, _COMPARISONS):
                self._wrong(
                    node, f"{_shown(node)} is no comparison of integers", "use ==, !=, <, <=, >, >="
                )
        values = [self._value(each) for each in (node.left, *node.comparators)]
        first, *others = (value.integer for value in values)
        return _joined(ast.Compare(first, list(node.ops), others), values, True)

    def _call(self, node: ast.Call) -> _Value:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if self.map_parameter and ast.unparse(node.func).startswith(f"{self.map_parameter}."):
            self._wrong(node, f"{_shown(node.func)}(…) gives no value", "write it as a statement")
        if node.keywords or any(isinstance(each, ast.Starred) for each in node.args):
            self._wrong(node, f"{_shown(node)}", "give plain arguments")
        if name in ("min", "max", "abs", "int", "bool") and not self._is_global(name):
            return self._builtin(node, name)
        helper = None if name in self.locals else self.source.function.__globals__.get(name)
        if helper is None and name in self.source.function.__code__.co_freevars:
            helper = self.source.value(name)
        if isinstance(helper, Helper):
            return self._helper_call(node, helper)
        return self._wrong(
            node,
            f"{_shown(node.func)} is not in the language of probes",
            "use min, max, abs or a function decorated with @probe.function",
        )

    def _is_global(self, name: str) -> bool:
        return name in self.source.function.__globals__

    def _builtin(self, node: ast.Call, name: str) -> _Value:
        values = [self._value(each) for each in node.args]
        least, most = {"min": (2, 8), "max": (2, 8)}.get(name, (1, 1))
        if not least <= len(values) <= most:
            self._wrong(node, f"{_shown(node)}", f"give {name} {least} to {most} arguments")
        if name == "int":
            return _joined(values[0].integer, values)
        if name == "bool":
            test = ast.Compare(values[0].integer, [ast.NotEq()], [ast.Constant(0)])
            return _joined(test, values, True)
        call = ast.Call(ast.Name(name, ast.Load()), [value.integer for value in values], [])
        return _joined(call, values)

    def _helper_call(self, node: ast.Call, helper: Helper) -> _Value:
        function = helper.function
        if function in self.calling:
            self._wrong(node, f"{function.__name__} calls itself", "use a loop with a constant N")
        if function not in self.helpers:
            self.helpers[function] = self._translated(helper)
        values = [self._value(each) for each in node.args]
        made = self.helpers[function]
        if len(values) != len(made.args.args):
            self._wrong(
                node, f"{_shown(node)}", f"give {function.__name__} {len(made.args.args)} arguments"
            )
        call = ast.Call(ast.Name(made.name, ast.Load()), [each.integer for each in values], [])
        return _joined(call, values, constant=False)

    def _translated(self, helper: Helper) -> ast.FunctionDef:
        source = _Source.of(helper.function)
        names = [each.arg for each in source.tree.args.args]
        parameters = _parameters(source, names, len(names))
        inner = _Translator(
            source, self.helpers, parameters, None, {}, self.kinds, self.per, self.calling
        )
        body, after = inner.function_body()
        if after is not None:
            source.wrong(
                source.tree, f"{source.tree.name} may return nothing", "end it with return"
            )
        self.divides |= inner.divides
        name = f"function__{len(self.helpers)}_{source.tree.name}"
        made = _definition(source, name, parameters, body)
        made.probe_file = source.file  # type: ignore[attr-defined]
        return made


def _joined(
    node: ast.expr,
    parts: Iterable[_Value],
    boolean: bool = False,
    constant: bool = True,
) -> _Value:
    parts = list(parts)
    return _Value(
        node,
        boolean,
        varying=any(part.varying for part in parts),
        constant=constant and all(part.constant for part in parts),
    )


def _support(translator: _Translator) -> list[ast.FunctionDef]:
    wanted = [
        each for each in ast.parse(_SUPPORT).body if getattr(each, "name", "") in translator.divides
    ]
    return [each for each in wanted if isinstance(each, ast.FunctionDef)]


class _Binder(ast.NodeTransformer):
    """Puts the values of options into a probe's functions, and bounds its loops."""

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
        if node.id.startswith(_OPTION):
            value = int(self.options[node.id[len(_OPTION) :]])
            constant: ast.expr = ast.Constant(abs(value))
            if value < 0:
                constant = ast.UnaryOp(ast.USub(), constant)
            return _placed(ast.copy_location(constant, node), node)  # type: ignore[no-any-return]
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
            self._wrong(node, "the loop's step is 0", "give another step")
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
                    f"the loops make more than {MAX_ITERATIONS:,} iterations",
                    "make them shorter",
                )
        return total

    def _wrong(self, node: ast.AST, what: str, remedy: str) -> NoReturn:
        raise ProbeError(self.probe.file, getattr(node, "lineno", self.probe.line), what, remedy)


class _Wrapping(ast.NodeTransformer):
    """Makes + - * calls of functions that wrap around."""

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
        return cast(ast.expr, _placed(ast.copy_location(call, node), node))


def _evaluated(node: ast.expr) -> int:
    """Value of an expression of constants, as a probe would compute it."""
    value = eval(compile(ast.Expression(node), "<constant>", "eval"), {"__builtins__": {}}, {
        "min": min, "max": max, "abs": abs, "int": int,
    })  # fmt: skip
    return int(value)


def _literal(node: ast.expr) -> int | None:
    """Value of an integer literal; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _literal(node.operand)
        return None if value is None else -value
    return None


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        return body[1:]
    return body


def _calls(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _shown(node: ast.AST) -> str:
    """Source of a node in one short line."""
    text = ast.unparse(node).partition("\n")[0]
    return text if len(text) <= 60 else text[:57] + "…"


def _signature(called: str, method: Method) -> str:
    if method.takes_access:
        return f"{called}.{method.name}(access)"
    shown = [
        each.name if each.default is None else f"{each.name}={each.default}"
        for each in method.parameters
    ]
    return f"{called}.{method.name}({', '.join(shown)})"


def _choose(wrong: str, known: Iterable[str], what: str) -> str:
    names = list(known)
    close = get_close_matches(wrong, names, 3)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    return f"the {what} are {', '.join(names)}" if names else f"it has no {what}"
