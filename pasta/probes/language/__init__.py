"""The probe language: a subset of Python, checked when a tool is loaded, and its translation.

A probe computes with 64-bit signed integers that wrap around; truth values are 1 and 0.
It consists of assignments to local names, `if`, `for … in range(constant)`, `return`, and calls
of a map's methods. In expressions there are integers, fields of `access`, options of the tool
(`options.NAME`), integer constants of the module, arithmetic, comparisons, `and`, `or`, `not`,
`… if … else …`, `min`, `max`, `abs` and functions decorated with `@probe.function`. A division
by zero returns 0; a shift count is taken modulo 64.

Needs only the standard library: the launcher checks tools before the program starts.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

from pasta.probes.language import division
from pasta.probes.language.functions import MAX_ITERATIONS, Helper, Op, Per, ProbeFunction
from pasta.probes.language.source import Source, definition, parameters_of, without_docstring
from pasta.probes.language.statements import Translator

if TYPE_CHECKING:
    from pasta.options import Option
    from pasta.probes.maps import Map

__all__ = ["MAX_ITERATIONS", "Helper", "Op", "Per", "ProbeFunction", "translate"]


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
    source = Source.of(function)
    parameters = parameters_of(source, ("access", "maps", "options"), minimum=2)
    translator = Translator(source, helpers, parameters, maps, options, kinds, per)
    body, _ = translator.function_body()
    fields = tuple(sorted(translator.fields))
    tree = definition(source, function.__name__, (*fields, "env"), body)
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
        helpers=(*_support(translator.divides), *helpers.values()),
    )
    probe.definitions({name: each.default for name, each in options.items()})
    return probe


def _support(names: Iterable[str]) -> list[ast.FunctionDef]:
    """Definitions of functions of division.py, which the probe calls."""
    found = []
    for function in (division.integer__divide, division.integer__remainder):
        if function.__name__ in names:
            source = Source.of(cast(FunctionType, function))
            body = without_docstring(source.tree.body)
            made = definition(source, function.__name__, ("a", "b"), body)
            made.probe_file = source.file  # type: ignore[attr-defined]
            found.append(made)
    return found
