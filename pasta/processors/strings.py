"""Interned strings of one process, by their id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

#: A field that its source never set.
_UNSET = 0xFFFF_FFFF


class Strings(Mapping[int, str]):
    """Text of string ids (sparse integers; 0 is the absent string, "").

    Fed through `add`, or by `resolve`, which is asked once for each id and answers None for an
    id it does not know. An unknown id reads as `<string 12>`: a ring that outlived its process
    may lack a string's text, which is no reason to lose the events. The resolver is not pickled.
    """

    def __init__(self, resolve: Callable[[int], str | None] | None = None) -> None:
        self.resolve = resolve
        self._texts: dict[int, str] = {0: "", _UNSET: ""}

    def add(self, id: int, text: str) -> None:
        self._texts[id] = text

    def __getitem__(self, id: int) -> str:
        text = self._texts.get(id)
        if text is None and self.resolve is not None:
            text = self.resolve(id)
            if text is not None:
                self._texts[id] = text
        return f"<string {id}>" if text is None else text

    def many(self, ids: Iterable[int]) -> list[str]:
        """Texts of ids, in their order; takes an integer array as well."""
        return [self[int(id)] for id in ids]

    def __iter__(self) -> Iterator[int]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def __getstate__(self) -> dict[str, Any]:
        return {"resolve": None, "_texts": self._texts}
