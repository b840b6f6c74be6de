"""Managed memory of the reference accelerator under pasta-preload: the tool uvm_advisor, and its
plan carried out in the program."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pasta.processors.managed_plan import Allocation, Entry, LaunchKey, written
from pasta.run.directory import RunDirectory

BLOCK = 2 << 20
#: A demo whose three arrays have a block each; and a device that holds two of them.
ARGUMENTS = (str(BLOCK // 4), "2")
OVERSUBSCRIBED = {"REFACC_MANAGED": "4"}
OUTPUT = "managed: 2 iterations over 524288 elements, correct\n"


def rows(run: Any, table: str, *columns: str) -> list[tuple[Any, ...]]:
    read = pq.read_table(run.path / "results" / "uvm_advisor" / f"{table}.parquet")
    return list(zip(*(read[name].to_pylist() for name in columns), strict=True))


def faults(run: Any) -> dict[int, tuple[int, int]]:
    """Faults of the device and the host by the number of the allocation."""
    found = sorted(rows(run, "objects", "object_address", "faults", "host_faults"))
    return {number: row[1:] for number, row in enumerate(found)}


@pytest.mark.main
@pytest.mark.slow
def test_a_plan_takes_away_the_faults_that_it_is_for(
    pasta_preload: Any, demo: Any, tmp_path: Path
) -> None:
    program = demo("managed")
    first = pasta_preload(program, *ARGUMENTS, options=("-t", "uvm_advisor"))
    assert (first.stdout, first.exit_status) == (OUTPUT, 0)
    # input: two scans of the device, and the host writes it again once; weights and output: two
    # scans of the device, and the host reads them twice; 6 faults each
    assert faults(first.run) == {0: (12, 6), 1: (12, 12), 2: (12, 12)}
    moved = sum(sum(each) for each in rows(first.run, "objects", "to_device", "to_host"))
    simulated = rows(first.run, "simulation", "plan", "factor", "faults", "host_faults", "moved")
    assert simulated[0] == ("no plan", 1.0, 36, 30, moved)
    assert moved == 10 * BLOCK  # 5 scans of the device, without the first of output, and 5 back

    plan = first.run.path / "results" / "uvm_advisor" / "plan.toml"
    extra = written([Entry("pin", Allocation(77), 0, 77)]).partition("\n\n")[2]
    changed = tmp_path / "plan.toml"
    changed.write_text(f"{plan.read_text()}\n{extra}")
    options = ("-t", "uvm_advisor", "--apply-uvm-plan", str(changed), "-o", str(tmp_path / "2"))
    second = pasta_preload(program, *ARGUMENTS, options=options)
    assert (second.stdout, second.exit_status) == (OUTPUT, 0)
    assert faults(RunDirectory(tmp_path / "2")) == {0: (0, 0), 1: (0, 0), 2: (0, 0)}
    said = [line for line in second.lines if "plan" in line]
    assert any("7 entries applied" in line for line in said), said
    assert any(
        line.endswith("matched nothing: pin of 77 bytes of allocation 0 of 77 bytes")
        for line in said
    ), said


@pytest.mark.slow
def test_a_device_that_is_too_small_is_simulated_exactly(pasta_preload: Any, demo: Any) -> None:
    done = pasta_preload(
        demo("managed"), *ARGUMENTS, options=("-t", "uvm_advisor"), environment=OVERSUBSCRIBED
    )
    totals = rows(done.run, "objects", "faults", "host_faults", "to_device", "to_host", "evicted")
    device, host, to_device, to_host, evicted = (
        sum(column) for column in zip(*totals, strict=True)
    )
    assert evicted > 0 and done.stdout == OUTPUT
    simulated = rows(
        done.run, "simulation", "plan", "factor", "faults", "host_faults", "moved", "evicted"
    )
    assert ("no plan", 1.5, device, host, to_device + to_host, evicted) in simulated
    # the capacity is found from what was evicted: the simulated time is the measured one
    (summary,) = (line for line in done.lines if line.startswith("uvm_advisor:"))
    measured, simulated_time = re.findall(r"([\d.]+ [mu]s)(?:;| \(simulated)", summary)
    assert measured == simulated_time


#: Tables whose rows do not depend on the device times of launches.
SAME = ("objects", "advice", "simulation", "parts", "launches")


@pytest.mark.slow
@pytest.mark.parametrize("separately", [False, True])
def test_two_passes_advise_as_one_run_that_has_both(
    pasta_preload: Any, pasta: Any, demo: Any, tmp_path: Path, separately: bool
) -> None:
    """The reference accelerator has faults and accesses in one run. Faults alone give another plan:
    what `scale` writes is on the device already, so nothing shows that it touches it."""
    program, tool = demo("managed"), ("-t", "uvm_advisor", "-q", "-o")
    one, joined = tmp_path / "one", tmp_path / "joined"
    assert pasta_preload(program, *ARGUMENTS, options=(*tool, str(one))).exit_status == 0
    if separately:
        # the first pass has other tools than the second
        times, accesses = tmp_path / "times", tmp_path / "accesses"
        options = ("-t", "kernel_freq", "-q", "-o", str(times))
        assert pasta_preload(program, *ARGUMENTS, options=options).exit_status == 0
        options = (*tool, str(accesses))
        assert pasta_preload(program, *ARGUMENTS, options=options).exit_status == 0
        assert pasta("merge", "--passes", accesses, times, "-o", joined).returncode == 0
    else:
        options = ("--passes", "auto", *tool, str(joined))
        done = pasta_preload(program, *ARGUMENTS, options=options)
        assert (done.stdout, done.exit_status) == (2 * OUTPUT, 0)
        assert plan_of(joined / "passes" / "times") != plan_of(one)
    assert plan_of(joined) == plan_of(one)
    for table in SAME:
        paths = (run / "results" / "uvm_advisor" / f"{table}.parquet" for run in (joined, one))
        found, expected = (pq.read_table(path).to_pylist() for path in paths)
        assert found == expected, table
    result = json.loads((joined / "results" / "uvm_advisor" / "result.json").read_text())
    assert result["notes"][0] == "of the passes times (refacc 1.0) and accesses (refacc 1.0)"
    assert not any("without partner" in note for note in result["notes"])
    manifest = json.loads((joined / "run.json").read_text())
    assert manifest["warnings"] == [] and manifest["tools"].count("uvm_advisor") == 1


def plan_of(run: Path) -> str:
    return (run / "results" / "uvm_advisor" / "plan.toml").read_text()


def test_a_wrong_plan_is_one_line(pasta_preload: Any, demo: Any, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('version = 1\n[[entry]]\naction = "move"\n')
    done = pasta_preload(demo("managed"), options=("--apply-uvm-plan", str(plan)))
    assert done.exit_status == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"pasta: {plan}: entry 1: action = 'move' is not accepted")


def test_calls_that_fail_are_counted(pasta_preload: Any, compile_c: Any, tmp_path: Path) -> None:
    """A captured stream takes no prefetch; the program's results stay, and the line says so."""
    program = compile_c(
        """
        int main(void) {
            ra_module module;
            ra_function fill;
            ra_stream stream;
            ra_graph graph;
            float *x, one = 1;
            int n = 64;
            RA(ra_module_load_builtin(&module));
            RA(ra_module_function(&fill, module, "_Z4fillIfEvPT_S0_i"));
            RA(ra_alloc_managed((void **)&x, 256));
            RA(ra_stream_create(&stream, 0));
            RA(ra_stream_begin_capture(stream));
            RA(ra_launch(fill, (uint32_t[]){1, 1, 1}, (uint32_t[]){64, 1, 1}, 0, stream,
                         (void *[]){&x, &one, &n}));
            RA(ra_stream_end_capture(stream, &graph));
            return 0;
        }"""
    )
    launch = LaunchKey("_Z4fillIfEvPT_S0_i", (1, 1, 1))
    plan = tmp_path / "plan.toml"
    plan.write_text(written([Entry("prefetch", Allocation(256), 0, 256, launch)]))
    done = pasta_preload(program, options=("-t", "kernel_freq", "--apply-uvm-plan", str(plan)))
    assert done.exit_status == 0
    assert any("0 of 1 entries applied, 0 calls" in line for line in done.lines)
    assert any("1 calls failed, the first with error 10" in line for line in done.lines)
