"""Equal findings are merged, with a list of places."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pasta.report.text import gain_of
from pasta.run.results import without_repeats
from pasta.tool import Finding

WAIT = Finding(
    "the host waits", "item at train.py:1 f", "10 waits", "train.py:1 f: remove the wait", 0.2
)


def test_equal_findings_are_merged_and_their_gains_summed() -> None:
    found = [
        ("operators", replace(WAIT, where=line, remedy=f"{line}: remove the wait"))
        for line in (f"train.py:{number} f" for number in range(5))
    ]
    ((tool, one),) = without_repeats(found)
    assert tool == "operators"
    assert one.where == "train.py:0 f; train.py:1 f; train.py:2 f; and 2 more"
    assert one.gain == pytest.approx(1.0)
    assert one.evidence == "10 waits (the first of 5)"
    ((_, one),) = without_repeats(found * 2)  # duplicates of a place, limited to the total
    assert one.where == "train.py:0 f; train.py:1 f; train.py:2 f; and 2 more"
    assert one.gain == 1.0


def test_different_findings_are_not_merged() -> None:
    found = [
        ("copies", replace(WAIT, what="other", gain=0.3)),
        ("operators", WAIT),
        ("operators", replace(WAIT, where="train.py:2 f", gain=None)),
        ("operators", replace(WAIT, where="train.py:3 f", gain=0.15)),
        ("tensors", WAIT),
        ("operators", replace(WAIT, remedy="keep it")),
    ]
    merged = without_repeats(found)
    assert [(tool, each.what, each.gain) for tool, each in merged] == [
        ("operators", "the host waits", pytest.approx(0.35)),
        ("copies", "other", 0.3),
        ("tensors", "the host waits", 0.2),
        ("operators", "the host waits", 0.2),
    ]
    assert merged[2][1] is WAIT


def test_gains_in_words() -> None:
    rest = "of device time, medium confidence"
    for gain, text in ((0.124, f"up to 12% {rest}"), (0.0003, f"less than 1% {rest}")):
        assert gain_of(replace(WAIT, gain=gain)) == text
    assert gain_of(replace(WAIT, gain=None)) == "medium confidence"
