"""PC samples on a real GPU: by instruction, with reasons, beside the times of kernels."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from pasta.sass.toolkit import find_nvdisasm
from tests.support.ncu import launch_rows, profile

from .conftest import Build, Run

pytestmark = pytest.mark.counters  # one process can sample at a time
CANNOT = 3  # exit status of a program that cannot do something: no example does
VADD = ("--n", str(1 << 26), "--launches", "50")
SAMPLES = ("-t", "pc_samples,kernel_freq", "--set", "nvidia.pc_sampling=1024cycles", "--record")


def test_samples_of_vadd(example: Build, native: Run, profiled: Run) -> None:
    program = example("vadd")
    alone = native(program, *VADD, "--expect")
    run = profiled(program, *VADD, "--expect", options=SAMPLES)
    assert (run.status, run.stdout) == (alone.status, alone.stdout), run.stderr
    manifest = json.loads((run.directory / "run.json").read_text())
    assert list(manifest["sources"]) == ["nvidia_cupti"], run.stderr
    assert manifest["samples"]["located"] > 10_000
    unlocated = manifest["samples"]["unlocated"]
    assert unlocated.get("dropped by the hardware", 0) == 0
    assert "the hardware's buffer was full" not in unlocated
    located = [row for row in run.rows("pc_sample") if row["pc"] is not None]
    assert {row["name"] for row in located} == {"_Z4vaddPKfS0_Pfm"}
    assert all(row["pc"] % 16 == 0 for row in located)
    assert all(0 <= row["not_issued"] <= row["samples"] for row in located)
    assert {row["ordinal"] for row in located} == {None}
    # the hash that CUPTI was given is that of the module event, whose image was kept
    modules = {row["hash"] for row in run.rows("module_load")}
    assert {row["module_hash"] for row in located} <= modules
    reasons: Counter[str] = Counter()
    for row in located:
        reasons[row["reason"]] += row["samples"]
    assert {"long_scoreboard", "selected"} <= reasons.keys()
    assert reasons["long_scoreboard"] > 0.3 * reasons.total()  # bound by memory
    assert run.counts["kernel_complete"] == run.expected["kernel_launch"]


def test_places_have_instructions(example: Build, profiled: Run) -> None:
    """Most stalls are at the first use of what was loaded, or at the store."""
    import pyarrow.parquet as pq

    run = profiled(example("vadd"), *VADD, options=SAMPLES)
    path = run.directory / "results" / "pc_samples" / "places.parquet"
    first = pq.read_table(path).to_pylist()[0]
    assert first["kernel"] == "vadd"
    if find_nvdisasm():
        assert first["instruction"].partition(" ")[0].partition(".")[0] in ("FADD", "STG", "LDG")


def test_serialized_samples_have_launches(example: Build, profiled: Run) -> None:
    options = (*SAMPLES, "--set", "nvidia.pc_sampling_mode=serialized", "--launch-count", "5")
    run = profiled(example("vadd"), *VADD, options=options)
    assert run.status == 0, run.stderr
    ordinals = {row["ordinal"] for row in run.rows("pc_sample") if row["pc"] is not None}
    assert ordinals == set(range(5))
    assert run.counts["kernel_complete"] == 5


@pytest.mark.parametrize("program", ["graph", "contexts", "two_streams", "cudnn_app"])
def test_programs_are_unharmed(example: Build, native: Run, profiled: Run, program: str) -> None:
    """Graphs, several contexts, and modules that are loaded late."""
    alone = native(example(program))
    run = profiled(example(program), options=SAMPLES)
    assert (run.status, run.stdout) == (alone.status, alone.stdout), run.stderr
    assert "PC samples are not recorded" not in run.stderr


def test_shares_match_ncu(example: Build, profiled: Run) -> None:
    """The share of stalls on memory is that of ncu's source counters, within 5 points."""
    prefix = "smsp__pcsamp_warps_issue_stalled_"
    command = [example("vadd"), "--n", str(1 << 26), "--launches", "5"]
    rows = launch_rows(command, "--section", "SourceCounters", "--section", "WarpStateStats")
    theirs: Counter[str] = Counter()
    for row in rows:
        for name, value in row.items():
            if name.startswith(prefix) and not name.endswith("_not_issued") and value:
                theirs[name.removeprefix(prefix)] += int(float(value.replace(",", "")))
    if not theirs.total():
        pytest.skip("ncu cannot profile here: it has no samples")
    run = profiled(example("vadd"), *VADD, options=SAMPLES)
    ours: Counter[str] = Counter()
    for row in run.rows("pc_sample"):
        if row["pc"] is not None:
            ours[row["reason"]] += row["samples"]
    for reason in ("long_scoreboard", "selected"):
        share = theirs[reason] / theirs.total()
        assert ours[reason] / ours.total() == pytest.approx(share, abs=0.05)


def test_samples_by_instruction_match_ncu(example: Build, profiled: Run) -> None:
    """The share of each instruction is that of ncu's source counters, within the error of counting.
    Samples come in bursts (the warps of a scheduler wait together), so it is that of a quarter."""
    command = [example("vadd"), "--n", str(1 << 26), "--launches", "20"]
    theirs: Counter[int] = Counter()
    for kernel in profile(command, ("group:smsp__pcsamp_warp_stall_reasons",), CANNOT):
        stalls = [
            {int(pc, 16): samples for pc, samples in found.items()}
            for name, found in kernel.instances.items()
            if "_issue_stalled_" in name and not name.endswith("_not_issued")
        ]
        begin = min(pc for found in stalls for pc in found)
        for found in stalls:
            for pc, samples in found.items():
                theirs[pc - begin] += int(samples)
    run = profiled(*command, options=SAMPLES)
    ours: Counter[int] = Counter()
    for row in run.rows("pc_sample"):
        if row["pc"] is not None:
            ours[row["pc"]] += row["samples"]
    assert theirs.total() > 10_000 and ours.total() > 10_000
    far = {}
    for pc in theirs.keys() | ours.keys():
        one, other = theirs[pc] / theirs.total(), ours[pc] / ours.total()
        share = (one + other) / 2
        error = (4 * share * (1 - share) * (1 / theirs.total() + 1 / ours.total())) ** 0.5
        if abs(one - other) > 0.005 + 4 * error:
            far[hex(pc)] = one, other
    assert not far, (theirs, ours)
