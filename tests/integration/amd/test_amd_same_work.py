"""The same workload on every replayed runtime gives the same events, field by field.

Handles and addresses differ between runtimes: the objects that they refer to are compared. What a
source cannot give is in GAPS, and must be absent there: a table of what is not compared would
hide what is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pasta.capabilities import CAPABILITIES
from pasta.sources import known_sources
from tests.integration.amd.conftest import SOURCE
from tests.support.amd_replayer import Replayer
from tests.support.amd_work import KERNEL, WORK, Hip
from tests.support.played import LIBRARY, Played, play

NVIDIA, REFACC, AMD, AMD_0_5 = "nvidia_sanitizer", "refacc", "amd_rocprofiler", "amd 0.5"
SOURCES = (NVIDIA, REFACC, AMD, AMD_0_5)
BOTH_AMD = (AMD, AMD_0_5)


@dataclass(frozen=True)
class Gap:
    """Data that some sources cannot provide. `field` "*": the whole kind; `where`: only in records
    whose field has that value."""

    sources: tuple[str, ...]
    kind: str
    field: str
    reason: str
    where: tuple[str, str] | None = None

    def __str__(self) -> str:
        return f"{self.kind}.{self.field} {' '.join(self.sources)}"

    def covers(self, source: str, row: dict[str, Any]) -> bool:
        return source in self.sources and (not self.where or row[self.where[0]] == self.where[1])


IN_GRAPH = ("flags", "graph async")
GAPS = (
    Gap((NVIDIA,), "kernel_complete", "*", "the Sanitizer has no clocks of the device"),
    Gap((NVIDIA,), "copy_complete", "*", "the Sanitizer has no clocks of the device"),
    Gap((NVIDIA, REFACC), "graph_instantiate", "*", "reported by the framework's hooks only"),
    Gap((REFACC,), "stream_create", "id", "refacc numbers no streams"),
    Gap((REFACC,), "stream_destroy", "id", "refacc numbers no streams"),
    Gap((NVIDIA,), "stream_create", "priority", "not reported"),
    Gap((NVIDIA, *BOTH_AMD), "stream_destroy", "priority", "reported when it was created"),
    Gap((NVIDIA,), "kernel_launch", "registers", "not reported"),
    Gap((NVIDIA,), "kernel_launch", "shared_static", "not reported"),
    Gap((NVIDIA,), "kernel_launch", "shared_dynamic", "not reported"),
    Gap((NVIDIA,), "kernel_launch", "local", "not reported"),
    Gap(BOTH_AMD, "kernel_launch", "graph_node", "dispatches do not name their node"),
    Gap((AMD_0_5,), "kernel_launch", "entry_pc", "addresses of kernels came with 1.0"),
    Gap(BOTH_AMD, "memory_copy", "graph_node", "copies do not name their node"),
    Gap((AMD_0_5,), "memory_copy", "source", "copies have addresses since 1.0", IN_GRAPH),
    Gap((AMD_0_5,), "memory_copy", "destination", "copies have addresses since 1.0", IN_GRAPH),
    Gap(BOTH_AMD, "graph_launch_end", "launch_id", "graph launches have no number"),
    Gap(BOTH_AMD, "graph_launch", "launch_id", "graph launches have no number"),
    Gap((NVIDIA,), "graph_launch", "launch_id", "known when the call returns"),
    Gap((REFACC, *BOTH_AMD), "sync", "handle", "a device has no handle", ("what", "device")),
    Gap((NVIDIA,), "uvm_attach", "bytes", "not reported"),
)
#: Fields for which sources report different values: kind, field, sources, their value, the others'
#: value.
REPORTED_AS = (
    ("sync", "what", (NVIDIA,), "context", "device"),  # the driver waits for the context
)
#: Source-specific fields, present but not compared: ids and names without meaning elsewhere.
OWN = {
    "*": {"index", "kind", "slots", "time", "thread", "correlation"},
    "context_create": {"name", "handle"},
    "stream_create": {"id"},
    "stream_destroy": {"id"},
    "module_load": {"hash", "bytes"},
    "kernel_launch": {"registers", "local", "entry_pc", "function"},
    "kernel_complete": {"start", "end"},
    "copy_complete": {"start", "end"},
    "memory_alloc": {"vendor_flags"},
    "memory_free": {"vendor_flags"},
    "sync": {"duration"},
    "range_push": {"origin"},
    "range_pop": {"origin"},
    "mark": {"origin"},
}
#: Kinds that describe where the work ran, not the work itself.
ABOUT = {"process_start", "process_end", "device"}
ADDRESSES = {"source", "destination", "address"}
#: Copies that every source with clocks times: AMD's engines do no sets, nor copies on a device.
TIMED = {"host_to_device", "device_to_host"}


def on_cuda(programs: Path, directory: Path, api: str = "13.5") -> Played:
    fake = programs / "libsanitizer-public.so"
    work = directory / "work.txt"
    work.write_text(WORK)
    return play(
        [programs / "cuda", work], directory, f"sanitizer_lib={fake}\n",
        LD_PRELOAD=str(LIBRARY), NVTX_INJECTION64_PATH=str(LIBRARY), FAKE_SANITIZER=str(fake),
        FAKE_SANITIZER_API=api,
    )  # fmt: skip


def on_refacc(programs: Path, directory: Path) -> Played:
    work = directory / "work.txt"
    work.write_text(WORK)
    return play([programs / "refacc", work], directory, LD_PRELOAD=str(LIBRARY))


class Names:
    """Maps a handle or address to the run's object, numbered in order of creation."""

    def __init__(self, played: Played) -> None:
        self.played = played
        self.made: dict[str, dict[int, str]] = {}
        for what, kind, column in (
            ("stream", "stream_create", "handle"),
            ("event", "event_create", "handle"),
            ("graph", "graph_launch", "graph"),
            ("context", "context_create", "handle"),
        ):
            handles = dict.fromkeys(int(handle) for handle in played[kind][column])
            self.made[what] = {handle: f"{what} {i}" for i, handle in enumerate(handles)}
        self.made["stream"][0] = "default stream"
        # modules that kernels were launched from
        modules = dict.fromkeys(int(module) for module in played["kernel_launch"]["module"])
        self.made["module"] = {module: f"module {i}" for i, module in enumerate(modules)}
        nodes = [
            played.plain(kind, row)["graph_node"]
            for kind, row in played.in_order()
            if kind in ("kernel_launch", "memory_copy", "memory_set")
        ]
        self.made["node"] = {node: f"node {i}" for i, node in enumerate(dict.fromkeys(nodes))}
        self.blocks = [(int(row["address"]), int(row["bytes"])) for row in played["memory_alloc"]]

    def of(self, what: str, handle: Any) -> Any:
        return (
            None if handle is None else self.made[what].get(handle, f"unknown {what} {handle:#x}")
        )

    def address(self, address: Any) -> Any:
        for i, (begin, size) in enumerate(self.blocks):
            if address is not None and begin <= address < begin + size:
                return f"block {i} + {address - begin}"
        return address


def named(kind: str, row: dict[str, Any], names: Names) -> dict[str, Any]:
    """A record with names instead of handles and addresses."""
    row = dict(row)
    row["stream"] = names.of("stream", row["stream"])
    for column in ADDRESSES & set(row):
        row[column] = names.address(row[column])
    if kind.startswith("stream_"):
        row["handle"] = names.of("stream", row["handle"])
    elif kind.startswith("event_"):
        row["handle"] = names.of("event", row["handle"])
    elif kind == "sync":
        row["handle"] = names.of(row["what"], row["handle"])
    elif kind.startswith("graph_launch"):
        row["graph"] = names.of("graph", row["graph"])
    elif kind == "kernel_launch":
        row["module"] = names.of("module", row["module"])
    if "graph_node" in row:
        row["graph_node"] = names.of("node", row["graph_node"])
    if row.get("height") == 1:  # it has no meaning for a single row
        row.update({column: None for column in row if column.endswith("pitch")})
    return row


def events(played: Played) -> dict[str, list[dict[str, Any]]]:
    """Records by kind, in order; out-of-order completions are sorted by submission."""
    names = Names(played)
    found: dict[str, list[dict[str, Any]]] = {}
    for kind, row in played.in_order():
        if kind in ABOUT or row["flags"] & 4:  # the runtime's own
            continue
        plain = named(kind, played.plain(kind, row), names)
        if kind in ("module_load", "module_unload") and plain["handle"] not in names.made["module"]:
            continue  # without a kernel of the program
        if kind == "copy_complete" and plain["direction"] not in TIMED:
            continue
        plain.update({"handle": "a module"} if kind.startswith("module") else {})
        found.setdefault(kind, []).append(plain)
    found.get("kernel_complete", []).sort(key=lambda row: row["ordinal"])
    found.get("copy_complete", []).sort(key=lambda row: row["correlation"])
    return found


Recorded = dict[str, dict[str, list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def recorded(
    programs: Path, tmp_path_factory: pytest.TempPathFactory, replayer: Replayer
) -> Recorded:
    def directory(name: str) -> Path:
        return tmp_path_factory.mktemp(name)

    def on_hip(version: str) -> Played:
        place = directory("hip")
        stream = Hip().do(WORK).write(place / "stream.txt")
        environment = replayer.environment(str(SOURCE), version)
        return play([replayer.program, stream], place, LD_PRELOAD=str(LIBRARY), **environment)

    runs = {
        NVIDIA: on_cuda(programs, directory("cuda")),
        REFACC: on_refacc(programs, directory("refacc")),
        AMD: on_hip("1.0.0"),
        AMD_0_5: on_hip("0.5.0"),
    }
    for name, played in runs.items():
        assert (played.status, played.stderr) == (7, ""), name
    return {name: events(played) for name, played in runs.items()}


def gaps_of(kind: str, field: str) -> list[Gap]:
    return [gap for gap in GAPS if (gap.kind, gap.field) == (kind, field)]


def without(kind: str) -> set[str]:
    """Sources without this kind, by the table."""
    return {source for gap in gaps_of(kind, "*") for source in gap.sources}


def kinds_of(recorded: Recorded) -> list[str]:
    return sorted({kind for tables in recorded.values() for kind in tables})


def test_sources_record_equal_counts(recorded: Recorded) -> None:
    for kind in kinds_of(recorded):
        given = {source: len(recorded[source].get(kind, ())) for source in SOURCES}
        assert all(given.pop(source) == 0 for source in without(kind)), kind
        assert len(set(given.values())) == 1, (kind, given)


def as_told(source: str, kind: str, field: str, value: Any) -> Any:
    for other_kind, other_field, sources, theirs, others in REPORTED_AS:
        if (kind, field) == (other_kind, other_field) and source not in sources:
            return theirs if value == others else value
    return value


def test_sources_record_equal_fields(recorded: Recorded) -> None:
    wrong = []
    for kind in kinds_of(recorded):
        tables = {
            source: recorded[source][kind] for source in SOURCES if source not in without(kind)
        }
        for i, records in enumerate(zip(*tables.values(), strict=True)):
            for field in set(records[0]) - OWN["*"] - OWN.get(kind, set()):
                given = {
                    source: as_told(source, kind, field, row[field])
                    for source, row in zip(tables, records, strict=True)
                    if not any(gap.covers(source, row) for gap in gaps_of(kind, field))
                }
                if len(set(map(repr, given.values()))) > 1:
                    wrong.append(f"{kind} {i}, {field}: {given}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("gap", [gap for gap in GAPS if gap.field != "*"], ids=str)
def test_unsupported_fields_are_absent(recorded: Recorded, gap: Gap) -> None:
    """The table has no superfluous entry, and hides no value."""
    for source in gap.sources:
        rows = [row for row in recorded[source][gap.kind] if gap.covers(source, row)]
        assert rows
        assert {row[gap.field] for row in rows} == {None}, source
    others = [
        row[gap.field]
        for source in SOURCES
        for row in recorded[source].get(gap.kind, ())
        if not any(other.covers(source, row) for other in gaps_of(gap.kind, gap.field))
    ]
    assert any(value is not None for value in others)


#: Vendors' flags, values that the Sanitizer does not measure, and the name of the replayed driver's
#: device.
MAY_LACK = {"vendor_flags", "duration", "name"}


def test_gaps_are_not_claimed_as_capabilities() -> None:
    """A gap here is not claimed as a capability in the table of backends."""
    by_field = {(each.kind, each.field or "*"): each for each in CAPABILITIES.values()}
    compared = 0
    for gap in GAPS:
        each = by_field.get((gap.kind, gap.field))
        if each is None or gap.where:
            continue
        for source in set(gap.sources) - {AMD_0_5}:
            assert each.name not in known_sources()[source].gives, gap
            compared += 1
    assert compared > 8


def test_source_specific_records_exist(recorded: Recorded) -> None:
    for kind, fields in OWN.items():
        for source in SOURCES:
            for row in recorded[source].get(kind, ()):
                for field in fields:
                    if any(gap.covers(source, row) for gap in gaps_of(kind, field)):
                        continue
                    assert row[field] is not None or field in MAY_LACK, (source, kind, field)


def test_records_of_one_operation_share_a_correlation(recorded: Recorded) -> None:
    for source, tables in recorded.items():
        for begin, ends in (
            ("kernel_launch", ("kernel_launch_end", "kernel_complete")),
            ("graph_launch", ("graph_launch_end",)),
        ):
            begun = [row["correlation"] for row in tables[begin]]
            assert len(set(begun)) == len(begun)
            for end in ends:
                if end in tables:
                    assert [row["correlation"] for row in tables[end]] == begun, (source, end)
        if "copy_complete" in tables:
            copies = [row for row in tables["memory_copy"] if row["direction"] in TIMED]
            begun = [row["correlation"] for row in copies]
            assert [row["correlation"] for row in tables["copy_complete"]] == begun, source


def test_work_is_recorded(recorded: Recorded) -> None:
    """The reference for the comparison is the workload itself."""
    tables = recorded[AMD]
    launches = [line.split()[1:] for line in WORK.splitlines() if line.startswith("launch")]
    names = {row["name"] for row in tables["kernel_launch"]}
    assert names == {KERNEL}
    grids = [tuple(map(int, words[:3])) for words in launches]
    graph, off = grids[3:5], grids[5]
    expected = [*grids[:3], *graph, *graph, grids[6]]
    assert off not in expected
    assert [row["grid"] for row in tables["kernel_launch"]] == expected
    assert [row["bytes"] for row in tables["memory_set"]] == [4097, 400, 200, 30000, 30000]
    assert len(tables["memory_alloc"]) == len(tables["memory_free"]) == 5
    assert np.sum([row["bytes"] for row in tables["memory_free"]]) == np.sum(
        [row["bytes"] for row in tables["memory_alloc"]]
    )
