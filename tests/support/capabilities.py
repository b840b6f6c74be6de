"""Compares recorded streams with the capabilities claimed for their source (pasta/sources.py)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from pasta import abi
from pasta.capabilities import ACCESSES, CAPABILITIES, Capability
from pasta.sources import known_sources

Tables = Mapping[str, np.ndarray[Any, Any]]


def disagreements(
    source: str, streams: Iterable[Tables], *, unplayed: Collection[str] = ()
) -> dict[str, str]:
    """What `streams`, records of one source by kind, say against the claims, by capability.

    Together they are to have every kind and field at least once that the source is said to give,
    and nothing that it is said not to give. `unplayed`: claimed, but not in these streams; it is an
    error, too, where it is there after all. That accesses are given, tests of probes show; that
    they are not, launches that are not probed.
    """
    given = known_sources()[source].gives
    played = list(streams)
    wrong = {}
    for name, each in CAPABILITIES.items():
        tables = [tables[each.kind] for tables in played if len(tables.get(each.kind, ()))]
        there = any(bool(_present(each, table).any()) for table in tables)
        claimed = name in given
        if name == ACCESSES and claimed:
            continue
        if claimed and not there and name not in unplayed:
            wrong[name] = "claimed, and in no record"
        elif claimed and there and name in unplayed:
            wrong[name] = "played after all"
        elif there and not claimed:
            wrong[name] = "in some record, and not claimed"
    return wrong


def _present(each: Capability, records: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Whether each record has the capability's value."""
    if each.name == ACCESSES:
        return np.asarray(records["flags"] & abi.FLAG_PROBED != 0)
    if each.field is None:
        return np.ones(len(records), bool)
    values = records[each.field]
    if each.field in abi.string_fields(each.kind):
        return np.asarray(values != 0)
    present = values != abi.absent(each.field, values.dtype)
    return np.asarray(present.any(axis=1) if present.ndim > 1 else present)
