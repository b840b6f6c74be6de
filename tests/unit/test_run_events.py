"""Events as Parquet round-trip, in order, with absent values as nulls."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta import abi
from pasta.errors import RunError
from pasta.processors.batch import Batch
from pasta.processors.strings import Strings
from pasta.run.events import Recorder, parts, read_batches
from tests.support.examples import examples

TEXTS = {8: "gemm", 16: "ядро<T>", 24: 'a "quoted"\nname'}


def strings() -> Strings:
    result = Strings()
    for number, text in TEXTS.items():
        result.add(number, text)
    return result


def records(kind: str, count: int, seed: int) -> Any:
    """Random records: every field of every width, absent values and valid string ids included."""
    random = np.random.default_rng(seed)
    dtype = abi.dtype(kind)
    array = np.zeros(count, dtype)
    for field in dtype.names or ():
        base = dtype[field].base
        if base.kind == "f":
            array[field] = random.standard_normal(count)
            array[field][random.random(count) < 0.2] = np.nan  # absent
            continue
        limits = np.iinfo(base)
        array[field] = random.integers(
            limits.min, limits.max, array[field].shape, base, endpoint=True
        )
        if base.kind == "u":
            absent = random.random(array[field].shape) < 0.2
            array[field][absent] = limits.max
    for field in abi.string_fields(kind):
        array[field] = random.choice([0, *TEXTS], count)
    for field, names in abi.enum_fields(kind).items():
        array[field] = random.choice([*names, 0xFFFF_FFFF], count)
    array["kind"] = abi.KINDS[kind]
    array["slots"] = dtype.itemsize // abi.SLOT
    return array


def batches(kinds: list[str], sizes: list[int], seed: int) -> Iterator[Batch]:
    random = np.random.default_rng(seed)
    base = 0
    for number, size in enumerate(sizes):
        order = random.permutation(np.repeat(np.arange(len(kinds)), size))
        made = {}
        for index, kind in enumerate(kinds):
            array = records(kind, size, seed + number * 100 + index)
            array["index"] = np.flatnonzero(order == index)
            made[kind] = array
        yield Batch(base, made)
        base += len(order)


def rows(all_batches: list[Batch], texts: Strings) -> list[tuple[Any, ...]]:
    """Every record as a tuple that is comparable between runs, in the global order."""
    found = []
    for batch in all_batches:
        for kind, array in batch:
            for record in array:
                fields = []
                for name in array.dtype.names or ():
                    if name == "index":
                        continue
                    value = record[name]
                    if value.dtype.kind == "f" and np.isnan(value):
                        value = "absent"  # which compares equal to itself
                    fields.append(
                        texts[int(value)]
                        if name in abi.string_fields(kind)
                        else np.array(value).tolist()
                    )
                found.append((batch.base + int(record["index"]), kind, fields))
    return sorted(found)


@pytest.mark.parametrize("few", [0, 1000], ids=["Arrow's encoder", "NumPy's"])
@pytest.mark.parametrize("kind", [k for k in abi.KINDS if k not in abi.UNRECORDED])
def test_every_kind_round_trips(
    kind: str, few: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pasta.run.events._FEW", few)
    texts = strings()
    given_batches = list(batches([kind], [40], 7))
    directory = tmp_path / os.fsdecode(b"of Latin-1: \xe9")  # not UTF-8
    directory.mkdir()
    recorder = Recorder(directory, texts)
    for batch in given_batches:
        recorder.add(batch)
    recorder.flush()
    again = Strings()
    assert rows(list(read_batches(directory, again)), again) == rows(given_batches, texts)


@examples(25)
@given(
    st.lists(
        st.sampled_from(["kernel_launch", "memory_alloc", "sync", "mark"]), min_size=1, unique=True
    ),
    st.lists(st.integers(1, 60), min_size=1, max_size=5),
    st.integers(1, 50),
    st.integers(0, 1000),
)
def test_order_over_kinds_and_parts(
    tmp_path_factory: pytest.TempPathFactory,
    kinds: list[str],
    sizes: list[int],
    rows_read: int,
    seed: int,
) -> None:
    directory = tmp_path_factory.mktemp("events")
    texts = strings()
    given_batches = list(batches(kinds, sizes, seed))
    recorder = Recorder(directory, texts)
    for batch in given_batches:
        recorder.add(batch)
        recorder.flush()  # a part for every batch
    again = Strings()
    read = list(read_batches(directory, again, rows=rows_read))
    assert rows(read, again) == rows(given_batches, texts)
    positions = [p for batch in read for p in sorted(
        int(batch.base + i) for _, array in batch for i in array["index"])]  # fmt: skip
    assert positions == sorted(positions), "batches overlap or are out of order"
    assert recorder.counts == {kind: sum(sizes) for kind in kinds}


def test_absent_is_null_and_names_are_text(tmp_path: Path) -> None:
    launch = np.zeros(2, abi.dtype("kernel_launch"))
    launch["name"] = [8, 0]
    launch["registers"] = [40, 0xFFFF]
    launch["device"] = [0, -1]
    launch["grid"] = [[1, 2, 3], [4, 5, 6]]
    launch["index"] = [0, 2]
    recorder = Recorder(tmp_path, strings())
    recorder.add(Batch(100, {"kernel_launch": launch}))
    recorder.flush()
    table = pq.read_table(tmp_path / "kernel_launch-00000.parquet").to_pylist()
    assert [row["name"] for row in table] == ["gemm", None]
    assert [row["registers"] for row in table] == [40, None]
    assert [row["device"] for row in table] == [0, None]
    assert [(row["grid_x"], row["grid_y"], row["grid_z"]) for row in table] == [
        (1, 2, 3),
        (4, 5, 6),
    ]
    assert [row["position"] for row in table] == [100, 102]
    assert "index" not in table[0] and "unused" not in table[0]


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    (tmp_path / "sync-00000.parquet").write_bytes(b"PAR1 not really")
    assert list(parts(tmp_path)) == ["sync"]
    with pytest.raises(RunError, match=r"sync-00000\.parquet: cannot be read"):
        list(read_batches(tmp_path, Strings()))


def test_unfinished_parts_and_other_files_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "sync-00000.writing").write_bytes(b"")
    (tmp_path / "notes.parquet").write_bytes(b"")
    (tmp_path / "unheard_of-00000.parquet").write_bytes(b"")
    assert parts(tmp_path) == {}
    assert list(read_batches(tmp_path, Strings())) == []


def filled(directory: Path, most: int, *, rotate: bool) -> tuple[Recorder, list[int]]:
    """100 parts of 50 launches, and one record that all of them need; positions of launches."""
    texts, positions = strings(), []
    recorder = Recorder(directory, texts, most, rotate=rotate)
    start = np.zeros(1, abi.dtype("context_create"))
    recorder.add(Batch(0, {"context_create": start}))
    for number in range(100):
        launches = np.zeros(50, abi.dtype("kernel_launch"))
        launches["index"] = 3 * np.arange(50)
        launches["ordinal"] = 50 * number + np.arange(50)
        base = 1 + 150 * number
        recorder.add(Batch(base, {"kernel_launch": launches}))
        positions += (base + launches["index"]).tolist()
        recorder.flush()
    return recorder, positions


@pytest.mark.parametrize("rotate", [False, True])
def test_size_limit_keeps_the_oldest_or_the_newest(rotate: bool, tmp_path: Path) -> None:
    whole, positions = filled(tmp_path / "whole", 0, rotate=False)
    assert (whole.counts["kernel_launch"], whole.left_out) == (5000, {})
    size = sum(path.stat().st_size for path in (tmp_path / "whole").iterdir())
    recorder, _ = filled(tmp_path / "some", size // 4, rotate=rotate)
    kept = recorder.counts["kernel_launch"]
    assert 900 < kept < 1500
    assert recorder.left_out == {"kernel_launch": 5000 - kept}
    assert (
        sum(path.stat().st_size for path in (tmp_path / "some").iterdir()) < size // 4 + size // 50
    )
    read = list(read_batches(tmp_path / "some", Strings()))
    assert sum(len(batch["context_create"]) for batch in read) == 1
    found = [int(at) for batch in read for at in batch.positions(batch["kernel_launch"])]
    assert found == (positions[-kept:] if rotate else positions[:kept])
