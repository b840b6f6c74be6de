"""Arrow arrays equal those of pyarrow, without its imports."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pasta.arrow import to_arrow, to_numpy

DTYPES = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8", "?"]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
VALUES = (INTEGERS, st.booleans(), st.floats(), TEXTS)


def same(found: pa.Array, wanted: pa.Array) -> None:
    found.validate(full=True)
    assert found.type == wanted.type
    assert repr(found.to_pylist()) == repr(wanted.to_pylist())  # NaN is NaN, -0.0 is not 0.0


@given(st.data())
def test_arrays(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(DTYPES))
    values = data.draw(hnp.arrays(dtype, st.integers(0, 20)))
    same(to_arrow(values), pa.array(values))
    same(to_arrow(values[::2]), pa.array(values[::2]))
    mask = data.draw(hnp.arrays("?", len(values)))
    masked = to_arrow(values, mask)
    same(masked, pa.array(values, mask=mask))
    absent = values.dtype.type(1)
    for first in range(min(3, len(values) + 1)):  # with an offset, too
        found = to_numpy(masked[first:], 1)
        np.testing.assert_array_equal(found, np.where(mask, absent, values)[first:])
        assert found.dtype == values.dtype
        np.testing.assert_array_equal(to_numpy(to_arrow(values)[first:]), values[first:])


@given(st.one_of(*(st.lists(st.none() | each, max_size=12) for each in VALUES)))
def test_lists(values: list[Any]) -> None:
    same(to_arrow(values), pa.array(values))


@given(st.one_of(*(st.lists(st.none() | st.lists(st.none() | each, max_size=4), max_size=6)
                   for each in VALUES)))  # fmt: skip
def test_lists_of_lists(values: list[Any]) -> None:
    same(to_arrow(values), pa.array(values))
    of_tuples = [None if each is None else tuple(each) for each in values]
    same(to_arrow(of_tuples), pa.array(values))


@pytest.mark.parametrize(
    "values", [[1, 2.5, None], [np.int32(1), None], [b"bytes"], [{"a": 1}], np.array(["text"])]
)
def test_other_types_use_pyarrow(values: Any) -> None:
    same(to_arrow(values), pa.array(values))


def test_chunks() -> None:
    column = pa.chunked_array([[1, 2], [], [None, 4]])
    assert to_numpy(column, -1).tolist() == [1, 2, -1, 4]
    assert to_numpy(column[2:2]).tolist() == []
    assert np.isnan(to_numpy(column)[2])  # pyarrow's


WITHOUT = """
import sys

class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pandas":
            raise SystemExit("pandas was imported")

sys.meta_path.insert(0, Refuses())
from pathlib import Path
from pasta.config import Config
from pasta.run.directory import RunDirectory
from pasta.runtime.replay import Replay
from tests.support.streams import training_run
from tests.support.runs import TOOLS, recorded

where = Path(sys.argv[1])
run = recorded(training_run(), where / "run")
again = Replay(run, Config(tools=TOOLS)).write(where / "again")
assert not again.manifest()["failures"], again.manifest()["failures"]
"""


def test_recording_and_tools_import_no_pandas(tmp_path: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
