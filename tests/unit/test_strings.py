from __future__ import annotations

import pickle

import numpy as np

from pasta.processors.strings import Strings


def test_reads_known_texts_and_resolves_others_once() -> None:
    asked: list[int] = []

    def resolve(id: int) -> str | None:
        asked.append(id)
        return "resolved" if id == 16 else None

    strings = Strings(resolve)
    strings.add(8, "kernel")
    assert strings.many(np.asarray([0, 8, 16, 16], np.uint32)) == ["", "kernel"] + ["resolved"] * 2
    assert asked == [16]
    assert strings[24] == "<string 24>"


def test_pickle_contains_texts_but_not_the_resolver() -> None:
    strings = Strings(lambda id: "text")
    assert strings[8] == "text"
    copy = pickle.loads(pickle.dumps(strings))
    assert copy[8] == "text"
    assert copy.resolve is None


def test_ids_are_stable_and_unique() -> None:
    strings = Strings()
    strings.add(1, "kernel")
    strings.add(3, "")
    assert strings.id_of("kernel") == 1
    assert strings.id_of("") == 3  # a text that is empty, not the absent one
    new = strings.id_of("other")
    assert new not in (0, 1, 3)
    strings.add(new + 1, "late")
    assert strings.id_of("late") == new + 1
    assert strings.id_of("another") not in (0, 1, 3, new, new + 1)
    assert [strings.text_or_none(id) for id in (0, 0xFFFF_FFFF, 3, new)] == [
        None,
        None,
        "",
        "other",
    ]


def test_ids_of_the_resolver_are_not_assigned() -> None:
    strings = Strings(lambda id: "of the ring" if id < 1 << 23 else None)
    assert strings[5] == "of the ring"
    assert strings.id_of("new") >= 1 << 23
