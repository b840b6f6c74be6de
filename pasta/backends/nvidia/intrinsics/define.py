"""Definition of intrinsics by LLVM IR, or by PTX as inline assembly."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from pasta.backends.nvidia.structs import constants

I1, I32, I64 = (ir.IntType(bits) for bits in (1, 32, 64))

Values = list[Any]
#: Emits the code of an intrinsic: (IR builder, values of the arguments) to its value, a tuple of
#: values, or None. Values have 64 bits.
Generate = Callable[[Any, Values], Any]


@dataclass(frozen=True)
class Intrinsic:
    """A function that patches call, which takes `arity` integers."""

    name: str
    arity: int
    generate: Generate

    def __call__(self, *arguments: int) -> Any:
        """For type checkers: only patches call it."""
        raise TypeError(f"{self.name}() is only for patches")


def narrow(builder: Any, value: Any, kind: Any = I32) -> Any:
    """The low bits of a value."""
    return builder.trunc(value, kind)


def wide(builder: Any, value: Any) -> Any:
    """The value as 64 bits, without sign."""
    return builder.zext(value, I64) if value.type.width < 64 else value


def truth(builder: Any, value: Any) -> Any:
    """Whether a value is not 0 (i1)."""
    return builder.icmp_unsigned("!=", value, ir.Constant(value.type, 0))


def call_llvm(builder: Any, name: str, result: Any, arguments: Values) -> Any:
    """Call an intrinsic of LLVM that lanes execute together: it must not move across branches."""
    function = builder.module.globals.get(name)
    if function is None:
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        function = ir.Function(builder.module, kind, name)
        function.attributes.add("convergent")
        function.attributes.add("nounwind")
    return builder.call(function, arguments)


def emit_ptx(
    builder: Any, text: str, constraints: str, arguments: Values, result: Any = None
) -> Any:
    """Emit PTX as inline assembly; `result` is its LLVM type, None: no result."""
    kind = ir.FunctionType(result or ir.VoidType(), [argument.type for argument in arguments])
    return builder.call(ir.InlineAsm(kind, text, constraints, side_effect=True), arguments)


def tuple_of(builder: Any, found: Any) -> tuple[Any, ...]:
    """The values of a struct that inline assembly returns."""
    return tuple(
        wide(builder, builder.extract_value(found, i)) for i in range(len(found.type.elements))
    )


#: End of the range of an object, by its index from 1.
_RANGE_OF = r"ld.global.b64 \1, [\2+L_RANGES];\nmad.wide.u32 \1, \3, RANGE, \1;"


def with_offsets(text: str) -> str:
    """PTX with names replaced by the numbers of `structs.constants`."""
    text = re.sub(r"RANGE_OF (\S+), (\S+), (\S+);", _RANGE_OF, text)
    values = constants()
    return re.sub(r"\w+", lambda word: str(values.get(word[0], word[0])), text)


def fill_in(text: str, names: Mapping[str, str]) -> str:
    """PTX with `names` replaced by their values, then the offsets of `with_offsets`."""
    for name, value in names.items():
        text = re.sub(rf"\b{name}\b", value, text)
    return with_offsets(text)
