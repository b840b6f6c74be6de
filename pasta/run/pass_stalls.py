"""Stalls of one pass charged to the tensors whose accesses another pass counted."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pasta.arrow import to_numpy
from pasta.errors import RunError
from pasta.findings import Result
from pasta.processors.rows import places_of
from pasta.processors.strings import Strings
from pasta.progress import report_progress
from pasta.run.events import read_batches
from pasta.run.files import batches, open_parquet, reading, regular_file
from pasta.run.results import StoredResult, read_results, stored_tables
from pasta.stalls.analysis import stalls_of
from pasta.stalls.charge import access_type
from pasta.stalls.result import DESCRIBED
from pasta.stalls.samples import StallSamples
from pasta.stalls.views import VIEW_FIELDS, Forest, View
from pasta.table import Table, counted, has_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pasta.run.pass_launches import RecordedPass
    from pasta.run.pass_tables import Joined
    from pasta.stalls.samples import Function

#: The tool whose accesses are used, and the result.
STALLS = "tensor_stalls"
_SAMPLE = "pc_sample"
_ACCESSES = ("launch", "function", "pc", "object", "accesses", "bytes")
#: Tables of the pass with accesses that the joined result does not repeat: large, or of the pass.
_OF_PASS = frozenset({"accesses", "functions"})


def has_stalls(times: RecordedPass, accesses: RecordedPass) -> bool:
    """Whether one pass has samples and the other one accesses by load and tensor. Raises
    RunError."""
    return _SAMPLE in times.kinds and "accesses" in stored_tables(accesses.run.results).get(
        STALLS, ()
    )


def joined_stalls(times: RecordedPass, accesses: RecordedPass, joined: Joined) -> Result:
    """The result of both passes. Raises RunError for damaged runs."""
    samples, strings = StallSamples(), Strings()
    for batch in read_batches(times.events, strings, kinds=StallSamples.KINDS):
        samples.feed(batch)
    report_progress("charging stalls to tensors")
    stored = next(each for each in read_results(accesses.run.results) if each.name == STALLS)
    objects, forest = _objects(stored), _forest(stored)
    functions = samples.functions(strings)
    found, alone = _accesses(accesses, joined, _same_functions(functions, stored))
    ids = np.unique(rows["reason"]) if len(rows := samples.rows()) else np.zeros(0, np.uint32)
    runs = (times, accesses)
    stalls = stalls_of(
        functions,
        rows,
        {id: strings[id] if id else "" for id in ids.tolist()},
        found,
        objects,
        lambda hash: _image(runs, hash),
    )
    notes = [
        f"stalls: the pass times ({times.sources}); accesses: the pass accesses"
        f" ({accesses.sources}), joined by content",
        *samples.notes(strings),
    ]
    if alone:
        notes.append(
            f"{counted(alone, 'probed launch', 'probed launches')} without a sampled partner"
        )
    different = _different_code(functions, found, stored)
    if different:
        notes.append(
            f"the modules of {counted(different, 'function')} differ between the passes: "
            "their loads may not correspond"
        )
    result = stalls.result(notes)
    others = {name: stored.tables[name] for name in stored.tables if name not in _OF_PASS}
    files = stalls.files(Forest(objects, forest.views))
    return replace(result, tables={**result.tables, **others}, files=files)


def _accesses(
    accesses: RecordedPass, joined: Joined, same: NDArray[Any]
) -> tuple[NDArray[Any], int]:
    """Accesses (`access_type`) of joined launches, with ordinals and functions of the pass with
    times; and the number of launches with accesses but without partner. `same`: numbers of
    functions in that pass, by number in the pass with accesses."""
    path = accesses.run.results / STALLS / "accesses.parquet"
    file = open_parquet(path, accesses.run.path, whole=False)
    parts = [np.zeros(0, access_type())]
    partner = np.full(len(joined.accesses), -1, np.int64)
    partner[joined.pairs.other] = joined.pairs.one
    ordinals = joined.accesses.rows["ordinal"]
    alone: set[int] = set()
    for batch in batches(file, path, list(_ACCESSES)):
        with reading(path):
            columns = {name: to_numpy(batch.column(name), 0) for name in _ACCESSES}
        part = np.zeros(len(batch), access_type())
        for name in _ACCESSES:
            part[name] = columns[name]
        at, known = places_of(ordinals, part["launch"].astype(np.uint64))
        one = np.full(len(part), -1, np.int64)
        one[known] = partner[at]
        alone.update(np.unique(part["launch"][one < 0]).tolist())
        part, one = part[one >= 0], one[one >= 0]
        part["launch"] = joined.times.rows["ordinal"][one].astype(np.int64)
        part["time"] = np.maximum(joined.times.time[one], 0)
        inside = (part["function"] >= 0) & (part["function"] < len(same))
        part["function"] = np.where(inside, same[np.where(inside, part["function"], -1)], -1)
        parts.append(part)
    return np.concatenate(parts), len(alone)


def _same_functions(functions: Sequence[Function], stored: StoredResult) -> NDArray[Any]:
    """Numbers (int32) in `functions` of the functions of the pass with accesses, matched by module
    and name, otherwise by name; -1: none. The last entry is -1."""
    exact: dict[tuple[str, str | None], int] = {}
    named: dict[str, int] = {}
    for number, each in enumerate(functions):
        if each.module is not None:
            exact.setdefault((each.name, f"{each.module:016x}"), number)
            named.setdefault(each.name, number)
    for number, each in enumerate(functions):
        named.setdefault(each.name, number)
    table = _functions(stored)
    keys = zip(*(table.values(name) for name in ("function", "module")), strict=True)
    return np.asarray([*(exact.get(key, named.get(key[0], -1)) for key in keys), -1], np.int32)


def _functions(stored: StoredResult) -> Table:
    table = stored.tables.get("functions")
    if table is None or not {"function", "module"} <= set(table.columns):
        raise RunError(f"{STALLS} of the pass accesses has no functions: record it again")
    return table


def _different_code(
    functions: Sequence[Function], accesses: NDArray[Any], stored: StoredResult
) -> int:
    """How many functions with accesses have other contents in the pass with accesses."""
    table = _functions(stored)
    modules: dict[str, set[str]] = {}
    for name, module in zip(table.values("function"), table.values("module"), strict=True):
        if module is not None:
            modules.setdefault(name, set()).add(module)
    used = [functions[each] for each in np.unique(accesses["function"]).tolist() if each >= 0]
    return sum(
        each.module is not None
        and each.name in modules
        and f"{each.module:016x}" not in modules[each.name]
        for each in used
    )


def _objects(stored: StoredResult) -> Table:
    table = stored.tables.get("objects")
    if not has_columns(table, "object_id", "object", "bytes", "generation", *DESCRIBED):
        if table is not None and not len(table):
            return table
        raise RunError(f"{STALLS} of the pass accesses has no objects: record it again")
    return table


def _forest(stored: StoredResult) -> Forest:
    table = stored.tables.get("views")
    if not has_columns(table, *VIEW_FIELDS):
        return Forest(stored.tables["objects"], [])
    return Forest(
        stored.tables["objects"],
        [View(*values) for values in zip(*map(table.values, VIEW_FIELDS), strict=True)],
    )


def _image(runs: Sequence[RecordedPass], hash: int) -> Path | None:
    """A module that one of the passes kept."""
    for each in runs:
        for found in each.run.modules.glob(f"{hash:016x}.*"):
            if os.path.lexists(found):
                return regular_file(found, each.run.path)
    return None
