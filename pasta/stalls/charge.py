"""Stalls at loads, charged to the objects that the loads read.

TSC(v) = sum over launches k and loads pc of S(k, pc) A(k, pc, v) / sum over v' of A(k, pc, v'):
S are samples blamed on the load, A the accesses that it made to object v.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.rows import combined, places_of
from pasta.stalls.blamed import (
    LOAD,
    NO_ACCESS,
    NO_LAUNCH,
    NO_OBJECT,
    _expanded,
    _find,
    _groups,
    blamed_type,
)
from pasta.stalls.spread import spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

_INSTRUCTION = ("function", "pc")
_EXACT = ("function", "pc", "launch")


def access_type() -> Any:
    """Accesses of the instruction at offset `pc` of a function in a launch to an object (-1: none);
    `time` is the launch's (float64), by which stalls without a launch are divided."""
    return np.dtype(
        [("launch", "i8"), ("function", "i4"), ("pc", "u8"), ("object", "i8"), ("accesses", "u8"),
         ("bytes", "u8"), ("time", "f8")]
    )  # fmt: skip


@dataclass(frozen=True)
class Charges:
    """`charged`: samples by `launch`, `function`, `pc` of the load and `object`, with its
    `accesses` and `bytes` there; `rest`: all other samples, as `blamed_type`.

    `estimated`: how many of the charged samples were divided among launches by device time.
    """

    charged: NDArray[Any]
    rest: NDArray[Any]
    estimated: int

    @property
    def total(self) -> int:
        """All samples."""
        return int(self.charged["samples"].sum()) + int(self.rest["samples"].sum())


def charge(blamed: NDArray[Any], accesses: NDArray[Any]) -> Charges:
    """Charge blamed samples (`blamed_type`) to objects, by accesses (`access_type`)."""
    accesses = accesses[np.lexsort([accesses["launch"], accesses["pc"], accesses["function"]])]
    _, first, sizes = _groups(accesses, _EXACT)
    sums = np.add.reduceat(accesses["accesses"].astype(np.float64), first) if len(first) else sizes
    weight = accesses["accesses"] / np.repeat(np.maximum(sums, 1), sizes)
    loads, rest = blamed[blamed["why"] == LOAD], [blamed[blamed["why"] != LOAD]]
    charged = []
    estimated = 0
    for keys, mine, weights in (
        (_EXACT, loads[loads["launch"] >= 0], weight),
        (_INSTRUCTION, loads[loads["launch"] < 0], weight * accesses["time"]),
    ):
        known, first, sizes = _groups(accesses, keys)
        wanted = _at_load(mine)
        at = _find(known, wanted, keys)
        missed = mine[at < 0].copy()
        of = "launch" if keys is _EXACT else "function"
        missed["why"] = np.where(np.isin(missed[of], accesses[of]), NO_ACCESS, NO_LAUNCH)
        rest.append(missed)
        wanted, at = wanted[at >= 0], at[at >= 0]
        wanted["of"] = at
        sums = combined(wanted[["of", "samples"]], ["of"])
        of_sums = sums["of"]
        taken = _expanded(first[of_sums], sizes[of_sums])
        rows = np.zeros(len(taken), _charged_type())
        for name in ("launch", "function", "pc", "object", "accesses", "bytes"):
            rows[name] = accesses[name][taken]
        rows["samples"] = spread(sums["samples"], sizes[of_sums], weights[taken])
        charged.append(rows[rows["samples"] > 0])
        if keys is _INSTRUCTION:
            estimated = int(sums["samples"].sum())
    found = np.concatenate(charged)
    rest.append(_without_object(found[found["object"] < 0]))
    return Charges(found[found["object"] >= 0], np.concatenate(rest), estimated)


def _charged_type() -> Any:
    return np.dtype(
        [("launch", "i8"), ("function", "i4"), ("pc", "u8"), ("object", "i8"), ("accesses", "u8"),
         ("bytes", "u8"), ("samples", "i8")]
    )  # fmt: skip


def _at_load(loads: NDArray[Any]) -> NDArray[Any]:
    found = np.zeros(
        len(loads),
        [("function", "i4"), ("pc", "u8"), ("launch", "i8"), ("samples", "i8"), ("of", "i8")],
    )
    for name in ("function", "launch", "samples"):
        found[name] = loads[name]
    found["pc"] = loads["blamed"]
    return found


def _without_object(rows: NDArray[Any]) -> NDArray[Any]:
    found = np.zeros(len(rows), blamed_type())
    for name in ("launch", "function", "pc", "samples"):
        found[name] = rows[name]
    found["blamed"], found["why"] = rows["pc"], NO_OBJECT
    return found


def launch_times(launches: NDArray[Any], wanted: NDArray[Any]) -> NDArray[Any]:
    """Device times (float64, ns) of launches by ordinal; 0 where they are not known. `launches` has
    `launch`, sorted, and `time`."""
    found = np.zeros(len(wanted))
    at, known = places_of(launches["launch"], wanted.astype(np.uint64))
    found[known] = np.maximum(launches["time"][at], 0)
    return found
