"""Which line of the program a stack belongs to."""

from __future__ import annotations

import numpy as np
import pytest

from pasta.abi import dtype
from pasta.frameworks.torch.conventions import CONVENTIONS
from pasta.processors.stacks import Stacks

PROGRAM = "/my/train.py"


def stacks_of(*files: str) -> tuple[Stacks, list[str]]:
    """One stack, number 1, with a frame in each file, innermost first; and the strings."""
    strings = ["", "f", *files]
    frames = np.zeros(len(files), dtype("python_frame"))
    for depth in range(len(files)):
        frame = frames[depth]
        frame["stack"], frame["depth"], frame["file"], frame["function"] = 1, depth, depth + 2, 1
        frame["line"] = 10 + depth
    stacks = Stacks(CONVENTIONS)
    stacks.feed({"python_frame": frames, "host_frame": np.zeros(0, dtype("host_frame"))})
    return stacks, strings


@pytest.mark.parametrize(
    "library",
    [
        "/usr/lib/python3/dist-packages/numpy/core.py",
        "/venv/lib/python3.12/site-packages/torch/cuda/__init__.py",
        "/usr/lib/python3.12/threading.py",
        "/src/torch_device/__init__.py",
        "<string>",
    ],
)
def test_the_line_of_the_user_is_outside_of_libraries(library: str) -> None:
    stacks, strings = stacks_of(library, PROGRAM)
    line = stacks.user_line(1, strings)
    assert line is not None and (line.file, line.line) == (PROGRAM, 11)


def test_packages_of_the_user_are_no_libraries() -> None:
    helper = "/my/torch_helpers/losses.py"
    stacks, strings = stacks_of(helper, PROGRAM)
    line = stacks.user_line(1, strings)
    assert line is not None and line.file == helper


def test_without_a_line_of_the_user_the_innermost_outside_of_the_framework() -> None:
    numpy = "/venv/lib/python3.12/site-packages/numpy/core.py"
    stacks, strings = stacks_of("/venv/lib/python3.12/site-packages/torch/nn/functional.py", numpy)
    line = stacks.user_line(1, strings)
    assert line is not None and line.file == numpy
    assert stacks.user_line(2, strings) is None
