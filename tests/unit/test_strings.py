from __future__ import annotations

import pickle

import numpy as np

from pasta.processors.strings import Strings


def test_reads_what_was_added_and_resolves_the_rest_once() -> None:
    asked: list[int] = []

    def resolve(id: int) -> str | None:
        asked.append(id)
        return "resolved" if id == 16 else None

    strings = Strings(resolve)
    strings.add(8, "kernel")
    assert strings.many(np.asarray([0, 8, 16, 16], np.uint32)) == ["", "kernel"] + ["resolved"] * 2
    assert asked == [16]
    assert strings[24] == "<string 24>"


def test_a_pickle_has_the_texts_and_not_the_resolver() -> None:
    strings = Strings(lambda id: "text")
    assert strings[8] == "text"
    copy = pickle.loads(pickle.dumps(strings))
    assert copy[8] == "text"
    assert copy.resolve is None
