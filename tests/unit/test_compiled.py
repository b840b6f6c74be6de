"""Compiled functions: what they take, what their code depends on, and its cache."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pasta.compiled import Compiled, building, compiled, internal, store
from pasta.compiled.building import _shares, build_missing, declared

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs files of two users")

ROW = np.dtype([("a", "u4"), ("b", "i8", (3,))])
FACTOR = 10


@internal
def scaled(value):  # type: ignore[no-untyped-def]
    return value * FACTOR


@compiled(first=["i8"], second=[["u4"]], rows=[ROW], number="i8")
def total(first, second, rows, number):  # type: ignore[no-untyped-def]
    """Adds up everything, and writes to `second` and `rows`."""
    sum = scaled(number)
    for i in range(len(first)):
        sum += first[i]
    for i in range(second.shape[0]):
        for j in range(second.shape[1]):
            sum += np.int64(second[i, j])
            second[i, j] = i
    for i in range(len(rows)):
        sum += rows[i]["b"][2]
        rows[i]["a"] = 7
    return sum


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache; its directory of code."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield tmp_path / "pasta" / "code"


def arguments() -> tuple[Any, ...]:
    rows = np.zeros(4, ROW)
    rows["b"] = 1, 2, 3
    return np.arange(6), np.arange(12, dtype=np.uint32).reshape(3, 4), rows, -1


def test_takes_arrays_records_and_integers() -> None:
    first, second, rows, number = arguments()
    assert total(first, second, rows, number) == 15 + 66 + 12 - 10
    assert second.tolist() == [[0] * 4, [1] * 4, [2] * 4]
    assert rows["a"].tolist() == [7] * 4


def test_other_processors_compile_in_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.platform, "machine", lambda: "aarch64")
    first, second, rows, number = arguments()
    again = Compiled(total.function, total.parameters)
    assert again.is_stored()
    assert again(first, second, rows[::2], number) == 15 + 66 + 6 - 10
    assert second.tolist() == [[0] * 4, [1] * 4, [2] * 4]
    assert rows["a"].tolist() == [7, 0, 7, 0]


def test_arrays_need_not_be_contiguous() -> None:
    first, second, rows, number = arguments()
    first.flags.writeable = False
    assert total(first[::2], second[:, ::2], rows[1::2], number) == 6 + 30 + 6 - 10
    assert second.tolist() == [[0, 1, 0, 3], [1, 5, 1, 7], [2, 9, 2, 11]]
    assert rows["a"].tolist() == [0, 7, 0, 7]
    assert first.tolist() == list(range(6))


@pytest.mark.parametrize(
    ("position", "other", "message"),
    [
        (0, np.zeros(3, np.int32), "first has 1 dimensions of int32, not 1 of int64"),
        (1, np.zeros(3, np.uint32), "second has 1 dimensions of uint32, not 2 of uint32"),
        (2, np.zeros(3, [("a", "u4")]), "rows has"),
    ],
)
def test_arrays_of_other_types_are_rejected(position: int, other: Any, message: str) -> None:
    given = list(arguments())
    given[position] = other
    with pytest.raises(TypeError, match=message):
        total(*given)
    with pytest.raises(TypeError, match="takes 4 arguments"):
        total(1)


def function(text: str, **names: Any) -> Compiled:
    """`f(x)` with this result."""
    scope: dict[str, Any] = {"__name__": "tests", "np": np, **names}
    exec(f"def f(x):\n    return {text}", scope)
    return Compiled(scope["f"], {"x": "i8"})


def test_what_code_depends_on() -> None:
    @internal
    def callee(x: int) -> int:
        return x + 1

    @internal(inline=True)
    def other_callee(x: int) -> int:
        return x + 1

    same = function("g(x) + K", g=callee, K=2, unused=1)
    assert same.key == function("g(x) + K", g=callee, K=2, unused=2).key
    others = [
        function("g(x) + K", g=callee, K=3),
        function("g(x) + K", g=callee, K=np.uint8(2)),
        function("g(x) + K", g=other_callee, K=2),
        function("g(x) - K", g=callee, K=2),
        Compiled(same.function, {"x": "u8"}),
        Compiled(same.function, {"x": [ROW]}),
        Compiled(same.function, {"x": [np.dtype([("a", "u4"), ("b", "i8", (4,))])]}),
    ]
    keys = [each.key for each in (same, *others)]
    assert len(set(keys)) == len(keys)
    with pytest.raises(TypeError, match="cannot depend on <object"):
        _ = function("K", K=object()).key


def test_key_depends_on_the_cpu_and_the_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    before = total.key
    monkeypatch.setattr(store, "level", lambda: "x86-64")
    baseline = total.key
    monkeypatch.setattr(store, "_compilers", lambda: b"another Numba")
    assert len({before, baseline, total.key}) == 3


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        ("sse4_1 sse4_2 ssse3 cx16 lahf_lm popcnt avx avx2 bmi1 bmi2 f16c fma abm movbe xsave",
         "x86-64-v3"),
        ("sse4_1 sse4_2 ssse3 cx16 lahf_lm popcnt avx avx2 bmi1 bmi2 f16c fma abm movbe",
         "x86-64-v2"),
        ("avx avx2 bmi1 bmi2 f16c fma abm movbe xsave", "x86-64"),
        ("", "x86-64"),
    ],
)  # fmt: skip
def test_levels_of_cpus(flags: str, level: str) -> None:
    assert store.level_with(f"flags\t\t: {flags} fpu") == level


def test_function_that_could_raise_or_allocate_is_rejected(cache: Path) -> None:
    from numba.core.errors import NumbaError

    from pasta.compiled.linking import CodeError

    with pytest.raises(CodeError, match=r"tests\.f: it can raise an exception"):
        function("len(range(0, 10, x))")(1)
    with pytest.raises(CodeError, match="returns float64, not int64"):
        function("x / 2.0")(1)
    with pytest.raises(NumbaError, match="Only accept returning of array passed"):
        function("np.zeros(x).size")(1)
    assert not [path for path in cache.iterdir() if path.suffix != ".lock"]


def test_internal_functions_are_interpreted_when_called_from_python() -> None:
    assert scaled(3) == 30


# ---- the cache

RETURN_7 = store.content_of(b"\x90\xb8\x07\x00\x00\x00\xc3", 1)  # nop; mov eax, 7; ret


def stored_seven(cache: Path) -> tuple[Compiled, Path]:
    """A function, and its code in the cache, which returns 7."""
    found = function("x")
    store.put(found.key, RETURN_7)
    return found, cache / found.key


def test_stored_code_is_loaded_without_a_compiler(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pasta.compiled.image", None)
    found, path = stored_seven(cache)
    assert found.is_stored() and found(1) == 7
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    with pytest.raises(ImportError):
        function("x + 1")(1)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content + b"\0",
        lambda content: content[:-2] + b"\xff\xff",
        lambda content: content.replace(b"code 1", b"code 0"),
        lambda content: b"",
    ],
)
def test_damaged_code_is_compiled_again(cache: Path, damage: Any) -> None:
    found, path = stored_seven(cache)
    path.write_bytes(damage(RETURN_7))
    assert not found.is_stored()


def test_damaged_code_is_replaced(cache: Path) -> None:
    found, path = stored_seven(cache)
    path.write_bytes(b"")
    assert found(5) == 5
    assert Compiled(found.function, {"x": "i8"}).is_stored() and path.stat().st_size > 0


@as_root
def test_code_of_other_users_is_not_loaded(cache: Path) -> None:
    found, path = stored_seven(cache)
    os.chown(path, 65534, 65534)
    assert not found.is_stored()
    found, path = stored_seven(cache)
    path.chmod(0o666)
    assert not found.is_stored()
    path.chmod(0o600)
    assert found.is_stored()
    elsewhere = path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(elsewhere)
    assert not found.is_stored()


def test_works_without_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pasta").write_text("no directory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = function("x + 2")
    assert found(5) == 7 and not store.is_writable()
    assert not Compiled(found.function, {"x": "i8"}).is_stored()


def test_one_of_two_compiles(cache: Path) -> None:
    """A second process waits for the lock, and finds the code."""
    found = function("x + 3")
    with store.locked(found.key):
        other = threading.Thread(target=found.prepare)
        other.start()
        other.join(0.1)
        assert other.is_alive()
        store.put(found.key, RETURN_7)
    other.join()
    assert found(1) == 7


def test_one_of_two_starts_numba(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second process does not start compilers for what a first one compiles; for others it
    does."""
    first = [function("x + 4"), function("x + 5")]
    others = [*first, function("x + 6"), function("x + 7")]
    started: list[int] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(building, "_run", lambda shares: started.append(sum(map(len, shares))))
    with store.locked(building._KEY):
        threads = [threading.Thread(target=build_missing, args=(each,)) for each in (first, others)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(0.1)
            assert thread.is_alive()
        for each in first:
            store.put(each.key, RETURN_7)
    for thread in threads:
        thread.join()
    assert started == [2]


def test_functions_are_shared_out_evenly() -> None:
    functions = declared("pasta.processors.operators")
    assert {each.place[1] for each in functions} == {"_insert_gaps", "_follow", "_insert_all"}
    shares = _shares(functions, 2)
    assert [[each.place[1] for each in share] for share in shares] == [
        ["_follow"], ["_insert_all", "_insert_gaps"],
    ]  # fmt: skip
