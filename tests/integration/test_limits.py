"""Long runs: profiling that ends by itself, and recordings that stay below a size."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq

LOOP = """
#include "pasta.h"
int main(void) {
    launch(1);
    for (int i = 0; i < 60; i++) {
        usleep(10000);
        launch(1);
    }
    pasta_start();
    launch(5);
    puts("done");
    return 3;
}
"""


def test_profiling_ends_after_its_duration(pasta_preload: Any, compile_c: Any) -> None:
    program = compile_c(LOOP, "-DACCELERATED", name="loop")
    done = pasta_preload(program, options=("--duration", "150ms"))
    assert (done.exit_status, done.stdout) == (3, "done\n")
    assert 2 <= done.run.launches <= 40  # a start after it changes nothing
    (stop,) = [
        row
        for path in done.run.path.glob("events/profiling_stop-*")
        for row in pq.read_table(path).to_pylist()
    ]
    assert stop["origin"] == "limit"


def test_a_recording_stays_below_its_size(pasta_preload: Any, compile_c: Any) -> None:
    program = compile_c(LOOP, "-DACCELERATED", name="loop")
    done = pasta_preload(program, options=("--max-size", "1KiB"))
    manifest = done.run.manifest
    recorded, left_out = manifest["recorded"], manifest["left_out"]
    assert recorded["kernel_launch"] + left_out["kernel_launch"] == 66
    assert 0 < recorded["kernel_launch"] < 66
    assert manifest["launches"]["seen"] == 66  # results have all
    assert any("events were not kept (run.max-size)" in line for line in manifest["warnings"])
