"""Number of Hypothesis examples. No deadline, because tests do not assert durations."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

#: Share of the examples to run; `sh ci/test` without --all tries a tenth.
SHARE = float(os.environ.get("PASTA_TEST_EXAMPLES", "1"))


def examples(count: int, **options: Any) -> settings:
    """Settings for `count` examples; `options` are those of Hypothesis."""
    return settings(max_examples=max(1, round(count * SHARE)), deadline=None, **options)


settings.register_profile("pasta", examples(100))
settings.load_profile("pasta")
