"""Allocations of frameworks that failed, from the marks that report them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pasta.lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.strings import Strings

_TEXT = re.compile(r"out of memory: (\d{1,19}) bytes")
#: A failure: the mark's `index` in its batch, thread, time (ns), device and the requested bytes.
FAILURE = [("index", "u4"), ("thread", "u4"), ("time", "u8"), ("device", "i2"), ("bytes", "i8")]


def failures(marks: NDArray[Any], strings: Strings) -> NDArray[Any]:
    """Rows of FAILURE for those of a batch's `mark` records that report a failed allocation."""
    from pasta import abi

    framework = next(n for n, name in abi.enums()["origin"].items() if name == "framework")
    marks = marks[marks["origin"] == framework]
    texts = [_TEXT.fullmatch(text) for text in strings.many(marks["name"])]
    marks = marks[np.asarray([each is not None for each in texts], bool)]
    found = np.zeros(len(marks), FAILURE)
    for name in ("index", "thread", "time", "device"):
        found[name] = marks[name]
    found["bytes"] = [min(int(each[1]), (1 << 63) - 1) for each in texts if each is not None]
    return found
