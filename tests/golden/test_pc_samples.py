"""Samples with known kernels, offsets and stall reasons."""

from __future__ import annotations

from typing import Any

import pytest

from pasta.plugins import find_tools
from pasta.testing import Events, run_tool
from pasta.tool import Result

(PcSamples,) = find_tools("pc_samples")


def sample(events: Events, pc: int, samples: int, **fields: Any) -> None:
    events.add("pc_sample", pc=pc, samples=samples, **fields)


@pytest.fixture
def events() -> Events:
    events = Events()
    first = events.launch("_Z4vaddPf", function=1)
    events.launch("_Z4gemmPf", function=2)
    sample(events, 0x10, 5, ordinal=first, function=1, reason="s_waitcnt", not_issued=4)
    sample(events, 0x10, 2, ordinal=first, function=1, reason="execution stalled", not_issued=0)
    sample(events, 0x20, 1, ordinal=first, function=1, reason="s_waitcnt", not_issued=1)
    sample(events, 0x40, 12, function=2)  # without a launch
    sample(events, 0x10, 1, ordinal=999, function=77)  # of a kernel that was never launched
    return events


def rows(result: Result, table: str, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in columns) for row in result.tables[table].rows()]


def test_samples_by_kernel(events: Events) -> None:
    result = run_tool(PcSamples, events)
    assert rows(result, "kernels", "kernel", "samples", "not_issued") == [
        ("gemm", 12, None), ("vadd", 8, 5), ("(unknown)", 1, None),
    ]  # fmt: skip
    assert result.summary == "21 samples in 3 kernels; most: gemm, 57.1 %"


def test_samples_by_offset_and_stall_reason(events: Events) -> None:
    result = run_tool(PcSamples, events)
    assert rows(result, "places", "kernel", "offset", "samples") == [
        ("gemm", 0x40, 12), ("vadd", 0x10, 7), ("(unknown)", 0x10, 1), ("vadd", 0x20, 1),
    ]  # fmt: skip
    found = rows(result, "reasons", "kernel", "samples")
    assert found == [("gemm", 12), ("vadd", 6), ("vadd", 2), ("(unknown)", 1)]
    reasons = [reason for (reason,) in rows(result, "reasons", "reason")]
    assert reasons == ["(unknown)", "s_waitcnt", "execution stalled", "(unknown)"]
    assert sum(row["samples"] for row in result.tables["all"].rows()) == 21


def test_offsets_within_a_module() -> None:
    events = Events()
    ordinal = events.launch("_Z4vaddPf", function=1)
    sample(events, 0x1010, 3, ordinal=ordinal)
    sample(events, 0x10, 2, ordinal=ordinal, function=1)
    table = run_tool(PcSamples, events).tables["places"]
    assert [(row["kernel"], row["offset"], row["within"]) for row in table.rows()] == [
        ("vadd", 0x1010, "module"), ("vadd", 0x10, "kernel"),
    ]  # fmt: skip
    assert "within" not in table.hidden


def test_offsets_beyond_the_limit(events: Events) -> None:
    result = run_tool(PcSamples, events, options={"places": 2})
    assert sum(row["samples"] for row in result.tables["kernels"].rows()) == 7
    assert "3 records dropped: more locations than the limit" in result.summary


def test_no_samples() -> None:
    assert run_tool(PcSamples, Events()).summary.startswith("no samples were taken")


@pytest.mark.parametrize("split", range(8))
def test_results_are_independent_of_batches(events: Events, split: int) -> None:
    whole, cut = run_tool(PcSamples, events), run_tool(PcSamples, events, splits=[split])
    assert rows(whole, "all", "kernel", "offset", "samples") == rows(
        cut, "all", "kernel", "offset", "samples"
    )


def continuous(events: Events, name: str, pc: int, samples: int, reason: str, module: int) -> None:
    """A sample without a launch."""
    sample(events, pc, samples, name=name, reason=reason, not_issued=0, module_hash=module)


def test_samples_without_launches() -> None:
    """Their records name the function; the same function of two modules is one kernel."""
    events = Events()
    continuous(events, "_Z4gemmPf", 0x10, 700, "long_scoreboard", 1)
    continuous(events, "_Z4gemmPf", 0x10, 200, "wait", 1)
    continuous(events, "_Z4gemmPf", 0x10, 200, "wait", 2)
    continuous(events, "_Z4vaddPf", 0x10, 100, "wait", 2)
    result = run_tool(PcSamples, events)
    assert rows(result, "kernels", "kernel", "samples") == [("gemm", 1100), ("vadd", 100)]
    places = rows(result, "places", "kernel", "offset", "within", "samples", "line")
    assert places == [
        ("gemm", 0x10, "kernel", 900, None), ("gemm", 0x10, "kernel", 200, None),
        ("vadd", 0x10, "kernel", 100, None),
    ]  # fmt: skip
    assert {"line", "instruction"} <= result.tables["places"].hidden
    assert "lines" not in result.tables
    assert list(result.notes) == [
        "source lines and instructions of 2 modules are unknown because the code was not kept:"
        " record with --record, or raise probes.code-memory"
    ]
    (finding,) = result.findings
    assert finding.where == "gemm at 0x10"
    assert finding.evidence == "75.0 % of 1,200 samples; most of these, 77.8 %: long_scoreboard"
    assert finding.gain == 0.75


def test_samples_without_a_place_are_notes(events: Events) -> None:
    every = 0xFFFF_FFFF_FFFF_FFFF
    for _ in range(2):
        sample(events, every, 4_000_000_000, reason="dropped by the hardware")
        sample(events, every, 0, reason="the hardware's buffer was full")
    result = run_tool(PcSamples, events)
    assert list(result.notes) == [
        "8,000,000,000 further samples have no place: dropped by the hardware",
        "an unknown number of samples is missing: the hardware's buffer was full (2 times)",
    ]
    assert result.summary == "21 samples in 3 kernels; most: gemm, 57.1 %"
