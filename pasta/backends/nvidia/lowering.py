"""LLVM IR of patches, from the syntax trees of their functions.

A patch and what it calls compute with int64 alone: `patches.py` writes them, and the probes in them
are in a small language that is checked when a tool is loaded. So nothing has to be inferred, and IR
takes milliseconds, where Numba takes seconds. + - * wrap around, and comparisons are signed. LLVM
inlines all calls: a patch cannot call functions.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType
from typing import Any, NoReturn

from llvmlite import ir

from pasta.backends.nvidia.intrinsics.define import I1, I32, I64, Intrinsic, truth, tuple_of, wide
from pasta.errors import PastaError

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.LShift: "shl", ast.RShift: "ashr",
    ast.BitAnd: "and_", ast.BitOr: "or_", ast.BitXor: "xor",
}  # fmt: skip
_BITWISE = (ast.BitAnd, ast.BitOr, ast.BitXor)
_MAX_INT = (1 << 63) - 1

#: A value of the code: an int64, a truth value (i1), or a tuple of values.
Value = Any


class PatchError(PastaError):
    """A patch does not compile."""


@dataclass(frozen=True)
class PatchFunction:
    """A function, its symbol, and the C types of its parameters: "u64", "u32", "i32"."""

    symbol: str
    function: Callable[..., Any]
    arguments: tuple[str, ...]


def lowered(functions: Sequence[PatchFunction]) -> ir.Module:
    """Functions that return an int32, with all that they call. Raises PatchError."""
    module = ir.Module("patches")
    known: _Known = {}
    for each in functions:
        _add_patch(module, each, known)
    return module


#: Structure of a value: 0, or a tuple of structures.
Shape = Any
#: LLVM functions and the shapes of their results, by function and the shapes of its arguments;
#: None: it is being emitted.
_Known = dict[tuple[FunctionType, Shape], tuple[ir.Function, Shape] | None]


def _add_patch(module: ir.Module, patch: PatchFunction, known: _Known) -> None:
    kinds = [I64 if kind == "u64" else I32 for kind in patch.arguments]
    made = ir.Function(module, ir.FunctionType(I32, kinds), patch.symbol)
    made.attributes.add("convergent")
    builder = ir.IRBuilder(made.append_basic_block("entry"))
    given = [
        builder.sext(value, I64) if kind == "i32" else wide(builder, value)
        for value, kind in zip(made.args, patch.arguments, strict=True)
    ]
    function = patch.function
    if not isinstance(function, FunctionType):
        raise PatchError(f"{patch.symbol} is not a function")
    result = _Body(patch.symbol, function, builder, known).call(function, tuple(given))
    if result is None or isinstance(result, tuple):
        raise PatchError(f"{patch.symbol} does not return an integer")
    builder.ret(builder.trunc(result, I32))


class _Body:
    """The body of a function, which is emitted with a builder, and the shape of its result.

    `places`: where variables are, by name, tuples of places for tuples; `loops`: the blocks to
    which `continue` and `break` of the open loops branch.
    """

    def __init__(
        self,
        symbol: str,
        function: FunctionType,
        builder: ir.IRBuilder,
        known: _Known,
        shape: Shape = 0,
    ) -> None:
        self.symbol, self.function, self.builder, self.known = symbol, function, builder, known
        self.shape = shape
        self.places: dict[str, Value] = {}
        self.loops: list[tuple[ir.Block, ir.Block]] = []

    def _wrong(self, node: ast.AST, why: str, remedy: str | None = None) -> NoReturn:
        text = " ".join(ast.unparse(node).split())
        raise PatchError(f"{self.symbol} does not compile: {text}: {why}", remedy=remedy)

    # functions

    def call(self, function: FunctionType, given: tuple[Value, ...]) -> Value:
        """The result of a function; None without one."""
        key = function, _shape(given)
        if key not in self.known:
            self.known[key] = None
            self.known[key] = self._emitted(function, given)
        known = self.known[key]
        if known is None:
            raise PatchError(f"{function.__name__} calls itself")
        made, shape = known
        found = self.builder.call(made, [self._wide(each) for each in _flat(given)])
        if shape is None:
            return None
        if shape == 0:
            return found
        return tuple_of(self.builder, found)

    def _emitted(
        self, function: FunctionType, given: tuple[Value, ...]
    ) -> tuple[ir.Function, Shape]:
        """The LLVM function for arguments of these shapes, and the shape of its result."""
        tree = definition(function)
        shape = _result_shape(function)
        result = ir.VoidType() if shape is None else I64
        if isinstance(shape, tuple):
            result = ir.LiteralStructType([I64] * len(shape))
        module = self.builder.module
        kind = ir.FunctionType(result, [I64] * len(_flat(given)))
        made = ir.Function(module, kind, module.get_unique_name(f"{tree.name}."))
        made.linkage = "internal"
        # convergent: no call moves across branches before it is inlined
        made.attributes.add("convergent")
        made.attributes.add("alwaysinline")
        builder = ir.IRBuilder(made.append_basic_block("entry"))
        _Body(self.symbol, function, builder, self.known, shape).define(tree, given)
        return made, shape

    def define(self, tree: ast.FunctionDef, given: tuple[Value, ...]) -> None:
        """Emit the whole body, for arguments like `given`."""
        mine = _like(given, iter(self.builder.function.args))
        names = [each.arg for each in tree.args.args]
        if tree.args.vararg:
            mine = (*mine[: len(names)], mine[len(names) :])
            names.append(tree.args.vararg.arg)
        if len(names) != len(mine):
            self._wrong(tree.args, f"{tree.name} takes {len(names)} arguments, not {len(mine)}")
        for name, value in zip(names, mine, strict=True):
            self._assign(name, value)
        self._run(tree.body)
        if not self.builder.block.is_terminated:
            if self.shape is None:
                self.builder.ret_void()
            else:  # after `while True`
                self.builder.ret(ir.Constant(self.builder.function.return_value.type, None))

    # variables

    def _place(self, value: Value) -> Value:
        """New variables for a value."""
        if isinstance(value, tuple):
            return tuple(self._place(each) for each in value)
        with self.builder.goto_entry_block():
            return self.builder.alloca(I64)

    def _store(self, value: Value, place: Value) -> None:
        if isinstance(value, tuple):
            for each, of in zip(value, place, strict=True):
                self._store(each, of)
        else:
            self.builder.store(self._wide(value), place)

    def _load(self, place: Value) -> Value:
        if isinstance(place, tuple):
            return tuple(self._load(each) for each in place)
        return self.builder.load(place)

    def _assign(self, name: str, value: Value) -> None:
        known = self.places.get(name)
        if known is None or _shape(known) != _shape(value):
            known = self.places[name] = self._place(value)
        self._store(value, known)

    # statements

    def _run(self, statements: Sequence[ast.stmt]) -> None:
        for each in statements:
            if self.builder.block.is_terminated:  # by return, break or continue
                return
            self._statement(each)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign):
            value = self._value(node.value)
            for each in node.targets:
                self._assign_to(each, value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            read = ast.Name(node.target.id, ast.Load())
            self._assign(node.target.id, self._arithmetic(node, read, node.op, node.value))
        elif isinstance(node, ast.Expr):
            if not isinstance(node.value, ast.Constant):  # a docstring
                self._value(node.value)
        elif isinstance(node, ast.If):
            self._if(node)
        elif isinstance(node, ast.While) and not node.orelse:
            self._while(node)
        elif isinstance(node, ast.For) and not node.orelse:
            self._for(node)
        elif isinstance(node, ast.Return):
            self._return(node)
        elif isinstance(node, ast.Break | ast.Continue):
            self.builder.branch(self.loops[-1][isinstance(node, ast.Break)])
        elif not isinstance(node, ast.Pass):
            self._wrong(node, "patches have no such statement")

    def _assign_to(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name) and value is not None:
            self._assign(target.id, value)
        elif (
            isinstance(target, ast.Tuple)
            and isinstance(value, tuple)
            and len(target.elts) == len(value)
        ):
            for each, part in zip(target.elts, value, strict=True):
                self._assign_to(each, part)
        else:
            self._wrong(target, "the value cannot be assigned to it")

    def _return(self, node: ast.Return) -> None:
        value = None if node.value is None else self._value(node.value)
        if (None if value is None else _shape(value)) != self.shape:
            self._wrong(node, "the function returns values of other kinds, too")
        if value is None:
            self.builder.ret_void()
        elif isinstance(value, tuple):
            found = ir.Constant(ir.LiteralStructType([I64] * len(value)), ir.Undefined)
            for i, each in enumerate(value):
                found = self.builder.insert_value(found, self._wide(each), i)
            self.builder.ret(found)
        else:
            self.builder.ret(self._wide(value))

    def _go(self, block: ir.Block) -> None:
        if not self.builder.block.is_terminated:
            self.builder.branch(block)

    @contextmanager
    def _block(self, block: ir.Block, then: ir.Block) -> Iterator[None]:
        """Emit into a block, which `then` follows."""
        self.builder.position_at_end(block)
        yield
        self._go(then)

    def _blocks(self, *names: str) -> list[ir.Block]:
        return [self.builder.append_basic_block(name) for name in names]

    def _if(self, node: ast.If) -> None:
        body, other, end = self._blocks("then", "else", "endif")
        self._branch(node.test, body, other)
        with self._block(body, end):
            self._run(node.body)
        with self._block(other, end):
            self._run(node.orelse)
        self.builder.position_at_end(end)

    @contextmanager
    def _loop(self, body: ir.Block, following: ir.Block, end: ir.Block) -> Iterator[None]:
        """Emit the body of a loop, and go on in `following`, to which `continue` branches."""
        self.loops.append((following, end))
        with self._block(body, following):
            yield
        self.loops.pop()
        self.builder.position_at_end(following)

    def _while(self, node: ast.While) -> None:
        test, body, following, end = self._blocks("while", "body", "next", "endwhile")
        self.builder.branch(test)
        self.builder.position_at_end(test)
        self._branch(node.test, body, end)
        with self._loop(body, following, end):
            self._run(node.body)
        self._repeat(test)
        self.builder.position_at_end(end)

    def _repeat(self, test: ir.Block) -> None:
        """Branch back to the test of a loop, which is not unrolled: the time of a patch depends on
        its length."""
        module = self.builder.module
        name = module.add_metadata(["llvm.loop.unroll.disable"])
        loop = module.add_metadata([ir.Constant(I64, len(module.metadata)), name])  # a new node
        loop.operands = (loop, name)  # which identifies the loop by referring to itself
        self.builder.branch(test).set_metadata("llvm.loop", loop)

    def _for(self, node: ast.For) -> None:
        if isinstance(node.iter, ast.Tuple):
            self._for_each(node, node.iter.elts)
            return
        if not isinstance(node.iter, ast.Call) or ast.unparse(node.iter.func) != "range":
            self._wrong(node.iter, "loops are over a range or a tuple")
        bounds = [self._integer(each) for each in node.iter.args]
        if len(bounds) == 1:
            bounds.insert(0, ir.Constant(I64, 0))
        start, stop, step = (*bounds, ir.Constant(I64, 1))[:3]
        if not isinstance(step, ir.Constant) or not step.constant:
            self._wrong(node.iter, "the step is not a constant")
        test, body, following, end = self._blocks("for", "body", "next", "endfor")
        number = self._place(start)
        self._store(start, number)
        self.builder.branch(test)
        self.builder.position_at_end(test)
        sign = "<" if step.constant > 0 else ">"
        now = self._load(number)
        self.builder.cbranch(self.builder.icmp_signed(sign, now, stop), body, end)
        with self._loop(body, following, end):
            self._assign_to(node.target, now)
            self._run(node.body)
        self._store(self.builder.add(now, step), number)
        self._repeat(test)
        self.builder.position_at_end(end)

    def _for_each(self, node: ast.For, values: Sequence[ast.expr]) -> None:
        (end,) = self._blocks("endfor")
        for each in values:
            (following,) = self._blocks("next")
            with self._loop(self.builder.block, following, end):
                self._assign_to(node.target, self._value(each))
                self._run(node.body)
        self._go(end)
        self.builder.position_at_end(end)

    # expressions

    def _wide(self, value: Value) -> ir.Value:
        return wide(self.builder, value)

    def _truth(self, value: Value) -> ir.Value:
        return value if value.type == I1 else truth(self.builder, value)

    def _integer(self, node: ast.expr) -> ir.Value:
        return self._wide(self._scalar(node))

    def _scalar(self, node: ast.expr) -> ir.Value:
        value = self._value(node)
        if value is None or isinstance(value, tuple):
            self._wrong(node, "it is not an integer")
        return value

    def _branch(self, test: ast.expr, yes: ir.Block, no: ir.Block) -> None:
        """Branch by a condition."""
        if isinstance(test, ast.BoolOp):
            *first, last = test.values
            for each in first:
                (following,) = self._blocks("and" if isinstance(test.op, ast.And) else "or")
                if isinstance(test.op, ast.And):
                    self._branch(each, following, no)
                else:
                    self._branch(each, yes, following)
                self.builder.position_at_end(following)
            self._branch(last, yes, no)
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            self._branch(test.operand, no, yes)
        else:
            self.builder.cbranch(self._truth(self._scalar(test)), yes, no)

    def _value(self, node: ast.expr) -> Value:
        if isinstance(node, ast.Constant):
            return self._constant(node, node.value)
        if isinstance(node, ast.Name):
            if node.id in self.places:
                return self._load(self.places[node.id])
            return self._constant(node, self.function.__globals__.get(node.id))
        if isinstance(node, ast.Tuple):
            return self._items(node.elts)
        if isinstance(node, ast.Subscript):
            return self._item(node)
        if isinstance(node, ast.UnaryOp):
            return self._unary(node)
        if isinstance(node, ast.BinOp):
            return self._arithmetic(node, node.left, node.op, node.right)
        if isinstance(node, ast.Compare):
            return self._comparison(node)
        if isinstance(node, ast.BoolOp):
            return self._choice(node.values[0], node.op, node.values[1:])
        if isinstance(node, ast.IfExp):
            return self._if_else(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        return self._wrong(node, "patches have no such expression")

    def _constant(self, node: ast.expr, value: object) -> ir.Constant:
        if isinstance(value, float):
            self._floating(node)
        if not isinstance(value, int):
            self._wrong(node, "it is not an integer")
        if not -_MAX_INT - 1 <= value <= _MAX_INT:
            self._wrong(node, "it has more than 64 bits, of which one is the sign")
        return ir.Constant(I64, int(value))

    def _floating(self, node: ast.AST) -> NoReturn:
        self._wrong(node, "patches have no floating-point numbers", "use // for /")

    def _items(self, nodes: Sequence[ast.expr]) -> tuple[Value, ...]:
        found: list[Value] = []
        for each in nodes:
            if isinstance(each, ast.Starred):
                found += self._value(each.value)
            else:
                found.append(self._value(each))
        return tuple(found)

    def _item(self, node: ast.Subscript) -> Value:
        """A constant item of a tuple, of which only that item is read."""
        index = self._value(node.slice)
        of = self.places.get(node.value.id) if isinstance(node.value, ast.Name) else None
        if not isinstance(index, ir.Constant) or not isinstance(of, tuple):
            self._wrong(node, "it is not an item, by a constant, of a variable with a tuple")
        if not 0 <= index.constant < len(of):
            self._wrong(node, f"the tuple has {len(of)} items")
        return self._load(of[index.constant])

    def _unary(self, node: ast.UnaryOp) -> Value:
        value = self._scalar(node.operand)
        if isinstance(node.op, ast.Not):
            return self.builder.not_(self._truth(value))
        value = self._wide(value)
        if isinstance(node.op, ast.Invert):
            return self.builder.not_(value)
        if isinstance(node.op, ast.USub):
            if isinstance(value, ir.Constant):
                return ir.Constant(I64, -value.constant)
            return self.builder.neg(value)
        return value

    def _arithmetic(
        self, node: ast.AST, left: ast.expr, operator: ast.operator, right: ast.expr
    ) -> Value:
        if isinstance(operator, ast.Div | ast.Pow):
            self._floating(node)
        a, b = self._scalar(left), self._scalar(right)
        if isinstance(operator, ast.FloorDiv | ast.Mod):
            return self._division(operator, self._wide(a), self._wide(b))
        if not isinstance(operator, _BITWISE) or a.type != I1 or b.type != I1:
            a, b = self._wide(a), self._wide(b)
        if type(operator) not in _ARITHMETIC:
            self._wrong(node, "patches have no such operator")
        return getattr(self.builder, _ARITHMETIC[type(operator)])(a, b)

    def _division(self, operator: ast.operator, a: ir.Value, b: ir.Value) -> ir.Value:
        """Rounded down, as Python does. Divisors are not 0 or -1: integer__divide tests them."""
        builder, divides = self.builder, isinstance(operator, ast.FloorDiv)
        if isinstance(b, ir.Constant) and b.constant > 0 and not b.constant & (b.constant - 1):
            if divides:
                return builder.ashr(a, ir.Constant(I64, b.constant.bit_length() - 1))
            return builder.and_(a, ir.Constant(I64, b.constant - 1))
        zero = ir.Constant(I64, 0)
        rest = builder.srem(a, b)
        inexact = builder.icmp_signed("!=", rest, zero)
        differ = builder.icmp_signed("<", builder.xor(rest, b), zero)
        down = builder.and_(inexact, differ)
        if divides:
            return builder.sub(builder.sdiv(a, b), builder.zext(down, I64))
        return builder.add(rest, builder.select(down, b, zero))

    def _comparison(self, node: ast.Compare) -> ir.Value:
        values = [self._integer(each) for each in (node.left, *node.comparators)]
        found = None
        for a, operator, b in zip(values, node.ops, values[1:], strict=False):
            if type(operator) not in _COMPARISONS:
                self._wrong(node, "patches have no such comparison")
            each = self.builder.icmp_signed(_COMPARISONS[type(operator)], a, b)
            found = each if found is None else self.builder.and_(found, each)
        return found

    def _choice(self, first: ast.expr, operator: ast.boolop, rest: Sequence[ast.expr]) -> Value:
        """The value of `and` or `or`: the first operand that decides."""
        value = self._scalar(first)
        for each in rest:
            more, end = self._blocks("more", "decided")
            before, truth = self.builder.block, self._truth(value)
            ways = (more, end) if isinstance(operator, ast.And) else (end, more)
            self.builder.cbranch(truth, *ways)
            self.builder.position_at_end(more)
            other = self._scalar(each)
            value = self._joined((value, before), (other, self.builder.block), end)
        return value

    def _if_else(self, node: ast.IfExp) -> Value:
        yes, no, end = self._blocks("then", "else", "endif")
        self._branch(node.test, yes, no)
        self.builder.position_at_end(yes)
        a, from_a = self._integer(node.body), self.builder.block
        self.builder.branch(end)
        self.builder.position_at_end(no)
        b = self._integer(node.orelse)
        return self._joined((a, from_a), (b, self.builder.block), end)

    def _joined(
        self, a: tuple[ir.Value, ir.Block], b: tuple[ir.Value, ir.Block], end: ir.Block
    ) -> ir.Value:
        """The value in `end` of two ways to it: values, and the blocks that end with them, the
        second of which is not terminated yet."""
        values = [a[0], b[0]]
        if a[0].type != b[0].type:
            for at, (value, block) in enumerate((a, b)):
                with self.builder.goto_block(block):
                    values[at] = self._wide(value)
        self._go(end)
        self.builder.position_at_end(end)
        phi = self.builder.phi(values[0].type)
        phi.add_incoming(values[0], a[1])
        phi.add_incoming(values[1], b[1])
        return phi

    def _call(self, node: ast.Call) -> Value:
        name = node.func.id if isinstance(node.func, ast.Name) and not node.keywords else ""
        called = self.function.__globals__.get(name, _BUILTINS.get(name))
        given = self._items(node.args)
        if isinstance(called, FunctionType):
            return self.call(called, given)
        if any(each is None or isinstance(each, tuple) for each in given):
            self._wrong(node, "an argument is not an integer")
        values = [self._wide(each) for each in given]
        if isinstance(called, Intrinsic):
            if len(values) != called.arity:
                self._wrong(node, f"{name} takes {called.arity} arguments")
            return called.generate(self.builder, values)
        if isinstance(called, _Builtin) and len(values) in called.arities:
            return called.generate(self.builder, values)
        return self._wrong(node, "patches cannot call it")


@dataclass(frozen=True)
class _Builtin:
    """A function of Python, and the numbers of arguments that it takes."""

    generate: Callable[[ir.IRBuilder, list[ir.Value]], ir.Value]
    arities: range


def _extreme(sign: str) -> Callable[[ir.IRBuilder, list[ir.Value]], ir.Value]:
    def generate(builder: ir.IRBuilder, values: list[ir.Value]) -> ir.Value:
        found = values[0]
        for each in values[1:]:
            found = builder.select(builder.icmp_signed(sign, each, found), each, found)
        return found

    return generate


def _absolute(builder: ir.IRBuilder, values: list[ir.Value]) -> ir.Value:
    (value,) = values
    negative = builder.icmp_signed("<", value, ir.Constant(I64, 0))
    return builder.select(negative, builder.neg(value), value)


_BUILTINS = {
    "min": _Builtin(_extreme("<"), range(2, 9)),
    "max": _Builtin(_extreme(">"), range(2, 9)),
    "abs": _Builtin(_absolute, range(1, 2)),
    "int": _Builtin(lambda _, values: values[0], range(1, 2)),
    "bool": _Builtin(lambda builder, values: truth(builder, values[0]), range(1, 2)),
}


def _shape(value: Value) -> Shape:
    return tuple(_shape(each) for each in value) if isinstance(value, tuple) else 0


def _flat(value: Value) -> list[ir.Value]:
    """The integers of a value."""
    if isinstance(value, tuple):
        return [integer for each in value for integer in _flat(each)]
    return [value]


def _like(value: Value, integers: Iterator[ir.Value]) -> Value:
    """A value of the shape of another one, from integers."""
    if isinstance(value, tuple):
        return tuple(_like(each, integers) for each in value)
    return next(integers)


def _result_shape(function: FunctionType, callers: tuple[FunctionType, ...] = ()) -> Shape:
    """The shape of a function's result by its first `return` with a value; None: it has none."""
    if function in callers:
        raise PatchError(f"{function.__name__} calls itself")
    for node in ast.walk(definition(function)):
        if isinstance(node, ast.Return) and node.value is not None:
            if isinstance(node.value, ast.Tuple):
                return (0,) * len(node.value.elts)
            if isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name):
                called = function.__globals__.get(node.value.func.id)
                if isinstance(called, FunctionType):
                    return _result_shape(called, (*callers, function))
            return 0
    return None


def definition(function: FunctionType) -> ast.FunctionDef:
    """The syntax tree of a function. Raises PatchError without its source."""
    code = function.__code__
    text = "".join(linecache.getlines(code.co_filename))
    found = _definitions(text).get((code.co_name, code.co_firstlineno))
    if found is None:
        raise PatchError(f"{code.co_name} has no source: {code.co_filename}")
    return found


@lru_cache(maxsize=16)
def _definitions(text: str) -> dict[tuple[str, int], ast.FunctionDef]:
    """The functions in the text of a file, by name and line."""
    nodes = ast.walk(ast.parse(text))
    return {(each.name, each.lineno): each for each in nodes if isinstance(each, ast.FunctionDef)}
