"""Nsight Compute's hardware counters of a program's kernels, as numbers."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import pytest

from tests.gpu.conftest import TIMEOUT, environment

#: Executions per opcode, by warps and by threads whose predicate holds; not in --query-metrics.
OPCODES = "sass__inst_executed_per_opcode"
OPCODES_THREADS = "sass__thread_inst_executed_true_per_opcode"


@dataclass(frozen=True)
class Kernel:
    """One profiled launch: values by metric, and by metric and instance where it has them."""

    name: str
    values: dict[str, float]
    instances: dict[str, dict[str, float]]


@cache
def program() -> str:
    """Path of ncu; skips the test if it is not installed."""
    found = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
    if not found:
        pytest.skip("ncu was not found")
    return found


def ncu(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [program(), *arguments]
    return subprocess.run(
        command, env=environment({}), capture_output=True, text=True, timeout=TIMEOUT
    )


def launch_rows(command: list[str], *options: str) -> list[dict[str, str]]:
    """Rows of ncu's raw page, one per launch, with mangled names; skips the test if it cannot
    profile."""
    usual = ["--clock-control", "none", "--csv", "--page", "raw", "--print-kernel-base", "mangled"]
    done = ncu(*usual, *options, *command)
    lines = done.stdout.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith('"ID"')]
    if not starts:
        pytest.skip(f"ncu cannot profile here: {done.stdout[-300:]}{done.stderr[-300:]}")
    rows = csv.DictReader(lines[starts[0] :])
    return [row for row in rows if (row["ID"] or "").isdigit()]


@cache
def known_metrics() -> frozenset[str]:
    """Base names, without `.sum`, of the counters of this device."""
    done = ncu("--query-metrics")
    names = re.findall(r"^(\w+__\w+)\s", done.stdout, re.MULTILINE)
    if not names:
        pytest.skip(f"ncu lists no metrics here: {done.stdout[-300:]}{done.stderr[-300:]}")
    return frozenset(names)


def known(metrics: Iterable[str]) -> list[str]:
    """The metrics available on this device."""
    return [metric for metric in metrics if metric.partition(".")[0] in known_metrics()]


def profile(command: list[str], metrics: Iterable[str], cannot: int) -> list[Kernel]:
    """Launches in order; AssertionError if the program fails. Skips the test if ncu cannot profile,
    or the program exits with `cannot`.
    """
    options = ["--clock-control", "none", "--print-summary", "none", "--csv", "--page", "raw"]
    options += ["--print-kernel-base", "mangled", "--print-units", "base"]
    options += ["--print-metric-instances", "details", "--metrics", ",".join(metrics)]
    done = ncu(*options, *command)
    if done.returncode == cannot:
        pytest.skip(f"the program cannot do it here: {done.stderr[-300:]}")
    lines = done.stdout.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        text = f"{done.stdout[-500:]}{done.stderr[-500:]}"
        assert "==ERROR==" in text, f"ncu profiled nothing: {text}"
        pytest.skip(f"ncu cannot profile here: {text}")
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-500:]
    rows = csv.DictReader(lines[start:])
    return [_kernel(row) for row in rows if (row["ID"] or "").isdigit()]


def _kernel(row: dict[str, str]) -> Kernel:
    values: dict[str, float] = {}
    instances: dict[str, dict[str, float]] = {}
    for column, text in row.items():
        # a metric: VALUE, or VALUE (INSTANCE: VALUE; INSTANCE: VALUE)
        if not column or "__" not in column or not text:
            continue
        value, _, rest = text.partition(" (")
        if re.fullmatch(r"-?[\d,.]+(e[+-]?\d+)?", value):
            values[column] = _number(value)
        found = re.findall(r"([^;:()]+): ([\d,.]+)", rest)
        if found:
            instances[column] = {name.strip(): _number(number) for name, number in found}
    return Kernel(row["Kernel Name"], values, instances)


def _number(text: str) -> float:
    return float(text.replace(",", ""))
