"""Arrival of ranks at collectives, from the calls that the runs of all ranks recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pasta.arrow import to_numpy
from pasta.errors import RunError
from pasta.findings import Result
from pasta.processors.arrivals import Arrivals, arrival, channel_of
from pasta.run.files import batches, open_parquet, with_texts
from pasta.run.root import RankRun, Root, ranks_text
from pasta.table import counted, formatted

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The tool and its table of calls, and the result of their arrivals.
COLLECTIVES, CALLS, ARRIVALS = "collectives", "calls", "arrivals"
TITLE = "Arrival of ranks at collectives"
_TEXTS = ("operation", "type")
_NUMBERS = ("order", "peer", "bytes", "begin", "start", "end", "member", "ranks")
_NO_ID = np.iinfo(np.uint64).max


def arrivals_of(root: Root, runs: Sequence[RankRun], problems: list[str]) -> Result | None:
    """Arrival of each rank at common collectives; None if no two runs share a communicator.
    A table that cannot be read is left out, with a line in `problems`."""
    codes: dict[str, int] = {}
    found, ranks, used = [], {}, []
    for run in runs:
        try:
            rows = _rows_of(run, root.since(run, run.start), codes)
        except RunError as error:
            problems.append(f"{error}: left out")
            continue
        found.append(rows)
        used.append(run)
        members = np.unique(rows[["id", "member"]])
        ranks.update({each: root.label(run) for each in members.tolist()})
    groups = _groups(found, used)
    if not groups:
        return None
    arrivals = Arrivals(
        np.concatenate(found),
        list(codes),
        group=lambda id: groups.get(id, f"communicator {id:#x}"),
        rank=lambda id, member: ranks.get((id, member), f"member {member}"),
        error=root.worst_error,
    )
    if not len(arrivals) and not arrivals.mismatches:
        return None
    summary = f"{counted(len(arrivals), 'operation')} of all ranks"
    notes = []
    if arrivals.incomplete:
        operations = counted(arrivals.incomplete, "operation")
        notes.append(f"{operations} were not recorded by all ranks and left out")
    if arrivals.error is None:
        notes.append("the clocks of the hosts are not synchronized: skew between them is unknown")
    elif arrivals.error:
        by = formatted(arrivals.error, "ns")
        notes.append(
            f"the clocks of the hosts differ by up to {by}: smaller differences are not skew"
        )
    return Result(summary, arrivals.tables(), list(arrivals.findings()), notes=notes)


def _groups(found: Sequence[NDArray[Any]], runs: Sequence[RankRun]) -> dict[int, str]:
    """Communicators that several runs share, named by the ranks of these; the second one of the
    same ranks has a number."""
    of: dict[int, set[int]] = {}
    for at, rows in enumerate(found):
        for id in np.unique(rows["id"]).tolist():
            of.setdefault(id, set()).add(at)
    of.pop(int(_NO_ID), None)
    names: dict[int, str] = {}
    taken: dict[str, int] = {}
    first = {id: _first_start(found, id) for id, at in of.items() if len(at) > 1}
    for id in sorted(first, key=lambda id: (first[id], id)):
        numbers = [runs[at].rank for at in of[id]]
        known = sorted({each for each in numbers if each is not None})
        name = ranks_text(known) if len(known) == len(numbers) else counted(len(of[id]), "process")
        taken[name] = taken.get(name, 0) + 1
        names[id] = name if taken[name] == 1 else f"{name} ({taken[name]})"
    return names


def _first_start(found: Sequence[NDArray[Any]], id: int) -> int:
    starts = (rows["start"][rows["id"] == id] for rows in found)
    return min(int(each.min()) for each in starts if len(each))


def _rows_of(run: RankRun, shift: int, codes: dict[str, int]) -> NDArray[Any]:
    """Calls of a run (dtype `arrival()`), with times on the root's time line; `codes` of texts are
    added to. Raises RunError."""
    path = run.directory.results / COLLECTIVES / f"{CALLS}.parquet"
    file = open_parquet(path, run.directory.path)
    missing = {*_TEXTS, *_NUMBERS, "id"} - set(file.schema_arrow.names)
    if missing:
        raise RunError(f"{path}: no column {min(missing)}")
    parts = [np.zeros(0, arrival())]
    for coded in batches(file, path, columns=[*_TEXTS, *_NUMBERS, "id"]):
        batch = with_texts(coded, path)
        try:
            parts.append(_rows(batch, shift, codes))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise RunError(f"{path}: {error}") from None
    return np.concatenate(parts)


def _rows(batch: pa.RecordBatch, shift: int, codes: dict[str, int]) -> NDArray[Any]:
    rows = np.zeros(len(batch), arrival())
    columns = {name: to_numpy(batch.column(name).cast(pa.int64()), -1) for name in _NUMBERS}
    texts = {}
    for name in _TEXTS:
        coded = batch.column(name).cast(pa.string()).dictionary_encode()
        known = [codes.setdefault(text, len(codes)) for text in coded.dictionary.to_pylist()]
        known.append(codes.setdefault("", len(codes)))
        texts[name] = np.asarray(known, np.int64)[to_numpy(coded.indices, -1)]
        rows[name] = texts[name]
    rows["id"] = to_numpy(batch.column("id").cast(pa.uint64()), int(_NO_ID))
    rows["order"], rows["member"], rows["size"] = (
        columns[name] for name in ("order", "member", "ranks")
    )
    rows["root"], rows["bytes"] = columns["peer"], columns["bytes"]
    timed = columns["start"] >= 0
    rows["start"] = np.where(timed, columns["start"], columns["begin"]) + shift
    rows["end"] = np.where(timed & (columns["end"] >= 0), columns["end"] + shift, -1)
    sends, receives = (texts["operation"] == codes.get(name, -1) for name in ("send", "recv"))
    rows["channel"] = channel_of(sends, receives, rows["member"], rows["root"])
    return rows
