"""Compares what --sample estimates with exact counts: accesses of each kernel in training.

    python bench/gpu/estimates.py [eager|resnet18 ...] [--steps 1000] [--exact 12] [--json FILE]

Runs two and `--exact` steps of steps.py with every launch counted, extrapolates the counts to
`--steps` steps, and compares them with a sampled run of that many steps. Prints the difference of
the totals and, of the kernels with at least 1 % of all accesses, how many differ by more than 1 %,
the largest differences, and the largest one in reported standard errors.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import pyarrow.parquet as pq
from workloads import STEPS, profiled, ran

from pasta.processors.sampling import Estimate

FEW = 2
#: The target for kernels with at least this share of all accesses.
SHARE, MOST = 0.01, 0.01


Kernels = dict[str, Estimate]


def counted(model: str, steps: int, options: tuple[str, ...], directory: Path) -> Kernels:
    """Accesses by kernel of a run."""
    command = [sys.executable, str(STEPS), model, "--steps", str(steps), "--warmup", "0"]
    done = ran([*profiled(("-t", "access_count", *options), directory), *command], directory)
    if done.returncode:
        sys.exit(f"estimates: {model}, {steps} steps: {done.stderr}")
    table = pq.read_table(directory / "run" / "results" / "access_count" / "kernels.parquet")
    found: Kernels = defaultdict(lambda: Estimate(0, 0))
    for row in table.to_pylist():
        total, error = row["accesses"], 0.0
        if row.get("estimate") is not None:
            total, error = row["estimate"], row["error"]
        before = found[row["kernel"]]  # of a kernel with the same name
        found[row["kernel"]] = Estimate(before.total + total, math.hypot(before.error, error))
    return found


def compared(model: str, steps: int, exact: int, directory: Path) -> dict[str, float]:
    """Print how a sampled run differs from the exact counts."""
    few, more = (counted(model, number, (), directory) for number in (FEW, exact))
    sampled = counted(model, steps, ("--sample",), directory)
    wanted = {
        name: few[name].total + (more[name].total - few[name].total) * (steps - FEW) / (exact - FEW)
        for name in more
    }
    total = sum(wanted.values())
    large = {name: each for name, each in wanted.items() if each >= SHARE * total}
    differences = {name: sampled[name].total / each - 1 for name, each in large.items()}
    errors = [
        abs(sampled[name].total - each) / sampled[name].error
        for name, each in large.items()
        if sampled[name].error > 0  # not NaN: unknown
    ]
    worst, *others = sorted(differences, key=lambda name: -abs(differences[name]))
    found = {
        "kernels": len(large),
        "worst": differences[worst],
        "beyond": sum(abs(each) > MOST for each in differences.values()),
        "errors": max(errors, default=0.0),
        "total": sum(each.total for each in sampled.values()) / total - 1,
    }
    print(
        f"{model}, {steps} steps: total {found['total']:+.3%}; {len(large)} kernels with at least"
        f" {SHARE:.0%} of the accesses, {found['beyond']} of them beyond {MOST:.0%}, at most"
        f" {found['errors']:.1f} standard errors; largest {differences[worst]:+.3%}: {worst[:80]}"
    )
    for name in others[:5]:
        print(f"  {differences[name]:+.3%} of {large[name] / total:.1%}: {name[:100]}")
    return found


def main() -> None:
    """Compare the models' runs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=["resnet18", "eager"])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--exact", type=int, default=12, help="steps whose launches are counted")
    parser.add_argument("--json", type=Path, help="write all figures there")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = {
            model: compared(model, given.steps, given.exact, Path(directory))
            for model in given.models
        }
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
