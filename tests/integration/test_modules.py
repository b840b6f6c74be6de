"""Images of loaded modules, stored once per content if enabled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.preload import Preload


@pytest.mark.main
def test_images_are_stored_by_hash(pasta_preload: Preload, demo: Callable[[str], Path]) -> None:
    done = pasta_preload(demo("convolution"), options=("--set", "run.modules=true"))
    directory = done.run.path
    table = pq.read_table(directory / "events" / "module_load-00000.parquet").to_pylist()
    assert {f"{row['hash']:016x}" for row in table} == {
        path.stem for path in (directory / "modules").iterdir()
    }
    sizes = {f"{row['hash']:016x}": row["bytes"] for row in table}
    for path in (directory / "modules").iterdir():
        assert path.stat().st_size == sizes[path.stem]


def test_images_are_not_stored_by_default(
    pasta_preload: Preload, demo: Callable[[str], Path]
) -> None:
    assert not (pasta_preload(demo("convolution")).run.path / "modules").exists()
