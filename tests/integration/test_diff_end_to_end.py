"""`pasta diff` of runs of a real program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.main
def test_diff_as_a_ci_step(pasta_preload: Any, pasta: Any, demo: Callable[[str], Path]) -> None:
    runs = []
    for number, iterations in enumerate(("3", "4")):
        out = pasta_preload.directory / f"run-{number}"
        options = ("-t", "kernel_freq", "-t", "copies", "-o", str(out))
        assert pasta_preload(demo("convolution"), iterations, options=options).exit_status == 0
        runs.append(out)
    less = pasta("diff", *runs, "--fail-on", "launches[softmax]>+1", "--fail-on", "launches>+34%")
    assert (less.returncode, less.stderr) == (0, "")
    more = pasta("diff", *runs, "--fail-on", "kernel_freq.launches[conv2d]>+1")
    assert more.returncode == 1
    assert "kernel_freq.kernels.launches[conv2d]: 6 before, 8 after (+33.33%)" in more.stderr
    assert "runs of different commands" in more.stdout
