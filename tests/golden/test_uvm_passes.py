"""The tool uvm_advisor in two passes: faults of one, accesses of the other, as in a run of both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pasta.processors.managed_plan import Entry, parsed
from pasta.report.text import write_text_report
from pasta.run.directory import RunDirectory
from pasta.run.passes import join_as
from pasta.run.results import StoredResult, read_results, write_result
from pasta.runtime.rejoin import rejoin
from pasta.testing import Events, run_tool
from tests.support.managed import BLOCK, TOOL, A, Program, exchange, rows, training
from tests.support.passes import manifested
from tests.support.runs import recorded

#: The pass with accesses has other addresses, and other ids of objects.
ELSEWHERE = A + 64 * BLOCK
#: Tables of the joined result that follow from faults, moves, touched pages and launches.
TABLES = (
    "objects", "kernels", "operators", "tensors", "advice", "simulation", "parts", "timeline",
    "launches",
)  # fmt: skip


def times_run(place: Path, events: Events) -> RunDirectory:
    run = recorded(events, place)
    write_result(run.results, "uvm_advisor", run_tool(TOOL, events))
    return manifested(run, tools=["uvm_advisor"])


def joined(tmp_path: Path, times: Events, accesses: Events) -> RunDirectory:
    pair = times_run(tmp_path / "times", times), times_run(tmp_path / "accesses", accesses)
    return join(tmp_path, *pair)


def join(tmp_path: Path, times: RunDirectory, accesses: RunDirectory) -> RunDirectory:
    done = join_as(
        times, accesses, tmp_path / "joined", finish=write_text_report, rejoin=rejoin, force=True
    )
    return done.run


def result(run: RunDirectory) -> StoredResult:
    (found,) = [each for each in read_results(run.results) if each.name == "uvm_advisor"]
    return found


def plan(run: RunDirectory) -> list[Entry]:
    return parsed((run.results / "uvm_advisor" / "plan.toml").read_text())


def without_ids(table: Any) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in row.items() if key != "object_id"} for row in table.rows()
    ]


@pytest.mark.parametrize("program", [exchange, training])
def test_both_passes_are_as_one_run(tmp_path: Path, program: Callable[..., Program]) -> None:
    accesses = program(base=ELSEWHERE, faulting=False)
    run = joined(tmp_path, program(probed=False), accesses)
    whole = times_run(tmp_path / "one", program())
    found, expected = result(run), result(whole)
    assert found.tables.keys() == expected.tables.keys() - {"touched", "touched_objects"}
    for name in TABLES:
        if name in expected.tables:
            assert without_ids(found.tables[name]) == without_ids(expected.tables[name]), name
    assert plan(run) == plan(whole) != []
    assert found.summary.partition("; no launch")[0] == expected.summary
    assert [each.evidence for each in found.findings] == [e.evidence for e in expected.findings]
    assert found.notes[1:] == expected.notes
    assert found.notes[0] == "of the passes times (refacc 1.0) and accesses (refacc 1.0)"
    assert run.manifest()["warnings"] == []


def test_one_pass_alone_is_less_exact(tmp_path: Path) -> None:
    """Both launches of `step` touch the whole of both blocks; the faults of the first one do not
    show what it reads: these pages are already on the device."""
    times = exchange(probed=False)
    alone = run_tool(TOOL, times)
    assert any("accesses were not recorded" in note for note in alone.notes)
    assert "reads" in alone.tables["objects"].hidden
    found = result(joined(tmp_path, times, exchange(base=ELSEWHERE, faulting=False)))
    assert rows(found, "objects", "reads", "writes") == [(64, 0), (0, 64)]
    assert not any("accesses were not" in note for note in found.notes)
    assert found.findings[0].confidence == "medium"


def test_what_has_no_partner_is_counted(tmp_path: Path) -> None:
    """Each pass has an allocation, and a launch on it, that the other one lacks."""
    times, accesses = Program(probed=False), Program(ELSEWHERE, faulting=False)
    for events, other, name in ((times, 3 * BLOCK, "early"), (accesses, 5 * BLOCK, "late")):
        events.managed(64, other)
        events.managed(0, BLOCK)
        events.kernel("step", range(32), range(32), scans=(0,))
        events.kernel(name, range(64, 96), scans=(64,))
    found = result(joined(tmp_path, times, accesses))
    assert (
        "without a partner in the other pass: 1 managed allocation of times, 1 managed allocation"
        " of accesses, 1 launch with accesses"
    ) in found.notes
    assert any(note.endswith("what faulted or moved: 1 of 2") for note in found.notes)
    touched = rows(found, "launches", "kernel", "touched")
    assert touched == [("step", BLOCK), ("early", BLOCK)]
    reads = rows(found, "objects", "object_bytes", "reads")
    assert sorted(reads) == [(BLOCK, 32), (3 * BLOCK, 0)]
    assert {each.confidence for each in found.findings} == {"low"}


def test_a_tensor_without_partner_counts_for_its_allocation(tmp_path: Path) -> None:
    """PyTorch was followed in one pass only."""
    times = Program(probed=False)
    times.managed(0, 8 * BLOCK)
    for number in (0, 2, 4, 6, 0, 2, 4, 6):
        first = 32 * number
        times.kernel(f"add{number}", range(first, first + 32), range(first + 32, first + 64))
    found = result(joined(tmp_path, times, training(base=ELSEWHERE, faulting=False)))
    assert (
        "accesses to 8 tensors without a partner in the other pass count for their allocations"
    ) in found.notes
    parts = rows(found, "parts", "offset", "launches", "reads", "writes")
    assert sorted(parts) == [
        (number * BLOCK, 2, *((0, 64) if number % 2 else (64, 0))) for number in range(8)
    ]


def test_a_pass_without_tensors(tmp_path: Path) -> None:
    """PyTorch was followed in the pass with times only."""
    accesses = Program(ELSEWHERE, faulting=False)
    accesses.managed(0, 8 * BLOCK)
    for number in (0, 2, 4, 6):
        accesses.kernel(f"add{number}", range(32 * number, 32 * number + 64))
    found = result(joined(tmp_path, training(probed=False), accesses))
    assert any(note.endswith("advice covers allocations only") for note in found.notes)
    assert {level for (level,) in rows(found, "advice", "level")} == {"object-level"}
    assert rows(found, "objects", "reads") == [(4 * 64,)]


def test_a_pass_without_managed_memory(tmp_path: Path) -> None:
    accesses = Program(faulting=False)
    accesses.alloc(A, BLOCK)
    for kernel in ("step", "step", "other"):
        accesses.kernel(kernel, range(4))
    found = result(joined(tmp_path, exchange(probed=False), accesses))
    assert any("accesses were not recorded" in note for note in found.notes)
    assert sum(faults for (faults,) in rows(found, "objects", "faults")) == 24


def changed(table: Path, **columns: Any) -> None:
    """Other values in the first row of a stored table."""
    stored = pq.read_table(table)
    for name, value in columns.items():
        at, field = stored.column_names.index(name), stored.schema.field(name)
        values = [value, *stored[name].to_pylist()[1:]]
        kind = pa.string() if isinstance(value, str) else pa.int64() if value < 0 else field.type
        values = list(map(str, values)) if isinstance(value, str) else values
        stored = stored.set_column(at, name, pa.array(values, kind))
    pq.write_table(stored, table)


@pytest.mark.parametrize(
    ("table", "columns", "why"),
    [
        ("touched", {"bin": 32}, "ranges beyond their objects"),
        ("touched", {"parts": 2**63}, "ranges beyond their objects"),
        ("touched", {"parts": 0}, "ranges beyond their objects"),
        ("touched", {"part": 0}, "parts of different sizes"),
        ("touched", {"object": 7}, "objects that are not in touched_objects"),
        ("touched", {"reads": -1}, "column reads has negative numbers"),
        ("touched", {"launch": "none"}, "column launch does not hold whole numbers"),
        ("touched_objects", {"owner": 9}, "objects that are not in touched_objects"),
        ("touched_objects", {"bytes": 4}, "ranges beyond their objects"),
    ],
)
def test_damaged_tables(tmp_path: Path, table: str, columns: Any, why: str) -> None:
    """The other results are joined, and a warning says what is not."""
    times = times_run(tmp_path / "times", exchange(probed=False))
    accesses = times_run(tmp_path / "accesses", exchange(base=ELSEWHERE, faulting=False))
    changed(accesses.results / "uvm_advisor" / f"{table}.parquet", **columns)
    run = join(tmp_path, times, accesses)
    first, *_ = run.manifest()["warnings"]
    assert first.startswith("uvm_advisor is not joined: uvm_advisor of the pass accesses: table ")
    assert why in first
    assert "of the pass times (refacc 1.0)" in result(run).notes


def test_a_table_that_is_no_parquet_or_absent(tmp_path: Path) -> None:
    times = times_run(tmp_path / "times", exchange(probed=False))
    accesses = times_run(tmp_path / "accesses", exchange(base=ELSEWHERE, faulting=False))
    place = accesses.results / "uvm_advisor"
    (place / "touched.parquet").write_bytes(b"PAR1")
    (first, *_) = join(tmp_path, times, accesses).manifest()["warnings"]
    assert first.startswith("uvm_advisor is not joined: ") and "touched.parquet" in first
    document = (place / "result.json").read_text()
    (place / "result.json").write_text(document.replace('"touched",', ""))
    (first, *_) = join(tmp_path, times, accesses).manifest()["warnings"]
    assert "it has no table touched: record it again" in first


def test_options_are_those_of_the_pass_with_accesses(tmp_path: Path) -> None:
    times = times_run(tmp_path / "times", exchange(probed=False))
    accesses = times_run(tmp_path / "accesses", exchange(base=ELSEWHERE, faulting=False))
    manifested(accesses, config={"tool_options": {"uvm_advisor": {"advised": 1}}})
    found = result(join(tmp_path, times, accesses))
    assert len(set(rows(found, "advice", "object_address"))) == 1
    manifested(accesses, config={"tool_options": {"uvm_advisor": {"no_such": 1}}})
    (first, *_) = join(tmp_path, times, accesses).manifest()["warnings"]
    assert first.startswith("uvm_advisor is not joined: tool uvm_advisor has no option 'no_such'")
