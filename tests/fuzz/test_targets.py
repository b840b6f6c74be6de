"""Short runs of the fuzz targets: their corpora, and new inputs of a fixed seed."""

from __future__ import annotations

import pytest

from tests.fuzz.targets import TARGETS
from tests.support.examples import SHARE

SECONDS = max(0.5, 2 * SHARE)


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_corpus_inputs_do_not_crash(name: str) -> None:
    target = TARGETS[name]
    for outcome in (target.replay(), target.fuzz(SECONDS, seed=7)):
        assert outcome.crashes == []
        assert outcome.executions > 0
