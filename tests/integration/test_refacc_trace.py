"""The access trace of the demo `accesses`, against the demo's own counts."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from pasta._native import DIRECTORY, ffi, lib
from pasta.runtime.trace import TraceReader
from tests.support.session import Session, records

#: Path of another build of the native parts, such as one with a sanitizer.
NATIVE = Path(os.environ.get("PASTA_TEST_NATIVE", DIRECTORY))
KINDS = {
    getattr(lib, name): name.removeprefix("PASTA_ACCESS_")
    for name in dir(lib)
    if name.startswith("PASTA_ACCESS_") and name[13:].islower() and name != "PASTA_ACCESS_count"
}
FIELDS = ("instructions", "reads", "writes", "atomics", "lanes", "bytes", "sectors")
RECORD = np.dtype(
    [
        ("mask", "u4"), ("kind", "u1"), ("flags", "u1"), ("form", "u1"), ("sm", "u1"),
        ("bytes", "u4"), ("rows", "u2"), ("warp", "u2"), ("stride", "i8"), ("address", "u8"),
        ("pc", "u8"), ("launch", "u8"), ("block", "u8"),
    ]
)  # fmt: skip


@dataclass(frozen=True)
class Access:
    """A record, with the address of each active lane."""

    kind: str
    flags: int
    bytes: int
    rows: int
    stride: int
    launch: int
    block: int
    warp: int
    addresses: list[int]
    sm: int = 0
    values: tuple[int, ...] = ()

    @property
    def transfer(self) -> int:
        return self.bytes * self.rows * len(self.addresses)

    def ranges(self) -> Iterator[range]:
        for address in self.addresses:
            for row in range(self.rows):
                start = address + row * self.stride
                yield range(start, start + self.bytes)


def accesses(path: Path) -> list[Access]:
    """All accesses of a trace without producers."""
    error = ffi.new("int *")
    trace = lib.pasta_trace_map(os.fsencode(path), error)
    assert trace != ffi.NULL, error[0]
    count, found = ffi.new("uint32_t *"), []
    while (data := lib.pasta_trace_take(trace, lib.PASTA_TAKE_final, count)) != ffi.NULL:
        chunk, at = bytes(ffi.buffer(data, count[0])), 0
        while at < len(chunk):
            access, length = decode(chunk, at)
            found.append(access)
            at += length
        assert at == len(chunk)
        lib.pasta_trace_release(trace)
    assert trace.dropped == 0
    lib.pasta_trace_unmap(trace)
    return found


def decode(chunk: bytes, at: int) -> tuple[Access, int]:
    (record,) = np.frombuffer(chunk, RECORD, 1, at)
    lanes = [lane for lane in range(32) if int(record["mask"]) >> lane & 1]
    base, stride, length = int(record["address"]), int(record["stride"]), RECORD.itemsize
    addresses = [base + lane * stride for lane in lanes]
    form, words = int(record["form"]) & 15, int(record["form"]) >> lib.PASTA_FORM_VALUES
    if form == lib.PASTA_FORM_ROWS:
        addresses = [base]
    elif form == lib.PASTA_FORM_DELTAS:
        deltas = np.frombuffer(chunk, np.int32, len(lanes), at + length)
        addresses, length = [base + int(d) for d in deltas], length + (len(lanes) + 1) // 2 * 8
    elif form == lib.PASTA_FORM_FULL:
        addresses = np.frombuffer(chunk, np.uint64, len(lanes), at + length).tolist()
        length += len(lanes) * 8
    names = ("flags", "bytes", "rows", "stride", "launch", "block", "warp", "sm")
    fields = {name: int(record[name]) for name in names}
    found = np.frombuffer(chunk, np.uint64, words * len(lanes), at + length)
    length += found.nbytes
    values = tuple(found.tolist())
    kind = KINDS[int(record["kind"])]
    return Access(kind=kind, addresses=addresses, values=values, **fields), length


def sectors(access: Access) -> int:
    return len({byte // 32 for extent in access.ranges() for byte in extent})


Record = Callable[..., list[Access]]


def run(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [NATIVE / "bin" / "accesses", *arguments],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


def expected(*arguments: str) -> dict[str, int]:
    lines = run(*arguments, "--expect").splitlines()
    return {key: int(value) for key, value in (line.split("=") for line in lines)}


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session.create(tmp_path / "session")


@pytest.fixture
def record(session: Session) -> Record:
    def record_demo(*arguments: str, **config: object) -> list[Access]:
        run(
            *arguments,
            PASTA_SHIM=session.configuration(collector=1, **config),
            LD_PRELOAD=str(NATIVE / "libpasta.so"),
        )
        traces = [path for path in session.rings() if path.suffix == ".trace"]
        assert len(traces) == bool(config.get("probes"))
        return accesses(traces[0]) if traces else []

    return record_demo


def tallied(found: list[Access], name: str) -> Counter[str]:
    """The demo's counts, computed from records."""
    tally: Counter[str] = Counter()
    for access in found:
        key = f"{name}.{access.kind}"
        tally[f"{key}.instructions"] += 1
        tally[f"{key}.reads"] += access.flags & lib.PASTA_ACCESS_READ > 0
        tally[f"{key}.writes"] += access.flags & lib.PASTA_ACCESS_WRITE > 0
        tally[f"{key}.atomics"] += access.flags & lib.PASTA_ACCESS_ATOMIC > 0
        tally[f"{key}.lanes"] += len(access.addresses)
        tally[f"{key}.bytes"] += access.transfer
        tally[f"{key}.sectors"] += sectors(access)
    return tally


def test_every_case_has_the_expected_accesses(record: Record, session: Session) -> None:
    expect = expected()
    found = record(probes=1)
    names = [key.split(".")[0] for key in expect if key.endswith(".launches")]
    first = 0
    for name in names:
        launches = range(first, first := first + expect[f"{name}.launches"])
        tally = tallied([access for access in found if access.launch in launches], name)
        stated = {
            key: number
            for key, number in expect.items()
            if key.startswith(f"{name}.") and key.rpartition(".")[2] in FIELDS
        }
        assert {key: tally[key] for key in stated} == stated
        assert {key.split(".")[1] for key in tally} == {key.split(".")[1] for key in stated}
    assert first == expect["launches"]
    (ring,) = (path for path in session.rings() if not path.suffix)
    launched = [event for event in records(ring) if event["event"] == "kernel_launch"]
    assert [event["ordinal"] for event in launched] == list(range(first))
    clusters = {event["name"]: event["cluster"] for event in launched}
    assert clusters["_Z16cluster_exchangePj"] == [2, 1, 1]
    assert clusters["_Z7stridedPKfPfii"] == [0xFFFF] * 3


def test_launches_with_lost_accesses_are_known(session: Session) -> None:
    """Without a consumer, the trace takes the first accesses only."""
    small = {"trace_chunk_bytes": 4096, "trace_chunks": 2, "trace_start_ms": 100}
    run(
        PASTA_SHIM=session.configuration(collector=1, probes=1, **small),
        LD_PRELOAD=str(NATIVE / "libpasta.so"),
        REFACC_THREADS="1",
    )
    (path,) = (path for path in session.rings() if path.suffix == ".trace")
    reader, launches = TraceReader(path), expected()["launches"]
    chunks = [bytes(chunk) for chunk in reader.chunks(final=True)]
    kept = {decode(chunk, 0)[0].launch for chunk in chunks}
    lost = reader.lost(1 << 40).tolist()
    assert kept and reader.dropped > 0
    assert lost == list(range(lost[0], launches))  # the demo's kernels all have accesses
    assert max(kept) <= lost[0]
    reader.close()


def test_kinds_can_be_selected(record: Record) -> None:
    some = (lib.PASTA_ACCESS_bulk_load, lib.PASTA_ACCESS_barrier)
    found = record("bulk", "stride_1", probes=1, probe_kinds=",".join(map(str, some)))
    assert Counter(access.kind for access in found) == {"bulk_load": 4, "barrier": 32}


def test_accesses_of_a_warp_are_in_program_order(record: Record) -> None:
    found = record("async_copy", probes=1)
    order = ["block_enter", "async_copy", "barrier", "shared", "global", "block_exit"]
    for block in range(4):
        for warp in range(4):
            mine = [a.kind for a in found if (a.block, a.warp) == (block, warp)]
            assert mine == order
    assert not any(access.values for access in found)  # nobody asked for them, nor for times
    assert {a.addresses[0] for a in found if a.kind == "block_enter"} == {0}


def test_blocks_are_in_order_with_times_and_values(record: Record) -> None:
    """For probes that need them: a copy stores what it loaded, and each multiprocessor executes its
    blocks one after the other."""
    found = record("stride_1", probes=1, probe_ordered=1, probe_values=1)
    assert [access.block for access in found] == sorted(access.block for access in found)
    loads, stores = (
        {(a.block, a.warp): a.values for a in found if a.kind == "global" and a.flags == flag}
        for flag in (lib.PASTA_ACCESS_READ, lib.PASTA_ACCESS_WRITE)
    )
    assert loads == stores and len(next(iter(loads.values()))) == 32
    assert len(set(loads.values())) > 1
    before: dict[int, int] = {}
    for access in found:
        if access.kind in ("block_enter", "block_exit"):
            (time,) = set(access.addresses)
            assert access.sm == access.block % 16 and time > before.get(access.sm, 0)
            before[access.sm] = time
    begins = [a.addresses[0] for a in found if a.kind == "block_enter" and a.block < 16]
    assert begins and max(begins) - min(begins) < max(before.values()) - min(begins)


@pytest.mark.parametrize("config", [{"probes": 1, "start": 0}, {}, {"probes": ""}], ids=str)
def test_accesses_are_not_recorded_by_default(record: Record, config: dict[str, object]) -> None:
    assert record("stride_1", **config) == []
