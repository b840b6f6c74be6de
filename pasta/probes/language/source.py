"""Source text of probes and of the functions that they call, with the lines of their files."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import FunctionType
from typing import Any, NoReturn, cast

from pasta.errors import ProbeError

#: Builtin functions that probes may call; other objects must not have these names.
BUILTINS = ("min", "max", "abs", "int", "bool", "range")


@dataclass(frozen=True)
class Source:
    """A function's definition, with the line numbers of its file."""

    function: FunctionType
    file: str
    tree: ast.FunctionDef

    @classmethod
    def of(cls, function: FunctionType) -> Source:
        """The definition of a function. Raises ProbeError if it is not available."""
        file, line = function.__code__.co_filename, function.__code__.co_firstlineno
        try:
            lines, first = inspect.getsourcelines(function)
        except (OSError, TypeError):
            raise ProbeError(
                file,
                line,
                f"the source of {function.__name__} is not available",
                "define it in a file",
            ) from None
        text = "".join(lines)
        if text[:1].isspace():  # in a class: its indentation requires a block
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
            file, line, f"{function.__name__} is not a plain function", "define it with def"
        )

    def wrong(self, node: ast.AST, what: str, remedy: str) -> NoReturn:
        """Raises ProbeError for a node of this function."""
        raise ProbeError(self.file, getattr(node, "lineno", self.tree.lineno), what, remedy)

    def value(self, name: str) -> Any:
        """Object of a name that is not local. Raises KeyError if undefined."""
        free = self.function.__code__.co_freevars
        if name in free:
            cell = (self.function.__closure__ or ())[free.index(name)]
            try:
                return cell.cell_contents
            except ValueError:
                raise KeyError(name) from None
        return self.function.__globals__[name]


def parameters_of(source: Source, known: Sequence[str], minimum: int) -> tuple[str, ...]:
    """Names of a function's parameters, which are plain: `minimum` to all of `known`.

    Raises ProbeError.
    """
    arguments = source.tree.args
    names = tuple(each.arg for each in (*arguments.posonlyargs, *arguments.args))
    plain = not (arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.defaults)
    for name in names:
        if name == "self":  # would be the access
            found = f"{source.tree.name} has the parameter self, but runs without its tool"
            source.wrong(source.tree, found, "leave it out")
        if "__" in name or name in BUILTINS:
            source.wrong(source.tree, f"the parameter {name}", "use another name")
    if not plain or not minimum <= len(names) <= len(known):
        shown = ", ".join(known[:minimum])
        source.wrong(
            source.tree,
            f"{source.tree.name} takes the parameters ({', '.join(known)})",
            f"write def {source.tree.name}({shown})",
        )
    return names


def definition(
    source: Source, name: str, parameters: Iterable[str], body: list[ast.stmt]
) -> ast.FunctionDef:
    """A function definition, with line numbers of `source`."""
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
    return cast(ast.FunctionDef, placed(made, source.tree))


def placed(node: Any, origin: ast.AST) -> Any:
    """The node, with the position of `origin` for it and its children if they have none."""
    if not hasattr(node, "lineno"):
        ast.copy_location(node, origin)
    return ast.fix_missing_locations(node)


def shown(node: ast.AST) -> str:
    """Source of a node in one line of at most 60 characters."""
    text = ast.unparse(node).partition("\n")[0]
    return text if len(text) <= 60 else text[:57] + "…"


def choose(wrong: str, known: Iterable[str], what: str) -> str:
    """A remedy for a wrong name: close ones, otherwise all."""
    names = list(known)
    close = get_close_matches(wrong, names, 3)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    return f"the {what} are {', '.join(names)}" if names else f"it has no {what}"


def without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements of a function without its docstring."""
    first = body[0]
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        return body[1:]
    return body
