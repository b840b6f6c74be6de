"""Machine code of a function that can be placed at any address.

Numba lowers the function, and LLVM optimizes it and its callees together. The code gets one
argument, the address of words of 64 bits: integers, and for each array its address and lengths.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm
from numba.core import types
from numba.np.numpy_support import from_dtype

from pasta.compiled.linking import CodeError, linked
from pasta.compiled.lowering import lowered
from pasta.compiled.store import content_of, level

_SYMBOL = "pasta_function"
#: Function that is called if a lowered one raises. There is none of this name: if LLVM cannot
#: prove that nothing raises, it is left in the code, and found there.
_RAISED = "pasta_raised"


def build(name: str, function: Callable[..., Any], parameters: Sequence[tuple[Any, int]]) -> bytes:
    """Entry of the cache for a function, whose parameters have these dtypes and dimensions (0: an
    integer). Raises NumbaError, CodeError."""
    arguments = [
        types.Array(from_dtype(dtype), dimensions, "C") if dimensions else from_dtype(dtype)
        for dtype, dimensions in parameters
    ]
    made = lowered(function, arguments)
    if made.result not in (types.none, types.int64):
        raise CodeError(f"{name} returns {made.result}, not int64")
    wrapper = _wrapper(made.symbol, parameters, returns=made.result != types.none)
    try:
        return content_of(*linked(_object([*made.modules, wrapper]), _SYMBOL))
    except CodeError as error:
        why = "it can raise an exception" if _RAISED in str(error) else str(error)
        raise CodeError(f"{name}: {why}") from None


def _wrapper(symbol: str, parameters: Sequence[tuple[Any, int]], *, returns: bool) -> str:
    """IR of the function that is called: it passes words in Numba's calling convention."""
    lines = ["%value = alloca i64", "%error = alloca ptr", "store i64 0, ptr %value"]
    words = 0

    def word(type: str = "i64") -> str:
        nonlocal words
        lines.append(f"%at{words} = getelementptr i64, ptr %words, i64 {words}")
        lines.append(f"%w{words} = load {type}, ptr %at{words}")
        words += 1
        return f"{type} %w{words - 1}"

    def product(a: str, b: str) -> str:
        name = f"%n{len(lines)}"
        lines.append(f"{name} = mul i64 {a.removeprefix('i64 ')}, {b.removeprefix('i64 ')}")
        return f"i64 {name}"

    given = ["ptr %value", "ptr %error"]
    for dtype, dimensions in parameters:
        if not dimensions:
            given.append(word())
            continue
        address, shape = word("ptr"), [word() for _ in range(dimensions)]
        strides = [f"i64 {dtype.itemsize}"]
        for length in reversed(shape[1:]):
            strides.insert(0, product(strides[0], length))
        items = shape[0]
        for length in shape[1:]:
            items = product(items, length)
        # the owner of the memory, twice: neither
        given += ["ptr null", "ptr null", items, f"i64 {dtype.itemsize}", address, *shape, *strides]
    lines += [
        f"%status = call i32 @{symbol}({', '.join(given)})",
        "%failed = icmp ne i32 %status, 0",
        "br i1 %failed, label %raised, label %returned",
        "raised:",
        f"call void @{_RAISED}()",
        "br label %returned",
        "returned:",
        f"%result = load i64, ptr %value\nret i64 {'%result' if returns else '0'}",
    ]
    declared = ", ".join(each.split()[0] for each in given)
    body = "\n".join(lines)
    return (
        f"declare i32 @{symbol}({declared})\ndeclare void @{_RAISED}()\n"
        f"define i64 @{_SYMBOL}(ptr %words) {{\n{body}\n}}\n"
    )


def _object(modules: Sequence[str]) -> bytes:
    """Object file of modules; the last one contains the function."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(
        cpu=level(), opt=3, reloc="pic", codemodel="small"
    )
    whole = llvm.parse_assembly(_internal(modules[-1]))
    for text in modules[:-1]:
        whole.link_in(llvm.parse_assembly(_internal(text)))
    for each in whole.functions:
        if not each.is_declaration and each.name != _SYMBOL:
            each.linkage = llvm.Linkage.internal
    whole.verify()
    builder = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(whole, builder)
    return bytes(target.emit_object(whole))


def _internal(text: str) -> str:
    """IR without Numba's environments, in which LLVM introduces no calls of the C library.

    It uses the instructions of the CPU's level, but is scheduled for this model: searches would
    otherwise branch, which makes them three times slower.
    """
    text = re.sub(r"^@_ZN08NumbaEnv.*$", "", text, flags=re.M)
    return re.sub(
        r"^(define .*\)[^){]*)\{$",
        rf'\1 "no-builtins" "tune-cpu"="{llvm.get_host_cpu_name()}" {{',
        text,
        flags=re.M,
    )
