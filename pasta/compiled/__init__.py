"""Functions compiled to machine code once per machine, and loaded without a compiler afterwards.

Numba and LLVM compile a function when it is first called on a machine, which takes seconds. Its
code is kept in the user's cache; processes that find it there import neither of them.

`@compiled(name=type, …)` is for functions called from Python, with the types of all parameters:

    "i8", "u8"   an integer of 64 bits, with or without sign
    ["u4"]       an array; [dtype] one of records; [["i8"]] an array of two dimensions

They run without the interpreter lock, return None or an int64, cannot allocate memory or raise, and
call only functions marked `@internal`, which may have parameters of any type, and `@intrinsic`.

On processors other than x86-64, Numba compiles them in each process.
"""

from __future__ import annotations

import builtins
import ctypes
import hashlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from pasta.compiled import store
from pasta.lazy import LazyModule, np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)


def memory(array: NDArray[Any]) -> int:
    """Address of an array's memory; the caller keeps the array alive."""
    return int(array.__array_interface__["data"][0])


class _Source:
    """A Python function to compile."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function: Any = function
        self.__doc__ = function.__doc__

    @cached_property
    def digest(self) -> bytes:
        """Hash of all that the function's code depends on: bytecode, constants, globals, callees.

        Raises TypeError for a global of another type.
        """
        whole = hashlib.sha256(repr(self._options()).encode())
        for part in _parts(self.function):
            whole.update(part)
        return whole.digest()

    @cached_property
    def size(self) -> int:
        """Bytes of the bytecode of the function and of all that it calls."""
        called = (
            self.function.__globals__.get(name) for name in set(_names(self.function.__code__))
        )
        return len(self.function.__code__.co_code) + sum(
            each.size for each in called if isinstance(each, _Source)
        )

    def _options(self) -> tuple[Any, ...]:
        return (type(self).__name__,)

    @cached_property
    def dispatcher(self) -> Any:
        """What Numba compiles calls of this function as."""
        from numba import njit

        from pasta.compiled.lowering import CALLEE

        return njit(**CALLEE, forceinline=self._inlined())(_substituted(self.function))

    def _inlined(self) -> bool:
        return False


class Internal(_Source):
    """A function called by compiled functions only. Called from Python it is interpreted."""

    def __init__(self, function: Callable[..., Any], inline: bool) -> None:
        super().__init__(function)
        self.inline = inline

    def _options(self) -> tuple[Any, ...]:
        return ("internal", self.inline)

    def _inlined(self) -> bool:
        return self.inline

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


class Intrinsic(_Source):
    """A function that generates LLVM IR, as `numba.extending.intrinsic` takes it."""

    @cached_property
    def dispatcher(self) -> Any:
        """Numba's intrinsic."""
        from numba.extending import intrinsic

        make: Any = intrinsic
        return make(self.function)


class Compiled(_Source):
    """A function with machine code, to be called from Python."""

    def __init__(self, function: Callable[..., Any], parameters: Mapping[str, Any]) -> None:
        super().__init__(function)
        code = self.function.__code__
        names = code.co_varnames[: code.co_argcount]
        if tuple(parameters) != names:
            raise TypeError(f"{function.__qualname__} has the parameters {', '.join(names)}")
        self.parameters = dict(parameters)
        #: Text of the generated module that it is from, if any.
        self.text: str | None = None
        self._native: Any = None

    def _options(self) -> tuple[Any, ...]:
        return ("compiled", [(name, _described(of)) for name, of in self.parameters.items()])

    @property
    def place(self) -> tuple[str, str]:
        """Module and name."""
        return self.function.__module__, self.function.__name__

    @property
    def name(self) -> str:
        """Name for messages."""
        return ".".join(self.place)

    @property
    def key(self) -> str:
        """Name of the code in the cache: its source, its compilers, and the level of the CPU."""
        return store.key_of(self.digest)

    def is_stored(self) -> bool:
        """Whether the code need not be compiled."""
        if not store.has_linker():
            return True
        return self._native is not None or store.find(self.key) is not None

    def prepare(self) -> None:
        """Load the code, compiled if it is not in the cache. Raises NumbaError, CodeError."""
        if self._native is not None or not store.has_linker():
            return
        key = self.key
        content = store.find(key)
        if content is None:
            with store.locked(key):  # one process compiles, the others wait
                content = store.find(key)
                if content is None:
                    from pasta.compiled.image import build

                    content = build(self.name, _substituted(self.function), self._kinds)
                    store.put(key, content)
        self._native = _call(store.load(content))

    def __call__(self, *arguments: Any) -> int:
        """The function's int64; 0 if it returns nothing.

        Arrays that are not contiguous are copied, and copied back if they can be written.
        Raises TypeError for arrays of another type, and what `prepare` raises.
        """
        if len(arguments) != len(self._kinds):
            raise TypeError(f"{self.name} takes {len(self._kinds)} arguments")
        passed: list[Any] = []
        kept: list[tuple[NDArray[Any], NDArray[Any]]] = []
        for argument, name, (dtype, dimensions) in zip(
            arguments, self.parameters, self._kinds, strict=True
        ):
            if not dimensions:
                passed.append(argument)
                continue
            if argument.ndim != dimensions or argument.dtype != dtype:
                raise TypeError(
                    f"{self.name}: {name} has {argument.ndim} dimensions of {argument.dtype}, "
                    f"not {dimensions} of {dtype}"
                )
            given = argument
            if not argument.flags.c_contiguous:
                given = argument.copy()
                kept.append((argument, given))
            passed.append(given)
        returned = self._run(passed) if store.has_linker() else self._run_with_numba(passed)
        for original, copy in kept:
            if original.flags.writeable:
                original[...] = copy
        return returned

    def _run(self, arguments: list[Any]) -> int:
        self.prepare()
        words: list[int] = []
        for argument, (_, dimensions) in zip(arguments, self._kinds, strict=True):
            if dimensions:
                words.append(argument.ctypes.data)
                words += argument.shape
            else:
                words.append(int(argument) & _MASK)
        returned: int = self._native((ctypes.c_uint64 * len(words))(*words))
        return returned

    def _run_with_numba(self, arguments: list[Any]) -> int:
        if self._native is None:
            from numba import njit

            make: Any = njit
            self._native = make(nogil=True, error_model="numpy")(_substituted(self.function))
        typed = [
            argument if dimensions else np.array(int(argument) & _MASK, np.uint64).view(dtype)[()]
            for argument, (dtype, dimensions) in zip(arguments, self._kinds, strict=True)
        ]
        return int(self._native(*typed) or 0)

    @cached_property
    def _kinds(self) -> list[tuple[Any, int]]:
        """dtype and dimensions of each parameter."""
        return [_kind(each) for each in self.parameters.values()]


def compiled(**parameters: Any) -> Callable[[Callable[..., Any]], Compiled]:
    """Decorator for a function called from Python, with the types of its parameters."""
    return lambda function: Compiled(function, parameters)


@cache
def generated(text: str, name: str) -> Compiled:
    """A compiled function of a module with this text."""
    module: dict[str, Any] = {"__name__": "pasta.generated"}
    exec(compile(text, "pasta.generated", "exec"), module)
    function: Compiled = module[name]
    function.text = text
    return function


def internal(function: Callable[..., Any] | None = None, *, inline: bool = False) -> Any:
    """Decorator for a function called by compiled ones; `inline`: always inlined into them."""
    if function is None:
        return lambda given: Internal(given, inline)
    return Internal(function, inline)


def intrinsic(function: Callable[..., Any]) -> Any:
    """Decorator for a function that generates LLVM IR."""
    return Intrinsic(function)


def _kind(parameter: Any) -> tuple[Any, int]:
    """dtype and dimensions of a parameter; 0 dimensions: an integer."""
    dimensions = 0
    while isinstance(parameter, list):
        (parameter,) = parameter
        dimensions += 1
    return np.dtype(parameter), dimensions


def _substituted(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a function whose globals are Numba's objects instead of this module's."""
    original: Any = function
    names = set(_names(original.__code__))
    scope = {
        name: value.dispatcher if name in names and isinstance(value, _Source) else value
        for name, value in original.__globals__.items()
    }
    copy = FunctionType(
        original.__code__, scope, original.__name__, original.__defaults__, original.__closure__
    )
    copy.__module__, copy.__qualname__ = original.__module__, original.__qualname__
    return copy


# ---- digests


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _parts(function: Any) -> Iterator[bytes]:
    code = function.__code__
    yield from _code(code)
    for cell in function.__closure__ or ():
        yield _described(cell.cell_contents).encode()
    for name in sorted(set(_names(code))):
        if name in function.__globals__:
            yield f"{name}={_described(function.__globals__[name])}\n".encode()


def _code(code: CodeType) -> Iterator[bytes]:
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    yield f"{names}{code.co_argcount}".encode()
    yield code.co_code
    constants = code.co_consts
    if constants and isinstance(constants[0], str):  # the docstring
        constants = constants[1:]
    for constant in constants:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        else:
            yield _described(constant).encode()


def _described(value: Any) -> str:
    """Text that is equal for equal values only."""
    if isinstance(value, _Source):
        return value.digest.hex()
    if isinstance(value, FunctionType):
        return _digest_of(value)
    if isinstance(value, (ModuleType, LazyModule)):
        return value.__name__
    if isinstance(value, (type, BuiltinFunctionType)):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_described, value))})"
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return repr(value)
    if isinstance(value, np.dtype):
        if value.subdtype:
            return _described(value.subdtype)
        fields = sorted((value.fields or {}).items())
        return f"{value.str}{_described(fields)}"
    if isinstance(value, np.generic):
        return f"{value.dtype.str}{value.item()!r}"
    if getattr(value, "__module__", None) in ("typing", builtins.__name__):
        return repr(value)
    raise TypeError(f"compiled code cannot depend on {value!r}")


@cache
def _digest_of(function: FunctionType) -> str:
    whole = hashlib.sha256()
    for part in _parts(function):
        whole.update(part)
    return whole.hexdigest()
