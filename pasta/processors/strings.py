"""Interned strings of one process, by their id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

#: A field that its source never set.
_UNSET = 0xFFFF_FFFF
#: First id beyond those of a ring, which are arena offsets over 8.
_FOREIGN = 1 << 24


class Strings(Mapping[int, str]):
    """Text of string ids (sparse integers; 0 is the absent string, "").

    Fed through `add`, or by `resolve`, which is asked once for each id and answers None for an id
    it does not know. An unknown id reads as `<string 12>`: a ring that outlived its process may
    have lost a string's text, which is no reason to lose the events. The resolver is not pickled.
    """

    def __init__(self, resolve: Callable[[int], str | None] | None = None) -> None:
        self.resolve = resolve
        self._texts: dict[int, str] = {0: "", _UNSET: ""}
        self._ids: dict[str, int] = {}
        self._numbered = 0  # texts that are in `_ids`
        self._next = 1

    def add(self, id: int, text: str) -> None:
        """Registers the text of an id."""
        self._texts[id] = text

    def id_of(self, text: str) -> int:
        """Id of a text, never 0: the existing one or a new one."""
        if self._numbered < len(self._texts):
            known = [(text, id) for id, text in self._texts.items() if id not in (0, _UNSET)]
            self._ids = dict(reversed(known))
            self._next = 1 + max(id for id in self._texts if id != _UNSET)
            if self.resolve is not None:  # it may have assigned higher ids
                self._next = max(self._next, _FOREIGN)
        id = self._ids.get(text)
        if id is None:
            id, self._next = self._next, self._next + 1
            self._texts[id] = text
            self._ids[text] = id
        self._numbered = len(self._texts)
        return id

    def __getitem__(self, id: int) -> str:
        text = self._texts.get(id)
        if text is None and self.resolve is not None:
            text = self.resolve(id)
            if text is not None:
                self._texts[id] = text
        return f"<string {id}>" if text is None else text

    def text_or_none(self, id: int) -> str | None:
        """The text of an id, which may be empty; None for the absent string."""
        return None if id in (0, _UNSET) else self[id]

    def many(self, ids: Iterable[int]) -> list[str]:
        """Texts of ids, in their order; takes an integer array as well."""
        return [self[int(id)] for id in ids]

    def __iter__(self) -> Iterator[int]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def __getstate__(self) -> dict[str, Any]:
        return {"_texts": self._texts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self._texts = state["_texts"]
