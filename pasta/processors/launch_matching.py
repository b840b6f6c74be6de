"""Matches the launches of two processes that did the same work, by content and place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pasta.processors.launch_keys import mixed, occurrences

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Matched:
    """Launch `one[i]` of the first process is launch `other[i]` of the second (indices, ascending
    in `one`). `placed`: their places are the same too, not only kernel, grid and block."""

    one: NDArray[Any]
    other: NDArray[Any]
    placed: NDArray[Any]

    def __len__(self) -> int:
        return len(self.one)


def matched(one: NDArray[Any], other: NDArray[Any]) -> Matched:
    """Matches launches (LAUNCH, by ordinal) of two processes, each at most once.

    Each step matches launches that earlier steps left unmatched. For every kernel, grid and block,
    as many launches are matched as both processes have.
    """
    mine, theirs = np.arange(len(one)), np.arange(len(other))
    found: list[tuple[NDArray[Any], NDArray[Any], bool]] = []
    for keys, placed in _STEPS:
        rows, others = pairs(keys(one[mine]), keys(other[theirs]))
        found.append((mine[rows], theirs[others], placed))
        mine, theirs = np.delete(mine, rows), np.delete(theirs, others)
        if not len(mine) or not len(theirs):
            break
    rows = np.concatenate([each for each, _, _ in found])
    order = np.argsort(rows)
    others = np.concatenate([each for _, each, _ in found])
    placed_rows = np.concatenate([np.full(len(each), placed) for each, _, placed in found])
    return Matched(rows[order], others[order], placed_rows[order])


def pairs(one: NDArray[Any], other: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Indices of equal keys: the n-th of a key in `one` with the n-th in `other`."""
    mine, theirs = np.argsort(one, kind="stable"), np.argsort(other, kind="stable")
    keys, others = one[mine], other[theirs]
    at = np.searchsorted(others, keys) + occurrences(keys)
    found = at < len(others)
    found[found] = others[at[found]] == keys[found]
    return mine[found], theirs[at[found]]


def _places(rows: NDArray[Any]) -> NDArray[Any]:
    return mixed(rows["operator"], rows["call"], rows["within"], rows["content"])


def _operators(rows: NDArray[Any]) -> NDArray[Any]:
    return mixed(rows["operator"], rows["content"])


def _contents(rows: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(rows["content"])


def _of_threads(rows: NDArray[Any], about: NDArray[Any], first: NDArray[Any]) -> NDArray[Any]:
    """Places combined with a hash `about` each thread, by number. Threads with equal hashes are
    distinguished by the order of their `first` launches (rows), which lists all threads."""
    threads = rows["thread"][np.sort(first)]
    about[threads] = mixed(about[threads], occurrences(about[threads]))
    return mixed(about[rows["thread"]], _places(rows))


def _same_threads(rows: NDArray[Any]) -> NDArray[Any]:
    """Keys of places on threads with the same launches."""
    _, first = np.unique(rows["thread"], return_index=True)
    about = np.zeros(int(rows["thread"].max(initial=0)) + 1, np.uint64)
    np.add.at(about, rows["thread"], _places(rows))  # in any order, modulo 2^64
    return _of_threads(rows, about, first)


def _like_threads(rows: NDArray[Any]) -> NDArray[Any]:
    """Keys of places on threads that begin with the same launch."""
    _, first = np.unique(rows["thread"], return_index=True)
    about = np.zeros(int(rows["thread"].max(initial=0)) + 1, np.uint64)
    about[rows["thread"][first]] = _operators(rows[first])
    return _of_threads(rows, about, first)


#: Keys by which launches are matched, and whether they contain the place.
_STEPS: tuple[tuple[Callable[[NDArray[Any]], NDArray[Any]], bool], ...] = (
    (_same_threads, True),
    (_like_threads, True),
    (_places, True),  # on any thread
    (_operators, False),  # in any of their calls
    (_contents, False),
)
