"""Memory released by a context destroy has memory_free records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.preload import Preload

PROGRAM = r"""
#include "refacc.h"
int main(void) { /* no launch(): only memory */
    ra_context context;
    void *address;
    if (ra_context_create(&context, 0) || ra_context_set_current(context)) return 1;
    for (int i = 0; i < 3; i++)
        if (ra_alloc(&address, 4096 << i)) return 2;
    if (ra_free(address)) return 3;
    return ra_context_destroy(context);
}
"""


@pytest.mark.main
def test_memory_of_a_destroyed_context_is_freed(
    pasta_preload: Preload, compile_c: Callable[..., Path]
) -> None:
    done = pasta_preload(compile_c(PROGRAM))
    assert done.exit_status == 0
    events = done.run.path / "events"
    allocated = pq.read_table(events / "memory_alloc-00000.parquet")
    freed = pq.read_table(events / "memory_free-00000.parquet")
    assert sorted(freed["address"].to_pylist()) == sorted(allocated["address"].to_pylist())
    assert sorted(freed["bytes"].to_pylist()) == [4096, 8192, 16384]
    (destroyed,) = pq.read_table(events / "context_destroy-00000.parquet").to_pylist()
    assert max(freed["position"].to_pylist()) < destroyed["position"]
