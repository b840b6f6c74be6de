"""LLVM IR of patches: what it computes, run on the CPU, against Python and NumPy."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta.backends.nvidia.intrinsics import load_u64, popc
from pasta.backends.nvidia.lowering import PatchError, PatchFunction, lowered
from pasta.backends.nvidia.plan import functions_of
from pasta.probes.language.division import integer__divide, integer__remainder
from tests.support.patch_intrinsics import store_u64
from tests.support.patches_on_cpu import stored

SMALL = st.integers(-9, 9)
I64 = st.integers(-(2**63), 2**63 - 1) | SMALL

# ---- expressions: text of integers a, b, c, and of truth values ------------------------------

BINARY = ("+", "-", "*", "&", "|", "^")


def texts(form: str, *parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(*parts).map(lambda each: form.format(*each))


def combined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def pairs(*signs: str) -> st.SearchStrategy[str]:
        return texts("({} {} {})", parts, st.sampled_from(signs), parts)

    tests = pairs("==", "!=", "<", "<=", ">", ">=")
    tests |= texts("({} {} {})", tests, st.sampled_from(("and", "or")), tests)
    tests |= texts("(not {})", tests)
    divisors = st.sampled_from(("1", "3", "7", "8", "64"))
    return st.one_of(
        pairs(*BINARY),
        pairs("and", "or"),
        texts("({} {} ({} & 63))", parts, st.sampled_from(("<<", ">>")), parts),
        texts("({} {} {})", parts, st.sampled_from(("//", "%")), divisors),
        texts("(-{})", parts),
        texts("(~{})", parts),
        texts("int({})", tests),
        texts("({} if {} else {})", parts, tests, parts),
        texts("{}({}, {}, {})", st.sampled_from(("min", "max")), parts, parts, parts),
        texts("int(bool({}))", parts),
    )


EXPRESSIONS = st.recursive(
    st.sampled_from(("a", "b", "c")) | st.sampled_from(("0", "1", "5", "1000003")), combined
)


@given(text=EXPRESSIONS, values=st.tuples(I64, I64, I64))
def test_expressions_compute_as_integers_of_64_bits(
    text: str, values: tuple[int, int, int]
) -> None:
    source = (
        "from tests.support.patch_intrinsics import store_u64\n"
        f"def patch(place, a, b, c):\n    store_u64(place, {text})\n    return 0\n"
    )
    (patch,) = functions_of(source, {"patch": ("u64", "u64")}, "expression")
    names = dict(zip("abc", map(np.int64, values), strict=True)) | {"int": np.int64}
    wrapping = re.sub(r"\b\d+", r"int(\g<0>)", text)  # numbers of Python do not overflow
    with np.errstate(all="ignore"):
        wanted = np.int64(eval(wrapping, {}, names))
    assert stored(patch.function, 1, *values) == [int(wanted)]


def divides(place, a, b):
    store_u64(place, integer__divide(a, b))
    store_u64(place + 8, integer__remainder(a, b))
    return 0


@given(a=I64, b=I64)
def test_division_rounds_down(a: int, b: int) -> None:
    wanted = [a // b, a % b] if b else [0, 0]
    assert stored(divides, 2, a, b) == [(each + 2**63) % 2**64 - 2**63 for each in wanted]


# ---- statements: the same functions, called by Python ----------------------------------------


def first_even(a, b):
    found = -1
    for i in range(a, b):
        if i & 1:
            continue
        found = i
        break
    return found


def collatz(a, b):
    steps = 0
    while a > 1 and steps < b + 50:
        a = a // 2 if a % 2 == 0 else 3 * a + 1
        steps += 1
    return steps


def nested(a, b):
    total = 0
    for i in range(3):
        for j in range(b, a, -2):
            if j == 2:
                break
            total += (i + 1) * j
        else_ = total
        total += else_ & 1
    return total


def forever(a, b):
    n = 0
    while True:
        n += 1
        if n > a + b:
            return n


def over_a_tuple(a, b):
    most = 0
    for bit in (32, 16, 8, 4, 2, 1):
        if bit == 8 and b < 0:
            continue
        if bit == 2 and a < 0:
            break
        if abs(a) >= most + bit:
            most += bit
    return most


def pair(a, b):
    if a > b:
        return b, a
    return a, b


def tuples(a, b):
    least, most = pair(a, b)
    both = (least, (most, 3))
    x = y = 2
    return both[0] * 5 + inner(both[1]) + x * y


def inner(given):
    return given[0] - given[1]


def summed(a, *rest):
    return a + second(*rest)


def second(b, c):
    return b * c


def variadic(a, b):
    return summed(a, b, 7)


def early(a, b):
    """A docstring."""
    if a == b:
        return 1
    if not a < b:
        return 2
    return 3


def unused_after(a, b):
    for i in range(5):
        if i == a:
            return i + b
    return -1


STATEMENTS = (
    first_even, collatz, nested, forever, over_a_tuple, tuples, variadic, early, unused_after,
)  # fmt: skip


@cache
def storing(function: Callable[[int, int], int]) -> Callable[..., int]:
    """A patch that stores the function's result."""
    name = function.__name__
    text = (
        f"from {__name__} import {name}\n"
        "from tests.support.patch_intrinsics import store_u64\n"
        f"def patch(place, a, b):\n    store_u64(place, {name}(a, b))\n    return 0\n"
    )
    (made,) = functions_of(text, {"patch": ("u64",)}, name)
    return made.function


@pytest.mark.parametrize("function", STATEMENTS)
@given(a=SMALL, b=SMALL)
def test_statements_run_as_in_python(function: Callable[[int, int], int], a: int, b: int) -> None:
    assert stored(storing(function), 1, a, b) == [function(a, b)]


def returns_early(place, a):
    store_if(place, a)
    store_u64(place + 8, a)
    return 0


def store_if(place, a):
    if a == 0:
        return
    store_u64(place, load_u64(place) + popc(a))


def test_function_without_a_result() -> None:
    assert stored(returns_early, 2, 7) == [3, 7]
    assert stored(returns_early, 2, 0) == [0, 0]


def test_loops_are_not_unrolled() -> None:
    text = str(lowered([PatchFunction("patch", nested, ("u64", "u64"))]))
    assert text.count("!llvm.loop") == 2
    assert '"llvm.loop.unroll.disable"' in text


# ---- rejected code ---------------------------------------------------------------------------


def raises(place, value):
    if value == 7:
        raise ValueError
    return 0


def unknown_step(place, value):
    for i in range(0, value, load_u64(place)):
        store_u64(place, i)
    return 0


def divides_inexactly(place, value):
    store_u64(place, int(value / 3))
    return 0


def stores_a_fraction(place, value):
    store_u64(place, 0.5)
    return 0


def prints(place, value):
    print(value)
    return 0


def calls_a_method(place, value):
    return value.bit_length()


def returns_nothing(place, value):
    if value:
        return 1
    return None


def returns_a_pair(place, value):
    return place, value


def returns_both(place, value):
    return either(value)


def either(value):
    if value:
        return value, 1
    return value


def recursive(place, value):
    return recursive(place, value - 1)


def indirectly(place, value):
    back = again_and_again(place, value)
    return back + 1


def again_and_again(place, value):
    return indirectly(place, value)


def too_few(place, value):
    return second(value)


def too_wide(place, value):
    return value & 0xFFFF_FFFF_FFFF_FFFF


def a_list(place, value):
    return [value][0]


def unknown_item(place, value):
    both = (place, value)
    return both[value]


def no_such_item(place, value):
    both = (place, value)
    return both[2]


def unpacks_three(place, value):
    a, b = (place, value, 3)
    return a + b


def a_tuple_alone(place, value):
    both = (place, value)
    return both + 1


def deletes(place, value):
    del value
    return 0


def no_argument(place, value):
    return popc()


def undefined(place, value):
    return nothing_of_the_name  # noqa: F821


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (raises, "patch does not compile: raise ValueError: patches have no such statement"),
        (unknown_step, r"range\(0, value, load_u64\(place\)\): the step is not a constant"),
        (divides_inexactly, "value / 3: patches have no floating-point numbers: use // for /"),
        (stores_a_fraction, r"0\.5: patches have no floating-point numbers"),
        (prints, r"print\(value\): patches cannot call it"),
        (calls_a_method, r"value\.bit_length\(\): patches cannot call it"),
        (returns_nothing, "None: it is not an integer"),
        (returns_a_pair, "patch does not return an integer"),
        (returns_both, r"return \(value, 1\): the function returns values of other kinds, too"),
        (recursive, "recursive calls itself"),
        (indirectly, "indirectly calls itself"),
        (too_few, "second takes 2 arguments, not 1"),
        (too_wide, "it has more than 64 bits, of which one is the sign"),
        (a_list, "patches have no such expression|not an item"),
        (unknown_item, r"both\[value\]: it is not an item, by a constant"),
        (no_such_item, r"both\[2\]: the tuple has 2 items"),
        (unpacks_three, r"\(a, b\): the value cannot be assigned to it"),
        (a_tuple_alone, "both: it is not an integer"),
        (deletes, "del value: patches have no such statement"),
        (no_argument, r"popc\(\): popc takes 1 arguments"),
        (undefined, "nothing_of_the_name: it is not an integer"),
    ],
)
def test_unsupported_code_is_rejected(function: Callable[..., int], message: str) -> None:
    with pytest.raises(PatchError, match=message):
        lowered([PatchFunction("patch", function, ("u64", "u64"))])


def test_function_without_source_is_rejected() -> None:
    namespace: dict[str, Callable[..., int]] = {}
    exec("def patch(place):\n    return 0", namespace)
    with pytest.raises(PatchError, match="patch has no source: <string>"):
        lowered([PatchFunction("patch", namespace["patch"], ("u64",))])
