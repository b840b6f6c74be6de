"""What --sample estimates, against exact counts: accesses of each kernel in training.

    python bench/gpu/estimates.py [eager|resnet18 ...] [--steps 1000] [--exact 12] [--json FILE]

Counts all launches of two and of `--exact` steps of steps.py, and from their difference those of
`--steps` steps, which are then sampled. Prints the largest difference of a kernel with more than
1 % of all accesses, for all of them the difference in standard errors, as reported, and the total.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from workloads import STEPS, profiled, ran

FEW = 2
#: The target for kernels with at least this share of all accesses.
SHARE, MOST = 0.01, 0.01


@dataclass(frozen=True)
class Estimate:
    """Accesses of a kernel in all its launches, and their standard error."""

    accesses: float
    error: float = 0.0

    def plus(self, other: Estimate) -> Estimate:
        """The sum; the errors are independent."""
        return Estimate(self.accesses + other.accesses, math.hypot(self.error, other.error))


Kernels = dict[str, Estimate]


def counted(model: str, steps: int, options: tuple[str, ...], directory: Path) -> Kernels:
    """Accesses by kernel of a run."""
    command = [sys.executable, str(STEPS), model, "--steps", str(steps), "--warmup", "0"]
    done = ran([*profiled(("-t", "access_count", *options), directory), *command], directory)
    if done.returncode:
        sys.exit(f"estimates: {model}, {steps} steps: {done.stderr}")
    table = pq.read_table(directory / "run" / "results" / "access_count" / "kernels.parquet")
    found: Kernels = defaultdict(lambda: Estimate(0))
    for row in table.to_pylist():
        exact = row.get("estimate") is None
        of_row = Estimate(row["accesses"]) if exact else Estimate(row["estimate"], row["error"])
        found[row["kernel"]] = found[row["kernel"]].plus(of_row)
    return found


def compared(model: str, steps: int, exact: int, directory: Path) -> dict[str, float]:
    """Print how a sampled run differs from the exact counts."""
    few, more = (counted(model, number, (), directory) for number in (FEW, exact))
    sampled = counted(model, steps, ("--sample",), directory)
    wanted = {
        name: few[name].accesses
        + (more[name].accesses - few[name].accesses) * (steps - FEW) / (exact - FEW)
        for name in more
    }
    total = sum(wanted.values())
    large = {name: each for name, each in wanted.items() if each >= SHARE * total}
    differences = {name: sampled[name].accesses / each - 1 for name, each in large.items()}
    errors = [
        abs(sampled[name].accesses - each) / sampled[name].error
        for name, each in large.items()
        if sampled[name].error > 0  # not NaN: unknown
    ]
    worst = max(differences, key=lambda name: abs(differences[name]))
    found = {
        "kernels": len(large),
        "worst": differences[worst],
        "beyond": sum(abs(each) > MOST for each in differences.values()),
        "errors": max(errors, default=0.0),
        "total": sum(each.accesses for each in sampled.values()) / total - 1,
    }
    print(
        f"{model}, {steps} steps: total {found['total']:+.3%}; {len(large)} kernels with at least"
        f" {SHARE:.0%} of the accesses, {found['beyond']} of them beyond {MOST:.0%}, at most"
        f" {found['errors']:.1f} standard errors; largest {differences[worst]:+.3%}: {worst[:80]}"
    )
    for name in sorted(differences, key=lambda name: -abs(differences[name]))[1:6]:
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
